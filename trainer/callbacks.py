"""Callbacks of a training run."""

import signal
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .distributed import on_any_process, rank


class StopOnInterrupt(TrainerCallback):
    """On Ctrl-C during training, finish the step, save a checkpoint and stop; a second Ctrl-C stops at once."""

    def __init__(self):
        self.interrupted = False
        self._previous: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take over Ctrl-C."""
        self._previous = signal.signal(signal.SIGINT, self._interrupt)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give Ctrl-C back."""
        signal.signal(signal.SIGINT, self._previous)

    def _interrupt(self, signum, frame):
        self.interrupted = True
        signal.signal(signal.SIGINT, self._previous)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Ask the Trainer for a checkpoint and an end once the signal has come, on all processes at the same step."""
        self.interrupted = on_any_process(self.interrupted, args.device)
        if self.interrupted:
            control.should_save = control.should_training_stop = True
            args.save_total_limit = None  # at its end the Trainer would keep the best checkpoint alone
        return control


class SeedOfRank(TrainerCallback):
    """Give each process a stream of dropout of its own; draws that processes share have generators of their own."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Seed the layers' generators; a resumed run then loads the state they had."""
        if rank():
            torch.manual_seed(args.seed + 1_000_003 * rank())


class EpochOfData(TrainerCallback):
    """Tell data set and sampler their epoch, also in a resumed run and on several processes, where loaders do not."""

    def __init__(self, *listeners: Any):
        self.listeners = listeners

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Pass the epoch on before the first example of it is read."""
        for listener in self.listeners:
            listener.set_epoch(int(state.epoch + 1e-6))  # a sum of fractions of an epoch, rounded


__all__ = ["EpochOfData", "SeedOfRank", "StopOnInterrupt"]
