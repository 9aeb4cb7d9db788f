"""Benchmarks by name: loaded from their annotations as a `datasets.Dataset` with fixed columns."""

import os
from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from eval.benchmarks.activitynet import ACTIVITYNET
from eval.benchmarks.audiocaps import AUDIOCAPS
from eval.benchmarks.avcaps import AVCAPS
from eval.benchmarks.clotho import CLOTHO
from eval.benchmarks.columns import FEATURES, dataset_from_rows
from eval.benchmarks.definition import Benchmark, Split, configure_processor
from eval.benchmarks.didemo import DIDEMO
from eval.benchmarks.miniature import MINIATURE, MINIATURE_CLASSES, load_about
from eval.benchmarks.msrvtt import MSRVTT
from eval.benchmarks.msvd import MSVD
from eval.benchmarks.own import OWN
from eval.benchmarks.valor32k import VALOR32K
from eval.benchmarks.vast27m import VAST27M
from eval.benchmarks.vatex import VATEX
from eval.benchmarks.vggsound import VGGSOUND
from eval.benchmarks.youcook2 import YOUCOOK2

BENCHMARKS: dict[str, Benchmark] = {
    "msrvtt": MSRVTT,
    "didemo": DIDEMO,
    "activitynet": ACTIVITYNET,
    "vatex": VATEX,
    "audiocaps": AUDIOCAPS,
    "vggsound": VGGSOUND,
    "avcaps": AVCAPS,
    "valor32k": VALOR32K,
    "youcook2": YOUCOOK2,
    "msvd": MSVD,
    "clotho": CLOTHO,
    "vast27m": VAST27M,
    "miniature": MINIATURE,
    "miniature_classes": MINIATURE_CLASSES,
    "own": OWN,
}


def load_split(
    name: str,
    root: str | os.PathLike,
    split: str = "test",
    *,
    captions: str | None = None,
    annotations: str | os.PathLike | None = None,
    on_missing: str = "raise",
    columns: Mapping[str, str] | None = None,
    holdout: float | None = None,
    words_of: str | os.PathLike | None = None,
) -> Split:
    """Load one split of a benchmark, with the settings of its protocol.

    Args:
        name (`str`): a key of `BENCHMARKS`.
        root (`str` or `os.PathLike`): the folder of the benchmark; for "own" a file or the name of a data set.
        split (`str`, defaults to "test"): a split of the benchmark.
        captions (`str`, *optional*): "first" of each clip, or "all" of them, a row each; by default the protocol's.
        annotations (`str` or `os.PathLike`, *optional*): the annotation file, if it is not in `root`.
        on_missing (`str`, defaults to "raise"): for clips without their files: "raise" stops, "leave_out" leaves them
            out of the gallery, logs them and lists them in `left_out`.
        columns (`Mapping`, *optional*): the user's columns by the names of `FEATURES` and of further texts.
        holdout (`float`, *optional*), words_of (`str` or `os.PathLike`, *optional*): for the user's own table, see
            [`~eval.benchmarks.own.load_own`].
    Returns:
        [`Split`].
    Raises:
        ValueError: the name, the split or a setting is unknown or not available for this benchmark, or the annotation
            is malformed.
        FileNotFoundError: a file of the benchmark is missing in `root`.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"`name` must be one of {sorted(BENCHMARKS)}, got {name!r}.")
    benchmark = BENCHMARKS[name]
    if benchmark.splits is not None and split not in benchmark.splits:
        raise ValueError(f"`split` of {name} must be one of {benchmark.splits}, got {split!r}.")
    if captions not in (None, "first", "all"):
        raise ValueError(f'`captions` must be "first" or "all", got {captions!r}.')
    if on_missing not in ("raise", "leave_out"):
        raise ValueError(f'`on_missing` must be "raise" or "leave_out", got {on_missing!r}.')
    settings = {"captions": captions, "annotations": annotations}
    settings |= {"columns": columns, "holdout": holdout, "words_of": words_of}
    settings = {setting: value for setting, value in settings.items() if value is not None}
    unknown = sorted(set(settings) - set(benchmark.settings))
    if unknown:
        raise ValueError(f"The benchmark {name} has the settings {list(benchmark.settings)}, not {unknown}.")
    dataset, left_out = benchmark.load(root, split, on_missing=on_missing, **settings)
    return Split(dataset, left_out, benchmark.task, benchmark.processing)


def load_benchmark(name: str, root: str | os.PathLike, split: str = "test", **options: Any) -> Dataset:
    """Return the data set of [`load_split`]."""
    return load_split(name, root, split, **options).dataset


def describe_benchmark(name: str, root: str | os.PathLike) -> dict[str, Any] | None:
    """Return what is needed to generate a synthetic benchmark again, such as its seed; `None` for any other one."""
    describe = BENCHMARKS[name].describe
    return None if describe is None else describe(root)


__all__ = [
    "BENCHMARKS",
    "FEATURES",
    "Benchmark",
    "Split",
    "configure_processor",
    "dataset_from_rows",
    "describe_benchmark",
    "load_about",
    "load_benchmark",
    "load_split",
]
