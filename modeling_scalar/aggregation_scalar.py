"""The mathematics of SCALAR: query-conditioned spherical centroids over whatever modalities a clip has.

Pure functions of unit embeddings and a presence mask. Scores come from the closed form of the paper (Eq. 4,
Algorithm S1): three inner products per query and clip and one 3x3 Gram matrix per clip, never a centroid per pair.
The scores of the baselines are functions of the same numbers; each is one function, registered under its name.

Shape letters: Q queries, V clips, B matched pairs, M modalities (3, in the order of `MODALITIES`), D dimensions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from .configuration_scalar import CONCATENATIONS, MODALITIES

DIRECTIONS = ("text_to_video", "video_to_text")
"""What is ranked: clips for each text, or texts for each clip."""

# Without a gradient, pairs are scored in tiles of this many texts and clips: the temporaries then stay in cache.
_TILE = (256, 1024)
# A weighted sum shorter than this is treated as this long, so that scores and gradients stay bounded where modalities
# cancel. It is a clamp, not an addition: every other clip keeps its exact score. The same for volumes and areas, whose
# square root has no gradient at zero: those that vanish are equal.
_MIN_NORM = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-3, torch.float64: 1e-6}
# The closed form loses digits as 1/|c|^2, the centroid itself as 1/|c|. Clips some weighting of which is shorter than
# this are scored through their centroids; three vectors with non-negative cosines never are (|c| >= 0.577).
_CANCELLING_NORM = 0.1
_SORTED_AT_ONCE = 2**16  # similarities that rank fusion sorts at once, in cache
# Directions of a clip's span with a smaller share of its largest squared singular value are rounding, not modalities.
_RANK_TOLERANCE = 1e-7


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


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, which all devices but Apple's have: what tells vectors apart that nearly repeat each other."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def _prepare(text_embeds, modality_embeds, modality_mask):
    """Zero absent rows whatever they hold, and compute in float32 at least: (Q, D), (V, M, D)."""
    dtype = torch.promote_types(torch.promote_types(text_embeds.dtype, modality_embeds.dtype), torch.float32)
    present = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(())).to(dtype)
    return text_embeds.to(dtype), present


def _softmax_weights(similarities, modality_mask, query_temperature):
    """Eq. 2: softmax over the present modalities, on the last axis; absent ones get exactly zero."""
    # A finite fill instead of -inf: rows are never all absent, and the backward pass stays free of NaN.
    return (similarities / query_temperature).masked_fill(~modality_mask, -1e30).softmax(dim=-1)


_HEADS = torch.tensor([[name in names for name in MODALITIES] for names in CONCATENATIONS])  # (heads, M)


def _chosen_head(modality_mask: torch.Tensor) -> torch.Tensor:
    """Which head reads exactly what each clip has, (V, heads), at most one True per row."""
    return (modality_mask[:, None] == _HEADS.to(modality_mask.device)).all(-1)


@dataclass(frozen=True)
class ScoreOptions:
    """What scores depend on beside embeddings; each is an argument of [`retrieval_scores`]."""

    query_temperature: float = 0.1
    hyperbolic_mix: float | torch.Tensor = 0.51
    curvature: float | torch.Tensor = 1.0
    rank_constant: float = 60
    direction: str = "text_to_video"

    def __post_init__(self):
        _check_temperature(self.query_temperature)
        _check_hyperbolic(self.hyperbolic_mix, self.curvature)
        if not self.rank_constant > 0:
            raise ValueError(f"`rank_constant` must be positive, got {self.rank_constant!r}.")
        if self.direction not in DIRECTIONS:
            raise ValueError(f"`direction` must be one of {DIRECTIONS}, got {self.direction!r}.")


_SHARED = {"gram", "exact_gram"}  # what parts and masks of clips take over instead of computing it again


class Clips:
    """What scores read of the clips alone, computed when first asked for.

    Attributes:
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): which are present.
        concat_embeds (`torch.Tensor` of shape `(clips, 3, dim)` or `None`): of the concatenation heads.
        min_norm (`float`): what a vanishing norm, volume or area is clamped to.
    """

    def __init__(self, modality_embeds, modality_mask, concat_embeds=None, *, min_norm):
        self.modality_embeds, self.modality_mask, self.concat_embeds = modality_embeds, modality_mask, concat_embeds
        self.min_norm = min_norm

    def __len__(self) -> int:
        return len(self.modality_embeds)

    def __getitem__(self, columns: slice) -> "Clips":
        concat_embeds = None if self.concat_embeds is None else self.concat_embeds[columns]
        part = Clips(self.modality_embeds[columns], self.modality_mask[columns], concat_embeds, min_norm=self.min_norm)
        for name in _SHARED & self.__dict__.keys():
            setattr(part, name, getattr(self, name)[columns])
        return part

    def masked(self, modality_mask: torch.Tensor) -> "Clips":
        """The same clips with only what `modality_mask` leaves of each."""
        clips = Clips(
            self.modality_embeds * modality_mask[..., None], modality_mask, self.concat_embeds, min_norm=self.min_norm
        )
        for name in _SHARED & self.__dict__.keys():
            setattr(clips, name, getattr(self, name) * (modality_mask[:, :, None] & modality_mask[:, None]))
        return clips

    @cached_property
    def gram(self) -> torch.Tensor:
        """Inner products of the modalities, (V, M, M), zero where absent."""
        return self.modality_embeds @ self.modality_embeds.mT

    @cached_property
    def exact_gram(self) -> torch.Tensor:
        """The same in float64, for what tells clips apart whose modalities nearly repeat each other."""
        blocks = map(_exact, self.modality_embeds.split(_TILE[1]))
        return torch.cat([block @ block.mT for block in blocks])

    @cached_property
    def present(self) -> torch.Tensor:
        """The mask as numbers, (V, M)."""
        return self.modality_mask.to(self.exact_gram.dtype)

    @cached_property
    def arity(self) -> torch.Tensor:
        """How many modalities each clip has, (V,)."""
        return self.modality_mask.sum(1)

    @cached_property
    def centroid(self) -> torch.Tensor:
        """Eq. 1: the normalised sum, (V, D)."""
        return _normalize(self.modality_embeds.sum(1), self.min_norm)

    @cached_property
    def product(self) -> torch.Tensor:
        """The elementwise product of the modalities that are present, (V, D)."""
        return self.modality_embeds.masked_fill(~self.modality_mask[..., None], 1).prod(1)

    @cached_property
    def concatenation(self) -> torch.Tensor:
        """What the head gives that reads exactly what each clip has, (V, D); zero where there is no such head."""
        chosen = _chosen_head(self.modality_mask)[..., None]
        return torch.where(chosen, self.concat_embeds, 0).sum(1).to(self.modality_embeds.dtype)

    @cached_property
    def cancelling(self) -> torch.Tensor:
        """Rows of the clips that some weighting shrinks to nearly nothing."""
        return (_least_squared_norm(self.gram, self.modality_mask) < _CANCELLING_NORM**2).nonzero().flatten()

    @cached_property
    def adjugate(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What determinants of bordered Gram matrices are made of, an absent modality being an orthonormal axis.

        With H the masked Gram matrix (Eq. S1) and q the presence: det H (V,), adj H (V, M, M), adj(H) q (V, M), and
        the linear change of adj H when a multiple of qq' is taken away (V, M, M).
        """
        gram = self.exact_gram + torch.diag_embed(1 - self.present)
        # The rows of the adjugate of a symmetric 3x3 matrix are the cross products of the two other rows.
        (next_row, other_row), (next_q, other_q) = (
            (matrix.roll(-1, dims=1), matrix.roll(-2, dims=1)) for matrix in (gram, self.present[..., None])
        )
        adjugate = torch.linalg.cross(next_row, other_row)
        change = torch.linalg.cross(next_q * other_row - other_q * next_row, self.present[:, None])
        return (
            (gram[:, 0] * adjugate[:, 0]).sum(-1),
            adjugate,
            (adjugate @ self.present[..., None]).squeeze(-1),
            change,
        )

    @cached_property
    def span_inverse(self) -> torch.Tensor:
        """The pseudo-inverse of the Gram matrix, (V, M, M): G^-1 over what is present unless modalities repeat."""
        return torch.linalg.pinv(self.exact_gram, rtol=_RANK_TOLERANCE, hermitian=True)


