"""Publishes the search of a gallery as a Docker Space: a Dockerfile that runs `scalar serve`, and a card."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, SpaceCardData

from gallery.files import read_json
from gallery.storage import MANIFEST

from .card import Details, render, render_text
from .errors import explained
from .publishing import Kind, check_place
from .settings import SpacePush


def space_card(
    folder: Path, repo_id: str, details: Details, model: str, gallery: str, gallery_revision: str | None
) -> str:
    """Write the card of the search. The licence is that of `details`, or else of the program."""
    data = SpaceCardData(
        title="SCALAR: search clips by text",
        emoji="🔎",
        colorFrom="blue",
        colorTo="green",
        sdk="docker",
        app_port=7860,
        pinned=False,
        short_description="Find video clips by text and see why they matched",
        models=[model],
        datasets=[gallery],
        tags=["video-retrieval", "multimodal", "scalar"],
    )
    details = details.over(Details({"license": "apache-2.0"}))
    place = {"model": model, "gallery": gallery, "gallery_revision": gallery_revision}
    return render("space", data, details, **place)


def _look_up(api: HfApi, gallery: str, model: str | None) -> dict[str, Any]:
    """Return the commit of a published gallery, and the model that made it."""
    with explained(api.endpoint, f"dataset {gallery}"):
        commit = api.dataset_info(gallery).sha
        path = api.hf_hub_download(gallery, MANIFEST, repo_type="dataset", revision=commit)
    made_by = read_json(Path(path)).get("metadata", {}).get("model")
    if model is None and made_by is None:
        raise ValueError(f"{gallery} does not say which model on the Hub made it: name one with --model.")
    if None not in (model, made_by) and model != made_by:
        raise ValueError(f"{gallery} was made by {made_by}, so queries of {model} cannot be compared with it.")
    found = model or made_by
    with explained(api.endpoint, f"model {found}"):
        api.model_info(found)
    return {"model": found, "gallery_revision": commit}


def _stage(settings: SpacePush, folder: Path, api: HfApi) -> dict[str, Any]:
    """Write the Dockerfile; return the card's variables about the gallery and the model."""
    check_place("gallery", settings.gallery)
    if settings.dry_run is None:
        found = _look_up(api, settings.gallery, settings.model)
    else:
        check_place("model", settings.model)  # nothing is looked up
        found = {"model": settings.model, "gallery_revision": "main"}
    place = {"gallery": settings.gallery} | found
    options = {"version": version("scalar-retrieval"), "is_model_given": settings.model is not None}
    (folder / "Dockerfile").write_text(render_text("Dockerfile.jinja", **place, **options), encoding="utf-8")
    return place


KIND = Kind("space", "space", ("Dockerfile",), _stage, space_card, "docker")

__all__ = ["KIND", "space_card"]
