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

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.roles_elmo import role_spans

from .examples import Examples, WordSequence
from .readers import DOCUMENT_LINE, Line, read_blocks, read_lines
from .tasks import Task, label_words, sort_labels, to_tsv, word_labels

NO_FRAME = ("-", "_")
# CoNLL-2012: the columns of word, part of speech, lemma and frame; roles are from the eleventh to before the last.
CONLL_2012 = (3, 4, 6, 7)
FIRST_ROLE = 11

_CELL = re.compile(r"(?:\(([^\s()*]+))?\*(\))?")

# A role, and the words that have it: first and one past the last of each piece.
Argument = tuple[str, tuple[tuple[int, int], ...]]


# -------------------------------------------------------------------------------------------------------- columns


def read_propositions(path: Path, frame: str | None = None) -> list[dict[str, Any]]:
    """Read the sentences of a file, with or without predicates.

    A row has the sentence's words, the columns before the roles as they are, the positions of its predicates, the
    words' roles as BIO labels for each predicate, and the file's own lines if it is CoNLL-2012, else none. `frame` is
    the number of the column of frames, counted from 1; by default it is found.
    """
    lines = list(read_lines(path))
    blocks = list(read_blocks(lines, path))
    is_conll_2012 = any(DOCUMENT_LINE.match(text) for _, text in lines)
    if is_conll_2012:
        blocks = [[_from_conll_2012(line) for line in block] for block in blocks]
    if frame is None:
        column = _find_frame_column(blocks)
    elif frame.isdecimal() and int(frame) > 1:
        column = int(frame)
    else:
        raise ElmoError(f"`frame` must be the number of a column after the word's, as in frame=4, got {frame}")
    # What stands between two sentences is kept with the first of them, what precedes all with the first.
    starts = [0, *(block[0].number - 1 for block in blocks[1:]), len(lines)]
    rows = []
    for block, start, end in zip(blocks, starts, starts[1:], strict=False):
        row = _to_row(block, column)
        row["own_lines"] = [text for _, text in lines[start:end]] if is_conll_2012 else []
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
    first = block[0]
    width = len(first.columns)
    if width < frame_column:
        raise ElmoError(f"{first.place}: no column {frame_column} for frames: there are {width}")
    predicates = []
    for word, line in enumerate(block):
        if len(line.columns) != width:
            raise ElmoError(f"{line.place}: {len(line.columns)} columns where the sentence's first line has {width}")
        if line.columns[frame_column - 1] not in NO_FRAME:
            predicates.append(word)
    columns = list(zip(*(line.columns for line in block), strict=True))
    roles = [labels_of_cells(cells, block) for cells in columns[frame_column:]]
    if len(roles) != len(predicates):
        raise ElmoError(
            f"{first.place}: the sentence has {len(predicates)} predicates by its column {frame_column}, and "
            f"{len(roles)} columns of roles"
        )
    return {
        "words": list(columns[0]),
        "columns": ["\t".join(line.columns[:frame_column]) for line in block],
        "predicates": predicates,
        "roles": roles,
    }


def labels_of_cells(cells: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """Return a column of brackets as BIO labels; `lines` say where each cell is, for errors."""
    labels: list[str] = []
    open_role = ""
    for cell, line in zip(cells, lines, strict=True):
        parts = _CELL.fullmatch(cell)
        if parts is None:
            raise ElmoError(f"{line.place}: {cell!r} is not a role: expected (ROLE*, *, *) or (ROLE*)")
        role, closes = parts.groups()
        if (role and open_role) or (closes and not role and not open_role):
            raise ElmoError(f"{line.place}: unbalanced brackets: {cell!r}")
        if role:
            open_role = role
            labels.append(f"B-{role}")
        else:
            labels.append(f"I-{open_role}" if open_role else "O")
        if closes:
            open_role = ""
    if open_role:
        raise ElmoError(f"{lines[-1].place}: unbalanced brackets: ({open_role}* is never closed")
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
    separator = r"(\t)" if "\t" in line else "(?<=[^ ])( +)(?=[^ ])"  # as in `read_blocks`
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
    counters: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
    for predicted_labels, gold_labels in zip(predicted, gold, strict=True):
        predictions = arguments_of(predicted_labels)
        targets = arguments_of(gold_labels)
        for counter, arguments in zip(counters, (targets, predictions, predictions & targets), strict=True):
            counter.update(role for role, _ in arguments)
    table = {"all": Counts(*(counter.total() for counter in counters))}
    for role in sorted(counters[0] | counters[1]):
        table[role] = Counts(*(counter[role] for counter in counters))
    return table


# ----------------------------------------------------------------------------------------------------------- task


class SemanticRoleLabeling(Task):
    """The roles of words for each predicate of a sentence.

    An example is a sentence and one of its predicates; its label is the predicate's position and the words' label ids.
    """

    predictions_file = "predictions.conll"

    def label_names(self, rows: Dataset) -> list[str]:
        return sort_labels(itertools.chain(*rows["roles"]))

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        ids = {label: number for number, label in enumerate(names)}
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
        return Examples(sequences, targets, names, sentences)

    def targets(self, labels: Sequence[Any]) -> dict[str, Tensor]:
        predicates, roles = zip(*labels, strict=True)
        return {"predicate_index": torch.tensor(predicates) + 1, "labels": word_labels(roles)}  # after `<S>`

    def count(self, examples: Examples, predictions: np.ndarray) -> dict[str, Counts]:
        """Count the arguments of the examples by role."""
        gold = itertools.chain(*(sentence["roles"] for sentence in examples.rows))
        return count_arguments(label_words(predictions, examples.names), gold)

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        return self.count(examples, predictions)["all"].scores()

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write the columns of the data with the predicted roles, of CoNLL-2012 all its lines; and scores by role."""
        lines: list[Sequence[str]] = []
        predicted = iter(label_words(predictions, examples.names))
        for sentence in examples.rows:
            roles = [cells_of_labels(next(predicted)) for _ in sentence["predicates"]]
            words = zip(sentence["columns"], *roles, strict=True)
            if not sentence["own_lines"]:
                lines += [*words, []]
            for line in sentence["own_lines"]:
                if line.strip() and not DOCUMENT_LINE.match(line):
                    _, *cells = next(words)
                    line = _replace_roles(line, cells)
                lines.append([line])
        table = [["role", "precision", "recall", "f1", *Counts._fields]]
        for role, counts in self.count(examples, predictions).items():
            scores = [f"{score:.4f}" for score in counts.scores().values()]
            table.append([role, *scores, *map(str, counts)])
        return {self.predictions_file: to_tsv(lines), "roles.tsv": to_tsv(table)}
