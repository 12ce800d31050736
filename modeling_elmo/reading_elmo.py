"""The reader of a paragraph that finds the answer to a question in it (Clark and Gardner, 2018).

Words come without sentence markers and from the left, as in `encoders_elmo`.

Shapes: B batch, T words of the context, S words of the question, D features of a word, H units of a GRU, N packed
words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .crf_elmo import IMPOSSIBLE
from .encoders_elmo import WordDropout, WordLstm, Words, attend, together
from .layers_elmo import GlorotLinear
from .recurrence_elmo import in_steps, states_before


class _GruRecurrence(torch.autograd.Function):
    """A GRU over packed words, each step in a few operations of both passes.

    r, z, n are the gates of the inputs, in this order, and u those of the state, u = U h:
    h' = (1 - z) n + z h with r = sigmoid(r + u_r), z = sigmoid(z + u_z) and n = tanh(n + r u_n).
    """

    @staticmethod
    def forward(ctx: Any, gates_of_inputs: Tensor, recurrent: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        """gates_of_inputs (N, 3H), recurrent (3H, H) -> outputs (N, H). Sentences start from zeros."""
        units = recurrent.shape[1]
        gates = gates_of_inputs.clone()  # after their activations, in the end
        of_state = torch.empty_like(gates)
        outputs = gates.new_empty(len(gates), units)
        hidden = gates.new_zeros(batch_sizes[0] if batch_sizes else 0, units)
        transposed = recurrent.T
        parts = (
            tensor[:, columns]
            for tensor in (gates, of_state)
            for columns in (slice(2 * units), slice(2 * units, None))
        )
        for rz, n, u_rz, u_n, r, z, product, output in zip(
            *in_steps(batch_sizes, *parts, *gates.chunk(3, dim=1)[:2], of_state, outputs), strict=True
        ):
            if len(output) < len(hidden):
                hidden = hidden[: len(output)]
            torch.mm(hidden, transposed, out=product)
            rz.add_(u_rz).sigmoid_()
            n.addcmul_(r, u_n).tanh_()
            hidden = torch.lerp(n, hidden, z, out=output)
        ctx.save_for_backward(gates, of_state, outputs, recurrent)
        ctx.batch_sizes = batch_sizes
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, of_state, outputs, recurrent = ctx.saved_tensors
        units, sizes = recurrent.shape[1], ctx.batch_sizes
        first = outputs.new_zeros(sizes[0] if sizes else 0, units)
        before = states_before(first, outputs, sizes)
        r, z, n = gates.chunk(3, dim=1)
        # How much a change of h' changes what made it: all but that change itself is known before the loop.
        of_n = (1 - z) * (1 - n.square())
        slopes = torch.cat(
            [of_n * of_state[:, 2 * units :] * r * (1 - r), (before - n) * z * (1 - z), of_n * r], dim=1
        )
        changes = torch.empty_like(outputs)  # of h' at every step
        d_state = torch.empty_like(gates)  # of U h
        d_hidden, d_begun = torch.zeros_like(first), first[:0]  # of the sentences that have begun, from the end
        by_gate = (tensor.unflatten(1, (3, units)) for tensor in (slopes, d_state))
        steps = in_steps(sizes, d_outputs, changes, changes[:, None], *by_gate, d_state, z)
        for d_output, change, same_change, slope, d_by_gate, d_of_state, kept in reversed(
            list(zip(*steps, strict=True))
        ):
            if len(change) > len(d_begun):
                d_begun = d_hidden[: len(change)]
            torch.add(d_begun, d_output, out=change)
            torch.mul(same_change, slope, out=d_by_gate)
            torch.addmm(change * kept, d_of_state, recurrent, out=d_begun)
        d_gates = torch.cat([d_state[:, : 2 * units], changes * of_n], dim=1)
        return d_gates, d_state.T @ before, None


class TaskGruLayer(nn.Module):
    """One GRU over packed words in one direction: (N, D) -> (N, H)."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = GlorotLinear(inputs, 3 * units, fan_in=inputs, bias=True)
        self.recurrent_gates = GlorotLinear(units, 3 * units, fan_in=units)

    def forward(self, words: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        weight = self.recurrent_gates.weight
        # Autocast has the gates in another type; the recurrence is in that of its weight.
        return _GruRecurrence.apply(self.input_gates(words).to(weight.dtype), weight, batch_sizes)


class WordGru(WordLstm):
    """GRUs in both directions over the real words: (B, T, D) -> (B, T, 2H)."""

    layer = TaskGruLayer


class Similarity(nn.Module):
    """How much each word of a text has to do with each of another: (B, T, D), (B, S, D) -> (B, T, S).

    w_2 · y + w_3 · (x * y), of the trilinear w · [x ; y ; x * y]. What is left out, w_1 · x, is the same for all y, so
    that no softmax over them sees it. It starts out as the dot product, in which like words attend to each other: from
    random weights a few thousand questions are slow to teach that.
    """

    def __init__(self, units: int, elmo: int = 0) -> None:
        super().__init__()
        self.units, self.elmo = units, elmo
        self.second = nn.Linear(units + elmo, 1, bias=False)
        self.product = nn.Parameter(self.initial_product())

    def initial_product(self) -> Tensor:
        """w_3: 1 for a GRU's features, which are below 1; ELMo's are not, and many."""
        return torch.cat([torch.ones(self.units), torch.full((self.elmo,), max(self.elmo, 1) ** -0.5)])

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        # The weights go to the second text, which is the shorter one where the two differ.
        return self.second(second).transpose(1, 2) + first @ (second * self.product).transpose(1, 2)


class ParagraphReader(nn.Module):
    """Where an answer begins and ends, as scores of the context's words.

    A GRU over question and context, attention in both directions between them (BiDAF), a linear layer, a GRU and the
    context's attention to itself, added to what it read, a GRU for the beginning and one more for the end. ELMo joins
    the first GRU's output, so that the attention sees it (Peters et al., 2018).
    """

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float) -> None:
        super().__init__()
        self.encoder = WordGru(inputs, units)
        size = self.encoder.size + elmo
        self.similarity = Similarity(self.encoder.size, elmo)
        self.relevance = nn.Linear(size, 1, bias=False)  # w_1 of the similarity: it matters to the context alone
        self.merge = nn.Linear(4 * size, 2 * units)
        self.modeller = WordGru(2 * units, units)
        self.self_similarity = Similarity(2 * units)
        self.self_merge = nn.Linear(6 * units, 2 * units)
        # A bias would add the same to every word's score, which no softmax sees.
        self.start_encoder = WordGru(2 * units, units)
        self.start = nn.Linear(2 * units, 1, bias=False)
        self.end_encoder = WordGru(4 * units, units)
        self.end = nn.Linear(2 * units, 1, bias=False)
        self.dropout = WordDropout(dropout)

    def forward(self, question: Words, context: Words) -> tuple[Tensor, Tensor]:
        """-> beginnings (B, T), ends (B, T), `IMPOSSIBLE` where there is no word."""
        # Both texts go through the GRU as one batch, which takes fewer steps.
        mask = together(question.mask[..., None], context.mask[..., None])[..., 0]
        encoded = self.encoder(self.dropout(together(question.features, context.features)), mask)
        if question.elmo is not None and context.elmo is not None:
            encoded = torch.cat([encoded, together(question.elmo, context.elmo)], dim=-1)
        asked, told = self.dropout(encoded).chunk(2)
        merged = self._attend_to_question(
            asked[:, : question.mask.shape[1]], told[:, : context.mask.shape[1]], question, context
        )
        read = merged + self._attend_to_itself(merged, context.mask)
        starts = self.start_encoder(self.dropout(read), context.mask)
        ends = self.end_encoder(self.dropout(torch.cat([read, starts], dim=-1)), context.mask)
        return tuple(
            layer(found).squeeze(-1).float().masked_fill(~context.mask, IMPOSSIBLE)
            for layer, found in ((self.start, starts), (self.end, ends))
        )

    def _attend_to_question(self, asked: Tensor, told: Tensor, question: Words, context: Words) -> Tensor:
        """(B, S, D), (B, T, D) -> (B, T, 2H)"""
        scores = self.similarity(told, asked) + self.relevance(told)  # (B, T, S)
        found = attend(scores, question.mask) @ asked
        # One word more that is none, so that there is a largest score of a question without words.
        known = F.pad(scores.masked_fill(~question.mask[:, None], IMPOSSIBLE), (0, 1), value=IMPOSSIBLE)
        asked_for = attend(known.amax(-1)[:, None], context.mask) @ told  # (B, 1, D)
        joined = torch.cat([told, found, told * found, asked_for * found], dim=-1)
        return F.relu(self.merge(joined))

    def _attend_to_itself(self, merged: Tensor, mask: Tensor) -> Tensor:
        """Every word of the context with the others that it attends to: (B, T, 2H)"""
        modelled = self.dropout(self.modeller(self.dropout(merged), mask))
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        scores = self.self_similarity(modelled, modelled)
        scores = scores.masked_fill(itself, torch.finfo(scores.dtype).min)
        found = attend(scores, mask).masked_fill(itself, 0.0) @ modelled  # a single word has no others
        return F.relu(self.self_merge(torch.cat([modelled, found, modelled * found], dim=-1)))


def best_spans(starts: Tensor, ends: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of scores (B, T): first and last word of the best span of at most so many words, and its score; each (B,).

    A span's score is that of its beginning and of its end together. T is not 0.
    """
    # (B, T, longest): where each beginning may end
    reachable = F.pad(ends, (0, longest - 1), value=2 * IMPOSSIBLE).unfold(1, longest, 1)
    score, index = (starts[..., None] + reachable).flatten(1).max(1)
    first = index // longest
    return first, first + index % longest, score


def windows_of(words: int, longest: int, overlap: int) -> list[tuple[int, int]]:
    """First word and one past the last of the windows, each `overlap` words into the one before, that cover a text."""
    return [(first, min(first + longest, words)) for first in range(0, max(words - overlap, 1), longest - overlap)]


__all__ = ["ParagraphReader", "Similarity", "WordGru", "best_spans", "windows_of"]
