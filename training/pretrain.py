"""Pretrain an ELMo on text, on a laptop or a cluster.

    python -m training.pretrain tiny --train_file text.txt --validation_file held.txt --output_dir runs/tiny
    accelerate launch -m training.pretrain mini --train_file text.txt --validation_file held.txt --output_dir runs/mini
    accelerate launch -m training.pretrain runs/mini.yaml --resume_from_checkpoint last

The first argument is a recipe: a YAML file of the settings below, or the name of one in training/recipes (tiny,
low-resource, mini, small, original, english). Settings on the command line win. The result is a folder for
`from_pretrained`.
"""

import dataclasses
import json
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, gather_object, set_seed
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer
from transformers.utils import CONFIG_NAME
from transformers.utils import logging as transformers_logging

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoPreTrainedModel, ElmoTokenizer
from modeling_elmo.bilm_elmo import NUM_SPECIAL_WORDS
from modeling_elmo.card import training_card
from modeling_elmo.corpus import Corpus, open_corpus, warn_about_splitting, warn_about_text
from modeling_elmo.files import (
    BAD_INPUT,
    ElmoError,
    atomic_write,
    disk_errors,
    file_digest,
    remove_leftovers,
    replace_files,
    write_text,
)
from modeling_elmo.loading import loading_errors
from modeling_elmo.locks import one_writer
from modeling_elmo.softmax_elmo import ElmoSoftmax

from .checkpoints import check_digests, tensor_bytes
from .data import BlockReader, count_words, sample_unknown
from .processes import keep_alive_until_exit, run_script
from .run import CHANGEABLE, RESULTS_FILE, Run, find_checkpoint, read_state
from .settings import Settings, in_one_line, read_settings

# Not vocab.txt: until the run is finished, that belongs to the model that the folder may have.
VOCABULARY_FILE = "counted_vocab.txt"
CORPUS_FILE = "corpus.json"
HISTORY_FILE = "history.jsonl"
# Settings that a model card leaves out: where things are, rather than how the model was trained.
PLACES = ("output_dir", "train_file", "validation_file", "resume_from_checkpoint", "overwrite_output_dir")


def main(arguments: Sequence[str], program: str = "training.pretrain") -> int:
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    torch.sparse.check_sparse_tensor_invariants.disable()  # the only sparse tensors are our own gradients
    try:
        settings = read_settings(arguments, __doc__, program)
        with in_one_line(), disk_errors(settings.output_dir):
            accelerator = make_accelerator(settings)
        is_first = accelerator.is_main_process
        folder = Path(settings.output_dir)
        with one_writer(folder) if is_first else nullcontext(), disk_errors(folder):
            if is_first:
                remove_leftovers(folder)
            return pretrain(settings, accelerator)
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted outside of training: existing checkpoints are unchanged", file=sys.stderr)
        return 128 + signal.SIGINT


def pretrain(settings: Settings, accelerator: Accelerator) -> int:
    """Train, evaluate and write the results; return the exit code."""
    is_first = accelerator.is_main_process
    with in_one_line():
        if is_first:
            print(yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False))
        run = make_run(settings, accelerator)
    keep_alive_until_exit(run, accelerator.num_processes)
    if accelerator.log_with:
        init_trackers(accelerator, settings)
    with signals_stop(run):
        if settings.model_name_or_path and run.step == 0:
            run.evaluate()  # the perplexity that tuning has to beat
        is_complete = run.train()
    if not is_complete:
        if is_first:
            message = f"stopped after step {run.step:,}, saved: resume with --resume_from_checkpoint last"
            print(message, file=sys.stderr)
        return 128 + (run.stop_signal or signal.SIGTERM)
    results = finish(run)
    accelerator.end_training()
    if is_first:
        print(json.dumps(results, indent=1))
        print(f"\nWrote {settings.output_dir}. Next:")
        print(f"  elmo embed sentences.txt --model {settings.output_dir} --output vectors.h5")
    return 0


def init_trackers(accelerator: Accelerator, settings: Settings) -> None:
    """Start the trackers with the settings, which they take as numbers and text."""
    values = dict(vars(settings))
    for name, value in values.items():
        if not isinstance(value, (int, float)):
            values[name] = str(value)
    accelerator.init_trackers("elmo", config=values)


