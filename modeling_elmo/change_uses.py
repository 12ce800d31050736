"""Find the uses of words in texts of several periods, and draw a sample of them in constant memory.

Each use has a random number, made from its sentence, its place in that and a seed; of each word and period, the uses
with the lowest numbers are kept. So neither the order of the lines nor how they are read changes the sample. A
sentence that a period repeats counts once.
"""

import hashlib
import heapq
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from .corpus import (
    JUDGED_ROWS,
    STANDARD_INPUT,
    Corpus,
    TextLines,
    decode_lines,
    looks_raw,
    open_corpus,
    open_file,
    translate_errors,
    warn_about_splitting,
)
from .files import ElmoError, check_input_file, progress_options
from .splitting_elmo import find_spans
from .tokenization_elmo import ElmoTokenizer

# The columns of a table of uses; of each row, the first that is there. DWUG has those with `target` in their names.
PERIOD_COLUMNS = ("grouping", "date")
START_COLUMNS, END_COLUMNS = ("start", "target_start"), ("end", "target_end")
# Both places in one column, as in 43:49.
SPAN_COLUMN = "indexes_target_token"


class Use(NamedTuple):
    """A sentence and a word's place in it."""

    sentence: tuple[str, ...]
    position: int


@dataclass
class Sample:
    """The uses drawn of each word and period.

    Attributes:
        periods: their names, in order.
        uses: of a word and a period, sorted.
        counts: how many uses a word has in a period in all.
        tokenized: whether a period's text was split at whitespace alone.
    """

    periods: list[str]
    uses: dict[tuple[str, str], list[Use]] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokenized: dict[str, bool] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Return the words that have uses in every period."""
        found = sorted({word for word, _ in self.uses})
        return [word for word in found if not self.missing(word)]

    def missing(self, word: str) -> list[str]:
        """Return the periods in which a word has no use."""
        return [period for period in self.periods if (word, period) not in self.uses]

    def sentences(self, words: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the sentences with a use of one of the words, sorted, each once."""
        found: set[tuple[str, ...]] = set()
        for word in words:
            for period in self.periods:
                found.update(use.sentence for use in self.uses[word, period])
        return sorted(found)


