"""The second stage against loops over single pairs."""

import math
from itertools import product

import pytest
import torch

from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import relevant_ranks
from scalar_retrieval.eval.protocol.missing import mask_modalities
from scalar_retrieval.eval.protocol.second_stage import (
    FUSION_WEIGHTS,
    TwoStage,
    first_candidates,
    fused_values,
    two_stage_scores,
)
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


def two_stage_ranks(scores, pairs, candidates, logits, weight=None):
    values = logits if weight is None else fused_values(scores.gather(1, candidates), logits, weight)
    return relevant_ranks(two_stage_scores(scores, pairs, candidates, values), pairs)


def slow_value(score, logit, weight=None):
    """What a candidate is reordered by, in float64; NaN where nothing could be read."""
    return logit if weight is None or math.isnan(logit) else score + weight * logit


def random_stage(shape, generator):
    scores = torch.randint(0, 4, shape, generator=generator).float()  # full of ties
    scores[:10] = torch.rand(10, shape[1], generator=generator)  # and none
    scores[10:14, 2] = -torch.inf
    return scores


def random_logits(candidates, generator):
    logits = torch.randint(-1, 2, candidates.shape, generator=generator) / 2
    logits[torch.rand(candidates.shape, generator=generator) < 0.25] = torch.nan
    return logits


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
    scores = random_stage((60, 7), generator)
    relevant = torch.rand(60, 7, generator=generator) < 0.4
    relevant[~relevant.any(dim=1), 3] = True
    pairs = relevant.nonzero()
    assert relevant.sum(dim=1).max() > 3
    candidates = first_candidates(scores, pairs, depth)
    logits = random_logits(candidates, generator)
    ranks = two_stage_ranks(scores, pairs, candidates, logits, weight)
    assert (ranks != relevant_ranks(scores, pairs)).any() or depth == 1 or weight == 0
    for row in range(60):
        values = scores[row].tolist()
        chance = {}
        for column, logit in zip(candidates[row].tolist(), logits[row].tolist(), strict=True):
            chance[column] = slow_value(values[column], logit, weight)
        columns = relevant[row].nonzero().flatten().tolist()
        order = slow_order(values, columns, depth, chance.get)
        expected = sorted(order.index(column) + 1 for column in columns)
        assert sorted(ranks[pairs[:, 0] == row].tolist()) == expected


def slow_two_stage(pair_by_pair, embeddings, depth, rate, policy, score_options, weight=None):
    """Both directions from the match of every single pair, alone or added to the score with a weight."""
    mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate)
    given = embeddings.text_embeds, embeddings.modality_embeds, mask
    scores = retrieval_scores(*given, modalities=embeddings.modalities, **score_options)
    pairs, result, unread = embeddings.pairs.tolist(), {}, 0

    def matched(query, clip):
        logit = pair_by_pair(embeddings.captions[query], clip, mask[clip].tolist(), policy)
        return slow_value(scores[query, clip].item(), logit, weight)

    for direction in ("text_to_video", "video_to_text"):
        by_text = direction == "text_to_video"
        relevant = {}
        for query, clip in pairs:
            row, column = (query, clip) if by_text else (clip, query)
            relevant.setdefault(row, []).append(column)
        ranks, rows = [], []
        for row, columns in relevant.items():
            values = (scores if by_text else scores.T)[row].tolist()

            def chance(column, row=row, by_text=by_text):
                return matched(row, column) if by_text else matched(column, row)

            order = slow_order(values, columns, depth, chance)
            ranks += [order.index(c) + 1 for c in columns]
            rows += [row] * len(columns)
            unread += sum(
                math.isnan(chance(c))
                for c in sorted(range(len(values)), key=lambda c: (-values[c], c in columns, c))[:depth]
            )
        metrics = without(slow_metrics(ranks, rows), "num_queries")
        result |= {f"{direction}_{name}": value for name, value in metrics.items()}
    return result | {"num_unread_pairs": unread}


