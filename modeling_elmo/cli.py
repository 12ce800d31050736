"""The `elmo` command. What only one of its commands needs, that command imports itself."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .files import BAD_INPUT, ElmoError

INTERRUPTED = 130  # what shells give for Ctrl-C
GO_ON = "run the same command again to go on where it stopped"

# Markup is off: examples in the help texts keep their lines, brackets and all.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@contextmanager
def _one_line_errors(*expected: type[Exception]) -> Iterator[None]:
    """Ends the program over bad input with one line on stderr and no traceback."""
    try:
        yield
    except BrokenPipeError:  # whoever reads the output has enough of it
        raise
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
      elmo embed sentences.txt --model my-elmo --output vectors.h5
    \b
    or, in Python:
      from transformers import AutoModel
      model = AutoModel.from_pretrained("my-elmo", trust_remote_code=True)
    """


@app.command(short_help="A published checkpoint to a folder for from_pretrained.")
def convert(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCE",
            help="The checkpoint: OPTIONS.json and WEIGHTS.hdf5, a folder with both, a folder of ELMoForManyLangs, or "
            "an AllenNLP model as model.tar.gz, folder or weights.th.",
            show_default=False,
        ),
    ],
    output_dir: Annotated[
        Path, typer.Argument(metavar="OUT_DIR", help="The folder to make, for from_pretrained.", show_default=False)
    ],
    vocab: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The words the checkpoint was trained to predict, one a line, <S>, </S> and <UNK> first. Vectors do "
            "not depend on it. ELMoForManyLangs has its own.",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of an AllenNLP model: the options.json of its ELMo, if it is not that of a published one.",
            show_default=False,
        ),
    ] = None,
    mix: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Of an AllenNLP model: which of its learned mixes of the layers to take; by default the first, 0.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is already in OUT_DIR.")
    ] = False,
) -> None:
    """Convert a published checkpoint to a folder for from_pretrained.

    A checkpoint of bilm-tf, AllenNLP or SeqVec is two files, the options as JSON and the weights as HDF5. A model of
    ELMoForManyLangs is a folder, and a task model of AllenNLP an archive with an ELMo inside, fine-tuned or not. The
    folder gets the model, its config, a tokenizer, the code that loads them and a model card; it is written whole or
    not at all.

    \b
    Examples:
      elmo convert options.json weights.hdf5 my-elmo
      elmo convert options.json weights.hdf5 my-elmo --vocab vocab.txt --overwrite
      elmo convert zht.model my-chinese-elmo
      elmo convert model.tar.gz my-elmo --mix 1
    """
    with _one_line_errors(ImportError):
        from .convert_elmo import convert_checkpoint, find_sources
    _quiet_transformers()
    notes: list[str] = []
    with _one_line_errors(ElmoError):
        family, files = find_sources(sources)
        if family != "AllenNLP" and (options is not None or mix is not None):
            raise ElmoError(f"{sources[0]}: --options and --mix are for AllenNLP models; this is {family}")
        if family == "ELMoForManyLangs":
            from .convert_manylangs import convert_manylangs

            if vocab is not None:
                raise ElmoError(f"{sources[0]}: --vocab is not for ELMoForManyLangs, which has a word.dic")
            folder = convert_manylangs(files[0], output_dir, overwrite=overwrite)
        elif family == "AllenNLP":
            from .convert_allennlp import convert_allennlp

            folder, notes = convert_allennlp(
                files[0], output_dir, options_file=options, mix=mix or 0, vocab_file=vocab, overwrite=overwrite
            )
        else:
            folder = convert_checkpoint(files[0], files[1], output_dir, vocab_file=vocab, overwrite=overwrite)
    for note in notes:
        typer.echo(note)
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
        from .convert_elmo import export_checkpoint
    _quiet_transformers()
    with _one_line_errors(ElmoError):
        folder = export_checkpoint(model_dir, output_dir, overwrite=overwrite)
    typer.echo(f"Wrote {folder}\n\nThe way back:")
    files = shlex.join([str(folder / "options.json"), str(folder / "weights.hdf5")])
    vocabulary = folder / "vocab.txt"
    more = shlex.join(["--vocab", str(vocabulary)]) if vocabulary.is_file() else ""
    typer.echo(f"  elmo convert {files} OUT_DIR {more}".rstrip())


