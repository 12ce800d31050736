"""Read pretrained word vectors from text files: GloVe, fastText and word2vec.

A file is read once from beginning to end, and only the rows that the data needs are kept: 840B GloVe is 5 GB of text,
of which the words of a data set take some megabytes.

Shapes: N kept words, D values of a vector.
"""

import codecs
import contextlib
import gzip
import io
import lzma
import re
import struct
import zipfile
import zlib
from array import array
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from .files import ElmoError, StrPath, check_input_file, first_line

# The beginning of a file, which tells binary files from text.
HEAD_BYTES = 1 << 16
# Updating the progress bar for every line would take as long as reading.
LINES_PER_UPDATE = 1 << 13
# What damaged archives lead to, and those with a password or of a compression that Python does not know.
READING_ERRORS = (
    *(OSError, EOFError, RuntimeError, ValueError),
    *(struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile),
)
LARGEST_VALUE = torch.finfo(torch.float32).max
# More bytes are no word and its values.
LONGEST_LINE = 1 << 20
HEADER = re.compile(rb"\d{1,9} \d{1,9}")
ARCHIVE_MEMBER = re.compile(r"(.+\.zip):(.+)", re.IGNORECASE)
# Text has none of these bytes; float32 numbers soon do.
BINARY = re.compile(rb"[\x00-\x08]")


class WordVectors(NamedTuple):
    """The rows of a file that were kept, in its order, which is most frequent first."""

    words: list[str]
    vectors: Tensor  # (N, D), float32
    coverage: str  # how much of the data they cover, in a line


def load_word_vectors(path: StrPath, counts: Mapping[str, int], most_frequent: int = 0) -> WordVectors:
    """Read the vectors of the words that occur in the data, and of their lower-case forms: GloVe 6B has no others.

    Args:
        path: text with a word and its values on each line (`.txt`, `.vec`, or either as `.gz`), with or without a
            "COUNT DIM" line first; or a `.zip` with such a file. To choose one of several, write "a.zip:a.50d.txt".
        counts: the words of the data and how often they occur.
        most_frequent: how many rows from the beginning of the file to keep too, for words that appear later.
    """
    needed = set(counts)
    needed.update(word.lower() for word in counts)
    try:
        with (
            _open(path) as (stream, size),
            tqdm(desc="Reading word vectors", total=size, unit="B", unit_scale=True, disable=None) as bar,
        ):
            words, vectors = _read(str(path), stream, needed, most_frequent, bar)
    except ElmoError:
        raise
    except READING_ERRORS as error:
        raise ElmoError(f"{path}: cannot be read, is it damaged? ({first_line(error)})") from error
    return WordVectors(words, vectors, _describe_coverage(counts, set(words)))


def _read(
    name: str, stream: io.BufferedReader, needed: Container[str], most_frequent: int, bar: tqdm
) -> tuple[list[str], Tensor]:
    """Return the kept words and their vectors. Published files have a few lines without a word in UTF-8: left out."""
    if BINARY.search(stream.peek(HEAD_BYTES)):
        raise ElmoError(f"{name}: a binary file, which is not supported; save the vectors as text")
    words: dict[str, None] = {}
    values = array("f")
    dimension = rows = 0
    for number, line in _numbered_lines(name, stream, bar):
        if number == 1 and HEADER.fullmatch(line):
            dimension = int(line.split()[1])
            continue
        blanks = line.count(b" ")
        dimension = dimension or blanks
        if blanks != dimension or not blanks:
            _check_dimension(line, dimension, f"{name}, line {number}")
        rows += 1
        word = _decode_word(line, blanks, dimension)
        if word and word not in words and (word in needed or rows <= most_frequent):
            values.extend(_parse_values(line.rsplit(b" ", dimension)[1:], f"{name}, line {number}"))
            words[word] = None
    if not rows:
        raise ElmoError(f"{name}: the file is empty: it holds no vectors")
    # The tensor takes over the memory of the array; torch cannot do so for an empty one.
    vectors = torch.frombuffer(values, dtype=torch.float32) if words else torch.zeros(0)
    return list(words), vectors.view(-1, dimension)


