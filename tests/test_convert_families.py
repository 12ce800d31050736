"""Checkpoints of other families convert to folders that give their vectors: ELMoForManyLangs, the ELMo inside AllenNLP
models, SeqVec. `make parity` brings the packages that the tests with `original` in their names compare with.
"""

import io
import json
import pickle
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import manylangs_peer as peer
import numpy as np
import pytest
import torch
from test_auto_classes import WORDS as CLEAN_WORDS
from test_auto_classes import load_in_clean_process
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from modeling_elmo import (
    ElmoConfig,
    ElmoEmbedder,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.cli import app
from modeling_elmo.convert_allennlp import BIAS, GATES, HIGHWAY, convert_allennlp
from modeling_elmo.convert_elmo import Transform, convert_checkpoint, export_checkpoint, find_sources
from modeling_elmo.convert_manylangs import PUBLISHED_SETTINGS, convert_manylangs
from modeling_elmo.embed_corpus import embed_corpus
from modeling_elmo.files import ElmoError

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import allennlp_peer
from random_checkpoint import write_random_checkpoint

# What a pickle with code in it would make.
MARKER = Path(tempfile.gettempdir(), "a-pickle-was-run")
# Relative to the largest value of a layer: float32 on both sides, or float64 on the other.
TOLERANCE = 1e-5
# Weights mapped from a file are summed by other kernels than those made in memory.
ALIGNMENT_TOLERANCE = 1e-6

SENTENCES = [
    "Déjà vu : l' œuvre naïve d' un élève à Łódź .".split(),
    "Съешь ещё этих мягких французских булок , да выпей чаю .".split(),
    "اللغة العربية جميلة جدا".split(),
    ["我", "愛", "北京", "天安門", "。"],
    "हिन्दी भाषा में ज़रूर पढ़िए ।".split(),
    ["👩‍👩‍👧", "🎉", "ok", "🇫🇷"],
    "See http://example.org/a?b=1 , 3.14159 or 1,000,000 ... by 2024-01-01 !".split(),
    ["x" * 60, "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen", "xy"],
    ["<bos>", "<eos>", "<pad>", "<oov>", "<bow>", "", "\ud800", "a b"],
    ["one"],
    [],
    "It was the best of times , it was the worst of times".split() * 3,
]
# Every other word is in the dictionary, one of them as it is when it is cut; some characters are not.
DICTIONARY = [*dict.fromkeys(word for words in SENTENCES[:7] for word in words[::2]), "x" * 48, "the", "a b", "\u3000"]
CHARACTERS = sorted({c for words in SENTENCES for word in words for c in word} - set("愛é🎉Щч\ud800 ") | {"\u3000"})

VARIANTS = {
    "words and characters": peer.SETTINGS,
    "characters alone": peer.settings_with(word_dim=0),
    "words alone": peer.settings_with(char_dim=0),
    "tanh": peer.settings_with(activation="tanh"),
    "one layer, one highway": peer.settings_with(n_layers=1, n_highway=1),
    "no highway, no clips": peer.settings_with(n_highway=0, cell_clip=None, proj_clip=None),
    "filters as wide as the projection": peer.settings_with(word_dim=0, projection_dim=20),
    "short words": peer.settings_with(max_characters_per_token=7),
}


def write_manylangs(folder: Path, settings: Any = peer.SETTINGS) -> Path:
    return peer.write_model(folder, settings, DICTIONARY, CHARACTERS)


def our_layers(folder: Path, sentences: list[list[str]]) -> list[np.ndarray]:
    """(L + 1, T, 2P) of each sentence, all in one batch."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        layers = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)
    return [layers[:, row, 1 : len(words) + 1].numpy() for row, words in enumerate(sentences)]


def differences(ours: list[np.ndarray], theirs: list[np.ndarray]) -> list[float]:
    """Of each layer the largest difference over the largest value."""
    assert [layers.shape for layers in ours] == [layers.shape for layers in theirs]
    pairs = zip(np.concatenate(ours, axis=1), np.concatenate(theirs, axis=1), strict=True)
    return [float(np.abs(our - their).max() / np.abs(their).max()) for our, their in pairs]


@pytest.fixture(scope="module")
def manylangs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small converted model of ELMoForManyLangs."""
    base = tmp_path_factory.mktemp("manylangs")
    return convert_manylangs(write_manylangs(base / "original"), base / "converted")


# ------------------------------------------------------------------------------------------- ELMoForManyLangs: vectors


def restated_layers(folder: Path, words: list[str]) -> np.ndarray:
    """What the original computes, in float64 and a word at a time: (L + 1, T, 2P), without the sentence markers."""
    settings = json.loads((folder / "settings.json").read_text())
    embedder, encoder = settings["token_embedder"], settings["encoder"]
    states = {name: torch.load(folder / f"{name}.pkl") for name in ("token_embedder", "encoder")}
    weights = {key: value.double() for state in states.values() for key, value in state.items()}
    ids = {}
    for name in ("word", "char"):
        pairs = [line.strip().split("\t") for line in (folder / f"{name}.dic").read_text().splitlines()]
        ids[name] = {(pair[0] if len(pair) == 2 else "\u3000"): int(pair[-1]) for pair in pairs}
    width = embedder["max_characters_per_token"]

    def embed(word: str) -> torch.Tensor:
        word = word[: width - 2]
        parts = []
        if embedder["word_dim"]:
            row = ids["word"].get(word, ids["word"]["<oov>"])
            parts.append(weights["word_emb_layer.embedding.weight"][row])
        if embedder["char_dim"]:
            known = ids["char"]
            letters = [known[word]] if word in ("<bos>", "<eos>") else [known.get(c, known["<oov>"]) for c in word]
            row = [known["<eow>"], *letters, known["<bow>"]]
            row += [known["<pad>"]] * (width - len(row))
            letters = weights["char_emb_layer.embedding.weight"][row].T
            found = []
            for index in range(len(embedder["filters"])):
                kernel, bias = (weights[f"convolutions.{index}.{kind}"] for kind in ("weight", "bias"))
                found.append(F.conv1d(letters, kernel, bias).amax(-1))
            x = torch.cat(found)
            x = x.relu() if embedder["activation"] == "relu" else x.tanh()
            for layer in range(embedder["n_highway"]):
                matrix, bias = (weights[f"highways._layers.{layer}.{kind}"] for kind in ("weight", "bias"))
                new, gate = (matrix @ x + bias).chunk(2)
                x = gate.sigmoid() * x + (1 - gate.sigmoid()) * new.relu()
            parts.append(x)
        return weights["projection.weight"] @ torch.cat(parts) + weights["projection.bias"]

    def clip(x: torch.Tensor, bound: float | None) -> torch.Tensor:
        return x if bound is None else x.clamp(-bound, bound)

    def read(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        hidden, cell, outputs = torch.zeros(encoder["projection_dim"]).double(), torch.zeros(encoder["dim"]), []
        for x in inputs:
            gates = weights[f"{name}.input_linearity.weight"] @ x + weights[f"{name}.state_linearity.weight"] @ hidden
            i, f, j, o = (gates + weights[f"{name}.state_linearity.bias"]).chunk(4)
            cell = clip(f.sigmoid() * cell + i.sigmoid() * j.tanh(), encoder["cell_clip"])
            projected = weights[f"{name}.state_projection.weight"] @ (o.sigmoid() * cell.tanh())
            hidden = clip(projected, encoder["proj_clip"])
            outputs.append(hidden)
        return outputs

    embedded = [embed(word) for word in ("<bos>", *words, "<eos>")]
    layers = [torch.stack([torch.cat([x, x]) for x in embedded])]
    inputs = {"forward": embedded, "backward": embedded[::-1]}
    for layer in range(encoder["n_layers"]):
        for direction, before in inputs.items():
            outputs = read(f"{direction}_layer_{layer}", before)
            inputs[direction] = [x + y for x, y in zip(outputs, before, strict=True)] if layer else outputs
        pairs = zip(inputs["forward"], inputs["backward"][::-1], strict=True)
        layers.append(torch.stack([torch.cat(pair) for pair in pairs]))
    return torch.stack(layers)[:, 1:-1].numpy()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_layer_equals_a_restatement_of_the_equations(tmp_path: Path, name: str) -> None:
    folder = write_manylangs(tmp_path / "model", VARIANTS[name])
    ours = our_layers(convert_manylangs(folder, tmp_path / "converted"), SENTENCES)
    assert max(differences(ours, [restated_layers(folder, words) for words in SENTENCES])) <= TOLERANCE


@pytest.mark.skipif(peer.site() is None, reason="elmoformanylangs is not here: `make parity` installs it")
@pytest.mark.parametrize("name", [*VARIANTS, "published size"])
def test_every_layer_equals_the_original_package_of_manylangs(tmp_path: Path, name: str) -> None:
    folder = write_manylangs(tmp_path / "model", VARIANTS.get(name, PUBLISHED_SETTINGS))
    ours = our_layers(convert_manylangs(folder, tmp_path / "converted"), SENTENCES)
    by_layer = differences(ours, peer.layers(folder, SENTENCES))
    print(f"{name}: largest difference over largest value, by layer {', '.join(f'{x:.1e}' for x in by_layer)}")
    assert max(by_layer) <= TOLERANCE


def test_the_embedding_of_eow_begins_a_word_and_that_of_bow_ends_it(tmp_path: Path) -> None:
    original = write_manylangs(tmp_path / "model")
    folder = convert_manylangs(original, tmp_path / "converted")
    lines = (original / "char.dic").read_bytes().decode().strip("\n").split("\n")
    ids = {line.rpartition("\t")[0]: int(line.rpartition("\t")[2]) for line in lines}
    stored = torch.load(original / "token_embedder.pkl")["char_emb_layer.embedding.weight"]
    row = AutoTokenizer.from_pretrained(folder).words_to_char_ids(["ok"])[0]
    embedded = AutoModel.from_pretrained(folder).char_encoder.char_embedding.weight[row]
    wanted = stored[[ids[entry] for entry in ("<eow>", "o", "k", "<bow>", *["<pad>"] * 46)]]
    assert torch.equal(embedded, wanted)


# -------------------------------------------------------------------------------- ELMoForManyLangs: an ordinary folder


def test_the_folder_loads_without_the_package(manylangs: Path, tmp_path: Path) -> None:
    model, tokenizer = ElmoModel.from_pretrained(manylangs), ElmoTokenizer.from_pretrained(manylangs)
    inputs = tokenizer([CLEAN_WORDS], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        here = model(**inputs).last_hidden_state
    again = tmp_path / "again"
    there = load_in_clean_process(manylangs, tmp_path, resave=again)
    assert (here - there).abs().max() <= ALIGNMENT_TOLERANCE
    assert (load_in_clean_process(again, tmp_path) - here).abs().max() <= ALIGNMENT_TOLERANCE
    assert not list(manylangs.glob("*.pkl"))


def test_the_tokenizer_has_both_dictionaries_and_comes_back(manylangs: Path, tmp_path: Path) -> None:
    tokenizer = ElmoTokenizer.from_pretrained(manylangs)
    config = ElmoConfig.from_pretrained(manylangs)
    assert tokenizer.vocab_size == config.vocab_size == len(DICTIONARY) + 4
    assert len(tokenizer.characters) == len(CHARACTERS) == config.char_vocab_size - 7
    tokenizer.save_pretrained(tmp_path)
    again = ElmoTokenizer.from_pretrained(tmp_path)
    sentences = [list(words) for words in SENTENCES]
    first, second = (t(sentences, is_split_into_words=True) for t in (tokenizer, again))
    assert first.data == second.data
    row = first["input_ids"][7]
    assert row[1] == tokenizer.convert_tokens_to_ids("x" * 48)  # looked up as it is cut
    assert row[0] == tokenizer.bos_token_id == 1
    assert row[2] == row[3] == tokenizer.unk_token_id == 3
    text = tokenizer.decode(first["input_ids"][3], char_ids=first["char_ids"][3], skip_special_tokens=True)
    assert text == "我 \ufffd 北京 天安門 。"
    assert tokenizer.is_cut("x" * 49)
    assert not tokenizer.is_cut("愛" * 48)


def test_a_folder_that_spells_in_bytes_has_no_dictionary(tmp_path: Path) -> None:
    ElmoTokenizer(vocab=["bank"]).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["characters"] is None
    with pytest.raises(ValueError, match="`characters` holds 'a' twice"):
        ElmoTokenizer(characters="aba")


def test_padding_and_company_change_nothing(manylangs: Path) -> None:
    together = our_layers(manylangs, SENTENCES)
    alone = [our_layers(manylangs, [words])[0] for words in SENTENCES]
    assert max(differences(together, alone)) <= TOLERANCE


def test_markers_are_left_out_where_they_are_not_wanted(manylangs: Path) -> None:
    model, tokenizer = ElmoModel.from_pretrained(manylangs), ElmoTokenizer.from_pretrained(manylangs)
    inputs = tokenizer(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs, keep_sentence_markers=False)
        whole = model(**inputs).last_hidden_state
    assert output.attention_mask.sum(1).tolist() == [len(words) for words in SENTENCES]
    for row, words in enumerate(SENTENCES):
        assert torch.equal(output.last_hidden_state[row, : len(words)], whole[row, 1 : len(words) + 1])


def test_words_that_are_spelled_alike_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    # Only unknown characters: every one of these words has the same row of characters. Their ids differ by 2 ** 16.
    words = [chr(0x4E00 + number % 20000) + chr(0x4E00 + number // 20000) for number in range(2**16 + 10)]
    folder = peer.write_model(tmp_path / "model", peer.SETTINGS, words, ["a"])
    embedder = ElmoEmbedder.from_pretrained(convert_manylangs(folder, tmp_path / "converted"), layers=0)
    pair = [words[5], words[5 + 2**16]]
    assert (embedder.tokenizer.words_to_char_ids(pair)[0] == embedder.tokenizer.words_to_char_ids(pair)[1]).all()
    wanted = [restated_layers(folder, [word])[0, 0] for word in pair]
    assert np.abs(wanted[0] - wanted[1]).max() > 0.1
    for _ in range(2):  # the second time from the cache
        for word, vector in zip(pair, wanted, strict=True):
            (found,) = embedder.embed([[word]])
            assert np.abs(found[0] - vector).max() <= TOLERANCE
        (found,) = embedder.embed([pair])
        assert np.abs(found - np.stack(wanted)).max() <= TOLERANCE


def test_the_embedder_and_elmo_embed_give_the_model_s_vectors(manylangs: Path, tmp_path: Path) -> None:
    wanted = our_layers(manylangs, SENTENCES)
    for batch_words in (2048, 7):  # 7: long sentences are read in pieces
        embedder = ElmoEmbedder.from_pretrained(manylangs, layers="all", batch_words=batch_words)
        assert max(differences(list(embedder.embed(SENTENCES)), wanted)) <= TOLERANCE
    text = tmp_path / "text.txt"
    text.write_text("我 愛 北京\n" + "愛" * 40 + " " + "b" * 49 + "\n", encoding="utf-8")
    report = embed_corpus(str(text), manylangs, tmp_path / "vectors.h5", layers="all")
    assert report is not None
    assert (report.words, report.cut_words) == (5, 1)
    with h5py.File(tmp_path / "vectors.h5") as file:
        vectors = file["0"][()]
    assert max(differences([vectors], our_layers(manylangs, [["我", "愛", "北京"]]))) <= TOLERANCE


def test_task_models_and_pretraining_read_it(manylangs: Path) -> None:
    tokenizer = ElmoTokenizer.from_pretrained(manylangs)
    inputs = tokenizer(SENTENCES[:3], is_split_into_words=True, padding=True, return_tensors="pt")
    tagger = ElmoForTokenClassification.from_pretrained(manylangs, num_labels=3, head_dim=4, freeze_bilm=False)
    tagger.train()
    tagger(**inputs, labels=torch.zeros_like(inputs["input_ids"])).loss.backward()
    assert all(parameter.grad is not None for parameter in tagger.elmo.char_encoder.parameters())
    classifier = ElmoForSequenceClassification.from_pretrained(manylangs, num_labels=2, head_dim=4).eval()
    layers = classifier.bilm_layers(**inputs)
    with torch.no_grad():
        logits = classifier(**inputs).logits
        kept = classifier(**inputs, bilm_layers=layers).logits
    assert torch.equal(logits, kept)
    model = ElmoForPreTraining.from_pretrained(manylangs)
    labels = inputs["input_ids"].masked_fill(~inputs["attention_mask"].bool(), -100)
    sentences = model(**inputs, labels=labels)
    # The same as lanes: the distinct words, and where each stands. One sentence, so that no lane is padded.
    one = {name: tensor[:1, : int(inputs["attention_mask"][0].sum())] for name, tensor in inputs.items()}
    rows = one["char_ids"][0]
    index = torch.arange(len(rows))
    lanes = model(
        input_ids=one["input_ids"][0],
        char_ids=rows,
        word_index=torch.stack([index[None, :-1], index.flip(0)[None, :-1]]),
        labels=torch.stack([one["input_ids"][:, 1:], one["input_ids"].flip(1)[:, 1:]]),
    )
    alone = model(**one, labels=one["input_ids"])
    assert abs(lanes.loss - alone.loss) <= TOLERANCE
    assert sentences.loss.isfinite()


def test_a_word_added_to_the_tokenizer_is_an_unknown_word_with_its_own_spelling(manylangs: Path) -> None:
    model, tokenizer = ElmoModel.from_pretrained(manylangs), ElmoTokenizer.from_pretrained(manylangs)
    before = tokenizer([["one", "elves"]], is_split_into_words=True, return_tensors="pt")
    tokenizer.add_tokens(["elves"])
    after = tokenizer([["one", "elves"]], is_split_into_words=True, return_tensors="pt")
    assert after["input_ids"][0, 2] >= model.config.vocab_size
    with torch.no_grad():
        assert torch.equal(model(**before).last_hidden_state, model(**after).last_hidden_state)


def test_word_ids_that_are_missing_or_misshapen_are_named(manylangs: Path) -> None:
    model, tokenizer = ElmoModel.from_pretrained(manylangs), ElmoTokenizer.from_pretrained(manylangs)
    inputs = tokenizer([["one"]], is_split_into_words=True, return_tensors="pt")
    with pytest.raises(ValueError, match="pass `input_ids` from its tokenizer"):
        model(char_ids=inputs["char_ids"])
    with pytest.raises(ValueError, match=r"`input_ids` must be \(1, 3\), got \(1, 2\)"):
        model(char_ids=inputs["char_ids"], input_ids=inputs["input_ids"][:, 1:])


def test_the_format_of_bilm_tf_has_no_place_for_it(manylangs: Path, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="the format has no `spelling` but"):
        export_checkpoint(manylangs, tmp_path / "exported")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"word_embedding_dim": 3}, "needs spelling='dictionary'"),
        ({"char_filters": []}, "at least one"),
        ({"spelling": "dictionary", "word_embedding_dim": 3, "char_filters": []}, "`num_highway_layers` must be 0"),
        ({"spelling": "dictionary", "word_embedding_dim": -1}, "at least 0"),
    ],
)
def test_configs_that_cannot_be_built_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        ElmoConfig(**changes)


# ------------------------------------------------------------------------------------------ ELMoForManyLangs: refusals


class Code:
    """What a pickle would run, were it loaded as pickles are."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (MARKER,)


def change_state(name: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        state = torch.load(folder / name)
        change(state)
        torch.save(state, folder / name)

    return apply


def change_settings(part: str, key: str, value: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        settings = json.loads((folder / "settings.json").read_text())
        settings[part][key] = value
        (folder / "settings.json").write_text(json.dumps(settings))

    return apply


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def repeat(state: dict[str, torch.Tensor]) -> None:
    state["projection.bias"] = torch.zeros(1).expand(11)


def misname(state: dict[str, torch.Tensor]) -> None:
    state["forward_layer_9.input_linearity.weight"] = torch.zeros(3)


MANYLANGS_DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no encoder": (lambda folder: (folder / "encoder.pkl").unlink(), "encoder.pkl: cannot be read"),
    "no characters": (lambda folder: (folder / "char.dic").unlink(), "char.dic: cannot be read"),
    "no words": (lambda folder: (folder / "word.dic").unlink(), "word.dic: cannot be read"),
    "no settings": (lambda folder: (folder / "settings.json").unlink(), "has no settings.json"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: no such file"),
    "no config path": (write("config.json", b"{}"), "`config_path` must name a file"),
    "code in a pickle": (lambda folder: torch.save({"a": Code()}, folder / "encoder.pkl"), "so it is refused"),
    "not a torch file": (write("encoder.pkl", pickle.dumps(Code())), "so it is refused"),
    "an empty file": (write("token_embedder.pkl", b""), "so it is refused"),
    "a list": (lambda folder: torch.save([torch.zeros(1)], folder / "encoder.pkl"), "holds a list"),
    "a number": (change_state("encoder.pkl", lambda state: state.update(a=1)), "`a` is not a plain tensor"),
    "fewer numbers than it says": (change_state("token_embedder.pkl", repeat), "more than what is stored"),
    "a tensor less": (
        change_state("token_embedder.pkl", lambda state: state.pop("convolutions.1.bias")),
        "`token_embedder/convolutions.1.bias` is missing",
    ),
    "a tensor more": (
        change_state("encoder.pkl", misname),
        "'encoder/forward_layer_9.input_linearity.weight' is left over",
    ),
    "other sizes": (
        change_settings("encoder", "dim", 16),
        r"has shape \(68, 11\) where the settings and dictionaries ask for \(64, 11\)",
    ),
    "an infinity": (
        change_state("encoder.pkl", lambda state: state["forward_layer_0.state_linearity.bias"].fill_(torch.inf)),
        "must hold finite floating-point numbers",
    ),
    "whole numbers": (
        change_state("token_embedder.pkl", lambda state: state.update({"projection.bias": torch.arange(11)})),
        "must hold finite floating-point numbers",
    ),
    "another encoder": (change_settings("encoder", "name", "lstm"), '`encoder.name` must be "elmo"'),
    "another embedder": (change_settings("token_embedder", "name", "lstm"), '`token_embedder.name` must be "cnn"'),
    "no filters": (change_settings("token_embedder", "filters", None), "`token_embedder.filters` is missing"),
    "no input": (
        lambda folder: (
            [change_settings("token_embedder", key, 0)(folder) for key in ("word_dim", "char_dim")] and None
        ),
        "`char_filters` must hold",
    ),
    "a word more": (
        lambda folder: (
            (folder / "word.dic").write_bytes(
                (folder / "word.dic").read_bytes() + f"more\t{len(DICTIONARY) + 4}\n".encode()
            )
            and None
        ),
        "`token_embedder/word_emb_layer.embedding.weight` has shape",
    ),
    "no unknown word": (write("word.dic", b"<pad>\t0\n<bos>\t1\n<eos>\t2\n"), "word.dic: lacks '<oov>'"),
    "a word twice": (write("word.dic", b"a\t0\na\t1\n"), "every entry once, with ids from 0 to 1"),
    "an id twice": (write("char.dic", b"a\t0\nb\t0\n"), "every entry once, with ids from 0 to 1"),
    "no id": (write("char.dic", b"a\tb\n"), "line 1 must be an entry, a tab and its id"),
    "not UTF-8": (write("char.dic", b"\xff\t0\n"), "char.dic: cannot be read"),
    "two characters": (
        write("char.dic", b"<bos>\t0\n<eos>\t1\n<bow>\t2\n<eow>\t3\n<pad>\t4\n<oov>\t5\nab\t6\n"),
        "'ab' is not one character",
    ),
}


@pytest.mark.parametrize("name", MANYLANGS_DAMAGE)
def test_a_broken_model_of_manylangs_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    damage, message = MANYLANGS_DAMAGE[name]
    folder = write_manylangs(tmp_path / "model")
    damage(folder)
    with pytest.raises(ElmoError, match=message) as refusal:
        convert_manylangs(folder, tmp_path / "a" / "converted")
    assert "\n" not in str(refusal.value)
    assert str(folder) in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not MARKER.exists()


def test_files_of_the_torch_of_2018_are_read(tmp_path: Path) -> None:
    folder = write_manylangs(tmp_path / "model")
    wanted = our_layers(convert_manylangs(folder, tmp_path / "converted"), SENTENCES)
    for name in ("token_embedder.pkl", "encoder.pkl"):
        torch.save(torch.load(folder / name), folder / name, _use_new_zipfile_serialization=False)
    found = our_layers(convert_manylangs(folder, tmp_path / "again"), SENTENCES)
    assert max(differences(found, wanted)) <= ALIGNMENT_TOLERANCE


def test_settings_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    folder = write_manylangs(tmp_path / "model")
    (folder / "settings.json").rename(tmp_path / "settings.json")
    for outside in ("../settings.json", str(tmp_path / "settings.json")):
        (folder / "config.json").write_text(json.dumps({"config_path": outside}))
        with pytest.raises(ElmoError, match=r"has no settings\.json"):
            convert_manylangs(folder, tmp_path / "converted")


def test_the_published_settings_stand_in_for_their_missing_file(tmp_path: Path) -> None:
    folder = write_manylangs(tmp_path / "model")
    name = "configs/cnn_50_100_512_4096_sample.json"
    (folder / "config.json").write_text(json.dumps({"config_path": name}))
    with pytest.raises(ElmoError, match=r"where the settings and dictionaries ask for \(\d+, 100\)"):
        convert_manylangs(folder, tmp_path / "converted")
    (folder / "configs").mkdir()
    (folder / "settings.json").rename(folder / name)
    convert_manylangs(folder, tmp_path / "converted")


# ----------------------------------------------------------------------------------------------------- AllenNLP models

SIZES: dict[str, Any] = {
    "char_embedding_dim": 3,
    "char_filters": [[1, 3], [2, 4], [4, 6]],
    "num_highway_layers": 2,
    "projection_dim": 5,
    "cell_dim": 8,
    "num_hidden_layers": 2,
}
ELMO = "text_field_embedder.token_embedder_elmo._elmo."
MIXES = [([0.5, -0.25, 1.0], 1.5), ([0.0, 2.0, -1.0], 0.75)]
TEXT = [["The", "naïve", "bank", "🏦"], ["x" * 60], "It was the best of times".split()]


def random_elmo(**changes: Any) -> ElmoModel:
    torch.manual_seed(1)
    model = ElmoModel(ElmoConfig(vocab_size=4, **{**SIZES, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "scalar_mix" not in name:
                parameter.uniform_(-0.7, 0.7)
        model.char_encoder.char_embedding.weight[0] = 0
    return model


def allennlp_state(model: ElmoModel, elmo: str = ELMO, mixes: Any = MIXES) -> dict[str, torch.Tensor]:
    """The biLM of a model under AllenNLP's names and in its layout, with mixes and some tensors of a task."""
    ours = {name: value.clone() for name, value in model.state_dict().items()}
    state: dict[str, torch.Tensor] = {
        "tag_projection_layer.weight": torch.zeros(2, 3),
        "crf.transitions": torch.ones(2),
    }
    names = f"{elmo}_elmo_lstm."
    encoder = f"{names}_token_embedder."
    state[f"{encoder}_char_embedding_weights"] = ours.pop("char_encoder.char_embedding.weight")
    for index in range(len(model.config.char_filters)):
        for kind in ("weight", "bias"):
            state[f"{encoder}char_conv_{index}.{kind}"] = ours.pop(f"char_encoder.convolutions.{index}.{kind}")
    for index in range(model.config.num_highway_layers):
        for kind in ("weight", "bias"):
            transform, carry = (
                ours.pop(f"char_encoder.highways.{index}.{gate}.{kind}") for gate in ("transform", "carry")
            )
            state[f"{encoder}_highways._layers.{index}.{kind}"] = torch.cat([transform, -carry])
    for kind in ("weight", "bias"):
        state[f"{encoder}_projection.{kind}"] = ours.pop(f"char_encoder.projection.{kind}")
    for direction in ("forward", "backward"):
        for layer in range(model.config.num_hidden_layers):
            source = f"{direction}_lm.layers.{layer}"
            target = f"{names}_elmo_lstm.{direction}_layer_{layer}"
            for their, our in (("input_linearity", "input_gates"), ("state_linearity", "recurrent_gates")):
                i, j, f, o = ours.pop(f"{source}.{our}.weight").chunk(4)
                state[f"{target}.{their}.weight"] = torch.cat([i, f, j, o])
            i, j, f, o = ours.pop(f"{source}.input_gates.bias").chunk(4)
            state[f"{target}.state_linearity.bias"] = torch.cat([i, f + 1, j, o])
            state[f"{target}.state_projection.weight"] = ours.pop(f"{source}.projection.weight")
    assert set(ours) == {"scalar_mix.scalar_weights", "scalar_mix.gamma"}
    for number, (weights, gamma) in enumerate(mixes):
        for layer, weight in enumerate(weights):
            state[f"{elmo}scalar_mix_{number}.scalar_parameters.{layer}"] = torch.tensor([weight])
        state[f"{elmo}scalar_mix_{number}.gamma"] = torch.tensor([gamma])
    return state


def training_config(**more: Any) -> dict[str, Any]:
    settings = {"type": "elmo_token_embedder", "options_file": "/gone/options.json", "weight_file": "/gone/w.hdf5"}
    return {"model": {"text_field_embedder": {"token_embedders": {"elmo": {**settings, **more}}}}}


def as_bytes(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def write_archive(path: Path, state: Any, config: Any = None, **more: bytes) -> Path:
    files = {
        "vocabulary/tokens.txt": b"the\n",
        "config.json": json.dumps(training_config() if config is None else config).encode(),
        "weights.th": as_bytes(state),
        **more,
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def vectors_of(model: ElmoModel, **more: Any) -> torch.Tensor:
    inputs = ElmoTokenizer()(TEXT, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs, **more).last_hidden_state


def with_mix(model: ElmoModel, number: int) -> ElmoModel:
    weights, gamma = MIXES[number]
    model.scalar_mix.scalar_weights.data = torch.tensor(weights)
    model.scalar_mix.gamma.data = torch.tensor([gamma])
    return model


@pytest.mark.parametrize("form", ["archive", "folder", "serialization folder", "file"])
@pytest.mark.parametrize("mix", [0, 1])
def test_the_elmo_of_an_allennlp_model_is_taken_out_with_its_mix(tmp_path: Path, form: str, mix: int) -> None:
    model = with_mix(random_elmo(), mix)
    source = tmp_path / "model"
    source.mkdir()
    state = allennlp_state(model)
    if form == "archive":
        source = write_archive(tmp_path / "model.tar.gz", state)
    else:
        weights = source / ("best.th" if form == "serialization folder" else "weights.th")
        torch.save(state, weights)
        (source / "config.json").write_text(json.dumps(training_config()))
        source = weights if form == "file" else source
    folder, notes = convert_allennlp(source, tmp_path / "converted", mix=mix)
    converted = ElmoModel.from_pretrained(folder)
    for name, value in converted.state_dict().items():
        # The 1 of the forget gate is added and taken away again.
        torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=1e-7)
    assert (vectors_of(converted) - vectors_of(model)).abs().max() <= ALIGNMENT_TOLERANCE
    told = "\n".join(notes)
    assert f"`{ELMO}_elmo_lstm`" in told
    assert [line.split(":")[0] for line in notes if "<- taken" in line] == [f"mix {mix}"]
    assert "2 tensors of the task left out" in told
    assert "as in the published models" in told
    assert "as was learned" in (folder / "README.md").read_text()


@pytest.mark.parametrize("elmo", ["", "_elmo.", "a.b._elmo."])
def test_an_elmo_is_found_wherever_it_is(tmp_path: Path, elmo: str) -> None:
    model = random_elmo(num_hidden_layers=1, num_highway_layers=1)
    state = allennlp_state(model, elmo, mixes=[])
    folder, notes = convert_allennlp(write_archive(tmp_path / "m.tar.gz", state), tmp_path / "converted")
    assert any("their average is taken" in note for note in notes)
    assert (vectors_of(ElmoModel.from_pretrained(folder)) - vectors_of(model)).abs().max() <= ALIGNMENT_TOLERANCE


def test_layer_norm_of_the_mix_is_as_the_config_says(tmp_path: Path) -> None:
    source = write_archive(tmp_path / "m.tar.gz", allennlp_state(random_elmo()), training_config(do_layer_norm=True))
    assert ElmoConfig.from_pretrained(convert_allennlp(source, tmp_path / "converted").folder).mix_layer_norm


def options_json(**lstm: Any) -> bytes:
    model = random_elmo()
    options = {
        "lstm": {"dim": 8, "projection_dim": 5, "n_layers": 2, "cell_clip": 2, "proj_clip": 1.5, **lstm},
        "char_cnn": {
            "embedding": {"dim": 3},
            "filters": model.config.char_filters,
            "n_highway": 2,
            "activation": "tanh",
            "max_characters_per_token": 50,
        },
    }
    options["lstm"].setdefault("use_skip_connections", True)
    return json.dumps(options).encode()


@pytest.mark.parametrize("place", ["in the archive", "beside it"])
def test_options_tell_what_tensors_do_not(tmp_path: Path, place: str) -> None:
    model = with_mix(random_elmo(char_activation="tanh", cell_clip=2, projection_clip=1.5), 0)
    name = "fta/model.text_field_embedder.elmo.options_file"
    inside = {name: options_json()} if place == "in the archive" else {}
    source = write_archive(tmp_path / "m.tar.gz", allennlp_state(model), **inside)
    (tmp_path / "options.json").write_bytes(options_json())
    options = None if inside else tmp_path / "options.json"
    folder, notes = convert_allennlp(source, tmp_path / "converted", options_file=options)
    assert not any("published" in note for note in notes)
    assert (vectors_of(ElmoModel.from_pretrained(folder)) - vectors_of(model)).abs().max() <= ALIGNMENT_TOLERANCE
    (tmp_path / "options.json").write_bytes(options_json(dim=9))
    with pytest.raises(ElmoError, match=r"has shape \(32, 5\) where the options ask for \(36, 5\)"):
        convert_allennlp(source, tmp_path / "other", options_file=tmp_path / "options.json")


@pytest.mark.parametrize("transform", [GATES, BIAS, HIGHWAY])
def test_a_transform_is_undone_exactly(transform: Transform) -> None:
    stored = torch.arange(24.0).reshape(8, 3)
    assert torch.equal(transform.to_file(transform.to_model(stored)), stored)


def test_a_cache_of_word_vectors_is_left_out_and_named(tmp_path: Path) -> None:
    state = allennlp_state(random_elmo())
    state[f"{ELMO}_elmo_lstm._word_embedding.weight"] = torch.zeros(7, 5)
    _, notes = convert_allennlp(write_archive(tmp_path / "m.tar.gz", state), tmp_path / "converted")
    assert any("a cache of 7 words' vectors is left out" in note for note in notes)


BILM = f"{ELMO}_elmo_lstm."
ALLENNLP_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no ELMo": (
        lambda state: [state.pop(name) for name in list(state) if name.startswith(ELMO)],
        "has 0 ELMos inside",
    ),
    "two ELMos": (
        lambda state: state.update({"b._token_embedder._char_embedding_weights": torch.zeros(1)}),
        "has 2 ELMos inside",
    ),
    "a tensor less": (
        lambda state: state.pop(f"{BILM}_token_embedder.char_conv_1.bias"),
        "`_token_embedder.char_conv_1.bias` is missing",
    ),
    "no LSTM": (
        lambda state: [state.pop(name) for name in list(state) if "_layer_0" in name],
        "not the tensors of an ELMo: '_elmo_lstm.forward_layer_0.state_projection.weight'",
    ),
    "a tensor more": (
        lambda state: state.update({f"{BILM}_elmo_lstm.strange": torch.zeros(1)}),
        "'_elmo_lstm.strange' is left over",
    ),
    "a backward layer less": (
        lambda state: [state.pop(name) for name in list(state) if "backward_layer_1" in name],
        "`_elmo_lstm.backward_layer_1.input_linearity.weight` is missing",
    ),
    "another shape": (
        lambda state: state.update({f"{BILM}_token_embedder._projection.bias": torch.zeros(6)}),
        r"has shape \(6,\) where its other tensors ask for \(5,\)",
    ),
    "other characters": (
        lambda state: state.update({f"{BILM}_token_embedder._char_embedding_weights": torch.zeros(300, 3)}),
        r"has shape \(300, 3\) where its other tensors ask for \(262, 3\)",
    ),
    "no dimensions": (
        lambda state: state.update({f"{BILM}_token_embedder._char_embedding_weights": torch.tensor(1.0)}),
        "not the tensors of an ELMo",
    ),
    "no filters": (
        lambda state: [state.pop(name) for name in list(state) if "char_conv" in name],
        "not the tensors of an ELMo",
    ),
    "a mix of two layers": (
        lambda state: state.pop(f"{ELMO}scalar_mix_0.scalar_parameters.2"),
        r"`mix.weights` has shape \(2,\) where its other tensors ask for \(3,\)",
    ),
    "a mix with a gap": (
        lambda state: state.pop(f"{ELMO}scalar_mix_0.scalar_parameters.0"),
        r"`mix.weights` has shape \(0,\) where its other tensors ask for \(3,\)",
    ),
    "a value that is none": (
        lambda state: state[f"{BILM}_token_embedder._projection.bias"].fill_(torch.nan),
        "must hold finite floating-point numbers",
    ),
    "code": (lambda state: state.update(code=Code()), "so it is refused"),
}


