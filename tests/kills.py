"""Kill commands at every write, and see that nothing half-written is ever taken for whole.

    python tests/kills.py                    every point of every command: some minutes
    python tests/kills.py --points 5 embed   five points of one command

A point is a call that opens a file to write, writes, renames, makes, removes or syncs. Each is reached in a fork of
this process, which dies there as by `kill -9`; of a write, half arrives. What C, C++ and Rust write in one call
(weights, HDF5, Arrow) is cut to half. Then another fork looks at what is there, runs the command again, and compares
the result with that of a run that was not killed.
"""

import argparse
import builtins
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import pyarrow
import pyarrow.ipc
import safetensors.torch
import torch

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoForTokenClassification, ElmoModel, ElmoTokenizer
from modeling_elmo import embed_corpus as embedding
from modeling_elmo import neighbors as neighbors_module
from modeling_elmo.convert_elmo import convert_checkpoint, export_checkpoint
from modeling_elmo.files import ElmoError
from modeling_elmo.loading import load_folder
from training import bundle, finetune, pretrain
from training.checkpoints import sorted_checkpoints

SIZES: dict[str, Any] = {
    "char_embedding_dim": 4,
    "char_filters": [[1, 4], [2, 4]],
    "num_highway_layers": 1,
    "projection_dim": 4,
    "cell_dim": 6,
}
WORDS = "the bank of a river is steep and old . money lies in".split()
COMMANDS = (
    *("embed", "index", "convert", "convert over another", "export over another", "save_pretrained"),
    *("bundle over another", "pretrain", "pretrain over another", "finetune"),
)
# What differs between two equal runs.
UNEQUAL = ("seconds", "runtime", "per_second", "memory")


# ------------------------------------------------------------------------------------------------------------ points


