"""The towers of pictures and of sound in both kinds of models: what a frozen one gives can be computed once."""

from dataclasses import dataclass
from operator import attrgetter

import torch

from modeling_scalar import ScalarJointConfig
from modeling_scalar.configuration_joint_scalar import FAMILIES
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel


@dataclass(frozen=True)
class Tower:
    """
    The tower of one modality.

    Args:
        modules (`tuple` of `str`): its parts, by their names in the model.
        inputs (`tuple` of `str`): the arguments of the model that it alone reads.
        features (`tuple` of `str`): what takes their place once it has run; see `get_tower_features` of the model.
    """

    modules: tuple[str, ...]
    inputs: tuple[str, ...]
    features: tuple[str, ...]

    def parts(self, model: ScalarRetrievalModel) -> dict[str, torch.nn.Module]:
        """Return those parts that a model has: a joint encoder leaves out what it does not embed."""
        found = {name: attrgetter(name)(model) for name in self.modules}
        return {name: part for name, part in found.items() if part is not None}

    def is_frozen(self, model: ScalarRetrievalModel) -> bool:
        """Whether nothing of it is trained."""
        return not any(value.requires_grad for part in self.parts(model).values() for value in part.parameters())


_OF_THREE = {
    "video": Tower(("vision_model",), ("pixel_values_videos",), ("video_pooled", "video_states")),
    "audio": Tower(("audio_model",), ("input_features",), ("audio_pooled", "audio_states")),
}
_OF_JOINT = {
    "video": Tower(
        ("backbone.vision_tower", "backbone.embed_vision"),
        ("pixel_values_videos", "video_position_ids"),
        ("video_soft_tokens", "video_input_ids"),
    ),
    "audio": Tower(
        ("backbone.audio_tower", "backbone.embed_audio"),
        ("input_features", "input_features_mask"),
        ("audio_soft_tokens", "audio_input_ids"),
    ),
}


def towers_of(model: ScalarRetrievalModel) -> dict[str, Tower]:
    """
    Return the towers of a model by their modality.

    Raises:
        ValueError: it is not saved, or another library computes it, which gives no gradients.
    """
    if not isinstance(model.config, ScalarJointConfig):
        return _OF_THREE
    if model.config.backbone_config is None:
        raise ValueError(
            "This encoder is PE-AV, which is not saved, or computed by Sentence Transformers, without gradients, so "
            f"nothing of it can be trained or stored for training. Of joint encoders those of {' or '.join(FAMILIES)} "
            "can."
        )
    return _OF_JOINT


def encoder_parts(model: ScalarRetrievalModel) -> list[torch.nn.Module]:
    """Return the towers of a model, or the parts of its joint encoder: what is compiled by itself."""
    if isinstance(model.config, ScalarJointConfig):
        return list(model.backbone.children())
    return [model.vision_model, model.audio_model, model.text_model]


__all__ = ["Tower", "encoder_parts", "towers_of"]
