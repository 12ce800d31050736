"""Damaged and hostile files end in one line that names them, before memory or time is taken up."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForTokenClassification

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.convert_elmo import convert_checkpoint, export_checkpoint
from modeling_elmo.files import ElmoError, check_space, read_json, write_text
from modeling_elmo.loading import load_folder

SIZES = {"char_embedding_dim": 4, "char_filters": [[1, 4], [2, 4]], "num_highway_layers": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = ElmoTokenizer(vocab=["a", "b"])
    ElmoForPreTraining(ElmoConfig(**SIZES, projection_dim=4, cell_dim=6, vocab_size=6)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def changed(model: Path, target: Path, file: str = "config.json", **values: Any) -> Path:
    """Copy a folder with other values in one of its files."""
    folder = Path(shutil.copytree(model, target))
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **values}))
    return folder


def assert_refused_in_one_line(folder: Path, message: str, auto_class: Any = AutoModel) -> None:
    with pytest.raises(ElmoError) as caught:
        load_folder(folder, auto_class)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


# ---------------------------------------------------------------------------------------------------- model folders


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 100_000}, "`num_hidden_layers` must be at most 1,000, got 100000"),
        ({"num_highway_layers": 100_000}, "`num_highway_layers` must be at most 1,000, got 100000"),
        ({"char_filters": [[1, 1]] * 100_000}, "`char_filters` must hold at most 1,000 pairs"),
        ({"num_hidden_layers": 900, "cell_dim": 9000}, "parameters, but the weights have"),
        ({"cell_dim": 900_000}, "parameters, but the weights have"),
        ({"cell_dim": 10**4000}, "`cell_dim` must be at most 1,000,000, got 1000"),
        ({"cell_dim": 7}, "mismatched weights, such as "),
        ({"num_labels": 10**9}, "`num_labels` must be from 0 to 1,000,000, got 1000000000"),
        ({"id2label": 5}, "`id2label` must be an object, got 5"),
        ({"auto_map": 5}, "`auto_map` must be an object, got 5"),
        ({"architectures": ["ElmoModel"], "dtype": "int3"}, "cannot load the model"),
        ({"max_characters_per_token": 40}, "`max_characters_per_token` is 40 in config.json, 50 in the tokenizer's"),
    ],
)
def test_a_config_that_its_weights_disprove_is_refused(
    values: dict, message: str, model: Path, tmp_path: Path
) -> None:
    assert_refused_in_one_line(changed(model, tmp_path / "model", **values), message)


def test_a_head_larger_than_its_weights_is_refused(model: Path, tmp_path: Path) -> None:
    words = changed(model, tmp_path / "words", vocab_size=10**9)
    assert_refused_in_one_line(words, "parameters, but the weights have", AutoModelForPreTraining)
    labels = changed(model, tmp_path / "labels", num_labels=10**6)
    assert_refused_in_one_line(labels, "parameters, but the weights have", AutoModelForTokenClassification)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer_class": "BertTokenizer"}, "asks for a BertTokenizer; the model needs an ElmoTokenizer"),
        ({"max_characters_per_token": 30}, "`max_characters_per_token` is 50 in config.json, 30 in the tokenizer's"),
        ({"auto_map": 5}, "cannot load the model"),
    ],
)
def test_a_tokenizer_that_is_not_the_models_is_refused(
    values: dict, message: str, model: Path, tmp_path: Path
) -> None:
    folder = changed(model, tmp_path / "model", "tokenizer_config.json", **values)
    assert_refused_in_one_line(folder, message)


def test_a_config_that_is_no_regular_file_is_refused(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / "config.json").unlink()
    with pytest.raises(OSError, match=r"config\.json is missing"):
        ElmoConfig.from_pretrained(folder)
    os.mkfifo(folder / "config.json")
    assert_refused_in_one_line(folder, "config.json is missing")
    with pytest.raises(ElmoError, match="not a regular file"):
        read_json("/dev/zero")


def test_room_is_checked_before_it_is_used(tmp_path: Path) -> None:
    check_space(tmp_path / "small", 1000)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ElmoError, match=r"large: cannot write [\d,.]+ MB: "):
        check_space(tmp_path / "large", 10**18)


# ------------------------------------------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("chunks", [None, (1000, 24)])
def test_an_hdf5_dataset_that_claims_more_than_is_stored_is_refused(
    chunks: tuple[int, int] | None, model: Path, tmp_path: Path
) -> None:
    export_checkpoint(model, tmp_path / "out")
    options = json.loads((tmp_path / "out" / "options.json").read_text())
    options["lstm"]["dim"] = 60_000
    (tmp_path / "out" / "options.json").write_text(json.dumps(options))
    name = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"
    with h5py.File(tmp_path / "out" / "weights.hdf5", "a") as file:
        del file[name]
        shape = (8, 240_000) if chunks is None else (8, 24)
        maximal = None if chunks is None else (None, 24)
        big = file.create_dataset(
            name, shape, "f4", compression="gzip", chunks=chunks and (10**6, 24), maxshape=maximal
        )
        big[:1] = np.zeros((1, shape[1]), "f4")
    with pytest.raises(ElmoError, match=rf"`{name}` would have [\d,]+ bytes, but only [\d,]+ are stored"):
        convert_checkpoint(tmp_path / "out" / "options.json", tmp_path / "out" / "weights.hdf5", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_report_takes_any_text_that_json_can_hold(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", json.loads('"\\ud800 or \\u00fc"'))
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == "\\ud800 or ü"
