"""`elmo page`, as far as Python goes: what is in the file, what is left out, and one line over bad input."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_cli import assert_refused, run

from modeling_elmo import MINI, ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling_elmo import page as page_module
from modeling_elmo import page_corpus as corpus_module
from modeling_elmo.page import ALPHABET, BITS_PER_PAIR, WEB, Block, pack_bytes, pack_float16
from modeling_elmo.page_corpus import find_uses, read_page_corpus

WORDS = "the of bank river money a . he sat on lives in".split()
SIZES = {"projection_dim": 6, "cell_dim": 8, "char_filters": [[1, 4], [3, 8]], "char_embedding_dim": 4}
SENTENCES = ["The bank of England lends money .", "", "A river bank .", "He sat on the BANK .", "No river here ."]
SENSES = "word\tsense\tsentence\nbank\tmoney\tThe bank lends .\nbank\triver\tThe bank is wet .\n"
SENSES += "wet\triver\tThe bank is wet .\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small pretrained model with its softmax."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("page") / "my-elmo"
    ElmoTokenizer(vocab=WORDS, training_text="treebank").save_pretrained(path)
    ElmoForPreTraining(ElmoConfig(vocab_size=4 + len(WORDS), num_highway_layers=1, **SIZES)).save_pretrained(path)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return path


def make(corpus: object, model: object, output: Path, *more: object) -> Any:
    return run("page", corpus, "--output", output, "--model", model, *more)


def unpack(text: str, size: int) -> bytes:
    """What a block holds, by its definition: two characters are a number of 13 bits."""
    values = np.searchsorted(ALPHABET, np.frombuffer(text.encode(), dtype=np.uint8)).reshape(-1, 2).astype(int)
    numbers = values @ [len(ALPHABET), 1]
    bits = (numbers[:, None] >> np.arange(BITS_PER_PAIR - 1, -1, -1)) & 1
    return gzip.decompress(np.packbits(bits.astype(np.uint8)).tobytes()[:size])


def read_page(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The facts and the blocks of a page."""
    found = dict(re.findall(r'<script type="application/[a-z-]+" id="([a-z-]+)">(.*?)</script>', path.read_text()))
    facts = json.loads(found.pop("facts"))
    blocks = {}
    for name, text in found.items():
        name = name.removeprefix("block-")
        blocks[name] = unpack(text, facts["sizes"][name])
    return facts, blocks


# ---------------------------------------------------------------------------------------------------------- packing


@pytest.mark.parametrize("size", [0, 1, 12, 13, 14, 1000, page_module.BYTES_AT_ONCE + 5])
def test_packed_bytes_come_back_and_no_character_can_end_a_script(size: int) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    text, packed = pack_bytes(content)
    assert unpack(text, packed) == content
    assert "<" not in text
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= packed * 16 / 13 + 2


def test_numbers_that_16_bits_do_not_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="the weights: not every number of it fits into 16 bits"):
        pack_float16([torch.tensor([1.0, 1e6])], "the weights")
    assert isinstance(pack_float16([torch.tensor([1.0, 6e4])], "the weights"), Block)


# ------------------------------------------------------------------------------------------------------------- page


