"""Penn-Treebank-style word splitting: text -> words and their spans.

The published checkpoints were trained on text that was tokenised this way.
"""

import functools
import itertools
import re
import unicodedata

Span = tuple[int, int]

_LONGEST_CLITIC = len("n't")
# Words written as one that are two tokens, and the length of the first.
_FUSED = {
    "cannot": 3,
    "gonna": 3,
    "gotta": 3,
    "wanna": 3,
    "gimme": 3,
    "lemme": 3,
    "'tis": 2,
    "’tis": 2,
    "'twas": 2,
    "’twas": 2,
}
_ABBREVIATIONS = (
    "Mr Mrs Ms Messrs Dr Prof Rev Hon Gen Col Maj Capt Lt Sgt Sen Rep Gov Pres St Mt Ft Jr Sr Inc Ltd Co Corp Bros "
    r"Jan Feb Aug Sept Sep Oct Nov Dec vs etc cf Ph\.D"
)
# Variation selectors, the keycap, skin tones, and the tags that make a flag of England.
_EMOJI_MODIFIERS = r"\uFE00-\uFE0F\u20E3\U0001F3FB-\U0001F3FF\U000E0020-\U000E007F"
_LONGEST_CACHED_CHUNK = 64


def _character_kind(character: str) -> str:
    """Classify a character as `symbol` (Unicode's punctuation and symbols), `space` or `letter` (all others)."""
    if character.isspace():
        return "space"
    return "symbol" if unicodedata.category(character)[0] in "PS" else "letter"


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile the pattern of a token inside a run without whitespace, and that of a clitic at its end.

    Compiled on first use, because building the character classes of Unicode takes time.
    """
    # Planes 2 and above hold ideographs, tags and private use: letters.
    ranges = {"letter": "\U00020000-\U0010ffff", "symbol": "", "space": ""}
    for kind, run in itertools.groupby(map(chr, range(0x20000)), _character_kind):
        first, *rest = run
        ranges[kind] += f"{re.escape(first)}-{re.escape(rest[-1] if rest else first)}"
    letter, symbol = f"[{ranges['letter']}]", f"[{ranges['symbol']}]"
    abbreviation = "|".join(_ABBREVIATIONS.split())
    token = re.compile(
        rf"""
          \.{{2,}} | --+ | [`']{{2}}                                     # ellipsis, dash, Treebank quotes
        | (?i:https?://|ftp://|www\.)\S*[^\s.,;:!?)\]}}>'"’”»]           # an address, without what follows it
        | (?:(?:(?!\d){letter}\.){{2,}} | [A-HJ-Z]\. | (?:{abbreviation})\.)(?!-?{letter})  # U.S., an initial, Mr.
        | (?<!{letter})['’](?i:s|re|ve|ll|d|m|t|em|til|tis|twas|bout|cause|\d\ds?)(?!{letter})    # 's, 'em, '90s
        | (?:^[-+]?\.?(?=\d))?{letter}+                                # a word or number,
          (?:(?:\.?-|['’./&_@+]|(?<=\d)[,:](?=\d)){letter}+)*          # hyphens and the like inside
        | [\U0001F1E6-\U0001F1FF]{{2}}                                 # a flag
        | {symbol}(?:[{_EMOJI_MODIFIERS}]|\u200D{symbol})*             # punctuation, an emoji sequence
        """,
        re.VERBOSE,
    )
    clitic = re.compile(rf"(?<={letter})(?i:n['’]t|['’](?:s|re|ve|ll|d|m))\Z")
    return token, clitic


def _split_token(token: str) -> list[str]:
    """Cut clitics off a token: don't -> do n't, she'll -> she 'll, cannot -> can not."""
    _, clitic = _patterns()
    clitics: list[str] = []
    end = len(token)
    while match := clitic.search(token, max(end - _LONGEST_CLITIC, 0), end):
        clitics.append(match.group())
        end = match.start()
    cut = _FUSED.get(token[:end].lower(), end)
    return [part for part in (token[:cut], token[cut:end], *reversed(clitics)) if part]


def _split_chunk(chunk: str) -> tuple[str, ...]:
    """Return the words of a run of text without whitespace."""
    token_pattern, _ = _patterns()
    words: list[str] = []
    for token in token_pattern.findall(chunk):
        words += _split_token(token)
    return tuple(words)


_split_short_chunk = functools.lru_cache(maxsize=1 << 16)(_split_chunk)


def split_text(text: str) -> list[str]:
    """Split a text into words, Penn-Treebank style.

    Only whitespace is dropped and nothing is rewritten: quotes stay as they are.
    """
    words: list[str] = []
    for chunk in text.split():
        if len(chunk) <= _LONGEST_CACHED_CHUNK:
            words += _split_short_chunk(chunk)
        else:
            words += _split_chunk(chunk)
    return words


def find_spans(text: str, words: list[str]) -> list[Span]:
    """Find where each of the words of a text stands in it."""
    spans: list[Span] = []
    end = 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        spans.append((start, end))
    return spans


def split_words(text: str) -> list[Span]:
    """Return the spans of the words of `text`."""
    return find_spans(text, split_text(text))


__all__ = ["Span", "find_spans", "split_text", "split_words"]
