"""Tables of further measurements: kinds of captions, ceilings, weights of modalities, galleries, and what the second
stage separates.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import product

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
from evidence.reports.results import RunResults, Seeds, benchmark_name, first_run, label_name
from evidence.reports.tables import Cell, MetricsTable, Row, ungrouped
from scalar_retrieval.eval.reports.tables import percent
from scalar_retrieval.modeling_scalar.scores_scalar import method_title


def _label_rows(results: RunResults, rows_of: Callable[[Seeds], Iterable[Row]]) -> list[Row]:
    """Return the rows of every label on every benchmark, each starting with these two."""
    rows = []
    for benchmark, labels in results.runs.items():
        for label, seeds in labels.items():
            rows += [[benchmark_name(benchmark), label_name(label), *row] for row in rows_of(seeds)]
    return rows


def kinds_table(results: RunResults) -> MetricsTable:
    """Return a table of every score on the same embeddings, by kind of caption, nothing masked; empty if none."""
    # Captions of each kind on each benchmark, for the note.
    counts: dict[str, dict[str, int]] = {}
    for run in results.all_runs():
        for entry in run["retrieval"].get("kinds", []):
            counts.setdefault(entry["kind"], {})[benchmark_name(run["benchmark"])] = entry["num_queries"]
    sizes = []
    for kind, numbers in counts.items():
        sizes_of_kind = ", ".join(f"{number} of {benchmark}" for benchmark, number in numbers.items())
        sizes.append(f"{kind} {sizes_of_kind}")
    note = (
        f"Text-to-video R@1, first stage, nothing masked, in the gallery of all clips; captions: {'; '.join(sizes)}. "
        "* strongest single pathway, all captions; (own) the model's own score."
    )
    columns = [Column("", kind, in_part("kinds", kind=kind)) for kind in counts]

    def rows_of(seeds: Seeds) -> Iterator[Row]:
        # Seeds may differ in their strongest pathway.
        best = set()
        methods = {}
        for run in seeds.values():
            entry = rate_entry(run, 0.0)
            best.add(entry.get("best_pathway", {}).get("method"))
            methods |= dict.fromkeys(entry.get("methods", {}))
            own = run["score"]["method"]
        for method in methods:
            row = row_of(columns, seeds, method)
            if row is not None:
                title = method_title(method) + " *" * (method in best) + " (own)" * (method == own)
                yield [str(count(row)), title, *row]

    keys = [*KEYS, ("", "score")]
    rows = _label_rows(results, rows_of)
    return MetricsTable("kinds", "R@1 by kind of caption", note, [*keys, *headings(columns)], [rows], len(keys))


def ceilings_table(results: RunResults) -> MetricsTable:
    """Return a table of what perfect readers of synthetic clips would reach, by kind of caption; empty if that is
    unknown."""
    # The benchmark's own description holds the ceilings of each split.
    ceilings = {}
    kinds = {}
    for benchmark, labels in results.runs.items():
        embedded = first_run(labels).get("embedded", {})
        described = embedded.get("benchmark_description") or {}
        readers = described.get("recall_at_1_ceilings", {}).get(embedded.get("split"), {})
        for reader, recalls in readers.items():
            ceilings[benchmark, reader] = recalls
            kinds |= dict.fromkeys(recalls)

    rows = []
    for (benchmark, reader), recalls in ceilings.items():
        known = "everything" if reader == "all" else f"{reader} alone"
        rows.append([benchmark_name(benchmark), known, *map(Cell.of, map(recalls.get, kinds))])
    note = (
        "Expected text-to-video R@1 of a reader that makes no mistakes and breaks ties at random, nothing masked. A "
        "reader of one modality knows how often modalities agree, and infers what it can from that."
    )
    columns = ungrouped("benchmark", "reads", *kinds)
    return MetricsTable("ceilings", "Perfect readers of these clips", note, columns, [rows], 2)


def weights_table(results: RunResults) -> MetricsTable:
    """Return a table of what each masking rate leaves of the gallery, and which modality the queries rely on."""
    # Group, field of a result and decimals of each quantity; each has a column for every modality.
    quantities = (("clips", "presence", 0), ("weight", "mean_weight", 2), ("decided", "decided", 0))
    cells = list(product(quantities, modalities_of(results)))

    def rows_of(seeds: Seeds) -> Iterator[Row]:
        for rate in rates_of(results):
            columns = []
            for (group, field, digits), modality in cells:
                columns.append(Column(group, modality, at_rate(field, modality, rate), digits=digits))
            row = row_of(columns, seeds)
            if row is not None:
                yield [str(len(seeds)), percent(rate), *row]

    note = (
        "Clips that have a modality left; mean query-conditioned weight at the relevant clip; pairs of a query and "
        "a relevant clip decided by a modality, the one with the largest weight."
    )
    columns = [*KEYS, ("", "masked")]
    for (group, *_), modality in cells:
        columns.append((group, modality))
    rows = _label_rows(results, rows_of)
    return MetricsTable("weights", "Weights of the modalities", note, columns, [rows], len(KEYS) + 1)


def galleries_table(results: RunResults) -> MetricsTable:
    """Return a table of the galleries that were used."""
    rows = []
    for benchmark, labels in results.runs.items():
        # Runs on one benchmark share all of this but the depth.
        run = first_run(labels)
        retrieval = run["retrieval"]
        depths = set()
        for seeds in labels.values():
            for other in seeds.values():
                depths.update(entry["depth"] for entry in other["two_stage"])
        counts = [retrieval["num_queries"], retrieval["num_clips"], retrieval["num_pairs"]]
        counts += [len(run.get("left_out", [])), len(run.get("problems", []))]
        cells = [Cell((count,), digits=0) for count in counts]
        texts = [run["gallery"]["sha256"][:12], str(retrieval["mask_seed"]), "/".join(map(str, sorted(depths)))]
        rows.append([benchmark_name(benchmark), f"{run['split']}, {run['task']}", *cells, *texts])
    names = ("benchmark", "split", "queries", "clips", "pairs", "left out", "unreadable")
    columns = ungrouped(*names, "gallery SHA-256", "mask seed", "depth")
    note = "Clips left out have no file; unreadable files count as absent; depth: number of candidates to reorder."
    return MetricsTable("galleries", "Galleries", note, columns, [rows], 2)


def separation_table(results: RunResults) -> MetricsTable:
    """Return a table, by run, of how well the match separates first-stage candidates, and of the weight of fusion."""
    digits = {"auc": 3, "num_matched_pairs": 0, "num_hard_pairs": 0, "depth": 0}
    rows = []
    for run in results.all_runs():
        diagnostic = run.get("two_stage_diagnostic") or {}
        fusion = run.get("two_stage_fusion") or {}
        if not diagnostic and not fusion:
            continue
        seed = "" if run["seed"] is None else str(run["seed"])
        # A dash stands for what was not measured.
        row = [benchmark_name(run["benchmark"]), label_name(run["label"]), seed]
        for name, places in digits.items():
            row.append(Cell.of(diagnostic.get(name), digits=places))
        row.append(Cell.of(fusion.get("weight"), digits=3))
        split = ""
        if fusion:
            split = fusion.get("split") or "given"
        rows.append([*row, split])
    names = ("benchmark", "label", "seed", "AUC", "matched pairs", "hard pairs", "depth", "weight", "chosen on")
    note = (
        "AUC: how often the match logit of a caption with its clip exceeds that of a caption with another clip among "
        "its first ones (text to video, each label's own score, nothing masked); 0.5 is chance. Weight: of the match "
        "logit in the fused rule, and the split it was chosen on."
    )
    title = "What the second stage separates"
    return MetricsTable("second_stage_separation", title, note, ungrouped(*names), [rows], 3)


__all__ = ["ceilings_table", "galleries_table", "kinds_table", "separation_table", "weights_table"]
