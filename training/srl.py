"""Semantic roles: bracketed columns as in CoNLL-2005, the spans they mark, and their scores.

    The     DT  -    -       (ARG0*
    cat     NN  -    -       *)
    ate     VBD eat  eat.01  (V*)
    fish    NN  -    -       (ARG1*)

One word per line, sentences separated by empty lines. The word comes first. The last column without brackets has the
frames of predicates; each predicate has a column of roles, in their order. Files of CoNLL-2012, in which
`#begin document` precedes a document, are read as such columns: word, part of speech, lemma, frame and roles. Their
predictions are written into their own lines, where only roles change.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from training.readers import Line, located, read_blocks, read_lines
from training.settings import TaskSettings
from training.tasks import Task, label_words, sort_labels, word_labels

NO_FRAME = ("-", "_")
# CoNLL-2012: the columns of word, part of speech, lemma and frame; roles are from the eleventh to before the last.
CONLL_2012 = (3, 4, 6, 7)
FIRST_ROLE = 11

_DOCUMENT = re.compile(r"#(begin|end) document\b")
_CELL = re.compile(r"(?:\(([^\s()*]+))?\*(\))?")

# A role, and the words that have it: first and one past the last of each piece.
Argument = tuple[str, tuple[tuple[int, int], ...]]


# -------------------------------------------------------------------------------------------------------- columns


def read_propositions(path: Path, column: int | None = None) -> list[dict[str, Any]]:
    """Read the sentences of a file, with or without predicates.

    A row has the sentence's words, the columns before the roles as they are, the positions of its predicates, the
    words' roles as BIO labels for each predicate, and the file's own lines if it is CoNLL-2012, else none. `column`
    has the frames and counts from 1; by default it is found.
    """
    if column is not None and column < 2:
        raise ElmoError(f"`column` of frames counts from 1 and is after the word's, got {column}")
    lines = list(read_lines(path))
    is_conll_2012 = any(_DOCUMENT.match(text) for _, text in lines)
    blocks = list(read_blocks(lines, path, _DOCUMENT.match))
    if is_conll_2012:
        blocks = [[_from_conll_2012(line) for line in block] for block in blocks]
    column = column or _find_frame_column(blocks)
    rows = []
    for number, block in enumerate(blocks):
        row = _to_row(block, column)
        row["own_lines"] = []
        if is_conll_2012:
            # What stands between two sentences is kept with the first of them, what precedes all with the first.
            start = block[0].number - 1 if number else 0
            end = blocks[number + 1][0].number - 1 if number + 1 < len(blocks) else len(lines)
            row["own_lines"] = [text for _, text in lines[start:end]]
        rows.append(row)
    return rows


def _from_conll_2012(line: Line) -> Line:
    cells = line.columns
    if len(cells) <= FIRST_ROLE:
        raise ElmoError(f"{line.place}: {len(cells)} columns; CoNLL-2012 has 12 or more")
    chosen = [cells[index] for index in CONLL_2012]
    return line._replace(columns=chosen + cells[FIRST_ROLE:-1])


def _find_frame_column(blocks: Sequence[list[Line]]) -> int:
    """Return the column before the bracketed ones, which have an asterisk in every line, in most sentences."""
    found: Counter[int] = Counter()
    for block in blocks:
        width = min(len(line.columns) for line in block)
        frame = width
        while frame and all("*" in line.columns[frame - 1] for line in block):
            frame -= 1
        if frame < width:
            found[frame] += 1
    if found:
        return max(found.most_common(1)[0][0], 2)
    return len(blocks[0][0].columns) if blocks else 2


def _to_row(block: list[Line], frame_column: int) -> dict[str, Any]:
    width = len(block[0].columns)
    predicates = []
    for word, line in enumerate(block):
        with located(line.place):
            if len(line.columns) != width:
                raise ValueError(f"{len(line.columns)} columns where the sentence's first line has {width}")
            if width < frame_column:
                raise ValueError(f"no column {frame_column} for frames: there are {width}")
        if line.columns[frame_column - 1] not in NO_FRAME:
            predicates.append(word)
    if width - frame_column != len(predicates):
        raise ElmoError(
            f"{block[0].place}: the sentence has {len(predicates)} predicates by its column {frame_column}, and "
            f"{width - frame_column} columns of roles"
        )
    roles = []
    places = [line.place for line in block]
    for column in range(frame_column, width):
        roles.append(labels_of_cells([line.columns[column] for line in block], places))
    return {
        "words": [line.columns[0] for line in block],
        "columns": ["\t".join(line.columns[:frame_column]) for line in block],
        "predicates": predicates,
        "roles": roles,
    }


def labels_of_cells(cells: Sequence[str], places: Sequence[str]) -> list[str]:
    """Return a column of brackets as BIO labels; `places` says where each cell is, for errors."""
    labels: list[str] = []
    open_role, opened_at = "", ""
    for cell, place in zip(cells, places, strict=True):
        parts = _CELL.fullmatch(cell)
        if parts is None:
            raise ElmoError(f"{place}: {cell!r} is not a role: expected (ROLE*, *, *) or (ROLE*)")
        role, closes = parts.groups()
        if role and open_role:
            raise ElmoError(f"{place}: {cell!r} begins inside of {open_role}: a predicate's roles may not overlap")
        if role:
            open_role, opened_at = role, place
            labels.append(f"B-{role}")
        elif open_role:
            labels.append(f"I-{open_role}")
        elif closes:
            raise ElmoError(f"{place}: unbalanced brackets: {cell!r} closes nothing")
        else:
            labels.append("O")
        if closes:
            open_role = ""
    if open_role:
        raise ElmoError(f"{opened_at}: unbalanced brackets: ({open_role}* is never closed")
    return labels


def cells_of_labels(labels: Sequence[str]) -> list[str]:
    """Return BIO labels as a column of brackets."""
    cells = ["*"] * len(labels)
    for role, start, end in role_spans(labels):
        cells[start] = f"({role}{cells[start]}"
        cells[end - 1] += ")"
    return cells


def _replace_roles(line: str, cells: Sequence[str]) -> str:
    """Put other roles into a word's line of CoNLL-2012. Blanks stay: published files align columns by them."""
    separator = r"(\t)" if "\t" in line else "(?<=[^ ])( +)(?=[^ ])"  # as in `split_columns`
    parts = re.split(separator, line)  # column, separator, column, ...
    parts[2 * FIRST_ROLE : -1 : 2] = cells
    return "".join(parts)


