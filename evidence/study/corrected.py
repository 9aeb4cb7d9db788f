"""Scores with numbers that do not depend on the query: what a clip's own evidence corrects.

    gram_corrected = -(log d + a/2 log det G + b missing)
    span_corrected = the same with a = -1
    scalar_corrected = s - b missing

d is the volume of text and clip, G the Gram matrix of the clip's modalities, missing the number that it lacks, and s
SCALAR's score (Eq. 4). With a = b = 0 the first ranks as GRAM's volume does; with b = 0 the second ranks as the span
distance, and the third as SCALAR. From video to text a clip's own terms change nothing.

Shape letters: Q queries, V clips, M modalities.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.metrics.retrieval.ranking import relevant_ranks
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS, Pairs, exact, make_pairs

CORRECTED: dict[str, tuple[str, ...]] = {
    "gram_corrected": ("exponent", "missing"),
    "span_corrected": ("missing",),
    "scalar_corrected": ("missing",),
}
"""The numbers of each score."""

BASE = {"gram_corrected": "gram", "span_corrected": "gram_span", "scalar_corrected": "scalar"}
"""The score that each is without its numbers."""

_EXPONENTS = [-number / 4 for number in range(9)]
_FIXED_EXPONENTS = {"span_corrected": -1.0, "scalar_corrected": 0.0}
_STEPS = range(-20, 21)
_STEP = {"gram_corrected": 0.05, "span_corrected": 0.05, "scalar_corrected": 0.005}  # of the constant b
_LEAST = 1e-12  # determinant of a clip that repeats itself
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def clip_terms(pairs: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return half the logarithm of det G, with an orthonormal axis for each absent modality, and the number of absent
    ones, `(V,)` each."""
    # Rows of an absent modality are 0: with a 1 on the diagonal the determinant is that of the others.
    absent = exact((~pairs.clips.modality_mask).to(torch.float32))
    determinant = torch.linalg.det(pairs.clips.exact.gram + torch.diag_embed(absent))
    return determinant.clamp(min=_LEAST).log() / 2, absent.sum(1)


def log_volumes(pairs: Pairs) -> torch.Tensor:
    """Return log d of every pair, `(Q, V)`, in float64."""
    return (-pairs.exact.in_tiles(METHODS["gram"].score)).log()


def _distances(pairs: Pairs, method: str) -> torch.Tensor:
    """What the numbers are added to, `(Q, V)`, in float64: log d, or minus SCALAR's score."""
    if method == "scalar_corrected":
        return -pairs.exact.in_tiles(METHODS["scalar"].score)
    return log_volumes(pairs)


def corrected_scores(pairs: Pairs, method: str, missing: float = 0.0, exponent: float = 0.0) -> torch.Tensor:
    """
    Score every pair, `(Q, V)`, in float64; higher is better.

    Args:
        pairs ([`~scalar_retrieval.modeling_scalar.scores_scalar.Pairs`]): texts and clips, with the options of
            SCALAR's score.
        method (`str`): a key of [`CORRECTED`].
        missing (`float`): b.
        exponent (`float`): a, of `"gram_corrected"` alone.
    """
    # The span distance is the volume over that of the clip alone: the determinant has a fixed exponent.
    exponent = _FIXED_EXPONENTS.get(method, exponent)
    half, absent = clip_terms(pairs)  # (V,) each
    return -(_distances(pairs, method) + exponent * half + missing * absent)


def _pairs(embeddings: Embeddings, options: Mapping[str, Any]) -> Pairs:
    given = embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask
    return make_pairs(*given, modalities=embeddings.modalities, **options)


@torch.no_grad()
def corrected_ranks(
    embeddings: Embeddings, method: str, missing: float = 0.0, exponent: float = 0.0, **options: Any
) -> dict[str, torch.LongTensor]:
    """Rank the relevant pairs in both directions; see [`corrected_scores`]. `options` are those of SCALAR's score."""
    scores = corrected_scores(_pairs(embeddings, options), method, missing, exponent)
    return {
        "text_to_video": relevant_ranks(scores, embeddings.pairs),
        "video_to_text": relevant_ranks(scores.T, embeddings.pairs.flip(1)),
    }


@torch.no_grad()
def fit_corrected(
    embeddings: Embeddings, method: str, options: Mapping[str, Any] = _NO_OPTIONS, cut: int = 10
) -> dict[str, Any]:
    """
    Search the numbers of a score on a grid, for the highest mean reciprocal rank from text to video.

    Args:
        embeddings ([`~scalar_retrieval.eval.embedding.embeddings.Embeddings`]): clips to fit to, with captions.
        method (`str`): a key of [`CORRECTED`].
        options (`dict`, *optional*): of SCALAR's score.
        cut (`int`): later ranks count 0.

    Returns:
        `dict`: the numbers; of equals those nearest to 0.
    """
    pairs = _pairs(embeddings, options)
    half, absent = clip_terms(pairs)
    distances = _distances(pairs, method)
    queries, clips = embeddings.pairs.T
    exponents: Sequence[float] = _EXPONENTS
    if method in _FIXED_EXPONENTS:
        exponents = (_FIXED_EXPONENTS[method],)
    constants = [step * _STEP[method] for step in sorted(_STEPS, key=abs)]
    # The whole grid: distances are computed once, and numbers move whole columns of them.
    best = -1.0
    numbers = {"exponent": 0.0, "missing": 0.0}
    for exponent in exponents:
        for missing in constants:
            # A rank counts distances that are at most the own one; (Q, V) in one go.
            total = distances + (exponent * half + missing * absent)
            ranks = (total[queries] <= total[queries, clips][:, None]).sum(1)
            reached = torch.where(ranks <= cut, 1 / ranks.double(), 0).mean().item()
            if reached > best:  # of equals the first stays, which is nearest to 0
                best = reached
                numbers = {"exponent": exponent, "missing": missing}
    return {name: numbers[name] for name in CORRECTED[method]}


__all__ = ["BASE", "CORRECTED", "clip_terms", "corrected_ranks", "corrected_scores", "fit_corrected", "log_volumes"]
