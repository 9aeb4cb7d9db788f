"""Publishes a whole model: weights, configuration, processor, code, recipe, results and a card."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, ModelCardData

from scalar_retrieval.modeling_scalar.model_identity import identify

from .card import Details, render
from .publishing import Kind, Push
from .trained import OWNED, card_inputs, stage_beside_weights, stage_weights


def stage_model(source: Path, folder: Path, results: Sequence[str | os.PathLike] | None = None) -> None:
    """
    Stage a whole model.

    Args:
        source (`Path`): a folder with a model and its processor.
        folder (`Path`): an empty folder.
        results: see [`~scalar_retrieval.hub_cards.trained.stage_beside_weights`].

    Raises:
        FileNotFoundError, ValueError: a file is missing or wrong, or a result was measured with other weights.
    """
    if identify(source).kind == "adapter":
        raise ValueError(f"{source} holds an adapter: publish it with `scalar publish adapter`.")
    # Weights are linked, not copied; a sharded model has an index too.
    stage_weights(source, folder, "model*.safetensors")
    for index in source.glob("model.safetensors.index.json"):
        shutil.copyfile(index, folder / index.name)
    stage_beside_weights(source, folder, results)


def model_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of a whole model from the staged files in `folder`: its weights, `config.json`, and if they exist
    `recipe.json`, `training.json`, `emissions.json` and evaluations in `results/`.

    Raises:
        FileNotFoundError: the folder has no `config.json`, or an evaluation has no `results.json`.
        ValueError: an evaluation does not have the content of one.
    """
    data, variables = card_inputs(folder, repo_id, "model*.safetensors")
    trained = None
    if variables["training"] is not None:
        trained = variables["training"]["trainable_parameters"]
    card = ModelCardData(library_name="transformers", **data)
    return render("model", card, details, trained=trained, adapter=None, **variables)


def _stage(push: Push, folder: Path, api: HfApi) -> None:
    stage_model(Path(push.source), folder, push.results)


KIND = Kind("model", "model", OWNED, _stage, model_card, ("results",))

__all__ = ["KIND", "model_card", "stage_model"]