class Pairs:
    """Every text with every clip: all that a score may read, computed when first asked for and then shared.

    Attributes:
        text_embeds (`torch.Tensor` of shape `(queries, dim)`): in float32 at least.
        clips ([`Clips`]): the clips.
        options ([`ScoreOptions`]): temperatures and other numbers.
    """

    def __init__(self, text_embeds: torch.Tensor, clips: Clips, options: ScoreOptions):
        self.text_embeds, self.clips, self.options = text_embeds, clips, options
        self._unmasked: Pairs | None = None  # what these were masked from; not itself, which would keep it alive

    @cached_property
    def squared_norms(self) -> torch.Tensor:
        """Squared norms of the texts, (Q, 1): 1 but for rounding."""
        return self.text_embeds.square().sum(-1, keepdim=True)

    @cached_property
    def similarities(self) -> torch.Tensor:
        """Cosines of texts and modalities, (M, Q, V), zero where absent."""
        return self.text_embeds @ self.clips.modality_embeds.permute(1, 2, 0)

    @cached_property
    def text_ranks(self) -> torch.Tensor:
        """Ranks (M, Q, V) of the texts for each clip by each modality: no mask of another modality changes them."""
        by_clip = self.similarities.detach().mT.float().cpu()  # (M, V, Q)
        ranks = torch.stack([_descending_ranks(values) for values in by_clip])
        return ranks.mT.to(self.similarities.device)

    def share(self) -> "Pairs":
        """Compute the products now, so that every score, mask and tile made from these pairs reads the same ones."""
        self.similarities, self.clips.gram, self.clips.exact_gram, self.squared_norms  # noqa: B018
        return self

    def masked(self, modality_mask: torch.Tensor) -> "Pairs":
        """The same pairs when only what `modality_mask` (clips, 3) leaves of each clip is there."""
        pairs = Pairs(self.text_embeds, self.clips.masked(modality_mask), self.options)
        pairs._unmasked = self._unmasked or self
        if "similarities" in self.__dict__:
            pairs.similarities = self.similarities * modality_mask.T[:, None]
            pairs.squared_norms = self.squared_norms
        return pairs

    def towards(self, direction: str) -> "Pairs":
        """The same pairs with another `direction`."""
        pairs = Pairs(self.text_embeds, self.clips, replace(self.options, direction=direction))
        pairs._unmasked = self._unmasked or self
        if "similarities" in self.__dict__:
            pairs.similarities, pairs.squared_norms = self.similarities, self.squared_norms
        return pairs

    def _columns(self, columns: slice) -> "Pairs":
        part = Pairs(self.text_embeds, self.clips[columns], self.options)
        if "similarities" in self.__dict__:
            part.similarities = self.similarities[:, :, columns]
        return part

    def _rows(self, rows: slice) -> "Pairs":
        part = Pairs(self.text_embeds[rows], self.clips, self.options)  # the clips' own numbers are shared
        if "similarities" in self.__dict__:
            part.similarities = self.similarities[:, rows]
        return part

    def _in_tiles(self, score: Callable[["Pairs"], torch.Tensor]) -> torch.Tensor:
        if torch.is_grad_enabled():
            return score(self)
        scores = self.text_embeds.new_empty(len(self.text_embeds), len(self.clips))
        for start in range(0, len(self.clips), _TILE[1]):
            columns = slice(start, start + _TILE[1])
            block = self._columns(columns)
            for first in range(0, len(self.text_embeds), _TILE[0]):
                rows = slice(first, first + _TILE[0])
                scores[rows, columns] = score(block._rows(rows))
        return scores

    @cached_property
    def largest_eigenvalues(self) -> torch.Tensor:
        """lambda_1 of the Gram matrix of the text and what the clip has, (Q, V)."""
        return self._in_tiles(_largest_eigenvalue)

    def scores(self, method: str) -> torch.Tensor:
        """
        Score every pair.

        Args:
            method (`str`): a key of [`METHODS`].

        Returns:
            `torch.Tensor` of shape `(queries, clips)`, as of [`retrieval_scores`]; `-inf` for clips that the method
            cannot score.
        """
        entry = METHODS[method]
        scores = entry.score(self) if entry.whole else self._in_tiles(entry.score)
        scorable = entry.scorable(self.clips.modality_mask)
        return scores if scorable.all() else scores.masked_fill(~scorable, float("-inf"))


