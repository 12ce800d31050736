"""Penn-Treebank-style word splitting: text -> words and their spans.

The published checkpoints were trained on text that was tokenised this way.
"""

import functools

import regex

Span = tuple[int, int]

# Words written as one that are two tokens, and the length of the first.
_FUSED = dict.fromkeys("cannot gonna gotta wanna gimme lemme".split(), 3)
_FUSED.update(dict.fromkeys("'tis ’tis 'twas ’twas".split(), 2))
_ABBREVIATIONS = (
    "Mr|Mrs|Ms|Messrs|Dr|Prof|Rev|Hon|Gen|Col|Maj|Capt|Lt|Sgt|Sen|Rep|Gov|Pres|St|Mt|Ft|Jr|Sr|Inc|Ltd|Co|Corp|Bros|"
    r"Jan|Feb|Aug|Sept|Sep|Oct|Nov|Dec|vs|etc|cf|Ph\.D"
)
# Variation selectors, the keycap, skin tones, and the tags that make a flag of England.
_EMOJI_MODIFIERS = r"\uFE00-\uFE0F\u20E3\U0001F3FB-\U0001F3FF\U000E0020-\U000E007F"
# Unicode's punctuation and symbols, and all other characters.
_SYMBOL = r"[\p{P}\p{S}]"
_LETTER = r"[^\p{P}\p{S}]"

# A token inside a run of text without whitespace.
_TOKEN = regex.compile(
    rf"""
      \.{{2,}} | --+ | [`']{{2}}                                      # ellipsis, dash, Treebank quotes
    | (?i:https?://|ftp://|www\.)\S*[^\s.,;:!?)\]}}>'"’”»]            # an address, without what follows it
    | (?:(?:(?!\d){_LETTER}\.){{2,}} | [A-HJ-Z]\. | (?:{_ABBREVIATIONS})\.)(?!-?{_LETTER})  # U.S., an initial, Mr.
    | (?<!{_LETTER})['’](?i:s|re|ve|ll|d|m|t|em|til|tis|twas|bout|cause|\d\ds?)(?!{_LETTER})    # 's, 'em, '90s
    | (?:^[-+]?\.?(?=\d))?{_LETTER}+                                  # a word or number,
      (?:(?:\.?-|['’./&_@+]|(?<=\d)[,:](?=\d)){_LETTER}+)*            # hyphens and the like inside
    | [\U0001F1E6-\U0001F1FF]{{2}}                                    # a flag
    | {_SYMBOL}(?:[{_EMOJI_MODIFIERS}]|\u200D{_SYMBOL})*           # punctuation, an emoji sequence
    """,
    regex.VERBOSE,
)
_CLITIC = regex.compile(rf"(?<={_LETTER})(?i:n['’]t|['’](?:s|re|ve|ll|d|m))\Z")
_LONGEST_CLITIC = len("n't")
_LONGEST_CACHED_CHUNK = 64


@functools.lru_cache(maxsize=1 << 16)
def _split_chunk(chunk: str) -> tuple[str, ...]:
    """Return the words of a run of text without whitespace: don't -> do n't, she'll -> she 'll, cannot -> can not."""
    words: list[str] = []
    for token in _TOKEN.findall(chunk):
        clitics: list[str] = []
        end = len(token)
        while match := _CLITIC.search(token, max(end - _LONGEST_CLITIC, 0), end):
            clitics.append(match.group())
            end = match.start()
        cut = _FUSED.get(token[:end].lower(), end)
        words += [part for part in (token[:cut], token[cut:end], *reversed(clitics)) if part]
    return tuple(words)


def split_text(text: str) -> list[str]:
    """Split a text into words, Penn-Treebank style.

    Only whitespace is dropped and nothing is rewritten: quotes stay as they are.
    """
    words: list[str] = []
    for chunk in text.split():
        split = _split_chunk if len(chunk) <= _LONGEST_CACHED_CHUNK else _split_chunk.__wrapped__
        words += split(chunk)
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
