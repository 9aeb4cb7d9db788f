"""The mathematics of SCALAR: query-conditioned spherical centroids over whatever modalities a clip has.

Pure functions of unit embeddings and a presence mask. Scores come from the closed form of the paper (Eq. 4,
Algorithm S1): three inner products per query and clip and one 3x3 Gram matrix per clip, never a centroid per pair.

Shape letters: Q queries, V clips, B matched pairs, M modalities (3, in the order of `MODALITIES`), D dimensions.
"""

import torch

from .configuration_scalar import AGGREGATIONS, MODALITIES

METHODS = AGGREGATIONS
"""Names accepted by [`retrieval_scores`]."""

# Clips are scored in blocks of this many columns when no gradient is needed: the temporaries then stay in cache.
_BLOCK = 1024
# A weighted sum shorter than this is treated as this long, so that scores and gradients stay bounded where modalities
# cancel. It is a clamp, not an addition: every other clip keeps its exact score.
_MIN_NORM = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-3, torch.float64: 1e-6}
# The closed form loses digits as 1/|c|^2, the centroid itself as 1/|c|. Clips some weighting of which is shorter than
# this are scored through their centroids; three vectors with non-negative cosines never are (|c| >= 0.577).
_CANCELLING_NORM = 0.1


def _check(text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
    if text_embeds.ndim != 2 or modality_embeds.ndim != 3 or modality_embeds.shape[1] != len(MODALITIES):
        raise ValueError(
            f"Expected `text_embeds` (queries, dim) and `modality_embeds` (clips, {len(MODALITIES)}, dim), got "
            f"{tuple(text_embeds.shape)} and {tuple(modality_embeds.shape)}."
        )
    if text_embeds.shape[-1] != modality_embeds.shape[-1]:
        raise ValueError(
            f"`text_embeds` and `modality_embeds` must have the same last dimension, got {text_embeds.shape[-1]} and "
            f"{modality_embeds.shape[-1]}. Were they made by the same model?"
        )
    for name, tensor in (("text_embeds", text_embeds), ("modality_embeds", modality_embeds)):
        if tensor.dtype not in _MIN_NORM:
            raise ValueError(f"`{name}` must be one of {[str(d) for d in _MIN_NORM]}, got {tensor.dtype}.")
    if modality_mask.dtype != torch.bool or modality_mask.shape != modality_embeds.shape[:2]:
        raise ValueError(
            f"`modality_mask` must be a bool tensor of shape {tuple(modality_embeds.shape[:2])}, got "
            f"{modality_mask.dtype} {tuple(modality_mask.shape)}."
        )
    empty = (~modality_mask.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"`modality_mask` must have at least one True per row; {len(empty)} rows are all absent: {empty[:10]}. "
            "Leave these clips out of the gallery: nothing is known about them."
        )


def _check_temperature(query_temperature: float) -> None:
    if not query_temperature > 0:
        raise ValueError(f"`query_temperature` must be positive, got {query_temperature!r}.")


def _min_norm(*embeds: torch.Tensor) -> float:
    return max(_MIN_NORM[tensor.dtype] for tensor in embeds)


def _normalize(centroids: torch.Tensor, min_norm: float) -> torch.Tensor:
    # The gradient of a norm is NaN at zero, so the clamp acts on its square.
    return centroids * centroids.square().sum(-1, keepdim=True).clamp(min=min_norm**2).rsqrt()


def _prepare(text_embeds, modality_embeds, modality_mask):
    """Zero absent rows whatever they hold, and compute in float32 at least: (Q, D), (V, M, D)."""
    dtype = torch.promote_types(torch.promote_types(text_embeds.dtype, modality_embeds.dtype), torch.float32)
    present = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(())).to(dtype)
    return text_embeds.to(dtype), present


def _softmax_weights(similarities, modality_mask, query_temperature):
    """Eq. 2: softmax over the present modalities, on the last axis; absent ones get exactly zero."""
    # A finite fill instead of -inf: rows are never all absent, and the backward pass stays free of NaN.
    return (similarities / query_temperature).masked_fill(~modality_mask, -1e30).softmax(dim=-1)


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


