"""Opens what can be searched: a gallery in a folder, a published one, or a table of PostgreSQL."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gallery.searcher import Searcher


def is_address(text: str) -> bool:
    """Whether a text is the address of a table, not a folder."""
    return text.startswith("postgresql:/")  # a path leaves out the second slash


def open_searcher(place: str, timeout: float = 60) -> "Searcher":
    """
    Open a gallery for searching.

    Args:
        place (`str`): a folder, a published gallery, or the address of a table, see
            [`~search.postgresql.TableAddress`].
        timeout (`float`): seconds that a server of PostgreSQL has for an answer.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: the address is invalid, or something else is there.
        OSError: the server does not answer.
    """
    if is_address(place):
        from .postgresql import Table, TableAddress, TableSearcher

        return TableSearcher(Table(TableAddress.parse(place), timeout))
    from gallery.gallery import Gallery

    return Gallery.open(place).searcher


__all__ = ["is_address", "open_searcher"]
