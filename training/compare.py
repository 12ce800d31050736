"""Compare places and mixes of ELMo on a task, over seeds and parts of the training data: one table, one plot.

    python -m training.compare --task ner --model_name_or_path my-elmo --train_file eng.train \\
        --validation_file eng.testa --word_vectors glove.6B.zip:glove.6B.50d.txt --output_dir runs/compare \\
        --placements none input output both

The paper's Table 2 is --mixes last average 1 0.001, its Table 3 --placements none input output both, its Figure 1
--fractions 0.01 0.1 1. Everything else is passed on to training.finetune. Finished runs are not repeated, so that
the same command resumes an interrupted comparison.
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

from modeling_elmo.files import BAD_INPUT, ElmoError, write_text

from .figures import draw_comparison
from .finetune import MIX_FILE, RESULTS_FILE, STOPPED, TASKS, finetune
from .settings import PLACEMENTS, described, in_one_line

SETTINGS_FILE = "settings.json"


class Setting(NamedTuple):
    """The settings that the runs of one row of the table share."""

    placement: str
    mix: str  # last, average, or the λ of a learned mix
    fraction: float

    def arguments(self) -> list[str]:
        arguments = ["--elmo_placement", self.placement, "--train_fraction", str(self.fraction)]
        if self.placement == "none":
            return arguments
        if self.mix in ("last", "average"):
            return [*arguments, "--mix", self.mix]
        return [*arguments, "--mix", "scalar", "--mix_l2", self.mix]

    @property
    def name(self) -> str:
        if self.placement == "none":
            return f"none-{self.fraction:g}"
        return f"{self.placement}-{self.mix}-{self.fraction:g}"

    @property
    def model(self) -> str:
        """Describe the row's model."""
        if self.placement == "none":
            return "without ELMo"
        place = "input and output" if self.placement == "both" else self.placement
        mix = {"last": "last layer", "average": "average"}.get(self.mix, f"λ = {self.mix}")
        return f"ELMo at the {place}, {mix}"


def settings_to_run(placements: Iterable[str], mixes: Iterable[str], fractions: Iterable[float]) -> list[Setting]:
    """Return every combination once; without ELMo there is nothing to mix."""
    settings = []
    for fraction, placement, mix in itertools.product(sorted(set(fractions)), placements, mixes):
        setting = Setting(placement, "-" if placement == "none" else mix, fraction)
        if setting not in settings:
            settings.append(setting)
    return settings


class Outcome(NamedTuple):
    """A run's score on the validation data, its seconds of training since it was last resumed, and its mixes."""

    score: float
    seconds: float
    mix: dict[str, list[float]]


