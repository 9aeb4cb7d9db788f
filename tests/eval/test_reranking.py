"""The second stage against loops over single pairs and over all orders that ties allow."""

from itertools import permutations

import numpy as np
import pytest
import torch
from datasets import Dataset

from eval.benchmarks.columns import FEATURES
from eval.embed import embed_dataset
from eval.missing import mask_modalities
from eval.reranking import evaluate_two_stage, first_candidates, match_probabilities, two_stage_ranks
from eval.retrieval import retrieval_metrics, retrieval_ranks
from modeling_scalar import Clip, ScalarModel
from modeling_scalar.aggregation_scalar import retrieval_scores
from modeling_scalar.processing_scalar import FROM_VIDEO
from tests.conftest import make_tiny_config

OPTIONS = {"method": "scalar", "query_temperature": 0.1}
# What the clips hold: (video, audio, subtitle).
CONTENTS = [
    (True, True, "hello weather"),
    (True, False, None),
    (False, True, None),
    (False, False, "cat says hello"),
    (True, True, None),
    (False, True, "low tone"),
    (True, False, "the dog says music"),
]
CAPTIONS = ["a red circle", "the dog barks and the cat meows", "high tone", "hello", "about music", "low", "a cat"]


class MemoryProcessor:
    """The tiny processor over clips that are not read from files; remembers which were read."""

    def __init__(self, processor):
        self.processor = processor
        self.read = []

    def read_clip(self, video, audio=FROM_VIDEO, subtitle=None, on_error="raise"):
        self.read.append(video or audio or subtitle)
        numbers = np.random.default_rng(sum(map(ord, str(video or audio))))
        return Clip(
            frames=None if video is None else numbers.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8),
            waveform=None if audio is None else numbers.standard_normal(16_000).astype(np.float32) * 0.1,
            subtitle=subtitle,
        )

    def __call__(self, **inputs):
        return self.processor(**inputs)


def make_rows(contents=CONTENTS, captions=CAPTIONS):
    return [
        {
            "video_id": f"clip{i}",
            "caption": caption,
            "video_path": f"{i}.mp4" if video else None,
            "audio_path": f"{i}.mp4" if audio and video else f"{i}.wav" if audio else None,
            "subtitle": subtitle,
        }
        for i, ((video, audio, subtitle), caption) in enumerate(zip(contents, captions, strict=True))
    ]


def make_dataset(rows):
    return Dataset.from_list(rows, features=FEATURES)


@pytest.fixture
def processor(tiny_processor):
    return MemoryProcessor(tiny_processor)


@pytest.fixture
def model():
    torch.manual_seed(1)
    model = ScalarModel(make_tiny_config(initializer_range=0.3)).eval()
    torch.nn.init.normal_(model.match_head.classifier.weight)
    return model


@torch.no_grad()
def pair_by_pair(model, processor, rows, candidates, mask=None):
    """One pair at a time: no padding, no batches, and what is masked taken out of the clip itself."""
    mask = torch.ones(len(rows), 3, dtype=torch.bool) if mask is None else mask
    expected = torch.full(candidates.shape, torch.nan)
    for query, clips in enumerate(candidates.tolist()):
        text = processor(text=[rows[query]["caption"]])
        for place, index in enumerate(clips):
            clip = processor.read_clip(rows[index]["video_path"], rows[index]["audio_path"])
            clip.frames = clip.frames if mask[index, 0] else None
            clip.waveform = clip.waveform if mask[index, 1] else None
            if clip.is_empty:
                continue
            features = processor(clips=[clip])
            inputs = {name: features[name] for name in ("pixel_values_videos", "input_features") if name in features}
            condition = model.get_condition_states(**inputs)
            expected[query, place] = model.match(text["input_ids"], text["attention_mask"], *condition).item()
    return expected


def match(model, processor, rows, candidates, **options):
    return match_probabilities(model, processor, make_dataset(rows), candidates, progress=False, **options)


@pytest.mark.parametrize(("batch_size", "pair_batch_size"), [(1, 1), (2, 3), (3, 100), (100, 7)])
def test_probabilities_are_those_of_single_pairs_whatever_the_batches(model, processor, batch_size, pair_batch_size):
    rows = make_rows()
    candidates = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(q))[:4] for q in range(7)])
    expected = pair_by_pair(model, processor, rows, candidates)
    assert expected.isnan().sum() == (candidates == 3).sum() > 0
    readable = expected[~expected.isnan()]
    assert readable.min() < 0.4 and readable.max() > 0.6
    found = match(model, processor, rows, candidates, batch_size=batch_size, pair_batch_size=pair_batch_size)
    # Padding changes the order of sums, nothing else.
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0, equal_nan=True)


