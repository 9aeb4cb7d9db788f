"""How a staged model or adapter was made: its `recipe.json`, `training.json` and `emissions.csv`, and its weights."""

import csv
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft.utils.constants import DUMMY_TARGET_MODULES
from safetensors import SafetensorError, safe_open

from gallery.files import read_json
from modeling_scalar.checking import part_of

from ..markdown import Markdown, code, text

_FIELDS = {
    "trainable_parameters": dict,
    "frozen_parameters": dict,
    "num_examples": int,
    "global_step": int,
    "batch_size": int,
    "seconds": int | float,
    "resumed": bool,
    "hardware": dict,
    "precision": str,
    "versions": dict,
    "source": dict | None,
    "date": str,
}
_RECIPE = {
    "benchmark": str | None,
    "objective": str,
    "adapter": str,
    "max_steps": int,
    "gradient_accumulation_steps": int,
}
_OBJECTIVES = {
    "scalar": "SCALAR's, Eq. 10",
    "contrastive": "InfoNCE over the model's own score",
    "pmrl": "PMRL's",
    "pathways": "InfoNCE per modality",
}
_ADAPTERS = {
    "paper": "LoRA in the text tower, and the heads that the objective reaches",
    "all_towers": "LoRA in all three towers, and the heads that the objective reaches",
    "full": "all parameters that the objective reaches",
}
_PARTS = {
    "trunk": "LoRA in the trunk",
    "video": "LoRA in the vision tower",
    "audio": "LoRA in the audio tower",
    "heads": "a linear head for queries and one for each modality",
}
# Fields of the recipe that every objective reads, then those of one; a weight of 0 leaves its term out.
_COMMON = {
    "matching_weight": "weight of the matching loss",
    "learning_rate": "learning rate",
    "lr_scheduler_type": "schedule",
    "warmup_steps": "warm-up, steps or share of them",
    "optim": "optimiser",
    "weight_decay": "weight decay",
    "adam_beta1": "beta 1",
    "adam_beta2": "beta 2",
    "max_grad_norm": "gradient clipping",
    "num_train_epochs": "epochs",
}
_OF_OBJECTIVE = {
    "scalar": {
        "temperature": "contrastive temperature",
        "contrastive_label_smoothing": "label smoothing",
        "cross_arity_weight": "weight of the masked-view loss",
        "semantic_weight": "weight of the semantic loss",
        "calibration_weight": "weight of its calibration",
        "semantic_temperature": "temperature of the semantic affinities",
        "uniformity_weight": "weight of the uniformity loss",
        "uniformity_scale": "scale of the uniformity loss",
        "loss_warmup_steps": "steps before semantic and uniformity loss",
        "full_view_probability": "share of complete views after the decay",
        "full_view_decay_steps": "steps of that decay",
    },
    "contrastive": {
        "temperature": "contrastive temperature",
        "contrastive_label_smoothing": "label smoothing",
    },
    "pmrl": {"direction_temperature": "temperature of the directions"},
    "pathways": {"temperature": "contrastive temperature"},
}


def read_recipe(path: str | os.PathLike) -> dict[str, Any] | None:
    """
    Read the recipe of a run.

    Args:
        path (`str`): a `recipe.json`.

    Returns:
        `dict`, or `None` if the file is not there.

    Raises:
        ValueError: a field that a card reads has the wrong type.
    """
    path = Path(path)
    if not path.is_file():
        return None
    recipe = read_json(path)
    for name, kind in _RECIPE.items():
        if name in recipe and (not isinstance(recipe[name], kind) or (kind is int and isinstance(recipe[name], bool))):
            raise ValueError(f"{path} is not the recipe of a run: `{name}` cannot be {recipe[name]!r:.200}.")
    if recipe.get("gradient_accumulation_steps", 1) < 1:
        raise ValueError(f"{path} is not the recipe of a run: `gradient_accumulation_steps` must be at least 1.")
    return recipe


