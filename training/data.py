"""Read a corpus for pretraining: rows of text -> sentences -> blocks -> lanes -> windows.

A block is a number of consecutive rows. Every epoch shuffles the blocks by seed and deals them out to the processes. A
lane reads one block after another, one window at a time, so the LSTM states it carries belong to the text before. The
backward language model reads the same sentences in the same order, each one reversed. With `reset_states`, the states
of a lane are zero again where a document or a sentence begins, as they are for a model that reads it alone.

Shapes: B lanes, T words per window, U distinct words in a window, C characters per word.
"""

import itertools
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets.distributed import split_dataset_by_node
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.corpus import Corpus
from modeling_elmo.files import ElmoError

IGNORED = -100
# Rows that a process counts at a time.
ROWS_AT_ONCE = 2000
# Rows of a stream among which the next one is chosen at random.
STREAM_BUFFER = 10_000
# Windows that are prepared ahead.
PREFETCHED = 8


# ------------------------------------------------------------------------------------------------------- vocabulary


class Counts(NamedTuple):
    """The words and the number of sentences of a corpus."""

    words: Counter[str]
    sentences: int

    @property
    def predictions(self) -> int:
        """Return how many predictions each language model makes per epoch: every word, and every sentence's end."""
        return self.words.total() + self.sentences


def count_words(corpus: Corpus, tokenizer: ElmoTokenizer, processes: int | None = None) -> Counts:
    """Count words and sentences in one pass, with several processes unless the corpus is a stream."""
    words: Counter[str] = Counter()
    sentences = 0
    with tqdm(desc="Counting words", unit=" words", unit_scale=True, disable=None) as bar:
        for part in _count_parts(corpus, tokenizer, processes or os.cpu_count() or 1):
            words.update(part.words)
            sentences += part.sentences
            bar.update(part.words.total())
    return Counts(words, sentences)


def _count_parts(corpus: Corpus, tokenizer: ElmoTokenizer, processes: int) -> Iterator[Counts]:
    if corpus.is_stream:
        for values in batched(_values(corpus.rows, corpus.column), ROWS_AT_ONCE):
            yield _count_values(corpus, tokenizer, values)
        return
    starts = range(0, len(corpus.rows), ROWS_AT_ONCE)
    count = partial(_count_slice, corpus, tokenizer)
    processes = min(processes, len(starts))
    if processes < 2:
        yield from map(count, starts)
        return
    with multiprocessing.get_context("fork").Pool(processes, _leave_interrupts_to_parent) as pool:
        yield from pool.imap_unordered(count, starts)


def _count_slice(corpus: Corpus, tokenizer: ElmoTokenizer, start: int) -> Counts:
    return _count_values(corpus, tokenizer, corpus.rows[start : start + ROWS_AT_ONCE][corpus.column])


def _count_values(corpus: Corpus, tokenizer: ElmoTokenizer, values: Iterable[Any]) -> Counts:
    words: Counter[str] = Counter()
    sentences = 0
    for value in values:
        for sentence in corpus.sentences(value, tokenizer):
            words.update(sentence)
            sentences += 1
    return Counts(words, sentences)


