"""How a table of labels is made: columns that measure, a row per label, margins, and the paper's rows below.

A row is a label; the seeds of a label are its mean ± sample deviation, and differences are taken seed by seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eval.reports.result_files import (
    Measure,
    Results,
    Seeds,
    benchmark_name,
    changes,
    first_run,
    label_name,
    values,
)
from eval.reports.tables import Cell, Row, Table

KEYS = [("", "benchmark"), ("", "label"), ("", "n")]
"""Columns at the left: what was measured, of which label, over how many seeds."""

Published = Mapping[str, Sequence[float | str | Cell | None]]
"""Names of the paper's rows to its numbers."""


@dataclass(frozen=True)
class Column:
    """A heading, what stands below it for the seeds of a label, and the measure that margins are taken of, if any."""

    group: str
    heading: str
    cell: Callable[[Seeds], Cell | str]
    measure: Measure | None = None
    signed: bool = False


def measured(heading: str, measure: Measure, group: str = "", signed: bool = False, digits: int = 1) -> Column:
    """Return a column of a measure, seed by seed."""

    def cell(seeds: Seeds) -> Cell:
        return Cell(tuple(values(seeds, measure).values()), signed, digits)

    return Column(group, heading, cell, measure, signed)


def rates_of(results: Results) -> list[float]:
    """Return every masking rate that some run measured."""
    return sorted({entry["rate"] for run in results.all_runs() for entry in run["retrieval"]["rates"]})


def is_measured(row: Row) -> bool:
    """Return whether anything was measured for a row."""
    return any(isinstance(cell, Cell) and cell.values for cell in row)


def count(row: Row) -> str:
    """Return over how many seeds a row is, where these are not all seeds of its label."""
    return str(max((len(cell.values) for cell in row if isinstance(cell, Cell)), default=0))


def _published_row(columns: Sequence[Column], numbers: Sequence[float | str | Cell | None]) -> Row:
    """The paper's numbers below our columns; it may have fewer."""
    padded = [*numbers, *[None] * (len(columns) - len(numbers))]
    return [
        number if isinstance(number, (str, Cell)) else Cell(() if number is None else (number,), column.signed)
        for number, column in zip(padded, columns, strict=True)
    ]


def margin_row(columns: Sequence[Column], ours: Seeds, theirs: Seeds) -> Row:
    """Return the differences of two labels, seed by seed; a dash below a column that measures nothing."""
    return [
        Cell()
        if column.measure is None
        else Cell(tuple(changes(values(ours, column.measure), values(theirs, column.measure))), signed=True)
        for column in columns
    ]


def _published_margin(columns: Sequence[Column], rows: Published) -> dict[str, Row]:
    """The margin between the two rows that the paper prints in its tables of missing modalities."""
    if len(rows) != 2:
        return {}
    (name, ours), (_, theirs) = rows.items()
    cells = [
        Cell(() if column.measure is None or None in (one, other) else (one - other,), signed=True)
        for column, one, other in zip(columns, ours, theirs, strict=True)
    ]
    return {f"{name} − GRAM": cells}


def label_table(
    results: Results,
    name: str,
    title: str,
    note: str,
    columns: Sequence[Column],
    published: Callable[[str], Published] = lambda benchmark: {},
    margins: bool = False,
) -> Table:
    """
    One block of rows per benchmark: a label each, margins over the baseline if asked for, and the paper's rows.

    Labels of which nothing was measured are left out, and so is a benchmark without labels. The paper's values are of
    test sets, and stand beside these alone.
    """
    if margins and results.baseline is not None:
        note += " Margins are taken seed by seed, over n of them."
    blocks = []
    for benchmark, labels in results.runs.items():
        rows = {label: [column.cell(seeds) for column in columns] for label, seeds in labels.items()}
        rows = {label: row for label, row in rows.items() if is_measured(row)}
        if not rows:
            continue
        block = [(label_name(label), str(len(labels[label])), row) for label, row in rows.items()]
        if margins and (base := results.baseline) in rows:
            found = {label: margin_row(columns, labels[label], labels[base]) for label in rows if label != base}
            block += [(f"{label_name(label)} − {label_name(base)}", count(row), row) for label, row in found.items()]
        theirs = published(benchmark) if first_run(labels)["split"] == "test" else {}
        block += [(row_name, "", _published_row(columns, numbers)) for row_name, numbers in theirs.items()]
        if margins:
            block += [(row_name, "", row) for row_name, row in _published_margin(columns, theirs).items()]
        blocks.append([[benchmark_name(benchmark), row_name, n, *row] for row_name, n, row in block])
    return Table(name, title, note, KEYS + [(c.group, c.heading) for c in columns], blocks, len(KEYS))


def across_benchmarks(table: Table, name: str, title: str) -> Table:
    """Turn the benchmarks of a table into groups of columns; the table of a single benchmark becomes empty."""
    benchmarks = [block[0][0] for block in table.blocks]
    headings = [heading for _, heading in table.columns[len(KEYS) :]]
    found: dict[str, dict[str, Row]] = {}
    counts: dict[str, dict[str, None]] = {}
    for benchmark, label, n, *cells in table.rows:
        found.setdefault(label, {})[benchmark] = cells
        counts.setdefault(label, {})[n] = None
    rows = [
        [label, "/".join(counts[label]), *(c for b in benchmarks for c in parts.get(b, [Cell()] * len(headings)))]
        for label, parts in found.items()
    ]
    pairs = [(b, heading) for b in benchmarks for heading in headings]
    columns = [("", "label"), ("", "n"), *(pairs if len(headings) > 1 else [("", b) for b in benchmarks])]
    ours = [row for row in rows if row[1]]
    blocks = [ours, [row for row in rows if not row[1]]] if len(benchmarks) > 1 else []
    return Table(name, title, table.note, columns, blocks, 2)


__all__ = [
    "KEYS",
    "Column",
    "Published",
    "across_benchmarks",
    "count",
    "is_measured",
    "label_table",
    "margin_row",
    "measured",
    "rates_of",
]
