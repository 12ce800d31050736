"""Measure what a biLM has learned, without training a task model: one command for each of the paper's tables.

    python -m training.evaluate perplexity --model my-elmo heldout.txt other.txt --output_dir results
    python -m training.evaluate senses --model my-elmo --train semcor.jsonl.gz --test senseval2.jsonl.gz --output_dir …
    python -m training.evaluate wic --model my-elmo --train wic/train --test wic/dev --output_dir …
    python -m training.evaluate tags --model my-elmo --train train.conllu --test dev.conllu --output_dir …
    python -m training.evaluate tasks runs/compare/ner runs/compare/sst --output_dir …

perplexity: of texts with one sentence per line, by the forward and the backward language model; every sentence by
itself, and with the states carried from sentence to sentence. senses: word sense disambiguation by the nearest
centroid of a sense, layer by layer (the paper's Table 5), and by the votes of the nearest uses. wic: whether a word
has the same sense in two sentences (Word in Context), by the cosine of its two vectors. tags: parts of speech by a
linear classifier of each layer (its Table 6). tasks: the results of folders of training.compare, as one table of
tasks and places of ELMo (folders of one name are one task), a plot of those that have several parts of the training
data, and the weights of the layers in the task models, as a table and a plot (its Table 3 and Figures 1 and 2).
Results are written as JSON and as Markdown.

A line of a sense file is {"tokens": [{"w": word, "lemma": lemma, "senses": [[inventory, sense], …]}, …]}. A folder of
Word in Context has `*.data.txt` and `*.gold.txt`.
"""

import argparse
import functools
import gzip
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice
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
from modeling_elmo.files import BAD_INPUT, ElmoError, write_text
from modeling_elmo.scoring import load_scorer
from training.figures import draw_comparison, draw_mix
from training.settings import PLACEMENTS
from training.task_data import read_examples

BATCH = 32
# The inventory of senses that both SemCor and Senseval-2 have.
INVENTORY = "WordNet-eng30"
SENSE_PREFIX = "eng30-"
# A cosine with a vector of zeros is 0.
SMALLEST = 1e-12

# The columns of training.compare that are read.
COMPARED = ("model", "placement", "fraction", "metric", "mean", "standard deviation", "mix")

