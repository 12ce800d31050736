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

from .bilm_elmo import IGNORED, NUM_SPECIAL_WORDS, ElmoModel, ElmoPreTrainedModel, markers_of, words_of
from .configuration_elmo import ElmoConfig
from .layers_elmo import Dropout, ElmoScalarMix, GlorotLinear, distinct_rows, pack
from .recurrence_elmo import side_by_side, train_side_by_side, trained_recurrence, trains_side_by_side

# Units and layers of the tagger's LSTMs (Peters et al., 2017).
TAGGER_DIM, TAGGER_LAYERS = 200, 2
# Of a task's own character CNN (Peters et al., 2017).
TASK_CHARACTER_DIM, TASK_FILTER_WIDTH = 16, 3


class Words(NamedTuple):
    """The words of one text of each row."""

    features: Tensor  # (B, T, D), what the encoder reads
    elmo: Tensor | None  # (B, T, E), what is put beside the encoder's output
    mask: Tensor  # (B, T), True for real words


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
        # Words end in a run of one character, their padding; of the windows inside it one is enough.
        places = torch.arange(1, distinct.shape[1] + 1, device=distinct.device)
        longest = int(((distinct != distinct[:, -1:]) * places).amax())
        embedded = self.embedding(distinct[:, : longest + self.convolution.kernel_size[0]]).transpose(1, 2)
        return F.relu(self.convolution(embedded).amax(-1))[index].unflatten(0, char_ids.shape[:-1])


class TaskLstmLayer(nn.Module):
    """One LSTM over packed words in one direction: (N, D) -> (N, H). Forget gates start out open, by the bias of 1."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.input_gates = GlorotLinear(inputs, 4 * units, fan_in=inputs, bias=True)
        self.recurrent_gates = GlorotLinear(units, 4 * units, fan_in=units)

    def forward(self, words: Tensor, batch_sizes: Sequence[int]) -> Tensor:
        gates = self.input_gates(words)  # (N, 4H)
        weight = self.recurrent_gates.weight
        zeros = gates.new_zeros(batch_sizes[0] if batch_sizes else 0, weight.shape[1])
        return trained_recurrence(gates, zeros, zeros, weight, None, batch_sizes, None, None)[0]


class WordLstm(nn.Module):
    """LSTMs in both directions over the real words: (B, T, D) -> (B, T, 2H), with dropout between layers."""

    layer: type[nn.Module] = TaskLstmLayer  # of one direction: inputs, units -> packed words to packed outputs

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
            flat = self._read(layers, flat if number == 0 else self.dropout(flat), indices, packing.batch_sizes)
        return flat.unflatten(0, mask.shape)

    # As in the biLM: a loop over time steps is not for tracing.
    @torch.compiler.disable
    def _read(
        self,
        layers: tuple[nn.Module, nn.Module],
        flat: Tensor,
        indices: tuple[Tensor, Tensor],
        batch_sizes: Sequence[int],
    ) -> Tensor:
        """A layer of both directions, side by side where that is faster: (B * T, D) -> (B * T, 2H)."""

        def run(side: int, flat: Tensor) -> tuple[Tensor]:
            packed = layers[side](flat.index_select(0, indices[side]), batch_sizes)
            return (packed.new_zeros(len(flat), packed.shape[1]).index_copy(0, indices[side], packed),)

        forward, backward = partial(run, 0), partial(run, 1)
        if trains_side_by_side(flat):
            own = (list(layers[0].parameters()), list(layers[1].parameters()))
            sides: Sequence[tuple[Tensor, ...]] = train_side_by_side(forward, backward, (flat,), own)
        elif torch.is_grad_enabled() or flat.device.type != "cpu":
            sides = (forward(flat), backward(flat))
        else:
            sides = side_by_side(lambda: forward(flat), lambda: backward(flat))
        return torch.cat([side[0] for side in sides], dim=-1)


class WordDropout(Dropout):
    """Dropout that loses the same features of every word of a sentence (Gal and Ghahramani, 2016)."""

    def noise_shape(self, features: Tensor) -> Sequence[int]:
        return len(features), 1, features.shape[2]


def attend(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension, over what the mask (B, S) has; zero where that is nothing."""
    keep = mask[:, None]
    return torch.softmax(scores.masked_fill(~keep, torch.finfo(scores.dtype).min), dim=-1) * keep


def together(first: Tensor, second: Tensor) -> Tensor:
    """Two texts (B, T, D) and (B, S, D) as one batch (2B, max(T, S), D), the shorter filled up."""
    words = max(first.shape[1], second.shape[1])
    return torch.cat([F.pad(text, (0, 0, 0, words - text.shape[1])) for text in (first, second)])


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
