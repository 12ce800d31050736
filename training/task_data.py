"""Read the data of the downstream tasks: files of many kinds -> rows with the same fields.

    ner, pos   words: list[str], tags: list[str]
    text-classification   text: str, text_pair: str (not in every data set), label: str, kind: str (see labelled_row)
    sst        words: list[str], label: str        from trees; from tables text: str instead of words
    nli        premise: str, hypothesis: str, label: str
    choice     context: str, choices: list[str], label: int
    srl        see srl.py; squad: see squad.py; coref: see coref.py

`FORMATS` says which files a task reads. CSV, TSV, JSON, Parquet and Hub data sets are tables: their columns are found
by the names that published data sets give them, or by those that `columns` gives.
"""

import functools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np

from modeling_elmo.corpus import file_extension
from modeling_elmo.files import ElmoError, check_input_file

from . import coref, squad, srl
from .readers import (
    KINDS,
    Record,
    dataset_records,
    load_split,
    located,
    read_blocks,
    read_lines,
    read_records,
    to_dataset,
)
from .settings import TaskSettings
from .tag_schemes import detect_scheme, find_violation, to_scheme
from .tasks import Task, is_number

logger = logging.getLogger(__name__)

SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")

# Blanks only: SST has words with a no-break space inside, as in `2 1/2`.
_TREE_PART = re.compile(r"[()]|[^ ()]+")
_CONLLU_FIRST_LINE = re.compile(r"#.*=|# new(?:doc|par)|\d+(?:[-.]\d+)?(?:\t[^\t]*){9}$")
# Labels that say there is none.
_NO_LABEL = (None, "", "-", "-1", -1)
# What the Penn Treebank writes for characters that have a meaning in it.
_TREEBANK_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}

Row = dict[str, Any]


# ------------------------------------------------------------------------------------------ columns of tags, trees


def read_tagged(path: Path, column: int, is_conllu: bool = False) -> Iterator[Row]:
    """Yield sentences of words and the tags of a column, and where each word is."""
    width = 0
    for block in read_blocks(read_lines(path), path):
        row: Row = {"words": [], "tags": [], "places": []}
        for line in block:
            cells = line.columns
            # Besides comments, CoNLL-U has lines for 1-2, two words written as one, and 1.1, a word left out.
            if cells[0] == "-DOCSTART-" or (is_conllu and not cells[0].isdecimal()):
                continue
            width = width or len(cells)
            if len(cells) != width:
                raise ElmoError(f"{line.place}: {len(cells)} columns where the lines before have {width}")
            if width <= max(column, 1):
                raise ElmoError(f"{line.place}: there is no column for tags: {' '.join(cells)!r}")
            word, tag = cells[int(is_conllu)], cells[column]
            if not word or not tag or (is_conllu and tag == "_"):
                raise ElmoError(f"{line.place}: a word or its tag is missing")
            row["words"].append(word)
            row["tags"].append(tag)
            row["places"].append(line.place)
        if row["words"]:
            yield row


def read_trees(path: Path, phrases: bool = False) -> Iterator[Row]:
    """Yield the sentence of each line's tree, or every phrase that did not occur before."""
    seen: set[tuple[str, ...]] = set()
    for number, line in read_lines(path):
        if not line.strip():
            continue
        with located(f"{path}, line {number}"):
            found = parse_tree(line)
        if not phrases:
            yield found[-1]
            continue
        for row in reversed(found):
            key = (row["label"], *row["words"])
            if key not in seen:
                seen.add(key)
                yield row


def parse_tree(line: str) -> list[Row]:
    """Return the words and label of each phrase of a tree such as `(3 (2 It) (4 works))`, the sentence last."""
    words: list[str] = []
    phrases: list[Row] = []
    open_phrases: list[tuple[int, str]] = []  # first word, label
    parts = iter(_TREE_PART.findall(line.strip()))
    for part in parts:
        if not open_phrases and (phrases or part != "("):
            raise ValueError(f"unbalanced brackets: {part!r} is outside of all brackets")
        if part == "(":
            label = next(parts, "")
            if label not in ("0", "1", "2", "3", "4"):
                raise ValueError(f"a phrase has the label {label!r}; labels are 0 to 4")
            open_phrases.append((len(words), SENTIMENTS[int(label)]))
        elif part == ")":
            start, sentiment = open_phrases.pop()
            if start == len(words):
                raise ValueError("a phrase has no words")
            phrases.append({"words": words[start:], "label": sentiment})
        else:
            part = part.replace("\\/", "/").replace("\\*", "*")
            words.append(_TREEBANK_ESCAPES.get(part, part))
    if open_phrases:
        raise ValueError(f"unbalanced brackets: {len(open_phrases)} are not closed")
    return phrases


