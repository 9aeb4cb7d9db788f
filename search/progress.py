"""The progress bar of indexing; its estimate is by seconds of media, and by all that was done with them."""

import os
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from tqdm import tqdm

from scalar_retrieval.commands.texts import plain

_FORM = "{l_bar}{bar}| {files} files [{elapsed}<{remaining}{postfix}]"
_LEAST = 10.0  # seconds that a file counts for at least: a picture and a short clip take as long as these


@dataclass
class _File:
    """A file: its length in seconds, if it is known; the shares of it that each pass reached, that all passes together
    did of the work on it, and that is embedded."""

    seconds: float | None
    reached: dict[str, float] = field(default_factory=dict)
    passed: float = 0.0
    embedded: float = 0.0

    @property
    def worth(self) -> float:
        """The seconds that it counts for."""
        return max(self.seconds or 0.0, _LEAST)


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
        self._files: dict[str, _File] = {}  # whose lengths were looked at
        self._worth = 0.0  # of these
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
            if path not in self._files:
                self._files[path] = _File(seconds)
                self._worth += self._files[path].worth
                self.total = self._worth * self._num_files / len(self._files)

    def add(self, path: str, share: float) -> None:
        """Count a further share of a file as embedded."""
        with self._turn:
            file = self._files[path]
            share = min(share, 1.0 - file.embedded)  # rounded parts may add up to slightly more
            file.embedded += share
            # Passes that were not needed count as done.
            self._count(file, share * (1 - file.passed))
        self.set_postfix_str("", refresh=False)  # what is done with a file is said while it is done

    def reach(self, doing: str, path: str, second: float) -> None:
        """Tell, in the words `doing`, which second of a file a pass has reached."""
        name = plain(os.path.basename(path), "utf-8")[-30:]
        where = f"{doing} {name} at {tqdm.format_interval(second)}"
        file = self._files[path]
        if file.seconds:
            where += f" of {tqdm.format_interval(file.seconds)}"
            with self._turn:
                before = file.reached.get(doing, 0.0)
                file.reached[doing] = min(second / file.seconds, 1.0)
                share = (file.reached[doing] - before) / (1 + self._num_passes)
                file.passed += share
                self._count(file, share)
        self.set_postfix_str(where)

    def _count(self, file: _File, share: float) -> None:
        self._done += share
        self.update(min(share * file.worth, self.total - self.n))


__all__ = ["Progress"]
