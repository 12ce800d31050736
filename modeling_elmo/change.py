"""Measure how much words change their meaning between periods: `measure_change`, the command `elmo change`.

For a word with vectors u_1 … u_n in one period and v_1 … v_m in another, by each layer and by the model's mix:

    APD = mean over i, j of (1 - cos(u_i, v_j))         the average pairwise cosine distance
    PRT = 1 - cos(mean of the u_i, mean of the v_j)     the cosine distance of the prototypes

The vectors of the uses are computed in parts, which are kept in a hidden folder beside the output, each with a seal as
`elmo embed` writes it: a rerun takes those that are whole.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from tqdm import tqdm

from .change_uses import Sample, Use, name_periods, sample_corpora, sample_table
from .embed_corpus import group, is_sealed, parts_folder, prepare_parts, seal
from .embedding import DEFAULT_BATCH_WORDS, MARKERS, ElmoEmbedder
from .files import (
    ElmoError,
    StrPath,
    atomic_write,
    check_output_file,
    file_digest,
    progress_options,
    remove,
    write_text,
)
from .loading import find_model, model_digests
from .locks import one_writer
from .neighbors import mark

MEASURES = ("apd", "prt")
# The most uses of a word and period whose vectors are computed.
DEFAULT_USES = 100
DEFAULT_MIN_COUNT = 20
# About how many words are embedded between two parts.
PART_WORDS = 50_000
# Samples with replacement, by whose standard deviation an interval is drawn, and how many of those it reaches.
RESAMPLES = 200
STANDARD_ERRORS = 1.96
# Of the uses that moved most, how many are shown for a word; and how many words have a picture.
MOVED_USES = 3
PICTURES = 20
LABEL_WORDS = 2
# Characters of a word in the name of its picture.
LONGEST_NAME = 100
# A cosine with a vector of zeros is 0.
SMALLEST = 1e-12

Pair = tuple[str, str]  # an earlier and a later period


class Distance(NamedTuple):
    """How far a word's uses in two periods are apart: by each layer, and half the width of a 95 % interval."""

    apd: np.ndarray  # (layers,)
    prt: np.ndarray
    apd_margin: np.ndarray
    prt_margin: np.ndarray


@dataclass
class WordChange:
    """How much a word has changed.

    Attributes:
        counts: how often it occurs in each period.
        distances: between the first and the last period, and of more than two between each and the next.
        typical: the use of each period that is nearest to the period's prototype.
        moved: the uses of the last period that are most unlike the first one's and like the last one's.
    """

    word: str
    counts: dict[str, int]
    distances: dict[Pair, Distance]
    typical: dict[str, Use]
    moved: list[Use]


@dataclass
class ChangeReport:
    """The words by how much they have changed, most first, and what was left out."""

    periods: list[str]
    layers: list[str]
    words: list[WordChange]
    left_out: dict[str, list[str]]  # the words that have no use in a period
    tokenized: dict[str, bool]
    uses: int
    embedded_now: int  # words of the sentences that were not in parts of an earlier run
    remade: int


# ------------------------------------------------------------------------------------------------------- distances


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1, so that their products are cosines."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)


def average_pairwise_distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the mean cosine distance of all pairs of uses (…, layers, D), by each layer.

    The mean of all products of unit vectors is the product of their means.
    """
    return 1 - (unit(first).mean(0) * unit(second).mean(0)).sum(-1)


def prototype_distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the cosine distance of the mean vectors of uses (…, layers, D), by each layer."""
    return np.maximum(1 - (unit(first.mean(0)) * unit(second.mean(0))).sum(-1), 0)


