"""Tables of training.evaluate on grammar and on reading: minimal pairs (BLiMP) and reading times.

A line of a file of minimal pairs is {"UID": paradigm, "field": field, "sentence_good": text, "sentence_bad": text}. A
file of reading times is a TSV of words in reading order, with the columns `story`, `word` and one with the times.
"""

import argparse
import csv
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold
from tqdm import tqdm

from modeling_elmo import ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.corpus import Corpus, TextLines
from modeling_elmo.files import ElmoError, progress_options
from modeling_elmo.scoring import is_typed_tokenized, load_scorer, unknown_words
from modeling_elmo.splitting_elmo import find_spans, split_text
from modeling_elmo.surprisal import STATES, read_sentences, score_sentences, word_surprisals

from .figures import draw_accuracies, draw_gains
from .readers import located

Rows = list[dict[str, Any]]

DIRECTIONS = ("both", "forward", "backward")
# Sentences of like length that are scored at once.
BATCH = 256
PAIR_COLUMNS = ("UID", "field", "sentence_good", "sentence_bad")

# A word's time also depends on this many words before it.
SPILL_OVER = 2
FOLDS = 10
RESAMPLES = 2_000
# Ends of the interval of resampled gains, in per cent.
INTERVAL = (2.5, 97.5)
# Fewer words tell nothing about a regression of up to 12 predictors.
FEWEST_WORDS = 50
# What is added to a regression, and to which.
COMPARISONS = {
    "forward": ((), ("forward",)),
    "backward": ((), ("backward",)),
    "backward beyond forward": (("forward",), ("backward",)),
    "forward and backward": ((), ("forward", "backward")),
}


# ------------------------------------------------------------------------------------------------------------- blimp


class Pair(NamedTuple):
    """A minimal pair: the acceptable sentence comes first."""

    paradigm: str
    field: str
    sentences: tuple[tuple[str, ...], tuple[str, ...]]


def read_minimal_pairs(path: Path, tokenizer: ElmoTokenizer, limit: int | None = None) -> Iterator[Pair]:
    """Yield the pairs of a file, at most `limit` of each paradigm."""
    counts: dict[str, int] = defaultdict(int)
    for number, line in enumerate(Corpus(TextLines([str(path)]), name=str(path)), start=1):
        if not line:
            continue
        with located(f"{path}, line {number}"):
            row = json.loads(line)
            values = [row[name] for name in PAIR_COLUMNS]
            if not all(isinstance(value, str) and value.strip() for value in values):
                raise ValueError(f"{', '.join(PAIR_COLUMNS)} must be text, got {values!r}")
        paradigm, field, *texts = values
        counts[paradigm] += 1
        if limit is None or counts[paradigm] <= limit:
            good, bad = (tuple(split_words(text, tokenizer)) for text in texts)
            # BLiMP spells one field in two ways.
            yield Pair(paradigm, field.replace("/", "_"), (good, bad))


def split_words(text: str, tokenizer: ElmoTokenizer) -> list[str]:
    """Split raw text as `tokenizer`'s training text was split."""
    return text.split() if is_typed_tokenized(tokenizer, None) else split_text(text)


def total_scores(
    sentences: Sequence[tuple[str, ...]], model: ElmoForPreTraining, tokenizer: ElmoTokenizer
) -> dict[tuple[str, ...], np.ndarray]:
    """Return the log-probability of each distinct sentence by both models (their mean), forward and backward."""
    distinct = sorted(set(sentences), key=len)
    totals = {}
    with tqdm(total=len(distinct), unit=" sentences", **progress_options()) as bar:
        for start in range(0, len(distinct), BATCH):
            batch = distinct[start : start + BATCH]
            for words, score in zip(batch, model.score(batch, tokenizer, BATCH), strict=True):
                forward, backward = score.forward.double().sum().item(), score.backward.double().sum().item()
                totals[words] = np.array([(forward + backward) / 2, forward, backward])
            bar.update(len(batch))
    return totals


def blimp(
    model: ElmoForPreTraining, tokenizer: ElmoTokenizer, files: Sequence[Path], limit: int | None, folder: Path
) -> Rows:
    """Compute how often the acceptable sentence of a pair is the more probable: of all, by field and by paradigm."""
    started = time.monotonic()
    pairs = list(chain.from_iterable(read_minimal_pairs(path, tokenizer, limit) for path in files))
    if not pairs:
        raise ElmoError(f"{', '.join(map(str, files))}: there are no pairs")
    totals = total_scores([words for pair in pairs for words in pair.sentences], model, tokenizer)
    groups: dict[tuple[str, str], list[tuple[np.ndarray, bool]]] = defaultdict(list)
    for pair in pairs:
        good, bad = pair.sentences
        is_right = totals[good] > totals[bad]
        has_unknown = bool(unknown_words([*good, *bad], tokenizer))
        for group in (("all", ""), ("field", pair.field), ("paradigm", pair.paradigm)):
            groups[group].append((is_right, has_unknown))
    rows = []
    for (level, name), answers in sorted(groups.items()):
        shares = np.mean([is_right for is_right, _ in answers], axis=0).tolist()
        unknown = sum(has_unknown for _, has_unknown in answers) / len(answers)
        accuracies = dict(zip(DIRECTIONS, shares, strict=True))
        rows.append({"level": level, "name": name, "pairs": len(answers), **accuracies, "with unknown words": unknown})
    draw_accuracies(rows, DIRECTIONS, folder / "blimp.png")
    print(f"{len(pairs):,} pairs in {(time.monotonic() - started) / 60:.1f} minutes")
    return rows


