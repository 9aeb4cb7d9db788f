"""Loader of the miniature benchmark that `eval.miniature.generate` writes."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from datasets import Dataset

from eval.benchmarks.columns import dataset_from_rows
from eval.miniature import SPLITS


def _read_rows(folder: Path, split: str) -> list[dict]:
    if split not in SPLITS:
        raise ValueError(f"`split` must be one of {SPLITS}, got {split!r}.")
    if not (folder / "miniature.json").is_file():
        raise FileNotFoundError(
            f"{folder} is not a finished miniature benchmark. "
            f"Make it with `python -m eval miniature --output {folder}`."
        )
    manifest = json.loads((folder / "miniature.json").read_text())
    content = (folder / f"{split}.jsonl").read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["sha256"][f"{split}.jsonl"]:
        raise ValueError(
            f"{folder / f'{split}.jsonl'} is not the file that miniature.json describes. Remove the "
            f"folder and make it again: `python -m eval miniature --output {folder} "
            f"--num-train {manifest['num_train']} --num-test {manifest['num_test']} --seed {manifest['seed']}`."
        )
    return [json.loads(line) for line in content.splitlines()]


def load_miniature(folder: str | os.PathLike, split: str = "test") -> Dataset:
    """Load one split of the miniature benchmark.

    Args:
        folder (`str` or `os.PathLike`): what `python -m eval miniature --output` wrote.
        split (`str`, defaults to "test"): "train" or "test".
    Returns:
        `Dataset` with the columns of `FEATURES`; paths are absolute, `None` stands for a track the clip lacks.
    Raises:
        ValueError: the split is unknown, or the annotation was changed after it was made.
        FileNotFoundError: the folder is missing or unfinished, or lacks the file of a clip.
    """
    folder = Path(folder)
    return dataset_from_rows(_read_rows(folder, split), folder)


def describe_miniature(folder: str | os.PathLike) -> dict[str, Any]:
    """Return what the annotation was made from: the generator's version, seed, counts and the files' SHA-256."""
    manifest = json.loads((Path(folder) / "miniature.json").read_text())
    return {name: manifest[name] for name in ("version", "seed", "num_train", "num_test", "sha256")}


def load_about(folder: str | os.PathLike, split: str = "test") -> list[list[str]]:
    """Return, for each row of `load_miniature`, the one or two modalities that its caption speaks of."""
    return [row["about"] for row in _read_rows(Path(folder), split)]


__all__ = ["describe_miniature", "load_about", "load_miniature"]
