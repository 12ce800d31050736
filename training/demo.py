"""Show what ELMo does, in a minute and without a network: `make demo`.

Embeds sentences with elmo-mini, shows that a word's nearest uses share its sense, trains a tagger with and without
ELMo, and plots both. The sentences are in training/sample; the outputs go to the folder demo.
"""

import itertools
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from transformers.utils import logging as transformers_logging

from modeling_elmo import MINI, ElmoEmbedder
from modeling_elmo.files import BAD_INPUT, ElmoError
from modeling_elmo.neighbors import Uses, mark
from modeling_elmo.scoring import load_scorer
from training.evaluate import unit
from training.figures import draw_mix, draw_senses
from training.finetune import MIX_FILE, STOPPED, finetune
from training.readers import read_records
from training.task_data import read_examples

SAMPLE = Path(__file__).parent / "sample"
OUTPUT = Path("demo")
WIDTH = 100

# None of these is in the sample.
QUERIES = {
    "bank": ["He sat on the [bank] of the river and fished .", "She took all her money out of the [bank] ."],
    "present": [
        "Her brother brought her a [present] from Paris .",
        "At the [present] time nobody lives there .",
        "Only three of us were [present] at the wedding .",
    ],
    "read": ["He will [read] the book tomorrow .", "She took the paper and [read] it slowly ."],
    "play": [
        "They put on a [play] by Shakespeare .",
        "The children [play] a game in the yard .",
        "I heard her [play] the flute .",
    ],
}
PICTURED = ("bank", "present", "play")
SHOWN = 3
FREQUENT = 10_000

# Enough epochs for the tagger without ELMo to converge too.
EPOCHS = 60
SEEDS = (1, 2)
TAGGER = """
    --task pos --head_overrides head_dim=64 head_layers=1 head_char_filters=64 head_dropout=0.3 elmo_dropout=0.3
    --learning_rate 0.003 --per_device_train_batch_size 8 --patience 0 --eval_strategy no --save_strategy no
    --load_best_model_at_end false --logging_strategy no --disable_tqdm true
""".split()


class Use(NamedTuple):
    """A word of the sample in its sentence."""

    word: str
    sense: str
    words: list[str]
    position: int


def read_uses() -> list[Use]:
    uses = []
    for _, row in read_records(SAMPLE / "senses.tsv", "tsv"):
        words = row["sentence"].split()
        uses.append(Use(row["word"], row["sense"], words, words.index(row["word"])))
    return uses


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress what others print."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def say(text: str) -> None:
    print(textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="   ", subsequent_indent="   "))


# ------------------------------------------------------------------------------------------------------------ senses


def embed_uses(uses: Sequence[Use], embedder: ElmoEmbedder) -> np.ndarray:
    """Return every layer of every use: (layers, uses, D)."""
    vectors = []
    for use, array in zip(uses, embedder.embed(use.words for use in uses), strict=True):
        vectors.append(array[:, use.position])
    return np.stack(vectors, axis=1)


def static_neighbours(count: int = 6) -> dict[str, list[str]]:
    """Return the nearest frequent words by the softmax's vectors: one for all uses of a word, as in GloVe."""
    model, tokenizer = load_scorer(MINI)
    vectors = unit(model.softmax.weight[:FREQUENT].detach().numpy())  # in order of frequency
    found = {}
    for word in QUERIES:
        place = tokenizer.convert_tokens_to_ids(word)
        order = np.argsort(-(vectors @ vectors[place]))
        others = order[order != place]
        found[word] = tokenizer.convert_ids_to_tokens(others[:count].tolist())
    return found


def same_sense(uses: Sequence[Use], vectors: np.ndarray) -> int:
    """Count the uses that have the sense of the nearest other use of the same word; vectors: (uses, D)."""
    cosines = unit(vectors) @ unit(vectors).T
    words = np.array([use.word for use in uses])
    cosines[(words[:, None] != words) | np.eye(len(uses), dtype=bool)] = -np.inf
    return sum(uses[nearest].sense == use.sense for use, nearest in zip(uses, cosines.argmax(1), strict=True))


def chance(uses: Sequence[Use]) -> float:
    """Return how many uses have the sense of another one of the same word that is drawn at random."""
    expected = 0.0
    for use in uses:
        others = [other for other in uses if other.word == use.word and other is not use]
        expected += np.mean([other.sense == use.sense for other in others])
    return expected


def show_neighbours(uses: Sequence[Use], corpus: Path) -> None:
    with quietly():
        index = Uses(corpus, MINI)
    of_word = static_neighbours()
    for word, queries in QUERIES.items():
        print(f"\n   {word}")
        print(f"     one vector a word: {', '.join(of_word[word])}")
        for query in queries:
            print(f"     {query}")
            for neighbor in index.nearest(query, SHOWN):
                sense = uses[neighbor.number].sense
                print(f"        {neighbor.score:.2f}  {sense:9s} {mark(neighbor.words, neighbor.position)}")


def nearby(use: Use) -> str:
    """Return a few words around a use."""
    start = max(use.position - 2, 0)
    return " ".join(use.words[start : use.position + 3]).removesuffix(" .")


# ------------------------------------------------------------------------------------------------------------ tagger


