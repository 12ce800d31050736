"""training.pretrain: from text to a folder, interrupted or not, alone or together."""

import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

from modeling_elmo import ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling_elmo.corpus import open_corpus
from modeling_elmo.files import ElmoError
from training import pretrain, processes, run
from training.data import BlockReader, LaneWindows, encode_window, lay_out

MODULE = "training.pretrain"
# Two half batches and one whole: the same float32 sums in another order, over forty updates.
ACCUMULATION_TOLERANCE = 1e-6
# Enough for windows of text, too little for weights.
LARGEST_FILE = 80_000


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> tuple[str, str]:
    """A text of a small grammar, and a held-out part."""
    folder = tmp_path_factory.mktemp("text")
    choose = random.Random(0).choice
    slots = [("the", "a"), ("bank", "river", "zebra", "cat"), ("is", "was"), ("steep", "old", "here"), (".",)]
    lines = [" ".join(map(choose, slots)) for _ in range(600)]
    (folder / "train.txt").write_text("\n".join(lines[:500]) + "\n")
    (folder / "held.txt").write_text("\n".join(lines[500:]) + "\n")
    return str(folder / "train.txt"), str(folder / "held.txt")


@pytest.fixture(autouse=True)
def runs_share_nothing():
    """accelerate keeps one state a process: it is as in a process of its own."""
    AcceleratorState._reset_state(reset_partial_state=True)


def arguments(text, output, *more: object) -> list[str]:
    train, held = map(str, text)
    own = ["tiny", "--train_file", train, "--validation_file", held, "--output_dir", str(output), "--workers", "0"]
    return [*own, "--config_overrides", "num_negatives=6", *map(str, more)]


def train(text, output, *more: object) -> dict:
    assert pretrain.main(arguments(text, output, *more)) == 0
    return json.loads(Path(output, "all_results.json").read_text())


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(Path(folder, "model.safetensors"))


def assert_same_weights(one, other) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> Path:
    """A run of 40 steps with checkpoints at 20 and 40."""
    folder = tmp_path_factory.mktemp("trained")
    train(text, folder)
    return folder


# ------------------------------------------------------------------------------------------------------------ a run


def test_a_run_makes_a_folder_that_loads_and_results_that_add_up(trained, text):
    results = json.loads((trained / "all_results.json").read_text())
    assert results["train_steps"] == 40
    assert results["train_words"] == 40 * 8 * 10
    held = Path(text[1]).read_text().splitlines()
    assert results["eval_words"] == sum(len(line.split()) + 1 for line in held)
    mean = math.sqrt(results["eval_perplexity_forward"] * results["eval_perplexity_backward"])
    assert results["eval_perplexity"] == pytest.approx(mean)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForPreTraining.from_pretrained(trained)
    assert type(AutoModel.from_pretrained(trained)) is ElmoModel
    assert model.config.vocab_size == len(tokenizer) == results["vocab_size"]
    assert tokenizer.convert_ids_to_tokens([4]) == ["."]  # the most frequent word first
    card = (trained / "README.md").read_text()
    assert f"{results['eval_perplexity']:,.2f}" in card
    assert "train.txt" in card
    assert str(trained) not in card
    history = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in history if "train_loss" in entry] == [10, 20, 30, 40]


def test_the_reported_perplexity_equals_one_by_hand(text, tmp_path):
    """Where states do not cross sentences, it is that of the sentences' scores."""
    results = train(text, tmp_path, "--reset_states", "sentence", "--max_steps", 5, "--save_steps", 0)
    model, tokenizer = AutoModelForPreTraining.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    sentences = [line.split() for line in Path(text[1]).read_text().splitlines()]
    scores = model.score(sentences, tokenizer)
    for side in ("forward", "backward"):
        losses = torch.cat([-getattr(score, side) for score in scores]).double()
        assert results[f"eval_perplexity_{side}"] == pytest.approx(losses.mean().exp().item(), rel=1e-5)


def test_an_evaluation_may_begin_every_sentence_from_zeros(text, tmp_path):
    """Its perplexity is that of the sentences' scores, while training carries states on."""
    results = train(text, tmp_path, "--eval_reset_states", "sentence", "--max_steps", 5, "--save_steps", 0)
    model, tokenizer = AutoModelForPreTraining.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    scores = model.score([line.split() for line in Path(text[1]).read_text().splitlines()], tokenizer)
    for side in ("forward", "backward"):
        losses = torch.cat([-getattr(score, side) for score in scores]).double()
        assert results[f"eval_perplexity_{side}"] == pytest.approx(losses.mean().exp().item(), rel=1e-5)


