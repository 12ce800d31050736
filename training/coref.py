"""Coreference: documents whose words are in mentions, and mentions in clusters. Files, examples and scores.

A document is its sentences, as words, and its clusters, each a list of mentions. A mention is a span of words that are
numbered through the document: its first word and one past its last.

Files are in the format of CoNLL-2012, of which the fourth column, the word, and the last, the brackets of mentions,
are read; or tables with `sentences` and `clusters`, where a mention is its first and its last word, as in published
data sets.
"""

import io
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

from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError

from .examples import Examples
from .readers import located, read_blocks, read_lines, to_dataset
from .settings import TaskSettings
from .tasks import Task

logger = logging.getLogger(__name__)

WORD_COLUMN = 3
# Columns between the word and the brackets, which the format has and we have nothing for.
EMPTY_COLUMNS = ["-"] * 8

_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:;\s*part\s+(\S+))?\s*$")
_BRACKET = re.compile(r"(?=\(|.*\))(\()?([^()|\s]+?)(\))?")

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
        if text.startswith("#begin document") and not begin:
            begin, lines = (number, text), []
        elif text.startswith("#end document") and begin:
            with located(f"{path}, line {begin[0]}"):
                yield _parse_document(begin[1], lines, path)._asdict()
            begin = None
        elif text.startswith(("#begin document", "#end document")) or (text.strip() and not begin):
            raise ElmoError(f"{path}, line {number}: expected words between `#begin document` and `#end document`")
        elif not text.startswith("#"):
            lines.append((number, text))
    if begin:
        raise ElmoError(f"{path}: the document that begins in line {begin[0]} has no `#end document`")


def _parse_document(begin: str, lines: list[tuple[int, str]], path: Path) -> Document:
    """Return a document, given its first line and those of its words.

    In the last column `(3` begins a mention of cluster 3, `3)` ends the last one that began, `(3)` is one, and several
    are separated by `|`.
    """
    sentences: list[list[str]] = []
    open_mentions: defaultdict[str, list[int]] = defaultdict(list)  # the first words of each cluster's
    clusters: defaultdict[str, list[Mention]] = defaultdict(list)
    word = 0
    for block in read_blocks(lines, path):
        sentences.append([])
        for line in block:
            with located(line.place):
                if len(line.columns) < WORD_COLUMN + 2:
                    raise ValueError(
                        f"{len(line.columns)} columns; expected document, part, number, word and brackets"
                    )
                for begins, cluster, ends in _parse_brackets(line.columns[-1].strip()):
                    if begins:
                        open_mentions[cluster].append(word)
                    if ends and not open_mentions[cluster]:
                        raise ValueError(f"`{cluster})` ends a mention of cluster {cluster} that has not begun")
                    if ends:
                        clusters[cluster].append((open_mentions[cluster].pop(), word + 1))
            sentences[-1].append(line.columns[WORD_COLUMN])
            word += 1
    for cluster, words in open_mentions.items():
        if words:
            raise ValueError(f"`({cluster}` begins a mention that never ends")
    parts = _BEGIN.match(begin)
    name, part = parts.groups() if parts else ("", None)
    return checked(Document(name, part or "0", sentences, list(clusters.values())))


def _parse_brackets(cell: str) -> Iterator[tuple[str | None, str, str | None]]:
    """Yield what begins, the cluster and what ends, of each bracket of a cell."""
    if cell in ("", "-"):
        return
    for bracket in cell.split("|"):
        parts = _BRACKET.fullmatch(bracket)
        if parts is None:
            raise ValueError(f"not brackets of mentions: {cell!r}; expected something like (3), (3, 3)|(5 or -")
        yield parts[1], parts[2], parts[3]


