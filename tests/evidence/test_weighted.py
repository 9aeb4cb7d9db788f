"""Baselines with fixed weights: each formula against a loop over single pairs, and what their numbers mean."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from evidence.weighted import DISCOUNTED, FITTED, WEIGHTED
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, retrieval_scores
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401

DIRECTIONS = ("text_to_video", "video_to_text")


def clips_of(number):
    """Texts, modalities that resemble each other, and every mask of so many modalities."""
    generator = torch.Generator().manual_seed(number)
    mask = torch.tensor(list(itertools.product((False, True), repeat=number))[1:])
    draws = torch.randn(len(mask) + 5, number, 6, generator=generator, dtype=torch.float64)
    return normalize(draws[:5, 0], dim=-1), normalize(draws[5:] + draws[5:, :1], dim=-1), mask


def loop(method, texts, clips, mask, scale, offset, constant, direction):
    """The formula of one pair after the other."""
    texts, clips, mask = texts.numpy(), clips.numpy(), mask.numpy()
    scale, offset = np.array(scale), np.array(offset)
    scores = np.zeros((len(texts), len(clips)))
    for q, v in itertools.product(range(len(texts)), range(len(clips))):
        here, own = mask[v], clips[v, mask[v]]
        weights = np.exp(offset[here]) / np.exp(offset[here]).sum()
        mean = (weights * scale[here]) @ (own @ texts[q])
        if method == "weighted_mean":
            scores[q, v] = mean
        elif method == "weighted_centroid":
            scores[q, v] = mean / np.linalg.norm(weights @ own)
        elif method == "weighted_rank_fusion":
            for m in here.nonzero()[0]:
                others = clips[mask[:, m], m] @ texts[q] if direction == "text_to_video" else texts @ clips[v, m]
                place = (others >= texts[q] @ clips[v, m] - 1e-12).sum()
                scores[q, v] += np.exp(offset[m]) / (constant + place)
        else:  # by the vectors themselves, each with an axis of its own
            axes = np.diag(np.sqrt(1 - scale**2))[here]
            vectors = np.hstack([scale[here, None] * own, axes])
            both = np.vstack([np.append(texts[q], 0 * scale), vectors])
            if method == "weighted_pmrl":
                scores[q, v] = np.linalg.eigvalsh(both @ both.T)[-1] / len(both)
            else:
                base = vectors @ vectors.T if method == "weighted_span" else np.eye(1)
                scores[q, v] = -np.sqrt(np.linalg.det(both @ both.T) / np.linalg.det(base))
    return scores


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("method", WEIGHTED)
def test_scores_equal_the_float64_loop_under_every_mask(method, number):
    texts, clips, mask = clips_of(number)
    scale = [1.0, 0.7, 0.4, 0.9] if method in DISCOUNTED else [1.3, 0.7, 0.4, 2.0]
    numbers = {"modality_scale": scale[:number], "modality_offset": [0.4, -1.0, 0.0, 0.9][:number], "rank_constant": 7}
    for direction in DIRECTIONS[: 1 + METHODS[method].directed]:
        expected = loop(method, texts, clips, mask, *numbers.values(), direction)
        options = {"method": method, "direction": direction}
        scores = retrieval_scores(texts, clips, mask, **options, **numbers)
        assert np.allclose(scores.numpy(), expected, atol=1e-9, rtol=0)
    # the tiles, and the form with a gradient, in which numbers are learned
    learned = {name: torch.tensor(values, dtype=torch.float32, requires_grad=True) for name, values in numbers.items()}
    scores = retrieval_scores(texts.float(), clips.float(), mask, **options, **learned)
    assert np.allclose(scores.detach().numpy(), expected, atol=1e-5, rtol=0)
    scores.square().sum().backward()
    for name, values in learned.items():
        moved = values.grad is not None and (values.grad.isfinite() & (values.grad != 0)).all()
        assert moved == (name in FITTED[method])
