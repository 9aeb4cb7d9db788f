"""Clips as they are stored score as clips that are handed in."""

import pytest
import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.exact.blocks import Block, block_of
from scalar_retrieval.gallery.store.columns import clip_table, gram_of
from scalar_retrieval.gallery.store.storage import Part
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.scores_scalar import Pairs, ScoreOptions, retrieval_scores
from tests.modeling_scalar.test_scores_scalar import FLOAT32, random_clips
from tests.scores import METHODS


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.uses_concat_heads])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_stored_clips_score_as_clips_that_are_handed_in(method, dtype, monkeypatch):
    """Three matrices apart, in several chunks, in the precision they are stored in."""
    texts, modalities, mask = random_clips(num_clips=41)
    modalities[5, 1], mask[5] = -modalities[5, 0], torch.tensor([True, True, False])  # they cancel
    modalities = (modalities * mask[..., None]).to(dtype)
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.scores_scalar._TILE", (3, 5))
    monkeypatch.setattr("scalar_retrieval.gallery.exact.blocks._CONVERTED_AT_ONCE", 3)
    expected = retrieval_scores(texts, modalities, mask, method, modalities=PAPER_MODALITIES)
    chunks = [tuple(column.contiguous() for column in chunk.unbind(1)) for chunk in modalities.split([20, 1, 20])]
    with torch.no_grad():
        clips = Block(
            chunks, [(0, modalities.shape[-1])] * 3, mask,
            modalities=PAPER_MODALITIES, gram=gram_of(modalities), is_there=mask.any(1),
        )  # fmt: skip
        if dtype == torch.float16:
            clips.min_norm = 1e-2
        scores = Pairs(texts, clips, ScoreOptions()).scores(method)
    torch.testing.assert_close(scores, expected, **FLOAT32)


def test_a_part_of_the_clips_of_several_commits_is_the_same_part_of_each_column():
    embeds = normalize(torch.randn(20, 4, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    mask, names = torch.arange(80).view(20, 4) % 7 > 0, tuple("abcd")
    tables = [
        clip_table([str(row) for row in rows], embeds[rows], mask[rows], names, has_codes=True)
        for rows in torch.arange(20).split(6)
    ]
    block, vectors = block_of(list(map(Part, tables)), [(0, 8)] * 4), embeds * mask[..., None]
    for columns in (slice(0, 20), slice(4, 15), slice(7, 8), torch.tensor([3, 3, 12, 19]), mask[:, 0]):
        part = block[columns]
        assert part.modalities == names and torch.equal(part.modality_mask, mask[columns])
        assert torch.equal(part.modality_embeds, vectors[columns])
        torch.testing.assert_close(part.gram, vectors[columns] @ vectors[columns].mT)
    seen = torch.arange(4) == 2
    hidden = block.with_modalities(seen)
    assert torch.equal(hidden.modality_embeds, vectors * seen[:, None]) and torch.equal(hidden.allowed, mask[:, 2])
    assert torch.equal(block.limited(mask[:, 1]).is_there, mask[:, 1]) and block.is_there.all()
