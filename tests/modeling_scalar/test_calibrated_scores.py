"""The score with a scale and an offset of each modality, against a float64 loop."""

import json
import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.nn.functional import normalize

from eval.embedding.embeddings import Embeddings
from eval.protocol.first_stage import measure_first_stage
from gallery.exact.blocks import blocks_of
from gallery.exact.ranking import rank
from gallery.gallery import Gallery, GalleryWriter
from modeling_scalar import ScalarConfig
from modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from modeling_scalar.scores_scalar import paired_centroids, paired_weights, query_weights, retrieval_scores
from tests.scores import METHODS

SCALE, OFFSET = [0.5, 2.0, 1.25], [0.3, -0.1, 0.05]
CALIBRATION = {"modality_scale": SCALE, "modality_offset": OFFSET}
FLOAT32 = {"atol": 3e-6, "rtol": 0}  # a few roundings of sums of D products, scaled by 2
GENERALISED = {"scalar", "uniform", "max", "mean"}
UNCALIBRATED = {"gram", "gram_span", "hypergram", "triangle", "pmrl_raw", "pmrl", "concat_head", "symile"}


def random_clips(num_queries=7, num_clips=23, dim=24, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(num_queries, dim, generator=generator, dtype=torch.float64), dim=-1)
    modalities = normalize(torch.randn(num_clips, 3, dim, generator=generator, dtype=torch.float64), dim=-1)
    mask = torch.rand(num_clips, 3, generator=generator) < 0.6
    mask[torch.arange(num_clips), torch.arange(num_clips) % 3] = True
    assert {1, 2, 3} == set(mask.sum(1).tolist())
    return texts.to(dtype), modalities.to(dtype), mask


def loop(
    texts,
    modalities,
    mask,
    tau=0.1,
    modality_scale=(1, 1, 1),
    modality_offset=(0, 0, 0),
    method="scalar",
):
    """Scores (Q, V) and weights (Q, V, 3), one pair and one coordinate at a time."""
    scores = torch.zeros(len(texts), len(modalities), dtype=torch.float64)
    weights = torch.zeros(*scores.shape, 3, dtype=torch.float64)
    for q, text in enumerate(texts.double().tolist()):
        for v in range(len(modalities)):
            here = [m for m in range(3) if mask[v, m]]
            z = {m: modalities[v, m].double().tolist() for m in here}
            c = {
                m: modality_scale[m] * sum(x * y for x, y in zip(text, z[m], strict=True)) + modality_offset[m]
                for m in here
            }
            if method in ("max", "mean"):
                scores[q, v] = max(c.values()) if method == "max" else sum(c.values()) / len(here)
                continue
            powers = {m: 1.0 if method == "uniform" else math.exp((c[m] - max(c.values())) / tau) for m in here}
            alpha = {m: power / sum(powers.values()) for m, power in powers.items()}
            total = [sum(alpha[m] * z[m][d] for m in here) for d in range(len(text))]
            norm = math.sqrt(sum(x * x for x in total))
            scores[q, v] = sum(alpha[m] * c[m] for m in here) / norm
            for m in here:
                weights[q, v, m] = alpha[m]
    return scores, weights


@pytest.mark.parametrize("calibration", [{}, CALIBRATION], ids=["plain", "calibrated"])
@pytest.mark.parametrize("method", sorted(GENERALISED))
def test_generalised_scores_equal_the_float64_loop(method, calibration):
    clips = random_clips()
    expected, _ = loop(*clips, **calibration, method=method)
    scores = retrieval_scores(*clips, method=method, **calibration)
    torch.testing.assert_close(scores.double(), expected, **FLOAT32)
    # the differentiable form is another computation
    scores = retrieval_scores(clips[0].clone().requires_grad_(), *clips[1:], method=method, **calibration)
    assert scores.requires_grad
    torch.testing.assert_close(scores.detach().double(), expected, **FLOAT32)


