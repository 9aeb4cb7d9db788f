"""The mathematics of SCALAR: query-conditioned spherical centroids over whatever modalities a clip has.

Pure functions of unit embeddings and a presence mask. Scores come from the closed form of the paper (Eq. 4,
Algorithm S1): three inner products per query and clip and one 3x3 Gram matrix per clip, never a centroid per pair.
The scores of the baselines are functions of the same numbers.

Shape letters: Q queries, V clips, B matched pairs, M modalities (3, in the order of `MODALITIES`), D dimensions.
"""

import math

import torch

from .configuration_scalar import AGGREGATIONS, MODALITIES

METHODS = AGGREGATIONS
"""Names accepted by [`retrieval_scores`]."""

# Clips are scored in blocks of this many columns when no gradient is needed: the temporaries then stay in cache.
_BLOCK = 1024
# A weighted sum shorter than this is treated as this long, so that scores and gradients stay bounded where modalities
# cancel. It is a clamp, not an addition: every other clip keeps its exact score. The same for volumes and areas, whose
# square root has no gradient at zero.
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


def _check_hyperbolic(hyperbolic_mix: float | torch.Tensor, curvature: float | torch.Tensor) -> None:
    if not 0 <= hyperbolic_mix <= 1:
        raise ValueError(f"`hyperbolic_mix` must be in [0, 1], got {hyperbolic_mix!r}.")
    if not 0 < curvature < float("inf"):
        raise ValueError(f"`curvature` must be positive and finite, got {curvature!r}.")


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


def _products(text_embeds, modality_embeds):
    """All that the baselines read: squared norms (Q, 1) and similarities (M, Q, V), Gram matrices (V, M, M)."""
    squared_norms = text_embeds.square().sum(-1, keepdim=True)
    similarities = text_embeds @ modality_embeds.permute(1, 2, 0)
    return squared_norms, similarities, modality_embeds @ modality_embeds.mT


def _bordered_determinant(squared_norms, similarities, gram, modality_mask, shift=0.0):
    """det(Gt - shift pp') of every pair, (Q, V).

    Gt is the Gram matrix of the text and the clip, in which an absent modality is an orthonormal axis (Eq. S1), and p
    marks what is there, the text included. With the clip's own part H, its presence q and the similarities b,
    det [[1, b'], [b, H]] = det H - b' adj(H) b. Subtracting shift qq' from H changes its determinant and its adjugate
    linearly, and so the whole: in this form no power of a large shift has to cancel.
    """
    present = modality_mask.to(gram.dtype)  # q (V, M)
    gram = gram + torch.diag_embed(1 - present)
    # The rows of the adjugate of a symmetric 3x3 matrix are the cross products of the two other rows.
    (next_row, other_row), (next_q, other_q) = (
        (matrix.roll(-1, dims=1), matrix.roll(-2, dims=1)) for matrix in (gram, present[..., None])
    )
    adjugate = torch.linalg.cross(next_row, other_row)  # (V, M, M)
    determinant = (gram[:, 0] * adjugate[:, 0]).sum(-1)  # (V,)
    linear = (adjugate @ present[..., None]).squeeze(-1)  # adj(H) q (V, M)
    shifted_determinant = determinant - shift * (linear * present).sum(-1)
    adjugate = adjugate + shift * torch.linalg.cross(next_q * other_row - other_q * next_row, present[:, None])

    total = torch.addcmul(-shift * determinant, squared_norms, shifted_determinant)  # (Q, V)
    for m in range(len(similarities)):
        row = torch.addcmul(2 * shift * linear[:, m], similarities[m], -adjugate[:, m, m])
        for n in range(m + 1, len(similarities)):
            row.addcmul_(similarities[n], -2 * adjugate[:, m, n])
        total.addcmul_(similarities[m], row)
    return total


def _volume(squared: torch.Tensor, min_norm: float) -> torch.Tensor:
    # In exact arithmetic the argument has one sign; rounding may give a vanishing one the other.
    return squared.abs().clamp(min=min_norm**2).sqrt()


def _hypergram_scores(products, modality_mask, hyperbolic_mix, curvature, min_norm):
    """-(alpha V_E + (1 - alpha) V_H), (Q, V).

    The exponential map at the origin of curvature -c takes a unit vector x to (cosh(r), sinh(r) x) / r, r = sqrt(c).
    The Lorentz inner product of two such points is (sinh(r)^2 <x, y> - cosh(r)^2) / c, so their Gram matrix is
    (Gt - coth(r)^2 pp') sinh(r)^2 / c.
    """
    mix, curvature = (
        torch.as_tensor(value, dtype=products[0].dtype, device=products[0].device).reshape(())
        for value in (hyperbolic_mix, curvature)
    )
    root = curvature.sqrt()
    scale = (root.sinh() / root) ** (1 + modality_mask.sum(1))  # (V,): one factor per vector
    euclidean, hyperbolic = (
        _volume(_bordered_determinant(*products, modality_mask, shift), min_norm)
        for shift in (0.0, root.tanh().reciprocal().square())
    )
    return -(mix * euclidean + (1 - mix) * scale * hyperbolic)


