"""Model cards: the README.md of every model folder is made here, from card_template.md.

`training_card` is for pretraining and fine-tuning, `conversion_card` for converted checkpoints, `release_card` for the
Hub. The text of all of them is in the template.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .configuration_elmo import AUTO_MAP
from .files import ElmoError, file_digest, first_line, read_json
from .modeling_elmo import ElmoPreTrainedModel
from .tokenization_elmo import ElmoTokenizer

TEMPLATE = Path(__file__).with_name("card_template.md")
# Stands in the code of a card for where the model is, until it is on the Hub.
LOCAL_NAME = "path/to/this/folder"
CARD_FILE = "README.md"
RESULTS_FILE = "all_results.json"
MIX_FILE = "mix_weights.json"
STATE_FILE = "trainer_state.json"

# ElmoModel -> AutoModel, and so on.
AUTO_CLASSES = {reference.split(".")[1]: auto for auto, reference in AUTO_MAP.items() if auto != "AutoConfig"}
LANGUAGE_MODELS = ("ElmoModel", "ElmoForPreTraining")
WITHOUT_LABELS = ("ElmoForMultipleChoice", "ElmoForQuestionAnswering", "ElmoForCoreferenceResolution")
PIPELINE_TAGS = {
    "ElmoModel": "feature-extraction",
    "ElmoForPreTraining": "feature-extraction",
    "ElmoForSequenceClassification": "text-classification",
    "ElmoForTokenClassification": "token-classification",
    "ElmoForMultipleChoice": "multiple-choice",
    "ElmoForQuestionAnswering": "question-answering",
}
# transformers has neither an auto class nor a pipeline for these.
TASK_TAGS = {
    "ElmoForSemanticRoleLabeling": "semantic-role-labeling",
    "ElmoForCoreferenceResolution": "coreference-resolution",
}
# Scores in all_results.json, after `eval_` or `test_`: the Hub's name of the metric, and the name in a card.
METRICS = {
    "accuracy": ("accuracy", "Accuracy"),
    "f1": ("f1", "F1"),
    "macro_f1": ("f1", "F1, mean over the classes"),
    "micro_f1": ("f1", "F1 over all decisions"),
    "pearson": ("pearsonr", "Pearson correlation"),
    "spearman": ("spearmanr", "Spearman correlation"),
    "mse": ("mse", "Mean squared error"),
    "precision": ("precision", "Precision"),
    "recall": ("recall", "Recall"),
    "exact_match": ("exact_match", "Exact match"),
    "conll_f1": ("f1", "CoNLL F1, the mean of MUC, B³ and CEAF"),
    "without_singletons_conll_f1": ("f1", "CoNLL F1 without clusters of one mention"),
    "perplexity": ("perplexity", "Perplexity"),
    "perplexity_forward": ("perplexity", "Perplexity, forward"),
    "perplexity_backward": ("perplexity", "Perplexity, backward"),
}
for _measure, _name in (("muc", "MUC"), ("b_cubed", "B³"), ("ceaf", "CEAF"), ("mention", "Mentions")):
    for _score, _label in (("precision", "precision"), ("recall", "recall"), ("f1", "F1")):
        METRICS[f"{_measure}_{_score}"] = (_score, f"{_name}, {_label}")
SPLITS = {"eval": "validation", "test": "test"}
# What the front matter of a release takes over from the folder's card.
KEPT = ("license", "license_name", "license_link", "language", "datasets", "tags", "base_model")
# Figures of all_results.json and trainer_state.json that describe the training.
TRAINING = {
    "train_steps": "steps",
    "global_step": "steps",
    "train_words": "words read",
    "epoch": "epochs",
    "train_batch_size": "examples per step and device",
    "train_seconds": "seconds",
    "train_runtime": "seconds",
    "train_loss": "training loss",
    "processes": "processes",
    "eval_perplexity_before": "perplexity before training",
}


def is_task_model(model: ElmoPreTrainedModel) -> bool:
    return type(model).__name__ not in LANGUAGE_MODELS


def has_bilm(model: ElmoPreTrainedModel) -> bool:
    return not is_task_model(model) or model.config.elmo_placement != "none"


def format_number(value: Any) -> str:
    """Format a figure for a table."""
    if not isinstance(value, (int, float)):
        return str(value)
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.6g}" if abs(value) < 1 else f"{value:,.2f}"


def render_card(
    model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer, title: str, metadata: Mapping[str, Any], **sections: Any
) -> str:
    """Fill the template; a section that is not given is left out. `metadata` completes the front matter."""
    architecture, config = type(model).__name__, model.config
    is_task = is_task_model(model)
    labels = []
    if is_task and architecture not in WITHOUT_LABELS:
        labels = [str(config.id2label[index]) for index in range(config.num_labels)]
    tags = ["elmo", *TASK_TAGS.get(architecture, "").split(), *metadata.get("tags", [])]
    front = {
        "library_name": "transformers",
        "pipeline_tag": PIPELINE_TAGS.get(architecture),
        **metadata,
        "tags": list(dict.fromkeys(tags)),
    }
    values = {
        "name": LOCAL_NAME,
        "revision": "",
        "title": title,
        "architecture": architecture,
        # The vectors of a pretrained model are read without its softmax.
        "auto_class": AUTO_CLASSES.get(architecture) if is_task else "AutoModel",
        "config": config,
        "parameters": model.num_parameters(),
        "is_task": is_task,
        "has_bilm": has_bilm(model),
        "takes_pairs": config.sequence_encoder == "esim",
        "labels": labels,
        "words": len(tokenizer) if len(tokenizer) > len(tokenizer.all_special_tokens) else None,
        **sections,
    }
    card = ModelCard.from_template(ModelCardData(**front), template_path=str(TEMPLATE), **values)
    return f"{card}\n"


def training_card(
    model: ElmoPreTrainedModel,
    tokenizer: ElmoTokenizer,
    title: str,
    origin: str,
    results: Mapping[str, Any],
    recipe: Mapping[str, Any],
) -> str:
    """Return the card of a model that was just trained; `origin` says on what, `recipe` has the run's settings."""
    rows = [(name, format_number(value)) for name, value in results.items()]
    text = yaml.safe_dump(dict(recipe), sort_keys=False).strip()
    return render_card(model, tokenizer, title, {}, origin=origin, results=rows, recipe=f"```yaml\n{text}\n```")


