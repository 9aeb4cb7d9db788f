"""Result files of `scalar eval run`: reading them, naming them, and checking that they are comparable."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval.reports import paper
from eval.reports.result_schema import check_result, second_stage
from gallery.files import read_json
from modeling_scalar.scores_scalar import WEIGHING

Run = Mapping[str, Any]
"""Content of a `results.json`."""

Seeds = Mapping[int | None, Run]
"""The runs of one label on one benchmark."""

R1 = "text_to_video_recall_at_1"

_KEYS = {name: key for known in (paper.VARIANTS, paper.BENCHMARKS) for key, name in known.items()}


@dataclass(frozen=True)
class Results:
    """
    Runs that may be shown in one table.

    Args:
        runs (`dict`): content of the result files by benchmark, label and seed.
        baseline (`str`, *optional*): label that margins are taken against.
        reference (`str`, *optional*): label that ablations are compared with.
        paper_mean (`bool`): for a benchmark that the paper does not have, show the mean over those it has.
        queries (`dict`): results of each query by benchmark, label and seed of the run: the columns, or the file
            `queries.parquet` that holds them, if it exists.
    """

    runs: Mapping[str, Mapping[str, Seeds]]
    baseline: str | None = None
    reference: str | None = None
    paper_mean: bool = False
    queries: Mapping[tuple[str, str, int | None], Path | Mapping[str, Sequence[Any]]] = field(default_factory=dict)

    def all_runs(self) -> Iterator[Run]:
        """Yield every run, in the order of the tables."""
        return (run for labels in self.runs.values() for seeds in labels.values() for run in seeds.values())

    def of_task(self, task: str) -> "Results":
        """Return the benchmarks of a task, `"retrieval"` or `"classification"`."""
        kept = {name: labels for name, labels in self.runs.items() if first_run(labels)["task"] == task}
        return replace(self, runs=kept)


def first_run(labels: Mapping[str, Seeds]) -> Run:
    """Return one run of a benchmark, for properties that all of them share."""
    return next(iter(next(iter(labels.values())).values()))


def label_name(label: str) -> str:
    """Return the display name of a label: the paper's if it is one of its variants."""
    return paper.VARIANTS.get(label, label)


def benchmark_name(benchmark: str) -> str:
    """Return the display name of a benchmark: the paper's if it has one."""
    return paper.BENCHMARKS.get(benchmark, benchmark)


def percent(rate: float) -> str:
    """Format a masking rate for display."""
    return f"{100 * rate:g} %"


# Reading ------------------------------------------------------------------------------------------------------------


