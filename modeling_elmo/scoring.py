"""`elmo score` and `elmo substitutes`: what a pretrained model's language models make of text."""

import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from transformers import AutoModelForPreTraining

from .corpus import open_corpus
from .files import ElmoError, load_folder
from .modeling_elmo import ElmoForPreTraining
from .tokenization_elmo import ElmoTokenizer, split_words

HOW_TO_MARK = 'mark one word with brackets, as in "He sat on the [bank] of the river ."'


class Line(NamedTuple):
    """A line of output; summaries go beside the results."""

    text: str
    is_summary: bool = False


def load_scorer(folder: str | os.PathLike[str]) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """A model with its softmax, and the vocabulary that is for."""
    try:
        model, tokenizer = load_folder(folder, AutoModelForPreTraining)
    except ElmoError as error:
        if "lack `softmax." not in str(error):
            raise
        raise ElmoError(
            f"{folder}: the model was saved without its softmax, which scoring needs: published checkpoints have "
            "none, and training.pretrain keeps it with --save_softmax true"
        ) from error
    if len(tokenizer) != model.config.vocab_size:
        raise ElmoError(
            f"{folder}: the vocabulary has {len(tokenizer):,} words and the softmax {model.config.vocab_size:,}"
        )
    return model, tokenizer


def _read_lines(source: str, tokenizer: ElmoTokenizer, tokenized: bool) -> Iterator[list[str]]:
    """Yield the words of every sentence that has some."""
    corpus = open_corpus(source, streaming=True, tokenized=tokenized)
    for row in corpus:
        yield from corpus.sentences(row, tokenizer)


def score_lines(
    source: str,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    tokenized: bool = True,
    per_word: bool = False,
    as_json: bool = False,
    batch_size: int = 32,
) -> Iterator[Line]:
    """A line of output for each sentence, as soon as it is computed, and a summary of all."""
    if not as_json:
        yield Line("log-probability\tperplexity\tsentence")
    forward = backward = 0.0
    predictions = sentences = 0
    lines = _read_lines(source, tokenizer, tokenized)
    while batch := list(itertools.islice(lines, batch_size)):
        for words, result in zip(batch, model.score(batch, tokenizer, batch_size), strict=True):
            forward += result.forward.double().sum().item()
            backward += result.backward.double().sum().item()
            predictions += len(result.forward)
            sentences += 1
            of_words = zip(words, result.forward.tolist(), result.backward[1:].tolist(), strict=False)
            if as_json:
                entry = {"words": words, "log_probability": result.log_probability, "perplexity": result.perplexity}
                if per_word:
                    entry |= {"forward": result.forward.tolist(), "backward": result.backward.tolist()}
                yield Line(json.dumps(entry, ensure_ascii=False))
                continue
            yield Line(f"{result.log_probability:.3f}\t{result.perplexity:.2f}\t{' '.join(words)}")
            if per_word:
                yield from (
                    Line(f"  {word}\tforward {left:.3f}\tbackward {right:.3f}") for word, left, right in of_words
                )
    if not predictions:
        yield Line("no sentences: the input is empty", is_summary=True)
        return
    mean, left, right = (math.exp(-value / predictions) for value in ((forward + backward) / 2, forward, backward))
    yield Line(
        f"{sentences:,} sentences, perplexity {mean:.2f} (forward {left:.2f}, backward {right:.2f})", is_summary=True
    )


def marked_words(sentence: str, how_to_mark: str) -> tuple[list[str], list[int]]:
    """The words of a text, and the positions of those in [brackets], which stay as they are."""
    words: list[str] = []
    marked: list[int] = []
    for number, part in enumerate(re.split(r"\[([^\[\]]*)\]", sentence)):
        if number % 2 and part.strip():
            marked.append(len(words))
            words.append(part.strip())
        elif number % 2 or "[" in part or "]" in part:
            raise ElmoError(how_to_mark)
        else:
            words += [part[start:end] for start, end in split_words(part)]
    return words, marked


def marked_word(sentence: str) -> tuple[list[str], int]:
    """The words of a text, and the position of the only one in [brackets]."""
    words, marked = marked_words(sentence, HOW_TO_MARK)
    if len(marked) != 1:
        raise ElmoError(HOW_TO_MARK)
    return words, marked[0]


def substitute_lines(
    sentence: str, model: ElmoForPreTraining, tokenizer: ElmoTokenizer, count: int = 10, as_json: bool = False
) -> Iterator[str]:
    """The words that may stand where the sentence has one in [brackets]."""
    words, position = marked_word(sentence)
    for substitute in model.substitutes(words, position, tokenizer, count):
        if as_json:
            yield json.dumps(substitute._asdict(), ensure_ascii=False)
        else:
            yield f"{substitute.probability:.4f}\t{substitute.word}"
