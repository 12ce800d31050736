"""The layers of ELMo: words from characters, one direction's LSTMs over packed words, and the mix of the layers.

Shapes: B batch, T words, C characters a word, P projection, M memory cells, L LSTM layers, N real words of a batch,
U distinct words among them, S sentences (B, or more where rows hold pairs).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_elmo import ElmoConfig
from .recurrence_elmo import (
    CompiledLayer,
    Derived,
    LayerWeights,
    PackedLayer,
    PackedLinear,
    compiled_recurrence,
    packed_recurrence,
    runs_compiled,
    runs_packed,
    trained_recurrence,
)

# Base of the polynomial hash that finds the distinct words of a batch; odd, so that its powers never vanish.
HASH_BASE = 0x5851F42D4C957F2D
# Words whose character windows go through one product: enough to fill it, few enough to be of about one length.
WORDS_A_PRODUCT = 64
# Memory for the vectors of words seen before.
CACHE_BYTES = 1 << 26

# ---------------------------------------------------------------------------------------------------------- dropout


def dropout_noise(shape: Sequence[int], probability: float, like: Tensor) -> Tensor:
    """`F.dropout` of ones in a tenth of its time on a CPU: 0 with a probability, else what keeps the mean 1.

    Every random number of 64 bits decides over four values, so the probability is a multiple of 2**-16.
    """
    if like.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(like.new_ones(shape), probability)
    dropped = min(round(probability * 2**16), 2**16 - 1)
    count = math.prod(shape)
    bits = torch.empty(math.ceil(count / 4), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[:count].view(*shape) >= dropped - 2**15
    return kept.to(like.dtype).mul_(2**16 / (2**16 - dropped))


class Dropout(nn.Module):
    """Dropout by `dropout_noise`."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or not self.probability:
            return features
        return features * dropout_noise(self.noise_shape(features), self.probability, features)

    def noise_shape(self, features: Tensor) -> Sequence[int]:
        return features.shape


# ------------------------------------------------------------------------------------------------------- characters


class CarryGate(PackedLinear):
    """The gate of a highway layer, which starts out mostly closed."""


