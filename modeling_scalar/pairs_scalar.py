"""Every text with every clip: what scores are functions of, computed once and in tiles, and the registry of scores.

A score is one function of [`Pairs`], registered with its facts under a name in [`METHODS`]. SCALAR's own is in
`scores_scalar`, the baselines are in `baseline_scores_scalar`.

Shape letters: Q queries, V clips, M modalities (3, in the order of `MODALITIES`), D dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Literal, TypeVar

import torch

from .configuration_scalar import MODALITIES

DIRECTIONS = ("text_to_video", "video_to_text")
"""What is ranked: clips for each text, or texts for each clip."""

CALIBRATION = ("modality_scale", "modality_offset")
"""What makes cosines of different modalities comparable, as [`ScoreOptions`] and configurations call it."""

WEIGHING = ("query_temperature", *CALIBRATION)
"""What a query's weights depend on beside embeddings, by the names of keyword arguments."""

MIN_NORM = {torch.float16: 1e-2, torch.bfloat16: 1e-2, torch.float32: 1e-3, torch.float64: 1e-6}
"""By dtype, what a vanishing norm, volume or area is clamped to, so that scores and gradients stay bounded where
modalities cancel. It is a clamp, not an addition: every other clip keeps its exact score."""

# Without a gradient, pairs are scored in tiles of this many texts and clips: the temporaries then stay in cache. Fewer
# texts meet more clips at once, up to so many times more: what is done once a tile would otherwise cost as much.
_TILE = (256, 1024)
_WIDEST = 16
_LARGEST = 1e6  # of scales and offsets: cosines times more lose all digits beside each other
_CONVERTED_AT_ONCE = 512  # half-precision vectors that are read in float32 at a time, in cache

Derived = TypeVar("Derived")


# Checks -------------------------------------------------------------------------------------------------------------


def check_embeds(text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor) -> None:
    """Raise a ValueError unless shapes and dtypes are those of [`make_pairs`] and every clip has a modality."""
    num = len(MODALITIES)
    is_text = text_embeds.ndim == 2 or (text_embeds.ndim == 3 and text_embeds.shape[1] == num)
    if not is_text or modality_embeds.ndim != 3 or modality_embeds.shape[1] != num:
        raise ValueError(
            f"Expected `text_embeds` (queries, dim), or (queries, {num}, dim) with a vector for each modality, and "
            f"`modality_embeds` (clips, {num}, dim), got "
            f"{tuple(text_embeds.shape)} and {tuple(modality_embeds.shape)}."
        )
    if text_embeds.shape[-1] != modality_embeds.shape[-1]:
        raise ValueError(
            f"`text_embeds` and `modality_embeds` must have the same last dimension, got {text_embeds.shape[-1]} and "
            f"{modality_embeds.shape[-1]}. Were they made by the same model?"
        )
    for name, tensor in (("text_embeds", text_embeds), ("modality_embeds", modality_embeds)):
        if tensor.dtype not in MIN_NORM:
            raise ValueError(f"`{name}` must be one of {[str(d) for d in MIN_NORM]}, got {tensor.dtype}.")
    if modality_mask.dtype != torch.bool or modality_mask.shape != modality_embeds.shape[:2]:
        raise ValueError(
            f"`modality_mask` must be a bool tensor of shape {tuple(modality_embeds.shape[:2])}, got "
            f"{modality_mask.dtype} {tuple(modality_mask.shape)}."
        )
    if torch.compiler.is_compiling():  # a graph cannot look at what it is given
        return
    has_any = modality_mask.any(dim=1)
    if not has_any.all():
        empty = (~has_any).nonzero().flatten().tolist()
        raise ValueError(
            f"`modality_mask` must have at least one True per row; {len(empty)} rows are all absent: {empty[:10]}. "
            "Leave these clips out of the gallery: nothing is known about them."
        )


def check_temperature(query_temperature: float) -> None:
    """Raise a ValueError unless the temperature is positive, and so large that dividing by it stays finite."""
    if not query_temperature >= torch.finfo(torch.float32).tiny:
        raise ValueError(f"`query_temperature` must be positive in float32, got {query_temperature!r}.")


