"""The study's report: the paper's tables and figures, and what the study alone measures."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from safetensors import safe_open

from eval.protocol.statistics import paired_bootstrap, seed_interval
from eval.reports.figures import COLOURS
from eval.reports.report import write_report
from eval.reports.result_files import R1, label_name, load_results
from eval.reports.tables import Cell, Row, Table, markdown, write_csv
from gallery.files import read_json

from .runs import SHARED
from .tuning import GRID

_SHOWN_RATES = (0.0, 0.5)


def _columns(*names: str) -> list[tuple[str, str]]:
    return [("", name) for name in names]


def tuning_table(tuning: dict[str, Any]) -> Table:
    """Every trial of every method, and which was chosen."""
    blocks = []
    for variant, method in tuning["methods"].items():
        rows: list[Row] = []
        for trial in method["trials"]:
            found = trial["recall_at_1"]
            settings = [f"{trial['settings'][name]:g}" for name in GRID]
            chosen = "chosen" if trial["settings"] == method["chosen"] else ""
            rows.append([label_name(variant), *settings, Cell(() if found is None else (found,)), chosen])
        blocks.append(rows)
    note = (
        "Validation clips, text-to-video R@1 of the method's own score, nothing masked, one seed. The same values are "
        "tried for every method: the temperature first (the start of a learned one), then the learning rate, then the "
        "epochs."
    )
    return Table("tuning", "What was tried for each method", note, _columns("method", *GRID, "R@1", ""), blocks, 1)


def paired_table(folder: Path, reference: str = "scalar") -> Table:
    """The reference against every other variant, query by query: hits at rank 1, averaged over the seeds of both."""
    hits: dict[str, list[list[float]]] = {}
    for path in sorted(folder.glob("*/results/results.json")):
        run = read_json(path)
        ranks = pq.read_table(path.parent / "queries.parquet", columns=[f"rank_{run['score']['method']}"])[0]
        hits.setdefault(run["label"], []).append([100.0 * (rank == 1) for rank in ranks.to_pylist()])
    means = {label: [statistics.fmean(query) for query in zip(*seeds, strict=True)] for label, seeds in hits.items()}
    rows: list[Row] = []
    for label in means.keys() - {reference} if reference in means else ():
        found = paired_bootstrap(means[reference], means[label])
        bounds = f"[{found['low']:+.1f}, {found['high']:+.1f}]"
        seeds = f"{len(hits[reference])}, {len(hits[label])}"
        rows.append([label_name(label), Cell((found["difference"],), signed=True), bounds, seeds])
    rows.sort(key=lambda row: row[1].mean)
    note = (
        "Points of text-to-video R@1 on the test clips, first stage, nothing masked; 95 % interval of the paired "
        "bootstrap over queries, each query's hits averaged over the seeds."
    )
    title = f"{label_name(reference)} minus each variant, over the same queries"
    return Table("paired", title, note, _columns("variant", "difference", "interval", "seeds"), [rows], 1)


def second_stage_table(folders: Sequence[Path]) -> Table:
    """What the second stage does after different trainings: both rules at the largest depth, and what it separates."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/results/results.json")):
            run = read_json(path)
            if run["two_stage"] and "two_stage_diagnostic" in run:
                rows.setdefault(run["label"], []).append(run)

    def reranked(run: dict[str, Any], rule: str) -> float:
        found = [entry for entry in run["two_stage"] if entry["rule"] == rule and entry["rate"] == 0]
        return max(found, key=lambda entry: entry["depth"])[R1]

    def first(run: dict[str, Any]) -> float:
        return run["retrieval"]["rates"][0]["methods"][run["score"]["method"]][R1]

    table = [
        [
            label_name(label),
            *(Cell(tuple(measure(run) for run in runs)) for measure in
              (first, lambda run: reranked(run, "match"), lambda run: reranked(run, "fused"))),
            Cell(tuple(run["two_stage_diagnostic"]["auc"] for run in runs), digits=3),
        ]
        for label, runs in rows.items()
    ]  # fmt: skip
    note = (
        "Test clips, text-to-video R@1, nothing masked: of the first stage, after the match has reordered its first "
        "candidates, and fused; AUC of matched against hard pairs."
    )
    return Table("second_stage", "What the second stage depends on", note,
                 _columns("training", "first stage", "match", "fused", "AUC"), [table], 1)  # fmt: skip


