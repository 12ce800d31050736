"""Both directions at once: two functions in two threads, with and without gradients.

Two products on one core each beat one product on two cores: no core waits for the other at every step.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Result = TypeVar("Result")


class _Pool:
    """Two threads for each number of torch threads that callers have, started when first needed."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)  # a child has neither the threads nor the lock's owner

    def _reset(self) -> None:
        self._executors: dict[tuple[int, int], ThreadPoolExecutor] = {}
        self._lock = Lock()

    def map(self, function: Callable[[int], Result], share_threads: bool = True) -> list[Result]:
        """Call the function with 0 and 1 at the same time, each with half of torch's threads, or all of them."""
        threads = torch.get_num_threads()
        each = threads // 2 if share_threads else threads
        with self._lock:
            if (threads, each) not in self._executors:
                executor = ThreadPoolExecutor(2, "elmo", _use_threads, (each,))
                barrier = Barrier(2)  # both threads exist before torch's default is restored
                list(executor.map(lambda _: barrier.wait(), range(2)))
                torch.set_num_threads(threads)  # the default of new threads, which the initializer changed
                self._executors[threads, each] = executor
            executor = self._executors[threads, each]
        return list(executor.map(function, range(2)))


def _use_threads(count: int) -> None:
    torch.get_num_threads()  # the first call in a thread takes the default, and would undo the next line later
    torch.set_num_threads(count)


_pool = _Pool()


def run_in_parallel(function: Callable[[int], Result], share_threads: bool = True) -> list[Result]:
    """Call a function, which needs no gradients, with 0 and 1 at the same time."""
    if torch.get_num_threads() == 1 or torch.is_autocast_enabled("cpu"):  # other threads do not see autocast
        return [function(0), function(1)]
    is_inference = torch.is_inference_mode_enabled()

    def call(side: int) -> Result:
        with torch.inference_mode() if is_inference else torch.no_grad():
            return function(side)

    return _pool.map(call, share_threads)


def can_train_in_parallel(*inputs: Tensor) -> bool:
    """Return whether `train_in_parallel` may be used: with gradients, on a CPU, without per-thread settings."""
    return (
        torch.is_grad_enabled()
        and torch.get_num_threads() > 1
        and all(tensor.device.type == "cpu" for tensor in inputs)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def train_in_parallel(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    parameters: tuple[Sequence[Tensor], Sequence[Tensor]],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Call function(side, *inputs) for both sides at the same time, and compute their gradients at the same time.

    Each side may read, beside the inputs, the parameters given for it, and may draw no random numbers.
    """
    outputs = _TrainInParallel.apply(function, parameters, len(inputs), *inputs, *parameters[0], *parameters[1])
    half = len(outputs) // 2
    return outputs[:half], outputs[half:]


class _TrainInParallel(torch.autograd.Function):
    """Two calls of a function, each with its own graph and its own thread in both passes."""

    @staticmethod
    def forward(ctx: Any, function: Callable, parameters: Sequence[Sequence], count: int, *tensors: Tensor) -> tuple:
        graphs = []
        for _ in range(2):
            graphs.append([tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors[:count]])

        def call(side: int) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                return function(side, *graphs[side])

        outputs = _pool.map(call)
        ctx.graphs, ctx.parameters, ctx.outputs, ctx.count = graphs, parameters, outputs, count
        return tuple(output.detach() for side in outputs for output in side)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple:
        first = len(ctx.outputs[0])
        given = (d_outputs[:first], d_outputs[first:])
        keep_graph = torch._C._autograd._get_current_graph_task_keep_graph()  # for another backward pass

        def call(side: int) -> list[Tensor | None]:
            sources = [*ctx.graphs[side], *ctx.parameters[side]]
            targets = [tensor for tensor in sources if tensor.requires_grad]
            outputs, gradients = [], []
            for output, gradient in zip(ctx.outputs[side], given[side], strict=True):
                if output.requires_grad:
                    outputs.append(output)
                    gradients.append(gradient)
            if not targets or not outputs:
                return [None] * len(sources)
            found = torch.autograd.grad(outputs, targets, gradients, retain_graph=keep_graph, allow_unused=True)
            gradient_of = dict(zip(map(id, targets), found, strict=True))
            return [gradient_of.get(id(tensor)) for tensor in sources]

        left, right = _pool.map(call)
        if not keep_graph:  # the loss may live on, and should not keep all activations alive
            ctx.graphs = ctx.outputs = None
        d_inputs = []
        for d_left, d_right in zip(left[: ctx.count], right[: ctx.count], strict=True):
            if d_left is None or d_right is None:
                d_inputs.append(d_right if d_left is None else d_left)
            else:
                d_inputs.append(d_left + d_right)
        return None, None, None, *d_inputs, *left[ctx.count :], *right[ctx.count :]
