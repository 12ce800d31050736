"""Vectors for a whole corpus, from file to file: `embed_corpus` (`elmo embed`).

Input -> shards of about SHARD_WORDS words, each embedded by itself and put in a hidden folder beside the output ->
once all are there, the output, in one step. Which sentences share a shard, and in it a batch, follows from the input
alone. So a run that was interrupted gives the very vectors of one that was not.
"""

import csv
import hashlib
import importlib
import json
import os
import shutil
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from .embedding import DEFAULT_BATCH_WORDS, MARKERS, ElmoEmbedder
from .files import ElmoError, StrPath, first_line

# About what a killed run loses, and the least that a process does at a time.
SHARD_WORDS = 100_000
# Vectors of a row group of Parquet or a record batch of Arrow, in bytes; writing one takes five times as much.
ROW_GROUP_BYTES = 1 << 24
# Processes wait for each other until all are done, however long one of them takes.
LONGEST_RUN = timedelta(days=365)
INSTALL = "pip install 'modeling-elmo[embed]'"


# ----------------------------------------------------------------------------------------------------------- input


class Corpus(NamedTuple):
    """Sentences to embed, as text or as words: `rows()` goes through them from the start.

    `identity` tells this input from another, or from itself when it has changed; None if it can be read only once.
    """

    rows: Callable[[], Iterator[str | list[str]]]
    identity: dict[str, Any] | None


def open_corpus(source: str, column: str | None = None, split: str | None = None) -> Corpus:
    """The sentences of a text, JSONL, CSV or Parquet file, of standard input (`-`) or of a dataset."""
    path = Path(source)
    suffix = path.suffix.lower()
    if source == "-":
        return Corpus(lambda: text_rows(sys.stdin.buffer, "standard input"), None)
    if path.is_dir() or not (path.exists() or path.is_absolute() or source.count("/") > 1 or suffix in FILE_ROWS):
        return _open_dataset(source, column, split)
    if not path.exists():
        raise ElmoError(f"{source}: no such file")
    if not path.is_file():
        raise ElmoError(f"{source}: not a file that can be read twice; for a pipe, INPUT is -")
    if split is not None:
        raise ElmoError(f"`--split` is for datasets, and {source} is a file")
    return Corpus(
        lambda: FILE_ROWS.get(suffix, _plain_rows)(path, column), {"file": path.name, "sha256": _digest(path)}
    )


