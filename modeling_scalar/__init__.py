"""SCALAR: query-conditioned spherical centroid aggregation for text-to-video retrieval.

Names are imported on first access, so `import scalar_retrieval.modeling_scalar.scores_scalar` loads only torch and two
files. The first access registers all classes with transformers' Auto classes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .configuration_joint_scalar import ScalarJointConfig
    from .configuration_scalar import MODALITIES, BeatsConfig, ScalarConfig
    from .feature_extraction_scalar import ScalarFeatureExtractor
    from .image_processing_scalar import ScalarImageProcessor
    from .loading import load_model
    from .model_identity import default_device
    from .modeling_beats import BeatsModel
    from .modeling_joint_scalar import ScalarJointModel
    from .modeling_scalar import ScalarModel
    from .processing_joint_scalar import ScalarJointProcessor
    from .processing_scalar import Clip, ScalarProcessor
    from .retrieval_scalar import ScalarOutput

_FILES = {
    "BeatsConfig": "configuration_scalar",
    "BeatsModel": "modeling_beats",
    "Clip": "processing_scalar",
    "MODALITIES": "configuration_scalar",
    "ScalarConfig": "configuration_scalar",
    "ScalarFeatureExtractor": "feature_extraction_scalar",
    "ScalarImageProcessor": "image_processing_scalar",
    "ScalarJointConfig": "configuration_joint_scalar",
    "ScalarJointModel": "modeling_joint_scalar",
    "ScalarJointProcessor": "processing_joint_scalar",
    "ScalarModel": "modeling_scalar",
    "ScalarOutput": "retrieval_scalar",
    "ScalarProcessor": "processing_scalar",
    "default_device": "model_identity",
    "load_model": "loading",
}

if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _FILES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module(".registration", __name__)
        globals()[name] = getattr(import_module(f".{_FILES[name]}", __name__), name)
        return globals()[name]


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "MODALITIES",
    "BeatsConfig",
    "BeatsModel",
    "Clip",
    "ScalarConfig",
    "ScalarFeatureExtractor",
    "ScalarImageProcessor",
    "ScalarJointConfig",
    "ScalarJointModel",
    "ScalarJointProcessor",
    "ScalarModel",
    "ScalarOutput",
    "ScalarProcessor",
    "default_device",
    "load_model",
]
