"""What was measured beside the paper's tables: every score on the same embeddings, weights, differences, galleries."""

from collections.abc import Callable

from eval.reports.label_tables import KEYS, Column, count, is_measured, measured, rates_of
from eval.reports.result_files import (
    R1,
    Measure,
    Results,
    benchmark_name,
    first_run,
    first_stage,
    gain,
    label_name,
    percent,
    rate_entry,
    recall_of_kind,
)
from eval.reports.tables import Cell, Table
from gallery.result_schema import method_title
from modeling_scalar.configuration_scalar import MODALITIES

_METRICS = {
    "R@1": "recall_at_1",
    "R@5": "recall_at_5",
    "R@10": "recall_at_10",
    "mAP": "mean_average_precision",
    "nDCG@10": "ndcg_at_10",
    "MedR": "median_rank",
    "MnR": "mean_rank",
}


def _scores_table(
    results: Results, name: str, title: str, note: str, columns_of: Callable[[str], list[Column]]
) -> Table:
    """A row for every score that was measured on the embeddings of a label."""
    blocks = []
    for benchmark, labels in results.runs.items():
        for label, seeds in labels.items():
            run = next(iter(seeds.values()))
            best = {rate_entry(r, 0.0).get("best_pathway", {}).get("method") for r in seeds.values()}
            block = []
            methods = (m for r in seeds.values() for entry in r["retrieval"]["rates"] for m in entry["methods"])
            for method in dict.fromkeys(methods):
                marks = " *" * (method in best) + " (own)" * (method == run["score"]["method"])
                row = [column.cell(seeds) for column in columns_of(method)]
                keys = [benchmark_name(benchmark), label_name(label), count(row)]
                block += [[*keys, method_title(method) + marks, *row]] if is_measured(row) else []
            blocks += [block] if block else []
    columns = [*KEYS, ("", "score"), *((c.group, c.heading) for c in columns_of("scalar"))]
    return Table(name, title, note, columns, blocks, len(KEYS) + 1)


def scores_table(results: Results, direction: str) -> Table:
    """Every score on the same embeddings, nothing masked, in one direction."""

    def columns_of(method: str) -> list[Column]:
        columns = [
            measured(heading, first_stage(f"{direction}_{metric}", method=method))
            for heading, metric in _METRICS.items()
        ]
        if direction == "text_to_video":
            columns.append(measured("gain", gain(method=method), signed=True))
            unscorable = first_stage("num_unscorable_clips", method=method)
            columns.append(measured("unscorable clips", unscorable, digits=0))
        return columns

    note = (
        "First stage, nothing masked. * strongest single pathway, text to video; (own) the score that the model was "
        "trained for."
    )
    if direction == "text_to_video":
        note += " Clips that a score is undefined for rank last."
    title = f"Every score on the same embeddings, {direction.replace('_', ' ')}"
    return _scores_table(results, f"scores_{direction}", title, note, columns_of)


def scores_missing_table(results: Results) -> Table:
    """Every score on the same embeddings where clips lose a modality."""
    rates = rates_of(results)

    def columns_of(method: str) -> list[Column]:
        return [measured(percent(rate), first_stage(R1, rate, method)) for rate in rates]

    note = (
        "Text-to-video R@1, first stage; columns: clips that lose one modality. * strongest single pathway "
        "with nothing masked; (own) the score that the model was trained for."
    )
    return _scores_table(results, "scores_missing", "Every score under missing modalities", note, columns_of)


def kinds_table(results: Results) -> Table:
    """Every score on the same embeddings, nothing masked, by the kind of the caption; empty if none has a kind."""
    counts: dict[str, dict[str, int]] = {}
    for run in results.all_runs():
        for entry in run["retrieval"].get("kinds", []):
            counts.setdefault(entry["kind"], {})[benchmark_name(run["benchmark"])] = entry["num_queries"]

    def columns_of(method: str) -> list[Column]:
        return [measured(kind, recall_of_kind(kind, method)) for kind in counts]

    sizes = "; ".join(
        f"{kind} {', '.join(f'{count} of {benchmark}' for benchmark, count in found.items())}"
        for kind, found in counts.items()
    )
    note = (
        f"Text-to-video R@1, first stage, nothing masked, in the gallery of all clips; captions: {sizes}. * strongest "
        "single pathway, all captions; (own) the score that the model was trained for."
    )
    return _scores_table(results, "kinds", "R@1 by kind of caption", note, columns_of)


