"""`make demo`: its sample is in order, and it runs and writes what it says."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from pandas import DataFrame
from typer.testing import CliRunner

from modeling_elmo import MINI
from modeling_elmo.cli import app
from training import demo, figures
from training.task_data import read_examples

needs_mini = pytest.mark.skipif(
    not (Path(MINI) / "config.json").is_file(), reason=f"elmo-mini is not in {MINI}: training.bundle puts it there"
)


def test_every_sentence_of_the_sample_has_its_word_once_and_is_there_once() -> None:
    uses = list(demo.read_uses().itertuples())
    for use in uses:
        assert [word.lower() for word in use.words].count(use.word) == 1
    assert len({tuple(use.words) for use in uses}) == len(uses)
    senses = Counter((use.word, use.sense) for use in uses)
    assert {word for word, _ in senses} == set(demo.QUERIES)
    assert min(senses.values()) >= 5


def test_the_tagger_is_tested_on_sentences_and_tags_that_fit_its_training() -> None:
    train, test = (read_examples("pos", demo.SAMPLE / f"tags.{part}.tsv") for part in ("train", "test"))
    assert (len(train), len(test)) == (120, 60)
    assert not {tuple(words) for words in train["words"]} & {tuple(words) for words in test["words"]}
    assert {tag for tags in test["tags"] for tag in tags} <= {tag for tags in train["tags"] for tag in tags}


def test_the_nearest_other_use_of_the_same_word_decides_the_sense() -> None:
    uses = DataFrame({"word": list("aabaabb"), "sense": list("qqxrrxy")})
    vectors = np.array([[1, 0], [1, 0.1], [1, 0], [0, 1], [0.1, 1], [0.1, 1], [0.9, 0.1]])
    assert demo.same_sense(uses, vectors) == 4 + 0
    assert demo.same_sense(uses, vectors[[0, 3, 2, 1, 4, 6, 5]]) == 0 + 2
    # Of the first word one other of three, four times; of the second one of two, twice.
    assert demo.chance(uses) == pytest.approx(4 / 3 + 2 / 2)


def test_labels_in_the_picture_hide_no_point_and_no_other_label(tmp_path: Path) -> None:
    points = np.array([[0.1, 0.5], [0.12, 0.57], [0.14, 0.5], [0.8, 0.52], [0.8, 0.45]])
    labels = ["a use", "another use", "a third", "a fourth", "a fifth"]
    number, box = figures._free_place(points, [0, 1, 2], labels, [])
    other_number, other_box = figures._free_place(points, [3, 4], labels, [box])
    assert number in (0, 1, 2)
    assert other_number in (3, 4)
    assert not box.count_contains(points)
    assert not other_box.count_contains(points)
    assert not box.overlaps(other_box)
    figures.draw_senses({"use": (np.random.rand(5, 8), list("aaabb"), labels)}, tmp_path / "senses.png")
    assert pyplot.imread(tmp_path / "senses.png").std() > 0


@needs_mini
def test_a_vector_a_word_gives_related_words_and_never_the_word_itself() -> None:
    found = demo.static_neighbours(count=20)
    assert set(found) == set(demo.QUERIES)
    assert all(len(set(words)) == 20 and word not in words for word, words in found.items())
    assert {"river", "shore"} & set(found["bank"])
    assert {"sing", "dance"} <= set(found["play"])


@needs_mini
def test_the_demo_runs_and_writes_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    demo.demo(epochs=1, seeds=[1])
    printed, errors = capsys.readouterr()
    assert errors == ""
    assert [line for line in printed.splitlines() if line[:1].isdigit()][-1] == "4. Pictures and a page"
    assert max(map(len, printed.split("\nNext")[0].splitlines())) <= demo.WIDTH
    for word, queries in demo.QUERIES.items():
        assert f"\n   {word}\n     one vector a word: " in printed
        assert all(query in printed for query in queries)
    assert printed.count("% right") == 2
    for name in ("senses.png", "mix_weights.png"):
        assert f"   demo/{name}: " in printed
        assert pyplot.imread(tmp_path / "demo" / name).std() > 0
    assert "   demo/senses.html: " in printed
    assert printed.endswith(f"Open {(tmp_path / 'demo' / 'senses.html').as_uri()} in a browser.\n")
    assert "<title>Senses in senses.tsv</title>" in (tmp_path / "demo" / "senses.html").read_text(encoding="utf-8")
    # The command that it proposes first finds the index that is there.
    result = CliRunner().invoke(app, ["neighbors", "We [play] the drums .", "--corpus", "demo/sentences.txt"])
    assert (result.exit_code, result.stderr) == (0, "")
