"""Removes private data from files before they are published: access tokens, and folders of this machine."""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

TOKEN = re.compile(r"(?:hf_(?:[a-z]+_+)*|api_org_)[A-Za-z0-9]{16,}")  # `hf auth login` gets one like hf_oauth_...
"""The form of the Hub's tokens."""

_TOKEN_BYTES = re.compile(TOKEN.pattern.encode())
_SCANNED = 20 * 2**20  # larger files are weights or media, in which such letters are chance

# Folders of an absolute path within a text. A slash inside a word, a URL or `~/` does not start such a path.
_FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[^/\n:]*[^/\s:]/)+|\b[A-Za-z]:\\(?:[^\\\n:]*[^\\\s:]\\)*")


def without_folders(content: Any) -> Any:
    """Keep only the last component of absolute paths, in texts at any depth of lists and dictionaries."""
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


def check_no_token(folder: Path) -> None:
    """Raise a ValueError that names the first file of a folder that contains a possible token of the Hub."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size <= _SCANNED and path.suffix != ".safetensors":
            if _TOKEN_BYTES.search(path.read_bytes()):
                raise ValueError(
                    f"{path.relative_to(folder)} holds what looks like a token (hf_...). Remove it from the file that "
                    "this one was made from, and revoke the token: somebody may have read it."
                )


__all__ = ["TOKEN", "check_no_token", "without_folders"]