@app.command(short_help="Vectors for a whole corpus.")
def embed(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A text file, a sentence a line; a .jsonl, .csv or .parquet file; - for text on standard input; or a "
            "dataset, by its folder or its name on the Hub.",
            show_default=False,
        ),
    ],
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="The model, a folder for from_pretrained.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(metavar="OUT", help="The file to make: .h5 or .hdf5, or .parquet.", show_default=False),
    ],
    layers: Annotated[
        str,
        typer.Option(
            metavar="all|average|top|mix|0,1,2",
            help="A word's vector: the model's mix of its layers, their average, the top one, or those named.",
        ),
    ] = "mix",
    pooling: Annotated[
        str, typer.Option(metavar="none|mean|max", help="Over the words of a sentence, for one vector each.")
    ] = "none",
    batch_words: Annotated[
        int, typer.Option(metavar="N", help="Words computed at once. A longer sentence is read in pieces, exactly.")
    ] = 2048,
    dtype: Annotated[str, typer.Option(metavar="float32|float16", help="Of the numbers written.")] = "float32",
    tokenized: Annotated[
        bool,
        typer.Option(
            "--tokenized/--raw",
            help="Whether words are what whitespace separates, as for AllenNLP's elmo command, or raw text is split "
            "Penn-Treebank style. Lists of words stay as they are.",
        ),
    ] = True,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where the sentences are; by default text, or the only column."),
    ] = None,
    split: Annotated[str | None, typer.Option(metavar="NAME", help="Which split of a dataset.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Forget an unfinished run, and start again.")] = False,
) -> None:
    """Embed a corpus of any size, in constant memory, to a file that appears when it is complete.

    Vectors are in the order of the input, under their line or row number, from 0; an empty line has an empty array.
    HDF5 has the layout of AllenNLP's elmo command; Parquet holds the words too and suits large corpora best.
    The same command goes on with a run that was interrupted, except from standard input. Until the end the vectors are
    in a hidden folder beside OUT, so they need twice their room on the disk.

    \b
    Examples:
      elmo embed sentences.txt --model my-elmo --output vectors.h5 --layers all
      elmo embed reviews.csv --column review --raw --pooling mean --model my-elmo --output reviews.parquet
      torchrun --nproc_per_node 2 -m modeling_elmo.cli embed sentences.txt --model my-elmo --output vectors.parquet
    """
    from .embed_corpus import embed_corpus, how_to_read

    _quiet_transformers()
    try:
        with _one_line_errors(ElmoError, OSError):
            lines = how_to_read(output)  # also checks its extension
            report = embed_corpus(
                source,
                model,
                output,
                layers=layers,
                pooling=pooling,
                batch_words=batch_words,
                dtype=dtype,
                tokenized=tokenized,
                column=column,
                split=split,
                overwrite=overwrite,
                restart=restart,
            )
    except KeyboardInterrupt as interrupt:
        lost = "standard input cannot be read again, so nothing was kept"
        typer.echo(f"interrupted: {lost if source == '-' else GO_ON}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
    if report is None:
        return
    split_by = "whitespace (--raw splits off punctuation)" if tokenized else "the tokenizer"
    typer.echo(f"Wrote {output}: {report.sentences:,} sentences, {report.words:,} words, split by {split_by}")
    if report.empty:
        typer.echo(f"  {report.empty:,} empty, kept so that numbers stay line numbers")
    if report.in_pieces:
        typer.echo(f"  {report.in_pieces:,} longer than {batch_words:,} words, read in pieces, their vectors exact")
    if report.cut_words:
        typer.echo(f"  {report.cut_words:,} words too long for the model, which reads their first bytes only")
    if report.words_now:
        speed = report.words_now / report.seconds
        typer.echo(f"  {report.words_now:,} words in {report.seconds:,.1f} s, {speed:,.0f} words/s")
    typer.echo("\nTo read it, in Python:")
    for line in lines:
        typer.echo(f"  {line}")


@app.command(short_help="How probable a model finds sentences.")
def score(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A text file, a sentence a line, or - for standard input.")
    ],
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="A pretrained model with its softmax.", show_default=False)
    ],
    tokenized: Annotated[
        bool, typer.Option("--tokenized/--raw", help="Whether whitespace separates words, or raw text is split.")
    ] = True,
    per_word: Annotated[bool, typer.Option("--per-word", help="Show every word's log-probabilities too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write an object a line instead of a table.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Sentences computed at once.")] = 32,
) -> None:
    """Score sentences by both language models: log-probabilities and perplexities, a line each.

    A sentence's log-probability is the mean of what the forward and the backward language model give it, its end or
    beginning included. Words outside the vocabulary count as <UNK>. The perplexities of all lines together come
    last, on standard error. Empty lines are passed over.

    \b
    Examples:
      elmo score sentences.txt --model my-elmo
      echo "The bank of the river ." | elmo score - --model my-elmo --per-word
    """
    from .scoring import load_scorer, score_lines

    _quiet_transformers()
    with _one_line_errors(ElmoError, OSError):
        scorer, tokenizer = load_scorer(model)
        for line in score_lines(source, scorer, tokenizer, tokenized, per_word, as_json, batch_size):
            typer.echo(line.text, err=line.is_summary)


@app.command(short_help="Words that may stand at a place.")
def substitutes(
    sentence: Annotated[
        str,
        typer.Argument(metavar="SENTENCE", help="Text with one word in [brackets].", show_default=False),
    ],
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="A pretrained model with its softmax.", show_default=False)
    ],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many words.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Write an object a line.")] = False,
) -> None:
    """Show the words that both language models together find most probable at a place.

    Neither reads the word that is there: one reads what is before it, the other what is after it.

    \b
    Example:
      elmo substitutes "He sat on the [bank] of the river ." --model my-elmo
    """
    from .scoring import load_scorer, substitute_lines

    _quiet_transformers()
    with _one_line_errors(ElmoError, OSError):
        scorer, tokenizer = load_scorer(model)
        for line in substitute_lines(sentence, scorer, tokenizer, count, as_json):
            typer.echo(line)


