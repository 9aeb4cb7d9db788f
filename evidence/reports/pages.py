"""Pages and reports of a study, made of its tables and of numbers that are computed from its results."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from evidence.reports.tables import MetricsTable, markdown
from scalar_retrieval.commands.texts import print_lines


def shown(table: MetricsTable) -> str:
    """Return a table in Markdown without its empty columns, with its note."""
    return f"{markdown(table.filled())}\n\n{table.note}"


def write_report(opening: str, tables: Iterable[Callable[[Any], MetricsTable]], results: Any) -> str:
    """Return the tables that functions make of results, in Markdown, each under its title, after an opening."""
    # A table without a row is of what was not measured.
    parts = [opening]
    for make in tables:
        table = make(results)
        if table.rows:
            parts.append(f"## {table.title}\n\n{shown(table)}")
    return "\n\n".join(parts) + "\n"


def print_report(results: Any, report: Callable[[Any], str]) -> None:
    """Write the report of results into their folder, and print it."""
    text = report(results)
    (results.folder / "README.md").write_text(text, encoding="utf-8")
    print_lines(*text.splitlines())


def fill(text: str, kinds: Mapping[str, Callable[..., str]]) -> str:
    """
    Fill a template.

    Args:
        text (`str`): with `{{KIND NAME ...}}`.
        kinds (`Mapping[str, Callable]`): by each kind what returns the text for its names.

    Raises:
        ValueError: there is no such kind.
    """

    def put(match: re.Match) -> str:
        kind, *names = match.group(1).split()
        if kind not in kinds:
            raise ValueError(f"{match.group(0)} names nothing that was measured.")
        return kinds[kind](*names)

    return re.sub(r"\{\{(.+?)\}\}", put, text)


__all__ = ["fill", "print_report", "shown", "write_report"]
