"""Which clips a search may find, by facts other than their vectors: path, duration, date, modalities, and words.

A clip for which a fact is unknown cannot meet a condition on it: such clips are left out, and counted.
"""

import fnmatch
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from scalar_retrieval.commands.schema import check_value

from .decoding.worker import nanoseconds_of
from .store.windows import WINDOW
from .words.folding import folded

if TYPE_CHECKING:
    from .store.contents import Contents
    from .words.cues import ClipWords

# Facts that may be unknown for a clip
DURATION = "duration"
DATE = "date"
WORDS = "words"

NO_DATE = -(2**63)
"""Stands for an unknown time."""
_LONGEST = 4096  # characters of a path
_TOKENS = re.compile(r"(?s)(?<![^/])\*\*/|\*+|\?|\[!?\]?[^\]]*\]|.")
_FOLDERS = "(?:.*/)?"  # any number of folders
_NOTHING = r"[^\x00-\x{10ffff}]"  # a character that there is not


class ModalityError(ValueError):
    """The clips do not have the modalities that are requested."""


class PatternError(ValueError):
    """A path pattern is invalid."""


def _expression_of(token: str) -> str:
    """The regular expression of one token of a path pattern; a character or a set of some, as `fnmatch` reads it."""
    if token.startswith("*"):
        return {"*": "[^/]*", "**/": _FOLDERS}.get(token, ".*")
    if token == "?":
        return "[^/]"
    expression = fnmatch.translate(token)[4:-3]  # without flags and end
    if expression.startswith("(?"):
        return _NOTHING
    # The complement of a set does not contain the separator of folders, either.
    if expression.startswith("[^"):
        return f"[^/{expression[2:]}"
    return expression


def text_pattern_of(glob: str) -> str | None:
    """
    Translate a path pattern, see [`Filter`].

    Returns:
        A regular expression that matches what the pattern does, between `^` and `$`; `None` if the pattern contains
        what no path does, NUL or a lone surrogate, and so matches nothing.

    Raises:
        PatternError: it is empty or too long.
    """
    if not glob.strip("/") or len(glob) > _LONGEST:
        raise PatternError(f"A path pattern must have 1 to {_LONGEST} characters, like 'holiday/*', got {glob!r:.80}.")
    try:
        glob.encode()
        path = os.path.expanduser(glob)
    except ValueError:
        return None
    # A pattern that matches a folder matches all its content; one without a leading slash begins at any folder.
    below = "/.*" if path.endswith("/") else "(?:/.*)?"
    path = path.rstrip("/").removeprefix("./")
    above = "" if path.startswith("/") else _FOLDERS
    pattern = above + "".join(map(_expression_of, _TOKENS.findall(path))) + below
    return None if "\0" in pattern else pattern


def path_matcher(globs: Iterable[str]) -> Callable[[str], bool]:
    """A function that returns whether a path matches one of some patterns, see [`Filter`]; a ValueError if invalid."""
    patterns = []
    for glob in globs:
        pattern = text_pattern_of(glob)
        # What matches no character in RE2 is a syntax error in Python.
        if pattern is not None:
            patterns.append(re.compile(pattern.replace(_NOTHING, "(?!)"), re.DOTALL))
    return lambda path: any(pattern.fullmatch(path) for pattern in patterns)


