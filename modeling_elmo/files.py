"""Files and folders: the one error for bad input, atomic writes, digests, loading a model folder."""

import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .configuration_elmo import ElmoConfig
    from .tokenization_elmo import ElmoTokenizer

StrPath = str | os.PathLike[str]

# More is no file of settings or results.
LARGEST_JSON = 1 << 30
# Exit codes of every command: after an `ElmoError`, and the one that shells give for Ctrl-C.
BAD_INPUT = 2
INTERRUPTED = 130
# The name of the model in the package, wherever a model is asked for.
MINI_NAME = "elmo-mini"
# What a model needs of a repository on the Hub.
HUB_FILES = ["*.json", "*.safetensors", "*.txt"]


# What the folder of a model holds, by its architecture.
MODEL_KINDS = {
    "ElmoModel": "a biLM without its softmax",
    "ElmoForPreTraining": "a language model with its softmax",
    "ElmoForSequenceClassification": "a classifier of texts",
    "ElmoForTokenClassification": "a tagger",
    "ElmoForMultipleChoice": "a model of multiple choice",
    "ElmoForQuestionAnswering": "a model of question answering",
    "ElmoForSemanticRoleLabeling": "a labeler of semantic roles",
    "ElmoForCoreferenceResolution": "a model of coreference",
}
# Where the models come from that commands need.
ORIGINS = {
    "ElmoForPreTraining": "a folder of training.pretrain, with --save_softmax",
    "ElmoForSemanticRoleLabeling": "a folder of training.finetune --task srl",
}


class ElmoError(ValueError):
    """Bad input, settings or files. The message is one line; commands print it without a traceback."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def require(module: str, extra: str) -> Any:
    """Import an optional module, or name the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ElmoError(f"{package} is not installed: pip install 'modeling-elmo[{extra}]'") from error


def report_interrupts() -> None:
    """Let Ctrl-C that nothing else catches, such as during imports, end the program with one line."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            previous(kind, error, trace)
            return
        print("interrupted: nothing was started", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    sys.excepthook = report


def packaged_model(name: str) -> str:
    """Return the folder of elmo-mini for its name, unless there is a folder of that name, and anything else as is."""
    from . import MINI

    return MINI if name == MINI_NAME and not Path(name).exists() else name


def find_model(name: StrPath) -> Path:
    """Return the folder of a model: elmo-mini in the package, a folder, or one that the Hub has, downloaded."""
    folder = Path(packaged_model(str(name)))
    if folder.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) or str(name).startswith("."):
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        return Path(snapshot_download(str(name), allow_patterns=HUB_FILES, ignore_patterns=["*/*"]))
    except (HTTPError, OSError, ValueError) as error:
        raise ElmoError(f"{name}: no such folder, and the Hub does not give it: {first_line(error)}") from error


def check_output_file(path: Path, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or must not be replaced, before the work."""
    if path.exists() and (path.is_dir() or not overwrite):
        raise ElmoError(f"{path}: exists; choose another name, or pass --overwrite")
    if not path.parent.is_dir():
        raise ElmoError(f"{path}: there is no folder {path.parent}")


@contextmanager
def atomic_write(path: StrPath) -> Iterator[Path]:
    """Yield a path to write a file or a folder to, which replaces `path` once the block ends without an error."""
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield scratch
        if scratch.is_dir() and path.is_dir():
            _replace_folder(scratch, path)
        else:
            os.replace(scratch, path)
    finally:
        if scratch.is_dir():
            shutil.rmtree(scratch)
        scratch.unlink(missing_ok=True)


def _replace_folder(new: Path, path: Path) -> None:
    """Put a folder in the place of another, which comes back if that fails."""
    old = new.with_suffix(".old")
    os.replace(path, old)
    try:
        os.replace(new, path)
    except OSError:
        os.replace(old, path)
        raise
    shutil.rmtree(old)


def check_space(path: StrPath, size: int) -> None:
    """Refuse to write a file of `size` bytes for which there is no room.

    HDF5 and memory-mapped files crash on a full disk, so the room is taken up for a moment before they are written.
    """
    path = Path(path)
    try:
        with TemporaryFile(dir=path.parent) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            elif shutil.disk_usage(path.parent).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise ElmoError(f"{path}: cannot write {size / 1e6:,.1f} MB: {error.strerror}") from error


