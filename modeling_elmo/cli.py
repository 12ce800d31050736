"""The `elmo` command. Each of its commands imports what only it needs, so that help is there at once."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from .cli_arguments import (
    MODEL,
    MODELS,
    RESUME,
    TEXT_FILES,
    AsJson,
    Column,
    Count,
    MarkedSentence,
    Model,
    OutputFolder,
    Overwrite,
    ScoringModel,
    Source,
    Split,
    Tokenized,
    command_errors,
    import_script,
)
from .files import MINI_NAME, ElmoError, one_line, report_interrupts

# Without markup, examples in the help texts keep their lines and brackets.
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(requested: bool) -> None:
    if requested:
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
    See what it does, or start with the small English model in the package:
      elmo demo
      elmo neighbors "He sat on the [bank] of the river ." --corpus sentences.txt
      elmo embed sentences.txt --output vectors.h5
    \b
    or with a published checkpoint, an options.json and a weights file:
      elmo convert options.json weights.hdf5 my-elmo
      elmo embed sentences.txt --model my-elmo --output vectors.h5
    \b
    or, in Python:
      from transformers import AutoModel
      model = AutoModel.from_pretrained("my-elmo", trust_remote_code=True)
    """


@app.command(short_help="Convert a published checkpoint for from_pretrained.")
def convert(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE", help="The checkpoint: one path, or two files.")],
    output_dir: OutputFolder,
    vocab: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The words of its softmax, one per line; no vector needs them.")
    ] = None,
    options: Annotated[
        Path | None, typer.Option(metavar="FILE", help="AllenNLP: the ELMo's options.json, if not a published one.")
    ] = None,
    mix: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="AllenNLP: which of its learned layer mixes to take [0].")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Convert a published checkpoint to a folder for from_pretrained.

    SOURCE is the options.json and the weights.hdf5 of bilm-tf, AllenNLP or SeqVec, or a folder with both; the folder
    of an ELMoForManyLangs model; or an AllenNLP task model with an ELMo inside, fine-tuned or not, as model.tar.gz,
    folder or weights.th. The output is written whole or not at all.

    \b
    Examples:
      elmo convert options.json weights.hdf5 my-elmo
      elmo convert options.json weights.hdf5 my-elmo --vocab vocab.txt --overwrite
      elmo convert zht.model my-chinese-elmo
      elmo convert model.tar.gz my-elmo --mix 1
    """
    notes: list[str] = []
    with command_errors():
        from .convert_elmo import convert_checkpoint, find_sources

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
    typer.echo(f"Wrote {folder}\n\nNext, in Python:\n  from transformers import AutoModel, AutoTokenizer")
    for name, kind in (("tokenizer", "AutoTokenizer"), ("model", "AutoModel")):
        typer.echo(f"  {name} = {kind}.from_pretrained({str(folder)!r}, trust_remote_code=True)")


@app.command(short_help="Convert a folder back to an original checkpoint.")
def export(
    model_dir: Annotated[str, typer.Argument(metavar=MODEL, help=f"{MODELS}.")],
    output_dir: OutputFolder,
    overwrite: Overwrite = False,
) -> None:
    """Export the biLM of a folder to the original format, for programs that read that.

    OUT_DIR gets options.json, weights.hdf5 and, if the model has a vocabulary, vocab.txt. It is the exact inverse of
    `elmo convert`. The format has no layer mix, no softmax and no task layers.

    \b
    Example:
      elmo export my-elmo my-elmo-bilm
    """
    with command_errors():
        from .convert_elmo import export_checkpoint

        folder = export_checkpoint(model_dir, output_dir, overwrite=overwrite)
    command = ["elmo", "convert", str(folder / "options.json"), str(folder / "weights.hdf5"), "OUT_DIR"]
    vocabulary = folder / "vocab.txt"
    if vocabulary.is_file():
        command += ["--vocab", str(vocabulary)]
    typer.echo(f"Wrote {folder}\n\nThe way back:\n  {shlex.join(command)}")


@app.command(short_help="Compute vectors for a whole corpus.")
def embed(
    source: Source,
    output: Annotated[Path, typer.Option(metavar="OUT", help="The file to write: .h5 or .hdf5, or .parquet.")],
    model: Model = MINI_NAME,
    layers: Annotated[
        str, typer.Option(metavar="all|average|top|mix|0,1,2", help="The layers, or how they become one vector.")
    ] = "mix",
    pooling: Annotated[
        str, typer.Option(metavar="none|mean|max", help="Over the words of a sentence, for one vector each.")
    ] = "none",
    batch_words: Annotated[
        int, typer.Option(metavar="N", help="Words computed at once. A longer sentence is read in pieces, exactly.")
    ] = 2048,
    dtype: Annotated[str, typer.Option(metavar="float32|float16", help="The type of the numbers.")] = "float32",
    tokenized: Tokenized = None,
    column: Column = None,
    split: Split = None,
    overwrite: Overwrite = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an unfinished run and start again.")] = False,
) -> None:
    """Embed a corpus of any size, in constant memory, into a file that appears once it is complete.

    Vectors are in the order of the input, under their line or row number, from 0; an empty line has an empty array.
    HDF5 has the layout of AllenNLP's elmo command; Parquet also holds the words and suits large corpora best. The same
    command resumes an interrupted run, except from standard input. Until the end the vectors are in a hidden folder
    beside OUT, so they need twice their space on disk.

    \b
    Examples:
      elmo embed sentences.txt --output vectors.h5 --layers all
      elmo embed reviews.csv --column review --raw --pooling mean --model my-elmo --output reviews.parquet
      torchrun --nproc_per_node 2 -m modeling_elmo.cli embed sentences.txt --model my-elmo --output vectors.parquet
    """
    lost = "standard input cannot be read again, so nothing was kept"
    with command_errors(lost if source == "-" else RESUME):
        from .embed_corpus import READERS, embed_corpus

        lines = READERS.get(output.suffix.lower())
        if lines is None:
            raise ElmoError(f"{output}: the output must end in {', '.join(READERS)}")
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
    if report is None:
        return
    split_by = "whitespace (--raw splits off punctuation)" if report.tokenized else "the tokenizer"
    typer.echo(f"Wrote {output}: {report.sentences:,} sentences, {report.words:,} words, split by {split_by}")
    for number, explanation in (
        (report.empty, "empty, kept so that numbers stay line numbers"),
        (report.in_pieces, f"longer than {batch_words:,} words, read in pieces, their vectors exact"),
        (report.cut_words, "words too long for the model, which reads only their first bytes"),
        (report.words_now, f"words in {report.seconds:,.1f} s, {report.speed:,.0f} words/s"),
    ):
        if number:
            typer.echo(f"  {number:,} {explanation}")
    typer.echo(f"\nTo read it, in Python:\n{lines.format(str(output))}")


@app.command(short_help="Compute how probable sentences are.")
def score(
    source: Source,
    model: ScoringModel = MINI_NAME,
    tokenized: Tokenized = None,
    column: Column = None,
    split: Split = None,
    per_word: Annotated[bool, typer.Option("--per-word", help="Show the log-probabilities of every word.")] = False,
    as_json: AsJson = False,
) -> None:
    """Score sentences by both language models: log-probability and perplexity, one line per sentence.

    The log-probability of a sentence is the mean of what the forward and the backward language model give it, its end
    or beginning included. Words outside the vocabulary are scored as <UNK>, which is more probable than most words:
    they are counted for each sentence and marked with --per-word. The perplexity of all sentences together and the
    share of unknown words come last, on standard error. Empty lines are skipped.

    \b
    Examples:
      elmo score sentences.txt --model my-elmo
      echo "The bank of the river ." | elmo score - --per-word
    """
    with command_errors("the sentences after these were not scored"):
        from .scoring import load_scorer
        from .surprisal import score_lines

        scorer, tokenizer = load_scorer(model)
        for line in score_lines(source, scorer, tokenizer, tokenized, per_word, as_json, column, split):
            typer.echo(line)


@app.command(short_help="Compute how surprising every word is.")
def surprisal(
    source: Source,
    output: Annotated[
        Path | None, typer.Option(metavar="OUT", help="The .tsv, .jsonl or .parquet file to write, if not to stdout.")
    ] = None,
    model: ScoringModel = MINI_NAME,
    states: Annotated[
        str, typer.Option(metavar="fresh|carried", help="Read each sentence by itself, or after those before it.")
    ] = "fresh",
    paragraphs: Annotated[
        bool, typer.Option("--paragraphs", help="A line or row is a paragraph: split it into sentences.")
    ] = False,
    output_format: Annotated[
        str | None, typer.Option("--format", metavar="tsv|jsonl|parquet", help="The format, if not by OUT's ending.")
    ] = None,
    tokenized: Tokenized = None,
    column: Column = None,
    split: Split = None,
    overwrite: Overwrite = False,
) -> None:
    """Compute the surprisal of every word in bits: -log2 p forward, backward, and the mean of both.

    Forward is given the words before in the sentence, backward the words after. A word comes with its line or row, its
    sentence there, its place in the row, all from 0, and its characters in the row, from start up to end; unknown
    words are scored as <UNK>. With carried states both language models also know the sentences before, as in training,
    up to the last empty line. Any corpus is read in constant memory. OUT appears once it is complete.

    \b
    Examples:
      elmo surprisal sentences.txt --output surprisal.tsv
      elmo surprisal novel.txt --raw --paragraphs --states carried --output novel.parquet
      echo "The bank of the river." | elmo surprisal - --raw --format jsonl
    """
    with command_errors("nothing was written" if output else "the words after these were not scored"):
        from .files import check_output_file
        from .scoring import load_scorer
        from .surprisal import TEXT_FORMATS, Summary, choose_format, score_corpus, word_entries, write_surprisals

        chosen = choose_format(output, output_format)
        if output is not None:
            check_output_file(output, overwrite)
        scorer, tokenizer = load_scorer(model)
        summary = Summary()
        scored = score_corpus(
            source, scorer, tokenizer, summary, tokenized, column, split, states, paragraphs, output is not None
        )
        entries = word_entries(scored, source)
        if output is not None:
            write_surprisals(entries, output, chosen)
            typer.echo(f"Wrote {output}: {summary.words:,} words")
        else:
            for line in TEXT_FORMATS[chosen](entries):
                typer.echo(line)
    typer.echo(str(summary), err=True)


@app.command(short_help="List words that fit in place of another.")
def substitutes(
    sentence: MarkedSentence,
    model: ScoringModel = MINI_NAME,
    count: Count = 10,
    plain_product: Annotated[
        bool, typer.Option("--plain-product", help="Do not divide by how frequent a word is.")
    ] = False,
    as_json: AsJson = False,
    tokenized: Tokenized = None,
) -> None:
    """List the words that both language models together find most probable in place of a word.

    Neither model reads the word itself: one reads the words before it, the other the words after it. The product of
    their probabilities is divided by how frequent a word is, since it counts that twice.

    \b
    Example:
      elmo substitutes "He sat on the [bank] of the river ."
    """
    with command_errors():
        from .scoring import load_scorer, substitute_lines

        scorer, tokenizer = load_scorer(model)
        for line in substitute_lines(sentence, scorer, tokenizer, count, as_json, tokenized, not plain_product):
            typer.echo(line)


@app.command(short_help="Find the nearest uses of a word in a corpus.")
def neighbors(
    sentence: MarkedSentence,
    corpus: Annotated[Path, typer.Option(metavar="FILE", help=f"{TEXT_FILES}.")],
    model: Model = MINI_NAME,
    layer: Annotated[
        str, typer.Option(metavar="top|mix|average|0|1|2", help="The layer whose vectors are compared.")
    ] = "top",
    count: Count = 10,
    any_word: Annotated[bool, typer.Option("--any-word", help="Show uses of other words too.")] = False,
    as_json: AsJson = False,
    index: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to keep indexes; by default, beside the corpus.")
    ] = None,
    tokenized: Tokenized = None,
    column: Column = None,
) -> None:
    """Show the uses of a word in a corpus whose vectors are nearest to that of the word in a sentence.

    The first search embeds the corpus into an index, about 0.5 KB per word for elmo-mini, and twice that while it is
    made. Later searches find it as long as corpus, model and layer are the same. The same command resumes an index
    that was interrupted.

    \b
    Examples:
      elmo neighbors "He sat on the [bank] of the river ." --corpus sentences.txt
      elmo neighbors "They [play] chess ." --corpus novels.txt --raw --any-word --count 20 --json
    """
    with command_errors(RESUME):
        from .neighbors import Uses, neighbor_lines
        from .scoring import marked_word

        marked_word(sentence)  # reports a mistake before the corpus is read
        uses = Uses(corpus, model, layer, index, tokenized, column)
        if uses.report is not None:
            typer.echo(f"Indexed {uses.report.words:,} words: {uses.index}", err=True)
        for line in neighbor_lines(uses.nearest(sentence, count, any_word), as_json):
            typer.echo(line)


@app.command(short_help="Rank words by how much their meaning changed.")
def change(
    sources: Annotated[
        list[str], typer.Argument(metavar="OLD NEW", help=f"{TEXT_FILES}, for each period; or one table of uses.")
    ],
    output: Annotated[Path, typer.Option(metavar="OUT", help="The .tsv file to write.")],
    model: Model = MINI_NAME,
    corpora: Annotated[
        bool, typer.Option("--corpora", help="Each corpus is LABEL=FILE, two or more in the order of time.")
    ] = False,
    words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The words to rank, one per line; by default, see --min-count.")
    ] = None,
    min_count: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Without --words: rank all words that occur N times in each period."),
    ] = 20,
    lemmas: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What word forms count as: form, tab, lemma on each line.")
    ] = None,
    max_uses: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most uses of a word and period; of more, a sample.")
    ] = 100,
    seed: Annotated[int, typer.Option(metavar="N", help="Which sample is drawn.")] = 0,
    measure: Annotated[str, typer.Option(metavar="apd|prt", help="The score that ranks.")] = "apd",
    layer: Annotated[str, typer.Option(metavar="top|mix|0|1|2", help="The layer that ranks.")] = "top",
    picture: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the uses of the 20 words that changed most.")
    ] = None,
    tokenized: Annotated[
        bool | None,
        typer.Option(
            "--tokenized/--raw",
            help="Split text at whitespace alone, or Penn-Treebank style.",
            show_default="as each file looks",
        ),
    ] = None,
    overwrite: Overwrite = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an unfinished run and start again.")] = False,
) -> None:
    """Rank words by how much their uses differ between the corpora of two periods, or of the first and last of more.

    APD is the average cosine distance of a use in one period and one in the other, PRT that of the periods' mean
    vectors. OUT has both by every layer, 95 % bootstrap intervals, the typical use of each period and the uses that
    moved most; of more than two periods also the change from each to the next. A table of uses is a .tsv file with
    the columns lemma, grouping or date, context, start and end. The same command resumes an interrupted run.

    \b
    Examples:
      elmo change 1850.txt 2000.txt --words words.txt --output changes.tsv --picture pictures
      elmo change --corpora 1850=a.txt 1900=b.txt 1950=c.txt --min-count 50 --output changes.tsv
      elmo change uses.tsv.gz --measure prt --layer 1 --output changes.tsv
    """
    with command_errors(RESUME):
        from .change import describe_report, measure_change
        from .change_uses import name_periods, read_lemmas, read_words

        is_table = len(sources) == 1 and not corpora
        report = measure_change(
            sources[0] if is_table else name_periods(sources, corpora),
            model,
            output,
            words=None if words is None else read_words(words),
            min_count=min_count,
            lemmas=None if lemmas is None else read_lemmas(lemmas),
            max_uses=max_uses,
            seed=seed,
            measure=measure,
            layer=layer,
            tokenized=tokenized,
            pictures=picture,
            overwrite=overwrite,
            restart=restart,
        )
    for period, missing in report.left_out.items():
        typer.echo(f"warning: no use in {period}, left out: {one_line(', '.join(missing))}", err=True)
    typer.echo(f"Wrote {output}")
    for line in describe_report(report, measure):
        typer.echo(f"  {line}")


@app.command(short_help="Write an HTML page to explore a corpus's words.")
def page(
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help=f"{TEXT_FILES}; a .tsv with the columns word, sense, sentence.")
    ],
    output: Annotated[Path, typer.Option(metavar="PAGE", help="The .html file to write.")],
    words: Annotated[
        str | None,
        typer.Option(metavar="WORD,WORD,…", help="Words whose uses are at hand at once; by default, frequent ones."),
    ] = None,
    model: Model = MINI_NAME,
    example: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SENTENCE", help="A sentence that the page offers, a word in [brackets]; may be repeated."
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Draw N sentences, those with one of the words first.")
    ] = None,
    tokenized: Tokenized = None,
    column: Column = None,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML file with a corpus, a model and all that is needed to run it, for any browser, without a network.

    A reader types a sentence and clicks a word: the page shows its nearest uses in the corpus, as elmo neighbors does,
    and all its uses on a map, layer by layer; with a pretrained model, how surprised its language models are, and what
    they would put in the word's place. Of a .tsv with the columns word, sense and sentence, the map has the senses.

    \b
    Examples:
      elmo page sentences.txt --output senses.html --words bank,present,play
      elmo page novels.txt --output novels.html --sample 2000 --model my-elmo
      elmo page senses.tsv --output senses.html --example "He sat on the [bank] of the river ."
    """
    with command_errors():
        from .files import check_output_file

        if output.suffix.lower() not in (".html", ".htm"):
            raise ElmoError(f"{output}: the output must end in .html")
        check_output_file(output, overwrite)
        from .page import describe_page, write_page

        report = write_page(corpus, output, model, words, example or (), sample, tokenized, column)
    typer.echo(f"Wrote {output} ({report.size / 1e6:,.1f} MB): open it with any browser")
    for line in describe_page(report):
        typer.echo(f"  {line}")


