"""The one error for bad input, interrupts, progress, atomic writes, digests. Commands import this before torch."""

import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

StrPath = str | os.PathLike[str]

# More is no file of settings or results.
LARGEST_JSON = 1 << 30
# What the system says of a disk that takes no more.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
BLOCK = 1 << 20
SECONDS_A_DAY = 86_400
# Characters of a message, and those that would end its line, or do worse in a terminal.
LONGEST_MESSAGE = 1000
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Exit codes of every command: after an `ElmoError`, and the one that shells give for Ctrl-C.
BAD_INPUT = 2
INTERRUPTED = 130
# How often a long computation shows how far it is, without a terminal.
SECONDS_BETWEEN_LINES = 30
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


def progress_options() -> dict[str, Any]:
    """Return options of tqdm that show a line now and then where there is no terminal, and none of a short run."""
    if sys.stderr.isatty():
        return {}
    return dict.fromkeys(("delay", "mininterval", "maxinterval"), SECONDS_BETWEEN_LINES)


def check_output_file(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or must not be replaced, before the work."""
    if path.exists() and (path.is_dir() or not overwrite):
        raise ElmoError(f"{path}: exists; choose another name, or pass --overwrite")
    if not path.parent.is_dir():
        raise ElmoError(f"{path}: there is no folder {path.parent}")


@contextmanager
def disk_errors(path: StrPath, size: int = 0) -> Iterator[None]:
    """Raise errors of a full disk as one line with the path and, where it is known, the size of what is written."""
    try:
        yield
    except ElmoError:
        raise
    except Exception as error:
        reason = _disk_error(error)
        if reason is None:
            raise
        what = f"cannot write {size / 1e6:,.1f} MB" if size else "cannot be written"
        raise ElmoError(f"{path}: {what}: {reason}") from error


def _disk_error(error: BaseException) -> str | None:
    """Return what is wrong with the disk, if that is what an error is about."""
    cause: BaseException | None = error
    while cause is not None:
        in_rust = re.search(r"\(os error (\d+)\)", str(cause))  # safetensors
        number = int(in_rust[1]) if in_rust else getattr(cause, "errno", None)
        if number in DISK_ERRORS:
            return os.strerror(number)
        cause = cause.__context__
    if "inline_container.cc" in str(error):  # torch.save, which does not give the reason
        return "the disk is full, or a file would be too large"
    return None


@contextmanager
def atomic_write(path: StrPath, size: int = 0, scratch: Path | None = None) -> Iterator[Path]:
    """Yield a path to write a file or a folder to, which replaces `path` once the block ends without an error.

    By then it is on the disk: no crash leaves a part of it. Where the disk has no room for the `size` of what is to be
    written, nothing is begun. `scratch` is the path to yield where its name must be known to others.
    """
    path = Path(path)
    _remove_stale(path)
    scratch = scratch or path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    remove(scratch)
    try:
        with disk_errors(path, size):
            _check_free(path, size)
            yield scratch
            sync(scratch)
            if scratch.is_dir() and path.is_dir():
                _replace_folder(scratch, path)
            elif path.is_dir():
                raise ElmoError(f"{path}: a folder where a file must be written")
            else:
                os.replace(scratch, path)
            sync_folder(path.parent)
    finally:
        remove(scratch)


def _check_free(path: Path, size: int) -> None:
    existing = next(parent for parent in path.absolute().parents if parent.is_dir())
    if size and shutil.disk_usage(existing).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove what processes that were killed long ago left of writing a file or a folder."""
    for left in path.parent.glob(f".{escape(path.name)}.*"):
        with suppress(FileNotFoundError):  # another process is done with it
            if left.suffix in (".tmp", ".old") and time.time() - left.stat().st_ctime > SECONDS_A_DAY:
                remove(left)


def remove_folder(path: Path) -> None:
    """Remove a folder in one step: a process that is killed meanwhile leaves it whole, or none of that name."""
    hidden = path.with_name(f".{path.name}.old")
    remove(hidden)
    os.replace(path, hidden)
    remove(hidden)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder to which no other process writes."""
    for pattern in (".*.tmp", ".*.old"):
        for path in folder.glob(pattern):
            remove(path)


def _replace_folder(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails."""
    old = new.with_suffix(".old")
    remove(old)
    os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(old, path)
        raise
    remove(old)


@contextmanager
def replace_files(folder: Path, key: str, size: int = 0) -> Iterator[Path]:
    """Yield a folder whose files appear in `folder` together once the block ends without an error.

    No folder counts without its file `key`, which is removed before the others come and is the last to come: files of
    an earlier result and of this one are never taken for one.
    """
    scratch = folder / ".files.tmp"
    remove(scratch)
    scratch.mkdir(parents=True)
    try:
        with disk_errors(folder, size):
            _check_free(folder, size)
            yield scratch
            sync(scratch)
            (folder / key).unlink(missing_ok=True)
            sync_folder(folder)
            for file in sorted(scratch.iterdir(), key=lambda file: file.name == key):
                if file.name == key:
                    sync_folder(folder)
                os.replace(file, folder / file.name)
            sync_folder(folder)
    finally:
        remove(scratch)


def sync(path: Path) -> None:
    """Wait until the disk has a file, or a folder with all that is in it."""
    if path.is_dir():
        for entry in path.iterdir():
            sync(entry)
        sync_folder(path)
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names of a folder, where the system can tell."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_space(path: StrPath, size: int, folder: Path | None = None) -> None:
    """Refuse to write a file of `size` bytes for which there is no room in `folder`, by default that of `path`.

    HDF5 crashes on a full disk, so the room is taken up for a moment before it writes.
    """
    with disk_errors(path, size), TemporaryFile(dir=folder or Path(path).parent) as file:
        _take_up(file, size)


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` bytes that has its room on the disk: a memory-mapped one without it crashes."""
    with open(path, "wb") as file:
        _take_up(file, size)


def _take_up(file: IO[bytes], size: int) -> None:
    try:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        for start in range(0, size, BLOCK):  # neither the system nor this file system has it
            file.write(bytes(min(BLOCK, size - start)))


def write_text(path: StrPath, text: str) -> None:
    """Write a text file whole or not at all. Lone surrogates, which JSON may contain, are written as escapes."""
    with atomic_write(path) as scratch:
        scratch.write_text(text, encoding="utf-8", errors="backslashreplace")


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
