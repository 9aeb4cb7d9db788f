"""Scores of clips for queries: SCALAR's and its baselines, for any number of modalities.

    w_m = softmax_m(<t, z_m> / tau_w)                                  (Eq. 2)
    s(t, Z) = sum_m w_m <t, z_m> / |sum_m w_m z_m|                     (Eq. 3 and 4)

- The sums run over the modalities of a clip, given as a boolean mask; absent modalities are never imputed.
- Equal weights (Eq. 1) are the limit of an infinite temperature.
- The closed form (Algorithm S1) needs M inner products per pair and one Gram matrix per clip, no centroid per pair.
- What would magnify the rounding of float32 is scored in float64: volumes, eigenvalues, low temperatures, and clips
  whose modalities may cancel.

[`retrieval_scores`] computes any score by name, [`register_method`] adds one. torch is the only dependency.

Shape letters: Q queries, V clips, P pairs of a query and a clip, M modalities, D dimensions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import nn

from .modalities_scalar import CALIBRATION, LARGEST, PAPER_MODALITIES, Slice, check_calibration

if TYPE_CHECKING:
    import numpy as np

    Array = torch.Tensor | np.ndarray

CONCATENATIONS = (("video", "audio"), ("video", "subtitle"), PAPER_MODALITIES)
"""The modalities that the concatenation heads of a VAST checkpoint read, in their fixed order."""

DIRECTIONS = ("text_to_video", "video_to_text")
"""What is ranked: clips for each text, or texts for each clip."""

WEIGHING = ("query_temperature", *CALIBRATION)
"""The keyword arguments that affect a query's weights, in addition to embeddings."""

MIN_NORM = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-3, torch.float64: 1e-6}
"""The minimum of a norm, volume or area by dtype, so that scores and gradients stay bounded where modalities cancel.
It is a clamp, not an addition, so all other clips keep their exact score."""

NORM_TOLERANCE = 0.01
"""How far the norm of a unit vector may be from 1: normalisation in bfloat16 is off by up to 0.4 %, in float16 by
0.05 %."""

# Without a gradient, pairs are scored in tiles of this many texts and clips, so that temporaries stay in cache.
_TILE = (256, 1024)
_TINY = torch.finfo(torch.float32).tiny  # division by less gives infinity
_STEEPEST = 20  # slope of weights by cosines, 1 / tau_w; a steeper one magnifies the rounding of float32
_OPPOSED = 0.5  # sum of a modality's negative cosines with others, from which on a centroid may be short
_RANK_TOLERANCE = 1e-7  # eigenvalues of a Gram matrix below this share of the largest do not count
_ROWS = 16  # texts whose Gram matrices with all clips of a tile are decomposed at once


# Eq. 1 to 4 ---------------------------------------------------------------------------------------------------------


def softmax_weights(
    cosines: torch.Tensor, modality_mask: torch.Tensor, query_temperature: float | torch.Tensor, dim: int
) -> torch.Tensor:
    """Eq. 2 along the axis `dim`, with the shape of `cosines`: sums to 1, exactly 0 where absent; equal if all are."""
    absent = torch.where(modality_mask | ~modality_mask.any(dim, keepdim=True), 0.0, -math.inf)
    return (cosines / query_temperature + absent).softmax(dim)


