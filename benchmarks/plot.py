"""Draws the newest comparison with AllenNLP as `benchmarks/speed.png`, which the README shows: `make bench`."""

import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from harness import RESULTS, ROOT

OURS, THEIRS = "#2a6f97", "#b0b7bf"


def main() -> None:
    files = sorted(RESULTS.glob("versus-allennlp-*.json"))
    if not files:
        raise SystemExit("no results yet: run benchmarks/versus_allennlp.py first")
    result = json.loads(files[-1].read_text(encoding="utf-8"))
    rows = result["rows"][::-1]
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.55 * len(rows)), layout="constrained")
    for position, row in enumerate(rows):
        axes.barh(
            position + 0.2, row["words/s"], height=0.38, color=OURS, label="this package" if position == 0 else None
        )
        axes.barh(
            position - 0.2,
            row["AllenNLP words/s"],
            height=0.38,
            color=THEIRS,
            label="AllenNLP" if position == 0 else None,
        )
        axes.text(
            row["words/s"] * 1.05,
            position + 0.2,
            f"{row['words/s']:,.0f}  ({row['times as fast']:.1f}×)",
            va="center",
            fontsize=9,
        )
        axes.text(
            row["AllenNLP words/s"] * 1.05, position - 0.2, f"{row['AllenNLP words/s']:,.0f}", va="center", fontsize=9
        )
    axes.set_xscale("log")
    axes.set_xlim(right=max(row["words/s"] for row in rows) * 4)
    axes.set_yticks(range(len(rows)), [row["case"].split(" (")[0] for row in rows])
    axes.set_xlabel(
        f"words per second, {result['machine']['cores']} CPU cores, float32, fresh sentences ({result['date']})"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    path = ROOT / "benchmarks" / "speed.png"
    figure.savefig(path, dpi=130)
    print(f"drawn: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