def temperatures_table(folders: Sequence[Path]) -> Table:
    """Where a learned contrastive temperature began and ended."""
    found: dict[tuple[str, float], list[float]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/results/results.json")):
            run = path.parents[1]
            recipe = read_json(run / "recipe.json")
            if not recipe["learnable_temperature"]:
                continue
            with safe_open(run / "adapter_model.safetensors", "pt") as weights:
                (name,) = (key for key in weights.keys() if key.endswith("log_scale"))  # noqa: SIM118
                end = math.exp(-weights.get_tensor(name).item())
            label = read_json(path)["label"]
            found.setdefault((label, recipe["temperature"]), []).append(end)
    rows = [[label_name(label), Cell((start,), digits=3), Cell(tuple(ends), digits=3)] for (label, start), ends in
            sorted(found.items())]  # fmt: skip
    note = "Its logarithm is the parameter; trials and runs alike."
    columns = _columns("method", "tau at the start", "at the end")
    return Table("temperatures", "Learned temperatures", note, columns, [rows], 1)


def _sharing(folders: dict[float, Path]) -> dict[str, dict[float, dict[float, list[float]]]]:
    """R@1 by variant, degree of sharing and masking rate: one value per seed."""
    found: dict[str, dict[float, dict[float, list[float]]]] = {}
    for shared, folder in sorted(folders.items()):
        for path in sorted(folder.glob("*/results/results.json")):
            run = read_json(path)
            for entry in run["retrieval"]["rates"]:
                recall = entry["methods"][run["score"]["method"]][R1]
                by_rate = found.setdefault(run["label"], {}).setdefault(shared, {})
                by_rate.setdefault(entry["rate"], []).append(recall)
    return found


def sharing_table(sharing: dict[str, dict[float, dict[float, list[float]]]]) -> Table:
    """R@1 of each variant as a function of how much the modalities of a clip share."""
    levels = sorted({shared for by_level in sharing.values() for shared in by_level})
    columns = [("", "variant"), ("", "masked"), *((f"{level:g}", "shared") for level in levels)]
    blocks = [
        [
            [label_name(variant), f"{100 * rate:g} %"]
            + [Cell(tuple(by_level.get(level, {}).get(rate, ()))) for level in levels]
            for rate in _SHOWN_RATES
        ]
        for variant, by_level in sharing.items()
    ]
    note = (
        "Test clips, text-to-video R@1, first stage; a column is a benchmark of its own, on whose training clips the "
        "variants were trained with the settings that were tuned once, from the one backbone."
    )
    return Table("sharing", "How much the modalities of a clip share", note, columns, blocks, 2)


def plot_sharing(sharing: dict[str, dict[float, dict[float, list[float]]]], path: Path) -> None:
    """Draw R@1 against the degree of sharing: one line per variant, a panel per masking rate; bars are intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, len(_SHOWN_RATES), sharey=True)
    for axes, rate in zip(panels, _SHOWN_RATES, strict=True):
        for colour, (variant, by_level) in zip(COLOURS, sharing.items(), strict=False):
            levels = sorted(by_level)
            means = [statistics.fmean(by_level[level][rate]) for level in levels]
            axes.plot(levels, means, "o-", color=colour, label=label_name(variant))
            for level, mean in zip(levels, means, strict=True):
                if len(by_level[level][rate]) > 1:
                    bounds = seed_interval(by_level[level][rate])
                    axes.vlines(level, bounds["low"], bounds["high"], color=colour, alpha=0.4)
                    axes.plot(level, mean, "o", color=colour)
        axes.set_title(f"{100 * rate:g} % masked", fontsize=10)
        axes.set_xlabel("share of what modalities say in common")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("text-to-video R@1 (%)")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def report(output: Path) -> str:
    """
    Write the tables and figures of what is evaluated into `report`.

    Args:
        output (`Path`): folder of the study.

    Returns:
        `str`: the tables.
    """
    folder = output / "report"
    text = write_report(load_results([output / "runs"], paper_mean=True), folder)
    tuning = output / "tuning" / "tuning.json"
    tables = [tuning_table(read_json(tuning))] if tuning.is_file() else []
    tables.append(paired_table(output / "runs"))
    tables.append(second_stage_table([output / "runs", output / "second_stage"]))
    tables.append(temperatures_table([output / "tuning", output / "runs"]))
    levels = {float(path.name): path for path in (output / "sharing").glob("*") if path.is_dir()}
    sharing = _sharing(levels)
    if sharing:
        main = _sharing({SHARED: output / "runs"})
        for variant in sharing:
            sharing[variant] |= main.get(variant, {})
        tables.append(sharing_table(sharing))
        plot_sharing(sharing, folder / "sharing.png")
    tables = [table for table in tables if table.rows]
    for table in tables:
        write_csv(table, folder / f"{table.name}.csv")
    parts = [text.rstrip(), *(f"## {table.title}\n\n{markdown(table)}\n\n{table.note}" for table in tables)]
    if sharing:
        parts.append(
            "![sharing.png](sharing.png)\n\nR@1 against what the modalities of a clip share; bars: 95 % "
            "intervals over seeds."
        )
    text = "\n\n".join(parts) + "\n"
    (folder / "tables.md").write_text(text, encoding="utf-8")
    return text


__all__ = [
    "paired_table",
    "plot_sharing",
    "report",
    "second_stage_table",
    "sharing_table",
    "temperatures_table",
    "tuning_table",
]
