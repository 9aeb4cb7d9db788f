"""JSON files and hashes of files."""

import hashlib
import json
from pathlib import Path
from typing import Any


def _not_a_number(literal: str) -> float:
    raise ValueError(f"{literal} is no number of JSON")


def read_json(path: Path) -> dict[str, Any]:
    """
    Read a JSON file that holds one object.

    Raises:
        ValueError: it is not JSON, or holds something else, or a number that is not finite.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_not_a_number)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold one object, got {type(content).__name__}.")
    return content


def write_json(content: Any, path: Path) -> None:
    """Write what JSON can hold, for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


__all__ = ["read_json", "sha256_of", "write_json"]
