"""Clips as they are stored score as clips that are handed in."""

import pytest
import torch

from gallery.columns import clip_table, gram_of
from gallery.exact.blocks import Block, blocks_of, in_one_block
from gallery.storage import Part
from modeling_scalar.scores_scalar import PAPER_MODALITIES, Pairs, ScoreOptions, retrieval_scores
from tests.modeling_scalar.test_scores_scalar import FLOAT32, random_clips
from tests.scores import METHODS


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.uses_concat_heads])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_stored_clips_score_as_clips_that_are_handed_in(method, dtype, monkeypatch):
    """Three matrices apart, in the precision they are stored in."""
    texts, modalities, mask = random_clips(num_clips=41)
    modalities[5, 1], mask[5] = -modalities[5, 0], torch.tensor([True, True, False])  # they cancel
    modalities = (modalities * mask[..., None]).to(dtype)
    monkeypatch.setattr("modeling_scalar.scores_scalar._TILE", (3, 5))
    monkeypatch.setattr("gallery.exact.blocks._CONVERTED_AT_ONCE", 3)
    expected = retrieval_scores(texts, modalities, mask, method)
    stored = tuple(modality.contiguous() for modality in modalities.unbind(1))
    products = gram_of(stored)
    min_norm = 1e-2 if dtype == torch.float16 else 1e-3
    with torch.no_grad():
        names, there = PAPER_MODALITIES, mask.any(1)
        clips = Block(stored, mask, min_norm=min_norm, modalities=names, gram=products, is_there=there)
        scores = Pairs(texts, clips, ScoreOptions()).scores(method)
    torch.testing.assert_close(scores, expected, **FLOAT32)


def test_stored_inner_products_are_not_computed_again():
    texts, modalities, mask = random_clips()
    gram = torch.eye(3).expand(len(mask), -1, -1) * mask[..., None]
    with torch.no_grad():
        clips = Block((modalities * mask[..., None]).unbind(1), mask, gram=gram, is_there=mask.any(1))
        scores = Pairs(texts, clips, ScoreOptions(query_temperature=1e3)).scores("scalar")
    mean = torch.einsum("qd,vmd->qvm", texts, modalities * mask[..., None]).sum(-1) / mask.sum(1)
    torch.testing.assert_close(scores, mean * mask.sum(1).sqrt(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("names", [("video",), ("title", "audio"), tuple("abcdefgh")])
def test_blocks_know_the_modalities_of_their_table(names):
    generator = torch.Generator().manual_seed(0)
    embeds = torch.nn.functional.normalize(torch.randn(20, len(names), 8, generator=generator), dim=-1)
    mask = torch.rand(20, len(names), generator=generator) < 0.8
    mask[:, 0] |= ~mask.any(1)
    tables = [
        clip_table([str(row) for row in rows], embeds[rows], mask[rows], has_codes=True, modalities=names)
        for rows in torch.arange(20).split(12)
    ]
    blocks = blocks_of(list(map(Part, tables)))
    seen, some = torch.arange(len(names)) == 0, torch.arange(12) % 2 == 0
    first, whole = blocks[0], in_one_block(blocks, torch.device("cpu"))
    for block in (*blocks, whole, first[2:5], first.looking_at(seen), first.limited(some)):
        assert block.modalities == names and len(block.vectors) == len(names) == block.gram.shape[2]
    assert torch.equal(whole.modality_mask, mask)
    torch.testing.assert_close(whole.modality_embeds, embeds * mask[..., None])
