"""What the service sees of a gallery, wherever its clips lie: in a folder, or in a vector engine."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from commands.errors import plain
from gallery.gallery import Gallery
from gallery.hits import Hits
from gallery.windows import Place

from .media import kind_of
from .models import FILTERS, FilterName, Found, Modality


class UnknownClipError(ValueError):
    """No clip of the gallery has this key."""


class AwayError(OSError):
    """The gallery cannot be asked now: a sentence that everybody may read, and after how many seconds to ask again."""

    def __init__(self, sentence: str, seconds: int):
        super().__init__(sentence)
        self.seconds = seconds


class Known(NamedTuple):
    """What is known of a hit beside what it tells: its key, whether its file may be played, what could not be read,
    and how many windows of its file there are, if that is asked."""

    key: str
    is_here: bool = True
    problems: Sequence[str] = ()
    num_windows: int | None = None


class Summary(NamedTuple):
    """What is told of a gallery as a whole: also how many clips it has, of each modality the share that has it,
    whether these numbers are estimates, and why it is not as it should be, if it is not."""

    gallery: Gallery
    num_clips: int
    share: dict[Modality, float]
    is_estimate: bool = False
    problem: str | None = None


class View(ABC):
    """
    One state of a gallery.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it was opened.
    """

    def __init__(self, gallery: Gallery):
        self.gallery = gallery

    def search(self, **asked: Any) -> Hits:
        """The hits of one query: [`~gallery.gallery.Gallery.search`]."""
        found = self.gallery.search(**asked)
        return found if isinstance(found, Hits) else found[0]

    def is_estimate(self, count: int) -> bool:
        """Whether a number of clips is an estimate."""
        return False

    @abstractmethod
    def num_files(self, per_file: bool) -> int | None:
        """How many files there are, if that is what is told, and known; else `None`."""

    @abstractmethod
    def known(self, hits: Hits, per_file: bool) -> list[Known]:
        """What is known of hits."""

    def name_of(self, place: Place) -> str:
        """What a clip is called on the page."""
        return plain(place.path, "utf-8")

    def found(self, hits: Hits, per_file: bool = False) -> list[Found]:
        """Hits as they are told."""
        told = []
        for hit, known in zip(hits, self.known(hits, per_file), strict=True):
            place = hits.place_of(hit)
            kind = kind_of(place.path, hit.presence["video"]) if known.is_here else None
            told.append(
                Found(
                    rank=hit.rank,
                    key=known.key,
                    clip_id=plain(hit.clip_id, "utf-8"),
                    name=self.name_of(place),
                    score=hit.score,
                    weights=hit.weights,
                    presence=hit.presence,
                    problems=[plain(problem, "utf-8") for problem in known.problems],
                    start=place.start,
                    stop=place.stop,
                    kind=kind,
                    media=None if kind is None else f"api/clips/{known.key}/media",
                    num_windows=known.num_windows,
                )
            )
        return told


class Source(ABC):
    """
    Where a gallery is.

    Args:
        name (`str`): what the page calls it.
        model (`str`), fingerprint (`str`): the model that queries are embedded with, which it must name.
    """

    filters: tuple[FilterName, ...] = FILTERS
    """What clips may be filtered by."""
    why_no_uploads: str
    """Said to who sends a file although none is taken."""

    def __init__(self, name: str, model: str, fingerprint: str):
        self.name, self._model, self._fingerprint = name, model, fingerprint
        self.problem: str | None = None  # why what is there now is not what is served

    @abstractmethod
    def check_method(self, method: str) -> None:
        """Raise a ValueError unless what is there can be searched by a score."""

    @abstractmethod
    def view(self) -> View:
        """The state to answer from."""

    @abstractmethod
    def summary(self) -> Summary:
        """What is told of the gallery, even while it cannot be asked."""

    @abstractmethod
    def clip_of(self, key: str) -> tuple[View, str]:
        """The state, and the clip of a key in it, as `Gallery.search(like=...)` takes it."""

    @abstractmethod
    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""


__all__ = ["AwayError", "Known", "Source", "Summary", "UnknownClipError", "View"]
