"""ElmoTokenizer: every byte where the original puts it, and a good transformers tokenizer."""

import copy
import itertools
import json
import pickle

import datasets
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from datasets.fingerprint import Hasher
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AddedToken,
    AutoTokenizer,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    default_data_collator,
    pipeline,
)

from modeling_elmo import (
    ElmoConfig,
    ElmoForCoreferenceResolution,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.splitting_elmo import split_words

SPECIAL_WORDS = ["<pad>", "<S>", "</S>", "<UNK>"]

# Half a second in linear time; a quadratic loop over this many characters would take minutes.
LONG_CHUNK = 100_000

# Any code point at all, lone surrogates included, and often those that splitting is about.
CHARACTERS = st.characters(exclude_categories=()) | st.sampled_from(
    "'’.-,:+/@&_ aAnNtTsSrRlL19$\t\n\u00a0\u2028\u200d👩🇫️"
)
TEXTS = st.text(CHARACTERS, max_size=60)
WORDS = st.lists(st.text(CHARACTERS, max_size=12), max_size=8)
# Pieces whose meaning depends on what stands beside them.
PIECES = [
    *["www.", "http://", "a", "B", "I", "Mr.", "U.S.", "Ph.D.", "n't", "'s", "’ll", "cannot", "'tis", "'90s", "'em"],
    *["1", "22", ",", ".", "-", "--", "...", "'", "’", "''", "(", "$", "/", "&", "_", "@", "+", ":", "!", "%"],
    *["👩", "🇫", "🇷", "\ufe0f", "🏽", "語", "हूँ"],
]
# Words as they are in split text: no blanks, nothing that UTF-8 cannot say, and short enough to be spelled whole.
PLAIN_WORD = (
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=48)
    .map(lambda word: "".join(word.split()))
    .filter(lambda word: 0 < len(word.encode()) <= 48 and word not in SPECIAL_WORDS)
)

VOCABULARY = [f"w{i}" for i in range(40)]
SENTENCES = [["w1", "w2", "w3"], [], ["New York", "don't", "", "<S>"], ["w4"] * 7, ["x" * 60]]
TEXT_BATCH = ["The bank's rates didn't fall.", "", "  \n ", "Short.", "A much longer sentence, with 👍🏽 and 日本語!"]
PER_WORD = ["input_ids", "char_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "offset_mapping"]
EVERYTHING = {"return_token_type_ids": True, "return_special_tokens_mask": True, "return_offsets_mapping": True}


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer()


@pytest.fixture
def with_words() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=VOCABULARY)


def spell(word: str) -> list[int]:
    """A word's row, written from the description of the format."""
    if word == "<S>":
        letters = [256]
    elif word == "</S>":
        letters = [257]
    else:
        letters = list("".join(c for c in word if not "\ud800" <= c <= "\udfff").encode("utf-8"))[:48]
    row = [258, *letters, 259]
    return [character + 1 for character in row + [260] * (50 - len(row))]


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in split_words(text)]


def as_lists(encoding) -> dict:
    return {key: value if isinstance(value, list) else value.tolist() for key, value in encoding.items()}


# Characters


@given(words=WORDS)
def test_words_are_spelled_as_the_format_says(tokenizer, words):
    encoding = tokenizer(words, is_split_into_words=True)
    assert encoding["char_ids"] == [spell(word) for word in ["<S>", *words, "</S>"]]
    assert tokenizer.words_to_char_ids(words).tolist() == [spell(word) for word in words]


@pytest.mark.parametrize(
    "word",
    [
        *["", "a", "\x00", "a\x00", "\x00" * 60, "\x7f\x1b", "a b", "<S>", "</S>", "<s>", "<S> ", "<pad>", "<UNK>"],
        *["x" * 47 + "語", "x" * 48, "x" * 49, "x" * 10_000, "é" * 24, "é" * 25, "a" + "é" * 24, "語" * 16, "語" * 17],
        *["👩‍👩‍👧", "\ud800", "a\udfffb", "\ud83d\ude00", "\U0010ffff"],
    ],
)
def test_odd_words_are_spelled_as_the_format_says(tokenizer, word):
    assert tokenizer([word], is_split_into_words=True)["char_ids"][1] == spell(word)


@given(words=WORDS, width=st.integers(3, 12))
def test_narrower_rows_cut_words_earlier(words, width):
    narrow = ElmoTokenizer(max_characters_per_token=width)
    for row, word in zip(narrow.words_to_char_ids(words).tolist(), words, strict=True):
        whole = spell(word)
        end = min(whole.index(260), width - 1)
        assert row == [*whole[:end], 260, *[261] * (width - 1 - end)]


def test_the_characters_of_a_padded_word_are_zeros(tokenizer):
    encoding = tokenizer([["a"], ["b", "c"]], is_split_into_words=True, padding=True)
    assert encoding["char_ids"][0][-1] == [0] * 50
    assert not any(0 in row for row in encoding["char_ids"][1])


# Shapes and keys


