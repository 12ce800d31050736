"""Semantic role labeling: one label per word and predicate, by alternating highway LSTMs (He et al., 2017).

Shapes: B batch, T positions of the input, T' words of a sentence, N packed words, S sentences, D features, H units.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from .bilm_elmo import eval_mode, pack
from .configuration_elmo import ElmoConfig
from .heads_elmo import (
    IGNORED,
    ElmoTaskModel,
    Words,
    can_run_in_parallel,
    check_labels,
    mean_loss,
    run_in_two_threads,
    share_of_step,
)
from .layers_elmo import dropout_noise, is_plain
from .recurrence_elmo import FORGET_BIAS, split_steps, states_before
from .tagging_elmo import ElmoTokenClassifierOutput, best_labels, restrict_to_scheme, without_transitions
from .tokenization_elmo import ElmoTokenizer

SRL_DIM = 300
SRL_LAYERS = 8
# Size of what marks a sentence's predicate (He et al., 2017).
PREDICATE_DIM = 100
GATES = 5


def plain_highway_recurrence(
    gates_of_inputs: Tensor,
    around: Tensor,
    recurrent_gates: Callable[[Tensor], Tensor],
    kept: Tensor | None,
    batch_sizes: Sequence[int],
) -> Tensor:
    """Compute outputs (N, H) of gates_of_inputs (N, 5H), around (N, H), recurrent_gates H -> 5H and kept (S, H).

    `around` is what bypasses the LSTM. `kept` is 0 for the units of a sentence that dropout removes.
    """
    hidden = cell = around.new_zeros(max(batch_sizes, default=0), around.shape[1])
    outputs = [around[:0]]
    for step_gates, bypass in split_steps(batch_sizes, gates_of_inputs, around):
        size = len(bypass)
        gates = step_gates + recurrent_gates(hidden[:size])
        j, i, f, o, r = gates.chunk(GATES, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * cell[:size] + torch.sigmoid(i) * torch.tanh(j)
        hidden = torch.lerp(bypass, torch.sigmoid(o) * torch.tanh(cell), torch.sigmoid(r))
        if kept is not None:
            hidden = hidden * kept[:size]
        outputs.append(hidden)
    return torch.cat(outputs)


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
        memory = torch.empty_like(around)
        squashed = torch.empty_like(around)  # tanh of the memory
        outputs = torch.empty_like(around)
        transposed = recurrent.T
        hidden = cell = around.new_zeros(max(batch_sizes, default=0), units)
        steps = split_steps(batch_sizes, gates, around, memory, squashed, outputs)
        for step_gates, bypass, new_cell, new_squashed, output in steps:
            size = len(output)
            step_gates.addmm_(hidden[:size], transposed)
            step_gates[:, :units].tanh_()
            step_gates[:, units:].sigmoid_()
            j, i, f, o, r = step_gates.chunk(GATES, dim=1)
            torch.mul(i, j, out=new_cell)
            new_cell.addcmul_(f, cell[:size])
            torch.tanh(new_cell, out=new_squashed)
            torch.lerp(bypass, o * new_squashed, r, out=output)
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
        zeros = memory.new_zeros(max(sizes, default=0), units)  # what the first step starts from
        cells_before = states_before(zeros, memory, sizes)
        # The derivatives of the gates, up to the factors that only the loop knows: the derivative by the memory for j,
        # i and f, by the output for o and r.
        d_gates = torch.empty_like(gates)
        by_gate = d_gates.unflatten(1, (GATES, units))
        torch.stack([i * (1 - j * j), i * j * (1 - i), cells_before * f * (1 - f)], dim=1, out=by_gate[:, :3])
        torch.stack([r * hidden * (1 - o), (hidden - around) * r * (1 - r)], dim=1, out=by_gate[:, 3:])
        through_output = r * o * (1 - squashed * squashed)  # from the output to the memory
        d_outputs = d_outputs.clone()
        next_gates, next_memory, next_forget = gates[:0], zeros[:0], zeros[:0]  # of the step after this one
        steps = split_steps(sizes, d_outputs, d_gates, by_gate[:, :3], by_gate[:, 3:], through_output, f)
        for d_output, step_gates, of_memory, of_output, through, forget in reversed(steps):
            later = len(next_gates)
            d_output[:later].addmm_(next_gates, recurrent)
            if kept is not None:
                d_output.mul_(kept[: len(d_output)])
            of_output.mul_(d_output[:, None])
            d_memory = d_output * through
            d_memory[:later].addcmul_(next_memory, next_forget)
            of_memory.mul_(d_memory[:, None])
            next_gates, next_memory, next_forget = step_gates, d_memory, forget
        d_recurrent = d_gates.T @ states_before(zeros, outputs, sizes)
        return d_gates, d_outputs * (1 - r), d_recurrent, None, None


class OrthogonalLinear(nn.Linear):
    """A matrix of an LSTM, each gate's part of it orthonormal at the beginning."""

    def __init__(self, in_features: int, out_features: int, blocks: int, bias: bool = False) -> None:
        self.blocks = blocks
        super().__init__(in_features, out_features, bias=bias)

    def set_initial_weights(self) -> None:
        parts = [nn.init.orthogonal_(torch.empty_like(part)) for part in self.weight.chunk(self.blocks)]
        init.copy_(self.weight, torch.cat(parts))