@pytest.mark.parametrize("query_temperature", [0.01, 0.06, 0.2, 5.0])
def test_no_temperature_overflows_a_calibrated_score(query_temperature):
    clips = random_clips()
    calibration = {"modality_scale": [3.0, 0.2, 1.0], "modality_offset": [-2.0, 1.0, 0.5]}
    expected, _ = loop(*clips, query_temperature, **calibration)
    scores = retrieval_scores(*clips, query_temperature=query_temperature, **calibration)
    torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_neutral_numbers_change_no_bit_of_any_score(method):
    clips = random_clips()
    heads = random_clips(seed=1)[1]
    plain = retrieval_scores(*clips, method=method, concat_embeds=heads)
    neutral = {"modality_scale": [1, 1.0, 1], "modality_offset": (0, 0.0, 0)}
    assert torch.equal(retrieval_scores(*clips, method=method, concat_embeds=heads, **neutral), plain)


@pytest.mark.parametrize("method", sorted(UNCALIBRATED))
def test_joint_scores_that_compare_no_cosines_ignore_calibration(method):
    clips = random_clips()
    heads = random_clips(seed=1)[1]
    plain = retrieval_scores(*clips, method=method, concat_embeds=heads)
    assert torch.equal(retrieval_scores(*clips, method=method, concat_embeds=heads, **CALIBRATION), plain)


@pytest.mark.parametrize("method", ["video", "audio", "subtitle", "rank_fusion"])
def test_single_modalities_and_their_ranks_stay_cosines(method):
    texts, modalities, mask = random_clips()
    scores = retrieval_scores(texts, modalities, mask, method=method)
    assert torch.equal(retrieval_scores(texts, modalities, mask, method=method, **CALIBRATION), scores)
    if method != "rank_fusion":
        index = ("video", "audio", "subtitle").index(method)
        here = mask[:, index]
        torch.testing.assert_close(scores[:, here], texts @ modalities[here, index].T)


def test_calibrated_weights_and_centroids_equal_the_float64_loop():
    texts, modalities, mask = random_clips(num_queries=23)
    _, expected = loop(texts, modalities, mask, **CALIBRATION)
    weights = query_weights(texts, modalities, mask, **CALIBRATION)
    torch.testing.assert_close(weights.double(), expected, atol=2e-5, rtol=0)  # c / tau is rounded, and c up to 2.3
    assert (weights[:, ~mask] == 0).all()
    own = expected[torch.arange(23), torch.arange(23)]
    torch.testing.assert_close(paired_weights(texts, modalities, mask, **CALIBRATION).double(), own, atol=2e-5, rtol=0)
    centroids = normalize((own[..., None] * modalities.double()).sum(1), dim=-1)
    found = paired_centroids(texts, modalities, mask, **CALIBRATION)
    torch.testing.assert_close(found.double(), centroids, atol=2e-5, rtol=0)


def test_a_calibrated_score_is_exact_where_modalities_nearly_cancel():
    texts, modalities, mask = random_clips()
    mask[0] = torch.tensor([True, True, False])
    modalities[0, 1] = normalize(-modalities[0, 0] + 0.01 * modalities[0, 2], dim=-1)
    expected, _ = loop(texts, modalities, mask, 10.0, **CALIBRATION)  # the weights are nearly equal
    scores = retrieval_scores(texts, modalities, mask, query_temperature=10.0, **CALIBRATION)
    torch.testing.assert_close(scores.double(), expected, atol=1e-4, rtol=1e-4)
    assert scores[:, 0].abs().max() > 2  # else nothing cancels


@pytest.mark.parametrize("method", sorted(GENERALISED))
def test_tiles_agree_with_the_plain_call(method, monkeypatch):
    texts, modalities, mask = random_clips()
    left = mask.clone()
    left[mask.sum(1) == 3, 1] = False
    expected = retrieval_scores(texts, modalities, left, method=method, **CALIBRATION)
    monkeypatch.setattr("modeling_scalar.scores_scalar._TILE", (3, 5))
    with torch.no_grad():
        tiled = retrieval_scores(texts, modalities, left, method=method, **CALIBRATION)
        torch.testing.assert_close(tiled, expected, **FLOAT32)
        plain = retrieval_scores(texts, modalities, left, method=method)
        assert (plain - expected).abs().max() > 0.1


