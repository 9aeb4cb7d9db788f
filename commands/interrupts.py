"""Ctrl-C prints one word, not a traceback; programs import this first, so that it also holds during slow imports."""

import sys
from types import TracebackType


def _print_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("Interrupted.\n")
    else:
        sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _print_interrupted
