"""Configuration of a model on one joint encoder, and what is known of the families of such encoders."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .configuration_scalar import MODALITIES, ScalarConfig, check_weighing


@dataclass(frozen=True)
class JointFamily:
    """
    What has to be known of a kind of joint encoder that transformers does not say in one way for all.

    Args:
        towers (`dict`): the part of the configuration that each modality alone needs; without it the modality is left
            out, and nothing of it is loaded.
        width (`tuple` of `str`): where the configuration states the dimension of the tokens that are pooled.
        adapted (`dict`): what an adapter changes by default, the query and value projections, as patterns of the
            names of modules below the encoder: of the trunk, which all modalities share (`"trunk"`), and of the parts
            of single modalities.
        has_float16 (`bool`): whether half precision of 16 bits has the range that its activations need.
    """

    towers: dict[str, str]
    width: tuple[str, ...]
    adapted: dict[str, str]
    has_float16: bool = True


FAMILIES = {
    "embedding_gemma2": JointFamily(
        towers={"video": "vision_config", "audio": "audio_config"},
        width=("text_config", "embedding_dim"),
        adapted={
            "trunk": r"language_model\.layers\.\d+\.self_attn\.(q|v)_proj",
            # The layers of the towers clip their values, and hold the linear one that can be adapted.
            "video": r"vision_tower\.encoder\.layers\.\d+\.self_attn\.(q|v)_proj\.linear",
            "audio": r"audio_tower\.layers\.\d+\.self_attn\.(q|v)_proj\.linear",
        },
        has_float16=False,
    ),
}
"""The families that [`ScalarJointModel`] computes, by the `model_type` of the encoder."""


def check_modalities(modalities: Sequence[str]) -> None:
    """Raise a ValueError unless these are different names that modalities can have, not `"fused"` alone."""
    are_names = not isinstance(modalities, str) and all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in modalities)
    if not are_names or not modalities or "text" in modalities or len(set(modalities)) < len(modalities):
        raise ValueError(
            "`modalities` must be different names of small letters, digits and underscores, a letter first, none of "
            f'them "text", which is the query, got {modalities!r}.'
        )
    if list(modalities) == ["fused"]:
        raise ValueError('"fused" is made of other modalities: name these too, `["video", "audio", "fused"]` say.')


@strict
class ScalarJointConfig(PreTrainedConfig):
    """Configuration of [`ScalarJointModel`]: one encoder of texts, pictures and sound, and how clips are scored.

    Args:
        backbone_config (`PreTrainedConfig` or `dict`, *optional*): of the encoder, one of [`FAMILIES`]. `None` for
            encoders that another library holds (`ScalarSentenceModel`).
        modalities (`list[str]`): what is embedded of a clip, in the order of the axis M of embeddings `(batch, M,
            dim)`, masks `(batch, M)` and weights. Any different names of small letters, digits and `_` but `"text"`,
            which is the query: `"video"`, `"audio"`, `"fused"`, the encoder's one vector of all the others that a clip
            has, and texts, which all other names are; see [`~scores_scalar.kind_of`].
        projection_dim (`int`): dimension D of the shared space: the encoder's, or fewer of its first components
            (Matryoshka), which only some encoders are trained for.
        aggregation (`str`), query_temperature (`float`), modality_scale, modality_offset (`list[float]`, *optional*),
            modality_term (`list[float | None]`, *optional*), has_logit_scale (`bool`): as in [`ScalarConfig`].
        has_heads (`bool`): hold a head for texts and one for each modality, which changes the encoder's vectors; not
            before it is trained.
        initializer_range (`float`): standard deviation of what is newly initialised.
    """

    model_type = "scalar_joint"
    sub_configs_defaults = {
        "backbone_config": SubConfigSpec(config_class=AutoConfig, model_type="embedding_gemma2", optional=True)
    }

    backbone_config: dict | PreTrainedConfig | None = None
    modalities: list[str] | tuple[str, ...] = MODALITIES
    projection_dim: int = 768
    aggregation: str = "scalar"
    query_temperature: float | int = 0.1
    modality_scale: list[float | int] | tuple[float | int, ...] | None = None
    modality_offset: list[float | int] | tuple[float | int, ...] | None = None
    modality_term: list[float | int | None] | tuple[float | int | None, ...] | None = None
    has_logit_scale: bool = False
    has_heads: bool = False
    initializer_range: float = 0.02

    # What only the model with three towers may have; whoever scores or embeds asks both kinds.
    has_concat_heads = False
    has_cross_attention = False
    condition_on = ()

    def __post_init__(self, **kwargs):
        self.modalities = list(self.modalities)
        super().__post_init__(**kwargs)
        if isinstance(self.backbone_config, PreTrainedConfig):
            self.backbone_config._name_or_path = ""  # a folder of the machine that it was loaded on

    def validate_joint(self) -> None:
        """Check the relations between fields on which the model relies."""
        check_modalities(self.modalities)
        check_weighing(self)
        if self.backbone_config is None:
            return
        family = FAMILIES.get(self.backbone_config.model_type)
        if family is None:
            raise ValueError(
                f"`backbone_config` must be of a family of joint encoders {tuple(FAMILIES)}, got "
                f"{self.backbone_config.model_type!r}."
            )
        lacking = [
            name
            for name, tower in family.towers.items()
            if name in self.modalities and getattr(self.backbone_config, tower) is None
        ]
        if lacking:
            raise ValueError(f"`modalities` names {lacking}, but `backbone_config` has no tower for them.")
        if not 1 <= self.projection_dim <= (width := encoder_width(self.backbone_config)):
            raise ValueError(
                f"`projection_dim` must be from 1 to the encoder's own dimension {width}, got {self.projection_dim}."
            )


def encoder_width(backbone_config: PreTrainedConfig) -> int:
    """Return the dimension of an encoder's embeddings."""
    value = backbone_config
    for name in FAMILIES[backbone_config.model_type].width:
        value = getattr(value, name)
    return value


def check_fields(config: ScalarConfig | ScalarJointConfig, changes: Iterable[str]) -> None:
    """Raise a ValueError if a configuration has no such fields; of those of the other kind of model it says so."""
    unknown = sorted(set(changes) - set(config.to_dict()))
    if not unknown:
        return
    is_joint = isinstance(config, ScalarJointConfig)
    if set(unknown) <= set((ScalarConfig if is_joint else ScalarJointConfig)().to_dict()):
        kind, other = ("a joint encoder", "three towers") if is_joint else ("three towers", "a joint encoder")
        raise ValueError(
            f"{unknown} can be set for {other}, and this is a model of {kind}. Leave them out, or take a model of the "
            "other kind."
        )
    raise ValueError(f"{type(config).__name__} has no fields {unknown}; check their spelling.")


ScalarJointConfig.register_for_auto_class()

__all__ = ["FAMILIES", "JointFamily", "ScalarJointConfig", "check_fields", "check_modalities", "encoder_width"]
