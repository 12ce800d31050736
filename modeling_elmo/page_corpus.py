"""The corpus of a page of senses: its sentences, its words, and the senses that a table names.

A table of senses is a .tsv file with the columns `word`, `sense` and `sentence`; the word stands in the sentence.
Anything else is read as by every other command.
"""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .corpus import decode_lines, is_tokenized, open_corpus
from .files import ElmoError
from .tokenization_elmo import ElmoTokenizer

SENSE_COLUMNS = ("word", "sense", "sentence")
# More would be slow to search in a browser, and to scroll.
MOST_SENTENCES = 5_000
# Words of a sentence; a longer one takes a browser seconds to read.
LONGEST_SENTENCE = 200
# The uses of a word that a map can show; of more, evenly spaced ones.
MOST_USES = 300
# A word that is prepared without being named: how often it occurs at least, how long it is, how many there are.
FEWEST_USES, SHORTEST_WORD, MOST_CHOSEN = 4, 3, 40
# Words of a vocabulary, the most frequent first, that have many uses and little sense.
FUNCTION_WORDS = 500
# Without a vocabulary, a word in so many of the sentences is one.
LARGEST_SHARE = 0.05

Place = tuple[int, int]  # the number of a sentence, and of a word in it


class WordUses(NamedTuple):
    """The uses of a word, in upper or lower case: at most `MOST_USES` places, and how many there are in all."""

    word: str
    places: list[Place]
    total: int


@dataclass
class PageCorpus:
    """The sentences of a page and what is known of their words.

    Attributes:
        name: what the page calls it.
        sentences: the words of each sentence.
        senses: the sense of the word at a place, where the file names one.
        named: the words that the file names senses of, in lower case.
        total: how many sentences the file has, if these are a sample.
        too_long: how many were left out for their length.
    """

    name: str
    sentences: list[list[str]]
    senses: dict[Place, str] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    total: int = 0
    too_long: int = 0

    @property
    def word_count(self) -> int:
        return sum(map(len, self.sentences))

    def places(self) -> dict[str, list[Place]]:
        """Return where each word is, in lower case."""
        places: dict[str, list[Place]] = {}
        for number, words in enumerate(self.sentences):
            for position, word in enumerate(words):
                places.setdefault(word.lower(), []).append((number, position))
        return places


def read_page_corpus(
    source: str,
    tokenizer: ElmoTokenizer,
    words: Sequence[str] = (),
    sample: int | None = None,
    tokenized: bool | None = None,
    column: str | None = None,
) -> PageCorpus:
    """Read the corpus of a page; with `sample`, so many sentences, those with one of the words first."""
    corpus = PageCorpus(Path(source).name, [])
    if column is None and _has_senses(source):
        _read_senses(corpus, source, tokenizer, tokenized)
    else:
        opened = open_corpus(source, column=column, streaming=True, tokenized=tokenized)
        for row in opened:
            corpus.sentences += opened.sentences(row, tokenizer)
    if not corpus.sentences:
        raise ElmoError(f"{source}: the corpus is empty: it has no sentence with a word")
    corpus.total = len(corpus.sentences)
    long = {number for number, words in enumerate(corpus.sentences) if len(words) > LONGEST_SENTENCE}
    corpus.too_long = len(long)
    kept = [number for number in range(corpus.total) if number not in long]
    if sample is not None and sample < len(kept):
        kept = _draw(corpus, kept, set(words), sample)
    if len(kept) > MOST_SENTENCES:
        raise ElmoError(
            f"{source}: {len(kept):,} sentences are too many for a page, which holds {MOST_SENTENCES:,}; "
            f"--sample {MOST_SENTENCES} draws some of them, those with one of the --words first"
        )
    if not kept:
        raise ElmoError(f"{source}: no sentence has at most {LONGEST_SENTENCE} words; put one sentence on each line")
    _keep(corpus, kept)
    return corpus


def _has_senses(source: str) -> bool:
    """Return whether a file is a table of senses, by the names of its columns."""
    path = Path(source)
    if path.suffix.lower() != ".tsv" or not path.is_file():
        return False
    with path.open("rb") as stream:
        header = next(decode_lines(stream, source), "")
    return set(SENSE_COLUMNS) <= set(header.split("\t"))


