"""A pretraining run: its steps, its evaluations and its checkpoints.

A checkpoint is a folder `checkpoint-STEP` with the model, the tokenizer, the optimizers, the position in the text and,
for every process, the states of its lanes and its random generator. A run that resumes from it ends with the same
weights, bit for bit, as one that was never interrupted. For another number of processes, lanes are dealt out again.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from transformers import get_scheduler
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.corpus import Corpus
from modeling_elmo.files import (
    SECONDS_BETWEEN_LINES,
    ElmoError,
    atomic_write,
    disk_errors,
    read_json,
    remove_folder,
    write_text,
)
from modeling_elmo.softmax_elmo import Negatives

from .checkpoints import (
    CHECKPOINT,
    check_optimizer,
    read_tensors,
    reading,
    sorted_checkpoints,
    step_of,
    tensor_bytes,
    write_digests,
    write_tensors,
)
from .data import IGNORED, BlockReader, LaneWindows, Position, Step, Window, prefetch
from .settings import Settings

STATE_FILE = "pretraining_state.json"
OPTIMIZERS_FILE = "optimizers.pt"
RESULTS_FILE = "all_results.json"
# Settings that cannot change when a run resumes, since it would no longer be the same run.
FIXED = (
    *("reset_states", "window", "block_rows", "shuffle", "seed", "streaming"),
    *("raw", "documents", "optimizer", "loss_scale"),
)
# Settings that make the lanes of a process. They may change if the number of all lanes does not.
LANE_SETTINGS = ("lanes", "gradient_accumulation_steps")
# Settings of the model that may change when its training continues.
CHANGEABLE = ("num_negatives", "dropout")
# Of a run, what every checkpoint has.
PROGRESS = ("step", "predictions", "seconds", "corpus", "history", "position")
# Where Adagrad's sums start, as in the original.
ACCUMULATOR = 1.0
# Lanes of an evaluation, in all processes together.
EVAL_LANES = 32

States = tuple[Tensor, Tensor]


def find_checkpoint(settings: Settings) -> Path | None:
    """Return the checkpoint to resume from, if any. Refuse to overwrite checkpoints or a model unless asked to."""
    folder = Path(settings.output_dir)
    checkpoints = sorted_checkpoints(folder)
    chosen = settings.resume_from_checkpoint
    if chosen == "last":
        if not checkpoints:
            raise ElmoError(f"{folder} has no checkpoint to resume from")
        return checkpoints[-1]
    if chosen is not None:
        if not Path(chosen, STATE_FILE).is_file():
            raise ElmoError(f"{chosen}: not a checkpoint: {STATE_FILE} is missing")
        return Path(chosen)
    if not settings.overwrite_output_dir:
        remedy = "choose another --output_dir, or start again with --overwrite_output_dir"
        if checkpoints:
            raise ElmoError(f"{folder} has checkpoints: resume with --resume_from_checkpoint last, {remedy}")
        if (folder / RESULTS_FILE).is_file() and (folder / CONFIG_NAME).is_file():
            raise ElmoError(f"{folder} has a finished model: {remedy}")
    return None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says of the run as a whole."""
    with reading(checkpoint / STATE_FILE):
        state = read_json(checkpoint / STATE_FILE)
        for name in (*PROGRESS, "settings", "processes", "text"):
            if not isinstance(state, dict) or name not in state:
                raise ValueError(f"`{name}` is missing")
        return state


def process_file(number: int) -> str:
    """Return the name of the file with the state of a process."""
    return f"process-{number}.pt"


