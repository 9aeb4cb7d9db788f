"""Recipes: YAML files of fields, a common base below them, command-line overrides above them, every name checked."""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from modeling_scalar.aggregation_scalar import METHODS, check_method
from modeling_scalar.loading_scalar import load_plugins

from .training_args import ScalarTrainingArguments


@dataclass
class RunArguments:
    """What a run starts from and reads. How it trains is in [`ScalarTrainingArguments`]."""

    model: str | None = field(default=None, metadata={"help": "Folder or Hub id of the base model and its processor."})
    new_model: str | None = field(
        default=None, metadata={"help": "Instead of `model`: YAML of a new model to train from scratch."}
    )
    benchmark: str | None = field(default=None, metadata={"help": "Name of the data set."})
    root: str | None = field(default=None, metadata={"help": "Folder of the data set."})
    aggregation: str | None = field(
        default=None,
        metadata={
            "help": f"How the model scores, one of {tuple(METHODS)} or a plugin's; by default as its config says."
        },
    )
    plugin: str | None = field(
        default=None,
        metadata={"help": "Modules to import first, which register scores of your own; separated by commas."},
    )
    semantic_targets: str | None = field(
        default=None, metadata={"help": "File of `python -m trainer.semantic_targets`, which L_sem needs."}
    )
    features: str | None = field(
        default=None,
        metadata={
            "help": "Folder of `python -m trainer.cache_features`: train from the stored outputs of the frozen towers."
        },
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "How many clips are to see each other: `per_device_train_batch_size` times the processes. If they "
            "are not so many, the run does not start."
        },
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    eval_split: str | None = field(default=None, metadata={"help": "Split to rank at every evaluation; None: none."})
    on_error: str = field(
        default="raise", metadata={"help": "'raise', or 'missing': an undecodable stream counts as absent."}
    )
    keep_in_memory: bool = field(default=False, metadata={"help": "Decode every clip once and keep its frames."})

    def __post_init__(self):
        if (self.model is None) == (self.new_model is None):
            raise ValueError("Give either `model` (a base to adapt) or `new_model` (to train from scratch), not both.")
        for name in ("benchmark", "root"):
            if getattr(self, name) is None:
                raise ValueError(f"`{name}` is required: the name of the data set is `benchmark`, its folder `root`.")
        if self.features is not None and self.new_model is not None:
            raise ValueError("`features` were made by a model; they cannot train a `new_model`.")
        if self.on_error not in ("raise", "missing"):
            raise ValueError(f"`on_error` must be 'raise' or 'missing', got {self.on_error!r}.")

    def check_batch(self, training: ScalarTrainingArguments) -> None:
        """Raise a ValueError unless as many clips will see each other as `global_batch_size` says."""
        size, processes = training.per_device_train_batch_size, training.world_size
        if self.global_batch_size not in (None, size * processes):
            raise ValueError(
                f"`global_batch_size` is {self.global_batch_size}, but {processes} processes with "
                f"`per_device_train_batch_size` {size} make {size * processes} clips that see each other. Launch as "
                "many processes as the recipe is for, or change one of the two fields (`global_batch_size: null` "
                "takes any)."
            )


def read_recipe(path: str | Path) -> dict[str, Any]:
    """
    Read a recipe and what it is based on (`base: other.yaml`, relative to the file); its own fields win.

    Args:
        path (`str` or `Path`): the YAML file.

    Returns:
        `dict` of fields.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a mapping, or a field is unknown; the message names the nearest known one.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No recipe at {path}.")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a mapping of fields to values, got {type(content).__name__}.")
    base = content.pop("base", None)
    known = [part.name for part in (*fields(RunArguments), *fields(ScalarTrainingArguments)) if part.init]
    for name in content:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"{path} has the unknown field `{name}`.{hint}")
    return (read_recipe(path.parent / base) if base else {}) | content


def parse_arguments(arguments: Sequence[str]) -> tuple[RunArguments, ScalarTrainingArguments]:
    """
    Parse `recipe.yaml [more.yaml ...] [--field value ...]` and import the plugins it names.

    The later value of a field wins; values are converted by the fields' types.

    Args:
        arguments (`list[str]`): the command line without the program.

    Returns:
        The two groups of arguments.

    Raises:
        FileNotFoundError, ValueError: from [`read_recipe`], a value outside its range, or a plugin that cannot be
            imported.
        SystemExit: `--help`, or a flag that does not exist.
    """
    parser = HfArgumentParser(
        [RunArguments, ScalarTrainingArguments],
        allow_abbrev=False,
        prog="train.py",
        usage="accelerate launch train.py recipe.yaml [more.yaml ...] [--field value ...]",
        description="Train a SCALAR model from a recipe; fields of later recipes win, flags override both.",
    )
    flags, recipe = list(arguments), {}
    while flags and not flags[0].startswith("-"):
        recipe |= read_recipe(flags.pop(0))
    defaults = []
    for name, value in recipe.items():
        if value is not None:
            defaults += [f"--{name}", _as_flag(value)]
    flags = defaults + flags
    # YAML values travel as flags, so that one parser converts and checks both; the last of two wins.
    run, training = parser.parse_args_into_dataclasses(flags)
    load_plugins(run.plugin.split(",") if run.plugin else [])
    if run.aggregation is not None:
        check_method(run.aggregation, "aggregation")
    return run, training


def _as_flag(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):  # the parser of transformers takes one value a field; see `report_to`
        return ",".join(map(_as_flag, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["RunArguments", "parse_arguments", "read_recipe"]
