"""Fine-tuning and comparing, from files to a folder of results."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from modeling_elmo import (
    ElmoConfig,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.files import ElmoError
from training import compare, finetune, trainer
from training.examples import GIGABYTE, Collator, Examples, LayerStore, encode

MODULE = "training.finetune"
NAMES = ["Anna", "Boris", "Clara", "David"]
TOWNS = ["Oslo", "Rome", "Paris", "York"]
SMALL = ["head_dim=12", "head_char_filters=8", "head_dropout=0.1", "elmo_dropout=0.1"]


def write_ner(path: Path) -> Path:
    """Sentences in IOB1 columns, in which every name is a PER and every town a LOC."""
    sentences = []
    for name in NAMES:
        for town in TOWNS:
            tags = [(name, "I-PER"), ("lives", "O"), ("in", "O"), ("New", "I-LOC"), (town, "I-LOC"), (".", "O")]
            sentences.append("\n".join(f"{word} X X {tag}" for word, tag in tags))
    path.write_text("-DOCSTART- X X O\n\n" + "\n\n".join(sentences) + "\n")
    return path


def write_task(task: str, folder: Path) -> Path:
    if task == "ner":
        return write_ner(folder / "data.conll")
    if task == "pos":
        rows = [f"{n}\tword{n % 3}\t_\t{'NOUN' if n % 3 else 'VERB'}" + "\t_" * 6 for n in range(1, 7)]
        path = folder / "data.conllu"
        path.write_text(("\n".join(rows) + "\n\n") * 8)
    elif task == "text-classification":
        path = folder / "data.csv"
        path.write_text("review,stars\n" + 'very good,5\n"very bad, no",10\n' * 6)
    elif task == "sst":
        path = folder / "data.txt"
        path.write_text("(4 (2 very) (3 good))\n(0 (2 very) (1 bad))\n" * 6)
    elif task == "nli":
        path = folder / "data.jsonl"
        rows = [("a dog runs", "an animal runs", "entailment"), ("a dog runs", "no dog runs", "contradiction")] * 6
        keys = ("sentence1", "sentence2", "gold_label")
        path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    elif task == "srl":
        path = folder / "data.conll"
        rows = [f"a\t-\t(A0*\n{noun}\t-\t*)\nruns\trun\t(V*)\n.\t-\t*\n" for noun in ("dog", "animal", "sun")]
        path.write_text(("\n".join(rows) + "\n") * 4)
    elif task == "squad":
        path = folder / "data.json"
        asked = [("what shines ?", "the sun", 0), ("what barks ?", "the dog", 15)] * 6
        rows = [
            {"id": str(number), "question": question, "answers": [{"text": text, "answer_start": start}]}
            for number, (question, text, start) in enumerate(asked)
        ]
        paragraphs = [{"context": "the sun shines the dog barks", "qas": rows}]
        path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    elif task == "coref":
        path = folder / "data.conll"
        words, cells = "a dog runs the animal a dog".split(), "(0 0) - (1 1) (0 0)".split()
        rows = "".join(f"x 0 0 {word} - {cell}\n" for word, cell in zip(words, cells, strict=True))
        path.write_text(f"#begin document (x); part 0\n{rows}\n{rows.replace('dog', 'sun')}#end document\n" * 6)
    else:
        path = folder / "data.jsonl"
        rows = [{"context": "the sun", "choices": ["shines", "barks"], "label": 0}]
        rows += [{"context": "the dog", "choices": ["shines", "barks"], "label": 1}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows * 6))
    return path


@pytest.fixture(scope="module")
def bilm(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bilm")
    torch.manual_seed(0)
    sizes = {"projection_dim": 8, "cell_dim": 16, "char_filters": [[1, 4], [3, 12]], "num_highway_layers": 1}
    ElmoModel(ElmoConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    words = "lives in new . very good bad a dog runs an animal no the sun shines barks".split()
    path.write_text(
        "".join(f"{word} {' '.join(str((n * k) % 7 - 3) for k in range(1, 5))}\n" for n, word in enumerate(words))
    )
    return path


def arguments(task: str, data: Path, output: Path, *more: object) -> list[str]:
    fixed = ["--task", task, "--train_file", data, "--validation_file", data, "--output_dir", output]
    sizes = ["--head_overrides", *SMALL, "--num_train_epochs", 3, "--disable_tqdm", "true", "--patience", 0]
    if task == "text-classification":
        more = ("--columns", "text=review", "label=stars", *more)
    return [str(value) for value in (*fixed, *sizes, "--learning_rate", 0.01, *more)]


def run(task: str, data: Path, output: Path, *more: object) -> dict:
    results = finetune.finetune(arguments(task, data, output, *more))
    assert results is not None
    return results


def losses(folder: Path) -> list[float]:
    state = json.loads((folder / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


@pytest.mark.parametrize("task", list(finetune.TASKS))
def test_every_task_goes_from_files_to_a_folder_of_results(task, bilm, vectors, tmp_path):
    data = write_task(task, tmp_path)
    more = ["--test_file", data, "--model_name_or_path", bilm, "--word_vectors", vectors, "--num_train_epochs", 12]
    more += ["--per_device_train_batch_size", 2, "--elmo_placement", "both"]
    results = run(task, data, tmp_path / "out", *more)
    predictions, metric = finetune.TASKS[task].predictions_file, f"eval_{finetune.TASKS[task].metric}"
    assert results[metric] > 0.6
    assert results[metric.replace("eval", "test")] == results[metric]
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json", "vocab.txt", predictions, f"test_{predictions}"} <= written
    assert {"mix_weights.json", "mix_weights.png", "all_results.json"} <= written
    assert not any(name.endswith((".bin", ".pt", ".pth")) for name in written)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| {metric} | {results[metric]:.6g} |" in card
    assert f"train_file: {data.name}" in card
    assert str(tmp_path) not in card
    weights = json.loads((tmp_path / "out" / "mix_weights.json").read_text())
    assert set(weights) == {"input", "output"}


METRICS = ("macro_f1", "pearson", "spearman", "mse")
SHOWN = {"several": ["fine, new", ""], "numbers": ["1.5", "-1"], "pairs": ["True", "False"]}
LABELLED = {
    "several": [{"text": "very good", "labels": ["fine", "new"]}, {"text": "very bad", "labels": []}],
    "numbers": [{"text": "very good", "label": 1.5}, {"text": "very bad", "label": -1}],
    "pairs": [{"text": "a dog runs", "text_pair": two, "label": two == "runs"} for two in ("runs", "no")],
}


@pytest.mark.parametrize(
    ("kind", "problem", "metrics", "labels"),
    [
        ("several", "multi_label_classification", {"accuracy", "micro_f1", "macro_f1"}, ["fine", "new"]),
        ("numbers", "regression", {"pearson", "spearman", "mse"}, ["value"]),
        ("pairs", "single_label_classification", {"accuracy", "macro_f1"}, ["False", "True"]),
    ],
)
def test_the_data_says_what_kind_of_problem_it_is(kind, problem, metrics, labels, bilm, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in LABELLED[kind] * 6))
    fixed = ["--task", "text-classification", "--train_file", data, "--validation_file", data]
    fixed += ["--model_name_or_path", bilm, "--output_dir", tmp_path / "out", "--num_train_epochs", 40]
    fixed += ["--head_overrides", "head_dropout=0", "elmo_dropout=0"]
    fixed += ["--learning_rate", 0.01, "--disable_tqdm", "true", "--per_device_train_batch_size", 4]
    results = finetune.finetune([str(value) for value in fixed])
    texts = "pairs of texts" if kind == "pairs" else "texts"
    assert f"12 {texts}: {problem}, since the labels are" in capsys.readouterr().out
    assert metrics == {name[5:] for name in results if name[5:] in {"accuracy", "micro_f1", *METRICS}}
    assert results["eval_pearson" if kind == "numbers" else "eval_macro_f1"] > 0.9
    model = ElmoForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.problem_type == problem
    assert list(model.config.id2label.values()) == labels
    lines = (tmp_path / "out" / "predictions.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines[:2]] == SHOWN[kind]


def test_stars_may_be_classes_in_their_order_or_numbers(bilm, tmp_path):
    data = write_task("text-classification", tmp_path)
    more = ["--model_name_or_path", bilm]
    run("text-classification", data, tmp_path / "classes", *more)
    names = json.loads((tmp_path / "classes" / "config.json").read_text())["id2label"]
    assert names == {"0": "5", "1": "10"}
    results = run("text-classification", data, tmp_path / "numbers", *more, "--problem_type", "regression")
    assert "eval_pearson" in results


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        (
            [{"text": "a", "label": ["x"]}, {"text": "b", "label": "x"}],
            [],
            "some labels of the training data are lists",
        ),
        ([{"text": "a", "label": [1, 0, 0]}], [], "line 1: a list of labels has the names"),
        ([{"text": "a", "label": None}], [], "line 1: the label is missing"),
        ([{"text": "a", "label": "x"}, {"review": "b", "label": "x"}], [], "line 2: no column `text`"),
        ([{"text": "a", "label": 1}, {"text": "b", "text_pair": "c", "label": 1}], [], "line 2: some rows have a"),
        ([{"text": "a", "label": "x"}], ["--problem_type", "regression"], "the label 'x' is not a number"),
        ([{"text": "a", "label": "x"}], ["--problem_type", "tagging"], "`problem_type` must be one of single_label"),
        ([{"text": "a", "label": [[]]}], ["--problem_type", "regression"], "`problem_type` is regression, but"),
        ([{"text": "a", "label": []}], [], "all lists of labels in the training data are empty"),
    ],
)
def test_labels_that_cannot_be_learned_are_one_clear_line(rows, more, message, bilm, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fixed = ["--task", "text-classification", "--train_file", data, "--validation_file", data]
    fixed += ["--model_name_or_path", bilm, "--output_dir", tmp_path / "out", *more]
    assert finetune.main([str(value) for value in fixed]) == finetune.BAD_INPUT
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "recipe"), [*((task, None) for task in finetune.TASKS), ("sst", "sst-phrases"), ("nli", "sick")]
)
def test_every_recipe_chooses_the_best_epoch_by_the_tasks_own_metric(task, recipe, tmp_path):
    more = ["--elmo_placement", "none", "--word_vectors", "vectors.txt"]
    given = arguments(task, tmp_path / "data", tmp_path / "out", *more)
    settings, training = finetune.read_arguments([recipe, *given] if recipe else given)
    assert settings.train_word_vectors == (recipe is not None or task == "srl")
    assert training.load_best_model_at_end
    assert training.metric_for_best_model == finetune.TASKS[task].metric
    assert training.greater_is_better


def test_a_tagger_learns_its_sentences_and_writes_words_labels_and_predictions(bilm, vectors, tmp_path):
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--num_train_epochs", 15]
    more += [
        "--per_device_train_batch_size",
        2,
        "--load_best_model_at_end",
        "false",
    ]  # that would be the first of equals
    results = run("ner", write_ner(tmp_path / "data"), tmp_path / "out", *more)
    assert results["eval_f1"] >= 0.99
    lines = (tmp_path / "out" / "predictions.tsv").read_text().split("\n\n")[0].split("\n")
    assert [line.split("\t") for line in lines][:5] == [
        ["Anna", "B-PER", "B-PER"],
        ["lives", "O", "O"],
        ["in", "O", "O"],
        ["New", "B-LOC", "B-LOC"],
        ["Oslo", "I-LOC", "I-LOC"],
    ]
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(["Boris lives in New Rome ."], return_tensors="pt")
    labels = [model.config.id2label[number] for number in model.decode(**inputs)[0]]
    assert labels == ["B-PER", "O", "O", "B-LOC", "I-LOC", "O"]
    find = pipeline("token-classification", model=str(tmp_path / "out"), aggregation_strategy="simple")
    text = "Boris lives in New Rome."
    spans = [(found["entity_group"], text[found["start"] : found["end"]]) for found in find(text)]
    assert spans == [("PER", "Boris"), ("LOC", "New Rome")]


def test_training_with_kept_layers_is_training_without(bilm, vectors, tmp_path):
    data = write_ner(tmp_path / "data")
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--logging_steps", 1]
    run("ner", data, tmp_path / "kept", *more, "--cache_dir", tmp_path / "cache")
    run("ner", data, tmp_path / "anew", *more, "--cache_gb", 0)
    assert list((tmp_path / "cache").glob("layers-*.f32"))
    assert len(losses(tmp_path / "kept")) == 3
    assert losses(tmp_path / "kept") == losses(tmp_path / "anew")
    kept, anew = (load_file(tmp_path / name / "model.safetensors") for name in ("kept", "anew"))
    for name, tensor in kept.items():
        torch.testing.assert_close(tensor, anew[name], atol=1e-6, rtol=0)


def test_layers_are_kept_once_and_not_beyond_the_limit(bilm, tmp_path, capsys):
    model = ElmoForTokenClassification.from_pretrained(bilm, num_labels=2)
    tokenizer = ElmoTokenizer()
    sequences = [(["a", "bank"],), (["the", "river", "bank"],), ([],), (["a", "bank"],)]
    store = LayerStore.make(sequences, model, tokenizer, tmp_path, limit=1)
    inputs = encode(sequences, tokenizer)
    with torch.no_grad():
        expected = model.bilm_layers(inputs["char_ids"], inputs["attention_mask"])
    for number, sequence in enumerate(sequences):
        length = len(sequence[0]) + 2
        torch.testing.assert_close(torch.tensor(store.layers(sequence)[0]), expected[number, :length])
    (file,) = tmp_path.iterdir()
    assert len(store.values) == 4 + 5 + 2  # a text that occurs twice is kept once
    before = file.stat().st_ino
    LayerStore.make(sequences, model, tokenizer, tmp_path, limit=1)
    assert [path.stat().st_ino for path in tmp_path.iterdir()] == [before]
    assert LayerStore.make(sequences, model, tokenizer, tmp_path, limit=1e-9) is None
    assert "more than --cache_gb" in capsys.readouterr().out


def test_files_of_layers_make_room_for_others_and_killed_runs_leave_nothing_for_long(bilm, tmp_path):
    model = ElmoForTokenClassification.from_pretrained(bilm, num_labels=2)
    texts = [[([word],)] for word in "abcd"]
    first, second = (LayerStore.make(text, model, ElmoTokenizer(), tmp_path, limit=1) for text in texts[:2])
    os.utime(first.path, (1, 1))
    LayerStore.make(texts[0], model, ElmoTokenizer(), tmp_path, limit=1)  # so that the other one is older
    os.utime(second.path, (2, 2))
    (tmp_path / ".layers-killed.f32.1.tmp").touch()
    os.utime(tmp_path / ".layers-killed.f32.1.tmp", (1, 1))
    limit = 2.5 * first.values.nbytes / GIGABYTE
    third = LayerStore.make(texts[2], model, ElmoTokenizer(), tmp_path, limit)
    assert set(tmp_path.iterdir()) == {first.path, third.path}
    fourth = LayerStore.make(texts[3], model, ElmoTokenizer(), tmp_path, limit / 2, in_use=[first.path])
    assert set(tmp_path.iterdir()) == {first.path, fourth.path}


def test_layers_are_those_of_a_models_weights_and_of_what_it_does_with_them(bilm, tmp_path):
    for clip in (3.0, 0.1):
        model = ElmoForTokenClassification.from_pretrained(bilm, num_labels=2, cell_clip=clip)
        LayerStore.make([(["a", "bank"],)], model, ElmoTokenizer(), tmp_path, limit=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_kept_layers_of_a_pair_are_what_the_bilm_gives_for_the_pair(bilm, tmp_path):
    model = ElmoForTokenClassification.from_pretrained(bilm, num_labels=2).eval()
    tokenizer = ElmoTokenizer()
    pairs = Examples([(["a", "bank"], ["the", "river"]), (["the", "river"], ["lends"])], [0, 1])
    pairs.store = LayerStore.make(pairs.sequences, model, tokenizer, tmp_path, limit=1)
    batch = Collator(tokenizer, finetune.TASKS["nli"].targets)([pairs[0], pairs[1]])
    kept = batch.pop("bilm_layers")
    del batch["labels"]
    with torch.no_grad():
        torch.testing.assert_close(kept, model.bilm_layers(**batch))


def test_batches_have_labels_at_their_words_and_choices_side_by_side():
    tokenizer = ElmoTokenizer()
    tagged = Examples([(["a", "b"],), (["c"],)], [[1, 2], [0]])
    batch = Collator(tokenizer, finetune.TASKS["pos"].targets)([tagged[0], tagged[1]])
    assert batch["labels"].tolist() == [[-100, 1, 2, -100], [-100, 0, -100, -100]]
    choices = Examples([(["a"], ["b"]), (["a"], ["c", "d"])] * 2, [1, 0], per_example=[2, 2])
    batch = Collator(tokenizer, finetune.TASKS["choice"].targets)([choices[0], choices[1]])
    assert batch["char_ids"].shape == (2, 2, 7, 50)
    assert batch["labels"].tolist() == [1, 0]
    assert choices.lengths() == [7, 7]


@pytest.mark.parametrize(
    ("task", "sampling"),
    [("ner", "random"), ("ner", "group_by_length"), ("squad", "random"), ("srl", "random"), ("coref", "random")],
)
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(task, sampling, bilm, vectors, tmp_path):
    data = write_task(task, tmp_path)
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--save_steps", 1, "--save_strategy", "steps"]
    more += ["--eval_strategy", "no", "--load_best_model_at_end", "false", "--per_device_train_batch_size", 2]
    more += ["--elmo_placement", "both", "--save_total_limit", 50, "--train_sampling_strategy", sampling]
    run(task, data, tmp_path / "whole", *more)
    (tmp_path / "resumed").mkdir()
    os.rename(tmp_path / "whole" / "checkpoint-5", tmp_path / "resumed" / "checkpoint-5")
    run(task, data, tmp_path / "resumed", *more, "--resume_from_checkpoint", "last")
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


@pytest.mark.parametrize("stops", [(3, 13), (8,)])  # in the middle of epochs of 8 steps, or at the end of one
def test_a_run_that_is_told_to_stop_keeps_that_step_and_goes_on_to_the_same_weights(
    stops, bilm, vectors, tmp_path, monkeypatch
):
    data = write_ner(tmp_path / "data")
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--per_device_train_batch_size", 2]
    more += ["--save_total_limit", 1, "--num_train_epochs", 3]  # the best epoch's checkpoint is the recipe's to keep
    run("ner", data, tmp_path / "whole", *more)
    steps = json.loads((tmp_path / "whole" / "trainer_state.json").read_text())["max_steps"]
    whole = trainer.StopOnSignal.on_step_end
    for number, stop in enumerate(stops):
        resume = ["--resume_from_checkpoint", "last"] if number else []

        def on_step_end(self, args, state, control, stop=stop, **kwargs):
            if state.global_step == stop:
                self.signal = signal.SIGINT
            return whole(self, args, state, control, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(trainer.StopOnSignal, "on_step_end", on_step_end)
            assert finetune.finetune(arguments("ner", data, tmp_path / "stopped", *more, *resume)) is None
        assert (tmp_path / "stopped" / f"checkpoint-{stop}").is_dir()
    run("ner", data, tmp_path / "stopped", *more, "--resume_from_checkpoint", "last")
    assert steps > max(stops)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_a_signal_saves_and_the_run_says_how_to_go_on(bilm, vectors, tmp_path):
    data, output = write_ner(tmp_path / "data"), tmp_path / "out"
    more = ["--elmo_placement", "none", "--word_vectors", vectors, "--num_train_epochs", 4000, "--save_strategy", "no"]
    more += ["--load_best_model_at_end", "false", "--eval_strategy", "no", "--logging_steps", 1]
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, *arguments("ner", data, output, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "'loss'" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "resume with --resume_from_checkpoint last" in errors
    assert list(output.glob("checkpoint-*/model.safetensors"))


def test_a_folder_with_a_run_takes_no_other(vectors, tmp_path, capsys):
    data = write_ner(tmp_path / "data")
    more = ["--elmo_placement", "none", "--word_vectors", vectors, "--num_train_epochs", 1, "--save_total_limit", 1]
    run("ner", data, tmp_path / "out", *more)
    for kept in ("checkpoint-1", "all_results.json"):
        assert (tmp_path / "out" / kept).exists()
        assert finetune.main(arguments("ner", data, tmp_path / "out", *more)) == finetune.BAD_INPUT
        assert "has a run already: resume it with --resume_from_checkpoint last" in capsys.readouterr().err
        shutil.rmtree(tmp_path / "out" / "checkpoint-1", ignore_errors=True)


def test_layers_under_the_output_folder_go_with_the_end_of_the_run(bilm, vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune.Run, "_write_card", lambda run, _: made.extend((run.folder / "cache").iterdir()))
    made: list[Path] = []
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--num_train_epochs", 1]
    run("ner", write_ner(tmp_path / "data"), tmp_path / "out", *more)
    assert len(made) == 1  # the same sentences for training and validation
    assert not (tmp_path / "out" / "cache").exists()


def test_a_tagger_goes_on_in_its_own_tag_scheme(vectors, tmp_path, capsys):
    data = write_ner(tmp_path / "data")
    more = ["--elmo_placement", "none", "--num_train_epochs", 1]
    run("ner", data, tmp_path / "first", *more, "--word_vectors", vectors, "--tag_scheme", "BIOES")
    more += ["--model_name_or_path", tmp_path / "first"]
    assert finetune.main(arguments("ner", data, tmp_path / "second", *more)) == finetune.BAD_INPUT
    assert "has tag_scheme=BIOES, not BIO: a trained task model cannot change it" in capsys.readouterr().err


def test_a_task_model_splits_text_as_its_bilm_does(bilm, tmp_path):
    folder = shutil.copytree(bilm, tmp_path / "bilm")
    ElmoTokenizer(training_text="raw").save_pretrained(folder)
    task = finetune.TASKS["pos"]
    settings = finetune.TaskSettings("pos", model_name_or_path=str(folder))
    config, _ = finetune.read_config(task, settings)
    _, tokenizer = finetune.new_model(task, settings, config, ["A", "B"], Counter())
    assert tokenizer.training_text == "raw"


def test_phrases_of_a_data_set_are_refused(vectors, tmp_path, capsys):
    Dataset.from_list([{"text": "good", "label": "1"}] * 3).save_to_disk(tmp_path / "data")
    command = ["--task", "sst", "--dataset_name", tmp_path / "data", "--phrases", "true", "--elmo_placement", "none"]
    command += ["--word_vectors", vectors, "--output_dir", tmp_path / "out"]
    assert finetune.main([str(argument) for argument in command]) == finetune.BAD_INPUT
    assert "`phrases` needs trees" in capsys.readouterr().err


def test_two_processes_train_and_evaluate(bilm, vectors, tmp_path):
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--num_train_epochs", 1]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    command = arguments("ner", write_ner(tmp_path / "data"), tmp_path / "out", *more)
    done = subprocess.run(
        [*launcher, "--main_process_port", str(random.randint(20_000, 60_000)), "-m", MODULE, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "out" / "all_results.json").read_text())["eval_f1"] >= 0
    assert len((tmp_path / "out" / "predictions.tsv").read_text().split("\n\n")) == 16 + 1


def test_a_trained_bilm_has_a_learning_rate_of_its_own(bilm, vectors, tmp_path):
    data = write_ner(tmp_path / "data")
    more = ["--model_name_or_path", bilm, "--word_vectors", vectors, "--freeze_bilm", "false", "--num_train_epochs", 1]
    run("ner", data, tmp_path / "still", *more, "--bilm_learning_rate", 0)
    run("ner", data, tmp_path / "moved", *more)
    before = load_file(bilm / "model.safetensors")
    still, moved = (load_file(tmp_path / name / "model.safetensors") for name in ("still", "moved"))
    name = "forward_lm.layers.0.projection.weight"
    assert torch.equal(still[f"elmo.{name}"], before[name])
    assert not torch.equal(moved[f"elmo.{name}"], before[name])


def test_a_task_model_goes_on_with_its_labels_and_refuses_others(bilm, vectors, tmp_path):
    data = write_ner(tmp_path / "data")
    run("ner", data, tmp_path / "first", "--model_name_or_path", bilm, "--word_vectors", vectors)
    run("ner", data, tmp_path / "second", "--model_name_or_path", tmp_path / "first", "--num_train_epochs", 1)
    fewer = tmp_path / "fewer"
    fewer.write_text("Anna X X I-PER\nsings X X O\n")
    with pytest.raises(ElmoError, match="was trained for other labels: only one of model and data has B-LOC, I-LOC"):
        run("ner", fewer, tmp_path / "third", "--model_name_or_path", tmp_path / "first")


def test_a_task_model_goes_on_as_it_is_and_is_no_biLM_of_another_task(bilm, vectors, tmp_path):
    data, first = write_ner(tmp_path / "data"), tmp_path / "first"
    run("ner", data, first, "--model_name_or_path", bilm, "--word_vectors", vectors, "--num_train_epochs", 1)
    more = ["--model_name_or_path", first, "--num_train_epochs", 1]
    for change, message in (
        (["--elmo_placement", "none"], "has elmo_placement=both, not none: a trained task model cannot change it"),
        (["--head_overrides", *SMALL, "head_dim=20"], "has head_dim=12, not 20"),
    ):
        with pytest.raises(ElmoError, match=message):
            run("ner", data, tmp_path / "second", *more, *change)
    run("ner", data, tmp_path / "second", *more, "--freeze_bilm", "false", "--learning_rate", 0.01)
    before, after = (load_file(path / "model.safetensors") for path in (first, tmp_path / "second"))
    name = "elmo.forward_lm.layers.0.projection.weight"
    assert not torch.equal(before[name], after[name])
    (tmp_path / "trees").mkdir()
    with pytest.raises(ElmoError, match="is an ElmoForTokenClassification, of another task"):
        run("sst", write_task("sst", tmp_path / "trees"), tmp_path / "third", *more)


def test_examples_have_as_many_choices_as_the_first(vectors, tmp_path, capsys):
    rows = [{"context": "a", "choices": choices, "label": 0} for choices in (["b", "c"], ["b", "c", "d"])]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ["--elmo_placement", "none", "--word_vectors", vectors]
    command = arguments("choice", tmp_path / "data.jsonl", tmp_path / "out", *more)
    assert finetune.main(command) == finetune.BAD_INPUT
    assert "example 2 has 3 choices, the first 2" in capsys.readouterr().err


def test_early_stopping_goes_on_counting_where_it_was(vectors, tmp_path):
    data = write_ner(tmp_path / "data")
    more = ["--elmo_placement", "none", "--word_vectors", vectors, "--patience", 2, "--num_train_epochs", 8]
    more += ["--learning_rate", 0, "--save_total_limit", 9]  # nothing is learned: two epochs more, and it stops
    run("ner", data, tmp_path / "whole", *more)
    epochs = json.loads((tmp_path / "whole" / "trainer_state.json").read_text())["epoch"]
    assert epochs == 3
    (tmp_path / "resumed").mkdir()
    second = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))[1]
    os.rename(second, tmp_path / "resumed" / second.name)
    run("ner", data, tmp_path / "resumed", *more, "--resume_from_checkpoint", "last")
    assert json.loads((tmp_path / "resumed" / "trainer_state.json").read_text())["epoch"] == epochs


def test_a_part_of_the_examples_has_the_labels_of_all(vectors, tmp_path):
    data = tmp_path / "data"
    data.write_text("\n".join(f"word X X I-{kind}\n" for kind in ("PER", "LOC", "ORG", "MISC")))
    more = ["--elmo_placement", "none", "--word_vectors", vectors, "--train_fraction", 0.25, "--tag_scheme", "BIOES"]
    run("ner", data, tmp_path / "out", *more, "--num_train_epochs", 1)
    assert set(ElmoConfig.from_pretrained(tmp_path / "out").label2id) == {"S-PER", "S-LOC", "S-ORG", "S-MISC"}


def test_batches_of_like_length_are_others_in_every_epoch_and_the_same_in_every_run():
    lengths = [n % 7 + 1 for n in range(140)]

    def batches(epoch: int) -> list[list[int]]:
        sampler = trainer.LengthGrouped(4, lengths, seed=0)
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert sorted(order) == list(range(140))
        return [order[start : start + 4] for start in range(0, 140, 4)]

    assert batches(0) == batches(0) != batches(1)
    spread = [max(lengths[n] for n in batch) - min(lengths[n] for n in batch) for batch in batches(0)]
    assert sum(spread) / len(spread) < 1.5  # 3.9 in a random order


def test_evaluation_by_length_leaves_predictions_at_their_examples(vectors, tmp_path):
    sentences = [["Anna"], ["lives", "in", "Oslo", "."], ["Oslo", "."], ["in", "Rome", ".", "Boris", "lives"], ["."]]
    kinds = {"Anna": "I-PER", "Boris": "I-PER", "Oslo": "I-LOC", "Rome": "I-LOC"}
    data = tmp_path / "data"
    data.write_text(
        "\n\n".join("\n".join(f"{word} {kinds.get(word, 'O')}" for word in words) for words in sentences) + "\n"
    )
    more = ["--elmo_placement", "none", "--word_vectors", vectors, "--num_train_epochs", 60]
    more += ["--per_device_train_batch_size", 1, "--per_device_eval_batch_size", 2]
    assert run("ner", data, tmp_path / "out", *more)["eval_f1"] == 1.0
    lines = (tmp_path / "out" / "predictions.tsv").read_text().split("\n\n")[:-1]
    assert [[line.split("\t")[0] for line in sentence.split("\n")] for sentence in lines] == sentences
    assert all(line.split("\t")[1] == line.split("\t")[2] for sentence in lines for line in sentence.split("\n"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--elmo_placement", "middle"], "`elmo_placement` must be one of none, input, output, both, got 'middle'"),
        (["--elmo_placement", "both"], "ELMo needs a biLM: give --model_name_or_path"),
        (["--train_fraction", "0"], "`train_fraction` must be above 0"),
        (["--trian_file", "x"], "has no setting `--trian_file`; did you mean `--train_file`?"),
        (["--model_name_or_path", "no/such/folder"], "no/such/folder: there is no model"),
        (["--train_file", "missing.conll"], "missing.conll"),
        (["--validation_file", "missing.conll"], "missing.conll: no such file"),
        (["--validation_file", ""], "--validation_file missing: give it, or --validation_fraction 0.1"),
        (["--train_file", "", "--validation_file", ""], "give both files, or --dataset_name"),
        (["--word_vectors", "missing.txt"], "missing.txt"),
        (["--head_overrides", "head_dims=3"], "ElmoConfig does not know `head_dims`; did you mean `head_dim`?"),
        (["--head_overrides", "head_dim=0"], "`head_dim` must be at least 1"),
        (["--resume_from_checkpoint", "last"], "has no checkpoint to resume from"),
        (["--tag_scheme", "IOB7"], "`tag_scheme` must be one of BIO, BIOES, IOB1"),
        (["--output_dir", __file__], __file__),
        (["--output_dir", finetune.NO_OUTPUT_DIR], "give --output_dir"),
        (["--eval_strategy", "no"], "--load_best_model_at_end requires the save and eval strategy to match"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_bad_settings_are_one_clear_line(change, message, vectors, tmp_path, capsys):
    base = arguments("ner", write_ner(tmp_path / "data"), tmp_path / "out", "--elmo_placement", "none")
    assert finetune.main([*base, "--word_vectors", str(vectors), *change]) == finetune.BAD_INPUT
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Anna X X I-PER\nsings X X Q\n", "Q"),
        ("Anna X X B-PER\nsings X X I-LOC\nX X X E-PER\n", "line 2"),
        ("", "empty"),
        ("Anna\n", "line 1"),
    ],
)
def test_bad_data_is_one_clear_line_with_its_place(content, message, vectors, tmp_path, capsys):
    (tmp_path / "bad").write_text(content)
    more = ["--elmo_placement", "none", "--word_vectors", vectors]
    assert finetune.main(arguments("ner", tmp_path / "bad", tmp_path / "out", *more)) == finetune.BAD_INPUT
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_label_of_the_validation_data_that_training_lacks_is_named(vectors, tmp_path, capsys):
    data = write_ner(tmp_path / "data")
    (tmp_path / "other").write_text("Anna X X I-PER\nUNO X X I-ORG\n")
    more = ["--elmo_placement", "none", "--word_vectors", vectors, "--validation_file", tmp_path / "other"]
    assert finetune.main(arguments("ner", data, tmp_path / "out", *more)) == finetune.BAD_INPUT
    assert "the label 'B-ORG' is not one of the model's" in capsys.readouterr().err


def test_vectors_of_two_dimensions_are_named_by_line(vectors, tmp_path, capsys):
    (tmp_path / "vectors.txt").write_text("lives 1 2 3\nin 1 2\n")
    more = ["--elmo_placement", "none", "--word_vectors", tmp_path / "vectors.txt"]
    assert finetune.main(arguments("ner", write_ner(tmp_path / "data"), tmp_path / "out", *more)) == finetune.BAD_INPUT
    assert "line 2" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- comparing


def test_without_elmo_there_is_nothing_to_mix():
    found = compare.settings_to_run(["none", "both"], ["last", "0.001"], [0.1])
    assert [setting.name for setting in found] == ["none-0.1", "both-last-0.1", "both-0.001-0.1"]


def test_a_mean_mix_is_of_shares_without_the_scale():
    assert compare.mean_mix([{"input": [1.0, 3.0]}, {"input": [-0.5, -0.5]}]) == {"input": [0.375, 0.625]}
    assert compare.mean_mix([{}, {}]) == {}


def test_the_scales_of_the_runs_are_kept():
    assert compare.scales([{"input": [1.0, 3.0]}, {"input": [0.25, 0.25]}]) == {"input": [4.0, 0.5]}
    assert compare.scales([{}, {}]) == {}


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("--train_fraction 0.05", "--fractions"),
        ("--train-fraction=0.05", "--fractions"),
        ("--seed 3", "--seeds"),
        ("--elmo_placement input", "--placements"),
        ("--mix last", "--mixes"),
        ("--mix_l2 0.1", "--mixes"),
    ],
)
def test_what_a_comparison_sets_itself_is_refused_with_its_own_argument(given, instead, tmp_path, capsys):
    command = arguments("ner", tmp_path / "data", tmp_path / "compare", *given.split())
    assert compare.main(command) == finetune.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    name = given.replace("=", " ").split()[0]
    assert line == f"error: `{name}` is set by the comparison: give its values to {instead}"
    assert not (tmp_path / "compare").exists()


@pytest.mark.parametrize(
    ("recipe", "mixes", "fractions"),
    [("", ["0.1"], [1.0]), ("mix_l2: 0.02\ntrain_fraction: 0.5\n", ["0.02"], [0.5]), ("mix: last\n", ["last"], [1.0])],
)
def test_mix_and_part_of_the_data_are_the_recipes_unless_given(recipe, mixes, fractions, tmp_path):
    (tmp_path / "own.yaml").write_text(recipe or "{}")
    passed_on = [str(tmp_path / "own.yaml")] if recipe else []
    passed_on += ["--task", "ner", "--train_file", "x", "--validation_file", "x"]
    own = Namespace(output_dir=tmp_path, mixes=None, fractions=None)
    compare.fill_in(own, passed_on)
    assert (own.mixes, own.fractions) == (mixes, fractions)
    own = Namespace(output_dir=tmp_path, mixes=["1"], fractions=[0.25])
    compare.fill_in(own, passed_on)
    assert (own.mixes, own.fractions) == (["1"], [0.25])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--train_file", "x"], "--validation_file missing"),
        (["--validation_file", "x"], "--train_file missing"),
        ([], "--train_file and --validation_file missing"),
    ],
)
def test_the_argument_of_the_data_that_is_missing_is_named(given, message, tmp_path, capsys):
    command = ["--task", "ner", "--elmo_placement", "none", "--output_dir", str(tmp_path), *given]
    assert finetune.main(command) == finetune.BAD_INPUT
    assert f"error: {message}: give " in capsys.readouterr().err


def test_a_comparison_is_one_table_and_goes_on_where_it_stopped(bilm, vectors, tmp_path, capsys):
    data, output = write_ner(tmp_path / "data"), tmp_path / "compare"
    own = ["--placements", "none", "both", "--mixes", "0.001", "--fractions", "0.5", "1", "--seeds", "0", "1"]
    own += ["--test_file", str(data)]
    command = [*arguments("ner", data, output, "--model_name_or_path", bilm, "--word_vectors", vectors), *own]
    assert compare.main(command) == 0
    rows = json.loads((output / "comparison.json").read_text())
    assert [(row["model"], row["fraction"], row["seeds"]) for row in rows] == [
        ("without ELMo", 0.5, 2),
        ("ELMo at the input and output, λ = 0.001", 0.5, 2),
        ("without ELMo", 1.0, 2),
        ("ELMo at the input and output, λ = 0.001", 1.0, 2),
    ]
    assert [list(row["mix"]) for row in rows] == [[], ["input", "output"]] * 2
    assert all(sum(shares) == pytest.approx(1) for row in rows for shares in row["mix"].values())
    assert [list(row["gammas"]) for row in rows] == [[], ["input", "output"]] * 2
    assert all(len(gammas) == 2 for row in rows for gammas in row["gammas"].values())
    for row in rows:  # the same data serves for both
        assert row["test"]["scores"] == row["scores"]
    assert "| model | training data | f1, validation | f1, test |" in (output / "comparison.md").read_text()
    assert all(row["minutes"] > 0 for row in rows)
    assert (output / "comparison.md").read_text().count("\n") == 6
    assert (output / "comparison.png").stat().st_size > 1000
    assert not list(output.glob("*/checkpoint-*"))
    (output / "none-1-seed0" / "all_results.json").unlink()
    before = (output / "none-1-seed1" / "all_results.json").stat().st_mtime_ns
    assert compare.main(command) == 0
    scores = [row["scores"] for row in rows]
    assert [row["scores"] for row in json.loads((output / "comparison.json").read_text())] == scores
    assert (output / "none-1-seed1" / "all_results.json").stat().st_mtime_ns == before
    # A run that was killed before its evaluation is not finished.
    results = output / "none-1-seed0" / "all_results.json"
    results.write_text(json.dumps({"train_loss": 1.0}))
    assert compare.main(command) == 0
    assert [row["scores"] for row in json.loads((output / "comparison.json").read_text())] == scores
    assert compare.main([*command, "--learning_rate", "0.5"]) == finetune.BAD_INPUT
    assert "has runs of other settings" in capsys.readouterr().err


def test_a_comparison_may_begin_with_a_recipe(vectors, tmp_path):
    data = write_task("sst", tmp_path)
    more = ["--word_vectors", vectors, "--num_train_epochs", 1, "--placements", "none", "--seeds", "0"]
    assert compare.main(["sst-phrases", *arguments("sst", data, tmp_path / "compare", *more)]) == 0
    card = (tmp_path / "compare" / "none-1-seed0" / "README.md").read_text()
    assert "phrases: true" in card


def test_a_comparison_that_could_not_begin_leaves_its_folder_free(bilm, vectors, tmp_path, capsys):
    data, output = write_ner(tmp_path / "data"), tmp_path / "compare"
    more = ["--word_vectors", vectors, "--num_train_epochs", 1]
    own = ["--placements", "none", "--seeds", "0"]
    assert compare.main([*arguments("ner", tmp_path / "dat", output, *more), *own]) == finetune.BAD_INPUT
    assert compare.main([*arguments("ner", data, output, *more), *own]) == 0
    assert "other settings" not in capsys.readouterr().err


def test_one_file_and_the_name_of_the_task_are_enough(bilm, tmp_path, capsys):
    data = write_task("text-classification", tmp_path)
    base = ["text-classification", "--train_file", data, "--model", bilm, "--output_dir", tmp_path / "out"]
    base += ["--head_overrides", *SMALL, "--num_train_epochs", 1, "--disable_tqdm", "true"]
    for more, message in (
        ([], "--validation_file missing: give it, or --validation_fraction 0.1 of the --train_file"),
        (["--validation_fraction", 1], "`validation_fraction` must be from 0 to below 1"),
        (
            ["--validation_fraction", 0.25, "--validation_file", data],
            "`validation_fraction` is for a --train_file alone",
        ),
        (
            ["--validation_fraction", 0.25],
            "no column `text` or `sentence` or `sentence1` for `text`; the columns are review, stars",
        ),
    ):
        assert finetune.main([str(value) for value in (*base, *more)]) == finetune.BAD_INPUT
        assert message in capsys.readouterr().err
    more = ["--validation_fraction", 0.25, "--columns", "text=review", "label=stars"]
    assert finetune.main([str(value) for value in (*base, *more)]) == 0
    printed = capsys.readouterr().out
    assert "9 train, 3 validation examples" in printed
    assert f"Wrote {tmp_path / 'out'}: README.md" in printed
    assert len((tmp_path / "out" / "predictions.tsv").read_text().splitlines()) == 3


def test_a_model_that_has_learned_nothing_is_reported(capsys):
    for score in (0.0, 0.5):
        finetune.note_nothing_learned({"eval_f1": score, "eval_accuracy": 0.0}, "f1")
    assert capsys.readouterr().err == "note: f1 is 0: train longer, by --num_train_epochs and --patience\n"
