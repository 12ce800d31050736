"""Semantic roles: the highway LSTM, what its head returns, the columns of CoNLL and the scores of spans."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from clean_process import run_without_package
from hypothesis import given
from hypothesis import strategies as st
from transformers import DataCollatorForTokenClassification
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoForSemanticRoleLabeling, ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.cli import app
from modeling_elmo.configuration_elmo import AUTO_MAP
from modeling_elmo.files import ElmoError
from modeling_elmo.roles_elmo import HighwayLstm, _HighwayRecurrence, plain_highway_recurrence
from modeling_elmo.tagging_elmo import allowed_labels
from training import finetune
from training.srl import (
    SemanticRoleLabeling,
    arguments_of,
    cells_of_labels,
    count_arguments,
    labels_of_cells,
)
from training.task_data import read_examples

ROLES = ("ARG0", "ARG1", "C-ARG1", "R-ARG0", "V")
LABELS = ["O", *(f"{place}-{role}" for role in ROLES for place in "BI")]
SIZES = {
    "vocab_size": 4,
    "projection_dim": 8,
    "cell_dim": 16,
    "char_filters": [[1, 4], [3, 12]],
    "num_highway_layers": 1,
    "head_dim": 6,
    "head_layers": 3,
    "id2label": dict(enumerate(LABELS)),
    "label2id": {label: number for number, label in enumerate(LABELS)},
}
WORDS = "The cat that Anna bought ate the fish .".split()
# Sums of a few hundred float32 products in another order.
TOLERANCE = 2e-6


@pytest.fixture
def model() -> ElmoForSemanticRoleLabeling:
    torch.manual_seed(0)
    return ElmoForSemanticRoleLabeling(ElmoConfig(**SIZES)).eval()


# ---------------------------------------------------------------------------------------------------------- network


@pytest.mark.parametrize("drops", [False, True])
def test_the_training_form_of_the_recurrence_equals_its_definition_in_values_and_gradients(drops):
    torch.manual_seed(0)
    batch_sizes, units = [4, 3, 3, 1], 3
    shapes = ((sum(batch_sizes), 5 * units), (sum(batch_sizes), units), (5 * units, units))
    inputs = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    kept = torch.randint(0, 2, (4, units)).double() * 2 if drops else None
    gates, around, weight = inputs
    outputs = [
        plain_highway_recurrence(gates, around, lambda hidden: hidden @ weight.T, kept, batch_sizes),
        _HighwayRecurrence.apply(gates, around, weight, kept, batch_sizes),
    ]
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad(output.square().sum(), inputs) for output in outputs]
    torch.testing.assert_close(*gradients)


def test_layers_read_forward_and_backward_by_turns():
    torch.manual_seed(0)
    network = HighwayLstm(4, 3, layers=3)
    lengths = [2, 5, 3]
    features, mask = torch.randn(3, 5, 4), torch.arange(5) < torch.tensor(lengths)[:, None]
    encoded = network(features, mask)
    for row, length in enumerate(lengths):
        words = features[row, :length]
        for number, layer in enumerate(network.layers):
            words = words.flip(0) if number else words
            gates, around = layer.input_gates(words), layer.around(words)
            words = plain_highway_recurrence(gates, around, layer.recurrent_gates, None, [1] * length)
        torch.testing.assert_close(encoded[row, :length], words, atol=TOLERANCE, rtol=0)
        assert not encoded[row, length:].any()


def test_one_layer_sees_what_is_before_a_word_and_two_see_everything():
    torch.manual_seed(0)
    features, mask = torch.randn(2, 5, 4, requires_grad=True), torch.ones(2, 5, dtype=torch.bool)
    for layers, seen in ((1, [True, True, True, False, False]), (2, [True] * 5)):
        encoded = HighwayLstm(4, 3, layers)(features, mask)
        (gradient,) = torch.autograd.grad(encoded[0, 2].sum(), features)
        assert gradient[0].any(-1).tolist() == seen
        assert not gradient[1].any()


def test_two_threads_share_a_batch_and_compute_what_one_does():
    torch.manual_seed(0)
    network = HighwayLstm(4, 3, layers=2, dropout=0.3)
    features, mask = (
        torch.randn(5, 6, 4, requires_grad=True),
        torch.arange(6) < torch.tensor([[6], [2], [5], [1], [4]]),
    )
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.manual_seed(1)
            encoded = network.train()(features, mask)
            gradients = torch.autograd.grad(encoded.square().sum(), [features, *network.parameters()])
            with torch.no_grad():
                found.append([encoded, *gradients, network.eval()(features, mask)])
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, atol=TOLERANCE, rtol=1e-5)


def test_dropout_loses_the_same_units_at_every_word_of_a_sentence():
    torch.manual_seed(0)
    network = HighwayLstm(4, 20, layers=1, dropout=0.5).train()
    lost = network(torch.randn(3, 7, 4), torch.ones(3, 7, dtype=torch.bool)) == 0
    assert torch.equal(lost, lost[:, :1].expand_as(lost))
    assert 0 < lost[0, 0].sum() < 20
    assert not torch.equal(lost[0, 0], lost[1, 0])


def test_the_matrices_of_gates_begin_orthonormal(model):
    for part in model.encoder.layers[1].recurrent_gates.weight.chunk(5):
        torch.testing.assert_close(part @ part.T, torch.eye(6), atol=1e-5, rtol=0)
    assert not model.encoder.layers[0].input_gates.bias.any()


def test_the_papers_sizes_are_the_default():
    with torch.device("meta"):
        model = ElmoForSemanticRoleLabeling(ElmoConfig(vocab_size=4, word_vector_dim=100, elmo_placement="none"))
    assert [layer.input_gates.in_features for layer in model.encoder.layers] == [200] + [300] * 7
    assert model.predicate_embeddings.weight.shape == (2, 100)


# ------------------------------------------------------------------------------------------------------------- head


def encode(tokenizer, sentences, predicates, **kwargs):
    inputs = tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt", **kwargs)
    return {**inputs, "predicate_index": torch.tensor(predicates)}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 1000))
def test_decoding_never_breaks_bio(lengths, seed):
    torch.manual_seed(seed)
    model = ElmoForSemanticRoleLabeling(
        ElmoConfig(**{**SIZES, "word_vector_dim": 4, "elmo_placement": "none", "head_layers": 1})
    ).eval()
    with torch.no_grad():
        model.role_classifier.weight.mul_(50)
    sentences = [[f"word{n}" for n in range(length)] for length in lengths]
    inputs = encode(ElmoTokenizer(), sentences, lengths)
    predictions = model(**inputs).predictions
    allowed = allowed_labels(tuple(LABELS), "BIO")
    for row, length in zip(predictions, lengths, strict=True):
        path = row[row != IGNORED].tolist()
        assert len(path) == length
        assert allowed.starts[path[0]]
        assert all(allowed.transitions[a, b] for a, b in itertools.pairwise(path))


def test_the_loss_is_the_mean_cross_entropy_and_logits_are_log_probabilities(model):
    inputs = encode(ElmoTokenizer(), [WORDS, WORDS[:3]], [6, 2])
    labels = torch.full(inputs["input_ids"].shape, IGNORED)
    labels[0, 1:10], labels[1, 1:3] = 2, 0
    output = model(**inputs, labels=labels)
    expected = torch.nn.functional.nll_loss(output.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.logits[0, 1:10].exp().sum(-1), torch.ones(9))
    assert output.predictions[1].tolist()[4:] == [IGNORED] * 7


def test_autocast_trains_on_about_the_same_loss(model):
    inputs = encode(ElmoTokenizer(), [WORDS, WORDS[:3]], [6, 2])
    labels = torch.where(inputs["attention_mask"].bool(), 1, IGNORED)
    expected = model(**inputs, labels=labels).loss.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(**inputs, labels=labels).loss.item() == pytest.approx(expected, rel=0.02)
        model.train()(**inputs, labels=labels).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.encoder.parameters())


def test_the_predicate_changes_the_roles(model):
    inputs = encode(ElmoTokenizer(), [WORDS, WORDS], [5, 6])
    logits = model(**inputs).logits
    assert not torch.allclose(logits[0], logits[1])


def test_several_predicates_at_once_have_the_roles_of_each_alone(model):
    tokenizer = ElmoTokenizer()
    model.train()
    together = model.label(WORDS, [4, 5], tokenizer)
    assert model.training
    assert together == [model.label(WORDS, [predicate], tokenizer)[0] for predicate in (4, 5)]
    for roles in together:
        for role, start, end, text in roles:
            assert role in ROLES
            assert text == " ".join(WORDS[start:end])
    assert model.label(WORDS, [], tokenizer) == []
    assert model.label(WORDS, np.array([4, 5]), tokenizer) == together
    with pytest.raises(ValueError, match="`words` must be a list of words, got the text 'The cat'"):
        model.label("The cat", 1, tokenizer)


@pytest.mark.parametrize(
    ("predicates", "message"),
    [
        ([0, 1], "`predicate_index` must be positions of words, of which the first is 1; got 0"),
        ([6, 4], "positions of words, of which the first is 1; got 4"),
        ([6, 11], "positions of words, of which the first is 1; got 11"),
        ([-1, 1], "positions of words, of which the first is 1; got -1"),
        ([6], r"`predicate_index` must have one position for each of 2 rows, got tensor\(\[6\]\)"),
    ],
)
def test_a_predicate_that_is_no_word_is_refused(predicates, message, model):
    with pytest.raises(ValueError, match=message):
        model(**encode(ElmoTokenizer(), [WORDS, WORDS[:3]], predicates))


def test_a_missing_predicate_and_a_sentence_without_words_are_refused(model):
    inputs = encode(ElmoTokenizer(), [[]], [0])
    with pytest.raises(ValueError, match="must be positions of words, of which the first is 1; got 0"):
        model(**inputs)
    del inputs["predicate_index"]
    with pytest.raises(ValueError, match="one position for each of 1 rows, got None"):
        model(**inputs)
    with pytest.raises(ValueError, match="`predicate_index` must be from 0 to 8, got 9"):
        model.label(WORDS, [2, 9], ElmoTokenizer())


def test_the_stock_collator_makes_batches(model):
    tokenizer = ElmoTokenizer()
    rows = [
        {**tokenizer(words, is_split_into_words=True), "predicate_index": 2, "labels": [IGNORED, 1, 2, IGNORED]}
        for words in (WORDS[:2], WORDS[3:5])
    ]
    rows.append({**tokenizer(WORDS[:1], is_split_into_words=True), "predicate_index": 1, "labels": [IGNORED, 1]})
    batch = DataCollatorForTokenClassification(tokenizer)(rows)
    assert model(**batch).loss.isfinite()


def test_a_folder_loads_by_its_own_code_in_a_process_without_the_package(model, tmp_path):
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    code = """
        import sys, json

        from transformers import AutoModel, AutoTokenizer
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        folder, words = sys.argv[1], sys.argv[2].split()
        labeler = get_class_from_dynamic_module("modeling_elmo.ElmoForSemanticRoleLabeling", folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        print(json.dumps(labeler.from_pretrained(folder).eval().label(words, [4, 5], tokenizer)))
        assert type(AutoModel.from_pretrained(folder, trust_remote_code=True)).__name__ == "ElmoModel"
    """
    printed = run_without_package(code, folder, " ".join(WORDS), folder=tmp_path)
    expected = model.label(WORDS, [4, 5], ElmoTokenizer())
    assert json.loads(printed) == [[list(role) for role in roles] for roles in expected]


def test_a_folder_loads_through_every_auto_class(model, tmp_path):
    model.save_pretrained(tmp_path)
    for auto_class in AUTO_MAP:
        getattr(transformers, auto_class).from_pretrained(tmp_path)


# ---------------------------------------------------------------------------------------------------------- columns

COLUMNS = """\
The\tDT\t-\t-\t(ARG1*\t(ARG0*
cat\tNN\t-\t-\t*)\t*
that\tWDT\t-\t-\t(R-ARG1*)\t*
Anna\tNNP\t-\t-\t(ARG0*)\t*
bought\tVBD\tbuy\tbuy.01\t(V*)\t*)
ate\tVBD\teat\teat.01\t*\t(V*)
it\tPRP\t-\t-\t*\t(ARG1*)

Yes\tUH\t-\t-
!\t.\t-\t-

She\tPRP\t-\t-\t(ARG0*)
slept\tVBD\tsleep\tsleep.01\t(V*)

"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_sentences_have_words_predicates_and_roles(tmp_path):
    first, second, third = read_examples("srl", write(tmp_path / "data", COLUMNS))
    assert first["words"] == ["The", "cat", "that", "Anna", "bought", "ate", "it"]
    assert first["predicates"] == [4, 5]
    assert first["roles"] == [
        ["B-ARG1", "I-ARG1", "B-R-ARG1", "B-ARG0", "B-V", "O", "O"],
        ["B-ARG0", "I-ARG0", "I-ARG0", "I-ARG0", "I-ARG0", "B-V", "B-ARG1"],
    ]
    assert second["predicates"] == second["roles"] == []
    assert third["columns"] == ["She\tPRP\t-\t-", "slept\tVBD\tsleep\tsleep.01"]


def test_other_columns_before_the_roles_are_found_or_told(tmp_path):
    text = "She  *  -      (A0*)\nslept  *  sleep  (V*)\n\nNo  *  -\n"
    sentences = read_examples("srl", write(tmp_path / "data", text))
    assert sentences["words"] == [["She", "slept"], ["No"]]
    assert sentences["predicates"] == [[1], []]
    assert read_examples("srl", tmp_path / "data", columns={"frame": "3"})[0] == sentences[0]
    asterisks = write(tmp_path / "asterisks", "*  -  (A0*)\nruns  run  (V*)\n")
    assert read_examples("srl", asterisks)["predicates"] == [[1]]
    nothing = write(tmp_path / "nothing", "Yes  UH  -\n")
    assert read_examples("srl", nothing)["predicates"] == [[]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\t-\t(A0*\nb\tb\t(V*)\n", r"line 2: unbalanced brackets: '\(V\*\)'"),
        ("a\t-\t(A0*\nb\tb\t*\n", r"line 2: unbalanced brackets: \(A0\* is never closed"),
        ("a\t-\t*)\nb\tb\t(V*)\n", r"line 1: unbalanced brackets: '\*\)'"),
        ("a\t-\t(A0(A1*)\nb\tb\t(V*)\n", r"line 1: '\(A0\(A1\*\)' is not a role: expected \(ROLE\*"),
        ("a\t-\t(A0*))\nb\tb\t(V*)\n", r"line 1: '\(A0\*\)\)' is not a role"),
        ("a\t-\t*\nb\tb\t(V*)\nc\tc\t*\n", "line 1: the sentence has 2 predicates by its column 2, and 1 columns"),
        (
            "a\t-\t*\nb\tb\t(V*)\n\nc\t-\t*\n",
            "line 4: the sentence has 0 predicates by its column 2, and 1 columns of",
        ),
        ("a\t-\t*\nb\tb\t(V*)\t*\n", "line 2: 4 columns where the sentence's first line has 3"),
        ("a\t-\t*\nb\tb\t(V*)\n\nc\n", "line 4: no column 2 for frames: there are 1"),
        ("", "empty, there are no examples"),
    ],
)
def test_broken_columns_are_one_clear_line(text, message, tmp_path):
    with pytest.raises(ElmoError, match=message) as caught:
        read_examples("srl", write(tmp_path / "data.conll", text))
    assert "data.conll" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ElmoError, match="no such file"):
        read_examples("srl", tmp_path / "missing")
    with pytest.raises(ElmoError, match="`frame` must be the number of a column after the word"):
        read_examples("srl", write(tmp_path / "data", COLUMNS), columns={"frame": "1"})