def quadratic(vectors: torch.Tensor, matrices: torch.Tensor, linear: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x' A x + l' x of every pair, `(Q, V)`, from x `(M, Q, V)`, symmetric A `(V, M, M)` and l `(V, M)`. It is
    written out, because products of tiny matrices are slow."""
    # With clips along the last axis, which passes over the pairs read several times faster.
    matrices = matrices.permute(1, 2, 0).contiguous()
    if linear is not None:
        linear = linear.T.contiguous()
    total = torch.zeros_like(vectors[0])
    for m, entry in enumerate(vectors):
        row = entry * matrices[m, m]
        if linear is not None:
            row = row + linear[m]
        for n in range(m + 1, len(vectors)):
            row = torch.addcmul(row, vectors[n], 2 * matrices[m, n])
        total = torch.addcmul(total, entry, row)
    return total


def closed_form(
    cosines: torch.Tensor,
    modality_mask: torch.Tensor,
    gram: torch.Tensor,
    query_temperature: float | torch.Tensor,
    min_norm: float,
) -> torch.Tensor:
    """
    Score every pair by Eq. 4, `(Q, V)`: differentiable, and one graph for `torch.compile`.

    Args:
        cosines (`(M, Q, V)`): Cosines of texts and modalities, zero where absent.
        modality_mask (`(V, M)`), gram (`(V, M, M)`): The modalities of each clip, and their inner products, zero
            where absent.
        query_temperature (`float`): tau_w, positive; `inf` for equal weights (Eq. 1).
        min_norm (`float`): Minimum norm of a centroid.
    """
    # Equal weights are those of any text.
    weighed = cosines
    if isinstance(query_temperature, float) and query_temperature == math.inf:
        weighed = cosines[:, :1]
    weights = softmax_weights(weighed, modality_mask.T.contiguous()[:, None], query_temperature, dim=0)
    # The norm of the weighted sum follows from the Gram matrix: |sum w z|^2 = w' G w.
    squared_norm = quadratic(weights, gram)
    return (weights * cosines).sum(0) * squared_norm.clamp(min=min_norm**2).rsqrt()


# Numbers ------------------------------------------------------------------------------------------------------------


def unit(vectors: torch.Tensor, min_norm: float = 1e-12) -> torch.Tensor:
    """Divide vectors by their norm along the last axis, at least `min_norm`, in float32 or more, because a rounded
    norm is not a unit norm."""
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return nn.functional.normalize(vectors, dim=-1, eps=min_norm)


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to float64, which Apple's devices lack: there the tensor stays as it is."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def off_unit(embeds: torch.Tensor) -> torch.Tensor:
    """Return which vectors, along the last axis, are further from unit norm than rounding explains, or not finite."""
    # In blocks, because a half-precision tensor is copied for this.
    norms = [torch.linalg.vector_norm(block.float(), dim=-1) for block in embeds.split(4096)]
    # A NaN compares as False, so it is off as well.
    return ~((torch.cat(norms) - 1).abs() <= NORM_TOLERANCE)


def _check_norms(pairs: "Pairs") -> None:
    """Raise a ValueError unless vectors that count have unit norm: others would change the ranking, and with a NaN a
    clip would come first."""
    clips = pairs.clips
    wrong = {
        "text_embeds": off_unit(pairs.text_embeds),
        "modality_embeds": off_unit(clips.modality_embeds) & clips.modality_mask,
    }
    for name, is_wrong in wrong.items():
        rows = is_wrong.nonzero()[:, 0].unique().tolist()
        if rows:
            raise ValueError(
                f"`{name}` must have unit norm along the last axis, but vectors of {len(rows)} rows do not: "
                f"{rows[:10]}. Use `torch.nn.functional.normalize`, and leave out vectors that are zero or NaN."
            )


def _check_embeds(text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
    # Shapes and types.
    texts = tuple(text_embeds.shape)
    clips = tuple(modality_embeds.shape)
    are_floats = text_embeds.is_floating_point() and modality_embeds.is_floating_point()
    if not are_floats or len(texts) != 2 or len(clips) != 3 or 0 in clips[1:] or texts[-1] != clips[-1]:
        raise ValueError(
            "Expected floats of a model: `text_embeds` (queries, dim), and `modality_embeds` (clips, modalities, dim) "
            f"with a modality or more, got {text_embeds.dtype} {texts} and {modality_embeds.dtype} {clips}."
        )
    if modality_mask.dtype != torch.bool or modality_mask.shape != clips[:2]:
        raise ValueError(
            f"`modality_mask` must be a bool tensor of the first two axes of `modality_embeds`, {clips[:2]}, got "
            f"{modality_mask.dtype} {tuple(modality_mask.shape)}."
        )
    # A clip without any modality has no centroid.
    empty = (~modality_mask.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"`modality_mask` must have a True in each row, but {len(empty)} have none: {empty[:10]}.")


# Options ------------------------------------------------------------------------------------------------------------


def slices_of_spaces(columns: Mapping[str, "Array"], spaces: Mapping[str, str] | None) -> list[Slice]:
    """
    Put spaces side by side: each has a part of a query's components.

    Args:
        columns (`dict`): The vectors of each modality, `(V, width)`.
        spaces (`dict[str, str]`, *optional*): The spaces of some modalities, by any names. Modalities of equal width
            share a space, unless these are different.

    Returns:
        For each modality, the start and the stop of its slice of a query's components.

    Raises:
        ValueError: If `spaces` names other modalities.
    """
    spaces = spaces or {}
    if not spaces.keys() <= columns.keys():
        raise ValueError(f"`spaces` must name spaces of the modalities {list(columns)}, got {spaces}.")
    # Each space begins where the one before ends.
    ends: dict[Any, Slice] = {}
    slices = []
    dim = 0
    for name, column in columns.items():
        width = column.shape[-1]
        space = spaces.get(name), width
        if space not in ends:
            ends[space] = dim, dim + width
            dim += width
        slices.append(ends[space])
    return slices


def joined_queries(parts: "Mapping[str, Array]", modalities: Sequence[str], slices: Sequence[Slice]) -> torch.Tensor:
    """
    Put the parts of queries side by side.

    Args:
        parts (`dict`): For each space, by the name of one of its modalities, `(Q, width)` of unit norm. A space
            without a part is zero.
        modalities, slices: The names of the modalities, and their slices of a query's components.

    Returns:
        `torch.Tensor` of shape `(Q, D)` of unit norm: the parts, divided by the square root of their number.

    Raises:
        ValueError: If a part is of no modality or of a space that has another part, or its shape or norm is wrong.
    """
    spans = dict(zip(modalities, slices, strict=False))
    _, dim = max(slices, default=(0, 0))
    first = torch.as_tensor(next(iter(parts.values()), []))
    queries = first.new_zeros(len(first), dim)
    for name, part in parts.items():
        part = torch.as_tensor(part)
        start, stop = spans.get(name, (0, 0))
        is_taken = queries[:, start:stop].any()
        if is_taken or part.shape != (len(first), stop - start) or off_unit(part).any():
            raise ValueError(
                "Queries of several parts need one for each space, of unit norm, by the name of one of its "
                f"modalities, which have the components {spans} of a query; got the part {name!r} of shape "
                f"{tuple(part.shape)} among {', '.join(parts)}."
            )
        queries[:, start:stop] = part
    return queries / math.sqrt(len(parts))


def side_by_side(columns: Sequence[torch.Tensor], slices: Sequence[Slice]) -> torch.Tensor:
    """Put the vectors `(V, width)` of each modality into its slice of a query's components: `(V, M, D)`, zero
    elsewhere, in the precision of the finest. Raises a ValueError unless all have as many vectors."""
    _, dim = max(slices)
    padded = []
    for column, (start, stop) in zip(columns, slices, strict=True):
        if column.shape != (len(columns[0]), stop - start):
            shapes = [tuple(one.shape) for one in columns]
            raise ValueError(f"All modalities need as many vectors, (clips, dimensions), got the shapes {shapes}.")
        padded.append(nn.functional.pad(column, (start, dim - stop)))
    return torch.stack(padded, dim=1)


@dataclass(frozen=True)
class ScoreOptions:
    """
    Options of scores.

    Args:
        query_temperature (`float` or `torch.Tensor`): tau_w of Eq. 2, positive; `inf` gives equal weights.
        hyperbolic_mix, curvature (`float` or `torch.Tensor` of one element): alpha, in [0, 1], and c, positive, of
            `"hypergram"`.
        rank_constant (`float` or `torch.Tensor`): k of `"rank_fusion"`, positive.
        direction (`str`): The direction of the ranks of `"rank_fusion"`, one of [`DIRECTIONS`].
        modality_scale, modality_offset (M `float` or `torch.Tensor`, *optional*): Calibration of the cosines of each
            modality; scales are positive. By default 1 and 0.

    Raises:
        ValueError: If a number is out of range, or the direction is unknown.
    """

    query_temperature: float | torch.Tensor = 0.1
    hyperbolic_mix: float | torch.Tensor = 0.51
    curvature: float | torch.Tensor = 1.0
    rank_constant: float | torch.Tensor = 60
    direction: str = "text_to_video"
    modality_scale: Sequence[float] | torch.Tensor | None = None
    modality_offset: Sequence[float] | torch.Tensor | None = None

    def __post_init__(self):
        check_calibration(self.modality_scale, self.modality_offset)
        has_temperature = self.query_temperature == math.inf or _TINY <= self.query_temperature <= LARGEST
        for name, is_right, expected in (
            ("query_temperature", has_temperature, "positive in float32, or infinite"),
            ("hyperbolic_mix", 0 <= self.hyperbolic_mix <= 1, "in [0, 1]"),
            ("curvature", 0 < self.curvature <= LARGEST, "positive and finite"),
            ("rank_constant", 0 < self.rank_constant <= LARGEST, "positive and finite"),
            ("direction", self.direction in DIRECTIONS, f"one of {DIRECTIONS}"),
        ):
            if not is_right:
                raise ValueError(f"`{name}` must be {expected}, got {getattr(self, name)!r}.")

    @property
    def is_calibrated(self) -> bool:
        """Whether scales and offsets change anything; learned ones always do."""
        for values, neutral in ((self.modality_scale, 1), (self.modality_offset, 0)):
            if isinstance(values, torch.Tensor):
                return True
            if values is not None and any(value != neutral for value in values):
                return True
        return False

    def calibrated(self, similarities: torch.Tensor, dim: int) -> torch.Tensor:
        """Calibrate cosines with modalities along the axis `dim`: a_m <t, z_m> + b_m, also where absent."""
        kind = {"dtype": similarities.dtype, "device": similarities.device}
        last = similarities.movedim(dim, -1)
        if self.modality_scale is not None:
            last = last * torch.as_tensor(self.modality_scale, **kind)
        if self.modality_offset is not None:
            last = last + torch.as_tensor(self.modality_offset, **kind)
        return last.movedim(-1, dim)


def make_options(**options: Any) -> ScoreOptions:
    """Return [`ScoreOptions`]; a TypeError answers `temperature` with `query_temperature`, other names with all."""
    known = ScoreOptions.__annotations__
    for name in options.keys() - known.keys():
        similar = [option for option in known if name in option]
        raise TypeError(f"There is no score option `{name}`; did you mean `{'` or `'.join(similar or known)}`?")
    return ScoreOptions(**options)


# Clips and pairs ----------------------------------------------------------------------------------------------------


class Clips:
    """
    The clips as read by scores. Nothing is checked or copied here; [`make_pairs`] does both.

    Args:
        modality_embeds (`torch.Tensor` of shape `(V, M, D)`): Unit norm, zero where absent, in float32 at least.
        modality_mask (`torch.BoolTensor` of shape `(V, M)`): Which are present, at least one True per row.
        concat_embeds (`torch.Tensor` of shape `(V, 3, D)`, *optional*): Embeddings of the concatenation heads.
        min_norm (`float`): Minimum norm, volume or area, see [`MIN_NORM`].
        modalities (`tuple[str, ...]`): The names along the axis M; empty if they have none.
        gram (`torch.Tensor` of shape `(V, M, M)`, *optional*): Inner products of the modalities, zero where absent;
            computed on first access unless given.
    """

    concat_embeds: torch.Tensor | None = None  # of subclasses without concatenation heads

    def __init__(
        self,
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        concat_embeds: torch.Tensor | None = None,
        *,
        min_norm: float,
        modalities: tuple[str, ...] = (),
        gram: torch.Tensor | None = None,
    ):
        self.modality_embeds = modality_embeds
        self.modality_mask = modality_mask
        self.concat_embeds = concat_embeds
        self.min_norm = min_norm
        self.modalities = modalities
        self._gram = gram
        self._derived = {}  # results of `cached` by function

    def __len__(self) -> int:
        return len(self.modality_mask)

    def _with(self, **changes: Any) -> Self:
        """These clips with other attributes, from which everything is derived again."""
        clips = copy(self)
        clips._derived = {}
        vars(clips).update(changes)
        return clips

    def __getitem__(self, columns: slice | torch.Tensor) -> Self:
        changes = {}
        for name in ("modality_embeds", "modality_mask", "concat_embeds", "_gram"):
            values = getattr(self, name)
            if values is not None:
                changes[name] = values[columns]
        return self._with(**changes)

    def masked(self, modality_mask: torch.Tensor) -> Self:
        """The same clips under a mask `(V, M)`."""
        embeds = self.modality_embeds * modality_mask[..., None]
        return self._with(modality_embeds=embeds, modality_mask=modality_mask, _gram=None)

    def products(self, text_embeds: torch.Tensor, index: int | None = None) -> torch.Tensor:
        """Inner products `(M, Q, V)` of the modalities, or of one, with texts `(Q, D)`, zero where absent."""
        modality_embeds = self.modality_embeds
        if index is not None:
            modality_embeds = modality_embeds[:, index : index + 1]
        return text_embeds @ modality_embeds.permute(1, 2, 0)

    @property
    def gram(self) -> torch.Tensor:
        """Inner products of the modalities, `(V, M, M)`, zero where absent."""
        if self._gram is None:
            self._gram = self.modality_embeds @ self.modality_embeds.mT
        return self._gram

    @property
    def exact(self) -> "Clips":
        """The same clips in float64, on devices that have it."""
        return self.cached(_in_float64)

    @property
    def arity(self) -> torch.Tensor:
        """Number of modalities of each clip, `(V,)`."""
        return self.modality_mask.sum(1)

    def cached(self, function: Callable[["Clips"], Any]) -> Any:
        """Return the result of a module-level function for these clips, computed once for all texts."""
        if function not in self._derived:
            self._derived[function] = function(self)
        return self._derived[function]


def _cancelling_clips(clips: Clips) -> torch.Tensor:
    """
    The rows of clips of which a weighted mean may be short, so that few digits of float32 are left.

    If the negative cosines of each modality with the others sum to at least -1/2, the eigenvalues of the Gram matrix
    without its positive cosines are at least 1/2 by Gershgorin's theorem. Weights that sum to 1 then give a squared
    norm of at least 1/2 / M, to which positive cosines only add.
    """
    return (clips.gram.clamp(max=0).sum(-1) < -_OPPOSED).any(-1).nonzero().flatten()


def _in_float64(clips: Clips) -> Clips:
    gram = clips._gram
    if gram is not None and gram.dtype != torch.float64:
        gram = None  # computed again from the vectors
    # Plain clips, also of those that read their vectors when needed.
    return Clips(
        exact(clips.modality_embeds),
        clips.modality_mask,
        clips.concat_embeds,
        min_norm=clips.min_norm,
        modalities=clips.modalities,
        gram=gram,
    )


class Pairs:
    """
    All pairs of texts and clips: the input of a score.

    Args:
        text_embeds (`torch.Tensor` of shape `(Q, D)`): Unit norm, in float32 at least.
        clips ([`Clips`]): The clips.
        options ([`ScoreOptions`]): Temperatures and other options.
        similarities (`torch.Tensor` of shape `(M, Q, V)`, *optional*): Cosines of texts and modalities, zero where
            absent; computed on first access unless given.
    """

    def __init__(
        self, text_embeds: torch.Tensor, clips: Clips, options: ScoreOptions, similarities: torch.Tensor | None = None
    ):
        self.text_embeds = text_embeds
        self.clips = clips
        self.options = options
        self._given = similarities  # those of the argument, if any
        self._similarities = similarities  # computed when first needed

    @property
    def similarities(self) -> torch.Tensor:
        """Cosines of texts and modalities, `(M, Q, V)`, zero where absent."""
        if self._similarities is None:
            self._similarities = self.clips.products(self.text_embeds)
        return self._similarities

    def _with_clips(self, clips: Clips, change: Callable[[torch.Tensor], torch.Tensor]) -> "Pairs":
        """The pairs with other clips; similarities that were given are changed, others computed when needed."""
        similarities = self._given
        if similarities is not None:
            similarities = change(similarities)
        return Pairs(self.text_embeds.to(clips.modality_embeds.dtype), clips, self.options, similarities)

    @property
    def exact(self) -> "Pairs":
        """The same pairs in float64, on devices that have it."""
        return self._with_clips(self.clips.exact, exact)

    def resolved(self, query_temperature: float | torch.Tensor) -> "Pairs":
        """The same pairs, in float64 where weights change so fast with cosines that float32 does not resolve them;
        similarities that were given stay as they are."""
        largest = 1.0
        if self.options.modality_scale is not None:
            largest = torch.as_tensor(self.options.modality_scale).max().item()
        is_steep = largest > _STEEPEST * torch.as_tensor(query_temperature).item()
        if is_steep and self._given is None:
            return self.exact
        return self

    def of_clips(self, rows: torch.Tensor) -> "Pairs":
        """The pairs with some of the clips."""
        return self._with_clips(self.clips[rows], lambda given: given[..., rows])

    def pathway(self, index: int) -> torch.Tensor:
        """Cosines of texts and one modality, `(Q, V)`, without computing the others."""
        if self._similarities is not None:
            return self._similarities[index]
        return self.clips.products(self.text_embeds, index)[0]

    @property
    def calibrated(self) -> torch.Tensor:
        """Calibrated cosines c_m = a_m <t, z_m> + b_m, `(M, Q, V)`, zero where absent, for scores that compare
        modalities with each other. Without scales and offsets they are the cosines."""
        if not self.options.is_calibrated:
            return self.similarities
        return self.options.calibrated(self.similarities, dim=0) * self.clips.modality_mask.T[:, None]

    @property
    def squared_norms(self) -> torch.Tensor:
        """Squared norms of the texts, `(Q, 1)`: 1 up to rounding."""
        return self.text_embeds.square().sum(-1, keepdim=True)

    def in_tiles(self, score: Callable[["Pairs"], torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Score independent pairs tile by tile, and return scores of a dtype, by default that of the pairs; all at
        once if there is a gradient."""
        if torch.is_grad_enabled():
            return score(self)
        num_texts = len(self.text_embeds)
        num_clips = len(self.clips)
        height, width = _TILE
        scores = self.text_embeds.new_empty(num_texts, num_clips, dtype=dtype)
        # Clips outside, so that what is computed per clip is shared by all texts.
        for start in range(0, num_clips, width):
            columns = slice(start, start + width)
            clips = self.clips[columns]
            for first in range(0, num_texts, height):
                rows = slice(first, first + height)
                similarities = self._given
                if similarities is not None:
                    similarities = similarities[:, rows, columns]
                scores[rows, columns] = score(Pairs(self.text_embeds[rows], clips, self.options, similarities))
        return scores

    def scores(self, method: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Score every pair, `(Q, V)`, rounded to a dtype if one is given; `-inf` for clips that the method does not
        cover. See [`retrieval_scores`]."""
        entry = find_method(method, self.clips.modalities)
        scores = entry.score(self).to(dtype) if entry.whole else self.in_tiles(entry.score, dtype)
        covered = entry.covers(self.clips.modality_mask, self.clips.modalities)
        if covered.all():
            return scores
        return scores.masked_fill(~covered, -math.inf)


def make_pairs(
    text_embeds: "Array",
    modality_embeds: "Array",
    modality_mask: "Array | None" = None,
    concat_embeds: torch.Tensor | None = None,
    modalities: Sequence[str] | None = None,
    spaces: Mapping[str, str] | None = None,
    **options: object,
) -> Pairs:
    """Check embeddings and prepare them for scores; see [`retrieval_scores`] for arguments and errors."""
    # Put several spaces side by side. Queries that have no part for a modality do not see it.
    seen = True
    if isinstance(modality_embeds, Mapping):
        modalities = tuple(modality_embeds)
        slices = slices_of_spaces(modality_embeds, spaces)
        modality_embeds = side_by_side(list(map(torch.as_tensor, modality_embeds.values())), slices)
        if isinstance(text_embeds, Mapping):
            text_embeds = joined_queries(text_embeds, modalities, slices)
            seen = torch.stack([text_embeds[:, start:stop].any() for start, stop in slices])
    # Check the tensors, by default with every modality of each clip present.
    text_embeds = torch.as_tensor(text_embeds)
    modality_embeds = torch.as_tensor(modality_embeds)
    if modality_mask is None:
        modality_mask = torch.ones(modality_embeds.shape[:2], dtype=torch.bool, device=modality_embeds.device)
    modality_mask = torch.as_tensor(modality_mask)
    _check_embeds(text_embeds, modality_embeds, modality_mask)
    # Name the axis M, for scores that read modalities by name.
    number = modality_embeds.shape[1]
    if modalities is None:
        modalities = ()
    elif len(modalities) != number or len(set(modalities)) != number:
        raise ValueError(f"`modalities` must be {number} different names, one for each, got {tuple(modalities)!r}.")
    if concat_embeds is not None and concat_embeds.shape != modality_embeds.shape:
        raise ValueError(
            f"`concat_embeds` must have the shape of `modality_embeds` {tuple(modality_embeds.shape)}, got "
            f"{tuple(concat_embeds.shape)}."
        )
    calibration = (options.get(name) for name in CALIBRATION)
    check_calibration(*calibration, modalities=tuple(modalities) or number)
    # Scores are computed in float32 at least. Absent rows may hold any values, and count as zero.
    min_norm = max(MIN_NORM[text_embeds.dtype], MIN_NORM[modality_embeds.dtype])  # of the coarser one
    dtype = torch.promote_types(torch.promote_types(text_embeds.dtype, modality_embeds.dtype), torch.float32)
    modality_mask = modality_mask & seen
    present = torch.where(modality_mask[..., None], modality_embeds, 0).to(dtype)
    clips = Clips(present, modality_mask, concat_embeds, min_norm=min_norm, modalities=tuple(modalities))
    return Pairs(text_embeds.to(dtype), clips, make_options(**options))


# The registry -------------------------------------------------------------------------------------------------------

Score = Callable[[Pairs], torch.Tensor]
"""From pairs to scores `(Q, V)`, higher is better."""


@dataclass(frozen=True)
class Method:
    """
    A score and its properties, as used by training, evaluation and cards.

    Args:
        title (`str`): The name in tables and cards.
        score (`Callable`): From [`Pairs`] to scores `(Q, V)`, higher is better.
        needs (`tuple` of `str`): The modalities without which a clip has no score; by default any one suffices.
        reads (`tuple` of `str`, *optional*): The modalities that scores depend on, by default all. The heads of others
            are not trained.
        scorable (`Callable`, *optional*): From the mask `(V, M)` to the clips `(V,)` for which the score is defined,
            if `needs` does not suffice.
        whole (`bool`): Whether the function must see all pairs at once, because scores depend on other pairs.
        directed (`bool`): Whether scores depend on the direction of ranking, as ranks do.
        weights (`str`, *optional*): How the score weights modalities, if it does: `"query"`, by text (Eq. 2), or
            `"equal"` (Eq. 1).
        is_pathway (`bool`): Whether this is a single modality, with which joint scores are compared.
        is_symmetric (`bool`): Whether text and modalities enter in the same way, as vectors that span a shape.
        is_trainable (`bool`): Whether it has a gradient and needs only a training batch.
        uses_concat_heads (`bool`): Whether it reads `concat_embeds`.
        uses_hyperbolic_mix (`bool`): Whether it reads `hyperbolic_mix` and `curvature`, which a model then learns.
    """

    title: str
    score: Score
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] | None = None
    scorable: Callable[[torch.Tensor], torch.Tensor] | None = None
    whole: bool = False
    directed: bool = False
    weights: Literal["query", "equal"] | None = None
    is_pathway: bool = False
    is_symmetric: bool = False
    is_trainable: bool = True
    uses_concat_heads: bool = False
    uses_hyperbolic_mix: bool = False

    def covers(self, modality_mask: torch.Tensor, modalities: Sequence[str]) -> torch.Tensor:
        """Return for which clips `(V,)` the score is defined, from their mask `(V, M)` and the names along axis M."""
        names = list(modalities)
        # A clip needs one of the modalities that are read, and each of those that are needed.
        if self.reads is None:
            covered = modality_mask.any(1)
        else:
            covered = modality_mask[:, [names.index(name) for name in self.reads]].any(1)
        for name in self.needs:
            covered = covered & modality_mask[:, names.index(name)]
        if self.scorable is not None:
            covered = covered & self.scorable(modality_mask)
        return covered


METHODS: dict[str, Method] = {}
"""Scores by name, in the order of tables; [`register_method`] adds one."""


def register_method(name: str, title: str | None = None, **facts: object) -> Callable[[Score], Score]:
    """
    Register the decorated function, from [`Pairs`] to scores `(Q, V)`, higher is better, under a name for
    [`retrieval_scores`], a model's `aggregation`, training and every table.

    Args:
        name (`str`): A new name.
        title (`str`, *optional*): The name in tables and cards; `name` by default.
        **facts: Fields of [`Method`], for example `needs=("audio",)`.

    Raises:
        ValueError: If the name is taken.

    Example:

        >>> @register_method("product", "product of similarities")
        ... def product(pairs):  # similarities: (modalities, Q, V), zero where absent
        ...     return pairs.similarities.prod(0)
        >>> retrieval_scores(torch.eye(2)[:1], torch.eye(2)[None], method="product")
        tensor([[0.]])
    """
    if name in METHODS:
        raise ValueError(f"A method {name!r} already exists; choose another name.")

    def register(score: Score) -> Score:
        METHODS[name] = Method(title or name, score, **facts)
        return score

    return register


def find_method(method: str, modalities: Sequence[str] | None = None, argument: str = "method") -> Method:
    """Return the score with a name: a registered one, or the cosine with one of the clips' modalities. Raises a
    ValueError that names the argument if there is none, or if it reads modalities that the clips lack."""
    names = modalities or ()
    if method not in METHODS and method not in names:
        known = tuple(dict.fromkeys((*METHODS, *names)))
        raise ValueError(
            f"`{argument}` must be one of {known}, got {method!r}. If a plugin registers it, load the plugin."
        )
    # A modality is a score of its own: the cosine with it.
    entry = METHODS.get(method) or _pathway_of(method)
    if modalities is None:
        return entry
    missing = {*entry.needs, *(entry.reads or ())} - set(names)
    if missing:
        raise ValueError(
            f"The score {method!r} reads the modalities {sorted(missing)}, but these clips have "
            f"{names or 'modalities without names'}. Name them with `modalities`, or use another score."
        )
    return entry


def method_title(method: str) -> str:
    """Return the title of a score in tables and cards; its name if it is not registered here."""
    if method in METHODS:
        return METHODS[method].title
    return method


# Weighted sums and single modalities --------------------------------------------------------------------------------


def _centroid_scores(pairs: Pairs, query_temperature: float | torch.Tensor) -> torch.Tensor:
    """Eq. 4, in float64 where float32 has too few digits."""

    def score(subset: Pairs) -> torch.Tensor:
        clips = subset.clips
        return closed_form(subset.calibrated, clips.modality_mask, clips.gram, query_temperature, clips.min_norm)

    dtype = pairs.text_embeds.dtype
    resolved = pairs.resolved(query_temperature)
    scores = score(resolved).to(dtype)
    if resolved.text_embeds.dtype == torch.float64:
        return scores
    # Replace the scores of clips whose modalities may cancel by those in float64.
    cancelling = pairs.clips.cached(_cancelling_clips)
    if len(cancelling):
        few = score(pairs.of_clips(cancelling).exact).to(dtype)
        scores = scores.index_copy(1, cancelling, few)
    return scores


@register_method("scalar", "SCALAR", weights="query")
def _scalar(pairs: Pairs) -> torch.Tensor:
    """Eq. 4."""
    return _centroid_scores(pairs, pairs.options.query_temperature)


@register_method("uniform", "uniform centroid", weights="equal")
def _uniform(pairs: Pairs) -> torch.Tensor:
    """Eq. 1: the cosine with the normalised sum."""
    return _centroid_scores(pairs, math.inf)


@register_method("max", "max pathway")
def _max(pairs: Pairs) -> torch.Tensor:
    absent = ~pairs.clips.modality_mask.T.contiguous()[:, None]
    return pairs.calibrated.masked_fill(absent, -math.inf).amax(0)


@register_method("mean", "mean cosine")
def _mean(pairs: Pairs) -> torch.Tensor:
    return pairs.calibrated.sum(0) / pairs.clips.arity


def _pathway_of(name: str) -> Method:
    """The cosine with one modality."""

    def score(pairs: Pairs) -> torch.Tensor:
        return pairs.pathway(pairs.clips.modalities.index(name))

    return Method(name, score, needs=(name,), reads=(name,), is_pathway=True)


for _modality in PAPER_MODALITIES:
    METHODS[_modality] = _pathway_of(_modality)


# Volumes ------------------------------------------------------------------------------------------------------------


def _adjugate(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Determinants (V,) and adjugates (V, M, M), also of singular matrices.

    The Faddeev-LeVerrier recursion for B = I - matrix, which is small if vectors are nearly orthogonal: sums of its
    powers, differentiable everywhere.
    """
    number = matrices.shape[-1]
    identity = torch.eye(number, dtype=matrices.dtype, device=matrices.device)
    term = adjugate = identity.expand_as(matrices)
    determinant = matrices.new_ones(len(matrices))
    for k in range(1, number + 1):
        product = (identity - matrices) @ term
        coefficient = -product.diagonal(dim1=-2, dim2=-1).sum(-1) / k
        determinant = determinant + coefficient
        if k < number:
            term = product + coefficient[:, None, None] * identity
            adjugate = adjugate + term
    return determinant, adjugate


def _determinant_parts(clips: Clips) -> tuple[torch.Tensor, ...]:
    """The parts of determinants of bordered Gram matrices, where an absent modality is an orthonormal axis.

    With H the masked Gram matrix (Eq. S1) and q the presence: det H (V,), adj H (V, M, M), adj(H) q (V, M), and the
    change of adj H, which is linear, when a multiple of qq' is subtracted (V, M, M).
    """
    present = clips.modality_mask.to(clips.gram.dtype)
    gram = clips.gram + torch.diag_embed(1 - present)
    determinant, adjugate = _adjugate(gram)
    number = gram.shape[1]
    linear = (adjugate @ present[..., None]).squeeze(-1)
    # The adjugate is linear along qq', so two of its values give the change.
    _, raised = _adjugate(gram + present[:, :, None] * present[:, None] / number)
    return determinant, adjugate, linear, (adjugate - raised) * number


def _pair_determinants(pairs: Pairs, shift: float | torch.Tensor = 0.0) -> torch.Tensor:
    """det(Gt - shift pp') of every pair, (Q, V).

    Gt is the Gram matrix of the text and the clip, in which an absent modality is an orthonormal axis (Eq. S1), and p
    marks what is present, including the text. With the clip's own part H, its presence q and the similarities b,
    det [[1, b'], [b, H]] = det H - b' adj(H) b. Subtracting shift qq' from H changes its determinant and its adjugate
    linearly, so no powers of a large shift have to cancel.
    """
    determinant, adjugate, linear, change = pairs.clips.cached(_determinant_parts)
    shifted_determinant = determinant - shift * (linear * pairs.clips.modality_mask).sum(-1)
    total = torch.addcmul(-shift * determinant, pairs.squared_norms, shifted_determinant)  # (Q, V)
    return total + quadratic(pairs.similarities, -(adjugate + shift * change), 2 * shift * linear)


def _root(squared: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """The root of squared volumes, in the dtype of `pairs`. It has no gradient at zero, so vanishing values, below
    what the vectors resolve in float32 or float64, count as equal."""
    least = min(pairs.clips.min_norm, MIN_NORM[torch.float32])
    return squared.clamp(min=least**2).sqrt().to(pairs.text_embeds.dtype)


@register_method("gram", "GRAM volume", is_symmetric=True)
def _gram(pairs: Pairs) -> torch.Tensor:
    return -_root(_pair_determinants(pairs.exact).abs(), pairs)


def _span_inverse(clips: Clips) -> torch.Tensor:
    """The pseudo-inverse of the Gram matrix, (V, M, M): G^-1 over what is present unless modalities repeat."""
    return torch.linalg.pinv(clips.gram, rtol=_RANK_TOLERANCE, hermitian=True)


@register_method("gram_span", "span distance", is_symmetric=True)
def _gram_span(pairs: Pairs) -> torch.Tensor:
    """-sqrt(1 - a' G^-1 a)."""
    wide = pairs.exact
    rest = wide.squared_norms - quadratic(wide.similarities, wide.clips.cached(_span_inverse))
    return -_root(rest, pairs)


@register_method("hypergram", "HyperGRAM volume", is_symmetric=True, uses_hyperbolic_mix=True)
def _hypergram(pairs: Pairs) -> torch.Tensor:
    """-(alpha V_E + (1 - alpha) V_H).

    The exponential map at the origin of curvature -c takes a unit vector x to (cosh(r), sinh(r) x) / r, r = sqrt(c).
    The Lorentz inner product of two such points is (sinh(r)^2 <x, y> - cosh(r)^2) / c, so their Gram matrix is
    (Gt - coth(r)^2 pp') sinh(r)^2 / c.
    """
    # In float64. Mix and curvature may be learned, and keep their gradient.
    wide = pairs.exact
    options = pairs.options
    kind = {"dtype": wide.text_embeds.dtype, "device": wide.text_embeds.device}
    mix = torch.as_tensor(options.hyperbolic_mix, **kind).reshape(())
    curvature = torch.as_tensor(options.curvature, **kind).reshape(())
    root = curvature.sqrt()
    scale = (root.sinh() / root) ** (1 + wide.clips.arity)  # (V,): one factor per vector
    # In exact arithmetic the determinant has one sign; rounding may change that of a vanishing one.
    euclidean = _root(_pair_determinants(wide).abs(), wide)
    shift = root.tanh().reciprocal().square()  # coth(r)^2
    hyperbolic = _root(_pair_determinants(wide, shift).abs(), wide)
    return -(mix * euclidean + (1 - mix) * scale * hyperbolic).to(pairs.text_embeds.dtype)


@register_method("triangle", "TRIANGLE area", needs=("video", "audio"), reads=("video", "audio"), is_symmetric=True)
def _triangle(pairs: Pairs) -> torch.Tensor:
    """Minus half the root of |u|^2 |e|^2 - <u, e>^2 with u = t - v and e = a - v."""
    wide = pairs.exact
    v = pairs.clips.modalities.index("video")
    a = pairs.clips.modalities.index("audio")
    video = wide.similarities[v]
    audio = wide.similarities[a]
    gram = wide.clips.gram
    # The squared sides (V,) and (Q, V), and the inner product of both.
    e = gram[:, v, v] + gram[:, a, a] - 2 * gram[:, v, a]
    u = wide.squared_norms - 2 * video + gram[:, v, v]
    inner = audio - video + gram[:, v, v] - gram[:, v, a]
    return -_root((u * e - inner * inner).abs(), pairs) / 2


# The largest eigenvalue ---------------------------------------------------------------------------------------------


def _unit_gram(clips: Clips) -> tuple[torch.Tensor, torch.Tensor]:
    """Gram matrices (V, M, M) with ones on the diagonal, where an absent modality is an orthonormal axis (Eq. S1), and
    the factors of the vectors for this (V, M): in half precision norms are 1 +- 0.004."""
    scale = clips.gram.diagonal(dim1=1, dim2=2).clamp(min=clips.min_norm**2).rsqrt()
    identity = torch.eye(scale.shape[1], dtype=scale.dtype, device=scale.device)
    return torch.where(identity.bool(), identity, clips.gram * scale[:, :, None] * scale[:, None]), scale


def _largest_root(cosines: torch.Tensor, gram: torch.Tensor) -> torch.Tensor:
    """The largest eigenvalue for up to three modalities, a hundred times faster than a decomposition.

    It is 1 + the largest root of x^4 - p x^2 - q x + r, (s_1 + s_2 + s_3) / 2 by Euler's solution: the squares of s
    are the roots of y^3 - 2p y^2 + (p^2 - 4r) y - q^2 = 0, which are real too, and s_1 s_2 s_3 = q.
    """
    # Fewer modalities than three are padded by orthogonal ones, which add roots of zero.
    missing = 3 - len(cosines)
    a, b, c = nn.functional.pad(cosines, (0, 0, 0, 0, 0, missing))  # (Q, V) each
    gram = nn.functional.pad(gram, (0, missing, 0, missing))
    d = gram[:, 0, 1].contiguous()  # (V,), as e and f
    e = gram[:, 0, 2].contiguous()
    f = gram[:, 1, 2].contiguous()
    # The coefficients of the quartic, (Q, V) each.
    p = a * a + b * b + c * c + (d * d + e * e + f * f)
    q = 2 * (a * (b * d + c * e) + b * c * f + d * e * f)
    x = a * f
    y = b * e
    z = c * d
    r = (x - y - z).square() - 4 * y * z
    # The two largest roots of the resolvent by Viete's cosines; the third follows from the product of all.
    tiny = torch.finfo(p.dtype).tiny
    radius = (p * p + 12 * r).clamp(min=0).sqrt()
    cosine = (p * (36 * r - p * p) + 13.5 * q * q) / (radius * radius * radius).clamp(min=tiny)
    angle = cosine.clamp(-1, 1).acos() / 3
    first = ((p + radius * angle.cos()) * (2 / 3)).clamp(min=0).sqrt()
    second = ((p + radius * (angle - 2 * math.pi / 3).cos()) * (2 / 3)).clamp(min=0).sqrt()
    return 1 + (first + second + q / (first * second).clamp(min=tiny)) / 2


@register_method("pmrl_raw", "PMRL, raw eigenvalue", is_symmetric=True)
def _pmrl_raw(pairs: Pairs) -> torch.Tensor:
    """lambda_1(Gt). An absent modality adds an eigenvalue of 1, which is never larger. In float64, because only half
    of the digits are left where eigenvalues meet."""
    # Cosines and Gram matrices of vectors of exactly unit norm.
    wide = pairs.exact
    gram, scale = wide.clips.cached(_unit_gram)
    text_scale = wide.squared_norms.clamp(min=wide.clips.min_norm**2).rsqrt()
    cosines = wide.similarities * text_scale * scale.T.contiguous()[:, None]  # (M, Q, V)
    if len(cosines) <= 3 and not torch.is_grad_enabled():
        return _largest_root(cosines, gram).to(pairs.text_embeds.dtype)
    # Otherwise decompose Gt, the Gram matrix of the clip with the text as first row and column, a few texts at once.
    eigenvalues = []
    for block in cosines.split(_ROWS, dim=1):
        column = torch.cat([torch.ones_like(block[:1]), block]).movedim(0, -1)[..., None]  # (q, V, M + 1, 1)
        others = torch.cat([column[..., 1:, :].mT, gram.expand(block.shape[1], -1, -1, -1)], dim=-2)
        joint = torch.cat([column, others], dim=-1)  # (q, V, M + 1, M + 1)
        eigenvalues.append(torch.linalg.eigvalsh(joint)[..., -1])
    return torch.cat(eigenvalues).to(pairs.text_embeds.dtype)


@register_method("pmrl", "PMRL", is_symmetric=True)
def _pmrl(pairs: Pairs) -> torch.Tensor:
    """lambda_1(Gt) / n."""
    return _pmrl_raw(pairs) / (1 + pairs.clips.arity)


# Others -------------------------------------------------------------------------------------------------------------


def _chosen_head(modality_mask: torch.Tensor) -> torch.Tensor:
    """The head for exactly the modalities of each clip, (V, heads), at most one True per row."""
    heads = []
    for names in CONCATENATIONS:
        heads.append([name in names for name in PAPER_MODALITIES])
    return (modality_mask[:, None] == torch.tensor(heads, device=modality_mask.device)).all(-1)


def _concatenation(clips: Clips) -> torch.Tensor:
    """The output of the head for exactly the modalities of each clip, (V, D); zero if there is no such head."""
    chosen = _chosen_head(clips.modality_mask)[..., None]
    return torch.where(chosen, clips.concat_embeds, 0).sum(1).to(clips.modality_embeds.dtype)


@register_method(
    "concat_head", "concatenation head", reads=PAPER_MODALITIES, scorable=lambda mask: _chosen_head(mask).any(1),
    is_trainable=False, uses_concat_heads=True,
)  # fmt: skip
def _concat_head(pairs: Pairs) -> torch.Tensor:
    if pairs.clips.concat_embeds is None:
        raise ValueError(
            '"concat_head" needs `concat_embeds`, which were not given. They come from a model with concatenation '
            "heads (`has_concat_heads`)."
        )
    if pairs.clips.modalities != PAPER_MODALITIES:  # a head is chosen by the places of modalities in the mask
        raise ValueError(f'"concat_head" needs the order {PAPER_MODALITIES}, got {pairs.clips.modalities}.')
    return pairs.text_embeds @ pairs.clips.cached(_concatenation).to(pairs.text_embeds.dtype).T


def _product(clips: Clips) -> torch.Tensor:
    """The elementwise product of the modalities that are present, (V, D)."""
    return clips.modality_embeds.masked_fill(~clips.modality_mask[..., None], 1).prod(1)


@register_method("symile", "Symile", is_symmetric=True)
def _symile(pairs: Pairs) -> torch.Tensor:
    return pairs.text_embeds @ pairs.clips.cached(_product).T


def _descending_ranks(values: torch.Tensor) -> torch.Tensor:
    """For each value 1 + the number of others in its row that are at least as high, `(N, C)`."""
    ascending, order = values.contiguous().sort(dim=1)
    # The start of each run of equal values, which is found several times faster in order.
    first = torch.searchsorted(ascending, ascending)
    return values.shape[1] - torch.empty_like(order).scatter_(1, order, first)


@register_method("rank_fusion", "rank fusion", whole=True, directed=True, is_trainable=False)
def _rank_fusion(pairs: Pairs) -> torch.Tensor:
    """The sum of 1 / (constant + rank) over the modalities of a clip; ties share the worst of their ranks."""
    total = torch.zeros_like(pairs.similarities[0])
    for cosines, present in zip(pairs.similarities.detach(), pairs.clips.modality_mask.T, strict=True):
        if pairs.options.direction == "video_to_text":
            ranks = _descending_ranks(cosines.mT).mT
        else:
            ranks = _descending_ranks(cosines.masked_fill(~present, -math.inf))
        total = total + present.to(total.dtype) / (ranks + pairs.options.rank_constant)
    return total


def _without_autocast(pairs: Pairs) -> torch.autocast:
    """A context without autocast, in which pairs are scored in their own precision."""
    return torch.autocast(pairs.text_embeds.device.type, enabled=False)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


# What is called -----------------------------------------------------------------------------------------------------


def retrieval_scores(
    text_embeds: "Array | Mapping[str, Array]",
    modality_embeds: "Array | Mapping[str, Array]",
    modality_mask: "Array | None" = None,
    method: str = "scalar",
    query_temperature: float = 0.1,
    *,
    modalities: Sequence[str] | None = None,
    spaces: Mapping[str, str] | None = None,
    concat_embeds: torch.Tensor | None = None,
    **options: object,
) -> torch.Tensor:
    """
    Score every clip for every query, by SCALAR's closed form (Eq. 4) or another score of the same vectors.

    With the text t, the n - 1 modalities z of the clip, their similarities a to t and Gram matrix G, and the Gram
    matrix Gt of all n vectors, `method` is

    - `"scalar"`: the cosine of t and the query-conditioned centroid (Eq. 2 to 4);
    - `"uniform"`: the same with equal weights (Eq. 1), the limit of `"scalar"` for an infinite temperature;
    - `"max"`, `"mean"`: the highest and the mean similarity;
    - the name of a modality, such as `"video"`: the cosine with that modality, which it needs;
    - `"gram"`: -sqrt(|det Gt|), the volume over what is present (GRAM; an absent axis is orthonormal, Eq. S1);
    - `"gram_span"`: -sqrt(det Gt / det G), minus the distance of t to the span of the clip;
    - `"hypergram"`: -(alpha sqrt(|det Gt|) + (1 - alpha) sqrt(|det G_H|)) with the Gram matrix G_H of Lorentz inner
      products after the exponential map of curvature -c (HyperGRAM);
    - `"triangle"`: minus the area of the triangle of t, video and audio (TRIANGLE); needs both;
    - `"pmrl_raw"`, `"pmrl"`: lambda_1(Gt), the largest eigenvalue, and its share lambda_1(Gt) / n (PMRL);
    - `"concat_head"`: the cosine with the head for exactly the clip's modalities, as in PMRL's released code; needs
      the paper's three modalities, and for each clip one of [`CONCATENATIONS`];
    - `"symile"`: sum_d t_d prod_m z_md (Symile);
    - `"rank_fusion"`: sum_m 1 / (k + rank by modality m), reciprocal rank fusion of the pathways.

    A clip without the modalities that a method needs has the score `-inf` ([`Method.covers`]). Volumes and eigenvalues
    of clips with different numbers of modalities have different scales; they are compared as they are.

    If cosines are calibrated, `"scalar"` is sum_m w_m c_m / |sum_m w_m z_m| with c_m = scale_m <t, z_m> + offset_m and
    w = softmax(c / tau_w); `"uniform"`, `"max"` and `"mean"` use c_m too. The other scores ignore scales and offsets.

    Vectors of several encoders are given as two dicts by the names of modalities, without a gradient: `{"image": (V,
    512), "title": (V, 384)}` and, for each space, the query by its encoder, of unit norm, `{"image": (Q, 512),
    "title": (Q, 384)}`. The spaces stand side by side: queries are divided by the square root of the number of their
    parts, and vectors of different spaces have the inner product 0. Modalities of equal width share a space, unless
    `spaces` names different ones, such as `{"image": "clip", "sound": "clap"}`. Queries without a part for a space do
    not see its modalities, and a clip that has no others has the score `-inf`.

    Args:
        text_embeds (`torch.Tensor` or `np.ndarray` of shape `(Q, D)`): Unit norm along the last axis.
        modality_embeds (the same, of shape `(V, M, D)`): Unit norm, with any number M >= 1 of modalities. The values
            of masked rows (even NaN) have no effect.
        modality_mask (the same, bools of shape `(V, M)`, *optional*): The modalities of each clip; at least one True
            per row. By default each clip has all.
        method (`str`): A key of [`METHODS`], or the name of a modality.
        query_temperature (`float`): See [`ScoreOptions`]; only `"scalar"` uses it.
        modalities (M different `str`, *optional*): Names along the axis M, for scores that read some by name.
        spaces (`dict[str, str]`, *optional*): For dicts, the spaces of modalities of one width that share none.
        concat_embeds (`torch.Tensor` of shape `(V, 3, D)`): For `"concat_head"`, in the order of [`CONCATENATIONS`].
        **options: The other fields of [`ScoreOptions`].

    Returns:
        `torch.Tensor` of shape `(Q, V)`, higher is better, in float32 at least: cosines in [-1, 1], eigenvalue shares
        in (0, 1], volumes, distances and areas at most 0. Only `"rank_fusion"` has no gradient.

    Raises:
        TypeError: If an option does not exist.
        ValueError: If shapes do not fit, a row of `modality_mask` is all False, a vector that counts is not of unit
            norm (checked unless there is a gradient: a step of training that diverged is left to the caller), the
            method is unknown or reads a missing name, or a number is out of range.

    Example:

        >>> text = torch.tensor([[1.0, 0.0]])
        >>> clips = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], [[0.6, 0.8], [0.0, 0.0], [0.8, 0.6]]])
        >>> present = torch.tensor([[True, True, True], [True, False, True]])  # the second clip has no audio
        >>> retrieval_scores(text, clips, present)  # the video of the first clip decides
        tensor([[0.9999, 0.7794]])
        >>> retrieval_scores(text, clips, present, "uniform")
        tensor([[0.6644, 0.7071]])
    """
    options["query_temperature"] = query_temperature
    # Unless something is trained, scoring keeps no graph, and the vectors are checked.
    given = text_embeds, modality_embeds, concat_embeds, *options.values()
    is_learned = torch.is_grad_enabled() and any(_has_gradient(value) for value in given)
    with torch.set_grad_enabled(is_learned):
        pairs = make_pairs(text_embeds, modality_embeds, modality_mask, concat_embeds, modalities, spaces, **options)
        if not is_learned:
            _check_norms(pairs)
        with _without_autocast(pairs):
            return pairs.scores(method)


def query_weights(
    text_embeds: "Array | Mapping[str, Array]",
    modality_embeds: "Array | Mapping[str, Array]",
    modality_mask: "Array | None" = None,
    query_temperature: float | torch.Tensor = 0.1,
    *,
    spaces: Mapping[str, str] | None = None,
    **options: object,
) -> torch.Tensor:
    """
    Compute the weight of each modality of each clip for each query, SCALAR Eq. 2: why a clip matched.

    Args and errors: See [`retrieval_scores`]; the options that affect weights are those of [`WEIGHING`].

    Returns:
        `torch.Tensor` of shape `(Q, V, M)`, non-negative, summing to 1, exactly 0 where absent or not seen.

    Example:

        >>> text = torch.tensor([[1.0, 0.0]])
        >>> clips = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], [[0.6, 0.8], [0.0, 0.0], [0.8, 0.6]]])
        >>> present = torch.tensor([[True, True, True], [True, False, True]])  # the second clip has no audio
        >>> query_weights(text, clips, present, query_temperature=0.5)
        tensor([[[0.6310, 0.0854, 0.2835],
                 [0.4013, 0.0000, 0.5987]]])
    """
    options["query_temperature"] = query_temperature
    pairs = make_pairs(text_embeds, modality_embeds, modality_mask, spaces=spaces, **options)
    if not any(_has_gradient(embeds) for embeds in (text_embeds, modality_embeds)):
        _check_norms(pairs)
    temperature = pairs.options.query_temperature
    with _without_autocast(pairs):
        cosines = pairs.resolved(temperature).calibrated.movedim(0, -1)  # (Q, V, M)
        weights = softmax_weights(cosines, pairs.clips.modality_mask, temperature, dim=-1)
        return (weights * pairs.clips.modality_mask).to(pairs.text_embeds.dtype)


# Each text with its own clip only -----------------------------------------------------------------------------------


def exact_scores(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    min_norm: float,
    options: ScoreOptions,
) -> torch.Tensor:
    """
    Score pairs `(P,)` in float64 by their centroids, Eq. 2 and 3. This is the reference for exact search. Equal pairs
    have equal scores at any position.

    Args:
        text_embeds (`(P, D)`), modality_embeds (`(P, M, D)`), modality_mask (`(P, M)`): The pairs. Absent rows have
            no effect.
        min_norm (`float`), options ([`ScoreOptions`]): The clamp of norms; temperature and calibration.
    """
    texts = text_embeds.double()[:, None]
    vectors = torch.where(modality_mask[..., None], modality_embeds.double(), 0)
    # Products and sums, not matrix products, whose order of additions depends on the number of pairs.
    cosines = options.calibrated((vectors * texts).sum(-1), dim=1)
    cosines = torch.where(modality_mask, cosines, 0)
    # Eq. 2 and 3: the weights, and the norm of the weighted sum.
    weights = softmax_weights(cosines, modality_mask, options.query_temperature, dim=1)
    squared_norm = (weights[..., None] * vectors).sum(1).square().sum(-1)
    return (weights * cosines).sum(1) / squared_norm.sqrt().clamp(min=min_norm)


def _own_weights(pairs: Pairs) -> torch.Tensor:
    """Eq. 2 for each clip and its own text, `(P, M)`."""
    if len(pairs.text_embeds) != len(pairs.clips):
        raise ValueError(
            f"Expected one text per clip, got {len(pairs.text_embeds)} texts and {len(pairs.clips)} clips."
        )
    temperature = pairs.options.query_temperature
    resolved = pairs.resolved(temperature)
    # Products and sums, because matrix products would be a batch of tiny ones.
    cosines = (resolved.clips.modality_embeds * resolved.text_embeds[:, None]).sum(-1)  # (P, M)
    cosines = pairs.options.calibrated(cosines, dim=-1)
    weights = softmax_weights(cosines, pairs.clips.modality_mask, temperature, dim=-1)
    return weights.to(pairs.text_embeds.dtype)


def paired_weights(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor | None = None,
    query_temperature: float | torch.Tensor = 0.1,
    **options: Any,
) -> torch.Tensor:
    """
    Compute the weights of each clip for its own text only, `(P, M)`: the diagonal of [`query_weights`].

    Args and errors: See [`query_weights`]; row i of the texts belongs to clip i.
    """
    options["query_temperature"] = query_temperature
    pairs = make_pairs(text_embeds, modality_embeds, modality_mask, **options)
    with _without_autocast(pairs):
        return _own_weights(pairs)


def paired_centroids(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor | None = None,
    query_temperature: float | torch.Tensor = 0.1,
    **options: Any,
) -> torch.Tensor:
    """
    Aggregate each clip for its own text only, mu_M(z^T) of SCALAR Eq. 2: `(P, D)`, of unit norm (shorter only where
    modalities cancel to nothing).

    Args and errors: See [`paired_weights`].
    """
    options["query_temperature"] = query_temperature
    pairs = make_pairs(text_embeds, modality_embeds, modality_mask, **options)
    with _without_autocast(pairs):
        weighted = _own_weights(pairs)[..., None] * pairs.clips.modality_embeds
        return unit(weighted.sum(1), pairs.clips.min_norm)


__all__ = [
    "CONCATENATIONS", "DIRECTIONS", "METHODS", "MIN_NORM", "NORM_TOLERANCE", "WEIGHING", "Clips", "Method",
    "Pairs", "ScoreOptions", "closed_form", "exact", "exact_scores", "find_method", "joined_queries",
    "make_options", "make_pairs", "method_title", "off_unit", "paired_centroids", "paired_weights", "quadratic",
    "query_weights", "register_method", "retrieval_scores", "side_by_side", "slices_of_spaces", "unit",
]  # fmt: skip
