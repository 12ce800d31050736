"""How much faster is training a task model when a frozen biLM's layers are kept from epoch to epoch?

    python benchmarks/kept_layers.py TRAIN_FILE VALIDATION_FILE [--task ner] [--size original] [--fraction 0.1]

The same training twice, with kept layers and with the biLM reading the text at every epoch: seconds of each epoch,
and whether the losses are the same, step by step.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import checkpoint, print_table, save
from transformers import TrainerCallback

from training.finetune import Run, read_arguments


class Clock(TrainerCallback):
    """Seconds of every epoch, and the loss of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        self.begun = time.perf_counter()

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self.begun)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def train(arguments: argparse.Namespace, output: str, *more: str) -> Clock:
    settings, training = read_arguments(
        [
            *("--task", arguments.task, "--train_file", str(arguments.train_file)),
            *("--validation_file", str(arguments.validation_file)),
            *("--model_name_or_path", str(checkpoint(arguments.size)[2])),
            *("--output_dir", output, "--num_train_epochs", str(arguments.epochs), "--logging_steps", "1"),
            *("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"),
            *("--elmo_placement", arguments.placement),
            *("--patience", "0", "--disable_tqdm", "true", *more),
        ]
    )
    settings.train_fraction = arguments.fraction
    clock = Clock()
    run = Run(settings, training)
    run.trainer.add_callback(clock)
    run.trainer.train()
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_file", type=Path)
    parser.add_argument("validation_file", type=Path, help="a few sentences: the biLM reads them once")
    parser.add_argument("--task", default="ner")
    parser.add_argument("--size", default="original", choices=["small", "medium", "original"])
    parser.add_argument("--fraction", type=float, default=0.1, help="of the file's examples (default 0.1)")
    parser.add_argument("--placement", default="both", choices=["input", "output", "both"])
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept_folder, tempfile.TemporaryDirectory() as anew_folder:
        kept = train(arguments, kept_folder)
        anew = train(arguments, anew_folder, "--cache_gb", "0")
    later = [statistics.mean(clock.seconds[1:]) for clock in (kept, anew)]
    gaps = [abs(a - b) for a, b in zip(kept.losses, anew.losses, strict=True)]
    rows = [
        {
            "task": f"{arguments.task}, {arguments.size}, ELMo at {arguments.placement}",
            "steps": len(gaps),
            "seconds an epoch, kept": later[0],
            "read anew": later[1],
            "times as fast": later[1] / later[0],
            "largest difference of a loss": f"{max(gaps):.1e}",
        }
    ]
    print_table(rows)
    save(f"kept-layers-{arguments.size}-{arguments.placement}", rows)


if __name__ == "__main__":
    main()
