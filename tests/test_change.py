"""Change of words between periods: the formulas, whatever the order of lines, the batch and the interruptions."""

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from test_embedding import assert_refused
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoEmbedder, ElmoModel, ElmoTokenizer
from modeling_elmo import change as change_module
from modeling_elmo.change import UseVectors, average_pairwise_distance, measure_change, prototype_distance
from modeling_elmo.change_uses import Reservoir, Use, read_lemmas, sample_corpora, sample_table
from modeling_elmo.cli import app
from modeling_elmo.files import INTERRUPTED
from training import change as truth_module
from training import evaluate

# Vectors are kept in float16; sums of a few are in float32.
TOLERANCE = 2e-3
PLACES = ["the river", "a deep lake", "the old mill", "a green field", "the long road", "a small wood"]
LENDERS = ["money", "loans", "credit", "cash", "debts", "gold"]


def sentences(with_bank: list[str], seed: int) -> list[str]:
    """Uses of several words in the same contexts, and of `bank` in its own."""
    lines = [
        f"We saw {kind} by {place} and {other} ." for kind in ("cats", "dogs") for place in PLACES for other in PLACES
    ]
    lines += [f"He gave {thing} to the bank for {other} ." for thing in with_bank for other in with_bank]
    random.Random(seed).shuffle(lines)
    return lines


OLD, NEW = sentences(PLACES, seed=1), sentences(LENDERS, seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    torch.manual_seed(0)
    config = ElmoConfig(
        char_embedding_dim=4, char_filters=[[1, 4], [3, 8]], num_highway_layers=1, projection_dim=6, cell_dim=16
    )
    path = tmp_path_factory.mktemp("change") / "model"
    ElmoModel(config).save_pretrained(path)
    return path


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def corpora(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "old.txt", OLD), write(tmp_path / "new.txt", NEW)


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "PART_WORDS", 200)


def change(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["change", *map(str, arguments)])


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def numbers(rows: list[dict[str, str]]) -> dict[str, list[float]]:
    """Return all scores of each word."""
    return {row["word"]: [float(row[name]) for name in row if name.startswith(("apd", "prt"))] for row in rows}


def write_table(path: Path, uses: list[tuple[str, str, str, str]], header: str = "start\tend") -> Path:
    """Write uses of a lemma, a period, a context and the word in that."""
    lines = [f"lemma\tgrouping\tcontext\t{header}"]
    for lemma, period, context, word in uses:
        start = context.index(word)
        span = f"{start}:{start + len(word)}" if header.startswith("indexes") else f"{start}\t{start + len(word)}"
        lines.append(f"{lemma}\t{period}\t{context}\t{span}")
    return write(path, lines)


# -------------------------------------------------------------------------------------------------------- distances


def test_scores_are_the_averages_over_all_pairs_and_the_distance_of_the_means() -> None:
    random_numbers = np.random.default_rng(0)
    first, second = random_numbers.normal(size=(5, 2, 4)), random_numbers.normal(size=(7, 2, 4))
    apd, prt = average_pairwise_distance(first, second), prototype_distance(first, second)

    def distance(one: np.ndarray, other: np.ndarray) -> float:
        return 1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    for layer in range(2):
        pairs = [distance(one[layer], other[layer]) for one in first for other in second]
        assert apd[layer] == pytest.approx(np.mean(pairs))
        assert prt[layer] == pytest.approx(distance(first.mean(0)[layer], second.mean(0)[layer]))


