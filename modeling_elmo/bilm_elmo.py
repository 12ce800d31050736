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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput, logging
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .layers_elmo import (
    CarryGate,
    ElmoCharacterEncoder,
    ElmoLanguageModel,
    ElmoScalarMix,
    PackedBilm,
    dropout_noise,
    is_plain,
    prepare,
)
from .recurrence_elmo import States
from .threads_elmo import can_train_in_parallel, run_in_parallel, train_in_parallel
from .tokenization_elmo import BYTE_MARKERS, DICTIONARY_MARKERS, Markers

logger = logging.get_logger(__name__)

# Base of the polynomial hash that finds the distinct words of a batch; odd, so that its powers never vanish.
HASH_BASE = 0x5851F42D4C957F2D
# Initial bias of a highway layer's gate.
CARRY_BIAS = -2.0
# A label that is not to be predicted.
IGNORED = -100
# `<pad>`, `<S>`, `</S>` and `<UNK>`.
NUM_SPECIAL_WORDS = 4


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
    begin, kind, end = char_ids[..., 0], char_ids[..., 1], char_ids[..., 2]
    is_marker = (first & (kind == ids.sentence_begin)) | (last & (kind == ids.sentence_end))
    return mask & ~(is_marker & (begin == ids.word_begin) & (end == ids.word_end))


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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Packing":
        """Move the tensors to a device."""
        tensors = (self.forward_index, self.backward_index, self.order)
        forward, backward, order = (tensor.to(device, non_blocking=non_blocking) for tensor in tensors)
        return Packing(forward, backward, self.batch_sizes, order)


def pack(mask: Tensor, segments: Tensor | None = None) -> Packing:
    """Pack the real words of a (B, T) mask. With `segments` each segment of a row is a sentence of its own.

    The CPU does it: another device would have to be waited for at every size that depends on the mask, not only once.
    """
    device, mask = mask.device, mask.cpu()
    segments = None if segments is None else segments.cpu()
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
    packing = Packing(
        forward_index=positions[(starts + steps)[real]],
        backward_index=positions[(starts + lengths - 1 - steps)[real]],
        batch_sizes=real.sum(1).tolist(),
        order=order,
    )
    return packing.to(device)


