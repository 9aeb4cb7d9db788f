"""Publishes the search of a gallery as a Docker Space: a Dockerfile that runs `scalar serve`, and a card."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, SpaceCardData

from scalar_retrieval.gallery.store.described import check_metadata
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.gallery.store.places import MANIFEST
from scalar_retrieval.modeling_scalar.model_identity import LIGHT

from .card import Details, render, render_text
from .errors import explained
from .publishing import Kind, Push, check_place


def _encoders(model: str | None) -> dict[str, str | None]:
    """Return the ids of a model, or of several side by side, each with its commit if known; `light` has none."""
    encoders = {}
    for part in (model or LIGHT).split("+"):
        repo_id, _, commit = part.partition("@")
        if repo_id != LIGHT:
            encoders[repo_id] = commit or None
    return encoders


def space_card(
    folder: Path, repo_id: str, details: Details, model: str | None, gallery: str, gallery_revision: str
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
        models=list(_encoders(model)) or None,
        datasets=[gallery],
        tags=["video-retrieval", "multimodal", "scalar"],
    )
    details = details.over(Details({"license": "apache-2.0"}))
    return render("space", data, details, model=model, gallery=gallery, gallery_revision=gallery_revision)


def _stage(push: Push, folder: Path, api: HfApi) -> dict[str, Any]:
    """Write the Dockerfile; return the card's variables: the commit of the gallery and, if looked up, its model."""
    gallery = str(push.source)
    check_place("gallery", gallery)
    place = {"gallery": gallery, "gallery_revision": "main", "model": None}
    # The commit now on the Hub is what the Space serves, whatever is pushed later.
    if push.dry_run is None:  # else nothing is looked up
        with explained(api.endpoint, f"dataset {gallery}"):
            place["gallery_revision"] = api.dataset_info(gallery).sha
            path = api.hf_hub_download(gallery, MANIFEST, repo_type="dataset", revision=place["gallery_revision"])
        metadata = read_json(Path(path)).get("metadata", {})
        check_metadata(metadata, gallery)
        place["model"] = metadata.get("model")
        if place["model"] is None:
            raise ValueError(f"{gallery} names no model on the Hub: publish it again with --model.")
        for name, commit in _encoders(place["model"]).items():
            with explained(api.endpoint, f"model {name}"):
                api.model_info(name, revision=commit)
    dockerfile = render_text("Dockerfile.jinja", version=version("scalar-retrieval"), **place)
    (folder / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    return place


KIND = Kind("space", "space", ("Dockerfile",), _stage, space_card, sdk="docker")

__all__ = ["KIND", "space_card"]
