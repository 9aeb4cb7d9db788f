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
    letters = list(str(value))
    for place, letter in enumerate(letters):
        if not letter.isprintable():
            letters[place] = " "
    return " ".join("".join(letters).split())


def text(value: Any) -> Markdown:
    """Escape a value as plain text on one line; [`Markdown`] is returned unchanged."""
    if isinstance(value, Markdown):
        return value
    line = html.escape(_one_line(value), quote=False)
    return Markdown(_SPECIAL.sub(r"\\\1", line))


def code(value: Any) -> Markdown:
    """Format a value as a code span with as many backticks as needed: names of files, fields and options."""
    line = _one_line(value)
    longest = max(re.findall("`+", line), key=len, default="")
    fence = longest + "`"  # longer than any within
    if not line or "`" in (line[0], line[-1]):
        line = f" {line} "
    return Markdown(f"{fence}{line}{fence}")


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markdown:
    """Format a table, without a final line break; values other than [`Markdown`] are escaped, `None` is a dash."""
    rules = [Markdown("---")] * len(head)
    lines = []
    for row in (head, rules, *rows):
        cells = []
        for cell in row:
            if cell is None:
                cell = "–"
            # In a table, even a bar in a code span ends the cell unless it is escaped.
            cells.append(re.sub(r"(?<!\\)((?:\\\\)*)\|", r"\1\\|", text(cell)))
        lines.append(f"| {' | '.join(cells)} |")
    return Markdown("\n".join(lines))


__all__ = ["Markdown", "code", "table", "text"]
