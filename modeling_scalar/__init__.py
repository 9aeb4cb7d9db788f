"""SCALAR: query-conditioned spherical centroid aggregation for text-to-video retrieval.

Names are imported on first access, so `import scalar_retrieval.modeling_scalar.scores_scalar` loads only torch and one
file. The first access to a class registers all of them with transformers' Auto classes.
"""

from importlib import import_module
from typing import Any

_FILES = {
    "configuration_joint_scalar": ("ScalarJointConfig",),
    "configuration_scalar": ("MODALITIES", "BeatsConfig", "ScalarConfig"),
    "feature_extraction_scalar": ("ScalarFeatureExtractor",),
    "image_processing_joint_scalar": ("ScalarPatchImageProcessor",),
    "image_processing_scalar": ("ScalarImageProcessor",),
    "loading": ("load_model",),
    "media_scalar": ("MediaError", "MediaReader"),
    "model_identity": ("default_device",),
    "modeling_beats": ("BeatsModel",),
    "modeling_joint_scalar": ("ScalarJointModel",),
    "modeling_scalar": ("ScalarModel",),
    "processing_joint_scalar": ("ScalarJointProcessor",),
    "processing_scalar": ("FROM_VIDEO", "Clip", "ScalarProcessor"),
    "retrieval_scalar": ("ScalarOutput",),
    "scores_scalar": ("kind_of", "query_weights", "register_method", "retrieval_scores"),
}
_PLACES = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _PLACES[name] != "scores_scalar":
        import_module(".registration", __name__)
    globals()[name] = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__


__all__ = sorted(_PLACES)
