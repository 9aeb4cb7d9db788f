"""`python -m trainer.halve RUN OUTPUT`: a trained model in half precision, small enough to be kept beside its recipe.

Its configuration says float32, so that it is loaded, and computes, in full precision. Beside the weights lie the
fields of the run and its log, which tell whether the recipe still leads there; no code, which this repository has.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from commands.errors import say, user_errors
from gallery.files import read_json, sha256_of, write_json
from modeling_scalar import load_model

from .checkpoints import last_checkpoint
from .folder import RECIPE

LOG = "log.json"
"""The terms of the loss, step by step, and the SHA-256 of the weights."""

_LOCAL = ("output_dir", "logging_dir")
_TERMS = ("step", "epoch", "loss")


def halve(run: Path, output: Path) -> None:
    """
    Write the model of a run that has ended, in half precision.

    Args:
        run (`Path`): folder of a training of all weights.
        output (`Path`): folder for the model; what it holds of these files is replaced.

    Raises:
        ValueError: the run has not ended, trained an adapter, or a weight does not fit into half precision.
    """
    checkpoint = last_checkpoint(run) if (run / RECIPE).is_file() and (run / CONFIG_NAME).is_file() else None
    if checkpoint is None:
        raise ValueError(f"{run} is not the folder of a training of all weights that has ended.")
    recipe, history = read_json(run / RECIPE), read_json(checkpoint / "trainer_state.json")["log_history"]
    model, processor = load_model(run, dtype=torch.float32)
    half = {name: tensor.half() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    infinite = [name for name, tensor in half.items() if not tensor.isfinite().all()]
    if infinite:
        raise ValueError(f"These weights of {run} do not fit into half precision: {infinite[:5]}.")
    model.half().save_pretrained(output)
    processor.save_pretrained(output)
    for path in output.glob("*.py"):
        path.unlink()
    for path in output.glob("*config.json"):
        write_json(_in_full(read_json(path)), path)
    write_json({name: value for name, value in recipe.items() if name not in _LOCAL}, output / RECIPE)
    log = [{name: value for name, value in entry.items() if name.startswith(_TERMS)} for entry in history]
    write_json({"sha256": sha256_of(output / SAFE_WEIGHTS_NAME), "log": log}, output / LOG)


def _in_full(config: Any) -> Any:
    """Say float32 wherever a configuration says float16, in those of its towers too, and name no files of code."""
    if not isinstance(config, dict):
        return config
    kept = {name: _in_full(value) for name, value in config.items() if name != "auto_map"}
    return kept | {"dtype": "float32"} if kept.get("dtype") == "float16" else kept


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a training of all weights.")],
    output: Annotated[Path, typer.Argument(help="Folder for the model in half precision.")],
) -> None:
    """Keep a trained model in half precision, with its recipe and its log."""
    with user_errors():
        halve(run, output)
        size = (output / SAFE_WEIGHTS_NAME).stat().st_size
        say(f"{size / 1e6:.1f} MB of weights are in {output}.")


__all__ = ["LOG", "halve"]

if __name__ == "__main__":
    typer.run(main)
