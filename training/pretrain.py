"""Pretrains an ELMo on text, on a laptop or a cluster.

    python -m training.pretrain tiny --train_file text.txt --validation_file held.txt --output_dir runs/tiny
    accelerate launch -m training.pretrain mini --train_file text.txt --validation_file held.txt --output_dir runs/mini
    accelerate launch -m training.pretrain runs/mini.yaml --resume_from_checkpoint last

The first argument is a recipe: a YAML file of the settings below, or the name of one in training/recipes (tiny, mini,
small, original). Settings on the command line win. The result is a folder for `from_pretrained`.
"""

import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, gather_object, set_seed
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from transformers import AutoTokenizer, get_scheduler
from transformers.utils import logging as transformers_logging

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.bilm_elmo import NUM_SPECIAL_WORDS
from modeling_elmo.corpus import Corpus, open_corpus
from modeling_elmo.files import BAD_INPUT, ElmoError, first_line
from modeling_elmo.softmax_elmo import Negatives
from training.data import (
    IGNORED,
    BlockReader,
    LaneWindows,
    Place,
    Position,
    Window,
    count_words,
    prefetch,
)
from training.processes import keep_to_the_end, run_script
from training.settings import Settings, in_one_line, read_settings

CHECKPOINT = "checkpoint-"
STATE_FILE = "pretraining_state.json"
VOCABULARY_FILE = "vocab.txt"
CORPUS_FILE = "corpus.json"
HISTORY_FILE = "history.jsonl"
RESULTS_FILE = "all_results.json"
# Settings that a run cannot change when it goes on, since what follows would not be the same run.
FIXED = (
    "reset_states",
    "window",
    "lanes",
    "gradient_accumulation_steps",
    "block_rows",
    "optimizer",
    "seed",
    "streaming",
)
# Of Adagrad, as in the original.
INITIAL_ACCUMULATOR = 1.0

States = tuple[Tensor, Tensor]


# ------------------------------------------------------------------------------------------------------- preparation