def _digest(path: Path) -> str:
    """Of the contents of a file. Embedding them takes thousands of times as long."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Lines with their ends. Only a newline ends one, whatever else Unicode calls a line separator."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ElmoError(f"{name}: line {number} is not UTF-8: {error.reason} at byte {error.start}") from error


def text_rows(file: IO[bytes], name: str) -> Iterator[str]:
    for line in _lines(file, name):
        yield line.rstrip("\r\n")


def _plain_rows(path: Path, column: str | None) -> Iterator[str]:
    if column is not None:
        raise ElmoError(f"`--column` is for JSONL, CSV, Parquet and datasets, and {path} is a text file")
    with path.open("rb") as file:
        yield from text_rows(file, str(path))


def _json_rows(path: Path, column: str | None) -> Iterator[str | list[str]]:
    with path.open("rb") as file:
        for number, line in enumerate(text_rows(file, str(path)), start=1):
            where = f"{path}: line {number}"
            try:
                value = json.loads(line) if line.strip() else None
            except json.JSONDecodeError as error:
                raise ElmoError(f"{where} is not JSON: {error}") from error
            if isinstance(value, dict):
                value = value[_find_column(column, list(value), where)]
            yield _as_row(value, where)


def _csv_rows(path: Path, column: str | None) -> Iterator[str | list[str]]:
    csv.field_size_limit(2**31 - 1)  # by default long texts are refused
    with path.open("rb") as file:
        reader = csv.DictReader(_lines(file, str(path)))
        name = _find_column(column, list(reader.fieldnames or ()), str(path))
        try:
            for row in reader:
                yield _as_row(row[name], f"{path}: line {reader.line_num}")
        except csv.Error as error:
            raise ElmoError(f"{path}: line {reader.line_num} is not CSV: {error}") from error


def _parquet_rows(path: Path, column: str | None) -> Iterator[str | list[str]]:
    parquet = require("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ElmoError(f"{path}: not a Parquet file: {first_line(error)}") from error
    with file:
        name = _find_column(column, file.schema_arrow.names, str(path))
        number = 0
        for batch in file.iter_batches(columns=[name], batch_size=1024):
            for value in batch.column(0).to_pylist():
                yield _as_row(value, f"{path}: row {number}")
                number += 1


# How to read a file, by the end of its name. Any other is text.
FILE_ROWS: dict[str, Callable[[Path, str | None], Iterator[str | list[str]]]] = {
    ".txt": _plain_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}


def _open_dataset(source: str, column: str | None, split: str | None) -> Corpus:
    try:
        from datasets import DatasetDict, load_dataset, load_from_disk
    except ImportError as error:
        raise ElmoError(f"{source}: no such file; reading a dataset needs datasets: {INSTALL}") from error
    is_saved = any((Path(source) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    try:
        loaded = load_from_disk(source) if is_saved else load_dataset(source)
    except (OSError, ValueError) as error:
        raise ElmoError(f"{source}: no such file, nor a dataset: {first_line(error)}") from error
    if isinstance(loaded, DatasetDict):
        if split is None and len(loaded) == 1:
            split = next(iter(loaded))
        if split not in loaded:
            found = "choose one with `--split`" if split is None else f"none is {split!r}"
            raise ElmoError(f"{source}: of the splits {', '.join(loaded)}, {found}")
        loaded = loaded[split]
    name = _find_column(column, loaded.column_names, source)

    def rows() -> Iterator[str | list[str]]:
        number = 0
        for batch in loaded.select_columns([name]).iter(batch_size=1024):
            for value in batch[name]:
                yield _as_row(value, f"{source}: row {number}")
                number += 1

    return Corpus(rows, {"dataset": source, "fingerprint": loaded._fingerprint})


def _find_column(column: str | None, available: list[str], where: str) -> str:
    if column is None:
        if len(available) != 1 and "text" not in available:
            raise ElmoError(f"{where}: choose one with `--column` of: {', '.join(available)}")
        return "text" if "text" in available else available[0]
    if column not in available:
        raise ElmoError(f"{where}: no column {column!r}; it has: {', '.join(available)}")
    return column


def _as_row(value: Any, where: str) -> str | list[str]:
    """Text or words; what is missing is an empty sentence, so that rows keep their numbers."""
    if value is None:
        return ""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        return value
    raise ElmoError(f"{where}: expected text or a list of words, got {str(value)[:40]!r}")


# ---------------------------------------------------------------------------------------------------------- shards


class Row(NamedTuple):
    """A sentence of the result. `text` is as it was in the input."""

    number: int
    text: str
    words: list[str]
    vectors: np.ndarray


@dataclass
class Report:
    """What is in the output; and the words that this process embedded in this run, and how long that took."""

    output: Path
    sentences: int = 0
    words: int = 0
    empty: int = 0
    in_pieces: int = 0
    cut_words: int = 0
    words_now: int = 0
    seconds: float = 0.0


class _Shard(NamedTuple):
    number: int
    first: int
    rows: list[str | list[str]]
    size: int


def _shards(rows: Iterable[str | list[str]]) -> Iterator[_Shard]:
    """Runs of sentences of about SHARD_WORDS words; the count is at whitespace, which is cheap, for raw text too."""
    collected: list[str | list[str]] = []
    number = first = size = 0
    for row in rows:
        collected.append(row)
        size += _size(row)
        if size >= SHARD_WORDS:
            yield _Shard(number, first, collected, size)
            number, first = number + 1, first + len(collected)
            collected, size = [], 0
    if collected:
        yield _Shard(number, first, collected, size)


def _size(row: str | list[str]) -> int:
    return len(row.split() if isinstance(row, str) else row) + MARKERS


def _shard_file(parts: Path, number: int) -> Path:
    return parts / f"{number:08}.zip"


@contextmanager
def _appears_whole(path: Path, scratch: Path) -> Iterator[Path]:
    """A path to write to that becomes `path` when all is written."""
    unfinished = scratch / f"unfinished-{uuid.uuid4().hex}"
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_shard(path: Path, shard: _Shard, embedder: ElmoEmbedder, tokenized: bool, bar: tqdm) -> int:
    """Embeds a shard into a file: the arrays one after the other, then the sentences. Returns how many words."""
    sentences = [row.split() if tokenized and isinstance(row, str) else row for row in shard.rows]
    texts = [row.strip() if isinstance(row, str) else " ".join(row) for row in shard.rows]
    all_words = []
    # A remembered word can differ in the last bit from one computed among others: a shard remembers only its own.
    embedder.model.char_encoder.forget_words()
    with _appears_whole(path, path.parent) as unfinished, zipfile.ZipFile(unfinished, "w") as archive:
        with archive.open("vectors", "w", force_zip64=True) as file:
            for row, (words, vectors) in zip(shard.rows, embedder.embed_with_words(sentences), strict=True):
                np.lib.format.write_array(file, vectors)
                all_words.append(words)
                bar.update(_size(row))
        archive.writestr("sentences.json", json.dumps({"first": shard.first, "texts": texts, "words": all_words}))
    return sum(map(len, all_words))


def _read_shard(path: Path) -> Iterator[Row]:
    with zipfile.ZipFile(path) as archive:
        sentences = json.loads(archive.read("sentences.json"))
        with archive.open("vectors") as file:
            pairs = zip(sentences["texts"], sentences["words"], strict=True)
            for number, (text, words) in enumerate(pairs, start=sentences["first"]):
                yield Row(number, text, words, np.lib.format.read_array(file))


# ---------------------------------------------------------------------------------------------------------- output


def _write_hdf5(path: Path, rows: Iterator[Row]) -> None:
    """The layout of AllenNLP's `elmo` command."""
    h5py = require("h5py")
    sentence_to_index = {}
    with h5py.File(path, "w") as file:
        for row in rows:
            file.create_dataset(str(row.number), data=row.vectors)
            if row.text:
                sentence_to_index[row.text] = str(row.number)
        dataset = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
        dataset[0] = json.dumps(sentence_to_index)


