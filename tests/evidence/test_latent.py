"""How classes lie in the shared space: against slow loops, and where something is undefined."""

import numpy as np
import pytest
import torch

from evidence.latent import latent_space
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES


def make_classes(sizes=(5, 4, 6), strength=1.0, dim=12, seed=0, labels=("dog", "cat", "rain", "horn", "sea")):
    """Class labels as queries; clips of the classes in turn, some without audio or subtitle."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.cat([torch.full((size,), query) for query, size in enumerate(sizes)])
    classes = classes[torch.randperm(len(classes), generator=generator)]
    centres = torch.randn(len(sizes), dim, generator=generator)
    mask = torch.rand(len(classes), 3, generator=generator) < 0.8
    mask[:, 0] |= ~mask.any(dim=1)
    vectors = strength * centres[classes][:, None] + torch.randn(len(classes), 3, dim, generator=generator)
    texts = strength * centres + torch.randn(len(sizes), dim, generator=generator)
    names = list(labels[: len(sizes)])
    return Embeddings(
        text_embeds=torch.nn.functional.normalize(texts, dim=-1),
        modality_embeds=torch.nn.functional.normalize(vectors, dim=-1) * mask[..., None],
        modality_mask=mask,
        pairs=torch.stack([classes, torch.arange(len(classes))], dim=1),
        clip_ids=[f"clip{i}" for i in range(len(classes))],
        query_ids=[f"class{i}" for i in range(len(sizes))],
        captions=names,
        modalities=MODALITIES,
    )


def cosine(first, second):
    return float(np.dot(first, second) / (np.linalg.norm(first) * np.linalg.norm(second)))


def members(embeddings, query):
    return [clip for label, clip in embeddings.pairs.tolist() if label == query]


def slow_text_centroid_cosine(embeddings, query):
    total = np.zeros(embeddings.text_embeds.shape[1])
    for clip in members(embeddings, query):
        for column in (0, 1):
            if embeddings.modality_mask[clip, column]:
                total += embeddings.modality_embeds[clip, column].double().numpy()
    return cosine(embeddings.text_embeds[query].double().numpy(), total)


def slow_silhouettes(embeddings, column):
    """Rousseeuw's (b - a) / max(a, b) with cosine distances, averaged by class."""
    groups = {}
    for query in range(len(embeddings.captions)):
        present = [clip for clip in members(embeddings, query) if embeddings.modality_mask[clip, column]]
        if len(present) > 1:
            groups[query] = [embeddings.modality_embeds[clip, column].double().numpy() for clip in present]
    means = {}
    for query, own in groups.items() if len(groups) > 1 else ():
        values = []
        for i, vector in enumerate(own):
            a = np.mean([1 - cosine(vector, other) for j, other in enumerate(own) if j != i])
            b = min(np.mean([1 - cosine(vector, x) for x in other]) for q, other in groups.items() if q != query)
            values.append((b - a) / max(a, b))
        means[query] = np.mean(values)
    return means


@pytest.mark.parametrize("sizes", [(5, 4, 6), (2, 9), (7, 1, 5, 3)])
def test_numbers_agree_with_slow_loops(sizes):
    embeddings = make_classes(sizes)
    assert not embeddings.modality_mask.all()
    embeddings.modality_embeds[~embeddings.modality_mask] = torch.nan  # what is absent counts for nothing
    metrics = latent_space(embeddings)
    assert metrics["num_classes"] == len(sizes)
    assert [entry["num_clips"] for entry in metrics["classes"]] == list(sizes)
    cosines = [slow_text_centroid_cosine(embeddings, query) for query in range(len(sizes))]
    assert [entry["text_centroid_cosine"] for entry in metrics["classes"]] == pytest.approx(cosines)
    assert metrics["text_centroid_cosine"] == pytest.approx(np.mean(cosines))
    for column, name in enumerate(MODALITIES):
        expected = slow_silhouettes(embeddings, column)
        found = {
            query: entry["silhouette"][name]
            for query, entry in enumerate(metrics["classes"])
            if entry["silhouette"][name] is not None
        }
        assert found == pytest.approx(expected)
        mean = pytest.approx(np.mean(list(expected.values()))) if expected else None
        assert metrics["silhouette"][name] == mean
