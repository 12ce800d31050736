"""ElmoModel and ElmoForPreTraining."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .layers_elmo import (
    CarryGate,
    Dropout,
    ElmoCharacterEncoder,
    ElmoLanguageModel,
    ElmoLstmLayer,
    ElmoScalarMix,
    Packing,
    distinct_rows,
    dropout_noise,
    pack,
)
from .recurrence_elmo import (
    PairedLayer,
    States,
    paired_recurrence,
    runs_compiled,
    runs_packed,
    side_by_side,
    train_side_by_side,
    trains_side_by_side,
)
from .softmax_elmo import ElmoSoftmax, Negatives, draw_negatives
from .tokenization_elmo import BYTE_MARKERS, DICTIONARY_MARKERS, ElmoTokenizer, Markers

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
    """The ids of sentence and word markers in the `char_ids` of a model."""
    return DICTIONARY_MARKERS if config.spelling == "dictionary" else BYTE_MARKERS


def words_of(char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None, ids: Markers) -> Tensor:
    """Which positions of a (B, T) mask are words, rather than the `<S>` and `</S>` around each sentence."""
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
        self._pairs = [PairedLayer() for _ in range(config.num_hidden_layers)]
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
        words = self.char_encoder.encode_distinct(distinct, keys)  # (U, P)
        start_states = self._initial_states(states, len(packing.order))
        indices = (packing.forward_index, packing.backward_index)
        results = self._read(words, torch.stack([flat[index] for index in indices]), start_states, packing)
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

    def read_lanes(
        self,
        char_ids: Tensor,
        word_index: Tensor,
        mask: Tensor,
        states: States | None = None,
        input_ids: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[list[Tensor], Packing, States]:
        """What each language model makes of words that are laid out for it, in the order in which it reads them.

        Word t of lane b is `char_ids[word_index[k, b, t]]` for the language model k, 0 forward and 1 backward, with
        char_ids (U, C) and word_index (2, B, T); a model with word embeddings also reads input_ids (U,). The mask
        (B, T) ends every lane; both have the same one. With segments (B, T), which count up along a lane, segment 0
        goes on from the states and each later one begins from zeros. Returns the top layers' outputs for the N words
        in packed order, each (N, P), the packing, and the states after the last word.
        """
        packing = pack(mask, segments)
        words = self.char_encoder(self._rows(char_ids, input_ids))
        start_states = self._initial_states(states, len(mask))
        if segments is not None:
            first = torch.arange(len(mask), device=mask.device) * (len(packing.order) // max(len(mask), 1))  # (B,)
            hidden, cell = (
                state.new_zeros(*state.shape[:2], len(packing.order), state.shape[3]).index_copy(2, first, state)
                for state in start_states
            )
            start_states = hidden, cell
        index = word_index.flatten(1)[:, packing.forward_index]  # (2, N)
        results = self._read(words, index, start_states, packing)
        outputs, final_states = zip(*((layers[-1], final) for layers, final in results), strict=True)
        hidden, cell = self._updated_states(start_states, final_states, packing)
        if segments is not None:  # a lane's states are those of its last segment; without words, the ones it had
            last = first + (segments * mask).amax(1)
            hidden, cell = hidden[:, :, last], cell[:, :, last]
        return list(outputs), packing, (hidden, cell)

    def _read(
        self, words: Tensor, index: Tensor, start_states: States, packing: Packing
    ) -> list[tuple[list[Tensor], States]]:
        """Each language model over the words (U, P) that its row of the index (2, N) names, in packed order.

        Returns, for each, the L + 1 layers (N, P) and the final states.
        """
        models = (self.forward_lm, self.backward_lm)
        noise = None
        if self.forward_lm.training and self.config.dropout > 0:
            shape = (2, self.config.num_hidden_layers, index.shape[1], words.shape[1])
            noise = dropout_noise(shape, self.config.dropout, words)

        def run(direction: int, words: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
            """The L + 1 layers and the final states."""
            outputs, *final = models[direction](
                words,
                index[direction],
                hidden[direction][:, packing.order],
                cell[direction][:, packing.order],
                packing.batch_sizes,
                None if noise is None else noise[direction],
            )
            return words[index[direction]], *outputs, *final

        forward, backward = partial(run, 0), partial(run, 1)
        inputs = (words, *start_states)
        if all(runs_packed(model, *inputs) for model in models):
            is_one = len(packing.order) == 1
            if is_one and not self._runs_compiled():
                return self._read_one_sentence(words[index], start_states)
            results: Sequence[tuple[Tensor, ...]] = side_by_side(
                lambda: forward(*inputs), lambda: backward(*inputs), halves=not is_one
            )
        elif trains_side_by_side(*inputs) and not self.is_gradient_checkpointing:
            own = (list(self.forward_lm.parameters()), list(self.backward_lm.parameters()))
            results = train_side_by_side(forward, backward, inputs, own)
        else:
            results = [forward(*inputs), backward(*inputs)]
        return [(list(layers), (hidden, cell)) for *layers, hidden, cell in results]

    def _runs_compiled(self) -> bool:
        layer = self.forward_lm.layers[0]
        assert isinstance(layer, ElmoLstmLayer)
        return runs_compiled(layer.weights)

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

    def _rows(self, char_ids: Tensor, input_ids: Tensor | None) -> Tensor:
        """What the encoder reads of words: their characters (..., C), with word embeddings also their ids, last."""
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

    def _initial_states(self, states: States | None, sentences: int) -> States:
        """Given states for the first sentences, zeros for the rest: (2, L, S', P) and (2, L, S', M), S' >= S.

        They are as exact as the weights, under autocast too.
        """
        config = self.config
        sizes = (config.projection_dim, config.cell_dim)
        leading = (2, config.num_hidden_layers)
        if states is None:
            like = next(self.forward_lm.parameters())
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

    def _drop_markers(
        self, layers: tuple[Tensor, ...], char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Moves the words of each row to its front, without the `<S>` and `</S>` around each sentence."""
        words = words_of(char_ids, mask, token_type_ids, markers_of(self.config))
        counts = words.sum(1)
        width = int(counts.max()) if len(counts) else 0
        new_mask = torch.arange(width, device=mask.device) < counts[:, None]
        kept = tuple(
            layer.new_zeros(*new_mask.shape, layer.shape[-1]).masked_scatter(new_mask[..., None], layer[words])
            for layer in layers
        )
        return kept, new_mask.long()


