"""Train a task model on top of ELMo, with the models of the paper.

    python -m training.finetune --task ner --model_name_or_path my-elmo --train_file eng.train \\
        --validation_file eng.testa --word_vectors glove.6B.zip:glove.6B.50d.txt --output_dir runs/ner
    python -m training.finetune --task ner --elmo_placement none --train_file … --output_dir runs/baseline
    python -m training.finetune --task ner … --output_dir runs/ner --resume_from_checkpoint last

Tasks: text-classification (classes, several labels or a number for a text or a pair), the paper's sst (a class for a
text) and nli (a class for a pair), ner (spans), pos (a tag for each word), choice (the right
continuation), srl (semantic roles), squad (an answer in a context), coref (mentions of the same thing in a document).
Each has a recipe of its name in training/recipes; another one there (sst-phrases, sick), or a YAML file, may be the
first argument. Settings on the command line win, and include everything of transformers' TrainingArguments.
"""

import argparse
import dataclasses
import itertools
import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerState, TrainingArguments, set_seed
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import EvalPrediction
from transformers.utils import CONFIG_NAME
from transformers.utils import logging as transformers_logging

from modeling_elmo import (
    ElmoConfig,
    ElmoForCoreferenceResolution,
    ElmoForMultipleChoice,
    ElmoForQuestionAnswering,
    ElmoForSemanticRoleLabeling,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoTokenizer,
)
from modeling_elmo.card import training_card
from modeling_elmo.configuration_elmo import BILMS
from modeling_elmo.files import (
    BAD_INPUT,
    ElmoError,
    disk_errors,
    remove,
    remove_leftovers,
    replace_files,
    write_text,
)
from modeling_elmo.heads_elmo import ElmoTaskModel
from modeling_elmo.loading import loading_errors, packaged_model
from modeling_elmo.locks import one_writer
from modeling_elmo.word_vectors import load_word_vectors

from .checkpoints import check_digests, reading, sorted_checkpoints, tensor_bytes
from .coref import Coreference
from .examples import GIGABYTE, Collator, LayerStore
from .figures import draw_mix
from .processes import keep_alive_until_exit, run_script
from .settings import TaskSettings, in_one_line, parse_with_recipe
from .squad import QuestionAnswering
from .srl import SemanticRoleLabeling
from .task_data import read_part, sample_fraction
from .tasks import LabelledTexts, MultipleChoice, Tagging, Task, TextClassification
from .trainer import StopOnSignal, TaskTrainer

TASKS: dict[str, Task] = {
    "text-classification": LabelledTexts("text-classification", ElmoForSequenceClassification),
    "sst": TextClassification("sst", ElmoForSequenceClassification, config={"sequence_encoder": "bcn"}),
    "nli": TextClassification("nli", ElmoForSequenceClassification, config={"sequence_encoder": "esim"}),
    "ner": Tagging("ner", ElmoForTokenClassification, metric="f1"),
    "pos": Tagging("pos", ElmoForTokenClassification),
    "choice": MultipleChoice("choice", ElmoForMultipleChoice),
    "srl": SemanticRoleLabeling("srl", ElmoForSemanticRoleLabeling, metric="f1"),
    "squad": QuestionAnswering("squad", ElmoForQuestionAnswering, metric="f1"),
    "coref": Coreference("coref", ElmoForCoreferenceResolution, metric="conll_f1"),
}
RESULTS_FILE, MIX_FILE = "all_results.json", "mix_weights.json"
STOPPED = 128 + signal.SIGINT
# The default of TrainingArguments.
NO_OUTPUT_DIR = "trainer_output"
# Settings of ElmoConfig that may change when the training of a task model continues.
CHANGEABLE = ("freeze_bilm", "train_word_vectors", "mix_l2", "head_dropout", "elmo_dropout")


# ------------------------------------------------------------------------------------------------------ preparation


def read_parts(task: Task, settings: TaskSettings) -> dict[str, Dataset]:
    """Read the rows of the "train", "validation" and, where there is one, "test" part."""
    rows = {}
    for part in ("train", "validation", "test"):
        file, split = getattr(settings, f"{part}_file"), getattr(settings, f"{part}_split")
        if part == "validation" and settings.validation_fraction:
            file = settings.train_file
        if file or (settings.dataset_name and split):
            rows[part] = read_part(task, settings, part == "train", file, split)
    return rows


