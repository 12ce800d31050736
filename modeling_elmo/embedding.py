"""Vectors for any number of sentences: `ElmoEmbedder`.

Sentences -> windows of a bounded number of words -> batches of sentences of like length -> one array a sentence, in
input order. L LSTM layers, T words, D = 2P numbers a vector.
"""

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel

from .files import ElmoError, StrPath, load_folder
from .modeling_elmo import ElmoModel, ElmoModelOutput
from .tokenization_elmo import ElmoTokenizer

DEFAULT_BATCH_WORDS = 2048
# Batches' worth of sentences that are sorted by length together. Their vectors are in memory at once.
WINDOW_BATCHES = 8
# `<S>` and `</S>`, which the biLM reads with every sentence.
MARKERS = 2
# Of proteins: what SeqVec was not trained on, as the residue that stands for any.
RARE_RESIDUES = str.maketrans("UZOB", "XXXX")

POOLINGS = ("none", "mean", "max")
DTYPES = ("float32", "float16")

Sentence = str | Sequence[str]


class Embedded(NamedTuple):
    """A sentence's words and their vectors."""

    words: list[str]
    vectors: np.ndarray


class Protein(NamedTuple):
    """The vectors of a protein, as SeqVec (Heinzinger et al., 2019) defines them. T residues, D numbers a vector."""

    layers: np.ndarray  # (L + 1, T, D)
    residues: np.ndarray  # (T, D), the sum of the layers
    vector: np.ndarray  # (D,), the mean over the residues; zeros where there are none


# -------------------------------------------------------------------------------------------------------- embedder


