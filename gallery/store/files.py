"""Small files: JSON that is never half written, content hashes, and a lock that is released when its process dies."""

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from scalar_retrieval.commands.schema import parse_json

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Add the file name to an OSError that lacks it, such as those of writing and syncing on a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


# Writing ----------------------------------------------------------------------------------------------------------


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the system supports that."""
    if os.name == "posix":
        with naming(folder):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """
    Write a file so that `path` holds either the old content or the new one, never half of it.

    Args:
        path (`Path`): the file.
        write (`Callable`): called with the open file.

    Raises:
        OSError: e.g. the disk is full; it names the file, and nothing of the new content remains.
    """
    # Two processes that wrongly write at once each use their own temporary file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # the first error counts
            temporary.unlink(missing_ok=True)


def without_infinity(content: Any) -> Any:
    """Replace infinity, which JSON lacks, e.g. as a temperature, by a string that `float` can read."""
    if isinstance(content, dict):
        return {name: without_infinity(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_infinity(value) for value in content]
    if isinstance(content, float) and math.isinf(content):
        return str(content)
    return content


def write_json(content: Any, path: Path) -> int:
    """
    Write JSON so that `path` holds either the old content or the new one, never half of it, even after a power cut.

    Returns:
        `int`: number of bytes written.

    Raises:
        TypeError: the content holds something JSON cannot.
        ValueError: a number is NaN.
        OSError: the file could not be written; it is named.
    """
    # In memory first: if JSON cannot hold the content, no file is touched.
    content = without_infinity(content)
    raw = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    write_whole(path, lambda file: file.write(raw))
    sync_folder(path.parent)
    return len(raw)


# Reading ----------------------------------------------------------------------------------------------------------


def read_json(path: Path, remedy: str = "Restore the file.") -> dict[str, Any]:
    """
    Read a JSON object.

    Args:
        path (`Path`): the file.
        remedy (`str`): end of the error message: what to do.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or not an object.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
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
    Hold a lock file; the system releases it when the process ends for any reason.

    Args:
        path (`Path`): the file; it stays when the lock is released.
        message (`str`): error message if another process, or another object in this process, holds it.

    Yields:
        A function that raises a ValueError if the lock is no longer held: the file was deleted or replaced, so that
        another process could lock it too, or this process was forked from the one that holds it.

    Raises:
        ValueError: another holds it, or the drive does not support locks.
        OSError: the file cannot be made.
    """
    # Not the library's lock by existence, for drives without locks: it outlives a process that is killed. And not a
    # lock per thread: another thread may release it.
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
            f"The drive of {path} does not support locks, so two processes could write at once. Write to a local "
            "folder and copy it there when it is finished; reading needs no lock."
        ) from error

    def identify() -> tuple[int, int, int] | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return os.getpid(), status.st_dev, status.st_ino

    # The file that is locked now, by this process.
    mine = identify()

    def check() -> None:
        if identify() != mine or mine is None:
            raise ValueError(
                f"The lock {path} is no longer held: it was deleted or replaced, or the process was forked. "
                "Nothing was changed, as another process may write here. Start again."
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