def test_an_encoding_has_the_models_inputs_and_nothing_else(tokenizer):
    assert tokenizer.model_input_names == ["input_ids", "char_ids", "attention_mask", "token_type_ids"]
    encoding = tokenizer(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    assert list(encoding) == tokenizer.model_input_names
    assert (
        encoding["input_ids"].shape == encoding["attention_mask"].shape == encoding["token_type_ids"].shape == (5, 9)
    )
    assert encoding["char_ids"].shape == (5, 9, 50)
    assert {tensor.dtype for tensor in encoding.values()} == {torch.int64}


def test_what_is_asked_for_is_returned_and_what_is_refused_is_not(tokenizer):
    encoding = tokenizer(["a b", "c"], return_attention_mask=False, return_length=True, **EVERYTHING)
    assert set(encoding) == {*PER_WORD, "length"} - {"attention_mask"}
    assert encoding["length"] == [4, 3]
    assert encoding["special_tokens_mask"] == [[1, 0, 0, 1], [1, 0, 1]]
    assert encoding["token_type_ids"] == [[0] * 4, [0] * 3]
    assert "token_type_ids" not in tokenizer("a", "b", return_token_type_ids=False)


@pytest.mark.parametrize("options", [{}, {"padding": True}, {"padding": True, "return_tensors": "pt"}])
def test_single_texts_have_types_that_are_all_zero(tokenizer, options):
    batch = tokenizer(["a b", "a b"], **options)
    assert as_lists(batch)["token_type_ids"] == [[0] * 4] * 2
    mixed = tokenizer(["a", ("b", "c")])
    assert mixed["token_type_ids"] == [[0] * 3, [0] * 3 + [1] * 3]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pairs", [None, [["w9"] * (i % 3) for i in range(5)]])
def test_lists_numpy_and_torch_agree(with_words, pairs, side):
    options = dict(is_split_into_words=True, padding=True, padding_side=side, return_length=True, **EVERYTHING)
    lists, arrays, tensors = (
        with_words(SENTENCES, pairs, return_tensors=kind, **options) for kind in (None, "np", "pt")
    )
    assert all(isinstance(value, np.ndarray) for value in arrays.values())
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    lists["offset_mapping"] = [[list(span) for span in row] for row in lists["offset_mapping"]]
    assert as_lists(lists) == as_lists(arrays) == as_lists(tensors)


@given(sentences=st.lists(WORDS, max_size=5))
def test_a_batch_is_its_sentences_one_by_one(tokenizer, sentences):
    batch = tokenizer(sentences, is_split_into_words=True, **EVERYTHING) if sentences else {}
    for key, rows in batch.items():
        assert rows == [tokenizer(words, is_split_into_words=True, **EVERYTHING)[key] for words in sentences]


@given(texts=st.lists(TEXTS, max_size=4))
def test_a_batch_of_texts_is_its_texts_one_by_one(tokenizer, texts):
    batch = tokenizer(texts, **EVERYTHING)
    for key, rows in batch.items():
        assert rows == [tokenizer(text, **EVERYTHING)[key] for text in texts]


def test_a_pair_is_two_wrapped_sentences_with_types(with_words):
    encoding = with_words(["w1", "w2"], ["w3"], is_split_into_words=True, **EVERYTHING)
    assert with_words.convert_ids_to_tokens(encoding["input_ids"]) == ["<S>", "w1", "w2", "</S>", "<S>", "w3", "</S>"]
    assert encoding["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert encoding["special_tokens_mask"] == [1, 0, 0, 1, 1, 0, 1]
    ids, pair_ids = with_words.convert_tokens_to_ids(["w1", "w2"]), with_words.convert_tokens_to_ids(["w3"])
    assert encoding["input_ids"] == with_words.build_inputs_with_special_tokens(ids, pair_ids)
    assert encoding["token_type_ids"] == with_words.create_token_type_ids_from_sequences(ids, pair_ids)
    assert encoding["special_tokens_mask"] == with_words.get_special_tokens_mask(ids, pair_ids)


def test_pairs_can_be_given_in_every_form_the_base_class_takes(with_words):
    expected = with_words("w1 w2", "w3").data
    for given_as in (
        with_words(["w1 w2"], ["w3"]),
        with_words([("w1 w2", "w3")]),
        with_words([["w1 w2", "w3"]]),
        with_words([["w1", "w2"]], [["w3"]], is_split_into_words=True),
        with_words([(["w1", "w2"], ["w3"])], is_split_into_words=True),
    ):
        assert given_as.data == {key: [value] for key, value in expected.items()}
    assert with_words(["w1", "w2"], ["w3"], is_split_into_words=True).data == expected
    assert with_words(text_target="w1 w2").data == with_words("w1 w2").data
    assert with_words("w1", text_target="w1 w2")["labels"] == with_words("w1 w2")["input_ids"]


@pytest.mark.parametrize("pair", [None, ["w3"]])
def test_without_special_tokens_only_the_words_are_left(with_words, pair):
    wrapped = with_words(["w1", "w2"], pair, is_split_into_words=True, **EVERYTHING)
    bare = with_words(["w1", "w2"], pair, is_split_into_words=True, add_special_tokens=False, **EVERYTHING)
    inside = [i for i, special in enumerate(wrapped["special_tokens_mask"]) if not special]
    assert bare.data == {key: [value[i] for i in inside] for key, value in wrapped.items()}
    assert with_words.num_special_tokens_to_add(pair is not None) == len(wrapped["input_ids"]) - len(inside)


@pytest.mark.parametrize("options", [{}, {"padding": True}, {"padding": True, "return_tensors": "pt"}])
def test_empty_input_is_valid(tokenizer, options):
    for empty in (tokenizer("", **options), tokenizer(" \n\t\u2003", **options)):
        assert np.shape(empty["input_ids"])[-1] == 2
        assert np.shape(empty["char_ids"])[-2:] == (2, 50)
    assert np.shape(tokenizer([], is_split_into_words=True, **options)["input_ids"])[-1] == 2
    assert np.shape(tokenizer([[], []], is_split_into_words=True, **options)["char_ids"]) == (2, 2, 50)
    assert np.shape(tokenizer(["", ""], add_special_tokens=False, **options)["input_ids"]) == (2, 0)
    assert len(tokenizer([], **options)["input_ids"]) == len(tokenizer([], **options)["char_ids"]) == 0
    assert np.shape(tokenizer([], return_tensors="np")["char_ids"]) == (0, 0, 50)
    pair = tokenizer("", "", **options)
    assert np.ravel(pair["token_type_ids"]).tolist() == [0, 0, 1, 1]


# Padding


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"padding": True}, [9, 9, 9]),
        ({"padding": "longest", "pad_to_multiple_of": 4}, [12, 12, 12]),
        ({"padding": "max_length", "max_length": 11}, [11, 11, 11]),
        ({"padding": "max_length", "max_length": 11, "pad_to_multiple_of": 8}, [16, 16, 16]),
        ({"padding": "max_length", "max_length": 4}, [5, 4, 9]),
        ({"padding": "max_length", "max_length": 4, "truncation": True}, [4, 4, 4]),
        ({"padding": False}, [5, 2, 9]),
        ({"padding": "max_length"}, [5, 2, 9]),
    ],
)
def test_padding_adds_only_padding_on_its_side(with_words, options, lengths, side):
    sentences = [SENTENCES[0], SENTENCES[1], SENTENCES[3]]
    truncation = {key: options[key] for key in ("truncation", "max_length") if "truncation" in options}
    plain = with_words(sentences, is_split_into_words=True, **truncation, **EVERYTHING)
    padded = with_words(sentences, is_split_into_words=True, padding_side=side, **options, **EVERYTHING)
    fill = {
        "input_ids": 0,
        "char_ids": [0] * 50,
        "attention_mask": 0,
        "token_type_ids": 0,
        "special_tokens_mask": 1,
        "offset_mapping": (0, 0),
    }
    assert [len(row) for row in padded["input_ids"]] == lengths
    for key in PER_WORD:
        for row, whole, length in zip(plain[key], padded[key], lengths, strict=True):
            padding = [fill[key]] * (length - len(row))
            assert whole == (row + padding if side == "right" else padding + row)


def test_padding_side_is_a_setting_and_an_argument(with_words):
    left = ElmoTokenizer(vocab=VOCABULARY, padding_side="left")
    batch = ["w1", "w1 w2"]
    assert left(batch, padding=True).data == with_words(batch, padding=True, padding_side="left").data
    assert left(batch, padding=True, padding_side="right").data == with_words(batch, padding=True).data


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", [None, "np", "pt"])
@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 4}, {"padding": "max_length", "max_length": 13}])
def test_padding_afterwards_is_padding_at_once(with_words, options, kind, side):
    with_words.padding_side = side
    plain = with_words(SENTENCES, is_split_into_words=True, **EVERYTHING)
    features = [{key: plain[key][i] for key in plain} for i in range(len(SENTENCES))]
    at_once = with_words(
        SENTENCES, is_split_into_words=True, return_tensors=kind, **{"padding": True, **options}, **EVERYTHING
    )
    kept = copy.deepcopy(plain.data)
    for afterwards in (
        with_words.pad(plain, return_tensors=kind, **options),
        with_words.pad(features, return_tensors=kind, **options),
    ):
        assert set(afterwards) == set(at_once)
        assert {type(value) for value in afterwards.values()} == {type(value) for value in at_once.values()}
        for key in at_once:
            np.testing.assert_array_equal(afterwards[key], at_once[key])
    assert plain.data == kept


def test_padding_one_example_leaves_it_as_it_was(with_words):
    one = with_words("w1 w2", **EVERYTHING)
    before = copy.deepcopy(one.data)
    padded = with_words.pad(one, padding="max_length", max_length=6)
    assert one.data == before
    assert padded["char_ids"] == before["char_ids"] + [[0] * 50] * 2
    assert with_words.pad(padded, padding=True).data == padded.data


