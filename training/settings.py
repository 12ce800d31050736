"""What a run can be told, by a recipe and on the command line."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from modeling_elmo.files import ElmoError, first_line

RECIPES = Path(__file__).parent / "recipes"
# Where ELMo may be in a task model, in the order of tables.
PLACEMENTS = ("none", "input", "output", "both")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Around the set-up of a run, where what a library says of a file, a folder or a setting is about bad input."""
    try:
        yield
    except ElmoError:
        raise
    except (OSError, ValueError) as error:
        raise ElmoError(first_line(error)) from error


def read_changes(setting: str, changes: Sequence[str], example: str) -> dict[str, Any]:
    """What `name=value` settings of the command line say; values are read as in YAML."""
    found = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise ElmoError(f"`{setting}` must be like {example}, got {change!r}")
        found[name] = yaml.safe_load(value)
    return found


@dataclass
class Settings:
    """Everything that a recipe or the command line can set of pretraining."""

    output_dir: str = field(metadata={"help": "Where checkpoints and the final folder go."})
    # The text
    train_file: list[str] = field(
        default_factory=list, metadata={"help": "Text files, a sentence a line; or .jsonl, .csv, .parquet."}
    )
    validation_file: list[str] = field(default_factory=list, metadata={"help": "Held-out text, for perplexities."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Instead of files: a data set's folder or name on the Hub."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The data set's configuration."})
    train_split: str = field(default="train", metadata={"help": "Its split to train on."})
    validation_split: str | None = field(default=None, metadata={"help": "Its held-out split."})
    column: str | None = field(
        default=None, metadata={"help": "Where the text is; by default text, or the only column."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read the text as it comes instead of indexing it first."}
    )
    documents: bool = field(
        default=False, metadata={"help": "Rows are documents, a sentence a line, rather than sentences."}
    )
    raw: bool = field(default=False, metadata={"help": "The tokenizer splits the text; by default whitespace does."})
    # The vocabulary
    vocab_file: str | None = field(
        default=None, metadata={"help": "Words to predict, one a line, frequent ones first. Else they are counted."}
    )
    min_count: int = field(default=3, metadata={"help": "A word of the vocabulary occurs this often at least."})
    max_vocab_size: int = field(default=800_000, metadata={"help": "The largest vocabulary that is made."})
    # The model
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Go on from this folder's weights: domain tuning. A vocabulary of its own is kept."},
    )
    config: Any = field(default=None, metadata={"help": "In a recipe: what differs from ElmoConfig's defaults."})
    config_overrides: list[str] = field(
        default_factory=list, metadata={"help": "Changes to the recipe's config: cell_dim=512 dropout=0"}
    )
    # How text is read
    mode: str = field(
        default="lanes", metadata={"help": "lanes: running text, states carried on. sentences: each by itself."}
    )
    lanes: int = field(default=64, metadata={"help": "Lanes, or sentences, a process reads in parallel."})
    window: int = field(default=20, metadata={"help": "Words of a lane in a step; gradients do not go further back."})
    longest_sentence: int = field(default=200, metadata={"help": "In sentence mode, longer ones are cut."})
    block_rows: int = field(default=1, metadata={"help": "Consecutive rows that one lane reads one after the other."})
    shuffle: bool = field(default=True, metadata={"help": "A new order of the blocks every epoch."})
    workers: int = field(default=1, metadata={"help": "Processes that prepare text: 1, or 0 for none."})
    # Training
    num_train_epochs: float = field(default=1.0, metadata={"help": "Times that the text is read."})
    max_steps: int = field(default=-1, metadata={"help": "Steps to train for, whatever the epochs."})
    optimizer: str = field(default="adagrad", metadata={"help": "adagrad, as the paper, or adamw."})
    learning_rate: float = field(default=0.2, metadata={"help": "Its highest value."})
    softmax_learning_rate: float | None = field(
        default=None, metadata={"help": "The softmax's own highest value; by default the same."}
    )
    weight_decay: float = field(default=0.0, metadata={"help": "Of adamw, on matrices other than the softmax."})
    lr_scheduler_type: str = field(
        default="constant", metadata={"help": "constant, constant_with_warmup, linear, cosine."}
    )
    warmup_steps: int = field(default=0, metadata={"help": "Steps over which the learning rate rises from 0."})
    max_grad_norm: float = field(
        default=10.0, metadata={"help": "Longer gradients are shortened to this; 0 for never."}
    )
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "Groups of lanes that make one step, one after the other."}
    )
    mixed_precision: str = field(default="no", metadata={"help": "no or bf16."})
    torch_compile: bool = field(default=False, metadata={"help": "Compile what reads characters; needs a compiler."})
    seed: int = field(default=0, metadata={"help": "Of initial weights, dropout, sampling and order."})
    # Watching and saving
    logging_steps: int = field(default=50, metadata={"help": "Steps between two entries of the history."})
    eval_steps: int = field(default=0, metadata={"help": "Steps between two evaluations; 0 for only at the end."})
    eval_lanes: int = field(default=32, metadata={"help": "Lanes, or sentences, of an evaluation."})
    save_steps: int = field(default=1000, metadata={"help": "Steps between two checkpoints; 0 for none."})
    save_total_limit: int = field(default=2, metadata={"help": "Checkpoints that are kept."})
    resume_from_checkpoint: str | None = field(
        default=None, metadata={"help": "last, or a checkpoint's folder: go on bit for bit."}
    )
    save_softmax: bool = field(
        default=True,
        metadata={"help": "The final folder has the softmax, for more training or scoring; vectors need none."},
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Begin anew where there are checkpoints."})
    report_to: str = field(
        default="none", metadata={"help": "Trackers by name, separated by commas: tensorboard, wandb."}
    )

    def check(self) -> None:
        """Refuses what cannot work, naming the setting."""
        for name, allowed in (
            ("mode", ("lanes", "sentences")),
            ("optimizer", ("adagrad", "adamw")),
            ("mixed_precision", ("no", "bf16")),
            ("lr_scheduler_type", ("constant", "constant_with_warmup", "linear", "cosine")),
        ):
            if getattr(self, name) not in allowed:
                raise ElmoError(f"`{name}` must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        counts = ("lanes", "window", "block_rows", "gradient_accumulation_steps", "eval_lanes", "longest_sentence")
        for name in (*counts, "logging_steps"):
            if getattr(self, name) < 1:
                raise ElmoError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if self.max_steps <= 0 and self.num_train_epochs <= 0:
            raise ElmoError("`max_steps` or `num_train_epochs` must be positive")
        if self.max_steps <= 0 and self.num_train_epochs != int(self.num_train_epochs):
            raise ElmoError("`num_train_epochs` must be whole: use `max_steps` for parts of an epoch")
        if not self.train_file and not self.dataset_name:
            raise ElmoError("there is no text: give --train_file or --dataset_name")
        if self.config is not None and not isinstance(self.config, dict):
            raise ElmoError("`config` belongs in a recipe; on the command line use --config_overrides cell_dim=512")

    def elmo_config(self) -> dict[str, Any]:
        """The recipe's config with the command line's changes."""
        return {**(self.config or {}), **read_changes("config_overrides", self.config_overrides, "cell_dim=512")}


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
    """A recipe and what the command line changes of it."""
    (settings,) = parse_with_recipe((Settings,), arguments, description, "training.pretrain")
    settings.check()
    return settings


def parse_with_recipe(
    classes: Sequence[type], arguments: Sequence[str], description: str | None, program: str, recipe: str | None = None
) -> tuple[Any, ...]:
    """The settings of some dataclasses. A recipe, the first argument or given, sets what nothing after it does."""
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
    *found, unknown = parser.parse_args_into_dataclasses(rest, return_remaining_strings=True)
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        raise ElmoError(f"{program} has no setting `{unknown[0]}`{_nearest(unknown[0], known)}")
    return tuple(found)


def _read_recipe(recipe: str, names: set[str]) -> dict[str, Any]:
    """A YAML file of settings, or the name of one that comes with the package."""
    path = Path(recipe)
    known = sorted(found.stem for found in RECIPES.glob("*.yaml"))
    if not path.is_file() and path.name in known:
        path = RECIPES / f"{path.name}.yaml"
    if not path.is_file():
        raise ElmoError(f"{path}: no such recipe; there are {', '.join(known)}, or give a YAML file")
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ElmoError(f"{path}: no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(chosen, dict):
        raise ElmoError(f"{path}: a recipe is a list of settings and their values")
    if unknown := sorted(set(map(str, chosen)) - names):
        raise ElmoError(f"{path}: there is no setting `{unknown[0]}`{_nearest(unknown[0], names)}")
    return chosen


def _nearest(name: str, names: Iterable[str]) -> str:
    """What to add to a message about an unknown name."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