def conversion_card(model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer, origin: str, sources: Sequence[Path]) -> str:
    """Return the card of a converted model: what it was converted from, with the digests of the files."""
    # The mix is not part of the language model, and row 0 of the character embedding was added here.
    count = model.num_parameters() - sum(parameter.numel() for parameter in model.scalar_mix.parameters())
    if model.config.char_filters:
        count -= model.config.char_embedding_dim
    lines = [f"The {count:,} parameters of the language model were converted from {origin}:", ""]
    lines += ["| file | bytes | sha256 |", "|---|---|---|"]
    for path in sources:
        lines.append(f"| `{path.name}` | {path.stat().st_size:,} | `{file_digest(path)}` |")
    scalars, gamma = model.scalar_mix.scalar_weights, model.scalar_mix.gamma.item()
    mix = "average of the layers"
    if scalars.any() or gamma != 1:
        weights = ", ".join(f"{gamma * weight:.3f}" for weight in scalars.softmax(0).tolist())
        mix = f"sum of the layers times {weights}, as was learned"
    lines += ["", f"`last_hidden_state` is the {mix}."]
    return render_card(model, tokenizer, "ELMo", {}, origin="\n".join(lines))


# ------------------------------------------------------------------------------------------------- cards for the Hub


def read_card(folder: Path) -> ModelCard:
    """Read the card of a folder; without one, return an empty card."""
    path = folder / CARD_FILE
    try:
        return ModelCard(path.read_text(encoding="utf-8") if path.is_file() else "", ignore_metadata_errors=True)
    except (ValueError, yaml.YAMLError) as error:
        raise ElmoError(f"{path}: cannot read its front matter: {first_line(error)}") from error


