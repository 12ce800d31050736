"""Read the data of the downstream tasks: files of many kinds -> rows with the same fields.

    ner, pos   words: list[str], tags: list[str]
    sst        words: list[str], label: str        from trees; from tables text: str instead of words
    nli        premise: str, hypothesis: str, label: str
    choice     context: str, choices: list[str], label: int
    srl        see srl.py; squad: see squad.py; coref: see coref.py

`FORMATS` says which files a task reads. CSV, TSV, JSON, Parquet and Hub data sets are tables: their columns are found
by the names that published data sets give them, or by those that `columns` gives.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np

from modeling_elmo.files import ElmoError
from training import coref, squad, srl
from training.readers import (
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
from training.settings import TaskSettings
from training.tag_schemes import SCHEMES, detect_scheme, find_violation, to_scheme
from training.tasks import Task

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
    """Yield sentences of words and tags, and where each word is. `column` counts from 1, or is -1 for the last."""
    width = 0
    for block in read_blocks(read_lines(path), path):
        row: Row = {"words": [], "tags": [], "places": []}
        for line in block:
            cells = line.columns
            if cells[0] == "-DOCSTART-":
                continue
            # Besides comments, CoNLL-U has lines for 1-2, two words written as one, and 1.1, a word left out.
            if is_conllu and not cells[0].isdecimal():
                continue
            width = width or len(cells)
            if len(cells) != width:
                raise ElmoError(f"{line.place}: {len(cells)} columns where the lines before have {width}")
            if width < max(column, 2):
                raise ElmoError(f"{line.place}: no tag in column {max(column, 2)}: there is only {' '.join(cells)!r}")
            word = cells[1] if is_conllu else cells[0]
            tag = cells[column] if column < 0 else cells[column - 1]
            if not word or not tag or (is_conllu and tag == "_"):
                raise ElmoError(f"{line.place}: a {'tag' if word else 'word'} is missing")
            row["words"].append(word)
            row["tags"].append(tag)
            row["places"].append(line.place)
        if row["words"]:
            yield row


def read_conllu(path: Path, column: int) -> Iterator[Row]:
    """Yield the sentences of a CoNLL-U file."""
    return read_tagged(path, column, is_conllu=True)


def read_trees(path: Path, phrases: bool) -> Iterator[Row]:
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


def tagged_row(values: Row) -> Row:
    """Check words and their tags."""
    words = _strings(values, "words")
    tags = _strings(values, "tags")
    if len(words) != len(tags):
        raise ValueError(f"{len(words)} words have {len(tags)} tags")
    return {"words": words, "tags": tags}


def text_row(values: Row) -> Row:
    """Check a text, or a pair of texts, and its label."""
    row = {}
    for name, value in values.items():
        row[name] = _label(value) if name == "label" else _text(values, name)
    return row


def pair_row(values: Row) -> Row | None:
    """Check a pair of texts; return None where annotators did not agree on a label, as in SNLI."""
    if values["label"] in _NO_LABEL:
        return None
    row = text_row(values)
    row["label"] = row["label"].lower()  # SICK writes labels in capitals
    return row


def choice_row(values: Row) -> Row:
    """Check a context and its choices; the label is the number of the right one."""
    context = _text(values, "context")
    choices = _strings(values, "choices")
    label = _label(values["label"])
    if not label.isdecimal() or int(label) >= len(choices):
        raise ValueError(f"the label {label!r} is not a choice: it must be 0 to {len(choices) - 1}")
    return {"context": context, "choices": choices, "label": int(label)}


def _text(values: Row, name: str) -> str:
    value = values[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{name}` is {value!r}; expected text")
    return value


def _label(value: Any) -> str:
    if value in _NO_LABEL:
        raise ValueError("the label is missing")
    return str(value)


def _strings(values: Row, name: str) -> list[str]:
    """Return a list of strings. CSV has it as text: choices as a JSON list, words and tags between blanks."""
    value = values[name]
    if isinstance(value, str):
        value = json.loads(value) if name == "choices" else value.split()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"`{name}` is {str(value)[:60]}; expected a list of strings")
    if not value:
        raise ValueError(f"`{name}` is empty")
    if not all(item.strip() for item in value):
        raise ValueError(f"`{name}` has an empty string")
    return value


# ---------------------------------------------------------------------------------------------- the table of readers


class Parser(NamedTuple):
    """A reader of files that are not tables, and the defaults of its options."""

    read: Callable[..., Iterable[Row]]
    options: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Format:
    """How the data of a task may be written."""

    to_row: Callable[[Row], Row | None] | None = None  # checks the fields of a table's row; None leaves it out
    fields: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the columns of tables that hold each field
    parsers: Mapping[str, Parser] = field(default_factory=dict)  # of other files, by kind
    name_field: str | None = None  # a column that names the row, which a table may lack


FORMATS = {
    "ner": Format(
        tagged_row,
        {"words": ("words", "tokens"), "tags": ("tags", "ner_tags")},
        {"columns": Parser(read_tagged, {"column": -1})},
    ),
    "pos": Format(
        tagged_row,
        {"words": ("words", "tokens"), "tags": ("tags", "pos_tags", "upos")},
        {"columns": Parser(read_tagged, {"column": 2}), "conllu": Parser(read_conllu, {"column": 4})},
    ),
    "sst": Format(
        text_row,
        {"text": ("text", "sentence"), "label": ("label",)},
        {"trees": Parser(read_trees, {"phrases": False})},
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
    "srl": Format(parsers={"columns": Parser(srl.read_propositions, {"column": None})}),
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
    column: int | None = None,
    scheme: str = "BIO",
    phrases: bool = False,
) -> datasets.Dataset:
    """Read the examples of a file.

    Args:
        task: one of `FORMATS`.
        path: the file. Its kind is found by its extension and, where that says little, by its first line.
        columns: of a table, the columns that hold our fields, where they have other names: {"premise": "s1"}.
        column: of CoNLL columns, the one with the tag, counted from 1. By default the last for ner, the second for
            pos, and UPOS of CoNLL-U. For srl, the one with the frames, which is found by default.
        scheme: of ner, what to convert the tags to: BIO, BIOES or IOB1. Their own scheme is detected.
        phrases: of trees, whether every labelled phrase is an example, once, instead of whole sentences only.
    """
    path = Path(path)
    _check_options(task, columns, scheme)
    if column is not None and column < 1:
        raise ElmoError(f"`column` counts from 1, got {column}")
    if not path.is_file():
        raise ElmoError(f"{path}: no such file")
    kind = find_kind(task, path)
    parser = FORMATS[task].parsers.get(kind)
    given = {"columns": columns, "column": column, "phrases": phrases}
    allowed = ("columns",) if parser is None else parser.options
    for name, value in given.items():
        if value and name not in allowed:
            raise ElmoError(f"{path}: `{name}` means nothing for {task} from this kind of file ({kind})")
    if parser is None:
        records = read_records(path, kind, class_names=task != "choice")
        rows = _table_rows(task, records, columns or {}, str(path))
    else:
        options = {name: given[name] or default for name, default in parser.options.items()}
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
    _check_options(task, columns, scheme)
    if not FORMATS[task].fields:
        raise ElmoError(f"{task} reads files of columns, not data sets such as {name}: give --train_file")
    records = dataset_records(load_split(name, config, split), name, class_names=task != "choice")
    rows = _table_rows(task, records, columns or {}, name)
    return to_dataset(_convert_tags(task, rows, scheme), name)


def read_part(
    task: Task, settings: TaskSettings, training: bool, file: str | Path | None = None, split: str = "train"
) -> datasets.Dataset:
    """Read a file, or a split of the settings' data set, the way the settings say."""
    options = task.read_options(settings)
    if file:
        phrases = settings.phrases and training
        rows = read_examples(task.name, file, phrases=phrases, **options)
    else:
        assert settings.dataset_name is not None
        if settings.phrases:
            raise ElmoError("`phrases` needs trees: give SST's as --train_file instead of --dataset_name")
        rows = read_hub_examples(task.name, settings.dataset_name, settings.dataset_config_name, split, **options)
    return task.prepare(rows, settings, training, str(file or settings.dataset_name))


