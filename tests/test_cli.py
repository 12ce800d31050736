"""The `elmo` command: what it prints, and one line, exit code 2 and nothing left behind over bad input."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoModel, ElmoTokenizer, __version__
from modeling_elmo.cli import app
from modeling_elmo.convert_elmo import export_checkpoint

BAD_INPUT = 2


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of two layers and two filters, as a folder `model` and in the original format, `checkpoint`."""
    folder = tmp_path_factory.mktemp("originals")
    config = ElmoConfig(
        char_embedding_dim=2, char_filters=[[1, 3], [2, 4]], num_highway_layers=1, projection_dim=5, cell_dim=6
    )
    ElmoModel(config).save_pretrained(folder / "model")
    export_checkpoint(folder / "model", folder / "checkpoint")
    return folder


@pytest.fixture
def model(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "model", tmp_path / "model"))


@pytest.fixture
def checkpoint(originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / "checkpoint", tmp_path / "checkpoint"))


def convert(checkpoint: Path, output: Path, *more: object) -> Any:
    return run("convert", checkpoint / "options.json", checkpoint / "weights.hdf5", output, *more)


def assert_refused(result: Any, *named: object) -> None:
    """One line on stderr that names everything in `named`."""
    assert result.exit_code == BAD_INPUT
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for name in named:
        assert str(name) in result.stderr


# ----------------------------------------------------------------------------------------------------- what it prints


def test_version_is_the_packages() -> None:
    assert run("--version").stdout == f"modeling-elmo {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["convert", "--help"], ["export", "--help"]])
def test_help_shows_a_command_to_copy(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert "  elmo " in result.stdout


def test_convert_says_where_the_result_is_and_lines_that_run(checkpoint: Path, tmp_path: Path) -> None:
    result = convert(checkpoint, tmp_path / "converted")
    assert result.exit_code == 0
    assert result.stderr == ""
    written, lines = result.stdout.split("\n\nNext, in Python:\n")
    assert written == f"Wrote {tmp_path / 'converted'}"
    scope: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in lines.splitlines()).replace(", trust_remote_code=True", ""), scope)
    assert isinstance(scope["model"], ElmoModel)
    assert isinstance(scope["tokenizer"], ElmoTokenizer)


def test_export_says_where_the_result_is_and_the_way_back(model: Path, tmp_path: Path) -> None:
    result = run("export", model, tmp_path / "it is exported")
    assert result.exit_code == 0
    assert result.stderr == ""
    written, command = result.stdout.split("\n\nThe way back:\n")
    assert written == f"Wrote {tmp_path / 'it is exported'}"
    assert run(*shlex.split(command.replace("OUT_DIR", str(tmp_path / "back")))[1:]).exit_code == 0
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_vocab_gives_the_tokenizer_its_words(checkpoint: Path, tmp_path: Path) -> None:
    vocab = tmp_path / "words.txt"
    vocab.write_text("<S>\n</S>\n<UNK>\nthe\n")
    assert convert(checkpoint, tmp_path / "converted", "--vocab", vocab).exit_code == 0
    assert ElmoTokenizer.from_pretrained(tmp_path / "converted").convert_tokens_to_ids("the") == 4


# ------------------------------------------------------------------------------------------------------------ damage


class Damage(NamedTuple):
    """One way to break a checkpoint, the file to blame and the key to name."""

    inflict: Callable[[Path], object]
    file: str
    key: str = ""


def option(key: str, *value: Any) -> Callable[[Path], None]:
    """Sets an option, or removes it where there is no value."""

    def inflict(folder: Path) -> None:
        path = folder / "options.json"
        options = json.loads(path.read_text())
        *parents, last = key.split(".")
        inner = options
        for parent in parents:
            inner = inner[parent]
        if value:
            inner[last] = value[0]
        else:
            del inner[last]
        path.write_text(json.dumps(options))

    return inflict


def dataset(name: str, replace: Callable[[np.ndarray], Any] | None = None) -> Callable[[Path], None]:
    """Replaces a dataset by what `replace` makes of it, or removes it."""

    def inflict(folder: Path) -> None:
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            values = file.pop(name)[...]
            if replace is not None:
                file[name] = replace(values)

    return inflict


def add_dataset(name: str) -> Callable[[Path], None]:
    def inflict(folder: Path) -> None:
        with h5py.File(folder / "weights.hdf5", "r+") as file:
            file[name] = np.zeros(3, dtype=np.float32)

    return inflict


def cut(fraction: float) -> Callable[[Path], None]:
    def inflict(folder: Path) -> None:
        path = folder / "weights.hdf5"
        content = path.read_bytes()
        path.write_bytes(content[: int(fraction * len(content))])

    return inflict


