"""What language models and role labelers say about sentences: `elmo score`, `elmo substitutes` and `elmo roles`."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from transformers import AutoModelForPreTraining

from .corpus import open_corpus
from .files import ElmoError, StrPath, load_folder
from .modeling_elmo import ElmoForPreTraining, ElmoForSemanticRoleLabeling
from .splitting_elmo import split_words
from .tokenization_elmo import ElmoTokenizer

MARK_A_WORD = 'mark one word with brackets, as in "He sat on the [bank] of the river ."'
MARK_PREDICATES = 'mark every predicate with brackets, as in "The cat [ate] the fish ."'


def marked_words(sentence: str, how_to_mark: str) -> tuple[list[str], list[int]]:
    """Return the words of a text, and the positions of those in [brackets], which are not split."""
    words: list[str] = []
    positions: list[int] = []
    for number, part in enumerate(re.split(r"\[([^\[\]]*)\]", sentence)):
        is_marked = number % 2 == 1
        if is_marked and part.strip():
            positions.append(len(words))
            words.append(part.strip())
        elif is_marked or "[" in part or "]" in part:
            raise ElmoError(how_to_mark)
        else:
            words += [part[start:end] for start, end in split_words(part)]
    if not positions:
        raise ElmoError(how_to_mark)
    return words, positions


def marked_word(sentence: str) -> tuple[list[str], int]:
    """Return the words of a text, and the position of the only one in [brackets]."""
    words, positions = marked_words(sentence, MARK_A_WORD)
    if len(positions) != 1:
        raise ElmoError(MARK_A_WORD)
    return words, positions[0]


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


# ----------------------------------------------------------------------------------------------- language models


class Line(NamedTuple):
    """A line of output. Summaries go to standard error."""

    text: str
    is_summary: bool = False


def load_scorer(folder: StrPath) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """Load a model with its softmax, and the tokenizer with the vocabulary of that."""
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


def score_lines(
    source: str,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    tokenized: bool = True,
    per_word: bool = False,
    as_json: bool = False,
    batch_size: int = 32,
) -> Iterator[Line]:
    """Yield a line for each sentence as soon as it is computed, with `per_word` one for each word, and a summary."""
    if not as_json:
        yield Line("log-probability\tperplexity\tsentence")
    forward = backward = 0.0
    predictions = count = 0
    sentences = _read_sentences(source, tokenizer, tokenized)
    while batch := list(itertools.islice(sentences, batch_size)):
        for words, result in zip(batch, model.score(batch, tokenizer, batch_size), strict=True):
            forward += result.forward.double().sum().item()
            backward += result.backward.double().sum().item()
            predictions += len(result.forward)
            count += 1
            for text in _format_score(words, result, per_word, as_json):
                yield Line(text)
    if not predictions:
        yield Line("no sentences: the input is empty", is_summary=True)
        return
    mean = math.exp(-(forward + backward) / 2 / predictions)
    directions = f"forward {math.exp(-forward / predictions):.2f}, backward {math.exp(-backward / predictions):.2f}"
    yield Line(f"{count:,} sentences, perplexity {mean:.2f} ({directions})", is_summary=True)


def _read_sentences(source: str, tokenizer: ElmoTokenizer, tokenized: bool) -> Iterator[list[str]]:
    corpus = open_corpus(source, streaming=True, tokenized=tokenized)
    for row in corpus:
        yield from corpus.sentences(row, tokenizer)


def _format_score(words: list[str], result: Any, per_word: bool, as_json: bool) -> Iterator[str]:
    forward, backward = result.forward.tolist(), result.backward.tolist()
    if as_json:
        entry = {"words": words, "log_probability": result.log_probability, "perplexity": result.perplexity}
        if per_word:
            entry |= {"forward": forward, "backward": backward}
        yield _to_json(entry)
        return
    yield f"{result.log_probability:.3f}\t{result.perplexity:.2f}\t{' '.join(words)}"
    if per_word:
        # The forward model also predicts the end of the sentence, last, and the backward model its beginning, first.
        for word, left, right in zip(words, forward, backward[1:], strict=False):
            yield f"  {word}\tforward {left:.3f}\tbackward {right:.3f}"


def substitute_lines(
    sentence: str, model: ElmoForPreTraining, tokenizer: ElmoTokenizer, count: int = 10, as_json: bool = False
) -> Iterator[str]:
    """Yield the most probable words in place of the one in [brackets]."""
    words, position = marked_word(sentence)
    for substitute in model.substitutes(words, position, tokenizer, count):
        if as_json:
            yield _to_json(substitute._asdict())
        else:
            yield f"{substitute.probability:.4f}\t{substitute.word}"


# ---------------------------------------------------------------------------------------------------------- roles


def role_lines(
    sentence: str, model: ElmoForSemanticRoleLabeling, tokenizer: ElmoTokenizer, as_json: bool = False
) -> Iterator[str]:
    """Yield, for each predicate in [brackets], the roles of the other words."""
    words, predicates = marked_words(sentence, MARK_PREDICATES)
    for predicate, roles in zip(predicates, model.label(words, predicates, tokenizer), strict=True):
        if as_json:
            entries = [role._asdict() for role in roles]
            yield _to_json({"predicate": words[predicate], "index": predicate, "roles": entries})
            continue
        yield words[predicate]
        width = max((len(role.role) for role in roles), default=0)
        for role in roles:
            yield f"  {role.role:{width}}  {role.text}"


__all__ = ["load_scorer", "marked_word", "marked_words", "role_lines", "score_lines", "substitute_lines"]
