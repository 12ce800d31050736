"""`elmo neighbors`: the uses of a word in a corpus that are nearest to its use in a sentence.

The index is what `embed_corpus` makes of the corpus: an Arrow file of words and their vectors in float16, beside the
corpus or in a folder of indexes. Its name holds a digest of corpus, model and settings, so one that is found fits.

A search maps the file into memory and goes through its record batches, of some 16 MB each, so that neither building
nor searching takes more memory for a larger corpus. W words of a batch, C of them candidates, D numbers a vector.
It compares exactly: an approximate index pays where many searches follow each other, but here there is one, and by
default it reads the vectors of one word alone.
"""

import hashlib
import heapq
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel

from .embedding import (
    ElmoEmbedder,
    Report,
    StrPath,
    embed_corpus,
    identity_of_model,
    open_corpus,
    require,
)
from .folders import first_line, load_folder
from .scoring import marked_word

# Cosines of float16 vectors differ from those of float32 in the fourth decimal.
DTYPE = "float16"
# Of the digest in an index's name, in hexadecimal digits.
DIGEST_LENGTH = 16
# A cosine with a vector of zeros is 0.
SMALLEST = 1e-12
# Words that are shown on either side of the one that was found.
SHOWN_WORDS = 12


class NeighborError(ValueError):
    """A search that cannot be made, or finds nothing. The message is one line and names what is wrong."""


class Neighbor(NamedTuple):
    """A use of a word: how near it is, as a cosine, its sentence's number in the corpus and its place in that."""

    score: float
    number: int
    position: int
    words: list[str]


class Uses:
    """The uses of all words of a corpus, to be searched.

        uses = Uses("sentences.txt", modeling_elmo.MINI)
        uses.nearest("He sat on the [bank] of the river .", count=3)

    The index is made if it is not there; a run that was interrupted goes on where it stopped.

    Args:
        corpus: a text file (a sentence a line), or a .jsonl, .csv or .parquet file.
        model: the folder of the model and its tokenizer.
        layer: whose vectors are compared: `"top"`, a layer's number (0 has the context-free vectors), the `"average"`
            of the layers or the model's `"mix"`.
        folder: where the index is; by default, beside the corpus.
        tokenized: whether text is split at whitespace alone; otherwise, by the tokenizer. Lists of words stay.
        column: where the sentences are, in a file that has columns; by default `text`, or the only one.

    Attributes:
        index: the file of the index.
        report: what was indexed; None where the index was there already.

    Raises:
        NeighborError, EmbeddingError, FolderError: if corpus, model or settings do not fit.
    """

    def __init__(
        self,
        corpus: StrPath,
        model: StrPath,
        layer: str | int = "top",
        folder: StrPath | None = None,
        tokenized: bool = True,
        column: str | None = None,
    ) -> None:
        self.corpus = Path(corpus)
        if not self.corpus.is_file():
            raise NeighborError(f"{corpus}: no such file; the corpus is text, a sentence a line, or a table of it")
        loaded, tokenizer = load_folder(model, AutoModel)
        top = loaded.config.num_hidden_layers
        if str(layer) not in ("top", "average", "mix", *map(str, range(top + 1))):
            raise NeighborError(f"`layer` must be top, average, mix or a number from 0 to {top}, got {str(layer)!r}")
        self.embedder = ElmoEmbedder(loaded, tokenizer, layers=layer)
        made_of = {
            "corpus": open_corpus(str(corpus)).identity,
            "column": column,
            "tokenized": tokenized,
            "model": identity_of_model(Path(model)),
            "layer": self.embedder.layers,
            "dtype": DTYPE,
        }
        digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:DIGEST_LENGTH]
        folder = self.corpus.parent if folder is None else Path(folder)
        if folder.exists() and not folder.is_dir():
            raise NeighborError(f"{folder}: the place of an index must be a folder, and this is a file")
        self.index = folder / f"{self.corpus.name}.{digest}.arrow"
        self.report: Report | None = None
        if not self.index.exists():
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise NeighborError(f"{folder}: the index cannot be written there; choose another folder with --index")
            self.report = embed_corpus(
                str(corpus),
                model,
                self.index,
                layers=str(self.embedder.layers),
                dtype=DTYPE,
                tokenized=tokenized,
                column=column,
            )

    def nearest(self, sentence: str, count: int = 10, any_word: bool = False) -> list[Neighbor]:
        """The uses nearest to the word in [brackets], of the same word, in upper or lower case, or of any."""
        words, position = marked_word(sentence)
        (vectors,) = self.embedder.embed([words])
        query = torch.from_numpy(vectors[position])  # (D,)
        found: list[Neighbor] = []
        for batch in self._batches():
            nearest = _nearest_of_batch(batch, query, None if any_word else words[position], count)
            found = heapq.nlargest(count, [*found, *nearest], key=lambda neighbor: neighbor.score)
        if not found:
            missing = "" if any_word else f" {words[position]!r}; --any-word finds the nearest uses of other words"
            raise NeighborError(f"{self.corpus}: it has no word{missing}")
        return found

    def _batches(self) -> Iterator[Any]:
        """The record batches of the index, none of them read before it is looked at."""
        pa, ipc = require("pyarrow"), require("pyarrow.ipc")
        try:
            with pa.memory_map(str(self.index)) as source:
                reader = ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        except pa.ArrowInvalid as error:
            raise NeighborError(
                f"{self.index}: damaged; remove it to have it made again: {first_line(error)}"
            ) from error


