"""A gallery in a Qdrant collection: all calls to the engine.

- A point is a clip: its bounds as a multi-vector (compared by the largest inner product), its vectors for scoring, and
  a payload with its name, modalities and the facts that filters need. One call writes all of it.
- A hash over payload and vectors reveals half-written points and changes by others.
- Bounds are never read back and have no hash: an exact answer trusts that the engine stores them as pushed.
"""

import json
import logging
import math
import os
import pickle
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from threading import Lock
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import numpy as np
import torch
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse
from qdrant_client.local import persistence
from qdrant_client.local.qdrant_local import QdrantLocal

from gallery.columns import from_utf8, precision_of, to_utf8
from gallery.described import calibration_of
from gallery.exact.bounds import bound_vectors, num_rows, stored_bounds
from gallery.filters import DATE, DURATION, Filter
from modeling_scalar.scores_scalar import CALIBRATION, ScoreOptions

from .address import KEY_VARIABLE, Address
from .clips import MIN_CLIP_NORM, About, Asked, Counts, Point, about_from, damaged
from .errors import DamagedError, EngineError, NoCollectionError, UnsupportedError

logger = logging.getLogger(__name__)

BOUND = "bound"
"""The name of the multi-vector; the other vectors are named after their modality."""

_NONE = "There is no collection {!r}. `scalar push GALLERY ADDRESS` makes it."
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_INDEXED = {"has": "keyword", "path": "keyword", "part": "keyword", "seconds": "float", "changed": "integer"}
_UNKNOWN = {"seconds": DURATION, "changed": DATE}
_SCROLLED = 4096
_MANY_ROWS = 30  # bounds per clip, each as long as a vector
_FETCHED_AT_ONCE = 512
_NUMBERS_AT_ONCE = 600_000  # vector components per request: at most 25 bytes each in JSON, and 32 MB in total
_OVERSAMPLING = 4.0
_WIDTH = 512  # hnsw_ef: the number of candidates in an index search
_TIMEOUT, _TIMEOUT_OF_PAGE = 60, 10
_PAUSES = (0.2, 0.5, 1, 2, 4, 8)  # seconds to wait before each retry
_PAUSES_OF_PAGE = (0.2, 0.5)
_COUNTED = 100_000  # clips: larger counts are estimated, as an exact count takes an engine 0.1 s per million
_AGAIN = (408, 429, 500, 502, 503, 504)
_PLACES = 2**53  # more than any gallery has

Answered = TypeVar("Answered")


class _Clips(pickle.Unpickler):
    """Reads the rows of a local folder, which the client stores as pickles; accepts nothing but clips."""

    def find_class(self, module: str, name: str) -> type:
        """The class of clips; an UnpicklingError for any other class or function, as it could run code."""
        if (module, name) != (models.PointStruct.__module__, models.PointStruct.__name__):
            raise pickle.UnpicklingError(f"{module}.{name} is not a clip")
        return models.PointStruct


_OPENING = Lock()
_NO_CLIPS = (AttributeError, EOFError, LookupError, TypeError, ValueError, pickle.PickleError, sqlite3.Error)


@contextmanager
def _reading_nothing_but_clips() -> Iterator[None]:
    """Let the client open a folder without running code from its pickles; a [`DamagedError`] if there is any."""
    with _OPENING:
        known = persistence.pickle
        persistence.pickle = SimpleNamespace(dumps=pickle.dumps, loads=lambda row: _Clips(BytesIO(row)).load())
        try:
            yield
        except _NO_CLIPS as error:
            raise DamagedError(
                f"The folder of collections is damaged, or was not written by `scalar push`: {error}. Remove it, and "
                "push the gallery again."
            ) from error
        finally:
            persistence.pickle = known


