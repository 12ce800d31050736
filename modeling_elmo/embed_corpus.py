"""Embed a whole corpus, from file to file: `embed_corpus`, the command `elmo embed`.

The input is cut into shards of about SHARD_WORDS words. Each is embedded alone and written to a hidden folder beside
the output; once all are there, they become the output in one step. Which sentences share a shard, and in it a batch,
depends on the input alone, so an interrupted run that is resumed gives exactly the vectors of one that was not. Beside
a shard is a seal: its number, its run and its digest. A shard without the right seal is made again.
"""

import hashlib
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from .corpus import Corpus, Row, open_corpus, warn_about_splitting, warn_about_text
from .embedding import DEFAULT_BATCH_WORDS, MARKERS, ElmoEmbedder
from .files import (
    ElmoError,
    StrPath,
    atomic_write,
    check_output_file,
    check_space,
    file_digest,
    progress_options,
    read_json,
    remove,
    require,
    write_text,
)
from .loading import find_model, model_digests
from .locks import one_writer

# About what a killed run loses, and the least that a process does at a time.
SHARD_WORDS = 100_000
# Bytes of vectors in a row group of Parquet or a record batch of Arrow; writing one takes five times as much memory.
ROW_GROUP_BYTES = 1 << 24
# What a sentence takes in an HDF5 file beside its vectors, at most.
SENTENCE_BYTES = 1 << 12
# Processes wait for each other until all are done, however long one of them takes.
LONGEST_RUN = timedelta(days=365)

Item = TypeVar("Item")


class EmbeddedRow(NamedTuple):
    """A sentence of the output. `text` is as it was in the input."""

    number: int
    text: str
    words: list[str]
    vectors: np.ndarray


@dataclass
class Report:
    """What the output holds, and how many words this process embedded in this run in how many seconds."""

    output: Path
    tokenized: bool = True  # whether text was split at whitespace alone
    sentences: int = 0
    words: int = 0
    empty: int = 0
    in_pieces: int = 0
    cut_words: int = 0
    remade: int = 0
    words_now: int = 0
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Words per second."""
        return self.words_now / max(self.seconds, 1e-9)


# ---------------------------------------------------------------------------------------------------------- shards


def group(items: Iterable[Item], size_of: Callable[[Item], int], limit: int) -> Iterator[list[Item]]:
    """Yield lists of consecutive items, each list ending where its size reaches `limit`."""
    members: list[Item] = []
    size = 0
    for item in items:
        members.append(item)
        size += size_of(item)
        if size >= limit:
            yield members
            members, size = [], 0
    if members:
        yield members


def _row_size(row: Row) -> int:
    """Return the number of words and markers, counted at whitespace, which is cheap, for raw text too."""
    words = row.split() if isinstance(row, str) else row
    return len(words) + MARKERS


def _shard_file(parts: Path, number: int) -> Path:
    return parts / f"{number:08}.zip"


def seal(shard: Path, run: str) -> dict[str, Any]:
    """Return what makes a shard what it is: its place, the settings of its run and its contents."""
    return {"shard": shard.stem, "run": run, "sha256": file_digest(shard)}


def is_sealed(shard: Path, run: str) -> bool:
    """Return whether a shard was written whole by this run, and has not been changed or moved since."""
    try:
        return read_json(shard.with_suffix(".json")) == seal(shard, run)
    except (ElmoError, OSError):
        return False


def _write_shard(
    path: Path, run: str, first: int, rows: list[Row], embedder: ElmoEmbedder, corpus: Corpus, bar: tqdm
) -> int:
    """Embed rows, numbered from `first`, into a file: all arrays, then all sentences. Return the number of words."""
    texts = [row.strip() if isinstance(row, str) else " ".join(row) for row in rows]
    words = [corpus.words(row, embedder.tokenizer) for row in rows]
    # A cached word can differ in the last bit from one computed among others: a shard must not depend on earlier ones.
    embedder.model.clear_caches()
    with atomic_write(path) as scratch, zipfile.ZipFile(scratch, "w") as archive:
        with archive.open("vectors", "w", force_zip64=True) as file:
            for row, vectors in zip(rows, embedder.embed(words), strict=True):
                np.lib.format.write_array(file, vectors)
                bar.update(_row_size(row))
        archive.writestr("sentences.json", json.dumps({"first": first, "texts": texts, "words": words}))
    write_text(path.with_suffix(".json"), json.dumps(seal(path, run)))
    return sum(map(len, words))


def _read_shard(path: Path) -> Iterator[EmbeddedRow]:
    with zipfile.ZipFile(path) as archive, archive.open("vectors") as file:
        sentences = json.loads(archive.read("sentences.json"))
        pairs = zip(sentences["texts"], sentences["words"], strict=True)
        for number, (text, words) in enumerate(pairs, start=sentences["first"]):
            yield EmbeddedRow(number, text, words, np.lib.format.read_array(file))


# ---------------------------------------------------------------------------------------------------------- output


def _write_hdf5(path: Path, rows: Iterator[EmbeddedRow]) -> None:
    """Write the layout of AllenNLP's `elmo` command."""
    h5py = require("h5py", "embed")
    sentence_to_index = {}
    with h5py.File(path, "w") as file:
        for row in rows:
            file.create_dataset(str(row.number), data=row.vectors)
            if row.text:
                sentence_to_index[row.text] = str(row.number)
        dataset = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
        dataset[0] = json.dumps(sentence_to_index)


