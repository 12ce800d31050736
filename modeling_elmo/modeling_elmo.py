"""Every public model class, under the one name that a saved folder knows: `modeling_elmo`.

The classes live in one file per task. A saved folder's `auto_map` names this file, so each class says that it comes
from here: transformers then copies this file and, through its imports, all the others.
"""

from .bilm_elmo import ElmoModel, ElmoModelOutput, ElmoPreTrainedModel
from .classification_elmo import ElmoForMultipleChoice, ElmoForSequenceClassification
from .coreference_elmo import ElmoCoreferenceOutput, ElmoForCoreferenceResolution
from .heads_elmo import ElmoTaskModel
from .layers_elmo import ElmoScalarMix
from .pretraining_elmo import ElmoForPreTraining, ElmoForPreTrainingOutput, SentenceScore, Substitute
from .reading_elmo import Answer, ElmoForQuestionAnswering, ElmoQuestionAnsweringOutput
from .roles_elmo import ElmoForSemanticRoleLabeling, ElmoSemanticRoleLabelerOutput, Role
from .tagging_elmo import ElmoForTokenClassification, ElmoTokenClassifierOutput

# Semantic roles and coreference have no auto class. Registered as AutoModel, they are saved with their code all the
# same; the config writes the `auto_map` itself.
AUTO_CLASSES = {
    ElmoModel: "AutoModel",
    ElmoForPreTraining: "AutoModelForPreTraining",
    ElmoForSequenceClassification: "AutoModelForSequenceClassification",
    ElmoForTokenClassification: "AutoModelForTokenClassification",
    ElmoForMultipleChoice: "AutoModelForMultipleChoice",
    ElmoForQuestionAnswering: "AutoModelForQuestionAnswering",
    ElmoForSemanticRoleLabeling: "AutoModel",
    ElmoForCoreferenceResolution: "AutoModel",
}

for model_class, auto_class in AUTO_CLASSES.items():
    model_class.__module__ = __name__
    model_class.register_for_auto_class(auto_class)

__all__ = [
    "Answer",
    "ElmoCoreferenceOutput",
    "ElmoForCoreferenceResolution",
    "ElmoForMultipleChoice",
    "ElmoForPreTraining",
    "ElmoForPreTrainingOutput",
    "ElmoForQuestionAnswering",
    "ElmoForSemanticRoleLabeling",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoModelOutput",
    "ElmoPreTrainedModel",
    "ElmoQuestionAnsweringOutput",
    "ElmoScalarMix",
    "ElmoSemanticRoleLabelerOutput",
    "ElmoTaskModel",
    "ElmoTokenClassifierOutput",
    "Role",
    "SentenceScore",
    "Substitute",
]