def _centroid_scores(text_embeds, modality_embeds, modality_mask, query_temperature, min_norm):
    """The score from materialised centroids, (Q, V): for the few clips whose modalities nearly cancel."""
    columns = []
    for embeds, mask in zip(modality_embeds, modality_mask, strict=True):
        weights = _softmax_weights(text_embeds @ embeds.T, mask, query_temperature)  # (Q, M)
        columns.append((text_embeds * _normalize(weights @ embeds, min_norm)).sum(-1))  # (Q,)
    return torch.stack(columns, dim=1)


def _closed_form(text_embeds, modality_embeds, modality_mask, gram, query_temperature, min_norm):
    """Eq. 4 from Gram matrices (V, M, M), with ordinary operations: differentiable, any temperature. (Q, V)."""
    similarities = text_embeds @ modality_embeds.permute(1, 2, 0)  # (M, Q, V)
    logits = (similarities / query_temperature).masked_fill(~modality_mask.T[:, None], -1e30)
    weights = logits.softmax(dim=0)
    squared_norm = sum(
        (1 if m == n else 2) * weights[m] * weights[n] * gram[:, m, n]
        for m in range(len(weights))
        for n in range(m, len(weights))
    )
    return (weights * similarities).sum(0) * squared_norm.clamp(min=min_norm**2).rsqrt()


def _closed_form_into(out, text_embeds, modality_embeds, gram, query_temperature):
    """Eq. 4 written into `out` (Q, V), without a gradient, in half the passes over memory.

    The normaliser of the weights cancels, so they may be taken relative to the video's: exp((a_m - a_video) / tau).
    An absent modality is a zero vector with a zero row in the Gram matrix and drops out of both sums by itself.
    Scaling queries by 1/tau and the Gram matrix by its square leaves the score as it is and saves a pass or two.
    """
    g = gram / query_temperature**2
    queries = text_embeds / query_temperature
    a0, a1, a2 = (queries @ modality_embeds[:, m].T for m in range(3))  # (Q, V) each
    e1, e2 = torch.sub(a1, a0).exp_(), torch.sub(a2, a0).exp_()
    inner = torch.addcmul(2 * g[:, 0, 2], e2, g[:, 2, 2]).mul_(e2)
    norm = torch.addcmul(2 * g[:, 0, 1], e1, g[:, 1, 1]).addcmul_(e2, 2 * g[:, 1, 2]).mul_(e1).add_(inner)
    torch.mul(a0.addcmul_(e1, a1).addcmul_(e2, a2), norm.add_(g[:, 0, 0]).rsqrt_(), out=out)


def _scalar_scores(text_embeds, modality_embeds, modality_mask, query_temperature, min_norm):
    gram = modality_embeds @ modality_embeds.mT  # (V, M, M)
    # The unnormalised weights of the fast form reach exp(2 / tau), their squares must stay finite in float32.
    if torch.is_grad_enabled() or not 0.05 <= query_temperature <= 1e3:
        scores = _closed_form(text_embeds, modality_embeds, modality_mask, gram, query_temperature, min_norm)
    else:
        scores = text_embeds.new_empty(len(text_embeds), len(modality_embeds))
        _closed_form_into(scores, text_embeds, modality_embeds, gram, query_temperature)
    cancelling = (_least_squared_norm(gram, modality_mask) < _CANCELLING_NORM**2).nonzero().flatten()
    if len(cancelling):
        clips = modality_embeds[cancelling], modality_mask[cancelling]
        exact = _centroid_scores(text_embeds, *clips, query_temperature, min_norm)
        scores = scores.index_copy(1, cancelling, exact)
    return scores


def _block_scores(text_embeds, modality_embeds, modality_mask, method, query_temperature, min_norm):
    text_embeds, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
    if method in MODALITIES:
        pathway = MODALITIES.index(method)
        scores = text_embeds @ modality_embeds[:, pathway].T
        return scores.masked_fill(~modality_mask[:, pathway], float("-inf"))
    if method == "uniform":
        return text_embeds @ _normalize(modality_embeds.sum(1), min_norm).T
    return _scalar_scores(text_embeds, modality_embeds, modality_mask, query_temperature, min_norm)


