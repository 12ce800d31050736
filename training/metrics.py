"""Scores of the tasks, by seqeval and scikit-learn."""

from collections.abc import Sequence

from seqeval.metrics import f1_score as span_f1
from seqeval.metrics import precision_score as span_precision
from seqeval.metrics import recall_score as span_recall
from sklearn.metrics import accuracy_score, f1_score


def class_scores(predicted: Sequence[str | int], gold: Sequence[str | int]) -> dict[str, float]:
    """Of labels: how many are right, and F1, the mean over the classes."""
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0.0)),
    }


def tag_scores(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]], spans: bool) -> dict[str, float]:
    """Of the labels of words: how many are right and, where they mark spans, those as the CoNLL scorer counts them."""
    flat = [[tag for tags in sentences for tag in tags] for sentences in (gold, predicted)]
    scores = {"accuracy": float(accuracy_score(*flat))}
    if spans:
        scores["precision"] = float(span_precision(gold, predicted, zero_division=0))
        scores["recall"] = float(span_recall(gold, predicted, zero_division=0))
        scores["f1"] = float(span_f1(gold, predicted, zero_division=0))
    return scores
