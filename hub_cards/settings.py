"""The options of the publishing commands: a dataclass for each command, a field for each of its options.

Imports nothing slow, so that `--help` is quick. Fields are arguments of
[`~scalar_retrieval.hub_cards.publish.publish`], which checks them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

_RepoId = Annotated[str, Argument(help="Id on the Hub: user/name.")]
_DryRun = Annotated[
    Path | None, Option(help="Write the files and the card into this new folder, without sending them.")
]


@dataclass(frozen=True, kw_only=True)
class ModelPush:
    """Options of a push of a model."""

    folder: Annotated[Path, Argument(help="Folder of a model.")]
    repo_id: _RepoId
    license: Annotated[str | None, Option(help="Licence, an id from the Hub's list; kept by later pushes.")] = None
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False
    dry_run: _DryRun = None


@dataclass(frozen=True, kw_only=True)
class AdapterPush(ModelPush):
    """Options of a push of an adapter, and all those of a model."""

    folder: Annotated[Path, Argument(help="Folder of a training run.")]
    base: Annotated[str | None, Option(help="Id of the base on the Hub, if its folder was not pushed.")] = None


@dataclass(frozen=True, kw_only=True)
class GalleryPush(ModelPush):
    """Options of a push of a gallery, and all those of a model."""

    folder: Annotated[Path, Argument(help="Folder of a gallery, by scalar index or scalar eval embed.")]
    model: Annotated[str | None, Option(help="Id of the model that made it, if its folder was not pushed.")] = None
    media: Annotated[bool, Option("--media", help="Also publish the videos of a gallery by scalar index.")] = False


@dataclass(frozen=True, kw_only=True)
class MetricPush:
    """Options of a push of a metric."""

    folder: Annotated[Path, Argument(help="Folder of a metric, such as eval/metrics/retrieval.")]
    repo_id: _RepoId
    dry_run: _DryRun = None


@dataclass(frozen=True, kw_only=True)
class SpacePush:
    """Options of a push of a Space."""

    repo_id: _RepoId
    folder: Annotated[str, Option("--gallery", help="The gallery to search, a data set on the Hub.")]
    dry_run: _DryRun = None


__all__ = ["AdapterPush", "GalleryPush", "MetricPush", "ModelPush", "SpacePush"]
