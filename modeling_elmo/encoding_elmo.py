"""One row of the tokenizer's output: its words, markers and padding, and where each token comes from."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers.utils import PaddingStrategy

from .splitting_elmo import Span, find_spans


def wrap(segments: Iterable[list], begin: list, end: list) -> list:
    """Join segments into one row, each between its markers."""
    row: list = []
    for segment in segments:
        row += [*begin, *segment, *end]
    return row


class Origin(NamedTuple):
    """Where a token comes from. Markers and padding have no word and no sequence."""

    word: int | None = None
    sequence: int | None = None
    chars: Span = (0, 0)


@dataclass
class WordEncoding:
    """One row of a `BatchEncoding`, which calls these methods for its `word_ids()`, `char_to_token()` and so on.

    Each token is one word. Origins are computed on first use, because most callers never ask for them.
    """

    sources: list[Any]  # the text, list of words or list of ids of each sequence
    segments: list[list[str]]  # the words of each sequence
    kept: list[slice]  # those left by truncation
    special: tuple[str, str, str]  # the words that begin, end and pad a row
    wraps: bool
    padding: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        """Return the number of tokens without padding."""
        return self.num_kept + 2 * self.wraps * self.n_sequences

    @functools.cached_property
    def num_kept(self) -> int:
        return sum(span.stop - span.start for span in self.kept)

    @property
    def n_sequences(self) -> int:
        return len(self.segments)

    def pad(self, row: list, value: Any) -> list:
        left, right = self.padding
        return [value] * left + row + [value] * right

    def row(self, columns: Iterable[list], begin: Any, end: Any, padding: Any) -> list:
        """Return what `columns` hold for the kept words, with values for the markers and the padding."""
        kept = [column[span] for column, span in zip(columns, self.kept, strict=True)]
        row = wrap(kept, [begin], [end]) if self.wraps else wrap(kept, [], [])
        return self.pad(row, padding)

    @property
    def num_truncated(self) -> int:
        return sum(map(len, self.segments)) - self.num_kept

    def overflow(self, stride: int) -> list[str]:
        """Return the words that were cut, with the `stride` words next to them."""
        words: list[str] = []
        for segment, span in zip(self.segments, self.kept, strict=True):
            if span.start > 0:
                words += segment[: span.start + stride]
            elif span.stop < len(segment):
                words += segment[max(span.stop - stride, 0) :]
        return words

    @property
    def token_types(self) -> list[int]:
        types: list[int] = []
        for index, span in enumerate(self.kept):
            types += [index] * (span.stop - span.start + 2 * self.wraps)
        return self.pad(types, 0)

    @property
    def special_tokens_mask(self) -> list[int]:
        return self.row([[0] * len(words) for words in self.segments], 1, 1, 1)

    @functools.cached_property
    def origins(self) -> list[Origin]:
        columns = []
        for sequence, (source, words) in enumerate(zip(self.sources, self.segments, strict=True)):
            spans = find_spans(source, words) if isinstance(source, str) else [(0, len(word)) for word in words]
            columns.append([Origin(word, sequence, span) for word, span in enumerate(spans)])
        return self.row(columns, Origin(), Origin(), Origin())

    @property
    def tokens(self) -> list[str]:
        return self.row(self.segments, *self.special)

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
            if origin.word == word and origin.sequence == sequence:
                return token, token + 1
        return None

    def word_to_chars(self, word: int, sequence: int = 0) -> Span | None:
        tokens = self.word_to_tokens(word, sequence)
        return None if tokens is None else self.origins[tokens[0]].chars

    def char_to_token(self, character: int, sequence: int = 0) -> int | None:
        for token, origin in enumerate(self.origins):
            start, end = origin.chars
            if origin.sequence == sequence and start <= character < end:
                return token
        return None

    def char_to_word(self, character: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(character, sequence)
        return None if token is None else self.origins[token].word


def set_padding(
    encodings: list[WordEncoding],
    strategy: PaddingStrategy,
    max_length: int | None,
    multiple: int | None,
    side: str,
) -> None:
    """Tell each encoding how many padding tokens it has on its left and on its right."""
    width = 0
    if strategy == PaddingStrategy.LONGEST:
        width = max(map(len, encodings), default=0)
    elif strategy == PaddingStrategy.MAX_LENGTH:
        width = max_length or 0
    if multiple is not None:
        width = -(-width // multiple) * multiple
    for encoding in encodings:
        missing = max(width - len(encoding), 0)
        encoding.padding = (0, missing) if side == "right" else (missing, 0)


__all__ = ["WordEncoding", "set_padding", "wrap"]