@contextmanager
def signals_stop(run: Run) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run after its current step, with a checkpoint."""

    def stop(number: int, _: Any) -> None:
        run.stop_signal = number

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------------------- preparation


def make_accelerator(settings: Settings) -> Accelerator:
    Path(settings.output_dir).mkdir(parents=True, exist_ok=True)
    trackers = [name for name in settings.report_to.split(",") if name not in ("", "none")]
    has_peers = int(os.environ.get("WORLD_SIZE", 1)) > 1
    return Accelerator(
        cpu=has_peers and not torch.accelerator.is_available(),  # otherwise processes on CPUs do not find each other
        mixed_precision=settings.mixed_precision,
        log_with=trackers or None,
        project_config=ProjectConfiguration(settings.output_dir, str(Path(settings.output_dir, "logs"))),
    )


def make_run(settings: Settings, accelerator: Accelerator) -> Run:
    """Prepare everything that a run needs, at its beginning or at a checkpoint."""
    checkpoint = find_checkpoint(settings)
    if checkpoint is not None:
        check_digests(checkpoint)
    training_text = choose_splitting(settings, checkpoint, accelerator.is_main_process)
    text = open_text(settings, settings.train_file, settings.train_split, settings.streaming)
    validation = None
    if settings.validation_file or settings.validation_split:
        validation = open_text(settings, settings.validation_file, settings.validation_split)
    tokenizer, corpus = make_tokenizer(settings, text, accelerator, checkpoint)
    if accelerator.is_main_process and checkpoint is None:
        warn_about_text(text, tokenizer)
    tokenizer.training_text = training_text
    if validation is not None and not has_words(validation, tokenizer):
        raise ElmoError(f"{validation.name}: the held-out text has no words")
    max_steps, epochs = settings.max_steps, None
    if settings.num_train_epochs is not None:
        assert corpus is not None  # make_tokenizer has counted it
        epochs = int(settings.num_train_epochs)
        lanes = settings.lanes * settings.gradient_accumulation_steps * accelerator.num_processes
        max_steps = math.ceil(epochs * (corpus["words"] + corpus["sentences"]) / (lanes * settings.window))
    fit_schedule(settings, max_steps, accelerator.is_main_process)
    set_seed(settings.seed)
    model = make_model(settings, tokenizer)
    model.softmax.sparse = model.draw_negatives() is not None
    model.to(accelerator.device)
    if settings.torch_compile:
        model.elmo.char_encoder.compile(dynamic=True)
    reader = BlockReader(
        text,
        tokenizer,
        settings.block_rows,
        epochs,
        settings.shuffle,
        settings.seed,
        settings.reset_states,
    )
    digests = [file_digest(file) for file in text.files] or text.identity
    run = Run(settings, accelerator, tokenizer, model, reader, validation, corpus, max_steps, digests)
    set_seed(settings.seed + 1 + accelerator.process_index)  # every process has its own dropout
    run.prepare(checkpoint)
    if accelerator.is_main_process:
        print(f"{model.elmo.num_parameters():,} parameters and a softmax over {len(tokenizer):,} words; ", end="")
        about = "about " if epochs else ""  # lanes end at sentences
        print(f"{about}{max_steps:,} steps, from step {run.step:,}")
    return run


def choose_splitting(settings: Settings, checkpoint: Path | None, is_main_process: bool) -> str:
    """Set `raw` where it is not given, as for the model that is trained further; return what the tokenizer stores."""
    earlier = None
    folder = checkpoint or settings.model_name_or_path
    if folder:
        tokenizer = load_tokenizer(folder)
        earlier = tokenizer.training_text
        if is_main_process:
            warn_about_splitting(tokenizer, None if settings.raw is None else not settings.raw)
    if settings.raw is None:
        settings.raw = earlier == "raw"
    if settings.raw:
        return "raw"
    return "treebank" if earlier == "treebank" else "whitespace"


def load_tokenizer(folder: str | Path) -> ElmoTokenizer:
    with loading_errors(folder):
        return AutoTokenizer.from_pretrained(folder)


def has_words(corpus: Corpus, tokenizer: ElmoTokenizer) -> bool:
    return any(corpus.sentences(row, tokenizer) for row in corpus)


def fit_schedule(settings: Settings, max_steps: int, is_main_process: bool) -> None:
    """Shorten a warm-up and a decay for which the run has too few steps, and say so."""
    limits = {"warmup_steps": max_steps // 10, "decay_steps": max_steps - max_steps // 10}
    for name, limit in limits.items():
        if getattr(settings, name) > max(limit, 0) and settings.warmup_steps + settings.decay_steps > max_steps:
            if is_main_process:
                message = f"`{name}` is {getattr(settings, name):,}, but the run has {max_steps:,} steps"
                print(f"warning: {message}: it is set to {limit:,}", file=sys.stderr)
            setattr(settings, name, limit)


def open_text(settings: Settings, files: Sequence[str], split: str | None, streaming: bool = False) -> Corpus:
    return open_corpus(
        files or str(settings.dataset_name),
        column=settings.column,
        split=None if files else split,
        config_name=settings.dataset_config_name,
        streaming=streaming,
        tokenized=not settings.raw,
        documents=settings.documents,
        as_dataset=True,
    )


def make_tokenizer(
    settings: Settings, text: Corpus, accelerator: Accelerator, checkpoint: Path | None
) -> tuple[ElmoTokenizer, dict[str, float] | None]:
    """Return a tokenizer with the vocabulary to predict, and the numbers of the text: of unknown words a sample's.

    The vocabulary is that of the checkpoint, of `vocab_file`, or of `model_name_or_path`, in this order. Otherwise it
    is counted and written to the output folder, where --vocab_file can find it.
    """
    if checkpoint is not None:
        return AutoTokenizer.from_pretrained(checkpoint), read_state(checkpoint)["corpus"]
    width = settings.elmo_config().get("max_characters_per_token", 50)
    tokenizer = ElmoTokenizer(vocab_file=settings.vocab_file, max_characters_per_token=width)
    if settings.model_name_or_path and not settings.vocab_file:
        tokenizer = load_tokenizer(settings.model_name_or_path)
    is_given = len(tokenizer) > NUM_SPECIAL_WORDS
    if is_given and settings.max_steps > 0:
        return tokenizer, {"unknown": sample_unknown(text, tokenizer)}
    folder = Path(settings.output_dir)
    if accelerator.is_main_process:
        words, sentences = count_words(text, tokenizer)
        if not words:
            raise ElmoError("the text has no words: there is nothing to train on")
        if not is_given:
            counted = ElmoTokenizer.from_counts(
                words, settings.min_count, settings.max_vocab_size, max_characters_per_token=width
            )
            if len(counted) == NUM_SPECIAL_WORDS:
                raise ElmoError(f"no word of the text occurs `min_count`={settings.min_count} times: set a lower one")
            with atomic_write(folder / VOCABULARY_FILE) as scratch, TemporaryDirectory() as made:
                copyfile(counted.save_vocabulary(made)[0], scratch)
            tokenizer = counted
        known = sum(words[word] for word in tokenizer.get_vocab())
        numbers = {
            "words": words.total(),
            "types": len(words),
            "sentences": sentences,
            "unknown": 1 - known / words.total(),
        }
        write_text(folder / CORPUS_FILE, json.dumps(numbers) + "\n")
    accelerator.wait_for_everyone()
    if not is_given:
        tokenizer = ElmoTokenizer(vocab_file=folder / VOCABULARY_FILE, max_characters_per_token=width)
    return tokenizer, json.loads((folder / CORPUS_FILE).read_text(encoding="utf-8"))


def make_model(settings: Settings, tokenizer: ElmoTokenizer) -> ElmoForPreTraining:
    """Return a new model, or that of `model_name_or_path` with a softmax for this vocabulary."""
    overrides = {**settings.elmo_config(), "vocab_size": len(tokenizer)}
    if settings.model_name_or_path is not None:
        return tune_model(settings.model_name_or_path, overrides, tokenizer)
    try:
        return ElmoForPreTraining(ElmoConfig(**overrides))
    except (ValueError, TypeError, StrictDataclassError) as error:  # the message names the setting, over some lines
        raise ElmoError(" ".join(str(error).split())) from error


@torch.no_grad()
def tune_model(folder: str, overrides: dict[str, Any], tokenizer: ElmoTokenizer) -> ElmoForPreTraining:
    """Load a model to train it further. Words that its vocabulary and softmax already had keep their rows."""
    with loading_errors(folder):
        config = ElmoConfig.from_pretrained(folder)
    if config.spelling == "dictionary":
        raise ElmoError(f"{folder} reads words by dictionary: only models that spell them in bytes can be tuned")
    for name in CHANGEABLE:  # the rest is part of the model
        if name in overrides:
            setattr(config, name, overrides[name])
    old_words = load_tokenizer(folder).get_vocab()
    with loading_errors(folder):
        model, loading = ElmoForPreTraining.from_pretrained(folder, config=config, output_loading_info=True)
    missing = set(loading["missing_keys"])
    for name in missing - {"softmax.weight", "softmax.bias"}:
        raise ElmoError(f"{folder}: the weights lack `{name}`")
    words, old_softmax = tokenizer.get_vocab(), model.softmax
    if not missing and words == old_words:
        return model
    model.softmax = ElmoSoftmax(len(words), config.projection_dim)
    model.softmax.set_initial_weights()
    model.config.vocab_size = len(words)
    known = []
    if not missing and len(old_softmax.bias) == len(old_words):
        known = [word for word in words if word in old_words]
    new_rows, old_rows = [words[word] for word in known], [old_words[word] for word in known]
    model.softmax.weight[new_rows] = old_softmax.weight[old_rows]
    model.softmax.bias[new_rows] = old_softmax.bias[old_rows]
    print(f"Created a softmax for {len(words):,} words; {len(known):,} of them keep their row of {folder}")
    return model


# ------------------------------------------------------------------------------------------------------------ results


def finish(run: Run) -> dict[str, Any]:
    """Evaluate for the last time and write the final folder. Return the results."""
    results: dict[str, Any] = dict(run.evaluate())
    loss = None
    for entry in run.history:
        loss = entry.get("train_loss", loss)
        if entry["step"] == 0 and run.step > 0 and "eval_perplexity" in entry:
            results["eval_perplexity_before"] = entry["eval_perplexity"]
    results |= {
        "train_steps": run.step,
        "train_words": run.predictions,
        "train_seconds": run.seconds,
        "train_words_per_second": run.predictions / run.seconds if run.seconds else 0.0,
        "train_loss": loss,
        "parameters": run.model.elmo.num_parameters(),
        "vocab_size": len(run.tokenizer),
        "peak_memory_mb": max(gather_object([peak_memory_mb()])),
        "processes": run.accelerator.num_processes,
    }
    if run.corpus is not None:
        results["train_unknown"] = run.corpus["unknown"]
    if run.accelerator.is_main_process:
        model = run.model if run.settings.save_softmax else run.model.elmo
        # A folder without a config does not load, so the files of two models are never taken for one.
        with replace_files(run.folder, CONFIG_NAME, tensor_bytes(model.state_dict())) as scratch:
            run.tokenizer.save_pretrained(scratch)
            model.save_pretrained(scratch)
            write_text(scratch / "README.md", model_card(run.settings, results, model, run.tokenizer))
            write_text(scratch / RESULTS_FILE, json.dumps(results, indent=1) + "\n")
            write_text(scratch / HISTORY_FILE, "".join(json.dumps(entry) + "\n" for entry in run.history))
            draw_curve(run.history, scratch / "perplexity.png")
    run.accelerator.wait_for_everyone()
    return results


def peak_memory_mb() -> float:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def draw_curve(history: list[dict[str, Any]], path: Path) -> None:
    """Plot held-out perplexity over the words read, if matplotlib is installed and there are two evaluations."""
    entries = [entry for entry in history if "eval_perplexity" in entry]
    if len(entries) < 2:
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    millions = [entry["words"] / 1e6 for entry in entries]
    for side in ("forward", "backward"):
        axes.plot(millions, [entry[f"eval_perplexity_{side}"] for entry in entries], marker=".", label=side)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter("{x:,.0f}")
    axes.set_xlabel("million words read")
    axes.set_ylabel("held-out perplexity, full softmax")
    axes.legend()
    figure.savefig(path, dpi=130)


def model_card(
    settings: Settings, results: dict[str, Any], model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer
) -> str:
    """Return the model's card, from the run's own settings and results."""
    text = ", ".join(Path(file).name for file in settings.train_file) or settings.dataset_name
    held_out = ", ".join(Path(file).name for file in settings.validation_file) or settings.validation_split
    start = ""
    if settings.model_name_or_path:
        start = f", starting from the weights of {Path(settings.model_name_or_path).name}"
    origin = (
        f"The model was trained on {text}{start}.\n\n"
        f"Perplexities are of {held_out or 'no held-out text'}, under the full softmax over the vocabulary; words "
        "outside it count as one."
    )
    recipe = {}
    for field in dataclasses.fields(Settings):
        value = getattr(settings, field.name)
        if field.name not in PLACES and value != field.default and value not in ([], None):
            recipe[field.name] = value
    recipe["config"] = settings.elmo_config()
    recipe.pop("config_overrides", None)
    return training_card(model, tokenizer, "ELMo", origin, results, recipe)


if __name__ == "__main__":
    run_script(main)
