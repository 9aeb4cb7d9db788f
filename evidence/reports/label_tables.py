"""Measures of runs and tables of them: a row per label, a measure per column, then margins and the paper's rows.

A label's seeds are shown as their mean ± sample deviation; differences are taken seed by seed.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Any

from evidence.reports.results import RunResults, Seeds, benchmark_name, first_run, label_name
from evidence.reports.tables import Cell, MetricsTable, Row, ungrouped
from scalar_retrieval.eval.reports.result_files import R1, Run
from scalar_retrieval.eval.reports.result_schema import second_stage
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES

KEYS = ungrouped("benchmark", "label", "n")
"""Columns at the left: benchmark, label and number of seeds."""

Measure = Callable[..., float | None]
"""One number of a run and of a score, by default the model's own: `measure(run, method=None)`; `None` if it was not
measured."""

Published = Mapping[str, Sequence[float | str | Cell | None]]
"""The paper's numbers by the names of their rows."""


# Measures of a run ---------------------------------------------------------------------------------------------------


def _entry_with(entries: Iterable[Mapping[str, Any]], **fields: Any) -> Mapping[str, Any]:
    """Return the first entry with these fields; an empty `dict` if there is none."""
    for entry in entries:
        if fields.items() <= entry.items():
            return entry
    return {}


def rate_entry(run: Run, rate: float) -> Mapping[str, Any]:
    """Return the results of a masking rate; an empty `dict` if there are none."""
    return _entry_with(run["retrieval"]["rates"], rate=rate)


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
        entries = second_stage(run["two_stage"], rule, depth)
        return _entry_with(entries, rate=rate, policy=policy, method=_own(run, method)).get(metric)

    return measure


def in_part(parts: str, **fields: Any) -> Measure:
    """Measure text-to-video R@1 in a part of the results: a step of the `ladder`, or one of the `kinds`."""

    def measure(run: Run, method: str | None = None) -> float | None:
        entry = _entry_with(run["retrieval"].get(parts, []), **fields)
        return entry.get(R1, {}).get(_own(run, method))

    return measure


def values(seeds: Seeds, measure: Measure, method: str | None = None) -> dict[int | None, float]:
    """Return a measure for every seed that has it."""
    measured = {}
    for seed, run in seeds.items():
        value = measure(run, method)
        if value is not None:
            measured[seed] = value
    return measured


def changes(ours: Mapping[int | None, float], theirs: Mapping[int | None, float]) -> list[float]:
    """
    Return the differences seed by seed.

    Without a shared seed, a single run, such as a released checkpoint, is compared with every seed of the other side;
    two disjoint sets of seeds give the difference of their means.
    """
    # The seeds that both sides have, as far as there are any.
    shared = [seed for seed in ours if seed in theirs]
    if shared:
        return [ours[seed] - theirs[seed] for seed in shared]
    if len(ours) > 1 and len(theirs) > 1:
        return [statistics.mean(ours.values()) - statistics.mean(theirs.values())]
    return [one - other for one, other in product(ours.values(), theirs.values())]


def _rate_entries(results: RunResults) -> Iterator[Mapping[str, Any]]:
    """Yield the results of every masking rate of every run."""
    for run in results.all_runs():
        yield from run["retrieval"]["rates"]


def rates_of(results: RunResults) -> list[float]:
    """Return all masking rates that were measured."""
    return sorted({entry["rate"] for entry in _rate_entries(results)})


def modalities_of(results: RunResults) -> tuple[str, ...]:
    """Return the modalities of all clips, in the order of the runs; if no run names any, the paper's."""
    named: dict[str, None] = {}
    for entry in _rate_entries(results):
        for field in ("presence", "mean_weight"):
            named |= dict.fromkeys(entry.get(field, ()))
    return tuple(named) or PAPER_MODALITIES


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
        numbers = values(seeds, self.measure, method or self.method)
        return Cell(tuple(numbers.values()), self.signed, self.digits)


def row_of(columns: Sequence[Column], seeds: Seeds, method: str | None = None) -> Row | None:
    """Return the cells of a label, for a given score or each column's; `None` if nothing was measured."""
    row = [column.cell(seeds, method) for column in columns]
    if count(row) == 0:
        return None
    return row


def count(row: Row) -> int:
    """Return the number of seeds of a row, which may lack some seeds of its label."""
    # Texts of a row have no seeds.
    counts = [0]
    for cell in row:
        if isinstance(cell, Cell):
            counts.append(len(cell.values))
    return max(counts)


