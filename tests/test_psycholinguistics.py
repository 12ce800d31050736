"""Minimal pairs and reading times: which sentence is the more probable, and what surprisal adds to a regression."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from training import evaluate, psycholinguistics
from training.psycholinguistics import ReadWord, bootstrap, held_out_likelihoods, measure, read_times, usable_words

WORDS = "The the bank river , . ! is are lends money banks".split()
SIZES = {"char_embedding_dim": 4, "char_filters": [[1, 4], [2, 8]], "num_highway_layers": 1, "projection_dim": 6}
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=WORDS, training_text="treebank")


@pytest.fixture(scope="module")
def model(tokenizer) -> ElmoForPreTraining:
    torch.manual_seed(0)
    model = ElmoForPreTraining(ElmoConfig(**SIZES, cell_dim=8, dropout=0.0, vocab_size=len(tokenizer))).eval()
    with torch.no_grad():  # a new model's predictions hardly depend on what it has read
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def run(table: str, folder: str, output: Path, *arguments) -> int:
    return evaluate.main([table, "--model", folder, "--output_dir", str(output), *map(str, arguments)])


# ------------------------------------------------------------------------------------------------------------- blimp


PAIRS = [
    ("agreement", "syntax", "The bank is.", "The bank are."),
    ("agreement", "syntax", "The banks are.", "The banks is."),
    ("agreement", "syntax", "The bank, the zebra!", "The bank, the bank."),
    ("order", "syntax/semantics", "The bank lends money.", "The bank money lends."),
]


def write_pairs(path: Path, pairs=PAIRS) -> Path:
    names = ("UID", "field", "sentence_good", "sentence_bad")
    lines = [json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return path


def test_the_sentence_with_the_higher_total_wins_by_each_direction(folder, model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(psycholinguistics, "BATCH", 2)
    path = write_pairs(tmp_path / "pairs.jsonl.gz")
    assert run("blimp", folder, tmp_path, path) == 0
    wins = []
    for _, _, *texts in PAIRS:
        good, bad = model.score([tokenizer.tokenize(text) for text in texts], tokenizer)
        forward, backward = good.forward.sum() > bad.forward.sum(), good.backward.sum() > bad.backward.sum()
        wins.append([good.log_probability > bad.log_probability, bool(forward), bool(backward)])
    rows = json.loads((tmp_path / "blimp.json").read_text())
    groups = {
        ("all", ""): wins,
        ("field", "syntax"): wins[:3],
        ("field", "syntax_semantics"): wins[3:],
        ("paradigm", "agreement"): wins[:3],
        ("paradigm", "order"): wins[3:],
    }
    assert [(row["level"], row["name"]) for row in rows] == list(groups)
    for row, answers in zip(rows, groups.values(), strict=True):
        assert row["pairs"] == len(answers)
        assert [row[name] for name in ("both", "forward", "backward")] == pytest.approx(np.mean(answers, axis=0))
    assert [row["with unknown words"] for row in rows] == pytest.approx([0.25, 1 / 3, 0, 1 / 3, 0])
    assert "| all |  | 4 |" in (tmp_path / "blimp.md").read_text()
    assert (tmp_path / "blimp.png").read_bytes().startswith(b"\x89PNG")


def test_a_limit_is_of_each_paradigm(tokenizer, tmp_path):
    path = write_pairs(tmp_path / "pairs.jsonl.gz")
    pairs = list(psycholinguistics.read_minimal_pairs(path, tokenizer, limit=2))
    assert [pair.paradigm for pair in pairs] == ["agreement", "agreement", "order"]
    assert pairs[0].sentences == (("The", "bank", "is", "."), ("The", "bank", "are", "."))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there are no pairs"),
        ("\n", "there are no pairs"),
        ("{\n", "line 1: "),
        ('\n{"UID": "a", "field": "b", "sentence_good": "c"}\n', "line 2: not the data of this task"),
        ('{"UID": "a", "field": "b", "sentence_good": "c", "sentence_bad": " "}\n', "line 1: UID, field, "),
        ('{"UID": "a", "field": "b", "sentence_good": "c", "sentence_bad": 1}\n', "must be text"),
        ("[1]\n", "line 1: not the data of this task"),
    ],
)
def test_bad_pairs_are_one_line(content, message, folder, tmp_path, capsys):
    (tmp_path / "pairs.jsonl").write_text(content)
    assert run("blimp", folder, tmp_path / "out", tmp_path / "pairs.jsonl") == 2
    *_, error = capsys.readouterr().err.splitlines()  # after the progress of loading
    assert error.startswith("error: ")
    assert message in error


# ----------------------------------------------------------------------------------------------------------- reading


def write_times(path: Path, rows, header="story\tposition\tword\tmean_reading_time_ms") -> Path:
    lines = [header, *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def made_words(milliseconds_per_bit: float, model, tokenizer, count: int = 400) -> list[ReadWord]:
    """Random sentences of two stories, with times that grow with the forward surprisal of the word before."""
    generator = np.random.default_rng(0)
    words = []
    for story in ("a", "b"):
        texts = generator.choice(["The", "bank", "river,", "is", "lends", "money.", "banks!"], count // 2)
        words += [ReadWord(story, text, 300.0) for text in texts]
    forward = measure(words, model, tokenizer, "fresh").features["forward"]
    times = 300 + milliseconds_per_bit * np.roll(forward, 1) + generator.normal(0, 5, count)
    return [word._replace(milliseconds=float(value)) for word, value in zip(words, times, strict=True)]


def test_a_word_has_the_sums_over_its_parts(model, tokenizer):
    words = [ReadWord("a", text, 300.0) for text in ("The", "bank,", "is", "don't", "money.", "The", "zebra.")]
    words += [ReadWord("b", text, 300.0) for text in ("The", "bank,")]
    measured = measure(words, model, tokenizer, "carried")
    assert measured.features["length"].tolist() == [3, 5, 2, 5, 6, 3, 6, 3, 5]
    assert measured.sentences.tolist() == [0, 0, 0, 0, 0, 1, 1, 2, 2]
    assert measured.is_unknown.tolist() == [False, False, False, True, False, False, True, False, False]
    first = "The bank , is do n't money .".split()
    (score,), states = model.score_batch([first], tokenizer)
    (second,), _ = model.score_batch([["The", "zebra", "."]], tokenizer, states)
    bits = score.forward.double() / -math.log(2)
    expected = [bits[0], bits[1] + bits[2], bits[3], bits[4] + bits[5], bits[6] + bits[7]]
    assert measured.features["forward"][:5] == pytest.approx(torch.stack(expected).numpy(), abs=TOLERANCE)
    bits = (second.backward[1:].double() / -math.log(2)).tolist()
    assert measured.features["backward"][5:7] == pytest.approx([bits[0], bits[1] + bits[2]], abs=TOLERANCE)
    log_p = model.softmax.initial_bias().double() / math.log(2)
    ids = tokenizer.convert_tokens_to_ids(["bank", ","])
    assert measured.features["frequency"][1] == pytest.approx(log_p[ids].sum().item(), abs=TOLERANCE)
    assert measured.features["forward"][7:] == pytest.approx(measured.features["forward"][:2], abs=TOLERANCE)


def test_words_that_cannot_be_used_are_left_out_with_the_two_after_them(model, tokenizer):
    texts = ["The", "bank", "is", "The", "zebra", "is", "The", "bank", "is", "The"]
    words = [ReadWord("a", text, None if place == 8 else 300.0) for place, text in enumerate(texts)]
    words += [ReadWord("b", "The", 300.0)] * 3
    assert usable_words(measure(words, model, tokenizer, "fresh")).tolist() == [2, 3, 7, 9, 12]


def test_likelihoods_are_of_words_that_the_regression_has_not_seen():
    generator = np.random.default_rng(0)
    inputs, groups = generator.normal(size=(60, 2)), np.repeat(np.arange(3), 20)
    times = inputs @ [2.0, -1.0] + generator.normal(size=60)
    found = held_out_likelihoods(inputs, times, groups)
    for group in range(3):
        own = groups == group
        regression = LinearRegression().fit(inputs[~own], times[~own])
        spread = np.std(times[~own] - regression.predict(inputs[~own]))
        z = (times[own] - regression.predict(inputs[own])) / spread
        assert found[own] == pytest.approx(-(z**2) / 2 - np.log(spread * np.sqrt(2 * np.pi)))


def test_an_interval_holds_the_mean_and_widens_where_groups_differ():
    gains = np.tile([0.0, 2.0], 50)
    together, apart = (bootstrap(gains, groups) for groups in (np.arange(100) // 2, np.arange(100) % 2))
    assert together == {"gain": 1.0, "low": 1.0, "high": 1.0}
    assert (apart["low"], apart["high"]) == (0.0, 2.0)


@pytest.mark.parametrize("options", [[], ["--raw_times"]])
def test_times_that_follow_forward_surprisal_show_it(options, folder, model, tokenizer, tmp_path, capsys):
    words = made_words(20, model, tokenizer)
    path = write_times(tmp_path / "times.tsv", [(word.story, 0, word.text, word.milliseconds) for word in words])
    assert run("reading", folder, tmp_path, path, *options) == 0
    rows = json.loads((tmp_path / "reading.json").read_text())
    assert len(rows) == 16
    for row in rows:
        gain = row["ΔLL per word"]
        if "forward" in row["surprisal"].split()[:1] and row["states"] == "fresh":
            assert gain["low"] > 0
            assert row["forward, ms per bit"] == pytest.approx(20, rel=0.2)
        if row["surprisal"] == "backward beyond forward":
            assert gain["gain"] < 0.1
    assert ("regressions of raw" if options else "regressions of log") in capsys.readouterr().out
    assert "| fresh | sentences | forward | 396 | +" in (tmp_path / "reading.md").read_text()
    assert (tmp_path / "reading.png").read_bytes().startswith(b"\x89PNG")


def test_other_columns_and_words_that_were_not_read(tmp_path):
    path = write_times(
        tmp_path / "a.tsv", [("a", '"The', ""), ("a", "bank", 0), ("b", "is", 2.5)], "story\tword\tgaze"
    )
    expected = [("a", '"The', None), ("a", "bank", None), ("b", "is", 2.5)]
    assert read_times(path, "gaze") == expected


ROW = ("a", 1, "The", 300)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no words"),
        ([ROW, ("a", 2, "bank", "fast")], "line 3: could not convert string to float: 'fast'"),
        ([("a", 2, "bank", -1)], "line 2: mean_reading_time_ms must be a time"),
        ([("a", 2, "bank", "nan")], "line 2: mean_reading_time_ms must be a time"),
        ([("a", 2, "bank")], "line 2: expected 4 columns"),
        ([(*ROW, 1)], "line 2: expected 4 columns"),
        ([("a", 2, "the bank", 300)], "line 2: expected a word without blanks"),
        ([ROW] * 30, "28 words can be used; a regression needs at least 50"),
        ([ROW] * 90, "all times are 300"),
        ([("a", 1, "The", 300 + number) for number in range(90)], "one sentence alone cannot be held out"),
    ],
)
def test_bad_times_are_one_line(rows, message, folder, tmp_path, capsys):
    path = write_times(tmp_path / "times.tsv", rows)
    assert run("reading", folder, tmp_path / "out", path) == 2
    *_, error = capsys.readouterr().err.splitlines()  # after the progress of loading
    assert error.startswith("error: ")
    assert message in error


def test_a_column_that_is_missing_is_named(folder, tmp_path, capsys):
    path = write_times(tmp_path / "times.tsv", [ROW])
    assert run("reading", folder, tmp_path, path, "--times", "gaze") == 2
    assert "no column gaze; there are story, position, word, mean_reading_time_ms" in capsys.readouterr().err


def test_natural_stories_are_read(shared):
    words = read_times(shared / "data" / "reading" / "natural_stories.1-5.tsv", "mean_reading_time_ms")
    assert (len(words), words[0].text, words[0].milliseconds) == (5201, "If", 369.01)
