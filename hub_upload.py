"""Share a model folder on the Hugging Face Hub, checked, so that one line loads it anywhere.

    python hub_upload.py my-elmo user/my-elmo --license apache-2.0 --language en --dry-run
    python hub_upload.py my-elmo user/my-elmo --license apache-2.0 --language en
    python hub_upload.py my-tagger user/my-tagger --license mit --datasets eriktks/conll2003 --private --revision v2
    python hub_upload.py senses.html user/senses --space

FOLDER is what pretraining, fine-tuning, `elmo convert` or `save_pretrained` wrote. A release is made from it: weights
as safetensors, config, tokenizer, the code that loads them, and a model card with the figures of the run's own
all_results.json. The release is loaded in a process without this package and must give the same vectors, bit for bit.
Then it is uploaded in one commit; unchanged files are not sent again. --dry-run stops before that, without network,
and writes the model card to a file that it names (--card chooses another).

With --space, a page of `elmo page` becomes a static Space, at which a browser opens it: one commit of the page and a
card.

Log in once with `hf auth login`, or name the environment variable that holds a token: --token-from-env MY_TOKEN.
"""

import argparse
import html
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

from modeling_elmo.files import (
    BAD_INPUT,
    INTERRUPTED,
    ElmoError,
    disk_errors,
    first_line,
    read_json,
    report_interrupts,
    write_text,
)

if __name__ == "__main__":  # the imports that follow take seconds
    report_interrupts()

import torch
import transformers
import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

# HTTPError is the HTTP library's own, which differs between versions of huggingface_hub.
from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError
from huggingface_hub.utils import enable_progress_bars, filter_repo_objects, validate_repo_id
from huggingface_hub.utils import logging as hub_logging
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

import modeling_elmo
from modeling_elmo import ElmoPreTrainedModel, ElmoTokenizer
from modeling_elmo.card import AUTO_CLASSES, CARD_FILE, MIX_FILE, RESULTS_FILE, TASK_TAGS, has_bilm, release_card
from modeling_elmo.loading import load_folder

DEFAULT_BRANCH = "main"

# A page of senses, in a Space; what tells one from other pages, and where: the policy is long, the title behind it.
SPACE_PAGE, PAGE_MARK, PAGE_HEAD = "index.html", 'name="generator" content="elmo page"', 1 << 16

# Files that a release copies as they are, and files that it writes again.
COPIED = ["LICENSE", "LICENSE.md", "LICENSE.txt", RESULTS_FILE, MIX_FILE, "perplexity.png", "mix_weights.png"]
WEIGHTS = ["model*.safetensors", "model.safetensors.index.json"]
CONFIGS = ["config.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"]
REWRITTEN = [*WEIGHTS, *CONFIGS, "*_elmo.py", CARD_FILE]
# Files of an earlier release that would be loaded, or mistaken for part of this one.
REPLACED = [*WEIGHTS, "vocab.txt", "*_elmo.py", MIX_FILE, "*.png"]
# By-products of a run. They are never uploaded, so they are not searched for secrets either.
IGNORE_PATTERNS = (
    "checkpoint-* .checkpoint-* cache .cache *_cache __pycache__ .git .final .ipynb_checkpoints logs runs *.tmp tmp* "
    "*.log events.out.tfevents.* training_args.bin optimizer.pt optimizer.bin optimizers.pt scheduler.pt "
    "scheduler.bin scaler.pt rng_state*.pth random_states_*.pkl trainer_state.json"
).split()
PICKLES = ".bin .pt .pth .pkl .pickle .th .ckpt .joblib".split()
SECRET_NAMES = (
    ".env .env.* *.pem *.key *.p12 id_rsa* id_dsa* id_ecdsa* id_ed25519* token token.txt *.token stored_tokens .netrc "
    ".git-credentials credentials* secrets*"
).split()
SECRET_CONTENTS = re.compile(rb"\bhf_[A-Za-z0-9]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----")
# Larger files are weights and vocabularies.
LARGEST_SEARCHED = 5_000_000


# ------------------------------------------------------------------------------------------------------- the folder


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(filter_repo_objects([name], allow_patterns=list(patterns)))


