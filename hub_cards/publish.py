"""Publish a folder on the Hugging Face Hub: [`publish`].

Imports nothing slow: a wrong argument is reported before the libraries are imported that take seconds.
"""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from scalar_retrieval.commands.extras import naming_extras

if TYPE_CHECKING:
    from huggingface_hub import HfApi

KindName = Literal["model", "adapter", "gallery", "metric", "space"]
"""What can be published; the module of the same name in this folder defines how."""


def _find_kind(folder: Path) -> str:
    """Return the kind of what a folder holds; a ValueError says what it holds if that is not one thing."""
    from scalar_retrieval.gallery.store.places import is_gallery

    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(folder)!r}. For a Space, give the id of a published gallery, and `kind` 'space'."
        )
    found = []
    if (folder / "adapter_config.json").is_file():  # an adapter has the configuration of its model, too
        found.append("adapter")
    elif (folder / "config.json").is_file():
        found.append("model")
    if is_gallery(folder):
        found.append("gallery")
    if (folder / f"{folder.resolve().name}.py").is_file():
        found.append("metric")
    if len(found) != 1:
        raise ValueError(
            f"Expected a model, an adapter, a gallery or a metric in {folder}, and only one of them; found "
            f"{' and '.join(found) or 'none'}. Name its folder, or which one to publish as `kind`."
        )
    return found[0]


def check_folder(folder: Path, kind: str) -> None:
    """Raise an error that names what is missing unless a folder can be of a kind."""
    if kind == "gallery":
        from scalar_retrieval.gallery.store.places import find_gallery

        find_gallery(folder)
    elif not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {str(folder)!r}.")
    expected = {"model": "config.json", "adapter": "adapter_config.json"}.get(kind)
    if expected is not None and not (folder / expected).is_file():
        raise ValueError(f"{folder} holds no {expected}. A run that did not finish has checkpoints to resume from.")


@naming_extras()
def publish(
    folder: str | os.PathLike[str],
    repo_id: str,
    *,
    kind: KindName | None = None,
    license: str | None = None,
    private: bool = False,
    dry_run: str | os.PathLike[str] | None = None,
    results: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    base: str | None = None,
    model: str | None = None,
    media: bool = False,
    api: "HfApi | None" = None,
) -> str:
    """
    Publish a folder as one commit of a repository on the Hub, with a card; `scalar publish` does the same.

    Args:
        folder (`str`): a model, the adapter of a run, a gallery, or a metric; for a Space, the id of the published
            gallery that it searches.
        repo_id (`str`): id on the Hub, user/name.
        kind (`str`, *optional*): `"model"`, `"adapter"`, `"gallery"`, `"metric"` or `"space"`. By default what the
            folder holds; a Space must be named.
        license (`str`, *optional*): licence, an id from the Hub's list; kept by later pushes.
        private (`bool`): make a new repository private.
        dry_run (`str`, *optional*): write the files and the card into this new folder, and send nothing.
        results (`str` or `Sequence[str]`, *optional*): of a model or adapter, files `results.json`, or folders that
            contain some; by default all in `results` of the folder.
        base (`str`, *optional*): of an adapter, the id of its base, if the folder of the base was not published.
        model (`str`, *optional*): of a gallery, the id of the model that made it, if its folder was not published.
        media (`bool`): of a gallery by `scalar index`, also publish its videos.
        api ([`~huggingface_hub.HfApi`], *optional*): endpoint and token, by default those of the environment.

    Returns:
        `str`: the address of the commit, of the earlier one if nothing has changed; of a dry run, its folder.

    Raises:
        PublishError: the Hub refuses or cannot be reached, or the repository holds something else.
        ValueError: the folder holds something else than the kind, an argument is not of this kind, or what would be
            published is not right.
        FileNotFoundError: a file to publish is missing.
        FileExistsError: the folder of a dry run exists.

    Example:

        >>> publish("galleries/videos", "user/videos", dry_run="published")
        'published'
    """
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    if "/" not in repo_id:
        raise ValueError(f"`repo_id` must be an id on the Hub, user/name, got {repo_id!r}.")
    if kind is None:
        kind = _find_kind(Path(folder))
    if kind not in get_args(KindName):
        raise ValueError(f"`kind` must be one of {list(get_args(KindName))}, got {kind!r}.")
    if kind != "space":
        check_folder(Path(folder), kind)
    from .publishing import Push, send

    # What is given, and whether this kind has it.
    if isinstance(results, str | os.PathLike):
        results = [results]
    options = {"results": results, "base": base, "model": model, "media": media}
    push = Push(source=folder, repo_id=repo_id, license=license, private=private, dry_run=dry_run, **options)
    described = import_module(f".{kind}", __package__).KIND
    others = [name for name, value in options.items() if value and name not in described.options]
    if others:
        raise ValueError(f"{others} do not apply to what is published, which is of the kind {kind!r}. Leave them out.")

    return send(push, described, api)


__all__ = ["KindName", "check_folder", "publish"]