def find_section(text: str, title: str) -> str | None:
    """Return what a Markdown text has under the heading `## title`, or None."""
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return match[1].strip() if match else None


def find_origin(text: str) -> str | None:
    """Return the section on the origin of a model; of a card not made here, its introduction."""
    if "\n## Use\n" in text:
        return find_section(text, "Origin")
    match = re.match(r"\s*# [^\n]*\n(.*?)(?=^```|^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return match[1].strip() if match else None


def eval_results(architecture: str, results: Mapping[str, Any], datasets: list[str] | None) -> list[EvalResult]:
    """Return the scores among the results of a run as the Hub wants them: each with a data set."""
    dataset = None
    if datasets is not None and len(datasets) == 1 and architecture not in LANGUAGE_MODELS:
        dataset = datasets[0]
    scores = []
    for prefix, split in SPLITS.items():
        for name, (metric_type, metric_name) in METRICS.items():
            if f"{prefix}_{name}" in results:
                score = EvalResult(
                    task_type=PIPELINE_TAGS.get(architecture) or TASK_TAGS[architecture],
                    dataset_type=dataset or "unknown",
                    dataset_name=dataset or f"{split} data of the run",
                    dataset_split=split,
                    metric_type=metric_type,
                    metric_name=metric_name,
                    metric_value=results[f"{prefix}_{name}"],
                )
                scores.append(score)
    return scores


def release_card(
    folder: Path,
    model: ElmoPreTrainedModel,
    tokenizer: ElmoTokenizer,
    repo_id: str,
    revision: str | None = None,
    **given: Any,
) -> str:
    """Return the card for the Hub, from the files of the folder; what they do not say, it does not say.

    `license`, `language` and `datasets` replace those of the folder's own card. There must be a license.
    """
    card = read_card(folder)
    metadata = {name: value for name, value in card.data.to_dict().items() if name in KEPT}
    if given.get("license"):  # a license of one's own has a name and an address
        metadata.pop("license_name", None)
        metadata.pop("license_link", None)
    metadata |= {name: value for name, value in given.items() if value}
    if "license" not in metadata:
        raise ElmoError("the card has no license: give --license, such as --license apache-2.0")
    for name in ("tags", "datasets"):
        if isinstance(metadata.get(name), str):
            metadata[name] = [metadata[name]]

    files = (folder / name for name in (RESULTS_FILE, STATE_FILE, MIX_FILE))
    results, state, mix = (read_json(file) if file.is_file() else {} for file in files)
    scores = eval_results(type(model).__name__, results, metadata.get("datasets"))
    rows = [(f"{score.metric_name}, {score.dataset_split}", format_number(score.metric_value)) for score in scores]
    training = {**state, **results}
    for key, label in TRAINING.items():
        if isinstance(training.get(key), (int, float)):
            rows.append((label, format_number(training[key])))
    title = repo_id.split("/")[-1]
    if scores:
        metrics = sorted({score.metric_type for score in scores})
        metadata |= {"metrics": metrics, "model_name": title, "eval_results": scores}
    sections = {
        "name": repo_id,
        "revision": f', revision="{revision}"' if revision else "",
        "origin": find_origin(card.text),
        "recipe": find_section(card.text, "Recipe"),
        "results": rows,
        "has_perplexity_image": (folder / "perplexity.png").is_file(),
        "mix": mix,
        "has_mix_image": (folder / "mix_weights.png").is_file(),
        "limits": find_section(card.text, "Limits"),
    }
    return render_card(model, tokenizer, title, metadata, **sections)
