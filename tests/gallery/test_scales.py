"""Scales of modalities without labels: against their definition, and what cannot be measured."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.gallery.scales import TooFewTextsError, fit_scales, measure_scales
from scalar_retrieval.gallery.store.windows import SEGMENT, clip_id_of
from scalar_retrieval.modeling_scalar.modalities_scalar import check_calibration


def make_similarities(seed, shape):
    """Cosines (Q, V, M) with a mean and a deviation of each modality's own."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.linspace(-0.3, 0.5, shape[2])
    deviations = torch.linspace(0.02, 0.2, shape[2])
    return means + deviations * torch.rand(shape, generator=generator)


def moments(cosines):
    """Mean and deviation, one number after another."""
    mean = math.fsum(cosines) / len(cosines)
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in cosines) / len(cosines))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    number=st.integers(1, 4),
    by_pairs=st.booleans(),
    temperature=st.sampled_from([0.02, 0.1, 1.0]),
)
def test_scales_standardise_the_cosines_of_each_modality(seed, number, by_pairs, temperature):
    """Against a loop in float64, which a NaN of an absent modality would spoil. float64 rounds by 1e-16; both sums
    have a few hundred terms, and offsets divide a mean by a deviation of at least .005."""
    similarities = make_similarities(seed, (9, 17, number))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand((9, 17, number) if by_pairs else (17, number), generator=generator) < 0.6
    similarities[~mask.expand(similarities.shape)] = math.nan
    scales = fit_scales(similarities, mask, temperature)

    for m in range(number):
        cosines = []
        for q in range(9):
            for v in range(17):
                if mask[q, v, m] if by_pairs else mask[v, m]:
                    cosines.append(similarities[q, v, m].item())
        mean, deviation = moments(cosines)
        assert scales["modality_scale"][m] == pytest.approx(temperature / deviation, rel=1e-9)
        assert scales["modality_offset"][m] == pytest.approx(-temperature * mean / deviation, rel=1e-9, abs=1e-9)


def test_a_modality_that_cannot_be_measured_counts_as_an_average_one():
    """The second one is in one clip of 29 texts, the third is the same everywhere."""
    similarities = make_similarities(0, (29, 30, 4))
    similarities[..., 2] = 0.4
    mask = torch.ones(30, 4, dtype=torch.bool)
    mask[1:, 1] = False
    scales = fit_scales(similarities, mask)
    first, last = (moments(similarities[..., m].flatten().tolist()) for m in (0, 3))
    scale = 0.1 / ((first[1] + last[1]) / 2)
    assert scales["modality_scale"][1:3] == pytest.approx([scale] * 2)
    assert scales["modality_offset"][1:3] == pytest.approx([-scale * (first[0] + last[0]) / 2] * 2)


@pytest.mark.parametrize("number", [0, 9, 10])
def test_it_is_an_error_if_no_modality_can_be_measured(number):
    """Too few cosines, or all of one value."""
    with pytest.raises(TooFewTextsError, match="too few clips to measure the scales"):
        fit_scales(torch.zeros(number, 3, 2), torch.ones(3, 2, dtype=torch.bool))


@pytest.mark.parametrize("temperature", [11.0, 1e6, math.inf])
def test_equal_weights_have_a_finite_unit(temperature):
    similarities = make_similarities(0, (40, 30, 2))
    mask = torch.ones(30, 2, dtype=torch.bool)
    scales = fit_scales(similarities, mask, temperature)
    assert scales == fit_scales(similarities, mask, 10.0)
    check_calibration(**scales, modalities=2)


def test_a_text_does_not_count_for_the_clips_that_it_belongs_to(tmp_path):
    generator = torch.Generator().manual_seed(0)
    embeds = normalize(torch.randn(6, 2, 8, generator=generator), dim=-1)
    names = [clip_id_of(path, (start, start + 1.0)) for path in ("/a.mp4", "/b.mp4") for start in (0.0, 1.0, 2.0)]
    with GalleryWriter(tmp_path / "gallery", "float32") as writer:
        writer.metadata = {"modalities": ["video", "title"], SEGMENT: 1.0, "score_options": {"method": "max"}}
        writer.put_clips(names, embeds, torch.ones(6, 2, dtype=torch.bool))
        writer.commit()
        gallery = writer.gallery()
    queries = normalize(torch.randn(31, 8, generator=generator), dim=-1)
    rows = {str(number): query for number, query in enumerate(queries)}

    def embed(batch):
        return torch.stack([rows[text] for text in batch])

    owners = dict.fromkeys(rows, frozenset()) | {"0": set(names[:3]), "1": {names[4], names[1]}}
    mask = torch.ones(31, 6, 2, dtype=torch.bool)
    mask[0, :3] = False
    mask[1, [4, 1]] = False
    expected = fit_scales(torch.einsum("qd,vmd->qvm", queries, embeds), mask)
    options = measure_scales(gallery, owners, "texts", embed)["score_options"]
    assert options["modality_scale"] == pytest.approx(expected["modality_scale"]) and options["method"] == "max"
    with pytest.raises(TooFewTextsError, match="too few clips to measure"):
        measure_scales(gallery, dict.fromkeys(rows, set(names)), "texts", embed)
