"""The tables of SCALAR (1 to 5, S3 to S6 and S8) and the numbers of its plots, for any models and benchmarks.

A row is a label; its seeds are shown as their mean ± sample deviation, and differences are taken seed by seed. The
paper's published values have rows of their own, marked "paper", and are used in none of our numbers.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from evidence.reports import paper
from evidence.reports.label_tables import (
    Column,
    Measure,
    Published,
    across_benchmarks,
    at_rate,
    changes,
    first_stage,
    gain,
    in_part,
    label_table,
    margin_row,
    modalities_of,
    rate_entry,
    rates_of,
    two_stage,
    values,
)
from evidence.reports.results import RunResults, Seeds, benchmark_name, first_run, label_name
from evidence.reports.tables import Cell, MetricsTable, Row, ungrouped
from evidence.statistics import seed_interval, sign_test
from scalar_retrieval.eval.protocol.missing import ladder
from scalar_retrieval.eval.reports.result_files import R1, Run
from scalar_retrieval.eval.reports.tables import percent
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, method_title

_DIRECTIONS = {"text_to_video": "T→V", "video_to_text": "V→T"}

POLICIES = {"absent": "no tokens", "zeros": "tokens of zero states (as published)"}
"""The cross-encoder's input for a masked modality, by policy."""

_R10 = "text_to_video_recall_at_10"

Numbers = tuple[float | None, ...]


def _beside(
    results: RunResults, table: paper.Table, choose: Callable[[Numbers], Sequence[float | str | Cell | None]] = tuple
) -> Callable[[str], Published]:
    """Return the paper's values for a benchmark: the rows of one of its tables, or a selection from each."""

    def published(benchmark: str) -> Published:
        rows = paper.published(table, benchmark, results.paper_mean)
        return {name: choose(numbers) for name, numbers in rows.items()}

    return published


def _at_rates(rates: Sequence[float], numbers: Numbers) -> list[float | None]:
    """Return the paper's values at these masking rates."""
    # Ours may be other rates than the paper's.
    by_rate = dict(zip(paper.RATES, numbers, strict=True))
    return [by_rate.get(rate) for rate in rates]


def _columns_at(rates: Sequence[float], measure_at: Callable[[float], Measure], signed: bool = False) -> list[Column]:
    """Return a column for each masking rate."""
    return [Column("", percent(rate), measure_at(rate), signed=signed) for rate in rates]


# The paper's tables -------------------------------------------------------------------------------------------------


def retrieval_table(results: RunResults) -> MetricsTable:
    """Table 1: both stages and both directions of every label on every benchmark."""
    # Both stages, each in both directions.
    columns = []
    for stage, measure_of in (("1-stage", first_stage), ("2-stage", two_stage)):
        for direction, arrow in _DIRECTIONS.items():
            for k in (1, 10):
                measure = measure_of(f"{direction}_recall_at_{k}")
                columns.append(Column(f"{stage} {arrow}", f"R@{k}", measure))
    published = _beside(results, paper.TWO_STAGE, lambda numbers: (None, None, None, None, *numbers))
    note = (
        "1-stage: each label's own score; 2-stage: its first candidates reordered by the cross-encoder, without "
        "tokens for modalities that a clip lacks. The paper publishes its second stage here."
    )
    return label_table(results, "retrieval", "Retrieval (Table 1)", note, columns, published)


def transfer_table(results: RunResults) -> MetricsTable:
    """Table 2: two-stage text-to-video R@1 and R@10 across benchmarks."""
    columns = [Column("", "R@1", two_stage(R1)), Column("", "R@10", two_stage(_R10))]
    published = _beside(results, paper.TWO_STAGE, lambda numbers: numbers[:2])
    note = "Text to video; the first clips of each label's own score reordered by the cross-encoder."
    table = label_table(results, "transfer", "", note, columns, published)
    return across_benchmarks(table, "transfer", "Retrieval across benchmarks, two-stage (Table 2)")


def transfer_first_stage_table(results: RunResults) -> MetricsTable:
    """The layout of Table 2 for the first stage, whose R@1 is in the paper's Table S3."""
    columns = [Column("", "R@1", first_stage(R1)), Column("", "R@10", first_stage(_R10))]
    published = _beside(results, paper.COMPONENTS, lambda numbers: numbers[1:])
    table = label_table(results, "", "", "Text to video, each label's own score, no second stage.", columns, published)
    title = "Retrieval across benchmarks, first stage (layout of Table 2)"
    return across_benchmarks(table, "transfer_first_stage", title)


