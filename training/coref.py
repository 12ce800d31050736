"""Coreference: documents whose words are in mentions, and mentions in clusters. Files, examples and scores.

A document is its sentences, as words, and its clusters, each a list of mentions. A mention is a span of words that are
numbered through the document: its first word and one past its last.

Files are in the format of CoNLL-2012, of which the fourth column, the word, and the last, the mentions' brackets, are
read; or in JSON lines with `sentences` and `clusters`, where a mention is its first and its last word, as
published data sets have it. Hub data sets have the same two columns.
"""

import bisect
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
from training.settings import TaskSettings
from training.task_data import KINDS, dataset_of, json_records, load_split, read_lines, split_columns
from training.tasks import Task

logger = logging.getLogger(__name__)

# Columns between the word and the brackets, which the format has and we have nothing for.
EMPTY_COLUMNS = 8
WORD_COLUMN = 3

_BEGIN = re.compile(r"#begin document \(?(.*?)\)?(?:;\s*part\s+(\S+))?\s*$")
_BRACKET = re.compile(r"(\()?([^()|\s]+?)(\))?")

Mention = tuple[int, int]
Clusters = list[list[Mention]]


class Document(NamedTuple):
    """A document and what it mentions. `part` is of OntoNotes, whose documents may have several."""

    name: str
    part: str
    sentences: list[list[str]]
    clusters: Clusters


# ----------------------------------------------------------------------------------------------------------- reading


def read_documents(path: Path, columns: Mapping[str, str] | None = None) -> list[Document]:
    """The documents of a file in CoNLL-2012 format or JSON lines, whose columns may have names of their own."""
    if not path.is_file():
        raise ElmoError(f"{path}: no such file")
    is_json = KINDS.get(path.suffix.lower()) == "json" or path.suffix.lower() == ".jsonlines"
    if is_json:
        return [_from_record(record, place, columns or {}) for place, record in json_records(path)]
    if columns:
        raise ElmoError(f"{path}: `columns` means nothing for a CoNLL-2012 file")
    return list(_read_conll(path))


def _read_conll(path: Path) -> Iterator[Document]:
    """Documents between `#begin document` and `#end document`, sentences parted by empty lines."""
    open_since = 0  # the line of the `#begin document` that has no end yet
    name, part = "", "0"
    sentences: list[list[str]] = [[]]
    brackets = _Brackets()
    for number, line in read_lines(path):
        place = f"{path}, line {number}"
        if line.startswith("#begin document"):
            if open_since:
                raise ElmoError(f"{place}: the document that begins in line {open_since} has no `#end document`")
            found = _BEGIN.match(line)
            name, part = (found[1], found[2] or "0") if found else ("", "0")
            open_since, sentences, brackets = number, [[]], _Brackets()
        elif line.startswith("#end document"):
            if not open_since:
                raise ElmoError(f"{place}: `#end document` without a `#begin document` before it")
            document = Document(
                name, part, [words for words in sentences if words], brackets.clusters(f"{path}, line ")
            )
            yield _checked(document, f"{path}, line {open_since}")
            open_since = 0
        elif not line.strip():
            sentences.append([])
        elif not line.startswith("#"):
            if not open_since:
                raise ElmoError(f"{place}: a word outside of `#begin document` and `#end document`")
            fields = split_columns(line)
            if len(fields) < WORD_COLUMN + 2:
                raise ElmoError(
                    f"{place}: {len(fields)} columns; expected document, part, number, word, ..., brackets"
                )
            sentences[-1].append(fields[WORD_COLUMN])
            brackets.read(fields[-1].strip(), number, place)
    if open_since:
        raise ElmoError(f"{path}: the document that begins in line {open_since} has no `#end document`")


