"""Scores of the tasks, by seqeval and scikit-learn."""

import itertools
from collections.abc import Sequence

from seqeval.metrics import f1_score as span_f1
from seqeval.metrics import precision_score as span_precision
from seqeval.metrics import recall_score as span_recall
from sklearn.metrics import accuracy_score, f1_score


def class_scores(predicted: Sequence[str | int], gold: Sequence[str | int]) -> dict[str, float]:
    """Compute the accuracy of labels, and the mean F1 over the classes."""
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0.0)),
    }


def tag_scores(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]], spans: bool) -> dict[str, float]:
    """Compute the accuracy of words' labels and, where they mark spans, the CoNLL scorer's scores of spans."""
    accuracy = accuracy_score(list(itertools.chain(*gold)), list(itertools.chain(*predicted)))
    scores = {"accuracy": float(accuracy)}
    if spans:
        scores["precision"] = float(span_precision(gold, predicted, zero_division=0))
        scores["recall"] = float(span_recall(gold, predicted, zero_division=0))
        scores["f1"] = float(span_f1(gold, predicted, zero_division=0))
    return scores
