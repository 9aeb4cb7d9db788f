"""Compose a three-tower model from pretrained encoders. For programs; a saved model already has its towers."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel

from .configuration_scalar import ScalarConfig
from .modeling_scalar import TOWERS, ScalarModel, adapt_tower


def compose(
    vision: str | PreTrainedModel, audio: str | PreTrainedModel, text: str | PreTrainedModel, **fields: Any
) -> ScalarModel:
    """
    Compose a model; see [`ScalarModel.from_encoders`].

    Raises:
        ValueError: If weights are missing.
    """
    towers = {
        "vision": _load_tower(vision, "vision"),
        "audio": _load_tower(audio, "audio"),
        "text": _load_tower(text, "text"),
    }
    for name, tower in towers.items():
        fields[f"{name}_config"] = tower.config
    config = ScalarConfig(**fields)
    model = ScalarModel(config)
    for name, tower in towers.items():
        setattr(model, f"{name}_model", adapt_tower(tower, getattr(config, f"{name}_pooling")))
    return model.to(model.dtype).eval()


def _load_tower(tower: str | PreTrainedModel, name: str) -> PreTrainedModel:
    if isinstance(tower, PreTrainedModel):
        return tower
    config = AutoConfig.from_pretrained(tower, trust_remote_code=False)
    # Of a dual encoder such as CLIP only one half is used.
    is_dual = hasattr(config, f"{name}_config")
    tower_class = AutoModel if is_dual else TOWERS.get(config.model_type, AutoModel)
    options = {"dtype": torch.float32, "trust_remote_code": False}
    model, info = tower_class.from_pretrained(tower, output_loading_info=True, **options)
    # Poolers are dropped unless requested, and cross-attention is new for an encoder's weights.
    missing = [key for key in info["missing_keys"] if "crossattention" not in key and "pooler" not in key]
    if missing:
        raise ValueError(
            f"{tower} lacks {len(missing)} weights of {type(model).__name__}, such as {sorted(missing)[:3]}, so it is "
            f"not a checkpoint of it. Load the {name} encoder yourself and pass the model."
        )
    if is_dual:
        return getattr(model, f"{name}_model")
    return model


__all__ = ["compose"]
