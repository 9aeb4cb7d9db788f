"""The progress bar of indexing; it has an estimate also while the words of a long file are recognised."""

import os
from threading import Lock

from tqdm import tqdm

from scalar_retrieval.commands.texts import plain

_FORM = "{l_bar}{bar}| {n:.1f}/{total_fmt} files [{elapsed}<{remaining}{postfix}]"


class Progress(tqdm):
    """
    A bar over files, shared by threads. What is recognised of a file counts like what is embedded, in all at most one.

    Args:
        num_files (`int`): files to read.
        num_recognisers (`int`): recognisers that go through each file.
        is_shown (`bool`): whether to print anything.
    """

    def __init__(self, num_files: int, num_recognisers: int, is_shown: bool):
        super().__init__(total=num_files, disable=not is_shown, bar_format=_FORM)
        self._turn = Lock()
        self._num_recognisers = num_recognisers
        self._counted: dict[str, float] = {}
        self._reached: dict[tuple[str, str], float] = {}
        self.lengths: dict[str, float | None] = {}
        """The seconds of each file, if known."""

    def add(self, path: str, share: float) -> None:
        """Count a further share of a file."""
        with self._turn:
            before = self._counted.get(path, 0.0)
            self._counted[path] = min(before + share, 1.0)
            # Rounding: parts may add up to slightly more than the total.
            self.update(min(self._counted[path] - before, self.total - self.n))
        self.set_postfix_str("", refresh=False)  # what a recogniser does is said while it does it

    def recognise(self, doing: str, path: str, second: float) -> None:
        """Tell, in the words `doing`, which second of a file a recogniser has reached."""
        name = plain(os.path.basename(path), "utf-8")[-30:]
        where = f"{doing} {name} at {tqdm.format_interval(second)}"
        seconds = self.lengths.get(path)
        if seconds:
            where += f" of {tqdm.format_interval(seconds)}"
            before = self._reached.get((doing, path), 0.0)
            self._reached[doing, path] = second
            self.add(path, (second - before) / seconds / self._num_recognisers)
        self.set_postfix_str(where)


__all__ = ["Progress"]
