"""YouCook2 (Zhou et al., 2018): steps of recipes, each a part of a video with one sentence.

The annotation is `youcookii_annotations_trainval.json`. As in the literature, its validation videos are the test split
here, because the sentences of the test videos are not public. A clip is a step, which has to be cut out of its video
into a file named `<video id>_<id of the step>`.
"""

import os
from pathlib import Path

from datasets import Dataset

from .definition import PROTOCOL, Benchmark
from .descs import Entry, dataset_from_entries, is_text, read_json

_SUBSETS = {"train": "training", "test": "validation"}
_FORMAT = "YouCook2's own youcookii_annotations_trainval.json, an object whose `database` holds videos by id"


def load_youcook2(
    root: str | os.PathLike,
    split: str = "test",
    *,
    on_missing: str = "raise",
) -> tuple[Dataset, list[str]]:
    """
    Load the steps of the videos of a split; for arguments and results see
    [`~scalar_retrieval.eval.benchmarks.descs.load_descs`].

    Raises:
        FileNotFoundError: there is no annotation, or steps have no file.
        ValueError: the annotation is malformed.
    """
    # Every step of every video of the split is a clip.
    path = Path(root) / "youcookii_annotations_trainval.json"
    videos = read_json(path, dict, _FORMAT).get("database")
    entries = []
    try:
        for video_id, video in videos.items():
            if video["subset"] == _SUBSETS[split]:
                for step in video["annotations"]:
                    entries.append(Entry(f"{video_id}_{step['id']}", [step["sentence"]]))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be {_FORMAT}, each with its `subset` and `annotations` of `id` and `sentence`: {error!r}."
        ) from error
    for entry in entries:
        if not is_text(entry.captions[0]):
            raise ValueError(f"The step {entry.video_id!r} of {path} has no sentence. Restore the file.")
    return dataset_from_entries(entries, Path(root), "first", on_missing)


YOUCOOK2 = Benchmark("YouCook2", load_youcook2, tuple(_SUBSETS), processing=PROTOCOL)

__all__ = ["YOUCOOK2", "load_youcook2"]
