"""`elmo surprisal`: every word's surprisal, where the word stands in the raw text, and the files that hold it."""

import csv
import json
import math

import pytest
import torch
from pyarrow import parquet
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer, surprisal
from modeling_elmo.cli import app
from modeling_elmo.corpus import Corpus
from modeling_elmo.surprisal import Summary, read_sentences, score_corpus, score_sentences, word_surprisals

WORDS = "the bank of river is steep lends money a to he sat on ! . , The “ ” do n’t".split()
# Sums of a few hundred float32 numbers in another order, in bits.
TOLERANCE = 2e-5
ODD_TEXTS = [
    "The bank\tof  the river.",
    "\xa0The bank\xa0of\u2009the\u3000river. ",
    "“Don’t,” she said; he'd've \"sat\" 'on' it...",
    "👩‍👩‍👧 sat 🇫🇷 on 👍🏽!",
    "cafe\u0301 nai\u0308ve a\u0301\u0323 \u200bbank",
    "the the bank. the bank the",
    "cannot gonna 'tis U.S. Mr. (St. x@y.z)",
    "\x0bthe\x1cbank\x85of",
]


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=WORDS, training_text="raw")


@pytest.fixture(scope="module")
def model(tokenizer) -> ElmoForPreTraining:
    torch.manual_seed(0)
    sizes = {"char_embedding_dim": 4, "char_filters": [[1, 4], [2, 8]], "num_highway_layers": 1, "projection_dim": 6}
    config = ElmoConfig(**sizes, cell_dim=8, dropout=0.0, vocab_size=len(tokenizer), num_hidden_layers=2)
    model = ElmoForPreTraining(config).eval()
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


def corpus_of(*rows, **settings) -> Corpus:
    return Corpus([{"text": row} for row in rows], **settings)


def entries_of(corpus, model, tokenizer, states="fresh", paragraphs=False) -> list[surprisal.Surprisal]:
    entries = []
    for scored in score_sentences(read_sentences(corpus, tokenizer, paragraphs), model, tokenizer, states):
        entries += word_surprisals(scored)
    return entries


def run(*arguments, **options):
    return CliRunner().invoke(app, ["surprisal", *map(str, arguments)], **options)


# ---------------------------------------------------------------------------------------------------------- numbers


@torch.no_grad()
def bits(model, tokenizer, words: list[str], side: str, target: str) -> float:
    """-log2 p of the word after (or before) `words`, which are all that the model has read."""
    inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    # The forward model has read the last of the words, or `<S>`; the backward one the first of them, or `</S>`.
    place = len(words) if side == "forward" else 1
    logits = getattr(model(**inputs), f"{side}_logits")[0, place].double()
    return -logits.log_softmax(-1)[tokenizer.convert_tokens_to_ids(target)].item() / math.log(2)


def test_a_surprisal_is_that_of_the_prefix_and_of_the_suffix_alone(model, tokenizer):
    entries = entries_of(corpus_of("The bank of the zebra lends money to the river."), model, tokenizer)
    words = [entry.word for entry in entries]
    for place, entry in enumerate(entries):
        forward = bits(model, tokenizer, words[:place], "forward", entry.word)
        backward = bits(model, tokenizer, words[place + 1 :], "backward", entry.word)
        assert (entry.forward, entry.backward) == pytest.approx((forward, backward), abs=TOLERANCE)
        assert entry.both == pytest.approx((entry.forward + entry.backward) / 2)
        assert entry.unknown == (entry.word == "zebra")
    assert len({round(entry.forward, 3) for entry in entries}) > len(words) / 2


def test_a_sentence_read_in_pieces_has_the_surprisals_of_one_pass(model, tokenizer, monkeypatch):
    rows = ["he sat .", "the bank of the river is steep , the zebra sat on the bank !", "", "a bank lends money ."]
    for states in ("fresh", "carried"):
        whole = entries_of(corpus_of(*rows), model, tokenizer, states)
        for size in (1, 3, 4, 14):  # 14 words and two markers are a piece and a rest
            monkeypatch.setattr(surprisal, "PIECE_WORDS", size)
            pieces = entries_of(corpus_of(*rows), model, tokenizer, states)
            monkeypatch.undo()
            assert [entry[:7] for entry in pieces] == [entry[:7] for entry in whole]
            for piece, entry in zip(pieces, whole, strict=True):
                assert piece[7:] == pytest.approx(entry[7:], abs=TOLERANCE)


