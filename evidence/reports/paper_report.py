"""The paper's tables and figures in files: Markdown, CSV and PNG."""

import os
from collections.abc import Sequence
from pathlib import Path

from evidence.reports.further_tables import (
    ceilings_table,
    galleries_table,
    kinds_table,
    separation_table,
    weights_table,
)
from evidence.reports.label_tables import gain, rates_of, values
from evidence.reports.latent_figure import plot_latent
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
from evidence.reports.results import RunResults, benchmark_name, label_name, load_results
from evidence.reports.tables import MetricsTable, markdown, write_csv
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.reports.figures import plot_gain
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


def write_figures(paths: Sequence[str | os.PathLike], output: str | os.PathLike) -> list[Path]:
    """
    Draw Figure 2, the aggregation gain under missing modalities, and for each benchmark of class labels Figure S1, the
    latent space of the `embeddings` next to the first result of each label.

    Args:
        paths (`Sequence[str]`): `results.json` files, or folders that contain them at any depth.
        output (`str`): folder to write to, created if needed.

    Returns:
        `list[Path]`: the figures.
    """
    # Measures are taken from the results, and embeddings only for the latent space.
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    results = load_results(paths)
    drawn = []

    # Figure 2: a panel for each benchmark, with the gains of each label by masking rate.
    rates = rates_of(results)
    panels = {}
    for benchmark, labels in results.of_task("retrieval").runs.items():
        lines = {}
        for label, seeds in labels.items():
            line = {}
            for rate in rates:
                line[rate] = list(values(seeds, gain(rate)).values())
            lines[label_name(label)] = line
        panels[benchmark_name(benchmark)] = lines
    if panels and len(rates) > 1:
        drawn.append(output / "gain_vs_masking.png")
        plot_gain(panels, drawn[-1])

    # Figure S1: one run of each label whose embeddings were kept.
    for benchmark, labels in results.of_task("classification").runs.items():
        models = {}
        for label, seeds in labels.items():
            kept = [run["embeddings"] for run in seeds.values() if run["embeddings"] is not None]
            if kept:
                models[label_name(label)] = Embeddings.load(kept[0])
        if models:
            drawn.append(output / f"latent_{benchmark}.png")
            plot_latent(models, drawn[-1])
    return drawn


__all__ = ["paper_tables", "write_figures", "write_tables"]
