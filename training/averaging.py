"""A moving average of the weights that are trained: evaluated and kept instead of them, while training goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

# In a checkpoint, whose model has the average: the weights themselves, to go on with.
WEIGHTS_FILE = "trained_weights.safetensors"


class MovingAverage(TrainerCallback):
    """a = d * a + (1 - d) * w after every step, where d is at most (1 + n) / (10 + n) at step n.

    So the first steps, whose weights are still far off, are soon forgotten.

    Args:
        model: whose trainable weights are averaged.
        decay: d.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        get_ema_multi_avg_fn(decay)(list(self.averages.values()), list(self.weights.values()), self.updates)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges the model's weights and their averages."""
        for name, weight in self.weights.items():
            before = weight.detach().clone()
            weight.copy_(self.averages[name])
            self.averages[name].copy_(before)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """The model has the averages meanwhile."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def save(self, folder: Path) -> None:
        """Writes the weights, while the model has them."""
        weights = {name: weight.detach().contiguous() for name, weight in self.weights.items()}
        save_file(weights, folder / WEIGHTS_FILE, metadata={"updates": str(self.updates)})

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Goes on from a checkpoint, whose model, the averages, is loaded already."""
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
            self.updates = int(file.metadata()["updates"])
            for name, weight in self.weights.items():
                self.averages[name].copy_(weight)
                weight.copy_(file.get_tensor(name))


__all__ = ["WEIGHTS_FILE", "MovingAverage"]
