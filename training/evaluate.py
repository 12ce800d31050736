"""What a biLM has learned, without training a task model: one command for each of the paper's tables.

    python -m training.evaluate perplexity --model my-elmo heldout.txt other.txt --output_dir results
    python -m training.evaluate senses --model my-elmo --train semcor.jsonl.gz --test senseval2.jsonl.gz --output_dir …
    python -m training.evaluate wic --model my-elmo --train wic/train --test wic/dev --output_dir …
    python -m training.evaluate tags --model my-elmo --train train.conllu --test dev.conllu --output_dir …
    python -m training.evaluate tasks runs/compare/ner runs/compare/sst --output_dir …

perplexity: of each text, a sentence a line, by the forward and the backward language model; every sentence by itself,
and with the states carried on from sentence to sentence. senses: word sense disambiguation by the nearest centroid of
a sense, layer by layer (the paper's Table 5), and by the votes of the nearest uses. wic: whether a word has the same
sense in two sentences (Word in Context), by the cosine of its two vectors. tags: parts of speech by a linear
classifier of each layer (its Table 6). tasks: what folders of training.compare found, as one table of tasks and
places of ELMo (folders of one name are one task), a picture of those that have several parts of the training data,
and the weights that the task models gave to the layers, as a table and a picture (its Table 3 and Figures 1 and 2).
Results are written as JSON and as Markdown.

A line of a sense file is {"tokens": [{"w": word, "lemma": lemma, "senses": [[inventory, sense], …]}, …]}. A folder of
Word in Context has `*.data.txt` and `*.gold.txt`.
"""

import argparse
import functools
import gzip
import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from modeling_elmo import ElmoEmbedder, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.files import BAD_INPUT, ElmoError
from modeling_elmo.scoring import load_scorer
from training.figures import draw_comparison, draw_mix
from training.settings import PLACEMENTS
from training.task_data import read_examples

BATCH = 32
# What both SemCor and Senseval-2 name senses by.
INVENTORY = "WordNet-eng30"
SENSE_PREFIX = "eng30-"
# A cosine with a vector of zeros is 0.
SMALLEST = 1e-12

# Of a row of training.compare.
COMPARED = ("model", "placement", "fraction", "metric", "mean", "standard deviation", "mix")

Rows = list[dict[str, Any]]


def read_lines(path: Path) -> Iterator[str]:
    """Of a text, compressed or not."""
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            yield from file
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ElmoError(f"{path}: cannot be read as text: {error}") from error


# -------------------------------------------------------------------------------------------------------- perplexity


def perplexities(model: ElmoForPreTraining, tokenizer: ElmoTokenizer, path: Path, limit: int | None) -> Rows:
    """Of a text: with every sentence by itself, and with the states carried on in as many lanes as a batch has."""
    sentences = [line.split() for line in islice(read_lines(path), limit) if line.strip()]
    if not sentences:
        raise ElmoError(f"{path}: empty, there is nothing to predict")
    words = [word for sentence in sentences for word in sentence]
    unknown = tokenizer.convert_tokens_to_ids(words).count(tokenizer.unk_token_id) / len(words)
    about = {"text": path.name, "words": len(words), "unknown": unknown}
    # Consecutive sentences are a lane, so that a batch holds the next sentence of each.
    length = math.ceil(len(sentences) / BATCH)
    lanes = [sentences[start : start + length] for start in range(0, len(sentences), length)]
    batches = [[lane[step] for lane in lanes if step < len(lane)] for step in range(length)]
    rows = []
    for carried in (False, True):
        forward = backward = 0.0
        count = 0
        states = None
        for batch in tqdm(batches, desc=path.name, unit=" batches", leave=False, disable=None):
            scores, states = model.score_batch(batch, tokenizer, states if carried else None)
            forward -= sum(score.forward.double().sum().item() for score in scores)
            backward -= sum(score.backward.double().sum().item() for score in scores)
            count += sum(len(score.forward) for score in scores)
        rows.append(
            {
                **about,
                "states": "carried" if carried else "new in each sentence",
                "forward": math.exp(forward / count),
                "backward": math.exp(backward / count),
                "mean": math.exp((forward + backward) / (2 * count)),
            }
        )
    return rows


