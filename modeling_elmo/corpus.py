"""Read text: the sentences of files, of standard input, of a saved dataset or of one on the Hub.

Plain text is read here, so that it needs no other package. Everything else is read by `datasets`.
"""

import bz2
import gzip
import itertools
import logging
import lzma
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from .files import ElmoError, check_input_file, file_digest, first_line, require
from .tokenization_elmo import ElmoTokenizer

STANDARD_INPUT = "-"
# The builder of `datasets` that reads a file, by the file's extension. A file with any other is plain text.
BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Bytes of the longest line. SQuAD 2.0 is one of 42 MB; a small compressed file can hold one of any size.
LONGEST_LINE = 1 << 26
BLOCK = 1 << 20
# Names of pipes that are open already, such as those of process substitution.
OPEN_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
# Both are written by `save_to_disk`.
SAVED_DATASET_FILES = ("dataset_info.json", "dataset_dict.json")
# Rows by which text is judged before it is used.
JUDGED_ROWS = 200
# Text looks raw if more of its words end in punctuation: up to 0.6 % do in split text, from 6 % on in raw text.
SPLIT_PUNCTUATION = 0.03
# The share of words in another Unicode form from which on a text is in that form.
OTHER_FORM = 0.02

Row = str | list[str]


class TextLines:
    """The lines of text files or of standard input, as rows with one column. Only a newline ends a line."""

    column_names = ("text",)

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[dict[str, str]]:
        for text in self._texts():
            yield {"text": text}

    def _texts(self) -> Iterator[str]:
        for file in self.files:
            if file == STANDARD_INPUT:
                yield from decode_lines(sys.stdin.buffer, "standard input")
                continue
            if not file.startswith(OPEN_PIPES):
                check_input_file(file)
            with open_file(file) as stream:
                yield from decode_lines(stream, file)


def open_file(file: str) -> Any:
    """Open a file to read its bytes, decompressed by its extension."""
    opener = OPENERS.get(Path(file).suffix.lower(), open)
    return opener(file, "rb")


def decode_lines(stream: BinaryIO, name: object) -> Iterator[str]:
    """Yield the lines of UTF-8 text without their ends; the error about others names the line."""
    encoding = "utf-8-sig"  # of the first line
    for number in itertools.count(1):
        line = stream.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise ElmoError(_too_long(name, number))
        try:
            yield line.decode(encoding).rstrip("\r\n")
        except UnicodeDecodeError as error:
            message = f"{name}: line {number} is not UTF-8: {error.reason} at byte {error.start}"
            raise ElmoError(message) from error
        encoding = "utf-8"


def check_lines(file: str) -> None:
    """Refuse a line that is too long, without reading it whole, and a compressed file with nothing inside."""
    is_compressed = Path(file).suffix.lower() in OPENERS
    if not is_compressed and os.path.getsize(file) <= LONGEST_LINE:
        return
    number, length = 1, 0
    with open_file(file) as stream:
        if not stream.peek(1):
            raise ElmoError(f"{file}: the file is empty")
        while block := stream.read(BLOCK):
            end = block.find(b"\n")
            length += len(block) if end < 0 else end
            if length > LONGEST_LINE:
                raise ElmoError(_too_long(file, number))
            if end >= 0:
                number += block.count(b"\n")
                length = len(block) - block.rfind(b"\n") - 1


def _too_long(name: object, number: int) -> str:
    return f"{name}: line {number} has over {LONGEST_LINE:,} bytes"


@dataclass
class Corpus:
    """Rows of text, and how they become sentences. Iterating gives the value of each row: text, or a list of words."""

    rows: Any  # a `Dataset`, an `IterableDataset` or `TextLines`
    column: str = "text"  # with text or lists of words; of documents, also lists of sentences
    # Whether words are separated by whitespace; otherwise the tokenizer splits the text. None: as for training.
    tokenized: bool | None = None
    documents: bool = False  # whether a row is a document, with one sentence per line, rather than a sentence
    name: str = "the corpus"  # in error messages
    files: Sequence[str] = ()  # that the rows are read from, if any

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
        with translate_errors(self.name, self.files):
            for number, row in enumerate(self.rows):
                value = "" if row[self.column] is None else row[self.column]  # rows keep their numbers
                if not _is_text_or_words(value):
                    found = str(value)[:40]
                    raise ElmoError(f"{self.name}: row {number}: expected text or a list of words, got {found!r}")
                yield value

    def is_tokenized(self, tokenizer: ElmoTokenizer) -> bool:
        """Return whether text is split at whitespace alone."""
        return is_tokenized(tokenizer, self.tokenized)

    def words(self, row: Row, tokenizer: ElmoTokenizer) -> list[str]:
        """Return the words of a sentence."""
        if not isinstance(row, str):
            return list(row)
        return row.split() if self.is_tokenized(tokenizer) else tokenizer.tokenize(row)

    def sentences(self, value: Any, tokenizer: ElmoTokenizer) -> list[list[str]]:
        """Return the words of each sentence of a row, without empty sentences."""
        parts = [value]
        if self.documents:
            parts = value.splitlines() if isinstance(value, str) else value
        sentences = []
        for part in filter(None, parts or ()):
            if not _is_text_or_words(part):
                hint = "" if self.documents else " (rows that are documents need --documents)"
                kind = type(part).__name__
                raise ElmoError(f"column `{self.column}` holds a {kind}; expected text or a list of words{hint}")
            words = self.words(part, tokenizer)
            if words:
                sentences.append(words)
        return sentences


