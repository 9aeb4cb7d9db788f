"""What goes over the wire: the questions and answers of the HTTP API."""

from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from gallery.filters import Filter
from gallery.hits import Certainty
from gallery.words import split_query

Modality = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
_Modalities = Annotated[list[Modality], Field(max_length=64)]
Kind = Literal["video", "audio", "image"]

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-4, 1e4
MOST_HITS = 1000
MOST_SKIPPED = 10**9
LONGEST_QUERY = 2000
LONGEST_NAME = 1000
LONGEST_KEY = 100
MOST_SECONDS = 1e9
MOST_PATHS, LONGEST_PATH = 8, 500
MOST_WORDS, LONGEST_WORDS = 8, 500
MOST_TEXTS = 64
_LONGEST_MOMENT = 50


def _text(value: object) -> object:
    if not (value is None or (isinstance(value, str) and "-" in value and len(value) <= _LONGEST_MOMENT)):
        raise ValueError("a date as 2026-01-31 was expected, or a date and a time as 2026-01-31T18:00")
    return value


# The filter reads it: pydantic would take midnight in any zone for a day, without the zone.
_Moment = Annotated[
    str | None,
    BeforeValidator(_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date"},
                {"type": "string", "format": "date-time"},
                {"type": "null"},
            ]
        }
    ),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Wanted(_Strict):
    """What a clip must fulfil to be found, all of it. What is not known of a clip cannot fulfil anything."""

    paths: list[Annotated[str, Field(min_length=1, max_length=LONGEST_PATH)]] = Field(
        [], max_length=MOST_PATHS, description="Patterns of which its path must fit one: `holiday/**`, `*.mkv`."
    )
    min_duration: float | None = Field(None, ge=0, le=MOST_SECONDS, description="Seconds; of a window its own.")
    max_duration: float | None = Field(None, ge=0, le=MOST_SECONDS)
    after: _Moment = Field(None, description="Its file was changed then or later; UTC without a zone.")
    before: _Moment = Field(None, description="Its file was changed before.")
    has: _Modalities = Field([], description="Modalities that it must have.")
    lacks: _Modalities = Field([], description="Modalities that it must not have.")
    words: list[Annotated[str, Field(min_length=1, max_length=LONGEST_WORDS)]] = Field(
        [], max_length=MOST_WORDS, description="Words or phrases that must be said in it, or stand in its other texts."
    )

    @model_validator(mode="after")
    def _can_be_fulfilled(self) -> Self:
        self.filter()
        return self

    def filter(self) -> Filter:
        """As the gallery takes it; a ValueError where nothing could fulfil it."""
        return Filter(**dict(self))


FilterName = Literal["paths", "min_duration", "max_duration", "after", "before", "has", "lacks", "words"]
FILTERS: tuple[FilterName, ...] = get_args(FilterName)


class Chosen(_Strict):
    """Which clips are told."""

    k: int = Field(10, ge=1, le=MOST_HITS, description="How many at most.")
    filter: Wanted | None = Field(None, description="Which clips may be told; all where it is left out.")
    per_file: bool = Field(
        False, description="Of a gallery of windows: each file once, by its best window, in a list by its first."
    )
    unique: bool = Field(False, description="Files of the same content once: exact copies are told as `copies`.")
    within: str | None = Field(
        None, max_length=LONGEST_KEY, description="Key of a clip: only clips of the same file are told, its windows."
    )

    @property
    def allowed(self) -> Filter | None:
        """Which clips may be told, as the gallery takes it; `None` for all."""
        return None if self.filter is None else self.filter.filter()


class ListRequest(Chosen):
    """Clips by name."""

    skip: int = Field(0, ge=0, le=MOST_SKIPPED, description="How many before them are left out.")


class Asked(Chosen):
    """How a search is made, whatever is looked for."""

    temperature: float | None = Field(
        None,
        ge=LEAST_TEMPERATURE,
        le=MOST_TEMPERATURE,
        description="Temperature of the query's modality weights; the gallery's own where it is left out.",
    )
    modalities: Annotated[_Modalities, Field(min_length=1)] | None = Field(
        None, description="What is looked at, all where it is left out; clips that have none of it are no hits."
    )


class EmbedRequest(_Strict):
    """Queries whose vectors are wanted."""

    texts: list[Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY)]] = Field(
        min_length=1, max_length=MOST_TEXTS, description="What to embed."
    )
    fingerprint: str | None = Field(None, max_length=64, description="Of the model that must do it.")


class EmbedAnswer(BaseModel):
    """Vectors of queries."""

    vectors: list[list[float] | list[list[float]]] = Field(
        description="Of each text, of unit norm; of some models one for each modality."
    )
    method: str = Field(description="The score of the model.")
    learned: dict[str, float] = Field(description="What the model has learned of it.")


class SearchRequest(Asked):
    """A query in words."""

    query: str = Field(
        min_length=1,
        max_length=LONGEST_QUERY,
        description="What to look for; what it has in quotation marks must be said in a clip, as `filter.words`.",
    )

    @property
    def allowed(self) -> Filter | None:
        """Which clips may be told: also, those in which is said what the query has in quotation marks."""
        allowed, (_, words) = super().allowed, split_query(self.query)
        return (allowed or Filter()).saying(words) if words else allowed


