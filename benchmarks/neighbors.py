"""What do faiss's lists cost `elmo neighbors --any-word`, and what do they gain?

    python benchmarks/neighbors.py CORPUS.txt [--sentences OTHER.txt] [--searches 20]

Embeds a tokenised text of a million words or more with elmo-mini, in a process of its own; then makes the lists; then
searches for a word of each of some other sentences, in the lists and by comparing every word. Memory is that of the
process without the files that are mapped, whose pages the system takes back when it needs them (Linux alone tells them
apart). A search includes embedding its sentence, and is the median; the text has been read before.
"""

import argparse
import random
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from harness import print_table, read_sentences, run_elmo, save, seconds

from modeling_elmo import MINI
from modeling_elmo.neighbors import FEWEST_LISTED, Uses

COUNTS = (10, 100)
# Between two looks at the memory, in seconds.
INTERVAL = 0.01


def own_memory() -> float:
    """Of this process in MB, without mapped files."""
    memory = psutil.Process().memory_info()
    return (memory.rss - memory.shared) / 1e6


def peak_memory(call: Callable[[], Any]) -> float:
    """The most memory that this process has while something is done."""
    peak, done = own_memory(), threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(INTERVAL):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return peak


def queries(sentences: Sequence[Sequence[str]], count: int) -> list[str]:
    """Sentences with a word each in brackets."""
    chance = random.Random(0)
    plain = [list(words) for words in sentences if not set("".join(words)) & set("[]")][:count]
    for words in plain:
        place = chance.randrange(len(words))
        words[place] = f"[{words[place]}]"
    return [" ".join(words) for words in plain]


def compare(uses: Uses, marked: Sequence[str], count: int) -> dict[str, Any]:
    """Median times of both kinds of search, and the share of the nearest uses that the lists gave."""
    found: dict[bool, list[set[tuple[int, int]]]] = {True: [], False: []}
    times: dict[bool, list[float]] = {True: [], False: []}

    def search(sentence: str, exact: bool) -> None:
        found[exact].append({(use.number, use.position) for use in uses.nearest(sentence, count, True, exact)})

    for sentence in marked:
        for exact in (True, False):
            times[exact].append(seconds(lambda sentence=sentence, exact=exact: search(sentence, exact)))
    shares = [len(given & wanted) / count for given, wanted in zip(found[False], found[True], strict=True)]
    exact_ms, lists_ms = (1000 * statistics.median(times[exact]) for exact in (True, False))
    return {
        "uses": count,
        "exact ms": exact_ms,
        "lists ms": lists_ms,
        "exact / lists": exact_ms / lists_ms,
        "recall": statistics.mean(shares),
        "least recall": min(shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--sentences", type=Path, help="tokenised, one a line; by default of the 1B Word set")
    parser.add_argument("--searches", type=int, default=20)
    arguments = parser.parse_args()
    marked = queries(read_sentences(arguments.sentences), arguments.searches)
    with tempfile.TemporaryDirectory(dir=arguments.corpus.parent) as scratch:
        embed_seconds, _ = run_elmo(
            "neighbors", marked[0], "--corpus", arguments.corpus, "--index", scratch, "--any-word", "--exact"
        )
        uses = Uses(arguments.corpus, MINI, folder=scratch)
        uses.nearest(marked[0], any_word=True, exact=True)  # the model's first sentence takes longer
        before = own_memory()
        build: list[float] = []
        peak = peak_memory(lambda: build.append(seconds(lambda: uses._blocks)))
        if not uses._blocks:
            raise SystemExit(f"{arguments.corpus}: has fewer than {FEWEST_LISTED:,} words, or faiss is not installed")
        made = {
            "words": sum(block.ntotal for block in uses._blocks),
            "lists": uses._blocks[0].nlist,
            "embedding s": embed_seconds,
            "lists s": build[0],
            "before MB": before,
            "peak MB": peak,
            "index MB": uses.index.stat().st_size / 1e6,
            "lists MB": sum(path.stat().st_size for path in uses.lists.iterdir()) / 1e6,
        }
        rows = [{**made, **compare(uses, marked, count)} for count in COUNTS]
    print_table(rows)
    save("neighbors", rows)


if __name__ == "__main__":
    main()
