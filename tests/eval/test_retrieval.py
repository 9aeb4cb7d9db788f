import math

import pytest
import torch

from eval.embed import Embeddings
from eval.missing import mask_modalities
from eval.retrieval import evaluate_embeddings, retrieval_metrics, retrieval_ranks
from modeling_scalar.aggregation_scalar import query_weights, retrieval_scores


def slow_ranks(scores, targets):
    ranks = []
    for row, target in zip(scores.tolist(), targets.tolist(), strict=True):
        ranks.append(1 + sum(score >= row[target] for clip, score in enumerate(row) if clip != target))
    return torch.tensor(ranks)


def random_embeddings(queries=40, clips=17, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(clips, 3, generator=generator) < 0.7
    mask[~mask.any(dim=1), 0] = True
    targets = torch.randint(clips, (queries,), generator=generator)
    modality_embeds = torch.nn.functional.normalize(torch.randn(clips, 3, dim, generator=generator), dim=-1)
    own = (modality_embeds * mask[..., None]).sum(dim=1)[targets]
    text_embeds = own + 0.5 * torch.randn(queries, dim, generator=generator)
    return Embeddings(
        text_embeds=torch.nn.functional.normalize(text_embeds, dim=-1),
        modality_embeds=modality_embeds * mask[..., None],
        modality_mask=mask,
        targets=targets,
        clip_ids=[f"clip{i}" for i in range(clips)],
        query_ids=[f"query{i}" for i in range(queries)],
    )


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_ranks_agree_with_a_slow_loop_with_ties(levels):
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (50, 30), generator=generator).float()
    targets = torch.randint(30, (50,), generator=generator)
    ranks = retrieval_ranks(scores, targets)
    assert torch.equal(ranks, slow_ranks(scores, targets))
    assert len(ranks.unique()) > 5


def test_best_score_of_its_own_clip_ranks_first():
    assert retrieval_ranks(torch.eye(6), torch.arange(6)).tolist() == [1] * 6


@pytest.mark.parametrize("value", [0.0, 1.0, float("-inf")])
def test_constant_scores_rank_last(value):
    assert retrieval_ranks(torch.full((4, 7), value), torch.tensor([0, 3, 5, 6])).tolist() == [7] * 4


def test_clip_that_cannot_be_scored_ranks_last():
    scores = torch.tensor([[float("-inf"), -1.0, float("-inf")]])
    assert retrieval_ranks(scores, torch.tensor([0])).tolist() == [3]


def test_nan_scores_are_refused_naming_the_queries():
    scores = torch.zeros(5, 4)
    scores[1, 2] = scores[3, 0] = float("nan")
    with pytest.raises(ValueError, match=r"\[1, 3\]"):
        retrieval_ranks(scores, torch.zeros(5, dtype=torch.long))


def test_targets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"rows \[0\]"):
        retrieval_ranks(torch.zeros(2, 3), torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="one target per query"):
        retrieval_ranks(torch.zeros(2, 3), torch.tensor([0]))


def test_metrics_of_known_ranks():
    assert retrieval_metrics(torch.tensor([1, 2, 5, 6, 10, 11, 40, 1])) == {
        "recall_at_1": 25.0,
        "recall_at_5": 50.0,
        "recall_at_10": 75.0,
        "median_rank": 5.5,
        "mean_rank": 9.5,
        "num_queries": 8,
    }
    assert retrieval_metrics(torch.tensor([3, 1, 2]))["median_rank"] == 2.0


@pytest.mark.parametrize("ranks", [[], [0, 1]])
def test_ranks_that_are_none_are_refused(ranks):
    with pytest.raises(ValueError, match="counted from 1"):
        retrieval_metrics(torch.tensor(ranks))


def test_figures_agree_with_slow_ranks_of_whole_score_matrices():
    embeddings = random_embeddings()
    result = evaluate_embeddings(embeddings, rates=(0.0, 0.5), mask_seed=3, query_temperature=0.2, block_size=7)
    recalls = set()
    for entry in result["rates"]:
        mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, entry["rate"], 3)
        for method, metrics in entry["methods"].items():
            scores = retrieval_scores(embeddings.text_embeds, embeddings.modality_embeds, mask, method, 0.2)
            expected = retrieval_metrics(slow_ranks(scores, embeddings.targets))
            assert metrics == {f"text_to_video_{key}": expected[key] for key in expected if key != "num_queries"}
            recalls.add(metrics["text_to_video_recall_at_1"])
    assert len(recalls) > 5
    assert [entry["rate"] for entry in result["rates"]] == [0.0, 0.5]


def test_gain_is_joint_recall_minus_that_of_the_best_pathway_under_the_same_masks():
    bests = []
    for entry in evaluate_embeddings(random_embeddings(), rates=(0.0, 0.5, 1.0))["rates"]:
        recalls = {name: metrics["text_to_video_recall_at_1"] for name, metrics in entry["methods"].items()}
        best = max(recalls[name] for name in ("video", "audio", "subtitle"))
        assert entry["best_pathway"]["text_to_video_recall_at_1"] == best == recalls[entry["best_pathway"]["method"]]
        assert entry["aggregation_gain"] == {name: recalls[name] - best for name in ("scalar", "uniform")}
        bests.append(best)
    assert len(set(bests)) > 1


