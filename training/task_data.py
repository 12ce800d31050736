"""Data sets of the downstream tasks: files of many kinds -> rows with the same fields.

    ner, pos   words: list[str], tags: list[str]
    sst        words: list[str], label: str        of trees; of tables text: str instead of words
    nli        premise: str, hypothesis: str, label: str
    choice     context: str, choices: list[str], label: int

Trees and CoNLL columns have their own readers. CSV, TSV, JSON, Parquet and Hub data sets are tables: their columns are
found by the names that published data sets give them, or by those that `columns` says.
"""

import csv
import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from modeling_elmo.files import ElmoError

logger = logging.getLogger(__name__)

# The fields of a task's tables, and the columns that they are looked for in.
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "ner": {"words": ("words", "tokens"), "tags": ("tags", "ner_tags")},
    "pos": {"words": ("words", "tokens"), "tags": ("tags", "pos_tags", "upos")},
    "sst": {"text": ("text", "sentence"), "label": ("label",)},
    "nli": {
        "premise": ("premise", "sentence1", "sentence_A"),
        "hypothesis": ("hypothesis", "sentence2", "sentence_B"),
        "label": ("label", "gold_label", "entailment_judgment"),
    },
    # `choices` may also be several columns: choice0, choice1, ...
    "choice": {"context": ("context",), "choices": ("choices", "choice", "endings", "ending"), "label": ("label",)},
}
SCHEMES = ("BIO", "BIOES", "IOB1")
SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")
# Files by extension. Others are told by the task and their first line.
KINDS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".conllu": "conllu"}
TABLES = ("json", "csv", "tsv", "parquet")
UPOS_COLUMN = 4

_TAG = re.compile(r"O|[BIES]-.+")
_BLANKS = re.compile(r"[ \t]+")
# Blanks only: SST has words with a no-break space inside, as in `2 1/2`.
_TREE_PART = re.compile(r"[()]|[^ ()]+")
_CONLLU_FIRST_LINE = re.compile(r"#.*=|# new(?:doc|par)|\d+(?:[-.]\d+)?(?:\t[^\t]*){9}$")
_QUOTED = re.compile(r'"(?:[^"]*"")+[^"]*"')
# Labels that say there is none.
_NO_GOLD = ("-", "-1", -1)
# What the Penn Treebank writes for characters that mean something to it.
_TREEBANK_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}

Row = dict[str, Any]
# A row of a table and where it is, for errors.
Record = tuple[str, Mapping[str, Any]]


# ------------------------------------------------------------------------------------------------------ reading


def read_examples(
    task: str,
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    column: int | None = None,
    scheme: str = "BIO",
    phrases: bool = False,
) -> datasets.Dataset:
    """The examples of a file.

    Args:
        task: ner, pos, sst, nli or choice.
        path: the file. Its kind is told by its extension and, where that says little, by its first line.
        columns: of a table, the columns that hold our fields, where they have names of their own: {"premise": "s1"}.
        column: of CoNLL columns, the one with the tag, counted from 1. By default the last for ner, the second for
            pos, and UPOS of CoNLL-U.
        scheme: of ner, what to turn the tags into: BIO, BIOES or IOB1. What they are in is detected.
        phrases: of trees, whether every labelled phrase is an example, once, instead of whole sentences only.
    """
    _check_options(task, columns, scheme)
    if column is not None and column < 1:
        raise ElmoError(f"`column` counts from 1, got {column}")
    path = Path(path)
    if not path.is_file():
        raise ElmoError(f"{path}: no such file")
    kind = _kind_of(task, path)
    for name, given, allowed in (
        ("columns", columns, kind in TABLES),
        ("column", column, kind in ("columns", "conllu")),
        ("phrases", phrases, kind == "trees"),
    ):
        if given and not allowed:
            raise ElmoError(f"{path}: `{name}` means nothing for {task} from this kind of file ({kind})")
    if kind == "trees":
        rows = list(_read_trees(path, phrases))
    elif kind == "conllu":
        rows = [row for row, _ in _read_columns(path, column or UPOS_COLUMN, conllu=True)]
    elif kind == "columns":
        sentences = list(_read_columns(path, column or (2 if task == "pos" else -1), conllu=False))
        rows = [row for row, _ in sentences]
        if task == "ner":
            _convert_tags(rows, [[f"{path}, line {line}" for line in lines] for _, lines in sentences], scheme)
    else:
        rows = _read_table(task, _records(task, path, kind), columns or {}, str(path), scheme)
    return dataset_of(rows, str(path))


