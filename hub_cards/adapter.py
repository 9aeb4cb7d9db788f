"""Publishes an adapter: weights, configuration, processor, code, recipe, results, a card, and the id of its base."""

import os
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, ModelCardData

from scalar_retrieval.gallery.store.files import read_json, write_json
from scalar_retrieval.modeling_scalar.model_identity import identify

from .card import Details, render
from .publishing import Kind, PublishedModel, Push, find_model
from .records.evaluations import identifier
from .trained import OWNED, card_inputs, stage_beside_weights, stage_weights

_SCALARS = ("logit_scale", "hyperbolic")


def check_adapter(source: Path) -> None:
    """Check that others can load an adapter; an error says why not."""
    if not (source / "config.json").is_file():
        raise ValueError(
            f"{source} has no config.json, the configuration that the adapter was trained with: save it there with "
            "`model.get_base_model().config.save_pretrained`."
        )
    # Only an encoder that is saved with the model has a configuration there.
    identity = identify(source)
    if identity.is_configured and identity.is_joint and identity.config.get("backbone_config") is None:
        raise ValueError(
            f"{source} holds heads on a SentenceTransformer, such as `light`, which only this package loads: they "
            f"cannot be published. They can be used here, as in `scalar index --model {source}`."
        )


def find_base(api: HfApi, source: Path, given: str | None, offline: bool = False) -> PublishedModel:
    """
    Find the base of an adapter on the Hub, and check that it is the one the adapter was trained on.

    It is `given`, or named by the adapter, or the place where that folder was pushed. `offline` skips the check that
    it exists.

    Raises:
        PublishError: it is not on the Hub.
        ValueError: the base is a folder that was never pushed, or has other weights on the Hub.
    """
    adapter = identify(source).adapter
    name = adapter.get("base_model_name_or_path") or ""
    # A folder of the base tells which weights the adapter was trained on.
    weights = {}
    if Path(name).is_dir():
        weights = identify(name).weights
    revision = None
    if given is None:
        revision = adapter.get("revision")
    base = find_model(api, given or name, revision, weights, offline)
    if base is None:
        folder = given or name
        advice = f"Publish it first (`scalar publish model {folder} user/name`), or give its id with --base."
        if Path(folder).is_dir() and identify(folder).kind == "encoder":
            advice = f"Give the id that it was downloaded from with --base, or upload it (`hf upload ID {folder}`)."
        raise ValueError(
            f"The adapter's base is the folder {folder}, which has not been pushed to {api.endpoint}: others could "
            f"not load the adapter. {advice}"
        )
    return base


def stage_adapter(
    source: Path, folder: Path, base: PublishedModel, results: Sequence[str | os.PathLike] | None = None
) -> None:
    """
    Stage an adapter.

    Args:
        source (`Path`): the folder of a run, with the adapter, its configuration and processor.
        folder (`Path`): an empty folder.
        base ([`~scalar_retrieval.hub_cards.publishing.PublishedModel`]): the base on the Hub, see [`find_base`].
        results: see [`~scalar_retrieval.hub_cards.trained.stage_beside_weights`].

    Raises:
        FileNotFoundError, ValueError: a file is missing or wrong, or a result was measured with other weights.
    """
    # The base by its id and commit, in place of a folder of this machine.
    stage_weights(source, folder, "adapter_model*.safetensors")
    adapter = identify(source).adapter
    published = {"base_model_name_or_path": base.repo_id, "revision": base.revision}
    write_json(adapter | published, folder / "adapter_config.json")
    stage_beside_weights(source, folder, results)


def adapter_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of an adapter from the staged files in `folder`: `adapter_config.json`, which names the base and its
    commit, `adapter_model.safetensors`, and the inputs of [`~scalar_retrieval.hub_cards.model.model_card`]. Errors are
    as there.
    """
    data, variables = card_inputs(folder, repo_id, "adapter_model*.safetensors")
    adapter = read_json(folder / "adapter_config.json")
    # Parts that the run added to the base; with nothing else, the adapter is of heads alone.
    parts = variables["counts"]
    added = []
    for part in parts:
        if part in _SCALARS or part.endswith("_head"):
            added.append(part)
    is_of_heads = len(added) == len(parts)
    if not is_of_heads:
        data["tags"].append(identifier(adapter["peft_type"].lower()))
    base = adapter["base_model_name_or_path"]
    card = ModelCardData(library_name="peft", base_model=base, base_model_relation="adapter", **data)
    variables |= {"adapter": adapter, "added": added, "is_of_heads": is_of_heads}
    return render("adapter", card, details, **variables)


def _stage(push: Push, folder: Path, api: HfApi) -> None:
    source = Path(push.source)
    check_adapter(source)
    base = find_base(api, source, push.base, offline=push.dry_run is not None)
    stage_adapter(source, folder, base, push.results)


_OWNED = (*OWNED, "adapter_config.json", "adapter_model*.safetensors")
KIND = Kind("adapter", "model", _OWNED, _stage, adapter_card, ("base", "results"))

__all__ = ["KIND", "adapter_card", "find_base", "stage_adapter"]
