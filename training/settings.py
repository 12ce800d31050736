"""The settings of a run, from a recipe and the command line."""
# ruff: noqa: RUF009, since HfArg is dataclasses.field with a help text

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import HfArg

from modeling_elmo.files import ElmoError, first_line

RECIPES = Path(__file__).parent / "recipes"
# Where ELMo may be in a task model, in the order of tables.
PLACEMENTS = ("none", "input", "output", "both")
# Where the states of pretraining may be reset.
RESETS = ("never", "document", "sentence")
# What some settings of pretraining may be.
CHOICES = {
    "reset_states": RESETS,
    "eval_reset_states": (None, *RESETS),
    "workers": (0, 1),  # lanes are read in order
    "optimizer": ("adagrad", "adamw"),
    "mixed_precision": ("no", "bf16"),
    "lr_scheduler_type": ("constant", "constant_with_warmup", "linear", "cosine", "warmup_stable_decay"),
}
POSITIVE = ("lanes", "window", "block_rows", "gradient_accumulation_steps", "eval_lanes", "logging_steps")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Raise what a library says of bad files, folders and settings as an `ElmoError`."""
    try:
        yield
    except ElmoError:
        raise
    except (OSError, ValueError) as error:
        raise ElmoError(first_line(error)) from error


def read_changes(setting: str, changes: Sequence[str], example: str) -> dict[str, Any]:
    """Read settings like `name=value` of the command line; values are read as in YAML."""
    values = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise ElmoError(f"`{setting}` must be like {example}, got {change!r}")
        values[name] = yaml.safe_load(value)
    return values


@dataclass
class Settings:
    """The settings of pretraining."""

    output_dir: str = HfArg(help="Where checkpoints and the final folder are written.")
    # The text
    train_file: list[str] = HfArg(
        default_factory=list, help="Text files, one sentence per line; or .jsonl, .csv, .parquet."
    )
    validation_file: list[str] = HfArg(default_factory=list, help="Held-out text, for perplexities.")
    dataset_name: str | None = HfArg(default=None, help="Instead of files: the folder or Hub name of a dataset.")
    dataset_config_name: str | None = HfArg(default=None, help="The configuration of the dataset.")
    train_split: str = HfArg(default="train", help="The split of the dataset to train on.")
    validation_split: str | None = HfArg(default=None, help="Its held-out split.")
    column: str | None = HfArg(default=None, help="The column with the text; by default text, or the only column.")
    streaming: bool = HfArg(default=False, help="Read the text as it is needed instead of indexing it first.")
    documents: bool = HfArg(default=False, help="Rows are documents, one sentence per line, rather than sentences.")
    raw: bool = HfArg(default=False, help="Let the tokenizer split the text; by default, whitespace separates words.")
    # The vocabulary
    vocab_file: str | None = HfArg(
        default=None, help="Words to predict, one per line, most frequent first. By default they are counted."
    )
    min_count: int = HfArg(default=3, help="The least count of a word of the vocabulary.")
    max_vocab_size: int = HfArg(default=800_000, help="The largest vocabulary that is made.")
    # The model
    model_name_or_path: str | None = HfArg(
        default=None, help="Start from the weights and the vocabulary of this folder: domain tuning."
    )
    config: Any = HfArg(default=None, help="In a recipe: values of ElmoConfig other than the defaults.")
    config_overrides: list[str] = HfArg(
        default_factory=list, help="Changes to the config of the recipe: cell_dim=512 dropout=0"
    )
    # How text is read
    reset_states: str = HfArg(
        default="never", help="Where the states of a lane are reset: never, or at each document or sentence."
    )
    lanes: int = HfArg(default=64, help="Lanes of text that a process reads in parallel.")
    window: int = HfArg(default=20, help="Words per lane and step; gradients go no further back.")
    block_rows: int = HfArg(default=1, help="Consecutive rows that one lane reads in order.")
    shuffle: bool = HfArg(default=True, help="Shuffle the blocks in every epoch.")
    workers: int = HfArg(default=1, help="Processes that prepare text: 1, or 0 for none.")
    # Training
    num_train_epochs: float = HfArg(default=1.0, help="How often the text is read.")
    max_steps: int = HfArg(default=-1, help="Steps to train for, whatever the epochs.")
    optimizer: str = HfArg(default="adagrad", help="adagrad, as in the paper, or adamw.")
    learning_rate: float = HfArg(default=0.2, help="The highest learning rate.")
    softmax_learning_rate: float | None = HfArg(default=None, help="That of the softmax; by default the same.")
    weight_decay: float = HfArg(default=0.0, help="Of adamw, on matrices other than the softmax.")
    lr_scheduler_type: str = HfArg(
        default="constant", help="constant, constant_with_warmup, linear, cosine or warmup_stable_decay."
    )
    warmup_steps: int = HfArg(default=0, help="Steps over which the learning rate rises from 0.")
    decay_steps: int = HfArg(default=0, help="Of warmup_stable_decay: the last steps, over which it falls to 0.")
    max_grad_norm: float = HfArg(default=10.0, help="The norm to which gradients are clipped; 0 for no clipping.")
    gradient_accumulation_steps: int = HfArg(default=1, help="Groups of lanes that make one step, one after another.")
    mixed_precision: str = HfArg(default="no", help="no or bf16.")
    torch_compile: bool = HfArg(default=False, help="Compile the character encoder; needs a compiler.")
    seed: int = HfArg(default=0, help="Of initial weights, dropout, sampling and order.")
    # Logging and saving
    logging_steps: int = HfArg(default=50, help="Steps between entries of the history.")
    eval_steps: int = HfArg(default=0, help="Steps between evaluations; 0 to evaluate only at the end.")
    eval_lanes: int = HfArg(default=32, help="Lanes of an evaluation.")
    eval_reset_states: str | None = HfArg(
        default=None, help="`reset_states` of evaluations, such as sentence; by default the same."
    )
    save_steps: int = HfArg(default=1000, help="Steps between checkpoints; 0 for none.")
    save_total_limit: int = HfArg(default=2, help="Checkpoints to keep.")
    resume_from_checkpoint: str | None = HfArg(
        default=None, help="last, or the folder of a checkpoint: resume from it, bit for bit."
    )
    save_softmax: bool = HfArg(
        default=True, help="Keep the softmax in the final folder, for more training and for scoring."
    )
    overwrite_output_dir: bool = HfArg(default=False, help="Start again in a folder that has checkpoints or a model.")
    report_to: str = HfArg(default="none", help="Trackers, separated by commas: tensorboard, wandb.")

    def check(self) -> None:
        """Refuse settings that cannot work."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                choices = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise ElmoError(f"`{name}` must be one of {choices}; got {getattr(self, name)!r}")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise ElmoError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        epochs = self.num_train_epochs
        if self.max_steps <= 0 and (epochs < 1 or epochs != int(epochs)):
            raise ElmoError(f"`num_train_epochs` must be whole and positive, got {epochs}; or set `max_steps`")
        if (self.lr_scheduler_type == "warmup_stable_decay") != (self.decay_steps > 0):
            raise ElmoError(
                "`decay_steps` and `lr_scheduler_type` warmup_stable_decay go together: set both or neither, "
                f"got {self.decay_steps} and {self.lr_scheduler_type}"
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
    """What a task's recipe or the command line can set, beside TrainingArguments."""

    task: str = field(metadata={"help": "sst, nli, ner, pos, choice, srl, squad or coref."})
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
        default_factory=list,
        metadata={"help": "Columns that are not ours: words=tokens tags=ner_tags; of srl, by number: frame=4"},
    )
    phrases: bool = field(default=False, metadata={"help": "Of sst: train on every labelled phrase of the trees."})
    document_words: int = field(
        default=0,
        metadata={"help": "Of coref: train on parts of documents of at most so many words; 0: on all of it."},
    )
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
            ("elmo_placement", PLACEMENTS),
            ("mix", ("scalar", "average", "last")),
            ("tag_scheme", (None, "BIO", "BIOES", "IOB1")),
        ):
            if getattr(self, name) not in allowed:
                choices = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise ElmoError(f"`{name}` must be one of {choices}, got {getattr(self, name)!r}")
        if not self.dataset_name and not (self.train_file and self.validation_file):
            raise ElmoError("there is no data: give --train_file and --validation_file, or --dataset_name")
        if self.elmo_placement != "none" and not self.model_name_or_path:
            raise ElmoError("ELMo needs a biLM: give --model_name_or_path, or --elmo_placement none")
        if not 0 < self.train_fraction <= 1:
            raise ElmoError(f"`train_fraction` must be above 0 and at most 1, got {self.train_fraction}")
        if self.document_words < 0:
            raise ElmoError(f"`document_words` must be at least 0, got {self.document_words}")
        if self.head is not None and not isinstance(self.head, dict):
            raise ElmoError("`head` belongs in a recipe; on the command line use --head_overrides head_dim=100")

    def renamed_columns(self) -> dict[str, str]:
        """Our names of columns, and those of the data."""
        columns = dict(change.split("=", 1) for change in self.columns if "=" in change)
        if len(columns) != len(self.columns):
            raise ElmoError(f"`columns` must be like words=tokens, got {' '.join(self.columns)!r}")
        return columns

    def head_config(self) -> dict[str, Any]:
        """Of ElmoConfig: what the recipe and the command line set for the task."""
        chosen = {**(self.head or {}), **read_changes("head_overrides", self.head_overrides, "head_dim=100")}
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


