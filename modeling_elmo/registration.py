"""Register ELMo for transformers' auto classes as soon as both packages are imported, whichever comes first.

`import modeling_elmo` alone imports neither torch nor transformers, so that commands start at once. What belongs to a
module of transformers is registered once that module is imported, and the models' own code waits for its first use:
transformers imports its auto classes halfway through modules that this code needs.
"""

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODELS = {
    "AutoModel": "ElmoModel",
    "AutoModelForPreTraining": "ElmoForPreTraining",
    "AutoModelForSequenceClassification": "ElmoForSequenceClassification",
    "AutoModelForTokenClassification": "ElmoForTokenClassification",
    "AutoModelForMultipleChoice": "ElmoForMultipleChoice",
    "AutoModelForQuestionAnswering": "ElmoForQuestionAnswering",
}
AUTO_MODULES = [f"transformers.models.auto.{kind}_auto" for kind in ("configuration", "tokenization", "modeling")]
OWN_MODELS = f"{__package__}.modeling_elmo"


class LateClass(tuple):
    """The classes of a config, as the auto classes take them: one, which is imported when the tuple is read."""

    def __new__(cls, name: str) -> "LateClass":
        return super().__new__(cls, [name])

    def __iter__(self) -> Iterator[Any]:
        from . import modeling_elmo

        for name in super().__iter__():
            yield getattr(modeling_elmo, name)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def register_imported() -> None:
    """Register ELMo for the auto classes that are imported; a class that is only now being made waits."""
    auto: dict[str, Any] = {}
    for name in AUTO_MODULES:
        auto |= vars(sys.modules[name]) if name in sys.modules else {}
    if not auto:
        return
    from . import configuration_elmo, tokenization_elmo

    config_class = getattr(configuration_elmo, "ElmoConfig", None)
    if config_class is None:
        return
    if "AutoConfig" in auto:
        auto["AutoConfig"].register("elmo", config_class, exist_ok=True)
    if "AutoTokenizer" in auto:
        auto["AutoTokenizer"].register(config_class, tokenizer_class=tokenization_elmo.ElmoTokenizer, exist_ok=True)
    own = sys.modules.get(OWN_MODELS)
    for auto_class, name in MODELS.items():
        if auto_class in auto:
            auto[auto_class].register(config_class, getattr(own, name, LateClass(name)), exist_ok=True)


class AfterImport(MetaPathFinder):
    """Call `register_imported` after the import of some modules, once none of them is halfway through its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self.unfinished = 0

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.names:
            return None
        self.names.remove(name)
        spec = importlib.util.find_spec(name)  # by the other finders
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                self.unfinished += 1
                try:
                    execute(module)
                finally:
                    self.unfinished -= 1
                if not self.unfinished:
                    register_imported()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register what can be registered now, and the rest when it is imported."""
    own = [f"{__package__}.{name}_elmo" for name in ("configuration", "tokenization", "modeling")]
    sys.meta_path.insert(0, AfterImport([*AUTO_MODULES, "transformers.models.auto.auto_factory", *own]))
    register_imported()
