"""Transformers' common test suites on every class of this package. They run where `make conformance` fetched them."""

import re
import tempfile
import unittest
from typing import Any
from unittest import mock

import common_suites
import pytest
import torch
from every_model import BATCH, CASES, CHOICES, SIZES, WORDS, Case

from modeling_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)

if not common_suites.TESTS.is_dir():
    pytest.skip(f"{common_suites.TESTS} not found: run `make conformance`", allow_module_level=True)

suites = common_suites.load()
TOKENIZERS_BACKEND = f"{common_suites.PACKAGE}.test_tokenization_common.TokenizersBackend"

VOCABULARY = ["a", "river", "bank", "money", "lends", "the", "She", "to", "town", "of", ".", "Hello"]
NO_WORDS = "A word's embedding is made from its characters by a CNN, not looked up by its id."
# Tests of the suites that do not apply, each with the cases and the reason. docs/conformance.md has the same list.
NOT_APPLICABLE: dict[str, tuple[set[str], str]] = {
    "test_inputs_embeds": (set(CASES), NO_WORDS),
    "test_inputs_embeds_matches_input_ids": (set(CASES), NO_WORDS),
    "test_resize_tokens_embeddings": (
        set(CASES) - {"WordVectors"},
        "Without word vectors there is nothing to resize.",
    ),
    "test_load_with_mismatched_shapes": (
        set(CASES),
        "It expects another vocabulary size to be refused; a biLM has no weights of that size.",
    ),
    "test_retain_grad_hidden_states_attentions": (
        {"PreTraining", "SampledPreTraining", "CoreferenceResolution"},
        "The first output does not depend on the returned layers: they are copies, or it is a tensor of spans.",
    ),
}


class ElmoModelTester:
    """Gives the suites a small config and a batch."""

    batch_size, seq_length, num_choices = BATCH, WORDS, CHOICES
    num_hidden_layers, hidden_size = SIZES["num_hidden_layers"], 2 * SIZES["projection_dim"]
    is_training = True

    def __init__(self, case: Case) -> None:
        self.case = case

    def get_config(self) -> ElmoConfig:
        return self.case.config()

    def prepare_config_and_inputs_for_common(self) -> tuple[ElmoConfig, dict[str, torch.Tensor]]:
        return self.case.config(), self.case.inputs()

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class ElmoSuite(suites.ModelTesterMixin):
    case: Case
    has_attentions = False

    def setUp(self) -> None:
        self.model_tester = ElmoModelTester(self.case)

    def _prepare_for_class(self, inputs_dict: dict, model_class: type, return_labels: bool = False) -> dict:
        return self.case.prepare(inputs_dict, return_labels)


for case_name, case in CASES.items():
    members: dict[str, Any] = {"all_model_classes": (case.model_class,), "case": case}
    for test_name, (cases, reason) in NOT_APPLICABLE.items():
        if case_name in cases:
            members[test_name] = unittest.skip(reason)(getattr(ElmoSuite, test_name))
    globals()[f"Test{case_name}"] = type(f"Test{case_name}", (ElmoSuite, unittest.TestCase), members)


def test_the_documentation_lists_the_tests_that_do_not_apply() -> None:
    text = (common_suites.ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(test_\w+)`", text, flags=re.MULTILINE)
    assert listed == sorted(NOT_APPLICABLE)


class TestConfig(unittest.TestCase):
    def setUp(self) -> None:
        self.config_tester = suites.ConfigTester(
            self, config_class=ElmoConfig, common_properties=["hidden_size", "num_hidden_layers"], **SIZES
        )

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


class TestTokenizer(suites.TokenizerTesterMixin, unittest.TestCase):
    tokenizer_class = ElmoTokenizer
    from_pretrained_kwargs: dict[str, Any] = {}
    test_seq2seq = False

    @classmethod
    def setUpClass(cls) -> None:
        cls.from_pretrained_id = []
        cls.tokenizers_list = []
        cls._data = ""
        cls.tmpdirname = tempfile.mkdtemp()
        ElmoTokenizer(vocab=VOCABULARY).save_pretrained(cls.tmpdirname)

    # What overflows comes as windows, as from fast tokenizers. The suite tells those by their class.

    def test_maximum_encoding_length_single_input(self) -> None:
        with mock.patch(TOKENIZERS_BACKEND, ElmoTokenizer):
            super().test_maximum_encoding_length_single_input()

    def test_maximum_encoding_length_pair_input(self) -> None:
        with mock.patch(TOKENIZERS_BACKEND, ElmoTokenizer):
            super().test_maximum_encoding_length_pair_input()


class TestTraining(suites.TrainingTesterMixin, unittest.TestCase):
    model_tester = None
    all_model_classes = (ElmoForPreTraining,)
    training_overfit_learning_rate = 1e-2

    def setUp(self) -> None:
        self.model_tester = ElmoModelTester(Case(ElmoForPreTraining, {"cell_dim": 32, "projection_dim": 16}))

    def _create_text_training_batch(
        self, batch_size: int, seq_length: int, vocab_size: int
    ) -> dict[str, torch.Tensor]:
        batch = super()._create_text_training_batch(batch_size, seq_length, vocab_size)
        width = self.model_tester.get_config().max_characters_per_token
        batch["char_ids"] = batch["input_ids"].unsqueeze(-1).expand(-1, -1, width).contiguous()
        return batch


class ElmoForPairs(ElmoForSequenceClassification):
    """The classifier of pairs, under a name of its own: the suite keeps one tiny model of each name."""


class TestPipelines(suites.PipelineTesterMixin, unittest.TestCase):
    pipeline_model_mapping = {
        "feature-extraction": ElmoModel,
        "text-classification": ElmoForSequenceClassification,
        "token-classification": ElmoForTokenClassification,
        "zero-shot": ElmoForPairs,
    }

    @classmethod
    def setUpClass(cls) -> None:
        tokenizer = ElmoTokenizer(vocab=VOCABULARY, max_characters_per_token=SIZES["max_characters_per_token"])
        for model_class in (ElmoModel, ElmoForSequenceClassification, ElmoForTokenClassification, ElmoForPairs):
            name = model_class.__name__
            config = ElmoConfig(**SIZES)
            if model_class is ElmoForPairs:
                labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
                numbers = {label: number for number, label in labels.items()}
                config = ElmoConfig(**SIZES, id2label=labels, label2id=numbers)
            folder = suites.pipeline_models / "elmo" / name
            model_class(config).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            suites.tiny_model_summary[name] = {"tokenizer_classes": ["ElmoTokenizer"], "processor_classes": []}
