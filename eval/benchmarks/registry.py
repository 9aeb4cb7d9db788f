"""Benchmarks by name. The module of a benchmark is imported when its name is asked for, and with it what loads it."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

    from .definition import Benchmark, Split

NAMES = (
    "msrvtt", "didemo", "activitynet", "vatex", "audiocaps", "vggsound", "avcaps", "valor32k", "youcook2", "msvd",
    "clotho", "vast27m", "own",
)  # fmt: skip
"""The names of all benchmarks of this package."""

# The module that defines each benchmark, as a constant of the benchmark's name in capitals.
_MODULES = {name: f"{__package__}.{name}" for name in NAMES}


def register_benchmark(name: str, module: str) -> None:
    """
    Add a benchmark of a plugin.

    Args:
        name (`str`): a new name, an identifier.
        module (`str`): the full name of the module that holds the
            [`~scalar_retrieval.eval.benchmarks.definition.Benchmark`] as a constant of that name in capitals. It is
            imported when the benchmark is loaded.
    Raises:
        ValueError: there is a benchmark of that name.
    """
    if name in _MODULES:
        raise ValueError(f"A benchmark {name!r} already exists; choose another name.")
    _MODULES[name] = module


def check_benchmark(name: str, root: str | os.PathLike | None = None) -> None:
    """
    Refuse a benchmark that cannot be loaded, before what loads it is imported.

    Args:
        name (`str`): one of `NAMES`, or of a plugin.
        root (`str`, *optional*): the folder of the benchmark.
    Raises:
        ValueError: there is no benchmark of that name.
        FileNotFoundError: there is no such folder, or table.
    """
    if name not in _MODULES:
        raise ValueError(
            f"`name` must be one of {sorted(_MODULES)}, got {name!r}. If a plugin registers it, load the plugin."
        )
    # The root of `own` is a file or a data set on the Hub, that of a plugin anything.
    has_folder = name in NAMES and name != "own"
    if root is not None and has_folder and not Path(root).is_dir():
        raise FileNotFoundError(f"There is no folder {os.fspath(root)!r}, which should hold the benchmark {name}.")
    if root is not None and name == "own":
        from scalar_retrieval.gallery.store.file_lists import is_table  # not at the top: it imports readers of media

        if is_table(root) and not Path(root).exists():
            raise FileNotFoundError(f"There is no file {os.fspath(root)}.")


def find_benchmark(name: str) -> "Benchmark":
    """Return the definition of a benchmark, or raise a ValueError if there is none of that name."""
    check_benchmark(name)
    return getattr(import_module(_MODULES[name]), name.upper())


def load_split(
    name: str,
    root: str | os.PathLike,
    split: str = "test",
    *,
    captions: str | None = None,
    on_missing: str = "raise",
    columns: Mapping[str, str] | None = None,
    holdout: float | None = None,
    words_of: str | os.PathLike | None = None,
) -> "Split":
    """Load one split of a benchmark, with the settings of its protocol.

    Args:
        name (`str`): one of `NAMES`, or of a plugin.
        root (`str` or `os.PathLike`): the folder of the benchmark; for "own" a file or the name of a data set.
        split (`str`, defaults to "test"): a split of the benchmark.
        captions (`str`, *optional*): "first" of each clip, or "all" of them, a row each; by default the protocol's.
        on_missing (`str`, defaults to "raise"): for clips without their files: "raise" stops, "leave_out" leaves them
            out of the gallery, logs them and lists them in `left_out`.
        columns (`Mapping`, *optional*): the user's columns by the names of
            [`~scalar_retrieval.eval.benchmarks.annotations.FEATURES`] and of further texts.
        holdout (`float`, *optional*), words_of (`str` or `os.PathLike`, *optional*): for the user's own table, see
            [`~scalar_retrieval.eval.benchmarks.own.load_own`].
    Returns:
        [`~scalar_retrieval.eval.benchmarks.definition.Split`].
    Raises:
        ValueError: the name, the split or a setting is unknown or not available for this benchmark, or the annotation
            is malformed.
        FileNotFoundError: a file of the benchmark is missing in `root`.
    """
    from .definition import Split

    # Names are checked before files are read.
    check_benchmark(name, root)
    benchmark = find_benchmark(name)
    if benchmark.splits is not None and split not in benchmark.splits:
        raise ValueError(f"`split` of {name} must be one of {benchmark.splits}, got {split!r}.")
    if captions not in (None, "first", "all"):
        raise ValueError(f'`captions` must be "first" or "all", got {captions!r}.')
    if on_missing not in ("raise", "leave_out"):
        raise ValueError(f'`on_missing` must be "raise" or "leave_out", got {on_missing!r}.')
    # Only what was given: a benchmark need not know settings that it does not have.
    settings = {"captions": captions, "columns": columns, "holdout": holdout, "words_of": words_of}
    settings = {setting: value for setting, value in settings.items() if value is not None}
    unknown = sorted(set(settings) - set(benchmark.settings))
    if unknown:
        raise ValueError(f"The benchmark {name} has the settings {list(benchmark.settings)}, not {unknown}.")
    # The protocol's task and processing go with the data: whoever embeds it needs them.
    dataset, left_out = benchmark.load(root, split, on_missing=on_missing, **settings)
    return Split(dataset, left_out, benchmark.task, benchmark.processing)


def load_benchmark(name: str, root: str | os.PathLike, split: str = "test", **options: Any) -> "Dataset":
    """Return the data set of [`load_split`]."""
    return load_split(name, root, split, **options).dataset


def describe_benchmark(name: str, root: str | os.PathLike) -> dict[str, Any] | None:
    """Return what is needed to generate a synthetic benchmark again, such as its seed; `None` for any other one."""
    describe = find_benchmark(name).describe
    return None if describe is None else describe(root)


__all__ = [
    "NAMES",
    "check_benchmark",
    "describe_benchmark",
    "find_benchmark",
    "load_benchmark",
    "load_split",
    "register_benchmark",
]