# ------------------------------------------------------------------------------------------------------------ senses


class Use(NamedTuple):
    """A word with a sense: where its words are in the sentence, and what it may mean."""

    place: slice
    lemma: tuple[str, str]  # and its part of speech, which WordNet's senses are listed by
    senses: list[str]
    is_first: bool  # whether WordNet lists one of the senses first of the lemma's


def read_uses(path: Path) -> Iterator[tuple[list[str], list[Use]]]:
    """The sentences of a sense file; what it joins by underscores are several words."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            tokens = json.loads(line)["tokens"]
            words: list[str] = []
            uses = []
            for token in tokens:
                start = len(words)
                words += token["w"].split("_") if len(token["w"]) > 1 else [token["w"]]
                senses = [
                    sense
                    for inventory, sense in token["senses"]
                    if inventory == INVENTORY and sense.startswith(SENSE_PREFIX)
                ]
                if senses:
                    lemma = (token["lemma"].lower(), senses[0][-1])
                    # Its number in the WordNet that the text was labelled by: SemCor's is 3.0, Senseval-2's 1.7.1.
                    is_first = any("1" in sense.split(";") for _, sense in token["senses"])
                    uses.append(Use(slice(start, len(words)), lemma, senses, is_first))
        except (ValueError, KeyError, TypeError) as error:
            raise ElmoError(f"{path}, line {number}: no sentence with senses ({error!r})") from error
        yield words, uses


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, whose products are cosines."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)


def vectors_of_uses(embedder: ElmoEmbedder, path: Path) -> Iterator[tuple[Use, np.ndarray]]:
    """Each use and its vectors, the layers' and then their average: (layers + 1, D), of length 1."""
    sentences = list(read_uses(path))
    arrays = embedder.embed(words for words, _ in sentences)
    for (_, uses), layers in zip(
        sentences, tqdm(arrays, total=len(sentences), desc=path.name, disable=None), strict=True
    ):
        for use in uses:
            vectors = layers[:, use.place].mean(1)
            vectors = np.concatenate([vectors, vectors.mean(0, keepdims=True)])
            yield use, unit(vectors)


class SeenUses:
    """The uses of a lemma in the training data: their senses, and their vectors (uses, layers + 1, D)."""

    def __init__(self, uses: Sequence[tuple[Use, np.ndarray]]) -> None:
        self.senses = list(dict.fromkeys(sense for use, _ in uses for sense in use.senses))
        self.has_sense = np.array(
            [[sense in use.senses for sense in self.senses] for use, _ in uses], dtype=np.float32
        )
        self.vectors = np.stack([vectors for _, vectors in uses]).astype(np.float32)
        self.centroids = unit(np.einsum("us,uld->sld", self.has_sense, self.vectors))

    def most_frequent(self) -> str:
        return self.senses[self.has_sense.sum(0).argmax()]

    def by_centroid(self, vectors: np.ndarray) -> list[str]:
        """By each layer of a use, the sense whose mean vector is nearest."""
        return [self.senses[best] for best in np.einsum("sld,ld->sl", self.centroids, vectors).argmax(0)]

    def by_neighbors(self, vectors: np.ndarray, count: int) -> list[str]:
        """By each layer of a use, the sense that its nearest uses vote for, each with 1 + its cosine."""
        votes = 1 + np.einsum("uld,ld->ul", self.vectors, vectors)
        found = []
        for of_layer in votes.T:
            nearest = np.argsort(-of_layer, kind="stable")[:count]
            found.append(self.senses[(of_layer[nearest] @ self.has_sense[nearest]).argmax()])
        return found


