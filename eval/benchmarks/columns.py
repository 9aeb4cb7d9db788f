"""The columns that every benchmark has, and the one way from annotation rows to a `datasets.Dataset`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from datasets import Dataset, Features, Value

from eval.benchmarks.media import refuse_missing

# One row per clip and caption; None stands for a track that the clip lacks.
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
"""A column that a benchmark may have beside those of `FEATURES`: of what kind the row's caption is, if of any."""


def make_dataset(rows: Sequence[Mapping[str, str | None]]) -> Dataset:
    """
    Build a data set with the columns of `FEATURES`, and that of `KIND` if the rows have it.

    Raises:
        ValueError: there are no rows, or a text holds half a character, which JSON can write but nothing can store.
    """
    if not rows:
        raise ValueError("The annotation lists no clip of this split. Give the annotation of another split.")
    try:
        features = Features({**FEATURES, KIND: Value("string")}) if KIND in rows[0] else FEATURES
        return Dataset.from_list(list(rows), features=features)
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text {error.object!r:.200} of the annotation is not Unicode. Restore the file."
        ) from error


def dataset_from_rows(
    rows: Sequence[Mapping[str, str | None]], root: Path, on_missing: str = "raise"
) -> tuple[Dataset, list[str]]:
    """Build the data set of a benchmark whose annotation names files, with absolute paths.

    Args:
        rows (`Sequence[Mapping]`): each with at least the columns of `FEATURES`, and all or none with that of `KIND`;
            paths are relative to `root`. Rows of the same `video_id` name the same files.
        root (`Path`): folder of the media files.
        on_missing (`str`): "raise", or "leave_out": the clips whose files are not all there.
    Returns:
        `Dataset` with exactly these columns, in the order of `rows`, and the ids left out.
    Raises:
        FileNotFoundError: a file is not there, or a row has neither a file nor a subtitle; the message names the first
            clips concerned.
    """
    root, resolved, lost = root.absolute(), [], {}
    for row in rows:
        row = {name: row[name] for name in (*FEATURES, KIND) if name in FEATURES or name in row}
        named = {name: str(root / row[name]) for name in ("video_path", "audio_path") if row[name] is not None}
        absent = [path for path in dict.fromkeys(named.values()) if not Path(path).is_file()]
        if absent or not (named or row["subtitle"]):
            lost[row["video_id"]] = f"{row['video_id']} ({', '.join(absent) or 'no file is named'})"
        resolved.append(row | named)
    num_clips = len({row["video_id"] for row in resolved})
    refuse_missing(list(lost.values()), num_clips, "lack a file", on_missing)
    return make_dataset([row for row in resolved if row["video_id"] not in lost]), list(lost)


__all__ = ["FEATURES", "KIND", "dataset_from_rows", "make_dataset"]
