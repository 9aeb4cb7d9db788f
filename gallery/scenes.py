"""Windows of files that end where scenes change: at hard cuts, and in the middle of fades.

What is compared are the colours before a moment and after it, each over most of a second: a flash or flickering light
is a small part of both. A moment is a cut where they differ much, and much more than around it: while a camera sweeps
or a crowd runs, they differ all the time.
"""

from collections.abc import Iterable

import numpy as np

from gallery.decoding import SandboxedReader
from gallery.windows import LEAST, windows_at
from modeling_scalar.media_scalar import MediaError, Window

PACE = 0.2
"""Seconds from one frame that is compared to the next: a cut is told at the first one after it."""
SIDE = 64
"""Pixels that it is wide and high at most."""

_BINS = 16  # of the values of a colour
_SPAN = 4  # steps before a moment and after it that are compared
_AROUND = 20  # steps before a moment and after it with which it is compared
_CHANGE, _RATIO = 0.25, 1.8  # a cut changes so much of the colours, and so many times as much as is usual around it


def _histogram(frame: np.ndarray) -> np.ndarray:
    """How often each channel of a frame has each value: shares that add up to 1, of shape `(3 * bins,)`."""
    values = frame.reshape(-1, 3) // (256 // _BINS) + _BINS * np.arange(3)
    return np.bincount(values.ravel(), minlength=3 * _BINS).astype(np.float32) / values.size


def _means(rows: np.ndarray, before: int, after: int) -> np.ndarray:
    """Of each place the mean of rows from so many before it to so many after it, excluded, as far as there are any."""
    sums = np.concatenate([np.zeros((1, *rows.shape[1:])), rows.cumsum(axis=0, dtype=np.float64)])
    places = np.arange(len(rows))
    first, stop = (places - before).clip(0), (places + after).clip(0, len(rows))
    counts = np.maximum(stop - first, 1).reshape(-1, *[1] * (rows.ndim - 1))
    return (sums[stop] - sums[first]) / counts


def cuts_of(frames: Iterable[tuple[float, np.ndarray]], end: float = 0.0) -> list[float]:
    """
    Find where scenes change.

    Args:
        frames (iterable of `tuple`): the second at which each appears, and the frame, uint8 `(height, width, 3)`, in
            their order. Each is seen until the next one.
        end (`float`): the second until which the last one is seen.

    Returns:
        The seconds of the frames that scenes begin with, but for the first, and for scenes that last no longer than
        what is compared.
    """
    found = [(second, _histogram(frame)) for second, frame in frames]
    if not found:
        return []
    seconds, rows = np.array([second for second, _ in found]), np.stack([row for _, row in found])
    steps = np.arange(seconds[0], max(seconds[-1] + PACE, end), PACE)
    seen = np.searchsorted(seconds, steps + 1e-6, side="right") - 1  # at each step
    rows = rows[seen]
    changes = np.abs(_means(rows, 0, _SPAN) - _means(rows, _SPAN, 0)).sum(axis=1) / 2
    changes[:_SPAN] = changes[len(changes) - _SPAN + 1 :] = 0.0  # of too little
    is_cut = (changes >= _CHANGE) & (changes >= _RATIO * _means(changes, _AROUND, _AROUND + 1))
    return [
        float(seconds[seen[step]])
        for step in np.flatnonzero(is_cut)
        if changes[step] > changes[max(0, step - _SPAN) : step].max()
        and changes[step] >= changes[step : step + _SPAN + 1].max()
    ]


def scene_windows(path: str, seconds: float | None, most: float, reader: SandboxedReader) -> list[Window | None]:
    """
    Cut a file into windows where its scenes change.

    Args:
        path (`str`), seconds (`float`, *optional*): the file, and how long it lasts, if that is known.
        most (`float`): how long a window is at most.
        reader ([`~gallery.decoding.SandboxedReader`]): opens the file.

    Returns:
        As [`~gallery.windows.windows_at`]. Where there are no pictures that can be read, no scene changes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if seconds is None or seconds < 2 * LEAST:
        return [None]
    try:
        cuts = cuts_of(reader.noting(lambda problem: None).look_through(path, PACE, SIDE), seconds)
    except MediaError:  # reading the clip says what is wrong
        cuts = []
    return windows_at(cuts, seconds, most)


__all__ = ["PACE", "SIDE", "cuts_of", "scene_windows"]
