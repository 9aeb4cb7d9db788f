"""The tables of SCALAR (1 to 5, S3 to S6 and S8) and the numbers of its plots, for any models and benchmarks.

A row is a label; its seeds are shown as their mean ± sample deviation, and differences are taken seed by seed. The
paper's published values have rows of their own, marked "paper", and are used in none of our numbers.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from eval.protocol.missing import ladder
from eval.protocol.statistics import seed_interval, sign_test
from eval.reports.result_files import R1, Run, percent
from eval.reports.result_schema import method_title
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
from evidence.reports.results import Results, Seeds, benchmark_name, first_run, label_name
from evidence.reports.tables import Cell, Row, Table
from modeling_scalar.scores_scalar import METHODS, PAPER_MODALITIES

_DIRECTIONS = {"text_to_video": "T→V", "video_to_text": "V→T"}

POLICIES = {"absent": "no tokens", "zeros": "tokens of zero states (as published)"}
"""The cross-encoder's input for a masked modality, by policy."""

_R10 = "text_to_video_recall_at_10"


Numbers = tuple[float | None, ...]


def _beside(
    results: Results, table: paper.Table, choose: Callable[[Numbers], Sequence[float | str | Cell | None]] = tuple
) -> Callable[[str], Published]:
    """Return the paper's values for a benchmark: the rows of one of its tables, or a selection from each."""

    def published(benchmark: str) -> Published:
        rows = paper.published(table, benchmark, results.paper_mean)
        return {name: choose(numbers) for name, numbers in rows.items()}

    return published


def _at_rates(rates: Sequence[float], numbers: Numbers) -> list[float | None]:
    """Return the paper's values at these masking rates."""
    return list(map(dict(zip(paper.RATES, numbers, strict=True)).get, rates))


# The paper's tables -------------------------------------------------------------------------------------------------


def retrieval_table(results: Results) -> Table:
    """Table 1: both stages and both directions of every label on every benchmark."""
    columns = [
        Column(f"{stage} {arrow}", f"R@{k}", measure_of(f"{direction}_recall_at_{k}"))
        for stage, measure_of in (("1-stage", first_stage), ("2-stage", two_stage))
        for direction, arrow in _DIRECTIONS.items()
        for k in (1, 10)
    ]

    published = _beside(results, paper.TWO_STAGE, lambda numbers: (None, None, None, None, *numbers))
    note = (
        "1-stage: each label's own score; 2-stage: its first candidates reordered by the cross-encoder, without "
        "tokens for modalities that a clip lacks. The paper publishes its second stage here."
    )
    return label_table(results, "retrieval", "Retrieval (Table 1)", note, columns, published)


def transfer_table(results: Results) -> Table:
    """Table 2: two-stage text-to-video R@1 and R@10 across benchmarks."""
    columns = [Column("", "R@1", two_stage(R1)), Column("", "R@10", two_stage(_R10))]
    published = _beside(results, paper.TWO_STAGE, lambda numbers: numbers[:2])
    note = "Text to video; the first clips of each label's own score reordered by the cross-encoder."
    table = label_table(results, "transfer", "", note, columns, published)
    return across_benchmarks(table, "transfer", "Retrieval across benchmarks, two-stage (Table 2)")


def transfer_first_stage_table(results: Results) -> Table:
    """The layout of Table 2 for the first stage, whose R@1 is in the paper's Table S3."""
    columns = [Column("", "R@1", first_stage(R1)), Column("", "R@10", first_stage(_R10))]
    published = _beside(results, paper.COMPONENTS, lambda numbers: numbers[1:])
    table = label_table(results, "", "", "Text to video, each label's own score, no second stage.", columns, published)
    title = "Retrieval across benchmarks, first stage (layout of Table 2)"
    return across_benchmarks(table, "transfer_first_stage", title)


