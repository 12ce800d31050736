"""Task models as graphs: the traceable forms, exported programs and ONNX files give the logits of the models."""

import json
import warnings

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from modeling_elmo import (
    ElmoConfig,
    ElmoForCoreferenceResolution,
    ElmoForMultipleChoice,
    ElmoForPreTraining,
    ElmoForQuestionAnswering,
    ElmoForSemanticRoleLabeling,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.cli import app
from modeling_elmo.files import ElmoError
from modeling_elmo.heads_elmo import Words, stack_words
from modeling_elmo.onnx import _quantise, export_onnx, load_exportable
from modeling_elmo.traceable import traceable

WORDS = ["the", "bank", "river", "money", "."]
SIZES = {
    "vocab_size": 4 + len(WORDS),
    "projection_dim": 8,
    "cell_dim": 16,
    "char_filters": [[1, 4], [3, 12]],
    "num_highway_layers": 1,
    "head_dim": 6,
    "head_char_filters": 7,
    "id2label": {0: "O", 1: "B-LOC", 2: "I-LOC"},
}
FIRST = ["The bank lends money .", "the river", "We sat on the bank of the river and read ."]
SECOND = ["money .", "the river runs by a bank", "the"]
CHOICES = 2
# Sums of a few hundred float32 products in another order; relative where the scores of impossible labels are summed.
TOLERANCE = {"atol": 1e-5, "rtol": 1e-6}
# Of probabilities, with random matrices of 8 bits.
INT8_TOLERANCE = 0.15

HEADS = {
    "pooled": (ElmoForSequenceClassification, {"sequence_encoder": "pooled"}),
    "pooled-single": (ElmoForSequenceClassification, {"sequence_encoder": "pooled"}),
    "bcn": (ElmoForSequenceClassification, {"sequence_encoder": "bcn"}),
    "esim": (ElmoForSequenceClassification, {"sequence_encoder": "esim"}),
    "crf": (ElmoForTokenClassification, {"tag_scheme": "BIO"}),
    "tagger": (ElmoForTokenClassification, {"use_crf": False}),
    "reader": (ElmoForQuestionAnswering, {}),
    "choice": (ElmoForMultipleChoice, {}),
}
SINGLE_TEXT = ("pooled-single", "bcn", "crf", "tagger")


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=WORDS, lowercase_fallback=True)


def build(head: str, **changes):
    """Make a head with random weights, all of them: a CRF's are zeros at first, and so are biases."""
    torch.manual_seed(0)
    kind, settings = HEADS[head]
    model = kind(ElmoConfig(**{**SIZES, **settings, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def encode(tokenizer: ElmoTokenizer, head: str, rows: int, **options) -> dict[str, torch.Tensor]:
    options = {"padding": True, "return_tensors": "pt", **options}
    if head in SINGLE_TEXT:
        return dict(tokenizer(FIRST[:rows], **options))
    if head != "choice":
        return dict(tokenizer(FIRST[:rows], SECOND[:rows], **options))
    contexts = [context for context in FIRST[:rows] for _ in range(CHOICES)]
    encoding = tokenizer(contexts, (SECOND * CHOICES)[: len(contexts)], **options)
    return {name: tensor.unflatten(0, (rows, CHOICES)) for name, tensor in encoding.items()}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"elmo_placement": "none", "word_vector_dim": 5, "head_char_filters": 0},
        {"elmo_placement": "output", "word_vector_dim": 5, "mix": "last"},
        {"elmo_placement": "input", "mix_layer_norm": True},
    ],
    ids=["both", "none", "output", "normalised"],
)
def test_the_traceable_form_of_a_head_gives_its_logits_whatever_the_padding(head, settings, tokenizer):
    model = build(head, **settings)
    form = traceable(model)
    for rows, options in ((3, {}), (1, {}), (2, {"padding": "max_length", "max_length": 21}), (3, {"side": "left"})):
        tokenizer.padding_side = options.pop("side", "right")
        inputs = encode(tokenizer, head, rows, **options)
        with torch.no_grad():
            expected = model(**inputs)
            found = form(**{name: inputs[name] for name in form.input_names})
        for name, logits in zip(form.output_names, found, strict=True):
            torch.testing.assert_close(logits, expected[name], **TOLERANCE)
    tokenizer.padding_side = "right"


def test_a_pair_in_a_traceable_form_is_two_sentences_to_the_bilm(tokenizer):
    """A word of one sentence of a pair never reaches the layers of the other."""
    inputs = encode(tokenizer, "esim", 3)
    form = traceable(ElmoModel(ElmoConfig(**SIZES)))
    changed = inputs["char_ids"].clone()
    second = inputs["token_type_ids"].bool()
    changed[second] = changed[second].roll(1, 0)
    mask = inputs["attention_mask"].bool()
    for before, after in zip(
        form.read(inputs["char_ids"], mask, inputs["token_type_ids"]),
        form.read(changed, mask, inputs["token_type_ids"]),
        strict=True,
    ):
        assert torch.equal(before[~second], after[~second])
        assert not torch.equal(before[second], after[second])


