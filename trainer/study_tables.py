"""Tables and figure of the study in miniature, from the `study.json` of each run; published values stand beside ours.

Every figure is a mean over seeds, with the sample deviation where there are two or more. Differences between two
variants are taken seed by seed.
"""

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

NAMES = {
    "scalar": "SCALAR",
    "scalar_uniform": "SCALAR, uniform weights",
    "scalar_full_ft": "SCALAR, full fine-tuning",
    "no_masked_views": "w/o masked training views",
    "no_cross_arity": "w/o L_mask",
    "no_semantic": "w/o L_sem",
    "no_uniformity": "w/o L_unif",
    "gram": "GRAM",
    "pmrl": "PMRL",
    "hypergram": "HyperGRAM",
}
"""Variants by the names of the paper."""

RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Masking rates of the study, as in Table 3."""

# As published, in the order MSR-VTT, DiDeMo, ActivityNet, VATEX, AudioCaps (not reported for HyperGRAM).
PAPER_MISSING = {  # Table 3: R@1 of the first stage at 0, 25, 50, 75 and 90 % masking
    "scalar": (
        (45.2, 42.1, 39.2, 36.3, 34.5),
        (34.3, 31.1, 27.5, 24.0, 22.5),
        (34.4, 30.3, 27.4, 24.7, 23.0),
        (81.7, 78.7, 71.5, 64.0, 61.0),
        (27.1, 23.7, 20.5, 16.8, 13.9),
    ),
    "gram": (
        (38.7, 36.6, 32.4, 29.9, 27.9),
        (28.2, 24.8, 22.0, 19.7, 18.1),
        (31.0, 27.1, 23.6, 20.8, 19.5),
        (75.6, 69.8, 61.7, 53.1, 51.5),
        (22.9, 20.3, 17.0, 12.2, 10.1),
    ),
}
PAPER_COMPONENTS = {  # Table S3: R@1 of the best single pathway and of the joint score; their difference is Table 4
    "gram": ((42.1, 38.7), (32.0, 28.2), (36.8, 31.0), (77.5, 75.6), (29.0, 22.9)),
    "pmrl": ((43.7, 31.5), (38.3, 28.7), (39.8, 30.0), (81.2, 53.6), (32.0, 33.4)),
    "hypergram": ((42.5, 39.1), (32.1, 32.0), (36.3, 34.3), (78.0, 78.0)),
    "scalar_uniform": ((41.1, 34.1), (34.5, 27.0), (30.0, 26.0), (80.3, 69.1), (28.6, 28.8)),
    "scalar": ((41.2, 45.2), (35.4, 34.3), (34.1, 34.4), (81.2, 81.7), (25.7, 27.1)),
}
# Table 5: change of the two-stage R@1, of the gain, and of the gain at 90 % masking; of the full objective the gains.
PAPER_ABLATION = {
    "scalar": (None, 1.0, -0.5),
    "no_masked_views": (-0.8, -6.5, -7.1),
    "no_cross_arity": (-0.1, -1.5, 0.0),
    "no_semantic": (-0.0, -0.9, None),
    "no_uniformity": (-0.2, -0.4, None),
}
PAPER_TWO_STAGE = {  # Tables 1 and 2: R@1 and R@10 of both stages
    "scalar": ((54.6, 84.9), (51.2, 78.9), (55.9, 87.2), (90.6, 99.6), (35.0, 74.9)),
    "scalar_full_ft": ((50.4, 82.1), (49.0, 75.7), (53.4, 85.7), (89.3, 99.3), (33.0, 73.9)),
    "gram": ((52.5, 82.5), (50.7, 76.5), (56.3, 87.0), (90.0, 100.0), (32.2, 74.3)),
    "pmrl": ((54.3, 79.5), (52.5, 79.9), (54.1, 85.3), (89.6, 98.8), (34.4, 76.3)),
    "hypergram": ((54.0, 82.0), (48.9, 76.7), (53.7, 86.2), (89.8, 100.0)),
}

_ABSENT = "–"
# Okabe and Ito's colours, which stay apart under all common colour blindness.
_CURVES = {"scalar": ("#0072B2", "o"), "gram": ("#D55E00", "s"), "no_masked_views": ("#56B4E9", "D")}
_CURVE_NAMES = {"no_masked_views": "SCALAR w/o masked training views"}

Results = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Variant to seed to the content of `study.json`."""


