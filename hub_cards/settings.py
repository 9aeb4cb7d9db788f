"""Settings of the publishing commands: a dataclass for each command, a field for each of its options.

Imports nothing slow, so that `--help` is quick.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

_Name = Annotated[str, Argument(help="Id on the Hub: user/name.")]
_Results = Annotated[
    list[Path] | None,
    Option(help="A results.json, or a folder that contains some; by default all in `results` of the folder."),
]


_License = Annotated[str | None, Option(help="Licence, an id from the Hub's list; kept by later pushes.")]
_Private = Annotated[bool, Option("--private", help="Make a new repository private.")]


@dataclass(frozen=True, kw_only=True)
class Push:
    """
    Settings that all pushes share; each kind adds its folder and `name`, and makes those options that it needs.

    Raises:
        ValueError: the name is not valid.
    """

    if TYPE_CHECKING:
        name: str

    license: str | None = None
    private: bool = False
    dry_run: Annotated[
        Path | None, Option(help="Write the files and the card into this new folder, without sending them.")
    ] = None

    def __post_init__(self) -> None:
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(self.name)
        if "/" not in self.name:
            raise ValueError(f"`name` must be an id on the Hub, user/name, got {self.name!r}.")


@dataclass(frozen=True, kw_only=True)
class ModelPush(Push):
    """Settings of a push of a model."""

    folder: Annotated[Path, Argument(help="Folder of a model.")]
    name: _Name
    license: _License = None
    private: _Private = False
    results: _Results = None


@dataclass(frozen=True, kw_only=True)
class AdapterPush(Push):
    """Settings of a push of an adapter."""

    folder: Annotated[Path, Argument(help="Folder of a training run.")]
    name: _Name
    license: _License = None
    private: _Private = False
    base: Annotated[str | None, Option(help="Id of the base on the Hub, if its folder was not pushed.")] = None
    results: _Results = None


@dataclass(frozen=True, kw_only=True)
class GalleryPush(Push):
    """Settings of a push of a gallery."""

    folder: Annotated[Path, Argument(help="Folder of a gallery, by scalar index or scalar eval embed.")]
    name: _Name
    license: _License = None
    private: _Private = False
    model: Annotated[str | None, Option(help="Id of the model that made it, if its folder was not pushed.")] = None
    media: Annotated[bool, Option("--media", help="Also publish the videos of a gallery by scalar index.")] = False


@dataclass(frozen=True, kw_only=True)
class MetricPush(Push):
    """Settings of a push of a metric."""

    folder: Annotated[Path, Argument(help="Folder of a metric, such as eval/metrics/retrieval.")]
    name: _Name


@dataclass(frozen=True, kw_only=True)
class SpacePush(Push):
    """Settings of a push of a Space."""

    name: _Name
    private: _Private = False
    gallery: Annotated[str, Option(help="The gallery to search, a data set on the Hub.")]


__all__ = ["AdapterPush", "GalleryPush", "MetricPush", "ModelPush", "Push", "SpacePush"]
