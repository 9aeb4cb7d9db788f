"""Callbacks of a training run."""

import signal

from transformers import TrainerCallback


class StopOnInterrupt(TrainerCallback):
    """On Ctrl-C, finish the step, save a checkpoint and stop; a second Ctrl-C stops at once."""

    def __init__(self):
        self.interrupted = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, signum, frame):
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_step_end(self, args, state, control, **kwargs):
        """Ask the Trainer for a checkpoint and an end once the signal has come."""
        if self.interrupted:
            control.should_save = control.should_training_stop = True
        return control


__all__ = ["StopOnInterrupt"]
