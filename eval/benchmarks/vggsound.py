"""VGGSound (Chen et al., 2020) as classification: the class labels are the queries.

The paper's VGGSound-5K is 5,000 of the test clips, of 310 classes.
"""

import csv
import os
import re
from pathlib import Path

from datasets import Dataset

from .definition import PROTOCOL, Benchmark
from .descs import Entry, dataset_from_entries, read_csv, read_entries

SPLITS = ("train", "test")
_FORMAT = "VGGSound's vggsound.csv, or a JSON list of objects with `video_id` and `label`"


def _read_csv(path: Path, split: str) -> list[Entry]:
    """Read VGGSound's own annotation, which has no header: YouTube id, start in seconds, label, split."""
    entries: dict[str, Entry] = {}
    for number, row in enumerate(read_csv(path, csv.reader, _FORMAT), start=1):
        where = f"Row {number} of {path}"
        if len(row) != 4 or not re.fullmatch("[0-9]{1,9}", row[1]) or not row[2].strip() or row[3] not in SPLITS:
            raise ValueError(
                f"{where} must be a YouTube id, a start in whole seconds, a label and one of {SPLITS}, got {row}."
            )
        # The clips of both splits stand in one file; their names carry the start in six digits.
        if row[3] != split:
            continue
        video_id = f"{row[0]}_{int(row[1]):06d}"
        if video_id in entries:
            raise ValueError(f"{where} repeats the clip {video_id!r}. A clip has one label.")
        entries[video_id] = Entry(video_id, [row[2]])
    return list(entries.values())


def _read_json(path: Path) -> list[Entry]:
    entries = read_entries(path, caption_names=("label", "desc", "caption"))
    several = [entry.video_id for entry in entries if len(entry.captions) > 1]
    if several:
        raise ValueError(f"Every clip of {path} must have one label; these have several: {several[:10]}.")
    return entries


def load_vggsound(
    root: str | os.PathLike,
    split: str = "test",
    *,
    on_missing: str = "raise",
) -> tuple[Dataset, list[str]]:
    """
    Load labelled clips (SCALAR, "VGGSound Transfer and Protocol Check").

    The annotation is `root/descs_ret_<split>.json`, a list of `{video_id, label}` (or `desc` or `caption` instead of
    the label), or else VGGSound's own `root/vggsound.csv`. The id of a clip of the latter is `<YouTube id>_<start, six
    digits>`. It lists all test clips, so `on_missing="leave_out"` evaluates a subset of them.

    Args:
        root (`str` or `os.PathLike`): the folder; media are in `root/videos` and `root/audios`, named by id.
        split (`str`, defaults to "test"): "train" or "test".
        on_missing (`str`, defaults to "raise"): or "leave_out": clips without any file.

    Returns:
        `Dataset` with the columns of `FEATURES`, a row per clip whose caption is the label, and the ids left out. The
        classes are the labels of the available clips.

    Raises:
        FileNotFoundError: there is no annotation, or clips have no file.
        ValueError: a row is malformed or repeated, a clip has several labels or several files of one kind.
    """
    root = Path(root)
    # The annotation of VAST, or else VGGSound's own.
    path = root / f"descs_ret_{split}.json"
    entries = _read_json(path) if path.is_file() else _read_csv(root / "vggsound.csv", split)
    return dataset_from_entries(entries, root, "first", on_missing)


VGGSOUND = Benchmark(
    title="VGGSound-5K",
    load=load_vggsound,
    splits=SPLITS,
    task="classification",
    processing=PROTOCOL,
)

__all__ = ["VGGSOUND", "load_vggsound"]
