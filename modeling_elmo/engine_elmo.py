"""The biLM without gradients on a CPU, several times faster than its modules and with the same numbers.

`Engine` reads the weights past the modules. So it runs only where `is_plain` finds that nothing was added to them:
no adapter, hook, parametrization or offloaded weight. Everything else takes the modules' own way.

What makes it fast: weights laid out as oneDNN multiplies them fastest, the logistic function for all gates, word
vectors remembered from batch to batch, one thread per direction, and for a single sentence a recurrence compiled by
numba, where that is installed. Weights in bfloat16 are multiplied in 16 bits where the CPU can; states and everything
elementwise stay in float32.

Shapes: N packed words, U distinct words, S sentences, C characters per word, P projection, M memory cells, L layers.
"""

import functools
import math
from collections.abc import Callable, Sequence
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers_elmo import ElmoCharacterEncoder, ElmoHighway, ElmoLanguageModel, ElmoLstmLayer, Packing, is_plain
from .recurrence_elmo import FORGET_BIAS, States
from .threads_elmo import run_in_parallel

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
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Engine:
    """Keeps what was made from a biLM's weights for speed, while these stay the same. Neither copied nor pickled.

    Changes are noticed by the weights' identity, torch's count of changes in place, and a sample of their values. A
    few values written through `weight.data` may go unnoticed: call `clear` after that.
    """

    def __init__(self) -> None:
        self._packed: PackedBilm | None = None

    def __deepcopy__(self, memo: dict) -> "Engine":
        return Engine()

    def __reduce__(self) -> tuple:
        return Engine, ()

    def clear(self) -> None:
        """Forget everything that was made from the weights, remembered words included."""
        self._packed = None

    def prepare(
        self, encoder: ElmoCharacterEncoder, models: Sequence[ElmoLanguageModel], inputs: Sequence[Tensor]
    ) -> "PackedBilm | None":
        """Return the biLM by its weights, or None where it must run by its modules.

        It runs by its weights if nothing was added to them, in eval mode, without gradients, on a CPU.
        """
        modules = (encoder, *models)
        parameters = [parameter for module in modules for parameter in module.parameters()]
        if not is_plain(*modules) or not all(layer.is_standard for model in models for layer in model.layers):
            self.clear()
            return None
        if any(tensor.device.type != "cpu" or tensor.dtype not in DTYPES for tensor in parameters):
            self.clear()
            return None
        if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return None
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*parameters, *inputs)):
            return None
        if any(module.training for module in modules) or any(tensor.dtype == torch.float64 for tensor in inputs):
            return None
        packed = self._packed
        if packed is None or packed.is_stale(parameters):
            packed = self._packed = PackedBilm(encoder, models, parameters)
        return packed


