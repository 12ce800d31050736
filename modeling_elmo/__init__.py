"""ELMo for today's stack: contextual word vectors from a bidirectional LSTM language model."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from .configuration_elmo import ElmoConfig
from .embedding import ElmoEmbedder
from .modeling_elmo import (
    ElmoForMultipleChoice,
    ElmoForPreTraining,
    ElmoForSemanticRoleLabeling,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoModelOutput,
    ElmoPreTrainedModel,
    ElmoScalarMix,
)
from .tokenization_elmo import ElmoTokenizer

__version__ = "0.1.0"

# Folders of this package load through the auto classes without `trust_remote_code` once it is imported.
AutoConfig.register("elmo", ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
AutoModelForPreTraining.register(ElmoConfig, ElmoForPreTraining, exist_ok=True)
AutoModelForSequenceClassification.register(ElmoConfig, ElmoForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(ElmoConfig, ElmoForTokenClassification, exist_ok=True)
AutoModelForMultipleChoice.register(ElmoConfig, ElmoForMultipleChoice, exist_ok=True)

__all__ = [
    "ElmoConfig",
    "ElmoEmbedder",
    "ElmoForMultipleChoice",
    "ElmoForPreTraining",
    "ElmoForSemanticRoleLabeling",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoScalarMix",
    "ElmoTokenizer",
]
