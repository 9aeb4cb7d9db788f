"""The scores that SCALAR is compared with, each one function of [`Pairs`]; what each is stands in the docstring of
[`~scores_scalar.retrieval_scores`], its facts in [`BASELINES`] at the end.

They are closed forms like SCALAR's: functions of three inner products per pair and one Gram matrix per clip.

Shape letters: Q queries, V clips, M modalities (3, in the order of `MODALITIES`), D dimensions.
"""

import math
from functools import partial

import torch

from .configuration_scalar import CONCATENATIONS, MODALITIES
from .pairs_scalar import MIN_NORM, Clips, Method, Pairs, exact

_SORTED_AT_ONCE = 2**16  # similarities that rank fusion sorts at once, in cache
# Directions of a clip's span with a smaller share of its largest squared singular value are rounding, not modalities.
_RANK_TOLERANCE = 1e-7


# Single pathways and their plain combinations -----------------------------------------------------------------------


def _pathway(pairs: Pairs, index: int) -> torch.Tensor:
    return pairs.pathway(index)


def _max(pairs: Pairs) -> torch.Tensor:
    return pairs.calibrated.masked_fill(~pairs.clips.modality_mask.T[:, None], float("-inf")).amax(0)


def _mean(pairs: Pairs) -> torch.Tensor:
    return pairs.calibrated.sum(0) / pairs.clips.arity


# Volumes ------------------------------------------------------------------------------------------------------------


def _present(clips: Clips) -> torch.Tensor:
    """The mask as numbers, (V, M)."""
    return clips.modality_mask.to(clips.exact_gram.dtype)


