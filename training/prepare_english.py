"""Make one text for pretraining from several: split into words in one way, mixed by document.

    python -m training.prepare_english lm --output_dir corpus
    python -m training.pretrain english --train_file corpus/train.txt --validation_file corpus/wikipedia.heldout.txt …

Every `<name>.train.txt` of the folder is mixed into `train.txt`, and every `<name>.heldout.txt` becomes a file of the
same name. They may be compressed (.xz, .gz). Before and after, there is one sentence per line, and a blank line ends a
document.

Words are what `ElmoTokenizer` makes of raw text, so that a model meets in use what it was trained on. Straight and
typographic quotes, dashes and brackets stay as their authors typed them. Texts that were split into words before
(`--split`) are joined first: the stand-ins of the Penn Treebank become the characters that they stand for. These texts
have no documents, so a fixed number of sentences makes one.

Lines without a letter and lines with too many words are dropped.
"""

import argparse
import itertools
import json
import lzma
import multiprocessing
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.corpus import TextLines
from modeling_elmo.files import BAD_INPUT, ElmoError, write_text

from .settings import in_one_line

# More words than a sentence has: tables and lists that were run together.
LONGEST_SENTENCE = 200
# The size of a document in texts that do not mark documents.
DOCUMENT_SENTENCES = 200
# Documents that a process takes at a time.
DOCUMENTS_AT_ONCE = 50

# Invisible characters: soft hyphens, zero-width spaces and joiners, marks of direction and of byte order.
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\ufeff"))
# What the Penn Treebank writes for quotes and brackets.
STAND_INS = {
    "``": '"',
    "''": '"',
    "`": "'",
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
}
# Marks that a tokenizer took apart: "wasn ’ t", "` ` so ' '", "a hair 's-breadth".
TAKEN_APART = (
    (re.compile(r"(?<=[^\W\d_]) ’ (?=(?:t|s|re|ve|ll|d|m)\b)"), "’"),
    (re.compile(r"(?<!\S)(?:` `|' ')(?!\S)"), '"'),
    (re.compile(r"(?<=[^\W\d_]) (?=['’]s?-[^\W\d_])"), ""),
)


def read_documents(path: Path, is_split: bool) -> Iterator[list[str]]:
    """Yield the lines of each document."""
    lines = (row["text"] for row in TextLines([str(path)]))
    for has_text, group in itertools.groupby(lines, lambda line: bool(line.strip())):
        if has_text:
            document = list(group)
            size = DOCUMENT_SENTENCES if is_split else len(document)
            for start in range(0, len(document), size):
                yield document[start : start + size]


def restore(line: str) -> str:
    """Undo the splitting of a line into words, as far as the tokenizer needs it."""
    for apart, mark in TAKEN_APART:
        line = apart.sub(mark, line)
    return " ".join(STAND_INS.get(word, word) for word in line.split())


def prepare(document: Sequence[str], is_split: bool, tokenizer: ElmoTokenizer) -> tuple[str, Counter[str]]:
    """Split sentences into words, and drop what is not a sentence; return the text and what was counted."""
    sentences = []
    counts: Counter[str] = Counter()
    for line in document:
        line = line.translate(INVISIBLE)
        words = tokenizer.tokenize(restore(line) if is_split else line)
        if not any(character.isalpha() for character in line):
            counts["lines without a letter"] += 1
        elif len(words) > LONGEST_SENTENCE:
            counts["lines too long"] += 1
        else:
            sentences.append(" ".join(words) + "\n")
            counts["words"] += len(words)
    if sentences:
        counts.update({"documents": 1, "sentences": len(sentences)})
    return "".join(sentences), counts


def prepare_file(path: Path, is_split: bool, processes: int) -> tuple[list[str], Counter[str]]:
    """Prepare the documents of a text in its own order, with several processes."""
    work = partial(prepare, is_split=is_split, tokenizer=ElmoTokenizer())
    documents = []
    counts: Counter[str] = Counter()
    bar = tqdm(desc=path.name, unit=" words", unit_scale=True, disable=None)
    with bar, multiprocessing.get_context("fork").Pool(processes) as pool:
        for text, document_counts in pool.imap(work, read_documents(path, is_split), DOCUMENTS_AT_ONCE):
            counts.update(document_counts)
            bar.update(document_counts["words"])
            if text:
                documents.append(text)
    if not documents:
        raise ElmoError(f"{path}: no sentence with a letter in it")
    return documents, counts


def prepare_folder(texts: Path, output: Path, split: Sequence[str], seed: int, processes: int) -> None:
    output.mkdir(parents=True, exist_ok=True)
    about: dict[str, dict[str, int]] = {}
    mixed: list[str] = []
    words = 0
    for path in sorted(texts.iterdir()):
        match = re.fullmatch(r"(.+)\.(train|heldout)\.txt(?:\.xz|\.gz)?", path.name)
        if match is None:
            continue
        name, part = match.groups()
        documents, counts = prepare_file(path, name in split, processes)
        about[f"{name}.{part}"] = dict(counts)
        print(f"{name}.{part}:", ", ".join(f"{count:,} {kind}" for kind, count in counts.items()), flush=True)
        if part == "train":
            mixed += documents
            words += counts["words"]
        else:
            write_text(output / f"{name}.{part}.txt", "\n".join(documents))
    if not mixed:
        raise ElmoError(f"{texts}: there is no <name>.train.txt")
    random.Random(seed).shuffle(mixed)
    write_text(output / "train.txt", "\n".join(mixed))
    write_text(output / "about.json", json.dumps(about, indent=1) + "\n")
    print(f"{words:,} words in {len(mixed):,} documents. Wrote {output}. Next:")
    print(f"  python -m training.pretrain english --train_file {output / 'train.txt'} --output_dir …")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="training.prepare_english", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, help="the folder of <name>.train.txt and <name>.heldout.txt")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument(
        "--split", nargs="*", default=["litbank", "masc"], help="names of texts that were split into words before"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of documents")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    own = parser.parse_args(list(arguments))
    try:
        with in_one_line():
            prepare_folder(own.texts, own.output_dir, own.split, own.seed, own.processes)
    except (ElmoError, EOFError, lzma.LZMAError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
