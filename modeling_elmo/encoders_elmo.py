"""What the task models put between their inputs and their outputs.

Words come without sentence markers and from the left: a mask (B, T) has its real words first. What is at padded words
is zero after every encoder.

Shapes: B batch, T words, S words of a second text, C characters a word, D features of a word, H units of an LSTM.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers_elmo import Dropout, GlorotLinear, distinct_rows, pack
from .recurrence_elmo import (
    side_by_side,
    train_side_by_side,
    trained_recurrence,
    trains_side_by_side,
)


class Words(NamedTuple):
    """The words of one text of each row."""

    features: Tensor  # (B, T, D), what the encoder reads
    elmo: Tensor | None  # (B, T, E), what is put beside the encoder's output
    mask: Tensor  # (B, T), True for real words


class TaskConv(nn.Conv1d):
    """A convolution of a task model, initialised by its fan-in."""


class CharacterCnn(nn.Module):
    """A word's vector from its characters, learned with the task: (..., C) -> (..., filters)."""

    def __init__(self, characters: int, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, size, padding_idx=0)
        self.convolution = TaskConv(size, filters, width)

    def forward(self, char_ids: Tensor) -> Tensor:
        if not char_ids.numel():
            return self.convolution.weight.new_zeros(*char_ids.shape[:-1], self.convolution.out_channels)
        distinct, index, _ = distinct_rows(char_ids.flatten(0, -2))
        # Words end in a run of one character, their padding; of the windows inside it one is enough.
        places = torch.arange(1, distinct.shape[1] + 1, device=distinct.device)
        longest = int(((distinct != distinct[:, -1:]) * places).amax())
        embedded = self.embedding(distinct[:, : longest + self.convolution.kernel_size[0]]).transpose(1, 2)
        return F.relu(self.convolution(embedded).amax(-1))[index].unflatten(0, char_ids.shape[:-1])


class TaskLstmLayer(nn.Module):
    """One LSTM over packed words in one direction: (N, D) -> (N, H). Forget gates start out open, by the bias of 1."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = GlorotLinear(inputs, 4 * units, fan_in=inputs, bias=True)
        self.recurrent_gates = GlorotLinear(units, 4 * units, fan_in=units)

    def forward(self, words: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        gates = self.input_gates(words)  # (N, 4H)
        weight = self.recurrent_gates.weight
        zeros = gates.new_zeros(batch_sizes[0] if batch_sizes else 0, weight.shape[1])
        return trained_recurrence(gates, zeros, zeros, weight, None, batch_sizes, None, None)[0]


class WordLstm(nn.Module):
    """LSTMs in both directions over the real words: (B, T, D) -> (B, T, 2H), with dropout between layers."""

    layer: type[nn.Module] = TaskLstmLayer  # of one direction: inputs, units -> packed words to packed outputs

    def __init__(self, inputs: int, units: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = 2 * units
        sizes = [inputs] + [self.size] * (layers - 1)
        self.forward_layers = nn.ModuleList(self.layer(size, units) for size in sizes)
        self.backward_layers = nn.ModuleList(self.layer(size, units) for size in sizes)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        packing = pack(mask)
        indices = (packing.forward_index, packing.backward_index)
        flat = features.flatten(0, 1)
        for number, layers in enumerate(zip(self.forward_layers, self.backward_layers, strict=True)):
            flat = self._read(layers, flat if number == 0 else self.dropout(flat), indices, packing.batch_sizes)
        return flat.unflatten(0, mask.shape)

    # As in the biLM: a loop over time steps is not for tracing.
    @torch.compiler.disable
    def _read(
        self,
        layers: tuple[nn.Module, nn.Module],
        flat: Tensor,
        indices: tuple[Tensor, Tensor],
        batch_sizes: Sequence[int],
    ) -> Tensor:
        """A layer of both directions, side by side where that is faster: (B * T, D) -> (B * T, 2H)."""

        def run(side: int, flat: Tensor) -> tuple[Tensor]:
            packed = layers[side](flat.index_select(0, indices[side]), batch_sizes)
            return (packed.new_zeros(len(flat), packed.shape[1]).index_copy(0, indices[side], packed),)

        forward, backward = partial(run, 0), partial(run, 1)
        if trains_side_by_side(flat):
            own = (list(layers[0].parameters()), list(layers[1].parameters()))
            sides: Sequence[tuple[Tensor, ...]] = train_side_by_side(forward, backward, (flat,), own)
        elif torch.is_grad_enabled() or flat.device.type != "cpu":
            sides = (forward(flat), backward(flat))
        else:
            sides = side_by_side(lambda: forward(flat), lambda: backward(flat))
        return torch.cat([side[0] for side in sides], dim=-1)


class WordDropout(Dropout):
    """Dropout that loses the same features of every word of a sentence (Gal and Ghahramani, 2016)."""

    def noise_shape(self, features: Tensor) -> Sequence[int]:
        return len(features), 1, features.shape[2]


class Maxout(nn.Module):
    """The largest of several linear maps, feature by feature."""

    def __init__(self, inputs: int, outputs: int, pool: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs * pool)
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).unflatten(-1, (-1, self.pool)).amax(-1)


def attend(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension, over what the mask (B, S) has; zero where that is nothing."""
    keep = mask[:, None]
    return torch.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1) * keep


