"""Clips as stored in engines, and the protocol [`Engine`], whose methods every engine has."""

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from gallery.columns import precision_of, to_utf8
from gallery.described import modalities_in
from gallery.exact.bounds import DETAIL
from gallery.filters import Filter
from modeling_scalar.scores_scalar import MIN_NORM, ScoreOptions

from .errors import DamagedError, ForeignError

MIN_CLIP_NORM = MIN_NORM[torch.float32]
"""The minimum that the norm of a centroid is clamped to, as in every gallery."""

FORMAT = 1
_NAMES = uuid.UUID("6f6a1e39-6c52-5c0e-9d6f-8a2f6f9d1b51")  # namespace of the numbers of points


@dataclass(frozen=True, eq=False)
class Point:
    """
    A clip as stored in the engine.

    Args:
        payload (`dict`): `clip_id`, `has`, `path`, `part`, and if known `seconds`, its length rounded to microseconds,
            and `changed`, the modification time of its file in microseconds since 1970. Engines round numbers of more
            than 15 digits.
        modality_embeds (`np.ndarray` of shape `(M, D)`): as stored, zero where absent.
        place (`int`): clips with equal scores are ordered by place.
        modalities (`tuple` of `str`): the names of the M vectors.
    """

    payload: dict[str, Any]
    modality_embeds: np.ndarray
    place: int
    modalities: tuple[str, ...]

    @property
    def number(self) -> str:
        """Its identifier in the engine, a UUID."""
        return point_id(self.payload["part"], self.payload["clip_id"])

    @property
    def modality_mask(self) -> list[bool]:
        """For each modality, whether the clip has it."""
        return [name in self.payload["has"] for name in self.modalities]

    @property
    def digest(self) -> str:
        """A hash over everything but the place."""
        facts = json.dumps(self.payload, sort_keys=True)
        return hashlib.blake2b(facts.encode() + b"\0" + self.modality_embeds.tobytes(), digest_size=16).hexdigest()


def point_id(part: str, clip_id: str) -> str:
    """The number of a clip's point, a UUID: always the same for the same name."""
    return str(uuid.uuid5(_NAMES, f"{part}\0{to_utf8(clip_id)}"))


@dataclass(frozen=True)
class About:
    """
    A description of a collection, from its metadata.

    Args:
        dim (`int`), dtype (`str`): of the vectors.
        metadata (`dict`): of the gallery: the model, and how it scores.
        detail (`int`): of the bounds, see [`~gallery.exact.bounds.bound_vectors`].
    """

    dim: int
    dtype: str
    metadata: dict[str, Any]
    detail: int = DETAIL

    @property
    def modalities(self) -> tuple[str, ...]:
        """The names of each clip's vectors."""
        return modalities_in(self.metadata)

    def as_metadata(self) -> dict[str, Any]:
        """The form stored in a collection's metadata; the gallery's metadata is text, as engines round numbers."""
        return {"scalar": {"format": FORMAT} | vars(self) | {"metadata": json.dumps(self.metadata)}}

    def differences(self, other: "About") -> list[str]:
        """The fields that prevent two galleries from sharing a collection."""
        mine, others = ({**vars(about), **about.metadata} for about in (self, other))
        scores = [
            {key: value for key, value in (about.get("score_options") or {}).items() if key != "query_temperature"}
            for about in (mine, others)
        ]
        names = ["dim", "dtype", "fingerprint", "segment"]
        names += [] if mine.get("fingerprint") else ["model"]  # nothing else is known of the model
        found = [name for name in names if mine.get(name) != others.get(name)]
        found += [] if self.modalities == other.modalities else ["modalities"]
        return found + (["score_options"] if scores[0] != scores[1] else [])


class Asked(NamedTuple):
    """
    A query in the form of an engine.

    Args:
        query: what [`Engine.nearest`] takes.
        is_bounded (`bool`): whether the numbers in its list are upper bounds of the scores.
        lowest (`float`): numbers below this bound nothing.
    """

    query: Any
    is_bounded: bool
    lowest: float


@dataclass(frozen=True)
class Counts:
    """The numbers of all clips, of those allowed, and of those left out because a fact is unknown; whether they are
    estimates; and a sentence on how they were counted."""

    num_clips: int
    num_allowed: int
    unknown: dict[str, int] = field(default_factory=dict)
    is_estimate: bool = False
    note: str | None = None