def _largest_eigenvalue(similarities, gram):
    """lambda_1 of the Gram matrices of text and clip, differentiable: (Q, V).

    Absent modalities are zero rows here. lambda_1 is at least 1, so it is that of the present ones all the same.
    """
    border = similarities.permute(1, 2, 0)  # (Q, V, M)
    text = torch.cat([torch.ones_like(border[..., :1]), border], dim=-1)  # (Q, V, 1 + M)
    clip = torch.cat([border[..., None], gram.expand(len(border), -1, -1, -1)], dim=-1)  # (Q, V, M, 1 + M)
    return torch.linalg.eigvalsh(torch.cat([text[..., None, :], clip], dim=-2))[..., -1]


def _largest_eigenvalue_in_closed_form(similarities, gram):
    """The same without a gradient, for unit diagonals, an order of magnitude faster.

    Gt - I has no trace, so its eigenvalues solve x^4 - p x^2 - q x + r = 0, and Euler's solution gives the largest as
    (s_1 + s_2 + s_3) / 2: the squares of s are the roots of y^3 - 2p y^2 + (p^2 - 4r) y - q^2 = 0, which are real, and
    s_1 s_2 s_3 = q. In float64: where roots meet they keep half of the digits.
    """
    a, b, c = similarities.double()  # (Q, V) each
    d, e, f = (gram[:, m, n].double() for m, n in ((0, 1), (0, 2), (1, 2)))  # (V,) each
    p = a * a + b * b + c * c + (d * d + e * e + f * f)
    q = 2 * (a * b * d + a * c * e + b * c * f + d * e * f)
    x, y, z = a * f, b * e, c * d
    r = x * x + y * y + z * z - 2 * (x * y + x * z + y * z)
    tiny = torch.finfo(p.dtype).tiny
    radius = (p * p + 12 * r).clamp(min=0).sqrt()
    cosine = (p * (36 * r - p * p) + 13.5 * q * q) / (radius * radius * radius).clamp(min=tiny)
    angle = cosine.clamp(-1, 1).acos() / 3
    first, second = (
        ((p + radius * (angle - turn).cos()) * (2 / 3)).clamp(min=0).sqrt() for turn in (0, 2 * math.pi / 3)
    )
    return (1 + (first + second + q / (first * second).clamp(min=tiny)) / 2).to(gram.dtype)


def _pmrl_scores(text_embeds, modality_embeds, modality_mask, min_norm):
    # Normalised again, for half precision leaves norms of 1 +- 0.004: the closed form counts on 1.
    text_embeds, modality_embeds = (_normalize(embeds, min_norm) for embeds in (text_embeds, modality_embeds))
    _, similarities, gram = _products(text_embeds, modality_embeds)
    solve = _largest_eigenvalue if torch.is_grad_enabled() else _largest_eigenvalue_in_closed_form
    return solve(similarities, gram) / (1 + modality_mask.sum(1))


def _triangle_scores(squared_norms, similarities, gram, modality_mask, min_norm):
    """Minus half the root of |u|^2 |w|^2 - <u, w>^2 with u = t - v and w = t - a, (Q, V)."""
    video, audio = similarities[:2]
    u = squared_norms - 2 * video + gram[:, 0, 0]
    w = squared_norms - 2 * audio + gram[:, 1, 1]
    inner = squared_norms - video - audio + gram[:, 0, 1]
    area = _volume(u * w - inner * inner, min_norm) / 2
    return (-area).masked_fill(~modality_mask[:, :2].all(1), float("-inf"))


def _block_scores(
    text_embeds, modality_embeds, modality_mask, method, query_temperature, hyperbolic_mix, curvature, min_norm
):
    text_embeds, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
    if method in MODALITIES:
        pathway = MODALITIES.index(method)
        scores = text_embeds @ modality_embeds[:, pathway].T
        return scores.masked_fill(~modality_mask[:, pathway], float("-inf"))
    if method == "uniform" or (method == "scalar" and query_temperature == float("inf")):
        return text_embeds @ _normalize(modality_embeds.sum(1), min_norm).T
    if method == "scalar":
        return _scalar_scores(text_embeds, modality_embeds, modality_mask, query_temperature, min_norm)
    if method == "pmrl":
        return _pmrl_scores(text_embeds, modality_embeds, modality_mask, min_norm)
    products = _products(text_embeds, modality_embeds)
    if method == "gram":
        return -_volume(_bordered_determinant(*products, modality_mask), min_norm)
    if method == "triangle":
        return _triangle_scores(*products, modality_mask, min_norm)
    return _hypergram_scores(products, modality_mask, hyperbolic_mix, curvature, min_norm)


