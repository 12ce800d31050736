"""Read data files: numbered lines, blocks of columns as in CoNLL, and tables as records.

What parses a line or a record raises a plain ValueError; `located` adds the file and the line to its message.
"""

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import datasets

from modeling_elmo.corpus import SAVED_DATASET_FILES, decode_lines, load_saved, translate_errors
from modeling_elmo.files import ElmoError, check_input_file, first_line

# The kinds of files that extensions name.
KINDS = {
    ".json": "json",
    ".jsonl": "json",
    ".jsonlines": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".conllu": "conllu",
}
# Lines around the documents of CoNLL-2012.
DOCUMENT_LINE = re.compile(r"#(begin|end) document\b")

_BLANKS = re.compile(r"[ \t]+")
_DOUBLED_QUOTES = re.compile(r'"(?:[^"]*"")+[^"]*"')

# A row of a table: where it is, for errors, and its values by column.
Record = tuple[str, dict[str, Any]]


class Line(NamedTuple):
    """A line of columns; `place` names its file and number."""

    place: str
    number: int
    columns: list[str]


@contextmanager
def located(place: object) -> Iterator[None]:
    """Say where bad data is: add `place` to the message of an error."""
    try:
        yield
    except ElmoError:
        raise  # an inner place is more exact
    except ValueError as error:
        raise ElmoError(f"{place}: {first_line(error)}") from error
    # Values of other types or sizes, or keys that are missing.
    except (TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ElmoError(f"{place}: not the data of this task: {error!r}") from error


# ------------------------------------------------------------------------------------------------- lines, columns


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines and their numbers. Only line feeds end a line: words may hold Unicode's other separators."""
    check_input_file(path)
    with path.open("rb") as file:
        yield from enumerate(decode_lines(file, path), start=1)


def read_blocks(lines: Iterable[tuple[int, str]], path: Path) -> Iterator[list[Line]]:
    """Yield the sentences of numbered lines, which blank lines or the ends of documents separate.

    Columns are between tabs or, where a line has none, between blanks.
    """
    block: list[Line] = []
    for number, text in lines:
        if text.strip() and not DOCUMENT_LINE.match(text):
            columns = text.split("\t") if "\t" in text else _BLANKS.split(text.strip(" "))
            block.append(Line(f"{path}, line {number}", number, columns))
        elif block:
            yield block
            block = []
    if block:
        yield block


# --------------------------------------------------------------------------------------------------------- tables


def read_records(path: Path, kind: str, class_names: bool = True) -> Iterator[Record]:
    """Yield the rows of a JSON, CSV, TSV or Parquet file; `class_names` as in `dataset_records`."""
    if kind == "json":
        return _read_json(path)
    if kind != "parquet":
        return _read_delimited(path, kind)
    check_input_file(path)
    with translate_errors(str(path)):
        loaded = datasets.Dataset.from_parquet(str(path))
    return dataset_records(loaded, str(path), class_names)


def _read_json(path: Path) -> Iterator[Record]:
    """Yield the objects of JSON lines, or of one list."""
    lines = [(f"{path}, line {number}", text) for number, text in read_lines(path)]
    records: Iterable[tuple[str, Any]]
    if lines and lines[0][1].startswith("["):
        items = parse_json("\n".join(text for _, text in lines), path)
        records = ((f"{path}, item {number}", item) for number, item in enumerate(items))
    else:
        records = ((place, parse_json(text, place)) for place, text in lines if text.strip())
    for place, record in records:
        if not isinstance(record, dict):
            raise ElmoError(f"{place}: expected a JSON object, got {type(record).__name__}")
        yield place, record


def parse_json(text: str, place: object) -> Any:
    """Parse JSON text from `place`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ElmoError(f"{place}: not JSON: {first_line(error)}") from error


def is_finite(value: Any) -> bool:
    """Return whether a value of JSON is a number that can be computed with."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_mix(mix: Any, place: str) -> None:
    """Refuse anything but an object with the weight of every layer at each place of ELMo."""
    if not isinstance(mix, dict):
        raise ElmoError(f"{place}: expected an object, got a {type(mix).__name__}")
    for name, weights in mix.items():
        if not isinstance(weights, list) or not all(map(is_finite, weights)) or not any(weights):
            raise ElmoError(f"{place}: {name} must be the weights of layers, got {str(weights)[:60]}")


def _read_delimited(path: Path, kind: str) -> Iterator[Record]:
    """Yield the rows of CSV or TSV as strings.

    Most TSV files quote nothing, so that a quotation mark is one; only a field whose marks are all doubled inside a
    pair of them is taken as quoted.
    """
    lines = (f"{text}\n" for _, text in read_lines(path))
    if kind == "csv":
        reader = csv.DictReader(lines, strict=True)
    else:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise ElmoError(f"{place}: more or fewer fields than in the header")
            if kind == "tsv":
                for name, value in row.items():
                    if _DOUBLED_QUOTES.fullmatch(value):
                        row[name] = value[1:-1].replace('""', '"')
            yield place, row
    except csv.Error as error:
        raise ElmoError(f"{path}, line {reader.reader.line_num}: {error}") from error


def load_split(name: str, config: str | None, split: str) -> datasets.Dataset:
    """Load a split of a Hub data set, of a folder of files or of the folder of a saved data set."""
    with translate_errors(name):
        if not any(os.path.isfile(Path(name, file)) for file in SAVED_DATASET_FILES):
            return datasets.load_dataset(name, config, split=split)
        loaded = load_saved(name)
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise ElmoError(f"{name}: no split {split!r}; its splits are {', '.join(loaded)}")
    return loaded[split]


def dataset_records(dataset: datasets.Dataset, source: str, class_names: bool = True) -> Iterator[Record]:
    """Yield the rows of a data set, by default with the names of classes for their numbers."""
    names = {}
    for column, feature in dataset.features.items():
        feature = getattr(feature, "feature", feature)
        if class_names and isinstance(feature, datasets.ClassLabel):
            names[column] = [*feature.names, "-"]  # -1 is the Hub's way to say that there is no class
    rows = iter(dataset)
    for index in range(len(dataset)):
        with translate_errors(f"{source}, row {index}"):  # text that is not UTF-8
            row = next(rows)
        for column, known in names.items():
            value = row[column]
            if isinstance(value, list):
                row[column] = [known[number] for number in value]
            elif value is not None:
                row[column] = known[value]
        yield f"{source}, row {index}", row


def to_dataset(rows: list[dict[str, Any]], source: object) -> datasets.Dataset:
    """Return rows with the same fields as a data set."""
    if not rows:
        raise ElmoError(f"{source}: empty, there are no examples")
    with translate_errors(str(source)):  # half of a surrogate pair, or values of several types
        return datasets.Dataset.from_dict({field: [row[field] for row in rows] for field in rows[0]})
