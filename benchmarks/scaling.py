"""How does the time grow with the length of a sentence, and with the batch?

    python benchmarks/scaling.py [--size small]

Linear growth is a constant time a word, once a batch is large enough to fill the products.
"""

import argparse
import itertools
import statistics
from pathlib import Path

from harness import embed, load, print_table, read_sentences, save, seconds

LENGTHS = (8, 32, 128, 512, 2048, 8192)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SENTENCE_LENGTH = 25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=["small", "medium", "original"])
    parser.add_argument("--repetitions", type=int, default=5, help="each with new words (default 5)")
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.size)
    words = itertools.cycle(itertools.chain.from_iterable(read_sentences(arguments.sentences)))

    def measure(batch_size: int, length: int) -> dict:
        times = []
        for _ in range(arguments.repetitions):
            batch = [list(itertools.islice(words, length)) for _ in range(batch_size)]
            times.append(seconds(lambda batch=batch: embed(model, tokenizer, batch)))
        time = statistics.median(times)
        count = batch_size * length
        return {
            "batch": batch_size,
            "words a sentence": length,
            "seconds": time,
            "ms a word": 1e3 * time / count,
            "words/s": count / time,
        }

    measure(4, SENTENCE_LENGTH)
    by_length = [measure(1, length) for length in LENGTHS]
    by_batch = [measure(batch_size, SENTENCE_LENGTH) for batch_size in BATCH_SIZES]
    print_table(by_length)
    print()
    print_table(by_batch)
    save(f"scaling-{arguments.size}", [*by_length, *by_batch])


if __name__ == "__main__":
    main()
