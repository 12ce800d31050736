"""AllenNLP's ELMo beside a current torch: the implementation most people used, as a peer for parity and speed.

AllenNLP 2.10.1 no longer imports: it wants libraries and versions that are gone. Its ELMo needs none of them, so this
loader reads the few files ELMo is made of from the package and stands in for the rest.

    pip install --no-deps --target .venv/peers allennlp==2.10.1
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

DEFAULT_SITE = Path(__file__).parents[1] / ".venv" / "peers"

# The files that are read from the package; every other module of it is a stand-in.
REAL = {
    "allennlp.data.token_indexers.elmo_indexer",
    "allennlp.modules.elmo",
    "allennlp.modules.elmo_lstm",
    "allennlp.modules.encoder_base",
    "allennlp.modules.highway",
    "allennlp.modules.lstm_cell_with_projection",
    "allennlp.modules.scalar_mix",
    "allennlp.modules.time_distributed",
    "allennlp.nn.util",
}


def _identity(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


class _Anything:
    """A class that may be inherited from, registered with and annotated by."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __class_getitem__(cls, item: Any) -> type:
        return cls

    @classmethod
    def register(cls, *args: Any, **kwargs: Any) -> Callable:
        return _identity


# The few stand-ins that are called or raised rather than inherited from.
FUNCTIONS: dict[str, Any] = {
    "ConfigurationError": type("ConfigurationError", (Exception,), {}),
    "block_orthogonal": lambda weight, split_sizes, gain=1.0: torch.nn.init.uniform_(weight, -0.1, 0.1),
    "cached_path": _identity,
    "is_distributed": lambda: False,
    "overrides": _identity,
}


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return FUNCTIONS.get(name, _Anything)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `REAL` modules in the package's folder, and a stand-in for any other of `allennlp` and `overrides`."""

    def __init__(self, site: Path) -> None:
        self.site = site

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in ("allennlp", "overrides"):
            return None
        if name in REAL:
            location = self.site.joinpath(*name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, location)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def site() -> Path | None:
    """Where AllenNLP's files are, or None."""
    folder = Path(os.environ.get("ALLENNLP_SITE", DEFAULT_SITE))
    return folder if (folder / "allennlp" / "modules" / "elmo.py").is_file() else None


class AllenNlpElmo:
    """AllenNLP's biLM of a checkpoint: `layers(sentences)` gives what ours calls `hidden_states`."""

    def __init__(self, options_file: str | Path, weights_file: str | Path, requires_grad: bool = False) -> None:
        folder = site()
        if folder is None:
            raise FileNotFoundError(f"AllenNLP is not in {DEFAULT_SITE}; install it as {__file__} says")
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder(folder))
        from allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
        from allennlp.modules.elmo import _ElmoBiLm

        self._spell = ELMoCharacterMapper().convert_word_to_char_ids
        self.bilm = _ElmoBiLm(str(options_file), str(weights_file), requires_grad=requires_grad).eval()

    def char_ids(self, sentences: Sequence[Sequence[str]]) -> torch.Tensor:
        """Characters of the words (B, T, 50), without sentence markers: the module adds them itself."""
        longest = max(map(len, sentences))
        empty = [[0] * 50]
        return torch.tensor([[*map(self._spell, words), *empty * (longest - len(words))] for words in sentences])

    @torch.no_grad()
    def layers(self, sentences: Sequence[Sequence[str]]) -> list[torch.Tensor]:
        """Every layer, each (B, T, 2P), sentence markers included, each sentence on its own."""
        self.bilm._elmo_lstm.reset_states()
        return self.bilm(self.char_ids(sentences))["activations"]
