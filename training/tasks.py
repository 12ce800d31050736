"""Define what a task is: how rows become examples, what a batch needs beside its texts, how predictions are scored.

`Task` is what `finetune.py` works with. Here are the tasks that label texts or words; the others have files of their
own. `task_data.py` reads the rows.
"""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy.stats
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
        config: settings of ElmoConfig that the task's models have, unless a recipe says otherwise.
    """

    name: str
    head: type[ElmoTaskModel]
    metric: str = "accuracy"
    config: Mapping[str, Any] = field(default_factory=dict)

    predictions_file = "predictions.tsv"
    # Of classifiers of texts: what ElmoConfig calls the problem.
    problem_type: ClassVar[str | None] = None

    def for_data(self, rows: Dataset, problem_type: str | None) -> "Task":
        """Return the task that the training data is for, of those that this one may be, or that the user chose."""
        return self

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

    def predict(self, outputs: Any, _: Tensor) -> Tensor:
        """Return what the head predicts: the last of its outputs, or the labels with the highest scores."""
        logits, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
        return rest[-1] if rest else logits.argmax(-1)

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

    problem_type = "single_label_classification"

    def label_names(self, rows: Dataset) -> list[str]:
        return sort_names(rows["label"])

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        columns = [name for name in rows.column_names if name not in ("label", "kind")]
        # words, text, text and text_pair, or premise and hypothesis
        sequences = []
        for row in rows:
            sequences.append(tuple(to_words(row[name]) for name in columns))
        return Examples(sequences, self.targets_of(rows, names), names)

    def targets_of(self, rows: Dataset, names: Sequence[str]) -> list[Any]:
        """Return what each row's label is to the head."""
        return label_ids(rows["label"], names)

    def show(self, target: Any, names: Sequence[str]) -> str:
        """Return a target, or a prediction, as text."""
        return names[target]

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write one line per example: target, prediction, texts."""
        lines = []
        for texts, target, prediction in zip(examples.sequences, examples.labels, predictions, strict=True):
            labels = [self.show(value, examples.names) for value in (target, prediction)]
            lines.append([*labels, *map(" ".join, texts)])
        return {self.predictions_file: to_tsv(lines)}


class MultiLabel(TextClassification):
    """Any number of labels for a text: each row has a JSON list."""

    problem_type = "multi_label_classification"

    def label_names(self, rows: Dataset) -> list[str]:
        names = sort_names(itertools.chain(*map(json.loads, rows["label"])))
        if not names:
            raise ElmoError("all lists of labels in the training data are empty")
        return names

    def targets_of(self, rows: Dataset, names: Sequence[str]) -> list[Any]:
        targets = []
        for label in rows["label"]:
            chosen = label_ids(json.loads(label), names)
            targets.append([float(number in chosen) for number in range(len(names))])
        return targets

    def predict(self, outputs: Any, _: Tensor) -> Tensor:
        return (outputs > 0).long()

    def show(self, target: Any, names: Sequence[str]) -> str:
        return ", ".join(itertools.compress(names, target))

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        """Compute F1 over all decisions, the mean of the labels' F1, and how often all labels are right."""
        targets = np.asarray(examples.labels)
        scores = {"accuracy": float((targets == predictions).all(1).mean())}
        for average in ("micro", "macro"):
            f1 = sklearn.metrics.f1_score(targets, predictions, average=average, zero_division=0.0)
            scores[f"{average}_f1"] = float(f1)
        return scores


class Regression(TextClassification):
    """A number for a text."""

    problem_type = "regression"

    def label_names(self, rows: Dataset) -> list[str]:
        return ["value"]  # one output

    def targets_of(self, rows: Dataset, names: Sequence[str]) -> list[Any]:
        for label in rows["label"]:
            if not is_number(label):
                raise ElmoError(f"the label {label!r} is not a number, which problem_type=regression needs")
        return [float(label) for label in rows["label"]]

    def predict(self, outputs: Any, _: Tensor) -> Tensor:
        return outputs[:, 0]

    def show(self, target: Any, names: Sequence[str]) -> str:
        return f"{target:.6g}"

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        """Compute correlations, 0 where one side is constant, and the mean squared error."""
        targets = np.asarray(examples.labels)
        scores = {"pearson": 0.0, "spearman": 0.0}
        if np.ptp(targets) and np.ptp(predictions):
            scores["pearson"] = float(scipy.stats.pearsonr(targets, predictions).statistic)
            scores["spearman"] = float(scipy.stats.spearmanr(targets, predictions).statistic)
        return {**scores, "mse": float(np.square(targets - predictions).mean())}


METRICS = {TextClassification: "accuracy", MultiLabel: "micro_f1", Regression: "pearson"}
PROBLEMS = {task.problem_type: task for task in METRICS}


class LabelledTexts(TextClassification):
    """Texts, or pairs of texts, with classes, lists of labels or numbers.

    A row's `label` is text, and its `kind` one of "name", "list" and "number".
    """

    def for_data(self, rows: Dataset, problem_type: str | None) -> Task:
        kinds = set(rows["kind"])
        if len(kinds) > 1 and "list" in kinds:
            raise ElmoError("some labels of the training data are lists and others are not: all must be of one kind")
        are_numbers = "number" in kinds and all(map(is_number, rows["label"]))
        if kinds == {"list"}:
            found, description = MultiLabel, "lists, several for each text"
        elif are_numbers:
            found, description = Regression, "numbers with a decimal point"
        else:
            found, description = TextClassification, "one of several classes for each text"
        chosen = PROBLEMS[problem_type or found.problem_type]
        if (chosen is MultiLabel) != (kinds == {"list"}):
            raise ElmoError(f"`problem_type` is {chosen.problem_type}, but the labels are {description}")
        texts = "pairs of texts" if "text_pair" in rows.column_names else "texts"
        how = "as --problem_type says" if problem_type else "since the labels are " + description
        print(f"{len(rows):,} {texts}: {chosen.problem_type}, {how}")
        return chosen(self.name, self.head, METRICS[chosen], self.config)


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


def sort_names(labels: Iterable[str]) -> list[str]:
    """Return different labels in order: that of numbers if all are, else of the alphabet."""
    found = set(labels)
    if all(re.fullmatch(r"-?\d+", label) for label in found):
        return sorted(found, key=lambda label: (int(label), label))
    return sorted(found)


def is_number(label: str) -> bool:
    """Return whether a label is a finite number."""
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


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
