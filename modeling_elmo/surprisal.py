"""How surprising each word of a text is to the two language models: `elmo surprisal`, and its summary, `elmo score`.

Rows of a corpus -> sentences, with the characters of every word in its row -> log p of every word by each language
model -> one entry per word, in bits, or one line per sentence. Any corpus is read in constant memory.
"""

import csv
import io
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from .corpus import Corpus, open_corpus, warn_about_splitting, warn_about_text
from .embedding import release_memory
from .files import ElmoError, atomic_write, progress_options, require
from .modeling_elmo import ElmoForPreTraining
from .pretraining_elmo import SentenceScore
from .recurrence_elmo import States
from .scoring import unknown_words
from .splitting_elmo import Span, find_spans
from .tokenization_elmo import ElmoTokenizer

# Sentences that are scored, and then written, at once, and how many words end a batch before that.
BATCH_SIZE = 32
BATCH_WORDS = 2048
# A longer sentence is read in pieces.
PIECE_WORDS = 2048
# Words of a row group of Parquet.
ROW_GROUP = 1 << 14
# Batches after which freed memory goes back to the system.
BATCHES_BETWEEN_RELEASES = 50
# Digits of a surprisal in text, after the point.
DIGITS = 6

STATES = ("fresh", "carried")
# What ends a sentence of a paragraph, what may follow that in the same sentence, and what does so only where it is
# attached: as a word of its own it may also begin the next sentence.
SENTENCE_ENDS = frozenset((".", "!", "?", "..", "...", "…"))
CLOSING = frozenset(("''", "”", "’", "»", ")", "]", "}"))
CLOSING_IF_ATTACHED = frozenset(('"', "'"))


class Sentence(NamedTuple):
    """Words that the language models read as one sentence, and where they stand in their row."""

    row: int  # from 0, empty rows counted, as in `elmo embed`
    number: int  # in its row, from 0
    position: int  # of its first word among those of its row
    words: list[str]
    spans: list[Span]
    starts_document: bool  # the first of the corpus, or the first after an empty row


class ScoredSentence(NamedTuple):
    sentence: Sentence
    score: SentenceScore
    unknown: list[int]  # positions of the words that are scored as `<UNK>`


class Surprisal(NamedTuple):
    """How surprising a word is, in bits: -log2 p by each language model, and the mean of the two."""

    row: int
    sentence: int
    position: int
    word: str
    start: int
    end: int
    unknown: bool
    forward: float
    backward: float
    both: float


# ------------------------------------------------------------------------------------------------------- sentences


def split_paragraph(words: list[str], spans: list[Span]) -> list[slice]:
    """Split the words of a paragraph into sentences: after an end such as `.` and the quotes that close it.

    No sentence begins with a small letter, and a full stop that is part of a word, as in `Mr.` or `U.S.`, ends none.
    """
    sentences = []
    start = position = 0
    while position < len(words):
        is_end = words[position] in SENTENCE_ENDS
        position += 1
        while is_end and position < len(words) and _belongs_to_end(words, spans, position):
            position += 1
        if position == len(words) or (is_end and not words[position][:1].islower()):
            sentences.append(slice(start, position))
            start = position
    return sentences


def _belongs_to_end(words: list[str], spans: list[Span], position: int) -> bool:
    is_attached = spans[position][0] == spans[position - 1][1]
    word = words[position]
    return word in SENTENCE_ENDS or word in CLOSING or (is_attached and word in CLOSING_IF_ATTACHED)


def read_sentences(corpus: Corpus, tokenizer: ElmoTokenizer, paragraphs: bool = False) -> Iterator[Sentence]:
    """Yield the sentences of a corpus in reading order: a row is one or, if rows are `paragraphs`, several.

    Where a row is a list of words, spans are those in the words joined by single spaces.
    """
    starts_document = True
    for row, value in enumerate(corpus):
        words = corpus.words(value, tokenizer)
        spans = find_spans(value, words) if isinstance(value, str) else _joined_spans(words)
        parts = split_paragraph(words, spans) if paragraphs else [slice(0, len(words))]
        if not words:
            starts_document = True
            continue
        for number, part in enumerate(parts):
            yield Sentence(row, number, part.start, words[part], spans[part], starts_document)
            starts_document = False


