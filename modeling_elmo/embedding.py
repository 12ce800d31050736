"""Vectors for any number of sentences: `ElmoEmbedder`.

Sentences -> windows of a bounded number of words -> batches of sentences of similar length -> one array per sentence,
in input order. L LSTM layers, T words, D = 2P numbers per vector.
"""

import contextlib
import ctypes
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel

from .files import ElmoError, StrPath
from .loading import load_folder
from .modeling_elmo import ElmoModel
from .tokenization_elmo import ElmoTokenizer

DEFAULT_BATCH_WORDS = 2048
# Sentences of this many batches are sorted by length together. Their vectors are in memory at once.
WINDOW_BATCHES = 8
# `<S>` and `</S>`, which the biLM reads with every sentence.
MARKERS = 2
# SeqVec was not trained on these residues; X stands for any residue.
RARE_RESIDUES = str.maketrans("UZOB", "XXXX")

POOLINGS = ("none", "mean", "max")
DTYPES = ("float32", "float16")

Sentence = str | Sequence[str]


class Embedded(NamedTuple):
    """The words of a sentence and their vectors."""

    words: list[str]
    vectors: np.ndarray


class Protein(NamedTuple):
    """The vectors of a protein, as SeqVec (Heinzinger et al., 2019) defines them. T residues, D numbers per vector."""

    layers: np.ndarray  # (L + 1, T, D)
    residues: np.ndarray  # (T, D), the sum of the layers
    vector: np.ndarray  # (D,), the mean over the residues; zeros where there are none


