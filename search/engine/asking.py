"""A query is answered from a list of the engine, and the answer is proved.

The engine reads the L clips of the highest bounds; these clips and no others are scored in float64. A clip that was
not read has no bound above the L-th one, and so no score above it. Once k scores lie above it, they are the k best;
until then the list is made twice as long.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import torch

from gallery.columns import from_utf8, off_unit
from gallery.filters import Filter
from gallery.gallery import Gallery
from gallery.hits import Hit, Hits, Results
from gallery.screening import exact_scores
from gallery.windows import Place, place_of_clip
from modeling_scalar.aggregation_scalar import query_weights
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.pairs_scalar import CALIBRATION, WEIGHING, ScoreOptions

from .collection import MIN_CLIP_NORM, Collection, Point, condition_of, conditions_of_unknown

_FIRST = 64  # entries that are read at first, and four for each hit
_MOST = 16_384  # entries after which a query gives up


class Certainty(StrEnum):
    """What is known of an answer."""

    EXACT = "exact"
    """These are the best clips of all that the engine holds."""
    INDEX = "exact up to the index"
    """The proof closed, over a list of the engine's index, which may have missed clips."""
    STOPPED = "stopped early"
    """The list became too long before the proof closed: there may be better clips."""


class Engine(Protocol):
    """What is asked of an engine; [`~search.engine.collection.Collection`] is one."""

    is_exact: bool

    def nearest(self, query: np.ndarray, limit: int, where: Any) -> list[tuple[str, float]]:
        """The numbers of the clips of the highest bounds, and these, in order."""

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """Clips by their numbers."""


@dataclass(frozen=True, eq=False)
class Best:
    """
    The best clips of a query.

    Args:
        points (`list[Point]`), scores (`np.ndarray` of float64): best first.
        num_scored (`int`): how many clips were read and scored.
        certainty ([`Certainty`]).
    """

    points: list[Point]
    scores: np.ndarray
    num_scored: int
    certainty: Certainty


def _scores(points: Sequence[Point], text: np.ndarray, seen: np.ndarray, options: ScoreOptions) -> np.ndarray:
    """The scores of points in float64, -inf where nothing is looked at."""
    mask = np.array([point.modality_mask for point in points]) & seen
    embeds = np.stack([point.modality_embeds for point in points]).astype(np.float64) * mask[..., None]
    texts = np.broadcast_to(text, (len(points), len(text)))
    scores = exact_scores(texts, embeds, torch.from_numpy(mask), MIN_CLIP_NORM, options)
    return np.where(mask.any(1), scores, -math.inf)


def find_best(
    engine: Engine,
    text: torch.Tensor,
    k: int,
    options: ScoreOptions,
    modalities: Sequence[str] = MODALITIES,
    where: Any = None,
    first: int = _FIRST,
    most: int = _MOST,
) -> Best:
    """
    Find the k best clips of a query by SCALAR's score.

    Args:
        engine ([`Engine`]).
        text (`torch.FloatTensor` of shape `(D,)`): unit norm.
        k (`int`): hits.
        options ([`~modeling_scalar.pairs_scalar.ScoreOptions`]): temperature, and the calibration of the bounds.
        modalities (`list[str]`): what is looked at. Bounds hold for whatever is left out.
        where: which clips may be found, as the engine takes it.
        first (`int`), most (`int`): how many entries are read at first, and at most, but never fewer than 4 k.

    Raises:
        ValueError: what is in the engine is damaged.
        OSError: the engine does not answer.
    """
    query = np.append(text.float().numpy(), np.float32(1))
    exact_text, seen = text.double().numpy(), np.array([name in modalities for name in MODALITIES])
    # Without offsets, no bound below 0 is one: the rows bound what is above 0 alone.
    lowest = 0.0 if options.modality_offset is None else -math.inf
    read: set[str] = set()
    found, scores = [], np.empty(0)
    most = max(most, 4 * k)
    limit = min(max(first, 4 * k), most)
    while True:
        entries = engine.nearest(query, limit, where)
        new = [number for number, _ in entries if number not in read]
        if new:
            fetched = engine.fetch(new)
            read.update(new)
            found += fetched
            scores = np.append(scores, _scores(fetched, exact_text, seen, options)) if fetched else scores
        if not np.isfinite([bound for _, bound in entries]).all() or np.isnan(scores).any():
            raise ValueError("What the engine holds is damaged: a score is no number. Push the gallery again.")
        # Equal scores stand in the order of places; one that equals the last bound may belong to a clip not read.
        order = np.lexsort((np.array([point.place for point in found], dtype=np.int64), -scores))[:k]
        is_whole = len(entries) < limit
        kth = scores[order[-1]] if len(order) == k else -math.inf
        if is_whole or kth > max(entries[-1][1], lowest):
            certainty = Certainty.EXACT if engine.is_exact else Certainty.INDEX
            break
        if limit == most:
            certainty = Certainty.STOPPED
            break
        limit = min(2 * limit, most)
    order = order[scores[order] > -math.inf]
    return Best([found[place] for place in order], scores[order], len(found), certainty)


class EngineHits(Hits):
    """The hits of one query, with `certainty`, a [`Certainty`], which `exactness` tells in a sentence."""

    def __init__(self, hits: Sequence[Hit], num_clips: int, best: Best, num_allowed: int, **about: Any):
        others = {
            Certainty.EXACT: "the others proved to be below the best",
            Certainty.INDEX: "the others proved to be below the best, but for what the engine's index missed",
            Certainty.STOPPED: "there may be better ones",
        }
        scored = f"{best.num_scored:,} of {num_allowed:,} clips scored in full"
        told = f"{best.certainty}: {scored}, {others[best.certainty]}."
        super().__init__(hits, num_clips, best.num_scored, num_allowed, exactness=told[0].upper() + told[1:], **about)
        self.certainty = best.certainty


