"""The layers of ELMo: words from characters, LSTMs over packed words, the mix; and at the end, their packed forms.

Modules call each other like any others, so adapters, hooks and offloading work. Where `is_plain` finds nothing of the
kind, `prepare` returns a copy of the biLM that computes the same faster, on a CPU and without gradients: weights laid
out for oneDNN, the logistic function for all gates, word vectors remembered from batch to batch, and for a single
sentence a recurrence compiled by numba, if installed. Weights in bfloat16 are multiplied in 16 bits where the CPU can.

Shapes: B batch, T words, C characters per word, P projection, M memory cells, L LSTM layers, N real words of a batch,
U distinct words among them, S sentences (B, or more where rows hold pairs).
"""

import copy
import functools
import math
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_elmo import ElmoConfig
from .recurrence_elmo import FORGET_BIAS, TILE, plain_recurrence, trained_recurrence

# Words whose character windows go through one product: enough to fill it, few enough to be of about one length.
WORDS_PER_PRODUCT = 64
# Modules of torch that may be replaced by a function of their weights; see `is_plain`.
PLAIN_CLASSES = (nn.Conv1d, nn.Embedding, nn.Linear, nn.ModuleList, nn.ReLU, nn.Tanh)

# Words whose gates are computed at once: bounds the memory of a batch, or of one endless sentence.
WORDS_AT_ONCE = 2048
# Rows that oneDNN is told to expect when it lays out a matrix. One layout serves all sizes about equally well.
TYPICAL_ROWS = 64
# oneDNN keeps what it made for every number of rows: many rows are padded to a multiple of this.
ROW_UNIT = 64
# Weights of a layer that a CPU's cache may hold for both directions. Of a larger one a part comes from main memory at
# every step: neither numba nor a second thread helps then, if there is only one sentence.
CACHED_WEIGHTS = 1 << 22
# Memory for words seen before: their vectors, and their rows of characters to tell them apart.
CACHE_BYTES = 1 << 26
ROW_DTYPE = torch.int32
# Values of each weight that are compared to notice changes torch does not count: all of a small one, else a sample.
# PEFT merges its adapters so, through `weight.data`.
ALL_COMPARED, SAMPLED = 1 << 13, 64
PACKED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_plain(*modules: nn.Module) -> bool:
    """Return whether nothing was added to modules, so that their weights alone say what they compute.

    They, and all modules inside, must be exactly of our classes or of PLAIN_CLASSES, without hooks, adapters or
    parametrizations. Weights must be contiguous, without hooks, not offloaded, sharded or made in inference mode,
    where torch does not count changes.
    """
    if nn.modules.module._has_any_global_hook():
        return False
    package = __name__.rpartition(".")[0]
    for root in modules:
        for module in root.modules():
            kind = type(module)
            if kind not in PLAIN_CLASSES and kind.__module__.rpartition(".")[0] != package:
                return False
            if kind is GlorotLinear and module.has_bias != (module.bias is not None):
                return False
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                return False
            if module._backward_pre_hooks or "forward" in module.__dict__:  # accelerate replaces `forward`
                return False
            for parameter in module._parameters.values():
                if parameter is None:
                    continue
                if type(parameter) is not nn.Parameter or parameter.is_meta or parameter.is_inference():
                    return False
                if parameter._backward_hooks or not parameter.is_contiguous():
                    return False
    return True


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
        self.char_embedding: Any = None
        if config.char_filters:
            self.char_embedding = nn.Embedding(config.char_vocab_size, config.char_embedding_dim, padding_idx=0)
        self.convolutions = nn.ModuleList()
        self.widest = 0
        for width, count in config.char_filters:
            self.convolutions.append(nn.Conv1d(config.char_embedding_dim, count, width))
            self.widest = max(self.widest, width)
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
        words = torch.cat(features, dim=-1)
        return words if self.projection is None else self.projection(words)

    def convolve(self, char_ids: Tensor) -> Tensor:
        """Return every filter's maximum over the positions of a word: (U, C) -> (U, features).

        A word ends in a run of one character, its padding, and windows inside that run are all the same: one of them
        is enough. So words are taken by length, a few at a time, and all their windows go through one product with all
        filters, the narrow ones padded with zeros.
        """
        if not len(char_ids) or not is_plain(self.convolutions):
            return self._call_convolutions(char_ids)
        filters: list[Tensor] = []
        biases: list[Tensor] = []
        for convolution in self.convolutions:
            weight, bias = convolution.parameters()
            filters.append(F.pad(weight, (0, self.widest - weight.shape[2])).flatten(1))
            biases.append(bias)
        all_filters, all_biases = torch.cat(filters), torch.cat(biases)
        lengths, order = spelled_lengths(char_ids).sort()
        ends = lengths.tolist()  # a device has to be waited for once, not for every chunk
        maxima = []
        for number, chunk in enumerate(char_ids[order].split(WORDS_PER_PRODUCT)):
            width = ends[number * WORDS_PER_PRODUCT + len(chunk) - 1] + self.widest
            if width > char_ids.shape[1]:
                maxima.append(self._call_convolutions(chunk))
                continue
            windows = self.char_embedding(chunk[:, :width]).unfold(1, self.widest, 1)  # (u, length + 1, d, widest)
            maxima.append(F.linear(windows.flatten(2), all_filters).amax(1) + all_biases)
        return torch.cat(maxima)[order.argsort()]

    def _call_convolutions(self, char_ids: Tensor) -> Tensor:
        embedded = self.char_embedding(char_ids).transpose(1, 2)  # (U, d, C)
        return torch.cat([convolution(embedded).amax(-1) for convolution in self.convolutions], dim=-1)