@dataclass(frozen=True)
class Method:
    """A score: its name for readers, its function of [`Pairs`], which clips it is defined for, and what else it needs
    to be told."""

    title: str
    score: Callable[[Pairs], torch.Tensor]
    scorable: Callable[[torch.Tensor], torch.Tensor]
    whole: bool
    directed: bool
    is_pathway: bool


METHODS: dict[str, Method] = {}
"""Scores by name; [`register_method`] adds one."""


def register_method(
    name: str,
    title: str | None = None,
    scorable: Callable[[torch.Tensor], torch.Tensor] | None = None,
    whole: bool = False,
    directed: bool = False,
    is_pathway: bool = False,
) -> Callable:
    """
    Register a score, so that [`retrieval_scores`], a model's `aggregation` and every table know it by name.

    Args:
        name (`str`): a new name.
        title (`str`, *optional*): what tables and cards call it; `name` by default.
        scorable (`Callable`, *optional*): from the mask `(clips, 3)` to a `torch.BoolTensor` `(clips,)`: the clips for
            which the score is defined; the others get `-inf`. By default every clip that has a modality.
        whole (`bool`): whether the function must see all pairs at once, not in parts: for what depends on other pairs.
        directed (`bool`): whether scores depend on which side is ranked, as ranks do.
        is_pathway (`bool`): whether this is a single modality, which joint scores are compared with.

    Returns:
        A decorator of a function from [`Pairs`] to scores `(queries, clips)`, higher is better.

    Raises:
        ValueError: the name is taken.

    Example:

    ```python
    >>> @register_method("least")
    ... def least(pairs):
    ...     absent = ~pairs.clips.modality_mask.T[:, None]
    ...     return pairs.similarities.masked_fill(absent, float("inf")).amin(0)
    ```
    """
    if name in METHODS:
        raise ValueError(f"There is a method {name!r} already; choose another name.")

    def register(score: Callable[[Pairs], torch.Tensor]) -> Callable[[Pairs], torch.Tensor]:
        is_scorable = scorable or (lambda mask: mask.any(1))
        METHODS[name] = Method(title or name, score, is_scorable, whole, directed, is_pathway)
        return score

    return register