Rows = list[dict[str, Any]]


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text, compressed or not."""
    open_text = gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            yield from file
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
        raise ElmoError(f"{path}: cannot be read as text: {error}") from error


# -------------------------------------------------------------------------------------------------------- perplexity


def perplexities(model: ElmoForPreTraining, tokenizer: ElmoTokenizer, path: Path, limit: int | None) -> Rows:
    """Compute the perplexities of a text: every sentence by itself, and with carried states."""
    sentences = [line.split() for line in islice(read_lines(path), limit) if line.strip()]
    if not sentences:
        raise ElmoError(f"{path}: empty, there is nothing to predict")
    words = list(chain(*sentences))
    unknown = tokenizer.convert_tokens_to_ids(words).count(tokenizer.unk_token_id) / len(words)
    about = {"text": path.name, "words": len(words), "unknown": unknown}
    rows = []
    for carried in (False, True):
        forward = backward = 0.0
        count = 0
        states = None
        for batch in tqdm(lane_batches(sentences), desc=path.name, unit=" batches", leave=False, disable=None):
            scores, new_states = model.score_batch(batch, tokenizer, states)
            if carried:
                states = new_states
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


def lane_batches(sentences: list[list[str]]) -> list[list[list[str]]]:
    """Split a text into lanes of consecutive sentences; a batch holds the next sentence of each."""
    length = math.ceil(len(sentences) / BATCH)
    return [sentences[step::length] for step in range(length)]


# ------------------------------------------------------------------------------------------------------------ senses


class Use(NamedTuple):
    """A word with a sense: where it is in the sentence, and what it means."""

    place: slice
    lemma: tuple[str, str]  # and its part of speech, which WordNet's senses are listed by
    senses: list[str]
    is_first: bool  # whether WordNet lists one of the senses first of the lemma's


def read_uses(path: Path) -> Iterator[tuple[list[str], list[Use]]]:
    """Yield the sentences of a sense file; what it joins by underscores are several words."""
    for number, line in enumerate(read_lines(path), start=1):
        words: list[str] = []
        uses = []
        try:
            for token in json.loads(line)["tokens"]:
                start = len(words)
                words += token["w"].split("_") if len(token["w"]) > 1 else [token["w"]]
                use = parse_use(token, slice(start, len(words)))
                if use is not None:
                    uses.append(use)
        except (ValueError, KeyError, TypeError) as error:
            raise ElmoError(f"{path}, line {number}: not a sentence with senses ({error!r})") from error
        yield words, uses


def parse_use(token: dict[str, Any], place: slice) -> Use | None:
    """Return a token of a sense file as a use, or None if it has no sense."""
    senses = []
    for inventory, sense in token["senses"]:
        if inventory == INVENTORY and sense.startswith(SENSE_PREFIX):
            senses.append(sense)
    if not senses:
        return None
    # Its number in the WordNet that the text was labelled by: SemCor's is 3.0, Senseval-2's 1.7.1.
    is_first = any("1" in sense.split(";") for _, sense in token["senses"])
    return Use(place, (token["lemma"].lower(), senses[0][-1]), senses, is_first)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1, so that their products are cosines."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)


def embed_uses(embedder: ElmoEmbedder, path: Path) -> Iterator[tuple[Use, np.ndarray]]:
    """Yield each use and its vectors, the layers' and then their average: (layers + 1, D), of length 1."""
    sentences = list(read_uses(path))
    arrays = tqdm(embedder.embed(words for words, _ in sentences), total=len(sentences), desc=path.name, disable=None)
    for (_, uses), layers in zip(sentences, arrays, strict=True):
        for use in uses:
            vectors = layers[:, use.place].mean(1)
            yield use, unit(np.concatenate([vectors, vectors.mean(0, keepdims=True)]))


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
        """Return, for each layer of a use, the sense whose mean vector is nearest."""
        cosines = np.einsum("sld,ld->sl", self.centroids, vectors)
        return [self.senses[best] for best in cosines.argmax(0)]

    def by_neighbors(self, vectors: np.ndarray, count: int) -> list[str]:
        """Return, for each layer of a use, the sense that its nearest uses vote for, each with 1 + its cosine."""
        weights = 1 + np.einsum("uld,ld->ul", self.vectors, vectors)
        chosen = []
        for layer in weights.T:
            nearest = np.argsort(-layer, kind="stable")[:count]
            votes = layer[nearest] @ self.has_sense[nearest]
            chosen.append(self.senses[votes.argmax()])
        return chosen


def senses(
    embedder: ElmoEmbedder, train: Sequence[Path], test: Path, names: Sequence[str], neighbors: int = 20
) -> Rows:
    """Compute the accuracy of the nearest sense, of the sense of the nearest uses, and of the most frequent sense.

    As in the paper, the part of speech is known, and a lemma that the training data lacks has WordNet's first sense.
    """
    uses: dict[tuple[str, str], list[tuple[Use, np.ndarray]]] = defaultdict(list)
    for path in train:
        for use, vectors in embed_uses(embedder, path):
            uses[use.lemma].append((use, vectors.astype(np.float16)))  # some hundred thousand of them
    if not uses:
        raise ElmoError(f"{', '.join(map(str, train))}: no word has a sense of {INVENTORY}")
    seen = functools.cache(lambda lemma: SeenUses(uses[lemma]))
    right = {name: np.zeros(2) for name in ("most frequent sense", *names)}  # by centroid, by neighbours
    known = ambiguous = total = backed_off = 0
    for use, vectors in embed_uses(embedder, test):
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
    """Compute the accuracy of a linear classifier of each layer, and of their average."""
    vectors, labels = {}, {}
    for part, path in (("train", train), ("test", test)):
        rows = read_examples("pos", path)
        arrays = tqdm(embedder.embed(rows["words"]), total=len(rows), desc=path.name, disable=None)
        layers = np.concatenate(list(arrays), axis=1)
        vectors[part] = np.concatenate([layers, layers.mean(0, keepdims=True)])  # (layers + 1, words, D)
        labels[part] = np.array(list(chain(*rows["tags"])))
    results = []
    for number, name in enumerate(tqdm(names, desc="Classifiers", leave=False, disable=None)):
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
        classifier.fit(vectors["train"][number], labels["train"])
        accuracy = classifier.score(vectors["test"][number], labels["test"])
        results.append({"representation": name, "accuracy": float(accuracy), "words": len(labels["test"])})
    return results