def spelled_lengths(char_ids: Tensor) -> Tensor:
    """Return where the run of one character that ends each word, its padding, begins: (U, C) -> (U,)."""
    places = torch.arange(1, char_ids.shape[1] + 1, device=char_ids.device)
    return ((char_ids != char_ids[:, -1:]) * places).amax(1)


# -------------------------------------------------------------------------------------------------- language models


class GlorotLinear(nn.Linear):
    """A matrix of an LSTM, initialised Glorot-uniformly as a part of one with `fan_in` columns."""

    def __init__(self, in_features: int, out_features: int, fan_in: int, bias: bool = False) -> None:
        self.bound = (6 / (fan_in + out_features)) ** 0.5
        self.has_bias = bias
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

    def forward(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int], index: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """inputs (N, P), or (U, P) and an index (N,), hidden (S, P), cell (S, M) -> outputs (N, P), final states."""
        gates = self.input_gates(inputs.to(next(self.input_gates.parameters()).dtype))
        if index is not None:
            gates = F.embedding(index, gates)  # its gradient takes a tenth of the time of gates[index]'s
        modules = (self.recurrent_gates, self.projection)
        if is_plain(*modules) and all(type(module) is GlorotLinear for module in modules):
            weights = (self.recurrent_gates.weight, self.projection.weight)
            return trained_recurrence(gates, hidden, cell, *weights, batch_sizes, *self.clips)
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
        layer_index: Tensor | None = index
        if noise is not None:  # each occurrence of a word loses values of its own
            words, layer_index = words[index], None
        outputs, hiddens, cells = [], [], []
        for number, layer in enumerate(self.layers):
            if noise is not None:
                words = words * noise[number]
            output, final_hidden, final_cell = layer(words, hidden[number], cell[number], batch_sizes, layer_index)
            words = output + words if self.use_skip_connections and number > 0 else output
            layer_index = None
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
        if self.layer_norm:
            layers = [self.normalise(layer, mask) for layer in layers]
        weights = torch.softmax(self.scalar_weights, dim=0)
        return self.gamma * sum(weight * layer for weight, layer in zip(weights, layers, strict=True))

    def penalty(self) -> Tensor:
        """Return λ‖s‖², which is zero where all layers weigh the same."""
        return self.l2 * self.scalar_weights.square().sum()

    @staticmethod
    def normalise(layer: Tensor, mask: Tensor | None) -> Tensor:
        """Normalise a layer (..., D) to mean 0 and variance 1 over all real words of the mask (...)."""
        keep = torch.ones_like(layer[..., :1]) if mask is None else mask.to(layer.dtype)[..., None]
        count = (keep.sum() * layer.shape[-1]).clamp(min=1)
        centered = (layer - (layer * keep).sum() / count) * keep
        return centered * torch.rsqrt(centered.square().sum() / count + 1e-12)


