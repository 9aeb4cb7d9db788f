"""Real pictures: which are chosen, how regimes are drawn, what is fitted, and that the shipped tables are computed."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from evidence.stamps import measuring
from evidence.stamps.embedding import MODALITIES, Half
from evidence.stamps.items import on_white, read_items, repeats, words_of
from evidence.stamps.languages import LANGUAGES, compare
from evidence.stamps.measuring import rank_halves
from evidence.stamps.regimes import REGIMES, draw
from evidence.stamps.report import RESULTS, StampsResults, fill, goals, judged, report
from evidence.stamps.rivals import CALIBRATED, RIVALS, SCALAR, Scene, fit
from tests.evidence.fixed_weights import fixed_weights  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]


def write_stamp(path, caption, is_photograph=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((40, 40, 4), dtype=np.uint8)
    pixels[..., 3] = 255
    if is_photograph:
        pixels[..., :3] = np.random.default_rng(len(path.name)).integers(256, size=(40, 40, 3))
    pixels[0, 0] = 0  # transparent
    Image.fromarray(pixels).save(path)
    path.with_suffix(".txt").write_text(f"{caption}\nde.utf8=Übersetzt\n", encoding="utf-8")


@pytest.fixture
def stamps(tmp_path):
    write_stamp(tmp_path / "animals" / "birds" / "ostrich.png", "An ostrich.")
    write_stamp(tmp_path / "animals" / "birds" / "xanthia.png", "A xanthia.")
    write_stamp(tmp_path / "animals" / "lionfish.png", "A very poisonous lionfish!")
    write_stamp(tmp_path / "animals" / "lionfish_again.png", "A very poisonous lionfish!")
    write_stamp(tmp_path / "animals" / "drawn.png", "A drawing.", is_photograph=False)
    write_stamp(tmp_path / "animals" / "cartoon" / "cat.png", "A drawn cat.")
    return tmp_path


def made_half(seed=0, num_items=12, dim=16):
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(num_items, len(MODALITIES), dim, generator=generator)
    relevant = torch.arange(0, num_items, 2)
    texts = items[relevant].sum(dim=1) + 0.5 * torch.randn(len(relevant), dim, generator=generator)
    unit = torch.nn.functional.normalize
    return Half(unit(texts, dim=-1), unit(items, dim=-1), relevant)


def test_photographs_with_captions_of_their_own_are_chosen(stamps):
    names = [item.path for item in read_items(stamps)]
    assert names == ["animals/birds/ostrich.png", "animals/birds/xanthia.png", "animals/lionfish.png"]


def test_a_caption_asks_unless_it_repeats_the_title(stamps):
    ostrich, xanthia, lionfish = read_items(stamps)
    assert (ostrich.kind, xanthia.kind, lionfish.kind) == ("definition", "none", "caption")
    assert ostrich.query.startswith("fast-running African flightless bird")
    assert xanthia.query is None
    assert lionfish.query == "A very poisonous lionfish!"


@pytest.mark.parametrize(
    ("caption", "title", "expected"),
    [("A great blue heron.", "heron greatblue", True), ("A red kangaroo.", "kangaroo", False)],
)
def test_a_caption_repeats_a_title_that_has_all_its_words(caption, title, expected):
    assert repeats(caption, title) == expected


def test_names_are_split_into_words():
    assert words_of("heron_greatBlue-2") == ["heron", "great", "blue", "2"]


def test_what_is_transparent_becomes_white(stamps):
    picture = on_white(stamps / "animals" / "lionfish.png")
    assert picture.shape == (40, 40, 3)
    assert picture[0, 0].tolist() == [255, 255, 255]


def test_a_folder_without_stamps_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="tuxpaint-stamps-default"):
        read_items(tmp_path)


def test_half_of_the_items_lack_one_modality():
    drawn = draw(made_half(num_items=500), "missing", 4, seed=0)
    lacking = (~drawn.modality_mask).sum(-1)
    assert set(lacking.unique().tolist()) == {0, 1}
    assert 0.45 < lacking.float().mean() < 0.55
    assert (drawn.modality_embeds[~drawn.modality_mask] == 0).all()


def test_where_texts_disagree_they_are_those_of_one_other_item():
    half = made_half()
    drawn = draw(half, "disagreement", 3, seed=0)
    for items in drawn.modality_embeds:
        assert (items[:, 0] == half.modality_embeds[:, 0]).all()
        title, folder = (torch.cdist(items[:, place], half.modality_embeds[:, place]).argmin(1) for place in (1, 2))
        assert (title == folder).all()
        assert (title != torch.arange(len(title))).all()
        assert len(title.unique()) == len(title)


def test_an_unknown_regime_is_refused():
    with pytest.raises(ValueError, match="must be one of"):
        draw(made_half(), "noise", 1, seed=0)


@pytest.mark.parametrize("name", RIVALS)
def test_a_score_of_many_draws_is_that_of_each(name):
    """Every method with numbers in the middle of their ranges."""
    half, rival = made_half(), RIVALS[name]
    numbers = [number.value((number.low + number.high) / 2) for number in rival.numbers]
    drawn = draw(half, "missing", 3, seed=0)
    ranks = Scene(drawn).ranks(rival.score(Scene(drawn), numbers))
    for place in range(3):
        rows = slice(place, place + 1)
        one = Scene(type(drawn)(half, drawn.modality_embeds[rows], drawn.modality_mask[rows]))
        assert (one.ranks(rival.score(one, numbers))[0] == ranks[place]).all()


def test_weights_by_entropy_follow_the_modality_that_singles_out():
    """Cosines by hand: the first modality prefers one item, the other none."""
    texts = torch.tensor([[1.0, 0.0, 0.0]])
    near, far = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    items = torch.tensor([[near, far, far], [far, far, far]])
    half = Half(texts, items, torch.tensor([0]))
    scene = Scene(draw(half, "complete", 1, seed=0))
    score = RIVALS["entropy"].score(scene, [0.1])[0, 0]
    share = 1 / (1 + np.exp(-10))
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    weights = np.array([1 / entropy, 1 / np.log(2), 1 / np.log(2)])
    torch.testing.assert_close(score[0].item(), weights[0] / weights.sum(), rtol=1e-3, atol=1e-3)


def test_the_volume_with_its_own_determinant_is_the_span_distance():
    """Exponent 1; the logarithm of minus the model's own score, up to rounding of determinants in float32."""
    scene = Scene(draw(made_half(), "missing", 2, seed=0))
    expected = -(-scene.score("gram_span")).log()
    torch.testing.assert_close(RIVALS["gram_span"].score(scene, [0.0]), expected, rtol=1e-4, atol=1e-4)


