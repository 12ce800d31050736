"""Runs code in a process that cannot have the package, as where someone has nothing but a folder."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

BLOCK = """
import sys

class NoPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoPackage())
"""


def run_without_package(code: str, *arguments: object, folder: Path, also: Sequence[str] = ()) -> str:
    """What the code prints, run in `folder`, with a home of its own and no network; `also` blocks other packages."""
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
    environment.pop("PYTHONPATH", None)
    block = BLOCK.replace("{blocked}", repr(("modeling_elmo", *also)))
    done = subprocess.run(
        [sys.executable, "-c", block + textwrap.dedent(code), *map(str, arguments)],
        env=environment,
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
