"""Measures of runs and tables of them: a row per label, a measure per column, then margins and the paper's rows.

A label's seeds are shown as their mean ± sample deviation; differences are taken seed by seed.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.reports.result_files import R1, Run
from eval.reports.result_schema import second_stage
from evidence.reports.results import Results, Seeds, benchmark_name, first_run, label_name
from evidence.reports.tables import Cell, Row, Table
from modeling_scalar.scores_scalar import PAPER_MODALITIES

KEYS = [("", "benchmark"), ("", "label"), ("", "n")]
"""Columns at the left: benchmark, label and number of seeds."""

Measure = Callable[..., float | None]
"""One number of a run and of a score, by default the model's own: `measure(run, method=None)`; `None` if it was not
measured."""

Published = Mapping[str, Sequence[float | str | Cell | None]]
"""The paper's numbers by the names of their rows."""


# Measures of a run ---------------------------------------------------------------------------------------------------


def rate_entry(run: Run, rate: float) -> Mapping[str, Any]:
    """Return the results of a masking rate; an empty `dict` if there are none."""
    return next((entry for entry in run["retrieval"]["rates"] if entry["rate"] == rate), {})


def _own(run: Run, method: str | None) -> str:
    return method or run["score"]["method"]


def first_stage(metric: str = R1, rate: float = 0.0) -> Measure:
    """Measure a score in the first stage."""

    def measure(run: Run, method: str | None = None) -> float | None:
        return rate_entry(run, rate).get("methods", {}).get(_own(run, method), {}).get(metric)

    return measure


def gain(rate: float = 0.0) -> Measure:
    """Measure the aggregation gain of a score."""

    def measure(run: Run, method: str | None = None) -> float | None:
        return rate_entry(run, rate).get("aggregation_gain", {}).get(_own(run, method))

    return measure


def at_rate(field: str, name: str, rate: float = 0.0) -> Measure:
    """Measure a quantity that is the same for all scores at a rate, such as the mean weight of a modality."""
    return lambda run, method=None: rate_entry(run, rate).get(field, {}).get(name)


def two_stage(
    metric: str = R1, rate: float = 0.0, policy: str = "absent", rule: str = "match", depth: int | None = None
) -> Measure:
    """Measure a score after the cross-encoder reorders its first candidates.

    By default as in the paper: by the match alone, with 50 candidates, or the largest number measured.
    """

    def measure(run: Run, method: str | None = None) -> float | None:
        wanted = {"rate": rate, "policy": policy, "method": _own(run, method)}
        entries = second_stage(run["two_stage"], rule, depth)
        return next((entry.get(metric) for entry in entries if wanted.items() <= entry.items()), None)

    return measure


def in_part(parts: str, **wanted: Any) -> Measure:
    """Measure text-to-video R@1 in a part of the results: a step of the `ladder`, or one of the `kinds`."""

    def measure(run: Run, method: str | None = None) -> float | None:
        found = (entry for entry in run["retrieval"].get(parts, []) if wanted.items() <= entry.items())
        return next((entry[R1].get(_own(run, method)) for entry in found), None)

    return measure


def values(seeds: Seeds, measure: Measure, method: str | None = None) -> dict[int | None, float]:
    """Return a measure for every seed that has it."""
    return {seed: value for seed, run in seeds.items() if (value := measure(run, method)) is not None}


def changes(ours: Mapping[int | None, float], theirs: Mapping[int | None, float]) -> list[float]:
    """
    Return the differences seed by seed.

    Without a shared seed, a single run, such as a released checkpoint, is compared with every seed of the other side;
    two disjoint sets of seeds give the difference of their means.
    """
    shared = [seed for seed in ours if seed in theirs]
    if shared:
        return [ours[seed] - theirs[seed] for seed in shared]
    if len(ours) > 1 and len(theirs) > 1:
        return [statistics.mean(ours.values()) - statistics.mean(theirs.values())]
    return [one - other for one in ours.values() for other in theirs.values()]


def rates_of(results: Results) -> list[float]:
    """Return all masking rates that were measured."""
    return sorted({entry["rate"] for run in results.all_runs() for entry in run["retrieval"]["rates"]})


def modalities_of(results: Results) -> tuple[str, ...]:
    """Return the modalities of all clips, in the order of the runs; if no run names any, the paper's."""
    entries = (entry for run in results.all_runs() for entry in run["retrieval"]["rates"])
    named = (name for entry in entries for field in ("presence", "mean_weight") for name in entry.get(field, ()))
    return tuple(dict.fromkeys(named)) or PAPER_MODALITIES


