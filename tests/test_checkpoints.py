"""Checkpoints that are damaged, and outputs that another process writes: one line, and nothing lost."""

import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import kills
import pytest
import torch
from accelerate.state import AcceleratorState

from modeling_elmo.files import ElmoError
from modeling_elmo.locks import one_writer
from training import checkpoints, compare
from training.checkpoints import DIGESTS_FILE, sorted_checkpoints, write_digests

ran: list[str] = []


class Hostile:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return ran.append, ("a pickle",)


@pytest.fixture(autouse=True)
def _runs_share_nothing() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> kills.Inputs:
    made = kills.Inputs(tmp_path_factory.mktemp("checkpoints") / "inputs")
    made.make_models()
    return made


@pytest.fixture(scope="module", params=["pretrain", "finetune"])
def trained(request: pytest.FixtureRequest, inputs: kills.Inputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, in a folder of the command's name."""
    AcceleratorState._reset_state(reset_partial_state=True)
    folder = tmp_path_factory.mktemp("trained") / request.param
    folder.mkdir()
    getattr(inputs, request.param)(folder, "--save_total_limit", 2)
    assert len(sorted_checkpoints(folder / "out")) == 2
    return folder


def cut(file: Path, other: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path, other: Path) -> None:
    content = bytearray(file.read_bytes())
    content[random.Random(0).randrange(len(content))] ^= 1
    file.write_bytes(content)


def empty(file: Path, other: Path) -> None:
    file.write_bytes(b"")


def leave_out(file: Path, other: Path) -> None:
    file.unlink()


def swap(file: Path, other: Path) -> None:
    shutil.copyfile(other / file.name, file)


def refused(inputs: kills.Inputs, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Resume from the last checkpoint, see that this is refused, and return the error."""
    capsys.readouterr()
    more = ["--num_train_epochs", 3] if folder.name == "finetune" else []
    with pytest.raises(AssertionError, match="exit code 2"):
        getattr(inputs, folder.name)(folder, *more)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    return line.removeprefix("error: ")


@pytest.mark.parametrize("damage", [cut, flip, empty, leave_out, swap])
def test_a_damaged_file_of_a_checkpoint_is_named_and_the_checkpoint_before_is_offered(
    damage: Callable[[Path, Path], None], trained: Path
) -> None:
    before, last = sorted_checkpoints(trained / "out")
    for file in sorted(last.iterdir()):
        whole = file.read_bytes()
        is_same = damage is swap and whole == (before / file.name).read_bytes()
        damage(file, before)
        if is_same:
            checkpoints.check_digests(last)
        else:
            with pytest.raises(ElmoError) as caught:
                checkpoints.check_digests(last)
            message = str(caught.value)
            assert len(message.splitlines()) == 1
            if file.name != DIGESTS_FILE:
                assert message.startswith(f"{file}: ")
            assert message.endswith(f"resume from the checkpoint before with --resume_from_checkpoint {before}")
        file.write_bytes(whole)


def test_a_damaged_checkpoint_ends_the_command_in_one_line(
    inputs: kills.Inputs, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / trained.name))
    before, last = sorted_checkpoints(folder / "out")
    cut(last / "model.safetensors", before)
    assert refused(inputs, folder, capsys).startswith(f"{last}/model.safetensors: is damaged")
    getattr(inputs, folder.name)(folder, "--resume_from_checkpoint", before)
    for checkpoint in sorted_checkpoints(folder / "out"):  # the best one, or the last
        checkpoints.check_digests(checkpoint)


@pytest.mark.parametrize("trained", ["pretrain"], indirect=True)
def test_a_later_checkpoint_does_not_displace_the_one_just_written(
    inputs: kills.Inputs, trained: Path, tmp_path: Path
) -> None:
    """Which is later if the run resumed before its last, since that is damaged."""
    folder = Path(shutil.copytree(trained, tmp_path / trained.name))
    before = sorted_checkpoints(folder / "out")[0]
    steps = ["--max_steps", 3, "--save_steps", 1, "--save_total_limit", 1]
    inputs.pretrain(folder, "--resume_from_checkpoint", before, *steps)
    assert [path.name for path in sorted_checkpoints(folder / "out")] == ["checkpoint-3", "checkpoint-4"]


STATES = {"pretrain": ["optimizers.pt", "process-0.pt"], "finetune": ["optimizer.pt", "scheduler.pt", "rng_state.pth"]}


def test_what_is_wrong_in_spite_of_its_digest_is_one_line_too_and_no_pickle_runs(
    inputs: kills.Inputs, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / trained.name))
    before, last = sorted_checkpoints(folder / "out")
    wrong = dict.fromkeys(STATES[trained.name], pickle.dumps(Hostile(), protocol=2))
    wrong["model.safetensors"] = b"no tensors"
    wrong["pretraining_state.json" if trained.name == "pretrain" else "trainer_state.json"] = b"[]"
    for name, content in wrong.items():
        whole = (last / name).read_bytes()
        (last / name).write_bytes(content)
        write_digests(last)
        message = refused(inputs, folder, capsys)
        assert message.startswith(f"{last}/{name}: cannot be read: "), message
        assert message.endswith(f" --resume_from_checkpoint {before}")
        (last / name).write_bytes(whole)
    assert not ran


def test_states_of_other_parameters_are_refused(
    inputs: kills.Inputs, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / trained.name))
    _, last = sorted_checkpoints(folder / "out")
    file = last / STATES[trained.name][0]
    saved = torch.load(file, weights_only=True)
    states = saved["optimizers"][0]["state"] if trained.name == "pretrain" else saved["state"]
    for state in states.values():
        for name, value in state.items():
            if value.ndim:
                state[name] = value.new_zeros(3, 5, 7)
    torch.save(saved, file)
    write_digests(last)
    assert re.match(rf"{file}: cannot be read: holds \(3, 5, 7\) for a parameter of", refused(inputs, folder, capsys))


@pytest.mark.parametrize("trained", ["pretrain"], indirect=True)
def test_pretraining_with_other_sizes_is_refused_by_name(
    inputs: kills.Inputs,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / trained.name))
    monkeypatch.setitem(kills.SIZES, "cell_dim", 8)
    message = refused(inputs, folder, capsys)
    assert message.endswith("checkpoint-4 was trained with cell_dim=6: it cannot resume with 8")


# ------------------------------------------------------------------------------------------------------------- locks

OWNER = r"process \d+ on \S+ since [-\d]+ [:\d]+ is writing it; wait for that, or choose another output"


def test_a_second_writer_is_refused_with_the_name_of_the_first(
    inputs: kills.Inputs, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / trained.name
    with one_writer(folder / "out"):
        assert re.fullmatch(rf"{folder}/out: {OWNER}", refused(inputs, folder, capsys))
        files = ["--train_file", str(inputs.data), "--validation_file", str(inputs.data)]
        assert compare.main(["--task", "ner", *files, "--output_dir", str(folder / "out")]) == 2
        assert re.fullmatch(rf"error: {folder}/out: {OWNER}\n", capsys.readouterr().err)
    assert not list((folder / "out").iterdir())


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    def die() -> None:
        with one_writer(tmp_path / "out"):
            os.kill(os.getpid(), 9)

    assert kills.in_fork(die, tmp_path / "log") == -9
    assert (tmp_path / "out" / ".lock").is_file()
    for _ in range(2):
        with one_writer(tmp_path / "out"):
            pass
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    read, write = os.pipe()
    with one_writer(tmp_path / "out"):
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
    with one_writer(tmp_path / "out"):
        os.write(write, b"x")
    assert os.waitpid(child, 0)[1] == 0


def test_where_files_cannot_be_locked_a_warning_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("modeling_elmo.locks.fcntl.flock", flock)
    with one_writer(tmp_path / "out"):
        pass
    assert "out: cannot be locked: Operation not supported" in capsys.readouterr().err