def test_padding_tensors_gives_tensors(with_words):
    features = [with_words(text, return_tensors="pt") for text in ("w1", "w1 w2")]
    features = [{key: value[0] for key, value in feature.items()} for feature in features]
    padded = with_words.pad(features)
    assert all(isinstance(value, torch.Tensor) for value in padded.values())
    assert as_lists(padded) == with_words(["w1", "w1 w2"], padding=True).data


# Collators and datasets


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_padding_collator_gives_what_a_padded_call_gives(with_words, side):
    with_words.padding_side = side
    features = [with_words(words, is_split_into_words=True) for words in SENTENCES]
    batch = DataCollatorWithPadding(with_words)(features)
    assert as_lists(batch) == with_words(SENTENCES, is_split_into_words=True, padding=True).data


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_token_classification_collator_keeps_labels_on_their_words(with_words, side):
    with_words.padding_side = side
    features = [with_words(words, is_split_into_words=True) for words in SENTENCES]
    for feature in features:
        feature["labels"] = [index + 100 for index in feature["input_ids"]]
    batch = DataCollatorForTokenClassification(with_words)(features)
    assert torch.equal(batch["labels"] == -100, batch["attention_mask"] == 0)
    real = batch["attention_mask"].bool()
    assert torch.equal(batch["labels"][real], batch["input_ids"][real] + 100)
    assert torch.equal(batch["char_ids"].any(-1), real)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_multiple_choice_collator_keeps_types_on_their_words(with_words, side):
    with_words.padding_side = side
    questions = [("w1 w2", ["w3", "w4 w5"]), ("w6", ["w7", ""])]
    features, firsts, seconds = [], [], []
    for first, choices in questions:
        features.append({**with_words([first] * len(choices), choices), "label": 1})
        firsts += [first] * len(choices)
        seconds += choices
    batch = DataCollatorForMultipleChoice(with_words)(features)
    assert batch.pop("labels").tolist() == [1, 1]
    batch["char_ids"] = batch["char_ids"].unflatten(-1, (-1, 50))  # the collator flattens what it does not know
    flat = {name: tensor.flatten(0, 1) for name, tensor in batch.items()}
    assert as_lists(flat) == with_words(firsts, seconds, padding=True).data


def test_the_default_collator_stacks_padded_examples(with_words):
    options = {"is_split_into_words": True, "padding": "max_length", "max_length": 10}
    batch = default_data_collator([{**with_words(words, **options), "label": 1} for words in SENTENCES])
    labels = batch.pop("labels")
    assert labels.tolist() == [1] * len(SENTENCES)
    assert as_lists(batch) == with_words(SENTENCES, **options).data


def test_a_dataset_can_be_mapped_and_its_columns_passed(with_words):
    texts = datasets.Dataset.from_dict({"text": TEXT_BATCH, "words": [["w1", "New York"]] * 5})
    expected = with_words(TEXT_BATCH)
    mapped = texts.map(with_words, batched=True, input_columns="text", remove_columns=texts.column_names)
    assert mapped.to_dict() == expected.data
    assert with_words(texts["text"]).data == expected.data
    sentences = with_words(texts["words"], is_split_into_words=True, padding=True, return_tensors="np")
    assert sentences["input_ids"].tolist() == [[1, 5, 3, 2]] * 5
    assert with_words(texts["text"], texts["text"])["token_type_ids"][1] == [0, 0, 1, 1]


def test_arrays_of_texts_words_and_ids_are_lists_of_them(with_words):
    assert with_words(np.array(["w1 w2", "w3"])).data == with_words(["w1 w2", "w3"]).data
    assert with_words(np.array(["w1", "w2"]), is_split_into_words=True).data == with_words("w1 w2").data
    assert with_words(iter(["w1 w2", "w3"])).data == with_words(["w1 w2", "w3"]).data
    for ids in ([5, 6], (5, 6), np.array([5, 6]), torch.tensor([5, 6])):
        assert with_words(ids).data == with_words("w1 w2").data
    assert with_words([[5, 6], [7]]).data == with_words(["w1 w2", "w3"]).data


def test_using_a_tokenizer_does_not_change_its_fingerprint(with_words):
    before = Hasher.hash(with_words)
    batch = with_words(TEXT_BATCH, TEXT_BATCH, padding=True, truncation=True, max_length=8, **EVERYTHING)
    with_words.pad(with_words(TEXT_BATCH))
    with_words.batch_decode(batch["input_ids"], char_ids=batch["char_ids"], skip_special_tokens=True)
    assert Hasher.hash(with_words) == before
    assert Hasher.hash(pickle.loads(pickle.dumps(with_words))) == before
    assert Hasher.hash(ElmoTokenizer(vocab=["other"])) != before


# Mappings between tokens, words and characters


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_encoding_maps_tokens_words_and_characters_to_each_other(with_words, side):
    batch = with_words([("Oslo  isn't", "far"), ("a", "b")], padding=True, padding_side=side)
    row = batch.encodings[0]
    assert row.tokens == ["<S>", "Oslo", "is", "n't", "</S>", "<S>", "far", "</S>"]
    assert batch.word_ids(0) == [None, 0, 1, 2, None, None, 0, None]
    assert batch.sequence_ids(0) == [None, 0, 0, 0, None, None, 1, None]
    assert row.offsets == [(0, 0), (0, 4), (6, 8), (8, 11), (0, 0), (0, 0), (0, 3), (0, 0)]
    assert (batch.token_to_word(0, 3), batch.token_to_sequence(0, 6)) == (2, 1)
    assert (batch.token_to_chars(0, 3), batch.token_to_chars(0, 4)) == ((8, 11), None)
    assert (batch.word_to_tokens(0, 2), batch.word_to_tokens(0, 5)) == ((3, 4), None)
    assert batch.word_to_chars(0, 0, sequence_index=1) == (0, 3)
    assert (batch.char_to_token(0, 9), batch.char_to_token(0, 5)) == (3, None)
    assert (batch.char_to_token(0, 1, sequence_index=1), batch.char_to_word(0, 7)) == (6, 1)
    words = ["<S>", "a", "</S>", "<S>", "b", "</S>"]
    padding = ["<pad>"] * 2
    assert batch.tokens(1) == (words + padding if side == "right" else padding + words)
    assert batch.char_to_token(1, 0) == (1 if side == "right" else 3)


# Truncation and windows


