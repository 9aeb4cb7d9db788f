"""The baselines with fixed modality weights: fitted numbers as in SCALAR, but no weights per query.

The numbers are `modality_scale` a_m and `modality_offset` b_m of
[`~scalar_retrieval.modeling_scalar.scores_scalar.ScoreOptions`]; with a_m = 1 and b_m = 0 each score is the baseline
itself. Importing this module registers the scores: `scalar eval run --plugin evidence.weighted`.
"""

from itertools import product

import torch

from scalar_retrieval.modeling_scalar.scores_scalar import (
    METHODS,
    Clips,
    Pairs,
    exact,
    register_method,
    softmax_weights,
)

_BOTH = ("modality_scale", "modality_offset")
FITTED: dict[str, tuple[str, ...]] = {
    "scalar": ("query_temperature", *_BOTH),
    **dict.fromkeys(("uniform", "max", "mean", "weighted_centroid", "weighted_mean"), _BOTH),
    "weighted_rank_fusion": ("rank_constant", *_BOTH[1:]),
    **dict.fromkeys(("weighted_gram", "weighted_span", "weighted_pmrl"), _BOTH[:1]),
}
"""The numbers that a score reads, and `evidence` can fit, by its name."""

WEIGHTED = tuple(name for name in FITTED if name.startswith("weighted_"))
"""The scores of this module."""

DISCOUNTED = ("weighted_gram", "weighted_span", "weighted_pmrl")
"""The scores whose scales are at most 1."""

_LEAST_PIVOT = 1e-12  # a smaller pivot would divide an eigenvector to infinity


def _of_each(pairs: Pairs, name: str, neutral: float) -> torch.Tensor:
    """Return a number for each modality, (M,)."""
    given = getattr(pairs.options, name)
    cosines = pairs.similarities
    if given is None:
        return cosines.new_full((len(cosines),), neutral)
    return torch.as_tensor(given, dtype=cosines.dtype, device=cosines.device)


