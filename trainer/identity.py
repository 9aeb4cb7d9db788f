"""What identifies a run or a folder of features; checkpoints and features of another one are rejected.

Large values are represented by their SHA-256, which is the same on every machine.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PretrainedConfig

from scalar_retrieval.modeling_scalar import ScalarJointProcessor, ScalarProcessor

if TYPE_CHECKING:
    from .training_args import ScalarTrainingArguments

# Fields of the optimizer are restored from a checkpoint, so another value would have no effect.
_FIELDS = (
    "objective",
    "adapter",
    "temperature",
    "learnable_temperature",
    "contrastive_label_smoothing",
    "cross_arity_weight",
    "semantic_weight",
    "calibration_weight",
    "semantic_temperature",
    "direction_temperature",
    "uniformity_weight",
    "loss_warmup_steps",
    "matching_weight",
    "full_view_probability",
    "full_view_decay_steps",
    "min_view_modalities",
    "negatives_from",
    "learning_rate",
    "lora_learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim",
    "optim_args",
    "max_grad_norm",
    "neftune_noise_alpha",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "dataloader_drop_last",
    "seed",
    "data_seed",
    "metric_for_best_model",
    "greater_is_better",
)
# Fields of a configuration that do not change what the model computes.
_NO_SETTING = {"architectures", "auto_map", "dtype", "transformers_version", "_name_or_path"}


def fields_of_run(args: "ScalarTrainingArguments") -> dict[str, Any]:
    """Return the fields that must not change when a run is resumed."""
    fields = {}
    for name in _FIELDS:
        value = getattr(args, name)
        fields[name] = getattr(value, "value", value)  # of an enumeration
    return fields


def digest(content: Any) -> str:
    """Return the SHA-256 of JSON-serialisable content and arrays."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=np.ndarray.tolist).encode()).hexdigest()


def tensors_sha256(tensors: dict[str, torch.Tensor], start: str = "") -> str:
    """Return the SHA-256 of the text `start` and named tensors, in order."""
    content = hashlib.sha256(start.encode())
    for name, value in tensors.items():
        content.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return content.hexdigest()


def rows_sha256(*columns: Sequence[str | None]) -> str:
    """Return the SHA-256 of the rows of a table, given as columns; each row is hashed as one line of JSON."""
    content = hashlib.sha256()
    for row in zip(*columns, strict=True):
        content.update(json.dumps(row).encode() + b"\n")
    return content.hexdigest()


def settings_of(part: Any) -> dict[str, Any]:
    """Return the settings of a configuration or processor that affect what it computes."""
    return {name: value for name, value in part.to_dict().items() if name not in _NO_SETTING}


def processor_settings(processor: ScalarProcessor) -> dict[str, Any]:
    """Return all settings of a processor except those of texts and of testing."""
    # What decides frames, sound and their numbers; texts are processed in each step.
    settings = {
        "image_processor": settings_of(processor.image_processor),
        "feature_extractor": settings_of(processor.feature_extractor),
        "num_train_frames": processor.num_train_frames,
    }
    if isinstance(processor, ScalarJointProcessor):
        for name in ("modalities", "media_prompt", "add_special_tokens", "max_audio_seconds"):
            settings[name] = getattr(processor, name)
    return settings


def describe_identity(
    args: "ScalarTrainingArguments",
    model: torch.nn.Module,
    config: PretrainedConfig,
    processor: ScalarProcessor | None = None,
) -> dict[str, Any]:
    """
    Describe what identifies a run, except its data, for its checkpoints.

    Args:
        args ([`ScalarTrainingArguments`]): The arguments of the run.
        model (`torch.nn.Module`): The model, with its trainable parameters already chosen.
        config (`PretrainedConfig`): The configuration of the SCALAR model in it.
        processor ([`ScalarProcessor`], *optional*): The processor of the run.

    Returns:
        `dict` of JSON-serialisable values: fields, number of processes, and SHA-256 of larger values.
    """
    # Trained weights come from the checkpoint, so their names and shapes suffice; frozen ones come from elsewhere.
    frozen = {}
    trained = {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            trained[name] = list(value.shape)
        else:
            frozen[name] = value
    identity = fields_of_run(args) | {
        "num_processes": args.world_size,
        "model configuration": digest(settings_of(config)),
        "list of trained parameters": digest(trained),
        "frozen weights": tensors_sha256(frozen),
    }
    if processor is not None:
        identity["processor"] = digest(processor_settings(processor))
    return identity


__all__ = [
    "describe_identity",
    "digest",
    "fields_of_run",
    "processor_settings",
    "rows_sha256",
    "settings_of",
    "tensors_sha256",
]
