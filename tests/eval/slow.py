"""Embeddings to evaluate, and what is measured of them by loops over single queries."""

import hashlib
import math

import numpy as np
import torch
from torch.nn.functional import normalize

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.modeling_scalar import MODALITIES


def make_embeddings(
    clips=24, captions_each=2, modalities=MODALITIES, dim=12, seed=0, noise=0.7, undescribed=0, **changes
):
    """Captions of all clips but the last, in turn, each near one of the modalities that its clip has."""
    generator, number = torch.Generator().manual_seed(seed), len(modalities)
    embeds = normalize(torch.randn(clips, number, dim, generator=generator), dim=-1)
    mask = torch.rand(clips, number, generator=generator) < 0.7
    mask[torch.arange(clips), torch.arange(clips) % number] = True
    queries = captions_each * (clips - undescribed)
    rows = torch.arange(queries) % (clips - undescribed)
    own = torch.multinomial(mask[rows].float(), 1, generator=generator).squeeze(1)
    texts = embeds[rows, own] + noise * torch.randn(queries, dim, generator=generator) / dim**0.5
    names = [f"query{row}" for row in range(queries)]
    parts = {
        "text_embeds": normalize(texts, dim=-1),
        "modality_embeds": embeds * mask[..., None],
        "modality_mask": mask,
        "pairs": torch.stack([torch.arange(queries), rows], dim=1),
        "clip_ids": [f"clip{row}" for row in range(clips)],
        "query_ids": names,
        "captions": names,
        "modalities": tuple(modalities),
    }
    return Embeddings(**parts | changes)


def slow_mask(clip_id, present, rate, seed=0):
    """The rule of the paper's supplement, for whatever a clip has."""
    there = [place for place, here in enumerate(present) if here]
    digest = hashlib.md5(f"{seed}{clip_id}".encode()).hexdigest()
    if len(there) > 1 and int(digest[:8], 16) / 2**32 < rate:
        lost = there[int(digest[8:16], 16) % len(there)]
        return [here and place != lost for place, here in enumerate(present)]
    return list(present)


def slow_ranks(scores, pairs):
    """The declared rule, one pair at a time: of equals the irrelevant ones first, then the relevant ones in turn."""
    rows, pairs = scores.double().tolist(), pairs.tolist()
    ranks = []
    for place, (row, column) in enumerate(pairs):
        value, others = rows[row][column], {c: p for p, (r, c) in enumerate(pairs) if r == row}
        irrelevant = sum(score >= value for c, score in enumerate(rows[row]) if c not in others)
        before = sum(rows[row][c] > value or (rows[row][c] == value and p < place) for c, p in others.items())
        ranks.append(1 + irrelevant + before)
    return torch.tensor(ranks)


def slow_metrics(ranks, rows):
    """Recall, precision and gain of the ranks of relevant candidates and the queries that they belong to."""
    by_query = {}
    for rank, row in zip(ranks, rows, strict=True):
        by_query.setdefault(int(row), []).append(int(rank))
    lists = [sorted(values) for values in by_query.values()]
    first, precision, gain = [values[0] for values in lists], [], []
    for values in lists:
        precision.append(np.mean([place / rank for place, rank in enumerate(values, start=1)]))
        best = sum(1 / math.log2(1 + rank) for rank in range(1, min(len(values), 10) + 1))
        gain.append(sum(1 / math.log2(1 + rank) for rank in values if rank <= 10) / best)
    return {
        **{f"recall_at_{k}": 100 * np.mean([rank <= k for rank in first]) for k in (1, 5, 10)},
        "mean_average_precision": 100 * np.mean(precision),
        "ndcg_at_10": 100 * np.mean(gain),
        "median_rank": np.median(first),
        "mean_rank": np.mean(first),
        "num_queries": len(lists),
    }
