"""Make the cosines of modalities comparable that encoders with spaces of their own embed, without labels.

[`fit_scales`] standardises given cosines over texts that look like queries, [`measure_scales`] those of a gallery.

Shapes: Q texts, V clips, M modalities, D dimensions.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

from scalar_retrieval.modeling_scalar.scores_scalar import exact

from .embedding import in_batches
from .gallery import Gallery
from .searcher import StoredClip
from .store.described import SCALES
from .words.cues import cues_between
from .words.transcripts import SCREEN

_LEAST_TEXTS = 30
_MOST_TEXTS = 300
_MOST_CLIPS = 500  # their files are opened for subtitles
_BATCH = 32  # texts that are embedded at a time
_LEAST_COSINES = 30
_LEAST_DEVIATION = 1e-4  # less is the rounding of vectors in float16
_LARGEST_UNIT = 10.0  # a temperature above it weighs all modalities alike


Embed = Callable[[list[str]], torch.Tensor]
"""Embeds a batch of texts, `(Q, D)`."""


class TooFewTextsError(ValueError):
    """There are too few texts or clips to measure scales by."""


def fit_scales(
    similarities: torch.Tensor, mask: torch.Tensor, query_temperature: float = 0.1
) -> dict[str, list[float]]:
    """
    Standardise the cosines x of each modality over texts that look like queries, without labels:

        c_m = tau_w (x - mu_m) / sigma_m = scale_m x + offset_m

    mu_m and sigma_m are the mean and the standard deviation of all cosines of modality m, so one deviation is the unit
    of the temperature tau_w. A modality with fewer than 30 cosines, or with a deviation below 1e-4, counts as an
    average one: it gets the mean of the others' mu and sigma.

    Args:
        similarities (`torch.Tensor` of shape `(Q, V, M)`): cosines of texts and clips; any number where absent.
        mask (`torch.BoolTensor` of shape `(V, M)` or `(Q, V, M)`): the modalities of each clip; or of each pair, to
            leave out a text that belongs to the clip itself.
        query_temperature (`float`): tau_w of the score, positive; the unit is at most 10, as equal weights need none.

    Returns:
        `dict`: `modality_scale` and `modality_offset`, M numbers each, as `retrieval_scores` takes them; computed in
        float64.

    Raises:
        TooFewTextsError: no modality can be measured.
    """
    # Mean and deviation of each modality, (M,)
    mask = mask.expand(similarities.shape)
    cosines = exact(similarities).masked_fill(~mask, math.nan)
    means = cosines.nanmean((0, 1))
    deviations = (cosines - means).square().nanmean((0, 1)).sqrt()
    # Those of an average modality where there are too few cosines
    is_measured = (mask.sum((0, 1)) >= _LEAST_COSINES) & (deviations >= _LEAST_DEVIATION)
    if not is_measured.any():
        raise TooFewTextsError("There are too few clips to measure the scales of modalities. Add some.")
    means = means.where(is_measured, means[is_measured].mean())
    deviations = deviations.where(is_measured, deviations[is_measured].mean())
    scale = min(query_temperature, _LARGEST_UNIT) / deviations
    return {"modality_scale": scale.tolist(), "modality_offset": (-scale * means).tolist()}


# Of a gallery -------------------------------------------------------------------------------------------------------


def spread(items: list[str], most: int) -> list[str]:
    """At most so many of these items, evenly spread."""
    step = max(len(items) / most, 1)
    return [items[int(step * place)] for place in range(min(len(items), most))]


def some_clips(gallery: Gallery) -> list[StoredClip]:
    """At most 500 clips, evenly spread."""
    return gallery.searcher.clips(spread(gallery.clip_ids, _MOST_CLIPS))


def own_texts(gallery: Gallery) -> dict[str, set[str]]:
    """The titles and other texts stored for at most 500 clips, and the longest line that is said in each, with the
    names of the clips that each belongs to."""
    found = defaultdict(set)
    for clip in some_clips(gallery):
        if clip.record is not None:
            for text in clip.record.words().values():
                found[text].add(clip.clip_id)
        for source, cues in clip.words().items():
            if source != SCREEN:
                said = [cue.text for cue in cues_between(cues, clip.place.start, clip.place.stop)]
                found[max(said, key=len, default="")].add(clip.clip_id)
    found.pop("", None)
    return found


def measure_scales(gallery: Gallery, texts: Mapping[str, Container[str]], source: str, embed: Embed) -> dict[str, Any]:
    """
    Measure the scales of a gallery's modalities over at most 300 texts and 500 clips, evenly spread.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]): what is searched.
        texts (`Mapping`): different texts that look like queries, with the names of the clips that each belongs to,
            which do not count for it.
        source (`str`): what the texts are, such as `"titles and subtitles"`.
        embed ([`Embed`]): embeds some of them.

    Returns:
        `dict`: entries for the gallery's metadata: `score_options` with the scales, and [`SCALES`].

    Raises:
        TooFewTextsError: there are fewer than 30 texts, or no clips, and nothing was embedded; or no modality can be
            measured.
    """
    if len(texts) < _LEAST_TEXTS or not len(gallery):
        raise TooFewTextsError(
            f"{len(texts)} different {source} and {len(gallery)} clips are too few to measure the scales of "
            f"modalities. Add some, or name a file of {_LEAST_TEXTS} queries or more: `scalar eval calibrate "
            f"--embeddings {gallery.path} --texts FILE --write`."
        )
    # Cosines of all pairs, except those of a text and its own clips
    chosen = spread(list(texts), _MOST_TEXTS)
    queries = torch.cat([embed(batch) for batch in in_batches(chosen, _BATCH)])
    clips = some_clips(gallery)
    embeds = torch.stack([clip.modality_embeds for clip in clips])
    mask = torch.stack([clip.modality_mask for clip in clips]).repeat(len(chosen), 1, 1)
    for row, text in enumerate(chosen):
        for column, clip in enumerate(clips):
            if clip.clip_id in texts[text]:
                mask[row, column] = False
    similarities = torch.einsum("qd,vmd->qvm", queries, embeds)
    scales = fit_scales(similarities, mask, gallery.query_temperature)
    # What a gallery stores
    options = gallery.metadata.get("score_options") or {}
    return {"score_options": {**options, **scales}, SCALES: f"{len(chosen)} {source}"}


__all__ = ["Embed", "TooFewTextsError", "fit_scales", "measure_scales", "own_texts", "some_clips", "spread"]
