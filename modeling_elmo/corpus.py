"""Read text: the sentences of files, of standard input, of a saved dataset or of one on the Hub.

Plain text is read here, so that it needs no other package. Everything else is read by `datasets`.
"""

import bz2
import gzip
import logging
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import ElmoError, file_digest, first_line, require
from .tokenization_elmo import ElmoTokenizer

STANDARD_INPUT = "-"
# The builder of `datasets` that reads a file, by the file's extension. A file with any other is plain text.
BUILDERS = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Both are written by `save_to_disk`.
SAVED_DATASET_FILES = ("dataset_info.json", "dataset_dict.json")

Row = str | list[str]


class TextLines:
    """The lines of text files or of standard input, as rows with one column. Only a newline ends a line."""

    column_names = ("text",)

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[dict[str, str]]:
        for file in self.files:
            for line in _read_lines(file):
                yield {"text": line}


def _read_lines(file: str) -> Iterator[str]:
    name = "standard input" if file == STANDARD_INPUT else file
    opener = OPENERS.get(Path(file).suffix.lower(), open)
    with nullcontext(sys.stdin.buffer) if file == STANDARD_INPUT else opener(file, "rb") as stream:
        number = 0
        try:
            for number, line in enumerate(stream, start=1):
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield line.decode(encoding).rstrip("\r\n")
        except UnicodeDecodeError as error:
            message = f"{name}: line {number} is not UTF-8: {error.reason} at byte {error.start}"
            raise ElmoError(message) from error


@dataclass
class Corpus:
    """Rows of text, and how they become sentences.

    Iterating over a corpus gives the value of each row: text, or a list of words.

    rows: a `Dataset`, an `IterableDataset` or `TextLines`.
    column: the column with the text: a str, or a list of words; of documents, also a list of sentences.
    tokenized: whether words are separated by whitespace; otherwise the tokenizer splits the text.
    documents: whether a row is a document, with one sentence per line, rather than a sentence.
    name: what error messages call the corpus.
    files: the files that the rows are read from, if any.
    """

    rows: Any
    column: str = "text"
    tokenized: bool = True
    documents: bool = False
    name: str = "the corpus"
    files: Sequence[str] = ()

    @property
    def is_stream(self) -> bool:
        return not isinstance(self.rows, Sized)

    @property
    def identity(self) -> dict[str, str] | None:
        """Digests that change when the corpus does, or None if it can be read only once."""
        if self.files:
            return {Path(file).name: file_digest(file) for file in self.files}
        fingerprint = getattr(self.rows, "_fingerprint", None)
        return {"fingerprint": fingerprint} if fingerprint else None

    def __iter__(self) -> Iterator[Row]:
        with _translate_errors(self.name):
            for number, row in enumerate(self.rows):
                value = row[self.column]
                if value is None:
                    value = ""  # rows keep their numbers
                if not isinstance(value, str) and not _is_word_list(value):
                    raise ElmoError(
                        f"{self.name}: row {number}: expected text or a list of words, got {str(value)[:40]!r}"
                    )
                yield value

    def sentences(self, value: Any, tokenizer: ElmoTokenizer) -> list[list[str]]:
        """Return the words of each sentence of a row, without empty sentences."""
        parts = [value]
        if self.documents:
            parts = value.splitlines() if isinstance(value, str) else value
        sentences = []
        for part in parts or ():
            if part is None:
                continue
            if isinstance(part, str):
                words = part.split() if self.tokenized else tokenizer.tokenize(part)
            elif _is_word_list(part):
                words = list(part)
            else:
                hint = "" if self.documents else " (rows that are documents need --documents)"
                kind = type(part).__name__
                raise ElmoError(f"column `{self.column}` holds a {kind}; expected text or a list of words{hint}")
            if words:
                sentences.append(words)
        return sentences


def _is_word_list(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(word, str) for word in value)


def open_corpus(
    source: str | Sequence[str],
    *,
    column: str | None = None,
    split: str | None = None,
    config_name: str | None = None,
    streaming: bool = False,
    tokenized: bool = True,
    documents: bool = False,
    as_dataset: bool = False,
) -> Corpus:
    """Open a corpus.

    Args:
        source: a file or a list of files of one format: text with one sentence per line, .jsonl, .csv, .tsv, .parquet
            or .arrow, each also compressed (.gz, .bz2, .xz); the folder of a saved dataset, or the name of one on the
            Hub; or `-`, standard input.
        column: the column with the text; by default `text`, or the only column.
        split: the split of a dataset; by default the only one.
        config_name: the configuration of a dataset on the Hub.
        streaming: whether to read rows as they are needed, instead of preparing them in the cache of `datasets`.
        tokenized, documents: as for [`Corpus`].
        as_dataset: whether the rows of plain text, too, must be a dataset that can be shuffled and indexed.
    """
    if source == STANDARD_INPUT:
        return Corpus(TextLines([STANDARD_INPUT]), "text", tokenized, documents, "standard input")
    rows: Any
    if isinstance(source, str) and not _names_a_file(source):
        with _translate_errors(f"{source}: neither a file nor a dataset that can be loaded"):
            rows = _load_dataset(source, config_name, split, streaming)
        column = _find_column(rows, column, source)
        return Corpus(rows.select_columns([column]), column, tokenized, documents, source)
    if isinstance(source, str) and split is not None:
        raise ElmoError(f"`--split` is for datasets, but {source} is a file")
    files = [source] if isinstance(source, str) else list(source)
    name = ", ".join(files)
    builder = _find_builder(files)
    if builder == "text" and not as_dataset:
        if column not in (None, "text"):
            raise ElmoError(f"`--column` is for tables and datasets, but {name} is a text file")
        return Corpus(TextLines(files), "text", tokenized, documents, name, files)
    with _translate_errors(f"{name}: cannot be read as {builder}"):
        rows = _load_files(files, builder, streaming)
    column = _find_column(rows, column, name)
    return Corpus(rows.select_columns([column]), column, tokenized, documents, name, files)


