"""Files and folders: the one error for bad input, atomic writes, digests. Commands import this before torch."""

import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

StrPath = str | os.PathLike[str]

# More is no file of settings or results.
LARGEST_JSON = 1 << 30
# Characters of a message, and those that would end its line, or do worse in a terminal.
LONGEST_MESSAGE = 1000
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Exit codes of every command: after an `ElmoError`, and the one that shells give for Ctrl-C.
BAD_INPUT = 2
INTERRUPTED = 130
# The name of the model in the package, wherever a model is asked for.
MINI_NAME = "elmo-mini"


class ElmoError(ValueError):
    """Bad input, settings or files. The message is one line; commands print it without a traceback."""

    def __init__(self, message: object) -> None:
        super().__init__(one_line(message))


def one_line(message: object) -> str:
    """Return a message as one line of bearable length, whatever names and values it quotes."""
    text = UNPRINTABLE.sub(" ", str(message)).strip()
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} … {text[3 - half :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def require(module: str, extra: str) -> Any:
    """Import an optional module, or name the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ElmoError(f"{package} is not installed: pip install 'modeling-elmo[{extra}]'") from error


def report_interrupts() -> None:
    """Let Ctrl-C that nothing else catches, such as during imports, end the program with one line."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            previous(kind, error, trace)
            return
        print("interrupted: nothing was started", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    sys.excepthook = report


def check_output_file(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or must not be replaced, before the work."""
    if path.exists() and (path.is_dir() or not overwrite):
        raise ElmoError(f"{path}: exists; choose another name, or pass --overwrite")
    if not path.parent.is_dir():
        raise ElmoError(f"{path}: there is no folder {path.parent}")


@contextmanager
def atomic_write(path: StrPath) -> Iterator[Path]:
    """Yield a path to write a file or a folder to, which replaces `path` once the block ends without an error."""
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield scratch
        if scratch.is_dir() and path.is_dir():
            _replace_folder(scratch, path)
        elif path.is_dir():
            raise ElmoError(f"{path}: a folder where a file must be written")
        else:
            os.replace(scratch, path)
    finally:
        if scratch.is_dir():
            shutil.rmtree(scratch)
        scratch.unlink(missing_ok=True)


def _replace_folder(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails."""
    old = new.with_suffix(".old")
    os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(old, path)
        raise
    shutil.rmtree(old)


def check_space(path: StrPath, size: int) -> None:
    """Refuse to write a file of `size` bytes for which there is no room.

    HDF5 and memory-mapped files crash on a full disk, so the room is taken up for a moment before they are written.
    """
    path = Path(path)
    try:
        with TemporaryFile(dir=path.parent) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            elif shutil.disk_usage(path.parent).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise ElmoError(f"{path}: cannot write {size / 1e6:,.1f} MB: {error.strerror}") from error


def write_text(path: StrPath, text: str) -> None:
    """Write a text file whole or not at all."""
    with atomic_write(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def check_input_file(path: StrPath) -> None:
    """Refuse what is not a regular file: a device may never end, a pipe may never begin."""
    if not os.path.exists(path):
        raise ElmoError(f"{path}: no such file")
    if not os.path.isfile(path):
        raise ElmoError(f"{path}: not a regular file")


def read_json(path: StrPath) -> Any:
    """Read a JSON file. What never ends, such as a device, is refused."""
    check_input_file(path)
    try:
        if os.path.getsize(path) > LARGEST_JSON:
            raise ElmoError(f"{path}: over {LARGEST_JSON:,} bytes")
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ElmoError:
        raise
    except OSError as error:
        raise ElmoError(f"{path}: cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ElmoError(f"{path}: not a JSON file: {first_line(error)}") from error


def file_digest(path: StrPath) -> str:
    """Return the SHA-256 of a file's contents."""
    check_input_file(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
