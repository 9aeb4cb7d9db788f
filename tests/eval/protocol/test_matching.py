"""Match probabilities against single pairs, and what is read for them."""

from itertools import product

import pytest
import torch

from eval.protocol.matching import POLICIES, clip_views, match_probabilities
from modeling_scalar import ScalarModel
from tests.conftest import make_tiny_config
from tests.eval.protocol.slow_matching import CLOSE, PairByPair, make_clips, make_rows


def every_request(rows, policies=POLICIES):
    """All captions with all clips, in each view that what the clips have allows, and what is expected to be shown."""
    requests, shown = [], []
    present = torch.tensor([[row["video_path"] is not None, row["audio_path"] is not None] for row in rows])
    for policy, mask in product(policies, product([False, True], repeat=2)):
        visible = torch.tensor(mask) & present
        views = clip_views(torch.cat([visible, torch.ones(len(rows), 1, dtype=torch.bool)], dim=1), policy)
        for caption, clip in product(range(len(rows)), repeat=2):
            requests.append([caption, clip, views[clip].item()])
            shown.append((visible[clip].tolist(), policy))
    return torch.tensor(requests), shown


def match(model, processor, rows, requests, **options):
    captions = [row["caption"] for row in rows]
    return match_probabilities(model, processor, make_clips(rows), captions, requests, progress=False, **options)


@pytest.mark.parametrize(("batch_size", "pair_batch_size"), [(1, 1), (2, 3), (3, 100), (100, 7)])
def test_probabilities_are_those_of_single_pairs_whatever_the_batches(model, processor, batch_size, pair_batch_size):
    rows = make_rows()
    requests, shown = every_request(rows)
    requests, order = (
        requests[: (7 * 7 * 8)],
        torch.randperm(len(requests), generator=torch.Generator().manual_seed(0)),
    )
    pair_by_pair = PairByPair(model, processor, rows)
    expected = torch.tensor(
        [
            pair_by_pair(rows[caption]["caption"], clip, *what)
            for (caption, clip, _), what in zip(requests.tolist(), shown, strict=True)
        ]
    )
    readable = expected[~expected.isnan()]
    assert readable.min() < 0.4 and readable.max() > 0.6 and expected.isnan().any()
    found = match(model, processor, rows, requests[order], batch_size=batch_size, pair_batch_size=pair_batch_size)
    torch.testing.assert_close(found, expected[order], equal_nan=True, **CLOSE)
    # What is shown matters, and so does whether what is hidden leaves zeros.
    spread = expected.view(8, 7, 7)[:, :, 0]  # the first clip has picture and sound
    assert len(spread[:, 0].nan_to_num(2).mul(1e5).round().unique()) == 7  # both policies show a complete clip alike


def test_a_view_is_what_is_shown_and_how():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1]]).bool()
    absent, zeros = (clip_views(mask, policy) for policy in POLICIES)
    assert absent[0] == absent[1] == zeros[0] == zeros[1]  # complete: nothing to hide or to fill
    assert absent[4] == 0 and len({*absent.tolist(), *zeros.tolist()}) == 7
    with pytest.raises(ValueError, match="policy must be one of.*'mean'"):
        clip_views(mask, "mean")


def test_only_what_is_asked_for_is_read_and_no_more_at_once_than_a_batch(model, processor, monkeypatch):
    sizes, features = [], model.get_tower_features

    def get_tower_features(**inputs):
        sizes.append(len(inputs["modality_mask"]))
        return features(**inputs)

    monkeypatch.setattr(model, "get_tower_features", get_tower_features)
    requests = torch.tensor([[0, 0, 1], [1, 0, 3], [1, 4, 2], [4, 5, 2], [4, 2, 2], [5, 2, 2], [6, 1, 0]])
    found = match(model, processor, make_rows(), requests, batch_size=3, num_workers=1)
    assert processor.read == ["0.mp4", "2.wav", "4.mp4", "5.wav"]
    assert sizes == [3, 1] and found.isnan().tolist() == [False] * 6 + [True]


def test_towers_do_not_read_what_no_view_shows(model, processor, monkeypatch):
    monkeypatch.setattr(model, "_encode_audio", lambda features: pytest.fail("the audio tower ran"))
    video, encode = [], model._encode_video
    monkeypatch.setattr(model, "_encode_video", lambda frames: video.append(len(frames)) or encode(frames))
    match(model, processor, make_rows(), torch.tensor([[0, 0, 1], [1, 0, 1], [1, 4, 1]]))
    assert video == [2]


def test_nothing_to_read_reads_nothing(model, processor):
    assert match(model, processor, make_rows(), torch.tensor([[0, 3, 0], [1, 3, 0]])).isnan().all()
    assert processor.read == []


def test_the_model_keeps_its_mode(model, processor):
    model.train()
    match(model, processor, make_rows(), torch.tensor([[0, 0, 1]]))
    assert model.training


@pytest.mark.parametrize(
    ("request_", "options", "message"),
    [
        ([7, 0, 1], {}, "7 captions"),
        ([0, 7, 1], {}, "7 clips"),
        ([0, -1, 1], {}, "7 clips"),
        ([0, 0, 8], {}, "8 views"),
        ([0, 0], {}, "requests, 3"),
        ([0, 0, 1], {"pair_batch_size": 0}, "at least 1"),
        ([0, 1, 3], {}, r"lack what the embeddings say.*'clip1 \(audio\)'"),
    ],
)
def test_wrong_arguments_are_named(model, processor, request_, options, message):
    with pytest.raises(ValueError, match=message):
        match(model, processor, make_rows(), torch.tensor([request_]), **options)


def test_a_text_tower_without_cross_attention_says_so(processor):
    text = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "is_decoder": False}
    config = make_tiny_config(text_config=text | {"add_cross_attention": False})
    with pytest.raises(ValueError, match="cross-attention"):
        match(ScalarModel(config).eval(), processor, make_rows(), torch.tensor([[0, 0, 1]]))