class ElmoEmbedder:
    """Computes the vectors of any number of sentences in constant memory.

    A sentence longer than `batch_words` is read in pieces, twice: from the left for the forward language model and
    from the right for the backward one, with the states carried from piece to piece. Its vectors are those of one
    pass, and apart from them it needs no more memory than a batch.

    Args:
        model: an ELMo model; it is put in `eval` mode.
        tokenizer: its tokenizer, which splits sentences that are given as text.
        layers: which vector of a word to return. `"mix"`, the model's own mix of its layers; `"average"` of them;
            `"top"`, the last; or the number of a layer, 0 being the context-free vectors: (T, D) per sentence.
            `"all"`, a sequence of numbers or a str like `"0,2"`: (layers, T, D).
        pooling: `"mean"` or `"max"` over the words of a sentence, which removes T; an empty sentence gives zeros.
        batch_words: how many words, sentence markers included, are computed at once.
        dtype: `"float32"` or `"float16"`, of the arrays; the model computes in its own.
    """

    def __init__(
        self,
        model: ElmoModel,
        tokenizer: ElmoTokenizer,
        layers: str | int | Sequence[int] = "mix",
        pooling: str = "none",
        batch_words: int = DEFAULT_BATCH_WORDS,
        dtype: str = "float32",
    ) -> None:
        if pooling not in POOLINGS:
            raise ElmoError(f"`pooling` must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        if dtype not in DTYPES:
            raise ElmoError(f"`dtype` must be one of {', '.join(DTYPES)}, got {dtype!r}")
        if batch_words <= MARKERS:
            raise ElmoError(f"`batch_words` must be at least {MARKERS + 1}, got {batch_words}")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.layers = _parse_layers(layers, model.config.num_hidden_layers)
        self.pooling = pooling
        self.batch_words = batch_words
        self.dtype = dtype
        # A mix with layer norm depends on all words of the batch, so each sentence is computed alone.
        self._one_by_one = self.layers == "mix" and model.config.mix == "scalar" and model.config.mix_layer_norm

    @classmethod
    def from_pretrained(
        cls, folder: StrPath, device: str | torch.device | None = None, **settings: Any
    ) -> "ElmoEmbedder":
        """Load the model and the tokenizer of a folder; `settings` as for the class."""
        model, tokenizer = load_folder(folder, AutoModel)
        return cls(model.to(device), tokenizer, **settings)

    def embed(self, sentences: Iterable[Sentence]) -> Iterator[np.ndarray]:
        """Yield one array per sentence, in order. The tokenizer splits a str; a list of words stays as it is."""
        for embedded in self.embed_with_words(sentences):
            yield embedded.vectors

    def embed_with_words(self, sentences: Iterable[Sentence]) -> Iterator[Embedded]:
        """Yield the words of each sentence with their vectors, as `embed` does."""
        if isinstance(sentences, str):
            raise TypeError(f"expected an iterable of sentences, got the str {sentences[:40]!r}")
        window: list[list[str]] = []
        size = 0
        for sentence in sentences:
            words = self.tokenizer.tokenize(sentence) if isinstance(sentence, str) else list(sentence)
            window.append(words)
            size += len(words) + MARKERS
            if size >= WINDOW_BATCHES * self.batch_words:
                yield from self._embed_window(window)
                window, size = [], 0
                release_memory()
        yield from self._embed_window(window)

    def embed_proteins(self, sequences: Iterable[str]) -> Iterator[Protein]:
        """Yield the vectors of proteins by a SeqVec model, in order, whatever `layers` and `pooling` are.

        A sequence is a str of residues, such as `"MKTAYIAKQR"`: lower case counts as upper case, blanks and gaps (`-`)
        are dropped, and the residues U, Z, O and B, which SeqVec was not trained on, are read as X.
        """
        if isinstance(sequences, str):
            raise TypeError(f"expected an iterable of sequences, got the str {sequences[:40]!r}")
        embedder = ElmoEmbedder(self.model, self.tokenizer, layers="all", batch_words=self.batch_words)
        for layers in embedder.embed(map(_split_residues, sequences, itertools.count())):
            residues = layers.sum(0)
            vector = residues.sum(0) / max(len(residues), 1)
            yield Protein(*(array.astype(self.dtype) for array in (layers, residues, vector)))

    def reads_in_pieces(self, words: Sequence[str]) -> bool:
        """Return whether a sentence is longer than a batch."""
        return len(words) + MARKERS > self.batch_words and not self._one_by_one

    def _embed_window(self, window: list[list[str]]) -> Iterator[Embedded]:
        shape = [self.model.config.hidden_size]  # of a sentence without words
        if self.pooling == "none":
            shape.insert(0, 0)
        if isinstance(self.layers, tuple):
            shape.insert(0, len(self.layers))
        results = [np.zeros(shape, self.dtype) for _ in window]
        for batch in self._batches(window):
            all_vectors = self._embed_batch([window[index] for index in batch])
            for index, vectors in zip(batch, all_vectors, strict=True):
                # A view would keep its whole batch alive.
                results[index] = self._pool(vectors).numpy().astype(self.dtype, copy=len(batch) > 1)
        yield from map(Embedded, window, results)

    def _batches(self, window: list[list[str]]) -> Iterator[list[int]]:
        """Yield the indices of sentences with words, shortest first, in batches of at most `batch_words`."""
        batch: list[int] = []
        size = 0
        for index in sorted(range(len(window)), key=lambda index: len(window[index])):
            if not window[index]:
                continue
            cost = len(window[index]) + MARKERS
            if batch and (size + cost > self.batch_words or self._one_by_one):
                yield batch
                batch, size = [], 0
            batch.append(index)
            size += cost
        if batch:
            yield batch

    @torch.inference_mode()
    def _embed_batch(self, sentences: list[list[str]]) -> list[Tensor]:
        """Compute (..., T, D) of each sentence."""
        if self.reads_in_pieces(sentences[0]):
            return [self._embed_in_pieces(sentences[0])]
        vectors = self._run(sentences, keep_sentence_markers=False)[0].cpu()
        return [vectors[..., row, : len(words), :] for row, words in enumerate(sentences)]

    def _embed_in_pieces(self, words: list[str]) -> Tensor:
        """Compute (..., T, D) of a sentence of any length."""
        row = [str(self.tokenizer.bos_token), *words, str(self.tokenizer.eos_token)]
        starts = range(0, len(row), self.batch_words)
        size = self.model.config.projection_dim
        forward, backward = slice(0, size), slice(size, 2 * size)
        result = torch.empty(0)
        # In each pass only one direction has the right states, and only its half is kept.
        for half in (forward, backward):
            states = None
            for start in starts if half is forward else reversed(starts):
                piece = slice(start, start + self.batch_words)
                options = {"keep_sentence_markers": True, "states": states, "use_cache": True}
                vectors, states = self._run([row[piece]], add_markers=False, **options)
                if not result.numel():
                    result = torch.empty(*vectors.shape[:-3], len(row), 2 * size)
                result[..., piece, half] = vectors[..., 0, :, half]
        return result[..., 1:-1, :]

    def _run(self, sentences: list[list[str]], add_markers: bool = True, **options: Any) -> tuple[Tensor, Any]:
        """Return the vectors, (B, T, D) or (layers, B, T, D), and the states."""
        encoding = self.tokenizer(
            sentences,
            is_split_into_words=True,
            add_special_tokens=add_markers,
            padding=True,
            return_tensors="pt",
        ).to(self.model.device)
        output = self.model(**encoding, output_hidden_states=self.layers != "mix", return_dict=True, **options)
        if self.layers == "mix":
            vectors = output.last_hidden_state
        elif isinstance(self.layers, int):
            vectors = output.hidden_states[self.layers]
        elif self.layers == "average":
            vectors = torch.stack(output.hidden_states).mean(0)
        else:
            vectors = torch.stack(output.hidden_states)[list(self.layers)]
        return vectors.float(), output.states

    def _pool(self, vectors: Tensor) -> Tensor:
        if self.pooling == "mean":
            return vectors.mean(-2)
        if self.pooling == "max":
            return vectors.amax(-2)
        return vectors


def _split_residues(sequence: str, number: int) -> list[str]:
    """Return the residues of a protein as SeqVec reads them."""
    residues = "".join(sequence.split()).replace("-", "").upper()
    for residue in residues:
        if not "A" <= residue <= "Z":
            raise ElmoError(f"protein {number} holds {residue!r}; expected residues, which are letters from A to Z")
    return list(residues.translate(RARE_RESIDUES))


def release_memory() -> None:
    """Return freed memory to the system: glibc keeps it, and more and more of it as the shapes of batches differ."""
    with contextlib.suppress(OSError):  # where the system has another library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _parse_layers(layers: str | int | Sequence[int], top: int) -> str | int | tuple[int, ...]:
    """Return `"mix"`, `"average"`, the number of a layer, or the numbers of several."""
    if layers in ("mix", "average"):
        return str(layers)
    if layers == "top":
        return top
    if layers == "all":
        return tuple(range(top + 1))
    if isinstance(layers, str):
        parts: Sequence[Any] = layers.split(",")
    else:
        parts = [layers] if isinstance(layers, int) else layers
    try:
        numbers = tuple(map(int, parts))
    except ValueError:
        raise ElmoError(f"`layers` must be all, average, top, mix or layer numbers like 0,2, got {layers!r}") from None
    if not numbers or min(numbers) < 0 or max(numbers) > top:
        raise ElmoError(f"`layers` must be numbers from 0 to {top}, the model's layers, got {layers!r}")
    return numbers[0] if isinstance(layers, int) or layers == parts[0] else numbers