# ----------------------------------------------------------------------------------------------------------- reading


class ReadWord(NamedTuple):
    """A word of a story, as it is shown to readers: between blanks, with its punctuation."""

    story: str
    text: str
    milliseconds: float | None  # None where it was not read


class Measured(NamedTuple):
    """What is known of the words of all stories: arrays of one entry per word, in reading order."""

    times: np.ndarray  # NaN where a word was not read
    stories: np.ndarray
    sentences: np.ndarray  # numbers
    features: dict[str, np.ndarray]  # length, frequency, forward, backward
    is_unknown: np.ndarray


def read_times(path: Path, column: str) -> list[ReadWord]:
    """Read words and their times. An empty time or 0 is a word that was not read."""
    lines = iter(Corpus(TextLines([str(path)]), name=str(path)))
    reader = csv.DictReader(map(str, lines), delimiter="\t", quoting=csv.QUOTE_NONE)
    missing = [name for name in ("story", "word", column) if name not in (reader.fieldnames or ())]
    if missing:
        raise ElmoError(f"{path}: no column {', '.join(missing)}; there are {', '.join(reader.fieldnames or ())}")
    words = []
    for row in reader:
        with located(f"{path}, line {reader.line_num}"):
            if None in row or None in row.values():
                raise ValueError(f"expected {len(reader.fieldnames or ())} columns")
            text = row["word"]
            if text.split() != [text]:
                raise ValueError(f"expected a word without blanks, got {text!r}")
            milliseconds = float(row[column] or 0)
            if not 0 <= milliseconds < math.inf:
                raise ValueError(f"{column} must be a time in milliseconds, got {row[column]!r}")
            words.append(ReadWord(row["story"], text, milliseconds or None))
    if not words:
        raise ElmoError(f"{path}: there are no words")
    return words


def measure(words: Sequence[ReadWord], model: ElmoForPreTraining, tokenizer: ElmoTokenizer, states: str) -> Measured:
    """Add up, over the parts of every word that are words to the model, their surprisal and log frequency.

    A story is split into sentences; carried states start afresh with each story. The log frequency, in bits, is that
    of the word's place in the vocabulary, which is in order of frequency (Zipf's law).
    """
    log_frequency = (model.softmax.initial_bias() / math.log(2)).tolist()
    features = {name: np.zeros(len(words)) for name in ("length", "frequency", "forward", "backward")}
    features["length"][:] = [len(word.text) for word in words]
    sentences = np.zeros(len(words), dtype=int)
    is_unknown = np.zeros(len(words), dtype=bool)
    first = count = 0
    for _, story in groupby(words, key=lambda word: word.story):
        texts = [word.text for word in story]
        text = " ".join(texts)
        starts = [start for start, _ in find_spans(text, texts)]
        tokenized = is_typed_tokenized(tokenizer, None)
        corpus = Corpus([{"text": text}], tokenized=tokenized)
        for scored in score_sentences(read_sentences(corpus, tokenizer, paragraphs=True), model, tokenizer, states):
            ids = tokenizer.convert_tokens_to_ids(scored.sentence.words)
            for entry, number in zip(word_surprisals(scored), ids, strict=True):
                place = first + int(np.searchsorted(starts, entry.start, side="right")) - 1
                features["forward"][place] += entry.forward
                features["backward"][place] += entry.backward
                features["frequency"][place] += log_frequency[number]
                sentences[place] = count
                is_unknown[place] |= entry.unknown
            count += 1
        first += len(texts)
    times = np.array([math.nan if word.milliseconds is None else word.milliseconds for word in words])
    return Measured(times, np.array([word.story for word in words]), sentences, features, is_unknown)


def usable_words(measured: Measured) -> np.ndarray:
    """Return the places of words that were read and are known, with the words before them in the same story."""
    places = np.arange(SPILL_OVER, len(measured.times))
    kept = ~np.isnan(measured.times[places])
    for back in range(SPILL_OVER + 1):
        kept &= ~measured.is_unknown[places - back]
        kept &= measured.stories[places - back] == measured.stories[places]
    return places[kept]


