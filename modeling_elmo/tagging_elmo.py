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

from .bilm_elmo import eval_mode
from .configuration_elmo import ElmoConfig
from .heads_elmo import IGNORED, ElmoWordEncoder, Words, check_labels, word_loss

# A score too low for any sum of others to compensate; unlike -inf it keeps gradients finite.
IMPOSSIBLE = -1e4


class Allowed(NamedTuple):
    """Which labels may follow which (K, K), row before column, and which may start and end a sentence (K,)."""

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


class Scores(NamedTuple):
    """Scores of transitions (K, K), and of labels at the start and the end of a sentence (K,)."""

    transitions: Tensor
    starts: Tensor
    ends: Tensor

    def restricted(self, allowed: Allowed) -> "Scores":
        """Return the scores with what is not allowed made impossible."""
        restricted = []
        for score, may in zip(self, allowed, strict=True):
            restricted.append(score.masked_fill(~may.to(score.device), IMPOSSIBLE))
        return Scores(*restricted)


def without_transitions(like: Tensor) -> Scores:
    """Return the scores of a plain softmax over the labels of `like` (..., K)."""
    size = like.shape[-1]
    return Scores(like.new_zeros(size, size), like.new_zeros(size), like.new_zeros(size))


def restrict_to_scheme(scores: Scores, config: ElmoConfig, scheme: str | None) -> Scores:
    """Make label sequences impossible that break the tag scheme."""
    names = [config.id2label[number] for number in range(config.num_labels)]
    return scores.restricted(allowed_labels(tuple(names), scheme))


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

    def forward(self) -> Scores:
        return Scores(self.transitions, self.starts, self.ends)

    def loss(self, emissions: Tensor, mask: Tensor, labels: Tensor, ignored: int) -> Tensor:
        """Compute -log p of the labels (B, T), summed over sentences. Words labeled `ignored` may have any label."""
        emissions = emissions.float()
        known = (labels != ignored)[..., None]
        others = torch.ones_like(emissions, dtype=torch.bool).scatter(2, labels.clamp(min=0)[..., None], False)
        matching = emissions.masked_fill(known & others, IMPOSSIBLE)
        # Both sums as one batch, which takes half the steps.
        both = partition(torch.cat([emissions, matching]), mask.repeat(2, 1), self())
        log_all, log_matching = both.chunk(2)
        return (log_all - log_matching).sum()


def _prefixes(emissions: Tensor, mask: Tensor, scores: Scores) -> list[Tensor]:
    """For every t, sum the exp scores of all labelings of words 0 to t by their last label, as logs: T x (B, K)."""
    alpha = scores.starts + emissions[:, 0]
    prefixes = [alpha]
    for t in range(1, emissions.shape[1]):
        following = torch.logsumexp(alpha[:, :, None] + scores.transitions, dim=1) + emissions[:, t]
        alpha = torch.where(mask[:, t, None], following, alpha)
        prefixes.append(alpha)
    return prefixes


def partition(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Return the log of the summed exp scores of all label sequences: (B,), 0 for a sentence without words."""
    if not emissions.shape[1]:
        return emissions.new_zeros(len(emissions))
    last = _prefixes(emissions, mask, scores)[-1]
    return torch.logsumexp(last + scores.ends, dim=1) * mask[:, 0]


def log_marginals(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Compute the marginal log p of each label of each word: (B, T, K)."""
    words = emissions.shape[1]
    if not words:
        return emissions
    prefixes = torch.stack(_prefixes(emissions, mask, scores), dim=1)
    beta = scores.ends.expand(len(emissions), -1)
    suffixes = [beta]
    for t in range(words - 1, 0, -1):
        preceding = torch.logsumexp(scores.transitions + (emissions[:, t] + beta)[:, None], dim=2)
        beta = torch.where(mask[:, t, None], preceding, beta)
        suffixes.append(beta)
    # At padding, `prefixes` repeats the last real word and `suffixes` is the end's: nothing to mask out.
    return torch.log_softmax(prefixes + torch.stack(suffixes[::-1], dim=1), dim=-1)


@torch.no_grad()
def best_labels(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Find the label sequence with the highest score (Viterbi): (B, T), anything at padding."""
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
            -log p of the labels, the mean over sentences with a CRF, over words without.
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
        (text,) = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        assert char_ids is not None
        length = char_ids.shape[1]
        emissions = self._emissions(text)
        loss = None
        if labels is not None:
            check_labels(labels, self.config.num_labels)
            targets = text.gather_labels(labels)
            if self.crf is None:
                loss = word_loss(emissions, targets, self._penalty(), num_items_in_batch)
            else:
                total = self.crf.loss(emissions, text.mask, targets, IGNORED)
                loss = total / max(len(labels), 1) + self._penalty()
        if self.training:
            return ElmoTokenClassifierOutput(loss=loss, logits=text.scatter_to_input(emissions, length, 0.0))
        scores = self._decoding_scores(emissions)
        logits = log_marginals(emissions, text.mask, scores)
        predictions = best_labels(emissions, text.mask, scores)
        return ElmoTokenClassifierOutput(
            loss=loss,
            logits=text.scatter_to_input(logits, length, 0.0),
            predictions=text.scatter_to_input(predictions, length, IGNORED),
        )

    def _emissions(self, text: Words) -> Tensor:
        """Compute each word's own scores: (B, T', K)."""
        encoded = self.dropout(self.encoder(text.features, text.mask))
        return self.classifier(text.join_elmo(encoded)).float()

    def _decoding_scores(self, emissions: Tensor) -> Scores:
        scores = without_transitions(emissions) if self.crf is None else self.crf()
        return restrict_to_scheme(scores, self.config, self.config.tag_scheme)

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
    ) -> list[list[int]]:
        """Return the labels of each sentence's words, without sentence markers: the best that the scheme allows."""
        with eval_mode(self):
            (text,) = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
            emissions = self._emissions(text)
            best = best_labels(emissions, text.mask, self._decoding_scores(emissions))
        return [row[keep].tolist() for row, keep in zip(best, text.mask, strict=True)]