@given(st.lists(st.tuples(st.sampled_from(["O", *ROLES]), st.integers(1, 4)), max_size=8))
def test_labels_become_brackets_and_again_the_same_labels(spans):
    labels = []
    for role, length in spans:
        labels += ["O"] * length if role == "O" else [f"B-{role}"] + [f"I-{role}"] * (length - 1)
    cells = cells_of_labels(labels)
    assert labels_of_cells(cells, [""] * len(cells)) == labels


def test_the_shared_data_is_written_as_it_was_read(shared):
    path = shared / "data" / "srl" / "dev.conll"
    lines = [
        "\t".join([columns, *(cells[word] for cells in roles)])
        for sentence in read_examples("srl", path)
        for roles in [[cells_of_labels(labels) for labels in sentence["roles"]]]
        for word, columns in enumerate(sentence["columns"])
    ]
    assert lines == [line for line in path.read_text(encoding="utf-8").split("\n") if line]


# ----------------------------------------------------------------------------------------------------------- scores


def test_continuations_belong_to_what_they_continue_and_the_predicate_is_no_argument():
    labels = "B-ARG1 I-ARG1 B-V B-C-ARG1 O B-C-V B-C-ARG0 B-R-ARG1".split()
    assert arguments_of(labels) == {("ARG1", ((0, 2), (3, 4))), ("ARG0", ((6, 7),)), ("R-ARG1", ((7, 8),))}
    again = "B-ARG1 B-C-ARG1 B-ARG1 B-C-ARG1".split()
    assert arguments_of(again) == {("ARG1", ((0, 1), (1, 2))), ("ARG1", ((2, 3), (3, 4)))}


