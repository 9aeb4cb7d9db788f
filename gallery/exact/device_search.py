"""The exact best clips by SCALAR's score in float32, for clips without codes: on a GPU, or on a CPU.

Every pair is scored in float32. The error of the products has a bound, and so have the errors of the scores. Clips are
then scored in float64, in the order of the upper bounds of their scores, until the k-th best exceeds the bounds of all
others. Vectors in float16 are multiplied unconverted: for texts, a second product adds what float16 lost.

Shapes: Q queries, N clips, B clips of a tile, M modalities, D dimensions, K candidates of a query.
"""

import math

import torch

from gallery.exact.blocks import Block
from gallery.exact.cone import LONGEST, ROUNDING, product_error, score_error
from gallery.exact.pairs import Best, best_of_pairs, exact_pairs
from modeling_scalar.scores_scalar import METHODS, Pairs, ScoreOptions

_TILE, _TILE_ON_CPU = 3 * 2**26, 3 * 2**20  # products computed at once; on a CPU in cache
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


def _error_of(block: Block, texts: torch.Tensor, options: ScoreOptions) -> torch.Tensor:
    """Bound how much scores in float32 differ from those in float64, `(N,)`."""
    gain, offset = (
        max(abs(value) for value in values) if values is not None else default
        for values, default in ((options.modality_scale, 1.0), (options.modality_offset, 0.0))
    )
    norm, dim = torch.linalg.vector_norm(texts.double(), dim=-1).amax().item(), texts.shape[-1]
    # Tensor cores truncate sums of products instead of rounding, and the remainders of texts are truncated, too.
    error = 4 * product_error(dim, norm, block.chunks[0][0]) + norm * math.sqrt(dim) * 2.0**-21
    largest = gain * norm * LONGEST + offset
    rho = block.rho.double()
    error = gain * error + ROUNDING * max(1.0, largest)
    return score_error(torch.full_like(rho, largest), rho, error, options.query_temperature)


def _highest(
    block: Block, texts: torch.Tensor, miss: torch.Tensor, count: int, options: ScoreOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest upper bounds of scores, and the rows of their clips, `(Q, K)` each."""
    tile = _TILE_ON_CPU if texts.device.type == "cpu" else _TILE
    width = max(tile // block.modality_mask.shape[1] // len(texts), 1)
    best, found = [], []
    for start in range(0, len(block), width):
        columns = slice(start, start + width)
        clips = block[columns] if len(block) > width else block  # the whole block keeps its derived values
        of_chunks = [[_product(texts, vectors) for vectors in chunk] for chunk in clips.chunks]
        products = torch.stack([torch.cat(column, dim=1) for column in zip(*of_chunks, strict=True)])
        products = products.mul_(clips.modality_mask.T[:, None])
        upper = METHODS["scalar"].score(Pairs(texts, clips, options, similarities=products))
        upper = (upper + miss[columns]).masked_fill_(~block.allowed[columns], -math.inf)
        values, places = upper.topk(min(count, upper.shape[1]), dim=1)
        best.append(values)
        found.append(places + start)
    values, order = torch.cat(best, dim=1).topk(count, dim=1)
    return values, torch.cat(found, dim=1).gather(1, order)


def _proved(
    block: Block, texts: torch.Tensor, miss: torch.Tensor, k: int, count: int, options: ScoreOptions
) -> tuple[Best, torch.Tensor]:
    """The k best of the clips with the highest bounds, and for which queries no other clip can be better."""
    upper, rows = _highest(block, texts, miss, min(count + 1, len(block)), options)
    rest = upper[:, -1] if count < len(block) else upper.new_full((len(upper),), -math.inf)
    queries, columns = (upper[:, :count] != -math.inf).nonzero(as_tuple=True)  # NaN is scored, so that it is noticed
    rows = rows[queries, columns]
    order = rows.argsort(stable=True)
    queries, rows = queries[order], rows[order]
    scores, weights = exact_pairs(block, texts, queries, rows, options)
    best = best_of_pairs(queries.cpu(), rows.cpu(), scores.cpu(), len(texts), k, weights.cpu())
    rest = rest.double().cpu()
    return best, (rest == -math.inf) | (best.scores[:, -1] > rest)


@torch.no_grad()
def find_best_on_device(block: Block, texts: torch.Tensor, k: int, options: ScoreOptions) -> Best:
    """
    Find the k best clips of each query as [`~gallery.exact.screening.find_best`] does, on the device of the clips,
    which need no codes.

    Args, returns and errors: as of [`~gallery.exact.screening.find_best`]; what is returned is on the CPU.
    """
    with torch.autocast(texts.device.type, enabled=False):
        miss = _error_of(block, texts, options).float() * (1 + 1e-6) + ROUNDING
        count = min(2 * k + _MORE, len(block))
        best, is_proved = _proved(block, texts, miss, k, count, options)
        while not is_proved.all():
            again, count = (~is_proved).nonzero()[:, 0], min(4 * count, len(block))
            more, is_proved[again] = _proved(block, texts[again.to(texts.device)], miss, k, count, options)
            for column, values in zip(best, more, strict=True):
                column[again] = values
    return best


__all__ = ["find_best_on_device"]
