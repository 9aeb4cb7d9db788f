"""The progress bar of indexing; its estimate is by seconds of media, and by all that was done with them."""

import os
from threading import Lock
from typing import Any

from tqdm import tqdm

from scalar_retrieval.commands.texts import plain

_FORM = "{l_bar}{bar}| {files} files [{elapsed}<{remaining}{postfix}]"
_LEAST = 10.0  # seconds that a file counts for at least: a picture and a short clip take as long as these


class Progress(tqdm):
    """
    A bar over files, each of which counts for its seconds; shared by threads.

    Files whose length is not known yet count like the mean of the others. Passes through a whole file before it is
    embedded, such as recognising its words, count like embedding it. The speed is the mean since the beginning.

    Args:
        num_files (`int`): files to read.
        num_passes (`int`): passes through each file before it is embedded.
        is_shown (`bool`): whether to print anything.
    """

    def __init__(self, num_files: int, num_passes: int, is_shown: bool):
        self._num_files = num_files
        self._num_passes = num_passes
        self._turn = Lock()
        self._seconds: dict[str, float] = {}  # that each file counts for, of those whose length was looked at
        self._sum = 0.0  # of these
        self._lengths: dict[str, float | None] = {}
        self._reached: dict[tuple[str, str], float] = {}
        self._passed: dict[str, float] = {}  # the share of each file that was done before it is embedded
        self._embedded: dict[str, float] = {}  # the share of each file that is embedded
        self._done = 0.0  # files
        super().__init__(total=_LEAST * num_files, disable=not is_shown, bar_format=_FORM, smoothing=0)

    @property
    def format_dict(self) -> dict[str, Any]:
        """What the bar may show."""
        return super().format_dict | {"files": f"{self._done:.1f}/{self._num_files}"}

    @property
    def share(self) -> float:
        """The share of all files that is done."""
        return self.n / self.total

    def begin(self, path: str, seconds: float | None) -> None:
        """Note the length of a file, `None` if it has none or is read as a whole."""
        with self._turn:
            self._lengths[path] = seconds
            self._sum -= self._seconds.get(path, 0.0)
            self._seconds[path] = max(seconds or 0.0, _LEAST)
            self._sum += self._seconds[path]
            self.total = self._sum * self._num_files / len(self._seconds)

    def add(self, path: str, share: float) -> None:
        """Count a further share of a file as embedded."""
        with self._turn:
            before = self._embedded.get(path, 0.0)
            # Rounding: parts may add up to slightly more than the total.
            self._embedded[path] = min(before + share, 1.0)
            # Passes that were not needed count as done.
            self._count(path, (self._embedded[path] - before) * (1 - self._passed.get(path, 0.0)))
        self.set_postfix_str("", refresh=False)  # what is done with a file is said while it is done

    def reach(self, doing: str, path: str, second: float) -> None:
        """Tell, in the words `doing`, which second of a file a pass has reached."""
        name = plain(os.path.basename(path), "utf-8")[-30:]
        where = f"{doing} {name} at {tqdm.format_interval(second)}"
        seconds = self._lengths.get(path)
        if seconds:
            where += f" of {tqdm.format_interval(seconds)}"
            with self._turn:
                before = self._reached.get((doing, path), 0.0)
                self._reached[doing, path] = min(second, seconds)
                share = (self._reached[doing, path] - before) / seconds / (1 + self._num_passes)
                self._passed[path] = self._passed.get(path, 0.0) + share
                self._count(path, share)
        self.set_postfix_str(where)

    def _count(self, path: str, share: float) -> None:
        self._done += share
        self.update(min(share * self._seconds[path], self.total - self.n))


__all__ = ["Progress"]