def _joined_spans(words: list[str]) -> list[Span]:
    spans = []
    start = 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return spans


# --------------------------------------------------------------------------------------------------------- scoring


def score_sentences(
    sentences: Iterable[Sentence], model: ElmoForPreTraining, tokenizer: ElmoTokenizer, states: str = "fresh"
) -> Iterator[ScoredSentence]:
    """Yield sentences with their scores: each by itself or, with `carried` states, after those before it.

    As in training, both language models go from sentence to sentence in reading order, and the backward one reads each
    from its end: it knows the sentences before, not those after. The first sentence of a document starts afresh.
    """
    if states not in STATES:
        raise ElmoError(f"`states` must be one of {', '.join(STATES)}, got {states!r}")
    carried: States | None = None
    for count, batch in enumerate(_batches(sentences), start=1):
        if states == "carried":
            scores = []
            for sentence in batch:
                carried = None if sentence.starts_document else carried
                score, carried = _score_one(sentence.words, model, tokenizer, carried)
                scores.append(score)
        elif len(batch[0].words) > PIECE_WORDS:
            scores = [_score_one(batch[0].words, model, tokenizer)[0]]
        else:
            scores = model.score([sentence.words for sentence in batch], tokenizer)
        for sentence, score in zip(batch, scores, strict=True):
            yield ScoredSentence(sentence, score, unknown_words(sentence.words, tokenizer))
        if count % BATCHES_BETWEEN_RELEASES == 0:
            release_memory()


def _batches(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """Yield batches of consecutive sentences; one that is read in pieces is a batch of its own."""
    batch: list[Sentence] = []
    size = 0
    for sentence in sentences:
        is_long = len(sentence.words) > PIECE_WORDS
        if batch and (is_long or len(batch) == BATCH_SIZE or size >= BATCH_WORDS):
            yield batch
            batch, size = [], 0
        if is_long:
            yield [sentence]
            continue
        batch.append(sentence)
        size += len(sentence.words)
    if batch:
        yield batch


def _score_one(
    words: list[str], model: ElmoForPreTraining, tokenizer: ElmoTokenizer, states: States | None = None
) -> tuple[SentenceScore, States]:
    """Score a sentence of any length from given states; return the states after it too."""
    if len(words) <= PIECE_WORDS:
        (score,), states = model.score_batch([words], tokenizer, states)
        return score, states
    row = [str(tokenizer.bos_token), *words, str(tokenizer.eos_token)]
    starts = range(0, len(row), PIECE_WORDS)
    forward, left = _score_pieces(row, starts, 0, model, tokenizer, states)
    backward, right = _score_pieces(row, list(reversed(starts)), 1, model, tokenizer, states)
    outputs, cells = (torch.stack([one[0], other[1]]) for one, other in zip(left, right, strict=True))
    return SentenceScore(forward, backward), (outputs, cells)


@torch.no_grad()
def _score_pieces(
    row: list[str],
    starts: Iterable[int],
    direction: int,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    states: States | None,
) -> tuple[Tensor, States]:
    """Return log p of the words of a row by one of the language models, which reads a piece at each of `starts`."""
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(row), device=model.device)
    ids = ids.where(ids != tokenizer.pad_token_id, tokenizer.unk_token_id)
    scores = torch.zeros(len(row))
    options = {"output_hidden_states": True, "keep_sentence_markers": True, "use_cache": True, "return_dict": True}
    for start in starts:
        piece = row[start : start + PIECE_WORDS]
        inputs = tokenizer([piece], is_split_into_words=True, add_special_tokens=False, return_tensors="pt")
        output = model.elmo(**inputs.to(model.device), states=states, **options)
        states = output.states
        outputs = output.hidden_states[-1][0].chunk(2, dim=-1)[direction]
        # What stands before the row's beginning and after its end is not predicted.
        places = torch.arange(start, start + len(piece)) + (-1 if direction else 1)
        kept = (places >= 0) & (places < len(row))
        targets = ids[places[kept]]
        scores[places[kept]] = -model.softmax(outputs[kept], targets, reduction="none").cpu()
    assert states is not None
    return scores[:-1] if direction else scores[1:], states


