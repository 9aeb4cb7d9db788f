"""Reports of result files: the paper's tables and figures, and further measurements, in Markdown, LaTeX and CSV."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyarrow import ArrowException
from pyarrow.parquet import read_table

from eval.reports.figures import plot_gain, plot_query_weights
from eval.reports.label_tables import gain, rates_of, values
from eval.reports.paper_tables import (
    DIRECTIONS,
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
from eval.reports.result_files import Results, Run, benchmark_name, first_run, label_name
from eval.reports.score_tables import (
    ceilings_table,
    differences_table,
    galleries_table,
    kinds_table,
    scores_missing_table,
    scores_table,
    second_stage_table,
    separation_table,
    weights_table,
)
from eval.reports.tables import Table, latex, markdown, write_csv

_READING = (
    'Rows marked "paper" are as published. They are shown next to our measurements and used in none of them; if '
    "models, data or galleries differ, only signs and magnitudes can be compared."
)


def _tables(results: Results) -> list[Table]:
    retrieval, classification = results.of_task("retrieval"), results.of_task("classification")
    return [
        galleries_table(results),
        retrieval_table(retrieval),
        transfer_table(retrieval),
        transfer_first_stage_table(retrieval),
        missing_table(retrieval),
        gain_table(retrieval),
        components_table(retrieval),
        gain_missing_table(retrieval),
        ablation_table(retrieval),
        *(two_stage_missing_table(retrieval, policy) for policy in POLICIES),
        second_stage_table(results),
        separation_table(results),
        ladder_table(retrieval),
        classification_table(classification),
        seeds_table(retrieval),
        sign_table(retrieval),
        *(scores_table(results, direction) for direction in DIRECTIONS),
        scores_missing_table(results),
        kinds_table(results),
        ceilings_table(retrieval),
        weights_table(results),
        differences_table(results),
        latent_table(results),
    ]


def _protocol_note(results: Results) -> str:
    """Return the note of every table: the galleries, the masks, how ties count, and the meaning of ±."""
    galleries, ties, seeds = [], {}, {}
    for benchmark, labels in results.runs.items():
        run = first_run(labels)
        retrieval = run["retrieval"]
        size = f"{retrieval['num_queries']} queries, {retrieval['num_clips']} clips"
        galleries.append(f"{benchmark_name(benchmark)} {run['split']} {size}, SHA-256 {run['gallery']['sha256'][:12]}")
        ties[retrieval["tie_rule"]] = seeds[str(retrieval["mask_seed"])] = None
    note = f"In percent. Galleries: {'; '.join(galleries)}. Mask seed {', '.join(seeds)}. Ties: {'; '.join(ties)}."
    several = any(len(found) > 1 for labels in results.runs.values() for found in labels.values())
    return f"{note} n seeds: mean ± sample deviation." if several else note


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text).strip("_")


def _plot_weights(queries: Path | Mapping[str, Sequence[Any]], path: Path) -> None:
    if not isinstance(queries, Path):
        plot_query_weights(queries, path)
        return
    try:
        plot_query_weights(read_table(queries).to_pydict(), path)
    except (ArrowException, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{queries} is not a table of queries by `scalar eval run`: {error}. Evaluate again."
        ) from error


def _plot_figures(results: Results, output: Path) -> dict[str, str]:
    """Draw the figures of retrieval that the results allow; return the names of the files and their captions."""
    names = {}
    rates = rates_of(results)
    panels = {}
    for benchmark, labels in results.runs.items():
        compared = [label for label in (results.reference, results.baseline) if label in labels]
        lines = {
            label_name(label): {rate: list(v.values()) for rate in rates if (v := values(labels[label], gain(rate)))}
            for label in dict.fromkeys([*compared, *labels])
        }
        panels[benchmark_name(benchmark)] = {label: gains for label, gains in lines.items() if gains}
    if panels and len(rates) > 1:
        plot_gain(panels, output / "gain_vs_masking.png")
        names["gain_vs_masking.png"] = "Aggregation gain under missing modalities; bands: sample deviation over seeds"
    for benchmark, labels in results.runs.items():
        for label, seeds in labels.items():
            found = {seed: results.queries[benchmark, label, seed] for seed in seeds}
            known = ((seed, table) for seed, table in found.items() if not isinstance(table, Path) or table.is_file())
            seed, queries = next(known, (None, None))
            if queries is not None:
                name = f"weights_{_slug(benchmark)}_{_slug(label)}.png"
                names[name] = f"Weights of the queries of {benchmark_name(benchmark)}: {label_name(label)}"
                names[name] += "" if seed is None else f", seed {seed}"
                _plot_weights(queries, output / name)
    return names


def write_report(results: Results, output: str | os.PathLike) -> str:
    """
    Write `tables.md`, `tables.tex`, a CSV file per table and the figures.

    Args:
        results ([`~eval.reports.result_files.Results`]): from [`~eval.reports.result_files.load_results`].
        output (`str`): folder to write to, created if needed. Tables of an earlier report are replaced or removed.

    Returns:
        `str`: the content of `tables.md`, with the names of empty tables.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    tables = _tables(results)
    shown = [table.filled() for table in tables if table.blocks]
    left_out = [table.title for table in tables if not table.blocks]
    for table in tables:
        (output / f"{table.name}.csv").unlink(missing_ok=True)
    for table in shown:
        write_csv(table, output / f"{table.name}.csv")
    protocol = _protocol_note(results)
    if len(results.runs) == 1:  # the note names it
        shown = [table if table.name == "galleries" else table.without(("benchmark",)) for table in shown]
    noted = [replace(table, note=f"{table.note} {protocol}") for table in shown]
    packages = "% needs \\usepackage{booktabs,graphicx}"
    (output / "tables.tex").write_text("\n\n".join([packages, *map(latex, noted)]) + "\n", encoding="utf-8")
    parts = [f"## {table.title}\n\n{markdown(table)}\n\n{table.note}" for table in noted]
    figures = _plot_figures(
        results.of_task("retrieval"), output
    )  # a class label has many relevant clips, so no single one to weigh
    parts += [f"![{name}]({name})\n\n{shown}." for name, shown in figures.items()]
    if left_out:
        parts.append(f"Left out, as they are empty: {'; '.join(left_out)}.")
    text = "\n\n".join([f"# Results\n\n{_READING}", *parts]) + "\n"
    (output / "tables.md").write_text(text, encoding="utf-8")
    return text