# ------------------------------------------------------------------------------------------------------ pretraining


@dataclass
class ElmoForPreTrainingOutput(ModelOutput):
    r"""
    Output of [`ElmoForPreTraining`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            The mean of the two language models' losses.
        forward_loss, backward_loss (`torch.FloatTensor`, *optional*, with labels):
            Each one's mean of -log p over its predictions; in training mode, with negatives, an estimate.
        forward_logits, backward_logits (`torch.FloatTensor` of shape `(B, T, V)`, *optional*, without labels):
            What the forward language model expects after each position, and the backward one before it.
        hidden_states, states (*optional*):
            As in [`ElmoModelOutput`].
    """

    loss: Tensor | None = None
    forward_loss: Tensor | None = None
    backward_loss: Tensor | None = None
    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    states: States | None = None


class SentenceScore(NamedTuple):
    """What the language models make of a sentence of T words.

    forward: log p of each word and of the end, given the words before: (T + 1,).
    backward: log p of the beginning and of each word, given the words after: (T + 1,).
    """

    forward: Tensor
    backward: Tensor

    @property
    def log_probability(self) -> float:
        """Of the sentence: the mean of what the two language models give it."""
        return (self.forward.double().sum() + self.backward.double().sum()).item() / 2

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_probability / len(self.forward))


class Substitute(NamedTuple):
    """A word that may stand at a place, and how probable the two language models together find it."""

    word: str
    probability: float


