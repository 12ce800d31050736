"""What commands share: they start at once, find a model by its name, run the training scripts, and end in one line."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import File, HubServer, Repo
from typer.testing import CliRunner

import modeling_elmo
from modeling_elmo.cli import app
from modeling_elmo.files import INTERRUPTED, MINI_NAME
from modeling_elmo.loading import find_model, packaged_model

ROOT = Path(__file__).resolve().parents[1]
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# ---------------------------------------------------------------------------------------------------------- imports


def test_help_and_the_package_import_neither_torch_nor_transformers() -> None:
    code = """
import sys
from modeling_elmo import MINI
from modeling_elmo.cli import app
app(["--help"], standalone_mode=False)
assert not {"torch", "transformers", "numpy"} & set(sys.modules)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "import modeling_elmo; from transformers import AutoConfig, AutoModel, AutoTokenizer",
        "from transformers import AutoTokenizer, AutoModel, AutoConfig; import modeling_elmo",
        "from modeling_elmo import ElmoModel; from transformers import AutoConfig, AutoModel, AutoTokenizer",
    ],
)
def test_auto_classes_know_elmo_whichever_package_is_imported_first(imports: str) -> None:
    code = """
config = AutoConfig.from_pretrained(modeling_elmo.MINI)
models = AutoModel._model_mapping
assert type(config) in models
assert type(AutoModel.from_config(config)) is modeling_elmo.ElmoModel
assert models[type(config)] is modeling_elmo.ElmoModel
assert type(AutoTokenizer.from_pretrained(modeling_elmo.MINI)) is modeling_elmo.ElmoTokenizer
"""
    done = python("-c", f"{imports}\nimport modeling_elmo\n{code}")
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_listed_and_another_one_is_an_attribute_error() -> None:
    assert set(modeling_elmo.__all__) <= set(dir(modeling_elmo))
    assert all(getattr(modeling_elmo, name) is not None for name in modeling_elmo.__all__)
    with pytest.raises(AttributeError, match="ElmoForEverything"):
        _ = modeling_elmo.ElmoForEverything


# ----------------------------------------------------------------------------------------------------------- models


def test_commands_take_elmo_mini_by_default_and_by_name() -> None:
    by_default = run("substitutes", "He sat on the [bank] of the river .", "--count", 2)
    assert by_default.exit_code == 0
    by_name = run("substitutes", "He sat on the [bank] of the river .", "--count", 2, "--model", MINI_NAME)
    assert by_name.stdout == by_default.stdout


def test_a_folder_of_the_name_wins_over_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packaged_model(MINI_NAME) == modeling_elmo.MINI
    monkeypatch.chdir(tmp_path)
    (tmp_path / MINI_NAME).mkdir()
    assert find_model(MINI_NAME) == Path(MINI_NAME)
    assert packaged_model(MINI_NAME) == MINI_NAME


def test_a_name_on_the_hub_is_downloaded_without_what_no_model_needs(tmp_path: Path) -> None:
    with HubServer({}) as hub:
        hub.repos["user/name"] = repo = Repo("user/name", False)
        names = ("config.json", "vocab.txt", "run.log", "checkpoint-1/config.json")
        repo.commit("main", {name: File(b"{}", is_large=False) for name in names}, "files")
        code = "import os, modeling_elmo.loading as f; print(*sorted(os.listdir(f.find_model('user/name'))))"
        done = python("-c", code, **hub.environment(tmp_path))
    assert done.stdout == "config.json vocab.txt\n", done.stderr


def test_a_name_that_the_hub_does_not_give_is_one_line(tmp_path: Path) -> None:
    code = "import sys; from modeling_elmo.cli import app; app(sys.argv[1:])"
    done = python("-c", code, "score", "-", "--model", "user/name", **OFFLINE, HF_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: user/name: no such folder, and the Hub does not give it")
    assert done.stderr.count("\n") == 1


def test_a_model_that_is_not_there_is_told_from_a_folder_that_holds_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("no", "no such model; give elmo-mini, a folder, or a name"),
        ("empty", "not a model folder"),
    ):
        result = run("score", "-", "--model", tmp_path / name)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {tmp_path / name}: {message}")
    assert "no such model" in run("export", tmp_path / "no", tmp_path / "out").stderr


