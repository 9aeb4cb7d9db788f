"""Exact search in a vector engine: a list of candidates from the engine, and a proof that it suffices.

The engine returns the L clips with the highest bounds, and only these are scored, in float64. Every other clip has a
bound, and so a score, of at most the L-th bound. Once k scores are above it, these are the k best; until then the list
is made longer.
"""

import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch

from gallery.columns import from_utf8
from gallery.described import Described, NoClipError
from gallery.filters import Filter
from gallery.hits import Certainty, Hit, Hits, Results
from gallery.querying import Likeness, QueryModel, check_vectors, load_query_model, query_like
from gallery.searching import search, seen_of
from gallery.windows import Place, place_of_clip
from modeling_scalar.scores_scalar import CALIBRATION, WEIGHING, ScoreOptions, exact_scores, paired_weights

from .clips import MIN_CLIP_NORM, About, Counts, Engine, Point
from .errors import ChangedError, DamagedError, UnsupportedError

_FIRST = 64  # least number of entries in the first list; at least four per hit
_MOST = 16_384  # number of entries after which a query gives up
_SCORED_AT_ONCE = 512
_UNPROVED = 256  # entries of a list that proves nothing
_NUMBER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, eq=False)
class Best:
    """
    The best clips of a query.

    Args:
        points (`list[Point]`), scores (`np.ndarray` of float64): best first.
        num_scored (`int`): number of clips read and scored.
        certainty ([`Certainty`]).
    """

    points: list[Point]
    scores: np.ndarray
    num_scored: int
    certainty: Certainty


def _no_number(engine: Engine) -> DamagedError:
    return DamagedError(
        f"The data in {engine.name} is damaged: a score is not a number. Push the gallery again with --rewrite."
    )


def _scores(points: Sequence[Point], text: np.ndarray, seen: np.ndarray, options: ScoreOptions) -> np.ndarray:
    """The scores of points in float64, -inf for those that have none of the modalities in use."""
    mask = np.array([point.modality_mask for point in points]) & seen
    embeds = torch.from_numpy(np.stack([point.modality_embeds for point in points]))
    texts = torch.from_numpy(text).expand(len(points), -1)
    scores = exact_scores(texts, embeds, torch.from_numpy(mask), MIN_CLIP_NORM, options).numpy()
    return np.where(mask.any(1), scores, -math.inf)


def find_best(
    engine: Engine,
    text: torch.Tensor,
    k: int,
    options: ScoreOptions,
    modalities: Sequence[str] | None = None,
    where: Any = None,
    first: int = _FIRST,
    most: int = _MOST,
) -> Best:
    """
    Find the k best clips of a query by SCALAR's score.

    Args:
        engine ([`~search.engine.clips.Engine`]).
        text (`torch.FloatTensor` of shape `(D,)`): unit norm.
        k (`int`): number of hits.
        options ([`~modeling_scalar.scores_scalar.ScoreOptions`]): temperature, and the calibration of the bounds.
        modalities (`list[str]`, *optional*): those to use, by default all. Bounds hold for every subset.
        where: condition on the clips, in the engine's own form.
        first (`int`), most (`int`): initial and maximum number of entries to read, but never fewer than 4 k. For an
            engine with close bounds, `first` more entries than hits, and then as many as the proof takes.

    Raises:
        DamagedError: the data in the engine is damaged.
        OSError: the engine does not answer.
    """
    seen = np.array(seen_of(modalities, engine.about().modalities))
    query, is_bounded, lowest = engine.asked(text, seen.tolist(), options)
    read: set[str] = set()
    found: list[tuple[float, Point]] = []
    num_scored = 0
    if engine.is_limited:
        most = max(most if is_bounded else min(_UNPROVED, most), 4 * k)
        limit = min(max(first, 4 * k), most) if is_bounded else most
    else:  # bounds are close
        most, limit = sys.maxsize, first + k
    while True:
        entries = engine.nearest(query, limit, where)
        bounds = [bound for _, bound in entries]
        if not np.isfinite(bounds).all():
            raise _no_number(engine)
        new = [number for number, _ in entries if number not in read]
        read.update(new)
        for start in range(0, len(new), _SCORED_AT_ONCE):  # only the best are kept in memory
            fetched = engine.fetch(new[start : start + _SCORED_AT_ONCE])
            if fetched:
                num_scored += len(fetched)
                scores = _scores(fetched, text.double().numpy(), seen, options).tolist()
                if any(map(math.isnan, scores)):
                    raise _no_number(engine)
                found = sorted([*found, *zip(scores, fetched, strict=True)], key=_order)[:k]
        is_whole = len(entries) < limit
        # A clip that was not read may have a score equal to the last bound.
        kth = found[-1][0] if len(found) == k else -math.inf
        if (
            is_whole
            or (is_bounded and kth > max(bounds[-1], lowest))
            or (limit == most and _is_all(engine, where, read))
        ):
            certainty = Certainty.EXACT if engine.is_exact else Certainty.INDEX
            break
        if limit == most:
            certainty = Certainty.STOPPED
            break
        limit = min(engine.growth * limit, most)
    found = [(score, point) for score, point in found if score > -math.inf]
    return Best([point for _, point in found], np.array([score for score, _ in found]), num_scored, certainty)


