"""The vision and audio towers of both kinds of models; the output of a frozen tower can be precomputed."""

from dataclasses import dataclass
from operator import attrgetter

import torch

from scalar_retrieval.modeling_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.modalities_scalar import FAMILIES
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel


@dataclass(frozen=True)
class Tower:
    """
    The tower of one modality.

    Args:
        modules (`tuple` of `str`): The names of its parts in the model.
        inputs (`tuple` of `str`): The model's arguments that only this tower reads.
        output (`str`): What replaces them, one of the outputs of the model's `get_tower_features`.
    """

    modules: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str

    def parts(self, model: ScalarRetrievalModel) -> dict[str, torch.nn.Module]:
        """Return the parts that a model has; a joint encoder lacks those of modalities it does not embed."""
        # A joint encoder has None for what it does not need.
        parts = {}
        for name in self.modules:
            part = attrgetter(name)(model)
            if part is not None:
                parts[name] = part
        return parts

    def is_frozen(self, model: ScalarRetrievalModel) -> bool:
        """Whether it has no trainable parameters."""
        for part in self.parts(model).values():
            if any(value.requires_grad for value in part.parameters()):
                return False
        return True


_OF_THREE = {
    "video": Tower(("vision_model",), ("pixel_values_videos",), "video_pooled"),
    "audio": Tower(("audio_model",), ("input_features",), "audio_pooled"),
}
_OF_JOINT = {
    "video": Tower(
        ("backbone.vision_tower", "backbone.embed_vision"),
        ("pixel_values_videos", "video_position_ids"),
        "video_soft_tokens",
    ),
    "audio": Tower(
        ("backbone.audio_tower", "backbone.embed_audio"),
        ("input_features", "input_features_mask"),
        "audio_soft_tokens",
    ),
}


def towers_of(model: ScalarRetrievalModel) -> dict[str, Tower]:
    """
    Return the towers of a model by modality.

    Raises:
        ValueError: If the encoder is used as published, without gradients.
    """
    if not isinstance(model.config, ScalarJointConfig):
        return _OF_THREE
    if model.config.backbone_config is None:
        raise ValueError(
            f"{type(model).__name__} uses its encoder as published, without gradients: at most heads on it can be "
            "trained (`adapter: heads`, with a gallery as `features`). For anything else, or to store features, use "
            f"{' or '.join(FAMILIES)}."
        )
    return _OF_JOINT


__all__ = ["Tower", "towers_of"]
