"""ElmoConfig: the sizes and switches of an ELMo model.

The defaults are the original English model (Peters et al., 2018): seven character filter widths, two highway layers,
two LSTM layers a direction with 4096 cells projected to 512.
"""

import difflib
import os
from collections.abc import Iterable
from dataclasses import field, fields
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .tokenization_elmo import ElmoTokenizer

logger = logging.get_logger(__name__)

# Every class a saved folder can be loaded through. A folder carries the whole map, whichever class wrote it.
AUTO_MAP = {
    "AutoConfig": "configuration_elmo.ElmoConfig",
    "AutoModel": "modeling_elmo.ElmoModel",
    "AutoModelForPreTraining": "modeling_elmo.ElmoForPreTraining",
    "AutoModelForSequenceClassification": "modeling_elmo.ElmoForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_elmo.ElmoForTokenClassification",
    "AutoModelForMultipleChoice": "modeling_elmo.ElmoForMultipleChoice",
    "AutoModelForQuestionAnswering": "modeling_elmo.ElmoForQuestionAnswering",
}

# What transformers itself passes to, or writes into, a config beside the declared fields.
_TRANSFORMERS_KEYS = {
    "_attn_implementation_internal",
    "_commit_hash",
    "_experts_implementation_internal",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "transformers_weights",
}

# Classes whose folders hold a biLM, and no head.
BILMS = ("ElmoModel", "ElmoForPreTraining")

# The smallest value of each field.
_MINIMUM = {
    0: "num_highway_layers num_negatives mix_l2 word_embedding_dim word_vector_dim head_char_filters context_overlap",
    1: "vocab_size char_vocab_size char_embedding_dim projection_dim cell_dim num_hidden_layers max_answer_words "
    "max_context_words max_span_width max_antecedents head_dim head_layers",
    3: "max_characters_per_token",  # two markers and a character
}
# The largest: more is no model, and would take minutes to build, or all memory, before its weights prove it wrong.
_MAXIMUM = {
    1_000: "num_hidden_layers num_highway_layers head_layers max_characters_per_token",
    1_000_000: "char_vocab_size char_embedding_dim projection_dim cell_dim word_embedding_dim word_vector_dim "
    "head_dim head_char_filters",
    1_000_000_000: "vocab_size num_negatives",
}
# Dropout where a config sets none, on the ELMo vectors and on everything else: the papers', and of the pooled network.
DROPOUTS, POOLED_DROPOUTS = (0.5, 0.5), (0.1, 0.3)
# Defaults of task models in earlier versions.
EARLIER_DEFAULTS = {"sequence_encoder": "bcn", "elmo_dropout": 0.5, "head_dropout": 0.5}
MOST_FILTER_WIDTHS = 1_000
MOST_LABELS = 1_000_000
# Bytes of a config.json: one with a million labels has a tenth of it.
LARGEST_CONFIG = 1 << 28