def _check_hyperbolic(hyperbolic_mix: float | torch.Tensor, curvature: float | torch.Tensor) -> None:
    if not 0 <= hyperbolic_mix <= 1:
        raise ValueError(f"`hyperbolic_mix` must be in [0, 1], got {hyperbolic_mix!r}.")
    if not 0 < curvature < float("inf"):
        raise ValueError(f"`curvature` must be positive and finite, got {curvature!r}.")


def _check_numbers(name: str, values: Sequence[float] | torch.Tensor, is_positive: bool) -> None:
    if isinstance(values, torch.Tensor):
        values = values.detach().tolist() if values.ndim == 1 else values
    is_list = isinstance(values, list | tuple) and len(values) == len(MODALITIES)
    lowest = torch.finfo(torch.float32).tiny if is_positive else -_LARGEST
    if not is_list or not all(type(value) in (int, float) and lowest <= value <= _LARGEST for value in values):
        kind = "finite numbers above 0" if is_positive else "finite numbers"
        raise ValueError(
            f"`{name}` must be {len(MODALITIES)} {kind}, one for each of {MODALITIES}, got {values!r:.80}."
        )


def check_calibration(
    modality_scale: Sequence[float] | torch.Tensor | None = None,
    modality_offset: Sequence[float] | torch.Tensor | None = None,
) -> None:
    """Raise a ValueError unless each is None or one number for each modality, finite, and scales positive."""
    if modality_scale is not None:
        _check_numbers("modality_scale", modality_scale, is_positive=True)
    if modality_offset is not None:
        _check_numbers("modality_offset", modality_offset, is_positive=False)


def check_method(method: str, argument: str = "method") -> None:
    """Raise a ValueError that names the argument unless a score has this name."""
    if method not in METHODS:
        raise ValueError(f"`{argument}` must be one of {tuple(METHODS)}, got {method!r}.")


# Numbers ------------------------------------------------------------------------------------------------------------


def min_norm_of(*embeds: torch.Tensor) -> float:
    """Return what a vanishing norm is clamped to, by the coarsest dtype among the tensors; see [`MIN_NORM`]."""
    return max(MIN_NORM[tensor.dtype] for tensor in embeds)