def _is_text_or_words(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(word, str) for word in value)


def open_corpus(
    source: str | Sequence[str],
    *,
    column: str | None = None,
    split: str | None = None,
    config_name: str | None = None,
    streaming: bool = False,
    tokenized: bool | None = None,
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
    rows: Any
    files: list[str] = []
    if source == STANDARD_INPUT:
        name = "standard input"
        rows = TextLines([STANDARD_INPUT])
    elif isinstance(source, str) and not _names_a_file(source):
        name = source
        with translate_errors(f"{source}: neither a file nor a dataset that can be loaded"):
            rows = _load_dataset(source, config_name, split, streaming)
    else:
        files = [source] if isinstance(source, str) else list(source)
        name = ", ".join(files)
        if isinstance(source, str) and split is not None:
            raise ElmoError(f"`--split` is for datasets, but {source} is a file")
        builder = _find_builder(files)
        with translate_errors(f"{name}: cannot be read as {builder}", files):
            is_plain = builder == "text" and not as_dataset
            rows = TextLines(files) if is_plain else _load_files(files, builder, streaming)
    column = _find_column(rows, column, name, files)
    if not isinstance(rows, TextLines):
        rows = rows.select_columns([column])
    return Corpus(rows, column, tokenized, documents, name, files)


def is_tokenized(tokenizer: ElmoTokenizer, tokenized: bool | None) -> bool:
    """Return whether text is split at whitespace alone: by default, unless the model's training text was raw."""
    return tokenizer.training_text != "raw" if tokenized is None else tokenized


def warn_about_splitting(tokenizer: ElmoTokenizer, tokenized: bool | None) -> None:
    """Say on standard error when text is to be split otherwise than the text that the model was trained on."""
    known = tokenizer.training_text
    if tokenized is True and known == "raw":
        print("warning: the model was trained on --raw text; --tokenized splits at whitespace alone", file=sys.stderr)
    elif tokenized is False and known == "whitespace":
        message = "the model was trained on text split at whitespace alone; --raw splits it Penn-Treebank style"
        print(f"warning: {message}", file=sys.stderr)


def warn_about_text(corpus: Corpus, tokenizer: ElmoTokenizer) -> None:
    """Say on standard error when a text looks raw but is split at whitespace, or is in an unusual Unicode form.

    Its first rows are judged; standard input, which can be read only once, is not.
    """
    if isinstance(corpus.rows, TextLines) and STANDARD_INPUT in corpus.rows.files:
        return
    words: list[str] = []
    with translate_errors(corpus.name, corpus.files):
        for row in itertools.islice(corpus.rows, JUDGED_ROWS):
            if isinstance(row[corpus.column], str):
                words += corpus.words(row[corpus.column], tokenizer)
    joined = []
    if corpus.is_tokenized(tokenizer) and tokenizer.training_text in (None, "treebank"):
        joined = _joined_words(words)
    if joined:
        share = len(joined) / len(words)
        message = f"{corpus.name} looks raw: {share:.0%} of its words are like {joined[0]!r}; --raw splits them"
        print(f"warning: {message}", file=sys.stderr)
    form = vocabulary_form(tokenizer)
    others = sum(not unicodedata.is_normalized(form, word) for word in words)
    if others > OTHER_FORM * len(words):
        usual = "most text" if form == "NFC" else "the model's vocabulary"
        message = (
            f"{corpus.name}: {others / len(words):.0%} of its words are not in Unicode's form {form}, as {usual} is"
        )
        print(f"warning: {message}; a word in two forms is two words to a model", file=sys.stderr)


def vocabulary_form(tokenizer: ElmoTokenizer) -> Literal["NFC", "NFD"]:
    """Return the Unicode form of a vocabulary: NFC, unless many of its words are decomposed."""
    words = tokenizer.get_vocab()
    others = sum(not unicodedata.is_normalized("NFC", word) for word in words)
    return "NFD" if others > OTHER_FORM * len(words) else "NFC"


def looks_raw(texts: Iterable[str]) -> bool:
    """Return whether punctuation is not split off in a text, judged by its first lines."""
    words: list[str] = []
    for text in itertools.islice(texts, JUDGED_ROWS):
        words += text.split()
    return bool(_joined_words(words))


def _joined_words(words: Sequence[str]) -> list[str]:
    """Return the words that end in punctuation, if they are so many that a text looks raw."""
    joined = list(filter(_ends_in_punctuation, words))
    is_raw = len(joined) > max(1, SPLIT_PUNCTUATION * len(words))  # one may be an abbreviation
    return joined if is_raw else []


def _ends_in_punctuation(word: str) -> bool:
    return len(word) > 1 and unicodedata.category(word[-1]) == "Po" and word[-2].isalnum()


@contextmanager
def translate_errors(prefix: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Raise errors of `datasets` and of what it reads files with as one-line errors.

    The readers of text say at which byte it is not UTF-8; the error that is raised names the file and the line.
    """
    try:
        yield
    except ElmoError:
        raise
    except UnicodeDecodeError as error:
        for _ in TextLines(files):
            pass
        raise ElmoError(f"{prefix}: {first_line(error)}") from error
    # Damaged files lead datasets, pyarrow and pandas to nearly every built-in exception.
    except Exception as error:
        raise ElmoError(f"{prefix}: {first_line(error.__cause__ or error)}") from error


def _names_a_file(source: str) -> bool:
    """Return whether a source is a file, existing or not, rather than a dataset."""
    path = Path(source)
    if os.path.exists(path):
        return not os.path.isdir(path)
    return source.count("/") > 1 or path.suffix.lower() in (".txt", *BUILDERS, *OPENERS)


def file_extension(file: str) -> str:
    """Return a file's extension in lower case, without that of a compression."""
    path = Path(file.lower())
    return path.with_suffix("").suffix if path.suffix in OPENERS else path.suffix


def _find_builder(files: Sequence[str]) -> str:
    """Check that the files exist and are of one format, and return the name of that."""
    builders = set()
    for file in files:
        if os.path.exists(file) and not os.path.isfile(file):
            raise ElmoError(f"{file}: not a regular file; pass - to read from a pipe")
        check_input_file(file)
        if os.path.getsize(file) == 0:
            raise ElmoError(f"{file}: the file is empty")
        builders.add(BUILDERS.get(file_extension(file), "text"))
    if len(builders) != 1:
        raise ElmoError(f"files of one corpus must be of one format, got {' and '.join(sorted(builders)) or 'none'}")
    return builders.pop()


def import_datasets() -> Any:
    """Import `datasets`, whose progress bars would fill a log file."""
    datasets = require("datasets", "embed")
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


def _load_files(files: Sequence[str], builder: str, streaming: bool) -> Any:
    datasets = import_datasets()
    # Its readers log the error that they raise, which would be reported twice.
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {}
    if builder in ("text", "csv", "json"):
        for file in files:
            check_lines(file)
    if builder in ("text", "csv"):
        options["encoding"] = "utf-8-sig"
    if builder == "csv":
        options["sep"] = "\t" if file_extension(files[0]) == ".tsv" else ","
        options["index_col"] = False  # otherwise a surplus comma shifts the columns
        options["keep_default_na"] = False  # "None" and "NA" are words
        header = require("pandas", "embed").read_csv(files[0], nrows=0, **options)
        options["features"] = datasets.Features(dict.fromkeys(header.columns, datasets.Value("string")))
    return _load(builder, data_files=list(files), split="train", streaming=streaming, **options)


def _load(*arguments: Any, **options: Any) -> Any:
    """Call `load_dataset`, and raise the cause of an error rather than that there was one."""
    datasets = import_datasets()
    try:
        return datasets.load_dataset(*arguments, **options)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _load_dataset(name: str, config_name: str | None, split: str | None, streaming: bool) -> Any:
    is_saved = any(os.path.isfile(Path(name, file)) for file in SAVED_DATASET_FILES)
    loaded = load_saved(name) if is_saved else _load(name, config_name, split=split, streaming=streaming)
    if isinstance(loaded, dict):
        if split is None and len(loaded) == 1:
            (split,) = loaded
        if split not in loaded:
            raise ElmoError(f"{name}: --split must be one of {', '.join(loaded)}, got {split!r}")
        loaded = loaded[split]
    return loaded.to_iterable_dataset() if is_saved and streaming else loaded


def load_saved(name: str) -> Any:
    """Load what `save_to_disk` wrote. Arrow maps it into memory, and would crash over offsets that lead elsewhere."""
    for path in Path(name).rglob("*"):
        if not path.is_dir():
            check_input_file(path)
    loaded = import_datasets().load_from_disk(name)
    for dataset in loaded.values() if isinstance(loaded, dict) else [loaded]:
        dataset.data.table.validate(full=True)
    return loaded


def _find_column(rows: Any, column: str | None, name: str, files: Sequence[str]) -> str:
    names = rows.column_names
    if names is None:  # some streams do not know before they are read
        with translate_errors(name, files):
            names = list(next(iter(rows), {}))
    if column is None:
        column = names[0] if len(names) == 1 else "text"
    if column not in names:
        raise ElmoError(f"{name}: no column `{column}`; choose one with --column: {', '.join(names)}")
    return column
