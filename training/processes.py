"""Start and end scripts that run as several processes.

For `accelerate launch --cpu --num_processes N`, accelerate 1.15 starts one process and does not pass N on. So N is
read from accelerate's own command line, and the script starts again as N processes, as `torchrun` would start them.

At exit, gloo's destructor holds the GIL while it waits for its thread, which may be waiting for the GIL to release a
tensor: a process hangs once in a while. So nothing that uses a process group is destroyed: the process just exits.
"""

import argparse
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import psutil

# Parameters of glibc's mallopt, and how much freed memory the process keeps.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 2**31 - 1


def keep_freed_memory() -> None:
    """Keep large freed blocks in the process, if the C library is glibc.

    By default, glibc returns the blocks of a step to the system, and the next step waits for new pages. Older versions
    accept at most 32 MB as the size above which a block is mapped on its own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt and (mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) or mallopt(M_MMAP_THRESHOLD, 2**25)):
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def requested_processes(launcher: Sequence[str], module: str) -> int:
    """Return how many processes a launcher's command line requests; what follows the module is for the module."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_processes", "--num-processes", type=int, default=1)
    end = launcher.index(module) if module in launcher else len(launcher)
    return parser.parse_known_args(list(launcher[:end]))[0].num_processes


def start_processes(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by as many as were requested; return if that is one, or if they have been started."""
    by_simple_launcher = "MASTER_PORT" in os.environ and os.environ.get("ACCELERATE_USE_CPU") == "True"
    if "WORLD_SIZE" in os.environ or not by_simple_launcher:
        return
    launcher = psutil.Process().parent()
    count = 1 if launcher is None else requested_processes(launcher.cmdline(), module)
    if count < 2:
        print(
            "note: running as one process; start several, on CPUs too, with accelerate launch --multi_gpu "
            "--num_processes 2, or with torchrun --nproc_per_node 2",
            file=sys.stderr,
        )
        return
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", module, *arguments])


_kept: list[Any] = []


def keep_alive_until_exit(user: Any, processes: int) -> None:
    """Keep an object that uses the process group, if there is one, from being destroyed."""
    if processes > 1:
        _kept.append(user)


def run_script(
    main: Callable[..., int], arguments: Sequence[str] | None = None, program: str | None = None
) -> NoReturn:
    """Run a script's `main` in as many processes as were requested, and exit with its code.

    `arguments` are those of the command line by default; `program` is how the script's help calls it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    start_processes(sys.modules[main.__module__].__spec__.name, arguments)
    keep_freed_memory()
    code = main(arguments) if program is None else main(arguments, program)
    if _kept:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
