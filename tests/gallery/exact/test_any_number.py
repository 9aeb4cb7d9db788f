"""Exact search over one to eight modalities, of tables as they are stored: against all pairs in float64."""

import itertools
import math

import numpy as np
import pytest
import torch

from gallery.columns import clip_table
from gallery.exact import device_search, screening
from gallery.exact.blocks import Block, blocks_of
from gallery.exact.device_search import find_best_on_device
from gallery.exact.screening import find_best
from gallery.storage import Part
from modeling_scalar.scores_scalar import ScoreOptions
from tests.gallery.exact.test_screening import KINDS, check, make_texts, make_vectors, mixes_of

TEMPERATURES = (0.1, 1e-6, math.inf)


def make_blocks(kind: str, counts: list[int], number: int, seed: int = 0) -> list[Block]:
    """Blocks of tables, in half precision and not, with codes and without; a tenth of the clips is removed."""
    generator, mixes = torch.Generator().manual_seed(seed + 1), mixes_of(number)
    mask = mixes[torch.randperm(max(sum(counts), len(mixes)), generator=generator)[: sum(counts)] % len(mixes)]
    vectors, parts = make_vectors(kind, sum(counts), 24, seed, number), []
    for part, (embeds, there) in enumerate(zip(vectors.split(counts), mask.split(counts), strict=True)):
        table = clip_table(
            [f"{part} {row}" for row in range(len(there))], embeds, there, has_codes=part != 1,
            dtype="float32" if part == 2 else "float16", modalities=[f"modality {m}" for m in range(number)],
        )  # fmt: skip
        removed = (torch.rand(len(there), generator=generator) < 0.1).nonzero()[:, 0].numpy()
        parts.append(Part(table, removed=removed.astype(np.int64)))
    return blocks_of(parts)


def all_options(number: int) -> list[ScoreOptions]:
    """Temperatures and calibrations."""
    scale, offset = torch.linspace(0.7, 1.4, number).tolist(), torch.linspace(-0.3, 0.2, number).tolist()
    return [
        *(ScoreOptions(temperature) for temperature in TEMPERATURES),
        ScoreOptions(0.03, modality_scale=scale),
        ScoreOptions(0.1, modality_scale=scale[::-1], modality_offset=offset),
        ScoreOptions(math.inf, modality_offset=[-3.0] * number),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(1, 9))
def test_what_is_found_is_what_all_pairs_in_float64_give(kind, number, monkeypatch):
    monkeypatch.setattr(screening, "_LEAST_SAMPLE", 64)
    monkeypatch.setattr(device_search, "_MORE", 0)
    blocks, seen = make_blocks(kind, [150, 60, 90], number), mixes_of(number)
    seen = seen[torch.randperm(len(seen), generator=torch.Generator().manual_seed(number))[:7]]
    finds = itertools.cycle([find_best, find_best_on_device])
    for options, find in zip(all_options(number), finds, strict=False):
        check(blocks, make_texts(blocks, 15, number), 10, options, find)
    for mask, options, find in zip(seen, itertools.cycle(all_options(number)), finds, strict=False):
        partial = [block.looking_at(mask) for block in blocks]
        check(partial, make_texts(blocks, 10, number), 5, options, find)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(2, 9))
def test_two_thousand_queries_at_every_mask_are_answered_as_all_pairs_in_float64_do(kind, number, monkeypatch):
    monkeypatch.setattr(screening, "_LEAST_SAMPLE", 256)
    blocks, masks = make_blocks(kind, [900, 300, 300], number), mixes_of(number)
    counts = [2000 // len(masks) + (place < 2000 % len(masks)) for place in range(len(masks))]
    for place, (mask, count) in enumerate(zip(masks, counts, strict=True)):
        options = all_options(number)[place % len(all_options(number))]
        partial = blocks if mask.all() else [block.looking_at(mask) for block in blocks]
        check(partial, make_texts(blocks, count, place), 10, options)
