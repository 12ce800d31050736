"""training.prepare_english: texts of several kinds become one, in one convention."""

import itertools
import json
import lzma
import random
from collections import Counter
from pathlib import Path

import pytest

from modeling_elmo import ElmoTokenizer
from training import prepare_english


def run(texts: Path, output: Path, *more: object) -> None:
    arguments = [str(texts), "--output_dir", str(output), "--processes", "1", *map(str, more)]
    assert prepare_english.main(arguments) == 0


def documents_of(path: Path) -> list[list[str]]:
    return [document.splitlines() for document in path.read_text().split("\n\n")]


@pytest.fixture
def texts(tmp_path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    raw = "\n\n".join(f"It's the {n}th.\n“Don’t,” she said—twice." for n in range(30))
    (folder / "raw.train.txt.xz").write_bytes(lzma.compress(raw.encode()))
    (folder / "masc.train.txt").write_text("".join(f"Sentence {n} -LRB- a one -RRB- .\n" for n in range(450)))
    (folder / "raw.heldout.txt").write_text("One.\nT\u00adwo.\n\n* * *\n\nThree.\n")
    return folder


@pytest.mark.parametrize(
    ("split", "raw"),
    [
        ("I wasn ’ t there . That ’s it .", "I wasn’t there. That’s it."),
        ("`` So , '' he said , ` no ' -LSB- sic -RSB- .", "\"So,\" he said, 'no' [sic]."),
        ("` ` semi starvation . ' '", '"semi starvation."'),
        ("a hair 's-breadth away", "a hair's-breadth away"),
        ("I do n't know , Mr. Hall -- I cannot .", "I don't know, Mr. Hall -- I cannot."),
    ],
)
def test_text_that_was_split_becomes_what_the_tokenizer_makes_of_the_raw_text(split, raw):
    tokenizer = ElmoTokenizer()
    assert tokenizer.tokenize(prepare_english.restore(split)) == tokenizer.tokenize(raw)


def test_documents_are_mixed_and_their_sentences_stay_in_order(texts, tmp_path):
    run(texts, tmp_path / "out")
    documents = documents_of(tmp_path / "out" / "train.txt")
    raw = [document for document in documents if document[0].startswith("It")]
    assert sorted(raw) == sorted([f"It 's the {n}th .", "“ Do n’t , ” she said — twice ."] for n in range(30))
    numbers = [[int(line.split()[1]) for line in document] for document in documents if document not in raw]
    assert sorted(map(len, numbers)) == [50, 200, 200]  # of one text without documents
    assert sorted(itertools.chain(*numbers)) == list(range(450))
    assert all(part == sorted(part) for part in numbers)
    assert "Sentence 7 ( a one ) ." in (tmp_path / "out" / "train.txt").read_text()
    assert [document in raw for document in documents] != sorted(document in raw for document in documents)


def test_the_seed_decides_the_order(texts, tmp_path):
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        run(texts, tmp_path / name, "--seed", seed)
    one, same, other = ((tmp_path / name / "train.txt").read_text() for name in ("one", "same", "other"))
    assert one == same != other
    assert sorted(one.splitlines()) == sorted(other.splitlines())


def test_held_out_text_keeps_its_order_and_what_is_no_sentence_is_dropped_and_counted(texts, tmp_path, capsys):
    run(texts, tmp_path / "out")
    assert documents_of(tmp_path / "out" / "raw.heldout.txt") == [["One .", "Two ."], ["Three ."]]
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["raw.heldout"] == {"words": 6, "documents": 2, "sentences": 3, "lines without a letter": 1}
    assert "1 lines without a letter" in capsys.readouterr().out


def test_a_line_of_very_many_words_is_dropped(texts, tmp_path):
    (texts / "raw.heldout.txt").write_text("word " * 201 + "\n" + "word " * 200 + "\n")
    run(texts, tmp_path / "out")
    (document,) = documents_of(tmp_path / "out" / "raw.heldout.txt")
    assert [len(line.split()) for line in document] == [200]


def test_a_folder_without_texts_is_refused_in_one_line(tmp_path, capsys):
    assert prepare_english.main([str(tmp_path), "--output_dir", str(tmp_path / "out")]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "there is no <name>.train.txt" in message


def test_the_text_is_what_shuffling_all_documents_in_memory_gives(texts, tmp_path):
    run(texts, tmp_path / "out", "--seed", 3)
    in_order = []
    for name, is_split in (("masc.train.txt", True), ("raw.train.txt.xz", False)):
        in_order += prepare_english.prepare_file(texts / name, is_split, 1, Counter())
    random.Random(3).shuffle(in_order)
    assert (tmp_path / "out" / "train.txt").read_text() == "\n".join(in_order)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["about.json", "raw.heldout.txt", "train.txt"]
