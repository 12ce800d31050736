"""What a biLM has learned, and putting one into the package."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

from modeling_elmo import MINI, ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.files import ElmoError
from training import bundle, evaluate, figures

SIZES = {"projection_dim": 16, "cell_dim": 32, "char_filters": [[1, 8], [3, 24]], "num_highway_layers": 1}
VOCABULARY = ["the", "bank", "river", "money", "."]
TEXT = "the bank .\nthe river bank .\nmoney\nthe unknown money .\n"
# Float32 sums of a few sentences.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    tokenizer = ElmoTokenizer(vocab=VOCABULARY)
    ElmoForPreTraining(ElmoConfig(**SIZES, vocab_size=len(tokenizer))).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


class KnownVectors:
    """Stands in for an embedder: each word's only layer is what `vector` says of it and its sentence."""

    def __init__(self, vector) -> None:
        self.vector = vector

    def embed(self, sentences):
        for words in sentences:
            yield np.array([[self.vector(word, words) for word in words]], dtype=np.float32)


# -------------------------------------------------------------------------------------------------------- perplexity


def test_perplexities_are_those_of_the_sentences_alone_and_of_carried_states(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "BATCH", 2)  # two lanes of two sentences
    (tmp_path / "text.txt").write_text(TEXT)
    command = ["perplexity", "--model", str(folder), str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "out")]
    assert evaluate.main(command) == 0
    alone, carried = json.loads((tmp_path / "out" / "perplexity.json").read_text())
    model, tokenizer = AutoModelForPreTraining.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    lanes = [TEXT.splitlines()[:2], TEXT.splitlines()[2:]]
    scores = model.score([sentence.split() for lane in lanes for sentence in lane], tokenizer)
    loss = -sum(score.forward.sum() + score.backward.sum() for score in scores) / sum(
        2 * len(score.forward) for score in scores
    )
    assert alone["mean"] == pytest.approx(math.exp(loss), rel=TOLERANCE)
    assert alone["mean"] == pytest.approx(math.sqrt(alone["forward"] * alone["backward"]))
    assert (alone["words"], alone["unknown"]) == (12, 1 / 12)

    total, count = 0.0, 0
    for lane in lanes:  # by hand, one lane after the other
        states = None
        for sentence in lane:
            (score,), states = model.score_batch([sentence.split()], tokenizer, states)
            total -= float(score.forward.sum() + score.backward.sum())
            count += 2 * len(score.forward)
    assert carried["mean"] == pytest.approx(math.exp(total / count), rel=TOLERANCE)
    assert carried["mean"] != alone["mean"]
    assert "| text.txt | 12 | 8.3 % | carried |" in capsys.readouterr().out


def test_perplexities_of_the_texts_before_one_that_fails_are_kept(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    texts = [str(tmp_path / name) for name in ("text.txt", "missing.txt")]
    assert evaluate.main(["perplexity", "--model", str(folder), *texts, "--output_dir", str(tmp_path)]) == 2
    assert [row["text"] for row in json.loads((tmp_path / "perplexity.json").read_text())] == ["text.txt"] * 2
    assert "missing.txt" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------ senses


def write_senses(path: Path, *uses: tuple[str, str], number: str = "2") -> Path:
    """Sentences of a context word and a word whose sense is given by it, the `number`-th of WordNet."""
    rows = []
    for context, sense in uses:
        tokens = [{"w": context, "lemma": context, "senses": []}]
        senses = [["WordNet-eng30", number], ["WordNet-eng30", f"eng30-{sense}"], ["other", "eng30-odd"]]
        rows.append({"tokens": [*tokens, {"w": "big_bank", "lemma": "Bank", "senses": senses}]})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_a_sense_is_that_of_the_nearest_centroid_and_the_most_frequent_one_is_the_baseline(tmp_path):
    directions = {"river": [1.0, 0.1], "shore": [1.0, -0.1], "money": [0.1, 1.0], "loan": [-0.1, 1.0]}
    embedder = KnownVectors(lambda word, words: directions[words[0]])
    train = write_senses(tmp_path / "a.jsonl.gz", ("river", "side-n"), ("money", "house-n"), ("money", "house-n"))
    test = write_senses(tmp_path / "b.jsonl", ("shore", "side-n"), ("loan", "house-n"), ("loan", "side-n"))
    frequent, layer, average = evaluate.senses(embedder, [train], test, ["layer", "average"])
    assert frequent["F1"] == pytest.approx(1 / 3)
    assert layer["F1"] == average["F1"] == pytest.approx(2 / 3)
    assert (layer["uses"], layer["seen in training"], layer["with several senses"]) == (3, 3, 3)


def test_nearest_uses_vote_by_their_cosines(tmp_path):
    directions = {"near": [1.0, 0.0], "next": [0.8, 0.6], "far": [0.1, 1.0], "here": [1.0, 0.0]}
    embedder = KnownVectors(lambda word, words: directions[words[0]])
    seen = ("near", "side-n"), ("next", "house-n"), ("next", "house-n"), ("far", "side-n")
    train = write_senses(tmp_path / "train.jsonl", *seen)
    test = write_senses(tmp_path / "test.jsonl", ("here", "side-n"))
    # side: 2 of one, 2 of two (2 > 1.8), 2 of three (2 < 3.6), 3.1 of four (3.1 < 3.6)
    for count, score in ((1, 1.0), (2, 1.0), (3, 0.0), (4, 0.0)):
        _, layer, _ = evaluate.senses(embedder, [train], test, ["layer", "average"], count)
        assert layer[f"F1 by {count} nearest uses"] == score


def test_a_sense_is_sought_among_those_of_the_part_of_speech(tmp_path):
    embedder = KnownVectors(lambda word, words: [1.0, float(words[0] == "we")])
    train = write_senses(tmp_path / "train.jsonl", ("a", "side-n"), ("we", "rely-v"))
    test = write_senses(tmp_path / "test.jsonl", ("we", "side-n"), ("a", "rely-v"))
    assert [row["F1"] for row in evaluate.senses(embedder, [train], test, ["layer", "average"])] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("number", "score"), [("1", 1.0), ("1;3", 1.0), ("2", 0.0), ("2;1", 1.0)])