def missing_table(results: Results) -> Table:
    """Table 3: first-stage R@1 of each label's own score when clips lose a modality, with margins."""
    rates = rates_of(results)
    columns = [Column("", percent(rate), first_stage(R1, rate)) for rate in rates]
    published = _beside(results, paper.MISSING, partial(_at_rates, rates))
    note = "Text-to-video R@1 of the first stage, each label's own score; columns: clips that lose one modality."
    return label_table(
        results, "missing", "Retrieval under missing modalities (Table 3)", note, columns, published, margins=True
    )


def components_table(results: Results) -> Table:
    """Table S3: the strongest single pathway, the joint score on the same embeddings, and the gain between them."""

    def pathways(seeds: Seeds) -> str:
        found = (rate_entry(run, 0.0).get("best_pathway", {}).get("method", "") for run in seeds.values())
        return "/".join(dict.fromkeys(found))

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


def gain_table(results: Results) -> Table:
    """Table 4: the aggregation gain of each label's own score across benchmarks."""
    published = _beside(results, paper.COMPONENTS, lambda numbers: (numbers[1] - numbers[0],))
    note = "Text-to-video R@1 of each label's own score minus that of its strongest single pathway."
    table = label_table(results, "", "", note, [Column("", "gain", gain(), signed=True)], published)
    return across_benchmarks(table, "aggregation_gain", "Aggregation gain (Table 4)")


def gain_missing_table(results: Results) -> Table:
    """The numbers of Figure 2: the aggregation gain when clips lose a modality."""
    columns = [Column("", percent(rate), gain(rate), signed=True) for rate in rates_of(results)]
    note = "R@1 of each label's own score minus that of its strongest single pathway under the same masks."
    title = "Aggregation gain under missing modalities (Figure 2)"
    return label_table(results, "gain_missing", title, note, columns)


def _is_ablation(label: str) -> bool:
    return label.startswith(("no_", "w/o "))


def _means(results: Results, label: str, benchmarks: Sequence[str], measure: Measure) -> dict[int | None, float]:
    """Return a measure averaged over benchmarks, for each seed that has it on all of them."""
    columns = [values(results.runs[benchmark][label], measure) for benchmark in benchmarks]
    seeds = [seed for seed in columns[0] if all(seed in column for column in columns)] if columns else []
    return {seed: statistics.mean(column[seed] for column in columns) for seed in seeds}


def ablation_table(results: Results) -> Table:
    """Table 5: the effect of removing one component from the reference, seed by seed, as a mean over benchmarks."""
    reference = results.reference
    labels = dict.fromkeys(label for labels in results.runs.values() for label in labels if _is_ablation(label))
    measures = {
        "Δ two-stage": two_stage(),
        "Δ first stage": first_stage(),
        "Δ gain": gain(),
        "Δ gain at 90 %": gain(0.9),
    }
    ours = []
    for label in [reference, *labels] if reference and labels else []:
        shared = [b for b, found in results.runs.items() if label in found and reference in found]
        row = [Column("", "", two_stage()).cell(found.get(label, {})) for found in results.runs.values()]
        for heading, measure in measures.items():
            numbers = _means(results, label, shared, measure)
            if label != reference:
                row.append(Cell(tuple(changes(numbers, _means(results, reference, shared, measure))), signed=True))
            else:
                row.append(Cell(tuple(numbers.values()) if "gain" in heading else (), signed=True))
        counts = dict.fromkeys(str(len(found[label])) for found in results.runs.values() if label in found)
        name = label_name(label) + " (reference)" * (label == reference)
        ours.append([name, "/".join(counts), *row])
    tests = [benchmark for benchmark, found in results.runs.items() if first_run(found)["split"] == "test"]
    table = {b: paper.published(paper.ABLATION, b, results.paper_mean) if b in tests else {} for b in results.runs}
    # The published changes are means over all of the paper's benchmarks: shown only for exactly these benchmarks.
    known = set(paper.ABLATION) & set(results.runs)
    complete = set(results.runs) == set(paper.ABLATION) or not known
    theirs = []
    for name in dict.fromkeys(name for rows in table.values() for name in rows):
        row = [Cell(rows.get(name, ())) for rows in table.values()]
        key = next(key for key, variant in paper.VARIANTS.items() if name.endswith(f": {variant}"))
        means = paper.ABLATION_MEANS[key] if complete else (None, None, None)
        changed = (means[0], None, *means[1:])
        theirs.append([name, "", *row, *(Cell(() if m is None else (m,), signed=True) for m in changed)])
    columns = [("", "label"), ("", "n"), *(("two-stage R@1", benchmark_name(b)) for b in results.runs)]
    columns += [("", heading) for heading in measures]
    note = (
        f"Labels that begin with no_ or w/o against {label_name(reference or '')}; a Δ is taken seed by seed and "
        "is a mean over benchmarks. The row of the reference holds its gains, not changes."
    )
    blocks = [ours, theirs] if ours else []
    return Table("ablation", "Objective ablation (Table 5)", note, columns, blocks, 2)


