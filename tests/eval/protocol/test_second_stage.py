"""The second stage against loops over single pairs."""

import math
from itertools import product

import pytest
import torch

from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.metrics.retrieval.ranking import relevant_ranks
from scalar_retrieval.eval.protocol.missing import mask_modalities
from scalar_retrieval.eval.protocol.second_stage import (
    FUSION_WEIGHTS,
    TwoStage,
    first_candidates,
    fused_values,
    two_stage_scores,
)
from scalar_retrieval.eval.protocol.statistics import area_under_curve
from scalar_retrieval.gallery.second_stage.matching import POLICIES
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS, retrieval_scores
from tests.eval.protocol.slow_matching import (
    CAPTIONS,
    PairByPair,
    evaluate_two_stage,
    make_dataset,
    make_rows,
)
from tests.eval.slow import slow_metrics

OPTIONS = {"method": "scalar", "query_temperature": 0.1}


def slow_value(score, logit, weight=None):
    """What a candidate is reordered by, in float64; NaN where nothing could be read."""
    return logit if weight is None or math.isnan(logit) else score + weight * logit


def slow_order(scores, relevant, depth, value):
    """The columns of one row after both stages, best first, by lists; what is relevant comes last among equals."""
    columns = sorted(range(len(scores)), key=lambda c: (-scores[c], c in relevant, c))
    first, rest = columns[:depth], columns[depth:]

    def tie(c):
        return 2 if c in relevant else 0 if math.isnan(value(c)) else 1

    first = sorted(first, key=lambda c: (-scores[c], tie(c)))
    readable = sorted((c for c in first if not math.isnan(value(c))), key=lambda c: (-value(c), c in relevant))
    readable = iter(readable)
    return [c if math.isnan(value(c)) else next(readable) for c in first] + rest


