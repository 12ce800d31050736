"""Compares places and mixes of ELMo on a task, over seeds and parts of the training data: one table, one plot.

    python -m training.compare --task ner --model_name_or_path my-elmo --train_file eng.train \
        --validation_file eng.testa --word_vectors glove.6B.zip:glove.6B.50d.txt --output_dir runs/compare \
        --placements none input output both

The paper's Table 2 is --mixes last average 1 0.001, its Table 3 --placements none input output both, its Figure 1
--fractions 0.01 0.1 1. Everything else is passed on to training.finetune. Finished runs are not done again, so an
interrupted comparison goes on when it is started again.
"""

import argparse
import itertools
import json
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils import logging as transformers_logging

from modeling_elmo.files import ElmoError
from training.figures import draw_comparison
from training.finetune import BAD_INPUT, MIX_FILE, RESULTS_FILE, TASKS, finetune
from training.settings import PLACEMENTS, in_one_line

SETTINGS_FILE = "settings.json"
INTERRUPTED = 130


class Setting(NamedTuple):
    """What the runs of one row of the table have in common."""

    placement: str
    mix: str  # last, average, or the λ of a learned mix
    fraction: float

    def arguments(self) -> list[str]:
        mix = ["--mix", self.mix] if self.mix in ("last", "average") else ["--mix", "scalar", "--mix_l2", self.mix]
        placement = ["--elmo_placement", self.placement, *(mix if self.placement != "none" else [])]
        return [*placement, "--train_fraction", str(self.fraction)]

    @property
    def name(self) -> str:
        mix = "" if self.placement == "none" else f"-{self.mix}"
        return f"{self.placement}{mix}-{self.fraction:g}"

    @property
    def model(self) -> str:
        """The row's model, in words."""
        if self.placement == "none":
            return "without ELMo"
        mix = {"last": "last layer", "average": "average"}.get(self.mix, f"λ = {self.mix}")
        return f"ELMo at the {self.placement.replace('both', 'input and output')}, {mix}"


def settings_to_run(placements: Iterable[str], mixes: Iterable[str], fractions: Iterable[float]) -> list[Setting]:
    """Every combination; without ELMo there is nothing to mix."""
    every = itertools.product(sorted(set(fractions)), placements, mixes)
    return list(dict.fromkeys(Setting(p, "-" if p == "none" else m, f) for f, p, m in every))


class Outcome(NamedTuple):
    """What a run gave: its score on the validation data, the seconds it trained since it was last resumed, and the
    layers' weights by place.
    """

    score: float
    seconds: float
    mix: dict[str, list[float]]


def table_of(outcomes: dict[Setting, list[Outcome]], metric: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of the comparison, and the same as Markdown. The spread is the standard deviation of the seeds."""
    rows = [
        {
            "model": setting.model,
            "placement": setting.placement,
            "fraction": setting.fraction,
            "metric": metric,
            "mean": statistics.mean(run.score for run in runs),
            "standard deviation": statistics.stdev(run.score for run in runs) if len(runs) > 1 else None,
            "seeds": len(runs),
            "scores": [run.score for run in runs],
            "minutes": statistics.mean(run.seconds for run in runs) / 60,
            "mix": mean_mix([run.mix for run in runs]),
        }
        for setting, runs in outcomes.items()
    ]
    lines = [f"| model | training data | {metric} | seeds | minutes of training |", "|---|---|---|---|---|"]
    for row in rows:
        spread = "" if row["standard deviation"] is None else f" ± {100 * row['standard deviation']:.2f}"
        score = f"{100 * row['mean']:.2f}{spread}"
        lines.append(f"| {row['model']} | {row['fraction']:.0%} | {score} | {row['seeds']} | {row['minutes']:.1f} |")
    return rows, "\n".join(lines) + "\n"


def mean_mix(mixes: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    """The layers' shares at each place, without the scale gamma: the mean over runs."""
    shares = {place: [[value / sum(mix[place]) for value in mix[place]] for mix in mixes] for place in mixes[0]}
    return {place: [statistics.mean(layer) for layer in zip(*runs, strict=True)] for place, runs in shares.items()}


def run_once(setting: Setting, seed: int, folder: Path, metric: str, passed_on: Sequence[str]) -> Outcome | None:
    """What a run gave, a finished one or a new one; None where it was stopped."""
    output = folder / f"{setting.name}-seed{seed}"
    finished = output / RESULTS_FILE
    score = f"eval_{metric}"
    if not finished.is_file() or score not in json.loads(finished.read_text(encoding="utf-8")):
        where = ["--output_dir", str(output), "--cache_dir", str(folder / "cache"), "--seed", str(seed)]
        arguments = [*passed_on, *setting.arguments(), *where]
        if any(output.glob("checkpoint-*")):
            arguments += ["--resume_from_checkpoint", "last"]
        finished.unlink(missing_ok=True)
        if finetune(arguments) is None:
            return None
        for checkpoint in output.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    results = json.loads(finished.read_text(encoding="utf-8"))
    mix = output / MIX_FILE
    weights = json.loads(mix.read_text(encoding="utf-8")) if mix.is_file() else {}
    return Outcome(results[score], results["train_runtime"], weights)


def check_settings(folder: Path, passed_on: Sequence[str]) -> None:
    """Notes what all runs of a folder have in common, and refuses to add runs of other settings to them."""
    file = folder / SETTINGS_FILE
    if file.is_file() and any(folder.glob("*-seed*/*")):
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != list(passed_on):
            raise ElmoError(f"{folder} has runs of other settings, `{' '.join(before)}`: give another --output_dir")
        return
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(list(passed_on), indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="training.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, choices=list(TASKS))
    parser.add_argument("--output_dir", required=True, type=Path, help="where runs, table and plot go")
    parser.add_argument("--placements", nargs="+", default=["none", "both"], choices=PLACEMENTS)
    parser.add_argument("--mixes", nargs="+", default=["0.001"], help="last, average, or the λ of a learned mix")
    parser.add_argument("--fractions", nargs="+", type=float, default=[1.0], help="parts of the training data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    own, rest = parser.parse_known_args(list(arguments))
    transformers_logging.set_verbosity_error()
    metric = TASKS[own.task].metric
    outcomes: dict[Setting, list[Outcome]] = {}
    recipe = rest[:1] if rest and not rest[0].startswith("-") else []
    passed_on = [*recipe, "--task", own.task, *rest[len(recipe) :]]
    try:
        with in_one_line():
            check_settings(own.output_dir, passed_on)
        for setting in settings_to_run(own.placements, own.mixes, own.fractions):
            for seed in own.seeds:
                print(f"\n=== {setting.model}, {setting.fraction:.0%} of the data, seed {seed}")
                outcome = run_once(setting, seed, own.output_dir, metric, passed_on)
                if outcome is None:
                    print("stopped: start the same command again to go on", file=sys.stderr)
                    return INTERRUPTED
                outcomes.setdefault(setting, []).append(outcome)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted: start the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    rows, markdown = table_of(outcomes, metric)
    (own.output_dir / "comparison.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (own.output_dir / "comparison.md").write_text(markdown, encoding="utf-8")
    draw_comparison(rows, own.output_dir / "comparison.png")
    shutil.rmtree(own.output_dir / "cache", ignore_errors=True)
    print(f"\n{markdown}\nWrote comparison.md, .json and .png to {own.output_dir}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
