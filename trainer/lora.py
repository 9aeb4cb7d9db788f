"""Trainable parameters: the paper's adapters, the parts of a joint encoder, and full fine-tuning.

LoRA targets and heads are defined only here. Parameter counts are exact and tested on the meta device.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils.constants import DUMMY_TARGET_MODULES
from peft.utils.other import ModulesToSaveWrapper

from scalar_retrieval.modeling_scalar import ScalarJointConfig, ScalarJointModel
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES, own_fields
from scalar_retrieval.modeling_scalar.modalities_scalar import FAMILIES
from scalar_retrieval.modeling_scalar.model_identity import part_of
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarLogitScale, ScalarRetrievalModel
from scalar_retrieval.modeling_scalar.scores_scalar import find_method

from .towers import towers_of

RECIPES = ("paper", "all_towers", "full")
"""`"paper"`: LoRA in the text tower, which reads queries, subtitles and pairs (Table S1: 4,763,650 parameters).
`"all_towers"`: LoRA in the vision and audio towers too (6,860,802). `"full"`: all parameters the objective reaches."""
PARTS = ("trunk", "video", "audio", "heads")
"""The parts of a joint encoder that an adapter can train: LoRA in the shared trunk or in the tower of a modality, and
the heads of [`ScalarJointConfig`], which need no gradient through the encoder. Of three towers, `heads` alone trains
what follows them: projections and, with matching, its heads."""

# Query and value projections, by their names in transformers' towers and BEATs. The fused projection of EVA-CLIP is
# split into parts, so its key is not adapted.
_QUERY_VALUE = r"\..*\.(query|value|q_proj|v_proj)"
_ADAPTED_TOWERS = {"paper": "text_model", "all_towers": "(text|vision|audio)_model"}

_EMBEDDING_HEADS = ["text_projection", "video_projection", "audio_projection", "subtitle_projection"]
_CONDITION_HEADS = {name: f"{name}_condition" for name in MODALITIES}
_TOWERS = {"video": "vision_model", "audio": "audio_model"}


def _unreached(
    model: ScalarRetrievalModel,
    parts: Sequence[str],
    matching: bool,
    learnable_temperature: bool,
    modalities: Sequence[str],
) -> list[str]:
    """Return the modules that the objective does not reach, as whole components of their parameters' names."""
    modules = []
    if not learnable_temperature:
        modules.append("logit_scale")
    unread = [name for name in model.config.modalities if name not in modalities]
    # Of a joint encoder, the heads and towers of modalities that are not read.
    if isinstance(model.config, ScalarJointConfig):
        towers = {}
        if parts != ("heads",):  # heads alone are trained on any encoder, also on one without gradients
            towers = towers_of(model)
        for name in unread:
            modules.append(f"{name}_head")
            if name in towers:
                modules += [module.rpartition(".")[2] for module in towers[name].modules]
        return modules
    # Of three towers, also the parts of the cross-encoder that matching does not use.
    matched = ()
    if matching and model.config.has_cross_attention:
        matched = model.config.condition_on
    modules += [head for name, head in _CONDITION_HEADS.items() if name not in matched]
    if not matched:
        modules += ["match_head", "crossattention"]
    for name in unread:
        modules.append(f"{name}_projection")
        if name in _TOWERS and name not in matched:  # the text tower always reads the queries
            modules.append(_TOWERS[name])
    return modules


def parts_of(recipe: str) -> tuple[str, ...]:
    """
    Return the parts of a joint encoder in an adapter recipe such as `"trunk,heads"`; none for one of [`RECIPES`].

    Raises:
        ValueError: If the recipe is neither.
    """
    if recipe in RECIPES:
        return ()
    parts = tuple(recipe.split(","))
    if not set(parts) <= set(PARTS) or len(set(parts)) < len(parts):
        raise ValueError(
            f"`adapter` must be one of {RECIPES}, or for a joint encoder a comma-separated list of {PARTS} without "
            f"repetition, got {recipe!r}."
        )
    return parts


