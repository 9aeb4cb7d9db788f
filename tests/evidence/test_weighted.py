"""Baselines with fixed weights: each formula against a loop over single pairs, and what their numbers mean."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from evidence.weighted import DISCOUNTED, FITTED, WEIGHTED
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, retrieval_scores
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401


def clips_of(number, dtype=torch.float64, num_queries=5):
    """Texts, modalities that resemble each other, and every mask of so many modalities."""
    generator = torch.Generator().manual_seed(number)
    mask = torch.tensor(list(itertools.product((False, True), repeat=number))[1:])
    draws = torch.randn(len(mask) + num_queries, number, 6, generator=generator, dtype=torch.float64)
    shared = torch.randn(len(mask), 1, 6, generator=generator, dtype=torch.float64)
    clips = normalize(draws[: len(mask)] + shared, dim=-1)
    return normalize(draws[len(mask) :, 0], dim=-1).to(dtype), clips.to(dtype), mask


def numbers_of(method, number):
    scale = [1.0, 0.7, 0.4, 0.9][:number] if method in DISCOUNTED else [1.3, 0.7, 0.4, 2.0][:number]
    return {"modality_scale": scale, "modality_offset": [0.4, -1.0, 0.0, 0.9][:number], "rank_constant": 7.0}


def rank(values, own):
    """From one, the worst of ties."""
    return sum(value >= own for value in values)


def loop(method, texts, clips, mask, scale, offset, constant, direction):
    """The formula of one pair after the other."""
    texts, clips, mask = texts.numpy(), clips.numpy(), mask.numpy()
    scores = np.zeros((len(texts), len(clips)))
    for q, v in itertools.product(range(len(texts)), range(len(clips))):
        here = [m for m in range(len(scale)) if mask[v, m]]
        weights = {m: math.exp(offset[m]) / sum(math.exp(offset[n]) for n in here) for m in here}
        mean = sum(weights[m] * scale[m] * float(texts[q] @ clips[v, m]) for m in here)
        if method == "weighted_mean":
            scores[q, v] = mean
        elif method == "weighted_centroid":
            scores[q, v] = mean / np.linalg.norm(sum(weights[m] * clips[v, m] for m in here))
        elif method == "weighted_rank_fusion":
            for m in here:
                own = texts[q] @ clips[v, m]
                if direction == "text_to_video":
                    place = rank([texts[q] @ clips[c, m] for c in range(len(clips)) if mask[c, m]], own)
                else:
                    place = rank([text @ clips[v, m] for text in texts], own)
                scores[q, v] += math.exp(offset[m]) / (constant + place)
        else:  # by the vectors themselves, each with an axis of its own
            axes = np.eye(len(scale))
            vectors = [np.concatenate([scale[m] * clips[v, m], math.sqrt(1 - scale[m] ** 2) * axes[m]]) for m in here]
            text = np.concatenate([texts[q], 0 * axes[0]])
            gram = np.array([[x @ y for y in (text, *vectors)] for x in (text, *vectors)])
            if method == "weighted_pmrl":
                scores[q, v] = np.linalg.eigvalsh(gram)[-1] / len(gram)
            else:
                squared = np.linalg.det(gram)
                if method == "weighted_span":
                    squared /= np.linalg.det(gram[1:, 1:])
                scores[q, v] = -math.sqrt(squared)
    return scores


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("method", WEIGHTED)
def test_scores_equal_the_float64_loop_under_every_mask(method, number):
    clips, numbers = clips_of(number), numbers_of(method, number)
    for direction in ("text_to_video", "video_to_text")[: 1 + METHODS[method].directed]:
        expected = loop(method, *clips, *numbers.values(), direction)
        scores = retrieval_scores(*clips, method=method, direction=direction, **numbers)
        assert np.allclose(scores.numpy(), expected, atol=1e-9, rtol=0)
    # the tiles, and the form with a gradient, in which numbers are learned
    single = [part.float() if part.is_floating_point() else part for part in clips]
    learned = {name: torch.tensor(values, requires_grad=True) for name, values in numbers.items()}
    scores = retrieval_scores(*single, method=method, direction=direction, **learned)
    assert np.allclose(scores.detach().numpy(), expected, atol=1e-5, rtol=0)
    scores.square().sum().backward()
    for name, values in learned.items():
        moved = values.grad is not None and (values.grad.isfinite() & (values.grad != 0)).all()
        assert moved == (name in FITTED[method])
