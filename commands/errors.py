"""What every command does with errors: the expected become one sentence and an exit code, Ctrl-C is not an error.

Exit codes: 1 for what the user can mend, 2 for usage (of the parsers of arguments), 130 for Ctrl-C, 70 for a fault of
ours.
"""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import typer

import commands.interrupts  # noqa: F401

from .extras import missing_extra
from .texts import plain

FAULT = 70
"""The exit code of a fault of ours: EX_SOFTWARE of sysexits.h."""

_EXPECTED = (ImportError, OSError, ValueError)
_LONGEST = 2000  # characters of a sentence: some libraries list all they know
_MENDED_BY = {
    errno.ENOSPC: "The disk is full: {file} could not be written. Free some space, then give the same command again.",
    errno.EDQUOT: "The quota is used up: {file} could not be written. Free some space, then give the same command "
    "again.",
    errno.EFBIG: "{file} would become larger than the system allows. Choose another disk, or raise the limit.",
    errno.EROFS: "{file} lies on a disk that is mounted read-only. Choose another folder.",
    errno.EACCES: "There is no permission to use {file}. Change it, or choose another place.",
    errno.EISDIR: "{file} is a folder; a file was expected.",
    errno.EEXIST: "{file} is in the way: something else was expected there. Move it, or choose another name.",
    errno.ENOENT: "There is no {file}.",
    errno.ELOOP: "{file} is a link that leads to itself.",
    errno.ENAMETOOLONG: "The name {file} is too long for this disk.",
    errno.ENOTDIR: "{file} cannot be: a part of this path is a file, not a folder.",
}


def describe(error: BaseException) -> str:
    """Say in one line what happened, and what helps where the error itself does not know it."""
    message = missing_extra(error) or str(error)
    if isinstance(error, OSError) and error.errno in _MENDED_BY and message.startswith("[Errno"):
        # Of a file that is renamed, the new name is the one that the user knows.
        name = error.filename if error.filename2 is None else error.filename2
        file = "a file" if name is None else os.fsdecode(name)
        file = file if len(file) <= _LONGEST // 4 else f"{file[: _LONGEST // 4]}..."
        message = _MENDED_BY[error.errno].format(file=file)
    message = " ".join(message.split()) or type(error).__name__
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."


def _is_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    return isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError))


def say(message: str, stream: TextIO | None = None) -> None:
    """Print one line, by default to stderr; what the terminal cannot print is escaped."""
    stream = stream or sys.stderr
    typer.echo(plain(message, stream.encoding), file=stream)


def show(*lines: str) -> None:
    """Print lines of a result to stdout, each as [`say`] does."""
    for line in lines:
        say(line, sys.stdout)


def _is_in_group() -> bool:
    """Whether this is one of several processes of a command that talk to each other."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()


def _leave_group() -> None:
    """End what processes of one command talk by: its threads, ended with the interpreter, may abort the process."""
    if _is_in_group():
        sys.modules["torch"].distributed.destroy_process_group()


@contextmanager
def user_errors() -> Iterator[None]:
    """
    Turn what a user can mend into one sentence on stderr and exit code 1; Ctrl-C into exit code 130.

    Anything else is a fault of ours: its traceback is printed, with the request to report it, and the exit code is 70.
    With `SCALAR_TRACEBACK=1` in the environment, tracebacks of expected errors are printed too.
    """
    try:
        with _telling():
            yield
        _leave_group()
    except SystemExit as ended:
        if _is_in_group() and isinstance(ended.code, int):
            # A thread may still wait for another process, and would abort this one when the interpreter ends.
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(ended.code)
        raise


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        with suppress(OSError, ValueError):  # the interpreter flushes it once more when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt as error:
        say(" ".join(["Interrupted.", *map(str, error.args)]))
        raise SystemExit(130) from error
    except Exception as error:
        if hasattr(error, "exit_code"):  # of the parser of arguments, which tells them itself
            raise
        expected = isinstance(error, _EXPECTED) or _is_out_of_memory(error)
        if not expected or os.environ.get("SCALAR_TRACEBACK") == "1":
            traceback.print_exc()
        if not expected:
            say("This is a fault of the program. Please report it, with the lines above and the command.")
            raise SystemExit(FAULT) from error
        if _is_out_of_memory(error):
            say(
                f"Error: There is not enough memory: {describe(error)}. Lower the batch size, or close other programs."
            )
        else:
            say(f"Error: {describe(error)}")
        raise SystemExit(1) from error


class Commands(typer.core.TyperGroup):
    """Commands whose errors are told by [`user_errors`]: `typer.Typer(cls=Commands)`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        with user_errors():
            return super().invoke(ctx)


def run_command(main: Callable[[], int | None]) -> None:
    """Run the `main` of a program without subcommands, and exit with what it returns."""
    with user_errors():
        code = main()
    sys.exit(code)


__all__ = ["FAULT", "Commands", "describe", "plain", "run_command", "say", "show", "user_errors"]
