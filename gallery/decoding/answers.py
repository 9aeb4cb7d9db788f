"""Messages with which a decoder answers a request, checked before they are used."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from gallery.decoding.limits import Limits
from modeling_scalar.media_scalar import Choose, Prepare, to_float


class Nonsense(Exception):
    """The decoder's message does not match the request."""


class Answer:
    """
    Receives a decoder's answer to one request.

    Attributes:
        problem (`str`, *optional*): what is wrong with a stream that could be read only in part.
    """

    def __init__(self, limits: Limits):
        self.limits, self.name, self.problem = limits, "", None

    def restart(self) -> None:
        """Discard everything: the request is repeated."""

    def most_bytes(self) -> int:
        """The maximum number of bytes that may follow a message."""
        return 0

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        """Process a message and the bytes after it; returns the reply, if any."""
        raise Nonsense

    def finish(self) -> None:
        """Check that the answer is complete."""


def natural(content: dict[str, Any], name: str, least: int = 0) -> int:
    """An integer in a message, at least `least`."""
    number = content.get(name)
    if type(number) is not int or not least <= number < 2**53:
        raise Nonsense
    return number


def _seconds(content: dict[str, Any]) -> float | None:
    seconds = content.get("seconds")
    if seconds is not None and not isinstance(seconds, (int, float)):
        raise Nonsense
    return seconds


