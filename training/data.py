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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
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


def count_words(corpus: Corpus, tokenizer: ElmoTokenizer, processes: int | None = None) -> tuple[Counter[str], int]:
    """Count words and sentences in one pass, with several processes."""
    words: Counter[str] = Counter()
    sentences = 0
    batches = (batch[corpus.column] for batch in corpus.rows.iter(ROWS_AT_ONCE))
    count = partial(_count_batch, replace(corpus, rows=None), tokenizer)
    processes = processes or os.cpu_count() or 1
    if not corpus.is_stream:
        processes = min(processes, len(corpus.rows) // ROWS_AT_ONCE + 1)
    bar = tqdm(desc="Counting words", unit=" words", unit_scale=True, disable=None)
    # Ctrl-C is for the main process, which ends the others.
    pool = multiprocessing.get_context("fork").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with bar, pool:
        for batch_words, batch_sentences in pool.imap_unordered(count, batches):
            words.update(batch_words)
            sentences += batch_sentences
            bar.update(batch_words.total())
    return words, sentences


def _count_batch(corpus: Corpus, tokenizer: ElmoTokenizer, values: Sequence[Any]) -> tuple[Counter[str], int]:
    words: Counter[str] = Counter()
    sentences = 0
    for value in values:
        for sentence in corpus.sentences(value, tokenizer):
            words.update(sentence)
            sentences += 1
    return words, sentences


# ----------------------------------------------------------------------------------------------------------- blocks


class Token(NamedTuple):
    """One position of a lane: the words that the forward and the backward language model read and predict there."""

    inputs: tuple[str, str]
    targets: tuple[str, str]
    is_reset: bool  # whether both start from zero states


def lay_out(words: Sequence[str], tokenizer: ElmoTokenizer, is_reset: bool = False) -> list[Token]:
    """Return a sentence as both language models read it."""
    forward = [str(tokenizer.bos_token), *words, str(tokenizer.eos_token)]
    pairs = list(zip(forward, forward[::-1], strict=True))  # each is read, and predicted one position before
    resets = [is_reset] + [False] * len(words)
    return list(map(Token, pairs, pairs[1:], resets))


class Block(NamedTuple):
    """Consecutive sentences; `number` counts the blocks of this process in the epoch."""

    epoch: int
    number: int
    tokens: list[Token]


@dataclass
class BlockReader:
    """The blocks of a corpus for one of several processes, which together read everything once per epoch."""

    corpus: Corpus
    tokenizer: ElmoTokenizer
    block_rows: int = 1  # consecutive rows that stay together
    epochs: int | None = None  # None to read forever
    shuffle: bool = True  # whether every epoch has its own order, made from the seed
    seed: int = 0
    rank: int = 0
    processes: int = 1
    reset_states: str = "never"  # or document, which ends at a blank row and at the end of a block, or sentence

    def read(self, start: tuple[int, int] = (0, 0), held: Set[tuple[int, int]] = frozenset()) -> Iterator[Block]:
        """Yield the blocks from an epoch and number on. Before them come those of the earlier ones that are held."""
        epoch, first = min([start, *held])
        has_words = start > (0, 0)
        while self.epochs is None or epoch < self.epochs:
            for number, values in enumerate(self._read_rows(epoch, first), first):
                if (epoch, number) < start and (epoch, number) not in held:
                    continue
                tokens = self._lay_out_rows(values)
                if tokens:
                    has_words = True
                    yield Block(epoch, number, tokens)
            if not has_words and self.epochs is None:
                raise ElmoError("the corpus has no words: there is nothing to train on")
            epoch, first = epoch + 1, 0

    def _read_rows(self, epoch: int, first: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of each block of an epoch, from a number on."""
        rows, column = self.corpus.rows, self.corpus.column
        if self.corpus.is_stream:
            if self.shuffle:
                # A stream can be shuffled only within a buffer: a block's rows are not neighbours in the text.
                rows = rows.shuffle(seed=self.seed, buffer_size=STREAM_BUFFER)
            rows = split_dataset_by_node(rows, self.rank, self.processes)
            rows.set_epoch(epoch)  # last: a split forgets it
            for batch in itertools.islice(rows.iter(self.block_rows), first, None):
                yield batch[column]
            return
        starts = np.arange(0, len(rows), self.block_rows)
        if self.shuffle:
            starts = np.random.default_rng([self.seed, epoch]).permutation(starts)
        for start in starts[self.rank :: self.processes][first:].tolist():
            yield rows[start : start + self.block_rows][column]

    def _lay_out_rows(self, values: Iterable[Any]) -> list[Token]:
        tokens: list[Token] = []
        begins_document = True
        for value in values:
            sentences = self.corpus.sentences(value, self.tokenizer)
            if not sentences or self.corpus.documents:
                begins_document = True
            for words in sentences:
                is_reset = begins_document if self.reset_states == "document" else self.reset_states == "sentence"
                tokens += lay_out(words, self.tokenizer, is_reset)
                begins_document = False
        return tokens


# ---------------------------------------------------------------------------------------------------------- windows


# Where a lane is: the epoch, the block, and how many tokens of it have been read.
Place = tuple[int, int, int]


class Position(NamedTuple):
    """Where reading resumes: the next block to be dealt out, and the place of every lane."""

    epoch: int
    block: int
    lanes: Sequence[Place | None]


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
        mask = self.labels[0] != IGNORED  # lanes that have ended keep their states
        mask |= ~mask.any()  # a window in which all have ended reads padding
        inputs = {**self._asdict(), "attention_mask": mask}
        return {name: value.to(device) for name, value in inputs.items() if isinstance(value, Tensor)}


def encode_window(lanes: Sequence[Sequence[Token]], tokenizer: ElmoTokenizer) -> Window:
    """Encode B lanes of at most T words."""
    width = max(map(len, lanes))
    rows: dict[str, int] = {}
    word_index = torch.zeros(2, len(lanes), width, dtype=torch.long)
    labels = torch.full((2, len(lanes), width), IGNORED)
    resets = torch.zeros(len(lanes), width, dtype=torch.long)
    for side, (number, lane) in itertools.product((0, 1), enumerate(lanes)):
        place = (side, number, slice(len(lane)))
        lane_rows = [rows.setdefault(token.inputs[side], len(rows)) for token in lane]
        targets = tokenizer.convert_tokens_to_ids([token.targets[side] for token in lane])
        word_index[place] = torch.tensor(lane_rows, dtype=torch.long)
        labels[place] = torch.tensor(targets, dtype=torch.long)
        resets[place[1:]] = torch.tensor([token.is_reset for token in lane], dtype=torch.long)
    labels[labels == tokenizer.pad_token_id] = tokenizer.unk_token_id  # a word may be spelled like the padding token
    char_ids = torch.from_numpy(tokenizer.words_to_char_ids(list(rows)))
    return Window(char_ids, word_index, labels, resets.cumsum(1))


@dataclass
class Lane:
    """A reader of one block after another: its block, and how many tokens of it have been read."""

    block: Block | None = None
    offset: int = 0

    @property
    def place(self) -> Place | None:
        return None if self.block is None else (self.block.epoch, self.block.number, self.offset)

    def read(self, count: int) -> list[Token]:
        """Return the next tokens of the block, at most `count`."""
        assert self.block is not None
        tokens = self.block.tokens[self.offset : self.offset + count]
        self.offset += len(tokens)
        if self.offset == len(self.block.tokens):
            self.block = None
        return tokens


class LaneWindows(IterableDataset):
    """Windows of parallel lanes, in `groups` of lanes that make one step together.

    A lane that reaches the end of its block takes the next one. When there are no more blocks, lanes end. `position`
    is where to resume, instead of at the beginning.
    """

    def __init__(
        self, reader: BlockReader, lanes: int, window: int, groups: int = 1, position: Position | None = None
    ) -> None:
        self.reader, self.lanes, self.window = reader, lanes, window
        self.position = position or Position(0, 0, [None] * (lanes * groups))

    def __iter__(self) -> Iterator[list[Window]]:
        epoch, number, places = self.position
        held = {(place[0], place[1]) for place in places if place}
        blocks = self.reader.read((epoch, number), held)
        held_blocks = {(block.epoch, block.number): block for block in itertools.islice(blocks, len(held))}
        lanes = [Lane(held_blocks[place[0], place[1]], place[2]) if place else Lane() for place in places]
        while True:
            lines = []
            for lane in lanes:
                line: list[Token] = []
                while len(line) < self.window:
                    if lane.block is None:
                        lane.block, lane.offset = next(blocks, None), 0
                        if lane.block is None:
                            break
                        epoch, number = lane.block.epoch, lane.block.number + 1
                    line += lane.read(self.window - len(line))
                lines.append(line)
            if not any(lines):
                return
            position = Position(epoch, number, [lane.place for lane in lanes])
            windows = []
            for start in range(0, len(lines), self.lanes):
                window = encode_window(lines[start : start + self.lanes], self.reader.tokenizer)
                segments = None if self.reader.reset_states == "never" else window.segments
                windows.append(window._replace(segments=segments, position=position))
            yield windows


@contextmanager
def prefetch(windows: LaneWindows, workers: int) -> Iterator[Iterator[list[Window]]]:
    """Yield an iterator over windows, which a process prepares ahead (`workers` 1) or none does (0)."""
    loader = DataLoader(
        windows,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        collate_fn=list,  # leaves the windows as they are
        generator=torch.Generator(),  # not torch's global one, whose state is part of a checkpoint
        worker_init_fn=_ignore_signals,
    )
    iterator: Any = iter(loader)
    try:
        yield iterator
    finally:
        if workers:
            iterator._shutdown_workers()  # no signal ends them


def _ignore_signals(_: int) -> None:
    """Leave Ctrl-C and a scheduler's SIGTERM to the main process, which still has a step to finish and to save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
