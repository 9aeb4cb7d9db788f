"""Windows of long files: each is a clip of its own, named by its file and its seconds.

`talk.mp4#t=30,60` is what lies between, `talk.mp4#t=60` the rest of the file, as addresses of media on the web have it
(W3C, Media Fragments). A file that fits into one window is a clip under its own name.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

SEGMENT = "segment"
"""In the metadata of a gallery of windows: how many seconds each has."""

_REST = 1.0  # seconds at the end of a file that make no window of their own
_NAME = re.compile(r"(.*)#t=(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?", re.DOTALL)


class Place(NamedTuple):
    """What a clip is: a file, or what of it lies between two seconds; a `stop` of None is the end."""

    path: str
    start: float | None = None
    stop: float | None = None

    @property
    def span(self) -> str | None:
        """The seconds, as people read them."""
        if self.start is None:
            return None
        stop = " s to the end" if self.stop is None else f"-{_number(self.stop)} s"
        return f"{_number(self.start)}{stop}"


def _number(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def windows_of(seconds: float | None, segment: float | None) -> list[tuple[float, float | None] | None]:
    """
    Cut a file into windows.

    Args:
        seconds (`float`, *optional*): how long it lasts, if that is known.
        segment (`float`, *optional*): how long a window is.

    Returns:
        `list`: beginnings and ends, in seconds, without gaps; the last one goes on to the end of the file, of which
        less than a second is added to it. `[None]`, the whole file, if that is one window.
    """
    if segment is None or seconds is None or seconds <= segment + _REST:
        return [None]
    count = math.ceil((seconds - _REST) / segment)
    return [(number * segment, (number + 1) * segment if number + 1 < count else None) for number in range(count)]


def clip_id_of(path: str, window: tuple[float, float | None] | None) -> str:
    """Name a window of a file, or the whole file."""
    if window is None:
        return path
    start, stop = window
    return f"{path}#t={_number(start)}" + ("" if stop is None else f",{_number(stop)}")


def place_of_clip(clip_id: str) -> Place:
    """Tell the file and the seconds of a clip of a gallery of windows."""
    found = _NAME.fullmatch(clip_id)
    if found is None:
        return Place(clip_id)
    return Place(found[1], float(found[2]), None if found[3] is None else float(found[3]))


def whole_files(clip_ids: Iterable[str]) -> set[str]:
    """Return the files of which every window is there, from the beginning to the end."""
    spans: dict[str, dict[float | None, float | None]] = {}
    for place in map(place_of_clip, clip_ids):
        spans.setdefault(place.path, {})[place.start] = place.stop
    whole = set()
    for path, ends in spans.items():
        position: float | None = 0.0
        while position is not None and position in ends:
            position = ends[position]
        if position is None or None in ends:
            whole.add(path)
    return whole


__all__ = ["SEGMENT", "Place", "clip_id_of", "place_of_clip", "whole_files", "windows_of"]
