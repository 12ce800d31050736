"""Nearest uses of a word in a corpus: those of a plain comparison, from an index that is made once."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pytest
import torch
from test_embedding import INTERRUPTED, assert_refused
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoEmbedder, ElmoModel
from modeling_elmo import embed_corpus as embed_corpus_module
from modeling_elmo.cli import app
from modeling_elmo.files import BAD_INPUT
from modeling_elmo.locks import one_writer
from modeling_elmo.neighbors import SHOWN_WORDS, Neighbor, Uses, mark, neighbor_lines

QUERY = "He sat on the [bank] of the river ."
WORDS, PLACE = QUERY.replace("[", "").replace("]", "").split(), 4
LAYERS = ["top", "mix", "average", "0", "1", "2"]
# The index is in float16, whose values are off by up to one part in two thousand.
TOLERANCE = 1e-3

SENTENCES = [
    *("The Bank of England lends money .", "", "We walked along the bank until it was dark .", "bank BANK banks"),
    *(f"On day {number} the cat saw a dog by the river and no {'bank' * (number % 3 == 0)} ." for number in range(40)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    torch.manual_seed(0)
    config = ElmoConfig(
        char_embedding_dim=4, char_filters=[[1, 4], [3, 8]], num_highway_layers=1, projection_dim=6, cell_dim=16
    )
    path = tmp_path_factory.mktemp("neighbors") / "model"
    ElmoModel(config).save_pretrained(path)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards and several record batches in a small corpus."""
    monkeypatch.setattr(embed_corpus_module, "SHARD_WORDS", 60)
    monkeypatch.setattr(embed_corpus_module, "ROW_GROUP_BYTES", 1000)


def neighbors(corpus: object, model: object, *more: object, sentence: str = QUERY) -> Any:
    arguments = ["neighbors", sentence, "--corpus", corpus, "--model", model, *more]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def indexes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.arrow"))


def expected(model: Path, layer: str, any_word: bool) -> list[Neighbor]:
    """All uses, the nearest first, compared one by one."""
    embedder = ElmoEmbedder.from_pretrained(model, layers=layer)
    query, *others = embedder.embed([WORDS, *(sentence.split() for sentence in SENTENCES)])
    found = []
    for number, (sentence, vectors) in enumerate(zip(SENTENCES, others, strict=True)):
        for position, (word, vector) in enumerate(zip(sentence.split(), vectors, strict=True)):
            if any_word or word.lower() == "bank":
                cosine = query[PLACE] @ vector / np.linalg.norm(query[PLACE]) / np.linalg.norm(vector)
                found.append(Neighbor(float(cosine), number, position, sentence.split()))
    return sorted(found, key=lambda neighbor: -neighbor.score)


