"""`python -m trainer.halve RUN OUTPUT`: store a trained model in half precision, small enough for a repository.

Its configuration says float32, so it is loaded and computes in full precision. The folder also holds the fields of the
run and its log, to check that the recipe still gives this model; it holds no code.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_NAME

from commands.errors import say, user_errors
from gallery.files import read_json, sha256_of, write_json
from modeling_scalar import load_model

from .checkpoints import RECIPE, last_checkpoint

LOG = "log.json"
"""The terms of the loss at each step, and the SHA-256 of the weights."""

_LOCAL = ("output_dir", "logging_dir")
_TERMS = ("step", "epoch", "loss")


def _history(run: Path) -> list[dict[str, Any]]:
    """The losses that a run logged."""
    log = read_json(last_checkpoint(run) / "trainer_state.json")["log_history"]
    return [{name: value for name, value in entry.items() if name.startswith(_TERMS)} for entry in log]


def halve(run: Path, output: Path, before: Sequence[Path] = ()) -> None:
    """
    Write the model of a finished run in half precision.

    Args:
        run (`Path`): The folder of a full fine-tuning run.
        output (`Path`): The folder for the model; existing files are replaced.
        before (`Sequence[Path]`): The runs that this one continued, whose logs are stored before its own.

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


def _in_full(config: Any) -> Any:
    """Replace float16 by float32 in a configuration and those of its towers, and remove references to code."""
    if not isinstance(config, dict):
        return config
    kept = {name: _in_full(value) for name, value in config.items() if name != "auto_map"}
    return kept | {"dtype": "float32"} if kept.get("dtype") == "float16" else kept


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a full fine-tuning run.")],
    output: Annotated[Path, typer.Argument(help="Folder for the model in half precision.")],
    before: Annotated[list[Path], typer.Option(help="Earlier run that it continued, for its log.")] = [],  # noqa: B006
) -> None:
    """Store a trained model in half precision, with its recipe and its log."""
    with user_errors():
        halve(run, output, before)
        size = (output / SAFE_WEIGHTS_NAME).stat().st_size
        say(f"Stored {size / 1e6:.1f} MB of weights in {output}.")


__all__ = ["LOG", "halve"]

if __name__ == "__main__":
    typer.run(main)
