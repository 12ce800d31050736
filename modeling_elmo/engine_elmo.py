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
from collections.abc import Sequence
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
# Memory for the vectors of words seen before.
CACHE_BYTES = 1 << 26
# Values of each weight that are compared to notice changes torch does not count: all of a small one, else a sample.
# PEFT merges its adapters so, through `weight.data`.
ALL_COMPARED, SAMPLED = 1 << 13, 64
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Engine:
    """Runs a biLM's modules by their weights, laid out for speed and kept while these stay the same.

    Changes are noticed by the weights' identity, torch's count of changes in place, and a sample of their values. A
    few values written through `weight.data` may go unnoticed: call `clear` after that.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # a model may be used by several threads
        self.clear()

    def __deepcopy__(self, memo: dict) -> "Engine":
        return Engine()

    def __reduce__(self) -> tuple:
        return Engine, ()

    def clear(self) -> None:
        """Forget everything that was made from the weights, remembered words included."""
        self._sources: list[Tensor] = []
        self._versions: list[int] = []
        self._samples: list[Tensor] = []
        self._values = torch.empty(0)
        self._matrices: dict[nn.Module, Any] = {}
        self.words = WordCache()

    def can_run(self, *modules: nn.Module, inputs: Sequence[Tensor] = ()) -> bool:
        """Return whether these modules may be run by their weights: plain, in eval mode, without gradients."""
        if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or not is_plain(*modules):
            return False
        parameters = [parameter for module in modules for parameter in module.parameters()]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*parameters, *inputs)):
            return False
        if any(module.training for module in modules) or any(tensor.dtype == torch.float64 for tensor in inputs):
            return False
        if any(tensor.device.type != "cpu" or tensor.dtype not in DTYPES for tensor in parameters):
            return False
        self._refresh(parameters)
        return True

    def _refresh(self, parameters: list[nn.Parameter]) -> None:
        """Forget what was made from other weights than these, or from these before they changed."""
        with self._lock:
            versions = [parameter._version for parameter in parameters]
            pointers = [parameter.data_ptr() for parameter in parameters]
            # `_sources` keeps the storages alive, so that another one cannot be at the same place.
            is_same = versions == self._versions and pointers == [source.data_ptr() for source in self._sources]
            if is_same and torch.equal(torch.cat(self._samples), self._values):
                return
            self.clear()
            for parameter in parameters:
                values = parameter.detach().flatten()
                self._samples.append(values if len(values) <= ALL_COMPARED else values[:: len(values) // SAMPLED])
            self._values = torch.cat(self._samples)
            self._sources = [parameter.detach() for parameter in parameters]
            self._versions = versions

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
    def encode(self, encoder: ElmoCharacterEncoder, rows: Tensor, keys: Tensor | None) -> Tensor:
        """Compute the vectors of distinct words (U, C) -> (U, P), remembering them by their hashes (U,), if any."""
        if keys is None:
            return self._encode(encoder, rows)
        with self._lock:
            return self.words.look_up(rows, keys, functools.partial(self._encode, encoder))

    def _encode(self, encoder: ElmoCharacterEncoder, rows: Tensor) -> Tensor:
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
        self, models: Sequence[ElmoLanguageModel], words: Tensor, index: Tensor, states: States, packing: Packing
    ) -> list[tuple[list[Tensor], States]]:
        """Run both directions over words (U, P): word k of direction d is `words[index[d, k]]`.

        Returns the L outputs (N, P) and the final states of each direction, as the modules would.
        """

        def run(direction: int) -> tuple[list[Tensor], States]:
            hidden, cell = (state[direction][:, packing.order].float() for state in states)
            layer_index: Tensor | None = index[direction]
            inputs = words
            outputs, hiddens, cells = [], [], []
            for number, layer in enumerate(models[direction].layers):
                packed = self._packed(layer)
                start = (hidden[number], cell[number])
                output, final_hidden, final_cell = packed.read(inputs, layer_index, *start, packing.batch_sizes)
                inputs = output + inputs if models[direction].use_skip_connections and number > 0 else output
                layer_index = None
                outputs.append(inputs)
                hiddens.append(final_hidden)
                cells.append(final_cell)
            return outputs, (torch.stack(hiddens), torch.stack(cells))

        is_one = len(packing.order) == 1
        if is_one and self._packed(models[0].layers[0]).exceeds_cache:
            return [run(0), run(1)]
        # A single sentence is a quarter faster where each direction has all threads: few of its products are torch's.
        return run_in_parallel(run, share_threads=not is_one)


class WordCache:
    """The vectors of words seen in earlier batches, exact and bounded."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._rows = self._vectors = torch.empty(0)

    def look_up(self, rows: Tensor, keys: Tensor, encode: Any) -> Tensor:
        """Return the vectors of words with these rows (U, C) and 64-bit hashes (U,), encoding those not seen yet."""
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
        capacity = CACHE_BYTES // (new.element_size() * new.shape[1])
        if len(missing) > capacity:
            return vectors
        if not self._slots or len(self._slots) + len(missing) > capacity:  # empty or full: start again
            self._slots = {}
            self._vectors = new.new_empty(capacity, new.shape[1])
            self._rows = rows.new_empty(capacity, rows.shape[1], dtype=torch.int32)
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

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.dtype = dtype_of_matrix(weight)
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
        self._weights = (recurrent, projection)
        self.inputs = PackedLinear(inputs, bias)
        self.recurrent = PackedLinear(recurrent, bias.new_zeros(len(recurrent)))
        self.projection = PackedLinear(projection, bias.new_zeros(len(projection)))
        cell_clip, projection_clip = layer.clips
        self.cell_bound = math.inf if cell_clip is None else 2 * cell_clip  # of twice the cell
        self.output_bound = math.inf if projection_clip is None else projection_clip
        self.exceeds_cache = recurrent.numel() + projection.numel() > CACHED_WEIGHTS

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
        if kernel is None or self.exceeds_cache or any(size % kernel.tile for size in self._weights[1].shape):
            return None
        return [kernel.in_tiles(weight.float()) for weight in self._weights]

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