def test_scores_equal_those_counted_by_hand():
    gold = ["B-ARG0 I-ARG0 B-V B-ARG1 O B-C-ARG1".split(), "B-ARG0 B-V B-ARG1 I-ARG1 B-ARGM-TMP O".split()]
    # First: ARG0 right; of ARG1 in pieces one is missing, so that it is wrong. V is wrong, which does not count.
    # Second: ARG0 right, ARG1 too short, ARGM-TMP called ARGM-LOC, one ARG2 too many.
    found = ["B-ARG0 I-ARG0 O B-ARG1 O O".split(), "B-ARG0 B-V B-ARG1 O B-ARGM-LOC B-ARG2".split()]
    counts = count_arguments(found, gold)
    assert counts["all"] == (5, 6, 2)
    scores = counts["all"].scores()
    assert scores == pytest.approx({"precision": 2 / 6, "recall": 2 / 5, "f1": 4 / 11})
    assert counts["ARG0"] == (2, 2, 2)
    assert counts["ARG1"] == (2, 2, 0)
    assert counts["ARGM-TMP"] == (1, 0, 0)
    assert "V" not in counts
    assert count_arguments([["O"]], [["O"]])["all"].scores() == {"precision": 0, "recall": 0, "f1": 0}


# --------------------------------------------------------------------------------------------------------- training