def senses(
    embedder: ElmoEmbedder, train: Sequence[Path], test: Path, names: Sequence[str], neighbors: int = 20
) -> Rows:
    """Accuracy of the nearest sense and of the sense of the nearest uses, and of the most frequent sense.

    As in the paper, the part of speech is known, and a lemma that the training data lacks has WordNet's first sense.
    """
    uses: dict[tuple[str, str], list[tuple[Use, np.ndarray]]] = defaultdict(list)
    for path in train:
        for use, vectors in vectors_of_uses(embedder, path):
            uses[use.lemma].append((use, vectors.astype(np.float16)))  # some hundred thousand of them
    if not uses:
        raise ElmoError(f"{', '.join(map(str, train))}: no word has a sense of {INVENTORY}")
    seen = functools.cache(lambda lemma: SeenUses(uses[lemma]))
    right = {name: np.zeros(2) for name in ("most frequent sense", *names)}  # by centroid, by neighbours
    known = ambiguous = total = backed_off = 0
    for use, vectors in vectors_of_uses(embedder, test):
        total += 1
        if use.lemma not in uses:
            backed_off += use.is_first
            continue
        known += 1
        options = seen(use.lemma)
        ambiguous += len(options.senses) > 1
        right["most frequent sense"] += options.most_frequent() in use.senses
        choices = options.by_centroid(vectors), options.by_neighbors(vectors, neighbors)
        for name, *chosen in zip(names, *choices, strict=True):
            right[name] += [choice in use.senses for choice in chosen]
    if not total:
        raise ElmoError(f"{test}: no word has a sense of {INVENTORY}")
    about = {"uses": total, "seen in training": known, "with several senses": ambiguous}
    return [
        {
            "representation": name,
            "F1": float(hits[0] + backed_off) / total,
            f"F1 by {neighbors} nearest uses": float(hits[1] + backed_off) / total,
            **about,
        }
        for name, hits in right.items()
    ]


# --------------------------------------------------------------------------------------------------------------- wic


class Pair(NamedTuple):
    """A word in two sentences: which word of each it is, and whether its sense is the same."""

    sentences: tuple[list[str], list[str]]
    places: tuple[int, int]
    is_same: bool


def read_pairs(folder: Path) -> list[Pair]:
    """Of a part of Word in Context: its words are split already."""
    files = [sorted(folder.glob(f"*.{kind}.txt")) for kind in ("data", "gold")]
    if [len(found) for found in files] != [1, 1]:
        raise ElmoError(f"{folder}: expected one *.data.txt and one *.gold.txt")
    (data,), (gold,) = files
    answers = [line.strip() for line in read_lines(gold)]
    pairs = []
    try:
        for line, answer in zip(read_lines(data), answers, strict=True):
            _, _, places, *sentences = line.rstrip("\n").split("\t")
            first, second = (sentence.split() for sentence in sentences)
            one, other = map(int, places.split("-"))
            pairs.append(Pair((first, second), (one, other), {"T": True, "F": False}[answer]))
    except (ValueError, KeyError) as error:
        raise ElmoError(f"{data}, line {len(pairs) + 1}: no pair of sentences ({error!r})") from error
    return pairs


def cosines(embedder: ElmoEmbedder, pairs: Sequence[Pair], name: str) -> np.ndarray:
    """Of the word's two vectors, by each layer and by their average: (layers + 1, pairs)."""
    arrays = embedder.embed(sentence for pair in pairs for sentence in pair.sentences)
    vectors = []
    places = [place for pair in pairs for place in pair.places]
    for place, layers in zip(places, tqdm(arrays, total=len(places), desc=name, disable=None), strict=True):
        word = layers[:, place]
        vectors.append(unit(np.concatenate([word, word.mean(0, keepdims=True)])))
    stacked = np.stack(vectors)  # (2 * pairs, layers + 1, D)
    return (stacked[::2] * stacked[1::2]).sum(-1).T


def best_threshold(values: np.ndarray, is_same: np.ndarray) -> float:
    """The cosine from which on pairs are best taken for the same sense."""
    order = np.argsort(values)
    ordered, right = values[order], is_same[order]
    # With the first k pairs taken for different senses: those among them that are, and the others that are not.
    hits = np.concatenate([[0], np.cumsum(~right)]) + right.sum() - np.concatenate([[0], np.cumsum(right)])
    edges = np.concatenate([[-np.inf], (ordered[1:] + ordered[:-1]) / 2, [np.inf]])
    return float(edges[hits.argmax()])


