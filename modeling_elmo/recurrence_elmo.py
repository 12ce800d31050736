"""The recurrence of an ELMo LSTM layer over packed words: the same numbers in several ways.

`plain_recurrence` is the definition, and what models in 16 bits get. `_Recurrence` is its training form:
it keeps only the gates and cells for the backward pass and makes each weight's gradient in one product over all steps.
`packed_recurrence` is its inference form on a CPU: weights in the layout oneDNN multiplies fastest, everything else in
place. For a single sentence there are two: `compiled_recurrence` where numba is installed, and `paired_recurrence`,
both directions at once, where it is not.

Shapes: N packed words, S sentences, P projection, M memory cells. Gates are in the order i, j, f, o.
"""

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock
from typing import Any, NamedTuple, TypeVar

import numpy
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# The original adds 1 to the forget gate at run time; the stored bias lacks it.
FORGET_BIAS = 1.0

States = tuple[Tensor, Tensor]


def steps_of(batch_sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first word of every step and one past its last."""
    start = 0
    for size in batch_sizes:
        yield start, start + size
        start += size


def plain_recurrence(
    gates_of_inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    recurrent: Tensor,
    projection: Tensor | None,
    batch_sizes: Sequence[int],
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """gates_of_inputs (N, 4M), hidden (S, P), cell (S, M) -> outputs (N, P), final hidden and cell.

    The memory cell c = sigmoid(f + 1) * c + sigmoid(i) * tanh(j) is clipped; so is the output, the projection of
    sigmoid(o) * tanh(c), which is also the recurrent state. Without a projection P is M: the LSTMs of task models.
    """
    outputs: list[Tensor] = []
    ended: list[States] = []  # states of sentences that have ended, the shortest sentences first
    for of_inputs in gates_of_inputs.split(list(batch_sizes)):
        size = len(of_inputs)
        if size < len(hidden):
            ended.append((hidden[size:], cell[size:]))
            hidden, cell = hidden[:size], cell[:size]
        gates = of_inputs + hidden @ recurrent.T
        i, j, f, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * cell + torch.sigmoid(i) * torch.tanh(j)
        if cell_clip is not None:
            cell = cell.clamp(-cell_clip, cell_clip)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if projection is not None:
            hidden = hidden @ projection.T
        if projection_clip is not None:
            hidden = hidden.clamp(-projection_clip, projection_clip)
        outputs.append(hidden)
    ended.append((hidden, cell))
    final_hidden, final_cell = (torch.cat(states) for states in zip(*reversed(ended), strict=True))
    return torch.cat(outputs) if outputs else gates_of_inputs.new_zeros(0, hidden.shape[1]), final_hidden, final_cell


class _Recurrence(torch.autograd.Function):
    """`plain_recurrence` with its backward pass written out.

    A step has as few operations as can be: two threads, one a direction, wait for each other's interpreter lock at
    every one. What does not wait for another step is done for all words at once, before or after the loop over steps.
    Products are computed in `dtype`, everything else in that of the gates.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gates_of_inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        recurrent: Tensor,
        projection: Tensor | None,
        batch_sizes: Sequence[int],
        cell_clip: float | None,
        projection_clip: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        words, cells = gates_of_inputs.shape[0], cell.shape[1]
        # The logistic function serves all gates, since tanh(x) = 2 sigmoid(2x) - 1.
        gates, weight = gates_of_inputs.clone(), recurrent.clone()
        by_gate = gates.unflatten(1, (4, cells))
        by_gate[:, 1].mul_(2)
        by_gate[:, 2].add_(FORGET_BIAS)
        weight[cells : 2 * cells].mul_(2)
        memory, squashed = (gates.new_empty(words, cells) for _ in range(2))  # the second is tanh of the first
        outputs = gates.new_empty(words, hidden.shape[1])
        first_hidden, first_cell = hidden, cell
        final_hidden, final_cell = hidden.clone(), cell.clone()
        transposed, projected = weight.to(dtype).T, None if projection is None else projection.to(dtype).T
        for step, i, j, f, o, new_cell, new_squashed, output in zip(
            *in_steps(batch_sizes, gates, *by_gate.unbind(1), memory, squashed, outputs), strict=True
        ):
            size = len(output)
            if size < len(hidden):  # sentences have ended
                final_hidden[size : len(hidden)], final_cell[size : len(cell)] = hidden[size:], cell[size:]
                hidden, cell = hidden[:size], cell[:size]
            add_product(hidden, transposed, step).sigmoid_()
            cell = torch.mul(f, cell, out=new_cell).addcmul_(i, j, value=2).sub_(i)
            if cell_clip is not None:
                cell.clamp_(-cell_clip, cell_clip)
            torch.tanh(cell, out=new_squashed)
            if projected is None:
                hidden = torch.mul(o, new_squashed, out=output)
            else:
                hidden = product(o * new_squashed, projected, output)
            if projection_clip is not None:
                hidden.clamp_(-projection_clip, projection_clip)
        final_hidden[: len(hidden)], final_cell[: len(cell)] = hidden, cell
        by_gate[:, 1].mul_(2).sub_(1)
        ctx.save_for_backward(gates, memory, squashed, outputs, first_hidden, first_cell, recurrent, projection)
        ctx.batch_sizes, ctx.cell_clip, ctx.projection_clip, ctx.dtype = batch_sizes, cell_clip, projection_clip, dtype
        return outputs, final_hidden, final_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        gates, memory, squashed, outputs, first_hidden, first_cell, recurrent, projection = ctx.saved_tensors
        before = states_before(first_cell, memory, ctx.batch_sizes)
        i, j, f, o = gates.chunk(4, dim=1)
        # How much a change of the memory changes i, j and f, and one of its output changes o: all but those changes is
        # known before the loop, which is left with a few operations.
        d_gates = torch.empty_like(gates)
        of_i, of_j, of_f, of_o = d_gates.chunk(4, dim=1)
        torch.mul(i, j, out=of_i).mul_(1 - i)
        torch.addcmul(i, i, j.square(), value=-1, out=of_j)
        torch.mul(f, before, out=of_f).mul_(1 - f)
        torch.mul(o, squashed, out=of_o).mul_(1 - o)
        of_output = torch.addcmul(o, o, squashed.square(), value=-1)  # what a change of the output does to the memory
        of_memory = d_gates.unflatten(1, (4, -1))[:, :3]
        if ctx.cell_clip is not None:
            inside = (memory.abs() < ctx.cell_clip).to(f.dtype)
            f = f * inside
            of_memory.mul_(inside[:, None])
        d_projected = torch.empty_like(outputs)  # at the projection's output, before the clip
        d_hidden, d_cell = d_hidden.clone(), d_cell.clone()
        d_states = d_hidden[:0], d_cell[:0]  # of the sentences that have begun, from the end
        d_of_output = (
            d_hidden if projection is None else torch.empty_like(first_cell)
        )  # a step's, of sigmoid(o) * tanh(c)
        recurrent, projected = recurrent.to(ctx.dtype), None if projection is None else projection.to(ctx.dtype)
        unclipped = outputs if ctx.projection_clip is None else outputs.abs() < ctx.projection_clip
        steps = in_steps(ctx.batch_sizes, d_outputs, unclipped, d_projected, d_gates, of_memory, of_o, of_output, f)
        for d_output, kept, d_step, d_of_gates, d_of_memory, d_of_o, through, forget in reversed(
            list(zip(*steps, strict=True))
        ):
            size = len(d_step)
            if size > len(d_states[0]):
                d_states = d_hidden[:size], d_cell[:size]
            torch.add(d_states[0], d_output, out=d_step)
            if ctx.projection_clip is not None:
                d_step.mul_(kept)
            d_squashed = d_step if projected is None else product(d_step, projected, d_of_output[:size])
            d_of_o.mul_(d_squashed)
            d_memory = torch.addcmul(d_states[1], d_squashed, through)
            d_of_memory.mul_(d_memory[:, None])
            torch.mul(d_memory, forget, out=d_states[1])
            product(d_of_gates, recurrent, d_states[0])
        d_recurrent = d_projection = None
        if ctx.needs_input_grad[3] and len(gates):
            states = states_before(first_hidden, outputs, ctx.batch_sizes)
            d_recurrent = (d_gates.T.to(ctx.dtype) @ states.to(ctx.dtype)).to(gates.dtype)
        if projection is not None and ctx.needs_input_grad[4] and len(gates):
            d_projection = (d_projected.T.to(ctx.dtype) @ (o * squashed).to(ctx.dtype)).to(gates.dtype)
        return d_gates, d_hidden, d_cell, d_recurrent, d_projection, None, None, None, None


def in_steps(batch_sizes: Sequence[int], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Each tensor's parts at every step."""
    return [tensor.split(list(batch_sizes)) for tensor in tensors]


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left @ right, computed in the dtype of `right`, in `out`."""
    if left.dtype == right.dtype:
        return torch.mm(left, right, out=out)
    return out.copy_(left.to(right.dtype) @ right)


def add_product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Adds left @ right, computed in the dtype of `right`, to `out`."""
    if left.dtype == right.dtype:
        return out.addmm_(left, right)
    return out.add_(left.to(right.dtype) @ right)


def states_before(first: Tensor, after: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """What every step begins with, (N, size), of what the first one begins with and what each ends with."""
    sources = [first, *after.split(list(batch_sizes))]
    return torch.cat([after[:0], *(source[:size] for source, size in zip(sources, batch_sizes, strict=False))])


def dtype_of_products(weight: Tensor) -> torch.dtype:
    """Autocast's, where it is on and the weights are float32, which are the only ones that it changes; else theirs."""
    device = weight.device.type
    if weight.dtype == torch.float32 and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def trained_recurrence(
    gates_of_inputs: Tensor, hidden: Tensor, cell: Tensor, recurrent: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """`plain_recurrence`, with less memory and time spent on its gradients.

    Under autocast its products are in 16 bits, and all else is as exact as the weights: in 16 bits too much of
    2 sigmoid(2x) - 1 would be lost, so a model whose weights have no more takes the plain form.
    """
    if recurrent.dtype.itemsize < 4:
        return plain_recurrence(gates_of_inputs, hidden, cell, recurrent, *rest)
    dtype = dtype_of_products(recurrent)
    if dtype == recurrent.dtype:
        return _Recurrence.apply(gates_of_inputs, hidden, cell, recurrent, *rest, dtype)
    inputs = (tensor.to(recurrent.dtype) for tensor in (gates_of_inputs, hidden, cell))
    with torch.autocast(recurrent.device.type, enabled=False):
        return _Recurrence.apply(*inputs, recurrent, *rest, dtype)


# -------------------------------------------------------------------------------------------------------- inference

Result = TypeVar("Result")


def _use_threads(count: int) -> None:
    """Has torch use so many threads in the calling one."""
    torch.get_num_threads()  # the first call in a thread takes the default, and would undo the next line later
    torch.set_num_threads(count)


class _Pool:
    """Two threads, each with half of torch's threads or all, made when first needed and anew after a fork.

    Callers may be threads too, each with a number of torch's threads of its own: there is a pair for each number.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)  # a child has neither the threads nor who holds the lock

    def _forget(self) -> None:
        self._executors: dict[tuple[int, int], ThreadPoolExecutor] = {}
        self._lock = Lock()

    def executor(self, halves: bool = True) -> ThreadPoolExecutor:
        threads = torch.get_num_threads()
        each = threads // 2 if halves else threads
        with self._lock:
            if (threads, each) not in self._executors:
                executor = ThreadPoolExecutor(2, "elmo", _use_threads, (each,))
                barrier = Barrier(2)  # both threads exist before the line after the next
                list(executor.map(lambda _: barrier.wait(), range(2)))
                torch.set_num_threads(threads)  # the default of threads to come, which the initializer changed
                self._executors[threads, each] = executor
            return self._executors[threads, each]


_pool = _Pool()


def side_by_side(first: Callable[[], Result], second: Callable[[], Result], halves: bool = True) -> list[Result]:
    """Calls both functions, which need no gradients, at the same time, each with half of torch's threads or all.

    Two products on one core each beat one product on two cores: no core waits for the other at every step. One
    sentence was a quarter faster where each had all: few of its products are in torch.
    """
    if torch.get_num_threads() == 1 or torch.is_autocast_enabled("cpu"):  # which other threads would not know of
        return [first(), second()]
    is_inference = torch.is_inference_mode_enabled()

    def call(function: Callable[[], Result]) -> Result:
        with torch.inference_mode() if is_inference else torch.no_grad():
            return function()

    return list(_pool.executor(halves).map(call, (first, second)))


def trains_side_by_side(*inputs: Tensor) -> bool:
    """Whether `train_side_by_side` may be used: with gradients, on a CPU, and outside of what is kept per thread."""
    return (
        torch.is_grad_enabled()
        and torch.get_num_threads() > 1
        and all(tensor.device.type == "cpu" for tensor in inputs)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _TrainSideBySide(torch.autograd.Function):
    """Two functions of the same inputs, each with its own graph, and a thread for each in both passes."""

    @staticmethod
    def forward(
        ctx: Any, functions: Sequence[Callable], parameters: Sequence[Sequence], count: int, *tensors: Tensor
    ) -> tuple:
        graphs = [
            [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors[:count]] for _ in range(2)
        ]

        def call(side: int) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                return functions[side](*graphs[side])

        outputs = list(_pool.executor().map(call, range(2)))
        ctx.graphs, ctx.parameters, ctx.outputs, ctx.count = graphs, parameters, outputs, count
        return tuple(output.detach() for side in outputs for output in side)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple:
        first = len(ctx.outputs[0])
        gradients_of = (d_outputs[:first], d_outputs[first:])
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()  # for another backward pass

        def call(side: int) -> list[Tensor | None]:
            everything = (*ctx.graphs[side], *ctx.parameters[side])
            wanted = [tensor for tensor in everything if tensor.requires_grad]
            known = [
                (output, gradient)
                for output, gradient in zip(ctx.outputs[side], gradients_of[side], strict=True)
                if output.requires_grad
            ]
            if not wanted or not known:
                return [None] * len(everything)
            outputs, gradients = zip(*known, strict=True)
            found = iter(torch.autograd.grad(outputs, wanted, gradients, retain_graph=is_kept, allow_unused=True))
            return [next(found) if tensor.requires_grad else None for tensor in everything]

        sides = list(_pool.executor().map(call, range(2)))
        if not is_kept:  # the loss may live on, and should not keep all activations alive
            ctx.graphs = ctx.outputs = None
        count = ctx.count
        of_inputs = [
            second if first is None else first if second is None else first + second
            for first, second in zip(sides[0][:count], sides[1][:count], strict=True)
        ]
        return None, None, None, *of_inputs, *sides[0][count:], *sides[1][count:]


def train_side_by_side(
    first: Callable[..., tuple[Tensor, ...]],
    second: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    parameters: tuple[Sequence[Tensor], Sequence[Tensor]],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Calls both functions with the inputs, at the same time, and computes their gradients at the same time.

    Each may read, beside the inputs, the parameters that are given for it, and may draw no random numbers.
    """
    outputs = _TrainSideBySide.apply((first, second), parameters, len(inputs), *inputs, *parameters[0], *parameters[1])
    half = len(outputs) // 2
    return outputs[:half], outputs[half:]


# Words whose gates are computed at once: bounds the memory of a batch, or of one endless sentence.
WORDS_AT_ONCE = 2048
# Rows that oneDNN is told to expect when it lays out a matrix. One layout serves all sizes about equally well.
TYPICAL_ROWS = 64
# oneDNN keeps what it made for every number of rows: with many rows, as many as fill this unit are multiplied.
ROW_UNIT = 64
# Weights of a layer that a CPU's cache may hold for both directions; of larger ones a part comes from main memory at
# every step, which MKL waits for less than the compiled recurrence.
CACHED_WEIGHTS = 1 << 22
# Parts of a large matrix that one row is multiplied with, each by one core: as many as were fastest for `original`.
COLUMN_BLOCKS = 8
# Weights compared to notice changes made behind autograd's back, through `parameter.data`: all of a small tensor, of
# a larger one a sample.
MOST_COMPARED = 1 << 13
SAMPLED_WEIGHTS = 64


def runs_packed(module: nn.Module, *inputs: Tensor) -> bool:
    """Whether a module may use packed weights: in eval mode, without gradients, in float32 on a CPU."""
    tensors = (*inputs, *module.parameters())
    return (
        not module.training
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        and all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class Derived:
    """Something made from parameters and kept while they stay the same; neither copied nor pickled with a model."""

    def __init__(self) -> None:
        self._lock = Lock()  # a model may be used by several threads
        self._mark: list[tuple[int, int]] = []
        self._views: list[Tensor] = []
        self._sample = torch.empty(0)

    def __deepcopy__(self, memo: dict) -> "Derived":
        made_by, arguments = self.__reduce__()
        return made_by(*arguments)

    def __reduce__(self) -> tuple:
        return type(self), ()

    @contextmanager
    def renewal(self, parameters: Iterable[Tensor]) -> Iterator[bool]:
        """Tells whether the parameters are others than at the last time, or have changed since, so that what is made
        of them must be made again: by the body, in one thread at a time. If that is stopped, it is told again.
        """
        with self._lock:
            parameters = list(parameters)
            mark = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in parameters]
            if mark == self._mark and torch.equal(torch.cat(self._views), self._sample):
                yield False
                return
            self._mark = []
            flat = [parameter.detach().flatten() for parameter in parameters]
            self._views = [
                values if len(values) <= MOST_COMPARED else values[:: len(values) // SAMPLED_WEIGHTS]
                for values in flat
            ]
            self._sample = torch.cat(self._views)
            yield True
            self._mark = mark


class _Matrix:
    """x -> x @ weight.T + addend, the weight laid out once for fast products with a few rows.

    Where torch has no oneDNN a plain transpose is kept instead.
    """

    def __init__(self, weight: Tensor) -> None:
        self.is_packed = torch.backends.mkldnn.is_available()
        if self.is_packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        else:
            self.weight = weight.T.contiguous()

    def __call__(self, rows: Tensor, addend: Tensor | None = None) -> Tensor:
        if not self.is_packed:
            return rows @ self.weight if addend is None else torch.addmm(addend, rows, self.weight)
        if addend is None or addend.ndim == 1:
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, addend, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(rows, addend, self.weight, None, "add")


def _multiply_many(matrix: _Matrix, rows: Tensor, bias: Tensor) -> Tensor:
    """rows @ weight.T + bias for any number of rows, of which there are few different ones for oneDNN."""
    if len(rows) <= ROW_UNIT or not matrix.is_packed:
        return matrix(rows, bias)
    return matrix(nn.functional.pad(rows, (0, 0, 0, -len(rows) % ROW_UNIT)), bias)[: len(rows)]


class _PackedWeight(Derived):
    """A weight laid out for fast products."""

    def matrix(self, weight: Tensor) -> _Matrix:
        with self.renewal([weight]) as is_stale:
            if is_stale:
                self._matrix = _Matrix(weight.detach())
            return self._matrix


class PackedLinear(nn.Linear):
    """A linear layer that multiplies by a packed copy of its weight where it may."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self._packed = _PackedWeight()

    def forward(self, inputs: Tensor) -> Tensor:
        if not runs_packed(self, inputs):
            return super().forward(inputs)
        return _multiply_many(self._packed.matrix(self.weight), inputs, self.bias.detach())


class LayerWeights(NamedTuple):
    """The parameters of an LSTM layer."""

    inputs: Tensor  # (4M, P)
    bias: Tensor  # (4M,)
    recurrent: Tensor  # (4M, P)
    projection: Tensor  # (P, M)


def _with_logistic_gates(weights: LayerWeights) -> LayerWeights:
    """Copies of the weights for which the logistic function serves all gates and the cell.

    It is several times cheaper than tanh, and tanh(x) = 2 sigmoid(2x) - 1: the rows of gate j are doubled, and so is
    the projection, for the tanh of the cell. Doubling is exact in floating point.
    """
    copies = LayerWeights(*(tensor.detach().clone() for tensor in weights))
    for tensor in (copies.inputs, copies.bias, copies.recurrent):
        tensor.chunk(4)[1].mul_(2)
    copies.bias.chunk(4)[2].add_(FORGET_BIAS)
    copies.projection.mul_(2)
    return copies


def _logistic_step(gates: Tensor, doubled: Tensor, cell_bound: float) -> Tensor:
    """Updates twice the memory cell, in place; returns half of sigmoid(o) * tanh(c)."""
    i, j, f, o = gates.sigmoid_().chunk(4, dim=-1)
    doubled.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2).clamp_(-cell_bound, cell_bound)
    return torch.sigmoid(doubled).sub_(0.5).mul_(o)


def _bounds(cell_clip: float | None, projection_clip: float | None) -> tuple[float, float]:
    """The clips of twice the cell, and of the output."""
    return math.inf if cell_clip is None else 2 * cell_clip, math.inf if projection_clip is None else projection_clip


class PackedLayer(Derived):
    """An LSTM layer's weights laid out for `packed_recurrence`."""

    def refresh(self, weights: LayerWeights) -> None:
        """Forgets what was made of other weights than these."""
        with self.renewal(weights) as is_stale:
            if is_stale:
                copies = _with_logistic_gates(weights)
                self.bias = copies.bias
                self.inputs = _Matrix(copies.inputs)
                self.recurrent = _Matrix(copies.recurrent)
                self.projection = _Matrix(copies.projection)


def packed_recurrence(
    layer: PackedLayer,
    inputs: Tensor,
    index: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    batch_sizes: Sequence[int],
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer without gradients. Word k is `inputs[k]`, or `inputs[index[k]]`, so that words that recur in a batch
    have their gates computed once.
    """
    cell_bound, output_bound = _bounds(cell_clip, projection_clip)
    words = len(inputs) if index is None else len(index)
    outputs = inputs.new_empty(words, hidden.shape[1])
    final_hidden = hidden.clone()
    doubled_cells = cell * 2  # all sentences'; `doubled` is the part still read, so that each keeps its last state
    doubled = doubled_cells
    if index is not None and len(inputs) > WORDS_AT_ONCE:
        inputs, index = inputs[index], None
    gates_of_inputs = _multiply_many(layer.inputs, inputs, layer.bias) if index is not None else inputs
    block, block_end = 0, 0  # the words whose gates are at hand, without an index
    for start, end in steps_of(batch_sizes):
        size = end - start
        if size < len(doubled):
            final_hidden[size : len(doubled)] = hidden[size:]
            hidden, doubled = hidden[:size], doubled[:size]
        if index is not None:
            addend = gates_of_inputs.index_select(0, index[start:end])
        else:
            if end > block_end:
                block, block_end = start, min(max(end, start + WORDS_AT_ONCE), words)
                gates_of_inputs = _multiply_many(layer.inputs, inputs[block:block_end], layer.bias)
            addend = gates_of_inputs[start - block : end - block]
        squashed = _logistic_step(layer.recurrent(hidden, addend), doubled, cell_bound)
        hidden = torch.clamp(layer.projection(squashed), -output_bound, output_bound, out=outputs[start:end])
    final_hidden[: len(doubled)] = hidden
    return outputs, final_hidden, doubled_cells.div_(2)


class _Kernel(NamedTuple):
    """What `kernel_elmo` offers."""

    tile: int
    in_tiles: Callable[[Tensor], numpy.ndarray]
    read_sentence: Callable[..., None]


@functools.cache
def _compiled_kernel() -> _Kernel | None:
    """The recurrence that numba compiles, where numba is installed and has a folder to keep it in."""
    try:
        from .kernel_elmo import TILE, in_tiles, read_sentence
    except (ImportError, RuntimeError):
        return None
    return _Kernel(TILE, in_tiles, read_sentence)


def runs_compiled(weights: LayerWeights) -> bool:
    """Whether `compiled_recurrence` can and should be used for a layer of these sizes."""
    kernel = _compiled_kernel()
    if kernel is None or any(size % kernel.tile for size in weights.projection.shape):
        return False
    return weights.recurrent.numel() + weights.projection.numel() <= CACHED_WEIGHTS


class CompiledLayer(Derived):
    """An LSTM layer's weights laid out for `compiled_recurrence`."""

    def refresh(self, weights: LayerWeights) -> None:
        """Forgets what was made of other weights than these."""
        with self.renewal(weights) as is_stale:
            if is_stale:
                kernel = _compiled_kernel()
                assert kernel is not None
                copies = _with_logistic_gates(weights)
                self.bias = copies.bias
                self.inputs = _Matrix(copies.inputs)
                self.recurrent = kernel.in_tiles(copies.recurrent)
                self.projection = kernel.in_tiles(copies.projection)


def compiled_recurrence(
    layer: CompiledLayer,
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer over one sentence (T, P), without gradients and outside Python."""
    kernel = _compiled_kernel()
    assert kernel is not None
    bounds = [numpy.float32(bound) for bound in _bounds(cell_clip, projection_clip)]
    doubled = cell * 2
    outputs = inputs.new_empty(len(inputs), hidden.shape[1])
    for start in range(0, len(inputs), WORDS_AT_ONCE):
        gates = _multiply_many(layer.inputs, inputs[start : start + WORDS_AT_ONCE], layer.bias)
        arrays = (tensor.numpy() for tensor in (hidden[0], doubled[0], outputs[start : start + len(gates)]))
        kernel.read_sentence(gates.numpy(), layer.recurrent, layer.projection, *arrays, *bounds)
        hidden = outputs[start + len(gates) - 1 :][:1]
    return outputs, hidden.clone(), doubled.div_(2)


class PairedLayer(Derived):
    """The same layer of both directions, for `paired_recurrence`."""

    def refresh(self, forward: LayerWeights, backward: LayerWeights) -> None:
        """Forgets what was made of other weights than these."""
        with self.renewal((*forward, *backward)) as is_stale:
            if is_stale:
                copies = [_with_logistic_gates(weights) for weights in (forward, backward)]
                self.bias = [weights.bias for weights in copies]
                self.inputs = [_Matrix(weights.inputs) for weights in copies]
                exceeds_cache = forward.recurrent.numel() + forward.projection.numel() > CACHED_WEIGHTS
                fits = not any(size % COLUMN_BLOCKS for size in forward.projection.shape)
                blocks = COLUMN_BLOCKS if exceeds_cache and fits else 1
                # Whose steps are taken together: both directions', or each one's by itself.
                self.groups = [slice(0, 2)] if blocks == 1 else [slice(0, 1), slice(1, 2)]
                self.recurrent = [
                    _in_blocks([copy.recurrent for copy in copies[group]], blocks) for group in self.groups
                ]
                self.projection = [
                    _in_blocks([copy.projection for copy in copies[group]], blocks) for group in self.groups
                ]


def _in_blocks(weights: Sequence[Tensor], blocks: int) -> Tensor:
    """(N, K) of each direction -> (directions * blocks, K, N / blocks)."""
    return torch.cat([weight.unflatten(0, (blocks, -1)) for weight in weights]).transpose(1, 2).contiguous()


def paired_recurrence(
    layer: PairedLayer, inputs: Tensor, hidden: Tensor, cell: Tensor, clips: tuple[float | None, float | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Both directions of one sentence, without gradients.

    Small layers take a step of both directions in one product. Large ones read one direction after the other, so that
    a good part of its weights is still in the cache at the next step, in blocks that the cores share among them.

    inputs (2, T, P), the second in reverse, hidden (2, 1, P), cell (2, 1, M) -> outputs (2, T, P), final states.
    """
    cell_bound, output_bound = _bounds(*clips)
    steps = inputs.shape[1]
    outputs = inputs.new_empty(steps, *hidden.shape)  # (T, 2, 1, P)
    doubled_cells = cell * 2
    final_hidden = hidden.clone()
    for group, recurrent, projection in zip(layer.groups, layer.recurrent, layer.projection, strict=True):
        hidden, doubled = final_hidden[group], doubled_cells[group]
        for start in range(0, steps, WORDS_AT_ONCE):
            words = inputs[group, start : start + WORDS_AT_ONCE]
            gates = torch.stack(
                [
                    _multiply_many(matrix, of_direction, bias)
                    for matrix, of_direction, bias in zip(layer.inputs[group], words, layer.bias[group], strict=True)
                ],
                dim=1,
            )  # (T, directions, 4M)
            of_each_step = gates.view(len(gates), len(recurrent), 1, -1).unbind()
            for gates_of_inputs, output in zip(of_each_step, outputs[start:, group].unbind(), strict=False):
                product = torch.baddbmm(gates_of_inputs, hidden.expand(len(recurrent), -1, -1), recurrent)
                squashed = _logistic_step(product.view(len(hidden), 1, -1), doubled, cell_bound)
                projected = torch.bmm(squashed.expand(len(projection), -1, -1), projection).view_as(hidden)
                hidden = torch.clamp(projected, -output_bound, output_bound, out=output)
        final_hidden[group] = hidden
    return outputs[:, :, 0].transpose(0, 1), final_hidden, doubled_cells.div_(2)
