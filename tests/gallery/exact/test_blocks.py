"""Clips as they are stored score as clips that are handed in."""

import torch
from torch.nn.functional import normalize

from scalar_retrieval.gallery.exact.blocks import block_of
from scalar_retrieval.gallery.store.columns import clip_table
from scalar_retrieval.gallery.store.storage import Part


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
