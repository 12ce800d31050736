"""Read a corpus for pretraining: rows of text -> sentences -> blocks -> lanes -> windows.

A block is a number of consecutive rows. Every epoch shuffles the blocks by seed. A lane reads one block after another,
one window at a time, so the LSTM states it carries belong to the text before. The backward language model reads the
same sentences in the same order, each one reversed. With `reset_states`, the states of a lane are zero again where a
document or a sentence begins, as they are for a model that reads it alone.

Shapes: B lanes, T words per window, U distinct words in a window, C characters per word.
"""

import bisect
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
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.bilm_elmo import Packing, pack
from modeling_elmo.corpus import Corpus, translate_errors
from modeling_elmo.files import ElmoError

IGNORED = -100
# Rows that a process counts at a time.
ROWS_AT_ONCE = 2000
# Rows by which the share of unknown words is judged.
SAMPLED_ROWS = 10_000
# Rows of a stream among which the next one is chosen at random.
STREAM_BUFFER = 10_000
# Windows that are prepared ahead.
PREFETCHED = 8


# ------------------------------------------------------------------------------------------------------- vocabulary


def count_words(corpus: Corpus, tokenizer: ElmoTokenizer, processes: int | None = None) -> tuple[Counter[str], int]:
    """Count words and sentences in one pass, with several processes."""
    words: Counter[str] = Counter()
    sentences = 0
    count = partial(_count_batch, replace(corpus, rows=None), tokenizer)
    processes = processes or os.cpu_count() or 1
    if not corpus.is_stream:
        processes = min(processes, len(corpus.rows) // ROWS_AT_ONCE + 1)
    bar = tqdm(desc="Counting words", unit=" words", unit_scale=True, disable=None)
    # Ctrl-C is for the main process, which ends the others.
    pool = multiprocessing.get_context("fork").Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    with bar, pool:
        for batch_words, batch_sentences in pool.imap_unordered(count, _read_batches(corpus)):
            words.update(batch_words)
            sentences += batch_sentences
            bar.update(batch_words.total())
    return words, sentences


def sample_unknown(corpus: Corpus, tokenizer: ElmoTokenizer) -> float:
    """Return the share of words outside the vocabulary, in rows from all parts of a text, or the first of a stream."""
    if corpus.is_stream:
        rows = corpus.rows.take(SAMPLED_ROWS)
    else:
        rows = corpus.rows.select(range(0, len(corpus.rows), len(corpus.rows) // SAMPLED_ROWS + 1))
    words, _ = _count_batch(corpus, tokenizer, [row[corpus.column] for row in rows])
    known = sum(words[word] for word in tokenizer.get_vocab())
    return 1 - known / max(words.total(), 1)


def _read_batches(corpus: Corpus) -> Iterator[Sequence[Any]]:
    with translate_errors(corpus.name, corpus.files):
        for batch in corpus.rows.iter(ROWS_AT_ONCE):
            yield batch[corpus.column]


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
    """Consecutive sentences; `number` counts the blocks of an epoch."""

    epoch: int
    number: int
    sentences: list[list[str]]
    begins_document: list[bool]  # of each sentence, whether it is a document's first


@dataclass
class BlockReader:
    """The blocks of a corpus, everything once per epoch."""

    corpus: Corpus
    tokenizer: ElmoTokenizer
    block_rows: int = 1  # consecutive rows that stay together
    epochs: int | None = None  # None to read forever
    shuffle: bool = True  # whether every epoch has its own order, made from the seed
    seed: int = 0
    reset_states: str = "never"  # or document, which ends at a blank row and at the end of a block, or sentence

    def read(self, start: tuple[int, int] = (0, 0), held: Set[tuple[int, int]] = frozenset()) -> Iterator[Block]:
        """Yield the blocks from an epoch and number on. Before them come those of the earlier ones that are held."""
        epoch, first = min([start, *held])
        has_words = start > (0, 0)
        while self.epochs is None or epoch < self.epochs:
            for number, values in enumerate(self._read_rows(epoch, first), first):
                if (epoch, number) < start and (epoch, number) not in held:
                    continue
                sentences, begins_document = self._read_sentences(values)
                if sentences:
                    has_words = True
                    yield Block(epoch, number, sentences, begins_document)
            if not has_words and self.epochs is None:
                raise ElmoError("the corpus has no words: there is nothing to train on")
            epoch, first = epoch + 1, 0

    def _read_rows(self, epoch: int, first: int) -> Iterator[Sequence[Any]]:
        """Yield the rows of each block of an epoch, from a number on."""
        rows, column = self.corpus.rows, self.corpus.column
        with translate_errors(self.corpus.name, self.corpus.files):
            if self.corpus.is_stream:
                if self.shuffle:
                    # A stream can be shuffled only within a buffer: a block's rows are not neighbours in the text.
                    rows = rows.shuffle(seed=self.seed, buffer_size=STREAM_BUFFER)
                rows.set_epoch(epoch)
                for batch in itertools.islice(rows.iter(self.block_rows), first, None):
                    yield batch[column]
                return
            starts = np.arange(0, len(rows), self.block_rows)
            if self.shuffle:
                starts = np.random.default_rng([self.seed, epoch]).permutation(starts)
            for start in starts[first:].tolist():
                yield rows[start : start + self.block_rows][column]

    def _read_sentences(self, values: Iterable[Any]) -> tuple[list[list[str]], list[bool]]:
        sentences: list[list[str]] = []
        begins_document: list[bool] = []
        is_first = True
        for value in values:
            row_sentences = self.corpus.sentences(value, self.tokenizer)
            if not row_sentences or self.corpus.documents:
                is_first = True
            for words in row_sentences:
                sentences.append(words)
                begins_document.append(is_first)
                is_first = False
        return sentences, begins_document


# ---------------------------------------------------------------------------------------------------------- windows


# Where a lane is: an epoch and a block, the first of its sentences that the lane reads and the one at which it stops,
# and how many tokens of these it has read.
Place = tuple[int, int, int, int, int]


class Position(NamedTuple):
    """Where reading resumes: the next block to be dealt out, the place of every lane, and places without a lane."""

    epoch: int
    block: int
    lanes: Sequence[Place | None]
    waiting: Sequence[Place] = ()

    def deal(self, lanes: int) -> "Position":
        """Return the same position for another number of lanes. Surplus places wait for a lane that is free."""
        places = [*self.lanes[:lanes], *[None] * (lanes - len(self.lanes))]
        surplus = [place for place in self.lanes[lanes:] if place is not None]
        return self._replace(lanes=places, waiting=[*surplus, *self.waiting])


class Window(NamedTuple):
    """A batch for `ElmoForPreTraining`, as lanes.

    char_ids: (U, C), the distinct words. word_index: (2, B, T), the row of `char_ids` of each word that each language
    model reads. labels: (2, B, T), the ids they predict, -100 where a lane has ended. segments: (B, T), how often the
    states of the lane have been reset in the window up to a word; None if they never are. packing: the words in the
    order in which the LSTMs read them; None where all lanes have ended.
    """

    char_ids: Tensor
    word_index: Tensor
    labels: Tensor
    segments: Tensor | None = None
    packing: Packing | None = None

    @property
    def predictions(self) -> int:
        """Return the number of predictions of each language model."""
        return int((self.labels[0] != IGNORED).sum())

    def with_packing(self) -> "Window":
        """Add what a model on another device than the CPU would have to wait for."""
        return self._replace(packing=pack(self.labels[0] != IGNORED, self.segments) if self.predictions else None)

    def model_inputs(self, device: torch.device) -> dict[str, Any]:
        """Return the arguments of the model, on a device."""
        mask = self.labels[0] != IGNORED  # lanes that have ended keep their states
        mask |= ~mask.any()  # a window in which all have ended reads padding
        inputs = {**self._asdict(), "attention_mask": mask}
        return {name: value.to(device, non_blocking=True) for name, value in inputs.items() if value is not None}


class Step(NamedTuple):
    """What one process reads in a step: a window for each of its groups of lanes.

    predictions: those of each language model, by all processes. position: where reading resumes after the step.
    """

    windows: list[Window]
    predictions: int
    position: Position


def encode_window(lanes: Sequence[Sequence[Token]], tokenizer: ElmoTokenizer) -> Window:
    """Encode B lanes of at most T words. Where all have ended, there is one word, which nothing is predicted from."""
    width = max(1, *map(len, lanes))
    rows: dict[str, int] = {} if any(lanes) else {str(tokenizer.bos_token): 0}
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


class Piece:
    """The sentences of a block that one lane reads, from `first` to before `last`, and how far it has read them."""

    def __init__(self, block: Block, first: int, last: int, offset: int = 0) -> None:
        self.block, self.first, self.offset = block, first, offset
        # A sentence has a token for every word and one for its end.
        ends = list(itertools.accumulate(len(words) + 1 for words in block.sentences[first:last]))
        self.starts, self.size = [0, *ends[:-1]], ends[-1]
        self.tokens: list[Token] | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.starts)

    @property
    def place(self) -> Place:
        return self.block.epoch, self.block.number, self.first, self.last, self.offset

    @property
    def remaining(self) -> int:
        return self.size - self.offset

    @property
    def can_split(self) -> bool:
        return self.starts[-1] > self.offset

    def split(self) -> "Piece":
        """Cut off about half of what has not been read, from the beginning of a sentence on."""
        middle = bisect.bisect_left(self.starts, self.offset + self.remaining / 2)
        middle = min(middle, len(self.starts) - 1)
        later = Piece(self.block, self.first + middle, self.last)
        self.starts, self.size = self.starts[:middle], self.starts[middle]
        return later

    def peek(self, count: int, reset_states: str, tokenizer: ElmoTokenizer) -> list[Token]:
        """Return the next tokens. All of the piece are laid out at the first call."""
        if self.tokens is None:
            self.tokens = []
            for number in range(self.first, self.last):
                is_reset = reset_states == "sentence"
                if reset_states == "document":  # what is before a piece was read by another lane
                    is_reset = number == self.first or self.block.begins_document[number]
                self.tokens += lay_out(self.block.sentences[number], tokenizer, is_reset)
        return self.tokens[self.offset : self.offset + count]


class LaneWindows(IterableDataset):
    """The steps of one of several processes: windows of its lanes, in `groups` that make one step together.

    A lane that reaches the end of its piece takes the next block. When there are no more blocks, it takes half of what
    is left to the lane that has most, so that lanes end together. Every process deals the text out to all lanes, and
    lays out and encodes its own. So the lanes are the same for any number of processes, and all take the same number
    of steps. `position` is where to resume, instead of at the beginning.
    """

    def __init__(
        self,
        reader: BlockReader,
        lanes: int,
        window: int,
        groups: int = 1,
        position: Position | None = None,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.reader, self.lanes, self.window = reader, lanes, window
        own = lanes * groups
        self.own = range(rank * own, (rank + 1) * own)
        self.position = (position or Position(0, 0, [])).deal(own * processes)

    def __iter__(self) -> Iterator[Step]:
        self._open()
        while True:
            lines = [self._read_line(lane) for lane in range(len(self.pieces))]
            predictions = sum(count for count, _ in lines)
            if predictions == 0:
                return
            windows = []
            for start in self.own[:: self.lanes]:
                tokens = [tokens for _, tokens in lines[start : start + self.lanes]]
                window = encode_window(tokens, self.reader.tokenizer)
                segments = None if self.reader.reset_states == "never" else window.segments
                windows.append(window._replace(segments=segments).with_packing())
            places = [piece and piece.place for piece in self.pieces]
            waiting = [piece.place for piece in self.waiting]
            yield Step(windows, predictions, Position(*self.next_block, places, waiting))

    def _open(self) -> None:
        """Start reading at the position."""
        epoch, number, places, waiting = self.position
        held = {place[:2] for place in (*places, *waiting) if place}
        self.blocks = self.reader.read((epoch, number), held)
        held_blocks = {(block.epoch, block.number): block for block in itertools.islice(self.blocks, len(held))}

        def restore(place: Place) -> Piece:
            return Piece(held_blocks[place[:2]], *place[2:])

        self.next_block = epoch, number
        self.pieces = [place and restore(place) for place in places]
        self.waiting = [restore(place) for place in waiting]

    def _read_line(self, lane: int) -> tuple[int, list[Token]]:
        """Advance a lane by a window. Return how many tokens it reads and, of this process's own lanes, the tokens."""
        count = 0
        tokens: list[Token] = []
        while count < self.window:
            piece = self.pieces[lane] = self.pieces[lane] or self._next_piece()
            if piece is None:
                break
            step = min(self.window - count, piece.remaining)
            if lane in self.own:
                tokens += piece.peek(step, self.reader.reset_states, self.reader.tokenizer)
            piece.offset += step
            count += step
            if piece.remaining == 0:
                self.pieces[lane] = None
        return count, tokens

    def _next_piece(self) -> Piece | None:
        """Return what a free lane reads next, if anything is left."""
        if self.waiting:
            return self.waiting.pop(0)
        block = next(self.blocks, None)
        if block is not None:
            self.next_block = block.epoch, block.number + 1
            return Piece(block, 0, len(block.sentences))
        longest = max(
            (piece for piece in self.pieces if piece and piece.can_split), key=lambda p: p.remaining, default=None
        )
        return longest and longest.split()


@contextmanager
def prefetch(windows: LaneWindows, workers: int, device: torch.device | None = None) -> Iterator[Iterator[Step]]:
    """Yield an iterator over steps, which a process prepares ahead (`workers` 1) or none does (0).

    For CUDA they are in pinned memory, from which copies run beside the computation.
    """
    loader = DataLoader(
        windows,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
        collate_fn=_keep,
        pin_memory=device is not None and device.type == "cuda",
        generator=torch.Generator(),  # not torch's global one, whose state is part of a checkpoint
        worker_init_fn=_ignore_signals,
    )
    iterator: Any = iter(loader)
    try:
        yield iterator
    finally:
        if workers:
            iterator._shutdown_workers()  # no signal ends them


def _keep(step: Step) -> Step:
    return step


def _ignore_signals(_: int) -> None:
    """Leave Ctrl-C and a scheduler's SIGTERM to the main process, which still has a step to finish and to save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