def _values(rows: Iterable[dict[str, Any]], column: str) -> Iterator[Any]:
    for row in rows:
        yield row[column]


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` items; the last one may be shorter."""
    iterator = iter(items)
    batch = list(itertools.islice(iterator, size))
    while batch:
        yield batch
        batch = list(itertools.islice(iterator, size))


def _leave_interrupts_to_parent() -> None:
    """Ignore Ctrl-C in a counting process: the main process handles it and ends this one with SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


# ----------------------------------------------------------------------------------------------------------- blocks


class Block(NamedTuple):
    """Consecutive sentences, laid out as each language model reads and predicts them."""

    epoch: int
    number: int  # among the blocks of this process in the epoch
    inputs: tuple[list[str], list[str]]  # forward, backward
    targets: tuple[list[str], list[str]]
    resets: list[bool]  # whether both language models start from zero states at this word


class Place(NamedTuple):
    """Where a lane is: the number of words read of a block."""

    epoch: int
    block: int
    offset: int


class Position(NamedTuple):
    """Where reading resumes: the next block to be dealt out, and the place of every lane."""

    epoch: int
    block: int
    lanes: tuple[Place | None, ...]


@dataclass
class BlockReader:
    """The blocks of a corpus for one of several processes, epoch after epoch.

    Args:
        corpus: the text.
        tokenizer: splits raw text.
        block_rows: how many consecutive rows stay together.
        epochs: how many epochs to read; None to read forever.
        shuffle: whether every epoch has its own order, made from the seed.
        seed: of the order.
        rank, processes: each process reads its share; together they read everything once per epoch.
        reset_states: where states are reset: never, or at the beginning of every document or sentence. A document ends
            at a blank row and at the end of a block.
    """

    corpus: Corpus
    tokenizer: ElmoTokenizer
    block_rows: int = 1
    epochs: int | None = None
    shuffle: bool = True
    seed: int = 0
    rank: int = 0
    processes: int = 1
    reset_states: str = "never"

    def read(self, epoch: int = 0, first: int = 0, also: Sequence[tuple[int, int]] = ()) -> Iterator[Block]:
        """Yield the blocks from a position on. Before them come earlier ones that `also` names by epoch and number."""
        numbers: dict[int, set[int]] = {epoch: set()}
        for earlier, number in also:
            numbers.setdefault(earlier, set()).add(number)
        for earlier in sorted(numbers):
            yield from self._read_epoch(earlier, first if earlier == epoch else sys.maxsize, numbers[earlier])
        while self.epochs is None or epoch + 1 < self.epochs:
            epoch += 1
            is_empty = True
            for block in self._read_epoch(epoch):
                is_empty = False
                yield block
            if is_empty and self.epochs is None:
                raise ElmoError("the corpus has no words: there is nothing to train on")

    def _read_epoch(self, epoch: int, first: int = 0, also: Iterable[int] = ()) -> Iterator[Block]:
        """Yield the blocks of an epoch from `first` on, after the earlier ones that `also` names."""
        if self.epochs is not None and epoch >= self.epochs:
            return
        if self.corpus.is_stream:
            for number, values in enumerate(self._read_stream(epoch)):
                if number in also or number >= first:
                    yield from self._lay_out(epoch, number, values)
            return
        rows = self.corpus.rows
        order = np.arange(-(-len(rows) // self.block_rows))
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(order))
        order = order[self.rank :: self.processes]
        for number in itertools.chain(sorted(also), range(first, len(order))):
            start = int(order[number]) * self.block_rows
            yield from self._lay_out(epoch, number, rows[start : start + self.block_rows][self.corpus.column])

    def _read_stream(self, epoch: int) -> Iterator[list[Any]]:
        rows = self.corpus.rows
        if self.shuffle:
            # A stream can be shuffled only within a buffer: a block's rows are not neighbours in the text.
            rows = rows.shuffle(seed=self.seed, buffer_size=STREAM_BUFFER)
            rows.set_epoch(epoch)
        if self.processes > 1:
            rows = split_dataset_by_node(rows, self.rank, self.processes)
        return batched(_values(rows, self.corpus.column), self.block_rows)

    def _lay_out(self, epoch: int, number: int, values: Iterable[Any]) -> Iterator[Block]:
        """Yield one block, or none if there are no words in it."""
        begin, end = str(self.tokenizer.bos_token), str(self.tokenizer.eos_token)
        block = Block(epoch, number, ([], []), ([], []), [])
        begins_document = True
        for value in values:
            sentences = self.corpus.sentences(value, self.tokenizer)
            if not sentences or self.corpus.documents:
                begins_document = True
            for words in sentences:
                is_reset = self.reset_states == "sentence"
                if self.reset_states == "document":
                    is_reset = begins_document
                begins_document = False
                backward = words[::-1]
                block.inputs[0].extend([begin, *words])
                block.targets[0].extend([*words, end])
                block.inputs[1].extend([end, *backward])
                block.targets[1].extend([*backward, begin])
                block.resets.extend([is_reset] + [False] * len(words))
        if block.resets:
            yield block


# ---------------------------------------------------------------------------------------------------------- windows


class Window(NamedTuple):
    """A batch for `ElmoForPreTraining`, as lanes.

    char_ids: (U, C), the distinct words. word_index: (2, B, T), the row of `char_ids` of each word that each language
    model reads. labels: (2, B, T), the ids they predict, -100 where a lane has ended. segments: (B, T), how often the
    states of the lane have been reset in the window up to a word; None if they never are. position: where reading
    resumes after the window.
    """

    char_ids: Tensor
    word_index: Tensor
    labels: Tensor
    segments: Tensor | None = None
    position: Position | None = None

    @property
    def predictions(self) -> int:
        """Return the number of predictions of each language model."""
        return int((self.labels[0] != IGNORED).sum())

    def model_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """Return the arguments of the model, on a device."""
        inputs = {"char_ids": self.char_ids, "word_index": self.word_index, "labels": self.labels}
        if self.segments is not None:
            inputs["segments"] = self.segments
        return {name: tensor.to(device) for name, tensor in inputs.items()}


def encode_window(
    inputs: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], tokenizer: ElmoTokenizer
) -> Window:
    """Encode 2 x B lanes of at most T words, the forward ones first."""
    lanes = len(inputs) // 2
    width = max((len(lane) for lane in inputs), default=0)
    unknown = tokenizer.unk_token_id
    rows: dict[str, int] = {}
    index = torch.zeros(2 * lanes, width, dtype=torch.long)
    labels = torch.full((2 * lanes, width), IGNORED)
    for number, (words, predicted) in enumerate(zip(inputs, targets, strict=True)):
        lane_rows = [rows.setdefault(word, len(rows)) for word in words]
        index[number, : len(words)] = torch.tensor(lane_rows, dtype=torch.long)
        # A word that is spelled like the padding token gets that token's id, 0.
        ids = [word_id or unknown for word_id in tokenizer.convert_tokens_to_ids(predicted)]
        labels[number, : len(words)] = torch.tensor(ids, dtype=torch.long)
    char_ids = torch.from_numpy(tokenizer.words_to_char_ids(list(rows)))
    return Window(char_ids, index.unflatten(0, (2, lanes)), labels.unflatten(0, (2, lanes)))


class Line:
    """The words of one lane in one window."""

    def __init__(self) -> None:
        self.inputs: tuple[list[str], list[str]] = ([], [])
        self.targets: tuple[list[str], list[str]] = ([], [])
        self.resets: list[bool] = []


@dataclass
class Lane:
    """A reader of one block after another: its block, and how many words of it have been read."""

    block: Block | None = None
    offset: int = 0

    @property
    def place(self) -> Place | None:
        if self.block is None:
            return None
        return Place(self.block.epoch, self.block.number, self.offset)

    def read_into(self, line: Line, window: int) -> None:
        """Fill a line to the length of a window, or with the rest of the block."""
        assert self.block is not None
        part = slice(self.offset, self.offset + window - len(line.resets))
        for side in (0, 1):
            line.inputs[side].extend(self.block.inputs[side][part])
            line.targets[side].extend(self.block.targets[side][part])
        line.resets.extend(self.block.resets[part])
        self.offset = part.stop
        if self.offset >= len(self.block.resets):
            self.block = None


class LaneWindows(IterableDataset):
    """Windows of parallel lanes, in `groups` of lanes that make one step together.

    A lane that reaches the end of its block takes the next one. When there are no more blocks, lanes end.

    Args:
        reader: the blocks.
        lanes: the lanes of a group.
        window: words per lane and window.
        groups: how many windows, each with its own lanes, are yielded together.
        position: where to resume, instead of at the beginning.
    """

    def __init__(
        self, reader: BlockReader, lanes: int, window: int, groups: int = 1, position: Position | None = None
    ) -> None:
        self.reader = reader
        self.lanes = lanes
        self.window = window
        self.groups = groups
        self.position = position or Position(0, 0, (None,) * (lanes * groups))
        if len(self.position.lanes) != lanes * groups:
            begun = len(self.position.lanes)
            raise ElmoError(
                f"the run was begun with {begun} lanes per process: it cannot resume with {lanes * groups}"
            )

    def __iter__(self) -> Iterator[list[Window]]:
        epoch, number, places = self.position
        held = {(place.epoch, place.block) for place in places if place is not None}
        blocks = self.reader.read(epoch, number, sorted(held))
        lanes = self._restore_lanes(blocks, len(held))
        while True:
            lines = []
            for lane in lanes:
                line = Line()
                while len(line.resets) < self.window:
                    if lane.block is None:
                        lane.block, lane.offset = next(blocks, None), 0
                        if lane.block is None:
                            break
                        epoch, number = lane.block.epoch, lane.block.number + 1
                    lane.read_into(line, self.window)
                lines.append(line)
            if not any(line.resets for line in lines):
                return
            position = Position(epoch, number, tuple(lane.place for lane in lanes))
            windows = []
            for start in range(0, len(lines), self.lanes):
                window = self._encode(lines[start : start + self.lanes])
                windows.append(window._replace(position=position))
            yield windows

    def _restore_lanes(self, blocks: Iterator[Block], count: int) -> list[Lane]:
        """Return the lanes at the places where they were, in the first `count` blocks."""
        held = {}
        for block in itertools.islice(blocks, count):
            held[block.epoch, block.number] = block
        lanes = []
        for place in self.position.lanes:
            lanes.append(Lane() if place is None else Lane(held[place.epoch, place.block], place.offset))
        return lanes

    def _encode(self, lines: Sequence[Line]) -> Window:
        inputs, targets = [], []
        for side in (0, 1):
            inputs += [line.inputs[side] for line in lines]
            targets += [line.targets[side] for line in lines]
        window = encode_window(inputs, targets, self.reader.tokenizer)
        if self.reader.reset_states == "never":
            return window
        resets = torch.zeros(window.labels.shape[1:], dtype=torch.long)
        for number, line in enumerate(lines):
            resets[number, : len(line.resets)] = torch.tensor(line.resets, dtype=torch.long)
        return window._replace(segments=resets.cumsum(1))


@contextmanager
def prefetch(windows: LaneWindows, workers: int) -> Iterator[Iterator[list[Window]]]:
    """Yield an iterator over windows, which a process prepares ahead (`workers` 1) or none does (0).

    The process ends with the context, since no signal ends it.
    """
    loader = DataLoader(
        windows,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        collate_fn=_keep,
        generator=torch.Generator(),  # not torch's global one, whose state is part of a checkpoint
        worker_init_fn=_ignore_signals,
    )
    iterator: Any = iter(loader)
    try:
        yield iterator
    finally:
        if workers:
            iterator._shutdown_workers()


def _keep(windows: list[Window]) -> list[Window]:
    return windows


def _ignore_signals(_: int) -> None:
    """Ignore Ctrl-C and a scheduler's SIGTERM in the process that prepares windows.

    Both reach it too, while the main process still has a step to finish and to save.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
