"""Figures: scores under masks, aggregation gain against the masking rate, and weights of queries."""

import os
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scalar_retrieval.modeling_scalar.scores_scalar import method_title

from .result_files import R1, Run
from .tables import percent

# Okabe and Ito's colours, distinguishable with all common colour blindness. The paper's modalities have the same ones
# in every figure; others get the remaining ones and some of Tol's.
_MODALITY_COLOURS = {"video": "#E69F00", "audio": "#56B4E9", "subtitle": "#009E73"}
_FURTHER_COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#882255", "#332288", "#999999", "#DDCC77", "#F0E442")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_LINES = [*zip(COLOURS, _MARKERS, ["-"] * 7, strict=True), *zip(COLOURS, _MARKERS, ["--"] * 7, strict=True)]

_CAPTION_WIDTH = 66
_WEIGHT = "weight_"  # before the names of modalities, in the table of queries


def _colours(modalities: Iterable[str]) -> dict[str, str]:
    others = cycle(_FURTHER_COLOURS)
    return {name: _MODALITY_COLOURS.get(name) or next(others) for name in modalities}


def _plot_recall(axes: Axes, run: Run) -> None:
    """Draw dots per method, darker the less is masked, with the strongest pathway of the plain protocol as a line."""
    rates = run["retrieval"]["rates"]
    first = rates[0]["methods"]
    methods = sorted(first, key=lambda method: first[method][R1])

    # The plain protocol is drawn last, over the others, in blue; the rest in shades of grey.
    for place, entry in reversed([*enumerate(rates)]):
        shade = str(0.85 * place / (len(rates) - 1)) if place > 0 else "#0072B2"
        recalls = [entry["methods"][method][R1] for method in methods]
        axes.scatter(recalls, range(len(methods)), s=34, color=shade, zorder=3, label=percent(entry["rate"]))
    # Joint scores right of this line gain by aggregation.
    label = f"best pathway, {percent(rates[0]['rate'])}"
    axes.axvline(rates[0]["best_pathway"][R1], color="black", linestyle="--", linewidth=1, label=label)

    # Names in the colours of their modalities, the own score in bold.
    axes.set_yticks(range(len(methods)), map(method_title, methods))
    axes.set_ylim(-0.6, len(methods) - 0.4)
    colours = _colours(rates[0]["mean_weight"])
    for tick, method in zip(axes.get_yticklabels(), methods, strict=True):
        tick.set_color(colours.get(method, "black"))
        if method == run["score"]["method"]:
            tick.set_fontweight("bold")
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.set_xlabel("text-to-video R@1 (%)")


def _plot_mean_weights(axes: Axes, rates: Sequence[Mapping[str, Any]]) -> None:
    """Draw a bar for each masking rate, in which the modalities stand on each other."""
    bottom = np.zeros(len(rates))
    for modality, colour in _colours(rates[0]["mean_weight"]).items():
        heights = np.array([entry["mean_weight"][modality] for entry in rates])
        bars = axes.bar(range(len(rates)), heights, 0.7, bottom=bottom, color=colour, label=modality)
        labels = [f"{height:.2f}" if height >= 0.03 else "" for height in heights]  # a lower bar has no room for it
        axes.bar_label(bars, labels, label_type="center", fontsize=8)
        bottom = bottom + heights
    axes.set_ylim(0, 1)
    axes.set_xticks(range(len(rates)), [percent(entry["rate"]) for entry in rates])
    axes.set_xlabel("masking rate")
    axes.set_ylabel("mean weight at the relevant clip")


