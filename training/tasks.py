"""Define what a task is: how rows become examples, what a batch needs beside its texts, how predictions are scored.

`Task` is what `finetune.py` works with. Here are the tasks that label texts or words; the others have files of their
own. `task_data.py` reads the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import seqeval.metrics
import sklearn.metrics
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.heads_elmo import ElmoTaskModel

from .examples import Examples, to_words
from .settings import TaskSettings


@dataclass
class Task:
    """A task of `finetune.py`.

    Args:
        name: as in `--task`; the task's recipe has the same name.
        head: the model that learns it.
        metric: the score that models are compared by; the recipe chooses the best epoch by it.
        config: settings of ElmoConfig that the task fixes.
    """

    name: str
    head: type[ElmoTaskModel]
    metric: str = "accuracy"
    config: Mapping[str, Any] = field(default_factory=dict)

    predictions_file = "predictions.tsv"

    def prepare(self, rows: Dataset, settings: TaskSettings, training: bool, source: str) -> Dataset:
        """Return the rows as the settings want them, for training or not; `source` is for errors."""
        return rows

    def label_names(self, rows: Dataset) -> list[str]:
        """Return the labels of the training data in the order of their ids; none where labels have no names."""
        return []

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        """Return the examples of some rows; `names` are those of the labels."""
        raise NotImplementedError

    def targets(self, labels: Sequence[Any]) -> dict[str, Tensor]:
        """Return what the head takes beside a batch's encoded texts, given the examples' labels."""
        return {"labels": torch.tensor(labels)}

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        """Score what the head predicted for the examples, in their order: accuracy, and the classes' mean F1."""
        accuracy = sklearn.metrics.accuracy_score(examples.labels, predictions)
        f1 = sklearn.metrics.f1_score(examples.labels, predictions, average="macro", zero_division=0.0)
        return {"accuracy": float(accuracy), "macro_f1": float(f1)}

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Return the files to write, their names and contents, of which `predictions_file` is the first."""
        raise NotImplementedError


class TextClassification(Task):
    """A class for a text, or for a pair of texts."""

    def label_names(self, rows: Dataset) -> list[str]:
        return sorted(set(rows["label"]))

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        columns = [name for name in rows.column_names if name != "label"]  # words, text, or premise and hypothesis
        sequences = []
        for row in rows:
            sequences.append(tuple(to_words(row[name]) for name in columns))
        return Examples(sequences, label_ids(rows["label"], names), names)

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write one line per example: target, prediction, texts."""
        lines = []
        for texts, target, prediction in zip(examples.sequences, examples.labels, predictions, strict=True):
            lines.append([examples.names[target], examples.names[prediction], *map(" ".join, texts)])
        return {self.predictions_file: to_tsv(lines)}


class MultipleChoice(Task):
    """The right one of several continuations of a text."""

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        sequences = []
        count = len(rows[0]["choices"])
        for number, row in enumerate(rows, start=1):
            choices = row["choices"]
            if len(choices) != count:
                raise ElmoError(f"example {number} has {len(choices)} choices, the first {count}: all need the same")
            context = to_words(row["context"])
            for choice in choices:
                sequences.append((context, to_words(choice)))
        return Examples(sequences, list(rows["label"]), per_example=[count] * len(rows))

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write one line per example: target, prediction, text and its right continuation."""
        lines = []
        for number, prediction in enumerate(predictions):
            target = examples.labels[number]
            texts = examples.sequences_of(number)[target]
            lines.append([str(target), str(prediction), *map(" ".join, texts)])
        return {self.predictions_file: to_tsv(lines)}


class Tagging(Task):
    """A tag for each word; of ner, tags that mark spans."""

    def label_names(self, rows: Dataset) -> list[str]:
        return sort_labels(rows["tags"])

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        sequences = [(words,) for words in rows["words"]]
        return Examples(sequences, [label_ids(tags, names) for tags in rows["tags"]], names)

    def targets(self, labels: Sequence[Any]) -> dict[str, Tensor]:
        return {"labels": word_labels(labels)}

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        """Compute the accuracy of tags and, where they mark spans, the CoNLL scorer's scores of spans."""
        targets = [[examples.names[number] for number in row] for row in examples.labels]
        predicted = label_words(predictions, examples.names)
        scores = {"accuracy": seqeval.metrics.accuracy_score(targets, predicted)}
        if self.metric == "f1":
            for name in ("precision", "recall", "f1"):
                score = getattr(seqeval.metrics, f"{name}_score")
                scores[name] = float(score(targets, predicted, zero_division=0))
        return scores

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write one line per word, with an empty line after each sentence: word, target, prediction."""
        lines: list[list[str]] = []
        predicted = label_words(predictions, examples.names)
        for (words,), targets, tags in zip(examples.sequences, examples.labels, predicted, strict=True):
            for word, target, tag in zip(words, targets, tags, strict=True):
                lines.append([word, examples.names[target], tag])
            lines.append([])
        return {self.predictions_file: to_tsv(lines)}


def sort_labels(sentences: Iterable[Sequence[str]]) -> list[str]:
    """Return the labels of words in alphabetical order, O first."""
    found = set().union(*sentences)
    return sorted(found, key=lambda label: (label != "O", label))


def label_ids(labels: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the ids of labels."""
    ids = []
    for label in labels:
        if label not in names:
            raise ElmoError(f"the label {label!r} is not one of the model's: {', '.join(sorted(names))}")
        ids.append(names.index(label))
    return ids


def word_labels(labels: Sequence[Sequence[int]]) -> Tensor:
    """Return the labels of each text's words between its markers, which have -100, as a padded batch: (B, T)."""
    rows = [torch.tensor([IGNORED, *numbers, IGNORED]) for numbers in labels]
    return pad_sequence(rows, batch_first=True, padding_value=IGNORED)


def label_words(predictions: np.ndarray, names: Sequence[str]) -> list[list[str]]:
    """Return the names of the labels that were predicted for the words of each text."""
    return [[names[number] for number in row[row != IGNORED]] for row in predictions]


def to_tsv(lines: Iterable[Sequence[str]]) -> str:
    """Return lines of columns as text."""
    return "".join("\t".join(columns) + "\n" for columns in lines)
