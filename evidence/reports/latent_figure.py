"""The figure of the latent space: texts and clips of some classes in one projection per model (SCALAR Fig. S1)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE

from evidence.latent import clips_of, latent_space
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.reports.figures import COLOURS

_MARKERS = {"text": "*", "video": "s", "audio": "^", "subtitle": "o"}
_FURTHER_MARKERS = "DvPX<>ph"
_TEXT_STYLE = {"s": 190, "edgecolor": "black", "zorder": 3}  # on top of the clips, with an outline
_CLIP_STYLE = {"s": 22, "linewidth": 0, "alpha": 0.7}
_NUM_CLASSES = 3
_MAX_PERPLEXITY = 30


def _markers(names: Iterable[str]) -> dict[str, str]:
    others = cycle(_FURTHER_MARKERS)
    markers = {}
    for name in names:
        markers[name] = _MARKERS.get(name) or next(others)
    return markers


def _chosen_classes(measured: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the classes that improve most over the first model in all others; for one model those with the best
    cosine; the first ones if none has a cosine."""
    # The cosines of each class, in the order of the models.
    cosines: dict[str, list[float | None]] = {}
    for space in measured.values():
        for entry in space["classes"]:
            cosines.setdefault(entry["label"], []).append(entry["text_centroid_cosine"])

    values = {}
    for label, (first, *others) in cosines.items():
        if None in (first, *others):
            continue
        values[label] = first
        if others:
            values[label] = min(others) - first
    ordered = sorted(values, key=values.__getitem__, reverse=True) or list(cosines)
    return ordered[:_NUM_CLASSES]


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
    for name, value in space["silhouette"].items():
        named[f"{name} silhouette"] = value
    lines = []
    for name, value in named.items():
        if value is not None:
            lines.append(f"{name} {value:.2f}".replace("-", "−"))
    lines.append(f"(all {space['num_classes']} classes)")
    return "\n".join(lines)


def plot_latent(
    models: Mapping[str, Embeddings], path: str | os.PathLike, classes: Sequence[str] | None = None
) -> None:
    """
    Draw texts and the modalities of clips of some classes in one t-SNE projection per model.

    Args:
        models (`Mapping[str, Embeddings]`): models by name, with the same classes; each gets a panel.
        path (`str` or `os.PathLike`): file to write; its suffix sets the format.
        classes (`Sequence[str]`, *optional*): labels to draw, at most seven. By default the three whose text-centroid
            cosine improves most over the first model in all others (the paper's choice; the smallest improvement
            counts), or for a single model the three with the highest cosine.

    Raises:
        ValueError: the queries are not classes.
    """
    measured = {name: latent_space(model) for name, model in models.items()}
    for name, space in measured.items():
        if space is None:
            raise ValueError(
                f"The queries of {name} are not classes: no query describes several clips, or several describe the "
                "same one."
            )
    if classes is None:
        classes = _chosen_classes(measured)

    # A colour for each class, a marker for texts and for each modality.
    colours = dict(zip(classes, COLOURS, strict=False))
    names = {"text": None}
    for model in models.values():
        names |= dict.fromkeys(model.modalities)
    markers = _markers(names)

    figure = Figure(figsize=(4 * len(models) + 2, 4.5), layout="constrained")
    drawn = {"text"}
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for axes, (name, model) in zip(panels, models.items(), strict=True):
        # Project all vectors of a model at once, so that their distances can be compared.
        vectors, owners = _points(model, classes)
        perplexity = min(_MAX_PERPLEXITY, (len(vectors) - 1) / 3)
        places = TSNE(metric="cosine", perplexity=perplexity, random_state=0).fit_transform(vectors)
        for label, kind in sorted(set(owners)):
            x, y = places[[owner == (label, kind) for owner in owners]].T
            style = _TEXT_STYLE if kind == "text" else _CLIP_STYLE
            axes.scatter(x, y, marker=markers[kind], color=colours[label], **style)
            drawn.add(kind)
        axes.set(xticks=[], yticks=[], title=name)
        axes.set_xlabel(_annotation(measured[name]), fontsize=9)

    # One legend for all panels: the markers that occur, then the classes.
    handles = []
    for kind, marker in markers.items():
        if kind in drawn:
            handles.append(Line2D([], [], marker=marker, linestyle="", color="grey", label=kind))
    for label, colour in colours.items():
        handles.append(Line2D([], [], linewidth=6, color=colour, label=label))
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


__all__ = ["plot_latent"]
