"""The engine of an address."""

from .address import TABLE_PREFIX, parse_address, parse_tables
from .clips import Engine


def open_engine(text: str, is_patient: bool = True, is_new: bool = True) -> tuple[Engine, str]:
    """
    Open what an address names.

    Args:
        text (`str`): the address.
        is_patient (`bool`): wait for an engine that does not answer at once; not where somebody looks at a page.
        is_new (`bool`): whether a folder of collections is made that is not there.

    Returns:
        The engine, and the address as messages have it.

    Raises:
        ValueError: the text is no address; no message repeats it.
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
