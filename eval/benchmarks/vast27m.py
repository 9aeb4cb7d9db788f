"""A training corpus annotated as VAST-27M is (Chen et al., 2023)."""

import os
from pathlib import Path

from datasets import Dataset

from eval.benchmarks.definition import Benchmark
from eval.benchmarks.descs import dataset_from_entries, read_entries


def load_vast27m(
    root: str | os.PathLike,
    split: str = "train",
    *,
    captions: str = "all",
    annotations: str | os.PathLike | None = None,
    on_missing: str = "raise",
) -> tuple[Dataset, list[str]]:
    """
    Load a corpus whose captions are VAST's: `root/<split>.json`, a list of `{clip_id, vast_cap, subtitle, ...}`.

    Media lie in `root/videos/<clip_id>.<any extension>` and `root/audios/<clip_id>.<any extension>`. A clip without an
    audio file has whatever track its video has.

    Args:
        root (`str` or `os.PathLike`): the folder.
        split (`str`, defaults to "train"): name of the annotation file.
        captions (`str`, defaults to "all"): a row per caption, or only the "first" of each clip.
        annotations (`str` or `os.PathLike`, *optional*): the annotation, where it is not `root/<split>.json`.
        on_missing (`str`, defaults to "raise"): or "leave_out": clips without any file.

    Returns:
        `Dataset` with the columns of `FEATURES` in the order of the annotation, paths absolute, and the ids left out.
        A subtitle that is missing or empty is `None`: the clip has none.

    Raises:
        ValueError: an entry is malformed or repeated, or a clip has several files of one kind.
        FileNotFoundError: there is no annotation, or there are clips without any file.
    """
    path = Path(root) / f"{split}.json" if annotations is None else Path(annotations)
    entries = read_entries(path, id_name="clip_id", caption_names=("vast_cap",))
    return dataset_from_entries(entries, Path(root), captions, on_missing)


VAST27M = Benchmark("VAST-27M", load_vast27m, settings=("captions", "annotations"))

__all__ = ["VAST27M", "load_vast27m"]