def two_stage_missing_table(results: Results, policy: str) -> Table:
    """Table S4: two-stage R@1 when clips lose a modality, with margins and the cosine of the video alone at 90 %."""
    entries = [entry for run in results.all_runs() for entry in run["two_stage"] if entry["policy"] == policy]
    rates = sorted({entry["rate"] for entry in entries})

    def video(seeds: Seeds) -> Cell:
        masked = {s: r for s, r in seeds.items() if any(entry["policy"] == policy for entry in r["two_stage"])}
        return Cell(tuple(values(masked, first_stage(R1, 0.9), "video").values()))

    columns = [Column("", percent(rate), two_stage(R1, rate, policy)) for rate in rates]
    columns.append(Column("", "video cosine at 90 %", text=video))
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


def ladder_table(results: Results) -> Table:
    """Table S5: first-stage R@1 with one set of modalities for the whole gallery."""
    steps = {b: _steps(first_run(labels)) for b, labels in results.runs.items()}
    sets = sorted(dict.fromkeys(tuple(step["modalities"]) for found in steps.values() for step in found), key=len)
    names = dict.fromkeys(name for modalities in sets for name in modalities)
    has_letters = len({name[0] for name in names}) == len(names)

    def short(modalities: Sequence[str]) -> str:
        return "".join(name[0].upper() for name in modalities) if has_letters else "+".join(modalities)

    def change(run: Run, method: str | None = None) -> float | None:
        measures = [in_part("ladder", modalities=step["modalities"]) for step in _steps(run)]
        first, last = (measure(run, method) for measure in (measures[0], measures[-1])) if measures else (None, None)
        return None if first is None or last is None else last - first

    columns = [Column("", short(found), in_part("ladder", modalities=list(found))) for found in sets]
    firsts = {short(found[:1]) for found in sets}
    columns.append(Column("", f"Δ {firsts.pop() if len(firsts) == 1 else 'first'}→all", change, signed=True))
    table = paper.LADDER if sets == ladder(PAPER_MODALITIES) else {}
    published = _beside(results, table, lambda numbers: (*numbers, numbers[-1] - numbers[0]))
    lost = [
        f"{benchmark_name(benchmark)} {short(step['modalities'])} {step['num_unscorable_clips']}"
        for benchmark, found in steps.items()
        for step in found
        if step["num_unscorable_clips"]
    ]
    note = "Text-to-video R@1 of the first stage, each label's own score, the same modalities for all clips"
    note += f" ({', '.join(f'{short([name])} {name}' for name in names)})." if has_letters and names else "."
    note += f" Clips that have none of them and cannot be found: {', '.join(lost)}." if lost else ""
    return label_table(results, "ladder", "Modality-subset ladder (Table S5)", note, columns, published)


def classification_table(results: Results) -> Table:
    """Table S6: class labels as queries; each clip ranks them, first stage."""
    methods = (None, *modalities_of(results), "uniform")
    columns = [
        Column(
            "own score" if method is None else method_title(method),
            f"Acc@{k}",
            first_stage(f"video_to_text_recall_at_{k}"),
            method=method,
        )
        for method in methods
        for k in (1, 10)
    ]

    def published(numbers: Numbers) -> list[float | None]:
        by_method = {
            method: numbers[2 * place : 2 * place + 2] for place, method in enumerate((None, "video", "audio"))
        }
        return [number for method in methods for number in by_method.get(method) or (None, None)]

    return label_table(
        results,
        "classification",
        "Classification as retrieval (Table S6)",
        "Each clip ranks the class labels; first stage; single pathways and equal weights on the same embeddings.",
        columns,
        _beside(results, paper.CLASSIFICATION, published),
    )