@pytest.fixture(scope="module")
def fast() -> PreTrainedTokenizerFast:
    """The same words and markers in a tokenizer of the `tokenizers` library, which splits at whitespace."""
    numbers = {word: number for number, word in enumerate([*SPECIAL_WORDS, *VOCABULARY])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<UNK>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<S> $A </S>",
        pair="<S>:0 $A:0 </S>:0 <S>:1 $B:1 </S>:1",
        special_tokens=[("<S>", 1), ("</S>", 2)],
    )
    special = {"pad_token": "<pad>", "bos_token": "<S>", "eos_token": "</S>", "unk_token": "<UNK>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def rows_of(encoding, names: list[str]) -> list[list]:
    """Everything that an encoding says of each of its rows."""
    rows = []
    for number in range(len(encoding.encodings)):
        mapped = [encoding.tokens(number), encoding.word_ids(number), encoding.sequence_ids(number)]
        rows.append(mapped + [encoding[name][number] for name in names])
    return rows


PLAIN_TEXT = st.lists(st.sampled_from(VOCABULARY), max_size=12).map("  ".join)


@settings(max_examples=300)
@given(
    texts=st.lists(PLAIN_TEXT, min_size=1, max_size=3)
    | st.lists(st.tuples(PLAIN_TEXT, PLAIN_TEXT), min_size=1, max_size=3),
    max_length=st.integers(6, 20),  # two words of a pair
    stride=st.integers(0, 3),
    strategy=st.sampled_from(["longest_first", "only_first", "only_second"]),
    sides=st.tuples(st.sampled_from(["right", "left"]), st.sampled_from(["right", "left"])),
    options=st.fixed_dictionaries(
        {
            "return_overflowing_tokens": st.booleans(),
            "add_special_tokens": st.booleans(),
            "padding": st.sampled_from([False, True, "max_length"]),
        }
    ),
)
def test_truncation_and_windows_are_those_of_a_fast_tokenizer(
    fast, texts, max_length, stride, strategy, sides, options
):
    tokenizer = ElmoTokenizer(vocab=VOCABULARY, truncation_side=sides[0], padding_side=sides[1])
    fast.truncation_side, fast.padding_side = sides
    if not options["return_overflowing_tokens"]:
        stride = 0
    options = {**options, **EVERYTHING, "truncation": strategy, "max_length": max_length, "stride": stride}
    try:
        encoding = tokenizer(texts, **options)
    except ValueError:
        with pytest.raises(BaseException):  # noqa: B017, PT011  (the library panics)
            fast(texts, **options)
        return
    expected = fast(texts, **options)
    assert set(encoding) == {*expected, "char_ids"}
    rows, expected_rows = (rows_of(batch, list(expected)) for batch in (encoding, expected))
    if strategy == "longest_first":  # windows of both texts of a pair come in another order
        rows, expected_rows = sorted(rows, key=str), sorted(expected_rows, key=str)
    assert rows == expected_rows
    assert max(map(len, encoding["input_ids"])) <= max_length


@given(
    texts=st.lists(PLAIN_TEXT, min_size=2, max_size=2),
    max_length=st.integers(5, 20),
    strategy=st.sampled_from(["only_first", "only_second"]),
)
def test_what_a_fast_tokenizer_cannot_truncate_is_refused(fast, texts, max_length, strategy):
    options = {"truncation": strategy, "max_length": max_length}
    tokenizer = ElmoTokenizer(vocab=VOCABULARY)
    for example in ([tuple(texts)], texts[:1]):
        refused = []
        for each in (fast, tokenizer):
            try:
                each(example, **options)
            except Exception as error:
                refused.append(type(error))
        assert refused in ([], [Exception, ValueError])


@pytest.mark.parametrize(
    ("side", "windows"),
    [
        ("right", [["w0", "w1"], ["w1", "w2"], ["w2", "w3"]]),
        ("left", [["w2", "w3"], ["w1", "w2"], ["w0", "w1"]]),
    ],
)
@pytest.mark.parametrize("kind", [None, "np", "pt"])
def test_one_text_that_overflows_is_a_batch_of_windows(side, windows, kind):
    tokenizer = ElmoTokenizer(vocab=VOCABULARY, truncation_side=side)
    text = "w0 w1 w2 w3"
    options = {"truncation": True, "max_length": 4, "stride": 1, "return_overflowing_tokens": True}
    encoding = tokenizer(text, return_tensors=kind, **options, **EVERYTHING)
    assert np.shape(encoding["char_ids"]) == (3, 4, 50)
    data = as_lists(encoding)
    assert data["overflow_to_sample_mapping"] == [0, 0, 0]
    assert data["special_tokens_mask"] == [[1, 0, 0, 1]] * 3
    for row, words in enumerate(windows):
        assert tokenizer.convert_ids_to_tokens(data["input_ids"][row]) == ["<S>", *words, "</S>"]
        assert encoding.word_ids(row) == [None, *(VOCABULARY.index(word) for word in words), None]
        spans = data["offset_mapping"][row][1:-1]
        assert [text[start:end] for start, end in spans] == words
        assert encoding.char_to_token(row, text.index(words[1])) == 2


def test_windows_say_which_example_they_are_of(with_words):
    options = {"truncation": "only_second", "max_length": 7, "return_overflowing_tokens": True, "padding": True}
    batch = with_words(["w1", "w2"], ["w3 w4 w5 w6 w7", "w8"], **options)
    assert batch["overflow_to_sample_mapping"] == [0, 0, 0, 1]
    assert with_words.batch_decode(batch["input_ids"], skip_special_tokens=True) == [
        *["w1 w3 w4", "w1 w5 w6", "w1 w7", "w2 w8"]
    ]
    assert batch["token_type_ids"][2] == [0, 0, 0, 1, 1, 1, 0]
    assert with_words("w1", return_overflowing_tokens=True)["overflow_to_sample_mapping"] == [0]
    assert len(with_words("w1", return_overflowing_tokens=True)["input_ids"]) == 1


def test_windows_of_given_words_know_their_numbers(with_words):
    options = {"truncation": True, "max_length": 4, "return_overflowing_tokens": True, "is_split_into_words": True}
    batch = with_words(["New York", "w1", "don't"], **options)
    assert [batch.word_ids(row) for row in range(2)] == [[None, 0, 1, None], [None, 2, None]]


def test_windows_of_a_long_text_take_no_longer_than_the_text(tokenizer):
    """Half a second; minutes if every window searched the whole text for its words."""
    words = 40_000
    options = {"truncation": True, "max_length": 12, "stride": 5, "return_overflowing_tokens": True}
    batch = tokenizer("word " * words, return_offsets_mapping=True, **options)
    assert batch["offset_mapping"][-1][-2] == (5 * words - 5, 5 * words - 1)
    assert batch.word_ids(len(batch["input_ids"]) - 1)[-2] == words - 1


def test_offsets_of_truncated_text_still_point_at_their_words():
    text = "One two  three four"
    tokenizer = ElmoTokenizer(truncation_side="left")
    encoding = tokenizer(text, truncation=True, max_length=4, return_offsets_mapping=True)
    assert encoding["offset_mapping"] == [(0, 0), (9, 14), (15, 19), (0, 0)]


def test_max_length_alone_truncates_and_the_models_length_is_the_default(with_words):
    assert len(with_words("w1 w2 w3", max_length=4)["input_ids"]) == 4
    limited = ElmoTokenizer(model_max_length=4)
    assert len(limited("w1 w2 w3", truncation=True)["input_ids"]) == 4
    assert len(limited("w1", padding="max_length")["input_ids"]) == 4
    assert len(limited("w1 w2 w3")["input_ids"]) == 5


# Models and pipelines

SIZES = {
    "char_filters": [[1, 4], [2, 4]],
    "char_embedding_dim": 4,
    "projection_dim": 6,
    "cell_dim": 8,
    "num_highway_layers": 1,
    "head_dim": 6,
}
ENTAILMENT = {
    "id2label": {0: "no", 1: "neutral", 2: "entailment"},
    "label2id": {"no": 0, "neutral": 1, "entailment": 2},
}


@pytest.mark.parametrize("strategy", ["simple", "first", "max", "average"])
def test_a_tagger_with_a_stride_tags_the_whole_text(strategy):
    tokenizer = ElmoTokenizer(model_max_length=7)
    torch.manual_seed(0)
    tagger = ElmoForTokenClassification(ElmoConfig(**SIZES, use_crf=False, id2label={0: "O", 1: "B-X"})).eval()
    tagger.classifier.bias.data[1] = 100.0  # every word is an entity
    texts = ["One two three four, five six seven eight nine ten eleven.", "Short.", "a " * 40]
    find = pipeline("token-classification", model=tagger, tokenizer=tokenizer, stride=2, aggregation_strategy=strategy)
    for batch_size in (1, 4):
        for text, found in zip(texts, find(texts, batch_size=batch_size), strict=True):
            assert [(entity["start"], entity["end"]) for entity in found] == split_words(text)


@pytest.mark.parametrize("encoder", ["pooled", "esim"])
def test_zero_shot_classification_reads_pairs_and_refuses_to_join_them(encoder):
    tokenizer = ElmoTokenizer(model_max_length=12)
    torch.manual_seed(0)
    model = ElmoForSequenceClassification(ElmoConfig(**SIZES, **ENTAILMENT, sequence_encoder=encoder)).eval()
    labels = ["money", "nature"]
    classify = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer, candidate_labels=labels)
    text = "The bank of the river"
    found = classify(text, multi_label=True)
    for label, score in zip(found["labels"], found["scores"], strict=True):
        pair = tokenizer(text, f"This example is {label}.", truncation="only_first", return_tensors="pt")
        assert pair["input_ids"].shape[1] == 12
        logits = model(**pair).logits[0]
        assert score == pytest.approx(logits[[0, 2]].softmax(0)[1].item(), abs=1e-6)
    tokenizer.model_max_length = 8  # shorter than the hypothesis, which is never truncated
    assert sorted(classify(text)["labels"]) == labels

    config = ElmoConfig(**SIZES, **ENTAILMENT, sequence_encoder="bcn")
    reads_one_text = ElmoForSequenceClassification(config).eval()
    classify = pipeline("zero-shot-classification", model=reads_one_text, tokenizer=tokenizer, candidate_labels=labels)
    with pytest.raises(ValueError, match="reads one text per row"):
        classify(text)


