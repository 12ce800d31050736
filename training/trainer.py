"""The Trainer of task models: batches of like length, a learning rate for the biLM, stopping on a signal."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import SAFE_WEIGHTS_NAME

from modeling_elmo.files import atomic_write, disk_errors, remove, remove_folder

from .checkpoints import CHECKPOINT, check_optimizer, read_tensors, reading, tensor_bytes, write_digests
from .examples import Examples


class LengthGrouped(LengthGroupedSampler):
    """Batches of like length, in an order that depends on seed and epoch alone, so that a run can be resumed."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int) -> None:
        super().__init__(batch_size, lengths=lengths)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return super().__iter__()


def by_length(examples: Examples) -> list[int]:
    """Return the examples' indices, the longest first, so that what does not fit into memory fails at once."""
    lengths = examples.lengths()
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


class TaskTrainer(Trainer):
    """Trainer that knows the lengths of the examples and may have a learning rate for the biLM.

    `evaluated` are the examples that it evaluates. A single process reads them by length, which is faster, and
    `in_order` puts its predictions back.
    """

    evaluated: Examples

    def __init__(self, bilm_learning_rate: float | None, **kwargs: Any) -> None:
        self.saving: Path | None = None  # where a checkpoint is written at the moment
        super().__init__(**kwargs)
        self.bilm_learning_rate = bilm_learning_rate

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> Any:
        self.evaluated = dataloader.dataset
        kwargs["ignore_keys"] = ["hidden_states"]  # unlike the config's, which leave out the decoded predictions
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        return output._replace(predictions=self.in_order(output.predictions))

    def in_order(self, predictions: Any) -> np.ndarray:
        """Return the predictions in the order of the examples."""
        predictions = np.asarray(predictions)
        if self.args.world_size > 1:
            return predictions
        return predictions[np.argsort(by_length(self.evaluated))]

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self.saving is None else str(self.saving)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint in a hidden folder, from which it is moved once it is complete."""
        run, state = Path(str(self.args.output_dir)), self.state
        folder = run / f"{CHECKPOINT}{state.global_step}"
        self.saving = run / ".saving.tmp"
        scratch = self.saving / folder.name
        is_first = self.args.should_save
        size = tensor_bytes(self.model.state_dict()) + tensor_bytes(self.optimizer.state_dict())
        with atomic_write(folder, size, scratch) if is_first else disk_errors(folder):
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each has its own random state
            if state.best_model_checkpoint == str(scratch):
                state.best_model_checkpoint = str(folder)
            if is_first:
                state.save_to_json(str(scratch / TRAINER_STATE_NAME))
                write_digests(scratch)
        self.saving = None
        if is_first:
            remove(scratch.parent)
            self.remove_oldest()
        self.accelerator.wait_for_everyone()

    def remove_oldest(self, is_over: bool = False) -> None:
        """Remove checkpoints beyond `save_total_limit`, each in one step; the best stays, and the last until the end.

        As Trainer does, which removes file by file: what a kill leaves of that would be the checkpoint to resume from.
        """
        limit = self.args.save_total_limit
        paths = [Path(path) for path in sort_checkpoints(str(self.args.output_dir), use_mtime=True)]
        if not limit or not paths:
            return
        best = self.state.best_model_checkpoint
        kept = {Path(best)} if best is not None else set()
        if not (is_over and limit == 1 and kept):
            kept.add(paths[-1])
        surplus = max(len(paths) - max(limit, len(kept)), 0)
        removable = [path for path in paths if path not in kept]
        for path in removable[:surplus]:
            remove_folder(path)

    def _finalize_training(self, *args: Any) -> Any:
        """Finish as Trainer does, except that it removes no checkpoint."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            return super()._finalize_training(*args)
        finally:
            self.args.save_total_limit = limit

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with reading(Path(resume_from_checkpoint, SAFE_WEIGHTS_NAME)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights of another model, rather than warn of them."""
        for key in (*load_result.missing_keys, *load_result.unexpected_keys):
            raise ValueError(f"`{key}` is in one of the model and its weights only")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        read_tensors(Path(checkpoint, SCHEDULER_NAME))
        with reading(Path(checkpoint, OPTIMIZER_NAME)):
            super()._load_optimizer_and_scheduler(checkpoint)
            check_optimizer(self.optimizer)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        name = "rng_state.pth" if self.args.world_size <= 1 else f"rng_state_{self.args.process_index}.pth"
        with reading(Path(checkpoint or "", name)):
            super()._load_rng_state(checkpoint)

    def create_optimizer(self, *args: Any) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(*args)
        if self.bilm_learning_rate is None or not hasattr(self.model, "elmo"):
            return optimizer
        bilm = set(self.model.elmo.parameters())
        for group in list(optimizer.param_groups):
            parameters = group["params"]
            moved = [parameter for parameter in parameters if parameter in bilm]
            if moved:
                group["params"] = [parameter for parameter in parameters if parameter not in bilm]
                optimizer.add_param_group({**group, "params": moved, "lr": self.bilm_learning_rate})
        return optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGrouped(batch, self.train_dataset.lengths(), self.args.data_seed or self.args.seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return by_length(eval_dataset) if self.args.world_size == 1 else None


class StopOnSignal(TrainerCallback):
    """Makes Ctrl-C and SIGTERM save and end training after the current step."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.handlers: dict[int, Any] = {}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        def stop(number: int, _: Any) -> None:
            self.signal = number

        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, stop)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.signal is not None:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False
            # Otherwise Trainer would end by loading the best checkpoint and removing this one.
            args.load_best_model_at_end, args.save_total_limit = False, None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        assert state.epoch is not None
        if self.signal is not None and not state.epoch.is_integer():  # stopped in the middle of an epoch
            control.should_save = control.should_evaluate = False

    def restore(self) -> None:
        """Give the signals back, after errors too, at which Trainer has no event."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
