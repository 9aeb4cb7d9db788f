"""The protocol against slow loops over whole score matrices, in both directions."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch.nn.functional import normalize

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import retrieval_metrics
from scalar_retrieval.eval.protocol.first_stage import (
    evaluate_embeddings,
    measurable_methods,
    measure_first_stage,
    rank_pairs,
    recall_differences,
)
from scalar_retrieval.eval.protocol.missing import mask_modalities
from scalar_retrieval.modeling_scalar import MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, find_method, retrieval_scores
from tests.eval.slow import make_embeddings, slow_ranks
from tests.modeling_scalar.test_definitions import NUM_CLIPS, NUM_QUERIES, defined_pairs, draws
from tests.scores import METHODS


def random_embeddings(captions_each=3, several=False, heads=False):
    """Queries near one clip each, some of them with a second one; nobody describes the last two clips."""
    embeddings = make_embeddings(17, captions_each, dim=8, noise=1.5, undescribed=2)
    if several:
        generator, queries = torch.Generator().manual_seed(0), len(embeddings.query_ids)
        others = torch.stack([torch.arange(queries), torch.randint(15, (queries,), generator=generator)], dim=1)
        pairs = torch.cat([embeddings.pairs, others]).unique(dim=0)
        embeddings.pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    if heads:
        embeddings.concat_embeds = normalize(embeddings.modality_embeds.flip(2), dim=-1)
    return embeddings


def slow_metrics(embeddings, mask, method, direction, **options):
    texts, clips = embeddings.text_embeds, embeddings.modality_embeds
    options |= {"concat_embeds": embeddings.concat_embeds, "modalities": embeddings.modalities}
    scores = retrieval_scores(texts, clips, mask, method, direction=direction, **options)
    flipped = direction == "video_to_text"
    pairs = embeddings.pairs.flip(1) if flipped else embeddings.pairs
    metrics = retrieval_metrics(slow_ranks(scores.T if flipped else scores, pairs), pairs[:, 0])
    return {f"{direction}_{name}": value for name, value in metrics.items() if name != "num_queries"}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("max_pairs", [60, 10**6])
def test_metrics_of_every_method_agree_with_slow_ranks_of_whole_score_matrices(several, max_pairs, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.eval.protocol.first_stage._MAX_PAIRS", max_pairs)
    embeddings = random_embeddings(several=several, heads=True)
    options = {"query_temperature": 0.2, "curvature": 2.0, "rank_constant": 5}
    described = len(embeddings.pairs[:, 1].unique())
    assert described < len(embeddings.clip_ids) and (several == (len(embeddings.pairs) > len(embeddings.query_ids)))
    result = evaluate_embeddings(embeddings, rates=(0.0, 0.5), **options)
    for entry in result["rates"]:
        mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, entry["rate"])
        assert set(entry["methods"]) == set(METHODS)
        for method, metrics in entry["methods"].items():
            expected = {"num_unscorable_clips": (~find_method(method).covers(mask, MODALITIES)).sum().item()}
            for direction in DIRECTIONS:
                expected |= slow_metrics(embeddings, mask, method, direction, **options)
            assert metrics == pytest.approx(expected), method
        assert entry["methods"]["triangle"]["num_unscorable_clips"] > 0
    assert [entry["rate"] for entry in result["rates"]] == [0.0, 0.5]


@pytest.mark.parametrize("method", ["scalar", "uniform", "gram", "gram_span", "pmrl"])
def test_ranks_are_those_of_float64_loops_over_hard_clips(method):
    """Copies, near copies and cancelling modalities, some of them absent: scores that float32 tells apart are in the
    order of their definition."""
    certain = []

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(draws(method, dtypes=(torch.float32,), is_calibrated=False))
    def check(drawn):
        ids, rows = [f"query{row}" for row in range(NUM_QUERIES)], torch.arange(NUM_QUERIES)
        embeddings = Embeddings(*drawn[:3], rows[:, None].expand(-1, 2), list("abcde"), ids, ids, drawn.names)
        (ranks,) = rank_pairs(embeddings, [drawn.mask], [method], query_temperature=drawn.temperature)
        expected = torch.full((NUM_QUERIES, NUM_CLIPS), math.nan, dtype=torch.float64)
        for query, clip, score in defined_pairs(method, drawn):
            expected[query, clip] = score
        for direction, scores in zip(DIRECTIONS, (expected, expected.T), strict=True):
            others = scores[:NUM_QUERIES]
            own = others.diagonal()[:, None]
            # Both scores are rounded once.
            rounding = 2e-7 * own.abs().clamp(min=1)
            fewest = (others > own + rounding).sum(1) + 1
            most = (~(others < own - rounding)).sum(1)  # a pair without a definition may be anywhere
            found = ranks[method][direction]
            assert ((fewest <= found) & (found <= most)).all()
            certain.extend((fewest == most).tolist())

    check()
    assert sum(certain) > 100


def test_the_ladder_has_no_value_where_a_score_is_defined_for_no_clip():
    embeddings = random_embeddings(heads=True)
    recalls = [entry["text_to_video_recall_at_1"] for entry in measure_first_stage(embeddings)[0]["ladder"]]
    for method in recalls[0]:
        undefined = [index for index, recall in enumerate(recalls) if recall[method] is None]
        assert undefined == ([0] if method in ("triangle", "concat_head") else []), method
    with pytest.raises(ValueError, match="has_concat_heads"):
        evaluate_embeddings(random_embeddings(), ("concat_head",))


def test_a_clip_with_nothing_left_ranks_last_and_hides_nobody():
    embeddings = random_embeddings()
    lost = embeddings.pairs[:, 1] == 3
    mask = embeddings.modality_mask.clone()
    mask[3] = False
    (ranks,) = rank_pairs(embeddings, [mask], measurable_methods(embeddings))
    for method, by_direction in ranks.items():
        found = by_direction["text_to_video"]
        assert (found[lost] == 17).all() and (found[~lost] < 17).any(), method


def test_the_table_of_queries_tells_where_each_clip_ranked_and_differences_are_those_of_the_recalls():
    embeddings = random_embeddings(captions_each=13, several=True)
    measured, table = measure_first_stage(embeddings, rates=(0.0,))
    scores = retrieval_scores(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask)
    ranks, queries = slow_ranks(scores, embeddings.pairs), embeddings.pairs[:, 0]
    for row in range(len(embeddings.query_ids)):
        assert table["rank_scalar"][row] == ranks[queries == row].min()
    assert table["query_id"] == embeddings.query_ids
    recalls = measured["rates"][0]["methods"]
    for entry in recall_differences(table, "scalar", ("scalar", "video", "gram")):
        expected = recalls["scalar"]["text_to_video_recall_at_1"]
        expected -= recalls[entry["baseline"]]["text_to_video_recall_at_1"]
        assert entry["baseline"] in ("video", "gram") and entry["difference"] == pytest.approx(expected)
        assert entry["low"] <= expected <= entry["high"] and entry["low"] < entry["high"]


def test_embeddings_that_are_not_finite_are_refused_by_name_unless_masked():
    embeddings = random_embeddings()
    embeddings.modality_embeds[~embeddings.modality_mask] = float("nan")
    evaluate_embeddings(embeddings, rates=(0.0,))
    embeddings.text_embeds[4, 0] = float("nan")
    embeddings.modality_embeds[2] = float("inf")
    with pytest.raises(ValueError, match=r"\['query4'\] and the clips \['clip2'\]"):
        evaluate_embeddings(embeddings)