class ElmoForPreTraining(ElmoPreTrainedModel):
    """The biLM with the softmax that it is trained with, shared by both directions.

    In training mode the softmax is sampled, with `config.num_negatives` words; otherwise, and where the vocabulary has
    no more words than that, it is full.

    Under `Trainer`, batches that make a step together count alike, whatever their numbers of words. Under
    training.pretrain, words do.
    """

    # Trainer counts labels; there is one prediction less in every sentence.
    accepts_loss_kwargs = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config, add_mix=False)
        self.dropout = Dropout(config.dropout)
        self.softmax = ElmoSoftmax(config.vocab_size, config.projection_dim)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        states: States | None = None,
        word_index: Tensor | None = None,
        segments: Tensor | None = None,
        negatives: Negatives | None = None,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ElmoForPreTrainingOutput:
        r"""
        Sentences, or lanes of running text when there is a `word_index`.

        Args:
            input_ids (`(B, T)`, for lanes `(U,)`, *optional*):
                Ids of the words, which only a model with word embeddings reads. What is to be predicted is `labels`.
            char_ids (`(B, T, C)`, for lanes `(U, C)`):
                Characters of the words of sentences with their markers; for lanes, of the distinct words.
            attention_mask (`(B, T)`, *optional*):
                1 for real words. Of sentences, by default, the words whose characters are not all 0; of lanes, those
                with a label.
            labels (`(B, T)`, for lanes `(2, B, T)`, *optional*):
                Ids of the words, -100 where nothing is to be predicted. Sentences have a word's own id at each
                position; lanes the id to predict there, forward before backward.
            states (`tuple`, *optional*):
                The `.states` of the lanes' last window, or of an earlier batch of sentences.
            word_index (`(2, B, T)`, *optional*):
                Which row of `char_ids` each word of each lane is, forward before backward, each in the order in which
                its language model reads.
            segments (`(B, T)`, *optional*):
                Of lanes, how often states are set to zero up to a word: 0 where it goes on from `states`.
            negatives ([`Negatives`], *optional*):
                The sampled words; by default, in training mode, new ones are drawn.
            num_items_in_batch (`int`, *optional*):
                What to divide the summed losses by, instead of the number of predictions: that of a whole step, when
                it is made of several batches.
            use_cache (`bool`, *optional*):
                Whether to return the final states. Lanes always do.
            output_hidden_states (`bool`, *optional*):
                Whether to return every layer. Lanes never do.
        """
        if char_ids is None:
            raise ValueError("ElmoForPreTraining needs `char_ids`: encode the text with ElmoTokenizer")
        if word_index is not None:
            if labels is None:
                raise ValueError("lanes need `labels`")
            mask = (labels[0] != IGNORED) if attention_mask is None else attention_mask.bool()
            hidden, packing, states = self.elmo.read_lanes(char_ids, word_index, mask, states, input_ids, segments)
            wanted = labels.flatten(1)[:, packing.forward_index]
            losses = self._losses(hidden, list(wanted), negatives, num_items_in_batch)
            return ElmoForPreTrainingOutput(*losses, states=states)

        output = self.elmo(
            input_ids=input_ids,
            char_ids=char_ids,
            attention_mask=attention_mask,
            states=states,
            use_cache=use_cache,
            output_hidden_states=True,
            keep_sentence_markers=True,
        )
        top = output.hidden_states[-1].chunk(2, dim=-1)
        keeps_layers = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        rest = {"hidden_states": output.hidden_states if keeps_layers else None, "states": output.states}
        if labels is None:
            forward_logits, backward_logits = (self.softmax(self.dropout(half)) for half in top)
            return ElmoForPreTrainingOutput(forward_logits=forward_logits, backward_logits=backward_logits, **rest)
        if labels.shape != char_ids.shape[:2]:
            raise ValueError(f"`labels` must be {tuple(char_ids.shape[:2])}, got {tuple(labels.shape)}")
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        # The forward language model at t predicts the word at t + 1; the backward one at t + 1 the word at t.
        both = mask[:, 1:] & mask[:, :-1]
        hidden = [top[0][:, :-1][both], top[1][:, 1:][both]]
        targets = [labels[:, 1:][both], labels[:, :-1][both]]
        return ElmoForPreTrainingOutput(*self._losses(hidden, targets, negatives, num_items_in_batch), **rest)

    def _losses(
        self,
        hidden: Sequence[Tensor],
        targets: Sequence[Tensor],
        negatives: Negatives | None,
        num_items_in_batch: Tensor | int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (N, P) and targets (N,) of each language model -> the mean of their losses, and each."""
        if negatives is None and self.training:
            negatives = self.draw_negatives()
        losses = []
        for outputs, wanted in zip(hidden, targets, strict=True):
            kept = wanted != IGNORED
            outputs, wanted = self.dropout(outputs)[kept], wanted[kept]
            if len(wanted) and not 0 < int(wanted.min()) <= int(wanted.max()) < len(self.softmax.weight):
                raise ValueError(
                    f"`labels` must be word ids from 1 to {len(self.softmax.weight) - 1}, or {IGNORED}; got "
                    f"{int(wanted.min())} to {int(wanted.max())}"
                )
            count = len(wanted) if num_items_in_batch is None else num_items_in_batch
            losses.append(self.softmax.loss(outputs, wanted, negatives) / max(count, 1))
        return (losses[0] + losses[1]) / 2, losses[0], losses[1]

    def draw_negatives(self, generator: torch.Generator | None = None) -> Negatives | None:
        """Words for the sampled softmax of one step, or None where the full softmax is no more work."""
        vocab_size, count = self.config.vocab_size, self.config.num_negatives
        if not 0 < count < vocab_size - 1:
            return None
        return draw_negatives(vocab_size, count, generator, self.softmax.weight.device)

    def score(
        self, sentences: Sequence[str | Sequence[str]], tokenizer: ElmoTokenizer, batch_size: int = 32
    ) -> list[SentenceScore]:
        """What the language models make of sentences, each a text or its words, and each by itself. A word outside the
        vocabulary counts as `<UNK>`. Nothing is sampled and nothing dropped out, whatever mode the model is in.
        """
        batches = (sentences[start : start + batch_size] for start in range(0, len(sentences), batch_size))
        return [score for batch in batches for score in self.score_batch(batch, tokenizer)[0]]

    @torch.no_grad()
    def score_batch(
        self, sentences: Sequence[str | Sequence[str]], tokenizer: ElmoTokenizer, states: States | None = None
    ) -> tuple[list[SentenceScore], States]:
        """The same for one batch, beginning from given states, and the states after it."""
        was_training = self.training
        self.eval()
        try:
            words = [
                tokenizer.tokenize(sentence) if isinstance(sentence, str) else list(sentence) for sentence in sentences
            ]
            inputs = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt").to(self.device)
            output = self.elmo(
                **inputs, states=states, use_cache=True, output_hidden_states=True, keep_sentence_markers=True
            )
            forward, backward = output.hidden_states[-1].chunk(2, dim=-1)
            # One product with the softmax for all words of the batch.
            mask = inputs["attention_mask"].bool()
            both = mask[:, 1:] & mask[:, :-1]
            ids = inputs["input_ids"]
            ids = ids.where(ids != tokenizer.pad_token_id, tokenizer.unk_token_id)  # a word of the text may read so
            left = self.softmax.log_probabilities(forward[:, :-1][both], ids[:, 1:][both]).cpu()
            right = self.softmax.log_probabilities(backward[:, 1:][both], ids[:, :-1][both]).cpu()
        finally:
            self.train(was_training)
        lengths = [len(sentence) + 1 for sentence in words]
        scores = [SentenceScore(*pair) for pair in zip(left.split(lengths), right.split(lengths), strict=True)]
        return scores, output.states

    @torch.no_grad()
    def substitutes(
        self, words: Sequence[str], position: int, tokenizer: ElmoTokenizer, count: int = 10
    ) -> list[Substitute]:
        """The words that may stand at a position of a sentence, the most probable first.

        The forward language model reads what is before the position and the backward one what is after it; neither
        sees the word that is there. Their probabilities are multiplied.
        """
        if not 0 <= position < len(words):
            raise ValueError(f"`position` must be from 0 to {len(words) - 1}, got {position}")
        was_training = self.training
        self.eval()
        try:
            inputs = tokenizer([list(words)], is_split_into_words=True, return_tensors="pt").to(self.device)
            top = self.elmo(**inputs, output_hidden_states=True, keep_sentence_markers=True).hidden_states[-1][0]
            forward, backward = top.chunk(2, dim=-1)
            # `<S>` is at 0, so the word is at position + 1, between its neighbours.
            logits = self.softmax(forward[position]) + self.softmax(backward[position + 2])
            logits[[tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]] = -math.inf
            best = logits.softmax(0).topk(min(count, len(tokenizer) - NUM_SPECIAL_WORDS))
        finally:
            self.train(was_training)
        found = tokenizer.convert_ids_to_tokens(best.indices.tolist())
        return [Substitute(word, value) for word, value in zip(found, best.values.tolist(), strict=True)]
