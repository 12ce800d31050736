"""Trains a task model on top of ELMo, with the models of the paper.

    python -m training.finetune --task ner --model_name_or_path my-elmo --train_file eng.train \
        --validation_file eng.testa --word_vectors glove.6B.zip:glove.6B.50d.txt --output_dir runs/ner
    python -m training.finetune --task ner --elmo_placement none --train_file … --output_dir runs/baseline
    python -m training.finetune --task ner … --output_dir runs/ner --resume_from_checkpoint last

Tasks: sst (a class for a text), nli (a class for a pair), ner (spans), pos (a tag a word), choice (the right ending),
srl (semantic roles), squad (an answer in a context), coref (mentions of the same thing in a document). Each has a
recipe of its name in training/recipes; another one there (sst-phrases, sick), or a YAML file, may be the first
argument. Settings on the command line win, and include everything of transformers' TrainingArguments.
"""

import argparse
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalPrediction, get_last_checkpoint
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
from modeling_elmo.files import BAD_INPUT, ElmoError, first_line
from modeling_elmo.heads_elmo import ElmoTaskModel
from modeling_elmo.word_vectors import load_word_vectors
from training.coref import Coreference
from training.examples import GIGABYTE, Collator, Examples, LayerStore
from training.figures import draw_mix
from training.processes import keep_to_the_end, run_script
from training.settings import TaskSettings, in_one_line, parse_with_recipe, read_changes
from training.squad import AnswerInContext
from training.srl import SemanticRoles
from training.task_data import sample_fraction
from training.tasks import ClassOfText, RightEnding, TagOfWord, Task

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        ClassOfText("sst", ElmoForSequenceClassification),
        ClassOfText("nli", ElmoForSequenceClassification, sequence_encoder="esim"),
        TagOfWord("ner", ElmoForTokenClassification, metric="f1"),
        TagOfWord("pos", ElmoForTokenClassification),
        RightEnding("choice", ElmoForMultipleChoice),
        SemanticRoles("srl", ElmoForSemanticRoleLabeling, metric="f1"),
        AnswerInContext("squad", ElmoForQuestionAnswering, metric="f1"),
        Coreference("coref", ElmoForCoreferenceResolution, metric="conll_f1"),
    )
}
RESULTS_FILE, MIX_FILE = "all_results.json", "mix_weights.json"
# Of the config: what may differ when the training of a task model goes on.
# What TrainingArguments has where nothing was given.
NO_OUTPUT_DIR = "trainer_output"
CHANGEABLE = ("freeze_bilm", "train_word_vectors", "mix_l2", "head_dropout", "elmo_dropout")


# ------------------------------------------------------------------------------------------------------ preparation


def read_parts(task: Task, settings: TaskSettings) -> dict[str, Dataset]:
    """The rows of the "train", "validation" and, where there is one, "test" part."""
    rows = {}
    for part in ("train", "validation", "test"):
        file, split = getattr(settings, f"{part}_file"), getattr(settings, f"{part}_split")
        if file:
            rows[part] = task.read(Path(file), settings, training=part == "train")
        elif settings.dataset_name and split:
            rows[part] = task.read_hub(settings, split, training=part == "train")
        elif part != "test":
            raise ElmoError(f"there is no {part} data: give --{part}_file, or a --{part}_split of the data set")
    return rows


def check_output(folder: Path, resumes: bool) -> None:
    """Refuses to mix a new run's results into another's."""
    if not resumes and ((folder / RESULTS_FILE).is_file() or any(folder.glob("checkpoint-*"))):
        raise ElmoError(
            f"{folder} has a run already: go on with it by --resume_from_checkpoint last, or give another --output_dir"
        )


def count_words(examples: Iterable[Examples]) -> Counter[str]:
    """How often each word occurs in the data."""
    return Counter(word for part in examples for sequence in part.sequences for text in sequence for word in text)


