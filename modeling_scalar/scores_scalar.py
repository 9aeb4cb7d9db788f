"""The mathematics of SCALAR: query-conditioned spherical centroids over whatever modalities a clip has.

Pure functions of unit embeddings and a presence mask. Scores come from the closed form of the paper (Eq. 4,
Algorithm S1): three inner products per query and clip and one 3x3 Gram matrix per clip, never a centroid per pair.
What all scores share is in `pairs_scalar`, the baselines are in `baseline_scores_scalar`.

Shape letters: Q queries, V clips, B matched pairs, M modalities (3, in the order of `MODALITIES`), D dimensions.
"""

from collections.abc import Sequence

import torch

from .baseline_scores_scalar import BASELINES
from .pairs_scalar import (
    CALIBRATION,
    DIRECTIONS,
    METHODS,
    MIN_NORM,
    WEIGHING,
    Clips,
    Method,
    Pairs,
    ScoreOptions,
    check_calibration,
    check_embeds,
    check_method,
    check_temperature,
    make_pairs,
    method_title,
    min_norm_of,
    normalize,
    prepare_embeds,
    register_method,
    scorable_clips,
)

# The closed form loses digits as 1/|c|^2, the centroid itself as 1/|c|. Clips some weighting of which is shorter than
# this are scored through their centroids; three vectors with non-negative cosines never are (|c| >= 0.577).
_CANCELLING_NORM = 0.1


# Eq. 2 to 4 ---------------------------------------------------------------------------------------------------------


def _softmax_weights(
    similarities: torch.Tensor, modality_mask: torch.Tensor, query_temperature: float | torch.Tensor, dim: int = -1
) -> torch.Tensor:
    """Eq. 2: softmax over the present modalities, along `dim`; absent ones get exactly zero."""
    # A finite fill instead of -inf: rows are never all absent, and the backward pass stays free of NaN.
    return (similarities / query_temperature).masked_fill(~modality_mask, -1e30).softmax(dim=dim)


def _closed_form(
    similarities: torch.Tensor,
    modality_mask: torch.Tensor,
    gram: torch.Tensor,
    query_temperature: float | torch.Tensor,
    min_norm: float,
) -> torch.Tensor:
    """Eq. 4 from Gram matrices (V, M, M), with ordinary operations: differentiable, any temperature. (Q, V)."""
    weights = _softmax_weights(similarities, modality_mask.T[:, None], query_temperature, dim=0)
    squared_norm = sum(
        (1 if m == n else 2) * weights[m] * weights[n] * gram[:, m, n]
        for m in range(len(weights))
        for n in range(m, len(weights))
    )
    return (weights * similarities).sum(0) * squared_norm.clamp(min=min_norm**2).rsqrt()


def _closed_form_without_grad(
    similarities: Sequence[torch.Tensor], gram: torch.Tensor, query_temperature: float
) -> torch.Tensor:
    """Eq. 4 without a gradient, in half the passes over memory: (Q, V).

    The normaliser of the weights cancels, so they may be taken relative to the video's: exp((a_m - a_video) / tau).
    An absent modality is a zero vector with a zero row in the Gram matrix and drops out of both sums by itself.
    """
    a0, a1, a2 = similarities
    e1, e2 = (torch.sub(a, a0).mul_(1 / query_temperature).exp_() for a in (a1, a2))
    inner = torch.addcmul(2 * gram[:, 0, 2], e2, gram[:, 2, 2]).mul_(e2)
    norm = torch.addcmul(2 * gram[:, 0, 1], e1, gram[:, 1, 1]).addcmul_(e2, 2 * gram[:, 1, 2]).mul_(e1).add_(inner)
    return torch.addcmul(a0, e1, a1).addcmul_(e2, a2).mul_(norm.add_(gram[:, 0, 0]).rsqrt_())