def write_whole(path: Path, text: str) -> None:
    """The file appears when it is complete."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def open_text(settings: Settings, validation: bool = False) -> Corpus | None:
    files = settings.validation_file if validation else settings.train_file
    split = settings.validation_split if validation else settings.train_split
    if validation and not files and not split:
        return None
    return open_corpus(
        files or str(settings.dataset_name),
        column=settings.column,
        split=None if files else split,
        config_name=settings.dataset_config_name,
        streaming=settings.streaming and not validation,
        tokenized=not settings.raw,
        documents=settings.documents,
        as_dataset=True,
    )


def make_tokenizer(
    settings: Settings, corpus: Corpus, accelerator: Accelerator, checkpoint: Path | None
) -> tuple[ElmoTokenizer, dict[str, int] | None]:
    """A tokenizer with the vocabulary to predict and, where the text was counted, its words and sentences.

    The vocabulary is that of the checkpoint, of `vocab_file`, or of the folder to go on from, in this order; else it
    is counted and written to the output folder, to be used again with --vocab_file.
    """
    if checkpoint is not None:
        about = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
        return AutoTokenizer.from_pretrained(checkpoint), about["corpus"]
    width = settings.elmo_config().get("max_characters_per_token", 50)
    tokenizer = ElmoTokenizer(vocab_file=settings.vocab_file, max_characters_per_token=width)
    if settings.model_name_or_path and not settings.vocab_file:
        try:
            tokenizer = AutoTokenizer.from_pretrained(settings.model_name_or_path)
        except (OSError, ValueError) as error:
            raise ElmoError(f"{settings.model_name_or_path}: there is no model: {first_line(error)}") from error
    has_words = len(tokenizer) > NUM_SPECIAL_WORDS
    if has_words and settings.max_steps > 0:
        return tokenizer, None
    folder = Path(settings.output_dir)
    if accelerator.is_main_process:
        counts = count_words(corpus, tokenizer)
        if not counts.words:
            raise ElmoError("the text has no words: there is nothing to train on")
        if not has_words:
            made = ElmoTokenizer.from_counts(
                counts.words, settings.min_count, settings.max_vocab_size, max_characters_per_token=width
            )
            with TemporaryDirectory(dir=folder) as scratch:
                (path,) = made.save_vocabulary(scratch)
                os.replace(path, folder / VOCABULARY_FILE)
        numbers = {"words": counts.words.total(), "types": len(counts.words), "sentences": counts.sentences}
        write_whole(folder / CORPUS_FILE, json.dumps(numbers) + "\n")
    accelerator.wait_for_everyone()
    if not has_words:
        tokenizer = ElmoTokenizer(vocab_file=folder / VOCABULARY_FILE, max_characters_per_token=width)
    return tokenizer, json.loads((folder / CORPUS_FILE).read_text(encoding="utf-8"))


def make_model(settings: Settings, tokenizer: ElmoTokenizer) -> ElmoForPreTraining:
    """A new model, or the folder's; its softmax has a row for each word of the vocabulary.

    Words that the folder's own vocabulary and softmax already had keep their rows.
    """
    overrides = settings.elmo_config()
    overrides.pop("vocab_size", None)
    if settings.model_name_or_path is None:
        try:
            return ElmoForPreTraining(ElmoConfig(**overrides, vocab_size=len(tokenizer)))
        except (ValueError, TypeError, StrictDataclassError) as error:  # what the config refuses, it names
            raise ElmoError(" ".join(str(error).split())) from error
    folder = settings.model_name_or_path
    config = ElmoConfig.from_pretrained(folder)
    if config.spelling == "dictionary":
        raise ElmoError(f"{folder} reads words by dictionary: only models that spell them in bytes can be tuned")
    had = AutoTokenizer.from_pretrained(folder)
    for name in ("num_negatives", "dropout"):  # what training may change
        if name in overrides:
            setattr(config, name, overrides[name])
    # A folder without a softmax may name a vocabulary size that its tokenizer does not have.
    config.vocab_size = len(tokenizer)
    old, loading = ElmoForPreTraining.from_pretrained(
        folder, config=config, output_loading_info=True, ignore_mismatched_sizes=True
    )
    if missing := [name for name in loading["missing_keys"] if not name.startswith("softmax.")]:
        raise ElmoError(f"{folder}: the weights lack `{missing[0]}`")
    same = not any("softmax" in str(name) for name in (*loading["missing_keys"], *loading["mismatched_keys"]))
    if same and had.get_vocab() == tokenizer.get_vocab():
        return old
    copied = _copy_softmax(Path(folder), had, old, tokenizer)
    print(f"A softmax for {len(tokenizer):,} words was made; {copied:,} of them keep their row of {folder}")
    return old


@torch.no_grad()
def _copy_softmax(folder: Path, had: ElmoTokenizer, model: ElmoForPreTraining, tokenizer: ElmoTokenizer) -> int:
    """Fills the model's softmax: with initial values, and the folder's rows where it has any for a word."""
    model.softmax.weight.normal_(std=model.softmax.weight.shape[1] ** -0.5)
    model.softmax.bias.copy_(model.softmax.initial_bias())
    try:
        source = ElmoForPreTraining.from_pretrained(folder, output_loading_info=True)
    except (OSError, RuntimeError, ValueError):
        return 0
    old, loading = source
    if any("softmax" in name for name in loading["missing_keys"]) or len(old.softmax.weight) != len(had):
        return 0
    vocabulary = had.get_vocab()
    pairs = [(new, vocabulary[word]) for word, new in tokenizer.get_vocab().items() if word in vocabulary]
    new_rows, old_rows = (torch.tensor(rows) for rows in zip(*pairs, strict=True))
    model.softmax.weight[new_rows] = old.softmax.weight[old_rows]
    model.softmax.bias[new_rows] = old.softmax.bias[old_rows]
    return len(pairs)


def make_optimizers(
    settings: Settings, model: ElmoForPreTraining, steps: int
) -> tuple[list[torch.optim.Optimizer], list[Any]]:
    """For the biLM and for the softmax, whose gradients are those of the sampled rows, and their schedules."""
    softmax = list(model.softmax.parameters())
    bilm = [parameter for parameter in model.parameters() if all(parameter is not other for other in softmax)]
    rate = settings.learning_rate
    softmax_rate = rate if settings.softmax_learning_rate is None else settings.softmax_learning_rate
    optimizers: list[torch.optim.Optimizer]
    if settings.optimizer == "adagrad":
        optimizers = [
            torch.optim.Adagrad(parameters, lr=lr, initial_accumulator_value=INITIAL_ACCUMULATOR)
            for parameters, lr in ((bilm, rate), (softmax, softmax_rate))
        ]
    else:
        groups = [
            {"params": [p for p in bilm if p.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in bilm if p.ndim <= 1], "weight_decay": 0.0},
        ]
        of_rows = torch.optim.SparseAdam if model.softmax.sparse else torch.optim.Adam
        optimizers = [torch.optim.AdamW(groups, lr=rate), of_rows(softmax, lr=softmax_rate)]
    own = {"num_decay_steps": settings.decay_steps} if settings.decay_steps else None
    schedules = [
        get_scheduler(settings.lr_scheduler_type, optimizer, settings.warmup_steps, steps, own)
        for optimizer in optimizers
    ]
    return optimizers, schedules


# -------------------------------------------------------------------------------------------------------------- run


class Run:
    """A pretraining run: what is saved in a checkpoint, and the loop that changes it."""

    def __init__(self, settings: Settings, accelerator: Accelerator) -> None:
        self.settings = settings
        self.accelerator = accelerator
        self.folder = Path(settings.output_dir)
        self.step = 0
        self.predictions = 0  # of each language model, by all processes
        self.seconds = 0.0  # of training, without evaluation and saving
        self.history: list[dict[str, Any]] = []
        self.position: Position | None = None
        self.carried: list[States | None] = [None] * settings.gradient_accumulation_steps
        self.stop_signal: int | None = None

        checkpoint = find_checkpoint(settings)
        corpus = open_text(settings)
        assert corpus is not None
        self.validation = open_text(settings, validation=True)
        self.tokenizer, self.corpus = make_tokenizer(settings, corpus, accelerator, checkpoint)
        if settings.max_steps > 0:
            self.max_steps, epochs = settings.max_steps, None
        else:
            assert self.corpus is not None
            epochs = int(settings.num_train_epochs)
            predictions = self.corpus["words"] + self.corpus["sentences"]
            lanes = settings.lanes * settings.gradient_accumulation_steps * accelerator.num_processes
            self.max_steps = math.ceil(epochs * predictions / (lanes * settings.window))
        set_seed(settings.seed)
        self.model = make_model(settings, self.tokenizer)
        self.model.softmax.sparse = self.model.draw_negatives() is not None
        self.model.to(accelerator.device)
        if settings.torch_compile:
            self.model.elmo.char_encoder.compile(dynamic=True)
        self.optimizers, self.schedules = make_optimizers(settings, self.model, self.max_steps)
        set_seed(settings.seed + 1 + accelerator.process_index)  # dropout of each process is its own
        if checkpoint is not None:
            self._load(checkpoint)
        elif accelerator.is_main_process:  # what else is there was to be overwritten, now that the run can begin
            for old in sorted_checkpoints(self.folder):
                shutil.rmtree(old)
        accelerator.wait_for_everyone()
        # The softmax's gradients are few rows, which `_share_softmax_gradients` sums up.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            self.model, [f"softmax.{name}" for name, _ in self.model.softmax.named_parameters()]
        )
        self.prepared = accelerator.prepare(self.model)
        self.reader = BlockReader(
            corpus,
            self.tokenizer,
            settings.block_rows,
            epochs,
            settings.shuffle,
            settings.seed,
            accelerator.process_index,
            accelerator.num_processes,
            settings.reset_states,
        )

    # Data

    def _empty_window(self) -> Window:
        """For a process whose text has ended while others go on: it takes part without adding anything."""
        char_ids = torch.from_numpy(self.tokenizer.words_to_char_ids([str(self.tokenizer.bos_token)]))
        return Window(char_ids, torch.zeros(2, 1, 1, dtype=torch.long), torch.full((2, 1, 1), IGNORED))

    # Training

    def train(self) -> str:
        """Trains to the end, or until told to stop; returns how it ended: "done" or "stopped"."""
        settings, accelerator = self.settings, self.accelerator
        self.prepared.train()
        groups = settings.gradient_accumulation_steps
        bar = tqdm(
            total=self.max_steps,
            initial=self.step,
            desc="Training",
            unit=" steps",
            disable=None if accelerator.is_main_process else True,
        )
        recent: list[tuple[float, float]] = []
        recent_words, recent_seconds = 0, 0.0
        must_stop = False
        saved_at = self.step
        lanes = LaneWindows(self.reader, settings.lanes, settings.window, groups, self.position)
        with bar, prefetch(lanes, settings.workers) as windows:
            while self.step < self.max_steps or settings.max_steps <= 0:
                begun = time.perf_counter()
                taken = next(windows, None)
                words, must_stop = self._meet(taken)
                if must_stop or words == 0:
                    break
                losses = self._one_step(taken, words)
                if not all(map(math.isfinite, losses)):
                    raise ElmoError(
                        f"the loss is {losses[0]:.3g} forward, {losses[1]:.3g} backward at step {self.step + 1}: "
                        "training diverged. Lower --learning_rate, add --warmup_steps or lower --max_grad_norm, and "
                        "go on from the last checkpoint with --resume_from_checkpoint last"
                    )
                self.step += 1
                self.predictions += words
                elapsed = time.perf_counter() - begun
                self.seconds += elapsed
                recent.append(losses)
                recent_words, recent_seconds = recent_words + words, recent_seconds + elapsed
                bar.update()
                if self.step % settings.logging_steps == 0:
                    forward, backward = (sum(side) / len(recent) for side in zip(*recent, strict=True))
                    self._record(
                        train_loss=(forward + backward) / 2,
                        train_loss_forward=forward,
                        train_loss_backward=backward,
                        learning_rate=self.schedules[0].get_last_lr()[0],
                        words_per_second=recent_words / recent_seconds,
                    )
                    bar.set_postfix(
                        loss=f"{(forward + backward) / 2:.3f}", words_s=f"{recent_words / recent_seconds:,.0f}"
                    )
                    if accelerator.is_main_process and bar.disable:  # no terminal, so lines instead of a bar
                        print(
                            f"step {self.step:,} of {self.max_steps:,}: loss {forward:.3f} forward, {backward:.3f} "
                            f"backward, {recent_words / recent_seconds:,.0f} words/s",
                            flush=True,
                        )
                    recent, recent_words, recent_seconds = [], 0, 0.0
                if settings.eval_steps and self.step % settings.eval_steps == 0 and self.step < self.max_steps:
                    self.evaluate()
                if settings.save_steps and self.step % settings.save_steps == 0:
                    self.save()
                    saved_at = self.step
        # At the end too: the last evaluation may take long, or be interrupted.
        if saved_at != self.step and (must_stop or settings.save_steps):
            self.save()
        return "stopped" if must_stop else "done"

    def _meet(self, taken: list[Window] | None) -> tuple[int, bool]:
        """The predictions of a step and whether to stop, over all processes."""
        mine = torch.tensor(
            [sum(window.predictions for window in taken or ()), int(self.stop_signal is not None)],
            device=self.accelerator.device,
        )
        words, stops = self.accelerator.reduce(mine, reduction="sum").tolist()
        return words, stops > 0

    def _one_step(self, taken: list[Window] | None, words: int) -> tuple[float, float]:
        """One update. Returns the forward and the backward loss, means over the predictions of all processes."""
        accelerator = self.accelerator
        device = accelerator.device
        windows = taken or [self._empty_window()]
        negatives = self._negatives(windows)
        losses = torch.zeros(2, device=device)
        for number, window in enumerate(windows):
            is_last = number == len(windows) - 1
            # Lanes that end keep their place, so that their states stay where they are.
            mask = window.labels[0] != IGNORED if window.predictions else torch.ones_like(window.labels[0])
            carries = taken is not None
            with nullcontext() if is_last else accelerator.no_sync(self.prepared):
                output = self.prepared(
                    char_ids=window.char_ids.to(device),
                    word_index=window.word_index.to(device),
                    labels=window.labels.to(device),
                    attention_mask=mask.to(device),
                    segments=None if window.segments is None else window.segments.to(device),
                    states=self.carried[number] if carries else None,
                    negatives=negatives,
                    num_items_in_batch=words / accelerator.num_processes,
                )
                accelerator.backward(output.loss)
            if carries:
                hidden, cell = output.states
                self.carried[number] = (hidden.detach(), cell.detach())
            losses += torch.stack([output.forward_loss.detach(), output.backward_loss.detach()])
            self.position = window.position if taken is not None else self.position
        self._share_softmax_gradients()
        self._clip_gradients()
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            # Epochs may take a few more steps than was reckoned: the schedule then stays where it ends.
            if self.step + 1 < self.max_steps:
                schedule.step()
        forward, backward = accelerator.reduce(losses, reduction="mean").tolist()
        return forward, backward

    def _negatives(self, windows: list[Window]) -> Negatives | None:
        """The same sample in every process, from seed and step alone, and the words that any of them predicts."""
        generator = torch.Generator().manual_seed((self.settings.seed << 32) + self.step)
        negatives = self.model.draw_negatives(generator)
        if negatives is None or self.accelerator.num_processes == 1:
            return negatives
        targets = torch.cat([window.labels.flatten() for window in windows]).unique().to(self.accelerator.device)
        padded = self.accelerator.pad_across_processes(targets, pad_index=IGNORED)
        everyones = self.accelerator.gather(padded)
        return negatives._replace(targets=everyones[everyones != IGNORED].unique())

    def _share_softmax_gradients(self) -> None:
        """The mean over processes. All have sampled the same rows, so only the values travel."""
        for parameter in self.model.softmax.parameters():
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                gradient = parameter.grad.coalesce()
                values = self.accelerator.reduce(gradient.values(), reduction="mean")
                parameter.grad = torch.sparse_coo_tensor(
                    gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
                )
            else:
                parameter.grad = self.accelerator.reduce(parameter.grad, reduction="mean")

    def _clip_gradients(self) -> None:
        """Shortens the gradient of all parameters together to `max_grad_norm`."""
        if self.settings.max_grad_norm <= 0:
            return
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in values]))
        factor = (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for value in values:
            value.mul_(factor)

    # Evaluation

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Perplexities of the held-out text under the full softmax: forward, backward, and of the mean loss."""
        if self.validation is None:
            return {}
        settings, accelerator, model = self.settings, self.accelerator, self.model
        reader = BlockReader(
            self.validation,
            self.tokenizer,
            settings.block_rows,
            epochs=1,
            shuffle=False,
            rank=accelerator.process_index,
            processes=accelerator.num_processes,
            reset_states=settings.eval_reset_states or settings.reset_states,
        )
        model.eval()
        totals = torch.zeros(3, dtype=torch.float64)
        states: States | None = None
        bar = tqdm(
            desc="Evaluating",
            unit=" words",
            unit_scale=True,
            leave=False,
            disable=None if accelerator.is_main_process else True,
        )
        begun = time.perf_counter()
        lanes = LaneWindows(reader, settings.eval_lanes, settings.window)
        with bar, prefetch(lanes, settings.workers) as windows:
            for (window,) in windows:
                output = model(
                    char_ids=window.char_ids.to(accelerator.device),
                    word_index=window.word_index.to(accelerator.device),
                    labels=window.labels.to(accelerator.device),
                    segments=None if window.segments is None else window.segments.to(accelerator.device),
                    states=states,
                    num_items_in_batch=1,
                )
                states = output.states
                totals += torch.tensor([output.forward_loss.item(), output.backward_loss.item(), window.predictions])
                bar.update(window.predictions)
        model.train()
        forward, backward, count = accelerator.reduce(totals.to(accelerator.device), reduction="sum").tolist()
        if not count:
            raise ElmoError("the held-out text has no words")
        forward, backward = forward / count, backward / count
        results = {
            "eval_perplexity": math.exp((forward + backward) / 2),
            "eval_perplexity_forward": math.exp(forward),
            "eval_perplexity_backward": math.exp(backward),
            "eval_loss": (forward + backward) / 2,
            "eval_words": count,
            "eval_words_per_second": count / (time.perf_counter() - begun),
        }
        self._record(**results)
        if accelerator.is_main_process:
            both, left, right = (results[f"eval_perplexity{side}"] for side in ("", "_forward", "_backward"))
            tqdm.write(
                f"step {self.step:,}: held-out perplexity {both:.2f} (forward {left:.2f}, backward {right:.2f})"
            )
        return results

    # Records and checkpoints

    def _record(self, **values: float) -> None:
        """An entry of the history, and of the trackers."""
        entry = {"step": self.step, "words": self.predictions, "seconds": round(self.seconds, 2), **values}
        self.history.append(entry)
        self.accelerator.log(values, step=self.step)

    def save(self) -> None:
        """A checkpoint: a folder that appears when it is complete."""
        accelerator = self.accelerator
        folder = self.folder / f"{CHECKPOINT}{self.step}"
        scratch = self.folder / f".{CHECKPOINT}{self.step}.tmp"
        if accelerator.is_main_process:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            self.tokenizer.save_pretrained(scratch)
            self.model.save_pretrained(scratch)
            states = {
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "schedules": [schedule.state_dict() for schedule in self.schedules],
            }
            torch.save(states, scratch / "optimizers.pt")
            about = {
                "step": self.step,
                "predictions": self.predictions,
                "seconds": self.seconds,
                "processes": accelerator.num_processes,
                "corpus": self.corpus,
                "settings": {name: getattr(self.settings, name) for name in FIXED},
                "history": self.history,
            }
            write_whole(scratch / STATE_FILE, json.dumps(about))
        accelerator.wait_for_everyone()
        mine = {
            "position": None if self.position is None else _as_lists(self.position),
            "carried": self.carried,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state() if accelerator.device.type == "cuda" else None,
        }
        torch.save(mine, scratch / f"process-{accelerator.process_index}.pt")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(scratch, folder)
            for old in sorted_checkpoints(self.folder)[: -max(self.settings.save_total_limit, 1)]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def _load(self, folder: Path) -> None:
        about = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        if about["processes"] != self.accelerator.num_processes:
            raise ElmoError(
                f"{folder} was written by {about['processes']} processes: it cannot go on with "
                f"{self.accelerator.num_processes}"
            )
        for name, value in about["settings"].items():
            if name in FIXED and getattr(self.settings, name) != value:
                raise ElmoError(
                    f"{folder} was trained with {name}={value}: it cannot go on with {getattr(self.settings, name)}"
                )
        self.step, self.predictions, self.seconds = about["step"], about["predictions"], about["seconds"]
        self.history = about["history"]
        loaded = ElmoForPreTraining.from_pretrained(folder)
        self.model.load_state_dict(loaded.state_dict())
        states = torch.load(folder / "optimizers.pt", map_location="cpu", weights_only=True)
        rates = [schedule.base_lrs for schedule in self.schedules]  # of this run's settings
        for part, saved in ((self.optimizers, states["optimizers"]), (self.schedules, states["schedules"])):
            for target, state in zip(part, saved, strict=True):
                target.load_state_dict(state)
        for optimizer, schedule, chosen in zip(self.optimizers, self.schedules, rates, strict=True):
            schedule.base_lrs = chosen
            for group, rate, share in zip(optimizer.param_groups, chosen, schedule.lr_lambdas, strict=True):
                group["initial_lr"], group["lr"] = rate, rate * share(schedule.last_epoch)
            schedule._last_lr = [group["lr"] for group in optimizer.param_groups]
        mine = torch.load(
            folder / f"process-{self.accelerator.process_index}.pt",
            map_location="cpu",
            weights_only=True,
        )
        self.position = None if mine["position"] is None else _as_state(mine["position"])
        device = self.accelerator.device
        self.carried = [
            None if states is None else (states[0].to(device), states[1].to(device)) for states in mine["carried"]
        ]
        torch.set_rng_state(mine["random"])
        if mine["random_cuda"] is not None:
            torch.cuda.set_rng_state(mine["random_cuda"])

    def finish(self) -> dict[str, Any]:
        """The last evaluation, the final folder, the results; returns the results."""
        before = next((e for e in self.history if e["step"] == 0 and "eval_perplexity" in e), None)
        results: dict[str, Any] = dict(self.evaluate())
        if before is not None:
            results["eval_perplexity_before"] = before["eval_perplexity"]
        peak = gather_object([peak_memory_mb()])
        results |= {
            "train_steps": self.step,
            "train_words": self.predictions,
            "train_seconds": self.seconds,
            "train_words_per_second": self.predictions / self.seconds if self.seconds else 0.0,
            "train_loss": next((e["train_loss"] for e in reversed(self.history) if "train_loss" in e), None),
            "parameters": sum(parameter.numel() for parameter in self.model.elmo.parameters()),
            "vocab_size": len(self.tokenizer),
            "peak_memory_mb": max(peak),
            "processes": self.accelerator.num_processes,
        }
        if self.accelerator.is_main_process:
            scratch = self.folder / ".final"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            self.tokenizer.save_pretrained(scratch)
            (self.model if self.settings.save_softmax else self.model.elmo).save_pretrained(scratch)
            write_whole(scratch / "README.md", model_card(self.settings, results))
            write_whole(scratch / RESULTS_FILE, json.dumps(results, indent=1) + "\n")
            write_whole(scratch / HISTORY_FILE, "".join(json.dumps(entry) + "\n" for entry in self.history))
            draw_curve(self.history, scratch / "perplexity.png")
            for file in sorted(scratch.iterdir()):
                os.replace(file, self.folder / file.name)
            scratch.rmdir()
        self.accelerator.wait_for_everyone()
        return results


