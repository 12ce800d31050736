"""Transformers' common test suites on every class of this package. They run where `make conformance` fetched them."""

import tempfile
import unittest
from typing import Any

import common_suites
import pytest
import torch

from modeling_elmo import (
    ElmoConfig,
    ElmoForCoreferenceResolution,
    ElmoForMultipleChoice,
    ElmoForPreTraining,
    ElmoForQuestionAnswering,
    ElmoForSemanticRoleLabeling,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)

if not common_suites.TESTS.is_dir():
    pytest.skip(f"{common_suites.TESTS} not found: run `make conformance`", allow_module_level=True)

suites = common_suites.load()

WORDS = ["a", "river", "bank", "money", "lends", "the", "She", "to", "town", "of", ".", "Hello"]
SIZES = {
    "char_filters": [[1, 4], [2, 4]],
    "char_embedding_dim": 4,
    "max_characters_per_token": 12,
    "projection_dim": 6,
    "cell_dim": 8,
    "num_highway_layers": 1,
    "num_hidden_layers": 2,
    "num_negatives": 0,
    "vocab_size": 40,
    "head_dim": 6,
    "head_layers": 2,
    "head_char_filters": 3,
    "dropout": 0.0,
    "elmo_dropout": 0.0,
    "head_dropout": 0.0,
    "freeze_bilm": False,
}


class ElmoModelTester:
    """Makes a small config and a batch for one model class."""

    batch_size, seq_length, num_choices = 3, 7, 2
    num_hidden_layers, hidden_size = 2, 12
    is_training = True

    def __init__(self, parent: unittest.TestCase) -> None:
        self.parent = parent

    def get_config(self) -> ElmoConfig:
        return ElmoConfig(**{**SIZES, **self.parent.config_changes})

    def prepare_config_and_inputs_for_common(self) -> tuple[ElmoConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        generator = torch.Generator().manual_seed(7)
        shape = (self.batch_size, self.seq_length)
        char_ids = torch.randint(1, 250, (*shape, config.max_characters_per_token), generator=generator)
        char_ids[:, :, 0] = 259
        inputs = {
            "input_ids": torch.randint(4, config.vocab_size, shape, generator=generator),
            "char_ids": char_ids,
            "attention_mask": torch.ones(shape, dtype=torch.long),
        }
        model_class = self.parent.all_model_classes[0]
        if model_class is ElmoForSemanticRoleLabeling:
            inputs["predicate_index"] = torch.tensor([2, 3, 4])
        if model_class is ElmoForCoreferenceResolution:  # documents of two sentences
            for name, tensor in inputs.items():
                inputs[name] = torch.stack([tensor, tensor.flip(0)], dim=1)
        if self.parent.reads_pairs:
            inputs["token_type_ids"] = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).expand(shape).contiguous()
        return config, inputs

    def prepare_config_and_inputs(self) -> tuple[ElmoConfig, dict[str, torch.Tensor]]:
        return self.prepare_config_and_inputs_for_common()


class ElmoSuite(suites.ModelTesterMixin):
    config_changes: dict[str, Any] = {}
    reads_pairs = False
    has_attentions = False

    def setUp(self) -> None:
        self.model_tester = ElmoModelTester(self)

    def _prepare_for_class(self, inputs_dict: dict, model_class: type, return_labels: bool = False) -> dict:
        inputs = {name: value.clone() if torch.is_tensor(value) else value for name, value in inputs_dict.items()}
        batch, words = self.model_tester.batch_size, self.model_tester.seq_length
        if model_class is ElmoForMultipleChoice:
            choices = self.model_tester.num_choices
            for name, tensor in inputs.items():
                if torch.is_tensor(tensor) and tensor.ndim > 1:
                    inputs[name] = tensor.unsqueeze(1).expand(-1, choices, *tensor.shape[1:]).contiguous()
        if not return_labels:
            return inputs
        labels = {
            ElmoForPreTraining: inputs["input_ids"].clone(),
            ElmoForSequenceClassification: torch.zeros(batch, dtype=torch.long),
            ElmoForMultipleChoice: torch.ones(batch, dtype=torch.long),
            ElmoForTokenClassification: torch.zeros(batch, words, dtype=torch.long),
            ElmoForSemanticRoleLabeling: torch.zeros(batch, words, dtype=torch.long),
            ElmoForCoreferenceResolution: torch.tensor([[0, 2, 0], [3, 4, 0], [5, 7, 1]]).repeat(batch, 1, 1),
        }
        if model_class is ElmoForQuestionAnswering:
            inputs["start_positions"] = torch.full((batch,), 3)
            inputs["end_positions"] = torch.full((batch,), 4)
        elif model_class in labels:
            inputs["labels"] = labels[model_class]
        return inputs


# Model class -> changes to the config, and whether its rows are pairs of texts.
MODELS: dict[str, tuple[type, dict[str, Any], bool]] = {
    "Model": (ElmoModel, {}, False),
    "PreTraining": (ElmoForPreTraining, {}, False),
    "SampledPreTraining": (ElmoForPreTraining, {"num_negatives": 8}, False),
    "SequenceClassification": (ElmoForSequenceClassification, {}, False),
    "SequenceClassificationWithWordVectors": (
        ElmoForSequenceClassification,
        {"word_vector_dim": 5, "train_word_vectors": True},
        False,
    ),
    "PairClassification": (ElmoForSequenceClassification, {"sequence_encoder": "esim"}, True),
    "TokenClassification": (ElmoForTokenClassification, {}, False),
    "TokenClassificationWithoutCrf": (ElmoForTokenClassification, {"use_crf": False}, False),
    "MultipleChoice": (ElmoForMultipleChoice, {}, True),
    "QuestionAnswering": (ElmoForQuestionAnswering, {}, True),
    "SemanticRoleLabeling": (ElmoForSemanticRoleLabeling, {}, False),
    "CoreferenceResolution": (ElmoForCoreferenceResolution, {}, False),
}

for name, (model_class, changes, pairs) in MODELS.items():
    members = {"all_model_classes": (model_class,), "config_changes": changes, "reads_pairs": pairs}
    bases: tuple[type, ...] = (ElmoSuite, unittest.TestCase)
    globals()[f"Test{name}"] = type(f"Test{name}", bases, members)


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
        ElmoTokenizer(vocab=WORDS).save_pretrained(cls.tmpdirname)


class TestTraining(suites.TrainingTesterMixin, unittest.TestCase):
    model_tester = None
    all_model_classes = (ElmoForPreTraining,)
    config_changes: dict[str, Any] = {"cell_dim": 32, "projection_dim": 16}
    reads_pairs = False
    training_overfit_learning_rate = 1e-2

    def setUp(self) -> None:
        self.model_tester = ElmoModelTester(self)

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
        tokenizer = ElmoTokenizer(vocab=WORDS, max_characters_per_token=SIZES["max_characters_per_token"])
        for model_class in (ElmoModel, ElmoForSequenceClassification, ElmoForTokenClassification, ElmoForPairs):
            name = model_class.__name__
            config = ElmoConfig(**SIZES)
            if model_class is ElmoForPairs:
                labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
                numbers = {label: number for number, label in labels.items()}
                config = ElmoConfig(**SIZES, sequence_encoder="esim", id2label=labels, label2id=numbers)
            folder = suites.pipeline_models / "elmo" / name
            model_class(config).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            suites.tiny_model_summary[name] = {"tokenizer_classes": ["ElmoTokenizer"], "processor_classes": []}
