"""The geometry of class labels and clips in the shared space (SCALAR, "Latent-Space Analysis").

All numbers are computed in that space, with cosines.
"""

from collections.abc import Iterable
from typing import Any

import torch
from sklearn.metrics import silhouette_samples
from torch.nn import functional as F

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.measuring import has_classes

CENTROID_MODALITIES = ("video", "audio")
"""The modalities of a class centroid in the paper; a gallery must have both."""


def clips_of(embeddings: Embeddings, query: int) -> torch.LongTensor:
    """Return the rows of the clips that a query describes."""
    return embeddings.pairs[embeddings.pairs[:, 0] == query, 1]


def _text_centroid_cosine(embeddings: Embeddings, query: int) -> float | None:
    if not set(CENTROID_MODALITIES) <= set(embeddings.modalities):
        return None
    clips = clips_of(embeddings, query)
    columns = [embeddings.modalities.index(name) for name in CENTROID_MODALITIES]
    # The centroid is the mean of what the clips have of these modalities.
    mask = embeddings.modality_mask[clips][:, columns]
    present = embeddings.modality_embeds[clips][:, columns][mask]  # (vectors, D)
    if not len(present):
        return None
    return F.cosine_similarity(embeddings.text_embeds[query].double(), present.double().mean(dim=0), dim=0).item()


def _class_silhouettes(embeddings: Embeddings, modality: int) -> dict[int, float]:
    """Return the mean silhouette by query, of classes with at least two clips; empty without two such classes."""
    # A silhouette needs two clips of the class and another class.
    pairs = embeddings.pairs[embeddings.modality_mask[embeddings.pairs[:, 1], modality]]
    labels, sizes = pairs[:, 0].unique(return_counts=True)
    labels = labels[sizes > 1]
    if len(labels) < 2:
        return {}
    queries, clips = pairs[torch.isin(pairs[:, 0], labels)].unbind(dim=1)
    vectors = embeddings.modality_embeds[clips, modality].double().numpy()
    samples = torch.from_numpy(silhouette_samples(vectors, queries.numpy(), metric="cosine"))
    # A class's silhouette is the mean over its clips.
    means = {}
    for label in labels.tolist():
        means[label] = samples[queries == label].mean().item()
    return means


def _mean(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    if not defined:
        return None
    return sum(defined) / len(defined)


def latent_space(embeddings: Embeddings) -> dict[str, Any] | None:
    """
    Measure the geometry of classes in the shared space (SCALAR, "Latent-Space Analysis").

    The text-centroid cosine of a class is the cosine between its text embedding and the mean of the available video
    and audio embeddings of its clips. The silhouette of a clip in one modality, by cosine distance, compares the clips
    of its class with those of the nearest other class; clips without the modality, and classes with fewer than two
    clips that have it, are left out. Numbers of the whole set are means over classes, so that large classes do not
    count more.

    Args:
        embeddings ([`Embeddings`]): class labels as queries, each describing the clips of its class.

    Returns:
        `dict`, or `None` if the queries are not classes (see [`has_classes`]):
        `num_classes`; `text_centroid_cosine` (-1 to 1); `silhouette`, by modality (-1 to 1); and `classes`, for each
        class its `label`, `num_clips`, `text_centroid_cosine` and `silhouette`. An undefined value, of a class or of
        the whole set, is `None`: the cosine without any video or audio, or if clips can have only one of these; a
        silhouette with fewer than two clips of the class or fewer than two such classes.

    Raises:
        ValueError: an embedding that counts is not finite.
    """
    if not has_classes(embeddings):
        return None
    embeddings.check_finite()
    silhouettes = {}
    for column, name in enumerate(embeddings.modalities):
        silhouettes[name] = _class_silhouettes(embeddings, column)
    classes = []
    for query, label in enumerate(embeddings.captions):
        entry = {"label": label, "num_clips": len(clips_of(embeddings, query))}
        entry["text_centroid_cosine"] = _text_centroid_cosine(embeddings, query)
        entry["silhouette"] = {}
        for name, values in silhouettes.items():
            entry["silhouette"][name] = values.get(query)
        classes.append(entry)

    # Every class counts the same in the numbers of the whole set.
    return {
        "num_classes": len(classes),
        "text_centroid_cosine": _mean([entry["text_centroid_cosine"] for entry in classes]),
        "silhouette": {name: _mean(values.values()) for name, values in silhouettes.items()},
        "classes": classes,
    }


__all__ = ["CENTROID_MODALITIES", "clips_of", "latent_space"]
