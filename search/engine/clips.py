"""Clips as engines hold them, and what every engine can be asked: a further one is a class with the methods of
[`Engine`].
"""

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
from gallery.described import modalities_told
from gallery.exact.bounds import DETAIL
from gallery.filters import Filter
from modeling_scalar.scores_scalar import MIN_NORM, ScoreOptions

from .errors import DamagedError

MIN_CLIP_NORM = MIN_NORM[torch.float32]
"""What the norm of a centroid is clamped to, as in every gallery."""

FORMAT = 1
_NAMES = uuid.UUID("6f6a1e39-6c52-5c0e-9d6f-8a2f6f9d1b51")  # of points: a name always gives the same


@dataclass(frozen=True, eq=False)
class Point:
    """
    A clip as the engine holds it.

    Args:
        payload (`dict`): `clip_id`, `has`, `path`, `part`, and where they are known `seconds`, how long it lasts, to
            the microsecond, and `changed`, when its file was changed, in microseconds from 1970. Engines give a number
            of more than 15 digits back as one near it.
        modality_embeds (`np.ndarray` of shape `(M, D)`): as stored, zero where absent.
        place (`int`): clips of equal scores stand in the order of their places.
        modalities (`tuple` of `str`): what the M vectors are called.
    """

    payload: dict[str, Any]
    modality_embeds: np.ndarray
    place: int
    modalities: tuple[str, ...]

    @property
    def number(self) -> str:
        """What the engine knows it by."""
        return point_id(self.payload["part"], self.payload["clip_id"])

    @property
    def modality_mask(self) -> list[bool]:
        """What the clip has."""
        return [name in self.payload["has"] for name in self.modalities]

    @property
    def digest(self) -> str:
        """A hash over all but the place."""
        facts = json.dumps(self.payload, sort_keys=True)
        return hashlib.blake2b(facts.encode() + b"\0" + self.modality_embeds.tobytes(), digest_size=16).hexdigest()


def point_id(part: str, clip_id: str) -> str:
    """The number of the point of a clip: always the same for the same name."""
    return str(uuid.uuid5(_NAMES, f"{part}\0{to_utf8(clip_id)}"))