# ---------------------------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("pretrain", "elmo pretrain tiny --train_file"),
        ("finetune", "my-elmo --train_file eng.train \\\n        --validation_file"),
        ("compare", "eng.train \\\n        --validation_file"),
        ("evaluate", "elmo evaluate perplexity --model my-elmo"),
        ("upload", "elmo upload my-elmo user/my-elmo"),
        ("demo", "a word's nearest uses share its sense"),
    ],
)
def test_a_script_shows_its_help_under_the_name_of_the_command(command: str, example: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"usage: elmo {command} ")
    assert example in result.stdout


def test_help_shows_own_settings_and_help_all_those_of_the_trainer() -> None:
    own, whole = run("finetune", "--help").stdout, run("finetune", "--task", "ner", "--help-all").stdout
    assert "--word_vectors" in own
    assert "--help-all lists them" in own
    assert "--per_device_train_batch_size" not in own
    assert "--per_device_train_batch_size" in whole
    assert own.count("\n") < 150


def test_help_all_of_a_comparison_shows_what_it_passes_on_too() -> None:
    own, whole = run("compare", "--help").stdout, run("compare", "--help-all").stdout
    assert "--placements" in own
    assert "--help-all lists" in own
    assert "--per_device_train_batch_size" not in own
    assert all(name in whole for name in ("--placements", "--word_vectors", "--per_device_train_batch_size"))


def test_a_switch_that_turns_a_setting_off_is_explained_as_that() -> None:
    shown = " ".join(run("pretrain", "--help").stdout.split())
    assert "--no_shuffle, --no-shuffle Set `shuffle` to false. --workers" in shown


def test_a_script_gets_its_arguments_as_they_are_and_its_error_is_the_commands() -> None:
    result = run("pretrain", "tiny", "--train_flie", "x", "--output_dir", "y")
    assert result.exit_code == 2
    assert result.stderr == "error: elmo pretrain has no setting `--train_flie`; did you mean `--train_file`?\n"


def test_without_what_training_needs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "training.pretrain", raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    result = run("pretrain", "--help")
    assert result.exit_code == 2
    assert result.stderr == "error: accelerate is not installed: pip install 'modeling-elmo[train]'\n"


def test_the_demo_shows_its_help() -> None:
    done = python("-m", "training.demo", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: training.demo")


# -------------------------------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "modeling_elmo.cli", "score", "-"],
        ["-m", "modeling_elmo.cli", "pretrain", "tiny"],
        ["-m", "training.pretrain", "tiny"],
        ["-m", "training.finetune"],
        ["hub_upload.py", "folder", "user/name"],
    ],
    ids=" ".join,
)
def test_ctrl_c_during_the_start_is_one_line(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt\n")
    done = python(*command, PYTHONPATH=str(tmp_path))
    assert done.returncode == INTERRUPTED
    assert done.stderr.startswith("interrupted: ")
    assert done.stderr.count("\n") == 1


# ------------------------------------------------------------------------------------------------------- numba's cache


def test_compiled_code_is_kept_outside_of_the_package_and_others_choose_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numba = pytest.importorskip("numba")
    from modeling_elmo import kernel_elmo

    before = numba.config.CACHE_DIR
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(importlib.reload(kernel_elmo).read_sentence.stats.cache_path).is_relative_to(tmp_path / "numba")
    assert numba.config.CACHE_DIR == ""
    (tmp_path / "file").touch()  # in which no folder can be made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert importlib.reload(kernel_elmo).read_sentence.stats.cache_path
    monkeypatch.undo()
    importlib.reload(kernel_elmo)
    assert before == numba.config.CACHE_DIR
