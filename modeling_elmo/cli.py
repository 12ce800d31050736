"""The `elmo` command. Every command imports what it needs itself, so that `elmo --help` answers at once."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

BAD_INPUT = 2

# Markup is off: examples in the help texts keep their lines, brackets and all.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@contextmanager
def _one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Ends the program over bad input with one line on stderr and no traceback."""
    try:
        yield
    except expected as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def _quiet_transformers() -> None:
    """Leaves stderr to our own progress bar and errors."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _print_version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"modeling-elmo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """ELMo: contextual word vectors from a bidirectional LSTM language model.

    \b
    Start with a published checkpoint, an options.json and a weights file:
      elmo convert options.json weights.hdf5 my-elmo
    \b
    then, in Python:
      from transformers import AutoModel
      model = AutoModel.from_pretrained("my-elmo", trust_remote_code=True)
    """


@app.command(short_help="An original checkpoint to a folder for from_pretrained.")
def convert(
    options_file: Annotated[
        Path, typer.Argument(metavar="OPTIONS.json", help="The checkpoint's options.", show_default=False)
    ],
    weights_file: Annotated[
        Path, typer.Argument(metavar="WEIGHTS.hdf5", help="The checkpoint's weights.", show_default=False)
    ],
    output_dir: Annotated[
        Path, typer.Argument(metavar="OUT_DIR", help="The folder to make, for from_pretrained.", show_default=False)
    ],
    vocab: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The words the checkpoint was trained to predict, one a line, <S>, </S> and <UNK> first. Vectors do "
            "not depend on it.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is already in OUT_DIR.")
    ] = False,
) -> None:
    """Convert an original checkpoint (bilm-tf, AllenNLP, SeqVec) to a folder for from_pretrained.

    Such a checkpoint is two files, the options as JSON and the weights as HDF5. The folder gets the model, its
    config, a tokenizer, the code that loads them and a model card; it is written whole or not at all.

    \b
    Examples:
      elmo convert options.json weights.hdf5 my-elmo
      elmo convert options.json weights.hdf5 my-elmo --vocab vocab.txt --overwrite
    """
    with _one_line_errors(ImportError):
        from .convert_elmo import ConversionError, convert_checkpoint
    _quiet_transformers()
    with _one_line_errors(ConversionError):
        folder = convert_checkpoint(options_file, weights_file, output_dir, vocab_file=vocab, overwrite=overwrite)
    typer.echo(f"Wrote {folder}\n\nNext, in Python:")
    typer.echo("  from transformers import AutoModel, AutoTokenizer")
    for name, auto_class in (("tokenizer", "AutoTokenizer"), ("model", "AutoModel")):
        typer.echo(f"  {name} = {auto_class}.from_pretrained({str(folder)!r}, trust_remote_code=True)")


@app.command(short_help="A folder back to an original checkpoint.")
def export(
    model_dir: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", help="A folder written by save_pretrained.", show_default=False)
    ],
    output_dir: Annotated[
        Path, typer.Argument(metavar="OUT_DIR", help="The folder to make for the checkpoint.", show_default=False)
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a checkpoint that is already in OUT_DIR.")
    ] = False,
) -> None:
    """Export the biLM of a folder to the original format, for programs that read that.

    OUT_DIR gets options.json, weights.hdf5 and, where the model has a vocabulary, vocab.txt. It is the inverse of
    `elmo convert`, to the last bit. The format has no mix of the layers, no softmax and no task layers.

    \b
    Example:
      elmo export my-elmo my-elmo-bilm
    """
    with _one_line_errors(ImportError):
        from .convert_elmo import ConversionError, export_checkpoint
    _quiet_transformers()
    with _one_line_errors(ConversionError):
        folder = export_checkpoint(model_dir, output_dir, overwrite=overwrite)
    typer.echo(f"Wrote {folder}\n\nThe way back:")
    files = shlex.join([str(folder / "options.json"), str(folder / "weights.hdf5")])
    typer.echo(f"  elmo convert {files} OUT_DIR")


if __name__ == "__main__":
    app()