class ElmoHighway(nn.Module):
    """y = g * relu(W_t x + b_t) + (1 - g) * x with g = sigmoid(W_c x + b_c)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = PackedLinear(size, size)
        self.carry = CarryGate(size, size)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.sigmoid(self.carry(inputs)) * (F.relu(self.transform(inputs)) - inputs)


class ElmoCharacterEncoder(nn.Module):
    """Context-free word vectors from rows of characters: (U, C) -> (U, P).

    With a word embedding a row has one column more, the word's id: (U, C + 1).
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.char_embedding = None
        if config.char_filters:
            self.char_embedding = nn.Embedding(config.char_vocab_size, config.char_embedding_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.char_embedding_dim, count, kernel_size=width) for width, count in config.char_filters
        )
        self.widest = max((width for width, _ in config.char_filters), default=0)
        self.activation = nn.ReLU() if config.char_activation == "relu" else nn.Tanh()
        features = config.num_char_features
        self.highways = nn.ModuleList(ElmoHighway(features) for _ in range(config.num_highway_layers))
        self.word_embedding = None
        if config.word_embedding_dim:
            self.word_embedding = nn.Embedding(config.vocab_size, config.word_embedding_dim, padding_idx=0)
        self.projection = None
        if config.has_projection:
            self.projection = PackedLinear(config.word_embedding_dim + features, config.projection_dim)
        # Bytes and markers are small numbers; ids of words and of a dictionary's characters need not be.
        self._row_dtype = torch.int16 if config.spelling == "bytes" else torch.int32
        self._cache = WordCache(self._row_dtype)

    def forward(self, rows: Tensor) -> Tensor:
        if self.word_embedding is None:
            words = self._read_characters(rows)
        else:
            words = self.word_embedding(rows[:, -1])
            if self.char_embedding is not None:
                words = torch.cat([words, self._read_characters(rows[:, :-1])], dim=-1)
        return words if self.projection is None else self.projection(words)

    def _read_characters(self, char_ids: Tensor) -> Tensor:
        """(U, C) -> (U, features)"""
        words = self.activation(self._convolve(char_ids))
        for highway in self.highways:
            words = highway(words)
        return words

    def encode_distinct(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """The same for distinct words, remembered from batch to batch while nothing is trained."""
        if keys is None or not runs_packed(self):
            return self(rows)
        return self._cache.look_up(self, rows, keys)

    def forget_words(self) -> None:
        """Drops the vectors remembered from earlier batches."""
        self._cache = WordCache(self._row_dtype)

    def _convolve(self, char_ids: Tensor) -> Tensor:
        """Every filter's maximum over the positions of a word: (U, C) -> (U, features).

        A word ends in a run of one character, its padding, and windows inside that run are all the same: one of them
        is enough. So words go by length, a few at a time, and all their windows through one product with all filters,
        the narrow ones filled up with zeros.
        """
        assert self.char_embedding is not None
        weights, biases = zip(
            *((convolution.weight, convolution.bias) for convolution in self.convolutions), strict=True
        )
        bias = torch.cat(biases)
        if not len(char_ids):
            return bias.new_zeros(0, len(bias))
        filters = torch.cat([F.pad(weight, (0, self.widest - weight.shape[2])) for weight in weights]).flatten(1)
        characters = char_ids.shape[1]
        places = torch.arange(1, characters + 1, device=char_ids.device)
        lengths, order = ((char_ids != char_ids[:, -1:]) * places).amax(1).sort()
        maxima = []
        for chunk, chunk_lengths in zip(
            char_ids[order].split(WORDS_A_PRODUCT), lengths.split(WORDS_A_PRODUCT), strict=True
        ):
            length = int(chunk_lengths[-1])
            if length + self.widest <= characters:
                embedded = self.char_embedding(chunk[:, : length + self.widest])
                windows = embedded.unfold(1, self.widest, 1).flatten(2)  # (u, length + 1, d * widest)
                maxima.append(F.linear(windows, filters).amax(1))
            else:
                embedded = self.char_embedding(chunk).transpose(1, 2)  # (u, d, C)
                maxima.append(torch.cat([F.conv1d(embedded, weight).amax(-1) for weight in weights], dim=-1))
        return torch.cat(maxima)[order.argsort()] + bias


class WordCache(Derived):
    """The vectors of words seen in earlier batches: exact, bounded, and forgotten when the weights change.

    A change through `parameter.data` is noticed by a sample of the larger weights (`Derived`).

    Args:
        row_dtype: a type that every number of a word's row fits.
    """

    def __init__(self, row_dtype: torch.dtype) -> None:
        super().__init__()
        self._row_dtype = row_dtype
        self._slots: dict[int, int] = {}

    def __reduce__(self) -> tuple:
        return type(self), (self._row_dtype,)

    # What is kept may be used where gradients are recorded later, which tensors made in inference mode may not.
    @torch.inference_mode(False)
    @torch.no_grad()
    def look_up(self, encoder: ElmoCharacterEncoder, rows: Tensor, keys: Tensor) -> Tensor:
        """The vectors of the words with these rows (U, C), for the encoder, and their 64-bit hashes (U,): (U, P)."""
        with self.renewal(encoder.parameters()) as is_stale:
            if is_stale:
                self._slots = {}
            return self._look_up(encoder, rows, keys)

    def _look_up(self, encoder: ElmoCharacterEncoder, rows: Tensor, keys: Tensor) -> Tensor:
        slots = torch.tensor([self._slots.get(key, -1) for key in keys.tolist()], dtype=torch.long)
        known = slots >= 0
        if self._slots:
            known &= (self._rows[slots.clamp(min=0)] == rows).all(1)  # two words may share a hash
        missing = (~known).nonzero().squeeze(1)
        new = encoder(rows[missing])
        vectors = new.new_empty(len(rows), new.shape[1])
        vectors[missing] = new
        if len(missing) < len(rows):
            vectors[known] = self._vectors[slots[known]]
        self._keep(keys[missing].tolist(), rows[missing], new)
        return vectors

    def _keep(self, keys: list[int], rows: Tensor, vectors: Tensor) -> None:
        capacity = CACHE_BYTES // (vectors.element_size() * vectors.shape[1])
        if len(keys) > capacity:
            return
        if not self._slots or len(self._slots) + len(keys) > capacity:  # empty, or full: start anew
            self._slots = {}
            self._vectors = vectors.new_empty(capacity, vectors.shape[1])
            self._rows = rows.new_empty(capacity, rows.shape[1], dtype=self._row_dtype)
        first = len(self._slots)
        self._vectors[first : first + len(keys)] = vectors
        self._rows[first : first + len(keys)] = rows
        self._slots.update(zip(keys, range(first, first + len(keys)), strict=True))


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The distinct rows (U, C) of `rows` (N, C), for each row its index among them (N,), and their hashes (U,).

    Rows are told apart by a 64-bit hash, which is checked; a sort of whole rows costs many times more. Where two rows
    share a hash, the rows are sorted after all, and there are no hashes.
    """
    powers = torch.full((rows.shape[1],), HASH_BASE, dtype=torch.int64, device=rows.device).cumprod(0)
    keys, index = torch.unique((rows * powers).sum(-1), return_inverse=True)
    first = index.new_zeros(len(keys)).scatter_(0, index, torch.arange(len(rows), device=rows.device))
    distinct = rows[first]
    if torch.equal(distinct[index], rows):
        return distinct, index, keys
    distinct, index = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, index, None


# ---------------------------------------------------------------------------------------------------------- packing


class Packing(NamedTuple):
    """The N real words of a batch in the order the LSTMs read them: step by step, longest sentence first.

    `forward_index` and `backward_index` hold positions in the flattened (B * T) batch: word t of every sentence that
    has one, and word t from the end. `batch_sizes[t]` is how many sentences have a step t. `order` holds the
    sentences, longest first.
    """

    forward_index: Tensor  # (N,)
    backward_index: Tensor  # (N,)
    batch_sizes: list[int]
    order: Tensor  # (S,)


def pack(mask: Tensor, segments: Tensor | None = None) -> Packing:
    """Packs the real words of a (B, T) mask. With `segments` each segment of a row is a sentence of its own."""
    rows = torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)
    sentences = mask.shape[0]
    if segments is not None:
        per_row = int(segments.max()) + 1 if segments.numel() else 1
        rows, sentences = rows * per_row + segments, sentences * per_row
    positions = mask.flatten().nonzero().squeeze(1)  # (N,)
    sentence_of = rows.flatten()[positions]
    if segments is not None:
        sentence_of, by_sentence = sentence_of.sort(stable=True)
        positions = positions[by_sentence]
    lengths = torch.bincount(sentence_of, minlength=sentences)
    starts = lengths.cumsum(0) - lengths
    order = lengths.argsort(descending=True, stable=True)
    lengths, starts = lengths[order], starts[order]
    steps = torch.arange(int(lengths[0]) if sentences else 0, device=mask.device)[:, None]
    real = steps < lengths  # (steps, S)
    return Packing(
        forward_index=positions[(starts + steps)[real]],
        backward_index=positions[(starts + lengths - 1 - steps)[real]],
        batch_sizes=real.sum(1).tolist(),
        order=order,
    )


# -------------------------------------------------------------------------------------------------- language models


class GlorotLinear(nn.Linear):
    """A matrix of an LSTM, initialised Glorot-uniformly as a part of one with `fan_in` columns."""

    def __init__(self, in_features: int, out_features: int, fan_in: int, bias: bool = False) -> None:
        self.bound = (6 / (fan_in + out_features)) ** 0.5
        super().__init__(in_features, out_features, bias=bias)

    def set_initial_weights(self) -> None:
        init.uniform_(self.weight, -self.bound, self.bound)


class ElmoLstmLayer(GradientCheckpointingLayer):
    """One LSTM layer with projection and clips, over packed words. `plain_recurrence` has the equations."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.clips = (config.cell_clip, config.projection_clip)
        size, cells = config.projection_dim, config.cell_dim
        # The original keeps both in one matrix over [input; recurrent state].
        self.input_gates = GlorotLinear(size, 4 * cells, fan_in=2 * size, bias=True)
        self.recurrent_gates = GlorotLinear(size, 4 * cells, fan_in=2 * size)
        self.projection = GlorotLinear(cells, size, fan_in=cells)
        self._packed = PackedLayer()
        self._compiled = CompiledLayer()

    def forward(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int], index: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """inputs (N, P), or (U, P) and an index (N,), hidden (S, P), cell (S, M) -> outputs (N, P), final states."""
        if runs_packed(self, inputs, hidden, cell):
            with torch.no_grad():
                if len(hidden) == 1 and runs_compiled(self.weights):
                    self._compiled.refresh(self.weights)
                    words = inputs if index is None else inputs[index]
                    return compiled_recurrence(self._compiled, words, hidden, cell, *self.clips)
                self._packed.refresh(self.weights)
                return packed_recurrence(self._packed, inputs, index, hidden, cell, batch_sizes, *self.clips)
        gates = self.input_gates(inputs if index is None else inputs[index])  # (N, 4M)
        _, _, recurrent, projection = self.weights
        return trained_recurrence(gates, hidden, cell, recurrent, projection, batch_sizes, *self.clips)

    @property
    def weights(self) -> LayerWeights:
        gates = self.input_gates
        return LayerWeights(gates.weight, gates.bias, self.recurrent_gates.weight, self.projection.weight)


class ElmoLanguageModel(nn.Module):
    """One direction: a stack of LSTM layers, each but the first adding its input to its output."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.use_skip_connections = config.use_skip_connections
        self.layers = nn.ModuleList(ElmoLstmLayer(config) for _ in range(config.num_hidden_layers))

    # A loop over time steps has as many shapes as there are batches: traced, it would be compiled anew for each.
    @torch.compiler.disable
    def forward(
        self,
        words: Tensor,
        index: Tensor,
        hidden: Tensor,
        cell: Tensor,
        batch_sizes: Sequence[int],
        noise: Tensor | None = None,
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """words (U, P) of which word k is `words[index[k]]`, hidden (L, S, P), cell (L, S, M) -> L outputs (N, P),
        final hidden and cell likewise. The input of each layer is multiplied by its part of `noise` (L, N, P).
        """
        outputs, final = [], []
        word_index: Tensor | None = index
        if noise is not None:  # each occurrence of a word loses values of its own
            words, word_index = words[index], None
        for number, layer in enumerate(self.layers):
            if noise is not None:
                words = words * noise[number]
            output, layer_hidden, layer_cell = layer(words, hidden[number], cell[number], batch_sizes, word_index)
            words = output + words if self.use_skip_connections and number > 0 else output
            word_index = None
            outputs.append(words)
            final.append((layer_hidden, layer_cell))
        final_hidden, final_cell = (torch.stack(states) for states in zip(*final, strict=True))
        return outputs, final_hidden, final_cell


# ------------------------------------------------------------------------------------------------------ scalar mix


class ElmoScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j * h_j over the layers h_j, each optionally normalised first.

    Args:
        num_layers: how many layers are mixed.
        layer_norm: whether each layer is normalised to mean 0 and variance 1 over all real words of the batch.
        l2: the λ of the paper, the strength of [`ElmoScalarMix.penalty`].
    """

    def __init__(self, num_layers: int, layer_norm: bool = False, l2: float = 0.0) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.l2 = l2
        self.scalar_weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def set_initial_weights(self) -> None:
        init.zeros_(self.scalar_weights)
        init.ones_(self.gamma)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """layers, each (..., D), and a (...) mask of real words, which only the normalisation reads -> (..., D)."""
        if len(layers) != len(self.scalar_weights):
            raise ValueError(f"expected {len(self.scalar_weights)} layers to mix, got {len(layers)}")
        if self.layer_norm:
            layers = [self._normalise(layer, mask) for layer in layers]
        weights = torch.softmax(self.scalar_weights, dim=0)
        mixed = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
        return self.gamma * mixed

    def penalty(self) -> Tensor:
        """λ‖s‖²: zero where all layers weigh the same."""
        return self.l2 * self.scalar_weights.square().sum()

    @staticmethod
    def _normalise(layer: Tensor, mask: Tensor | None) -> Tensor:
        keep = layer.new_ones(layer.shape[:-1]) if mask is None else mask.to(layer.dtype)
        keep = keep.unsqueeze(-1)
        count = (keep.sum() * layer.shape[-1]).clamp(min=1)
        mean = (layer * keep).sum() / count
        variance = ((layer - mean) * keep).square().sum() / count
        return (layer - mean) * keep * torch.rsqrt(variance + 1e-12)