def word_surprisals(scored: ScoredSentence) -> Iterator[Surprisal]:
    """Yield what `elmo surprisal` writes of the words of a sentence; its end and its beginning are no words."""
    sentence, score, unknown_places = scored
    unknown = set(unknown_places)
    forward = (score.forward[:-1].double() / -math.log(2)).tolist()
    backward = (score.backward[1:].double() / -math.log(2)).tolist()
    for place, (word, (start, end)) in enumerate(zip(sentence.words, sentence.spans, strict=True)):
        left, right = forward[place], backward[place]
        where = (sentence.row, sentence.number, sentence.position + place)
        yield Surprisal(*where, word, start, end, place in unknown, left, right, (left + right) / 2)


@dataclass
class Summary:
    """Sums over all sentences, for their perplexity."""

    sentences: int = 0
    words: int = 0
    unknown: int = 0
    forward: float = 0.0
    backward: float = 0.0

    def add(self, scored: ScoredSentence) -> None:
        self.sentences += 1
        self.words += len(scored.sentence.words)
        self.unknown += len(scored.unknown)
        self.forward += scored.score.forward.double().sum().item()
        self.backward += scored.score.backward.double().sum().item()

    def __str__(self) -> str:
        predictions = self.words + self.sentences  # with the ends of sentences
        left = math.exp(-self.forward / predictions)
        right = math.exp(-self.backward / predictions)
        both = math.sqrt(left * right)
        sides = f"forward {left:.2f}, backward {right:.2f}"
        share = f"{self.unknown / self.words:.1%} of {self.words:,} words unknown"
        return f"{self.sentences:,} sentences, perplexity {both:.2f} ({sides}), {share}"


def score_corpus(
    source: str,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    summary: Summary,
    tokenized: bool | None = None,
    column: str | None = None,
    split: str | None = None,
    states: str = "fresh",
    paragraphs: bool = False,
    to_file: bool = False,
) -> Iterator[ScoredSentence]:
    """Yield the sentences of a corpus as soon as they are scored, and add each to the summary."""
    warn_about_splitting(tokenizer, tokenized)
    corpus = open_corpus(source, column=column, split=split, streaming=True, tokenized=tokenized)
    warn_about_text(corpus, tokenizer)
    sentences = read_sentences(corpus, tokenizer, paragraphs)
    # Lines in a terminal are progress enough.
    is_hidden = sys.stdout.isatty() and not to_file
    with tqdm(desc="Scoring", unit=" words", disable=is_hidden, **progress_options()) as bar:
        for scored in score_sentences(sentences, model, tokenizer, states):
            summary.add(scored)
            bar.update(len(scored.sentence.words))
            yield scored


# --------------------------------------------------------------------------------------------------- elmo surprisal


