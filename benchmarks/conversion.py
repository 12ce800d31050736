"""What do converting and exporting a checkpoint cost?

    python benchmarks/conversion.py [--size original]

Each in a process of its own: seconds, imports included, and peak memory as a multiple of the weights.
"""

import argparse
import tempfile
from pathlib import Path

from harness import checkpoint, print_table, run_elmo, save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="original", choices=["small", "medium", "original"])
    arguments = parser.parse_args()
    options, weights, converted = checkpoint(arguments.size)
    weights_mb = weights.stat().st_size / 1e6
    rows = []
    with tempfile.TemporaryDirectory(dir=converted.parent) as scratch:
        model, back = Path(scratch, "model"), Path(scratch, "back")
        for command in (["convert", options, weights, model], ["export", converted, back]):
            time, peak_mb = run_elmo(*command)
            rows.append(
                {
                    "command": f"{command[0]} {arguments.size}",
                    "weights MB": weights_mb,
                    "seconds": time,
                    "peak MB": peak_mb,
                    "peak / weights": peak_mb / weights_mb,
                }
            )
    print_table(rows)
    save("conversion", rows)


if __name__ == "__main__":
    main()
