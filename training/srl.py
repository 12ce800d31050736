"""Semantic roles: bracketed columns as in CoNLL-2005, the spans they mark, and the scores of these.

    The     DT  -    -       (ARG0*
    cat     NN  -    -       *)
    ate     VBD eat  eat.01  (V*)
    fish    NN  -    -       (ARG1*)

A line a word, sentences parted by empty lines. The word is first; of the columns after it the last one that has no
brackets says which words are predicates, by their frames, and every predicate has a column of roles, in their order.
Files of CoNLL-2012, in which `#begin document` stands before a document, are read as such columns: word, part of
speech, lemma, frame and roles. Their predictions are written into their own lines, where only roles change.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from modeling_elmo import ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.roles_elmo import role_spans
from training.examples import Examples, WordSequence
from training.settings import TaskSettings
from training.task_data import dataset_of, read_lines, split_columns
from training.tasks import Task, word_labels

NO_FRAME = ("-", "_")
# Lines of CoNLL-2012 around a document, and its columns: word, part of speech, lemma, frame; roles, before the last.
_DOCUMENT = re.compile(r"#(begin|end) document\b")
_NO_WORD = re.compile(rf"\s*$|{_DOCUMENT.pattern}")
CONLL_2012, CONLL_2012_ROLES = (3, 4, 6, 7), slice(11, -1)
_CELL = re.compile(r"(?:\(([^\s()*]+))?\*(\))?")

# The lines of a sentence, by number, each as its columns.
Lines = list[tuple[int, list[str]]]
# A role, and the words that have it: from the first to before the last, of each piece.
Argument = tuple[str, tuple[tuple[int, int], ...]]


# -------------------------------------------------------------------------------------------------------- columns


def read_propositions(path: str | Path, frame_column: int | None = None) -> Dataset:
    """The sentences of a file, with or without predicates.

    Of each its words, the columns before the roles as they are, the positions of its predicates, for every predicate
    the words' roles as BIO labels, and the file's own lines if it is one of CoNLL-2012, else none. `frame_column`
    counts from 1; by default it is found.
    """
    path = Path(path)
    if not path.is_file():
        raise ElmoError(f"{path}: no such file")
    if frame_column is not None and frame_column < 2:
        raise ElmoError(f"`frame_column` counts from 1 and is after the word's, got {frame_column}")
    sentences = list(_sentences(path))
    frame_column = frame_column or _find_frame_column([lines for lines, _ in sentences])
    rows = [_row_of(lines, frame_column, path) | {"own_lines": own_lines} for lines, own_lines in sentences]
    return dataset_of(rows, str(path))


def _sentences(path: Path) -> Iterator[tuple[Lines, list[str]]]:
    """Sentences, and of CoNLL-2012 the file's own lines, so that those of all sentences are the whole file.

    What stands between two sentences is with the first of them, what stands before all with the first.
    """
    is_conll_2012 = any(_DOCUMENT.match(line) for _, line in read_lines(path))
    lines: Lines = []
    own_lines: list[str] = []
    has_ended = False
    for number, line in read_lines(path):
        if _NO_WORD.match(line):
            has_ended = bool(lines)
        else:
            if has_ended:
                yield lines, own_lines
                lines, own_lines, has_ended = [], [], False
            columns = split_columns(line)
            if is_conll_2012:
                if len(columns) <= CONLL_2012_ROLES.start:
                    raise ElmoError(f"{path}, line {number}: {len(columns)} columns; CoNLL-2012 has 12 or more")
                columns = [*(columns[index] for index in CONLL_2012), *columns[CONLL_2012_ROLES]]
            if lines and len(columns) != len(lines[0][1]):
                raise ElmoError(
                    f"{path}, line {number}: {len(columns)} columns where the sentence's first line has "
                    f"{len(lines[0][1])}"
                )
            lines.append((number, columns))
        if is_conll_2012:
            own_lines.append(line)
    if lines:
        yield lines, own_lines


def _find_frame_column(sentences: Sequence[Lines]) -> int:
    """The column before the bracketed ones, which have an asterisk in every line, in most sentences that have some."""
    found: Counter[int] = Counter()
    for lines in sentences:
        columns = list(zip(*(columns for _, columns in lines), strict=True))
        bracketed = itertools.takewhile(lambda cells: all("*" in cell for cell in cells), reversed(columns))
        if count := len(list(bracketed)):
            found[len(columns) - count] += 1
    if found:
        return max(found.most_common(1)[0][0], 2)
    return len(sentences[0][0][1]) if sentences else 2


def _row_of(lines: Lines, frame_column: int, path: Path) -> dict[str, Any]:
    number, columns = lines[0]
    if len(columns) < frame_column:
        raise ElmoError(f"{path}, line {number}: no column {frame_column} for frames: there are {len(columns)}")
    predicates = [word for word, (_, columns) in enumerate(lines) if columns[frame_column - 1] not in NO_FRAME]
    if len(columns) - frame_column != len(predicates):
        raise ElmoError(
            f"{path}, line {number}: the sentence has {len(predicates)} predicates by its column {frame_column}, and "
            f"{len(columns) - frame_column} columns of roles"
        )
    places = [f"{path}, line {number}" for number, _ in lines]
    return {
        "words": [columns[0] for _, columns in lines],
        "columns": ["\t".join(columns[:frame_column]) for _, columns in lines],
        "predicates": predicates,
        "roles": [
            labels_of_cells([columns[column] for _, columns in lines], places)
            for column in range(frame_column, len(columns))
        ],
    }


def labels_of_cells(cells: Sequence[str], places: Sequence[str]) -> list[str]:
    """A column of brackets as BIO labels; `places` says where each cell is, for errors."""
    labels: list[str] = []
    inside, opened = None, ""  # the role of the span that is open, and where it was opened
    for cell, place in zip(cells, places, strict=True):
        parts = _CELL.fullmatch(cell)
        if parts is None:
            raise ElmoError(f"{place}: {cell!r} marks no role: expected (ROLE*, *, *) or (ROLE*)")
        role, closes = parts.groups()
        if role and inside:
            raise ElmoError(f"{place}: {cell!r} begins inside of {inside}: a predicate's roles may not overlap")
        if closes and not role and not inside:
            raise ElmoError(f"{place}: unbalanced brackets: {cell!r} closes nothing")
        labels.append(f"B-{role}" if role else f"I-{inside}" if inside else "O")
        if role:
            inside, opened = role, place
        if closes:
            inside = None
    if inside:
        raise ElmoError(f"{opened}: unbalanced brackets: ({inside}* is never closed")
    return labels


def cells_of_labels(labels: Sequence[str]) -> list[str]:
    """BIO labels as a column of brackets."""
    cells = ["*"] * len(labels)
    for role, start, end in role_spans(labels):
        cells[start] = f"({role}{cells[start]}"
        cells[end - 1] += ")"
    return cells


def _with_roles(line: str, cells: Sequence[str]) -> str:
    """A word's line of CoNLL-2012 with other roles. Blanks stay as they are: published files align columns by them."""
    between = r"(\t)" if "\t" in line else "(?<=[^ ])( +)(?=[^ ])"  # as `split_columns` parts them
    parts = re.split(between, line)  # a column, what is between, a column, ...
    parts[2 * CONLL_2012_ROLES.start : -1 : 2] = cells
    return "".join(parts)