NAMES = ("Anna", "Boris")
VERBS = ("bought", "saw")


def write_sentences(path: Path) -> Path:
    """10 predicates in 7 sentences, one of which has none."""
    text = COLUMNS
    for name, verb in itertools.product(NAMES, VERBS):
        text += f"Who\tWP\t-\t-\t(ARG1*)\ndid\tVBD\t-\t-\t*\n{name}\tNNP\t-\t-\t(ARG0*)\n{verb}\tVB\tx\tx.01\t(V*)\n\n"
    text += f"{NAMES[0]}\tNNP\t-\t-\t(ARG0*)\t*\t(ARG1*)\nruns\tVB\tx\tx.01\t(V*)\t*\t*\n"
    text += "and\tCC\t-\t-\t*\t*\t*\nit\tPRP\t-\t-\t*\t(ARG1*)\t*\nrains\tVB\tx\tx.01\t*\t(V*)\t*\n"
    return write(path, text + "here\tRB\tx\tx.01\t*\t(ARGM-LOC*)\t(V*)\n\n")


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """A folder of the recipe's model, made smaller, that learned ten predicates by heart."""
    folder = tmp_path_factory.mktemp("srl")
    data = write_sentences(folder / "data.conll")
    words = sorted({word.lower() for sentence in read_examples("srl", data) for word in sentence["words"]})
    torch.manual_seed(0)
    vectors = "".join(f"{word} {' '.join(f'{x:.3f}' for x in torch.randn(8))}\n" for word in words)
    arguments = ["--task", "srl", "--train_file", data, "--validation_file", data, "--output_dir", folder / "out"]
    arguments += ["--elmo_placement", "none", "--word_vectors", write(folder / "vectors.txt", vectors)]
    arguments += ["--head_overrides", "head_dim=32", "head_layers=4", "head_dropout=0.0", "--learning_rate", 0.01]
    arguments += ["--num_train_epochs", 60, "--per_device_train_batch_size", 5, "--disable_tqdm", "true"]
    arguments += ["--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"]
    arguments += ["--patience", 0]
    assert finetune.finetune([str(argument) for argument in arguments]) is not None
    return folder


