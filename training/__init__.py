"""Pretraining, task training and evaluation, run from a checkout: `python -m training.pretrain --help`."""
