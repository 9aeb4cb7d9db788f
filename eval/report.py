"""Result files as text for a screen and as a figure."""

import os
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_scalar.configuration_scalar import MODALITIES

NAMES = {"scalar": "SCALAR", "uniform": "uniform centroid"}
"""Names of joint scores for readers; the others are shown as they are."""

_COLUMNS = {
    "R@1": "recall_at_1",
    "R@5": "recall_at_5",
    "R@10": "recall_at_10",
    "MedR": "median_rank",
    "MeanR": "mean_rank",
}
# Okabe and Ito's colours, which stay apart under all common colour blindness. Modalities keep theirs in both panels.
_MODALITY_COLOURS = {"video": "#E69F00", "audio": "#56B4E9", "subtitle": "#009E73"}
_JOINT_COLOURS = ("#0072B2", "#999999", "#CC79A7", "#D55E00", "#F0E442")


def _name(method: str) -> str:
    return NAMES.get(method, method)


def _percent(rate: float) -> str:
    return f"{100 * rate:g} %"


def _rate_lines(entry: Mapping[str, Any], num_clips: int) -> list[str]:
    presence = ", ".join(f"{modality} {count}" for modality, count in entry["presence"].items())
    weights = ", ".join(f"{modality} {weight:.3f}" for modality, weight in entry["mean_weight"].items())
    best = entry["best_pathway"]["method"]
    lines = [
        f"masked {_percent(entry['rate'])} ({entry['num_masked_clips']} of {num_clips} clips lose a modality; "
        f"left: {presence})",
        f"{'method':<20}" + "".join(f"{column:>8}" for column in _COLUMNS) + f"{'gain':>8}",
    ]
    for method, metrics in entry["methods"].items():
        gain = entry["aggregation_gain"].get(method)
        cells = "".join(f"{metrics[f'text_to_video_{name}']:>8.1f}" for name in _COLUMNS.values())
        label = _name(method) + (" *" if method == best else "")
        lines.append(f"{label:<20}{cells}{'' if gain is None else f'{gain:>+8.1f}'}")
    return [*lines, f"mean weight at the right clip: {weights}"]


def format_table(results: Mapping[str, Any]) -> str:
    """
    Lay out the text-to-video figures of a result file as plain text, one block per masking rate.

    The gain is the R@1 of a joint score minus that of the best single pathway (marked `*`) under the same masks.
    """
    retrieval = results["retrieval"]
    lines = [
        f"{results['benchmark']} {results['split']}, text to video: {retrieval['num_queries']} captions, "
        f"{retrieval['num_clips']} clips"
    ]
    for entry in retrieval["rates"]:
        lines += ["", *_rate_lines(entry, retrieval["num_clips"])]
    lines += ["", "* best single pathway; gain: R@1 minus its R@1, under the same masks"]
    if results["problems"]:
        lines += ["what could not be read and counts as absent:", *(f"  {problem}" for problem in results["problems"])]
    return "\n".join(lines)


def _colours(methods: list[str]) -> dict[str, str]:
    joint = [method for method in methods if method not in MODALITIES]
    return _MODALITY_COLOURS | {
        method: _JOINT_COLOURS[index % len(_JOINT_COLOURS)] for index, method in enumerate(joint)
    }


def _plot_recall(axes: Axes, rates: list[Mapping[str, Any]]) -> None:
    methods = list(rates[0]["methods"])
    colours = _colours(methods)
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        positions = [group + (index - (len(methods) - 1) / 2) * width for group in range(len(rates))]
        heights = [entry["methods"][method]["text_to_video_recall_at_1"] for entry in rates]
        bars = axes.bar(positions, heights, 0.9 * width, color=colours[method], label=_name(method))
        # A white ground keeps a number readable where the line of the best pathway runs through it.
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=2, bbox=ground)
    for group, entry in enumerate(rates):
        best = entry["best_pathway"]["text_to_video_recall_at_1"]
        label = "best single pathway" if group == 0 else None
        axes.hlines(best, group - 0.42, group + 0.42, colors="black", linestyles="--", linewidth=1, label=label)
    axes.set_ylabel("text-to-video R@1 (%)")


def _plot_weights(axes: Axes, rates: list[Mapping[str, Any]]) -> None:
    bottom = [0.0] * len(rates)
    for modality in MODALITIES:
        heights = [entry["mean_weight"][modality] for entry in rates]
        bars = axes.bar(
            range(len(rates)), heights, 0.6, bottom=bottom, color=_MODALITY_COLOURS[modality], label=modality
        )
        axes.bar_label(bars, [f"{h:.2f}" if h >= 0.03 else "" for h in heights], label_type="center", fontsize=8)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylim(0, 1)
    axes.set_ylabel("mean weight at the right clip")


def plot_results(results: Mapping[str, Any], path: str | os.PathLike) -> None:
    """
    Draw R@1 of every method (left) and the mean weight of each modality (right) at every masking rate.

    The suffix of `path` decides the format.
    """
    rates = results["retrieval"]["rates"]
    figure = Figure(figsize=(5 + 2.2 * len(rates), 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.6, 1))
    _plot_recall(left, rates)
    _plot_weights(right, rates)
    for axes in (left, right):
        axes.set_xticks(range(len(rates)), [_percent(entry["rate"]) for entry in rates])
        axes.set_xlabel("masking rate")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


__all__ = ["NAMES", "format_table", "plot_results"]
