"""What a run can be told, by a recipe and on the command line."""

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

RECIPES = Path(__file__).parent / "recipes"


class SettingsError(ValueError):
    """Settings or input that cannot be trained on. The message is one line and names what is wrong."""


class PretrainingError(SettingsError):
    """The same, of pretraining."""


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
                raise PretrainingError(f"`{name}` must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in ("lanes", "window", "block_rows", "gradient_accumulation_steps", "eval_lanes", "longest_sentence"):
            if getattr(self, name) < 1:
                raise PretrainingError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if self.max_steps <= 0 and self.num_train_epochs <= 0:
            raise PretrainingError("`max_steps` or `num_train_epochs` must be positive")
        if self.max_steps <= 0 and self.num_train_epochs != int(self.num_train_epochs):
            raise PretrainingError("`num_train_epochs` must be whole: use `max_steps` for parts of an epoch")
        if not self.train_file and not self.dataset_name:
            raise PretrainingError("there is no text: give --train_file or --dataset_name")
        if self.config is not None and not isinstance(self.config, dict):
            raise PretrainingError(
                "`config` belongs in a recipe; on the command line use --config_overrides cell_dim=512"
            )

    def elmo_config(self) -> dict[str, Any]:
        """The recipe's config with the command line's changes."""
        config = dict(self.config or {})
        for change in self.config_overrides:
            name, equals, value = change.partition("=")
            if not equals:
                raise PretrainingError(f"`config_overrides` must be like cell_dim=512, got {change!r}")
            config[name] = yaml.safe_load(value)
        return config


def read_settings(arguments: Sequence[str], description: str | None = None) -> Settings:
    """A recipe and what the command line changes of it."""
    (settings,) = parse_with_recipe((Settings,), arguments, description, "training/pretrain.py")
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
    return parser.parse_args_into_dataclasses(rest)


def _read_recipe(recipe: str, names: set[str]) -> dict[str, Any]:
    """A YAML file of settings, or the name of one that comes with the package."""
    path = Path(recipe)
    known = sorted(found.stem for found in RECIPES.glob("*.yaml"))
    if not path.is_file() and path.name in known:
        path = RECIPES / f"{path.name}.yaml"
    if not path.is_file():
        raise SettingsError(f"{path}: no such recipe; there are {', '.join(known)}, or give a YAML file")
    try:
        chosen = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: no YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(chosen, dict):
        raise SettingsError(f"{path}: a recipe is a list of settings and their values")
    if unknown := sorted(set(map(str, chosen)) - names):
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise SettingsError(f"{path}: there is no setting `{unknown[0]}`{hint}")
    return chosen
