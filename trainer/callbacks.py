"""Callbacks of a training run."""

import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .distributed import on_any_process, rank


def _ends_epoch(state: TrainerState) -> bool:
    """Whether the last step was the last of an epoch or of the run."""
    return state.global_step >= state.max_steps or state.epoch == int(state.epoch)


class StopOnInterrupt(TrainerCallback):
    """
    On Ctrl-C or SIGTERM during training, finish the step, save a checkpoint and stop; a second one stops at once.

    Under a launcher the first may come twice: from the terminal and, at once, from the launcher. That is one.
    """

    _SAME_SECONDS = 0.5

    def __init__(self):
        self.interrupted = False
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._interrupt)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _interrupt(self, signum, frame):
        now = time.monotonic()
        if self.interrupted and now - self._since > self._SAME_SECONDS:
            raise KeyboardInterrupt
        if not self.interrupted:
            self.interrupted, self._since = True, now

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Ask the Trainer for a checkpoint and an end once the signal has come, on all processes at the same step."""
        self.interrupted = on_any_process(self.interrupted, args.device)
        if self.interrupted:
            control.should_save = control.should_training_stop = True
            args.save_total_limit = None  # at its end the Trainer would keep the best checkpoint alone
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """In the middle of an epoch, do nothing of what belongs to its end: the resumed run will."""
        if self.interrupted and not _ends_epoch(state):
            control.should_log = control.should_evaluate = control.should_save = False
        return control


class SaveAfterEpoch(TrainerCallback):
    """
    Put the checkpoint of an epoch's last step off until the end of the epoch has been logged and evaluated.

    A resumed run begins with the next epoch, so what was still to be done for this one would be left out.
    """

    def __init__(self):
        self._is_due = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Take the request to save back."""
        self._is_due = control.should_save and _ends_epoch(state)
        control.should_save = control.should_save and not self._is_due
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Renew the request."""
        control.should_save = control.should_save or self._is_due
        self._is_due = False
        return control


class AtBegin(TrainerCallback):
    """Call a function when training begins, once the Trainer has set its own state."""

    def __init__(self, function: Callable[[], None]):
        self.function = function

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Call it."""
        self.function()


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


__all__ = ["AtBegin", "EpochOfData", "SaveAfterEpoch", "SeedOfRank", "StopOnInterrupt"]