def method_title(method: str) -> str:
    """Return what tables and cards call a score; the name itself if it is not registered here."""
    return METHODS[method].title if method in METHODS else method


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {tuple(METHODS)}, got {method!r}.")


def scorable_clips(modality_mask: torch.Tensor, method: str) -> torch.Tensor:
    """
    Tell for which clips a score is defined.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has.
        method (`str`): a key of [`METHODS`].

    Returns:
        `torch.BoolTensor` of shape `(clips,)`: False where the method gives `-inf`.
    """
    _check_method(method)
    return METHODS[method].scorable(modality_mask)


# SCALAR and its control ---------------------------------------------------------------------------------------------


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


def _closed_form(similarities, modality_mask, gram, query_temperature, min_norm):
    """Eq. 4 from Gram matrices (V, M, M), with ordinary operations: differentiable, any temperature. (Q, V)."""
    logits = (similarities / query_temperature).masked_fill(~modality_mask.T[:, None], -1e30)
    weights = logits.softmax(dim=0)
    squared_norm = sum(
        (1 if m == n else 2) * weights[m] * weights[n] * gram[:, m, n]
        for m in range(len(weights))
        for n in range(m, len(weights))
    )
    return (weights * similarities).sum(0) * squared_norm.clamp(min=min_norm**2).rsqrt()


def _closed_form_without_grad(similarities, gram, query_temperature):
    """Eq. 4 without a gradient, in half the passes over memory: (Q, V).

    The normaliser of the weights cancels, so they may be taken relative to the video's: exp((a_m - a_video) / tau).
    An absent modality is a zero vector with a zero row in the Gram matrix and drops out of both sums by itself.
    """
    a0, a1, a2 = similarities
    e1, e2 = (torch.sub(a, a0).mul_(1 / query_temperature).exp_() for a in (a1, a2))
    inner = torch.addcmul(2 * gram[:, 0, 2], e2, gram[:, 2, 2]).mul_(e2)
    norm = torch.addcmul(2 * gram[:, 0, 1], e1, gram[:, 1, 1]).addcmul_(e2, 2 * gram[:, 1, 2]).mul_(e1).add_(inner)
    return torch.addcmul(a0, e1, a1).addcmul_(e2, a2).mul_(norm.add_(gram[:, 0, 0]).rsqrt_())


@register_method("scalar", "SCALAR")
def _scalar(pairs: Pairs) -> torch.Tensor:
    clips, tau = pairs.clips, pairs.options.query_temperature
    if tau == float("inf"):
        return _uniform(pairs)
    # The unnormalised weights of the fast form reach exp(2 / tau), their squares must stay finite in float32.
    if torch.is_grad_enabled() or not 0.05 <= tau <= 1e3:
        scores = _closed_form(pairs.similarities, clips.modality_mask, clips.gram, tau, clips.min_norm)
    else:
        scores = _closed_form_without_grad(pairs.similarities, clips.gram, tau)
    rows = clips.cancelling
    if len(rows):
        few = clips.modality_embeds[rows], clips.modality_mask[rows]
        scores = scores.index_copy(1, rows, _centroid_scores(pairs.text_embeds, *few, tau, clips.min_norm))
    return scores


