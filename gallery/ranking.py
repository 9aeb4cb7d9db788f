"""Exact ranking over a gallery, from the mapped vectors and the Gram matrices stored with them: half-precision
vectors are converted a tile at a time, and nothing else is copied.

Shapes: Q queries, N clips, D dimensions, K hits.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gallery.columns import CONCAT_COLUMNS, NORM_TOLERANCE, check_lists, gram_of, matrix_of, stacked
from gallery.storage import Part
from modeling_scalar.aggregation_scalar import METHODS, Clips, Pairs, ScoreOptions, check_method
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.pairs_scalar import MIN_NORM

_WHERE = "a gallery"
_MIN_NORM = MIN_NORM[torch.float32]
# Clips whose scores are computed and looked through at once, for few queries and for many: the scores stay in cache.
_FEW, _BLOCK_OF_FEW, _BLOCK = 16, 16_384, 2_048
_SCORES_AT_ONCE = 2**26  # where all scores of a query are needed


@dataclass(eq=False)
class Piece:
    """Clips that lie in one place: the number of the first, what scores read of them, and which are removed."""

    start: int
    clips: Clips
    removed: torch.Tensor


def _damaged() -> ValueError:
    return ValueError(
        "The vectors of some clips of the gallery are not as they were written, so nothing can be ranked. "
        "`python -m search verify GALLERY` names the files, `python -m search repair GALLERY` keeps the others."
    )


def _check_norms(gram: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError unless the vectors that a clip has are of unit norm by its Gram matrix, and it has one."""
    squares = gram.diagonal(dim1=1, dim2=2)  # (N, 3)
    # Of a norm that may miss 1 by `NORM_TOLERANCE`, the square may miss it by a little more than twice as much.
    if not ((((squares - 1).abs() <= 3 * NORM_TOLERANCE) | ~mask).all() and mask.any(1).all()):
        raise _damaged()


def _check_scores(scores: torch.Tensor) -> None:
    """Raise a ValueError if a score is no number: NaN would be ranked somewhere, or be left out in silence."""
    if scores.isnan().any():
        raise _damaged()


def pieces_of(parts: Sequence[Part]) -> list[Piece]:
    """
    Lay a table of clips out for ranking; rows are numbered through all parts, removed ones too.

    Raises:
        ValueError: norms, as far as the Gram matrices tell them, show that the vectors are damaged.
    """
    pieces, start = [], 0
    for part in parts:
        removed, first = torch.from_numpy(part.removed), 0
        for batch in part.table.to_batches():
            rows = part.table.slice(first, len(batch))
            vectors = tuple(
                matrix_of(batch.column(name), check_lists(rows, name, _WHERE), _WHERE) for name in MODALITIES
            )
            mask = stacked(rows, ["presence"], _WHERE, boolean=True)[:, 0]
            if "gram" in rows.column_names:
                numbers = matrix_of(batch.column("gram"), len(MODALITIES) ** 2, _WHERE)
                gram = numbers.unflatten(1, (len(MODALITIES), len(MODALITIES)))
                _check_norms(gram, mask)
            else:  # written by another program, which may have left something in absent rows
                vectors = tuple(torch.where(mask[:, m, None], rows_of, 0) for m, rows_of in enumerate(vectors))
                gram = gram_of(vectors)
            clips = Clips(
                vectors,
                mask,
                stacked(rows, CONCAT_COLUMNS, _WHERE) if CONCAT_COLUMNS[0] in rows.column_names else None,
                min_norm=_MIN_NORM,
                gram=gram,
            )
            inside = (removed >= first) & (removed < first + len(batch))
            pieces.append(Piece(start + first, clips, removed[inside] - first))
            first += len(batch)
        start += len(part.table)
    return pieces