def retrieval_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    method: str = "scalar",
    query_temperature: float = 0.1,
    *,
    hyperbolic_mix: float | torch.Tensor = 0.51,
    curvature: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """
    Score every clip for every query by the closed form of the query-conditioned centroid, SCALAR Eq. 4, or a baseline.

    With the text t, the n - 1 modalities that the clip has, and the Gram matrix Gt of all n vectors, `method` is

    - `"scalar"`: the cosine of t and the query-conditioned centroid (Eq. 2 to 4);
    - `"uniform"`: the same with equal weights (Eq. 1), and what `"scalar"` is at an infinite temperature;
    - `"video"`, `"audio"`, `"subtitle"`: the cosine with that modality, `-inf` where the clip lacks it;
    - `"gram"`: -sqrt(|det Gt|), the volume over what is present (GRAM; an absent axis is orthonormal, Eq. S1);
    - `"pmrl"`: lambda_1(Gt) / n, the share of the largest eigenvalue (PMRL);
    - `"hypergram"`: -(alpha sqrt(|det Gt|) + (1 - alpha) sqrt(|det G_H|)) with the Gram matrix G_H of Lorentz inner
      products after the exponential map of curvature -c,
      det G_H = c^-n sinh(sqrt(c))^(2n) det(Gt - coth(sqrt(c))^2 11') (HyperGRAM);
    - `"triangle"`: -sqrt(|u|^2 |w|^2 - <u, w>^2) / 2 with u = t - video and w = t - audio, the area of their triangle
      (TRIANGLE); `-inf` where the clip lacks one of the two.

    Volumes and eigenvalue shares of clips with different numbers of modalities are not on one scale (paper, "How the
    Gramian Baseline Sees a Missing Modality"); they are compared as they are.

    Args:
        text_embeds (`torch.Tensor` of shape `(queries, dim)`): unit norm along the last axis.
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): unit norm; what a row with a False mask holds
            (NaN included) changes nothing.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has; at least one True per row.
        method (`str`): one of [`METHODS`].
        query_temperature (`float`): tau_w of Eq. 2, positive; `inf` gives equal weights. Only `"scalar"` uses it.
        hyperbolic_mix (`float` or `torch.Tensor` of one element): alpha of `"hypergram"`, in [0, 1]. Only it uses it.
        curvature (`float` or `torch.Tensor` of one element): c of `"hypergram"`, positive. Only it uses it.

    Returns:
        `torch.Tensor` of shape `(queries, clips)`, higher is better: cosines are in [-1, 1], eigenvalue shares in
        (0, 1], volumes and areas at most 0. At least float32: half-precision embeddings are read as they are and
        computed on in float32. Differentiable, with respect to `hyperbolic_mix` and `curvature` too.

    Raises:
        ValueError: shapes do not fit, a row of `modality_mask` is all False, the method is unknown, or a number is
            out of its range.

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
    if method == "hypergram":
        _check_hyperbolic(hyperbolic_mix, curvature)
    min_norm = _min_norm(text_embeds, modality_embeds)
    arguments = (method, query_temperature, hyperbolic_mix, curvature, min_norm)
    tensors = [text_embeds, modality_embeds, hyperbolic_mix, curvature]
    learned = any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        if torch.is_grad_enabled() and learned:
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


def _paired(text_embeds, modality_embeds, modality_mask, query_temperature):
    """Weights (B, M) of each clip for its own text, and the weighted sums of its modalities (B, D)."""
    _check(text_embeds, modality_embeds, modality_mask)
    _check_temperature(query_temperature)
    if len(text_embeds) != len(modality_embeds):
        raise ValueError(f"Expected one text per clip, got {len(text_embeds)} texts and {len(modality_embeds)} clips.")
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        text_embeds, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
        # Products and sums: as matrix products these would be a batch of tiny ones.
        similarities = (modality_embeds * text_embeds[:, None]).sum(-1)  # (B, M)
        weights = _softmax_weights(similarities, modality_mask, query_temperature)
        return weights, (weights[..., None] * modality_embeds).sum(1)


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
    return _paired(text_embeds, modality_embeds, modality_mask, query_temperature)[0]


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
    _, centroids = _paired(text_embeds, modality_embeds, modality_mask, query_temperature)
    return _normalize(centroids, _min_norm(text_embeds, modality_embeds))


__all__ = ["METHODS", "paired_centroids", "paired_weights", "query_weights", "retrieval_scores"]
