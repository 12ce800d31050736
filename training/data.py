"""A corpus for pretraining: rows of text -> sentences -> blocks -> lanes -> windows.

A block is some consecutive rows; every epoch shuffles the blocks by seed and deals them out to the processes. A lane
reads block after block from beginning to end, a window at a time, so that the states it carries belong to the text
before. Its backward half reads the same sentences in the same order, each in reverse: what it carries is what it has
read. With `reset_states` a lane's states are zero again where a document or a sentence begins, as they are for whoever
reads a single one.

Shapes: B lanes, T words of a window, U distinct words among them, C characters a word.
"""

import itertools
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from datasets.distributed import split_dataset_by_node
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.files import ElmoError

IGNORED = -100
# Rows that a counting process takes at a time.
ROWS_AT_ONCE = 2000
# Rows of a stream among which the next is chosen at random.
STREAM_BUFFER = 10_000
# Windows that are ready before they are needed.
PREFETCHED = 8
# Files by extension, as `datasets` names their formats.
FORMATS = {".txt": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}

Rows = datasets.Dataset | datasets.IterableDataset
Sentence = list[str]


# ------------------------------------------------------------------------------------------------------------- rows


@dataclass
class Corpus:
    """Rows of text, and how they become sentences.

    rows: the data set.
    column: where the text is: a str, or a list of words; of documents, also a list of sentences.
    tokenized: whether words are what whitespace separates, or the tokenizer splits raw text.
    documents: whether a row is a document, a sentence a line, rather than a sentence.
    """

    rows: Rows
    column: str
    tokenized: bool = True
    documents: bool = False

    @property
    def is_stream(self) -> bool:
        return isinstance(self.rows, datasets.IterableDataset)

    def sentences(self, value: Any, tokenizer: ElmoTokenizer) -> list[Sentence]:
        """The sentences of a row, without empty ones."""
        parts = [value]
        if self.documents:
            parts = value.splitlines() if isinstance(value, str) else value
        found = []
        for part in parts or ():
            if isinstance(part, str):
                words = part.split() if self.tokenized else tokenizer.tokenize(part)
            elif isinstance(part, Sequence) and all(isinstance(word, str) for word in part):
                words = list(part)
            elif part is None:
                continue
            else:
                raise ElmoError(
                    f"column `{self.column}` holds a {type(part).__name__}; expected text or a list of words"
                    + ("" if self.documents else " (rows that are documents need --documents)")
                )
            if words:
                found.append(words)
        return found


def open_corpus(
    files: Sequence[str] | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    column: str | None = None,
    streaming: bool = False,
    tokenized: bool = True,
    documents: bool = False,
) -> Corpus:
    """Text files (.txt, .jsonl, .csv, .parquet, .arrow, each also as .gz), or a data set by its folder or Hub name."""
    if bool(files) == bool(dataset_name):
        raise ElmoError("give files or a data set's name, one of the two")
    try:
        if files:
            formats = {_format_of(file) for file in files}
            if len(formats) > 1:
                raise ElmoError(f"files of one corpus must be of one format, got {' and '.join(sorted(formats))}")
            kind = formats.pop()
            encoding = {"encoding": "utf-8-sig"} if kind in ("text", "csv") else {}  # a byte-order mark is no word's
            rows = datasets.load_dataset(kind, data_files=list(files), split="train", streaming=streaming, **encoding)
        elif (
            Path(str(dataset_name), "dataset_info.json").is_file()
            or Path(str(dataset_name), "dataset_dict.json").is_file()
        ):
            loaded = datasets.load_from_disk(dataset_name)
            rows = loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
            rows = rows.to_iterable_dataset() if streaming else rows
        else:
            rows = datasets.load_dataset(dataset_name, dataset_config_name, split=split, streaming=streaming)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetGenerationError) as error:
        if isinstance(error, ElmoError):
            raise
        lines = str(error.__cause__ or error).strip().splitlines()
        raise ElmoError(f"{dataset_name or ', '.join(files or [])}: {lines[0] if lines else error!r}") from error
    return Corpus(rows, _column_of(rows, column), tokenized, documents)


def _format_of(file: str) -> str:
    path = Path(file)
    if not path.is_file():
        raise ElmoError(f"{file}: no such file")
    if path.stat().st_size == 0:
        raise ElmoError(f"{file}: the file is empty")
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".bz2", ".xz", ".zst")]
    return FORMATS.get(suffixes[-1].lower() if suffixes else ".txt", "text")


