"""Exact ranking over a gallery, from the mapped vectors and what is stored with them: half-precision vectors are
converted a tile at a time, and nothing else is copied. SCALAR's score is screened in low precision, with proof (see
[`~gallery.exact.screening`]; for clips in the memory of a GPU, [`~gallery.exact.device_search`]), other scores are
computed of every clip.

Shapes: Q queries, N clips, D dimensions, K hits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from gallery.columns import CONCAT_COLUMNS, NORM_TOLERANCE, check_lists, codes_of, gram_of, matrix_of, stacked
from gallery.exact.clips import StoredClips
from gallery.exact.codes import Codes, multiplies_eight_bits
from gallery.exact.device_search import find_best_on_device
from gallery.exact.screening import Screened, find_best
from gallery.storage import Part
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import METHODS, MIN_NORM, Pairs, ScoreOptions, find_method

_WHERE = "a gallery"
_MIN_NORM = MIN_NORM[torch.float32]
# Clips whose scores are computed and looked through at once, for few queries and for many: the scores stay in cache.
_FEW, _BLOCK_OF_FEW, _BLOCK = 16, 16_384, 2_048
_PAIRS_AT_ONCE = 2**22  # that may be among the best
_SCORES_AT_ONCE = 2**26  # where all scores of a query are needed


@dataclass(eq=False)
class Piece:
    """Clips that lie in one place: the number of the first, what scores read of them, and which are removed."""

    start: int
    clips: StoredClips
    removed: torch.Tensor
    codes: Codes | None = None

    @cached_property
    def screened(self) -> Screened:
        """The clips as they are screened; codes are of use where the machine multiplies them."""
        allowed = self.clips.modality_mask.any(1).index_fill(0, self.removed, False)
        return Screened(self.start, self.clips, allowed, self.codes if multiplies_eight_bits() else None)

    @property
    def device(self) -> torch.device:
        """Where the clips are ranked."""
        return self.clips.modality_mask.device

    def looking_at(self, modalities: torch.Tensor) -> "Piece":
        """The same clips with some modalities `(3,)` alone; vectors of the others are where they were."""
        fewer = self.clips.with_mask(self.clips.modality_mask & modalities.to(self.device))
        return Piece(self.start, fewer, self.removed, self.codes)

    def limited(self, allowed: torch.Tensor) -> "Piece":
        """The same clips, of which only some `(N,)` may be found."""
        allowed = allowed.to(self.device)
        removed = (~allowed).index_fill(0, self.removed, True).nonzero().flatten()
        limited = Piece(self.start, self.clips, removed, self.codes)
        limited.screened = self.screened.limited(allowed)
        return limited


class Ranking(NamedTuple):
    """The best clips of each query: `scores` and `rows` `(Q, K)`, best first, and `num_scored` `(Q,)`, how many were
    scored exactly. The others cannot be among the best."""

    scores: torch.Tensor
    rows: torch.Tensor
    num_scored: torch.Tensor


def _damaged() -> ValueError:
    return ValueError(
        "The vectors of some clips of the gallery are not as they were written, so nothing can be ranked. "
        "`scalar verify GALLERY` names the files, `scalar repair GALLERY` keeps the others."
    )


def _check_norms(gram: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError unless the vectors that a clip has are of unit norm by its Gram matrix, and it has one."""
    squares = gram.diagonal(dim1=1, dim2=2)  # (N, 3)
    # Of a norm that may miss 1 by `NORM_TOLERANCE`, the square may miss it by a little more than twice as much.
    is_unit = (((squares - 1).abs() <= 3 * NORM_TOLERANCE) | ~mask).all()
    if not (is_unit and mask.any(1).all() and gram.sum().isfinite()):
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
            clips = StoredClips(
                vectors,
                mask,
                stacked(rows, CONCAT_COLUMNS, _WHERE) if CONCAT_COLUMNS[0] in rows.column_names else None,
                min_norm=_MIN_NORM,
                gram=gram,
            )
            inside = (removed >= first) & (removed < first + len(batch))
            codes = codes_of(batch, _WHERE)
            if codes is not None and not (codes.scale.sum() + codes.error.sum()).isfinite():
                raise _damaged()
            pieces.append(Piece(start + first, clips, removed[inside] - first, codes))
            first += len(batch)
        start += len(part.table)
    return pieces


def in_one_piece(pieces: Sequence[Piece], device: torch.device) -> list[Piece]:
    """The same clips in the memory of a device, without their codes. Every piece costs as many calls as all clips
    would, and calls are what a search on a GPU waits for."""
    if not pieces:
        return []
    removed = torch.cat([piece.start + piece.removed for piece in pieces])
    return [Piece(0, StoredClips.joined([piece.clips for piece in pieces], device), removed.to(device))]