def read_training(path: str | os.PathLike) -> dict[str, Any] | None:
    """
    Read the record of a run.

    Args:
        path (`str`): a `training.json`.

    Returns:
        `dict`, or `None` if the file is not there.

    Raises:
        ValueError: a field is missing or has the wrong type.
    """
    path = Path(path)
    if not path.is_file():
        return None
    training = read_json(path)
    for name, kind in _FIELDS.items():
        if name not in training or not isinstance(training[name], kind):
            raise ValueError(f"{path} is not the record of a run: expected `{name}`, got {training.get(name)!r:.200}.")
    for part in ("trainable_parameters", "frozen_parameters"):
        if not all(isinstance(number, int) and number >= 0 for number in training[part].values()):
            raise ValueError(f"{path} is not the record of a run: `{part}` must count, got {training[part]!r:.200}.")
    for part, names in (("hardware", ("device", "num_processes")), ("source", ("commit", "dirty"))):
        if training[part] is not None and not set(names) <= training[part].keys():
            raise ValueError(f"{path} is not the record of a run: `{part}` must hold {names}, got {training[part]}.")
    return training


def _trained(adapter: str) -> str | None:
    parts = adapter.split(",")
    if set(parts) <= set(_PARTS):  # of a joint encoder
        return ", ".join(_PARTS[part] for part in parts)
    return _ADAPTERS.get(adapter)


def training_table(
    recipe: Mapping[str, Any] | None, training: Mapping[str, Any] | None, adapter: Mapping[str, Any] | None
) -> list[tuple[str, Any]]:
    """
    Return the rows of the table of training: what was set, and what the run recorded.

    Args:
        recipe (`Mapping`, *optional*): `recipe.json`.
        training (`Mapping`, *optional*): `training.json`.
        adapter (`Mapping`, *optional*): `adapter_config.json`.

    Returns:
        `list`: pairs of a name and a value; only for fields that a file holds and that the objective reads.
    """
    rows: list[tuple[str, Any]] = []
    recipe, training, adapter = recipe or {}, training or {}, adapter or {}
    if "benchmark" in recipe:
        rows.append(("data", Markdown(f"{code(recipe['benchmark'])}, split {code(recipe.get('train_split'))}")))
    if training:
        rows.append(("examples", f"{training['num_examples']:,}"))
    if recipe.get("new_model"):
        rows.append(("initial weights", "random"))
    elif recipe.get("adapter") == "full" and recipe.get("model"):  # the base of an adapter is named elsewhere
        rows.append(("initial weights", Markdown(code(recipe["model"]))))
    explanations = {"objective": ("objective", _OBJECTIVES.get), "adapter": ("what is trained", _trained)}
    for name, (title, explain) in explanations.items():
        if name in recipe:
            explained = explain(recipe[name])
            rows.append((title, Markdown(code(recipe[name]) + (f", {explained}" if explained else ""))))
    has_lora = adapter.get("target_modules") != DUMMY_TARGET_MODULES  # as an adapter of heads alone says
    for name, title in (("r", "LoRA rank"), ("lora_alpha", "LoRA alpha"), ("lora_dropout", "LoRA dropout")):
        if name in adapter and has_lora:
            rows.append((title, adapter[name]))
    fields = {**_OF_OBJECTIVE.get(recipe.get("objective"), {}), **_COMMON}
    for name, title in fields.items():
        if name in recipe and not _is_unread(name, recipe):
            learned = ", learned from there" if name == "temperature" and recipe.get("learnable_temperature") else ""
            value = code(recipe[name]) if isinstance(recipe[name], str) else text(recipe[name])
            rows.append((title, Markdown(value + learned)))
    if recipe.get("max_steps", -1) > 0:
        rows.append(("steps at most", recipe["max_steps"]))
    if training:
        rows.append(("steps", f"{training['global_step']:,}"))
        accumulated = recipe.get("gradient_accumulation_steps", 1)
        seen = f", of which {training['batch_size'] // accumulated} see each other" if accumulated > 1 else ""
        rows.append(("batch size", f"{training['batch_size']}{seen}"))
        rows.append(("precision", training["precision"]))
    elif "per_device_train_batch_size" in recipe:
        rows.append(("batch size of one process", recipe["per_device_train_batch_size"]))
    if "seed" in recipe:
        rows.append(("seed", recipe["seed"]))
    return rows


# Fields that others switch off, with the values that do so.
_SWITCHES = {
    "calibration_weight": {"semantic_weight": 0},
    "semantic_temperature": {"semantic_weight": 0},
    "uniformity_scale": {"uniformity_weight": 0},
    "loss_warmup_steps": {"semantic_weight": 0, "uniformity_weight": 0},
    "full_view_decay_steps": {"full_view_probability": 1},
}


