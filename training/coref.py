"""Coreference: documents whose words are in mentions, and mentions in clusters. Files, examples and scores.

A document is its sentences, as words, and its clusters, each a list of mentions. A mention is a span of words that are
numbered through the document: its first word and one past its last.

Files are in the format of CoNLL-2012, of which the fourth column, the word, and the last, the brackets of mentions,
are read; or tables with `sentences` and `clusters`, where a mention is its first and its last word, as in published
data sets.
"""

import itertools
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from datasets import Dataset
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from modeling_elmo import ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from training.examples import Examples
from training.readers import Line, located, read_blocks, read_lines, to_dataset
from training.settings import TaskSettings
from training.tasks import Task

logger = logging.getLogger(__name__)

WORD_COLUMN = 3
# Columns between the word and the brackets, which the format has and we have nothing for.
EMPTY_COLUMNS = ["-"] * 8

_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:;\s*part\s+(\S+))?\s*$")
_BRACKET = re.compile(r"(\()?([^()|\s]+?)(\))?")

Mention = tuple[int, int]
Clusters = list[list[Mention]]


class Document(NamedTuple):
    """A document and its clusters. `part` is of OntoNotes, whose documents may have several."""

    name: str
    part: str
    sentences: list[list[str]]
    clusters: Clusters


# ----------------------------------------------------------------------------------------------------------- reading


