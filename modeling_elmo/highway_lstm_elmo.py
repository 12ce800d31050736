"""The interleaved highway LSTM of He et al. (2017): layers that read a sentence forward and backward by turns.

What a layer reads also goes around it: its output is r * h + (1 - r) * W x, where h is the LSTM's and r a gate of its
own. Dropout loses the same units at every word of a sentence (Gal and Ghahramani, 2016), in the state that the next
word's gates read as well as in the output.

Shapes: B batch, T words, N packed words, S sentences, D features of a word, H units. Gates are in the order j, i, f,
o, r: one tanh and four sigmoids, of which the cell's three come first.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .layers_elmo import dropout_noise, pack
from .recurrence_elmo import (
    FORGET_BIAS,
    in_steps,
    side_by_side,
    states_before,
    train_side_by_side,
    trains_side_by_side,
)

GATES = 5


def plain_highway_recurrence(
    gates_of_inputs: Tensor, around: Tensor, recurrent: Tensor, kept: Tensor | None, batch_sizes: Sequence[int]
) -> Tensor:
    """gates_of_inputs (N, 5H), around (N, H), recurrent (5H, H), kept (S, H) -> outputs (N, H).

    `around` is what goes around the LSTM. `kept` is 0 for the units of a sentence that dropout loses.
    """
    hidden = cell = around.new_zeros(batch_sizes[0] if batch_sizes else 0, around.shape[1])
    outputs: list[Tensor] = []
    start = 0
    for size in batch_sizes:
        gates = gates_of_inputs[start : start + size] + hidden[:size] @ recurrent.T
        j, i, f, o, r = gates.chunk(GATES, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * cell[:size] + torch.sigmoid(i) * torch.tanh(j)
        hidden = torch.lerp(around[start : start + size], torch.sigmoid(o) * torch.tanh(cell), torch.sigmoid(r))
        if kept is not None:
            hidden = hidden * kept[:size]
        outputs.append(hidden)
        start += size
    return torch.cat(outputs) if outputs else around


class _HighwayRecurrence(torch.autograd.Function):
    """`plain_highway_recurrence` with its backward pass written out.

    Whatever does not wait for another step is done for all words at once, before or after the loop over steps.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gates_of_inputs: Tensor,
        around: Tensor,
        recurrent: Tensor,
        kept: Tensor | None,
        batch_sizes: list[int],
    ) -> Tensor:
        units = around.shape[1]
        gates = gates_of_inputs.clone()  # after the loop: after their activations
        gates[:, 2 * units : 3 * units] += FORGET_BIAS
        memory, squashed, outputs = (torch.empty_like(around) for _ in range(3))
        transposed = recurrent.T
        hidden = cell = None
        steps = in_steps(batch_sizes, gates, around, memory, squashed, outputs)
        for of_step, carried, new_cell, new_squashed, output in zip(*steps, strict=True):
            size = len(of_step)
            if hidden is not None:
                of_step.addmm_(hidden[:size], transposed)
            of_step[:, :units].tanh_()
            of_step[:, units:].sigmoid_()
            j, i, f, o, r = of_step.chunk(GATES, dim=1)
            torch.mul(i, j, out=new_cell)
            if cell is not None:
                new_cell.addcmul_(f, cell[:size])
            torch.tanh(new_cell, out=new_squashed)
            torch.lerp(carried, o * new_squashed, r, out=output)
            if kept is not None:
                output.mul_(kept[:size])
            hidden, cell = output, new_cell
        ctx.save_for_backward(gates, around, memory, squashed, outputs, recurrent, kept)
        ctx.batch_sizes = batch_sizes
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gates, around, memory, squashed, outputs, recurrent, kept = ctx.saved_tensors
        sizes, units = ctx.batch_sizes, around.shape[1]
        j, i, f, o, r = gates.chunk(GATES, dim=1)
        hidden = o * squashed
        # What the gradients of outputs and of cells are multiplied with, gate by gate.
        of_output = torch.stack([r * hidden * (1 - o), (hidden - around) * r * (1 - r)], dim=1)  # o and r: (N, 2, H)
        first = memory.new_zeros(sizes[0] if sizes else 0, units)
        of_forget = states_before(first, memory, sizes) * f * (1 - f)
        of_cell = torch.stack([i * (1 - j * j), i * j * (1 - i), of_forget], dim=1)
        cell_of_output = r * o * (1 - squashed * squashed)
        d_gates = torch.empty_like(gates).unflatten(1, (GATES, units))
        d_hidden, d_memory = d_outputs.clone(), torch.empty_like(memory)
        parts = d_gates, d_gates[:, :3], d_gates[:, 3:]
        steps = in_steps(sizes, d_hidden, d_memory, *parts, of_output, of_cell, cell_of_output, f)
        later: tuple[Tensor, Tensor, Tensor] | None = None  # of the next step: gradients of gates and cell, and f
        for step in reversed(list(zip(*steps, strict=True))):
            d_output, d_cell, d_all, d_of_cell, d_of_output, output_factor, cell_factor, through, forget = step
            if later is not None:
                d_output[: len(later[0])].addmm_(later[0], recurrent)
            if kept is not None:
                d_output.mul_(kept[: len(d_output)])
            torch.mul(d_output[:, None], output_factor, out=d_of_output)
            torch.mul(d_output, through, out=d_cell)
            if later is not None:
                d_cell[: len(later[1])].addcmul_(later[1], later[2])
            torch.mul(d_cell[:, None], cell_factor, out=d_of_cell)
            later = d_all.flatten(1), d_cell, forget
        d_gates = d_gates.flatten(1)
        d_recurrent = d_gates.T @ states_before(first, outputs, sizes) if ctx.needs_input_grad[2] else None
        return d_gates, d_hidden * (1 - r), d_recurrent, None, None


