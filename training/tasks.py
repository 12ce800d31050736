"""Define what a task is: how rows become examples, what a batch needs beside its texts, how predictions are scored.

`Task` is what `finetune.py` works with. Here are the tasks that label texts or words; the others have files of their
own. `task_data.py` reads the rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from modeling_elmo import ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.heads_elmo import ElmoTaskModel
from training.examples import Examples, to_words
from training.metrics import class_scores, tag_scores
from training.settings import TaskSettings


class Task:
    """A task of `finetune.py`.

    Args:
        name: as in `--task`; the task's recipe has the same name.
        head: the model that learns it.
        metric: the score that models are compared by; the recipe chooses the best epoch by it.
        config: settings of ElmoConfig that the task fixes.
    """

    predictions_file = "predictions.tsv"

    def __init__(self, name: str, head: type[ElmoTaskModel], metric: str = "accuracy", **config: Any) -> None:
        self.name = name
        self.head = head
        self.metric = metric
        self.config = config

    def read_options(self, settings: TaskSettings) -> dict[str, Any]:
        """Return the options for `task_data.read_examples`."""
        return {"columns": settings.renamed_columns(), "scheme": settings.tag_scheme or "BIO"}

    def prepare(self, rows: Dataset, settings: TaskSettings, training: bool, source: str) -> Dataset:
        """Return the rows as the settings want them, for training or not; `source` is for errors."""
        return rows

    def label_names(self, rows: Dataset) -> list[str]:
        """Return the labels of the training data in the order of their ids; none where labels have no names."""
        return []

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        raise NotImplementedError

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the head takes beside a batch's encoded texts, given the examples' labels."""
        return {"labels": torch.tensor(labels)}

    def scores(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, float]:
        """Score what the head predicted for the examples, in their order."""
        raise NotImplementedError

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predictions: np.ndarray
    ) -> None:
        raise NotImplementedError

    def reports(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, str]:
        """Return further files to write beside the predictions: their names and contents."""
        return {}


class TextClassification(Task):
    """A class for a text, or for a pair of texts."""

    def label_names(self, rows: Dataset) -> list[str]:
        return sorted(set(rows["label"]))

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        columns = [name for name in rows.column_names if name != "label"]  # words, text, or premise and hypothesis
        sequences = []
        for row in rows:
            sequences.append(tuple(to_words(row[name], tokenizer) for name in columns))
        return Examples(sequences, [_label_id(labels, label) for label in rows["label"]])

    def scores(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, float]:
        targets = [labels[number] for number in examples.labels]
        return class_scores([labels[number] for number in predictions], targets)

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predictions: np.ndarray
    ) -> None:
        """Write one line per example: target, prediction, texts."""
        for texts, target, prediction in zip(examples.sequences, examples.labels, predictions, strict=True):
            _write_line(file, labels[target], labels[prediction], texts)


class MultipleChoice(Task):
    """The right one of several continuations of a text."""

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        sequences = []
        count = len(rows[0]["choices"])
        for number, row in enumerate(rows, start=1):
            choices = row["choices"]
            if len(choices) != count:
                raise ElmoError(f"example {number} has {len(choices)} choices, the first {count}: all need the same")
            context = to_words(row["context"], tokenizer)
            for choice in choices:
                sequences.append((context, to_words(choice, tokenizer)))
        return Examples(sequences, list(rows["label"]), per_example=count)

    def scores(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, float]:
        return class_scores(predictions.tolist(), examples.labels)

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predictions: np.ndarray
    ) -> None:
        """Write one line per example: target, prediction, text and its right continuation."""
        for number, prediction in enumerate(predictions):
            target = examples.labels[number]
            _write_line(file, str(target), str(prediction), examples.sequences_of(number)[target])


class Tagging(Task):
    """A tag for each word; of ner, tags that mark spans."""

    def label_names(self, rows: Dataset) -> list[str]:
        return sort_labels(rows["tags"])

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        sequences = [(words,) for words in rows["words"]]
        return Examples(sequences, [[_label_id(labels, tag) for tag in tags] for tags in rows["tags"]])

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"labels": word_labels(labels, batch)}

    def scores(self, examples: Examples, labels: Sequence[str], predictions: np.ndarray) -> dict[str, float]:
        targets = [[labels[number] for number in row] for row in examples.labels]
        return tag_scores(label_words(predictions, labels), targets, spans=self.name == "ner")

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predictions: np.ndarray
    ) -> None:
        """Write one line per word, with an empty line after each sentence: word, target, prediction."""
        predicted = label_words(predictions, labels)
        for (words,), targets, tags in zip(examples.sequences, examples.labels, predicted, strict=True):
            for word, target, tag in zip(words, targets, tags, strict=True):
                file.write(f"{word}\t{labels[target]}\t{tag}\n")
            file.write("\n")


def sort_labels(sentences: Sequence[Sequence[str]]) -> list[str]:
    """Return the labels of words in alphabetical order, O first."""
    found = {label for labels in sentences for label in labels}
    return sorted(found, key=lambda label: (label != "O", label))


def word_labels(labels: Sequence[Sequence[int]], batch: Mapping[str, Tensor]) -> Tensor:
    """Return the labels of each text's words at their places in the batch, after `<S>`, and -100 elsewhere: (B, T)."""
    rows = torch.full(batch["input_ids"].shape, IGNORED)
    for row, numbers in zip(rows, labels, strict=True):
        row[1 : 1 + len(numbers)] = torch.tensor(numbers, dtype=torch.long)
    return rows


def label_words(predictions: np.ndarray, labels: Sequence[str]) -> list[list[str]]:
    """Return the names of the labels that were predicted for the words of each text."""
    return [[labels[number] for number in row[row != IGNORED]] for row in predictions]


def _label_id(labels: Sequence[str], label: str) -> int:
    if label not in labels:
        raise ElmoError(f"the label {label!r} is not one of the model's: {', '.join(sorted(labels))}")
    return labels.index(label)


def _write_line(file: TextIO, target: str, prediction: str, texts: Sequence[list[str]]) -> None:
    columns = [target, prediction]
    for words in texts:
        columns.append(" ".join(words))
    file.write("\t".join(columns) + "\n")