# ------------------------------------------------------------------------------------------------- rows of tables


def check_row(values: Row) -> Row:
    """Check texts, lists of strings and labels."""
    row = {}
    for name, value in values.items():
        if name == "label":
            if value in _NO_LABEL:
                raise ValueError("the label is missing")
            row[name] = str(value)
        elif name in ("words", "tags", "choices"):
            row[name] = _to_strings(name, value)
        else:
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"`{name}` is {value!r}; expected text")
            row[name] = value
    return row


def _to_strings(name: str, value: Any) -> list[str]:
    """Return a list of strings. CSV has it as text: choices as a JSON list, words and tags between blanks."""
    if isinstance(value, str):
        value = json.loads(value) if name == "choices" else value.split()
    if not value or not isinstance(value, list):
        raise ValueError(f"`{name}` is {str(value)[:60]}; expected a list of strings")
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise ValueError(f"`{name}` has {item!r}; expected strings that are not empty")
    return value


def tagged_row(values: Row) -> Row:
    """Check words and their tags."""
    row = check_row(values)
    if len(row["words"]) != len(row["tags"]):
        raise ValueError(f"{len(row['words'])} words have {len(row['tags'])} tags")
    return row


def pair_row(values: Row) -> Row | None:
    """Check a pair of texts; return None where annotators did not agree on a label, as in SNLI."""
    if values["label"] in _NO_LABEL:
        return None
    row = check_row(values)
    row["label"] = row["label"].lower()  # SICK writes labels in capitals
    return row


def labelled_row(values: Row) -> Row:
    """Check texts and a label, which becomes text; `kind` says if it was a name, a list of them, or a number.

    A list becomes JSON, which tables that have no lists may hold too. Whole numbers are names of classes.
    """
    label = values.pop("label")
    row = check_row(values)
    if isinstance(label, str) and label.lstrip().startswith("["):
        label = json.loads(label)
    if label in (None, "", "-") or label != label:  # a missing number is NaN
        raise ValueError("the label is missing")
    if isinstance(label, list):
        names = [str(name) for name in label]
        if len(set(names)) < len(names):
            raise ValueError(f"a list of labels has the names of those that the text has, each once; got {label}")
        return {**row, "label": json.dumps(names, ensure_ascii=False), "kind": "list"}
    name = str(label)
    has_point = isinstance(label, float) or "." in name
    return {**row, "label": name, "kind": "number" if has_point and is_number(name) else "name"}


def choice_row(values: Row) -> Row:
    """Check a context and its choices; the label is the number of the right one."""
    row = check_row(values)
    label, last = row["label"], len(row["choices"]) - 1
    if not label.isdecimal() or int(label) > last:
        raise ValueError(f"the label {label!r} is not a choice: it must be 0 to {last}")
    row["label"] = int(label)
    return row


# ---------------------------------------------------------------------------------------------- the table of readers


class Parser(NamedTuple):
    """A reader of files that are not tables, and the options that it has."""

    read: Callable[..., Iterable[Row]]
    options: Collection[str] = ()


@dataclass(frozen=True)
class Format:
    """How the data of a task may be written."""

    to_row: Callable[[Row], Row | None] = check_row  # checks the fields of a table's row; None leaves it out
    fields: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the columns of tables that hold each field
    parsers: Mapping[str, Parser] = field(default_factory=dict)  # of other files, by kind
    name_field: str | None = None  # a column that names the row, which a table may lack
    optional: Collection[str] = ()  # fields that a table may lack