def make_set(model, processor, kind):
    """Rows and embeddings: a caption per clip, several captions of a clip, or labels of several clips."""
    rows = make_rows()
    if kind == "captions":
        rows = [*rows, rows[0] | {"caption": "a blue square"}, rows[3] | {"caption": "the cat says hello"}]
    embeddings = embed_dataset(model, processor, make_dataset(rows), progress=False)
    if kind == "labels":
        labels = ["a dog barks", "music", "weather"]
        rows = [row | {"caption": labels[i % 3]} for i, row in enumerate(rows)]
        text = processor(text=labels)
        embeddings = Embeddings(
            text_embeds=model.get_text_features(text["input_ids"], text["attention_mask"]).pooler_output.detach(),
            modality_embeds=embeddings.modality_embeds,
            modality_mask=embeddings.modality_mask,
            pairs=torch.tensor([[i % 3, i] for i in range(7)]),
            clip_ids=embeddings.clip_ids,
            query_ids=labels,
            captions=labels,
            modalities=embeddings.modalities,
        )
    return rows, embeddings


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
    files = [str(row["video_path"] or row["audio_path"] or row["subtitle"]) for row in make_rows()]
    assert sorted(processor.read) == sorted(files)  # each once
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
        assert (row["method"], row["mask_seed"], row.get("weight")) == (method, 0, weight)
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9), (policy, rate, rule, depth)
        assert not row["num_unread_pairs"] or policy == "absent"
    assert any(row["num_unread_pairs"] for row in found)
    # The metrics distinguish the settings, or the comparison would show little.
    results = {tuple(row[name] for name in row if "rank" in name or "precision" in name) for row in found}
    assert len(results) > 3


def test_embeddings_of_other_clips_are_refused(model, processor):
    embeddings = embed_dataset(model, processor, make_dataset(make_rows()), progress=False)
    for rows in (make_rows()[:5], make_rows(captions=CAPTIONS[::-1][:6] + ["music"])):
        with pytest.raises(ValueError, match="those of `dataset`"):
            evaluate_two_stage(model, processor, make_dataset(rows), embeddings, score_options=OPTIONS)


# Several depths, the fused rule, and what is known of the match -----------------------------------------------------


def without(entry, *names):
    return {name: value for name, value in entry.items() if name not in names}


def test_a_model_that_reads_subtitles_reranks_clips_that_have_nothing_else(subtitle_model, processor):
    rows, embeddings = make_set(subtitle_model, processor, "captions")
    arguments = subtitle_model, processor, make_dataset(rows), embeddings
    found = evaluate_two_stage(*arguments, (5,), rates=(0.0, 0.9), progress=False)
    pair_by_pair = PairByPair(subtitle_model, processor, rows)
    for row in found:
        expected = slow_two_stage(pair_by_pair, embeddings, 5, row["rate"], "absent", OPTIONS)
        assert {name: row[name] for name in expected} == pytest.approx(expected) and row["num_unread_pairs"] == 0
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
    best = max(round(value, 6) for value in curve)
    weights = [weight for weight, value in zip(FUSION_WEIGHTS, curve, strict=True) if round(value, 6) == best]
    assert chosen["weight"] == min(weights) > 0 and len(set(curve)) > 1
    assert [chosen[name] for name in ("depth", "policy", "method", "rates")] == [5, "absent", "scalar", [0.9, 0.0]]
    flat = stages.choose_weight((0.0, 1e-9, 2e-9))
    assert flat["weight"] == 0 and len(set(flat["curve"])) == 1
    masked = TwoStage(model, processor, make_dataset(rows), embeddings, 5, rates=(0.9,), progress=False)
    assert masked.choose_weight()["curve"] != chosen["curve"] and masked.diagnostic() is None


@pytest.mark.parametrize(("kind", "depth"), [("captions", 2), ("labels", 50)])
def test_the_diagnostic_compares_every_matched_pair_with_every_hard_one(model, processor, kind, depth):
    rows, embeddings = make_set(model, processor, kind)
    stages = TwoStage(model, processor, make_dataset(rows), embeddings, depth, rates=(0.5, 0.0), progress=False)
    found = stages.diagnostic()
    scores = retrieval_scores(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, **OPTIONS)
    pair_by_pair, mask = PairByPair(model, processor, rows), embeddings.modality_mask
    relevant = set(map(tuple, embeddings.pairs.tolist()))
    matched, hard = [], []
    for query, caption in enumerate(embeddings.captions):
        columns = scores[query].tolist()
        first = sorted(range(len(columns)), key=lambda c: (-columns[c], (query, c) in relevant, c))[:depth]
        for clip in range(len(columns)):
            logit = pair_by_pair(caption, clip, mask[clip].tolist(), "absent")
            if math.isnan(logit):
                continue
            if (query, clip) in relevant:
                matched.append(logit)
            elif clip in first:
                hard.append(logit)
    wins = sum((a > b) + (a == b) / 2 for a, b in product(matched, hard))
    assert found["auc"] == pytest.approx(wins / (len(matched) * len(hard)), abs=1e-9)
    assert (found["num_matched_pairs"], found["num_hard_pairs"]) == (len(matched), len(hard))
    assert (found["direction"], found["policy"], found["depth"]) == ("text_to_video", "absent", depth)
    assert 0 < found["auc"] < 1