def test_pathways_are_measured_even_if_not_asked_for():
    entry = evaluate_embeddings(random_embeddings(), methods=("scalar",), rates=(0.0,))["rates"][0]
    assert list(entry["methods"]) == ["scalar", "video", "audio", "subtitle"]
    assert list(entry["aggregation_gain"]) == ["scalar"]


def test_options_of_a_score_reach_it():
    embeddings, options = random_embeddings(), {"hyperbolic_mix": 0.1, "curvature": 2.0}
    plain, found = (
        evaluate_embeddings(embeddings, ("hypergram",), (0.0,), **more)["rates"][0]["methods"]["hypergram"]
        for more in ({}, options)
    )
    arguments = (embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, "hypergram")
    expected = retrieval_metrics(slow_ranks(retrieval_scores(*arguments, **options), embeddings.targets))
    assert found["text_to_video_mean_rank"] == expected["mean_rank"] != plain["text_to_video_mean_rank"]


def test_mean_weights_are_those_of_each_query_at_its_own_clip():
    embeddings = random_embeddings()
    result = evaluate_embeddings(embeddings, rates=(0.0,), query_temperature=0.2, block_size=9)
    weights = query_weights(embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask, 0.2)
    expected = weights[torch.arange(40), embeddings.targets].double().mean(dim=0)
    actual = torch.tensor(list(result["rates"][0]["mean_weight"].values()), dtype=torch.float64)
    # Inner products of blocks of another size may differ in their last float32 digit.
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    assert actual.sum().item() == pytest.approx(1, abs=1e-6)


def test_size_of_blocks_changes_nothing():
    embeddings = random_embeddings()
    results = [evaluate_embeddings(embeddings, block_size=size) for size in (1, 7, 1000)]
    for result in results:
        for entry in result["rates"]:
            entry["mean_weight"] = {name: round(weight, 5) for name, weight in entry["mean_weight"].items()}
    assert results[0] == results[1] == results[2]


def test_masks_lower_presence_by_the_number_of_masked_clips():
    embeddings = random_embeddings()
    whole, masked = evaluate_embeddings(embeddings, rates=(0.0, 1.0))["rates"]
    several = (embeddings.modality_mask.sum(dim=1) > 1).sum().item()
    assert whole["num_masked_clips"] == 0 and masked["num_masked_clips"] == several > 0
    assert sum(whole["presence"].values()) == embeddings.modality_mask.sum().item()
    assert sum(whole["presence"].values()) - sum(masked["presence"].values()) == several


def test_query_that_names_its_clip_in_one_modality_is_found_by_that_pathway_alone():
    clips = 6
    embeds = torch.zeros(clips, 3, 2 * clips)
    embeds[:, 1, :clips] = torch.eye(clips)
    embeds[:, 0, clips] = embeds[:, 2, clips + 1] = 1
    embeddings = Embeddings(
        text_embeds=embeds[:, 1].clone(),
        modality_embeds=embeds,
        modality_mask=torch.ones(clips, 3, dtype=torch.bool),
        targets=torch.arange(clips),
        clip_ids=[f"clip{i}" for i in range(clips)],
        query_ids=[f"query{i}" for i in range(clips)],
    )
    entry = evaluate_embeddings(embeddings, rates=(0.0,))["rates"][0]
    recalls = {name: metrics["text_to_video_recall_at_1"] for name, metrics in entry["methods"].items()}
    assert recalls == {"scalar": 100.0, "uniform": 100.0, "video": 0.0, "audio": 100.0, "subtitle": 0.0}
    assert entry["best_pathway"] == {"method": "audio", "text_to_video_recall_at_1": 100.0}
    # softmax([0, 1, 0] / 0.1): the audio takes 1 / (1 + 2 exp(-10)).
    assert entry["mean_weight"]["audio"] == pytest.approx(1 / (1 + 2 * math.exp(-10)), abs=1e-6)


def test_embeddings_that_are_not_finite_are_refused_by_name_unless_masked():
    embeddings = random_embeddings()
    embeddings.modality_embeds[~embeddings.modality_mask] = float("nan")
    evaluate_embeddings(embeddings, rates=(0.0,))
    embeddings.text_embeds[4, 0] = float("nan")
    embeddings.modality_embeds[2] = float("inf")
    with pytest.raises(ValueError, match=r"\['query4'\] and the clips \['clip2'\]"):
        evaluate_embeddings(embeddings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ("scalr",)}, "scalr"),
        ({"rates": ()}, "at least one masking rate"),
        ({"rates": (0.0, 2.0)}, "between 0 and 1"),
        ({"block_size": 0}, "block_size"),
        ({"query_temperature": 0.0}, "query_temperature"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate_embeddings(random_embeddings(), **arguments)
