"""Callbacks of a training run."""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .distributed import on_any_process

logger = logging.getLogger(__name__)

# Modules that only a modality's clips reach, by parts of their names.
_OF_MODALITY = {"video": ("video_", "vision_"), "audio": ("audio_",), "subtitle": ("subtitle_",)}
_OF_MATCHING = ("match_head", "crossattention")  # which reads what the model's `condition_on` says


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

    def on_train_begin(self, *event: Any, **kwargs: Any) -> None:
        """Take over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._interrupt)

    def on_train_end(self, *event: Any, **kwargs: Any) -> None:
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

    def on_train_begin(self, *event: Any, **kwargs: Any) -> None:
        """Call it."""
        self.function()


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


class GradientAudit(TrainerCallback):
    """
    Fail after the first step if a trainable parameter got no gradient: it would be saved as if it had been trained.

    Parameters of a modality that no clip had so far are waited for until one has it.

    Args:
        modalities (`Sequence[str]`): names, in the order of the masks.
        condition_on (`Sequence[str]`): those that the cross-encoder reads.
    """

    def __init__(self, modalities: Sequence[str], condition_on: Sequence[str]):
        self.modalities, self.condition_on = modalities, condition_on
        self._waiting: set[str] = set()
        self._present: torch.Tensor | None = None

    def note(self, modality_mask: torch.Tensor) -> None:
        """Note which modalities a batch had, `(batch, modalities)`."""
        if self._waiting:
            present = modality_mask.any(dim=0).cpu()
            self._present = present if self._present is None else self._present | present

    def on_train_begin(self, *event: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        """Wait for all trainable parameters."""
        self._waiting = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._present = None

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Check which are still without a gradient."""
        if not self._waiting:
            return
        reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        self._waiting -= reached
        absent = [name for name, there in zip(self.modalities, self._present.tolist(), strict=True) if not there]
        excused = [part for name in absent for part in _OF_MODALITY[name]]
        if set(self.condition_on) <= set(absent):
            excused += _OF_MATCHING
        lost = sorted(name for name in self._waiting if not any(part in name for part in excused))
        if lost:
            raise ValueError(
                f"{len(lost)} trainable parameters got no gradient in step {state.global_step + 1}, such as "
                f"{lost[:5]}: the objective does not reach them. Freeze them, or choose an objective that trains them."
            )

    def on_train_end(self, *event: Any, **kwargs: Any) -> None:
        """Warn of what was never trained."""
        if self._waiting and self._present is not None:  # a run that was resumed at its end has no step
            logger.warning(
                "%d trainable parameters never got a gradient, such as %s: no clip has their modality.",
                len(self._waiting),
                sorted(self._waiting)[:5],
            )


__all__ = ["AtBegin", "EpochOfData", "GradientAudit", "SaveAfterEpoch", "StopOnInterrupt"]