def test_several_captions_of_a_clip_are_queries_of_their_own(model, processor):
    rows = make_rows()
    rows = [*rows, rows[0] | {"caption": "a blue square"}]
    candidates = torch.arange(7).expand(8, -1)
    expected = pair_by_pair(model, processor, rows, candidates)
    assert (expected[0] - expected[7]).abs().nan_to_num().max() > 1e-3
    found = match(model, processor, rows, candidates, batch_size=3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0, equal_nan=True)


def test_only_candidates_are_read_and_no_more_at_once_than_a_batch(model, processor, monkeypatch):
    sizes, condition = [], model.get_condition_states

    def get_condition_states(**inputs):
        sizes.append(len(inputs["modality_mask"]))
        return condition(**inputs)

    monkeypatch.setattr(model, "get_condition_states", get_condition_states)
    candidates = torch.tensor([[0, 4]] * 4 + [[5, 2]] * 3)
    match(model, processor, make_rows(), candidates, batch_size=3, num_workers=1)
    assert processor.read == ["0.mp4", "2.wav", "4.mp4", "5.wav"]
    assert sizes == [3, 1]


def test_a_masked_modality_is_an_absent_one(model, processor):
    rows, candidates = make_rows(), torch.arange(7).expand(7, -1)
    mask = torch.ones(7, 3, dtype=torch.bool)
    mask[0, 0] = mask[1, 0] = mask[4, 1] = mask[6, 2] = False
    found = match(model, processor, rows, candidates, modality_mask=mask, batch_size=4)
    expected = pair_by_pair(model, processor, rows, candidates, mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0, equal_nan=True)
    assert found.isnan().any(dim=0).tolist() == [False, True, False, True, False, False, False]
    changed = (found - match(model, processor, rows, candidates)).abs().nan_to_num().amax(dim=0) > 1e-3
    assert changed.tolist() == [True, False, False, False, True, False, False]


def test_the_model_keeps_its_mode(model, processor):
    model.train()
    match(model, processor, make_rows(), torch.zeros(7, 1, dtype=torch.long))
    assert model.training


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        (torch.zeros(6, 2, dtype=torch.long), {}, "7 captions"),
        (torch.zeros(7, 0, dtype=torch.long), {}, "7 captions"),
        (torch.full((7, 2), 7), {}, "among the 7 clips"),
        (torch.full((7, 2), -1), {}, "among the 7 clips"),
        (torch.zeros(7, 2, dtype=torch.long), {"pair_batch_size": 0}, "at least 1"),
        (torch.zeros(7, 2, dtype=torch.long), {"modality_mask": torch.ones(6, 3, dtype=torch.bool)}, "modality_mask"),
    ],
)
def test_wrong_arguments_are_named(model, processor, candidates, options, message):
    with pytest.raises(ValueError, match=message):
        match(model, processor, make_rows(), candidates, **options)


def test_a_text_tower_without_cross_attention_says_so(processor):
    text = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "is_decoder": False}
    config = make_tiny_config(text_config=text | {"add_cross_attention": False})
    with pytest.raises(ValueError, match="cross-attention"):
        match(ScalarModel(config).eval(), processor, make_rows(), torch.zeros(7, 1, dtype=torch.long))


def worst_rank(scores, candidates, probabilities, target):
    """The worst place of the target over every order that the ties of both stages allow, by trying them all."""
    clips, depth = range(len(scores)), len(candidates)
    chance = dict(zip(candidates, probabilities, strict=True))
    worst = 0
    for order in permutations(clips):
        if any(scores[a] < scores[b] for a, b in zip(order, order[1:], strict=False)):
            continue
        first = list(order[:depth])
        if set(first) != set(candidates):  # another choice at a tie on the edge: the target may have lost it
            worst = max(worst, order.index(target) + 1) if target not in first else worst
            continue
        readable = [clip for clip in first if chance[clip] == chance[clip]]
        for again in permutations(readable):
            if any(chance[a] < chance[b] for a, b in zip(again, again[1:], strict=False)):
                continue
            places = iter(again)
            final = [clip if clip not in readable else next(places) for clip in first] + list(order[depth:])
            worst = max(worst, final.index(target) + 1)
    return worst


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_ranks_are_the_worst_that_ties_allow(depth):
    generator = torch.Generator().manual_seed(depth)
    shape = (40, 5)
    scores = torch.randint(0, 4, shape, generator=generator).float()  # full of ties
    scores[:10] = torch.rand(10, 5, generator=generator)  # and none
    scores[10:14, 2] = -torch.inf
    targets = torch.randint(0, 5, (40,), generator=generator)
    candidates = first_candidates(scores, depth)
    assert candidates.shape == (40, depth)
    probabilities = torch.randint(0, 3, candidates.shape, generator=generator) / 2
    probabilities[torch.rand(candidates.shape, generator=generator) < 0.25] = torch.nan
    found = two_stage_ranks(scores, candidates, probabilities, targets)
    expected = [
        worst_rank(*row)
        for row in zip(scores.tolist(), candidates.tolist(), probabilities.tolist(), targets.tolist(), strict=True)
    ]
    assert found.tolist() == expected
    assert (found != retrieval_ranks(scores, targets)).any() or depth == 1