class ElmoEmbedder:
    """Streams vectors of sentences: any number of them in constant memory.

    A sentence longer than `batch_words` is read in pieces, twice: from the left for the forward language model and
    from the right for the backward one, their states carried from piece to piece. Its vectors are those of one pass;
    beyond them it needs no more memory than a batch.

    Args:
        model: an ELMo model; it is put in `eval` mode.
        tokenizer: its tokenizer, which splits sentences that are given as text.
        layers: what a word's vector is. `"mix"`, the model's own mix of its layers; `"average"` of them; `"top"`, the
            last; or a layer's number, 0 being the context-free vectors: (T, D) a sentence. `"all"`, a sequence of
            numbers or a str like `"0,2"`: (layers, T, D).
        pooling: `"mean"` or `"max"` over the words of a sentence, which takes away T; an empty sentence gives zeros.
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
        _check_choice("pooling", pooling, POOLINGS)
        _check_choice("dtype", dtype, DTYPES)
        if batch_words <= MARKERS:
            raise ElmoError(f"`batch_words` must be at least {MARKERS + 1}, got {batch_words}")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.layers = _parse_layers(layers, model.config.num_hidden_layers)
        self.pooling = pooling
        self.batch_words = batch_words
        self.dtype = dtype
        # A mix with layer norm depends on all words of its batch: a sentence alone has vectors of its own.
        self._one_by_one = self.layers == "mix" and model.config.mix == "scalar" and model.config.mix_layer_norm

    @classmethod
    def from_pretrained(
        cls, folder: StrPath, device: str | torch.device | None = None, **settings: Any
    ) -> "ElmoEmbedder":
        """An embedder of the model and tokenizer in a folder; `settings` as for the class."""
        try:
            model, tokenizer = load_folder(folder, AutoModel)
        except ElmoError as error:
            raise ElmoError(str(error)) from error
        return cls(model.to(device), tokenizer, **settings)

    def embed(self, sentences: Iterable[Sentence]) -> Iterator[np.ndarray]:
        """One array a sentence, in order. A str is split by the tokenizer; a list of words stays as it is."""
        for embedded in self.embed_with_words(sentences):
            yield embedded.vectors

    def embed_with_words(self, sentences: Iterable[Sentence]) -> Iterator[Embedded]:
        """As `embed`, with the words that the vectors are of."""
        if isinstance(sentences, str):
            raise TypeError(f"`sentences` must be an iterable of sentences, got the str {sentences[:40]!r}")
        window: list[list[str]] = []
        size = 0
        for number, sentence in enumerate(sentences):
            words = self.tokenizer.tokenize(sentence) if isinstance(sentence, str) else list(sentence)
            if unfit := [word for word in words if not isinstance(word, str)]:
                raise TypeError(f"sentence {number} holds {unfit[0]!r}, a {type(unfit[0]).__name__}; expected words")
            window.append(words)
            size += len(words) + MARKERS
            if size >= WINDOW_BATCHES * self.batch_words:
                yield from self._embed_window(window)
                window, size = [], 0
                _release_memory()
        yield from self._embed_window(window)

    def embed_proteins(self, sequences: Iterable[str]) -> Iterator[Protein]:
        """The vectors of proteins by a SeqVec model, in order, whatever `layers` and `pooling` are.

        A sequence is a str of residues, such as `"MKTAYIAKQR"`: lower case counts as upper case, blanks and gaps (`-`)
        are dropped, and the residues U, Z, O and B, which SeqVec was not trained on, are read as X.

            seqvec = ElmoEmbedder.from_pretrained("my-seqvec")
            (protein,) = seqvec.embed_proteins(["MKTAYIAKQR"])
            protein.residues.shape, protein.vector.shape  # (10, 1024), (1024,)
        """
        if isinstance(sequences, str):
            raise TypeError(f"`sequences` must be an iterable of sequences, got the str {sequences[:40]!r}")
        embedder = ElmoEmbedder(self.model, self.tokenizer, layers="all", batch_words=self.batch_words)
        numbered = enumerate(sequences)
        for layers in embedder.embed(_residues(sequence, number) for number, sequence in numbered):
            residues = layers.sum(0)
            vector = residues.mean(0) if len(residues) else np.zeros_like(residues, shape=residues.shape[1:])
            yield Protein(layers.astype(self.dtype), residues.astype(self.dtype), vector.astype(self.dtype))

    def reads_in_pieces(self, words: Sequence[str]) -> bool:
        """Whether a sentence is longer than a batch."""
        return len(words) + MARKERS > self.batch_words and not self._one_by_one

    def _embed_window(self, window: list[list[str]]) -> Iterator[Embedded]:
        results, spans = self._compute_window(window)
        for words, span in zip(window, spans, strict=True):
            # A copy, because a view would keep the whole window; of an only sentence it would only double the memory.
            vectors = results if len(window) == 1 else results[..., span, :].copy()
            yield Embedded(words, vectors if self.pooling == "none" else vectors[..., 0, :])

    def _compute_window(self, window: list[list[str]]) -> tuple[np.ndarray, list[slice]]:
        """The vectors of all sentences after each other, (..., words, D), and where each has its own."""
        ends = np.cumsum([len(words) if self.pooling == "none" else 1 for words in window], dtype=int).tolist()
        spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        leading = (len(self.layers),) if isinstance(self.layers, tuple) else ()
        results = np.zeros((*leading, ends[-1] if ends else 0, self.model.config.hidden_size), self.dtype)
        for batch in self._batches(window):
            for index, vectors in zip(batch, self._embed_batch([window[index] for index in batch]), strict=True):
                results[..., spans[index], :] = self._pool(vectors).numpy()
        return results, spans

    def _batches(self, window: list[list[str]]) -> Iterator[list[int]]:
        """The sentences that have words, shortest first, in batches of at most `batch_words`."""
        batch: list[int] = []
        size = 0
        for index in sorted(range(len(window)), key=lambda index: len(window[index])):
            cost = len(window[index]) + MARKERS
            if cost == MARKERS:
                continue
            if batch and (size + cost > self.batch_words or self._one_by_one):
                yield batch
                batch, size = [], 0
            batch.append(index)
            size += cost
        if batch:
            yield batch

    @torch.inference_mode()
    def _embed_batch(self, sentences: list[list[str]]) -> list[Tensor]:
        """(..., T, D) of each sentence."""
        if self.reads_in_pieces(sentences[0]):
            return [self._embed_in_pieces(sentences[0])]
        output = self._run(sentences, keep_sentence_markers=False)
        selected = self._select(output).float().cpu()  # (..., B, T, D)
        return [selected[..., row, : len(words), :] for row, words in enumerate(sentences)]

    def _embed_in_pieces(self, words: list[str]) -> Tensor:
        """(..., T, D) of a sentence of any length."""
        row = [str(self.tokenizer.bos_token), *words, str(self.tokenizer.eos_token)]
        pieces = [slice(start, start + self.batch_words) for start in range(0, len(row), self.batch_words)]
        size = self.model.config.projection_dim
        result = torch.empty(0)
        # In each pass only one direction has the states it should have, and only its half is kept.
        for ordered, half in ((pieces, slice(0, size)), (pieces[::-1], slice(size, 2 * size))):
            states = None
            for piece in ordered:
                output = self._run([row[piece]], add_special_tokens=False, states=states, use_cache=True)
                states = output.states
                vectors = self._select(output)[..., 0, :, :]
                if not result.numel():
                    result = torch.empty(*vectors.shape[:-2], len(row), 2 * size)
                result[..., piece, half] = vectors[..., half]
        return result[..., 1:-1, :]

    def _run(
        self,
        sentences: list[list[str]],
        add_special_tokens: bool = True,
        keep_sentence_markers: bool = True,
        **more: Any,
    ) -> ElmoModelOutput:
        encoding = self.tokenizer(
            sentences,
            is_split_into_words=True,
            add_special_tokens=add_special_tokens,
            padding=True,
            return_tensors="pt",
        ).to(self.model.device)
        return self.model(
            input_ids=encoding["input_ids"],
            char_ids=encoding["char_ids"],
            attention_mask=encoding["attention_mask"],
            output_hidden_states=self.layers != "mix",
            keep_sentence_markers=keep_sentence_markers,
            return_dict=True,
            **more,
        )

    def _select(self, output: ElmoModelOutput) -> Tensor:
        """The wanted layers, (B, T, D) or (layers, B, T, D)."""
        if self.layers == "mix":
            assert output.last_hidden_state is not None
            return output.last_hidden_state
        assert output.hidden_states is not None
        if isinstance(self.layers, int):
            return output.hidden_states[self.layers]
        if self.layers == "average":
            return torch.stack(output.hidden_states).mean(0)
        return torch.stack([output.hidden_states[int(number)] for number in self.layers])

    def _pool(self, vectors: Tensor) -> Tensor:
        """(..., T, D) -> (..., 1, D), or as it is."""
        if self.pooling == "mean":
            return vectors.mean(-2, keepdim=True)
        return vectors.amax(-2, keepdim=True) if self.pooling == "max" else vectors


def _residues(sequence: str, number: int) -> list[str]:
    """The residues of a protein's sequence as SeqVec reads them."""
    residues = "".join(sequence.split()).replace("-", "").upper()
    if unfit := [residue for residue in residues if not "A" <= residue <= "Z"]:
        raise ElmoError(f"protein {number} holds {unfit[0]!r}; expected residues, which are letters from A to Z")
    return list(residues.translate(RARE_RESIDUES))