def test_a_lemma_never_seen_has_the_first_sense_of_wordnet(number, score, tmp_path):
    test = write_senses(tmp_path / "test.jsonl", ("river", "side-n"), number=number)
    train = write_senses(tmp_path / "train.jsonl", ("river", "side-n"))
    train.write_text(train.read_text().replace("Bank", "Tree"))  # another lemma
    embedder = KnownVectors(lambda word, words: [1.0])
    rows = evaluate.senses(embedder, [train], test, ["layer", "average"])
    assert [row["F1"] for row in rows] == [score] * 3


def test_joined_words_are_several(tmp_path):
    ((words, (use,)),) = evaluate.read_uses(write_senses(tmp_path / "test.jsonl", ("river", "side-n")))
    assert words == ["river", "big", "bank"]
    assert use == (slice(1, 3), ("bank", "n"), ["eng30-side-n"], False)


# --------------------------------------------------------------------------------------------------------------- wic


def write_pairs(folder: Path, *pairs: tuple[str, str, str]) -> Path:
    """Sentences of a context word and the word itself, and whether its sense is the same."""
    folder.mkdir()
    data = "".join(f"bank\tN\t1-1\t{one} bank\t{other} bank\n" for one, other, _ in pairs)
    (folder / f"{folder.name}.data.txt").write_text(data)
    (folder / f"{folder.name}.gold.txt").write_text("".join(f"{answer}\n" for *_, answer in pairs))
    return folder


def test_pairs_are_told_apart_by_the_threshold_of_the_training_pairs(tmp_path):
    angles = {"river": 0.0, "shore": 0.3, "stone": 0.5, "money": 1.5, "loan": 1.3}
    embedder = KnownVectors(lambda word, words: [np.cos(angles[words[0]]), np.sin(angles[words[0]])])
    train = write_pairs(tmp_path / "train", ("river", "shore", "T"), ("river", "money", "F"), ("loan", "money", "T"))
    test = write_pairs(tmp_path / "dev", ("river", "stone", "T"), ("shore", "money", "F"), ("river", "loan", "T"))
    for row in evaluate.wic(embedder, train, test, ["layer", "average"]):
        assert (row["on train"], row["pairs"]) == (1.0, 3)
        assert row["accuracy"] == pytest.approx(2 / 3)


def test_a_folder_without_pairs_is_refused(folder, tmp_path, capsys):
    command = ["wic", "--model", folder, "--train", tmp_path, "--test", tmp_path, "--output_dir", tmp_path / "out"]
    assert evaluate.main(list(map(str, command))) == 2
    assert f"{tmp_path}/*.data.txt: no such file" in capsys.readouterr().err
    pairs = write_pairs(tmp_path / "bad", ("river", "shore", "maybe"))
    with pytest.raises(ElmoError, match=r"bad\.data\.txt, line 1: .*'maybe'"):
        evaluate.compare_pairs(KnownVectors(None), pairs)


# -------------------------------------------------------------------------------------------------------------- tags


