"""ElmoModel: contextual word vectors from a bidirectional LSTM language model over characters.

Shapes: B batch, T words, C characters a word, P projection, M memory cells, L LSTM layers, N real words of a batch,
U distinct words among them, S sentences (B, or more where rows hold pairs).

char_ids (B, T, C) -> ElmoCharacterEncoder on distinct words (U, P) -> two ElmoLanguageModels, each on its own packed
order of the N words -> hidden_states, (L + 1) x (B, T, 2P) -> ElmoScalarMix -> last_hidden_state (B, T, 2P).

Padding never enters a computation: the real words are packed, so a word's vector cannot depend on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .recurrence_elmo import (
    Derived,
    LayerWeights,
    PackedLayer,
    PackedLinear,
    PairedLayer,
    States,
    packed_recurrence,
    paired_recurrence,
    plain_recurrence,
    runs_packed,
    side_by_side,
    trained_recurrence,
)
from .tokenization_elmo import SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END

# Initial bias of a highway layer's gate.
CARRY_BIAS = -2.0
# Base of the polynomial hash that finds the distinct words of a batch; odd, so that its powers never vanish.
HASH_BASE = 0x5851F42D4C957F2D
# Words whose character windows go through one product: enough to fill it, few enough to be of about one length.
WORDS_A_PRODUCT = 16
# Memory for the vectors of words seen before.
CACHE_BYTES = 1 << 26


@dataclass
class ElmoModelOutput(ModelOutput):
    r"""
    Output of [`ElmoModel`].

    Args:
        last_hidden_state (`torch.FloatTensor` of shape `(B, T, 2P)`):
            The ELMo vectors: the layers mixed as the config's `mix` says. Padded positions are zero.
        hidden_states (`tuple(torch.FloatTensor)`, *optional*):
            With `output_hidden_states=True`: the context-free word vectors, twice beside each other, and every LSTM
            layer, forward and backward beside each other. L + 1 tensors of shape `(B, T, 2P)`.
        states (`tuple(torch.FloatTensor)`, *optional*):
            With `use_cache=True`: the LSTMs' final outputs `(2, L, B, P)` and memory cells `(2, L, B, M)`, forward
            before backward.
        attention_mask (`torch.LongTensor` of shape `(B, T')`, *optional*):
            With `keep_sentence_markers=False`: which of the T' remaining positions are words.
    """

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    states: States | None = None
    attention_mask: Tensor | None = None


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
    """Context-free word vectors from characters: (U, C) -> (U, P)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.char_embedding = nn.Embedding(config.char_vocab_size, config.char_embedding_dim, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.char_embedding_dim, count, kernel_size=width) for width, count in config.char_filters
        )
        self.widest = max(width for width, _ in config.char_filters)
        self.activation = nn.ReLU() if config.char_activation == "relu" else nn.Tanh()
        features = config.num_char_features
        self.highways = nn.ModuleList(ElmoHighway(features) for _ in range(config.num_highway_layers))
        self.projection = None
        if features != config.projection_dim:
            self.projection = PackedLinear(features, config.projection_dim)
        self._cache = WordCache()

    def forward(self, char_ids: Tensor) -> Tensor:
        words = self.activation(self._convolve(char_ids))  # (U, features)
        for highway in self.highways:
            words = highway(words)
        return words if self.projection is None else self.projection(words)

    def encode_distinct(self, char_ids: Tensor, keys: Tensor | None) -> Tensor:
        """The same for distinct words, remembered from batch to batch while nothing is trained."""
        if keys is None or not runs_packed(self):
            return self(char_ids)
        return self._cache.look_up(self, char_ids, keys)

    def forget_words(self) -> None:
        """Drops the vectors remembered from earlier batches."""
        self._cache = WordCache()

    def _convolve(self, char_ids: Tensor) -> Tensor:
        """Every filter's maximum over the positions of a word: (U, C) -> (U, features).

        A word ends in a run of one character, its padding, and windows inside that run are all the same: one of them
        is enough. So words go by length, a few at a time, and all their windows through one product with all filters,
        the narrow ones filled up with zeros.
        """
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
    """The vectors of words seen in earlier batches: exact, bounded, and forgotten when the weights change."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[int, int] = {}

    # What is kept may be used where gradients are recorded later, which tensors made in inference mode may not.
    @torch.inference_mode(False)
    @torch.no_grad()
    def look_up(self, encoder: ElmoCharacterEncoder, char_ids: Tensor, keys: Tensor) -> Tensor:
        """The vectors of the words with these characters (U, C) and 64-bit hashes (U,): (U, P)."""
        if self.is_stale(encoder.parameters()):
            self._slots = {}
        slots = torch.tensor([self._slots.get(key, -1) for key in keys.tolist()], dtype=torch.long)
        known = slots >= 0
        if self._slots:
            known &= (self._char_ids[slots.clamp(min=0)] == char_ids).all(1)  # two words may share a hash
        missing = (~known).nonzero().squeeze(1)
        new = encoder(char_ids[missing])
        vectors = new.new_empty(len(char_ids), new.shape[1])
        vectors[missing] = new
        if len(missing) < len(char_ids):
            vectors[known] = self._vectors[slots[known]]
        self._keep(keys[missing].tolist(), char_ids[missing], new)
        return vectors

    def _keep(self, keys: list[int], char_ids: Tensor, vectors: Tensor) -> None:
        capacity = CACHE_BYTES // (vectors.element_size() * vectors.shape[1])
        if len(keys) > capacity:
            return
        if not self._slots or len(self._slots) + len(keys) > capacity:  # empty, or full: start anew
            self._slots = {}
            self._vectors = vectors.new_empty(capacity, vectors.shape[1])
            self._char_ids = char_ids.new_empty(capacity, char_ids.shape[1], dtype=torch.int16)
        first = len(self._slots)
        self._slots.update(zip(keys, range(first, first + len(keys)), strict=True))
        self._vectors[first : first + len(keys)] = vectors
        self._char_ids[first : first + len(keys)] = char_ids


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

    def forward(
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int], index: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """inputs (N, P), or (U, P) and an index (N,), hidden (S, P), cell (S, M) -> outputs (N, P), final states."""
        if runs_packed(self, inputs, hidden, cell):
            self._packed.refresh(self.weights)
            with torch.no_grad():
                return packed_recurrence(self._packed, inputs, index, hidden, cell, batch_sizes, *self.clips)
        gates = self.input_gates(inputs if index is None else inputs[index])  # (N, 4M)
        # Under autocast the products change dtype from step to step, which only the plain form follows.
        _, _, recurrent, projection = self.weights
        is_uniform = gates.dtype == hidden.dtype == cell.dtype == recurrent.dtype
        recurrence = trained_recurrence if is_uniform else plain_recurrence
        return recurrence(gates, hidden, cell, recurrent, projection, batch_sizes, *self.clips)

    @property
    def weights(self) -> LayerWeights:
        gates = self.input_gates
        return LayerWeights(gates.weight, gates.bias, self.recurrent_gates.weight, self.projection.weight)


class ElmoLanguageModel(nn.Module):
    """One direction: a stack of LSTM layers, each but the first adding its input to its output."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.use_skip_connections = config.use_skip_connections
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(ElmoLstmLayer(config) for _ in range(config.num_hidden_layers))

    # A loop over time steps has as many shapes as there are batches: traced, it would be compiled anew for each.
    @torch.compiler.disable
    def forward(
        self, words: Tensor, index: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: Sequence[int]
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """words (U, P) of which word k is `words[index[k]]`, hidden (L, S, P), cell (L, S, M) -> L outputs (N, P),
        final hidden and cell likewise.
        """
        outputs, final = [], []
        word_index: Tensor | None = index
        if self.training and self.dropout.p > 0:  # each occurrence of a word loses values of its own
            words, word_index = words[index], None
        for number, layer in enumerate(self.layers):
            words = self.dropout(words)
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

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """layers, each (B, T, D), and a (B, T) mask of real words, which only the normalisation reads -> (B, T, D)."""
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


# ------------------------------------------------------------------------------------------------------------ model


class ElmoPreTrainedModel(PreTrainedModel):
    """Weight initialisation and loading shared by every ELMo model."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoCharacterEncoder", "ElmoLanguageModel"]
    # Weights of a mix are left behind by a config that mixes otherwise.
    _keys_to_ignore_on_load_unexpected = [r"scalar_mix\."]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The original's initial values.

        By leaf module: transformers passes over modules of custom code that have no parameters of their own.
        """
        if isinstance(module, GlorotLinear):
            init.uniform_(module.weight, -module.bound, module.bound)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Conv1d):
            if self.config.char_activation == "relu":
                init.uniform_(module.weight, -0.05, 0.05)
            else:
                init.normal_(module.weight, std=(module.in_channels * module.kernel_size[0]) ** -0.5)
        elif isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -1.0, 1.0)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                module.weight[module.padding_idx].zero_()
        elif isinstance(module, ElmoScalarMix):
            init.zeros_(module.scalar_weights)
            init.ones_(module.gamma)
        if isinstance(module, (nn.Linear, nn.Conv1d)) and module.bias is not None:
            init.constant_(module.bias, CARRY_BIAS if isinstance(module, CarryGate) else 0.0)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        raise ValueError(
            "ELMo has no token embeddings to resize: it spells every word in characters, words added to the tokenizer "
            "included"
        )


