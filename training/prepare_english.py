"""Makes one text for pretraining out of several: split into words in one way, mixed by document.

    python -m training.prepare_english lm --output_dir corpus
    python -m training.pretrain english --train_file corpus/train.txt --validation_file corpus/wikipedia.heldout.txt …

Of the folder, `<name>.train.txt` are mixed into `train.txt`, and each `<name>.heldout.txt` becomes a file of its own
name; all may be compressed (.xz, .gz). A line is a sentence and a blank line ends a document, before and after.

Words are what `ElmoTokenizer` makes of raw text, so that a model meets in use what it was trained on. It rewrites
nothing: straight and typographic quotes, dashes and brackets stay as their authors typed them, since users' text has
them all. Texts that were split before (`--split`) are brought to the same: the Treebank's stand-ins become the
characters that they stand for, and what the splitter would have split otherwise is split again. These have no
documents: so many sentences are taken for one.

Only what no sentence is made of is dropped: lines without a letter and lines of very many words.
"""

import argparse
import gzip
import json
import lzma
import multiprocessing
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from modeling_elmo import ElmoTokenizer
from modeling_elmo.files import BAD_INPUT, ElmoError, write_text

TRAIN_FILE = "train.txt"
ABOUT_FILE = "about.json"
# More words than a sentence has: tables and lists that were run together.
LONGEST_SENTENCE = 200
# Sentences that are a document where the text does not say.
DOCUMENT_SENTENCES = 200
# Documents that a process takes at a time.
DOCUMENTS_AT_ONCE = 50

# What nobody sees: soft hyphens, zero-width spaces and joiners, marks of direction and of byte order.
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
# Marks that a splitter took apart: "wasn ’ t", "` ` so ' '", "a hair 's-breadth".
TAKEN_APART = (
    (re.compile(r"(?<=[^\W\d_]) ’ (?=(?:t|s|re|ve|ll|d|m)\b)"), "’"),
    (re.compile(r"(?<!\S)(?:` `|' ')(?!\S)"), '"'),
    (re.compile(r"(?<=[^\W\d_]) (?=['’]s?-[^\W\d_])"), ""),
)

Document = list[str]


class Prepared(NamedTuple):
    """Documents of words, a sentence a line, and what was counted on the way."""

    documents: list[str]
    counts: Counter[str]


def read_documents(path: Path) -> Iterator[Document]:
    """The lines of each document."""
    document: Document = []
    open_text: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with open_text(path, "rt", encoding="utf-8-sig") as file:
        for line in file:
            if line.strip():
                document.append(line)
            elif document:
                yield document
                document = []
    if document:
        yield document


def cut(documents: Iterable[Document], sentences: int) -> Iterator[Document]:
    """Takes so many sentences for a document."""
    for document in documents:
        for start in range(0, len(document), sentences):
            yield document[start : start + sentences]


def restore(line: str) -> str:
    """Brings a line that was split into words to what its author typed, as far as the splitter needs it."""
    for apart, mark in TAKEN_APART:
        line = apart.sub(mark, line)
    return " ".join(STAND_INS.get(word, word) for word in line.split())


def prepare(documents: Sequence[Document], is_split: bool, tokenizer: ElmoTokenizer) -> Prepared:
    """Splits sentences into words and drops what is none."""
    found = []
    counts: Counter[str] = Counter()
    for document in documents:
        sentences = []
        for line in document:
            line = line.translate(INVISIBLE)
            words = tokenizer.tokenize(restore(line) if is_split else line)
            if not any(character.isalpha() for character in line):
                counts["lines without a letter"] += 1
            elif len(words) > LONGEST_SENTENCE:
                counts["lines too long"] += 1
            else:
                sentences.append(" ".join(words))
                counts["words"] += len(words)
        if sentences:
            found.append("\n".join(sentences) + "\n")
            counts["documents"] += 1
            counts["sentences"] += len(sentences)
    return Prepared(found, counts)


def prepare_file(path: Path, is_split: bool, processes: int) -> Prepared:
    """Prepares a text by several processes, in its own order."""
    documents = read_documents(path)
    if is_split:
        documents = cut(documents, DOCUMENT_SENTENCES)
    work = partial(prepare, is_split=is_split, tokenizer=ElmoTokenizer())
    found: list[str] = []
    counts: Counter[str] = Counter()
    bar = tqdm(desc=path.name, unit=" words", unit_scale=True, disable=None)
    with bar, multiprocessing.get_context("fork").Pool(processes) as pool:
        for part in pool.imap(work, _batched(documents, DOCUMENTS_AT_ONCE)):
            found += part.documents
            counts += part.counts
            bar.update(part.counts["words"])
    if not found:
        raise ElmoError(f"{path}: no sentence with a letter in it")
    return Prepared(found, counts)


def _batched(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def write_documents(documents: Iterable[str], path: Path) -> None:
    """Writes documents with a blank line between two; the file appears when it is complete."""
    scratch = path.with_name(f".{path.name}.tmp")
    with open(scratch, "w", encoding="utf-8") as file:
        for number, document in enumerate(documents):
            file.write("\n" * (number > 0) + document)
    os.replace(scratch, path)


def name_of(path: Path, part: str) -> str | None:
    """The name of a text, if the file is such a part of it: wikipedia for wikipedia.train.txt.xz and train."""
    match = re.fullmatch(rf"(.+)\.{part}\.txt(?:\.xz|\.gz)?", path.name)
    return match[1] if match else None


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
        files = sorted(own.texts.iterdir())
        own.output_dir.mkdir(parents=True, exist_ok=True)
        about: dict[str, dict[str, int]] = {}
        mixed: list[str] = []
        for part in ("train", "heldout"):
            named = [(path, name) for path in files if (name := name_of(path, part))]
            if part == "train" and not named:
                raise ElmoError(f"{own.texts}: there is no <name>.train.txt")
            for path, name in named:
                documents, counts = prepare_file(path, name in own.split, own.processes)
                about[f"{name}.{part}"] = dict(counts)
                counted = ", ".join(f"{count:,} {what}" for what, count in counts.items())
                print(f"{name}.{part}: {counted}", flush=True)
                if part == "train":
                    mixed += documents
                else:
                    write_documents(documents, own.output_dir / f"{name}.{part}.txt")
        random.Random(own.seed).shuffle(mixed)
        write_documents(mixed, own.output_dir / TRAIN_FILE)
        write_text(own.output_dir / ABOUT_FILE, json.dumps(about, indent=1) + "\n")
    except (ElmoError, OSError, UnicodeDecodeError, EOFError, lzma.LZMAError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    words = sum(counts["words"] for name, counts in about.items() if name.endswith(".train"))
    print(f"{words:,} words in {len(mixed):,} documents. Wrote {own.output_dir}. Next:")
    print(f"  python -m training.pretrain english --train_file {own.output_dir / TRAIN_FILE} --output_dir …")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