def _column_of(rows: Rows, column: str | None) -> str:
    names = rows.column_names
    if names is None:  # a stream that does not say
        names = list(next(iter(rows.take(1)), {}))
    column = column or ("text" if "text" in names else names[0] if len(names) == 1 else None)
    if column is None or column not in names:
        wanted = f"no column `{column}`" if column else "several columns, so name one with --column"
        raise ElmoError(f"the corpus has {wanted}; its columns are {', '.join(names) or 'none'}")
    return column


# ------------------------------------------------------------------------------------------------------- vocabulary


class Counts(NamedTuple):
    """What a corpus holds."""

    words: Counter[str]
    sentences: int

    @property
    def predictions(self) -> int:
        """What a language model predicts in one epoch: every word, and every sentence's end."""
        return self.words.total() + self.sentences


def count_words(corpus: Corpus, tokenizer: ElmoTokenizer, processes: int | None = None) -> Counts:
    """Counts in one pass, by several processes where the corpus is not a stream."""
    words: Counter[str] = Counter()
    sentences = 0
    if corpus.is_stream:
        tasks = (
            (corpus, tokenizer, list(rows))
            for rows in _batched((row[corpus.column] for row in corpus.rows), ROWS_AT_ONCE)
        )
        total, processes = None, 1
    else:
        total = -(-len(corpus.rows) // ROWS_AT_ONCE)
        tasks = ((corpus, tokenizer, number * ROWS_AT_ONCE) for number in range(total))
        processes = min(processes or os.cpu_count() or 1, max(total, 1))
    bar = tqdm(desc="Counting words", unit=" words", unit_scale=True, disable=None)
    with bar:
        if processes == 1:
            parts: Iterator[Counts] = map(_count_part, tasks)
            for part in parts:
                words.update(part.words)
                sentences += part.sentences
                bar.update(part.words.total())
        else:
            with multiprocessing.get_context("fork").Pool(processes, _ignore_interrupts) as pool:
                for part in pool.imap_unordered(_count_part, tasks):
                    words.update(part.words)
                    sentences += part.sentences
                    bar.update(part.words.total())
    return Counts(words, sentences)


def _count_part(task: tuple[Corpus, ElmoTokenizer, Any]) -> Counts:
    corpus, tokenizer, part = task
    if isinstance(part, int):
        part = corpus.rows[part : part + ROWS_AT_ONCE][corpus.column]
    words: Counter[str] = Counter()
    sentences = 0
    for value in part:
        for sentence in corpus.sentences(value, tokenizer):
            words.update(sentence)
            sentences += 1
    return Counts(words, sentences)


def _batched(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def _ignore_interrupts() -> None:
    """In a process that counts: Ctrl-C is the main process's to handle, which ends this one by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ignore_stopping(_: int) -> None:
    """In a process that prepares windows: Ctrl-C and a scheduler's SIGTERM reach it too, while the main process still
    has a step to finish and to save.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


# ----------------------------------------------------------------------------------------------------------- blocks


class Block(NamedTuple):
    """Consecutive sentences, laid out as each language model reads and predicts them."""

    epoch: int
    number: int  # among the process's blocks of the epoch
    inputs: tuple[list[str], list[str]]  # forward, backward
    targets: tuple[list[str], list[str]]
    resets: list[bool]  # whether states are zero again before this word, of both


class Place(NamedTuple):
    """Where a lane is: so many predictions into a block."""

    epoch: int
    block: int
    offset: int


class State(NamedTuple):
    """Where reading goes on: the next block to be dealt out, and every lane's place."""

    epoch: int
    block: int
    lanes: tuple[Place | None, ...]


class BlockReader:
    """The blocks of a corpus for one of several processes, epoch after epoch.

    Args:
        corpus: the text.
        tokenizer: it splits raw text.
        block_rows: consecutive rows that stay together.
        epochs: after how many to end; None for never.
        shuffle: whether each epoch has an order of its own, made from the seed.
        seed: of the order.
        rank, processes: every process reads its share; together they read everything once an epoch.
        reset_states: where states are zero again: never, or at the beginning of every document or sentence. A blank
            row ends a document, and so does a block.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: ElmoTokenizer,
        block_rows: int = 1,
        epochs: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        processes: int = 1,
        reset_states: str = "never",
    ) -> None:
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.block_rows = block_rows
        self.epochs = epochs
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.processes = processes
        self.reset_states = reset_states

    def read(self, epoch: int = 0, first: int = 0, also: Sequence[tuple[int, int]] = ()) -> Iterator[Block]:
        """Blocks from a place on. Before them, in any order, those that `also` names by epoch and number."""
        wanted = set(also)
        for earlier in sorted({place[0] for place in also} | {epoch}):
            if earlier > epoch:
                continue
            numbers = {number for of_epoch, number in wanted if of_epoch == earlier}
            yield from self._read_epoch(earlier, numbers, first if earlier == epoch else None)
        while self.epochs is None or epoch + 1 < self.epochs:
            epoch += 1
            found = False
            for block in self._read_epoch(epoch, set(), 0):
                found = True
                yield block
            if not found and self.epochs is None:
                raise ElmoError("the corpus has no words: there is nothing to train on")

    def _read_epoch(self, epoch: int, numbers: set[int], first: int | None) -> Iterator[Block]:
        """The blocks of an epoch with these numbers, and those from `first` on, if it is a number."""
        if self.epochs is not None and epoch >= self.epochs:
            return
        if self.corpus.is_stream:
            for number, values in enumerate(self._stream_epoch(epoch)):
                if number in numbers or (first is not None and number >= first):
                    yield from self._block(epoch, number, values)
            return
        rows = self.corpus.rows
        blocks = -(-len(rows) // self.block_rows)
        order = np.random.default_rng([self.seed, epoch]).permutation(blocks) if self.shuffle else np.arange(blocks)
        order = order[self.rank :: self.processes]
        later = range(first, len(order)) if first is not None else ()
        for number in itertools.chain(sorted(numbers - set(later)), later):
            start = int(order[number]) * self.block_rows
            yield from self._block(epoch, number, rows[start : start + self.block_rows][self.corpus.column])

    def _stream_epoch(self, epoch: int) -> Iterator[list[Any]]:
        rows = self.corpus.rows
        if self.shuffle:
            # Within a buffer: a stream cannot be shuffled as a whole. Blocks of it are what happens to be neighbours.
            rows = rows.shuffle(seed=self.seed, buffer_size=STREAM_BUFFER)
            rows.set_epoch(epoch)
        if self.processes > 1:
            rows = split_dataset_by_node(rows, self.rank, self.processes)
        return _batched((row[self.corpus.column] for row in rows), self.block_rows)

    def _block(self, epoch: int, number: int, values: Sequence[Any]) -> Iterator[Block]:
        """One block, or none if there are no words in it."""
        begin, end = str(self.tokenizer.bos_token), str(self.tokenizer.eos_token)
        inputs: tuple[list[str], list[str]] = ([], [])
        targets: tuple[list[str], list[str]] = ([], [])
        resets: list[bool] = []
        begins_document = True
        for value in values:
            sentences = self.corpus.sentences(value, self.tokenizer)
            begins_document |= not sentences or self.corpus.documents
            for words in sentences:
                is_reset = self.reset_states == "sentence" or (self.reset_states == "document" and begins_document)
                resets += [is_reset] + [False] * len(words)
                begins_document = False
                back = words[::-1]
                for side, first, read, last in ((0, begin, words, end), (1, end, back, begin)):
                    inputs[side].extend((first, *read))
                    targets[side].extend((*read, last))
        if inputs[0]:
            yield Block(epoch, number, inputs, targets, resets)


# ---------------------------------------------------------------------------------------------------------- windows


class Window(NamedTuple):
    """A batch for `ElmoForPreTraining`, as lanes.

    char_ids: (U, C), of the distinct words. word_index: (2, B, T), a row of char_ids for each word each language model
    reads. labels: (2, B, T), the ids they predict, -100 where a lane has ended. segments: (B, T), how often the lane's
    states were set to zero up to a word of the window, if that happens at all. state: where reading goes on after it.
    """

    char_ids: Tensor
    word_index: Tensor
    labels: Tensor
    segments: Tensor | None = None
    state: State | None = None

    @property
    def predictions(self) -> int:
        """Of each language model."""
        return int((self.labels[0] != IGNORED).sum())


def encode_window(
    inputs: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], tokenizer: ElmoTokenizer
) -> Window:
    """2 x B lanes of words, the forward ones first, each of at most T words -> a window."""
    lanes, width = len(inputs) // 2, max((len(lane) for lane in inputs), default=0)
    unknown = tokenizer.unk_token_id
    rows: dict[str, int] = {}
    index = torch.zeros(2 * lanes, width, dtype=torch.long)
    labels = torch.full((2 * lanes, width), IGNORED)
    for number, (read, predicted) in enumerate(zip(inputs, targets, strict=True)):
        index[number, : len(read)] = torch.tensor(
            [rows.setdefault(word, len(rows)) for word in read], dtype=torch.long
        )
        ids = tokenizer.convert_tokens_to_ids(predicted)  # padding's, 0, where a word of the text reads like it
        labels[number, : len(read)] = torch.tensor([word or unknown for word in ids], dtype=torch.long)
    char_ids = torch.from_numpy(tokenizer.words_to_char_ids(list(rows)))
    return Window(char_ids, index.unflatten(0, (2, lanes)), labels.unflatten(0, (2, lanes)))


class Line(NamedTuple):
    """What a lane has in a window: the words that are read and predicted, forward and backward, and the resets."""

    inputs: tuple[list[str], list[str]]
    targets: tuple[list[str], list[str]]
    resets: list[bool]

    def take(self, block: Block, part: slice) -> None:
        """Goes on with a part of a block."""
        for taken, source in zip((*self.inputs, *self.targets), (*block.inputs, *block.targets), strict=True):
            taken += source[part]
        self.resets.extend(block.resets[part])


class LaneWindows(IterableDataset):
    """Windows of parallel lanes, in `groups` of lanes that make one step together.

    A lane that comes to the end of its block takes the next one. When there are no more blocks, lanes end.

    Args:
        reader: the blocks.
        lanes: of a group.
        window: words of a lane in a window.
        groups: how many windows, of lanes of their own, are yielded in turn.
        state: where to go on, instead of at the beginning.
    """

    def __init__(
        self, reader: BlockReader, lanes: int, window: int, groups: int = 1, state: State | None = None
    ) -> None:
        self.reader = reader
        self.lanes = lanes
        self.window = window
        self.groups = groups
        self.state = state

    def __iter__(self) -> Iterator[list[Window]]:
        count = self.lanes * self.groups
        state = self.state or State(0, 0, (None,) * count)
        if len(state.lanes) != count:
            raise ElmoError(f"the run was begun with {len(state.lanes)} lanes a process: it cannot go on with {count}")
        held = [(place.epoch, place.block) for place in state.lanes if place is not None]
        blocks = self.reader.read(state.epoch, state.block, held)
        found: dict[tuple[int, int], Block] = {}
        while len(found) < len(set(held)):
            block = next(blocks)
            found[block.epoch, block.number] = block
        current: list[Block | None] = [
            None if place is None else found[place.epoch, place.block] for place in state.lanes
        ]
        offsets = [0 if place is None else place.offset for place in state.lanes]
        next_epoch, next_block = state.epoch, state.block
        while True:
            lines: list[Line] = []
            for lane in range(count):
                line = Line(([], []), ([], []), [])
                while (missing := self.window - len(line.resets)) > 0:
                    block = current[lane]
                    if block is None:
                        block = current[lane] = next(blocks, None)
                        if block is None:
                            break
                        offsets[lane] = 0
                        next_epoch, next_block = block.epoch, block.number + 1
                    part = slice(offsets[lane], offsets[lane] + missing)
                    line.take(block, part)
                    offsets[lane] = part.stop
                    if part.stop >= len(block.inputs[0]):
                        current[lane] = None
                lines.append(line)
            if not any(line.resets for line in lines):
                return
            places = tuple(
                None if block is None else Place(block.epoch, block.number, offset)
                for block, offset in zip(current, offsets, strict=True)
            )
            state = State(next_epoch, next_block, places)
            yield [
                self._encode(lines[start : start + self.lanes])._replace(state=state)
                for start in range(0, count, self.lanes)
            ]

    def _encode(self, lines: list[Line]) -> Window:
        inputs = [line.inputs[side] for side in (0, 1) for line in lines]
        targets = [line.targets[side] for side in (0, 1) for line in lines]
        window = encode_window(inputs, targets, self.reader.tokenizer)
        if self.reader.reset_states == "never":
            return window
        resets = torch.zeros(window.labels.shape[1:], dtype=torch.long)
        for number, line in enumerate(lines):
            resets[number, : len(line.resets)] = torch.tensor(line.resets, dtype=torch.long)
        return window._replace(segments=resets.cumsum(1))


def prefetch(windows: IterableDataset, workers: int) -> DataLoader:
    """Windows made ahead by a process of their own (workers = 1), or when asked for (0)."""
    if workers not in (0, 1):
        raise ElmoError(f"`workers` must be 0 or 1: lanes are read in order; got {workers}")
    return DataLoader(
        windows,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # not torch's own, whose state a checkpoint has
        worker_init_fn=_ignore_stopping,
    )


@contextmanager
def reading(windows: DataLoader) -> Iterator[Iterator[list[Window]]]:
    """What a loader yields. The process that prepares it ends with the block, however that ends: no signal ends it."""
    iterator: Any = iter(windows)
    try:
        yield iterator
    finally:
        if windows.num_workers:
            iterator._shutdown_workers()


def _as_it_is(windows: list[Window]) -> list[Window]:
    return windows
