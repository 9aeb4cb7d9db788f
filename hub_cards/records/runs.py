"""The training of a staged model or adapter: `recipe.json`, `training.json`, `emissions.csv`, and its weights."""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peft.utils.constants import DUMMY_TARGET_MODULES
from safetensors import safe_open

from scalar_retrieval.modeling_scalar.model_identity import part_of

from ..markdown import Markdown, code

# Fields of a recipe that the card lists; all others are in the file next to it.
_LISTED = (
    *("benchmark", "train_split", "objective", "adapter", "temperature", "matching_weight", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "num_train_epochs", "max_steps", "seed"),
)
_LORA = ("r", "lora_alpha", "lora_dropout")


def training_table(
    recipe: Mapping[str, Any] | None, training: Mapping[str, Any] | None, adapter: Mapping[str, Any] | None
) -> list[tuple[Markdown, Markdown]]:
    """
    Return the rows of the training table: the settings, by their names in a recipe, and the records of the run.

    Uses `recipe.json`, `training.json` and `adapter_config.json`, as far as they exist.
    """
    recipe = recipe or {}
    adapter = adapter or {}
    settings = {name: recipe.get(name) for name in _LISTED}
    # Only one of them ended the training.
    if (recipe.get("max_steps") or -1) > 0:
        settings["num_train_epochs"] = None
    else:
        settings["max_steps"] = None
    if adapter.get("target_modules") != DUMMY_TARGET_MODULES:  # the value for an adapter of heads alone
        settings |= {name: adapter.get(name) for name in _LORA}
    if recipe.get("adapter") == "full":  # an adapter's base is given elsewhere
        settings["initial weights"] = recipe.get("model")
    if training is not None:
        settings["examples"] = training["num_examples"]
        settings["steps"] = training["global_step"]
        settings["batch size of a step"] = training["batch_size"]
        settings["precision"] = training["precision"]
    rows = []
    for name, value in settings.items():
        if value is not None:
            rows.append((code(name), code(value)))
    return rows


def read_emissions(path: Path) -> dict[str, Any] | None:
    """
    Read CodeCarbon's record of a run, an `emissions.csv`; rows, such as those of a resumed run, are summed.

    Returns:
        `dict`: in the Hub's format for `co2_eq_emissions`: grams of CO2 equivalents, their source, and the location,
        if known; or `None` if the file does not exist.

    Raises:
        ValueError: the file is not such a record.
    """
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        # CodeCarbon counts kilograms, the Hub grams.
        kilograms = math.fsum(float(row["emissions"]) for row in rows)
        source = f"CodeCarbon {rows[-1]['codecarbon_version']}"
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a record of CodeCarbon ({error}). Remove it to publish without.") from error
    emissions = {"emissions": 1000 * kilograms, "source": source}
    if rows[-1].get("country_name"):
        emissions["geographical_location"] = rows[-1]["country_name"]
    return emissions


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


__all__ = ["count_parameters", "read_emissions", "training_table"]