def missing_table(results: RunResults) -> MetricsTable:
    """Table 3: first-stage R@1 of each label's own score when clips lose a modality, with margins."""
    rates = rates_of(results)
    columns = _columns_at(rates, partial(first_stage, R1))
    published = _beside(results, paper.MISSING, partial(_at_rates, rates))
    note = "Text-to-video R@1 of the first stage, each label's own score; columns: clips that lose one modality."
    return label_table(
        results, "missing", "Retrieval under missing modalities (Table 3)", note, columns, published, margins=True
    )


def components_table(results: RunResults) -> MetricsTable:
    """Table S3: the strongest single pathway, the joint score on the same embeddings, and the gain between them."""

    def pathways(seeds: Seeds) -> str:
        # Seeds may differ in their strongest pathway.
        methods = {}
        for run in seeds.values():
            best = rate_entry(run, 0.0).get("best_pathway", {})
            methods[best.get("method", "")] = None
        return "/".join(methods)

    columns = [
        Column("", "best pathway", text=pathways),
        Column("", "best", at_rate("best_pathway", R1)),
        Column("", "agg.", first_stage(R1)),
        Column("", "gain", gain(), signed=True),
    ]
    published = _beside(results, paper.COMPONENTS, lambda numbers: ("", *numbers, numbers[1] - numbers[0]))
    note = (
        "Text-to-video R@1 of the first stage: the strongest single pathway, each label's own score, their difference."
    )
    title = "Components of the aggregation gain (Table S3)"
    return label_table(results, "gain_components", title, note, columns, published)


def gain_table(results: RunResults) -> MetricsTable:
    """Table 4: the aggregation gain of each label's own score across benchmarks."""
    published = _beside(results, paper.COMPONENTS, lambda numbers: (numbers[1] - numbers[0],))
    note = "Text-to-video R@1 of each label's own score minus that of its strongest single pathway."
    table = label_table(results, "", "", note, [Column("", "gain", gain(), signed=True)], published)
    return across_benchmarks(table, "aggregation_gain", "Aggregation gain (Table 4)")


def gain_missing_table(results: RunResults) -> MetricsTable:
    """The numbers of Figure 2: the aggregation gain when clips lose a modality."""
    columns = _columns_at(rates_of(results), gain, signed=True)
    note = "R@1 of each label's own score minus that of its strongest single pathway under the same masks."
    title = "Aggregation gain under missing modalities (Figure 2)"
    return label_table(results, "gain_missing", title, note, columns)


def _means(results: RunResults, label: str, benchmarks: Sequence[str], measure: Measure) -> dict[int | None, float]:
    """Return a measure averaged over benchmarks, for each seed that has it on all of them."""
    numbers: dict[int | None, list[float]] = {}
    for benchmark in benchmarks:
        for seed, number in values(results.runs[benchmark][label], measure).items():
            numbers.setdefault(seed, []).append(number)
    means = {}
    for seed, found in numbers.items():
        if len(found) == len(benchmarks):
            means[seed] = statistics.mean(found)
    return means


