"""The requests and responses of the HTTP API."""

import re
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from scalar_retrieval.gallery.filters import Filter, split_query

Modality = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Kind = Literal["video", "audio", "image"]

LONGEST_QUERY = 2000
LONGEST_KEY = 100


def _without_surrogates(value: object) -> object:
    return re.sub("[\ud800-\udfff]", "\0", value) if isinstance(value, str) else value


# No text of a gallery has a character that is half of another one, nor NUL: a filter by it finds nothing.
_Text = Annotated[str, BeforeValidator(_without_surrogates)]
# Any names, because the gallery answers an unknown one with those that it has.
_Modalities = Annotated[list[Annotated[_Text, Field(max_length=64)]], Field(max_length=64)]
Modalities = Annotated[_Modalities, Field(min_length=1)]

# Parsed by the filter: pydantic would read midnight in any time zone as a day without a zone.
_Moment = Annotated[str, Field(max_length=50)] | None


# Requests ------------------------------------------------------------------------------------------------------------


class Strict(BaseModel):
    """A request, which has no other fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ClipFilter(Strict):
    """Conditions on clips, all of which must hold. A clip whose fact is unknown does not meet its condition."""

    paths: list[Annotated[_Text, Field(min_length=1, max_length=500)]] = Field(
        [], max_length=8, description="Patterns, one of which must match its path: `holiday/**`, `*.mkv`."
    )
    min_duration: float | None = Field(None, ge=0, le=1e9, description="Seconds, for a window its own length.")
    max_duration: float | None = Field(None, ge=0, le=1e9)
    after: _Moment = Field(
        None,
        description="Its file was recorded, or if that is unknown, changed then or later: `2026-01-31`, "
        "`2026-01-31T18:00`; UTC without a zone.",
    )
    before: _Moment = Field(None, description="Its file was recorded, or changed, before this time.")
    has: _Modalities = Field([], description="Modalities that it must have.")
    lacks: _Modalities = Field([], description="Modalities that it must not have.")
    words: list[Annotated[_Text, Field(min_length=1, max_length=500)]] = Field(
        [], max_length=8, description="Words or phrases that must be in its speech or its other texts."
    )

    @model_validator(mode="after")
    def _can_be_fulfilled(self) -> Self:
        self.filter()
        return self

    def filter(self) -> Filter:
        """The gallery's filter; a ValueError if no clip could match it."""
        return Filter(**dict(self))


class ClipOptions(Strict):
    """The selection of clips."""

    k: int = Field(10, ge=1, le=1000, description="Maximum number of hits.")
    filter: ClipFilter | None = Field(None, description="Filter on clips; all clips by default.")
    per_file: bool = Field(
        False, description="In a gallery of windows: each file once, by its best window, in a list by its first."
    )
    unique: bool = Field(False, description="Identical files once: exact copies are returned as `copies`.")
    within: str | None = Field(
        None, max_length=LONGEST_KEY, description="Key of a clip: return only clips of the same file, its windows."
    )

    @property
    def allowed(self) -> Filter:
        """The gallery's filter on clips."""
        return Filter() if self.filter is None else self.filter.filter()


class ListRequest(ClipOptions):
    """Clips by name."""

    skip: int = Field(0, ge=0, le=10**9, description="Number of clips to skip before them.")


class SearchOptions(ClipOptions):
    """Options of every search."""

    query_temperature: float | None = Field(
        None,
        ge=1e-4,
        le=1e4,
        description="Temperature of the modality weights; the gallery's own by default.",
    )
    modalities: Modalities | None = Field(
        None, description="Modalities to search in, by default all; clips that have none of them are no hits."
    )
    sort: Literal["score", "date"] = Field(
        "score", description="Order of the hits, which are always chosen by score; `date`: newest first."
    )


class SearchRequest(SearchOptions):
    """A text query."""

    query: str = Field(
        min_length=1,
        max_length=LONGEST_QUERY,
        description="The query; words in quotation marks must be in a clip, as with `filter.words`.",
    )

    @property
    def allowed(self) -> Filter:
        """The gallery's filter on clips, with the words that the query has in quotation marks."""
        _, words = split_query(self.query)
        return super().allowed.with_words(words)


class LikeRequest(SearchOptions):
    """A clip of an earlier answer as the query."""

    key: str = Field(max_length=LONGEST_KEY, description="Key of a hit of an earlier answer.")


# Responses -----------------------------------------------------------------------------------------------------------


