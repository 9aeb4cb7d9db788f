"""Register the classes of this package with transformers' Auto classes; imported on first access to one of them."""

from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # the name above needs Pillow

from .configuration_joint_scalar import ScalarJointConfig
from .configuration_scalar import BeatsConfig, ScalarConfig
from .feature_extraction_scalar import ScalarFeatureExtractor
from .image_processing_joint_scalar import ScalarPatchImageProcessor
from .image_processing_scalar import ScalarImageProcessor
from .modeling_beats import BeatsModel
from .modeling_joint_scalar import ScalarJointModel
from .modeling_scalar import ScalarModel
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import ScalarProcessor

for config, model, image_processor, processor in (
    (ScalarConfig, ScalarModel, ScalarImageProcessor, ScalarProcessor),
    (ScalarJointConfig, ScalarJointModel, ScalarPatchImageProcessor, ScalarJointProcessor),
):
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(config, model, exist_ok=True)
    classes = {"pil": image_processor, "torchvision": image_processor}
    AutoImageProcessor.register(config, image_processor_classes=classes, exist_ok=True)
    AutoProcessor.register(config, processor, exist_ok=True)
AutoModel.register(BeatsConfig, BeatsModel, exist_ok=True)
AutoFeatureExtractor.register(ScalarConfig, ScalarFeatureExtractor, exist_ok=True)