# ----------------------------------------------------------------------------------------------------- packed forms


class PackedLinear:
    """A linear layer whose weight is laid out once for fast products with few rows.

    It computes in bfloat16 where weight and CPU have it, else in float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        self.dtype = torch.bfloat16 if weight.dtype == torch.bfloat16 and has_bfloat16 else torch.float32
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        self.bias = bias.detach().to(self.dtype)
        weight = weight.detach().to(self.dtype)
        self.has_onednn = torch.backends.mkldnn.is_available()
        if self.has_onednn:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        else:
            self.weight = weight.T.contiguous()

    def __call__(self, rows: Tensor, addend: Tensor | None = None) -> Tensor:
        """Return rows @ weight.T + addend, which is the bias by default, or else has a row for each row."""
        rows = rows.to(self.dtype)
        if not self.has_onednn:
            return torch.addmm(self.bias if addend is None else addend, rows, self.weight)
        if addend is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(rows, addend, self.weight, None, "add")
        count = len(rows)
        if count > ROW_UNIT:
            rows = F.pad(rows, (0, 0, 0, -count % ROW_UNIT))
        return torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")[:count]


class PackedLstm(nn.Module):
    """An LSTM layer by its weights, changed so that the logistic function serves all gates and the cell.

    It is several times cheaper than tanh, and tanh(x) = 2 sigmoid(2x) - 1: the rows of gate j are doubled, and so is
    the projection, for the tanh of the cell. Doubling is exact in floating point.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        assert isinstance(layer, ElmoLstmLayer)
        inputs, recurrent = layer.input_gates.weight.clone(), layer.recurrent_gates.weight.clone()
        bias = layer.input_gates.bias.float().clone()
        for tensor in (inputs, recurrent, bias):
            tensor.chunk(4)[1].mul_(2)
        bias.chunk(4)[2].add_(FORGET_BIAS)
        projection = layer.projection.weight * 2
        self.inputs = PackedLinear(inputs, bias)
        self.recurrent = PackedLinear(recurrent)
        self.projection = PackedLinear(projection)
        cell_clip, projection_clip = layer.clips
        self.cell_bound = math.inf if cell_clip is None else 2 * cell_clip  # of twice the cell
        self.output_bound = math.inf if projection_clip is None else projection_clip
        self.fits_cache = recurrent.numel() + projection.numel() <= CACHED_WEIGHTS
        self.tiles: list[numpy.ndarray] = []  # the recurrent and projection weights, as numba's recurrence reads them
        if self.fits_cache and not any(size % TILE for size in projection.shape):
            for weight in (recurrent, projection):  # (N, K) -> (N / TILE, K, TILE)
                tiles = weight.float().unflatten(0, (-1, TILE)).transpose(1, 2)
                self.tiles.append(tiles.contiguous().numpy())

    def forward(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int], index: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute what `ElmoLstmLayer` does."""
        hidden, doubled = hidden.float(), cell.float() * 2
        if len(hidden) == 1 and self.tiles and _compiled_recurrence() is not None:
            return self._read_sentence(inputs if index is None else inputs[index], hidden, doubled)
        final_hidden, final_doubled = hidden.clone(), doubled
        outputs = hidden.new_empty(sum(batch_sizes), hidden.shape[1])
        all_gates = self._step_gates(inputs, batch_sizes, index)
        for gates, output in zip(all_gates, outputs.split(batch_sizes), strict=True):
            size = len(gates)
            if size < len(hidden):  # sentences have ended
                final_hidden[size : len(hidden)] = hidden[size:]
                hidden, doubled = hidden[:size], doubled[:size]
            i, j, f, o = self.recurrent(hidden, gates).float().sigmoid_().chunk(4, dim=-1)
            doubled.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2).clamp_(-self.cell_bound, self.cell_bound)
            squashed = torch.sigmoid(doubled).sub_(0.5).mul_(o)  # half of sigmoid(o) * tanh(c)
            projected = self.projection(squashed).float()
            hidden = torch.clamp(projected, -self.output_bound, self.output_bound, out=output)
        final_hidden[: len(hidden)] = hidden
        return outputs, final_hidden, final_doubled / 2

    def _step_gates(self, inputs: Tensor, batch_sizes: Sequence[int], index: Tensor | None) -> Iterator[Tensor]:
        """Yield the gates of every step's inputs, computed for many words at once, and once for words that recur."""
        if index is not None and len(inputs) <= WORDS_AT_ONCE:
            gates = self.inputs(inputs)
            for step_index in index.split(list(batch_sizes)):
                yield gates.index_select(0, step_index)
            return
        words = inputs if index is None else inputs[index]
        gates, start = words[:0], 0
        for size in batch_sizes:
            if len(gates) < size:
                gates = self.inputs(words[start : start + max(size, WORDS_AT_ONCE)])
            yield gates[:size]
            gates, start = gates[size:], start + size

    def _read_sentence(self, inputs: Tensor, hidden: Tensor, doubled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read one sentence (T, P) outside Python."""
        bounds = [numpy.float32(bound) for bound in (self.cell_bound, self.output_bound)]
        outputs = hidden.new_empty(len(inputs), hidden.shape[1])
        for start in range(0, len(inputs), WORDS_AT_ONCE):
            gates = self.inputs(inputs[start : start + WORDS_AT_ONCE]).float()
            arrays = [tensor.numpy() for tensor in (hidden[0], doubled[0], outputs[start : start + len(gates)])]
            _compiled_recurrence()(gates.numpy(), *self.tiles, *arrays, *bounds)
            hidden = outputs[start + len(gates) - 1 :][:1]
        return outputs, hidden.clone(), doubled / 2


@functools.cache
def _compiled_recurrence() -> Any:
    """Return the recurrence that numba compiles, or None where numba or a folder to keep it in is missing."""
    try:
        from .kernel_elmo import read_sentence
    except (ImportError, RuntimeError):
        return None
    return read_sentence


class PackedBilm:
    """A copy of the biLM with its linear and LSTM layers in packed form, and the vectors of words seen before.

    It holds while the weights stay the same. Threads may share it. Copied or pickled, it is None.
    """

    def __init__(
        self,
        encoder: ElmoCharacterEncoder,
        models: Sequence[ElmoLanguageModel],
        parameters: Sequence[nn.Parameter],
        settings: Sequence[Any],
    ) -> None:
        self._sources = [parameter.detach() for parameter in parameters]  # so that their storages stay alive
        self._versions = [parameter._version for parameter in parameters]
        self._settings = settings
        self._samples = []
        for source in self._sources:
            values = source.flatten()
            self._samples.append(values if len(values) <= ALL_COMPARED else values[:: len(values) // SAMPLED])
        self._values = torch.cat(self._samples)
        copies: dict[int, Any] = {id(parameter): parameter for parameter in parameters}  # which are shared
        with torch.inference_mode(False), torch.no_grad():  # to be used again where gradients are recorded
            for module in encoder.modules():
                if isinstance(module, nn.Linear):
                    copies[id(module)] = PackedLinear(module.weight, module.bias)
            for model in models:
                for layer in model.layers:
                    copies[id(layer)] = PackedLstm(layer)
        self.encoder, self.models = copy.deepcopy((encoder, models), copies)
        self.fits_cache = self.models[0].layers[0].fits_cache
        self._slots: dict[int, int] = {}
        self._rows = self._vectors = torch.empty(0)
        self._lock = Lock()

    def __reduce__(self) -> tuple:
        return type(None), ()

    def is_stale(self, parameters: Sequence[nn.Parameter], settings: Sequence[Any]) -> bool:
        """Return whether this was made from other weights or settings, or from these before they changed.

        A few values written through `weight.data` may go unnoticed.
        """
        if len(parameters) != len(self._sources) or settings != self._settings:
            return True
        for parameter, source, version in zip(parameters, self._sources, self._versions, strict=True):
            if parameter.data_ptr() != source.data_ptr() or parameter._version != version:
                return True
        return not torch.equal(torch.cat(self._samples), self._values)

    @torch.inference_mode(False)
    @torch.no_grad()
    def encode(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """Compute the vectors of distinct words (U, C) -> (U, P), remembering them by their hashes (U,), if any.

        Vectors of word embeddings are not remembered: a change of a few of their many rows could go unnoticed.
        """
        if keys is None or self.encoder.word_embedding is not None:
            return self.encoder(rows)
        if not self._lock.acquire(blocking=False):  # another thread, or one that a fork has left behind
            return self.encoder(rows)
        try:
            slots = torch.tensor([self._slots.get(key, -1) for key in keys.tolist()], dtype=torch.long)
            known = slots >= 0
            if self._slots:
                known &= (self._rows[slots] == rows).all(1)  # two words may share a hash
            if self._slots and known.all():
                return self._vectors[slots]
            missing = (~known).nonzero().squeeze(1)
            new = self.encoder(rows[missing])
            vectors = new.new_empty(len(rows), new.shape[1])
            vectors[missing] = new
            if self._slots:
                vectors[known] = self._vectors[slots[known]]
            capacity = CACHE_BYTES // (new.element_size() * new.shape[1] + ROW_DTYPE.itemsize * rows.shape[1])
            if len(missing) > capacity:
                return vectors
            if not self._slots or len(self._slots) + len(missing) > capacity:  # empty or full: start again
                self._slots = {}
                self._vectors = new.new_empty(capacity, new.shape[1])
                self._rows = rows.new_empty(capacity, rows.shape[1], dtype=ROW_DTYPE)
            first = len(self._slots)
            self._vectors[first : first + len(missing)] = new
            self._rows[first : first + len(missing)] = rows[missing]
            for slot, key in enumerate(keys[missing].tolist(), start=first):
                self._slots[key] = slot
            return vectors
        finally:
            self._lock.release()


def prepare(
    packed: PackedBilm | None,
    encoder: ElmoCharacterEncoder,
    models: Sequence[ElmoLanguageModel],
    inputs: Sequence[Tensor],
) -> PackedBilm | None:
    """Return the biLM in packed form, the given one if it still holds; None where the modules themselves must run.

    It is packed if nothing was added to its modules, in eval mode, without gradients, on a CPU.
    """
    modules = (encoder, *models)
    layers = [layer for model in models for layer in model.layers]
    gates = [module for layer in layers for module in layer.children()]
    if not is_plain(*modules) or any(type(module) is not GlorotLinear for module in gates):
        return None
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or any(m.training for m in modules):
        return None
    parameters = [parameter for module in modules for parameter in module.parameters()]
    records = torch.is_grad_enabled()
    for tensor in (*parameters, *inputs):
        if not tensor.is_cpu or tensor.dtype not in PACKED_DTYPES or (records and tensor.requires_grad):
            return None
    settings: list[Any] = [type(encoder.activation), *(model.use_skip_connections for model in models)]
    settings += [layer.clips for layer in layers]
    if packed is None or packed.is_stale(parameters, settings):
        packed = PackedBilm(encoder, models, parameters, settings)
    return packed