def test_ranks_beyond_the_candidates_are_those_of_the_first_stage():
    scores = torch.arange(10.0).flip(0).expand(10, -1)
    candidates = first_candidates(scores, 4)
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(10, -1)
    ranks = two_stage_ranks(scores, candidates, probabilities, torch.arange(10))
    assert ranks.tolist() == [4, 3, 2, 1, 5, 6, 7, 8, 9, 10]


def test_an_unreadable_clip_keeps_its_place_and_the_others_share_the_rest():
    scores = torch.tensor([[5.0, 4, 3, 2, 1]]).expand(5, -1)
    candidates = torch.arange(4).expand(5, -1)
    probabilities = torch.tensor([0.1, torch.nan, 0.9, 0.5]).expand(5, -1)
    assert two_stage_ranks(scores, candidates, probabilities, torch.arange(5)).tolist() == [4, 2, 1, 3, 5]


def test_equal_scores_give_the_lower_column_first():
    assert first_candidates(torch.tensor([[1.0, 2, 1, 2]]), 3).tolist() == [[1, 3, 0]]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [([[1, 2]], "first clips"), ([[0, 0]], "first clips"), ([[0]], "got"), ([[0, 1], [0, 1]], "got")],
)
def test_candidates_of_other_scores_are_refused(candidates, message):
    scores, probabilities = torch.tensor([[3.0, 2, 1]]), torch.full((1, 2), 0.5)
    with pytest.raises(ValueError, match=message):
        two_stage_ranks(scores, torch.tensor(candidates), probabilities, torch.tensor([0]))


@pytest.mark.parametrize(("depth", "rate"), [(50, 0.0), (5, 0.0), (5, 0.9)])
def test_evaluation_is_first_stage_then_second_under_the_same_masks(model, processor, depth, rate):
    dataset = make_dataset(make_rows())
    embeddings = embed_dataset(model, processor, dataset, progress=False)
    found = evaluate_two_stage(
        model, processor, dataset, embeddings, depth, rate, block_size=3, score_options=OPTIONS, progress=False
    )
    mask = mask_modalities(embeddings.clip_ids, embeddings.modality_mask, rate)
    assert (mask != embeddings.modality_mask).any() == (rate > 0)
    scores = retrieval_scores(embeddings.text_embeds, embeddings.modality_embeds, mask, **OPTIONS)
    candidates = scores.sort(dim=1, descending=True).indices[:, :depth]
    probabilities = pair_by_pair(model, processor, make_rows(), candidates, mask)
    ranks = two_stage_ranks(scores, candidates, probabilities, embeddings.targets)
    assert (ranks != retrieval_ranks(scores, embeddings.targets)).any()
    expected = {f"text_to_video_{name}": value for name, value in retrieval_metrics(ranks).items()}
    del expected["text_to_video_num_queries"]
    description = {
        "depth": depth,
        "rate": rate,
        "mask_seed": 0,
        "num_unread_pairs": probabilities.isnan().sum().item(),
    }
    assert found == expected | description


def test_order_of_the_clips_changes_nothing(model, processor):
    results = []
    for rows in (make_rows(), make_rows()[::-1]):
        dataset = make_dataset(rows)
        embeddings = embed_dataset(model, processor, dataset, progress=False)
        options = {"depth": 4, "score_options": OPTIONS, "progress": False, "batch_size": 2}
        results.append(evaluate_two_stage(model, processor, dataset, embeddings, **options))
    assert results[0] == results[1] and results[0]["text_to_video_mean_rank"] > 1


def test_embeddings_of_other_clips_are_refused(model, processor):
    embeddings = embed_dataset(model, processor, make_dataset(make_rows()), progress=False)
    with pytest.raises(ValueError, match="those of `dataset`"):
        evaluate_two_stage(model, processor, make_dataset(make_rows()[:5]), embeddings, score_options=OPTIONS)