def measure_distance(first: np.ndarray, second: np.ndarray, seed: int = 0) -> Distance:
    """Return the distances of uses (uses, layers, D) in two periods, with bootstrap margins."""
    random = np.random.default_rng(seed)
    means, unit_means = [], []
    for vectors in (first, second):
        shares = random.multinomial(len(vectors), np.full(len(vectors), 1 / len(vectors)), RESAMPLES) / len(vectors)
        means.append(unit(np.tensordot(shares, vectors, 1)))  # (resamples, layers, D)
        unit_means.append(np.tensordot(shares, unit(vectors), 1))
    apd_spread = (unit_means[0] * unit_means[1]).sum(-1).std(0)
    prt_spread = (means[0] * means[1]).sum(-1).std(0)
    apd, prt = average_pairwise_distance(first, second), prototype_distance(first, second)
    return Distance(apd, prt, STANDARD_ERRORS * apd_spread, STANDARD_ERRORS * prt_spread)


def find_typical(vectors: np.ndarray) -> int:
    """Return the number of the use (uses, D) that is nearest to the mean of all."""
    return int((unit(vectors) @ unit(vectors.mean(0))).argmax())


def find_moved(first: np.ndarray, last: np.ndarray) -> list[int]:
    """Return the uses of the last period (uses, D) that are nearest to its others and farthest from the first's."""
    gain = unit(last) @ (unit(last).mean(0) - unit(first).mean(0))
    return np.argsort(-gain, kind="stable")[:MOVED_USES].tolist()


# ---------------------------------------------------------------------------------------------------------- vectors


class UseVectors:
    """The vectors of sampled uses, computed in parts that stay in a folder until it is removed.

    Args:
        sample: the uses.
        words: of which words.
        embedder: computes the vectors of `"all"` layers.
        folder: where the parts are.
        settings: what the vectors depend on; a folder with parts of other settings is refused.
        restart: whether to discard the parts of an earlier run.

    Attributes:
        layers: the numbers of the layers, then `mix` where that is made of a word's own layers.
        embedded_now, remade: words embedded by this run, and parts made again since they were damaged.
    """

    def __init__(
        self,
        sample: Sample,
        words: Sequence[str],
        embedder: ElmoEmbedder,
        folder: Path,
        settings: dict[str, Any],
        restart: bool = False,
    ) -> None:
        self.sample = sample
        self.embedder = embedder
        self.folder = folder
        config = embedder.model.config
        self.layers = [str(number) for number in range(config.num_hidden_layers + 1)]
        if not (config.mix == "scalar" and config.mix_layer_norm):  # that depends on a whole batch
            self.layers.append("mix")
        self.embedded_now = self.remade = 0
        self._parts: list[np.ndarray] = []
        self._rows: dict[Use, tuple[int, int]] = {}
        prepare_parts(folder, settings, restart)
        self._run = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
        self._write_parts(sample.sentences(words), words)

    def of(self, word: str, period: str) -> np.ndarray:
        """Return the vectors of a word's uses in a period: (uses, layers, D)."""
        vectors = []
        for use in self.sample.uses[word, period]:
            part, row = self._rows[use]
            vectors.append(self._parts[part][row])
        layers = np.array(vectors, np.float32)
        if self.layers[-1] != "mix":
            return layers
        return np.concatenate([layers, self._mix(layers)[:, None]], axis=1)

    @torch.inference_mode()
    def _mix(self, layers: np.ndarray) -> np.ndarray:
        """Return the model's mix of layers (uses, layers, D)."""
        model = self.embedder.model
        if model.scalar_mix is not None:
            return model.scalar_mix.float().cpu()(torch.from_numpy(layers).unbind(1)).numpy()
        return layers.mean(1) if model.mix == "average" else layers[:, -1]

    def _write_parts(self, sentences: list[tuple[str, ...]], words: Sequence[str]) -> None:
        """Write the parts that are not there yet, and open all."""
        positions: dict[tuple[str, ...], set[int]] = {}
        for word in words:
            for period in self.sample.periods:
                for use in self.sample.uses[word, period]:
                    positions.setdefault(use.sentence, set()).add(use.position)
        total = sum(map(len, sentences))
        options = {"unit": " words", "unit_scale": True, "smoothing": 0, **progress_options()}
        with tqdm(total=total, desc="embedding uses", **options) as bar:
            for number, members in enumerate(group(sentences, lambda words: len(words) + MARKERS, PART_WORDS)):
                uses = [Use(sentence, place) for sentence in members for place in sorted(positions[sentence])]
                self._rows.update((use, (number, row)) for row, use in enumerate(uses))
                path = self.folder / f"{number:08}.npy"
                size = sum(map(len, members))
                is_written = path.is_file()
                if is_written and not is_sealed(path, self._run):
                    bar.write(f"{path}: incomplete, changed or moved: it is made again", file=sys.stderr)
                    self.remade += 1
                    is_written = False
                if is_written:
                    bar.initial += size
                else:
                    self._write_part(path, members, positions)
                    self.embedded_now += size
                bar.update(size)
                self._parts.append(np.load(path, mmap_mode="r"))

    def _write_part(
        self, path: Path, sentences: list[tuple[str, ...]], positions: Mapping[tuple[str, ...], set[int]]
    ) -> None:
        # A cached word can differ in the last bit from one computed among others: no part may depend on earlier ones.
        self.embedder.model.clear_caches()
        rows = []
        for sentence, layers in zip(sentences, self.embedder.embed(map(list, sentences)), strict=True):
            rows.append(layers[:, sorted(positions[sentence])].swapaxes(0, 1))  # (uses, layers, D)
        vectors = np.concatenate(rows)
        with atomic_write(path, vectors.nbytes) as scratch, open(scratch, "wb") as file:
            np.save(file, vectors)
        write_text(path.with_suffix(".json"), json.dumps(seal(path, self._run)))