def document_row(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check a document of a table, where a mention is its first and its last word."""
    for words in values["sentences"]:
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"`sentences` must be lists of words, got {str(words)[:60]}")
    clusters = []
    for mentions in values["clusters"]:
        clusters.append([(int(first), int(last) + 1) for first, last in mentions])
    sentences = [words for words in values["sentences"] if words]
    return checked(Document(str(values["doc_key"]), "0", sentences, clusters))._asdict()


def to_document(row: Mapping[str, Any]) -> Document:
    """Return a row of a data set as a document."""
    clusters = [[(first, end) for first, end in mentions] for mentions in row["clusters"]]
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
    crossing = find_crossing(list(itertools.chain(*clusters)))
    if crossing:
        logger.warning("%s: mentions cross, at least one of which is not learned: %s", document.name, crossing)
    return document._replace(clusters=clusters)


def _merge_clusters(clusters: Clusters) -> Clusters:
    """Return the clusters without repeated mentions; two that share a mention become one, as OntoNotes has some."""
    merged: list[set[Mention]] = []
    for mentions in filter(None, clusters):
        whole = set(mentions)
        for other in list(merged):
            if whole & other:
                first, end = min(whole & other)
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
        for first, end in mentions:
            spans.append((first, end, number))
    # In a cell mentions that begin come first, the longest first, then those of one word, then those that end.
    begins, singles, ends = (defaultdict[int, list[str]](list) for _ in range(3))
    for first, end, number in sorted(spans, key=lambda span: -span[1]):
        if end - first > 1:
            begins[first].append(f"({number}")
        else:
            singles[first].append(f"({number})")
    for first, end, number in sorted(spans, key=lambda span: -span[0]):
        if end - first > 1:
            ends[end - 1].append(f"{number})")
    file.write(f"#begin document ({document.name}); part {document.part}\n")
    place = 0
    for sentence in document.sentences:
        for number, word in enumerate(sentence):
            brackets = "|".join(begins[place] + singles[place] + ends[place]) or "-"
            columns = [document.name, document.part, str(number), word, *EMPTY_COLUMNS, brackets]
            file.write("\t".join(columns) + "\n")
            place += 1
        file.write("\n")
    file.write("#end document\n")


# ------------------------------------------------------------------------------------------------------------ scores


def count_matches(gold: Clusters, predicted: Clusters) -> np.ndarray:
    """Return recall and precision of a document before division, so that documents can be added up: (metric, 4).

    A row has what was recalled, out of how much, what was precise, and out of how much, for each of `METRICS`.
    """
    shared = np.array([[len(set(one) & set(other)) for other in predicted] for one in gold])
    shared = shared.reshape(len(gold), len(predicted))  # mentions that two clusters share
    in_gold = np.array([len(mentions) for mentions in gold], dtype=float)
    in_predicted = np.array([len(mentions) for mentions in predicted], dtype=float)
    total, total_predicted = in_gold.sum(), in_predicted.sum()
    # MUC: the fewest links that hold each cluster together, less those the other side lacks (Vilain et al., 1995).
    links = shared.sum() - np.count_nonzero(shared)
    # B³: mentions by how much of their cluster is in theirs on the other side (Bagga and Baldwin, 1998).
    recalled = ((shared**2).sum(1) / in_gold).sum()
    precise = ((shared**2).sum(0) / in_predicted).sum()
    # CEAF: the similarity φ4 of clusters in the best one-to-one alignment (Luo, 2005).
    similarity = 2 * shared / (in_gold[:, None] + in_predicted)
    aligned = similarity[linear_sum_assignment(similarity, maximize=True)].sum()
    return np.array(
        [
            [links, total - len(gold), links, total_predicted - len(predicted)],
            [recalled, total, precise, total_predicted],
            [aligned, len(gold), aligned, len(predicted)],
            [shared.sum(), total, shared.sum(), total_predicted],
        ]
    )


# The mean F1 of the first three is what CoNLL-2012 compared systems by; the last counts mentions, whatever their
# clusters.
METRICS = ("muc", "b_cubed", "ceaf", "mention")


def coreference_scores(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """Compute precision, recall and F1 of each metric over some documents, and `conll_f1`, the mean of three F1.

    As the CoNLL-2012 scorer counts: over all documents together, of the clusters that there are, singletons included.
    """
    counts = sum(count_matches(*clusters) for clusters in zip(gold, predicted, strict=True))
    scores = {"conll_f1": 0.0}
    for name, (recalled, in_gold, precise, in_predicted) in zip(METRICS, counts.tolist(), strict=True):
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

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        documents = [to_document(row) for row in rows]
        sequences = []
        for document in documents:
            for words in document.sentences:
                sequences.append((words,))
        return Examples(sequences, documents, per_example=[len(document.sentences) for document in documents])

    def targets(self, labels: Sequence[Any]) -> dict[str, Tensor]:
        rows = []
        for document in labels:
            mentions = []
            for number, spans in enumerate(document.clusters):
                for first, end in spans:
                    mentions.append((first, end, number))
            rows.append(torch.tensor(mentions, dtype=torch.long).view(-1, 3))
        return {"labels": pad_sequence(rows, batch_first=True, padding_value=IGNORED)}

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        """Score all clusters and, as OntoNotes has them, those of two mentions or more."""
        gold = [document.clusters for document in examples.labels]
        predicted = [predicted_clusters(rows) for rows in predictions]
        linked = coreference_scores(
            [without_singletons(clusters) for clusters in gold],
            [without_singletons(clusters) for clusters in predicted],
        )
        return {**coreference_scores(gold, predicted), "without_singletons_conll_f1": linked["conll_f1"]}

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write the documents in CoNLL-2012 format with the predicted clusters."""
        file = io.StringIO()
        for document, rows in zip(examples.labels, predictions, strict=True):
            write_document(file, document._replace(clusters=predicted_clusters(rows)))
        return {self.predictions_file: file.getvalue()}


def predicted_clusters(rows: np.ndarray) -> Clusters:
    """Return a head's predictions (M, 3) for a document as clusters."""
    clusters: defaultdict[int, list[Mention]] = defaultdict(list)
    for first, end, number in rows[rows[:, 0] != IGNORED].tolist():
        clusters[number].append((first, end))
    return list(clusters.values())
