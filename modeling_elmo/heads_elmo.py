"""The parts shared by all task models: reading words, LSTMs over them, losses.

`ElmoTaskModel` places ELMo at the input, the output or both of a task network, as in Peters et al. (2018). The network
of each task, its output and its head are in a file of their own: classification, tagging, roles, reading, coreference.

Shapes: B batch, T positions of the input, T' words of a text without markers and padding, N real words of a batch,
C characters of a word, D features of a word, E ELMo features, H units, L LSTM layers and P projection of the biLM,
K labels.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

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
# What of `from_pretrained`'s arguments says where a folder is.
LOCATION_ARGUMENTS = ("revision", "subfolder", "token", "cache_dir", "local_files_only")

# ------------------------------------------------------------------------------------------------------------- words


class Words(NamedTuple):
    """The words of one text of each row, without sentence markers, at the left of each row."""

    features: Tensor  # (B, T', D), what the encoder reads
    elmo: Tensor | None  # (B, T', E), what joins the encoder's output
    mask: Tensor  # (B, T'), True for real words
    position: Tensor  # (B, T'), where each word is in the input

    def join_elmo(self, encoded: Tensor) -> Tensor:
        """Append the ELMo vectors of the output, if there are any: (B, T', D) -> (B, T', D + E)."""
        if self.elmo is None:
            return encoded
        return torch.cat([encoded, self.elmo], dim=-1)

    def gather_labels(self, labels: Tensor) -> Tensor:
        """Select the words' labels from those of the input: (B, T) -> (B, T')."""
        return labels.gather(1, self.position).masked_fill(~self.mask, IGNORED)

    def scatter_to_input(self, values: Tensor, length: int, fill: float) -> Tensor:
        """Return values (B, T') or (B, T', K) at the words' positions in the input, `fill` elsewhere: (B, T, ...)."""
        mask, position = self.mask, self.position
        if values.dim() == 3:
            mask = mask[..., None]
            position = position[..., None].expand_as(values)
        whole = values.new_full((len(values), length, *values.shape[2:]), fill)
        return whole.scatter(1, position, values.masked_fill(~mask, fill))


def place_words(rows: Tensor, mask: Tensor) -> Tensor:
    """Lay out one row per real word: (N, D), (B, T') -> (B, T', D), zero where there is no word."""
    index = mask.flatten().nonzero().squeeze(1)
    flat = rows.new_zeros(mask.numel(), rows.shape[1])
    return flat.index_copy(0, index, rows).unflatten(0, mask.shape)