class PackedBilm:
    """A biLM by its weights as they are now. Threads may share it; when weights change, another takes its place."""

    def __init__(
        self,
        encoder: ElmoCharacterEncoder,
        models: Sequence[ElmoLanguageModel],
        parameters: Sequence[nn.Parameter],
    ) -> None:
        self.encoder = encoder
        self.models = models
        self._sources = [parameter.detach() for parameter in parameters]  # so that their storages stay alive
        self._versions = [parameter._version for parameter in parameters]
        self._settings = self._read_settings()
        self._samples = []
        for source in self._sources:
            values = source.flatten()
            self._samples.append(values if len(values) <= ALL_COMPARED else values[:: len(values) // SAMPLED])
        self._values = torch.cat(self._samples)
        self._matrices: dict[nn.Module, Any] = {}
        self.words = WordCache()

    def _read_settings(self) -> list[Any]:
        """Return what the result depends on beside the weights."""
        clips = [layer.clips for model in self.models for layer in model.layers]
        return [type(self.encoder.activation), *clips]

    def is_stale(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Return whether this was made from other weights, or from these before they changed."""
        if len(parameters) != len(self._sources) or self._settings != self._read_settings():
            return True
        for parameter, source, version in zip(parameters, self._sources, self._versions, strict=True):
            if parameter.data_ptr() != source.data_ptr() or parameter._version != version:
                return True
        return not torch.equal(torch.cat(self._samples), self._values)

    def _packed(self, module: nn.Module) -> Any:
        """Return a linear layer's `PackedLinear` or an LSTM layer's `PackedLstm`, made when first needed."""
        packed = self._matrices.get(module)
        if packed is None:
            with torch.inference_mode(False), torch.no_grad():  # to be used again where gradients are recorded
                if isinstance(module, ElmoLstmLayer):
                    packed = PackedLstm(module)
                else:
                    assert isinstance(module, nn.Linear)
                    packed = PackedLinear(module.weight, module.bias)
            self._matrices[module] = packed
        return packed

    @torch.inference_mode(False)
    @torch.no_grad()
    def encode(self, rows: Tensor, keys: Tensor | None) -> Tensor:
        """Compute the vectors of distinct words (U, C) -> (U, P), remembering them by their hashes (U,), if any.

        Vectors of word embeddings are not remembered: a change of a few of their many rows could go unnoticed.
        """
        if keys is None or self.encoder.word_embedding is not None:
            return self._encode(rows)
        return self.words.look_up(rows, keys, self._encode)

    def _encode(self, rows: Tensor) -> Tensor:
        encoder = self.encoder
        features = []
        if encoder.word_embedding is not None:
            features.append(encoder.word_embedding(rows[:, -1]))
            rows = rows[:, :-1]
        if encoder.char_embedding is not None:
            characters = encoder.activation(encoder.convolve(rows))
            for highway in encoder.highways:
                assert isinstance(highway, ElmoHighway)
                carry = torch.sigmoid(self._packed(highway.carry)(characters))
                characters = characters + carry * (F.relu(self._packed(highway.transform)(characters)) - characters)
            features.append(characters)
        words = torch.cat(features, dim=-1)
        return words if encoder.projection is None else self._packed(encoder.projection)(words)

    @torch.no_grad()
    def read(
        self, words: Tensor, index: Tensor, states: States, packing: Packing
    ) -> list[tuple[list[Tensor], States]]:
        """Run both directions over words (U, P): word k of direction d is `words[index[d, k]]`.

        Returns the L outputs (N, P) and the final states of each direction, as the modules would.
        """

        def run(direction: int) -> tuple[list[Tensor], States]:
            model = self.models[direction]
            hidden, cell = (state[direction][:, packing.order].float() for state in states)
            layer_index: Tensor | None = index[direction]
            inputs = words
            outputs, hiddens, cells = [], [], []
            for number, layer in enumerate(model.layers):
                start = (hidden[number], cell[number])
                packed = self._packed(layer)
                output, final_hidden, final_cell = packed.read(inputs, layer_index, *start, packing.batch_sizes)
                inputs = output + inputs if model.use_skip_connections and number > 0 else output
                layer_index = None
                outputs.append(inputs)
                hiddens.append(final_hidden)
                cells.append(final_cell)
            return outputs, (torch.stack(hiddens), torch.stack(cells))

        is_one = len(packing.order) == 1
        if is_one and self._packed(self.models[0].layers[0]).exceeds_cache:
            return [run(0), run(1)]
        # A single sentence is a quarter faster where each direction has all threads: few of its products are torch's.
        return run_in_parallel(run, share_threads=not is_one)


class WordCache:
    """The vectors of words seen in earlier batches, exact and bounded."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._rows = self._vectors = torch.empty(0)
        self._lock = Lock()

    def look_up(self, rows: Tensor, keys: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the vectors of words with these rows (U, C) and 64-bit hashes (U,), encoding those not seen yet."""
        if not self._lock.acquire(blocking=False):  # another thread, or one that a fork has left behind
            return encode(rows)
        try:
            return self._look_up(rows, keys, encode)
        finally:
            self._lock.release()

    def _look_up(self, rows: Tensor, keys: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
        slots = torch.tensor([self._slots.get(key, -1) for key in keys.tolist()], dtype=torch.long)
        known = slots >= 0
        if self._slots:
            known &= (self._rows[slots.clamp(min=0)] == rows).all(1)  # two words may share a hash
        missing = (~known).nonzero().squeeze(1)
        new = encode(rows[missing])
        vectors = new.new_empty(len(rows), new.shape[1])
        vectors[missing] = new
        if len(missing) < len(rows):
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


def dtype_of_matrix(weight: Tensor) -> torch.dtype:
    """Return the dtype to multiply a weight in: bfloat16 where weight and CPU have it, else float32."""
    has_products = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if weight.dtype == torch.bfloat16 and has_products else torch.float32


class PackedLinear:
    """x -> x @ weight.T + bias, the weight laid out once for fast products with few rows.

    It computes in the dtype of `dtype_of_matrix`. Where torch has no oneDNN a plain transpose is kept instead.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.dtype = dtype_of_matrix(weight)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        self.bias = bias.detach().to(self.dtype)
        self.is_packed = torch.backends.mkldnn.is_available()
        weight = weight.detach().to(self.dtype)
        if self.is_packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        else:
            self.weight = weight.T.contiguous()

    def __call__(self, rows: Tensor) -> Tensor:
        count = len(rows)
        if self.is_packed and count > ROW_UNIT:
            rows = F.pad(rows, (0, 0, 0, -count % ROW_UNIT))
        return self.add_to(self.bias, rows)[:count]

    def add_to(self, addend: Tensor, rows: Tensor) -> Tensor:
        """Return addend + rows @ weight.T for an addend of this dtype, a row or one for each row."""
        rows = rows.to(self.dtype)
        if not self.is_packed:
            return torch.addmm(addend, rows, self.weight)
        if addend.ndim == 1:
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, addend, "none", [], "")
        return torch.ops.mkldnn._linear_pointwise.binary(rows, addend, self.weight, None, "add")


class PackedLstm:
    """An LSTM layer by its weights, changed so that the logistic function serves all gates and the cell.

    It is several times cheaper than tanh, and tanh(x) = 2 sigmoid(2x) - 1: the rows of gate j are doubled, and so is
    the projection, for the tanh of the cell. Doubling is exact in floating point.
    """

    def __init__(self, layer: ElmoLstmLayer) -> None:
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
        self.exceeds_cache = recurrent.numel() + projection.numel() > CACHED_WEIGHTS
        self._untiled: list[Tensor] = []  # the weights that `tiles` are made of, if they are
        if not self.exceeds_cache and _compiled_kernel() is not None:
            self._untiled = [recurrent, projection]

    def read(
        self, inputs: Tensor, index: Tensor | None, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute outputs (N, P) and final states. Word k is `inputs[k]`, or `inputs[index[k]]`.

        With an index, the gates of words that recur in a batch are computed once.
        """
        if len(hidden) == 1 and self.tiles is not None:
            return self._read_sentence(inputs if index is None else inputs[index], hidden, cell)
        words = len(inputs) if index is None else len(index)
        outputs = hidden.new_empty(words, hidden.shape[1])
        final_hidden = hidden.clone()
        doubled_cells = cell * 2  # of all sentences; `doubled` is the part still read
        doubled = doubled_cells
        if index is not None and len(inputs) > WORDS_AT_ONCE:
            inputs, index = inputs[index], None
        gates = self.inputs(inputs) if index is not None else hidden[:0]
        start = block = block_end = 0  # the words from `block` to `block_end` have their gates at hand
        for size in batch_sizes:
            end = start + size
            if size < len(doubled):
                final_hidden[size : len(doubled)] = hidden[size:]
                hidden, doubled = hidden[:size], doubled[:size]
            if index is not None:
                step_gates = gates.index_select(0, index[start:end])
            else:
                if end > block_end:
                    block, block_end = start, min(max(end, start + WORDS_AT_ONCE), words)
                    gates = self.inputs(inputs[block:block_end])
                step_gates = gates[start - block : end - block]
            i, j, f, o = self.recurrent.add_to(step_gates, hidden).float().sigmoid_().chunk(4, dim=-1)
            doubled.mul_(f).addcmul_(i, j, value=4).sub_(i, alpha=2).clamp_(-self.cell_bound, self.cell_bound)
            squashed = torch.sigmoid(doubled).sub_(0.5).mul_(o)  # half of sigmoid(o) * tanh(c)
            projected = self.projection.add_to(self.projection.bias, squashed).float()
            hidden = torch.clamp(projected, -self.output_bound, self.output_bound, out=outputs[start:end])
            start = end
        final_hidden[: len(doubled)] = hidden
        return outputs, final_hidden, doubled_cells.div_(2)

    @functools.cached_property
    def tiles(self) -> list[Any] | None:
        """The recurrent and projection weights as numba's recurrence reads them, or None where it is not used."""
        kernel = _compiled_kernel()
        weights, self._untiled = self._untiled, []
        if not weights or any(size % kernel.tile for size in weights[1].shape):
            return None
        return [kernel.in_tiles(weight.float()) for weight in weights]

    def _read_sentence(self, inputs: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Read one sentence (T, P) outside Python."""
        assert self.tiles is not None
        bounds = [numpy.float32(bound) for bound in (self.cell_bound, self.output_bound)]
        doubled = cell * 2
        outputs = hidden.new_empty(len(inputs), hidden.shape[1])
        for start in range(0, len(inputs), WORDS_AT_ONCE):
            gates = self.inputs(inputs[start : start + WORDS_AT_ONCE]).float()
            arrays = [tensor.numpy() for tensor in (hidden[0], doubled[0], outputs[start : start + len(gates)])]
            _compiled_kernel().read_sentence(gates.numpy(), *self.tiles, *arrays, *bounds)
            hidden = outputs[start + len(gates) - 1 :][:1]
        return outputs, hidden.clone(), doubled.div_(2)


@functools.cache
def _compiled_kernel() -> Any:
    """Return the recurrence that numba compiles, or None where numba or a folder to keep it in is missing."""
    try:
        from .kernel_elmo import TILE, in_tiles, read_sentence
    except (ImportError, RuntimeError):
        return None
    return SimpleNamespace(tile=TILE, in_tiles=in_tiles, read_sentence=read_sentence)
