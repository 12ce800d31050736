"""A disk that is full: one line that names what was to be written, nothing half-written, nothing lost."""

import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kills
import pytest
from accelerate.state import AcceleratorState
from typer.testing import CliRunner

import hub_upload
from modeling_elmo.cli import app
from modeling_elmo.files import BAD_INPUT, ElmoError, check_space, reserve
from training import compare, pretrain
from training.checkpoints import check_digests, sorted_checkpoints

REASON = "No space left on device|File too large"


@pytest.fixture(autouse=True)
def _runs_share_nothing() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> kills.Inputs:
    made = kills.Inputs(tmp_path_factory.mktemp("full") / "inputs")
    made.make_models()
    return made


class Disk:
    """A folder, and how to leave it almost no room: by a limit of the size of files, or since it is a small disk."""

    def __init__(self, folder: Path, limits_files: bool) -> None:
        self.folder, self.limits_files = folder, limits_files
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, room: int) -> None:
        if self.limits_files:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, self.before[1]))
            return
        (self.folder / "filler").unlink(missing_ok=True)
        left = shutil.disk_usage(self.folder).free - room
        (self.folder / "filler").write_bytes(bytes(max(left, 0)))

    def names(self) -> set[str]:
        """Return what is there, but for empty folders."""
        return {path.name for path in self.folder.rglob("*") if path.is_file()} - {"filler"}

    def give_back(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.fixture(params=["small disk", "limit of files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    is_mounted = request.param == "small disk"
    if is_mounted:
        if shutil.which("mount") is None:
            pytest.skip("there is no `mount` here")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
    made = Disk(folder, not is_mounted)
    yield made
    made.give_back()
    if is_mounted:
        subprocess.run(["umount", folder], check=True)


def assert_one_line(text: str, pattern: str) -> None:
    """Check the last line, which is the only one with an error, and that there is no traceback."""
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, text
    assert re.fullmatch(f"error: {pattern}: ({REASON})", lines[0]), lines[0]


SIZE, UNKNOWN = r"cannot write [\d.]+ MB", "cannot be written"


def test_commands_that_write_a_file_or_a_folder(inputs: kills.Inputs, disk: Disk) -> None:
    disk.fill(2000)
    model, out = inputs.folder / "model", disk.folder
    original = [inputs.folder / "original" / name for name in ("options.json", "weights.hdf5")]
    sentence = "the [bank]"
    for arguments, pattern in (
        (["export", model, out / "out"], rf"{out}/out(/weights.hdf5)?: {SIZE}"),
        (["convert", *original, out / "out"], rf"{out}/out: {SIZE}"),
        (["embed", inputs.text, "--model", model, "--output", out / "out.h5"], rf"{out}/.out.h5.parts/\S+: {UNKNOWN}"),
        (["neighbors", sentence, "--corpus", inputs.text, "--model", model, "--index", out], rf"{out}/\S+: {UNKNOWN}"),
    ):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == BAD_INPUT, result.stderr
        assert_one_line(result.stderr, pattern)
        for parts in out.glob(".*.parts"):  # of a run that can be resumed
            shutil.rmtree(parts)
        assert not disk.names()


def test_a_file_that_is_mapped_or_read_in_one_piece_has_its_room_first(disk: Disk) -> None:
    disk.fill(10_000)
    for make in (reserve, check_space):
        with pytest.raises((ElmoError, OSError), match=REASON):
            make(disk.folder / "file", 1_000_000)
    (disk.folder / "file").unlink()
    reserve(disk.folder / "file", 5000)
    assert (disk.folder / "file").stat().st_size == 5000


def test_pretraining_keeps_its_last_checkpoint(
    inputs: kills.Inputs, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    out = disk.folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "finish", lambda run: {})
        inputs.pretrain(disk.folder)
    (last,) = sorted_checkpoints(out)
    disk.fill(6000)
    capsys.readouterr()
    with pytest.raises(AssertionError, match="exit code 2"):
        inputs.pretrain(disk.folder)  # its final model
    assert_one_line(capsys.readouterr().err, rf"{out}: {SIZE}")
    with pytest.raises(AssertionError, match="exit code 2"):
        inputs.pretrain(disk.folder, "--max_steps", 6)
    assert_one_line(capsys.readouterr().err, rf"{out}/checkpoint-6: {SIZE}")
    check_digests(last)
    assert not (out / "config.json").exists()
    assert {path.name for path in out.iterdir()} == {last.name, "corpus.json", "counted_vocab.txt"}


def test_finetuning_names_what_it_could_not_write(
    inputs: kills.Inputs, disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    out = disk.folder / "out"
    disk.fill(1000)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for more, pattern in (
        ([], rf"{out}/cache/layers-\w+.f32: {SIZE}"),
        (["--cache_gb", 0], rf"{out}/checkpoint-\d+: {SIZE}"),
        (["--cache_gb", 0, "--save_strategy", "no", "--load_best_model_at_end", "false"], rf"{out}: {SIZE}"),
    ):
        with pytest.raises(AssertionError, match="exit code 2"):
            inputs.finetune(disk.folder, *more)
        assert_one_line(capsys.readouterr().err, pattern)
        assert not disk.names()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_records_of_a_comparison_and_a_release_are_named(
    inputs: kills.Inputs, disk: Disk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fill(0)
    outcomes = {compare.Setting("none", "-", 1.0): [compare.Outcome(0.5, None, 1.0, {})]}
    monkeypatch.setattr(compare, "compare", lambda *_: outcomes)
    files = ["--train_file", str(inputs.data), "--validation_file", str(inputs.data)]
    assert compare.main(["--task", "ner", *files, "--output_dir", str(disk.folder)]) == BAD_INPUT
    assert_one_line(capsys.readouterr().err, rf"{disk.folder}/comparison.json: {UNKNOWN}")
    disk.give_back()
    disk.fill(20_000)  # enough for the card
    monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
    card = ["--card", str(inputs.folder / "card.md"), "--license", "mit", "--language", "en"]
    assert hub_upload.main([str(inputs.folder / "model"), "someone/model", "--dry-run", *card]) == BAD_INPUT
    assert_one_line(capsys.readouterr().err, rf"\S+: {SIZE}")
    assert not disk.names()
