"""What the benchmarks share: real sentences, models of the published sizes, timing, tables and dated results."""

import datetime
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import write_random_checkpoint

from modeling_elmo import ElmoModel, ElmoTokenizer
from modeling_elmo.convert_elmo import convert_checkpoint

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SHARED = Path(os.environ.get("ELMO_SHARED", ROOT.parent / "shared"))
CHECKPOINTS = ROOT / "runs" / "benchmarks"

Sentence = list[str]

MEASURED_ELMO = """
import resource, sys
from modeling_elmo.cli import app
try:
    app(sys.argv[1:])
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def read_sentences(path: Path | None = None, shortest: int = 10, longest: int = 40, seed: int = 0) -> list[Sentence]:
    """Sentences of `shortest` to `longest` words, shuffled: of a tokenised file, one a line, or of the 1B Word set."""
    path = path or SHARED / "data" / "lm" / "lm1b.dev.txt"
    if not path.is_file():
        raise SystemExit(f"{path} is not there: name a file of tokenised sentences, one a line, with --sentences")
    with path.open(encoding="utf-8") as file:
        sentences = [words for line in file if shortest <= len(words := line.split()) <= longest]
    random.Random(seed).shuffle(sentences)
    return sentences


def fresh_batches(sentences: Sequence[Sentence], size: int) -> Iterator[list[Sentence]]:
    """Batches that share no sentence, so that a cache earns only what it earns on new text."""
    for start in range(0, len(sentences) - size + 1, size):
        yield list(sentences[start : start + size])


def checkpoint(size: str) -> tuple[Path, Path, Path]:
    """Options, weights and converted folder of a random checkpoint of a published size, made once."""
    folder = CHECKPOINTS / size
    original, converted = folder / "original", folder / "converted"
    if not original.is_dir():
        write_random_checkpoint(size, original)
    if not converted.is_dir():
        convert_checkpoint(original / "options.json", original / "weights.hdf5", converted)
    return original / "options.json", original / "weights.hdf5", converted


def load(size: str, **kwargs: Any) -> tuple[ElmoModel, ElmoTokenizer]:
    folder = checkpoint(size)[2]
    return ElmoModel.from_pretrained(folder, **kwargs), ElmoTokenizer.from_pretrained(folder)


def embed(model: ElmoModel, tokenizer: ElmoTokenizer, batch: Sequence[Sentence]) -> tuple[torch.Tensor, ...]:
    """Every layer of a batch, from words: what is timed on our side, tokenizing included."""
    with torch.inference_mode():
        inputs = tokenizer(list(batch), is_split_into_words=True, padding=True, return_tensors="pt")
        return model(**inputs, output_hidden_states=True).hidden_states


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run_elmo(*arguments: str | Path) -> tuple[float, float]:
    """Runs an `elmo` command in a process of its own; returns its seconds, imports included, and peak memory in MB."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED_ELMO, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    elapsed = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    unit = 1 if sys.platform == "darwin" else 1024
    return elapsed, int(done.stderr.rsplit("peak", 1)[1].split()[0]) * unit / 1e6


def count_words(batches: Sequence[Sequence[Sentence]]) -> int:
    return sum(len(words) for batch in batches for words in batch)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """A Markdown table of the rows, which have the same keys."""
    cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for number, line in enumerate(cells):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def _text(value: Any) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:,.0f}"
        if isinstance(value, (int, float))
        else str(value)
    )


def save(name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Writes the rows with date and machine to `results/NAME-DATE.json`."""
    RESULTS.mkdir(exist_ok=True)
    today = datetime.date.today().isoformat()
    path = RESULTS / f"{name}-{today}.json"
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    path.write_text(
        json.dumps({"date": today, "machine": machine, "rows": list(rows)}, indent=1) + "\n", encoding="utf-8"
    )
    print(f"written to {path.relative_to(ROOT)}")
    return path
