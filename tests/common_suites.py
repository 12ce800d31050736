"""Transformers' own common test suites, from its source distribution: `make conformance` fetches it.

The source distribution has the suites but not the test packages beside them (generation, exporters, pipelines). What
the suites import from those is replaced by stand-ins here: empty where ELMo has nothing of the kind (it does not
generate), otherwise a plain check of what the pipeline returns.
"""

import importlib
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest import mock

import transformers
from transformers import pipeline

import modeling_elmo

PACKAGE = "transformers_suites"
ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(
    os.environ.get("TRANSFORMERS_SOURCE", ROOT / ".conformance" / f"transformers-{transformers.__version__}")
)
TESTS = FOLDER / "tests"

# Arguments that every config takes, each with a value that is not its default.
COMMON_CONFIG_ARGUMENTS = {
    "return_dict": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "dtype": "float16",
    "chunk_size_feed_forward": 5,
    "architectures": ["ElmoModel"],
    "id2label": {0: "first", 1: "second"},
    "label2id": {"first": 0, "second": 1},
    "problem_type": "regression",
}

AUTO_TABLES = {
    "MODEL_MAPPING_NAMES": "ElmoModel",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": "ElmoForPreTraining",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "ElmoForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "ElmoForTokenClassification",
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": "ElmoForMultipleChoice",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "ElmoForQuestionAnswering",
}


class PipelineTests:
    """The stand-in for a pipeline's own tests: build the pipeline, run it on one text and on several."""

    task = ""
    examples: tuple[Any, ...] = ("A river bank .", "She lends money to the bank of the town .")
    arguments: dict[str, Any] = {}

    def get_test_pipeline(self, model: Any, tokenizer: Any, dtype: str = "float32", **_: Any) -> tuple[Any, Any]:
        made = pipeline(self.task, model=model, tokenizer=tokenizer, dtype=dtype, **self.arguments)
        return made, list(self.examples)

    def run_pipeline_test(self, made: Any, examples: list[Any]) -> None:
        together = made(examples)
        assert len(together) == len(examples)
        for example, output in zip(examples, together, strict=True):
            self.check(example, output)
            self.check(example, made(example))

    def check(self, example: Any, output: Any) -> None:
        raise NotImplementedError


class FeatureExtractionPipelineTests(PipelineTests):
    task = "feature-extraction"

    def check(self, example: str, output: Any) -> None:
        (words,) = output
        assert len(words) == len(example.split()) + 2, "a vector for every word and both markers"


class TextClassificationPipelineTests(PipelineTests):
    task = "text-classification"

    def check(self, example: str, output: Any) -> None:
        (best,) = output if isinstance(output, list) else [output]
        assert best["label"].startswith("LABEL_")
        assert 0 <= best["score"] <= 1


class TokenClassificationPipelineTests(PipelineTests):
    task = "token-classification"

    def check(self, example: str, output: Any) -> None:
        assert [entity["word"] for entity in output] == example.split()
        for entity in output:
            assert example[entity["start"] : entity["end"]] == entity["word"]


class ZeroShotClassificationPipelineTests(PipelineTests):
    task = "zero-shot-classification"
    arguments = {"candidate_labels": ["money", "nature"]}

    def check(self, example: str, output: Any) -> None:
        assert sorted(output["labels"]) == ["money", "nature"]
        assert abs(sum(output["scores"]) - 1) < 1e-2


def _stand_in(name: str, **members: Any) -> None:
    module = types.ModuleType(f"{PACKAGE}.{name}")
    vars(module).update(members)
    sys.modules[module.__name__] = module
    parent = name.rpartition(".")[0]
    if parent and f"{PACKAGE}.{parent}" not in sys.modules:
        _stand_in(parent, __path__=[])


def _add_stand_ins() -> None:
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(TESTS)]
    sys.modules[PACKAGE] = package
    _stand_in("exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
    _stand_in("generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
    _stand_in("utils.test_configuration_utils", config_common_kwargs=COMMON_CONFIG_ARGUMENTS)
    for line in (TESTS / "test_pipeline_mixin.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("from .pipelines."):
            _, module, _, name = line.split()
            _stand_in(module[1:], **{name: globals().get(name, type(name, (), {}))})


def load() -> types.SimpleNamespace:
    """Import the suites' mixins. The pipeline suite reads tiny models from `pipeline_models`, which a test fills."""
    folder = tempfile.mkdtemp(prefix="tiny-models-")
    summary = Path(folder) / "reports" / "tiny_model_summary.json"
    summary.parent.mkdir()
    summary.write_text(json.dumps({}), encoding="utf-8")
    _add_stand_ins()
    with (
        mock.patch.dict(os.environ, {"TRANSFORMERS_TINY_MODEL_PATH": folder}),
        mock.patch("transformers.utils.direct_transformers_import", return_value=modeling_elmo),
    ):
        modules = {}
        for name in (
            "modeling_common",
            "configuration_common",
            "tokenization_common",
            "pipeline_mixin",
            "training_mixin",
        ):
            modules[name] = importlib.import_module(f"{PACKAGE}.test_{name}")
    # The suites tell by these tables what a class is for, as for a model that is part of transformers.
    modeling = modules["modeling_common"]
    for table, name in AUTO_TABLES.items():
        setattr(modeling, table, {**getattr(modeling, table), "elmo": name})
    return types.SimpleNamespace(
        ModelTesterMixin=modules["modeling_common"].ModelTesterMixin,
        ConfigTester=modules["configuration_common"].ConfigTester,
        TokenizerTesterMixin=modules["tokenization_common"].TokenizerTesterMixin,
        PipelineTesterMixin=modules["pipeline_mixin"].PipelineTesterMixin,
        TrainingTesterMixin=modules["training_mixin"].TrainingTesterMixin,
        tiny_model_summary=modules["pipeline_mixin"].tiny_model_summary,
        pipeline_models=Path(folder),
    )
