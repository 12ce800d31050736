"""Pretraining, task training and evaluation: `elmo pretrain --help`, or `python -m training.pretrain --help`."""

import sys

from modeling_elmo.files import report_interrupts

if sys.argv[0] == "-m":  # a script of this package is being started, and imports for seconds
    report_interrupts()
