"""Does a training step cost more with a larger vocabulary?

    python benchmarks/vocabulary.py [--recipe mini] [--steps 40]

`training.pretrain` with the same text, window, lanes and negatives, and 50,000 or 800,000 words to predict, in
turn.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import ROOT, print_table, read_sentences, save


def words_per_second(recipe: str, text: Path, vocabulary: Path, steps: int, folder: Path) -> float:
    command = [
        sys.executable,
        "-m",
        "training.pretrain",
        recipe,
        "--train_file",
        text,
        "--vocab_file",
        vocabulary,
    ]
    command += ["--max_steps", steps, "--save_steps", 0, "--save_softmax", "false", "--output_dir", folder]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))["train_words_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mini")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs=2, default=[50_000, 800_000])
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    sentences = read_sentences(arguments.sentences, shortest=1, longest=1000)
    known = sorted({word for sentence in sentences for word in sentence})
    speeds: dict[int, list[float]] = {size: [] for size in arguments.sizes}
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch, "text.txt")
        text.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
        for size in arguments.sizes:
            words = [*known, *(f"_{number}" for number in range(size))][: size - 4]
            Path(scratch, f"{size}.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        for repetition in range(arguments.repetitions):
            for size in arguments.sizes:
                folder = Path(scratch, f"run-{size}-{repetition}")
                vocabulary = Path(scratch, f"{size}.txt")
                speeds[size].append(words_per_second(arguments.recipe, text, vocabulary, arguments.steps, folder))
    small, large = (statistics.median(speeds[size]) for size in arguments.sizes)
    ratios = [after / before for before, after in zip(*speeds.values(), strict=True)]
    rows = [
        {
            "recipe": arguments.recipe,
            f"words/s, {arguments.sizes[0]:,} words": small,
            f"words/s, {arguments.sizes[1]:,} words": large,
            "ratio": statistics.median(ratios),
            "from": min(ratios),
            "to": max(ratios),
        }
    ]
    print_table(rows)
    save("vocabulary", rows)


if __name__ == "__main__":
    main()