def test_what_an_absent_modality_holds_changes_no_calibrated_score():
    texts, modalities, mask = random_clips()
    expected = retrieval_scores(texts, modalities, mask, **CALIBRATION)
    filled = torch.where(mask[..., None], modalities, float("nan"))
    assert torch.equal(retrieval_scores(texts, filled, mask, **CALIBRATION), expected)


def test_scales_offsets_and_temperature_have_the_gradient_of_the_float64_loop():
    texts, modalities, mask = random_clips(num_clips=5, num_queries=2, dtype=torch.float64)
    numbers = [torch.tensor(SCALE + OFFSET + [0.2], dtype=torch.float64)]

    def total(values):
        scores = retrieval_scores(
            texts, modalities, mask, "scalar", values[6], modality_scale=values[:3], modality_offset=values[3:6]
        )
        return (scores * torch.arange(10).view(2, 5)).sum()

    assert torch.autograd.gradcheck(total, [numbers[0].requires_grad_()])


def test_a_traced_graph_scores_the_generalisation_alike(monkeypatch):
    clips = random_clips()
    expected, _ = loop(*clips, **CALIBRATION)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(retrieval_scores(*clips, **CALIBRATION).double(), expected, **FLOAT32)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"modality_scale": [1, 0, 1]}, "`modality_scale` must be 3 finite numbers above 0"),
        ({"modality_scale": [1, 1]}, "`modality_scale` must be 3"),
        ({"modality_scale": 2.0}, "`modality_scale` must be 3"),
        ({"modality_scale": [1, 1, 10**400]}, "`modality_scale` must be 3"),
        ({"modality_offset": [0, float("nan"), 0]}, "`modality_offset` must be 3 finite numbers, one"),
        ({"modality_offset": [0, "1", True]}, "`modality_offset` must be 3"),
        ({"modality_offset": torch.zeros(3, 1)}, "`modality_offset` must be 3"),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        retrieval_scores(*random_clips(), **options)
    if not isinstance(next(iter(options.values())), torch.Tensor):
        for config_class in (ScalarConfig, ScalarJointConfig):
            with pytest.raises(StrictDataclassError, match=next(iter(options))):
                config_class(**options)


# What models, galleries and evaluation make of it --------------------------------------------------------------------


class Scores(ScalarRetrievalModel):
    """No encoder at all: what scores vectors that are there."""

    config_class = ScalarJointConfig

    def __init__(self, config):
        super().__init__(config)
        self.add_score_modules()
        self.post_init()


@pytest.mark.parametrize("config_class", [ScalarConfig, ScalarJointConfig])
def test_a_configuration_keeps_its_calibration_and_has_none_by_default(config_class, tmp_path):
    config_class().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert all(saved.get(name) is None for name in CALIBRATION)
    config_class(**CALIBRATION).save_pretrained(tmp_path)
    loaded = config_class.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in CALIBRATION} == CALIBRATION


def test_a_model_scores_and_weighs_as_its_configuration_says():
    clips = random_clips()
    model = Scores(ScalarJointConfig(**CALIBRATION))
    assert model.score_options() == {"method": "scalar", "query_temperature": 0.1} | CALIBRATION
    scores, weights = loop(*clips, **CALIBRATION)
    torch.testing.assert_close(model.compute_scores(*clips).double(), scores, **FLOAT32)
    torch.testing.assert_close(model.compute_weights(*clips).double(), weights, atol=2e-5, rtol=0)
    assert set(Scores(ScalarJointConfig(modality_scale=SCALE)).score_options()) == {
        "method",
        "query_temperature",
        "modality_scale",
    }


@pytest.mark.parametrize("own", [{}, {"modality_scale": [3.0, 1.0, 1.0]}])
def test_what_a_model_is_given_takes_the_place_of_its_own_calibration(own):
    clips = random_clips()
    model = Scores(ScalarJointConfig(**own))
    for given in (CALIBRATION, {"modality_scale": [1, 1, 1], "modality_offset": [0, 0, 0]}):
        scores, weights = loop(*clips, tau=0.2, **given)
        given = {"query_temperature": 0.2} | given
        torch.testing.assert_close(model.compute_scores(*clips, **given).double(), scores, **FLOAT32)
        torch.testing.assert_close(model.compute_weights(*clips, **given).double(), weights, atol=2e-5, rtol=0)


