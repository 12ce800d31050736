"""One writer per output: a lock that the system releases when its process ends, however that ends.

The lock is `flock` on a file, which holds its owner's name. On Linux it works on NFS too, between machines. Where
there is none, as on Windows and on some network file systems, nothing is locked; the latter is said in a warning.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from .files import ElmoError, disk_errors

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"

_held: list[int] = []  # descriptors of this process's lock files


def _forget_locks() -> None:
    """Close the lock files of the parent: a child that outlives it must not keep them locked."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


@contextmanager
def one_writer(output: Path, lock: Path | None = None) -> Iterator[None]:
    """Refuse to write an output that another process is writing, by its name and with its owner.

    `lock` is the lock file, by default one in the output, which then is a folder and is made. Of the processes of one
    run only the first takes the lock.
    """
    if lock is None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ElmoError(f"{output}: not a folder") from error
        lock = output / LOCK_FILE
    if fcntl is None:
        yield
        return
    descriptor = _acquire(output, lock)
    _held.append(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # otherwise this is a child, which has closed it
            lock.unlink(missing_ok=True)
            _held.remove(descriptor)
            os.close(descriptor)


def _acquire(output: Path, lock: Path) -> int:
    """Return the descriptor of the locked file. A file that its last owner has just removed is left for a new one."""
    while True:
        with disk_errors(lock):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, output)
            if _is_open_as(descriptor, lock):
                owner = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}"
                os.ftruncate(descriptor, 0)
                with suppress(OSError):  # on a full disk the lock has no name
                    os.write(descriptor, owner.encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_open_as(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, output: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 1000).decode(errors="replace") or "another process"
        raise ElmoError(f"{output}: {owner} is writing it; wait for that, or choose another output") from error
    except OSError as error:
        print(f"warning: {output}: cannot be locked: {error.strerror}; let no other process write it", file=sys.stderr)
