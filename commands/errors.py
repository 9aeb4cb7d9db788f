"""Error handling of all commands: an expected error becomes one line on stderr and an exit code.

Exit codes: 1 for what the user can fix, 2 for usage errors (from the argument parsers), 130 for Ctrl-C, 70 for a bug.
"""

import errno
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from . import interrupts  # noqa: F401
from .extras import missing_extra
from .texts import print_message

FAULT = 70
"""The exit code of a bug: EX_SOFTWARE in sysexits.h."""

_EXPECTED = (ImportError, OSError, ValueError, pickle.UnpicklingError)
_LONGEST = 2000  # characters of a message: some libraries list everything they know
_MENDED_BY = {
    errno.ENOSPC: "The disk is full: {file} could not be written. Free some space and run the command again.",
    errno.EDQUOT: "The disk quota is used up: {file} could not be written. Free some space and run the command again.",
    errno.EFBIG: "{file} would be larger than the system allows. Choose another disk, or raise the limit.",
    errno.EROFS: "{file} is on a read-only disk. Choose another folder.",
    errno.EACCES: "Permission denied: {file}. Change its permissions, or choose another path.",
    errno.EISDIR: "{file} is a folder; a file was expected.",
    errno.EEXIST: "{file} already exists and is not what was expected there. Move it, or choose another name.",
    errno.ENOENT: "There is no {file}.",
    errno.ELOOP: "{file} is a link that leads to itself.",
    errno.ENAMETOOLONG: "The name {file} is too long for this disk.",
    errno.ENOTDIR: "{file} cannot exist: part of this path is a file, not a folder.",
}


def error_text(error: BaseException) -> str:
    """Return one line for an error, with what to do about it where the error itself does not say."""
    message = missing_extra(error) or str(error)
    # Our own OSErrors have sentences; those of the system begin with the number.
    if isinstance(error, OSError) and error.errno in _MENDED_BY and message.startswith("[Errno"):
        # Of a file that is renamed, the user knows the new name.
        name = error.filename if error.filename2 is None else error.filename2
        file = os.fsdecode(name) if name is not None else "a file"
        if len(file) > _LONGEST // 4:
            file = f"{file[: _LONGEST // 4]}..."
        message = _MENDED_BY[error.errno].format(file=file)
    message = " ".join(message.split()) or type(error).__name__
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} ..."
    return message


def _is_out_of_memory(error: BaseException) -> bool:
    kinds = [MemoryError]
    if "torch" in sys.modules:
        kinds.append(sys.modules["torch"].OutOfMemoryError)
    return isinstance(error, tuple(kinds))


def _is_in_group() -> bool:
    """Whether this is one of several communicating processes of a command."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


@contextmanager
def user_errors() -> Iterator[None]:
    """
    Turn errors that the user can fix into one line on stderr and exit code 1; Ctrl-C into exit code 130.

    Anything else is a bug: its traceback is printed with a request to report it, and the exit code is 70. With
    `SCALAR_TRACEBACK=1` in the environment, tracebacks of expected errors are printed too.
    """
    try:
        with _reported():
            yield
        # Leave the group: its threads may abort the process if they still run when the interpreter exits.
        if _is_in_group():
            sys.modules["torch"].distributed.destroy_process_group()
    except SystemExit as ended:
        if _is_in_group() and isinstance(ended.code, int):
            # A thread may still wait for another process, and would abort this one when the interpreter exits.
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(ended.code)
        raise


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. The interpreter flushes stdout again when it exits.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt as error:
        print_message(" ".join(["Interrupted.", *map(str, error.args)]))
        raise SystemExit(130) from error
    except Exception as error:
        # The argument parser reports its own errors.
        if hasattr(error, "exit_code"):
            raise
        # What the user can fix is one line; what is unexpected is a bug.
        text = f"Error: {error_text(error)}"
        code = 1
        if _is_out_of_memory(error):
            text = f"Error: Out of memory: {error_text(error)}. Lower the batch size, or close other programs."
        elif not isinstance(error, _EXPECTED):
            text = "This is a bug in the program. Please report it with the command and the lines above."
            code = FAULT
        if code == FAULT or os.environ.get("SCALAR_TRACEBACK") == "1":
            traceback.print_exc()
        print_message(text)
        raise SystemExit(code) from error


def run_command(main: Callable[[], int | None]) -> None:
    """Run the `main` of a program without subcommands, and exit with its return value."""
    with user_errors():
        code = main()
    sys.exit(code)


__all__ = ["FAULT", "error_text", "run_command", "user_errors"]