def ablation_table(results: RunResults) -> MetricsTable:
    """Table 5: the effect of removing one component from the reference, seed by seed, as a mean over benchmarks."""
    title = "Objective ablation (Table 5)"
    reference = results.reference
    ablations = []
    for label in results.all_labels():
        if label.startswith(("no_", "w/o ")):
            ablations.append(label)
    if reference is None or not ablations:
        return MetricsTable("ablation", title, "", [])
    measures = {
        "Δ two-stage": two_stage(),
        "Δ first stage": first_stage(),
        "Δ gain": gain(),
        "Δ gain at 90 %": gain(0.9),
    }

    # Our rows: R@1 on every benchmark, then changes over the benchmarks that have the reference, too.
    ours = []
    for label in (reference, *ablations):
        row: list[Cell] = []
        counts = {}
        shared = []
        for benchmark, labels in results.runs.items():
            row.append(Column("", "", two_stage()).cell(labels.get(label, {})))
            if label in labels:
                counts[str(len(labels[label]))] = None
                if reference in labels:
                    shared.append(benchmark)
        for heading, measure in measures.items():
            numbers = _means(results, label, shared, measure)
            found = []
            if label != reference:
                found = changes(numbers, _means(results, reference, shared, measure))
            elif "gain" in heading:
                found = numbers.values()
            row.append(Cell(tuple(found), signed=True))
        name = label_name(label) + " (reference)" * (label == reference)
        ours.append([name, "/".join(counts), *row])

    # The published changes are means over all of the paper's benchmarks: shown only for exactly these benchmarks.
    rows_of = {}
    for benchmark, labels in results.runs.items():
        rows_of[benchmark] = {}
        if first_run(labels)["split"] == "test":
            rows_of[benchmark] = paper.published(paper.ABLATION, benchmark, results.paper_mean)
    benchmarks = set(results.runs)
    complete = benchmarks == set(paper.ABLATION) or benchmarks.isdisjoint(paper.ABLATION)
    theirs = []
    for name in dict.fromkeys(chain.from_iterable(rows_of.values())):
        row = [Cell(rows.get(name, ())) for rows in rows_of.values()]
        two_stages, *gains = (None, None, None)
        if complete:
            # Rows are named as "paper: VARIANT" and "paper, mean of 5: VARIANT".
            for variant, means in paper.ABLATION_MEANS.items():
                if name.endswith(f": {paper.VARIANTS[variant]}"):
                    two_stages, *gains = means
        # The paper has no changes of the first stage.
        for number in (two_stages, None, *gains):
            row.append(Cell.of(number, signed=True))
        theirs.append([name, "", *row])

    columns = ungrouped("label", "n")
    for benchmark in results.runs:
        columns.append(("two-stage R@1", benchmark_name(benchmark)))
    columns += ungrouped(*measures)
    note = (
        f"Labels that begin with no_ or w/o against {label_name(reference)}; a Δ is taken seed by seed and "
        "is a mean over benchmarks. The row of the reference holds its gains, not changes."
    )
    return MetricsTable("ablation", title, note, columns, [ours, theirs], 2)


def two_stage_missing_table(results: RunResults, policy: str) -> MetricsTable:
    """Table S4: two-stage R@1 when clips lose a modality, with margins and the cosine of the video alone at 90 %."""
    rates = set()
    for run in results.all_runs():
        for entry in run["two_stage"]:
            if entry["policy"] == policy:
                rates.add(entry["rate"])
    rates = sorted(rates)

    def video(seeds: Seeds) -> Cell:
        """The video's own score, for the seeds that were measured under this policy."""
        measured = {}
        for seed, run in seeds.items():
            if policy in {entry["policy"] for entry in run["two_stage"]}:
                measured[seed] = run
        return Cell(tuple(values(measured, first_stage(R1, 0.9), "video").values()))

    columns = _columns_at(rates, lambda rate: two_stage(R1, rate, policy))
    columns.append(Column("", "video cosine at 90 %", text=video))
    # The paper's cross-encoder gets zero states for what is masked.
    table = paper.TWO_STAGE_MISSING if policy == "zeros" else {}
    published = _beside(results, table, lambda numbers: [*_at_rates(rates, numbers[:-1]), numbers[-1]])
    note = (
        f"Text-to-video R@1 with the masks of Table 3; the cross-encoder gets {POLICIES[policy]} for what is masked."
    )
    table = label_table(
        results,
        f"two_stage_missing_{policy}",
        f"Two-stage retrieval under missing modalities, masked shown as {policy} (Table S4)",
        note,
        columns,
        published,
        margins=True,
    )
    if policy == "absent" and rates == [0.0]:  # all of it is in Table 1
        table.blocks = []
    return table


def _steps(run: Run) -> list[Mapping[str, Any]]:
    """Return the results with the same modalities for all clips, in ascending number of modalities."""
    return sorted(run["retrieval"].get("ladder", []), key=lambda step: len(step["modalities"]))