def _sorted(scores: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k highest of each line, best first; equal ones in the order in which they stand."""
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], rows.gather(1, order[:, :k])


def _merge(
    best: tuple[torch.Tensor, torch.Tensor], scores: torch.Tensor, start: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the scores (Q, B) of clips that follow into the k best so far (Q, K) and their rows (Q, K)."""
    if best[0].shape[1] < k:
        rows = torch.arange(start, start + scores.shape[1], device=scores.device).expand(len(scores), -1)
        return _sorted(torch.cat([best[0], scores], dim=1), torch.cat([best[1], rows], dim=1), k)
    # An equal score comes later in the gallery, and so does not replace the last one.
    queries, columns = (scores > best[0][:, -1:]).nonzero(as_tuple=True)
    if len(queries):
        lines, counts = queries.unique_consecutive(return_counts=True)
        width = int(counts.max())
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        place = torch.arange(len(queries), device=first.device) - first
        line = torch.arange(len(lines), device=first.device).repeat_interleave(counts)
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
    is_there = torch.ones(num_rows, dtype=torch.bool, device=removed.device)
    rows = is_there.index_fill(0, removed, False).nonzero().flatten()
    clips = StoredClips.joined([piece.clips for piece in pieces], removed.device)
    if len(removed):
        clips = clips[rows]
    found = []
    for queries in text_embeds.split(max(1, _SCORES_AT_ONCE // max(1, len(clips)))):
        scores = Pairs(queries, clips, options).scores(method)
        _check_scores(scores)
        found.append(_sorted(scores, rows.expand(len(queries), -1), k))
    return tuple(map(torch.cat, zip(*found, strict=True)))


def _screen(
    pieces: Sequence[Piece], text_embeds: torch.Tensor, k: int, num_rows: int, options: ScoreOptions
) -> Ranking:
    """Rank by SCALAR's score; so many queries at once that what may be found of them has room."""
    parts, found = [piece.screened for piece in pieces], []
    find = find_best if pieces[0].device.type == "cpu" else find_best_on_device
    for queries in text_embeds.split(max(1, _PAIRS_AT_ONCE // (num_rows if 4 * k > num_rows else 4 * k))):
        try:
            found.append(find(parts, queries, min(k, num_rows), options))
        except FloatingPointError as error:
            raise _damaged() from error
    scores, rows, num_scored = map(torch.cat, zip(*found, strict=True))
    rows = rows.masked_fill(scores == -math.inf, 0)
    return Ranking(scores.float(), rows, num_scored)


@torch.no_grad()
def rank(pieces: Sequence[Piece], text_embeds: torch.Tensor, k: int, method: str, **options: Any) -> Ranking:
    """
    Find the k best clips of each query, exactly.

    Args:
        pieces (`list[Piece]`): of [`pieces_of`].
        text_embeds (`torch.FloatTensor` of shape `(Q, D)`, or `(Q, 3, D)` with a vector for each modality): unit norm.
        k (`int`): hits per query.
        method (`str`), options: as in [`~modeling_scalar.scores_scalar.retrieval_scores`].

    Returns:
        [`Ranking`], on the CPU: equal scores in the order of the gallery; K is at most `k` and the number of rows. A
        row that is removed or that the method does not cover scores `-inf`. Of `"scalar"` the order is that of scores
        in float64.

    Raises:
        ValueError: the method is unknown or does not take texts with a vector for each modality, an option is out of
            its range, or vectors are damaged.
    """
    find_method(method)
    ranking = _rank(pieces, text_embeds, k, method, ScoreOptions(**options))
    return Ranking(*(numbers.cpu() for numbers in ranking))


def _rank(
    pieces: Sequence[Piece], text_embeds: torch.Tensor, k: int, method: str, score_options: ScoreOptions
) -> Ranking:
    num_rows = sum(len(piece.clips) for piece in pieces)
    if pieces:
        text_embeds = text_embeds.to(pieces[0].device)
    best = text_embeds.new_empty(len(text_embeds), 0), text_embeds.new_empty(len(text_embeds), 0).long()
    all_of_them = torch.full((len(text_embeds),), num_rows - sum(len(piece.removed) for piece in pieces))
    if not num_rows or not len(text_embeds):
        return Ranking(*best, all_of_them)
    if method == "scalar":
        return _screen(pieces, text_embeds, k, num_rows, score_options)
    if METHODS[method].whole or 4 * k > num_rows:
        return Ranking(*_rank_whole(pieces, text_embeds, k, method, score_options), all_of_them)
    size = _BLOCK_OF_FEW if len(text_embeds) <= _FEW else _BLOCK
    for piece in pieces:
        for start in range(0, len(piece.clips), size):
            scores = Pairs(text_embeds, piece.clips[start : start + size], score_options).scores(method)
            if len(piece.removed):
                inside = (piece.removed >= start) & (piece.removed < start + size)
                scores[:, piece.removed[inside] - start] = -math.inf
            _check_scores(scores)
            best = _merge(best, scores, piece.start + start, k)
    return Ranking(*best, all_of_them)


__all__ = ["Piece", "Ranking", "pieces_of", "rank"]
