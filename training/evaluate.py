"""Measure what a biLM has learned, without training a task model: one command for each of the paper's tables.

    python -m training.evaluate perplexity --model my-elmo heldout.txt other.txt --output_dir results
    python -m training.evaluate senses --model my-elmo --train semcor.jsonl.gz --test senseval2.jsonl.gz --output_dir …
    python -m training.evaluate wic --model my-elmo --train wic/train --test wic/dev --output_dir …
    python -m training.evaluate tags --model my-elmo --train train.conllu --test dev.conllu --output_dir …
    python -m training.evaluate blimp --model my-elmo blimp/*.jsonl --output_dir …
    python -m training.evaluate reading --model my-elmo natural_stories.tsv --output_dir …
    python -m training.evaluate change uses.tsv.gz --truth graded.tsv --model my-elmo --output_dir …
    python -m training.evaluate tasks runs/compare/ner runs/compare/sst --output_dir …

perplexity: of texts with one sentence per line, by the forward and the backward language model; every sentence by
itself, and with the states carried from sentence to sentence. senses: word sense disambiguation by the nearest
centroid of a sense, layer by layer (the paper's Table 5), and by the votes of the nearest uses. wic: whether a word
has the same sense in two sentences (Word in Context), by the cosine of its two vectors. tags: parts of speech by a
linear classifier of each layer (its Table 6). blimp: how often the acceptable one of two sentences is the more
probable. reading: how much surprisal adds to words' length and log frequency in a regression of log reading times, by
the log-likelihood of held-out words (docs/surprisal.md). change: whether the words of a table of dated uses that
changed most by APD and PRT are those that people judged so, layer by layer (Spearman's rho; docs/change.md). tasks:
the results of folders of training.compare, as one table of tasks and places of ELMo (folders of one name are one
task), a plot of those that have several parts of the training data, and the weights of the layers in the task models,
as a table and a plot (its Table 3 and Figures 1 and 2).
Results are written as JSON and as Markdown.

A line of a sense file is {"tokens": [{"w": word, "lemma": lemma, "senses": [[inventory, sense], …]}, …]}. A folder of
Word in Context has `*.data.txt` and `*.gold.txt`.
"""

import argparse
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from modeling_elmo import ElmoEmbedder, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.corpus import Corpus, TextLines, open_corpus, warn_about_splitting, warn_about_text
from modeling_elmo.files import BAD_INPUT, INTERRUPTED, ElmoError, one_line, progress_options, read_json, write_text
from modeling_elmo.loading import MINI_NAME
from modeling_elmo.scoring import load_scorer, unknown_words

from . import psycholinguistics
from .change import change
from .figures import draw_comparison, draw_correlations, draw_mix
from .readers import check_mix, is_finite, located
from .settings import PLACEMENTS, described
from .task_data import read_examples

BATCH = 32
# The inventory of senses that both SemCor and Senseval-2 have.
INVENTORY = "WordNet-eng30"
SENSE_PREFIX = "eng30-"
# A line of Word in Context: word, part of speech, the word's places, two sentences.
PAIR = re.compile(r"[^\t]*\t[^\t]*\t(\d{1,9})-(\d{1,9})\t([^\t]*)\t([^\t]*)")
# A cosine with a vector of zeros is 0.
SMALLEST = 1e-12

# What the rows of a comparison must have.
COLUMNS = ("model", "placement", "fraction", "metric", "mean", "standard deviation", "mix")

Rows = list[dict[str, Any]]


def read_lines(path: Path) -> Corpus:
    """Return the lines of a file of any extension, compressed or not."""
    return Corpus(TextLines([str(path)]), name=str(path))


def embed_layers(embedder: ElmoEmbedder, sentences: Sequence[list[str]], name: str) -> Iterator[np.ndarray]:
    """Yield each sentence's layers, and their average as one more: (layers + 1, words, D)."""
    for layers in tqdm(embedder.embed(sentences), total=len(sentences), desc=name, disable=None):
        yield np.concatenate([layers, layers.mean(0, keepdims=True)])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1, so that their products are cosines."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)


# -------------------------------------------------------------------------------------------------------- perplexity