def read_config(task: Task, settings: TaskSettings) -> tuple[ElmoConfig, bool]:
    """Return the config of the model to train, and whether it is a model of this task already, rather than a biLM.

    Such a model stays as it is, but for what training may change; settings that say otherwise are refused.
    """
    folder = settings.model_name_or_path
    config = ElmoConfig()
    if folder:
        with loading_errors(folder):
            config = ElmoConfig.from_pretrained(folder)
    architecture = (config.architectures or BILMS)[0]
    is_trained = architecture not in BILMS
    if is_trained:
        if architecture != task.head.__name__:
            raise ElmoError(f"{folder} is an {architecture}, of another task: give the folder of a biLM")
        recipe = settings.head or {}  # the sizes of a new model, except what training may change
        settings.head = {name: recipe[name] for name in CHANGEABLE if name in recipe}
        settings.head |= {name: getattr(config, name) for name in ("max_context_words", "context_overlap")}
    changes = {**task.config, **settings.head_config()}
    for name, value in changes.items():
        before = getattr(config, name, None)
        if is_trained and name not in CHANGEABLE and before != value:
            raise ElmoError(f"{folder} has {name}={before}, not {value}: a trained task model cannot change it")
    try:
        ElmoConfig.refuse_unknown(changes)
        values = {**config.to_dict(), **changes, "architectures": [task.head.__name__]}
        return ElmoConfig.from_dict(values), is_trained
    except (ValueError, TypeError, StrictDataclassError) as error:  # it names what it refuses
        raise ElmoError(" ".join(str(error).split())) from error


def load_head(folder: str, task: Task, config: ElmoConfig) -> ElmoTaskModel:
    """Load the task's model from the folder of a biLM or of such a model."""
    with loading_errors(folder):
        return task.head.from_pretrained(folder, config=config)


def load_tokenizer(folder: str) -> ElmoTokenizer:
    with loading_errors(folder):
        return ElmoTokenizer.from_pretrained(folder)


def new_model(
    task: Task, settings: TaskSettings, config: ElmoConfig, labels: list[str], counts: Counter[str]
) -> tuple[ElmoTaskModel, ElmoTokenizer]:
    """Build a task model, on a biLM if there is one, and its tokenizer, with the word vectors' vocabulary."""
    folder = settings.model_name_or_path
    width = config.max_characters_per_token
    # Commands that embed text by the task model's biLM split it as that of the biLM.
    own = {"max_characters_per_token": width, "training_text": None}
    if folder:
        own["training_text"] = load_tokenizer(folder).training_text
    tokenizer, vectors = ElmoTokenizer(**own), None
    if folder and config.spelling == "dictionary" and settings.elmo_placement != "none":
        tokenizer = load_tokenizer(folder)
        if settings.word_vectors:
            raise ElmoError(f"{folder} has a dictionary of its own words: --word_vectors cannot add another")
    elif settings.word_vectors:
        vectors = load_word_vectors(settings.word_vectors, counts, settings.most_frequent_words)
        print(f"Word vectors: {vectors.coverage}")
        tokenizer = ElmoTokenizer(vocab=vectors.words, lowercase_fallback=True, **own)
        config.word_vector_dim = vectors.vectors.shape[1]
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    config.vocab_size = len(tokenizer)
    model = load_head(folder, task, config) if folder else task.head(config)
    if vectors is not None:
        model.set_word_vectors(vectors.vectors)
    return model, tokenizer


# -------------------------------------------------------------------------------------------------------------- run


