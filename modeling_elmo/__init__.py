"""ELMo for today's stack: contextual word vectors from a bidirectional LSTM language model."""

from pathlib import Path

import transformers

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

__version__ = "0.2.0.dev0"

# The folder of elmo-mini, a small English model that comes with the package.
MINI = str(Path(__file__).parent / "elmo-mini")

# Folders of this package load through the auto classes without `trust_remote_code` once it is imported.
transformers.AutoConfig.register("elmo", ElmoConfig, exist_ok=True)
transformers.AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
transformers.AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
transformers.AutoModelForPreTraining.register(ElmoConfig, ElmoForPreTraining, exist_ok=True)
transformers.AutoModelForSequenceClassification.register(ElmoConfig, ElmoForSequenceClassification, exist_ok=True)
transformers.AutoModelForTokenClassification.register(ElmoConfig, ElmoForTokenClassification, exist_ok=True)
transformers.AutoModelForMultipleChoice.register(ElmoConfig, ElmoForMultipleChoice, exist_ok=True)
transformers.AutoModelForQuestionAnswering.register(ElmoConfig, ElmoForQuestionAnswering, exist_ok=True)

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