# --------------------------------------------------------------------------------------------------------- scores


def arguments_of(labels: Sequence[str]) -> set[Argument]:
    """Return a predicate's arguments by its BIO labels, as the scorer of CoNLL-2005 (srl-eval.pl) takes them.

    C-X continues the last X before it: together they are one argument in pieces, which is right only if all of them
    are. Without an X it is an argument itself. R-X is a role like any other. V is not an argument, nor is its C-V.
    """
    latest: dict[str, list[tuple[int, int]]] = {}
    arguments: list[tuple[str, list[tuple[int, int]]]] = []
    for role, start, end in role_spans(labels):
        whole = role.removeprefix("C-")
        if role == whole or whole not in latest:
            latest[whole] = []
            arguments.append((whole, latest[whole]))
        latest[whole].append((start, end))
    return {(role, tuple(pieces)) for role, pieces in arguments if role != "V"}


class Counts(NamedTuple):
    """Numbers of arguments: in the gold data, predicted, and right."""

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
    """Count the arguments of all predicates: of all roles as "all", then by role in alphabetical order."""
    in_gold: Counter[str] = Counter()
    in_predicted: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for predicted_labels, gold_labels in zip(predicted, gold, strict=True):
        predictions = arguments_of(predicted_labels)
        targets = arguments_of(gold_labels)
        in_gold.update(role for role, _ in targets)
        in_predicted.update(role for role, _ in predictions)
        right.update(role for role, _ in predictions & targets)
    table = {"all": Counts(in_gold.total(), in_predicted.total(), right.total())}
    for role in sorted(in_gold.keys() | in_predicted.keys()):
        table[role] = Counts(in_gold[role], in_predicted[role], right[role])
    return table


# ----------------------------------------------------------------------------------------------------------- task


@dataclass
class RoleExamples(Examples):
    """Sentences, each with one of its predicates; a label is the predicate's position and the words' label ids."""

    sentences: list[dict[str, Any]] = field(default_factory=list)  # all of them, those without predicates too


class SemanticRoleLabeling(Task):
    """The roles of words for each predicate of a sentence."""

    predictions_file = "predictions.conll"

    def read_options(self, settings: TaskSettings) -> dict[str, Any]:
        columns = settings.renamed_columns()
        frame = columns.pop("frame", None)
        if columns or not (frame is None or frame.isdecimal()):
            raise ElmoError(f"`columns` of srl may only number that of frames, as in frame=4, got {settings.columns}")
        return {} if frame is None else {"column": int(frame)}

    def label_names(self, rows: Dataset) -> list[str]:
        return sort_labels([labels for sentence in rows["roles"] for labels in sentence])

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        ids = {label: number for number, label in enumerate(labels)}
        sequences: list[WordSequence] = []
        targets: list[tuple[int, list[int]]] = []
        sentences = rows.to_list()
        for sentence in sentences:
            for predicate, roles in zip(sentence["predicates"], sentence["roles"], strict=True):
                sequences.append((sentence["words"],))
                # A role that the training data lacks cannot be predicted: it is missed, and has no loss.
                targets.append((predicate, [ids.get(label, IGNORED) for label in roles]))
        if not targets:
            raise ElmoError("there are no examples: no sentence has a predicate")
        return RoleExamples(sequences, targets, sentences=sentences)

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        predicates, roles = zip(*labels, strict=True)
        return {"predicate_index": torch.tensor(predicates) + 1, "labels": word_labels(roles, batch)}  # after `<S>`

    def count(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, Counts]:
        """Count the arguments of the examples by role."""
        assert isinstance(examples, RoleExamples)
        gold: list[list[str]] = []
        for sentence in examples.sentences:
            gold += sentence["roles"]
        return count_arguments(label_words(predictions, labels), gold)

    def scores(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, float]:
        return self.count(examples, labels, predictions)["all"].scores()

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predictions: np.ndarray
    ) -> None:
        """Write the columns of the data with the predicted roles in place of its own; of CoNLL-2012 all its lines."""
        assert isinstance(examples, RoleExamples)
        predicted = iter(label_words(predictions, labels))
        for sentence in examples.sentences:
            roles = [cells_of_labels(next(predicted)) for _ in sentence["predicates"]]
            words = zip(sentence["columns"], *roles, strict=True)
            if not sentence["own_lines"]:
                for word in words:
                    file.write("\t".join(word) + "\n")
                file.write("\n")
            for line in sentence["own_lines"]:
                if line.strip() and not _DOCUMENT.match(line):
                    _, *cells = next(words)
                    line = _replace_roles(line, cells)
                file.write(line + "\n")

    def reports(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, str]:
        lines = ["role\tprecision\trecall\tf1\tgold\tpredicted\tright"]
        for role, counts in self.count(examples, labels, predictions).items():
            scores = "\t".join(f"{score:.4f}" for score in counts.scores().values())
            lines.append(f"{role}\t{scores}\t{counts.gold}\t{counts.predicted}\t{counts.right}")
        return {"roles.tsv": "\n".join(lines) + "\n"}