def test_ten_predicates_are_learned_by_heart_and_written_as_they_were_read(learned):
    results = json.loads((learned / "out" / "all_results.json").read_text())
    assert results["eval_f1"] >= 0.99
    assert (learned / "out" / "predictions.conll").read_text() == (learned / "data.conll").read_text()
    table = [line.split("\t") for line in (learned / "out" / "roles.tsv").read_text().splitlines()]
    assert table[0] == ["role", "precision", "recall", "f1", "gold", "predicted", "right"]
    assert table[1][0] == "all"
    assert [line[0] for line in table[2:]] == ["ARG0", "ARG1", "ARGM-LOC", "R-ARG1"]


def test_the_learned_folder_says_who_did_what(learned):
    model = ElmoForSemanticRoleLabeling.from_pretrained(learned / "out")
    tokenizer = ElmoTokenizer.from_pretrained(learned / "out")
    (roles,) = model.label("Who did Anna bought".split(), [3], tokenizer)
    assert roles == [("ARG1", 0, 1, "Who"), ("ARG0", 2, 3, "Anna"), ("V", 3, 4, "bought")]


def test_the_command_prints_roles_by_predicate(learned):
    sentence = "Anna [runs] and it [rains] here"
    done = CliRunner().invoke(app, ["roles", sentence, "--model", str(learned / "out")])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "runs",
        "  ARG0  Anna",
        "  V     runs",
        "rains",
        "  ARG1      it",
        "  V         rains",
        "  ARGM-LOC  here",
    ]
    done = CliRunner().invoke(app, ["roles", sentence, "--json", "--model", str(learned / "out")])
    first = json.loads(done.stdout.splitlines()[0])
    assert (first["predicate"], first["index"]) == ("runs", 1)
    assert first["roles"][0] == {"role": "ARG0", "start": 0, "end": 1, "text": "Anna"}


