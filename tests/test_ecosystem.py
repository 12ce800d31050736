"""Other libraries take the model as it is: pipelines, sentence-transformers, datasets, compilers, ONNX."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)
from typer.testing import CliRunner

from modeling_elmo import (
    ElmoConfig,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.cli import app
from modeling_elmo.onnx import export_onnx, export_program
from modeling_elmo.traceable import TraceableElmo

SIZES = {"projection_dim": 16, "cell_dim": 32, "char_filters": [[1, 8], [3, 24]], "num_highway_layers": 1}
SENTENCES = ["The bank lends money.", "We sat on the bank of the river, and read.", "Hello"]
# Sums of a few dozen float32 products in another order.
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("elmo")
    ElmoModel(ElmoConfig(**SIZES)).save_pretrained(path)
    return path


@pytest.fixture
def model(folder) -> ElmoModel:
    return AutoModel.from_pretrained(folder)


@pytest.fixture
def tokenizer(folder) -> ElmoTokenizer:
    return AutoTokenizer.from_pretrained(folder)


# ------------------------------------------------------------------------------------------------------- pipelines


def test_feature_extraction_gives_each_words_vector(folder, model, tokenizer):
    extract = pipeline("feature-extraction", model=str(folder))
    found = extract(SENTENCES, batch_size=2)
    for sentence, vectors in zip(SENTENCES, found, strict=True):
        expected = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(
            np.array(vectors)[:, : expected.shape[1]], expected.detach().numpy(), atol=TOLERANCE
        )


@pytest.mark.parametrize("strategy", ["simple", "first", "max", "average"])
def test_token_classification_aggregates_whole_words(strategy):
    """A full stop right behind a word is a word of its own, also where the vocabulary has it."""
    torch.manual_seed(0)
    tokenizer = ElmoTokenizer(vocab=["paris", "."], lowercase_fallback=True)
    labels = {0: "O", 1: "B-LOC", 2: "I-LOC"}
    config = ElmoConfig(**SIZES, vocab_size=len(tokenizer), word_vector_dim=4, elmo_placement="none", id2label=labels)
    config.use_crf, config.head_char_filters = False, 0
    tagger = ElmoForTokenClassification(config).eval()
    with torch.no_grad():  # Paris is a place, everything else is not
        tagger.word_embeddings.weight.zero_()
        tagger.word_embeddings.weight[tokenizer.convert_tokens_to_ids("paris")] = 50.0
        for parameter in tagger.encoder.parameters():
            parameter.zero_()
        for layer in tagger.encoder.forward_layers:
            i, j, _, o = layer.input_gates.weight.chunk(4)
            i.fill_(1), j.fill_(1), o.fill_(1)
            layer.input_gates.bias.chunk(4)[2].fill_(-100)  # no memory of the word before
        tagger.classifier.weight.zero_()
        tagger.classifier.weight[1, 0] = 100.0
        tagger.classifier.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    find = pipeline("token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy=strategy)
    text = "I like Paris."
    (found,) = find(text)
    assert text[found["start"] : found["end"]] == "Paris"
    assert found["entity_group"] == "LOC"


def test_text_classification_takes_pairs(tokenizer):
    torch.manual_seed(0)
    model = ElmoForSequenceClassification(
        ElmoConfig(**SIZES, sequence_encoder="esim", head_dim=8, num_labels=3)
    ).eval()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    found = classify({"text": SENTENCES[0], "text_pair": SENTENCES[1]})
    inputs = tokenizer(SENTENCES[0], SENTENCES[1], return_tensors="pt")
    expected = model(**inputs).logits.softmax(-1)[0]
    for one in found:
        assert one["score"] == pytest.approx(expected[model.config.label2id[one["label"]]].item(), abs=1e-5)


# ------------------------------------------------------------------------------------------- sentence-transformers


def test_sentence_transformers_encode_save_load_and_learn(folder, model, tokenizer, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = Transformer(str(folder))
    encoder = st.SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())])
    vectors = encoder.encode(SENTENCES)
    for sentence, vector in zip(SENTENCES, vectors, strict=True):
        expected = model(**tokenizer(sentence, return_tensors="pt")).last_hidden_state.mean(1)[0]
        np.testing.assert_allclose(vector, expected.detach().numpy(), atol=TOLERANCE)
    encoder.save(str(tmp_path / "saved"))
    again = st.SentenceTransformer(str(tmp_path / "saved"))
    np.testing.assert_allclose(again.encode(SENTENCES), vectors, atol=TOLERANCE)

    pairs = Dataset.from_dict(
        {"sentence1": SENTENCES[:2] * 4, "sentence2": SENTENCES[1:] * 4, "score": [1.0, 0.0] * 4}
    )
    settings = st.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        num_train_epochs=10,
        learning_rate=0.01,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    loss = CosineSimilarityLoss(encoder)
    trainer = st.SentenceTransformerTrainer(model=encoder, args=settings, train_dataset=pairs, loss=loss)
    trainer.train()
    first, second, third = encoder.encode(SENTENCES, convert_to_tensor=True)
    cosine = nn.functional.cosine_similarity
    assert cosine(first, second, dim=0) > cosine(second, third, dim=0) + 0.3


# ------------------------------------------------------------------------------------- data sets, compilers, export


def test_datasets_map_takes_the_tokenizer(model, tokenizer):
    rows = Dataset.from_dict({"text": SENTENCES}).map(lambda row: tokenizer(row["text"]), batched=True)
    batch = tokenizer.pad([{k: row[k] for k in tokenizer.model_input_names} for row in rows], return_tensors="pt")
    expected = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    for name in tokenizer.model_input_names:
        assert torch.equal(batch[name], expected[name]), name


@pytest.mark.parametrize("mix", ["scalar", "average", "last"])
@pytest.mark.parametrize("clips", [(3.0, 3.0), (None, None), (0.05, 0.02)])
def test_the_traceable_form_gives_the_models_vectors(mix, clips, tokenizer):
    torch.manual_seed(0)
    config = ElmoConfig(**SIZES, mix=mix, cell_clip=clips[0], projection_clip=clips[1])
    model = ElmoModel(config).eval()
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True)
        mixed, layers = TraceableElmo(model)(inputs["char_ids"], inputs["attention_mask"])
    torch.testing.assert_close(mixed, expected.last_hidden_state, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(layers, torch.stack(expected.hidden_states, 1), atol=TOLERANCE, rtol=0)


def test_an_exported_model_can_be_trained_on():
    model = ElmoModel(ElmoConfig(**SIZES)).train()
    TraceableElmo(model)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_exported_program_takes_other_batches_and_lengths(model, tokenizer):
    program = export_program(model).module()
    for sentences in (SENTENCES, SENTENCES[:1], ["one", "two words"] * 5):
        inputs = tokenizer(sentences, padding=True, return_tensors="pt")
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state
            found, _ = program(inputs["char_ids"], inputs["attention_mask"])
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_an_onnx_file_gives_the_models_vectors_and_int8_nearly(model, tokenizer, folder, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    done = CliRunner().invoke(app, ["onnx", str(folder), str(tmp_path / "elmo.onnx")])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(app, ["onnx", str(folder), str(tmp_path / "elmo.onnx")])
    assert (again.exit_code, "--overwrite" in again.stderr) == (2, True)
    export_onnx(model, tmp_path / "int8.onnx", int8=True)
    assert {path.name for path in tmp_path.iterdir()} == {"elmo.onnx", "int8.onnx"}
    session, small = (onnxruntime.InferenceSession(tmp_path / name) for name in ("elmo.onnx", "int8.onnx"))
    for sentences in (SENTENCES, ["one more", "sentence"]):
        inputs = tokenizer(sentences, padding=True, return_tensors="np")
        with torch.no_grad():
            output = model(**inputs.convert_to_tensors("pt"), output_hidden_states=True)
        layers = torch.stack(output.hidden_states, 1).numpy()
        feed = {name: np.asarray(inputs[name]) for name in ("char_ids", "attention_mask")}
        mixed, found = session.run(None, feed)
        np.testing.assert_allclose(mixed, output.last_hidden_state.numpy(), atol=TOLERANCE)
        np.testing.assert_allclose(found, layers, atol=TOLERANCE)
        nearly = small.run(None, feed)[1]
        assert 0 < np.abs(nearly - layers).max() < 0.1 * np.abs(layers).max()


# --------------------------------------------------------------------------------------------------------- Trainer


def test_trainer_groups_by_length_and_compiles(tokenizer, tmp_path):
    torch.manual_seed(0)
    model = ElmoForSequenceClassification(ElmoConfig(**SIZES, head_dim=8, num_labels=2))
    rows = [{**tokenizer(sentence), "label": number % 2} for number, sentence in enumerate(SENTENCES * 4)]
    for row in rows:
        row["length"] = len(row["input_ids"])
    settings = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        train_sampling_strategy="group_by_length",
        torch_compile=True,
        torch_compile_backend="eager",  # needs no compiler
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    before = model.network.output.weight.detach().clone()
    trainer = Trainer(
        model, settings, DataCollatorWithPadding(tokenizer), Dataset.from_list(rows), processing_class=tokenizer
    )
    assert np.isfinite(trainer.train().training_loss)
    assert not torch.equal(model.network.output.weight, before)
