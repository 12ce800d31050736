"""Sharing on the Hub, for real: against a server on this machine that speaks its language."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hub_server import HubServer, card_errors
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import hub_upload
from modeling_elmo import (
    ElmoConfig,
    ElmoForCoreferenceResolution,
    ElmoForMultipleChoice,
    ElmoForPreTraining,
    ElmoForQuestionAnswering,
    ElmoForSemanticRoleLabeling,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.card import format_number, release_card
from modeling_elmo.configuration_elmo import AUTO_MAP
from modeling_elmo.files import ElmoError
from modeling_elmo.page import write_page
from training import finetune, pretrain
from training.coref import coreference_scores
from training.settings import Settings

ROOT = Path(hub_upload.__file__).parent
TOKEN, OTHER_TOKEN, WRONG_TOKEN = (f"hf_{name * 6}" for name in ("owner", "other", "wrong"))
WORDS = ["the", "bank", "river", "lives", "in", "."]
SIZES = {
    "vocab_size": 4 + len(WORDS),
    "projection_dim": 8,
    "cell_dim": 16,
    "char_filters": [[1, 4], [3, 12]],
    "num_highway_layers": 1,
}
HEAD = {"word_vector_dim": 5, "head_dim": 6, "head_char_filters": 7, "num_labels": 3}

# A process that has the package and takes the server for the Hub. It runs hub_upload as often as told: importing takes
# longer than all else. Backing off between attempts is left out; and where told, the check of the release, which other
# uploads have.
UPLOADER = """
import contextlib, io, json, sys, types
import huggingface_hub.utils._http as http
http.time = types.SimpleNamespace(sleep=lambda seconds: None)
import hub_upload
check = hub_upload.check_release
for line in sys.stdin:
    arguments, checked = json.loads(line)
    hub_upload.check_release = check if checked else (lambda *_: "not this time")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = hub_upload.main(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""

# The two other ways to share, and the Hub's check of a card.
PUSHER = """
import sys
from datasets import Dataset
from huggingface_hub import ModelCard
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments
from modeling_elmo import ElmoForTokenClassification, ElmoModel, ElmoTokenizer
bilm, tagger, output, card = sys.argv[1:]

ElmoModel.from_pretrained(bilm).push_to_hub("user/pushed")
ElmoTokenizer.from_pretrained(bilm).push_to_hub("user/pushed")

model, tokenizer = ElmoForTokenClassification.from_pretrained(tagger), ElmoTokenizer.from_pretrained(tagger)
row = dict(tokenizer(["Anna", "lives", "in", "Oslo"], is_split_into_words=True), labels=[-100, 1, 0, 0, 1, -100])
settings = TrainingArguments(
    output, push_to_hub=True, hub_model_id="user/trained", max_steps=1, save_strategy="no", report_to="none",
    learning_rate=0.01, use_cpu=True, disable_tqdm=True,
)
collator = DataCollatorForTokenClassification(tokenizer)
trainer = Trainer(model, settings, collator, Dataset.from_list([row] * 2), processing_class=tokenizer)
trainer.train()
trainer.push_to_hub()

ModelCard.load(card).validate()
try:
    ModelCard("---\\nlicense: my own\\n---\\n").validate()
except ValueError as error:
    assert "license" in str(error), error
else:
    raise AssertionError("a bad license went through")
"""

# A process without the package. Asked for [auto class, name, revision], it saves what the models compute.
LOADER = """
import json, sys

class NoPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "modeling_elmo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoPackage())
import torch, transformers
from safetensors.torch import save_file
from typing import Any
wanted, codes, (first, second), result = json.loads(sys.argv[1])
tensors = {}
{probe}
for number, (auto_class, name, revision) in enumerate(wanted):
    options = {"trust_remote_code": True, **({"revision": revision} if revision else {})}
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
    model = getattr(transformers, auto_class).from_pretrained(name, **options).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    tensors |= {f"{number}.{key}": value for key, value in probe(model, tokenizer, first, second).items()}
save_file(tensors, result)
for code in codes:
    exec(code, {})
"""


@dataclass
class Done:
    """How a program ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer({TOKEN: "user", OTHER_TOKEN: "other"}) as server:
        yield server


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hub")


def environment(hub: HubServer, home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE"))}
    return {**kept, **hub.environment(home), "PYTHONPATH": str(ROOT), **more}


class Uploader:
    """`uploader(folder, name, …)` is `python hub_upload.py folder name …`."""

    def __init__(self, hub: HubServer, home: Path) -> None:
        tokens = {"MINE": TOKEN, "OTHERS": OTHER_TOKEN, "WRONG": WRONG_TOKEN}
        self.process = subprocess.Popen(
            [sys.executable, "-c", UPLOADER],
            env=environment(hub, home, **tokens),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: object, token: str | None = "MINE", checked: bool = False) -> Done:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        named = [] if token is None else ["--token-from-env", token]
        command = [*map(str, arguments), "--license", "mit", *named]
        self.process.stdin.write(json.dumps([command, checked]) + "\n")
        self.process.stdin.flush()
        done = Done(*json.loads(self.process.stdout.readline()))
        assert not any(secret in done.out + done.err for secret in (TOKEN, OTHER_TOKEN, WRONG_TOKEN))
        return done


@pytest.fixture(scope="module")
def uploader(hub, work) -> Iterator[Uploader]:
    made = Uploader(hub, work / "uploader-home")
    yield made
    made.process.stdin.close()
    made.process.wait(timeout=60)


def save(model: Any, folder: Path) -> Path:
    ElmoTokenizer(vocab=WORDS, lowercase_fallback=True).save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bilm(work) -> Path:
    """A folder as pretraining leaves it, but for the time that takes."""
    torch.manual_seed(0)
    model = ElmoForPreTraining(ElmoConfig(**SIZES))
    folder = save(model, work / "bilm")
    results = {
        "eval_perplexity_forward": 104.71234,
        "eval_perplexity_backward": 106.94321,
        "eval_perplexity": 105.82111,
        "train_steps": 3000,
        "train_words": 3_840_000,
        "train_seconds": 1620.5,
        "train_loss": 4.125,
    }
    settings = Settings(
        output_dir="bilm", train_file=["litbank.txt"], validation_file=["heldout.txt"], learning_rate=0.125
    )
    (folder / "README.md").write_text(pretrain.model_card(settings, results, model, ElmoTokenizer(vocab=WORDS)))
    (folder / "all_results.json").write_text(json.dumps(results))
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "optimizers.pt").write_bytes(b"\0")
    (folder / "LICENSE").write_text("Do as you please.\n")
    return folder


@pytest.fixture(scope="module")
def tagger(work, bilm) -> Path:
    """A tagger trained by finetune.py, with all that it leaves."""
    sentences = []
    for name in ("Anna", "Boris", "Clara", "David"):
        for town in ("Oslo", "Rome"):
            tags = [(name, "I-PER"), ("lives", "O"), ("in", "O"), (town, "I-LOC"), (".", "O")]
            sentences.append("\n".join(f"{word} X X {tag}" for word, tag in tags))
    data, output = work / "data.conll", work / "tagger"
    data.write_text("\n\n".join(sentences) + "\n")
    command = ["--task", "ner", "--train_file", data, "--validation_file", data, "--test_file", data]
    command += ["--model_name_or_path", bilm, "--output_dir", output, "--disable_tqdm", "true"]
    command += ["--head_overrides", "head_dim=12", "head_char_filters=8", "--learning_rate", 0.01]
    command += ["--per_device_train_batch_size", 2, "--num_train_epochs", 12]
    assert finetune.finetune([str(value) for value in command]) is not None
    return output


def vectors(folder: Path, kind: Any) -> dict[str, torch.Tensor]:
    """What the folder's own model computes, with the package."""
    return hub_upload.probe(
        kind.from_pretrained(folder).eval(), ElmoTokenizer.from_pretrained(folder), *hub_upload.PROBES
    )


def write_card(folder: Path, **changes: Any) -> str:
    model, tokenizer = hub_upload.load_source(folder)
    return release_card(folder, model, tokenizer, "user/name", **{"license": "mit", **changes})


def python_block(card: str) -> str:
    return card.split("```python\n")[1].split("```")[0]


def scores_of(card: str) -> dict[tuple[str, str], float]:
    found = ModelCard(card).data.eval_results or []
    return {(result.dataset_split, result.metric_name): result.metric_value for result in found}


# ------------------------------------------------------------------------------------------------------ round trips


def test_what_was_shared_in_three_ways_computes_the_same_without_the_package(hub, work, bilm, tagger, uploader):
    # The script itself, with the login's token.
    command = [sys.executable, str(ROOT / "hub_upload.py"), str(tagger), "user/tagger", "--license", "mit"]
    command += ["--language", "en"]
    settings = environment(hub, work / "home", HF_TOKEN=TOKEN)
    settings.pop("PYTHONPATH")
    done = subprocess.run(command, env=settings, cwd=work, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert f"{hub.endpoint}/user/tagger\n" in done.stdout
    assert 'AutoModelForTokenClassification.from_pretrained("user/tagger", trust_remote_code=True)' in done.stdout
    assert "the same vectors, bit for bit" in done.stdout
    repo = hub.repos["user/tagger"]
    assert repo.messages == ["initial commit", "Upload ElmoForTokenClassification"]  # all in one commit
    first = repo.branches["main"]
    assert f'("user/tagger", trust_remote_code=True, revision="{first}")\n' in done.stdout
    files = repo.files()
    assert all(file.is_large == name.endswith((".safetensors", ".png")) for name, file in files.items())
    assert json.loads(files["config.json"].content)["auto_map"] == AUTO_MAP
    assert not any(name.startswith(("checkpoint", "predictions", "cache")) for name in files)
    assert "POST /api/validate-yaml" in hub.requests
    assert "POST /user/tagger.git/info/lfs/objects/complete" in hub.requests  # large files went in parts

    # A branch of its own, of another model under the same name: pretraining, in one file.
    done = uploader(bilm, "user/tagger", "--revision", "dev/bilm", "--private", checked=True)
    assert done.code == 2
    assert "user/tagger exists and is public" in done.err
    done = uploader(bilm, "user/tagger", "--revision", "dev/bilm", checked=True)
    assert done.code == 0, done.err
    assert "Not uploaded: checkpoint-5/" in done.out
    assert set(repo.branches) == {"main", "dev/bilm"}
    assert repo.branches["main"] == first
    on_branch = repo.files("dev/bilm")
    assert [name for name in on_branch if name.endswith(".safetensors")] == ["model.safetensors"]
    assert "LICENSE" in on_branch

    output, card = work / "trained", work / "card.md"
    card.write_bytes(files["README.md"].content)
    command = [sys.executable, "-c", PUSHER, str(bilm), str(tagger), str(output), str(card)]
    done = subprocess.run(
        command, env=environment(hub, work / "home", HF_TOKEN=TOKEN), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]

    head = "AutoModelForTokenClassification"
    wanted = [
        (head, "user/tagger", None, tagger, ElmoForTokenClassification),
        ("AutoModel", "user/tagger", "main", tagger, ElmoModel),
        ("AutoModel", "user/tagger", "dev/bilm", bilm, ElmoModel),
        ("AutoModelForPreTraining", "user/tagger", repo.branches["dev/bilm"], bilm, ElmoForPreTraining),
        (head, "user/tagger", first, tagger, ElmoForTokenClassification),
        ("AutoModel", "user/pushed", hub.repos["user/pushed"].branches["main"], bilm, ElmoModel),
        (head, "user/trained", None, output, ElmoForTokenClassification),
    ]
    cards = [files["README.md"], on_branch["README.md"]]
    codes = [python_block(file.content.decode()) for file in cards]
    assert 'revision="dev/bilm"' in codes[1]
    result = work / "loaded.safetensors"
    asked = json.dumps([[row[:3] for row in wanted], codes, hub_upload.PROBES, str(result)])
    settings = environment(hub, work / "new-home")
    settings.pop("PYTHONPATH")
    code = LOADER.replace("{probe}", inspect.getsource(hub_upload.probe))
    command = [sys.executable, "-c", code, asked]
    done = subprocess.run(command, env=settings, cwd=work, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    # A revision is what keeps transformers from warning of every code file that it downloads.
    assert "/user/tagger:\n- splitting_elmo.py" in done.stderr
    assert "user/pushed" not in done.stderr
    found = load_file(result)
    for number, (_, _, _, folder, kind) in enumerate(wanted):
        expected = vectors(folder, kind)
        assert len(expected) > 3
        for key, tensor in expected.items():
            assert torch.equal(found[f"{number}.{key}"], tensor), (number, key)
    assert "torch.Size([2, 9, 16])" in done.stdout  # the lines of the second card


# ----------------------------------------------------------------------------------------------------- what is sent


@pytest.fixture
def shared(hub, uploader, bilm, tmp_path, request) -> tuple[Path, str]:
    """A folder of its own that is on the Hub already, and its name there."""
    folder, name = tmp_path / "folder", f"user/shared-{len(hub.repos)}"
    shutil.copytree(bilm, folder)
    assert uploader(folder, name).code == 0
    hub.forget_counts()
    return folder, name


def test_the_second_time_nothing_is_sent_and_then_only_what_changed(hub, uploader, shared):
    folder, name = shared
    done = uploader(folder, name)
    assert done.code == 0
    assert "Nothing left to send" in done.out
    assert hub.sent_bytes == 0
    assert len(hub.repos[name].messages) == 2
    (folder / "LICENSE").write_text("Do as I say.\n")
    done = uploader(folder, name)
    assert "Sent what changed, in commit" in done.out
    assert hub.sent == ["LICENSE"]
    assert hub.repos[name].messages[2:] == ["Upload ElmoForPreTraining"]
    # What the release no longer has, and what could be mistaken for part of it, goes.
    (folder / "mix_weights.json").write_text('{"input": [1.0, 2.0, 3.0]}')
    assert uploader(folder, name).code == 0
    assert "mix_weights.json" in hub.repos[name].files()
    (folder / "mix_weights.json").unlink()
    assert uploader(folder, name).code == 0
    assert "mix_weights.json" not in hub.repos[name].files()
    assert "LICENSE" in hub.repos[name].files()


@pytest.mark.parametrize(
    ("drop", "times", "message"), [("lfs", 9, "the connection"), ("commit", 1, "the connection"), ("lfs", 2, None)]
)
def test_a_broken_connection_leaves_all_or_nothing(drop, times, message, hub, uploader, shared):
    folder, name = shared
    torch.manual_seed(1)
    ElmoForPreTraining(ElmoConfig(**SIZES)).save_pretrained(folder)
    before = dict(hub.repos[name].branches)
    hub.drop[drop] = times
    done = uploader(folder, name)
    hub.drop[drop] = 0
    if message is None:  # it was tried again
        assert done.code == 0, done.err
        assert hub.repos[name].branches != before
        return
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"error: {message} to {hub.endpoint} broke: ")
    assert f"no file of {name} was changed: run the same command again" in done.err
    assert hub.repos[name].branches == before
    assert uploader(folder, name).code == 0
    assert hub.sent == ["model.safetensors"]


def test_a_commit_whose_answer_was_lost_is_no_failure(hub, uploader, shared):
    folder, name = shared
    (folder / "LICENSE").write_text("Another.\n")
    hub.drop["answer"] = 1
    done = uploader(folder, name)
    assert done.code == 0, done.err
    assert hub.repos[name].branches["main"] in done.out
    assert len(hub.repos[name].messages) == 3


def test_a_hub_that_is_gone_during_the_commit_is_not_called_unchanged(tmp_path):
    infos = iter([SimpleNamespace(sha="before")])

    def answer_once(*_, **__):
        for info in infos:
            return info
        raise OSError("unreachable")

    def fail(*_, **__):
        raise OSError("connection reset")

    def do_nothing(*_, **__):
        return ()

    api = SimpleNamespace(endpoint="http://hub", repo_info=answer_once, create_commit=fail)
    api.create_repo = api.create_branch = api.list_repo_files = do_nothing
    with pytest.raises(ElmoError, match="user/name has all of it or nothing; run the same command again"):
        hub_upload.upload(api, "user/name", "main", False, tmp_path, "Upload")


@pytest.mark.parametrize(
    ("token", "name", "message"),
    [
        ("WRONG", "user/refused", "does not accept the token (401)"),
        ("OTHERS", "user/refused", "has no right to write to user/refused (403)"),
        ("OTHERS", "SHARED", "(403)"),
        (None, "user/refused", "there is no token: log in with `hf auth login`, or give --token-from-env"),
        ("UNSET", "user/refused", "--token-from-env: the environment variable UNSET is not set"),
    ],
)
def test_who_may_not_write_is_told_so_and_changes_nothing(token, name, message, hub, uploader, shared):
    folder, here = shared
    (folder / "LICENSE").write_text("Mine.\n")
    before = {key: dict(repo.branches) for key, repo in hub.repos.items()}
    done = uploader(folder, here if name == "SHARED" else name, token=token)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert message in done.err
    assert {key: dict(repo.branches) for key, repo in hub.repos.items()} == before
    assert hub.sent_bytes == 0


def test_a_new_repository_can_be_private_and_a_bad_card_is_the_hubs_word(hub, uploader, bilm):
    assert uploader(bilm, "user/hidden", "--private").code == 0
    assert hub.repos["user/hidden"].private
    done = uploader(bilm, "user/hidden", "--private", "--language", "English")
    assert done.code == 2
    assert '"language" must be an ISO 639 code' in done.err
    assert done.err.count("\n") == 1
    assert len(hub.repos["user/hidden"].messages) == 2


# ------------------------------------------------------------------------------------------------------- a Space


@pytest.fixture
def page(bilm, tmp_path) -> Path:
    corpus = tmp_path / "rivers & banks.txt"
    corpus.write_text("the bank lives in the river .\n")
    write_page(str(corpus), tmp_path / "senses.html", str(bilm), words="bank")
    return tmp_path / "senses.html"


def test_a_page_becomes_a_static_space_in_one_commit(hub, uploader, page):
    done = uploader(page, "user/senses", "--space", "--private")
    assert done.code == 0, done.err
    assert done.out.endswith(f"{hub.endpoint}/spaces/user/senses\n")
    repo = hub.repos["spaces/user/senses"]
    assert (repo.sdk, repo.private) == ("static", True)
    assert repo.messages == ["initial commit", "Upload a page of senses"]
    files = repo.files()
    assert files["index.html"].content == page.read_bytes()
    card = ModelCard(files["README.md"].content.decode())
    assert card.data.to_dict() == {
        "title": "Senses in rivers & banks.txt",
        "sdk": "static",
        "app_file": "index.html",
        "pinned": False,
        "tags": ["elmo"],
        "license": "mit",
    }
    again = uploader(page, "user/senses", "--space")
    assert "Nothing left to send" in again.out
    assert len(repo.messages) == 2
    assert "user/senses" not in hub.repos


def test_a_dry_run_of_a_space_sends_nothing_and_bad_input_is_one_line(page, bilm, tmp_path, capsys):
    assert hub_upload.main([str(page), "user/name", "--space", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "'Senses in rivers & banks.txt', " in out
    assert "/spaces/user/name (branch main, public if new). Nothing was sent.\n" in out
    (card,) = re.findall(r"^Card: (.+)$", out, flags=re.MULTILINE)
    assert "sdk: static\n" in Path(card).read_text()
    shutil.rmtree(Path(card).parent)
    (tmp_path / "other.html").write_text("<title>Mine</title>")
    for arguments, message in (
        ([bilm, "user/name"], "no such file; --space takes a page that `elmo page` wrote"),
        ([tmp_path / "other.html", "user/name"], "not a page that `elmo page` wrote"),
        ([page, "name"], "REPO_ID must be user/name"),
        ([page, "user/name", "--language", "en"], "--language and --datasets are for models"),
    ):
        assert hub_upload.main([*map(str, arguments), "--space", "--dry-run"]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert message in captured.err


# ------------------------------------------------------------------------------------------------------ the card


def test_the_card_of_a_tagger_has_the_figures_of_its_run(tagger):
    card = write_card(tagger, datasets=["eriktks/conll2003"], language=["en"])
    results = json.loads((tagger / "all_results.json").read_text())
    scores = scores_of(card)
    assert scores == {
        (split, name): results[f"{prefix}_{metric}"]
        for prefix, split in (("eval", "validation"), ("test", "test"))
        for metric, name in (("f1", "F1"), ("accuracy", "Accuracy"), ("precision", "Precision"), ("recall", "Recall"))
    }
    for value in scores.values():
        assert value > 0
        assert f"| {format_number(value)} |" in card
    for weights in json.loads((tagger / "mix_weights.json").read_text()).values():
        assert " | ".join(f"{value:.3f}" for value in weights) in card
    data = ModelCard(card).data
    assert (data.license, data.language, data.library_name) == ("mit", ["en"], "transformers")
    assert (data.pipeline_tag, data.datasets, data.tags) == ("token-classification", ["eriktks/conll2003"], ["elmo"])
    assert data.metrics == ["accuracy", "f1", "precision", "recall"]
    assert f"| training loss | {format_number(results['train_loss'])} |" in card
    assert "10.18653/v1/N18-1202" in card
    assert card_errors(card) == []
    assert str(ModelCard(card)) == card  # huggingface_hub reads and writes it without a change


def test_the_card_of_a_pretrained_model_keeps_its_recipe_and_perplexities(bilm, tmp_path):
    card = write_card(bilm, datasets=["user/litbank"])
    results = json.loads((bilm / "all_results.json").read_text())
    assert scores_of(card) == {
        ("validation", "Perplexity"): results["eval_perplexity"],
        ("validation", "Perplexity, forward"): results["eval_perplexity_forward"],
        ("validation", "Perplexity, backward"): results["eval_perplexity_backward"],
    }
    assert "trained on litbank.txt" in card
    assert "Perplexities are of heldout.txt, under the full softmax" in card
    assert "learning_rate: 0.125" in card
    assert "| words read | 3,840,000 |" in card
    assert "Mix weights" not in card
    assert card_errors(card) == []
    # The release of a release has the same card.
    again = shutil.copytree(bilm, tmp_path / "again")
    (again / "README.md").write_text(card)
    assert write_card(again, license=None) == card


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ElmoForQuestionAnswering, {"exact_match": "Exact match", "f1": "F1"}),
        (ElmoForSequenceClassification, {"micro_f1": "F1 over all decisions", "pearson": "Pearson correlation"}),
        (
            ElmoForCoreferenceResolution,
            {
                "conll_f1": "CoNLL F1, the mean of MUC, B³ and CEAF",
                "without_singletons_conll_f1": "CoNLL F1 without clusters of one mention",
                "b_cubed_f1": "B³, F1",
                "mention_recall": "Mentions, recall",
            },
        ),
    ],
)
def test_a_card_has_every_score_of_a_task(kind, names, tmp_path):
    task = next(task for task in finetune.TASKS.values() if task.head is kind)
    known = coreference_scores([[[(0, 1), (2, 3)]]], [[[(0, 1), (2, 3)]]]) if task.metric == "conll_f1" else {}
    expected = dict.fromkeys([*known, *names], 0.75)
    folder = save(kind(ElmoConfig(**SIZES, **HEAD)), tmp_path / "model")
    results = {f"{part}_{name}": score for part in ("eval", "test") for name, score in expected.items()}
    (folder / "all_results.json").write_text(json.dumps(results))
    card = write_card(folder)
    found = scores_of(card)
    assert len(found) == len(results)
    for name in names.values():
        assert found["validation", name] == found["test", name] == 0.75
        assert f"| {name}, test | 0.75 |" in card
    assert card_errors(card) == []


def test_a_card_says_nothing_that_the_folder_does_not_and_is_stable(tmp_path):
    folder = save(ElmoModel(ElmoConfig(**SIZES)), tmp_path / "model")
    card = write_card(folder, license="apache-2.0")
    assert not any(heading in card for heading in ("## Results", "## Recipe", "## Mix weights", "## Origin"))
    assert "model-index" not in card
    (folder / "README.md").write_text(card.replace("license: apache-2.0", "license: cc-by-4.0"))
    again = write_card(folder, license=None)
    assert again == card.replace("license: apache-2.0", "license: cc-by-4.0")


@pytest.mark.parametrize(
    ("kind", "changes", "tag"),
    [
        (ElmoForSequenceClassification, {}, "text-classification"),
        (ElmoForSequenceClassification, {"sequence_encoder": "bcn"}, "text-classification"),
        (ElmoForSequenceClassification, {"sequence_encoder": "esim"}, "text-classification"),
        (ElmoForMultipleChoice, {}, "multiple-choice"),
        (ElmoForQuestionAnswering, {}, "question-answering"),
        (ElmoForTokenClassification, {"elmo_placement": "none"}, "token-classification"),
        (ElmoForSemanticRoleLabeling, {}, None),
        (ElmoForCoreferenceResolution, {"predict_singletons": True}, None),
    ],
)
def test_the_lines_of_every_heads_card_run(kind, changes, tag, tmp_path, capsys):
    model = kind(ElmoConfig(**SIZES, **HEAD, **changes))
    if kind is ElmoForCoreferenceResolution:  # untrained, it may find nothing
        torch.nn.init.constant_(model.ranking.mention.output.bias, 100.0)
    folder = save(model, tmp_path / "model")
    card = write_card(folder)
    assert ModelCard(card).data.pipeline_tag == tag
    if tag is None:
        assert hub_upload.TASK_TAGS[kind.__name__] in ModelCard(card).data.tags
    code = python_block(card)
    assert code.count("\n") <= 12
    exec(code.replace('"user/name"', repr(str(folder))), {})
    assert capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------- the check


def test_a_dry_run_checks_and_lists_and_sends_nothing(tmp_path, capsys):
    # Its words alone are too little for the other heads, which is no loss.
    changes = {"elmo_placement": "output", "word_vector_dim": 0}
    folder = save(ElmoForTokenClassification(ElmoConfig(**SIZES, **{**HEAD, **changes})), tmp_path / "model")
    before = sorted(folder.iterdir())
    assert hub_upload.main([str(folder), "user/name", "--license", "mit", "--dry-run", "--revision", "v2"]) == 0
    out = capsys.readouterr().out
    (card,) = re.findall(r"^Model card: (.+)$", out, flags=re.MULTILINE)
    assert "# name\n" in Path(card).read_text()
    shutil.rmtree(Path(card).parent)
    assert sorted(folder.iterdir()) == before
    assert "loads without the package through AutoConfig, AutoTokenizer, AutoModel" in out
    assert "no AutoModelForSequenceClassification, AutoModelForMultipleChoice, which this config cannot make" in out
    for name in ("model.safetensors", "config.json", "README.md", "modeling_elmo.py", "vocab.txt"):
        assert f"B  {name}\n" in out
    assert "/user/name/tree/v2 (branch v2, public if new)" in out
    assert out.endswith("Nothing was sent.\n")


def test_the_card_can_be_written_where_the_user_says(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert hub_upload.save_card("text", folder / "README.md") == folder / "README.md"
    assert (folder / "README.md").read_text() == "text"
    with pytest.raises(ElmoError, match=r"--card: cannot write .*: No such file or directory"):
        hub_upload.save_card("text", tmp_path / "missing" / "card.md")


@pytest.mark.parametrize("kind", [ElmoForSemanticRoleLabeling, ElmoForCoreferenceResolution])
def test_a_head_without_an_auto_class_is_checked_by_its_name(kind, tmp_path, capsys):
    folder = save(kind(ElmoConfig(**SIZES, **HEAD)), tmp_path / "model")
    assert hub_upload.main([str(folder), "user/name", "--license", "mit", "--dry-run"]) == 0
    assert f", {kind.__name__}; the same vectors, bit for bit" in capsys.readouterr().out


def test_a_release_that_computes_otherwise_is_refused(tmp_path, monkeypatch):
    folder = save(ElmoModel(ElmoConfig(**SIZES)), tmp_path / "model")
    model, tokenizer = hub_upload.load_source(folder)
    same = hub_upload.probe(model, tokenizer, *hub_upload.PROBES)
    other = {key: tensor.clone() for key, tensor in same.items()}
    other["ElmoModel.output.last_hidden_state.0"][0, 1, 0] += 1e-7
    for found, failed, message in (
        (other, {}, "the release gives another ElmoModel.output.last_hidden_state"),
        (same, {"AutoModel": "no such file"}, "AutoModel cannot load the release: no such file"),
        (same, {"AutoModelForPreTraining": "odd"}, "AutoModelForPreTraining cannot load the release: odd"),
    ):
        monkeypatch.setattr(hub_upload, "run_clean_process", lambda *_, result=(found, failed): result)
        with pytest.raises(ElmoError, match=message):
            hub_upload.check_release(folder, folder, model, tokenizer)
    with torch.no_grad():
        model.char_encoder.char_embedding.weight.fill_(float("nan"))
    with pytest.raises(ElmoError, match="last_hidden_state are not numbers"):
        hub_upload.check_release(folder, folder, model, tokenizer)


# --------------------------------------------------------------------------------------------------------- refusals


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str = "x"):
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)

    return change


def set_config(**values: Any):
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def link_out(folder: Path) -> None:
    (folder / "data").symlink_to("/etc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "not a model folder: config.json is missing"),
        (remove("config.json"), "not a model folder: config.json is missing"),
        (remove("tokenizer_config.json"), "not a model folder: tokenizer_config.json is missing"),
        (remove("model.safetensors"), "cannot load the model: Error no file named model.safetensors"),
        *((write(f"old/weights{suffix}"), "is a pickle") for suffix in hub_upload.PICKLES),
        *(
            (write(name), f"{name} looks like a secret by its name")
            for name in (".env", "id_rsa", "keys/server.pem", "token", ".netrc")
        ),
        (write("notes.txt", f"login with {TOKEN}"), "notes.txt contains a token or a private key"),
        (write("run.yaml", "-----BEGIN OPENSSH PRIVATE KEY-----"), "run.yaml contains a token or a private key"),
        (link_out, "data links to a file outside"),
        (set_config(model_type="bert"), "expected a model of type 'elmo', got 'bert'"),
        (set_config(architectures=None), "`architectures` in config.json must name one of ElmoModel"),
        (
            set_config(architectures=["ElmoForTokenClassification"]),
            "missing weights, such as ",
        ),
        (set_config(num_highway_layers=0), "unexpected weights, such as "),
        (set_config(projection_dim=9), "mismatched weights, such as "),
        (write("model.safetensors"), "cannot load the model"),
        (write("all_results.json", "{"), "all_results.json: not a JSON file"),
        (write("README.md", "---\nlicense: [\n---\n"), "README.md: cannot read its front matter"),
    ],
)
def test_folders_that_must_not_be_shared_are_refused_in_one_line(change, message, tmp_path, capsys):
    folder = save(ElmoModel(ElmoConfig(**SIZES)), tmp_path / "model")
    change(folder)
    capsys.readouterr()  # saving may show a progress bar
    assert hub_upload.main([str(folder), "user/name", "--license", "mit", "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert TOKEN not in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["name"], "REPO_ID must be user/name, got 'name'"),
        (["user/na me"], "Repo id must use alphanumeric chars"),
        (["a/b/c"], "Repo id must be in the form"),
        (["user/name"], "the card has no license: give --license"),
    ],
)
def test_arguments_that_cannot_be_are_refused_in_one_line(arguments, message, tmp_path, capsys):
    folder = save(ElmoModel(ElmoConfig(**SIZES)), tmp_path / "model")
    capsys.readouterr()  # saving may show a progress bar
    assert hub_upload.main([str(folder), *arguments, "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_what_runs_leave_behind_is_left_out_and_named(tmp_path):
    folder = save(ElmoModel(ElmoConfig(**SIZES)), tmp_path / "model")
    for name in ("checkpoint-3/optimizer.pt", "cache/layers.f32", "logs/x", "a.tmp", "train.log", "predictions.tsv"):
        write(name)(folder)
    trainer = "training_args.bin optimizer.pt scheduler.pt scaler.pt rng_state_0.pth trainer_state.json".split()
    for name in trainer:
        write(name)(folder)
    copied, ignored = hub_upload.survey(folder)
    others = ["a.tmp", "cache/", "checkpoint-3/", "logs/", "predictions.tsv", "train.log"]
    assert sorted(ignored) == sorted([*others, *trainer])
    assert copied == []


def test_no_error_shows_a_token_or_a_signature():
    text = "GET https://storage/a?X-Amz-Signature=abc by hf_abcdefghijkl and my-own-token"
    assert hub_upload.scrub(text, "my-own-token") == "GET https://storage/a by … and …"