class Run:
    """A fine-tuning run, from settings to a folder of results."""

    def __init__(self, settings: TaskSettings, training: TrainingArguments) -> None:
        self.settings, self.training = settings, training
        self.task = TASKS[settings.task]
        self.folder = Path(str(training.output_dir))
        self.results: dict[str, Any] = {}
        has_run = (self.folder / RESULTS_FILE).is_file() or any(self.folder.glob("checkpoint-*"))
        if has_run and training.resume_from_checkpoint is None:
            raise ElmoError(f"{self.folder} has a run already: resume it with --resume_from_checkpoint last")
        self._build()
        if settings.elmo_placement != "none" and settings.freeze_bilm and settings.cache_gb > 0:
            self._keep_layers()
        self.stop = StopOnSignal()
        callbacks: list[TrainerCallback] = [self.stop]
        if settings.patience:
            callbacks.append(EarlyStoppingCallback(settings.patience))
        set_seed(training.seed)  # whether layers were kept must not matter
        self.trainer = TaskTrainer(
            settings.bilm_learning_rate,
            model=self.model,
            args=training,
            data_collator=Collator(self.tokenizer, self.task.targets),
            train_dataset=self.examples["train"],
            eval_dataset=self.examples["validation"],
            processing_class=self.tokenizer,
            compute_metrics=self._scores,
            preprocess_logits_for_metrics=self.task.predict,
            callbacks=callbacks,
        )

    def _build(self) -> None:
        """Read the data and make the model and its tokenizer."""
        settings, task, folder = self.settings, self.task, self.settings.model_name_or_path
        config, is_trained = read_config(task, settings)
        rows = read_parts(task, settings)
        self.task = task = task.for_data(rows["train"], settings.problem_type)
        if self.training.metric_for_best_model == TASKS[settings.task].metric:
            self.training.metric_for_best_model = task.metric
        if is_trained and config.problem_type not in (None, task.problem_type):
            raise ElmoError(f"{folder} was trained for {config.problem_type}, not for {task.problem_type}")
        self.labels = task.label_names(rows["train"])  # a part of the examples may lack some
        rows["train"] = sample_fraction(rows["train"], settings.train_fraction, seed=self.training.seed)
        if is_trained and self.labels:
            known = [config.id2label[number] for number in range(config.num_labels)]
            different = set(known) ^ set(self.labels)
            if different:
                listed = ", ".join(sorted(different))
                raise ElmoError(f"{folder} was trained for other labels: only one of model and data has {listed}")
            self.labels = known
        self.examples = {part: task.examples(found, self.labels) for part, found in rows.items()}
        set_seed(self.training.seed)
        if is_trained:
            self.model = load_head(folder, task, config)
            self.tokenizer = load_tokenizer(folder)
            return
        counts: Counter[str] = Counter()
        for examples in self.examples.values():
            for texts in examples.sequences:
                counts.update(itertools.chain(*texts))
        self.model, self.tokenizer = new_model(task, settings, config, self.labels, counts)

    def _keep_layers(self) -> None:
        """Compute the layers of a frozen biLM once: they are the same at every epoch."""
        cache = Path(self.settings.cache_dir or self.folder / "cache")
        left, in_use = self.settings.cache_gb, []
        for examples in self.examples.values():
            store = LayerStore.make(examples.sequences, self.model, self.tokenizer, cache, left, in_use)
            if store is not None:
                left -= store.values.nbytes / GIGABYTE
                in_use.append(store.path)
            examples.store = store

    def _scores(self, evaluation: EvalPrediction) -> dict[str, float]:
        predictions = self.trainer.in_order(evaluation.predictions)
        return self.task.scores(self.trainer.evaluated, predictions)

    def train(self) -> bool:
        """Train; return whether it reached the end."""
        checkpoint = self.training.resume_from_checkpoint
        if checkpoint == "last":
            checkpoints = sorted_checkpoints(self.folder)
            if not checkpoints:
                raise ElmoError(f"{self.folder} has no checkpoint to resume from")
            checkpoint = str(checkpoints[-1])
        if checkpoint is not None:
            check_digests(Path(checkpoint))
            with reading(Path(checkpoint, TRAINER_STATE_NAME)):
                TrainerState.load_from_json(str(Path(checkpoint, TRAINER_STATE_NAME)))
        try:
            result = self.trainer.train(resume_from_checkpoint=checkpoint)
        finally:
            self.stop.restore()
        if self.stop.signal is not None:
            return False
        is_first = self.trainer.is_world_process_zero()
        size = tensor_bytes(self.model.state_dict())
        # A folder without a config does not load, so the files of two models are never taken for one.
        with replace_files(self.folder, CONFIG_NAME, size) if is_first else nullcontext(self.folder) as scratch:
            self.trainer.save_model(str(scratch))
            if is_first:
                (scratch / TRAINING_ARGS_NAME).unlink()  # a pickle, which is not needed to load the model
                self.trainer.state.save_to_json(str(scratch / TRAINER_STATE_NAME))
        if is_first:
            self.trainer.remove_oldest(is_over=True)
        self._add_results("train", result.metrics)
        return True

    def _add_results(self, part: str, metrics: dict[str, Any]) -> None:
        """Write the figures of a part to a file, and keep them for that of all."""
        self.results |= metrics
        if self.trainer.is_world_process_zero():
            write_results(self.folder / f"{part}_results.json", metrics)

    def evaluate(self) -> dict[str, Any]:
        """Score the validation and test parts; write mix weights, predictions and, at the end, `all_results.json`."""
        is_first = self.trainer.is_world_process_zero()
        weights = self.model.mix_weights()
        if is_first and weights:
            write_mix(weights, self.folder)
        for part, prefix, beginning in (("validation", "eval", ""), ("test", "test", "test_")):
            if part not in self.examples:
                continue
            output = self.trainer.predict(self.examples[part], metric_key_prefix=prefix)
            self._add_results(prefix, output.metrics)
            if is_first:
                for name, text in self.task.reports(self.examples[part], output.predictions).items():
                    encodable = text.encode(errors="replace").decode()
                    write_text(self.folder / f"{beginning}{name}", encodable)
        if is_first:
            self._write_card(self.results)
            write_results(self.folder / RESULTS_FILE, self.results)
            if self.settings.cache_dir is None:  # no other run finds the layers there
                remove(self.folder / "cache")
        self.trainer.accelerator.wait_for_everyone()  # the folder is complete
        return self.results

    def _write_card(self, results: dict[str, Any]) -> None:
        """Write the model's card, from the run's own settings and results."""
        default = TrainingArguments(output_dir=str(self.folder)).to_dict()
        recipe = dataclasses.asdict(self.settings)
        for name, value in self.training.to_dict().items():
            if value != default.get(name):
                recipe[name] = value
        for name in ("train_file", "validation_file", "test_file", "model_name_or_path", "word_vectors"):
            if recipe[name] is not None:
                recipe[name] = Path(recipe[name]).name  # paths of this machine are nobody else's business
        for name in ("output_dir", "logging_dir", "resume_from_checkpoint", "cache_dir"):
            recipe.pop(name, None)
        data = recipe["train_file"] or recipe["dataset_name"]
        origin = f"Trained by `training.finetune` for the task `{self.settings.task}` on {data}."
        title = f"{type(self.model).__name__}: {self.settings.task}"
        card = training_card(self.model, self.tokenizer, title, origin, results, recipe)
        write_text(self.folder / "README.md", card)


