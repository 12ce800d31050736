"""Question answering: answers that are words of a context, as in SQuAD v1.1.

Rows: id: str, question: str, context: str, answers: list[str], starts: list[int] (characters), windows: first word and
one past the last of each part of the context that is read at once. An example is a question and one window; its label
is a `Window`. Of a question's windows the one with the best answer wins.
"""

import functools
import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from modeling_elmo import ElmoConfig
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.reading_elmo import windows_of
from modeling_elmo.splitting_elmo import Span, split_words

from .examples import Examples
from .readers import located, parse_json, read_lines
from .settings import TaskSettings
from .tasks import Task

# Of a row `<S> question </S> <S> context </S>`: the markers before the context's first word.
MARKERS_BEFORE = 3

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_split = functools.lru_cache(maxsize=1 << 14)(split_words)  # a context has several questions

Row = dict[str, Any]


# ---------------------------------------------------------------------------------------------------------- reading


def read_articles(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD file: articles have paragraphs, and these have questions."""
    whole = parse_json("\n".join(text for _, text in read_lines(path)), path)
    with located(path):
        for i, article in enumerate(whole["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, question in enumerate(paragraph["qas"]):
                    with located(f"{path}, data[{i}].paragraphs[{j}].qas[{k}]"):
                        yield question_row({**question, "context": paragraph["context"]})


def question_row(values: Row) -> Row:
    """Check a question, its context and its answers, each a text and its first character."""
    row = {"id": str(values["id"]), "question": values["question"], "context": values["context"]}
    place = f"question {row['id']}"
    for name in ("question", "context"):
        if not _split(row[name]):
            raise ValueError(f"the {name} of {place} is empty: {row[name]!r}")
    answers = values["answers"]
    if isinstance(answers, dict):  # Hub data sets have the lists inside
        texts, starts = answers["text"], answers["answer_start"]
    else:
        texts = [answer["text"] for answer in answers]
        starts = [answer["answer_start"] for answer in answers]
    if not texts:
        raise ValueError(f"{place} has no answers; SQuAD v1.1 has at least one for each")
    for text, start in zip(texts, starts, strict=True):
        if start < 0 or not text.strip() or not row["context"].startswith(text, start):
            raise ValueError(f"the answer {text!r} to {place} is not at character {start} of its context")
    return {**row, "answers": texts, "starts": starts}


def answer_words(spans: Sequence[Span], answers: Sequence[str], starts: Sequence[int]) -> tuple[int, int]:
    """Return first and last word of the answer that most annotators gave, the first of equals; its words cover it."""
    (text, start), _ = Counter(zip(answers, starts, strict=True)).most_common(1)[0]
    covering = [word for word, (begin, end) in enumerate(spans) if begin < start + len(text) and start < end]
    return covering[0], covering[-1]


# ------------------------------------------------------------------------------------------------------------- task


class Window(NamedTuple):
    """The part of a question's context that is read at once, and what to learn from it."""

    question: str  # its id
    context: str
    spans: list[Span]  # the window's words in the context
    place: int  # of the window's first word in the row
    start: int  # of the answer's first word in the row, -100 where the window lacks a part of the answer
    end: int  # of its last word
    answers: list[str]

    def text(self, first: int, last: int) -> str:
        """Return the context from the word at one place of the row to that at another."""
        return self.context[self.spans[first - self.place][0] : self.spans[last - self.place][1]]


class QuestionAnswering(Task):
    """The answer to a question as words of a context."""

    predictions_file = "predictions.json"

    def prepare(self, rows: Dataset, settings: TaskSettings, training: bool, source: str) -> Dataset:
        """Add the windows of each context; in training only those that have the answer."""
        (question, count), *_ = Counter(rows["id"]).most_common(1)
        if count > 1:
            raise ElmoError(f"{source}: there are {count} questions with the id {question!r}")
        config = ElmoConfig(**settings.head_config())
        longest, overlap = config.max_context_words, config.context_overlap
        windows = []
        for row in rows:
            spans = _split(row["context"])
            first, last = answer_words(spans, row["answers"], row["starts"])
            kept = []
            for start, end in windows_of(len(spans), longest, overlap):
                if not training or (start <= first and last < end):
                    kept.append([start, end])
            windows.append(kept)
        return rows.add_column("windows", windows)

    def examples(self, rows: Dataset, names: Sequence[str]) -> Examples:
        sequences, windows = [], []
        for row in rows:
            question, context = row["question"], row["context"]
            question_words = [question[start:end] for start, end in _split(question)]
            place = len(question_words) + MARKERS_BEFORE
            answer_first, answer_last = answer_words(_split(context), row["answers"], row["starts"])
            for first, last in row["windows"]:
                spans = _split(context)[first:last]
                start = end = IGNORED
                if first <= answer_first and answer_last < last:
                    start, end = place + answer_first - first, place + answer_last - first
                sequences.append((question_words, [context[start:end] for start, end in spans]))
                windows.append(Window(row["id"], context, spans, place, start, end, row["answers"]))
        return Examples(sequences, windows)

    def targets(self, labels: Sequence[Any]) -> dict[str, Tensor]:
        return {
            "start_positions": torch.tensor([window.start for window in labels]),
            "end_positions": torch.tensor([window.end for window in labels]),
        }

    def scores(self, examples: Examples, predictions: np.ndarray) -> dict[str, float]:
        gold = {window.question: window.answers for window in examples.labels}
        return answer_scores(best_answers(examples.labels, predictions), gold)

    def reports(self, examples: Examples, predictions: np.ndarray) -> dict[str, str]:
        """Write one JSON object of questions' ids and answers, as the official script reads it."""
        answers = best_answers(examples.labels, predictions)
        return {self.predictions_file: json.dumps(answers, ensure_ascii=False, indent=1) + "\n"}


def best_answers(windows: Sequence[Window], predictions: np.ndarray) -> dict[str, str]:
    """Return the answer to every question from its best window; predictions are (first, last, score): (N, 3)."""
    scores: dict[str, float] = {}
    answers: dict[str, str] = {}
    for window, (first, last, score) in zip(windows, predictions.tolist(), strict=True):
        if window.question not in scores or score > scores[window.question]:
            scores[window.question] = score
            answers[window.question] = window.text(int(first), int(last))
    return answers


# ----------------------------------------------------------------------------------------------------------- scores


def normalized(answer: str) -> str:
    """Return an answer in lower case without punctuation and articles, its words separated by single blanks."""
    without_punctuation = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", without_punctuation).split())


def exact_match(answer: str, gold: str) -> float:
    return float(normalized(answer) == normalized(gold))


def word_f1(answer: str, gold: str) -> float:
    """Compute the F1 of the words that two answers share, counted as often as both have them."""
    predicted, target = Counter(normalized(answer).split()), Counter(normalized(gold).split())
    return 2 * (predicted & target).total() / max(predicted.total() + target.total(), 1)


def answer_scores(answers: Mapping[str, str], gold: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Compute mean exact match and F1 like the official script: with the best of a question's gold answers."""
    scores = {}
    for name, score in (("exact_match", exact_match), ("f1", word_f1)):
        best = []
        for question, targets in gold.items():
            best.append(max(score(answers[question], target) for target in targets))
        scores[name] = float(np.mean(best))
    return scores