@pytest.mark.parametrize(
    "model_class", [ElmoModel, ElmoForPreTraining, ElmoForSequenceClassification, ElmoForTokenClassification]
)
def test_types_that_are_all_zero_change_nothing(model_class):
    tokenizer = ElmoTokenizer(vocab=VOCABULARY)
    torch.manual_seed(0)
    model = model_class(ElmoConfig(**SIZES, vocab_size=len(tokenizer))).eval()
    inputs = tokenizer(["w1 w2 w3", "w4"], padding=True, return_tensors="pt")
    without = {name: tensor for name, tensor in inputs.items() if name != "token_type_ids"}
    with torch.no_grad():
        for found, expected in zip(model(**inputs).to_tuple(), model(**without).to_tuple(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("model_class", [ElmoForPreTraining, ElmoForTokenClassification, ElmoForCoreferenceResolution])
def test_models_of_one_text_refuse_pairs(model_class):
    tokenizer = ElmoTokenizer(vocab=VOCABULARY)
    model = model_class(ElmoConfig(**SIZES, vocab_size=len(tokenizer))).eval()
    for second, is_refused in ((None, False), (["w3"], True)):
        inputs = tokenizer(["w1 w2"], second, return_tensors="pt")
        if model_class is ElmoForCoreferenceResolution:  # documents of one sentence
            inputs = {name: tensor[None] for name, tensor in inputs.items()}
        if is_refused:
            with pytest.raises(ValueError, match=r"reads one (text|sentence) per row"):
                model(**inputs)
        else:
            model(**inputs)


# Splitting


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("They don't know she'll've left.", "They do n't know she 'll 've left ."),
        ("I CAN'T, won’t and cannot; 'tis gonna hurt.", "I CA N'T , wo n’t and can not ; 't is gon na hurt ."),
        ("The dogs' owner and Jones's boss.", "The dogs ' owner and Jones 's boss ."),
        ("J.P. Morgan Co.'s and the U.S.'s", "J.P. Morgan Co. 's and the U.S. 's"),
        ("Mr. Smith went to St. Louis on Jan. 3.", "Mr. Smith went to St. Louis on Jan. 3 ."),
        ("Dr. J.R.R. Tolkien, Ph.D., at 5 p.m.", "Dr. J.R.R. Tolkien , Ph.D. , at 5 p.m."),
        ("George W. Bush, i.e. this, etc.", "George W. Bush , i.e. this , etc."),
        ("So do I. U.S.-based, state-of-the-art.", "So do I . U.S.-based , state-of-the-art ."),
        ("It rose 5.5% to $1,234.50, or -3.5.", "It rose 5.5 % to $ 1,234.50 , or -3.5 ."),
        ("At 10:30, 3/4 of (1,000) in 1990-95.", "At 10:30 , 3/4 of ( 1,000 ) in 1990-95 ."),
        ("Version 1.2. And .5!", "Version 1.2 . And .5 !"),
        ("See https://a.org/b?c=d, (www.e.org).", "See https://a.org/b?c=d , ( www.e.org ) ."),
        ("Mail to foo.bar+baz@mail.example.com.", "Mail to foo.bar+baz@mail.example.com ."),
        ("AT&T and/or O'Neil's R&D", "AT&T and/or O'Neil 's R&D"),
        ("\"Hello,\" he said. 'Yes!'", "\" Hello , \" he said . ' Yes ! '"),
        ("``So,'' “quoted” ‘single’ «x»", "`` So , '' “ quoted ” ‘ single ’ « x »"),
        ("Well--maybe -- or not—eh–so", "Well -- maybe -- or not — eh – so"),
        ("Wait... what..? No…", "Wait ... what .. ? No …"),
        ("Get 'em in the '90s, 'cause \"'twas\" fun.", "Get 'em in the '90s , 'cause \" 't was \" fun ."),
        ("#tag @user <b> a=b [1]", "# tag @ user < b > a = b [ 1 ]"),
        ("¿Qué? ¡Sí! Straße, Привет!", "¿ Qué ? ¡ Sí ! Straße , Привет !"),
        ("我喜欢你。你好，世界！", "我喜欢你 。 你好 ， 世界 ！"),
        ("मैं घर जा रहा हूँ।", "मैं घर जा रहा हूँ ।"),
        ("مرحبا، بالعالم؟", "مرحبا ، بالعالم ؟"),
        ("I❤️it 👍🏽👩‍👩‍👧!", "I ❤️ it 👍🏽 👩‍👩‍👧 !"),
        ("🇫🇷🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣", "🇫🇷 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣"),
        ("tab\tnbsp\u00a0line\u2028end\x85", "tab nbsp line end"),
    ],
)
def test_text_is_split_as_the_penn_treebank_is(tokenizer, text, words):
    assert tokenizer.tokenize(text) == words.split(" ")
    assert split(words) == words.split(" "), "text that is split already must stay as it is"
    assert [part for word in words.split(" ") for part in split(word)] == words.split(" ")


@settings(max_examples=300)
@given(text=TEXTS)
def test_splitting_loses_nothing_but_whitespace(text):
    assert "".join(split(text)) == "".join(text.split())
    assert all(word and not any(c.isspace() for c in word) for word in split(text))


@settings(max_examples=300)
@given(text=TEXTS | st.lists(st.sampled_from(PIECES), max_size=6).map("".join))
def test_a_split_word_is_one_word_by_itself(text):
    assert all(split(word) == [word] for word in split(text))


@settings(max_examples=300)
@given(text=TEXTS)
def test_offsets_slice_the_text_back_to_its_words(tokenizer, text):
    encoding = tokenizer(text, return_offsets_mapping=True, split_special_tokens=True)
    spans = encoding["offset_mapping"][1:-1]
    words = [text[start:end] for start, end in spans]
    assert encoding["char_ids"][1:-1] == [spell(word) for word in words]
    assert encoding["offset_mapping"][0] == encoding["offset_mapping"][-1] == (0, 0)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


