"""Checkpoints of pretraining and of tasks: which there are, and whether one is as it was written.

A checkpoint is a folder `checkpoint-STEP`, which appears once it is whole, with a digest of each of its files.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from modeling_elmo.files import ElmoError, file_digest, first_line, read_json, write_text

CHECKPOINT = "checkpoint-"
DIGESTS_FILE = "digests.json"


def sorted_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder, oldest first."""
    paths = [path for path in folder.glob(f"{CHECKPOINT}*") if path.name.removeprefix(CHECKPOINT).isdecimal()]
    return sorted(paths, key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def write_digests(checkpoint: Path) -> None:
    """Write down what the files of a checkpoint hold."""
    files = [path for path in sorted(checkpoint.iterdir()) if path.name != DIGESTS_FILE]
    digests = {file.name: file_digest(file) for file in files}
    write_text(checkpoint / DIGESTS_FILE, json.dumps(digests, indent=1) + "\n")


def check_digests(checkpoint: Path) -> None:
    """Refuse a checkpoint with a file that is not as it was written, by the file's name."""
    if not checkpoint.is_dir():
        raise ElmoError(f"{checkpoint}: there is no such checkpoint")
    if not (checkpoint / DIGESTS_FILE).is_file():
        raise damaged(checkpoint / DIGESTS_FILE, "is missing: the checkpoint is damaged, or of an earlier version")
    with reading(checkpoint / DIGESTS_FILE):
        digests = read_json(checkpoint / DIGESTS_FILE)
        if not isinstance(digests, dict):
            raise ValueError("expected a digest of each file")
    for name, digest in digests.items():
        file = checkpoint / name
        if not file.is_file():
            raise damaged(file, "is missing")
        if file_digest(file) != digest:
            raise damaged(file, "is damaged, or of another checkpoint")


def damaged(file: Path, problem: str) -> ElmoError:
    """Return the error about a file of a checkpoint, which offers the checkpoint before it."""
    checkpoint = file.parent
    others = sorted_checkpoints(checkpoint.parent)
    place = others.index(checkpoint) if checkpoint in others else 0
    offer = "there is no checkpoint before this one"
    if place > 0:
        offer = f"resume from the checkpoint before with --resume_from_checkpoint {others[place - 1]}"
    return ElmoError(f"{file}: {problem}; {offer}")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise whatever goes wrong over a file of a checkpoint as one line that names it."""
    try:
        yield
    # torch, safetensors and json answer damaged files with nearly every built-in exception.
    except Exception as error:
        message = first_line(error)
        if isinstance(error, ElmoError) and not message.startswith(f"{file}: "):
            raise  # about something else
        raise damaged(file, f"cannot be read: {message.removeprefix(f'{file}: ')}") from error


def read_tensors(file: Path) -> dict[str, Any]:
    """Read a file of tensors; no pickle in it is run."""
    with reading(file):
        return dict(torch.load(file, map_location="cpu", weights_only=True))


def write_tensors(state: dict[str, Any], file: Path) -> None:
    """Write a file of tensors. What goes wrong in it keeps its reason, which torch drops where it opens the file."""
    with open(file, "wb") as stream:
        torch.save(state, stream)


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse a state of other parameters, which torch would only notice in a step."""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if torch.is_tensor(value) and value.ndim > 0 and value.shape != parameter.shape:
                raise ValueError(f"holds {tuple(value.shape)} for a parameter of {tuple(parameter.shape)}")


def tensor_bytes(value: Any) -> int:
    """Return the bytes of all tensors in a state of nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 0
    return sum(map(tensor_bytes, value))