@pytest.mark.parametrize("name", ALLENNLP_DAMAGE)
def test_a_broken_allennlp_model_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    damage, message = ALLENNLP_DAMAGE[name]
    state: dict[str, Any] = allennlp_state(random_elmo())
    damage(state)
    source = write_archive(tmp_path / "model.tar.gz", state)
    with pytest.raises(ElmoError, match=message) as refusal:
        convert_allennlp(source, tmp_path / "a" / "converted")
    assert "\n" not in str(refusal.value)
    assert str(source) in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model.tar.gz"]
    assert not MARKER.exists()


def test_a_mix_that_is_not_there_is_refused(tmp_path: Path) -> None:
    source = write_archive(tmp_path / "model.tar.gz", allennlp_state(random_elmo()))
    with pytest.raises(ElmoError, match="has no mix 2, only 2"):
        convert_allennlp(source, tmp_path / "converted", mix=2)


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


BAD_MEMBERS: dict[str, tuple[tarfile.TarInfo, str]] = {
    "a path upwards": (tarfile.TarInfo("../../evil"), "would lie outside of the archive"),
    "an absolute path": (tarfile.TarInfo("/etc/evil"), "would lie outside of the archive"),
    "a symbolic link": (link("weights.th", "/etc/passwd", tarfile.SYMTYPE), "is a link or no plain file"),
    "a hard link": (link("config.json", "weights.th", tarfile.LNKTYPE), "is a link or no plain file"),
    "a pipe": (link("pipe", "", tarfile.FIFOTYPE), "is a link or no plain file"),
    "a file twice": (tarfile.TarInfo("config.json"), "has the member 'config.json' twice"),
}


