"""A gallery in a vector engine as the service sees it: asked for a few clips at a time, and away now and then."""

import logging
import os
import time
from contextlib import suppress
from threading import Lock

from commands.errors import describe
from gallery.columns import from_utf8
from gallery.filters import Filter
from gallery.hits import Hits
from modeling_scalar.configuration_scalar import MODALITIES
from search.engine.asking import EngineGallery
from search.engine.collection import Point, condition_of
from search.engine.errors import EngineError

from .models import FILTERS
from .views import Known, Source, Summary, UnknownClipError, View

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0  # after which an engine that did not answer is asked again
_COUNT_SECONDS = 5.0  # after which clips are counted again


class EngineView(View):
    """What an engine holds now."""

    gallery: EngineGallery

    def num_files(self, per_file: bool) -> None:
        """Not known: an engine would have to go through all clips."""

    def known(self, hits: Hits, per_file: bool) -> list[Known]:
        """What is known of hits; files are where they were indexed, which may be another machine."""
        return [Known(str(hit.key), os.path.isfile(hits.place_of(hit).path)) for hit in hits]


class Engine(Source):
    """
    A collection of a vector engine.

    Args:
        gallery ([`~search.engine.asking.EngineGallery`]): which it holds.
        model (`str`), fingerprint (`str`): the model's, which the collection must name whenever it is asked.

    Raises:
        OSError: the engine does not answer, or refuses.
        ValueError: the collection is none of this format, or was made by another model.
    """

    filters = tuple(name for name in FILTERS if name != "paths")
    why_no_uploads = (
        "Files cannot be added to a vector engine from here. Index them into a folder, and push it: "
        "`python -m search push`."
    )

    def __init__(self, gallery: EngineGallery, model: str, fingerprint: str):
        super().__init__(gallery.collection.name, model, fingerprint)
        self._collection, self._address = gallery.collection, str(gallery.path)
        self._retry, self._trying, self._opening = 0.0, Lock(), Lock()
        self._about = self._collection.about()
        self._view = self._open()
        self._summary, self._counted = self._count(), time.monotonic()

    def check_method(self, method: str) -> None:
        """Raise a ValueError unless the engine has bounds of a score."""
        EngineGallery.check_method(method)

    def _open(self) -> EngineView:
        gallery = EngineGallery(self._collection, self._address)
        gallery.check_model(self._model, self._fingerprint)
        return EngineView(gallery)

    def _look(self) -> EngineView:
        """What is there now."""
        try:
            about = self._collection.about(is_new=True)
            with self._opening:
                if about != self._about or self.problem is not None:
                    self._view, self._about = self._open(), about
        except (OSError, ValueError) as error:
            self.problem, self._retry = describe(error), time.monotonic() + _RETRY_SECONDS
            logger.warning("%s", self.problem)
            raise EngineError(self.problem) from error
        self.problem = None
        return self._view

    def view(self) -> EngineView:
        """
        What is there now.

        Raises:
            EngineError: the engine does not answer, or holds what another model made.
        """
        problem = self.problem
        if problem is None:
            return self._look()
        # One request at a time finds out whether it answers again; the others do not wait for that.
        if time.monotonic() < self._retry or not self._trying.acquire(blocking=False):
            raise EngineError(problem)
        try:
            return self._look()
        finally:
            self._trying.release()

    def _count(self) -> Summary:
        having = (condition_of(Filter(has=name), MODALITIES) for name in MODALITIES)
        num_clips, *counts = map(self._collection.count, (None, *having))
        shares = (min(1.0, count / max(1, num_clips)) for count in counts)
        return Summary(self._view.gallery, num_clips, dict(zip(MODALITIES, shares, strict=True)))

    def summary(self) -> Summary:
        """What is told of the gallery, as of the last few seconds, or of when the engine answered last."""
        with suppress(EngineError):
            view = self.view()
            if view.gallery is not self._summary.gallery or time.monotonic() > self._counted + _COUNT_SECONDS:
                self._summary, self._counted = self._count(), time.monotonic()
        return self._summary

    def _point_of(self, key: str) -> tuple[EngineView, Point]:
        view = self.view()
        point = view.gallery.point_of(key)
        if point is None:
            raise UnknownClipError("There is no such clip in the gallery; it may have changed. Search again.")
        return view, point

    def clip_of(self, key: str) -> tuple[EngineView, str]:
        """What is there now, and the clip of a key."""
        view, point = self._point_of(key)
        return view, point.number

    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""
        _, point = self._point_of(key)
        return from_utf8(point.payload["path"])


__all__ = ["Engine", "EngineView"]