# --------------------------------------------------------------------------------------------------------- scores


def arguments_of(labels: Sequence[str]) -> set[Argument]:
    """What BIO labels say of a predicate, the way the scorer of CoNLL-2005 (srl-eval.pl) takes it.

    C-X continues the last X before it: together they are one argument in pieces, which is right only if all of them
    are. Without an X it is one itself. R-X is a role like any other. V is no argument, nor is what continues it.
    """
    latest: dict[str, list[tuple[int, int]]] = {}
    found: list[tuple[str, list[tuple[int, int]]]] = []
    for role, start, end in role_spans(labels):
        whole = role.removeprefix("C-")
        if role == whole or whole not in latest:
            latest[whole] = []
            found.append((whole, latest[whole]))
        latest[whole].append((start, end))
    return {(role, tuple(pieces)) for role, pieces in found if role != "V"}


class Counts(NamedTuple):
    """Arguments that are in the gold, that were predicted, and that are right."""

    gold: int
    predicted: int
    right: int

    def scores(self) -> dict[str, float]:
        return {
            "precision": self.right / max(self.predicted, 1),
            "recall": self.right / max(self.gold, 1),
            "f1": 2 * self.right / max(self.predicted + self.gold, 1),
        }


def count_arguments(predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]) -> dict[str, Counts]:
    """The arguments of all predicates together, by role in alphabetical order, and of all roles as "all"."""
    counts: dict[str, Counter[str]] = {"gold": Counter(), "predicted": Counter(), "right": Counter()}
    for labels_found, labels_wanted in zip(predicted, gold, strict=True):
        found, wanted = arguments_of(labels_found), arguments_of(labels_wanted)
        for name, arguments in (("gold", wanted), ("predicted", found), ("right", found & wanted)):
            counts[name].update(role for role, _ in arguments)
    roles = sorted(counts["gold"].keys() | counts["predicted"].keys())
    table = {"all": Counts(**{name: counter.total() for name, counter in counts.items()})}
    return table | {role: Counts(**{name: counter[role] for name, counter in counts.items()}) for role in roles}