def make_optimizers(settings: Settings, model: ElmoForPreTraining) -> list[torch.optim.Optimizer]:
    """Return one optimizer for the biLM and one for the softmax, whose gradients are those of the sampled rows."""
    rate = settings.learning_rate
    if settings.optimizer == "adagrad":
        parts = (model.elmo, model.softmax)
        return [torch.optim.Adagrad(part.parameters(), rate, initial_accumulator_value=ACCUMULATOR) for part in parts]
    matrices = [parameter for parameter in model.elmo.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.elmo.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    softmax_class = torch.optim.SparseAdam if model.softmax.sparse else torch.optim.Adam
    return [torch.optim.AdamW(groups, rate, fused=True), softmax_class(model.softmax.parameters(), rate)]


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def carry_on(window: Window, before: States | None, after: States) -> States:
    """Return the states of lanes after a window. If all lanes had ended, they read padding: that is forgotten."""
    if window.predictions:
        return after[0].detach(), after[1].detach()
    return before or (torch.zeros_like(after[0]), torch.zeros_like(after[1]))


@dataclass
class Run:
    """A pretraining run, at its beginning or, once it is prepared, at a checkpoint."""

    settings: Settings
    accelerator: Accelerator
    tokenizer: ElmoTokenizer
    model: ElmoForPreTraining
    reader: BlockReader
    validation: Corpus | None
    corpus: dict[str, float] | None  # the share of unknown words; if they were counted, all words and sentences
    max_steps: int  # of the schedule; runs by epoch may take a few more
    text: Any = None  # digests of the text, or None where that has none
    step: int = 0
    predictions: int = 0  # of each language model, by all processes
    seconds: float = 0.0  # of training, without evaluating and saving
    history: list[dict[str, Any]] = field(default_factory=list)
    position: Position | None = None
    stop_signal: int | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.folder = Path(settings.output_dir)
        self.carried: list[States | None] = [None] * settings.gradient_accumulation_steps
        self.optimizers = make_optimizers(settings, self.model)
        decay = {"num_decay_steps": settings.decay_steps} if settings.decay_steps else None
        schedule = get_scheduler(
            settings.lr_scheduler_type, self.optimizers[0], settings.warmup_steps, self.max_steps, decay
        )
        self.rate_factor = schedule.lr_lambdas[0]  # of a step

    def prepare(self, checkpoint: Path | None) -> None:
        """Load a checkpoint, or remove those that may be overwritten, and distribute the model."""
        if checkpoint is not None:
            self.load(checkpoint)
        elif self.accelerator.is_main_process:
            for old in sorted_checkpoints(self.folder):
                remove_folder(old)
        self.accelerator.wait_for_everyone()
        self._set_learning_rate()
        # The gradients of the softmax are a few rows, which `_share_softmax_gradients` averages.
        softmax = [f"softmax.{name}" for name, _ in self.model.softmax.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, softmax)
        self.prepared = self.accelerator.prepare(self.model)

    # ------------------------------------------------------------------------------------------------------ training

    def train(self) -> bool:
        """Train to the last step, or until a signal arrives. Return whether the run is complete."""
        settings = self.settings
        self.prepared.train()
        lanes = LaneWindows(
            self.reader,
            settings.lanes,
            settings.window,
            settings.gradient_accumulation_steps,
            self.position,
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        losses: list[Tensor] = []  # of the steps since the last entry of the history
        recent: list[tuple[int, float]] = []  # their predictions and seconds
        must_stop = False
        saved_at = self.step
        bar = self._progress_bar(desc="Training", unit=" steps", total=self.max_steps, initial=self.step)
        with bar, prefetch(lanes, settings.workers, self.accelerator.device) as steps:
            while self.step < self.max_steps or settings.max_steps <= 0:
                begun = time.perf_counter()
                step = next(steps, None)  # None in all processes at once
                must_stop = self._must_stop()
                if must_stop or step is None:
                    break
                losses.append(self.train_step(step))
                self.step += 1
                must_log = self.step % settings.logging_steps == 0 or self.step == settings.max_steps
                must_save = settings.save_steps > 0 and self.step % settings.save_steps == 0
                values = self._read_losses(losses) if must_log or must_save else []
                elapsed = time.perf_counter() - begun
                self._set_learning_rate()
                self.predictions += step.predictions
                self.seconds += elapsed
                recent.append((step.predictions, elapsed))
                bar.update()
                if must_log:
                    self._log(values, recent)
                    losses, recent = [], []
                if settings.eval_steps and self.step % settings.eval_steps == 0 and self.step < self.max_steps:
                    self.evaluate()
                if must_save:
                    self.save()
                    saved_at = self.step
        values = self._read_losses(losses)
        if values and not must_stop:
            self._log(values, recent)
            saved_at = -1  # a checkpoint of this step lacks the entry
        # Save at the end too: the last evaluation may take long, or be interrupted.
        if saved_at != self.step and (must_stop or settings.save_steps):
            self.save()
        elif self.accelerator.is_main_process:
            self._remove_oldest()  # which a run that was killed after its last checkpoint had no time for
        return not must_stop

    def _progress_bar(self, **options: Any) -> tqdm:
        disable = None if self.accelerator.is_main_process else True  # None: only in a terminal
        return tqdm(disable=disable, **options)

    def _set_learning_rate(self) -> None:
        """Set the learning rate of the next step. Steps beyond those of the schedule keep its last one."""
        factor = self.rate_factor(min(self.step, self.max_steps - 1))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * factor

    def _must_stop(self) -> bool:
        """Return whether a signal has reached any of the processes."""
        if self.accelerator.num_processes == 1:
            return self.stop_signal is not None
        own = torch.tensor(self.stop_signal is not None, dtype=torch.long, device=self.accelerator.device)
        return bool(self.accelerator.reduce(own, reduction="sum"))

    def _read_losses(self, losses: list[Tensor]) -> list[list[float]]:
        """Return the losses of the latest steps, means over all processes. This waits for the device."""
        if not losses:
            return []
        values = self.accelerator.reduce(torch.stack(losses), reduction="mean").tolist()
        for number, pair in enumerate(values, self.step - len(values) + 1):
            if not math.isfinite(sum(pair)):
                raise ElmoError(
                    f"training diverged at step {number}: resume from the last checkpoint with a lower "
                    "--learning_rate or --max_grad_norm"
                )
        return values

    def train_step(self, step: Step) -> Tensor:
        """Make one update. Return the forward and the backward loss, to be averaged over all processes."""
        accelerator, device = self.accelerator, self.accelerator.device
        windows = step.windows
        negatives = self._sample_negatives(windows)
        losses = torch.zeros(2, device=device)
        for number, window in enumerate(windows):
            is_last = number == len(windows) - 1
            with nullcontext() if is_last else accelerator.no_sync(self.prepared):
                output = self.prepared(
                    **window.model_inputs(device),
                    states=self.carried[number],
                    negatives=negatives,
                    num_items_in_batch=step.predictions / accelerator.num_processes,
                )
                accelerator.backward(output.loss * self.settings.loss_scale)
            losses += torch.stack([output.forward_loss.detach(), output.backward_loss.detach()])
            self.carried[number] = carry_on(window, self.carried[number], output.states)
        self.position = step.position
        self._share_softmax_gradients()
        self._clip_gradients()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return losses

    def _sample_negatives(self, windows: list[Window]) -> Negatives | None:
        """Draw the same sample in every process, from seed and step, and add the words that any of them predicts."""
        if not self.model.softmax.sparse:
            return None
        targets = torch.cat([window.labels.flatten() for window in windows]).unique()
        if self.accelerator.num_processes > 1:
            padded = self.accelerator.pad_across_processes(targets.to(self.accelerator.device), pad_index=IGNORED)
            targets = self.accelerator.gather(padded).cpu()
        generator = torch.Generator().manual_seed((self.settings.seed << 32) + self.step)
        return self.model.draw_negatives(generator, targets[targets != IGNORED])

    def _share_softmax_gradients(self) -> None:
        """Average over processes. All have sampled the same rows, so only values are exchanged."""
        for parameter in self.model.softmax.parameters():
            gradient = parameter.grad
            assert gradient is not None
            if gradient.is_sparse:
                gradient = gradient.coalesce()
                values = self.accelerator.reduce(gradient.values(), reduction="mean")
                parameter.grad = torch.sparse_coo_tensor(
                    gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False
                )
            else:
                parameter.grad = self.accelerator.reduce(gradient, reduction="mean")

    def _clip_gradients(self) -> None:
        """Clip the norm of all gradients together; torch's function does not take sparse ones."""
        if self.settings.max_grad_norm <= 0:
            return
        values = []
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
        norm = torch.nn.utils.get_total_norm(values)
        factor = (self.settings.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for value in values:
            value.mul_(factor)

    def _log(self, losses: list[list[float]], recent: list[tuple[int, float]]) -> None:
        """Record the mean losses and the speed of the latest steps."""
        forward, backward = np.mean(losses, axis=0).tolist()
        words, seconds = np.mean(recent, axis=0).tolist()
        speed = words / seconds
        self._record(
            train_loss=(forward + backward) / 2,
            train_loss_forward=forward,
            train_loss_backward=backward,
            learning_rate=self.optimizers[0].param_groups[0]["lr"],
            words_per_second=speed,
        )
        losses = f"loss {forward:.3f} forward, {backward:.3f} backward"
        left = format_duration(max(self.max_steps - self.step, 0) * seconds)
        self._print(f"step {self.step:,} of {self.max_steps:,}: {losses}, {speed:,.0f} words/s, {left} left")

    def _print(self, line: str) -> None:
        """Print a line above the progress bar, in the main process."""
        if self.accelerator.is_main_process:
            tqdm.write(line)
            sys.stdout.flush()

    def _record(self, **values: float) -> None:
        """Add an entry to the history and to the trackers."""
        entry = {"step": self.step, "words": self.predictions, "seconds": round(self.seconds, 2), **values}
        self.history.append(entry)
        self.accelerator.log(values, step=self.step)

    # ---------------------------------------------------------------------------------------------------- evaluation

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return perplexities of the held-out text under the full softmax: forward, backward, and of the mean loss."""
        if self.validation is None:
            return {}
        settings, accelerator = self.settings, self.accelerator
        resets = settings.eval_reset_states or settings.reset_states
        reader = replace(self.reader, corpus=self.validation, epochs=1, shuffle=False, reset_states=resets)
        processes = accelerator.num_processes
        lanes = LaneWindows(
            reader,
            math.ceil(EVAL_LANES / processes),
            settings.window,
            rank=accelerator.process_index,
            processes=processes,
        )
        self.model.eval()
        totals = torch.zeros(4, dtype=torch.float64)
        states: States | None = None
        begun = time.perf_counter()
        with self._evaluation_progress() as advance, prefetch(lanes, settings.workers, accelerator.device) as steps:
            for step in steps:
                (window,) = step.windows
                output = self.model(**window.model_inputs(accelerator.device), states=states, num_items_in_batch=1)
                states = carry_on(window, states, output.states)
                unknown = (window.labels[0] == self.tokenizer.unk_token_id).sum()
                losses = torch.stack([output.forward_loss, output.backward_loss]).tolist()
                totals += torch.tensor([*losses, window.predictions, unknown])
                advance(step.predictions)
        self.model.train()
        totals = accelerator.reduce(totals.to(accelerator.device), reduction="sum")
        forward, backward, count, unknown = totals.tolist()
        forward, backward = forward / count, backward / count
        loss = (forward + backward) / 2
        results = {
            "eval_perplexity": math.exp(loss),
            "eval_perplexity_forward": math.exp(forward),
            "eval_perplexity_backward": math.exp(backward),
            "eval_loss": loss,
            "eval_words": count,
            "eval_unknown": unknown / count,
            "eval_words_per_second": count / (time.perf_counter() - begun),
        }
        self._record(**results)
        sides = f"forward {math.exp(forward):.2f}, backward {math.exp(backward):.2f}"
        share = f"{results['eval_unknown']:.1%} unknown"
        self._print(f"step {self.step:,}: held-out perplexity {math.exp(loss):.2f} ({sides}), {share}")
        return results

    @contextmanager
    def _evaluation_progress(self) -> Iterator[Callable[[int], None]]:
        """Yield a function to call with the words of each step. Without a terminal it prints a line now and then."""
        words = 0
        printed = time.perf_counter()
        with self._progress_bar(desc="Evaluating", unit=" words", unit_scale=True, leave=False) as bar:

            def advance(count: int) -> None:
                nonlocal words, printed
                words += count
                bar.update(count)
                if bar.disable and time.perf_counter() - printed > SECONDS_BETWEEN_LINES:
                    printed = time.perf_counter()
                    self._print(f"evaluating: {words:,} words")

            yield advance

    # --------------------------------------------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Write a checkpoint, which appears once it is complete, and remove the oldest ones."""
        accelerator = self.accelerator
        folder = self.folder / f"{CHECKPOINT}{self.step}"
        scratch = self.folder / f".{folder.name}.tmp"  # all processes write to it, so its name is not random
        if not accelerator.is_main_process:
            accelerator.wait_for_everyone()
            with disk_errors(folder):
                write_tensors(self._own_state(), scratch / process_file(accelerator.process_index))
            accelerator.wait_for_everyone()
            accelerator.wait_for_everyone()
            return
        optimizers = {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        size = tensor_bytes(self.model.state_dict()) + tensor_bytes(optimizers)
        with atomic_write(folder, size, scratch):
            scratch.mkdir(parents=True)
            self.tokenizer.save_pretrained(scratch)
            self.model.save_pretrained(scratch)
            write_tensors(optimizers, scratch / OPTIMIZERS_FILE)
            state = {name: getattr(self, name) for name in PROGRESS}
            state["settings"] = {name: getattr(self.settings, name) for name in (*FIXED, *LANE_SETTINGS)}
            state |= {"processes": accelerator.num_processes, "text": self.text}
            write_text(scratch / STATE_FILE, json.dumps(state))
            accelerator.wait_for_everyone()
            write_tensors(self._own_state(), scratch / process_file(accelerator.process_index))
            accelerator.wait_for_everyone()
            write_digests(scratch)
        self._remove_oldest()
        accelerator.wait_for_everyone()

    def _remove_oldest(self) -> None:
        """Remove the oldest checkpoints up to this step. Later ones are there if the run resumed before its last."""
        earlier = [path for path in sorted_checkpoints(self.folder) if step_of(path) <= self.step]
        for old in earlier[: -max(self.settings.save_total_limit, 1)]:
            remove_folder(old)

    def _own_state(self) -> dict[str, Any]:
        """Return the state of this process alone."""
        on_cuda = self.accelerator.device.type == "cuda"
        return {
            "carried": self.carried,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state() if on_cuda else None,
        }

    def load(self, folder: Path) -> None:
        """Restore the state of a checkpoint. The learning rate is that of this run's settings."""
        state = read_state(folder)
        with reading(folder / STATE_FILE):
            self._check_same_run(folder, state)
            for name in PROGRESS:
                setattr(self, name, state[name])
            epoch, block, lanes, waiting = state["position"]
            lanes = [place and tuple(place) for place in lanes]
            self.position = Position(epoch, block, lanes, [tuple(place) for place in waiting])
        with reading(folder / CONFIG_NAME):
            self._check_same_model(folder)
        with reading(folder / SAFE_WEIGHTS_NAME):
            self.model.load_state_dict(load_file(folder / SAFE_WEIGHTS_NAME))
        saved = read_tensors(folder / OPTIMIZERS_FILE)
        with reading(folder / OPTIMIZERS_FILE):
            for optimizer, optimizer_state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(optimizer_state)
                check_optimizer(optimizer)
        processes = [read_tensors(folder / process_file(number)) for number in range(state["processes"])]
        with reading(folder / process_file(0)):
            self._deal_out_states([states for process in processes for states in process["carried"]])
        if len(processes) == self.accelerator.num_processes:
            own_state = processes[self.accelerator.process_index]
            with reading(folder / process_file(self.accelerator.process_index)):
                torch.set_rng_state(own_state["random"])
                if own_state["random_cuda"] is not None:
                    torch.cuda.set_rng_state(own_state["random_cuda"])
        else:
            self._print(
                f"{folder} was saved by {len(processes)} processes: its {len(lanes)} lanes of text are dealt out "
                f"again as {self._count_lanes()}. From here on, the run is not the same bit for bit."
            )

    def _count_lanes(self) -> int:
        """Return the number of lanes of all processes."""
        settings = self.settings
        return settings.lanes * settings.gradient_accumulation_steps * self.accelerator.num_processes

    def _check_same_run(self, folder: Path, state: dict[str, Any]) -> None:
        """Refuse a checkpoint of another run."""
        trained = state["settings"]
        names: tuple[str, ...] = FIXED
        lanes = trained["lanes"] * trained["gradient_accumulation_steps"] * state["processes"]
        if lanes != self._count_lanes():
            names += LANE_SETTINGS
        for name in names:
            chosen = getattr(self.settings, name)
            if trained[name] != chosen:
                raise ElmoError(f"{folder} was trained with {name}={trained[name]}: it cannot resume with {chosen}")
        if state["text"] != self.text:
            raise ElmoError(f"{folder} was trained on another text: its files had other contents, or another order")

    def _check_same_model(self, folder: Path) -> None:
        """Refuse a checkpoint of a model of other sizes."""
        trained, chosen = ElmoConfig.from_pretrained(folder).to_dict(), self.model.config.to_dict()
        for name in ElmoConfig.__annotations__:
            before, now = trained[name], chosen[name]
            if name not in CHANGEABLE and before != now:
                raise ElmoError(f"{folder} was trained with {name}={before}: it cannot resume with {now}")

    def _deal_out_states(self, groups: list[States]) -> None:
        """Take the states of this process's lanes from those of all lanes; new lanes start from zeros."""
        lanes, device = self.settings.lanes, self.accelerator.device
        own = lanes * len(self.carried)
        first = own * self.accelerator.process_index
        sides = []
        for states in zip(*groups, strict=True):
            of_all = torch.cat(states, dim=2)  # (2, L, lanes, P or C)
            missing = max(first + own - of_all.shape[2], 0)
            padded = F.pad(of_all, (0, 0, 0, missing))
            sides.append(padded[:, :, first : first + own].to(device).split(lanes, dim=2))
        hidden, cell = sides
        self.carried = list(zip(hidden, cell, strict=True))
