"""Benchmarks by name: annotation file in, `datasets.Dataset` with the fixed columns out."""

import os

from datasets import Dataset

from eval.benchmarks.columns import FEATURES, dataset_from_rows
from eval.benchmarks.miniature import load_about, load_miniature

BENCHMARKS = {"miniature": load_miniature}


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


__all__ = ["BENCHMARKS", "FEATURES", "dataset_from_rows", "load_about", "load_benchmark", "load_miniature"]
