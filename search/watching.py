"""Keeps folders indexed: looks at them again and again, and passes on what has stopped changing.

It looks, and asks the system for no messages: those do not come from drives on other machines, and end when there are
too many.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from gallery.media import clip_stat
from search.vanished import is_gone

_GONE = (-1, -1)
"""What a look makes of a file that is listed and not there, as where a link leads nowhere."""


def _stat(path: str, languages: Sequence[str]) -> tuple[int, int] | None:
    """Size and time of change of a file and its subtitles; `None` if it cannot be seen, of which reading says why."""
    try:
        return clip_stat(path, languages=languages)
    except (OSError, ValueError):
        return _GONE if _is_gone(path) else None


def _is_gone(path: str) -> bool:
    try:
        return is_gone(path)
    except OSError:
        return False  # it may be there


def watch(
    find: Callable[[], Iterable[str]],
    update: Callable[[list[str], list[str]], None],
    interval: float,
    languages: Sequence[str] = (),
) -> NoReturn:
    """
    Pass on files that are new or have changed, once they look the same twice, until something is raised.

    A look that fails is skipped, and nothing counts as gone in it: folders are renamed and drives taken away while
    they are looked at. Where looks go on failing, that is told once on stderr.

    Args:
        find (`Callable`): lists the files that there are; an `OSError` is a look that fails.
        update (`Callable`): called with the files to look at, at first all of them, even if there are none, and with
            those that are gone since the look before.
        interval (`float`): seconds from one look to the next, or longer where a look itself takes more than a tenth
            of that; a file that changes all the time is never passed on.
        languages (`Sequence[str]`): of subtitles those that come first, see [`~gallery.subtitles`].
    """
    before: dict[str, tuple[int, int] | None] = {}
    done: dict[str, tuple[int, int] | None] = {}
    looks = failures = 0
    while True:
        begun = time.monotonic()
        try:
            now = {path: _stat(path, languages) for path in find()}
        except OSError as error:
            failures += 1
            if failures == 2:  # one is nothing to worry about
                print(f"Cannot look now: {error} Nothing counts as gone meanwhile; trying again.", file=sys.stderr)
            time.sleep(interval)
            continue
        pause, failures = max(interval, 10 * (time.monotonic() - begun)), 0
        settled = [path for path, stat in now.items() if path in before and before[path] == stat]
        ready = [path for path in settled if path not in done or done[path] != now[path]]
        lost = [path for path in done if path not in now and path not in before and _is_gone(path)]
        gone = lost + [path for path in ready if now[path] == _GONE]
        if ready or gone or looks == 1:
            update(ready, gone)
        done |= {path: now[path] for path in ready}
        for path in lost:
            del done[path]
        before, looks = now, looks + 1
        time.sleep(pause)


__all__ = ["watch"]