def read_hub_examples(
    task: str,
    name: str,
    config: str | None = None,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    scheme: str = "BIO",
) -> datasets.Dataset:
    """The examples of a data set of the Hub, or of the folder of a saved one. Classes become their names."""
    _check_options(task, columns, scheme)
    loaded = load_split(name, config, split)
    return dataset_of(_read_table(task, _records_of(task, loaded, name), columns or {}, name, scheme), name)


def load_split(name: str, config: str | None, split: str) -> datasets.Dataset:
    """A split of a data set of the Hub, or of the folder of a saved one, as it is."""
    try:
        if not any(Path(name, file).is_file() for file in ("dataset_info.json", "dataset_dict.json")):
            return datasets.load_dataset(name, config, split=split)
        loaded = datasets.load_from_disk(name)
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ElmoError(f"{name}: {_one_line(error.__cause__ or error)}") from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise ElmoError(f"{name}: no split {split!r}; its splits are {', '.join(loaded)}")
    return loaded[split]


def sample_fraction(dataset: datasets.Dataset, fraction: float, seed: int) -> datasets.Dataset:
    """A random part of the rows, in their order, at least one. With one seed a smaller part is within a larger one."""
    if not 0 < fraction <= 1:
        raise ElmoError(f"`fraction` must be above 0 and at most 1, got {fraction}")
    order = np.random.default_rng(seed).permutation(len(dataset))
    return dataset.select(sorted(order[: max(1, round(fraction * len(dataset)))].tolist()))


def _check_options(task: str, columns: Mapping[str, str] | None, scheme: str) -> None:
    if task not in COLUMNS:
        raise ElmoError(f"`task` must be one of {', '.join(COLUMNS)}, got {task!r}")
    if scheme not in SCHEMES:
        raise ElmoError(f"`scheme` must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    if unknown := [field for field in columns or () if field not in COLUMNS[task]]:
        raise ElmoError(f"`columns` has {unknown[0]!r}; the fields of {task} are {', '.join(COLUMNS[task])}")


def _kind_of(task: str, path: Path) -> str:
    """json, csv, tsv, parquet, conllu, columns or trees."""
    kind = KINDS.get(path.suffix.lower())
    if kind == "conllu" and task != "pos":
        raise ElmoError(f"{path}: a CoNLL-U file has the tags of pos, not examples of {task}")
    if kind is not None and not (kind == "tsv" and task in ("ner", "pos")):  # there it is a word and its tag a line
        return kind
    number, first = next(((number, text) for number, text in read_lines(path) if text.strip()), (1, ""))
    if task in ("ner", "pos"):
        return "conllu" if task == "pos" and _CONLLU_FIRST_LINE.match(first) else "columns"
    if task == "sst" and first.startswith("("):
        return "trees"
    if first.startswith(("{", "[")):
        return "json"
    if first and "\t" not in first:
        wanted = "trees or a table" if task == "sst" else "a table"
        raise ElmoError(f"{path}, line {number}: expected {wanted} (.csv, .tsv, .jsonl, .parquet), got {first[:40]!r}")
    return "tsv"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without what ends them, by number. Only line feeds separate: words may hold Unicode's other separators."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise ElmoError(f"{path}, line {number}: not UTF-8 text") from None
            yield number, text.rstrip("\r\n")


def split_columns(line: str) -> list[str]:
    """The columns of a line, between tabs or, where there are none, blanks."""
    return line.split("\t") if "\t" in line else _BLANKS.split(line.strip(" "))


def dataset_of(rows: list[Row], source: str) -> datasets.Dataset:
    if not rows:
        raise ElmoError(f"{source}: empty, there are no examples")
    return datasets.Dataset.from_dict({field: [row[field] for row in rows] for field in rows[0]})


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)


# -------------------------------------------------------------------------------------------------- tag schemes