def _moment(name: str, value: str | date | datetime | None) -> datetime | None:
    """A date, or a date and a time, as a moment; the default zone is UTC, the default time midnight."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(str(value).strip())  # dates and moments are written like that
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a date like 2026-01-31, or a date and a time like 2026-01-31T18:00, that exists in "
            f"UTC, got {value!r}."
        ) from error


@dataclass(frozen=True)
class Filter:
    """
    Conditions that a clip must meet, all of them, to be found.

    Args:
        paths (`str`, or several): patterns, one of which must match the path. `*` and `?` match within a folder or
            file name, `**` any number of folders, `[...]` one of some characters, as in `fnmatch`. A pattern without
            a leading `/` may match from any folder on: `holiday/*.mp4` means any folder of that name. A pattern that
            matches a folder matches everything in it.
        min_duration (`float`, *optional*), max_duration (`float`, *optional*): length of the clip or window in
            seconds, both included.
        after (`datetime` or `str`, *optional*), before (`datetime` or `str`, *optional*): when its file was recorded,
            or if that is unknown, when it, or the subtitle file next to it, was last changed: from `after` (included)
            to `before` (excluded). A date alone is its first moment; the default zone is UTC.
        has (`str`, or several), lacks (`str`, or several): modalities that the clip must have, and must not have.
        words (`str`, or several): words or phrases, all of which must be said in the clip or be in another of its
            texts; see [`~scalar_retrieval.gallery.words.folding`]. In a query, these are in quotation marks.

    Raises:
        ValueError: no clip could meet the conditions, or a value is invalid.
    """

    paths: str | Sequence[str] = ()
    min_duration: float | None = None
    max_duration: float | None = None
    after: datetime | str | None = None
    before: datetime | str | None = None
    has: str | Sequence[str] = ()
    lacks: str | Sequence[str] = ()
    words: str | Sequence[str] = ()

    def __post_init__(self):
        # Values in one form, so that equal filters are equal: a single text is a tuple of one, dates are moments.
        for name in ("paths", "has", "lacks", "words"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = (value,)
            object.__setattr__(self, name, tuple(value or ()))
        for name in ("after", "before"):
            object.__setattr__(self, name, _moment(name, getattr(self, name)))
        # Values that no clip could meet are refused here, before anything is read.
        for pattern in self.paths:
            text_pattern_of(pattern)
        for name in ("min_duration", "max_duration"):
            check_value(getattr(self, name), (None, "[0, inf)"), name)
        if None not in (self.min_duration, self.max_duration) and self.min_duration > self.max_duration:
            raise ValueError(
                f"No clip lasts at least {self.min_duration:g} and at most {self.max_duration:g} seconds. Swap them?"
            )
        if None not in (self.after, self.before) and self.after >= self.before:
            raise ValueError(f"No time is after {self.after} and before {self.before}. Swap them?")
        for word in self.words:
            if not folded(word):
                raise ValueError(f"`words` must be words or phrases, got {word!r}.")

    def check_modalities(self, modalities: Sequence[str]) -> None:
        """Raise a ValueError if unknown modalities are named, or if clips would have to lack all of them."""
        if not {*self.has, *self.lacks} <= set(modalities):
            raise ModalityError(
                f"`has` and `lacks` must name some of {tuple(modalities)}, got {self.has} and {self.lacks}."
            )
        if set(self.lacks) == set(modalities):
            raise ModalityError("Every clip has a modality: do not name all modalities in `lacks`.")

    def with_words(self, words: Iterable[str]) -> "Filter":
        """The same filter with further words."""
        return replace(self, words=tuple(dict.fromkeys((*self.words, *words))))

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition, so that every clip passes."""
        return self == Filter()


@dataclass(frozen=True, eq=False)
class Allowed:
    """
    The clips that meet a [`Filter`].

    Args:
        mask (`torch.BoolTensor` of shape `(N,)`): the clips, in gallery order.
        unknown (`dict[str, int]`): by `"duration"`, `"date"` and `"words"`, how many clips are left out because that
            fact is unknown, although they meet all conditions on known facts.
    """

    mask: torch.Tensor
    unknown: dict[str, int] = field(default_factory=dict)

    @cached_property
    def num_clips(self) -> int:
        """The number of clips that pass."""
        return int(self.mask.sum())


