"""What a run did, kept beside what it trained, for its model card: parameters, hardware, time, versions."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gallery.files import write_json
from gallery.provenance import source_state, versions

from .lora import count_parameters
from .scalar_trainer import ScalarTrainer

RECORD = "training.json"
"""The file's name in the folder of a run."""

_CPU_INFO = Path("/proc/cpuinfo")  # platform.processor() is empty on most Linux systems


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu" and _CPU_INFO.is_file():
        names = (line.partition(":")[2].strip() for line in _CPU_INFO.open() if line.startswith("model name"))
        return next(names, platform.machine())
    return platform.processor() or device.type


def _precision(trainer: ScalarTrainer) -> str:
    weights = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    mixed = {"fp16": "float16", "bf16": "bfloat16"}.get(trainer.accelerator.mixed_precision)
    return f"{weights}, computed in {mixed}" if mixed else weights


def describe_training(trainer: ScalarTrainer, seconds: float, resumed: bool) -> dict[str, Any]:
    """
    Describe a run that has ended.

    Args:
        trainer ([`ScalarTrainer`]): after `train`.
        seconds (`float`): that `train` took.
        resumed (`bool`): whether it went on from a checkpoint; `seconds` are then those since the checkpoint.

    Returns:
        `dict` of what JSON can hold: `trainable_parameters` and `frozen_parameters` (by part of the model),
        `num_examples`, `global_step`, `batch_size` (clips that see each other, times accumulation), `seconds`,
        `resumed`, `hardware` (`device`, `num_processes`), `precision`, `versions`, `source` and `date`.
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


def save_record(trainer: ScalarTrainer, seconds: float, resumed: bool) -> None:
    """Write [`describe_training`] as `training.json` into the run's folder, beside what was trained."""
    write_json(describe_training(trainer, seconds, resumed), Path(trainer.args.output_dir) / RECORD)


__all__ = ["RECORD", "describe_training", "save_record"]