def read_documents(path: Path, columns: Mapping[str, str] | None = None) -> list[coref.Document]:
    """Read the documents of a coreference file."""
    return [coref.to_document(row) for row in read_examples("coref", path, columns=columns)]


def sample_fraction(dataset: datasets.Dataset, fraction: float, seed: int) -> datasets.Dataset:
    """Return a random part of the rows, in order, at least one. A smaller part is within a larger one of its seed."""
    if not 0 < fraction <= 1:
        raise ElmoError(f"`fraction` must be above 0 and at most 1, got {fraction}")
    order = np.random.default_rng(seed).permutation(len(dataset))
    count = max(1, round(fraction * len(dataset)))
    return dataset.select(sorted(order[:count].tolist()))


def find_kind(task: str, path: Path) -> str:
    """Return the kind of a file: one of `TABLES`, or of the task's parsers."""
    parsers = FORMATS[task].parsers
    kind = KINDS.get(path.suffix.lower())
    if kind == "conllu" and task != "pos":
        raise ElmoError(f"{path}: a CoNLL-U file has the tags of pos, not examples of {task}")
    if not FORMATS[task].fields:
        return "columns"
    if kind is not None and not (kind == "tsv" and "columns" in parsers):  # there it has a word in each line
        return kind
    place, first = _first_line(path)
    if task == "pos" and _CONLLU_FIRST_LINE.match(first):
        return "conllu"
    if "columns" in parsers:
        return "columns"
    if task == "sst" and first.startswith("("):
        return "trees"
    if first.startswith(("{", "[")):
        return "json"
    if first and "\t" not in first:
        expected = "trees or a table" if task == "sst" else "a table"
        raise ElmoError(f"{place}: expected {expected} ({', '.join(KINDS)}), got {first[:40]!r}")
    return "tsv"


def _first_line(path: Path) -> tuple[str, str]:
    for number, text in read_lines(path):
        if text.strip():
            return f"{path}, line {number}", text
    return str(path), ""


def _check_options(task: str, columns: Mapping[str, str] | None, scheme: str) -> None:
    if task not in FORMATS:
        raise ElmoError(f"`task` must be one of {', '.join(FORMATS)}, got {task!r}")
    if scheme not in SCHEMES:
        raise ElmoError(f"`scheme` must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    fields = FORMATS[task].fields
    for name in columns or ():
        if name not in fields:
            raise ElmoError(f"`columns` has {name!r}; the fields of {task} are {', '.join(fields)}")


def _table_rows(task: str, records: Iterable[Record], columns: Mapping[str, str], source: str) -> list[Row]:
    """Return the rows of a table; `columns` gives fields the names of their columns."""
    to_row, name_field = FORMATS[task].to_row, FORMATS[task].name_field
    assert to_row is not None
    aliases = dict(FORMATS[task].fields)
    for name, column in columns.items():
        aliases[name] = (column,)
    rows: list[Row] = []
    left_out = 0
    for place, record in records:
        with located(place):
            values = {name: _find_value(record, name, aliases[name]) for name in aliases}
            if name_field:
                values[name_field] = record.get(name_field, place)
            row = to_row(values)
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
    raise ValueError(f"no column {expected} for `{field}`; the columns are {', '.join(map(str, record))}")


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
        row["tags"] = to_scheme(row["tags"], scheme, source)
    return rows
