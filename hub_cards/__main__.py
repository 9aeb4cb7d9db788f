"""The command line: `scalar publish model`, `adapter`, `gallery`, `metric`, `space` and `validate`.

Libraries are imported inside the commands, so that `--help` is quick.
"""

import commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is heard from here on)

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from commands.errors import Commands, run_command, say, show
from commands.options import command_of

if TYPE_CHECKING:
    from .hub.publishing import Published

app = typer.Typer(
    cls=Commands,
    help="Publish models, adapters, galleries, metrics and searches on the Hugging Face Hub, each as one commit.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

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
    """What every push takes."""

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

    def how(self) -> dict[str, Any]:
        """What every push is given."""
        from .card import Details
        from .hub.publishing import Target

        languages = tuple(self.language or ())
        return {
            "target": Target(self.name, self.private, self.revision, self.create_pr, self.replace),
            "details": Details(
                self.license, languages, license_name=self.license_name, license_link=self.license_link
            ),
            "output": self.folder_of_dry_run,
        }


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


def _report(push: Push, done: "Published | str") -> None:
    """Say what became of a push; of a dry run show the card."""
    if isinstance(done, str):
        show(*done.split("\n"))
        say(f"Nothing was sent. What would be published is in {push.folder_of_dry_run}.")
    elif done.pull_request is not None:
        show(f"Pull request opened: {done.pull_request}")
    elif done.changed:
        show(f"Published: {done.url}")
    else:
        show(f"Nothing has changed since the last push: {done.url}")


@command_of(app, ModelPush)
def model(push: ModelPush) -> None:
    """Publish a whole model: weights, configuration, processor, code, recipe, results, card."""
    from .model import push_model

    _report(
        push, push_model(push.folder, merge=push.merge, results=push.results, boards=push.boards or (), **push.how())
    )


@command_of(app, AdapterPush)
def adapter(push: AdapterPush) -> None:
    """Publish an adapter with its configuration, processor, code, recipe, results and card."""
    from .adapter import push_adapter

    _report(
        push, push_adapter(push.folder, base=push.base, results=push.results, boards=push.boards or (), **push.how())
    )


@command_of(app, GalleryPush)
def gallery(push: GalleryPush) -> None:
    """Publish a gallery of embeddings as a data set."""
    from .gallery import push_gallery

    _report(push, push_gallery(push.folder, model=push.model, media=push.media, **push.how()))


@command_of(app, MetricPush)
def metric(push: MetricPush) -> None:
    """Publish a metric as a Space, for evaluate.load."""
    from .metric import push_metric

    _report(push, push_metric(push.folder, **push.how()))


@command_of(app, SpacePush)
def space(push: SpacePush) -> None:
    """Publish the search of a published gallery as a Space."""
    from .space import push_space

    _report(push, push_space(gallery=push.gallery, model=push.model, **push.how()))


@app.command()
def validate(
    path: Annotated[Path, Argument(help="A README.md, or the folder that holds it.")],
    repo_type: Annotated[
        str | None, Option(help="model, dataset or space; by default what the card looks like.")
    ] = None,
) -> None:
    """Check a card for local paths and tokens; the Hub, if it can be asked, checks the rest."""
    from .hub.card_rules import ask_hub
    from .hub.card_rules import validate as find_problems
    from .hub.errors import REQUEST_ERRORS, first_line

    problems, told = find_problems(path), "a valid card."
    if not problems:
        try:
            problems = ask_hub(path, repo_type)
        except (*REQUEST_ERRORS, ConnectionError) as error:
            told = f"nothing wrong here, but the Hub was not asked about its own rules ({first_line(error)})."
    for problem in problems:
        show(*problem.splitlines())
    if problems:
        raise typer.Exit(1)
    show(f"{path}: {told}")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m hub_cards") -> None:
    """Run the command line, by default that of this program, and exit."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
