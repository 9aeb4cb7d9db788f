"""Tables of metrics: for the terminal and in Markdown, in LaTeX, and in CSV."""

import csv
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

_ABSENT = "–"
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "Δ": r"$\Delta$",
    "−": r"$-$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a line it would open an argument
} | {character: f"\\{character}" for character in "&%$#_{}"}


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
    A table with a name for files, a title and a note for readers.

    Args:
        name (`str`): name of its CSV file and its LaTeX label.
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

    def without(self, columns: Sequence[str]) -> "Table":
        """Return the table without the columns with these headings."""
        dropped = {index for index, (_, heading) in enumerate(self.columns) if heading in columns}
        return self._select([index for index in range(len(self.columns)) if index not in dropped])

    def filled(self) -> "Table":
        """Return the table without the columns that are empty in every row."""
        kept = [
            index
            for index in range(len(self.columns))
            if index < self.num_keys or any(str(row[index]) not in ("", _ABSENT) for row in self.rows)
        ]
        return self._select(kept)

    def _select(self, kept: Sequence[int]) -> "Table":
        blocks = [[[row[index] for index in kept] for row in block] for block in self.blocks]
        num_keys = sum(index < self.num_keys for index in kept)
        columns = [self.columns[index] for index in kept]
        return Table(self.name, self.title, self.note, columns, blocks, num_keys)

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


def _escape(text: str) -> str:
    text = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w-])([-+])(?=\d)", r"$\1$", text)  # a sign, not a hyphen


def _heading(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of a LaTeX heading: groups, if there are any, and names."""
    lines = []
    if any(group for group, _ in columns):
        cells, rules, start = [], [], 0
        while start < len(columns):
            group = columns[start][0]
            stop = start + 1
            while group and stop < len(columns) and columns[stop][0] == group:
                stop += 1
            cells.append(rf"\multicolumn{{{stop - start}}}{{c}}{{{_escape(group)}}}" if group else "")
            rules += [rf"\cmidrule(lr){{{start + 1}-{stop}}}"] if group else []
            start = stop
        lines += [" & ".join(cells) + r" \\", "".join(rules)]
    return [*lines, " & ".join(_escape(name) for _, name in columns) + r" \\"]


def latex(table: Table) -> str:
    r"""Format a LaTeX table, at most as wide as the text; it needs the packages `booktabs` and `graphicx`."""
    alignment = "l" * table.num_keys + "r" * (len(table.columns) - table.num_keys)
    body = []
    for block in table.readable_blocks():
        body += [r"\midrule", *(" & ".join(map(_escape, row)) + r" \\" for row in block)]
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{_escape(table.title)}. {_escape(table.note)}}}",
            rf"\label{{tab:{table.name}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            *_heading(table.columns),
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
        ]
    )


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


__all__ = ["Cell", "Row", "Table", "latex", "markdown", "write_csv"]
