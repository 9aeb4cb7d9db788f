"""The command line: `scalar publish model`, `adapter`, `gallery`, `metric` and `space`.

Libraries are imported inside the commands, so that `--help` is quick.
"""

import scalar_retrieval.commands.interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

import logging
from collections.abc import Sequence
from typing import Any

import typer

from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.commands.options import Commands, command_of
from scalar_retrieval.commands.texts import print_lines, print_message

from .settings import AdapterPush, GalleryPush, MetricPush, ModelPush, SpacePush

app = typer.Typer(
    cls=Commands,
    help="Publish models, adapters, galleries, metrics and searches on the Hugging Face Hub, each as one commit.",
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip


def _command(kind: str, settings: type, about: str) -> None:
    """Create the command that publishes a kind."""

    def run(options: Any) -> None:
        from .publish import publish

        address = publish(**vars(options), kind=kind)
        if options.dry_run is None:
            print_lines(f"Published: {address}")
            return
        print_lines(*(options.dry_run / "README.md").read_text(encoding="utf-8").split("\n"))
        print_message(f"Nothing was sent. The files to publish are in {address}.")

    run.__name__ = kind
    run.__doc__ = about
    command_of(app, settings)(run)


_command("model", ModelPush, "Publish a whole model: weights, configuration, processor, code, recipe, results, card.")
_command("adapter", AdapterPush, "Publish an adapter: weights, configuration, processor, code, recipe, results, card.")
_command("gallery", GalleryPush, "Publish a gallery of embeddings as a data set.")
_command("metric", MetricPush, "Publish a metric as a Space, for evaluate.load.")
_command("space", SpacePush, "Publish the search of a published gallery as a Space.")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m scalar_retrieval.hub_cards") -> None:
    """Run the command line, by default with the arguments of this process, and exit."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    app(arguments, prog_name=prog)


if __name__ == "__main__":
    run_command(main)