def wic(embedder: ElmoEmbedder, train: Path, test: Path, names: Sequence[str]) -> Rows:
    """Accuracy of a threshold on the cosine, chosen on the training pairs, for each layer and their average."""
    pairs = [read_pairs(folder) for folder in (train, test)]
    values = [cosines(embedder, part, folder.name) for part, folder in zip(pairs, (train, test), strict=True)]
    answers = [np.array([pair.is_same for pair in part]) for part in pairs]
    rows = []
    for number, name in enumerate(names):
        threshold = best_threshold(values[0][number], answers[0])
        seen, unseen = (
            float(((of_part[number] >= threshold) == right).mean())
            for of_part, right in zip(values, answers, strict=True)
        )
        rows.append({"representation": name, "accuracy": unseen, "on train": seen, "pairs": len(pairs[1])})
    return rows


# -------------------------------------------------------------------------------------------------------------- tags


def tags(embedder: ElmoEmbedder, train: Path, test: Path, names: Sequence[str]) -> Rows:
    """Accuracy of a linear classifier of each layer, and of their average."""
    vectors, labels = {}, {}
    for part, path in (("train", train), ("test", test)):
        rows = read_examples("pos", path)
        layers = np.concatenate(
            list(tqdm(embedder.embed(rows["words"]), total=len(rows), desc=path.name, disable=None)), axis=1
        )
        vectors[part] = np.concatenate([layers, layers.mean(0, keepdims=True)])  # (layers + 1, words, D)
        labels[part] = np.array([tag for row in rows["tags"] for tag in row])
    found = []
    for number, name in enumerate(tqdm(names, desc="Classifiers", leave=False, disable=None)):
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
        classifier.fit(vectors["train"][number], labels["train"])
        accuracy = classifier.score(vectors["test"][number], labels["test"])
        found.append({"representation": name, "accuracy": float(accuracy), "words": len(labels["test"])})
    return found


# ------------------------------------------------------------------------------------------------------------- tasks


def read_comparisons(folders: Sequence[Path]) -> Rows:
    """The rows of several comparisons, each with the name of its folder as its task."""
    rows: Rows = []
    for folder in folders:
        try:
            compared = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
            rows += [{"task": folder.resolve().name, **{name: row[name] for name in COMPARED}} for row in compared]
        except (ValueError, KeyError, TypeError) as error:
            raise ElmoError(f"{folder}: no comparison of training.compare ({error!r})") from error
    if not rows:
        raise ElmoError(f"{', '.join(map(str, folders))}: no run is finished")
    (task, fraction, model), times = Counter((row["task"], row["fraction"], row["model"]) for row in rows).most_common(
        1
    )[0]
    if times > 1:
        raise ElmoError(f"{task}, {model}, {fraction:.0%} of the data: {times} folders of that name have it")
    return sorted(rows, key=lambda row: (row["task"], row["fraction"], PLACEMENTS.index(row["placement"])))


def tasks(compared: Rows) -> Rows:
    """A row a task and part of its training data, and a column a model; the gain is of the best with ELMo."""
    by_placement = sorted(compared, key=lambda row: PLACEMENTS.index(row["placement"]))
    columns = list(dict.fromkeys(row["model"] for row in by_placement))
    found = []
    for (task, fraction), grouped in groupby(compared, key=itemgetter("task", "fraction")):
        rows = list(grouped)
        scores = {row["model"]: {name: row[name] for name in ("mean", "standard deviation")} for row in rows}
        without = [row["mean"] for row in rows if row["placement"] == "none"]
        with_elmo = [row["mean"] for row in rows if row["placement"] != "none"]
        gain = max(with_elmo) - without[0] if without and with_elmo else None
        about = {"task": task, "training data": fraction, "score": rows[0]["metric"]}
        found.append({**about, **{column: scores.get(column) for column in columns}, "gain": gain})
    return found


def draw_scores(task: str, compared: Rows, folder: Path) -> None:
    """The scores of a task against the part of its training data, where there are several (the paper's Figure 1)."""
    if len({row["fraction"] for row in compared}) > 1:
        folder.mkdir(parents=True, exist_ok=True)
        draw_comparison(compared, folder / f"{task}.png")


def mixes(compared: Rows) -> Rows:
    """The layers' shares, for each task, part of its training data, model and place of ELMo."""
    rows = [
        {
            "task": row["task"],
            "training data": row["fraction"],
            "model": row["model"],
            "place": place,
            **dict(zip(names_of_layers(len(shares) - 1), shares, strict=True)),
        }
        for row in compared
        for place, shares in row["mix"].items()
    ]
    if len({len(row) for row in rows}) > 1:
        raise ElmoError("biLMs of different numbers of layers: their mixes are no one table")
    return rows


