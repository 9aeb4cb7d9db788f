"""Encoders side by side: spaces, scales, chosen numbers, and that tables and page are computed."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from evidence.encoders.measuring import RANKS, rank_set
from evidence.encoders.methods import (
    METHODS,
    RULE,
    Method,
    choose,
    direct_sum,
    fitted_scales,
    scored,
    with_shared,
)
from evidence.encoders.report import PAGE, RESULTS, EncodersResults, fill, holds, judged, report
from evidence.encoders.sets import ClipSet, Draw, own_texts_of
from evidence.study.ranks import own_ranks
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401
from tests.evidence.test_stamps import ROOT

MODALITIES = ("video", "title", "subtitle")


def made_clips(seed, number=12, dim=8):
    """Captions near the first modality of their clips; every fourth clip lacks the last one."""
    generator = torch.Generator().manual_seed(seed)
    embeds = torch.nn.functional.normalize(torch.randn(number, 3, dim, generator=generator), dim=-1)
    texts = embeds[:, 0] + 0.2 * torch.randn(number, dim, generator=generator)
    mask = torch.ones(number, 3, dtype=torch.bool)
    mask[::4, 2] = False
    names = [str(row) for row in range(number)]
    return Embeddings(
        text_embeds=torch.nn.functional.normalize(texts, dim=-1),
        modality_embeds=embeds * mask[..., None],
        modality_mask=mask,
        pairs=torch.arange(number).repeat(2, 1).T,
        clip_ids=names,
        query_ids=names,
        captions=names,
        modalities=MODALITIES,
    )


def made_set(spaces=(0, 1, 2)):
    draws = []
    for seed in range(2):
        fitted = made_clips(seed)
        draws.append(Draw(fitted, made_clips(seed + 10), own_texts_of(fitted, ["title", "subtitle"])))
    return ClipSet(spaces, ((0.2, 0.15), (0.5, 0.0), (0.7, 0.0)), {"complete": draws[:1], "missing": draws})


def products(embeddings):
    """Cosines of captions, and inner products of modalities."""
    embeds = embeddings.modality_embeds
    return torch.einsum("qd,vmd->qvm", embeddings.text_embeds, embeds), embeds @ embeds.mT


def test_spaces_side_by_side_keep_cosines_and_know_nothing_between_them():
    clips = made_clips(0)
    cosines, gram = products(clips)
    summed, between = products(direct_sum(clips, (0, 1, 1)))
    torch.testing.assert_close(summed, cosines / 2**0.5)
    torch.testing.assert_close(between[:, 1:, 1:], gram[:, 1:, 1:])
    assert (between[:, 0, 1:] == 0).all()
    norms = direct_sum(clips, (0, 1, 2)).text_embeds.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones(12))


def test_a_shared_component_moves_the_gram_matrix_alone():
    clips = made_clips(0)
    cosines, gram = products(clips)
    shared, moved = products(with_shared(clips, 0.3))
    present = clips.modality_mask
    both = present[:, :, None] & present[:, None]
    torch.testing.assert_close(moved[both], (0.3 + 0.7 * gram)[both])
    torch.testing.assert_close(shared[:, present], 0.7**0.5 * cosines[:, present])


def test_a_texts_own_clip_does_not_count_for_its_scales():
    clips = made_clips(0)
    texts = own_texts_of(clips, ["title"])
    cosines, _ = products(texts)
    others = cosines[..., 1][~torch.eye(12, dtype=torch.bool)].double()
    found = fitted_scales(texts, are_own=True)
    assert found["modality_scale"][1] == pytest.approx(0.1 / others.std(correction=0).item())
    assert found != fitted_scales(texts, are_own=False)


def test_in_one_space_the_direct_sum_is_the_joint_space():
    clips = made_set((0, 0, 0))
    draw = clips.regimes["missing"][1]
    ranks = []
    for name in (RULE, "joint"):
        embeddings, choice = scored(name, clips, draw, draw.shown, {})
        ranks.append(next(own_ranks(embeddings, [embeddings.modality_mask], choice)))
    for direction in DIRECTIONS:
        assert ranks[0][direction].tolist() == ranks[1][direction].tolist()


@pytest.mark.parametrize("modality", [1, 2])
def test_fitted_scales_undo_those_of_an_encoder(modality):
    """A modality whose cosines are half as large and begin at 0.2, by two components more, ranks as before."""
    draws = made_set().regimes["missing"]
    ranks = []
    for is_changed in (False, True):
        halves = []
        for embeddings in (draws[1].fitted, draws[1].shown):
            summed = direct_sum(embeddings, (0, 1, 2))
            if is_changed:
                embeds = torch.cat([summed.modality_embeds, torch.zeros(12, 3, 2)], dim=-1)
                embeds[:, modality] *= 0.5
                embeds[:, modality, -2:] = torch.tensor([0.3, 0.75**0.5 - 0.1])
                texts = torch.cat([summed.text_embeds, torch.ones(12, 1), torch.zeros(12, 1)], dim=-1)
                summed = replace(summed, text_embeds=texts, modality_embeds=embeds)
            halves.append(summed)
        for options in ({}, fitted_scales(halves[0], are_own=False)):
            found = next(own_ranks(halves[1], [halves[1].modality_mask], ("max", options)))
            ranks.append(found[DIRECTIONS[0]].tolist())
    raw, fitted, raw_changed, fitted_changed = ranks
    assert fitted == fitted_changed
    assert raw != raw_changed


def test_the_single_modality_that_answers_is_chosen():
    assert choose("single", made_set()) == {"modality": 0}


def test_one_deviation_is_the_temperature():
    clips = made_set()
    draw = clips.regimes["complete"][0]
    _, (_, options) = scored(RULE, clips, draw, draw.shown, {})
    cosines, _ = products(direct_sum(draw.fitted, clips.spaces))
    deviation = cosines[..., 0].double().std(correction=0).item()
    assert options["query_temperature"] == pytest.approx(options["modality_scale"][0] * deviation)
    _, (_, twice) = scored("scalar_chosen", clips, draw, draw.shown, {"deviations": 2.0})
    assert twice["query_temperature"] == pytest.approx(2 * options["query_temperature"])


def test_scales_do_not_depend_on_labels():
    clips = made_set()
    draw = clips.regimes["missing"][1]
    others = torch.stack([torch.arange(12), torch.arange(12).roll(1)], dim=1)
    shuffled = replace(draw, fitted=replace(draw.fitted, pairs=others))
    (_, choice), (_, same) = (scored(RULE, clips, one, one.shown, {}) for one in (draw, shuffled))
    assert choice == same


def test_every_method_ranks_every_draw_in_both_directions(monkeypatch):
    few = {}
    for name, method in METHODS.items():
        grid = {number: values[:2] for number, values in method.grid.items()}
        few[name] = Method(method.title, method.score, method.cosines, method.is_joint, grid)
    monkeypatch.setattr("evidence.encoders.methods.METHODS", few)
    rows, chosen = rank_set("made", made_set())
    assert {row["method"] for row in rows} == set(chosen) == set(METHODS)
    assert set(chosen["scalar_shared"]) == {"deviations", "share"}
    for row in rows:
        assert len(row["ranks"]) == 12 * (1 if row["regime"] == "complete" else 2)
    assert {row["direction"] for row in rows} == set(DIRECTIONS)


# What is published ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    return EncodersResults(RESULTS)


def test_the_shipped_tables_are_computed_from_the_shipped_ranks(results):
    shipped = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert shipped == report(results), (
        "run `python -m evidence encoders --report-only --output evidence/encoders/results --page docs/encoders.md`"
    )


def test_the_page_is_its_template_filled_with_the_results(results):
    template = PAGE.read_text(encoding="utf-8")
    assert (ROOT / "docs" / "encoders.md").read_text(encoding="utf-8") == fill(template, results)


def test_the_shipped_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 5e5


def test_the_mean_reciprocal_rank_is_that_of_the_ranks(results):
    """Recomputed in plain Python, of every tenth row."""
    for row in pq.read_table(RESULTS / RANKS).to_pylist()[::10]:
        expected = 100 * sum(1 / rank for rank in row["ranks"] if rank <= 10) / len(row["ranks"])
        found = results.mean(row["set"], row["method"], direction=row["direction"], regimes=(row["regime"],))
        assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("least", "low", "difference", "high", "expected"),
    [
        (1, 0.2, 1.1, 2.0, True),
        (1, 0.2, 0.9, 1.6, False),
        (1, -0.1, 1.1, 2.3, False),
        (-5, -6.0, -4.9, -4.0, True),
        (-5, -6.0, -5.1, -4.0, False),
        ("level", -2.0, -1.0, 0.1, True),
        ("level", -2.0, -1.0, -0.1, False),
    ],
)
def test_a_claim_holds_by_its_least_difference(least, low, difference, high, expected):
    assert holds({"least": least, "low": low, "difference": difference, "high": high}) == expected


def test_the_claims_are_those_that_were_named(results):
    named = yaml.safe_load((ROOT / "evidence" / "encoders" / "claims.yaml").read_text(encoding="utf-8"))["claims"]
    assert [{name: entry[name] for name in ("set", "rival", "least")} for entry in judged(results)] == named
