"""The columns of every benchmark, the conversion of annotation rows to a `datasets.Dataset`, and the search for media
files by id.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset, Features, Value

logger = logging.getLogger(__name__)

# One row per clip and caption; None marks a track that the clip lacks.
FEATURES = Features(
    {
        "video_id": Value("string"),
        "caption": Value("string"),
        "video_path": Value("string"),
        "audio_path": Value("string"),
        "subtitle": Value("string"),
    }
)

KIND = "kind"
"""An optional column next to those of `FEATURES`: the kind of the row's caption, or None. All other columns are
further texts of the clip, named like the model's modality that reads them."""


# Files that downloaders write next to a clip, never the clip itself.
_NOT_MEDIA = {".json", ".srt", ".txt", ".vtt"}


def find_media(folder: Path, ids: Iterable[str]) -> dict[str, str]:
    """
    Find the file `<id>.<any extension>` of each id with one listing of the folder.

    Args:
        folder (`Path`): folder of the files. If it does not exist, no id has a file.
        ids (iterable of `str`): may contain dots. Files of other ids are ignored, and so are `.json`, `.srt`, `.txt`
            and `.vtt` files.

    Returns:
        `dict` of absolute paths by id; ids without a file are not in it.

    Raises:
        ValueError: ids have several files; the message names the first ten.
    """
    wanted, found = set(ids), {}
    if not folder.is_dir():
        return {}
    with os.scandir(folder.absolute()) as entries:
        for entry in entries:
            name, extension = os.path.splitext(entry.name)
            # A broken link is kept: reading it reports the error. Otherwise the clip would seem to lack the track.
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
    Stop because clips lack their files, or warn that they are left out.

    Args:
        lost (`Sequence[str]`): the clips, as named in the message.
        num_clips (`int`): number of clips of the whole annotation.
        fault (`str`): what is wrong with these clips.
        on_missing (`str`): "raise", or "leave_out", which is refused if no clip would be left.

    Raises:
        FileNotFoundError: the message names the first ten.
    """
    if not lost:
        return
    message = f"{len(lost)} of {num_clips} clips {fault}: {', '.join(lost[:10])}{', …' if len(lost) > 10 else ''}."
    if len(lost) == num_clips:
        raise FileNotFoundError(f"{message} Is this the right folder?")
    if on_missing == "raise":
        raise FileNotFoundError(
            f"{message} Restore them, or remove them from the annotation; no clip is left out silently. With "
            '`on_missing="leave_out"` the gallery has only the others, and every result lists the clips left out.'
        )
    logger.warning("%s They are left out.", message)


def make_dataset(rows: Sequence[Mapping[str, str | None]]) -> Dataset:
    """
    Build a data set with the columns of `FEATURES`, and any further ones of the rows: `KIND`, and further texts.

    Raises:
        ValueError: there are no rows, or a text holds half a character, which JSON can hold but no file can store.
    """
    if not rows:
        raise ValueError("The annotation lists no clip of this split. Give the annotation of another split.")
    try:
        further = {name: Value("string") for name in rows[0] if name not in FEATURES}
        return Dataset.from_list(list(rows), features=Features({**FEATURES, **further}))
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text {error.object!r:.200} of the annotation is not Unicode. Restore the file."
        ) from error


def dataset_from_rows(
    rows: Sequence[Mapping[str, str | None]], root: Path, on_missing: str = "raise", texts: Sequence[str] = ()
) -> tuple[Dataset, list[str]]:
    """Build the data set of a benchmark whose annotation lists files, with absolute paths.

    Args:
        rows (`Sequence[Mapping]`): each with at least the columns of `FEATURES`, and all or none with `KIND`; paths
            are relative to `root`. Rows of the same `video_id` give the same files.
        root (`Path`): folder of the media files.
        on_missing (`str`): "raise", or "leave_out": clips with missing files.
        texts (`Sequence[str]`): columns of the rows that are further texts.
    Returns:
        `Dataset` with exactly these columns, in the order of `rows`, and the ids left out.
    Raises:
        FileNotFoundError: a file does not exist, or a row has neither a file nor a text; the message names the first
            such clips.
    """
    root, resolved, lost = root.absolute(), [], {}
    for row in rows:
        row = {name: row[name] for name in (*FEATURES, *texts, KIND) if name != KIND or name in row}
        named = {name: str(root / row[name]) for name in ("video_path", "audio_path") if row[name] is not None}
        absent = [path for path in dict.fromkeys(named.values()) if not Path(path).is_file()]
        if absent or not (named or any(row[name] for name in ("subtitle", *texts))):
            lost[row["video_id"]] = f"{row['video_id']} ({', '.join(absent) or 'no file is named'})"
        resolved.append(row | named)
    num_clips = len({row["video_id"] for row in resolved})
    refuse_missing(list(lost.values()), num_clips, "lack a file", on_missing)
    return make_dataset([row for row in resolved if row["video_id"] not in lost]), list(lost)


__all__ = ["FEATURES", "KIND", "dataset_from_rows", "find_media", "make_dataset", "refuse_missing"]
