"""The `scalar` command: every command of the project under one name.

Packages are named as strings and imported only when one of their commands runs, so `--help` is quick and needs no
extra.
"""

from . import interrupts  # noqa: F401 # isort: skip (first, so that Ctrl-C is handled from here on)

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from .errors import run_command
from .texts import print_lines, print_message

_SEARCH = "scalar_retrieval.search.__main__"
_COMMANDS = {
    "Search your own videos": {
        "index": (_SEARCH, "Embed new and changed files into a gallery"),
        "query": (_SEARCH, "Print the best clips for each query"),
        "serve": (_SEARCH, "Serve a gallery over HTTP, with a search page"),
        "info": (_SEARCH, "Print what a gallery contains and which files could not be read"),
    },
    "Maintain a gallery": {
        "verify": (_SEARCH, "Compare every file of a gallery with its hash"),
        "repair": (_SEARCH, "Restore the intact parts of a damaged gallery"),
        "compact": (_SEARCH, "Rewrite a gallery without the clips that were removed"),
        "remove": (_SEARCH, "Remove the clips of files and folders from a gallery"),
        "push": (_SEARCH, "Copy a gallery into a table of PostgreSQL"),
    },
    "Train, evaluate and publish models": {
        "train": ("scalar_retrieval.trainer.__main__", "Train a model from a recipe"),
        "eval": ("scalar_retrieval.eval.__main__", "Evaluate text-to-video retrieval"),
        "publish": (
            "scalar_retrieval.hub_cards.__main__",
            "Publish models, adapters, galleries, metrics and searches",
        ),
        "convert-vast": (
            "scalar_retrieval.modeling_scalar.__main__",
            "Convert a VAST, GRAM or PMRL checkpoint",
        ),
    },
}
"""Commands by heading: the module whose `main` runs each one, and the beginning of its own help."""

_USAGE = "Usage: scalar COMMAND [ARGS]..."


def help_lines() -> list[str]:
    """The lines of `scalar --help`."""
    lines = [_USAGE, "", "Text-to-video retrieval. `scalar COMMAND --help` lists a command's options."]
    for heading, entries in _COMMANDS.items():
        lines += ["", f"{heading}:"]
        for name, (_, about) in entries.items():
            lines.append(f"  {name:<13} {about}")
    return lines


def run(arguments: Sequence[str]) -> int | None:
    """
    Run one command.

    Args:
        arguments (`Sequence[str]`): what follows `scalar`.

    Returns:
        The exit status, unless the command exits itself; 2 if there is no such command.
    """
    name, *rest = arguments or [""]
    if name in ("", "--help"):
        print_lines(*help_lines())
        return 0 if name else 2
    # Find the module that runs the command, or suggest a command with a similar name.
    known = {}
    for entries in _COMMANDS.values():
        known |= entries
    if name not in known:
        # As typer reports it for the commands below
        error = f"Error: No such command {name!r}."
        near = get_close_matches(name, known, n=1)
        if near:
            error += f" Did you mean {near[0]!r}?"
        for line in (_USAGE, "Try 'scalar --help' for help.", "", error):
            print_message(line)
        return 2
    module, _ = known[name]
    main = import_module(module).main
    # The search has no name of its own between `scalar` and its commands.
    return main(arguments, "scalar") if module == _SEARCH else main(rest, f"scalar {name}")


def main() -> None:
    """Run the command line and exit."""
    run_command(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    main()


__all__ = ["help_lines", "main", "run"]
