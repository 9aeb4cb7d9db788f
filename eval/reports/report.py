"""The report of result files: tables in Markdown, LaTeX and CSV, and figures."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyarrow import ArrowException
from pyarrow.parquet import read_table

from .figures import plot_gain, plot_query_weights
from .result_files import Run
from .tables import report_tables, run_name


def protocol_note(runs: Sequence[Run]) -> str:
    """Return what the numbers of some runs depend on: the galleries, the masks, how ties count, the meaning of ±."""
    galleries = {}
    seeds = {}
    ties = {}
    labels = set()
    for run in runs:
        retrieval = run["retrieval"]
        size = f"{retrieval['num_queries']} queries, {retrieval['num_clips']} clips"
        sha256 = run["gallery"]["sha256"][:12]
        galleries[f"{run['benchmark']} {run['split']} {size}, SHA-256 {sha256}"] = None
        seeds[str(retrieval["mask_seed"])] = None
        ties[retrieval["tie_rule"]] = None
        labels.add((run["benchmark"], run["label"]))
    note = f"In percent. Galleries: {'; '.join(galleries)}. Mask seed {', '.join(seeds)}. Ties: {'; '.join(ties)}."
    if len(labels) < len(runs):
        note += " n seeds: mean ± sample deviation."
    return note


def _remarks(runs: Sequence[Run]) -> list[str]:
    """Return what a reader must know of single runs: clips they were trained on, left out, or could not read."""
    remarks = {}  # without repetition: the runs of a benchmark share the clips
    for run in runs:
        if run.get("trained_on"):
            among = f"{run['trained_on']:,} of the {run['retrieval']['num_clips']:,} clips"
            remarks[f"{run_name(run)}: The model was trained on {among}: this is not a test."] = None
        for name, field in (("left out", "left_out"), ("counted as absent", "problems")):
            items = run.get(field)
            if items:
                remarks["\n- ".join([f"{run['benchmark']} {run['split']}, {name}:\n", *items])] = None
    return [*remarks]


def _plot_figures(runs: Mapping[Path, Run], output: Path) -> dict[str, str]:
    """Draw the figures that the results allow; return the names of the files and their captions."""
    # A class label has many relevant clips, so no single one to weigh.
    retrieval = {path: run for path, run in runs.items() if run["task"] == "retrieval"}
    captions = {}

    # The gains of the own scores by benchmark, label and masking rate, if some label was measured at several rates.
    gains: dict[str, dict[str, dict[float, list[float]]]] = {}
    has_several = False
    for run in retrieval.values():
        for entry in run["retrieval"]["rates"]:
            gain = entry.get("aggregation_gain", {}).get(run["score"]["method"])
            if gain is not None:
                rates = gains.setdefault(run["benchmark"], {}).setdefault(run["label"], {})
                rates.setdefault(entry["rate"], []).append(gain)
                has_several = has_several or len(rates) > 1
    if has_several:
        captions["gain_vs_masking.png"] = "Aggregation gain under missing modalities; bands: deviation over seeds"
        plot_gain(gains, output / "gain_vs_masking.png")

    # The weights of queries, of one seed of each label.
    drawn = set()
    for path, run in retrieval.items():
        queries = path.parent / "queries.parquet"
        label = (run["benchmark"], run["label"])
        if queries.is_file() and label not in drawn:
            drawn.add(label)
            parts = [re.sub(r"[^\w.-]+", "_", part).strip("_") for part in label]
            name = f"weights_{'_'.join(parts)}.png"
            captions[name] = f"Weights of the queries of {run_name(run)}"
            try:
                plot_query_weights(read_table(queries).to_pydict(), output / name)
            except (ArrowException, LookupError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{queries} is not a table of queries by `scalar eval run`: {error}. Evaluate again."
                ) from error
    return captions


def format_report(runs: Sequence[Run]) -> str:
    """Return the tables of results in Markdown, without figures, to print."""
    title = "Results"
    if len(runs) == 1:
        title = run_name(runs[0])
    parts = [f"# {title}", protocol_note(runs), *_remarks(runs)]
    for table in report_tables(runs):
        parts += [f"## {table.title}", table.markdown(), table.note]
    return "\n\n".join(parts)


def write_report(runs: Mapping[Path, Run], output: str | os.PathLike) -> str:
    """
    Write `tables.md`, `tables.tex`, a CSV file per table and the figures.

    Args:
        runs (`dict`): content of result files by their paths, from
            [`~scalar_retrieval.eval.reports.result_files.load_results`]; the weights of queries are read from
            `queries.parquet` next to a file.
        output (`str`): folder to write to, created if needed.

    Returns:
        `str`: the tables in Markdown, without the figures, to print.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    contents = [*runs.values()]

    # Tables: LaTeX in one file, and a CSV file of each table.
    latex = ["% needs \\usepackage{booktabs}", "% " + " ".join(protocol_note(contents).split())]
    for table in report_tables(contents):
        latex.append(table.latex())
        table.numbers.to_csv(output / f"{table.name}.csv")
    (output / "tables.tex").write_text("\n\n".join(latex), encoding="utf-8")

    # Markdown, with the figures below the tables.
    text = format_report(contents)
    content = text
    for name, caption in _plot_figures(runs, output).items():
        content += f"\n\n![{name}]({name})\n\n{caption}."
    (output / "tables.md").write_text(content + "\n", encoding="utf-8")
    return text


__all__ = ["format_report", "protocol_note", "write_report"]