class OrthogonalLinear(nn.Linear):
    """A matrix of an LSTM, each gate's part of it orthonormal at the beginning."""

    def __init__(self, in_features: int, out_features: int, blocks: int, bias: bool = False) -> None:
        self.blocks = blocks
        super().__init__(in_features, out_features, bias=bias)

    def initial_weight(self) -> Tensor:
        parts = [nn.init.orthogonal_(torch.empty_like(part)) for part in self.weight.chunk(self.blocks)]
        return torch.cat(parts)


class HighwayLstmLayer(nn.Module):
    """One layer over packed words in one direction: (N, D) -> (N, H). Forget gates start out open, by a bias of 1."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = OrthogonalLinear(inputs, GATES * units, GATES, bias=True)
        self.recurrent_gates = OrthogonalLinear(units, GATES * units, GATES)
        self.around = OrthogonalLinear(inputs, units, 1)

    def forward(self, words: Tensor, kept: Tensor | None, batch_sizes: list[int]) -> Tensor:
        gates, weight = self.input_gates(words), self.recurrent_gates.weight
        recurrence = _HighwayRecurrence.apply if gates.dtype == weight.dtype else plain_highway_recurrence
        return recurrence(gates, self.around(words), weight, kept, batch_sizes)


class HighwayLstm(nn.Module):
    """Layers over the real words, the first forward, the next backward and so on: (B, T, D) -> (B, T, H)."""

    def __init__(self, inputs: int, units: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = units
        self.dropout = dropout
        self.layers = nn.ModuleList(HighwayLstmLayer(units if number else inputs, units) for number in range(layers))

    # As in the biLM: a loop over time steps is not for tracing.
    @torch.compiler.disable
    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Each layer waits for the one before it, so what two threads share is the batch, not the directions."""
        kept = None
        if self.training and self.dropout:
            kept = dropout_noise((len(self.layers), len(mask), self.size), self.dropout, features)
        trains = trains_side_by_side(features)
        reads = not torch.is_grad_enabled() and features.device.type == "cpu" and torch.get_num_threads() > 1
        if len(mask) < 2 or not (trains or reads):
            return self._read(mask, kept, features)[0]
        order = mask.sum(1).argsort(descending=True)
        halves = order[::2], order[1::2]  # of like lengths
        first, second = (
            partial(self._read, mask[rows], None if kept is None else kept[:, rows], rows=rows) for rows in halves
        )
        if trains:
            own = list(self.parameters())
            sides: Sequence[tuple[Tensor, ...]] = train_side_by_side(first, second, (features,), (own, own))
        else:
            sides = side_by_side(lambda: first(features), lambda: second(features))
        return torch.cat([sides[0][0], sides[1][0]])[torch.cat(halves).argsort()]

    def _read(self, mask: Tensor, kept: Tensor | None, features: Tensor, rows: Tensor | None = None) -> tuple[Tensor]:
        """All layers, over some rows of the features or all; the mask and what dropout keeps are those rows'."""
        features = features if rows is None else features[rows]
        packing = pack(mask)
        # From the order of one direction to that of the other, and back: word t becomes word t from the end.
        place = torch.empty(mask.numel(), dtype=torch.long, device=mask.device)
        place[packing.forward_index] = torch.arange(len(packing.forward_index), device=mask.device)
        turn = place[packing.backward_index]
        words = features.flatten(0, 1)[packing.forward_index]
        for number, layer in enumerate(self.layers):
            if number:
                words = words[turn]
            words = layer(words, None if kept is None else kept[number][packing.order], packing.batch_sizes)
        index = packing.forward_index if len(self.layers) % 2 else packing.backward_index
        encoded = words.new_zeros(mask.numel(), self.size).index_copy(0, index, words)
        return (encoded.unflatten(0, mask.shape),)


__all__ = ["HighwayLstm", "OrthogonalLinear"]