def normalize(vectors: torch.Tensor, min_norm: float) -> torch.Tensor:
    """Divide vectors by their norm along the last axis; one shorter than `min_norm` by that, and so stays shorter."""
    # The gradient of a norm is NaN at zero, so the clamp acts on its square.
    return vectors * vectors.square().sum(-1, keepdim=True).clamp(min=min_norm**2).rsqrt()


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, which all devices but Apple's have: what tells vectors apart that nearly repeat each other."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def prepare_embeds(
    text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero absent rows whatever they hold, and compute in float32 at least: (Q, D), (V, M, D)."""
    dtype = torch.promote_types(torch.promote_types(text_embeds.dtype, modality_embeds.dtype), torch.float32)
    present = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(())).to(dtype)
    return text_embeds.to(dtype), present


@dataclass(frozen=True)
class ScoreOptions:
    """What scores depend on beside embeddings; each is an argument of
    [`~scores_scalar.retrieval_scores`], which states its range.

    Raises:
        ValueError: a number is out of its range, or the direction is unknown.
    """

    query_temperature: float | torch.Tensor = 0.1
    hyperbolic_mix: float | torch.Tensor = 0.51
    curvature: float | torch.Tensor = 1.0
    rank_constant: float = 60
    direction: str = "text_to_video"
    modality_scale: Sequence[float] | torch.Tensor | None = None
    modality_offset: Sequence[float] | torch.Tensor | None = None

    def __post_init__(self):
        check_temperature(self.query_temperature)
        check_calibration(self.modality_scale, self.modality_offset)
        _check_hyperbolic(self.hyperbolic_mix, self.curvature)
        if not self.rank_constant > 0:
            raise ValueError(f"`rank_constant` must be positive, got {self.rank_constant!r}.")
        if self.direction not in DIRECTIONS:
            raise ValueError(f"`direction` must be one of {DIRECTIONS}, got {self.direction!r}.")

    @property
    def is_calibrated(self) -> bool:
        """Whether scales and offsets change anything; those that are learned always do."""
        return any(
            isinstance(values, torch.Tensor) or (values is not None and any(value != neutral for value in values))
            for values, neutral in ((self.modality_scale, 1), (self.modality_offset, 0))
        )

    @property
    def spread(self) -> float:
        """How far apart the calibrated cosines of a pair can be, that of an absent modality being 0; 2 by default."""
        if not self.is_calibrated:
            return 2.0
        scale, offset = (
            [neutral] * len(MODALITIES) if values is None else torch.as_tensor(values).tolist()
            for values, neutral in ((self.modality_scale, 1.0), (self.modality_offset, 0.0))
        )
        ends = [b + sign * a for a, b in zip(scale, offset, strict=True) for sign in (-1, 1)]
        return max(0.0, *ends) - min(0.0, *ends)

    def calibrated(self, similarities: torch.Tensor, dim: int) -> torch.Tensor:
        """Calibrate cosines, whose axis `dim` is that of modalities: a_m <t_m, z_m> + b_m, also where absent."""
        if not self.is_calibrated:
            return similarities
        shape = [1] * similarities.ndim
        shape[dim] = len(MODALITIES)
        for values, apply in ((self.modality_scale, torch.mul), (self.modality_offset, torch.add)):
            if values is not None:
                values = torch.as_tensor(values, dtype=similarities.dtype, device=similarities.device)
                similarities = apply(similarities, values.view(shape))
        return similarities


# Clips and pairs ----------------------------------------------------------------------------------------------------


class Clips:
    """
    What scores read of the clips alone.

    Nothing is checked or copied here: [`make_pairs`] does both. Whoever keeps embeddings that were checked when they
    were stored builds clips from them directly.

    Args:
        modality_embeds (`torch.Tensor` of shape `(clips, 3, dim)`, or a `tuple` of one of shape `(clips, dim)` for
            each modality): unit norm, zero where absent. Those in half precision are read in float32, a few at a time;
            that is for scoring without a gradient.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): which are present, at least one True per row.
        concat_embeds (`torch.Tensor` of shape `(clips, 3, dim)`, *optional*): of the concatenation heads.
        min_norm (`float`): what a vanishing norm, volume or area is clamped to, see [`min_norm_of`].
        gram (`torch.Tensor` of shape `(clips, 3, 3)`, *optional*): inner products of the modalities in float32 at
            least, zero where absent. Computed when first asked for unless given.
        exact_gram (`torch.Tensor` of shape `(clips, 3, 3)`, *optional*): the same in float64.
    """

    def __init__(
        self,
        modality_embeds: torch.Tensor | tuple[torch.Tensor, ...],
        modality_mask: torch.Tensor,
        concat_embeds: torch.Tensor | None = None,
        *,
        min_norm: float,
        gram: torch.Tensor | None = None,
        exact_gram: torch.Tensor | None = None,
    ):
        self._stacked = modality_embeds if isinstance(modality_embeds, torch.Tensor) else None
        self.modalities = modality_embeds if self._stacked is None else self._stacked.unbind(1)
        self.dtype = torch.promote_types(self.modalities[0].dtype, torch.float32)
        self.modality_mask, self.concat_embeds, self.min_norm = modality_mask, concat_embeds, min_norm
        self._gram, self._exact_gram = gram, exact_gram
        self._derived: dict[Callable, Any] = {}

    def __len__(self) -> int:
        return len(self.modality_mask)

    @property
    def is_stacked(self) -> bool:
        """Whether the modalities were given in one tensor."""
        return self._stacked is not None

    @cached_property
    def modality_embeds(self) -> torch.Tensor:
        """The embeddings in one tensor, (V, M, D), in float32 at least."""
        return (self._stacked if self.is_stacked else torch.stack(self.modalities, dim=1)).to(self.dtype)

    @property
    def gram(self) -> torch.Tensor:
        """Inner products of the modalities, (V, M, M), zero where absent."""
        if self._gram is None:
            self._gram = self.modality_embeds @ self.modality_embeds.mT
        return self._gram

    @property
    def exact_gram(self) -> torch.Tensor:
        """The same in float64, for what tells clips apart whose modalities nearly repeat each other."""
        if self._exact_gram is None:
            blocks = map(exact, self.modality_embeds.split(_TILE[1]))
            self._exact_gram = torch.cat([block @ block.mT for block in blocks])
        return self._exact_gram

    @cached_property
    def arity(self) -> torch.Tensor:
        """How many modalities each clip has, (V,)."""
        return self.modality_mask.sum(1)

    def once(self, derive: Callable[["Clips"], Derived]) -> Derived:
        """
        Compute something of these clips when it is first asked for, and keep it for all the texts they meet.

        Args:
            derive (`Callable`): a function at the top of a module, under which its result is kept.
        """
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return self._derived[derive]

    def __getitem__(self, columns: slice) -> "Clips":

        def cut(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor[columns]

        return Clips(
            cut(self._stacked) if self.is_stacked else tuple(map(cut, self.modalities)),
            self.modality_mask[columns],
            cut(self.concat_embeds),
            min_norm=self.min_norm,
            gram=cut(self._gram),
            exact_gram=cut(self._exact_gram),
        )

    def masked(self, modality_mask: torch.Tensor) -> "Clips":
        """The same clips with only what `modality_mask` leaves of each."""
        both = modality_mask[:, :, None] & modality_mask[:, None]
        return Clips(
            self.modality_embeds * modality_mask[..., None],
            modality_mask,
            self.concat_embeds,
            min_norm=self.min_norm,
            gram=None if self._gram is None else self._gram * both,
            exact_gram=None if self._exact_gram is None else self._exact_gram * both,
        )


def _product_in_blocks(text_embeds: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
    """Inner products (Q, V) with vectors of another dtype, which are converted a few at a time and never all."""
    products = text_embeds.new_empty(len(text_embeds), len(embeds))
    converted = text_embeds.new_empty(_CONVERTED_AT_ONCE, embeds.shape[1])
    for start in range(0, len(embeds), len(converted)):
        block = embeds[start : start + len(converted)]
        torch.mm(text_embeds, converted[: len(block)].copy_(block).T, out=products[:, start : start + len(converted)])
    return products


class Pairs:
    """
    Every text with every clip: all that a score may read, computed when first asked for and then shared.

    Args:
        text_embeds (`torch.Tensor` of shape `(queries, dim)`, or `(queries, 3, dim)` with a vector for each modality):
            unit norm, in float32 at least.
        clips ([`Clips`]): the clips.
        options ([`ScoreOptions`]): temperatures and other numbers.
        similarities (`torch.Tensor` of shape `(3, queries, clips)`, *optional*), squared_norms (`torch.Tensor` of
            shape `(queries, 1)`, *optional*): see the properties; computed when first asked for unless given.
        unmasked ([`Pairs`], *optional*): the pairs that these were made from by hiding modalities.
    """

    def __init__(
        self,
        text_embeds: torch.Tensor,
        clips: Clips,
        options: ScoreOptions,
        *,
        similarities: torch.Tensor | None = None,
        squared_norms: torch.Tensor | None = None,
        unmasked: "Pairs | None" = None,
    ):
        self.text_embeds, self.clips, self.options = text_embeds, clips, options
        self._similarities, self._squared_norms, self._unmasked = similarities, squared_norms, unmasked
        self._derived: dict[Callable, torch.Tensor] = {}

    @property
    def unmasked(self) -> "Pairs":
        """The pairs before any modality was hidden; these themselves if none was."""
        return self._unmasked or self

    @property
    def has_text_per_modality(self) -> bool:
        """Whether each modality meets a vector of the text of its own."""
        return self.text_embeds.ndim == 3

    @property
    def is_plain(self) -> bool:
        """Whether scores of weighted sums are cosines: texts of one vector, and no calibration."""
        return not (self.has_text_per_modality or self.options.is_calibrated)

    @property
    def squared_norms(self) -> torch.Tensor:
        """Squared norms of the texts, (Q, 1): 1 but for rounding. Of texts with a vector for each modality, (Q, 3, 1),
        which no score reads."""
        if self._squared_norms is None:
            self._squared_norms = self.text_embeds.square().sum(-1, keepdim=True)
        return self._squared_norms

    @property
    def similarities(self) -> torch.Tensor:
        """Cosines of texts and modalities, (M, Q, V), zero where absent."""
        if self._similarities is None:
            if self.clips.is_stacked and self.clips.modalities[0].dtype == self.text_embeds.dtype:
                texts = self.text_embeds.transpose(0, 1) if self.has_text_per_modality else self.text_embeds
                self._similarities = texts @ self.clips.modality_embeds.permute(1, 2, 0)
            else:
                self._similarities = torch.stack([self.pathway(index) for index in range(len(MODALITIES))])
        return self._similarities

    @property
    def pathways(self) -> Sequence[torch.Tensor]:
        """The same one by one, (Q, V) each: not copied into one tensor where the modalities lie apart."""
        if self._similarities is None and not self.clips.is_stacked:
            return [self.pathway(index) for index in range(len(MODALITIES))]
        return self.similarities.unbind()

    def pathway(self, index: int) -> torch.Tensor:
        """Cosines of texts and one modality, (Q, V), zero where absent; the others are not computed for it."""
        if self._similarities is not None:
            return self._similarities[index]
        embeds = self.clips.modalities[index]
        texts = self.text_embeds[:, index] if self.has_text_per_modality else self.text_embeds
        return texts @ embeds.T if embeds.dtype == texts.dtype else _product_in_blocks(texts, embeds)

    @property
    def calibrated(self) -> torch.Tensor:
        """Calibrated cosines c_m = a_m <t_m, z_m> + b_m, (M, Q, V), zero where absent; without scales and offsets the
        cosines themselves. A score of one's own that compares modalities with each other reads these."""
        if not self.options.is_calibrated:
            return self.similarities
        return self.options.calibrated(self.similarities, dim=0) * self.clips.modality_mask.T[:, None]

    @property
    def calibrated_pathways(self) -> Sequence[torch.Tensor]:
        """The same one by one, (Q, V) each."""
        return self.calibrated.unbind() if self.options.is_calibrated else self.pathways

    def share(self) -> "Pairs":
        """Compute the products now, so that every score, mask and tile made from these pairs reads the same ones."""
        self.similarities, self.clips.gram, self.clips.exact_gram, self.squared_norms  # noqa: B018
        return self

    def masked(self, modality_mask: torch.Tensor) -> "Pairs":
        """The same pairs when only what `modality_mask` (clips, 3) leaves of each clip is there."""
        return Pairs(
            self.text_embeds,
            self.clips.masked(modality_mask),
            self.options,
            similarities=None if self._similarities is None else self._similarities * modality_mask.T[:, None],
            squared_norms=self._squared_norms,
            unmasked=self.unmasked,
        )

    def towards(self, direction: str) -> "Pairs":
        """The same pairs with another `direction`."""
        return self.with_options(direction=direction)

    def with_options(self, **changes: Any) -> "Pairs":
        """The same pairs with other values of some [`ScoreOptions`]."""
        return Pairs(
            self.text_embeds,
            self.clips,
            replace(self.options, **changes),
            similarities=self._similarities,
            squared_norms=self._squared_norms,
            unmasked=self.unmasked,
        )

    def _columns(self, columns: slice) -> "Pairs":
        return Pairs(
            self.text_embeds,
            self.clips[columns],
            self.options,
            similarities=None if self._similarities is None else self._similarities[:, :, columns],
        )

    def _rows(self, rows: slice) -> "Pairs":
        return Pairs(
            self.text_embeds[rows],
            self.clips,  # whose own numbers are shared
            self.options,
            similarities=None if self._similarities is None else self._similarities[:, rows],
        )

    def in_tiles(self, score: Callable[["Pairs"], torch.Tensor]) -> torch.Tensor:
        """
        Score tile by tile where there is no gradient, all pairs at once where there is one.

        Args:
            score (`Callable`): from [`Pairs`] to scores `(queries, clips)`, each of which depends on its own pair.
        """
        if torch.is_grad_enabled():
            return score(self)
        num_texts, num_clips = len(self.text_embeds), len(self.clips)
        height, width = _TILE
        width *= min(max(height // max(num_texts, 1), 1), _WIDEST)
        scores = self.text_embeds.new_empty(num_texts, num_clips)
        for start in range(0, num_clips, width):
            columns = slice(start, start + width)
            block = self._columns(columns)
            for first in range(0, num_texts, height):
                rows = slice(first, first + height)
                scores[rows, columns] = score(block._rows(rows))
        return scores

    def once(self, derive: Callable[["Pairs"], torch.Tensor]) -> torch.Tensor:
        """
        Compute something of all pairs when it is first asked for, and keep it: what several scores are made of.

        Args:
            derive (`Callable`): a function at the top of a module, under which its result is kept. It is of use to
                scores registered with `whole=True` alone: a tile is gone once it is scored.
        """
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return self._derived[derive]

    def scores(self, method: str) -> torch.Tensor:
        """
        Score every pair.

        Args:
            method (`str`): a key of [`METHODS`].

        Returns:
            `torch.Tensor` of shape `(queries, clips)`, as of [`~scores_scalar.retrieval_scores`]; `-inf` for
            clips that the method does not cover.

        Raises:
            ValueError: texts have a vector for each modality, and the method reads one vector.
        """
        entry = METHODS[method]
        if self.has_text_per_modality and not entry.takes_text_per_modality:
            able = [name for name, known in METHODS.items() if known.takes_text_per_modality]
            raise ValueError(
                f"The score {method!r} is of one vector per text, but these texts have one for each modality. Those "
                f"that take them are {able}."
            )
        scores = entry.score(self) if entry.whole else self.in_tiles(entry.score)
        covered = entry.covers(self.clips.modality_mask)
        return scores if covered.all() else scores.masked_fill(~covered, float("-inf"))


def make_pairs(
    text_embeds: torch.Tensor,
    modality_embeds: torch.Tensor,
    modality_mask: torch.Tensor,
    concat_embeds: torch.Tensor | None = None,
    **options: Any,
) -> Pairs:
    """
    Check embeddings and lay them out for several scores; [`~scores_scalar.retrieval_scores`] does this for one.

    Args:
        text_embeds, modality_embeds, modality_mask, concat_embeds, **options: as in
            [`~scores_scalar.retrieval_scores`].

    Returns:
        [`Pairs`]: `pairs.share().scores(method)` computes the products of texts and clips once for all scores, and
        `pairs.masked(mask)` once for all masks.

    Raises:
        ValueError: as in [`~scores_scalar.retrieval_scores`].
    """
    check_embeds(text_embeds, modality_embeds, modality_mask)
    if concat_embeds is not None and concat_embeds.shape != modality_embeds.shape:
        raise ValueError(
            f"Expected `concat_embeds` of the shape of `modality_embeds` {tuple(modality_embeds.shape)}, got "
            f"{tuple(concat_embeds.shape)}."
        )
    min_norm = min_norm_of(text_embeds, modality_embeds)
    text_embeds, modality_embeds = prepare_embeds(text_embeds, modality_embeds, modality_mask)
    clips = Clips(modality_embeds, modality_mask, concat_embeds, min_norm=min_norm)
    return Pairs(text_embeds, clips, ScoreOptions(**options))


# The registry -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """
    A score and its facts: all that training, evaluation and cards ask about it.

    Args:
        title (`str`): what tables and cards call it.
        score (`Callable`): from [`Pairs`] to scores `(queries, clips)`, higher is better.
        needs (`tuple` of `str`): the modalities without which a clip has no score; by default any one will do.
        reads (`tuple` of `str`): the modalities that scores depend on at all. The heads of others are not trained.
        scorable (`Callable`, *optional*): from the mask `(clips, 3)` to a `torch.BoolTensor` `(clips,)`, where `needs`
            does not suffice to tell for which clips the score is defined.
        whole (`bool`): whether the function must see all pairs at once, not in parts: for what depends on other pairs.
        directed (`bool`): whether scores depend on which side is ranked, as ranks do.
        weights (`str`, *optional*): how the score weighs modalities, if it does: `"query"`, each text its own way
            (Eq. 2), or `"equal"` (Eq. 1). [`~scores_scalar.query_weights`] tells the weights.
        is_pathway (`bool`): whether this is a single modality, which joint scores are compared with.
        is_symmetric (`bool`): whether text and modalities enter alike, as vectors that span one shape: the paper
            counts how often such a joint score is below the best pathway.
        is_trainable (`bool`): whether the contrastive objective can train it: it has a gradient, and needs nothing
            that a training batch lacks.
        takes_text_per_modality (`bool`): whether it is defined for texts with a vector for each modality: those that
            read a text through its similarities alone.
        uses_concat_heads (`bool`): whether it reads `concat_embeds`.
        uses_hyperbolic_mix (`bool`): whether it reads `hyperbolic_mix` and `curvature`, which a model then learns.
    """

    title: str
    score: Callable[[Pairs], torch.Tensor]
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = MODALITIES
    scorable: Callable[[torch.Tensor], torch.Tensor] | None = None
    whole: bool = False
    directed: bool = False
    weights: Literal["query", "equal"] | None = None
    is_pathway: bool = False
    is_symmetric: bool = False
    is_trainable: bool = True
    takes_text_per_modality: bool = False
    uses_concat_heads: bool = False
    uses_hyperbolic_mix: bool = False

    def __post_init__(self):
        unknown = sorted({*self.needs, *self.reads} - set(MODALITIES))
        if unknown or not set(self.needs) <= set(self.reads):
            raise ValueError(
                f"`needs` and `reads` must be modalities {MODALITIES}, and what is needed must be read; got "
                f"{self.needs} and {self.reads}."
            )

    @property
    def has_weights(self) -> bool:
        """Whether the score is that of a weighted sum of the modalities."""
        return self.weights is not None

    @property
    def covers_every_clip(self) -> bool:
        """Whether the score is defined for every clip that has a modality, whichever that is."""
        return self.scorable is None and not self.needs and set(self.reads) == set(MODALITIES)

    def covers(self, modality_mask: torch.Tensor) -> torch.Tensor:
        """Tell for which clips the score is defined; see [`scorable_clips`]."""
        present = dict(zip(MODALITIES, modality_mask.unbind(1), strict=True))
        covered = reduce(torch.logical_or, [present[name] for name in self.reads])
        covered = reduce(torch.logical_and, [present[name] for name in self.needs], covered)
        return covered if self.scorable is None else covered & self.scorable(modality_mask)


METHODS: dict[str, Method] = {}
"""Scores by name, in the order of tables; [`register_method`] adds one."""


def register_method(name: str, title: str | None = None, **facts: Any) -> Callable:
    """
    Register a score, so that [`~scores_scalar.retrieval_scores`], a model's `aggregation`, training and every
    table know it by name.

    Args:
        name (`str`): a new name.
        title (`str`, *optional*): what tables and cards call it; `name` by default.
        **facts: of [`Method`], `needs=("audio",)` say. By default the score is defined for every clip that has a
            modality, reads all of them and can be trained.

    Returns:
        A decorator of a function from [`Pairs`] to scores `(queries, clips)`, higher is better.

    Raises:
        ValueError: the name is taken, or a fact names no modality.

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
        METHODS[name] = Method(title or name, score, **facts)
        return score

    return register


def method_title(method: str) -> str:
    """Return what tables and cards call a score; the name itself if it is not registered here."""
    # What the encoder itself fuses is no function of the modalities' vectors, and so not registered.
    return METHODS[method].title if method in METHODS else {"fused": "fused by the model"}.get(method, method)


def scorable_clips(modality_mask: torch.Tensor, method: str) -> torch.Tensor:
    """
    Tell for which clips a score is defined.

    Args:
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): what each clip has.
        method (`str`): a key of [`METHODS`].

    Returns:
        `torch.BoolTensor` of shape `(clips,)`: False where the method gives `-inf`.

    Raises:
        ValueError: the method is unknown.
    """
    check_method(method)
    return METHODS[method].covers(modality_mask)


__all__ = [
    "CALIBRATION",
    "DIRECTIONS",
    "METHODS",
    "MIN_NORM",
    "WEIGHING",
    "Clips",
    "Method",
    "Pairs",
    "ScoreOptions",
    "check_calibration",
    "check_embeds",
    "check_method",
    "check_temperature",
    "exact",
    "make_pairs",
    "method_title",
    "min_norm_of",
    "normalize",
    "prepare_embeds",
    "register_method",
    "scorable_clips",
]