class Points:
    """Counts what this process does to the files of a folder, and kills the process at the point `deadly`."""

    def __init__(self, folder: Path, deadly: int) -> None:
        self.folder, self.deadly, self.count = str(folder), deadly, 0

    def reach(self, last_act: Callable[[], Any] | None = None) -> None:
        self.count += 1
        if self.count == self.deadly:
            if last_act is not None:
                last_act()
            os.kill(os.getpid(), signal.SIGKILL)

    def is_inside(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.path.abspath(path).startswith(self.folder)

    def watch(self) -> None:
        """Count calls from now on."""
        for name in ("rename", "replace", "unlink", "remove", "mkdir", "rmdir"):
            self._watch_call(os, name, lambda path, *_, dir_fd=None, **__: dir_fd is not None or self.is_inside(path))
        for name in ("fsync", "ftruncate", "posix_fallocate", "write"):
            self._watch_call(os, name, lambda descriptor, *_: self.is_inside(_path_of(descriptor)))
        builtins.open = io.open = self._watched_open(io.open)  # type: ignore[assignment]
        self._watch_whole_file(safetensors.torch, "serialize_file", lambda _, path, *__: path)
        self._watch_whole_file(torch, "save", lambda _, path, *__: path)
        self._watch_whole_file(h5py.File, "close", lambda file: file.filename if file and file.mode != "r" else None)
        self._watch_call(h5py.Group, "create_dataset", lambda *_, **__: True)
        self._watch_call(pyarrow.ipc, "new_file", lambda *_, **__: True)
        self._watch_call(pyarrow.ipc.RecordBatchFileWriter, "__exit__", lambda *_: True)

    def _watch_call(self, owner: Any, name: str, counts: Callable[..., bool]) -> None:
        """Count a function's calls; the process dies before one."""
        call = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            if counts(*arguments, **options):
                self.reach()
            return call(*arguments, **options)

        setattr(owner, name, watched)

    def _watch_whole_file(self, owner: Any, name: str, path_of: Callable[..., Any]) -> None:
        """Count a function that writes a file in one call; the process dies before it, or when half is written."""
        call = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            path = path_of(*arguments)
            if not self.is_inside(path):
                return call(*arguments, **options)
            self.reach()
            result = call(*arguments, **options)
            self.reach(lambda: os.truncate(path, os.path.getsize(path) // 2))
            return result

        setattr(owner, name, watched)

    def _watched_open(self, plain_open: Callable[..., Any]) -> Callable[..., Any]:
        points = self

        class Raw(io.FileIO):
            """A file whose writes count. At the deadly one, half arrives."""

            def write(self, data: Any) -> int:
                points.reach(lambda: super(Raw, self).write(memoryview(data)[: len(data) // 2]))
                return super().write(data)

        def watched(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
            if not set(mode) & set("wxa+") or not points.is_inside(file):
                return plain_open(file, mode, buffering, *more, **options)
            points.reach()
            raw = Raw(file, mode.replace("b", "").replace("t", ""), opener=options.pop("opener", None))
            options.pop("closefd", None)
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *more, **options)

        return watched


def _path_of(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


# ---------------------------------------------------------------------------------------------------------- commands


class Command(NamedTuple):
    """A command that writes into a folder.

    `run` does it, in a folder where it may have been killed before. `content` returns what a user gets there, or None
    if there is nothing, or nothing that is accepted; `all_of_it` returns what else there is at the end.
    """

    prepare: Callable[[Path], Any]
    run: Callable[[Path], Any]
    content: Callable[[Path], Any]
    all_of_it: Callable[[Path], Any]


def nothing(_: Path) -> None:
    """Prepare nothing, or find nothing."""


def save_model(folder: Path, kind: type = ElmoForPreTraining, seed: int = 0) -> None:
    torch.manual_seed(seed)
    tokenizer = ElmoTokenizer(vocab=WORDS)
    tokenizer.save_pretrained(folder)
    kind(ElmoConfig(**SIZES, vocab_size=len(tokenizer))).save_pretrained(folder)


def model_content(folder: Path, kind: type) -> Any:
    """Return the weights and the words of a model that loads."""
    try:
        model, tokenizer = load_folder(folder, kind)
    except ElmoError:
        return None
    return [{name: tensor.tolist() for name, tensor in model.state_dict().items()}, tokenizer.get_vocab()]


def table_content(file: Path) -> Any:
    """Return the arrays of a complete output of `elmo embed`."""
    if not file.exists():
        return None
    with h5py.File(file) as rows:
        arrays = {}
        for name in rows:
            if name != "sentence_to_index":
                arrays[name] = rows[name][()].tolist()
        return [arrays, rows["sentence_to_index"][0].decode()]


def results_content(file: Path, unequal: tuple[str, ...] = UNEQUAL) -> Any:
    """Return the figures of a run, without those that may differ."""
    if not file.exists():
        return None
    results = json.loads(file.read_text())
    return {name: value for name, value in results.items() if not any(part in name for part in unequal)}


class Inputs:
    """The models and texts that commands read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.text, self.held, self.data = folder / "text.txt", folder / "held.txt", folder / "data.conll"
        lines = [" ".join(WORDS[start : start + 5]) for start in range(8)] * 4
        self.text.write_text("\n".join(lines) + "\n")
        self.held.write_text("\n".join(lines[:5]) + "\n")
        rows = [f"{word} X X {'B-PER' if word == 'bank' else 'O'}" for word in WORDS]
        self.data.write_text("\n\n".join("\n".join(rows[start : start + 4]) for start in range(9)) + "\n")
        self.vectors = folder / "vectors.txt"
        self.vectors.write_text("".join(f"{word} {number} 1 0\n" for number, word in enumerate(WORDS[:6])))

    def make_models(self) -> None:
        save_model(self.folder / "model")
        save_model(self.folder / "bilm", ElmoModel)
        export_checkpoint(self.folder / "model", self.folder / "original")

    # ------------------------------------------------------------------------------------------- how commands run

    def embed(self, folder: Path) -> None:
        embedding.SHARD_WORDS = 80
        if not (folder / "out.h5").exists():
            embedding.embed_corpus(str(self.text), self.folder / "model", folder / "out.h5")

    def index(self, folder: Path) -> Any:
        embedding.SHARD_WORDS, embedding.ROW_GROUP_BYTES = 80, 500
        uses = neighbors_module.Uses(self.text, self.folder / "model", folder=folder / "index")
        return [list(use) for use in uses.nearest("the [bank] of a river", 5, any_word=True)]

    def index_content(self, folder: Path) -> Any:
        """Return what a search finds, if it takes an index that is there."""

        def refuse(*_: Any, **__: Any) -> None:
            raise ElmoError("there is no index")

        make, neighbors_module.embed_corpus = neighbors_module.embed_corpus, refuse  # type: ignore[assignment]
        try:
            return self.index(folder)
        except ElmoError:
            return None
        finally:
            neighbors_module.embed_corpus = make

    def convert(self, folder: Path) -> None:
        source = self.folder / "original"
        files = [source / name for name in ("options.json", "weights.hdf5", "vocab.txt")]
        convert_checkpoint(files[0], files[1], folder / "out", files[2], overwrite=True)

    def export(self, folder: Path) -> None:
        export_checkpoint(self.folder / "model", folder / "out", overwrite=True)

    def export_content(self, folder: Path) -> Any:
        """Return what converting gives back."""
        files = [folder / "out" / name for name in ("options.json", "weights.hdf5", "vocab.txt")]
        try:
            convert_checkpoint(files[0], files[1], folder / "back", files[2])
        except ElmoError:
            return None
        content = model_content(folder / "back", ElmoModel)
        shutil.rmtree(folder / "back")
        return content

    def pretrain(self, folder: Path, *more_arguments: object) -> None:
        sizes = [f"{name}={value}" for name, value in SIZES.items()]
        files = ["--train_file", self.text, "--validation_file", self.held, "--output_dir", folder / "out"]
        steps = ["--max_steps", 4, "--save_steps", 2, "--save_total_limit", 1, "--lanes", 2, "--window", 4]
        more = ["--workers", 0, "--min_count", 1, "--config_overrides", *sizes, "num_negatives=2"]
        resume = ["--resume_from_checkpoint", "last"] if sorted_checkpoints(folder / "out") else []
        expect_success(pretrain.main(list(map(str, ["tiny", *files, *steps, *resume, *more, *more_arguments]))))

    def pretrain_over(self, folder: Path) -> None:
        """Train a second time where another model is, without checkpoints."""
        sizes = [f"{name}={value}" for name, value in SIZES.items()]
        files = ["--train_file", self.text, "--output_dir", folder / "out", "--overwrite_output_dir"]
        steps = ["--max_steps", 1, "--save_steps", 0, "--lanes", 2, "--window", 4, "--workers", 0, "--min_count", 1]
        expect_success(pretrain.main(list(map(str, ["tiny", *files, *steps, "--config_overrides", *sizes]))))

    def finetune(self, folder: Path, *more: object) -> None:
        files = ["--task", "ner", "--train_file", self.data, "--validation_file", self.data]
        files += ["--model_name_or_path", self.folder / "bilm", "--word_vectors", self.vectors]
        files += ["--output_dir", folder / "out"]
        head = ["--head_overrides", "head_dim=4", "head_char_filters=4", "head_layers=1"]
        steps = ["--num_train_epochs", 2, "--per_device_train_batch_size", 8, "--save_total_limit", 1, "--patience", 0]
        resume = ["--resume_from_checkpoint", "last"] if sorted_checkpoints(folder / "out") else []
        arguments = [*files, *head, *steps, *resume, *more, "--disable_tqdm", "true", "--report_to", "none"]
        expect_success(finetune.main(list(map(str, arguments))))

    def commands(self) -> dict[str, Command]:
        def language_model(folder: Path) -> Any:
            return model_content(folder / "out", ElmoForPreTraining)

        def bilm(folder: Path) -> Any:
            return model_content(folder / "out", ElmoModel)

        def tagger(folder: Path) -> Any:
            return model_content(folder / "out", ElmoForTokenClassification)

        def results(folder: Path) -> Any:
            return [results_content(folder / "out" / "all_results.json"), file_names(folder / "out")]

        def earlier_model(folder: Path) -> None:
            save_model(folder / "out", seed=1)

        def earlier_export(folder: Path) -> None:
            save_model(folder / "model", seed=1)
            export_checkpoint(folder / "model", folder / "out")

        def earlier_bundle(folder: Path) -> None:
            save_model(folder / "model", seed=1)
            bundle.bundle(folder / "model", folder / "out")

        def save(folder: Path) -> None:
            save_model(folder / "out")

        def training_results(folder: Path) -> Any:
            """Return the results of training, whose last loss is that of the steps since it was resumed."""
            file = folder / "out" / "all_results.json"
            return [results_content(file, (*UNEQUAL, "train_loss")), file_names(folder / "out")]

        def table(folder: Path) -> Any:
            return table_content(folder / "out.h5")

        def make_bundle(folder: Path) -> None:
            bundle.bundle(self.folder / "model", folder / "out")

        commands = {
            "embed": Command(nothing, self.embed, table, nothing),
            "index": Command(nothing, self.index, self.index_content, nothing),
            "convert": Command(nothing, self.convert, bilm, results),
            "convert over another": Command(earlier_model, self.convert, bilm, results),
            "export over another": Command(earlier_export, self.export, self.export_content, results),
            "save_pretrained": Command(nothing, save, language_model, results),
            "bundle over another": Command(earlier_bundle, make_bundle, language_model, results),
            "pretrain": Command(nothing, self.pretrain, language_model, training_results),
            "pretrain over another": Command(earlier_model, self.pretrain_over, language_model, training_results),
            "finetune": Command(nothing, self.finetune, tagger, training_results),
        }
        assert tuple(commands) == COMMANDS
        return commands


def expect_success(code: int) -> None:
    assert code == 0, f"exit code {code}"


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------------------------------- kills


def in_fork(work: Callable[[], Any], log: Path) -> int:
    """Do some work in a fork of this process, whose output goes to a file; return its exit code, or minus a signal."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        work()
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # pytest has another sys.stderr
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Outcome(NamedTuple):
    """How many points a command has, how many it was killed at, and what was wrong at which."""

    points: int
    killed: int
    failures: list[str]


def kill_everywhere(command: Command, scratch: Path, sample: int | None = None) -> Outcome:
    """Kill a command at every point, or at a sample of them, each time in a new folder."""
    log, facts = scratch / "log.txt", scratch / "facts.json"

    def run_whole() -> None:
        folder = new_folder(scratch, command)
        before = command.content(folder)
        points = Points(folder, deadly=0)
        points.watch()
        command.run(folder)
        count = points.count
        found = [before, command.content(folder), command.all_of_it(folder)]
        facts.write_text(json.dumps([count, *found]))

    if in_fork(run_whole, log):
        raise AssertionError(log.read_text())
    count, before, content, all_of_it = json.loads(facts.read_text())
    assert content is not None
    numbers: Sequence[int] = range(1, count + 1)
    if sample is not None:
        taken = min(sample, count)
        numbers = [1 + (2 * place + 1) * count // (2 * taken) for place in range(taken)]
    failures = []
    for number in numbers:
        log.unlink(missing_ok=True)
        folder = new_folder(scratch, command)

        def die(folder: Path = folder, number: int = number) -> None:
            Points(folder, number).watch()
            command.run(folder)

        def check(folder: Path = folder) -> None:
            left = as_json(command.content(folder))
            assert left in (None, before, content), "something else was accepted after the kill"
            command.run(folder)
            assert as_json(command.content(folder)) == content, "the second run gives something else"
            found = as_json(command.all_of_it(folder))
            assert found == all_of_it, f"the second run leaves {found} instead of {all_of_it}"

        died = in_fork(die, log)
        if died != -signal.SIGKILL:
            failures.append(f"point {number}: exit code {died} instead of a kill: {log.read_text()}")
        elif in_fork(check, log):
            failures.append(f"point {number}: {log.read_text()}")
    return Outcome(count, len(numbers), failures)


def new_folder(scratch: Path, command: Command) -> Path:
    folder = scratch / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command.prepare(folder)
    return folder


def as_json(content: Any) -> Any:
    """Return what comes back of something that is written as JSON."""
    return json.loads(json.dumps(content))


def prepare(scratch: Path) -> dict[str, Command]:
    """Write the inputs of the commands."""
    torch.set_num_threads(1)  # a fork has the thread that calls it, and no other
    inputs = Inputs(scratch / "inputs")
    if in_fork(inputs.make_models, scratch / "log.txt"):
        raise AssertionError((scratch / "log.txt").read_text())
    return inputs.commands()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help="by default, all")
    parser.add_argument("--points", type=int, help="how many points of each; by default, all")
    own = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        commands = prepare(scratch)
        for command in own.commands or COMMANDS:
            begun = time.time()
            outcome = kill_everywhere(commands[command], scratch, own.points)
            print(f"{command}: killed at {outcome.killed} of {outcome.points} points, ", end="")
            print(f"{len(outcome.failures)} failures, {time.time() - begun:.0f} s", flush=True)
            for failure in outcome.failures:
                print(failure)
            failed += len(outcome.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