@given(text=TEXTS)
def test_a_text_is_the_words_it_splits_into(tokenizer, text):
    words = tokenizer.tokenize(text)
    assert tokenizer(text).data == tokenizer(words, is_split_into_words=True).data


@given(words=WORDS)
def test_given_words_stay_one_token_each(tokenizer, words):
    encoding = tokenizer(words, is_split_into_words=True, return_offsets_mapping=True)
    assert len(encoding["input_ids"]) == len(words) + 2
    assert encoding["offset_mapping"] == [(0, 0), *((0, len(word)) for word in words), (0, 0)]


def test_given_words_are_not_split_even_where_text_would_be(tokenizer):
    words = ["New York", "don't", "", "<S>", "a</S>b", "..."]
    encoding = tokenizer(words, is_split_into_words=True)
    assert encoding["char_ids"] == [spell(word) for word in ["<S>", *words, "</S>"]]


@pytest.mark.parametrize(
    "unit",
    [
        *["'", "-", ".", "a", "a.", "a'", "a-", "'s", "'sx", "n't", "n'tn", "www.", "www.,", "http://", "1,"],
        *["Mr.", "A.-", "cannot", "'tis", ")", "🇫", "👩\u200d", "\ufe0f", "語", "𝒳"],
    ],
)
def test_splitting_an_endless_word_ends(unit):
    chunk = (unit * LONG_CHUNK)[:LONG_CHUNK]
    assert "".join(split(chunk)) == chunk


def test_special_and_added_words_in_text_are_kept_whole(with_words):
    assert with_words.tokenize("a <S> b</S>c") == ["a", "<S>", "b", "</S>", "c"]
    assert with_words.tokenize("a <S>", split_special_tokens=True) == ["a", "<", "S", ">"]
    with_words.add_tokens(["New York", AddedToken("cat", single_word=True)])
    text = "In New York's tomcat cat catty  <S>"
    assert with_words.tokenize(text) == ["In", "New York", "'s", "tomcat", "cat", "catty", "<S>"]
    spans = with_words(text, return_offsets_mapping=True)["offset_mapping"][1:-1]
    assert [text[start:end] for start, end in spans] == with_words.tokenize(text)


def test_splitting_special_tokens_is_a_setting_of_every_way_to_encode():
    splitting = ElmoTokenizer(split_special_tokens=True)
    assert len(splitting.tokenize("<S>")) == 3
    assert len(splitting("<S>")["input_ids"]) == len(splitting.encode("<S>")) == 5


# Decoding


@given(words=st.lists(PLAIN_WORD, max_size=6))
def test_words_come_back_from_their_characters(tokenizer, words):
    encoding = tokenizer(words, is_split_into_words=True, padding="max_length", max_length=10)
    decode = tokenizer.decode
    ids, rows = encoding["input_ids"], encoding["char_ids"]
    assert decode(ids, char_ids=rows, skip_special_tokens=True) == " ".join(words)
    assert decode(ids, char_ids=rows).split(" ") == ["<S>", *words, "</S>", *["<pad>"] * (8 - len(words))]


@given(text=TEXTS)
def test_decoded_text_splits_into_the_same_tokens_again(tokenizer, text):
    words = [word for word in tokenizer.tokenize(text) if len(word.encode("utf-8", "replace")) <= 48]
    words = [word for word in words if word.encode("utf-8", "ignore")]
    encoding = tokenizer(words, is_split_into_words=True)
    decoded = tokenizer.decode(encoding["input_ids"], char_ids=encoding["char_ids"], skip_special_tokens=True)
    spelled = [word.encode("utf-8", "ignore").decode() for word in words]
    assert decoded.split() == [word for word in spelled if word not in ("<pad>", "<S>", "</S>")]


@pytest.mark.parametrize("kind", [None, "np", "pt"])
def test_a_batch_is_decoded_with_and_without_characters(with_words, kind):
    batch = with_words(["w1 zebra", "w2"], padding=True, return_tensors=kind)
    whole = ["<S> w1 zebra </S>", "<S> w2 </S> <pad>"]
    assert with_words.batch_decode(batch["input_ids"], char_ids=batch["char_ids"]) == whole
    assert with_words.decode(batch["input_ids"], char_ids=batch["char_ids"]) == whole
    assert with_words.batch_decode(batch["input_ids"]) == [text.replace("zebra", "<UNK>") for text in whole]
    assert with_words.batch_decode(batch["input_ids"], skip_special_tokens=True, char_ids=batch["char_ids"]) == [
        "w1 zebra",
        "w2",
    ]
    assert with_words.batch_decode(batch["input_ids"], skip_special_tokens=True) == ["w1", "w2"]


def test_decoding_can_clean_up_and_skips_every_special_word(with_words):
    with_words.add_special_tokens({"extra_special_tokens": ["[X]"]})
    encoding = with_words("[X] I do n't , zebra !")
    options = {"skip_special_tokens": True, "char_ids": encoding["char_ids"]}
    assert with_words.decode(encoding["input_ids"], **options) == "I do n't , zebra !"
    cleaned = with_words.decode(encoding["input_ids"], clean_up_tokenization_spaces=True, **options)
    assert cleaned == "I don't, zebra!"
    assert with_words.decode(5) == "w1"
    assert with_words.decode([]) == ""


def test_a_character_cut_in_the_middle_is_dropped_by_decoding(tokenizer):
    encoding = tokenizer(["x" * 47 + "語"], is_split_into_words=True)
    assert tokenizer.char_ids_to_word(encoding["char_ids"][1]) == "x" * 47


# Vocabulary


def test_counts_are_ordered_by_frequency_then_alphabet():
    counts = {"b": 2, "c": 5, "a": 2, "rare": 1, "<S>": 9, "<UNK>": 3, "": 4, "two\nlines": 4}
    tokenizer = ElmoTokenizer.from_counts(counts)
    special = SPECIAL_WORDS
    assert list(tokenizer.get_vocab()) == [*special, "c", "a", "b", "rare"]
    assert list(tokenizer.get_vocab().values()) == list(range(8))
    shuffled = dict(sorted(counts.items(), reverse=True))
    assert ElmoTokenizer.from_counts(shuffled).get_vocab() == tokenizer.get_vocab()
    assert list(ElmoTokenizer.from_counts(counts, min_count=2).get_vocab()) == [*special, "c", "a", "b"]
    assert list(ElmoTokenizer.from_counts(counts, max_size=6).get_vocab()) == [*special, "c", "a"]
    assert len(ElmoTokenizer.from_counts(counts, max_size=4)) == 4
    assert ElmoTokenizer.from_counts(counts, max_size=100, bos_token="[BOS]").bos_token_id == 1


def test_ids_and_words_are_each_others_inverse(with_words):
    assert with_words.vocab_size == len(with_words) == 44
    assert with_words.get_vocab() == {word: with_words.convert_tokens_to_ids(word) for word in with_words.get_vocab()}
    words = with_words.convert_ids_to_tokens(range(44))
    assert words == [*SPECIAL_WORDS, *VOCABULARY]
    assert with_words.convert_tokens_to_ids(words) == list(range(44))
    assert [with_words.convert_ids_to_tokens(index) for index in (44, -1, 10**6)] == ["<UNK>"] * 3
    assert with_words.convert_tokens_to_ids("zebra") == with_words.unk_token_id == 3
    assert with_words.all_special_ids == [1, 2, 3, 0]