# ----------------------------------------------------------------------------------------------------------- task


@dataclass
class RoleExamples(Examples):
    """An example is a sentence and one of its predicates; its label is that one's position and the words' numbers."""

    sentences: list[dict[str, Any]] = field(default_factory=list)  # all of them, those without predicates too


class SemanticRoles(Task):
    """The words' roles for each predicate of a sentence."""

    predictions_file = "predictions.conll"

    def read(self, path: Path, settings: TaskSettings, training: bool) -> Dataset:
        columns = settings.renamed_columns()
        frame = columns.pop("frame", None)
        if columns or not (frame is None or frame.isdecimal()):
            raise ElmoError(f"`columns` of srl can say where frames are, as in frame=4, got {settings.columns}")
        return read_propositions(path, None if frame is None else int(frame))

    def read_hub(self, settings: TaskSettings, split: str, training: bool) -> Dataset:
        raise ElmoError(
            f"srl reads files of bracketed columns, not data sets such as {settings.dataset_name}: give --train_file "
            "and --validation_file"
        )

    def label_names(self, rows: Dataset) -> list[str]:
        found = {label for sentence in rows["roles"] for labels in sentence for label in labels}
        return sorted(found, key=lambda label: (label != "O", label))

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        number_of = {label: number for number, label in enumerate(labels)}
        sentences = rows.to_list()
        sequences: list[WordSequence] = []
        found: list[tuple[int, list[int]]] = []
        for sentence in sentences:
            for predicate, roles in zip(sentence["predicates"], sentence["roles"], strict=True):
                sequences.append((sentence["words"],))
                # A role that the training data lacks cannot be predicted: it is missed, and has no loss.
                found.append((predicate, [number_of.get(label, IGNORED) for label in roles]))
        if not found:
            raise ElmoError("there are no examples: no sentence has a predicate")
        return RoleExamples(sequences, found, sentences=sentences)

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        predicates, roles = zip(*labels, strict=True)
        return {"predicate_index": torch.tensor(predicates) + 1, "labels": word_labels(roles, batch)}  # behind `<S>`

    def _counts(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, Counts]:
        assert isinstance(examples, RoleExamples)
        gold = (roles for sentence in examples.sentences for roles in sentence["roles"])
        return count_arguments(_names(predicted, labels), gold)

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        return self._counts(examples, labels, predicted)["all"].scores()

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        """The columns of the data, with the predicted roles in place of its own; of CoNLL-2012 all its lines."""
        assert isinstance(examples, RoleExamples)
        found = _names(predicted, labels)
        for sentence in examples.sentences:
            roles = [cells_of_labels(next(found)) for _ in sentence["predicates"]]
            words = zip(sentence["columns"], *roles, strict=True)
            if sentence["own_lines"]:
                for line in sentence["own_lines"]:
                    file.write((line if _NO_WORD.match(line) else _with_roles(line, next(words)[1:])) + "\n")
            else:
                file.write("\n".join("\t".join(word) for word in words) + "\n\n")

    def reports(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, str]:
        lines = ["role\tprecision\trecall\tf1\tgold\tpredicted\tright"]
        for role, counts in self._counts(examples, labels, predicted).items():
            scores = "\t".join(f"{score:.4f}" for score in counts.scores().values())
            lines.append(f"{role}\t{scores}\t{counts.gold}\t{counts.predicted}\t{counts.right}")
        return {"roles.tsv": "\n".join(lines) + "\n"}


def _names(predicted: np.ndarray, labels: Sequence[str]) -> Iterator[list[str]]:
    """The labels of each example's words."""
    return ([labels[number] for number in row[row != IGNORED]] for row in predicted)


__all__ = ["SemanticRoles", "arguments_of", "cells_of_labels", "count_arguments", "read_propositions"]