def make_table(outcomes: dict[Setting, list[Outcome]], metric: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of the comparison, and the same as Markdown. The spread is the seeds' standard deviation."""
    rows = []
    lines = [f"| model | training data | {metric} | seeds | minutes of training |", "|---|---|---|---|---|"]
    for setting, runs in outcomes.items():
        scores = [run.score for run in runs]
        mean = statistics.mean(scores)
        deviation = statistics.stdev(scores) if len(runs) > 1 else None
        minutes = statistics.mean(run.seconds for run in runs) / 60
        rows.append(
            {
                "model": setting.model,
                "placement": setting.placement,
                "fraction": setting.fraction,
                "metric": metric,
                "mean": mean,
                "standard deviation": deviation,
                "seeds": len(runs),
                "scores": scores,
                "minutes": minutes,
                "mix": mean_mix([run.mix for run in runs]),
            }
        )
        spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
        score = f"{100 * mean:.2f}{spread}"
        lines.append(f"| {setting.model} | {setting.fraction:.0%} | {score} | {len(runs)} | {minutes:.1f} |")
    return rows, "\n".join(lines) + "\n"


def mean_mix(mixes: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the mean over runs of the layers' shares at each place, without the scale gamma."""
    means = {}
    for place in mixes[0]:
        shares = []
        for mix in mixes:
            total = sum(mix[place])
            shares.append([value / total for value in mix[place]])
        means[place] = [statistics.mean(layer) for layer in zip(*shares, strict=True)]
    return means


def run_once(setting: Setting, seed: int, folder: Path, metric: str, passed_on: Sequence[str]) -> Outcome | None:
    """Return what a run gave, a finished one or a new one; None where it was stopped."""
    output = folder / f"{setting.name}-seed{seed}"
    score = f"eval_{metric}"
    results = read_json(output / RESULTS_FILE)
    if score not in results:
        arguments = [*passed_on, *setting.arguments(), "--output_dir", str(output), "--seed", str(seed)]
        arguments += ["--cache_dir", str(folder / "cache")]
        if any(output.glob("checkpoint-*")):
            arguments += ["--resume_from_checkpoint", "last"]
        (output / RESULTS_FILE).unlink(missing_ok=True)
        if finetune(arguments) is None:
            return None
        for checkpoint in output.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        results = read_json(output / RESULTS_FILE)
    return Outcome(results[score], results["train_runtime"], read_json(output / MIX_FILE))


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a file, or return an empty one where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def check_settings(folder: Path, passed_on: Sequence[str]) -> None:
    """Write down the settings that all runs of a folder share, and refuse to add runs of others to them."""
    file = folder / SETTINGS_FILE
    if file.is_file() and any(folder.glob("*-seed*/*")):
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != list(passed_on):
            raise ElmoError(f"{folder} has runs of other settings, `{' '.join(before)}`: give another --output_dir")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(list(passed_on), indent=1) + "\n")


def compare(own: argparse.Namespace, passed_on: Sequence[str]) -> dict[Setting, list[Outcome]] | None:
    """Do all runs; return what they gave, or None where one was stopped."""
    outcomes: dict[Setting, list[Outcome]] = {}
    with in_one_line():
        check_settings(own.output_dir, passed_on)
    for setting in settings_to_run(own.placements, own.mixes, own.fractions):
        for seed in own.seeds:
            print(f"\n=== {setting.model}, {setting.fraction:.0%} of the data, seed {seed}")
            outcome = run_once(setting, seed, own.output_dir, TASKS[own.task].metric, passed_on)
            if outcome is None:
                return None
            outcomes.setdefault(setting, []).append(outcome)
    return outcomes


def main(arguments: Sequence[str], program: str = "training.compare") -> int:
    parser = argparse.ArgumentParser(
        prog=program,
        description=described(__doc__, program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", required=True, choices=list(TASKS))
    parser.add_argument("--output_dir", required=True, type=Path, help="where runs, table and plot go")
    parser.add_argument("--placements", nargs="+", default=["none", "both"], choices=PLACEMENTS)
    parser.add_argument("--mixes", nargs="+", default=["0.001"], help="last, average, or the λ of a learned mix")
    parser.add_argument("--fractions", nargs="+", type=float, default=[1.0], help="parts of the training data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    own, rest = parser.parse_known_args(list(arguments))
    transformers_logging.set_verbosity_error()
    recipe = rest[:1] if rest and not rest[0].startswith("-") else []
    passed_on = [*recipe, "--task", own.task, *rest[len(recipe) :]]
    try:
        outcomes = compare(own, passed_on)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        outcomes = None
    if outcomes is None:
        print("stopped: start the same command again to resume", file=sys.stderr)
        return STOPPED
    rows, markdown = make_table(outcomes, TASKS[own.task].metric)
    write_text(own.output_dir / "comparison.json", json.dumps(rows, indent=1) + "\n")
    write_text(own.output_dir / "comparison.md", markdown)
    draw_comparison(rows, own.output_dir / "comparison.png")
    shutil.rmtree(own.output_dir / "cache", ignore_errors=True)
    print(f"\n{markdown}\nWrote comparison.md, .json and .png to {own.output_dir}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