def format_table(results: Run) -> str:
    """
    Format a result file as text for the terminal: every score in both directions, with masks, and after two stages.

    Args:
        results (`dict`): content of a `results.json`.
    """
    label, seed = results["label"], results["seed"]
    one = Results({results["benchmark"]: {label: {seed: results}}})
    several_rates = len(results["retrieval"]["rates"]) > 1
    tables = [scores_table(one, direction) for direction in DIRECTIONS]
    tables += [scores_missing_table(one)] if several_rates else []
    tables += [kinds_table(one), ceilings_table(one), weights_table(one), differences_table(one)]
    tables = [table.without(("benchmark", "label", "n", "seed")) for table in tables]
    staged = [retrieval_table(one)] if results["two_stage"] else []
    staged += [two_stage_missing_table(one, policy) for policy in POLICIES]
    staged += [second_stage_table(one), separation_table(one)]
    tables += [table.without(("benchmark", "n")) for table in (*staged, ladder_table(one), latent_table(one))]
    lines = [f"{benchmark_name(results['benchmark'])} {results['split']}: {label_name(label)}"]
    lines[0] += "" if seed is None else f", seed {seed}"
    lines += [_protocol_note(one)]
    if results.get("trained_on"):
        among = f"{results['trained_on']:,} of the {results['retrieval']['num_clips']:,} clips"
        lines += [f"The model was trained on {among}: this is not a test."]
    for table in tables:
        if table.blocks:
            lines += ["", table.title, markdown(table.filled()), table.note]
    for name, found in (("left out", results.get("left_out")), ("counted as absent", results.get("problems"))):
        lines += ["", f"{name}:", *(f"  {item}" for item in found)] if found else []
    return "\n".join(lines)


__all__ = ["format_table", "write_report"]