class _Brackets:
    """The last column of a document, read word by word: `(3` begins a mention of cluster 3, `3)` ends the last one
    that began, `(3)` is one, and several are parted by `|`.
    """

    def __init__(self) -> None:
        self.word = 0
        self.begun: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # words, lines
        self.found: defaultdict[str, list[Mention]] = defaultdict(list)

    def read(self, cell: str, line: int, place: str) -> None:
        for bracket in cell.split("|") if cell not in ("", "-") else ():
            parts = _BRACKET.fullmatch(bracket)
            if parts is None or not (parts[1] or parts[3]):
                raise ElmoError(f"{place}: no brackets of mentions: {cell!r}; expected some like (3), (3, 3)|(5 or -")
            begins, cluster, ends = parts.groups()
            if begins and ends:
                self.found[cluster].append((self.word, self.word + 1))
            elif begins:
                self.begun[cluster].append((self.word, line))
            elif not self.begun[cluster]:
                raise ElmoError(f"{place}: `{cluster})` ends a mention of cluster {cluster} that has not begun")
            else:
                self.found[cluster].append((self.begun[cluster].pop()[0], self.word + 1))
        self.word += 1

    def clusters(self, file_and_line: str) -> Clusters:
        unended = [(line, cluster) for cluster, begun in self.begun.items() for _, line in begun]
        if unended:
            line, cluster = min(unended)
            raise ElmoError(f"{file_and_line}{line}: `({cluster}` begins a mention that never ends")
        return sorted(sorted(mentions) for mentions in self.found.values())


def _from_record(record: Mapping[str, Any], place: str, columns: Mapping[str, str]) -> Document:
    """A document of a table, where a mention is its first and its last word."""
    names = {field: columns.get(field, field) for field in ("sentences", "clusters")}
    if missing := [name for name in names.values() if name not in record]:
        raise ElmoError(f"{place}: no column `{missing[0]}`; the columns are {', '.join(map(str, record))}")
    sentences, clusters = record[names["sentences"]], record[names["clusters"]]
    try:
        if any(isinstance(words, str) or not all(isinstance(word, str) for word in words) for words in sentences):
            raise TypeError
        spans = [[(int(first), int(last) + 1) for first, last in mentions] for mentions in clusters]
        words = [list(words) for words in sentences if len(words)]
    except (TypeError, ValueError):
        raise ElmoError(
            f"{place}: `{names['sentences']}` must be lists of words and `{names['clusters']}` lists of [first word, "
            "last word]"
        ) from None
    name = str(record.get("doc_key", place))
    return _checked(Document(name, "0", words, [sorted(mentions) for mentions in spans if mentions]), place)


def _checked(document: Document, place: str) -> Document:
    """Refuses what is no document: without words, or with mentions that are none or not told apart."""
    length = sum(map(len, document.sentences))
    if not length:
        raise ElmoError(f"{place}: the document {document.name!r} is empty")
    document = document._replace(clusters=_merged(document.clusters, place))
    for mentions in document.clusters:
        for mention in mentions:
            if not 0 <= mention[0] < mention[1] <= length:
                raise ElmoError(f"{place}: {_shown(mention)} are no words of a document of {length}")
        if crossing := next(_crossings(mentions), None):
            raise ElmoError(f"{place}: mentions of one cluster cross: {' and '.join(map(_shown, crossing))}")
    if crossing := next(_crossings([mention for mentions in document.clusters for mention in mentions]), None):
        logger.warning(
            "%s: mentions cross, at least one of which is not learned: %s", place, " and ".join(map(_shown, crossing))
        )
    return document


def _merged(clusters: Clusters, place: str) -> Clusters:
    """The clusters, where two that share a mention are one, as OntoNotes has some, and no mention is there twice."""
    cluster_of: dict[Mention, set[Mention]] = {}
    for mentions in clusters:
        whole = set(mentions)
        for mention in mentions:
            if mention in cluster_of:
                logger.warning("%s: %s are a mention of two clusters, which are taken for one", place, _shown(mention))
                whole |= cluster_of[mention]
        cluster_of |= dict.fromkeys(whole, whole)
    return sorted({id(whole): sorted(whole) for whole in cluster_of.values()}.values())


def _shown(mention: Mention) -> str:
    return f"words {mention[0]} to {mention[1] - 1}"


def _crossings(mentions: Sequence[Mention]) -> Iterator[tuple[Mention, Mention]]:
    """Pairs that share words without one being in the other."""
    enclosing: list[Mention] = []
    for mention in sorted(mentions, key=lambda span: (span[0], -span[1])):
        enclosing = [outer for outer in enclosing if outer[1] > mention[0]]
        yield from ((outer, mention) for outer in enclosing if outer[1] < mention[1])
        enclosing.append(mention)