# -------------------------------------------------------------------------------------------------------------- run


def measure_change(
    sources: str | Sequence[str] | Mapping[str, str],
    model: StrPath,
    output: StrPath,
    *,
    words: Sequence[str] | None = None,
    min_count: int = DEFAULT_MIN_COUNT,
    lemmas: Mapping[str, str] | None = None,
    max_uses: int = DEFAULT_USES,
    seed: int = 0,
    measure: str = "apd",
    layer: str = "top",
    batch_words: int = DEFAULT_BATCH_WORDS,
    tokenized: bool | None = None,
    pictures: StrPath | None = None,
    overwrite: bool = False,
    restart: bool = False,
) -> ChangeReport:
    """Rank words by how much their uses differ between the first and the last period, in a file. Resume a run.

    Args:
        sources: a corpus for each period, by its name and in order; or one table of dated uses, as for
            [`sample_table`].
        model: the folder of the model and its tokenizer.
        output: the .tsv file to write, and the hidden folder of the parts beside it until it is there.
        words, min_count, lemmas, tokenized: as for [`sample_corpora`]; a table has lemmas.
        max_uses, seed: the most uses of a word and period, and which ones.
        measure: `"apd"` or `"prt"`, by which words are ranked.
        layer: `"top"`, `"mix"` or the number of the layer by which words are ranked and uses shown.
        batch_words: how many words are computed at once.
        pictures: a folder to write, with pictures of the uses of the words that changed most.
        overwrite: whether to replace what is there.
        restart: whether to discard an unfinished run instead of resuming it.
    """
    output = Path(output)
    check_output_file(output, overwrite)
    if pictures is not None and Path(pictures).exists() and not (overwrite and Path(pictures).is_dir()):
        raise ElmoError(f"{pictures}: exists; choose another folder, or pass --overwrite")
    if measure not in MEASURES:
        raise ElmoError(f"`measure` must be one of {', '.join(MEASURES)}, got {measure!r}")
    model = find_model(model)
    embedder = ElmoEmbedder.from_pretrained(
        model, "cuda" if torch.cuda.is_available() else None, layers="all", batch_words=batch_words, dtype="float16"
    )
    options: dict[str, Any] = {"min_count": min_count, "limit": max_uses, "seed": seed, "tokenized": tokenized}
    if isinstance(sources, str):
        files = [sources]
        if lemmas:
            raise ElmoError(f"{sources}: a table of uses has lemmas; --lemmas is for corpora")
        sample = sample_table(sources, embedder.tokenizer, words, **options)
    else:
        periods = dict(sources) if isinstance(sources, Mapping) else name_periods(sources, labelled=False)
        if len(periods) < 2:
            raise ElmoError("change needs at least two periods: two corpora, or a table of uses")
        files = list(periods.values())
        sample = sample_corpora(periods, embedder.tokenizer, words, lemmas=lemmas, **options)
    if len(sample.periods) < 2:
        raise ElmoError(f"{files[0]}: all uses are of {sample.periods[0]}; change needs at least two periods")
    found = sample.words()
    if not found:
        raise ElmoError(f"no overlap: no word has uses in each of {', '.join(sample.periods)}")
    settings = {
        "input": [file_digest(file) for file in files],
        "periods": sample.periods,
        "model": model_digests(Path(model)),
        "words": hashlib.sha256("\n".join(words or ()).encode()).hexdigest(),
        "lemmas": hashlib.sha256(json.dumps(dict(lemmas or {}), sort_keys=True).encode()).hexdigest(),
        "batch_words": batch_words,
        "part_words": PART_WORDS,
        **options,
    }
    with one_writer(output, output.with_name(f".{output.name}.lock")):
        vectors = UseVectors(sample, found, embedder, parts_folder(output), settings, restart)
        column = _find_layer(layer, vectors.layers)
        changes = rank_words(vectors, found, measure, column, seed)
        report = ChangeReport(
            sample.periods,
            vectors.layers,
            changes,
            _list_left_out(sample, words),
            sample.tokenized,
            sum(len(sample.uses[word, period]) for word in found for period in sample.periods),
            vectors.embedded_now,
            vectors.remade,
        )
        if pictures is not None:
            with atomic_write(pictures) as scratch:
                scratch.mkdir()
                draw_pictures(vectors, changes[:PICTURES], measure, column, scratch)
        write_text(output, "".join(format_changes(report, column)))
        remove(parts_folder(output))
    return report