def _adjugate(clips: Clips) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What determinants of bordered Gram matrices are made of, an absent modality being an orthonormal axis.

    With H the masked Gram matrix (Eq. S1) and q the presence: det H (V,), adj H (V, M, M), adj(H) q (V, M), and the
    linear change of adj H when a multiple of qq' is taken away (V, M, M).
    """
    present = clips.once(_present)
    gram = clips.exact_gram + torch.diag_embed(1 - present)
    # The rows of the adjugate of a symmetric 3x3 matrix are the cross products of the two other rows.
    (next_row, other_row), (next_q, other_q) = (
        (matrix.roll(-1, dims=1), matrix.roll(-2, dims=1)) for matrix in (gram, present[..., None])
    )
    adjugate = torch.linalg.cross(next_row, other_row)
    change = torch.linalg.cross(next_q * other_row - other_q * next_row, present[:, None])
    return (gram[:, 0] * adjugate[:, 0]).sum(-1), adjugate, (adjugate @ present[..., None]).squeeze(-1), change


def _bordered_determinant(pairs: Pairs, shift: float | torch.Tensor = 0.0) -> torch.Tensor:
    """det(Gt - shift pp') of every pair, (Q, V).

    Gt is the Gram matrix of the text and the clip, in which an absent modality is an orthonormal axis (Eq. S1), and p
    marks what is there, the text included. With the clip's own part H, its presence q and the similarities b,
    det [[1, b'], [b, H]] = det H - b' adj(H) b. Subtracting shift qq' from H changes its determinant and its adjugate
    linearly, and so the whole: in this form no power of a large shift has to cancel. The clips' own numbers are taken
    in float64: they are as small as the clips are flat, and so is then the rounding of what is done with them.
    """
    determinant, adjugate, linear, change = pairs.clips.once(_adjugate)
    shifted_determinant = determinant - shift * (linear * pairs.clips.once(_present)).sum(-1)
    numbers = -shift * determinant, shifted_determinant, 2 * shift * linear, adjugate + shift * change
    constant, shifted_determinant, linear, adjugate = (x.to(pairs.text_embeds.dtype) for x in numbers)
    total = torch.addcmul(constant, pairs.squared_norms, shifted_determinant)  # (Q, V)
    for m, similarity in enumerate(pairs.similarities):
        row = torch.addcmul(linear[:, m], similarity, -adjugate[:, m, m])
        for n in range(m + 1, len(pairs.similarities)):
            row.addcmul_(pairs.similarities[n], -2 * adjugate[:, m, n])
        total.addcmul_(similarity, row)
    return total


def _root(squared: torch.Tensor) -> torch.Tensor:
    # A square root has no gradient at zero: those that vanish are equal. What is computed in float32 vanishes there,
    # in whatever precision the vectors were kept.
    return squared.clamp(min=MIN_NORM[squared.dtype] ** 2).sqrt()


def _gram(pairs: Pairs) -> torch.Tensor:
    return -_root(_bordered_determinant(pairs).abs())


def _span_inverse(clips: Clips) -> torch.Tensor:
    """The pseudo-inverse of the Gram matrix, (V, M, M): G^-1 over what is present unless modalities repeat."""
    return torch.linalg.pinv(clips.exact_gram, rtol=_RANK_TOLERANCE, hermitian=True)


def _gram_span(pairs: Pairs) -> torch.Tensor:
    """-sqrt(1 - a' G^-1 a): minus the distance of the text to the span of what the clip has.

    In float64: where modalities nearly repeat each other, large terms cancel.
    """
    inverse, similarities = pairs.clips.once(_span_inverse), [exact(a) for a in pairs.similarities]
    rest = exact(pairs.squared_norms)
    for m, similarity in enumerate(similarities):
        row = similarity * -inverse[:, m, m]
        for n in range(m + 1, len(similarities)):
            row.addcmul_(similarities[n], -2 * inverse[:, m, n])
        rest = torch.addcmul(rest, similarity, row)
    return -_root(rest.to(pairs.text_embeds.dtype))


def _hypergram(pairs: Pairs) -> torch.Tensor:
    """-(alpha V_E + (1 - alpha) V_H).

    The exponential map at the origin of curvature -c takes a unit vector x to (cosh(r), sinh(r) x) / r, r = sqrt(c).
    The Lorentz inner product of two such points is (sinh(r)^2 <x, y> - cosh(r)^2) / c, so their Gram matrix is
    (Gt - coth(r)^2 pp') sinh(r)^2 / c.
    """
    mix, curvature = (
        torch.as_tensor(value, dtype=pairs.clips.exact_gram.dtype, device=pairs.text_embeds.device).reshape(())
        for value in (pairs.options.hyperbolic_mix, pairs.options.curvature)
    )
    root = curvature.sqrt()
    scale = (root.sinh() / root) ** (1 + pairs.clips.arity)  # (V,): one factor per vector
    # In exact arithmetic a determinant has one sign; rounding may give a vanishing one the other.
    euclidean, hyperbolic = (
        _root(_bordered_determinant(pairs, shift).abs()) for shift in (0.0, root.tanh().reciprocal().square())
    )
    return -(mix * euclidean + ((1 - mix) * scale).to(hyperbolic.dtype) * hyperbolic)


def _triangle(pairs: Pairs) -> torch.Tensor:
    """Minus half the root of |u|^2 |e|^2 - <u, e>^2 with u = t - v and e = a - v.

    Any two sides give the area; the clip's own, e, is known in float64 however short it is.
    """
    video, audio = pairs.similarities[:2]
    gram, dtype = pairs.clips.exact_gram, pairs.text_embeds.dtype
    e = (gram[:, 0, 0] + gram[:, 1, 1] - 2 * gram[:, 0, 1]).to(dtype)
    u = pairs.squared_norms - 2 * video + gram[:, 0, 0].to(dtype)
    inner = audio - video + (gram[:, 0, 0] - gram[:, 0, 1]).to(dtype)
    return -_root((u * e - inner * inner).abs()) / 2


# The largest eigenvalue ---------------------------------------------------------------------------------------------


def _quartic(similarities: list[torch.Tensor], gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p, q and r of x^4 - p x^2 - q x + r, whose roots are the eigenvalues of Gt - I: (Q, V) each."""
    a, b, c = similarities  # (Q, V) each
    d, e, f = (gram[:, m, n] for m, n in ((0, 1), (0, 2), (1, 2)))  # (V,) each
    p = a * a + b * b + c * c + (d * d + e * e + f * f)
    q = 2 * (a * b * d + a * c * e + b * c * f + d * e * f)
    x, y, z = a * f, b * e, c * d
    return p, q, x * x + y * y + z * z - 2 * (x * y + x * z + y * z)


def _largest_root(p: torch.Tensor, q: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The largest root of x^4 - p x^2 - q x + r, all of whose roots are real.

    Euler's solution gives it as (s_1 + s_2 + s_3) / 2: the squares of s are the roots of
    y^3 - 2p y^2 + (p^2 - 4r) y - q^2 = 0, which are real too, and s_1 s_2 s_3 = q.
    """
    tiny = torch.finfo(p.dtype).tiny
    radius = (p * p + 12 * r).clamp(min=0).sqrt()
    cosine = (p * (36 * r - p * p) + 13.5 * q * q) / (radius * radius * radius).clamp(min=tiny)
    angle = cosine.clamp(-1, 1).acos() / 3
    first, second = (
        ((p + radius * (angle - turn).cos()) * (2 / 3)).clamp(min=0).sqrt() for turn in (0, 2 * math.pi / 3)
    )
    return (first + second + q / (first * second).clamp(min=tiny)) / 2


def _largest_eigenvalue(pairs: Pairs) -> torch.Tensor:
    """lambda_1(Gt). An absent modality as an orthonormal axis adds an eigenvalue of 1, which is never above lambda_1.

    Gt - I has no trace, so its eigenvalues solve a quartic without a cubic term. In float64, for where roots meet they
    keep half of the digits.
    """
    gram, min_square = pairs.clips.exact_gram, pairs.clips.min_norm**2
    # Normalised again, for half precision leaves norms of 1 +- 0.004 and the quartic counts on a unit diagonal.
    scale = gram.diagonal(dim1=1, dim2=2).clamp(min=min_square).rsqrt()  # (V, M)
    gram = gram * scale[:, :, None] * scale[:, None]
    text_scale, scale = pairs.squared_norms.clamp(min=min_square).rsqrt(), scale.to(pairs.text_embeds.dtype)
    similarities = [exact(a * text_scale * s) for a, s in zip(pairs.similarities, scale.T, strict=True)]
    p, q, r = _quartic(similarities, gram)
    with torch.no_grad():
        x = _largest_root(p, q, r)
    if torch.is_grad_enabled():
        # One step of Newton's method moves the root by nothing and carries its derivative by the implicit function.
        slope = (4 * x**3 - 2 * p.detach() * x - q.detach()).clamp(min=pairs.clips.min_norm**2)
        x = x - (x**4 - p * x * x - q * x + r) / slope
    return (1 + x).to(pairs.text_embeds.dtype)


def _eigenvalues(pairs: Pairs) -> torch.Tensor:
    return pairs.in_tiles(_largest_eigenvalue)


def _pmrl_raw(pairs: Pairs) -> torch.Tensor:
    return pairs.once(_eigenvalues)


def _pmrl(pairs: Pairs) -> torch.Tensor:
    return pairs.once(_eigenvalues) / (1 + pairs.clips.arity)


# Others -------------------------------------------------------------------------------------------------------------

_HEADS = torch.tensor([[name in names for name in MODALITIES] for names in CONCATENATIONS])  # (heads, M)


def _chosen_head(modality_mask: torch.Tensor) -> torch.Tensor:
    """Which head reads exactly what each clip has, (V, heads), at most one True per row."""
    return (modality_mask[:, None] == _HEADS.to(modality_mask.device)).all(-1)


def _has_head(modality_mask: torch.Tensor) -> torch.Tensor:
    return _chosen_head(modality_mask).any(1)


def _concatenation(clips: Clips) -> torch.Tensor:
    """The output of the head that reads exactly what each clip has, (V, D); zero where there is no such head."""
    chosen = _chosen_head(clips.modality_mask)[..., None]
    return torch.where(chosen, clips.concat_embeds, 0).sum(1).to(clips.dtype)


def _concat_head(pairs: Pairs) -> torch.Tensor:
    if pairs.clips.concat_embeds is None:
        raise ValueError(
            '"concat_head" is the cosine with `concat_embeds`, which were not given. They come from a model whose '
            "checkpoint has concatenation heads (`has_concat_heads`)."
        )
    return pairs.text_embeds @ pairs.clips.once(_concatenation).T


def _product(clips: Clips) -> torch.Tensor:
    """The elementwise product of the modalities that are present, (V, D)."""
    return clips.modality_embeds.masked_fill(~clips.modality_mask[..., None], 1).prod(1)


def _symile(pairs: Pairs) -> torch.Tensor:
    return pairs.text_embeds @ pairs.clips.once(_product).T


def _descending_ranks(values: torch.Tensor) -> torch.Tensor:
    """1 + how many others of its row are at least as high, for each value: (N, C) float32 to (N, C) int32.

    One sort of integers that hold a value above and its column below: NumPy sorts these in a fraction of the time that
    sorting numbers together with their positions takes.
    """
    num_columns = values.shape[1]
    positions = torch.arange(num_columns, dtype=torch.int32)
    ranks = torch.empty(values.shape, dtype=torch.int32)
    size = _SORTED_AT_ONCE // max(1, num_columns) + 1
    for block, block_ranks in zip(values.split(size), ranks.split(size), strict=True):
        bits = (block.contiguous() + 0.0).view(torch.int32)  # the sum has one zero only
        keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32  # negative floats count backwards
        keys |= positions
        keys.numpy().sort(axis=1)  # in place: both share the memory
        levels = (keys >> 32).int()
        begins = torch.where(levels.diff(prepend=levels[:, :1]) != 0, positions, 0)  # of runs of equal values
        block_ranks.scatter_(1, keys & 0xFFFFFFFF, num_columns - begins.cummax(dim=1).values)
    return ranks


def _text_ranks(pairs: Pairs) -> torch.Tensor:
    """Ranks (M, Q, V) of the texts for each clip by each modality: no mask of another modality changes them."""
    by_clip = pairs.similarities.detach().mT.float().cpu()  # (M, V, Q)
    ranks = torch.stack([_descending_ranks(values) for values in by_clip])
    return ranks.mT.to(pairs.text_embeds.device)


def _rank_fusion(pairs: Pairs) -> torch.Tensor:
    """The sum of 1 / (constant + rank) over the pathways that a clip has; ties share the worst of their ranks."""
    total = 0
    for index, present in enumerate(pairs.clips.modality_mask.T):
        if pairs.options.direction == "video_to_text":
            ranks = pairs.unmasked.once(_text_ranks)[index]
        else:
            similarity = pairs.similarities[index].detach().masked_fill(~present, float("-inf"))
            ranks = _descending_ranks(similarity.float().cpu()).to(similarity.device)
        total = total + present / (ranks + pairs.options.rank_constant)
    return total.to(pairs.text_embeds.dtype)


BASELINES = {
    "max": Method("max pathway", _max, takes_text_per_modality=True),
    "mean": Method("mean cosine", _mean, takes_text_per_modality=True),
    **{
        name: Method(
            name,
            partial(_pathway, index=index),
            needs=(name,),
            reads=(name,),
            is_pathway=True,
            takes_text_per_modality=True,
        )
        for index, name in enumerate(MODALITIES)
    },
    "gram": Method("GRAM volume", _gram, is_symmetric=True),
    "gram_span": Method("span distance", _gram_span, is_symmetric=True),
    "hypergram": Method("HyperGRAM volume", _hypergram, is_symmetric=True, uses_hyperbolic_mix=True),
    "triangle": Method(
        "TRIANGLE area", _triangle, needs=("video", "audio"), reads=("video", "audio"), is_symmetric=True
    ),
    "pmrl_raw": Method("PMRL, raw eigenvalue", _pmrl_raw, whole=True, is_symmetric=True),
    "pmrl": Method("PMRL", _pmrl, whole=True, is_symmetric=True),
    "concat_head": Method(
        "concatenation head", _concat_head, scorable=_has_head, is_trainable=False, uses_concat_heads=True
    ),
    "symile": Method("Symile", _symile, is_symmetric=True),
    "rank_fusion": Method(
        "rank fusion", _rank_fusion, whole=True, directed=True, is_trainable=False, takes_text_per_modality=True
    ),
}
"""The baselines by name, in the order of tables."""


__all__ = ["BASELINES"]