def write_results(file: Path, metrics: dict[str, Any]) -> None:
    write_text(file, json.dumps(metrics, indent=4, sort_keys=True))


def write_mix(weights: dict[str, list[float]], folder: Path) -> None:
    """Write the learned weights of the layers, as numbers and as the paper's Figure 2."""
    write_text(folder / MIX_FILE, json.dumps(weights, indent=1) + "\n")
    draw_mix({place: {"": values} for place, values in weights.items()}, folder / "mix_weights.png")
    for place, values in weights.items():
        shown = [f"layer {number} {value:.3f}" for number, value in enumerate(values)]
        print(f"Mix at the {place}: {', '.join(shown)}")


def read_arguments(
    arguments: Sequence[str], program: str = "training.finetune"
) -> tuple[TaskSettings, TrainingArguments]:
    """Read the settings of a run from the command line and its recipe."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--task")
    task = finder.parse_known_args(list(arguments))[0].task
    if task is None and arguments and arguments[0] in TASKS:  # the task's recipe
        task, *rest = arguments
        arguments = ["--task", task, *rest]
    recipe = task if task in TASKS else None
    classes = (TaskSettings, TrainingArguments)
    settings, training = parse_with_recipe(classes, arguments, __doc__, program, recipe)
    if settings.task not in TASKS:
        raise ElmoError(f"`task` must be one of {', '.join(TASKS)}, got {settings.task!r}")
    if settings.model_name_or_path:
        settings.model_name_or_path = packaged_model(settings.model_name_or_path)
    settings.check()
    if training.output_dir in (None, NO_OUTPUT_DIR):
        raise ElmoError("give --output_dir: where checkpoints, the model and its results go")
    # Early stopping continues to count where it was.
    training.restore_callback_states_from_checkpoint = training.resume_from_checkpoint is not None
    training.remove_unused_columns = False  # examples are encoded when they are batched
    if not torch.accelerator.is_available():
        training.dataloader_pin_memory = False
    return settings, training


def finetune(arguments: Sequence[str], program: str = "training.finetune") -> dict[str, Any] | None:
    """Train and evaluate; return the results, or None where training was stopped."""
    with in_one_line():
        settings, training = read_arguments(arguments, program)
    folder, is_first = Path(str(training.output_dir)), training.process_index == 0
    with disk_errors(folder), one_writer(folder) if is_first else nullcontext():
        if is_first:
            remove_leftovers(folder)
        return train_and_evaluate(settings, training)


def train_and_evaluate(settings: TaskSettings, training: TrainingArguments) -> dict[str, Any] | None:
    with in_one_line():
        run = Run(settings, training)
    keep_alive_until_exit(run, training.world_size)
    parameters = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    counts = ", ".join(f"{len(examples):,} {part}" for part, examples in run.examples.items())
    print(f"{settings.task}: {counts} examples, {len(run.labels)} labels, {parameters:,} parameters to train")
    if not run.train():
        return None
    results = run.evaluate()
    note_nothing_learned(results, run.task.metric)
    if run.trainer.is_world_process_zero():
        print(
            f"Wrote {run.folder}: README.md shows how to load the model, {run.task.predictions_file} what it predicts"
        )
    return results


def note_nothing_learned(results: dict[str, Any], metric: str) -> None:
    """Say on standard error when the score is zero, as after too few steps on little data."""
    if results.get(f"eval_{metric}") == 0:
        print(f"note: {metric} is 0: train longer, by --num_train_epochs and --patience", file=sys.stderr)


def main(arguments: Sequence[str], program: str = "training.finetune") -> int:
    transformers_logging.set_verbosity_error()
    try:
        results = finetune(arguments, program)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted outside of training: checkpoints, if any, are unchanged", file=sys.stderr)
        return STOPPED
    if results is None:
        print("stopped and saved: resume with --resume_from_checkpoint last", file=sys.stderr)
        return STOPPED
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    run_script(main)