# Columns and rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A heading, and the cells below it for the seeds of a label: a measure, or a text made from the seeds."""

    group: str
    heading: str
    measure: Measure | None = None
    text: Callable[[Seeds], Cell | str] | None = None
    method: str | None = None
    signed: bool = False
    digits: int = 1

    def cell(self, seeds: Seeds, method: str | None = None) -> Cell | str:
        """Return the cell of a given score, or of the column's."""
        if self.text is not None:
            return self.text(seeds)
        return Cell(tuple(values(seeds, self.measure, method or self.method).values()), self.signed, self.digits)


def row_of(columns: Sequence[Column], seeds: Seeds, method: str | None = None) -> Row | None:
    """Return the cells of a label, for a given score or each column's; `None` if nothing was measured."""
    row = [column.cell(seeds, method) for column in columns]
    return row if _count(row) else None


def _count(row: Row) -> int:
    return max((len(cell.values) for cell in row if isinstance(cell, Cell)), default=0)


def count(row: Row) -> str:
    """Return the number of seeds of a row, if these are not all seeds of its label."""
    return str(_count(row))


def headings(columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return groups and headings, as in [`~evidence.reports.tables.Table`]."""
    return [(column.group, column.heading) for column in columns]


def margin_row(columns: Sequence[Column], ours: Seeds, theirs: Seeds) -> Row:
    """Return the differences of two labels, seed by seed; a dash in columns that measure nothing."""
    return [
        Cell()
        if column.measure is None
        else Cell(tuple(changes(values(ours, column.measure), values(theirs, column.measure))), signed=True)
        for column in columns
    ]


def _published_row(columns: Sequence[Column], numbers: Sequence[float | str | Cell | None]) -> Row:
    """Return the paper's numbers for our columns; it may have fewer."""
    padded = [*numbers, *[None] * (len(columns) - len(numbers))]
    return [
        number if isinstance(number, (str, Cell)) else Cell(() if number is None else (number,), column.signed)
        for number, column in zip(padded, columns, strict=True)
    ]


def _published_margin(columns: Sequence[Column], rows: Published) -> dict[str, Row]:
    """Return the margin between the two rows that the paper prints in its tables of missing modalities."""
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
    Return a table with one block of rows per benchmark: labels, optional margins over the baseline, the paper's rows.

    Labels without measurements are left out, and so is a benchmark without labels. The paper's values are for test
    sets, and shown only next to these.
    """
    if margins and results.baseline is not None:
        note += " Margins are taken seed by seed, over n of them."
    blocks = []
    for benchmark, labels in results.runs.items():
        rows = {label: row for label, seeds in labels.items() if (row := row_of(columns, seeds)) is not None}
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
    return Table(name, title, note, KEYS + headings(columns), blocks, len(KEYS))


def across_benchmarks(table: Table, name: str, title: str) -> Table:
    """Turn the benchmarks of a table into groups of columns; the table of a single benchmark becomes empty."""
    benchmarks = [block[0][0] for block in table.blocks]
    names = [heading for _, heading in table.columns[len(KEYS) :]]
    found: dict[str, dict[str, Row]] = {}
    counts: dict[str, dict[str, None]] = {}
    for benchmark, label, n, *cells in table.rows:
        found.setdefault(label, {})[benchmark] = cells
        counts.setdefault(label, {})[n] = None
    rows = [
        [label, "/".join(counts[label]), *(c for b in benchmarks for c in parts.get(b, [Cell()] * len(names)))]
        for label, parts in found.items()
    ]
    pairs = [(b, heading) for b in benchmarks for heading in names]
    columns = [("", "label"), ("", "n"), *(pairs if len(names) > 1 else [("", b) for b in benchmarks])]
    ours = [row for row in rows if row[1]]
    blocks = [ours, [row for row in rows if not row[1]]] if len(benchmarks) > 1 else []
    return Table(name, title, table.note, columns, blocks, 2)


__all__ = [
    "KEYS",
    "Column",
    "Measure",
    "Published",
    "across_benchmarks",
    "at_rate",
    "changes",
    "count",
    "first_stage",
    "gain",
    "headings",
    "in_part",
    "label_table",
    "margin_row",
    "modalities_of",
    "rate_entry",
    "rates_of",
    "row_of",
    "two_stage",
    "values",
]
