"""The paper's tables in files: Markdown and CSV."""

import os
from pathlib import Path

from evidence.reports.further_tables import (
    ceilings_table,
    galleries_table,
    kinds_table,
    separation_table,
    weights_table,
)
from evidence.reports.paper_tables import (
    POLICIES,
    ablation_table,
    classification_table,
    components_table,
    gain_missing_table,
    gain_table,
    ladder_table,
    latent_table,
    missing_table,
    retrieval_table,
    seeds_table,
    sign_table,
    transfer_first_stage_table,
    transfer_table,
    two_stage_missing_table,
)
from evidence.reports.results import RunResults
from evidence.reports.tables import MetricsTable, markdown, write_csv
from scalar_retrieval.eval.reports.report import protocol_note

_READING = (
    'Rows marked "paper" are as published. They are shown next to our measurements and used in none of them; if '
    "models, data or galleries differ, only signs and magnitudes can be compared."
)


def paper_tables(results: RunResults) -> list[MetricsTable]:
    """Return all tables, in the order of the paper; a table without measurements has no rows."""
    retrieval = results.of_task("retrieval")
    return [
        # What was searched, and the tables of the paper's text.
        galleries_table(results),
        retrieval_table(retrieval),
        transfer_table(retrieval),
        transfer_first_stage_table(retrieval),
        missing_table(retrieval),
        gain_table(retrieval),
        components_table(retrieval),
        gain_missing_table(retrieval),
        ablation_table(retrieval),
        # Those of its supplement, and measurements that it does not have.
        *(two_stage_missing_table(retrieval, policy) for policy in POLICIES),
        separation_table(results),
        ladder_table(retrieval),
        classification_table(results.of_task("classification")),
        seeds_table(retrieval),
        sign_table(retrieval),
        kinds_table(results),
        ceilings_table(retrieval),
        weights_table(results),
        latent_table(results),
    ]


def write_tables(results: RunResults, output: str | os.PathLike) -> str:
    """
    Write `tables.md` and a CSV file per table.

    Args:
        results ([`~evidence.reports.results.RunResults`]): from [`~evidence.reports.results.load_results`].
        output (`str`): folder to write to, created if needed.

    Returns:
        `str`: the content of `tables.md`.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    # Tables without a measurement are left out, and so are columns.
    parts = ["# Results", _READING, protocol_note([*results.all_runs()])]
    for table in paper_tables(results):
        if table.rows:
            filled = table.filled()
            write_csv(filled, output / f"{table.name}.csv")
            parts += [f"## {table.title}", markdown(filled), table.note]
    text = "\n\n".join(parts) + "\n"
    (output / "tables.md").write_text(text, encoding="utf-8")
    return text


__all__ = ["paper_tables", "write_tables"]
