"""ElmoTokenizer: text or words -> `input_ids` (B, T), `char_ids` (B, T, C) and `attention_mask` (B, T).

B batch, T words, C characters a word (50). The biLM reads `char_ids`; `input_ids` index the tokenizer's word
vocabulary, if it has one, and keep collators, pipelines and `Trainer` working. Only a model with word embeddings of
its own reads them too.

A word's characters are its UTF-8 bytes, or the Unicode characters that a dictionary has, between a begin and an end
marker, padded to C. No character has the id 0: that is a padded word.
"""

import functools
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from transformers.tokenization_python import PreTrainedTokenizer
from transformers.tokenization_utils_base import BatchEncoding, TruncationStrategy
from transformers.utils import PaddingStrategy, TensorType, to_py_obj

from .splitting_elmo import Span, find_spans, split_text

# Character ids as the model sees them, the shift by one included: bytes are 1 to 256, a padded word is all 0.
SENTENCE_BEGIN = 257
SENTENCE_END = 258
WORD_BEGIN = 259
WORD_END = 260
CHARACTER_PADDING = 261


class Markers(NamedTuple):
    """The ids of what is no character of a word."""

    sentence_begin: int
    sentence_end: int
    word_begin: int
    word_end: int
    padding: int


BYTE_MARKERS = Markers(SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, CHARACTER_PADDING)
# With a dictionary the markers come first, and one character more: any that the dictionary lacks.
DICTIONARY_MARKERS = Markers(1, 2, 3, 4, 5)
UNKNOWN_CHARACTER = 6
FIRST_CHARACTER = 7

# The id of the first unknown word a vocabulary is made with; a later one is an added token.
_UNKNOWN_ID = 3


