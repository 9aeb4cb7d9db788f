"""The progress bar of indexing; it has an estimate also while the words of a long file are recognised."""

import os
from threading import Lock

from tqdm import tqdm

from scalar_retrieval.commands.texts import plain

_FORM = "{l_bar}{bar}| {n:.1f}/{total_fmt} files [{elapsed}<{remaining}{postfix}]"


class Progress(tqdm):
    """
    A bar over files, shared by threads. A file counts by the share of it that is embedded, or by the share of
    its length in which words were recognised, if that is more.

    Args:
        num_files (`int`): files to read.
        num_recognisers (`int`): recognisers that go through each file.
        is_shown (`bool`): whether to print anything.
    """

    def __init__(self, num_files: int, num_recognisers: int, is_shown: bool):
        super().__init__(total=num_files, disable=not is_shown, bar_format=_FORM)
        self._turn = Lock()
        self._num_recognisers = num_recognisers
        self._lengths: dict[str, float] = {}
        self._read: dict[str, float] = {}
        self._recognised: dict[str, dict[str, float]] = {}
        self._counted: dict[str, float] = {}

    def begin(self, path: str, seconds: float | None) -> None:
        """Take note of the length of a file, if it is known."""
        if seconds:
            self._lengths[path] = seconds

    def add(self, path: str, share: float) -> None:
        """Count a further share of a file as embedded."""
        with self._turn:
            self._read[path] = self._read.get(path, 0.0) + share
            self._count(path)

    def recognise(self, doing: str, path: str, second: float) -> None:
        """Tell, in the words `doing`, which second of a file a recogniser has reached."""
        name = plain(os.path.basename(path), "utf-8")[-30:]
        where = f"{doing} {name} at {tqdm.format_interval(second)}"
        seconds = self._lengths.get(path)
        with self._turn:
            if seconds is not None:
                where += f" of {tqdm.format_interval(seconds)}"
                self._recognised.setdefault(path, {})[doing] = min(second / seconds, 1.0)
            self.set_postfix_str(where, refresh=False)
            self._count(path)

    def _count(self, path: str) -> None:
        # A file never counts for less than before, nor for more than one.
        recognised = sum(self._recognised.get(path, {}).values()) / max(self._num_recognisers, 1)
        before = self._counted.get(path, 0.0)
        now = min(max(before, recognised, self._read.get(path, 0.0)), 1.0)
        self._counted[path] = now
        self.update(min(now - before, self.total - self.n))  # rounding: parts may add up to slightly more


__all__ = ["Progress"]
