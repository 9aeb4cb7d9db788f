"""Make the cosines of modalities comparable that encoders with spaces of their own embed, without labels.

[`fit_scales`] standardises given cosines over texts that look like queries, [`measure_scales`] those of a gallery.

Shapes: Q texts, V clips, M modalities, D dimensions.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import torch

from scalar_retrieval.modeling_scalar.scores_scalar import exact

from .embedding import in_batches
from .gallery import Gallery
from .store.described import SCALES
from .words.cues import cues_between
from .words.transcripts import SCREEN

_LEAST_TEXTS = 30
_MOST_TEXTS = 300
_MOST_CLIPS = 2000
_BATCH = 32  # texts that are embedded at a time
_LEAST_COSINES = 30
_LEAST_DEVIATION = 1e-4  # less is the rounding of vectors in float16
_LARGEST_UNIT = 10.0  # a temperature above it weighs all modalities alike


Embed = Callable[[list[str]], torch.Tensor]
"""Embeds a batch of texts, `(Q, D)`."""


class TooFewTextsError(ValueError):
    """There are too few texts or clips to measure scales by."""


class Scales(NamedTuple):
    """
    What [`fit_scales`] returns for each of M modalities.

    Args:
        modality_scale (`list[float]`), modality_offset (`list[float]`): keyword arguments of `retrieval_scores`.
        is_measured (`list[bool]`): whether a modality has numbers of its own, rather than those of an average one.
    """

    modality_scale: list[float]
    modality_offset: list[float]
    is_measured: list[bool]


def fit_scales(similarities: torch.Tensor, mask: torch.Tensor, query_temperature: float = 0.1) -> Scales:
    """
    Standardise the cosines x of each modality over texts that look like queries, without labels:

        c_m = tau_w (x - mu_m) / sigma_m = scale_m x + offset_m

    mu_m and sigma_m are the mean and the standard deviation of all cosines of modality m, so one deviation is the unit
    of the temperature tau_w. A modality with fewer than 30 cosines, or with a deviation below 1e-4, counts as an
    average one: it gets the mean of the others' mu and sigma. If none can be measured, cosines stay as they are
    (scales 1, offsets 0).

    Args:
        similarities (`torch.Tensor` of shape `(Q, V, M)`): cosines of texts and clips; any number where absent.
        mask (`torch.BoolTensor` of shape `(V, M)` or `(Q, V, M)`): the modalities of each clip; or of each pair, to
            leave out a text that belongs to the clip itself.
        query_temperature (`float`): tau_w of the score, positive; the unit is at most 10, as equal weights need none.

    Returns:
        [`Scales`], computed in float64.
    """
    # Mean and deviation of each modality, (M,)
    mask = mask.expand(similarities.shape)
    cosines = exact(similarities).masked_fill(~mask, math.nan)
    means = cosines.nanmean((0, 1))
    deviations = (cosines - means).square().nanmean((0, 1)).sqrt()
    # Those of an average modality where there are too few cosines; NaN if no modality could be measured
    is_measured = (mask.sum((0, 1)) >= _LEAST_COSINES) & (deviations >= _LEAST_DEVIATION)
    means = means.where(is_measured, means[is_measured].mean())
    deviations = deviations.where(is_measured, deviations[is_measured].mean())
    scale = min(query_temperature, _LARGEST_UNIT) / deviations
    offset = -scale * means
    return Scales(scale.nan_to_num(1.0).tolist(), offset.nan_to_num(0.0).tolist(), is_measured.tolist())


# Of a gallery -------------------------------------------------------------------------------------------------------


def _spread(items: list[str], most: int) -> list[str]:
    """At most so many of these items, evenly spread."""
    return items[:: math.ceil(len(items) / most) or 1]


def own_texts(gallery: Gallery) -> dict[str, set[str]]:
    """The titles and other texts stored for some hundred clips, each with the names of its files, and the longest line
    that is said in each clip, with the names of the clips."""
    found = defaultdict(set)
    for clip in gallery.searcher.clips(_spread(gallery.clip_ids, _MOST_TEXTS)):
        if clip.record is not None:
            for text in clip.record.words().values():
                found[text].add(clip.place.path)
        for source, cues in clip.words().items():
            if source != SCREEN:
                said = [cue.text for cue in cues_between(cues, clip.place.start, clip.place.stop)]
                found[max(said, key=len, default="")].add(clip.clip_id)
    found.pop("", None)
    return found


def measure_scales(gallery: Gallery, texts: Mapping[str, Set[str]], source: str, embed: Embed) -> dict[str, Any]:
    """
    Measure the scales of a gallery's modalities over at most 300 texts and 2,000 clips, evenly spread.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]): what is searched.
        texts (`Mapping`): different texts that look like queries, with the names of files and clips that each belongs
            to: these do not count for it.
        source (`str`): what the texts are, such as `"titles and subtitles"`.
        embed ([`Embed`]): embeds some of them.

    Returns:
        `dict`: entries for the gallery's metadata: `score_options` with the scales, and [`SCALES`].

    Raises:
        TooFewTextsError: there are fewer than 30 texts, or no clips, and nothing was embedded; or too few cosines of
            every modality.
    """
    if len(texts) < _LEAST_TEXTS or not len(gallery):
        raise TooFewTextsError(
            f"{len(texts)} different {source} and {len(gallery)} clips are too few to measure the scales of "
            f"modalities. Add some, or name a file of {_LEAST_TEXTS} queries or more: `scalar eval calibrate "
            f"--embeddings {gallery.path} --texts FILE --write`."
        )
    # Cosines of all pairs, except those of a text and its own clips
    chosen = _spread(list(texts), _MOST_TEXTS)
    queries = torch.cat([embed(batch) for batch in in_batches(chosen, _BATCH)])
    clips = gallery.searcher.clips(_spread(gallery.clip_ids, _MOST_CLIPS))
    embeds = torch.stack([clip.modality_embeds for clip in clips])
    mask = torch.stack([clip.modality_mask for clip in clips])
    names = [(clip.place.path, clip.clip_id) for clip in clips]
    is_other = torch.tensor([[texts[text].isdisjoint(own) for own in names] for text in chosen])
    similarities = torch.einsum("qd,vmd->qvm", queries, embeds)
    scale, offset, is_measured = fit_scales(similarities, mask & is_other[..., None], gallery.query_temperature)
    if not any(is_measured):
        raise TooFewTextsError(f"{gallery.path} has too few clips to measure the scales of modalities. Add some.")
    # What a gallery stores
    options = gallery.metadata.get("score_options") or {}
    return {
        "score_options": {**options, "modality_scale": scale, "modality_offset": offset},
        SCALES: f"{sum(is_measured)} modalities from {len(chosen)} {source}",
    }


__all__ = ["Scales", "TooFewTextsError", "fit_scales", "measure_scales", "own_texts"]
