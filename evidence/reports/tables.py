"""Tables of metrics over seeds, with the paper's values between them: in Markdown and in CSV."""

import csv
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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

    @property
    def mean(self) -> float:
        if len(self.values) == 1:
            return round(self.values[0], 9)  # the paper's -0.0 stays -0.0
        return round(statistics.mean(self.values), 9) + 0.0  # differences that cancel leave noise with a sign

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else self.published_deviation

    def __str__(self) -> str:
        if not self.values:
            return _ABSENT
        mean = f"{self.mean:{'+' if self.signed else ''}.{self.digits}f}"
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{self.digits}f}"


Row = Sequence[Cell | str]


@dataclass
class Table:
    """
    A table with a name for its file, a title and a note for readers.

    Args:
        name (`str`): name of its CSV file.
        title (`str`), note (`str`): content of the table, and its protocol.
        columns (`list[tuple[str, str]]`): group, or an empty string, and heading of each column.
        blocks (`list[list[Row]]`): rows, in groups that belong together.
        num_keys (`int`): number of columns at the left that identify a row. If one repeats the value above it, it is
            shown as a blank; a CSV file repeats it.
    """

    name: str
    title: str
    note: str
    columns: list[tuple[str, str]]
    blocks: list[list[Row]] = field(default_factory=list)
    num_keys: int = 1

    @property
    def rows(self) -> list[Row]:
        return [row for block in self.blocks for row in block]

    def filled(self) -> "Table":
        """Return the table without the columns that are empty in every row."""
        kept = []
        for index in range(len(self.columns)):
            if index < self.num_keys or any(str(row[index]) not in ("", _ABSENT) for row in self.rows):
                kept.append(index)
        blocks = [[[row[index] for index in kept] for row in block] for block in self.blocks]
        return replace(self, columns=[self.columns[index] for index in kept], blocks=blocks)

    def readable_blocks(self) -> list[list[list[str]]]:
        """Return the text of each cell, with blanks for keys that repeat those of the row above."""
        blocks, above = [], [""] * self.num_keys
        for block in self.blocks:
            lines = []
            for row in block:
                cells = [" ".join(str(cell).split()) for cell in row]
                keys = cells[: self.num_keys]
                shared = next((i for i, (a, b) in enumerate(zip(keys, above, strict=True)) if a != b), self.num_keys)
                above = keys
                # The last key stays: a row without any would not be identified.
                blanks = min(shared, self.num_keys - 1)
                lines.append([""] * blanks + cells[blanks:])
            blocks.append(lines)
        return blocks


def markdown(table: Table) -> str:
    """Format a Markdown table whose columns are aligned in plain text, too."""
    header = [" ".join(filter(None, column)) for column in table.columns]
    rows = [row for block in table.readable_blocks() for row in block]
    header, *rows = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    widths = [max(2, *(len(row[column]) for row in (header, *rows))) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if index < table.num_keys else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rules = ["-" * w if index < table.num_keys else "-" * (w - 1) + ":" for index, w in enumerate(widths)]
    return "\n".join([line(header), f"| {' | '.join(rules)} |", *map(line, rows)])


def write_csv(table: Table, path: str | os.PathLike) -> None:
    """Write a table with unrounded numbers; deviations over seeds have columns of their own."""
    deviating = {
        index
        for row in table.rows
        for index, cell in enumerate(row)
        if isinstance(cell, Cell) and cell.deviation is not None
    }

    def fields(index: int, cell: Cell | str) -> list[str | float | None]:
        numbers = isinstance(cell, Cell)
        mean = (cell.mean if cell.values else None) if numbers else cell
        return [mean, cell.deviation if numbers else None] if index in deviating else [mean]

    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        header = [" ".join(filter(None, column)) for column in table.columns]
        writer.writerow([name for i, h in enumerate(header) for name in ([h, f"{h} sd"] if i in deviating else [h])])
        for row in table.rows:
            writer.writerow([item for index, cell in enumerate(row) for item in fields(index, cell)])


__all__ = ["Cell", "Row", "Table", "markdown", "write_csv"]