def test_the_learning_rate_of_a_run_that_is_extended_stays_up_until_its_last_steps(text, tmp_path):
    more = ("--lr_scheduler_type", "warmup_stable_decay", "--warmup_steps", 5, "--logging_steps", 1)
    more += ("--learning_rate", 0.1, "--save_steps", 30)
    train(text, tmp_path, *more, "--decay_steps", 10)
    shutil.rmtree(tmp_path / "checkpoint-40")
    train(text, tmp_path, *more, "--decay_steps", 20, "--max_steps", 60, "--resume_from_checkpoint", "last")
    entries = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    rates = {entry["step"]: entry["learning_rate"] for entry in entries if "learning_rate" in entry}
    assert rates[1] < rates[4] < 0.1
    assert {rates[step] for step in range(5, 40)} == {0.1}
    assert 0.1 > rates[42] > rates[50] > rates[59] > 0


@pytest.mark.parametrize("reset_states", ["never", "sentence"])
def test_on_a_source_of_known_entropy_both_directions_come_within_three_per_cent_of_it(reset_states, tmp_path):
    """A Markov chain over eight words. Both directions predict the same sentences, so both have their entropy."""
    generator = torch.Generator().manual_seed(0)
    words = list("abcdefgh")
    start = torch.rand(8, generator=generator).pow(3)
    start /= start.sum()
    step = torch.rand(8, 9, generator=generator).pow(3) + 0.02  # the ninth is the end
    step /= step.sum(1, keepdim=True)
    visits = start @ torch.linalg.inv(torch.eye(8) - step[:, :8])  # of each word in a sentence

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -(p * p.log()).sum(-1)

    expected = ((entropy(start) + (visits * entropy(step)).sum()) / (1 + visits.sum())).item()

    def sentence() -> str:
        state = int(torch.multinomial(start, 1, generator=generator))
        taken = [state]
        while (state := int(torch.multinomial(step[taken[-1]], 1, generator=generator))) < 8:
            taken.append(state)
        return " ".join(words[index] for index in taken)

    lines = [sentence() for _ in range(9000)]
    (tmp_path / "train.txt").write_text("\n".join(lines[:6000]) + "\n")
    (tmp_path / "held.txt").write_text("\n".join(lines[6000:]) + "\n")
    results = train(
        (str(tmp_path / "train.txt"), str(tmp_path / "held.txt")),
        tmp_path / "out",
        *("--reset_states", reset_states, "--block_rows", 1, "--lanes", 64, "--max_steps", 300, "--save_steps", 0),
        *("--optimizer", "adamw", "--learning_rate", 0.02, "--lr_scheduler_type", "cosine", "--warmup_steps", 20),
        *("--config_overrides", "num_negatives=0", "dropout=0"),
    )
    for side in ("forward", "backward"):
        assert math.log(results[f"eval_perplexity_{side}"]) == pytest.approx(expected, rel=0.03)
        assert results[f"eval_perplexity_{side}"] == pytest.approx(math.exp(expected), rel=0.03)


# ----------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--optimizer", "adamw", "--learning_rate", 0.01, "--lr_scheduler_type", "cosine", "--warmup_steps", 5),
        ("--reset_states", "document", "--block_rows", 3),
        ("--lr_scheduler_type", "warmup_stable_decay", "--warmup_steps", 5, "--decay_steps", 15),
        ("--reset_states", "sentence", "--mixed_precision", "bf16"),
        ("--gradient_accumulation_steps", 2, "--lanes", 4, "--workers", 1),
        ("--streaming",),
        ("--mixed_precision", "bf16"),
    ],
    ids=str,
)
def test_a_run_that_goes_on_from_a_checkpoint_ends_with_the_weights_of_one_that_was_not_interrupted(
    more, text, tmp_path
):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(text, whole, *more)
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-20", resumed / "checkpoint-20")
    train(text, resumed, *more, "--resume_from_checkpoint", "last")
    assert_same_weights(whole, resumed)
    states = [torch.load(path / "checkpoint-40" / "optimizers.pt", weights_only=True) for path in (whole, resumed)]
    assert str(states[0]) == str(states[1])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_told_to_stop_saves_and_goes_on_later(number, workers, text, tmp_path):
    """The signal goes to all its processes, as a terminal or a scheduler sends it."""
    more = ("--save_steps", 0, "--max_steps", 100_000, "--workers", workers)
    command = [sys.executable, "-m", MODULE, *arguments(text, tmp_path, *more)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in process.stdout:
        if line.startswith("step "):
            break
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "--resume_from_checkpoint last" in errors
    assert "Traceback" not in errors
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    assert step >= 10
    train(text, tmp_path, "--max_steps", step + 5, "--resume_from_checkpoint", "last", "--save_steps", 0)
    whole = tmp_path / "whole"
    train(text, whole, "--max_steps", step + 5, "--save_steps", 0)
    assert_same_weights(tmp_path, whole)


def test_signals_are_handled_as_before_once_a_run_is_over(text, tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train(text, tmp_path, "--max_steps", 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_killed_run_leaves_whole_checkpoints_only(text, tmp_path):
    command = [sys.executable, "-m", MODULE, *arguments(text, tmp_path, "--save_steps", 1, "--max_steps", 100_000)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "checkpoint-5").is_dir() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    last = run.sorted_checkpoints(tmp_path)[-1]
    names = {path.name for path in last.iterdir()}
    assert {"model.safetensors", "optimizers.pt", "process-0.pt", run.STATE_FILE, "config.json"} <= names
    step = int(last.name.split("-")[1])
    train(text, tmp_path, "--max_steps", step + 1, "--resume_from_checkpoint", "last", "--save_steps", 0)


def test_an_error_in_the_loop_ends_the_process_that_prepares_windows_too(text, tmp_path):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LARGEST_FILE}, {LARGEST_FILE}))"
    start = f"{limit}; from {MODULE} import main; import sys; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, *arguments(text, tmp_path, "--workers", 1)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert re.search(r"^error: \S+/checkpoint-20: cannot write [\d.]+ MB: File too large$", done.stderr, re.MULTILINE)


