"""Semantic role labeling: one label per word and predicate, by alternating highway LSTMs (He et al., 2017).

Shapes: B batch, T positions of the input, T' words of a sentence, N packed words, S sentences, D features, H units.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from .bilm_elmo import eval_mode, pack
from .configuration_elmo import ElmoConfig
from .heads_elmo import IGNORED, ElmoTaskModel, Words, check_labels, word_loss
from .layers_elmo import dropout_noise, is_plain
from .recurrence_elmo import (
    FORGET_BIAS,
    split_steps,
    states_before,
)
from .tagging_elmo import ElmoTokenClassifierOutput, best_labels, restrict_to_scheme, without_transitions
from .threads_elmo import can_train_in_parallel, run_in_parallel, train_in_parallel
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
    hidden = cell = around.new_zeros(batch_sizes[0] if batch_sizes else 0, around.shape[1])
    outputs: list[Tensor] = []
    start = 0
    for size in batch_sizes:
        gates = gates_of_inputs[start : start + size] + recurrent_gates(hidden[:size])
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
        steps = split_steps(batch_sizes, gates, around, memory, squashed, outputs)
        for of_step, carried, new_cell, new_squashed, output in steps:
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
        steps = split_steps(sizes, d_hidden, d_memory, *parts, of_output, of_cell, cell_of_output, f)
        later: tuple[Tensor, Tensor, Tensor] | None = None  # of the next step: gradients of gates and cell, and f
        for step in reversed(steps):
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
        self.layers = nn.ModuleList(HighwayLstmLayer(units if number else inputs, units) for number in range(layers))

    # As in the biLM: a loop over time steps is not for tracing.
    @torch.compiler.disable
    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Each layer waits for the one before it, so what two threads share is the batch, not the directions."""
        kept = None
        if self.training and self.dropout:
            kept = dropout_noise((len(self.layers), len(mask), self.size), self.dropout, features)
        trains = can_train_in_parallel(features)
        reads = not torch.is_grad_enabled() and features.device.type == "cpu" and torch.get_num_threads() > 1
        if len(mask) < 2 or not (trains or reads) or not is_plain(self.layers):
            return self._read(mask, kept, features)[0]
        order = mask.sum(1).argsort(descending=True)
        halves = order[::2], order[1::2]  # of like lengths

        def run(side: int, features: Tensor) -> tuple[Tensor]:
            rows = halves[side]
            return self._read(mask[rows], None if kept is None else kept[:, rows], features, rows)

        if trains:
            own = list(self.parameters())
            sides: Sequence[tuple[Tensor, ...]] = train_in_parallel(run, (features,), (own, own))
        else:
            sides = run_in_parallel(partial(run, features=features))
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


def _predicate_mask(index: Tensor | None, text: Words) -> Tensor:
    """Mark the predicate of each row among its words: (B, T')."""
    rows = len(text.mask)
    if index is None or index.shape != (rows,):
        got = "none" if index is None else f"the shape {tuple(index.shape)}"
        raise ValueError(f"`predicate_index` must have one position for each of {rows} rows, got {got}")
    is_predicate = (text.position == index[:, None]) & text.mask
    has_one = is_predicate.any(1)
    if not bool(has_one.all()):
        row = int(has_one.long().argmin())
        words = text.position[row][text.mask[row]].tolist()
        where = f"{words[0]} to {words[-1]}" if words else "but it has no words"
        raise ValueError(
            f"`predicate_index` of row {row} must be the position of a word, {where}; got {int(index[row])}"
        )
    return is_predicate


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
    r"""
    Output of [`ElmoForSemanticRoleLabeling`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            -log p of the labels, the mean over words.
        logits (`torch.FloatTensor` of shape `(B, T, num_labels)`):
            log p of each label of each word.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*, in eval mode):
            The best label sequence that BIO allows, -100 where there is no word.
    """


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
        self.encoder = HighwayLstm(self.input_size + PREDICATE_DIM, units, layers, config.head_dropout)
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
        return_dict: bool | None = None,
    ) -> ElmoSemanticRoleLabelerOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of a sentence. A sentence with several predicates is a row for each.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these sentences.
            predicate_index (`(B,)`):
                Where the predicate is in each row, `<S>` included: the first word is at 1.
            labels (`(B, T)`, *optional*):
                Numbers of labels, -100 for sentence markers, padding and whatever has none.
            num_items_in_batch (`int`, *optional*):
                How many words of a whole step have labels, when it is made of several batches.
        """
        (text,) = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        assert char_ids is not None
        length = char_ids.shape[1]
        is_predicate = _predicate_mask(predicate_index, text)
        indicator = self.predicate_embeddings(is_predicate.long()) * text.mask[..., None]
        encoded = self.encoder(torch.cat([text.features, indicator], dim=-1), text.mask)
        log_p = self.role_classifier(text.join_elmo(encoded)).float().log_softmax(-1)
        loss = None
        if labels is not None:
            check_labels(labels, self.config.num_labels)
            loss = word_loss(log_p, text.gather_labels(labels), self._penalty(), num_items_in_batch)
        output = ElmoSemanticRoleLabelerOutput(loss=loss, logits=text.scatter_to_input(log_p, length, 0.0))
        if not self.training:
            scores = restrict_to_scheme(without_transitions(log_p), self.config, "BIO")
            best = best_labels(log_p, text.mask, scores)
            output.predictions = text.scatter_to_input(best, length, IGNORED)
        return output

    @overload
    def label(self, words: Sequence[str], predicate_index: int, tokenizer: ElmoTokenizer) -> list[Role]: ...
    @overload
    def label(
        self, words: Sequence[str], predicate_index: Sequence[int], tokenizer: ElmoTokenizer
    ) -> list[list[Role]]: ...
    @torch.no_grad()
    def label(
        self, words: Sequence[str], predicate_index: int | Sequence[int], tokenizer: ElmoTokenizer
    ) -> list[Role] | list[list[Role]]:
        """Find who did what to whom: the roles of a sentence's parts for a predicate, the predicate itself being `V`.

        The predicate is given by its position among the words, from 0. Several are read as one batch, and return a
        list each. Dropout is off even in training mode.
        """
        if isinstance(words, str):
            raise ValueError(f"`words` must be a list of words, got the text {words!r}")
        several = predicate_index if isinstance(predicate_index, Iterable) else [predicate_index]
        indices = [operator.index(index) for index in several]
        for index in indices:
            if not 0 <= index < len(words):
                raise ValueError(f"`predicate_index` must be from 0 to {len(words) - 1}, got {index}")
        if not indices:
            return []
        inputs = tokenizer([list(words)] * len(indices), is_split_into_words=True, return_tensors="pt")
        positions = torch.tensor(indices) + 1  # after `<S>`
        with eval_mode(self):
            output = self(**inputs.to(self.device), predicate_index=positions.to(self.device))
        found = []
        for row in output.predictions.tolist():
            labels = [self.config.id2label[number] for number in row if number != IGNORED]
            roles = []
            for role, start, end in role_spans(labels):
                roles.append(Role(role, start, end, " ".join(words[start:end])))
            found.append(roles)
        return found if several is predicate_index else found[0]
