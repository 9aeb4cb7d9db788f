"""Benchmarks by name: annotation file in, `datasets.Dataset` with the fixed columns out."""

import os
from typing import Any

from datasets import Dataset

from eval.benchmarks.columns import FEATURES, dataset_from_rows
from eval.benchmarks.miniature import describe_miniature, load_about, load_miniature
from eval.benchmarks.vast27m import load_vast27m

BENCHMARKS = {"miniature": load_miniature, "vast27m": load_vast27m}
_DESCRIPTIONS = {"miniature": describe_miniature}


def load_benchmark(name: str, root: str | os.PathLike, split: str = "test") -> Dataset:
    """Load one split of a benchmark.

    Args:
        name (`str`): a key of `BENCHMARKS`.
        root (`str` or `os.PathLike`): the folder of the benchmark.
        split (`str`, defaults to "test"): a split that the benchmark has.
    Returns:
        `Dataset` with the columns of `FEATURES`.
    Raises:
        ValueError: the name or the split is unknown.
        FileNotFoundError: something the benchmark needs is not in `root`.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"`name` must be one of {sorted(BENCHMARKS)}, got {name!r}.")
    return BENCHMARKS[name](root, split)


def describe_benchmark(name: str, root: str | os.PathLike) -> dict[str, Any] | None:
    """Return what repeats the data set, a seed say, for a benchmark of `load_benchmark`; `None` if it is not made."""
    return _DESCRIPTIONS[name](root) if name in _DESCRIPTIONS else None


__all__ = [
    "BENCHMARKS",
    "FEATURES",
    "dataset_from_rows",
    "describe_benchmark",
    "load_about",
    "load_benchmark",
    "load_miniature",
    "load_vast27m",
]