FORMATS = {
    "ner": Format(
        tagged_row,
        {"words": ("words", "tokens"), "tags": ("tags", "ner_tags")},
        {"columns": Parser(functools.partial(read_tagged, column=-1))},
    ),
    "pos": Format(
        tagged_row,
        {"words": ("words", "tokens"), "tags": ("tags", "pos_tags", "upos")},
        {
            "columns": Parser(functools.partial(read_tagged, column=1)),
            "conllu": Parser(functools.partial(read_tagged, column=3, is_conllu=True)),
        },
    ),
    "text-classification": Format(
        labelled_row,
        {
            "text": ("text", "sentence", "sentence1"),
            "text_pair": ("text_pair", "sentence2"),
            "label": ("label", "labels"),
        },
        optional=("text_pair",),
    ),
    "sst": Format(
        check_row,
        {"text": ("text", "sentence"), "label": ("label",)},
        {"trees": Parser(read_trees, ("phrases",))},
    ),
    "nli": Format(
        pair_row,
        {
            "premise": ("premise", "sentence1", "sentence_A"),
            "hypothesis": ("hypothesis", "sentence2", "sentence_B"),
            "label": ("label", "gold_label", "entailment_judgment"),
        },
    ),
    # Choices may also be several columns: choice0, choice1, ...
    "choice": Format(
        choice_row,
        {"context": ("context",), "choices": ("choices", "choice", "endings", "ending"), "label": ("label",)},
    ),
    "srl": Format(parsers={"columns": Parser(srl.read_propositions, ("frame",))}),
    "squad": Format(
        squad.question_row,
        {"id": ("id",), "question": ("question",), "context": ("context",), "answers": ("answers",)},
        {"json": Parser(squad.read_articles)},
    ),
    "coref": Format(
        coref.document_row,
        {"sentences": ("sentences",), "clusters": ("clusters",)},
        {"columns": Parser(coref.read_conll)},
        name_field="doc_key",
    ),
}


# -------------------------------------------------------------------------------------------------------- reading


def read_examples(
    task: str,
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    scheme: str = "BIO",
    phrases: bool = False,
) -> datasets.Dataset:
    """Read the examples of a file.

    Args:
        task: one of `FORMATS`.
        path: the file. Its kind is found by its extension and, where that says little, by its first line.
        columns: of a table, the columns that hold our fields, where they have other names: {"premise": "s1"}. Of srl
            the number of the one with the frames, which is found by default: {"frame": "4"}.
        scheme: of ner, what to convert the tags to: BIO, BIOES or IOB1. Their own scheme is detected.
        phrases: of trees, whether every labelled phrase is an example, once, instead of whole sentences only.
    """
    path = Path(path)
    check_input_file(path)
    kind = find_kind(task, path)
    parser = FORMATS[task].parsers.get(kind)
    options: dict[str, Any] = dict(columns or {})
    if phrases:
        options["phrases"] = True
    if parser is None:
        records = read_records(path, kind, class_names=task != "choice")
        rows = _table_rows(task, records, options, str(path))
    else:
        _check_names(options, parser.options, path)
        rows = list(parser.read(path, **options))
    return to_dataset(_convert_tags(task, rows, scheme), path)


def read_hub_examples(
    task: str,
    name: str,
    config: str | None = None,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    scheme: str = "BIO",
) -> datasets.Dataset:
    """Read the examples of a Hub data set, or of the folder of a saved one. Classes become their names."""
    if not FORMATS[task].fields:
        raise ElmoError(f"{task} reads files of columns, not data sets such as {name}: give --train_file")
    records = dataset_records(load_split(name, config, split), name, class_names=task != "choice")
    rows = _table_rows(task, records, columns or {}, name)
    return to_dataset(_convert_tags(task, rows, scheme), name)


def read_part(
    task: Task, settings: TaskSettings, training: bool, file: str | Path | None = None, split: str = "train"
) -> datasets.Dataset:
    """Read a file, or a split of the settings' data set, the way the settings say."""
    columns, scheme = settings.renamed_columns(), settings.tag_scheme or "BIO"
    if file:
        phrases = settings.phrases and training
        rows = read_examples(task.name, file, columns=columns, scheme=scheme, phrases=phrases)
        if settings.validation_fraction and file == settings.train_file:
            rows = hold_out(rows, settings.validation_fraction)[0 if training else 1]
        return task.prepare(rows, settings, training, str(file))
    name = str(settings.dataset_name)
    if settings.phrases:
        raise ElmoError("`phrases` needs trees: give SST's as --train_file instead of --dataset_name")
    rows = read_hub_examples(task.name, name, settings.dataset_config_name, split, columns, scheme)
    return task.prepare(rows, settings, training, name)