def perplexities(
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    path: Path,
    limit: int | None = None,
    tokenized: bool | None = None,
    column: str | None = None,
) -> Rows:
    """Compute the perplexities of a text: every sentence by itself, and with carried states."""
    corpus = open_corpus(str(path), streaming=True, tokenized=tokenized, column=column)
    warn_about_text(corpus, tokenizer)
    sentences = []
    for line in islice(corpus, limit):
        sentences += corpus.sentences(line, tokenizer)
    if not sentences:
        raise ElmoError(f"{path}: there are no sentences")
    words = list(chain(*sentences))
    unknown = len(unknown_words(words, tokenizer)) / len(words)
    # Lanes of consecutive sentences; a batch holds the next sentence of each.
    steps = math.ceil(len(sentences) / BATCH)
    rows = []
    for kind in ("new in each sentence", "carried"):
        totals = np.zeros(3)
        states = None
        for step in tqdm(range(steps), desc=path.name, unit=" batches", leave=False, **progress_options()):
            scores, new_states = model.score_batch(sentences[step::steps], tokenizer, states)
            if kind == "carried":
                states = new_states
            for score in scores:
                totals += [score.forward.double().sum(), score.backward.double().sum(), len(score.forward)]
        forward, backward, count = totals.tolist()
        rows.append(
            {
                "text": path.name,
                "words": len(words),
                "unknown": unknown,
                "states": kind,
                "forward": math.exp(-forward / count),
                "backward": math.exp(-backward / count),
                "mean": math.exp(-(forward + backward) / (2 * count)),
            }
        )
    return rows


# ------------------------------------------------------------------------------------------------------------ senses


class Use(NamedTuple):
    """A word with a sense: where it is in the sentence, and what it means."""

    place: slice
    lemma: tuple[str, str]  # and its part of speech, which WordNet's senses are listed by
    senses: list[str]
    is_first: bool  # whether WordNet lists one of the senses first of the lemma's


# Uses of a lemma, each with its vectors of length 1: (layers + 1, D).
Embedded = list[tuple[Use, np.ndarray]]