def _write_npz(path: Path, rows: Iterator[Row]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for row in rows:
            with archive.open(f"{row.number}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, row.vectors)


def _write_parquet(path: Path, rows: Iterator[Row]) -> None:
    parquet = require("pyarrow.parquet")
    _write_batches(rows, lambda schema: parquet.ParquetWriter(path, schema, use_dictionary=["words.list.element"]))


def _write_arrow(path: Path, rows: Iterator[Row]) -> None:
    ipc = require("pyarrow.ipc")
    _write_batches(rows, lambda schema: ipc.new_file(str(path), schema))


def _write_batches(rows: Iterator[Row], open_writer: Callable[[Any], Any]) -> None:
    """Rows of an index, words and vectors, nested as the arrays are: a list for each axis but the last."""
    groups = _row_groups(rows)
    first = _record_batch(next(groups))
    with open_writer(first.schema) as writer:
        writer.write_batch(first)
        for group in groups:
            writer.write_batch(_record_batch(group))


def _row_groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.vectors.nbytes + sum(map(len, row.words))
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _record_batch(rows: list[Row]) -> Any:
    pa = require("pyarrow")
    arrays = [row.vectors for row in rows]
    values = np.concatenate([array.reshape(-1) for array in arrays])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), arrays[0].shape[-1])
    for axis in reversed(range(arrays[0].ndim - 1)):
        # One list for every combination of the axes before this one, row by row.
        lengths = np.concatenate([np.full(int(np.prod(array.shape[:axis])), array.shape[axis]) for array in arrays])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        vectors = pa.ListArray.from_arrays(pa.array(offsets), vectors)
    numbers = pa.array([row.number for row in rows], pa.int64())
    # Lone surrogates, which JSON may spell, have no UTF-8.
    spelled = [[word.encode("utf-8", "replace") for word in row.words] for row in rows]
    words = pa.array(spelled, pa.list_(pa.string()))
    return pa.RecordBatch.from_arrays([numbers, words, vectors], ["index", "words", "vectors"])