def tsv_lines(entries: Iterable[Surprisal]) -> Iterator[str]:
    """Yield a header and a line per word. A word with a quote, a tab or a newline is quoted, as in CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter="\t", lineterminator="")
    for number, entry in enumerate(entries):
        if number == 0:
            yield "\t".join(Surprisal._fields)
        writer.writerow([_text(value) for value in entry])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def json_lines(entries: Iterable[Surprisal]) -> Iterator[str]:
    """Yield a JSON object per word."""
    for entry in entries:
        rounded = {name: getattr(entry, name) for name in Surprisal._fields}
        for name in ("forward", "backward", "both"):
            rounded[name] = round(rounded[name], DIGITS)
        yield json.dumps(rounded, ensure_ascii=False)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.{DIGITS}f}" if isinstance(value, float) else str(value)


def _write_parquet(path: Path, entries: Iterator[Surprisal]) -> None:
    pa, parquet = require("pyarrow", "embed"), require("pyarrow.parquet", "embed")
    types = [pa.int64(), pa.int32(), pa.int32(), pa.string(), pa.int32(), pa.int32(), pa.bool_()]
    types += [pa.float32()] * 3
    schema = pa.schema(list(zip(Surprisal._fields, types, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(itertools.islice(entries, ROW_GROUP)):
            columns = [pa.array(column, kind) for column, kind in zip(zip(*group, strict=True), types, strict=True)]
            writer.write_table(pa.table(columns, schema=schema))


TEXT_FORMATS: dict[str, Callable[[Iterable[Surprisal]], Iterator[str]]] = {"tsv": tsv_lines, "jsonl": json_lines}
FORMATS = (*TEXT_FORMATS, "parquet")


def choose_format(output: Path | None, name: str | None) -> str:
    """Return the format of the output, by its name or the file's extension; standard output is a TSV by default."""
    if name is None:
        name = "tsv" if output is None else output.suffix.lower()[1:]
        if name not in FORMATS:
            raise ElmoError(f"{output}: the output must end in .{', .'.join(FORMATS)}; or choose one with --format")
    if name not in FORMATS:
        raise ElmoError(f"--format must be one of {', '.join(FORMATS)}, got {name!r}")
    if name == "parquet" and output is None:
        raise ElmoError("--format parquet needs a file: name one with --output")
    return name


def word_entries(scored: Iterable[ScoredSentence], source: str) -> Iterator[Surprisal]:
    """Yield the entries of all words; refuse a corpus without any."""
    is_empty = True
    for sentence in scored:
        is_empty = False
        yield from word_surprisals(sentence)
    if is_empty:
        raise ElmoError(f"{'standard input' if source == '-' else source}: holds no sentences")


def write_surprisals(entries: Iterator[Surprisal], output: Path, output_format: str) -> None:
    """Write a file of one entry per word, whole or not at all."""
    with atomic_write(output) as scratch:
        if output_format == "parquet":
            _write_parquet(scratch, entries)
            return
        with open(scratch, "w", encoding="utf-8", newline="\n") as file:
            for line in TEXT_FORMATS[output_format](entries):
                file.write(line + "\n")


# ------------------------------------------------------------------------------------------------------- elmo score


def score_lines(
    source: str,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    tokenized: bool | None = None,
    per_word: bool = False,
    as_json: bool = False,
    column: str | None = None,
    split: str | None = None,
) -> Iterator[str]:
    """Yield lines for each sentence as soon as it is computed; print a summary of all to standard error."""
    summary = Summary()
    for scored in score_corpus(source, model, tokenizer, summary, tokenized, column, split):
        if summary.sentences == 1 and not as_json:
            yield "log-probability\tperplexity\tunknown\tsentence"
        yield from _format_score(scored, per_word, as_json)
    print(summary if summary.sentences else "no sentences: the input is empty", file=sys.stderr)


def _format_score(scored: ScoredSentence, per_word: bool, as_json: bool) -> Iterator[str]:
    sentence, score, unknown = scored
    words = sentence.words
    forward, backward = score.forward.tolist(), score.backward.tolist()
    if as_json:
        entry: dict[str, Any] = {"words": words, "unknown": unknown}
        entry |= {"log_probability": score.log_probability, "perplexity": score.perplexity}
        if per_word:
            entry |= {"forward": forward, "backward": backward}
        yield json.dumps(entry, ensure_ascii=False)
        return
    yield f"{score.log_probability:.3f}\t{score.perplexity:.2f}\t{len(unknown)}\t{' '.join(words)}"
    if per_word:
        # The forward model also predicts the end of the sentence, last, and the backward model its beginning, first.
        for position, (word, left, right) in enumerate(zip(words, forward, backward[1:], strict=False)):
            mark = "\t<UNK>" if position in unknown else ""
            yield f"  {word}\tforward {left:.3f}\tbackward {right:.3f}{mark}"