def _key() -> str | None:
    """The API key of the engine, if set; an error does not repeat it."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(f"{KEY_VARIABLE} must consist of printable ASCII characters without spaces.")
    return key or None


def connect(address: Address, timeout: int = _TIMEOUT, is_new: bool = True) -> QdrantClient:
    """
    Make a client. No server is contacted yet, but a folder is opened.

    Args:
        address ([`~search.engine.address.Address`]).
        timeout (`int`): timeout of a request, in seconds.
        is_new (`bool`): whether to create a missing folder.

    Raises:
        ValueError: the key cannot be sent.
        FileNotFoundError: the folder does not exist, and `is_new` is False.
        DamagedError: the folder contains something other than clips.
        OSError: another process uses the folder.
    """
    if address.server is not None:
        key = _key()
        with warnings.catch_warnings():
            if address.is_here:
                warnings.simplefilter("ignore", UserWarning)  # about a key sent without encryption
            return QdrantClient(url=address.server, api_key=key, timeout=timeout, check_compatibility=False)
    if not is_new and not address.folder.is_dir():
        raise NoCollectionError(_NONE.format(address.name))
    try:
        with _reading_nothing_but_clips():
            return QdrantClient(path=str(address.folder), force_disable_check_same_thread=True)
    except RuntimeError as error:
        raise OSError(
            f"Another process uses the collections in {address.folder}. Wait until it ends, or use a server, which "
            "several processes can share."
        ) from error


class Collection:
    """
    A collection in an engine, which need not exist yet. Safe to use from several threads.

    Args:
        client (`QdrantClient`): of a server, of a folder, or in memory.
        name (`str`): name of the collection.
        is_approximate (`bool`): whether lists come from the engine's index, which may miss clips.
        is_patient (`bool`): retry an engine that does not answer for about 15 s, not counting timeouts. Otherwise, as
            for the page, retry twice within a second, and never after a timeout.
    """

    growth, is_limited, takes_any_query = 2, True, False
    no_filters = ("paths", "words")

    def __init__(self, client: QdrantClient, name: str, is_approximate: bool = False, is_patient: bool = True):
        self.client, self.name, self.is_patient = client, name, is_patient
        self.is_local = isinstance(getattr(client, "_client", None), QdrantLocal)
        self.is_exact = self.is_local or not is_approximate
        self._about: About | None = None
        self._lock = Lock()

    @classmethod
    def at(cls, address: Address, is_patient: bool = True, is_new: bool = True) -> "Collection":
        """The collection at an address; a missing folder is created if `is_new`."""
        client = connect(address, _TIMEOUT if is_patient else _TIMEOUT_OF_PAGE, is_new)
        return cls(client, address.name, address.is_approximate, is_patient)

    def close(self) -> None:
        """Close the connection to the engine."""
        self.client.close()

    def _ask(self, call: Callable[..., Answered], *args: Any, **options: Any) -> Answered:
        """Call the engine, with retries: every call except `create_collection` can safely be repeated."""
        for pause in (*(_PAUSES if self.is_patient else _PAUSES_OF_PAGE), None):
            try:
                if not self.is_local:
                    return call(self.name, *args, **options)
                # The client's local mode is not thread-safe, and neither is the list of warnings.
                with self._lock, warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # that local mode is for small collections
                    return call(self.name, *args, **options)
            except UnexpectedResponse as error:
                if error.status_code in (401, 403):
                    raise EngineError(
                        f"The engine refuses access to {self.name!r}. Put its key into {KEY_VARIABLE}."
                    ) from None
                if error.status_code == 404 and call != self.client.collection_exists:
                    raise NoCollectionError(_NONE.format(self.name)) from None
                if error.status_code not in _AGAIN or pause is None:
                    raise EngineError(
                        f"The engine refuses a request for {self.name!r}: {_message_of(error)}"
                    ) from None
            except (ApiException, ResourceExhaustedResponse) as error:
                is_late = isinstance(getattr(error, "source", None), httpx.TimeoutException)
                if pause is None or (is_late and not self.is_patient):
                    raise EngineError(
                        f"The engine does not answer: {_message_of(error)}. Is the address right?"
                    ) from None
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    # What it is -----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the collection exists."""
        return self._ask(self.client.collection_exists)

    def about(self, is_new: bool = False) -> About:
        """
        Describe what the collection holds.

        Args:
            is_new (`bool`): query the engine again instead of using the stored answer.

        Raises:
            FileNotFoundError: there is no such collection.
            ValueError: it was not made by `push`, or has another format.
        """
        about = self._about
        if is_new or about is None:
            if self.is_local and not self.exists():
                raise NoCollectionError(_NONE.format(self.name))
            stored = (self._ask(self.client.get_collection).config.metadata or {}).get("scalar")
            self._about = about = about_from(stored, f"The collection {self.name!r}")
        return about

    def create(self, about: About, num_shards: int | None = None, num_replicas: int | None = None) -> None:
        """Create an empty collection; warn if a clip needs many rows of bounds."""
        calibration = calibration_of(about.metadata)
        rows = num_rows(len(about.modalities), about.detail, calibration.get("modality_offset") is not None)
        if rows > _MANY_ROWS:
            logger.warning(
                "A clip with all %d modalities takes %d rows of bounds, %.0f kB. A lower `--detail` needs fewer; a "
                "PostgreSQL table needs none: `scalar push GALLERY postgresql://HOST/DATABASE/TABLE`.",
                len(about.modalities),
                rows,
                rows * (about.dim + 1) * precision_of(about.dtype).itemsize / 1000,
            )
        datatype = models.Datatype(about.dtype)
        flat = models.HnswConfigDiff(m=0)  # the vectors for scoring need no index
        vectors = {
            name: models.VectorParams(
                size=about.dim, distance=models.Distance.DOT, datatype=datatype, on_disk=True, hnsw_config=flat
            )
            for name in about.modalities
        }
        vectors[BOUND] = models.VectorParams(
            size=about.dim + 1,
            distance=models.Distance.DOT,
            datatype=datatype,
            on_disk=True,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        )
        options = {"shard_number": num_shards, "replication_factor": num_replicas}
        # Replicas that must confirm a write: at least half, so that as many can fail.
        options["write_consistency_factor"] = None if num_replicas is None else (num_replicas + 1) // 2
        try:
            with _reading_nothing_but_clips() if self.is_local else nullcontext():  # a folder may have its name
                self._ask(
                    self.client.create_collection,
                    vectors,
                    metadata=about.as_metadata(),
                    on_disk_payload=True,
                    **options,
                )
        except OSError:
            if not self.exists():  # otherwise an unanswered call or another process created it
                raise
            self.about(is_new=True)
            return
        try:
            self.about(is_new=True)
        except ValueError:
            self._ask(self.client.delete_collection)
            raise ValueError("This engine stores no metadata of collections. Use Qdrant 1.16 or newer.") from None

    def index_payload(self) -> None:
        """Create missing payload indexes for filters."""
        if self.is_local:  # local mode has no indexes
            return
        there = self._ask(self.client.get_collection).payload_schema or {}
        for name, kind in _INDEXED.items():
            if name not in there:
                self._ask(self.client.create_payload_index, field_name=name, field_schema=kind, wait=True)

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the gallery."""
        about = replace(self.about(), metadata=dict(metadata))
        self._ask(self.client.update_collection, metadata=about.as_metadata())
        self._about = None

    def __len__(self) -> int:
        return self.count(None)

    def condition(
        self,
        wanted: Filter | None,
        modalities: Sequence[str] | None = None,
        without: str | None = None,
        outside: Sequence[str] = (),
    ) -> models.Filter | None:
        """See [`condition_of`]."""
        return condition_of(wanted, modalities, without, outside)

    def counts(self, wanted: Filter | None, without: str | None = None) -> Counts:
        """The numbers of all clips, of those allowed, and of those left out because a fact is unknown."""
        num_clips, among = self.count(None), condition_of(wanted, without=without)
        num_allowed = num_clips if among is None else min(num_clips, self.count(among))
        unknown = {} if wanted is None else conditions_of_unknown(wanted)
        left_out = {name: count for name, them in unknown.items() if (count := self.count(them))}
        return Counts(num_clips, num_allowed, left_out, self.is_estimate(num_clips))

    def count(self, where: models.Filter | None) -> int:
        """The number of clips that meet a condition; the engine's estimate if [`is_estimate`] says so."""
        if not self.is_local:
            estimate = self._ask(self.client.count, count_filter=where, exact=False).count
            if self.is_estimate(estimate):
                return estimate
        return self._ask(self.client.count, count_filter=where, exact=True).count

    def is_estimate(self, count: int) -> bool:
        """Whether a count of this size is the engine's estimate."""
        return not self.is_local and count > _COUNTED

    def reading(self) -> nullcontext[None]:
        """No transaction: a query may see old and new versions of clips."""
        return nullcontext()

    # Writing --------------------------------------------------------------------------------------------------------

    writing = reading

    def known(self, part: str) -> Iterator[tuple[str, str, int]]:
        """The number, hash and place of each clip of a part."""
        for record in self._scroll(_is_any("part", [part]), ["digest", "place"]):
            place = record.payload.get("place")
            yield str(record.id), str(record.payload.get("digest")), place if _is_place(place) else -1

    def of_files(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """The number and name of each clip of some files."""
        found = self._scroll(_is_any("path", list(map(to_utf8, paths))), ["clip_id"])
        return [(str(record.id), from_utf8(str(record.payload.get("clip_id")))) for record in found]

    def path_of(self, number: str) -> str | None:
        """The file of a clip, from its payload alone, without a check of the hash; `None` if the clip is gone."""
        for record in self._ask(self.client.retrieve, [number], with_payload=["path"], with_vectors=False):
            path = (record.payload or {}).get("path")
            if not _is_name(path):
                raise self._damaged(number)
            return from_utf8(path)
        return None

    def _damaged(self, number: str, count: int = 1) -> DamagedError:
        return damaged(f"the collection {self.name!r}", number, count)

    def _scroll(self, condition: models.FieldCondition, names: list[str]) -> Iterator[models.Record]:
        """All points that meet a condition, with these fields of their payload."""
        offset, where = None, models.Filter(must=[condition])
        while True:
            found, offset = self._ask(
                self.client.scroll, scroll_filter=where, limit=_SCROLLED, offset=offset, with_payload=names
            )
            yield from found
            if offset is None:
                return

    @property
    def points_at_once(self) -> int:
        """The number of points written by one call."""
        about = self.about()
        # Rows of bounds, including those for scores below 0, and the clip's vectors.
        rows = num_rows(len(about.modalities), about.detail, has_offset=True)
        numbers = (about.dim + 1) * rows + about.dim * len(about.modalities)
        return int(np.clip(_NUMBERS_AT_ONCE // numbers, 1, 256))

    def put(self, points: Sequence[Point]) -> None:
        """Write clips; each one is replaced as a whole."""
        about = self.about()
        embeds = torch.from_numpy(np.stack([point.modality_embeds for point in points]))
        mask = torch.tensor([point.modality_mask for point in points])
        bounds = bound_vectors(embeds, mask, MIN_CLIP_NORM, **calibration_of(about.metadata), detail=about.detail)
        rows = stored_bounds(bounds, precision_of(about.dtype)).float().numpy()
        structs = []
        for number, point in enumerate(points):
            there = zip(about.modalities, point.modality_mask, point.modality_embeds, strict=True)
            vectors = {name: vector.astype(np.float32).tolist() for name, has, vector in there if has}
            vectors[BOUND] = rows[number][bounds.is_used[number].numpy()].tolist()
            payload = point.payload | {"digest": point.digest, "place": point.place}
            structs.append(models.PointStruct(id=point.number, vector=vectors, payload=payload))
        self._ask(self.client.upsert, structs, wait=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove clips."""
        self._ask(self.client.delete, models.PointIdsList(points=list(ids)), wait=True)

    # Reading --------------------------------------------------------------------------------------------------------

    def asked(self, text: torch.Tensor, seen: Sequence[bool], options: ScoreOptions) -> Asked:
        """The vector of a text. Another calibration proves nothing."""
        query = np.append(text.float().numpy(), np.float32(1))
        held = calibration_of(self.about().metadata)
        is_same = all(getattr(options, name) == held.get(name) for name in CALIBRATION)
        # Without offsets, the rows only bound scores above 0.
        lowest = 0.0 if options.modality_offset is None else -math.inf
        return Asked(query, is_same, lowest)

    def try_out(self) -> None:
        """Request a list."""
        self.nearest(np.zeros(self.about().dim + 1, np.float32), 1, None)

    def nearest(self, query: np.ndarray, limit: int, where: models.Filter | None) -> list[tuple[str, float]]:
        """The clips with the highest bounds, and the bounds, in order; complete if the engine's list is."""
        params = None
        if not self.is_local:
            # If the engine quantizes vectors: ignore that in an exact search, which must be complete; otherwise read
            # more candidates and rescore them with the full vectors.
            exactly = models.QuantizationSearchParams(ignore=True)
            nearly = models.QuantizationSearchParams(rescore=True, oversampling=_OVERSAMPLING)
            params = models.SearchParams(
                exact=self.is_exact,
                hnsw_ef=None if self.is_exact else max(_WIDTH, limit),
                quantization=exactly if self.is_exact else nearly,
            )
        found = self._ask(
            self.client.query_points,
            query=[query.tolist()],
            using=BOUND,
            query_filter=where,
            search_params=params,
            limit=limit,
            with_payload=False,
        )
        return [(str(point.id), point.score) for point in found.points]

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """
        Read clips by their numbers; those that are gone are left out.

        Raises:
            DamagedError: a clip is not as it was written.
        """
        found: list[Point] = []
        for start in range(0, len(ids), _FETCHED_AT_ONCE):
            found += self._fetch(ids[start : start + _FETCHED_AT_ONCE])
        return found

    def _fetch(self, left: Sequence[str]) -> list[Point]:
        about, found = self.about(), []
        dtype = np.float16 if about.dtype == "float16" else np.float32
        for pause in (*_PAUSES[:3], None):
            records = self._ask(self.client.retrieve, left, with_payload=True, with_vectors=list(about.modalities))
            points = [(record.id, _point_of(record, about, dtype)) for record in records]
            found += [point for _, point in points if point is not None]
            left = [number for number, point in points if point is None]  # may be half-written
            if not left:
                return found
            if pause is not None:
                time.sleep(pause)
        raise self._damaged(left[0], len(left))


def _is_place(place: Any) -> bool:
    return type(place) is int and 0 <= place < _PLACES


def _is_name(name: Any) -> bool:
    try:
        return isinstance(name, str) and from_utf8(name) is not None
    except ValueError:
        return False


def _point_of(record: models.Record, about: About, dtype: type) -> Point | None:
    """A point, or `None` if it is not as it was written."""
    payload, embeds = dict(record.payload or {}), np.zeros((len(about.modalities), about.dim), dtype)
    digest, place = payload.pop("digest", None), payload.pop("place", None)
    try:
        for name in payload["has"]:
            embeds[about.modalities.index(name)] = record.vector[name]
        point = Point(payload, embeds, place, about.modalities)
        is_whole = (point.number, point.digest) == (str(record.id), digest)
    except (AttributeError, KeyError, TypeError, ValueError):  # not written by `push`
        return None
    return point if is_whole and _is_place(place) else None


def _message_of(error: Exception) -> str:
    """The message of an error in one line, without a key that it may contain."""
    content = getattr(error, "content", b"") or b""
    text = content.decode("utf-8", "replace") or str(getattr(error, "source", error))
    key = os.environ.get(KEY_VARIABLE, "").strip()
    for form in (key, json.dumps(key)[1:-1], repr(key)[1:-1]):
        text = text.replace(form, "...") if form else text
    text = " ".join(text.split())
    return f"{getattr(error, 'status_code', '')} {text[:300]}".strip()


def _is_any(name: str, values: Sequence[str]) -> models.FieldCondition:
    return models.FieldCondition(key=name, match=models.MatchAny(any=list(values)))


def _having(wanted: Filter) -> models.Filter:
    return models.Filter(
        must=[_is_any("has", [name]) for name in wanted.has],
        must_not=[_is_any("has", [name]) for name in wanted.lacks],
    )


def _between(wanted: Filter) -> dict[str, models.FieldCondition]:
    """The conditions on a clip's length and date, which may be unknown."""
    ranges = {}
    if wanted.min_duration is not None or wanted.max_duration is not None:
        ranges["seconds"] = models.Range(gte=wanted.min_duration, lte=wanted.max_duration)
    if wanted.after is not None or wanted.before is not None:
        first, last = (moment and (moment - _EPOCH) // _MICROSECOND for moment in (wanted.after, wanted.before))
        ranges["changed"] = models.Range(gte=first, lt=last)
    return {name: models.FieldCondition(key=name, range=between) for name, between in ranges.items()}


def condition_of(
    wanted: Filter | None,
    modalities: Sequence[str] | None = None,
    without: str | None = None,
    outside: Sequence[str] = (),
) -> models.Filter | None:
    """
    Make the engine's condition on hits: they match a filter, have at least one of these modalities, and are neither
    the clip with the number `without` nor clips of the files `outside`.

    Raises:
        ValueError: the filter has patterns of paths or words, for which an engine has no index.
    """
    wanted = wanted or Filter()
    if wanted.paths:
        raise UnsupportedError(
            "This engine does not support patterns of paths. Omit them, or search the gallery in its folder."
        )
    if wanted.words:
        raise UnsupportedError(
            "This engine does not support words in quotation marks. Omit the marks, or search the gallery in its "
            "folder."
        )
    having = _having(wanted)
    must = [] if modalities is None else [_is_any("has", modalities)]
    must += [*having.must, *_between(wanted).values()]
    must_not = having.must_not + ([] if without is None else [models.HasIdCondition(has_id=[without])])
    must_not += [_is_any("path", list(map(to_utf8, outside)))] if outside else []
    return models.Filter(must=must, must_not=must_not) if must or must_not else None


def conditions_of_unknown(wanted: Filter) -> dict[str, models.Filter]:
    """Conditions for the clips that a filter leaves out only because a fact is unknown, by that fact."""
    having, between = _having(wanted), _between(wanted)
    empty = {name: models.IsEmptyCondition(is_empty=models.PayloadField(key=name)) for name in between}
    found = {}
    for name in between:
        others = [models.Filter(should=[between[other], empty[other]]) for other in between if other != name]
        must = [*having.must, empty[name], *others]
        found[_UNKNOWN[name]] = models.Filter(must=must, must_not=having.must_not)
    return found


__all__ = ["BOUND", "Collection", "condition_of", "conditions_of_unknown", "connect"]