def load_results(folder: str | os.PathLike) -> dict[str, dict[int, dict[str, Any]]]:
    """
    Read the runs of a study that are evaluated.

    Args:
        folder (`str`): of the study; each run has a folder in it.

    Returns:
        `dict` of variants, in the order of [`NAMES`], to `dict` of seeds to the content of `study.json`.

    Raises:
        ValueError: a variant is unknown, or two runs were measured on different galleries or by different protocols.
    """
    results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in NAMES}
    protocols: dict[str, Path] = {}
    for path in sorted(Path(folder).glob("*/study.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["variant"] not in NAMES:
            raise ValueError(
                f"{path} is of the unknown variant {content['variant']!r}; expected one of {list(NAMES)}."
            )
        results[content["variant"]][content["seed"]] = content
        protocols.setdefault(json.dumps(_protocol(content)), path)
    if len(protocols) > 1:
        parts = "; ".join(f"{path}: {protocol}" for protocol, path in protocols.items())
        raise ValueError(
            f"Runs can be compared on one gallery under one protocol only, but they differ: {parts}. Remove the "
            "`study.json` of the older ones; they are evaluated again."
        )
    return {name: dict(sorted(seeds.items())) for name, seeds in results.items() if seeds}


def _protocol(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gallery": content["gallery"]["sha256"],
        "num_queries": content["retrieval"]["num_queries"],
        "mask_seed": content["retrieval"]["mask_seed"],
        "depth": content["two_stage"]["depth"],
    }


# Measures of one run ------------------------------------------------------------------------------------------------

Measure = Callable[[Mapping[str, Any]], float]


def _entry(content: Mapping[str, Any], rate: float) -> Mapping[str, Any]:
    return next(entry for entry in content["retrieval"]["rates"] if entry["rate"] == rate)


def joint(rate: float = 0.0, metric: str = "recall_at_1") -> Measure:
    """Return the measure "figure of the variant's own score, first stage, at a masking rate"."""
    return lambda run: _entry(run, rate)["methods"][run["score"]["method"]][f"text_to_video_{metric}"]


def best_pathway(rate: float = 0.0) -> Measure:
    """Return the measure "R@1 of the strongest single pathway at a masking rate"."""
    return lambda run: _entry(run, rate)["best_pathway"]["text_to_video_recall_at_1"]


def gain(rate: float = 0.0) -> Measure:
    """Return the measure "aggregation gain of the variant's own score at a masking rate"."""
    return lambda run: _entry(run, rate)["aggregation_gain"][run["score"]["method"]]


def two_stage(metric: str = "recall_at_1") -> Measure:
    """Return the measure "figure after both stages, nothing masked"."""
    return lambda run: run["two_stage"][f"text_to_video_{metric}"]


def values(results: Results, variant: str, measure: Measure) -> list[float]:
    """Return a measure of every seed of a variant; nothing for a variant that was not run."""
    return [measure(run) for run in results.get(variant, {}).values()]


def differences(results: Results, variant: str, reference: str, measure: Measure) -> list[float]:
    """Return `variant` minus `reference` for each seed that both have."""
    ours, theirs = results.get(variant, {}), results.get(reference, {})
    return [measure(ours[seed]) - measure(theirs[seed]) for seed in ours if seed in theirs]


# Tables -------------------------------------------------------------------------------------------------------------


def spread(numbers: Sequence[float], sign: bool = False) -> str:
    """Write the mean, and from two numbers on the sample deviation: `12.3 ± 0.4`."""
    if not numbers:
        return _ABSENT
    mean = _number(statistics.mean(numbers), sign)
    return mean if len(numbers) == 1 else f"{mean} ± {statistics.stdev(numbers):.1f}"


def _number(number: float | None, sign: bool = False) -> str:
    return _ABSENT if number is None else f"{number:+.1f}" if sign else f"{number:.1f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table whose columns stand below each other on a screen too."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join((cells[0].ljust(widths[0]), *others))} |"

    rule = f"| {'-' * widths[0]} | {' | '.join('-' * (width - 1) + ':' for width in widths[1:])} |"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def _paper_means(table: Sequence[Sequence[float]]) -> list[float]:
    """Mean over benchmarks of each column."""
    return [statistics.mean(column) for column in zip(*table, strict=True)]


def missing_table(results: Results) -> str:
    """Table 3: R@1 of SCALAR and GRAM under missing modalities, and the margin between them."""
    published = {name: _paper_means(table) for name, table in PAPER_MISSING.items()}
    rows = [[NAMES[name], *(spread(values(results, name, joint(rate))) for rate in RATES)] for name in published]
    margins = (differences(results, "scalar", "gram", joint(rate)) for rate in RATES)
    rows.append(["margin", *(spread(margin, sign=True) for margin in margins)])
    rows += [[f"paper: {NAMES[name]}", *map(_number, means)] for name, means in published.items()]
    margins = (ours - theirs for ours, theirs in zip(published["scalar"], published["gram"], strict=True))
    rows.append(["paper: margin", *(_number(margin, sign=True) for margin in margins)])
    return markdown(["R@1, first stage", *(f"{100 * rate:g} %" for rate in RATES)], rows)


def gain_table(results: Results) -> str:
    """Tables 4 and S3: the joint score, the best single pathway of the same model, and their difference."""
    rows = []
    for name in ("gram", "pmrl", "hypergram", "scalar_uniform", "scalar", "scalar_full_ft"):
        runs = results.get(name, {}).values()
        pathways = sorted({_entry(run, 0.0)["best_pathway"]["method"] for run in runs})
        ours = [spread(values(results, name, measure)) for measure in (joint(), best_pathway())]
        ours.append(spread(values(results, name, gain()), sign=True))
        published = [_ABSENT] * 3
        if name in PAPER_COMPONENTS:
            best, aggregate = _paper_means(PAPER_COMPONENTS[name])
            published = [_number(aggregate), _number(best), _number(aggregate - best, sign=True)]
        rows.append([NAMES[name], *ours, ", ".join(pathways) or _ABSENT, *published])
    header = ["", "joint R@1", "best pathway R@1", "gain", "best pathway"]
    return markdown([*header, "paper: joint", "paper: best", "paper: gain"], rows)


def ablation_table(results: Results) -> str:
    """Table 5: what the removal of one component changes, seed by seed."""
    rows = []
    for name, published in PAPER_ABLATION.items():
        ours = [spread(values(results, name, two_stage()))]
        if name == "scalar":
            ours += [_ABSENT, *(spread(values(results, name, gain(rate)), sign=True) for rate in (0.0, 0.9))]
        else:
            changes = (differences(results, name, "scalar", measure) for measure in (two_stage(), gain(), gain(0.9)))
            ours += [spread(change, sign=True) for change in changes]
        label = "full objective (gains, no changes)" if name == "scalar" else NAMES[name]
        rows.append([label, *ours, *(_number(number, sign=True) for number in published)])
    changes = ["Δ two-stage", "Δ gain", "Δ gain at 90 %"]
    return markdown(["", "two-stage R@1", *changes, *(f"paper: {change}" for change in changes)], rows)


def absolute_table(results: Results) -> str:
    """Every variant that was run: both stages, nothing masked."""
    rows = []
    measures = (joint(), joint(metric="recall_at_10"), two_stage(), two_stage("recall_at_10"))
    for name, runs in results.items():
        published = _paper_means(PAPER_TWO_STAGE[name]) if name in PAPER_TWO_STAGE else [None, None]
        ours = (spread(values(results, name, measure)) for measure in measures)
        rows.append([NAMES[name], ", ".join(map(str, runs)), *ours, *map(_number, published)])
    stages = ["R@1", "R@10", "two-stage R@1", "two-stage R@10"]
    return markdown(["", "seeds", *stages, *(f"paper: {stage}" for stage in stages[2:])], rows)


def write_report(results: Results) -> str:
    """
    Write all tables as Markdown that reads well on a screen.

    Args:
        results: of [`load_results`].

    Raises:
        ValueError: there are no results.
    """
    if not results:
        raise ValueError("No run of the study is evaluated yet; there is nothing to report.")
    run = next(iter(next(iter(results.values())).values()))
    retrieval = run["retrieval"]
    parts = (
        f"{run['benchmark']} {run['split']}, text to video, in percent: {retrieval['num_queries']} captions, "
        f"{retrieval['num_clips']} clips (gallery SHA-256 {run['gallery']['sha256'][:12]}), mask seed "
        f"{retrieval['mask_seed']}; the second stage reorders the first {run['two_stage']['depth']} clips. Mean over "
        "seeds ± sample deviation; a difference is taken seed by seed.\n\n"
        'What is marked "paper" is the mean over the benchmarks that the paper reports (HyperGRAM: four of five): '
        "another backbone on other data, beside these figures for their signs and sizes only.",
        f"## Retrieval under missing modalities (Table 3)\n\n{missing_table(results)}",
        f"## Aggregation gain and its components (Tables 4 and S3)\n\n{gain_table(results)}",
        f"## Objective ablation (Table 5)\n\n{ablation_table(results)}",
        f"## All variants, nothing masked\n\n{absolute_table(results)}",
    )
    return "\n\n".join(parts) + "\n"


def plot_gain(results: Results, path: str | os.PathLike) -> None:
    """Draw the aggregation gain against the masking rate: means over seeds, and bands of the sample deviation."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="black", linewidth=0.8)
    rates = [100 * rate for rate in RATES]
    for name, (colour, marker) in _CURVES.items():
        columns = [values(results, name, gain(rate)) for rate in RATES]
        if not columns[0]:
            continue
        means = [statistics.mean(column) for column in columns]
        axes.plot(rates, means, color=colour, marker=marker, label=_CURVE_NAMES.get(name, NAMES[name]))
        if len(columns[0]) > 1:
            deviations = [statistics.stdev(column) for column in columns]
            low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
            axes.fill_between(rates, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xticks(rates)
    axes.set_xlabel("clips that lose a modality (%)")
    axes.set_ylabel("aggregation gain (points of R@1)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


__all__ = [
    "NAMES",
    "RATES",
    "ablation_table",
    "absolute_table",
    "best_pathway",
    "differences",
    "gain",
    "gain_table",
    "joint",
    "load_results",
    "markdown",
    "missing_table",
    "plot_gain",
    "spread",
    "two_stage",
    "values",
    "write_report",
]
