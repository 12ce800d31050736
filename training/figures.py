"""Pictures of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

# In a picture of senses, of which 1 is the width and height that points take: what is around them, half a point, and
# what a letter and a line of a label take.
BORDER = 0.15
DOT = 0.015
LETTER = 0.019
LINE = 0.075


def draw_mix(weights: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """The layers' weights as shades, a panel a place and a row a task or run, as in the paper's Figure 2.

    Each row is divided by its sum: what is shown is the softmax, without the scale gamma.
    """
    height = 0.8 + 0.3 * max(len(rows) for rows in weights.values())
    figure, panels = pyplot.subplots(1, len(weights), figsize=(3.2 * len(weights), height), squeeze=False)
    for panel, (place, rows) in zip(panels[0], weights.items(), strict=True):
        shares = [[value / sum(values) for value in values] for values in rows.values()]
        panel.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        panel.set_yticks(range(len(rows)), list(rows))
        panel.set_xticks(range(len(shares[0])), ["characters", *(f"LSTM {n}" for n in range(1, len(shares[0])))])
        panel.set_title(f"{place} of the task model", fontsize=9)
        for row, values in enumerate(shares):
            for column, value in enumerate(values):
                color = "white" if value > 0.5 else "black"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_senses(words: Mapping[str, tuple[np.ndarray, Sequence[str], Sequence[str]]], path: Path) -> None:
    """The uses of words in the plane of their two principal components, a panel a word and a colour a sense.

    A word has the vectors of its uses (uses, D), their senses and a few words of each sentence, with which one use of
    every sense is labelled.
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
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _free_place(
    points: np.ndarray, own: Sequence[int], labels: Sequence[str], taken: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[int, np.ndarray]:
    """One of the own points, and the place above or below it where its label hides least, which is `taken` then."""
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
    """Scores with their spread: against the part of the training data (the paper's Figure 1), or as bars."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    metric = rows[0]["metric"]
    figure, axes = pyplot.subplots(figsize=(6.4, 0.6 * len(models) + 1.6) if _one_fraction(rows) else (6, 4))
    if _one_fraction(rows):
        means = [100 * row["mean"] for row in rows]
        spreads = [100 * (row["standard deviation"] or 0) for row in rows]
        axes.barh(models, means, xerr=spreads, color="#4878a8", capsize=3)
        axes.invert_yaxis()
        lowest = min(mean - spread for mean, spread in zip(means, spreads, strict=True))
        axes.set_xlim(max(lowest - 5, 0), None)
        axes.set_xlabel(f"{metric} × 100")
    else:
        for model in models:
            own = [row for row in rows if row["model"] == model]
            axes.errorbar(
                [100 * row["fraction"] for row in own],
                [100 * row["mean"] for row in own],
                yerr=[100 * (row["standard deviation"] or 0) for row in own],
                marker="o",
                capsize=3,
                label=model,
            )
        parts = sorted({100 * row["fraction"] for row in rows})
        axes.set_xscale("log")
        axes.set_xticks(parts, [f"{part:g}" for part in parts])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("% of the training data")
        axes.set_ylabel(f"{metric} × 100")
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _one_fraction(rows: Sequence[Mapping[str, Any]]) -> bool:
    return len({row["fraction"] for row in rows}) == 1