def cut_document(document: Document, most_words: int) -> Iterator[Document]:
    """A document in parts of at most so many words, but whole sentences; mentions across two parts are lost."""
    begin, words, sentences = 0, 0, []
    for sentence in [*document.sentences, None]:
        if sentences and (sentence is None or words + len(sentence) > most_words):
            inside = (
                [(first - begin, end - begin) for first, end in mentions if begin <= first and end <= begin + words]
                for mentions in document.clusters
            )
            yield document._replace(sentences=sentences, clusters=[mentions for mentions in inside if mentions])
            begin, words, sentences = begin + words, 0, []
        if sentence is not None:
            sentences.append(sentence)
            words += len(sentence)


# ----------------------------------------------------------------------------------------------------------- writing


def write_document(file: TextIO, document: Document) -> None:
    """Writes a document in CoNLL-2012 format; columns that we have nothing for are `-`."""
    begin, alone, end = defaultdict(list), defaultdict(list), defaultdict(list)
    for number, mentions in enumerate(document.clusters):
        if crossing := next(_crossings(mentions), None):
            raise ElmoError(
                f"{document.name}: mentions of one cluster cross, which brackets cannot say: "
                f"{' and '.join(map(_shown, crossing))}"
            )
        for first, after in mentions:
            if after - first == 1:
                alone[first].append(f"({number})")
            else:  # the longest begins first and ends last
                bisect.insort(begin[first], (-after, f"({number}"))
                bisect.insort(end[after - 1], (-first, f"{number})"))
    file.write(f"#begin document ({document.name}); part {document.part}\n")
    place = itertools.count()
    for sentence in document.sentences:
        for number, word in enumerate(sentence):
            here = next(place)
            longer = [[text for _, text in brackets[here]] for brackets in (begin, end)]
            cell = "|".join([*longer[0], *alone[here], *longer[1]]) or "-"
            columns = [document.name, document.part, str(number), word, *["-"] * EMPTY_COLUMNS, cell]
            file.write("\t".join(columns) + "\n")
        file.write("\n")
    file.write("#end document\n")


# ------------------------------------------------------------------------------------------------------------ scores


class _Counts(NamedTuple):
    """What was found of what there is, and what is right of what was found: recall and precision before division."""

    recalled: float
    in_gold: float
    precise: float
    in_predicted: float


def _muc(gold: Clusters, predicted: Clusters) -> _Counts:
    """Vilain et al. (1995): the fewest links that hold each cluster together, less those that the other side lacks."""

    def links(clusters: Clusters, others: Clusters) -> tuple[float, float]:
        cluster_of = {mention: number for number, mentions in enumerate(others) for mention in mentions}
        found = 0
        for mentions in clusters:
            parts = {cluster_of.get(mention, mention) for mention in mentions}
            found += len(mentions) - len(parts)
        return found, sum(len(mentions) - 1 for mentions in clusters)

    return _Counts(*links(gold, predicted), *links(predicted, gold))


def _overlaps(gold: Clusters, predicted: Clusters) -> np.ndarray:
    """How many mentions each two clusters share: (gold, predicted)."""
    cluster_of = {mention: number for number, mentions in enumerate(predicted) for mention in mentions}
    shared = np.zeros((len(gold), len(predicted)))
    for number, mentions in enumerate(gold):
        for mention in mentions:
            if mention in cluster_of:
                shared[number, cluster_of[mention]] += 1
    return shared


def _sizes(clusters: Clusters) -> np.ndarray:
    return np.array([len(mentions) for mentions in clusters], dtype=float)


def _b_cubed(gold: Clusters, predicted: Clusters) -> _Counts:
    """Bagga and Baldwin (1998): for each mention, how much of its cluster is in its cluster on the other side."""
    squares, of_gold, of_predicted = _overlaps(gold, predicted) ** 2, _sizes(gold), _sizes(predicted)
    return _Counts(
        float((squares.sum(1) / of_gold).sum()),
        float(of_gold.sum()),
        float((squares.sum(0) / of_predicted).sum()),
        float(of_predicted.sum()),
    )


def _ceaf(gold: Clusters, predicted: Clusters) -> _Counts:
    """Luo (2005), φ4: how alike clusters are, in the best one-to-one alignment."""
    similar = 2 * _overlaps(gold, predicted) / (_sizes(gold)[:, None] + _sizes(predicted)[None])
    total = float(similar[linear_sum_assignment(similar, maximize=True)].sum())
    return _Counts(total, len(gold), total, len(predicted))


