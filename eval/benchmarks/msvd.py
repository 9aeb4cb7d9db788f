"""MSVD (Chen and Dolan, 2011): 670 test clips without sound, with about forty captions each, which are all used.

The annotation is `AllVideoDescriptions.txt`, with a clip's id and a caption on each line; lines that begin with `#`
are comments. The ids of a split are in `train_list.txt`, `val_list.txt` or `test_list.txt`, as in retrieval papers.
"""

from pathlib import Path

from .descs import Entry, descs_benchmark, reading

_DESCRIPTIONS = "AllVideoDescriptions.txt"


def _lines(path: Path) -> list[str]:
    what = f"A folder of MSVD needs {_DESCRIPTIONS} and a list of the clips of each split, an id per line."
    with reading(path, "text in UTF-8", what):
        lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _read(path: Path) -> list[Entry]:
    # The ids of the split, and all captions of the corpus by id.
    ids = _lines(path)
    descriptions = path.with_name(_DESCRIPTIONS)
    captions: dict[str, list[str]] = {}
    for line in _lines(descriptions):
        video_id, _, caption = line.partition(" ")
        if not caption.strip():
            raise ValueError(f"A line of {descriptions} must be a clip's id and a caption, got {line!r:.200}.")
        captions.setdefault(video_id, []).append(caption.strip())
    # The clips of the split, each once.
    entries = []
    for video_id in dict.fromkeys(ids):
        if video_id not in captions:
            raise ValueError(f"{descriptions} has no caption for the clip {video_id!r} of {path}. Restore them.")
        entries.append(Entry(video_id, captions[video_id]))
    return entries


_FILES = {"train": "train_list.txt", "validation": "val_list.txt", "test": "test_list.txt"}
MSVD = descs_benchmark("MSVD", _FILES, read=_read, captions="all")

__all__ = ["MSVD"]
