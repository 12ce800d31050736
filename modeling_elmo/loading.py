"""Find and load a model: elmo-mini, a folder, or one of the Hub. What cannot be what it says is refused by name."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HTTPError, StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoTokenizer

from . import MINI
from .configuration_elmo import ElmoConfig
from .files import MINI_NAME, ElmoError, StrPath, check_input_file, file_digest, first_line, read_json
from .tokenization_elmo import ElmoTokenizer

# What a model needs of a repository on the Hub.
HUB_FILES = ["*.json", "*.safetensors", "*.txt"]
# Parameters for which there is always memory. What is wrong with a smaller model is said more exactly in loading it.
HARMLESS = 100_000_000
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
# What damaged JSON and weights lead transformers to.
LOADING_ERRORS = (
    *(OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError),
    *(SafetensorError, StrictDataclassError),
)
# Where the models come from that commands need.
ORIGINS = {
    "ElmoForPreTraining": "a folder of training.pretrain, with --save_softmax",
    "ElmoForSemanticRoleLabeling": "a folder of training.finetune --task srl",
}


def packaged_model(name: str) -> str:
    """Return the folder of elmo-mini for its name, unless there is a folder of that name, and anything else as is."""
    return MINI if name == MINI_NAME and not os.path.exists(name) else name


def find_model(name: StrPath) -> Path:
    """Return the folder of a model: elmo-mini in the package, a folder, or one that the Hub has, downloaded."""
    folder = Path(packaged_model(str(name)))
    if os.path.exists(folder) or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) or str(name).startswith("."):
        return folder
    try:
        return Path(snapshot_download(str(name), allow_patterns=HUB_FILES, ignore_patterns=["*/*"]))
    except (HTTPError, OSError, ValueError) as error:
        raise ElmoError(f"{name}: no such folder, and the Hub does not give it: {first_line(error)}") from error


def model_digests(folder: StrPath) -> dict[str, str]:
    """Return the digest of every file that makes a model what it is, wherever its folder is."""
    return {path.name: file_digest(path) for path in _model_files(Path(folder))}


def _model_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors", ".bin", ".txt")]


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model folder; refuse any other folder."""
    config_file = folder / "config.json"
    if not os.path.isfile(config_file):
        raise ElmoError(f"{folder}: not a model folder: config.json is missing")
    config = read_json(config_file)
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type != "elmo":
        raise ElmoError(f"{folder}: expected a model of type 'elmo', got {model_type!r}")
    return config


def architecture_of(config: dict[str, Any]) -> Any:
    """Return the name of the class that a folder was saved from, None if its config.json does not say."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names else None


def check_kind(folder: StrPath, config: dict[str, Any], class_name: str) -> None:
    """Refuse a folder whose model is of another kind than is to be loaded; any with a biLM is one of `ElmoModel`."""
    held = architecture_of(config)
    needed = class_name.replace("AutoModelFor", "ElmoFor").replace("AutoModel", "ElmoModel")
    if held not in MODEL_KINDS or held == needed:
        return
    if needed in ORIGINS:
        raise ElmoError(
            f"{folder}: holds {MODEL_KINDS[held]} ({held}); this needs {MODEL_KINDS[needed]}: {ORIGINS[needed]}"
        )
    if needed == "ElmoModel" and config.get("elmo_placement") == "none" and held != "ElmoForPreTraining":
        raise ElmoError(f"{folder}: holds {MODEL_KINDS[held]} without ELMo (elmo_placement none); this needs a biLM")


def _check_room(folder: Path, auto_class: Any, config: ElmoConfig) -> None:
    """Refuse a config of a model that is far larger than the weights, before memory is taken up for it."""
    with torch.device("meta"):
        model = getattr(auto_class, "from_config", auto_class)(config)
    wanted = sum(parameter.numel() for parameter in model.parameters())
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if wanted > max(stored, HARMLESS):
        raise ElmoError(f"{folder}: config.json asks for {wanted:,} parameters, but the weights have {stored:,} bytes")


def _check_tokenizer(folder: Path, tokenizer: Any, config: ElmoConfig) -> None:
    """Refuse a tokenizer that does not spell words as the model reads them."""
    kind = type(tokenizer).__name__
    if kind != "ElmoTokenizer":
        raise ElmoError(f"{folder}: tokenizer_config.json asks for a {kind}; the model needs an ElmoTokenizer")
    spelled, read = tokenizer.max_characters_per_token, config.max_characters_per_token
    if spelled != read:
        raise ElmoError(f"{folder}: `max_characters_per_token` is {read} in config.json, {spelled} in the tokenizer's")


@contextmanager
def loading_errors(folder: StrPath) -> Iterator[None]:
    """Raise what transformers says of a damaged folder as one line."""
    if os.path.isdir(folder):
        for path in _model_files(Path(folder)):  # transformers goes on without a vocabulary that is no file
            check_input_file(path)
    try:
        yield
    except ElmoError:
        raise
    except LOADING_ERRORS as error:
        raise ElmoError(f"{folder}: cannot load the model: {first_line(error)}") from error


def load_folder(
    folder: StrPath, auto_class: Any, refused: Sequence[str] = ("missing", "mismatched")
) -> tuple[Any, ElmoTokenizer]:
    """Load a model, in eval mode, and its tokenizer, by anything `find_model` takes; refuse `missing` weights, say."""
    folder = find_model(folder)
    config = read_config(folder)
    try:
        sizes = ElmoConfig.from_pretrained(folder, local_files_only=True)
    except LOADING_ERRORS as error:
        raise ElmoError(f"{folder / 'config.json'}: {first_line(error.__cause__ or error)}") from error
    check_kind(folder, config, auto_class.__name__)
    options = {"local_files_only": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    with loading_errors(folder):
        _check_room(folder, auto_class, sizes)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        _check_tokenizer(folder, tokenizer, sizes)
        model, loading = auto_class.from_pretrained(folder, **options)
    for problem in refused:
        keys = sorted(map(str, loading[f"{problem}_keys"]))
        if keys:
            raise ElmoError(f"{folder}: {problem} weights, such as {keys[0]}")
    return model.eval(), tokenizer
