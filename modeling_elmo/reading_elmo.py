"""Question answering: an answer is a span of a context, found by GRUs and attention (Clark and Gardner, 2018).

Shapes: B batch, S words of the question, T words of the context, N packed words, D features, H units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .heads_elmo import (
    IGNORED,
    CharacterCnn,
    ElmoTaskModel,
    WordDropout,
    WordLstm,
    Words,
    _mean_loss,
    _put,
    attend,
    together,
)
from .layers_elmo import GlorotLinear
from .recurrence_elmo import in_steps, states_before
from .tagging_elmo import IMPOSSIBLE
from .tokenization_elmo import ElmoTokenizer

# Of a reader's (Clark and Gardner, 2018).
READER_CHARACTER_DIM, READER_FILTER_WIDTH = 20, 5
READER_DIM = 90
# Windows of a context that are read at once.
WINDOWS_AT_ONCE = 16


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

    def set_initial_weights(self) -> None:
        init.copy_(self.product, self.initial_product())

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


def _position_loss(logits: Tensor, wanted: Tensor, is_context: Tensor, name: str) -> Tensor:
    """-log p of the wanted positions (B,) among the words of the context, the mean over the rows that have one."""
    known = wanted != IGNORED
    inside = (wanted >= 0) & (wanted < logits.shape[1])
    inside &= is_context.gather(1, wanted.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    if bool((known & ~inside).any()):
        outside = wanted[known & ~inside][0].item()
        raise ValueError(f"`{name}` must be positions of words of the context, or {IGNORED}; got {outside}")
    return _mean_loss(logits, wanted)


@dataclass
class ElmoQuestionAnsweringOutput(ModelOutput):
    r"""
    Output of [`ElmoForQuestionAnswering`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with positions):
            The mean of -log p of the answers' first and of their last words.
        start_logits, end_logits (`torch.FloatTensor` of shape `(B, T)`):
            Scores of the context's words as an answer's first and last; -1e4 everywhere else.
        predictions (`torch.FloatTensor` of shape `(B, 3)`, *optional*, in eval mode):
            Positions of the first and the last word of the best answer of at most `config.max_answer_words` words,
            and the sum of their logits, which windows of one context are compared by; -100 without a context.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    predictions: Tensor | None = None


class Answer(NamedTuple):
    """An answer's text, p(first word) p(last word), and its first character in the context and one past its last."""

    answer: str
    score: float
    start: int
    end: int


class ElmoForQuestionAnswering(ElmoTaskModel):
    """The answer to a question as words of a context: attention between them and within (Clark and Gardner, 2018).

    The question is the first text of a pair and the context the second. A context of many sentences is one sequence
    to the biLM.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Identity()  # the reader's is one of whole texts, in which words have their places
        # Not of the tagger's name: its sizes are others, and folders load through every auto class.
        self.reader_cnn = None
        if config.head_char_filters:
            self.reader_cnn = CharacterCnn(
                config.char_vocab_size, READER_CHARACTER_DIM, config.head_char_filters, READER_FILTER_WIDTH
            )
        units = config.head_dim or READER_DIM
        self.reader = ParagraphReader(self.input_size, self.elmo_size, units, config.head_dropout)
        self.post_init()

    def _own_features(self) -> int:
        return self.config.head_char_filters

    def _features(self, char_ids: Tensor) -> list[Tensor]:
        return [] if self.reader_cnn is None else [self.reader_cnn(char_ids)]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ElmoQuestionAnsweringOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of pairs of a question and a context.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these pairs.
            start_positions, end_positions (`(B,)`, *optional*):
                Positions of the answer's first and last word in the row, of words of the context; -100 where the row
                has no answer to learn from.
        """
        if token_type_ids is None:
            raise ValueError(
                "ElmoForQuestionAnswering reads pairs: tokenizer(question, context), with their `token_type_ids`"
            )
        (question, context), (_, position) = self._read(
            input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, texts=2
        )
        starts, ends = self.reader(question, context)  # (B, T')
        logits = [
            _put(scores[..., None], position, context.mask, token_type_ids.shape, IMPOSSIBLE).squeeze(-1)
            for scores in (starts, ends)
        ]
        loss = None
        if start_positions is not None and end_positions is not None:
            is_context = _put(context.mask[..., None], position, context.mask, token_type_ids.shape, False).squeeze(-1)
            losses = [
                _position_loss(scores, wanted, is_context, name)
                for scores, wanted, name in zip(
                    logits, (start_positions, end_positions), ("start_positions", "end_positions"), strict=True
                )
            ]
            loss = sum(losses) / 2 + self._penalty()
        predictions = None if self.training else self._best(starts, ends, position, context.mask)
        return ElmoQuestionAnsweringOutput(loss, *logits, predictions)

    def _best(self, starts: Tensor, ends: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Of scores (B, T') of the context's words the best spans, by the words' positions in the row: (B, 3)"""
        if not mask.shape[1]:
            return starts.new_full((len(mask), 3), IGNORED)
        first, last, score = best_spans(starts, ends, self.config.max_answer_words)
        places = [position.gather(1, word[:, None])[:, 0] for word in (first, last)]
        return torch.stack([*places, score], dim=1).masked_fill(~mask[:, :1], IGNORED)

    @torch.no_grad()
    def answer(self, question: str, context: str, tokenizer: ElmoTokenizer) -> Answer:
        """The best answer that the context has to the question.

        A context of more than `config.max_context_words` words is read in overlapping windows. Their scores are
        compared as they are: p is over the words of all windows.
        """
        spans = {}
        for name, text in (("question", question), ("context", context)):
            spans[name] = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            if not spans[name]:
                raise ValueError(f"`{name}` must have words, got {text!r}")
        asked = [question[start:end] for start, end in spans["question"]]
        told = [context[start:end] for start, end in spans["context"]]
        windows = windows_of(len(told), self.config.max_context_words, self.config.context_overlap)
        best, found, totals = -math.inf, (0, 0), []
        was_training = self.training
        self.eval()
        try:
            for some in (windows[i : i + WINDOWS_AT_ONCE] for i in range(0, len(windows), WINDOWS_AT_ONCE)):
                pairs = [asked] * len(some), [told[first:last] for first, last in some]
                inputs = tokenizer(*pairs, is_split_into_words=True, padding=True, return_tensors="pt")
                output = self(**{name: tensor.to(self.device) for name, tensor in inputs.items()})
                totals.append(torch.stack([output.start_logits, output.end_logits]).flatten(1).logsumexp(1))
                row = int(output.predictions[:, 2].argmax())
                *places, score = output.predictions[row].tolist()
                if score > best:
                    best = score
                    found = tuple(some[row][0] + inputs.token_to_word(row, int(place)) for place in places)
        finally:
            self.train(was_training)
        start, end = spans["context"][found[0]][0], spans["context"][found[1]][1]
        total = torch.stack(totals).logsumexp(0).sum()  # of the first word and of the last
        return Answer(context[start:end], math.exp(best - total.item()), start, end)
