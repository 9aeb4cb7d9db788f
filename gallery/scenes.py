"""Windows of long files that end where chapters do or, without chapters, where scenes change: at hard cuts, and in the
middle of fades.

The colours before a moment are compared with those after it, each over most of a second: a flash or flickering light
is a small part of both. A moment is a cut where they differ much, and much more than nearby: while a camera sweeps or
a crowd runs, they differ all the time.
"""

from collections.abc import Callable, Iterable

import numpy as np

from scalar_retrieval.modeling_scalar.media_scalar import MediaError, Window

from .decoding import SandboxedReader
from .store.windows import SLIVER, windows_at

PACE = 0.2
"""Seconds between frames that are compared: a cut is detected at the first frame after it."""
SIDE = 64
"""Maximum width and height of these frames in pixels."""

_SPAN = 4  # steps before and after a moment that are compared
_AROUND = 20  # steps before and after a moment that define the usual change
_CHANGE = 0.25  # least change of a cut
_RATIO = 1.8  # its least ratio to the usual change


def _means(rows: np.ndarray, before: int, after: int) -> np.ndarray:
    """For each place, the mean of rows from `before` before it to `after` after it, excluded, if there are any."""
    # Differences of running sums, so that the time does not grow with the length of the span.
    sums = np.concatenate([np.zeros((1, *rows.shape[1:])), rows.cumsum(axis=0, dtype=np.float64)])
    places = np.arange(len(rows))
    first = (places - before).clip(0)
    stop = (places + after).clip(0, len(rows))
    counts = np.maximum(stop - first, 1).reshape(-1, *[1] * (rows.ndim - 1))
    return (sums[stop] - sums[first]) / counts


def cuts_of(colours: Iterable[tuple[float, np.ndarray]], end: float = 0.0) -> list[float]:
    """
    Find scene changes.

    Args:
        colours (iterable of `tuple`): the second at which each frame appears, and its histogram `(bins,)`, whose
            shares add up to 1, in order. Each lasts until the next one.
        end (`float`): the second until which the last frame lasts.

    Returns:
        The seconds of the first frame of each scene, except the first scene, and except scenes that are too short
        to compare.
    """
    seconds = []
    rows = []
    for second, histogram in colours:
        seconds.append(second)
        rows.append(histogram)
    if not rows:
        return []
    seconds = np.array(seconds)
    # The frame that is visible at each step of equal length.
    steps = np.arange(seconds[0], max(seconds[-1] + PACE, end), PACE)
    frame_at = np.searchsorted(seconds, steps + 1e-6, side="right") - 1
    rows = np.stack(rows)[frame_at]  # (steps, bins)

    # How much the mean colours before each step differ from those after it: 0 for the same, 1 for disjoint ones.
    changes = np.abs(_means(rows, 0, _SPAN) - _means(rows, _SPAN, 0)).sum(axis=1) / 2
    changes[:_SPAN] = changes[len(changes) - _SPAN + 1 :] = 0.0  # too few frames to compare
    is_cut = (changes >= _CHANGE) & (changes >= _RATIO * _means(changes, _AROUND, _AROUND + 1))

    # Of neighbouring steps the one with the largest change, the first of several.
    cuts = []
    for step in np.flatnonzero(is_cut):
        before = changes[max(0, step - _SPAN) : step].max()
        if changes[step] > before and changes[step] >= changes[step : step + _SPAN + 1].max():
            cuts.append(float(seconds[frame_at[step]]))
    return cuts


def scene_windows(
    path: str,
    seconds: float | None,
    most: float,
    reader: SandboxedReader,
    on_progress: Callable[[float], None] = lambda second: None,
) -> list[Window | None]:
    """
    Cut a file that is longer than a window at its chapters or, if it has not at least two, where its scenes change.

    Args:
        path (`str`), seconds (`float`, *optional*): the file, and its length, if known.
        most (`float`): maximum length of a window.
        reader ([`~scalar_retrieval.gallery.decoding.SandboxedReader`]): reads the file.
        on_progress (`Callable`): called with the second until which scenes are measured.

    Returns:
        As from [`~scalar_retrieval.gallery.store.windows.windows_at`]. Without readable pictures there are no scene
        changes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if seconds is None or seconds <= most + SLIVER:
        return [None]
    cuts = [start for start, _ in reader.read_facts(path).chapters]
    if len(cuts) < 2:
        try:
            lenient = reader.reporting_to(lambda problem: None)
            cuts = cuts_of(lenient.sample_colours(path, PACE, SIDE, on_progress), seconds)
        except MediaError:  # reading the clip reports what is wrong
            cuts = []
    return windows_at(cuts, seconds, most)


__all__ = ["PACE", "SIDE", "cuts_of", "scene_windows"]