def test_a_linear_classifier_learns_tags_that_the_vectors_tell(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "tags.tsv"
    path.write_text("".join(f"w{n}\t{'NOUN' if n % 2 else 'VERB'}\n\n" for n in range(40)))
    embedder = KnownVectors(lambda word, words: [float(int(word[1:]) % 2), rng.normal()])
    layer, _ = evaluate.tags(embedder, path, path, ["layer", "average"])
    assert layer == {"representation": "layer", "accuracy": 1.0, "words": 40}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["senses", "--train", "bad.jsonl", "--test", "bad.jsonl"], "bad.jsonl, line 1: not a sentence with senses"),
        (["senses", "--train", "no.jsonl", "--test", "no.jsonl"], "no.jsonl"),
        (["tags", "--train", "empty", "--test", "empty"], "empty"),
        (["perplexity", "empty"], "empty: the file is empty"),
    ],
)
def test_bad_input_is_one_clear_line(command, message, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text("[]\n")
    Path("empty").write_text("")
    assert evaluate.main([*command, "--model", str(folder), "--output_dir", "out"]) == evaluate.BAD_INPUT
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("error: ")
    assert message in line


# ------------------------------------------------------------------------------------------------------------- tasks


def write_comparison(folder: Path, *rows: tuple[str, str, float, float, dict[str, list[float]]]) -> Path:
    names = ("model", "placement", "fraction", "mean", "mix")
    same = {"metric": "f1", "standard deviation": 0.01}
    folder.mkdir()
    (folder / "comparison.json").write_text(
        json.dumps([{**same, **dict(zip(names, row, strict=True))} for row in rows])
    )
    return folder


def test_comparisons_are_one_table_of_scores_one_of_mixes_and_a_picture(tmp_path, monkeypatch, capsys):
    both = {"output": [0.1, 0.2, 0.7], "input": [0.5, 0.3, 0.2]}
    ner = write_comparison(
        tmp_path / "ner",
        ("without ELMo", "none", 0.1, 0.8, {}),
        ("ELMo at both", "both", 0.1, 0.85, {"output": [1.0, 0.0, 0.0], "input": [1.0, 0.0, 0.0]}),
        ("without ELMo", "none", 1.0, 0.95, {}),
        ("ELMo at both", "both", 1.0, 0.92, both),
        ("ELMo at the input", "input", 1.0, 0.91, {"input": [1.0, 0.0, 0.0]}),
    )
    sst = write_comparison(tmp_path / "sst", ("ELMo at the output", "output", 1.0, 0.4, {"output": [0.2, 0.2, 0.6]}))
    drawn = {}
    draw = evaluate.draw_mix
    monkeypatch.setattr(evaluate, "draw_mix", lambda panels, path: (drawn.update(panels), draw(panels, path)))
    assert evaluate.main(["tasks", str(ner), str(sst), "--output_dir", str(tmp_path / "out")]) == 0
    assert "| ner | 10.0 % | f1 | 80.0 ± 1.0 |  |  | 85.0 ± 1.0 | +5.0 |" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "tasks.json").read_text())
    assert [(row["task"], row["training data"], row["gain"]) for row in rows] == [
        ("ner", 0.1, pytest.approx(0.05)),
        ("ner", 1.0, pytest.approx(-0.03)),  # a loss is told as one
        ("sst", 1.0, None),
    ]
    mixes = json.loads((tmp_path / "out" / "mixes.json").read_text())
    assert [(row["task"], row["place"], row["LSTM layer 2"]) for row in mixes[2:]] == [
        ("ner", "input", 0.0),
        ("ner", "output", 0.7),
        ("ner", "input", 0.2),
        ("sst", "output", 0.6),
    ]
    assert drawn == {"input": {"ner": [0.5, 0.3, 0.2]}, "output": {"ner": [0.1, 0.2, 0.7], "sst": [0.2, 0.2, 0.6]}}
    for picture in ("mixes", "ner"):
        assert (tmp_path / "out" / f"{picture}.png").stat().st_size > 1000
    assert not (tmp_path / "out" / "sst.png").exists()  # it has one part of the data


