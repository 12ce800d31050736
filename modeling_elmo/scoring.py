"""What language models and role labelers say about sentences: `elmo score`, `elmo substitutes` and `elmo roles`."""

import itertools
import json
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

from transformers import AutoModelForPreTraining

from .corpus import open_corpus
from .files import ElmoError, StrPath, load_folder
from .modeling_elmo import ElmoForPreTraining, ElmoForSemanticRoleLabeling
from .splitting_elmo import split_words
from .tokenization_elmo import ElmoTokenizer

# Sentences that are scored, and then printed, at once.
BATCH_SIZE = 32
MARK_A_WORD = 'mark one word with brackets, as in "He sat on the [bank] of the river ."'
MARK_PREDICATES = 'mark every predicate with brackets, as in "The cat [ate] the fish ."'


def marked_words(sentence: str, how_to_mark: str) -> tuple[list[str], list[int]]:
    """Return the words of a text, and the positions of those in [brackets], which are not split."""
    words: list[str] = []
    positions: list[int] = []
    for part in re.split(r"(\[[^\[\]]+\])", sentence):
        if part.startswith("[") and part.endswith("]") and part[1:-1].strip():
            positions.append(len(words))
            words.append(part[1:-1].strip())
        elif "[" in part or "]" in part:
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


# ----------------------------------------------------------------------------------------------- language models


def load_scorer(folder: StrPath) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """Load a model with its softmax, and the tokenizer with the vocabulary of that."""
    try:
        model, tokenizer = load_folder(folder, AutoModelForPreTraining)
    except ElmoError as error:
        if "missing weights, such as softmax." not in str(error):
            raise
        raise ElmoError(f"{folder}: saved without its softmax, which scoring needs (see --save_softmax)") from error
    words, outputs = len(tokenizer), model.config.vocab_size
    if words != outputs:
        raise ElmoError(f"{folder}: the vocabulary has {words:,} words and the softmax {outputs:,}")
    return model, tokenizer


def score_lines(
    source: str,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    tokenized: bool = True,
    per_word: bool = False,
    as_json: bool = False,
) -> Iterator[str]:
    """Yield lines for each sentence as soon as it is computed; print a summary of all to standard error."""
    if not as_json:
        yield "log-probability\tperplexity\tsentence"
    corpus = open_corpus(source, streaming=True, tokenized=tokenized)
    sentences = itertools.chain.from_iterable(corpus.sentences(row, tokenizer) for row in corpus)
    forward = backward = 0.0
    predictions = count = 0
    while batch := list(itertools.islice(sentences, BATCH_SIZE)):
        for words, result in zip(batch, model.score(batch, tokenizer), strict=True):
            forward += result.forward.double().sum().item()
            backward += result.backward.double().sum().item()
            predictions += len(result.forward)
            yield from _format_score(words, result, per_word, as_json)
        count += len(batch)
    if count == 0:
        print("no sentences: the input is empty", file=sys.stderr)
        return
    left = math.exp(-forward / predictions)
    right = math.exp(-backward / predictions)
    both = math.sqrt(left * right)
    summary = f"{count:,} sentences, perplexity {both:.2f} (forward {left:.2f}, backward {right:.2f})"
    print(summary, file=sys.stderr)


def _format_score(words: list[str], result: Any, per_word: bool, as_json: bool) -> Iterator[str]:
    forward, backward = result.forward.tolist(), result.backward.tolist()
    if as_json:
        entry = {"words": words, "log_probability": result.log_probability, "perplexity": result.perplexity}
        if per_word:
            entry |= {"forward": forward, "backward": backward}
        yield json.dumps(entry, ensure_ascii=False)
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
            yield json.dumps(substitute._asdict(), ensure_ascii=False)
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
            entry = {"predicate": words[predicate], "index": predicate, "roles": [role._asdict() for role in roles]}
            yield json.dumps(entry, ensure_ascii=False)
            continue
        yield words[predicate]
        width = max((len(role.role) for role in roles), default=0)
        for role in roles:
            yield f"  {role.role:{width}}  {role.text}"