def survey(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files that a release copies, and the files and folders that it leaves out.

    Refuse what must never be published, and a folder that is not a model.
    """
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ElmoError(f"{folder}: not a model folder: {name} is missing")
    copied, ignored = [], []
    for root, folders, files in os.walk(folder):
        place = Path(root).relative_to(folder)
        for name in sorted(folders) + sorted(files):
            path = (place / name).as_posix()
            is_by_product = matches(name, IGNORE_PATTERNS)
            if not is_by_product:
                refuse_unsafe(folder, path)
            if name in folders:
                if is_by_product:
                    folders.remove(name)  # os.walk does not enter it
                    ignored.append(f"{path}/")
            elif path in COPIED:
                copied.append(path)
            elif is_by_product or "/" in path or not matches(path, REWRITTEN):
                ignored.append(path)
    return copied, ignored


def refuse_unsafe(folder: Path, name: str) -> None:
    """Refuse links to the outside, secrets and pickles. The text of a secret is never shown."""
    path = folder / name
    problem = None
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        problem = "links to a file outside; copy the folder with `cp -rL` first"
    elif path.is_dir():
        return
    elif matches(path.name.lower(), SECRET_NAMES):
        problem = "looks like a secret by its name; move it out of the folder"
    elif path.stat().st_size <= LARGEST_SEARCHED and SECRET_CONTENTS.search(path.read_bytes()):
        problem = "contains a token or a private key; remove it, and revoke it if it is real"
    elif path.suffix.lower() in PICKLES:
        problem = "is a pickle, which can run code when it is loaded; remove it"
    if problem:
        raise ElmoError(f"{folder}: {name} {problem}")


def load_source(folder: Path) -> tuple[ElmoPreTrainedModel, ElmoTokenizer]:
    """Load the model of the folder, by the class that its config names, and the tokenizer."""
    name = (read_json(folder / "config.json").get("architectures") or [None])[0]
    known = [*AUTO_CLASSES, *TASK_TAGS]
    if name not in known:
        raise ElmoError(f"{folder}: `architectures` in config.json must name one of {', '.join(known)}, got {name!r}")
    return load_folder(folder, getattr(modeling_elmo, name), refused=("mismatched", "missing", "unexpected"))


# ------------------------------------------------------------------------------------------------------ the release


PROBES = (
    ["The naïve bank lends money in New York .", "We sat .", "🏦 x" + "y" * 60],
    ["It does n't .", "They stood on the bank of the river .", "."],
)


def probe(model: Any, tokenizer: Any, first: Any, second: Any) -> dict[str, Any]:
    """Return every tensor that goes into and comes out of a model for some sentences, by name."""
    name = type(model).__name__
    takes_pairs = name in ("ElmoForMultipleChoice", "ElmoForQuestionAnswering")
    if name == "ElmoForSequenceClassification":
        takes_pairs = model.config.sequence_encoder == "esim"
    # Weights that are read from a file start where its header ends. The last bit of a sum depends on such alignment,
    # so all are moved to where the allocator puts them.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    inputs = dict(tokenizer(first, second if takes_pairs else None, padding=True, return_tensors="pt"))
    tensors = {f"{name}.{key}": value.clone() for key, value in inputs.items()}
    if name in ("ElmoForMultipleChoice", "ElmoForCoreferenceResolution"):  # the sentences are one example
        inputs = {key: value[None] for key, value in inputs.items()}
    if name == "ElmoForSemanticRoleLabeling":
        inputs["predicate_index"] = torch.ones(len(first), dtype=torch.long)  # the first word, after the marker
    if name == "ElmoModel":
        inputs["output_hidden_states"] = True
    with torch.no_grad():
        outputs = model(**inputs)
    for key, value in outputs.items():
        values = value if isinstance(value, tuple) else (value,)
        for index, tensor in enumerate(values):
            tensors[f"{name}.output.{key}.{index}"] = tensor.contiguous().clone()
    return tensors


# Neither this file nor the package can be imported there: `probe` is inserted as text.
CLEAN_PROCESS = """
import json
import sys
from typing import Any

sys.modules["modeling_elmo"] = None  # the package cannot be imported, wherever it is installed

import torch
import transformers
from safetensors.torch import save_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module

{probe}

folder, result, classes, compared, (first, second) = json.loads(sys.argv[1])
transformers.utils.logging.set_verbosity_error()
config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
tensors, failed = {}, {}
for name in classes:
    try:
        if hasattr(transformers, name):
            model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True).eval()
        else:
            model = get_class_from_dynamic_module(f"modeling_elmo.{name}", folder).from_pretrained(folder).eval()
    except Exception as error:
        failed[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
        continue
    for part in (config, tokenizer, model):
        if not type(part).__module__.startswith("transformers_modules."):
            failed[name] = f"{type(part).__name__} came from {type(part).__module__}, not from the release"
    if name in compared:
        tensors.update(probe(model, tokenizer, first, second))
save_file(tensors, result)
print(json.dumps(failed))
"""


def check_release(folder: Path, release: Path, model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer) -> str:
    """Load the release without the package, compare what it computes with the folder, and say what was checked."""
    own = AUTO_CLASSES.get(type(model).__name__, type(model).__name__)
    compared = [own]
    expected = probe(model, tokenizer, *PROBES)
    if has_bilm(model) and own != "AutoModel":
        compared.append("AutoModel")
        expected |= probe(modeling_elmo.ElmoModel.from_pretrained(folder).eval(), tokenizer, *PROBES)
    for key, tensor in expected.items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ElmoError(f"{folder}: the model's {key.split('.')[-2]} are not numbers (NaN)")
    classes = list(dict.fromkeys([*AUTO_CLASSES.values(), own]))
    found, failed = run_clean_process(release, classes, compared)
    for name, reason in failed.items():
        # A head that the folder's own config cannot build, such as one without any input, is no loss.
        if name in compared or can_load(folder, name):
            raise ElmoError(f"{folder}: without the package, {name} cannot load the release: {reason}")
        classes.remove(name)
    for key, tensor in expected.items():
        if key not in found or not torch.equal(tensor, found[key]):
            raise ElmoError(f"{folder}: without the package, the release gives another {key}: nothing was sent")
    without = f"; no {', '.join(failed)}, which this config cannot make" if failed else ""
    loaded = ", ".join(["AutoConfig", "AutoTokenizer", *classes])
    return f"loads without the package through {loaded}{without}; the same vectors, bit for bit"


def run_clean_process(release: Path, classes: list[str], compared: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the release computes in a process without the package, and why which classes fail."""
    environment = dict(os.environ)
    for name in ("PYTHONPATH", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_MODULES_CACHE"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory() as scratch:
        # A home of its own: no token, no earlier copy of the code, and no network.
        environment |= {"HF_HOME": f"{scratch}/home", "HF_HUB_OFFLINE": "1"}
        result = f"{scratch}/tensors.safetensors"
        code = CLEAN_PROCESS.replace("{probe}", inspect.getsource(probe))
        arguments = json.dumps([str(release), result, classes, compared, PROBES])
        command = [sys.executable, "-c", code, arguments]
        done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise ElmoError(f"the release does not load in a process without the package: {reason}")
        return load_file(result), json.loads(done.stdout.strip().splitlines()[-1])


def can_load(folder: Path, auto_class: str) -> bool:
    try:
        getattr(transformers, auto_class).from_pretrained(folder)
    except (OSError, ValueError, RuntimeError):
        return False
    return True


# ------------------------------------------------------------------------------------------------------- the upload


def upload(
    api: HfApi, repo_id: str, branch: str, private: bool, release: Path, message: str, is_space: bool = False
) -> tuple[str, str]:
    """Send the release in one commit to a repository and a branch, created if missing.

    Return the branch's commit and what was done.
    """
    kind = {"repo_type": "space"} if is_space else {}
    api.create_repo(repo_id, private=private or None, exist_ok=True, **kind, space_sdk="static" if is_space else None)
    if private and not api.repo_info(repo_id, **kind).private:
        raise ElmoError(f"{repo_id} exists and is public: --private cannot make it private; change it in its settings")
    api.create_branch(repo_id, branch=branch, exist_ok=True, **kind)
    # The commit is made on top of this one, so that changes that someone else makes meanwhile are not undone.
    before = api.repo_info(repo_id, revision=branch, **kind).sha
    operations: list[Any] = [CommitOperationAdd(path.name, path) for path in sorted(release.iterdir())]
    if not is_space:
        listed = api.list_repo_files(repo_id, revision=before)
        for name in filter_repo_objects(listed, allow_patterns=REPLACED):
            if not (release / name).exists():
                operations.append(CommitOperationDelete(name))
    try:
        # `create_commit` leaves out files that have not changed. `upload_folder` may make several commits.
        commit = api.create_commit(
            repo_id, operations, commit_message=message, revision=branch, parent_commit=before, **kind
        )
    except (HTTPError, OSError) as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
            raise
        if current_commit(api, repo_id, branch, kind) == before:
            raise
        # The commit was made and only the answer was lost: this finds nothing left to send.
        return upload(api, repo_id, branch, private, release, message, is_space)
    if commit.oid == before:
        return before, f"Nothing left to send: {repo_id} has all of this, as commit {before}"
    return commit.oid, f"Sent what changed, in commit {commit.oid}"


def current_commit(api: HfApi, repo_id: str, branch: str, kind: dict[str, str]) -> str | None:
    """Return the branch's commit after a commit that failed."""
    try:
        return api.repo_info(repo_id, revision=branch, **kind).sha
    except (HTTPError, OSError) as error:
        raise ElmoError(
            f"the connection to {api.endpoint} broke during the commit: {repo_id} has all of it or nothing; "
            "run the same command again"
        ) from error


def scrub(text: str, token: str | None) -> str:
    """Return a text without the token, without anything that looks like one, and without signatures of addresses."""
    if token:
        text = text.replace(token, "…")
    text = re.sub(r"hf_[A-Za-z0-9]{8,}", "…", text)
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", text)


def explain(error: BaseException, repo_id: str, endpoint: str) -> str:
    """Describe an error of the upload in one line that says what to do."""
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token: log in with `hf auth login`, or give --token-from-env NAME"
    while not isinstance(error, HTTPError) and error.__cause__ is not None:
        error = error.__cause__  # what failed in a thread carries its reason
    unchanged = f"no file of {repo_id} was changed"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        answer = " ".join((error.server_message or "").split()) or first_line(error)
        reasons = {
            401: f"{endpoint} does not accept the token (401): {answer}; log in again with `hf auth login`",
            403: f"the token has no right to write to {repo_id} (403): {answer}",
            412: f"{repo_id} was changed meanwhile by someone else (412): run the same command again",
        }
        return f"{reasons.get(status, f'{endpoint} answered {status}: {answer}')}; {unchanged}"
    if isinstance(error, ValueError):  # what the client or the Hub finds wrong with the card
        return f"{' '.join(str(error).split())}; {unchanged}"
    return f"the connection to {endpoint} broke: {first_line(error)}; {unchanged}: run the same command again"


# ------------------------------------------------------------------------------------------------------ command line


def make_parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=__doc__ if program.endswith(".py") else __doc__.replace("python hub_upload.py", program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", type=Path, help="the model's folder; with --space, the page")
    add("repo_id", metavar="REPO_ID", help="where it goes: user/name, or organization/name")
    add("--space", action="store_true", help="publish a page of `elmo page` as a static Space")
    add("--private", action="store_true", help="make a new repository private")
    add("--revision", default=DEFAULT_BRANCH, metavar="REV", help="the branch, created if missing (%(default)s)")
    add("--dry-run", action="store_true", help="make and check the release, list it, and send nothing")
    add("--card", metavar="FILE", type=Path, help="write the model card there too (of dry runs: a temporary file)")
    add("--token-from-env", metavar="NAME", help="the variable that holds the token (default: the login, or HF_TOKEN)")
    add("--license", metavar="L", help="the Hub's name of a license, such as apache-2.0 or mit")
    add("--language", nargs="+", metavar="CODE", help="languages, such as en de")
    add("--datasets", nargs="+", metavar="ID", help="data sets on the Hub that it was trained on")
    return parser


def find_token(name: str | None) -> str | None:
    """Return the token in the environment variable `name`, or that of the login; None if there is none."""
    if name is None:
        return get_token()
    token = os.environ.get(name, "").strip()
    if not token:
        raise ElmoError(f"--token-from-env: the environment variable {name} is not set")
    return token


def save_card(card: str, path: Path | None) -> Path:
    """Write the card to a file, by default a temporary one, which stays; return where it is."""
    path = path or Path(tempfile.mkdtemp(prefix="elmo-card-"), CARD_FILE)
    try:
        write_text(path, card)
    except OSError as error:
        raise ElmoError(f"--card: cannot write {path}: {error.strerror}") from error
    return path


def share(arguments: argparse.Namespace, token: str | None) -> None:
    """Make the release, check it, and send it unless this is a dry run."""
    validate_repo_id(arguments.repo_id)
    if "/" not in arguments.repo_id:
        raise ElmoError(f"REPO_ID must be user/name, got {arguments.repo_id!r}")
    (share_page if arguments.space else share_model)(arguments, HfApi(token=token))


def share_page(arguments: argparse.Namespace, api: HfApi) -> None:
    """Publish a page of senses as a static Space, whose start page it is."""
    page, repo_id, branch = arguments.folder, arguments.repo_id, arguments.revision
    if arguments.language or arguments.datasets:
        raise ElmoError("--language and --datasets are for models, not for --space")
    title = page_title(page)
    if not arguments.dry_run:
        api.whoami()
    address = f"{api.endpoint}/spaces/{repo_id}"
    with tempfile.TemporaryDirectory() as release:
        copyfile(page, Path(release, SPACE_PAGE))
        card = space_card(title, arguments.license)
        Path(release, CARD_FILE).write_text(card, encoding="utf-8")
        print(f"{page}: {title!r}, {page.stat().st_size / 1e6:,.1f} MB, as {SPACE_PAGE}")
        if arguments.card or arguments.dry_run:
            print(f"Card: {save_card(card, arguments.card)}")
        if arguments.dry_run:
            visibility = "private" if arguments.private else "public"
            print(f"\nWould go to {address} (branch {branch}, {visibility} if new). Nothing was sent.")
            return
        done = upload(api, repo_id, branch, arguments.private, Path(release), "Upload a page of senses", is_space=True)
    print(f"{done[1]}\n\n{address}")


def page_title(page: Path) -> str:
    """Return the title of a page of `elmo page`; refuse anything else."""
    if not page.is_file():
        raise ElmoError(f"{page}: no such file; --space takes a page that `elmo page` wrote")
    with page.open(encoding="utf-8", errors="replace") as stream:
        head = stream.read(PAGE_HEAD)
    title = re.search(r"<title>(.*?)</title>", head, flags=re.DOTALL)
    if title is None or PAGE_MARK not in head:
        raise ElmoError(f"{page}: not a page that `elmo page` wrote")
    return html.unescape(title[1])


def space_card(title: str, license: str | None) -> str:
    """Return the card of a static Space: what the Hub reads of it, and a line for people."""
    metadata = {"title": title, "sdk": "static", "app_file": SPACE_PAGE, "pinned": False, "tags": ["elmo"]}
    if license:
        metadata["license"] = license
    front = yaml.safe_dump(metadata, allow_unicode=True, sort_keys=False)
    return f"---\n{front}---\n\nUses of words by their sense, computed in the browser. Made by `elmo page`.\n"


def share_model(arguments: argparse.Namespace, api: HfApi) -> None:
    """Share a model: its release loads without the package and computes the same."""
    folder, repo_id, branch = arguments.folder, arguments.repo_id, arguments.revision
    revision = None if branch == DEFAULT_BRANCH else branch
    address = f"{api.endpoint}/{repo_id}" + (f"/tree/{branch}" if revision else "")
    copied, ignored = survey(folder)
    if not arguments.dry_run:
        api.whoami()  # a wrong token is better found before the work than after it
    model, tokenizer = load_source(folder)
    name = type(model).__name__
    metadata = {key: getattr(arguments, key) for key in ("license", "language", "datasets")}
    card = release_card(folder, model, tokenizer, repo_id, revision, **metadata)
    print(f"{folder}: {name}, {model.num_parameters():,} parameters")
    if arguments.card or arguments.dry_run:
        print(f"Model card: {save_card(card, arguments.card)}")
    if ignored:
        print(f"Not uploaded: {', '.join(sorted(ignored))}")
    with tempfile.TemporaryDirectory() as scratch:
        release = Path(scratch, "release")
        with disk_errors(release, sum(tensor.nbytes for tensor in model.state_dict().values())):
            tokenizer.save_pretrained(release)
            model.save_pretrained(release)
            (release / CARD_FILE).write_text(card, encoding="utf-8")
            for path in copied:
                copyfile(folder / path, release / path)
        print(f"Checked: {check_release(folder, release, model, tokenizer)}\n")
        for file in sorted(release.iterdir()):
            print(f"{file.stat().st_size / 1e3:>12,.1f} kB  {file.name}")
        if arguments.dry_run:
            visibility = "private" if arguments.private else "public"
            print(f"\nWould go to {address} (branch {branch}, {visibility} if new). Nothing was sent.")
            return
        commit, done = upload(api, repo_id, branch, arguments.private, release, f"Upload {name}")
    print(f"{done}\n\n{address}")
    if name in AUTO_CLASSES:
        # A revision pins the code. Without one, transformers warns of every code file that it downloads.
        call = f'{AUTO_CLASSES[name]}.from_pretrained("{repo_id}", trust_remote_code=True'
        pinned = f', revision="{revision}"' if revision else ""
        print(f'{call}{pinned})\n{call}, revision="{commit}")')


def main(arguments: Sequence[str], program: str = "hub_upload.py") -> int:
    parsed = make_parser(program).parse_args(list(arguments))
    transformers_logging.disable_progress_bar()
    if sys.stderr.isatty():
        enable_progress_bars()  # those of the upload, which the line before turns off as well
    transformers_logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # its warnings show addresses, and those of the storage are signed
    token: str | None = None
    try:
        token = find_token(parsed.token_from_env)
        share(parsed, token)
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        line = str(error) if isinstance(error, ElmoError) else explain(error, parsed.repo_id, HfApi().endpoint)
        print(f"error: {scrub(line, token)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"interrupted: {parsed.repo_id} has all of it or nothing", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