def read_conll(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents between `#begin document` and `#end document`, as rows."""
    begin: tuple[int, str] | None = None  # number and text of the line that opened a document
    lines: list[tuple[int, str]] = []
    for number, text in read_lines(path):
        with located(f"{path}, line {number}"):
            if text.startswith("#begin document"):
                if begin:
                    raise ValueError(f"the document that begins in line {begin[0]} has no `#end document`")
                begin, lines = (number, text), []
            elif text.startswith("#end document"):
                if not begin:
                    raise ValueError("`#end document` without a `#begin document` before it")
                with located(f"{path}, line {begin[0]}"):
                    yield _parse_document(begin[1], lines, path)._asdict()
                begin = None
            elif not text.startswith("#"):
                if text.strip() and not begin:
                    raise ValueError("a word outside of `#begin document` and `#end document`")
                lines.append((number, text))
    if begin:
        raise ElmoError(f"{path}: the document that begins in line {begin[0]} has no `#end document`")


def _parse_document(begin: str, lines: list[tuple[int, str]], path: Path) -> Document:
    parts = _BEGIN.match(begin)
    name = parts[1] if parts else ""
    part = parts[2] if parts and parts[2] else "0"
    sentences = []
    brackets = _Brackets()
    for block in read_blocks(lines, path):
        for line in block:
            with located(line.place):
                if len(line.columns) < WORD_COLUMN + 2:
                    raise ValueError(
                        f"{len(line.columns)} columns; expected document, part, number, word, ..., brackets"
                    )
                brackets.read(line)
        sentences.append([line.columns[WORD_COLUMN] for line in block])
    return checked(Document(name, part, sentences, brackets.clusters()))


class _Brackets:
    """The last column of a document, read word by word: `(3` begins a mention of cluster 3, `3)` ends the last one
    that began, `(3)` is one, and several are separated by `|`.
    """

    def __init__(self) -> None:
        self.word = 0
        self.open: defaultdict[str, list[tuple[int, Line]]] = defaultdict(list)  # first words of mentions
        self.found: defaultdict[str, list[Mention]] = defaultdict(list)

    def read(self, line: Line) -> None:
        cell = line.columns[-1].strip()
        brackets = [] if cell in ("", "-") else cell.split("|")
        for bracket in brackets:
            parts = _BRACKET.fullmatch(bracket)
            if parts is None or not (parts[1] or parts[3]):
                raise ValueError(f"not brackets of mentions: {cell!r}; expected something like (3), (3, 3)|(5 or -")
            begins, cluster, ends = parts.groups()
            if begins:
                self.open[cluster].append((self.word, line))
            if ends:
                if not self.open[cluster]:
                    raise ValueError(f"`{cluster})` ends a mention of cluster {cluster} that has not begun")
                first, _ = self.open[cluster].pop()
                self.found[cluster].append((first, self.word + 1))
        self.word += 1

    def clusters(self) -> Clusters:
        unclosed = []
        for cluster, mentions in self.open.items():
            for _, line in mentions:
                unclosed.append((line.number, line.place, cluster))
        if unclosed:
            _, place, cluster = min(unclosed)
            raise ElmoError(f"{place}: `({cluster}` begins a mention that never ends")
        return sorted(sorted(mentions) for mentions in self.found.values())


def document_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a document of a table, where a mention is its first and its last word."""
    try:
        sentences = [_check_words(words) for words in values["sentences"] if len(words)]
        clusters = []
        for mentions in values["clusters"]:
            spans = [(int(first), int(last) + 1) for first, last in mentions]
            if spans:
                clusters.append(sorted(spans))
    except (TypeError, ValueError):
        raise ValueError(
            "`sentences` must be lists of words and `clusters` lists of [first word, last word]"
        ) from None
    return checked(Document(str(values["doc_key"]), "0", sentences, clusters))._asdict()


def _check_words(words: Any) -> list[str]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise TypeError
    return list(words)


def to_document(row: Mapping[str, Any]) -> Document:
    """Return a row of a data set as a document."""
    clusters = []
    for mentions in row["clusters"]:
        clusters.append([(first, end) for first, end in mentions])
    return Document(row["name"], row["part"], row["sentences"], clusters)


def checked(document: Document) -> Document:
    """Refuse a document without words or with impossible mentions; merge clusters that share a mention."""
    length = sum(len(words) for words in document.sentences)
    if not length:
        raise ValueError(f"the document {document.name!r} is empty")
    clusters = _merge_clusters(document.clusters)
    for mentions in clusters:
        for first, end in mentions:
            if not 0 <= first < end <= length:
                raise ValueError(f"words {first} to {end - 1} are not words of a document of {length}")
        crossing = find_crossing(mentions)
        if crossing:
            raise ValueError(f"mentions of one cluster cross: {crossing}")
    crossing = find_crossing(list(itertools.chain(*clusters)))
    if crossing:
        logger.warning("%s: mentions cross, at least one of which is not learned: %s", document.name, crossing)
    return document._replace(clusters=clusters)


def _merge_clusters(clusters: Clusters) -> Clusters:
    """Return the clusters without repeated mentions; two that share a mention become one, as OntoNotes has some."""
    merged: list[set[Mention]] = []
    for mentions in clusters:
        whole = set(mentions)
        for other in list(merged):
            shared = whole & other
            if shared:
                first, end = min(shared)
                logger.warning("words %d to %d are a mention of two clusters, which become one", first, end - 1)
                whole |= other
                merged.remove(other)
        merged.append(whole)
    return sorted(sorted(whole) for whole in merged)


def find_crossing(mentions: Sequence[Mention]) -> str:
    """Describe two mentions that share words without one being in the other; return "" if there are none."""
    enclosing: list[Mention] = []
    for first, end in sorted(mentions, key=lambda span: (span[0], -span[1])):
        enclosing = [outer for outer in enclosing if outer[1] > first]
        for outer in enclosing:
            if outer[1] < end:
                return f"words {outer[0]} to {outer[1] - 1} and words {first} to {end - 1}"
        enclosing.append((first, end))
    return ""


def cut_document(document: Document, most_words: int) -> Iterator[Document]:
    """Yield parts of at most so many words, but whole sentences; mentions across two parts are lost."""
    parts: list[list[list[str]]] = [[]]
    words = 0
    for sentence in document.sentences:
        if parts[-1] and words + len(sentence) > most_words:
            parts.append([])
            words = 0
        parts[-1].append(sentence)
        words += len(sentence)
    begin = 0
    for sentences in parts:
        end = begin + sum(len(sentence) for sentence in sentences)
        clusters = []
        for mentions in document.clusters:
            inside = [(first - begin, last - begin) for first, last in mentions if begin <= first and last <= end]
            if inside:
                clusters.append(inside)
        yield document._replace(sentences=sentences, clusters=clusters)
        begin = end


# ----------------------------------------------------------------------------------------------------------- writing


def write_document(file: TextIO, document: Document) -> None:
    """Write a document in CoNLL-2012 format; columns that we have nothing for are `-`."""
    spans = []
    for number, mentions in enumerate(document.clusters):
        crossing = find_crossing(mentions)
        if crossing:
            raise ElmoError(f"{document.name}: brackets cannot express that mentions of one cluster cross: {crossing}")
        for first, end in mentions:
            spans.append((first, end, number))
    cells: defaultdict[int, list[str]] = defaultdict(list)
    # In a cell mentions that begin come first, the longest first, then those of one word, then those that end.
    for first, end, number in sorted(spans, key=lambda span: -span[1]):
        if end - first > 1:
            cells[first].append(f"({number}")
    for first, end, number in spans:
        if end - first == 1:
            cells[first].append(f"({number})")
    for first, end, number in sorted(spans, key=lambda span: -span[0]):
        if end - first > 1:
            cells[end - 1].append(f"{number})")
    file.write(f"#begin document ({document.name}); part {document.part}\n")
    place = itertools.count()
    for sentence in document.sentences:
        for number, word in enumerate(sentence):
            brackets = "|".join(cells[next(place)]) or "-"
            columns = [document.name, document.part, str(number), word, *EMPTY_COLUMNS, brackets]
            file.write("\t".join(columns) + "\n")
        file.write("\n")
    file.write("#end document\n")


# ------------------------------------------------------------------------------------------------------------ scores


class Fractions(NamedTuple):
    """Recall and precision before division, so that documents can be added up."""

    recalled: float
    in_gold: float
    precise: float
    in_predicted: float


def muc(gold: Clusters, predicted: Clusters) -> Fractions:
    """Count the fewest links that hold each cluster together, less those the other lacks (Vilain et al., 1995)."""
    return Fractions(*_links(gold, predicted), *_links(predicted, gold))


def _links(clusters: Clusters, others: Clusters) -> tuple[int, int]:
    cluster_of = _cluster_ids(others)
    shared = total = 0
    for mentions in clusters:
        parts = {cluster_of.get(mention, mention) for mention in mentions}
        shared += len(mentions) - len(parts)
        total += len(mentions) - 1
    return shared, total


def _cluster_ids(clusters: Clusters) -> dict[Mention, int]:
    ids = {}
    for number, mentions in enumerate(clusters):
        ids.update(dict.fromkeys(mentions, number))
    return ids


def _overlaps(gold: Clusters, predicted: Clusters) -> np.ndarray:
    """Count the mentions that each two clusters share: (gold, predicted)."""
    cluster_of = _cluster_ids(predicted)
    shared = np.zeros((len(gold), len(predicted)))
    for number, mentions in enumerate(gold):
        for mention in mentions:
            if mention in cluster_of:
                shared[number, cluster_of[mention]] += 1
    return shared


def _sizes(clusters: Clusters) -> np.ndarray:
    return np.array([len(mentions) for mentions in clusters], dtype=float)


def b_cubed(gold: Clusters, predicted: Clusters) -> Fractions:
    """Count mentions by how much of their cluster is in theirs on the other side (Bagga and Baldwin, 1998)."""
    squares = _overlaps(gold, predicted) ** 2
    in_gold, in_predicted = _sizes(gold), _sizes(predicted)
    recalled = (squares.sum(1) / in_gold).sum()
    precise = (squares.sum(0) / in_predicted).sum()
    return Fractions(float(recalled), float(in_gold.sum()), float(precise), float(in_predicted.sum()))


def ceaf(gold: Clusters, predicted: Clusters) -> Fractions:
    """Sum the similarity φ4 of clusters (Luo, 2005) in the best one-to-one alignment."""
    similarity = 2 * _overlaps(gold, predicted) / (_sizes(gold)[:, None] + _sizes(predicted)[None])
    total = float(similarity[linear_sum_assignment(similarity, maximize=True)].sum())
    return Fractions(total, len(gold), total, len(predicted))


def mention(gold: Clusters, predicted: Clusters) -> Fractions:
    """Count the mentions that are found, whatever their clusters."""
    both = float(_overlaps(gold, predicted).sum())
    return Fractions(both, float(_sizes(gold).sum()), both, float(_sizes(predicted).sum()))


# The mean F1 of the first three is what CoNLL-2012 compared systems by.
METRICS = {"muc": muc, "b_cubed": b_cubed, "ceaf": ceaf, "mention": mention}


def coreference_scores(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """Compute precision, recall and F1 of each metric over some documents, and `conll_f1`, the mean of three F1.

    As the CoNLL-2012 scorer counts: over all documents together, of the clusters that there are, singletons included.
    """
    scores = {"conll_f1": 0.0}
    for name, metric in METRICS.items():
        documents = [metric(*clusters) for clusters in zip(gold, predicted, strict=True)]
        recalled, in_gold, precise, in_predicted = (sum(column) for column in zip(*documents, strict=True))
        precision = precise / in_predicted if in_predicted else 0.0
        recall = recalled / in_gold if in_gold else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        scores |= {f"{name}_precision": precision, f"{name}_recall": recall, f"{name}_f1": f1}
    scores["conll_f1"] = (scores["muc_f1"] + scores["b_cubed_f1"] + scores["ceaf_f1"]) / 3
    return scores


def without_singletons(clusters: Clusters) -> Clusters:
    """Return the clusters of two mentions or more."""
    return [mentions for mentions in clusters if len(mentions) > 1]


# -------------------------------------------------------------------------------------------------------------- task


class Coreference(Task):
    """The mentions in a document that refer to the same thing."""

    predictions_file = "predictions.conll"

    def prepare(self, rows: Dataset, settings: TaskSettings, training: bool, source: str) -> Dataset:
        """Cut the documents for training, if the settings say so."""
        if not training or not settings.document_words:
            return rows
        parts = []
        for row in rows:
            for document in cut_document(to_document(row), settings.document_words):
                parts.append(document._asdict())
        return to_dataset(parts, source)

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        documents = [to_document(row) for row in rows]
        sequences = []
        for document in documents:
            for words in document.sentences:
                sequences.append((words,))
        return Examples(sequences, documents, per_example=[len(document.sentences) for document in documents])

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows = []
        for document in labels:
            mentions = []
            for number, spans in enumerate(document.clusters):
                for first, end in spans:
                    mentions.append((first, end, number))
            rows.append(torch.tensor(mentions, dtype=torch.long).view(-1, 3))
        return {"labels": pad_sequence(rows, batch_first=True, padding_value=IGNORED)}

    def scores(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, float]:
        """Score all clusters and, as OntoNotes has them, those of two mentions or more."""
        gold = [document.clusters for document in examples.labels]
        predicted = [predicted_clusters(rows) for rows in predictions]
        linked = coreference_scores(
            [without_singletons(clusters) for clusters in gold],
            [without_singletons(clusters) for clusters in predicted],
        )
        return {**coreference_scores(gold, predicted), "without_singletons_conll_f1": linked["conll_f1"]}

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predictions: np.ndarray
    ) -> None:
        """Write the documents in CoNLL-2012 format with the predicted clusters."""
        for document, rows in zip(examples.labels, predictions, strict=True):
            write_document(file, document._replace(clusters=predicted_clusters(rows)))


def predicted_clusters(rows: np.ndarray) -> Clusters:
    """Return a head's predictions (M, 3) for a document as clusters."""
    clusters: dict[int, list[Mention]] = {}
    for first, end, number in rows[rows[:, 0] != IGNORED].tolist():
        clusters.setdefault(number, []).append((first, end))
    return list(clusters.values())
