"""The settings of a run, from a recipe and the command line."""
# ruff: noqa: RUF009, since options are dataclass fields

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import HfArg

from modeling_elmo.files import ElmoError, check_input_file, first_line
from modeling_elmo.loading import packaged_model

RECIPES = Path(__file__).parent / "recipes"
LARGEST_RECIPE = 1 << 20
# What YAML that is none leads to: dates such as 2024-99-99 are plain ValueErrors.
YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)
# Where ELMo may be in a task model, in the order of tables.
PLACEMENTS = ("none", "input", "output", "both")
# Where the states of pretraining may be reset.
RESETS = ("never", "document", "sentence")
# What some settings may be, of pretraining and of tasks.
CHOICES = {
    "reset_states": RESETS,
    "eval_reset_states": (None, *RESETS),
    "workers": (0, 1),  # lanes are read in order
    "optimizer": ("adagrad", "adamw"),
    "mixed_precision": ("no", "bf16"),
    "lr_scheduler_type": ("constant", "constant_with_warmup", "linear", "cosine", "warmup_stable_decay"),
}
TASK_CHOICES = {
    "elmo_placement": PLACEMENTS,
    "mix": ("scalar", "average", "last"),
    "tag_scheme": (None, "BIO", "BIOES", "IOB1"),
    "problem_type": (None, "single_label_classification", "multi_label_classification", "regression"),
}
POSITIVE = ("lanes", "window", "block_rows", "gradient_accumulation_steps", "logging_steps")