# Few layers: every recurrence is a graph of its own, which takes a second to export.
EXPORTED = {
    "pooled": {"elmo_placement": "output", "num_hidden_layers": 1, "word_vector_dim": 5},
    "bcn": {"elmo_placement": "none", "word_vector_dim": 5, "head_char_filters": 0},
    "esim": {"elmo_placement": "input", "num_hidden_layers": 1},
    "crf": {"elmo_placement": "none", "word_vector_dim": 5, "head_layers": 1},
    "tagger": {"elmo_placement": "output", "word_vector_dim": 5, "num_hidden_layers": 1, "head_layers": 1},
    "reader": {"elmo_placement": "none", "word_vector_dim": 5},
    "choice": {"elmo_placement": "none", "word_vector_dim": 5},
}


@pytest.mark.parametrize("head", EXPORTED)
def test_an_onnx_file_of_a_head_gives_its_logits_for_any_batch_and_length(head, tokenizer, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build(head, **EXPORTED[head])
    graph = export_onnx(model, tmp_path / "head.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx")
    _quantise(pytest.importorskip("onnx").load(tmp_path / "head.onnx"), tmp_path / "int8.onnx")
    small = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    assert [value.name for value in session.get_outputs()] == list(graph.outputs)
    assert ("input_ids" in graph.inputs) == bool(model.config.word_vector_dim)
    assert ("token_type_ids" in graph.inputs) == (head not in SINGLE_TEXT)
    for rows, options in ((3, {}), (1, {}), (2, {"padding": "max_length", "max_length": 23})):
        inputs = encode(tokenizer, head, rows, **options)
        with torch.no_grad():
            expected = model(**inputs)
        arrays = {name: inputs[name].numpy() for name in graph.inputs}
        for name, logits, rounded in zip(
            graph.outputs, session.run(None, arrays), small.run(None, arrays), strict=True
        ):
            np.testing.assert_allclose(logits, expected[name].numpy(), **TOLERANCE)
            probabilities, wanted = torch.from_numpy(rounded).softmax(-1), expected[name].softmax(-1)
            assert (probabilities - wanted).abs().max() < INT8_TOLERANCE


def test_the_command_writes_the_head_of_a_folder_and_says_what_is_in_the_file(tokenizer, tmp_path, caplog):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = build("crf", **EXPORTED["crf"])
    model.save_pretrained(tmp_path / "tagger")
    tokenizer.save_pretrained(tmp_path / "tagger")
    with warnings.catch_warnings(record=True) as caught, caplog.at_level("WARNING"):
        done = CliRunner().invoke(app, ["onnx", str(tmp_path / "tagger"), str(tmp_path / "tagger.onnx"), "--int8"])
    assert done.exit_code == 0, done.output
    assert not any("torchvision" in record.getMessage() for record in caplog.records)
    assert not any("LeafSpec" in str(warning.message) for warning in caught)
    assert done.stdout.splitlines()[1:] == [
        "  ElmoForTokenClassification, matrices in 8 bits",
        "  inputs: input_ids (batch, words), char_ids (batch, words, 50), attention_mask (batch, words)",
        "  outputs: logits (batch, words, 3)",
        "  labels of the logits: O, B-LOC, I-LOC",
    ]
    inputs = encode(tokenizer, "crf", 3)
    session = onnxruntime.InferenceSession(tmp_path / "tagger.onnx")
    (logits,) = session.run(None, {value.name: inputs[value.name].numpy() for value in session.get_inputs()})
    with torch.no_grad():
        expected = model(**inputs).logits.exp().numpy()
    assert 0 < np.abs(np.exp(logits) - expected).max() < 0.1


@pytest.mark.parametrize("kind", [ElmoForSemanticRoleLabeling, ElmoForCoreferenceResolution])
def test_a_head_that_cannot_be_exported_is_refused_by_name_and_nothing_is_written(kind, tmp_path):
    model = kind(ElmoConfig(**SIZES, head_layers=1))
    model.save_pretrained(tmp_path / "folder")
    done = CliRunner().invoke(app, ["onnx", str(tmp_path / "folder"), str(tmp_path / "head.onnx")])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert kind.__name__ in done.stderr
    with pytest.raises(ElmoError, match=kind.__name__):
        export_onnx(model, tmp_path / "head.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_head_over_word_embeddings_is_refused(tmp_path):
    sizes = {**SIZES, "spelling": "dictionary", "word_embedding_dim": 4}
    model = ElmoForTokenClassification(ElmoConfig(**sizes))
    with pytest.raises(ElmoError, match="ELMoForManyLangs"):
        export_onnx(model, tmp_path / "head.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [ElmoModel, ElmoForPreTraining, ElmoForSequenceClassification])
def test_a_folder_is_exported_as_what_it_was_saved_from_and_a_pretrained_one_as_its_bilm(kind, tmp_path):
    kind(ElmoConfig(**SIZES)).save_pretrained(tmp_path)
    exported = ElmoModel if kind is ElmoForPreTraining else kind
    assert type(load_exportable(tmp_path)) is exported
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": None}))
    assert type(load_exportable(tmp_path)) is ElmoModel


def test_texts_of_different_lengths_are_stacked_without_a_change():
    torch.manual_seed(0)
    texts = []
    for length in (2, 5):
        mask = torch.rand(3, length) < 0.5
        texts.append(Words(torch.randn(3, length, 4), None, mask, torch.rand(3, 7) < 0.5))
    both = stack_words(*texts)
    assert both.elmo is None
    for field in ("features", "mask"):
        for rows, text in zip(getattr(both, field).tensor_split(2), texts, strict=True):
            values = getattr(text, field)
            assert torch.equal(rows[:, : values.shape[1]], values)
            assert not rows[:, values.shape[1] :].any()