def detect_scheme(all_tags: Iterable[Sequence[str]]) -> str:
    """The scheme of the tags of some sentences; BIO where nothing tells.

    What tells is how entities begin. IOB1 writes B- only right after an entity of the same type, BIO always.
    """
    begins_with_inside = begins_with_b = False
    for tags in all_tags:
        for before, tag in itertools.pairwise(["O", *tags]):
            if tag[:2] in ("E-", "S-"):
                return "BIOES"
            begins_with_b |= not _may_follow(before, tag, "IOB1")
            begins_with_inside |= not _may_follow(before, tag, "BIO")
    return "IOB1" if begins_with_inside and not begins_with_b else "BIO"


def to_scheme(tags: Sequence[str], scheme: str, source: str | None = None) -> list[str]:
    """A sentence's tags in another scheme: BIO (which is IOB2), BIOES or IOB1.

    Args:
        tags: the tags of the words.
        scheme: what to turn them into.
        source: the scheme that they must be valid in; None to detect it from these tags alone.
    """
    for name in (scheme, source or scheme):
        if name not in SCHEMES:
            raise ElmoError(f"a tag scheme must be one of {', '.join(SCHEMES)}, got {name!r}")
    if broken := _find_break(tags, source or detect_scheme([tags])):
        raise ElmoError(f"tag {broken[0] + 1} of a sentence: {broken[1]}")
    # Whether each tag goes on with the entity before it; a last one for what would follow.
    joined = [_continues(before, tag) for before, tag in itertools.pairwise(["O", *tags, "O"])]
    converted = []
    for index, tag in enumerate(tags):
        first, last = not joined[index], not joined[index + 1]
        prefix = "B" if first else "I"
        if scheme == "BIOES" and last:
            prefix = "S" if first else "E"
        if scheme == "IOB1" and first and not (index and tags[index - 1][1:] == tag[1:]):
            prefix = "I"
        converted.append(tag if tag == "O" else prefix + tag[1:])
    return converted


def _continues(before: str, tag: str) -> bool:
    return tag[0] in "IE" and before[0] in "BI" and before[1:] == tag[1:]


def _may_follow(before: str, tag: str, scheme: str) -> bool:
    same = before[:1] in ("B", "I") and before[1:] == tag[1:]
    if scheme == "BIO":
        return tag[:1] != "I" or same
    if scheme == "IOB1":
        return tag[:1] != "B" or same
    return _continues(before, tag) if before[0] in "BI" else tag[0] in "OBS"


def _find_break(tags: Sequence[str], scheme: str) -> tuple[int, str] | None:
    """Where the tags first break their scheme, and how."""
    for index, tag in enumerate(tags):
        if not _TAG.fullmatch(tag) or (scheme != "BIOES" and tag[0] in "ES"):
            return index, f"{tag!r} is no tag of the {scheme} scheme"
        before = tags[index - 1] if index else "O"
        if not _may_follow(before, tag, scheme):
            return index, f"{tag!r} after {before!r} breaks the {scheme} scheme"
    if tags and not _may_follow(tags[-1], "O", scheme):
        return len(tags) - 1, f"{tags[-1]!r} at a sentence's end breaks the {scheme} scheme"
    return None


def _convert_tags(rows: list[Row], places: Sequence[Sequence[str]], scheme: str) -> None:
    """Turns the rows' tags into a scheme; `places` says where each tag is from, for errors."""
    source = detect_scheme(row["tags"] for row in rows)
    for row, where in zip(rows, places, strict=True):
        if broken := _find_break(row["tags"], source):
            raise ElmoError(f"{where[broken[0]]}: tag {broken[1]}, which the tags seem to be in")
        row["tags"] = to_scheme(row["tags"], scheme, source)


# ------------------------------------------------------------------------------------------ CoNLL columns, trees


def _read_columns(path: Path, column: int, conllu: bool) -> Iterator[tuple[Row, list[int]]]:
    """Sentences, and the line of each word. `column` counts from 1, or is -1 for the last."""
    words: list[str] = []
    tags: list[str] = []
    numbers: list[int] = []
    width = 0
    for number, line in itertools.chain(read_lines(path), [(0, "")]):  # a blank line ends the last sentence too
        if not line.strip():
            if words:
                yield {"words": words, "tags": tags}, numbers
            words, tags, numbers = [], [], []
            continue
        fields = split_columns(line)
        if fields[0] == "-DOCSTART-" or (conllu and (line.startswith("#") or not fields[0].isdecimal())):
            continue  # besides comments, CoNLL-U has lines for 1-2, two words written as one, and 1.1, a word left out
        width = width or len(fields)
        if len(fields) != width:
            raise ElmoError(f"{path}, line {number}: {len(fields)} columns where the lines before have {width}")
        if width < max(column, 2):
            raise ElmoError(f"{path}, line {number}: no tag in column {max(column, 2)}: there is only {line!r}")
        word, tag = fields[1 if conllu else 0], fields[column if column < 0 else column - 1]
        if not word or not tag or (conllu and tag == "_"):
            raise ElmoError(f"{path}, line {number}: a {'tag' if word else 'word'} is missing")
        words.append(word)
        tags.append(tag)
        numbers.append(number)