def _order(scored: tuple[float, Point]) -> tuple[float, int, str]:
    """Best first; equal scores in the order of places, which clips of several parts may share."""
    score, point = scored
    return -score, point.place, point.number


def _is_all(engine: Engine, where: Any, read: set[str]) -> bool:
    """Whether a list of full length nevertheless contains all clips."""
    count = engine.count(where)
    return len(read) >= count and not engine.is_estimate(count)


class EngineSearcher(Described):
    """
    Search in a collection of a vector engine: a [`~gallery.searching.Searcher`].

    Args:
        collection ([`~search.engine.clips.Engine`]): an engine that holds a gallery.
        name (`str`): the name used in messages.
        about ([`~search.engine.clips.About`], *optional*): what the collection holds; by default it is queried.
    """

    query_model: QueryModel | None = None
    load_model = load_query_model

    def __init__(self, collection: Engine, name: str, about: About | None = None):
        self.about = collection.about() if about is None else about
        super().__init__(self.about.metadata, name)
        self.collection, self.dim, self.dtype = collection, self.about.dim, self.about.dtype

    def __len__(self) -> int:
        return len(self.collection)

    def clip_named(self, name: str) -> str:
        """Return the clip that is meant, as [`~gallery.gallery.Gallery.clip_named`] does."""
        candidates = list(dict.fromkeys([name, os.path.realpath(name)]))
        for candidate in candidates:
            if self._numbers_of(candidate):
                return candidate
        windows = [clip_id for _, clip_id in self.collection.of_files(candidates)][:3]
        if windows:
            named = ", ".join(map(repr, windows))
            raise ValueError(f"{name!r} is cut into windows in {self.path}: name one of them, as {named}.")
        raise NoClipError(
            f"There is no clip {name!r} in {self.path}. `scalar query ... --json` prints the `clip_id` of each hit."
        )

    def _numbers_of(self, clip_id: str) -> list[str]:
        """The numbers of the clips with this name, one for each part of the collection that has it."""
        paths = list({clip_id, place_of_clip(clip_id).path})  # paths are indexed
        return [number for number, name in self.collection.of_files(paths) if name == clip_id]

    @staticmethod
    def is_key(text: str) -> bool:
        """Whether a text may be the `key` of a hit."""
        return bool(_NUMBER.fullmatch(text))

    def point_of(self, key: str) -> Point | None:
        """The clip with the `key` of a hit; `None` if it is gone."""
        points = self.collection.fetch([key]) if self.is_key(key) else []
        return points[0] if points else None

    def path_of(self, key: str) -> str | None:
        """The file of such a clip, without a check of the clip; `None` if it is gone."""
        return self.collection.path_of(key) if self.is_key(key) else None

    def search(self, *arguments: Any, most: int = _MOST, **options: Any) -> Hits | Results:
        """
        Find the k best clips of each query, as [`~gallery.searching.search`] does.

        `like` may also be the `key` of a hit. The answer is then proved only if the clip has one modality, or one is
        used. Otherwise the clips nearest to each of its vectors are scored, and better ones may be missed. At most
        `most` clips (or 4 `k`, if that is more) are read for a query, however many files are searched for.

        Raises:
            ValueError: an engine does not support this, such as the second stage or patterns of paths.
            DamagedError: the data in the engine is damaged.
            ChangedError: the collection was replaced by vectors of another model meanwhile.
        """
        is_outside = isinstance(options.get("like"), Likeness)
        self.check_asked(options.get("rerank"), unique=options.get("unique", False), is_outside=is_outside)
        return search(self, *arguments, most=most, **options)

    def check_asked(
        self, rerank: int | None = None, allowed: Filter | None = None, unique: bool = False, is_outside: bool = False
    ) -> None:
        """Raise an [`UnsupportedError`] for what an engine does not support: the second stage, copies, and for some
        engines queries by outside files, and some filters."""
        if is_outside and not self.collection.takes_any_query:
            raise UnsupportedError("This engine only finds clips like its own. Search the gallery in its folder.")
        if unique:
            raise UnsupportedError("An engine does not know which files are copies. Search the gallery in its folder.")
        if rerank is not None:
            raise UnsupportedError("The second stage reads files. Search the gallery in its folder.")
        self.collection.condition(allowed)

    @staticmethod
    def check_method(method: str) -> None:
        """Raise an [`UnsupportedError`] unless an engine has bounds for a score."""
        if method != "scalar":
            raise UnsupportedError(
                f"An engine only has bounds of the score 'scalar', got {method!r}. Search the gallery in its folder."
            )

    def query_like(
        self, clip_id: str, modalities: Sequence[str] | None, allowed: Any
    ) -> tuple[torch.Tensor, "_Others"]:
        """A clip as a query, and the condition on hits: any allowed clip but itself."""
        point = self.point_of(clip_id)
        if point is None:
            numbers = self._numbers_of(clip_id)
            point = self.point_of(numbers[0]) if numbers else None
        if point is None:
            raise KeyError(clip_id)
        mask = torch.tensor(point.modality_mask) & torch.tensor(seen_of(modalities, self.modalities))
        query = query_like(torch.from_numpy(point.modality_embeds), mask)
        return query, _Others(allowed, point.number)

    def reranked(self, *_: Any) -> NoReturn:
        """Raise an [`UnsupportedError`]."""
        self.check_asked(rerank=1)

    def once(self, *_: Any) -> NoReturn:
        """Raise an [`UnsupportedError`]."""
        self.check_asked(unique=True)

    with_copies = once

    def saying(self, allowed: "Filter | None", words: Sequence[str]) -> Filter:
        """A filter on the allowed clips in which these words are spoken."""
        said = (allowed or Filter()).saying(words)
        self.check_asked(allowed=said)
        return said

    def why_no_hits(self, method: str, among: Any = None, is_like: bool = False) -> str:
        """Why a search finds nothing."""
        return f"none of the {'other ' if is_like else ''}clips in {self.path} matches the filters"

    def among(self, allowed: "Filter | _Others | None") -> "_Others":
        """The condition on hits."""
        return allowed if isinstance(allowed, _Others) else _Others(allowed)

    def outside(self, among: "_Others", hits: Hits) -> "_Others":
        """The same condition without the files of these hits."""
        return replace(among, paths=tuple({hits.place_of(hit).path for hit in hits}), num_scored=hits.num_scored)

    def search_vectors(
        self,
        text_embeds: torch.Tensor,
        k: int = 10,
        query_temperature: float | None = None,
        method: str = "scalar",
        *,
        modalities: Sequence[str] | None = None,
        allowed: "Filter | _Others | None" = None,
        most: int = _MOST,
        **score_parameters: float,
    ) -> list[Hits]:
        """
        Find the k best clips for each vector; the hits say whether this is proved.

        Args: as in [`EngineSearcher.search`], except `text_embeds`, of shape `(Q, D)`, and `allowed`, a
        [`~gallery.filters.Filter`] without patterns of paths.

        Raises:
            ValueError: the engine does not support this, or a number is out of range.
            OSError: the engine does not answer, its data is damaged, or it now holds another model's.
        """
        text_embeds = check_vectors(text_embeds, k, self.dim)
        others = self.among(allowed)
        allowed, is_like = others.wanted, others.number is not None
        self.check_method(method)
        if unknown := set(score_parameters) - set(CALIBRATION):
            raise TypeError(f"The score {method!r} has no {', '.join(sorted(unknown))}.")
        any_query = self.collection.takes_any_query
        given = [name for name in CALIBRATION if score_parameters.get(name) is not None]
        if given and not any_query:
            raise UnsupportedError(
                f"This engine only supports the calibration of its gallery, got {', '.join(given)}. Search the "
                "gallery in its folder."
            )
        if allowed is not None and not isinstance(allowed, Filter):
            raise ValueError("`allowed` must be a `Filter` for an engine, not a tensor.")
        temperature = self.query_temperature if query_temperature is None else query_temperature
        seen = seen_of(modalities, self.modalities)
        calibration = {} if is_like else self.calibration
        calibration |= score_parameters if any_query else {}
        options = ScoreOptions(query_temperature=temperature, **calibration)
        if allowed is not None:
            allowed.check_modalities(self.modalities)
        where = self.collection.condition(allowed, None if all(seen) else modalities, others.number, others.paths)
        results, left = [], most - others.num_scored
        try:
            with self.collection.reading():
                counts = Counts(0, 0) if others.paths else self.collection.counts(allowed, others.number)
                for text in text_embeds:
                    best = Best([], np.empty(0), 0, Certainty.STOPPED)
                    if left > 0 or not self.collection.is_limited:
                        best = find_best(self.collection, text, k, options, modalities, where, most=left)
                    results.append(self._hits(best, text, options, seen, counts))
        except DamagedError:
            self._check_unchanged()  # a replaced collection may look damaged
            raise
        self._check_unchanged()
        return results

    def _hits(
        self, best: Best, text: torch.Tensor, options: ScoreOptions, seen: Sequence[bool], counts: Counts
    ) -> Hits:
        reason = None if best.points else self.why_no_hits("scalar")
        return Hits(
            _hits(best, text, options, seen),
            counts.num_clips,
            best.num_scored,
            counts.num_allowed,
            counts.unknown,
            reason=reason,
            notes=[] if counts.note is None else [counts.note],
            certainty=best.certainty,
            is_estimate=counts.is_estimate,
        )

    def _check_unchanged(self) -> None:
        """Raise a [`ChangedError`] if the vectors of the collection were replaced since it was opened."""
        if different := self.about.differences(self.collection.about(is_new=True)):
            raise ChangedError(
                f"The collection {self.collection.name!r} was replaced after it was opened; its vectors now differ in "
                f"{', '.join(different)}. Search again."
            )