def _targets(recipe: str, unreached: Sequence[str]) -> tuple[str, list[str]]:
    """The pattern of the LoRA targets, and the heads that are trained fully where the objective reaches them."""
    heads = [*_EMBEDDING_HEADS, "match_head", *_CONDITION_HEADS.values()]
    if recipe == "heads":
        return DUMMY_TARGET_MODULES, heads
    if recipe not in RECIPES:
        raise ValueError(
            f"`adapter: {recipe}` is for joint encoders; for three towers it must be 'heads' or one of {RECIPES}."
        )
    # Query and value projections, without towers and layers that get no gradient.
    pattern = _ADAPTED_TOWERS[recipe] + _QUERY_VALUE
    for tower in _TOWERS.values():
        if tower in unreached:
            pattern = rf"(?!{tower}\.)" + pattern
    if "crossattention" in unreached:
        pattern = r"(?!.*\.crossattention\.)" + pattern
    return pattern, heads


def _joint_targets(model: ScalarJointModel, parts: Sequence[str], modalities: Sequence[str]) -> tuple[str, list[str]]:
    """Like [`_targets`], for a joint encoder."""
    if not parts:
        raise ValueError(
            f"Adapters for three towers do not fit a joint encoder. Set `adapter` to some of {PARTS}, separated by "
            "commas, or to 'full'."
        )
    # A part that the score does not read would get no gradient.
    reached = [name for name in model.config.modalities if name in modalities]
    unread = [name for name in parts if name not in ("trunk", "heads", *reached)]
    if unread:
        raise ValueError(f"`adapter` names {unread}, but the score reads only {reached} of clips. Leave them out.")
    # LoRA inside the encoder; heads behind it are trained in full.
    heads = []
    patterns = []
    for part in parts:
        if part == "heads":
            heads = [f"{name}_head" for name in ("text", *model.config.modalities)]
        else:
            patterns.append(FAMILIES[model.config.backbone_config.model_type].adapted[part])
    if not patterns:
        return DUMMY_TARGET_MODULES, heads
    return rf"backbone\.({'|'.join(patterns)})", heads


def _reached(
    model: ScalarRetrievalModel, recipe: str, matching: bool, learnable_temperature: bool, modalities: Sequence[str]
) -> tuple[str, list[str]]:
    """The pattern of a recipe's LoRA targets, and the modules that are trained in full, where the objective reaches
    them."""
    parts = parts_of(recipe)
    unreached = _unreached(model, parts, matching, learnable_temperature, modalities)
    if isinstance(model.config, ScalarJointConfig):
        targets, heads = _joint_targets(model, parts, modalities)
    else:
        targets, heads = _targets(recipe, unreached)
    trained = []
    for name in (*heads, "hyperbolic", "logit_scale"):
        if hasattr(model, name) and name not in unreached:
            trained.append(name)
    return targets, trained


def _check_continued(adapted: PeftModel, recipe: str, *fields: Any) -> None:
    """Raise a ValueError unless a recipe trains exactly what an adapter holds."""
    model = adapted.get_base_model()
    targets, trained = _reached(model, recipe, *fields)
    differing = set()
    for name, module in model.named_modules():
        is_trained = bool(re.fullmatch(targets, name)) or name.endswith(tuple(trained))  # as PEFT matches names
        if is_trained != isinstance(module, LoraLayer | ModulesToSaveWrapper):
            differing.add(part_of(name))
    if differing:
        raise ValueError(
            f"The adapter was trained with other fields: it differs from what `adapter: {recipe}` trains in "
            f"{sorted(differing)}. Continue it with its own `adapter`, objective and weights, or merge it into its "
            "base: `adapter: full` does so and trains the whole model, peft's `merge_and_unload` makes a new base."
        )