class ElmoModel(ElmoPreTrainedModel):
    """The biLM with a mix of its layers on top.

    Args:
        config: the model's sizes.
        add_mix: whether the model has the mix that makes `last_hidden_state`. Task heads own theirs and set this to
            False; `last_hidden_state` is then the top layer.
    """

    def __init__(self, config: ElmoConfig, add_mix: bool = True) -> None:
        super().__init__(config)
        self.char_encoder = ElmoCharacterEncoder(config)
        self.forward_lm = ElmoLanguageModel(config)
        self.backward_lm = ElmoLanguageModel(config)
        self.mix = config.mix if add_mix else "last"
        self.scalar_mix = None
        if self.mix == "scalar":
            self.scalar_mix = ElmoScalarMix(config.num_hidden_layers + 1, config.mix_layer_norm, config.mix_l2)
        self._pairs = [PairedLayer() for _ in range(config.num_hidden_layers)]
        self._bilm_frozen = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.char_encoder.char_embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.char_encoder.char_embedding = value

    def freeze_bilm(self, frozen: bool = True) -> None:
        """Keeps the biLM's weights from training and its dropout off, also in training mode; the mix stays free."""
        self._bilm_frozen = frozen
        for module in (self.char_encoder, self.forward_lm, self.backward_lm):
            module.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> "ElmoModel":
        super().train(mode)
        if self._bilm_frozen:
            for module in (self.char_encoder, self.forward_lm, self.backward_lm):
                module.eval()
        return self

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        states: States | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        keep_sentence_markers: bool | None = None,
        return_dict: bool | None = None,
    ) -> ElmoModelOutput:
        r"""
        Args:
            input_ids (`(B, T)`, *optional*):
                Accepted and not read: the biLM reads characters.
            char_ids (`(B, T, C)`):
                Characters of the words, from [`ElmoTokenizer`]; a padded word is all 0.
            attention_mask (`(B, T)`, *optional*):
                1 for real words; by default, the words whose characters are not all 0.
            token_type_ids (`(B, T)`, *optional*):
                Segments of a row; each goes through the biLM as a sentence of its own.
            states (`tuple`, *optional*):
                States to start from instead of zeros: the `.states` of an earlier call, whose batch size may differ.
            use_cache (`bool`, *optional*):
                Whether to return the final states.
            output_hidden_states (`bool`, *optional*):
                Whether to return every layer.
            keep_sentence_markers (`bool`, *optional*):
                Whether the outputs include `<S>` and `</S>`. Without them word k of a sentence is at position k,
                whatever the padding side, and the output has an `attention_mask` of its own.
        """
        config = self.config
        use_cache = config.use_cache if use_cache is None else use_cache
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if keep_sentence_markers is None:
            keep_sentence_markers = config.keep_sentence_markers
        if char_ids is None:
            raise ValueError("ElmoModel needs `char_ids`: encode the text with ElmoTokenizer and pass all it returns")
        mask = self._check_inputs(char_ids, attention_mask, token_type_ids, states, use_cache)

        packing = pack(mask, token_type_ids)
        distinct, index, keys = distinct_rows(char_ids.flatten(0, 1)[packing.forward_index])
        flat = mask.new_zeros(mask.numel(), dtype=torch.long).index_copy(0, packing.forward_index, index)
        words = self.char_encoder.encode_distinct(distinct, keys)  # (U, P)

        start_states = self._initial_states(states, len(packing.order), words)
        indices = (packing.forward_index, packing.backward_index)
        models = (self.forward_lm, self.backward_lm)

        def run(direction: int) -> tuple[list[Tensor], States]:
            word_index = flat[indices[direction]]
            states = (state[direction][:, packing.order] for state in start_states)
            outputs, hidden, cell = models[direction](words, word_index, *states, packing.batch_sizes)
            return [words[word_index], *outputs], (hidden, cell)

        if not all(runs_packed(model, words, *start_states) for model in models):
            results = [run(0), run(1)]
        elif len(packing.order) == 1:
            results = self._read_one_sentence(words[flat[torch.stack(indices)]], start_states)
        else:
            results = side_by_side(lambda: run(0), lambda: run(1))
        directions, final_states = zip(*results, strict=True)
        unpacked = [
            [self._unpack(layer, index, mask.shape) for layer in layers]
            for layers, index in zip(directions, indices, strict=True)
        ]
        layers = tuple(torch.cat(pair, dim=-1) for pair in zip(*unpacked, strict=True))  # (L + 1) x (B, T, 2P)

        new_mask = None
        if not keep_sentence_markers:
            layers, new_mask = self._drop_markers(layers, char_ids, mask, token_type_ids)
        if self.scalar_mix is not None:
            mixed = self.scalar_mix(layers, mask if new_mask is None else new_mask)
        elif self.mix == "average":
            mixed = torch.stack(layers).mean(0)
        else:
            mixed = layers[-1]
        return ElmoModelOutput(
            last_hidden_state=mixed,
            hidden_states=layers if output_hidden_states else None,
            states=self._updated_states(start_states, final_states, packing) if use_cache else None,
            attention_mask=new_mask,
        )

    @torch.no_grad()
    def _read_one_sentence(self, words: Tensor, states: States) -> list[tuple[list[Tensor], States]]:
        """What the language models would return for a single sentence (2, T, P), the second time in reverse."""
        layers, final = [words], []
        for number, pair in enumerate(self._pairs):
            forward, backward = self.forward_lm.layers[number], self.backward_lm.layers[number]
            assert isinstance(forward, ElmoLstmLayer)
            assert isinstance(backward, ElmoLstmLayer)
            pair.refresh(forward.weights, backward.weights)
            hidden, cell = (state[:, number, :1] for state in states)
            output, hidden, cell = paired_recurrence(pair, words, hidden, cell, forward.clips)
            words = output + words if self.config.use_skip_connections and number > 0 else output
            layers.append(words)
            final.append((hidden, cell))
        hidden, cell = (torch.stack(parts, dim=1) for parts in zip(*final, strict=True))  # each (2, L, 1, size)
        return [([layer[k] for layer in layers], (hidden[k], cell[k])) for k in range(2)]

    def _check_inputs(
        self,
        char_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        states: States | None,
        use_cache: bool,
    ) -> Tensor:
        """Refuses inputs of the wrong shape; returns the (B, T) mask of real words."""
        width = self.config.max_characters_per_token
        if char_ids.ndim != 3 or char_ids.shape[-1] != width:
            raise ValueError(f"`char_ids` must be (batch, words, {width}), got {tuple(char_ids.shape)}")
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != char_ids.shape[:2]:
                raise ValueError(f"`{name}` must be {tuple(char_ids.shape[:2])}, got {tuple(tensor.shape)}")
        if token_type_ids is not None and (states is not None or use_cache) and bool(token_type_ids.any()):
            raise ValueError("states are carried from sentence to sentence of a row: rows cannot be pairs")
        return char_ids.any(-1) if attention_mask is None else attention_mask.bool()

    def _initial_states(self, states: States | None, sentences: int, like: Tensor) -> States:
        """Given states for the first sentences, zeros for the rest: (2, L, S', P) and (2, L, S', M), S' >= S."""
        config = self.config
        sizes = (config.projection_dim, config.cell_dim)
        leading = (2, config.num_hidden_layers)
        if states is None:
            hidden, cell = (like.new_zeros(*leading, sentences, size) for size in sizes)
            return hidden, cell
        if any(
            len(state.shape) != 4 or (*state.shape[:2], state.shape[3]) != (*leading, size)
            for state, size in zip(states, sizes, strict=True)
        ):
            raise ValueError(
                f"`states` must be (2, {leading[1]}, batch, {sizes[0]}) and (2, {leading[1]}, batch, {sizes[1]}), "
                f"got {' and '.join(str(tuple(state.shape)) for state in states)}"
            )
        missing = max(sentences - states[0].shape[2], 0)
        hidden, cell = (F.pad(state, (0, 0, 0, missing)) for state in states)
        return hidden, cell

    @staticmethod
    def _updated_states(start: States, final: Sequence[States], packing: Packing) -> States:
        """The final states put back in the rows' order; rows the call did not have keep theirs."""
        updated = []
        for old, new in zip(start, zip(*final, strict=True), strict=True):
            updated.append(old.index_copy(2, packing.order, torch.stack(new).to(old.dtype)))
        return updated[0], updated[1]

    @staticmethod
    def _unpack(packed: Tensor, positions: Tensor, shape: torch.Size) -> Tensor:
        """(N, P) -> (B, T, P), zero where there is no word."""
        flat = packed.new_zeros(shape.numel(), packed.shape[-1])
        return flat.index_copy(0, positions, packed).unflatten(0, shape)

    @staticmethod
    def _drop_markers(
        layers: tuple[Tensor, ...], char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Moves the words of each row to its front, without the `<S>` and `</S>` around each sentence."""
        outside = F.pad(mask, (1, 1))
        first, last = ~outside[:, :-2], ~outside[:, 2:]
        if token_type_ids is not None:
            change = token_type_ids[:, 1:] != token_type_ids[:, :-1]
            first, last = first | F.pad(change, (1, 0)), last | F.pad(change, (0, 1))
        is_marker = (char_ids[..., 0] == WORD_BEGIN) & (char_ids[..., 2] == WORD_END)
        markers = (first & is_marker & (char_ids[..., 1] == SENTENCE_BEGIN)) | (
            last & is_marker & (char_ids[..., 1] == SENTENCE_END)
        )
        words = mask & ~markers
        counts = words.sum(1)
        width = int(counts.max()) if len(counts) else 0
        new_mask = torch.arange(width, device=mask.device) < counts[:, None]
        kept = tuple(
            layer.new_zeros(*new_mask.shape, layer.shape[-1]).masked_scatter(new_mask[..., None], layer[words])
            for layer in layers
        )
        return kept, new_mask.long()


ElmoModel.register_for_auto_class("AutoModel")

__all__ = ["ElmoModel", "ElmoModelOutput", "ElmoPreTrainedModel", "ElmoScalarMix"]