class ClipFacts:
    """
    What is known of the clips of a gallery, other than their vectors, column by column; each is read when needed.

    Args:
        gallery ([`~scalar_retrieval.gallery.store.contents.Contents`]): has clips.
        words ([`~scalar_retrieval.gallery.words.cues.ClipWords`], *optional*): the words in each clip.
    """

    def __init__(self, gallery: "Contents", words: "ClipWords | None" = None):
        self._gallery = gallery
        self._words = words
        self._names = gallery.clips.column("clip_id")
        self._files = gallery.file_rows

    @property
    def paths(self) -> pa.ChunkedArray:
        """The file of each clip, or the name of a clip without a file."""
        return self._gallery.paths

    @cached_property
    def _windows(self) -> pa.ChunkedArray | None:
        """The seconds of each clip, null for clips that are not windows; `None` if none are."""
        if not self._gallery.is_cut:
            return None
        # The (very few) files whose own names look like those of windows are no windows.
        found = pc.extract_regex(self._names, WINDOW.pattern)
        return pc.if_else(pc.equal(self.paths, self._names), pa.scalar(None, found.type), found)

    @cached_property
    def _rows_of_files(self) -> pa.Array:
        """For each clip the row of its file, null where that is not known."""
        return pc.index_in(self.paths, value_set=self._files.column("path").combine_chunks())

    @cached_property
    def seconds(self) -> torch.Tensor:
        """`torch.DoubleTensor` of shape `(N,)`: the length of each clip, rounded to microseconds, as engines round
        numbers of more than 15 digits; NaN where unknown."""
        seconds = self._gallery.clips.column("seconds")
        if self._windows is not None:
            seconds = pc.coalesce(pc.subtract(self._second("stop"), self._second("start")), seconds)
        return torch.from_numpy(np.round(pc.fill_null(seconds, math.nan).to_numpy(), 6))

    def _second(self, name: str) -> pa.ChunkedArray:
        texts = pc.struct_field(self._windows, name)
        return pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.float64())  # a group without a match

    def times(self, name: str) -> torch.Tensor:
        """`torch.LongTensor` of shape `(N,)`: a time of each clip's file, `recorded_ns` or `mtime_ns` of
        [`~scalar_retrieval.gallery.store.rows.MediaFile`]; the smallest integer where unknown."""
        times = self._files.column(name).combine_chunks()
        known = torch.from_numpy(pc.fill_null(pc.take(times, self._rows_of_files), 0).to_numpy().copy())
        return torch.where(known == 0, NO_DATE, known)

    @cached_property
    def dates(self) -> torch.Tensor:
        """`torch.LongTensor` of shape `(N,)`: nanoseconds from 1970 to the recording of each clip's file, or if that
        is unknown, to its last change; the smallest integer where both are unknown."""
        recorded = self.times("recorded_ns")
        return torch.where(recorded == NO_DATE, self.times("mtime_ns"), recorded)

    @cached_property
    def contents(self) -> tuple[np.ndarray, np.ndarray]:
        """A number for each clip, `(N,)`, equal for files with the same content (and windows at the same seconds);
        and the rows of clips that share theirs. A clip whose content is unknown shares none."""
        known = self._files.column("sha256").combine_chunks()
        hashes = pc.fill_null(pc.take(known, self._rows_of_files), "")
        # Windows of one file differ by where they start; where the content is unknown, the name takes its place.
        keys = hashes
        if self._windows is not None:
            keys = pc.binary_join_element_wise(hashes, pc.coalesce(pc.struct_field(self._windows, "start"), ""), "@")
        keys = pc.if_else(pc.equal(hashes, ""), self._names, keys)
        numbers = keys.combine_chunks().dictionary_encode().indices.to_numpy()
        return numbers, np.flatnonzero(np.bincount(numbers)[numbers] > 1)

    def _with_path(self, glob: str) -> torch.Tensor:
        """`torch.BoolTensor` of shape `(N,)`: the clips whose path matches a pattern, see [`Filter`]."""
        pattern = text_pattern_of(glob)
        if pattern is None:
            return torch.zeros(len(self.paths), dtype=torch.bool)
        try:
            # by RE2: its time grows only with the length of a name, for any pattern
            matches = pc.match_substring_regex(self.paths, f"(?s)^(?:{pattern})$")
        except pa.ArrowInvalid as error:
            raise PatternError(f"The path pattern {glob!r:.80} is invalid: {error}.") from error
        return torch.from_numpy(np.array(matches, dtype=bool))

    def allowed(self, wanted: Filter, among: torch.Tensor | None = None) -> Allowed:
        """The clips that meet a filter, of those `among` some, `(N,)`, if given; raises a ValueError if the filter
        names an unknown modality."""
        modalities = self._gallery.modalities
        present = self._gallery.modality_mask  # (N, M)
        wanted.check_modalities(modalities)
        mask = torch.ones(len(self._names), dtype=torch.bool)
        if among is not None:
            mask &= among

        # Facts that are always known
        if wanted.paths:
            mask &= torch.stack([self._with_path(glob) for glob in wanted.paths]).any(0)
        for name in wanted.has:
            mask &= present[:, modalities.index(name)]
        for name in wanted.lacks:
            mask &= ~present[:, modalities.index(name)]

        # Facts that may be unknown: such clips pass at first, to be counted if they meet everything else
        unknown = {}
        if wanted.min_duration is not None or wanted.max_duration is not None:
            unknown[DURATION] = self.seconds.isnan()
            least = -math.inf if wanted.min_duration is None else wanted.min_duration
            most = math.inf if wanted.max_duration is None else wanted.max_duration
            mask &= ((self.seconds >= least) & (self.seconds <= most)) | unknown[DURATION]
        if wanted.after is not None or wanted.before is not None:
            unknown[DATE] = self.dates == NO_DATE
        if wanted.after is not None:
            mask &= (self.dates >= nanoseconds_of(wanted.after)) | unknown[DATE]
        if wanted.before is not None:
            mask &= (self.dates < nanoseconds_of(wanted.before)) | unknown[DATE]
        for word in wanted.words:
            has_word, is_unknown = map(torch.from_numpy, self._words.clips_with(word))
            unknown[WORDS] = unknown.get(WORDS, False) | is_unknown
            mask &= has_word | is_unknown

        # All are counted before any is left out: a clip may lack several facts.
        left_out = {}
        for name, rows in unknown.items():
            count = int((mask & rows).sum())
            if count:
                left_out[name] = count
        for rows in unknown.values():
            mask &= ~rows
        return Allowed(mask, left_out)


__all__ = [
    "DATE",
    "DURATION",
    "NO_DATE",
    "WORDS",
    "Allowed",
    "ClipFacts",
    "Filter",
    "ModalityError",
    "PatternError",
    "path_matcher",
    "text_pattern_of",
]
