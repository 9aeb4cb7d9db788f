"""Scores of single pairs of a query and a clip: in float32 with an error bound, and in float64.

Shapes: Q queries, M modalities, D dimensions, P pairs, K hits.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from gallery.exact.blocks import Block, DamagedVectorsError, paired_products
from gallery.exact.cone import LONGEST, ROUNDING, score_error
from modeling_scalar.scores_scalar import ScoreOptions, exact_scores, quadratic, softmax_weights

_CLIPS_AT_ONCE, _ON_A_DEVICE = 2048, 16_384  # clips whose vectors are copied at a time
_GRAM_TOLERANCE = 1e-6  # within which sums in another order agree
_SHORT = 0.01  # squared norm of a centroid below which a Gram matrix has too few digits


class Best(NamedTuple):
    """The best clips of each query, best first: `scores` `(Q, K)` in float64, -inf where there are fewer, `rows`
    `(Q, K)`, `weights` `(Q, K, M)`, and `num_scored` `(Q,)`, the number of clips that were scored in float64."""

    scores: torch.Tensor
    rows: torch.Tensor
    weights: torch.Tensor
    num_scored: torch.Tensor


class _Chunk(NamedTuple):
    """Some pairs, in the order of their clips: which ones, their queries, their clips, and for each pair which of the
    clips; the clips' vectors, zero where absent."""

    pairs: slice
    queries: torch.Tensor
    rows: torch.Tensor
    clips: torch.Tensor
    vectors: torch.Tensor


def _chunks(block: Block, queries: torch.Tensor, rows: torch.Tensor, dtype: torch.dtype) -> Iterator[_Chunk]:
    """Pairs whose clips are in ascending order, with the vectors of a few clips at a time."""
    unique, places, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
    ends = [0, *counts.cumsum(0).tolist()]
    size = _CLIPS_AT_ONCE if block.device.type == "cpu" else _ON_A_DEVICE
    for start in range(0, len(unique), size):
        some = unique[start : start + size]
        pairs = slice(ends[start], ends[start + len(some)])
        vectors = block.vectors_at(some, dtype)
        if block.is_partial:
            vectors *= block.modality_mask[some][..., None]
        yield _Chunk(pairs, queries[pairs], some, places[pairs] - start, vectors)


