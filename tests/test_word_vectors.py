"""Word vectors from text files: the rows that the data needs, from every kind of file, and one line for each error."""

import gzip
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from modeling_elmo.files import ElmoError
from modeling_elmo.word_vectors import WordVectors, load_word_vectors

GLOVE = "the 0.5 -1.5 2\n, 1 2 3\nbank 4 5 6\nBank 7 8 9\nriver -1e-3 0 1\n"
COUNTS = Counter({"The": 6, "bank": 3, "quay": 1})


def write(path: Path, text: str | bytes = GLOVE) -> Path:
    """A file of the kind that its name says."""
    data = text.encode() if isinstance(text, str) else text
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("vectors.txt", data)
    else:
        path.write_bytes(data)
    return path


def load(path: Path | str, counts=COUNTS, **settings) -> WordVectors:
    return load_word_vectors(path, counts, **settings)


def fail(path: Path | str, **settings) -> str:
    with pytest.raises(ElmoError) as caught:
        load(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.vec", "a.txt.gz", "a.zip", "no_extension"])
@pytest.mark.parametrize("header", ["", "5 3\n"])
@pytest.mark.parametrize("line_end", ["\n", " \n", "\r\n"])
def test_every_kind_of_file_gives_the_same_vectors(name, header, line_end, tmp_path):
    loaded = load(write(tmp_path / name, (header + GLOVE).replace("\n", line_end)))
    assert loaded.words == ["the", "bank"]
    assert loaded.vectors.dtype == torch.float32
    assert loaded.vectors.tolist() == [[0.5, -1.5, 2], [4, 5, 6]]


def test_the_most_frequent_rows_are_kept_too_in_the_order_of_the_file(tmp_path):
    path = write(tmp_path / "a.vec", "5 3\n" + GLOVE)
    assert load(path, most_frequent=2).words == ["the", ",", "bank"]
    assert load(path, most_frequent=99).words == ["the", ",", "bank", "Bank", "river"]


def test_coverage_counts_words_and_occurrences_and_reads_as_a_line(tmp_path):
    assert load(write(tmp_path / "a.txt")).coverage == (
        "66.7 % of 3 words have a vector (90.0 % of 10 occurrences), 50 % of them by their lower-case form"
    )


def test_a_word_that_the_file_has_exactly_does_not_count_as_lower_case(tmp_path):
    loaded = load(write(tmp_path / "a.txt"), {"Bank": 2})
    assert loaded.words == ["bank", "Bank"]
    assert loaded.coverage.endswith("(100.0 % of 2 occurrences), 0 % of them by their lower-case form")


def test_data_without_any_known_word_gives_no_rows(tmp_path):
    for counts in ({}, {"quay": 1}):
        loaded = load(write(tmp_path / "a.txt"), counts)
        assert loaded.vectors.shape == (0, 3)
        assert loaded.coverage.startswith(f"0.0 % of {len(counts)} words")


def test_words_may_hold_blanks(tmp_path):
    path = write(tmp_path / "a.txt", "the 1 2\n. . . 3 4\nat name@domain.com 5 6\n")
    loaded = load(path, {". . .": 1, "at name@domain.com": 1})
    assert loaded.words == [". . .", "at name@domain.com"]
    assert loaded.vectors.tolist() == [[3, 4], [5, 6]]


def test_words_may_hold_what_unicode_calls_a_space_or_line_end(tmp_path):
    words = ["a\u00a0b", "c\u2028d", "e\u0085"]
    path = write(tmp_path / "a.txt", "".join(f"{word} 1 2\n" for word in words))
    assert load(path, dict.fromkeys(words, 1)).words == words


def test_of_a_word_that_occurs_twice_the_first_row_is_kept(tmp_path):
    loaded = load(write(tmp_path / "a.txt", GLOVE + "bank 0 0 0\n"))
    assert loaded.words == ["the", "bank"]
    assert loaded.vectors[1].tolist() == [4, 5, 6]


def test_lines_without_a_readable_word_are_left_out(tmp_path):
    path = write(tmp_path / "a.txt", b"the 1 2\n\xff\xfe 3 4\n 5 6\nbank 7 8\n")
    assert load(path, most_frequent=4).words == ["the", "bank"]


def test_a_member_of_an_archive_is_named_after_a_colon(tmp_path):
    path = tmp_path / "glove.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("glove.2d.txt", "bank 1 2\n")
        archive.writestr("glove.3d.txt", "bank 1 2 3\n")
        archive.writestr("readme.md", "About.")
    assert load(f"{path}:glove.3d.txt").vectors.tolist() == [[1, 2, 3]]
    assert "2 text files (glove.2d.txt, glove.3d.txt)" in fail(path)
    assert "no member 'glove.9d.txt'; its text files are glove.2d.txt, glove.3d.txt" in fail(f"{path}:glove.9d.txt")
    assert [file.name for file in tmp_path.iterdir()] == ["glove.zip"]  # nothing is extracted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("7 3\n", "the file is empty"),
        ("the\n", "line 1: no values"),
        ("the 1 2\nof 1\n", "line 2: 1 values where 2 are expected"),
        ("the 1 2\nof 1 2 3\n", "line 2: 3 values where 2 are expected"),
        ("the 1 2\n\nof\n", "line 3: no values"),
        ("2 4\nthe 1 2 3\n", "line 2: 3 values where 4 are expected"),
        ("2 2\nthe 1 2 3\n", "line 2: 3 values where 2 are expected"),
        ("of 1 2\nbank 1 x\n", "line 2: could not convert string to float: b'x'"),
        ("of 1 2\nbank 1 nan\n", "line 2: a value is not finite"),
        ("of 1 2\nbank 1 1e39\n", "line 2: a value is not finite, or too large for float32"),
        (b"2 2\nthe \x00\x00\x80?\x00\x00\x00@\n", "a binary file, which is not supported"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.zip"])
def test_a_bad_file_is_an_error_that_names_file_and_line(name, text, message, tmp_path):
    path = write(tmp_path / name, text)
    error = fail(path)
    assert error.startswith(str(path))
    assert message in error


def test_what_is_no_file_of_vectors_is_named_in_one_line(tmp_path):
    assert fail(tmp_path / "nowhere.txt") == f"{tmp_path / 'nowhere.txt'}: no such file"
    assert "no such file" in fail(f"{tmp_path}/nowhere.zip:a.txt")
    assert "not a regular file" in fail(tmp_path)
    assert "binary" in fail(write(tmp_path / "word2vec.bin", b"1 1\nbank \x00\x00\x80?\n"))
    (tmp_path / "a.zip").write_bytes(b"PK no archive")
    (tmp_path / "a.txt.gz").write_bytes(b"no gzip")
    for name in ("a.zip", "a.txt.gz"):
        assert "is it damaged?" in fail(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("readme.md", "About.")
    assert "0 text files (none)" in fail(tmp_path / "b.zip")


def test_a_download_that_was_cut_short_is_an_error(tmp_path):
    whole = gzip.compress(GLOVE.encode() * 1000, mtime=0)
    (tmp_path / "a.txt.gz").write_bytes(whole[:-20])
    assert "is it damaged?" in fail(tmp_path / "a.txt.gz")


def test_glove_as_stanford_ships_it_covers_conll(shared):
    counts = Counter(
        line.split()[0]
        for line in (shared / "data/ner/eng.train").read_text(encoding="utf-8").split("\n")
        if line.strip() and not line.startswith("-DOCSTART-")
    )
    loaded = load(shared / "data/glove/glove.6B.50d.zip", counts, most_frequent=1000)
    assert loaded.words[:3] == ["the", ",", "."]
    assert loaded.vectors.shape == (len(loaded.words), 50)
    assert loaded.vectors[0, :2].tolist() == pytest.approx([0.418, 0.24968])
    assert loaded.coverage == (
        "88.9 % of 23,623 words have a vector (97.7 % of 203,621 occurrences), 43 % of them by their lower-case form"
    )
