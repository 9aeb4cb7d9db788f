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
_UNREACHED = ("subtitle_condition.",)


def apply_adapters(
    model: ScalarModel, recipe: str = "paper", r: int = 8, lora_alpha: int = 16, lora_dropout: float = 0.0
) -> PeftModel | ScalarModel:
    """
    Make exactly the parameters of a recipe trainable.

    Args:
        model ([`ScalarModel`]): the base; it is changed in place.
        recipe (`str`): `"paper"`, `"all_towers"` or `"full"`, see [`RECIPES`].
        r (`int`), lora_alpha (`int`), lora_dropout (`float`): LoRA rank, scale and dropout (Table S1: 8, 16, 0.0).
            Unused by `"full"`.

    Returns:
        The PEFT model, or for `"full"` the model itself.

    Raises:
        ValueError: the recipe is unknown.
    """
    if recipe not in RECIPES:
        raise ValueError(f"`recipe` must be one of {RECIPES}, got {recipe!r}.")
    matching = _MATCHING_HEADS if model.config.has_cross_attention else []
    if recipe == "full":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not name.startswith(_UNREACHED)
        return model
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=r,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        target_modules=_ADAPTED_TOWERS[recipe] + _QUERY_VALUE,
        modules_to_save=_EMBEDDING_HEADS + matching,
    )
    return get_peft_model(model, config)


def count_trainable(model) -> dict[str, int]:
    """Count trainable parameters by top-level module of [`ScalarModel`], adapters under the tower they sit in."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = name.removeprefix("base_model.model.").split(".")[0]
            counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


__all__ = ["RECIPES", "apply_adapters", "count_trainable"]