class Reservoir:
    """Keeps those of any number of uses that have the lowest random numbers, each use once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._heap: list[tuple[int, Use]] = []  # the highest number first
        self._numbers: set[int] = set()

    def add(self, number: int, use: Use) -> None:
        if number in self._numbers:
            return
        if len(self._heap) < self.size:
            heapq.heappush(self._heap, (-number, use))
        elif number < -self._heap[0][0]:
            dropped, _ = heapq.heapreplace(self._heap, (-number, use))
            self._numbers.remove(-dropped)
        else:
            return
        self._numbers.add(number)

    def uses(self) -> list[Use]:
        return sorted(use for _, use in self._heap)


class _Sampler:
    """Draws at most `limit` uses of each word and period."""

    def __init__(self, limit: int, seed: int) -> None:
        self._seed = seed
        self._reservoirs: dict[tuple[str, str], Reservoir] = defaultdict(lambda: Reservoir(limit))
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, period: str, sentence: tuple[str, ...], targets: Mapping[int, str]) -> None:
        """Add a sentence, with the words at some of its places."""
        if not targets:
            return
        sentence = tuple(map(sys.intern, sentence))  # a word of many sentences takes memory once
        text = "\n".join((str(self._seed), *sentence))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for position, word in targets.items():
            number = hashlib.blake2b(digest + position.to_bytes(8, "big"), digest_size=8).digest()
            self._counts[word, period] += 1
            self._reservoirs[word, period].add(int.from_bytes(number, "big"), Use(sentence, position))

    def sample(self, periods: Sequence[str], tokenized: dict[str, bool]) -> Sample:
        uses = {key: reservoir.uses() for key, reservoir in self._reservoirs.items()}
        return Sample(list(periods), uses, self._counts, tokenized)


# ---------------------------------------------------------------------------------------------------------- corpora


def sample_corpora(
    sources: Mapping[str, str],
    tokenizer: ElmoTokenizer,
    words: Collection[str] | None = None,
    min_count: int = 1,
    limit: int = 100,
    seed: int = 0,
    lemmas: Mapping[str, str] | None = None,
    tokenized: bool | None = None,
) -> Sample:
    """Sample the uses of words in corpora of several periods.

    Args:
        sources: the file of each period, in order.
        tokenizer: splits raw text.
        words: the words, in lower case; by default all that have letters and occur `min_count` times in each period.
        limit: the most uses of a word and period.
        seed: which sample is drawn.
        lemmas: what word forms count as; other words count as themselves. Upper and lower case are the same.
        tokenized: whether texts are split at whitespace alone; by default as each file looks.
    """
    lemmas = lemmas or {}
    corpora = {period: _open_period(source, tokenizer, tokenized) for period, source in sources.items()}
    if words is None:
        counts = [_count_words(period, corpus, tokenizer, lemmas) for period, corpus in corpora.items()]
        words = [word for word in counts[0] if min(count[word] for count in counts) >= min_count]
        if not words:
            names = ", ".join(corpora)
            raise ElmoError(f"no overlap: no word occurs {min_count:,} times in each of {names}; lower --min-count")
    sampler = _Sampler(limit, seed)
    wanted = set(words)
    for period, corpus in corpora.items():
        for sentence in _read_sentences(f"{period}: finding uses", corpus, tokenizer):
            targets = {}
            for position, word in enumerate(sentence):
                lemma = _lemma(word, lemmas)
                if lemma in wanted:
                    targets[position] = lemma
            sampler.add(period, tuple(sentence), targets)
    return sampler.sample(
        list(corpora), {period: corpus.is_tokenized(tokenizer) for period, corpus in corpora.items()}
    )


def _open_period(source: str, tokenizer: ElmoTokenizer, tokenized: bool | None) -> Corpus:
    """Open a corpus, and find out how its text is split."""
    if source == STANDARD_INPUT:
        raise ElmoError("standard input cannot be read twice: write it to a file first")
    check_input_file(source)
    corpus = open_corpus(source, streaming=True, tokenized=tokenized)
    if tokenized is None:
        first = islice(corpus, JUDGED_ROWS)
        corpus.tokenized = not looks_raw(row for row in first if isinstance(row, str))
    else:
        warn_about_splitting(tokenizer, tokenized)
    return corpus


def _count_words(period: str, corpus: Corpus, tokenizer: ElmoTokenizer, lemmas: Mapping[str, str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for sentence in _read_sentences(f"{period}: counting words", corpus, tokenizer):
        counts.update(_lemma(word, lemmas) for word in sentence)
    return Counter({word: count for word, count in counts.items() if any(map(str.isalpha, word))})


def _read_sentences(title: str, corpus: Corpus, tokenizer: ElmoTokenizer) -> Iterator[list[str]]:
    is_empty = True
    for row in tqdm(corpus, desc=title, unit=" lines", unit_scale=True, **progress_options()):
        words = corpus.words(row, tokenizer)
        if words:
            is_empty = False
            yield words
    if is_empty:
        raise ElmoError(f"{corpus.name}: holds no sentences")


def _lemma(word: str, lemmas: Mapping[str, str]) -> str:
    lower = word.lower()
    return lemmas.get(lower, lower)


def _read_lines(path: Path) -> Corpus:
    return Corpus(TextLines([str(path)]), name=str(path))


def read_lemmas(path: Path) -> dict[str, str]:
    """Read a file with a word form, a tab and its lemma on each line."""
    lemmas = {}
    for number, line in enumerate(_read_lines(path), start=1):
        assert isinstance(line, str)
        if not line.strip():
            continue
        form, tab, lemma = line.partition("\t")
        if not tab or not form.strip() or not lemma.strip():
            raise ElmoError(f"{path}: line {number}: expected a word form, a tab and its lemma")
        lemmas[form.strip().lower()] = lemma.strip().lower()
    return lemmas


def read_words(path: Path) -> list[str]:
    """Read a file with one word per line."""
    words = [str(line).strip().lower() for line in _read_lines(path)]
    words = list(dict.fromkeys(filter(None, words)))
    if not words:
        raise ElmoError(f"{path}: there are no words")
    return words


# ----------------------------------------------------------------------------------------------------- dated uses


def sample_table(
    source: str,
    tokenizer: ElmoTokenizer,
    words: Collection[str] | None = None,
    min_count: int = 1,
    limit: int = 100,
    seed: int = 0,
    tokenized: bool | None = None,
) -> Sample:
    """Sample the uses of a table: `lemma`, `grouping` or `date`, `context`, and where in that the word is.

    The place is `start` and `end`, the same with `target_` before them, or `indexes_target_token` with both, in
    characters. The other arguments are those of [`sample_corpora`]; periods are in the order of their names.
    """
    check_input_file(source)
    with translate_errors(source, [source]):
        rows = list(_read_rows(source))
    if not rows:
        raise ElmoError(f"{source}: there are no uses")
    if tokenized is None:
        tokenized = not looks_raw(context for _, _, context, _ in rows)
    sampler = _Sampler(limit, seed)
    wanted = None if words is None else set(words)
    for lemma, period, context, span in rows:
        if wanted is None or lemma.lower() in wanted:
            sentence = context.split() if tokenized else tokenizer.tokenize(context)
            sampler.add(period, tuple(sentence), {_find_word(context, sentence, span): lemma.lower()})
    periods = sorted({period for _, period, _, _ in rows}, key=_period_key)
    sample = sampler.sample(periods, dict.fromkeys(periods, tokenized))
    if wanted is None:
        for word in sample.words():
            if min(sample.counts[word, period] for period in periods) < min_count:
                for period in periods:
                    del sample.uses[word, period]
    return sample


def _period_key(period: str) -> tuple[float, str]:
    """Sort years by their number, and other names after them."""
    with suppress(ValueError):
        if math.isfinite(float(period)):
            return float(period), period
    return math.inf, period


def _read_rows(source: str) -> Iterator[tuple[str, str, str, tuple[int, int]]]:
    """Yield the lemma, period, context and span of each use."""
    with open_file(source) as stream:
        lines = decode_lines(stream, source)
        header = next(lines, "").split("\t")
        columns = {name: number for number, name in enumerate(header)}
        lemma, context = (_find_column(columns, source, name) for name in ("lemma", "context"))
        period = _find_column(columns, source, *PERIOD_COLUMNS)
        if SPAN_COLUMN in columns:
            places = [columns[SPAN_COLUMN]]
        else:
            places = [_find_column(columns, source, *names) for names in (START_COLUMNS, END_COLUMNS)]
        for number, line in enumerate(lines, start=2):
            if not line.strip():
                continue
            fields = line.split("\t")
            try:
                start, end = map(int, ":".join(fields[place] for place in places).split(":"))
                row = fields[lemma].strip(), fields[period].strip(), fields[context], (start, end)
            except (ValueError, IndexError):
                raise ElmoError(
                    f"{source}: line {number}: expected {len(header)} columns and a word's place"
                ) from None
            if not (row[0] and row[1] and 0 <= start < end <= len(row[2])) or not row[2][start:end].strip():
                raise ElmoError(f"{source}: line {number}: no word from {start} to {end} of the context, or no lemma")
            yield row


def _find_column(columns: Mapping[str, int], source: str, *names: str) -> int:
    for name in names:
        if name in columns:
            return columns[name]
    raise ElmoError(f"{source}: not a table of uses: it has no column {' or '.join(names)}")


def _find_word(context: str, words: Sequence[str], span: tuple[int, int]) -> int:
    """Return the place of the first word that has a character of the span."""
    start = span[0] + len(context[slice(*span)]) - len(context[slice(*span)].lstrip())
    for position, (_, end) in enumerate(find_spans(context, list(words))):
        if end > start:
            return position
    raise AssertionError("a character that is not white is in a word")


def name_periods(sources: Sequence[str], labelled: bool) -> dict[str, str]:
    """Return the file of each period, from LABEL=FILE, or named by the files."""
    periods: dict[str, str] = {}
    for source in sources:
        if labelled:
            label, sign, file = source.partition("=")
            if not sign or not label or not file:
                raise ElmoError(f"{source}: expected LABEL=FILE, such as 1850={os.path.basename(source) or 'a.txt'}")
        else:
            label, file = Path(source).name.split(".")[0], source
        if label in periods:
            raise ElmoError(f"two periods are called {label}; name them with --corpora LABEL=FILE …")
        periods[label] = file
    return periods
