"""Media files that an annotation names by id alone."""

import os
from collections.abc import Iterable
from pathlib import Path

# What downloaders leave beside a clip: never the clip itself.
_NOT_MEDIA = {".json", ".srt", ".txt", ".vtt"}


def find_media(folder: Path, ids: Iterable[str]) -> dict[str, str]:
    """
    Find the file `<id>.<any extension>` of each id, by one listing of the folder.

    Args:
        folder (`Path`): where the files lie. That there is no such folder means that no id has a file in it.
        ids (iterable of `str`): may contain dots. Files of other ids are passed over, and `.json`, `.srt`, `.txt` and
            `.vtt` files.

    Returns:
        `dict` of ids to absolute paths; ids without a file are not in it.

    Raises:
        ValueError: ids have several files; the message names the first ten.
    """
    wanted, found = set(ids), {}
    if not folder.is_dir():
        return {}
    with os.scandir(folder.absolute()) as entries:
        for entry in entries:
            name, extension = os.path.splitext(entry.name)
            # A link to nowhere stays: whoever reads it says so. Without it the clip would pass for one that lacks it.
            if name in wanted and extension.lower() not in _NOT_MEDIA and not entry.is_dir():
                found.setdefault(name, []).append(entry.path)
    several = [" and ".join(sorted(map(os.path.basename, paths))) for paths in found.values() if len(paths) > 1]
    if several:
        raise ValueError(
            f"{len(several)} clips have several files in {folder}: {', '.join(sorted(several)[:10])}"
            f"{', …' if len(several) > 10 else ''}. Keep one of each."
        )
    return {name: paths[0] for name, paths in found.items()}


__all__ = ["find_media"]
