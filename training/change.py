"""Compare the change of words that a biLM measures with what people judged: the table `change` of training.evaluate.

Spearman's rank correlation of APD and PRT with graded truth, by each layer and the model's mix; an interval of 95 % by
drawing the words again with replacement, and p, two-sided, by permuting the truth.
"""

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from modeling_elmo import ElmoEmbedder
from modeling_elmo.change import MEASURES, UseVectors, WordChange, rank_words
from modeling_elmo.change_uses import sample_table
from modeling_elmo.corpus import Corpus, TextLines
from modeling_elmo.files import ElmoError, file_digest, one_line, remove
from modeling_elmo.loading import find_model, model_digests

# Permutations of the truth, and samples of the words with replacement.
PERMUTATIONS = 10_000
RESAMPLES = 2_000
INTERVAL = (0.025, 0.975)
# Of fewer words a rank correlation says nothing.
FEWEST_WORDS = 4

Rows = list[dict[str, Any]]


def read_truth(path: Path) -> dict[str, float]:
    """Read a file with a word, a tab and how much it has changed on each line."""
    truth = {}
    for number, line in enumerate(Corpus(TextLines([str(path)]), name=str(path)), start=1):
        word, _, value = str(line).partition("\t")
        if not word:
            continue
        try:
            change = float(value)
        except ValueError:
            change = math.nan
        if not math.isfinite(change):
            raise ElmoError(f"{path}: line {number}: expected a word, a tab and a number")
        truth[word.lower()] = change
    return truth


def correlate(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the rank correlations of rows (n, words) with rows of truth; 0 where all values are equal."""
    first, second = rankdata(scores, axis=-1), rankdata(truth, axis=-1)
    first = first - first.mean(-1, keepdims=True)
    second = second - second.mean(-1, keepdims=True)
    norms = np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
    return (first * second).sum(-1) / np.where(norms > 0, norms, 1)


def score_correlation(scores: np.ndarray, truth: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Return Spearman's rho with its interval, and its p by permutation."""
    random = np.random.default_rng(seed)
    rho = float(correlate(scores, truth))
    drawn = random.integers(len(truth), size=(RESAMPLES, len(truth)))
    low, high = np.quantile(correlate(scores[drawn], truth[drawn]), INTERVAL)
    permuted = random.permuted(np.tile(truth, (PERMUTATIONS, 1)), axis=1)
    as_extreme = np.abs(correlate(scores[None], permuted)) >= abs(rho) - 1e-9
    p = (as_extreme.sum() + 1) / (PERMUTATIONS + 1)
    return {"rho": rho, "low": float(low), "high": float(high), "p": float(p)}


def _note_missing(words: Sequence[str], reason: str) -> None:
    if words:
        print(f"warning: left out, {reason}: {one_line(', '.join(words))}", file=sys.stderr)


def change(model: str, uses: Path, truth_file: Path, folder: Path, max_uses: int) -> tuple[Rows, Rows]:
    """Return the correlations by representation and measure, and the scores of each word.

    The vectors of the uses stay in a hidden folder in `folder` until all are there, so that a run can be resumed.
    """
    truth = read_truth(truth_file)
    found_model = find_model(model)
    embedder = ElmoEmbedder.from_pretrained(found_model, layers="all", dtype="float16")
    sample = sample_table(str(uses), embedder.tokenizer, limit=max_uses)
    if len(sample.periods) != 2:
        raise ElmoError(f"{uses}: expected uses of 2 periods, got {', '.join(sample.periods)}")
    measured = sample.words()
    _note_missing(sorted(set(truth) - set(measured)), f"no uses in both periods of {uses.name}")
    _note_missing(sorted(set(measured) - set(truth)), f"not in {truth_file.name}")
    words = [word for word in measured if word in truth]
    if len(words) < FEWEST_WORDS:
        raise ElmoError(f"{truth_file}: {len(words)} of its words have uses in {uses}; {FEWEST_WORDS} are needed")
    settings = {
        "input": {uses.name: file_digest(uses)},
        "model": model_digests(Path(found_model)),
        "max_uses": max_uses,
        "words": words,
    }
    run = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
    parts = folder / f".change-{run[:8]}.parts"  # a run with other settings has its own
    vectors = UseVectors(sample, words, embedder, parts, settings)
    changes = sorted(rank_words(vectors, words), key=lambda change: change.word)
    rows = list(_correlate_all(vectors.layers, changes, truth))
    remove(parts)
    return rows, list(_list_scores(vectors.layers, changes, truth))


def _correlate_all(
    layers: Sequence[str], changes: Sequence[WordChange], truth: dict[str, float]
) -> Iterator[dict[str, Any]]:
    values = np.array([truth[change.word] for change in changes])
    for measure in MEASURES:
        scores = np.array([getattr(_only_distance(change), measure) for change in changes])  # (words, layers)
        for layer, by_word in zip(layers, scores.T, strict=True):
            about = {"representation": layer_name(layer), "measure": measure.upper()}
            yield {**about, **score_correlation(by_word, values), "words": len(changes)}


def _list_scores(
    layers: Sequence[str], changes: Sequence[WordChange], truth: dict[str, float]
) -> Iterator[dict[str, Any]]:
    for change in changes:
        row: dict[str, Any] = {"word": change.word, "truth": truth[change.word], "uses": sum(change.counts.values())}
        for measure in MEASURES:
            values = getattr(_only_distance(change), measure).tolist()
            names = [f"{measure.upper()}, {layer_name(layer)}" for layer in layers]
            row.update(zip(names, values, strict=True))
        yield row


def _only_distance(change: WordChange) -> Any:
    (distance,) = change.distances.values()
    return distance


def layer_name(layer: str) -> str:
    if layer == "mix":
        return layer
    return "characters" if layer == "0" else f"LSTM layer {layer}"