def pooled(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest, mean and smallest value of each feature over the real words: each (B, D), zero without words."""
    keep = mask[..., None]
    count = keep.sum(1)
    if not features.shape[1]:
        return (features.new_zeros(len(features), features.shape[2]),) * 3
    largest = features.masked_fill(~keep, torch.finfo(features.dtype).min).amax(1)
    smallest = features.masked_fill(~keep, torch.finfo(features.dtype).max).amin(1)
    mean = (features * keep).sum(1) / count.clamp(min=1)
    return largest * (count > 0), mean, smallest * (count > 0)


class BiattentiveNetwork(nn.Module):
    """The biattentive classification network of McCann et al. (2017) over one text, which attends to itself.

    A feed-forward layer, an encoding LSTM, attention, an integrating LSTM, four ways of pooling (largest, mean,
    smallest, and by learned attention), two maxout layers and a linear one. ELMo joins the integrating LSTM's output.
    The paper has a third maxout layer in place of the linear one, and normalises batches, which would make what an
    example teaches depend on the others of its batch.
    """

    POOL = 4

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(inputs, units)
        self.encoder = WordLstm(units, units)
        self.integrator = WordLstm(3 * self.encoder.size, units)
        size = self.integrator.size + elmo
        self.attention = nn.Linear(size, 1)
        self.hidden = nn.ModuleList([Maxout(4 * size, 2 * units, self.POOL), Maxout(2 * units, units, self.POOL)])
        self.output = nn.Linear(units, outputs)
        self.dropout = Dropout(dropout)

    def forward(self, text: Words) -> Tensor:
        """-> (B, outputs)"""
        encoded = self.encoder(self.dropout(F.relu(self.reduce(text.features))), text.mask)
        context = attend(encoded @ encoded.transpose(1, 2), text.mask) @ encoded
        compared = torch.cat([encoded, encoded - context, encoded * context], dim=-1)
        integrated = self.integrator(self.dropout(compared), text.mask)
        if text.elmo is not None:
            integrated = torch.cat([integrated, text.elmo], dim=-1)
        weights = attend(self.attention(self.dropout(integrated)).transpose(1, 2), text.mask)  # (B, 1, T)
        features = torch.cat([*pooled(integrated, text.mask), (weights @ integrated).squeeze(1)], dim=-1)
        for layer in self.hidden:
            features = layer(self.dropout(features))
        return self.output(self.dropout(features))


class Esim(nn.Module):
    """The enhanced sequential inference model of Chen et al. (2017) over a pair of texts.

    An encoding LSTM, soft alignment of the two texts, their comparison, a composing LSTM, pooling. ELMo joins the
    encoding LSTM's output, so that the alignment sees it.
    """

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.encoder = WordLstm(inputs, units)
        size = self.encoder.size + elmo
        self.compare = nn.Linear(4 * size, units)
        self.composer = WordLstm(units, units)
        self.hidden = nn.Linear(4 * self.composer.size, units)
        self.output = nn.Linear(units, outputs)
        self.word_dropout = WordDropout(dropout)
        self.dropout = Dropout(dropout)

    def forward(self, first: Words, second: Words) -> Tensor:
        """-> (B, outputs)"""
        # Both texts go through the LSTMs as one batch, which takes half the steps.
        mask = together(first.mask[..., None], second.mask[..., None])[..., 0]  # (2B, max(T, S))
        encoded = self.encoder(together(first.features, second.features), mask)
        if first.elmo is not None and second.elmo is not None:
            encoded = torch.cat([encoded, together(first.elmo, second.elmo)], dim=-1)
        (one, two), (mask_one, mask_two) = encoded.chunk(2), mask.chunk(2)
        scores = one @ two.transpose(1, 2)
        aligned = torch.cat([attend(scores, mask_two) @ two, attend(scores.transpose(1, 2), mask_one) @ one])
        compared = torch.cat([encoded, aligned, encoded - aligned, encoded * aligned], dim=-1)
        composed = self.composer(self.word_dropout(F.relu(self.compare(compared))), mask)
        largest, mean, _ = pooled(composed, mask)
        features = torch.cat([*torch.cat([mean, largest], dim=-1).chunk(2)], dim=-1)
        return self.output(self.dropout(torch.tanh(self.hidden(self.dropout(features)))))


def together(first: Tensor, second: Tensor) -> Tensor:
    """Two texts (B, T, D) and (B, S, D) as one batch (2B, max(T, S), D), the shorter filled up."""
    words = max(first.shape[1], second.shape[1])
    return torch.cat([F.pad(text, (0, 0, 0, words - text.shape[1])) for text in (first, second)])


__all__ = ["BiattentiveNetwork", "CharacterCnn", "Esim", "TaskConv", "WordDropout", "WordLstm", "Words"]
