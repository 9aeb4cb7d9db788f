"""The ways to score clips whose modalities have spaces of their own, and the numbers that are chosen for them.

Scales are fitted without labels, by [`~scalar_retrieval.gallery.scales.fit_scales`], to texts and clips of the half
that fits. Where a method has a number besides, it is the one with the highest MRR@10 there, which takes labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import torch
from torch.nn.functional import pad

from evidence.study.ranks import Choice, mean_reciprocal_ranks
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery.scales import fit_scales
from scalar_retrieval.modeling_scalar.scores_scalar import side_by_side

from .sets import ClipSet, Draw

_CHOSEN_BY = 5  # draws of each regime, by which numbers are chosen
_UNIT = 0.1  # one deviation of fitted cosines; ranks do not depend on it
_DEVIATIONS = (0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_RAW = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_CONSTANTS = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 60.0, 100.0, 300.0, 1000.0)

Numbers = Mapping[str, float]
"""What is chosen for a method, by name."""


@dataclass(frozen=True)
class Method:
    """
    A way to score.

    Args:
        title (`str`): its name in tables.
        score (`str`): a registered score.
        cosines (`str`): which scales and offsets there are: fitted to captions, fitted to the clips' own titles and
            subtitles, those of published encoders, or none.
        is_joint (`bool`): whether vectors stay in the model's one space, instead of one for each encoder.
        grid (`dict`): the numbers that are chosen, with their values: `deviations`, the temperature in deviations of
            the fitted cosines; `share`, see [`with_shared`]; `modality`, the place of the only one that counts; or an
            option of the score.
    """

    title: str
    score: str = "scalar"
    cosines: Literal["fitted", "own texts", "published", "plain"] = "fitted"
    is_joint: bool = False
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)


RULE = "scalar"
"""SCALAR on the direct sum, with scales that need no labels, and nothing chosen."""

METHODS: dict[str, Method] = {
    RULE: Method("SCALAR, direct sum"),
    "own_texts": Method("SCALAR, scales by the clips' own texts", cosines="own texts"),
    "scalar_chosen": Method("SCALAR, temperature chosen", grid={"deviations": _DEVIATIONS}),
    "scalar_shared": Method("SCALAR, temperature and rho chosen", grid={"deviations": _DEVIATIONS, "share": _SHARES}),
    "share_alone": Method("SCALAR, rho chosen", grid={"share": _SHARES}),
    "raw": Method("SCALAR, raw cosines, temperature chosen", "scalar", "published", grid={"query_temperature": _RAW}),
    "joint": Method("SCALAR, joint space", is_joint=True),
    "joint_chosen": Method("SCALAR, joint space, temperature chosen", is_joint=True, grid={"deviations": _DEVIATIONS}),
    "max": Method("max pooling", "max"),
    "max_raw": Method("max pooling, raw cosines", "max", "published"),
    "mean": Method("mean", "mean"),
    "uniform": Method("equal weights", "uniform"),
    "rank_fusion": Method("rank fusion, constant chosen", "rank_fusion", "plain", grid={"rank_constant": _CONSTANTS}),
    "single": Method("best single modality", "single", "plain", grid={"modality": (0, 1, 2)}),
}
"""The methods, in the order of tables."""


# Spaces and scales ---------------------------------------------------------------------------------------------------


def direct_sum(embeddings: Embeddings, spaces: Sequence[int]) -> Embeddings:
    """
    Put spaces side by side: each modality in its own, queries in all.

    Args:
        embeddings ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): vectors of D components.
        spaces (`Sequence[int]`): the number of the space of each modality, from 0.

    Returns:
        The same clips with vectors of `(1 + max(spaces)) * D` components. Cosines are divided by the root of the
        number of spaces, and inner products of modalities are 0 between spaces.
    """
    number = 1 + max(spaces)
    dim = embeddings.text_embeds.shape[1]
    slices = [(space * dim, (space + 1) * dim) for space in spaces]
    embeds = side_by_side(embeddings.modality_embeds.unbind(1), slices)
    texts = embeddings.text_embeds.repeat(1, number) / math.sqrt(number)
    return replace(embeddings, text_embeds=texts, modality_embeds=embeds)


def with_shared(embeddings: Embeddings, share: float) -> Embeddings:
    """
    Give all modalities a component in common, which queries lack: their inner products G become rho + (1 - rho) G.

    Args:
        embeddings ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): vectors of unit norm.
        share (`float`): rho, in [0, 1).
    """
    texts = pad(embeddings.text_embeds, (0, 1))
    embeds = pad(math.sqrt(1 - share) * embeddings.modality_embeds, (0, 1), value=math.sqrt(share))
    return replace(embeddings, text_embeds=texts, modality_embeds=embeds)


def _laid_out(embeddings: Embeddings, method: Method, clips: ClipSet, numbers: Numbers) -> Embeddings:
    """The same clips in the spaces of a method."""
    if not method.is_joint:
        embeddings = direct_sum(embeddings, clips.spaces)
    if "share" in numbers:
        embeddings = with_shared(embeddings, numbers["share"])
    return embeddings


def fitted_scales(texts: Embeddings, are_own: bool) -> dict[str, list[float]]:
    """Scales and offsets by texts; those of the clips themselves are not compared with the clip that they are of."""
    similarities = torch.einsum("qd,vmd->qvm", texts.text_embeds, texts.modality_embeds)
    mask = texts.modality_mask.repeat(len(similarities), 1, 1)
    if are_own:
        mask[texts.pairs[:, 0], texts.pairs[:, 1]] = False
    return fit_scales(similarities, mask, _UNIT)


def scored(name: str, clips: ClipSet, draw: Draw, half: Embeddings, numbers: Numbers) -> tuple[Embeddings, Choice]:
    """
    Return what a method scores in one draw, and by which score with which options.

    Args:
        name (`str`): a key of [`METHODS`].
        clips ([`ClipSet`]), draw ([`Draw`]): scales are fitted to its half that fits.
        half (`Embeddings`): the half to score.
        numbers (`dict`): what was chosen.
    """
    method = METHODS[name]
    if "modality" in numbers:
        return half, (half.modalities[numbers["modality"]], {})
    options: dict[str, Any] = {}
    if method.cosines == "plain":
        options |= numbers
    elif method.cosines == "published":
        # The direct sum divides cosines by the root of the number of spaces.
        root = math.sqrt(1 + max(clips.spaces))
        scale, offset = torch.tensor(clips.published).T
        options |= {"modality_scale": root * scale, "modality_offset": offset, **numbers}
    else:
        are_own = method.cosines == "own texts"
        texts = draw.own_texts if are_own else draw.fitted
        options = fitted_scales(_laid_out(texts, method, clips, numbers), are_own)
        options["query_temperature"] = _UNIT * numbers.get("deviations", 1.0)
    return _laid_out(half, method, clips, numbers), (method.score, options)


def choose(name: str, clips: ClipSet) -> dict[str, float]:
    """Return the numbers of a method with the highest MRR@10 in the half that fits: the mean of both directions and of
    all regimes, in the first draws of each. Of equals it is the first."""
    grid = METHODS[name].grid
    if not grid:
        return {}
    best = -1.0
    for values in product(*grid.values()):
        numbers = dict(zip(grid, values, strict=True))
        total = 0.0
        for draws in clips.regimes.values():
            few = draws[:_CHOSEN_BY]
            for draw in few:
                ranked = scored(name, clips, draw, draw.fitted, numbers)
                total += mean_reciprocal_ranks(*ranked).mean().item() / len(few)
        if total > best:
            best = total
            chosen = numbers
    return chosen


__all__ = [
    "METHODS",
    "RULE",
    "Method",
    "Numbers",
    "choose",
    "direct_sum",
    "fitted_scales",
    "scored",
    "with_shared",
]
