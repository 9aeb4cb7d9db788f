"""Media files that an annotation names by id alone, and what happens to clips without theirs."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

# What downloaders leave beside a clip: never the clip itself.
_NOT_MEDIA = {".json", ".srt", ".txt", ".vtt"}


def find_media(folder: Path, ids: Iterable[str]) -> dict[str, str]:
    """
    Find the file `<id>.<any extension>` of each id, by one listing of the folder.

    Args:
        folder (`Path`): where the files lie. If it does not exist, no id has a file in it.
        ids (iterable of `str`): may contain dots. Files of other ids are ignored, and so are `.json`, `.srt`, `.txt`
            and `.vtt` files.

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
            # A broken link stays: whoever reads it reports it. Without it the clip would seem to lack the track.
            if name in wanted and extension.lower() not in _NOT_MEDIA and not entry.is_dir():
                found.setdefault(name, []).append(entry.path)
    several = [" and ".join(sorted(map(os.path.basename, paths))) for paths in found.values() if len(paths) > 1]
    if several:
        raise ValueError(
            f"{len(several)} clips have several files in {folder}: {', '.join(sorted(several)[:10])}"
            f"{', …' if len(several) > 10 else ''}. Keep one of each."
        )
    return {name: paths[0] for name, paths in found.items()}


def refuse_missing(lost: Sequence[str], num_clips: int, fault: str, on_missing: str) -> None:
    """
    Stop because clips lack their files, or warn that the gallery goes without them.

    Args:
        lost (`Sequence[str]`): the clips, as the message is to name them.
        num_clips (`int`): of the whole annotation.
        fault (`str`): what is wrong with these clips.
        on_missing (`str`): "raise", or "leave_out", which is refused if no clip would be left.

    Raises:
        FileNotFoundError: names the first ten.
    """
    if not lost:
        return
    message = f"{len(lost)} of {num_clips} clips {fault}: {', '.join(lost[:10])}{', …' if len(lost) > 10 else ''}."
    if len(lost) == num_clips:
        raise FileNotFoundError(f"{message} Is this the right folder?")
    if on_missing == "raise":
        raise FileNotFoundError(
            f"{message} Restore them, or take them out of the annotation; no clip is left out in silence. With "
            '`on_missing="leave_out"` the gallery is what is there, and every result names the clips left out.'
        )
    logger.warning("%s They are left out.", message)


__all__ = ["find_media", "refuse_missing"]
