"""Show what ELMo does, in a minute or two and without a network: `elmo demo`, in a checkout `make demo`.

Embeds sentences with elmo-mini, shows that a word's nearest uses share its sense, trains a tagger with and without
ELMo, plots both, and writes a page to explore the sentences in a browser. The sentences are in training/sample; the
outputs go to the folder demo.
"""

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from pandas import DataFrame, read_csv
from sklearn.neighbors import NearestNeighbors
from transformers.utils import logging as transformers_logging

from modeling_elmo import MINI, ElmoEmbedder
from modeling_elmo.files import read_json
from modeling_elmo.neighbors import Uses, mark
from modeling_elmo.page import write_page
from modeling_elmo.scoring import load_scorer

from .figures import draw_mix, draw_senses
from .finetune import MIX_FILE, STOPPED, finetune
from .task_data import read_examples

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
TAGGER += ["--train_file", f"{SAMPLE}/tags.train.tsv", "--validation_file", f"{SAMPLE}/tags.test.tsv"]
TAGGERS = {
    "characters only": ["--elmo_placement", "none"],
    "with ELMo": ["--elmo_placement", "both", "--model_name_or_path", MINI],
}


def read_uses() -> DataFrame:
    """Return the sample: a word, its sense, the words of its sentence and its position among them per row."""
    uses = read_csv(SAMPLE / "senses.tsv", sep="\t")
    uses["words"] = uses.pop("sentence").str.split()
    uses["position"] = list(map(list.index, uses["words"], uses["word"]))
    return uses


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress what others print."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def say(text: str) -> None:
    print(textwrap.fill(" ".join(text.split()), WIDTH, initial_indent="   ", subsequent_indent="   "))


# ------------------------------------------------------------------------------------------------------------ senses


def embed_uses(uses: DataFrame, embedder: ElmoEmbedder) -> np.ndarray:
    """Return every layer of every use: (layers, uses, D)."""
    arrays = embedder.embed(uses["words"])
    vectors = [array[:, position] for array, position in zip(arrays, uses["position"], strict=True)]
    return np.stack(vectors, axis=1)


def static_neighbours(count: int = 6) -> dict[str, list[str]]:
    """Return the nearest frequent words by the softmax's vectors: one for all uses of a word, as in GloVe."""
    model, tokenizer = load_scorer(MINI)
    vectors = model.softmax.weight[:FREQUENT].detach().numpy()  # in order of frequency
    search = NearestNeighbors(n_neighbors=count + 1, metric="cosine").fit(vectors)
    queries = vectors[tokenizer.convert_tokens_to_ids(list(QUERIES))]
    nearest = search.kneighbors(queries, return_distance=False)[:, 1:]  # the first is the word itself
    words = map(tokenizer.convert_ids_to_tokens, nearest.tolist())
    return dict(zip(QUERIES, words, strict=True))


def same_sense(uses: DataFrame, vectors: np.ndarray) -> int:
    """Count the uses that have the sense of the nearest other use of the same word; vectors: (uses, D)."""
    count = 0
    for places in uses.groupby("word").indices.values():
        search = NearestNeighbors(n_neighbors=1, metric="cosine").fit(vectors[places])
        nearest = search.kneighbors(return_distance=False)[:, 0]  # not the use itself
        senses = uses["sense"].to_numpy()[places]
        count += np.count_nonzero(senses[nearest] == senses)
    return count


def chance(uses: DataFrame) -> float:
    """Return how many uses have the sense of another one of the same word that is drawn at random."""
    words = uses.value_counts("word")
    senses = uses.value_counts(["word", "sense"])
    return (senses * (senses - 1)).div(words - 1, level="word").sum()


def show_neighbours(uses: DataFrame, corpus: Path) -> None:
    with quietly():
        index = Uses(corpus, MINI)
    of_word = static_neighbours()
    for word, queries in QUERIES.items():
        print(f"\n   {word}")
        print(f"     one vector a word: {', '.join(of_word[word])}")
        for query in queries:
            print(f"     {query}")
            for neighbor in index.nearest(query, SHOWN):
                sense = uses["sense"][neighbor.number]
                print(f"        {neighbor.score:.2f}  {sense:9s} {mark(neighbor.words, neighbor.position)}")


def nearby(words: Sequence[str], position: int) -> str:
    """Return a few words around a use."""
    start = max(position - 2, 0)
    return " ".join(words[start : position + 3]).removesuffix(" .")


# ------------------------------------------------------------------------------------------------------------ tagger


def train_tagger(settings: Sequence[str], folder: str) -> tuple[float, dict[str, list[float]]]:
    """Train a tagger on the sample; return its accuracy in per cent, and the weights of the layers at each place."""
    with quietly():
        results = finetune([*TAGGER, *settings, "--output_dir", folder])
    if results is None:
        raise KeyboardInterrupt
    mix = Path(folder, MIX_FILE)
    weights = read_json(mix) if mix.exists() else {}
    return 100 * results["eval_accuracy"], weights


def compare_taggers(epochs: int, seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Train with and without ELMo and print the scores; return the mixes' weights, by place and run."""
    train, test = (read_examples("pos", SAMPLE / f"tags.{part}.tsv") for part in ("train", "test"))
    known = set(chain(*train["words"]))
    tested = list(chain(*test["words"]))
    new = sum(word not in known for word in tested)
    say(
        f"""Parts of speech, learned from {len(train)} sentences and tested on {len(test)} others
        ({len(tested)} words, {new} of them never seen in training). The two taggers differ in one thing: one also
        reads ELMo's vectors. Means of {len(seeds)} runs of {epochs} epochs."""
    )
    weights: dict[str, dict[str, list[float]]] = {"input": {}, "output": {}}
    for name, own in TAGGERS.items():
        started = time.monotonic()
        scores = []
        for seed in seeds:
            with TemporaryDirectory() as folder:
                settings = [*own, "--seed", str(seed), "--num_train_epochs", str(epochs)]
                score, mix = train_tagger(settings, folder)
            scores.append(score)
            for place, values in mix.items():
                weights[place][f"run {len(scores)}"] = values
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
    corpus.write_text("\n".join(uses["words"].str.join(" ")) + "\n", encoding="utf-8")
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

    print("\n4. Pictures and a page")
    panels = {}
    for word in PICTURED:
        own = uses[uses["word"] == word]
        labels = list(map(nearby, own["words"], own["position"]))
        panels[word] = (vectors[-1, own.index], list(own["sense"]), labels)
    draw_senses(panels, output / "senses.png")
    draw_mix(weights, output / "mix_weights.png")
    examples = list(chain(*QUERIES.values()))
    page = write_page(str(SAMPLE / "senses.tsv"), output / "senses.html", MINI, examples=examples)
    print(
        f"""   {output}/senses.png: the uses of {", ".join(PICTURED)}, coloured by sense
   {output}/mix_weights.png: how much of each layer the tagger with ELMo takes
   {output}/senses.html: type a sentence, click a word: its nearest uses, for any browser ({page.size / 1e6:.1f} MB)

Next (in a checkout after `source .venv/bin/activate`):
   elmo neighbors "We [play] the drums ." --corpus {corpus}
   elmo neighbors "We [play] the drums ." --corpus {corpus} --any-word --layer 1
   elmo substitutes "He sat on the [bank] of the river ."
   elmo embed {corpus} --output {output}/vectors.parquet
   elmo page {corpus} --output {output}/my-senses.html --words bank,play

Open {(output / "senses.html").resolve().as_uri()} in a browser."""
    )


def main(arguments: Sequence[str], program: str = "training.demo") -> int:
    argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(list(arguments))
    try:
        demo()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STOPPED
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