def headings(columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return groups and headings, as in [`~evidence.reports.tables.MetricsTable`]."""
    return [(column.group, column.heading) for column in columns]


def margin_row(columns: Sequence[Column], ours: Seeds, theirs: Seeds) -> Row:
    """Return the differences of two labels, seed by seed; a dash in columns that measure nothing."""
    row = []
    for column in columns:
        numbers = []
        if column.measure is not None:
            numbers = changes(values(ours, column.measure), values(theirs, column.measure))
        row.append(Cell(tuple(numbers), signed=True))
    return row


def _published_row(columns: Sequence[Column], numbers: Sequence[float | str | Cell | None]) -> Row:
    """Return the paper's numbers for our columns; it may have fewer."""
    # What is a text or a cell already stays as it is.
    row = []
    for column, number in zip_longest(columns, numbers):
        if not isinstance(number, (str, Cell)):
            number = Cell.of(number, signed=column.signed)
        row.append(number)
    return row


def _published_margin(columns: Sequence[Column], rows: Published) -> dict[str, Row]:
    """Return the margin between the two rows that the paper prints in its tables of missing modalities."""
    if len(rows) != 2:
        return {}
    # Only columns of measures have a margin, and only if the paper has both numbers.
    (name, ours), (_, theirs) = rows.items()
    row = []
    for column, one, other in zip(columns, ours, theirs, strict=True):
        difference = None
        if column.measure is not None and None not in (one, other):
            difference = one - other
        row.append(Cell.of(difference, signed=True))
    return {f"{name} − GRAM": row}


def label_table(
    results: RunResults,
    name: str,
    title: str,
    note: str,
    columns: Sequence[Column],
    published: Callable[[str], Published] = lambda benchmark: {},
    margins: bool = False,
) -> MetricsTable:
    """
    Return a table with one block of rows per benchmark: labels, optional margins over the baseline, the paper's rows.

    Labels without measurements are left out, and so is a benchmark without labels. The paper's values are for test
    sets, and shown only next to these.
    """
    # Readers of margins need to know how they were taken.
    if margins and results.baseline is not None:
        note += " Margins are taken seed by seed, over n of them."
    base = results.baseline
    blocks = []
    for benchmark, labels in results.runs.items():
        # Our labels: name, number of seeds and cells.
        block: list[tuple[str, int | str, Row]] = []
        measured = {}
        for label, seeds in labels.items():
            row = row_of(columns, seeds)
            if row is not None:
                measured[label] = seeds
                block.append((label_name(label), len(seeds), row))
        if not block:
            continue

        # Our margins over the baseline, which may have fewer seeds.
        if margins and base in measured:
            for label, seeds in measured.items():
                if label != base:
                    row = margin_row(columns, seeds, measured[base])
                    block.append((f"{label_name(label)} − {label_name(base)}", count(row), row))

        # The paper's rows, without a number of seeds.
        if first_run(labels)["split"] == "test":
            theirs = published(benchmark)
            rows = {}
            for row_name, numbers in theirs.items():
                rows[row_name] = _published_row(columns, numbers)
            if margins:
                rows |= _published_margin(columns, theirs)
            for row_name, row in rows.items():
                block.append((row_name, "", row))
        blocks.append([[benchmark_name(benchmark), row_name, str(n), *row] for row_name, n, row in block])
    return MetricsTable(name, title, note, KEYS + headings(columns), blocks, len(KEYS))


def across_benchmarks(table: MetricsTable, name: str, title: str) -> MetricsTable:
    """Turn the benchmarks of a table into groups of columns; the table of a single benchmark becomes empty."""
    benchmarks = [block[0][0] for block in table.blocks]
    if len(benchmarks) < 2:
        return MetricsTable(name, title, table.note, [])

    # The cells of each label by benchmark, and its numbers of seeds.
    found: dict[str, dict[str, Row]] = {}
    counts: dict[str, dict[str, None]] = {}
    for benchmark, label, n, *cells in table.rows:
        found.setdefault(label, {})[benchmark] = cells
        counts.setdefault(label, {})[n] = None

    # One row per label: ours, then the paper's, which have no number of seeds.
    measures = [heading for _, heading in table.columns[len(KEYS) :]]
    ours: list[Row] = []
    theirs: list[Row] = []
    for label, cells_of in found.items():
        row = [label, "/".join(counts[label])]
        for benchmark in benchmarks:
            row += cells_of.get(benchmark, [Cell()] * len(measures))
        if row[1]:
            ours.append(row)
        else:
            theirs.append(row)
    columns = list(product(benchmarks, measures))
    if len(measures) == 1:
        columns = ungrouped(*benchmarks)
    return MetricsTable(name, title, table.note, ungrouped("label", "n") + columns, [ours, theirs], 2)


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