def test_without_a_vocabulary_every_word_is_unknown_and_still_a_word(tokenizer):
    encoding = tokenizer("Any words.", return_special_tokens_mask=True)
    assert encoding["input_ids"] == [1, 3, 3, 3, 2]
    mask = tokenizer.get_special_tokens_mask(encoding["input_ids"], already_has_special_tokens=True)
    assert mask == encoding["special_tokens_mask"] == [1, 0, 0, 0, 1]


def test_the_originals_vocabulary_file_keeps_its_order_after_the_special_words(tmp_path):
    file = tmp_path / "vocabulary.txt"
    file.write_text("<S>\n</S>\n<UNK>\nthe\n,\n", encoding="utf-8")
    expected = {"<pad>": 0, "<S>": 1, "</S>": 2, "<UNK>": 3, "the": 4, ",": 5}
    assert ElmoTokenizer(file).get_vocab() == expected
    file.write_bytes(b"\xef\xbb\xbfthe\r\n,\r\n<UNK>\r\n</S>\r\n<S>")
    assert ElmoTokenizer(vocab_file=str(file)).get_vocab() == expected


ODD_WORDS = ["\u2028", "\x85", "a\x1cb", "\u00a0", " ", "a b", "\ud800", "\ufeff", "\x00", "\t", "<s>", "é", "e\u0301"]


@settings(max_examples=30)
@given(words=st.lists(st.text(CHARACTERS, min_size=1), unique=True))
def test_any_vocabulary_survives_saving(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("tokenizer")
    fit = [word for word in [*words, *ODD_WORDS] if "\n" not in word and "\r" not in word]
    tokenizer = ElmoTokenizer(vocab=dict.fromkeys(fit))
    tokenizer.save_pretrained(folder)
    loaded = ElmoTokenizer.from_pretrained(folder)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded(fit, is_split_into_words=True).data == tokenizer(fit, is_split_into_words=True).data


@pytest.mark.parametrize("options", [{}, {"vocab": VOCABULARY}, {"max_characters_per_token": 20}])
def test_saving_keeps_every_setting(tmp_path, options):
    tokenizer = ElmoTokenizer(model_max_length=42, padding_side="left", truncation_side="left", **options)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (ElmoTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert type(loaded) is ElmoTokenizer
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert (loaded.model_max_length, loaded.padding_side, loaded.truncation_side) == (42, "left", "left")
        assert loaded(TEXT_BATCH, padding=True).data == tokenizer(TEXT_BATCH, padding=True).data
    changed = ElmoTokenizer.from_pretrained(tmp_path, model_max_length=43, padding_side="right")
    assert (changed.model_max_length, changed.padding_side) == (43, "right")


def test_saving_over_a_tokenizer_leaves_nothing_of_it(tmp_path, with_words):
    with_words.save_pretrained(tmp_path)
    ElmoTokenizer().save_pretrained(tmp_path)
    assert ElmoTokenizer.from_pretrained(tmp_path).vocab_size == 4


def test_the_vocabulary_is_saved_as_lines_and_not_in_the_config(tmp_path, with_words):
    with_words.save_pretrained(tmp_path)
    assert "w1" not in (tmp_path / "tokenizer_config.json").read_text(encoding="utf-8")
    assert (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines() == [*SPECIAL_WORDS, *VOCABULARY]


@pytest.mark.parametrize("vocab", [(), VOCABULARY])
def test_added_words_get_ids_at_the_end_and_survive_saving(tmp_path, vocab):
    tokenizer = ElmoTokenizer(vocab=vocab)
    size = tokenizer.vocab_size
    assert tokenizer.add_tokens(["bim", "New York", "bim"]) == 2
    assert tokenizer.add_special_tokens({"extra_special_tokens": ["[X]"], "cls_token": "[CLS]"}) == 2
    assert (tokenizer.vocab_size, len(tokenizer)) == (size, size + 4)
    assert tokenizer.convert_tokens_to_ids(["bim", "New York", "[X]", "[CLS]"]) == list(range(size, size + 4))
    assert len(tokenizer.get_vocab()) == len(tokenizer)
    text = "bim in New York [X] w1"
    tokenizer.save_pretrained(tmp_path)
    for _ in range(2):
        loaded = ElmoTokenizer.from_pretrained(tmp_path)
        assert loaded.get_vocab() == tokenizer.get_vocab()
        assert loaded(text).data == tokenizer(text).data
        assert (loaded.extra_special_tokens, loaded.cls_token) == (["[X]"], "[CLS]")
        loaded.save_pretrained(tmp_path)
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])[1] == "bim"
    row = tokenizer(text)["char_ids"][3]
    assert row == spell("New York")


SPECIAL = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"}


def assert_wrapped_in_markers(tokenizer: ElmoTokenizer) -> None:
    encoding = tokenizer(["w1 zebra", ""], padding=True)
    assert encoding["input_ids"][0] == [
        tokenizer.bos_token_id,
        tokenizer.convert_tokens_to_ids("w1"),
        tokenizer.unk_token_id,
        tokenizer.eos_token_id,
    ]
    assert encoding["char_ids"][0] == [spell("<S>"), spell("w1"), spell("zebra"), spell("</S>")]
    assert encoding["input_ids"][1][-1] == tokenizer.pad_token_id
    assert tokenizer.decode(encoding["input_ids"][0], char_ids=encoding["char_ids"][0]) == "[BOS] w1 zebra [EOS]"


def test_other_special_words_take_the_first_ids_and_spell_the_markers(tmp_path):
    tokenizer = ElmoTokenizer(vocab=VOCABULARY, **SPECIAL)
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL.values())) == [0, 1, 2, 3]
    assert_wrapped_in_markers(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = ElmoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert_wrapped_in_markers(loaded)


@pytest.mark.parametrize("vocab", [(), VOCABULARY])
def test_special_words_replaced_later_leave_every_other_id_alone(tmp_path, vocab):
    tokenizer = ElmoTokenizer(vocab=vocab)
    before = tokenizer.get_vocab()
    assert tokenizer.add_special_tokens(SPECIAL) == 4
    assert before.items() <= tokenizer.get_vocab().items()
    tokenizer.save_pretrained(tmp_path)
    loaded = ElmoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    for each in (tokenizer, loaded):
        assert_wrapped_in_markers(each)


def test_special_words_replaced_while_loading_leave_every_other_id_alone(tmp_path, with_words):
    with_words.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, **SPECIAL)
    assert with_words.get_vocab().items() <= loaded.get_vocab().items()
    assert_wrapped_in_markers(loaded)


# What transformers asks of every tokenizer


def test_special_tokens_can_be_set_by_word_and_by_id(with_words):
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"):
        setattr(with_words, f"{name}_id", None)
        assert getattr(with_words, name) is getattr(with_words, f"{name}_id") is None
        setattr(with_words, f"{name}_id", 5)
        assert (getattr(with_words, name), getattr(with_words, f"{name}_id")) == ("w1", 5)
    with_words.extra_special_tokens_ids = [6]
    assert with_words.extra_special_tokens == ["w2"]


def test_ids_are_prepared_for_the_model_as_words_are(with_words):
    ids, pair_ids = with_words.convert_tokens_to_ids(["w1", "w2", "w3"]), with_words.convert_tokens_to_ids(["w4"])
    options = {
        "truncation": "only_first",
        "max_length": 7,
        "padding": "max_length",
        "return_special_tokens_mask": True,
    }
    expected = with_words("w1 w2 w3", "w4", **options).data
    assert with_words.prepare_for_model(ids, pair_ids, **options).data == expected
    tensors = with_words.prepare_for_model(ids, pair_ids, return_tensors="pt", **options)
    assert as_lists(tensors) == expected
    batched = with_words.prepare_for_model(ids, pair_ids, return_tensors="pt", prepend_batch_axis=True, **options)
    assert batched["char_ids"].shape == (1, 7, 50)
    assert with_words.prepare_for_model(ids).data == with_words("w1 w2 w3").data
    assert with_words.prepare_for_model([]).data == with_words("").data


