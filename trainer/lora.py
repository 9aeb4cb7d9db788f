"""What is trained: the adapter recipes of the paper, and full fine-tuning.

The one pattern of LoRA targets and the one list of heads live here. Counts are exact and tested on the meta device.
"""

from collections.abc import Sequence

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from modeling_scalar import ScalarModel
from modeling_scalar.aggregation_scalar import METHODS
from modeling_scalar.configuration_scalar import MODALITIES

RECIPES = ("paper", "all_towers", "full")
"""`"paper"`: LoRA in the text tower, which reads queries, subtitles and pairs (Table S1: 4,763,650 parameters).
`"all_towers"`: LoRA in the vision and audio towers too (6,860,802). `"full"`: all parameters the objective reaches."""

# Query and value projections by the names that transformers' towers and BEATs give them. The fused projection of
# EVA-CLIP is split into parts, so its key is left alone.
_QUERY_VALUE = r"\..*\.(query|value|q_proj|v_proj)"
_ADAPTED_TOWERS = {"paper": "text_model", "all_towers": "(text|vision|audio)_model"}

_EMBEDDING_HEADS = ["text_projection", "video_projection", "audio_projection", "subtitle_projection"]
_CONDITION_HEADS = {name: f"{name}_condition" for name in MODALITIES}
_TOWERS = {"video": "vision_model", "audio": "audio_model"}


def _unreached(
    model: ScalarModel, matching: bool, learnable_temperature: bool, modalities: Sequence[str]
) -> list[str]:
    """Name the modules that the objective does not reach, by whole parts of their parameters' names."""
    matched = model.config.condition_on if matching and model.config.has_cross_attention else ()
    modules = [head for name, head in _CONDITION_HEADS.items() if name not in matched]
    if not matched:
        modules += ["match_head", "crossattention"]
    for name in (name for name in MODALITIES if name not in modalities):
        modules.append(f"{name}_projection")
        if name in _TOWERS and name not in matched:  # the text tower reads the queries in any case
            modules.append(_TOWERS[name])
    if not learnable_temperature:
        modules += ["logit_scale"]
    return modules


def apply_adapters(
    model: ScalarModel,
    recipe: str = "paper",
    matching: bool = True,
    learnable_temperature: bool = False,
    r: int = 8,
    lora_alpha: int = 16,
    lora_dropout: float = 0.0,
    revision: str | None = None,
    modalities: Sequence[str] | None = None,
) -> PeftModel | ScalarModel:
    """
    Make exactly the parameters of a recipe trainable that the objective reaches.

    Args:
        model ([`ScalarModel`]): the base; it is changed in place.
        recipe (`str`): `"paper"`, `"all_towers"` or `"full"`, see [`RECIPES`].
        matching (`bool`): whether the cross-encoder is trained; it needs a text tower with cross-attention. What it
            reads is the model's `condition_on`.
        learnable_temperature (`bool`): whether the contrastive temperature is; the model must hold one.
        r (`int`), lora_alpha (`int`), lora_dropout (`float`): LoRA rank, scale and dropout (Table S1: 8, 16, 0.0).
            Unused by `"full"`.
        revision (`str`, *optional*): commit of a base on the Hub, which the adapter then names: it belongs to these
            weights, not to later ones. Unused by `"full"`.
        modalities (`Sequence[str]`, *optional*): those whose embeddings the objective reads; by default those that the
            model's score reads.

    Returns:
        The PEFT model, or for `"full"` the model itself.

    Raises:
        ValueError: the recipe is unknown, or there is no temperature to learn.
    """
    if recipe not in RECIPES:
        raise ValueError(f"`recipe` must be one of {RECIPES}, got {recipe!r}.")
    if learnable_temperature and not model.config.has_logit_scale:
        raise ValueError("`learnable_temperature` needs a model with a temperature: load it with `has_logit_scale`.")
    if modalities is None:
        modalities = METHODS[model.config.aggregation].reads
    unreached = _unreached(model, matching, learnable_temperature, modalities)
    if recipe == "full":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not set(unreached) & set(name.split("."))
        return model
    heads = [*_EMBEDDING_HEADS, "match_head", *_CONDITION_HEADS.values(), "hyperbolic", "logit_scale"]
    left_out = r"(?!.*\.crossattention\.)" if "crossattention" in unreached else ""
    left_out += "".join(rf"(?!{tower}\.)" for tower in _TOWERS.values() if tower in unreached)
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=r,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        target_modules=left_out + _ADAPTED_TOWERS[recipe] + _QUERY_VALUE,
        modules_to_save=[name for name in heads if hasattr(model, name) and name not in unreached],
    )
    return get_peft_model(model, config, revision=revision)


def lora_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the trainable matrices of LoRA; what is trained beside them are heads."""
    return [value for name, value in model.named_parameters() if value.requires_grad and ".lora_" in name]


def count_parameters(model: torch.nn.Module, trainable: bool = True) -> dict[str, int]:
    """Count trainable, or frozen, parameters by top-level module of [`ScalarModel`], adapters under their tower."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == trainable:
            part = name.removeprefix("base_model.model.").split(".")[0]
            counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


__all__ = ["RECIPES", "apply_adapters", "count_parameters", "lora_parameters"]
