"""Numbers of other scores are fitted as SCALAR's are."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from evidence.study.fitting import Fit, ScoreLikelihood, fit, fits_of, kept_fit, some_clips
from evidence.study.ranks import mean_reciprocal_ranks
from evidence.weighted import FITTED
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.eval.protocol.test_calibration import made
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401


@pytest.mark.parametrize("method", sorted(set(FITTED) - {"scalar", "uniform", "mean", "weighted_pmrl"}))
def test_a_modality_of_noise_counts_less(method):
    embeddings = made(num_clips=60, dim=24)
    noise = torch.randn(60, 24, generator=torch.Generator().manual_seed(5))
    embeddings.modality_embeds[:, 1] = normalize(noise, dim=-1) * embeddings.modality_mask[:, 1:2]
    found = fit(embeddings, {}, method=method)
    assert set(found) == set(FITTED[method])
    scale, offset = (found.get(name) for name in ("modality_scale", "modality_offset"))
    if scale is not None:
        assert scale[1] < 0.5 * min(scale[0], scale[2])
        assert max(scale) <= 1 or offset is not None
    elif offset is not None:
        assert offset[1] < min(offset[0], offset[2]) - 1


def test_of_a_score_of_ranks_each_direction_has_its_own():
    embeddings = made(num_clips=9)
    likelihood = ScoreLikelihood(embeddings, {}, method="weighted_rank_fusion")
    offset, tau, constant = [0.5, -0.2, 0.1], 0.3, 7.0
    options = {"method": "weighted_rank_fusion", "modality_offset": offset, "rank_constant": constant}
    arguments = embeddings.text_embeds.double(), embeddings.modality_embeds.double(), embeddings.modality_mask
    expected = sum(x * x for x in offset) / 0.25 + (math.log(tau / 0.05) / 3) ** 2 + (math.log(constant / 60) / 3) ** 2
    expected /= 9
    for dim, direction in ((1, "text_to_video"), (0, "video_to_text")):
        scores = (1 + constant) * retrieval_scores(*arguments, direction=direction, **options)
        expected -= (scores / tau).log_softmax(dim).diagonal().mean().item()
    numbers = torch.tensor([math.log(constant), math.log(tau), 0, 0, 0, *offset], dtype=torch.float64)
    assert likelihood(numbers).item() == pytest.approx(expected / 2, rel=1e-9)


def test_a_fit_is_kept_if_clips_that_were_not_part_of_it_gain():
    embeddings = made(num_clips=120, dim=24)
    noise = torch.randn(120, 24, generator=torch.Generator().manual_seed(5))
    embeddings.modality_embeds[:, 1] = normalize(noise, dim=-1) * embeddings.modality_mask[:, 1:2]
    (found,) = fits_of(embeddings, "uniform", {"query_temperature": 0.1})
    assert found.is_kept and found.count == 6 and found.choice[0] == "weighted_centroid"
    before, after = (
        mean_reciprocal_ranks(embeddings, choice).mean().item() for choice in (("uniform", {}), found.choice)
    )
    assert after - before > found.gain["low"] > 0  # of all clips it sees more than it is measured on


def test_nothing_is_gained_where_the_numbers_are_those_that_were_fitted():
    embeddings = made(num_clips=120, dim=24)
    trained = fit(embeddings, {}, method="scalar")
    temperature, everything = fits_of(embeddings, "scalar", trained)
    assert (temperature.count, everything.count) == (1, 7)
    assert not temperature.is_kept
    assert fits_of(embeddings, "hypergram", trained) == []


def test_the_fit_with_the_largest_gain_is_taken():
    def made_fit(difference, low):
        return Fit(("scalar", {}), 1, {"difference": difference, "low": low, "high": difference + 1})

    kept, better, unsure = made_fit(1.0, 0.2), made_fit(2.0, 0.1), made_fit(3.0, 0.0)
    assert kept_fit([kept, better, unsure]) is better
    assert kept_fit([unsure]) is None and kept_fit([]) is None


def test_some_clips_keep_their_captions():
    embeddings = made(num_clips=9)
    some, queries = some_clips(embeddings, torch.tensor([1, 4, 7]))
    assert some.clip_ids == ["clip1", "clip4", "clip7"] and queries.tolist() == [1, 4, 7]
    assert some.query_ids == ["query1", "query4", "query7"] and some.pairs.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert torch.equal(some.modality_embeds, embeddings.modality_embeds[[1, 4, 7]])
