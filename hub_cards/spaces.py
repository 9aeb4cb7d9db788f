"""The app that searches a gallery as a Space: its files, what it loads, and a card."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from huggingface_hub import SpaceCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id

from hub_cards.cards import Details, render
from hub_cards.metrics import GRADIO_VERSION, PYTHON_VERSION

SETTINGS = "space.json"
"""The file of the Space that says which model and which gallery it loads."""

_APP = Path(__file__).parent / "space"
_FILES = ("app.py", "rendering.py", "searching.py", "requirements.txt")
_COMMIT = re.compile("[0-9a-f]{40}")


def _check_place(name: str, repo_id: str, revision: str | None) -> None:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"`{name}` must be an id on the Hub, such as 'user/name', got {repo_id!r}.") from error
    if revision is not None and not _COMMIT.fullmatch(revision):
        raise ValueError(
            f"`{name}_revision` must be a full commit, 40 hexadecimal digits, got {revision!r}. A branch or a tag "
            "could move, and the embeddings would no longer be those of the model."
        )


def stage_space(
    folder: str | os.PathLike,
    model: str,
    gallery: str,
    model_revision: str | None = None,
    gallery_revision: str | None = None,
) -> None:
    """
    Lay the app out as a Space, everything but its card.

    Args:
        folder (`str`): a new or empty folder.
        model (`str`): the id on the Hub of the model or adapter that made the gallery.
        gallery (`str`): the id of the data set that `push-gallery` published.
        model_revision (`str`, *optional*), gallery_revision (`str`, *optional*): their commits. Without one, the app
            takes the model at the commit that the gallery names, and the gallery as it is when the Space starts.

    Raises:
        ValueError: the folder is not empty, an id is none, or a revision is not a full commit.
    """
    folder = Path(folder)
    _check_place("model", model, model_revision)
    _check_place("gallery", gallery, gallery_revision)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be a new or an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(_APP / name, folder / name)
    settings = {
        "model": model,
        "model_revision": model_revision,
        "gallery": gallery,
        "gallery_revision": gallery_revision,
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def space_card(folder: str | os.PathLike, repo_id: str, details: Details) -> str:
    """
    Write the card of the app from what was laid out.

    Args:
        folder (`str`): what [`stage_space`] filled.
        repo_id (`str`): of the Space.
        details ([`~hub_cards.cards.Details`]): what no file says. Without a licence, that of the app counts.

    Returns:
        `str`: the text of README.md.
    """
    settings = json.loads((Path(folder) / SETTINGS).read_text(encoding="utf-8"))
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
    return render("space", data, details, repo_id=repo_id, gradio_version=GRADIO_VERSION, **settings)


__all__ = ["SETTINGS", "space_card", "stage_space"]
