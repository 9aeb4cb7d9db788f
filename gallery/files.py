"""Small files: JSON that is never half written, content hashes, and a lock that dies with its process."""

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

_MAX_JSON_BYTES = 2**28
_MAX_DEPTH = 100
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Name a file in an OSError that does not: those of writing and syncing, on a full disk say, know none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


# Writing ----------------------------------------------------------------------------------------------------------


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder survive a power cut, where the system offers that."""
    if os.name == "posix":
        with naming(folder):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """
    Write a file so that `path` holds the old content or the new one, never half of it.

    Args:
        path (`Path`): the file.
        write (`Callable`): is given the open file.

    Raises:
        OSError: of a full disk say; it names the file, and nothing is left of the new content.
    """
    # Processes that should not be here at once write to files of their own.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # what went wrong before counts
            temporary.unlink(missing_ok=True)


def without_infinity(content: Any) -> Any:
    """JSON knows no infinity, of a temperature say: it becomes a string that `float` reads."""
    if isinstance(content, dict):
        return {name: without_infinity(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_infinity(value) for value in content]
    return str(content) if isinstance(content, float) and math.isinf(content) else content


def write_json(content: Any, path: Path) -> int:
    """
    Write JSON so that `path` holds the old content or the new one, never half of it, even after a power cut.

    Returns:
        `int`: how many bytes were written.

    Raises:
        TypeError: the content holds something JSON cannot.
        ValueError: a number is NaN, or the content is nested too deeply.
        OSError: it could not be written; the file is named.
    """
    try:
        content = without_infinity(content)
        try:
            raw = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        except UnicodeEncodeError:  # a file name that is not UTF-8
            raw = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    except RecursionError as error:
        raise ValueError(f"What is to be written to {path} is nested too deeply.") from error
    write_whole(path, lambda file: file.write(raw))
    sync_folder(path.parent)
    return len(raw)


# Reading ----------------------------------------------------------------------------------------------------------


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _integer(text: str) -> int:
    if len(text) > 300:  # what no float can hold would be an OverflowError wherever it is used
        raise ValueError(f"a number of {len(text)} digits is out of range")
    return int(text)


def _real(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is out of range")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)[:80]!r} is there twice")
    return content


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(_MAX_DEPTH):
        level = [
            value
            for item in level
            if isinstance(item, dict | list)
            for value in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")


def read_json(path: Path, remedy: str = "Restore the file.") -> dict[str, Any]:
    """
    Read a JSON object.

    Args:
        path (`Path`): the file.
        remedy (`str`): the end of the message if something is wrong: what to do.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a regular file of at most 256 MB, or not JSON; a number is out of range, a name is there
            twice, or it is nested deeper than 100 levels; or it holds something else than an object.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_JSON_BYTES:
        raise ValueError(f"{path} must be a file of at most {_MAX_JSON_BYTES / 1e6:.0f} MB. {remedy}")
    try:
        content = json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_not_json,
            parse_int=_integer,
            parse_float=_real,
            object_pairs_hook=_unique,
        )
        _check_depth(content)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}. {remedy}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}. {remedy}")
    return content


def sha256_of(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# A lock -----------------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, message: str) -> Iterator[Callable[[], None]]:
    """
    Hold a lock file; the system lets go of it when the process ends, however it does.

    Args:
        path (`Path`): the file; it stays when the lock is released.
        message (`str`): of the error if another process, or another object of this one, holds it.

    Yields:
        A function that raises a ValueError if the lock is not held any more: the file was deleted or replaced, so that
        another process can lock it too, or this process was forked from the one that holds it.

    Raises:
        ValueError: another holds it, or the drive offers no such locks.
        OSError: the file cannot be made.
    """
    # Not the lock by existence that the library offers for drives without locks: that outlives a process that is
    # killed. And not one for each thread: it may be released in another one.
    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        with naming(path):
            lock.acquire()
    except Timeout as error:
        raise ValueError(message) from error
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        raise ValueError(
            f"The drive of {path} offers no locks, so nothing would keep two processes from writing at once. Write to "
            "a local folder, and copy it there when it is finished; reading needs no lock."
        ) from error

    def identify() -> tuple[int, int, int] | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return os.getpid(), status.st_dev, status.st_ino

    mine = identify()

    def check() -> None:
        if identify() != mine or mine is None:
            raise ValueError(
                f"The lock {path} is not held by this process any more: it was deleted or replaced, or the process "
                "was forked. Another process may write here, so nothing was changed. Start again."
            )

    try:
        yield check
    finally:
        lock.release()


__all__ = [
    "locked",
    "naming",
    "read_json",
    "sha256_of",
    "sync_folder",
    "without_infinity",
    "write_json",
    "write_whole",
]
