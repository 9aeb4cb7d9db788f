"""Text from files that others may have written, put into Markdown so that it stays text."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

# What could start emphasis, code, a link, HTML or a formula, and the backslash that would escape the escape.
_SPECIAL = re.compile(r"([\\`*_\[\]~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Markdown(str):
    """Text that is Markdown already and is not escaped again."""

    __slots__ = ()


def _one_line(value: Any) -> str:
    """A value without line breaks and control characters; a heading, a list or a fence needs the start of a line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)).split())


def text(value: Any) -> Markdown:
    """
    Write a value as plain text on one line.

    Args:
        value: anything; [`Markdown`] is returned as it is.

    Returns:
        [`Markdown`]: the escaped text.
    """
    if isinstance(value, Markdown):
        return value
    line = re.sub(r"[&<>]", lambda match: _HTML[match.group()], _one_line(value))
    return Markdown(_SPECIAL.sub(r"\\\1", line))


def code(value: Any) -> Markdown:
    """
    Write a value as a code span, for names of files, fields and options.

    Args:
        value: anything.

    Returns:
        [`Markdown`]: the span, with as many backticks as the value needs.
    """
    line = _one_line(value)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    padding = " " if not line or "`" in (line[0], line[-1]) else ""
    return Markdown(f"{fence}{padding}{line}{padding}{fence}")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], align: str | None = None) -> Markdown:
    """
    Write a table.

    Args:
        head (`Sequence`): the names of the columns.
        rows (`Iterable[Sequence]`): the cells; what is not [`Markdown`] is written as plain text, `None` as a dash.
        align (`str`, *optional*): a letter for each column, `l` or `r`; by default all `l`.

    Returns:
        [`Markdown`]: the lines of the table, without a line break at the end.

    Raises:
        ValueError: a row, or `align`, has another length than `head`.
    """
    align = align or "l" * len(head)
    if len(align) != len(head) or set(align) - set("lr"):
        raise ValueError(f"`align` must be {len(head)} letters of 'l' and 'r', got {align!r}.")
    lines = [head, [Markdown("---:" if side == "r" else "---") for side in align]]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"A row of this table must have {len(head)} cells, got {len(row)}: {list(row)!r}.")
        lines.append(["–" if cell is None else cell for cell in row])
    # Inside a table even the bar of a code span ends the cell, unless it is escaped.
    cells = [[re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", text(cell)) for cell in line] for line in lines]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in cells))


__all__ = ["Markdown", "code", "table", "text"]