def _sorted(scores: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest of each line, best first; equal ones in the order in which they stand."""
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], rows.gather(1, order[:, :k])


def _merge(
    best: tuple[torch.Tensor, torch.Tensor], scores: torch.Tensor, start: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the scores (Q, B) of clips that follow into the k best so far (Q, K) and their rows (Q, K)."""
    if best[0].shape[1] < k:
        rows = torch.arange(start, start + scores.shape[1]).expand(len(scores), -1)
        return _sorted(torch.cat([best[0], scores], dim=1), torch.cat([best[1], rows], dim=1), k)
    # An equal score comes later in the gallery, and so does not replace the last one.
    queries, columns = (scores > best[0][:, -1:]).nonzero(as_tuple=True)
    if len(queries):
        lines, counts = queries.unique_consecutive(return_counts=True)
        width = int(counts.max())
        place = torch.arange(len(queries)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        line = torch.arange(len(lines)).repeat_interleave(counts)
        found = scores.new_full((len(lines), width), -math.inf).index_put_((line, place), scores[queries, columns])
        rows = best[1].new_zeros(len(lines), width).index_put_((line, place), columns + start)
        merged = _sorted(torch.cat([best[0][lines], found], dim=1), torch.cat([best[1][lines], rows], dim=1), k)
        best[0][lines], best[1][lines] = merged
    return best


def _rank_whole(
    pieces: Sequence[Piece], text_embeds: torch.Tensor, k: int, method: str, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rank from all scores of a query at once: for scores that depend on other clips, and for large `k`."""
    num_rows = pieces[-1].start + len(pieces[-1].clips)
    # Only what is there: removed clips would take ranks from others.
    removed = torch.cat([piece.start + piece.removed for piece in pieces])
    rows = torch.ones(num_rows, dtype=torch.bool).index_fill(0, removed, False).nonzero().flatten()

    def whole(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        joined = torch.cat(list(tensors))
        return joined[rows] if len(removed) else joined

    heads = [piece.clips.concat_embeds for piece in pieces]
    clips = Clips(
        tuple(whole(columns) for columns in zip(*(piece.clips.modalities for piece in pieces), strict=True)),
        whole(piece.clips.modality_mask for piece in pieces),
        None if any(head is None for head in heads) else whole(heads),
        min_norm=_MIN_NORM,
        gram=whole(piece.clips.gram for piece in pieces),
    )
    found = []
    for queries in text_embeds.split(max(1, _SCORES_AT_ONCE // max(1, len(clips)))):
        scores = Pairs(queries, clips, options).scores(method)
        _check_scores(scores)
        found.append(_sorted(scores, rows.expand(len(queries), -1), k))
    return tuple(map(torch.cat, zip(*found, strict=True)))


@torch.no_grad()
def rank(
    pieces: Sequence[Piece], text_embeds: torch.Tensor, k: int, method: str, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Find the k best clips of each query; every clip is scored.

    Args:
        pieces (`list[Piece]`): of [`pieces_of`].
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`, or `(Q, 3, D)` with a vector for each modality): unit norm.
        k (`int`): hits per query.
        method (`str`), options: as in [`~modeling_scalar.aggregation_scalar.retrieval_scores`].

    Returns:
        Scores and rows, `(Q, K)` each, best first, equal scores in the order of the gallery; K is at most `k` and the
        number of rows. A row that is removed or that the method does not cover scores `-inf`.

    Raises:
        ValueError: the method is unknown or does not take texts with a vector for each modality, an option is out of
            its range, or vectors are damaged.
    """
    check_method(method)
    score_options = ScoreOptions(**options)
    num_rows = sum(len(piece.clips) for piece in pieces)
    best = text_embeds.new_empty(len(text_embeds), 0), torch.empty(len(text_embeds), 0, dtype=torch.long)
    if not num_rows or not len(text_embeds):
        return best
    if METHODS[method].whole or 4 * k > num_rows:
        return _rank_whole(pieces, text_embeds, k, method, score_options)
    size = _BLOCK_OF_FEW if len(text_embeds) <= _FEW else _BLOCK
    for piece in pieces:
        for start in range(0, len(piece.clips), size):
            scores = Pairs(text_embeds, piece.clips[start : start + size], score_options).scores(method)
            if len(piece.removed):
                inside = (piece.removed >= start) & (piece.removed < start + size)
                scores[:, piece.removed[inside] - start] = -math.inf
            _check_scores(scores)
            best = _merge(best, scores, piece.start + start, k)
    return best


__all__ = ["Piece", "pieces_of", "rank"]