@register_method("scalar", "SCALAR", weights="query", takes_text_per_modality=True)
def _scalar(pairs: Pairs) -> torch.Tensor:
    """Eq. 4, in whichever form is exact and cheap."""
    clips, options = pairs.clips, pairs.options
    tau = options.query_temperature
    if tau == float("inf"):
        return _uniform(pairs)
    # The unnormalised weights of the fast form reach exp(2 / tau), their squares must stay finite in float32.
    if torch.is_grad_enabled() or not (options.spread / tau <= 40 and tau <= 1e3):
        scores = _closed_form(pairs.calibrated, clips.modality_mask, clips.gram, tau, clips.min_norm)
    else:
        scores = _closed_form_without_grad(pairs.calibrated_pathways, clips.gram, tau)
    rows = clips.once(_cancelling)
    if len(rows):
        few = torch.stack([modality[rows] for modality in clips.modalities], dim=1).to(clips.dtype)
        mask = clips.modality_mask[rows]
        if pairs.is_plain:
            exact = _centroid_scores(pairs.text_embeds, few, mask, tau, clips.min_norm)
        else:
            exact = _weighted_scores(pairs.calibrated[:, :, rows].movedim(0, -1), few, mask, tau, clips.min_norm)
        scores = scores.index_copy(1, rows, exact)
    return scores


@register_method("uniform", "uniform centroid", weights="equal", takes_text_per_modality=True)
def _uniform(pairs: Pairs) -> torch.Tensor:
    """Eq. 1: the cosine with the normalised sum."""
    if pairs.is_plain:
        return pairs.text_embeds @ pairs.clips.once(_centroid).T
    return pairs.calibrated.sum(0) * pairs.clips.once(_inverse_norm)


METHODS.update(BASELINES)  # after SCALAR and its control: the order of tables


