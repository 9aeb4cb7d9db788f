"""Escapes text from untrusted files for Markdown, so that it stays text."""

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

# Characters that could start emphasis, code, a link, HTML or a formula, and the backslash that would undo the escape.
_SPECIAL = re.compile(r"([\\`*_\[\]~$])")


class Markdown(str):
    """Markdown text, which is not escaped again."""

    __slots__ = ()


def _one_line(value: Any) -> str:
    """Return a value without line breaks and control characters, so that no heading, list or fence can start."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)).split())


def text(value: Any) -> Markdown:
    """Escape a value as plain text on one line; [`Markdown`] is returned unchanged."""
    if isinstance(value, Markdown):
        return value
    line = html.escape(_one_line(value), quote=False)
    return Markdown(_SPECIAL.sub(r"\\\1", line))


def code(value: Any) -> Markdown:
    """Format a value as a code span with as many backticks as needed: names of files, fields and options."""
    line = _one_line(value)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    padding = " " if not line or "`" in (line[0], line[-1]) else ""
    return Markdown(f"{fence}{padding}{line}{padding}{fence}")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markdown:
    """Format a table, without a final line break; values other than [`Markdown`] are escaped, `None` is a dash."""
    rules = [Markdown("---")] * len(head)
    lines = []
    for row in (head, rules, *rows):
        cells = [text("–" if cell is None else cell) for cell in row]
        # In a table, even a bar in a code span ends the cell unless it is escaped.
        cells = [re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", cell) for cell in cells]
        lines.append(f"| {' | '.join(cells)} |")
    return Markdown("\n".join(lines))


__all__ = ["Markdown", "code", "table", "text"]
