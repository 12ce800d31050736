"""The recurrence of an LSTM layer with projection and clips, over packed words.

`plain_recurrence` is the definition: it calls the layer's own modules at every step. `trained_recurrence` computes the
same from their weights, with a hand-written gradient: it keeps only the gates and cells for the backward pass and
computes each weight's gradient in one product over all steps.

Shapes: N packed words, S sentences, P projection, M memory cells. Gates are in the order i, j, f, o.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# The original adds 1 to the forget gate at run time; the stored bias lacks it.
FORGET_BIAS = 1.0
# Columns that the compiled recurrence of `kernel_elmo` sums together.
TILE = 64

# Derivatives in one pass: gradient * (1 - y) * y, gradient * (1 - y * y), and the gradient where x was not clipped.
through_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
through_tanh = torch.ops.aten.tanh_backward.grad_input
through_clip = torch.ops.aten.hardtanh_backward.grad_input

States = tuple[Tensor, Tensor]


def plain_recurrence(
    input_gates: Tensor,
    hidden: Tensor,
    cell: Tensor,
    recurrent: Callable[[Tensor], Tensor],
    projection: Callable[[Tensor], Tensor] | None,
    batch_sizes: Sequence[int],
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute outputs (N, P) and the final states from input_gates (N, 4M), hidden (S, P) and cell (S, M).

    The memory cell c = sigmoid(f + 1) * c + sigmoid(i) * tanh(j) is clipped. The output is the projection of
    sigmoid(o) * tanh(c), clipped too; it is also the recurrent state. Without a projection P is M, as in the task
    models. Products take the dtype of the gates, everything else that of the cell.
    """
    outputs: list[Tensor] = []
    ended: list[States] = []  # the states of sentences that have ended, the shortest sentences first
    for step_gates in input_gates.split(list(batch_sizes)):
        size = len(step_gates)
        if size < len(hidden):
            ended.append((hidden[size:], cell[size:]))
            hidden, cell = hidden[:size], cell[:size]
        gates = step_gates + recurrent(hidden.to(input_gates.dtype))
        i, j, f, o = gates.to(cell.dtype).chunk(4, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * cell + torch.sigmoid(i) * torch.tanh(j)
        if cell_clip is not None:
            cell = cell.clamp(-cell_clip, cell_clip)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if projection is not None:
            hidden = projection(hidden.to(input_gates.dtype)).to(cell.dtype)
        if projection_clip is not None:
            hidden = hidden.clamp(-projection_clip, projection_clip)
        outputs.append(hidden)
    ended.append((hidden, cell))
    final_hidden = torch.cat([states[0] for states in reversed(ended)])
    final_cell = torch.cat([states[1] for states in reversed(ended)])
    return torch.cat([hidden[:0], *outputs]), final_hidden, final_cell


def trained_recurrence(
    input_gates: Tensor,
    hidden: Tensor,
    cell: Tensor,
    recurrent: Tensor,
    projection: Tensor | None,
    batch_sizes: Sequence[int],
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `plain_recurrence` from the weights themselves, with less time and memory spent on gradients.

    Products are in autocast's dtype, or the weights'. Everything else is in float32 at least: in 16 bits too much of
    2 sigmoid(2x) - 1 would be lost.
    """
    dtype = dtype_of_products(recurrent)
    exact = torch.promote_types(recurrent.dtype, torch.float32)
    with torch.autocast(recurrent.device.type, enabled=False):
        return _Recurrence.apply(
            input_gates,
            hidden.to(exact),
            cell.to(exact),
            recurrent.to(exact),
            None if projection is None else projection.to(exact),
            batch_sizes,
            cell_clip,
            projection_clip,
            dtype,
        )


class _Recurrence(torch.autograd.Function):
    """`plain_recurrence` with its backward pass written out.

    A step has as few operations as possible: two threads, one per direction, wait for each other's interpreter lock
    at every one. Whatever does not depend on another step is computed for all words at once, before or after the loop.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input_gates: Tensor,
        hidden: Tensor,
        cell: Tensor,
        recurrent: Tensor,
        projection: Tensor | None,
        batch_sizes: Sequence[int],
        cell_clip: float | None,
        projection_clip: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        words, cells = input_gates.shape[0], cell.shape[1]
        # The logistic function serves all gates, since tanh(x) = 2 sigmoid(2x) - 1.
        gates, weight = input_gates.to(cell.dtype, copy=True), recurrent.to(dtype, copy=True)
        by_gate = gates.unflatten(1, (4, cells))
        by_gate[:, 1].mul_(2)
        by_gate[:, 2].add_(FORGET_BIAS)
        weight[cells : 2 * cells].mul_(2)
        memory = gates.new_empty(words, cells)
        squashed = gates.new_empty(words, cells)  # tanh of the memory
        outputs = gates.new_empty(words, hidden.shape[1])
        first_hidden, first_cell = hidden, cell
        final_hidden, final_cell = hidden.clone(), cell.clone()
        recurrent_t = weight.T
        projection_t = None if projection is None else projection.to(dtype).T
        steps = split_steps(batch_sizes, gates, *by_gate.unbind(1), memory, squashed, outputs)
        for step_gates, i, j, f, o, step_cell, step_squashed, output in steps:
            size = len(output)
            if size < len(hidden):  # sentences have ended
                final_hidden[size : len(hidden)], final_cell[size : len(cell)] = hidden[size:], cell[size:]
                hidden, cell = hidden[:size], cell[:size]
            add_product(hidden, recurrent_t, step_gates).sigmoid_()
            cell = torch.mul(f, cell, out=step_cell).addcmul_(i, j, value=2).sub_(i)
            if cell_clip is not None:
                cell.clamp_(-cell_clip, cell_clip)
            torch.mul(cell, 2, out=step_squashed).sigmoid_().mul_(2).sub_(1)
            if projection_t is None:
                hidden = torch.mul(o, step_squashed, out=output)
            else:
                hidden = product(o * step_squashed, projection_t, output)
            if projection_clip is not None:
                hidden.clamp_(-projection_clip, projection_clip)
        final_hidden[: len(hidden)], final_cell[: len(cell)] = hidden, cell
        by_gate[:, 1].mul_(2).sub_(1)
        ctx.save_for_backward(gates, memory, squashed, outputs, first_hidden, first_cell, recurrent, projection)
        ctx.batch_sizes, ctx.cell_clip, ctx.projection_clip, ctx.dtype = batch_sizes, cell_clip, projection_clip, dtype
        ctx.input_dtype = input_gates.dtype
        return outputs, final_hidden, final_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        gates, memory, squashed, outputs, first_hidden, first_cell, recurrent, projection = ctx.saved_tensors
        before = states_before(first_cell, memory, ctx.batch_sizes)
        i, j, f, o = gates.chunk(4, dim=1)
        # The derivatives of the gates, up to the factors that only the loop knows: the derivative by the memory for i,
        # j and f, by the output for o.
        d_gates = torch.empty_like(gates)
        d_i, d_j, d_f, d_o = d_gates.chunk(4, dim=1)
        through_sigmoid(j, i, grad_input=d_i)
        through_tanh(i, j, grad_input=d_j)
        through_sigmoid(before, f, grad_input=d_f)
        through_sigmoid(squashed, o, grad_input=d_o)
        through_output = torch.empty_like(memory)  # from the output to the memory
        through_tanh(o, squashed, grad_input=through_output)
        d_ijf = d_gates.unflatten(1, (4, -1))[:, :3]
        d_projected = torch.empty_like(outputs)  # at the projection's output, before the clip
        d_hidden, d_cell = d_hidden.clone(), d_cell.clone()
        step_hidden, step_cell = d_hidden[:0], d_cell[:0]  # of the sentences that have begun, seen from the end
        d_squashed_buffer = d_hidden if projection is None else torch.empty_like(first_cell)
        recurrent = recurrent.to(ctx.dtype)
        projection = None if projection is None else projection.to(ctx.dtype)
        # What products read, and the gradient of the input gates if these are in 16 bits.
        rounded = d_gates if gates.dtype == ctx.dtype else torch.empty_like(gates, dtype=ctx.dtype)
        of_steps = (d_outputs, outputs, memory, d_projected, d_gates, rounded, d_ijf, d_o, through_output, f)
        steps = split_steps(ctx.batch_sizes, *of_steps)[::-1]
        for d_output, output, step_cells, d_step, step_gates, step_rounded, step_ijf, step_o, through, forget in steps:
            size = len(d_step)
            if size > len(step_hidden):
                step_hidden, step_cell = d_hidden[:size], d_cell[:size]
            torch.add(step_hidden, d_output, out=d_step)
            if ctx.projection_clip is not None:
                through_clip(d_step, output, -ctx.projection_clip, ctx.projection_clip, grad_input=d_step)
            d_squashed = d_step if projection is None else product(d_step, projection, d_squashed_buffer[:size])
            step_o.mul_(d_squashed)
            d_memory = torch.addcmul(step_cell, d_squashed, through)
            if ctx.cell_clip is not None:
                through_clip(d_memory, step_cells, -ctx.cell_clip, ctx.cell_clip, grad_input=d_memory)
            step_ijf.mul_(d_memory[:, None])
            torch.mul(d_memory, forget, out=step_cell)
            if rounded is not d_gates:
                step_rounded.copy_(step_gates)
            product(step_rounded, recurrent, step_hidden)
        d_recurrent = d_projection = None
        if ctx.needs_input_grad[3] and len(gates):
            states = states_before(first_hidden, outputs, ctx.batch_sizes)
            d_recurrent = (rounded.T @ states.to(ctx.dtype)).to(gates.dtype)
        if projection is not None and ctx.needs_input_grad[4] and len(gates):
            d_projection = (d_projected.T.to(ctx.dtype) @ (o * squashed).to(ctx.dtype)).to(gates.dtype)
        d_input_gates = rounded if ctx.input_dtype == ctx.dtype else d_gates
        return d_input_gates, d_hidden, d_cell, d_recurrent, d_projection, None, None, None, None


def split_steps(batch_sizes: Sequence[int], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Split tensors over packed words into their parts at every step."""
    sizes = list(batch_sizes)
    return list(zip(*(tensor.split(sizes) for tensor in tensors), strict=True))


def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write left @ right to `out`, computed in the dtype of `right`."""
    if out.dtype == right.dtype:
        return torch.mm(left, right, out=out)
    return out.copy_(left.to(right.dtype) @ right)


def add_product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Add left @ right to `out`, computed in the dtype of `right`."""
    if out.dtype == right.dtype:
        return out.addmm_(left, right)
    return out.add_(left.to(right.dtype) @ right)


def states_before(first: Tensor, after: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """Return the state each step starts from (N, size), given the first one and those that the steps end with."""
    sources = [first, *after.split(list(batch_sizes))]
    parts = [source[:size] for source, size in zip(sources, batch_sizes, strict=False)]
    return torch.cat([after[:0], *parts])


def dtype_of_products(weight: Tensor) -> torch.dtype:
    """Return autocast's dtype where it is on and the weight is float32, the only one it changes; else the weight's."""
    device = weight.device.type
    if weight.dtype == torch.float32 and torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype
