"""What is trained: the adapter recipes of the paper, and full fine-tuning.

The one pattern of LoRA targets and the one list of heads live here. Counts are exact and tested on the meta device.
"""

from peft import LoraConfig, PeftModel, get_peft_model

from modeling_scalar import ScalarModel

RECIPES = ("paper", "all_towers", "full")
"""`"paper"`: LoRA in the text tower, which reads queries, subtitles and pairs (Table S1: 4,763,650 parameters).
`"all_towers"`: LoRA in the vision and audio towers too (6,860,802). `"full"`: all parameters the objective reaches."""

# Query and value projections by the names that transformers' towers and BEATs give them. The fused projection of
# EVA-CLIP is split into parts, so its key is left alone.
_QUERY_VALUE = r"\..*\.(query|value|q_proj|v_proj)"
_ADAPTED_TOWERS = {"paper": "text_model", "all_towers": "(text|vision|audio)_model"}

_EMBEDDING_HEADS = ["text_projection", "video_projection", "audio_projection", "subtitle_projection"]
# The matching loss conditions on video and audio only, so the subtitle's condition encoder is never trained.
_MATCHING_HEADS = ["match_head", "video_condition", "audio_condition"]
_NEVER_REACHED = "subtitle_condition"


def _unreached(model: ScalarModel, matching: bool, learnable_temperature: bool) -> list[str]:
    """Name the modules that the objective does not reach, by whole parts of their parameters' names."""
    modules = [_NEVER_REACHED]
    if not (matching and model.config.has_cross_attention):
        modules += [*_MATCHING_HEADS, "crossattention"]
    if model.config.aggregation == "triangle":
        modules += ["subtitle_projection"]
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
) -> PeftModel | ScalarModel:
    """
    Make exactly the parameters of a recipe trainable that the objective reaches.

    Args:
        model ([`ScalarModel`]): the base; it is changed in place.
        recipe (`str`): `"paper"`, `"all_towers"` or `"full"`, see [`RECIPES`].
        matching (`bool`): whether the cross-encoder is trained; it needs a text tower with cross-attention.
        learnable_temperature (`bool`): whether the contrastive temperature is; the model must hold one.
        r (`int`), lora_alpha (`int`), lora_dropout (`float`): LoRA rank, scale and dropout (Table S1: 8, 16, 0.0).
            Unused by `"full"`.
        revision (`str`, *optional*): commit of a base on the Hub, which the adapter then names: it belongs to these
            weights, not to later ones. Unused by `"full"`.

    Returns:
        The PEFT model, or for `"full"` the model itself.

    Raises:
        ValueError: the recipe is unknown, or there is no temperature to learn.
    """
    if recipe not in RECIPES:
        raise ValueError(f"`recipe` must be one of {RECIPES}, got {recipe!r}.")
    if learnable_temperature and not model.config.has_logit_scale:
        raise ValueError("`learnable_temperature` needs a model with a temperature: load it with `has_logit_scale`.")
    unreached = _unreached(model, matching, learnable_temperature)
    if recipe == "full":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not set(unreached) & set(name.split("."))
        return model
    heads = [*_EMBEDDING_HEADS, *_MATCHING_HEADS, "hyperbolic", "logit_scale"]
    without_cross_attention = r"(?!.*\.crossattention\.)" if "crossattention" in unreached else ""
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=r,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        target_modules=without_cross_attention + _ADAPTED_TOWERS[recipe] + _QUERY_VALUE,
        modules_to_save=[name for name in heads if hasattr(model, name) and name not in unreached],
    )
    return get_peft_model(model, config, revision=revision)


def count_parameters(model, trainable: bool = True) -> dict[str, int]:
    """Count trainable, or frozen, parameters by top-level module of [`ScalarModel`], adapters under their tower."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == trainable:
            part = name.removeprefix("base_model.model.").split(".")[0]
            counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


__all__ = ["RECIPES", "apply_adapters", "count_parameters"]