def write_text(path: StrPath, text: str) -> None:
    """Write a text file whole or not at all."""
    with atomic_write(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def read_json(path: StrPath) -> Any:
    """Read a JSON file. What never ends, such as a device, is refused."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ElmoError(f"{path}: not a regular file")
        if os.path.getsize(path) > LARGEST_JSON:
            raise ElmoError(f"{path}: over {LARGEST_JSON:,} bytes")
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ElmoError:
        raise
    except OSError as error:
        raise ElmoError(f"{path}: cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ElmoError(f"{path}: not a JSON file: {first_line(error)}") from error


def file_digest(path: StrPath) -> str:
    """Return the SHA-256 of a file's contents."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def model_digests(folder: StrPath) -> dict[str, str]:
    """Return the digest of every file that makes a model what it is, wherever its folder is."""
    digests = {}
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in (".json", ".safetensors", ".bin", ".txt"):
            digests[path.name] = file_digest(path)
    return digests


def check_kind(folder: StrPath, config: dict[str, Any], class_name: str) -> None:
    """Refuse a folder whose model is of another kind than is to be loaded; any with a biLM is one of `ElmoModel`."""
    held = (config.get("architectures") or [None])[0]
    needed = class_name.replace("AutoModelFor", "ElmoFor").replace("AutoModel", "ElmoModel")
    if held not in MODEL_KINDS or held == needed:
        return
    if needed in ORIGINS:
        raise ElmoError(
            f"{folder}: holds {MODEL_KINDS[held]} ({held}); this needs {MODEL_KINDS[needed]}: {ORIGINS[needed]}"
        )
    if needed == "ElmoModel" and config.get("elmo_placement") == "none" and held != "ElmoForPreTraining":
        raise ElmoError(f"{folder}: holds {MODEL_KINDS[held]} without ELMo (elmo_placement none); this needs a biLM")


def _check_room(folder: Path, auto_class: Any, config: "ElmoConfig") -> None:
    """Refuse a config of a model that is far larger than the weights, before memory is taken up for it."""
    import torch

    with torch.device("meta"):
        model = getattr(auto_class, "from_config", auto_class)(config)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if stored and wanted > stored:
        raise ElmoError(f"{folder}: config.json asks for {wanted:,} parameters, but the weights have {stored:,} bytes")


def _check_tokenizer(folder: Path, tokenizer: Any, config: "ElmoConfig") -> None:
    """Refuse a tokenizer that does not spell words as the model reads them."""
    kind = type(tokenizer).__name__
    if kind != "ElmoTokenizer":
        raise ElmoError(f"{folder}: tokenizer_config.json asks for a {kind}; the model needs an ElmoTokenizer")
    spelled, read = tokenizer.max_characters_per_token, config.max_characters_per_token
    if spelled != read:
        raise ElmoError(f"{folder}: `max_characters_per_token` is {read} in config.json, {spelled} in the tokenizer's")


def load_folder(
    folder: StrPath, auto_class: Any, refused: Sequence[str] = ("missing", "mismatched")
) -> tuple[Any, "ElmoTokenizer"]:
    """Load a model, in eval mode, and its tokenizer, by anything `find_model` takes; refuse `missing` weights, say."""
    # Here, since commands need the rest of this file before they need transformers.
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoTokenizer

    from .configuration_elmo import ElmoConfig

    folder = find_model(folder)
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise ElmoError(f"{folder}: not a model folder: config.json is missing")
    config = read_json(config_file)
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type != "elmo":
        raise ElmoError(f"{folder}: expected a model of type 'elmo', got {model_type!r}")
    try:
        sizes = ElmoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, StrictDataclassError) as error:
        raise ElmoError(f"{config_file}: {first_line(error.__cause__ or error)}") from error
    check_kind(folder, config, auto_class.__name__)
    _check_room(folder, auto_class, sizes)
    options = {"local_files_only": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        _check_tokenizer(folder, tokenizer, sizes)
        model, loading = auto_class.from_pretrained(folder, **options)
    except ElmoError:
        raise
    # Damaged JSON leads transformers to nearly every built-in exception.
    except (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, SafetensorError) as error:
        raise ElmoError(f"{folder}: cannot load the model: {first_line(error)}") from error
    for problem in refused:
        keys = sorted(map(str, loading[f"{problem}_keys"]))
        if keys:
            raise ElmoError(f"{folder}: {problem} weights, such as {keys[0]}")
    return model.eval(), tokenizer