def _find_layer(layer: str, layers: Sequence[str]) -> int:
    """Return the place of a layer among the names of all."""
    if layer == "top":
        return max(number for number, name in enumerate(layers) if name != "mix")
    if layer not in layers:
        raise ElmoError(f"`layer` must be top, {', '.join(layers)}, got {layer!r}")
    return layers.index(layer)


def _list_left_out(sample: Sample, words: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the words that have no use in a period: of those that were asked for, or of a table's."""
    left_out: dict[str, list[str]] = {period: [] for period in sample.periods}
    for word in sorted(set(words or (word for word, _ in sample.counts))):
        for period in sample.periods:
            if not sample.counts[word, period]:
                left_out[period].append(word)
    return {period: missing for period, missing in left_out.items() if missing}


def rank_words(
    vectors: UseVectors, words: Sequence[str], measure: str = "apd", column: int = -1, seed: int = 0
) -> list[WordChange]:
    """Return how much each word has changed, most first."""
    changes = []
    for word in tqdm(words, desc="comparing uses", unit=" words", **progress_options()):
        changes.append(_describe_word(vectors, word, column, seed))
    pair = vectors.sample.periods[0], vectors.sample.periods[-1]
    return sorted(changes, key=lambda change: (-getattr(change.distances[pair], measure)[column], change.word))


def _describe_word(vectors: UseVectors, word: str, column: int, seed: int) -> WordChange:
    periods = vectors.sample.periods
    by_period = {period: vectors.of(word, period) for period in periods}
    pairs = [(periods[0], periods[-1])]
    if len(periods) > 2:
        pairs += pairwise(periods)
    distances = {pair: measure_distance(by_period[pair[0]], by_period[pair[1]], seed) for pair in pairs}
    typical = {}
    for period in periods:
        typical[period] = vectors.sample.uses[word, period][find_typical(by_period[period][:, column])]
    last = vectors.sample.uses[word, periods[-1]]
    moved = find_moved(by_period[periods[0]][:, column], by_period[periods[-1]][:, column])
    counts = {period: vectors.sample.counts[word, period] for period in periods}
    return WordChange(word, counts, distances, typical, [last[number] for number in moved])


# ----------------------------------------------------------------------------------------------------------- output


def format_changes(report: ChangeReport, column: int) -> Iterator[str]:
    """Yield the lines of the table: a word's rank, scores by the chosen layer and by all, and uses."""
    overall = report.periods[0], report.periods[-1]
    header = ["rank", "word", *(f"uses {period}" for period in report.periods)]
    for measure in MEASURES:
        header += [measure, f"{measure} low", f"{measure} high"]
    for measure in MEASURES:
        header += [f"{measure} {layer}" for layer in report.layers]
    steps = list(pairwise(report.periods)) if len(report.periods) > 2 else []  # of a curve
    for pair in steps:
        header += [f"{measure} {pair[0]} to {pair[1]}" for measure in MEASURES]
    header += [f"typical {period}" for period in report.periods]
    header += [f"moved {number}" for number in range(1, MOVED_USES + 1)]
    yield "\t".join(header) + "\n"
    for rank, change in enumerate(report.words, start=1):
        row = [str(rank), change.word, *map(str, change.counts.values())]
        distance = change.distances[overall]
        for value, margin in ((distance.apd, distance.apd_margin), (distance.prt, distance.prt_margin)):
            low, high = max(value[column] - margin[column], 0), value[column] + margin[column]
            row += [f"{number:.4f}" for number in (value[column], low, high)]
        row += [f"{number:.4f}" for number in (*distance.apd, *distance.prt)]
        for pair in steps:
            row += [f"{change.distances[pair].apd[column]:.4f}", f"{change.distances[pair].prt[column]:.4f}"]
        row += [_format_use(use) for use in change.typical.values()]
        row += [_format_use(use) for use in change.moved] + [""] * (MOVED_USES - len(change.moved))
        yield "\t".join(row) + "\n"


def _format_use(use: Use) -> str:
    return " ".join(mark(use.sentence, use.position).split())


def draw_pictures(vectors: UseVectors, changes: Sequence[WordChange], measure: str, column: int, folder: Path) -> None:
    """Draw the uses of each word by period and, of more than two periods, its change from each to the next."""
    from .cli_arguments import import_script

    figures = import_script("training.figures")
    for rank, change in enumerate(changes, start=1):
        points, periods, labels = [], [], []
        for period in vectors.sample.periods:
            points.append(vectors.of(change.word, period)[:, column])
            for use in vectors.sample.uses[change.word, period]:
                periods.append(period)
                start, end = max(use.position - LABEL_WORDS, 0), use.position + LABEL_WORDS + 1
                labels.append(" ".join(use.sentence[start:end]))
        name = f"{rank:02}-{quote(change.word, safe='')[:LONGEST_NAME]}"
        figures.draw_senses({change.word: (np.concatenate(points), periods, labels)}, folder / f"{name}.png")
        steps = list(change.distances)[1:]
        if steps:
            values = [getattr(change.distances[pair], measure)[column] for pair in steps]
            margins = [getattr(change.distances[pair], f"{measure}_margin")[column] for pair in steps]
            names = [f"{first} to {second}" for first, second in steps]
            title = f"{change.word}: {measure.upper()}"
            figures.draw_curve(title, names, values, margins, folder / f"{name}-curve.png")


def describe_report(report: ChangeReport, measure: str) -> Iterator[str]:
    """Yield lines that say what was compared and what was left out, and the ends of the ranking."""
    for period, tokenized in report.tokenized.items():
        yield f"{period}: text split {'at whitespace' if tokenized else 'Penn-Treebank style'}"
    yield f"{len(report.words):,} words, {report.uses:,} uses, {report.embedded_now:,} words embedded now"
    if report.remade:
        yield f"{report.remade:,} damaged parts made again"
    names = [change.word for change in report.words]
    yield f"changed most by {measure.upper()}: {', '.join(names[:10])}"
    yield f"changed least: {', '.join(names[:-11:-1])}"
