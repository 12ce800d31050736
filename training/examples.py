"""Examples of a task as sequences of words, batches of them, and the biLM's layers kept from epoch to epoch.

An example is one sequence, or several: choices, or the sentences of a document. A sequence is a text or a pair of
texts, as words.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.heads_elmo import ElmoTaskModel

# Tokens that are read by the biLM at once when its layers are kept.
BATCH_TOKENS = 2048
GIGABYTE = 1 << 30
SECONDS_A_DAY = 86_400
# Of a config: what the layers depend on, beside the weights.
SHAPING = (
    "cell_clip",
    "projection_clip",
    "use_skip_connections",
    "char_activation",
    "max_characters_per_token",
    "spelling",
)

Text = list[str]
# A text, or a pair of texts.
WordSequence = tuple[Text, ...]


@dataclass
class Examples:
    """The examples of a task: their sequences, and their labels, whatever these are to the task."""

    sequences: list[WordSequence]
    labels: list[Any]
    per_example: int | Sequence[int] = 1  # sequences: as many for all, or a number for each
    store: "LayerStore | None" = None

    def __post_init__(self) -> None:
        counts = self.per_example
        self._starts = [0, *itertools.accumulate([counts] * len(self) if isinstance(counts, int) else counts)]

    def __len__(self) -> int:
        return len(self.labels)

    def sequences_of(self, index: int) -> list[WordSequence]:
        return self.sequences[self._starts[index] : self._starts[index + 1]]

    def __getitem__(self, index: int) -> dict[str, Any]:
        sequences = self.sequences_of(index)
        return {
            "sequences": sequences,
            "has_several": self.per_example != 1,
            "layers": None if self.store is None else [self.store.of(sequence) for sequence in sequences],
            "label": self.labels[index],
        }

    def lengths(self) -> list[int]:
        """Tokens of every example's longest sequence, for batches of like length."""
        return [max(count_tokens(sequence) for sequence in self.sequences_of(index)) for index in range(len(self))]


def count_tokens(sequence: WordSequence) -> int:
    """Words, and the two markers of each text."""
    return sum(len(text) + 2 for text in sequence)


def words_of(text: str | Text, tokenizer: ElmoTokenizer) -> Text:
    """A text that is not split into words yet is."""
    return tokenizer.tokenize(text) if isinstance(text, str) else list(text)


def encode(sequences: Sequence[WordSequence], tokenizer: ElmoTokenizer) -> dict[str, Tensor]:
    columns = [list(column) for column in zip(*sequences, strict=True)]
    return dict(tokenizer(*columns, is_split_into_words=True, padding=True, return_tensors="pt"))


# ----------------------------------------------------------------------------------------------------- kept layers


class LayerStore:
    """The biLM's layers of every text, in one memory-mapped file: computed once, read at every epoch.

    A text that occurs in several sequences is kept once, since each goes through the biLM by itself. The file's name
    says what it was made of, so that another run on the same texts and biLM finds it.
    """

    def __init__(self, path: Path, texts: Sequence[tuple[str, ...]], features: int) -> None:
        self.number_of = {text: number for number, text in enumerate(texts)}
        self.ends = np.cumsum([count_tokens((text,)) for text in texts])
        self.path = path
        self.values = np.memmap(path, dtype=np.float32, mode="r", shape=(int(self.ends[-1]), features))

    def of(self, sequence: WordSequence) -> list[np.ndarray]:
        """The layers of each text of a sequence, its markers included: each (tokens, features)."""
        numbers = [self.number_of[tuple(text)] for text in sequence]
        return [self.values[self.ends[number - 1] if number else 0 : self.ends[number]] for number in numbers]

    @classmethod
    def make(
        cls,
        sequences: Sequence[WordSequence],
        model: ElmoTaskModel,
        tokenizer: ElmoTokenizer,
        folder: Path,
        limit: float,
        in_use: Collection[Path] = (),
    ) -> "LayerStore | None":
        """The layers of some sequences, made now if they are not there; None where they exceed `limit` gigabytes.

        Files of other sequences make room for them, those that were not used for longest first.
        """
        config = model.config
        texts = list(dict.fromkeys(tuple(text) for sequence in sequences for text in sequence))
        tokens = sum(count_tokens((text,)) for text in texts)
        features = (2 * config.num_hidden_layers + 1) * config.projection_dim
        size = tokens * features * 4
        if size > limit * GIGABYTE:
            print(
                f"note: the biLM's layers of {tokens:,} words would take {size / GIGABYTE:.1f} GB, more than "
                f"--cache_gb {limit:g}: the biLM reads the text at every epoch instead"
            )
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"layers-{_fingerprint(texts, model)}.f32"
        if path.is_file():
            os.utime(path)
        else:
            _make_room(folder, limit * GIGABYTE - size, in_use)
            scratch = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                values = np.memmap(scratch, dtype=np.float32, mode="w+", shape=(tokens, features))
                for place, layers in _read_texts(texts, model, tokenizer):
                    values[place] = layers
                values.flush()
                os.replace(scratch, path)
            finally:
                scratch.unlink(missing_ok=True)
        return cls(path, texts, features)