@dataclass(frozen=True)
class _Others:
    """A condition on hits: a filter, without one clip and some files, for which `num_scored` clips were scored."""

    wanted: Filter | None
    number: str | None = None
    paths: tuple[str, ...] = ()
    num_scored: int = 0


def _place_of(point: Point) -> Place:
    """The file of a clip, and its seconds; the name of a whole file may look like that of a window."""
    path, place = from_utf8(point.payload["path"]), place_of_clip(from_utf8(point.payload["clip_id"]))
    return place if place.path == path else Place(path)


def hit_of(point: Point, rank: int = 1, score: float = math.nan, weights: dict[str, float] | None = None) -> Hit:
    """A clip as a hit."""
    presence = dict(zip(point.modalities, point.modality_mask, strict=True))
    name = from_utf8(point.payload["clip_id"])
    return Hit(rank, name, score, weights, presence, key=point.number, place=_place_of(point))


def _hits(best: Best, text: torch.Tensor, options: ScoreOptions, seen: Sequence[bool]) -> list[Hit]:
    if not best.points:
        return []
    embeds = torch.from_numpy(np.stack([point.modality_embeds for point in best.points]))
    masks = torch.tensor([point.modality_mask for point in best.points])
    weighing = {name: getattr(options, name) for name in WEIGHING}
    texts = text.expand(len(embeds), -1)
    weights = paired_weights(texts, embeds, masks & torch.tensor(seen), **weighing).tolist()
    scores = torch.from_numpy(best.scores).float().tolist()
    return [
        hit_of(point, number, score, dict(zip(point.modalities, line, strict=True)))
        for number, (point, score, line) in enumerate(zip(best.points, scores, weights, strict=True), start=1)
    ]


__all__ = ["Best", "EngineSearcher", "find_best", "hit_of"]
