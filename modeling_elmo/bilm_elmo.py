"""ElmoModel: contextual word vectors from a bidirectional LSTM language model over characters.

char_ids (B, T, C) -> ElmoCharacterEncoder on distinct words (U, P) -> two ElmoLanguageModels, each on its own packed
order of the N words -> hidden_states, (L + 1) x (B, T, 2P) -> ElmoScalarMix -> last_hidden_state (B, T, 2P).

Padding never enters a computation: the real words are packed, so a word's vector cannot depend on it.

Shapes: B batch, T words, C characters per word, P projection, M memory cells, L LSTM layers, N real words of a batch,
U distinct words among them, S sentences (B, or more where rows hold pairs).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .engine_elmo import Engine
from .layers_elmo import (
    CarryGate,
    ElmoCharacterEncoder,
    ElmoLanguageModel,
    ElmoScalarMix,
    Packing,
    distinct_rows,
    dropout_noise,
    is_plain,
    pack,
)
from .recurrence_elmo import States
from .threads_elmo import can_train_in_parallel, train_in_parallel
from .tokenization_elmo import BYTE_MARKERS, DICTIONARY_MARKERS, Markers

# Initial bias of a highway layer's gate.
CARRY_BIAS = -2.0
# A label that is not to be predicted.
IGNORED = -100
# `<pad>`, `<S>`, `</S>` and `<UNK>`.
NUM_SPECIAL_WORDS = 4

# One direction's outputs of the L layers, each (N, P), and its final states.
Directed = tuple[list[Tensor], States]


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


def markers_of(config: ElmoConfig) -> Markers:
    """Return the ids of sentence and word markers in the `char_ids` of a model."""
    return DICTIONARY_MARKERS if config.spelling == "dictionary" else BYTE_MARKERS


def word_mask(char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None, ids: Markers) -> Tensor:
    """Return which positions of a (B, T) mask are words, rather than the `<S>` and `</S>` around each sentence."""
    outside = F.pad(mask, (1, 1))
    first, last = ~outside[:, :-2], ~outside[:, 2:]
    if token_type_ids is not None:
        change = token_type_ids[:, 1:] != token_type_ids[:, :-1]
        first, last = first | F.pad(change, (1, 0)), last | F.pad(change, (0, 1))
    is_marker = (char_ids[..., 0] == ids.word_begin) & (char_ids[..., 2] == ids.word_end)
    markers = (first & is_marker & (char_ids[..., 1] == ids.sentence_begin)) | (
        last & is_marker & (char_ids[..., 1] == ids.sentence_end)
    )
    return mask & ~markers


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode, and back afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class ElmoPreTrainedModel(PreTrainedModel):
    """Weight initialisation and loading shared by every ELMo model."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoCharacterEncoder", "ElmoLanguageModel"]
    # Weights of a mix are left behind by a config that mixes otherwise, a softmax by all but pretraining.
    _keys_to_ignore_on_load_unexpected = [r"^(elmo\.)?scalar_mix\.", r"^softmax\."]
    # A folder without a mix, as pretraining and conversion write it, means the initial one, the average.
    _keys_to_ignore_on_load_missing = [r"^scalar_mix\."]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Set a leaf module's weights to the original's initial values; some modules know their own.

        Only modules that own parameters are passed here: transformers skips the others in custom code.
        """
        set_initial_weights = getattr(module, "set_initial_weights", None)
        if callable(set_initial_weights):
            set_initial_weights()
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
        self._engine = Engine()
        self._bilm_frozen = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        embedding = self.char_encoder.char_embedding or self.char_encoder.word_embedding
        assert embedding is not None
        return embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        name = "word_embedding" if self.char_encoder.char_embedding is None else "char_embedding"
        setattr(self.char_encoder, name, value)

    def freeze_bilm(self, frozen: bool = True) -> None:
        """Freeze the biLM's weights and keep its dropout off, even in training mode; the mix stays free."""
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
                Ids of the words. Only a model with word embeddings, by `config.word_embedding_dim`, reads them; to it
                a word that was added to the tokenizer is an unknown one.
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
        rows = self._rows(char_ids, input_ids).flatten(0, 1)
        distinct, index, keys = distinct_rows(rows[packing.forward_index])
        flat = mask.new_zeros(mask.numel(), dtype=torch.long).index_copy(0, packing.forward_index, index)
        word_index = torch.stack([flat[packing.forward_index], flat[packing.backward_index]])  # (2, N)
        words, results, start_states = self._read(distinct, keys, word_index, states, packing)
        indices = (packing.forward_index, packing.backward_index)
        layers = [self._unpack([words[positions] for positions in word_index], indices, mask.shape)]
        for outputs in zip(results[0][0], results[1][0], strict=True):
            layers.append(self._unpack(outputs, indices, mask.shape))  # (B, T, 2P)

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
            hidden_states=tuple(layers) if output_hidden_states else None,
            states=self._updated_states(start_states, results, packing) if use_cache else None,
            attention_mask=new_mask,
        )

    def read_lanes(
        self,
        char_ids: Tensor,
        word_index: Tensor,
        mask: Tensor,
        states: States | None = None,
        input_ids: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[list[Tensor], Packing, States]:
        """Run each language model over words laid out for it, in the order in which it reads them.

        Word t of lane b is `char_ids[word_index[k, b, t]]` for the language model k, 0 forward and 1 backward, with
        char_ids (U, C) and word_index (2, B, T); a model with word embeddings also reads input_ids (U,). The mask
        (B, T) ends every lane; both have the same one. With segments (B, T), which count up along a lane, segment 0
        starts from the states and each later one from zeros. Returns the top layers' outputs for the N words
        in packed order, each (N, P), the packing, and the states after the last word.
        """
        packing = pack(mask, segments)
        index = word_index.flatten(1)[:, packing.forward_index]  # (2, N)
        rows = self._rows(char_ids, input_ids)
        per_lane = len(packing.order) // max(len(mask), 1)  # segments
        if segments is not None and states is not None:
            states = self._spread_states(states, per_lane)
        _, results, start_states = self._read(rows, None, index, states, packing)
        hidden, cell = self._updated_states(start_states, results, packing)
        if segments is not None:  # a lane's states are those of its last segment; without words, the ones it had
            last = torch.arange(len(mask), device=mask.device) * per_lane + (segments * mask).amax(1)
            hidden, cell = hidden[:, :, last], cell[:, :, last]
        return [outputs[-1] for outputs, _ in results], packing, (hidden, cell)

    @staticmethod
    def _spread_states(states: States, per_lane: int) -> States:
        """Give each lane's states to its first segment and zeros to the others: (2, L, B, size) -> (2, L, S, size)."""
        hidden, cell = (F.pad(state[:, :, :, None], (0, 0, 0, per_lane - 1)).flatten(2, 3) for state in states)
        return hidden, cell

    def _read(
        self, rows: Tensor, keys: Tensor | None, index: Tensor, states: States | None, packing: Packing
    ) -> tuple[Tensor, list[Directed], States]:
        """Run both language models over words that are given by distinct rows (U, C) and an index (2, N).

        Returns the words' vectors (U, P), what each language model made of them, and the states it started from.
        """
        models = (self.forward_lm, self.backward_lm)
        packed = self._engine.prepare(self.char_encoder, models, states or ())
        if packed is not None:
            words = packed.encode(rows, keys)
            start_states = self._initial_states(states, words, len(packing.order))
            return words, packed.read(words, index, start_states, packing), start_states
        words = self.char_encoder(rows)
        start_states = self._initial_states(states, words, len(packing.order))
        noise = None
        if self.forward_lm.training and self.config.dropout > 0:
            shape = (2, self.config.num_hidden_layers, index.shape[1], words.shape[1])
            noise = dropout_noise(shape, self.config.dropout, words)

        def run(direction: int, words: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            """Return the L outputs and the final states of one direction."""
            return models[direction](
                words,
                index[direction],
                hidden[direction][:, packing.order],
                cell[direction][:, packing.order],
                packing.batch_sizes,
                None if noise is None else noise[direction],
            )

        inputs = (words, *start_states)
        if can_train_in_parallel(*inputs) and is_plain(*models) and not self.is_gradient_checkpointing:
            parameters = (list(self.forward_lm.parameters()), list(self.backward_lm.parameters()))
            directions = train_in_parallel(run, inputs, parameters)
        else:
            directions = (run(0, *inputs), run(1, *inputs))
        results: list[Directed] = [(list(outputs), (hidden, cell)) for *outputs, hidden, cell in directions]
        return words, results, start_states

    def clear_caches(self) -> None:
        """Forget what was made from the weights for speed: needed only after writing some of them through `.data`."""
        self._engine.clear()

    def _rows(self, char_ids: Tensor, input_ids: Tensor | None) -> Tensor:
        """Return what the encoder reads: characters (..., C) and, with word embeddings, the ids as a last column."""
        if not self.config.word_embedding_dim:
            return char_ids
        if input_ids is None:
            raise ValueError("this model has word embeddings: pass `input_ids` from its tokenizer beside `char_ids`")
        if input_ids.shape != char_ids.shape[:-1]:
            raise ValueError(f"`input_ids` must be {tuple(char_ids.shape[:-1])}, got {tuple(input_ids.shape)}")
        known = input_ids < self.config.vocab_size
        return torch.cat([char_ids, input_ids.where(known, self.config.unk_token_id)[..., None]], dim=-1)

    def _check_inputs(
        self,
        char_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        states: States | None,
        use_cache: bool,
    ) -> Tensor:
        """Refuse inputs of the wrong shape; return the (B, T) mask of real words."""
        width = self.config.max_characters_per_token
        if char_ids.ndim != 3 or char_ids.shape[-1] != width:
            raise ValueError(f"`char_ids` must be (batch, words, {width}), got {tuple(char_ids.shape)}")
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != char_ids.shape[:2]:
                raise ValueError(f"`{name}` must be {tuple(char_ids.shape[:2])}, got {tuple(tensor.shape)}")
        if token_type_ids is not None and (states is not None or use_cache) and bool(token_type_ids.any()):
            raise ValueError("states are carried from sentence to sentence of a row: rows cannot be pairs")
        return char_ids.any(-1) if attention_mask is None else attention_mask.bool()

    def _initial_states(self, states: States | None, words: Tensor, sentences: int) -> States:
        """Return given states for the first sentences, zeros for the rest: (2, L, S', P) and (2, L, S', M), S' >= S.

        They are in float32 at least, as everything that a recurrence adds up.
        """
        sizes = (self.config.projection_dim, self.config.cell_dim)
        leading = (2, self.config.num_hidden_layers)
        if states is None:
            dtype = torch.promote_types(words.dtype, torch.float32)
            hidden, cell = (words.new_zeros(*leading, sentences, size, dtype=dtype) for size in sizes)
            return hidden, cell
        for state, size in zip(states, sizes, strict=True):
            if state.ndim != 4 or (*state.shape[:2], state.shape[3]) != (*leading, size):
                raise ValueError(
                    f"`states` must be (2, {leading[1]}, batch, {sizes[0]}) and (2, {leading[1]}, batch, {sizes[1]}), "
                    f"got {tuple(states[0].shape)} and {tuple(states[1].shape)}"
                )
        missing = max(sentences - states[0].shape[2], 0)
        hidden, cell = (F.pad(state, (0, 0, 0, missing)) for state in states)
        return hidden, cell

    @staticmethod
    def _updated_states(start: States, results: Sequence[Directed], packing: Packing) -> States:
        """Put the final states back in the rows' order; rows the call did not have keep theirs."""
        updated = []
        for number, old in enumerate(start):
            final = torch.stack([states[number] for _, states in results])
            updated.append(old.index_copy(2, packing.order, final.to(old.dtype)))
        return updated[0], updated[1]

    def _unpack(self, outputs: Sequence[Tensor], indices: Sequence[Tensor], shape: torch.Size) -> Tensor:
        """Put each direction's packed outputs (N, P) back in place, beside each other: (B, T, 2P), zeros elsewhere."""
        halves = []
        for packed, positions in zip(outputs, indices, strict=True):
            flat = packed.new_zeros(shape.numel(), packed.shape[-1])
            halves.append(flat.index_copy(0, positions, packed).unflatten(0, shape))
        return torch.cat(halves, dim=-1).to(self.dtype)

    def _drop_markers(
        self, layers: Sequence[Tensor], char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None
    ) -> tuple[list[Tensor], Tensor]:
        """Move the words of each row to its front, without the `<S>` and `</S>` around each sentence."""
        words = word_mask(char_ids, mask, token_type_ids, markers_of(self.config))
        counts = words.sum(1)
        width = int(counts.max()) if len(counts) else 0
        new_mask = torch.arange(width, device=mask.device) < counts[:, None]
        kept = []
        for layer in layers:
            front = layer.new_zeros(*new_mask.shape, layer.shape[-1])
            kept.append(front.masked_scatter(new_mask[..., None], layer[words]))
        return kept, new_mask.long()
