"""What language models and role labelers say about a sentence: `elmo substitutes` and `elmo roles`."""

import json
import re
import sys
from collections.abc import Iterator, Sequence

from transformers import AutoModelForPreTraining

from .corpus import warn_about_splitting
from .files import ElmoError, StrPath
from .loading import load_folder
from .modeling_elmo import ElmoForPreTraining, ElmoForSemanticRoleLabeling
from .splitting_elmo import split_text
from .tokenization_elmo import ElmoTokenizer

MARK_A_WORD = 'mark one word with brackets, as in "He sat on the [bank] of the river ."'
MARK_PREDICATES = 'mark every predicate with brackets, as in "The cat [ate] the fish ."'


def marked_words(sentence: str, how_to_mark: str, tokenized: bool = False) -> tuple[list[str], list[int]]:
    """Return the words of a text, and the positions of those in [brackets], which are not split.

    The others are split Penn-Treebank style or, with `tokenized`, at whitespace alone.
    """
    words: list[str] = []
    positions: list[int] = []
    for part in re.split(r"(\[[^\[\]]+\])", sentence):
        if part.startswith("[") and part.endswith("]") and part[1:-1].strip():
            positions.append(len(words))
            words.append(part[1:-1].strip())
        elif "[" in part or "]" in part:
            raise ElmoError(how_to_mark)
        else:
            words += part.split() if tokenized else split_text(part)
    if not positions:
        raise ElmoError(how_to_mark)
    return words, positions


def marked_word(sentence: str, tokenized: bool = False) -> tuple[list[str], int]:
    """Return the words of a text, and the position of the only one in [brackets]."""
    words, positions = marked_words(sentence, MARK_A_WORD, tokenized)
    if len(positions) != 1:
        raise ElmoError(MARK_A_WORD)
    return words, positions[0]


def is_typed_tokenized(tokenizer: ElmoTokenizer, tokenized: bool | None) -> bool:
    """Return whether a sentence that someone types is split at whitespace alone, by an option or the training text."""
    return tokenizer.training_text == "whitespace" if tokenized is None else tokenized


def unknown_words(words: Sequence[str], tokenizer: ElmoTokenizer) -> list[int]:
    """Return the positions of the words that are scored as `<UNK>`."""
    unknown = (tokenizer.unk_token_id, tokenizer.pad_token_id)  # a word may be spelled like the padding token
    ids = tokenizer.convert_tokens_to_ids(words)
    return [position for position, number in enumerate(ids) if number in unknown]


# ----------------------------------------------------------------------------------------------- language models


def load_scorer(folder: StrPath) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """Load a model with its softmax, and the tokenizer with the vocabulary of that."""
    model, tokenizer = load_folder(folder, AutoModelForPreTraining)
    words, outputs = len(tokenizer), model.config.vocab_size
    if words != outputs:
        raise ElmoError(f"{folder}: the vocabulary has {words:,} words and the softmax {outputs:,}")
    return model, tokenizer


def substitute_lines(
    sentence: str,
    model: ElmoForPreTraining,
    tokenizer: ElmoTokenizer,
    count: int = 10,
    as_json: bool = False,
    tokenized: bool | None = None,
    divide_by_prior: bool = True,
) -> Iterator[str]:
    """Yield the most probable words in place of the one in [brackets]."""
    warn_about_splitting(tokenizer, tokenized)
    is_tokenized = is_typed_tokenized(tokenizer, tokenized)
    words, position = marked_word(sentence, is_tokenized)
    parts = words[position].split() if is_tokenized else split_text(words[position])
    if len(parts) > 1:
        listed = " and ".join(map(repr, parts))
        print(f"note: [{words[position]}] is several words to the model, {listed}; mark one of them", file=sys.stderr)
    for substitute in model.substitutes(words, position, tokenizer, count, divide_by_prior):
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
