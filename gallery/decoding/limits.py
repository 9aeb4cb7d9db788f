"""Limits on reading a stream of a file."""

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from modeling_scalar.media_scalar import MediaError

IN_PART = "could be read"
"""Phrase in messages on damaged streams that could be read in part."""


class LimitError(MediaError):
    """A file exceeds the [`Limits`]: with higher ones it may be readable."""

    @staticmethod
    def no_longer_holds(message: str, limits: "Limits") -> bool:
        """Whether the limit named in a message of this error has been raised since."""
        match = re.search(r"the limit is (\w+)=([0-9.e+]+?)[.,;]? ", f"{message} ")
        return match is not None and getattr(limits, match[1], 0) > float(match[2])


@dataclass(frozen=True)
class Limits:
    """Limits on reading one stream of a file; exceeding one is a [`LimitError`] that says how to raise the limit.

    `pixels` and `duration` work everywhere. `memory` needs Linux, `time` a Unix; elsewhere a stream may take four
    times its `time` by the clock, and as much memory as its pictures need.

    Args:
        pixels (`int`): maximum size of a frame.
        duration (`float`): maximum seconds of a stream.
        memory (`int`): bytes, shared by all decoders of a program, however many files are read at once. A subtitle
            file may have up to a 256th of it. Data that is read whole, into `Clip.frames` or `Clip.waveform`, may not
            take more, either.
        time (`float`): seconds of computing; four times as many of waiting.
    """

    pixels: int = 8192 * 4320
    duration: float = 24 * 3600
    memory: int = 2**30
    time: float = 60

    def __post_init__(self):
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**60:
                raise ValueError(f"The limit `{name}` must be a number above 0 and below 2**60, got {value!r}.")

    @classmethod
    def parse(cls, settings: Iterable[str], **defaults: float) -> "Limits":
        """Parse limits from a command line: `["memory=2GiB", "pixels=70e6"]`; the others keep their defaults.

        Raises:
            ValueError: the name is unknown, or the value is not a number above 0.
        """
        units = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
        names, values = [field.name for field in fields(cls)], {}
        for setting in settings:
            name, _, value = (part.strip() for part in setting.partition("="))
            if name not in names:
                raise ValueError(f"A limit must be NAME=VALUE with a name in {names}, got {setting!r}.")
            number = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) *([kmgt]?i?)b?", value.lower())
            if number is None or number[2] not in units or (number[2] and name != "memory"):
                example = "2GiB" if name == "memory" else "70e6"
                raise ValueError(f"The limit `{name}` must be a number above 0 such as {example}, got {value!r}.")
            try:
                values[name] = float(number[1]) * units[number[2]]
            except ValueError as error:
                raise ValueError(f"The limit `{name}` must be a number, got {value!r}.") from error
            if name in ("pixels", "memory") and values[name] < 2**60:
                values[name] = int(values[name])
        return cls(**(defaults | values))

    def exceeded(self, where: str, name: str, what: str, needed: float | None = None) -> LimitError:
        """The error that names the file, its need, the limit, and how to raise it."""
        limit = getattr(self, name)
        enough = math.ceil(2 * limit if needed is None else max(needed, limit))
        return LimitError(
            f"{where}: {what}; the limit is {name}={limit}. To read it, raise the limit: `--limit {name}={enough}`, "
            f"or `processor.reader = SandboxedReader(Limits({name}={enough}))`."
        )


__all__ = ["IN_PART", "LimitError", "Limits"]