def _make_room(folder: Path, limit: float, in_use: Collection[Path]) -> None:
    """Removes files of layers until the rest of them takes at most `limit` bytes, and what killed runs left behind."""
    for scratch in folder.glob("layers-*.tmp"):
        if time.time() - scratch.stat().st_mtime > SECONDS_A_DAY:
            scratch.unlink(missing_ok=True)
    rest = sorted((path for path in folder.glob("layers-*.f32") if path not in in_use), key=os.path.getmtime)
    while rest and sum(path.stat().st_size for path in rest) > limit:
        rest.pop(0).unlink(missing_ok=True)


@torch.inference_mode()
def _read_texts(
    texts: Sequence[tuple[str, ...]], model: ElmoTaskModel, tokenizer: ElmoTokenizer
) -> Iterator[tuple[slice, np.ndarray]]:
    """The layers of each text, and where they belong when all are beside each other; the longest texts first."""
    lengths = [count_tokens((text,)) for text in texts]
    ends = np.cumsum(lengths)
    was_training = model.training
    model.eval()
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    with tqdm(total=int(ends[-1]), desc="biLM", unit=" words", unit_scale=True, disable=None) as bar:
        while order:
            count = max(BATCH_TOKENS // lengths[order[-1]], 1)
            batch, order = order[-count:], order[:-count]
            encoded = encode([(list(texts[number]),) for number in batch], tokenizer)
            inputs = {name: tensor.to(model.device) for name, tensor in encoded.items()}
            layers = model.bilm_layers(**inputs).float().cpu().numpy()
            for row, number in zip(layers, batch, strict=True):
                yield slice(ends[number] - lengths[number], ends[number]), row[: lengths[number]]
            bar.update(sum(lengths[number] for number in batch))
    model.train(was_training)


def _fingerprint(texts: Sequence[tuple[str, ...]], model: ElmoTaskModel) -> str:
    digest = hashlib.sha256()
    config = model.config.to_dict()
    digest.update(json.dumps({name: config[name] for name in SHAPING}).encode())
    for name, tensor in sorted(model.elmo.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    for text in texts:
        digest.update(repr(text).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:24]


# ---------------------------------------------------------------------------------------------------------- batches


@dataclass
class Collator:
    """Examples -> what a task model's `forward` takes.

    Args:
        tokenizer: that of the model.
        targets: of the task, which makes tensors of the examples' labels.
    """

    tokenizer: ElmoTokenizer
    targets: Callable[[Sequence[Any], Mapping[str, Tensor]], dict[str, Tensor]]

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = encode([sequence for example in examples for sequence in example["sequences"]], self.tokenizer)
        if examples[0]["layers"] is not None:
            batch["bilm_layers"] = self._layers(examples, batch["input_ids"].shape[1])
        targets = self.targets([example["label"] for example in examples], batch)
        if examples[0]["has_several"]:  # an example with fewer than others is filled up with empty ones
            counts = [len(example["sequences"]) for example in examples]
            batch = {name: pad_sequence(tensor.split(counts), batch_first=True) for name, tensor in batch.items()}
        return {**batch, **targets}

    @staticmethod
    def _layers(examples: Sequence[Mapping[str, Any]], width: int) -> Tensor:
        """The kept layers of every sequence, its texts one after the other, filled up with zeros."""
        kept = [texts for example in examples for texts in example["layers"]]
        layers = np.zeros((len(kept), width, kept[0][0].shape[1]), dtype=np.float32)
        for row, texts in zip(layers, kept, strict=True):
            start = 0
            for values in texts:
                row[start : start + len(values)] = values
                start += len(values)
        return torch.from_numpy(layers)
