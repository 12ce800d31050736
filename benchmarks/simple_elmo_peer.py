"""simple_elmo's speed, measured in an environment of its own: it needs TensorFlow, which does not go with ours.

    python3 -m venv .venv/simple_elmo && .venv/simple_elmo/bin/pip install simple_elmo==0.9.2 tensorflow==2.15.1
    python benchmarks/versus_allennlp.py --simple-elmo .venv/simple_elmo/bin/python

The first half of this file runs there, called by the second half.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def measure(folder: str, batch_size: int, repetitions: list[list[list[str]]]) -> list[float]:
    """Words a second of each repetition's sentences, all layers; the first sentences warm up."""
    from simple_elmo import ElmoModel

    model = ElmoModel()
    model.load(folder, max_batch_size=batch_size)
    model.get_elmo_vectors(repetitions[0][:batch_size], warmup=False, layers="all")
    speeds = []
    for sentences in repetitions:
        begun = time.perf_counter()
        model.get_elmo_vectors(sentences, warmup=False, layers="all")
        speeds.append(sum(map(len, sentences)) / (time.perf_counter() - begun))
    return speeds


def words_per_second(
    python: Path, folder: Path, batch_size: int, repetitions: Sequence[Sequence[list[str]]]
) -> list[float]:
    """The same, by the interpreter that has simple_elmo."""
    job = json.dumps([str(folder), batch_size, repetitions])
    done = subprocess.run([str(python), __file__], input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} cannot run simple_elmo: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(measure(*json.load(sys.stdin))))
