"""Tables of metrics over seeds, with the paper's values between them: in Markdown and in CSV."""

import csv
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

_ABSENT = "–"


@dataclass(frozen=True)
class Cell:
    """
    One metric: its mean, and with two values or more their sample deviation: `12.3 ± 0.4`.

    Args:
        values (`tuple[float]`): one per seed; an empty tuple is shown as a dash.
        signed (`bool`): write a plus before positive numbers, for differences.
        digits (`int`): number of decimals.
        published_deviation (`float`, *optional*): deviation of a single value that is itself a mean.
    """

    values: tuple[float, ...] = ()
    signed: bool = False
    digits: int = 1
    published_deviation: float | None = None

    @classmethod
    def of(cls, value: float | None, **form: Any) -> "Cell":
        """Return the cell of one value, or without values for `None`."""
        if value is None:
            return cls(**form)
        return cls((value,), **form)

    @property
    def mean(self) -> float | None:
        """The mean, rounded to nine decimals; `None` without values."""
        if not self.values:
            return None
        if len(self.values) == 1:
            return round(self.values[0], 9)  # the paper's -0.0 stays -0.0
        return round(statistics.mean(self.values), 9) + 0.0  # differences that cancel leave noise with a sign

    @property
    def deviation(self) -> float | None:
        """The sample deviation of two values or more, otherwise the published one."""
        if len(self.values) > 1:
            return statistics.stdev(self.values)
        return self.published_deviation

    def __str__(self) -> str:
        if not self.values:
            return _ABSENT
        sign = "+" if self.signed else ""
        text = f"{self.mean:{sign}.{self.digits}f}"
        if self.deviation is not None:
            text += f" ± {self.deviation:.{self.digits}f}"
        return text


Row = Sequence[Cell | str]


def ungrouped(*headings: str) -> list[tuple[str, str]]:
    """Return columns that belong to no group."""
    return [("", heading) for heading in headings]


@dataclass
class MetricsTable:
    """
    A table of metrics, with a name for its file, a title and a note for readers.

    Args:
        name (`str`): name of its CSV file.
        title (`str`), note (`str`): content of the table, and its protocol.
        columns (`list[tuple[str, str]]`): group, or an empty string, and heading of each column.
        blocks (`list[list[Row]]`): rows, in groups that belong together.
        num_keys (`int`): number of columns at the left that identify a row. Markdown has a blank where one repeats the
            value above it; a CSV file repeats it.
    """

    name: str
    title: str
    note: str
    columns: list[tuple[str, str]]
    blocks: list[list[Row]] = field(default_factory=list)
    num_keys: int = 1

    @property
    def rows(self) -> list[Row]:
        """The rows of all blocks."""
        return [*chain.from_iterable(self.blocks)]

    @property
    def headings(self) -> list[str]:
        """Group and heading of each column, in one string."""
        return [" ".join(column).strip() for column in self.columns]

    def filled(self) -> "MetricsTable":
        """Return the table without the columns that are empty in every row, as one block."""
        # Column by column; keys always stay.
        kept = []
        for index, (heading, *cells) in enumerate(zip(self.columns, *self.rows, strict=True)):
            if index < self.num_keys or not {"", _ABSENT}.issuperset(map(str, cells)):
                kept.append((heading, *cells))
        columns, *rows = zip(*kept, strict=True)
        return replace(self, columns=list(columns), blocks=[rows])

    def readable_rows(self) -> list[list[str]]:
        """Return the text of each cell, with blanks for keys that repeat those of the row above."""
        rows = []
        above = [""] * self.num_keys
        for row in self.rows:
            cells = [" ".join(str(cell).split()) for cell in row]
            # The last key stays: a row without any would not be identified.
            blanks = 0
            while blanks < self.num_keys - 1 and cells[blanks] == above[blanks]:
                blanks += 1
            rows.append([""] * blanks + cells[blanks:])
            above = cells
        return rows


def markdown(table: MetricsTable) -> str:
    """Format a Markdown table whose columns are aligned in plain text, too."""
    # Column by column, because all cells of one have the same width.
    columns = []
    for index, column in enumerate(zip(table.headings, *table.readable_rows(), strict=True)):
        heading, *cells = [cell.replace("|", r"\|") for cell in column]
        width = max(2, len(heading), *map(len, cells))
        # Keys are aligned at the left, metrics at the right.
        pad = str.ljust
        rule = "-" * width
        if index >= table.num_keys:
            pad = str.rjust
            rule = rule[1:] + ":"
        columns.append([pad(cell, width) for cell in (heading, rule, *cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))


def write_csv(table: MetricsTable, path: str | os.PathLike) -> None:
    """Write a table with unrounded numbers; deviations over seeds have columns of their own."""
    # The columns with a deviation in some row.
    deviating = set()
    for row in table.rows:
        for index, cell in enumerate(row):
            if isinstance(cell, Cell) and cell.deviation is not None:
                deviating.add(index)

    # Each of them becomes two columns, in the header and in every row.
    header: list[str] = []
    for index, heading in enumerate(table.headings):
        header.append(heading)
        if index in deviating:
            header.append(f"{heading} sd")
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row in table.rows:
            fields: list[str | float | None] = []
            for index, cell in enumerate(row):
                parts = [cell, None]
                if isinstance(cell, Cell):
                    parts = [cell.mean, cell.deviation]
                fields += parts[: 1 + (index in deviating)]
            writer.writerow(fields)


__all__ = ["Cell", "MetricsTable", "Row", "markdown", "ungrouped", "write_csv"]
