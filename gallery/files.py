"""Small files: JSON that is never half written, content hashes, and a lock that dies with its process."""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def _without_infinity(content: Any) -> Any:
    """JSON knows no infinity, of a temperature say: it becomes a string that `float` reads."""
    if isinstance(content, dict):
        return {name: _without_infinity(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_infinity(value) for value in content]
    return str(content) if isinstance(content, float) and math.isinf(content) else content


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder survive a power cut, where the system offers that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(content: Any, path: Path) -> int:
    """
    Write JSON so that `path` holds the old content or the new one, never half of it, even after a power cut.

    Returns:
        `int`: how many bytes were written.

    Raises:
        TypeError: the content holds something JSON cannot.
        ValueError: a number is NaN.
    """
    content = _without_infinity(content)
    try:
        raw = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # a file name that is not UTF-8
        raw = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return len(raw)


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read_json(path: Path) -> dict[str, Any]:
    """
    Read a JSON object.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, holds a number that is not finite, or something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_json)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content


def sha256_of(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """
    Hold a lock file; the system lets go of it when the process ends, however it does.

    Raises:
        ValueError: another process holds it; with `message`.
    """
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout as error:
        raise ValueError(message) from error


__all__ = ["locked", "read_json", "sha256_of", "sync_folder", "write_json"]