def _add_trained_parts(model: ScalarRetrievalModel, parts: Sequence[str], temperature: float | None) -> None:
    """Add the heads and the contrastive temperature that are to be trained and that the model lacks. They change no
    score before they are."""
    lacks_heads = "heads" in parts and isinstance(model.config, ScalarJointConfig) and not model.config.has_heads
    lacks_temperature = temperature is not None and not model.config.has_logit_scale
    if lacks_heads:
        model.add_heads()
    if lacks_temperature:
        model.config.has_logit_scale = True
        model.logit_scale = ScalarLogitScale()
        torch.nn.init.constant_(model.logit_scale.log_scale, -math.log(temperature))
    if lacks_heads or lacks_temperature:
        model.to(model.device, model.dtype)


def apply_adapters(
    model: ScalarRetrievalModel | PeftModel,
    recipe: str = "paper",
    matching: bool = True,
    temperature: float | None = None,
    revision: str | None = None,
    modalities: Sequence[str] | None = None,
) -> PeftModel | ScalarRetrievalModel:
    """
    Make exactly those parameters of a recipe trainable that the objective reaches. A joint encoder gets heads if they
    are to be trained.

    Args:
        model ([`ScalarModel`] or [`ScalarJointModel`]): The base model, changed in place; or the PEFT model of an
            adapter, which is continued, and for `"full"` merged into its base.
        recipe (`str`): `"paper"`, `"all_towers"` or `"full"`, see [`RECIPES`], or `"heads"`; for a joint encoder
            `"full"`, or some of [`PARTS`], separated by commas.
        matching (`bool`): Whether to train the cross-encoder, which needs a text tower with cross-attention. It reads
            the modalities of the model's `condition_on`.
        temperature (`float`, *optional*): Train the contrastive temperature, from this one unless the model has
            learned one. By default it is fixed.
        revision (`str`, *optional*): The commit of a base model on the Hub, which the adapter records because it fits
            only these weights. Unused by `"full"`.
        modalities (`Sequence[str]`, *optional*): The modalities whose embeddings the objective reads; by default those
            of the model's score.

    Returns:
        The PEFT model, or for `"full"` the model itself.

    Raises:
        ValueError: If the recipe is unknown or for another kind of model, or an adapter was trained with another one.
    """
    # A model with an adapter inside would get a second one, and be saved without the first.
    if getattr(model, "peft_config", None) and not isinstance(model, PeftModel):
        raise ValueError("The model has an adapter inside: load it with `load_model(ADAPTER, trainable=True)`.")
    if isinstance(model, PeftModel) and recipe == "full":
        model = model.merge_and_unload()
    base = without_adapter(model)
    _add_trained_parts(base, parts_of(recipe), temperature)
    # Find out which parts of the model the loss has no gradient for: they would be saved and published untrained.
    if modalities is None:
        modalities = find_method(base.config.aggregation, base.config.modalities).reads or base.config.modalities
    fields = matching, temperature is not None, modalities
    if recipe == "full":
        unreached = _unreached(base, (), *fields)
        for name, parameter in base.named_parameters():
            parameter.requires_grad = not set(unreached) & set(name.split("."))
        return base
    # An adapter goes on as it is.
    if isinstance(model, PeftModel):
        _check_continued(model, recipe, *fields)
        model.set_adapter(model.active_adapter)  # trainable
        return model
    # LoRA in the targets; the heads are trained in full.
    targets, trained = _reached(base, recipe, *fields)
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=8,  # rank, scale and dropout as in Table S1
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=targets,
        modules_to_save=trained,
        auto_mapping={"configuration": own_fields(base.config)},  # as `note_in_adapter` does for saved configurations
    )
    return get_peft_model(base, config, revision=revision)


def without_adapter(model: PeftModel | ScalarRetrievalModel) -> ScalarRetrievalModel:
    """Return the SCALAR model inside a PEFT model; its layers stay adapted."""
    if isinstance(model, PeftModel):
        return model.get_base_model()
    return model


def lora_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the trainable LoRA matrices; all other trainable parameters are heads."""
    return [value for name, value in model.named_parameters() if value.requires_grad and ".lora_" in name]


def count_parameters(model: torch.nn.Module, trainable: bool = True) -> dict[str, int]:
    """Count trainable or frozen parameters by [`part_of`] the model; adapters count with their tower."""
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
