"""The columns of every benchmark, the conversion of annotation rows to a `datasets.Dataset`, and the search for media
files by id.
"""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from datasets import Dataset, Features, Value

from scalar_retrieval.modeling_scalar.tracks_scalar import TEXT_FILES

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
_NOT_MEDIA = {".json", ".txt", *TEXT_FILES}


def _first_ten(names: Sequence[str]) -> str:
    """Join names for a message, with `…` in place of those after the tenth."""
    more = ["…"] if len(names) > 10 else []
    return ", ".join([*names[:10], *more])


def find_media(folder: Path, ids: Iterable[str]) -> dict[str, str]:
    """
    Find the file `<id>.<any extension>` of each id with one listing of the folder.

    Args:
        folder (`Path`): folder of the files. If it does not exist, no id has a file.
        ids (iterable of `str`): may contain dots. Files of other ids are ignored, and so are `.json`, `.txt` and
            subtitle files.

    Returns:
        `dict` of absolute paths by id; ids without a file are not in it.

    Raises:
        ValueError: ids have several files; the message names the first ten.
    """
    if not folder.is_dir():
        return {}

    # One listing, because asking for each file is slow on a network.
    wanted = set(ids)
    files: dict[str, list[str]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            name, extension = os.path.splitext(entry.name)
            # A broken link is kept: reading it reports the error. Otherwise the clip would seem to lack the track.
            if name in wanted and extension.lower() not in _NOT_MEDIA and not entry.is_dir():
                files.setdefault(name, []).append(entry.name)
    # An id with several files does not decide which one is the clip.
    several = [" and ".join(sorted(names)) for names in files.values() if len(names) > 1]
    if several:
        raise ValueError(
            f"{len(several)} clips have several files in {folder}: {_first_ten(sorted(several))}. Keep one of each."
        )
    return {name: os.path.abspath(folder / names[0]) for name, names in files.items()}


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
    # If all clips lack their files, the folder is probably the wrong one.
    message = f"{len(lost)} of {num_clips} clips {fault}: {_first_ten(lost)}."
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
        ValueError: there are no rows, or a text is not Unicode: JSON can hold half a character, no file can store it.
    """
    if not rows:
        raise ValueError("The annotation lists no clip of this split. Give the annotation of another split.")
    features = Features({name: Value("string") for name in (*FEATURES, *rows[0])})
    return Dataset.from_list(list(rows), features=features)


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
    root = root.absolute()
    columns = [*FEATURES, *texts]
    if rows and KIND in rows[0]:
        columns.append(KIND)
    resolved = []
    clip_ids = set()
    lost = {}
    for given in rows:
        row = {name: given[name] for name in columns}
        clip_id = row["video_id"]
        clip_ids.add(clip_id)

        # Absolute paths; a file named twice, as video and audio, is reported once.
        absent = []
        has_content = row["subtitle"] or any(map(row.get, texts))
        for name in ("video_path", "audio_path"):
            if row[name] is not None:
                has_content = True
                row[name] = str(root / row[name])
                if row[name] not in absent and not Path(row[name]).is_file():
                    absent.append(row[name])
        if absent or not has_content:
            lost[clip_id] = f"{clip_id} ({', '.join(absent) or 'no file is named'})"
        resolved.append(row)

    # A clip is left out with all of its rows.
    refuse_missing(list(lost.values()), len(clip_ids), "lack a file", on_missing)
    return make_dataset([row for row in resolved if row["video_id"] not in lost]), list(lost)


__all__ = ["FEATURES", "KIND", "dataset_from_rows", "find_media", "make_dataset", "refuse_missing"]