def test_carried_states_come_from_the_sentences_before_up_to_an_empty_row(model, tokenizer):
    rows = ["he sat .", "the bank of the river .", "", "the bank of the river ."]
    fresh, carried = (entries_of(corpus_of(*rows), model, tokenizer, states) for states in ("fresh", "carried"))
    _, states = model.score_batch([rows[0].split()], tokenizer)
    (expected,), _ = model.score_batch([rows[1].split()], tokenizer, states)
    second = [entry for entry in carried if entry.row == 1]
    for entry, forward, backward in zip(second, expected.forward[:-1], expected.backward[1:], strict=True):
        by_hand = (-forward.item() / math.log(2), -backward.item() / math.log(2))
        assert (entry.forward, entry.backward) == pytest.approx(by_hand, abs=TOLERANCE)
    for entry, other in zip(fresh, carried, strict=True):
        is_same = entry[7:] == pytest.approx(other[7:], abs=TOLERANCE)
        assert is_same == (entry.row != 1)


def test_batches_change_nothing(model, tokenizer, monkeypatch):
    rows = ["he sat .", "the bank of the river is steep ,", "money", "The bank ."]
    expected = entries_of(corpus_of(*rows), model, tokenizer)
    for settings in ({"BATCH_SIZE": 1}, {"BATCH_WORDS": 4}):
        for name, value in settings.items():
            monkeypatch.setattr(surprisal, name, value)
        found = entries_of(corpus_of(*rows), model, tokenizer)
        monkeypatch.undo()
        for one, other in zip(expected, found, strict=True):
            assert one[:7] == other[:7]
            assert one[7:] == pytest.approx(other[7:], abs=TOLERANCE)


# ------------------------------------------------------------------------------------------------------------ spans


@pytest.mark.parametrize("text", ODD_TEXTS)
@pytest.mark.parametrize("tokenized", [True, False])
def test_spans_are_the_words_and_nothing_but_whitespace_is_between_them(text, tokenized, tokenizer):
    for paragraphs in (False, True):
        end, position = 0, 0
        for sentence in read_sentences(corpus_of(text, tokenized=tokenized), tokenizer, paragraphs):
            assert sentence.position == position
            for word, (start, stop) in zip(sentence.words, sentence.spans, strict=True):
                assert text[start:stop] == word
                assert not text[end:start].strip()
                end = stop
            position += len(sentence.words)
        assert not text[end:].strip()


def test_spans_of_lists_of_words_are_those_in_the_words_joined_by_spaces(tokenizer):
    words = ["the", " ", "the bank", "", "."]
    (sentence,) = read_sentences(corpus_of(words), tokenizer)
    assert [" ".join(words)[start:end] for start, end in sentence.spans] == words
    assert sentence.spans[2] == (6, 14)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He sat. The bank", ["He sat .", "The bank"]),
        ("“Why?” he asked. “No!” “Yes.”", ["“ Why ? ” he asked .", "“ No ! ”", "“ Yes . ”"]),
        ('"Why?" he asked. "No!" "Yes." So', ['" Why ? " he asked .', '" No ! "', '" Yes . "', "So"]),
        ("Mr. X. of the U.S. sat... 5 (he said.) sat?!", ["Mr. X. of the U.S. sat ...", "5 ( he said . ) sat ? !"]),
        (". . !", [". . !"]),
    ],
)
def test_paragraphs_are_split_into_sentences(text, sentences, tokenizer):
    found = read_sentences(corpus_of(text, text), tokenizer, paragraphs=True)
    expected = [(row, number, words) for row in (0, 1) for number, words in enumerate(sentences)]
    assert [(sentence.row, sentence.number, " ".join(sentence.words)) for sentence in found] == expected


# ------------------------------------------------------------------------------------------------------------ files


TEXT = 'The bank, "he said."\n\nThe zebra\n'


