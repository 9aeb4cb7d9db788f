"""Match logits against single pairs, and what is read for them."""

from itertools import product

import pytest
import torch

from scalar_retrieval.eval.protocol.second_stage import match_logits
from scalar_retrieval.gallery.second_stage.matching import POLICIES, clip_views, measurable_policies
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from tests.eval.protocol.slow_matching import CAPTIONS, CONTENTS, PairByPair, make_clips, make_rows

PAPER = ("video", "audio")


def match(model, processor, rows, requests, **options):
    return match_logits(model, processor, make_clips(rows), CAPTIONS, requests, progress=False, **options)


@pytest.mark.parametrize(
    ("condition_on", "batch_size", "pair_batch_size"),
    [
        (PAPER, 1, 1),
        (PAPER, 100, 7),
        (("audio",), 3, 100),
        (MODALITIES, 3, 15),
    ],
)
def test_logits_are_those_of_single_pairs_whatever_is_read_in_which_batches(
    model, processor, condition_on, batch_size, pair_batch_size
):
    model.config.condition_on = list(condition_on)
    rows, requests, shown = make_rows(), [], []
    # All captions with all clips, in views of all that the clips have and of parts of it.
    present = torch.tensor([list(map(bool, contents)) for contents in CONTENTS])
    parts = [[True] * 3, [True, False, True], [False, True, False]]
    for policy, part in product(measurable_policies(condition_on), parts):
        mask = present & torch.tensor(part)
        views = clip_views(mask, MODALITIES, condition_on, policy)
        for caption, clip in product(range(7), repeat=2):
            requests.append([caption, clip, views[clip].item()])
            shown.append((CAPTIONS[caption], clip, mask[clip].tolist(), policy))
    pair_by_pair = PairByPair(model, processor, rows)
    expected = torch.tensor([pair_by_pair(*what) for what in shown])
    order = torch.randperm(len(requests), generator=torch.Generator().manual_seed(0))
    sizes = {"batch_size": batch_size, "pair_batch_size": pair_batch_size}
    found = match(model, processor, rows, torch.tensor(requests)[order], **sizes)
    torch.testing.assert_close(found, expected[order], equal_nan=True, atol=4e-5, rtol=0)  # the order of sums differs
    # What is shown matters: the logits of a complete clip differ from view to view, and some clips cannot be read.
    assert expected.isnan().any() and len(expected.view(-1, 7, 7)[:, 0, 0].nan_to_num().unique()) > 1


def test_a_view_is_what_is_shown_and_how():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1]]).bool()
    absent, zeros = (clip_views(mask, MODALITIES, PAPER, policy) for policy in POLICIES)
    assert absent[0] == absent[1] == zeros[0] == zeros[1]  # complete: nothing to hide or to fill
    assert absent[4] == 0 and len({*absent.tolist(), *zeros.tolist()}) == 7
    assert len(set(clip_views(mask, MODALITIES, MODALITIES).tolist())) == 5
    # The paper's modalities, wherever they stand, and one of them that no clip has.
    columns, names = mask[:, [0, 1, 2, 0, 0]], ("title", "audio", "subtitle", "screen", "video")
    assert torch.equal(clip_views(columns, names, PAPER, "absent"), absent)
    without = clip_views(mask & torch.tensor([False, True, True]), MODALITIES, PAPER, "zeros")
    assert torch.equal(clip_views(columns[:, :4], names[:4], PAPER, "zeros"), without)
    with pytest.raises(ValueError, match="`policies` must be some of.*'mean'"):
        clip_views(mask, MODALITIES, PAPER, "mean")
