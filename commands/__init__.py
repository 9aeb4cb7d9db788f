"""What all commands share. Imports nothing that is slow, so that `--help` is quick and Ctrl-C is heard early.

Imported first by each program: from then on Ctrl-C is told in a word, also while other modules are still imported.
"""

import sys
from types import TracebackType


def _say_interrupted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("Interrupted.\n")
    else:
        sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _say_interrupted
