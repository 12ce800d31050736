"""Plots of results."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from pandas import DataFrame
from sklearn.preprocessing import minmax_scale, normalize

from modeling_elmo.files import atomic_write

# Sizes in a plot of senses, in units of the area that the points take: the border around it, half a point, a letter
# and a line of a label.
BORDER = 0.15
DOT = 0.015
LETTER = 0.019
LINE = 0.075
AREA = Bbox.unit().padded(BORDER)


def draw_mix(weights: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Plot the layers' weights as shades, one panel per place and one row per task or run, as in Figure 2.

    Each row is divided by its sum, which shows the softmax without the scale gamma.
    """
    height = 0.8 + 0.3 * max(map(len, weights.values()))
    figure = Figure(figsize=(3.2 * len(weights), height))
    panels = figure.subplots(1, len(weights), squeeze=False)[0]
    for panel, (place, rows) in zip(panels, weights.items(), strict=True):
        values = np.array(list(rows.values()))
        shares = values / values.sum(axis=1, keepdims=True)
        layers = ["characters", *(f"LSTM {number}" for number in range(1, shares.shape[1]))]
        panel.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        panel.set_yticks(range(len(rows)), rows)
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
    figure = Figure(figsize=(4.4 * len(words), 4))
    panels = figure.subplots(1, len(words), squeeze=False)[0]
    for panel, (word, (vectors, senses, labels)) in zip(panels, words.items(), strict=True):
        unit = normalize(vectors)
        centred = unit - unit.mean(0)
        _, strengths, directions = np.linalg.svd(centred, full_matrices=False)
        points = minmax_scale(centred @ directions[:2].T)  # (uses, 2), from 0 to 1
        taken: list[Bbox] = []
        for order, sense in enumerate(dict.fromkeys(senses)):
            color = f"C{order}"
            own = np.flatnonzero(np.array(senses) == sense)
            panel.scatter(*points[own].T, s=45, alpha=0.8, color=color, label=sense)
            number, box = _free_place(points, own, labels, taken)
            taken.append(box)
            panel.text(*(box.min + box.max) / 2, labels[number], ha="center", va="center", fontsize=8, color=color)
        variances = strengths**2
        share = variances[:2].sum() / variances.sum()
        panel.set_title(f"{word} ({share:.0%} of the variance)", fontsize=10)
        panel.set(xticks=[], yticks=[], xlim=AREA.intervalx, ylim=AREA.intervaly)
        panel.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=len(taken), frameon=False)
    _save(figure, path)


def _free_place(
    points: np.ndarray, own: Sequence[int], labels: Sequence[str], taken: Sequence[Bbox]
) -> tuple[int, Bbox]:
    """Return one of the own points, and the box above or below it where its label hides least."""
    middle = points[own].mean(0)
    options = []
    for number in own:
        width = LETTER * len(labels[number])
        from_middle = np.linalg.norm(points[number] - middle)
        for side in (LINE, -LINE):
            left, bottom = points[number] + [-width / 2, side - LINE / 2]
            box = Bbox.from_bounds(left, bottom, width, LINE)
            hidden = box.padded(DOT).count_contains(points)
            crossed = sum(map(box.overlaps, taken))
            outside = AREA.count_contains(box.corners()) < 4
            options.append((3 * (hidden + crossed + outside) + from_middle, number, box))
    _, number, box = min(options, key=itemgetter(0))
    return number, box


