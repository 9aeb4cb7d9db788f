"""A Trainer whose interrupted runs resume exactly: checkpoints, random states, the order of clips and the log.

The objective is left to a subclass; see `scalar_retrieval.trainer.scalar_trainer`.
"""

import signal
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import Trainer
from transformers.dynamic_module_utils import custom_object_save
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from scalar_retrieval.gallery.store.files import read_json, write_json

from .callbacks import AroundCheckpoints, EpochOfData, SaveAfterEpoch
from .checkpoints import (
    check_checkpoint,
    check_run,
    describe_failed_save,
    finish_checkpoint,
    last_checkpoint,
    mark_unfinished,
    remove_checkpoint,
    remove_old,
    written_whole,
)
from .data import GlobalBatchSampler, clips_of
from .distributed import rank, wait_for_all, world_size
from .lora import without_adapter
from .training_args import ScalarTrainingArguments


class RunningMeans:
    """
    Means of named values since the last log line.

    The sums stay on their device, because reading them would synchronise at every step.
    """

    def __init__(self, sums: dict[str, torch.Tensor] | None = None, counts: dict[str, int] | None = None):
        self.sums = sums or {}
        self.counts = counts or {}

    def add(self, values: dict[str, torch.Tensor]) -> None:
        """Add one value to each sum; some values may be missing at some steps."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value.detach().float()
            self.counts[name] = self.counts.get(name, 0) + 1

    def take(self) -> tuple[list[str], torch.Tensor]:
        """Return the names and their means, and reset."""
        names = sorted(self.sums)
        means = torch.stack([self.sums[name] / self.counts[name] for name in names])
        self.sums = {}
        self.counts = {}
        return names, means


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Let a data worker ignore a first signal, because the step being finished may need its batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A second signal ends it: PyTorch sends one to a worker that does not end by itself.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL))


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
        self._resumed_step = 0
        self._limit = args.save_total_limit
        self._unfinished: Path | None = None  # the checkpoint that is being written
        self._identity: dict[str, Any] | None = None
        self.add_callback(SaveAfterEpoch())
        self.add_callback(AroundCheckpoints(self._begin, self._finish_checkpoint))

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
        if self.train_dataset is None:
            raise ValueError("Training needs a `train_dataset`.")
        # The sampler knows all processes, so that a step sees the same clips on any number of them.
        args = self.args
        seed = args.data_seed
        if seed is None:
            seed = args.seed
        sampler = GlobalBatchSampler(
            clips_of(self.train_dataset),
            args.per_device_train_batch_size * world_size(),
            seed,
            args.dataloader_drop_last,
            rank(),
            world_size(),
        )
        # The order and the random frames follow from the epoch.
        followers = [sampler]
        if hasattr(self.train_dataset, "set_epoch"):
            followers.append(self.train_dataset)
        self.remove_callback(EpochOfData)  # from an earlier call of `train`
        self.add_callback(EpochOfData(*followers))
        return torch.utils.data.DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            worker_init_fn=_leave_signals_to_the_trainer,
        )

    # Resuming -----------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """
        Train, from a checkpoint if one is given; a resumed run does exactly what an uninterrupted one would.

        Raises:
            FileNotFoundError: If the checkpoint does not exist.
            ValueError: If the checkpoint is incomplete or belongs to another run.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no complete checkpoint in {self.args.output_dir} to resume from.")
        # A checkpoint must be complete and of this run.
        self._resumed_from = None
        self._resumed_step = 0
        self._unfinished = None
        if resume_from_checkpoint:
            self._resumed_from = Path(resume_from_checkpoint)
            self._resumed_step = check_checkpoint(self._resumed_from)["step"]
            check_run(self._resumed_from, self.identity)
            resume_from_checkpoint = str(self._resumed_from)
        # The Trainer would remove old checkpoints before the new one has its manifest.
        self._limit = self.args.save_total_limit
        self.args.save_total_limit = None
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)
        except BaseException:
            if self._unfinished is None:
                raise
            # The error came while a checkpoint was written; one process removes what there is of it.
            partial = None
            if self.args.should_save:
                partial = self._unfinished
            with describe_failed_save(self.args.output_dir, self._unfinished.name, partial):
                raise
        finally:
            self.args.save_total_limit = self._limit

    def set_initial_training_values(self, args: ScalarTrainingArguments, dataloader: Any) -> tuple[int, ...]:
        """Leave no epoch to a run that is resumed at its end; the Trainer would do one more step."""
        num_epochs, steps_per_epoch, *others, max_steps = super().set_initial_training_values(args, dataloader)
        if self._resumed_step >= max_steps:
            num_epochs = self._resumed_step // steps_per_epoch
        return num_epochs, steps_per_epoch, *others, max_steps

    def _log_file(self, folder: Path) -> Path:
        """Each process has its own file."""
        if world_size() > 1:
            return folder / f"log_{rank()}.json"
        return folder / "log.json"

    def _save_log(self, folder: Path) -> None:
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
        mark_unfinished(self.args)
        if rank():  # each process has its own dropout stream; that of a checkpoint is loaded later
            torch.manual_seed(self.args.seed + 1_000_003 * rank())
        if self._resumed_from is None:
            return
        # The state names the best checkpoint by the folder of the run, which may have been moved.
        best = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        if best.is_dir():
            self.state.best_model_checkpoint = str(best)
        if self._resumed_from == last_checkpoint(self.args.output_dir):
            self._remove_old(self._resumed_from)  # the run may have been killed before doing so
        # The log continues with the sums of before: the next line averages over all steps since the last one.
        content = read_json(self._log_file(self._resumed_from))
        self._tr_loss.fill_(content["loss"])
        self._total_loss_scalar = content["total_loss"]
        self._globalstep_last_logged = content["step_of_log"]
        sums = {}
        for name, value in content["sums"].items():
            sums[name] = torch.tensor(float(value), device=self.args.device)
        self.means = RunningMeans(sums, content["counts"])

    # Saving -------------------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """
        Save the model so that its files are the old or the new ones, never half of them.

        The Trainer calls this on every process; the first one writes. It is the first thing written of a checkpoint.
        """
        # Of a checkpoint, first remove what an earlier run wrote under its name.
        args = self.args
        folder = Path(output_dir or args.output_dir)
        if _internal_call and output_dir is not None:
            self._unfinished = folder
            if args.should_save:
                remove_checkpoint(folder)
            wait_for_all()
        if not args.should_save:
            super().save_model(output_dir, _internal_call)
            return
        # Weights that are not finite would make every later checkpoint useless.
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise ValueError(
                    f"The weights after step {self.state.global_step} are not finite, such as {name}, and were not "
                    "saved. Lower `learning_rate`, and continue from an earlier checkpoint."
                )
        with written_whole(folder) as hidden:
            super().save_model(str(hidden), _internal_call=True)
            if isinstance(self.model, PeftModel):  # an adapter may change how its base scores
                base = without_adapter(self.model)
                if base._auto_class is not None:  # a model that others can load by its code
                    custom_object_save(base, hidden, config=base.config)
                base.config.save_pretrained(hidden)

    def _finish_checkpoint(self) -> None:
        """Add what the Trainer does not keep, then the manifest; see `scalar_retrieval.trainer.checkpoints`."""
        checkpoint = self._unfinished
        self._save_log(checkpoint)
        wait_for_all()
        if self.args.should_save:
            finish_checkpoint(checkpoint, self.state.global_step, self.identity)
        self._unfinished = None
        self._remove_old(checkpoint)
        wait_for_all()

    def _remove_old(self, checkpoint: Path) -> None:
        """Keep `save_total_limit` checkpoints: the newest (`checkpoint`), the best, and the newest of the others."""
        if self.args.should_save:
            kept = [checkpoint]
            if self.state.best_model_checkpoint:
                kept.append(Path(self.state.best_model_checkpoint))
            remove_old(checkpoint.parent, self._limit, keep=kept)


__all__ = ["ResumableTrainer", "RunningMeans"]
