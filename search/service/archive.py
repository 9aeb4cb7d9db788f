"""The gallery and the model behind the service, shared by threads."""

import hashlib
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from scalar_retrieval.commands.errors import error_text
from scalar_retrieval.commands.texts import plain
from scalar_retrieval.gallery.hits import NOTHING_MATCHES, Hit, Hits
from scalar_retrieval.gallery.querying import NothingToCompareError, QueryModel
from scalar_retrieval.gallery.searcher import Searcher, Selection, StoredClip
from scalar_retrieval.gallery.searching import check_supported, search
from scalar_retrieval.gallery.store.described import ADVICE, LIMITS
from scalar_retrieval.gallery.store.places import is_from_hub
from scalar_retrieval.gallery.store.rows import recording_of
from scalar_retrieval.gallery.store.windows import SEGMENT
from scalar_retrieval.gallery.words.cues import may_have_words
from scalar_retrieval.modeling_scalar.scores_scalar import find_method

from .models import About, ClipOptions, ClipResult, Listing, ListRequest, SearchAnswer, SearchOptions
from .streaming import kind_of

logger = logging.getLogger(__name__)

_TEXTS = 1024  # query embeddings that are kept
_KEYS = 2**17  # of answers, that are kept
_KEY_BYTES = 8
_RETRY_SECONDS = 2.0  # before another attempt to open a state
_CHANGED = "The gallery has changed and cannot be opened; see the log. The earlier state is served."
_UNKNOWN = "There is no such clip in the gallery; it may have changed. Search again."
_GONE = (
    "The file of this clip is gone, has changed since it was indexed, or was not published with the gallery. If it is "
    "yours, run `scalar index` again."
)


class UnknownClipError(ValueError):
    """No clip of the gallery has this key, or it lacks what is requested."""


