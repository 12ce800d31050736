"""Tag schemes: how tags of words mark spans, and turning one scheme into another."""

import itertools
import re
from collections.abc import Iterable, Sequence

from modeling_elmo.files import ElmoError
from modeling_elmo.tagging_elmo import may_follow

SCHEMES = ("BIO", "BIOES", "IOB1")

_TAG = re.compile(r"O|[BIES]-.+")


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of the tags of some sentences, BIO where they are valid in several.

    What tells is how entities begin: IOB1 writes B- only right after an entity of the same type, BIO always.
    """
    valid_bio = valid_iob1 = True
    for tags in sentences:
        for before, tag in itertools.pairwise(["O", *tags]):
            if tag[:2] in ("E-", "S-"):
                return "BIOES"
            valid_bio = valid_bio and may_follow(before, tag, "BIO")
            valid_iob1 = valid_iob1 and may_follow(before, tag, "IOB1")
    return "IOB1" if valid_iob1 and not valid_bio else "BIO"


def find_violation(tags: Sequence[str], scheme: str) -> tuple[int, str] | None:
    """Return the index of the first tag that violates a scheme, and how it does, or None."""
    for index, tag in enumerate(tags):
        if not _TAG.fullmatch(tag) or (scheme != "BIOES" and tag[0] in "ES"):
            return index, f"{tag!r} is not a tag of the {scheme} scheme"
        before = tags[index - 1] if index else "O"
        if not may_follow(before, tag, scheme):
            return index, f"{tag!r} after {before!r} violates the {scheme} scheme"
    if tags and not may_follow(tags[-1], "O", scheme):
        return len(tags) - 1, f"{tags[-1]!r} at the end of a sentence violates the {scheme} scheme"
    return None


def to_scheme(tags: Sequence[str], scheme: str, source: str | None = None) -> list[str]:
    """Convert a sentence's tags to another scheme: BIO (also called IOB2), BIOES or IOB1.

    Args:
        tags: the tags of the words.
        scheme: the scheme to convert to.
        source: the scheme that they must be valid in; None to detect it from these tags alone.
    """
    for name in (scheme, source or scheme):
        if name not in SCHEMES:
            raise ElmoError(f"a tag scheme must be one of {', '.join(SCHEMES)}, got {name!r}")
    violation = find_violation(tags, source or detect_scheme([tags]))
    if violation:
        raise ElmoError(f"tag {violation[0] + 1} of a sentence: {violation[1]}")
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
