"""How scripts of several processes begin and end.

`accelerate launch --cpu --num_processes N`: accelerate 1.15 starts one process for that and does not tell it how many
were asked for. The number is read off accelerate's own command line, and the script begins again as that many
processes, as `torchrun` would start them.

At the end gloo's destructor holds Python's lock while it waits for its thread, which may be waiting for that lock to
let go of a tensor: a process hangs once in a while. So nothing is taken apart: the process just ends.
"""

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import psutil

# Of glibc's mallopt, and how much memory of what was freed stays with the process. Older versions refuse the first of
# the block sizes from which on memory is the system's own, and take the second.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**31 - 1
BLOCK_BYTES = (KEPT_BYTES, 2**25)


def keep_freed_memory() -> bool:
    """Large blocks that are freed stay with the process, where the C library is glibc; returns whether they do.

    Otherwise it gives those of a step back to the system, and the next step waits for their pages to be made again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None or not any(mallopt(M_MMAP_THRESHOLD, size) for size in BLOCK_BYTES):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))


def asked_for(launcher: Sequence[str], module: str) -> int:
    """Return how many processes a launcher's command line asks for; what follows the module in it is its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_processes", "--num-processes", type=int, default=1)
    end = launcher.index(module) if module in launcher else len(launcher)
    return parser.parse_known_args(list(launcher[:end]))[0].num_processes


def start_processes(module: str, arguments: Sequence[str]) -> None:
    """Replaces this process by as many as were asked for; returns where one was, or others are there already."""
    by_simple_launcher = "MASTER_PORT" in os.environ and os.environ.get("ACCELERATE_USE_CPU") == "True"
    if "WORLD_SIZE" in os.environ or not by_simple_launcher:
        return
    launcher = psutil.Process().parent()
    count = 1 if launcher is None else asked_for(launcher.cmdline(), module)
    if count < 2:
        print(
            "note: this is one process; several, on CPUs too, are started by accelerate launch --multi_gpu "
            "--num_processes 2, or by torchrun --nproc_per_node 2",
            file=sys.stderr,
        )
        return
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", module, *arguments])


# What uses a process group, which must not be destroyed before the process ends.
_kept: list[Any] = []


def keep_to_the_end(thing: Any, processes: int) -> None:
    """Takes note of something that uses the process group, if there is one."""
    if processes > 1:
        _kept.append(thing)


def run_script(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Runs a script's `main` with its arguments, in as many processes as were asked for, and ends with its code."""
    start_processes(sys.modules["__main__"].__spec__.name, sys.argv[1:])
    keep_freed_memory()
    code = main(sys.argv[1:])
    if _kept:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