def _of_modality(rate: float, field: str, modality: str) -> Measure:
    return lambda run: rate_entry(run, rate).get(field, {}).get(modality)


def weights_table(results: Results) -> Table:
    """What is left of the gallery at each masking rate, and which modality the queries of a label lean on."""
    blocks = []
    for benchmark, labels in results.runs.items():
        for label, seeds in labels.items():
            block = []
            for rate in rates_of(results):
                row = [
                    measured(modality, _of_modality(rate, field, modality), digits=digits).cell(seeds)
                    for field, digits in (("presence", 0), ("mean_weight", 2), ("decided", 0))
                    for modality in MODALITIES
                ]
                keys = [benchmark_name(benchmark), label_name(label), str(len(seeds)), percent(rate)]
                block += [[*keys, *row]] if is_measured(row) else []
            blocks += [block] if block else []
    groups = ("clips", "weight", "decided")
    columns = [*KEYS, ("", "masked"), *((group, modality) for group in groups for modality in MODALITIES)]
    note = (
        "Clips that have a modality left; mean query-conditioned weight at the relevant clip; pairs of a query and "
        "a relevant clip decided by a modality, that of the largest weight."
    )
    return Table("weights", "Weights of the modalities", note, columns, blocks, len(KEYS) + 1)


def differences_table(results: Results) -> Table:
    """Differences between two scores on the same queries, as each run bounded them."""
    blocks = []
    for benchmark, labels in results.runs.items():
        rows = []
        for label, seeds in labels.items():
            for seed, run in seeds.items():
                for entry in run["retrieval"].get("differences", []):
                    pair = " − ".join(method_title(entry[k]) for k in ("method", "baseline"))
                    keys = [benchmark_name(benchmark), label_name(label), "" if seed is None else str(seed), pair]
                    bounds = f"[{entry['low']:+.1f}, {entry['high']:+.1f}] at {percent(entry['confidence'])}"
                    rows.append([*keys, Cell((entry["difference"],), signed=True), bounds])
        blocks += [rows] if rows else []
    columns = [("", name) for name in ("benchmark", "label", "seed", "scores", "difference", "interval")]
    note = "Points of text-to-video R@1, first stage, nothing masked; paired bootstrap over queries."
    return Table("differences", "Differences between scores on the same queries", note, columns, blocks, 4)


def galleries_table(results: Results) -> Table:
    """What everything was measured on."""
    rows = []
    for benchmark, labels in results.runs.items():
        run = first_run(labels)
        retrieval = run["retrieval"]
        depths = sorted({e["depth"] for seeds in labels.values() for r in seeds.values() for e in r["two_stage"]})
        counts = [retrieval["num_queries"], retrieval["num_clips"], retrieval["num_pairs"]]
        counts += [len(run.get("left_out", [])), len(run.get("problems", []))]
        cells = [Cell((count,), digits=0) for count in counts]
        texts = [run["gallery"]["sha256"][:12], str(retrieval["mask_seed"]), "/".join(map(str, depths))]
        rows.append([benchmark_name(benchmark), f"{run['split']}, {run['task']}", *cells, *texts])
    headings = ("benchmark", "split", "queries", "clips", "pairs", "left out", "unreadable")
    columns = [("", name) for name in (*headings, "gallery SHA-256", "mask seed", "depth")]
    note = "Clips left out have no file; what is unreadable counts as absent; depth: candidates that are reordered."
    return Table("galleries", "Galleries", note, columns, [rows], 2)


__all__ = [
    "differences_table",
    "galleries_table",
    "kinds_table",
    "scores_missing_table",
    "scores_table",
    "weights_table",
]