class HighwayLstmLayer(nn.Module):
    """One layer over packed words in one direction: (N, D) -> (N, H). Forget gates start out open, by a bias of 1."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = OrthogonalLinear(inputs, GATES * units, GATES, bias=True)
        self.recurrent_gates = OrthogonalLinear(units, GATES * units, GATES)
        self.around = OrthogonalLinear(inputs, units, 1)

    def forward(self, words: Tensor, kept: Tensor | None, batch_sizes: list[int]) -> Tensor:
        gates, around = self.input_gates(words), self.around(words)
        if is_plain(self.recurrent_gates) and gates.dtype == self.recurrent_gates.weight.dtype:
            return _HighwayRecurrence.apply(gates, around, self.recurrent_gates.weight, kept, batch_sizes)
        return plain_highway_recurrence(gates, around, self.recurrent_gates, kept, batch_sizes)


class HighwayLstm(nn.Module):
    """Layers over the real words, the first forward, the next backward and so on: (B, T, D) -> (B, T, H)."""

    def __init__(self, inputs: int, units: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = units
        self.dropout = dropout
        sizes = [inputs] + [units] * (layers - 1)
        self.layers = nn.ModuleList(HighwayLstmLayer(size, units) for size in sizes)

    # As in the biLM: a loop over time steps is not for tracing.
    @torch.compiler.disable
    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Each layer waits for the one before it, so what two threads share is the batch, not the directions."""
        kept: Sequence[Tensor | None] = [None] * len(self.layers)
        if self.training and self.dropout:
            noise = dropout_noise((len(self.layers), len(mask), self.size), self.dropout, features)
            kept = noise.unbind()
        if len(mask) < 2 or not can_run_in_parallel(features, self.layers):
            return self._read(features, mask, kept)
        order = mask.sum(1).argsort(descending=True)
        halves = order[::2], order[1::2]  # of like lengths

        def run(side: int, features: Tensor) -> tuple[Tensor]:
            rows = halves[side]
            kept_rows = [None if noise is None else noise[rows] for noise in kept]
            return (self._read(features[rows], mask[rows], kept_rows),)

        sides = run_in_two_threads(run, features, self, self)
        return torch.cat([sides[0][0], sides[1][0]])[torch.cat(halves).argsort()]

    def _read(self, features: Tensor, mask: Tensor, kept: Sequence[Tensor | None]) -> Tensor:
        """Run all layers; `kept` says for each which units (B, H) dropout keeps."""
        packing = pack(mask)
        words = features.flatten(0, 1)[packing.forward_index]
        # From the order of one direction to that of the other, and back: word t becomes word t from the end.
        place = torch.empty(mask.numel(), dtype=torch.long, device=mask.device)
        place[packing.forward_index] = torch.arange(len(words), device=mask.device)
        turn = place[packing.backward_index]
        for number, (layer, noise) in enumerate(zip(self.layers, kept, strict=True)):
            if number:
                words = words[turn]
            if noise is not None:
                noise = noise[packing.order]
            words = layer(words, noise, packing.batch_sizes)
        index = packing.forward_index if len(self.layers) % 2 else packing.backward_index
        encoded = words.new_zeros(mask.numel(), self.size).index_copy(0, index, words)
        return encoded.unflatten(0, mask.shape)


def _predicate_mask(index: Tensor | None, text: Words) -> Tensor:
    """Mark the predicate of each row among its words: (B, T')."""
    rows, length = text.chosen.shape
    if index is None or index.shape != (rows,):
        raise ValueError(f"`predicate_index` must have one position for each of {rows} rows, got {index}")
    positions = torch.arange(length, device=index.device)
    is_predicate = text.chosen & (positions == index[:, None])
    missing = index[~is_predicate.any(1)]
    if len(missing):
        raise ValueError(
            f"`predicate_index` must be positions of words, of which the first is 1; got {int(missing[0])}"
        )
    return text.from_input(is_predicate, False)


