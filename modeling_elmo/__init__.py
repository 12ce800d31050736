"""ELMo for today's stack: contextual word vectors from a bidirectional LSTM language model."""

from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoTokenizer

from .configuration_elmo import ElmoConfig
from .embedding import ElmoEmbedder
from .modeling_elmo import ElmoForPreTraining, ElmoModel, ElmoModelOutput, ElmoPreTrainedModel, ElmoScalarMix
from .tokenization_elmo import ElmoTokenizer

__version__ = "0.1.0"

# Folders of this package load through the auto classes without `trust_remote_code` once it is imported.
AutoConfig.register("elmo", ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
AutoModelForPreTraining.register(ElmoConfig, ElmoForPreTraining, exist_ok=True)

__all__ = [
    "ElmoConfig",
    "ElmoEmbedder",
    "ElmoForPreTraining",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoScalarMix",
    "ElmoTokenizer",
]