def test_encode_gives_the_ids_of_a_call(with_words):
    assert with_words.encode("w1 w2", "w3") == with_words("w1 w2", "w3")["input_ids"]
    assert with_words.encode(["w1", "New York"], is_split_into_words=True) == [1, 5, 3, 2]
    assert with_words.encode("w1", add_special_tokens=False) == [5]
    assert with_words.encode("w1", return_tensors="pt").tolist() == [[1, 5, 2]]
    assert with_words.encode("w1 w2 w3", max_length=3, truncation=True) == [1, 5, 2]


def test_a_sequence_longer_than_the_models_length_warns_once(monkeypatch):
    warnings = []
    monkeypatch.setattr(transformers.tokenization_utils_base.logger, "warning", warnings.append)
    tokenizer = ElmoTokenizer(model_max_length=3)
    for _ in range(2):
        tokenizer(["a", "a b c"])
    assert len(warnings) == 1
    assert "(5 > 3)" in warnings[0]


def test_a_tokenizer_can_be_copied_and_pickled(with_words):
    with_words.add_tokens(["New York"])
    text = "In New York w1 don't."
    for again in (copy.deepcopy(with_words), copy.copy(with_words), pickle.loads(pickle.dumps(with_words))):
        assert again(text).data == with_words(text).data
        assert again.get_vocab() == with_words.get_vocab()
    copied = copy.deepcopy(with_words)
    copied.add_tokens(["other"])
    assert "other" not in with_words.get_vocab()


def test_the_saved_config_is_json_that_names_the_class_and_its_code(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "ElmoTokenizer"
    assert config["auto_map"] == {"AutoTokenizer": ["tokenization_elmo.ElmoTokenizer", None]}
    assert config["max_characters_per_token"] == 50


# Wrong input

WINDOWS = {"truncation": True, "return_overflowing_tokens": True}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None,), {}, ValueError, "specify either `text`"),
        ((5,), {}, TypeError, "a sentence must be a str, got 5"),
        ((b"bytes",), {}, TypeError, "a sentence must be a str, got b'bytes'"),
        (({"text": "a"},), {}, TypeError, "a sentence must be a str, got {'text'"),
        (([b"bytes"],), {}, TypeError, "a sentence must be a str, got b'bytes'"),
        ((["a", None],), {}, TypeError, "a sentence must be a str, got None"),
        (([None, "a"],), {}, TypeError, "a sentence must be a str, got None"),
        ((["a", float("nan")],), {}, TypeError, "a sentence must be a str, got nan"),
        (([["a", "b", "c"]],), {}, ValueError, "a text or a pair, got .*is_split_into_words=True"),
        (("New York",), {"is_split_into_words": True}, TypeError, "must be a list of words, got 'New York'"),
        (([["a"], "b c"],), {"is_split_into_words": True}, TypeError, "must be a list of words, got 'b c'"),
        ((["a"], "b c"), {"is_split_into_words": True}, TypeError, "must be a list of words, got 'b c'"),
        (([["a"]], ["b c"]), {"is_split_into_words": True}, TypeError, "must be a list of words, got 'b c'"),
        ((["a", 3],), {"is_split_into_words": True}, TypeError, "a word must be a str, got 3"),
        (([["a", None]],), {"is_split_into_words": True}, TypeError, "a word must be a str, got None"),
        (([["a", ["b"]]],), {"is_split_into_words": True}, TypeError, r"a word must be a str, got \['b'\]"),
        (
            ([["a"], 3],),
            {"is_split_into_words": True},
            TypeError,
            "a sentence must be a list of words, got 3",
        ),
        (([3, "a"],), {}, ValueError, "invalid literal for int.*'a'"),
        (("a", 5), {}, TypeError, "a sentence must be a str, got 5"),
        ((["a"], ["b", "c"]), {}, ValueError, "`text_pair` must be a batch as long as `text`"),
        ((["a"], "b"), {}, ValueError, "`text_pair` must be a batch as long as `text`"),
        (([None], ["b"]), {}, TypeError, "a sentence must be a str, got None"),
        ((["a", "b c"],), {"return_tensors": "pt"}, ValueError, "differ in length.*`padding=True`"),
        (("a",), {"return_tensors": "tf9"}, ValueError, "tf9"),
        (("a",), {"padding": "widest"}, ValueError, "widest"),
        (("a",), {"truncatoin": True}, TypeError, "truncatoin"),
        (("a", "b c d"), {"truncation": "only_first", "max_length": 7}, ValueError, "too short for max_length=7"),
        (("a b c", "d"), {"truncation": "only_second", "max_length": 6}, ValueError, "other text.* are 7 tokens"),
        (("a b c",), {"truncation": "only_second", "max_length": 4}, ValueError, "needs a second text"),
        (("a",), {"truncation": True, "max_length": 1}, ValueError, "`max_length` must be at least 2.*got 1"),
        (("", ""), {"truncation": True, "max_length": 3}, ValueError, "`max_length` must be at least 4.*got 3"),
        (("a b c",), {**WINDOWS, "max_length": 4, "stride": 2}, ValueError, "`stride`.*the 2 words.*got 2"),
        (("a b c",), {**WINDOWS, "max_length": 4, "stride": -1}, ValueError, "`stride`.*got -1"),
        (("a b", "c"), {**WINDOWS, "max_length": 5}, ValueError, "`stride`.*the 0 words"),
    ],
)
def test_wrong_input_is_refused_with_a_reason(tokenizer, arguments, options, error, message):
    with pytest.raises(error, match=message):
        tokenizer(*arguments, **options)


def test_padding_to_unequal_lengths_is_refused_with_a_reason(with_words):
    with pytest.raises(ValueError, match="padding=True"):
        with_words.pad(with_words(["w1", "w1 w2"]), padding=False, return_tensors="pt")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocab": ["a", "b", "a"]}, ValueError, "holds 'a' twice"),
        ({"vocab": ["a", ""]}, ValueError, "holds ''"),
        ({"vocab": ["a\nb"]}, ValueError, r"holds 'a\\nb'"),
        ({"vocab": "vocab.txt"}, ValueError, "`vocab_file`"),
        ({"training_text": "split"}, ValueError, "`training_text` must be one of raw, whitespace, treebank"),
        ({"vocab": ["a"], "vocab_file": "b"}, ValueError, "either"),
        ({"bos_token": None}, ValueError, "`bos_token` must be a word, got None"),
        ({"eos_token": "<S>"}, ValueError, "holds '<S>' twice"),
        ({"padding_side": "top"}, ValueError, "top"),
    ],
)
def test_wrong_settings_are_refused_with_a_reason(options, error, message):
    with pytest.raises(error, match=message):
        ElmoTokenizer(**options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\na\n", "vocab.txt holds 'a' twice"),
        (b"a\n\nb\n", "vocab.txt holds ''"),
        (b"a\r\n\r\nb", "vocab.txt holds ''"),
        (b"the\ncaf\xe9\n", "vocab.txt: line 2 is not UTF-8"),
    ],
)
def test_a_broken_vocabulary_file_is_refused_with_the_place(tmp_path, content, message):
    file = tmp_path / "vocab.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ElmoTokenizer(file)
