"""The one reader of text: every kind of source gives the same rows, and bad ones are named in one line."""

import bz2
import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from modeling_elmo import ElmoTokenizer
from modeling_elmo.corpus import Corpus, open_corpus, warn_about_splitting, warn_about_text
from modeling_elmo.files import ElmoError
from modeling_elmo.tokenization_elmo import TRAINING_TEXTS

TEXTS = ["One bank .", "", "Two, banks !"]
# How a corpus is opened: to be read once from the beginning, and for pretraining.
WAYS: list[dict[str, bool]] = [{"streaming": True}, {"as_dataset": True}, {"as_dataset": True, "streaming": True}]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write(path: Path, texts: list[str] = TEXTS) -> Path:
    """A file of the kind that its name says."""
    name = path.name
    if ".jsonl" in name:
        content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    elif ".csv" in name or ".tsv" in name:
        separator = "\t" if ".tsv" in name else ","
        content = f"id{separator}text\n" + "".join(f'1{separator}"{text}"\n' for text in texts)
    else:
        content = "".join(f"{text}\n" for text in texts)
    if path.suffix == ".parquet":
        datasets.Dataset.from_dict({"text": texts}).to_parquet(path)
        return path
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(content.encode()))
    return path


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "name", ["a.txt", "a", "a.txt.gz", "a.txt.xz", "a.jsonl", "a.jsonl.bz2", "a.csv", "a.csv.gz", "a.tsv", "a.parquet"]
)
def test_files_of_every_format_hold_the_same_rows(name: str, way: dict[str, bool], tmp_path: Path) -> None:
    path = str(write(tmp_path / name))
    corpus = open_corpus(path, **way)
    assert list(corpus) == TEXTS
    assert list(corpus) == TEXTS  # they can be read again
    assert corpus.is_stream == ("streaming" in way)
    assert list(open_corpus([path, path], **way)) == TEXTS * 2


def test_only_a_newline_ends_a_line_and_a_byte_order_mark_is_no_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffa\rb\r\nc\u2028d\x0b\n\ufeffe".encode())
    assert list(open_corpus(str(tmp_path / "a.txt"))) == ["a\rb", "c\u2028d\x0b", "\ufeffe"]
    (tmp_path / "a.csv").write_text("\ufefftext\na b\n", encoding="utf-8")
    assert list(open_corpus(str(tmp_path / "a.csv"))) == ["a b"]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_numbers_and_missing_values_of_a_csv_file_stay_text(way: dict[str, bool], tmp_path: Path) -> None:
    texts = ["12", "NA", "null", "", "1.0", "None"]
    assert list(open_corpus(str(write(tmp_path / "a.csv", texts)), column="text", **way)) == texts


def test_standard_input_is_read_once_and_has_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"a b\n\nc")))
    corpus = open_corpus("-")
    assert corpus.identity is None
    assert list(corpus) == ["a b", "", "c"]


def test_the_identity_follows_the_contents_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = write(tmp_path / "a.txt"), write(tmp_path / "other" / "a.txt")
    assert open_corpus(str(first)).identity == open_corpus(str(second)).identity
    second.write_text("else\n")
    assert open_corpus(str(first)).identity != open_corpus(str(second)).identity
    made = datasets.Dataset.from_dict({"text": ["x"]})
    made.save_to_disk(tmp_path / "set")
    identity = open_corpus(str(tmp_path / "set")).identity
    assert identity == open_corpus(str(tmp_path / "set")).identity is not None


def test_plain_text_needs_no_other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(open_corpus(str(write(tmp_path / "a.txt")), streaming=True)) == TEXTS
    with pytest.raises(ElmoError, match=r"modeling-elmo\[embed\]"):
        open_corpus(str(write(tmp_path / "a.csv")))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_saved_data_set_is_opened_by_its_folder_split_and_column(streaming: bool, tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"line": ["a b", None], "other": [1, 2]})
    datasets.DatasetDict({"train": made, "held": made.select([1])}).save_to_disk(tmp_path / "set")
    made.to_parquet(tmp_path / "files" / "train.parquet")
    folder = str(tmp_path / "set")
    assert list(open_corpus(folder, split="held", column="line", streaming=streaming)) == [""]
    assert list(open_corpus(str(tmp_path / "files"), column="line", streaming=streaming)) == ["a b", ""]
    for options, message in (
        ({"split": "train"}, "no column `text`; choose one with --column: line, other"),
        ({"split": "train", "column": "id"}, "no column `id`; choose one with --column: line, other"),
        ({"split": "test"}, "--split must be one of train, held, got 'test'"),
        ({}, "--split must be one of train, held, got None"),
    ):
        with pytest.raises(ElmoError, match=message):
            open_corpus(folder, streaming=streaming, **options)


@pytest.mark.parametrize(
    ("value", "documents", "expected"),
    [
        ("a b\nc", True, [["a", "b"], ["c"]]),
        (["a b", "", "c"], True, [["a", "b"], ["c"]]),
        ([["a", "b c"], ["d"]], True, [["a", "b c"], ["d"]]),
        (["a", "b c"], False, [["a", "b c"]]),
        (None, False, []),
    ],
)
def test_rows_may_be_texts_words_or_documents(value: Any, documents: bool, expected: list[list[str]]) -> None:
    assert Corpus(None, "text", documents=documents).sentences(value, ElmoTokenizer()) == expected


def test_raw_text_is_split_by_the_tokenizer() -> None:
    assert Corpus(None, tokenized=False).sentences("I can't.", ElmoTokenizer()) == [["I", "ca", "n't", "."]]


