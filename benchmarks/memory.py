"""Does memory stay the same however long the corpus is?

    python benchmarks/memory.py CORPUS.txt [--lines 5000 60000]

Embeds the first lines of a tokenised text with `small` to Parquet, each count in a process of its own, and compares
their peaks.
"""

import argparse
import itertools
import tempfile
from pathlib import Path

from harness import checkpoint, print_table, run_elmo, save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, nargs="+", default=[5_000, 60_000])
    arguments = parser.parse_args()
    model = checkpoint("small")[2]
    rows = []
    for count in arguments.lines:
        with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
            part, output = Path(scratch, "part.txt"), Path(scratch, "vectors.parquet")
            with arguments.corpus.open("rb") as source:
                part.write_bytes(b"".join(itertools.islice(source, count)))
            time, peak_mb = run_elmo("embed", part, "--model", model, "--output", output, "--tokenized")
            words = sum(len(line.split()) for line in part.read_text(encoding="utf-8").splitlines())
            rows.append(
                {
                    "lines": count,
                    "words": words,
                    "seconds": time,
                    "peak MB": peak_mb,
                    "output MB": output.stat().st_size / 1e6,
                }
            )
    print_table(rows)
    print(f"the largest over the smallest: {rows[-1]['peak MB'] - rows[0]['peak MB']:+.0f} MB")
    save("memory", rows)


if __name__ == "__main__":
    main()
