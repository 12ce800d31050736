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
from .heads_elmo import IGNORED, ElmoWordEncoder, check_labels, mean_loss, share_of_step

# A score too low for any sum of others to compensate; unlike -inf it keeps gradients finite.
IMPOSSIBLE = -1e4


class Scores(NamedTuple):
    """Scores, or booleans, of transitions (K, K), row before column, and of first and last labels (K,)."""

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


@functools.lru_cache
def allowed_labels(labels: tuple[str, ...], scheme: str | None) -> Scores:
    """Return what a scheme allows for these labels: everything if it is None."""
    names = ("O", *labels)
    allowed = torch.ones(len(names), len(names), dtype=torch.bool)
    if scheme is not None:
        for row, before in enumerate(names):
            for column, after in enumerate(names):
                allowed[row, column] = may_follow(before, after, scheme)
    return Scores(transitions=allowed[1:, 1:], starts=allowed[0, 1:], ends=allowed[1:, 0])


def without_transitions(emissions: Tensor) -> Scores:
    """Return the scores of a plain softmax over the labels of emissions (..., K)."""
    size = emissions.shape[-1]
    zeros = emissions.new_zeros(size)
    return Scores(emissions.new_zeros(size, size), zeros, zeros)


def restrict_to_scheme(scores: Scores, config: ElmoConfig, scheme: str | None) -> Scores:
    """Make label sequences impossible that break the tag scheme."""
    names = [config.id2label[number] for number in range(config.num_labels)]
    restricted = []
    for score, allowed in zip(scores, allowed_labels(tuple(names), scheme), strict=True):
        restricted.append(score.masked_fill(~allowed.to(score.device), IMPOSSIBLE))
    return Scores(*restricted)


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
    last = _prefixes(emissions, mask, scores)[-1]
    return torch.logsumexp(last + scores.ends, dim=1) * mask[:, 0]


def crf_loss(emissions: Tensor, mask: Tensor, labels: Tensor, scores: Scores) -> Tensor:
    """Compute -log p of the labels (B, T), summed over sentences. Words without a label may have any."""
    labels = labels[..., None]
    numbers = torch.arange(emissions.shape[2], device=labels.device)
    is_other = (labels != IGNORED) & (labels != numbers)  # (B, T, K)
    matching = emissions.masked_fill(is_other, IMPOSSIBLE)
    # Both sums as one batch, which takes half the steps.
    both = partition(torch.cat([emissions, matching]), mask.repeat(2, 1), scores)
    log_all, log_matching = both.chunk(2)
    return (log_all - log_matching).sum()


def log_marginals(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Compute the marginal log p of each label of each word: (B, T, K)."""
    prefixes = _prefixes(emissions, mask, scores)
    beta = scores.ends.expand(len(emissions), -1)
    suffixes = [beta]
    for t in range(len(prefixes) - 1, 0, -1):
        from_here = emissions[:, t] + beta
        preceding = torch.logsumexp(scores.transitions + from_here[:, None], dim=2)
        beta = torch.where(mask[:, t, None], preceding, beta)
        suffixes.append(beta)
    # At padding, `prefixes` repeats the last real word and `suffixes` is the end's: nothing to mask out.
    both = torch.stack(prefixes, dim=1) + torch.stack(suffixes[::-1], dim=1)
    return torch.log_softmax(both, dim=-1)


@torch.no_grad()
def best_labels(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Find the label sequence with the highest score (Viterbi): (B, T), anything at padding."""
    best = scores.starts + emissions[:, 0]  # (B, K)
    stay = torch.arange(best.shape[1], device=best.device).expand_as(best)
    pointers: list[Tensor] = []
    for t in range(1, emissions.shape[1]):
        is_word = mask[:, t, None]
        value, pointer = (best[:, :, None] + scores.transitions).max(dim=1)
        best = torch.where(is_word, value + emissions[:, t], best)
        pointers.append(torch.where(is_word, pointer, stay))
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
            log p of each label of each word; in training mode, with labels and a CRF, each word's own scores.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*, in eval mode):
            The best label sequence that the tag scheme allows, -100 where there is no word.
        hidden_states (`tuple(torch.FloatTensor)`, *optional*, with `output_hidden_states=True`):
            The biLM's layers, as in [`ElmoModelOutput`].
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    predictions: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class ElmoForTokenClassification(ElmoWordEncoder):
    """A label for each word: LSTMs over words and characters, and a CRF (Peters et al., 2017, 2018)."""

    log_marginals = staticmethod(log_marginals)  # an export replaces its loop over words

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
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> ElmoTokenClassifierOutput:
        """Label the words, by labels `(B, T)`; a CRF does not use `num_items_in_batch`. See [`ElmoTaskModel`]."""
        inputs = (input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, inputs_embeds)
        (text,), layers = self._read(inputs, output_hidden_states, output_attentions)
        encoded = self.dropout(self.encoder(text.features, text.mask))
        emissions = self.classifier(text.join_elmo(encoded)).float().to(text.mask.device)  # (B, T', K)
        scores = without_transitions(emissions)
        if self.crf is not None:
            scores = Scores(*(score.to(emissions.device) for score in self.crf()))
        loss: Tensor | None = None
        share: Tensor | float = 1.0
        if labels is not None:
            check_labels(labels, self.config.num_labels)
            targets = text.from_input(labels, IGNORED)
            if self.crf is None:
                loss = mean_loss(emissions, targets)
                share = share_of_step(targets, num_items_in_batch)
            else:
                loss = crf_loss(emissions, text.mask, targets, scores) / max(len(labels), 1)
        logits, predictions = emissions, None
        if not self.training or labels is None:
            # Also for a loss on the logits in place of the labels', such as Trainer's with label smoothing.
            scores = restrict_to_scheme(scores, self.config, self.config.tag_scheme)
            logits = self.log_marginals(emissions, text.mask, scores)
        if not self.training:
            best = best_labels(emissions, text.mask, scores)
            predictions = text.to_input(best, IGNORED)
        logits = text.to_input(logits, 0.0)
        fields = {"logits": logits, "predictions": predictions, "hidden_states": layers}
        return self._output(ElmoTokenClassifierOutput, loss, share, **fields)

    @torch.no_grad()
    def decode(self, **inputs: Tensor) -> list[list[int]]:
        """Return the labels of each sentence's words, without sentence markers: the best that the scheme allows.

        The inputs are those of `forward`, without labels.
        """
        with eval_mode(self):
            predictions = self(**inputs, return_dict=True).predictions
        return [row[row != IGNORED].tolist() for row in predictions]
