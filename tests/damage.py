"""Damage files at random, by a seed, and run what reads them in a forked process with limits of time and memory."""

import ctypes
import gc
import json
import os
import pickle
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from modeling_elmo.files import ElmoError

SECONDS = 10.0
# Linux: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
GIGABYTE = 1 << 30
# What a reader may take: so many times the input, and so much more.
INPUT_SHARE = 3
# The limit of address space only ends a process that runs away: threads and allocators reserve much that they never
# use. What counts is the peak of resident memory.
ADDRESS_SPACE = 6 * GIGABYTE
LONGEST_MESSAGE = 1000

# What a format may choke on, put in at a random place.
SNIPPETS: tuple[bytes, ...] = (
    *(b"\r", b"\r\r\n", b"\n", b"\n\n", b"\t", b" ", b",", b'"', b"'", b"\\", b":", b"|", b"#", b"*", b"-", b"\x00"),
    *(b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"\x0b", b"\x1f", b'"\\ud800"'),
    *(b"(", b")", b"[", b"]", b"{", b"}", b"{}", b"[]", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0"),
    *(b"9" * 5000, b"[" * 100_000, b"(" * 5000, b"a" * 200_000, b"#begin document (x)\n", b"#end document\n"),
)
# What may stand in place of a value of JSON.
VALUES: tuple[Any, ...] = (
    *(None, True, 5, -1, 0, 1.5, 10**12, "", "x", "5", "\ud800", "../x", [], {}, [[]], {"x": 1}, [None], ["x"], [5]),
    *(float("nan"), float("inf")),
)
# A number that json.loads refuses with a plain ValueError; json.dumps cannot write it either.
LONG_NUMBER = "9" * 5000
NODES = ("fifo", "device", "directory", "missing", "dangling")


# ---------------------------------------------------------------------------------------------------------- mutations


def mutate(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Return the name of a random change, and what it makes of some bytes."""
    name = rng.choices(list(MUTATIONS), [FREQUENT.get(name, 1) for name in MUTATIONS])[0]
    return name, MUTATIONS[name](data, rng)


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randint(0, len(data))


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))] if data else data


def _drop(data: bytes, rng: random.Random) -> bytes:
    start = _place(data, rng)
    return data[:start] + data[start + rng.choice((1, 2, 10, 100)) :]


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(min(rng.choice((1, 1, 1, 2, 8, 64)), 8 * len(data))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    start, size = _place(data, rng), rng.choice((1, 2, 4, 8, 32))
    return data[:start] + rng.choice((b"\x00", b"\xff", rng.randbytes(1))) * size + data[start + size :]


def _swap(data: bytes, rng: random.Random) -> bytes:
    a, b, c, d = sorted(_place(data, rng) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted((_place(data, rng), _place(data, rng)))
    return data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]


def _double(data: bytes, _: random.Random) -> bytes:
    return data * 2


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = _place(data, rng)
    return data[:place] + rng.choice(SNIPPETS) + data[place:]


def _empty(_: bytes, __: random.Random) -> bytes:
    return b""


def _noise(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(min(max(len(data), 1), 10_000))


MUTATIONS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut,
    "drop": _drop,
    "flip": _flip,
    "overwrite": _overwrite,
    "swap": _swap,
    "repeat": _repeat,
    "double": _double,
    "insert": _insert,
    "empty": _empty,
    "noise": _noise,
}
# The others soon leave nothing to read.
FREQUENT = {"flip": 6, "insert": 6, "drop": 2, "overwrite": 3}


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Put a random value in place of one of a JSON document, or of one of its lines; or take one out."""
    text = data.decode()
    lines = [text]
    number = 0
    try:
        json.loads(text)
    except ValueError:
        lines = text.splitlines(keepends=True)
        number = rng.randrange(len(lines))
    parsed = json.loads(lines[number])
    places = list(_json_places(parsed))
    container, key = rng.choice(places) if places else ([parsed], 0)
    action = rng.random()
    if action < 0.15:
        del container[key]
    elif action < 0.25:
        container[key] = LONG_NUMBER
    elif action < 0.3 and isinstance(container, dict):
        container[rng.choice(("x", "__class__", "5"))] = container.pop(key)
    else:
        container[key] = rng.choice(VALUES)
    end = "\n" if lines[number].endswith("\n") else ""
    dumped = json.dumps(container[0] if not places else parsed) if places or container else ""
    lines[number] = dumped.replace(f'"{LONG_NUMBER}"', LONG_NUMBER) + end
    return "".join(lines).encode()


def _json_places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _json_places(inner)


def replace_by_node(path: Path, node: str) -> None:
    """Put a FIFO, a link to an endless device, a folder, nothing, or a link to nothing in place of a file."""
    path.unlink()
    if node == "fifo":
        os.mkfifo(path)
    elif node == "device":
        path.symlink_to("/dev/zero")
    elif node == "directory":
        path.mkdir()
    elif node == "dangling":
        path.symlink_to(path.with_name("nothing"))


# ------------------------------------------------------------------------------------------------- forked processes


class Outcome(NamedTuple):
    """What became of reading damaged files.

    `kind` is same or other (a result, well-formed), refused (one line), or a failure: wrong (a result that must not
    be), lines (an error of several lines, or of far too long a one), traceback, signal, hang, memory.
    """

    kind: str
    details: str = ""
    value: Any = None
    peak: int = 0  # bytes of resident memory beyond those at the start
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("same", "other", "refused")


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def attempt(read: Callable[[], Any]) -> Outcome:
    """Read, and describe what came of it."""
    try:
        return Outcome("other", value=read())
    except ElmoError as error:
        text = str(error)
        is_one_line = len(text.splitlines()) == 1 and text == text.strip() and len(text) <= LONGEST_MESSAGE
        return Outcome("refused" if is_one_line else "lines", text[: 4 * LONGEST_MESSAGE])
    except MemoryError:
        return Outcome("memory", traceback.format_exc(limit=-6)[:4000])
    except BaseException:
        return Outcome("traceback", traceback.format_exc(limit=-6)[:4000])


def _limit() -> None:
    """Make this process one that hurts no other: quiet, in a group of its own, with a limit of address space."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)  # a fork has none of the threads that its parent may have used
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, mode), number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _memory("VmSize:") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _measure(run: Callable[[], Outcome]) -> Outcome:
    """Add time and the peak of memory to an outcome."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    start, began = _memory("VmRSS:"), time.monotonic()
    outcome = run()
    return outcome._replace(peak=max(_memory("VmHWM:") - start, 0), seconds=time.monotonic() - began)


def run_forked(runs: Sequence[Callable[[], Outcome]], seconds: float = SECONDS) -> list[Outcome]:
    """Run functions one after another in a forked process, and in another one what one has ended; return all outcomes.

    A function that takes longer than `seconds` gets a second chance in a process of its own: machines are busy.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(runs):
        left = runs[len(outcomes) :]
        received, end = _run_some(left, seconds)
        outcomes += received
        if end is not None:
            if end.kind == "hang" and len(left) > 1:
                again, end_again = _run_some(left[len(received) : len(received) + 1], 2 * seconds)
                end = again[0] if again else end_again
            assert end is not None
            outcomes.append(end)
    return outcomes


def _run_some(runs: Sequence[Callable[[], Outcome]], seconds: float) -> tuple[list[Outcome], Outcome | None]:
    """Return the outcomes of the first functions, and how the next one ended the process, if one did."""
    receiver, sender = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        try:
            os.close(receiver)
            _limit()
            for run in runs:
                message = pickle.dumps(_measure(run))
                message = len(message).to_bytes(8, "little") + message
                while message:
                    message = message[os.write(sender, message) :]
        finally:
            os._exit(0)
    os.close(sender)
    outcomes: list[Outcome] = []
    received = b""
    started = time.monotonic()
    end = None
    while end is None:
        left = started + seconds - time.monotonic()
        if not select.select([receiver], [], [], max(left, 0))[0]:
            end = Outcome("hang", f"killed after {seconds:g} s", seconds=seconds)
            break
        block = os.read(receiver, 1 << 20)
        if not block:
            break
        received += block
        while len(received) >= 8 and len(received) >= 8 + int.from_bytes(received[:8], "little"):
            size = 8 + int.from_bytes(received[:8], "little")
            outcomes.append(pickle.loads(received[8:size]))
            received = received[size:]
            started = time.monotonic()
    os.close(receiver)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if end is None and len(outcomes) < len(runs):
        end = Outcome("signal", f"ended by signal {os.WTERMSIG(status)}")
    return outcomes, end


def freeze() -> None:
    """Leave what is imported by now to all forked processes: it is never collected, so its pages stay shared."""
    gc.collect()
    gc.freeze()


# --------------------------------------------------------------------------------------------------------------- cases


class Packing(NamedTuple):
    """How a file holds another, which can be damaged inside of it."""

    unpack: Callable[[bytes], bytes]
    pack: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Kind:
    """A kind of input: `make` writes its files into a folder, `read` returns what the package reads from there."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    files: Sequence[str] = ("**/*",)  # patterns of those that are damaged
    is_slow: bool = False  # whether it is damaged more rarely than others
    is_sealed: bool = False  # whether damaged files give the same result or none
    also: Sequence[str] = ()  # places and types that a result may have beside those of the untouched files
    packings: Mapping[str, Packing] = field(default_factory=dict)

    def files_in(self, folder: Path) -> list[str]:
        """Return the names of the files that are damaged."""
        found = {path for pattern in self.files for path in folder.glob(pattern) if path.is_file()}
        return sorted(str(path.relative_to(folder)) for path in found)


class Case(NamedTuple):
    """A damage by its kind of input, seed, file and name, and its outcome."""

    kind: str
    seed: int
    file: str
    damage: str
    outcome: Outcome


def damage_file(path: Path, rng: random.Random, packing: Packing | None = None, is_json: bool = False) -> str:
    """Damage a file; return in a word how."""
    if rng.random() < 0.06:
        node = rng.choice(NODES)
        replace_by_node(path, node)
        return node
    data = path.read_bytes()
    if packing is not None and rng.random() < 0.6:
        inner = packing.unpack(data)
        if is_json and rng.random() < 0.5:
            name, inner = "value", mutate_json(inner, rng)
        else:
            name, inner = mutate(inner, rng)
        path.write_bytes(packing.pack(inner))
        return f"{name} inside"
    if is_json and packing is None and rng.random() < 0.5:
        path.write_bytes(mutate_json(data, rng))
        return "value"
    name, data = mutate(data, rng)
    if rng.random() < 0.15:
        second, data = mutate(data, rng)
        name = f"{name}, {second}"
    path.write_bytes(data)
    return name


def shape_of(value: Any, place: str = "") -> set[str]:
    """Return which types are at which places of a value; the items of a list share one place."""
    shape = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            shape |= shape_of(inner, f"{place}.{key}")
    elif isinstance(value, (list, tuple)):
        for inner in value:
            shape |= shape_of(inner, f"{place}[]")
    else:
        kind = type(value).__name__
        shape.add(f"{place}: {'number' if kind in ('int', 'float') else kind}")
    return shape


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def damage_copy(kind: Kind, source: Path, seed: int, folder: Path) -> tuple[str, str]:
    """Copy the files of a kind of input, and damage one of them. Return which, and how."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    rng = random.Random(f"{kind.name} {seed}")
    file = rng.choice(kind.files_in(folder))
    path = folder / file
    return file, damage_file(path, rng, kind.packings.get(path.suffix), ".json" in file)


def run_case(kind: Kind, source: Path, expected: Any, seed: int, folder: Path) -> Outcome:
    """Damage a copy of some files, read it, and judge what comes of it."""
    _, name = damage_copy(kind, source, seed, folder)
    size = size_of(folder)
    outcome = _measure(lambda: attempt(lambda: kind.read(folder)))
    outcome = judge(kind, outcome, expected, name)
    if not outcome.is_failure and outcome.peak > INPUT_SHARE * size + GIGABYTE:
        outcome = outcome._replace(kind="memory", details=f"{outcome.peak / 1e6:,.0f} MB")
    return outcome


def run_cases(
    kind: Kind, source: Path, expected: Any, seeds: Sequence[int], scratch: Path, kept: Path | None = None
) -> list[Case]:
    """Run cases of one kind in a forked process. Files that lead to failures are kept."""
    folder = scratch / "case" / "files"
    runs = [partial(run_case, kind, source, expected, seed, folder) for seed in seeds]
    cases = []
    for seed, outcome in zip(seeds, run_forked(runs), strict=True):
        file, name = "", ""
        if outcome.is_failure:
            file, name = damage_copy(kind, source, seed, folder)
            if kept is not None:
                text = f"{file}: {name}: {outcome.kind}\n{outcome.details}\n"
                _keep(folder / file, kept / f"{kind.name}-{seed}", text)
        cases.append(Case(kind.name, seed, file, name, outcome))
    shutil.rmtree(folder.parent, ignore_errors=True)
    return cases


def _keep(path: Path, place: Path, text: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "outcome.txt").write_text(text, errors="replace")
    if path.is_file() and not path.is_symlink():
        shutil.copy(path, place / path.name)


def judge(kind: Kind, outcome: Outcome, expected: Any, damage: str) -> Outcome:
    """Tell a right result from another well-formed one, and either from a wrong one."""
    if outcome.kind != "other":
        return outcome
    value = outcome.value
    outcome = outcome._replace(value=None)
    if value == expected:
        return outcome._replace(kind="same")
    if kind.is_sealed and not damage.endswith("inside") and "double" not in damage:
        return outcome._replace(kind="wrong", details=f"another result: {str(value)[:500]}")
    strange = sorted(shape_of(value) - shape_of(expected) - set(kind.also))
    if strange:
        return outcome._replace(kind="wrong", details=f"not well-formed: {strange[:5]}")
    return outcome