class LikeRequest(Asked):
    """A clip of an earlier answer, in place of a query."""

    key: str = Field(max_length=LONGEST_KEY, description="Of a hit of an earlier answer.")


class Found(BaseModel):
    """A clip that was found, or is listed."""

    rank: int
    key: str = Field(description="Names the clip to `/api/like` and `/api/clips`.")
    name: str = Field(description="Of the file, without the folders that all files share.")
    score: float | None = Field(description="None of a clip that is listed.")
    weights: dict[Modality, float] | None = Field(description="What made it match; none for a score without weights.")
    presence: dict[Modality, bool] = Field(description="What the clip has.")
    problems: list[str] = Field(description="What could not be read when it was embedded, and counts as absent.")
    start: float | None = Field(description="Of a window of a longer file, in seconds.")
    stop: float | None = Field(description="Of a window; none for one that goes on to the end of the file.")
    kind: Kind | None = Field(description="How to play it; none where there is no file that can be played.")
    media: str | None = Field(description="Where to play it from.")
    captions: str | None = Field(description="Where its subtitles may be had, if it has some, as WebVTT.")
    words: str | None = Field(description="Where to ask what is said in it, and stands in its other texts.")
    still: str | None = Field(description="Where a small picture of it may be had, if there is one, as JPEG.")
    copies: list[str] = Field(description="Names of clips of the same content, where such are told once.")
    num_windows: int | None = Field(
        None, description="Of its file in the gallery, where each file is told once, and it is known."
    )


class Said(BaseModel):
    """Words of a clip."""

    start: float = Field(description="Second of the file.")
    stop: float
    text: str
    is_asked: bool = Field(description="Whether words of the query are among them.")
    marks: list[tuple[int, int]] = Field(
        description="Where what the query has in quotation marks stands: from which character to which."
    )


class Listing(BaseModel):
    """Clips by name."""

    hits: list[Found]
    num_clips: int = Field(description="In the gallery.")
    num_allowed: int = Field(description="Of these, the clips that could be told: all, or what fulfils the filter.")
    num_files: int | None = Field(
        None, description="Where each file is told once, and it is known: in the gallery, in a list those it has."
    )
    unknown: dict[Literal["duration", "date", "words"], int] = Field(
        description="How many clips the filter left out because what it asks for is not known of them."
    )
    note: str | None = Field(
        None, description="Why there are no clips, where there are none, or that none matches well."
    )


class Answer(Listing):
    """The clips found, best first."""

    temperature: float | Literal["inf"] = Field(description="With which modalities were weighed.")
    num_scored: int = Field(description="Clips that were scored in full; `certainty` tells what is known of others.")
    estimated: bool = Field(description="Whether the first two are estimates, as a vector engine makes of many clips.")
    exact: bool = Field(description="Whether no clip that could be a hit is better than those told.")
    matches_well: bool | None = Field(
        description="Whether the best one scores as relevant ones do; none where that was not fitted to such a search."
    )
    certainty: Certainty = Field(
        description="Of a vector engine, its index may have missed clips, or there may be better ones that were not "
        "scored."
    )
    seconds: float = Field(description="Taken to answer, without the time that the request waited.")


class About(BaseModel):
    """What is served."""

    name: str
    num_clips: int
    share: dict[Modality, float] = Field(description="Of the clips that have the modality.")
    estimated: bool = Field(description="Whether these are estimates, as a vector engine makes of many clips.")
    model: str | None
    method: str = Field(description="The score.")
    has_temperature: bool = Field(description="Whether the score weighs modalities by the query.")
    temperature: float | Literal["inf"] = Field(description="The gallery's own.")
    segment: float | None = Field(description="Seconds of a window, of a gallery of windows.")
    filters: list[FilterName] = Field(description="What clips can be filtered by.")
    lists: bool = Field(description="Whether clips can be listed by name.")
    copies: bool = Field(description="Whether it is known which clips are exact copies.")
    uploads: bool = Field(description="Whether files can be added.")
    most_bytes: int = Field(description="That an uploaded file may have.")
    extensions: list[str] = Field(description="Of files that can be uploaded.")
    problem: str | None = Field(description="Why the gallery as it is now is not what is served.")


class Upload(BaseModel):
    """A file on its way into the gallery."""

    id: str = Field(description="By which it is asked for and removed; the same for the same file.")
    name: str
    state: Literal["waiting", "embedding", "done", "failed", "removing", "removed"]
    ahead: int = Field(0, description="Files that are embedded before this one.")
    kept: bool = Field(True, description="Whether the service has the file.")
    clips: int = Field(0, description="That it became: one, or a window each.")
    problems: list[str] = Field([], description="What could not be read.")
    error: str | None = Field(None, description="Why it is not in the gallery, why it still is, or what it waits for.")


class Problem(BaseModel):
    """The body of every answer that is an error."""

    error: str


__all__ = [
    "FILTERS",
    "About",
    "Answer",
    "Asked",
    "FilterName",
    "Found",
    "Kind",
    "LikeRequest",
    "ListRequest",
    "Listing",
    "Modality",
    "Problem",
    "Said",
    "SearchRequest",
    "Upload",
    "Wanted",
]
