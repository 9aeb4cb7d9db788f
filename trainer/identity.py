"""What makes a run: a checkpoint of another one is refused, for the steps that follow would be of neither."""

from typing import Any

import torch

from .checksums import digest, processor_settings, settings_of, tensors_sha256
from .data import Examples
from .lora import without_adapter
from .semantic_targets import SemanticTargets
from .training_args import ScalarTrainingArguments

# Those of the optimizer are restored from a checkpoint: another value here would have no effect.
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
    "uniformity_scale",
    "loss_warmup_steps",
    "matching_weight",
    "full_view_probability",
    "full_view_decay_steps",
    "min_view_modalities",
    "negatives_from",
    "learning_rate",
    "lora_learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim",
    "max_grad_norm",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "dataloader_drop_last",
    "seed",
    "data_seed",
)
_FREE = ("max_steps", "num_train_epochs", "mini_batch_size", "bf16", "fp16")


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # of an enumeration


def fields_of_run(args: ScalarTrainingArguments) -> dict[str, Any]:
    """Return the fields that must be the same when a run is resumed."""
    return {name: _plain(getattr(args, name)) for name in _FIELDS}


def free_fields(args: ScalarTrainingArguments) -> dict[str, Any]:
    """Return the fields that change what is computed, but that may be changed when a run is resumed."""
    return {name: _plain(getattr(args, name)) for name in _FREE}


def describe_identity(
    args: ScalarTrainingArguments,
    model: torch.nn.Module,
    dataset: torch.utils.data.Dataset,
    processor: Any,
    semantic_targets: Any = None,
) -> dict[str, Any]:
    """
    Describe what makes a run, for its checkpoints.

    Args:
        args ([`ScalarTrainingArguments`]): of the run.
        model (`torch.nn.Module`): what is trained, its trainable parameters already chosen.
        dataset: of the examples.
        processor ([`ScalarProcessor`], *optional*): of the run.
        semantic_targets ([`SemanticTargets`], *optional*): of the training captions.

    Returns:
        `dict` of what JSON can hold: fields, number of processes and examples, and SHA-256 of what is larger.
    """
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    trained = {name: list(value.shape) for name, value in model.named_parameters() if value.requires_grad}
    identity = fields_of_run(args) | {
        "num_processes": args.world_size,
        "num_examples": len(dataset),
        "model configuration": digest(settings_of(without_adapter(model).config)),
        "list of trained parameters": digest(trained),
        "frozen weights": tensors_sha256(frozen),
    }
    if isinstance(dataset, Examples):
        identity |= dataset.identity()
    if isinstance(semantic_targets, SemanticTargets):
        identity["semantic targets"] = semantic_targets.sha256()
    if processor is not None:
        identity["processor"] = digest(processor_settings(processor))
    return identity


__all__ = ["describe_identity", "fields_of_run", "free_fields"]