def test_fitted_numbers_are_no_worse_than_those_of_equal_weights():
    scenes = {regime: Scene(draw(made_half(), regime, 2, seed=0)) for regime in REGIMES}
    assert fit(RIVALS["fused"], scenes).mrr >= fit(RIVALS["uniform"], scenes).mrr


def test_a_table_has_every_method_and_regime(monkeypatch):
    monkeypatch.setattr(measuring, "FIT_DRAWS", 1)
    monkeypatch.setattr(measuring, "SHOWN_DRAWS", 2)
    monkeypatch.setattr("evidence.stamps.rivals._GENERATIONS", 1)
    rows, found = rank_halves(made_half(0), made_half(1), print_line=lambda line: None)
    assert {(row["regime"], row["method"]) for row in rows} == {(a, b) for a in REGIMES for b in RIVALS}
    assert {len(row["ranks"]) for row in rows} == {6, 12}
    assert found["claimed"] in (SCALAR, CALIBRATED)


# What is published ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    return StampsResults(RESULTS)


def test_the_shipped_tables_are_computed_from_the_shipped_ranks(results):
    shipped = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert shipped == report(results), "run `python -m evidence stamps --report-only --output evidence/stamps/results`"


def test_the_shipped_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) < 1e6


def test_the_page_is_its_template_filled_with_the_results(results):
    template = (ROOT / "evidence" / "stamps" / "page.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "real_pictures.md").read_text(encoding="utf-8") == fill(template, results)


def test_the_claims_are_those_that_were_named_before(results):
    named = yaml.safe_load((ROOT / "evidence" / "stamps" / "claims.yaml").read_text(encoding="utf-8"))["claims"]
    assert [{"regime": entry["regime"], "rival": entry["rival"]} for entry in judged(results)] == named


def test_the_mean_reciprocal_rank_is_that_of_the_ranks(results):
    """Recomputed in plain Python."""
    import pyarrow.parquet as pq

    for row in pq.read_table(RESULTS / "ranks.parquet").to_pylist():
        expected = 100 * sum(1 / rank for rank in row["ranks"]) / len(row["ranks"])
        assert results.mean(row["regime"], row["method"]) == pytest.approx(expected)


def test_claims_on_languages_are_judged_by_their_rules():
    worse = {"light": [2] * 9, "english": [1] * 9}
    better = {"light": [1] * 9, "english": [2] * 9}
    for ranks, expected in ((worse, False), (better, True)):
        rows = [{"language": name} | ranks for name in ("en", "de")]
        assert [entry["met"] for entry in compare(rows)] == [expected, expected]


def test_the_shipped_table_by_language_has_all_that_light_reads(results):
    assert [row["language"] for row in results.languages] == LANGUAGES
    assert all(entry["met"] for entry in compare(results.languages))  # as the page says


def test_a_goal_compares_with_the_better_rival(results):
    for goal in goals(results):
        assert goal["below"]["difference"] <= goal["above"]["difference"]
        assert goal["met"] == (goal["below"]["difference"] >= -1 and goal["above"]["difference"] >= 3)
