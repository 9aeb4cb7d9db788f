"""The miniature benchmark as `generation.generate` writes it, for retrieval and for classification."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from datasets import Dataset

from evidence.miniature.clips import SPLITS
from evidence.miniature.generation import check_version
from evidence.miniature.vocabulary import VOCABULARY
from scalar_retrieval.eval.benchmarks.annotations import FEATURES, dataset_from_rows
from scalar_retrieval.eval.benchmarks.definition import Benchmark
from scalar_retrieval.gallery.store.files import read_json

# The captions of classes, by timbre.
LABELS = {timbre: f"the sound of a {words[0]}" for timbre, words in VOCABULARY["audio"]["timbre"].items()}

# What results store about the set.
_DESCRIBED = (
    "version", "seed", "num_train", "num_validation", "num_test", "shared", "complete", "disagree", "alone",
    "evidence", "recall_at_1_ceilings", "sha256",
)  # fmt: skip


def _read_rows(folder: Path, split: str) -> list[dict]:
    if not (folder / "miniature.json").is_file():
        raise FileNotFoundError(
            f"{folder} is not a finished miniature benchmark. Generate it: `python -m evidence miniature --output "
            f"{folder}`."
        )
    # A changed annotation would change results without notice.
    manifest = _read_manifest(folder)
    content = (folder / f"{split}.jsonl").read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["sha256"].get(f"{split}.jsonl"):
        raise ValueError(
            f"{folder / f'{split}.jsonl'} is not the file that miniature.json describes. Remove the "
            f"folder and generate it again: `python -m evidence miniature --output {folder} {_options(manifest)}`."
        )
    if not content:
        raise ValueError(
            f"{folder} has no clips in the split {split!r}: it was generated with {_options(manifest)}. "
            f"Generate a set with --num-{split} of at least 1 in another folder, or choose another split."
        )
    return [json.loads(line) for line in content.splitlines()]


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / "miniature.json")
    check_version(manifest, folder)
    return manifest


def _options(manifest: dict[str, Any]) -> str:
    """Return the command-line options that generated a set."""
    options = []
    for name in ("num_train", "num_validation", "num_test", "seed", "shared", "disagree"):
        options.append(f"--{name.replace('_', '-')} {manifest[name]}")
    for name in manifest["evidence"]:
        options.append(f"--evidence {name}")
    for name in ("complete", "alone"):
        if manifest[name]:
            options.append(f"--{name}")
    return " ".join(options)


def load_miniature(
    folder: str | os.PathLike, split: str = "test", *, on_missing: str = "raise"
) -> tuple[Dataset, list[str]]:
    """Load one split of the miniature benchmark.

    Args:
        folder (`str` or `os.PathLike`): output folder of `python -m evidence miniature`.
        split (`str`, defaults to "test"): "train", "validation" or "test".
        on_missing (`str`, defaults to "raise"): or "leave_out": clips with missing files.
    Returns:
        `Dataset` with the columns of `FEATURES`, further evidence by its names, and the kind of each caption (one of
            `clips.kinds_of`), and the ids left out; paths are absolute, and `None` marks what the clip lacks.
    Raises:
        ValueError: the split is unknown or empty, another version generated it, or the annotation was changed.
        FileNotFoundError: the folder is missing or unfinished, or the file of a clip is missing.
    """
    folder = Path(folder)
    rows = _read_rows(folder, split)
    return dataset_from_rows(rows, folder, on_missing, _read_manifest(folder)["evidence"])


def load_miniature_classes(
    folder: str | os.PathLike, split: str = "test", *, on_missing: str = "raise"
) -> tuple[Dataset, list[str]]:
    """Load the clips of the miniature benchmark that have sound, with its source as their label.

    There are six classes, the timbres of `vocabulary.VOCABULARY`. Clips without sound belong to no class and are
    not part of this benchmark.

    Args, Returns and Raises: as [`load_miniature`]; the captions are values of `LABELS`, without a kind.
    """
    folder = Path(folder)
    evidence = _read_manifest(folder)["evidence"]
    rows = []
    for row in _read_rows(folder, split):
        # The label replaces the caption, and only the columns of a benchmark stay.
        attributes = row["attributes"]
        if "audio" in attributes:
            columns = {name: row[name] for name in (*FEATURES, *evidence)}
            columns["caption"] = LABELS[attributes["audio"]["timbre"]]
            rows.append(columns)
    return dataset_from_rows(rows, folder, on_missing, evidence)


def describe_miniature(folder: str | os.PathLike) -> dict[str, Any]:
    """Return what the clips were generated from: the generator's version, its settings and the files' SHA-256."""
    manifest = _read_manifest(Path(folder))
    return {name: manifest[name] for name in _DESCRIBED}


def load_about(folder: str | os.PathLike, split: str = "test") -> list[list[str]]:
    """Return, for each row of `load_miniature`, the modalities that its caption describes: those that it mentions, and
    those that express what it names without a location."""
    return [row["about"] for row in _read_rows(Path(folder), split)]


MINIATURE = Benchmark("Miniature", load_miniature, SPLITS, describe=describe_miniature)
MINIATURE_CLASSES = Benchmark(
    "Miniature classes", load_miniature_classes, SPLITS, task="classification", describe=describe_miniature
)

__all__ = [
    "LABELS",
    "MINIATURE",
    "MINIATURE_CLASSES",
    "describe_miniature",
    "load_about",
    "load_miniature",
    "load_miniature_classes",
]