def _as_lists(state: Position) -> list[Any]:
    return [state.epoch, state.block, [None if place is None else list(place) for place in state.lanes]]


def _as_state(lists: list[Any]) -> Position:
    epoch, block, lanes = lists
    return Position(epoch, block, tuple(None if place is None else Place(*place) for place in lanes))


def sorted_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    found = [path for path in folder.glob(f"{CHECKPOINT}*") if path.name.removeprefix(CHECKPOINT).isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(CHECKPOINT)))


def find_checkpoint(settings: Settings) -> Path | None:
    """The checkpoint to go on from, if any. A folder with checkpoints or a model is not begun anew unasked."""
    checkpoints = sorted_checkpoints(Path(settings.output_dir))
    wanted = settings.resume_from_checkpoint
    if wanted is None:
        if checkpoints and not settings.overwrite_output_dir:
            raise ElmoError(
                f"{settings.output_dir} has checkpoints: go on with --resume_from_checkpoint last, or begin anew with "
                "--overwrite_output_dir, which removes them"
            )
        if Path(settings.output_dir, RESULTS_FILE).is_file() and not settings.overwrite_output_dir:
            raise ElmoError(
                f"{settings.output_dir} has a finished model: name another --output_dir, or begin anew with "
                "--overwrite_output_dir"
            )
        return None
    if wanted == "last":
        if not checkpoints:
            raise ElmoError(f"{settings.output_dir} has no checkpoint to go on from")
        return checkpoints[-1]
    if not Path(wanted, STATE_FILE).is_file():
        raise ElmoError(f"{wanted}: no checkpoint of this program")
    return Path(wanted)