def ladder_table(results: RunResults) -> MetricsTable:
    """Table S5: first-stage R@1 with one set of modalities for the whole gallery."""
    # The sets of modalities of all ladders, from small to large.
    steps = []
    sets = []
    for benchmark, labels in results.runs.items():
        for step in _steps(first_run(labels)):
            steps.append((benchmark_name(benchmark), step))
            sets.append(tuple(step["modalities"]))
    sets = sorted(dict.fromkeys(sets), key=len)

    # Initials stand for modalities if they differ.
    names = dict.fromkeys(chain.from_iterable(sets))
    has_letters = len({name[0] for name in names}) == len(names)

    def short(modalities: Sequence[str]) -> str:
        if has_letters:
            return "".join(name[0].upper() for name in modalities)
        return "+".join(modalities)

    def change(run: Run, method: str | None = None) -> float | None:
        """The change from the smallest set to the largest."""
        recalls = []
        for step in _steps(run):
            measure = in_part("ladder", modalities=step["modalities"])
            recalls.append(measure(run, method))
        if not recalls or None in (recalls[0], recalls[-1]):
            return None
        return recalls[-1] - recalls[0]

    # A column for each set, then the change, whose heading names the smallest set if it is the same everywhere.
    columns = []
    for modalities in sets:
        columns.append(Column("", short(modalities), in_part("ladder", modalities=list(modalities))))
    firsts = {short(modalities[:1]) for modalities in sets}
    first = "first"
    if len(firsts) == 1:
        (first,) = firsts
    columns.append(Column("", f"Δ {first}→all", change, signed=True))
    table = paper.LADDER if sets == ladder(PAPER_MODALITIES) else {}
    published = _beside(results, table, lambda numbers: (*numbers, numbers[-1] - numbers[0]))

    # The note explains the initials, and names the clips that a smaller set loses.
    note = "Text-to-video R@1 of the first stage, each label's own score, the same modalities for all clips"
    if has_letters and names:
        initials = [f"{short([name])} {name}" for name in names]
        note += f" ({', '.join(initials)})"
    note += "."
    lost = []
    for benchmark, step in steps:
        if step["num_unscorable_clips"]:
            lost.append(f"{benchmark} {short(step['modalities'])} {step['num_unscorable_clips']}")
    if lost:
        note += f" Clips that have none of them and cannot be found: {', '.join(lost)}."
    return label_table(results, "ladder", "Modality-subset ladder (Table S5)", note, columns, published)


def classification_table(results: RunResults) -> MetricsTable:
    """Table S6: class labels as queries; each clip ranks them, first stage."""
    # The own score first, then other scores of the same embeddings.
    methods = (None, *modalities_of(results), "uniform")
    columns = []
    for method in methods:
        title = "own score"
        if method is not None:
            title = method_title(method)
        for k in (1, 10):
            measure = first_stage(f"video_to_text_recall_at_{k}")
            columns.append(Column(title, f"Acc@{k}", measure, method=method))

    def published(numbers: Numbers) -> list[float | None]:
        # Two numbers for each method; the paper may lack some.
        by_method = {None: numbers[:2], "video": numbers[2:4], "audio": numbers[4:]}
        row: list[float | None] = []
        for method in methods:
            row += by_method.get(method) or (None, None)
        return row

    return label_table(
        results,
        "classification",
        "Classification as retrieval (Table S6)",
        "Each clip ranks the class labels; first stage; single pathways and equal weights on the same embeddings.",
        columns,
        _beside(results, paper.CLASSIFICATION, published),
    )


def seeds_table(results: RunResults) -> MetricsTable:
    """Table S8: mean, sample deviation and 95 % t interval over seeds; single runs next to them."""

    def interval(measure: Measure) -> Callable[[Seeds], str]:
        def text(seeds: Seeds) -> str:
            numbers = list(values(seeds, measure).values())
            if len(numbers) < 2:
                return ""
            bounds = seed_interval(numbers)
            return f"[{bounds['low']:.1f}, {bounds['high']:.1f}]"

        return text

    columns = []
    for group, measure in (("first stage R@1", first_stage()), ("two-stage R@1", two_stage())):
        columns += [Column(group, "mean", measure), Column(group, "95 % interval", text=interval(measure))]

    def published(benchmark: str) -> Published:
        single = paper.published({benchmark: paper.TWO_STAGE.get(benchmark, {})}, benchmark)
        seeds = paper.published(paper.SEEDS, benchmark)
        rows: dict[str, Sequence[float | str | Cell | None]] = {}
        for name, (mean, deviation, low, high) in seeds.items():
            rows[name] = (None, "", Cell((mean,), published_deviation=deviation), f"[{low:.1f}, {high:.1f}]")
        # Single runs stand beside them.
        for variant in ("gram", "pmrl", "hypergram"):
            name = f"paper: {paper.VARIANTS[variant]}"
            if seeds and name in single:
                rows[name] = (None, "", single[name][0], "")
        return rows

    note = "Text to video. Intervals are Student's t over seeds; a single run has no deviation."
    return label_table(results, "seeds", "Seed statistics (Table S8)", note, columns, published)


