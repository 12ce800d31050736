"""Compare places and mixes of ELMo on a task, over seeds and parts of the training data: one table, one plot.

    python -m training.compare --task ner --model_name_or_path my-elmo --train_file eng.train \\
        --validation_file eng.testa --word_vectors glove.6B.zip:glove.6B.50d.txt --output_dir runs/compare \\
        --placements none input output both

The paper's Table 2 is --mixes last average 1 0.001, its Table 3 --placements none input output both, its Figure 1
--fractions 0.01 0.1 1. Without --mixes and --fractions, they are the recipe's. Everything else is passed on to
training.finetune. With a --test_file, scores on it are in the table too. Finished runs are not repeated, so that the
same command resumes an interrupted comparison.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainingArguments
from transformers.utils import logging as transformers_logging

from modeling_elmo.files import BAD_INPUT, ElmoError, disk_errors, read_json, remove, write_text
from modeling_elmo.locks import one_writer

from .checkpoints import sorted_checkpoints
from .figures import draw_comparison
from .finetune import MIX_FILE, RESULTS_FILE, STOPPED, TASKS, finetune, read_arguments
from .readers import check_mix, is_finite
from .settings import PLACEMENTS, TaskSettings, described, in_one_line, print_help

SETTINGS_FILE = "settings.json"
# Settings of training.finetune that a comparison sets itself, and its own arguments for them.
OWN_ARGUMENTS = {
    "--train_fraction": "--fractions",
    "--seed": "--seeds",
    "--elmo_placement": "--placements",
    "--mix": "--mixes",
    "--mix_l2": "--mixes",
}


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
    """A run's scores on the validation and the test data, its seconds of training, and its mixes.

    The score on the test data is None where there are none; the seconds are those since it was last resumed.
    """

    score: float
    test_score: float | None
    seconds: float
    mix: dict[str, list[float]]


def make_table(outcomes: dict[Setting, list[Outcome]], metric: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of the comparison, and the same as Markdown. The spread is the seeds' standard deviation."""
    rows = []
    for setting, runs in outcomes.items():
        row: dict[str, Any] = {
            "model": setting.model,
            "placement": setting.placement,
            "fraction": setting.fraction,
            "metric": metric,
            **summarize([run.score for run in runs]),
            "seeds": len(runs),
            "minutes": statistics.mean(run.seconds for run in runs) / 60,
            "mix": mean_mix([run.mix for run in runs]),
            "gammas": scales([run.mix for run in runs]),
        }
        test_scores = [run.test_score for run in runs if run.test_score is not None]
        if len(test_scores) == len(runs):
            row["test"] = summarize(test_scores)
        rows.append(row)
    return rows, make_markdown(rows, metric)