class _Format(NamedTuple):
    module: str
    write: Callable[[Path, Iterator[Row]], None]
    how_to_read: str


_HDF5 = _Format("h5py", _write_hdf5, "import h5py\nvectors = h5py.File({path!r})['0'][()]  # of line 0")
# By the end of the output's name.
FORMATS = {
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".npz": _Format("numpy", _write_npz, "import numpy\nvectors = numpy.load({path!r})['0']  # of line 0"),
    ".parquet": _Format(
        "pyarrow",
        _write_parquet,
        "from datasets import Dataset\nrows = Dataset.from_parquet({path!r})  # index, words, vectors",
    ),
    ".arrow": _Format(
        "pyarrow",
        _write_arrow,
        "import pyarrow.feather\ntable = pyarrow.feather.read_table({path!r})  # index, words, vectors",
    ),
}


def how_to_read(output: StrPath) -> list[str]:
    """Two lines of Python."""
    return FORMATS[Path(output).suffix.lower()].how_to_read.format(path=str(output)).splitlines()


def require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ElmoError(f"this kind of file needs {module.split('.')[0]}: {INSTALL}") from error


# ------------------------------------------------------------------------------------------------------------- run


def parts_folder(output: StrPath) -> Path:
    """Where the shards of an unfinished run are."""
    output = Path(output)
    return output.with_name(f".{output.name}.parts")


def embed_corpus(
    source: str,
    model: StrPath,
    output: StrPath,
    *,
    layers: str = "mix",
    pooling: str = "none",
    batch_words: int = DEFAULT_BATCH_WORDS,
    dtype: str = "float32",
    tokenized: bool = True,
    column: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
    restart: bool = False,
) -> Report | None:
    """Embeds a whole input into a file, which appears when it is complete; goes on where an earlier run stopped.

    Started by `accelerate launch` or `torchrun`, the processes share the work; all must see the output's folder.

    Args:
        source: a text file (a sentence a line), a .jsonl, .csv or .parquet file, `-` for standard input, or the folder
            or name of a dataset.
        model: the folder of the model and its tokenizer.
        output: the file to write; its ending, one of FORMATS, says how.
        layers, pooling, batch_words, dtype: as for [`ElmoEmbedder`].
        tokenized: whether text is split at whitespace alone; otherwise, by the tokenizer. Lists of words stay.
        column: where the sentences are, in a file or dataset that has columns; by default `text`, or the only one.
        split: which split of a dataset.
        overwrite: whether an existing `output` is replaced.
        restart: whether to forget an unfinished run instead of going on with it.

    Returns:
        What was done; None in all processes but the first.

    Raises:
        ElmoError: if the input, the settings or an unfinished run do not fit.
    """
    output = Path(output)
    parts = parts_folder(output)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if output.suffix.lower() not in FORMATS:
        raise ElmoError(f"{output}: the output must end in one of {', '.join(FORMATS)}")
    if output.exists() and (output.is_dir() or not overwrite):
        raise ElmoError(f"{output}: exists; choose another name, or pass --overwrite")
    if not output.parent.is_dir():
        raise ElmoError(f"{output}: there is no folder {output.parent}")
    require(FORMATS[output.suffix.lower()].module)
    corpus = open_corpus(source, column, split)
    if corpus.identity is None and processes > 1:
        raise ElmoError("standard input cannot be shared among processes: write it to a file first")

    embedder = ElmoEmbedder.from_pretrained(
        model, device=_device(), layers=layers, pooling=pooling, batch_words=batch_words, dtype=dtype
    )
    settings = {
        "input": corpus.identity,
        "column": column,
        "tokenized": tokenized,
        "model": identity_of_model(Path(model)),
        "layers": embedder.layers,
        "pooling": pooling,
        "batch_words": batch_words,
        "dtype": dtype,
        "shard_words": SHARD_WORDS,
    }
    _meet(processes)  # all have seen that there is no output yet
    total = None
    if rank == 0:
        # Bad input is found here, before the work rather than after hours of it.
        total = None if corpus.identity is None else sum(map(_size, corpus.rows()))
        if total == 0:
            raise ElmoError(f"{source}: holds no sentences")
        _prepare_parts(parts, settings, restart)
    _meet(processes)

    report = Report(output)
    try:
        count = _write_shards(parts, corpus, embedder, tokenized, total, (rank, processes), report)
        if count == 0:
            raise ElmoError("standard input holds no sentences")
        _meet(processes)  # all shards are written
        if rank > 0:
            return None
        _merge(parts, count, embedder, report)
    except BaseException:
        if corpus.identity is None:  # nobody can go on with it
            shutil.rmtree(parts, ignore_errors=True)
        raise
    return report


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def _meet(processes: int) -> None:
    """Waits until all processes are here; fails if one of them has died."""
    if processes == 1:
        return
    # The vectors travel through files: on any machine, gloo does for the little that is said here.
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=LONGEST_RUN)
    try:
        torch.distributed.barrier()
    except RuntimeError as error:
        raise ElmoError("another process has stopped; the same command goes on with the work") from error


