"""Keeps private data out of published files: access tokens, and folders of this machine."""

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from .card import KEPT_BEGIN, KEPT_END

_TOKEN = re.compile(rb"(?:hf_(?:[a-z]+_+)*|api_org_)[A-Za-z0-9]{16,}")  # `hf auth login` gets one like hf_oauth_...
_SCANNED = 20 * 2**20  # larger files are weights or media, in which such letters are chance

# Folders of an absolute path within a text. A slash inside a word, a URL or `~/` does not start such a path.
_FOLDERS = re.compile(r"(?<![\w.:/~-])/(?:[^/\n:]*[^/\s:]/)+|\b[A-Za-z]:\\(?:[^\\\n:]*[^\\\s:]\\)*")

_LOCAL_PATH = re.compile(
    r"(?<![\w/.:~-])/(?:home|Users|root|tmp|private|mnt|media|data|(?<!\]\(/)datasets|var|opt|srv|usr|work|workspace|scratch"
    r"|gpfs|lustre|nfs|storage|project|projects|content|kaggle|app)/[^\s)\"'`>\]]*"
    r"|\bfile://[^\s)\"'`>\]]*|(?<![\w])[A-Za-z]:\\[^\s)\"'`>\]]*"
)


def without_folders(content: Any) -> Any:
    """Keep only the last component of absolute paths, in texts at any depth of lists and dictionaries."""
    if isinstance(content, dict):
        return {name: without_folders(value) for name, value in content.items()}
    if isinstance(content, list):
        return [without_folders(value) for value in content]
    if not isinstance(content, str):
        return content
    # A text that is a path as a whole, or one with paths in it.
    for path in (PurePosixPath(content), PureWindowsPath(content)):
        if path.is_absolute() and ": " not in content:
            return path.name
    return _FOLDERS.sub("", content)


def check_card(card: str) -> None:
    """Raise a ValueError that lists the paths of this machine in a card, except in the text that a person wrote."""
    # What a person wrote is theirs.
    before, _, rest = card.partition(KEPT_BEGIN)
    generated = before + rest.partition(KEPT_END)[2]
    paths = sorted(set(_LOCAL_PATH.findall(generated)))
    if paths:
        raise ValueError(f"The card names paths of one machine: {', '.join(paths)}. Remove them from its sources.")


def check_no_token(folder: Path) -> None:
    """Raise a ValueError that names the first file of a folder that contains a possible token of the Hub."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix == ".safetensors" or path.stat().st_size > _SCANNED:
            continue
        if _TOKEN.search(path.read_bytes()):
            raise ValueError(
                f"{path.relative_to(folder)} holds what looks like a token (hf_...). Remove it from the file that "
                "this one was made from, and revoke the token: somebody may have read it."
            )


__all__ = ["check_card", "check_no_token", "without_folders"]