def _nearest_of_batch(batch: Any, query: Tensor, word: str | None, count: int) -> Iterator[Neighbor]:
    sentences = batch.column("words")
    words = sentences.flatten()  # (W,)
    places = np.arange(len(words)) if word is None else _places_of(word, words)  # (C,)
    if not len(places):
        return
    vectors = batch.column("vectors").flatten().flatten().to_numpy()  # (W * D,), a view of the file
    candidates = torch.from_numpy(vectors.reshape(len(words), -1)[places]).float()  # (C, D)
    lengths = torch.linalg.vector_norm(candidates, dim=-1) * torch.linalg.vector_norm(query)
    best = (candidates @ query / lengths.clamp(min=SMALLEST)).topk(min(count, len(places)))
    starts = sentences.offsets.to_numpy()
    for score, place in zip(best.values.tolist(), places[best.indices.numpy()].tolist(), strict=True):
        row = int(np.searchsorted(starts, place, side="right")) - 1  # the last to start there: others are empty
        yield Neighbor(score, batch.column("index")[row].as_py(), place - int(starts[row]), sentences[row].as_py())


def _places_of(word: str, words: Any) -> np.ndarray:
    """Where a word is among others, in upper or lower case."""
    compute = require("pyarrow.compute")
    wanted = compute.utf8_lower(require("pyarrow").scalar(word))
    return np.flatnonzero(compute.equal(compute.utf8_lower(words), wanted).to_numpy(zero_copy_only=False))


def neighbor_lines(neighbors: Sequence[Neighbor], as_json: bool = False) -> Iterator[str]:
    """A line for each: its score and its sentence, which is cut around the word in brackets; or all of it as JSON."""
    if not as_json:
        yield "cosine\tuse"
    for neighbor in neighbors:
        if as_json:
            entry = {**neighbor._asdict(), "word": neighbor.words[neighbor.position]}
            yield json.dumps(entry, ensure_ascii=False)
        else:
            yield f"{neighbor.score:.3f}\t{mark(neighbor.words, neighbor.position)}"


def mark(words: Sequence[str], position: int) -> str:
    """A sentence with a word in brackets, and of the others those nearby."""
    start, end = max(position - SHOWN_WORDS, 0), position + SHOWN_WORDS + 1
    shown = [f"[{word}]" if place == position else word for place, word in enumerate(words)]
    return " ".join(["…"] * (start > 0) + shown[start:end] + ["…"] * (end < len(words)))


__all__ = ["Neighbor", "NeighborError", "Uses", "mark", "neighbor_lines"]