def plot_results(results: Run, path: str | os.PathLike) -> None:
    """
    Draw R@1 of every score at every masking rate (left) and the mean weight of each modality (right).
    The suffix of `path` sets the format.

    Args:
        results (`dict`): content of a `results.json`; the model's own score is in bold.
        path (`str`): file to write.
    """
    rates = results["retrieval"]["rates"]
    # Wide enough for a bar of each rate, high enough for a line of each score.
    height = 1.8 + 0.26 * len(rates[0]["methods"])
    figure = Figure(figsize=(6.5 + 0.6 * len(rates), max(3.2, height)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(6, 1.5 + 0.6 * len(rates)))
    _plot_recall(left, results)
    _plot_mean_weights(right, rates)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def plot_gain(panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]], path: str | os.PathLike) -> None:
    """
    Draw the aggregation gain against the masking rate (SCALAR Fig. 2): means over seeds, bands of their deviation.

    Args:
        panels (`dict`): gains of the seeds by benchmark, label and masking rate, with display names. The first labels
            get the colours that differ most.
        path (`str`): file to write.
    """
    # A label has the same colour, marker and style in every panel.
    styles = {}
    for lines in panels.values():
        for label in lines:
            styles.setdefault(label, _LINES[len(styles) % len(_LINES)])
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1.5 + 3.6 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)

    # A panel per benchmark; a band where every rate has several seeds.
    handles = {}
    for axes, (benchmark, lines) in zip(grid, panels.items(), strict=False):
        axes.axhline(0, color="black", linewidth=0.8)
        ticks = set()
        for label, (colour, marker, style) in styles.items():
            if label not in lines:
                continue
            rates = sorted(lines[label])
            gains = list(map(lines[label].get, rates))
            means = np.array(list(map(statistics.mean, gains)))
            x = 100 * np.array(rates)
            ticks.update(x)
            (handles[label],) = axes.plot(
                x, means, color=colour, marker=marker, linestyle=style, markersize=4.5, label=label
            )
            if min(map(len, gains)) > 1:
                deviations = np.array(list(map(statistics.stdev, gains)))
                axes.fill_between(x, means - deviations, means + deviations, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(benchmark, fontsize=10)
        axes.set_xticks(sorted(ticks))
        axes.set_xlabel("clips that lose a modality (%)")
        axes.set_ylabel("aggregation gain (points of R@1)")
        axes.spines[["top", "right"]].set_visible(False)

    # One legend for all panels, in the order of the styles.
    in_order = list(map(handles.get, styles))
    figure.legend(in_order, [*styles], loc="outside right upper", frameon=False, fontsize=8, handlelength=3.5)
    figure.savefig(path, dpi=150)


def plot_query_weights(queries: Mapping[str, Sequence[Any]], path: str | os.PathLike) -> None:
    """
    Draw the weights of every query at its relevant clip, and list the four captions that rely most on each modality.

    Queries are placed side by side, grouped by the modality that decides them, in the order of its weight.

    Args:
        queries (`dict`): columns `caption`, `weight_<modality>` of each modality (summing to 1) and `decided`, the
            modality of the largest weight, as in `queries.parquet`.
        path (`str`): file to write.
    """
    # Queries in the order of the modality that decides them, and of its weight.
    columns = [name for name in queries if name.startswith(_WEIGHT)]
    modalities = [name.removeprefix(_WEIGHT) for name in columns]
    colours = _colours(modalities)
    weights = np.array(list(map(queries.get, columns)), dtype=float)  # (M, Q)
    decided = np.array(list(map(modalities.index, queries["decided"])))
    order = np.lexsort((-weights[decided, np.arange(len(decided))], decided))
    figure = Figure(figsize=(11, 4.2 * max(1, len(modalities) / 3)), layout="constrained")
    axes, text = figure.subplots(1, 2, width_ratios=(1.1, 1))

    # Left: the weights, stacked to 1, group by group.
    start = 0
    for index in range(len(modalities)):
        group = order[decided[order] == index]
        first = np.roll(np.arange(len(modalities)), -index)  # the deciding modality is at the bottom
        axes.stackplot(
            np.arange(start, start + len(group) + 1),
            weights[np.ix_(first, np.append(group, group[-1:]))],  # a step also needs its right end
            colors=[colours[modalities[modality]] for modality in first],
            step="post",
            linewidth=0,
        )
        start += len(group)
    axes.set_xlim(0, len(order))
    axes.set_ylim(0, 1)
    axes.set_xlabel("queries, by the modality that decides them and its weight")
    axes.set_ylabel("weight at the relevant clip")
    patches = [Patch(color=colour, label=modality) for modality, colour in colours.items()]
    axes.legend(handles=patches, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)

    # Right: the captions of the largest weights.
    text.axis("off")
    lines = []
    for index, (modality, colour) in enumerate(colours.items()):
        members = order[decided[order] == index]
        share = len(members) / len(order)
        lines.append((f"{modality} decides {len(members)} queries ({share:.0%})", colour, "bold"))
        for query in members[:4]:
            caption = textwrap.shorten(queries["caption"][query], _CAPTION_WIDTH, placeholder=" …")
            lines.append((f"{weights[index, query]:.2f}  {caption}", "black", "normal"))
        lines.append(("", "black", "normal"))
    for place, (line, colour, weight) in enumerate(lines):
        height = 1.02 - 1.04 * place / len(lines)
        text.text(0, height, line, color=colour, fontweight=weight, fontsize=8.5, va="top", parse_math=False)
    figure.savefig(path, dpi=150)


__all__ = ["COLOURS", "plot_gain", "plot_query_weights", "plot_results"]
