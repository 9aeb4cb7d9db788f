"""Figures: scores under masks, aggregation gain against the masking rate, weights of queries, and the latent space."""

import os
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from sklearn.manifold import TSNE

from eval.embedding.embeddings import Embeddings
from eval.protocol.latent import clips_of, latent_space
from eval.reports.result_files import R1, Run, percent
from eval.reports.result_schema import method_title

# Okabe and Ito's colours, distinguishable with all common colour blindness. The paper's modalities have the same ones
# in every figure; others get the remaining ones and some of Tol's.
_MODALITY_COLOURS = {"video": "#E69F00", "audio": "#56B4E9", "subtitle": "#009E73"}
_FURTHER_COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#882255", "#332288", "#999999", "#DDCC77", "#F0E442")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = [(colour, marker, style) for style in ("-", "--") for colour, marker in zip(COLOURS, "osD^vPX", strict=True)]

_CAPTION_WIDTH = 66
_WEIGHT = "weight_"  # before the names of modalities, in the table of queries

# Of the latent space.
_MARKERS = {"text": "*", "video": "s", "audio": "^", "subtitle": "o"}
_FURTHER_MARKERS = "DvPX<>ph"
_TEXT_STYLE = {"s": 190, "edgecolor": "black", "zorder": 3}  # on top of the clips, with an outline
_CLIP_STYLE = {"s": 22, "linewidth": 0, "alpha": 0.7}
_NUM_SHOWN = 3
_MAX_PERPLEXITY = 30


def _styles(known: Mapping[str, str], further: Sequence[str], names: Iterable[str]) -> dict[str, str]:
    """Return a style for each name: the known one, or else the next of the further ones, cycling through them."""
    others = cycle(further)
    return {name: known[name] if name in known else next(others) for name in names}


def _colours(modalities: Iterable[str]) -> dict[str, str]:
    return _styles(_MODALITY_COLOURS, _FURTHER_COLOURS, modalities)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _plot_recall(axes: Axes, run: Run) -> None:
    """Draw dots per method, darker the less is masked, with the strongest pathway of the plain protocol as a line."""
    rates = run["retrieval"]["rates"]
    first = rates[0]["methods"]
    methods = sorted(first, key=lambda method: first[method][R1])
    for place, entry in reversed(list(enumerate(rates))):
        shade = str(0.85 * place / max(1, len(rates) - 1)) if place else "#0072B2"
        recalls = [entry["methods"][method][R1] for method in methods]
        axes.scatter(recalls, range(len(methods)), s=34, color=shade, zorder=3, label=percent(entry["rate"]))
    best = rates[0]["best_pathway"]
    axes.axvline(
        best[R1], color="black", linestyle="--", linewidth=1, label=f"best pathway, {percent(rates[0]['rate'])}"
    )
    names = [method_title(method) for method in methods]
    own = run["score"]["method"]
    axes.set_yticks(range(len(methods)), names)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    colours = _colours(rates[0]["mean_weight"])
    for tick, method in zip(axes.get_yticklabels(), methods, strict=True):
        tick.set_color(colours.get(method, "black"))
        tick.set_fontweight("bold" if method == own else "normal")
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.set_xlim(left=0)
    axes.set_xlabel("text-to-video R@1 (%)")


