"""Question answering: an answer is a span of a context, found by GRUs and attention (Clark and Gardner, 2018).

Shapes: B batch, S words of the question, T words of the context, N packed words, D features, H units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .bilm_elmo import eval_mode
from .configuration_elmo import ElmoConfig
from .heads_elmo import (
    IGNORED,
    CharacterCnn,
    ElmoTaskModel,
    PairDropout,
    TaskLstmLayer,
    WordDropout,
    WordLstm,
    Words,
    attend,
    mean_loss,
    stack_words,
)
from .layers_elmo import is_plain
from .recurrence_elmo import split_steps, states_before
from .tagging_elmo import IMPOSSIBLE
from .tokenization_elmo import ElmoTokenizer

# Sizes of the paper: characters, filters of the character CNN, units.
READER_CHARACTER_DIM, READER_FILTER_WIDTH = 20, 5
READER_DIM = 90
# Windows of a context in a batch.
WINDOWS_AT_ONCE = 16


class _GruRecurrence(torch.autograd.Function):
    """A GRU over packed words with its backward pass written out, in few operations per step.

    r, z, n are the gates of the inputs, in this order, and u = U h those of the state:
    h' = (1 - z) n + z h with r = sigmoid(r + u_r), z = sigmoid(z + u_z) and n = tanh(n + r u_n).
    """

    @staticmethod
    def forward(ctx: Any, gates_of_inputs: Tensor, recurrent: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        """Compute outputs (N, H) of gates_of_inputs (N, 3H) and recurrent (3H, H). Sentences start from zeros."""
        units = recurrent.shape[1]
        gates = gates_of_inputs.clone()  # after the loop: after their activations
        of_state = torch.empty_like(gates)
        outputs = gates.new_empty(len(gates), units)
        hidden = gates.new_zeros(max(batch_sizes, default=0), units)
        transposed = recurrent.T
        both = 2 * units  # r and z
        parts = [gates[:, :both], of_state[:, :both], gates[:, both:], of_state[:, both:]]
        r_and_z = gates[:, :units], gates[:, units:both]
        for rz, u_rz, n, u_n, r, z, product, output in split_steps(batch_sizes, *parts, *r_and_z, of_state, outputs):
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
        d_hidden = outputs.new_zeros(max(sizes, default=0), units)
        before = states_before(d_hidden, outputs, sizes)
        r, z, n = gates.chunk(3, dim=1)
        # The derivatives of h' by the gates are known before the loop over steps.
        of_n = (1 - z) * (1 - n.square())
        of_r = of_n * of_state[:, 2 * units :] * r * (1 - r)
        of_z = (before - n) * z * (1 - z)
        slopes = torch.stack([of_r, of_z, of_n * r], dim=1)  # (N, 3, H)
        changes = torch.empty_like(outputs)  # of h' at every step
        d_state = torch.empty_like(gates)  # of U h
        d_state_by_gate = d_state.unflatten(1, (3, units))
        d_begun = d_hidden[:0]  # of the sentences that have begun, seen from the end
        steps = split_steps(sizes, d_outputs, changes, slopes, d_state_by_gate, d_state, z)
        for d_output, change, slope, by_gate, step_state, kept in reversed(steps):
            if len(change) > len(d_begun):
                d_begun = d_hidden[: len(change)]
            torch.add(d_begun, d_output, out=change)
            torch.mul(change[:, None], slope, out=by_gate)
            torch.addmm(change * kept, step_state, recurrent, out=d_begun)
        d_gates = torch.cat([d_state[:, : 2 * units], changes * of_n], dim=1)
        return d_gates, d_state.T @ before, None


class TaskGruLayer(TaskLstmLayer):
    """One GRU over packed words in one direction: (N, D) -> (N, H)."""

    gates = 3

    def forward(self, words: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        # Autocast computes the gates in another type; the recurrence runs in that of the weights.
        gates = self.input_gates(words).to(next(self.parameters()).dtype)
        if is_plain(self.recurrent_gates):
            return _GruRecurrence.apply(gates, self.recurrent_gates.weight, batch_sizes)
        return self._call_gates(gates, batch_sizes)

    def _call_gates(self, gates_of_inputs: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        """Compute the same by calling `recurrent_gates` at every step: (N, 3H) -> (N, H)."""
        hidden = gates_of_inputs.new_zeros(max(batch_sizes, default=0), self.units)
        outputs = [hidden[:0]]
        for gates in gates_of_inputs.split(list(batch_sizes)):
            hidden = hidden[: len(gates)]
            r, z, n = gates.chunk(3, dim=-1)
            u_r, u_z, u_n = self.recurrent_gates(hidden).chunk(3, dim=-1)
            n = torch.tanh(n + torch.sigmoid(r + u_r) * u_n)
            hidden = torch.lerp(n, hidden, torch.sigmoid(z + u_z))
            outputs.append(hidden)
        return torch.cat(outputs)


class WordGru(WordLstm):
    """GRUs in both directions over the real words: (B, T, D) -> (B, T, 2H)."""

    layer = TaskGruLayer


class Similarity(nn.Module):
    """Similarity of each word of a text to each word of another: (B, T, D), (B, S, D) -> (B, T, S).

    w_2 · y + w_3 · (x * y), of the trilinear w · [x ; y ; x * y]. The rest, w_1 · x, is the same for all y: a constant
    cancels in the softmax. It starts as the dot product, in which similar words attend to each other: from random
    weights, a few thousand questions are slow to teach that.
    """

    def __init__(self, units: int, elmo: int = 0) -> None:
        super().__init__()
        self.units, self.elmo = units, elmo
        self.second = nn.Linear(units + elmo, 1, bias=False)
        self.product = nn.Parameter(self.initial_product())

    def set_initial_weights(self) -> None:
        init.copy_(self.product, self.initial_product())

    def initial_product(self) -> Tensor:
        """Return w_3: 1 for a GRU's features, which are below 1; less for ELMo's, which are large and many."""
        of_elmo = torch.full((self.elmo,), max(self.elmo, 1) ** -0.5)
        return torch.cat([torch.ones(self.units), of_elmo])

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        # The second text is the shorter one, so it is cheaper to weight.
        return self.second(second).transpose(1, 2) + first @ (second * self.product).transpose(1, 2)


class ParagraphReader(nn.Module):
    """Scores of the context's words as the first and the last of an answer.

    A GRU over question and context, attention in both directions between them (BiDAF), a linear layer, a GRU and
    self-attention of the context with a residual connection, a GRU for the first word and another for the last. ELMo
    joins the first GRU's output, so that the attention sees it (Peters et al., 2018).
    """

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float) -> None:
        super().__init__()
        self.encoder = WordGru(inputs, units)
        size = self.encoder.size + elmo
        self.similarity = Similarity(self.encoder.size, elmo)
        self.relevance = nn.Linear(size, 1, bias=False)  # w_1 of the similarity: only the context's summary needs it
        self.merge = nn.Linear(4 * size, 2 * units)
        self.modeller = WordGru(2 * units, units)
        self.self_similarity = Similarity(2 * units)
        self.self_merge = nn.Linear(6 * units, 2 * units)
        # No bias: a constant cancels in the softmax.
        self.start_encoder = WordGru(2 * units, units)
        self.start = nn.Linear(2 * units, 1, bias=False)
        self.end_encoder = WordGru(4 * units, units)
        self.end = nn.Linear(2 * units, 1, bias=False)
        self.pair_dropout = PairDropout(dropout)
        self.dropout = WordDropout(dropout)

    def forward(self, question: Words, context: Words) -> tuple[Tensor, Tensor]:
        """Score the context's words as first and last of the answer: each (B, T), anything at padding."""
        # Both texts go through the GRU as one batch, which takes fewer steps.
        both = stack_words(question, context)
        encoded = self.pair_dropout(self.encoder(both.features, both.mask))
        question_words, context_words = both.join_elmo(encoded).tensor_split(2)
        question_words = question_words[:, : question.mask.shape[1]]
        context_words = context_words[:, : context.mask.shape[1]]
        merged = self._attend_to_question(question_words, context_words, question.mask, context.mask)
        modeled = merged + self._attend_to_itself(merged, context.mask)
        starts = self.start_encoder(self.dropout(modeled), context.mask)
        ends = self.end_encoder(self.dropout(torch.cat([modeled, starts], dim=-1)), context.mask)
        start_scores = self.start(starts).squeeze(-1).float()
        end_scores = self.end(ends).squeeze(-1).float()
        return start_scores, end_scores

    def _attend_to_question(
        self, question_words: Tensor, context_words: Tensor, question_mask: Tensor, context_mask: Tensor
    ) -> Tensor:
        """Merge the context with the question, by attention in both directions: (B, S, D), (B, T, D) -> (B, T, 2H)."""
        scores = self.similarity(context_words, question_words) + self.relevance(context_words)  # (B, T, S)
        attended = attend(scores, question_mask) @ question_words
        highest = scores.masked_fill(~question_mask[:, None], IMPOSSIBLE).amax(-1)  # (B, T)
        summary = attend(highest[:, None], context_mask) @ context_words  # (B, 1, D)
        parts = [context_words, attended, context_words * attended, summary * attended]
        return F.relu(self.merge(torch.cat(parts, dim=-1)))

    def _attend_to_itself(self, merged: Tensor, mask: Tensor) -> Tensor:
        """Merge every word of the context with the other words that it attends to: (B, T, 2H)."""
        modeled = self.dropout(self.modeller(self.dropout(merged), mask))
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        scores = self.self_similarity(modeled, modeled)
        scores = scores.masked_fill(itself, torch.finfo(scores.dtype).min)
        weights = attend(scores, mask).masked_fill(itself, 0.0)  # a single word has no others
        attended = weights @ modeled
        return F.relu(self.self_merge(torch.cat([modeled, attended, modeled * attended], dim=-1)))


