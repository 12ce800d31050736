"""Shares the folder of a model on the Hugging Face Hub, whole and checked, so that one line loads it anywhere.

    python hub_upload.py my-elmo user/my-elmo --license apache-2.0 --language en --dry-run
    python hub_upload.py my-elmo user/my-elmo --license apache-2.0 --language en
    python hub_upload.py my-tagger user/my-tagger --license mit --datasets eriktks/conll2003 --private --revision v2

FOLDER is what pretraining, fine-tuning, `elmo convert` or `save_pretrained` wrote. A release is made of it: weights as
safetensors, config, tokenizer, the code that loads them, and a model card with the figures of the run's own
all_results.json. It is loaded in a process that does not have this package, and must give the same vectors, bit for
bit. Then it goes to the Hub in one commit, of the files that differ from what is there. --dry-run ends before that
and needs no network.

Log in once with `hf auth login`, or name the environment variable that holds a token: --token-from-env MY_TOKEN.
"""

import argparse
import fnmatch
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
import transformers
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    get_token,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # the HTTP library's own, which differs between versions of huggingface_hub
    LocalTokenNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import enable_progress_bars, validate_repo_id
from huggingface_hub.utils import logging as hub_logging
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

import modeling_elmo
from modeling_elmo import ElmoPreTrainedModel, ElmoTokenizer
from modeling_elmo.card import (
    AUTO_CLASSES,
    CARD_FILE,
    MIX_FILE,
    RESULTS_FILE,
    TASK_TAGS,
    has_bilm,
    read_card,
    release_card,
)
from modeling_elmo.configuration_elmo import AUTO_MAP
from modeling_elmo.files import BAD_INPUT, ElmoError, first_line, read_json

DEFAULT_BRANCH = "main"

# What a release takes from the folder as it is, and what it writes anew.
TAKEN = f"LICENSE LICENSE.md LICENSE.txt {RESULTS_FILE} {MIX_FILE} perplexity.png mix_weights.png".split()
WEIGHTS = ["model*.safetensors", "model.safetensors.index.json"]
WRITTEN = [
    *WEIGHTS,
    *f"config.json tokenizer_config.json special_tokens_map.json vocab.txt *_elmo.py {CARD_FILE}".split(),
]
# What a run leaves behind and nobody else needs. These are not looked into.
LEFT_BEHIND = (
    "checkpoint-* .checkpoint-* cache .cache *_cache __pycache__ .git .final .ipynb_checkpoints logs runs *.tmp tmp* "
    "*.log events.out.tfevents.*"
).split()
PICKLES = ".bin .pt .pth .pkl .pickle .th .ckpt .joblib".split()
SECRET_NAMES = (
    ".env .env.* *.pem *.key *.p12 id_rsa* id_dsa* id_ecdsa* id_ed25519* token token.txt *.token stored_tokens .netrc "
    ".git-credentials credentials* secrets*"
).split()
SECRET_CONTENTS = re.compile(rb"\bhf_[A-Za-z0-9]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----")
# Larger files are weights and vocabularies.
LARGEST_SEARCHED = 5_000_000
# Files of an earlier release that would be loaded, or taken for part of this one.
REPLACED = [*WEIGHTS, "vocab.txt", "*_elmo.py", MIX_FILE, "*.png"]


# ------------------------------------------------------------------------------------------------------- the folder


@dataclass
class Contents:
    """The files of a folder, by what becomes of them; paths are relative to it."""

    taken: list[str]
    left: list[str]


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def survey(folder: Path) -> Contents:
    """What the folder has. Refuses what must never be published, wherever it is, and a folder that is no model."""
    if not folder.is_dir():
        raise ElmoError(f"{folder}: there is no such folder")
    contents = Contents([], [])
    for path in walk(folder, folder, contents.left):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ElmoError(f"{folder}: {name} links to a file outside; copy the folder with `cp -rL` first")
        if path.is_dir():
            continue
        refuse_secrets(folder, path, name)
        if path.suffix.lower() in PICKLES:
            raise ElmoError(
                f"{folder}: {name} is a pickle, which can run code where it is loaded; remove it, or save the model "
                "anew with save_pretrained"
            )
        if name in TAKEN:
            contents.taken.append(name)
        elif "/" in name or not matches(name, WRITTEN):
            contents.left.append(name)
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ElmoError(f"{folder}: no model folder: it has no {name}")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise ElmoError(f"{folder}: it has no weights: model.safetensors is missing")
    return contents