def read_settings(arguments: Sequence[str], description: str | None = None) -> Settings:
    """Read a recipe and the changes of the command line."""
    (settings,) = parse_with_recipe((Settings,), arguments, description, "training.pretrain")
    settings.check()
    return settings


def parse_with_recipe(
    classes: Sequence[type], arguments: Sequence[str], description: str | None, program: str, recipe: str | None = None
) -> tuple[Any, ...]:
    """Read the settings of some dataclasses. The command line wins over the recipe, its first argument by default."""
    parser = HfArgumentParser(tuple(classes), description=description, prog=program)
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        raise SystemExit(0)
    rest = list(arguments)
    if not rest[0].startswith("-"):
        recipe = rest.pop(0)
    if recipe is not None:
        names = {setting.name for settings_class in classes for setting in dataclasses.fields(settings_class)}
        chosen = _read_recipe(recipe, names)
        for name in ("train_file", "validation_file"):
            if isinstance(chosen.get(name), str) and Settings in classes:
                chosen[name] = [chosen[name]]
        parser.set_defaults(**chosen)
        for action in parser._actions:
            if action.dest in chosen:
                action.required = False
    *parsed, unknown = parser.parse_args_into_dataclasses(rest, return_remaining_strings=True)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        raise ElmoError(f"{program} has no setting `{unknown[0]}`{_suggest(unknown[0], known)}")
    return tuple(parsed)


def _read_recipe(recipe: str, names: set[str]) -> dict[str, Any]:
    """Read a YAML file of settings, or the one of that name in training/recipes."""
    path = Path(recipe)
    known = sorted(file.stem for file in RECIPES.glob("*.yaml"))
    if not path.is_file() and recipe in known:
        path = RECIPES / f"{recipe}.yaml"
    if not path.is_file():
        raise ElmoError(f"{path}: no such recipe; there are {', '.join(known)}, or give a YAML file")
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
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
