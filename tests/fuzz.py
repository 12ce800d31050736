"""Damage every kind of file that the package reads, at random, and say what became of it: `make fuzz`.

    python tests/fuzz.py --cases 20000
    python tests/fuzz.py --seconds 300 --kind corpus.csv model --seed 5
    python tests/fuzz.py --kind model --seed 4711 --cases 1     # one failure again

Every case runs in a forked process with limits of time and memory. Right are the result of the untouched files,
another well-formed result, and a refusal in one line. Everything else is a failure, whose file is kept.
"""

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from damage import Case, Kind, Outcome, attempt, freeze, run_cases, run_forked
from inputs import all_kinds
from tqdm import tqdm

# Cases that share a forked process.
AT_ONCE = 100
# Making a kind's files computes more than reading them.
SECONDS_TO_MAKE = 120
OUTCOMES = ("same", "other", "refused", "traceback", "lines", "signal", "hang", "memory", "wrong")


class Fuzzer:
    """The files of every kind, and what an untouched copy of them gives."""

    def __init__(self, kinds: Sequence[Kind], scratch: Path) -> None:
        self.kinds, self.scratch = kinds, scratch
        runs = [partial(self._make, kind) for kind in kinds]
        self.expected = {}
        for kind, outcome in zip(kinds, run_forked(runs, SECONDS_TO_MAKE), strict=True):
            if outcome.kind != "other":
                raise RuntimeError(f"{kind.name}: the untouched files cannot be read: {outcome.details}")
            self.expected[kind.name] = outcome.value

    def source(self, kind: Kind) -> Path:
        return self.scratch / "made" / kind.name

    def _make(self, kind: Kind) -> Outcome:
        source, copy = self.source(kind), self.scratch / "untouched" / kind.name
        source.mkdir(parents=True)
        kind.make(source)
        shutil.copytree(source, copy)
        return attempt(lambda: kind.read(copy))

    def run(self, kind: Kind, seeds: Sequence[int], kept: Path | None = None) -> list[Case]:
        """Run a case for each seed."""
        return run_cases(kind, self.source(kind), self.expected[kind.name], seeds, self.scratch, kept)

    def cases(self, seed: int, count: int, kept: Path | None = None) -> Iterator[Case]:
        """Run cases, the kinds by turns; slow kinds have a fifth of the cases of others."""
        left = count
        for start in itertools.count(seed, AT_ONCE):
            for kind in self.kinds:
                size = AT_ONCE // 5 if kind.is_slow and len(self.kinds) > 1 else AT_ONCE
                seeds = range(start, start + min(size, left))
                left -= len(seeds)
                yield from self.run(kind, seeds, kept)
                if left == 0:
                    return


def table(cases: Sequence[Case]) -> str:
    """Return the number of outcomes of every kind, and its highest peak of memory and longest time."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    peaks: defaultdict[str, int] = defaultdict(int)
    longest: defaultdict[str, float] = defaultdict(float)
    for case in cases:
        for name in (case.kind, "all"):
            counts[name][case.outcome.kind] += 1
            peaks[name] = max(peaks[name], case.outcome.peak)
            longest[name] = max(longest[name], case.outcome.seconds)
    width = max(map(len, counts), default=4)
    lines = [f"{'kind':{width}} {'cases':>6} " + " ".join(f"{name:>9}" for name in OUTCOMES) + "  peak MB  seconds"]
    for name in sorted(counts, key=lambda name: (name == "all", name)):
        numbers = " ".join(f"{counts[name][outcome]:>9}" for outcome in OUTCOMES)
        total = counts[name].total()
        lines.append(f"{name:{width}} {total:>6} {numbers} {peaks[name] / 1e6:>8.0f} {longest[name]:>8.1f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    kinds = all_kinds()
    names = [kind.name for kind in kinds]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="how many (default 20,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--kind", nargs="+", choices=names, metavar="KIND", help=f"only these: {', '.join(names)}")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="the folder of failing files")
    own = parser.parse_args(arguments)
    chosen = [kind for kind in kinds if own.kind is None or kind.name in own.kind]
    freeze()
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as scratch:
        fuzzer = Fuzzer(chosen, Path(scratch))
        started = time.monotonic()
        failures = 0
        # Ctrl-C ends the run with the table of what was done.
        with tqdm(total=own.cases, unit=" cases", mininterval=1, disable=None) as bar, suppress(KeyboardInterrupt):
            for case in fuzzer.cases(own.seed, own.cases, own.failures):
                cases.append(case)
                failures += case.outcome.is_failure
                bar.update()
                bar.set_postfix(failures=failures)
                if time.monotonic() - started > own.seconds:
                    break
    print(table(cases))
    for case in cases:
        if case.outcome.is_failure:
            last = case.outcome.details.strip().splitlines()[-1:] or [""]
            print(f"{case.kind} --seed {case.seed}: {case.file}: {case.damage}: {case.outcome.kind}: {last[0][:200]}")
    if failures:
        print(f"{failures} failures, kept in {own.failures}")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