def retrieval_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    method: str = "scalar",
    query_temperature: float = 0.1,
    *,
    modality_scale: Sequence[float] | torch.Tensor | None = None,
    modality_offset: Sequence[float] | torch.Tensor | None = None,
    hyperbolic_mix: float | torch.Tensor = 0.51,
    curvature: float | torch.Tensor = 1.0,
    concat_embeds: torch.Tensor | None = None,
    rank_constant: float = 60,
    direction: str = "text_to_video",
) -> torch.Tensor:
    """
    Score every clip for every query by the closed form of the query-conditioned centroid, SCALAR Eq. 4, or a baseline.

    With the text t, the n - 1 modalities z that the clip has, their similarities a to t and Gram matrix G, and the
    Gram matrix Gt of all n vectors, `method` is

    - `"scalar"`: the cosine of t and the query-conditioned centroid (Eq. 2 to 4);
    - `"uniform"`: the same with equal weights (Eq. 1), and what `"scalar"` is at an infinite temperature;
    - `"max"`, `"mean"`: the highest and the mean similarity;
    - `"video"`, `"audio"`, `"subtitle"`: the cosine with that modality; needs it;
    - `"gram"`: -sqrt(|det Gt|), the volume over what is present (GRAM; an absent axis is orthonormal, Eq. S1);
    - `"gram_span"`: -sqrt(det Gt / det G) = -sqrt(1 - a' G^-1 a), minus the distance of t to the span of the clip;
    - `"hypergram"`: -(alpha sqrt(|det Gt|) + (1 - alpha) sqrt(|det G_H|)) with the Gram matrix G_H of Lorentz inner
      products after the exponential map of curvature -c,
      det G_H = c^-n sinh(sqrt(c))^(2n) det(Gt - coth(sqrt(c))^2 11') (HyperGRAM);
    - `"triangle"`: -sqrt(|u|^2 |w|^2 - <u, w>^2) / 2 with u = t - video and w = t - audio, the area of their triangle
      (TRIANGLE); needs both;
    - `"pmrl_raw"`: lambda_1(Gt), the largest eigenvalue (PMRL);
    - `"pmrl"`: lambda_1(Gt) / n, its share;
    - `"concat_head"`: the cosine with the head that reads exactly what the clip has, by which PMRL's released code
      ranks; needs one of [`CONCATENATIONS`];
    - `"symile"`: sum_d t_d prod_m z_md (Symile);
    - `"rank_fusion"`: sum_m 1 / (k + rank by modality m), reciprocal rank fusion of the pathways.

    A clip that lacks what a method needs has `-inf`: [`scorable_clips`] tells which. Volumes and eigenvalues of clips
    with different numbers of modalities are not on one scale (paper, "How the Gramian Baseline Sees a Missing
    Modality"); they are compared as they are. [`register_method`] adds a method.

    Some encoders give a text a vector t_m for each modality, and cosines of different modalities may lie in different
    ranges. So `"scalar"` is sum_m w_m c_m / |sum_m w_m z_m| with c_m = scale_m <t_m, z_m> + offset_m and
    w = softmax(c / tau_w) over what the clip has; `"uniform"`, `"max"` and `"mean"` read c_m too. All are the paper's
    where the t_m are one, scales 1 and offsets 0; else they are no cosines. Single modalities, and ranks by them, stay
    as they are, for c_m orders clips as <t_m, z_m> does. Volumes, areas, eigenvalues, products and concatenation heads
    are of vectors: they know no scale or offset, and refuse texts of several vectors.

    Args:
        text_embeds (`torch.Tensor` of shape `(queries, dim)`, or `(queries, 3, dim)` with t_m for each modality): unit
            norm along the last axis.
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): unit norm; what a row with a False mask holds
            (NaN included) changes nothing.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has; at least one True per row.
        method (`str`): a key of [`METHODS`].
        query_temperature (`float`): tau_w of Eq. 2, positive; `inf` gives equal weights. Only `"scalar"` uses it.
        modality_scale, modality_offset (three `float`, *optional*): of the cosines of each modality; scales are
            positive. By default 1 and 0.
        hyperbolic_mix (`float` or `torch.Tensor` of one element): alpha of `"hypergram"`, in [0, 1]. Only it uses it.
        curvature (`float` or `torch.Tensor` of one element): c of `"hypergram"`, positive. Only it uses it.
        concat_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): unit norm, in the order of [`CONCATENATIONS`]. Only
            `"concat_head"` uses it.
        rank_constant (`float`): k of `"rank_fusion"`, positive. Only it uses it.
        direction (`str`): what the scores will rank, one of [`DIRECTIONS`]: clips for each text, or texts for each
            clip. Only the ranks of `"rank_fusion"` depend on it.

    Returns:
        `torch.Tensor` of shape `(queries, clips)`, higher is better: cosines are in [-1, 1], eigenvalue shares in
        (0, 1], volumes, distances and areas at most 0. At least float32: half-precision embeddings are read as they
        are and computed on in float32. Differentiable, with respect to `hyperbolic_mix` and `curvature` too; only
        `"rank_fusion"` has no gradient.

    Raises:
        ValueError: shapes do not fit, a row of `modality_mask` is all False, the method is unknown or does not take
            texts with a vector for each modality, or a number is out of its range.

    Example:

    ```python
    >>> scores = retrieval_scores(text_embeds, modality_embeds, modality_mask)  # (Q, V)
    >>> scores.argsort(dim=1, descending=True)[:, :5]  # the first five clips of each query
    ```
    """
    check_method(method)
    calibration = {"modality_scale": modality_scale, "modality_offset": modality_offset}
    if method == "scalar" and torch.compiler.is_compiling():
        return _traced_scores(text_embeds, modality_embeds, modality_mask, query_temperature, **calibration)
    tensors = [text_embeds, modality_embeds, hyperbolic_mix, curvature, concat_embeds, *calibration.values()]
    learned = any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors)
    with (
        torch.autocast(device_type=text_embeds.device.type, enabled=False),
        torch.set_grad_enabled(torch.is_grad_enabled() and learned),
    ):
        pairs = make_pairs(
            text_embeds,
            modality_embeds,
            modality_mask,
            concat_embeds,
            query_temperature=query_temperature,
            hyperbolic_mix=hyperbolic_mix,
            curvature=curvature,
            rank_constant=rank_constant,
            direction=direction,
            **calibration,
        )
        return pairs.scores(method)


# Weights and centroids of matched pairs -----------------------------------------------------------------------------


