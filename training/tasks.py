"""What a task is: where its examples come from, what a batch of them asks of its head, how predictions are scored.

`Task` is what `finetune.py` works with. Here are the tasks whose examples have a class or whose words have a tag; the
others have files of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from modeling_elmo import ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.heads_elmo import ElmoTaskModel
from training.examples import Examples, words_of
from training.metrics import class_scores, tag_scores
from training.settings import TaskSettings
from training.task_data import read_examples, read_hub_examples


class Task:
    """A task of `finetune.py`.

    Args:
        name: as in `--task`; the task's recipe has the same.
        head: the model that learns it.
        metric: which of its scores it is compared by; its recipe chooses the best epoch by the same.
        config: what of ElmoConfig the task fixes.
    """

    predictions_file = "predictions.tsv"

    def __init__(self, name: str, head: type[ElmoTaskModel], metric: str = "accuracy", **config: Any) -> None:
        self.name, self.head, self.metric, self.config = name, head, metric, config

    def read(self, path: Path, settings: TaskSettings, training: bool) -> Dataset:
        """The rows of a file, for training or not."""
        return read_examples(self.name, path, columns=settings.renamed_columns())

    def read_hub(self, settings: TaskSettings, split: str, training: bool) -> Dataset:
        """The rows of a data set of the Hub."""
        assert settings.dataset_name is not None
        if settings.phrases:
            raise ElmoError("`phrases` are those of trees, which a --train_file of SST has, and no data set")
        options = {"columns": settings.renamed_columns(), "scheme": settings.tag_scheme or "BIO"}
        return read_hub_examples(self.name, settings.dataset_name, settings.dataset_config_name, split, **options)

    def label_names(self, rows: Dataset) -> list[str]:
        """The labels of the training data, in the order of their numbers; none where labels have no names."""
        return []

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        raise NotImplementedError

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the head takes beside a batch's encoded texts, of its examples' labels."""
        return {"labels": torch.tensor(labels)}

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        """Of what the head predicted for the examples, in their order."""
        raise NotImplementedError

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        raise NotImplementedError

    def reports(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, str]:
        """More to write beside the predictions: names of files, and what is in them."""
        return {}


class ClassOfText(Task):
    """A class for a text, or for a pair of texts."""

    def read(self, path: Path, settings: TaskSettings, training: bool) -> Dataset:
        phrases = {"phrases": settings.phrases} if self.name == "sst" and training else {}
        return read_examples(self.name, path, columns=settings.renamed_columns(), **phrases)

    def label_names(self, rows: Dataset) -> list[str]:
        return sorted(set(rows["label"]))

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        pair = ("premise", "hypothesis")
        names = pair if self.name == "nli" else ("words" if "words" in rows.column_names else "text",)
        texts = ([words_of(text, tokenizer) for text in rows[name]] for name in names)
        return Examples(list(zip(*texts, strict=True)), [_number(labels, label) for label in rows["label"]])

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        return class_scores([labels[number] for number in predicted], [labels[number] for number in examples.labels])

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        """A line an example: gold, predicted, texts."""
        for texts, gold, found in zip(examples.sequences, examples.labels, predicted, strict=True):
            file.write("\t".join((labels[gold], labels[found], *(" ".join(text) for text in texts))) + "\n")


class RightEnding(Task):
    """Which of several endings belongs to a text."""

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        sequences = [
            (words_of(context, tokenizer), words_of(choice, tokenizer))
            for context, choices in zip(rows["context"], rows["choices"], strict=True)
            for choice in choices
        ]
        counts = [len(choices) for choices in rows["choices"]]
        if odd := [number for number, count in enumerate(counts, start=1) if count != counts[0]]:
            count = counts[odd[0] - 1]
            raise ElmoError(f"example {odd[0]} has {count} choices, the first {counts[0]}: all must have as many")
        return Examples(sequences, list(rows["label"]), per_example=counts[0])

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        return class_scores(predicted.tolist(), examples.labels)

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        """A line an example: gold, predicted, text and its right ending."""
        for number, (gold, found) in enumerate(zip(examples.labels, predicted, strict=True)):
            texts = examples.sequences_of(number)[gold]
            file.write("\t".join((str(gold), str(found), *(" ".join(text) for text in texts))) + "\n")


class TagOfWord(Task):
    """A tag for each word; of ner, tags that mark spans."""

    def read(self, path: Path, settings: TaskSettings, training: bool) -> Dataset:
        scheme = settings.tag_scheme or "BIO"
        return read_examples(self.name, path, columns=settings.renamed_columns(), scheme=scheme)

    def label_names(self, rows: Dataset) -> list[str]:
        return sorted({tag for tags in rows["tags"] for tag in tags}, key=lambda label: (label != "O", label))

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        tags = [[_number(labels, tag) for tag in row] for row in rows["tags"]]
        return Examples([(text,) for text in rows["words"]], tags)

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"labels": word_labels(labels, batch)}

    def _tags(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> tuple[list, list]:
        """The predicted and the gold tags of every sentence, as names."""
        found = [[labels[number] for number in row[row != IGNORED]] for row in predicted]
        return found, [[labels[number] for number in row] for row in examples.labels]

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        return tag_scores(*self._tags(examples, labels, predicted), spans=self.name == "ner")

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        """A line a word, sentences parted by empty lines: word, gold, predicted."""
        found, gold = self._tags(examples, labels, predicted)
        for (words,), *tags in zip(examples.sequences, gold, found, strict=True):
            file.write("\n".join("\t".join(line) for line in zip(words, *tags, strict=True)) + "\n\n")


def word_labels(labels: Sequence[Sequence[int]], batch: Mapping[str, Tensor]) -> Tensor:
    """The labels of the words of each text at their places in the batch, behind `<S>`, and -100 elsewhere: (B, T)."""
    rows = torch.full(batch["input_ids"].shape, IGNORED)
    for row, of_words in zip(rows, labels, strict=True):
        row[1 : 1 + len(of_words)] = torch.tensor(of_words, dtype=torch.long)
    return rows


def _number(labels: Sequence[str], label: str) -> int:
    if label not in labels:
        raise ElmoError(f"the label {label!r} is none of the model's: {', '.join(sorted(labels))}")
    return labels.index(label)


__all__ = ["ClassOfText", "RightEnding", "TagOfWord", "Task", "word_labels"]
