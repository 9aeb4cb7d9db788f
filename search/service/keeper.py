"""A small parent process that restarts the service after a crash.

The files of a gallery are memory-mapped, and replaced by their writers. If one is changed in place, as by `cp` or
`rsync --inplace`, mapped pages disappear, and the system kills the process, which cannot report why.
"""

import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from threading import Thread
from types import FrameType

from commands.errors import say

_ENDING = (signal.SIGINT, signal.SIGTERM)
_MOST, _WITHIN = 5, 600.0  # crashes, and the seconds within which so many are too many
_PAUSE = 5.0  # seconds before another attempt to start
_IN_PLACE = (signal.SIGBUS, signal.SIGSEGV)


def _end_with(parent: int) -> None:
    """Terminate this process in an orderly way when its parent is gone, which closes the other end of a pipe."""
    os.read(parent, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def keep_running(gallery: str) -> None:
    """
    Return in a child process; the parent forwards signals to it, and starts another child if one is killed.

    Files opened before are open in every child, so a listening socket refuses no connection in between. A process that
    has queried accelerators must not call this, as its children could not use them.

    Args:
        gallery (`str`): the gallery, for the log.

    Raises:
        SystemExit: in the parent, with the exit code of a child that ended by itself.
        ValueError: in the parent, children were killed too often.
    """
    if not hasattr(os, "fork"):  # Windows, where mapped files cannot be changed
        return
    child, received, ends, pause = 0, [], deque(maxlen=_MOST), 0.0

    def pass_on(number: int, _: FrameType | None) -> None:
        received.append(number)
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, number)

    handlers = {number: signal.signal(number, pass_on) for number in _ENDING}
    while True:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.setpgid(0, 0)  # a terminal signals only the parent, which forwards it
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.close(writing)
            Thread(target=_end_with, args=(reading,), name="parent", daemon=True).start()
            time.sleep(pause)
            return
        code, child = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0
        os.close(reading)
        os.close(writing)
        if received and code < 0:  # before it served: as if there were no child
            for number, handler in handlers.items():
                signal.signal(number, handler)
            signal.raise_signal(received[-1])
        if received or code == 0 or (code > 0 and not ends):
            raise SystemExit(code)
        ends.append(time.monotonic())
        if len(ends) == _MOST and ends[-1] - ends[0] < _WITHIN:
            raise ValueError(
                f"The service of {gallery} ended {_MOST} times within {_WITHIN / 60:.0f} minutes. Check the "
                f"gallery with `scalar verify {gallery}`, then start the service again."
            )
        pause = _PAUSE if code > 0 else 0.0
        if code > 0:
            say(f"The service could not start; retrying in {pause:.0f} seconds.")
        else:
            number = signal.Signals(-code)
            why = (
                f" Probably a file of {gallery} was modified in place; `scalar verify {gallery}` names it."
                if number in _IN_PLACE
                else ""
            )
            say(f"The service was ended by {number.name}; restarting it.{why}")


__all__ = ["keep_running"]