def _read_trees(path: Path, phrases: bool) -> Iterator[Row]:
    """Of each line's tree the whole sentence, or every phrase that was not met before."""
    met: set[tuple[str, ...]] = set()
    for number, line in read_lines(path):
        if not line.strip():
            continue
        found = _parse_tree(line, f"{path}, line {number}")
        for words, label in reversed(found) if phrases else found[-1:]:
            key = (label, *words)
            if not phrases or key not in met:
                met.add(key)
                yield {"words": words, "label": label}


def _parse_tree(line: str, place: str) -> list[tuple[list[str], str]]:
    """The words and label of each phrase of a tree such as `(3 (2 It) (4 works))`, the sentence last."""
    words: list[str] = []
    phrases: list[tuple[list[str], str]] = []
    open_phrases: list[tuple[int, str]] = []  # the first word and the label
    parts = iter(_TREE_PART.findall(line.strip()))
    for part in parts:
        if not open_phrases and (phrases or part != "("):
            raise ElmoError(f"{place}: unbalanced brackets: {part!r} is outside of them all")
        if part == "(":
            label = next(parts, "")
            if label not in ("0", "1", "2", "3", "4"):
                raise ElmoError(f"{place}: a phrase has the label {label!r}; labels are 0 to 4")
            open_phrases.append((len(words), SENTIMENTS[int(label)]))
        elif part == ")":
            start, sentiment = open_phrases.pop()
            if start == len(words):
                raise ElmoError(f"{place}: a phrase has no words")
            phrases.append((words[start:], sentiment))
        else:
            words.append(_TREEBANK_ESCAPES.get(part, part.replace("\\/", "/").replace("\\*", "*")))
    if open_phrases:
        raise ElmoError(f"{place}: unbalanced brackets: {len(open_phrases)} are not closed")
    return phrases


# ------------------------------------------------------------------------------------------------------- tables


def _read_table(
    task: str, records: Iterable[Record], columns: Mapping[str, str], source: str, scheme: str
) -> list[Row]:
    names = {field: (columns[field],) if field in columns else known for field, known in COLUMNS[task].items()}
    rows: list[Row] = []
    places: list[str] = []
    without_gold = 0
    for place, record in records:
        values = {field: _find_value(record, field, names[field], place) for field in names}
        if task == "nli" and values["label"] in _NO_GOLD:
            without_gold += 1  # the annotators of SNLI did not agree
            continue
        row = _row_of(values, place)
        if task == "nli":
            row["label"] = row["label"].lower()  # SICK shouts what SNLI says
        rows.append(row)
        places.append(place)
    if task == "ner":
        _convert_tags(rows, [[place] * len(row["tags"]) for place, row in zip(places, rows, strict=True)], scheme)
    if without_gold:
        logger.warning("%s: %d examples have no gold label and are left out", source, without_gold)
    return rows


def _row_of(values: Mapping[str, Any], place: str) -> Row:
    """The fields of a row, each of its type."""
    row: Row = {}
    for field, value in values.items():
        if field in ("words", "tags", "choices"):
            row[field] = _strings(value, field, place)
        elif field != "label":
            if not isinstance(value, str) or not value.strip():
                raise ElmoError(f"{place}: `{field}` is {value!r}; expected text")
            row[field] = value
        elif value is None or value == "" or value in _NO_GOLD:
            raise ElmoError(f"{place}: the label is missing")
        else:
            row[field] = str(value)
    if "tags" in row and len(row["tags"]) != len(row["words"]):
        raise ElmoError(f"{place}: {len(row['words'])} words have {len(row['tags'])} tags")
    if "choices" in row:
        row["label"] = _index_of(row["label"], row["choices"], place)
    return row


