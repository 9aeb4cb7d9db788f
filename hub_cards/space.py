"""The app that searches a gallery as a Space: its files, what it loads, and a card."""

import shutil
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi, SpaceCardData

from gallery.files import read_json, write_json

from .apps import GRADIO_VERSION, PYTHON_VERSION, SEARCH
from .card import Details, render
from .hub.errors import explained
from .hub.models import check_place, identify_published
from .hub.publishing import Kind, Published, Target, check_empty, push

_SETTINGS = "space.json"  # which model and which gallery the Space loads
_FILES = ("app.py", "rendering.py", "searching.py", "requirements.txt")

KIND = Kind("space", "space", (*_FILES, _SETTINGS))


def stage_space(
    folder: Path,
    model: str,
    gallery: str,
    model_revision: str | None = None,
    gallery_revision: str | None = None,
) -> None:
    """
    Lay the app out as a Space, everything but its card.

    Args:
        folder (`Path`): a new or empty folder.
        model (`str`): the id on the Hub of the model or adapter that made the gallery.
        gallery (`str`): the id of the data set that `scalar publish gallery` published.
        model_revision (`str`, *optional*), gallery_revision (`str`, *optional*): their commits. Without one, the app
            takes the model at the commit that the gallery names, and the gallery as it is when the Space starts.

    Raises:
        ValueError: the folder is not empty, an id is not valid, or a revision is not a full commit.
    """
    check_place("model", model, model_revision)
    check_place("gallery", gallery, gallery_revision)
    check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(SEARCH / name, folder / name)
    settings = {
        "model": model,
        "model_revision": model_revision,
        "gallery": gallery,
        "gallery_revision": gallery_revision,
    }
    write_json(settings, folder / _SETTINGS)


def space_card(folder: Path, repo_id: str, details: Details) -> str:
    """
    Write the card of the app from what was laid out.

    Args:
        folder (`Path`): what [`stage_space`] filled.
        repo_id (`str`): of the Space.
        details ([`~hub_cards.card.Details`]): what no file says. Without a licence, that of the app holds.

    Returns:
        `str`: the text of README.md.
    """
    settings = read_json(folder / _SETTINGS)
    data = SpaceCardData(
        title="SCALAR: search clips by text",
        emoji="🔎",
        colorFrom="blue",
        colorTo="green",
        sdk="gradio",
        sdk_version=GRADIO_VERSION,
        python_version=PYTHON_VERSION,
        app_file="app.py",
        pinned=False,
        short_description="Find video clips by text and see why they matched",
        models=[settings["model"]],
        datasets=[settings["gallery"]],
        tags=["video-retrieval", "multimodal", "scalar"],
    )
    if details.license is None:
        details = replace(details, license="apache-2.0")
    return render(KIND.name, data, details, repo_id=repo_id, gradio_version=GRADIO_VERSION, **settings)


def _revisions_of(api: HfApi, gallery: str, model: str | None) -> dict[str, str | None]:
    """What the app loads: the model and the gallery, each at one commit."""
    with explained(api, "dataset", gallery):
        commit = api.dataset_info(gallery).sha
        path = api.hf_hub_download(gallery, "embeddings.json", repo_type="dataset", revision=commit)
    description = read_json(Path(path))
    made_by, revision = description.get("model"), description.get("model_revision")
    if model is None and made_by is None:
        raise ValueError(f"{gallery} does not say which model on the Hub made it: name one with --model.")
    if None not in (model, made_by) and model != made_by:
        raise ValueError(
            f"{gallery} was made by {made_by}, so queries of {model} cannot be compared with it. Leave out --model, "
            f"or publish a gallery that {model} made."
        )
    model = model or made_by
    with explained(api, "model", model):
        revision = api.model_info(model, revision=revision).sha
    identity = identify_published(api, model, revision)
    if not identity.is_configured:
        raise ValueError(
            f"{model} is an encoder as its publisher has it, but the app runs the code of a model. Save it as one "
            "(`model, processor = load_model(NAME)`, then `save_pretrained` of both), publish that with "
            "`scalar publish model`, and a gallery that was indexed with it."
        )
    if (aggregation := identity.config.get("aggregation")) != "scalar":
        raise ValueError(
            f"The app draws the weights of SCALAR's score, but {model} scores with {aggregation!r}: it "
            "would show other hits than the model finds. Publish a gallery of a model that scores with 'scalar'."
        )
    return {"model": model, "model_revision": revision, "gallery_revision": commit}


def push_space(
    target: Target,
    details: Details,
    gallery: str,
    model: str | None = None,
    output: Path | None = None,
    api: HfApi | None = None,
) -> Published | str:
    """
    Publish the app that searches a published gallery.

    Args:
        gallery (`str`): id of the data set.
        model (`str`, *optional*): id of the model that embeds queries; by default the one that made the gallery.
        target, details, output, api: as in [`~hub_cards.model.push_model`].

    Returns:
        As [`~hub_cards.model.push_model`].

    Raises:
        PublishError, FileNotFoundError, ValueError: as [`~hub_cards.model.push_model`]; also if the gallery is not on
            the Hub, or does not say which model made it.
    """
    api = api or HfApi()

    def stage(folder: Path) -> None:
        revisions = {}
        if output is None:
            revisions = _revisions_of(api, gallery, model)
        elif model is None:
            raise ValueError("A dry run does not look up the gallery: name the model that made it with --model.")
        stage_space(folder, **{"model": model, "gallery": gallery} | revisions)

    return push(KIND, target, details, stage, space_card, output, api)


__all__ = ["KIND", "push_space", "space_card", "stage_space"]