def _in_order_of(known: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return names in the order of the paper, then others, sorted."""
    order = {name: place for place, name in enumerate(known)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def _result_files(paths: Sequence[str | os.PathLike]) -> list[Path]:
    files = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; expected a results.json or a folder that contains some.")
        found = sorted(path.rglob("results.json")) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"There is no results.json in {path}; `scalar eval run` writes them.")
        files += found
    return list({path.resolve(): path for path in files}.values())


def _read(path: Path) -> Run:
    run = read_json(path, "Evaluate again.")
    check_result(run, path)
    return run


def _protocol(run: Run) -> dict[str, Any]:
    retrieval = run["retrieval"]
    return {
        "split": run["split"],
        "task": run["task"],
        "gallery SHA-256": run["gallery"]["sha256"],
        "number of queries": retrieval["num_queries"],
        "number of pairs": retrieval.get("num_pairs"),
        "mask seed": retrieval["mask_seed"],
        "tie rule": retrieval["tie_rule"],
        # A run without a second stage can be compared with one that has it.
        "depth of the second stage": next((entry["depth"] for entry in second_stage(run["two_stage"])), None),
    }


def _check_comparable(known: Mapping[Path, Run], path: Path, run: Run) -> None:
    """Check a run against those of the same benchmark."""
    for other, theirs in known.items():
        if (theirs["label"], theirs["seed"]) == (run["label"], run["seed"]):
            raise ValueError(
                f"{other} and {path} both hold {run['benchmark']} with the label {run['label']!r} and the seed "
                f"{run['seed']}. Give one of them, or evaluate with another label."
            )
        for name in ("method", *WEIGHING):
            one, another = (found["score"].get(name) for found in (theirs, run))
            if theirs["label"] == run["label"] and one != another:
                raise ValueError(
                    f"{other} and {path} have the label {run['label']!r} but score with the {name} {one!r} and "
                    f"{another!r}. Evaluate one of them with another label."
                )
        ours = _protocol(run)
        for name, value in _protocol(theirs).items():
            if value != ours[name] and None not in (value, ours[name]):
                raise ValueError(
                    f"Runs on {run['benchmark']} must share one protocol to be compared, but the {name} is {value} "
                    f"in {other} and {ours[name]} in {path}. Report them separately."
                )


def _gram_label(runs: Mapping[str, Mapping[str, Seeds]]) -> str | None:
    """Return the only label whose score is GRAM's volume, if there is exactly one."""
    found = {
        label
        for labels in runs.values()
        for label, seeds in labels.items()
        if next(iter(seeds.values()))["score"]["method"] == "gram"
    }
    return found.pop() if len(found) == 1 else None


def load_results(paths: Sequence[str | os.PathLike], *chosen: Any, **options: Any) -> Results:
    """
    Read result files and check that they are comparable.

    Args:
        paths (`Sequence[str]`): `results.json` files, or folders that contain them at any depth.
        chosen, options: baseline, reference and paper_mean of [`results_of`].

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: a folder holds no result, a file is not a result, or results are not comparable.
    """
    return results_of({path: _read(path) for path in _result_files(paths)}, *chosen, **options)


def results_of(
    found: Mapping[Path, Run],
    baseline: str | None = None,
    reference: str | None = None,
    paper_mean: bool = False,
    queries: Mapping[str, Sequence[Any]] | None = None,
) -> Results:
    """
    Collect results after checking that they are comparable.

    Args:
        found (`dict`): the content of result files, by their paths.
        baseline (`str`, *optional*): label that margins are taken against; by default the one whose score is GRAM's
            volume, if there is exactly one.
        reference (`str`, *optional*): label that ablations are compared with; by default `scalar`, which the paper
            calls SCALAR.
        paper_mean (`bool`): for a benchmark that the paper does not have, show the mean over those it has.
        queries (`dict`, *optional*): results of each query of the only run; by default read from next to its file.

    Returns:
        [`Results`]: benchmarks and labels in the order of the paper, then others.

    Raises:
        ValueError: the results of a benchmark differ in gallery, split, task, queries, masks or depth; a label has two
            results with the same seed, or two scores; no run has the chosen label.
    """
    runs: dict[str, dict[str, dict[int | None, Run]]] = {}
    files: dict[str, dict[Path, Run]] = {}
    for path, run in found.items():
        # A label or benchmark may be given by its key or by the paper's name: scalar or SCALAR.
        run = {**run, **{name: _KEYS.get(run[name], run[name]) for name in ("label", "benchmark")}}
        known = files.setdefault(run["benchmark"], {})
        _check_comparable(known, path, run)
        known[path] = run
        runs.setdefault(run["benchmark"], {}).setdefault(run["label"], {})[run["seed"]] = run
    all_labels = {label for labels in runs.values() for label in labels}
    baseline, reference = (_KEYS.get(label, label) for label in (baseline, reference))
    for name, label in (("baseline", baseline), ("reference", reference)):
        if label is not None and label not in all_labels:
            raise ValueError(f"The {name} {label!r} is not among the labels {sorted(all_labels)}.")
    ordered = {
        benchmark: {
            label: dict(sorted(runs[benchmark][label].items(), key=lambda item: (item[0] is None, item[0])))
            for label in _in_order_of(paper.VARIANTS, list(runs[benchmark]))
        }
        for benchmark in _in_order_of(paper.BENCHMARKS, list(runs))
    }
    return Results(
        ordered,
        baseline or _gram_label(ordered),
        reference or ("scalar" if "scalar" in all_labels else None),
        paper_mean,
        {
            (run["benchmark"], run["label"], run["seed"]): queries or path.parent / "queries.parquet"
            for known in files.values()
            for path, run in known.items()
        },
    )


__all__ = [
    "R1",
    "Results",
    "Run",
    "Seeds",
    "benchmark_name",
    "first_run",
    "label_name",
    "load_results",
    "percent",
    "results_of",
]
