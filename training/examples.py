"""Examples of a task as sequences of words, batches of them, and the biLM's layers kept from epoch to epoch.

An example is one sequence, or several where it has choices; a sequence is a text or a pair of texts, as words.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.modeling_elmo import IGNORED, ElmoTaskModel

# Tokens that are read by the biLM at once when its layers are kept.
BATCH_TOKENS = 2048
GIGABYTE = 1 << 30

Text = list[str]
# A text, or a pair of texts.
WordSequence = tuple[Text, ...]


@dataclass
class Examples:
    """The examples of a task: their sequences, and their labels as numbers."""

    sequences: list[WordSequence]
    labels: list[Any]
    per_example: int = 1  # sequences
    store: "LayerStore | None" = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        numbers = range(index * self.per_example, (index + 1) * self.per_example)
        return {
            "sequences": [self.sequences[number] for number in numbers],
            "layers": None if self.store is None else [self.store[number] for number in numbers],
            "label": self.labels[index],
        }

    def lengths(self) -> list[int]:
        """Tokens of every example's longest sequence, for batches of like length."""
        tokens = [count_tokens(sequence) for sequence in self.sequences]
        return [max(tokens[i : i + self.per_example]) for i in range(0, len(tokens), self.per_example)]


def count_tokens(sequence: WordSequence) -> int:
    """Words, and the two markers of each text."""
    return sum(len(text) + 2 for text in sequence)


def encode(sequences: Sequence[WordSequence], tokenizer: ElmoTokenizer) -> dict[str, Tensor]:
    columns = [list(column) for column in zip(*sequences, strict=True)]
    return dict(tokenizer(*columns, is_split_into_words=True, padding=True, return_tensors="pt"))


# ----------------------------------------------------------------------------------------------------- kept layers


class LayerStore:
    """The biLM's layers of every sequence, in one memory-mapped file: computed once, read at every epoch.

    The file's name says what it was made of, so that another run on the same text and biLM finds it.
    """

    def __init__(self, path: Path, lengths: Sequence[int], features: int) -> None:
        self.ends = np.cumsum(lengths)
        self.values = np.memmap(path, dtype=np.float32, mode="r", shape=(int(self.ends[-1]), features))

    def __getitem__(self, number: int) -> np.ndarray:
        return self.values[self.ends[number - 1] if number else 0 : self.ends[number]]

    @classmethod
    def of(
        cls,
        sequences: Sequence[WordSequence],
        model: ElmoTaskModel,
        tokenizer: ElmoTokenizer,
        folder: Path,
        limit: float,
    ) -> "LayerStore | None":
        """The layers of some sequences, made now if they are not there; None where they exceed `limit` gigabytes."""
        config = model.config
        lengths = [count_tokens(sequence) for sequence in sequences]
        features = (2 * config.num_hidden_layers + 1) * config.projection_dim
        size = sum(lengths) * features * 4
        if size > limit * GIGABYTE:
            print(
                f"note: the biLM's layers of {sum(lengths):,} words would take {size / GIGABYTE:.1f} GB, more than "
                f"--cache_gb {limit:g}: the biLM reads the text at every epoch instead"
            )
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"layers-{_fingerprint(sequences, model)}.f32"
        if not path.is_file():
            scratch = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                cls._write(scratch, sequences, lengths, features, model, tokenizer)
                os.replace(scratch, path)
            finally:
                scratch.unlink(missing_ok=True)
        return cls(path, lengths, features)

    @staticmethod
    @torch.inference_mode()
    def _write(
        path: Path,
        sequences: Sequence[WordSequence],
        lengths: Sequence[int],
        features: int,
        model: ElmoTaskModel,
        tokenizer: ElmoTokenizer,
    ) -> None:
        ends = np.cumsum(lengths)
        values = np.memmap(path, dtype=np.float32, mode="w+", shape=(int(ends[-1]), features))
        was_training = model.training
        model.eval()
        order = sorted(range(len(sequences)), key=lengths.__getitem__)
        with tqdm(total=int(ends[-1]), desc="biLM", unit=" words", unit_scale=True, disable=None) as bar:
            while order:
                count = max(BATCH_TOKENS // lengths[order[-1]], 1)
                batch, order = order[-count:], order[:-count]
                inputs = {
                    name: tensor.to(model.device)
                    for name, tensor in encode([sequences[number] for number in batch], tokenizer).items()
                }
                layers = model.bilm_layers(**inputs).float().cpu().numpy()
                for row, number in enumerate(batch):
                    length = lengths[number]
                    values[ends[number] - length : ends[number]] = layers[row, :length]
                bar.update(sum(lengths[number] for number in batch))
        values.flush()
        model.train(was_training)


def _fingerprint(sequences: Sequence[WordSequence], model: ElmoTaskModel) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.elmo.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    for sequence in sequences:
        digest.update(repr(sequence).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:24]


# ---------------------------------------------------------------------------------------------------------- batches


@dataclass
class Collator:
    """Examples -> what a task model's `forward` takes."""

    tokenizer: ElmoTokenizer

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = encode([sequence for example in examples for sequence in example["sequences"]], self.tokenizer)
        width = batch["input_ids"].shape[1]
        if examples[0]["layers"] is not None:
            kept = [values for example in examples for values in example["layers"]]
            layers = torch.zeros(len(kept), width, kept[0].shape[1])
            for row, values in zip(layers, kept, strict=True):
                row[: len(values)] = torch.from_numpy(np.array(values))  # a copy: the file is read-only
            batch["bilm_layers"] = layers
        per_example = len(examples[0]["sequences"])
        if per_example > 1:
            batch = {name: tensor.unflatten(0, (-1, per_example)) for name, tensor in batch.items()}
        labels = [example["label"] for example in examples]
        if isinstance(labels[0], list):  # a label a word, behind `<S>`
            rows = torch.full((len(labels), width), IGNORED)
            for row, of_words in zip(rows, labels, strict=True):
                row[1 : 1 + len(of_words)] = torch.tensor(of_words, dtype=torch.long)
            batch["labels"] = rows
        else:
            batch["labels"] = torch.tensor(labels)
        return batch


def make_examples(task: str, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
    """Numbers for labels and words for texts; `labels` are the names in their order, of no use to multiple choice."""
    number_of = {label: number for number, label in enumerate(labels)}
    words = _Splitter(tokenizer)
    if task in ("ner", "pos"):
        tags = [[_number(number_of, tag) for tag in row] for row in rows["tags"]]
        return Examples([(text,) for text in rows["words"]], tags)
    if task == "choice":
        sequences = [
            (words(context), words(choice))
            for context, choices in zip(rows["context"], rows["choices"], strict=True)
            for choice in choices
        ]
        return Examples(sequences, list(rows["label"]), per_example=len(rows[0]["choices"]))
    names = ("premise", "hypothesis") if task == "nli" else ("words" if "words" in rows.column_names else "text",)
    texts = ([words(text) for text in rows[name]] for name in names)
    return Examples(list(zip(*texts, strict=True)), [_number(number_of, label) for label in rows["label"]])


class UnknownLabel(ValueError):
    """A label that the model does not have."""


def _number(number_of: Mapping[str, int], label: str) -> int:
    if label not in number_of:
        raise UnknownLabel(f"the label {label!r} is none of the model's: {', '.join(sorted(number_of))}")
    return number_of[label]


@dataclass
class _Splitter:
    """Texts that are not split into words yet are."""

    tokenizer: ElmoTokenizer

    def __call__(self, text: str | Text) -> Text:
        return self.tokenizer.tokenize(text) if isinstance(text, str) else list(text)