def _cosines(chunk: _Chunk, texts: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """The calibrated cosines `(M, P)`, also of absent modalities."""
    columns = [paired_products(column, texts, chunk.clips, chunk.queries) for column in chunk.vectors.unbind(1)]
    return options.calibrated(torch.stack(columns), dim=0)


def centroid_scores(
    cosines: torch.Tensor, mask: torch.Tensor, gram: torch.Tensor, min_norm: float, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Eq. 4 of pairs, from calibrated cosines `(M, P)`, modality masks `(P, M)` and Gram matrices `(P, M, M)`: scores
    `(P,)`, weights `(M, P)` and squared norms of centroids `(P,)`. Sums along short rows would be slow."""
    present = mask.T
    cosines = torch.where(present, cosines, 0)
    weights = softmax_weights(cosines, present, options.query_temperature, dim=0)
    squares = quadratic(weights[:, None], gram)[0]
    return (weights * cosines).sum(0) / squares.clamp(min=min_norm**2).sqrt(), weights, squares


def bounded_scores(
    block: Block, texts: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Score pairs in float32.

    Args:
        block ([`~gallery.exact.blocks.Block`]): the clips.
        texts (`torch.FloatTensor` of shape `(Q, D)`): unit norm.
        queries (`torch.LongTensor` of shape `(P,)`), rows (`torch.LongTensor` of shape `(P,)`): the pairs, in
            ascending order of their clips.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature and calibration.

    Returns:
        Scores `(P,)`, and by how much each may differ from the score in float64; infinity if a float32 Gram matrix has
        too few digits.
    """
    gain = 1.0 if options.modality_scale is None else max(map(abs, options.modality_scale))
    norm = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item() + 1e-6
    rounding = texts.shape[-1] * 2.0**-24 * norm * LONGEST + ROUNDING  # of sums in float32, in any order
    scores, errors = [], []
    for chunk in _chunks(block, queries, rows, torch.float32):
        of_pairs = chunk.rows[chunk.clips]
        mask, rho = block.modality_mask[of_pairs], block.rho[of_pairs].double()
        cosines = _cosines(chunk, texts, options).double()
        score, _, _ = centroid_scores(cosines, mask, block.gram[of_pairs].double(), block.min_norm, options)
        largest = cosines.masked_fill(~mask.T, 0).abs().amax(0)
        error = gain * rounding + ROUNDING * largest.amax().item()
        scores.append(score)
        errors.append(score_error(largest, rho, error, options.query_temperature))
    return torch.cat(scores), torch.cat(errors)


def _gram64(vectors: torch.Tensor) -> torch.Tensor:
    """The inner products `(P, M, M)` of each clip's vectors `(P, M, D)`; equal clips have equal ones."""
    count, number, _ = vectors.shape
    upper = torch.triu_indices(number, number, device=vectors.device)
    first = torch.arange(count, device=vectors.device)[:, None] * number
    flat = vectors.flatten(0, 1)
    products = paired_products(flat, flat, (first + upper[0]).flatten(), (first + upper[1]).flatten())
    gram = vectors.new_empty(count, number, number)
    gram[:, upper[0], upper[1]] = gram[:, upper[1], upper[0]] = products.view(count, -1)
    return gram


def exact_pairs(
    block: Block, texts: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Score pairs in float64. Equal pairs have equal scores at any position.

    Args: as of [`bounded_scores`].

    Returns:
        Scores `(P,)` in float64, and weights `(P, M)` in float32.

    Raises:
        DamagedVectorsError: vectors do not have the inner products with which they were stored.
    """
    scores = torch.empty(len(rows), dtype=torch.float64, device=block.device)
    weights = torch.empty(len(rows), block.modality_mask.shape[1], device=block.device)
    exact_texts = texts.double()
    for chunk in _chunks(block, queries, rows, torch.float64):
        gram = _gram64(chunk.vectors)
        is_wrong = ~((gram - block.gram[chunk.rows]).abs().amax(dim=(1, 2)) <= _GRAM_TOLERANCE)  # nor NaN
        if is_wrong.any():
            raise DamagedVectorsError(chunk.rows[is_wrong].cpu())
        mask, cosines = block.modality_mask[chunk.rows[chunk.clips]], _cosines(chunk, exact_texts, options)
        score, weight, squares = centroid_scores(cosines, mask, gram[chunk.clips], block.min_norm, options)
        short = (squares < _SHORT).nonzero()[:, 0]
        if len(short):
            vectors = chunk.vectors[chunk.clips[short]]
            about = exact_texts[chunk.queries[short]], vectors, mask[short], block.min_norm
            score[short] = exact_scores(*about, options)
        if score.isnan().any():
            raise DamagedVectorsError(chunk.rows[chunk.clips[score.isnan()]].unique().cpu())
        scores[chunk.pairs], weights[chunk.pairs] = score, weight.T.float()
    return scores, weights


def highest_of_pairs(queries: np.ndarray, values: np.ndarray, num_queries: int, k: int) -> np.ndarray:
    """The k highest values of each query, in any order, `(Q, k)`: -inf where there are fewer."""
    order = np.argsort(queries.astype(np.min_scalar_type(num_queries)), kind="stable")  # few bits are sorted fast
    queries = queries[order]
    place = np.arange(len(queries)) - np.searchsorted(queries, queries)
    table = np.full((num_queries, max(k, place.max(initial=0) + 1)), -math.inf, values.dtype)
    table[queries, place] = values[order]
    table.partition(table.shape[1] - k, axis=1)
    return table[:, -k:]


def best_of_pairs(
    queries: torch.Tensor,
    rows: torch.Tensor,
    scores: torch.Tensor,
    num_queries: int,
    k: int,
    weights: torch.Tensor | None = None,
) -> Best:
    """The k best of scored pairs, for each query; among equal scores, the first in the gallery comes first."""
    weights = torch.empty(len(rows), 0) if weights is None else weights
    order = np.lexsort((rows.numpy(), -scores.numpy(), queries.numpy()))
    order = torch.from_numpy(order)
    counts = queries.bincount(minlength=num_queries)
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    order, place = order[place < k], place[place < k]
    found = Best(
        torch.full((num_queries, k), -math.inf, dtype=torch.float64),
        torch.zeros(num_queries, k, dtype=torch.long),
        torch.zeros(num_queries, k, weights.shape[1]),
        counts,
    )
    where = queries[order], place
    found.scores[where], found.rows[where], found.weights[where] = scores[order], rows[order], weights[order]
    return found


__all__ = ["Best", "best_of_pairs", "bounded_scores", "centroid_scores", "exact_pairs", "highest_of_pairs"]