def _weighted_cosines(pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights w_m proportional to exp(b_m) over each clip's modalities, (V, M), and sum_m w_m a_m <t, z_m>, (Q, V)."""
    scale = _of_each(pairs, "modality_scale", 1.0)
    offset = _of_each(pairs, "modality_offset", 0.0)
    mask = pairs.clips.modality_mask
    weights = softmax_weights(offset.expand(mask.shape), mask, 1.0, dim=1)  # (V, M)
    return weights, ((scale * weights).T[:, None] * pairs.similarities).sum(0)


@register_method("weighted_centroid", "weighted centroid")
def _weighted_centroid(pairs: Pairs) -> torch.Tensor:
    """sum_m w_m a_m <t, z_m> / sqrt(w'Gw) with the Gram matrix G: Eq. 3 and 4 with query-independent weights."""
    weights, total = _weighted_cosines(pairs)
    wide = exact(weights)
    squared_norm = torch.einsum("vm,vmn,vn->v", wide, pairs.clips.exact.gram, wide)
    return total * squared_norm.clamp(min=pairs.clips.min_norm**2).rsqrt().to(total.dtype)


@register_method("weighted_mean", "weighted mean cosine")
def _weighted_mean(pairs: Pairs) -> torch.Tensor:
    """sum_m w_m a_m <t, z_m>."""
    return _weighted_cosines(pairs)[1]


@register_method("weighted_rank_fusion", "weighted rank fusion", whole=True, directed=True, is_trainable=False)
def _weighted_rank_fusion(pairs: Pairs) -> torch.Tensor:
    """sum_m exp(b_m) / (constant + rank by m): rank fusion of each modality alone, weighted."""
    total = 0
    for index, weight in enumerate(_of_each(pairs, "modality_offset", 0.0).exp()):
        one = slice(index, index + 1)
        # Clips and similarities of this modality only.
        embeds = pairs.clips.modality_embeds[:, one]
        clips = Clips(embeds, pairs.clips.modality_mask[:, one], min_norm=pairs.clips.min_norm)
        alone = Pairs(pairs.text_embeds, clips, pairs.options, pairs.similarities[one])
        total = total + weight * METHODS["rank_fusion"].score(alone)
    return total


def _discounted(pairs: Pairs) -> Pairs:
    """
    Return the same pairs with only the share a_m of each modality, 0 < a_m <= 1.

    z_m is replaced by a_m z_m + sqrt(1 - a_m^2) e_m, where the axis e_m is orthogonal to everything else: its cosine
    with the text becomes a_m <t, z_m>, that of two modalities a_m a_n <z_m, z_n>. All cosines together are still a
    Gram matrix. With only the border scaled they are not: for similar modalities the determinant turns negative, and
    the clips that match best would tie, or rank last. A modality with scale 0 counts as absent, an orthonormal axis
    (Eq. S1).
    """
    scale = _of_each(pairs, "modality_scale", 1.0)
    if (scale > 1).any():
        raise ValueError(f"`modality_scale` must be at most 1 for {DISCOUNTED}, got {scale.tolist()}.")
    share = exact(scale)
    # A modality's cosine with itself stays 1, that of two is scaled by both shares.
    own = torch.eye(len(share), dtype=torch.bool, device=share.device)
    gram = pairs.clips.exact.gram * torch.where(own, 1.0, share[:, None] * share)
    clips = Clips(
        pairs.clips.modality_embeds,
        pairs.clips.modality_mask,
        min_norm=pairs.clips.min_norm,
        gram=gram,
    )
    return Pairs(pairs.text_embeds, clips, pairs.options, pairs.similarities * scale[:, None, None])


@register_method("weighted_gram", "weighted GRAM volume", whole=True)
def _weighted_gram(pairs: Pairs) -> torch.Tensor:
    return _discounted(pairs).in_tiles(METHODS["gram"].score)


@register_method("weighted_span", "weighted span distance", whole=True)
def _weighted_span(pairs: Pairs) -> torch.Tensor:
    return _discounted(pairs).in_tiles(METHODS["gram_span"].score)


def _first_order(pairs: Pairs, root: torch.Tensor) -> torch.Tensor:
    """
    x'Gt x (Q, V) with the eigenvector x of the largest eigenvalue as a constant: its gradient is the eigenvalue's.

    With the clip's part H of Gt and the cosines b, x is (1, (root - H)^-1 b) up to its norm. Elimination finds it for
    all pairs at once; a decomposition of each takes several times as long.
    """
    number = len(pairs.similarities)
    gram = torch.where(torch.eye(number, device=root.device).bool(), 1.0, pairs.clips.exact.gram).to(root.dtype)
    with torch.no_grad():
        # The matrix root - H, each entry for all pairs, (Q, V).
        rows = []
        for m in range(number):
            rows.append([root * (m == n) - gram[:, m, n] for n in range(number)])
        x = list(pairs.similarities)
        # Forward elimination, then substitution from below.
        for m in range(number):
            rows[m][m] = rows[m][m].clamp(min=_LEAST_PIVOT)
            for below in range(m + 1, number):
                factor = rows[below][m] / rows[m][m]
                rows[below] = [a - factor * b for a, b in zip(rows[below], rows[m], strict=True)]
                x[below] = x[below] - factor * x[m]
        for m in reversed(range(number)):
            x[m] = (x[m] - sum(rows[m][n] * x[n] for n in range(m + 1, number))) / rows[m][m]
        vector = torch.nn.functional.normalize(torch.stack([torch.ones_like(root), *x]), dim=0)
    first = vector[0]
    rest = vector[1:]
    # The quadratic form: the text with itself, with each modality, and the modalities with each other.
    total = first.square() + 2 * first * (rest * pairs.similarities).sum(0)
    return total + sum(rest[m] * rest[n] * gram[:, m, n] for m, n in product(range(number), repeat=2))


@register_method("weighted_pmrl", "weighted PMRL", whole=True)
def _weighted_pmrl(pairs: Pairs) -> torch.Tensor:
    discounted = _discounted(pairs)
    with torch.no_grad():
        scores = discounted.in_tiles(METHODS["pmrl"].score)
    if not torch.is_grad_enabled():
        return scores
    number = 1 + discounted.clips.arity
    # The score's own value, with the gradient of the quotient.
    quotient = _first_order(discounted, scores * number) / number
    return scores + (quotient - quotient.detach())


__all__ = ["DISCOUNTED", "FITTED", "WEIGHTED"]