class Archive:
    """
    A gallery and the model for its queries.

    Args:
        searcher ([`~scalar_retrieval.gallery.searcher.Searcher`]): the gallery.
        model ([`~scalar_retrieval.gallery.querying.QueryModel`]): its model.
        name (`str`): what the page calls the gallery.

    Attributes:
        embed (`Callable`): returns the embedding of a text, `(1, D)`; those of the latest texts are kept.

    """

    def __init__(self, searcher: Searcher, model: QueryModel, name: str):
        self.name = plain(name, "utf-8")
        self.model = model
        self.method = model.method
        self.problem: str | None = None  # why the latest state of the gallery is not served
        self._opening = Lock()
        self._retry = 0.0
        self._keys: OrderedDict[str, str] = OrderedDict()  # the clips of answers
        self._keys_lock = Lock()
        self._counts = lru_cache(maxsize=1)(lambda searcher: searcher.counts())  # of the latest state
        self.embed = lru_cache(maxsize=_TEXTS)(lambda text: model.embed([text]))
        self._take(searcher)

    def _take(self, searcher: Searcher) -> None:
        """Serve a state of the gallery. A clip of it is read first, so that damage is found here, not in an answer."""
        # Names are shown without the folder that all files share, which is not known of a table.
        root = None
        if "listing" not in searcher.unsupported:
            hits = searcher.list_clips(Selection(), 0, 1, per_file=False)
            searcher.clips(hits.clip_ids)
            root = hits.root
        self._searcher = searcher
        self._root = root  # the common folder of all files
        # Videos of a published gallery would be downloaded for their stills.
        self._makes_stills = not is_from_hub(Path(str(searcher.described.path)))

    def searcher(self) -> Searcher:
        """The latest state of the gallery; if it cannot be opened, the earlier one, and `problem` is set."""
        is_early = self.problem is not None and time.monotonic() < self._retry
        # One request at a time opens a state, which may take long; the others do not wait for it.
        if is_early or not self._opening.acquire(blocking=False):
            return self._searcher
        try:
            # The model stays loaded, so the latest state must be of the same model.
            earlier = self._searcher.described
            latest = self._searcher.current()
            if latest is not self._searcher:
                if earlier.fingerprint is not None:
                    latest.described.check_model(str(earlier.model), earlier.fingerprint)
                self._take(latest)
            self.problem = None
        except (OSError, ValueError) as error:
            self.problem = _CHANGED
            self._retry = time.monotonic() + _RETRY_SECONDS
            logger.warning("%s cannot be opened: %s", self._searcher.described.path, error_text(error))
        finally:
            self._opening.release()
        return self._searcher

    # Queries -------------------------------------------------------------------------------------------------------

    def search(self, text: str, asked: SearchOptions) -> tuple[SearchAnswer, list[StoredClip]]:
        """The best clips for a text."""
        embeds = self.embed(text)
        begun = time.monotonic()
        searcher = self.searcher()
        hits = search(searcher, embeds, **self._options(searcher, asked), **self.model.learned)[0]
        return self._answer(searcher, hits, asked, begun)

    def like(self, key: str, asked: SearchOptions) -> SearchAnswer:
        """
        The clips most similar to one of the gallery, without itself.

        Raises:
            UnknownClipError: no clip has this key, or it has none of the selected modalities.
        """
        begun = time.monotonic()
        searcher = self.searcher()
        clip = self._clip(key, searcher)
        try:
            hits = search(searcher, like=clip.clip_id, **self._options(searcher, asked))
        except NothingToCompareError as error:
            raise UnknownClipError(str(error)) from error
        return self._answer(searcher, hits, asked, begun)[0]

    def _options(self, searcher: Searcher, asked: SearchOptions) -> dict[str, Any]:
        return {
            "k": asked.k,
            "query_temperature": asked.query_temperature,
            "method": self.method,
            "modalities": asked.modalities,
            "allowed": asked.allowed,
            "per_file": asked.per_file,
            "unique": asked.unique,
            "inside": self._inside(searcher, asked),
        }

    def _inside(self, searcher: Searcher, asked: ClipOptions) -> str | None:
        """The one file that is searched, if it is only one."""
        return None if asked.within is None else self._clip(asked.within, searcher).place.path

    def _answer(
        self, searcher: Searcher, hits: Hits, asked: SearchOptions, begun: float
    ) -> tuple[SearchAnswer, list[StoredClip]]:
        temperature = asked.query_temperature
        if temperature is None:
            temperature = searcher.described.query_temperature
        num_files = self._counts(searcher).get("files") if asked.per_file else None
        # Why there is nothing, or nothing of use
        note = None
        if not len(hits):
            note = self._why_none(hits, asked)
        elif hits.matches_well is False:
            note = NOTHING_MATCHES
        if asked.sort == "date":
            hits = hits.newest_first()
        clips = searcher.clips(hits.clip_ids)
        answer = SearchAnswer(
            hits=self._results(hits, clips, asked.per_file),
            query_temperature=_as_json(temperature),
            num_clips=hits.num_clips,
            num_allowed=hits.num_allowed,
            num_scored=hits.num_scored,
            num_files=num_files,
            matches_well=hits.matches_well,
            unknown=hits.unknown,
            seconds=time.monotonic() - begun,
            note=note,
        )
        return answer, clips

    def _why_none(self, hits: Hits, asked: ClipOptions) -> str:
        if not hits.num_clips:
            return "The gallery holds no clips."
        if not hits.num_allowed:
            what = "The filters, or the words in quotation marks," if asked.allowed.words else "The filters"
            return f"{what} leave none of the {hits.num_clips} clips."
        missing = f"what the score {self.method!r} needs"
        if asked.modalities:
            missing += f" of {' or '.join(asked.modalities)}"
        return f"None of the {hits.num_allowed} clips has {missing}."

    # Clips ---------------------------------------------------------------------------------------------------------

    def _clip(self, key: str, searcher: Searcher) -> StoredClip:
        try:
            with self._keys_lock:
                clip_id = self._keys[key]
            return searcher.clips([clip_id])[0]
        except KeyError as error:
            raise UnknownClipError(_UNKNOWN) from error

    def _key_of(self, clip_id: str) -> str:
        """The key of a clip of an answer, which is kept: always the same, and without any part of its path."""
        # The oldest keys are forgotten, so that memory is bounded.
        key = hashlib.blake2b(clip_id.encode(), digest_size=_KEY_BYTES).hexdigest()
        with self._keys_lock:
            self._keys[key] = clip_id
            self._keys.move_to_end(key)
            if len(self._keys) > _KEYS:
                self._keys.popitem(last=False)
        return key

    def clip(self, key: str) -> StoredClip:
        """The clip with a key; an [`UnknownClipError`] if there is none."""
        return self._clip(key, self.searcher())

    def media_of(self, key: str) -> Path:
        """The file of a clip; an [`UnknownClipError`] if there is none that may be shown."""
        media = self.clip(key).media
        if media is None:
            raise UnknownClipError(_GONE)
        return media

    def list_clips(self, asked: ListRequest) -> Listing:
        """Clips by name."""
        searcher = self.searcher()
        # Where there are no windows, each clip is a file.
        has_files = asked.per_file and searcher.described.metadata.get(SEGMENT) is not None
        among = Selection(asked.allowed, inside=self._inside(searcher, asked), unique=asked.unique)
        check_supported(searcher, among, "listing")
        hits = searcher.list_clips(among, asked.skip, asked.k, per_file=has_files)
        note = None if hits.num_allowed else self._why_none(hits, asked)
        return Listing(
            hits=self._results(hits, searcher.clips(hits.clip_ids), asked.per_file),
            num_clips=hits.num_clips,
            num_allowed=hits.num_allowed,
            num_files=hits.num_files,
            unknown=hits.unknown,
            note=note,
        )

    def moment(self, key: str) -> tuple[ClipResult, StoredClip]:
        """The clip with a key, in the form of the API and as it is; an [`UnknownClipError`] if there is none."""
        searcher = self.searcher()
        clip = self._clip(key, searcher)
        # A hit without a score, as in a list
        presence = dict(zip(searcher.described.modalities, clip.modality_mask.tolist(), strict=True))
        hit = Hit(1, clip.clip_id, math.nan, None, presence, place=clip.place, problems=clip.problems)
        return self._result(hit, clip, self._root), clip

    def _results(self, hits: Hits, clips: Sequence[StoredClip], per_file: bool) -> list[ClipResult]:
        """Hits in the form of the API."""
        results = []
        for hit, clip in zip(hits, clips, strict=True):
            result = self._result(hit, clip, hits.root)
            if per_file:
                result.num_windows = clip.num_windows
            results.append(result)
        return results

    def _result(self, hit: Hit, clip: StoredClip, root: str | None) -> ClipResult:
        """A clip in the form of the API, with the URLs of what there is of it."""
        key = self._key_of(hit.clip_id)
        # Whether a known file is still there is found out when it is played, as looking for it takes time.
        path = clip.place.path if clip.record is not None and clip.record.sha256 else clip.media
        kind = None if path is None else kind_of(str(path), hit.presence.get("video", True))
        has = {
            "media": kind is not None,
            "captions": kind is not None and hit.presence.get("subtitle"),
            "words": kind is not None and may_have_words(hit.presence),
            "still": clip.still is not None or (kind == "video" and self._makes_stills),
            "loudness": kind == "audio",
        }
        urls = {name: f"api/clips/{key}/{name}" if is_there else None for name, is_there in has.items()}
        # Copies of a window are windows at the same seconds of other files.
        copies = hit.copies
        if clip.place.start is not None:
            copies = [copy.rpartition("#t=")[0] for copy in copies]
        return ClipResult(
            rank=hit.rank,
            key=key,
            name=_name_of(clip.place.path, root),
            score=None if math.isnan(hit.score) else hit.score,  # a listed clip has none
            weights=hit.weights,
            presence=hit.presence,
            problems=[plain(problem, "utf-8") for problem in hit.problems],
            start=clip.place.start,
            stop=clip.place.stop,
            kind=kind,
            heard=hit.presence.get("subtitle", False) and clip.subtitle is not None,
            copies=[_name_of(copy, root) for copy in copies],
            **recording_of(clip.record),
            **urls,
        )

    # The gallery ---------------------------------------------------------------------------------------------------

    def about(self) -> About:
        """Describe the gallery."""
        searcher = self.searcher()
        described = searcher.described
        counts = self._counts(searcher)
        num_clips = len(searcher)
        share = {}
        for name in described.modalities:
            share[name] = counts.get(name, 0) / max(1, num_clips)
        # Of folders, the page shows the names: no path of this machine is sent.
        names = []
        for name in (described.model or "").split("+"):
            if os.path.isabs(name):
                name = os.path.basename(os.path.normpath(name))
            names.append(name)
        model = "+".join(names) or None
        return About(
            name=self.name,
            num_clips=num_clips,
            **vars(described.extent),
            share=share,
            heard=counts.get("speech", 0) / max(1, num_clips),
            model=model and plain(model, "utf-8"),
            limits=LIMITS.get(described.model),
            advice=ADVICE.get(described.model),
            method=self.method,
            has_query_temperature=find_method(self.method, described.modalities).weights == "query",
            query_temperature=_as_json(described.query_temperature),
            segment=described.metadata.get(SEGMENT),
            lists="listing" not in searcher.unsupported,
            copies="unique" not in searcher.unsupported,
            problem=self.problem,
        )


def _as_json(temperature: float) -> float | str:
    """A temperature in JSON, which has no infinity."""
    return "inf" if temperature == math.inf else temperature


def _name_of(path: str, root: str | None) -> str:
    """The name of a file: below the common folder of all files; without one, with its parent folder."""
    name = path.removeprefix(f"{root}{os.sep}")
    if root in (None, os.sep):
        name = os.sep.join(path.split(os.sep)[-2:]).lstrip(os.sep)
    return plain(name, "utf-8")


__all__ = ["Archive", "UnknownClipError"]
