"""What a run is about to do, described before it starts, and a check that it trains what it says."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .lora import count_parameters
from .training_args import ScalarTrainingArguments

logger = logging.getLogger(__name__)

# Modules that only a modality's clips reach, by parts of their names.
_OF_MODALITY = {"video": ("video_", "vision_"), "audio": ("audio_",), "subtitle": ("subtitle_",)}
_OF_MATCHING = ("match_head", "crossattention")  # which reads what the model's `condition_on` says


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "nothing"


def describe_run(
    model: torch.nn.Module, args: ScalarTrainingArguments, num_examples: int, steps_per_epoch: int
) -> str:
    """
    Describe in a few lines what will be trained, what stays frozen, the effective batch, the steps, and the memory
    that weights, gradients and AdamW's two moments need on each device; activations come on top.

    Args:
        model (`torch.nn.Module`): with the trainable parameters chosen.
        args ([`ScalarTrainingArguments`]): of the run.
        num_examples (`int`): of the training set.
        steps_per_epoch (`int`): optimizer steps in an epoch.
    """
    trained, frozen = (count_parameters(model, trainable) for trainable in (True, False))
    negatives = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps if args.max_steps > 0 else math.ceil(steps_per_epoch * args.num_train_epochs)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    memory = (weights + 3 * gradients) / 2**20
    parts = f", {args.mini_batch_size} clips at a time" if args.mini_batch_size else ""
    accumulated = (
        f", {args.gradient_accumulation_steps} batches a step" if args.gradient_accumulation_steps > 1 else ""
    )
    return "\n".join(
        [
            f"trained: {sum(trained.values()):,} parameters: {_listed(trained)}",
            f"frozen: {sum(frozen.values()):,} parameters: {_listed(frozen)}",
            f"batch: {negatives} clips see each other ({args.world_size} processes of "
            f"{args.per_device_train_batch_size}{parts}){accumulated}",
            f"steps: {steps:,}, {steps_per_epoch:,} an epoch of {num_examples:,} examples",
            f"memory: {memory:,.0f} MiB for weights, gradients and optimizer on each device; activations come on top",
        ]
    )


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

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
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

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Warn of what was never trained."""
        if self._waiting and self._present is not None:  # a run that was resumed at its end has no step
            logger.warning(
                "%d trainable parameters never got a gradient, such as %s: no clip has their modality.",
                len(self._waiting),
                sorted(self._waiting)[:5],
            )


__all__ = ["GradientAudit", "describe_run"]