@contextmanager
def _translate_errors(prefix: str) -> Iterator[None]:
    """Raise errors of `datasets` and of what it reads files with as one-line errors."""
    try:
        yield
    except ElmoError:
        raise
    except (OSError, ValueError, KeyError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ElmoError(f"{prefix}: {first_line(error)}") from error


def _names_a_file(source: str) -> bool:
    """Return whether a source is a file, existing or not, rather than a dataset."""
    path = Path(source)
    if path.exists():
        return not path.is_dir()
    has_extension = path.suffix.lower() in (".txt", *BUILDERS, *OPENERS)
    return path.is_absolute() or source.count("/") > 1 or has_extension


def _find_builder(files: Sequence[str]) -> str:
    """Check that the files exist and are of one format, and return the name of that."""
    builders = set()
    for file in files:
        path = Path(file)
        if not path.exists():
            raise ElmoError(f"{file}: no such file")
        if not path.is_file():
            raise ElmoError(f"{file}: not a regular file; pass - to read from a pipe")
        if path.stat().st_size == 0:
            raise ElmoError(f"{file}: the file is empty")
        builders.add(BUILDERS.get(_extension(file), "text"))
    if len(builders) != 1:
        raise ElmoError(f"files of one corpus must be of one format, got {' and '.join(sorted(builders)) or 'none'}")
    return builders.pop()


def _extension(file: str) -> str:
    """Return a file's extension in lower case, without that of a compression."""
    path = Path(file)
    if path.suffix.lower() in OPENERS:
        path = path.with_suffix("")
    return path.suffix.lower()


def _load_files(files: Sequence[str], builder: str, streaming: bool) -> Any:
    datasets = require("datasets", "embed")
    # Its readers log the error that they raise, which would be reported twice.
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {}
    if builder == "text":
        options["encoding"] = "utf-8-sig"
    elif builder == "csv":
        options["encoding"] = "utf-8-sig"
        options["sep"] = "\t" if _extension(files[0]) == ".tsv" else ","
        options["index_col"] = False  # otherwise a surplus comma shifts the columns
        options["keep_default_na"] = False  # "None" and "NA" are words
        header = require("pandas", "embed").read_csv(files[0], nrows=0, **options)
        options["features"] = datasets.Features({name: datasets.Value("string") for name in header.columns})
    try:
        return _load(builder, data_files=list(files), split="train", streaming=streaming, **options)
    except UnicodeDecodeError:
        if builder == "text":
            for _ in TextLines(files):  # its error names the line
                pass
        raise


def _load(*arguments: Any, **options: Any) -> Any:
    """Call `load_dataset`, and raise the cause of an error rather than that there was one."""
    datasets = require("datasets", "embed")
    try:
        return datasets.load_dataset(*arguments, **options)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _load_dataset(name: str, config_name: str | None, split: str | None, streaming: bool) -> Any:
    if any(Path(name, file).is_file() for file in SAVED_DATASET_FILES):
        loaded = require("datasets", "embed").load_from_disk(name)
        if isinstance(loaded, dict) and split in loaded:
            loaded = loaded[split]
        if streaming and not isinstance(loaded, dict):
            loaded = loaded.to_iterable_dataset()
    else:
        loaded = _load(name, config_name, split=split, streaming=streaming)
    if not isinstance(loaded, dict):
        return loaded
    if split is None and len(loaded) == 1:
        return next(iter(loaded.values()))
    problem = "choose a split with --split" if split is None else f"no split {split!r}"
    raise ElmoError(f"{name}: {problem}; its splits are {', '.join(loaded)}")


def _find_column(rows: Any, column: str | None, name: str) -> str:
    names = rows.column_names
    if names is None:  # some streams do not know before they are read
        with _translate_errors(name):
            names = list(next(iter(rows), {}))
    listed = ", ".join(names) or "none"
    if column is None and "text" in names:
        return "text"
    if column is None and len(names) == 1:
        return names[0]
    if column is None:
        raise ElmoError(f"{name}: several columns; choose one with --column: {listed}")
    if column not in names:
        raise ElmoError(f"{name}: no column `{column}`; its columns are {listed}")
    return column


__all__ = ["Corpus", "TextLines", "open_corpus"]