def _find_value(record: Mapping[str, Any], field: str, names: Sequence[str], place: str) -> Any:
    for name in names:
        if name in record:
            return record[name]
        if field == "choices":
            numbered = [key for key in record if re.fullmatch(rf"{re.escape(name)}_?\d+", key)]
            if numbered:
                return [record[key] for key in sorted(numbered, key=lambda key: int(re.findall(r"\d+", key)[-1]))]
    raise ElmoError(
        f"{place}: no column {' or '.join(f'`{name}`' for name in names)} for `{field}`; the columns are "
        f"{', '.join(map(str, record))}"
    )


def _strings(value: Any, field: str, place: str) -> list[str]:
    """A list of strings. CSV has it as text: choices as a JSON list, words and tags between blanks."""
    if isinstance(value, str):
        value = _parse_json(value, place) if field == "choices" else value.split()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ElmoError(f"{place}: `{field}` is {str(value)[:60]}; expected a list of strings")
    if not value or not all(item.strip() for item in value):
        raise ElmoError(f"{place}: `{field}` {'has an empty string' if value else 'is empty'}")
    return value


def _index_of(label: str, choices: Sequence[str], place: str) -> int:
    if not label.isdecimal() or int(label) >= len(choices):
        raise ElmoError(
            f"{place}: the label {label!r} is no choice: with {len(choices)} it is 0 to {len(choices) - 1}"
        )
    return int(label)


def _records(task: str, path: Path, kind: str) -> Iterator[Record]:
    if kind == "json":
        return json_records(path)
    if kind == "parquet":
        try:
            return _records_of(task, datasets.Dataset.from_parquet(str(path)), str(path))
        except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
            raise ElmoError(f"{path}: {_one_line(error.__cause__ or error)}") from error
    return _delimited_records(path, kind)


def _records_of(task: str, dataset: datasets.Dataset, source: str) -> Iterator[Record]:
    """The rows of a data set, with the names of classes for their numbers; a choice is a number by itself.

    -1 is the Hub's way to say that there is no class.
    """
    classes = {name: getattr(feature, "feature", feature) for name, feature in dataset.features.items()}
    names = {
        name: [*feature.names, "-"]
        for name, feature in classes.items()
        if isinstance(feature, datasets.ClassLabel) and task != "choice"
    }
    for index, row in enumerate(dataset):
        for column, known in names.items():
            value = row[column]
            if isinstance(value, list):
                row[column] = [known[number] for number in value]
            elif value is not None:
                row[column] = known[value]
        yield f"{source}, row {index}", row


def json_records(path: Path) -> Iterator[Record]:
    """An object a line, or one list of objects."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        if number == 1 and line.startswith("["):
            for index, record in enumerate(_parse_json("\n".join(text for _, text in read_lines(path)), str(path))):
                yield _object(record, f"{path}, item {index}")
            return
        yield _object(_parse_json(line, f"{path}, line {number}"), f"{path}, line {number}")


def _parse_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise ElmoError(f"{place}: no JSON: {error.msg} at {where}") from None


def _object(record: Any, place: str) -> Record:
    if not isinstance(record, dict):
        raise ElmoError(f"{place}: expected a JSON object, got a {type(record).__name__}")
    return place, record


def _delimited_records(path: Path, kind: str) -> Iterator[Record]:
    header: list[str] | None = None
    for number, fields in _split_csv(path) if kind == "csv" else _split_tsv(path):
        if fields in ([], [""]):
            continue
        if header is None:
            header = fields
        elif len(fields) != len(header):
            raise ElmoError(f"{path}, line {number}: {len(fields)} fields where the header has {len(header)}")
        else:
            yield f"{path}, line {number}", dict(zip(header, fields, strict=True))


def _split_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{text}\n" for _, text in read_lines(path)), strict=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as error:
        raise ElmoError(f"{path}, line {reader.line_num}: {_one_line(error)}") from error


def _split_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Fields between tabs. Most such files quote nothing, so that a quotation mark is one; only a field whose marks
    are all doubled inside a pair of them is taken as quoted.
    """
    for number, line in read_lines(path):
        fields = line.split("\t")
        yield number, [field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field for field in fields]
