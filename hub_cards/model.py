"""Publishes a whole model: weights, configuration, processor, code, recipe, results and a card."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, ModelCardData
from peft import PeftModel

from gallery.files import write_json
from modeling_scalar import load_model
from modeling_scalar.model_identity import identify

from .adapter import check_adapter, find_base
from .card import Details, render
from .hub.publishing import Kind
from .settings import ModelPush
from .trained import OWNED, check_source, describe, optional_json, stage_beside_weights, stage_weights

logger = logging.getLogger(__name__)


def stage_model(
    source: Path,
    folder: Path,
    results: list[Path] | None = None,
    merge: bool = False,
    base: tuple[str, str | None] | None = None,
    boards: Sequence[str] = (),
) -> None:
    """
    Stage a whole model.

    Args:
        source (`Path`): a folder with a model and its processor; with `merge`, an adapter's.
        folder (`Path`): an empty folder.
        results, boards: see [`~hub_cards.trained.stage_beside_weights`].
        merge (`bool`): merge the adapter's weights into those of its base.
        base (`tuple`, *optional*): id and commit of that base on the Hub, for the card, if known.

    Raises:
        FileNotFoundError, ValueError: a file is missing or wrong, or a result was measured with other weights.
    """
    is_adapter = source.is_dir() and identify(source).kind == "adapter"
    if is_adapter and not merge:
        raise ValueError(
            f"{source} holds an adapter: publish it with `scalar publish adapter`, or the whole model with "
            "`scalar publish model --merge`."
        )
    if merge:
        if not is_adapter:
            raise ValueError(f"{source} holds no adapter to merge: leave out --merge.")
        _stage_merged(source, folder, base)
    else:
        check_source(source, "config.json", "model*.safetensors", "it is not a saved model.")
        stage_weights(source, folder, "model*.safetensors")
        for index in source.glob("model.safetensors.index.json"):
            shutil.copyfile(index, folder / index.name)
    stage_beside_weights(source, folder, results, boards)


def _stage_merged(source: Path, folder: Path, base: tuple[str, str | None] | None) -> None:
    check_adapter(source)
    kind = type(load_model(source)[0])  # also checks both
    own_base = identify(source).base
    config = kind.config_class.from_pretrained(source)
    model = kind.from_pretrained(own_base.name, revision=own_base.revision, config=config)
    PeftModel.from_pretrained(model, source).merge_and_unload().save_pretrained(folder)
    repo_id, commit = base or (Path(own_base.name).name, None)
    write_json({"base_model": repo_id, "base_model_revision": commit}, folder / "merge.json")


def model_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of a whole model from the staged files in `folder`: its weights, `config.json`, and if they exist
    `recipe.json`, `training.json`, `emissions.json`, `merge.json` and evaluations in `results/`.

    Raises:
        FileNotFoundError: the folder has no `config.json` or no weights, or an evaluation has no `results.json`.
        ValueError: a file does not have the content that its name says.
    """
    data, variables = describe(folder, repo_id, "model*.safetensors")
    merge = optional_json(folder / "merge.json")
    training = variables["training"]
    # Only a base from the Hub has a commit; any other name is that of a folder.
    if merge is not None and merge.get("base_model_revision"):
        data |= {"base_model": merge["base_model"], "base_model_relation": "finetune"}
    trained = training["trainable_parameters"] if training is not None and merge is None else None
    card = ModelCardData(library_name="transformers", **data)
    return render("model", card, details, merge=merge, trained=trained, adapter=None, **variables)


def _stage(settings: ModelPush, folder: Path, api: HfApi) -> None:
    base = None
    if settings.merge:
        try:
            base = find_base(api, settings.folder, None, offline=settings.dry_run)
        except (OSError, ValueError) as error:
            logger.warning("The card names no base: %s", error)
    stage_model(settings.folder, folder, settings.results, settings.merge, base, settings.boards or ())


KIND = Kind("model", "model", OWNED, _stage, model_card)

__all__ = ["KIND", "model_card", "stage_model"]
