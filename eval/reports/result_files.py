"""Result files of `scalar eval run`: reading them, and checking that they are comparable."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.scores_scalar import WEIGHING

from ..inputs import check_results
from .result_schema import check_result, second_stage

Run = Mapping[str, Any]
"""Content of a `results.json`."""

R1 = "text_to_video_recall_at_1"


def read_results(paths: Sequence[str | os.PathLike]) -> dict[Path, Run]:
    """
    Read result files.

    Args:
        paths (`Sequence[str]`): `results.json` files, or folders that contain them at any depth.

    Returns:
        `dict`: the content of each file, by its path.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: a folder holds no result, or a file is not a result.
    """
    # A file twice, given by itself and by its folder, counts once.
    by_location = {}
    check_results(paths)
    for path in map(Path, paths):
        inside = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not inside:
            raise ValueError(f"There is no results.json in {path}; `scalar eval run` writes them.")
        by_location |= {file.resolve(): file for file in inside}
    runs = {}
    for path in by_location.values():
        runs[path] = read_json(path, "Evaluate again.")
        check_result(runs[path], path)
    return runs


def _protocol(run: Run) -> dict[str, Any]:
    """Return what comparable runs share; `None` for what a run did not measure, which can be compared with any."""
    retrieval = run["retrieval"]
    depth = None
    for entry in second_stage(run["two_stage"]):
        depth = entry["depth"]  # the same in all
    return {
        "split": run["split"],
        "task": run["task"],
        "gallery SHA-256": run["gallery"]["sha256"],
        "number of queries": retrieval["num_queries"],
        "number of pairs": retrieval.get("num_pairs"),
        "mask seed": retrieval["mask_seed"],
        "tie rule": retrieval["tie_rule"],
        "depth of the second stage": depth,
    }


def _check_against(known: Mapping[Path, Run], path: Path, run: Run) -> None:
    """Check a run against those of the same benchmark."""
    for other, theirs in known.items():
        # One result for each label and seed.
        if (theirs["label"], theirs["seed"]) == (run["label"], run["seed"]):
            raise ValueError(
                f"{other} and {path} both hold {run['benchmark']} with the label {run['label']!r} and the seed "
                f"{run['seed']}. Give one of them, or evaluate with another label."
            )
        # A label is a row of a table: its seeds must score alike.
        for name in ("method", *WEIGHING):
            one = theirs["score"].get(name)
            another = run["score"].get(name)
            if theirs["label"] == run["label"] and one != another:
                raise ValueError(
                    f"{other} and {path} have the label {run['label']!r} but score with the {name} {one!r} and "
                    f"{another!r}. Evaluate one of them with another label."
                )
        # What both measured must be the same.
        ours = _protocol(run)
        for name, value in _protocol(theirs).items():
            if value != ours[name] and None not in (value, ours[name]):
                raise ValueError(
                    f"Runs on {run['benchmark']} must share one protocol to be compared, but the {name} is {value} "
                    f"in {other} and {ours[name]} in {path}. Report them separately."
                )


def check_comparable(runs: Mapping[Path, Run]) -> None:
    """
    Check that results may be shown in one table.

    Args:
        runs (`dict`): content of the result files, by their paths.

    Raises:
        ValueError: the results of a benchmark differ in gallery, split, task, queries, masks or depth; a label has two
            results with the same seed, or two scores.
    """
    benchmarks: dict[str, dict[Path, Run]] = {}
    for path, run in runs.items():
        known = benchmarks.setdefault(run["benchmark"], {})
        _check_against(known, path, run)
        known[path] = run


def load_results(paths: Sequence[str | os.PathLike]) -> dict[Path, Run]:
    """Read result files, sorted by benchmark, label and seed; errors of [`read_results`] and [`check_comparable`]."""
    runs = read_results(paths)
    check_comparable(runs)

    def order(item: tuple[Path, Run]) -> tuple:
        run = item[1]
        return run["benchmark"], run["label"], run["seed"] is None, run["seed"]

    return dict(sorted(runs.items(), key=order))


__all__ = ["R1", "Run", "check_comparable", "load_results", "read_results"]
