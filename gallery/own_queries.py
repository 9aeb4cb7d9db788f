"""The least score of a match, fitted without labels: a gallery's own texts are queries, random letters are nonsense.

- **Queries with a relevant clip.** A title or line of subtitles counts if it finds its own file by pictures and sound
  alone, which "lecture 7" does not. Its best score is then that of all clips, without any text of its own file:
  nobody types a title word by word.
- **Queries without one** are random letters. The same texts without their files would not do, as titles resemble each
  other more than queries resemble titles. Words of another subject score less than random letters.
- **The score** is the lower one of two: what at most one in twenty queries with a relevant clip falls below, see
  [`least_score_of`], and what one in four without does. The latter leaves room for queries that are unlike titles.

Shapes: Q texts, V clips, M modalities, D dimensions.
"""

import math
from collections.abc import Mapping, Set
from functools import partial
from random import Random
from string import ascii_lowercase
from textwrap import wrap
from typing import Any

import numpy as np
import torch

from scalar_retrieval.modeling_scalar.modalities_scalar import kind_of
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores

from .embedding import in_batches
from .gallery import Gallery
from .scales import Embed, some_clips, spread
from .store.described import fitted_to, score_options_of

_LEAST = 100  # different texts
_MOST_TEXTS = 150
_LENGTH = 8  # letters of a word of nonsense, of which two are a text
_FIRST = 0.01  # share of the clips before a text's own file
_MOST = 0.05  # share of the queries with a relevant clip that may be reported as without a match
_NONSENSE = 0.25  # share of nonsense that is reported
_LEAST_PERCENT = 10.0  # of nonsense: a score that reports less tells nothing
_BATCH = 32  # texts that are embedded at a time


def least_score_of(best: np.ndarray, groups: np.ndarray) -> float:
    """
    Return the highest score that the best hit of a new query falls below with a probability of at most 5 %.

    With G groups of queries, weighted equally, and the new query as one more group that may rank anywhere, this is the
    highest of the scores with at most 0.05 (G + 1) - 1 groups below it: hierarchical conformal prediction.

    Args:
        best (`np.ndarray` of shape `(Q,)`): best scores of queries.
        groups (`np.ndarray` of shape `(Q,)`): group of each query.

    Returns:
        `float`: -inf for fewer than 19 groups.
    """
    # Each group weighs the same, however many queries it has.
    _, places, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = best.argsort(kind="stable")
    weights = 1 / counts[places][order]
    below = weights.cumsum() - weights
    # The last score with few enough groups below it.
    place = np.searchsorted(below, _MOST * (len(counts) + 1) - 1 + 1e-9, side="right") - 1
    return -math.inf if place < 0 else float(best[order[place]])


def measure_least_score(gallery: Gallery, texts: Mapping[str, Set[str]], embed: Embed) -> dict[str, Any]:
    """
    Fit the least score of a match to at most 150 texts of 500 clips, evenly spread.

    Args:
        gallery ([`~scalar_retrieval.gallery.gallery.Gallery`]): what is searched.
        texts (`Mapping`): different texts, with the names of the clips that each belongs to, as of
            [`~scalar_retrieval.gallery.scales.own_texts`].
        embed ([`~scalar_retrieval.gallery.scales.Embed`]): embeds some of them.

    Returns:
        `dict`: [`~scalar_retrieval.gallery.store.described.LEAST_SCORE`] of the gallery's metadata. Its `score` is
        `None` if there are fewer than 100 texts, if fewer than 19 files are found by theirs, if less than 10 % of
        nonsense would be reported, or if the gallery is not searched by SCALAR's score.
    """
    options = score_options_of(gallery.metadata)
    least = {
        "score": None,
        "num_clips": len(gallery),
        "modalities": list(gallery.modalities),
        "score_options": fitted_to(gallery.metadata),
        "source": "titles and subtitles",
    }
    # Clips with pictures or sound
    is_content = torch.tensor([kind_of(name) != "text" for name in gallery.modalities])
    clips = [clip for clip in some_clips(gallery) if clip.modality_mask[is_content].any()]
    if options["method"] != "scalar" or not clips or len(texts) < _LEAST:
        return least
    embeds = torch.stack([clip.modality_embeds for clip in clips])
    mask = torch.stack([clip.modality_mask for clip in clips])

    # Their scores by everything, and by pictures and sound alone, (Q, V)
    chosen = spread(list(texts), _MOST_TEXTS)
    words = wrap("".join(Random(0).choices(ascii_lowercase, k=100 * _LENGTH)), _LENGTH)
    nonsense = wrap(" ".join(words), 2 * _LENGTH + 1)
    queries = torch.cat([embed(batch) for batch in in_batches(chosen + nonsense, _BATCH)])
    scores = partial(retrieval_scores, queries[: len(chosen)], embeds, modalities=gallery.modalities, **options)

    # Queries with a relevant clip: the best score of each, and its file
    answered = []
    files = []
    for text, by_all, by_content in zip(chosen, scores(mask), scores(mask & is_content), strict=True):
        own = {clip.place.path for clip in clips if clip.clip_id in texts[text]}
        is_own = torch.tensor([clip.place.path in own for clip in clips])
        best_own = by_content.where(is_own, -math.inf).max()
        if own and (by_content > best_own)[~is_own].sum() <= _FIRST * len(clips):
            answered.append(by_content.where(is_own, by_all).max().item())
            files.append(min(own))

    # Nonsense among all clips, and the score that tells it from queries
    unanswered = [hits.scores[0].item() for hits in gallery.search(queries[len(chosen) :], k=1, **options)]
    score = min(least_score_of(np.array(answered), np.array(files)), np.quantile(unanswered, _NONSENSE))
    percent = 100 * np.less(unanswered, score).mean()
    if percent >= _LEAST_PERCENT:
        least["score"] = score
        least["source"] = f"{len(answered)} titles and subtitles, and random letters"
        least["answered"] = 100 * np.less(answered, score).mean()
        least["unanswered"] = percent
    return least


__all__ = ["least_score_of", "measure_least_score"]
