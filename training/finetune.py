"""Trains a task model on top of ELMo, with the paper's models: sentiment, entailment, tagging, multiple choice.

    python training/finetune.py --task ner --model_name_or_path my-elmo --train_file eng.train \
        --validation_file eng.testa --word_vectors glove.6B.zip:glove.6B.50d.txt --output_dir runs/ner
    python training/finetune.py --task ner --elmo_placement none --train_file … --output_dir runs/baseline
    python training/finetune.py --task ner … --output_dir runs/ner --resume_from_checkpoint last

Tasks: sst (a class for a text), nli (a class for a pair), ner (spans), pos (a tag a word), choice (the right ending).
Each has a recipe of its name in training/recipes; another YAML file may be the first argument. Settings on the command
line win, and include everything of transformers' TrainingArguments.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from torch.utils.data import SequentialSampler
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
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging as transformers_logging

sys.path.insert(0, str(Path(__file__).parent))  # where `accelerate launch` does not look

from examples import GIGABYTE, Collator, Examples, LayerStore, UnknownLabel, make_examples
from figures import draw_mix
from metrics import class_scores, tag_scores
from processes import keep_to_the_end, run_script
from settings import SettingsError, parse_with_recipe
from task_data import TaskDataError, read_examples, read_hub_examples, sample_fraction

from modeling_elmo import (
    ElmoConfig,
    ElmoForMultipleChoice,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoTokenizer,
)
from modeling_elmo.modeling_elmo import IGNORED, ElmoTaskModel
from modeling_elmo.word_vectors import WordVectorError, load_word_vectors

HEADS: dict[str, type[ElmoTaskModel]] = {
    "sst": ElmoForSequenceClassification,
    "nli": ElmoForSequenceClassification,
    "ner": ElmoForTokenClassification,
    "pos": ElmoForTokenClassification,
    "choice": ElmoForMultipleChoice,
}
PREDICTIONS_FILE = "predictions.tsv"
MIX_FILE = "mix_weights.json"
BAD_INPUT = 2


@dataclass
class TaskSettings:
    """What a task's recipe or the command line can set, beside TrainingArguments."""

    task: str = field(metadata={"help": "sst, nli, ner, pos or choice."})
    # The data
    train_file: str | None = field(default=None, metadata={"help": "Training data, in the formats of the task."})
    validation_file: str | None = field(default=None, metadata={"help": "What the best epoch is chosen by."})
    test_file: str | None = field(default=None, metadata={"help": "What is only evaluated at the end."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Instead of files: a data set's folder or name on the Hub."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The data set's configuration."})
    train_split: str = field(default="train", metadata={"help": "Its split to train on."})
    validation_split: str = field(default="validation", metadata={"help": "Its split to choose by."})
    test_split: str | None = field(default=None, metadata={"help": "Its split to evaluate at the end."})
    columns: list[str] = field(
        default_factory=list, metadata={"help": "Names of columns that differ from ours: words=tokens tags=ner_tags"}
    )
    phrases: bool = field(default=False, metadata={"help": "Of sst: train on every labelled phrase of the trees."})
    train_fraction: float = field(default=1.0, metadata={"help": "Train on a random part of the examples."})
    # The model
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A biLM's folder, or that of a task model to go on from."}
    )
    elmo_placement: str = field(default="both", metadata={"help": "Where ELMo goes: input, output, both, none."})
    mix: str = field(default="scalar", metadata={"help": "scalar (learned), average or last (the top layer)."})
    mix_l2: float = field(default=0.001, metadata={"help": "The paper's λ: the pull of the mix to the average."})
    freeze_bilm: bool = field(default=True, metadata={"help": "Whether the biLM stays as it is."})
    bilm_learning_rate: float | None = field(
        default=None, metadata={"help": "The biLM's own, where it is trained; by default the same."}
    )
    word_vectors: str | None = field(
        default=None, metadata={"help": "GloVe, fastText or word2vec text; .zip and .gz are read as they are."}
    )
    most_frequent_words: int = field(
        default=50_000, metadata={"help": "Word vectors kept for words that are not in the data."}
    )
    train_word_vectors: bool = field(default=False, metadata={"help": "Whether word vectors are learned further."})
    tag_scheme: str | None = field(
        default=None, metadata={"help": "Of ner: BIO, BIOES or IOB1, to which the data is converted."}
    )
    head: Any = field(default=None, metadata={"help": "In a recipe: what differs from ElmoConfig's defaults."})
    head_overrides: list[str] = field(
        default_factory=list, metadata={"help": "Changes to it: head_dim=100 head_dropout=0.3"}
    )
    # Running
    patience: int = field(default=0, metadata={"help": "Evaluations without improvement before stopping; 0: never."})
    cache_dir: str | None = field(
        default=None, metadata={"help": "Where a frozen biLM's layers are kept; by default, under the output folder."}
    )
    cache_gb: float = field(default=20.0, metadata={"help": "The most that they may take; 0 for never."})

    def check(self) -> None:
        """Refuses what cannot work, naming the setting."""
        for name, allowed in (
            ("task", tuple(HEADS)),
            ("elmo_placement", ("input", "output", "both", "none")),
            ("mix", ("scalar", "average", "last")),
            ("tag_scheme", (None, "BIO", "BIOES", "IOB1")),
        ):
            if getattr(self, name) not in allowed:
                choices = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise SettingsError(f"`{name}` must be one of {choices}, got {getattr(self, name)!r}")
        if not self.dataset_name and not (self.train_file and self.validation_file):
            raise SettingsError("there is no data: give --train_file and --validation_file, or --dataset_name")
        if self.elmo_placement != "none" and not self.model_name_or_path:
            raise SettingsError("ELMo needs a biLM: give --model_name_or_path, or --elmo_placement none")
        if not 0 < self.train_fraction <= 1:
            raise SettingsError(f"`train_fraction` must be above 0 and at most 1, got {self.train_fraction}")
        if self.head is not None and not isinstance(self.head, dict):
            raise SettingsError("`head` belongs in a recipe; on the command line use --head_overrides head_dim=100")

    def head_config(self) -> dict[str, Any]:
        """Of ElmoConfig: what the recipe and the command line set for the task."""
        chosen = dict(self.head or {})
        for change in self.head_overrides:
            name, equals, value = change.partition("=")
            if not equals:
                raise SettingsError(f"`head_overrides` must be like head_dim=100, got {change!r}")
            chosen[name] = yaml.safe_load(value)
        if self.mix == "scalar":
            chosen["mix_l2"] = self.mix_l2
        if self.tag_scheme is not None:
            chosen["tag_scheme"] = self.tag_scheme
        return {
            **chosen,
            "elmo_placement": self.elmo_placement,
            "mix": self.mix,
            "freeze_bilm": self.freeze_bilm,
            "train_word_vectors": self.train_word_vectors,
        }


# ------------------------------------------------------------------------------------------------------ preparation


def read_split(settings: TaskSettings, part: str) -> Dataset | None:
    """The rows of the "train", "validation" or "test" part, or None where there is no such part."""
    columns = dict(change.split("=", 1) for change in settings.columns if "=" in change)
    if len(columns) != len(settings.columns):
        raise SettingsError(f"`columns` must be like words=tokens, got {' '.join(settings.columns)!r}")
    options: dict[str, Any] = {"columns": columns}
    if settings.task == "ner":
        options["scheme"] = settings.tag_scheme or "BIO"
    if settings.task == "sst" and part == "train":
        options["phrases"] = settings.phrases
    file, split = getattr(settings, f"{part}_file"), getattr(settings, f"{part}_split")
    if file:
        return read_examples(settings.task, file, **options)
    if settings.dataset_name and split:
        return read_hub_examples(
            settings.task, settings.dataset_name, settings.dataset_config_name, split, columns=columns
        )
    return None


def label_names(task: str, rows: Dataset) -> list[str]:
    """The labels of the training data, in alphabetical order, O first."""
    if task == "choice":
        return []
    found = {tag for tags in rows["tags"] for tag in tags} if task in ("ner", "pos") else set(rows["label"])
    return sorted(found, key=lambda label: (label != "O", label))


def count_words(task: str, parts: Sequence[Dataset], tokenizer: ElmoTokenizer) -> Counter[str]:
    """How often each word occurs in the data."""
    counts: Counter[str] = Counter()
    for rows in parts:
        names = label_names(task, rows)
        for sequence in make_examples(task, rows, names, tokenizer).sequences:
            for text in sequence:
                counts.update(text)
    return counts


def make_model(
    settings: TaskSettings, labels: list[str], parts: Sequence[Dataset]
) -> tuple[ElmoTaskModel, ElmoTokenizer]:
    """A new task model on a biLM, or the folder's own; and its tokenizer, with the word vectors' vocabulary."""
    head, folder = HEADS[settings.task], settings.model_name_or_path
    config = ElmoConfig.from_pretrained(folder) if folder else ElmoConfig()
    if folder and head.__name__ in (config.architectures or []):
        return _same_task(settings, head, folder, config, labels)
    changes = settings.head_config()
    if labels:
        changes["id2label"] = dict(enumerate(labels))
        changes["label2id"] = {label: number for number, label in enumerate(labels)}
    if settings.task == "nli":
        changes["sequence_encoder"] = "esim"
    tokenizer = ElmoTokenizer(max_characters_per_token=config.max_characters_per_token)
    vectors = None
    if folder and config.spelling == "dictionary" and settings.elmo_placement != "none":
        tokenizer = ElmoTokenizer.from_pretrained(folder)
        if settings.word_vectors:
            raise SettingsError(f"{folder} has a dictionary of its own words: --word_vectors cannot bring another")
    elif settings.word_vectors:
        vectors = load_word_vectors(
            settings.word_vectors, count_words(settings.task, parts, tokenizer), settings.most_frequent_words
        )
        print(f"Word vectors: {vectors.coverage}")
        tokenizer = ElmoTokenizer(
            vocab=vectors.words,
            lowercase_fallback=True,
            max_characters_per_token=config.max_characters_per_token,
        )
        changes["word_vector_dim"] = vectors.vectors.shape[1]
    changes["vocab_size"] = len(tokenizer)
    try:
        for name, value in changes.items():
            if name not in ("id2label", "label2id") and name not in {
                known.name for known in dataclasses.fields(config)
            }:
                raise SettingsError(f"ElmoConfig has no `{name}`")
            setattr(config, name, value)
        config.validate()
        model = head.from_pretrained(folder, config=config) if folder else head(config)
    except SettingsError:
        raise
    except (ValueError, TypeError, StrictDataclassError) as error:  # what the config refuses, it names
        raise SettingsError(" ".join(str(error).split())) from error
    if vectors is not None:
        model.set_word_vectors(vectors.vectors)
    return model, tokenizer


def _same_task(
    settings: TaskSettings, head: type[ElmoTaskModel], folder: str, config: ElmoConfig, labels: list[str]
) -> tuple[ElmoTaskModel, ElmoTokenizer]:
    """A folder's own task model, which goes on with its labels, words and sizes."""
    known = [config.id2label[number] for number in range(config.num_labels)]
    if labels and sorted(known) != sorted(labels):
        lost, added = sorted(set(known) - set(labels)), sorted(set(labels) - set(known))
        what = [f"the data lacks {', '.join(lost)}"] * bool(lost) + [f"the model lacks {', '.join(added)}"] * bool(
            added
        )
        raise SettingsError(
            f"{folder} was trained for other labels: {'; '.join(what)}. Begin from its biLM to train with new ones"
        )
    labels[:] = known if labels else []
    return head.from_pretrained(folder), ElmoTokenizer.from_pretrained(folder)


# --------------------------------------------------------------------------------------------------------- training


class TaskTrainer(Trainer):
    """Trainer that knows the lengths of the examples, and has a learning rate for the biLM."""

    def __init__(self, bilm_learning_rate: float | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bilm_learning_rate = bilm_learning_rate

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
        return LengthGroupedSampler(batch, lengths=self.train_dataset.lengths())

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return SequentialSampler(eval_dataset) if self.args.world_size == 1 else None  # in the order of the examples


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

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def chosen_labels(outputs: Any, _: Tensor) -> Tensor:
    """Of what a task model returns in evaluation, the labels: the best sequence, or the highest scores'."""
    logits, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
    return rest[0] if rest else logits.argmax(-1)


class Run:
    """A fine-tuning run, from settings to a folder of results."""

    def __init__(self, settings: TaskSettings, training: TrainingArguments) -> None:
        self.settings, self.training = settings, training
        self.folder = Path(str(training.output_dir))
        parts = {part: read_split(settings, part) for part in ("train", "validation", "test")}
        rows = {part: dataset for part, dataset in parts.items() if dataset is not None}
        for part in ("train", "validation"):
            if part not in rows:
                raise SettingsError(
                    f"there is no {part} data: give --{part}_file, or a --{part}_split of the data set"
                )
        self.labels = label_names(settings.task, rows["train"])  # a part of the examples may lack some
        rows["train"] = sample_fraction(rows["train"], settings.train_fraction, seed=training.seed)
        set_seed(training.seed)
        self.model, self.tokenizer = make_model(settings, self.labels, list(rows.values()))
        self.examples = {
            part: make_examples(settings.task, dataset, self.labels, self.tokenizer) for part, dataset in rows.items()
        }
        # A frozen biLM gives the same layers at every epoch.
        if settings.elmo_placement != "none" and settings.freeze_bilm and settings.cache_gb > 0:
            folder = Path(settings.cache_dir or self.folder / "cache")
            left = settings.cache_gb
            for examples in self.examples.values():
                examples.store = LayerStore.of(examples.sequences, self.model, self.tokenizer, folder, left)
                left -= 0 if examples.store is None else examples.store.values.nbytes / GIGABYTE
        self.stop = StopWhenTold()
        callbacks: list[TrainerCallback] = [self.stop]
        if settings.patience:
            callbacks.append(EarlyStoppingCallback(settings.patience))
        set_seed(training.seed)  # whether layers were kept must not matter
        self.trainer = TaskTrainer(
            settings.bilm_learning_rate,
            model=self.model,
            args=training,
            data_collator=Collator(self.tokenizer),
            train_dataset=self.examples["train"],
            eval_dataset=self.examples["validation"],
            processing_class=self.tokenizer,
            compute_metrics=self._scores,
            preprocess_logits_for_metrics=chosen_labels,
            callbacks=callbacks,
        )

    def _names(self, numbers: np.ndarray, gold: np.ndarray) -> list[Any]:
        """Labels of classes, or of the words of each sentence, as names."""
        if gold.ndim == 1:
            return [self.labels[number] if self.labels else int(number) for number in numbers]
        return [
            [self.labels[number] for number in row[keep]] for row, keep in zip(numbers, gold != IGNORED, strict=True)
        ]

    def _scores(self, evaluation: Any) -> dict[str, float]:
        predicted, gold = (np.asarray(values) for values in (evaluation.predictions, evaluation.label_ids))
        names = self._names(predicted, gold), self._names(gold, gold)
        return tag_scores(*names, spans=self.settings.task == "ner") if gold.ndim > 1 else class_scores(*names)

    def train(self) -> bool:
        """Trains to the end; whether it came there."""
        checkpoint = self.training.resume_from_checkpoint
        if checkpoint == "last":
            checkpoint = get_last_checkpoint(str(self.folder)) if self.folder.is_dir() else None
            if checkpoint is None:
                raise SettingsError(f"{self.folder} has no checkpoint to go on from")
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
        """Scores of the validation and test parts; writes predictions, mix weights and `all_results.json`."""
        for part, examples in self.examples.items():
            if part == "train":
                continue
            prefix = "eval" if part == "validation" else part
            found = self.trainer.predict(examples, metric_key_prefix=prefix)
            self.trainer.save_metrics(prefix, found.metrics)
            name = PREDICTIONS_FILE if part == "validation" else f"{part}_{PREDICTIONS_FILE}"
            if self.trainer.is_world_process_zero():
                self._write_predictions(self.folder / name, examples, found.predictions, found.label_ids)
        results = json.loads((self.folder / "all_results.json").read_text(encoding="utf-8"))
        if self.trainer.is_world_process_zero():
            if weights := self.model.mix_weights():
                write_mix(weights, self.folder)
            self._write_card(results)
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
            f"A task model on ELMo (placement: {self.settings.elmo_placement}), trained by `training/finetune.py`.\n\n"
            "## Results\n\n| | |\n|---|---|\n" + "\n".join(rows) + "\n\n"
            f"## Recipe\n\n```yaml\n{yaml.safe_dump(recipe, sort_keys=False).strip()}\n```\n",
            encoding="utf-8",
        )

    def _write_predictions(self, path: Path, examples: Examples, predicted: np.ndarray, gold: np.ndarray) -> None:
        """A line a word, sentences parted by empty lines, or a line an example: gold, predicted, words."""
        predicted_names, gold_names = self._names(predicted, gold), self._names(gold, gold)
        scratch = path.with_suffix(".tmp")
        with scratch.open("w", encoding="utf-8", errors="replace") as file:
            for number, (want, got) in enumerate(zip(gold_names, predicted_names, strict=True)):
                sequences = examples[number]["sequences"]
                if isinstance(want, list):
                    lines = ("\t".join(line) for line in zip(sequences[0][0], want, got, strict=True))
                    file.write("\n".join(lines) + "\n\n")
                else:
                    texts = [" ".join(text) for text in (sequences[0] if len(sequences) == 1 else sequences[want])]
                    file.write("\t".join((str(want), str(got), *texts)) + "\n")
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
        "training/finetune.py",
        task if task in HEADS else None,
    )
    settings.check()
    if training.output_dir is None:
        raise SettingsError("give --output_dir: where checkpoints, the model and its results go")
    training.remove_unused_columns = False  # examples are encoded when they are batched
    if not torch.accelerator.is_available():
        training.dataloader_pin_memory = False
    return settings, training


def finetune(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Trains and evaluates as told; the results, or None where training was stopped."""
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
    except (SettingsError, TaskDataError, WordVectorError, UnknownLabel) as error:
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