def _mentions(gold: Clusters, predicted: Clusters) -> _Counts:
    """Whether mentions are found, whatever their clusters."""
    both, of_gold, of_predicted = _overlaps(gold, predicted).sum(), _sizes(gold).sum(), _sizes(predicted).sum()
    return _Counts(float(both), float(of_gold), float(both), float(of_predicted))


METRICS = {"muc": _muc, "b_cubed": _b_cubed, "ceaf": _ceaf, "mention": _mentions}
# Those whose mean F1 is what CoNLL-2012 compared systems by.
IN_THE_MEAN = ("muc", "b_cubed", "ceaf")


def coreference_scores(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """Precision, recall and F1 of each metric over some documents, and `conll_f1`, the mean of the three's F1.

    As the CoNLL-2012 scorer counts: over all documents together, of the clusters that there are, singletons included.
    """
    scores = {}
    for name, metric in METRICS.items():
        documents = [metric(*clusters) for clusters in zip(gold, predicted, strict=True)]
        found, in_gold, right, in_predicted = (sum(column) for column in zip(*documents, strict=True))
        precision = right / in_predicted if in_predicted else 0.0
        recall = found / in_gold if in_gold else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        scores |= {f"{name}_precision": precision, f"{name}_recall": recall, f"{name}_f1": f1}
    return {"conll_f1": sum(scores[f"{name}_f1"] for name in IN_THE_MEAN) / len(IN_THE_MEAN), **scores}


def without_singletons(clusters: Clusters) -> Clusters:
    return [mentions for mentions in clusters if len(mentions) > 1]


# -------------------------------------------------------------------------------------------------------------- task


class Coreference(Task):
    """Which mentions in a document are of the same thing."""

    predictions_file = "predictions.conll"

    def read(self, path: Path, settings: TaskSettings, training: bool) -> Dataset:
        documents = read_documents(path, settings.renamed_columns())
        return self._rows(documents, settings, training, str(path))

    def read_hub(self, settings: TaskSettings, split: str, training: bool) -> Dataset:
        assert settings.dataset_name is not None
        rows = load_split(settings.dataset_name, settings.dataset_config_name, split)
        columns = settings.renamed_columns()
        documents = [
            _from_record(row, f"{settings.dataset_name}, row {number}", columns) for number, row in enumerate(rows)
        ]
        return self._rows(documents, settings, training, settings.dataset_name)

    @staticmethod
    def _rows(documents: list[Document], settings: TaskSettings, training: bool, source: str) -> Dataset:
        if training and settings.document_words:
            documents = [part for document in documents for part in cut_document(document, settings.document_words)]
        return dataset_of([document._asdict() for document in documents], source)

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        documents = [
            Document(**{**row, "clusters": [[(first, end) for first, end in spans] for spans in row["clusters"]]})
            for row in rows
        ]
        sequences = [(words,) for document in documents for words in document.sentences]
        return Examples(sequences, documents, per_example=[len(document.sentences) for document in documents])

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mentions = [
            [(*mention, number) for number, spans in enumerate(document.clusters) for mention in spans]
            for document in labels
        ]
        rows = [torch.tensor(spans, dtype=torch.long).view(-1, 3) for spans in mentions]
        return {"labels": pad_sequence(rows, batch_first=True, padding_value=IGNORED)}

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        """With all clusters and, as OntoNotes has it, without those of one mention: `without_singletons_conll_f1`."""
        gold = [document.clusters for document in examples.labels]
        found = [predicted_clusters(rows) for rows in predicted]
        linked = coreference_scores(*([without_singletons(one) for one in part] for part in (gold, found)))
        return {**coreference_scores(gold, found), "without_singletons_conll_f1": linked["conll_f1"]}

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        """The documents in CoNLL-2012 format, with the predicted clusters."""
        for document, rows in zip(examples.labels, predicted, strict=True):
            write_document(file, document._replace(clusters=predicted_clusters(rows)))


def predicted_clusters(rows: np.ndarray) -> Clusters:
    """A head's predictions (M, 3) for a document as clusters."""
    clusters: dict[int, list[Mention]] = {}
    for first, end, number in rows[rows[:, 0] != IGNORED].tolist():
        clusters.setdefault(number, []).append((first, end))
    return list(clusters.values())


__all__ = ["Coreference", "Document", "coreference_scores", "cut_document", "read_documents", "write_document"]
