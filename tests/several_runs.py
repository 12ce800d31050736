"""Pretrain several times in one process of several: the settings of each run are a list in a JSON file."""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState

from training import pretrain


def main() -> int:
    # All runs share one process group: gloo hangs once in a while when another is made in the same process.
    torch.distributed.destroy_process_group = lambda *_: None
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        AcceleratorState._reset_state()
        code = pretrain.main(arguments)
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # see training/processes.py