def senses_of(token: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the senses of a word of a sense file in `INVENTORY`, and whether WordNet lists one of them first."""
    senses = []
    is_first = False
    for inventory, sense in token["senses"]:
        # Its number in the WordNet that the text was labelled by: SemCor's is 3.0, Senseval-2's 1.7.1.
        is_first |= "1" in sense.split(";")
        if inventory == INVENTORY and sense.startswith(SENSE_PREFIX):
            senses.append(sense)
    return senses, is_first


def count_left_out(path: Path) -> int:
    """Count the words of a sense file that have senses, but none in `INVENTORY`: nothing can find them."""
    count = 0
    for line in read_lines(path):
        for token in json.loads(line)["tokens"]:
            count += bool(token["senses"]) and not senses_of(token)[0]
    return count


def read_uses(path: Path) -> Iterator[tuple[list[str], list[Use]]]:
    """Yield the sentences of a sense file; what it joins by underscores are several words."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line:
            continue
        words: list[str] = []
        uses = []
        try:
            for token in json.loads(line)["tokens"]:
                start = len(words)
                words += re.split(r"(?<=.)_", token["w"])
                senses, is_first = senses_of(token)
                if senses:
                    lemma = (token["lemma"].lower(), senses[0][-1])
                    uses.append(Use(slice(start, len(words)), lemma, senses, is_first))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ElmoError(f"{path}, line {number}: not a sentence with senses ({error!r})") from error
        yield words, uses


def embed_uses(embedder: ElmoEmbedder, paths: Sequence[Path], dtype: type) -> dict[tuple[str, str], Embedded]:
    """Return the uses of each lemma in sense files."""
    by_lemma = defaultdict(list)
    for path in paths:
        sentences = list(read_uses(path))
        arrays = embed_layers(embedder, [words for words, _ in sentences], path.name)
        for (_, uses), layers in zip(sentences, arrays, strict=True):
            for use in uses:
                vectors = unit(layers[:, use.place].mean(1))
                by_lemma[use.lemma].append((use, vectors.astype(dtype)))
    if not by_lemma:
        raise ElmoError(f"{', '.join(map(str, paths))}: no word has a sense of {INVENTORY}")
    return by_lemma


def count_right(seen: Embedded, uses: Embedded, neighbors: int) -> tuple[int, np.ndarray]:
    """Return how many senses a lemma has in training, and how often the right one is chosen for its uses in the test.

    The first row is the most frequent sense, the others are the layers and their average. The first column is the
    sense of the nearest centroid, the second that of the nearest uses, which vote with 1 + their cosine.
    """
    senses = list(dict.fromkeys(chain(*(use.senses for use, _ in seen))))
    has_sense = np.array([np.isin(senses, use.senses) for use, _ in seen], np.float32)  # (seen, senses)
    known = np.array([vectors for _, vectors in seen], np.float32)  # (seen, layers + 1, D)
    centroids = unit(np.einsum("us,uld->sld", has_sense, known))
    most_frequent = has_sense.sum(0).argmax()
    right = []
    for use, vectors in uses:
        chosen = [[most_frequent, most_frequent]]
        nearest_centroids = np.einsum("sld,ld->sl", centroids, vectors).argmax(0)
        weights = 1 + np.einsum("uld,ld->ul", known, vectors)
        for centroid, layer in zip(nearest_centroids, weights.T, strict=True):
            nearest = np.argsort(-layer, kind="stable")[:neighbors]
            votes = layer[nearest] @ has_sense[nearest]
            chosen.append([centroid, votes.argmax()])
        right.append(np.isin(senses, use.senses)[chosen])
    return len(senses), np.sum(right, axis=0)


def senses(
    embedder: ElmoEmbedder, train: Sequence[Path], test: Path, names: Sequence[str], neighbors: int = 20
) -> Rows:
    """Compute the accuracy of the nearest sense, of the sense of the nearest uses, and of the most frequent sense.

    As in the paper, the part of speech is known, and a lemma that the training data lacks has WordNet's first sense.
    Words whose senses are not in `INVENTORY` are left out.
    """
    seen = embed_uses(embedder, train, np.float16)  # some hundred thousand uses
    right = np.zeros((1 + len(names), 2))
    total = known = ambiguous = 0
    for lemma, uses in embed_uses(embedder, [test], np.float32).items():
        total += len(uses)
        if lemma not in seen:
            right += sum(use.is_first for use, _ in uses)
            continue
        known += len(uses)
        options, counts = count_right(seen[lemma], uses, neighbors)
        right += counts
        if options > 1:
            ambiguous += len(uses)
    about = {
        "uses": total,
        "left out": count_left_out(test),
        "seen in training": known,
        "with several senses": ambiguous,
    }
    rows = []
    for name, (by_centroid, by_votes) in zip(("most frequent sense", *names), (right / total).tolist(), strict=True):
        scores = {"F1": by_centroid, f"F1 by {neighbors} nearest uses": by_votes}
        rows.append({"representation": name, **scores, **about})
    return rows


# --------------------------------------------------------------------------------------------------------------- wic


def read_pairs(folder: Path) -> tuple[list[bool], list[list[str]], list[int]]:
    """Return whether the sense is the same in each pair, and the words and the word's place of its two sentences."""
    data = next(folder.glob("*.data.txt"), folder / "*.data.txt")  # the latter for the error
    gold = data.with_name(data.name.replace(".data.", ".gold."))
    is_same, sentences, places = [], [], []
    for number, (line, answer) in enumerate(zip_longest(read_lines(data), read_lines(gold)), start=1):
        with located(f"{data}, line {number}"):
            if line is None or answer is None:
                raise ValueError(f"{data.name} and {gold.name} have different numbers of lines")
            match = PAIR.fullmatch(line)
            if answer.strip() not in ("F", "T"):
                raise ValueError(f"{gold.name} has {answer[:40]!r} where T or F is expected")
            if match is None:
                raise ValueError("expected a word, its part of speech, places such as 2-5, and two sentences")
            first, second, *pair = match.groups()
            for place, sentence in zip((int(first), int(second)), pair, strict=True):
                words = sentence.split()
                if place >= len(words):
                    raise ValueError(f"there is no word {place} in a sentence of {len(words)}")
                sentences.append(words)
                places.append(place)
            is_same.append(answer.strip() == "T")
    if not is_same:
        raise ElmoError(f"{data}: there are no pairs")
    return is_same, sentences, places


def compare_pairs(embedder: ElmoEmbedder, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines of the two vectors of each pair (layers + 1, pairs), and 1 where the sense is the same."""
    is_same, sentences, places = read_pairs(folder)
    arrays = embed_layers(embedder, sentences, folder.name)
    words = [layers[:, place] for layers, place in zip(arrays, places, strict=True)]
    vectors = unit(np.array(words))  # (2 * pairs, layers + 1, D)
    return (vectors[::2] * vectors[1::2]).sum(-1).T, np.array(is_same, dtype=int)


def best_threshold(values: np.ndarray, is_same: np.ndarray) -> float:
    """Return the cosine from which on pairs are best taken for the same sense."""
    ordered = np.sort(values)
    thresholds = [-np.inf, *(ordered[1:] + ordered[:-1]) / 2, np.inf]
    return max(thresholds, key=lambda threshold: np.count_nonzero((values >= threshold) == is_same))


def wic(embedder: ElmoEmbedder, train: Path, test: Path, names: Sequence[str]) -> Rows:
    """Compute the accuracy of a threshold on the cosine, chosen on the training pairs, by each layer."""
    train_cosines, train_answers = compare_pairs(embedder, train)
    test_cosines, test_answers = compare_pairs(embedder, test)
    rows = []
    for name, seen, unseen in zip(names, train_cosines, test_cosines, strict=True):
        threshold = best_threshold(seen, train_answers)
        accuracy = accuracy_score(test_answers, unseen >= threshold)
        on_train = accuracy_score(train_answers, seen >= threshold)
        rows.append({"representation": name, "accuracy": accuracy, "on train": on_train, "pairs": len(test_answers)})
    return rows


# -------------------------------------------------------------------------------------------------------------- tags


def tags(embedder: ElmoEmbedder, train: Path, test: Path, names: Sequence[str]) -> Rows:
    """Compute the accuracy of a linear classifier of each layer, and of their average."""
    parts = []
    for path in (train, test):
        rows = read_examples("pos", path)
        layers = np.concatenate(list(embed_layers(embedder, rows["words"], path.name)), axis=1)
        parts.append((layers, list(chain(*rows["tags"]))))
    (train_layers, train_tags), (test_layers, test_tags) = parts
    results = []
    for name, seen, unseen in zip(names, train_layers, test_layers, strict=True):
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
        accuracy = classifier.fit(seen, train_tags).score(unseen, test_tags)
        results.append({"representation": name, "accuracy": accuracy, "words": len(test_tags)})
    return results


# ------------------------------------------------------------------------------------------------------------- tasks


def read_comparisons(folders: Sequence[Path]) -> Rows:
    """Read the rows of several comparisons, each with the name of its folder as its task."""
    rows = []
    for folder in folders:
        task = folder.resolve().name
        rows += [{**row, "task": task} for row in read_comparison(folder / "comparison.json")]
    depths = {len(shares) for row in rows for shares in row["mix"].values()}
    if len(depths) > 1:
        counts = " and ".join(map(str, sorted(depths)))
        raise ElmoError(f"the mixes are of models with {counts} layers, which have no table together")
    return sorted(rows, key=lambda row: (row["task"], row["fraction"], PLACEMENTS.index(row["placement"])))


def read_comparison(file: Path) -> Rows:
    """Read the rows of a comparison. Refuse a file that has none, or rows that training.compare did not write."""
    rows = read_json(file)
    if not isinstance(rows, list) or not rows:
        raise ElmoError(f"{file}: expected a list of rows, as training.compare writes it")
    for number, row in enumerate(rows, start=1):
        place = f"{file}: row {number}"
        if not isinstance(row, dict):
            raise ElmoError(f"{place}: expected an object, got {type(row).__name__}")
        missing = [name for name in COLUMNS if name not in row]
        if missing:
            raise ElmoError(f"{place} lacks {', '.join(missing)}: run training.compare again")
        if row["placement"] not in PLACEMENTS:
            raise ElmoError(f"{place}: placement must be one of {PLACEMENTS}, got {row['placement']!r}")
        for name in ("model", "metric"):
            if not isinstance(row[name], str) or not row[name].isprintable():
                raise ElmoError(f"{place}: {name} must be printable text, got {row[name]!r}")
        for name in ("fraction", "mean", "standard deviation"):
            if not is_finite(row[name]) and (name, row[name]) != ("standard deviation", None):
                raise ElmoError(f"{place}: {name} must be a number, got {row[name]!r}")
        check_mix(row["mix"], f"{place}: mix")
    return rows


def tasks(compared: Rows) -> Rows:
    """Return one row per task and part of its training data, with one column per model and the best gain by ELMo."""
    by_placement = sorted(compared, key=lambda row: PLACEMENTS.index(row["placement"]))
    models = dict.fromkeys(row["model"] for row in by_placement)
    table = []
    for (task, fraction), grouped in groupby(compared, key=itemgetter("task", "fraction")):
        rows = list(grouped)
        entry: dict[str, Any] = {"task": task, "training data": fraction, "score": rows[0]["metric"], **models}
        for row in rows:
            model = row["model"]
            if entry[model] is not None:
                raise ElmoError(f"{task}, {model}, {fraction:.0%} of the data: several folders of that name have it")
            entry[model] = {"mean": row["mean"], "standard deviation": row["standard deviation"]}
        baseline, *means = [row["mean"] for row in rows]
        has_gain = means and rows[0]["placement"] == "none"
        entry["gain"] = max(means) - baseline if has_gain else None
        table.append(entry)
    return table


def mixes(compared: Rows) -> Rows:
    """Return the layers' shares for each task, part of its training data, model and place of ELMo."""
    rows = []
    for row in compared:
        for place, shares in row["mix"].items():
            about = {"task": row["task"], "training data": row["fraction"], "model": row["model"], "place": place}
            layers = zip(layer_names(len(shares) - 1), shares, strict=True)
            rows.append({**about, **dict(layers)})
    return rows


def draw_tasks(compared: Rows, folder: Path) -> None:
    """Plot the scores of tasks with several parts of the training data, and the mixes of all tasks.

    A row of the mixes is that of a task's model with ELMo at most places and of most data.
    """
    panels: dict[str, dict[str, list[float]]] = {}
    for task, grouped in groupby(compared, key=itemgetter("task")):
        rows = list(grouped)
        if rows[0]["fraction"] != rows[-1]["fraction"]:
            draw_comparison(rows, folder / f"{task}.png")
        drawn = max(rows, key=lambda row: (len(row["mix"]), row["fraction"]))
        for place, shares in drawn["mix"].items():
            panels.setdefault(place, {})[task] = shares
    if panels:
        draw_mix(dict(sorted(panels.items())), folder / "mixes.png")


# ----------------------------------------------------------------------------------------------------------- results


def format_cell(name: str, value: Any) -> str:
    """Format a value of a column; numbers up to 1 are percentages."""
    match value:
        case None:
            return ""
        case {"mean": mean, "standard deviation": None}:
            return f"{100 * mean:.1f}"
        case {"mean": mean, "standard deviation": spread}:
            return f"{100 * mean:.1f} ± {100 * spread:.1f}"
        case int():
            return f"{value:,}"
        case {"gain": gain, "low": low, "high": high}:
            return f"{gain:+.4f} ({low:+.4f} to {high:+.4f})"
        case float() if "ms per bit" in name:
            return f"{value:.2f}"
        case float() if name == "gain":  # points, not per cent
            return f"{100 * value:+.1f}"
        case float() if name in ("rho", "low", "high", "p"):
            return f"{value:.3f}"
        case float() if name == "truth" or name.startswith(("APD", "PRT")):
            return f"{value:.4f}"
        case float() if value > 1:
            return f"{value:.2f}"
        case float():
            return f"{100 * value:.1f} %"
    return str(value)


def write(rows: Rows, name: str, folder: Path) -> None:
    """Write rows with the same columns as JSON and as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [list(map(format_cell, row, row.values())) for row in rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    write_text(folder / f"{name}.json", json.dumps(rows, indent=1) + "\n")
    write_text(folder / f"{name}.md", table)
    print(f"{table}\nWrote {name}.json and {name}.md to {folder}")


def layer_names(lstm_layers: int) -> list[str]:
    return ["characters", *(f"LSTM layer {number}" for number in range(1, lstm_layers + 1))]


def make_rows(own: argparse.Namespace) -> Rows:
    """Compute the rows of the table that the arguments ask for."""
    if own.table == "perplexity":
        model, tokenizer = load_scorer(own.model)
        warn_about_splitting(tokenizer, own.tokenized)
        rows: Rows = []
        for text in own.texts:
            if rows:
                write(rows, own.table, own.output_dir)  # should a later text fail, the others are not lost
            rows += perplexities(model, tokenizer, text, own.limit, own.tokenized, own.column)
        return rows
    if own.table == "tasks":
        compared = read_comparisons(own.comparisons)
        table = tasks(compared)
        draw_tasks(compared, own.output_dir)
        mixed = mixes(compared)
        if mixed:
            write(mixed, "mixes", own.output_dir)
        return table
    if own.table in psycholinguistics.TABLES:
        return psycholinguistics.make_rows(own)
    if own.table == "change":
        rows, scores = change(own.model, own.uses, own.truth, own.output_dir, own.max_uses)
        draw_correlations(rows, own.output_dir / "change.png")
        write(scores, "change-words", own.output_dir)
        return rows
    embedder = ElmoEmbedder.from_pretrained(own.model, layers="all")
    names = [*layer_names(embedder.model.config.num_hidden_layers), "average"]
    if own.table == "senses":
        return senses(embedder, own.train, own.test, names, own.neighbors)
    if own.table == "wic":
        return wic(embedder, own.train, own.test, names)
    return tags(embedder, own.train, own.test, names)


def parse_arguments(arguments: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program,
        description=described(__doc__, program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tables = parser.add_subparsers(dest="table", required=True)
    names = ("perplexity", "senses", "wic", "tags", "change", "tasks", *psycholinguistics.TABLES)
    parsers = {name: tables.add_parser(name) for name in names}
    for name, table in parsers.items():
        table.add_argument("--output_dir", required=True, type=Path)
        if name != "tasks":
            help_text = "the name elmo-mini (the default), a folder of pretraining or conversion, or a name on the Hub"
            table.add_argument("--model", default=MINI_NAME, help=help_text)
    for name in ("senses", "wic", "tags"):
        nargs = "+" if name == "senses" else None
        parsers[name].add_argument("--train", required=True, nargs=nargs, type=Path, help="what to learn from")
        parsers[name].add_argument("--test", required=True, type=Path, help="what to score on")
    parsers["change"].add_argument("uses", type=Path, help="uses, with lemma, grouping or date, context, start, end")
    parsers["change"].add_argument("--truth", required=True, type=Path, help="word, tab and change on each line")
    parsers["change"].add_argument(
        "--max_uses", type=at_least_1, default=100, help="of a word and period (default 100)"
    )
    parsers["tasks"].add_argument("comparisons", nargs="+", type=Path, help="folders of training.compare")
    parsers["perplexity"].add_argument("texts", nargs="+", type=Path, help="sentences, one per line or row")
    splitting = parsers["perplexity"].add_mutually_exclusive_group()
    splitting.add_argument(
        "--tokenized", action="store_true", default=None, help="split text at whitespace; default: as in training"
    )
    splitting.add_argument("--raw", dest="tokenized", action="store_false", help="split text Penn-Treebank style")
    parsers["perplexity"].add_argument("--column", help="the column with the sentences, if not text")
    parsers["perplexity"].add_argument("--limit", type=at_least_1, help="lines to read of each text")
    parsers["senses"].add_argument("--neighbors", type=at_least_1, default=20, help="uses that vote (default 20)")
    psycholinguistics.add_arguments(parsers["blimp"], parsers["reading"], at_least_1)
    return parser.parse_args(arguments)


def at_least_1(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def main(arguments: Sequence[str], program: str = "training.evaluate") -> int:
    own = parse_arguments(arguments, program)
    transformers_logging.set_verbosity_error()
    try:
        own.output_dir.mkdir(parents=True, exist_ok=True)
        write(make_rows(own), own.table, own.output_dir)
    except (ElmoError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted: what is written so far is whole", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
