"""What the commands of `elmo` share: arguments, errors in one line, and how to find a script."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .files import BAD_INPUT, INTERRUPTED, MINI_NAME, ElmoError, one_line

RESUME = "run the same command again to resume"
TEXT_FILES = "A text file with one sentence per line; a .jsonl, .csv, .tsv or .parquet file"

MODEL = "MODEL"
MODELS = f"{MINI_NAME}, which is in the package, a folder, or a name on the Hub"
Model = Annotated[str, typer.Option(metavar=MODEL, help=f"{MODELS}.")]
ScoringModel = Annotated[str, typer.Option(metavar=MODEL, help=f"{MODELS}: a pretrained model with its softmax.")]
OutputFolder = Annotated[Path, typer.Argument(metavar="OUT_DIR", help="The folder to write.")]
MarkedSentence = Annotated[str, typer.Argument(metavar="SENTENCE", help="Text with one word in [brackets].")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help=f"{TEXT_FILES}; - for text on standard input; or a dataset, by its folder or its name on the Hub.",
    ),
]
Column = Annotated[str | None, typer.Option(metavar="NAME", help="The column with the sentences, if not text.")]
Split = Annotated[str | None, typer.Option(metavar="NAME", help="The split of a dataset.")]
Tokenized = Annotated[
    bool | None,
    typer.Option(
        "--tokenized/--raw",
        help="Split text at whitespace alone, or Penn-Treebank style.",
        show_default="as the model's training text",
    ),
]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="How many to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object per line.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that already exists.")]


@contextmanager
def command_errors(when_interrupted: str = "nothing was written") -> Iterator[None]:
    """Report bad input and Ctrl-C in one line on standard error, without a traceback."""
    try:
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        yield
    except BrokenPipeError:  # the reader of the output has closed it, which is no error
        raise
    except (ElmoError, OSError, ImportError) as error:
        typer.echo(f"error: {one_line(error)}", err=True)
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt as interrupt:
        typer.echo(f"interrupted: {when_interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt


def import_script(name: str) -> Any:
    """Import a script as the wheel has it, below this package, or as a checkout has it, beside this package."""
    inside = f"{__package__}.{name}"
    top = importlib.util.find_spec(f"{__package__}.{name.split('.')[0]}")
    try:
        return importlib.import_module(name if top is None else inside)
    except ImportError as error:
        missing = (error.name or str(error)).split(".")[0]
        raise ElmoError(f"{missing} is not installed: pip install 'modeling-elmo[train]'") from error
