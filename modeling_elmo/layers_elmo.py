"""The layers of ELMo: words from characters, one direction's LSTMs over packed words, and the mix of the layers.

These modules call each other like any others, so adapters, hooks and offloading work. `engine_elmo` computes the same
numbers faster where nothing of the kind is there.

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
from .recurrence_elmo import plain_recurrence, trained_recurrence

# Base of the polynomial hash that finds the distinct words of a batch; odd, so that its powers never vanish.
HASH_BASE = 0x5851F42D4C957F2D
# Words whose character windows go through one product: enough to fill it, few enough to be of about one length.
WORDS_PER_PRODUCT = 64
# Modules of torch that may be replaced by a function of their weights; see `is_plain`.
PLAIN_CLASSES = (nn.Conv1d, nn.Embedding, nn.Linear, nn.ModuleList, nn.ReLU, nn.Tanh)


def is_plain(*modules: nn.Module) -> bool:
    """Return whether nothing was added to modules, so that their weights alone say what they compute.

    They, and all modules inside, must be exactly of our classes or of PLAIN_CLASSES, without hooks, adapters,
    parametrizations, and with weights that are at hand: contiguous, without hooks, not offloaded, sharded or made in
    inference mode, where torch does not count changes.
    """
    if nn.modules.module._has_any_global_hook():
        return False
    package = __name__.rpartition(".")[0]
    for root in modules:
        for module in root.modules():
            kind = type(module)
            if kind not in PLAIN_CLASSES and kind.__module__.rpartition(".")[0] != package:
                return False
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return False
            if module._backward_pre_hooks or "forward" in module.__dict__:  # accelerate replaces `forward`
                return False
            for parameter in module._parameters.values():
                if parameter is not None and not _is_at_hand(parameter):
                    return False
    return True


def _is_at_hand(parameter: nn.Parameter) -> bool:
    if type(parameter) is not nn.Parameter or parameter.is_meta or parameter.is_inference():
        return False
    return parameter.is_contiguous() and not parameter._backward_hooks


# ---------------------------------------------------------------------------------------------------------- dropout


def dropout_noise(shape: Sequence[int], probability: float, like: Tensor) -> Tensor:
    """Return `F.dropout` of ones in a tenth of its time on a CPU.

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


class CarryGate(nn.Linear):
    """The gate of a highway layer, which starts out mostly closed."""


class ElmoHighway(nn.Module):
    """y = g * relu(W_t x + b_t) + (1 - g) * x with g = sigmoid(W_c x + b_c)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.carry = CarryGate(size, size)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.sigmoid(self.carry(inputs)) * (F.relu(self.transform(inputs)) - inputs)


class ElmoCharacterEncoder(nn.Module):
    """Context-free word vectors from rows of characters: (U, C) -> (U, P).

    With a word embedding a row has one more column, the word's id: (U, C + 1).
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
            self.projection = nn.Linear(config.word_embedding_dim + features, config.projection_dim)

    def forward(self, rows: Tensor) -> Tensor:
        features = []
        if self.word_embedding is not None:
            features.append(self.word_embedding(rows[:, -1]))
            rows = rows[:, :-1]
        if self.char_embedding is not None:
            characters = self.activation(self.convolve(rows))
            for highway in self.highways:
                characters = highway(characters)
            features.append(characters)
        words = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
        return words if self.projection is None else self.projection(words)

    def convolve(self, char_ids: Tensor) -> Tensor:
        """Return every filter's maximum over the positions of a word: (U, C) -> (U, features).

        A word ends in a run of one character, its padding, and windows inside that run are all the same: one of them
        is enough. So words are taken by length, a few at a time, and all their windows go through one product with all
        filters, the narrow ones padded with zeros.
        """
        if not len(char_ids) or not is_plain(self.convolutions):
            return self._call_convolutions(char_ids)
        assert self.char_embedding is not None
        filters, biases = [], []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            filters.append(F.pad(convolution.weight, (0, self.widest - convolution.weight.shape[2])))
            biases.append(convolution.bias)
        all_filters, bias = torch.cat(filters).flatten(1), torch.cat(biases)
        characters = char_ids.shape[1]
        lengths, order = spelled_lengths(char_ids).sort()
        maxima = []
        sorted_chunks = char_ids[order].split(WORDS_PER_PRODUCT)
        for chunk, chunk_lengths in zip(sorted_chunks, lengths.split(WORDS_PER_PRODUCT), strict=True):
            width = int(chunk_lengths[-1]) + self.widest
            if width <= characters:
                embedded = self.char_embedding(chunk[:, :width])
                windows = embedded.unfold(1, self.widest, 1).flatten(2)  # (u, length + 1, d * widest)
                maxima.append(F.linear(windows, all_filters).amax(1) + bias)
            else:
                maxima.append(self._call_convolutions(chunk))
        return torch.cat(maxima)[order.argsort()]

    def _call_convolutions(self, char_ids: Tensor) -> Tensor:
        assert self.char_embedding is not None
        embedded = self.char_embedding(char_ids).transpose(1, 2)  # (U, d, C)
        return torch.cat([convolution(embedded).amax(-1) for convolution in self.convolutions], dim=-1)