def query_weights(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float = 0.1,
    modality_scale: Sequence[float] | torch.Tensor | None = None,
    modality_offset: Sequence[float] | torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Compute the weight of each modality of each clip for each query, SCALAR Eq. 2: why a clip matched.

    Args:
        text_embeds, modality_embeds, modality_mask, query_temperature, modality_scale, modality_offset: as in
            [`retrieval_scores`].

    Returns:
        `torch.Tensor` of shape `(queries, clips, 3)`, non-negative, summing to 1, exactly 0 where absent.

    Raises:
        ValueError: as in [`retrieval_scores`].
    """
    check_embeds(text_embeds, modality_embeds, modality_mask)
    options = ScoreOptions(query_temperature, modality_scale=modality_scale, modality_offset=modality_offset)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        text_embeds, modality_embeds = prepare_embeds(text_embeds, modality_embeds, modality_mask)
        similarities = options.calibrated(_similarities(text_embeds, modality_embeds), dim=-1)
        return _softmax_weights(similarities, modality_mask, query_temperature)


def _similarities(text_embeds: torch.Tensor, modality_embeds: torch.Tensor) -> torch.Tensor:
    """Cosines of texts and modalities, (Q, V, M)."""
    return torch.einsum("qd,vmd->qvm" if text_embeds.ndim == 2 else "qmd,vmd->qvm", text_embeds, modality_embeds)


def _paired(text_embeds, modality_embeds, modality_mask, query_temperature, modality_scale, modality_offset):
    """Weights (B, M) of each clip for its own text, and the weighted sums of its modalities (B, D)."""
    check_embeds(text_embeds, modality_embeds, modality_mask)
    options = ScoreOptions(query_temperature, modality_scale=modality_scale, modality_offset=modality_offset)
    if len(text_embeds) != len(modality_embeds):
        raise ValueError(f"Expected one text per clip, got {len(text_embeds)} texts and {len(modality_embeds)} clips.")
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        text_embeds, modality_embeds = prepare_embeds(text_embeds, modality_embeds, modality_mask)
        # Products and sums: as matrix products these would be a batch of tiny ones.
        texts = text_embeds if text_embeds.ndim == 3 else text_embeds[:, None]
        similarities = options.calibrated((modality_embeds * texts).sum(-1), dim=-1)  # (B, M)
        weights = _softmax_weights(similarities, modality_mask, query_temperature)
        return weights, (weights[..., None] * modality_embeds).sum(1)


def paired_weights(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float = 0.1,
    modality_scale: Sequence[float] | torch.Tensor | None = None,
    modality_offset: Sequence[float] | torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Compute the weight of each modality of each clip for its own text only, SCALAR Eq. 2.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)` or `(batch, 3, dim)`): unit norm, row i belongs to clip i.
        modality_embeds, modality_mask, query_temperature, modality_scale, modality_offset: as in
            [`retrieval_scores`], with `batch` clips.

    Returns:
        `torch.Tensor` of shape `(batch, 3)`: the diagonal of [`query_weights`].

    Raises:
        ValueError: as in [`retrieval_scores`], or the numbers of texts and clips differ.
    """
    calibration = modality_scale, modality_offset
    return _paired(text_embeds, modality_embeds, modality_mask, query_temperature, *calibration)[0]


def paired_centroids(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float = 0.1,
    modality_scale: Sequence[float] | torch.Tensor | None = None,
    modality_offset: Sequence[float] | torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Aggregate each clip for its own text only, mu_M(z^T) of SCALAR Eq. 2.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)` or `(batch, 3, dim)`): unit norm, row i belongs to clip i.
        modality_embeds, modality_mask, query_temperature, modality_scale, modality_offset: as in
            [`retrieval_scores`], with `batch` clips.

    Returns:
        `torch.Tensor` of shape `(batch, dim)`, unit norm (shorter only where modalities cancel to nothing).

    Raises:
        ValueError: as in [`retrieval_scores`], or the numbers of texts and clips differ.
    """
    calibration = modality_scale, modality_offset
    _, centroids = _paired(text_embeds, modality_embeds, modality_mask, query_temperature, *calibration)
    return normalize(centroids, min_norm_of(text_embeds, modality_embeds))


# Where modalities cancel --------------------------------------------------------------------------------------------


def _least_squared_norm(gram: torch.Tensor, modality_mask: torch.Tensor) -> torch.Tensor:
    """Squared norm of the shortest convex combination of a clip's vectors, (V,).

    The minimum of w'Gw over the simplex lies in a vertex (1), on an edge ((1 + g) / 2), or inside, where it is
    1 / (1' G^-1 1) with weights proportional to adj(G) 1 if these are all positive.
    """
    pairs = ((0, 1), (0, 2), (1, 2))
    cosine = [gram[:, m, n] for m, n in pairs]
    both = [modality_mask[:, m] & modality_mask[:, n] for m, n in pairs]
    one = torch.ones_like(cosine[0])
    edges = [torch.where(has, (1 + g) / 2, one) for has, g in zip(both, cosine, strict=True)]
    d, e, f = cosine
    inside = torch.stack([(1 - f) * (1 + f - d - e), (1 - e) * (1 + e - d - f), (1 - d) * (1 + d - e - f)], dim=-1)
    determinant = 1 - d * d - e * e - f * f + 2 * d * e * f
    total = inside.sum(-1)
    interior = modality_mask.all(1) & (inside > 0).all(-1)
    face = torch.where(interior, determinant / torch.where(interior, total, one), one)
    return torch.stack([*edges, face]).amin(0)


def _cancelling(clips: Clips) -> torch.Tensor:
    """Rows of the clips that some weighting shrinks to nearly nothing."""
    # Of vectors whose cosines are all above -0.4 no weighting is shorter than sqrt((1 - 2 * 0.4) / 3): nearly always.
    if not (clips.gram < -0.4).any():
        return torch.empty(0, dtype=torch.long, device=clips.gram.device)
    return (_least_squared_norm(clips.gram, clips.modality_mask) < _CANCELLING_NORM**2).nonzero().flatten()


def _centroid_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float,
    min_norm: float,
) -> torch.Tensor:
    """The score from materialised centroids, (Q, V): for the few clips whose modalities nearly cancel."""
    columns = []
    for embeds, mask in zip(modality_embeds, modality_mask, strict=True):
        weights = _softmax_weights(text_embeds @ embeds.T, mask, query_temperature)  # (Q, M)
        columns.append((text_embeds * normalize(weights @ embeds, min_norm)).sum(-1))  # (Q,)
    return torch.stack(columns, dim=1)


def _weighted_scores(
    calibrated: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float | torch.Tensor,
    min_norm: float,
) -> torch.Tensor:
    """The same of calibrated cosines (Q, V, M), where the numerator is no product with the centroid."""
    weights = _softmax_weights(calibrated, modality_mask, query_temperature)
    squared_norm = torch.einsum("qvm,vmd->qvd", weights, modality_embeds).square().sum(-1)
    return (weights * calibrated).sum(-1) * squared_norm.clamp(min=min_norm**2).rsqrt()


def _traced_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float,
    **calibration: Sequence[float] | torch.Tensor | None,
) -> torch.Tensor:
    """Eq. 2 and 3 for a traced graph, (Q, V): it cannot pick out the clips that need centroids, so all have them."""
    options = ScoreOptions(query_temperature, **calibration)
    min_norm = min_norm_of(text_embeds, modality_embeds)
    if text_embeds.ndim == 3 or options.is_calibrated:
        check_embeds(text_embeds, modality_embeds, modality_mask)
        with torch.autocast(device_type=text_embeds.device.type, enabled=False):
            text_embeds, modality_embeds = prepare_embeds(text_embeds, modality_embeds, modality_mask)
            similarities = options.calibrated(_similarities(text_embeds, modality_embeds), dim=-1)
            return _weighted_scores(similarities, modality_embeds, modality_mask, query_temperature, min_norm)
    weights = query_weights(text_embeds, modality_embeds, modality_mask, query_temperature)  # (Q, V, M)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        text_embeds, modality_embeds = prepare_embeds(text_embeds, modality_embeds, modality_mask)
        centroids = normalize(torch.einsum("qvm,vmd->qvd", weights, modality_embeds), min_norm)
        return torch.einsum("qvd,qd->qv", centroids, text_embeds)


def _centroid(clips: Clips) -> torch.Tensor:
    """Eq. 1: the normalised sum, (V, D)."""
    return normalize(clips.modality_embeds.sum(1), clips.min_norm)


def _inverse_norm(clips: Clips) -> torch.Tensor:
    """One over the norm of the sum of what each clip has, (V,)."""
    return clips.modality_embeds.sum(1).square().sum(-1).clamp(min=clips.min_norm**2).rsqrt()


__all__ = [
    "CALIBRATION",
    "MIN_NORM",
    "WEIGHING",
    "check_calibration",
    "check_temperature",
    "DIRECTIONS",
    "METHODS",
    "Clips",
    "Method",
    "Pairs",
    "ScoreOptions",
    "check_method",
    "make_pairs",
    "method_title",
    "paired_centroids",
    "paired_weights",
    "query_weights",
    "register_method",
    "retrieval_scores",
    "scorable_clips",
]