def draw_comparison(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot scores with their spread against the part of the training data (the paper's Figure 1), or in a column.

    Scores are points, since the axis does not start at 0.
    """
    frame = DataFrame(rows).set_index("model")
    scores = 100 * frame[["fraction", "mean", "standard deviation"]].astype(float)
    scores.columns = ["part", "mean", "spread"]
    parts = scores["part"].unique()
    metric = f"{rows[0]['metric']} × 100"
    if len(parts) == 1:
        figure = Figure(figsize=(6.4, 0.6 * len(rows) + 1.6))
        axes = figure.subplots()
        axes.errorbar(scores["mean"], scores.index, xerr=scores["spread"], fmt="o", color="#4878a8", capsize=3)
        axes.margins(x=0.1, y=0.3 / len(rows))
        axes.grid(axis="x", alpha=0.4)
        axes.invert_yaxis()
        axes.set_xlabel(f"{metric} (± standard deviation)")
    else:
        figure = Figure(figsize=(6, 4))
        axes = figure.subplots()
        for model, points in scores.groupby("model", sort=False):
            axes.errorbar(points["part"], points["mean"], points["spread"], marker="o", capsize=3, label=model)
        axes.set_xscale("log")
        axes.set_xticks(parts, [f"{part:g}" for part in parts])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("% of the training data")
        axes.set_ylabel(metric)
        axes.legend(fontsize=8)
    _save(figure, path)


def draw_accuracies(rows: Sequence[Mapping[str, Any]], directions: Sequence[str], path: Path) -> None:
    """Plot accuracies on minimal pairs, one row per field and paradigm, one kind of point per direction."""
    names = [row["name"] or "all" for row in rows]
    figure = Figure(figsize=(7.2, 0.23 * len(rows) + 1.4))
    axes = figure.subplots()
    for direction, marker in zip(directions, "o><", strict=True):
        axes.scatter([100 * row[direction] for row in rows], range(len(rows)), marker=marker, s=28, label=direction)
    axes.axvline(50, color="gray", linestyle=":")
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set(xlim=(0, 101), xlabel="% of pairs right (dotted: chance)")
    axes.grid(axis="x", alpha=0.4)
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    _save(figure, path)


def draw_gains(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot gains in log-likelihood with their intervals, one row per comparison, one panel per kind of fold."""
    frame = DataFrame(rows)
    panels = frame["held out"].unique()
    figure = Figure(figsize=(4.8 * len(panels) + 1.2, 3.4))
    for axes, kind in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
        shown = frame[frame["held out"] == kind]
        for number, (states, part) in enumerate(shown.groupby("states", sort=False)):
            gains = DataFrame(list(part["ΔLL per word"]))
            ends = [gains["gain"] - gains["low"], gains["high"] - gains["gain"]]
            heights = np.arange(len(part)) + 0.24 * number - 0.12
            axes.errorbar(gains["gain"], heights, xerr=ends, fmt="o", capsize=3, label=f"{states} states")
        axes.axvline(0, color="gray", linestyle=":")
        axes.set_yticks(range(len(part)), part["surprisal"])
        axes.set(title=f"{kind} held out", xlabel="ΔLL, nats per word")
        axes.legend(fontsize=8)
    axes.invert_yaxis()
    _save(figure, path)


def draw_curve(
    title: str, names: Sequence[str], values: Sequence[float], margins: Sequence[float], path: Path
) -> None:
    """Plot values with their margins in order, as points joined by a line."""
    figure = Figure(figsize=(1.6 + 1.2 * len(names), 3))
    axes = figure.subplots()
    axes.errorbar(range(len(names)), values, margins, marker="o", capsize=3, color="#4878a8")
    axes.set_xticks(range(len(names)), names)
    axes.margins(x=0.2)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="y", alpha=0.4)
    _save(figure, path)


def draw_correlations(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot Spearman's rho with its interval, one panel per measure and one line per representation."""
    frame = DataFrame(rows)
    measures = frame["measure"].unique()
    figure = Figure(figsize=(3.6 * len(measures), 1.4 + 0.4 * frame["representation"].nunique()))
    panels = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
    for panel, measure in zip(panels, measures, strict=True):
        own = frame[frame["measure"] == measure]
        sides = [own["rho"] - own["low"], own["high"] - own["rho"]]
        panel.errorbar(own["rho"], own["representation"], xerr=sides, fmt="o", color="#4878a8", capsize=3)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.set(xlim=(-1, 1), title=f"{measure}: Spearman's ρ")
        panel.grid(axis="x", alpha=0.4)
    panels[0].invert_yaxis()
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    with atomic_write(path) as scratch:
        figure.savefig(scratch, dpi=150, format="png")