def train_tagger(placement: str, seed: int, epochs: int, folder: Path) -> dict[str, Any]:
    """Train a tagger on the sample; return its results, of which "mix" has the weights of the layers."""
    model = [] if placement == "none" else ["--model_name_or_path", MINI]
    files = ["--train_file", str(SAMPLE / "tags.train.tsv"), "--validation_file", str(SAMPLE / "tags.test.tsv")]
    run = ["--seed", str(seed), "--num_train_epochs", str(epochs), "--output_dir", str(folder)]
    with quietly():
        results = finetune([*TAGGER, "--elmo_placement", placement, *model, *files, *run])
    if results is None:
        raise KeyboardInterrupt
    mix = folder / MIX_FILE
    return {**results, "mix": json.loads(mix.read_text(encoding="utf-8")) if mix.exists() else {}}


def compare_taggers(epochs: int, seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Train with and without ELMo and print the scores; return the mixes' weights, by place and run."""
    parts = {part: read_examples("pos", SAMPLE / f"tags.{part}.tsv") for part in ("train", "test")}
    known = set(itertools.chain(*parts["train"]["words"]))
    tested = list(itertools.chain(*parts["test"]["words"]))
    new = sum(word not in known for word in tested)
    say(
        f"""Parts of speech, learned from {len(parts["train"])} sentences and tested on {len(parts["test"])} others
        ({len(tested)} words, {new} of them never seen in training). The two taggers differ in one thing: one also
        reads ELMo's vectors. Means of {len(seeds)} runs of {epochs} epochs."""
    )
    weights: dict[str, dict[str, list[float]]] = {}
    for placement, name in (("none", "characters only"), ("both", "with ELMo")):
        started = time.monotonic()
        scores = []
        for number, seed in enumerate(seeds, start=1):
            with TemporaryDirectory() as scratch:
                results = train_tagger(placement, seed, epochs, Path(scratch))
            scores.append(100 * results["eval_accuracy"])
            for place, values in results["mix"].items():
                weights.setdefault(place, {})[f"run {number}"] = values
        each = ", ".join(f"{score:.1f}" for score in scores)
        seconds = time.monotonic() - started
        print(f"     {name:16s} {np.mean(scores):5.1f} % right   (runs: {each}; {seconds:.0f} s)", flush=True)
    return weights


# -------------------------------------------------------------------------------------------------------------- demo


def demo(output: Path = OUTPUT, epochs: int = EPOCHS, seeds: Sequence[int] = SEEDS) -> None:
    """Run all steps; outputs go to the folder `output`."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    output.mkdir(parents=True, exist_ok=True)
    uses = read_uses()
    corpus = output / "sentences.txt"
    corpus.write_text("".join(f"{' '.join(use.words)}\n" for use in uses), encoding="utf-8")
    embedder = ElmoEmbedder.from_pretrained(MINI, layers="all")
    vectors = embed_uses(uses, embedder)
    layers, _, size = vectors.shape
    millions = sum(parameter.numel() for parameter in embedder.model.parameters()) / 1e6

    print("1. Words to vectors")
    say(
        f"""elmo-mini, a small English model that comes with the package ({millions:.1f} M parameters), has read
        {len(uses)} sentences. A word has {layers} vectors of {size} numbers: one of its characters alone, and one of
        each of the {layers - 1} LSTM layers, which read its whole sentence."""
    )
    print("\n2. The nearest neighbours of a word, as in Table 4 of the paper")
    say(
        f"""Where a word has one vector, as in GloVe, it has the same neighbours in any sentence, of all its senses or
        of the most frequent one. elmo-mini has such vectors too, those by which its language models predict words;
        shown are the nearest among {FREQUENT:,} frequent words. By the top layer, the nearest uses depend on the
        sentence. After the cosine stands the sense, by our own label, which the model never saw."""
    )
    show_neighbours(uses, corpus)
    print()
    by_layer = ", ".join(f"{same_sense(uses, vectors[layer])} times by layer {layer}" for layer in range(1, layers))
    say(
        f"""Of all {len(uses)} uses, the nearest other one of the same word has the same sense {by_layer}; by chance it
        would be {chance(uses):.0f}."""
    )
    print("\n3. A tagger, without and with ELMo")
    weights = compare_taggers(epochs, seeds)

    print("\n4. Pictures")
    panels = {}
    for word in PICTURED:
        numbers = [number for number, use in enumerate(uses) if use.word == word]
        senses = [uses[number].sense for number in numbers]
        labels = [nearby(uses[number]) for number in numbers]
        panels[word] = (vectors[-1, numbers], senses, labels)
    draw_senses(panels, output / "senses.png")
    draw_mix(weights, output / "mix_weights.png")
    print(f"   {output / 'senses.png'}: the uses of {', '.join(PICTURED)}, coloured by sense")
    print(f"   {output / 'mix_weights.png'}: how much of each layer the tagger with ELMo takes")

    model = os.path.relpath(MINI)
    print("\nNext, after `source .venv/bin/activate`:")
    print(f'   elmo neighbors "We [play] the drums ." --corpus {corpus}')
    print(f'   elmo neighbors "We [play] the drums ." --corpus {corpus} --any-word --layer 1')
    print(f'   elmo substitutes "He sat on the [bank] of the river ." --model {model}')
    print(f"   elmo embed {corpus} --model {model} --output {output / 'vectors.parquet'}")


def main() -> int:
    try:
        demo()
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STOPPED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
