"""Pictures of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patheffects import withStroke


def draw_mix(weights: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """The layers' weights as shades, a panel a place and a row a task or run, as in the paper's Figure 2.

    Each row is divided by its sum: what is shown is the softmax, without the scale gamma.
    """
    figure, panels = pyplot.subplots(1, len(weights), figsize=(3.2 * len(weights), 1.4), squeeze=False)
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


def draw_senses(
    words: Mapping[str, tuple[np.ndarray, Sequence[str], Sequence[str]]], path: Path, columns: int = 3
) -> None:
    """The uses of words in the plane of their two principal components, a panel a word and a colour a sense.

    A word has the vectors of its uses (uses, D), their senses and a few words of each sentence; of every sense, the
    use nearest to its mean is labelled with those.
    """
    rows = -(-len(words) // columns)
    columns = min(columns, len(words))
    figure, panels = pyplot.subplots(rows, columns, figsize=(4.4 * columns, 4 * rows), squeeze=False)
    for panel in panels.flat[len(words) :]:
        panel.remove()
    for panel, (word, (vectors, senses, labels)) in zip(panels.flat, words.items(), strict=False):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        centred = unit - unit.mean(0)
        _, strengths, directions = np.linalg.svd(centred, full_matrices=False)
        points = centred @ directions[:2].T  # (uses, 2)
        for order, sense in enumerate(dict.fromkeys(senses)):
            own = np.array([number for number, other in enumerate(senses) if other == sense])
            panel.scatter(*points[own].T, s=45, alpha=0.8, color=f"C{order}", label=sense)
            middle = own[np.linalg.norm(points[own] - points[own].mean(0), axis=1).argmin()]
            panel.annotate(
                labels[middle],
                points[middle],
                (0, -18 if order % 2 else 10),  # labels of neighbouring senses on different sides
                textcoords="offset points",
                ha="left" if points[middle, 0] < points[:, 0].mean() else "right",
                fontsize=9,
                color=f"C{order}",
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )
        share = (strengths[:2] ** 2).sum() / (strengths**2).sum()
        panel.set_title(f"{word} ({share:.0%} of the variance)", fontsize=10)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.margins(0.12)
        panel.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(set(senses)), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_comparison(rows: Sequence[Mapping[str, Any]], metric: str, path: Path) -> None:
    """Scores with their spread: against the part of the training data (the paper's Figure 1), or as bars."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = pyplot.subplots(figsize=(6.4, 0.6 * len(models) + 1.6) if _one_fraction(rows) else (6, 4))
    if _one_fraction(rows):
        means = [100 * row[metric] for row in rows]
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
                [100 * row[metric] for row in own],
                yerr=[100 * (row["standard deviation"] or 0) for row in own],
                marker="o",
                capsize=3,
                label=model,
            )
        axes.set_xscale("log")
        axes.set_xlabel("% of the training data")
        axes.set_ylabel(f"{metric} × 100")
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _one_fraction(rows: Sequence[Mapping[str, Any]]) -> bool:
    return len({row["fraction"] for row in rows}) == 1