class Frames(Answer):
    """The chosen frames of a video stream, or the results of processing them."""

    def __init__(
        self,
        limits: Limits,
        prepare: Prepare | None = None,
        choose: Choose | None = None,
        show: Callable[[np.ndarray], None] | None = None,
    ):
        super().__init__(limits)
        self.prepare, self.choose, self.show = prepare, choose, show
        self.restart()

    def restart(self) -> None:
        self.chosen: list[int] = []
        self.places = 0
        self.clear()

    def clear(self) -> None:
        """Discard the frames received so far."""
        self.kept: dict[int, Any] = {}
        self.size, self.use, self.bytes = None, None, 0

    def most_bytes(self) -> int:
        return 3 * int(self.limits.pixels)

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        if kind == "choose" and self.choose is not None:
            self.chosen = list(self.choose(natural(content, "available", 1)))
            self.places = len(set(self.chosen))
            return {"chosen": self.chosen}
        if kind == "begin":
            return self.clear()
        if kind != "frame":
            raise Nonsense
        size, place = (natural(content, "height", 1), natural(content, "width", 1)), natural(content, "place")
        if len(payload) != 3 * size[0] * size[1] or place in self.kept or self.size not in (None, size):
            raise Nonsense
        if self.choose is not None and place >= self.places:
            raise Nonsense
        if self.use is None:
            self.size, self.use = size, self.prepare(*size) if self.prepare else self.keep
        picture = payload.reshape(*size, 3)
        self.kept[place] = self.use(picture)
        if self.show is not None and place == self.middle():
            self.show(picture)
        return None

    def middle(self) -> int:
        """The index, among the stored frames, of the middle one of the chosen frames."""
        order = self.order()
        return order[len(order) // 2]

    def keep(self, frame: np.ndarray) -> np.ndarray:
        """Count the bytes of a frame that is stored whole."""
        self.bytes += frame.nbytes
        if self.bytes > self.limits.memory:
            raise self.limits.exceeded(self.name, "memory", f"its frames take more than {self.limits.memory} bytes")
        return frame

    def order(self) -> list[int]:
        """The indices of the chosen frames among the stored ones."""
        places = {index: place for place, index in enumerate(dict.fromkeys(self.chosen))}
        return list(range(len(self.kept))) if self.choose is None else [places[index] for index in self.chosen]

    def finish(self) -> None:
        if not set(self.order()) <= set(self.kept):
            raise Nonsense

    def result(self) -> list[Any] | None:
        """What was stored of the chosen frames; `None` if there is no video."""
        return [self.kept[place] for place in self.order()] or None


class TimedFrames(Frames):
    """Frames at a regular interval, and when each appears."""

    def clear(self) -> None:
        super().clear()
        self.seconds: dict[int, float] = {}

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        answer, second = super().receive(kind, content, payload), _seconds(content)
        if kind == "frame":
            if second is None or not math.isfinite(second):
                raise Nonsense
            self.seconds[content["place"]] = float(second)
        return answer

    def timed(self) -> list[tuple[float, np.ndarray]]:
        """When each frame appears, and the frame, in order."""
        return sorted(((self.seconds[place], frame) for place, frame in self.kept.items()), key=itemgetter(0))


def _tracks(content: dict[str, Any]) -> list[int]:
    try:
        return [natural({"index": index}, "index") for index in content["tracks"]]
    except (KeyError, TypeError):
        raise Nonsense from None


def _title(content: dict[str, Any]) -> str | None:
    title = content.get("title")
    if not isinstance(title, str | None):
        raise Nonsense
    return title


@dataclass
class Contents:
    """What is known from the header of a file.

    Args:
        seconds (`float`, *optional*): length of the file.
        tracks (`list[int]`, *optional*): the index of its text track, if it has one.
        title (`str`, *optional*): title in its tags; if `tracks` is given, `None` means that there is none.
    """

    seconds: float | None = None
    tracks: list[int] | None = None
    title: str | None = None


class Sound(Answer):
    """A track, or chosen parts of it, and what is known from the header of its file."""

    def __init__(self, limits: Limits, choose: Callable | None = None):
        super().__init__(limits)
        self.choose, self.contents = choose, Contents()
        self.restart()

    def restart(self) -> None:
        self.pieces: list[np.ndarray] = []
        self.ranges: list[tuple[int, int]] | None = None
        self.available = self.bytes = 0

    def most_bytes(self) -> int:
        return int(self.limits.memory)

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        if kind == "ranges" and self.choose is not None:
            self.pieces.clear()
            self.available = natural(content, "available")
            self.ranges = self.choose(self.available)
            return {"chosen": self.ranges}
        if kind == "contents":
            seconds, self.contents.tracks = _seconds(content), _tracks(content)
            self.contents.title = _title(content)
            if seconds is not None and 0 <= seconds <= self.limits.duration:
                self.contents.seconds = seconds
            return None
        if len(payload) % 2 or kind != ("sound" if self.ranges is None else "part"):
            raise Nonsense
        self.pieces.append(payload.view(np.int16))
        self.bytes += 2 * len(payload)  # as float32
        if self.bytes > self.limits.memory:
            raise self.limits.exceeded(self.name, "memory", f"its sound takes more than {self.limits.memory} bytes")
        return None

    def finish(self) -> None:
        if self.ranges is not None and self.available:
            if [len(piece) for piece in self.pieces] != [stop - start for start, stop in self.ranges]:
                raise Nonsense

    def samples(self) -> np.ndarray | None:
        """The whole track; `None` if there is none."""
        return to_float(np.concatenate(self.pieces)) if sum(map(len, self.pieces)) else None

    def parts(self) -> tuple[list[np.ndarray], int] | None:
        """The chosen parts, and the number of samples of the whole track; `None` if there is no track."""
        if self.ranges is None:
            waveform = self.samples()
            if waveform is None:
                return None
            return [waveform[start:stop] for start, stop in self.choose(len(waveform))], len(waveform)
        if not self.available:
            return None
        return [to_float(piece) for piece in self.pieces], self.available


class Cues(Answer):
    """The words in a subtitle file or track: start, end, and lines of each cue."""

    cues: list[tuple[float, float, list[str]]] = []

    def most_bytes(self) -> int:
        return int(self.limits.memory)

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        if kind != "cues":
            raise Nonsense
        try:
            self.cues = [
                (float(start), float(stop), list(map(str, lines))) for start, stop, lines in json.loads(bytes(payload))
            ]
        except (ValueError, TypeError, RecursionError):
            raise Nonsense from None


class Tracks(Answer):
    """The text track of a file, and its title."""

    tracks: list[int] = []
    title: str | None = None

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        if kind != "tracks":
            raise Nonsense
        self.tracks, self.title = _tracks(content), _title(content)


class Header(Answer):
    """The streams and the duration in the header of a file."""

    promised = False
    seconds: float | None = None

    def receive(self, kind: str, content: dict[str, Any], payload: np.ndarray) -> dict[str, Any] | None:
        if kind != "header" or not isinstance(content.get("promised"), bool):
            raise Nonsense
        self.promised, self.seconds = content["promised"], _seconds(content)


__all__ = ["Answer", "Contents", "Cues", "Frames", "Header", "Nonsense", "Sound", "TimedFrames", "Tracks", "natural"]
