"""SCALAR: query-conditioned spherical centroid aggregation for text-to-video retrieval."""

from transformers import AutoConfig, AutoFeatureExtractor, AutoImageProcessor, AutoModel, AutoProcessor

from .configuration_joint_scalar import ScalarJointConfig
from .configuration_scalar import MODALITIES, BeatsConfig, ScalarConfig
from .feature_extraction_scalar import ScalarFeatureExtractor
from .image_processing_joint_scalar import ScalarPatchImageProcessor
from .image_processing_scalar import ScalarImageProcessor
from .loading import default_device, load_model
from .media_scalar import MediaError, MediaReader
from .modeling_beats import BeatsModel
from .modeling_joint_scalar import ScalarJointModel
from .modeling_scalar import ScalarModel, ScalarOutput
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import FROM_VIDEO, Clip, ScalarProcessor

AutoConfig.register(ScalarConfig.model_type, ScalarConfig, exist_ok=True)
AutoModel.register(ScalarConfig, ScalarModel, exist_ok=True)
AutoModel.register(BeatsConfig, BeatsModel, exist_ok=True)
AutoImageProcessor.register(
    ScalarConfig,
    image_processor_classes={"pil": ScalarImageProcessor, "torchvision": ScalarImageProcessor},
    exist_ok=True,
)
AutoFeatureExtractor.register(ScalarConfig, ScalarFeatureExtractor, exist_ok=True)
AutoProcessor.register(ScalarConfig, ScalarProcessor, exist_ok=True)

AutoConfig.register(ScalarJointConfig.model_type, ScalarJointConfig, exist_ok=True)
AutoModel.register(ScalarJointConfig, ScalarJointModel, exist_ok=True)
AutoImageProcessor.register(
    ScalarJointConfig,
    image_processor_classes={"pil": ScalarPatchImageProcessor, "torchvision": ScalarPatchImageProcessor},
    exist_ok=True,
)
AutoProcessor.register(ScalarJointConfig, ScalarJointProcessor, exist_ok=True)

# What travels with a saved model, so that others load it without this package.
ScalarConfig.register_for_auto_class()
ScalarModel.register_for_auto_class("AutoModel")
ScalarJointConfig.register_for_auto_class()
ScalarJointModel.register_for_auto_class("AutoModel")

__all__ = [
    "FROM_VIDEO",
    "MODALITIES",
    "BeatsConfig",
    "BeatsModel",
    "Clip",
    "MediaError",
    "MediaReader",
    "ScalarConfig",
    "ScalarFeatureExtractor",
    "ScalarImageProcessor",
    "ScalarJointConfig",
    "ScalarJointModel",
    "ScalarJointProcessor",
    "ScalarModel",
    "ScalarOutput",
    "ScalarPatchImageProcessor",
    "ScalarProcessor",
    "default_device",
    "load_model",
]
