"""ElmoModel: contextual word vectors from a bidirectional LSTM language model over characters.

Shapes: B batch, T words, C characters a word, P projection, M memory cells, L LSTM layers, N real words of a batch,
U distinct words among them, S sentences (B, or more where rows hold pairs).

char_ids (B, T, C) -> ElmoCharacterEncoder on distinct words (U, P) -> two ElmoLanguageModels, each on its own packed
order of the N words -> hidden_states, (L + 1) x (B, T, 2P) -> ElmoScalarMix -> last_hidden_state (B, T, 2P). Where
the config has a `word_embedding_dim`, the encoder reads input_ids (B, T) beside the characters.

Padding never enters a computation: the real words are packed, so a word's vector cannot depend on it.

ElmoForPreTraining puts one softmax on top of both language models: the forward one predicts the next word and the
backward one the word before.

Task models: words' features [word vector ; ELMo] -> an encoder of the task -> [encoder ; ELMo] -> scores. Each of the
two places has a scalar mix of its own.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .crf_elmo import (
    IMPOSSIBLE,
    LinearChainCrf,
    Scores,
    allowed_labels,
    best_labels,
    log_marginals,
    without_transitions,
)
from .encoders_elmo import BiattentiveNetwork, CharacterCnn, Esim, TaskConv, WordLstm, Words
from .highway_lstm_elmo import HighwayLstm, OrthogonalLinear
from .layers_elmo import (
    CarryGate,
    Dropout,
    ElmoCharacterEncoder,
    ElmoLanguageModel,
    ElmoLstmLayer,
    ElmoScalarMix,
    GlorotLinear,
    Packing,
    distinct_rows,
    dropout_noise,
    pack,
)
from .reading_elmo import ParagraphReader, Similarity, best_spans, windows_of
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
from .spans_elmo import DocumentWords, Ranking, SpanRanking, clusters_of, coreference_loss
from .tokenization_elmo import BYTE_MARKERS, DICTIONARY_MARKERS, ElmoTokenizer, Markers

# Initial bias of a highway layer's gate.
CARRY_BIAS = -2.0
# A label that is not to be predicted.
IGNORED = -100
# `<pad>`, `<S>`, `</S>` and `<UNK>`.
NUM_SPECIAL_WORDS = 4
# Of a task's own character CNN (Peters et al., 2017).
TASK_CHARACTER_DIM, TASK_FILTER_WIDTH = 16, 3
# Of a reader's (Clark and Gardner, 2018).
READER_CHARACTER_DIM, READER_FILTER_WIDTH = 20, 5
# Units of the task models' LSTMs, as in the papers; of the reader's GRUs. Layers of the LSTMs.
CLASSIFIER_DIM, TAGGER_DIM, READER_DIM, SRL_DIM = 300, 200, 90, 300
TAGGER_LAYERS, COREFERENCE_LAYERS, SRL_LAYERS = 2, 1, 8
# Size of what marks a sentence's predicate (He et al., 2017).
PREDICATE_DIM = 100
# Windows of a context that are read at once.
WINDOWS_AT_ONCE = 16
# Of coreference: dropout behind the LSTMs as a part of that on words, 0.2 of 0.5 in the paper; tokens of sentences of
# like length, padding included, that are read at once.
INNER_DROPOUT, TOKENS_AT_ONCE = 0.4, 4096


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
        """The original's initial values.

        By leaf module: transformers passes over modules of custom code that have no parameters of their own.
        """
        if isinstance(module, GlorotLinear):
            init.uniform_(module.weight, -module.bound, module.bound)
        elif isinstance(module, OrthogonalLinear):
            init.copy_(module.weight, module.initial_weight())
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, LinearChainCrf):
            for parameter in module.parameters():
                init.zeros_(parameter)
        elif isinstance(module, Similarity):
            init.copy_(module.product, module.initial_product())
        elif isinstance(module, nn.Conv1d):
            if self.config.char_activation == "relu" and not isinstance(module, TaskConv):
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
        elif isinstance(module, ElmoSoftmax):
            init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
            init.copy_(module.bias, module.initial_bias())
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
    ) -> tuple[list[Tensor], Packing, States]:
        """What each language model makes of words that are laid out for it, in the order in which it reads them.

        Word t of lane b is `char_ids[word_index[k, b, t]]` for the language model k, 0 forward and 1 backward, with
        char_ids (U, C) and word_index (2, B, T); a model with word embeddings also reads input_ids (U,). The mask
        (B, T) ends every lane; both have the same one. Returns the top layers' outputs for the N words in packed
        order, each (N, P), the packing, and the states after the last word.
        """
        packing = pack(mask)
        words = self.char_encoder(self._rows(char_ids, input_ids))
        start_states = self._initial_states(states, len(packing.order))
        index = word_index.flatten(1)[:, packing.forward_index]  # (2, N)
        results = self._read(words, index, start_states, packing)
        outputs, final_states = zip(*((layers[-1], final) for layers, final in results), strict=True)
        return list(outputs), packing, self._updated_states(start_states, final_states, packing)

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
    training/pretrain.py, words do.
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
            hidden, packing, states = self.elmo.read_lanes(char_ids, word_index, mask, states, input_ids)
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


# ------------------------------------------------------------------------------------------------------- task models


class ElmoTaskModel(ElmoPreTrainedModel):
    """What the task models share: word vectors and ELMo vectors, at the places that the config names."""

    # Losses are means over the batch's rows, which Trainer divides by its accumulation steps. A model whose loss is a
    # mean over words takes the number of words of the whole step instead.
    accepts_loss_kwargs = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        placement = config.elmo_placement
        if placement == "none":  # the weights of a biLM that a model begins from are not wanted
            of_bilm = [r"^(elmo\.)?(char_encoder|forward_lm|backward_lm)\."]
            self._keys_to_ignore_on_load_unexpected = [*self._keys_to_ignore_on_load_unexpected, *of_bilm]
        else:
            self.elmo = ElmoModel(config, add_mix=False)
        self.input_mix = self._make_mix() if placement in ("input", "both") else None
        self.output_mix = self._make_mix() if placement in ("output", "both") else None
        self.elmo_dropout = Dropout(config.elmo_dropout)
        self.dropout: nn.Module = Dropout(config.head_dropout)
        self.word_embeddings = None
        if config.word_vector_dim:
            self.word_embeddings = nn.Embedding(config.vocab_size, config.word_vector_dim, padding_idx=0)
        if self.word_embeddings is None and self.input_mix is None and not self._own_features():
            raise ValueError(
                f"elmo_placement={placement!r} leaves nothing to read: set `word_vector_dim` or place ELMo at the "
                "input"
            )
        self.input_size = config.word_vector_dim + self._own_features()
        self.input_size += config.hidden_size if self.input_mix is not None else 0
        self.elmo_size = config.hidden_size if self.output_mix is not None else 0

    def _own_features(self) -> int:
        """Features of a word that a task model computes itself."""
        return 0

    def _make_mix(self) -> "LayerMix":
        return LayerMix(self.config)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("ignore_mismatched_sizes"):
            cls._check_label_names(pretrained_model_name_or_path, kwargs)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).freeze()  # loading makes all weights trainable
        return loaded

    @classmethod
    def _check_label_names(cls, folder: Any, given: dict[str, Any]) -> None:
        """Refuses to load a folder of this task for other labels than it was trained for."""
        config = given.get("config")
        names = given.get("id2label") if config is None else getattr(config, "id2label", None)
        count = given.get("num_labels") if names is None else len(names)
        if count is None or folder is None:
            return
        passed_on = ("revision", "subfolder", "token", "cache_dir", "local_files_only")
        saved = cls.config_class.from_pretrained(folder, **{name: given[name] for name in passed_on if name in given})
        if next(iter(saved.architectures or []), None) != cls.__name__:
            return
        known = [saved.id2label[number] for number in range(saved.num_labels)]
        wanted = (
            None if names is None else [name for _, name in sorted((int(key), name) for key, name in names.items())]
        )
        if count == len(known) and wanted in (None, known):
            return
        asked = count if count != len(known) or wanted is None else ", ".join(wanted)
        raise ValueError(
            f"{folder} was trained for the {len(known)} labels {', '.join(known)}, not for {asked}: begin from its "
            "biLM, or pass ignore_mismatched_sizes=True to learn the output layer anew"
        )

    def post_init(self) -> None:
        super().post_init()
        self.freeze()

    def freeze(self) -> None:
        """Keeps what the config says from training: the biLM, the word vectors."""
        if self.config.elmo_placement != "none":
            self.elmo.freeze_bilm(self.config.freeze_bilm)
        if self.word_embeddings is not None:
            self.word_embeddings.weight.requires_grad_(self.config.train_word_vectors)

    @torch.no_grad()
    def set_word_vectors(self, vectors: Tensor) -> None:
        """Takes the vectors (N, D) of the tokenizer's words, in their order and without the special words.

        An unknown word has their mean, everything else zeros.
        """
        if self.word_embeddings is None:
            raise ValueError("this model has no word vectors: set `word_vector_dim` in its config")
        rows, size = self.word_embeddings.weight.shape
        if vectors.shape != (rows - NUM_SPECIAL_WORDS, size):
            raise ValueError(
                f"expected vectors of {rows - NUM_SPECIAL_WORDS} words and size {size} "
                f"(`vocab_size` less {NUM_SPECIAL_WORDS}, `word_vector_dim`), got {tuple(vectors.shape)}"
            )
        self.word_embeddings.weight.zero_()
        self.word_embeddings.weight[self.config.unk_token_id] = vectors.mean(0)
        self.word_embeddings.weight[NUM_SPECIAL_WORDS:] = vectors

    def mix_weights(self) -> dict[str, list[float]]:
        """What each place makes of the layers: gamma times their softmax-normalised weights."""
        mixes = {"input": self.input_mix, "output": self.output_mix}
        return {
            place: (mix.scalar.gamma * mix.scalar.scalar_weights.softmax(0)).tolist()
            for place, mix in mixes.items()
            if mix is not None and mix.scalar is not None
        }

    def bilm_layers(
        self,
        char_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        input_ids: Tensor | None = None,
    ) -> Tensor:
        """The biLM's layers as `forward` takes them, to be computed once and kept: (B, T, (2L + 1)P).

        They are those of the output's `hidden_states` beside each other, the first of which is twice the same.
        """
        output = self.elmo(
            input_ids=input_ids,
            char_ids=char_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            output_hidden_states=True,
            keep_sentence_markers=True,
        )
        first, *rest = output.hidden_states
        return torch.cat([first[..., : self.config.projection_dim], *rest], dim=-1)

    def _mixed(self, layers: Tensor) -> list[Tensor | None]:
        """ELMo vectors (N, 2P) for the input and the output, or None, of words' layers (N, (2L + 1)P)."""
        first, *rest = layers.split(
            [self.config.projection_dim, *[self.config.hidden_size] * self.config.num_hidden_layers], -1
        )
        all_layers = (torch.cat([first, first], dim=-1), *rest)
        return [
            None if mix is None else self.elmo_dropout(mix(all_layers)) for mix in (self.input_mix, self.output_mix)
        ]

    def _read(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
        texts: int = 1,
    ) -> tuple[list[Words], list[Tensor]]:
        """The words of each of the texts of a row, and for each word its position in the row, (B, T')."""
        if char_ids is None:
            raise ValueError(f"{type(self).__name__} needs `char_ids`: encode the text with ElmoTokenizer")
        if texts == 1 and token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError(f"{type(self).__name__} reads one text a row, not pairs")
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        words = words_of(char_ids, mask, token_type_ids, markers_of(self.config))
        # Features are made of the N real words alone: most places of a batch may be padding.
        real = words.flatten().nonzero().squeeze(1)  # (N,)
        features, elmo = [], None
        if self.word_embeddings is not None:
            if input_ids is None:
                raise ValueError(f"{type(self).__name__} looks word vectors up by `input_ids`, which are missing")
            features.append(self.dropout(self.word_embeddings(input_ids.flatten()[real])))
        features += self._features(char_ids.flatten(0, 1)[real])
        if self.config.elmo_placement != "none":
            if bilm_layers is None:
                bilm_layers = self.bilm_layers(char_ids, attention_mask, token_type_ids, input_ids)
            at_input, elmo = self._mixed(bilm_layers.flatten(0, 1)[real])
            if at_input is not None:
                features.append(at_input)
        joined = torch.cat(features, dim=-1)

        found, positions = [], []
        for text in range(texts):
            chosen = words if token_type_ids is None else words & (token_type_ids == text)
            counts = chosen.sum(1)
            width = int(counts.max()) if len(counts) else 0
            # The positions of a text's words first, in their order.
            positions.append((~chosen).long().argsort(dim=1, stable=True)[:, :width])
            new_mask = torch.arange(width, device=counts.device) < counts[:, None]
            place = new_mask.flatten().nonzero().squeeze(1)
            of_text = slice(None) if texts == 1 else chosen.flatten()[real]

            def lay_out(rows: Tensor, shape: torch.Size = new_mask.shape, place: Tensor = place) -> Tensor:
                """Rows of the text's words -> (B, T', D), zero where there is no word."""
                return rows.new_zeros(shape.numel(), rows.shape[1]).index_copy(0, place, rows).unflatten(0, shape)

            found.append(Words(lay_out(joined[of_text]), None if elmo is None else lay_out(elmo[of_text]), new_mask))
        return found, positions

    def _features(self, char_ids: Tensor) -> list[Tensor]:
        """What a task model adds to the features of words (N, C): each (N, D)."""
        return []

    def _penalty(self) -> Tensor | float:
        """λ‖s‖² of the mixes, in training."""
        mixes = [mix.scalar for mix in (self.input_mix, self.output_mix) if mix is not None and mix.scalar is not None]
        return sum(mix.penalty() for mix in mixes) if self.training else 0.0