def warn_about_attentions() -> None:
    logger.warning_once("`output_attentions` has no effect: LSTMs have no attention weights")


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
    # What is called as a whole: between these, tensors return to the device of the inputs.
    _no_split_modules = [
        "BiattentiveNetwork",
        "CharacterCnn",
        "ElmoCharacterEncoder",
        "ElmoLanguageModel",
        "ElmoScalarMix",
        "ElmoSoftmax",
        "Esim",
        "HighwayLstm",
        "LayerMix",
        "LayerStack",
        "LinearChainCrf",
        "ParagraphReader",
        "PooledNetwork",
        "SpanRanking",
        "WordLstm",
    ]
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

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Return a batch of two sentences of three words."""
        generator = torch.Generator().manual_seed(0)
        shape = (2, 3, self.config.max_characters_per_token)
        char_ids = torch.randint(1, self.config.char_vocab_size, shape, generator=generator)
        input_ids = torch.full(shape[:2], self.config.unk_token_id)
        inputs = {"input_ids": input_ids, "char_ids": char_ids, "attention_mask": torch.ones_like(input_ids)}
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vectors of words, where the model has any, to a tokenizer with more words."""
        tables = []
        for name, _ in self.named_modules():
            if name.rpartition(".")[2] in ("word_embedding", "word_embeddings", "softmax"):
                tables.append(name)
        if len(tables) != 1 or tables == ["softmax"]:
            found = " and ".join(tables) or "none"
            raise ValueError(
                "only a model with one table of words can be resized: ELMo spells every word in characters, words "
                f"added to the tokenizer included; this one has {found}"
            )
        return super().resize_token_embeddings(*args, **kwargs)


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
        self._packed: PackedBilm | None = None
        self._bilm_frozen = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding of words where the model has one, otherwise that of characters."""
        embedding = self.char_encoder.word_embedding or self.char_encoder.char_embedding
        assert embedding is not None
        return embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        name = "char_embedding" if self.char_encoder.word_embedding is None else "word_embedding"
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
        inputs_embeds: Tensor | None = None,
        states: States | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
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
            inputs_embeds (`(B, T, P)`, *optional*):
                Context-free word vectors for the LSTMs to read, instead of those made from the characters.
            states (`tuple`, *optional*):
                States to start from instead of zeros: the `.states` of an earlier call, whose batch size may differ.
            use_cache (`bool`, *optional*):
                Whether to return the final states.
            output_attentions (`bool`, *optional*):
                Without effect: LSTMs have no attention weights.
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
        if output_attentions:
            warn_about_attentions()
        if char_ids is None and (inputs_embeds is None or not keep_sentence_markers):
            raise ValueError("ElmoModel needs `char_ids`: encode the text with ElmoTokenizer and pass all it returns")
        mask = self._check_inputs(char_ids, inputs_embeds, attention_mask, token_type_ids, states, use_cache)

        packing = pack(mask, token_type_ids)
        if inputs_embeds is None:
            assert char_ids is not None
            rows = self._append_word_ids(char_ids, input_ids) if config.word_embedding_dim else char_ids
            rows, index, keys = distinct_rows(rows.flatten(0, 1)[packing.forward_index])
        else:
            rows, keys = inputs_embeds.flatten(0, 1)[packing.forward_index].to(self.dtype), None
            index = torch.arange(len(rows), device=rows.device)
        flat = index.new_zeros(mask.numel()).index_copy(0, packing.forward_index, index)
        word_index = torch.stack([index, flat[packing.backward_index]])  # (2, N)
        words, outputs, new_states = self._read(rows, keys, word_index, states, packing)
        layers = []
        for forward, backward in (words[word_index], *outputs):
            zeros = forward.new_zeros(mask.numel(), forward.shape[1])
            left = zeros.index_copy(0, packing.forward_index, forward)
            right = zeros.index_copy(0, packing.backward_index, backward)
            layers.append(torch.cat([left, right], dim=-1).unflatten(0, mask.shape).to(self.dtype))  # (B, T, 2P)

        if self.scalar_mix is not None:
            mixed = self.scalar_mix(layers, mask).to(mask.device)
        elif self.mix == "average":
            mixed = torch.stack(layers).mean(0)
        else:
            mixed = layers[-1]
        new_mask = None
        if not keep_sentence_markers:
            assert char_ids is not None
            (mixed, *layers), new_mask = self._drop_markers([mixed, *layers], char_ids, mask, token_type_ids)
        return ElmoModelOutput(
            last_hidden_state=mixed,
            hidden_states=tuple(layers) if output_hidden_states else None,
            states=new_states if use_cache else None,
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
        packing: Packing | None = None,
    ) -> tuple[Sequence[Tensor], Packing, States]:
        """Run each language model over words laid out for it, in the order in which it reads them.

        Word t of lane b is `char_ids[word_index[k, b, t]]` for the language model k, 0 forward and 1 backward, with
        char_ids (U, C) and word_index (2, B, T); a model with word embeddings also reads input_ids (U,). The mask
        (B, T) ends every lane; both have the same one. With segments (B, T), which count up along a lane, segment 0
        starts from the states and each later one from zeros. `packing` is that of mask and segments, if it is already
        made. Returns the top layers' outputs for the N words in packed order, each (N, P), the packing, and the states
        after the last word.
        """
        packing = pack(mask, segments) if packing is None else packing
        index = word_index.flatten(1)[:, packing.forward_index]  # (2, N)
        per_lane = len(packing.order) // max(len(mask), 1)  # segments
        if states is not None:  # a lane's are those of its first segment; the others start from zeros
            hidden, cell = (F.pad(state[:, :, :, None], (0, 0, 0, per_lane - 1)).flatten(2, 3) for state in states)
            states = hidden, cell
        rows = self._append_word_ids(char_ids, input_ids) if self.config.word_embedding_dim else char_ids
        _, outputs, (hidden, cell) = self._read(rows, None, index, states, packing)
        if segments is not None:  # a lane's states are those of its last segment; without words, the ones it had
            last = torch.arange(len(mask), device=mask.device) * per_lane + (segments * mask).amax(1)
            hidden, cell = hidden[:, :, last], cell[:, :, last]
        return outputs[-1], packing, (hidden, cell)

    def _read(
        self, rows: Tensor, keys: Tensor | None, index: Tensor, states: States | None, packing: Packing
    ) -> tuple[Tensor, Sequence[Sequence[Tensor]], States]:
        """Run both language models over words that are given by distinct rows (U, C) and an index (2, N).

        Instead of characters, the rows may hold the words' vectors (U, P).
        Returns the words' vectors (U, P), each layer's outputs (N, P), forward and backward, and the states after it.
        """
        config = self.config
        models: Sequence[ElmoLanguageModel] = (self.forward_lm, self.backward_lm)
        words = rows if rows.is_floating_point() else None
        inputs = (*(states or ()), *(() if words is None else (words,)))
        packed = self._packed = prepare(self._packed, self.char_encoder, models, inputs)
        if packed is not None:
            models = packed.models
        if words is None:
            words = self.char_encoder(rows) if packed is None else packed.encode(rows, keys)
            words = words.to(index.device)  # the encoder may be on another
        sentences = len(packing.order)
        if states is None:
            dtype = torch.promote_types(words.dtype, torch.float32)  # as everything that a recurrence adds up
            shape = (2, config.num_hidden_layers, sentences)
            hidden = words.new_zeros(*shape, config.projection_dim, dtype=dtype)
            cell = words.new_zeros(*shape, config.cell_dim, dtype=dtype)
        else:
            hidden, cell = self._extend_states(states, sentences)
        noise = None
        if self.forward_lm.training and config.dropout > 0:
            noise_shape = (2, config.num_hidden_layers, index.shape[1], words.shape[1])
            noise = dropout_noise(noise_shape, config.dropout, words)

        def run(direction: int, words: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            """Return the L outputs and the final states of one direction."""
            results = models[direction](
                words,
                index[direction],
                hidden[direction][:, packing.order],
                cell[direction][:, packing.order],
                packing.batch_sizes,
                None if noise is None else noise[direction],
            )
            return tuple(result.to(words.device) for result in results)

        inputs = (words, hidden, cell)
        is_trained = packed is None and is_plain(*models) and not self.is_gradient_checkpointing
        directions: Sequence[tuple[Tensor, ...]]
        if is_trained and can_train_in_parallel(*inputs):
            parameters = (list(self.forward_lm.parameters()), list(self.backward_lm.parameters()))
            directions = train_in_parallel(run, inputs, parameters)
        elif packed is not None and (sentences > 1 or packed.fits_cache):
            # One sentence is a quarter faster where each direction has all threads: few of its products are torch's.
            directions = run_in_parallel(lambda side: run(side, *inputs), share_threads=sentences > 1)
        else:
            directions = (run(0, *inputs), run(1, *inputs))
        *outputs, hiddens, cells = zip(*directions, strict=True)
        # In the rows' order; rows that the call did not have keep theirs.
        hidden = hidden.index_copy(2, packing.order, torch.stack(hiddens).to(hidden.dtype))
        cell = cell.index_copy(2, packing.order, torch.stack(cells).to(cell.dtype))
        return words, outputs, (hidden, cell)

    def clear_caches(self) -> None:
        """Forget what was made from the weights for speed: needed only after writing some of them through `.data`."""
        self._packed = None

    def _append_word_ids(self, char_ids: Tensor, input_ids: Tensor | None) -> Tensor:
        """Add the words' ids to their characters (..., C) as a last column; ids outside the vocabulary are unknown."""
        if input_ids is None:
            raise ValueError("this model has word embeddings: pass `input_ids` from its tokenizer beside `char_ids`")
        if input_ids.shape != char_ids.shape[:-1]:
            raise ValueError(f"`input_ids` must be {tuple(char_ids.shape[:-1])}, got {tuple(input_ids.shape)}")
        ids = input_ids.where(input_ids < self.config.vocab_size, self.config.unk_token_id)
        return torch.cat([char_ids, ids[..., None]], dim=-1)

    def _check_inputs(
        self,
        char_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        states: States | None,
        use_cache: bool,
    ) -> Tensor:
        """Refuse inputs of the wrong shape; return the (B, T) mask of real words."""
        widths = {"char_ids": self.config.max_characters_per_token, "inputs_embeds": self.config.projection_dim}
        shape = torch.Size()
        for (name, width), words in zip(widths.items(), (char_ids, inputs_embeds), strict=True):
            if words is not None:
                shape = words.shape[:2]
                if words.ndim != 3 or words.shape[-1] != width:
                    raise ValueError(f"`{name}` must be (batch, words, {width}), got {tuple(words.shape)}")
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"`{name}` must be {tuple(shape)}, got {tuple(tensor.shape)}")
        if token_type_ids is not None and (states is not None or use_cache) and bool(token_type_ids.any()):
            raise ValueError("states are carried from sentence to sentence of a row: rows cannot be pairs")
        if attention_mask is not None:
            return attention_mask.bool()
        if char_ids is not None:
            return char_ids.any(-1)
        assert inputs_embeds is not None
        return inputs_embeds.new_ones(shape, dtype=torch.bool)

    def _extend_states(self, states: States, sentences: int) -> States:
        """Return states for at least so many sentences, zeros after the given ones: (2, L, S, P) and (2, L, S, M)."""
        layers, sizes = self.config.num_hidden_layers, (self.config.projection_dim, self.config.cell_dim)
        for state, size in zip(states, sizes, strict=True):
            if state.ndim != 4 or (*state.shape[:2], state.shape[3]) != (2, layers, size):
                shapes = " and ".join(f"(2, {layers}, batch, {size})" for size in sizes)
                raise ValueError(f"`states` must be {shapes}, got {tuple(state.shape)}")
        missing = max(sentences - states[0].shape[2], 0)
        hidden, cell = (F.pad(state, (0, 0, 0, missing)) for state in states)
        return hidden, cell

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
