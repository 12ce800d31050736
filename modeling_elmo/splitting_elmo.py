"""Splitting: text -> words and their spans, Penn-Treebank style; words -> windows of a bounded length.

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


def truncate(lengths: list[int], max_length: int, markers: int, strategy: str) -> list[int]:
    """Return how many words of texts of these lengths to keep so that they and the markers fit into `max_length`."""
    room = max_length - markers
    if sum(lengths) <= room:
        return lengths
    if room < 0:
        raise ValueError(f"`max_length` must be at least {markers}, the sentence markers of a row, got {max_length}")
    if strategy == "longest_first" and len(lengths) == 2:
        # Cut the longer one to the length of the other, then both; the longer keeps an odd word, of equals the second.
        shorter = min(*lengths, room // 2)
        return [room - shorter, shorter] if lengths[0] > lengths[1] else [shorter, room - shorter]
    target = 1 if strategy == "only_second" else 0
    if target >= len(lengths):
        raise ValueError("truncation='only_second' needs a second text to truncate")
    rest = sum(lengths) - lengths[target]
    if rest >= max(room, 1):
        # The zero-shot pipeline looks for "too short" and then does not truncate.
        raise ValueError(
            f"the text to truncate is too short for max_length={max_length}: with truncation={strategy!r} "
            f"the other text and the sentence markers are {rest + markers} tokens"
        )
    sizes = list(lengths)
    sizes[target] = room - rest
    return sizes


def find_windows(length: int, size: int, stride: int | None, side: str) -> list[slice]:
    """Return the windows of `size` words that a text is read in, each with the last `stride` words of the one before.

    Without a stride the first one alone. They begin at the end of the text where its left `side` is to be truncated.
    """
    starts = range(1)
    if stride is not None and length > size:
        if not 0 <= stride < size:
            raise ValueError(f"`stride` must be less than the {size} words that a window has room for, got {stride}")
        starts = range(0, length - stride, size - stride)
    windows: list[slice] = []
    for start in starts:
        stop = min(start + size, length)
        windows.append(slice(start, stop) if side == "right" else slice(length - stop, length - start))
    return windows


__all__ = ["Span", "find_spans", "find_windows", "split_text", "split_words", "truncate"]