# With 2 a step of a logit is a step of a score: sums tie where neither of their parts does.
@pytest.mark.parametrize("weight", [None, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("depth", [1, 4, 50])
def test_each_relevant_candidate_has_the_worst_rank_that_ties_allow(depth, weight):
    generator = torch.Generator().manual_seed(depth)
    scores = torch.randint(0, 4, (60, 7), generator=generator).float()  # full of ties
    scores[:10] = torch.rand(10, 7, generator=generator)  # and none
    scores[10:14, 2] = -torch.inf
    relevant = torch.rand(60, 7, generator=generator) < 0.4
    relevant[~relevant.any(dim=1), 3] = True
    pairs = relevant.nonzero()
    candidates = first_candidates(scores, pairs, depth)
    logits = torch.randint(-1, 2, candidates.shape, generator=generator) / 2
    logits[torch.rand(candidates.shape, generator=generator) < 0.25] = torch.nan
    values = logits if weight is None else fused_values(scores.gather(1, candidates), logits, weight)
    ranks = relevant_ranks(two_stage_scores(scores, pairs, candidates, values), pairs)
    assert (ranks != relevant_ranks(scores, pairs)).any() or depth == 1 or weight == 0
    for row, line in enumerate(scores.tolist()):
        chance = {}
        for column, logit in zip(candidates[row].tolist(), logits[row].tolist(), strict=True):
            chance[column] = slow_value(line[column], logit, weight)
        columns = relevant[row].nonzero().flatten().tolist()
        order = slow_order(line, columns, depth, chance.get)
        expected = sorted(order.index(column) + 1 for column in columns)
        assert sorted(ranks[pairs[:, 0] == row].tolist()) == expected


def first_scores(embeddings, mask, **options):
    given = embeddings.text_embeds, embeddings.modality_embeds, mask
    return retrieval_scores(*given, modalities=embeddings.modalities, **options)


def slow_logits(pair_by_pair, embeddings, mask, policy="absent"):
    """The match of every single pair, (Q, V)."""
    clips = list(enumerate(mask.tolist()))
    return [[pair_by_pair(caption, *clip, policy) for clip in clips] for caption in embeddings.captions]


def slow_two_stage(pair_by_pair, embeddings, depth, rate, policy, score_options, weight=None):
    """Both directions from the match of every single pair, alone or added to the score with a weight."""
    mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate)
    scores, pairs = first_scores(embeddings, mask, **score_options).double(), embeddings.pairs
    values = torch.tensor(slow_logits(pair_by_pair, embeddings, mask, policy), dtype=torch.float64)
    for place in product(*map(range, values.shape)):
        values[place] = slow_value(scores[place].item(), values[place].item(), weight)
    result = {"num_unread_pairs": 0}
    for direction in DIRECTIONS:
        ranks = []
        for row in pairs[:, 0].unique().tolist():
            columns = pairs[pairs[:, 0] == row, 1].tolist()
            order = slow_order(scores[row].tolist(), columns, depth, values[row].tolist().__getitem__)
            ranks += [(order.index(column) + 1, row) for column in columns]
            result["num_unread_pairs"] += values[row, order[:depth]].isnan().sum().item()
        metrics = slow_metrics(*zip(*ranks, strict=True))
        result |= {f"{direction}_{name}": value for name, value in metrics.items() if name != "num_queries"}
        scores, values, pairs = scores.T, values.T, pairs.flip(1)
    return result


def make_set(model, processor, kind):
    """Rows and embeddings: a caption per clip, several captions of a clip, or labels of several clips."""
    rows = make_rows()
    if kind == "captions":
        rows = [*rows, rows[0] | {"caption": "a blue square"}, rows[3] | {"caption": "the cat says hello"}]
        return rows, embed_dataset(model, processor, make_dataset(rows), progress=False)
    labels = ["a dog barks", "music", "weather"]
    rows = [row | {"caption": labels[place % 3]} for place, row in enumerate(rows)]
    return rows, embed_dataset(model, processor, make_dataset(rows), progress=False, task="classification")


@pytest.mark.parametrize(("kind", "method"), [("captions", "scalar"), ("labels", "video")])
def test_evaluation_is_the_slow_loop_over_everything_and_reads_each_clip_and_pair_once(
    model, processor, monkeypatch, kind, method
):
    rows, embeddings = make_set(model, processor, kind)
    arguments = model, processor, make_dataset(rows), embeddings
    options = {"method": method, "query_temperature": 0.1}
    settings = {"policies": POLICIES, "rates": (0.0, 0.5, 0.9)}
    monkeypatch.setattr("scalar_retrieval.eval.protocol.second_stage._BLOCK", 3)
    sizes = {"score_options": options, "batch_size": 2, "progress": False}

    matched, match = [], model.match
    monkeypatch.setattr(model, "match", lambda ids, *rest: matched.append(len(ids)) or match(ids, *rest))
    processor.read.clear()
    found = evaluate_two_stage(*arguments, (5, 2, 50), 0.3, **settings, **sizes)
    assert len(processor.read) == len(set(processor.read)) == 7  # each once
    num_pairs = sum(matched)
    matched.clear()
    evaluate_two_stage(*arguments, (50,), **settings, **sizes)
    assert sum(matched) == num_pairs > 0  # at more depths and by both rules no more is read

    orders = [tuple(row[name] for name in ("policy", "rate", "rule", "depth")) for row in found]
    assert orders == list(product(*settings.values(), ("match", "fused"), (2, 5, 50)))
    pair_by_pair = PairByPair(model, processor, rows)
    for row, (policy, rate, rule, depth) in zip(found, orders, strict=True):
        weight = 0.3 if rule == "fused" else None
        expected = slow_two_stage(pair_by_pair, embeddings, depth, rate, policy, options, weight)
        assert row["method"] == method and row.get("weight") == weight
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9), (policy, rate, rule, depth)
        assert not row["num_unread_pairs"] or policy == "absent"
    # The metrics distinguish the settings, or the comparison would show little.
    results = {(row["text_to_video_mean_rank"], row["video_to_text_mean_rank"]) for row in found}
    assert len(results) > 3 and any(row["num_unread_pairs"] for row in found)