def test_a_run_that_goes_on_takes_the_learning_rate_it_is_given(trained, text, tmp_path):
    shutil.copytree(trained / "checkpoint-20", tmp_path / "checkpoint-20")
    train(text, tmp_path, "--resume_from_checkpoint", "last", "--learning_rate", 0.0125)
    entries = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    rates = {entry["step"]: entry["learning_rate"] for entry in entries if "learning_rate" in entry}
    assert rates[20] != 0.0125
    assert rates[40] == 0.0125


def test_a_run_is_saved_before_its_last_evaluation(text, tmp_path, monkeypatch):
    def interrupted(_: pretrain.Run) -> dict:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pretrain.Run, "evaluate", interrupted)
        assert pretrain.main(arguments(text, tmp_path, "--max_steps", 25)) == 128 + signal.SIGINT
    assert run.sorted_checkpoints(tmp_path)[-1].name == "checkpoint-25"
    results = train(text, tmp_path, "--max_steps", 25, "--resume_from_checkpoint", "last")
    assert results["train_steps"] == 25


def test_a_run_that_was_at_its_end_only_writes_its_results(trained, text, tmp_path):
    shutil.copytree(trained / "checkpoint-40", tmp_path / "checkpoint-40")
    results = train(text, tmp_path, "--resume_from_checkpoint", "last")
    assert results["train_steps"] == 40
    assert_same_weights(trained, tmp_path)


def test_only_the_last_checkpoints_are_kept(text, tmp_path):
    train(text, tmp_path, "--save_steps", 8, "--save_total_limit", 3)
    assert [path.name for path in run.sorted_checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in (24, 32, 40)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--lanes", 9), "was trained with lanes=8: it cannot resume with 9"),
        (("--seed", 5), "was trained with seed=0"),
        (("--reset_states", "sentence"), "was trained with reset_states=never"),
        (("--optimizer", "adamw"), "optimizer=adagrad"),
    ],
)
def test_another_run_cannot_go_on_from_a_checkpoint(more, message, trained, text, tmp_path, capsys):
    checkpoint = trained / "checkpoint-20"
    assert pretrain.main(arguments(text, tmp_path, "--resume_from_checkpoint", checkpoint, *more)) == 2
    assert message in capsys.readouterr().err


def test_a_checkpoint_is_refused_for_another_text_or_order(trained, text, tmp_path, capsys):
    lines = Path(text[0]).read_text().splitlines(keepends=True)
    (tmp_path / "other.txt").write_text("".join([*lines[1:], lines[0]]))
    (tmp_path / "moved.txt").write_text("".join(lines))
    more = ("--resume_from_checkpoint", trained / "checkpoint-20")
    assert pretrain.main(arguments((tmp_path / "other.txt", text[1]), tmp_path / "other", *more)) == 2
    assert "was trained on another text" in capsys.readouterr().err
    assert pretrain.main(arguments(text, tmp_path / "other", *more, "--no_shuffle")) == 2
    assert "was trained with shuffle=True" in capsys.readouterr().err
    assert pretrain.main(arguments(text, tmp_path / "other", *more, "--streaming")) == 2
    assert "was trained with streaming=False" in capsys.readouterr().err
    train((tmp_path / "moved.txt", text[1]), tmp_path / "moved", *more)
    assert_same_weights(trained, tmp_path / "moved")


def test_a_folder_has_one_model_whenever_a_run_that_overwrites_it_is_killed(trained, text, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "model")
    vocabulary = (trained / "vocab.txt").read_text()
    other = (text[1], text[1])
    replace = os.replace
    moved = []

    def replace_some(source, target):
        if Path(source).parent.name == ".files.tmp" and Path(target).parent == tmp_path / "model":
            moved.append(Path(target).name)
            if len(moved) == 3:
                raise KeyboardInterrupt
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "train", lambda self: False)
        assert pretrain.main(arguments(other, tmp_path / "model", "--overwrite_output_dir", "--min_count", 1)) > 128
        assert (tmp_path / "model" / "vocab.txt").read_text() == vocabulary
        ElmoForPreTraining.from_pretrained(tmp_path / "model")
    monkeypatch.setattr(os, "replace", replace_some)
    more = ("--overwrite_output_dir", "--max_steps", 2, "--save_steps", 0)
    assert pretrain.main(arguments(other, tmp_path / "model", *more)) > 128
    assert len(moved) == 3
    with pytest.raises((OSError, RuntimeError)):
        ElmoForPreTraining.from_pretrained(tmp_path / "model")