@pytest.fixture
def text_file(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def test_all_formats_hold_the_same_rows_as_standard_output(folder, text_file, tmp_path):
    printed = run(text_file, "--model", folder)
    assert printed.exit_code == 0, printed.stderr
    rows = list(csv.DictReader(printed.stdout.splitlines(), delimiter="\t"))
    assert [row["word"] for row in rows] == ["The", "bank", ",", '"', "he", "said", ".", '"', "The", "zebra"]
    last = [(row["row"], row["position"], row["unknown"]) for row in rows[-2:]]
    assert last == [("2", "0", "false"), ("2", "1", "true")]
    assert printed.stderr.startswith("2 sentences, perplexity ")
    for name in ("out.tsv", "out.jsonl", "out.parquet", "out.data"):
        options = ["--format", "tsv"] if name == "out.data" else []
        result = run(text_file, "--model", folder, "--output", tmp_path / name, *options)
        assert (result.exit_code, result.stdout) == (0, f"Wrote {tmp_path / name}: 10 words\n")
    assert (tmp_path / "out.tsv").read_text() == (tmp_path / "out.data").read_text() == printed.stdout
    as_json = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    as_parquet = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for row, one, other in zip(rows, as_json, as_parquet, strict=True):
        assert list(row) == list(one) == list(other) == list(surprisal.Surprisal._fields)
        for column, value in one.items():
            expected = value if isinstance(value, str) else json.loads(row[column])
            assert value == pytest.approx(expected, abs=1e-6)
            assert other[column] == (expected if isinstance(value, str) else pytest.approx(expected, rel=1e-5))


def test_parquet_has_the_rows_of_all_groups(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(surprisal, "ROW_GROUP", 3)
    entries = entries_of(corpus_of("the bank of the river is steep ."), model, tokenizer)
    surprisal.write_surprisals(iter(entries), tmp_path / "out.parquet", "parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["word"].to_pylist() == [entry.word for entry in entries]
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3


def test_every_kind_of_input_gives_the_same_words(folder, text_file, tmp_path):
    lines = ["The bank", "he sat"]
    text_file.write_text("\n".join(lines))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"said": line}) + "\n" for line in lines))
    (tmp_path / "a.csv").write_text("id,said\n" + "".join(f"1,{line}\n" for line in lines))
    expected = run(text_file, "--model", folder).stdout
    assert expected.count("\n") == 5
    assert run("-", "--model", folder, input="\ufeffThe bank\r\nhe sat").stdout == expected
    for name in ("a.jsonl", "a.csv"):
        assert run(tmp_path / name, "--column", "said", "--model", folder).stdout == expected


def test_the_score_command_is_the_sum_of_the_words_and_of_the_ends(folder, model, tokenizer, text_file):
    summary = Summary()
    scored = list(score_corpus(str(text_file), model, tokenizer, summary))
    lines = CliRunner().invoke(app, ["score", str(text_file), "--model", folder, "--json"]).stdout.splitlines()
    for sentence, line in zip(scored, lines, strict=True):
        both = sum(entry.both for entry in word_surprisals(sentence))
        ends = (sentence.score.forward[-1] + sentence.score.backward[0]).item() / 2
        assert json.loads(line)["log_probability"] == pytest.approx(ends - both * math.log(2), abs=1e-4)
    assert (summary.sentences, summary.words, summary.unknown) == (2, 10, 4)


def test_a_corpus_is_read_no_further_than_what_is_scored(model, tokenizer, monkeypatch):
    monkeypatch.setattr(surprisal, "BATCH_SIZE", 2)
    read = []

    def rows():
        for number in range(1000):
            read.append(number)
            yield {"text": "the bank"}

    scored = score_sentences(read_sentences(Corpus(rows()), tokenizer), model, tokenizer)
    next(scored)
    assert len(read) <= 3


@pytest.mark.parametrize("name", ["out.tsv", "out.parquet"])
def test_an_output_appears_whole_or_not_at_all(name, folder, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"the bank\n" * 40 + b"caf\xe9\n")
    result = run(tmp_path / "text.txt", "--model", folder, "--output", tmp_path / name)
    assert result.exit_code == 2
    assert "line 41 is not UTF-8" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquet"], "--format parquet needs a file"),
        (["--format", "xlsx"], "--format must be one of tsv, jsonl, parquet, got 'xlsx'"),
        (["--output", "a.txt"], "a.txt: the output must end in .tsv, .jsonl, .parquet"),
        (["--output", "nowhere/a.tsv"], "there is no folder nowhere"),
        (["--states", "old"], "`states` must be one of fresh, carried, got 'old'"),
        (["--model", "nowhere"], "nowhere: no such model"),
        ([], "standard input: holds no sentences"),
    ],
)
def test_bad_input_is_one_line(arguments, message, folder):
    model = [] if "--model" in arguments else ["--model", folder]
    result = run("-", *arguments, *model, input="\n \n" if not arguments else "the bank\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_existing_output_is_kept_unless_it_may_be_replaced(folder, text_file, tmp_path):
    (tmp_path / "out.tsv").write_text("mine")
    arguments = [text_file, "--model", folder, "--output", tmp_path / "out.tsv"]
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert (tmp_path / "out.tsv").read_text() == "mine"
    assert run(*arguments, "--overwrite").exit_code == 0
    assert (tmp_path / "out.tsv").read_text().startswith("row\t")