@dataclass(frozen=True)
class About:
    """
    What a collection holds, as its metadata tell.

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
        """What the vectors of each clip are called."""
        return modalities_told(self.metadata)

    def told(self) -> dict[str, Any]:
        """As it stands in the metadata of a collection; that of the gallery as a text, as engines round numbers."""
        return {"scalar": {"format": FORMAT} | vars(self) | {"metadata": json.dumps(self.metadata)}}

    def differences(self, other: "About") -> list[str]:
        """What keeps two from lying in one collection."""
        mine, others = ({**vars(about), **about.metadata} for about in (self, other))
        scores = [
            {key: value for key, value in (about.get("score_options") or {}).items() if key != "query_temperature"}
            for about in (mine, others)
        ]
        names = ["dim", "dtype", "fingerprint", "segment"]
        names += [] if mine.get("fingerprint") else ["model"]  # of which nothing else is known
        found = [name for name in names if mine.get(name) != others.get(name)]
        found += [] if self.modalities == other.modalities else ["modalities"]
        return found + (["score_options"] if scores[0] != scores[1] else [])


class Asked(NamedTuple):
    """
    What an engine is asked for the list of a query.

    Args:
        queries (`list`): as [`Engine.nearest`] takes them, each with a list of its own.
        is_bounded (`bool`): whether no clip has a score above its number in the list.
        lowest (`float`): below which these numbers bound nothing.
    """

    queries: list[Any]
    is_bounded: bool
    lowest: float


@dataclass(frozen=True)
class Counts:
    """How many clips there are, may be found, and are left out as too little is known; whether that is estimated; and
    a sentence on who counted."""

    num_clips: int
    num_allowed: int
    unknown: dict[str, int] = field(default_factory=dict)
    is_estimate: bool = False
    note: str | None = None


class Engine(Protocol):
    """
    An engine that holds a gallery, whether that is there already or not; threads may ask it at once.

    What may be found is told by an object of its own kind, which `condition` makes; `None` is everything. Errors are
    those of [`search.engine.errors`].
    """

    name: str
    """What messages and pages call it."""
    is_exact: bool
    """Whether its lists are complete."""
    growth: int
    """How many times longer the next list is, where one proves nothing."""
    is_limited: bool
    """Whether bounds are so loose that lists may become too long, and a query gives up."""
    takes_any_query: bool
    """Whether it bounds scores of every calibration, and of texts with a vector for each modality."""
    no_filters: tuple[str, ...]
    """Fields of a [`~gallery.filters.Filter`] that it has no conditions for."""
    points_at_once: int
    """How many points are written by one call."""

    def close(self) -> None:
        """Let go of the engine."""

    def exists(self) -> bool:
        """Whether there is such a collection."""

    def about(self, is_new: bool = False) -> About:
        """What it holds; what the engine says now if `is_new`."""

    def create(self, about: About, num_shards: int | None = None, num_replicas: int | None = None) -> None:
        """Make it, empty."""

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Replace what is told of the gallery."""

    def index_payload(self) -> None:
        """Let the engine have an index of what filters ask for."""

    def writing(self) -> AbstractContextManager[Any]:
        """What a push happens in."""

    def known(self, part: str) -> Iterator[tuple[str, str, int]]:
        """The number, the hash and the place of each clip of a part."""

    def put(self, points: Sequence[Point]) -> None:
        """Write clips; each is replaced as a whole."""

    def remove(self, ids: Sequence[str]) -> None:
        """Take clips out."""

    def reading(self) -> AbstractContextManager[Any]:
        """What a query happens in."""

    def condition(
        self,
        wanted: Filter | None,
        modalities: Sequence[str] | None = None,
        without: str | None = None,
        outside: Sequence[str] = (),
    ) -> Any:
        """What a filter asks for, that a clip has some of these modalities, and all but one clip, named by its number,
        and those of some files."""

    def counts(self, wanted: Filter | None, without: str | None = None) -> Counts:
        """How many clips there are, and what is left of them by a filter, and without one clip."""

    def __len__(self) -> int: ...

    def count(self, where: Any) -> int:
        """How many clips fulfil a condition."""

    def is_estimate(self, count: int) -> bool:
        """Whether so many clips are not counted one by one."""

    def asked(self, text: torch.Tensor, seen: Sequence[bool], options: ScoreOptions) -> Asked:
        """What to ask for the list of a query `(D,)`, or `(M, D)`, that looks at some modalities."""

    def nearest(self, query: Any, limit: int, where: Any) -> list[tuple[str, float]]:
        """The clips of the highest bounds, by their numbers, and these."""

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        """Read clips by their numbers; those that are gone are left out."""

    def of_files(self, paths: Sequence[str]) -> list[tuple[str, str]]:
        """The number and the name of each clip of some files."""

    def path_of(self, number: str) -> str | None:
        """The file of a clip; `None` for one that is gone."""

    def try_out(self) -> None:
        """Raise an error unless the engine finds clips, and does not only tell what it holds."""


def about_told(told: Any, name: str) -> About:
    """What the metadata of a collection tell; a ValueError if they are not of this format."""
    try:
        metadata = told["metadata"]  # which earlier versions wrote as it is
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        about = About(told["dim"], told["dtype"], dict(metadata), told["detail"])
        numbers = all(type(number) is int and number > 0 for number in (about.dim, about.detail))
        known = told["format"] == FORMAT and numbers and bool(precision_of(about.dtype))
    except (TypeError, KeyError, ValueError):
        known = False
    if not known:
        raise ValueError(f"{name} was not made by `scalar push` of this version. Choose another name.")
    return about


def damaged(name: str, number: str, count: int = 1) -> DamagedError:
    """The error that clips are not as they were pushed."""
    return DamagedError(
        f"{count} clips of {name} are not as they were pushed, {number} for one. Push the gallery again with "
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
    "about_told",
    "damaged",
    "point_id",
]
