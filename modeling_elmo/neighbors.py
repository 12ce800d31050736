"""Find the uses of a word in a corpus that are nearest to its use in a sentence: `elmo neighbors`.

`embed_corpus` makes the index of a corpus: an Arrow file of words and their vectors in float16, beside the corpus or
in a folder of indexes. Its name holds a digest of corpus, model and settings, so one that is found is the right one. A
digest of its own is beside it: an index that was changed since it was written is made again.

A search maps the file into memory and compares every use, record batch by record batch of some 16 MB, so neither
building nor searching takes more memory for a larger corpus. Parquet row groups would have to be decoded for every
search, which takes ten times as long. W words of a batch, C of them candidates, D numbers per vector.
"""

import hashlib
import heapq
import json
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .corpus import is_tokenized, warn_about_splitting
from .embed_corpus import Report, embed_corpus
from .embedding import ElmoEmbedder
from .files import ElmoError, StrPath, check_input_file, file_digest, require, write_text
from .loading import find_model, model_digests
from .scoring import is_typed_tokenized, marked_word
from .splitting_elmo import split_text

# Cosines of float16 vectors differ from those of float32 in the fourth decimal.
DTYPE = "float16"
# Hexadecimal digits of the digest in the name of an index.
DIGEST_LENGTH = 16
# Makes a cosine with a vector of zeros 0.
SMALLEST = 1e-12
# Words that are shown on either side of a use.
SHOWN_WORDS = 12


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

    The index is made if it is not there; a run that was interrupted resumes where it stopped.

    Args:
        corpus: a text file with one sentence per line, or a .jsonl, .csv or .parquet file.
        model: the folder of the model and its tokenizer.
        layer: which vectors are compared: `"top"`, the number of a layer (0 has the context-free vectors), the
            `"average"` of the layers or the model's `"mix"`.
        folder: where the index is; by default, beside the corpus.
        tokenized, column: as for [`open_corpus`].

    Attributes:
        index: the file of the index.
        report: what was indexed; None if the index was there already.
    """

    def __init__(
        self,
        corpus: StrPath,
        model: StrPath,
        layer: str | int = "top",
        folder: StrPath | None = None,
        tokenized: bool | None = None,
        column: str | None = None,
    ) -> None:
        self.corpus = Path(corpus)
        if not os.path.isfile(corpus):
            raise ElmoError(f"{corpus}: no such file; the corpus is text with one sentence per line, or a table of it")
        model = find_model(model)
        self.embedder = ElmoEmbedder.from_pretrained(model, layers=layer)
        if isinstance(self.embedder.layers, tuple):
            raise ElmoError(f"`layer` must be one layer: top, average, mix or a number, got {layer!r}")
        tokenizer = self.embedder.tokenizer
        self.tokenized = is_tokenized(tokenizer, tokenized)
        self.types_tokenized = is_typed_tokenized(tokenizer, tokenized)
        settings = {
            "corpus": file_digest(corpus),
            "column": column,
            "tokenized": self.tokenized,
            "model": model_digests(model),
            "layer": self.embedder.layers,
            "dtype": DTYPE,
        }
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:DIGEST_LENGTH]
        folder = Path(folder or self.corpus.parent)
        self.index = folder / f"{self.corpus.name}.{digest}.arrow"
        self.report: Report | None = None
        if self._is_intact():
            warn_about_splitting(tokenizer, tokenized)  # embedding does so too
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise ElmoError(f"{folder}: the index cannot be written there; choose another folder with --index")
        layers = str(self.embedder.layers)
        self.report = embed_corpus(
            str(corpus),
            model,
            self.index,
            layers=layers,
            dtype=DTYPE,
            tokenized=tokenized,
            column=column,
            overwrite=True,
        )
        write_text(self._digest_file, file_digest(self.index))

    @property
    def _digest_file(self) -> Path:
        return self.index.with_suffix(".sha256")

    def _is_intact(self) -> bool:
        """Return whether the index is there as it was written. Arrow would read past the end of a damaged one."""
        try:
            check_input_file(self._digest_file)
            return self._digest_file.read_text(encoding="utf-8") == file_digest(self.index)
        except (OSError, ValueError):
            return False

    def nearest(self, sentence: str, count: int = 10, any_word: bool = False) -> list[Neighbor]:
        """Return the uses nearest to the word in [brackets], of the same word in upper or lower case, or of any."""
        words, position = marked_word(sentence, self.types_tokenized)
        (vectors,) = self.embedder.embed([words])
        query = torch.from_numpy(vectors[position])  # (D,)
        nearest: list[Neighbor] = []
        for batch in self._batches():
            places = _find_words(batch, None if any_word else words[position])
            nearest.extend(_nearest_in_batch(batch, query, places, count))
            nearest = heapq.nlargest(count, nearest, key=lambda neighbor: neighbor.score)
        if not nearest:
            raise ElmoError(self._explain_absence(words[position]))
        return nearest

    def _explain_absence(self, word: str) -> str:
        """Say in one line why a word is not in the index: it may be there in parts, or as a part of others."""
        message = f"{self.corpus}: it has no word {word!r}"
        in_lower_case: set[str] = set()
        for batch in self._batches():
            in_lower_case.update(text.lower() for text in batch.column("words").flatten().unique().to_pylist())
        for form in ("NFC", "NFD"):
            if unicodedata.normalize(form, word.lower()) in in_lower_case:
                return f"{message}, but has it in Unicode's form {form}: write corpus and sentence in one form"
        parts = split_text(word)
        if len(parts) > 1 and in_lower_case.issuperset(part.lower() for part in parts):
            return f"{message}, which is split into {' and '.join(map(repr, parts))} there: mark one of them"
        if self.tokenized:
            for text in sorted(in_lower_case):
                if text != word.lower() and word.lower() in split_text(text):
                    return f"{message}, but {text!r}: --raw splits such text Penn-Treebank style"
        return f"{message}; --any-word finds uses of other words"

    def _batches(self) -> Iterator[Any]:
        """Yield the record batches of the index; only what is looked at is read."""
        pa, ipc = require("pyarrow", "embed"), require("pyarrow.ipc", "embed")
        with pa.memory_map(str(self.index)) as source:
            reader = ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _find_words(batch: Any, word: str | None) -> np.ndarray:
    """Return the places of a word in a record batch, in upper or lower case; of None, all places."""
    words = batch.column("words").flatten()
    if word is None:
        return np.arange(len(words))
    pa, compute = require("pyarrow", "embed"), require("pyarrow.compute", "embed")
    matches = compute.equal(compute.utf8_lower(words), compute.utf8_lower(pa.scalar(word)))
    return np.flatnonzero(matches.to_numpy(zero_copy_only=False))


def _nearest_in_batch(batch: Any, query: Tensor, places: np.ndarray, count: int) -> Iterator[Neighbor]:
    if not len(places):
        return
    vectors = batch.column("vectors").flatten()
    numbers = vectors.flatten().to_numpy()  # (W * D,), a view of the file
    candidates = torch.from_numpy(numbers.reshape(-1, vectors.type.list_size)[places]).float()  # (C, D)
    lengths = torch.linalg.vector_norm(candidates, dim=-1) * torch.linalg.vector_norm(query)
    best = (candidates @ query / lengths.clamp(min=SMALLEST)).topk(min(count, len(places)))
    sentences = batch.column("words")
    starts = sentences.offsets.to_numpy()
    for score, place in zip(best.values.tolist(), places[best.indices.numpy()].tolist(), strict=True):
        row = int(np.searchsorted(starts, place, side="right")) - 1  # the last to start there: others are empty
        number = batch.column("index")[row].as_py()
        position = place - int(starts[row])
        yield Neighbor(score, number, position, sentences[row].as_py())


def neighbor_lines(neighbors: Sequence[Neighbor], as_json: bool = False) -> Iterator[str]:
    """Yield a line for each use: its score and part of its sentence, or all of it as JSON."""
    if not as_json:
        yield "cosine\tuse"
    for neighbor in neighbors:
        if as_json:
            word = neighbor.words[neighbor.position]
            yield json.dumps({**neighbor._asdict(), "word": word}, ensure_ascii=False)
        else:
            yield f"{neighbor.score:.3f}\t{mark(neighbor.words, neighbor.position)}"


def mark(words: Sequence[str], position: int) -> str:
    """Return a sentence with a word in brackets, cut to the words nearby."""
    start, end = max(position - SHOWN_WORDS, 0), position + SHOWN_WORDS + 1
    shown = [*words[start:position], f"[{words[position]}]", *words[position + 1 : end]]
    if start > 0:
        shown.insert(0, "…")
    if end < len(words):
        shown.append("…")
    return " ".join(shown)
