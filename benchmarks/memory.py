"""Does memory stay the same however long the corpus is?

    python benchmarks/memory.py CORPUS.txt [--lines 5000 60000]

Embeds the first lines of a tokenised text with `small` to Parquet, each count in a process of its own, and compares
their peaks.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import checkpoint, print_table, save

MEASURED = """
import resource, sys
from modeling_elmo.cli import app
try:
    app(sys.argv[1:], standalone_mode=True)
except SystemExit as exit:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
    raise
"""


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
            command = ["embed", part, "--model", model, "--output", output, "--tokenized"]
            done = subprocess.run(
                [sys.executable, "-c", MEASURED, *map(str, command)], stderr=subprocess.PIPE, text=True, check=True
            )
            peak = int(done.stderr.rsplit("peak", 1)[1].split()[0])
            words = sum(len(line.split()) for line in part.read_text(encoding="utf-8").splitlines())
            rows.append(
                {
                    "lines": count,
                    "words": words,
                    "peak MB": peak * (1 if sys.platform == "darwin" else 1024) / 1e6,
                    "output MB": output.stat().st_size / 1e6,
                }
            )
    print_table(rows)
    print(f"the largest over the smallest: {rows[-1]['peak MB'] - rows[0]['peak MB']:+.0f} MB")
    save("memory", rows)


if __name__ == "__main__":
    main()