def predictors(measured: Measured, places: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return the features of words and of the words before them: (words, features * (SPILL_OVER + 1))."""
    columns = [measured.features[name][places - back] for name in names for back in range(SPILL_OVER + 1)]
    return np.stack(columns, axis=1)


def held_out_likelihoods(inputs: np.ndarray, times: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of every word's time, in nats, under a linear regression on words of other groups."""
    likelihoods = np.zeros(len(times))
    folds = GroupKFold(min(FOLDS, len(np.unique(groups))))
    for train, test in folds.split(inputs, times, groups):
        regression = LinearRegression().fit(inputs[train], times[train])
        variance = np.mean((times[train] - regression.predict(inputs[train])) ** 2)
        errors = times[test] - regression.predict(inputs[test])
        likelihoods[test] = -(errors**2 / variance + np.log(2 * np.pi * variance)) / 2
    return likelihoods


def bootstrap(gains: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Return the mean gain per word and its interval, by resampling whole groups."""
    _, index = np.unique(groups, return_inverse=True)
    sums, counts = np.bincount(index, gains), np.bincount(index)
    generator = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        drawn = generator.integers(len(sums), size=len(sums))
        means.append(sums[drawn].sum() / counts[drawn].sum())
    low, high = np.percentile(means, INTERVAL)
    return {"gain": float(gains.mean()), "low": float(low), "high": float(high)}


def slopes(inputs: np.ndarray, times: np.ndarray, names: Sequence[str], scale: float) -> dict[str, float]:
    """Return how many milliseconds a bit of each surprisal takes, on its word and on the next two together."""
    coefficients = LinearRegression().fit(inputs, times).coef_.reshape(-1, SPILL_OVER + 1).sum(1)
    return {name: float(value) * scale for name, value in zip(names, coefficients, strict=True)}


def reading(
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    path: Path,
    column: str,
    raw_times: bool,
    folder: Path,
) -> Rows:
    """Compute how much better surprisal makes a regression of reading times over words' length and log frequency."""
    words = read_times(path, column)
    rows = []
    for states in STATES:
        measured = measure(words, model, tokenizer, states)
        places = usable_words(measured)
        if len(places) < FEWEST_WORDS:
            raise ElmoError(f"{path}: {len(places)} words can be used; a regression needs at least {FEWEST_WORDS}")
        milliseconds = measured.times[places]
        if np.ptp(milliseconds) == 0:
            raise ElmoError(f"{path}: all times are {milliseconds[0]:g}")
        times = milliseconds if raw_times else np.log(milliseconds)
        scale = 1.0 if raw_times else float(milliseconds.mean())
        held_out = {"sentences": measured.sentences[places], "stories": measured.stories[places]}
        for kind, groups in held_out.items():
            if len(np.unique(groups)) == 1:
                continue
            for comparison, (known, added) in COMPARISONS.items():
                names = ("length", "frequency", *known)
                smaller = predictors(measured, places, names)
                larger = predictors(measured, places, (*names, *added))
                gains = held_out_likelihoods(larger, times, groups) - held_out_likelihoods(smaller, times, groups)
                per_bit = slopes(larger, times, (*names, *added), scale)
                rows.append(
                    {
                        "states": states,
                        "held out": kind,
                        "surprisal": comparison,
                        "words": len(places),
                        "ΔLL per word": bootstrap(gains, groups),
                        "forward, ms per bit": per_bit.get("forward"),
                        "backward, ms per bit": per_bit.get("backward"),
                    }
                )
    if not rows:
        raise ElmoError(f"{path}: one sentence alone cannot be held out")
    draw_gains(rows, folder / "reading.png")
    kind = "raw" if raw_times else "log"
    print(f"{len(words):,} words, {rows[0]['words']:,} in the regressions of {kind} {column}; ΔLL in nats per word")
    return rows


# --------------------------------------------------------------------------------------------------------- arguments


TABLES = ("blimp", "reading")


def add_arguments(blimp_parser: argparse.ArgumentParser, reading_parser: argparse.ArgumentParser, limit: Any) -> None:
    blimp_parser.add_argument("files", nargs="+", type=Path, help="minimal pairs, .jsonl, compressed or not")
    blimp_parser.add_argument("--limit", type=limit, help="pairs to read of each paradigm")
    reading_parser.add_argument("file", type=Path, help="a .tsv with the columns story, word and the times")
    help_text = "the column with the times, in milliseconds (default mean_reading_time_ms)"
    reading_parser.add_argument("--times", default="mean_reading_time_ms", metavar="COLUMN", help=help_text)
    reading_parser.add_argument("--raw_times", action="store_true", help="predict times rather than their logarithm")


def make_rows(own: argparse.Namespace) -> Rows:
    """Compute the rows of one of `TABLES`."""
    model, tokenizer = load_scorer(own.model)
    if own.table == "blimp":
        return blimp(model, tokenizer, own.files, own.limit, own.output_dir)
    return reading(model, tokenizer, own.file, own.times, own.raw_times, own.output_dir)
