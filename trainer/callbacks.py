"""Callbacks of a training run."""

import signal
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .distributed import on_any_process


def _ends_epoch(state: TrainerState) -> bool:
    """Whether the step just finished was the last of an epoch or of the run."""
    return state.global_step >= state.max_steps or state.epoch == int(state.epoch)


class StopOnInterrupt(TrainerCallback):
    """
    On Ctrl-C or SIGTERM during training, finish the step, save a checkpoint and stop; a second signal stops at once.

    Under a launcher the first signal may arrive twice, from the terminal and from the launcher. It counts once.
    """

    _SAME_SECONDS = 0.5

    def __init__(self):
        self.interrupted = False
        self._since = 0.0
        self._previous: dict[int, Any] = {}

    def on_train_begin(self, *event: Any, **kwargs: Any) -> None:
        """Install the signal handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._interrupt)

    def on_train_end(self, *event: Any, **kwargs: Any) -> None:
        """Restore the signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _interrupt(self, signum, frame):
        # Launchers may send a signal twice at once, which is one wish; a later second one stops at once.
        now = time.monotonic()
        if self.interrupted and now - self._since > self._SAME_SECONDS:
            raise KeyboardInterrupt
        if not self.interrupted:
            self.interrupted = True
            self._since = now

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """After a signal, request a checkpoint and the end of training, at the same step on all processes."""
        # A signal may reach one process only, but all have to save the same step.
        self.interrupted = on_any_process(self.interrupted, args.device)
        if self.interrupted:
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Skip the work of an epoch's end when stopped in the middle of it: the resumed run does it."""
        if self.interrupted and not _ends_epoch(state):
            control.should_log = False
            control.should_evaluate = False
            control.should_save = False
        return control


class SaveAfterEpoch(TrainerCallback):
    """
    Delay the checkpoint of an epoch's last step until the epoch has been logged and evaluated.

    A run resumed from it begins with the next epoch, so anything not yet done for this one would be skipped.
    """

    def __init__(self):
        self._is_due = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Withdraw the request to save."""
        self._is_due = control.should_save and _ends_epoch(state)
        control.should_save = control.should_save and not self._is_due
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Restore the request to save."""
        control.should_save = control.should_save or self._is_due
        self._is_due = False
        return control


class AroundCheckpoints(TrainerCallback):
    """Call `begin` when training begins, after the Trainer has set its own state, and `finish` after each save."""

    def __init__(self, begin: Callable[[], None], finish: Callable[[], None]):
        self.begin = begin
        self.finish = finish

    def on_train_begin(self, *event: Any, **kwargs: Any) -> None:
        """Restore what the checkpoint holds beyond the Trainer's own state."""
        self.begin()

    def on_save(self, *event: Any, **kwargs: Any) -> None:
        """Complete the checkpoint that the Trainer has written."""
        self.finish()


class EpochOfData(TrainerCallback):
    """Set the epoch of data set and sampler, also in resumed or distributed runs, where data loaders do not."""

    def __init__(self, *followers: Any):
        self.followers = followers

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch before its first example is read."""
        # The Trainer's epoch is a sum of fractions, which may lack a little.
        for follower in self.followers:
            follower.set_epoch(int(state.epoch + 1e-6))


__all__ = ["AroundCheckpoints", "EpochOfData", "SaveAfterEpoch", "StopOnInterrupt"]
