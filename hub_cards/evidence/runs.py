"""The training of a staged model or adapter: `recipe.json`, `training.json`, `emissions.csv`, and its weights."""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peft.utils.constants import DUMMY_TARGET_MODULES
from safetensors import safe_open

from gallery.files import read_json
from modeling_scalar.model_identity import part_of

from ..markdown import Markdown, code, text

# Fields that a card reads from the records of a run.
_TRAINING = {
    "trainable_parameters": dict,
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
_RECIPE = {"objective": str | None, "max_steps": int | None}

# Fields of a recipe that the card shows; all others are in the file next to it.
_SHOWN = (
    *("benchmark", "train_split", "objective", "adapter", "temperature", "matching_weight", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "num_train_epochs", "max_steps", "seed"),
)


def _read(path: Path, kinds: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = read_json(path)
    for name, kind in kinds.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"{path} is not the {what} of a run: `{name}` cannot be {content.get(name)!r:.200}.")
    return content


def read_recipe(path: Path) -> dict[str, Any] | None:
    """Read a `recipe.json`, `None` if it does not exist; a ValueError names a field that is wrong."""
    return _read(path, _RECIPE, "recipe")


def read_training(path: Path) -> dict[str, Any] | None:
    """Read a `training.json`, `None` if it does not exist; a ValueError names a field that is wrong."""
    training = _read(path, _TRAINING, "record")
    if training is not None and not (
        all(isinstance(count, int) for count in training["trainable_parameters"].values())
        and {"device", "num_processes"} <= training["hardware"].keys()
        and (training["source"] is None or {"commit", "dirty"} <= training["source"].keys())
    ):
        raise ValueError(
            f"{path} is not the record of a run: `trainable_parameters` must count, `hardware` hold `device` and "
            "`num_processes`, and `source` `commit` and `dirty`."
        )
    return training


def training_table(
    recipe: Mapping[str, Any] | None, training: Mapping[str, Any] | None, adapter: Mapping[str, Any] | None
) -> list[tuple[str, Any]]:
    """
    Return the rows of the training table: the settings, by their names in a recipe, and the records of the run.

    Uses `recipe.json`, `training.json` and `adapter_config.json`, as far as they exist.
    """
    recipe, training, adapter = recipe or {}, training or {}, adapter or {}
    has_steps = (recipe.get("max_steps") or -1) > 0
    unread = "num_train_epochs" if has_steps else "max_steps"
    was_set = {name: recipe[name] for name in _SHOWN if recipe.get(name) is not None and name != unread}
    if adapter.get("target_modules") != DUMMY_TARGET_MODULES:  # the value for an adapter of heads alone
        was_set |= {name: adapter[name] for name in ("r", "lora_alpha", "lora_dropout") if name in adapter}
    rows = [(code(name), code(value) if isinstance(value, str) else text(value)) for name, value in was_set.items()]
    if recipe.get("new_model"):
        rows.append(("initial weights", "random"))
    elif recipe.get("adapter") == "full" and recipe.get("model"):  # an adapter's base is given elsewhere
        rows.append(("initial weights", code(recipe["model"])))
    if training:
        rows += [("examples", f"{training['num_examples']:,}"), ("steps", f"{training['global_step']:,}")]
        rows += [("batch size of a step", Markdown(training["batch_size"])), ("precision", training["precision"])]
    return rows


def read_emissions(path: Path) -> dict[str, Any] | None:
    """
    Read CodeCarbon's record of a run, an `emissions.csv`; rows, such as those of a resumed run, are summed.

    Returns:
        `dict`: in the Hub's format for `co2_eq_emissions`: grams of CO2 equivalents, their source, and the location,
        if known; or `None` if the file does not exist.

    Raises:
        ValueError: the file has no row, lacks a column, or holds something other than numbers.
    """
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        kilograms, last = math.fsum(float(row["emissions"]) for row in rows), rows[-1]
        if not math.isfinite(kilograms):
            raise ValueError("a number is not finite")
    except (csv.Error, KeyError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{path} is not a record of CodeCarbon: expected rows with the number `emissions` ({error!r}). Leave it "
            "out, or publish the file as CodeCarbon wrote it."
        ) from error
    place = ", ".join(filter(None, (last.get("region"), last.get("country_name"))))
    source = f"CodeCarbon {last.get('codecarbon_version') or 'of an unknown version'}"
    return {"emissions": 1000 * kilograms, "source": source} | ({"geographical_location": place} if place else {})


# Weights ------------------------------------------------------------------------------------------------------------

# Values of a joint encoder that are saved with its weights but are not parameters: they cannot be trained.
_BUFFERS = ("input_max", "input_min", "layer_scalar", "output_max", "output_min")


def count_parameters(files: Iterable[Path]) -> dict[str, int]:
    """
    Count the parameters in the safetensors files of a model, by its parts; adapters count with their tower.

    Only the headers of the files are read.
    """
    counts: Counter[str] = Counter()
    for path in files:
        with safe_open(path, framework="np") as file:
            for name in file.keys():
                if name.rpartition(".")[2] not in _BUFFERS:
                    counts[part_of(name)] += math.prod(file.get_slice(name).get_shape())
    return dict(sorted(counts.items()))


__all__ = ["count_parameters", "read_emissions", "read_recipe", "read_training", "training_table"]
