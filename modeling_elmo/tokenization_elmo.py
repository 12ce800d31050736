"""ElmoTokenizer: text or words -> `input_ids` (B, T), `char_ids` (B, T, C) and `attention_mask` (B, T).

B batch, T words, C characters per word (50). The biLM reads `char_ids`; `input_ids` index the tokenizer's word
vocabulary, if it has one, and keep collators, pipelines and `Trainer` working.

The characters of a word are its UTF-8 bytes, or the Unicode characters in a dictionary, between a begin and an end
marker, padded to C. No character has the id 0: a row of zeros is a padded word.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from transformers.tokenization_python import PreTrainedTokenizer
from transformers.tokenization_utils_base import BatchEncoding, TruncationStrategy
from transformers.utils import PaddingStrategy, TensorType, to_py_obj

from .encoding_elmo import WordEncoding, set_padding, wrap
from .splitting_elmo import split_text


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

# The id of the unknown word in a new vocabulary; an unknown word that is set later is an added token.
_UNKNOWN_ID = 3


class ElmoTokenizer(PreTrainedTokenizer):
    """Tokenizer that spells words in characters, for ELMo.

    Raw text is split Penn-Treebank style; with `is_split_into_words=True` each given word stays one token. A sentence
    becomes `<S> words </S>`, a pair `<S> a </S> <S> b </S>` with `token_type_ids`.

    Args:
        vocab_file: File of the word vocabulary, one word per line. The special words come first, whether or not the
            file has them, then the others in file order. Without a vocabulary every word is `<UNK>` in `input_ids`
            and exact in `char_ids`.
        vocab: The words themselves instead of a file.
        max_characters_per_token: Width of a word's row of characters, markers included; longer words are cut.
        characters: Dictionary of a model that spells words in Unicode characters (ELMoForManyLangs), in the order of
            their ids. By default words are spelled in UTF-8 bytes.
        lowercase_fallback: Whether a word outside the vocabulary gets the id of its lower-cased form, for lower-case
            word vectors.
        pad_token, bos_token, eos_token, unk_token: The special words, with ids 0, 1, 2 and 3.
    """

    vocab_files_names = {"vocab_file": "vocab.txt"}
    model_input_names = ["input_ids", "char_ids", "attention_mask"]

    def __init__(
        self,
        vocab_file: str | os.PathLike | None = None,
        vocab: Iterable[str] | None = None,
        max_characters_per_token: int = 50,
        characters: str | None = None,
        lowercase_fallback: bool = False,
        pad_token: str = "<pad>",
        bos_token: str = "<S>",
        eos_token: str = "</S>",
        unk_token: str = "<UNK>",
        **kwargs: Any,
    ) -> None:
        if vocab_file is not None and vocab is not None:
            raise ValueError("give `vocab_file` or `vocab`, not both")
        if isinstance(vocab, str):
            raise TypeError(
                f"`vocab` must be an iterable of words, got the str {vocab!r}; pass a file as `vocab_file`"
            )
        if max_characters_per_token < 3:
            raise ValueError(f"`max_characters_per_token` must be at least 3, got {max_characters_per_token}")
        self.max_characters_per_token = max_characters_per_token
        self.characters = characters
        self.lowercase_fallback = lowercase_fallback
        self._character_ids: dict[str, int] = {}
        if characters is not None:
            self._character_ids = _number(characters, "`characters`", first=FIRST_CHARACTER)
            kwargs["characters"] = characters  # saved only where there is a dictionary
        named = {"pad_token": pad_token, "bos_token": bos_token, "eos_token": eos_token, "unk_token": unk_token}
        for name, token in named.items():
            if not str(token or ""):
                raise ValueError(f"`{name}` must be a word, got {token!r}")
        # A saved tokenizer says which words its first ids are: a special word replaced since then has a later id.
        saved = kwargs.get("added_tokens_decoder", {})
        special = [str(saved.get(index, token)) for index, token in enumerate(named.values())]
        source = "the vocabulary"
        if vocab_file is not None:
            source = f"the vocabulary {os.fspath(vocab_file)}"
            vocab = _read_vocabulary(vocab_file)
        self._words = special + [word for word in vocab or () if word not in special]
        self._vocab = _number(self._words, source)
        for word in self._words:
            if not _fits_a_line(word):
                raise ValueError(f"{source} holds {word!r}; a word must fit on one line of the file")
        super().__init__(
            max_characters_per_token=max_characters_per_token,
            lowercase_fallback=lowercase_fallback,
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
        if max_size is not None and max_size < 4:
            raise ValueError(f"`max_size` must leave room for the 4 special words, got {max_size}")
        words = [word for word in counts if counts[word] >= min_count and _fits_a_line(word)]
        words.sort(key=lambda word: (-counts[word], word))
        tokenizer = cls(vocab=words, **kwargs)
        if max_size is not None and tokenizer.vocab_size > max_size:
            tokenizer = cls(vocab=tokenizer._words[:max_size], **kwargs)
        return tokenizer

    @property
    def is_fast(self) -> bool:
        """Return True, because encodings map tokens to words and characters, which is what callers check this for."""
        return True

    @property
    def _tokenizer(self) -> SimpleNamespace:
        """Tell the token-classification pipeline, which looks here, that every token is a whole word.

        Otherwise it would take a full stop for a part of the word before it.
        """
        return SimpleNamespace(model=SimpleNamespace(continuing_subword_prefix="##"))

    # Word vocabulary

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        return {**self._vocab, **self._added_tokens_encoder}

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int]:
        return self._ids_of([tokens])[0] if isinstance(tokens, str) else self._ids_of(tokens)

    def _ids_of(self, words: Iterable[str]) -> list[int]:
        vocab, added = self._vocab, self._added_tokens_encoder
        unknown = added.get(self.unk_token, _UNKNOWN_ID)
        if self.characters is not None:  # the original cuts a long word before it looks it up
            words = [word[: self.max_characters_per_token - 2] for word in words]
        if self.lowercase_fallback:
            return [added.get(word, vocab.get(word, vocab.get(word.lower(), unknown))) for word in words]
        return [added.get(word, vocab.get(word, unknown)) for word in words]

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

    @property
    def markers(self) -> Markers:
        return BYTE_MARKERS if self.characters is None else DICTIONARY_MARKERS

    def words_to_char_ids(self, words: Sequence[str]) -> np.ndarray:
        """Spell words as rows of character ids: (len(words), C), int64."""
        markers = self.markers
        rows = np.full((len(words), self.max_characters_per_token), markers.padding, dtype=np.int64)
        rows[:, 0] = markers.word_begin
        if self.characters is None:
            self._write_bytes(rows, words)
        else:
            self._write_characters(rows, words)
        sentence_markers = {self.bos_token: markers.sentence_begin, self.eos_token: markers.sentence_end}
        for index, word in enumerate(words):
            if word in sentence_markers:
                rows[index, 1:] = markers.padding
                rows[index, 1:3] = sentence_markers[word], markers.word_end
        return rows

    def _write_bytes(self, rows: np.ndarray, words: Sequence[str]) -> None:
        room = self.max_characters_per_token - 2
        # Lone surrogates have no UTF-8 and are dropped, as in the original.
        spelled = [word.encode("utf-8", "ignore")[:room] for word in words]
        lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
        letters = np.array(spelled, dtype=f"S{room}").view(np.uint8).reshape(len(spelled), room)
        np.add(letters, 1, out=rows[:, 1:-1], where=np.arange(room) < lengths[:, None], dtype=np.int64)
        rows[np.arange(len(spelled)), lengths + 1] = BYTE_MARKERS.word_end

    def _write_characters(self, rows: np.ndarray, words: Sequence[str]) -> None:
        room = self.max_characters_per_token - 2
        for row, word in zip(rows, words, strict=True):
            spelled = [self._character_ids.get(character, UNKNOWN_CHARACTER) for character in word[:room]]
            row[1 : len(spelled) + 2] = [*spelled, DICTIONARY_MARKERS.word_end]

    def is_cut(self, word: str) -> bool:
        """Return whether a word is too long to be spelled whole."""
        room = self.max_characters_per_token - 2
        if self.characters is not None:
            return len(word) > room
        # A character is at most four bytes, so few words need a closer look.
        return 4 * len(word) > room and len(word.encode("utf-8", "ignore")) > room

    def char_ids_to_word(self, row: Sequence[int]) -> str:
        """Return the word that a row of characters spells, as far as the row is wide and the dictionary has them."""
        if not any(row):
            return str(self.pad_token)
        if self.markers.sentence_begin in row:
            return str(self.bos_token)
        if self.markers.sentence_end in row:
            return str(self.eos_token)
        if self.characters is None:
            return bytes(c - 1 for c in row if 1 <= c <= 256).decode("utf-8", "ignore")
        alphabet = "\ufffd" + self.characters
        return "".join(alphabet[c - UNKNOWN_CHARACTER] for c in row if c >= UNKNOWN_CHARACTER)

    # Splitting

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        """Return the words of a text, without sentence markers."""
        # The base class searches the text for added words character by character.
        if not any(token in text for token in self._added_tokens_encoder):
            return split_text(text)
        return super().tokenize(text, **kwargs)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return split_text(text)

    def _words_of(self, source: Any, is_split_into_words: bool, split_special_tokens: bool) -> list[str]:
        """Return the words of a text, of a list of words or of a list of word ids."""
        if isinstance(source, str):
            if is_split_into_words:
                raise ValueError(f"`is_split_into_words=True` takes lists of words, got the str {source[:40]!r}")
            return self.tokenize(source, split_special_tokens=split_special_tokens)
        if not isinstance(source, (list, tuple)):
            raise TypeError(f"a sentence must be a str or a list of words, got a {type(source).__name__}")
        kinds = set(map(type, source))
        if all(issubclass(kind, str) for kind in kinds):
            return list(source)
        if all(issubclass(kind, (int, np.integer)) for kind in kinds):
            return self.convert_ids_to_tokens(source)
        wrong = [isinstance(word, str) for word in source].index(False)
        word = source[wrong]
        raise TypeError(f"word {wrong} of a sentence is {word!r}, a {type(word).__name__}; expected a str")

    # Encoding

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return wrap(_present(token_ids_0, token_ids_1), [self.bos_token_id], [self.eos_token_id])

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        if not already_has_special_tokens:
            return wrap([[0] * len(ids) for ids in _present(token_ids_0, token_ids_1)], [1], [1])
        mask = super().get_special_tokens_mask(token_ids_0, token_ids_1, already_has_special_tokens=True)
        # A word outside the vocabulary is still a word.
        unknown = self.unk_token_id
        return [int(flag and index != unknown) for flag, index in zip(mask, token_ids_0, strict=True)]

    def prepare_for_model(self, ids: list[int], pair_ids: list[int] | None = None, **kwargs: Any) -> BatchEncoding:
        """Wrap, truncate and pad one sequence or pair of word ids, spelling each word from the vocabulary."""
        prepend_batch_axis = kwargs.pop("prepend_batch_axis", False)
        return_tensors = kwargs.pop("return_tensors", None)
        pair_words = None if pair_ids is None else self.convert_ids_to_tokens(pair_ids)
        encoding = self(self.convert_ids_to_tokens(ids), pair_words, is_split_into_words=True, **kwargs)
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
        **kwargs: Any,
    ) -> BatchEncoding:
        if kwargs:
            raise TypeError(f"ElmoTokenizer does not know the argument `{next(iter(kwargs))}`")
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        is_batched, examples = _as_examples(text, text_pair, is_split_into_words)
        has_pairs = any(len(sources) == 2 for sources in examples)
        if has_pairs and return_overflowing_tokens and truncation_strategy == TruncationStrategy.LONGEST_FIRST:
            raise ValueError(
                "`return_overflowing_tokens=True` with pairs needs truncation='only_first' or 'only_second': "
                "'longest_first' cuts words of both sequences"
            )
        special = (str(self.bos_token), str(self.eos_token), str(self.pad_token))
        limit = None if truncation_strategy == TruncationStrategy.DO_NOT_TRUNCATE else max_length
        encodings = []
        for sources in examples:
            segments = [self._words_of(source, is_split_into_words, split_special_tokens) for source in sources]
            room = None if limit is None else limit - 2 * add_special_tokens * len(segments)
            kept = self._kept_words([len(words) for words in segments], room, truncation_strategy)
            encodings.append(WordEncoding(sources, segments, kept, special, add_special_tokens))
        if encodings:
            longest = max(encodings, key=len)
            self._eventual_warn_about_too_long_sequence(longest, max_length, verbose)
        side = padding_side or self.padding_side
        set_padding(encodings, padding_strategy, max_length, pad_to_multiple_of, side)

        data = self._look_up(encodings, as_lists=return_tensors is None)
        if return_attention_mask is False:
            del data["attention_mask"]
        if return_token_type_ids or (return_token_type_ids is None and has_pairs):
            data["token_type_ids"] = [encoding.token_types for encoding in encodings]
        if return_special_tokens_mask:
            data["special_tokens_mask"] = [encoding.special_tokens_mask for encoding in encodings]
        if return_offsets_mapping:
            data["offset_mapping"] = [encoding.offsets for encoding in encodings]
        if return_length:
            data["length"] = [len(encoding) for encoding in encodings]
        if return_overflowing_tokens and return_tensors is None:
            data["overflowing_tokens"] = [self._ids_of(encoding.overflow(stride)) for encoding in encodings]
            data["num_truncated_tokens"] = [encoding.num_truncated for encoding in encodings]
        if not is_batched and return_tensors is None:
            data = {key: value[0] for key, value in data.items()}
        return BatchEncoding(data, encodings, tensor_type=return_tensors)

    def _kept_words(self, lengths: list[int], room: int | None, strategy: TruncationStrategy) -> list[slice]:
        """Choose which words to keep of segments of these lengths so that at most `room` are left in all."""
        excess = 0 if room is None else max(sum(lengths) - room, 0)
        cuts = [excess, 0]
        if strategy == TruncationStrategy.ONLY_SECOND:
            cuts = [0, excess]
        elif strategy == TruncationStrategy.LONGEST_FIRST and len(lengths) == 2:
            # Cut the longer one to the length of the other, then both alike; an odd word is cut from the second.
            surplus = min(abs(lengths[0] - lengths[1]), excess)
            first = (excess - surplus) // 2
            if lengths[0] > lengths[1]:
                first += surplus
            cuts = [first, excess - first]
        kept = []
        for length, cut in zip(lengths, cuts, strict=False):
            cut = min(cut, length)
            kept.append(slice(0, length - cut) if self.truncation_side == "right" else slice(cut, length))
        return kept

    def _look_up(self, encodings: list[WordEncoding], as_lists: bool) -> dict[str, Any]:
        """Return the model's inputs, as one array each or as lists that may differ in length.

        Rows become indices into the distinct words of the call. So every word is spelled and looked up once, and each
        input of the whole batch is one gather.
        """
        rows = [encoding.row(encoding.segments, *encoding.special[:2], None) for encoding in encodings]
        distinct = dict.fromkeys(itertools.chain([None], *rows))  # None, the first, is padding
        words = list(distinct)[1:]
        positions = {word: position for position, word in enumerate(distinct)}
        table: Any = [[positions[word] for word in row] for row in rows]
        if not as_lists:
            width = max(map(len, rows), default=0)
            if any(len(row) != width for row in rows):
                raise ValueError(
                    "Unable to create tensor: the sequences differ in length. Activate padding with `padding=True` "
                    "and, where needed, truncation with `truncation=True`."
                )
            table = np.array(table, dtype=np.int64).reshape(len(rows), width)
        zeros = np.zeros((1, self.max_characters_per_token), dtype=np.int64)
        columns = {
            "input_ids": np.array([self.pad_token_id, *self._ids_of(words)], dtype=np.int64),
            "char_ids": np.concatenate([zeros, self.words_to_char_ids(words)]),
            "attention_mask": np.array([0] + [1] * len(words), dtype=np.int64),
        }
        if as_lists:
            return {name: [column[row].tolist() for row in table] for name, column in columns.items()}
        return {name: column[table] for name, column in columns.items()}

    def pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> BatchEncoding:
        """Pad as the base class does, `char_ids` and `offset_mapping` too, without changing what was passed."""
        inputs = dict(encoded_inputs) if isinstance(encoded_inputs, Mapping) else encoded_inputs
        batch = super().pad(inputs, *args, **kwargs)
        if isinstance(batch["input_ids"], list):
            for key in {"char_ids", "offset_mapping"} & set(batch):
                batch[key] = to_py_obj(batch[key])
        return batch

    def _pad(
        self,
        encoded_inputs: Any,
        max_length: int | None = None,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
    ) -> dict:
        side = padding_side or self.padding_side
        padded = super()._pad(
            encoded_inputs, max_length, padding_strategy, pad_to_multiple_of, side, return_attention_mask
        )
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


def _present(first: Any, second: Any) -> list:
    return [first] if second is None else [first, second]


def _as_examples(text: Any, text_pair: Any, is_split_into_words: bool) -> tuple[bool, list[list]]:
    """Return whether the input is a batch, and its examples: each a list of one or two sequences."""
    text, text_pair = _as_list(text), _as_list(text_pair)
    is_sequence = not isinstance(text, (list, tuple)) or _are_ids(text)
    if is_sequence or (is_split_into_words and (not text or isinstance(text[0], str))):
        return False, [_present(text, text_pair)]
    if text_pair is None:
        return True, [_as_example(_as_list(item), is_split_into_words) for item in text]
    if not isinstance(text_pair, (list, tuple)) or len(text_pair) != len(text):
        raise ValueError("`text_pair` must be a batch as long as `text`")
    return True, [_present(_as_list(first), _as_list(second)) for first, second in zip(text, text_pair, strict=True)]


def _as_example(item: Any, is_split_into_words: bool) -> list:
    """Return the sequences of an element of a batch. A pair is a 2-tuple; of texts, also a 2-list."""
    if not isinstance(item, (list, tuple)):
        return [item]
    if is_split_into_words:
        is_pair = isinstance(item, tuple) and len(item) == 2 and not any(isinstance(part, str) for part in item)
        return _present(_as_list(item[0]), _as_list(item[1])) if is_pair else [item]
    if _are_ids(item):
        return [item]
    if len(item) != 2:
        raise ValueError(
            f"an element of the batch holds {len(item)} sequences; expected a text or a pair. For sentences that are "
            "already split into words, pass `is_split_into_words=True`."
        )
    return _present(_as_list(item[0]), _as_list(item[1]))


def _are_ids(sequence: Sequence) -> bool:
    return len(sequence) > 0 and isinstance(sequence[0], (int, np.integer))


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


def _fits_a_line(word: str) -> bool:
    return bool(word) and "\n" not in word and "\r" not in word


def _read_vocabulary(path: str | os.PathLike) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig", errors="surrogatepass", newline="\n") as file:
            words = [line.rstrip("\r\n") for line in file]
    except UnicodeDecodeError as error:
        raise ValueError(f"the vocabulary {os.fspath(path)} is not UTF-8: {error}") from error
    if "" in words:
        raise ValueError(f"line {words.index('') + 1} of the vocabulary {os.fspath(path)} is empty")
    return words


ElmoTokenizer.register_for_auto_class()

__all__ = ["ElmoTokenizer"]