def _sign_row(claim: str, cells: str, wins: int, ties: int, losses: int) -> Row:
    row = [claim, cells]
    for number in (wins, ties, losses):
        row.append(Cell((float(number),), digits=0))
    p_value = ""
    if wins + losses:
        p_value = f"{sign_test(wins, losses):.2g}"
    return [*row, p_value]


def sign_table(results: RunResults) -> MetricsTable:
    """Sign tests of "Statistical Support": margins over the baseline in Table 3, negative gains in Table 4."""
    columns = _columns_at(rates_of(results), partial(first_stage, R1))
    base = results.baseline
    rows = []
    for label in results.all_labels():
        # Margins over the baseline in every cell of Table 3, and their means over rates.
        by_cell: list[float] = []
        by_benchmark = []
        for labels in results.runs.values():
            if base in labels and label in labels and label != base:
                row = margin_row(columns, labels[label], labels[base])
                margins = [cell.mean for cell in row if cell.values]
                if margins:
                    by_cell += margins
                    by_benchmark.append(Cell(tuple(margins)).mean)
        for cells, numbers in (("rates and benchmarks", by_cell), ("benchmarks", by_benchmark)):
            signs = [(number > 0) - (number < 0) for number in numbers]
            if len(signs) > 1:
                claim = f"{label_name(label)} above {label_name(base)}"
                rows.append(_sign_row(claim, cells, signs.count(1), signs.count(0), signs.count(-1)))

    # The gains of the scores that the paper's claim on symmetric scores covers; a plugin's may be unknown here.
    gains = []
    names = {}
    for labels in results.runs.values():
        for label, seeds in labels.items():
            method = next(iter(seeds.values()))["score"]["method"]
            numbers = tuple(values(seeds, gain()).values())
            if numbers and method in METHODS and METHODS[method].is_symmetric:
                names[label_name(label)] = None
                gains.append(Cell(numbers).mean)
    if len(gains) > 1:
        negative = sum(number < 0 for number in gains)
        claim = f"negative gain: {', '.join(names)}"
        rows.append(_sign_row(claim, "labels and benchmarks", negative, 0, len(gains) - negative))

    note = (
        "Exact, one-sided; ties are left out, but a gain of 0 counts as not negative, as in the paper. Cells that "
        "share masks or a model are not independent."
    )
    columns = ungrouped("claim", "cells", "for", "ties", "against", "p")
    return MetricsTable("sign_tests", "Sign tests over the cells of Tables 3 and 4", note, columns, [rows], 2)


def latent_table(results: RunResults) -> MetricsTable:
    """The numbers of "Latent-Space Analysis"."""

    def measure(*path: str) -> Measure:
        def find(run: Run, method: str | None = None) -> float | None:
            found = run.get("latent")
            for name in path:
                found = (found or {}).get(name)
            return found

        return find

    modalities = modalities_of(results)
    columns = [
        Column("", "classes", measure("num_classes"), digits=0),
        Column("", "text–centroid cosine", measure("text_centroid_cosine"), digits=2),
    ]
    for modality in modalities:
        columns.append(Column("silhouette", modality, measure("silhouette", modality), digits=2))

    def published(benchmark: str) -> Published:
        rows = {}
        for name, (cosine, audio) in paper.published(paper.LATENT, benchmark).items():
            silhouettes = {"audio": Cell((audio,), digits=2)}
            rows[name] = (None, Cell((cosine,), digits=2), *map(silhouettes.get, modalities))
        return rows

    note = "Means over classes, cosine distance in the space of the embeddings."
    return label_table(results, "latent", "Latent space (Figure S1)", note, columns, published)


__all__ = [
    "POLICIES",
    "ablation_table",
    "classification_table",
    "components_table",
    "gain_missing_table",
    "gain_table",
    "ladder_table",
    "latent_table",
    "missing_table",
    "retrieval_table",
    "seeds_table",
    "sign_table",
    "transfer_first_stage_table",
    "transfer_table",
    "two_stage_missing_table",
]