@app.command(short_help="The nearest uses of a word in a corpus.")
def neighbors(
    sentence: Annotated[
        str,
        typer.Argument(metavar="SENTENCE", help="Text with one word in [brackets].", show_default=False),
    ],
    corpus: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A text file, a sentence a line; or a .jsonl, .csv or .parquet file.",
            show_default=False,
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The model; by default elmo-mini, which comes with the package."),
    ] = None,
    layer: Annotated[
        str,
        typer.Option(
            metavar="top|mix|average|0|1|2", help="What is compared: the top layer, the model's mix or another layer."
        ),
    ] = "top",
    count: Annotated[int, typer.Option(min=1, metavar="N", help="How many uses.")] = 10,
    any_word: Annotated[bool, typer.Option("--any-word", help="Not only uses of the same word.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write an object a line instead of a table.")] = False,
    index: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where indexes are kept; by default, beside the corpus.")
    ] = None,
    tokenized: Annotated[
        bool, typer.Option("--tokenized/--raw", help="Whether whitespace separates the corpus's words, or it is raw.")
    ] = True,
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where the sentences are; by default text, or the only column."),
    ] = None,
) -> None:
    """Show the uses of a word in a corpus whose vectors are nearest to the word's in a sentence.

    The first search embeds the corpus into an index, beside it or in the folder given by --index, and later ones find
    it again, as long as corpus, model and layer are the same. It takes some 0.5 KB a word for elmo-mini, and while it
    is made twice that. The same command goes on with an index that was interrupted. Neither step needs the memory for
    a whole corpus.

    \b
    Examples:
      elmo neighbors "He sat on the [bank] of the river ." --corpus sentences.txt
      elmo neighbors "They [play] chess ." --corpus novels.txt --raw --any-word --count 20 --json
    """
    from . import MINI
    from .neighbors import Uses, neighbor_lines
    from .scoring import marked_word

    _quiet_transformers()
    try:
        with _one_line_errors(ElmoError, OSError):
            marked_word(sentence)  # a mistake in it is told before the corpus is read
            uses = Uses(corpus, model or MINI, layer, index, tokenized, column)
            if uses.report is not None:
                typer.echo(f"Indexed {uses.report.words:,} words: {uses.index}", err=True)
            for line in neighbor_lines(uses.nearest(sentence, count, any_word), as_json):
                typer.echo(line)
    except KeyboardInterrupt as interrupt:
        typer.echo(f"interrupted: {GO_ON}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt


@app.command(short_help="Who did what to whom.")
def roles(
    sentence: Annotated[
        str, typer.Argument(metavar="SENTENCE", help="Text with its predicates in [brackets].", show_default=False)
    ],
    model: Annotated[
        Path,
        typer.Option(metavar="DIR", help="A model of semantic roles, a folder.", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Write an object a line.")] = False,
) -> None:
    """Show, for every predicate of a sentence, which words have which role, the predicate itself being V.

    \b
    Example:
      elmo roles "The cat [ate] the fish that Anna [bought] ." --model my-roles
    """
    from .roles import load_labeler, role_lines

    _quiet_transformers()
    with _one_line_errors(ElmoError, OSError):
        labeler, tokenizer = load_labeler(model)
        for line in role_lines(sentence, labeler, tokenizer, as_json):
            typer.echo(line)


@app.command(short_help="Write a model as an ONNX file.")
def onnx(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.", show_default=False)],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The .onnx file.", show_default=False)],
    int8: Annotated[bool, typer.Option("--int8", help="Matrices in 8 bits: smaller, less exact.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT if it exists.")] = False,
) -> None:
    """Write a model as an ONNX file, for any number of sentences of any length.

    Its inputs are the tokenizer's `char_ids` and `attention_mask`, its outputs `last_hidden_state` and `layers`
    (sentences, layers, words, numbers).

    \b
    Example:
      elmo onnx my-elmo my-elmo.onnx
    """
    from transformers import AutoModel

    from .files import load_folder
    from .onnx_elmo import export_onnx

    _quiet_transformers()
    with _one_line_errors(ElmoError, ImportError, OSError, ValueError):
        if output.is_dir() or not output.parent.is_dir():
            raise OSError(f"{output}: the output must be a file in a folder that exists")
        if output.exists() and not overwrite:
            raise FileExistsError(f"{output} exists: name another file, or pass --overwrite")
        loaded, _ = load_folder(model, AutoModel)
        export_onnx(loaded, output, int8)
    typer.echo(f"Wrote {output} ({output.stat().st_size / 1e6:,.1f} MB)")


if __name__ == "__main__":
    app()