@pytest.mark.parametrize("sentence", ["no predicate", "half [open", "an empty [ ]", "a [nested [one]]"])
def test_the_command_says_how_predicates_are_marked(sentence, learned):
    done = CliRunner().invoke(app, ["roles", sentence, "--model", str(learned / "out")])
    assert done.exit_code == 2
    assert done.stderr == 'error: mark every predicate with brackets, as in "The cat [ate] the fish ."\n'


def test_a_role_that_the_training_data_lacks_is_missed_and_has_no_loss(tmp_path):
    task = SemanticRoleLabeling("srl", ElmoForSemanticRoleLabeling, metric="f1")
    rows = read_examples("srl", write(tmp_path / "data", COLUMNS))
    labels = [label for label in task.label_names(rows) if not label.endswith("ARG0")]
    examples = task.examples(rows, labels)
    assert len(examples) == 3
    assert examples.labels[2] == (1, [IGNORED, labels.index("B-V")])
    encoded = ElmoTokenizer()([words for (words,) in examples.sequences], is_split_into_words=True, padding=True)
    input_ids = torch.tensor(encoded["input_ids"])
    targets = task.targets(examples.labels)
    assert targets["labels"].shape == input_ids.shape
    assert targets["predicate_index"].tolist() == [5, 6, 2]
    predicted = targets["labels"].masked_fill(targets["labels"] == IGNORED, labels.index("O"))
    predicted[input_ids < 3] = IGNORED
    assert task.scores(examples, predicted.numpy()) == pytest.approx({"precision": 1, "recall": 3 / 6, "f1": 6 / 9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--columns", "words=tokens"], "`words` means nothing here; there is frame"),
        (["--columns", "frame=9"], "no column 9 for frames"),
        (["--dataset_name", "somebody/roles", "--train_file", ""], "srl reads files of columns"),
        (["--train_file", "{nothing}"], "no sentence has a predicate"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_bad_settings_are_one_clear_line(change, message, tmp_path, capsys):
    data = write(tmp_path / "data", COLUMNS)
    nothing = write(tmp_path / "nothing", "Yes\tUH\t-\t-\n")
    base = ["--task", "srl", "--train_file", str(data), "--validation_file", str(data), "--elmo_placement", "none"]
    base += ["--word_vectors", "none.txt", "--output_dir", str(tmp_path / "out")]
    assert finetune.main([*base, *(value.format(nothing=nothing) for value in change)]) == finetune.BAD_INPUT
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_files_of_conll_2012_are_read_as_columns(tmp_path):
    rows = [
        ["bc/x", "0", "0", "Dogs", "NNS", "(S(NP*)", "-", "-", "-", "Speaker", "*", "(ARG0*)", "*", "(3)"],
        ["bc/x", "0", "1", "bark", "VBP", "(VP*", "bark", "01", "1", "Speaker", "*", "(V*)", "(ARG1*)", "-"],
        ["bc/x", "0", "2", "on", "RP", "*))", "go", "02", "-", "Speaker", "*", "*", "(V*)", "-"],
    ]
    text = "\n".join("   ".join(row) for row in rows)
    (tmp_path / "x.conll").write_text(f"#begin document (bc/x); part 000\n{text}\n\n#end document\n")
    (row,) = read_examples("srl", tmp_path / "x.conll")
    assert row["words"] == ["Dogs", "bark", "on"]
    assert row["predicates"] == [1, 2]
    assert row["roles"] == [["B-ARG0", "B-V", "O"], ["O", "B-ARG1", "B-V"]]
    assert row["columns"][1] == "bark\tVBP\tbark\t01"
    (tmp_path / "y.conll").write_text("#begin document (x)\nx 0 0 a\n")
    with pytest.raises(ElmoError, match="line 2: 4 columns; CoNLL-2012 has 12 or more"):
        read_examples("srl", tmp_path / "y.conll")


# Columns between blanks that align them, and between tabs; nothing but `#end document` after the second sentence.
CONLL_2012_TEXT = """\
#begin document (bc/x); part 000
bc/x   0   0    Dogs   NNS   (TOP(S(NP*)      -    -   -   Anna_B.   (ORG*)   (ARG0*)          *   (3)
bc/x   0   1    bark   VBP         (VP*    bark   01   1   Anna_B.        *      (V*)    (ARG1*     -
bc/x   0   2   often    RB            *       -    -   -   Anna_B.        *         *         *)    -
bc/x   0   3      on    RP         *)))      go   02   -   Anna_B.        *         *       (V*)    -

bc/x   0   0     Yes    UH   (TOP(INTJ*       -    -   -   Anna_B.        *   -
bc/x   0   1       !     .           *))      -    -   -   Anna_B.        *   -
#end document
#begin document (nw/y_0001); part 001
nw/y_0001\t1\t0\t*\tSYM\t(TOP(S*\tbe\t-\t2\t-\t*\t(ARG0*\t-
nw/y_0001\t1\t1\t-\tHYPH\t*\t-\t-\t-\t-\t(DATE*)\t*)\t(4|(5)
nw/y_0001\t1\t2\truns\tVBZ\t(VP*)))\trun\t01\t-\t-\t*\t(V*)\t4)

#end document
"""


def rewrite(path: Path, predict: Callable[[list[str]], list[str]]) -> str:
    """A file's predictions, which are made of the gold labels of each predicate."""
    task = SemanticRoleLabeling("srl", ElmoForSemanticRoleLabeling, metric="f1")
    rows = read_examples("srl", path)
    labels = task.label_names(rows)
    predicted = [[labels.index(label) for label in predict(roles)] for sentence in rows["roles"] for roles in sentence]
    longest = max(map(len, predicted))
    padded = np.array([[IGNORED, *numbers, *[IGNORED] * (longest - len(numbers))] for numbers in predicted])
    return task.reports(task.examples(rows, labels), padded)[task.predictions_file]


@pytest.mark.parametrize("text", [COLUMNS, CONLL_2012_TEXT], ids=["columns", "conll_2012"])
def test_gold_roles_as_predictions_make_the_same_file(text, tmp_path):
    assert rewrite(write(tmp_path / "data.conll", text), predict=list) == text


def test_wrong_predictions_for_conll_2012_change_only_the_columns_of_roles(tmp_path):
    path = write(tmp_path / "data.conll", CONLL_2012_TEXT)
    gold = read_examples("srl", path)
    assert gold["predicates"] == [[1, 3], [], [2]]
    # All of the sentence is one argument, of another length in brackets than what was there.
    written = rewrite(path, predict=lambda roles: ["B-ARG1"] + ["I-ARG1"] * (len(roles) - 1))
    found = read_examples("srl", write(tmp_path / "predictions.conll", written))
    assert found["roles"][0] == [["B-ARG1", "I-ARG1", "I-ARG1", "I-ARG1"]] * 2
    assert [found[name] for name in ("words", "columns", "predicates")] == [
        gold[name] for name in ("words", "columns", "predicates")
    ]
    expected = CONLL_2012_TEXT.split("\n")
    for number, cells in {1: "(ARG1* (ARG1*", 2: "* *", 3: "* *", 4: "*) *)", 10: "(ARG1*", 11: "*", 12: "*)"}.items():
        columns = re.split(r"([ \t]+)", expected[number])
        columns[22:-1:2] = cells.split()
        expected[number] = "".join(columns)
    assert written.split("\n") == expected


def test_a_document_of_conll_2012_ends_its_last_sentence_and_has_all_words(tmp_path):
    path = write(tmp_path / "data.conll", CONLL_2012_TEXT.replace("\n\n#end", "\n#end"))
    assert list(map(len, read_examples("srl", path)["words"])) == [4, 2, 3]
    write(path, "a - (A0*)\nruns run (V*)\n\n" + CONLL_2012_TEXT)
    with pytest.raises(ElmoError, match="line 1: 3 columns; CoNLL-2012 has 12 or more"):
        read_examples("srl", path)
