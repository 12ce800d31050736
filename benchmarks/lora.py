"""What is a biLM worth that learns with its task: not at all, by LoRA's few weights, or as a whole?

    python benchmarks/lora.py $DATA/eng.train $DATA/eng.testa --word_vectors $DATA/glove.6B.50d.zip

NER on a tenth of the sentences, elmo-mini at the input and the output, the same head, epochs and seeds three times:
with the biLM frozen, with LoRA (peft) on the matrices of its LSTMs, and with all of it trained. What LoRA trained is
then saved, loaded onto a fresh model and merged into it, and must label the validation data as before.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import print_table, save
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers.utils import logging

from modeling_elmo import MINI, ElmoForTokenClassification
from training.finetune import Run, read_arguments

# Beside the recipe's settings: those of README.md's row of NER, 10 %.
SETTINGS = """--task ner --elmo_placement both --mix scalar --mix_l2 0.001 --train_fraction 0.1 --patience 0
--eval_strategy no --save_strategy no --load_best_model_at_end false --disable_tqdm true""".split()
# A frozen biLM's layers are kept between epochs, which LoRA changes. All of it learns at a tenth of the head's rate.
VARIANTS = {
    "frozen": [],
    "LoRA": ["--cache_gb", "0"],
    "trained": ["--freeze_bilm", "false", "--bilm_learning_rate", "0.0001"],
}
# Of the biLM's LSTMs alone: the head's have matrices of the same names.
TARGETS = r"elmo\.(forward|backward)_lm\..*\.(input_gates|recurrent_gates|projection)"


class LoraRun(Run):
    """A run that trains the head, and LoRA's weights in place of the biLM's."""

    def _build(self) -> None:
        super()._build()
        self.model.save_pretrained(self.folder / "base")
        # peft compares ends of names: `encoder` alone would also be the biLM's `char_encoder`.
        own = sorted({"model." + name.split(".")[0] for name, p in self.model.named_parameters() if p.requires_grad})
        lora = LoraConfig(task_type="TOKEN_CLS", r=8, lora_alpha=16, target_modules=TARGETS, modules_to_save=own)
        self.model = get_peft_model(self.model, lora)


@torch.no_grad()
def label_words(model: nn.Module, run: Run) -> tuple[Tensor, Tensor]:
    """Return the labels of the words of the validation part, and the probabilities of all labels."""
    labels, chances = [], []
    model.eval()
    for batch in run.trainer.get_eval_dataloader():
        output = model(**batch)
        labels.append(output.predictions.flatten())
        chances.append(output.logits.exp().flatten(0, 1))
    return torch.cat(labels), torch.cat(chances)


def check_adapter(run: Run) -> dict[str, Any]:
    """Save the adapter, load it onto a fresh model and merge it; return how the labels and their chances differ."""
    base, adapter = run.folder / "base", run.folder / "adapter"
    labels, chances = label_words(run.model, run)
    run.model.save_pretrained(adapter, save_embedding_layers=False)  # word vectors are in the base
    model: nn.Module = PeftModel.from_pretrained(ElmoForTokenClassification.from_pretrained(base), adapter)
    facts: dict[str, Any] = {}
    for step in ("loaded", "merged"):
        if step == "merged":
            model = model.merge_and_unload()
        new_labels, new_chances = label_words(model, run)
        facts[f"{step}: other labels"] = int((labels != new_labels).sum())
        gaps = (chances - new_chances).abs()
        facts[f"{step}: largest difference"] = float(gaps.max())
        facts[f"{step}: share above 1e-5"] = float((gaps > 1e-5).double().mean())
    facts["adapter MB"] = (adapter / "adapter_model.safetensors").stat().st_size / 1e6
    facts["base MB"] = (base / "model.safetensors").stat().st_size / 1e6
    return facts


def train(variant: str, seed: int, arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train one model; return its numbers of parameters, its score and the seconds of the processor it took."""
    given = ["--train_file", arguments.train_file, "--validation_file", arguments.validation_file]
    given += ["--word_vectors", arguments.word_vectors, "--model_name_or_path", MINI, "--output_dir", folder]
    given += ["--num_train_epochs", arguments.epochs, "--seed", seed]
    settings, training = read_arguments([*SETTINGS, *map(str, given), *VARIANTS[variant]])
    run = (LoraRun if variant == "LoRA" else Run)(settings, training)
    trained = {name: p.numel() for name, p in run.model.named_parameters() if p.requires_grad}
    start = time.process_time()  # others may share the core
    run.trainer.train()
    seconds = time.process_time() - start
    row = {
        "biLM": variant,
        "seed": seed,
        "trained": sum(trained.values()),
        "of the biLM": sum(count for name, count in trained.items() if "elmo." in name),
        "f1": run.trainer.evaluate(ignore_keys=[])["eval_f1"],  # the CRF's labels are scored
        "seconds": seconds,
    }
    if variant == "LoRA" and seed == arguments.seeds[0]:
        row["adapter"] = check_adapter(run)
    return row


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each variant, with the mean over seeds."""
    rows = []
    for variant in VARIANTS:
        own = [run for run in runs if run["biLM"] == variant]
        scores = [100 * run["f1"] for run in own]
        spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        rows.append(
            {
                "biLM": variant,
                "trained parameters": own[0]["trained"],
                "of the biLM": own[0]["of the biLM"],
                "F1": f"{statistics.mean(scores):.1f}{spread}",
                "seconds of a core": statistics.mean(run["seconds"] for run in own),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_file", type=Path)
    parser.add_argument("validation_file", type=Path)
    parser.add_argument("--word_vectors", required=True, type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    runs = []
    for seed in arguments.seeds:
        for variant in VARIANTS:
            with tempfile.TemporaryDirectory() as folder:
                runs.append(train(variant, seed, arguments, folder))
            print(json.dumps(runs[-1]), flush=True)
    rows = summarise(runs)
    print_table(rows)
    save("lora", [{**row, "epochs": arguments.epochs} for row in rows] + runs)


if __name__ == "__main__":
    main()