def option(default: Any, text: str) -> Any:
    """Declare a setting with its default and its help."""
    if default == []:
        return HfArg(default_factory=list, help=text)
    return HfArg(default=default, help=text)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Raise what a library says of bad files, folders and settings as an `ElmoError`."""
    try:
        yield
    except ElmoError:
        raise
    except (OSError, ValueError) as error:
        raise ElmoError(first_line(error)) from error


def check_choices(settings: Any, choices: dict[str, tuple[Any, ...]]) -> None:
    for name, allowed in choices.items():
        value = getattr(settings, name)
        if value not in allowed:
            listed = ", ".join(str(choice) for choice in allowed if choice is not None)
            raise ElmoError(f"`{name}` must be one of {listed}, got {value!r}")


def read_changes(setting: str, changes: Sequence[str], example: str) -> dict[str, Any]:
    """Read settings like `name=value` of the command line; values are read as in YAML."""
    values = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise ElmoError(f"`{setting}` must be like {example}, got {change!r}")
        try:
            values[name] = yaml.safe_load(value)
        except YAML_ERRORS as error:
            raise ElmoError(f"`{setting}`: not YAML: {change!r}: {first_line(error)}") from error
    return values


@dataclass
class Settings:
    """The settings of pretraining."""

    output_dir: str = HfArg(help="Where checkpoints and the final folder are written.")
    # The text
    train_file: list[str] = option([], "Text, one sentence per line; .jsonl, .csv, .parquet.")
    validation_file: list[str] = option([], "Held-out text, for perplexities.")
    dataset_name: str | None = option(None, "Instead of files: the folder or Hub name of a dataset.")
    dataset_config_name: str | None = option(None, "The configuration of the dataset.")
    train_split: str = option("train", "The split of the dataset to train on.")
    validation_split: str | None = option(None, "Its held-out split.")
    column: str | None = option(None, "The column with the text; by default text, or the only column.")
    streaming: bool = option(False, "Read the text as it is needed instead of indexing it first.")
    documents: bool = option(False, "Rows are documents, one sentence per line, rather than sentences.")
    raw: bool | None = HfArg(
        default=None,
        help="Let the tokenizer split the text; by default, as for `model_name_or_path`, or else whitespace does.",
        metadata={"nargs": "?", "const": True},
    )
    # The vocabulary
    vocab_file: str | None = option(None, "Words to predict, most frequent first; by default, counted.")
    min_count: int = option(3, "The least count of a word of the vocabulary.")
    max_vocab_size: int = option(800_000, "The largest vocabulary that is made.")
    # The model
    model_name_or_path: str | None = option(
        None, "Start from weights and words: elmo-mini, a folder, or a name on the Hub."
    )
    config: Any = option(None, "In a recipe: values of ElmoConfig other than the defaults.")
    config_overrides: list[str] = option([], "Changes to it: cell_dim=512 dropout=0")
    # How text is read
    reset_states: str = option("never", "Where states are reset: never, or at each document or sentence.")
    lanes: int = option(64, "Lanes of text that a process reads in parallel.")
    window: int = option(20, "Words per lane and step; gradients go no further back.")
    block_rows: int = option(1, "Consecutive rows that one lane reads in order.")
    shuffle: bool = option(True, "Shuffle the blocks in every epoch.")
    workers: int = option(1, "Processes that prepare text: 1, or 0 for none.")
    # Training
    num_train_epochs: float | None = option(None, "How often the text is read; by default once.")
    max_steps: int = option(-1, "Steps to train for, instead of epochs.")
    optimizer: str = option("adagrad", "adagrad, as in the paper, or adamw.")
    learning_rate: float = option(0.2, "The highest learning rate.")
    weight_decay: float = option(0.0, "Of adamw, on matrices other than the softmax.")
    lr_scheduler_type: str = option("constant", ", ".join(CHOICES["lr_scheduler_type"]))
    warmup_steps: int = option(0, "Steps over which the learning rate rises from 0.")
    decay_steps: int = option(0, "Of warmup_stable_decay: the last steps, over which it falls to 0.")
    loss_scale: float | None = option(
        None, "What the mean loss is multiplied by; by default `window` with adagrad, as in the paper, 1 with adamw."
    )
    max_grad_norm: float = option(10.0, "The norm to which gradients are clipped; 0 for no clipping.")
    gradient_accumulation_steps: int = option(1, "Groups of lanes that make one step, one after another.")
    mixed_precision: str = option("no", "no or bf16.")
    torch_compile: bool = option(False, "Compile the character encoder; needs a compiler.")
    seed: int = option(0, "Of initial weights, dropout, sampling and order.")
    # Logging and saving
    logging_steps: int = option(50, "Steps between entries of the history.")
    eval_steps: int = option(0, "Steps between evaluations; 0 to evaluate only at the end.")
    eval_reset_states: str | None = option(None, "`reset_states` of evaluations; by default the same.")
    save_steps: int = option(1000, "Steps between checkpoints; 0 for none.")
    save_total_limit: int = option(2, "Checkpoints to keep.")
    resume_from_checkpoint: str | None = option(None, "last, or the folder of a checkpoint.")
    save_softmax: bool = option(True, "Keep the softmax, for more training and for scoring.")
    overwrite_output_dir: bool = option(False, "Start again in a folder that has checkpoints or a model.")
    report_to: str = option("none", "Trackers, separated by commas: tensorboard, wandb.")

    def check(self) -> None:
        """Refuse settings that cannot work."""
        check_choices(self, CHOICES)
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise ElmoError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if self.max_steps > 0 and self.num_train_epochs is not None:
            raise ElmoError("set either `num_train_epochs` or `max_steps`, not both")
        if self.max_steps <= 0:
            epochs = self.num_train_epochs = 1.0 if self.num_train_epochs is None else self.num_train_epochs
            if epochs < 1 or epochs != int(epochs):
                raise ElmoError(f"`num_train_epochs` must be whole and positive, got {epochs}; or set `max_steps`")
        if self.loss_scale is None:
            # bilm-tf multiplies so. Adagrad needs it: its sums start at 1, which dwarfs the squares of mean gradients.
            self.loss_scale = float(self.window) if self.optimizer == "adagrad" else 1.0
        if self.loss_scale <= 0:
            raise ElmoError(f"`loss_scale` must be above 0, got {self.loss_scale}")
        if (self.lr_scheduler_type == "warmup_stable_decay") != (self.decay_steps > 0):
            raise ElmoError(
                "`decay_steps` and `lr_scheduler_type` warmup_stable_decay go together: set both or neither"
            )
        if not self.train_file and not self.dataset_name:
            raise ElmoError("there is no text: give --train_file or --dataset_name")
        if self.validation_split and not self.dataset_name:
            raise ElmoError("`validation_split` is for a --dataset_name; of files, give --validation_file")
        if self.config is not None and not isinstance(self.config, dict):
            raise ElmoError("`config` belongs in a recipe; on the command line use --config_overrides cell_dim=512")

    def elmo_config(self) -> dict[str, Any]:
        """Return the config of the recipe with the changes of the command line."""
        changes = read_changes("config_overrides", self.config_overrides, "cell_dim=512")
        return {**(self.config or {}), **changes}


@dataclass
class TaskSettings:
    """The settings of a task, beside TrainingArguments."""

    task: str = HfArg(help="text-classification, sst, nli, ner, pos, choice, srl, squad or coref.")
    # The data
    train_file: str | None = option(None, "Training data, in the formats of the task.")
    validation_file: str | None = option(None, "What the best epoch is chosen by.")
    test_file: str | None = option(None, "What is only evaluated at the end.")
    dataset_name: str | None = option(None, "Instead of files: a data set's folder or name on the Hub.")
    dataset_config_name: str | None = option(None, "The data set's configuration.")
    train_split: str = option("train", "Its split to train on.")
    validation_split: str = option("validation", "Its split to choose by.")
    test_split: str | None = option(None, "Its split to evaluate at the end.")
    columns: list[str] = option([], "Columns of the data: words=tokens; of srl: frame=4")
    problem_type: str | None = option(None, "Of text-classification; by default, what the labels say.")
    phrases: bool = option(False, "Of sst: train on every labelled phrase of the trees.")
    document_words: int = option(0, "Of coref: cut training documents at so many words; 0: do not.")
    train_fraction: float = option(1.0, "Train on a random part of the examples.")
    # The model
    model_name_or_path: str | None = option(
        None, "A biLM, or a task model to resume: elmo-mini, a folder, or a name on the Hub."
    )
    elmo_placement: str = option("both", "Where ELMo goes: input, output, both, none.")
    mix: str = option("scalar", "scalar (learned), average or last (the top layer).")
    mix_l2: float = option(0.001, "The paper's λ: the pull of the mix to the average.")
    freeze_bilm: bool = option(True, "Whether the biLM stays as it is.")
    bilm_learning_rate: float | None = option(None, "The biLM's own; by default the same.")
    word_vectors: str | None = option(None, "GloVe, fastText or word2vec text, also as .zip or .gz.")
    most_frequent_words: int = option(50_000, "Word vectors kept for words that are not in the data.")
    train_word_vectors: bool = option(False, "Whether word vectors are learned further.")
    tag_scheme: str | None = option(None, "Of ner: BIO, BIOES or IOB1, to which the data is converted.")
    head: Any = option(None, "In a recipe: what differs from ElmoConfig's defaults.")
    head_overrides: list[str] = option([], "Changes to it: head_dim=100 head_dropout=0.3")
    # Running
    patience: int = option(0, "Evaluations without improvement before stopping; 0: never.")
    cache_dir: str | None = option(None, "Where a frozen biLM's layers are kept; by default, in the output.")
    cache_gb: float = option(20.0, "The most that they may take; 0 for never.")

    def check(self) -> None:
        """Refuse settings that cannot work."""
        check_choices(self, TASK_CHOICES)
        if not self.dataset_name:
            missing = [f"--{name}" for name in ("train_file", "validation_file") if not getattr(self, name)]
            if missing:
                raise ElmoError(f"{' and '.join(missing)} missing: give both files, or --dataset_name")
        if self.elmo_placement != "none" and not self.model_name_or_path:
            raise ElmoError("ELMo needs a biLM: give --model_name_or_path, or --elmo_placement none")
        if not 0 < self.train_fraction <= 1:
            raise ElmoError(f"`train_fraction` must be above 0 and at most 1, got {self.train_fraction}")
        if self.document_words < 0:
            raise ElmoError(f"`document_words` must be at least 0, got {self.document_words}")
        if self.head is not None and not isinstance(self.head, dict):
            raise ElmoError("`head` belongs in a recipe; on the command line use --head_overrides head_dim=100")

    def renamed_columns(self) -> dict[str, str]:
        """Return our names of columns, and those of the data."""
        columns = dict(change.split("=", 1) for change in self.columns if "=" in change)
        if len(columns) != len(self.columns):
            raise ElmoError(f"`columns` must be like words=tokens, got {' '.join(self.columns)!r}")
        return columns

    def head_config(self) -> dict[str, Any]:
        """Return the values of ElmoConfig that the recipe and the command line set."""
        chosen = {**(self.head or {}), **read_changes("head_overrides", self.head_overrides, "head_dim=100")}
        if self.mix == "scalar":
            chosen["mix_l2"] = self.mix_l2
        if self.tag_scheme is not None:
            chosen["tag_scheme"] = self.tag_scheme
        for name in ("elmo_placement", "mix", "freeze_bilm", "train_word_vectors"):
            chosen[name] = getattr(self, name)
        return chosen


def read_settings(
    arguments: Sequence[str], description: str | None = None, program: str = "training.pretrain"
) -> Settings:
    """Read a recipe and the changes of the command line."""
    (settings,) = parse_with_recipe((Settings,), arguments, description, program)
    given = {argument.split("=")[0].replace("-", "_") for argument in arguments}
    if "__num_train_epochs" in given and "__max_steps" not in given:
        settings.max_steps = -1  # of the recipe
    elif "__max_steps" in given and "__num_train_epochs" not in given:
        settings.num_train_epochs = None
    if settings.model_name_or_path:
        settings.model_name_or_path = packaged_model(settings.model_name_or_path)
    settings.check()
    return settings


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of the description, and names defaults where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default is not None and not action.option_strings[0].startswith("--no_")
        return super()._get_help_string(action) if has_default else action.help


HELP = ("-h", "--help", "--help-all")


def described(description: str | None, program: str) -> str:
    """Return a script's docstring with its examples as they are typed where it was started by `elmo`."""
    text = description or ""
    if program.startswith("elmo "):
        text = re.sub(r"python -m training\.(\w+)", r"elmo \1", text)
    return text.replace("-m training.", f"-m {__package__}.")