def make_markdown(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return the rows as a table, with a column for the test data if every row has scores on it."""
    has_test = all("test" in row for row in rows)
    header = ["model", "training data", metric, "seeds", "minutes of training"]
    if has_test:
        header[2:3] = [f"{metric}, validation", f"{metric}, test"]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        scores = [row, row["test"]] if has_test else [row]
        cells = [row["model"], f"{row['fraction']:.0%}", *map(format_score, scores)]
        lines.append([*cells, str(row["seeds"]), f"{row['minutes']:.1f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summarize(scores: Sequence[float]) -> dict[str, Any]:
    """Return the mean and the standard deviation of the seeds' scores, and the scores."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"mean": statistics.mean(scores), "standard deviation": deviation, "scores": list(scores)}


def format_score(summary: Mapping[str, Any]) -> str:
    """Format a mean and its spread as percentages."""
    deviation = summary["standard deviation"]
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return f"{100 * summary['mean']:.2f}{spread}"


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


def scales(mixes: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the scale gamma of each run's mix at each place; the layers' shares of it sum to 1."""
    return {place: [sum(mix[place]) for mix in mixes] for place in mixes[0]}


def run_once(setting: Setting, seed: int, folder: Path, metric: str, passed_on: Sequence[str]) -> Outcome | None:
    """Return what a run gave, a finished one or a new one; None where it was stopped."""
    output = folder / f"{setting.name}-seed{seed}"
    score = f"eval_{metric}"
    results = read_results(output / RESULTS_FILE)
    if score not in results:
        arguments = [*passed_on, *setting.arguments(), "--output_dir", str(output), "--seed", str(seed)]
        arguments += ["--cache_dir", str(folder / "cache")]
        if any(output.glob("checkpoint-*")):
            arguments += ["--resume_from_checkpoint", "last"]
        (output / RESULTS_FILE).unlink(missing_ok=True)
        if finetune(arguments) is None:
            return None
        for checkpoint in sorted_checkpoints(output):
            remove(checkpoint)
        results = read_results(output / RESULTS_FILE)
    if score not in results:
        raise ElmoError(f"{output} has no {score}: of texts, models are compared by their classes, not by numbers")
    mix = read_results(output / MIX_FILE)
    check_mix(mix, str(output / MIX_FILE))
    for name in (score, "train_runtime", f"test_{metric}"):
        if not is_finite(results.get(name, 0 if name.startswith("test_") else None)):
            raise ElmoError(f"{output / RESULTS_FILE}: `{name}` must be a number, got {results.get(name)!r}")
    return Outcome(results[score], results.get(f"test_{metric}"), results["train_runtime"], mix)


def read_results(path: Path) -> dict[str, Any]:
    """Read an object from a file, or return an empty one where there is none."""
    results = read_json(path) if path.exists() else {}
    if not isinstance(results, dict):
        raise ElmoError(f"{path}: expected an object, got a {type(results).__name__}")
    return results


def refuse_own_settings(passed_on: Sequence[str]) -> None:
    """Refuse settings that would not count, since the comparison goes through values of them itself."""
    for argument in passed_on:
        name = argument.split("=")[0]
        instead = OWN_ARGUMENTS.get(f"--{name[2:].replace('-', '_')}") if name.startswith("--") else None
        if instead is not None:
            raise ElmoError(f"`{name}` is set by the comparison: give its values to {instead}")


def fill_in(own: argparse.Namespace, passed_on: Sequence[str]) -> None:
    """Take the mix and the part of the training data from the recipe where the command line has none."""
    with in_one_line():
        settings, _ = read_arguments([*passed_on, "--output_dir", str(own.output_dir), "--elmo_placement", "none"])
    if own.mixes is None:
        own.mixes = [f"{settings.mix_l2:g}" if settings.mix == "scalar" else settings.mix]
    if own.fractions is None:
        own.fractions = [settings.train_fraction]


def check_settings(folder: Path, passed_on: Sequence[str]) -> None:
    """Write down the settings that all runs of a folder share, and refuse to add runs of others to them."""
    file = folder / SETTINGS_FILE
    if file.is_file() and any(folder.glob("*-seed*/*")):
        before = read_json(file)
        if before != list(passed_on):
            listed = " ".join(map(str, before)) if isinstance(before, list) else before
            raise ElmoError(f"{folder} has runs of other settings, `{listed}`: give another --output_dir")
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


def write_comparison(outcomes: dict[Setting, list[Outcome]], metric: str, folder: Path) -> str:
    """Write the table and the plot; return the table."""
    rows, markdown = make_table(outcomes, metric)
    write_text(folder / "comparison.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / "comparison.md", markdown)
    draw_comparison(rows, folder / "comparison.png")
    remove(folder / "cache")
    return markdown


def main(arguments: Sequence[str], program: str = "training.compare") -> int:
    parser = argparse.ArgumentParser(
        prog=program,
        description=described(__doc__, program),
        epilog="--help-all lists the settings that are passed on to training.finetune, too.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --seed is not --seeds
    )
    parser.add_argument("--task", required=True, choices=list(TASKS))
    parser.add_argument("--output_dir", required=True, type=Path, help="where runs, table and plot go")
    parser.add_argument("--placements", nargs="+", default=["none", "both"], choices=PLACEMENTS)
    parser.add_argument("--mixes", nargs="+", help="last, average, or the λ (mix_l2) of a learned mix")
    parser.add_argument("--fractions", nargs="+", type=float, help="parts of the training data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    if "--help-all" in arguments:
        parser.print_help()
        print_help((TaskSettings, TrainingArguments), True, "\nSettings that are passed on:", program)
        return 0
    own, rest = parser.parse_known_args(list(arguments))
    transformers_logging.set_verbosity_error()
    recipe = rest[:1] if rest and not rest[0].startswith("-") else []
    passed_on = [*recipe, "--task", own.task, *rest[len(recipe) :]]
    try:
        refuse_own_settings(passed_on)
        fill_in(own, passed_on)
        with disk_errors(own.output_dir), one_writer(own.output_dir):
            outcomes = compare(own, passed_on)
            if outcomes is not None:
                markdown = write_comparison(outcomes, TASKS[own.task].metric, own.output_dir)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        outcomes = None
    if outcomes is None:
        print("stopped: start the same command again to resume", file=sys.stderr)
        return STOPPED
    print(f"\n{markdown}\nWrote comparison.md, .json and .png to {own.output_dir}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
