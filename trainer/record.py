"""Descriptions of a run: a summary before it starts, and a record for the model card after it has ended."""

import math
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from gallery.files import write_json
from gallery.provenance import source_state, versions

from .lora import count_parameters
from .training_args import ScalarTrainingArguments

RECORD = "training.json"
"""The file's name in the folder of a run."""

_CPU_INFO = Path("/proc/cpuinfo")  # platform.processor() is empty on most Linux systems


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "nothing"


def describe_run(
    model: torch.nn.Module, args: ScalarTrainingArguments, num_examples: int, steps_per_epoch: int
) -> str:
    """
    Summarise in a few lines the trained and frozen parameters, the effective batch, the steps, and the memory that
    weights, gradients and AdamW's two moments need on each device, without activations.

    Args:
        model (`torch.nn.Module`): The model, with its trainable parameters already chosen.
        args ([`ScalarTrainingArguments`]): The arguments of the run.
        num_examples (`int`): The number of training examples.
        steps_per_epoch (`int`): The number of optimizer steps per epoch.
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


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu" and _CPU_INFO.is_file():
        names = (line.partition(":")[2].strip() for line in _CPU_INFO.open() if line.startswith("model name"))
        return next(names, platform.machine())
    return platform.processor() or device.type


def _precision(trainer: Trainer) -> str:
    weights = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    mixed = {"fp16": "float16", "bf16": "bfloat16"}.get(trainer.accelerator.mixed_precision)
    return f"{weights}, computed in {mixed}" if mixed else weights


def describe_training(trainer: Trainer, seconds: float, resumed: bool) -> dict[str, Any]:
    """
    Describe a finished run.

    Args:
        trainer ([`ScalarTrainer`]): The trainer after `train`.
        seconds (`float`): The duration of `train`.
        resumed (`bool`): Whether the run resumed from a checkpoint; `seconds` then counts from there.

    Returns:
        `dict` of JSON-serialisable values: `trainable_parameters` and `frozen_parameters` (by part of the model),
        `num_examples`, `global_step`, `batch_size` (contrastive batch times accumulation), `seconds`, `resumed`,
        `hardware` (`device`, `num_processes`), `precision`, `versions`, `source` and `date`.
    """
    args = trainer.args
    batch_size = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    return {
        "trainable_parameters": count_parameters(trainer.model),
        "frozen_parameters": count_parameters(trainer.model, trainable=False),
        "num_examples": len(trainer.train_dataset),
        "global_step": trainer.state.global_step,
        "batch_size": batch_size,
        "seconds": round(seconds, 1),
        "resumed": resumed,
        "hardware": {"device": _device_name(args.device), "num_processes": args.world_size},
        "precision": _precision(trainer),
        "versions": versions(),
        "source": source_state(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def save_record(trainer: Trainer, seconds: float, resumed: bool, clips: list[str] | None) -> None:
    """Write [`describe_training`] to `training.json` in the run's folder, with the marks of the training clips if an
    evaluation cannot otherwise recognise them."""
    noted = {} if clips is None else {"clips": clips}
    write_json(describe_training(trainer, seconds, resumed) | noted, Path(trainer.args.output_dir) / RECORD)


__all__ = ["RECORD", "describe_run", "describe_training", "save_record"]