def seeds_table(results: Results) -> Table:
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
        rows: dict[str, Sequence[float | str | Cell | None]] = {
            name: (None, "", Cell((mean,), published_deviation=deviation), f"[{low:.1f}, {high:.1f}]")
            for name, (mean, deviation, low, high) in seeds.items()
        }
        for variant in ("gram", "pmrl", "hypergram"):
            name = f"paper: {paper.VARIANTS[variant]}"
            if seeds and name in single:
                rows[name] = (None, "", single[name][0], "")
        return rows

    note = "Text to video. Intervals are Student's t over seeds; a single run has no deviation."
    return label_table(results, "seeds", "Seed statistics (Table S8)", note, columns, published)


def _sign_row(claim: str, cells: str, wins: int, ties: int, losses: int) -> Row:
    p = f"{sign_test(wins, losses):.2g}" if wins + losses else ""
    return [claim, cells, *(Cell((float(count),), digits=0) for count in (wins, ties, losses)), p]


def _is_symmetric(method: str) -> bool:
    """Whether the paper's claim on symmetric scores covers this one; a plugin's score may be unknown here."""
    return method in METHODS and METHODS[method].is_symmetric


def sign_table(results: Results) -> Table:
    """Sign tests of "Statistical Support": margins over the baseline in Table 3, negative gains in Table 4."""
    at_rates, base = [Column("", "", first_stage(R1, rate)) for rate in rates_of(results)], results.baseline
    rows = []
    for label in dict.fromkeys(label for labels in results.runs.values() for label in labels):
        margins = []
        for labels in results.runs.values():
            if base in labels and label in labels and label != base:
                row = margin_row(at_rates, labels[label], labels[base])
                margins.append([cell.mean for cell in row if cell.values])
        by_benchmark = [Cell(tuple(found)).mean for found in margins if found]
        by_cell = [margin for found in margins for margin in found]
        for cells, numbers in (("rates and benchmarks", by_cell), ("benchmarks", by_benchmark)):
            signs = [(n > 0) - (n < 0) for n in numbers]
            if len(signs) > 1:
                claim = f"{label_name(label)} above {label_name(base)}"
                rows.append(_sign_row(claim, cells, signs.count(1), signs.count(0), signs.count(-1)))
    gains = {
        (label_name(label), benchmark): Cell(tuple(numbers)).mean
        for benchmark, labels in results.runs.items()
        for label, seeds in labels.items()
        if _is_symmetric(next(iter(seeds.values()))["score"]["method"]) and (numbers := values(seeds, gain()).values())
    }
    if len(gains) > 1:
        negative = sum(number < 0 for number in gains.values())
        claim = f"negative gain: {', '.join(dict.fromkeys(label for label, _ in gains))}"
        rows.append(_sign_row(claim, "labels and benchmarks", negative, 0, len(gains) - negative))
    note = (
        "Exact, one-sided; ties are left out, but a gain of 0 counts as not negative, as in the paper. Cells that "
        "share masks or a model are not independent."
    )
    columns = [("", name) for name in ("claim", "cells", "for", "ties", "against", "p")]
    return Table("sign_tests", "Sign tests over the cells of Tables 3 and 4", note, columns, [rows] if rows else [], 2)


def latent_table(results: Results) -> Table:
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
        *(Column("silhouette", modality, measure("silhouette", modality), digits=2) for modality in modalities),
    ]

    def published(benchmark: str) -> Published:
        rows = paper.published(paper.LATENT, benchmark)
        return {
            name: (
                None,
                Cell((cosine,), digits=2),
                *(Cell((audio,), digits=2) if m == "audio" else None for m in modalities),
            )
            for name, (cosine, audio) in rows.items()
        }

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