class ClipResult(BaseModel):
    """A clip that was found or listed."""

    rank: int
    key: str = Field(description="Identifies the clip for `/api/like` and `/api/clips`.")
    name: str = Field(description="Name of the file, without the folders that all files share.")
    score: float | None = Field(description="None for a listed clip.")
    weights: dict[Modality, float] | None = Field(description="Weight of each modality; none for other scores.")
    presence: dict[Modality, bool] = Field(description="Which modalities the clip has.")
    problems: list[str] = Field(description="What could not be read when it was embedded, and counts as absent.")
    start: float | None = Field(description="Start of a window of a longer file, in seconds.")
    stop: float | None = Field(description="End of a window; none if it ends with the file.")
    date: str | None = Field(description="When its file was recorded, in UTC.")
    is_recorded: bool = Field(description="Whether that is so; else the date is that of the file's last change.")
    place: list[float] | None = Field(description="Where it was recorded: latitude, longitude in degrees.")
    kind: Kind | None = Field(description="How to play it; none if there is no playable file.")
    media: str | None = Field(description="URL of the media file.")
    captions: str | None = Field(description="URL of its subtitles as WebVTT, if any.")
    words: str | None = Field(description="URL of its speech and other texts.")
    said: list["Line"] | None = Field(
        None,
        description="Of a search: its words that best match the query; none if they are not read yet, see `words`.",
    )
    still: str | None = Field(
        description="URL of a small JPEG of it; of a video, it may be made when it is requested."
    )
    loudness: str | None = Field(description="Of a sound: URL of its loudness over time, for a picture of it.")
    heard: bool = Field(description="Whether what it has of subtitles is speech recognised by machine.")
    copies: list[str] = Field(description="Names of clips with the same content, if these are returned once.")
    num_windows: int | None = Field(
        None, description="Number of windows of its file, if each file is returned once, and it is known."
    )


WordsSource = Literal["subtitle", "speech", "screen"]


class Line(BaseModel):
    """Words of a clip."""

    start: float = Field(description="Position in the file, in seconds.")
    stop: float
    text: str
    source: WordsSource = Field(
        description="Subtitles, or words that were recognised by machine: in speech or on the screen."
    )
    is_asked: bool = Field(description="Whether they include words of the query.")
    marks: list[tuple[int, int]] = Field(
        description="Positions of the words that the query has in quotation marks: first character, end."
    )


class Listing(BaseModel):
    """Clips by name."""

    hits: list[ClipResult]
    num_clips: int = Field(description="Number of clips in the gallery.")
    num_allowed: int = Field(description="Number of clips that match the filter, or of all clips without one.")
    num_files: int | None = Field(
        None, description="If each file is returned once, and if known: files in the gallery, or in the list."
    )
    unknown: dict[Literal["duration", "date", "words"], int] = Field(
        description="Number of clips that the filter left out because the fact is unknown."
    )
    note: str | None = Field(None, description="Why there are no clips, if there are none, or that none matches well.")


class SearchAnswer(Listing):
    """The clips found, best first, or newest first."""

    query_temperature: float | Literal["inf"] = Field(description="Temperature of the modality weights.")
    num_scored: int = Field(description="Number of clips scored in full; the others are proved to be no better.")
    matches_well: bool | None = Field(
        description="Whether the best clip scores like a relevant one; none if that was not fitted to such a search."
    )
    seconds: float = Field(description="Time of the search, without waiting.")


class About(BaseModel):
    """The gallery that is served."""

    name: str
    num_clips: int
    num_files: int | None = Field(description="Number of files that have clips, if known.")
    duration: float | None = Field(description="Seconds that these last, as far as it is known.")
    oldest: datetime | None = Field(description="When the oldest file was recorded, or changed, if any date is known.")
    newest: datetime | None = Field(description="When the newest one was.")
    num_changed: int = Field(description="Number of files of which only the time of change is known.")
    share: dict[Modality, float] = Field(description="Fraction of the clips that have the modality.")
    heard: float = Field(description="Fraction of the clips whose subtitles are speech recognised by machine.")
    model: str | None
    limits: str | None = Field(description="What its model finds, if that is less than one would expect.")
    advice: str | None = Field(description="What finds more, for whoever runs the service.")
    method: str = Field(description="The score.")
    has_query_temperature: bool = Field(description="Whether the score weighs modalities by the query.")
    query_temperature: float | Literal["inf"] = Field(description="The default temperature of the gallery.")
    segment: float | None = Field(description="Length of windows in seconds, in a gallery of windows.")
    lists: bool = Field(description="Whether clips can be listed by name.")
    copies: bool = Field(description="Whether it is known which clips are exact copies.")
    problem: str | None = Field(description="Why the current state of the gallery is not served.")


class Problem(BaseModel):
    """The body of every error response."""

    error: str


__all__ = [
    "About",
    "ClipFilter",
    "ClipResult",
    "Kind",
    "LikeRequest",
    "Line",
    "ListRequest",
    "Listing",
    "Modalities",
    "Problem",
    "SearchAnswer",
    "SearchOptions",
    "SearchRequest",
    "Strict",
]