class WordEncoding:
    """Where the tokens of one row come from, as `BatchEncoding` asks for it: its `word_ids()`, `char_to_token()`, ...

    Tokens are words, so a token's word is its number in its text. Offsets are found when they are first asked for.
    """

    def __init__(self, sources: list[Any], segments: list[list[str]], kept: list[slice], wraps: bool) -> None:
        self.sources, self.segments, self.kept, self.wraps = sources, segments, kept, wraps
        self.n_sequences = len(segments)
        self._padding = (0, 0)
        self._special = ("", "", "")

    def padded(self, padding: tuple[int, int], special: tuple[str, str, str]) -> None:
        """Takes the padding tokens on the left and on the right, and the words that begin, end and pad a row."""
        self._padding, self._special = padding, special
        for name in ("offsets", "_word_ids", "_sequence_ids"):
            self.__dict__.pop(name, None)

    def _row(self, columns: Iterable[list], begin: Any, end: Any, padding: Any) -> list:
        markers = ([begin], [end]) if self.wraps else ([], [])
        row = _wrap((column[span] for column, span in zip(columns, self.kept, strict=True)), *markers)
        left, right = self._padding
        return [padding] * left + row + [padding] * right

    @property
    def tokens(self) -> list[str]:
        return self._row(self.segments, *self._special)

    @functools.cached_property
    def _word_ids(self) -> list[int | None]:
        return self._row([list(range(len(words))) for words in self.segments], None, None, None)

    @functools.cached_property
    def _sequence_ids(self) -> list[int | None]:
        return self._row([[index] * len(words) for index, words in enumerate(self.segments)], None, None, None)

    @property
    def word_ids(self) -> list[int | None]:
        return list(self._word_ids)

    @property
    def sequence_ids(self) -> list[int | None]:
        return list(self._sequence_ids)

    @functools.cached_property
    def offsets(self) -> list[Span]:
        spans = [find_spans(source, words) for source, words in zip(self.sources, self.segments, strict=True)]
        return self._row(spans, (0, 0), (0, 0), (0, 0))

    def token_to_sequence(self, token: int) -> int | None:
        return self._sequence_ids[token]

    def token_to_word(self, token: int) -> int | None:
        return self._word_ids[token]

    def token_to_chars(self, token: int) -> Span | None:
        return None if self._word_ids[token] is None else self.offsets[token]

    def word_to_tokens(self, word: int, sequence: int = 0) -> Span | None:
        places = zip(self._word_ids, self._sequence_ids, strict=True)
        found = next((token for token, place in enumerate(places) if place == (word, sequence)), None)
        return None if found is None else (found, found + 1)

    def word_to_chars(self, word: int, sequence: int = 0) -> Span | None:
        tokens = self.word_to_tokens(word, sequence)
        return None if tokens is None else self.offsets[tokens[0]]

    def char_to_token(self, character: int, sequence: int = 0) -> int | None:
        of_tokens = enumerate(zip(self.offsets, self._sequence_ids, strict=True))
        inside = (
            token for token, ((start, end), place) in of_tokens if place == sequence and start <= character < end
        )
        return next(inside, None)

    def char_to_word(self, character: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(character, sequence)
        return None if token is None else self._word_ids[token]


class ElmoTokenizer(PreTrainedTokenizer):
    r"""
    Words in characters, for ELMo.

    Raw text is split Penn-Treebank style; with `is_split_into_words=True` each given word stays one token. A sentence
    becomes `<S> words </S>`, a pair `<S> a </S> <S> b </S>` with `token_type_ids`.

    Args:
        vocab_file (`str`, *optional*):
            Word vocabulary, one word a line. The special words come first, whether or not the file has them, then the
            others in file order. Without a vocabulary every word is `<UNK>` in `input_ids` and exact in `char_ids`.
        vocab (`Iterable[str]`, *optional*):
            The same as words instead of a file.
        max_characters_per_token (`int`, *optional*, defaults to 50):
            Width of a word's row of characters, markers included; longer words are cut, as the original does.
        characters (`str`, *optional*):
            The dictionary of a model that spells words in Unicode characters (ELMoForManyLangs), in the order of
            their ids; by default words are spelled in UTF-8 bytes.
        lowercase_fallback (`bool`, *optional*, defaults to `False`):
            Whether a word outside the vocabulary has the id of its lower case, as suits vectors of lower-case words.
        pad_token, bos_token, eos_token, unk_token (`str`, *optional*):
            The special words, with ids 0, 1, 2 and 3.
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
            raise TypeError(f"`vocab` must be the words themselves, got the str {vocab!r}; a file is `vocab_file`")
        if max_characters_per_token < 3:
            raise ValueError(f"`max_characters_per_token` must be at least 3, got {max_characters_per_token}")
        self.max_characters_per_token = max_characters_per_token
        self.characters = characters
        self._character_ids = {
            character: index for index, character in enumerate(characters or "", start=FIRST_CHARACTER)
        }
        if characters is not None:
            if len(self._character_ids) != len(characters):
                repeated = next(character for character in characters if characters.count(character) > 1)
                raise ValueError(f"`characters` holds {repeated!r} twice")
            kwargs["characters"] = characters  # a key that a folder without a dictionary does not have
        self.lowercase_fallback = lowercase_fallback
        named = {"pad_token": pad_token, "bos_token": bos_token, "eos_token": eos_token, "unk_token": unk_token}
        if missing := [name for name, token in named.items() if not str(token or "")]:
            raise ValueError(f"`{missing[0]}` must be a word, got {named[missing[0]]!r}")
        # A saved tokenizer says which words its first ids are: a special word replaced since then has a later id.
        saved = kwargs.get("added_tokens_decoder", {})
        special = [str(saved.get(index, token)) for index, token in enumerate(named.values())]
        words = _read_vocabulary(vocab_file) if vocab_file is not None else vocab or ()
        self._words = [*special, *(word for word in words if word not in special)]
        self._vocab = {word: index for index, word in enumerate(self._words)}
        if len(self._vocab) != len(self._words):
            repeated = next(word for index, word in enumerate(self._words) if self._vocab[word] != index)
            raise ValueError(f"the vocabulary{_in_file(vocab_file)} holds {repeated!r} twice")
        if unfit := [word for word in self._words if not _fits_a_line(word)]:
            raise ValueError(f"the vocabulary holds {unfit[0]!r}: a word must fit a line of its file")
        super().__init__(
            max_characters_per_token=max_characters_per_token,
            lowercase_fallback=lowercase_fallback,
            pad_token=pad_token,
            bos_token=bos_token,
            eos_token=eos_token,
            unk_token=unk_token,
            **kwargs,
        )

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], min_count: int = 1, max_size: int | None = None, **kwargs: Any
    ) -> "ElmoTokenizer":
        """A tokenizer whose vocabulary is the words of `counts`, the most frequent first.

        Words seen fewer than `min_count` times are left out, and so is what exceeds `max_size` words, special ones
        included. Words of equal count are in alphabetical order, so that the same counts give the same ids.
        """
        if max_size is not None and max_size < 4:
            raise ValueError(f"`max_size` must leave room for the 4 special words, got {max_size}")
        kept = sorted(
            (word for word, count in counts.items() if count >= min_count and _fits_a_line(word)),
            key=lambda word: (-counts[word], word),
        )
        tokenizer = cls(vocab=kept, **kwargs)
        if max_size is not None and tokenizer.vocab_size > max_size:
            tokenizer = cls(vocab=tokenizer._words[:max_size], **kwargs)
        return tokenizer

    @property
    def is_fast(self) -> bool:
        """True: encodings say which word and which characters a token is, which is what this is asked for."""
        return True

    @property
    def _tokenizer(self) -> SimpleNamespace:
        """Where the token-classification pipeline looks for whether a token as long as its text is a whole word.

        Ours all are; else it would take a full stop for a part of the word before it.
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
        if self.characters is not None:  # the original looks a long word up as it spells it, cut
            words = [word[: self.max_characters_per_token - 2] for word in words]
        unknown = added.get(self.unk_token, _UNKNOWN_ID)
        if self.lowercase_fallback:
            return [added.get(word, vocab.get(word, vocab.get(word.lower(), unknown))) for word in words]
        return [added.get(word, vocab.get(word, unknown)) for word in words]

    def _convert_id_to_token(self, index: int) -> str:
        return self._words[index] if 0 <= index < len(self._words) else str(self.unk_token)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Writes `vocab.txt`, one word a line, the special words first."""
        name = self.vocab_files_names["vocab_file"]
        path = os.path.join(save_directory, f"{filename_prefix}-{name}" if filename_prefix else name)
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
            file.writelines(f"{word}\n" for word in self._words)
        return (path,)

    # Characters

    def words_to_char_ids(self, words: Sequence[str]) -> np.ndarray:
        """The rows of characters of some words: (len(words), C), int64."""
        rows = self._rows_of_bytes(words) if self.characters is None else self._rows_of_characters(words)
        markers = self.markers
        for token, marker in ((self.bos_token, markers.sentence_begin), (self.eos_token, markers.sentence_end)):
            for index in [index for index, word in enumerate(words) if word == token]:
                rows[index] = markers.padding
                rows[index, :3] = markers.word_begin, marker, markers.word_end
        return rows

    @property
    def markers(self) -> Markers:
        return BYTE_MARKERS if self.characters is None else DICTIONARY_MARKERS

    def is_cut(self, word: str) -> bool:
        """Whether a word is too long to be spelled whole."""
        room = self.max_characters_per_token - 2
        if self.characters is not None:
            return len(word) > room
        # A character is at most four bytes: few words need a closer look.
        return 4 * len(word) > room and len(word.encode("utf-8", "ignore")) > room

    def _rows_of_characters(self, words: Sequence[str]) -> np.ndarray:
        width, markers, ids = self.max_characters_per_token, DICTIONARY_MARKERS, self._character_ids
        rows = np.full((len(words), width), markers.padding, dtype=np.int64)
        for row, word in zip(rows, words, strict=True):
            spelled = [ids.get(character, UNKNOWN_CHARACTER) for character in word[: width - 2]]
            row[: len(spelled) + 2] = [markers.word_begin, *spelled, markers.word_end]
        return rows

    def _rows_of_bytes(self, words: Sequence[str]) -> np.ndarray:
        width = self.max_characters_per_token
        # Lone surrogates have no UTF-8 and are dropped, as the original does.
        spelled = [word.encode("utf-8", "ignore")[: width - 2] for word in words]
        lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
        letters = np.array(spelled, dtype=f"S{width - 2}").view(np.uint8).reshape(len(spelled), width - 2)
        rows = np.full((len(spelled), width), CHARACTER_PADDING, dtype=np.int64)
        rows[:, 0] = WORD_BEGIN
        np.add(letters, 1, out=rows[:, 1:-1], where=np.arange(width - 2) < lengths[:, None], dtype=np.int64)
        rows[np.arange(len(spelled)), lengths + 1] = WORD_END
        return rows

    def char_ids_to_word(self, row: Sequence[int]) -> str:
        """The word that a row of characters spells, as far as the row is wide and the dictionary, if any, has them."""
        if not any(row):
            return str(self.pad_token)
        if self.markers.sentence_begin in row:
            return str(self.bos_token)
        if self.markers.sentence_end in row:
            return str(self.eos_token)
        if self.characters is not None:
            return "".join(
                "\ufffd" if c == UNKNOWN_CHARACTER else self.characters[c - FIRST_CHARACTER]
                for c in row
                if c >= UNKNOWN_CHARACTER
            )
        return bytes(c - 1 for c in row if 1 <= c <= 256).decode("utf-8", "ignore")

    # Splitting

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        """The words of a text, without sentence markers."""
        split_special_tokens = kwargs.pop("split_special_tokens", self.split_special_tokens)
        if split_special_tokens or not any(token in text for token in self._added_tokens_encoder):
            return self._tokenize(text)
        return super().tokenize(text, split_special_tokens=False, **kwargs)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return split_text(text)

    def _words_of(self, sequence: Any, is_split_into_words: bool, split_special_tokens: bool) -> list[str]:
        """The words of a text, of a list of words or of a list of word ids."""
        if isinstance(sequence, str):
            if is_split_into_words:
                raise ValueError(f"`is_split_into_words=True` takes lists of words, got the str {sequence[:40]!r}")
            return self.tokenize(sequence, split_special_tokens=split_special_tokens)
        if not isinstance(sequence, (list, tuple)):
            raise TypeError(f"a sentence must be a str or a list of words, got a {type(sequence).__name__}")
        kinds = set(map(type, sequence))
        if kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds):
            return self.convert_ids_to_tokens(sequence)
        if not all(issubclass(kind, str) for kind in kinds):
            position, word = next((i, word) for i, word in enumerate(sequence) if not isinstance(word, str))
            raise TypeError(f"word {position} of a sentence is {word!r}, a {type(word).__name__}; expected a str")
        return list(sequence)

    # Encoding

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return 4 if pair else 2

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        wrapped = [self.bos_token_id, *token_ids_0, self.eos_token_id]
        if token_ids_1 is not None:
            wrapped += [self.bos_token_id, *token_ids_1, self.eos_token_id]
        return wrapped

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        if already_has_special_tokens:
            mask = super().get_special_tokens_mask(token_ids_0, token_ids_1, already_has_special_tokens=True)
            # A word outside the vocabulary is a word all the same.
            unknown = self.unk_token_id
            return [int(flag and index != unknown) for flag, index in zip(mask, token_ids_0, strict=True)]
        mask = [1, *[0] * len(token_ids_0), 1]
        if token_ids_1 is not None:
            mask += [1, *[0] * len(token_ids_1), 1]
        return mask

    def prepare_for_model(self, ids: list[int], pair_ids: list[int] | None = None, **kwargs: Any) -> BatchEncoding:
        """Wraps, truncates and pads one sequence or pair of word ids, spelling each word from the vocabulary."""
        prepend_batch_axis = kwargs.pop("prepend_batch_axis", False)
        return_tensors = kwargs.pop("return_tensors", None)
        words = self.convert_ids_to_tokens(ids)
        pair_words = None if pair_ids is None else self.convert_ids_to_tokens(pair_ids)
        encoding = self(words, pair_words, is_split_into_words=True, **kwargs)
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
        has_pairs = any(pair is not None for _, pair in examples)
        if return_token_type_ids is None:
            return_token_type_ids = has_pairs
        if has_pairs and return_overflowing_tokens and truncation_strategy == TruncationStrategy.LONGEST_FIRST:
            raise ValueError(
                "`return_overflowing_tokens=True` with pairs needs truncation='only_first' or 'only_second': "
                "'longest_first' cuts words of both sequences"
            )

        # Rows of words, and beside them only the columns that were asked for.
        begin, end = ([str(self.bos_token)], [str(self.eos_token)]) if add_special_tokens else ([], [])
        rows: list[list[str]] = []
        encodings: list[WordEncoding] = []
        columns: dict[str, list[list]] = {"offset_mapping": [], "special_tokens_mask": [], "token_type_ids": []}
        overflowing: dict[str, list] = {"overflowing_tokens": [], "num_truncated_tokens": []}
        for first, second in examples:
            parts = [first] if second is None else [first, second]
            segments = [self._words_of(part, is_split_into_words, split_special_tokens) for part in parts]
            kept = [slice(0, len(words)) for words in segments]
            if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
                room = max_length - len(begin + end) * len(segments)
                kept = self._kept_words([len(words) for words in segments], room, truncation_strategy)
            words = [segment[span] for segment, span in zip(segments, kept, strict=True)]
            rows.append(_wrap(words, begin, end))
            encodings.append(WordEncoding(parts, segments, kept, add_special_tokens))
            if return_offsets_mapping:
                columns["offset_mapping"].append(encodings[-1].offsets)
            if return_special_tokens_mask:
                ordinary = [[0] * len(segment) for segment in words]
                columns["special_tokens_mask"].append(_wrap(ordinary, [1] * len(begin), [1] * len(end)))
            if return_token_type_ids:
                lengths = [len(begin) + len(segment) + len(end) for segment in words]
                columns["token_type_ids"].append([index for index, n in enumerate(lengths) for _ in range(n)])
            if return_overflowing_tokens:
                cut = [_overflow(segment, span, stride) for segment, span in zip(segments, kept, strict=True)]
                overflowing["overflowing_tokens"].append(self._ids_of(_wrap(cut, [], [])))
                overflowing["num_truncated_tokens"].append(sum(map(len, segments)) - sum(map(len, words)))
        if rows:
            self._eventual_warn_about_too_long_sequence(max(rows, key=len), max_length, verbose)

        width = 0
        if padding_strategy == PaddingStrategy.LONGEST:
            width = max(map(len, rows), default=0)
        elif padding_strategy == PaddingStrategy.MAX_LENGTH:
            width = max_length or 0
        if pad_to_multiple_of is not None:
            width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
        fills = [max(width - len(row), 0) for row in rows]
        side = padding_side or self.padding_side
        special = (str(self.bos_token), str(self.eos_token), str(self.pad_token))

        def padded(column: Iterable[list], value: Any) -> list[list]:
            if side == "right":
                return [row + [value] * fill for row, fill in zip(column, fills, strict=True)]
            return [[value] * fill + row for row, fill in zip(column, fills, strict=True)]

        # A row becomes indices into the distinct words of the call and one word of zeros more, for padding. So every
        # word is spelled and looked up once, and a whole batch is one gather.
        distinct = {word: index for index, word in enumerate(dict.fromkeys(itertools.chain.from_iterable(rows)))}
        word_ids = np.array([*self._ids_of(distinct), self.pad_token_id], dtype=np.int64)
        zeros = np.zeros((1, self.max_characters_per_token), dtype=np.int64)
        char_ids = np.concatenate([self.words_to_char_ids(list(distinct)), zeros])
        indices = padded(([distinct[word] for word in row] for row in rows), len(distinct))

        data: dict[str, Any]
        if return_tensors is None:
            data = {
                "input_ids": [word_ids[row].tolist() for row in indices],
                "char_ids": [char_ids[row].tolist() for row in indices],
                "attention_mask": padded(([1] * len(row) for row in rows), 0),
            }
        else:
            if len(set(map(len, indices))) > 1:
                raise ValueError(
                    "Unable to create tensor: the sequences differ in length. Activate padding with `padding=True` "
                    "and, where needed, truncation with `truncation=True`."
                )
            table = np.array(indices, dtype=np.int64).reshape(len(indices), max(map(len, indices), default=0))
            mask = (table != len(distinct)).astype(np.int64)
            data = {"input_ids": word_ids[table], "char_ids": char_ids[table], "attention_mask": mask}
        if return_attention_mask is False:
            del data["attention_mask"]
        if return_token_type_ids:
            data["token_type_ids"] = padded(columns["token_type_ids"], self.pad_token_type_id)
        if return_special_tokens_mask:
            data["special_tokens_mask"] = padded(columns["special_tokens_mask"], 1)
        if return_offsets_mapping:
            data["offset_mapping"] = padded(columns["offset_mapping"], (0, 0))
        if return_length:
            data["length"] = [len(row) for row in rows]
        if return_overflowing_tokens and return_tensors is None:
            data.update(overflowing)
        for encoding, fill in zip(encodings, fills, strict=True):
            encoding.padded((0, fill) if side == "right" else (fill, 0), special)
        if not is_batched and return_tensors is None:
            data = {key: value[0] for key, value in data.items()}
        return BatchEncoding(data, encodings, tensor_type=return_tensors)

    def _kept_words(self, lengths: list[int], room: int, strategy: TruncationStrategy) -> list[slice]:
        """What to keep of segments of these lengths so that `room` words are left."""
        excess = max(sum(lengths) - room, 0)
        cuts = [excess, 0]
        if strategy == TruncationStrategy.ONLY_SECOND:
            cuts = [0, excess]
        elif strategy == TruncationStrategy.LONGEST_FIRST and len(lengths) == 2:
            # First what one is longer by, then of both alike; of an odd number the second loses one more.
            surplus = min(abs(lengths[0] - lengths[1]), excess)
            first = (excess - surplus) // 2 + (surplus if lengths[0] > lengths[1] else 0)
            cuts = [first, excess - first]
        if self.truncation_side == "right":
            return [slice(0, max(length - cut, 0)) for length, cut in zip(lengths, cuts, strict=False)]
        return [slice(min(cut, length), length) for length, cut in zip(lengths, cuts, strict=False)]

    def pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> BatchEncoding:
        """As the base class pads, with characters and offsets of zero, and what was passed left as it was."""
        inputs = dict(encoded_inputs) if isinstance(encoded_inputs, Mapping) else encoded_inputs
        batch = super().pad(inputs, *args, **kwargs)
        if isinstance(batch["input_ids"], list):
            batch.update({key: to_py_obj(batch[key]) for key in ("char_ids", "offset_mapping") if key in batch})
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
        encoded_inputs = super()._pad(
            encoded_inputs, max_length, padding_strategy, pad_to_multiple_of, padding_side, return_attention_mask
        )
        for key, width in (("char_ids", self.max_characters_per_token), ("offset_mapping", 2)):
            if key in encoded_inputs:
                # An array, because a batch of arrays becomes a tensor many times faster than lists of lists of lists.
                rows = np.array(encoded_inputs[key], dtype=np.int64).reshape(-1, width)
                fill = np.zeros((len(encoded_inputs["input_ids"]) - len(rows), width), dtype=np.int64)
                side = padding_side or self.padding_side
                encoded_inputs[key] = np.concatenate([rows, fill] if side == "right" else [fill, rows])
        return encoded_inputs

    # Decoding

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, char_ids: Any = None, **kwargs: Any
    ) -> str | list[str]:
        """The words of one sequence, or of each of a batch, joined by blanks.

        With `char_ids` every word comes back as it was spelled; without, words outside the vocabulary are `<UNK>`.
        """
        token_ids, char_ids = to_py_obj(token_ids), to_py_obj(char_ids)
        if char_ids is None:
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens, **kwargs)
        clean_up = kwargs.pop("clean_up_tokenization_spaces", None)
        if clean_up is None:
            clean_up = self.clean_up_tokenization_spaces
        if token_ids and isinstance(token_ids[0], (list, tuple)):
            pairs = zip(token_ids, char_ids, strict=True)
            return [self._decode_rows(ids, rows, skip_special_tokens, clean_up) for ids, rows in pairs]
        return self._decode_rows(token_ids, char_ids, skip_special_tokens, clean_up)

    def _decode_rows(self, ids: list[int], rows: list[list[int]], skip_special_tokens: bool, clean_up: bool) -> str:
        special = self.get_special_tokens_mask(ids, already_has_special_tokens=True)
        kept = [row for row, skip in zip(rows, special, strict=True) if not (skip and skip_special_tokens)]
        text = self.convert_tokens_to_string([self.char_ids_to_word(row) for row in kept])
        return self.clean_up_tokenization(text) if clean_up else text


def _wrap(segments: Iterable[list], begin: list, end: list) -> list:
    """One row of the segments, each between its markers."""
    return [item for segment in segments for item in (*begin, *segment, *end)]


def _overflow(words: list[str], kept: slice, stride: int) -> list[str]:
    """The words that are not kept, with the `stride` words next to them."""
    if kept.start > 0:
        return words[: kept.start + stride]
    return words[max(kept.stop - stride, 0) :] if kept.stop < len(words) else []


def _as_examples(text: Any, text_pair: Any, is_split_into_words: bool) -> tuple[bool, list[tuple[Any, Any]]]:
    """Whether the input is a batch, and its (sequence, second sequence or None) pairs."""
    text, text_pair = _as_list(text), _as_list(text_pair)
    if isinstance(text, str):
        return False, [(text, text_pair)]
    if not isinstance(text, (list, tuple)):
        raise TypeError(f"`text` must be a str, a list of words or a batch of them, got a {type(text).__name__}")
    nested = bool(text) and not isinstance(text[0], (str, int, np.integer))
    single_ids = bool(text) and isinstance(text[0], (int, np.integer))
    if single_ids or (is_split_into_words and not nested):
        return False, [(text, text_pair)]
    if text_pair is not None:
        if not isinstance(text_pair, (list, tuple)) or len(text_pair) != len(text):
            raise ValueError("`text_pair` must be a batch as long as `text`")
        return True, list(zip(map(_as_list, text), map(_as_list, text_pair), strict=True))
    return True, [_as_pair(_as_list(item), is_split_into_words) for item in text]


def _as_pair(item: Any, is_split_into_words: bool) -> tuple[Any, Any]:
    """An element of a batch: a sequence, or a pair of sequences as a 2-tuple (for texts, also a 2-list)."""
    if isinstance(item, str) or (is_split_into_words and not isinstance(item, tuple)):
        return item, None
    if not isinstance(item, (list, tuple)):
        raise TypeError(f"an element of the batch is a {type(item).__name__}; expected a str or a list of words")
    if is_split_into_words:
        is_pair = len(item) == 2 and not any(isinstance(part, str) for part in item)
        return (_as_list(item[0]), _as_list(item[1])) if is_pair else (item, None)
    if item and isinstance(item[0], (int, np.integer)):
        return item, None
    if len(item) != 2:
        raise ValueError(
            f"an element of the batch holds {len(item)} sequences; expected a text or a pair. For sentences that are "
            "already split into words, pass `is_split_into_words=True`."
        )
    return _as_list(item[0]), _as_list(item[1])


def _as_list(value: Any) -> Any:
    """Columns of `datasets`, arrays and the like as plain lists; what is plain already as it is."""
    if isinstance(value, (str, bytes, list, tuple, Mapping)) or not isinstance(value, Iterable):
        return value
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _fits_a_line(word: str) -> bool:
    return bool(word) and "\n" not in word and "\r" not in word


def _in_file(path: str | os.PathLike | None) -> str:
    return "" if path is None else f" {os.fspath(path)}"


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