def test_a_page_holds_model_sentences_uses_and_softmax(folder: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    result = make(corpus, folder, output, "--words", "Bank, river", "--example", "He sat on the [bank] .")
    assert result.exit_code == 0, result.stderr
    assert f"Wrote {output} (" in result.stdout
    assert "4 sentences, 21 words\n" in result.stdout
    assert "uses at hand: bank (3), river (2)\n" in result.stdout
    assert "count the 16 most frequent words" in result.stdout
    facts, blocks = read_page(output)
    assert facts["model"]["name"] == "my-elmo"
    assert facts["examples"] == ["He sat on the [bank] ."]
    assert facts["softmax"] == {"words": 16, "special": 4, "total": 16}
    table = json.loads(blocks["corpus"])
    assert table["sentences"] == [sentence.split() for sentence in SENTENCES if sentence]
    assert table["uses"][0] == {"word": "bank", "places": [[0, 1], [1, 2], [2, 4]], "total": 3}
    weights = ElmoModel.from_pretrained(folder).state_dict()
    assert facts["model"]["parameters"] == sum(size for _, size in facts["tensors"])
    packed = np.frombuffer(blocks["weights"], dtype=np.uint8).reshape(2, -1).T[:, ::-1].copy().view(np.float16)
    expected = torch.cat([weights[name].flatten() for name, _ in facts["tensors"]]).half().numpy()
    np.testing.assert_array_equal(packed.ravel(), expected)
    codes = np.frombuffer(blocks["vectors"], dtype=np.int8).reshape(-1, 12)
    scales = np.frombuffer(blocks["scales"], dtype="<f4")
    assert codes.shape[0] == len(scales) == (3 + 2) * 2  # uses of both words, in both layers
    np.testing.assert_array_equal(np.abs(codes).max(1), 127)
    assert json.loads(blocks["vocabulary"])[4:] == WORDS


def test_the_page_asks_for_nothing_and_allows_only_its_own_scripts(folder: Path, corpus: Path, tmp_path: Path) -> None:
    make(corpus, folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//|@import|url\(", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    scripts = sorted(path.stem for path in WEB.glob("*.js"))
    assert sorted(re.findall(r'<script id="script-([a-z]+)">', page)) == scripts
    assert policy.count("'sha256-") == len(scripts) + 1
    assert "innerHTML" not in page
    assert "<!-- " not in page.replace("<!-- -->", "")


def test_a_table_of_senses_gives_the_words_and_the_senses(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "senses.tsv"
    table.write_text(SENSES)
    corpus = read_page_corpus(str(table), ElmoTokenizer.from_pretrained(folder))
    assert corpus.sentences == ["The bank lends .".split(), "The bank is wet .".split()]
    assert corpus.senses == {(0, 1): "money", (1, 1): "river", (1, 3): "river"}
    uses = find_uses(corpus, ElmoTokenizer.from_pretrained(folder), [])
    assert [(word.word, word.places) for word in uses] == [("bank", [(0, 1), (1, 1)]), ("wet", [(1, 3)])]


def test_a_sample_has_the_sentences_with_the_words_first_and_is_always_the_same(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "corpus.txt"
    table.write_text("".join(f"number {number} {'bank' * (number % 50 == 0)} .\n" for number in range(200)))
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    first, second = (read_page_corpus(str(table), tokenizer, ["bank"], sample=10) for _ in range(2))
    assert first.sentences == second.sentences
    assert (len(first.sentences), first.total) == (10, 200)
    assert sum("bank" in words for words in first.sentences) == 4


def test_words_are_chosen_by_their_uses_without_function_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "FUNCTION_WORDS", 6)
    path = tmp_path / "corpus.txt"
    path.write_text("the bank\n" * 9 + "the river\n" * 5 + "the 1.5\n" * 9 + "the lone\n" * 3 + "the an\n" * 9)
    tokenizer = ElmoTokenizer(vocab=WORDS)
    corpus = read_page_corpus(str(path), tokenizer)
    assert [(word.word, word.total) for word in find_uses(corpus, tokenizer, [])] == [("bank", 9), ("river", 5)]
    bare = ElmoTokenizer()  # without a vocabulary, a word in most sentences is a function word
    assert [word.word for word in find_uses(corpus, bare, [])] == []
    monkeypatch.setattr(corpus_module, "LARGEST_SHARE", 0.5)
    assert [word.word for word in find_uses(corpus, bare, [])] == ["bank", "river"]


def test_of_very_many_uses_evenly_spaced_ones_are_kept(folder: Path, corpus: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(corpus_module, "MOST_USES", 2)
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    (uses,) = find_uses(read_page_corpus(str(corpus), tokenizer), tokenizer, ["bank"])
    assert (uses.places, uses.total) == ([(0, 1), (1, 2)], 3)


def test_what_does_not_fit_is_left_out_and_said_so(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "VECTOR_ROOM", 3 * 24 * 16 // 13 + 1)
    monkeypatch.setattr(page_module, "PAGE_BYTES", 10_000)
    result = make(corpus, folder, tmp_path / "page.html", "--words", "bank,river")
    assert "uses at hand: bank (3)\n" in result.stdout
    assert "computes when asked, for want of room: river\n" in result.stdout
    assert "no surprise and no substitutes: the softmax does not fit" in result.stdout
    assert "note: more than 0 MB, most of it the model" in result.stdout
    facts, blocks = read_page(tmp_path / "page.html")
    assert facts["softmax"] is None
    assert "softmax" not in blocks
    assert [word["word"] for word in facts["words"]] == ["bank", "river"]


def test_the_softmax_has_as_many_words_as_there_is_room_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "SOFTMAX_SIZES", (14, 10))
    blocks, facts = page_module.pack_softmax(folder, room=10_000)
    assert facts == {"words": 14, "special": 4, "total": 16}
    room = sum(len(block.text) for block in blocks.values()) - 1
    assert page_module.pack_softmax(folder, room)[1] == {"words": 10, "special": 4, "total": 16}
    assert page_module.pack_softmax(folder, room=100) == ({}, None)


def test_a_model_without_a_softmax_has_a_page_too(folder: Path, corpus: Path, tmp_path: Path) -> None:
    ElmoModel.from_pretrained(folder).save_pretrained(tmp_path / "bilm")
    result = make(corpus, tmp_path / "bilm", tmp_path / "page.html", "--words", "bank")
    assert "no surprise and no substitutes: the model has no softmax" in result.stdout
    assert read_page(tmp_path / "page.html")[0]["softmax"] is None


def test_long_sentences_are_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("bank " * 201 + "\nThe bank .\n")
    result = make(path, folder, tmp_path / "page.html", "--words", "bank")
    assert "1 sentences, 3 words\n" in result.stdout
    assert "sentences of more than 200 words, left out: 1" in result.stdout


# -------------------------------------------------------------------------------------------------------- bad input


def test_bad_input_is_one_line_and_leaves_nothing(folder: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "page.html"
    output.parent.mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "many.txt").write_text("a bank\n" * 5001)
    (tmp_path / "long.txt").write_text("bank " * 300)
    (tmp_path / "bad.tsv").write_text(SENSES + "bank\tmoney\tNo such word .\n")
    (tmp_path / "short.tsv").write_text("word\tsense\tsentence\nbank\n")
    for arguments, named in {
        (tmp_path / "empty.txt", folder): ("empty.txt: the file is empty",),
        (tmp_path / "blank.txt", folder): ("blank.txt: the corpus is empty",),
        (tmp_path / "missing.txt", folder): ("missing.txt: no such file",),
        (tmp_path / "many.txt", folder): (
            "5,001 sentences are too many for a page, which holds 5,000",
            "--sample 5000",
        ),
        (tmp_path / "long.txt", folder): ("no sentence has at most 200 words",),
        (tmp_path / "bad.tsv", folder): ("bad.tsv: line 5: expected a word, its sense and a sentence with the word",),
        (tmp_path / "short.tsv", folder): ("short.tsv: line 2: expected a word",),
        (corpus, folder, "--words", "bank,xylophone,zebra"): ("it has no word 'xylophone', 'zebra'",),
        (corpus, folder, "--words", " , "): ("--words must be words separated by commas",),
        (corpus, tmp_path / "nowhere"): ("nowhere: no such model",),
    }.items():
        assert_refused(make(*arguments[:2], output, *arguments[2:]), *named)
        assert list(output.parent.iterdir()) == []
    assert_refused(make(corpus, folder, tmp_path / "page.txt"), "page.txt: the output must end in .html")
    output.write_text("mine")
    assert_refused(make(corpus, folder, output), "page.html: exists; choose another name, or pass --overwrite")
    assert output.read_text() == "mine"
    assert make(corpus, folder, output, "--overwrite").exit_code == 0


def test_models_that_a_page_cannot_run_are_refused(corpus: Path, tmp_path: Path) -> None:
    dictionary = ElmoConfig(spelling="dictionary", char_vocab_size=10, num_highway_layers=1, **SIZES)
    ElmoTokenizer(characters="bank").save_pretrained(tmp_path / "dictionary")
    ElmoModel(dictionary).save_pretrained(tmp_path / "dictionary")
    result = make(corpus, tmp_path / "dictionary", tmp_path / "page.html")
    assert_refused(result, "spells words in the characters of a dictionary, as ELMoForManyLangs does")
    ElmoModel(ElmoConfig(mix_layer_norm=True, num_highway_layers=1, **SIZES)).save_pretrained(tmp_path / "normed")
    result = make(corpus, tmp_path / "normed", tmp_path / "page.html")
    assert_refused(result, "mix_layer_norm")
    assert not (tmp_path / "page.html").exists()


def test_an_interrupted_page_leaves_nothing(folder: Path, corpus: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(page_module, "assemble", interrupt)
    result = make(corpus, folder, tmp_path / "page.html")
    assert result.exit_code == 130
    assert result.stderr == "interrupted: nothing was written\n"
    assert [path.name for path in tmp_path.iterdir()] == [corpus.name]


@pytest.mark.skipif(not Path(MINI, "config.json").is_file(), reason=f"elmo-mini is not in {MINI}")
def test_a_page_of_2000_sentences_with_elmo_mini_has_at_most_15_mb(tmp_path: Path) -> None:
    corpus = tmp_path / "sentences.txt"
    chooser = np.random.default_rng(0)
    vocabulary = Path(MINI, "vocab.txt").read_text(encoding="utf-8").splitlines()[4:20_000]
    places = np.minimum(chooser.zipf(1.3, (2000, 20)), len(vocabulary)) - 1
    corpus.write_text("".join(" ".join(vocabulary[place] for place in row) + "\n" for row in places))
    result = make(corpus, MINI, tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    assert "2,000 sentences, 40,000 words" in result.stdout
    assert "surprise and substitutes count" in result.stdout
    assert (tmp_path / "page.html").stat().st_size <= 15_000_000