@register_method("uniform", "uniform centroid")
def _uniform(pairs: Pairs) -> torch.Tensor:
    return pairs.text_embeds @ pairs.clips.centroid.T


# Single pathways and their plain combinations -----------------------------------------------------------------------


@register_method("max", "max pathway")
def _max(pairs: Pairs) -> torch.Tensor:
    return pairs.similarities.masked_fill(~pairs.clips.modality_mask.T[:, None], float("-inf")).amax(0)


@register_method("mean", "mean cosine")
def _mean(pairs: Pairs) -> torch.Tensor:
    return pairs.similarities.sum(0) / pairs.clips.arity


def _register_pathway(index: int, name: str) -> None:
    @register_method(name, scorable=lambda mask: mask[:, index], is_pathway=True)
    def pathway(pairs: Pairs) -> torch.Tensor:
        if "similarities" in pairs.__dict__:
            return pairs.similarities[index]
        return pairs.text_embeds @ pairs.clips.modality_embeds[:, index].T


for _index, _name in enumerate(MODALITIES):
    _register_pathway(_index, _name)


# Volumes ------------------------------------------------------------------------------------------------------------


def _bordered_determinant(pairs: Pairs, shift: float | torch.Tensor = 0.0) -> torch.Tensor:
    """det(Gt - shift pp') of every pair, (Q, V).

    Gt is the Gram matrix of the text and the clip, in which an absent modality is an orthonormal axis (Eq. S1), and p
    marks what is there, the text included. With the clip's own part H, its presence q and the similarities b,
    det [[1, b'], [b, H]] = det H - b' adj(H) b. Subtracting shift qq' from H changes its determinant and its adjugate
    linearly, and so the whole: in this form no power of a large shift has to cancel. The clips' own numbers are taken
    in float64: they are as small as the clips are flat, and so is then the rounding of what is done with them.
    """
    determinant, adjugate, linear, change = pairs.clips.adjugate
    shifted_determinant = determinant - shift * (linear * pairs.clips.present).sum(-1)
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
    # What is computed in float32 vanishes there, in whatever precision the vectors were kept.
    return squared.clamp(min=_MIN_NORM[squared.dtype] ** 2).sqrt()


@register_method("gram", "GRAM volume")
def _gram(pairs: Pairs) -> torch.Tensor:
    return -_root(_bordered_determinant(pairs).abs())


@register_method("gram_span", "span distance")
def _gram_span(pairs: Pairs) -> torch.Tensor:
    """-sqrt(1 - a' G^-1 a): minus the distance of the text to the span of what the clip has.

    In float64: where modalities nearly repeat each other, large terms cancel.
    """
    inverse, similarities = pairs.clips.span_inverse, [_exact(a) for a in pairs.similarities]
    rest = _exact(pairs.squared_norms)
    for m, similarity in enumerate(similarities):
        row = similarity * -inverse[:, m, m]
        for n in range(m + 1, len(similarities)):
            row.addcmul_(similarities[n], -2 * inverse[:, m, n])
        rest = torch.addcmul(rest, similarity, row)
    return -_root(rest.to(pairs.text_embeds.dtype))


@register_method("hypergram", "HyperGRAM volume")
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


@register_method("triangle", "TRIANGLE area", scorable=lambda mask: mask[:, :2].all(1))
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


def _quartic(similarities: tuple, gram: torch.Tensor):
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
    similarities = [_exact(a * text_scale * s) for a, s in zip(pairs.similarities, scale.T, strict=True)]
    p, q, r = _quartic(similarities, gram)
    with torch.no_grad():
        x = _largest_root(p, q, r)
    if torch.is_grad_enabled():
        # One step of Newton's method moves the root by nothing and carries its derivative by the implicit function.
        slope = (4 * x**3 - 2 * p.detach() * x - q.detach()).clamp(min=pairs.clips.min_norm**2)
        x = x - (x**4 - p * x * x - q * x + r) / slope
    return (1 + x).to(pairs.text_embeds.dtype)