@pytest.mark.parametrize(
    ("training_text", "by_default"),
    [(None, ["don't."]), ("whitespace", ["don't."]), ("treebank", ["don't."]), ("raw", ["do", "n't", "."])],
)
def test_text_is_split_as_the_training_text_was_unless_an_option_says_otherwise(
    training_text: str | None, by_default: list[str], tmp_path: Path
) -> None:
    ElmoTokenizer(training_text=training_text).save_pretrained(tmp_path)
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path)
    assert Corpus(None).sentences("don't.", tokenizer) == [by_default]
    assert Corpus(None, tokenized=True).sentences("don't.", tokenizer) == [["don't."]]
    assert Corpus(None, tokenized=False).sentences("don't.", tokenizer) == [["do", "n't", "."]]


def test_an_option_that_contradicts_the_training_text_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    contradictions = [("raw", True), ("whitespace", False)]
    for training_text in (None, *TRAINING_TEXTS):
        for tokenized in (None, True, False):
            warn_about_splitting(ElmoTokenizer(training_text=training_text), tokenized)
            warning = capsys.readouterr().err
            assert warning.count("\n") == ((training_text, tokenized) in contradictions)


def test_rows_of_another_kind_are_refused() -> None:
    with pytest.raises(ElmoError, match="holds a int"):
        Corpus(None, "n").sentences(3, ElmoTokenizer())
    with pytest.raises(ElmoError, match="--documents"):
        Corpus(None, "n").sentences([["a"]], ElmoTokenizer())


BAD_FILES = {
    "empty.txt": (b"", "the file is empty"),
    "latin.txt": ("Grüße\n".encode() + "Grüße\n".encode("latin-1"), "line 2 is not UTF-8"),
    "latin.csv": ("text\nGrüße\n".encode("latin-1"), "line 2 is not UTF-8"),
    "latin.jsonl": ('{"text": "a"}\n{"text": "Grüße"}\n'.encode("latin-1"), "line 2 is not UTF-8"),
    "latin.txt.gz": (gzip.compress("a\nGrüße\n".encode("latin-1")), "line 2 is not UTF-8"),
    "cut.txt.gz": (gzip.compress(b"some text\n" * 1000, mtime=0)[:-10], "ended before"),
    "no.txt.gz": (b"no gzip", "Not a gzipped file"),
    "bad.jsonl": (b'{"text": "fine"}\n{"text"\n', "row 1"),
    "number.jsonl": (b'{"text": 5}\n', "row 0: expected text or a list of words, got '5'"),
    "a.parquet": (b"PAR1", "Parquet"),
}


@pytest.mark.parametrize("way", [{}, *WAYS], ids=str)
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_named_in_one_line(name: str, way: dict[str, bool], tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ElmoError) as caught:
        list(open_corpus(str(tmp_path / name), **way))
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sources_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    text, table = str(write(tmp_path / "a.txt")), str(write(tmp_path / "a.csv"))
    for source, options, message in (
        ("nowhere.txt", {}, "nowhere.txt: no such file"),
        (["nowhere"], {}, "nowhere: no such file"),
        ([text, table], {}, "of one format, got csv and text"),
        ([], {}, "of one format, got none"),
        (text, {"split": "train"}, "`--split` is for datasets"),
        (text, {"column": "line"}, "no column `line`"),
    ):
        with pytest.raises(ElmoError, match=message):
            open_corpus(source, **options)


RAW = ["We sat on the bank.", "He came late, as always."]


@pytest.mark.parametrize(
    ("texts", "options", "vocab", "training_text", "warning"),
    [
        (RAW, {}, (), None, "looks raw: 30% of its words are like 'bank.'; --raw splits them"),
        (RAW, {}, (), "treebank", "looks raw"),
        (RAW, {}, (), "whitespace", None),
        (RAW, {"tokenized": False}, (), None, None),
        (["We sat on the bank ."] * 99 + ["Mr. Hill , of the U.S. , came late ."] * 9, {}, (), "treebank", None),
        (["un café", "noir"], {}, (), None, None),
        (["un cafe\u0301", "noir"], {}, (), None, "33% of its words are not in Unicode's form NFC, as most text is"),
        (["un cafe\u0301", "noir"], {}, ("cafe\u0301",), None, None),
        (["un café", "noir"], {}, ("cafe\u0301",), None, "form NFD, as the model's vocabulary is"),
    ],
)
def test_text_that_looks_raw_or_is_in_another_unicode_form_is_said_once(
    texts: list[str],
    options: dict[str, Any],
    vocab: tuple[str, ...],
    training_text: str | None,
    warning: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokenizer = ElmoTokenizer(vocab=list(vocab), training_text=training_text)
    for name in ("a.txt", "a.csv"):
        warn_about_text(open_corpus(str(write(tmp_path / name, texts)), column="text", **options), tokenizer)
        errors = capsys.readouterr().err
        assert errors.count("warning: ") == errors.count("\n") == (warning is not None)
        assert (warning or "") in errors


def test_standard_input_is_not_read_before_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"We sat.")))
    corpus = open_corpus("-")
    warn_about_text(corpus, ElmoTokenizer())
    assert list(corpus) == ["We sat."]


def test_without_a_terminal_datasets_shows_no_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    datasets.enable_progress_bars()
    list(open_corpus(str(write(tmp_path / "a.csv")), column="text", as_dataset=True))
    assert capfd.readouterr().err == ""
    made = datasets.Dataset.from_dict({"text": ["x"]})
    made.to_parquet(tmp_path / "set" / "train.parquet")
    capfd.readouterr()
    datasets.enable_progress_bars()
    list(open_corpus(str(tmp_path / "set"), column="text"))
    assert capfd.readouterr().err == ""