@app.command(short_help="Show who did what to whom.")
def roles(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="Text with its predicates in [brackets].")],
    model: Annotated[
        str, typer.Option(metavar=MODEL, help="A model of semantic roles: a folder, or a name on the Hub.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show, for every predicate of a sentence, which words have which role. The predicate itself has the role V.

    \b
    Example:
      elmo roles "The cat [ate] the fish that Anna [bought] ." --model my-roles
    """
    with command_errors():
        from .loading import load_folder
        from .modeling_elmo import ElmoForSemanticRoleLabeling
        from .scoring import role_lines

        labeler, tokenizer = load_folder(model, ElmoForSemanticRoleLabeling)
        for line in role_lines(sentence, labeler, tokenizer, as_json):
            typer.echo(line)


@app.command(short_help="Write a model as an ONNX file.")
def onnx(
    model: Annotated[str, typer.Argument(metavar=MODEL, help=f"{MODELS}.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The .onnx file to write.")],
    int8: Annotated[bool, typer.Option("--int8", help="Store matrices in 8 bits: smaller, less exact.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a model, with its task layers, as an ONNX file for any number of texts of any length.

    Its inputs are those of the tokenizer's outputs that the model reads: `char_ids` and `attention_mask`, `input_ids`
    for word vectors, `token_type_ids` for pairs. Its outputs are the `logits` of sequence classification, tagging and
    multiple choice, the `start_logits` and `end_logits` of question answering, and otherwise the biLM's
    `last_hidden_state` and `layers` (texts, layers, words, numbers). Semantic roles and coreference are refused.

    \b
    Examples:
      elmo onnx my-elmo my-elmo.onnx
      elmo onnx my-tagger my-tagger.onnx --int8
    """
    with command_errors():
        from .files import check_output_file
        from .onnx import describe_graph, export_onnx, load_exportable

        check_output_file(output, overwrite)
        loaded = load_exportable(model)
        graph = export_onnx(loaded, output, int8)
    typer.echo(f"Wrote {output} ({output.stat().st_size / 1e6:,.1f} MB)")
    for line in describe_graph(loaded, graph, int8):
        typer.echo(f"  {line}")


# ------------------------------------------------------------------ the scripts of training/ and hub_upload.py


def add_script(command: str, name: str, summary: str) -> None:
    """Add a command that passes its arguments on to a script, `--help` included."""

    def run(context: typer.Context) -> None:
        with command_errors("nothing was started"):
            script = import_script(name)
            processes = import_script("training.processes")
            processes.run_script(script.main, context.args, f"elmo {command}")

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
    app.command(command, short_help=summary, add_help_option=False, context_settings=settings)(run)


add_script("pretrain", "training.pretrain", "Pretrain an ELMo on text, or tune one.")
add_script("finetune", "training.finetune", "Train a task model on top of ELMo.")
add_script("compare", "training.compare", "Compare places and mixes of ELMo on a task.")
add_script("evaluate", "training.evaluate", "Measure what a biLM has learned.")
add_script("upload", "hub_upload", "Share a model folder on the Hugging Face Hub.")
add_script("demo", "training.demo", "Show what ELMo does, in a minute or two.")


def run() -> None:
    """Run the command."""
    report_interrupts()
    app()


if __name__ == "__main__":
    run()