def test_embeddings_of_other_clips_are_refused(model, processor):
    embeddings = embed_dataset(model, processor, make_dataset(make_rows()), progress=False)
    dataset = make_dataset(make_rows(captions=[*CAPTIONS[1:], "music"]))
    with pytest.raises(ValueError, match="those of `dataset`"):
        TwoStage(model, processor, dataset, embeddings, 1, score_options=OPTIONS)


def test_a_model_that_reads_subtitles_reranks_clips_that_have_nothing_else(subtitle_model, processor):
    rows, embeddings = make_set(subtitle_model, processor, "captions")
    arguments = subtitle_model, processor, make_dataset(rows), embeddings
    (found,) = evaluate_two_stage(*arguments, (5,), rates=(0.9,), progress=False)
    expected = slow_two_stage(PairByPair(subtitle_model, processor, rows), embeddings, 5, 0.9, "absent", OPTIONS)
    assert {name: found[name] for name in expected} == pytest.approx(expected) and found["num_unread_pairs"] == 0
    with pytest.raises(ValueError, match="reads .*subtitle, `policies` must be some of.*'zeros'"):
        evaluate_two_stage(*arguments, policies=POLICIES, progress=False)


def test_the_weight_is_the_smallest_of_the_best_over_directions_and_masks(model, processor):
    rows, embeddings = make_set(model, processor, "captions")
    stages = TwoStage(model, processor, make_dataset(rows), embeddings, 5, rates=(0.9, 0.0), progress=False)
    chosen = stages.choose_weight()
    pair_by_pair, curve = PairByPair(model, processor, rows), []
    for weight in FUSION_WEIGHTS:
        found = [slow_two_stage(pair_by_pair, embeddings, 5, rate, "absent", OPTIONS, weight) for rate in (0.9, 0.0)]
        curve.append(sum(metrics[f"{d}_recall_at_1"] for metrics in found for d in DIRECTIONS) / 4)
    assert chosen["grid"] == list(FUSION_WEIGHTS) and chosen["curve"] == pytest.approx(curve)
    rounded = [round(value, 6) for value in curve]
    assert chosen["weight"] == FUSION_WEIGHTS[rounded.index(max(rounded))] > 0 and len(set(curve)) > 1
    assert stages.choose_weight((0.0, 1e-9, 2e-9))["weight"] == 0


@pytest.mark.parametrize(("kind", "depth"), [("captions", 2), ("labels", 50)])
def test_the_diagnostic_compares_every_matched_pair_with_every_hard_one(model, processor, kind, depth):
    rows, embeddings = make_set(model, processor, kind)
    stages = TwoStage(model, processor, make_dataset(rows), embeddings, depth, rates=(0.5, 0.0), progress=False)
    found, mask = stages.diagnostic(), embeddings.modality_mask
    logits = torch.tensor(slow_logits(PairByPair(model, processor, rows), embeddings, mask), dtype=torch.float64)
    candidates = first_candidates(first_scores(embeddings, mask, **OPTIONS), embeddings.pairs, depth)
    kinds = torch.zeros(logits.shape).scatter(1, candidates, 1)  # of pairs: 1 is hard, 2 matched
    kinds[tuple(embeddings.pairs.T)] = 2
    hard, matched = (logits[(kinds == kind) & ~logits.isnan()].tolist() for kind in (1, 2))
    assert found["auc"] == pytest.approx(area_under_curve(matched, hard), abs=1e-9)
    assert (found["num_matched_pairs"], found["num_hard_pairs"]) == (len(matched), len(hard))
    assert (found["policy"], found["depth"]) == ("absent", depth) and 0 < found["auc"] < 1