class Parser(HfArgumentParser):
    """A parser that reports bad values of recipes and of the command line as any other bad input."""

    def error(self, message: str) -> NoReturn:
        raise ElmoError(f"{message}; {self.prog} --help lists all settings")


def make_parser(classes: Sequence[type], description: str | None, program: str) -> Parser:
    parser = Parser(
        tuple(classes),
        prog=program,
        usage=f"{program} [RECIPE] [--SETTING VALUE ...]",
        description=described(description, program),
        formatter_class=HelpFormatter,
    )
    for action in parser._actions:
        if action.option_strings[0].startswith("--no_"):  # made by HfArgumentParser, with the help of its opposite
            action.help = f"Set `{action.dest}` to false."
    return parser


def print_help(classes: Sequence[type], is_whole: bool, description: str | None, program: str) -> None:
    """Print the settings of the first class, and of the others if the help is to be whole."""
    parser = make_parser(classes if is_whole else classes[:1], description, program)
    if len(classes) > 1 and not is_whole:
        parser.epilog = "Settings of transformers' TrainingArguments work too: --help-all lists them."
    parser.print_help()


def parse_with_recipe(
    classes: Sequence[type], arguments: Sequence[str], description: str | None, program: str, recipe: str | None = None
) -> tuple[Any, ...]:
    """Read the settings of some dataclasses. The command line wins over the recipe, its first argument by default."""
    if not arguments or any(argument in HELP for argument in arguments):
        print_help(classes, "--help-all" in arguments, description, program)
        raise SystemExit(0)
    parser = make_parser(classes, description, program)
    rest = list(arguments)
    if not rest[0].startswith("-"):
        recipe = rest.pop(0)
    if recipe is not None:
        chosen = _read_recipe(recipe, [action.dest for action in parser._actions])
        own = {field.name for field in fields(classes[0])}
        for action in parser._actions:
            if action.dest in chosen:
                action.required = False
                chosen[action.dest] = _as_typed(action, chosen[action.dest], recipe, action.dest in own)
        parser.set_defaults(**chosen)
    try:
        *parsed, unknown = parser.parse_args_into_dataclasses(rest, return_remaining_strings=True)
    except (TypeError, AttributeError) as error:  # TrainingArguments checks values, not their types
        raise ElmoError(f"{recipe}: a setting has a value of the wrong type: {first_line(error)}") from error
    if unknown:
        raise ElmoError(
            f"{program} has no setting `{unknown[0]}`{_suggest(unknown[0], parser._option_string_actions)}"
        )
    return tuple(parsed)