def _numbered_lines(name: str, stream: io.BufferedReader, bar: tqdm) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not blank, without their ends: fastText leaves a blank after the last value."""
    read = number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ElmoError(f"{name}, line {number}: over {LONGEST_LINE:,} bytes, too long for a word and its vector")
        read += len(line)
        if number % LINES_PER_UPDATE == 0:
            bar.update(read)
            read = 0
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        stripped = line.rstrip(b" \r\n")
        if stripped:
            yield number, stripped
    bar.update(read)


def _decode_word(line: bytes, blanks: int, dimension: int) -> str:
    """Return the word of a line, which may hold blanks; empty if it is not UTF-8."""
    # The first split is several times as fast.
    word = line.split(b" ", 1)[0] if blanks == dimension else line.rsplit(b" ", dimension)[0]
    try:
        return word.decode()
    except UnicodeDecodeError:
        return ""


def _check_dimension(line: bytes, dimension: int, place: str) -> None:
    """Refuse a line without `dimension` values. More fields are fine where they belong to the word: 840B GloVe has
    words such as ". . ." and "at name@domain.com".
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
        values = [float(field) for field in fields]
    except ValueError as error:
        raise ElmoError(f"{place}: {error}") from error
    if not all(abs(value) <= LARGEST_VALUE for value in values):
        raise ElmoError(f"{place}: a value is not finite, or too large for float32")
    return values


@contextlib.contextmanager
def _open(path: StrPath) -> Iterator[tuple[io.BufferedReader, int | None]]:
    """Open a file, decompressed on the way. Yield its bytes and, if it is known, their number."""
    match = ARCHIVE_MEMBER.fullmatch(str(path))
    name, member = match.groups() if match else (path, None)
    file = Path(name)
    check_input_file(file)
    raw: Any
    size: int | None = file.stat().st_size
    with contextlib.ExitStack() as stack:
        if file.suffix.lower() == ".zip":
            archive = stack.enter_context(zipfile.ZipFile(file))
            info = _choose_member(file, archive, member)
            size = info.file_size
            raw = archive.open(info)
        elif file.suffix.lower() == ".gz":
            raw, size = stack.enter_context(gzip.open(file)), None
        else:
            raw = file.open("rb", buffering=0)
        # This finds lines in C, which the reader of a zip file does not.
        yield stack.enter_context(io.BufferedReader(raw, HEAD_BYTES)), size


def _choose_member(file: Path, archive: zipfile.ZipFile, member: str | None) -> zipfile.ZipInfo:
    texts = [info for info in archive.infolist() if info.filename.lower().endswith((".txt", ".vec"))]
    chosen = [info for info in texts if member in (None, info.filename)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(info.filename for info in texts) or "none"
    if member is not None:
        raise ElmoError(f"{file}: no member {member!r}; its text files are {names}")
    raise ElmoError(f'{file}: {len(texts)} text files ({names}); name one as "{file.name}:MEMBER"')


def _describe_coverage(counts: Mapping[str, int], known: Container[str]) -> str:
    exact, lowercase = [], []
    for word in counts:
        if word in known:
            exact.append(word)
        elif word.lower() in known:
            lowercase.append(word)
    covered = exact + lowercase
    occurrences = sum(counts.values())
    covered_occurrences = sum(counts[word] for word in covered)
    return (
        f"{_percent(len(covered), len(counts)):.1f} % of {len(counts):,} words have a vector "
        f"({_percent(covered_occurrences, occurrences):.1f} % of {occurrences:,} occurrences), "
        f"{_percent(len(lowercase), len(covered)):.0f} % of them by their lower-case form"
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / max(whole, 1)
