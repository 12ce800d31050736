"""What users of transformers do with any model: configs, outputs, pipelines, adapters, 16 bits, devices."""

import json
import logging

import numpy as np
import pytest
import torch
from every_model import BATCH, CASES, CHOICES, SIZES, WORDS
from standin_device import PlacedTensor, TwoDevices, place
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

from modeling_elmo import (
    MINI,
    ElmoConfig,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.classification_elmo import BiattentiveNetwork, PooledNetwork

# Sums of a few dozen float32 products in another order.
TOLERANCE = 2e-6

# --------------------------------------------------------------------------------------------------------- configs


def test_a_saved_config_always_loads(tmp_path, caplog):
    config = ElmoConfig(projection_dim=8)
    config.tie_word_embeddings = False
    config.custom_pipelines = {"mine": {"impl": "mine.Mine", "pt": [], "type": "text"}}
    config.note = "an attribute of the user's"
    config.save_pretrained(tmp_path)
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        loaded = ElmoConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    warnings = [record.message for record in caplog.records if "does not know" in record.message]
    assert len(warnings) == 1
    assert warnings[0].endswith("not know: note")
    assert ElmoConfig.from_json_file(tmp_path / "config.json").note == config.note


def test_a_misspelled_key_is_still_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="`projction_dim`; did you mean `projection_dim`"):
        ElmoConfig(projction_dim=8)


@pytest.mark.parametrize("encoder", ["bcn", "esim", "pooled"])
def test_a_saved_classifier_says_its_encoder_and_keeps_it(encoder, tmp_path):
    config = CASES["SequenceClassification"].config(sequence_encoder=encoder)
    model = ElmoForSequenceClassification(config)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["sequence_encoder"] == encoder
    assert set(ElmoConfig.__annotations__) - {"model_type"} <= set(saved)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(loaded.network) is type(model.network)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


@pytest.mark.parametrize("name", ["Model", "PreTraining"])
def test_a_bilm_saved_with_the_earlier_default_begins_a_pooled_classifier(name, tmp_path):
    CASES[name].model_class(CASES[name].config(sequence_encoder="bcn")).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["sequence_encoder"] == "bcn"
    for arguments, network in (({}, PooledNetwork), ({"sequence_encoder": "bcn"}, BiattentiveNetwork)):
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path, **arguments)
        assert type(model.network) is network


@pytest.mark.parametrize(
    ("settings", "dropouts"),
    [
        ({}, (0.1, 0.3)),
        ({"sequence_encoder": "bcn"}, (0.5, 0.5)),
        ({"elmo_dropout": 0.5}, (0.5, 0.3)),
        ({"head_dropout": 0}, (0.1, 0)),
    ],
    ids=["pooled", "bcn", "ELMo's given", "the head's given"],
)
def test_dropout_suits_the_network_unless_it_is_given_whatever_the_bilm_was_saved_with(settings, dropouts, tmp_path):
    CASES["Model"].model_class(CASES["Model"].config(elmo_dropout=0.5, head_dropout=0.5)).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, **settings)
    assert (model.elmo_dropout.probability, model.network.dropout.probability) == dropouts
    model.save_pretrained(tmp_path / "head")
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "head")
    assert (saved.elmo_dropout.probability, saved.network.dropout.probability) == dropouts


def test_the_auto_class_gives_a_small_head_on_elmo_mini():
    model = AutoModelForSequenceClassification.from_pretrained(MINI, num_labels=2)
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) < 500_000


# --------------------------------------------------------------------------------------------------------- outputs