def _is_unread(name: str, recipe: Mapping[str, Any]) -> bool:
    if name == "num_train_epochs":
        return recipe.get("max_steps", -1) > 0
    return name in _SWITCHES and all(recipe.get(switch) == off for switch, off in _SWITCHES[name].items())


@dataclass(frozen=True)
class Emissions:
    """What CodeCarbon recorded: grams of CO2 equivalents, kWh, seconds, and where."""

    grams: float
    kilowatt_hours: float
    seconds: float
    place: str
    version: str


def read_emissions(path: str | os.PathLike) -> Emissions | None:
    """
    Read CodeCarbon's record of a run; several rows, such as those of a resumed run, are added up.

    Args:
        path (`str`): an `emissions.csv`.

    Returns:
        [`Emissions`], or `None` if the file is not there.

    Raises:
        ValueError: the file has no row, lacks a column, or holds something other than numbers.
    """
    path = Path(path)
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = [[float(row[name]) for row in rows] for name in ("emissions", "energy_consumed", "duration")]
        kilograms, energy, seconds = (math.fsum(column) for column in columns)
        last = rows[-1]
        places = (last.get("region"), last.get("country_name"))
        version = last.get("codecarbon_version") or "of an unknown version"
    except (csv.Error, KeyError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{path} is not a record of CodeCarbon: expected rows with the numbers `emissions`, `energy_consumed` and "
            f"`duration` ({error!r}). Leave it out, or publish the file as CodeCarbon wrote it."
        ) from error
    if not all(math.isfinite(number) for number in (kilograms, energy, seconds)):
        raise ValueError(f"{path} holds numbers that are not finite. Leave the file out.")
    return Emissions(1000 * kilograms, energy, seconds, ", ".join(place for place in places if place), version)


# Weights ------------------------------------------------------------------------------------------------------------

# Numbers of a joint encoder that are saved with its weights and are none: nothing can train them.
_BUFFERS = ("input_max", "input_min", "layer_scalar", "output_max", "output_min")


def count_parameters(files: Iterable[str | os.PathLike]) -> dict[str, int]:
    """
    Count the parameters that safetensors files hold, by the part of the model. Only their headers are read.

    Args:
        files (`Iterable[str]`): the files of a model, or that of an adapter.

    Returns:
        `dict`: number of elements by part, in the order of the names; adapters count with their tower.

    Raises:
        ValueError: a file is not a safetensors file, or two of them hold the same name.
    """
    shapes: dict[str, list[int]] = {}
    for path in files:
        try:
            with safe_open(path, framework="np") as file:
                found = {name: file.get_slice(name).get_shape() for name in file.keys()}
        except SafetensorError as error:
            raise ValueError(f"{path} is not a safetensors file: {error}.") from error
        twice = sorted(shapes.keys() & found.keys())
        if twice:
            raise ValueError(f"{path} holds {twice[:3]}, which another file of the model holds too.")
        shapes |= found
    counts: dict[str, int] = {}
    for name in sorted(shapes):
        if name.rpartition(".")[2] in _BUFFERS:
            continue
        part = part_of(name)
        counts[part] = counts.get(part, 0) + math.prod(shapes[name])
    return counts


def check_parameters(counts: Mapping[str, int], training: Mapping[str, Any], is_adapter: bool) -> None:
    """
    Compare the published weights with the record of the training.

    Args:
        counts (`Mapping[str, int]`): as [`count_parameters`] returns them.
        training (`Mapping`): `training.json`, as [`read_training`] returns it.
        is_adapter (`bool`): whether the files hold only what was trained, and not the whole model.

    Raises:
        ValueError: they disagree.
    """
    expected = dict(training["trainable_parameters"])
    if not is_adapter:
        for part, count in training["frozen_parameters"].items():
            expected[part] = expected.get(part, 0) + count
    if expected != dict(counts):
        parts = sorted(part for part in expected.keys() | counts.keys() if expected.get(part) != counts.get(part))
        differing = {part: (expected.get(part, 0), counts.get(part, 0)) for part in parts}
        raise ValueError(
            f"training.json and the weights disagree about the number of parameters, (recorded, published): "
            f"{differing}. Publish the record of the run that made these weights."
        )


__all__ = [
    "Emissions",
    "check_parameters",
    "count_parameters",
    "read_emissions",
    "read_recipe",
    "read_training",
    "training_table",
]