def peak_memory_mb() -> float:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def draw_curve(history: list[dict[str, Any]], path: Path) -> None:
    """Held-out perplexity over the words read, where there is matplotlib and more than one evaluation."""
    entries = [entry for entry in history if "eval_perplexity" in entry]
    try:
        import matplotlib
    except ImportError:
        return
    if len(entries) < 2:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, label in (("forward", "forward"), ("backward", "backward")):
        axes.plot(
            [entry["words"] / 1e6 for entry in entries],
            [entry[f"eval_perplexity_{name}"] for entry in entries],
            marker=".",
            label=label,
        )
    axes.set_yscale("log")
    for formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatter("{x:,.0f}")
    axes.set_xlabel("million words read")
    axes.set_ylabel("held-out perplexity, full softmax")
    axes.legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def model_card(settings: Settings, results: dict[str, Any]) -> str:
    """What the model is, from the run's own settings and results."""
    text = ", ".join(Path(file).name for file in settings.train_file) or settings.dataset_name
    held_out = ", ".join(Path(file).name for file in settings.validation_file) or settings.validation_split
    rows = [
        f"| {name} | {value:,.2f} |" if isinstance(value, float) else f"| {name} | {value} |"
        for name, value in results.items()
    ]
    recipe = {
        name: value
        for name, value in dataclasses.asdict(settings).items()
        if name
        not in ("output_dir", "train_file", "validation_file", "resume_from_checkpoint", "overwrite_output_dir")
        and value != next(f for f in dataclasses.fields(Settings) if f.name == name).default
        and value not in ([], None)
    }
    recipe["config"] = settings.elmo_config()
    recipe.pop("config_overrides", None)
    origin = (
        f", beginning with the weights of {Path(settings.model_name_or_path).name}"
        if settings.model_name_or_path
        else ""
    )
    return f"""---
library_name: transformers
tags:
- elmo
- feature-extraction
---

# ELMo

Contextual word vectors from a bidirectional LSTM language model, trained on {text}{origin}.

```python
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
vectors = model(**tokenizer("The bank of the river.", return_tensors="pt")).last_hidden_state
```

## Results

Perplexities are of {held_out or "no held-out text"}, under the full softmax over the vocabulary; words outside it
count as one.

| | |
|---|---|
{chr(10).join(rows)}

## Recipe

```yaml
{yaml.safe_dump(recipe, sort_keys=False).strip()}
```
"""