class EngineGallery(Gallery):
    """
    A gallery whose clips lie in a vector engine: what it says of itself, and its search.

    Args:
        collection ([`~search.engine.collection.Collection`]): of an engine.
        name (`str`): what messages call it.
    """

    def __init__(self, collection: Collection, name: str):
        super().__init__([], metadata=collection.about().metadata)
        self.collection, self.path, self.dim = collection, name, collection.about().dim

    def __len__(self) -> int:
        return len(self.collection)

    def clip_named(self, name: str) -> str:
        """A ValueError: clips of an engine are not asked for others like them."""
        raise ValueError(f"An engine is asked by texts. For clips like {name!r}, search the gallery in its folder.")

    def search(self, *arguments: Any, **options: Any) -> Hits | Results:
        """
        Find the k best clips of each query, as [`~gallery.gallery.Gallery.search`] does.

        Raises:
            ValueError: what an engine cannot be asked, also: clips like one, the second stage, patterns of paths.
        """
        if options.get("rerank") is not None or options.get("like") is not None:
            raise ValueError(
                "An engine answers texts by their score: for clips like one, or a second stage, search the folder."
            )
        return super().search(*arguments, **options)

    def search_vectors(
        self,
        text_embeds: torch.Tensor,
        k: int = 10,
        query_temperature: float | None = None,
        method: str = "scalar",
        *,
        modalities: Sequence[str] | None = None,
        allowed: Filter | None = None,
        **score_parameters: float,
    ) -> list[EngineHits]:
        """
        Find the k best clips of each vector; the hits say whether that is proved.

        Args: as in [`~gallery.gallery.Gallery.search`], but for `text_embeds`, of shape `(Q, D)`, and `allowed`,
        a [`~gallery.filters.Filter`] without patterns of paths.

        Raises:
            ValueError: what an engine cannot be asked; a number is out of its range; what it holds is damaged.
            OSError: it does not answer.
        """
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        if method != "scalar" or set(score_parameters) & set(CALIBRATION):
            raise ValueError(
                f"An engine holds bounds of the score 'scalar' as its gallery has it, got {method!r} and "
                f"{sorted(score_parameters)}. Search the gallery in its folder."
            )
        if allowed is not None and not isinstance(allowed, Filter):
            raise ValueError("Which clips of an engine may be found is told by a `Filter`, not by a tensor.")
        if text_embeds.ndim != 2 or text_embeds.shape[1] != self.dim:
            raise ValueError(
                f"`text_embeds` must have shape (queries, {self.dim}) to search an engine, got "
                f"{tuple(text_embeds.shape)}. Texts with a vector for each modality are searched in a folder."
            )
        text_embeds = text_embeds.detach().to("cpu", torch.float32)
        if off_unit(text_embeds).any():
            raise ValueError("Rows of `text_embeds` must have unit norm.")
        temperature = self.query_temperature if query_temperature is None else query_temperature
        options = ScoreOptions(query_temperature=temperature, **self.calibration)
        seen = self._seen(modalities)
        names = [name for name, looked_at in zip(MODALITIES, seen, strict=True) if looked_at]
        where = condition_of(allowed, names)
        num_clips = len(self)
        num_allowed = num_clips if where is None else self.collection.count(where)
        unknown = {} if allowed is None else conditions_of_unknown(allowed)
        left_out = {name: count for name, them in unknown.items() if (count := self.collection.count(them))}
        results = []
        for text in text_embeds:
            best = find_best(self.collection, text, k, options, names, where)
            about: dict[str, Any] = {"locate": _locating(best), "unknown": left_out}
            if not best.points:
                about["reason"] = f"none of the {num_clips:,} clips in {self.path} fulfils what was asked for"
            results.append(EngineHits(_hits(best, text, options, seen), num_clips, best, num_allowed, **about))
        return results


def _locating(best: Best) -> Callable[[str], Place]:
    """What tells the files of these clips: a name may be as those of windows, and yet be that of a file."""
    payloads = [point.payload for point in best.points]
    files = {from_utf8(payload["clip_id"]) for payload in payloads if payload["clip_id"] == payload["path"]}
    return lambda clip_id: Place(clip_id) if clip_id in files else place_of_clip(clip_id)


def _hits(best: Best, text: torch.Tensor, options: ScoreOptions, seen: Sequence[bool]) -> list[Hit]:
    if not best.points:
        return []
    embeds = torch.from_numpy(np.stack([point.modality_embeds for point in best.points]))
    masks = torch.tensor([point.modality_mask for point in best.points])
    weighing = {name: getattr(options, name) for name in WEIGHING}
    weights = query_weights(text[None], embeds, masks & torch.tensor(seen), **weighing)[0].tolist()
    scores = torch.from_numpy(best.scores).float().tolist()
    return [
        Hit(
            number,
            from_utf8(point.payload["clip_id"]),
            score,
            dict(zip(MODALITIES, line, strict=True)),
            dict(zip(MODALITIES, point.modality_mask, strict=True)),
        )
        for number, (point, score, line) in enumerate(zip(best.points, scores, weights, strict=True), start=1)
    ]


__all__ = ["Best", "Certainty", "Engine", "EngineGallery", "EngineHits", "find_best"]
