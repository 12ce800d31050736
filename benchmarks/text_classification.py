"""Is the small classification head worth it: against logistic regression on mean vectors, and the paper's network?

    python benchmarks/text_classification.py $DATA/sst/train.txt $DATA/sst/dev.txt

Sentences of SST that are positive or negative, elmo-mini and no word vectors: 1,500 sentences (others for each seed)
and all of them, tested after the last epoch on dev, which is small, and on 3,000 other sentences of the training data
where there are any left. Logistic regression reads the mean of the words' vectors.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import print_table, save
from sklearn.linear_model import LogisticRegression
from transformers.utils import logging

from modeling_elmo import MINI, ElmoEmbedder, ElmoModel, ElmoTokenizer
from training.finetune import Run, read_arguments
from training.task_data import read_trees

LABELS = {"very negative": "negative", "negative": "negative", "positive": "positive", "very positive": "positive"}
FEW, OTHERS = 1500, 3000
LINEAR, POOLED, TUNED, BCN = "logistic regression on mean vectors", "pooled", "pooled, the biLM learns too", "bcn"
TASKS = {POOLED: "text-classification", TUNED: "text-classification", BCN: "sst"}
EPOCHS = {TUNED: 5, BCN: 4}  # of the recipes' 10 and 12, which are slow
SETTINGS = """--eval_strategy no --save_strategy no --load_best_model_at_end false --disable_tqdm true""".split()

Rows = list[dict[str, str]]
Parts = dict[str, Rows]  # "train", and what is tested: "validation" is dev, "test" the other sentences


def read_rows(path: Path) -> Rows:
    """Return the texts that are positive or negative."""
    rows = []
    for row in read_trees(path):
        if row["label"] in LABELS:
            rows.append({"text": " ".join(row["words"]), "label": LABELS[row["label"]]})
    return rows


def draw(every: Rows, dev: Rows, count: int, seed: int) -> Parts:
    """Return some sentences to train on, and those to test on; all without a count."""
    if not count:
        return {"train": every, "validation": dev}
    drawn = random.Random(seed).sample(every, len(every))
    return {"train": drawn[:count], "validation": dev, "test": drawn[count : count + OTHERS]}


def score_linear(parts: Parts) -> dict[str, float]:
    """Return the accuracy of logistic regression, as scikit-learn has it, on the mean of the words' vectors."""
    embedder = ElmoEmbedder(ElmoModel.from_pretrained(MINI), ElmoTokenizer.from_pretrained(MINI), pooling="mean")
    sets = {}
    for part, rows in parts.items():
        vectors = list(embedder.embed(row["text"].split() for row in rows))
        sets[part] = (vectors, [row["label"] for row in rows])
    model = LogisticRegression(max_iter=1000).fit(*sets.pop("train"))
    return {part: model.score(*examples) for part, examples in sets.items()}


def score_head(task: str, parts: Parts, seed: int, settings: list[str]) -> tuple[dict[str, float], int]:
    """Return the accuracy of a head that a recipe trains, and how many parameters that were."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--task", task, "--model_name_or_path", MINI, "--output_dir", f"{folder}/run", "--seed", seed]
        for name, rows in parts.items():
            file = Path(folder, f"{name}.jsonl")
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            arguments += [f"--{name}_file", file]
        run = Run(*read_arguments([*SETTINGS, *map(str, arguments), *settings]))
        run.trainer.train()
        trained = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
        tested = [part for part in parts if part != "train"]
        return {part: run.trainer.evaluate(run.examples[part])["eval_accuracy"] for part in tested}, trained


def measure(model: str, parts: Parts, seed: int) -> dict[str, Any]:
    """Train a model and test it; return its accuracy and the seconds of the processor that both took."""
    start = time.process_time()  # others may share the core
    if model == LINEAR:
        scores, trained = score_linear(parts), 257
    else:
        settings = ["--num_train_epochs", str(EPOCHS[model])] if model in EPOCHS else []
        if model == TUNED:
            settings += ["--freeze_bilm", "false", "--bilm_learning_rate", "0.001"]
        scores, trained = score_head(TASKS[model], parts, seed, settings)
    seconds = time.process_time() - start
    row = {"model": model, "sentences": len(parts["train"]), "seed": seed, "accuracy": scores["validation"]}
    return {**row, "accuracy_others": scores.get("test"), "trained": trained, "seconds": seconds}


def mean_and_spread(shares: list[float]) -> str:
    """Return the mean of shares in percent, with the standard deviation where there are several."""
    scores = [100 * share for share in shares]
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{spread}"


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each model and number of sentences, with the mean over seeds."""
    rows = []
    for model, sentences in dict.fromkeys((run["model"], run["sentences"]) for run in runs):
        own = [run for run in runs if (run["model"], run["sentences"]) == (model, sentences)]
        others = [run["accuracy_others"] for run in own if run["accuracy_others"] is not None]
        rows.append(
            {
                "model": model,
                "sentences": sentences,
                "trained parameters": own[0]["trained"],
                "on dev": mean_and_spread([run["accuracy"] for run in own]),
                "on other sentences": mean_and_spread(others) if others else "",
                "seeds": len(own),
                "seconds of a core": statistics.mean(run["seconds"] for run in own),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_file", type=Path)
    parser.add_argument("dev_file", type=Path)
    models = [LINEAR, POOLED, TUNED, BCN]
    parser.add_argument("--models", nargs="+", default=models, choices=models)
    parser.add_argument("--sentences", nargs="+", type=int, default=[FEW, 0], help="how many; 0 for all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    every, dev = read_rows(arguments.train_file), read_rows(arguments.dev_file)
    runs = []
    for count in arguments.sentences:
        for model in arguments.models:
            # All sentences give one logistic regression, and are slow for what is not frozen or has LSTMs.
            seeds = arguments.seeds if model == POOLED or count else arguments.seeds[:1]
            for seed in seeds:
                runs.append(measure(model, draw(every, dev, count, seed), seed))
                print(json.dumps(runs[-1]), flush=True)
    rows = summarise(runs)
    print_table(rows)
    save("text-classification", rows + runs)


if __name__ == "__main__":
    main()
