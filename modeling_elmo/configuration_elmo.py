"""ElmoConfig: the sizes and switches of an ELMo model.

The defaults are the original English model (Peters et al., 2018): seven character filter widths, two highway layers,
two LSTM layers a direction with 4096 cells projected to 512.
"""

import difflib
import os
from dataclasses import field, fields
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

from .tokenization_elmo import ElmoTokenizer

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
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
    "transformers_weights",
}

_POSITIVE_FIELDS = (
    "vocab_size",
    "char_vocab_size",
    "char_embedding_dim",
    "projection_dim",
    "cell_dim",
    "num_hidden_layers",
    "max_answer_words",
    "max_context_words",
    "max_span_width",
    "max_antecedents",
)


@strict
class ElmoConfig(PreTrainedConfig):
    r"""
    Configuration of an ELMo model. Unknown keys, wrong types and impossible combinations are refused.

    Args:
        vocab_size (`int`, *optional*, defaults to 793472):
            Number of words in the tokenizer's word vocabulary, special tokens included (the original's 793,471 words
            and `<pad>`). Embedding needs no vocabulary: the biLM reads characters.
        spelling (`"bytes"` or `"dictionary"`, *optional*, defaults to `"bytes"`):
            What a word's characters are: its UTF-8 bytes, or Unicode characters that the tokenizer has a dictionary
            of, as in ELMoForManyLangs.
        char_vocab_size (`int`, *optional*, defaults to 262):
            Rows of the character embedding: 256 bytes, five markers, and row 0 for a padded word; of a dictionary,
            its characters, six markers and row 0.
        max_characters_per_token (`int`, *optional*, defaults to 50):
            Width of a word's row of characters, its begin and end markers included.
        char_embedding_dim (`int`, *optional*, defaults to 16):
            Size of a character's embedding.
        char_filters (`list[list[int]]`, *optional*, defaults to the original's seven):
            The convolutions over a word's characters, as `[[width, count], ...]`; `[]` for a model that reads no
            characters, only word embeddings.
        char_activation (`"relu"` or `"tanh"`, *optional*, defaults to `"relu"`):
            Activation after the maximum over positions.
        num_highway_layers (`int`, *optional*, defaults to 2):
            Highway layers between the convolutions and the projection.
        projection_dim (`int`, *optional*, defaults to 512):
            Size of a word's context-free vector and of each direction's output. `hidden_size` is twice this. The
            projection after the highway layers is left out where the filters already add up to it, except with
            `spelling="dictionary"`, whose models always have one.
        word_embedding_dim (`int`, *optional*, defaults to 0):
            With `spelling="dictionary"`: size of an embedding of each word of the vocabulary, which the biLM reads
            beside the word's characters; 0 for none.
        cell_dim (`int`, *optional*, defaults to 4096):
            Size of an LSTM's memory cell.
        num_hidden_layers (`int`, *optional*, defaults to 2):
            LSTM layers of each direction.
        cell_clip, projection_clip (`float` or `None`, *optional*, defaults to 3.0):
            Bounds on the memory cell and on the projected output; `None` for no bound.
        use_skip_connections (`bool`, *optional*, defaults to `True`):
            Whether every LSTM layer but the first adds its input to its output.
        dropout (`float`, *optional*, defaults to 0.1):
            Dropout on the input of every LSTM layer, in training mode.
        num_negatives (`int`, *optional*, defaults to 8192):
            Words that a step of pretraining samples for its softmax; 0 for the full softmax.
        mix (`"scalar"`, `"average"` or `"last"`, *optional*, defaults to `"scalar"`):
            How the layers become `last_hidden_state`: by learned weights, their average, or the top layer alone.
        mix_layer_norm (`bool`, *optional*, defaults to `False`):
            Whether the learned mix normalises each layer first. As in the original, the statistics are taken over
            all real words of the batch, so vectors then depend on their batch.
        mix_l2 (`float`, *optional*, defaults to 0.0):
            The λ of the paper: strength of the pull of the mixing weights towards the average. Task models add it to
            their loss.
        keep_sentence_markers (`bool`, *optional*, defaults to `True`):
            Whether the outputs include the positions of `<S>` and `</S>`, and so line up with `input_ids`.
        use_cache (`bool`, *optional*, defaults to `False`):
            Whether the model returns the final LSTM states, to be passed on to the next call.
        elmo_placement (`"input"`, `"output"`, `"both"` or `"none"`, *optional*, defaults to `"both"`):
            Of task models: where ELMo vectors are put beside what the task reads, each place with a mix of its own.
            `"none"` is a model without a biLM.
        elmo_dropout (`float`, *optional*, defaults to 0.5):
            Of task models: dropout on the ELMo vectors.
        freeze_bilm (`bool`, *optional*, defaults to `True`):
            Of task models: whether the biLM stays as it is while the task is learned.
        word_vector_dim (`int`, *optional*, defaults to 0):
            Of task models: size of the word vectors (GloVe) beside ELMo, one for each word of the vocabulary; 0 for
            none.
        train_word_vectors (`bool`, *optional*, defaults to `False`):
            Of task models: whether the word vectors are learned further.
        sequence_encoder (`"bcn"` or `"esim"`, *optional*, defaults to `"bcn"`):
            Of sequence classification: the biattentive classification network for one text, or ESIM for pairs.
        head_dim (`int`, *optional*):
            Of task models: units of an LSTM in each direction; by default the papers' (300, tagging and coreference
            200, question answering 90, of GRUs).
        head_layers (`int`, *optional*):
            Of tagging, coreference and semantic roles: LSTM layers; by default the papers' 2, 1 and 8.
        head_dropout (`float`, *optional*, defaults to 0.5):
            Of task models: dropout on everything but ELMo vectors.
        head_char_filters (`int`, *optional*, defaults to 128):
            Of tagging, question answering and coreference: filters of the character CNN that is learned with the
            task; 0 for none.
        use_crf (`bool`, *optional*, defaults to `True`):
            Of tagging: whether labels depend on each other, or each word has a softmax of its own.
        tag_scheme (`"BIO"`, `"BIOES"` or `"IOB1"`, *optional*):
            Of tagging: the scheme of the labels, which decoding keeps to; by default there is none.
        max_answer_words (`int`, *optional*, defaults to 17):
            Of question answering: words of the longest answer that is given.
        max_context_words (`int`, *optional*, defaults to 400):
            Of question answering: words of a context that are read at once; a longer one is read in windows.
        context_overlap (`int`, *optional*, defaults to 100):
            Of question answering: words that a window shares with the one before it.
        max_span_width (`int`, *optional*, defaults to 10):
            Of coreference: the most words of a mention.
        spans_per_word (`float`, *optional*, defaults to 0.4):
            Of coreference: how many spans, those likeliest to be mentions, are compared for each word of a document.
        max_antecedents (`int`, *optional*, defaults to 50):
            Of coreference: how many spans before it, those likeliest by a quick score, a span is compared with.
        predict_singletons (`bool`, *optional*, defaults to `False`):
            Of coreference: whether a thing that is mentioned once is a cluster too, as in LitBank, or whether, as in
            the paper and in OntoNotes, only things that are mentioned again are found.
        pad_token_id, bos_token_id, eos_token_id, unk_token_id (`int`, *optional*, defaults to 0, 1, 2, 3):
            Ids of the special words in the word vocabulary.
    """

    model_type = "elmo"

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
    elmo_dropout: float | int = 0.5
    freeze_bilm: bool = True
    word_vector_dim: int = 0
    train_word_vectors: bool = False
    sequence_encoder: Literal["bcn", "esim"] = "bcn"
    head_dim: int | None = None
    head_layers: int | None = None
    head_dropout: float | int = 0.5
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
        known = {known_field.name for known_field in fields(self)}
        if unknown := sorted(set(kwargs) - known - _TRANSFORMERS_KEYS):
            near = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else f"; known keys: {', '.join(sorted(known))}"
            raise ValueError(f"ElmoConfig does not know `{unknown[0]}`{hint}")
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Part of `@strict` validation: sizes that cannot be built are refused, naming the key."""
        for name in _POSITIVE_FIELDS:
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        counts = ("num_highway_layers", "num_negatives", "word_embedding_dim", "word_vector_dim", "head_char_filters")
        for name in counts:
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be at least 0, got {getattr(self, name)}")
        if self.max_characters_per_token < 3:
            raise ValueError(
                "`max_characters_per_token` must be at least 3 (a character between its word-begin and word-end "
                f"markers), got {self.max_characters_per_token}"
            )
        if self.word_embedding_dim and self.spelling != "dictionary":
            raise ValueError(f"`word_embedding_dim` needs spelling='dictionary', got spelling={self.spelling!r}")
        if not self.char_filters and not self.word_embedding_dim:
            raise ValueError("`char_filters` must hold at least one [width, count] pair")
        if not self.char_filters and self.num_highway_layers:
            raise ValueError(
                "`num_highway_layers` must be 0 where there are no `char_filters` to be highway layers of"
            )
        for pair in self.char_filters:
            if len(pair) != 2 or min(pair) < 1 or pair[0] > self.max_characters_per_token:
                raise ValueError(
                    "`char_filters` must be [width, count] pairs of positive numbers, no width above "
                    f"max_characters_per_token={self.max_characters_per_token}, got {pair}"
                )
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise ValueError(f"`{name}` must be positive, or None for no bound, got {clip}")
        for name in ("head_dim", "head_layers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, or None for the head's own, got {value}")
        for name in ("dropout", "elmo_dropout", "head_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be in [0, 1), got {getattr(self, name)}")
        if not 0 <= self.context_overlap < self.max_context_words:
            raise ValueError(
                f"`context_overlap` must be at least 0 and below max_context_words={self.max_context_words}, got "
                f"{self.context_overlap}"
            )
        if not self.spans_per_word > 0:
            raise ValueError(f"`spans_per_word` must be above 0, got {self.spans_per_word}")
        if self.mix_l2 < 0:
            raise ValueError(f"`mix_l2` must not be negative, got {self.mix_l2}")
        if self.mix != "scalar" and (self.mix_layer_norm or self.mix_l2):
            raise ValueError(f"`mix_layer_norm` and `mix_l2` belong to mix='scalar', got mix={self.mix!r}")

    @property
    def hidden_size(self) -> int:
        """Size of a word's vector: both directions beside each other."""
        return 2 * self.projection_dim

    @property
    def num_char_features(self) -> int:
        """Filters of all widths together: the size of what a word's characters become."""
        return sum(count for _, count in self.char_filters)

    @property
    def has_projection(self) -> bool:
        """Whether a word's features are projected, rather than of the right size already."""
        return self.spelling == "dictionary" or self.num_char_features != self.projection_dim

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Saves the config with the whole `auto_map` and, where the folder has none yet, a tokenizer.

        Every saved folder can thus be loaded through every auto class: the spelling of words in bytes is part of the
        architecture and needs no vocabulary. A dictionary, or the words that a task model has vectors of, only its own
        tokenizer has, which must be saved too.
        """
        self.auto_map = dict(AUTO_MAP)
        has_word_vectors = self.word_vector_dim > 0 and self.architectures != ["ElmoModel"]
        needs_no_vocabulary = self.spelling == "bytes" and not has_word_vectors
        if needs_no_vocabulary and not os.path.isfile(os.path.join(save_directory, "tokenizer_config.json")):
            ElmoTokenizer(max_characters_per_token=self.max_characters_per_token).save_pretrained(save_directory)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)


ElmoConfig.register_for_auto_class()

__all__ = ["AUTO_MAP", "ElmoConfig"]
