"""A gallery in a vector engine for the service: a few clips are read at a time, and it may be unavailable."""

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import torch

from commands.errors import describe
from gallery.filters import Filter
from gallery.hits import Hit, Hits
from gallery.windows import Place
from search.engine.asking import EngineSearcher, hit_of
from search.engine.clips import About
from search.engine.errors import DamagedError, EngineError

from .archive import AwayError, Source, Summary, UnknownClipError, View
from .models import FILTERS

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0  # before another attempt to reach an engine that did not answer
_LOOK_SECONDS = 1.0  # lifetime of the description of the collection
_COUNT_SECONDS = 5.0  # lifetime of the counts of clips
_MOST = 4096  # number of entries after which a search gives up: a user waits for it

# Messages of the engine may contain private details; they go to the log.
_AWAY = "The engine that holds the gallery does not answer properly; see the log of the service."
_OTHERWISE = "The gallery in the engine is gone, or made by another model; see the log of the service."
_DAMAGED = "A clip in the engine is damaged; see the log of the service."
_UNKNOWN = "There is no such clip in the gallery; it may have changed. Search again."


class EngineView(View):
    """
    The current state of a collection.

    Args:
        gallery ([`~search.engine.asking.EngineSearcher`]): as it was opened.
        noting (`Callable`): makes the context of a call to the engine, which records failures.
    """

    gallery: EngineSearcher

    def __init__(self, gallery: EngineSearcher, noting: Callable[[], Any]):
        super().__init__(gallery)
        self._noting = noting

    def search(self, **asked: Any) -> Hits:
        """
        Search the gallery.

        Raises:
            AwayError: the engine does not answer, or its data is damaged.
            UnknownClipError: the clip used as the query is gone.
        """
        try:
            with self._noting():
                return super().search(most=_MOST, **asked)
        except KeyError as error:
            if error.args != (asked.get("like"),):
                raise
            raise UnknownClipError(_UNKNOWN) from error

    def is_estimate(self, count: int) -> bool:
        """Whether a count of this size is an estimate of the engine."""
        return self.gallery.collection.is_estimate(count)

    def key_of(self, hit: Hit) -> str:
        """The key that identifies a hit in requests."""
        return str(hit.key)

    def clip(self, key: str) -> tuple[Hit, torch.Tensor, torch.Tensor]:
        """The clip with a key as a hit without a score, its vectors, and their mask; an [`UnknownClipError`] if there
        is none."""
        with self._noting():
            point = self.gallery.point_of(key)
        if point is None:
            raise UnknownClipError(_UNKNOWN)
        return hit_of(point), torch.from_numpy(point.modality_embeds), torch.tensor(point.modality_mask)

    def playable(self, places: Collection[Place]) -> set[Place]:
        """The places whose files are on this machine; others may be on the one where they were indexed."""
        return {place for place in places if os.path.isabs(place.path) and os.path.isfile(place.path)}


class EngineSource(Source):
    """
    A collection of a vector engine.

    Args:
        gallery ([`~search.engine.asking.EngineSearcher`]): which it holds.
        model (`str`), fingerprint (`str`): the model's, which the collection must name whenever it is asked.

    Raises:
        OSError: the engine does not answer, or refuses a request.
        ValueError: the collection has another format, or was made by another model.
    """

    lists = knows_copies = False

    def __init__(self, gallery: EngineSearcher, model: str, fingerprint: str):
        super().__init__(gallery.collection.name, model, fingerprint)
        self._collection, self._address = gallery.collection, str(gallery.path)
        self.filters = tuple(name for name in FILTERS if name not in self._collection.no_filters)
        self._looking, self._counting, self._retry = Lock(), Lock(), 0.0
        self._about = self._collection.about()
        self._view, self._looked = self._open(self._about), time.monotonic()
        self._summary, self._counted = self._count(), time.monotonic()

    def check_method(self, method: str) -> None:
        """Raise a ValueError unless the engine has bounds for a score."""
        EngineSearcher.check_method(method)

    def _open(self, about: About) -> EngineView:
        gallery = EngineSearcher(self._collection, self._address, about)
        gallery.check_model(self._model, self.fingerprint)
        return EngineView(gallery, self._noting)

    def _away(self, problem: str | None) -> AwayError:
        return AwayError(problem or _AWAY, max(1, math.ceil(self._retry - time.monotonic())))

    @contextmanager
    def _noting(self, *also: type[Exception]) -> Iterator[None]:
        """The context of a call to the engine; a failure, or one of these errors, is recorded until it answers."""
        try:
            yield
        except (EngineError, *also) as error:
            logger.warning("%s", describe(error))
            if isinstance(error, DamagedError):  # other searches may find intact clips
                raise self._away(_DAMAGED) from error
            self._retry = time.monotonic() + _RETRY_SECONDS
            self.problem = _AWAY if type(error) is EngineError else _OTHERWISE
            raise self._away(self.problem) from error

    def _look(self) -> EngineView:
        is_back = self.problem is not None
        with self._noting(OSError, ValueError):
            about = self._collection.about(is_new=True)
            if about != self._about or is_back:
                view = self._open(about)
                if is_back:  # an engine may describe a collection and yet fail to search it
                    self._collection.try_out()
                self._view, self._about = view, about
        self._looked = time.monotonic()
        if is_back:
            self.problem = None
        return self._view

    def view(self) -> EngineView:
        """
        The current state, at most a second old.

        Raises:
            AwayError: the engine does not answer, or holds what another model made.
        """

        def is_fresh() -> bool:
            return self.problem is None and time.monotonic() < self._looked + _LOOK_SECONDS

        if is_fresh():
            return self._view
        # Only one request checks the engine. If it did not answer before, the others do not wait for the check.
        if not self._looking.acquire(blocking=self.problem is None):
            raise self._away(self.problem)
        try:
            if is_fresh():
                return self._view
            if self.problem is not None and time.monotonic() < self._retry:
                raise self._away(self.problem)
            return self._look()
        finally:
            self._looking.release()

    def _count(self) -> Summary:
        view = self._view
        having = (self._collection.condition(Filter(has=name)) for name in view.gallery.modalities)
        num_clips, *counts = map(self._collection.count, (None, *having))
        shares = (min(1.0, count / max(1, num_clips)) for count in counts)
        shares = dict(zip(view.gallery.modalities, shares, strict=True))
        return Summary(view.gallery, num_clips, shares, view.is_estimate(num_clips))

    def summary(self) -> Summary:
        """A summary of the gallery, a few seconds old, or from when the engine answered last."""
        is_new = self._summary.gallery is self._view.gallery and time.monotonic() < self._counted + _COUNT_SECONDS
        if not (is_new and self.problem is None) and self._counting.acquire(blocking=False):
            try:
                with suppress(AwayError):
                    self.view()
                    with self._noting():
                        self._summary, self._counted = self._count(), time.monotonic()
            finally:
                self._counting.release()
        return self._summary._replace(problem=self.problem)

    def clip_of(self, key: str) -> tuple[EngineView, str]:
        """The current state, and the clip with a key; the search finds out whether it exists."""
        if not EngineSearcher.is_key(key):
            raise UnknownClipError(_UNKNOWN)
        return self.view(), key

    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""
        view = self.view()
        with self._noting():
            path = view.gallery.path_of(key)
        if path is None:
            raise UnknownClipError(_UNKNOWN)
        return path


__all__ = ["EngineSource", "EngineView"]