@register_method("pmrl_raw", "PMRL, raw eigenvalue", whole=True)
def _pmrl_raw(pairs: Pairs) -> torch.Tensor:
    return pairs.largest_eigenvalues


@register_method("pmrl", "PMRL", whole=True)
def _pmrl(pairs: Pairs) -> torch.Tensor:
    return pairs.largest_eigenvalues / (1 + pairs.clips.arity)


# Others -------------------------------------------------------------------------------------------------------------


@register_method("concat_head", "concatenation head", scorable=lambda mask: _chosen_head(mask).any(1))
def _concat_head(pairs: Pairs) -> torch.Tensor:
    clips = pairs.clips
    if clips.concat_embeds is None:
        raise ValueError(
            '"concat_head" is the cosine with `concat_embeds`, which were not given. They come from a model whose '
            "checkpoint has concatenation heads (`has_concat_heads`)."
        )
    return pairs.text_embeds @ clips.concatenation.T


@register_method("symile", "Symile")
def _symile(pairs: Pairs) -> torch.Tensor:
    return pairs.text_embeds @ pairs.clips.product.T


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


@register_method("rank_fusion", "rank fusion", whole=True, directed=True)
def _rank_fusion(pairs: Pairs) -> torch.Tensor:
    """The sum of 1 / (constant + rank) over the pathways that a clip has; ties share the worst of their ranks."""
    total = 0
    for index, present in enumerate(pairs.clips.modality_mask.T):
        if pairs.options.direction == "video_to_text":
            ranks = (pairs._unmasked or pairs).text_ranks[index]
        else:
            similarity = pairs.similarities[index].detach().masked_fill(~present, float("-inf"))
            ranks = _descending_ranks(similarity.float().cpu()).to(similarity.device)
        total = total + present / (ranks + pairs.options.rank_constant)
    return total.to(pairs.text_embeds.dtype)


def make_pairs(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    concat_embeds: torch.Tensor | None = None,
    **options,
) -> Pairs:
    """
    Check embeddings and lay them out for several scores; [`retrieval_scores`] does this for one.

    Args:
        text_embeds, modality_embeds, modality_mask, concat_embeds, **options: as in [`retrieval_scores`].

    Returns:
        [`Pairs`]: `pairs.share().scores(method)` computes the products of texts and clips once for all scores, and
        `pairs.masked(mask)` once for all masks.

    Raises:
        ValueError: as in [`retrieval_scores`].
    """
    _check(text_embeds, modality_embeds, modality_mask)
    if concat_embeds is not None and concat_embeds.shape != modality_embeds.shape:
        raise ValueError(
            f"Expected `concat_embeds` of the shape of `modality_embeds` {tuple(modality_embeds.shape)}, got "
            f"{tuple(concat_embeds.shape)}."
        )
    min_norm = _min_norm(text_embeds, modality_embeds)
    text_embeds, modality_embeds = _prepare(text_embeds, modality_embeds, modality_mask)
    clips = Clips(modality_embeds, modality_mask, concat_embeds, min_norm=min_norm)
    return Pairs(text_embeds, clips, ScoreOptions(**options))


def retrieval_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    method: str = "scalar",
    query_temperature: float = 0.1,
    *,
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

    Args:
        text_embeds (`torch.Tensor` of shape `(queries, dim)`): unit norm along the last axis.
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`): unit norm; what a row with a False mask holds
            (NaN included) changes nothing.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has; at least one True per row.
        method (`str`): a key of [`METHODS`].
        query_temperature (`float`): tau_w of Eq. 2, positive; `inf` gives equal weights. Only `"scalar"` uses it.
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
        ValueError: shapes do not fit, a row of `modality_mask` is all False, the method is unknown, or a number is
            out of its range.

    Example:

    ```python
    >>> scores = retrieval_scores(text_embeds, modality_embeds, modality_mask)  # (Q, V)
    >>> scores.argsort(dim=1, descending=True)[:, :5]  # the first five clips of each query
    ```
    """
    _check_method(method)
    tensors = [text_embeds, modality_embeds, hyperbolic_mix, curvature, concat_embeds]
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
        )
        return pairs.scores(method)


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


__all__ = [
    "DIRECTIONS",
    "METHODS",
    "Clips",
    "Method",
    "Pairs",
    "ScoreOptions",
    "make_pairs",
    "method_title",
    "paired_centroids",
    "paired_weights",
    "query_weights",
    "register_method",
    "retrieval_scores",
    "scorable_clips",
]
