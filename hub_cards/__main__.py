"""The command line: `python -m hub_cards push-model`, `push-adapter`, `push-gallery`, `push-metric`, `push-space`,
`validate`.

Libraries load inside the commands, so that `--help` is quick.
"""

import inspect
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .publishing import Published

app = typer.Typer(
    help="Publish models, adapters, galleries, metrics and the demo on the Hugging Face Hub, each as one commit.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

_Name = Annotated[str, typer.Argument(help="Where it goes: user/name.")]
_Results = Annotated[
    list[Path] | None, typer.Option(help="A results.json, or a folder of some; by default all beneath the folder.")
]


def _shared(
    license: Annotated[
        str | None, typer.Option(help="Licence, an id of the Hub's list. Kept from push to push.")
    ] = None,
    license_name: Annotated[str | None, typer.Option(help="Name of the licence 'other'.")] = None,
    license_link: Annotated[str | None, typer.Option(help="Where its text is.")] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="Language of the texts, 'en' say; may be repeated.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, made if need be, or refs/pr/N.")] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Remove what else is in the repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the folder, show the card, send nothing.")] = False,
    output: Annotated[Path | None, typer.Option(help="Folder of the dry run; by default published/NAME.")] = None,
) -> None:
    """The options of every push."""


@contextmanager
def _user_errors() -> Iterator[None]:
    """Say what the user can mend in one line, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        typer.echo(f"Error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo(" ".join(["Interrupted.", *map(str, error.args)]), err=True)
        raise typer.Exit(130) from error


def _pushes(kind: str) -> Callable[[Callable], Callable]:
    """Make a command of a push: the shared options become `target`, `details` and `output`."""

    def decorate(command: Callable[..., "Published | str"]) -> Callable[..., None]:
        own = {name: value for name, value in inspect.signature(command).parameters.items() if name != "how"}
        shared = inspect.signature(_shared).parameters

        @wraps(command)
        def run(**options: Any) -> None:
            with _user_errors():
                _run(command, kind, options["name"], {name: options[name] for name in own if name != "name"}, options)

        run.__signature__ = inspect.Signature([*own.values(), *shared.values()])
        run.__annotations__ = {name: value.annotation for name, value in (own | dict(shared)).items()}
        return app.command()(run)

    return decorate


def _run(
    push: Callable[..., "Published | str"], kind: str, name: str, own: dict[str, Any], how: dict[str, Any]
) -> None:
    from .cards import Details
    from .publishing import Target

    output = how["output"]
    if how["dry_run"]:
        output = output or Path("published") / name.split("/")[-1]
    elif output is not None:
        raise ValueError("--output is the folder of a dry run: give --dry-run too.")
    if how["license"] != "other" and (how["license_name"] or how["license_link"]):
        raise ValueError("--license-name and --license-link are of a licence of one's own: give --license other too.")
    target = Target(name, kind, **{option: how[option] for option in ("private", "revision", "create_pr", "replace")})
    details = Details(
        how["license"],
        tuple(how["language"] or ()),
        license_name=how["license_name"],
        license_link=how["license_link"],
    )
    done = push(name=name, **own, target=target, details=details, output=output)
    if isinstance(done, str):
        typer.echo(done)
        typer.echo(f"Nothing was sent. What would be published is in {output}.", err=True)
    elif done.pull_request is not None:
        typer.echo(f"Pull request opened: {done.pull_request}")
    elif done.changed:
        typer.echo(f"Published: {done.url}")
    else:
        typer.echo(f"Nothing has changed since the last push: {done.url}")


@_pushes("model")
def push_model(
    folder: Annotated[Path, typer.Argument(help="Folder of a model; with --merge, of an adapter.")],
    name: _Name,
    merge: Annotated[bool, typer.Option("--merge", help="Add an adapter's weights to its base's.")] = False,
    results: _Results = None,
    **how: Any,
):
    """Publish a whole model: weights, configuration, processor, code, recipe, results, card."""
    from .pushing import push_model

    return push_model(folder, merge=merge, results=results, **how)


@_pushes("adapter")
def push_adapter(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    name: _Name,
    base: Annotated[str | None, typer.Option(help="The base on the Hub, if its folder was not pushed.")] = None,
    results: _Results = None,
    **how: Any,
):
    """Publish an adapter with its configuration, processor, code, recipe, results and card."""
    from .pushing import push_adapter

    return push_adapter(folder, base=base, results=results, **how)


@_pushes("gallery")
def push_gallery(
    folder: Annotated[Path, typer.Argument(help="Store of embeddings, or gallery of python -m search index.")],
    name: _Name,
    model: Annotated[str | None, typer.Option(help="The model that made it, if its folder was not pushed.")] = None,
    media: Annotated[bool, typer.Option("--media", help="Publish the videos of a search gallery too.")] = False,
    **how: Any,
):
    """Publish embeddings as a data set."""
    from .pushing import push_gallery

    return push_gallery(folder, model=model, media=media, **how)


@_pushes("metric")
def push_metric(
    folder: Annotated[Path, typer.Argument(help="Folder of a metric, eval/metrics/retrieval say.")],
    name: _Name,
    **how: Any,
):
    """Publish a metric as a Space, for evaluate.load."""
    from .pushing import push_metric

    return push_metric(folder, **how)


@_pushes("space")
def push_space(
    name: _Name,
    gallery: Annotated[str, typer.Option(help="The gallery to search, a data set on the Hub.")],
    model: Annotated[str | None, typer.Option(help="Model for the queries; by default the gallery's.")] = None,
    **how: Any,
):
    """Publish the app that searches a gallery as a Space."""
    from .pushing import push_space

    return push_space(gallery=gallery, model=model, **how)


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(help="A README.md, or the folder it lies in.")],
    repo_type: Annotated[
        str | None, typer.Option(help="model, dataset or space; by default as the card tells.")
    ] = None,
) -> None:
    """Check a card against the Hub's rules, without the Hub."""
    with _user_errors():
        from .validation import validate as find_problems

        problems = find_problems(path, repo_type)
        for problem in problems:
            typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{path}: a valid card.")


def _stop_as_by_ctrl_c() -> None:
    """Let what ends a process, but for `kill -9`, take back what a push has made."""
    for number in signal.Signals:
        if number.name in ("SIGHUP", "SIGTERM") and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    _stop_as_by_ctrl_c()
    app(prog_name="python -m hub_cards")
