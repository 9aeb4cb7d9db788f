"""Configuration of a model on one joint encoder, and the supported families of such encoders."""

import re
from collections.abc import Iterable, Sequence

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_scalar import ScalarConfig, ScoreConfig
from .modalities_scalar import FAMILIES, check_slices


def check_modalities(modalities: Sequence[str]) -> None:
    """Raise a ValueError unless these are different valid names of modalities."""
    are_names = not isinstance(modalities, str) and all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in modalities)
    if not are_names or not modalities or "text" in modalities or len(set(modalities)) < len(modalities):
        raise ValueError(
            "`modalities` must be different names of lower-case letters, digits and underscores that start with a "
            f'letter, and not "text", which is the query, got {modalities!r}.'
        )


@strict
class ScalarJointConfig(ScoreConfig):
    """Configuration of [`ScalarJointModel`]: one encoder of text, video and audio, and how clips are scored.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*): The configuration of the encoder, one of
            [`FAMILIES`]. `None` for encoders of another library (`ScalarSentenceModel`).
        modalities (`list[str]`): The modalities of a clip, in the order of the axis M of embeddings `(batch, M,
            dim)`, masks `(batch, M)` and weights. Different names of lower-case letters, digits and `_`, except
            `"text"`, which is the query: `"video"`, `"audio"`, and any other name for a text; see
            [`~modalities_scalar.kind_of`].
        projection_dim (`int`): Dimension D of the shared space: the encoder's, or a smaller number of its first
            components (Matryoshka), for which only some encoders are trained.
        aggregation, query_temperature, modality_scale, modality_offset, has_logit_scale, initializer_range: See
            [`ScoreConfig`].
        has_heads (`bool`): Whether to add a head for queries and for each modality. Untrained heads change nothing.
        modality_slices (`list[list[int]]`, *optional*): For each modality the start and the stop of its slice of a
            query's components, if encoders with spaces of their own stand side by side: its embeddings are zero
            elsewhere, and slices are equal or disjoint. `None` is one space.
    """

    model_type = "scalar_joint"
    sub_configs_defaults = {
        "backbone_config": SubConfigSpec(config_class=AutoConfig, model_type="embedding_gemma2", optional=True)
    }

    backbone_config: dict | PreTrainedConfig | None = None
    projection_dim: int = 768
    has_heads: bool = False
    modality_slices: list[list[int]] | None = None

    # Fields that only three-tower models have, but that are read of both kinds.
    has_cross_attention = False
    condition_on = ()

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if isinstance(self.backbone_config, PreTrainedConfig):
            self.backbone_config.name_or_path = ""  # a local path of the machine that loaded it

    def validate_joint(self) -> None:
        """Check that fields are consistent with each other."""
        check_modalities(self.modalities)
        if self.modality_slices is not None:
            check_slices(self.modality_slices, self.modalities, self.projection_dim)
        if self.backbone_config is None:
            return
        # A known family, with a tower for each modality that is not text.
        family = FAMILIES.get(self.backbone_config.model_type)
        if family is None:
            raise ValueError(
                f"`backbone_config` must be that of a joint encoder, one of {tuple(FAMILIES)}, got "
                f"{self.backbone_config.model_type!r}."
            )
        without_tower = []
        for name, tower in family.towers.items():
            if name in self.modalities and getattr(self.backbone_config, tower) is None:
                without_tower.append(name)
        if without_tower:
            raise ValueError(f"`modalities` names {without_tower}, but `backbone_config` has no tower for them.")
        # Matryoshka: the first components of a vector can be an embedding.
        width = encoder_width(self.backbone_config)
        if not 1 <= self.projection_dim <= width:
            raise ValueError(
                f"`projection_dim` must be between 1 and the encoder's dimension {width}, got {self.projection_dim}."
            )


def encoder_width(backbone_config: PreTrainedConfig) -> int:
    """Return the dimension of an encoder's embeddings."""
    return backbone_config.text_config.embedding_dim


def check_fields(config: ScalarConfig | ScalarJointConfig, changes: Iterable[str]) -> None:
    """Raise a ValueError for fields that a configuration does not have."""
    unknown = sorted(set(changes) - set(config.to_dict()))
    if unknown:
        raise ValueError(f"{type(config).__name__} has no fields {unknown}.")


ScalarJointConfig.register_for_auto_class()

__all__ = ["ScalarJointConfig", "check_fields", "check_modalities", "encoder_width"]