@pytest.mark.parametrize("name", CASES)
def test_settings_of_the_config_work_in_every_model(name):
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model_class(case.config()).eval()
    inputs = case.prepare(case.inputs())
    with torch.no_grad():
        expected = model(**inputs)
    model.config.return_dict = False
    with torch.no_grad():
        found = model(**inputs)
    assert isinstance(found, tuple)
    torch.testing.assert_close(found[0], expected[0], atol=0, rtol=0)
    model.config.return_dict = True
    model.config.output_hidden_states = True
    model.config.use_cache = case.model_class is not ElmoModel or not case.reads_pairs
    with torch.no_grad():
        found = model(**inputs)
    torch.testing.assert_close(found[0], expected[0], atol=0, rtol=0)
    assert len(found.hidden_states) == SIZES["num_hidden_layers"] + 1
    for layer in found.hidden_states:
        assert layer.shape[-2:] == (WORDS, 2 * SIZES["projection_dim"])


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("MultipleChoice", "CoreferenceResolution")])
def test_the_words_own_vectors_may_be_given_instead_of_made(name):
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model_class(case.config()).eval()
    inputs = case.prepare(case.inputs())
    base = model if isinstance(model, ElmoModel) else model.elmo
    vectors = base.char_encoder(inputs["char_ids"].flatten(0, 1)).unflatten(0, (BATCH, WORDS)).detach()
    with torch.no_grad():
        expected = model(**inputs)[0]
        torch.testing.assert_close(model(**inputs, inputs_embeds=vectors)[0], expected, atol=TOLERANCE, rtol=0)
    vectors.requires_grad_()
    model(**inputs, inputs_embeds=vectors)[0].float().sum().backward()
    assert vectors.grad.abs().sum() > 0


def test_vectors_of_words_need_no_characters():
    model = ElmoModel(CASES["Model"].config()).eval()
    found = model(inputs_embeds=torch.randn(2, 5, SIZES["projection_dim"]))
    assert found.last_hidden_state.shape == (2, 5, 2 * SIZES["projection_dim"])
    with pytest.raises(ValueError, match="`inputs_embeds` must be"):
        model(inputs_embeds=torch.randn(2, 5, 99))


def test_vectors_of_words_that_nothing_would_read_are_refused():
    case = CASES["SequenceClassification"]
    inputs = case.inputs()
    vectors = torch.zeros(BATCH, WORDS, SIZES["projection_dim"])
    model = case.model_class(case.config()).eval()
    layers = model.bilm_layers(inputs["char_ids"])
    with pytest.raises(ValueError, match="the biLM, which does not run"):
        model(**inputs, bilm_layers=layers, inputs_embeds=vectors)
    without = case.model_class(case.config(elmo_placement="none", word_vector_dim=3)).eval()
    with pytest.raises(ValueError, match="the biLM, which does not run"):
        without(**inputs, inputs_embeds=vectors)


def test_asking_for_attentions_is_reported(caplog):
    model = ElmoModel(CASES["Model"].config()).eval()
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        model(**CASES["Model"].inputs(), output_attentions=True)
    assert "`output_attentions` has no effect" in caplog.text


@pytest.mark.parametrize("name", CASES)
def test_every_model_runs_on_its_dummy_inputs(name):
    if CASES[name].reads_pairs or name in ("SemanticRoleLabeling", "CoreferenceResolution"):
        pytest.skip("needs pairs, a predicate or documents")
    model = CASES[name].model_class(CASES[name].config()).eval()
    assert torch.isfinite(model(**model.dummy_inputs)[0]).all()


# ----------------------------------------------------------------------------------------------------------- words


def test_an_added_word_is_unknown_to_word_vectors_until_they_are_resized():
    torch.manual_seed(0)
    tokenizer = ElmoTokenizer(vocab=["river", "bank"])
    config = ElmoConfig(**{**SIZES, "vocab_size": len(tokenizer), "max_characters_per_token": 50}, word_vector_dim=5)
    model = ElmoForTokenClassification(config).eval()
    before = model.word_embeddings.weight.detach().clone()
    tokenizer.add_tokens(["newword"])
    inputs = tokenizer(["a newword"], return_tensors="pt")
    unknown = inputs["input_ids"].where(inputs["input_ids"] < len(before), tokenizer.unk_token_id)
    assert (unknown != inputs["input_ids"]).any()
    with torch.no_grad():
        expected = model(**{**inputs, "input_ids": unknown}).logits
        torch.testing.assert_close(model(**inputs).logits, expected, atol=0, rtol=0)
    model.resize_token_embeddings(len(tokenizer))
    assert model.config.vocab_size == len(model.word_embeddings.weight) == len(before) + 1
    torch.testing.assert_close(model.word_embeddings.weight[:-1], before, atol=0, rtol=0)
    assert not model.word_embeddings.weight.requires_grad
    with pytest.raises(ValueError, match="only a model with one table of words"):
        ElmoModel(CASES["Model"].config()).resize_token_embeddings(50)


