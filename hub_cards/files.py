"""JSON files, and what of them is nobody's business."""

import json
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

TOKEN = re.compile(r"(?:hf_(?:[a-z]+_+)*|api_org_)[A-Za-z0-9]{16,}")  # hf_oauth_... is that of `hf auth login`
"""What tokens of the Hub look like."""

# Folders of an absolute path within a text. What stands before a slash inside a word, a URL or `~/` is no such path.
_FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[^/\n:]*[^/\s:]/)+|\b[A-Za-z]:\\(?:[^\\\n:]*[^\\\s:]\\)*")


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


def without_folders(content: Any) -> Any:
    """Of absolute paths, in texts at any depth, keep the last component: where files lay is nobody's business."""
    if isinstance(content, dict):
        return {name: without_folders(value) for name, value in content.items()}
    if isinstance(content, list):
        return [without_folders(value) for value in content]
    if not isinstance(content, str):
        return content
    for path in (PurePosixPath(content), PureWindowsPath(content)):
        if path.is_absolute() and ": " not in content:
            return path.name
    return _FOLDERS.sub("", content)


__all__ = ["TOKEN", "read_json", "without_folders", "write_json"]
