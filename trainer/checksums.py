"""SHA-256 of what a run, or a folder of features, was made from: the same content has the same one anywhere."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from modeling_scalar import ScalarJointProcessor, ScalarProcessor

# Of a configuration, what does not change the function it describes.
_NO_SETTING = {"architectures", "auto_map", "dtype", "transformers_version", "_name_or_path"}


def digest(content: Any) -> str:
    """Return the SHA-256 of what JSON can hold, and of arrays."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=np.ndarray.tolist).encode()).hexdigest()


def tensors_sha256(tensors: dict[str, torch.Tensor], start: str = "") -> str:
    """Return the SHA-256 of named tensors in their order, after the text `start`."""
    content = hashlib.sha256(start.encode())
    for name, value in tensors.items():
        content.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        content.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return content.hexdigest()


def rows_sha256(*columns: Sequence[str | None]) -> str:
    """Return the SHA-256 of the rows of a table, one line of JSON each, given by its columns."""
    content = hashlib.sha256()
    for row in zip(*columns, strict=True):
        content.update(json.dumps(row).encode() + b"\n")
    return content.hexdigest()


def settings_of(part: Any) -> dict[str, Any]:
    """Return what a configuration or processor sets, without what does not change what it does."""
    return {name: value for name, value in part.to_dict().items() if name not in _NO_SETTING}


def processor_settings(processor: ScalarProcessor) -> dict[str, Any]:
    """Return all settings of a processor but those of texts and of testing."""
    of_joint = ("modalities", "media_prompt", "add_special_tokens", "max_audio_seconds")
    names = of_joint if isinstance(processor, ScalarJointProcessor) else ()
    return {name: getattr(processor, name) for name in names} | {
        "image_processor": settings_of(processor.image_processor),
        "feature_extractor": settings_of(processor.feature_extractor),
        "num_train_frames": processor.num_train_frames,
        "presence": processor.presence,
    }


__all__ = ["digest", "processor_settings", "rows_sha256", "settings_of", "tensors_sha256"]
