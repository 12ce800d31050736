"""The parts shared by all task models: reading words, LSTMs over them, losses.

`ElmoTaskModel` places ELMo at the input, the output or both of a task network, as in Peters et al. (2018). The network
of each task, its output and its head are in a file of their own: classification, tagging, roles, reading, coreference.

Shapes: B batch, T positions of the input, T' words of a text without markers and padding, N real words of a batch,
C characters of a word, D features of a word, E ELMo features, H units, L LSTM layers and P projection of the biLM,
K labels.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from .bilm_elmo import (
    IGNORED,
    NUM_SPECIAL_WORDS,
    ElmoModel,
    ElmoPreTrainedModel,
    distinct_rows,
    markers_of,
    pack,
    warn_about_attentions,
    word_mask,
)
from .configuration_elmo import ElmoConfig
from .layers_elmo import Dropout, ElmoScalarMix, GlorotLinear, is_plain, spelled_lengths
from .recurrence_elmo import plain_recurrence, trained_recurrence
from .threads_elmo import can_train_in_parallel, run_in_parallel, train_in_parallel

# Units and layers of the tagger's LSTMs (Peters et al., 2017).
TAGGER_DIM, TAGGER_LAYERS = 200, 2
# Embedding size and filter width of a task's own character CNN (Peters et al., 2017).
TASK_CHARACTER_DIM, TASK_FILTER_WIDTH = 16, 3
# Arguments of `from_pretrained` that say where a folder is.
LOCATION_ARGUMENTS = ("revision", "subfolder", "token", "cache_dir", "local_files_only")

Output = TypeVar("Output")

# ------------------------------------------------------------------------------------------------------------- words


def spread(values: Tensor, mask: Tensor, fill: float = 0) -> Tensor:
    """Put one value at every True of a mask, in order: (N, ...), (B, T) -> (B, T, ...), `fill` elsewhere."""
    placed = values.new_full((*mask.shape, *values.shape[1:]), fill)
    placed[mask] = values
    return placed


class Words(NamedTuple):
    """The words of one text of each row, without sentence markers, at the left of each row."""

    features: Tensor  # (B, T', D), what the encoder reads
    elmo: Tensor | None  # (B, T', E), what joins the encoder's output
    mask: Tensor  # (B, T'), True for real words
    chosen: Tensor  # (B, T), True where these words are in the input

    def join_elmo(self, encoded: Tensor) -> Tensor:
        """Append the ELMo vectors of the output, if there are any: (B, T', D) -> (B, T', D + E)."""
        if self.elmo is None:
            return encoded
        return torch.cat([encoded, self.elmo.to(encoded.device)], dim=-1)

    def from_input(self, values: Tensor, fill: float) -> Tensor:
        """Select the words' values from those of the input: (B, T) -> (B, T')."""
        return spread(values[self.chosen], self.mask, fill)

    def to_input(self, values: Tensor, fill: float) -> Tensor:
        """Return the words' values at their positions in the input: (B, T', ...) -> (B, T, ...)."""
        return spread(values[self.mask], self.chosen, fill)


def _pad_words(values: Tensor, longest: int) -> Tensor:
    """Pad with zeros: (B, T, ...) -> (B, longest, ...)."""
    return F.pad(values, (0, 0) * (values.ndim - 2) + (0, longest - values.shape[1]))


def stack_words(first: Words, second: Words) -> Words:
    """Stack two texts of T and S words as one batch (2B, max(T, S), ...), padding the shorter."""
    stacked: list[Any] = []
    for one, two in zip(first, second, strict=True):
        both = None
        if one is not None and two is not None:
            longest = max(one.shape[1], two.shape[1])
            both = torch.cat([_pad_words(one, longest), _pad_words(two, longest)])
        stacked.append(both)
    return Words(*stacked)


def flatten_rows(*tensors: Tensor | None) -> list[Tensor | None]:
    """Make one batch of the rows of several: (A, B, ...) -> (A * B, ...)."""
    return [None if tensor is None else tensor.flatten(0, 1) for tensor in tensors]


def attend(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute a softmax over the last dimension, where the mask (B, S) is set; zeros if it is empty."""
    keep = mask[:, None]
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~keep, lowest), dim=-1) * keep


