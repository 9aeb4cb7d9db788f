"""What is known of the clips of a gallery, and which of them meet a [`~scalar_retrieval.gallery.filters.Filter`].

A clip for which a fact is unknown cannot meet a condition on it: such clips are left out, and counted.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..decoding.worker import nanoseconds_of
from ..filters import DATE, DURATION, WORDS, Filter, PatternError, text_pattern_of
from ..store.windows import WINDOW

if TYPE_CHECKING:
    from ..store.contents import Contents
    from ..words.cues import ClipWords

NO_DATE = -(2**63)
"""Stands for an unknown time."""


@dataclass(frozen=True, eq=False)
class Allowed:
    """
    The clips that meet a [`~scalar_retrieval.gallery.filters.Filter`].

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
        """`torch.BoolTensor` of shape `(N,)`: the clips whose path matches a pattern, see [`text_pattern_of`]."""
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


__all__ = ["NO_DATE", "Allowed", "ClipFacts"]
