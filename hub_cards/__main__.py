"""The command line: `scalar publish model`, `adapter`, `gallery`, `metric`, `space` and `validate`.

Libraries are imported inside the commands, so that `--help` is quick.
"""

import commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is heard from here on)

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.errors import Commands, run_command, say, show

if TYPE_CHECKING:
    from .hub.publishing import Published

app = typer.Typer(
    cls=Commands,
    help="Publish models, adapters, galleries, metrics and the demo on the Hugging Face Hub, each as one commit.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

_Name = Annotated[str, typer.Argument(help="Where it goes: user/name.")]
_Results = Annotated[
    list[Path] | None,
    typer.Option(help="A results.json, or a folder that holds some; by default all beneath the folder."),
]
_Boards = Annotated[
    list[str] | None,
    typer.Option("--leaderboard", help="BENCHMARK=user/dataset:task, a benchmark registered on the Hub; repeatable."),
]


def _shared(
    license: Annotated[
        str | None, typer.Option(help="Licence, an id from the Hub's list. Kept from push to push.")
    ] = None,
    license_name: Annotated[str | None, typer.Option(help="Name of the licence 'other'.")] = None,
    license_link: Annotated[str | None, typer.Option(help="Where to find its text.")] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="Language of the texts, such as 'en'; can be repeated.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, created if need be, or refs/pr/N.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Remove everything else in the repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the folder, show the card, send nothing.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder of the dry run; by default published/NAME.")] = None,
) -> None:
    """The options of every push."""


def _pushes(command: Callable[..., "Published | str"]) -> Callable[..., None]:
    """Make a command of a push: it gets the shared options too, as `target`, `details` and `output`."""
    own = {name: value for name, value in inspect.signature(command).parameters.items() if name != "how"}
    shared = inspect.signature(_shared).parameters

    @wraps(command)
    def run(**options: Any) -> None:
        _run(command, {name: options.pop(name) for name in own}, options)

    run.__signature__ = inspect.Signature([*own.values(), *shared.values()])
    run.__annotations__ = {name: value.annotation for name, value in (own | dict(shared)).items()}
    return app.command(command.__name__.removeprefix("push_"))(run)


def _run(push: Callable[..., "Published | str"], own: dict[str, Any], how: dict[str, Any]) -> None:
    from .card import Details
    from .hub.publishing import Target

    output = how["output"]
    if how["dry_run"]:
        output = output or Path("published") / own["name"].split("/")[-1]
    elif output is not None:
        raise ValueError("--output is the folder of a dry run: give --dry-run too.")
    if how["license"] == "other" and not how["license_name"]:
        raise ValueError("The licence 'other' needs a name and a link: give --license-name and --license-link.")
    if how["license"] != "other" and (how["license_name"] or how["license_link"]):
        raise ValueError("--license-name and --license-link describe the licence 'other': give --license other too.")
    target = Target(own["name"], **{name: how[name] for name in ("private", "revision", "create_pr", "replace")})
    details = Details(
        how["license"],
        tuple(how["language"] or ()),
        license_name=how["license_name"],
        license_link=how["license_link"],
    )
    done = push(**own, target=target, details=details, output=output)
    if isinstance(done, str):
        show(*done.split("\n"))
        say(f"Nothing was sent. What would be published is in {output}.")
    elif done.pull_request is not None:
        show(f"Pull request opened: {done.pull_request}")
    elif done.changed:
        show(f"Published: {done.url}")
    else:
        show(f"Nothing has changed since the last push: {done.url}")


@_pushes
def push_model(
    folder: Annotated[Path, typer.Argument(help="Folder of a model; with --merge, of an adapter.")],
    name: _Name,
    merge: Annotated[bool, typer.Option("--merge", help="Add an adapter's weights to those of its base.")] = False,
    results: _Results = None,
    boards: _Boards = None,
    **how: Any,
) -> "Published | str":
    """Publish a whole model: weights, configuration, processor, code, recipe, results, card."""
    from .model import push_model

    return push_model(folder, merge=merge, results=results, boards=boards or (), **how)


@_pushes
def push_adapter(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    name: _Name,
    base: Annotated[str | None, typer.Option(help="The base on the Hub, if its folder was not pushed.")] = None,
    results: _Results = None,
    boards: _Boards = None,
    **how: Any,
) -> "Published | str":
    """Publish an adapter with its configuration, processor, code, recipe, results and card."""
    from .adapter import push_adapter

    return push_adapter(folder, base=base, results=results, boards=boards or (), **how)


@_pushes
def push_gallery(
    folder: Annotated[Path, typer.Argument(help="Store of embeddings, or gallery of scalar index.")],
    name: _Name,
    model: Annotated[str | None, typer.Option(help="The model that made it, if its folder was not pushed.")] = None,
    media: Annotated[bool, typer.Option("--media", help="Also publish the videos of a search gallery.")] = False,
    **how: Any,
) -> "Published | str":
    """Publish embeddings as a data set."""
    from .gallery import push_gallery

    return push_gallery(folder, model=model, media=media, **how)


@_pushes
def push_metric(
    folder: Annotated[Path, typer.Argument(help="Folder of a metric, such as eval/metrics/retrieval.")],
    name: _Name,
    **how: Any,
) -> "Published | str":
    """Publish a metric as a Space, for evaluate.load."""
    from .metric import push_metric

    return push_metric(folder, **how)


@_pushes
def push_space(
    name: _Name,
    gallery: Annotated[str, typer.Option(help="The gallery to search, a data set on the Hub.")],
    model: Annotated[str | None, typer.Option(help="Model for the queries; by default the gallery's.")] = None,
    **how: Any,
) -> "Published | str":
    """Publish the app that searches a gallery as a Space."""
    from .space import push_space

    return push_space(gallery=gallery, model=model, **how)


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(help="A README.md, or the folder that holds it.")],
    repo_type: Annotated[
        str | None, typer.Option(help="model, dataset or space; by default what the card looks like.")
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