# ------------------------------------------------------------------------------------------------------------ layers


class TaskConv(nn.Conv1d):
    """A convolution of a task model, initialised by its fan-in."""

    def set_initial_weights(self) -> None:
        init.normal_(self.weight, std=(self.in_channels * self.kernel_size[0]) ** -0.5)


class CharacterCnn(nn.Module):
    """A word's vector from its characters, learned with the task: (N, C) -> (N, filters)."""

    def __init__(self, config: ElmoConfig, size: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(config.char_vocab_size, size, padding_idx=0)
        self.convolution = TaskConv(size, config.head_char_filters, width)

    def forward(self, char_ids: Tensor) -> Tensor:
        if not len(char_ids):
            return self.convolution.weight.new_zeros(0, self.convolution.out_channels)
        distinct, index, _ = distinct_rows(char_ids)
        # Words end in a run of one character, their padding; one window inside it is enough.
        longest = int(spelled_lengths(distinct).amax())
        embedded = self.embedding(distinct[:, : longest + self.width])
        convolved = self.convolution(embedded.transpose(1, 2))
        return F.relu(convolved.amax(-1))[index]


def can_run_in_parallel(features: Tensor, *modules: nn.Module) -> bool:
    """Return whether modules may read features in two threads; their hooks and adapters might depend on the thread."""
    if torch.is_grad_enabled():
        allowed = can_train_in_parallel(features)
    else:
        allowed = features.device.type == "cpu" and torch.get_num_threads() > 1
    return allowed and is_plain(*modules)


def run_in_two_threads(
    run: Callable[[int, Tensor], tuple[Tensor]], features: Tensor, first: nn.Module, second: nn.Module
) -> Sequence[tuple[Tensor, ...]]:
    """Compute run(0, features), which calls the first module, and run(1, features), which calls the second."""
    if torch.is_grad_enabled():
        return train_in_parallel(run, (features,), (list(first.parameters()), list(second.parameters())))
    return run_in_parallel(lambda side: run(side, features))


class TaskLstmLayer(nn.Module):
    """One LSTM over packed words in one direction: (N, D) -> (N, H). A bias of 1 opens the forget gates at first."""

    gates = 4

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = GlorotLinear(inputs, self.gates * units, fan_in=inputs, bias=True)
        self.recurrent_gates = GlorotLinear(units, self.gates * units, fan_in=units)
        self.units = units

    def forward(self, words: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        dtype = next(self.recurrent_gates.parameters()).dtype
        gates = self.input_gates(words).to(dtype)  # (N, 4H)
        exact = torch.promote_types(dtype, torch.float32)
        zeros = gates.new_zeros(max(batch_sizes, default=0), self.units, dtype=exact)
        recurrent = self.recurrent_gates
        if is_plain(recurrent):
            outputs, _, _ = trained_recurrence(gates, zeros, zeros, recurrent.weight, None, batch_sizes, None, None)
        else:
            outputs, _, _ = plain_recurrence(gates, zeros, zeros, recurrent, None, batch_sizes, None, None)
        return outputs.to(dtype)


class WordLstm(nn.Module):
    """LSTMs in both directions over the real words: (B, T, D) -> (B, T, 2H), with dropout between layers."""

    layer: type[nn.Module] = TaskLstmLayer  # of one direction

    def __init__(self, inputs: int, units: int, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = 2 * units
        sizes = [inputs] + [self.size] * (layers - 1)
        self.forward_layers = nn.ModuleList(self.layer(size, units) for size in sizes)
        self.backward_layers = nn.ModuleList(self.layer(size, units) for size in sizes)
        self.dropout = Dropout(dropout)

    # A loop over time steps is not for tracing.
    @torch.compiler.disable
    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        packing = pack(mask)
        indices = (packing.forward_index, packing.backward_index)
        flat = features.flatten(0, 1)  # (B * T, D)
        for number, layers in enumerate(zip(self.forward_layers, self.backward_layers, strict=True)):
            if number:
                flat = self.dropout(flat)
            run = partial(self._run, layers, indices, packing.batch_sizes)
            if can_run_in_parallel(flat, *layers):
                sides = run_in_two_threads(run, flat, *layers)
            else:
                sides = run(0, flat), run(1, flat)
            flat = torch.cat([sides[0][0], sides[1][0]], dim=-1)
        return flat.unflatten(0, mask.shape)

    @staticmethod
    def _run(
        layers: Sequence[nn.Module], indices: Sequence[Tensor], batch_sizes: Sequence[int], side: int, features: Tensor
    ) -> tuple[Tensor]:
        """Run the layer of one direction: (B * T, D) -> (B * T, H)."""
        index = indices[side]
        packed = layers[side](features.index_select(0, index), batch_sizes)
        outputs = packed.new_zeros(len(features), packed.shape[1])
        return (outputs.index_copy(0, index, packed),)


class WordDropout(Dropout):
    """Dropout of the same features at every word of a sentence (Gal and Ghahramani, 2016)."""

    def noise_shape(self, features: Tensor) -> Sequence[int]:
        return len(features), 1, features.shape[2]


class PairDropout(Dropout):
    """Dropout of the same features at every word of both texts of a pair, as `stack_words` stacks them: (2B, T, D)."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.unflatten(0, (2, -1))).flatten(0, 1) if self.training else features

    def noise_shape(self, features: Tensor) -> Sequence[int]:
        return 1, features.shape[1], 1, features.shape[3]


class LayerMix(nn.Module):
    """One vector per word from the biLM's layers, as the config's `mix` says."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.how = config.mix
        self.size = config.hidden_size
        self.scalar = None
        if self.how == "scalar":
            self.scalar = ElmoScalarMix(config.num_hidden_layers + 1, config.mix_layer_norm, config.mix_l2)

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix layers, each (..., 2P) -> (..., 2P). Without a mask (...) they are of real words alone."""
        if self.scalar is not None:
            return self.scalar(layers, mask)
        if self.how == "average":
            return torch.stack(list(layers)).mean(0)
        return layers[-1]


# ------------------------------------------------------------------------------------------------------------ losses


def mean_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean -log p of labels (...) by scores (..., K) over what has a label; 0 if nothing has."""
    scores, labels = scores.flatten(0, -2), labels.flatten()
    loss = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return loss / (labels != IGNORED).sum().clamp(min=1)


def share_of_step(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
    """Return which part of the labels of a whole step a batch has, if the step is made of several."""
    if num_items_in_batch is None:
        return 1.0
    return (labels != IGNORED).sum() / max(num_items_in_batch, 1)


def check_labels(labels: Tensor, count: int) -> None:
    """Refuse labels out of range, which a loss would use as an index."""
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= count))]
    if len(wrong):
        raise ValueError(f"`labels` must be from 0 to {count - 1}, or {IGNORED}; got {int(wrong[0])}")


# ------------------------------------------------------------------------------------------------------- task models


class ElmoTaskModel(ElmoPreTrainedModel):
    """The base of all task models: word vectors and ELMo vectors, at the places that the config names.

    The `forward` of every task model takes what [`ElmoTokenizer`] returns and these arguments:

    Args:
        input_ids (`(B, T)`): ids of the words, read only by models with word vectors or word embeddings.
        char_ids (`(B, T, C)`): characters of the words.
        attention_mask (`(B, T)`, *optional*): 1 for real words; by default, those whose characters are not all 0.
        token_type_ids (`(B, T)`, *optional*): 0 and 1 for the first and the second text of a pair.
        bilm_layers (`(B, T, (2L + 1)P)`, *optional*): what [`ElmoTaskModel.bilm_layers`] returned for these texts.
        labels (*optional*): what the task's loss is computed from; -100 for what has no label.
        inputs_embeds (`(B, T, P)`, *optional*): context-free word vectors for the biLM, as [`ElmoModel`] takes them.
        output_hidden_states (`bool`, *optional*): whether to return the biLM's layers as `hidden_states`; there are
            none with `elmo_placement="none"`.
        output_attentions (`bool`, *optional*): without effect; LSTMs have no attention weights.
        num_items_in_batch (`int`, *optional*): the labels of a whole step, when it is made of several batches.
        return_dict (`bool`, *optional*): whether to return an output object rather than a tuple.
    """

    # Losses are means over the batch's rows, which Trainer divides by its accumulation steps. A model whose loss is a
    # mean over words takes the number of words of the whole step instead.
    accepts_loss_kwargs = False
    texts_per_row = 1
    second_is_optional = False  # whether rows of a head of pairs may be single texts
    # Whether dropout on what the head reads removes the same features at all words of a row, both texts of a pair.
    drops_by_row = False
    # Name of the head's own character CNN, if it has one. Sizes differ, and a folder is loaded by every auto class.
    character_cnn: str | None = None

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        placement = config.elmo_placement
        if placement == "none":  # a folder with a biLM may be loaded: ignore its weights
            bilm_keys = r"^(elmo\.)?(char_encoder|forward_lm|backward_lm)\."
            self._keys_to_ignore_on_load_unexpected = [*self._keys_to_ignore_on_load_unexpected, bilm_keys]
        else:
            self.elmo = ElmoModel(config, add_mix=False)
        self.input_mix = self._make_input_mix(config) if placement in ("input", "both") else None
        self.output_mix = LayerMix(config) if placement in ("output", "both") else None
        elmo_dropout, self.head_dropout = self._dropouts(config)
        self.elmo_dropout = Dropout(elmo_dropout)
        self.dropout = Dropout(self.head_dropout)
        self.word_embeddings = None
        if config.word_vector_dim:
            self.word_embeddings = nn.Embedding(config.vocab_size, config.word_vector_dim, padding_idx=0)
        self.input_size = config.word_vector_dim
        if self.character_cnn is not None:
            self.input_size += config.head_char_filters
        if self.input_mix is not None:
            self.input_size += self.input_mix.size
        if not self.input_size:
            raise ValueError(
                f"elmo_placement={placement!r} leaves nothing to read: set `word_vector_dim` or put ELMo at the input"
            )
        self.elmo_size = config.hidden_size if self.output_mix is not None else 0

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if pretrained_model_name_or_path is not None and not kwargs.get("ignore_mismatched_sizes"):
            cls._check_label_names(pretrained_model_name_or_path, kwargs)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.freeze()  # loading makes all weights trainable
        return loaded

    @classmethod
    def _check_label_names(cls, folder: Any, arguments: dict[str, Any]) -> None:
        """Refuse to load a folder of this task for other labels than it was trained with."""
        location = {name: arguments[name] for name in LOCATION_ARGUMENTS if name in arguments}
        labels = {name: arguments[name] for name in ("num_labels", "id2label") if name in arguments}
        saved = ElmoConfig.from_pretrained(folder, **location)
        requested: Any = arguments.get("config")
        if not hasattr(requested, "id2label"):
            requested = ElmoConfig.from_pretrained(requested or folder, **location, **labels)
        names = {int(number): name for number, name in requested.id2label.items()}
        if saved.architectures == [cls.__name__] and names != saved.id2label:
            raise RuntimeError(  # as transformers does for weights of other sizes
                f"{folder} was trained for the labels {', '.join(saved.id2label.values())}, not for "
                f"{', '.join(names.values())}: start from its biLM, or pass ignore_mismatched_sizes=True"
            )

    def _make_input_mix(self, config: ElmoConfig) -> LayerMix:
        return LayerMix(config)

    def _dropouts(self, config: ElmoConfig) -> tuple[float, float]:
        return config.dropouts()

    def get_input_embeddings(self) -> nn.Module:
        """Return the word vectors where the model has any, otherwise the biLM's embedding."""
        return self.elmo.get_input_embeddings() if self.word_embeddings is None else self.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if self.word_embeddings is None:
            self.elmo.set_input_embeddings(value)
        else:
            self.word_embeddings = value

    def post_init(self) -> None:
        super().post_init()
        self.freeze()

    def freeze(self) -> None:
        """Freeze the biLM and the word vectors where the config says so."""
        if self.config.elmo_placement != "none":
            self.elmo.freeze_bilm(self.config.freeze_bilm)
        if self.word_embeddings is not None:
            self.word_embeddings.weight.requires_grad_(self.config.train_word_vectors)

    @torch.no_grad()
    def set_word_vectors(self, vectors: Tensor) -> None:
        """Set the vectors (N, D) of the tokenizer's words, in their order and without the special words.

        The unknown word gets their mean, the other special words zeros.
        """
        rows, size = self.config.vocab_size - NUM_SPECIAL_WORDS, self.config.word_vector_dim
        if self.word_embeddings is None or vectors.shape != (rows, size):
            raise ValueError(
                f"expected vectors of {rows} words and size {size} (`vocab_size` less {NUM_SPECIAL_WORDS}, "
                f"`word_vector_dim`), got {tuple(vectors.shape)}"
            )
        weight = self.word_embeddings.weight
        weight.zero_()
        weight[self.config.unk_token_id] = vectors.mean(0)
        weight[NUM_SPECIAL_WORDS:] = vectors

    def _learned_mixes(self) -> dict[str, ElmoScalarMix]:
        mixes = {}
        for place, mix in (("input", self.input_mix), ("output", self.output_mix)):
            if mix is not None and mix.scalar is not None:
                mixes[place] = mix.scalar
        return mixes

    def mix_weights(self) -> dict[str, list[float]]:
        """Return the weight of each layer at each place: gamma times the softmax of the mix's weights."""
        weights = {}
        for place, mix in self._learned_mixes().items():
            weights[place] = (mix.gamma * mix.scalar_weights.softmax(0)).tolist()
        return weights

    def bilm_layers(
        self,
        char_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        input_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the biLM's layers once, to be kept and passed to `forward`: (B, T, (2L + 1)P).

        They are the `hidden_states`, concatenated. Both halves of the first are the same, so it is kept once.
        """
        first, *rest = self._run_bilm(input_ids, char_ids, attention_mask, token_type_ids)
        return torch.cat([first[..., : self.config.projection_dim], *rest], dim=-1)

    def _run_bilm(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the biLM's layers, each (B, T, 2P)."""
        output = self.elmo(
            input_ids=input_ids,
            char_ids=char_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=True,
            keep_sentence_markers=True,
            return_dict=True,
        )
        return output.hidden_states

    def _split_layers(self, bilm_layers: Tensor) -> tuple[Tensor, ...]:
        """Return the layers that [`ElmoTaskModel.bilm_layers`] has concatenated, each (B, T, 2P)."""
        sizes = [self.config.hidden_size] * self.config.num_hidden_layers
        first, *rest = bilm_layers.split([self.config.projection_dim, *sizes], dim=-1)
        return torch.cat([first, first], dim=-1), *rest

    def _mix(self, layers: Sequence[Tensor], mask: Tensor, words: Tensor) -> list[Tensor | None]:
        """Mix layers (B, T, 2P) into the words' vectors (N, ...) at the input and the output, None if unused.

        Both are dropped out here. As in AllenNLP, a mix that normalises counts the sentence markers too.
        """
        read = mask if self.config.mix_layer_norm else words
        read_layers = [layer[read] for layer in layers]
        mixed: list[Tensor | None] = []
        for mix in (self.input_mix, self.output_mix):
            if mix is None:
                mixed.append(None)
            else:
                vectors = mix(read_layers).to(mask.device)[words[read]]
                mixed.append(self._drop(self.elmo_dropout, vectors, words))
        return mixed

    def _drop(self, dropout: nn.Module, features: Tensor, words: Tensor) -> Tensor:
        """Drop out features (N, D) of the words that a mask (B, T) marks."""
        if not self.training or not self.drops_by_row:
            return dropout(features)
        noise = dropout(features.new_ones(len(words), features.shape[1]))
        return features * noise[words.nonzero()[:, 0]]

    def _read(
        self, inputs: Sequence[Tensor | None], output_hidden_states: bool | None, output_attentions: bool | None
    ) -> tuple[list[Words], tuple[Tensor, ...] | None]:
        """Begin a `forward`: return the words of the one or two texts of a row, with their features.

        Beside them, the biLM's layers if `output_hidden_states` or the config asks for them.
        """
        input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, inputs_embeds = inputs
        if inputs_embeds is not None and (bilm_layers is not None or self.config.elmo_placement == "none"):
            raise ValueError(
                "`inputs_embeds` are for the biLM, which does not run: it is absent, or its layers are given"
            )
        if output_attentions:
            warn_about_attentions()
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        name = type(self).__name__
        if char_ids is None:
            raise ValueError(f"{name} needs `char_ids`: encode the text with ElmoTokenizer")
        if self.texts_per_row == 1 and token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError(
                f"{name} reads one text per row; pairs need sequence_encoder='pooled', 'esim' or another head"
            )
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        if self.texts_per_row == 2:
            token_type_ids = self._types_of_pairs(char_ids, mask, token_type_ids)
        words = word_mask(char_ids, mask, token_type_ids, markers_of(self.config))  # (B, T)
        # Compute features of the N real words alone: most positions of a batch may be padding.
        features, elmo = [], None
        if self.word_embeddings is not None:
            if input_ids is None:
                raise ValueError(f"{name} needs `input_ids` to look up word vectors")
            ids = input_ids[words]
            ids = ids.where(ids < self.word_embeddings.num_embeddings, self.config.unk_token_id)  # added words
            features.append(self._drop(self.dropout, self.word_embeddings(ids).to(mask.device), words))
        if self.character_cnn is not None and self.config.head_char_filters:
            cnn = self.get_submodule(self.character_cnn)
            features.append(self._drop(self.dropout, cnn(char_ids[words]).to(mask.device), words))
        layers = None
        if self.config.elmo_placement != "none":
            if bilm_layers is None:
                layers = self._run_bilm(input_ids, char_ids, attention_mask, token_type_ids, inputs_embeds)
            else:
                layers = self._split_layers(bilm_layers)
            at_input, elmo = self._mix(layers, mask, words)
            if at_input is not None:
                features.append(at_input)
        joined = torch.cat(features, dim=-1)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(words, dtype=torch.long)
        texts = []
        for number in range(self.texts_per_row):
            texts.append(self._layout(joined, elmo, words, words & (token_type_ids == number)))
        return texts, layers if output_hidden_states else None

    def _types_of_pairs(self, char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Return 0 at the words of each row's first text and 1 at those of its second: (B, T).

        Some wrappers drop the `token_type_ids`; the texts are then told apart by their `<S>`.
        """
        # The tokenizer gives single texts types too, which are all 0.
        if token_type_ids is not None and (
            self.second_is_optional or bool((token_type_ids.any(1) | ~mask.any(1)).all())
        ):
            return token_type_ids
        begins = (char_ids[..., 1] == markers_of(self.config).sentence_begin) & mask
        counts = begins.sum(1)
        are_right = counts < 3 if self.second_is_optional else counts == 2
        if not are_right.all():
            raise ValueError(f"{type(self).__name__} reads pairs: tokenizer(first, second)")
        return (begins.cumsum(1) - 1).clamp(min=0)

    @staticmethod
    def _layout(features: Tensor, elmo: Tensor | None, words: Tensor, chosen: Tensor) -> Words:
        """Lay out the chosen ones (B, T) of the words that have features (N, D) as the rows of a batch."""
        counts = chosen.sum(1, keepdim=True)
        longest = max(int(counts.max()), 1)  # what has no words has a first one too, which is masked
        mask = torch.arange(longest, device=counts.device) < counts  # (B, T')
        rows = chosen[words]
        chosen_elmo = None if elmo is None else spread(elmo[rows], mask)
        return Words(spread(features[rows], mask), chosen_elmo, mask, chosen)

    def _output(
        self, kind: Callable[..., Output], loss: Tensor | None, share: Tensor | float = 1.0, **fields: Any
    ) -> Output:
        """End a `forward`: make its output, to whose loss training adds λ‖s‖² of the mixes.

        `share` is the part of a step's loss that the batch has.
        """
        if loss is not None:
            penalty: Tensor | float = 0.0
            if self.training:
                penalty = sum((mix.penalty() for mix in self._learned_mixes().values()), start=penalty)
            loss = (loss + penalty) * share
        return kind(loss=loss, **fields)


class ElmoWordEncoder(ElmoTaskModel):
    """The base of tagging and coreference: LSTMs over words and their characters."""

    character_cnn = "char_cnn"
    default_layers = TAGGER_LAYERS

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.char_cnn = None
        if config.head_char_filters:
            self.char_cnn = CharacterCnn(config, TASK_CHARACTER_DIM, TASK_FILTER_WIDTH)
        units = config.head_dim or TAGGER_DIM
        layers = config.head_layers or self.default_layers
        self.encoder = WordLstm(self.input_size, units, layers, self.head_dropout)
