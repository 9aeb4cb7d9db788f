"""Clotho (Drossos et al., 2020): 1,045 audio clips of the evaluation split, with five captions each and no video.

The annotation is `clotho_captions_<split>.csv`: the name of a file and its captions. Audio files are in `audios/`.
"""

import csv
from pathlib import Path

from .descs import Entry, descs_benchmark, is_text, read_csv

_COLUMNS = ("file_name", "caption_1", "caption_2", "caption_3", "caption_4", "caption_5")


def _read(path: Path) -> list[Entry]:
    expected = f"Clotho's own CSV with the columns {', '.join(_COLUMNS)}"
    entries = []
    for number, row in enumerate(read_csv(path, csv.DictReader, expected), start=1):
        values = list(map(row.get, _COLUMNS))
        if not all(map(is_text, values)):
            raise ValueError(f"Row {number} of {path} must be one of {expected}; got {row!r:.200}.")
        # The id of a clip is the name of its file without the suffix.
        file, *captions = values
        entries.append(Entry(Path(file).stem, captions))
    return entries


_FILES = {
    "train": "clotho_captions_development.csv",
    "validation": "clotho_captions_validation.csv",
    "test": "clotho_captions_evaluation.csv",
}
CLOTHO = descs_benchmark("Clotho", _FILES, read=_read, captions="all")

__all__ = ["CLOTHO"]