@strict
class ElmoConfig(PreTrainedConfig):
    """Configuration of an ELMo model. Unknown keys, wrong types and impossible combinations are refused.

    Types and defaults are those of the fields below.

    Args:
        vocab_size: Number of words in the tokenizer's vocabulary, special words included (the original's 793,471 and
            `<pad>`). Computing vectors needs no vocabulary: the biLM reads characters.
        spelling: What the characters of a word are: `"bytes"` of its UTF-8, or `"dictionary"` for the Unicode
            characters in the tokenizer's dictionary, as in ELMoForManyLangs.
        char_vocab_size: Rows of the character embedding: 256 bytes, five markers, and row 0 for a padded word; with a
            dictionary, its characters, six markers and row 0.
        max_characters_per_token: Width of a word's row of characters, its begin and end markers included.
        char_embedding_dim: Size of a character's embedding.
        char_filters: Convolutions over the characters of a word, as `[[width, count], ...]`; `[]` for a model that
            reads only word embeddings.
        char_activation: Activation after the maximum over positions, `"relu"` or `"tanh"`.
        num_highway_layers: Highway layers between the convolutions and the projection.
        projection_dim: Size of a word's context-free vector and of the output of each direction; `hidden_size` is
            twice this. There is no projection where the filters already add up to this size, except with
            `spelling="dictionary"`.
        word_embedding_dim: With `spelling="dictionary"`, size of the word embedding that the biLM reads beside the
            characters; 0 for none.
        cell_dim: Size of the memory cell of an LSTM.
        num_hidden_layers: LSTM layers of each direction.
        cell_clip, projection_clip: Bounds on the memory cell and on the projected output; `None` for no bound.
        use_skip_connections: Whether every LSTM layer but the first adds its input to its output.
        dropout: Dropout on the input of every LSTM layer, in training mode.
        num_negatives: Words that a pretraining step samples for its softmax; 0 for the full softmax.
        mix: How layers become `last_hidden_state`: `"scalar"` for learned weights, `"average"`, or `"last"`.
        mix_layer_norm: Whether the learned mix normalises each layer first. As in the original, the statistics are
            over all real words of the batch, so vectors then depend on their batch.
        mix_l2: Strength λ of the pull of the mixing weights towards the average, added to the loss of task models.
        keep_sentence_markers: Whether outputs include the positions of `<S>` and `</S>`, in line with `input_ids`.
        use_cache: Whether the model returns the final LSTM states, for the next call.
        pad_token_id, bos_token_id, eos_token_id, unk_token_id: Ids of the special words in the vocabulary.

    Args of task models:
        elmo_placement: Where ELMo vectors are added, each place with its own mix: at the `"input"`, at the
            `"output"`, at `"both"`, or `"none"` for a model without a biLM.
        elmo_dropout, head_dropout: Dropout on the ELMo vectors where they enter, and on everything else; by default
            0.5, and 0.1 and 0.3 for `sequence_encoder="pooled"`. In ESIM and question answering, all words of a row
            lose the same features.
        freeze_bilm: Whether the biLM stays fixed while the task is learned.
        word_vector_dim: Size of the word vectors (GloVe) beside ELMo, one for each word of the vocabulary; 0 for none.
        train_word_vectors: Whether the word vectors are trained too.
        sequence_encoder: For sequence classification, `"pooled"` (one hidden layer over each word, then the maximum)
            for texts and pairs, with all layers at the input side by side instead of a learned mix of them; the
            paper's are `"bcn"` (biattentive classification network) for texts and `"esim"` for pairs.
        head_dim: Units of an LSTM in each direction; by default the papers' (300; tagging and coreference 200;
            question answering 90, of GRUs).
        head_layers: LSTM layers of tagging, coreference and semantic roles; by default the papers' 2, 1 and 8.
        head_char_filters: Filters of the character CNN that tagging, question answering and coreference learn with
            the task; 0 for none.
        use_crf: For tagging, whether labels depend on each other, or each word has its own softmax.
        tag_scheme: For tagging, the scheme that decoded labels follow: `"BIO"`, `"BIOES"`, `"IOB1"` or `None`.
        max_answer_words: For question answering, the longest answer.
        max_context_words: For question answering, the longest context that is read at once; longer ones in windows.
        context_overlap: For question answering, the words that a window shares with the one before it.
        max_span_width: For coreference, the longest mention in words.
        spans_per_word: For coreference, how many of the likeliest spans are compared, per word of the document.
        max_antecedents: For coreference, how many of the likeliest earlier spans a span is compared with.
        predict_singletons: For coreference, whether something mentioned once is a cluster too (as in LitBank, not in
            the paper or OntoNotes).
    """

    model_type = "elmo"
    # What Trainer leaves out of predictions, so that they are the logits of the task.
    keys_to_ignore_at_inference = ["forward_loss", "backward_loss", "hidden_states", "predictions", "states"]

    vocab_size: int = 793_472
    spelling: Literal["bytes", "dictionary"] = "bytes"
    char_vocab_size: int = 262
    max_characters_per_token: int = 50
    char_embedding_dim: int = 16
    char_filters: list[list[int]] = field(
        default_factory=lambda: [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
    )
    char_activation: Literal["relu", "tanh"] = "relu"
    num_highway_layers: int = 2
    projection_dim: int = 512
    word_embedding_dim: int = 0
    cell_dim: int = 4096
    num_hidden_layers: int = 2
    cell_clip: float | int | None = 3.0
    projection_clip: float | int | None = 3.0
    use_skip_connections: bool = True
    dropout: float | int = 0.1
    num_negatives: int = 8192
    mix: Literal["scalar", "average", "last"] = "scalar"
    mix_layer_norm: bool = False
    mix_l2: float | int = 0.0
    keep_sentence_markers: bool = True
    use_cache: bool = False
    elmo_placement: Literal["input", "output", "both", "none"] = "both"
    elmo_dropout: float | int | None = None
    freeze_bilm: bool = True
    word_vector_dim: int = 0
    train_word_vectors: bool = False
    sequence_encoder: Literal["pooled", "bcn", "esim"] = "pooled"
    head_dim: int | None = None
    head_layers: int | None = None
    head_dropout: float | int | None = None
    head_char_filters: int = 128
    use_crf: bool = True
    tag_scheme: Literal["BIO", "BIOES", "IOB1"] | None = None
    max_answer_words: int = 17
    max_context_words: int = 400
    context_overlap: int = 100
    max_span_width: int = 10
    spans_per_word: float | int = 0.4
    max_antecedents: int = 50
    predict_singletons: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | None = 2
    unk_token_id: int | None = 3

    def __post_init__(self, **kwargs: Any) -> None:
        self.refuse_unknown(kwargs)
        super().__post_init__(**kwargs)
        self._complete_labels()

    def _complete_labels(self) -> None:
        """Set `label2id` where it is missing or has the names of other labels than `id2label`."""
        names = self.id2label or {}
        known = getattr(self, "label2id", None) or {}
        if set(known) != set(names.values()):
            self.label2id = {name: number for number, name in names.items()}

    @classmethod
    def refuse_unknown(cls, keys: Iterable[str]) -> None:
        """Refuse keys that are not of a config, naming the nearest that is."""
        known = {known_field.name for known_field in fields(cls)}
        if unknown := sorted(set(keys) - known - _TRANSFORMERS_KEYS):
            near = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else f"; known keys: {', '.join(sorted(known))}"
            raise ValueError(f"ElmoConfig does not know `{unknown[0]}`{hint}")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a config of what a file holds. Keys that this version does not know are kept, with a warning."""
        cls._check_labels(config_dict)
        known = {known_field.name for known_field in fields(cls)} | _TRANSFORMERS_KEYS
        unknown = sorted(set(config_dict) - known)
        values = {key: config_dict[key] for key in config_dict if key in known}
        architectures = values.get("architectures") or [""]
        if architectures[0] in BILMS:
            # Folders of biLMs were saved with the defaults of then, which say nothing about a head to come.
            for name, earlier in EARLIER_DEFAULTS.items():
                if values.get(name) == earlier:
                    del values[name]
        made = super().from_dict(values, **kwargs)
        config = made[0] if isinstance(made, tuple) else made
        config._complete_labels()  # `kwargs` may have set other names
        for key in unknown:
            setattr(config, key, config_dict[key])
        if unknown:
            logger.warning(f"Kept keys of a config that ElmoConfig does not know: {', '.join(unknown)}")
        return made

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike) -> "ElmoConfig":
        """Make a config of a JSON file."""
        return cls.from_dict(cls._dict_from_json_file(json_file))

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any) -> Any:
        """Read a config. A folder without one is refused: transformers would take the default sizes."""
        config_dict, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if not config_dict:
            raise OSError(f"{pretrained_model_name_or_path}: not a model folder: config.json is missing")
        return config_dict, rest

    @classmethod
    def _dict_from_json_file(cls, json_file: str | os.PathLike) -> dict[str, Any]:
        if not os.path.isfile(json_file) or os.path.getsize(json_file) > LARGEST_CONFIG:
            raise OSError(f"{json_file}: not a regular file of at most {LARGEST_CONFIG:,} bytes")
        config_dict = super()._dict_from_json_file(json_file)
        if not isinstance(config_dict, dict):
            raise ValueError(f"{json_file}: expected an object, got a {type(config_dict).__name__}")
        return config_dict

    @classmethod
    def _check_labels(cls, config_dict: dict[str, Any]) -> None:
        for name in ("id2label", "label2id", "auto_map"):
            value = config_dict.get(name)
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"`{name}` must be an object, got {str(value)[:40]}")
        count = config_dict.get("num_labels")
        if count is not None and not (isinstance(count, int) and 0 <= count <= MOST_LABELS):
            raise ValueError(f"`num_labels` must be from 0 to {MOST_LABELS:,}, got {str(count)[:40]}")

    def validate_architecture(self) -> None:
        """Refuse sizes that cannot be built, naming the field. Called by `@strict` after it has checked the types."""
        for maximum, names in _MAXIMUM.items():
            for name in names.split():
                value = getattr(self, name)
                if value is not None and value > maximum:
                    raise ValueError(f"`{name}` must be at most {maximum:,}, got {str(value)[:40]}")
        if len(self.char_filters) > MOST_FILTER_WIDTHS:
            raise ValueError(f"`char_filters` must hold at most {MOST_FILTER_WIDTHS:,} pairs")
        for minimum, names in _MINIMUM.items():
            for name in names.split():
                value = getattr(self, name)
                if value is not None and value < minimum:
                    raise ValueError(f"`{name}` must be at least {minimum}, got {value}")
        for name in ("cell_clip", "projection_clip", "spans_per_word"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be positive, got {value}")
        for name in ("dropout", "elmo_dropout", "head_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"`{name}` must be in [0, 1), got {value}")
        width = self.max_characters_per_token
        for pair in self.char_filters:
            if len(pair) != 2 or min(pair) < 1 or pair[0] > width:
                raise ValueError(
                    "`char_filters` must be [width, count] pairs of positive numbers, no width above "
                    f"max_characters_per_token={width}, got {pair}"
                )
        if not self.char_filters and not self.word_embedding_dim:
            raise ValueError("`char_filters` must hold at least one [width, count] pair, got []")
        if not self.char_filters and self.num_highway_layers:
            raise ValueError("`num_highway_layers` must be 0 without `char_filters`")
        if self.word_embedding_dim and self.spelling != "dictionary":
            raise ValueError(f"`word_embedding_dim` needs spelling='dictionary', got spelling={self.spelling!r}")
        if self.context_overlap >= self.max_context_words:
            raise ValueError(f"`context_overlap` must be below max_context_words, got {self.context_overlap}")
        if self.mix != "scalar" and (self.mix_layer_norm or self.mix_l2):
            raise ValueError(f"`mix_layer_norm` and `mix_l2` belong to mix='scalar', got mix={self.mix!r}")

    @property
    def hidden_size(self) -> int:
        """Return the size of a word's vector: both directions concatenated."""
        return 2 * self.projection_dim

    def dropouts(self, pooled: bool = False) -> tuple[float, float]:
        """Return the dropout on the ELMo vectors and on everything else, of the pooled network or of any other."""
        elmo, head = POOLED_DROPOUTS if pooled else DROPOUTS
        elmo = elmo if self.elmo_dropout is None else self.elmo_dropout
        head = head if self.head_dropout is None else self.head_dropout
        return elmo, head

    @property
    def num_char_features(self) -> int:
        """Return the number of filters of all widths, the size of a word's features."""
        return sum(count for _, count in self.char_filters)

    @property
    def has_projection(self) -> bool:
        """Return whether a word's features are projected, rather than of the right size already."""
        return self.spelling == "dictionary" or self.num_char_features != self.projection_dim

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save the config with the whole `auto_map` and, where the folder has none yet, a tokenizer.

        So every saved folder loads through every auto class. A tokenizer with a dictionary, or with the words that a
        task model has vectors for, cannot be made from the config: save it too.
        """
        self.auto_map = dict(AUTO_MAP)
        has_word_vectors = self.word_vector_dim > 0 and self.architectures != ["ElmoModel"]
        needs_no_vocabulary = self.spelling == "bytes" and not has_word_vectors
        if needs_no_vocabulary and not os.path.isfile(os.path.join(save_directory, "tokenizer_config.json")):
            ElmoTokenizer(max_characters_per_token=self.max_characters_per_token).save_pretrained(save_directory)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)


ElmoConfig.register_for_auto_class()

__all__ = ["AUTO_MAP", "BILMS", "ElmoConfig"]