def _plot_mean_weights(axes: Axes, rates: Sequence[Mapping[str, Any]]) -> None:
    bottom = [0.0] * len(rates)
    for modality, colour in _colours(rates[0]["mean_weight"]).items():
        heights = [entry["mean_weight"][modality] for entry in rates]
        bars = axes.bar(range(len(rates)), heights, 0.7, bottom=bottom, color=colour, label=modality)
        axes.bar_label(bars, [f"{h:.2f}" if h >= 0.03 else "" for h in heights], label_type="center", fontsize=8)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
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
    height = 1.8 + 0.26 * len(rates[0]["methods"])
    figure = Figure(figsize=(6.5 + 0.6 * len(rates), max(3.2, height)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(6, 1.5 + 0.6 * len(rates)))
    _plot_recall(left, results)
    _plot_mean_weights(right, rates)
    for axes in (left, right):
        _plain(axes)
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
    labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(1.5 + 3.6 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (benchmark, lines) in zip(grid, panels.items(), strict=False):
        axes.axhline(0, color="black", linewidth=0.8)
        for place, label in enumerate(labels):
            if label not in lines:
                continue
            colour, marker, style = _LINES[place % len(_LINES)]
            rates = sorted(lines[label])
            means = np.array([statistics.mean(lines[label][rate]) for rate in rates])
            x = [100 * rate for rate in rates]
            axes.plot(x, means, color=colour, marker=marker, linestyle=style, markersize=4.5, label=label)
            if all(len(lines[label][rate]) > 1 for rate in rates):
                deviations = np.array([statistics.stdev(lines[label][rate]) for rate in rates])
                axes.fill_between(x, means - deviations, means + deviations, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(benchmark, fontsize=10)
        axes.set_xticks(sorted({100 * rate for gains in lines.values() for rate in gains}))
        axes.set_xlabel("clips that lose a modality (%)")
        axes.set_ylabel("aggregation gain (points of R@1)")
        _plain(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    handles = {label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    shown = [handles[label] for label in labels]
    figure.legend(shown, labels, loc="outside right upper", frameon=False, fontsize=8, handlelength=3.5)
    figure.savefig(path, dpi=150)


def plot_query_weights(queries: Mapping[str, Sequence[Any]], path: str | os.PathLike, num_captions: int = 4) -> None:
    """
    Draw the weights of every query at its relevant clip, and list the captions that rely most on each modality.

    Queries are placed side by side, grouped by the modality that decides them, in the order of its weight.

    Args:
        queries (`dict`): columns `caption`, `weight_<modality>` of each modality (summing to 1) and `decided`, the
            modality of the largest weight, as in `queries.parquet`.
        path (`str`): file to write.
        num_captions (`int`): captions to list per modality.
    """
    modalities = [name.removeprefix(_WEIGHT) for name in queries if name.startswith(_WEIGHT)]
    colours = _colours(modalities)
    weights = np.array([queries[f"{_WEIGHT}{modality}"] for modality in modalities], dtype=float)  # (M, Q)
    decided = np.array([modalities.index(modality) for modality in queries["decided"]])
    order = np.lexsort((-weights[decided, np.arange(len(decided))], decided))
    figure = Figure(figsize=(11, 4.2 * max(1, len(modalities) / 3)), layout="constrained")
    axes, text = figure.subplots(1, 2, width_ratios=(1.1, 1))
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
    _plain(axes)
    text.axis("off")
    lines = []
    for index, (modality, colour) in enumerate(colours.items()):
        members = [query for query in order if decided[query] == index]
        share = len(members) / len(order)
        lines.append((f"{modality} decides {len(members)} queries ({share:.0%})", colour, "bold"))
        for query in members[:num_captions]:
            caption = textwrap.shorten(queries["caption"][query], _CAPTION_WIDTH, placeholder=" …")
            lines.append((f"{weights[index, query]:.2f}  {caption}", "black", "normal"))
        lines.append(("", "black", "normal"))
    for place, (line, colour, weight) in enumerate(lines):
        height = 1.02 - 1.04 * place / len(lines)
        text.text(0, height, line, color=colour, fontweight=weight, fontsize=8.5, va="top", parse_math=False)
    figure.savefig(path, dpi=150)


def _shown_classes(measured: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the classes that improve most over the first model in all others; for one model those with the best
    cosine; the first ones if none has a cosine."""
    first, *others = [
        {entry["label"]: entry["text_centroid_cosine"] for entry in space["classes"]} for space in measured.values()
    ]
    values = {
        label: min(other[label] - cosine for other in others) if others else cosine
        for label, cosine in first.items()
        if cosine is not None and all(other[label] is not None for other in others)
    }
    return (sorted(values, key=values.__getitem__, reverse=True) or list(first))[:_NUM_SHOWN]


def _points(embeddings: Embeddings, classes: Sequence[str]) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """Return vectors of texts and present modalities, and the class and kind of each."""
    vectors, owners = [], []
    for label in classes:
        query = embeddings.captions.index(label)
        vectors.append(embeddings.text_embeds[query])
        owners.append((label, "text"))
        for clip in clips_of(embeddings, query).tolist():
            for column in embeddings.modality_mask[clip].nonzero().flatten().tolist():
                vectors.append(embeddings.modality_embeds[clip, column])
                owners.append((label, embeddings.modalities[column]))
    return torch.stack(vectors).float().numpy(), owners


def _annotation(space: dict[str, Any]) -> str:
    named = {"text–centroid cosine": space["text_centroid_cosine"]}
    named |= {f"{name} silhouette": value for name, value in space["silhouette"].items()}
    lines = [f"{name} {value:.2f}".replace("-", "−") for name, value in named.items() if value is not None]
    return "\n".join([*lines, f"(all {space['num_classes']} classes)"])


def plot_latent(
    embeddings: Embeddings | Mapping[str, Embeddings],
    path: str | os.PathLike,
    classes: Sequence[str] | None = None,
    seed: int = 0,
) -> None:
    """
    Draw texts and the modalities of clips of some classes in one t-SNE projection per model.

    Args:
        embeddings ([`Embeddings`] or `Mapping[str, Embeddings]`): one model, or several by name, with the same
            classes; each gets a panel.
        path (`str` or `os.PathLike`): file to write; its suffix sets the format.
        classes (`Sequence[str]`, *optional*): labels to draw, at most seven. By default the three whose text-centroid
            cosine improves most over the first model in all others (the paper's choice; the smallest improvement
            counts), or for a single model the three with the highest cosine.
        seed (`int`): seed of the projection.

    Raises:
        ValueError: the queries are not classes, the models differ in their classes or repeat one, or `classes` holds
            an unknown label, no label or too many.
    """
    models = {"": embeddings} if isinstance(embeddings, Embeddings) else embeddings
    measured = {name: latent_space(model) for name, model in models.items()}
    for name, space in measured.items():
        if space is None:
            raise ValueError(
                f"The queries of {name or 'the embeddings'} are not classes: no query describes several clips, "
                "or several describe the same one."
            )
    known = [sorted(model.captions) for model in models.values()]
    if not known or any(labels != sorted(set(known[0])) for labels in known):
        raise ValueError(f"Expected models of the same classes, each label once; got {known}.")
    classes = _shown_classes(measured) if classes is None else list(dict.fromkeys(classes))
    if not 0 < len(classes) <= len(COLOURS) or set(classes) - set(known[0]):
        raise ValueError(f"Expected 1 to {len(COLOURS)} of the classes {known[0]}, got {classes}.")
    colours = dict(zip(classes, COLOURS, strict=False))
    names = (name for model in models.values() for name in model.modalities)
    markers = _styles(_MARKERS, _FURTHER_MARKERS, dict.fromkeys(("text", *names)))

    figure = Figure(figsize=(4 * len(models) + 2, 4.5), layout="constrained")
    shown = {"text"}
    for axes, (name, model) in zip(figure.subplots(1, len(models), squeeze=False)[0], models.items(), strict=True):
        vectors, owners = _points(model, classes)
        perplexity = min(_MAX_PERPLEXITY, (len(vectors) - 1) / 3)
        places = TSNE(metric="cosine", perplexity=perplexity, random_state=seed).fit_transform(vectors)
        for label, kind in sorted(set(owners)):
            x, y = places[[owner == (label, kind) for owner in owners]].T
            axes.scatter(
                x, y, marker=markers[kind], color=colours[label], **(_TEXT_STYLE if kind == "text" else _CLIP_STYLE)
            )
            shown.add(kind)
        axes.set(xticks=[], yticks=[], title=name)
        axes.set_xlabel(_annotation(measured[name]), fontsize=9)
    kinds = [kind for kind in markers if kind in shown]
    handles = [Line2D([], [], marker=markers[k], linestyle="", color="grey", label=k) for k in kinds]
    handles += [Line2D([], [], linewidth=6, color=colour, label=label) for label, colour in colours.items()]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


__all__ = ["COLOURS", "plot_gain", "plot_latent", "plot_query_weights", "plot_results"]
