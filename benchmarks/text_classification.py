"""Is the small classification head worth it: against logistic regression on mean vectors, and the paper's network?

    python benchmarks/text_classification.py $DATA/sst/train.txt $DATA/sst/dev.txt

Sentences of SST that are positive or negative, elmo-mini and no word vectors: 1,500 sentences (others for each seed)
and all of them, tested on dev after the last epoch. Logistic regression reads the mean of the words' vectors.
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
FEW = 1500
LINEAR, POOLED, BCN = "logistic regression on mean vectors", "pooled", "bcn"
TASKS = {POOLED: "text-classification", BCN: "sst"}
SETTINGS = """--eval_strategy no --save_strategy no --load_best_model_at_end false --disable_tqdm true""".split()

Rows = list[dict[str, str]]


def read_rows(path: Path) -> Rows:
    """Return the texts that are positive or negative."""
    rows = []
    for row in read_trees(path):
        if row["label"] in LABELS:
            rows.append({"text": " ".join(row["words"]), "label": LABELS[row["label"]]})
    return rows


def score_linear(train: Rows, dev: Rows) -> float:
    """Return the accuracy of logistic regression, as scikit-learn has it, on the mean of the words' vectors."""
    embedder = ElmoEmbedder(ElmoModel.from_pretrained(MINI), ElmoTokenizer.from_pretrained(MINI), pooling="mean")
    parts = []
    for rows in (train, dev):
        vectors = list(embedder.embed(row["text"].split() for row in rows))
        parts.append((vectors, [row["label"] for row in rows]))
    return LogisticRegression(max_iter=1000).fit(*parts[0]).score(*parts[1])


def score_head(task: str, train: Rows, dev: Rows, seed: int) -> tuple[float, int]:
    """Return the accuracy of a head that a recipe trains, and how many parameters that were."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--task", task, "--model_name_or_path", MINI, "--output_dir", f"{folder}/run", "--seed", seed]
        for name, rows in (("train", train), ("validation", dev)):
            file = Path(folder, f"{name}.jsonl")
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            arguments += [f"--{name}_file", file]
        run = Run(*read_arguments([*SETTINGS, *map(str, arguments)]))
        run.trainer.train()
        trained = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
        return run.trainer.evaluate()["eval_accuracy"], trained


def measure(model: str, train: Rows, dev: Rows, seed: int) -> dict[str, Any]:
    """Train a model and test it; return its accuracy and the seconds of the processor that both took."""
    start = time.process_time()  # others may share the core
    accuracy, trained = (
        (score_linear(train, dev), 257) if model == LINEAR else score_head(TASKS[model], train, dev, seed)
    )
    seconds = time.process_time() - start
    row = {"model": model, "sentences": len(train), "seed": seed, "accuracy": accuracy, "trained": trained}
    return {**row, "seconds": seconds}


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each model and number of sentences, with the mean over seeds."""
    rows = []
    for model, sentences in dict.fromkeys((run["model"], run["sentences"]) for run in runs):
        own = [run for run in runs if (run["model"], run["sentences"]) == (model, sentences)]
        scores = [100 * run["accuracy"] for run in own]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        rows.append(
            {
                "model": model,
                "sentences": sentences,
                "trained parameters": own[0]["trained"],
                "accuracy": f"{statistics.mean(scores):.1f}{spread}",
                "seeds": len(own),
                "seconds of a core": statistics.mean(run["seconds"] for run in own),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_file", type=Path)
    parser.add_argument("dev_file", type=Path)
    parser.add_argument("--models", nargs="+", default=[LINEAR, POOLED, BCN], choices=[LINEAR, POOLED, BCN])
    parser.add_argument("--sentences", nargs="+", type=int, default=[FEW, 0], help="how many; 0 for all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    every, dev = read_rows(arguments.train_file), read_rows(arguments.dev_file)
    runs = []
    for count in arguments.sentences:
        for model in arguments.models:
            # All sentences give one logistic regression. BCN is slow.
            seeds = arguments.seeds if model == POOLED or (model == LINEAR and count) else arguments.seeds[:1]
            if model == BCN and not count:
                continue
            for seed in seeds:
                train = random.Random(seed).sample(every, count) if count else every
                runs.append(measure(model, train, dev, seed))
                print(json.dumps(runs[-1]), flush=True)
    rows = summarise(runs)
    print_table(rows)
    save("text-classification", rows + runs)


if __name__ == "__main__":
    main()
