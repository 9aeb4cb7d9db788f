"""SCALAR: query-conditioned spherical centroid aggregation for text-to-video retrieval."""

from transformers import AutoConfig, AutoModel

from .configuration_scalar import MODALITIES, BeatsConfig, ScalarConfig
from .modeling_beats import BeatsModel
from .modeling_scalar import ScalarModel, ScalarOutput

AutoConfig.register(ScalarConfig.model_type, ScalarConfig, exist_ok=True)
AutoModel.register(ScalarConfig, ScalarModel, exist_ok=True)
AutoModel.register(BeatsConfig, BeatsModel, exist_ok=True)

# What travels with a saved model, so that others load it without this package.
ScalarConfig.register_for_auto_class()
ScalarModel.register_for_auto_class("AutoModel")

__all__ = [
    "MODALITIES",
    "BeatsConfig",
    "BeatsModel",
    "ScalarConfig",
    "ScalarModel",
    "ScalarOutput",
]