def goes_on_from(task: Task, settings: TaskSettings, config: ElmoConfig) -> bool:
    """Whether the settings' folder is a model of this task, to go on with, rather than a biLM to begin from.

    Such a model goes on as it is, but for what training may change; settings that say otherwise are refused.
    """
    folder = settings.model_name_or_path
    architecture = next(iter(config.architectures or []), None)
    if folder is None or architecture in (None, "ElmoModel", "ElmoForPreTraining"):
        return False
    if architecture != task.head.__name__:
        raise ElmoError(
            f"{folder} is an {architecture}, of another task: give a biLM's folder, such as one that "
            "ElmoModel.from_pretrained(…).save_pretrained(…) makes of it"
        )
    if settings.tag_scheme not in (None, config.tag_scheme):
        raise ElmoError(f"{folder} has the labels of --tag_scheme {config.tag_scheme}: give that")
    given = read_changes("head_overrides", settings.head_overrides, "head_dim=100")
    given |= {**task.config, "elmo_placement": settings.elmo_placement, "mix": settings.mix}
    for name, value in given.items():
        if name not in CHANGEABLE and getattr(config, name, None) != value:
            raise ElmoError(
                f"{folder} has {name}={getattr(config, name, None)}, not {value}: a task model goes on as it is"
            )
    for name, value in settings.head_config().items():
        if name in CHANGEABLE:
            setattr(config, name, value)
    settings.head = {name: getattr(config, name) for name in ("max_context_words", "context_overlap")}
    return True


def check_labels(folder: str, known: list[str], labels: list[str]) -> None:
    """Refuses data whose labels are not those of the folder's task model."""
    if sorted(known) == sorted(labels):
        return
    lost, added = sorted(set(known) - set(labels)), sorted(set(labels) - set(known))
    what = [f"the data lacks {', '.join(lost)}"] * bool(lost) + [f"the model lacks {', '.join(added)}"] * bool(added)
    raise ElmoError(
        f"{folder} was trained for other labels: {'; '.join(what)}. Begin from its biLM to train with new ones"
    )


def new_model(
    task: Task, settings: TaskSettings, config: ElmoConfig, labels: list[str], counts: Counter[str]
) -> tuple[ElmoTaskModel, ElmoTokenizer]:
    """A new task model, on a biLM if there is one, and its tokenizer, with the word vectors' vocabulary."""
    folder = settings.model_name_or_path
    changes = {**settings.head_config(), **task.config}
    if labels:
        changes["id2label"] = dict(enumerate(labels))
        changes["label2id"] = {label: number for number, label in enumerate(labels)}
    tokenizer = ElmoTokenizer(max_characters_per_token=config.max_characters_per_token)
    vectors = None
    if folder and config.spelling == "dictionary" and settings.elmo_placement != "none":
        tokenizer = ElmoTokenizer.from_pretrained(folder)
        if settings.word_vectors:
            raise ElmoError(f"{folder} has a dictionary of its own words: --word_vectors cannot bring another")
    elif settings.word_vectors:
        vectors = load_word_vectors(settings.word_vectors, counts, settings.most_frequent_words)
        print(f"Word vectors: {vectors.coverage}")
        tokenizer = ElmoTokenizer(
            vocab=vectors.words,
            lowercase_fallback=True,
            max_characters_per_token=config.max_characters_per_token,
        )
        changes["word_vector_dim"] = vectors.vectors.shape[1]
    changes["vocab_size"] = len(tokenizer)
    known = {field.name for field in dataclasses.fields(config)} | {"id2label", "label2id"}
    if unknown := [name for name in changes if name not in known]:
        raise ElmoError(f"ElmoConfig has no `{unknown[0]}`")
    try:
        for name, value in changes.items():
            setattr(config, name, value)
        config.validate()
        model = task.head.from_pretrained(folder, config=config) if folder else task.head(config)
    except (OSError, ValueError, TypeError, StrictDataclassError) as error:  # what the config refuses, it names
        raise ElmoError(" ".join(str(error).split())) from error
    if vectors is not None:
        model.set_word_vectors(vectors.vectors)
    return model, tokenizer