def _write_parquet(path: Path, rows: Iterator[EmbeddedRow]) -> None:
    parquet = require("pyarrow.parquet", "embed")
    _write_batches(rows, lambda schema: parquet.ParquetWriter(path, schema, use_dictionary=["words.list.element"]))


def _write_arrow(path: Path, rows: Iterator[EmbeddedRow]) -> None:
    ipc = require("pyarrow.ipc", "embed")
    _write_batches(rows, lambda schema: ipc.new_file(str(path), schema))


def _write_batches(rows: Iterator[EmbeddedRow], open_writer: Callable[[Any], Any]) -> None:
    batches = map(_record_batch, group(rows, lambda row: row.vectors.nbytes, ROW_GROUP_BYTES))
    first = next(batches)
    with open_writer(first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _record_batch(rows: list[EmbeddedRow]) -> Any:
    """Return a batch of the columns index, words and vectors, which nest a list for each axis of the arrays."""
    pa = require("pyarrow", "embed")
    arrays = [row.vectors for row in rows]
    values = np.concatenate([array.reshape(-1) for array in arrays])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), arrays[0].shape[-1])
    for axis in reversed(range(arrays[0].ndim - 1)):
        # One list for every combination of the axes before this one, row by row.
        offsets = [0]
        for array in arrays:
            for _ in range(int(np.prod(array.shape[:axis]))):
                offsets.append(offsets[-1] + array.shape[axis])
        vectors = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), vectors)
    # Lone surrogates, which JSON may contain, have no UTF-8.
    words = [[word.encode("utf-8", "replace") for word in row.words] for row in rows]
    columns = {
        "index": pa.array([row.number for row in rows], pa.int64()),
        "words": pa.array(words, pa.list_(pa.string())),
        "vectors": vectors,
    }
    return pa.RecordBatch.from_pydict(columns)


# How to write an output, by its extension. Arrow is for the index of `elmo neighbors` alone.
WRITERS = {".h5": _write_hdf5, ".hdf5": _write_hdf5, ".parquet": _write_parquet, ".arrow": _write_arrow}
# Lines of Python that read an output of `elmo embed`.
READERS = {
    ".h5": "  import h5py\n  vectors = h5py.File({!r})['0'][()]  # of line 0",
    ".parquet": "  from datasets import Dataset\n  rows = Dataset.from_parquet({!r})  # index, words, vectors",
}
READERS[".hdf5"] = READERS[".h5"]


# ------------------------------------------------------------------------------------------------------------- run


def parts_folder(output: StrPath) -> Path:
    """Return the folder of the shards of an unfinished run."""
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
    tokenized: bool | None = None,
    column: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
    restart: bool = False,
) -> Report | None:
    """Embed a corpus into a file, which appears once it is complete. Resume where an earlier run stopped.

    Started by `accelerate launch` or `torchrun`, the processes share the work; all must see the output's folder.

    Args:
        source, column, split: the corpus, as for [`open_corpus`]: a file, `-` for standard input, or a dataset.
        model: the folder of the model and its tokenizer.
        output: the file to write: .h5 or .hdf5, or .parquet.
        layers, pooling, batch_words, dtype: as for [`ElmoEmbedder`].
        tokenized: whether text is split at whitespace alone; otherwise by the tokenizer. By default, as the model's
            training text was. Lists of words stay.
        overwrite: whether to replace an existing `output`.
        restart: whether to discard an unfinished run instead of resuming it.

    Returns:
        What was done; None in all processes but the first.
    """
    output = Path(output)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    _check_format(output.suffix.lower())
    check_output_file(output, overwrite)
    # A file is read as it is, without a copy in the cache of `datasets`.
    corpus = open_corpus(source, column=column, split=split, streaming=os.path.isfile(source), tokenized=tokenized)
    identity = corpus.identity
    if identity is None and processes > 1:
        raise ElmoError("processes cannot share standard input: write it to a file first")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else None
    model = find_model(model)
    options: dict[str, Any] = {"layers": layers, "pooling": pooling, "batch_words": batch_words, "dtype": dtype}
    embedder = ElmoEmbedder.from_pretrained(model, device, **options)
    report = Report(output, tokenized=corpus.is_tokenized(embedder.tokenizer))
    if rank == 0:
        warn_about_splitting(embedder.tokenizer, tokenized)
        warn_about_text(corpus, embedder.tokenizer)
    settings = {
        "input": identity,
        "column": column,
        "tokenized": report.tokenized,
        "model": model_digests(model),
        **options,
        "layers": embedder.layers,  # as numbers
        "shard_words": SHARD_WORDS,
    }
    _wait_for_all(processes)  # all have seen that there is no output yet
    with ExitStack() as stack:
        if rank == 0:
            stack.enter_context(one_writer(output, output.with_name(f".{output.name}.lock")))
        return _embed(corpus, embedder, settings, restart, rank, processes, report)