def write_gallery(folder, modalities, mask, metadata):
    names = [f"clip{row}" for row in range(len(modalities))]
    with GalleryWriter(folder, "float16") as writer:
        writer.metadata = metadata
        writer.put_clips(names, modalities, mask)
        writer.commit()
    return Gallery.open(folder)


def test_a_gallery_is_searched_with_its_own_calibration(tmp_path):
    texts, modalities, mask = random_clips()
    half = modalities.half()
    gallery = write_gallery(tmp_path / "g", half, mask, {"query_temperature": 0.1, "score_options": CALIBRATION})
    scores, weights = loop(texts, half, mask, **CALIBRATION)
    for query, hits in enumerate(gallery.search(texts, k=5)):
        order = scores[query].argsort(descending=True)[:5].tolist()
        assert [hit.clip_id for hit in hits] == [f"clip{row}" for row in order]
        for hit, row in zip(hits, order, strict=True):
            assert hit.score == pytest.approx(scores[query, row].item(), abs=1e-5)
            expected = weights[query, row].tolist()
            assert list(hit.weights.values()) == pytest.approx(expected, abs=1e-4)
    other, _ = loop(texts, half, mask)
    (hits, *_) = gallery.search(texts, k=1, modality_scale=[1, 1, 1], modality_offset=[0, 0, 0])
    assert hits[0].score == pytest.approx(other[0].max().item(), abs=1e-5)


@pytest.mark.parametrize("k", [2, 20])
@pytest.mark.parametrize("method", sorted(set(METHODS) - UNCALIBRATED))
def test_every_block_and_the_whole_gallery_rank_as_the_matrix_does(tmp_path, monkeypatch, method, k):
    texts, modalities, mask = random_clips()
    gallery = write_gallery(tmp_path / "g", modalities.half(), mask, {})
    for name in ("_BLOCK", "_BLOCK_OF_FEW"):
        monkeypatch.setattr(f"gallery.exact.ranking.{name}", 4)
    scores, rows, _ = rank(blocks_of(gallery.parts), texts, k, method, **CALIBRATION)
    expected = retrieval_scores(texts, modalities.half().float(), mask, method=method, **CALIBRATION)
    torch.testing.assert_close(scores, expected.sort(dim=1, descending=True).values[:, :k], **FLOAT32)
    torch.testing.assert_close(expected.gather(1, rows), scores, **FLOAT32)


@pytest.mark.parametrize("options", [{"modality_scale": [1, -1, 1]}, {"modality_offset": "0"}])
def test_a_gallery_with_a_calibration_that_makes_no_sense_is_refused(options):
    with pytest.raises(ValueError, match=f"metadata of the gallery: `{next(iter(options))}` must be 3"):
        Gallery([], metadata={"score_options": options})


def make_embeddings():
    texts, modalities, mask = random_clips(num_queries=23)
    names = [str(row) for row in range(23)]
    return Embeddings(texts, modalities, mask, torch.arange(23)[:, None].expand(-1, 2), names, names, names)


def test_evaluation_ranks_and_weighs_by_the_generalised_score():
    embeddings = make_embeddings()
    measured, table = measure_first_stage(embeddings, rates=(0.0,), **CALIBRATION)
    scores, weights = loop(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, **CALIBRATION)
    ranks = 1 + (scores > scores.diagonal()[:, None]).sum(1)
    entry = measured["rates"][0]
    recall = 100 * (ranks <= 5).double().mean().item()
    assert entry["methods"]["scalar"]["text_to_video_recall_at_5"] == pytest.approx(recall)
    own = weights[torch.arange(23), torch.arange(23)]
    assert list(entry["mean_weight"].values()) == pytest.approx(own.mean(0).tolist(), abs=1e-4)
    assert table["rank_scalar"] == ranks.tolist()
    assert table["weight_audio"] == pytest.approx(own[:, 1].tolist(), abs=1e-4)