def content(name: str, new: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(new)


def swap(folder: Path) -> None:
    options, weights = folder / "options.json", folder / "weights.hdf5"
    first, second = options.read_bytes(), weights.read_bytes()
    options.write_bytes(second)
    weights.write_bytes(first)


def folder_for_options(folder: Path) -> None:
    (folder / "options.json").unlink()
    (folder / "options.json").mkdir()


def dataset_for_a_group(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        del file["CNN_proj"]
        file["CNN_proj"] = np.zeros(3, dtype=np.float32)


def with_nan(values: np.ndarray) -> np.ndarray:
    values.flat[-1] = np.nan
    return values


CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
REQUIRED = [
    "lstm",
    "lstm.dim",
    "lstm.projection_dim",
    "char_cnn",
    "char_cnn.embedding",
    "char_cnn.embedding.dim",
    "char_cnn.filters",
    "char_cnn.activation",
    "char_cnn.max_characters_per_token",
]
WRONG_VALUES: dict[str, list[Any]] = {
    "lstm": [3, [], "lstm"],
    "lstm.dim": ["6", 6.0, 0, -1, True, [6]],
    "lstm.n_layers": ["2", 0, 1.5],
    "lstm.cell_clip": ["3", 0, -3, float("inf"), True],
    "lstm.use_skip_connections": ["true", 1],
    "char_cnn.embedding": [2],
    "char_cnn.filters": [[], "1:3", [1, 3], [[1, 3, 5]], [["1", "3"]], [[1, 0]], [[51, 3]], {"1": 3}],
    "char_cnn.activation": ["gelu", "", 3],
    "char_cnn.max_characters_per_token": [2, "50"],
    "char_cnn.n_characters": [260, 263, "262"],
    "char_cnn.n_highway": [-1, 1.5, "1"],
    "bidirectional": [False, "yes"],
    "dropout": [1, -0.1, "0.1"],
}
DAMAGES = {
    **{f"without {key}": Damage(option(key), "options.json", f"`{key}") for key in REQUIRED},
    **{
        f"{key} {value}": Damage(option(key, value), "options.json", f"`{key}")
        for key, values in WRONG_VALUES.items()
        for value in values
    },
    "unknown activation": Damage(option("char_cnn.activation", "gelu"), "options.json", "one of ('relu', 'tanh')"),
    "options not JSON": Damage(content("options.json", b'{"lstm": '), "options.json", "JSON"),
    "options not text": Damage(content("options.json", b"\xff\xfe\x00"), "options.json", "JSON"),
    "options nested without end": Damage(content("options.json", b"[" * 100_000), "options.json", "JSON"),
    "options not an object": Damage(content("options.json", b"[]"), "options.json", "object"),
    "options empty": Damage(content("options.json", b""), "options.json", "JSON"),
    "options missing": Damage(lambda folder: (folder / "options.json").unlink(), "options.json", "No such file"),
    "options a folder": Damage(folder_for_options, "options.json", "not a file"),
    "options and weights swapped": Damage(swap, "options.json", "JSON"),
    "weights missing": Damage(lambda folder: (folder / "weights.hdf5").unlink(), "weights.hdf5", "No such file"),
    "weights not HDF5": Damage(content("weights.hdf5", b"PK\x03\x04" * 1000), "weights.hdf5", "HDF5"),
    **{f"weights cut at {part}": Damage(cut(part), "weights.hdf5", "HDF5") for part in (0, 0.01, 0.3, 0.7, 0.999)},
    "dataset missing": Damage(dataset(f"{CELL}/B"), "weights.hdf5", f"`{CELL}/B`"),
    "dataset left over": Damage(add_dataset("softmax/W"), "weights.hdf5", "'softmax/W'"),
    "dataset with a newline left over": Damage(add_dataset("a\nb"), "weights.hdf5", r"'a\nb'"),
    "group for a dataset": Damage(add_dataset("CNN/W_cnn_2/x"), "weights.hdf5", "'CNN/W_cnn_2/x'"),
    "dataset for a group": Damage(dataset_for_a_group, "weights.hdf5", "`CNN_proj/W_proj`"),
    "one layer too many": Damage(option("lstm.n_layers", 1), "weights.hdf5", "Cell1"),
    "one layer too few": Damage(option("lstm.n_layers", 3), "weights.hdf5", "Cell2"),
    "absurdly many layers": Damage(option("lstm.n_layers", 10**15), "options.json", "at most 1,000"),
    "absurdly large": Damage(option("lstm.dim", 10**15), "options.json", "at most 1,000,000"),
    "other cells": Damage(option("lstm.dim", 7), "weights.hdf5", "(10, 28)"),
    "other projection": Damage(option("lstm.projection_dim", 4), "weights.hdf5", "`CNN_proj/W_proj`"),
    "other filters": Damage(option("char_cnn.filters", [[1, 3], [3, 4]]), "weights.hdf5", "`CNN/W_cnn_1`"),
    "other number of characters": Damage(
        dataset("char_embed", lambda values: values[:-1]), "weights.hdf5", "`char_embed`"
    ),
    "transposed": Damage(dataset("CNN_proj/W_proj", lambda values: values.T), "weights.hdf5", "(5, 7)"),
    "scalar": Damage(dataset(f"{CELL}/B", lambda values: values[0]), "weights.hdf5", f"`{CELL}/B`"),
    "without a shape": Damage(dataset(f"{CELL}/B", lambda values: h5py.Empty("f")), "weights.hdf5", f"`{CELL}/B`"),
    "integers": Damage(dataset(f"{CELL}/B", lambda values: values.astype(int)), "weights.hdf5", f"`{CELL}/B`"),
    "not a number": Damage(dataset(f"{CELL}/W_P_0", with_nan), "weights.hdf5", f"`{CELL}/W_P_0`"),
    "infinite in float32": Damage(
        dataset(f"{CELL}/B", lambda values: values.astype(float) + 1e300), "weights.hdf5", f"`{CELL}/B`"
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_broken_checkpoint_is_refused_in_one_line_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, damage: Damage
) -> None:
    damage.inflict(checkpoint)
    before = set(tmp_path.iterdir())
    assert_refused(convert(checkpoint, tmp_path / "a" / "converted"), checkpoint / damage.file, damage.key)
    assert set(tmp_path.iterdir()) == before


def test_a_dataset_that_was_never_written_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with h5py.File(checkpoint / "weights.hdf5", "r+") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", (261, 2), np.float32)
    assert_refused(convert(checkpoint, tmp_path / "converted"), checkpoint / "weights.hdf5", "`char_embed`")


@pytest.mark.parametrize("words", ["<S>\nthe\nthe\n", "<S>\n\nthe\n", "caf\udce9\n", None])
def test_a_broken_vocabulary_is_refused_in_one_line(checkpoint: Path, tmp_path: Path, words: str | None) -> None:
    vocab = tmp_path / "words.txt"
    if words is not None:
        vocab.write_text(words, encoding="utf-8", errors="surrogateescape")
    assert_refused(convert(checkpoint, tmp_path / "converted", "--vocab", vocab), vocab)
    assert not (tmp_path / "converted").exists()


def damage_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def config_value(key: str, value: Any) -> Callable[[Path], None]:
    def inflict(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return inflict


BIAS = "backward_lm.layers.1.input_gates.bias"
MODEL_DAMAGES = {
    "no config": Damage(lambda folder: (folder / "config.json").unlink(), "", "config.json"),
    "config not JSON": Damage(content("config.json", b"{"), "config.json"),
    "another model": Damage(config_value("model_type", "bert"), "", "'bert'"),
    "impossible size": Damage(config_value("cell_dim", 0), "config.json", "`cell_dim`"),
    "other characters": Damage(config_value("char_vocab_size", 300), "config.json", "`char_vocab_size`"),
    "other sizes": Damage(config_value("cell_dim", 7), "", "mismatched weights"),
    "no weights": Damage(lambda folder: (folder / "model.safetensors").unlink(), "", "model.safetensors"),
    "weights cut": Damage(content("model.safetensors", b"\x10" * 100), "", "cannot load the model"),
    "weight missing": Damage(lambda folder: damage_weights(folder, lambda tensors: tensors.pop(BIAS)), "", BIAS),
    "not a number": Damage(
        lambda folder: damage_weights(folder, lambda tensors: tensors[BIAS].fill_(torch.nan)), "", f"`{BIAS}`"
    ),
}


@pytest.mark.parametrize("damage", MODEL_DAMAGES.values(), ids=MODEL_DAMAGES.keys())
def test_a_broken_model_is_refused_in_one_line_and_leaves_nothing(model: Path, tmp_path: Path, damage: Damage) -> None:
    damage.inflict(model)
    assert_refused(run("export", model, tmp_path / "a" / "exported"), model / damage.file, damage.key)
    assert list(tmp_path.iterdir()) == [model]


# ---------------------------------------------------------------------------------------------------- output folders


def test_an_output_folder_in_use_is_refused_and_stays_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "config.json").write_text("mine")
    assert_refused(convert(checkpoint, tmp_path / "used"), tmp_path / "used", "not empty")
    assert [(path.name, path.read_text()) for path in (tmp_path / "used").iterdir()] == [("config.json", "mine")]


def test_overwrite_replaces_an_earlier_result(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    assert convert(checkpoint, model, "--overwrite").exit_code == 0
    assert (model / "README.md").is_file()
    assert run("export", model, checkpoint, "--overwrite").exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"model", "checkpoint"}


def test_overwrite_does_not_replace_a_folder_that_is_no_earlier_result(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    assert_refused(convert(checkpoint, tmp_path / "home", "--overwrite"), tmp_path / "home")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"


def test_overwrite_does_not_replace_the_folder_it_reads(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "config.json").write_text("{}")
    assert_refused(convert(checkpoint, checkpoint, "--overwrite"), checkpoint / "options.json")
    (model / "options.json").write_text("{}")
    assert_refused(run("export", model, model, "--overwrite"), model)


def test_an_empty_folder_is_filled_and_a_file_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert convert(checkpoint, tmp_path / "empty").exit_code == 0
    (tmp_path / "file").write_text("mine")
    assert_refused(convert(checkpoint, tmp_path / "file", "--overwrite"), tmp_path / "file")
    assert_refused(convert(checkpoint, tmp_path / "file" / "below"), tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_without_h5py_the_error_says_what_to_install(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "modeling_elmo.convert_elmo")
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert_refused(convert(checkpoint, tmp_path / "converted"), "modeling-elmo[convert]")