def _as_typed(action: argparse.Action, value: Any, recipe: str, is_own: bool) -> Any:
    """Return a recipe's value for a setting, `is_own` or of TrainingArguments, which takes objects for some texts.

    Numbers are returned as they are typed: the parser checks them.
    """
    is_number = action.type in (int, float)
    is_text = action.type is str and action.nargs is None and is_own
    if isinstance(value, (dict, list)) and (is_number or is_text):
        raise ElmoError(f"{recipe}: `{action.dest}` must be one value, got {value!r}")
    if value is None and is_number and action.default is not None:
        raise ElmoError(f"{recipe}: `{action.dest}` needs a value")
    if is_number and value is not None:
        return str(value)
    if action.nargs == "+" and action.type is str:
        return [str(item) for item in (value if isinstance(value, list) else [value])]
    return value


def _read_recipe(recipe: str, names: Sequence[str]) -> dict[str, Any]:
    """Read a YAML file of settings, or the one of that name in training/recipes."""
    path = Path(recipe)
    known = {file.stem: file for file in sorted(RECIPES.glob("*.yaml"))}
    if not os.path.isfile(path):
        if recipe not in known:
            raise ElmoError(f"{path}: no such recipe; there are {', '.join(known)}, or give a YAML file")
        path = known[recipe]
    check_input_file(path)
    if path.stat().st_size > LARGEST_RECIPE:
        raise ElmoError(f"{path}: a recipe of over {LARGEST_RECIPE:,} bytes")
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except YAML_ERRORS as error:
        raise ElmoError(f"{path}: not YAML: {first_line(error)}") from error
    if not isinstance(chosen, dict):
        raise ElmoError(f"{path}: a recipe must be settings and their values, one `name: value` per line")
    for name in chosen:
        if name not in names:
            raise ElmoError(f"{path}: there is no setting `{name}`{_suggest(str(name), names)}")
    return chosen


def _suggest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
