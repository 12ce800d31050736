"""Loading the model of a folder, with errors that say in one line what is wrong with it."""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoTokenizer

from .tokenization_elmo import ElmoTokenizer


class FolderError(ValueError):
    """A folder whose model cannot be loaded."""


def first_line(error: Exception) -> str:
    """What an error says, without what follows it."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def load_folder(folder: str | os.PathLike[str], auto_class: Any) -> tuple[Any, ElmoTokenizer]:
    """The model and the tokenizer of a folder."""
    config_file = Path(folder) / "config.json"
    if not config_file.is_file():
        raise FolderError(f"{folder}: no model folder: it has no config.json")
    try:
        config = json.loads(config_file.read_bytes())
        model_type = config.get("model_type") if isinstance(config, dict) else None
        if model_type != "elmo":
            raise FolderError(f"{folder}: the model is a {model_type!r}; expected 'elmo'")
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, loading = auto_class.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except FolderError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        raise FolderError(f"{folder}: the model cannot be loaded: {first_line(error)}") from error
    if missing := sorted(loading["missing_keys"]):
        raise FolderError(f"{folder}: the weights lack `{missing[0]}`")
    return model.eval(), tokenizer
