"""The columns that every benchmark has, and the one way from annotation rows to a `datasets.Dataset`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from datasets import Dataset, Features, Value

# One row per clip; None stands for a track that the clip lacks.
FEATURES = Features(
    {
        "video_id": Value("string"),
        "caption": Value("string"),
        "video_path": Value("string"),
        "audio_path": Value("string"),
        "subtitle": Value("string"),
    }
)


def dataset_from_rows(rows: Sequence[Mapping[str, str | None]], root: Path) -> Dataset:
    """Build the data set of a benchmark, with absolute paths.

    Args:
        rows (`Sequence[Mapping]`): each with at least the columns of `FEATURES`; paths are relative to `root`.
        root (`Path`): folder of the media files.
    Returns:
        `Dataset` with exactly the columns of `FEATURES`, in the order of `rows`.
    Raises:
        FileNotFoundError: a file is not there; the message names the first clips concerned.
    """
    columns: dict[str, list[str | None]] = {name: [row[name] for row in rows] for name in FEATURES}
    missing = []
    for name in ("video_path", "audio_path"):
        columns[name] = [None if path is None else str(root.absolute() / path) for path in columns[name]]
    for video_id, *paths in zip(columns["video_id"], columns["video_path"], columns["audio_path"], strict=True):
        missing += [f"{video_id} ({path})" for path in dict.fromkeys(paths) if path and not Path(path).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} files named in the annotation are not there: {', '.join(missing[:5])}"
            f"{', …' if len(missing) > 5 else ''}. Restore them; no clip is left out."
        )
    return Dataset.from_dict(columns, features=FEATURES)


__all__ = ["FEATURES", "dataset_from_rows"]