# ---------------------------------------------------------------------------------------------------------- 16 bits


@pytest.mark.parametrize("negatives", [0, 8])
def test_pretraining_takes_a_step_in_bfloat16(negatives):
    torch.manual_seed(0)
    case = CASES["PreTraining"]
    model = case.model_class(case.config(num_negatives=negatives)).train()
    inputs = case.prepare(case.inputs(), with_labels=True)
    torch.manual_seed(1)
    expected = model(**inputs).loss
    model.bfloat16()
    torch.manual_seed(1)
    found = model(**inputs).loss
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.02)
    found.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


# -------------------------------------------------------------------------------------------------------- the mix


@pytest.mark.parametrize("placement", ["input", "output"])
def test_a_mix_with_layer_norm_counts_markers_whether_they_are_kept_or_not(placement):
    torch.manual_seed(0)
    tokenizer = ElmoTokenizer(vocab=["river"])
    config = ElmoConfig(**{**SIZES, "max_characters_per_token": 50}, mix_layer_norm=True)
    model = ElmoModel(config).eval()
    inputs = tokenizer(["the river bank", "money"], padding=True, return_tensors="pt")
    with torch.no_grad():
        kept = model(**inputs).last_hidden_state
        dropped = model(**inputs, keep_sentence_markers=False).last_hidden_state
    torch.testing.assert_close(dropped[0], kept[0, 1:4], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(dropped[1, :1], kept[1, 1:2], atol=TOLERANCE, rtol=0)
    assert not dropped[1, 1:].any()

    head = ElmoForTokenClassification(
        ElmoConfig(**{**config.to_dict(), "elmo_placement": placement, "word_vector_dim": 3})
    )
    head.elmo.load_state_dict(model.state_dict(), strict=False)
    (text,), _ = head.eval()._read(
        [inputs["input_ids"], inputs["char_ids"], inputs["attention_mask"], None, None, None], None, None
    )
    size = 2 * SIZES["projection_dim"]
    mixed = text.elmo if placement == "output" else text.features[..., -size:]
    torch.testing.assert_close(mixed, dropped, atol=TOLERANCE, rtol=0)


# --------------------------------------------------------------------------------------------------------- Trainer


def _settings(folder, **changes) -> TrainingArguments:
    return TrainingArguments(output_dir=str(folder), report_to="none", disable_tqdm=True, **changes)


def test_label_smoothing_trains_a_crf_by_its_marginals(tmp_path):
    torch.manual_seed(0)
    case = CASES["TokenClassification"]
    model = case.model_class(case.config(num_labels=3)).train()
    inputs = case.prepare(case.inputs(), with_labels=True)
    trainer = Trainer(model, _settings(tmp_path, label_smoothing_factor=0.1))
    loss = trainer.compute_loss(model, dict(inputs))
    logits = model.eval()(**{**inputs, "labels": None}).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=0)
    loss.backward()
    assert model.crf.transitions.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("TokenClassification", (BATCH, WORDS, 2)),
        ("TokenClassificationWithoutCrf", (BATCH, WORDS, 2)),
        ("SequenceClassification", (BATCH, 2)),
        ("SequenceClassificationOfPairs", (BATCH, 2)),
        ("BiattentiveClassification", (BATCH, 2)),
        ("PairClassification", (BATCH, 2)),
        ("WordVectors", (BATCH, 2)),
        ("MultipleChoice", (BATCH, CHOICES)),
        ("QuestionAnswering", ((BATCH, WORDS), (BATCH, WORDS))),
        ("SemanticRoleLabeling", (BATCH, WORDS, 2)),
        ("PreTraining", ((BATCH, WORDS), (BATCH, WORDS))),
    ],
)
def test_predictions_of_the_stock_trainer_are_the_logits_of_the_task(name, shapes, tmp_path):
    case = CASES[name]
    model = case.model_class(case.config(num_labels=2))
    inputs = case.prepare(case.inputs(), with_labels=True)
    rows = []
    for number in range(BATCH):
        rows.append({key: value[number] for key, value in inputs.items()})
    trainer = Trainer(model, _settings(tmp_path, per_device_eval_batch_size=2, label_names=None))
    seen = []
    trainer.compute_metrics = lambda evaluation: seen.append(evaluation.predictions) or {}
    output = trainer.predict(rows)
    for predictions in (output.predictions, seen[0]):
        if isinstance(shapes[0], tuple):
            assert tuple(array.shape for array in predictions) == shapes
        else:
            assert np.argmax(predictions, -1).shape == shapes[:-1]
            assert predictions.shape == shapes
    assert np.isfinite(output.metrics["test_loss"])


