"""What the commands of publishing take: each setting once, as a field with its help; the command line is made of them.

Imports nothing slow, so that `--help` is quick; settings are checked where they are made.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from .card import Details

_Name = Annotated[str, Argument(help="Where it goes: user/name.")]
_Results = Annotated[
    list[Path] | None,
    Option(help="A results.json, or a folder that holds some; by default all beneath the folder."),
]
_Boards = Annotated[
    list[str] | None,
    Option("--leaderboard", help="BENCHMARK=user/dataset:task, a benchmark registered on the Hub; repeatable."),
]


@dataclass(frozen=True, kw_only=True)
class Push:
    """
    What every push takes, beside the `name` that each kind has behind its folder.

    Raises:
        ValueError: the name is not valid, or options contradict each other.
    """

    if TYPE_CHECKING:
        name: str

    license: Annotated[str | None, Option(help="Licence, an id from the Hub's list. Kept from push to push.")] = None
    license_name: Annotated[str | None, Option(help="Name of the licence 'other'.")] = None
    license_link: Annotated[str | None, Option(help="Where to find its text.")] = None
    language: Annotated[list[str] | None, Option(help="Language of the texts, such as 'en'; can be repeated.")] = None
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False
    revision: Annotated[str | None, Option(help="Branch, created if need be, or refs/pr/N.")] = None
    create_pr: Annotated[bool, Option("--create-pr", help="Open a pull request.")] = False
    replace: Annotated[bool, Option("--replace", help="Remove everything else in the repository.")] = False
    dry_run: Annotated[bool, Option("--dry-run", help="Write the folder, show the card, send nothing.")] = False
    output: Annotated[Path | None, Option(help="Folder of the dry run; by default published/NAME.")] = None

    def __post_init__(self) -> None:
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(self.name)
        if self.create_pr and self.revision is not None:
            raise ValueError(
                "A pull request is opened against `main`: leave out the revision. To add to an open pull request, "
                "give `refs/pr/N` as the revision alone."
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
        """Where a dry run writes; `None` if it is none."""
        return (self.output or Path("published") / self.name.split("/")[-1]) if self.dry_run else None

    @property
    def is_pull_request(self) -> bool:
        """Whether the commit stays out of every branch until somebody merges it."""
        return self.create_pr or (self.revision or "").startswith("refs/")

    @property
    def details(self) -> "Details":
        """What the publisher says that no file does."""
        from .card import Details

        names = ("license", "license_name", "license_link", "language")
        return Details({name: getattr(self, name) for name in names if getattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class ModelPush(Push):
    """What a push of a model takes."""

    folder: Annotated[Path, Argument(help="Folder of a model; with --merge, of an adapter.")]
    name: _Name
    merge: Annotated[bool, Option("--merge", help="Add an adapter's weights to those of its base.")] = False
    results: _Results = None
    boards: _Boards = None


@dataclass(frozen=True, kw_only=True)
class AdapterPush(Push):
    """What a push of an adapter takes."""

    folder: Annotated[Path, Argument(help="Folder of a run.")]
    name: _Name
    base: Annotated[str | None, Option(help="The base on the Hub, if its folder was not pushed.")] = None
    results: _Results = None
    boards: _Boards = None


@dataclass(frozen=True, kw_only=True)
class GalleryPush(Push):
    """What a push of a gallery takes."""

    folder: Annotated[Path, Argument(help="Store of embeddings, or gallery of scalar index.")]
    name: _Name
    model: Annotated[str | None, Option(help="The model that made it, if its folder was not pushed.")] = None
    media: Annotated[bool, Option("--media", help="Also publish the videos of a search gallery.")] = False


@dataclass(frozen=True, kw_only=True)
class MetricPush(Push):
    """What a push of a metric takes."""

    folder: Annotated[Path, Argument(help="Folder of a metric, such as eval/metrics/retrieval.")]
    name: _Name


@dataclass(frozen=True, kw_only=True)
class SpacePush(Push):
    """What a push of a Space takes."""

    name: _Name
    gallery: Annotated[str, Option(help="The gallery to search, a data set on the Hub.")]
    model: Annotated[str | None, Option(help="Model for the queries; by default the gallery's.")] = None


__all__ = ["AdapterPush", "GalleryPush", "MetricPush", "ModelPush", "Push", "SpacePush"]