def hold_out(dataset: datasets.Dataset, fraction: float) -> tuple[datasets.Dataset, datasets.Dataset]:
    """Return the rows to train on and a random part that is held out, the same in every run, each of a row or more."""
    if len(dataset) < 2:
        raise ElmoError("a single example is too few to hold out a part of them")
    order = np.random.default_rng(0).permutation(len(dataset))
    count = min(max(1, round(fraction * len(dataset))), len(dataset) - 1)
    return dataset.select(sorted(order[count:].tolist())), dataset.select(sorted(order[:count].tolist()))


def sample_fraction(dataset: datasets.Dataset, fraction: float, seed: int) -> datasets.Dataset:
    """Return a random part of the rows, in order, at least one. A smaller part is within a larger one of its seed."""
    order = np.random.default_rng(seed).permutation(len(dataset))
    count = max(1, round(fraction * len(dataset)))
    return dataset.select(sorted(order[:count].tolist()))


def find_kind(task: str, path: Path) -> str:
    """Return the kind of a file: one of those in `KINDS`, or of the task's parsers."""
    parsers = FORMATS[task].parsers
    kind = KINDS.get(file_extension(str(path)))
    if kind == "conllu" and kind not in parsers:
        raise ElmoError(f"{path}: a CoNLL-U file has the tags of pos, not examples of {task}")
    if not FORMATS[task].fields:
        return "columns"
    if kind is not None and not (kind == "tsv" and "columns" in parsers):  # there it has a word in each line
        return kind
    first = next((text for _, text in read_lines(path) if text.strip()), "")
    if "conllu" in parsers and _CONLLU_FIRST_LINE.match(first):
        return "conllu"
    if "columns" in parsers:
        return "columns"
    if "trees" in parsers and first.startswith("("):
        return "trees"
    if first.startswith(("{", "[")):
        return "json"
    if first and "\t" not in first:
        expected = ", ".join([*parsers, *KINDS])
        raise ElmoError(f"{path}: expected one of {expected}, but it begins with {first[:40]!r}")
    return "tsv"


def _check_names(names: Iterable[str], known: Collection[str], source: object) -> None:
    for name in names:
        if name not in known:
            raise ElmoError(f"{source}: `{name}` means nothing here; there is {', '.join(known) or 'nothing to set'}")


def _table_rows(task: str, records: Iterable[Record], columns: Mapping[str, str], source: str) -> list[Row]:
    """Return the rows of a table; `columns` gives fields the names of their columns."""
    form = FORMATS[task]
    _check_names(columns, form.fields, source)
    aliases = {**form.fields, **{name: [column] for name, column in columns.items()}}
    rows: list[Row] = []
    left_out = 0
    for place, record in records:
        with located(place):
            values = {}
            for name, names in aliases.items():
                is_absent = name in form.optional and name not in columns and not any(map(record.__contains__, names))
                if not is_absent:
                    values[name] = _find_value(record, name, names)
            if form.name_field:
                values[form.name_field] = record.get(form.name_field, place)
            row = form.to_row(values)
            if rows and form.optional and row is not None and ("text_pair" in row) != ("text_pair" in rows[0]):
                raise ValueError("some rows have a `text_pair` and others do not")
        if row is None:
            left_out += 1
            continue
        if "tags" in row:
            row["places"] = [place] * len(row["tags"])
        rows.append(row)
    if left_out:
        logger.warning("%s: %d examples have no gold label and are left out", source, left_out)
    return rows


def _find_value(record: Mapping[str, Any], field: str, names: Sequence[str]) -> Any:
    for name in names:
        if name in record:
            return record[name]
        if field == "choices":
            numbered = [key for key in record if re.fullmatch(rf"{re.escape(name)}_?\d+", key)]
            if numbered:
                numbered.sort(key=lambda key: int(re.findall(r"\d+", key)[-1]))
                return [record[key] for key in numbered]
    expected = " or ".join(f"`{name}`" for name in names)
    columns = ", ".join(map(str, record))
    raise ValueError(f"no column {expected} for `{field}`; the columns are {columns}: choose by --columns {field}=…")


def _convert_tags(task: str, rows: list[Row], scheme: str) -> list[Row]:
    """Convert the tags of ner to a scheme, and drop the places of words."""
    source = detect_scheme(row["tags"] for row in rows) if task == "ner" else None
    for row in rows:
        places = row.pop("places", None)
        if source is None:
            continue
        violation = find_violation(row["tags"], source)
        if violation:
            index, problem = violation
            raise ElmoError(f"{places[index]}: tag {problem}, which the tags seem to use")
        row["tags"] = to_scheme(row["tags"], scheme)
    return rows