class LayerMix(nn.Module):
    """The layers as one vector, the way the config's `mix` says."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.how = config.mix
        self.scalar = None
        if self.how == "scalar":
            self.scalar = ElmoScalarMix(config.num_hidden_layers + 1, config.mix_layer_norm, config.mix_l2)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Layers of real words, each (N, D) -> (N, D)"""
        if self.scalar is not None:
            return self.scalar(layers)
        return torch.stack(list(layers)).mean(0) if self.how == "average" else layers[-1]


class ElmoSequenceEncoder(ElmoTaskModel):
    """A text, or a pair of texts, as some scores."""

    def __init__(self, config: ElmoConfig, encoder: str, outputs: int) -> None:
        super().__init__(config)
        network = Esim if encoder == "esim" else BiattentiveNetwork
        units = config.head_dim or CLASSIFIER_DIM
        self.network = network(self.input_size, self.elmo_size, units, config.head_dropout, outputs)

    def _scores(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
    ) -> Tensor:
        """(B, outputs)"""
        needs_pairs = isinstance(self.network, Esim)
        if needs_pairs and token_type_ids is None:
            raise ValueError(
                "sequence_encoder='esim' reads pairs: tokenizer(first, second), with their `token_type_ids`"
            )
        if not needs_pairs and token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError("sequence_encoder='bcn' reads one text a row; for pairs set sequence_encoder='esim'")
        texts, _ = self._read(
            input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, texts=2 if needs_pairs else 1
        )
        return self.network(*texts)


