"""Numbers of other scores are fitted as SCALAR's are."""

import torch
from torch.nn.functional import normalize

from evidence.study.fitting import fit, fits_of
from evidence.study.ranks import mean_reciprocal_ranks
from tests.eval.protocol.test_calibration import made
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401


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
    embeddings = made(num_clips=60, dim=24)
    trained = fit(embeddings, {}, method="scalar")
    temperature, everything = fits_of(embeddings, "scalar", trained)
    assert (temperature.count, everything.count) == (1, 7)
    assert not temperature.is_kept
    assert fits_of(embeddings, "hypergram", trained) == []