# ------------------------------------------------------------------------------------------------- batches, processes


@pytest.mark.parametrize("scale", [None, 3.0])
def test_a_step_with_adagrad_is_the_originals(scale, trained, text, tmp_path):
    """bilm-tf multiplies the mean loss by the steps of a window, clips the norm, and divides by root sums from 1."""
    more = () if scale is None else ("--loss_scale", scale)
    options = ("--config_overrides", "num_negatives=0", "dropout=0")
    train(text, tmp_path, "--model_name_or_path", trained, "--max_steps", 1, "--max_grad_norm", 2, *options, *more)
    model = ElmoForPreTraining.from_pretrained(trained, num_negatives=0, dropout=0.0).train()
    reader = BlockReader(
        open_corpus(text[0], tokenized=True, as_dataset=True), AutoTokenizer.from_pretrained(trained), 16
    )
    step = next(iter(LaneWindows(reader, 8, 10)))
    (model(**step.windows[0].model_inputs(model.device)).loss * (scale or 10)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 2)
    assert norm > 2  # or nothing is clipped
    after = weights(tmp_path)
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - 0.2 * parameter.grad / (1 + parameter.grad.square()).sqrt()
        torch.testing.assert_close(after[name], expected, atol=1e-6, rtol=0)


def test_the_scale_of_the_loss_follows_the_optimizer(text):
    def scale(*more: str) -> float | None:
        return pretrain.read_settings(["tiny", "--train_file", text[0], "--output_dir", "x", *more]).loss_scale

    assert scale("--window", "20") == 20
    assert scale("--optimizer", "adamw") == 1
    assert scale("--optimizer", "adamw", "--loss_scale", "4") == 4


def test_two_half_batches_are_one_batch(text, tmp_path):
    more = ("--config_overrides", "num_negatives=6", "dropout=0")
    train(text, tmp_path / "one", "--lanes", 8, *more)
    train(text, tmp_path / "two", "--lanes", 4, "--gradient_accumulation_steps", 2, *more)
    torch.testing.assert_close(
        weights(tmp_path / "one"), weights(tmp_path / "two"), atol=ACCUMULATION_TOLERANCE, rtol=0
    )