def test_identical_corpora_have_a_prt_of_0_and_the_apd_of_a_word_with_itself(
    folder: Path, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    same = {"first": str(corpora[0]), "second": str(write(tmp_path / "same.txt", OLD[::-1]))}
    report = measure_change(same, folder, tmp_path / "out.tsv", words=["cats", "bank"])
    sample = sample_corpora(same, ElmoTokenizer(), words=["bank"])
    (bank,) = (word for word in report.words if word.word == "bank")
    distance = bank.distances["first", "second"]
    np.testing.assert_allclose(distance.prt, 0, atol=1e-6)
    embedder = ElmoEmbedder.from_pretrained(folder, layers="top")
    uses = sample.uses["bank", "first"]
    arrays = embedder.embed([list(use.sentence) for use in uses])
    vectors = np.array([array[use.position] for use, array in zip(uses, arrays, strict=True)])
    own = average_pairwise_distance(vectors[:, None], vectors[:, None])
    assert distance.apd[report.layers.index("2")] == pytest.approx(own[0], abs=TOLERANCE)


def test_vectors_are_those_of_the_embedder_by_each_layer_and_by_the_models_own_mix(
    folder: Path, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    model = ElmoModel.from_pretrained(folder)
    with torch.no_grad():
        model.scalar_mix.scalar_weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        model.scalar_mix.gamma.fill_(1.5)
    model.save_pretrained(tmp_path / "mixed")
    embedder = ElmoEmbedder.from_pretrained(tmp_path / "mixed", layers="all", dtype="float16")
    sample = sample_corpora({"old": str(corpora[0])}, embedder.tokenizer, words=["bank"])
    vectors = UseVectors(sample, ["bank"], embedder, tmp_path / "parts", {"input": "this"})
    found = vectors.of("bank", "old")
    assert vectors.layers == ["0", "1", "2", "mix"]
    for column, layer in enumerate(vectors.layers):
        plain = ElmoEmbedder.from_pretrained(tmp_path / "mixed", layers=layer)
        for use, vector in zip(sample.uses["bank", "old"], found[:, column], strict=True):
            (array,) = plain.embed([list(use.sentence)])
            np.testing.assert_allclose(vector, array[use.position], atol=TOLERANCE)


def test_a_planted_change_ranks_first_and_its_uses_and_picture_are_there(
    folder: Path, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    words = write(tmp_path / "words.txt", ["cats", "Bank", "dogs", "and"])
    output, pictures = tmp_path / "out.tsv", tmp_path / "pictures"
    options = ["--model", folder, "--words", words, "--measure", "prt", "--picture", pictures]
    result = change(*corpora, *options, "--output", output)
    assert result.exit_code == 0, result.output
    first, *others = read(output)
    assert (first["word"], first["uses old"], first["uses new"]) == ("bank", "36", "36")
    assert all(float(first["prt low"]) > float(row["prt high"]) for row in others)
    assert "[bank]" in first["typical old"]
    assert any(thing in first["moved 1"] for thing in LENDERS)
    names = sorted(path.name for path in pictures.iterdir())
    assert len(names) == 4
    assert names[0] == "01-bank.png"
    assert not list(tmp_path.glob(".out.tsv*"))
    # APD also counts how varied the uses are, so it is compared with that of the same word without the change.
    unchanged = {"old": str(corpora[0]), "same": str(write(tmp_path / "same.txt", OLD))}
    (same,) = measure_change(unchanged, folder, tmp_path / "same.tsv", words=["bank"]).words
    assert float(first["apd low"]) > same.distances["old", "same"].apd[2]


# ----------------------------------------------------------------------------------------------------------- sample


@pytest.mark.usefixtures("_small_parts")
def test_neither_the_order_of_lines_nor_the_batch_changes_the_scores(
    folder: Path, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"words": ["cats", "dogs", "bank"], "max_uses": 20}
    measure_change(list(map(str, corpora)), folder, tmp_path / "one.tsv", **options)
    for path, lines in zip(corpora, (OLD, NEW), strict=True):
        write(path, sorted(lines))
    measure_change(list(map(str, corpora)), folder, tmp_path / "two.tsv", **options)
    assert (tmp_path / "one.tsv").read_text() == (tmp_path / "two.tsv").read_text()
    measure_change(list(map(str, corpora)), folder, tmp_path / "three.tsv", batch_words=30, **options)
    first, third = numbers(read(tmp_path / "one.tsv")), numbers(read(tmp_path / "three.tsv"))
    for word in first:
        np.testing.assert_allclose(first[word], third[word], atol=TOLERANCE)


def test_a_sample_has_each_use_once_and_every_use_equally_often() -> None:
    drawn = np.zeros(20)
    for seed in range(300):
        numbers = np.random.default_rng(seed).permutation(20)
        reservoir = Reservoir(5)
        for use in [*range(20), *range(20)]:
            reservoir.add(int(numbers[use]), Use(("word",), use))
        places = [use.position for use in reservoir.uses()]
        assert len(set(places)) == len(places) == 5
        drawn[places] += 1
    assert drawn.min() > 40  # of 75 that are expected; less has a probability below 1e-5


def test_another_seed_draws_other_uses(corpora: tuple[Path, Path]) -> None:
    source = {"old": str(corpora[0])}
    samples = [sample_corpora(source, ElmoTokenizer(), ["bank"], limit=8, seed=seed) for seed in (0, 0, 1)]
    first, same, other = (sample.uses["bank", "old"] for sample in samples)
    assert first == same != other
    assert samples[0].counts["bank", "old"] == 36


def test_words_are_those_that_are_frequent_in_each_period_and_forms_count_as_their_lemma(tmp_path: Path) -> None:
    sources = {
        "old": str(write(tmp_path / "old.txt", ["the Banks , the bank", "the cat", "the dog"])),
        "new": str(write(tmp_path / "new.txt", ["bank , banks the", "the dog the"])),
    }
    assert sample_corpora(sources, ElmoTokenizer(), min_count=2).words() == ["the"]
    lemmas = read_lemmas(write(tmp_path / "lemmas.tsv", ["banks\tbank", "", "DOG\thound"]))
    sample = sample_corpora(sources, ElmoTokenizer(), lemmas=lemmas)
    assert sample.words() == ["bank", "hound", "the"]
    assert sample.counts["bank", "old"] == 2
    assert [use.position for use in sample.uses["bank", "new"]] == [0, 2]


def test_each_file_is_split_as_it_looks(tmp_path: Path) -> None:
    split = [f"He went to the bank , and then to shop number {number} ." for number in range(9)]
    sources = {
        "split": str(write(tmp_path / "split.txt", split)),
        "raw": str(write(tmp_path / "raw.txt", [line.replace(" ,", ",").replace(" .", ".") for line in split])),
    }
    sample = sample_corpora(sources, ElmoTokenizer(), words=["bank"])
    assert sample.tokenized == {"split": True, "raw": False}
    assert sample.uses["bank", "split"] == sample.uses["bank", "raw"]


@pytest.mark.parametrize("header", ["start\tend", "target_start\ttarget_end", "indexes_target_token"])
def test_a_table_has_the_uses_of_its_contexts(header: str, tmp_path: Path) -> None:
    uses = [
        ("bank_nn", "1900", 'We saw "the Banks" of\u2009the river, banks too.', "Banks"),
        ("bank_nn", "200", "A bank, they say, lends.", "bank"),
        ("cat", "200", "The cats.", "cats"),
    ]
    sample = sample_table(str(write_table(tmp_path / "uses.tsv", uses, header)), ElmoTokenizer())
    assert sample.periods == ["200", "1900"]  # by number
    assert sample.words() == ["bank_nn"]
    assert sample.uses["bank_nn", "200"] == [Use(("A", "bank", ",", "they", "say", ",", "lends", "."), 1)]
    assert sample.uses["bank_nn", "1900"][0].position == 4


def test_more_than_two_periods_give_a_curve(folder: Path, corpora: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "out.tsv"
    labelled = [f"1900={corpora[0]}", f"1950={corpora[0]}", f"2000={corpora[1]}"]
    options = [
        "--model",
        folder,
        "--min-count",
        30,
        "--layer",
        "1",
        "--measure",
        "prt",
        "--picture",
        tmp_path / "drawn",
    ]
    result = change("--corpora", *labelled, *options, "--output", output)
    assert result.exit_code == 0, result.output
    first = read(output)[0]
    assert [name for name in first if " to " in name and name.startswith("prt")] == [
        "prt 1900 to 1950",
        "prt 1950 to 2000",
    ]
    assert float(first["prt 1900 to 1950"]) == 0
    assert float(first["prt 1950 to 2000"]) == float(first["prt"]) == float(first["prt 1"])
    assert (tmp_path / "drawn" / f"01-{first['word']}-curve.png").is_file()


# ----------------------------------------------------------------------------------------------------------- resume


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("damage", [None, "cut", "swap"])
def test_an_interrupted_run_resumes_and_equals_an_uninterrupted_one(
    damage: str | None, folder: Path, corpora: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*corpora, "--model", folder, "--min-count", 20, "--output"]
    whole, output = tmp_path / "whole.tsv", tmp_path / "out.tsv"
    assert change(*arguments, whole).exit_code == 0
    write_part = UseVectors._write_part
    written: list[Path] = []

    def interrupted(self: UseVectors, path: Path, *more: Any) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        write_part(self, path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(UseVectors, "_write_part", interrupted)
        result = change(*arguments, output)
    assert result.exit_code == INTERRUPTED
    assert "run the same command again" in result.stderr
    assert not output.exists()
    if damage == "cut":
        written[1].write_bytes(written[1].read_bytes()[:-9])
    elif damage == "swap":
        written[1].write_bytes(written[2].read_bytes())
    assert_refused(change(*arguments, output, "--seed", 5), "an unfinished run, other in seed; --restart discards it")
    again: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            UseVectors, "_write_part", lambda self, path, *more: (again.append(path), write_part(self, path, *more))
        )
        assert change(*arguments, output).exit_code == 0
    assert set(again) & set(written) == ({written[1]} if damage else set())
    assert output.read_text() == whole.read_text()
    assert not list(tmp_path.glob(".out.tsv*"))


# ------------------------------------------------------------------------------------------------------- bad input


def test_a_word_that_one_period_lacks_is_left_out_in_one_line(
    folder: Path, corpora: tuple[Path, Path], tmp_path: Path
) -> None:
    words = write(tmp_path / "words.txt", ["bank", "loans", "phone"])
    result = change(*corpora, "--model", folder, "--words", words, "--output", tmp_path / "out.tsv")
    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning")]
    assert warnings == ["warning: no use in old, left out: loans, phone", "warning: no use in new, left out: phone"]
    assert [row["word"] for row in read(tmp_path / "out.tsv")] == ["bank"]


BAD_INPUT = {
    "empty": (["", "the bank .\n"], [], "the file is empty"),
    "blank": (["\n\n", "the bank .\n"], [], "holds no sentences"),
    "no overlap": (["the cat\n", "some dogs\n"], [], "no overlap: no word occurs 20 times in each of a, b"),
    "no use": (["the cat\n", "some dogs\n"], ["--words", "words"], "no overlap: no word has uses in each of a, b"),
    "one corpus": (["the cat\n"], ["--corpora"], "expected LABEL=FILE"),
    "no table": (["the cat\n"], [], "not a table of uses: it has no column lemma"),
    "no rows": (["lemma\tdate\tcontext\tstart\tend\n"], [], "there are no uses"),
    "one period": (["lemma\tdate\tcontext\tstart\tend\na\t1\ta b\t0\t1\n"], [], "needs at least two periods"),
    "a bad place": (["lemma\tdate\tcontext\tstart\tend\na\t1\ta b\t2\t9\n"], [], "line 2: no word from 2 to 9"),
    "a short row": (["lemma\tdate\tcontext\tstart\tend\na\t1\ta b\n"], [], "line 2: expected 5 columns"),
    "a layer": (["the cat\n", "the dog\n"], ["--layer", "7", "--min-count", "1"], "`layer` must be top, 0, 1, 2, mix"),
    "a measure": (["the cat\n", "the dog\n"], ["--measure", "jsd"], "`measure` must be one of apd, prt"),
    "lemmas": (["the cat\n", "the dog\n"], ["--lemmas", "words"], "line 1: expected a word form, a tab and its lemma"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_writes_nothing(
    case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contents, options, message = BAD_INPUT[case]
    write(tmp_path / "words", ["cat"])
    files = []
    for name, content in zip("ab", contents, strict=False):
        files.append(tmp_path / f"{name}.txt")
        files[-1].write_text(content)
    assert_refused(change(*files, "--model", folder, *options, "--output", "out.tsv"), message)
    assert not Path("out.tsv").exists()


# ------------------------------------------------------------------------------------------------------ evaluation


def write_uses(path: Path) -> Path:
    """Uses of words of which each has changed in more of its contexts than the one before."""
    uses = []
    for number, word in enumerate(["cats", "dogs", "mills", "banks", "roads"]):
        for index, (place, thing) in enumerate(zip(PLACES, LENDERS, strict=True)):
            uses.append((word, "1", f"We saw the {word} by {place} .", word))
            new = f"They have {word} with {thing} !" if index < 1.3 * number else f"We saw the {word} by {place} ."
            uses.append((word, "2", new, word))
    return write_table(path, uses)


def evaluate_change(*arguments: object) -> int:
    return evaluate.main(["change", *map(str, arguments)])


def test_the_change_of_words_is_compared_with_the_truth(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uses = write_uses(tmp_path / "uses.tsv")
    truth = write(
        tmp_path / "truth.tsv", ["cats\t0", "dogs\t0.2", "mills\t0.4", "banks\t0.6", "roads\t0.9", "phone\t1"]
    )
    assert evaluate_change(uses, "--truth", truth, "--model", folder, "--output_dir", tmp_path / "out") == 0
    error = capsys.readouterr().err
    assert "warning: left out, no uses in both periods of uses.tsv: phone\n" in error
    rows = evaluate.read_json(tmp_path / "out" / "change.json")
    scores = evaluate.read_json(tmp_path / "out" / "change-words.json")
    assert [row["word"] for row in scores] == ["banks", "cats", "dogs", "mills", "roads"]
    for row in rows:
        column = [score[f"{row['measure']}, {row['representation']}"] for score in scores]
        assert row["rho"] == pytest.approx(spearmanr(column, [score["truth"] for score in scores]).statistic)
        assert row["low"] <= row["rho"] <= row["high"]
    by_top = next(row for row in rows if (row["measure"], row["representation"]) == ("PRT", "LSTM layer 2"))
    assert by_top["rho"] > 0.8
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".md", ".png"}


def test_p_is_the_share_of_permutations_with_as_high_a_correlation() -> None:
    truth = np.arange(5.0)
    perfect = truth_module.score_correlation(truth, truth)
    assert perfect["rho"] == pytest.approx(1)
    assert perfect["p"] == pytest.approx(2 / 120, abs=0.006)  # in order or in reverse, of 5! orders
    assert truth_module.score_correlation(np.zeros(5), truth)["p"] == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["cats"], "truth.tsv: line 1: expected a word, a tab and a number"),
        (["cats\t0", "dogs\tnan"], "truth.tsv: line 2: expected a word, a tab and a number"),
        (["phone\t0", "radio\t1"], "truth.tsv: 0 of its words have uses in"),
    ],
)
def test_a_truth_that_cannot_be_used_is_one_line(
    lines: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uses, truth = write_uses(tmp_path / "uses.tsv"), write(tmp_path / "truth.tsv", lines)
    assert evaluate_change(uses, "--truth", truth, "--model", folder, "--output_dir", tmp_path / "out") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
