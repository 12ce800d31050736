"""What do converting and exporting a checkpoint cost?

    python benchmarks/conversion.py [--size original]

Each in a process of its own: seconds, imports included, and peak memory as a multiple of the weights.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import checkpoint, print_table, save, seconds

MEASURED = """
import resource, sys
from modeling_elmo.cli import app
try:
    app(sys.argv[1:])
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="original", choices=["small", "medium", "original"])
    arguments = parser.parse_args()
    options, weights, converted = checkpoint(arguments.size)
    weights_mb = weights.stat().st_size / 1e6
    rows = []
    with tempfile.TemporaryDirectory(dir=converted.parent) as scratch:
        for command in (
            ["convert", options, weights, Path(scratch, "model")],
            ["export", converted, Path(scratch, "back")],
        ):
            outputs = []

            def run(command=command, outputs=outputs) -> None:
                outputs.append(
                    subprocess.run(
                        [sys.executable, "-c", MEASURED, *map(str, command)],
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                )

            time = seconds(run)
            kilobytes = int(outputs[0].stderr.rsplit("peak", 1)[1].split()[0])
            peak_mb = kilobytes * (1 if sys.platform == "darwin" else 1024) / 1e6
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