class ElmoForSequenceClassification(ElmoSequenceEncoder):
    """Classes, or a number, for a text (biattentive classification network) or a pair of texts (ESIM)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config, config.sequence_encoder, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of a text or, for ESIM, of a pair.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these texts, so that the biLM need not read them again.
            labels (`(B,)`, for several labels a text `(B, num_labels)`, *optional*):
                Numbers of classes, or numbers where `config.problem_type` is `"regression"`.
        """
        logits = self._scores(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        loss = None
        if labels is not None:
            if self.config.problem_type is None:
                is_whole = labels.dtype in (torch.long, torch.int)
                one = "single_label_classification" if is_whole else "multi_label_classification"
                self.config.problem_type = "regression" if self.config.num_labels == 1 else one
            if self.config.problem_type == "regression":
                loss = F.mse_loss(logits.view(labels.shape), labels.to(logits.dtype))
            elif self.config.problem_type == "single_label_classification":
                _check_labels(labels, self.config.num_labels)
                loss = _mean_loss(logits, labels)
            else:
                loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
            loss = loss + self._penalty()
        return SequenceClassifierOutput(loss=loss, logits=logits)


class ElmoForMultipleChoice(ElmoSequenceEncoder):
    """A score for each of several endings of a text: ESIM over text and ending (Zellers et al., 2018)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config, "esim", 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> MultipleChoiceModelOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids (`(B, choices, T)`, characters `(B, choices, T, C)`):
                What [`ElmoTokenizer`] makes of the pairs of a text and each of its endings.
            bilm_layers (`(B, choices, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these pairs.
            labels (`(B,)`, *optional*):
                Which of the choices is right.
        """
        if input_ids is None or char_ids is None:
            raise ValueError("ElmoForMultipleChoice needs `input_ids` and `char_ids` from ElmoTokenizer")
        batch, choices, words = input_ids.shape
        width = self.config.max_characters_per_token
        flat = (
            None if tensor is None else tensor.flatten(0, 1) for tensor in (input_ids, attention_mask, token_type_ids)
        )
        ids, mask, segments = flat
        # The stock collator flattens what it does not know: characters come as (B, choices, T * C).
        scores = self._scores(
            ids,
            char_ids.reshape(batch * choices, words, width),
            mask,
            segments,
            None if bilm_layers is None else bilm_layers.flatten(0, 1),
        )
        logits = scores.view(batch, choices)
        loss = None
        if labels is not None:
            _check_labels(labels, choices)
            loss = _mean_loss(logits, labels) + self._penalty()
        return MultipleChoiceModelOutput(loss=loss, logits=logits)


class ElmoWordEncoder(ElmoTaskModel):
    """Words, and their characters, through LSTMs: what tagging and coreference share."""

    default_layers = TAGGER_LAYERS

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.char_cnn = None
        if config.head_char_filters:
            self.char_cnn = CharacterCnn(
                config.char_vocab_size, TASK_CHARACTER_DIM, config.head_char_filters, TASK_FILTER_WIDTH
            )
        units, layers = config.head_dim or TAGGER_DIM, config.head_layers or self.default_layers
        self.encoder = WordLstm(self.input_size, units, layers, config.head_dropout)

    def _own_features(self) -> int:
        return self.config.head_char_filters

    def _features(self, char_ids: Tensor) -> list[Tensor]:
        return [] if self.char_cnn is None else [self.dropout(self.char_cnn(char_ids))]


@dataclass
class ElmoTokenClassifierOutput(ModelOutput):
    r"""
    Output of [`ElmoForTokenClassification`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            -log p of the labels: with a CRF the mean over sentences, else over words.
        logits (`torch.FloatTensor` of shape `(B, T, num_labels)`):
            log p of each label of each word; in training mode, with a CRF, each word's own scores.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*, in eval mode):
            The best label sequence that the tag scheme allows, -100 where there is no word.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    predictions: Tensor | None = None


class ElmoForTokenClassification(ElmoWordEncoder):
    """A label for each word: LSTMs over words and characters, and a CRF (Peters et al., 2017, 2018)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(self.encoder.size + self.elmo_size, config.num_labels)
        self.crf = LinearChainCrf(config.num_labels) if config.use_crf else None
        self.accepts_loss_kwargs = not config.use_crf  # a CRF's loss is of sentences
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> ElmoTokenClassifierOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of a sentence.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these sentences.
            labels (`(B, T)`, *optional*):
                Numbers of labels, -100 for sentence markers, padding and whatever has none.
            num_items_in_batch (`int`, *optional*):
                How many words of a whole step have labels, when it is made of several batches; a CRF does not use it.
        """
        emissions, position, mask = self._emissions(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        assert char_ids is not None
        shape = char_ids.shape[:2]
        loss = None
        if labels is not None:
            _check_labels(labels, self.config.num_labels)
            wanted = labels.gather(1, position).masked_fill(~mask, IGNORED)
            if self.crf is not None:
                loss = self.crf.loss(emissions, mask, wanted, IGNORED) / max(len(labels), 1) + self._penalty()
            else:
                loss = _word_loss(emissions, wanted, self._penalty(), num_items_in_batch)
        if self.training:
            return ElmoTokenClassifierOutput(loss=loss, logits=_put(emissions, position, mask, shape, 0.0))
        scores = self._decoding_scores(emissions)
        logits = log_marginals(emissions, mask, scores)
        predictions = best_labels(emissions, mask, scores)
        return ElmoTokenClassifierOutput(
            loss=loss,
            logits=_put(logits, position, mask, shape, 0.0),
            predictions=_put(predictions[..., None], position, mask, shape, IGNORED).squeeze(-1),
        )

    def _emissions(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each word's own scores (B, T', K), the words' positions in the input and their mask (B, T')."""
        (text,), (position,) = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        encoded = self.dropout(self.encoder(text.features, text.mask))
        if text.elmo is not None:
            encoded = torch.cat([encoded, text.elmo], dim=-1)
        return self.classifier(encoded).float(), position, text.mask

    def _decoding_scores(self, emissions: Tensor) -> Scores:
        labels = tuple(self.config.id2label[index] for index in range(self.config.num_labels))
        scores = without_transitions(emissions) if self.crf is None else self.crf.scores()
        return scores.restricted(allowed_labels(labels, self.config.tag_scheme))

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
    ) -> list[list[int]]:
        """The labels of each sentence's words, sentence markers left out: the best sequence that the scheme allows."""
        was_training = self.training
        self.eval()
        try:
            emissions, _, mask = self._emissions(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
            best = best_labels(emissions, mask, self._decoding_scores(emissions))
        finally:
            self.train(was_training)
        return [row[keep].tolist() for row, keep in zip(best, mask, strict=True)]


@dataclass
class ElmoSemanticRoleLabelerOutput(ModelOutput):
    r"""
    Output of [`ElmoForSemanticRoleLabeling`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            -log p of the labels, the mean over words.
        logits (`torch.FloatTensor` of shape `(B, T, num_labels)`):
            log p of each label of each word.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*, in eval mode):
            The best label sequence that BIO allows, -100 where there is no word.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    predictions: Tensor | None = None


class Role(NamedTuple):
    """A part of a sentence and what it is to the predicate: words `start` to before `end`."""

    role: str
    start: int
    end: int
    text: str


class ElmoForSemanticRoleLabeling(ElmoTaskModel):
    """Who did what to whom: the words' roles for one predicate of a sentence, in BIO labels (He et al., 2017)."""

    accepts_loss_kwargs = True

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.predicate_embeddings = nn.Embedding(2, PREDICATE_DIM)
        units, layers = config.head_dim or SRL_DIM, config.head_layers or SRL_LAYERS
        self.encoder = HighwayLstm(self.input_size + PREDICATE_DIM, units, layers, config.head_dropout)
        # Not of the tagger's name: its sizes are others, and folders load through every auto class.
        self.role_classifier = nn.Linear(self.encoder.size + self.elmo_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        predicate_index: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> ElmoSemanticRoleLabelerOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of a sentence. A sentence with several predicates is a row for each.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these sentences.
            predicate_index (`(B,)`):
                Where the predicate is in each row, `<S>` included: the first word is at 1.
            labels (`(B, T)`, *optional*):
                Numbers of labels, -100 for sentence markers, padding and whatever has none.
            num_items_in_batch (`int`, *optional*):
                How many words of a whole step have labels, when it is made of several batches.
        """
        (text,), (position,) = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        is_predicate = _predicates(predicate_index, position, text.mask)
        indicator = self.predicate_embeddings(is_predicate.long()) * text.mask[..., None]
        encoded = self.encoder(torch.cat([text.features, indicator], dim=-1), text.mask)
        if text.elmo is not None:
            encoded = torch.cat([encoded, text.elmo], dim=-1)
        log_p = self.role_classifier(encoded).float().log_softmax(-1)
        assert char_ids is not None
        shape = char_ids.shape[:2]
        loss = None
        if labels is not None:
            _check_labels(labels, self.config.num_labels)
            wanted = labels.gather(1, position).masked_fill(~text.mask, IGNORED)
            loss = _word_loss(log_p, wanted, self._penalty(), num_items_in_batch)
        output = ElmoSemanticRoleLabelerOutput(loss=loss, logits=_put(log_p, position, text.mask, shape, 0.0))
        if not self.training:
            names = tuple(self.config.id2label[index] for index in range(self.config.num_labels))
            scores = without_transitions(log_p).restricted(allowed_labels(names, "BIO"))
            best = best_labels(log_p, text.mask, scores)[..., None]
            output.predictions = _put(best, position, text.mask, shape, IGNORED).squeeze(-1)
        return output

    @overload
    def label(self, words: Sequence[str], predicate_index: int, tokenizer: ElmoTokenizer) -> list[Role]: ...
    @overload
    def label(
        self, words: Sequence[str], predicate_index: Sequence[int], tokenizer: ElmoTokenizer
    ) -> list[list[Role]]: ...
    @torch.no_grad()
    def label(
        self, words: Sequence[str], predicate_index: int | Sequence[int], tokenizer: ElmoTokenizer
    ) -> list[Role] | list[list[Role]]:
        """Who did what to whom: the roles of a sentence's parts for a predicate, the predicate itself being `V`.

        The predicate is given by its position among the words, from 0. Several are read as one batch, and return a
        list each. Nothing is dropped out, whatever mode the model is in.
        """
        if isinstance(words, str):
            raise ValueError(f"`words` must be a list of words, got the text {words!r}")
        given = predicate_index if isinstance(predicate_index, Iterable) else [predicate_index]
        several = [operator.index(index) for index in given]
        for index in several:
            if not 0 <= index < len(words):
                raise ValueError(f"`predicate_index` must be a place among {len(words)} words, from 0, got {index}")
        if not several:
            return []
        was_training = self.training
        self.eval()
        try:
            rows = [list(words)] * len(several)
            inputs = tokenizer(rows, is_split_into_words=True, return_tensors="pt").to(self.device)
            predicates = torch.tensor(several, device=self.device) + 1  # behind `<S>`
            found = self(**inputs, predicate_index=predicates).predictions
        finally:
            self.train(was_training)
        labels = [[self.config.id2label[number] for number in row if number != IGNORED] for row in found.tolist()]
        roles = [
            [Role(role, start, end, " ".join(words[start:end])) for role, start, end in role_spans(of_row)]
            for of_row in labels
        ]
        return roles if given is predicate_index else roles[0]


def _predicates(index: Tensor | None, position: Tensor, mask: Tensor) -> Tensor:
    """Which of the words, at some positions of their rows (B, T'), is each row's predicate."""
    if index is None or index.shape != mask.shape[:1]:
        got = "none" if index is None else f"the shape {tuple(index.shape)}"
        raise ValueError(f"`predicate_index` must have one position for each of {len(mask)} rows, got {got}")
    found = (position == index[:, None]) & mask
    if not bool(found.any(1).all()):
        row = int(found.any(1).long().argmin())
        real = position[row][mask[row]].tolist()
        where = f"{real[0]} to {real[-1]}" if real else "nowhere: it has no words"
        raise ValueError(f"`predicate_index` of row {row} must be where a word is, {where}, got {int(index[row])}")
    return found


def role_spans(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """The spans of BIO labels: each role, its first word and one past its last."""
    spans: list[tuple[str, int, int]] = []
    for word, label in enumerate(labels):
        position, _, role = label.partition("-")
        if position == "B":
            spans.append((role, word, word + 1))
        elif position == "I":
            spans[-1] = (role, spans[-1][1], word + 1)
    return spans


@dataclass
class ElmoQuestionAnsweringOutput(ModelOutput):
    r"""
    Output of [`ElmoForQuestionAnswering`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with positions):
            The mean of -log p of the answers' first and of their last words.
        start_logits, end_logits (`torch.FloatTensor` of shape `(B, T)`):
            Scores of the context's words as an answer's first and last; -1e4 everywhere else.
        predictions (`torch.FloatTensor` of shape `(B, 3)`, *optional*, in eval mode):
            Positions of the first and the last word of the best answer of at most `config.max_answer_words` words,
            and the sum of their logits, which windows of one context are compared by; -100 without a context.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    predictions: Tensor | None = None


class Answer(NamedTuple):
    """An answer's text, p(first word) p(last word), and its first character in the context and one past its last."""

    answer: str
    score: float
    start: int
    end: int


class ElmoForQuestionAnswering(ElmoTaskModel):
    """The answer to a question as words of a context: attention between them and within (Clark and Gardner, 2018).

    The question is the first text of a pair and the context the second. A context of many sentences is one sequence
    to the biLM.
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Identity()  # the reader's is one of whole texts, in which words have their places
        # Not of the tagger's name: its sizes are others, and folders load through every auto class.
        self.reader_cnn = None
        if config.head_char_filters:
            self.reader_cnn = CharacterCnn(
                config.char_vocab_size, READER_CHARACTER_DIM, config.head_char_filters, READER_FILTER_WIDTH
            )
        units = config.head_dim or READER_DIM
        self.reader = ParagraphReader(self.input_size, self.elmo_size, units, config.head_dropout)
        self.post_init()

    def _own_features(self) -> int:
        return self.config.head_char_filters

    def _features(self, char_ids: Tensor) -> list[Tensor]:
        return [] if self.reader_cnn is None else [self.reader_cnn(char_ids)]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ElmoQuestionAnsweringOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of pairs of a question and a context.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these pairs.
            start_positions, end_positions (`(B,)`, *optional*):
                Positions of the answer's first and last word in the row, of words of the context; -100 where the row
                has no answer to learn from.
        """
        if token_type_ids is None:
            raise ValueError(
                "ElmoForQuestionAnswering reads pairs: tokenizer(question, context), with their `token_type_ids`"
            )
        (question, context), (_, position) = self._read(
            input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, texts=2
        )
        starts, ends = self.reader(question, context)  # (B, T')
        logits = [
            _put(scores[..., None], position, context.mask, token_type_ids.shape, IMPOSSIBLE).squeeze(-1)
            for scores in (starts, ends)
        ]
        loss = None
        if start_positions is not None and end_positions is not None:
            is_context = _put(context.mask[..., None], position, context.mask, token_type_ids.shape, False).squeeze(-1)
            losses = [
                _position_loss(scores, wanted, is_context, name)
                for scores, wanted, name in zip(
                    logits, (start_positions, end_positions), ("start_positions", "end_positions"), strict=True
                )
            ]
            loss = sum(losses) / 2 + self._penalty()
        predictions = None if self.training else self._best(starts, ends, position, context.mask)
        return ElmoQuestionAnsweringOutput(loss, *logits, predictions)

    def _best(self, starts: Tensor, ends: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Of scores (B, T') of the context's words the best spans, by the words' positions in the row: (B, 3)"""
        if not mask.shape[1]:
            return starts.new_full((len(mask), 3), IGNORED)
        first, last, score = best_spans(starts, ends, self.config.max_answer_words)
        places = [position.gather(1, word[:, None])[:, 0] for word in (first, last)]
        return torch.stack([*places, score], dim=1).masked_fill(~mask[:, :1], IGNORED)

    @torch.no_grad()
    def answer(self, question: str, context: str, tokenizer: ElmoTokenizer) -> Answer:
        """The best answer that the context has to the question.

        A context of more than `config.max_context_words` words is read in overlapping windows. Their scores are
        compared as they are: p is over the words of all windows.
        """
        spans = {}
        for name, text in (("question", question), ("context", context)):
            spans[name] = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            if not spans[name]:
                raise ValueError(f"`{name}` must have words, got {text!r}")
        asked = [question[start:end] for start, end in spans["question"]]
        told = [context[start:end] for start, end in spans["context"]]
        windows = windows_of(len(told), self.config.max_context_words, self.config.context_overlap)
        best, found, totals = -math.inf, (0, 0), []
        was_training = self.training
        self.eval()
        try:
            for some in (windows[i : i + WINDOWS_AT_ONCE] for i in range(0, len(windows), WINDOWS_AT_ONCE)):
                pairs = [asked] * len(some), [told[first:last] for first, last in some]
                inputs = tokenizer(*pairs, is_split_into_words=True, padding=True, return_tensors="pt")
                output = self(**{name: tensor.to(self.device) for name, tensor in inputs.items()})
                totals.append(torch.stack([output.start_logits, output.end_logits]).flatten(1).logsumexp(1))
                row = int(output.predictions[:, 2].argmax())
                *places, score = output.predictions[row].tolist()
                if score > best:
                    best = score
                    found = tuple(some[row][0] + inputs.token_to_word(row, int(place)) for place in places)
        finally:
            self.train(was_training)
        start, end = spans["context"][found[0]][0], spans["context"][found[1]][1]
        total = torch.stack(totals).logsumexp(0).sum()  # of the first word and of the last
        return Answer(context[start:end], math.exp(best - total.item()), start, end)


def _position_loss(logits: Tensor, wanted: Tensor, is_context: Tensor, name: str) -> Tensor:
    """-log p of the wanted positions (B,) among the words of the context, the mean over the rows that have one."""
    known = wanted != IGNORED
    inside = (wanted >= 0) & (wanted < logits.shape[1])
    inside &= is_context.gather(1, wanted.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    if bool((known & ~inside).any()):
        outside = wanted[known & ~inside][0].item()
        raise ValueError(f"`{name}` must be positions of words of the context, or {IGNORED}; got {outside}")
    return _mean_loss(logits, wanted)


def _put(rows: Tensor, position: Tensor, mask: Tensor, shape: torch.Size, fill: float) -> Tensor:
    """Rows (B, T', K) of words at their positions in the input, and a filling elsewhere: (B, T, K)."""
    whole = rows.new_full((*shape, rows.shape[-1]), fill)
    index = position[..., None].expand_as(rows)
    return whole.scatter(1, index, torch.where(mask[..., None], rows, rows.new_full((), fill)))


def _mean_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """-log p of labels (N,) by their scores (N, K), the mean over those that are there; 0 if none is."""
    loss = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return loss / (labels != IGNORED).sum().clamp(min=1)


def _word_loss(
    scores: Tensor, labels: Tensor, penalty: Tensor | float, num_items_in_batch: Tensor | int | None
) -> Tensor:
    """-log p of labels (B, T') by scores (B, T', K), the mean over the words that have one, plus a penalty.

    Of a batch that makes a step with others, whose labels are `num_items_in_batch` in all: its share of that.
    """
    loss = _mean_loss(scores.flatten(0, 1), labels.flatten()) + penalty
    return loss if num_items_in_batch is None else loss * ((labels != IGNORED).sum() / max(num_items_in_batch, 1))


def _check_labels(labels: Tensor, count: int) -> None:
    """Refuses labels that are none, which a loss would take for an index."""
    real = labels[labels != IGNORED]
    if len(real) and not 0 <= int(real.min()) <= int(real.max()) < count:
        raise ValueError(
            f"`labels` must be from 0 to {count - 1}, or {IGNORED}; got {int(real.min())} to {int(real.max())}"
        )


@dataclass
class ElmoCoreferenceOutput(ModelOutput):
    r"""
    Output of [`ElmoForCoreferenceResolution`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            -log p of the right antecedents, the mean over documents.
        spans (`torch.LongTensor` of shape `(B, K, 2)`):
            The spans that were compared with each other, by position: words of the document, the last one excluded.
            -100 where a document has fewer.
        mention_scores (`torch.FloatTensor` of shape `(B, K)`):
            How likely each is a mention. 0 where there is no span.
        predictions (`torch.LongTensor` of shape `(B, M, 3)`, *optional*, in eval mode):
            The mentions, by position, as the labels are: first word, last word excluded, and number of the cluster.
    """

    loss: Tensor | None = None
    spans: Tensor | None = None
    mention_scores: Tensor | None = None
    predictions: Tensor | None = None


class ElmoForCoreferenceResolution(ElmoWordEncoder):
    """Which spans of a document mention the same thing: end-to-end span ranking (Lee et al., 2017, 2018).

    Speakers and genres, which the papers have features of, are left out: not all documents have them. Of antecedents
    `max_antecedents` are chosen by a quick score (Lee et al., 2018), where the first paper compares the last 250;
    characters have filters of one width, as in tagging; embeddings of widths and distances are not dropped out.
    """

    default_layers = COREFERENCE_LAYERS

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        inner = INNER_DROPOUT * config.head_dropout
        self.encoder_dropout = Dropout(inner)
        self.ranking = SpanRanking(
            self.input_size,
            self.encoder.size + self.elmo_size,
            config.max_span_width,
            config.spans_per_word,
            config.max_antecedents,
            inner,
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ElmoCoreferenceOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask (`(B, S, T)`, characters `(B, S, T, C)`):
                What [`ElmoTokenizer`] makes of the S sentences of each document; a shorter document is filled up with
                sentences without words.
            bilm_layers (`(B, S, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these sentences.
            labels (`(B, M, 3)`, *optional*):
                The mentions of each document: first word, last word excluded, counted through the document without
                sentence markers, and number of the cluster. Rows of -100 fill up.
        """
        if char_ids is None or char_ids.dim() != 4:
            found = "none" if char_ids is None else f"shape {tuple(char_ids.shape)}"
            raise ValueError(
                "ElmoForCoreferenceResolution needs `char_ids` of (documents, sentences, words, characters) from "
                f"ElmoTokenizer; got {found}"
            )
        words = self._words(input_ids, char_ids, attention_mask, bilm_layers)
        scores, allowed, rankings = self.ranking(words)
        loss = None
        if labels is not None:
            mentions = [_check_mentions(rows, length) for rows, length in zip(labels, words.lengths, strict=True)]
            loss = coreference_loss(scores, allowed, rankings, words.lengths, mentions, self.config.predict_singletons)
            loss = loss / max(len(rankings), 1) + self._penalty()
        return ElmoCoreferenceOutput(
            loss=loss,
            spans=_stack([torch.stack([found.starts, found.ends], dim=1) for found in rankings], IGNORED),
            mention_scores=_stack([found.mention_scores for found in rankings], 0.0),
            predictions=None if self.training else _stack([self._mentions(found) for found in rankings], IGNORED),
        )

    def _words(
        self, input_ids: Tensor | None, char_ids: Tensor, attention_mask: Tensor | None, bilm_layers: Tensor | None
    ) -> DocumentWords:
        """Reads all sentences, those of like length together: memory grows with the words, not with padding."""
        documents, sentences, tokens = char_ids.shape[:3]
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        given = {"input_ids": input_ids, "char_ids": char_ids, "attention_mask": mask, "bilm_layers": bilm_layers}
        rows = {name: tensor.flatten(0, 1) for name, tensor in given.items() if tensor is not None}
        lengths = rows["attention_mask"].sum(1)
        order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
        features, encoded, places = [], [], []
        while len(order):
            count = max(TOKENS_AT_ONCE // int(lengths[order[0]]), 1)
            group, order = order[:count], order[count:]
            columns = rows["attention_mask"][group].any(0).nonzero().squeeze(1)
            some = {name: tensor[group][:, columns] for name, tensor in rows.items()}
            (text,), (position,) = self._read(
                some.get("input_ids"), some["char_ids"], some["attention_mask"], None, some.get("bilm_layers")
            )
            states = self.encoder_dropout(self.encoder(text.features, text.mask))
            if text.elmo is not None:
                states = torch.cat([states, text.elmo], dim=-1)
            features.append(text.features[text.mask])
            encoded.append(states[text.mask])
            places.append((group[:, None] * tokens + columns[position])[text.mask])
        if not places:
            nothing = self.ranking.width.weight.new_zeros
            empty = (nothing(0, self.input_size), nothing(0, self.encoder.size + self.elmo_size))
            return DocumentWords(*empty, lengths.new_zeros(0), [0] * documents)
        place, in_order = torch.cat(places).sort()
        sentence = place.div(tokens, rounding_mode="floor")
        counts = torch.bincount(sentence.div(sentences, rounding_mode="floor"), minlength=documents)
        return DocumentWords(torch.cat(features)[in_order], torch.cat(encoded)[in_order], sentence, counts.tolist())

    def _mentions(self, ranking: Ranking) -> Tensor:
        """The spans of a document that are in clusters: (M, 3)."""
        clusters = torch.tensor(clusters_of(ranking, self.config.predict_singletons), device=ranking.starts.device)
        found = torch.stack([ranking.starts, ranking.ends, clusters.long()], dim=1)
        return found[clusters >= 0]

    @torch.no_grad()
    def clusters(self, sentences: Sequence[Sequence[str]], tokenizer: ElmoTokenizer) -> list[list[tuple[int, int]]]:
        """What the sentences of a document mention, each thing as its mentions.

        A mention is a span of the words of all sentences, which are numbered through the document: its first word and
        one past its last.
        """
        if not sentences or not any(sentences) or any(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(
                "`sentences` must be those of a document, each a list of words, and not all empty; got "
                f"{str(sentences)[:60]!r}"
            )
        encoded = tokenizer(
            [list(sentence) for sentence in sentences], is_split_into_words=True, padding=True, return_tensors="pt"
        )
        was_training = self.training
        self.eval()
        try:
            inputs = {name: tensor[None].to(self.device) for name, tensor in encoded.items()}
            found = self(**inputs).predictions[0].tolist()
        finally:
            self.train(was_training)
        clusters: dict[int, list[tuple[int, int]]] = {}
        for first, end, cluster in found:
            clusters.setdefault(cluster, []).append((first, end))
        return list(clusters.values())


def _stack(rows: Sequence[Tensor], fill: float) -> Tensor:
    """Tensors (K, ...) of the documents of a batch as one, the shorter filled up: (B, K, ...)."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)


def _check_mentions(labels: Tensor, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """First words, ends and clusters of a document's labels (M, 3), refusing spans that are none."""
    first, end, cluster = labels[(labels != IGNORED).any(1)].unbind(1)
    wrong = (first < 0) | (first >= end) | (end > words) | (cluster < 0)
    if bool(wrong.any()):
        start, stop, number = (int(column[wrong][0]) for column in (first, end, cluster))
        raise ValueError(
            f"`labels` must be mentions (first word, last word excluded, cluster) of a document of {words} words; got "
            f"({start}, {stop}, {number})"
        )
    return first, end, cluster


ElmoModel.register_for_auto_class("AutoModel")
ElmoForPreTraining.register_for_auto_class("AutoModelForPreTraining")
ElmoForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
ElmoForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
ElmoForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
ElmoForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
# There is no auto class for these. Registered as anything, they are saved with their code; the map stays `AUTO_MAP`.
ElmoForSemanticRoleLabeling.register_for_auto_class("AutoModel")
ElmoForCoreferenceResolution.register_for_auto_class("AutoModel")

__all__ = [
    "Answer",
    "ElmoCoreferenceOutput",
    "ElmoForCoreferenceResolution",
    "ElmoForMultipleChoice",
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoForQuestionAnswering",
    "ElmoForSemanticRoleLabeling",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoQuestionAnsweringOutput",
    "ElmoScalarMix",
    "ElmoSemanticRoleLabelerOutput",
    "ElmoTaskModel",
    "ElmoTokenClassifierOutput",
    "Role",
    "SentenceScore",
    "Substitute",
]
