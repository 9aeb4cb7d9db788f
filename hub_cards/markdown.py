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
    """Write a value as plain text on one line; [`Markdown`] is returned as it is."""
    if isinstance(value, Markdown):
        return value
    line = re.sub(r"[&<>]", lambda match: _HTML[match.group()], _one_line(value))
    return Markdown(_SPECIAL.sub(r"\\\1", line))


def code(value: Any) -> Markdown:
    """Write a value as a code span, with as many backticks as it needs: names of files, fields and options."""
    line = _one_line(value)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    padding = " " if not line or "`" in (line[0], line[-1]) else ""
    return Markdown(f"{fence}{padding}{line}{padding}{fence}")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], num_left: int | None = None) -> Markdown:
    """
    Write a table, without a line break at the end.

    Args:
        head (`Sequence`): the names of the columns.
        rows (`Iterable[Sequence]`): the cells; what is not [`Markdown`] is written as plain text, `None` as a dash.
        num_left (`int`, *optional*): so many columns are aligned to the left, the others to the right; by default all.
    """
    num_left = len(head) if num_left is None else num_left
    rules = [Markdown("---" if place < num_left else "---:") for place in range(len(head))]
    lines = [head, rules, *(["–" if cell is None else cell for cell in row] for row in rows)]
    # Inside a table even the bar of a code span ends the cell, unless it is escaped.
    cells = [[re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", text(cell)) for cell in line] for line in lines]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in cells))


__all__ = ["Markdown", "code", "table", "text"]
