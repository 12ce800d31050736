"""Questions whose answers are words of a context: SQuAD v1.1, from its files or from Hub data sets with its columns.

Rows: id: str, question: str, context: str, answers: list[str], starts: list[int] (characters), windows: list of the
first word and one past the last of the parts of the context that are read at once. An example is a question and one
window; its label is a `Window`. Of a question's windows the one with the best answer wins.
"""

import functools
import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from modeling_elmo import ElmoConfig, ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.reading_elmo import windows_of
from modeling_elmo.splitting_elmo import Span, split_words
from training.examples import Examples
from training.settings import TaskSettings
from training.task_data import load_split
from training.tasks import Task

FIELDS = ("id", "question", "context", "answers")
# Of a row `<S> question </S> <S> context </S>`: the markers before the context's first word.
MARKERS_BEFORE = 3

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_split = functools.lru_cache(maxsize=1 << 14)(split_words)  # a context has several questions

# What is asked, and where it stands in the data, for errors.
Record = tuple[str, Mapping[str, Any]]


class Window(NamedTuple):
    """A question's context as far as it is read at once, and what to learn from it."""

    question: str  # its id
    context: str
    spans: list[Span]  # the window's words in the context
    place: int  # of the window's first word in the row
    start: int  # of the answer's first word in the row, -100 where the window lacks a part of the answer
    end: int  # of its last word
    answers: list[str]

    def text(self, first: int, last: int) -> str:
        """The context from the word at one place of the row to that at another."""
        return self.context[self.spans[first - self.place][0] : self.spans[last - self.place][1]]


class AnswerInContext(Task):
    """The answer to a question as words of a context."""

    predictions_file = "predictions.json"

    def read(self, path: Path, settings: TaskSettings, training: bool) -> Dataset:
        if settings.columns:
            raise ElmoError(f"{path}: `columns` means nothing for a SQuAD file")
        return _dataset_of(_records(path), settings, training, str(path))

    def read_hub(self, settings: TaskSettings, split: str, training: bool) -> Dataset:
        assert settings.dataset_name is not None
        loaded = load_split(settings.dataset_name, settings.dataset_config_name, split)
        records = _hub_records(loaded, settings.renamed_columns(), settings.dataset_name)
        return _dataset_of(records, settings, training, settings.dataset_name)

    def examples(self, rows: Dataset, labels: Sequence[str], tokenizer: ElmoTokenizer) -> Examples:
        sequences, windows = [], []
        for row in rows:
            spans = _split(row["context"])
            asked, told = (
                [text[start:end] for start, end in _split(text)] for text in (row["question"], row["context"])
            )
            answer = _answer_words(spans, row["answers"], row["starts"])
            place = len(asked) + MARKERS_BEFORE
            for first, last in row["windows"]:
                is_inside = first <= answer[0] and answer[1] < last
                start, end = (place + word - first if is_inside else IGNORED for word in answer)
                sequences.append((asked, told[first:last]))
                window = Window(row["id"], row["context"], spans[first:last], place, start, end, row["answers"])
                windows.append(window)
        return Examples(sequences, windows)

    def targets(self, labels: Sequence[Any], batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            "start_positions": torch.tensor([window.start for window in labels]),
            "end_positions": torch.tensor([window.end for window in labels]),
        }

    def scores(self, examples: Examples, labels: Sequence[str], predicted: np.ndarray) -> dict[str, float]:
        gold = {window.question: window.answers for window in examples.labels}
        return answer_scores(best_answers(examples.labels, predicted), gold)

    def write_predictions(
        self, file: TextIO, examples: Examples, labels: Sequence[str], predicted: np.ndarray
    ) -> None:
        """One JSON object, of questions' ids and answers, as the official script reads it."""
        json.dump(best_answers(examples.labels, predicted), file, ensure_ascii=False, indent=1)
        file.write("\n")


def best_answers(windows: Sequence[Window], predicted: np.ndarray) -> dict[str, str]:
    """The answer to every question: the best of its windows', by the scores that stand beside them in (N, 3)."""
    best: dict[str, tuple[float, str]] = {}
    for window, (first, last, score) in zip(windows, predicted.tolist(), strict=True):
        if window.question not in best or score > best[window.question][0]:
            best[window.question] = score, window.text(int(first), int(last))
    return {question: answer for question, (_, answer) in best.items()}


# ----------------------------------------------------------------------------------------------------------- scores


def normalized(answer: str) -> str:
    """An answer in lower case, without punctuation and articles, its words parted by single blanks."""
    without_punctuation = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def exact_match(answer: str, gold: str) -> float:
    return float(normalized(answer) == normalized(gold))


