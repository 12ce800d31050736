"""`elmo neighbors`: the uses of a word in a corpus that are nearest to its use in a sentence.

The index is what `embed_corpus` makes of the corpus: an Arrow file of words and their vectors in float16, beside the
corpus or in a folder of indexes. Its name holds a digest of corpus, model and settings, so one that is found fits.

A search maps the file into memory and goes through its record batches, of some 16 MB each, so that neither building
nor searching takes more memory for a larger corpus. W words of a batch, C of them candidates, D numbers a vector.

The uses of one word are all compared. Where those of any word are asked for, the corpus is large and faiss is
installed, the first such search makes lists beside the index: an inverted file, a byte a number, that has words of
like vectors in one list, cut into blocks of words that fit in memory one by one. A search looks at a few lists and
compares the best that it finds there again, with the vectors of the index; so it may miss a use, but its cosines are
right. The lists are a folder that appears whole or not at all; their centres, up to 5 % of a block, are in memory
while it is searched. What it takes to make them pays after some dozens of
searches; `exact` does without them.
"""

import hashlib
import heapq
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel

from .embed_corpus import Report, embed_corpus
from .embedding import ElmoEmbedder
from .files import ElmoError, StrPath, file_digest, first_line, load_folder, model_digests, require
from .scoring import marked_word

# Cosines of float16 vectors differ from those of float32 in the fourth decimal.
DTYPE = "float16"
# Of the digest in an index's name, in hexadecimal digits.
DIGEST_LENGTH = 16
# A cosine with a vector of zeros is 0.
SMALLEST = 1e-12
# Words that are shown on either side of the one that was found.
SHOWN_WORDS = 12