# --------------------------------------------------------------------------------------------------------- training


class LengthGrouped(LengthGroupedSampler):
    """Batches of like length, in an order that depends on seed and epoch alone, so that a run can go on in it."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int) -> None:
        super().__init__(batch_size, lengths=lengths)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return super().__iter__()


def by_length(examples: Examples) -> list[int]:
    """The examples' numbers, the longest first, so that what does not fit into memory fails at once."""
    lengths = examples.lengths()
    return sorted(range(len(lengths)), key=lambda number: -lengths[number])


class TaskTrainer(Trainer):
    """Trainer that knows the lengths of the examples and has a learning rate for the biLM.

    `evaluated` are the examples that it evaluates, which scores are computed of. A single process reads them by
    length, which is faster, and `in_order` puts its predictions back.
    """

    evaluated: Examples

    def __init__(self, bilm_learning_rate: float | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bilm_learning_rate = bilm_learning_rate

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> Any:
        self.evaluated = dataloader.dataset
        found = super().evaluation_loop(dataloader, *args, **kwargs)
        return found._replace(predictions=self.in_order(found.predictions))

    def in_order(self, predictions: Any) -> np.ndarray:
        """What was predicted for the examples, in their own order."""
        predictions = np.asarray(predictions)
        return predictions if self.args.world_size > 1 else predictions[np.argsort(by_length(self.evaluated))]

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(*args)
        if self.bilm_learning_rate is None or not hasattr(self.model, "elmo"):
            return optimizer
        of_bilm = {id(parameter) for parameter in self.model.elmo.parameters()}
        for group in list(optimizer.param_groups):
            moved = [parameter for parameter in group["params"] if id(parameter) in of_bilm]
            if moved:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in of_bilm]
                rest = {name: value for name, value in group.items() if name not in ("params", "lr")}
                optimizer.add_param_group({**rest, "params": moved, "lr": self.bilm_learning_rate})
        return optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGrouped(batch, self.train_dataset.lengths(), self.args.data_seed or self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return by_length(eval_dataset) if self.args.world_size == 1 else None


class StopWhenTold(TrainerCallback):
    """Ctrl-C and SIGTERM make training save and end after the step it is in."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict[int, Any] = {}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        def stop(number: int, _: Any) -> None:
            self.signal = number

        self.before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.signal is not None:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False
            # Or Trainer would end by going back to the best checkpoint and removing this one.
            args.load_best_model_at_end, args.save_total_limit = False, None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        assert state.epoch is not None
        if self.signal is not None and not state.epoch.is_integer():  # it is no end of an epoch, but was stopped
            control.should_save = control.should_evaluate = False

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def chosen_labels(outputs: Any, _: Tensor) -> Tensor:
    """Of what a task model returns in evaluation, the labels: its predictions, the last, or the highest scores'."""
    logits, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
    return rest[-1] if rest else logits.argmax(-1)


class Run:
    """A fine-tuning run, from settings to a folder of results."""

    def __init__(self, settings: TaskSettings, training: TrainingArguments) -> None:
        self.settings, self.training = settings, training
        self.task = TASKS[settings.task]
        self.folder = Path(str(training.output_dir))
        folder = settings.model_name_or_path
        check_output(self.folder, training.resume_from_checkpoint is not None)
        try:
            config = ElmoConfig.from_pretrained(folder) if folder else ElmoConfig()
        except (OSError, ValueError) as error:
            raise ElmoError(f"{folder}: there is no model: {first_line(error)}") from error
        goes_on = goes_on_from(self.task, settings, config)
        rows = read_parts(self.task, settings)
        self.labels = self.task.label_names(rows["train"])  # a part of the examples may lack some
        rows["train"] = sample_fraction(rows["train"], settings.train_fraction, seed=training.seed)
        if goes_on and self.labels:
            known = [config.id2label[number] for number in range(config.num_labels)]
            check_labels(str(folder), known, self.labels)
            self.labels = known
        splitter = ElmoTokenizer()
        self.examples = {part: self.task.examples(found, self.labels, splitter) for part, found in rows.items()}
        set_seed(training.seed)
        if goes_on:
            self.model = self.task.head.from_pretrained(folder, config=config)
            self.tokenizer = ElmoTokenizer.from_pretrained(folder)
        else:
            counts = count_words(self.examples.values())
            self.model, self.tokenizer = new_model(self.task, settings, config, self.labels, counts)
        # A frozen biLM gives the same layers at every epoch.
        if settings.elmo_placement != "none" and settings.freeze_bilm and settings.cache_gb > 0:
            cache = Path(settings.cache_dir or self.folder / "cache")
            left, in_use = settings.cache_gb, []
            for examples in self.examples.values():
                examples.store = LayerStore.make(examples.sequences, self.model, self.tokenizer, cache, left, in_use)
                if examples.store is not None:
                    left -= examples.store.values.nbytes / GIGABYTE
                    in_use.append(examples.store.path)
        self.stop = StopWhenTold()
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
            preprocess_logits_for_metrics=chosen_labels,
            callbacks=callbacks,
        )

    def _scores(self, evaluation: EvalPrediction) -> dict[str, float]:
        predicted = self.trainer.in_order(evaluation.predictions)
        return self.task.scores(self.trainer.evaluated, self.labels, predicted)

    def train(self) -> bool:
        """Trains to the end; whether it came there."""
        checkpoint = self.training.resume_from_checkpoint
        if checkpoint == "last":
            checkpoint = get_last_checkpoint(str(self.folder)) if self.folder.is_dir() else None
            if checkpoint is None:
                raise ElmoError(f"{self.folder} has no checkpoint to go on from")
        result = self.trainer.train(resume_from_checkpoint=checkpoint)
        if self.stop.signal is not None:
            return False
        self.trainer.save_model()
        if self.trainer.is_world_process_zero():
            (self.folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle, of no use to who loads the model
        self.trainer.save_metrics("train", result.metrics)
        self.trainer.save_state()
        return True

    def evaluate(self) -> dict[str, Any]:
        """Scores of the validation and test parts; writes mix weights, predictions and `all_results.json`."""
        if self.trainer.is_world_process_zero() and (weights := self.model.mix_weights()):
            write_mix(weights, self.folder)
        for part, examples in self.examples.items():
            if part == "train":
                continue
            prefix = "eval" if part == "validation" else part
            found = self.trainer.predict(examples, metric_key_prefix=prefix)
            self.trainer.save_metrics(prefix, found.metrics)
            if self.trainer.is_world_process_zero():
                beginning = "" if part == "validation" else f"{part}_"
                path = self.folder / f"{beginning}{self.task.predictions_file}"
                self._write_predictions(path, examples, found.predictions)
                for name, text in self.task.reports(examples, self.labels, found.predictions).items():
                    (self.folder / f"{beginning}{name}").write_text(text, encoding="utf-8")
        self.trainer.accelerator.wait_for_everyone()  # the first process has written the file
        results = json.loads((self.folder / RESULTS_FILE).read_text(encoding="utf-8"))
        if self.trainer.is_world_process_zero():
            self._write_card(results)
            if self.settings.cache_dir is None:  # no other run finds the layers there
                shutil.rmtree(self.folder / "cache", ignore_errors=True)
        return results

    def _write_card(self, results: dict[str, Any]) -> None:
        """What was trained, on what and how, and what it gave."""
        default = TrainingArguments(output_dir=str(self.folder)).to_dict()
        changed = {
            name: value
            for name, value in self.training.to_dict().items()
            if value != default.get(name) and name not in ("output_dir", "logging_dir", "resume_from_checkpoint")
        }
        recipe = {**dataclasses.asdict(self.settings), **changed}
        for name in ("train_file", "validation_file", "test_file", "model_name_or_path", "word_vectors"):
            if recipe[name] is not None:
                recipe[name] = Path(recipe[name]).name  # not where it lay
        del recipe["cache_dir"]
        rows = [f"| {name} | {value:.6g} |" for name, value in results.items() if isinstance(value, (int, float))]
        (self.folder / "README.md").write_text(
            f"# {type(self.model).__name__}: {self.settings.task}\n\n"
            f"A task model on ELMo (placement: {self.settings.elmo_placement}), trained by `training.finetune`.\n\n"
            "## Results\n\n| | |\n|---|---|\n" + "\n".join(rows) + "\n\n"
            f"## Recipe\n\n```yaml\n{yaml.safe_dump(recipe, sort_keys=False).strip()}\n```\n",
            encoding="utf-8",
        )

    def _write_predictions(self, path: Path, examples: Examples, predicted: np.ndarray) -> None:
        scratch = path.with_suffix(".tmp")
        with scratch.open("w", encoding="utf-8", errors="replace") as file:
            self.task.write_predictions(file, examples, self.labels, predicted)
        os.replace(scratch, path)


def write_mix(weights: dict[str, list[float]], folder: Path) -> None:
    """The learned weights of the layers, as numbers and as the paper's Figure 2."""
    (folder / MIX_FILE).write_text(json.dumps(weights, indent=1) + "\n", encoding="utf-8")
    draw_mix({place: {"": values} for place, values in weights.items()}, folder / "mix_weights.png")
    for place, values in weights.items():
        print(f"Mix at the {place}: " + ", ".join(f"layer {n} {value:.3f}" for n, value in enumerate(values)))


def read_arguments(arguments: Sequence[str]) -> tuple[TaskSettings, TrainingArguments]:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--task")
    task = finder.parse_known_args(list(arguments))[0].task
    settings, training = parse_with_recipe(
        (TaskSettings, TrainingArguments),
        arguments,
        __doc__,
        "training.finetune",
        task if task in TASKS else None,
    )
    if settings.task not in TASKS:
        raise ElmoError(f"`task` must be one of {', '.join(TASKS)}, got {settings.task!r}")
    settings.check()
    if training.output_dir in (None, NO_OUTPUT_DIR):
        raise ElmoError("give --output_dir: where checkpoints, the model and its results go")
    # Early stopping counts on where it was.
    training.restore_callback_states_from_checkpoint = training.resume_from_checkpoint is not None
    training.remove_unused_columns = False  # examples are encoded when they are batched
    if not torch.accelerator.is_available():
        training.dataloader_pin_memory = False
    return settings, training


def finetune(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Trains and evaluates as told; the results, or None where training was stopped."""
    with in_one_line():
        settings, training = read_arguments(arguments)
        run = Run(settings, training)
    keep_to_the_end(run, training.world_size)
    parameters = sum(parameter.numel() for parameter in run.model.parameters() if parameter.requires_grad)
    print(
        f"{settings.task}: {', '.join(f'{len(found):,} {part}' for part, found in run.examples.items())} examples, "
        f"{len(run.labels)} labels, {parameters:,} parameters to train, ELMo: {settings.elmo_placement}"
    )
    if not run.train():
        print("stopped, saved: go on with --resume_from_checkpoint last", file=sys.stderr)
        return None
    return run.evaluate()


def main(arguments: Sequence[str]) -> int:
    transformers_logging.set_verbosity_error()
    try:
        results = finetune(arguments)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted outside of training: checkpoints, if any, are as they were", file=sys.stderr)
        return 128 + signal.SIGINT
    if results is None:
        return 128 + signal.SIGINT
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    run_script(main)
