"""`elmo roles`: who did what to whom in a sentence."""

import json
import os
from collections.abc import Iterator

from .files import ElmoError, load_folder
from .modeling_elmo import ElmoForSemanticRoleLabeling
from .scoring import marked_words
from .tokenization_elmo import ElmoTokenizer

HOW_TO_MARK = 'mark every predicate with brackets, as in "The cat [ate] the fish ."'


def load_labeler(folder: str | os.PathLike[str]) -> tuple[ElmoForSemanticRoleLabeling, ElmoTokenizer]:
    """A model of semantic roles and its tokenizer."""
    return load_folder(folder, ElmoForSemanticRoleLabeling)


def role_lines(
    sentence: str, model: ElmoForSemanticRoleLabeling, tokenizer: ElmoTokenizer, as_json: bool = False
) -> Iterator[str]:
    """For each word of the sentence in [brackets] what the other words are to it."""
    words, predicates = marked_words(sentence, HOW_TO_MARK)
    if not predicates:
        raise ElmoError(HOW_TO_MARK)
    for predicate, roles in zip(predicates, model.label(words, predicates, tokenizer), strict=True):
        if as_json:
            found = [role._asdict() for role in roles]
            yield json.dumps({"predicate": words[predicate], "index": predicate, "roles": found}, ensure_ascii=False)
        else:
            yield words[predicate]
            width = max((len(role.role) for role in roles), default=0)
            yield from (f"  {role.role:{width}}  {role.text}" for role in roles)