@pytest.mark.parametrize("name", BAD_MEMBERS)
def test_an_archive_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    member, message = BAD_MEMBERS[name]
    source = tmp_path / "model.tar"
    with tarfile.open(source, "w") as archive:
        config = tarfile.TarInfo("config.json")
        config.size = 2
        archive.addfile(config, io.BytesIO(b"{}"))
        archive.addfile(member)
    with pytest.raises(ElmoError, match=message):
        convert_allennlp(source, tmp_path / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["model.tar"]


def test_an_archive_with_a_member_of_absurd_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("weights.th")
    member.size = 1 << 40
    (tmp_path / "model.tar").write_bytes(member.tobuf() + bytes(1024))
    with pytest.raises(ElmoError, match=r"has 1,099,511,627,776 bytes, over"):
        convert_allennlp(tmp_path / "model.tar", tmp_path / "converted")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "not a readable tar archive"), (b"\x1f\x8bnothing", "not a readable tar archive")]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.tar.gz").write_bytes(content)
    with pytest.raises(ElmoError, match=message):
        convert_allennlp(tmp_path / "model.tar.gz", tmp_path / "converted")


@pytest.mark.skipif(allennlp_peer.site() is None, reason="AllenNLP's files are not here: `make parity` installs them")
@pytest.mark.parametrize("do_layer_norm", [False, True])
def test_the_mixes_of_a_tagger_equal_those_of_the_original_allennlp(tmp_path: Path, do_layer_norm: bool) -> None:
    options, weights = write_random_checkpoint("small", tmp_path / "original")
    spell = allennlp_peer.AllenNlpElmo(options, weights).char_ids
    from allennlp.modules.elmo import Elmo

    class Tagger(nn.Module):
        """As an AllenNLP tagger names its parts, with an ELMo that was fine-tuned."""

        def __init__(self) -> None:
            super().__init__()
            embedder = nn.Module()
            embedder._elmo = Elmo(str(options), str(weights), 2, requires_grad=True, do_layer_norm=do_layer_norm)
            self.text_field_embedder = nn.Module()
            self.text_field_embedder.token_embedder_elmo = embedder
            self.encoder = nn.LSTM(256, 4)

    torch.manual_seed(0)
    tagger = Tagger().eval()
    elmo = tagger.text_field_embedder.token_embedder_elmo._elmo
    with torch.no_grad():
        for parameter in elmo.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
        elmo.scalar_mix_1.scalar_parameters[2].fill_(1.5)
        elmo._elmo_lstm._token_embedder._char_embedding_weights[0] = 0
        theirs = elmo(spell(TEXT))["elmo_representations"]
    config = training_config(do_layer_norm=do_layer_norm)
    source = write_archive(tmp_path / "model.tar.gz", tagger.state_dict(), config)
    for mix, their in enumerate(theirs):
        folder, _ = convert_allennlp(source, tmp_path / f"converted-{mix}", mix=mix)
        ours = vectors_of(ElmoModel.from_pretrained(folder))
        for row, words in enumerate(TEXT):
            our, wanted = ours[row, 1 : len(words) + 1], their[row, : len(words)]
            difference = float((our - wanted).abs().max() / wanted.abs().max())
            print(f"mix {mix}, layer norm {do_layer_norm}: largest difference over largest value {difference:.1e}")
            assert difference <= TOLERANCE


