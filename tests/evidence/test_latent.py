"""How classes lie in the shared space: against slow loops, and where something is undefined."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from evidence.latent import latent_space
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES


def make_classes(sizes):
    """Class labels as queries; clips of the classes in turn, some without a modality."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    mask = torch.rand(len(classes), 3, generator=generator) < 0.8
    mask[:, 0] |= ~mask.any(dim=1)
    centres = torch.randn(len(sizes), 12, generator=generator)
    vectors = centres[classes][:, None] + torch.randn(len(classes), 3, 12, generator=generator)
    return Embeddings(
        text_embeds=normalize(centres + torch.randn(len(sizes), 12, generator=generator), dim=-1),
        modality_embeds=normalize(vectors, dim=-1).masked_fill(~mask[..., None], torch.nan),  # it counts for nothing
        modality_mask=mask,
        pairs=torch.stack([classes, torch.arange(len(classes))], dim=1),
        clip_ids=[f"clip{i}" for i in range(len(classes))],
        query_ids=[f"class{i}" for i in range(len(sizes))],
        captions=[f"label {i}" for i in range(len(sizes))],
        modalities=MODALITIES,
    )


def cosine(first, second):
    return float(np.dot(first, second) / (np.linalg.norm(first) * np.linalg.norm(second)))


def members(embeddings, query, column):
    """The vectors of the clips of a class that have a modality."""
    clips = [clip for label, clip in embeddings.pairs.tolist() if label == query]
    mask, vectors = embeddings.modality_mask, embeddings.modality_embeds
    return [vectors[clip, column].double().numpy() for clip in clips if mask[clip, column]]


def slow_silhouettes(embeddings, column):
    """Rousseeuw's (b - a) / max(a, b) with cosine distances, averaged by class."""
    groups = [members(embeddings, query, column) for query in range(len(embeddings.captions))]
    groups = {query: vectors for query, vectors in enumerate(groups) if len(vectors) > 1}
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
    metrics = latent_space(embeddings)
    assert metrics["num_classes"] == len(sizes)
    assert [entry["num_clips"] for entry in metrics["classes"]] == list(sizes)
    texts = embeddings.text_embeds.double().numpy()
    centres = [sum(members(embeddings, query, 0) + members(embeddings, query, 1)) for query in range(len(sizes))]
    cosines = list(map(cosine, texts, centres))
    assert [entry["text_centroid_cosine"] for entry in metrics["classes"]] == pytest.approx(cosines)
    assert metrics["text_centroid_cosine"] == pytest.approx(np.mean(cosines))
    for column, name in enumerate(MODALITIES):
        expected = slow_silhouettes(embeddings, column)
        found = [entry["silhouette"][name] for entry in metrics["classes"]]
        assert found == pytest.approx([expected.get(query) for query in range(len(sizes))])
        mean = pytest.approx(np.mean(list(expected.values()))) if expected else None
        assert metrics["silhouette"][name] == mean