def launch(*command: object, how: str = "--multi_gpu") -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "accelerate.commands.launch", how, "--num_processes", "2"]
    port = ["--main_process_port", str(random.randint(20_000, 60_000))]
    return subprocess.run(
        [*launcher, *port, "-m", MODULE, *map(str, command)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_two_processes_train_evaluate_and_go_on_bit_for_bit(text, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    done = launch(*arguments(text, whole), how="--cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((whole / "all_results.json").read_text())
    assert results["processes"] == 2
    assert results["train_words"] == 2 * 40 * 8 * 10
    assert results["eval_words"] == sum(len(line.split()) + 1 for line in Path(text[1]).read_text().splitlines())
    resumed.mkdir()
    shutil.copytree(whole / "checkpoint-20", resumed / "checkpoint-20")
    done = launch(*arguments(text, resumed, "--resume_from_checkpoint", "last"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same_weights(whole, resumed)


@pytest.mark.parametrize(
    ("launcher", "count"),
    [
        (["accelerate", "launch", "--cpu", "--num_processes", "2", "-m", "s", "--num_processes", "3"], 2),
        (["python", "-m", "accelerate.commands.launch", "--num-processes=4", "--cpu", "-m", "s"], 4),
        (["accelerate", "launch", "--cpu", "-m", "s", "--num_processes", "3"], 1),
    ],
)
def test_the_launchers_command_line_says_how_many_processes_are_wanted(launcher, count):
    assert processes.requested_processes(launcher, "s") == count


# Texts that end in different ways: fewer sentences than lanes; some lanes ahead of others; whole groups without text.
ENDINGS = {"few": 3, "uneven": 61, "long": 140}


@pytest.fixture(scope="module")
def endings(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("endings")
    chance = random.Random(1)
    for name, count in ENDINGS.items():
        lines = [" ".join(chance.choices("abcdefghij", k=chance.choice([1, 3, 8, 40]))) for _ in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return {name: str(folder / name) for name in ENDINGS}


def matrix_arguments(text, output, lanes: int, groups: int, *more: object) -> list[str]:
    own = ["tiny", "--train_file", text, "--output_dir", str(output), "--workers", "0", "--num_train_epochs", "1"]
    own += ["--lanes", str(lanes), "--gradient_accumulation_steps", str(groups), "--block_rows", "4"]
    own += ["--window", "5", "--min_count", "1", "--save_steps", "2", "--save_total_limit", "100"]
    return [*own, "--config_overrides", "num_negatives=6", "dropout=0", *map(str, more)]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_processes_and_groups_ends_with_the_weights_of_one_process(count, endings, tmp_path):
    """Every one of them reads uneven text to its end, and resumes in the middle, with the same number of lanes."""
    jobs = []
    for groups, (name, path) in itertools.product((1, 2, 3), endings.items()):
        output = tmp_path / f"{name}-{groups}"
        jobs.append(matrix_arguments(path, output, 2, groups))
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    done = subprocess.run(
        [*launcher, str(Path(__file__).parent / "several_runs.py"), str(tmp_path / "jobs.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for groups, (name, path) in itertools.product((1, 2, 3), endings.items()):
        output = tmp_path / f"{name}-{groups}"
        one = tmp_path / f"{name}-{groups}-one"
        AcceleratorState._reset_state(reset_partial_state=True)
        assert pretrain.main(matrix_arguments(path, one, 2 * groups * count, 1)) == 0
        torch.testing.assert_close(weights(output), weights(one), atol=ACCUMULATION_TOLERANCE, rtol=0)
        results = [json.loads((folder / "all_results.json").read_text()) for folder in (output, one)]
        for key in ("train_steps", "train_words"):
            assert results[0][key] == results[1][key]
        # Lanes that are as many are dealt out to one process.
        checkpoints = run.sorted_checkpoints(output)
        if len(checkpoints) > 1:
            resumed = tmp_path / f"{name}-{groups}-resumed"
            AcceleratorState._reset_state(reset_partial_state=True)
            more = ("--resume_from_checkpoint", checkpoints[0])
            assert pretrain.main(matrix_arguments(path, resumed, 2 * groups * count, 1, *more)) == 0
            torch.testing.assert_close(weights(output), weights(resumed), atol=ACCUMULATION_TOLERANCE, rtol=0)


def test_lanes_that_have_all_ended_keep_their_states():
    letters = ElmoTokenizer(vocab=list("ab"))
    window = encode_window([[], []], letters)
    before, after = ((torch.rand(2, 1, 2, 4), torch.rand(2, 1, 2, 8)) for _ in range(2))
    assert run.carry_on(window, before, after) is before
    assert not any(states.any() for states in run.carry_on(window, None, after))
    window = encode_window([lay_out(["a"], letters), []], letters)
    assert all(one.equal(other) for one, other in zip(run.carry_on(window, before, after), after, strict=True))


def test_a_checkpoint_of_two_processes_resumes_with_one_which_reads_the_rest(endings, tmp_path, capsys):
    text = endings["long"]
    more = matrix_arguments(text, tmp_path / "two", 4, 1)
    done = launch(*more)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "two" / "all_results.json").read_text())
    checkpoint = tmp_path / "two" / "checkpoint-4"
    one = matrix_arguments(text, tmp_path / "one", 4, 1, "--resume_from_checkpoint", checkpoint)
    assert pretrain.main(one) == 0
    assert "was saved by 2 processes: its 8 lanes of text are dealt out again as 4" in capsys.readouterr().out
    rest = json.loads((tmp_path / "one" / "all_results.json").read_text())
    assert rest["train_words"] == results["train_words"]
    assert rest["train_steps"] > results["train_steps"]


def test_two_processes_make_the_updates_of_one_with_all_their_lanes(text, tmp_path):
    """One block each: what the processes read together is what one reads in twice as many lanes."""
    lines = Path(text[0]).read_text().splitlines()
    (tmp_path / "text.txt").write_text("\n".join(lines[:160]) + "\n")
    own = (str(tmp_path / "text.txt"), text[1])
    more = (
        "--block_rows",
        40,
        "--shuffle",
        "false",
        "--max_steps",
        8,
        "--config_overrides",
        "num_negatives=6",
        "dropout=0",
    )
    done = launch(*arguments(own, tmp_path / "two", "--lanes", 2, *more))
    assert done.returncode == 0, done.stderr[-3000:]
    train(own, tmp_path / "one", "--lanes", 4, *more)
    torch.testing.assert_close(
        weights(tmp_path / "one"), weights(tmp_path / "two"), atol=ACCUMULATION_TOLERANCE, rtol=0
    )


def test_an_epoch_reads_every_word_once_and_then_ends(text, tmp_path):
    words = sum(len(line.split()) + 1 for line in Path(text[0]).read_text().splitlines())
    for count in (1, 2):
        folder = tmp_path / str(count)
        more = ("--max_steps", -1, "--num_train_epochs", 2, "--save_steps", 0)
        if count == 1:
            train(text, folder, *more)
        else:
            done = launch(*arguments(text, folder, *more))
            assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads((folder / "all_results.json").read_text())["train_words"] == 2 * words


def test_the_steps_announced_for_epochs_are_those_of_the_run(text, tmp_path, capsys):
    results = train(text, tmp_path, "--num_train_epochs", 2, "--save_steps", 0)
    announced = int(re.search(r"about (\d+) steps", capsys.readouterr().out)[1])
    assert announced <= results["train_steps"] <= announced + 4


def test_the_command_lines_epochs_or_steps_replace_the_recipes(text):
    def settings(*more: str):
        return pretrain.read_settings(["--train_file", text[0], "--output_dir", "x", *more])

    assert pretrain.read_settings(["tiny", "--train_file", text[0], "--output_dir", "x"]).max_steps == 40
    own = ["tiny", "--train_file", text[0], "--output_dir", "x", "--num_train_epochs", "3"]
    assert pretrain.read_settings(own).max_steps == -1
    own = ["small", "--train_file", text[0], "--output_dir", "x", "--max_steps", "3"]
    assert pretrain.read_settings(own).num_train_epochs is None
    assert settings().num_train_epochs == 1
    with pytest.raises(ElmoError, match="either `num_train_epochs` or `max_steps`"):
        settings("--max_steps", "3", "--num_train_epochs", "1")


def test_a_schedule_longer_than_the_run_is_cut_with_a_warning(text, tmp_path, capsys):
    train(text, tmp_path / "up", "--warmup_steps", 500, "--lr_scheduler_type", "constant_with_warmup")
    assert "`warmup_steps` is 500, but the run has 40 steps: it is set to 4" in capsys.readouterr().err
    more = ("--lr_scheduler_type", "warmup_stable_decay", "--warmup_steps", 4, "--decay_steps", 100)
    train(text, tmp_path / "down", *more)
    assert "`decay_steps` is 100, but the run has 40 steps: it is set to 36" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ domain tuning


def test_tuning_goes_on_from_a_folder_with_its_vocabulary(trained, text, tmp_path):
    results = train(text, tmp_path, "--model_name_or_path", trained, "--learning_rate", 0.05)
    before = json.loads((trained / "all_results.json").read_text())
    assert results["eval_perplexity_before"] == pytest.approx(before["eval_perplexity"], rel=1e-5)
    assert results["eval_perplexity"] < before["eval_perplexity"]
    assert (tmp_path / "vocab.txt").read_text() == (trained / "vocab.txt").read_text()


def test_tuning_with_another_vocabulary_keeps_the_rows_of_known_words(trained, text, tmp_path):
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("cat\nunheard\n.\n")
    own = tmp_path / "out"
    settings = pretrain.read_settings(
        arguments(text, own, "--model_name_or_path", trained, "--vocab_file", vocabulary)
    )
    tokenizer = ElmoTokenizer(vocab_file=vocabulary)
    model = pretrain.make_model(settings, tokenizer)
    old, had = AutoModelForPreTraining.from_pretrained(trained), AutoTokenizer.from_pretrained(trained)
    for word in ("cat", ".", "</S>"):
        new_row, old_row = tokenizer.convert_tokens_to_ids(word), had.convert_tokens_to_ids(word)
        assert torch.equal(model.softmax.weight[new_row], old.softmax.weight[old_row])
    unheard = tokenizer.convert_tokens_to_ids("unheard")
    assert model.softmax.weight[unheard].abs().sum() > 0
    assert model.softmax.bias[unheard] == model.softmax.initial_bias()[unheard]
    assert torch.equal(
        model.elmo.forward_lm.layers[0].projection.weight, old.elmo.forward_lm.layers[0].projection.weight
    )
    assert train(text, own, "--model_name_or_path", trained, "--vocab_file", vocabulary)["vocab_size"] == 7


def test_a_folder_without_a_softmax_gets_one_for_a_counted_vocabulary(trained, text, tmp_path):
    """As of a converted checkpoint: a plain model, and a tokenizer without words."""
    plain = tmp_path / "plain"
    AutoModel.from_pretrained(trained).save_pretrained(plain)
    results = train(text, tmp_path / "out", "--model_name_or_path", plain)
    assert results["vocab_size"] > 10
    assert results["eval_perplexity"] < results["vocab_size"]


def test_how_the_text_was_split_is_stored_and_used_when_training_continues(text, tmp_path, capsys):
    train(text, tmp_path / "raw", "--raw", "--max_steps", 1)
    train(text, tmp_path / "split", "--max_steps", 1)
    stored = [AutoTokenizer.from_pretrained(tmp_path / name).training_text for name in ("raw", "split")]
    assert stored == ["raw", "whitespace"]
    capsys.readouterr()
    more = ("--model_name_or_path", tmp_path / "raw", "--max_steps", 1)
    train(text, tmp_path / "further", *more)
    assert AutoTokenizer.from_pretrained(tmp_path / "further").training_text == "raw"
    assert "warning" not in capsys.readouterr().err
    train(text, tmp_path / "otherwise", *more, "--raw", "false")
    assert AutoTokenizer.from_pretrained(tmp_path / "otherwise").training_text == "whitespace"
    assert capsys.readouterr().err.count("warning: the model was trained on --raw text") == 1


@pytest.mark.parametrize("more", [[], ["--streaming"]])
@pytest.mark.parametrize("name", ["latin.txt", "latin.jsonl"])
def test_text_that_is_not_utf_8_is_refused_with_file_and_line(name, more, text, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes('{"text": "fine"}\n{"text": "café"}\n'.encode("latin-1"))
    assert pretrain.main(arguments((str(path), text[1]), tmp_path / "out", "--max_steps", 1, *more)) == 2
    assert f"error: {path}: line 2 is not UTF-8" in capsys.readouterr().err


def test_the_softmax_can_be_left_out(text, tmp_path):
    train(text, tmp_path, "--save_softmax", "false", "--max_steps", 2)
    assert not any("softmax" in name for name in weights(tmp_path))
    assert type(AutoModel.from_pretrained(tmp_path)) is ElmoModel


def test_bfloat16_trains(text, tmp_path):
    assert math.isfinite(train(text, tmp_path, "--mixed_precision", "bf16", "--max_steps", 3)["eval_perplexity"])


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a compiler")
def test_compiled_training_gives_the_same_losses(text, tmp_path):
    more = ("--max_steps", 4, "--save_steps", 0, "--config_overrides", "num_negatives=6", "dropout=0")
    plain = train(text, tmp_path / "plain", *more)
    compiled = train(text, tmp_path / "compiled", "--torch_compile", *more)
    assert compiled["eval_perplexity"] == pytest.approx(plain["eval_perplexity"], rel=1e-3)


def test_trackers_get_the_losses(text, tmp_path):
    pytest.importorskip("tensorboard")
    train(text, tmp_path, "--report_to", "tensorboard")
    assert list(tmp_path.glob("logs/**/events.out.tfevents.*"))


# ------------------------------------------------------------------------------------------------------------- errors


def test_a_loss_that_is_no_number_stops_the_run_before_anything_is_saved(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pretrain.Run, "train_step", lambda *_: torch.tensor([math.nan, 1.0]))
    for save_steps in (3, 0):  # a checkpoint is due before an entry of the history; neither is
        more = ("--save_steps", save_steps, "--logging_steps", 50)
        assert pretrain.main(arguments(text, tmp_path, *more)) == 2
        message = capsys.readouterr().err
        assert "training diverged at step 1:" in message
        assert "--learning_rate" in message
        assert not list(tmp_path.glob("checkpoint-*"))
        assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--optimizer", "sgd"), "`optimizer` must be one of"),
        (("--reset_states", "word"), "`reset_states` must be one of never, document, sentence"),
        (("--decay_steps", 5), "`decay_steps` and `lr_scheduler_type` warmup_stable_decay go together"),
        (("--validation_split", "held"), "`validation_split` is for a --dataset_name"),
        (("--lanes", 0), "`lanes` must be at least 1"),
        (("--mixed_precision", "fp16"), "`mixed_precision` must be one of no, bf16"),
        (("--config_overrides", "cell_dim"), "must be like cell_dim=512"),
        (("--config_overrides", "cell_dims=4"), "did you mean `cell_dim`"),
        (("--resume_from_checkpoint", "last"), "has no checkpoint"),
        (("--resume_from_checkpoint", "nowhere"), "not a checkpoint"),
        (("--train_file", "nowhere.txt"), "no such file"),
        (("--max_steps", -1, "--num_train_epochs", 0.5), "must be whole"),
        (("--workers", 2), "`workers` must be one of 0, 1"),
        (("--logging_steps", 0), "`logging_steps` must be at least 1"),
        (("--output_dir", __file__), __file__),
        (("--vocab_file", "nowhere.txt"), "nowhere.txt"),
        (("--model_name_or_path", Path(__file__).parent), str(Path(__file__).parent)),
    ],
)
def test_bad_settings_are_refused_in_one_line(more, message, text, tmp_path, capsys):
    assert pretrain.main(arguments(text, tmp_path, *more)) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert errors[-1].startswith("error: ")
    assert message in errors[-1]


def test_checkpoints_are_not_removed_for_a_run_that_cannot_begin(trained, text, tmp_path, capsys):
    shutil.copytree(trained / "checkpoint-20", tmp_path / "checkpoint-20")
    missing = (str(tmp_path / "missing.txt"), text[1])
    assert pretrain.main(arguments(missing, tmp_path, "--overwrite_output_dir")) == 2
    assert "missing.txt" in capsys.readouterr().err
    assert run.sorted_checkpoints(tmp_path) == [tmp_path / "checkpoint-20"]


def test_a_folder_with_checkpoints_is_not_begun_anew_unasked(trained, text, tmp_path, capsys):
    shutil.copytree(trained / "checkpoint-20", tmp_path / "checkpoint-20")
    assert pretrain.main(arguments(text, tmp_path)) == 2
    assert "--overwrite_output_dir" in capsys.readouterr().err
    train(text, tmp_path, "--overwrite_output_dir", "--max_steps", 2, "--save_steps", 0)
    assert not run.sorted_checkpoints(tmp_path)
    vocabulary = (tmp_path / "vocab.txt").read_text()
    assert pretrain.main(arguments(text[::-1], tmp_path)) == 2  # there is a model, if no checkpoint
    assert "has a finished model" in capsys.readouterr().err
    assert (tmp_path / "vocab.txt").read_text() == vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("lane: 3\n", "there is no setting `lane`; did you mean `lanes`"),
        ("- a\n", "a recipe must be settings"),
        ("a: [", "not YAML"),
    ],
)
def test_a_bad_recipe_is_named(content, message, tmp_path, capsys):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(content)
    assert pretrain.main([str(recipe), "--output_dir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert pretrain.main(["nosuch", "--output_dir", str(tmp_path)]) == 2
    assert "mini" in capsys.readouterr().err


def test_empty_text_is_refused(tmp_path, capsys, text):
    (tmp_path / "blank.txt").write_text("\n \n")
    assert pretrain.main(arguments((str(tmp_path / "blank.txt"), text[1]), tmp_path / "out")) == 2
    assert "no words" in capsys.readouterr().err


def test_a_held_out_text_without_words_is_refused_before_training(tmp_path, capsys, text):
    (tmp_path / "blank.txt").write_text("\n \n")
    assert pretrain.main(arguments((text[0], str(tmp_path / "blank.txt")), tmp_path / "out")) == 2
    assert "blank.txt: the held-out text has no words" in capsys.readouterr().err


def test_a_text_whose_words_are_all_too_rare_is_refused(tmp_path, capsys, text):
    (tmp_path / "rare.txt").write_text("a b c\n")
    assert pretrain.main(arguments((str(tmp_path / "rare.txt"), text[1]), tmp_path / "out")) == 2
    assert "no word of the text occurs `min_count`=2 times" in capsys.readouterr().err


def test_results_have_the_share_of_unknown_words(tmp_path):
    (tmp_path / "text.txt").write_text("a b a b c\n" * 1 + "a b\n" * 9)
    (tmp_path / "held.txt").write_text("a b z z\n")
    results = train((tmp_path / "text.txt", tmp_path / "held.txt"), tmp_path / "out", "--max_steps", 2)
    assert results["train_unknown"] == pytest.approx(1 / 23)
    assert results["eval_unknown"] == pytest.approx(2 / 5)  # the end of a sentence is predicted too


def test_an_evaluation_shows_how_far_it_is_without_a_terminal(text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run, "SECONDS_BETWEEN_LINES", 0)
    train(text, tmp_path, "--max_steps", 2, "--save_steps", 0)
    assert re.search(r"^evaluating: \d+ words$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("name", ["tiny", "low-resource", "mini", "small", "original", "english"])
def test_every_recipe_builds_the_model_it_says(name, text, tmp_path):
    settings = pretrain.read_settings([name, "--train_file", text[0], "--output_dir", str(tmp_path)])
    with torch.device("meta"):
        model = ElmoModel(pretrain.ElmoConfig(**settings.elmo_config(), vocab_size=100, mix="average"))
    millions = {"tiny": 0.024, "low-resource": 2.998, "mini": 2.998, "small": 13.593, "original": 93.601}
    millions["english"] = 5.985
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions[name], abs=6e-4)


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as ended:
        pretrain.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "accelerate launch -m training.pretrain" in shown
    assert "--resume_from_checkpoint" in shown


@pytest.mark.parametrize(("largest", "calls"), [(2**31, 2), (2**25, 3), (0, 2)])
def test_freed_memory_is_kept_as_far_as_the_c_library_lets(largest, calls, monkeypatch):
    made = []

    def mallopt(parameter: int, value: int) -> int:
        made.append(parameter)
        return int(parameter != processes.M_MMAP_THRESHOLD or value <= largest)

    monkeypatch.setattr(processes.sys, "platform", "linux")
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    processes.keep_freed_memory()
    assert len(made) == calls
    # Set alone, the other threshold would have every block of a step mapped anew.
    assert (processes.M_TRIM_THRESHOLD in made) == (largest > 0)
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda _: SimpleNamespace())  # not glibc
    processes.keep_freed_memory()


def test_unknown_words_are_counted_where_the_vocabulary_is_given_and_short_runs_have_a_loss(text, tmp_path):
    (tmp_path / "words.txt").write_text(".\nthe\na\nis\nwas\n")
    more = ("--vocab_file", tmp_path / "words.txt", "--save_steps", 0, "--logging_steps", 50)
    results = train(text, tmp_path / "out", *more, "--max_steps", 3)
    assert results["train_unknown"] == pytest.approx(2 / 5)
    assert results["train_loss"] > 0


def test_text_that_looks_raw_is_said_before_training(text, tmp_path, capsys):
    raw = tmp_path / "raw.txt"
    raw.write_text(Path(text[0]).read_text().replace(" .", "."))
    more = ("--max_steps", 1, "--save_steps", 0)
    train((raw, text[1]), tmp_path / "whitespace", *more)
    assert "raw.txt looks raw: " in capsys.readouterr().err
    train((raw, text[1]), tmp_path / "split", *more, "--raw")
    assert "looks raw" not in capsys.readouterr().err
