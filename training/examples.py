"""Examples of a task as sequences of words, batches of them, and the biLM's layers kept between epochs.

An example is one sequence, or several: choices, or the sentences of a document. A sequence is a text or a pair of
texts, as words.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import BatchEncoding

from modeling_elmo import ElmoTokenizer
from modeling_elmo.files import atomic_write
from modeling_elmo.heads_elmo import ElmoTaskModel

# Tokens that the biLM reads at once when its layers are kept.
BATCH_TOKENS = 2048
GIGABYTE = 1 << 30
SECONDS_A_DAY = 86_400
# At the end of a file of layers: the SHA-256 of the rest.
DIGEST_BYTES = 32
# The settings of ElmoConfig that the layers depend on, beside the weights.
LAYER_SETTINGS = (
    "cell_clip",
    "projection_clip",
    "use_skip_connections",
    "char_activation",
    "max_characters_per_token",
    "spelling",
)

_SPLITTER = ElmoTokenizer()

Text = list[str]
# A text, or a pair of texts.
WordSequence = tuple[Text, ...]


@dataclass
class Examples:
    """The sequences of a task's examples, and their labels, whatever these are to the task."""

    sequences: list[WordSequence]
    labels: list[Any]
    names: Sequence[str] = ()  # of the labels, by id
    rows: Sequence[Mapping[str, Any]] = ()  # what the examples were made of, where the task needs it again
    per_example: Sequence[int] = ()  # the sequences of each example, where not every one has one
    store: "LayerStore | None" = None

    def __post_init__(self) -> None:
        self._starts = [0, *itertools.accumulate(self.per_example or [1] * len(self))]

    def __len__(self) -> int:
        return len(self.labels)

    def sequences_of(self, index: int) -> list[WordSequence]:
        return self.sequences[self._starts[index] : self._starts[index + 1]]

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = {"sequences": self.sequences_of(index), "label": self.labels[index]}
        if self.per_example:
            example["has_several"] = True
        if self.store is not None:
            example["layers"] = [self.store.layers(sequence) for sequence in example["sequences"]]
        return example

    def lengths(self) -> list[int]:
        """Return the tokens of every example's longest sequence, for batches of like length."""
        counts = [count_tokens(sequence) for sequence in self.sequences]
        return [max(counts[start:end]) for start, end in itertools.pairwise(self._starts)]


def count_tokens(texts: Iterable[Sequence[str]]) -> int:
    """Count words, and the two markers of each text."""
    return sum(len(text) + 2 for text in texts)


def to_words(text: str | Text) -> Text:
    """Split a text that is not split into words yet."""
    return _SPLITTER.tokenize(text) if isinstance(text, str) else text


def encode(sequences: Sequence[WordSequence], tokenizer: ElmoTokenizer) -> BatchEncoding:
    """Encode sequences as a padded batch."""
    columns = map(list, zip(*sequences, strict=True))
    return tokenizer(*columns, is_split_into_words=True, padding=True, return_tensors="pt")


# ----------------------------------------------------------------------------------------------------- kept layers


class LayerStore:
    """The biLM's layers of every text in one memory-mapped file: computed once, read at every epoch.

    A text that occurs in several sequences is kept once, since each goes through the biLM by itself. The file's name
    is a digest of what it was made of, so that another run on the same texts and biLM finds it.
    """

    def __init__(self, path: Path, texts: Sequence[tuple[str, ...]], features: int) -> None:
        self.path = path
        self.places = text_places(texts)
        self.values = np.memmap(path, dtype=np.float32, mode="r", shape=(count_tokens(texts), features))

    def layers(self, sequence: WordSequence) -> list[np.ndarray]:
        """Return the layers of each text of a sequence, its markers included: each (tokens, features)."""
        return [self.values[self.places[tuple(text)]] for text in sequence]

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
        """Find or compute the layers of some sequences; return None where they exceed `limit` gigabytes."""
        texts = list(dict.fromkeys(tuple(text) for sequence in sequences for text in sequence))
        tokens = count_tokens(texts)
        features = (2 * model.config.num_hidden_layers + 1) * model.config.projection_dim
        size = tokens * features * 4
        if size > limit * GIGABYTE:
            print(
                f"note: the biLM's layers of {tokens:,} words would take {size / GIGABYTE:.1f} GB, more than "
                f"--cache_gb {limit:g}: the biLM reads the text at every epoch instead"
            )
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"layers-{_fingerprint(texts, model)}.f32"
        if _is_intact(path, size):
            os.utime(path)
            return cls(path, texts, features)
        _make_room(folder, limit * GIGABYTE - size, in_use)
        with atomic_write(path) as scratch:
            values = np.memmap(scratch, dtype=np.float32, mode="w+", shape=(tokens, features))
            _compute_layers(values, texts, model, tokenizer)
            values.flush()
            with open(scratch, "ab") as file:
                file.write(hashlib.sha256(values.data).digest())
        return cls(path, texts, features)