def draw_mixes(compared: Rows, path: Path) -> None:
    """A panel a place, and a row a task: of its models, that with ELMo at most places and of most data."""
    panels: dict[str, dict[str, list[float]]] = {}
    for task, rows in groupby(compared, key=itemgetter("task")):
        drawn = max(rows, key=lambda row: (len(row["mix"]), row["fraction"]))
        for place, shares in drawn["mix"].items():
            panels.setdefault(place, {})[task] = shares
    draw_mix({place: panels[place] for place in sorted(panels)}, path)


# ----------------------------------------------------------------------------------------------------------- results


def as_markdown(rows: Rows) -> str:
    def cell(name: str, value: Any) -> str:
        if isinstance(value, dict):
            spread = value["standard deviation"]
            return f"{100 * value['mean']:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")
        if not isinstance(value, float):
            return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
        if name == "gain":  # points, not per cent
            return f"{100 * value:+.1f}"
        return f"{value:.2f}" if value > 1 else f"{100 * value:.1f} %"

    lines = [[*rows[0]], ["---"] * len(rows[0]), *([cell(*item) for item in row.items()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(rows: Rows, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("json", json.dumps(rows, indent=1) + "\n"), ("md", as_markdown(rows))):
        scratch = folder / f".{name}.{suffix}.tmp"
        scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, folder / f"{name}.{suffix}")
    print(f"{as_markdown(rows)}\nWrote {name}.json and {name}.md to {folder}")


def names_of_layers(lstm_layers: int) -> list[str]:
    return ["characters", *(f"LSTM layer {number}" for number in range(1, lstm_layers + 1))]


def at_least_1(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="training.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", required=True)
    made = {name: tables.add_parser(name) for name in ("perplexity", "senses", "wic", "tags", "tasks")}
    for name, table in made.items():
        if name != "tasks":
            table.add_argument("--model", required=True, help="a folder of pretraining or conversion")
        table.add_argument("--output_dir", required=True, type=Path)
    made["tasks"].add_argument("comparisons", nargs="+", type=Path, help="folders of training.compare")
    made["perplexity"].add_argument("texts", nargs="+", type=Path, help="tokenised sentences, one a line")
    made["perplexity"].add_argument("--limit", type=at_least_1, help="read so many lines of each text")
    made["senses"].add_argument("--train", required=True, nargs="+", type=Path, help="sense files, .gz or not")
    made["senses"].add_argument("--neighbors", type=at_least_1, default=20, help="nearest uses that vote (default 20)")
    made["tags"].add_argument("--train", required=True, type=Path, help="CoNLL-U, or word and tag columns")
    made["wic"].add_argument("--train", required=True, type=Path, help="the folder of the training pairs")
    for name in ("senses", "wic", "tags"):
        made[name].add_argument("--test", required=True, type=Path, help="of the same kind, to be scored on")
    own = parser.parse_args(list(arguments))
    transformers_logging.set_verbosity_error()
    try:
        if own.table == "perplexity":
            model, tokenizer = load_scorer(own.model)
            rows = [row for text in own.texts for row in perplexities(model, tokenizer, text, own.limit)]
        elif own.table == "tasks":
            compared = read_comparisons(own.comparisons)
            rows = tasks(compared)
            for task, own_rows in groupby(compared, key=itemgetter("task")):
                draw_scores(task, list(own_rows), own.output_dir)
            if mixed := mixes(compared):
                write(mixed, "mixes", own.output_dir)
                draw_mixes(compared, own.output_dir / "mixes.png")
        else:
            embedder = ElmoEmbedder.from_pretrained(own.model, layers="all")
            names = [*names_of_layers(embedder.model.config.num_hidden_layers), "average"]
            if own.table == "senses":
                rows = senses(embedder, own.train, own.test, names, own.neighbors)
            elif own.table == "wic":
                rows = wic(embedder, own.train, own.test, names)
            else:
                rows = tags(embedder, own.train, own.test, names)
        write(rows, own.table, own.output_dir)
    except (ElmoError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