# --------------------------------------------------------------------------------------------------------- devices


def _halves(model: torch.nn.Module, names: list[str], start: int) -> dict[str, int]:
    """Spread what may not be split, and all else that has weights, over two devices in turn."""
    devices, covered = {}, []
    for name, module in model.named_modules():
        if any(name.startswith(f"{prefix}.") for prefix in covered):
            continue
        if type(module).__name__ in names or (list(module.parameters()) and not list(module.children())):
            devices[name] = (start + len(covered)) % 2
            covered.append(name)
    return devices


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_a_model_runs_split_over_two_devices(name, start):
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model_class(case.config()).eval()
    inputs = case.prepare(case.inputs(), with_labels=True)
    with torch.no_grad():
        expected = model(**inputs)
        place(model, _halves(model, model._no_split_modules, start))
        with TwoDevices():
            found = model(**inputs)
    for key, value in expected.items():
        for one, other in zip(_tensors(value), _tensors(found[key]), strict=True):
            torch.testing.assert_close(getattr(other, "held", other), one, atol=TOLERANCE, rtol=0)


def _tensors(value: object) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def test_the_stand_in_devices_refuse_to_be_mixed():
    first, second = PlacedTensor(torch.ones(3), 0), PlacedTensor(torch.ones(3), 1)
    with TwoDevices(), pytest.raises(RuntimeError, match="got tensors on"):
        first + second
    with TwoDevices():
        assert (first.to(second.device) + second).tolist() == [2, 2, 2]


# ------------------------------------------------------------------------------------------------------------ PEFT


@pytest.mark.parametrize(
    ("name", "task_type"),
    [
        ("SequenceClassification", "SEQ_CLS"),
        ("BiattentiveClassification", "SEQ_CLS"),
        ("TokenClassification", "TOKEN_CLS"),
        ("QuestionAnswering", "QUESTION_ANS"),
        ("Model", "FEATURE_EXTRACTION"),
    ],
)
def test_pefts_task_types_wrap_the_heads(name, task_type, tmp_path):
    peft = pytest.importorskip("peft")
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model_class(case.config(num_labels=2))
    own = [child for child, _ in model.named_children() if child in ("network", "reader", "classifier", "crf")]
    settings = peft.LoraConfig(
        task_type=task_type, r=2, target_modules=["input_gates", "recurrent_gates"], modules_to_save=own or None
    )
    wrapped = peft.get_peft_model(model, settings)
    inputs = case.prepare(case.inputs(), with_labels=True)
    output = wrapped(**inputs)
    loss = output.last_hidden_state.square().mean() if name == "Model" else output.loss
    loss.backward()
    moved = 0
    for parameter_name, parameter in wrapped.named_parameters():
        if "lora_B" in parameter_name:
            moved += int(parameter.grad is not None and parameter.grad.abs().sum() > 0)
    assert moved > 0
    wrapped.eval()
    with torch.no_grad():
        for parameter_name, parameter in wrapped.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.1)
        expected = wrapped(**case.prepare(case.inputs()))[0]
    wrapped.save_pretrained(tmp_path)
    torch.manual_seed(0)
    again = peft.PeftModel.from_pretrained(case.model_class(case.config(num_labels=2)), tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**case.prepare(case.inputs()))[0], expected, atol=TOLERANCE, rtol=0)
        merged = again.merge_and_unload().eval()
        torch.testing.assert_close(merged(**case.prepare(case.inputs()))[0], expected, atol=1e-5, rtol=0)
