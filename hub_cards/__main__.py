"""The command line: `scalar publish model`, `adapter`, `gallery`, `metric`, `space` and `validate`.

Libraries are imported inside the commands, so that `--help` is quick.
"""

import commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from commands.errors import Commands, run_command, say, show
from commands.options import command_of

from .settings import AdapterPush, GalleryPush, MetricPush, ModelPush, Push, SpacePush

if TYPE_CHECKING:
    from .hub.publishing import Kind

app = typer.Typer(
    cls=Commands,
    help="Publish models, adapters, galleries, metrics and searches on the Hugging Face Hub, each as one commit.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


def _push(settings: Push, kind: "Kind") -> None:
    """Push, and report the result; for a dry run show the card."""
    from .hub.publishing import push

    done = push(settings, kind)
    if isinstance(done, str):
        show(*done.split("\n"))
        say(f"Nothing was sent. The files to publish are in {settings.folder_of_dry_run}.")
    elif done.pull_request is not None:
        show(f"Pull request opened: {done.pull_request}")
    elif done.changed:
        show(f"Published: {done.url}")
    else:
        show(f"Nothing has changed since the last push: {done.url}")


def _command(kind: str, settings: type[Push], about: str) -> None:
    """Create the command that publishes a kind, defined in the module of the same name."""

    def run(given: Push) -> None:
        _push(given, import_module(f".{kind}", __package__).KIND)

    run.__name__, run.__doc__ = kind, about
    command_of(app, settings)(run)


_command("model", ModelPush, "Publish a whole model: weights, configuration, processor, code, recipe, results, card.")
_command("adapter", AdapterPush, "Publish an adapter: weights, configuration, processor, code, recipe, results, card.")
_command("gallery", GalleryPush, "Publish a gallery of embeddings as a data set.")
_command("metric", MetricPush, "Publish a metric as a Space, for evaluate.load.")
_command("space", SpacePush, "Publish the search of a published gallery as a Space.")


@app.command()
def validate(
    path: Annotated[Path, Argument(help="A README.md, or the folder that contains it.")],
    repo_type: Annotated[str | None, Option(help="model, dataset or space; by default guessed from the card.")] = None,
) -> None:
    """Check a card for local paths and tokens; if the Hub can be reached, it checks the rest."""
    from .hub.card_rules import ask_hub
    from .hub.card_rules import validate as find_problems
    from .hub.errors import REQUEST_ERRORS, first_line

    problems, verdict = find_problems(path), "a valid card."
    if not problems:
        try:
            problems = ask_hub(path, repo_type)
        except (*REQUEST_ERRORS, ConnectionError) as error:
            verdict = f"nothing wrong here, but the Hub was not asked about its own rules ({first_line(error)})."
    for problem in problems:
        show(*problem.splitlines())
    if problems:
        raise typer.Exit(1)
    show(f"{path}: {verdict}")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m hub_cards") -> None:
    """Run the command line, by default with the arguments of this process, and exit."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