def role_spans(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the spans of BIO labels: each role, its first word and one past its last."""
    spans: list[tuple[str, int, int]] = []
    for word, label in enumerate(labels):
        position, _, role = label.partition("-")
        if position == "B":
            spans.append((role, word, word + 1))
        elif position == "I":
            spans[-1] = (role, spans[-1][1], word + 1)
    return spans


@dataclass
class ElmoSemanticRoleLabelerOutput(ElmoTokenClassifierOutput):
    """Output of [`ElmoForSemanticRoleLabeling`], as of a tagger without a CRF; the scheme is BIO."""


class Role(NamedTuple):
    """The words from `start` to before `end`, and their role for the predicate."""

    role: str
    start: int
    end: int
    text: str


class ElmoForSemanticRoleLabeling(ElmoTaskModel):
    """Who did what to whom: the words' roles for one predicate of a sentence, in BIO labels (He et al., 2017)."""

    accepts_loss_kwargs = True

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.predicate_embeddings = nn.Embedding(2, PREDICATE_DIM)
        units, layers = config.head_dim or SRL_DIM, config.head_layers or SRL_LAYERS
        self.encoder = HighwayLstm(self.input_size + PREDICATE_DIM, units, layers, self.head_dropout)
        # Not of the tagger's name: its sizes are others, and folders load through every auto class.
        self.role_classifier = nn.Linear(self.encoder.size + self.elmo_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        predicate_index: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> ElmoSemanticRoleLabelerOutput:
        """Label the words by their roles. See [`ElmoTaskModel`] for the arguments.

        A sentence with several predicates is a row for each. `predicate_index` `(B,)` is where the predicate is in
        each row, `<S>` included: the first word is at 1. The labels are `(B, T)`.
        """
        inputs = (input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, inputs_embeds)
        (text,), layers = self._read(inputs, output_hidden_states, output_attentions)
        is_predicate = _predicate_mask(predicate_index, text)
        indicator = self.predicate_embeddings(is_predicate.long()).to(text.mask.device) * text.mask[..., None]
        encoded = self.encoder(torch.cat([text.features, indicator], dim=-1), text.mask)
        log_p = self.role_classifier(text.join_elmo(encoded)).float().log_softmax(-1).to(text.mask.device)
        loss: Tensor | None = None
        share: Tensor | float = 1.0
        if labels is not None:
            check_labels(labels, self.config.num_labels)
            targets = text.from_input(labels, IGNORED)
            loss = mean_loss(log_p, targets)
            share = share_of_step(targets, num_items_in_batch)
        predictions = None
        if not self.training:
            scores = restrict_to_scheme(without_transitions(log_p), self.config, "BIO")
            best = best_labels(log_p, text.mask, scores)
            predictions = text.to_input(best, IGNORED)
        logits = text.to_input(log_p, 0.0)
        fields = {"logits": logits, "predictions": predictions, "hidden_states": layers}
        return self._output(ElmoSemanticRoleLabelerOutput, loss, share, **fields)

    @torch.no_grad()
    def label(
        self, words: Sequence[str], predicate_index: Sequence[int], tokenizer: ElmoTokenizer
    ) -> list[list[Role]]:
        """Find who did what to whom: for each predicate, the roles of a sentence's parts, its own being `V`.

        The predicates are given by their positions among the words, from 0. Dropout is off even in training mode.
        """
        if isinstance(words, str):
            raise ValueError(f"`words` must be a list of words, got the text {words!r}")
        if not len(predicate_index):
            return []
        for index in predicate_index:
            if not 0 <= index < len(words):
                raise ValueError(f"`predicate_index` must be from 0 to {len(words) - 1}, got {index}")
        inputs = tokenizer([list(words)] * len(predicate_index), is_split_into_words=True, return_tensors="pt")
        inputs["predicate_index"] = torch.tensor(predicate_index) + 1  # after `<S>`
        with eval_mode(self):
            output = self(**inputs.to(self.device), return_dict=True)
        found = []
        for row in output.predictions.tolist():
            labels = [self.config.id2label[number] for number in row if number != IGNORED]
            roles = []
            for role, start, end in role_spans(labels):
                roles.append(Role(role, start, end, " ".join(words[start:end])))
            found.append(roles)
        return found
