"""Publishes an adapter: weights, configuration, processor, code, recipe, results, a card, and the id of its base."""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, ModelCardData

from gallery.files import read_json, write_json
from modeling_scalar.model_identity import identify

from .card import Details, render
from .evidence.evaluations import identifier
from .hub.errors import PublishError
from .hub.models import check_place, find_model, weights_of
from .hub.publishing import Kind, read_record
from .settings import AdapterPush
from .trained import OWNED, check_source, describe, stage_beside_weights, stage_weights

logger = logging.getLogger(__name__)

_SCALARS = ("logit_scale", "hyperbolic")


def check_adapter(source: Path) -> None:
    """Check that a folder holds an adapter and its configuration; an error names what is missing."""
    check_source(source, "adapter_config.json", "adapter_model*.safetensors", "it is not a saved adapter.")
    if not (source / "config.json").is_file():
        raise ValueError(
            f"{source} has no config.json, the configuration that the adapter was trained with: save it there with "
            "`model.get_base_model().config.save_pretrained`."
        )
    path, adapter = source / "adapter_config.json", identify(source).adapter
    for name, pattern in (("base_model_name_or_path", "(?s).+"), ("peft_type", r"\w+"), ("revision", r"[\w./-]+")):
        value = adapter.get(name)
        is_right = isinstance(value, str) and re.fullmatch(pattern, value)
        if not is_right and (name, value) != ("revision", None):
            raise ValueError(f"{path} is not that of an adapter: `{name}` cannot be {value!r:.200}.")


def find_base(api: HfApi, source: Path, given: str | None, offline: bool = False) -> tuple[str, str | None]:
    """
    Find the base of an adapter on the Hub, and check that it is the one the adapter was trained on.

    It is `given`, or named by the adapter, or the place where that folder was pushed. Returns its id and its commit,
    `None` if that is unknown. `offline` skips the check that it exists.

    Raises:
        PublishError: it is not on the Hub.
        ValueError: the base is a folder that was never pushed, or has other weights on the Hub.
    """
    check_adapter(source)
    adapter = identify(source).adapter
    name = adapter["base_model_name_or_path"]
    local = Path(name) if Path(name).is_dir() else None
    revision = adapter.get("revision")
    if given is not None:
        repo_id, revision = given, None
    elif local is not None or os.path.isabs(name):
        record = read_record(local, api.endpoint) if local is not None else None
        if record is None:
            known = f"has not been pushed to {api.endpoint}" if local is not None else "does not exist any more"
            raise ValueError(
                f"The adapter's base is the folder {name}, which {known}: others could not load the adapter. Publish "
                f"the base first (`scalar publish model {name} user/name`), or give its id with --base."
            )
        repo_id, revision, _ = record
    else:
        repo_id = name
    check_place("base", repo_id)
    if offline:
        return repo_id, revision
    info, different = find_model(api, repo_id, revision, None if local is None else identify(local).weights)
    if different:
        raise ValueError(
            f"{repo_id} at {info.sha} is not the base that this adapter was trained on: {different} of {local} "
            "differ. Push that folder, or give another base with --base."
        )
    if not any(name.startswith("model") and name.endswith(".safetensors") for name in weights_of(info)):
        raise PublishError(f"{repo_id} holds no weights of a model, so it cannot be the adapter's base.")
    if info.private:
        logger.warning("%s is private: only those who may read it can load the adapter.", info.id)
    return info.id, info.sha


def stage_adapter(
    source: Path,
    folder: Path,
    base: str,
    base_revision: str | None,
    results: list[Path] | None = None,
    boards: Sequence[str] = (),
) -> None:
    """
    Stage an adapter.

    Args:
        source (`Path`): the folder of a run, with the adapter, its configuration and processor.
        folder (`Path`): an empty folder.
        base (`str`), base_revision (`str`, *optional*): id and commit of the base on the Hub, see [`find_base`].
        results, boards: see [`~hub_cards.trained.stage_beside_weights`].

    Raises:
        FileNotFoundError, ValueError: a file is missing or wrong, or a result was measured with other weights.
    """
    check_adapter(source)
    stage_weights(source, folder, "adapter_model*.safetensors")
    adapter = identify(source).adapter
    write_json(adapter | {"base_model_name_or_path": base, "revision": base_revision}, folder / "adapter_config.json")
    stage_beside_weights(source, folder, results, boards)


def adapter_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of an adapter from the staged files in `folder`: `adapter_config.json`, which names the base and its
    commit, `adapter_model.safetensors`, and the inputs of [`~hub_cards.model.model_card`]. Errors are as there.
    """
    data, variables = describe(folder, repo_id, "adapter_model*.safetensors")
    adapter, parts = read_json(folder / "adapter_config.json"), variables["counts"]
    added = [part for part in parts if part in _SCALARS or part.endswith("_head")]
    is_of_heads = len(added) == len(parts)
    data["tags"] += [] if is_of_heads else [identifier(adapter["peft_type"].lower())]
    base = adapter["base_model_name_or_path"]
    card = ModelCardData(library_name="peft", base_model=base, base_model_relation="adapter", **data)
    # If the run changed the base's score or inputs, only the adapter's own configuration records it.
    changes = ("aggregation", "condition_on", "query_temperature")
    is_changed = variables["recipe"] is None or any(variables["recipe"].get(name) is not None for name in changes)
    is_changed |= variables["encoder"] is not None  # the base may be an encoder as published
    variables |= {"adapter": adapter, "merge": None, "added": added}
    return render("adapter", card, details, is_changed=is_changed, is_of_heads=is_of_heads, **variables)


def _stage(settings: AdapterPush, folder: Path, api: HfApi) -> None:
    base = find_base(api, settings.folder, settings.base, offline=settings.dry_run)
    stage_adapter(settings.folder, folder, *base, settings.results, settings.boards or ())


KIND = Kind("adapter", "model", (*OWNED, "adapter_config.json", "adapter_model*.safetensors"), _stage, adapter_card)

__all__ = ["KIND", "adapter_card", "check_adapter", "find_base", "stage_adapter"]
