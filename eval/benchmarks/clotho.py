"""Clotho (Drossos et al., 2020): 1,045 audio clips of the evaluation split, with five captions each and no video.

The annotation is `clotho_captions_<split>.csv`: the name of a file and its captions. Audio files are in `audios/`.
"""

import csv
from pathlib import Path

from eval.benchmarks.descs import Entry, descs_benchmark, is_text

_CAPTIONS = [f"caption_{number}" for number in range(1, 6)]


def _read(path: Path) -> list[Entry]:
    expected = f"Clotho's own CSV with the columns file_name, {', '.join(_CAPTIONS)}"
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines, strict=True))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"No annotation at {path}. It must be {expected}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not CSV in UTF-8: {error}. Restore the file.") from error
    entries = []
    for number, row in enumerate(rows, start=1):
        captions = [row.get(name) for name in _CAPTIONS]
        if not all(map(is_text, [row.get("file_name"), *captions])):
            raise ValueError(f"Row {number} of {path} must be one of {expected}; got {row!r:.200}.")
        entries.append(Entry(Path(row["file_name"]).stem, captions))
    return entries


_SPLITS = {"train": "development", "validation": "validation", "test": "evaluation"}
_FILES = {split: f"clotho_captions_{name}.csv" for split, name in _SPLITS.items()}
CLOTHO = descs_benchmark("Clotho", _FILES, read=_read, captions="all")

__all__ = ["CLOTHO"]