class Engine(Protocol):
    """
    An engine that holds a gallery, or will hold one. Safe to use from several threads.

    Conditions on hits are objects of its own kind, made by `condition`; `None` allows every clip. Errors are those of
    [`search.engine.errors`].
    """

    name: str
    """The name in messages and on pages."""
    is_exact: bool
    """Whether its lists are complete."""
    growth: int
    """The factor by which the next list is longer, if one proves nothing."""
    is_limited: bool
    """Whether bounds are so loose that lists can become too long, and a query gives up."""
    takes_any_query: bool
    """Whether it bounds scores with any calibration."""
    no_filters: tuple[str, ...]
    """Fields of a [`~gallery.filters.Filter`] that it does not support."""
    points_at_once: int
    """The number of points written by one call."""

    def close(self) -> None:
        """Close the connection to the engine."""

    def exists(self) -> bool:
        """Whether the collection exists."""

    def about(self, is_new: bool = False) -> About:
        """Describe what it holds; query the engine again if `is_new`."""

    def create(self, about: About, num_shards: int | None = None, num_replicas: int | None = None) -> None:
        """Create it, empty."""

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the gallery."""

    def index_payload(self) -> None:
        """Create indexes for filters."""

    def writing(self) -> AbstractContextManager[Any]:
        """The context of a push."""

    def known(self, part: str) -> Iterator[tuple[str, str, int]]:
        """The number, hash and place of each clip of a part."""

    def put(self, points: Sequence[Point]) -> None:
        """Write clips; each one is replaced as a whole."""

    def remove(self, ids: Sequence[str]) -> None:
        """Remove clips."""

    def reading(self) -> AbstractContextManager[Any]:
        """The context of a query."""

    def condition(
        self,
        wanted: Filter | None,
        modalities: Sequence[str] | None = None,
        without: str | None = None,
        outside: Sequence[str] = (),
    ) -> Any:
        """Make a condition: clips match a filter, have at least one of these modalities, and are neither the clip with
        the number `without` nor clips of the files `outside`."""

    def counts(self, wanted: Filter | None, without: str | None = None) -> Counts:
        """Count all clips, and those that a filter allows, without one clip."""

    def __len__(self) -> int: ...

    def count(self, where: Any) -> int:
        """The number of clips that meet a condition."""

    def is_estimate(self, count: int) -> bool:
        """Whether a count of this size is an estimate."""

    def asked(self, text: torch.Tensor, seen: Sequence[bool], options: ScoreOptions) -> Asked:
        """Prepare a query `(D,)` that uses the modalities `seen`."""

    def nearest(self, query: Any, limit: int, where: Any) -> list[tuple[str, float]]:
        """The numbers of the clips with the highest bounds, and the bounds."""

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """Read clips by their numbers; those that are gone are left out."""

    def of_files(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """The number and name of each clip of some files."""

    def path_of(self, number: str) -> str | None:
        """The file of a clip; `None` if the clip is gone."""

    def try_out(self) -> None:
        """Raise an error if the engine cannot search, even if it can describe what it holds."""


def about_from(stored: Any, name: str) -> About:
    """Read the metadata of a collection; a [`ForeignError`] if they have another format."""
    try:
        metadata = stored["metadata"]  # may also be stored as an object
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        about = About(stored["dim"], stored["dtype"], dict(metadata), stored["detail"])
        numbers = all(type(number) is int and number > 0 for number in (about.dim, about.detail))
        names = all(isinstance(modality, str) for modality in about.modalities)
        options = isinstance(about.metadata.get("score_options") or {}, dict)
        known = stored["format"] == FORMAT and numbers and names and options and bool(precision_of(about.dtype))
    except (TypeError, KeyError, ValueError, RecursionError):
        known = False
    if not known:
        raise foreign(name)
    return about


def foreign(name: str) -> ForeignError:
    """The error that a collection has another format."""
    return ForeignError(f"{name} was not made by `scalar push` of this version. Choose another name.")


def damaged(name: str, number: str, count: int = 1) -> DamagedError:
    """The error that clips are damaged."""
    return DamagedError(
        f"{count} clips of {name} are not as they were pushed, such as {number}. Push the gallery again with "
        "--rewrite."
    )


__all__ = [
    "FORMAT",
    "MIN_CLIP_NORM",
    "About",
    "Asked",
    "Counts",
    "Engine",
    "Point",
    "about_from",
    "damaged",
    "foreign",
    "point_id",
]
