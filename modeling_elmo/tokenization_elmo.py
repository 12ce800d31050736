"""ElmoTokenizer: text or words -> `input_ids`, `attention_mask`, `token_type_ids` (B, T) and `char_ids` (B, T, C).

B batch, T words, C characters per word (50). The biLM reads `char_ids`; `input_ids` index the tokenizer's word
vocabulary, if it has one, and keep collators, pipelines and `Trainer` working.

The characters of a word are its UTF-8 bytes, or the Unicode characters in a dictionary, between a begin and an end
marker, padded to C. No character has the id 0: a row of zeros is a padded word.
"""

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from transformers.tokenization_python import PreTrainedTokenizer
from transformers.tokenization_utils_base import BatchEncoding, TruncationStrategy
from transformers.utils import PaddingStrategy, TensorType, to_py_obj

from .splitting_elmo import Span, find_spans, find_windows, split_text, truncate


class Markers(NamedTuple):
    """The character ids that are not characters of a word."""

    sentence_begin: int
    sentence_end: int
    word_begin: int
    word_end: int
    padding: int


# Character ids as the model sees them. Bytes are 1 to 256; with a dictionary the markers come first.
BYTE_MARKERS = Markers(257, 258, 259, 260, 261)
CHARACTER_PADDING = BYTE_MARKERS.padding
DICTIONARY_MARKERS = Markers(1, 2, 3, 4, 5)
UNKNOWN_CHARACTER = 6
FIRST_CHARACTER = 7

TRAINING_TEXTS = ("raw", "whitespace", "treebank")
# The id of the unknown word in a new vocabulary; an unknown word that is set later is an added token.
_UNKNOWN_ID = 3


class Origin(NamedTuple):
    """Where a token comes from. Markers and padding have no word and no sequence."""

    word: int | None = None
    sequence: int | None = None
    chars: Span = (0, 0)


@dataclass
class Segment:
    """The words of one of the texts of an example, and where they stand in it."""

    source: Any  # a text, a list of words or a list of ids
    words: list[str]

    @functools.cached_property
    def spans(self) -> list[Span]:
        """Find the words' characters on first use: most callers never ask for them."""
        if isinstance(self.source, str):
            return find_spans(self.source, self.words)
        return [(0, len(word)) for word in self.words]


