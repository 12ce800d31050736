"""Every model class of the package, small, with a batch for each: what tests of all of them share."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

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

SIZES: dict[str, Any] = {
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
BATCH, WORDS, CHOICES = 3, 7, 2


class Case(NamedTuple):
    """A model class, what its config has beside SIZES, and whether its rows are pairs of texts."""

    model_class: type
    changes: dict[str, Any]
    reads_pairs: bool = False

    def config(self, **changes: Any) -> ElmoConfig:
        return ElmoConfig(**{**SIZES, **self.changes, **changes})

    def inputs(self) -> dict[str, Tensor]:
        """Make a batch, without the dimension of choices."""
        generator = torch.Generator().manual_seed(7)
        shape = (BATCH, WORDS)
        char_ids = torch.randint(1, 250, (*shape, SIZES["max_characters_per_token"]), generator=generator)
        char_ids[:, :, 0] = 259
        inputs = {
            "input_ids": torch.randint(4, SIZES["vocab_size"], shape, generator=generator),
            "char_ids": char_ids,
            "attention_mask": torch.ones(shape, dtype=torch.long),
        }
        if self.model_class is ElmoForSemanticRoleLabeling:
            inputs["predicate_index"] = torch.tensor([2, 3, 4])
        if self.model_class is ElmoForCoreferenceResolution:  # documents of two sentences
            for name, tensor in inputs.items():
                inputs[name] = torch.stack([tensor, tensor.flip(0)], dim=1)
        if self.reads_pairs:
            tokenizer = ElmoTokenizer(max_characters_per_token=SIZES["max_characters_per_token"])
            pairs = tokenizer(["one", "two", "six"], ["a b", "c d", "e f"], return_tensors="pt")
            inputs["char_ids"] = pairs["char_ids"]
            inputs["token_type_ids"] = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]).repeat(BATCH, 1)
        return inputs

    def prepare(self, inputs: dict[str, Any], with_labels: bool = False) -> dict[str, Any]:
        """Give the inputs the shape of the class, and labels."""
        inputs = {name: value.clone() if torch.is_tensor(value) else value for name, value in inputs.items()}
        if self.model_class is ElmoForMultipleChoice:
            for name, tensor in inputs.items():
                if torch.is_tensor(tensor) and tensor.ndim > 1:
                    inputs[name] = torch.stack([tensor] * CHOICES, dim=1)
        if not with_labels:
            return inputs
        if self.model_class is ElmoForQuestionAnswering:
            inputs["start_positions"] = torch.full((BATCH,), 4)
            inputs["end_positions"] = torch.full((BATCH,), 5)
            return inputs
        labels = {
            ElmoForPreTraining: inputs["input_ids"].clone(),
            ElmoForSequenceClassification: torch.zeros(BATCH, dtype=torch.long),
            ElmoForMultipleChoice: torch.ones(BATCH, dtype=torch.long),
            ElmoForTokenClassification: torch.zeros(BATCH, WORDS, dtype=torch.long),
            ElmoForSemanticRoleLabeling: torch.zeros(BATCH, WORDS, dtype=torch.long),
            ElmoForCoreferenceResolution: torch.tensor([[0, 2, 0], [3, 4, 0], [5, 7, 1]]).repeat(BATCH, 1, 1),
        }
        if self.model_class in labels:
            inputs["labels"] = labels[self.model_class]
        return inputs


CASES = {
    "Model": Case(ElmoModel, {}),
    "PreTraining": Case(ElmoForPreTraining, {}),
    "SampledPreTraining": Case(ElmoForPreTraining, {"num_negatives": 8}),
    "SequenceClassification": Case(ElmoForSequenceClassification, {}),
    "WordVectors": Case(ElmoForSequenceClassification, {"word_vector_dim": 5, "train_word_vectors": True}),
    "SequenceClassificationOfPairs": Case(ElmoForSequenceClassification, {}, reads_pairs=True),
    "BiattentiveClassification": Case(ElmoForSequenceClassification, {"sequence_encoder": "bcn"}),
    "PairClassification": Case(ElmoForSequenceClassification, {"sequence_encoder": "esim"}, reads_pairs=True),
    "TokenClassification": Case(ElmoForTokenClassification, {}),
    "TokenClassificationWithoutCrf": Case(ElmoForTokenClassification, {"use_crf": False}),
    "MultipleChoice": Case(ElmoForMultipleChoice, {}, reads_pairs=True),
    "QuestionAnswering": Case(ElmoForQuestionAnswering, {}, reads_pairs=True),
    "SemanticRoleLabeling": Case(ElmoForSemanticRoleLabeling, {}),
    "CoreferenceResolution": Case(ElmoForCoreferenceResolution, {}),
}