def _is_intact(path: Path, size: int) -> bool:
    """Return whether a file of layers is there as it was written: `size` bytes, and their digest at its end."""
    if not path.is_file() or path.stat().st_size != size + DIGEST_BYTES:
        return False
    content = np.memmap(path, dtype=np.uint8, mode="r")
    return hashlib.sha256(content[:size].data).digest() == content[size:].tobytes()


def text_places(texts: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], slice]:
    """Return where the tokens of each text are when all texts stand one after the other."""
    places = {}
    start = 0
    for text in texts:
        end = start + len(text) + 2  # and its markers
        places[text] = slice(start, end)
        start = end
    return places


def _make_room(folder: Path, limit: float, in_use: Collection[Path]) -> None:
    """Remove the oldest files of layers until they take at most `limit` bytes, and what killed runs left behind."""
    for scratch in folder.glob(".layers-*.tmp"):
        if time.time() - scratch.stat().st_mtime > SECONDS_A_DAY:
            scratch.unlink(missing_ok=True)
    others = [path for path in folder.glob("layers-*.f32") if path.is_file() and path not in in_use]
    others.sort(key=os.path.getmtime)
    while others and sum(path.stat().st_size for path in others) > limit:
        others.pop(0).unlink(missing_ok=True)


@torch.inference_mode()
def _compute_layers(
    values: np.ndarray, texts: Sequence[tuple[str, ...]], model: ElmoTaskModel, tokenizer: ElmoTokenizer
) -> None:
    """Write the layers of each text to its place in `values`, the longest texts first."""
    places = text_places(texts)
    model.eval()  # the Trainer sets the mode that it needs
    waiting = sorted(texts, key=len)
    with tqdm(total=len(values), desc="biLM", unit=" words", unit_scale=True, disable=None) as bar:
        while waiting:
            count = max(BATCH_TOKENS // (len(waiting[-1]) + 2), 1)
            batch, waiting = waiting[-count:], waiting[:-count]
            encoded = encode([(list(text),) for text in batch], tokenizer).to(model.device)
            layers = model.bilm_layers(**encoded).float().cpu().numpy()
            for row, text in zip(layers, batch, strict=True):
                values[places[text]] = row[: len(text) + 2]
                bar.update(len(text) + 2)


def _fingerprint(texts: Sequence[tuple[str, ...]], model: ElmoTaskModel) -> str:
    """Return a digest of all that the layers depend on."""
    digest = hashlib.sha256()
    config = model.config.to_dict()
    digest.update(json.dumps({name: config[name] for name in LAYER_SETTINGS}).encode())
    for name, tensor in sorted(model.elmo.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    for text in texts:
        digest.update(repr(text).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:24]


# ---------------------------------------------------------------------------------------------------------- batches


@dataclass
class Collator:
    """Makes batches of examples, as a task model's `forward` takes them."""

    tokenizer: ElmoTokenizer
    targets: Callable[[Sequence[Any]], dict[str, Tensor]]  # the task's method

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        sequences = [sequence for example in examples for sequence in example["sequences"]]
        batch = dict(encode(sequences, self.tokenizer))
        if "layers" in examples[0]:
            batch["bilm_layers"] = _pad_layers(examples, batch["input_ids"].shape[1])
        targets = self.targets([example["label"] for example in examples])
        if "has_several" in examples[0]:  # empty sequences fill up examples that have fewer than others
            counts = [len(example["sequences"]) for example in examples]
            batch = {name: pad_sequence(tensor.split(counts), batch_first=True) for name, tensor in batch.items()}
        return {**batch, **targets}


def _pad_layers(examples: Sequence[Mapping[str, Any]], width: int) -> Tensor:
    """Return the kept layers of every sequence, its texts one after the other, padded with zeros."""
    kept = [texts for example in examples for texts in example["layers"]]
    layers = np.zeros((len(kept), width, kept[0][0].shape[1]), dtype=np.float32)
    for row, texts in zip(layers, kept, strict=True):
        row[: sum(map(len, texts))] = np.concatenate(texts)
    return torch.from_numpy(layers)
