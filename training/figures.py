"""Plots of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

# Sizes in a plot of senses, in units of the area that the points take: the border around it, half a point, a letter
# and a line of a label.
BORDER = 0.15
DOT = 0.015
LETTER = 0.019
LINE = 0.075


def draw_mix(weights: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Plot the layers' weights as shades, one panel per place and one row per task or run, as in Figure 2.

    Each row is divided by its sum, which shows the softmax without the scale gamma.
    """
    height = 0.8 + 0.3 * max(len(rows) for rows in weights.values())
    figure, panels = pyplot.subplots(1, len(weights), figsize=(3.2 * len(weights), height), squeeze=False)
    for panel, (place, rows) in zip(panels[0], weights.items(), strict=True):
        values = np.array(list(rows.values()))
        shares = values / values.sum(axis=1, keepdims=True)
        panel.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        panel.set_yticks(range(len(rows)), list(rows))
        layers = ["characters", *(f"LSTM {number}" for number in range(1, shares.shape[1]))]
        panel.set_xticks(range(len(layers)), layers)
        panel.set_title(f"{place} of the task model", fontsize=9)
        for (row, column), share in np.ndenumerate(shares):
            color = "white" if share > 0.5 else "black"
            panel.text(column, row, f"{share:.2f}", ha="center", va="center", color=color, fontsize=8)
    _save(figure, path)


def draw_senses(words: Mapping[str, tuple[np.ndarray, Sequence[str], Sequence[str]]], path: Path) -> None:
    """Plot the uses of words by their two principal components, one panel per word and one colour per sense.

    A word has the vectors of its uses (uses, D), their senses and a few words of each sentence, which label one use of
    every sense.
    """
    figure, panels = pyplot.subplots(1, len(words), figsize=(4.4 * len(words), 4), squeeze=False)
    for panel, (word, (vectors, senses, labels)) in zip(panels[0], words.items(), strict=True):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        centred = unit - unit.mean(0)
        _, strengths, directions = np.linalg.svd(centred, full_matrices=False)
        points = centred @ directions[:2].T  # (uses, 2)
        points = (points - points.min(0)) / np.ptp(points, axis=0)  # from 0 to 1
        taken: list[tuple[np.ndarray, np.ndarray]] = []
        for order, sense in enumerate(dict.fromkeys(senses)):
            own = [number for number, other in enumerate(senses) if other == sense]
            panel.scatter(*points[own].T, s=45, alpha=0.8, color=f"C{order}", label=sense)
            number, place = _free_place(points, own, labels, taken)
            panel.text(*place, labels[number], ha="center", va="center", fontsize=8, color=f"C{order}")
        share = (strengths[:2] ** 2).sum() / (strengths**2).sum()
        panel.set_title(f"{word} ({share:.0%} of the variance)", fontsize=10)
        panel.set(xticks=[], yticks=[], xlim=(-BORDER, 1 + BORDER), ylim=(-BORDER, 1 + BORDER))
        panel.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(set(senses)), frameon=False)
    _save(figure, path)


def _free_place(
    points: np.ndarray, own: Sequence[int], labels: Sequence[str], taken: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[int, np.ndarray]:
    """Return one of the own points and the place above or below it where its label hides least, and add to `taken`."""
    options = []
    for number in own:
        half = np.array([LETTER * len(labels[number]), LINE]) / 2  # from the middle of a label to its corner
        from_middle = np.linalg.norm(points[number] - points[own].mean(0))
        for side in (1, -1):
            place = points[number] + [0, LINE * side]
            hidden = (np.abs(points - place) < half + DOT).all(1).sum()
            crossed = sum((np.abs(other - place) < other_half + half).all() for other, other_half in taken)
            outside = (np.abs(place - 0.5) + half > 0.5 + BORDER).any()
            options.append((3 * (hidden + crossed + outside) + from_middle, number, place, half))
    _, number, place, half = min(options, key=lambda option: option[0])
    taken.append((place, half))
    return number, place


def draw_comparison(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot scores with their spread against the part of the training data (the paper's Figure 1), or as bars."""
    score = f"{rows[0]['metric']} × 100"
    by_model: dict[str, list[tuple[float, float, float]]] = {}  # per cent of the data, mean, spread
    for row in rows:
        values = (row["fraction"], row["mean"], row["standard deviation"] or 0)
        by_model.setdefault(row["model"], []).append(tuple(100 * value for value in values))
    fractions = sorted({100 * row["fraction"] for row in rows})
    if len(fractions) == 1:
        figure, axes = pyplot.subplots(figsize=(6.4, 0.6 * len(by_model) + 1.6))
        means = [points[0][1] for points in by_model.values()]
        spreads = [points[0][2] for points in by_model.values()]
        axes.barh(list(by_model), means, xerr=spreads, color="#4878a8", capsize=3)
        axes.invert_yaxis()
        axes.set_xlim(max(np.subtract(means, spreads).min() - 5, 0), None)
        axes.set_xlabel(score)
    else:
        figure, axes = pyplot.subplots(figsize=(6, 4))
        for model, points in by_model.items():
            parts, means, spreads = zip(*points, strict=True)
            axes.errorbar(parts, means, yerr=spreads, marker="o", capsize=3, label=model)
        axes.set_xscale("log")
        axes.set_xticks(fractions, [f"{fraction:g}" for fraction in fractions])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("% of the training data")
        axes.set_ylabel(score)
        axes.legend(fontsize=8)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
