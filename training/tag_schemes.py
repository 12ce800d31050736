"""Tag schemes: how tags of words mark spans, and turning one scheme into another."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from modeling_elmo.tagging_elmo import may_follow

SCHEMES = ("BIO", "BIOES", "IOB1")

_TAG = re.compile(r"O|[BIES]-.+")


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of the tags of some sentences, BIO where they are valid in several or in none.

    What tells is how entities begin: IOB1 writes B- only right after an entity of the same type, BIO always.
    """
    pairs: set[tuple[str, str]] = set()
    for tags in sentences:
        pairs.update(pairwise(["O", *tags]))
    if any(tag[:2] in ("E-", "S-") for _, tag in pairs):
        return "BIOES"
    for scheme in ("BIO", "IOB1"):
        if all(may_follow(before, tag, scheme) for before, tag in pairs):
            return scheme
    return "BIO"


def find_violation(tags: Sequence[str], scheme: str) -> tuple[int, str] | None:
    """Return the index of the first tag that violates a scheme, and how it does, or None."""
    for index, (before, tag) in enumerate(pairwise(["O", *tags, "O"])):
        if not _TAG.fullmatch(tag) or (scheme != "BIOES" and tag[0] in "ES"):
            return index, f"{tag!r} is not a tag of the {scheme} scheme"
        if not may_follow(before, tag, scheme):
            if index == len(tags):
                return index - 1, f"{before!r} at the end of a sentence violates the {scheme} scheme"
            return index, f"{tag!r} after {before!r} violates the {scheme} scheme"
    return None


def to_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Convert a sentence's tags, valid in one of the schemes, to BIO (also called IOB2), BIOES or IOB1."""
    padded = ["O", *tags, "O"]
    converted = []
    for before, tag, after in zip(padded, tags, padded[2:], strict=False):
        is_first = not _continues(before, tag)
        is_last = not _continues(tag, after)
        prefix = "B" if is_first else "I"
        if scheme == "BIOES" and is_last:
            prefix = "S" if is_first else "E"
        if scheme == "IOB1" and before[1:] != tag[1:]:
            prefix = "I"
        converted.append(tag if tag == "O" else prefix + tag[1:])
    return converted


def _continues(before: str, tag: str) -> bool:
    return before[0] in "BI" and tag[0] in "IE" and before[1:] == tag[1:]