# A corpus of fewer words is compared whole in a fraction of a second.
FEWEST_LISTED = 1_000_000
# Words of the sample for each list: what faiss asks for to find its centre.
SAMPLED_PER_LIST = 39
# What lists are made of is in memory: first the sample, in float32, then the lists of one block after the other, which
# take up to twice as much while they grow.
SAMPLE_BYTES = 1 << 29
BLOCK_BYTES = 1 << 28
# A search looks at this many lists, and at more if they do not hold so many words for each use that is wanted.
PROBED_LISTS = 32
PROBED_PER_USE = 1000
# For each use that is wanted, how many are compared again.
CANDIDATES_PER_USE = 4
# A word's number in the lists, of 8 bytes: that of its record batch times this, and its place there.
BATCH_STRIDE = 1 << 32
NUMBER_BYTES = 8


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
        lists: the folder of faiss's lists, which is there once they were needed.
        report: what was indexed; None where the index was there already.

    Raises:
        ElmoError: if corpus, model or settings do not fit.
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
            raise ElmoError(f"{corpus}: no such file; the corpus is text, a sentence a line, or a table of it")
        loaded, tokenizer = load_folder(model, AutoModel)
        top = loaded.config.num_hidden_layers
        if str(layer) not in ("top", "average", "mix", *map(str, range(top + 1))):
            raise ElmoError(f"`layer` must be top, average, mix or a number from 0 to {top}, got {str(layer)!r}")
        self.embedder = ElmoEmbedder(loaded, tokenizer, layers=layer)
        made_of = {
            "corpus": file_digest(corpus),
            "column": column,
            "tokenized": tokenized,
            "model": model_digests(model),
            "layer": self.embedder.layers,
            "dtype": DTYPE,
        }
        digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:DIGEST_LENGTH]
        folder = self.corpus.parent if folder is None else Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ElmoError(f"{folder}: the place of an index must be a folder, and this is a file")
        self.index = folder / f"{self.corpus.name}.{digest}.arrow"
        self.lists = self.index.with_suffix(".faiss")
        self.report: Report | None = None
        if not self.index.exists():
            shutil.rmtree(self.lists, ignore_errors=True)  # they name places in an index that is gone
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise ElmoError(f"{folder}: the index cannot be written there; choose another folder with --index")
            try:
                self.report = embed_corpus(
                    str(corpus),
                    model,
                    self.index,
                    layers=str(self.embedder.layers),
                    dtype=DTYPE,
                    tokenized=tokenized,
                    column=column,
                )
            except (OSError, ElmoError):
                if not self.index.exists():  # otherwise another process was faster, and has taken the shards away
                    raise

    def nearest(self, sentence: str, count: int = 10, any_word: bool = False, exact: bool = False) -> list[Neighbor]:
        """The uses nearest to the word in [brackets], of the same word, in upper or lower case, or of any.

        Those of any word are looked for in faiss's lists if there are some, unless `exact` has every word compared.
        """
        words, position = marked_word(sentence)
        (vectors,) = self.embedder.embed([words])
        query = torch.from_numpy(vectors[position])  # (D,)
        candidates = self._candidates(query, count) if any_word and not exact else None
        found: list[Neighbor] = []
        for number, batch in self._batches(candidates):
            if candidates is not None:
                places = candidates[number]
            else:
                places = np.arange(_word_count(batch)) if any_word else _places_of(words[position], batch)
            nearest = _nearest_of_batch(batch, query, places, count)
            found = heapq.nlargest(count, [*found, *nearest], key=lambda neighbor: neighbor.score)
        if not found:
            missing = "" if any_word else f" {words[position]!r}; --any-word finds the nearest uses of other words"
            raise ElmoError(f"{self.corpus}: it has no word{missing}")
        return found

    def _batches(self, numbers: Iterable[int] | None = None) -> Iterator[tuple[int, Any]]:
        """Record batches of the index, all or some, with their numbers; none is read before it is looked at."""
        pa, ipc = require("pyarrow", "embed"), require("pyarrow.ipc", "embed")
        try:
            with pa.memory_map(str(self.index)) as source:
                reader = ipc.open_file(source)
                for number in range(reader.num_record_batches) if numbers is None else numbers:
                    yield number, reader.get_batch(number)
        except pa.ArrowInvalid as error:
            raise ElmoError(f"{self.index}: damaged; remove it to have it made again: {first_line(error)}") from error

    def _candidates(self, query: Tensor, count: int) -> dict[int, np.ndarray] | None:
        """By record batch, the places of words that may be among the nearest; None if any word may."""
        if not self._blocks:
            return None
        total, lists = sum(block.ntotal for block in self._blocks), self._blocks[0].nlist
        wanted = min(count * CANDIDATES_PER_USE, total)
        probed = max(PROBED_LISTS, count * PROBED_PER_USE * lists // total)
        parameters = _faiss().SearchParametersIVF(nprobe=min(probed, lists))
        found = [block.search(query[None].numpy(), wanted, params=parameters) for block in self._blocks]
        scores, words = (np.concatenate(arrays, axis=1)[0] for arrays in zip(*found, strict=True))
        best = np.argsort(-scores)[:wanted]  # the last have no word, but -1, where the lists had too few
        best_words = np.sort(words[best][words[best] >= 0])
        if len(best_words) < min(count, total):
            return None
        numbers, places = np.divmod(best_words, BATCH_STRIDE)
        return {int(number): places[numbers == number] for number in np.unique(numbers)}

    @cached_property
    def _blocks(self) -> list[Any]:
        """The lists, made if they are not there; nothing without faiss or for a corpus that needs none."""
        faiss = _faiss()
        if faiss is None:
            return []
        if not self.lists.exists():
            counts = np.array([_word_count(batch) for _, batch in self._batches()])
            if counts.sum() < FEWEST_LISTED or not os.access(self.lists.parent, os.W_OK):
                return []
            self._make_lists(faiss, counts)
        try:
            return [faiss.read_index(str(path), faiss.IO_FLAG_MMAP) for path in sorted(self.lists.iterdir())]
        except (OSError, RuntimeError) as error:
            raise ElmoError(f"{self.lists}: damaged; remove it to have it made again: {first_line(error)}") from error

    def _make_lists(self, faiss: Any, counts: np.ndarray) -> None:
        """Puts all words into lists, in a folder that appears when it is complete. `counts`: words a record batch."""
        total, size = int(counts.sum()), self.embedder.model.config.hidden_size
        starts = np.cumsum(counts) - counts  # words before each record batch
        blocks = starts * (size + NUMBER_BYTES) // BLOCK_BYTES  # of each record batch
        if shutil.disk_usage(self.lists.parent).free < (needed := total * (size + NUMBER_BYTES)):
            raise ElmoError(
                f"{self.lists.parent}: lists of the words need {needed / 1e9:.1f} GB there; choose another folder "
                "with --index, or pass --exact"
            )
        with (
            tempfile.TemporaryDirectory(prefix=f".{self.lists.name}.", dir=self.lists.parent) as scratch,
            tqdm(total=total, desc="Finding like words", unit=" words", unit_scale=True, disable=None) as bar,
        ):
            empty = self._find_centres(faiss, starts, total)
            bar.set_description("Listing words")
            whole = Path(scratch, "whole")
            whole.mkdir()
            for number, batches in groupby(self._batches(), lambda numbered: blocks[numbered[0]]):
                block = faiss.clone_index(empty)
                for batch_number, batch in batches:
                    places = np.arange(_word_count(batch))
                    block.add_with_ids(_unit_vectors(batch, places), places + batch_number * BATCH_STRIDE)
                    bar.update(len(places))
                faiss.write_index(block, str(whole / f"{number:08}"))
            try:
                whole.rename(self.lists)
            except OSError:  # another process was faster
                if not self.lists.is_dir():
                    raise

    def _find_centres(self, faiss: Any, starts: np.ndarray, total: int) -> Any:
        """Empty lists, at most the square root of the words, with their centres, from a sample all over the corpus."""
        size = self.embedder.model.config.hidden_size
        sampled = min(SAMPLED_PER_LIST * math.isqrt(total), SAMPLE_BYTES // (4 * size), total)
        chosen = np.arange(sampled) * total // sampled
        sample = np.empty((sampled, size), np.float32)
        for number, batch in self._batches():
            low, high = np.searchsorted(chosen, starts[number] + np.array([0, _word_count(batch)]))
            sample[low:high] = _unit_vectors(batch, chosen[low:high] - starts[number])
        lists = max(sampled // SAMPLED_PER_LIST, 1)
        of_bytes, by_product = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        empty = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(size), size, lists, of_bytes, by_product)
        empty.train(sample)
        return empty


def _faiss() -> Any:
    """faiss, or None where it is not installed or, as on Windows, cannot read lists from disk."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss if hasattr(faiss, "OnDiskInvertedLists") else None


def _word_count(batch: Any) -> int:
    return len(batch.column("words").flatten())


def _vectors_of(batch: Any, places: np.ndarray) -> Tensor:
    vectors = batch.column("vectors").flatten()
    numbers = vectors.flatten().to_numpy()  # (W * D,), a view of the file
    return torch.from_numpy(numbers.reshape(-1, vectors.type.list_size)[places]).float()  # (C, D)


def _unit_vectors(batch: Any, places: np.ndarray) -> np.ndarray:
    return torch.nn.functional.normalize(_vectors_of(batch, places), dim=-1, eps=SMALLEST).numpy()


def _nearest_of_batch(batch: Any, query: Tensor, places: np.ndarray, count: int) -> Iterator[Neighbor]:
    if not len(places):
        return
    candidates = _vectors_of(batch, places)  # (C, D)
    lengths = torch.linalg.vector_norm(candidates, dim=-1) * torch.linalg.vector_norm(query)
    best = (candidates @ query / lengths.clamp(min=SMALLEST)).topk(min(count, len(places)))
    sentences = batch.column("words")
    starts = sentences.offsets.to_numpy()
    for score, place in zip(best.values.tolist(), places[best.indices.numpy()].tolist(), strict=True):
        row = int(np.searchsorted(starts, place, side="right")) - 1  # the last to start there: others are empty
        yield Neighbor(score, batch.column("index")[row].as_py(), place - int(starts[row]), sentences[row].as_py())


def _places_of(word: str, batch: Any) -> np.ndarray:
    """Where a word is in a record batch, in upper or lower case."""
    compute = require("pyarrow.compute", "embed")
    wanted = compute.utf8_lower(require("pyarrow", "embed").scalar(word))
    return np.flatnonzero(
        compute.equal(compute.utf8_lower(batch.column("words").flatten()), wanted).to_numpy(zero_copy_only=False)
    )


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


__all__ = ["Neighbor", "Uses", "mark", "neighbor_lines"]
