"""Shares the folder of a model on the Hugging Face Hub, whole and checked, so that one line loads it anywhere.

    python hub_upload.py my-elmo user/my-elmo --license apache-2.0 --language en --dry-run
    python hub_upload.py my-elmo user/my-elmo --license apache-2.0 --language en
    python hub_upload.py my-tagger user/my-tagger --license mit --datasets eriktks/conll2003 --private --revision v2

FOLDER is what pretraining, fine-tuning, `elmo convert` or `save_pretrained` wrote. A release is made of it: weights as
safetensors, config, tokenizer, the code that loads them, and a model card with the figures of the run's own
all_results.json. It is loaded in a process that does not have this package, and must give the same vectors, bit for
bit. Then it goes to the Hub in one commit, of the files that differ from what is there. --dry-run ends before that
and needs no network.

Log in once with `hf auth login`, or name the environment variable that holds a token: --token-from-env MY_TOKEN.
"""

import argparse
import fnmatch
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
import transformers
import yaml
from huggingface_hub import (
    CardData,
    CommitOperationAdd,
    CommitOperationDelete,
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    get_token,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # the HTTP library's own, which differs between versions of huggingface_hub
    LocalTokenNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import enable_progress_bars, validate_repo_id
from huggingface_hub.utils import logging as hub_logging
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

import modeling_elmo
from modeling_elmo import ElmoConfig, ElmoPreTrainedModel, ElmoTokenizer
from modeling_elmo.configuration_elmo import AUTO_MAP
from modeling_elmo.files import BAD_INPUT, ElmoError, first_line

DEFAULT_BRANCH = "main"

# ElmoModel -> AutoModel, and so on for every class that a folder may name as its own.
AUTO_CLASSES = {reference.split(".")[1]: auto for auto, reference in AUTO_MAP.items() if auto != "AutoConfig"}
PIPELINE_TAGS = {
    "ElmoModel": "feature-extraction",
    "ElmoForPreTraining": "feature-extraction",
    "ElmoForSequenceClassification": "text-classification",
    "ElmoForTokenClassification": "token-classification",
    "ElmoForMultipleChoice": "multiple-choice",
    "ElmoForQuestionAnswering": "question-answering",
}
# transformers has no auto class and no pipeline for these: the code in the folder is asked for them by their name, and
# in place of a pipeline's tag they have one of their own.
TASK_TAGS = {
    "ElmoForSemanticRoleLabeling": "semantic-role-labeling",
    "ElmoForCoreferenceResolution": "coreference-resolution",
}
RESULTS_FILE, MIX_FILE, STATE_FILE, CARD_FILE = (
    "all_results.json",
    "mix_weights.json",
    "trainer_state.json",
    "README.md",
)

# What a release takes from the folder as it is, and what it writes anew.
TAKEN = f"LICENSE LICENSE.md LICENSE.txt {RESULTS_FILE} {MIX_FILE} perplexity.png mix_weights.png".split()
WEIGHTS = ["model*.safetensors", "model.safetensors.index.json"]
WRITTEN = [
    *WEIGHTS,
    *f"config.json tokenizer_config.json special_tokens_map.json vocab.txt *_elmo.py {CARD_FILE}".split(),
]
# What a run leaves behind and nobody else needs. These are not looked into.
LEFT_BEHIND = (
    "checkpoint-* .checkpoint-* cache .cache *_cache __pycache__ .git .final .ipynb_checkpoints logs runs *.tmp tmp* "
    "*.log events.out.tfevents.*"
).split()
PICKLES = ".bin .pt .pth .pkl .pickle .th .ckpt .joblib".split()
SECRET_NAMES = (
    ".env .env.* *.pem *.key *.p12 id_rsa* id_dsa* id_ecdsa* id_ed25519* token token.txt *.token stored_tokens .netrc "
    ".git-credentials credentials* secrets*"
).split()
SECRET_CONTENTS = re.compile(rb"\bhf_[A-Za-z0-9]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----")
# Larger files are weights and vocabularies.
LARGEST_SEARCHED = 5_000_000
# Files of an earlier release that would be loaded, or taken for part of this one.
REPLACED = [*WEIGHTS, "vocab.txt", "*_elmo.py", MIX_FILE, "*.png"]


# ------------------------------------------------------------------------------------------------------- the folder


@dataclass
class Contents:
    """The files of a folder, by what becomes of them; paths are relative to it."""

    taken: list[str]
    left: list[str]


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def survey(folder: Path) -> Contents:
    """What the folder has. Refuses what must never be published, wherever it is, and a folder that is no model."""
    if not folder.is_dir():
        raise ElmoError(f"{folder}: there is no such folder")
    contents = Contents([], [])
    for path in walk(folder, folder, contents.left):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ElmoError(f"{folder}: {name} links to a file outside; copy the folder with `cp -rL` first")
        if path.is_dir():
            continue
        refuse_secrets(folder, path, name)
        if path.suffix.lower() in PICKLES:
            raise ElmoError(
                f"{folder}: {name} is a pickle, which can run code where it is loaded; remove it, or save the model "
                "anew with save_pretrained"
            )
        if name in TAKEN:
            contents.taken.append(name)
        elif "/" in name or not matches(name, WRITTEN):
            contents.left.append(name)
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ElmoError(f"{folder}: no model folder: it has no {name}")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise ElmoError(f"{folder}: it has no weights: model.safetensors is missing")
    return contents


def walk(top: Path, folder: Path, left: list[str]) -> Iterator[Path]:
    """Every file and folder below, but for what runs leave behind, which is added to `left`."""
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if matches(path.name, LEFT_BEHIND):
            left.append(path.relative_to(top).as_posix() + "/" * is_folder)
            continue
        yield path
        if is_folder:
            yield from walk(top, path, left)


def refuse_secrets(folder: Path, path: Path, name: str) -> None:
    """Refuses a file whose name or text is that of a key or a token. The text itself is not shown."""
    if matches(path.name.lower(), SECRET_NAMES):
        raise ElmoError(f"{folder}: {name} looks like a secret by its name; move it out of the folder")
    if path.stat().st_size <= LARGEST_SEARCHED and SECRET_CONTENTS.search(path.read_bytes()):
        raise ElmoError(f"{folder}: {name} has a token or a private key in it; remove it, and revoke it if it is real")


def read_json(path: Path) -> Any:
    """The contents of a JSON file, or an empty dictionary where there is none."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ElmoError(f"{path}: this is not JSON: {first_line(error)}") from error


def load_source(folder: Path) -> tuple[ElmoPreTrainedModel, ElmoTokenizer]:
    """The model of the folder, by the class that its config names, and the tokenizer."""
    settings = read_json(folder / "config.json")
    if settings.get("model_type") != "elmo":
        raise ElmoError(f"{folder}: the model is a {settings.get('model_type')!r}; expected 'elmo'")
    name = next(iter(settings.get("architectures") or []), None)
    known = (*AUTO_CLASSES, *TASK_TAGS)
    if name not in known:
        raise ElmoError(f"{folder}: `architectures` in config.json must name one of {', '.join(known)}, got {name!r}")
    try:
        tokenizer = ElmoTokenizer.from_pretrained(folder, local_files_only=True)
        model, loading = getattr(modeling_elmo, name).from_pretrained(
            folder, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ElmoError(f"{folder}: the model cannot be loaded: {first_line(error)}") from error
    problems = {
        "mismatched_keys": "are of another size than config.json says",
        "missing_keys": "are missing",
        "unexpected_keys": "have no place in it",
    }
    for key, problem in problems.items():
        if found := sorted(entry if isinstance(entry, str) else entry[0] for entry in loading[key]):
            raise ElmoError(f"{folder}: weights of the {name} {problem}, such as `{found[0]}`; save the model anew")
    return model.eval(), tokenizer


# --------------------------------------------------------------------------------------------------- the model card

WHAT_IT_IS = {
    "ElmoModel": "Contextual word vectors from a bidirectional LSTM language model over characters (ELMo).",
    "ElmoForPreTraining": "Contextual word vectors from a bidirectional LSTM language model over characters (ELMo), "
    "with the softmax that predicts words.",
    "ElmoForSequenceClassification": "A classifier of {texts} on ELMo vectors.",
    "ElmoForTokenClassification": "A tagger of words on ELMo vectors.",
    "ElmoForMultipleChoice": "A model that chooses the right ending of a text, on ELMo vectors.",
    "ElmoForSemanticRoleLabeling": "A model that finds who did what to whom, on ELMo vectors.",
    "ElmoForCoreferenceResolution": "A model that finds the mentions of each thing in a document, on ELMo vectors.",
    "ElmoForQuestionAnswering": "A model that finds the answer to a question in a text, on ELMo vectors.",
}

LOADING = """\
import torch
from transformers import {auto}, AutoTokenizer

name = "{repo_id}"
tokenizer = AutoTokenizer.from_pretrained(name, {options})
model = {auto}.from_pretrained(name, {options}).eval()
"""

LOADING_BY_NAME = """\
from transformers import AutoTokenizer
from transformers.dynamic_module_utils import get_class_from_dynamic_module

name = "{repo_id}"
tokenizer = AutoTokenizer.from_pretrained(name, {options})
model = get_class_from_dynamic_module("modeling_elmo.{auto}", name{revision}).from_pretrained(name{revision}).eval()
"""

USE_VECTORS = """\
inputs = tokenizer(["The bank lends money.", "We sat on the bank of the river."], padding=True, return_tensors="pt")
with torch.no_grad():
    vectors = model(**inputs, keep_sentence_markers=False).last_hidden_state
print(vectors.shape)  # sentences, words, {hidden}
"""

USE = {
    "ElmoModel": USE_VECTORS,
    "ElmoForPreTraining": USE_VECTORS,
    "ElmoForTokenClassification": """\
words = tokenizer.tokenize("The bank lends money in New York.")
inputs = tokenizer([words], is_split_into_words=True, return_tensors="pt")
for word, label in zip(words, model.decode(**inputs)[0]):
    print(word, model.config.id2label[label])
""",
    "ElmoForSequenceClassification": """\
inputs = tokenizer({arguments}, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits
print(model.config.id2label[int(logits.argmax())], logits.softmax(-1))
""",
    "ElmoForMultipleChoice": """\
text, endings = "He opened the umbrella", ["because it rained.", "because it slept."]
inputs = tokenizer([text] * len(endings), endings, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**{key: value[None] for key, value in inputs.items()}).logits
print(endings[int(logits.argmax())])
""",
    "ElmoForQuestionAnswering": """\
found = model.answer("Who lends money?", "The bank by the river lends money.", tokenizer)
print(found.answer, found.score, found.start, found.end)
""",
    "ElmoForSemanticRoleLabeling": """\
words = "The cat that Anna bought ate the fish .".split()
for roles in model.label(words, [4, 5], tokenizer):  # of "bought" and of "ate"
    print([(found.role, found.text) for found in roles])
""",
    "ElmoForCoreferenceResolution": """\
sentences = ["Anna met her old friend .".split(), "She was glad .".split()]
words = [word for sentence in sentences for word in sentence]
for mentions in model.clusters(sentences, tokenizer):
    print([" ".join(words[start:end]) for start, end in mentions])
""",
}

LIMITS = """\
It knows the language and the kind of text that it was trained on, with the biases that such text has; elsewhere,
expect worse. A sentence is read on its own, and of a word no more than {letters}. It runs with
`trust_remote_code=True`, which executes the Python files of this repository: pin a `revision` that you have read."""

CITATION = """\
```bibtex
@inproceedings{peters-etal-2018-deep,
  title = "Deep Contextualized Word Representations",
  author = "Peters, Matthew E. and Neumann, Mark and Iyyer, Mohit and Gardner, Matt and Clark, Christopher and
            Lee, Kenton and Zettlemoyer, Luke",
  booktitle = "Proceedings of NAACL-HLT 2018, Volume 1 (Long Papers)",
  pages = "2227--2237",
  year = "2018",
  doi = "10.18653/v1/N18-1202",
}
```"""

# Of all_results.json, without the part's prefix: the Hub's name of the metric, and a person's.
METRICS = {
    "accuracy": ("accuracy", "Accuracy"),
    "f1": ("f1", "F1"),
    "macro_f1": ("f1", "F1, mean over the classes"),
    "precision": ("precision", "Precision"),
    "recall": ("recall", "Recall"),
    "perplexity": ("perplexity", "Perplexity"),
    "perplexity_forward": ("perplexity", "Perplexity, forward"),
    "perplexity_backward": ("perplexity", "Perplexity, backward"),
    "perplexity_before": ("perplexity", "Perplexity before training"),
}
SPLITS = {"eval": "validation", "test": "test"}
# Of all_results.json and trainer_state.json, what tells how a model was trained.
TRAINING = {
    "train_steps": "steps",
    "global_step": "steps",
    "train_words": "words read",
    "epoch": "epochs",
    "train_batch_size": "examples a step and device",
    "train_seconds": "seconds",
    "train_runtime": "seconds",
    "train_loss": "training loss",
    "processes": "processes",
}


@dataclass(frozen=True)
class CardSettings:
    """What the command line says about the card."""

    repo_id: str
    revision: str
    license: str | None
    language: list[str] | None
    datasets: list[str] | None


@dataclass(frozen=True)
class Score:
    """A figure of all_results.json, as it is there."""

    split: str
    metric: str
    name: str
    value: float


def read_card(folder: Path) -> ModelCard:
    """The folder's own card, or an empty one."""
    path = folder / CARD_FILE
    try:
        return ModelCard(path.read_text(encoding="utf-8") if path.is_file() else "", ignore_metadata_errors=True)
    except (ValueError, yaml.YAMLError) as error:
        raise ElmoError(f"{path}: its front matter cannot be read: {first_line(error)}") from error


def section(text: str, title: str) -> str | None:
    """What a Markdown text has under a heading `## title`, or None."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return found[1].strip() or None if found else None


def opening(text: str, unless: str) -> str | None:
    """What a card of pretraining or conversion says first: what it was trained on or converted from.

    A card that was made here begins with `unless`, which says nothing of the kind.
    """
    found = re.match(r"\s*# [^\n]*\n(.*?)(?=^```|^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    return found[1].strip() or None if found and not found[1].strip().startswith(unless) else None


def read_scores(results: dict[str, Any]) -> list[Score]:
    """The scores among the results of a run."""
    found = []
    for key, value in results.items():
        prefix, _, name = key.partition("_")
        if prefix in SPLITS and name in METRICS and isinstance(value, (int, float)):
            found.append(Score(SPLITS[prefix], *METRICS[name], value))
    return found


def card_data(settings: CardSettings, old: CardData, model: ElmoPreTrainedModel, scores: list[Score]) -> ModelCardData:
    """The front matter, from the command line, the folder's own card and the results. There must be a license."""
    license_ = settings.license or old.get("license")
    if not license_:
        raise ElmoError("the card has no license: give --license, such as --license apache-2.0")
    architecture = type(model).__name__
    datasets = settings.datasets or old.get("datasets")
    datasets = [datasets] if isinstance(datasets, str) else datasets
    of_task = architecture not in ("ElmoModel", "ElmoForPreTraining")
    # The Hub wants a data set for every score. That of a task's is known where there is only one.
    is_known = of_task and datasets is not None and len(datasets) == 1
    results = [
        EvalResult(
            task_type=PIPELINE_TAGS.get(architecture) or TASK_TAGS[architecture],
            dataset_type=datasets[0] if is_known else "unknown",
            dataset_name=datasets[0] if is_known else f"{score.split} data of the run",
            dataset_split=score.split,
            metric_type=score.metric,
            metric_name=score.name,
            metric_value=score.value,
        )
        for score in scores
        if score.name != METRICS["perplexity_before"][1]
    ]
    kept = {} if settings.license else {name: old.get(name) for name in ("license_name", "license_link")}
    own_tag = [TASK_TAGS[architecture]] if architecture in TASK_TAGS else []
    return ModelCardData(
        license=license_,
        language=settings.language or old.get("language"),
        library_name="transformers",
        pipeline_tag=PIPELINE_TAGS.get(architecture),
        tags=list(dict.fromkeys(["elmo", *own_tag, *(old.get("tags") or [])])),
        datasets=datasets,
        base_model=old.get("base_model"),
        metrics=sorted({score.metric for score in scores}) or None,
        model_name=settings.repo_id.split("/")[1] if results else None,
        eval_results=results or None,
        **{name: value for name, value in kept.items() if value},
    )


def number(value: float) -> str:
    """A figure for a table: whole numbers whole, others to four places."""
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.4f}"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (heading, ["---"] * len(heading), *rows))


def model_facts(model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer) -> str:
    """Sizes, counted in the model itself."""
    config: ElmoConfig = model.config
    rows = [
        ("class", f"`{type(model).__name__}`, through `{AUTO_CLASSES.get(type(model).__name__, 'the code here')}`"),
        ("parameters", f"{sum(parameter.numel() for parameter in model.parameters()):,}"),
    ]
    if has_bilm(model):
        rows += [
            ("LSTM layers, each direction", str(config.num_hidden_layers)),
            ("LSTM cells, projected to", f"{config.cell_dim:,}, {config.projection_dim:,}"),
            ("size of a word's vector", f"{config.hidden_size:,}"),
        ]
    if is_task(model):
        rows.append(
            (
                "ELMo vectors at",
                {"both": "input and output", "none": "no place"}.get(config.elmo_placement, config.elmo_placement),
            )
        )
        if has_bilm(model):
            rows.append(
                ("biLM while the task was learned", "kept as it was" if config.freeze_bilm else "trained along")
            )
        if config.word_vector_dim:
            rows.append(("size of the word vectors beside ELMo", f"{config.word_vector_dim:,}"))
    if isinstance(model, modeling_elmo.ElmoForTokenClassification):
        rows.append(("output", "CRF" if config.use_crf else "softmax for each word"))
    without_labels = ("ElmoForMultipleChoice", "ElmoForQuestionAnswering", "ElmoForCoreferenceResolution")
    if is_task(model) and type(model).__name__ not in without_labels:
        labels = [str(config.id2label[index]) for index in range(config.num_labels)]
        rows.append(("labels", ", ".join(labels) if len(labels) <= 40 else f"{len(labels)}"))
    if len(tokenizer) > len(tokenizer.all_special_tokens):
        rows.append(("words in the vocabulary", f"{len(tokenizer):,}"))
    return table(("", ""), rows)


def is_task(model: ElmoPreTrainedModel) -> bool:
    return type(model).__name__ not in ("ElmoModel", "ElmoForPreTraining")


def has_bilm(model: ElmoPreTrainedModel) -> bool:
    return not is_task(model) or model.config.elmo_placement != "none"


def is_for_pairs(model: ElmoPreTrainedModel) -> bool:
    return isinstance(model, modeling_elmo.ElmoForSequenceClassification) and model.config.sequence_encoder == "esim"


def loading_options(settings: CardSettings) -> str:
    return f"trust_remote_code=True{pinned(settings)}"


def pinned(settings: CardSettings) -> str:
    return "" if settings.revision == DEFAULT_BRANCH else f', revision="{settings.revision}"'


def use_section(settings: CardSettings, model: ElmoPreTrainedModel) -> str:
    """The lines that load the model and use it."""
    architecture = type(model).__name__
    auto = "AutoModel" if architecture == "ElmoForPreTraining" else AUTO_CLASSES.get(architecture, architecture)
    texts = '"A dog runs.", "An animal runs."' if is_for_pairs(model) else '"A fine film."'
    code = (LOADING_BY_NAME if architecture in TASK_TAGS else LOADING).replace("{auto}", auto)
    code = code.replace("{repo_id}", settings.repo_id).replace("{revision}", pinned(settings))
    code = code.replace("{options}", loading_options(settings)) + USE[architecture].replace("{arguments}", texts)
    code = code.replace("{hidden}", str(model.config.hidden_size))
    text = f"```python\n{code}```\n"
    if architecture == "ElmoForPreTraining":
        text += (
            "\nThrough `AutoModelForPreTraining`, `model.score(sentences, tokenizer)` gives perplexities and "
            "`model.substitutes(words, position, tokenizer)` the words that may stand at a place.\n"
        )
    return text + "\nText that is already split into words goes in with `is_split_into_words=True`."


def mix_table(weights: dict[str, list[float]]) -> str:
    """The learned weights of the layers, place by place."""
    layers = max(len(values) for values in weights.values())
    heading = ("ELMo at the", "characters", *(f"LSTM layer {layer}" for layer in range(1, layers)))
    return table(heading, [(place, *(f"{value:.3f}" for value in values)) for place, values in weights.items()])


def write_card(
    settings: CardSettings, folder: Path, model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer, taken: Sequence[str]
) -> str:
    """The card, from the folder's own files: what they do not say, it does not say."""
    old = read_card(folder)
    old_text = old.text or ""
    results, mix = read_json(folder / RESULTS_FILE), read_json(folder / MIX_FILE)
    scores = read_scores(results)
    data = card_data(settings, old.data, model, scores)
    training = {**read_json(folder / STATE_FILE), **results}
    what = WHAT_IT_IS[type(model).__name__].format(texts="pairs of texts" if is_for_pairs(model) else "texts")
    parts = [f"# {settings.repo_id.split('/')[1]}", what, model_facts(model, tokenizer)]
    parts += ["## Use", use_section(settings, model)]
    if origin := section(old_text, "Origin") or opening(old_text, unless=what):
        parts += ["## Origin", origin]
    recipe = section(old_text, "Recipe")
    facts = {name: training[key] for key, name in TRAINING.items() if isinstance(training.get(key), (int, float))}
    if recipe or facts:
        parts.append("## Recipe")
        parts += [table(("training", ""), [(name, number(value)) for name, value in facts.items()])] if facts else []
        parts += [without_table(recipe)] if recipe else []
    if scores:
        parts += ["## Results", table(("score", "data", ""), [(s.name, s.split, number(s.value)) for s in scores])]
        about = section(old_text, "Results") or ""
        if measured := re.search(r"^Perplexities are of .*?(?=\n\n|\Z)", about, flags=re.DOTALL | re.MULTILINE):
            parts.append(measured[0])
        parts += ["![Held-out perplexity](perplexity.png)"] if "perplexity.png" in taken else []
    if mix:
        parts += [
            "## Mix weights",
            "What each layer of the biLM counts: γ times its softmax-normalised weight.",
            mix_table(mix),
        ]
        parts += ["![Mix weights](mix_weights.png)"] if "mix_weights.png" in taken else []
    unit = "bytes" if getattr(model.config, "spelling", "bytes") == "bytes" else "characters"
    letters = f"{model.config.max_characters_per_token - 2} {unit}"
    limits = section(old_text, "Limits") or LIMITS.format(letters=letters)
    parts += ["## Limits", limits, "## Citation", CITATION]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def without_table(recipe: str) -> str:
    """A recipe less the table that an earlier card put before it."""
    return re.sub(r"\A(\|[^\n]*\n)+\n*", "", recipe + "\n").strip()


# ------------------------------------------------------------------------------------------------------ the release


def assemble(
    folder: Path,
    release: Path,
    model: ElmoPreTrainedModel,
    tokenizer: ElmoTokenizer,
    card: str,
    taken: Sequence[str],
    max_shard_size: str,
) -> None:
    """Fills the empty folder `release` with all that is to be shared."""
    tokenizer.save_pretrained(release)
    model.save_pretrained(release, max_shard_size=max_shard_size)
    for name in taken:
        copyfile(folder / name, release / name)
    (release / CARD_FILE).write_text(card, encoding="utf-8")
    mapped = read_json(release / "config.json").get("auto_map")
    if mapped != AUTO_MAP:
        raise ElmoError(f"{folder}: the saved config has not the whole auto_map: {mapped}")
    for reference in AUTO_MAP.values():
        if not (release / f"{reference.split('.')[0]}.py").is_file():
            raise ElmoError(
                f"{folder}: the release lacks {reference.split('.')[0]}.py; save_pretrained did not copy it"
            )


PROBES = (
    ["The naïve bank lends money in New York .", "We sat .", "🏦 x" + "y" * 60],
    ["It does n't .", "They stood on the bank of the river .", "."],
)


def probe(model: Any, tokenizer: Any, first: Any, second: Any) -> dict[str, Any]:
    """What a model makes of some sentences: every tensor that goes in and comes out, by name."""
    name = type(model).__name__
    needs_pairs = name in ("ElmoForMultipleChoice", "ElmoForQuestionAnswering") or (
        name == "ElmoForSequenceClassification" and model.config.sequence_encoder == "esim"
    )
    # Weights that are read from a file lie where its header ends. Sums depend on such places in their last bit, so all
    # are moved to where the allocator puts them.
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    inputs = dict(tokenizer(first, second if needs_pairs else None, padding=True, return_tensors="pt"))
    found = {f"{name}.{key}": value.clone() for key, value in inputs.items()}
    if name in ("ElmoForMultipleChoice", "ElmoForCoreferenceResolution"):  # the sentences are one example
        inputs = {key: value[None] for key, value in inputs.items()}
    if name == "ElmoForSemanticRoleLabeling":
        inputs["predicate_index"] = torch.ones(len(first), dtype=torch.long)  # the first word, behind the marker
    if name == "ElmoModel":
        inputs["output_hidden_states"] = True
    with torch.no_grad():
        outputs = model(**inputs)
    for key, value in outputs.items():
        for index, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
            found[f"{name}.output.{key}.{index}"] = tensor.contiguous().clone()
    return found


# Neither this file nor the package is there: `probe` is put in as text.
CLEAN_PROCESS = '''
import json
import sys
from typing import Any


class NoPackage:
    """Makes the package impossible to import, wherever it is installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "modeling_elmo":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoPackage())

import torch
import transformers
from safetensors.torch import save_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module

{probe}

folder, result, auto_classes, compared, (first, second) = json.loads(sys.argv[1])
transformers.utils.logging.set_verbosity_error()
config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
tensors, failed = {}, {}
for auto_class in auto_classes:
    try:
        if hasattr(transformers, auto_class):
            model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
        else:
            kind = get_class_from_dynamic_module(f"modeling_elmo.{auto_class}", folder)
            model = kind.from_pretrained(folder).eval()
    except Exception as error:
        failed[auto_class] = (str(error).strip() or type(error).__name__).splitlines()[0]
        continue
    for part in (config, tokenizer, model):
        if not type(part).__module__.startswith("transformers_modules."):
            failed[auto_class] = f"{type(part).__name__} came from {type(part).__module__}, not from the release"
    if auto_class in compared:
        tensors.update(probe(model, tokenizer, first, second))
save_file(tensors, result)
print(json.dumps(failed))
'''


def check_release(folder: Path, release: Path, model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer) -> str:
    """Loads the release where the package is not, and compares what it computes with the folder; says what it did."""
    own = AUTO_CLASSES.get(type(model).__name__, type(model).__name__)
    expected = probe(model, tokenizer, *PROBES)
    compared = [own]
    if has_bilm(model) and own != "AutoModel":
        compared.append("AutoModel")
        expected |= probe(modeling_elmo.ElmoModel.from_pretrained(folder).eval(), tokenizer, *PROBES)
    for key, tensor in expected.items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ElmoError(f"{folder}: the model's {key.split('.')[-2]} are not numbers (NaN)")
    found, failed = run_clean_process(release, compared)
    for auto_class, reason in list(failed.items()):
        # A head that the folder's own config cannot make, such as one that would have nothing to read, is no loss.
        if auto_class not in compared and not loads(folder, auto_class):
            continue
        raise ElmoError(f"{folder}: without the package, {auto_class} cannot load the release: {reason}")
    if different := [key for key in expected if key not in found or not torch.equal(expected[key], found[key])]:
        raise ElmoError(f"{folder}: without the package, the release gives another {different[0]}: nothing was sent")
    through = dict.fromkeys(("AutoConfig", "AutoTokenizer", *AUTO_CLASSES.values(), own))
    through = [name for name in through if name not in failed]
    without = f"; no {', '.join(failed)}, which this config cannot make" if failed else ""
    return f"loads without the package through {', '.join(through)}{without}; the same vectors, bit for bit"


def run_clean_process(release: Path, compared: Sequence[str]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """What the release computes in a process without the package, and the auto classes that fail, with the reason."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch, "tensors.safetensors")
        loaded = list(dict.fromkeys((*AUTO_CLASSES.values(), *compared)))
        asked = [str(release), str(result), loaded, list(compared), PROBES]
        hidden = ("PYTHONPATH", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        # A home of its own: no token, no earlier copy of the code, and no network.
        environment |= {"HF_HOME": str(Path(scratch, "home")), "HF_HUB_OFFLINE": "1"}
        environment.pop("HF_MODULES_CACHE", None)
        code = CLEAN_PROCESS.replace("{probe}", inspect.getsource(probe))
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(asked)],
            env=environment,
            cwd=scratch,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise ElmoError(f"the release does not load in a process without the package: {reason}")
        return load_file(result), json.loads(done.stdout.strip().splitlines()[-1])


def loads(folder: Path, auto_class: str) -> bool:
    """Whether the folder itself loads through an auto class, with the package."""
    try:
        getattr(transformers, auto_class).from_pretrained(folder)
    except (OSError, ValueError, RuntimeError):
        return False
    return True


# ------------------------------------------------------------------------------------------------------- the upload


def size_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def release_files(release: Path) -> list[Path]:
    return sorted(path for path in release.rglob("*") if path.is_file())


def file_list(release: Path) -> str:
    files = release_files(release)
    lines = [f"{size_text(path.stat().st_size):>12}  {path.relative_to(release).as_posix()}" for path in files]
    total = sum(path.stat().st_size for path in files)
    return "\n".join([*lines, f"{size_text(total):>12}  {len(files)} files together"])


def digest(path: Path, is_large: bool) -> str:
    """How the Hub names the contents of a file: of a large one by SHA-256, else as git does."""
    state = hashlib.sha256() if is_large else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def changes(api: HfApi, repo_id: str, commit: str, release: Path) -> tuple[list[Path], list[str]]:
    """The files that the repository does not have or has otherwise, and its files that this release replaces."""
    there = {
        entry.path: entry
        for entry in api.list_repo_tree(repo_id, recursive=True, revision=commit)
        if isinstance(entry, RepoFile)
    }
    files = {path.relative_to(release).as_posix(): path for path in release_files(release)}
    changed = []
    for name, path in files.items():
        entry = there.get(name)
        known = None if entry is None else (entry.lfs.sha256 if entry.lfs else entry.blob_id)
        if known is None or known != digest(path, is_large=bool(entry and entry.lfs)):
            changed.append(path)
    stale = [name for name in there if name not in files and matches(name, REPLACED)]
    return changed, stale


def prepare_repo(api: HfApi, repo_id: str, branch: str, private: bool) -> str:
    """Makes the repository and the branch where they are not there yet; the commit that the branch is at."""
    api.create_repo(repo_id, private=private or None, exist_ok=True)
    if private and not api.repo_info(repo_id).private:
        raise ElmoError(f"{repo_id} is there and public: --private cannot make it private; change it in its settings")
    try:
        return str(api.repo_info(repo_id, revision=branch).sha)
    except RevisionNotFoundError:
        api.create_branch(repo_id, branch=branch)
        return str(api.repo_info(repo_id, revision=branch).sha)


def upload(api: HfApi, repo_id: str, branch: str, private: bool, release: Path, message: str) -> str:
    """Sends what differs, in one commit; says what was sent.

    `HfApi.upload_folder` would not do: with Xet it makes several commits where one fails, and so may leave half.
    """
    before = prepare_repo(api, repo_id, branch, private)
    changed, stale = changes(api, repo_id, before, release)
    if not changed and not stale:
        return f"Nothing was sent: {repo_id} has all of this already, as commit {before}"
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path.relative_to(release).as_posix(), path) for path in changed
    ]
    operations += [CommitOperationDelete(name) for name in stale]
    try:
        # With the commit that the changes are counted from, so that another's are not undone.
        commit = api.create_commit(
            repo_id, operations, commit_message=message, revision=branch, parent_commit=before
        ).oid
    except (HTTPError, OSError) as error:
        if isinstance(error, HfHubHTTPError):
            raise
        try:
            commit = str(api.repo_info(repo_id, revision=branch).sha)
        except (HTTPError, OSError):
            raise ElmoError(
                f"the connection to {api.endpoint} broke: {first_line(error)}; {repo_id} has all of the release or "
                "nothing of it: run the same command again"
            ) from error
        if commit == before or changes(api, repo_id, commit, release) != ([], []):
            raise
        # The commit came through; only the answer was lost.
    names = ", ".join(path.relative_to(release).as_posix() for path in changed)
    size = size_text(sum(path.stat().st_size for path in changed))
    removed = f"; removed {', '.join(stale)}" if stale else ""
    return f"Sent {len(changed)} files, {size}, in commit {commit}: {names}{removed}"


def scrubbed(text: str, token: str | None) -> str:
    """A text without the token, without anything that looks like one, and without what signs an address."""
    if token:
        text = text.replace(token, "…")
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", re.sub(r"hf_[A-Za-z0-9]{8,}", "…", text))


def what_went_wrong(error: BaseException, repo_id: str, endpoint: str) -> str:
    """An error of the upload, in a line that says what to do."""
    as_it_was = f"{repo_id} is as it was"
    if isinstance(error, LocalTokenNotFoundError):
        return "there is no token: log in with `hf auth login`, or give --token-from-env NAME"
    # What failed in a thread has its reason behind it.
    while not isinstance(error, (HfHubHTTPError, HTTPError)) and error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, HfHubHTTPError):
        reason = first_line(error) if isinstance(error, Exception) else type(error).__name__
        if isinstance(error, ValueError):  # what the client or the Hub finds wrong with the card
            return f"{' '.join(str(error).split())}; {as_it_was}"
        return f"the connection to {endpoint} broke: {reason}; {as_it_was}: run the same command again"
    status = error.response.status_code
    answer = " ".join((error.server_message or "").split()) or first_line(error)
    if status == 401:
        return f"{endpoint} does not take the token (401): {answer}; {as_it_was}: log in anew with `hf auth login`"
    if status == 403:
        return f"the token has no right to write to {repo_id} (403): {answer}; {as_it_was}"
    if status == 412:
        return f"{repo_id} was changed meanwhile by someone else (412); nothing was sent: run the same command again"
    return f"{endpoint} answered {status}: {answer}; {as_it_was}"


# ------------------------------------------------------------------------------------------------------ command line


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hub_upload.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the model's folder")
    parser.add_argument("repo_id", metavar="REPO_ID", help="where it goes: user/name, or organization/name")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--revision", default=DEFAULT_BRANCH, metavar="REV", help="the branch, made if it is not there (%(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="make and check the release, list it, and send nothing")
    parser.add_argument(
        "--token-from-env",
        metavar="NAME",
        help="the environment variable that holds the token; by default the login of `hf auth login`, or HF_TOKEN",
    )
    parser.add_argument("--license", metavar="L", help="the Hub's name of a license, such as apache-2.0 or mit")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="languages, such as en de")
    parser.add_argument("--datasets", nargs="+", metavar="ID", help="data sets of the Hub that it was trained on")
    parser.add_argument("--commit-message", metavar="TEXT", help="what the commit is called")
    parser.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="weights above it are split into files (%(default)s)"
    )
    return parser


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuses a repository or a revision that cannot be one."""
    try:
        validate_repo_id(arguments.repo_id)
    except HFValidationError as error:
        raise ElmoError(f"REPO_ID: {first_line(error)}") from error
    if "/" not in arguments.repo_id:
        raise ElmoError(f"REPO_ID must be user/name, got {arguments.repo_id!r}")
    if re.fullmatch("[0-9a-f]{40}", arguments.revision) or not re.fullmatch(r"[\w.][\w./-]*", arguments.revision):
        raise ElmoError(f"--revision must be the name of a branch, got {arguments.revision!r}")
    if not re.fullmatch(r"\d+(\.\d+)?[KMGT]i?B", arguments.max_shard_size, flags=re.IGNORECASE):
        raise ElmoError(f"--max-shard-size must be like 5GB, got {arguments.max_shard_size!r}")


def find_token(name: str | None) -> str | None:
    """The token that the command line points to, or that of the login; None where there is none."""
    if name is None:
        return get_token()
    if not os.environ.get(name, "").strip():
        raise ElmoError(f"--token-from-env: the environment variable {name} is not set")
    return os.environ[name].strip()


def share(arguments: argparse.Namespace, token: str | None) -> None:
    """Makes the release, checks it, and sends it unless told otherwise."""
    folder, repo_id, branch = arguments.folder, arguments.repo_id, arguments.revision
    api = HfApi(token=token)
    address = f"{api.endpoint}/{repo_id}" + ("" if branch == DEFAULT_BRANCH else f"/tree/{branch}")
    settings = CardSettings(repo_id, branch, arguments.license, arguments.language, arguments.datasets)
    contents = survey(folder)
    if not arguments.license and not read_card(folder).data.get("license"):
        raise ElmoError("the card has no license: give --license, such as --license apache-2.0")
    if not arguments.dry_run:
        api.whoami()  # a wrong token is better known before the work than after it
    model, tokenizer = load_source(folder)
    print(f"{folder}: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters")
    if contents.left:
        print(f"Not taken along: {', '.join(sorted(contents.left))}")
    with tempfile.TemporaryDirectory() as scratch:
        release = Path(scratch, "release")
        release.mkdir()
        card = write_card(settings, folder, model, tokenizer, contents.taken)
        assemble(folder, release, model, tokenizer, card, contents.taken, arguments.max_shard_size)
        survey(release)
        print(f"Checked: {check_release(folder, release, model, tokenizer)}\n\n{file_list(release)}\n")
        if arguments.dry_run:
            visible = "private" if arguments.private else "public"
            print(f"Would go to {address} (branch {branch}, {visible} if new), less what is there. Nothing was sent.")
            return
        message = arguments.commit_message or f"Upload {type(model).__name__}"
        print(upload(api, repo_id, branch, arguments.private, release, message))
    own = AUTO_CLASSES.get(type(model).__name__)
    how = (
        f'{own}.from_pretrained("{repo_id}", {loading_options(settings)})' if own else "Its card says how to load it."
    )
    print(f"\n{address}\n{how}")


def main(arguments: Sequence[str]) -> int:
    parsed = make_parser().parse_args(list(arguments))
    transformers_logging.disable_progress_bar()
    if sys.stderr.isatty():
        enable_progress_bars()  # those of the upload, which the line before turns off as well
    transformers_logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # its warnings show addresses, and those of storage are signed
    token: str | None = None
    try:
        check_arguments(parsed)
        token = find_token(parsed.token_from_env)
        share(parsed, token)
    except ElmoError as error:
        print(f"error: {scrubbed(str(error), token)}", file=sys.stderr)
        return BAD_INPUT
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        line = what_went_wrong(error, parsed.repo_id, HfApi().endpoint)
        print(f"error: {scrubbed(line, token)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"interrupted: {parsed.repo_id} has all of it or nothing", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
