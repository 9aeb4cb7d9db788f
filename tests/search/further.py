"""Arguments of `index` in Python that the command has no options for."""

from functools import partial

from pytest import MonkeyPatch

from scalar_retrieval import index


def index_with(monkeypatch: MonkeyPatch, **arguments: object) -> None:
    """Let `scalar index` give these arguments, too."""
    monkeypatch.setattr("scalar_retrieval.search.index_folder.index", partial(index, **arguments))
