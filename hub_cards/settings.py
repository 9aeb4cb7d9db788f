"""Settings of the publishing commands: a dataclass for each command, a field for each of its options.

Imports nothing slow, so that `--help` is quick; settings are checked when they are created.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from .card import Details

_Name = Annotated[str, Argument(help="Id on the Hub: user/name.")]
_Results = Annotated[
    list[Path] | None,
    Option(help="A results.json, or a folder that contains some; by default all below the folder."),
]
_Boards = Annotated[
    list[str] | None,
    Option("--leaderboard", help="BENCHMARK=user/dataset:task, a benchmark registered on the Hub; repeatable."),
]


@dataclass(frozen=True, kw_only=True)
class Push:
    """
    Settings that all pushes share; each kind adds its folder and `name`.

    Raises:
        ValueError: the name is not valid, or options contradict each other.
    """

    if TYPE_CHECKING:
        name: str

    license: Annotated[str | None, Option(help="Licence, an id from the Hub's list; kept by later pushes.")] = None
    license_name: Annotated[str | None, Option(help="Name of the licence 'other'.")] = None
    license_link: Annotated[str | None, Option(help="Link to the text of the licence 'other'.")] = None
    language: Annotated[list[str] | None, Option(help="Language of the texts, such as 'en'; repeatable.")] = None
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False
    revision: Annotated[str | None, Option(help="Branch, created if needed, or refs/pr/N.")] = None
    create_pr: Annotated[bool, Option("--create-pr", help="Open a pull request.")] = False
    replace: Annotated[bool, Option("--replace", help="Remove everything else in the repository.")] = False
    dry_run: Annotated[bool, Option("--dry-run", help="Write the folder and show the card, without sending.")] = False
    output: Annotated[Path | None, Option(help="Folder of the dry run; by default published/NAME.")] = None

    def __post_init__(self) -> None:
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(self.name)
        if self.create_pr and self.revision is not None:
            raise ValueError(
                "A pull request is opened against `main`: leave out the revision. To add to an open pull request, "
                "give only `refs/pr/N` as the revision."
            )
        if self.output is not None and not self.dry_run:
            raise ValueError("--output is the folder of a dry run: give --dry-run too.")
        if self.license == "other" and not self.license_name:
            raise ValueError("The licence 'other' needs a name and a link: give --license-name and --license-link.")
        if self.license != "other" and (self.license_name or self.license_link):
            raise ValueError(
                "--license-name and --license-link describe the licence 'other': give --license other too."
            )

    @property
    def folder_of_dry_run(self) -> Path | None:
        """Output folder of a dry run; `None` for a real push."""
        return (self.output or Path("published") / self.name.split("/")[-1]) if self.dry_run else None

    @property
    def is_pull_request(self) -> bool:
        """Whether the commit stays outside every branch until it is merged."""
        return self.create_pr or (self.revision or "").startswith("refs/")

    @property
    def details(self) -> "Details":
        """Return the publisher's values that no file records."""
        from .card import Details

        names = ("license", "license_name", "license_link", "language")
        return Details({name: getattr(self, name) for name in names if getattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class ModelPush(Push):
    """Settings of a push of a model."""

    folder: Annotated[Path, Argument(help="Folder of a model; with --merge, of an adapter.")]
    name: _Name
    merge: Annotated[bool, Option("--merge", help="Merge an adapter's weights into its base.")] = False
    results: _Results = None
    boards: _Boards = None


@dataclass(frozen=True, kw_only=True)
class AdapterPush(Push):
    """Settings of a push of an adapter."""

    folder: Annotated[Path, Argument(help="Folder of a training run.")]
    name: _Name
    base: Annotated[str | None, Option(help="Id of the base on the Hub, if its folder was not pushed.")] = None
    results: _Results = None
    boards: _Boards = None


@dataclass(frozen=True, kw_only=True)
class GalleryPush(Push):
    """Settings of a push of a gallery."""

    folder: Annotated[Path, Argument(help="Folder of a gallery, by scalar index or scalar eval embed.")]
    name: _Name
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
    gallery: Annotated[str, Option(help="The gallery to search, a data set on the Hub.")]
    model: Annotated[str | None, Option(help="Model for the queries; by default the gallery's.")] = None


__all__ = ["AdapterPush", "GalleryPush", "MetricPush", "ModelPush", "Push", "SpacePush"]
