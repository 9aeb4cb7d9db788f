"""Ranks by any score of the study, and their mean reciprocal."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from evidence.study.corrected import CORRECTED, corrected_ranks
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import first_ranks
from scalar_retrieval.eval.protocol.first_stage import rank_pairs
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

HIGHEST = 11
"""Ranks beyond ten are not distinguished."""

Choice = tuple[str, dict[str, Any]]
"""A score and its options."""


def own_ranks(
    embeddings: Embeddings, masks: Sequence[torch.Tensor], choice: Choice
) -> Iterator[dict[str, torch.Tensor]]:
    """The rank of each query's own candidate, for each mask and direction; corrected scores without masks alone."""
    method, options = choice
    if method in CORRECTED:
        under_masks = [corrected_ranks(embeddings, method, **options)]
    else:
        under_masks = [ranks[method] for ranks in rank_pairs(embeddings, masks, [method], **options)]
    # Pairs become queries: from text to video these are captions, back they are clips.
    for ranks in under_masks:
        of_queries = {}
        for direction, of_pairs in ranks.items():
            queries = embeddings.pairs[:, DIRECTIONS.index(direction)]
            of_queries[direction] = first_ranks(of_pairs, queries)
        yield of_queries


def reciprocal(ranks: torch.Tensor) -> torch.Tensor:
    """Return 100 / rank, 0 beyond ten."""
    return torch.where(ranks < HIGHEST, 100 / ranks.double(), 0.0)


def mean_reciprocal_ranks(embeddings: Embeddings, choice: Choice) -> torch.Tensor:
    """Return MRR@10 of each clip and its one caption, `(V,)`, in percent: the mean of both directions."""
    (ranks,) = own_ranks(embeddings, [embeddings.modality_mask], choice)
    forth = reciprocal(ranks[DIRECTIONS[0]])
    return (forth + reciprocal(ranks[DIRECTIONS[1]])) / 2


def stored_ranks(path: Path, *names: str) -> dict[tuple[str, ...], bytes]:
    """Read a table of ranks, a byte for each query, by the values of some of its columns."""
    rows = pq.read_table(path).to_pylist()
    return {tuple(row[name] for name in names): row["ranks"] for row in rows}


__all__ = ["HIGHEST", "Choice", "mean_reciprocal_ranks", "own_ranks", "reciprocal", "stored_ranks"]
