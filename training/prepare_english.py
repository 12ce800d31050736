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
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.corpus import TextLines
from modeling_elmo.files import BAD_INPUT, ElmoError, atomic_write, write_text

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


def prepare_file(path: Path, is_split: bool, processes: int, counts: Counter[str]) -> Iterator[str]:
    """Yield the documents of a text, prepared by several processes, in its own order; add to what is counted."""
    work = partial(prepare, is_split=is_split, tokenizer=ElmoTokenizer())
    bar = tqdm(desc=path.name, unit=" words", unit_scale=True, disable=None)
    with bar, multiprocessing.get_context("fork").Pool(processes) as pool:
        for text, document_counts in pool.imap(work, read_documents(path, is_split), DOCUMENTS_AT_ONCE):
            counts.update(document_counts)
            bar.update(document_counts["words"])
            if text:
                yield text
    if not counts["documents"]:
        raise ElmoError(f"{path}: no sentence with a letter in it")


def write_documents(file: IO[bytes], documents: Iterable[bytes]) -> list[tuple[int, int]]:
    """Write documents with a blank line between them; return where each begins and ends in the file."""
    places = []
    for document in documents:
        if places:
            file.write(b"\n")
        start = file.tell()
        file.write(document)
        places.append((start, file.tell()))
    return places


def shuffle_documents(source: IO[bytes], places: Sequence[tuple[int, int]], seed: int, output: Path) -> None:
    """Write the documents of a file to another in random order, one at a time."""
    order = list(places)
    random.Random(seed).shuffle(order)

    def read() -> Iterator[bytes]:
        for start, end in order:
            source.seek(start)
            yield source.read(end - start)

    with atomic_write(output) as scratch, open(scratch, "wb") as file:
        write_documents(file, read())


def prepare_folder(texts: Path, output: Path, split: Sequence[str], seed: int, processes: int) -> None:
    output.mkdir(parents=True, exist_ok=True)
    about: dict[str, dict[str, int]] = {}
    places: list[tuple[int, int]] = []
    words = 0
    with tempfile.TemporaryFile(dir=output) as in_order:  # the documents of all texts to train on
        for path in sorted(texts.iterdir()):
            match = re.fullmatch(r"(.+)\.(train|heldout)\.txt(?:\.xz|\.gz)?", path.name)
            if match is None:
                continue
            name, part = match.groups()
            counts: Counter[str] = Counter()
            documents = (text.encode() for text in prepare_file(path, name in split, processes, counts))
            if part == "train":
                places += write_documents(in_order, documents)
                words += counts["words"]
            else:
                with atomic_write(output / f"{name}.{part}.txt") as scratch, open(scratch, "wb") as file:
                    write_documents(file, documents)
            about[f"{name}.{part}"] = dict(counts)
            print(f"{name}.{part}:", ", ".join(f"{count:,} {kind}" for kind, count in counts.items()), flush=True)
        if not places:
            raise ElmoError(f"{texts}: there is no <name>.train.txt")
        shuffle_documents(in_order, places, seed, output / "train.txt")
    write_text(output / "about.json", json.dumps(about, indent=1) + "\n")
    print(f"{words:,} words in {len(places):,} documents. Wrote {output}. Next:")
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