# ------------------------------------------------------------------------------------------------------------- tasks


def read_comparisons(folders: Sequence[Path]) -> Rows:
    """Read the rows of several comparisons, each with the name of its folder as its task."""
    rows: Rows = []
    for folder in folders:
        try:
            for row in json.loads((folder / "comparison.json").read_text(encoding="utf-8")):
                rows.append({"task": folder.resolve().name, **{name: row[name] for name in COMPARED}})
        except (ValueError, KeyError, TypeError) as error:
            raise ElmoError(f"{folder}: not a comparison of training.compare ({error!r})") from error
    if not rows:
        raise ElmoError(f"{', '.join(map(str, folders))}: no run is finished")
    models = Counter((row["task"], row["fraction"], row["model"]) for row in rows)
    (task, fraction, model), times = models.most_common(1)[0]
    if times > 1:
        raise ElmoError(f"{task}, {model}, {fraction:.0%} of the data: {times} folders of that name have it")
    return sorted(rows, key=lambda row: (row["task"], row["fraction"], PLACEMENTS.index(row["placement"])))


def tasks(compared: Rows) -> Rows:
    """Return one row per task and part of its training data, with one column per model and the best gain by ELMo."""
    by_placement = sorted(compared, key=lambda row: PLACEMENTS.index(row["placement"]))
    columns = list(dict.fromkeys(row["model"] for row in by_placement))
    table = []
    for (task, fraction), grouped in groupby(compared, key=itemgetter("task", "fraction")):
        rows = list(grouped)
        entry: dict[str, Any] = {"task": task, "training data": fraction, "score": rows[0]["metric"]}
        entry |= dict.fromkeys(columns)
        for row in rows:
            entry[row["model"]] = {"mean": row["mean"], "standard deviation": row["standard deviation"]}
        without = [row["mean"] for row in rows if row["placement"] == "none"]
        with_elmo = [row["mean"] for row in rows if row["placement"] != "none"]
        entry["gain"] = max(with_elmo) - without[0] if without and with_elmo else None
        table.append(entry)
    return table


def draw_scores(task: str, compared: Rows, folder: Path) -> None:
    """Plot the scores of a task against the part of its training data, where there are several (Figure 1)."""
    if len({row["fraction"] for row in compared}) > 1:
        folder.mkdir(parents=True, exist_ok=True)
        draw_comparison(compared, folder / f"{task}.png")


def mixes(compared: Rows) -> Rows:
    """Return the layers' shares for each task, part of its training data, model and place of ELMo."""
    rows = []
    for row in compared:
        for place, shares in row["mix"].items():
            layers = dict(zip(layer_names(len(shares) - 1), shares, strict=True))
            about = {"task": row["task"], "training data": row["fraction"], "model": row["model"], "place": place}
            rows.append({**about, **layers})
    if len({len(row) for row in rows}) > 1:
        raise ElmoError("biLMs of different numbers of layers: their mixes do not fit into one table")
    return rows