# ---------------------------------------------------------------------------------------------------------- search


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("any_word", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_nearest_uses_are_those_of_a_plain_comparison(
    folder: Path, corpus: Path, layer: str, any_word: bool
) -> None:
    uses = Uses(corpus, folder, layer)
    wanted = expected(folder, layer, any_word)
    for count in (3, len(wanted), len(wanted) + 5):
        found = uses.nearest(QUERY, count, any_word)
        assert len(found) == min(count, len(wanted))
        np.testing.assert_allclose(
            [neighbor.score for neighbor in found], [neighbor.score for neighbor in wanted[:count]], atol=TOLERANCE
        )
    # Of all uses, each is found once, where it is.
    assert sorted(neighbor[1:] for neighbor in found) == sorted(neighbor[1:] for neighbor in wanted)


@pytest.mark.usefixtures("_small_parts")
def test_a_use_in_the_same_sentence_is_found_first_and_has_a_cosine_of_1(folder: Path, corpus: Path) -> None:
    (nearest,) = Uses(corpus, folder).nearest("We walked along the [bank] until it was dark .", count=1)
    assert nearest[1:] == (2, 4, SENTENCES[2].split())
    assert nearest.score == pytest.approx(1, abs=TOLERANCE)


def test_raw_text_and_tables_are_corpora(folder: Path, tmp_path: Path) -> None:
    text, table = tmp_path / "raw.txt", tmp_path / "table.csv"
    text.write_text("Is this the bank?\n")
    table.write_text('id,said\n1,"It is the bank ."\n')
    assert Uses(text, folder, tokenized=False).nearest(QUERY)[0].words == ["Is", "this", "the", "bank", "?"]
    assert Uses(table, folder, column="said").nearest(QUERY)[0].position == 3


def test_a_word_that_splitting_hides_is_explained_in_one_line(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "raw.txt"
    text.write_text("I don't know the bank.\n")
    split = neighbors(text, folder, "--raw", "--index", tmp_path / "split", sentence="I [don't] know")
    assert_refused(split, "it has no word \"don't\", which is split into 'do' and \"n't\" there: mark one of them")
    assert neighbors(text, folder, "--raw", "--index", tmp_path / "split", sentence="I do[n't] know").exit_code == 0
    hidden = neighbors(text, folder, "--index", tmp_path / "whole")
    assert_refused(hidden, "it has no word 'bank', but 'bank.': --raw splits such text")


# ----------------------------------------------------------------------------------------------------------- index


def test_the_index_is_made_once_and_found_again(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = neighbors(corpus, folder)
    assert first.exit_code == 0, first.output
    (index,) = indexes(tmp_path)
    assert f"words: {index}\n" in first.stderr
    made = index.stat().st_mtime_ns
    os.utime(corpus, (0, 0))  # the same contents
    moved = shutil.copytree(folder, tmp_path / "moved")
    monkeypatch.delattr("modeling_elmo.neighbors.embed_corpus")
    for model, layer in ((folder, "top"), (moved, "2")):
        again = neighbors(corpus, model, "--layer", layer)
        assert (again.stdout, again.stderr) == (first.stdout, "")
    assert [index.stat().st_mtime_ns for index in indexes(tmp_path)] == [made]


def test_another_corpus_model_layer_or_splitting_has_an_index_of_its_own(
    folder: Path, corpus: Path, tmp_path: Path
) -> None:
    paths = [Uses(corpus, folder).index, Uses(corpus, folder, "1").index, Uses(corpus, folder, tokenized=False).index]
    model = ElmoModel.from_pretrained(folder)
    torch.nn.init.ones_(model.char_encoder.projection.bias)
    model.save_pretrained(tmp_path / "other")
    paths.append(Uses(corpus, tmp_path / "other").index)
    corpus.write_text(corpus.read_text().replace("England", "Ireland"))
    changed = Uses(corpus, folder)
    assert any("Ireland" in neighbor.words for neighbor in changed.nearest(QUERY, 100))
    paths.append(changed.index)
    assert indexes(tmp_path) == sorted(set(paths))
    assert len(set(paths)) == 5


def test_indexes_are_kept_in_the_folder_that_is_given(folder: Path, corpus: Path, tmp_path: Path) -> None:
    assert neighbors(corpus, folder, "--index", tmp_path / "my" / "indexes").exit_code == 0
    assert len(indexes(tmp_path / "my" / "indexes")) == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [corpus.name]


@pytest.mark.usefixtures("_small_parts")
def test_an_index_that_was_interrupted_goes_on(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    write = embed_corpus_module._write_shard

    def interrupted(path: Path, *more: Any) -> int:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        return write(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(embed_corpus_module, "_write_shard", interrupted)
        result = neighbors(corpus, folder)
    assert result.exit_code == INTERRUPTED
    assert "run the same command again" in result.stderr
    assert len(written) == 3
    assert indexes(tmp_path) == []
    os.utime(corpus, (0, 0))  # it is still the same corpus
    uses = Uses(corpus, folder)
    assert uses.report is not None
    assert 0 < uses.report.words_now < uses.report.words
    assert len(uses.nearest(QUERY, 100)) == len(expected(folder, "top", any_word=False))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("damage", ["cut", "nan", "other", "no digest"])
def test_an_index_that_is_not_as_it_was_written_is_made_again(damage: str, folder: Path, corpus: Path) -> None:
    index = Uses(corpus, folder).index
    content = index.read_bytes()
    if damage == "cut":
        index.write_bytes(content[: len(content) // 2])
    elif damage == "nan":
        index.write_bytes(content.replace(content[2000:2064], b"\xff" * 64))
    elif damage == "other":
        with pyarrow.OSFile(str(index), "wb") as file, pyarrow.ipc.new_file(file, pyarrow.schema([])):
            pass
    else:
        index.with_suffix(".sha256").unlink()
    uses = Uses(corpus, folder)
    assert uses.report is not None
    assert index.read_bytes() == content
    assert len(uses.nearest(QUERY, 100)) == len(expected(folder, "top", any_word=False))
    assert Uses(corpus, folder).report is None


def test_an_index_that_another_process_is_making_is_refused_by_its_owner(folder: Path, corpus: Path) -> None:
    uses = Uses(corpus, folder)
    uses.index.unlink()
    with one_writer(uses.index, uses.index.with_name(f".{uses.index.name}.lock")):
        result = neighbors(corpus, folder)
    assert result.exit_code == BAD_INPUT
    assert re.fullmatch(r"error: \S+: process \d+ on \S+ since [-\d]+ [:\d]+ is writing it; .*\n", result.stderr)


# ---------------------------------------------------------------------------------------------------------- output


def test_the_table_marks_the_word_and_json_has_the_same_and_all_words(folder: Path, corpus: Path) -> None:
    header, *rows = neighbors(corpus, folder, "--count", 4).stdout.splitlines()
    assert header == "cosine\tuse"
    lines = neighbors(corpus, folder, "--count", 4, "--json").stdout.splitlines()
    assert len(rows) == len(lines) == 4
    for row, line in zip(rows, lines, strict=True):
        entry = json.loads(line)
        assert entry["word"] == entry["words"][entry["position"]]
        assert entry["words"] == SENTENCES[entry["number"]].split()
        assert row == f"{entry['score']:.3f}\t{mark(entry['words'], entry['position'])}"
    assert list(neighbor_lines([Neighbor(0.5, 7, 1, ["Die", "Bänke"])])) == ["cosine\tuse", "0.500\tDie [Bänke]"]


def test_long_sentences_are_cut_around_the_word() -> None:
    words = [str(number) for number in range(100)]
    assert mark(words[: SHOWN_WORDS + 1], 0) == " ".join(["[0]", *words[1 : SHOWN_WORDS + 1]])
    assert mark(words, 50).split() == ["…", *words[50 - SHOWN_WORDS : 50], "[50]", *words[51 : 51 + SHOWN_WORDS], "…"]


def test_help_shows_a_command_to_copy() -> None:
    assert '  elmo neighbors "He sat' in CliRunner().invoke(app, ["neighbors", "--help"]).stdout


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("sentence", ["no mark", "two [a] [b]", "[]", "open [a"])
def test_a_sentence_without_one_marked_word_is_refused_before_the_corpus_is_read(
    folder: Path, tmp_path: Path, sentence: str
) -> None:
    assert_refused(neighbors(tmp_path / "nothing.txt", folder, sentence=sentence), "mark one word")


def test_a_corpus_that_is_missing_or_empty_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("nothing", "nothing.txt"):
        assert_refused(neighbors(tmp_path / name, folder), name, "no such file")
    assert_refused(neighbors(tmp_path, folder), tmp_path, "no such file")
    (tmp_path / "empty.txt").touch()
    assert_refused(neighbors(tmp_path / "empty.txt", folder), "empty.txt", "the file is empty")
    (tmp_path / "blank.txt").write_text("\n \n")
    assert_refused(neighbors(tmp_path / "blank.txt", folder, "--any-word"), "blank.txt", "it has no word")


def test_a_word_that_the_corpus_lacks_is_named_with_the_way_out(folder: Path, corpus: Path) -> None:
    result = neighbors(corpus, folder, sentence="An [oyster] .")
    assert_refused(result, corpus, "'oyster'", "--any-word")
    assert neighbors(corpus, folder, "--any-word", sentence="An [oyster] .").exit_code == 0


@pytest.mark.parametrize("layer", ["3", "-1", "all", "0,2", "last"])
def test_a_layer_that_the_model_lacks_is_refused(folder: Path, corpus: Path, layer: str) -> None:
    assert_refused(neighbors(corpus, folder, "--layer", layer), "`layer", repr(layer))


def test_models_and_index_folders_that_do_not_fit_are_refused(folder: Path, corpus: Path, tmp_path: Path) -> None:
    assert_refused(neighbors(corpus, tmp_path / "nothing"), "nothing", "no such model")
    assert_refused(neighbors(corpus, folder, "--index", corpus), corpus, "exists")
    assert_refused(neighbors(corpus, folder, "--column", "said"), "--column")
    assert indexes(tmp_path) == []


def test_a_place_for_the_index_is_asked_for_where_the_corpus_is_read_only(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    assert_refused(neighbors(corpus, folder), tmp_path, "--index")
    assert neighbors(corpus, folder, "--index", tmp_path / "indexes").exit_code == 0


def test_a_word_in_another_unicode_form_is_told_from_one_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("un cafe\u0301 noir\n", encoding="utf-8")
    result = neighbors(corpus, folder, sentence="le [Café] .")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(
        "has it in Unicode's form NFD: write corpus and sentence in one form"
    )
    assert neighbors(corpus, folder, sentence="le [thé] .").stderr.splitlines()[-1].endswith("uses of other words")


def test_without_a_terminal_a_short_run_shows_no_progress(folder: Path, corpus: Path) -> None:
    first = neighbors(corpus, folder)
    assert first.exit_code == 0
    assert first.stderr.startswith("Indexed ")
    assert first.stderr.count("\n") == 1
