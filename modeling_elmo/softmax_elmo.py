"""The softmax over words: sampled in training, so that a step costs the same for any vocabulary, and full otherwise.

Word ids are in order of falling frequency, which is what the sampling takes its probabilities from. Id 0 is padding:
it is never predicted and never sampled.

Shapes: N predictions, P projection, V words of the vocabulary, K sampled words.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import initialization as init

from .recurrence_elmo import add_product, dtype_of_products, product

# Logits that are in memory at once.
LOGITS_AT_ONCE = 1 << 23
# Words whose logits are computed together where the whole vocabulary is not.
WORDS_AT_ONCE = 1 << 14


class Negatives(NamedTuple):
    """Words drawn without repetition from a log-uniform distribution, for all predictions of a step.

    ids: the words, sorted.
    tries: how many draws it took, repeated words included.
    others: further words, sorted, among them those that the step predicts; by default, those that the call predicts.
        Their rows get gradients too.
    """

    ids: Tensor  # (K,)
    tries: int
    others: Tensor | None = None

    def including(self, words: Tensor) -> "Negatives":
        """Return these with all words that the processes of a step predict."""
        words = words.unique()
        return self._replace(others=words[~torch.isin(words, self.ids)])

    def to(self, device: torch.device | str) -> "Negatives":
        """Move the tensors to a device."""
        others = None if self.others is None else self.others.to(device, non_blocking=True)
        return Negatives(self.ids.to(device, non_blocking=True), self.tries, others)


def draw_negatives(vocab_size: int, count: int, generator: torch.Generator | None = None) -> Negatives:
    """Draw `count` different words out of 1 .. vocab_size - 1, word k with probability log(1 + 1 / k) / log(V)."""
    if count >= vocab_size:
        raise ValueError(f"cannot draw {count} different words out of {vocab_size - 1}")
    drawn = torch.empty(0, dtype=torch.long)
    while True:
        uniform = torch.rand(max(2 * count, len(drawn)), dtype=torch.float64, generator=generator)
        new = (uniform * math.log(vocab_size)).exp().long().clamp(max=vocab_size - 1)
        drawn = torch.cat([drawn, new])
        words, index = drawn.unique(return_inverse=True)
        if len(words) >= count:
            break
    # As if drawn one by one until there are enough: what counts is where each word was drawn first.
    first = torch.full_like(words, len(drawn)).scatter_reduce_(0, index, torch.arange(len(drawn)), "amin")
    tries = int(first.sort().values[count - 1]) + 1
    return Negatives(words[first < tries], tries)


def _log_uniform(words: Tensor, vocab_size: int) -> Tensor:
    """Return the probability of drawing a word: about that of meeting it, if words are in order of frequency."""
    return torch.log1p(1 / words.double()) / math.log(vocab_size)


def _log_expected_count(words: Tensor, vocab_size: int, tries: int) -> Tensor:
    """Return the log of how often a word is expected in a sample: log(1 - (1 - p)^tries)."""
    return torch.log(-torch.expm1(tries * torch.log1p(-_log_uniform(words, vocab_size)))).float()


class _ChunkedLoss(torch.autograd.Function):
    """The sum of -log softmax of the true logits among themselves and the other words', a few predictions at a time.

    The gradients come with the loss, so that logits are computed once and never kept.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        true: Tensor,
        weight: Tensor,
        bias: Tensor,
        same: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """hidden (N, P), true (N,) logits, weight (K, P) and bias (K,) of the other words; `same` (N,) says which of
        them, if any, is the true word, which counts only once, or is -1. Products are computed in `dtype`, sums of
        exponentials in that of the weights.
        """
        needs_gradients = any(ctx.needs_input_grad)
        d_hidden, d_true = torch.empty_like(hidden), torch.empty_like(true)
        d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        loss = true.new_zeros(())
        factors = weight.to(dtype)
        rows = max(LOGITS_AT_ONCE // max(len(weight), 1), 1)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            chunk, true_chunk = hidden[part], true[part]
            if dtype == weight.dtype:
                logits = torch.addmm(bias, chunk, factors.T)
            else:
                logits = (chunk.to(dtype) @ factors.T).to(weight.dtype).add_(bias)
            column = same[part, None]
            place = column.clamp(min=0)
            logits.scatter_(1, place, logits.gather(1, place).masked_fill_(column >= 0, -math.inf))
            highest = torch.maximum(logits.amax(1), true_chunk)
            probabilities = logits.sub_(highest[:, None]).exp_()
            true_part = (true_chunk - highest).exp_()
            total = probabilities.sum(1).add_(true_part)
            loss += (total.log() + highest - true_chunk).sum()
            if needs_gradients:
                probabilities.div_(total[:, None])
                torch.div(true_part, total, out=d_true[part]).sub_(1)
                d_bias += probabilities.sum(0)
                rounded = probabilities.to(dtype)
                product(rounded, factors, d_hidden[part])
                add_product(rounded.T, chunk.to(dtype), d_weight)
        if needs_gradients:
            ctx.save_for_backward(d_hidden, d_true, d_weight, d_bias)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        return *(gradient * d_loss for gradient in ctx.saved_tensors), None, None


class _Rows(torch.autograd.Function):
    """tensor[rows] for different rows, with a gradient that holds nothing but those."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = tensor.shape
        return tensor[rows]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(rows[None], d_rows, ctx.shape, check_invariants=False), None


class ElmoSoftmax(nn.Module):
    """A row and a bias for every word of the vocabulary, shared by both directions.

    With `sparse` set, sampled losses give sparse gradients: those of the rows they read.
    """

    def __init__(self, vocab_size: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, size))
        self.bias = nn.Parameter(torch.empty(vocab_size))
        self.sparse = False

    def set_initial_weights(self) -> None:
        init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        init.copy_(self.bias, self.initial_bias())

    def initial_bias(self) -> Tensor:
        """Return a bias that makes words as probable as they are frequent.

        From zeros, as in the original, that of a rare word would have far to go in the few steps that sample it.
        """
        words = torch.arange(1, len(self.bias), device=self.bias.device)
        return F.pad(_log_uniform(words, len(self.bias)).log(), (1, 0)).to(self.bias.dtype)

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        negatives: Negatives | None = None,
        reduction: str = "sum",
    ) -> Tensor:
        """Return logits (..., V) for hidden (..., P); for targets (N,) the sum of their losses, or "none": each one's.

        Padding has the lowest logit there is. Losses of each target are of the full softmax and without gradients.
        """
        if targets is None:
            logits = F.linear(hidden, self.weight, self.bias)
            padding = torch.zeros(1, dtype=torch.long, device=logits.device)
            return logits.index_fill(-1, padding, torch.finfo(logits.dtype).min)
        if reduction == "none":
            return -self.log_probabilities(hidden, targets)
        return self.loss(hidden, targets, negatives)

    def loss(self, hidden: Tensor, targets: Tensor, negatives: Negatives | None = None) -> Tensor:
        """Return the sum of -log p(target) for hidden (N, P) and targets (N,); with negatives, an estimate.

        Under autocast, or with weights of 16 bits, so are the products of training. The true logits and all sums keep
        their digits.
        """
        dtype = dtype_of_products(self.weight)
        exact = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.to(exact)
            if negatives is not None:
                return self._sampled_loss(hidden, targets, negatives, dtype)
            if not torch.is_grad_enabled() or not any(t.requires_grad for t in (hidden, self.weight, self.bias)):
                return -self.log_probabilities(hidden, targets).sum()
            weight, bias = self.weight.to(exact), self.bias.to(exact)
            true = (hidden * weight[targets]).sum(-1) + bias[targets]
            return _ChunkedLoss.apply(hidden, true, weight[1:], bias[1:], targets - 1, dtype)

    @torch.no_grad()
    def log_probabilities(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return log p(target) among all words, (N,), in bounded memory for any vocabulary; without gradients."""
        hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        weights, biases = self.weight[1:].split(WORDS_AT_ONCE), self.bias[1:].split(WORDS_AT_ONCE)
        normalizers = []
        for chunk in hidden.split(max(LOGITS_AT_ONCE // min(WORDS_AT_ONCE, len(self.weight)), 1)):
            parts = []
            for weight, bias in zip(weights, biases, strict=True):
                logits = torch.addmm(bias.to(chunk.dtype), chunk, weight.to(chunk.dtype).T)
                parts.append(logits.logsumexp(1))
            normalizers.append(torch.stack(parts).logsumexp(0))
        return (hidden * self.weight[targets]).sum(-1) + self.bias[targets] - torch.cat(normalizers)

    def _sampled_loss(self, hidden: Tensor, targets: Tensor, negatives: Negatives, dtype: torch.dtype) -> Tensor:
        """Estimate the loss: every logit less the logarithm of how often its word is sampled (Jean et al., 2015)."""
        ids, tries, others = negatives if negatives.others is not None else negatives.including(targets)
        assert others is not None
        count = len(ids)
        rows = torch.cat([ids, others])
        if self.sparse:
            weight, bias = _Rows.apply(self.weight, rows), _Rows.apply(self.bias, rows)
        else:
            weight, bias = self.weight[rows], self.bias[rows]
        weight, bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
        bias = bias - _log_expected_count(rows, len(self.weight), tries)
        place = torch.searchsorted(ids, targets).clamp(max=count - 1)
        is_hit = ids[place] == targets
        row = torch.where(is_hit, place, count + torch.searchsorted(others, targets))
        true = (hidden * F.embedding(row, weight)).sum(-1) + bias[row]  # its gradient is faster than weight[row]'s
        return _ChunkedLoss.apply(hidden, true, weight[:count], bias[:count], place.where(is_hit, -1), dtype)