def _embed(
    corpus: Corpus,
    embedder: ElmoEmbedder,
    settings: dict[str, Any],
    restart: bool,
    rank: int,
    processes: int,
    report: Report,
) -> Report | None:
    """Do this process's part of the work; the first process writes the output. Return the report, if that is here."""
    parts = parts_folder(report.output)
    total = None
    if rank == 0:
        if settings["input"] is not None:  # counting finds bad input before the work rather than after hours of it
            total = sum(map(_row_size, corpus))
            if total == 0:
                raise ElmoError(f"{corpus.name}: holds no sentences")
        prepare_parts(parts, settings, restart)
    _wait_for_all(processes)
    try:
        run = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
        count, sentences = _write_shards(parts, run, corpus, embedder, total, rank, processes, report)
        _wait_for_all(processes)  # all shards are written
        if rank > 0:
            return None
        if count == 0:
            raise ElmoError(f"{corpus.name}: holds no sentences")
        size = sum(_shard_file(parts, number).stat().st_size for number in range(count))
        check_space(report.output, size + SENTENCE_BYTES * sentences)
        _merge(parts, count, embedder, report)
    except BaseException:
        if settings["input"] is None:  # it cannot be resumed
            remove(parts)
        raise
    return report


def _check_format(extension: str) -> None:
    if extension not in WRITERS:
        raise ElmoError(f"the output must end in {', '.join(READERS)}, got {extension!r}")
    require("pyarrow" if extension in (".parquet", ".arrow") else "h5py", "embed")


def _wait_for_all(processes: int) -> None:
    """Wait until all processes are here; fail if one of them has died."""
    if processes == 1:
        return
    # The vectors travel through files, so gloo, which runs on every machine, is fast enough.
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=LONGEST_RUN)
    try:
        torch.distributed.barrier()
    except RuntimeError as error:
        raise ElmoError("another process has stopped; run the same command again to resume") from error


def prepare_parts(parts: Path, settings: dict[str, Any], restart: bool) -> None:
    """Make the folder of a run's shards, or keep that of an unfinished run with the same settings."""
    manifest = parts / "manifest.json"
    if restart or settings["input"] is None:
        remove(parts)
    if manifest.exists():
        try:
            earlier = read_json(manifest)
        except ElmoError as error:
            raise ElmoError(f"{error}; --restart discards the unfinished run") from error
        if not isinstance(earlier, dict):
            raise ElmoError(f"{manifest}: expected settings; --restart discards the unfinished run")
        current = json.loads(json.dumps(settings))  # as they come back from a file: tuples are lists
        different = [name for name in current if earlier.get(name) != current[name]]
        if different:
            raise ElmoError(f"{parts}: an unfinished run, other in {', '.join(different)}; --restart discards it")
    parts.mkdir(exist_ok=True)
    write_text(manifest, json.dumps(settings, indent=2))


def _write_shards(
    parts: Path,
    run: str,
    corpus: Corpus,
    embedder: ElmoEmbedder,
    total: int | None,
    rank: int,
    processes: int,
    report: Report,
) -> tuple[int, int]:
    """Write this process's shards that are not there yet; return how many there are in all, and their sentences."""
    count = first = 0
    started = time.monotonic()
    # The average speed so far: shards of other processes and of earlier runs come in leaps.
    options = {"unit": "word", "unit_scale": True, "smoothing": 0, **progress_options()}
    with tqdm(total=total, disable=rank > 0, **options) as bar:
        for rows in group(corpus, _row_size, SHARD_WORDS):
            path = _shard_file(parts, count)
            is_own = count % processes == rank
            is_written = path.is_file()
            if is_own and is_written and not is_sealed(path, run):
                bar.write(f"{path}: incomplete, changed or moved: it is made again", file=sys.stderr)
                report.remade += 1
                is_written = False
            if is_own and not is_written:
                report.words_now += _write_shard(path, run, first, rows, embedder, corpus, bar)
            else:
                size = sum(map(_row_size, rows))
                if is_written and not bar.disable:
                    bar.initial += size
                bar.update(size)
            count += 1
            first += len(rows)
            bar.set_postfix_str(f"{first:,} sentences", refresh=False)
    report.seconds = time.monotonic() - started
    return count, first


def _merge(parts: Path, count: int, embedder: ElmoEmbedder, report: Report) -> None:
    """Write the output from the shards, in one step, and remove them."""

    def read_rows() -> Iterator[EmbeddedRow]:
        options = {"desc": f"writing {report.output.name}", "unit": "shard", "delay": 2, **progress_options()}
        for number in tqdm(range(count), **options):
            for row in _read_shard(_shard_file(parts, number)):
                report.sentences += 1
                report.words += len(row.words)
                report.empty += not row.words
                report.in_pieces += embedder.reads_in_pieces(row.words)
                report.cut_words += sum(map(embedder.tokenizer.is_cut, row.words))
                yield row

    with atomic_write(report.output, scratch=parts / report.output.name) as scratch:
        WRITERS[report.output.suffix.lower()](scratch, read_rows())
    remove(parts)
