"""Tables of further measurements: kinds of captions, ceilings, weights of modalities, galleries, and what the second
stage separates.
"""

from collections.abc import Callable, Iterable, Iterator

from eval.reports.result_files import Run, percent
from eval.reports.result_schema import method_title
from evidence.reports.label_tables import (
    KEYS,
    Column,
    at_rate,
    count,
    headings,
    in_part,
    modalities_of,
    rate_entry,
    rates_of,
    row_of,
)
from evidence.reports.results import Results, Seeds, benchmark_name, first_run, label_name
from evidence.reports.tables import Cell, Row, Table

# Blocks of rows ------------------------------------------------------------------------------------------------------


def _label_blocks(results: Results, rows_of: Callable[[Seeds], Iterable[Row]]) -> list[list[Row]]:
    """Return the rows of each label that has any, each starting with benchmark and label."""
    blocks = []
    for benchmark, labels in results.runs.items():
        for label, seeds in labels.items():
            names = [benchmark_name(benchmark), label_name(label)]
            blocks.append([[*names, *row] for row in rows_of(seeds)])
    return [block for block in blocks if block]


def _run_blocks(results: Results, rows_of: Callable[[Run], Iterable[Row]]) -> list[list[Row]]:
    """Return the rows of the runs of each benchmark that has any, each starting with benchmark, label and seed."""
    blocks = []
    for benchmark, labels in results.runs.items():
        block = []
        for label, seeds in labels.items():
            names = [benchmark_name(benchmark), label_name(label)]
            for seed, run in seeds.items():
                block += [[*names, "" if seed is None else str(seed), *row] for row in rows_of(run)]
        blocks += [block] if block else []
    return blocks


def kinds_table(results: Results) -> Table:
    """Return a table of every score on the same embeddings, by kind of caption, nothing masked; empty if none."""
    counts: dict[str, dict[str, int]] = {}
    for run in results.all_runs():
        for entry in run["retrieval"].get("kinds", []):
            counts.setdefault(entry["kind"], {})[benchmark_name(run["benchmark"])] = entry["num_queries"]
    sizes = "; ".join(
        f"{kind} {', '.join(f'{count} of {benchmark}' for benchmark, count in found.items())}"
        for kind, found in counts.items()
    )
    note = (
        f"Text-to-video R@1, first stage, nothing masked, in the gallery of all clips; captions: {sizes}. * strongest "
        "single pathway, all captions; (own) the model's own score."
    )
    columns = [Column("", kind, in_part("kinds", kind=kind)) for kind in counts]

    def rows_of(seeds: Seeds) -> Iterator[Row]:
        runs = [*seeds.values()]
        own = runs[0]["score"]["method"]
        best = {rate_entry(run, 0.0).get("best_pathway", {}).get("method") for run in runs}
        methods = dict.fromkeys(method for run in runs for method in rate_entry(run, 0.0).get("methods", {}))
        for method in methods:
            row = row_of(columns, seeds, method)
            if row is not None:
                marks = " *" * (method in best) + " (own)" * (method == own)
                yield [count(row), method_title(method) + marks, *row]

    keys = [*KEYS, ("", "score")]
    blocks = _label_blocks(results, rows_of)
    return Table("kinds", "R@1 by kind of caption", note, [*keys, *headings(columns)], blocks, len(keys))


def ceilings_table(results: Results) -> Table:
    """Return a table of what perfect readers of synthetic clips would reach, by kind of caption; empty if that is
    unknown."""
    found = {}
    for benchmark, labels in results.runs.items():
        embedded = first_run(labels).get("embedded", {})
        ceilings = (embedded.get("benchmark_description") or {}).get("recall_at_1_ceilings", {})
        found[benchmark] = ceilings.get(embedded.get("split"), {})
    kinds = dict.fromkeys(kind for readers in found.values() for recalls in readers.values() for kind in recalls)
    blocks = [
        [
            [
                benchmark_name(benchmark),
                "everything" if reader == "all" else f"{reader} alone",
                *(Cell(() if (value := recalls.get(kind)) is None else (value,)) for kind in kinds),
            ]
            for reader, recalls in readers.items()
        ]
        for benchmark, readers in found.items()
        if readers
    ]
    note = (
        "Expected text-to-video R@1 of a reader that makes no mistakes and breaks ties at random, nothing masked. A "
        "reader of one modality knows how often modalities agree, and infers what it can from that."
    )
    columns = [("", "benchmark"), ("", "reads"), *(("", kind) for kind in kinds)]
    return Table("ceilings", "Perfect readers of these clips", note, columns, blocks, 2)


# Weights, galleries, the second stage --------------------------------------------------------------------------------


def weights_table(results: Results) -> Table:
    """Return a table of what each masking rate leaves of the gallery, and which modality the queries rely on."""
    parts = (("clips", "presence", 0), ("weight", "mean_weight", 2), ("decided", "decided", 0))
    modalities = modalities_of(results)
    columns = {
        percent(rate): [
            Column(group, modality, at_rate(field, modality, rate), digits=digits)
            for group, field, digits in parts
            for modality in modalities
        ]
        for rate in rates_of(results)
    }

    def rows_of(seeds: Seeds) -> Iterator[Row]:
        for rate, of_rate in columns.items():
            if (row := row_of(of_rate, seeds)) is not None:
                yield [str(len(seeds)), rate, *row]

    note = (
        "Clips that have a modality left; mean query-conditioned weight at the relevant clip; pairs of a query and "
        "a relevant clip decided by a modality, the one with the largest weight."
    )
    columns_shown = [*KEYS, ("", "masked"), *((group, modality) for group, *_ in parts for modality in modalities)]
    blocks = _label_blocks(results, rows_of)
    return Table("weights", "Weights of the modalities", note, columns_shown, blocks, len(KEYS) + 1)


def galleries_table(results: Results) -> Table:
    """Return a table of the galleries that were used."""
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
    names = ("benchmark", "split", "queries", "clips", "pairs", "left out", "unreadable")
    columns = [("", name) for name in (*names, "gallery SHA-256", "mask seed", "depth")]
    note = "Clips left out have no file; unreadable files count as absent; depth: number of candidates to reorder."
    return Table("galleries", "Galleries", note, columns, [rows], 2)


def separation_table(results: Results) -> Table:
    """Return a table, by run, of how well the match separates first-stage candidates, and of the weight of fusion."""
    digits = {"auc": 3, "num_matched_pairs": 0, "num_hard_pairs": 0, "depth": 0}

    def rows_of(run: Run) -> Iterator[Row]:
        found, fusion = (run.get(f"two_stage_{name}") or {} for name in ("diagnostic", "fusion"))
        if found or fusion:
            row = [Cell((found[name],) if name in found else (), digits=places) for name, places in digits.items()]
            row.append(Cell((fusion["weight"],), digits=3) if fusion else Cell(()))
            yield [*row, (fusion.get("split") or "given") if fusion else ""]

    names = ("benchmark", "label", "seed", "AUC", "matched pairs", "hard pairs", "depth", "weight", "chosen on")
    note = (
        "AUC: how often the match logit of a caption with its clip exceeds that of a caption with another clip among "
        "its first ones (text to video, each label's own score, nothing masked); 0.5 is chance. Weight: of the match "
        "logit in the fused rule, and the split it was chosen on."
    )
    title, columns = "What the second stage separates", [("", name) for name in names]
    return Table("second_stage_separation", title, note, columns, _run_blocks(results, rows_of), 3)


__all__ = ["ceilings_table", "galleries_table", "kinds_table", "separation_table", "weights_table"]
