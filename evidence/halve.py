"""`python -m evidence halve RUN OUTPUT`: store a trained model in half precision, small enough for a repository.

Its configuration says float32, so it is loaded and computes in full precision. The folder also holds the fields of the
run and its log, to check that the recipe still gives this model; it holds no code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from gallery.files import read_json, sha256_of, write_json
from modeling_scalar import load_model
from trainer.checkpoints import RECIPE, last_checkpoint

LOG = "log.json"
"""The terms of the loss at each step, and the SHA-256 of the weights."""

_LOCAL = ("output_dir", "logging_dir")
_TERMS = ("step", "epoch", "loss")


def _history(run: Path) -> list[dict[str, Any]]:
    """The losses that a run logged."""
    log = read_json(last_checkpoint(run) / "trainer_state.json")["log_history"]
    return [{name: value for name, value in entry.items() if name.startswith(_TERMS)} for entry in log]


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
    recipe = read_json(run / RECIPE)
    model, processor = load_model(run, dtype=torch.float32)
    half = {name: tensor.half() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    infinite = [name for name, tensor in half.items() if not tensor.isfinite().all()]
    if infinite:
        raise ValueError(f"These weights of {run} are out of range for half precision: {infinite[:5]}.")
    model.half().save_pretrained(output)
    processor.save_pretrained(output)
    for path in output.glob("*.py"):
        path.unlink()
    for path in output.glob("*config.json"):
        write_json(_in_full(read_json(path)), path)
    write_json({name: value for name, value in recipe.items() if name not in _LOCAL}, output / RECIPE)
    log = [entry for folder in (*before, run) for entry in _history(folder)]
    write_json({"sha256": sha256_of(output / SAFE_WEIGHTS_NAME), "log": log}, output / LOG)
    return (output / SAFE_WEIGHTS_NAME).stat().st_size


def _in_full(config: Any) -> Any:
    """Replace float16 by float32 in a configuration and those of its towers, and remove references to code."""
    if not isinstance(config, dict):
        return config
    kept = {name: _in_full(value) for name, value in config.items() if name != "auto_map"}
    return kept | {"dtype": "float32"} if kept.get("dtype") == "float16" else kept


__all__ = ["LOG", "halve"]
