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

from eval.embedding.embeddings import Embeddings
from eval.reports.figures import COLOURS
from evidence.latent import clips_of, latent_space

_MARKERS = {"text": "*", "video": "s", "audio": "^", "subtitle": "o"}
_FURTHER_MARKERS = "DvPX<>ph"
_TEXT_STYLE = {"s": 190, "edgecolor": "black", "zorder": 3}  # on top of the clips, with an outline
_CLIP_STYLE = {"s": 22, "linewidth": 0, "alpha": 0.7}
_NUM_SHOWN = 3
_MAX_PERPLEXITY = 30


def _markers(names: Iterable[str]) -> dict[str, str]:
    others = cycle(_FURTHER_MARKERS)
    return {name: _MARKERS[name] if name in _MARKERS else next(others) for name in names}


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
    markers = _markers(dict.fromkeys(("text", *names)))

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


__all__ = ["plot_latent"]