def _release_memory() -> None:
    """Gives freed memory back to the system: glibc keeps it, and ever more of it as batches differ in their shapes."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ElmoError(f"`{name}` must be one of {', '.join(allowed)}, got {value!r}")


def _parse_layers(layers: str | int | Sequence[int], top: int) -> str | int | tuple[int, ...]:
    """`"mix"`, `"average"`, a layer's number, or the numbers of several."""
    parsed: str | int | tuple[int, ...]
    if isinstance(layers, str) and layers in ("mix", "average"):
        return layers
    if layers == "all":
        return tuple(range(top + 1))
    if layers == "top":
        return top
    try:
        if isinstance(layers, str):
            numbers = [int(number) for number in layers.split(",")]
            parsed = numbers[0] if len(numbers) == 1 else tuple(numbers)
        else:
            parsed = layers if isinstance(layers, int) else tuple(int(number) for number in layers)
    except (TypeError, ValueError):
        raise ElmoError(f"`layers` must be all, average, top, mix or layer numbers like 0,2, got {layers!r}") from None
    chosen = (parsed,) if isinstance(parsed, int) else parsed
    if not chosen or min(chosen) < 0 or max(chosen) > top:
        raise ElmoError(f"`layers` must be numbers from 0 to {top}, the model's layers, got {layers!r}")
    return parsed


__all__ = ["ElmoEmbedder", "Embedded", "Protein"]
