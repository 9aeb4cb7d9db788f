"""What is trained: the adapter recipes of the paper, the parts of a joint encoder, and full fine-tuning.

The one pattern of LoRA targets and the one list of heads live here. Counts are exact and tested on the meta device.
"""

from collections.abc import Sequence

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils.constants import DUMMY_TARGET_MODULES

from modeling_scalar import ScalarJointConfig, ScalarJointModel, ScalarModel
from modeling_scalar.checking import part_of
from modeling_scalar.configuration_joint_scalar import FAMILIES
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from modeling_scalar.scores_scalar import METHODS

from .towers import towers_of

RECIPES = ("paper", "all_towers", "full")
"""`"paper"`: LoRA in the text tower, which reads queries, subtitles and pairs (Table S1: 4,763,650 parameters).
`"all_towers"`: LoRA in the vision and audio towers too (6,860,802). `"full"`: all parameters the objective reaches."""
PARTS = ("trunk", "video", "audio", "heads")
"""What an adapter of a joint encoder changes, one or several: LoRA in the trunk that all modalities share, or in the
tower of one of them, and the heads of [`ScalarJointConfig`], which need no gradient through the encoder."""

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


def parts_of(recipe: str) -> tuple[str, ...]:
    """
    Return the parts of a joint encoder that a recipe names, such as `"trunk,heads"`; none if it is one of [`RECIPES`].

    Raises:
        ValueError: it is neither.
    """
    if recipe in RECIPES:
        return ()
    parts = tuple(recipe.split(","))
    if not set(parts) <= set(PARTS) or len(set(parts)) < len(parts):
        raise ValueError(
            f"`adapter` must be one of {RECIPES}, or for a joint encoder some of {PARTS}, each once and separated by "
            f"commas, got {recipe!r}."
        )
    return parts


def _targets(model: ScalarModel, recipe: str, unreached: Sequence[str]) -> tuple[str, list[str]]:
    """The pattern of LoRA's targets, and the heads that are trained whole."""
    heads = [*_EMBEDDING_HEADS, "match_head", *_CONDITION_HEADS.values(), "hyperbolic", "logit_scale"]
    left_out = r"(?!.*\.crossattention\.)" if "crossattention" in unreached else ""
    left_out += "".join(rf"(?!{tower}\.)" for tower in _TOWERS.values() if tower in unreached)
    return (
        left_out + _ADAPTED_TOWERS[recipe] + _QUERY_VALUE,
        [name for name in heads if hasattr(model, name) and name not in unreached],
    )


def _joint_unreached(model: ScalarJointModel, learnable_temperature: bool, modalities: Sequence[str]) -> list[str]:
    """Name the modules of a joint encoder that the objective does not reach."""
    modules, towers = [] if learnable_temperature else ["logit_scale"], towers_of(model)
    for name in (name for name in model.config.modalities if name not in modalities):
        modules.append(f"{name}_head")
        if name in towers:
            modules += [module.rpartition(".")[2] for module in towers[name].modules]
    return modules


def _joint_targets(
    model: ScalarJointModel, parts: Sequence[str], unreached: Sequence[str], modalities: Sequence[str]
) -> tuple[str, list[str]]:
    """As [`_targets`], of a joint encoder."""
    if not parts:
        raise ValueError(
            f"The adapters of three towers do not fit a joint encoder. Set `adapter` to some of {PARTS}, separated by "
            "commas, or to 'full'."
        )
    if "heads" in parts and not model.config.has_heads:
        raise ValueError("`adapter: heads` needs a model with heads: load it with `has_heads=True`.")
    reached = [name for name in model.config.modalities if name in modalities]
    lacking = [name for name in parts if name not in ("trunk", "heads", *reached)]
    if lacking:
        raise ValueError(f"`adapter` names {lacking}, but of clips this model trains {reached} only. Leave them out.")
    adapted = FAMILIES[model.config.backbone_config.model_type].adapted
    patterns = [adapted[part] for part in parts if part != "heads"]
    heads = [f"{name}_head" for name in ("text", *model.config.modalities)] if "heads" in parts else []
    return (
        rf"backbone\.({'|'.join(patterns)})" if patterns else DUMMY_TARGET_MODULES,
        [name for name in (*heads, "hyperbolic", "logit_scale") if hasattr(model, name) and name not in unreached],
    )


def apply_adapters(
    model: ScalarRetrievalModel,
    recipe: str = "paper",
    matching: bool = True,
    learnable_temperature: bool = False,
    revision: str | None = None,
    modalities: Sequence[str] | None = None,
) -> PeftModel | ScalarRetrievalModel:
    """
    Make exactly the parameters of a recipe trainable that the objective reaches.

    Args:
        model ([`ScalarModel`] or [`ScalarJointModel`]): the base; it is changed in place.
        recipe (`str`): `"paper"`, `"all_towers"` or `"full"`, see [`RECIPES`]; of a joint encoder `"full"`, or some of
            [`PARTS`], separated by commas.
        matching (`bool`): whether the cross-encoder is trained; it needs a text tower with cross-attention. What it
            reads is the model's `condition_on`.
        learnable_temperature (`bool`): whether the contrastive temperature is; the model must hold one.
        revision (`str`, *optional*): commit of a base on the Hub, which the adapter then names: it belongs to these
            weights, not to later ones. Unused by `"full"`.
        modalities (`Sequence[str]`, *optional*): those whose embeddings the objective reads; by default those that the
            model's score reads.

    Returns:
        The PEFT model, or for `"full"` the model itself.

    Raises:
        ValueError: the recipe is unknown or of another kind of model, or there is no temperature to learn.
    """
    parts = parts_of(recipe)
    if learnable_temperature and not model.config.has_logit_scale:
        raise ValueError("`learnable_temperature` needs a model with a temperature: load it with `has_logit_scale`.")
    if modalities is None:
        modalities = METHODS[model.config.aggregation].reads or model.config.modalities
    is_joint = isinstance(model.config, ScalarJointConfig)
    if is_joint:
        unreached = _joint_unreached(model, learnable_temperature, modalities)
    else:
        unreached = _unreached(model, matching, learnable_temperature, modalities)
    if recipe == "full":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not set(unreached) & set(name.split("."))
        return model
    if is_joint:
        targets, heads = _joint_targets(model, parts, unreached, modalities)
    elif parts:
        raise ValueError(f"`adapter: {recipe}` is of a joint encoder; of three towers it must be one of {RECIPES}.")
    else:
        targets, heads = _targets(model, recipe, unreached)
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=8,  # rank, scale and dropout as in Table S1
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=targets,
        modules_to_save=heads,
    )
    return get_peft_model(model, config, revision=revision)


def without_adapter(model: PeftModel | ScalarRetrievalModel) -> ScalarRetrievalModel:
    """Return the SCALAR model itself; its layers stay adapted."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def lora_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the trainable matrices of LoRA; what is trained beside them are heads."""
    return [value for name, value in model.named_parameters() if value.requires_grad and ".lora_" in name]


def count_parameters(model: torch.nn.Module, trainable: bool = True) -> dict[str, int]:
    """Count trainable, or frozen, parameters by [`part_of`] the model, adapters under their tower."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == trainable:
            part = part_of(name)
            counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


__all__ = [
    "PARTS",
    "RECIPES",
    "apply_adapters",
    "count_parameters",
    "lora_parameters",
    "parts_of",
    "without_adapter",
]