# ------------------------------------------------------------------------------------------------------- SeqVec


@pytest.fixture(scope="module")
def seqvec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in SeqVec's format, two files in a folder."""
    base = tmp_path_factory.mktemp("seqvec")
    random_elmo().save_pretrained(base / "model")
    return export_checkpoint(base / "model", base / "uniref50_v2")


def test_proteins_have_the_vectors_that_seqvec_defines(seqvec: Path, tmp_path: Path) -> None:
    folder = convert_checkpoint(seqvec / "options.json", seqvec / "weights.hdf5", tmp_path / "converted")
    embedder = ElmoEmbedder.from_pretrained(folder)
    sequences = ["MKTAYIAKQR", "mkta yia-kqr\n", "MKUZOBV", "MKXXXXV", ""]
    proteins = list(embedder.embed_proteins(sequences))
    (layers,) = ElmoEmbedder.from_pretrained(folder, layers="all").embed([list("MKTAYIAKQR")])
    first, lower, rare, any_residue, empty = proteins
    assert first.layers.shape == (3, 10, 10)
    assert np.allclose(first.layers, layers, atol=ALIGNMENT_TOLERANCE)
    assert np.allclose(first.residues, layers.sum(0), atol=ALIGNMENT_TOLERANCE)
    assert np.allclose(first.vector, layers.sum(0).mean(0), atol=ALIGNMENT_TOLERANCE)
    assert np.allclose(lower.residues, first.residues, atol=ALIGNMENT_TOLERANCE)
    assert np.allclose(rare.residues, any_residue.residues, atol=ALIGNMENT_TOLERANCE)
    assert empty.residues.shape == (0, 10)
    assert not empty.vector.any()
    half = next(iter(ElmoEmbedder.from_pretrained(folder, dtype="float16", pooling="mean").embed_proteins(["MKV"])))
    assert half.residues.dtype == half.vector.dtype == np.float16
    assert half.residues.shape == (3, 10)


