"""How classes lie in the shared space, against slow loops, and where something is undefined."""

import numpy as np
import pytest
import torch

from evidence.latent import latent_space
from tests.eval.slow import make_embeddings


def slow_silhouettes(vectors, labels):
    """Rousseeuw's (b - a) / max(a, b) with cosine distances, averaged by class, of classes with two clips or more."""
    distances, values = 1 - vectors @ vectors.T, {}
    known = [label for label in set(labels.tolist()) if (labels == label).sum() > 1]
    for place, own in enumerate(labels):
        means = {label: distances[place, (labels == label) & (np.arange(len(labels)) != place)] for label in known}
        if own in known and len(known) > 1:
            inside = means.pop(own).mean()
            outside = min(others.mean() for others in means.values())
            values.setdefault(own, []).append((outside - inside) / max(inside, outside))
    return {label: np.mean(found) for label, found in values.items()}


@pytest.mark.parametrize("sizes", [(7, 1, 5, 3), (1, 9)])
def test_numbers_agree_with_slow_loops(sizes):
    names = [f"class{number}" for number in range(len(sizes))]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    clips = np.arange(len(labels))
    pairs = torch.from_numpy(np.stack([labels, clips], axis=1))
    queries = {"text_embeds": torch.eye(len(sizes), 12), "query_ids": names, "captions": names}
    embeddings = make_embeddings(len(labels), 1, pairs=pairs, **queries)
    mask, vectors = embeddings.modality_mask, embeddings.modality_embeds.double()
    embeddings.modality_embeds[~mask] = torch.nan  # it counts for nothing
    metrics = latent_space(embeddings)
    assert [entry["num_clips"] for entry in metrics["classes"]] == list(sizes)
    cosines = []
    for query, text in enumerate(embeddings.text_embeds.double()):
        seen = torch.from_numpy(labels == query)[:, None] & mask & torch.tensor([True, True, False])
        cosines.append(torch.cosine_similarity(text, vectors[seen].sum(0), dim=0).item())
    assert [entry["text_centroid_cosine"] for entry in metrics["classes"]] == pytest.approx(cosines)
    assert metrics["text_centroid_cosine"] == pytest.approx(np.mean(cosines))
    for column, name in enumerate(embeddings.modalities):
        there = clips[mask[:, column].numpy()]
        expected = slow_silhouettes(vectors[there, column].numpy(), labels[there])
        found = [entry["silhouette"][name] for entry in metrics["classes"]]
        assert found == pytest.approx([expected.get(query) for query in range(len(sizes))])
        mean = pytest.approx(np.mean(list(expected.values()))) if expected else None
        assert metrics["silhouette"][name] == mean