@contextmanager
def signals_stop(run: Run) -> Iterator[None]:
    """While it lasts, Ctrl-C and SIGTERM make the run save and end after the step it is in."""

    def stop(number: int, _: Any) -> None:
        run.stop_signal = number

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str]) -> int:
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    torch.sparse.check_sparse_tensor_invariants.disable()  # sparse gradients are ours and the optimizer's
    try:
        settings = read_settings(arguments, __doc__)
        trackers = [name for name in settings.report_to.split(",") if name and name != "none"]
        several = int(os.environ.get("WORLD_SIZE", 1)) > 1
        with in_one_line():
            Path(settings.output_dir).mkdir(parents=True, exist_ok=True)
            accelerator = Accelerator(
                cpu=several and not torch.accelerator.is_available(),  # else processes on CPUs do not find each other
                mixed_precision=settings.mixed_precision,
                log_with=trackers or None,
                project_config=ProjectConfiguration(
                    settings.output_dir, logging_dir=str(Path(settings.output_dir, "logs"))
                ),
            )
            if accelerator.is_main_process:
                print(yaml.safe_dump(dataclasses.asdict(settings), sort_keys=False))
            run = Run(settings, accelerator)
        keep_to_the_end(run, accelerator.num_processes)
        if trackers:
            flat = {k: v if isinstance(v, (int, float, str, bool)) else str(v) for k, v in vars(settings).items()}
            accelerator.init_trackers("elmo", config=flat)

        if accelerator.is_main_process:
            model = run.model
            print(
                f"{sum(p.numel() for p in model.elmo.parameters()):,} parameters and a softmax of "
                f"{model.softmax.weight.numel() + model.softmax.bias.numel():,} over {len(run.tokenizer):,} words; "
                f"{run.max_steps:,} steps, from step {run.step:,}"
            )
        with signals_stop(run):
            if settings.model_name_or_path and run.step == 0:
                run.evaluate()  # what tuning has to beat
            how = run.train()
        if how == "stopped":
            if accelerator.is_main_process:
                print(
                    f"stopped after step {run.step:,}, saved: go on with --resume_from_checkpoint last",
                    file=sys.stderr,
                )
            return 128 + (run.stop_signal or signal.SIGTERM)
        results = run.finish()
        accelerator.end_training()
    except ElmoError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted outside of training: checkpoints, if any, are as they were", file=sys.stderr)
        return 128 + signal.SIGINT
    if accelerator.is_main_process:
        print(json.dumps(results, indent=1))
        print(
            f"\nWrote {settings.output_dir}. Next:\n"
            f"  elmo embed sentences.txt --model {settings.output_dir} --output vectors.h5"
        )
    return 0


if __name__ == "__main__":
    run_script(main)
