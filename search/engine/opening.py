"""Opens the engine at an address."""

from .address import TABLE_PREFIX, parse_address, parse_tables
from .clips import Engine


def open_engine(text: str, is_patient: bool = True, is_new: bool = True) -> tuple[Engine, str]:
    """
    Open the engine at an address.

    Args:
        text (`str`): the address.
        is_patient (`bool`): wait longer for an engine that does not answer; not for the page.
        is_new (`bool`): whether to create a missing folder of collections.

    Returns:
        The engine, and the address for messages.

    Raises:
        ValueError: the text is not a valid address; no message repeats it.
        OSError: the engine does not answer.
    """
    if text.startswith(TABLE_PREFIX):
        from .table import Table

        tables = parse_tables(text)
        return Table(tables, is_patient), ",".join(map(str, tables))
    from .collection import Collection

    address = parse_address(text)
    return Collection.at(address, is_patient, is_new), str(address)


__all__ = ["open_engine"]
