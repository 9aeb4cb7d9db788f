"""Windows of long files: each is a clip, named by its file and its seconds.

`talk.mp4#t=30,60` is the part between these seconds, `talk.mp4#t=60` the rest of the file, as in URLs of media (W3C,
Media Fragments). A file that fits into one window is a clip under its own name. Windows have the same length, or end
where chapters or scenes do, see [`~scalar_retrieval.gallery.scenes`].
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

SEGMENT = "segment"
"""Metadata entry of a gallery of windows: the length of each, or its maximum, in seconds; None for whole files."""

SCENES = "scenes"
"""Metadata entry of a gallery whose windows end where chapters or scenes do."""

LEAST = 2.0
"""Minimum length in seconds of a scene that becomes a window: a shorter one is joined to the next one, or, if it is
the last, to the one before."""

LONGEST_SCENE = 60.0
"""Maximum length of a window that ends with a chapter or a scene, in seconds."""

UNFINISHED = "not all of its windows are embedded yet"
"""The reason recorded for a file until they are."""

PARTLY = "not all of its windows could be read: "
"""Beginning of the reason recorded for a file if only some of its windows could be read."""

NOTHING = "found none of "
"""Beginning of the reason recorded for a file that could be read, but has nothing to embed; the sources follow."""

SLIVER = 0.03  # seconds that no encoder uses: codecs add as much at the end
_REST = 1.0  # seconds; less is not a window of its own
_LABEL = re.compile(r"(.*) \[(\d+(?:\.\d+)?)(?: s to the end|-(\d+(?:\.\d+)?) s)\]", re.DOTALL)
WINDOW = re.compile(r"#t=(?P<start>\d+(?:\.\d+)?)(?:,(?P<stop>\d+(?:\.\d+)?))?$")
"""The end of the name of a window: its first and its last second."""

Window = tuple[float, float | None]
"""The start and end of a part of a file in seconds; None is the end of the file."""


class Place(NamedTuple):
    """What a clip is: a file, or the part of it between two seconds; a `stop` of None is the end."""

    path: str
    start: float | None = None
    stop: float | None = None

    @property
    def span(self) -> str | None:
        """The seconds in readable form."""
        if self.start is None:
            return None
        stop = " s to the end" if self.stop is None else f"-{_number(self.stop)} s"
        return f"{_number(self.start)}{stop}"


def _number(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def is_nothing(reason: str | None) -> bool:
    """Whether a file or window could be read, but nothing was found in it."""
    return reason is not None and reason.startswith(NOTHING)


def _windows_from(starts: list[float]) -> list[Window | None]:
    """Windows that begin at these seconds, the first of which is 0; `[None]`, the whole file, if it is one window."""
    if len(starts) == 1:
        return [None]
    # Rounded as in the names of clips, so that each window ends exactly where the next one begins.
    starts = [round(start, 3) for start in starts]
    return list(zip(starts, [*starts[1:], None], strict=True))


def windows_of(seconds: float | None, segment: float | None) -> list[Window | None]:
    """
    Cut a file into windows.

    Args:
        seconds (`float`, *optional*): length of the file, if known.
        segment (`float`, *optional*): length of a window.

    Returns:
        `list`: starts and ends in seconds, without gaps; the last window extends to the end of the file. None is
        longer than `segment` by an amount that an encoder could use; if less than a second remains for the last one,
        it shares the one before evenly. `[None]`, the whole file, if that is one window.
    """
    if segment is None or seconds is None:
        return [None]
    count = max(1, math.ceil((seconds - SLIVER) / segment))
    starts = [number * segment for number in range(count)]
    # The last two windows share what is left, if the last one would be too short.
    if count > 1 and seconds - starts[-1] < _REST:
        starts[-1] = (starts[-2] + seconds) / 2
    return _windows_from(starts)


def windows_at(cuts: Iterable[float], seconds: float, most: float) -> list[Window | None]:
    """
    Cut a file into windows at given places.

    Args:
        cuts (iterable of `float`): the seconds at which scenes begin, in their order.
        seconds (`float`): length of the file.
        most (`float`): maximum length of a window; longer scenes are split evenly into as few as possible.

    Returns:
        `list`: as from [`windows_of`]. Each has at least `LEAST` seconds, if the file has and `most` is twice that.
    """
    # Short scenes are joined.
    starts = [0.0]
    for cut in cuts:
        if cut >= starts[-1] + LEAST and cut <= seconds - LEAST:
            starts.append(cut)
    # Long ones are split.
    parts: list[float] = []
    for start, stop in pairwise([*starts, seconds]):
        count = max(1, math.ceil((stop - start - SLIVER) / most))
        for part in range(count):
            parts.append(start + part * (stop - start) / count)
    return _windows_from(parts)


def clip_id_of(path: str, window: Window | None) -> str:
    """Name a window of a file, or the whole file."""
    if window is None:
        return path
    start, stop = window
    clip_id = f"{path}#t={_number(start)}"
    if stop is not None:
        clip_id += f",{_number(stop)}"
    return clip_id


def clip_id_of_label(label: str) -> str | None:
    """The name of a window that hits call `NAME [30-60 s]`; `None` for other names."""
    match = _LABEL.fullmatch(label)
    if match is None:
        return None
    path, start, stop = match.groups()
    clip_id = f"{path}#t={start}"
    if stop is not None:
        clip_id += f",{stop}"
    return clip_id


def seconds_of(seconds: float | None, window: Window | None) -> float | None:
    """Length of a window, or of the whole file, whose length is `seconds`, as far as it is known."""
    # The last window, like a whole file, extends to the end.
    start, stop = window or (0.0, None)
    if stop is None:
        stop = seconds
    if stop is None:
        return None
    return max(0.0, stop - start)


def place_of_clip(clip_id: str) -> Place:
    """Return the file and the seconds of a clip in a gallery of windows."""
    match = WINDOW.search(clip_id)
    if match is None:
        return Place(clip_id)
    start, stop = match.groups()
    if stop is not None:
        stop = float(stop)
    return Place(clip_id[: match.start()], float(start), stop)


def whole_files(clip_ids: Iterable[str]) -> set[str]:
    """Return the files whose windows all exist, from beginning to end."""
    # For each file, where each of its windows ends, by its start: both are None for a whole file.
    ends_by_path = defaultdict(dict)
    for place in map(place_of_clip, clip_ids):
        ends_by_path[place.path][place.start] = place.stop
    # From the beginning of a file, each window leads to the next one, and the last one to its end.
    whole = set()
    for path, ends in ends_by_path.items():
        position: float | None = 0.0
        while position is not None and position in ends:
            position = ends[position]
        if position is None or None in ends:
            whole.add(path)
    return whole


__all__ = [
    "LEAST",
    "NOTHING",
    "PARTLY",
    "SCENES",
    "SEGMENT",
    "SLIVER",
    "UNFINISHED",
    "WINDOW",
    "Place",
    "Window",
    "clip_id_of",
    "clip_id_of_label",
    "is_nothing",
    "place_of_clip",
    "seconds_of",
    "whole_files",
    "windows_at",
    "windows_of",
]