def draw_mixes(compared: Rows, path: Path) -> None:
    """Plot one panel per place and one row per task: its model with ELMo at most places and of most data."""
    panels: dict[str, dict[str, list[float]]] = {}
    for task, rows in groupby(compared, key=itemgetter("task")):
        drawn = max(rows, key=lambda row: (len(row["mix"]), row["fraction"]))
        for place, shares in drawn["mix"].items():
            panels.setdefault(place, {})[task] = shares
    draw_mix({place: panels[place] for place in sorted(panels)}, path)


# ----------------------------------------------------------------------------------------------------------- results


def as_markdown(rows: Rows) -> str:
    """Return rows with the same columns as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    for row in rows:
        lines.append([format_cell(name, value) for name, value in row.items()])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def format_cell(name: str, value: Any) -> str:
    """Format a value of a column; numbers up to 1 are percentages."""
    if value is None:
        return ""
    if isinstance(value, dict):
        deviation = value["standard deviation"]
        spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
        return f"{100 * value['mean']:.1f}{spread}"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if name == "gain":  # points, not per cent
        return f"{100 * value:+.1f}"
    return f"{value:.2f}" if value > 1 else f"{100 * value:.1f} %"


def write(rows: Rows, name: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{name}.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / f"{name}.md", as_markdown(rows))
    print(f"{as_markdown(rows)}\nWrote {name}.json and {name}.md to {folder}")


def layer_names(lstm_layers: int) -> list[str]:
    return ["characters", *(f"LSTM layer {number}" for number in range(1, lstm_layers + 1))]


def at_least_1(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="training.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", required=True)
    parsers = {name: tables.add_parser(name) for name in ("perplexity", "senses", "wic", "tags", "tasks")}
    for name, table in parsers.items():
        if name != "tasks":
            table.add_argument("--model", required=True, help="a folder of pretraining or conversion")
        table.add_argument("--output_dir", required=True, type=Path)
    parsers["tasks"].add_argument("comparisons", nargs="+", type=Path, help="folders of training.compare")
    parsers["perplexity"].add_argument("texts", nargs="+", type=Path, help="tokenized sentences, one per line")
    parsers["perplexity"].add_argument("--limit", type=at_least_1, help="lines to read of each text")
    parsers["senses"].add_argument("--train", required=True, nargs="+", type=Path, help="sense files, .gz or not")
    parsers["senses"].add_argument("--neighbors", type=at_least_1, default=20, help="uses that vote (default 20)")
    parsers["tags"].add_argument("--train", required=True, type=Path, help="CoNLL-U, or word and tag columns")
    parsers["wic"].add_argument("--train", required=True, type=Path, help="the folder of the training pairs")
    for name in ("senses", "wic", "tags"):
        parsers[name].add_argument("--test", required=True, type=Path, help="a file of the same kind to score on")
    own = parser.parse_args(list(arguments))
    transformers_logging.set_verbosity_error()
    try:
        write(make_rows(own), own.table, own.output_dir)
    except (ElmoError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def make_rows(own: argparse.Namespace) -> Rows:
    """Compute the rows of the table that the arguments ask for."""
    if own.table == "perplexity":
        model, tokenizer = load_scorer(own.model)
        return list(chain(*(perplexities(model, tokenizer, text, own.limit) for text in own.texts)))
    if own.table == "tasks":
        compared = read_comparisons(own.comparisons)
        for task, rows in groupby(compared, key=itemgetter("task")):
            draw_scores(task, list(rows), own.output_dir)
        mixed = mixes(compared)
        if mixed:
            write(mixed, "mixes", own.output_dir)
            draw_mixes(compared, own.output_dir / "mixes.png")
        return tasks(compared)
    embedder = ElmoEmbedder.from_pretrained(own.model, layers="all")
    names = [*layer_names(embedder.model.config.num_hidden_layers), "average"]
    if own.table == "senses":
        return senses(embedder, own.train, own.test, names, own.neighbors)
    if own.table == "wic":
        return wic(embedder, own.train, own.test, names)
    return tags(embedder, own.train, own.test, names)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