def test_scores_of_one_part_of_the_data_are_points_rather_than_bars(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure))
    rows = [{"model": name, "fraction": 1.0, "metric": "f1", "mean": 0.8} for name in ("one", "two")]
    spreads = (0.01, None)  # of three seeds, of one
    figures.draw_comparison(
        [{**row, "standard deviation": spread} for row, spread in zip(rows, spreads, strict=True)], tmp_path / "x.png"
    )
    (axes,) = drawn[0].axes
    assert not axes.patches
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("latin.txt", b"caf\xe9 .\n", "line 1 is not UTF-8"),
        ("cut.txt.gz", gzip.compress(b"The bank .\n" * 99)[:-9], "Compressed file ended"),
        ("blank.txt", b"\n \n", "there are no sentences"),
    ],
    ids=["latin", "cut", "blank"],
)
def test_text_that_cannot_be_read_is_named(name, content, problem, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert evaluate.main(["perplexity", "--model", MINI, str(tmp_path / name), "--output_dir", str(tmp_path)]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / name}: {problem}")


def test_training_data_without_senses_is_refused(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    files = ["--train", str(tmp_path / "empty.jsonl"), "--test", str(tmp_path / "empty.jsonl")]
    assert evaluate.main(["senses", "--model", MINI, *files, "--output_dir", str(tmp_path)]) == 2
    assert "no word has a sense" in capsys.readouterr().err


def test_folders_without_a_comparison_are_refused(tmp_path, capsys):
    (tmp_path / "comparison.json").write_text('[{"model": "x"}')
    row = ("without ELMo", "none", 0.1, 0.8, {})
    double = write_comparison(tmp_path / "double", row, row)
    files = {"short": [{"model": "x", "placement": "none"}], "empty": [], "other": {"model": "x"}}
    for name, rows in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(json.dumps(rows))
    said = {
        tmp_path / "nowhere": "no such file",
        tmp_path: "not a JSON file",
        double: "several folders of that name have it",
        tmp_path / "short": "row 1 lacks fraction, metric, mean, standard deviation, mix: run training.compare again",
        tmp_path / "empty": "expected a list of rows, as training.compare writes it",
        tmp_path / "other": "expected a list of rows, as training.compare writes it",
        write_comparison(tmp_path / "place", ("x", "middle", 0.1, 0.8, {})): "placement must be one of",
    }
    for folder, words in said.items():
        assert evaluate.main(["tasks", str(folder), "--output_dir", str(tmp_path / "out")]) == evaluate.BAD_INPUT
        assert words in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- the bundled model


def test_a_bundled_model_is_half_as_large_without_code_and_loads_as_float32(folder, tmp_path, capsys):
    assert bundle.main([str(folder), "--output_dir", str(tmp_path / "mini")]) == 0
    assert "Before and after, the cosine of a vector is 1.0000" in capsys.readouterr().out
    made = tmp_path / "mini"
    with safe_open(made / "model.safetensors", "pt") as weights:
        kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert {kinds.pop("softmax.weight")} == {"F8_E4M3"}
    assert set(kinds.values()) == {"F16"}
    assert not list(made.glob("*.py"))
    sizes = [(path / "model.safetensors").stat().st_size for path in (folder, made)]
    assert sizes[1] < 0.7 * sizes[0]
    model, tokenizer = AutoModel.from_pretrained(made), AutoTokenizer.from_pretrained(made)
    assert model.dtype == torch.float32
    assert len(tokenizer) == 4 + len(VOCABULARY)
    assert bundle.main([str(folder), "--output_dir", str(made)]) == 0  # replaces its own


def test_a_softmax_that_8_bits_cannot_hold_is_refused(folder, tmp_path, capsys):
    model, tokenizer = ElmoForPreTraining.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        model.softmax.weight[1] = 1e3  # the largest float8_e4m3fn is 448
    model.save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    assert bundle.main([str(tmp_path / "small"), "--output_dir", str(tmp_path / "mini")]) == bundle.BAD_INPUT
    assert "8 bits change its scores" in capsys.readouterr().err
    assert not (tmp_path / "mini").exists()


def test_bundling_replaces_nothing_but_a_bundle(folder, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("do not lose")
    for target in (tmp_path, folder):
        assert bundle.main([str(folder), "--output_dir", str(target)]) == bundle.BAD_INPUT
        assert "was not written by this program" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").is_file()
    assert (folder / "model.safetensors").is_file()
    assert bundle.main([str(tmp_path / "none"), "--output_dir", str(tmp_path / "new")]) == bundle.BAD_INPUT


def test_the_bundled_model_tells_senses_of_a_word_apart():
    """Six sentences: three banks of rivers, three of money."""
    sentences = [
        "The bank lends money to farmers .",
        "He put his savings in the bank .",
        "The bank paid him ten thousand pounds .",
        "We sat on the bank of the river .",
        "The boat drifted to the muddy bank .",
        "Flowers grew along the bank of the stream .",
    ]
    model, tokenizer = AutoModel.from_pretrained(MINI), AutoTokenizer.from_pretrained(MINI)
    with torch.no_grad():
        inputs = tokenizer(sentences, padding=True, return_tensors="pt")
        top = model(**inputs, keep_sentence_markers=False, output_hidden_states=True).hidden_states[-1]
    banks = torch.stack([top[row, sentence.split().index("bank")] for row, sentence in enumerate(sentences)])
    cosine = torch.cosine_similarity(banks[:, None], banks[None], dim=-1)
    alike = [cosine[a, b] for block in (range(3), range(3, 6)) for a in block for b in block if a != b]
    other = [cosine[a, b] for a in range(3) for b in range(3, 6)]
    assert sum(alike) / len(alike) > sum(other) / len(other)
