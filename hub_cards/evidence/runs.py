"""The training of a staged model or adapter: `recipe.json`, `training.json`, `emissions.csv`, and its weights."""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peft.utils.constants import DUMMY_TARGET_MODULES
from safetensors import safe_open

from modeling_scalar.model_identity import part_of

from ..markdown import Markdown, code, text

# Fields of a recipe that the card shows; all others are in the file next to it.
_SHOWN = (
    *("benchmark", "train_split", "objective", "adapter", "temperature", "matching_weight", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "num_train_epochs", "max_steps", "seed"),
)
_LORA = ("r", "lora_alpha", "lora_dropout")


def training_table(
    recipe: Mapping[str, Any] | None, training: Mapping[str, Any] | None, adapter: Mapping[str, Any] | None
) -> list[tuple[str, Any]]:
    """
    Return the rows of the training table: the settings, by their names in a recipe, and the records of the run.

    Uses `recipe.json`, `training.json` and `adapter_config.json`, as far as they exist.
    """
    recipe, adapter = recipe or {}, adapter or {}
    settings = {name: recipe.get(name) for name in _SHOWN}
    # Only one of them ended the training.
    has_steps = (recipe.get("max_steps") or -1) > 0
    settings["num_train_epochs" if has_steps else "max_steps"] = None
    if adapter.get("target_modules") != DUMMY_TARGET_MODULES:  # the value for an adapter of heads alone
        settings |= {name: adapter.get(name) for name in _LORA}
    rows = []
    for name, value in settings.items():
        if value is not None:
            rows.append((code(name), code(value) if isinstance(value, str) else text(value)))
    if recipe.get("adapter") == "full" and recipe.get("model"):  # an adapter's base is given elsewhere
        rows.append(("initial weights", code(recipe["model"])))
    if training is not None:
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
        ValueError: the file is not such a record.
    """
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        last = rows[-1]
        kilograms = math.fsum(float(row["emissions"]) for row in rows)
        source = f"CodeCarbon {last['codecarbon_version']}"
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a record of CodeCarbon ({error}). Remove it to publish without.") from error
    emissions = {"emissions": 1000 * kilograms, "source": source}
    place = ", ".join(filter(None, (last.get("region"), last.get("country_name"))))
    if place:
        emissions["geographical_location"] = place
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
