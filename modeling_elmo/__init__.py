"""ELMo for today's stack: contextual word vectors from a bidirectional LSTM language model."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .registration import register

__version__ = "0.2.0.dev0"

# The folder of elmo-mini, a small English model that comes with the package.
MINI = str(Path(__file__).parent / "elmo-mini")

# Folders of this package load through the auto classes without `trust_remote_code` once it is imported.
register()

if TYPE_CHECKING:
    from .configuration_elmo import ElmoConfig
    from .embedding import ElmoEmbedder
    from .modeling_elmo import (
        ElmoForCoreferenceResolution,
        ElmoForMultipleChoice,
        ElmoForPreTraining,
        ElmoForQuestionAnswering,
        ElmoForSemanticRoleLabeling,
        ElmoForSequenceClassification,
        ElmoForTokenClassification,
        ElmoModel,
        ElmoModelOutput,
        ElmoPreTrainedModel,
        ElmoScalarMix,
    )
    from .tokenization_elmo import ElmoTokenizer
else:
    # Where the classes are that do not live in modeling_elmo.py.
    _HOMES = {
        "ElmoConfig": "configuration_elmo",
        "ElmoEmbedder": "embedding",
        "ElmoTokenizer": "tokenization_elmo",
    }

    def __getattr__(name: str) -> Any:
        """Import a class when it is asked for: torch and transformers take seconds."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_HOMES.get(name, 'modeling_elmo')}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "MINI",
    "ElmoConfig",
    "ElmoEmbedder",
    "ElmoForCoreferenceResolution",
    "ElmoForMultipleChoice",
    "ElmoForPreTraining",
    "ElmoForQuestionAnswering",
    "ElmoForSemanticRoleLabeling",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoScalarMix",
    "ElmoTokenizer",
]
