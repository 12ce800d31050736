"""Pretrained word vectors from text files: GloVe, fastText and word2vec.

A file is read once, from its beginning to its end, and only the rows that the data needs are kept: 840B GloVe is 5 GB
of text, of which a data set's words take some megabytes.

Shapes: N kept words, D values of a vector.
"""

import contextlib
import gzip
import io
import os
import re
import zipfile
import zlib
from array import array
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from .files import ElmoError

# What is looked at to tell binary files from text.
_HEAD_BYTES = 1 << 16
# Lines between two updates of the progress bar, which would otherwise take as long as the reading.
_LINES_AN_UPDATE = 1 << 13
_HEADER = re.compile(rb"\d+ \d+")
_ARCHIVE_MEMBER = re.compile(r"(.+\.zip):(.+)", re.IGNORECASE)
# Text has none of these bytes; float32 numbers soon do.
_BINARY = re.compile(rb"[\x00-\x08]")

PathLike = str | os.PathLike[str]


class Coverage(NamedTuple):
    """How much of the data has a vector, in distinct words and in occurrences."""

    exact_words: int
    lowercase_words: int  # by their lower-case form only
    missing_words: int
    exact_occurrences: int
    lowercase_occurrences: int
    missing_occurrences: int

    def __str__(self) -> str:
        found_words = self.exact_words + self.lowercase_words
        found_occurrences = self.exact_occurrences + self.lowercase_occurrences
        words, occurrences = found_words + self.missing_words, found_occurrences + self.missing_occurrences
        return (
            f"{_percent(found_words, words):.1f} % of {words:,} words have a vector "
            f"({_percent(found_occurrences, occurrences):.1f} % of {occurrences:,} occurrences), "
            f"{_percent(self.lowercase_words, found_words):.0f} % of them by their lower-case form"
        )


@dataclass
class WordVectors:
    """The rows of a file that were kept.

    words: N words in the order of the file, which is the most frequent first.
    vectors: (N, D), float32.
    coverage: how much of the data they cover.
    skipped: lines whose word is empty or no UTF-8; published files have a few.
    """

    words: list[str]
    vectors: Tensor
    coverage: Coverage
    skipped: int = 0


def load_word_vectors(
    path: PathLike,
    counts: Mapping[str, int],
    most_frequent: int = 0,
    lowercase_fallback: bool = True,
    progress: bool = True,
) -> WordVectors:
    """The vectors of the words that the data has.

    Args:
        path: text with a word and its values a line (`.txt`, `.vec`, or either as `.gz`), with or without a
            "COUNT DIM" line first; or a `.zip` with such a file. Of several name one, as in "a.zip:a.50d.txt".
        counts: the words of the data and how often they occur.
        most_frequent: so many rows from the beginning of the file are kept too, for words that are met later.
        lowercase_fallback: whether to keep the vectors of the words' lower-case forms too. GloVe 6B has no others.
        progress: whether to show a progress bar, where there is a terminal.
    """
    if most_frequent < 0:
        raise ElmoError(f"`most_frequent` must be 0 or more, got {most_frequent}")
    wanted = set(counts)
    if lowercase_fallback:
        wanted.update(word.lower() for word in counts)
    try:
        with _open(path) as (stream, size):
            bar = tqdm(
                desc="Reading word vectors", total=size, unit="B", unit_scale=True, disable=None if progress else True
            )
            with bar:
                words, vectors, skipped = _read(str(path), stream, wanted, most_frequent, bar)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ElmoError(f"{path}: cannot be read, is it damaged? ({_one_line(error)})") from error
    return WordVectors(words, vectors, _measure(counts, set(words), lowercase_fallback), skipped)


def _read(
    name: str, stream: io.BufferedReader, wanted: Container[str], most_frequent: int, bar: tqdm
) -> tuple[list[str], Tensor, int]:
    """The kept words, their vectors and the number of lines that were skipped."""
    if _BINARY.search(stream.peek(_HEAD_BYTES)):
        raise ElmoError(f"{name}: a binary file, which is not supported; save the vectors as text")
    words: dict[str, None] = {}
    values, lines = array("f"), array("q")
    dimension = rows = skipped = 0
    for number, line in _numbered_lines(stream, bar):
        if number == 1 and _HEADER.fullmatch(line):
            dimension = int(line.split()[1])
            continue
        blanks = line.count(b" ")
        dimension = dimension or blanks
        if blanks != dimension or not blanks:
            _check_dimension(line, dimension, f"{name}, line {number}")
        rows += 1
        spelled = line.split(b" ", 1)[0] if blanks == dimension else line.rsplit(b" ", dimension)[0]
        try:
            word = spelled.decode()
        except UnicodeDecodeError:
            word = ""
        if not word:
            skipped += 1
        elif (word in wanted or rows <= most_frequent) and word not in words:
            values.extend(_parse_values(line.rsplit(b" ", dimension)[1:], f"{name}, line {number}"))
            words[word] = None
            lines.append(number)
    if not rows:
        raise ElmoError(f"{name}: the file is empty: it holds no vectors")
    # The tensor takes over the array's memory; of an empty one torch makes none.
    vectors = (torch.frombuffer(values, dtype=torch.float32) if words else torch.zeros(0)).view(-1, dimension)
    wrong = (~vectors.isfinite()).any(dim=1).nonzero()
    if len(wrong):
        raise ElmoError(f"{name}, line {lines[int(wrong[0])]}: a value is not finite, or too large for float32")
    return list(words), vectors, skipped