def best_spans(starts: Tensor, ends: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the best span of at most `longest` words by scores (B, T), T > 0: first word, last word, score, each (B,).

    A span's score is the sum of the scores of its first and its last word.
    """
    # (B, T, longest): the ends of spans by first word and length
    reachable = F.pad(ends, (0, longest - 1), value=2 * IMPOSSIBLE).unfold(1, longest, 1)
    score, index = (starts[..., None] + reachable).flatten(1).max(1)
    first = index // longest
    return first, first + index % longest, score


def _word_offsets(text: str, tokenizer: ElmoTokenizer, name: str) -> list[tuple[int, int]]:
    """Return the first character of each word of a text, and one past its last."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    if not offsets:
        raise ValueError(f"`{name}` must have words, got {text!r}")
    return offsets


def windows_of(words: int, longest: int, overlap: int) -> list[tuple[int, int]]:
    """Cover a text with windows of at most `longest` words, each overlapping the one before: first word, end."""
    windows = []
    for first in range(0, max(words - overlap, 1), longest - overlap):
        windows.append((first, min(first + longest, words)))
    return windows


def _position_loss(logits: Tensor, targets: Tensor, name: str) -> Tensor:
    """Compute the mean -log p of the target positions (B,) among the context's words, over rows that have a target.

    Position 0, where `<S>` is, stands for no target too: so do the recipes of transformers mark a window without it.
    """
    targets = targets.masked_fill(targets == 0, IGNORED)
    nearest = targets.clamp(0, logits.shape[1] - 1)
    scores = logits.gather(1, nearest[:, None]).squeeze(1)
    outside = targets[(targets != IGNORED) & (scores == IMPOSSIBLE)]
    if len(outside):
        raise ValueError(f"`{name}` must be positions of words of the context, or {IGNORED}; got {int(outside[0])}")
    return mean_loss(logits, targets)


@dataclass
class ElmoQuestionAnsweringOutput(ModelOutput):
    r"""
    Output of [`ElmoForQuestionAnswering`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with positions):
            -log p of the first and the last words of the answers, the mean of both.
        start_logits, end_logits (`torch.FloatTensor` of shape `(B, T)`):
            Scores of the context's words as an answer's first and last; -1e4 everywhere else.
        predictions (`torch.FloatTensor` of shape `(B, 3)`, *optional*, in eval mode):
            Positions of the first and the last word of the best answer of at most `config.max_answer_words` words,
            and the sum of their logits, which windows of one context are compared by; -100 without a context.
        hidden_states (`tuple(torch.FloatTensor)`, *optional*, with `output_hidden_states=True`):
            The biLM's layers, as in [`ElmoModelOutput`].
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    predictions: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class Answer(NamedTuple):
    """An answer's text, p(first word) p(last word), and its first character in the context and one past its last."""

    answer: str
    score: float
    start: int
    end: int


class ElmoForQuestionAnswering(ElmoTaskModel):
    """Question answering: finds the answer as a span of the context (Clark and Gardner, 2018).

    The question is the first text of a pair and the context the second. A context of many sentences is one sequence
    to the biLM.
    """

    texts_per_row = 2
    character_cnn = "reader_cnn"
    drops_by_row = True

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.reader_cnn = None
        if config.head_char_filters:
            self.reader_cnn = CharacterCnn(config, READER_CHARACTER_DIM, READER_FILTER_WIDTH)
        units = config.head_dim or READER_DIM
        self.reader = ParagraphReader(self.input_size, self.elmo_size, units, self.head_dropout)
        self.post_init()

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
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> ElmoQuestionAnsweringOutput:
        """Answer questions, in pairs of a question and a context. See [`ElmoTaskModel`] for the arguments.

        Instead of labels, `start_positions` and `end_positions` `(B,)` are where the answer's first and last word are
        in the row, -100 or 0 where the row has no answer to learn from.
        """
        inputs = (input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, inputs_embeds)
        (question, context), layers = self._read(inputs, output_hidden_states, output_attentions)
        starts, ends = (scores.to(context.mask.device) for scores in self.reader(question, context))  # (B, T')
        start_logits = context.to_input(starts, IMPOSSIBLE)
        end_logits = context.to_input(ends, IMPOSSIBLE)
        loss = None
        if start_positions is not None and end_positions is not None:
            start_loss = _position_loss(start_logits, start_positions, "start_positions")
            end_loss = _position_loss(end_logits, end_positions, "end_positions")
            loss = (start_loss + end_loss) / 2
        predictions = None
        if not self.training:
            best = best_spans(start_logits, end_logits, self.config.max_answer_words)
            has_context = context.mask[:, :1]
            predictions = torch.stack(best, dim=1).masked_fill(~has_context, IGNORED)
        return self._output(
            ElmoQuestionAnsweringOutput,
            loss,
            start_logits=start_logits,
            end_logits=end_logits,
            predictions=predictions,
            hidden_states=layers,
        )

    @torch.no_grad()
    def answer(self, question: str, context: str, tokenizer: ElmoTokenizer) -> Answer:
        """Find the best answer to the question in the context.

        A context of more than `config.max_context_words` words is read in overlapping windows. Their scores are
        compared as they are: p is over the words of all windows.
        """
        question_words = [question[start:end] for start, end in _word_offsets(question, tokenizer, "question")]
        offsets = _word_offsets(context, tokenizer, "context")
        context_words = [context[start:end] for start, end in offsets]
        windows = windows_of(len(offsets), self.config.max_context_words, self.config.context_overlap)
        candidates, totals = [], []
        for number in range(0, len(windows), WINDOWS_AT_ONCE):
            batch = windows[number : number + WINDOWS_AT_ONCE]
            contexts = [context_words[first:end] for first, end in batch]
            questions = [question_words] * len(batch)
            inputs = tokenizer(questions, contexts, is_split_into_words=True, padding=True, return_tensors="pt")
            with eval_mode(self):
                output = self(**inputs.to(self.device), return_dict=True)
            totals.append(torch.stack([output.start_logits, output.end_logits]).flatten(1).logsumexp(1))
            for row, (first, last, score) in enumerate(output.predictions.tolist()):
                words = [batch[row][0] + inputs.token_to_word(row, int(position)) for position in (first, last)]
                candidates.append((score, *words))
        best, first_word, last_word = max(candidates, key=itemgetter(0))
        start, end = offsets[first_word][0], offsets[last_word][1]
        total = torch.stack(totals).logsumexp(0).sum()  # of the first word and of the last
        return Answer(context[start:end], math.exp(best - total.item()), start, end)