class WordEncoding:
    """One row of a `BatchEncoding`, which calls these methods for its `word_ids()`, `char_to_token()` and so on.

    Each token is one word.
    """

    def __init__(
        self,
        segments: list[Segment],
        kept: Sequence[slice],  # the words of each segment that are in this row
        special: Sequence[str],  # the words that begin, end and pad a row
        wraps: bool,
    ) -> None:
        self.segments, self.kept, self.wraps = segments, kept, wraps
        self.n_sequences = len(segments)
        self.padding = (0, 0)  # tokens on the left and on the right of `row` and `types`
        begin, end, self.pad_token = special
        self.row: list[str] = []
        self.types: list[int] = []
        for sequence, segment in enumerate(segments):
            words = segment.words[kept[sequence]]
            if wraps:
                words = [begin, *words, end]
            self.row += words
            self.types += [sequence] * len(words)

    def pad(self, row: list, value: Any) -> list:
        left, right = self.padding
        return [value] * left + row + [value] * right

    @functools.cached_property
    def origins(self) -> list[Origin]:
        markers = [Origin()] * self.wraps
        origins: list[Origin] = []
        for sequence, (segment, kept) in enumerate(zip(self.segments, self.kept, strict=True)):
            origins += markers
            for word in range(kept.start, kept.stop):
                origins.append(Origin(word, sequence, segment.spans[word]))
            origins += markers
        return self.pad(origins, Origin())

    @property
    def tokens(self) -> list[str]:
        return self.pad(self.row, self.pad_token)

    @property
    def special_tokens_mask(self) -> list[int]:
        return [int(origin.word is None) for origin in self.origins]

    @property
    def word_ids(self) -> list[int | None]:
        return [origin.word for origin in self.origins]

    @property
    def sequence_ids(self) -> list[int | None]:
        return [origin.sequence for origin in self.origins]

    @property
    def offsets(self) -> list[Span]:
        return [origin.chars for origin in self.origins]

    def token_to_sequence(self, token: int) -> int | None:
        return self.origins[token].sequence

    def token_to_word(self, token: int) -> int | None:
        return self.origins[token].word

    def token_to_chars(self, token: int) -> Span | None:
        origin = self.origins[token]
        return None if origin.word is None else origin.chars

    def word_to_tokens(self, word: int, sequence: int = 0) -> Span | None:
        for token, origin in enumerate(self.origins):
            if origin[:2] == (word, sequence):
                return token, token + 1
        return None

    def word_to_chars(self, word: int, sequence: int = 0) -> Span | None:
        tokens = self.word_to_tokens(word, sequence)
        return tokens and self.origins[tokens[0]].chars

    def char_to_token(self, character: int, sequence: int = 0) -> int | None:
        for token, origin in enumerate(self.origins):
            start, end = origin.chars
            if origin.sequence == sequence and start <= character < end:
                return token
        return None

    def char_to_word(self, character: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(character, sequence)
        return None if token is None else self.origins[token].word


class ElmoTokenizer(PreTrainedTokenizer):
    """Tokenizer that spells words in characters, for ELMo.

    Raw text is split Penn-Treebank style; with `is_split_into_words=True` each given word stays one token. A sentence
    becomes `<S> words </S>`, a pair `<S> a </S> <S> b </S>`, whose words have the `token_type_ids` 0 and 1. With
    `return_overflowing_tokens` what does not fit into `max_length` becomes further rows, each with the last `stride`
    words of the one before.

    Args:
        vocab_file: File of the word vocabulary, one word per line. The special words come first, whether or not the
            file has them, then the others in file order. Without a vocabulary every word is `<UNK>` in `input_ids`
            and exact in `char_ids`.
        vocab: The words themselves instead of a file.
        max_characters_per_token: Width of a word's row of characters, markers included; longer words are cut.
        characters: Dictionary of a model that spells words in Unicode characters (ELMoForManyLangs), in the order of
            their ids. By default words are spelled in UTF-8 bytes.
        training_text: How the text that the model was trained on became words, which commands go by when they read
            text: `"raw"`, this tokenizer split it; `"whitespace"`, only whitespace did; `"treebank"`, it did, too, in
            text that was split before as by this tokenizer. By default it is not known.
        lowercase_fallback: Whether a word outside the vocabulary gets the id of its lower-cased form, for lower-case
            word vectors.
        pad_token, bos_token, eos_token, unk_token: The special words, with ids 0, 1, 2 and 3.
    """

    vocab_files_names = {"vocab_file": "vocab.txt"}
    model_input_names = ["input_ids", "char_ids", "attention_mask", "token_type_ids"]
    # Callers check this before they ask for windows, or which words and characters tokens come from.
    is_fast = True
    # The token-classification pipeline looks here whether every token is a whole word; otherwise it would take a full
    # stop for a part of the word before it.
    _tokenizer = SimpleNamespace(model=SimpleNamespace(continuing_subword_prefix="##"))

    def __init__(
        self,
        vocab_file: str | os.PathLike | None = None,
        vocab: Iterable[str] | None = None,
        max_characters_per_token: int = 50,
        characters: str | None = None,
        lowercase_fallback: bool = False,
        training_text: str | None = None,
        pad_token: str = "<pad>",
        bos_token: str = "<S>",
        eos_token: str = "</S>",
        unk_token: str = "<UNK>",
        **kwargs: Any,
    ) -> None:
        if isinstance(vocab, str) or (vocab is not None and vocab_file is not None):
            raise ValueError("give either words as `vocab` or a path as `vocab_file`")
        if training_text not in (None, *TRAINING_TEXTS):
            raise ValueError(f"`training_text` must be one of {', '.join(TRAINING_TEXTS)}, got {training_text!r}")
        self.training_text = training_text
        self.max_characters_per_token = max_characters_per_token
        self.characters = characters
        self.lowercase_fallback = lowercase_fallback
        self.markers = BYTE_MARKERS
        if characters is not None:
            self.markers = DICTIONARY_MARKERS
            self._character_ids = _number(characters, "`characters`", first=FIRST_CHARACTER)
        named = {"pad_token": pad_token, "bos_token": bos_token, "eos_token": eos_token, "unk_token": unk_token}
        for name, token in named.items():
            if not token:
                raise ValueError(f"`{name}` must be a word, got {token!r}")
        # A saved tokenizer says which words its first ids are: a special word replaced since then has a later id.
        saved = kwargs.get("added_tokens_decoder", {})
        special = [str(saved.get(index, token)) for index, token in enumerate(named.values())]
        source = "the vocabulary"
        if vocab_file is not None:
            source = f"the vocabulary {os.fspath(vocab_file)}"
            vocab = _read_words(vocab_file, source)
        self._words = special + [word for word in vocab or () if word not in special]
        self._vocab = _number(self._words, source)
        for word in self._words:
            if not _fits_a_line(word):
                raise ValueError(f"{source} holds {word!r}; a word must fit on one line of the file")
        super().__init__(
            max_characters_per_token=max_characters_per_token,
            characters=characters,
            lowercase_fallback=lowercase_fallback,
            training_text=training_text,
            **named,
            **kwargs,
        )

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], min_count: int = 1, max_size: int | None = None, **kwargs: Any
    ) -> "ElmoTokenizer":
        """Make a tokenizer whose vocabulary is the words of `counts`, the most frequent first.

        Words seen fewer than `min_count` times are left out, and so is what exceeds `max_size` words, special ones
        included. Words of equal count are in alphabetical order, so that the same counts give the same ids.
        """
        words = [word for word in counts if counts[word] >= min_count and _fits_a_line(word)]
        words.sort(key=lambda word: (-counts[word], word))
        tokenizer = cls(vocab=words, **kwargs)
        if max_size is not None:
            tokenizer = cls(vocab=tokenizer._words[:max_size], **kwargs)
        return tokenizer

    # Word vocabulary

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        return {**self._vocab, **self._added_tokens_encoder}

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        if isinstance(tokens, str):
            return self.convert_tokens_to_ids([tokens])[0]
        vocab, added = self._vocab, self._added_tokens_encoder
        unknown = added.get(self.unk_token, _UNKNOWN_ID)
        if self.characters is not None:  # the original cuts a long word before it looks it up
            tokens = [word[: self.max_characters_per_token - 2] for word in tokens]
        if self.lowercase_fallback:
            return [added.get(word, vocab.get(word, vocab.get(word.lower(), unknown))) for word in tokens]
        return [added.get(word, vocab.get(word, unknown)) for word in tokens]

    def _convert_id_to_token(self, index: int) -> str:
        return self._words[index] if 0 <= index < len(self._words) else str(self.unk_token)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write `vocab.txt`, one word per line, the special words first."""
        name = self.vocab_files_names["vocab_file"]
        path = os.path.join(save_directory, f"{filename_prefix}-{name}" if filename_prefix else name)
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            file.writelines(f"{word}\n" for word in self._words)
        return (path,)

    # Characters

    def words_to_char_ids(self, words: Sequence[str]) -> np.ndarray:
        """Spell words as rows of character ids: (len(words), C), int64."""
        markers = self.markers
        room = self.max_characters_per_token - 2
        spelled: list[Any]
        if self.characters is None:
            # Lone surrogates have no UTF-8 and are dropped, as in the original.
            spelled = [word.encode("utf-8", "ignore")[:room] for word in words]
            letters = np.frombuffer(b"".join(spelled), dtype=np.uint8).astype(np.int64) + 1
        else:
            spelled = [word[:room] for word in words]
            ids = [self._character_ids.get(character, UNKNOWN_CHARACTER) for character in "".join(spelled)]
            letters = np.array(ids, dtype=np.int64)
        lengths = np.fromiter(map(len, spelled), dtype=np.int64)
        rows = np.full((len(words), room + 2), markers.padding, dtype=np.int64)
        rows[:, 0] = markers.word_begin
        rows[:, 1:-1][np.arange(room) < lengths[:, None]] = letters
        rows[np.arange(len(words)), lengths + 1] = markers.word_end
        sentence_markers = {self.bos_token: markers.sentence_begin, self.eos_token: markers.sentence_end}
        for row, word in zip(rows, words, strict=True):
            if word in sentence_markers:
                row[1:] = markers.padding
                row[1:3] = sentence_markers[word], markers.word_end
        return rows

    def is_cut(self, word: str) -> bool:
        """Return whether a word is too long to be spelled whole."""
        spelled = word.encode("utf-8", "ignore") if self.characters is None else word
        return len(spelled) > self.max_characters_per_token - 2

    def char_ids_to_word(self, row: Sequence[int]) -> str:
        """Return the word that a row of characters spells, as far as the row is wide and the dictionary has them."""
        markers = self.markers
        special = {0: self.pad_token, markers.sentence_begin: self.bos_token, markers.sentence_end: self.eos_token}
        if row[1] in special:
            return str(special[row[1]])
        if self.characters is None:
            return bytes(c - 1 for c in row if 1 <= c <= 256).decode("utf-8", "ignore")
        alphabet = "\ufffd" + self.characters
        return "".join(alphabet[c - UNKNOWN_CHARACTER] for c in row if c >= UNKNOWN_CHARACTER)

    # Splitting

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        """Return the words of a text, without sentence markers."""
        # The base class searches the text for added words character by character.
        if any(token in text for token in self._added_tokens_encoder):
            return super().tokenize(text, **kwargs)
        return split_text(text)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return split_text(text)

    def _words_of(self, source: Any, is_split_into_words: bool, split_special_tokens: bool) -> list[str]:
        """Return the words of a text, of a list of words or of a list of word ids."""
        if isinstance(source, str) and not is_split_into_words:
            return self.tokenize(source, split_special_tokens=split_special_tokens)
        words = _as_list(source)
        if not isinstance(words, (list, tuple)):
            kind = "list of words" if is_split_into_words else "str"
            raise TypeError(f"a sentence must be a {kind}, got {source!r}")
        if words and isinstance(words[0], (int, np.integer)):
            return self.convert_ids_to_tokens(words)
        for word in words:
            if not isinstance(word, str):
                raise TypeError(f"a word must be a str, got {word!r}")
        return list(words)

    # Encoding

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        row = [self.bos_token_id, *token_ids_0, self.eos_token_id]
        return row if token_ids_1 is None else row + self.build_inputs_with_special_tokens(token_ids_1)

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        if already_has_special_tokens:
            special = set(self.all_special_ids) - {self.unk_token_id}  # an unknown word is still a word
            return [int(index in special) for index in token_ids_0]
        mask = [1, *[0] * len(token_ids_0), 1]
        return mask if token_ids_1 is None else mask + self.get_special_tokens_mask(token_ids_1)

    def prepare_for_model(self, ids: list[int], pair_ids: list[int] | None = None, **kwargs: Any) -> BatchEncoding:
        """Wrap, truncate and pad one sequence or pair of word ids, spelling each word from the vocabulary."""
        prepend_batch_axis = kwargs.pop("prepend_batch_axis", False)
        return_tensors = kwargs.pop("return_tensors", None)
        encoding = self(ids, pair_ids, is_split_into_words=True, **kwargs)
        return BatchEncoding(encoding.data, tensor_type=return_tensors, prepend_batch_axis=prepend_batch_axis)

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | TensorType | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        split_special_tokens: bool | None = None,
    ) -> BatchEncoding:
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        is_batched, examples = _as_examples(text, text_pair, is_split_into_words)
        special = [str(self.bos_token), str(self.eos_token), str(self.pad_token)]
        encodings: list[WordEncoding] = []
        samples: list[int] = []  # the example of each encoding
        for sample, sources in enumerate(examples):
            segments: list[Segment] = []
            for source in sources:
                segments.append(Segment(source, self._words_of(source, is_split_into_words, split_special_tokens)))
            lengths = [len(segment.words) for segment in segments]
            windows = [[slice(0, length)] for length in lengths]
            if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
                markers = 2 * len(segments) if add_special_tokens else 0
                sizes = truncate(lengths, max_length, markers, truncation_strategy.value)
                overlap = stride if return_overflowing_tokens else None
                for number, size in enumerate(sizes):
                    windows[number] = find_windows(lengths[number], size, overlap, self.truncation_side)
            for kept in itertools.product(*windows):
                encodings.append(WordEncoding(segments, kept, special, add_special_tokens))
                samples.append(sample)
        longest = max((encoding.row for encoding in encodings), key=len, default=[])
        self._eventual_warn_about_too_long_sequence(longest, max_length, verbose)

        widths = {PaddingStrategy.LONGEST: len(longest), PaddingStrategy.MAX_LENGTH: max_length or 0}
        width = widths.get(padding_strategy, 0)
        if pad_to_multiple_of is not None:
            width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
        for encoding in encodings:
            missing = max(width - len(encoding.row), 0)
            encoding.padding = (0, missing) if (padding_side or self.padding_side) == "right" else (missing, 0)

        data = self._look_up(encodings, as_lists=return_tensors is None)
        if return_attention_mask is False:
            del data["attention_mask"]
        if return_token_type_ids is False:
            del data["token_type_ids"]
        if return_special_tokens_mask:
            data["special_tokens_mask"] = [encoding.special_tokens_mask for encoding in encodings]
        if return_offsets_mapping:
            data["offset_mapping"] = [encoding.offsets for encoding in encodings]
        if return_length:
            data["length"] = [len(encoding.row) for encoding in encodings]
        if return_overflowing_tokens:
            data["overflow_to_sample_mapping"] = samples
        elif not is_batched and return_tensors is None:
            data = {key: value[0] for key, value in data.items()}
        return BatchEncoding(data, encodings, tensor_type=return_tensors)

    def _look_up(self, encodings: list[WordEncoding], as_lists: bool) -> dict[str, Any]:
        """Return the model's inputs, as one array each or as lists that may differ in length.

        Rows become indices into the distinct words of the call. So every word is spelled and looked up once, and each
        input of the whole batch is one gather.
        """
        rows = [encoding.pad(encoding.row, None) for encoding in encodings]
        positions: dict[str | None, int] = {None: 0}  # None is padding
        table: Any = [[positions.setdefault(word, len(positions)) for word in row] for row in rows]
        words: Any = list(positions)[1:]
        padding = np.zeros(self.max_characters_per_token, dtype=np.int64)
        columns = {
            "input_ids": np.array([self.pad_token_id, *self.convert_tokens_to_ids(words)], dtype=np.int64),
            "char_ids": np.vstack([padding, self.words_to_char_ids(words)]),
            "attention_mask": np.array([0] + [1] * len(words), dtype=np.int64),
        }
        if as_lists:
            data = {name: [column[row].tolist() for row in table] for name, column in columns.items()}
            data["token_type_ids"] = [encoding.pad(encoding.types, 0) for encoding in encodings]
            return data
        width = max(map(len, rows), default=0)
        if any(len(row) != width for row in rows):
            raise ValueError("the sequences differ in length: pass `padding=True`, and `truncation=True` if needed")
        table = np.array(table, dtype=np.int64).reshape(len(rows), width)
        types = np.zeros_like(table)
        for row, encoding in zip(types, encodings, strict=True):
            if encoding.n_sequences == 2:
                row[:] = encoding.pad(encoding.types, 0)
        return {**{name: column[table] for name, column in columns.items()}, "token_type_ids": types}

    def pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> BatchEncoding:
        """Pad as the base class does, `char_ids` and `offset_mapping` too, without changing what was passed."""
        inputs = dict(encoded_inputs) if isinstance(encoded_inputs, Mapping) else encoded_inputs
        batch = super().pad(inputs, *args, **kwargs)
        if isinstance(batch["input_ids"], list):
            for key in {"char_ids", "offset_mapping"} & set(batch):
                batch[key] = to_py_obj(batch[key])
        return batch

    def _pad(self, encoded_inputs: Any, *args: Any, padding_side: str | None = None, **kwargs: Any) -> dict:
        side = padding_side or self.padding_side
        padded = super()._pad(encoded_inputs, *args, padding_side=side, **kwargs)
        for key, width in (("char_ids", self.max_characters_per_token), ("offset_mapping", 2)):
            if key in padded:
                # An array, because a batch of arrays becomes a tensor many times faster than nested lists.
                rows = np.array(padded[key], dtype=np.int64).reshape(-1, width)
                missing = len(padded["input_ids"]) - len(rows)
                before_and_after = (0, missing) if side == "right" else (missing, 0)
                padded[key] = np.pad(rows, (before_and_after, (0, 0)))
        return padded

    # Decoding

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, char_ids: Any = None, **kwargs: Any
    ) -> str | list[str]:
        """Join the words of one sequence, or of each sequence of a batch, with spaces.

        With `char_ids` every word comes back as it was spelled; without, words outside the vocabulary are `<UNK>`.
        """
        if char_ids is None:
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens, **kwargs)
        token_ids, char_ids = to_py_obj(token_ids), to_py_obj(char_ids)
        if token_ids and isinstance(token_ids[0], (list, tuple)):
            texts: list[Any] = []
            for ids, rows in zip(token_ids, char_ids, strict=True):
                texts.append(self.decode(ids, skip_special_tokens, rows, **kwargs))
            return texts
        words = []
        special = self.get_special_tokens_mask(token_ids, already_has_special_tokens=True)
        for row, is_special in zip(char_ids, special, strict=True):
            if not (is_special and skip_special_tokens):
                words.append(self.char_ids_to_word(row))
        text = self.convert_tokens_to_string(words)
        clean_up = kwargs.get("clean_up_tokenization_spaces")
        if clean_up is None:
            clean_up = self.clean_up_tokenization_spaces
        return self.clean_up_tokenization(text) if clean_up else text


def _as_examples(text: Any, text_pair: Any, is_split_into_words: bool) -> tuple[bool, list[list]]:
    """Return whether the input is a batch, and its examples: each a list of one or two sequences."""
    text, text_pair = _as_list(text), _as_list(text_pair)
    if _is_sequence(text, is_split_into_words):
        return False, [[text] if text_pair is None else [text, text_pair]]
    if text_pair is not None:
        if not isinstance(text_pair, (list, tuple)) or len(text_pair) != len(text):
            raise ValueError("`text_pair` must be a batch as long as `text`")
        return True, [list(pair) for pair in zip(text, text_pair, strict=True)]
    examples = []
    for item in text:
        is_pair = not _is_sequence(item, is_split_into_words)
        if is_pair and len(item) != 2:
            raise ValueError(f"expected a text or a pair, got {item!r}; words need `is_split_into_words=True`")
        examples.append(list(item) if is_pair else [item])
    return True, examples


def _is_sequence(item: Any, is_split_into_words: bool) -> bool:
    """Return whether an item is one text, list of words or list of ids, rather than several of them."""
    if not isinstance(item, (list, tuple)):
        return True
    if not item:
        return is_split_into_words
    return isinstance(item[0], (int, np.integer)) or (is_split_into_words and isinstance(item[0], str))


def _as_list(value: Any) -> Any:
    """Convert columns of `datasets`, arrays and other iterables to lists."""
    if isinstance(value, (str, bytes, list, tuple, Mapping)) or not isinstance(value, Iterable):
        return value
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _number(items: Iterable[str], source: str, first: int = 0) -> dict[str, int]:
    """Map each item to its number, refusing repeated ones."""
    numbers: dict[str, int] = {}
    for number, item in enumerate(items, start=first):
        if numbers.setdefault(item, number) != number:
            raise ValueError(f"{source} holds {item!r} twice")
    return numbers


def _read_words(path: str | os.PathLike, source: str) -> list[str]:
    """Return the lines of a vocabulary file. Only line feeds end a line."""
    words = []
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{source} is not a regular file")
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                words.append(line.decode("utf-8-sig" if number == 1 else "utf-8", "surrogatepass").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{source}: line {number} is not UTF-8: {error.reason}") from error
    return words


def _fits_a_line(word: str) -> bool:
    return bool(word) and "\n" not in word and "\r" not in word


ElmoTokenizer.register_for_auto_class()

__all__ = ["ElmoTokenizer"]