def retrieval_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    method: str = "scalar",
    query_temperature: float = 0.1,
) -> torch.Tensor:
    """
    Score every clip for every query by the closed form of the query-conditioned centroid, SCALAR Eq. 4.

    Args:
        text_embeds (`torch.Tensor` of shape `(queries, dim)`): unit norm along the last axis.
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): unit norm; what a row with a False mask holds
            (NaN included) changes nothing.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has; at least one True per row.
        method (`str`): `"scalar"`; `"uniform"`, the same centroid with equal weights (Eq. 1); or one pathway,
            `"video"`, `"audio"` or `"subtitle"`, the cosine with that modality, `-inf` where the clip lacks it.
        query_temperature (`float`): tau_w of Eq. 2, positive. Only `"scalar"` uses it.

    Returns:
        `torch.Tensor` of shape `(queries, clips)`, higher is better, in [-1, 1] for present modalities. At least
        float32: half-precision embeddings are read as they are and computed on in float32. Differentiable.

    Raises:
        ValueError: shapes do not fit, a row of `modality_mask` is all False, the method is unknown, or the temperature
            is not positive.

    Example:

    ```python
    >>> scores = retrieval_scores(text_embeds, modality_embeds, modality_mask)  # (Q, V)
    >>> scores.argsort(dim=1, descending=True)[:, :5]  # the first five clips of each query
    ```
    """
    _check(text_embeds, modality_embeds, modality_mask)
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {METHODS}, got {method!r}.")
    _check_temperature(query_temperature)
    arguments = (method, query_temperature, _min_norm(text_embeds, modality_embeds))
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        if torch.is_grad_enabled() and (text_embeds.requires_grad or modality_embeds.requires_grad):
            return _block_scores(text_embeds, modality_embeds, modality_mask, *arguments)
        with torch.no_grad():
            blocks = zip(modality_embeds.split(_BLOCK), modality_mask.split(_BLOCK), strict=True)
            return torch.cat([_block_scores(text_embeds, *block, *arguments) for block in blocks], dim=1)


def query_weights(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float = 0.1,
) -> torch.Tensor:
    """
    Compute the weight of each modality of each clip for each query, SCALAR Eq. 2: why a clip matched.

    Args:
        text_embeds, modality_embeds, modality_mask, query_temperature: as in [`retrieval_scores`].

    Returns:
        `torch.Tensor` of shape `(queries, clips, 3)`, non-negative, summing to 1, exactly 0 where absent.

    Raises:
        ValueError: as in [`retrieval_scores`].
    """
    _check(text_embeds, modality_embeds, modality_mask)
    _check_temperature(query_temperature)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        text_embeds, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
        similarities = torch.einsum("qd,vmd->qvm", text_embeds, modality_embeds)
        return _softmax_weights(similarities, modality_mask, query_temperature)


def paired_weights(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float = 0.1,
) -> torch.Tensor:
    """
    Compute the weight of each modality of each clip for its own text only, SCALAR Eq. 2.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)`): unit norm, row i belongs to clip i.
        modality_embeds, modality_mask, query_temperature: as in [`retrieval_scores`], with `batch` clips.

    Returns:
        `torch.Tensor` of shape `(batch, 3)`: the diagonal of [`query_weights`].

    Raises:
        ValueError: as in [`retrieval_scores`], or the numbers of texts and clips differ.
    """
    _check(text_embeds, modality_embeds, modality_mask)
    _check_temperature(query_temperature)
    if len(text_embeds) != len(modality_embeds):
        raise ValueError(f"Expected one text per clip, got {len(text_embeds)} texts and {len(modality_embeds)} clips.")
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        text_embeds, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
        similarities = (modality_embeds @ text_embeds[:, :, None]).squeeze(-1)  # (B, M)
        return _softmax_weights(similarities, modality_mask, query_temperature)


def paired_centroids(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    query_temperature: float = 0.1,
) -> torch.Tensor:
    """
    Aggregate each clip for its own text only, mu_M(z^T) of SCALAR Eq. 2.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)`): unit norm, row i belongs to clip i.
        modality_embeds, modality_mask, query_temperature: as in [`retrieval_scores`], with `batch` clips.

    Returns:
        `torch.Tensor` of shape `(batch, dim)`, unit norm (shorter only where modalities cancel to nothing).

    Raises:
        ValueError: as in [`retrieval_scores`], or the numbers of texts and clips differ.
    """
    weights = paired_weights(text_embeds, modality_embeds, modality_mask, query_temperature)
    min_norm = _min_norm(text_embeds, modality_embeds)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        _, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
        return _normalize((weights[:, None] @ modality_embeds).squeeze(1), min_norm)  # (B, D)


__all__ = ["METHODS", "paired_centroids", "paired_weights", "query_weights", "retrieval_scores"]