def identity_of_model(folder: Path) -> dict[str, Any]:
    """Tells a model from another, wherever it lies."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".bin", ".txt"))
    return {path.name: _digest(path) for path in files}


def _prepare_parts(parts: Path, settings: dict[str, Any], restart: bool) -> None:
    """A folder for the shards of a run with these settings, with those that an earlier run has made."""
    manifest = parts / "manifest.json"
    settings = json.loads(json.dumps(settings))  # as they come back from a file: tuples are lists
    found = json.loads(manifest.read_bytes()) if manifest.is_file() else settings
    can_go_on = settings["input"] is not None
    if other := [name for name in settings if found.get(name) != settings[name] and not restart]:
        raise ElmoError(
            f"{parts}: holds an unfinished run that differs in {', '.join(other)}; pass --restart to forget it, or "
            "remove the folder"
        )
    if parts.exists() and (restart or not can_go_on):
        shutil.rmtree(parts)
    parts.mkdir(exist_ok=True)
    with _appears_whole(manifest, parts) as unfinished:
        unfinished.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _write_shards(
    parts: Path,
    corpus: Corpus,
    embedder: ElmoEmbedder,
    tokenized: bool,
    total: int | None,
    place: tuple[int, int],
    report: Report,
) -> int:
    """Writes this process's shards that are not there yet; returns how many there are in all."""
    rank, processes = place
    count = 0
    started = time.monotonic()
    # The average speed so far: shards of other processes and of earlier runs come in leaps.
    with tqdm(total=total, unit="word", unit_scale=True, smoothing=0, disable=rank > 0) as bar:
        for shard in _shards(corpus.rows()):
            count += 1
            path = _shard_file(parts, shard.number)
            if path.is_file():
                bar.initial += shard.size
                bar.update(shard.size)
            elif shard.number % processes == rank:
                report.words_now += _write_shard(path, shard, embedder, tokenized, bar)
            else:
                bar.update(shard.size)
            bar.set_postfix_str(f"{shard.first + len(shard.rows):,} sentences")
    report.seconds = time.monotonic() - started
    return count


def _merge(parts: Path, count: int, embedder: ElmoEmbedder, report: Report) -> None:
    """Makes the output of the shards, in one step, and removes them."""
    if missing := [number for number in range(count) if not _shard_file(parts, number).is_file()]:
        raise ElmoError(f"{parts}: shard {missing[0]} is missing; do all processes see this folder?")

    def rows() -> Iterator[Row]:
        for number in tqdm(range(count), desc=f"writing {report.output.name}", unit="shard", delay=2):
            for row in _read_shard(_shard_file(parts, number)):
                report.sentences += 1
                report.words += len(row.words)
                report.empty += not row.words
                report.in_pieces += embedder.reads_in_pieces(row.words)
                report.cut_words += sum(map(embedder.tokenizer.is_cut, row.words))
                yield row

    with _appears_whole(report.output, parts) as unfinished:
        FORMATS[report.output.suffix.lower()].write(unfinished, rows())
    shutil.rmtree(parts, ignore_errors=True)  # another run may be writing the same there


__all__ = ["Report", "embed_corpus"]