def walk(top: Path, folder: Path, left: list[str]) -> Iterator[Path]:
    """Every file and folder below, but for what runs leave behind, which is added to `left`."""
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if matches(path.name, LEFT_BEHIND):
            left.append(path.relative_to(top).as_posix() + "/" * is_folder)
            continue
        yield path
        if is_folder:
            yield from walk(top, path, left)


def refuse_secrets(folder: Path, path: Path, name: str) -> None:
    """Refuses a file whose name or text is that of a key or a token. The text itself is not shown."""
    if matches(path.name.lower(), SECRET_NAMES):
        raise ElmoError(f"{folder}: {name} looks like a secret by its name; move it out of the folder")
    if path.stat().st_size <= LARGEST_SEARCHED and SECRET_CONTENTS.search(path.read_bytes()):
        raise ElmoError(f"{folder}: {name} has a token or a private key in it; remove it, and revoke it if it is real")


def load_source(folder: Path) -> tuple[ElmoPreTrainedModel, ElmoTokenizer]:
    """The model of the folder, by the class that its config names, and the tokenizer."""
    settings = read_json(folder / "config.json")
    if settings.get("model_type") != "elmo":
        raise ElmoError(f"{folder}: the model is a {settings.get('model_type')!r}; expected 'elmo'")
    name = next(iter(settings.get("architectures") or []), None)
    known = (*AUTO_CLASSES, *TASK_TAGS)
    if name not in known:
        raise ElmoError(f"{folder}: `architectures` in config.json must name one of {', '.join(known)}, got {name!r}")
    try:
        tokenizer = ElmoTokenizer.from_pretrained(folder, local_files_only=True)
        model, loading = getattr(modeling_elmo, name).from_pretrained(
            folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ElmoError(f"{folder}: the model cannot be loaded: {first_line(error)}") from error
    problems = {
        "mismatched_keys": "are of another size than config.json says",
        "missing_keys": "are missing",
        "unexpected_keys": "have no place in it",
    }
    for key, problem in problems.items():
        if found := sorted(entry if isinstance(entry, str) else entry[0] for entry in loading[key]):
            raise ElmoError(f"{folder}: weights of the {name} {problem}, such as `{found[0]}`; save the model anew")
    return model.eval(), tokenizer


# ------------------------------------------------------------------------------------------------------ the release


def assemble(
    folder: Path,
    release: Path,
    model: ElmoPreTrainedModel,
    tokenizer: ElmoTokenizer,
    card: str,
    taken: Sequence[str],
    max_shard_size: str,
) -> None:
    """Fills the empty folder `release` with all that is to be shared."""
    tokenizer.save_pretrained(release)
    model.save_pretrained(release, max_shard_size=max_shard_size)
    for name in taken:
        copyfile(folder / name, release / name)
    (release / CARD_FILE).write_text(card, encoding="utf-8")
    mapped = read_json(release / "config.json").get("auto_map")
    if mapped != AUTO_MAP:
        raise ElmoError(f"{folder}: the saved config has not the whole auto_map: {mapped}")
    for reference in AUTO_MAP.values():
        if not (release / f"{reference.split('.')[0]}.py").is_file():
            raise ElmoError(
                f"{folder}: the release lacks {reference.split('.')[0]}.py; save_pretrained did not copy it"
            )


PROBES = (
    ["The naïve bank lends money in New York .", "We sat .", "🏦 x" + "y" * 60],
    ["It does n't .", "They stood on the bank of the river .", "."],
)


def probe(model: Any, tokenizer: Any, first: Any, second: Any) -> dict[str, Any]:
    """What a model makes of some sentences: every tensor that goes in and comes out, by name."""
    name = type(model).__name__
    needs_pairs = name in ("ElmoForMultipleChoice", "ElmoForQuestionAnswering") or (
        name == "ElmoForSequenceClassification" and model.config.sequence_encoder == "esim"
    )
    # Weights that are read from a file lie where its header ends. Sums depend on such places in their last bit, so all
    # are moved to where the allocator puts them.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    inputs = dict(tokenizer(first, second if needs_pairs else None, padding=True, return_tensors="pt"))
    found = {f"{name}.{key}": value.clone() for key, value in inputs.items()}
    if name in ("ElmoForMultipleChoice", "ElmoForCoreferenceResolution"):  # the sentences are one example
        inputs = {key: value[None] for key, value in inputs.items()}
    if name == "ElmoForSemanticRoleLabeling":
        inputs["predicate_index"] = torch.ones(len(first), dtype=torch.long)  # the first word, behind the marker
    if name == "ElmoModel":
        inputs["output_hidden_states"] = True
    with torch.no_grad():
        outputs = model(**inputs)
    for key, value in outputs.items():
        for index, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
            found[f"{name}.output.{key}.{index}"] = tensor.contiguous().clone()
    return found


# Neither this file nor the package is there: `probe` is put in as text.
CLEAN_PROCESS = '''
import json
import sys
from typing import Any


class NoPackage:
    """Makes the package impossible to import, wherever it is installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "modeling_elmo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoPackage())

import torch
import transformers
from safetensors.torch import save_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module

{probe}

folder, result, auto_classes, compared, (first, second) = json.loads(sys.argv[1])
transformers.utils.logging.set_verbosity_error()
config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
tensors, failed = {}, {}
for auto_class in auto_classes:
    try:
        if hasattr(transformers, auto_class):
            model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
        else:
            kind = get_class_from_dynamic_module(f"modeling_elmo.{auto_class}", folder)
            model = kind.from_pretrained(folder).eval()
    except Exception as error:
        failed[auto_class] = (str(error).strip() or type(error).__name__).splitlines()[0]
        continue
    for part in (config, tokenizer, model):
        if not type(part).__module__.startswith("transformers_modules."):
            failed[auto_class] = f"{type(part).__name__} came from {type(part).__module__}, not from the release"
    if auto_class in compared:
        tensors.update(probe(model, tokenizer, first, second))
save_file(tensors, result)
print(json.dumps(failed))
'''


def check_release(folder: Path, release: Path, model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer) -> str:
    """Loads the release where the package is not, and compares what it computes with the folder; says what it did."""
    own = AUTO_CLASSES.get(type(model).__name__, type(model).__name__)
    expected = probe(model, tokenizer, *PROBES)
    compared = [own]
    if has_bilm(model) and own != "AutoModel":
        compared.append("AutoModel")
        expected |= probe(modeling_elmo.ElmoModel.from_pretrained(folder).eval(), tokenizer, *PROBES)
    for key, tensor in expected.items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ElmoError(f"{folder}: the model's {key.split('.')[-2]} are not numbers (NaN)")
    found, failed = run_clean_process(release, compared)
    for auto_class, reason in list(failed.items()):
        # A head that the folder's own config cannot make, such as one that would have nothing to read, is no loss.
        if auto_class not in compared and not loads(folder, auto_class):
            continue
        raise ElmoError(f"{folder}: without the package, {auto_class} cannot load the release: {reason}")
    if different := [key for key in expected if key not in found or not torch.equal(expected[key], found[key])]:
        raise ElmoError(f"{folder}: without the package, the release gives another {different[0]}: nothing was sent")
    through = dict.fromkeys(("AutoConfig", "AutoTokenizer", *AUTO_CLASSES.values(), own))
    through = [name for name in through if name not in failed]
    without = f"; no {', '.join(failed)}, which this config cannot make" if failed else ""
    return f"loads without the package through {', '.join(through)}{without}; the same vectors, bit for bit"


def run_clean_process(release: Path, compared: Sequence[str]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """What the release computes in a process without the package, and the auto classes that fail, with the reason."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "tensors.safetensors")
        loaded = list(dict.fromkeys((*AUTO_CLASSES.values(), *compared)))
        asked = [str(release), str(result), loaded, list(compared), PROBES]
        hidden = ("PYTHONPATH", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        # A home of its own: no token, no earlier copy of the code, and no network.
        environment |= {"HF_HOME": str(Path(scratch, "home")), "HF_HUB_OFFLINE": "1"}
        environment.pop("HF_MODULES_CACHE", None)
        code = CLEAN_PROCESS.replace("{probe}", inspect.getsource(probe))
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(asked)],
            env=environment,
            cwd=scratch,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise ElmoError(f"the release does not load in a process without the package: {reason}")
        return load_file(result), json.loads(done.stdout.strip().splitlines()[-1])


def loads(folder: Path, auto_class: str) -> bool:
    """Whether the folder itself loads through an auto class, with the package."""
    try:
        getattr(transformers, auto_class).from_pretrained(folder)
    except (OSError, ValueError, RuntimeError):
        return False
    return True


# ------------------------------------------------------------------------------------------------------- the upload


def size_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def release_files(release: Path) -> list[Path]:
    return sorted(path for path in release.rglob("*") if path.is_file())


def file_list(release: Path) -> str:
    files = release_files(release)
    lines = [f"{size_text(path.stat().st_size):>12}  {path.relative_to(release).as_posix()}" for path in files]
    total = sum(path.stat().st_size for path in files)
    return "\n".join([*lines, f"{size_text(total):>12}  {len(files)} files together"])


def digest(path: Path, is_large: bool) -> str:
    """How the Hub names the contents of a file: of a large one by SHA-256, else as git does."""
    state = hashlib.sha256() if is_large else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def changes(api: HfApi, repo_id: str, commit: str, release: Path) -> tuple[list[Path], list[str]]:
    """The files that the repository does not have or has otherwise, and its files that this release replaces."""
    there = {
        entry.path: entry
        for entry in api.list_repo_tree(repo_id, recursive=True, revision=commit)
        if isinstance(entry, RepoFile)
    }
    files = {path.relative_to(release).as_posix(): path for path in release_files(release)}
    changed = []
    for name, path in files.items():
        entry = there.get(name)
        known = None if entry is None else (entry.lfs.sha256 if entry.lfs else entry.blob_id)
        if known is None or known != digest(path, is_large=bool(entry and entry.lfs)):
            changed.append(path)
    stale = [name for name in there if name not in files and matches(name, REPLACED)]
    return changed, stale


def prepare_repo(api: HfApi, repo_id: str, branch: str, private: bool) -> str:
    """Makes the repository and the branch where they are not there yet; the commit that the branch is at."""
    api.create_repo(repo_id, private=private or None, exist_ok=True)
    if private and not api.repo_info(repo_id).private:
        raise ElmoError(f"{repo_id} is there and public: --private cannot make it private; change it in its settings")
    try:
        return str(api.repo_info(repo_id, revision=branch).sha)
    except RevisionNotFoundError:
        api.create_branch(repo_id, branch=branch)
        return str(api.repo_info(repo_id, revision=branch).sha)


def upload(api: HfApi, repo_id: str, branch: str, private: bool, release: Path, message: str) -> str:
    """Sends what differs, in one commit; says what was sent.

    `HfApi.upload_folder` would not do: with Xet it makes several commits where one fails, and so may leave half.
    """
    before = prepare_repo(api, repo_id, branch, private)
    changed, stale = changes(api, repo_id, before, release)
    if not changed and not stale:
        return f"Nothing was sent: {repo_id} has all of this already, as commit {before}"
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path.relative_to(release).as_posix(), path) for path in changed
    ]
    operations += [CommitOperationDelete(name) for name in stale]
    try:
        # With the commit that the changes are counted from, so that another's are not undone.
        commit = api.create_commit(
            repo_id, operations, commit_message=message, revision=branch, parent_commit=before
        ).oid
    except (HTTPError, OSError) as error:
        if isinstance(error, HfHubHTTPError):
            raise
        try:
            commit = str(api.repo_info(repo_id, revision=branch).sha)
        except (HTTPError, OSError):
            raise ElmoError(
                f"the connection to {api.endpoint} broke: {first_line(error)}; {repo_id} has all of the release or "
                "nothing of it: run the same command again"
            ) from error
        if commit == before or changes(api, repo_id, commit, release) != ([], []):
            raise
        # The commit came through; only the answer was lost.
    names = ", ".join(path.relative_to(release).as_posix() for path in changed)
    size = size_text(sum(path.stat().st_size for path in changed))
    removed = f"; removed {', '.join(stale)}" if stale else ""
    return f"Sent {len(changed)} files, {size}, in commit {commit}: {names}{removed}"


def scrubbed(text: str, token: str | None) -> str:
    """A text without the token, without anything that looks like one, and without what signs an address."""
    if token:
        text = text.replace(token, "…")
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", re.sub(r"hf_[A-Za-z0-9]{8,}", "…", text))


def what_went_wrong(error: BaseException, repo_id: str, endpoint: str) -> str:
    """An error of the upload, in a line that says what to do."""
    as_it_was = f"{repo_id} is as it was"
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token: log in with `hf auth login`, or give --token-from-env NAME"
    # What failed in a thread has its reason behind it.
    while not isinstance(error, (HfHubHTTPError, HTTPError)) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, HfHubHTTPError):
        reason = first_line(error) if isinstance(error, Exception) else type(error).__name__
        if isinstance(error, ValueError):  # what the client or the Hub finds wrong with the card
            return f"{' '.join(str(error).split())}; {as_it_was}"
        return f"the connection to {endpoint} broke: {reason}; {as_it_was}: run the same command again"
    status = error.response.status_code
    answer = " ".join((error.server_message or "").split()) or first_line(error)
    if status == 401:
        return f"{endpoint} does not take the token (401): {answer}; {as_it_was}: log in anew with `hf auth login`"
    if status == 403:
        return f"the token has no right to write to {repo_id} (403): {answer}; {as_it_was}"
    if status == 412:
        return f"{repo_id} was changed meanwhile by someone else (412); nothing was sent: run the same command again"
    return f"{endpoint} answered {status}: {answer}; {as_it_was}"


# ------------------------------------------------------------------------------------------------------ command line


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hub_upload.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the model's folder")
    parser.add_argument("repo_id", metavar="REPO_ID", help="where it goes: user/name, or organization/name")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--revision", default=DEFAULT_BRANCH, metavar="REV", help="the branch, made if it is not there (%(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="make and check the release, list it, and send nothing")
    parser.add_argument(
        "--token-from-env",
        metavar="NAME",
        help="the environment variable that holds the token; by default the login of `hf auth login`, or HF_TOKEN",
    )
    parser.add_argument("--license", metavar="L", help="the Hub's name of a license, such as apache-2.0 or mit")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="languages, such as en de")
    parser.add_argument("--datasets", nargs="+", metavar="ID", help="data sets of the Hub that it was trained on")
    parser.add_argument("--commit-message", metavar="TEXT", help="what the commit is called")
    parser.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="weights above it are split into files (%(default)s)"
    )
    return parser


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuses a repository or a revision that cannot be one."""
    try:
        validate_repo_id(arguments.repo_id)
    except HFValidationError as error:
        raise ElmoError(f"REPO_ID: {first_line(error)}") from error
    if "/" not in arguments.repo_id:
        raise ElmoError(f"REPO_ID must be user/name, got {arguments.repo_id!r}")
    if re.fullmatch("[0-9a-f]{40}", arguments.revision) or not re.fullmatch(r"[\w.][\w./-]*", arguments.revision):
        raise ElmoError(f"--revision must be the name of a branch, got {arguments.revision!r}")
    if not re.fullmatch(r"\d+(\.\d+)?[KMGT]i?B", arguments.max_shard_size, flags=re.IGNORECASE):
        raise ElmoError(f"--max-shard-size must be like 5GB, got {arguments.max_shard_size!r}")


def find_token(name: str | None) -> str | None:
    """The token that the command line points to, or that of the login; None where there is none."""
    if name is None:
        return get_token()
    if not os.environ.get(name, "").strip():
        raise ElmoError(f"--token-from-env: the environment variable {name} is not set")
    return os.environ[name].strip()


def share(arguments: argparse.Namespace, token: str | None) -> None:
    """Makes the release, checks it, and sends it unless told otherwise."""
    folder, repo_id, branch = arguments.folder, arguments.repo_id, arguments.revision
    api = HfApi(token=token)
    address = f"{api.endpoint}/{repo_id}" + ("" if branch == DEFAULT_BRANCH else f"/tree/{branch}")
    metadata = {name: getattr(arguments, name) for name in ("license", "language", "datasets")}
    revision = None if branch == DEFAULT_BRANCH else branch
    contents = survey(folder)
    if not arguments.license and not read_card(folder).data.get("license"):
        raise ElmoError("the card has no license: give --license, such as --license apache-2.0")
    if not arguments.dry_run:
        api.whoami()  # a wrong token is better known before the work than after it
    model, tokenizer = load_source(folder)
    print(f"{folder}: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters")
    if contents.left:
        print(f"Not taken along: {', '.join(sorted(contents.left))}")
    with tempfile.TemporaryDirectory() as scratch:
        release = Path(scratch, "release")
        release.mkdir()
        card = release_card(folder, model, tokenizer, repo_id, revision, **metadata)
        assemble(folder, release, model, tokenizer, card, contents.taken, arguments.max_shard_size)
        survey(release)
        print(f"Checked: {check_release(folder, release, model, tokenizer)}\n\n{file_list(release)}\n")
        if arguments.dry_run:
            visible = "private" if arguments.private else "public"
            print(f"Would go to {address} (branch {branch}, {visible} if new), less what is there. Nothing was sent.")
            return
        message = arguments.commit_message or f"Upload {type(model).__name__}"
        print(upload(api, repo_id, branch, arguments.private, release, message))
    own = AUTO_CLASSES.get(type(model).__name__)
    options = "trust_remote_code=True" + (f', revision="{revision}"' if revision else "")
    how = f'{own}.from_pretrained("{repo_id}", {options})' if own else "Its card says how to load it."
    print(f"\n{address}\n{how}")


def main(arguments: Sequence[str]) -> int:
    parsed = make_parser().parse_args(list(arguments))
    transformers_logging.disable_progress_bar()
    if sys.stderr.isatty():
        enable_progress_bars()  # those of the upload, which the line before turns off as well
    transformers_logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # its warnings show addresses, and those of storage are signed
    token: str | None = None
    try:
        check_arguments(parsed)
        token = find_token(parsed.token_from_env)
        share(parsed, token)
    except ElmoError as error:
        print(f"error: {scrubbed(str(error), token)}", file=sys.stderr)
        return BAD_INPUT
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        line = what_went_wrong(error, parsed.repo_id, HfApi().endpoint)
        print(f"error: {scrubbed(line, token)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"interrupted: {parsed.repo_id} has all of it or nothing", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