def word_f1(answer: str, gold: str) -> float:
    """F1 of the words that two answers share, counted as often as both have them."""
    found, wanted = normalized(answer).split(), normalized(gold).split()
    shared = (Counter(found) & Counter(wanted)).total()
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def answer_scores(answers: Mapping[str, str], gold: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 as the official script has them: with the best of a question's gold answers, the mean."""
    return {
        name: float(np.mean([max(score(answers[question], one) for one in known) for question, known in gold.items()]))
        for name, score in (("exact_match", exact_match), ("f1", word_f1))
    }


# ---------------------------------------------------------------------------------------------------------- reading


def _dataset_of(records: Iterable[Record], settings: TaskSettings, training: bool, source: str) -> Dataset:
    config = {field.name: field.default for field in fields(ElmoConfig)} | settings.head_config()
    longest, overlap = config["max_context_words"], config["context_overlap"]
    if not 0 <= overlap < longest:
        raise ElmoError(f"`context_overlap` must be at least 0 and below max_context_words={longest}, got {overlap}")
    columns: dict[str, list] = {name: [] for name in (*FIELDS, "starts", "windows")}
    met: set[str] = set()
    for place, record in records:
        row = _row_of(record, place)
        if row["id"] in met:
            raise ElmoError(f"{place}: there are two questions with the id {row['id']!r}")
        met.add(row["id"])
        spans = _split(row["context"])
        first, last = _answer_words(spans, row["answers"], row["starts"])
        windows = windows_of(len(spans), longest, overlap)
        if training:  # nothing is learned from the others
            windows = [window for window in windows if window[0] <= first and last < window[1]]
        for name, value in {**row, "windows": [list(window) for window in windows]}.items():
            columns[name].append(value)
    if not met:
        raise ElmoError(f"{source}: empty, there are no questions")
    return Dataset.from_dict(columns)


def _answer_words(spans: Sequence[Span], answers: Sequence[str], starts: Sequence[int]) -> tuple[int, int]:
    """First and last word of the answer that most annotators gave, the first of equals; its words cover it."""
    (text, start), _ = Counter(zip(answers, starts, strict=True)).most_common(1)[0]
    touched = [word for word, (begin, end) in enumerate(spans) if begin < start + len(text) and start < end]
    return touched[0], touched[-1]


def _row_of(record: Mapping[str, Any], place: str) -> dict[str, Any]:
    question = str(record["id"])
    row: dict[str, Any] = {"id": question}
    for name in ("question", "context"):
        if not isinstance(record[name], str) or not _split(record[name]):
            raise ElmoError(f"{place}: the {name} of question {question} is empty: {record[name]!r}")
        row[name] = record[name]
    answers = record["answers"]
    if isinstance(answers, list):  # of a file; the Hub's data sets have the lists inside
        answers = {
            name: [_field(answer, name, object, place) for answer in answers] for name in ("text", "answer_start")
        }
    row["answers"], row["starts"] = (_field(answers, name, list, place) for name in ("text", "answer_start"))
    if not row["answers"] or len(row["answers"]) != len(row["starts"]):
        raise ElmoError(f"{place}: question {question} has no answers, of which SQuAD v1.1 has at least one each")
    for text, start in zip(row["answers"], row["starts"], strict=True):
        if not isinstance(text, str) or not text.strip() or not isinstance(start, int) or start < 0:
            raise ElmoError(
                f"{place}: question {question} has the answer {text!r} at {start!r}; expected text and a character"
            )
        there = row["context"][start : start + len(text)]
        if there != text:
            raise ElmoError(
                f"{place}: the answer {text!r} to question {question} is not at character {start} of its context, "
                f"where there is {there!r}"
            )
    return row


def _field(record: Any, name: str, kind: type, place: str) -> Any:
    if not isinstance(record, dict) or not isinstance(record.get(name), kind):
        what = {list: "a list", str: "text"}.get(kind, "a value")
        raise ElmoError(f"{place}: no SQuAD data: expected an object in which `{name}` is {what}")
    return record[name]


def _records(path: Path) -> Iterator[Record]:
    """The questions of a file: articles, their paragraphs, their questions."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ElmoError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # no JSON, no UTF-8
        raise ElmoError(f"{path}: no JSON: {error}") from error
    for i, article in enumerate(_field(whole, "data", list, str(path))):
        for j, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}, data[{i}]")):
            place = f"{path}, data[{i}].paragraphs[{j}]"
            context = _field(paragraph, "context", str, place)
            for k, asked in enumerate(_field(paragraph, "qas", list, place)):
                inside = f"{place}.qas[{k}]"
                values = {
                    name: _field(asked, name, kind, inside)
                    for name, kind in (("id", str), ("question", str), ("answers", list))
                }
                yield inside, {**values, "context": context}


def _hub_records(rows: Dataset, renamed: Mapping[str, str], source: str) -> Iterator[Record]:
    names = {name: renamed.get(name, name) for name in FIELDS}
    if missing := [name for name in names.values() if name not in rows.column_names]:
        raise ElmoError(f"{source}: no column `{missing[0]}`; the columns are {', '.join(rows.column_names)}")
    for index, row in enumerate(rows):
        yield f"{source}, row {index}", {name: row[column] for name, column in names.items()}


__all__ = ["AnswerInContext", "Window", "answer_scores", "best_answers", "exact_match", "normalized", "word_f1"]
