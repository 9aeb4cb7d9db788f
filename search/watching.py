"""Watches folders by polling, and passes on files that have stopped changing.

Polling, because file system events do not arrive from network drives, and stop when there are too many.
"""

import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from scalar_retrieval.gallery.store.file_state import clip_stat


def _stat(path: str) -> tuple[int, int] | None:
    """Size and modification time of a file and its subtitles; `None` if it is inaccessible: reading it says why."""
    try:
        return clip_stat(path)
    except (OSError, ValueError):
        return None


def watch(
    find: Callable[[], Iterable[str]],
    update: Callable[[list[str]], None],
    interval: float,
    say: Callable[[str], object],
) -> NoReturn:
    """
    Pass on new and changed files once two scans in a row find them unchanged, until an exception is raised.

    A scan that fails is skipped, and no file counts as gone in it: folders may be renamed and drives removed during a
    scan. Repeated failures are reported once.

    Args:
        find (`Callable`): lists the existing files; an `OSError` means that the scan failed.
        update (`Callable`): called with the files to index, the first time with all of them, even if there are none;
            also called if files are gone since the previous scan.
        interval (`float`): seconds between scans, or longer if a scan takes more than a tenth of that; a file that
            keeps changing is never passed on.
        say (`Callable`): passes a message on to the user.
    """
    before: dict[str, tuple[int, int] | None] = {}
    done: dict[str, tuple[int, int] | None] = {}
    scans = 0
    failures = 0
    while True:
        begun = time.monotonic()
        # A file that cannot be read is passed on nevertheless, as indexing it reports why.
        try:
            now = {path: _stat(path) for path in find()}
        except OSError as error:
            # A single failure is harmless, and repeated ones are reported once.
            failures += 1
            if failures == 2:
                say(f"Cannot scan now: {error} No file counts as gone meanwhile; trying again.")
            time.sleep(interval)
            continue
        pause = max(interval, 10 * (time.monotonic() - begun))
        failures = 0
        # A file is ready if it has not changed since the previous scan, but has since it was indexed.
        ready = {}
        for path, stat in now.items():
            is_settled = path in before and before[path] == stat
            if is_settled and (path not in done or done[path] != stat):
                ready[path] = stat
        lost = [path for path in done if path not in now and path not in before]
        if ready or lost or scans == 1:
            update(list(ready))
        done |= ready
        for path in lost:
            del done[path]
        before = now
        scans += 1
        time.sleep(pause)


__all__ = ["watch"]
