"""Arguments of `index` in Python that the command has no options for."""

from functools import partial

from pytest import MonkeyPatch

from scalar_retrieval import index
from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.search.__main__ import main


def index_with(monkeypatch: MonkeyPatch, **arguments: object) -> None:
    """Let `scalar index` give these arguments, too."""
    monkeypatch.setattr("scalar_retrieval.search.index_folder.index", partial(index, **arguments))


if __name__ == "__main__":
    # In a process of its own, so that vectors can be compared to the last bit.
    with MonkeyPatch.context() as patched:
        index_with(patched, dtype="float32")
        run_command(main)