def _read_senses(corpus: PageCorpus, source: str, tokenizer: ElmoTokenizer, tokenized: bool | None) -> None:
    """Read a table of senses. A sentence that has several rows is kept once."""
    numbers: dict[tuple[str, ...], int] = {}
    splits_at_whitespace = is_tokenized(tokenizer, tokenized)
    with open(source, "rb") as stream:
        for line, row in enumerate(csv.DictReader(decode_lines(stream, source), dialect="excel-tab"), start=2):
            word, sense, sentence = ((row[name] or "").strip() for name in SENSE_COLUMNS)
            words = sentence.split() if splits_at_whitespace else tokenizer.tokenize(sentence)
            lower = [text.lower() for text in words]
            if not word or not sense or word.lower() not in lower:
                raise ElmoError(f"{source}: line {line}: expected a word, its sense and a sentence with the word")
            number = numbers.setdefault(tuple(words), len(numbers))
            if number == len(corpus.sentences):
                corpus.sentences.append(words)
            corpus.senses[number, lower.index(word.lower())] = sense
            if word.lower() not in corpus.named:
                corpus.named.append(word.lower())


def _draw(corpus: PageCorpus, kept: list[int], words: set[str], sample: int) -> list[int]:
    """Draw sentences at random, always the same ones, those with one of the words before all others."""
    shuffled = random.Random(0).sample(kept, len(kept))
    shuffled.sort(key=lambda number: words.isdisjoint(text.lower() for text in corpus.sentences[number]))
    return sorted(shuffled[:sample])


def _keep(corpus: PageCorpus, kept: list[int]) -> None:
    """Keep some of the sentences, with new numbers."""
    new = {number: place for place, number in enumerate(kept)}
    corpus.sentences = [corpus.sentences[number] for number in kept]
    senses = corpus.senses.items()
    corpus.senses = {(new[number], position): sense for (number, position), sense in senses if number in new}


def parse_words(words: str | None) -> list[str]:
    """Return the words of an option, separated by commas, in lower case and each once."""
    if words is None:
        return []
    parsed = dict.fromkeys(word.strip().lower() for word in words.split(","))
    parsed.pop("", None)
    if not parsed:
        raise ElmoError(f"--words must be words separated by commas, such as bank,present,play; got {words!r}")
    return list(parsed)


def find_uses(corpus: PageCorpus, tokenizer: ElmoTokenizer, words: Sequence[str]) -> list[WordUses]:
    """Return the uses of the words that a page prepares: those asked for, those of the file, or many with a sense."""
    places = corpus.places()
    if missing := [word for word in words if word not in places]:
        listed = ", ".join(map(repr, missing))
        raise ElmoError(f"{corpus.name}: it has no word {listed}; --words must occur in the corpus as they are split")
    words = words or corpus.named or _choose(corpus, tokenizer, places)
    uses = []
    for word in words:
        own = places.get(word, [])
        step = max(len(own) / MOST_USES, 1)
        kept = [own[int(number * step)] for number in range(min(len(own), MOST_USES))]
        if kept:
            uses.append(WordUses(word, kept, len(own)))
    return uses


def _choose(corpus: PageCorpus, tokenizer: ElmoTokenizer, places: dict[str, list[Place]]) -> list[str]:
    """Choose words with many uses, the most frequent first, that are not function words."""
    has_vocabulary = len(tokenizer) > FUNCTION_WORDS
    chosen = []
    for word, own in places.items():
        if len(own) < FEWEST_USES or len(word) < SHORTEST_WORD or not word.isalpha():
            continue
        if has_vocabulary:
            is_frequent = tokenizer.convert_tokens_to_ids(word) < FUNCTION_WORDS
        else:
            is_frequent = len(own) > max(LARGEST_SHARE * len(corpus.sentences), FEWEST_USES)
        if not is_frequent:
            chosen.append(word)
    chosen.sort(key=lambda word: (-len(places[word]), word))
    return chosen[:MOST_CHOSEN]