def attend(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute a softmax over the last dimension, where the mask (B, S) is set; zeros if it is empty."""
    keep = mask[:, None]
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~keep, lowest), dim=-1) * keep


def stack_words(first: Words, second: Words) -> Words:
    """Stack two texts of T and S words as one batch (2B, max(T, S), ...), padding the shorter."""
    longest = max(first.mask.shape[1], second.mask.shape[1])
    stacked: list[Any] = []
    for one, two in zip(first, second, strict=True):
        if one is None or two is None:
            stacked.append(None)
            continue
        padded = []
        for tensor in (one, two):
            missing = longest - tensor.shape[1]
            padded.append(F.pad(tensor, (0, 0, 0, missing) if tensor.dim() == 3 else (0, missing)))
        stacked.append(torch.cat(padded))
    return Words(*stacked)


# ------------------------------------------------------------------------------------------------------------ layers


class TaskConv(nn.Conv1d):
    """A convolution of a task model, initialised by its fan-in."""

    def set_initial_weights(self) -> None:
        init.normal_(self.weight, std=(self.in_channels * self.kernel_size[0]) ** -0.5)


class CharacterCnn(nn.Module):
    """A word's vector from its characters, learned with the task: (..., C) -> (..., filters)."""

    def __init__(self, characters: int, size: int, filters: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, size, padding_idx=0)
        self.convolution = TaskConv(size, filters, width)

    def forward(self, char_ids: Tensor) -> Tensor:
        if not char_ids.numel():
            return self.convolution.weight.new_zeros(*char_ids.shape[:-1], self.convolution.out_channels)
        distinct, index, _ = distinct_rows(char_ids.flatten(0, -2))
        # Words end in a run of one character, their padding; one window inside it is enough.
        longest = int(spelled_lengths(distinct).amax())
        width = self.convolution.kernel_size[0]
        embedded = self.embedding(distinct[:, : longest + width]).transpose(1, 2)
        vectors = F.relu(self.convolution(embedded).amax(-1))
        return vectors[index].unflatten(0, char_ids.shape[:-1])


class TaskLstmLayer(nn.Module):
    """One LSTM over packed words in one direction: (N, D) -> (N, H). A bias of 1 opens the forget gates at first."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = GlorotLinear(inputs, 4 * units, fan_in=inputs, bias=True)
        self.recurrent_gates = GlorotLinear(units, 4 * units, fan_in=units)
        self.units = units

    def forward(self, words: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        gates = self.input_gates(words)  # (N, 4H)
        dtype = next(self.recurrent_gates.parameters()).dtype
        exact = torch.promote_types(dtype, torch.float32)
        zeros = gates.new_zeros(batch_sizes[0] if batch_sizes else 0, self.units, dtype=exact)
        if is_plain(self.recurrent_gates):
            weight = self.recurrent_gates.weight
            outputs = trained_recurrence(gates, zeros, zeros, weight, None, batch_sizes, None, None)[0]
        else:
            gates = gates.to(dtype)
            outputs = plain_recurrence(gates, zeros, zeros, self.recurrent_gates, None, batch_sizes, None, None)[0]
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

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        packing = pack(mask)
        indices = (packing.forward_index, packing.backward_index)
        flat = features.flatten(0, 1)
        for number, layers in enumerate(zip(self.forward_layers, self.backward_layers, strict=True)):
            if number:
                flat = self.dropout(flat)
            flat = self._read(layers, flat, indices, packing.batch_sizes)
        return flat.unflatten(0, mask.shape)

    # A loop over time steps is not for tracing.
    @torch.compiler.disable
    def _read(
        self,
        layers: tuple[nn.Module, nn.Module],
        flat: Tensor,
        indices: tuple[Tensor, Tensor],
        batch_sizes: Sequence[int],
    ) -> Tensor:
        """Run a layer of both directions, in two threads where that is faster: (B * T, D) -> (B * T, 2H)."""

        def run(side: int, flat: Tensor) -> tuple[Tensor]:
            packed = layers[side](flat.index_select(0, indices[side]), batch_sizes)
            return (packed.new_zeros(len(flat), packed.shape[1]).index_copy(0, indices[side], packed),)

        if not is_plain(*layers):  # hooks and adapters may depend on the thread
            sides: Sequence[tuple[Tensor, ...]] = (run(0, flat), run(1, flat))
        elif can_train_in_parallel(flat):
            parameters = (list(layers[0].parameters()), list(layers[1].parameters()))
            sides = train_in_parallel(run, (flat,), parameters)
        elif torch.is_grad_enabled() or flat.device.type != "cpu":
            sides = (run(0, flat), run(1, flat))
        else:
            sides = run_in_parallel(partial(run, flat=flat))
        return torch.cat([sides[0][0], sides[1][0]], dim=-1)


class WordDropout(Dropout):
    """Dropout of the same features at every word of a sentence (Gal and Ghahramani, 2016)."""

    def noise_shape(self, features: Tensor) -> Sequence[int]:
        return len(features), 1, features.shape[2]


class LayerMix(nn.Module):
    """One vector per word from the biLM's layers, as the config's `mix` says."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.how = config.mix
        self.scalar = None
        if self.how == "scalar":
            self.scalar = ElmoScalarMix(config.num_hidden_layers + 1, config.mix_layer_norm, config.mix_l2)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Mix the layers of real words, each (N, 2P) -> (N, 2P)."""
        if self.scalar is not None:
            return self.scalar(layers)
        if self.how == "average":
            return torch.stack(list(layers)).mean(0)
        return layers[-1]


# ------------------------------------------------------------------------------------------------ losses and helpers


def mean_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean -log p of labels (N,) by scores (N, K) over rows that have a label; 0 if none has."""
    loss = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
    return loss / (labels != IGNORED).sum().clamp(min=1)


def word_loss(
    scores: Tensor, labels: Tensor, penalty: Tensor | float, num_items_in_batch: Tensor | int | None
) -> Tensor:
    """Compute the mean -log p of labels (B, T') by scores (B, T', K) over labeled words, plus a penalty.

    If the batch is a part of a step that has `num_items_in_batch` labels in all, return its share of that step's loss.
    """
    loss = mean_loss(scores.flatten(0, 1), labels.flatten()) + penalty
    if num_items_in_batch is None:
        return loss
    return loss * ((labels != IGNORED).sum() / max(num_items_in_batch, 1))


def check_labels(labels: Tensor, count: int) -> None:
    """Refuse labels out of range, which a loss would use as an index."""
    real = labels[labels != IGNORED]
    if len(real) and not 0 <= int(real.min()) <= int(real.max()) < count:
        raise ValueError(
            f"`labels` must be from 0 to {count - 1}, or {IGNORED}; got {int(real.min())} to {int(real.max())}"
        )


def _check_label_names(model_class: type[ElmoPreTrainedModel], folder: Any, arguments: dict[str, Any]) -> None:
    """Refuse to load a folder of this task for other labels than it was trained with."""
    config = arguments.get("config")
    names = arguments.get("id2label") if config is None else getattr(config, "id2label", None)
    count = arguments.get("num_labels")
    targets = None
    if names is not None:
        count = len(names)
        by_number = {int(number): name for number, name in names.items()}
        targets = [by_number[number] for number in sorted(by_number)]
    if count is None or folder is None:
        return
    location = {name: arguments[name] for name in LOCATION_ARGUMENTS if name in arguments}
    saved = model_class.config_class.from_pretrained(folder, **location)
    if (saved.architectures or [None])[0] != model_class.__name__:
        return
    known = [saved.id2label[number] for number in range(saved.num_labels)]
    if count == len(known) and targets in (None, known):
        return
    requested = str(count)
    if targets is not None and count == len(known):
        requested = ", ".join(targets)
    raise ValueError(
        f"{folder} was trained for the {len(known)} labels {', '.join(known)}, not for {requested}: start from its "
        "biLM, or pass ignore_mismatched_sizes=True to learn a new output layer"
    )


# ------------------------------------------------------------------------------------------------------- task models


class ElmoTaskModel(ElmoPreTrainedModel):
    """The base of all task models: word vectors and ELMo vectors, at the places that the config names."""

    # Losses are means over the batch's rows, which Trainer divides by its accumulation steps. A model whose loss is a
    # mean over words takes the number of words of the whole step instead.
    accepts_loss_kwargs = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        placement = config.elmo_placement
        if placement == "none":  # a folder with a biLM may be loaded: ignore its weights
            bilm_keys = r"^(elmo\.)?(char_encoder|forward_lm|backward_lm)\."
            self._keys_to_ignore_on_load_unexpected = [*self._keys_to_ignore_on_load_unexpected, bilm_keys]
        else:
            self.elmo = ElmoModel(config, add_mix=False)
        self.input_mix = LayerMix(config) if placement in ("input", "both") else None
        self.output_mix = LayerMix(config) if placement in ("output", "both") else None
        self.elmo_dropout = Dropout(config.elmo_dropout)
        self.dropout: nn.Module = Dropout(config.head_dropout)
        self.word_embeddings = None
        if config.word_vector_dim:
            self.word_embeddings = nn.Embedding(config.vocab_size, config.word_vector_dim, padding_idx=0)
        self.input_size = config.word_vector_dim + self._own_features()
        if self.input_mix is not None:
            self.input_size += config.hidden_size
        if not self.input_size:
            raise ValueError(
                f"elmo_placement={placement!r} leaves nothing to read: set `word_vector_dim` or put ELMo at the input"
            )
        self.elmo_size = config.hidden_size if self.output_mix is not None else 0

    def _own_features(self) -> int:
        """Return how many features of a word the task model computes itself."""
        return 0

    def _features(self, char_ids: Tensor) -> list[Tensor]:
        """Compute the task model's own features of words (N, C): each (N, D)."""
        return []

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("ignore_mismatched_sizes"):
            _check_label_names(cls, pretrained_model_name_or_path, kwargs)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.freeze()  # loading makes all weights trainable
        return loaded

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
        """Return the weight of each layer at each place: gamma times the softmax of the mix's weights."""
        weights = {}
        for place, mix in (("input", self.input_mix), ("output", self.output_mix)):
            if mix is not None and mix.scalar is not None:
                weights[place] = (mix.scalar.gamma * mix.scalar.scalar_weights.softmax(0)).tolist()
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
        """Mix words' layers (N, (2L + 1)P) into the vectors (N, 2P) of the input and the output, None if unused."""
        config = self.config
        sizes = [config.projection_dim] + [config.hidden_size] * config.num_hidden_layers
        first, *rest = layers.split(sizes, dim=-1)
        all_layers = (torch.cat([first, first], dim=-1), *rest)
        mixed: list[Tensor | None] = []
        for mix in (self.input_mix, self.output_mix):
            mixed.append(None if mix is None else self.elmo_dropout(mix(all_layers)))
        return mixed

    def _read(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
        texts: int = 1,
    ) -> list[Words]:
        """Return the words of each of the texts of a row, with their features."""
        name = type(self).__name__
        if char_ids is None:
            raise ValueError(f"{name} needs `char_ids`: encode the text with ElmoTokenizer")
        if texts == 1 and token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError(f"{name} reads one text per row, not pairs")
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        words = word_mask(char_ids, mask, token_type_ids, markers_of(self.config))
        # Compute features of the N real words alone: most positions of a batch may be padding.
        real = words.flatten().nonzero().squeeze(1)  # (N,)
        features, elmo = [], None
        if self.word_embeddings is not None:
            if input_ids is None:
                raise ValueError(f"{name} needs `input_ids` to look up word vectors")
            features.append(self.dropout(self.word_embeddings(input_ids.flatten()[real])))
        features += self._features(char_ids.flatten(0, 1)[real])
        if self.config.elmo_placement != "none":
            if bilm_layers is None:
                bilm_layers = self.bilm_layers(char_ids, attention_mask, token_type_ids, input_ids)
            at_input, elmo = self._mixed(bilm_layers.flatten(0, 1)[real])
            if at_input is not None:
                features.append(at_input)
        joined = torch.cat(features, dim=-1)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(words, dtype=torch.long)

        found = []
        for text in range(texts):
            chosen = words & (token_type_ids == text)
            counts = chosen.sum(1)
            longest = int(counts.max()) if len(counts) else 0
            # The positions of a text's words first, in their order.
            position = (~chosen).long().argsort(dim=1, stable=True)[:, :longest]
            text_mask = torch.arange(longest, device=counts.device) < counts[:, None]
            rows = chosen.flatten()[real]
            text_elmo = None if elmo is None else place_words(elmo[rows], text_mask)
            found.append(Words(place_words(joined[rows], text_mask), text_elmo, text_mask, position))
        return found

    def _penalty(self) -> Tensor | float:
        """Return λ‖s‖² of the mixes in training mode, else 0."""
        penalty: Tensor | float = 0.0
        for mix in (self.input_mix, self.output_mix):
            if self.training and mix is not None and mix.scalar is not None:
                penalty = penalty + mix.scalar.penalty()
        return penalty


class ElmoWordEncoder(ElmoTaskModel):
    """The base of tagging and coreference: LSTMs over words and their characters."""

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