def test_what_is_no_protein_is_named(seqvec: Path) -> None:
    embedder = ElmoEmbedder(random_elmo(), ElmoTokenizer())
    with pytest.raises(ElmoError, match=r"protein 1 holds '\*'"):
        list(embedder.embed_proteins(["MK", "MK*"]))
    with pytest.raises(TypeError, match="iterable of sequences"):
        list(embedder.embed_proteins("MK"))


# ------------------------------------------------------------------------------------------------------- elmo convert


def elmo_convert(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_elmo_convert_sees_what_it_is_given(seqvec: Path, tmp_path: Path) -> None:
    sources = {
        "manylangs": [write_manylangs(tmp_path / "zht.model")],
        "archive": [write_archive(tmp_path / "model.tar.gz", allennlp_state(random_elmo()))],
        "folder of two files": [seqvec],
        "two files": [seqvec / "options.json", seqvec / "weights.hdf5"],
    }
    for name, paths in sources.items():
        result = elmo_convert(*paths, tmp_path / name)
        assert result.exit_code == 0, result.output
        assert f"Wrote {tmp_path / name}\n" in result.stdout
        ElmoModel.from_pretrained(tmp_path / name)
    result = elmo_convert(*sources["archive"], tmp_path / "second", "--mix", 1)
    assert "mix 0: weights" in result.stdout
    assert "<- taken" in result.stdout
    assert ElmoModel.from_pretrained(tmp_path / "second").scalar_mix.gamma.item() == MIXES[1][1]
    assert find_sources([tmp_path / "w.HDF5", tmp_path / "o.json"])[1] == [tmp_path / "o.json", tmp_path / "w.HDF5"]
    again = elmo_convert(*sources["manylangs"], tmp_path / "manylangs")
    assert (again.exit_code, "not empty" in again.stderr) == (2, True)
    assert elmo_convert(*sources["manylangs"], tmp_path / "manylangs", "--overwrite").exit_code == 0


def test_elmo_convert_says_what_it_cannot_take(seqvec: Path, manylangs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("options.json", "one.hdf5", "two.h5"):
        (tmp_path / "two" / name).write_text("")
    (tmp_path / "text.txt").write_text("")
    many = write_manylangs(tmp_path / "zht.model")
    archive = write_archive(tmp_path / "model.tar.gz", allennlp_state(random_elmo()))
    out = tmp_path / "out"
    cases = [
        ([tmp_path / "nothing", out], "no such file or folder"),
        ([tmp_path / "empty", out], "not a checkpoint"),
        ([tmp_path / "text.txt", out], "not a checkpoint"),
        ([seqvec / "options.json", out], "not a checkpoint"),
        ([tmp_path / "two", out], "several files to choose from"),
        ([seqvec / "options.json", seqvec / "weights.hdf5", tmp_path / "text.txt", out], "one path too many"),
        ([manylangs, out], "converted already"),
        ([many, out, "--mix", 1], "--mix are for AllenNLP models"),
        ([seqvec, out, "--options", seqvec / "options.json"], "--options and --mix are for AllenNLP models"),
        ([many, out, "--vocab", tmp_path / "text.txt"], "--vocab is not for ELMoForManyLangs"),
        ([archive, out, "--mix", 7], "has no mix 7"),
        ([archive, out, "--options", tmp_path / "gone.json"], "gone.json: cannot be read"),
    ]
    for arguments, message in cases:
        result = elmo_convert(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), (arguments, result.output)
        assert message in result.stderr
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.splitlines()) == 1
    assert not out.exists()
