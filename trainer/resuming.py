"""A Trainer whose interrupted runs resume exactly: checkpoints, random states, the order of clips and the log.

The objective is left to a subclass; see `trainer.scalar_trainer`.
"""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers import Trainer
from transformers.dynamic_module_utils import custom_object_save
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_NAME

from gallery.files import read_json, write_json

from .callbacks import AtBegin, EpochOfData, SaveAfterEpoch
from .checkpoints import (
    check_checkpoint,
    check_run,
    check_weights,
    describe_failed_save,
    finish_checkpoint,
    last_checkpoint,
    remove_old,
    unfinished_checkpoint,
    written_whole,
)
from .data import GlobalBatchSampler
from .distributed import rank, world_size
from .identity import free_fields
from .lora import without_adapter
from .training_args import ScalarTrainingArguments


class RunningMeans:
    """
    Means of named values since the last log line.

    The sums stay on their device, because reading them would synchronise at every step.
    """

    def __init__(self, sums: dict[str, torch.Tensor] | None = None, counts: dict[str, int] | None = None):
        self.sums, self.counts = sums or {}, counts or {}

    def add(self, values: dict[str, torch.Tensor]) -> None:
        """Add one value to each sum; some values may be missing at some steps."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value.detach().float()
            self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> tuple[list[str], torch.Tensor]:
        """Return the names and their means, and reset."""
        names = sorted(self.sums)
        means = torch.stack([self.sums[name] / self.counts[name] for name in names])
        self.sums, self.counts = {}, {}
        return names, means


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Let a data worker ignore a first signal, because the step being finished may need its batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A second signal ends it: PyTorch sends one to a worker that does not end by itself.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL))


@contextmanager
def _unusable(what: str, advice: str = "Choose another checkpoint.") -> Iterator[None]:
    """Report which part of a checkpoint cannot be used, for example because it belongs to another run."""
    try:
        yield
    except (AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError, UnpicklingError) as error:
        raise ValueError(f"{what} ({type(error).__name__}: {error}). {advice}") from error


class ResumableTrainer(Trainer):
    """
    A Trainer that resumes from a checkpoint as if it had never been interrupted.

    A subclass defines `describe_identity` and adds the values to log to `self.means`.
    """

    args: ScalarTrainingArguments

    def __init__(self, model: torch.nn.Module, args: ScalarTrainingArguments, **kwargs: Any):
        super().__init__(model, args, **kwargs)
        self.means = RunningMeans()
        self._resumed_from: Path | None = None
        self._identity: dict[str, Any] | None = None
        self.add_callback(SaveAfterEpoch())
        self.add_callback(AtBegin(self._begin))

    def describe_identity(self) -> dict[str, Any]:
        """Describe what identifies this run, JSON-serialisable; checkpoints with other values are rejected."""
        raise NotImplementedError

    @property
    def identity(self) -> dict[str, Any]:
        """The result of `describe_identity`, stored in checkpoints. Cached, because it reads all frozen weights."""
        if self._identity is None:
            self._identity = self.describe_identity()
        return self._identity

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return this process's share of every batch; see [`GlobalBatchSampler`]."""
        args = self.args
        sampler = GlobalBatchSampler(
            len(self.train_dataset),
            args.per_device_train_batch_size * world_size(),
            args.seed if args.data_seed is None else args.data_seed,
            args.dataloader_drop_last,
            rank(),
            world_size(),
        )
        listeners = [sampler, self.train_dataset] if hasattr(self.train_dataset, "set_epoch") else [sampler]
        self.remove_callback(EpochOfData)  # from an earlier call of `train`
        self.add_callback(EpochOfData(*listeners))
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=_leave_signals_to_the_trainer,
        )

    # Resuming -----------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """
        Train, from a checkpoint if one is given; a resumed run does exactly what an uninterrupted one would.

        Raises:
            FileNotFoundError: If the checkpoint does not exist.
            ValueError: If the checkpoint is incomplete, damaged, or belongs to another run.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no complete checkpoint in {self.args.output_dir} to resume from.")
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self._resumed_from is not None:
            check_checkpoint(self._resumed_from, self.args.world_size)
            check_run(self._resumed_from, self.identity, free_fields(self.args))
            resume_from_checkpoint = str(self._resumed_from)
        return super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        checkpoint = Path(resume_from_checkpoint)
        if isinstance(self.model, PeftModel):
            check_weights(checkpoint / ADAPTER_SAFE_WEIGHTS_NAME, get_peft_model_state_dict(self.model))
        elif (checkpoint / SAFE_WEIGHTS_NAME).is_file():
            check_weights(checkpoint / SAFE_WEIGHTS_NAME, self.model.state_dict())
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        advice = "Resume with the original fields, or choose another checkpoint."
        with _unusable(f"{checkpoint} does not fit this run's optimizer or schedule", advice):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _unusable(f"The random state in {checkpoint} cannot be used"):
            super()._load_rng_state(checkpoint)

    def _run_epoch(self, **options: Any) -> None:
        # The Trainer checks for the end only after a step, so a finished run would do one more.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(**options)

    def _log_file(self, folder: Path) -> Path:
        return folder / (f"log_{rank()}.json" if world_size() > 1 else "log.json")

    def _keep_log(self, folder: Path) -> None:
        """Write this process's sums since the last log next to a checkpoint."""
        content = {
            "loss": self._tr_loss.item(),
            "total_loss": self._total_loss_scalar,
            "step_of_log": self._globalstep_last_logged,
            "sums": {name: value.item() for name, value in self.means.sums.items()},
            "counts": self.means.counts,
        }
        write_json(content, self._log_file(folder))

    def _begin(self) -> None:
        """Start a new run, or restore what the checkpoint holds in addition to the Trainer's own state."""
        self.means = RunningMeans()
        if rank():  # each process has its own dropout stream; that of a checkpoint is loaded later
            torch.manual_seed(self.args.seed + 1_000_003 * rank())
        if self._resumed_from is None:
            return
        if self._resumed_from == last_checkpoint(self.args.output_dir):
            self._remove_old(self._resumed_from)  # the run may have been killed before doing so
        path = self._log_file(self._resumed_from)
        content, device = read_json(path), self.args.device
        with _unusable(f"{path} is damaged"):
            self._tr_loss.fill_(content["loss"])
            self._total_loss_scalar = float(content["total_loss"])
            self._globalstep_last_logged = int(content["step_of_log"])
            sums = {name: torch.tensor(float(value), device=device) for name, value in content["sums"].items()}
            self.means = RunningMeans(sums, {name: int(content["counts"][name]) for name in sums})

    # Saving -------------------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        # The Trainer calls this on every process; the first one writes.
        if not self.args.should_save:
            super()._save(output_dir, state_dict)
            return
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise ValueError(
                    f"The weights after step {self.state.global_step} are not finite, such as {name}, and were not "
                    "saved. Lower `learning_rate`, and continue from an earlier checkpoint."
                )
        with written_whole(Path(output_dir or self.args.output_dir)) as folder:
            super()._save(str(folder), state_dict)
            if isinstance(self.model, PeftModel):  # an adapter may change how its base scores
                base = without_adapter(self.model)
                if base._auto_class is not None:  # a model that others can load by its code
                    custom_object_save(base, folder, config=base.config)
                base.config.save_pretrained(folder)

    def _save_checkpoint(self, model, trial) -> None:
        """Write a checkpoint atomically; see `trainer.checkpoints`."""
        args, state = self.args, self.state
        self.store_flos()
        folder = unfinished_checkpoint(args.output_dir, state.global_step)
        checkpoint = folder.with_name(f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        if state.best_global_step:
            best = folder.with_name(f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
            if best == checkpoint or best.is_dir():
                state.best_model_checkpoint = str(best)
        callbacks = [x for x in (*self.callback_handler.callbacks, self.control) if isinstance(x, ExportableState)]
        state.stateful_callbacks = TrainerState(stateful_callbacks=callbacks).stateful_callbacks
        with describe_failed_save(args.output_dir, checkpoint.name, partial=folder if args.should_save else None):
            if args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
            self.accelerator.wait_for_everyone()
            self.save_model(str(folder), _internal_call=True)
            if not args.save_only_model:
                self._save_optimizer_and_scheduler(str(folder))
                self._save_scaler(str(folder))
                self._save_rng_state(str(folder))
            self._keep_log(folder)
            self.accelerator.wait_for_everyone()
            if args.should_save:
                state.save_to_json(str(folder / TRAINER_STATE_NAME))
                finish_checkpoint(folder, state.global_step, self.identity, free_fields(args))
        if args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))
        self._remove_old(checkpoint)
        self.accelerator.wait_for_everyone()

    def _remove_old(self, checkpoint: Path) -> None:
        """Keep `save_total_limit` checkpoints: the newest (`checkpoint`), the best, and the newest of the others."""
        if self.args.should_save:
            best = [Path(self.state.best_model_checkpoint)] if self.state.best_model_checkpoint else []
            remove_old(self.args.output_dir, self.args.save_total_limit, keep=[checkpoint, *best])


__all__ = ["ResumableTrainer", "RunningMeans"]
