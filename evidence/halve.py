"""`python -m evidence halve RUN OUTPUT`: store a trained model in half precision, small enough for a repository.

Its configuration says float32, so it is loaded and computes in full precision. The folder also holds the fields of the
run and its log, to check that the recipe still gives this model; it holds no code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from scalar_retrieval.gallery.store.files import read_json, sha256_of, write_json
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.checkpoints import RECIPE, last_checkpoint

LOG = "log.json"
"""The terms of the loss at each step, and the SHA-256 of the weights."""

_LOCAL = ("output_dir", "logging_dir")
_TERMS = ("step", "epoch", "loss")


def _history(run: Path) -> list[dict[str, Any]]:
    """The losses that a run logged."""
    history = []
    for entry in read_json(last_checkpoint(run) / "trainer_state.json")["log_history"]:
        terms = {}
        for name, value in entry.items():
            if name.startswith(_TERMS):
                terms[name] = value
        history.append(terms)
    return history


def halve(run: Path, output: Path, before: Sequence[Path] = ()) -> int:
    """
    Write the model of a finished run in half precision.

    Args:
        run (`Path`): The folder of a full fine-tuning run.
        output (`Path`): The folder for the model; existing files are replaced.
        before (`Sequence[Path]`): The runs that this one continued, whose logs are stored before its own.

    Returns:
        The size of the weights in bytes.

    Raises:
        ValueError: If the run has not ended or trained an adapter, or a weight is out of range for half precision.
    """
    ended = (run / RECIPE).is_file() and (run / CONFIG_NAME).is_file()
    if not ended or last_checkpoint(run) is None:
        raise ValueError(f"{run} must be the folder of a finished full fine-tuning run.")
    # In full precision first, so that a weight out of range is noticed.
    recipe = read_json(run / RECIPE)
    model, processor = load_model(run, dtype=torch.float32)
    model.half()
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} of {run} is out of range for half precision.")
    model.save_pretrained(output)
    processor.save_pretrained(output)

    # No code, and configurations that say float32, so that the model computes in it.
    for path in output.glob("*.py"):
        path.unlink()
    for path in output.glob("*config.json"):
        write_json(_in_full(read_json(path)), path)

    # The fields of the run but its folders, and the losses of all runs that led here.
    for name in _LOCAL:
        recipe.pop(name, None)
    write_json(recipe, output / RECIPE)
    log = []
    for folder in (*before, run):
        log += _history(folder)
    write_json({"sha256": sha256_of(output / SAFE_WEIGHTS_NAME), "log": log}, output / LOG)
    return (output / SAFE_WEIGHTS_NAME).stat().st_size


def _in_full(config: Any) -> Any:
    """Replace float16 by float32 in a configuration and those of its towers, and remove references to code."""
    if not isinstance(config, dict):
        return config
    kept = {}
    for name, value in config.items():
        if name != "auto_map":
            kept[name] = _in_full(value)
    if kept.get("dtype") == "float16":
        kept["dtype"] = "float32"
    return kept


__all__ = ["LOG", "halve"]