def spelled_lengths(char_ids: Tensor) -> Tensor:
    """Return where the run of one character that ends each word, its padding, begins: (U, C) -> (U,)."""
    places = torch.arange(1, char_ids.shape[1] + 1, device=char_ids.device)
    return ((char_ids != char_ids[:, -1:]) * places).amax(1)


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the distinct rows (U, C) of `rows` (N, C), the index of each row among them (N,), and their hashes (U,).

    Rows are compared by a 64-bit hash, which is checked; sorting whole rows costs many times more. Where two different
    rows share a hash, the rows are sorted after all, and there are no hashes.
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
    has one, and word t from the end. `batch_sizes[t]` counts the sentences with a step t. `order` holds the sentences,
    longest first.
    """

    forward_index: Tensor  # (N,)
    backward_index: Tensor  # (N,)
    batch_sizes: list[int]
    order: Tensor  # (S,)


def pack(mask: Tensor, segments: Tensor | None = None) -> Packing:
    """Pack the real words of a (B, T) mask. With `segments` each segment of a row is a sentence of its own."""
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

    @property
    def is_standard(self) -> bool:
        """Whether only the input gates have a bias, as at first."""
        modules = (self.input_gates, self.recurrent_gates, self.projection)  # which may have been replaced
        return [getattr(module, "bias", None) is not None for module in modules] == [True, False, False]

    def forward(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int], index: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """inputs (N, P), or (U, P) and an index (N,), hidden (S, P), cell (S, M) -> outputs (N, P), final states."""
        gates = self.input_gates(inputs.to(next(self.input_gates.parameters()).dtype))
        if index is not None:
            gates = gates[index]
        if self.is_standard and is_plain(self.recurrent_gates, self.projection):
            weights = (self.recurrent_gates.weight, self.projection.weight)
            return trained_recurrence(gates, hidden, cell, *weights, batch_sizes, *self.clips)
        modules = (self.recurrent_gates, self.projection)
        return plain_recurrence(gates, hidden, cell, *modules, batch_sizes, *self.clips)


class ElmoLanguageModel(nn.Module):
    """One direction: a stack of LSTM layers, each but the first adding its input to its output."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.use_skip_connections = config.use_skip_connections
        self.layers = nn.ModuleList(ElmoLstmLayer(config) for _ in range(config.num_hidden_layers))

    # A loop over time steps has as many shapes as there are batches: traced, it would be compiled again for each.
    @torch.compiler.disable
    def forward(
        self,
        words: Tensor,
        index: Tensor,
        hidden: Tensor,
        cell: Tensor,
        batch_sizes: Sequence[int],
        noise: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Read words (U, P), of which word k is `words[index[k]]`, from states hidden (L, S, P) and cell (L, S, M).

        The input of each layer is multiplied by its part of `noise` (L, N, P). Returns L outputs (N, P), then
        the final hidden and cell: tensors side by side, as backward hooks need them.
        """
        outputs, hiddens, cells = [], [], []
        word_index: Tensor | None = index
        if noise is not None:  # each occurrence of a word loses values of its own
            words, word_index = words[index], None
        for number, layer in enumerate(self.layers):
            if noise is not None:
                words = words * noise[number]
            output, final_hidden, final_cell = layer(words, hidden[number], cell[number], batch_sizes, word_index)
            words = output + words if self.use_skip_connections and number > 0 else output
            word_index = None
            outputs.append(words)
            hiddens.append(final_hidden)
            cells.append(final_cell)
        return *outputs, torch.stack(hiddens), torch.stack(cells)


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
        """Mix layers, each (..., D), to (..., D). Only the normalisation reads the mask (...) of real words."""
        if len(layers) != len(self.scalar_weights):
            raise ValueError(f"expected {len(self.scalar_weights)} layers to mix, got {len(layers)}")
        if self.layer_norm:
            layers = [self._normalise(layer, mask) for layer in layers]
        weights = torch.softmax(self.scalar_weights, dim=0)
        mixed = sum(weight * layer for weight, layer in zip(weights, layers, strict=True))
        return self.gamma * mixed

    def penalty(self) -> Tensor:
        """Return λ‖s‖², which is zero where all layers weigh the same."""
        return self.l2 * self.scalar_weights.square().sum()

    @staticmethod
    def _normalise(layer: Tensor, mask: Tensor | None) -> Tensor:
        keep = layer.new_ones(layer.shape[:-1]) if mask is None else mask.to(layer.dtype)
        keep = keep.unsqueeze(-1)
        count = (keep.sum() * layer.shape[-1]).clamp(min=1)
        mean = (layer * keep).sum() / count
        variance = ((layer - mean) * keep).square().sum() / count
        return (layer - mean) * keep * torch.rsqrt(variance + 1e-12)