def _numbered_lines(stream: io.BufferedReader, bar: tqdm) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, without what ends them: fastText leaves a blank after the last value."""
    read = 0
    for number, line in enumerate(stream, start=1):
        read += len(line)
        if number % _LINES_AN_UPDATE == 0:
            bar.update(read)
            read = 0
        if line := line.rstrip(b" \r\n"):
            yield number, line
    bar.update(read)


def _check_dimension(line: bytes, dimension: int, place: str) -> None:
    """Refuses a line that has not `dimension` values. More fields are fine where they belong to the word: 840B GloVe
    has words such as ". . ." and "at name@domain.com".
    """
    fields = line.split(b" ")
    if len(fields) < 2:
        raise ElmoError(f"{place}: no values; expected a word and its vector, separated by blanks")
    surplus = fields[1:-dimension]
    if len(fields) <= dimension or all(map(_is_number, surplus)):
        raise ElmoError(f"{place}: {len(fields) - 1} values where {dimension} are expected, as the file begins")


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _parse_values(fields: list[bytes], place: str) -> list[float]:
    try:
        return [float(field) for field in fields]
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field))
        raise ElmoError(f"{place}: {wrong.decode(errors='replace')!r} is not a number") from None


@contextlib.contextmanager
def _open(path: PathLike) -> Iterator[tuple[io.BufferedReader, int | None]]:
    """The bytes of a file's text, decompressed on the way, and their number where it is known."""
    match = _ARCHIVE_MEMBER.fullmatch(str(path))
    file, member = (Path(match[1]), match[2]) if match else (Path(path), None)
    suffix = file.suffix.lower()
    if not file.is_file():
        raise ElmoError(f"{file}: no such file")
    if suffix == ".bin":
        raise ElmoError(f"{file}: a binary file, which is not supported; save the vectors as text")
    with contextlib.ExitStack() as stack:
        raw: BinaryIO | gzip.GzipFile
        size: int | None = file.stat().st_size
        if suffix == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(file))
            info = _choose_member(file, archive, member)
            raw, size = stack.enter_context(_open_member(file, archive, info)), info.file_size
        elif suffix == ".gz":
            raw, size = stack.enter_context(gzip.open(file)), None
        else:
            raw = stack.enter_context(file.open("rb", buffering=0))
        # Lines are found in C, which a zip's own reader does not do.
        yield io.BufferedReader(raw, _HEAD_BYTES), size  # type: ignore[arg-type]


def _choose_member(file: Path, archive: zipfile.ZipFile, member: str | None) -> zipfile.ZipInfo:
    texts = [info for info in archive.infolist() if info.filename.lower().endswith((".txt", ".vec"))]
    chosen = [info for info in texts if member in (None, info.filename)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(info.filename for info in texts) or "none"
    if member is not None:
        raise ElmoError(f"{file}: no member {member!r}; its text files are {names}")
    raise ElmoError(f'{file}: {len(texts)} text files ({names}); name one as "{file.name}:MEMBER"')


def _open_member(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> BinaryIO:
    try:
        return archive.open(info)  # type: ignore[return-value]
    except RuntimeError as error:  # a password, or a compression that Python does not know
        raise ElmoError(f"{file}: {_one_line(error)}") from error


def _measure(counts: Mapping[str, int], known: Container[str], lowercase_fallback: bool) -> Coverage:
    words, occurrences = [0, 0, 0], [0, 0, 0]  # exact, by lower case, missing
    for word, count in counts.items():
        kind = 0 if word in known else 1 if lowercase_fallback and word.lower() in known else 2
        words[kind] += 1
        occurrences[kind] += count
    return Coverage(*words, *occurrences)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
