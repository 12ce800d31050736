"""Tagging: one label per word, by LSTMs and a linear-chain CRF (Peters et al., 2017).

This file also defines the tag schemes: `may_follow` says which label may follow which.

Shapes: B batch, T positions of the input, T' words of a sentence, K labels.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .heads_elmo import IGNORED, ElmoWordEncoder, _check_labels, _put, _word_loss

# A score that no sum of others makes up for; unlike -inf it leaves gradients finite.
IMPOSSIBLE = -1e4


class Allowed(NamedTuple):
    """Which labels may follow which (K, K), row before column, and which may begin and end a sentence (K,)."""

    transitions: Tensor
    starts: Tensor
    ends: Tensor


def _split_label(label: str) -> tuple[str, str]:
    """Split a label into position and type: B-PER -> B, PER. Anything not of this form is outside every span."""
    position, dash, kind = label.partition("-")
    if dash and position in ("B", "I", "E", "S"):
        return position, kind
    return "O", ""


def may_follow(before: str, after: str, scheme: str) -> bool:
    """Return whether a label may follow another in a tag scheme: "BIO" (also called IOB2), "IOB1" or "BIOES".

    "O" also stands for the beginning and the end of a sentence.
    """
    position, kind = _split_label(before)
    next_position, next_kind = _split_label(after)
    same_type = position != "O" and kind == next_kind
    if scheme == "BIO":
        return next_position != "I" or same_type
    if scheme == "IOB1":  # B only separates two adjacent spans of one type
        return next_position != "B" or same_type
    if position in ("B", "I"):
        return next_position in ("I", "E") and same_type
    return next_position in ("O", "B", "S")


@functools.lru_cache(maxsize=32)
def allowed_labels(labels: tuple[str, ...], scheme: str | None) -> Allowed:
    """Return what a scheme allows for these labels: everything if it is None."""
    size = len(labels)
    allowed = Allowed(torch.ones(size, size).bool(), torch.ones(size).bool(), torch.ones(size).bool())
    if scheme is None:
        return allowed
    for row, label in enumerate(labels):
        allowed.starts[row] = may_follow("O", label, scheme)
        allowed.ends[row] = may_follow(label, "O", scheme)
        for column, after in enumerate(labels):
            allowed.transitions[row, column] = may_follow(label, after, scheme)
    return allowed


class LinearChainCrf(nn.Module):
    """p(labels | sentence) ∝ exp(sum of each word's score for its label and of the transitions between labels)."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.starts = nn.Parameter(torch.zeros(num_labels))
        self.ends = nn.Parameter(torch.zeros(num_labels))

    def set_initial_weights(self) -> None:
        for parameter in self.parameters():
            init.zeros_(parameter)

    def scores(self) -> "Scores":
        return Scores(self.transitions, self.starts, self.ends)

    def loss(self, emissions: Tensor, mask: Tensor, labels: Tensor, ignored: int) -> Tensor:
        """-log p of the labels (B, T), summed over the sentences. Words with the label `ignored` may have any."""
        emissions, scores = emissions.float(), self.scores()
        known = (labels != ignored)[..., None]
        others = torch.ones_like(emissions, dtype=torch.bool).scatter(2, labels.clamp(min=0)[..., None], False)
        given = emissions.masked_fill(known & others, IMPOSSIBLE)
        # Both sums as one batch, which takes half the steps.
        every, fitting = partition(torch.cat([emissions, given]), mask.repeat(2, 1), scores).chunk(2)
        return (every - fitting).sum()


class Scores(NamedTuple):
    """Of transitions (K, K), and of labels at a sentence's beginning and end (K,)."""

    transitions: Tensor
    starts: Tensor
    ends: Tensor

    def restricted(self, allowed: Allowed) -> "Scores":
        """The same, where what is not allowed is impossible."""
        return Scores(
            *(score.masked_fill(~may.to(score.device), IMPOSSIBLE) for score, may in zip(self, allowed, strict=True))
        )


def without_transitions(like: Tensor) -> Scores:
    """The scores of a plain softmax over the labels of `like` (..., K)."""
    size = like.shape[-1]
    return Scores(like.new_zeros(size, size), like.new_zeros(size), like.new_zeros(size))


def _prefixes(emissions: Tensor, mask: Tensor, scores: Scores) -> list[Tensor]:
    """For every t, the log of the summed exp scores of all labels up to word t that end in each label: T x (B, K)."""
    alpha = scores.starts + emissions[:, 0]
    found = [alpha]
    for t in range(1, emissions.shape[1]):
        new = torch.logsumexp(alpha[:, :, None] + scores.transitions, dim=1) + emissions[:, t]
        alpha = torch.where(mask[:, t, None], new, alpha)
        found.append(alpha)
    return found


def partition(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Return the log of the summed exp scores of all label sequences: (B,), 0 for a sentence without words."""
    if not emissions.shape[1]:
        return emissions.new_zeros(len(emissions))
    last = _prefixes(emissions, mask, scores)[-1]
    return torch.logsumexp(last + scores.ends, dim=1) * mask[:, 0]


def log_marginals(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """log p of each label of each word, whatever the other words' labels are: (B, T, K)."""
    words = emissions.shape[1]
    if not words:
        return emissions
    prefixes = torch.stack(_prefixes(emissions, mask, scores), dim=1)
    beta = scores.ends.expand(len(emissions), -1)
    suffixes = [beta]
    for t in range(words - 1, 0, -1):
        new = torch.logsumexp(scores.transitions + (emissions[:, t] + beta)[:, None], dim=2)
        beta = torch.where(mask[:, t, None], new, beta)
        suffixes.append(beta)
    # From a padded word on, `prefixes` repeats the last real one and `suffixes` is the end's: nothing to mask out.
    return torch.log_softmax(prefixes + torch.stack(suffixes[::-1], dim=1), dim=-1)


@torch.no_grad()
def best_labels(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """The label sequence with the highest score (Viterbi): (B, T), whatever for padded words."""
    batch, words, _ = emissions.shape
    if not words:
        return mask.long()
    best = scores.starts + emissions[:, 0]
    pointers: list[Tensor] = []
    stay = torch.arange(emissions.shape[2], device=emissions.device).expand(batch, -1)
    for t in range(1, words):
        value, pointer = (best[:, :, None] + scores.transitions).max(dim=1)
        best = torch.where(mask[:, t, None], value + emissions[:, t], best)
        pointers.append(torch.where(mask[:, t, None], pointer, stay))
    label = (best + scores.ends).argmax(dim=1, keepdim=True)  # (B, 1)
    path = [label]
    for pointer in reversed(pointers):
        label = pointer.gather(1, label)
        path.append(label)
    return torch.cat(path[::-1], dim=1)


@dataclass
class ElmoTokenClassifierOutput(ModelOutput):
    r"""
    Output of [`ElmoForTokenClassification`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            -log p of the labels: with a CRF the mean over sentences, else over words.
        logits (`torch.FloatTensor` of shape `(B, T, num_labels)`):
            log p of each label of each word; in training mode, with a CRF, each word's own scores.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*, in eval mode):
            The best label sequence that the tag scheme allows, -100 where there is no word.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    predictions: Tensor | None = None


class ElmoForTokenClassification(ElmoWordEncoder):
    """A label for each word: LSTMs over words and characters, and a CRF (Peters et al., 2017, 2018)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(self.encoder.size + self.elmo_size, config.num_labels)
        self.crf = LinearChainCrf(config.num_labels) if config.use_crf else None
        self.accepts_loss_kwargs = not config.use_crf  # a CRF's loss is of sentences
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> ElmoTokenClassifierOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of a sentence.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these sentences.
            labels (`(B, T)`, *optional*):
                Numbers of labels, -100 for sentence markers, padding and whatever has none.
            num_items_in_batch (`int`, *optional*):
                How many words of a whole step have labels, when it is made of several batches; a CRF does not use it.
        """
        emissions, position, mask = self._emissions(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        assert char_ids is not None
        shape = char_ids.shape[:2]
        loss = None
        if labels is not None:
            _check_labels(labels, self.config.num_labels)
            wanted = labels.gather(1, position).masked_fill(~mask, IGNORED)
            if self.crf is not None:
                loss = self.crf.loss(emissions, mask, wanted, IGNORED) / max(len(labels), 1) + self._penalty()
            else:
                loss = _word_loss(emissions, wanted, self._penalty(), num_items_in_batch)
        if self.training:
            return ElmoTokenClassifierOutput(loss=loss, logits=_put(emissions, position, mask, shape, 0.0))
        scores = self._decoding_scores(emissions)
        logits = log_marginals(emissions, mask, scores)
        predictions = best_labels(emissions, mask, scores)
        return ElmoTokenClassifierOutput(
            loss=loss,
            logits=_put(logits, position, mask, shape, 0.0),
            predictions=_put(predictions[..., None], position, mask, shape, IGNORED).squeeze(-1),
        )

    def _emissions(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each word's own scores (B, T', K), the words' positions in the input and their mask (B, T')."""
        (text,), (position,) = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        encoded = self.dropout(self.encoder(text.features, text.mask))
        if text.elmo is not None:
            encoded = torch.cat([encoded, text.elmo], dim=-1)
        return self.classifier(encoded).float(), position, text.mask

    def _decoding_scores(self, emissions: Tensor) -> Scores:
        labels = tuple(self.config.id2label[index] for index in range(self.config.num_labels))
        scores = without_transitions(emissions) if self.crf is None else self.crf.scores()
        return scores.restricted(allowed_labels(labels, self.config.tag_scheme))

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
    ) -> list[list[int]]:
        """The labels of each sentence's words, sentence markers left out: the best sequence that the scheme allows."""
        was_training = self.training
        self.eval()
        try:
            emissions, _, mask = self._emissions(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
            best = best_labels(emissions, mask, self._decoding_scores(emissions))
        finally:
            self.train(was_training)
        return [row[keep].tolist() for row, keep in zip(best, mask, strict=True)]
