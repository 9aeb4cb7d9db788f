"""The exact best clips by SCALAR's score in one pass, if all clips are in the memory of one device, such as a GPU.

Every pair is scored in float32. The error of the products has a bound, and so have the errors of the scores. Clips are
then scored in float64, in the order of the upper bounds of their scores, until the k-th best exceeds the bounds of all
others. Vectors in float16 are multiplied unconverted: for texts, a second product adds what float16 lost.

Shapes: Q queries, N clips, B clips of a tile, M modalities, D dimensions, K candidates of a query.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from gallery.exact.blocks import Block
from gallery.exact.cone import LONGEST, ROUNDING, product_error, score_error
from modeling_scalar.scores_scalar import METHODS, Pairs, ScoreOptions, exact_scores

_TILE, _TILE_ON_CPU = 3 * 2**26, 3 * 2**20  # products computed at once; on a CPU in cache
_EXACT_AT_ONCE = 2**14  # pairs scored in float64 at once
_MORE = 64  # candidates in addition to twice the number of hits
_SMALL = 2048.0  # scales the remainder of a float16 to the size of the number


def _halves(texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split texts into one in float16 plus 1 / 2048 of another; the error of a coordinate is at most 2^-21."""
    first = texts.half()
    return first, ((texts - first.float()) * _SMALL).half()


def _product(texts: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Inner products in float32, `(Q, B)`."""
    if vectors.dtype != torch.float16 or not vectors.is_cuda or torch.__version__ < (2, 8):  # without `out_dtype`
        return texts @ vectors.float().T
    first, second = (torch.mm(part, vectors.T, out_dtype=torch.float32) for part in _halves(texts))
    return first.add_(second, alpha=1 / _SMALL)


class _Search:
    """One search over clips on a device: see [`find_best_on_device`]."""

    def __init__(self, parts: Sequence[Block], texts: torch.Tensor, options: ScoreOptions):
        self.parts, self.texts, self.options = parts, texts, options
        self.num_rows = parts[-1].start + len(parts[-1].allowed)
        gain, offset = (
            max(abs(value) for value in values) if values is not None else default
            for values, default in ((options.modality_scale, 1.0), (options.modality_offset, 0.0))
        )
        norm = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item()
        dim = texts.shape[-1]
        # Tensor cores truncate sums of products instead of rounding, and the remainders of texts are truncated, too.
        error = 4 * product_error(dim, norm, vectors_of(parts)) + norm * math.sqrt(dim) * 2.0**-21
        self.largest = gain * norm * LONGEST + offset
        self.error = gain * error + ROUNDING * max(1.0, self.largest)

    def highest(self, queries: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The highest upper bounds of scores, and the rows of their clips, `(Q, K)` each."""
        texts, best, found = self.texts[queries], None, None
        tile = _TILE_ON_CPU if texts.device.type == "cpu" else _TILE
        width = max(tile // len(self.parts[0].vectors) // len(texts), 1)
        for part in self.parts:
            rho = part.rho
            miss = score_error(
                rho.new_full(rho.shape, self.largest, dtype=torch.float64),
                rho.double(), self.error, self.options.query_temperature,
            ).float()  # fmt: skip
            miss = miss * (1 + 1e-6) + ROUNDING
            for start in range(0, len(part.allowed), width):
                columns = slice(start, start + width)
                clips = part[columns] if len(part.allowed) > width else part  # the whole part keeps its derived values
                products = torch.stack([_product(texts, vectors) for vectors in clips.vectors])
                products = products.mul_(clips.modality_mask.T[:, None])
                upper = METHODS["scalar"].score(Pairs(texts, clips, self.options, similarities=products))
                upper = (upper + miss[columns]).masked_fill_(~part.allowed[columns], -math.inf)
                values, places = upper.topk(min(count, upper.shape[1]), dim=1)
                rows = places + (part.start + start)
                if best is not None:
                    values, rows = torch.cat([best, values], dim=1), torch.cat([found, rows], dim=1)
                best, order = values.topk(min(count, values.shape[1]), dim=1)
                found = rows.gather(1, order)
        return best, found

    def exact(self, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Scores in float64 by their centroids, Eq. 2 and 3, of pairs `(P,)` ordered by row."""
        starts = torch.tensor([part.start for part in self.parts], device=rows.device)
        places = torch.searchsorted(starts, rows, right=True) - 1
        stops, found = [0, *places.bincount(minlength=len(self.parts)).cumsum(0).tolist()], []
        for part, (begin, end) in zip(self.parts, pairwise(stops), strict=True):
            for some in range(begin, end, _EXACT_AT_ONCE):
                these = slice(some, min(some + _EXACT_AT_ONCE, end))
                inside, texts = rows[these] - part.start, self.texts[queries[these]]
                vectors = torch.stack([vectors.index_select(0, inside) for vectors in part.vectors], dim=1)
                mask = part.modality_mask.index_select(0, inside)
                found.append(exact_scores(texts, vectors, mask, part.min_norm, self.options))
        return torch.cat(found) if found else self.texts.new_empty(0, dtype=torch.float64)

    def run(self, queries: torch.Tensor, k: int, count: int) -> tuple[torch.Tensor, ...]:
        """Scores and rows `(Q, k)`, number of pairs scored `(Q,)`, and the queries for which the best are proved."""
        upper, rows = self.highest(queries, min(count + 1, self.num_rows))
        rest = upper[:, -1] if count < self.num_rows else upper.new_full((len(upper),), -math.inf)
        rows, order = rows[:, :count].sort(dim=1)
        is_found = upper[:, :count].gather(1, order) != -math.inf  # NaN is scored, so that it is noticed
        lines, columns = is_found.nonzero(as_tuple=True)
        in_order = rows[lines, columns].argsort(stable=True)
        lines, columns = lines[in_order], columns[in_order]
        scores = torch.full(rows.shape, -math.inf, dtype=torch.float64, device=rows.device)
        scores[lines, columns] = self.exact(queries[lines], rows[lines, columns])
        if scores.isnan().any():
            raise FloatingPointError("a score is not a number")
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        rows = rows.gather(1, order)
        return scores[:, :k], rows[:, :k], is_found.sum(1), (rest == -math.inf) | (scores[:, k - 1] > rest.double())


def vectors_of(parts: Sequence[Block]) -> torch.Tensor:
    """Some vectors of these clips; they determine the precision of products."""
    return parts[0].vectors[0]


@torch.no_grad()
def find_best_on_device(
    parts: Sequence[Block], text_embeds: torch.Tensor, k: int, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Find the k best clips of each query as [`~gallery.exact.screening.find_best`] does, all on one device.

    Args and returns: as of [`~gallery.exact.screening.find_best`]; on the device.

    Raises:
        FloatingPointError: a score is not a number: vectors are damaged.
    """
    with torch.autocast(text_embeds.device.type, enabled=False):
        search, count = _Search(parts, text_embeds, options), 2 * k + _MORE
        queries = torch.arange(len(text_embeds), device=text_embeds.device)
        scores = torch.full((len(queries), k), -math.inf, dtype=torch.float64, device=queries.device)
        rows, num_scored = queries.new_zeros(len(queries), k), queries.new_zeros(len(queries))
        while len(queries):
            count = min(count, search.num_rows)
            scores[queries], rows[queries], counts, is_proved = search.run(queries, k, count)
            num_scored[queries] = counts  # of more candidates, which include the earlier ones
            queries, count = queries[~is_proved], 4 * count
    return scores, rows, num_scored


__all__ = ["find_best_on_device"]
