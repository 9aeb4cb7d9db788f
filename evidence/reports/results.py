"""Result files under the names of the paper: its variants and benchmarks, in its order."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eval.embedding.embeddings import Embeddings
from eval.reports.result_files import Run, check_comparable, read_results
from evidence.latent import latent_space
from evidence.reports import paper

Seeds = Mapping[int | None, Run]
"""The runs of one label on one benchmark."""

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
    """

    runs: Mapping[str, Mapping[str, Seeds]]
    baseline: str | None = None
    reference: str | None = None
    paper_mean: bool = False

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


def _in_order_of(known: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return names in the order of the paper, then others, sorted."""
    order = {name: place for place, name in enumerate(known)}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def _gram_label(runs: Mapping[Path, Run]) -> str | None:
    """Return the only label whose score is GRAM's volume, if there is exactly one."""
    found = {run["label"] for run in runs.values() if run["score"]["method"] == "gram"}
    return found.pop() if len(found) == 1 else None


def _read(paths: Sequence[str | os.PathLike]) -> dict[Path, Run]:
    """Read result files; labels and benchmarks may be given by their keys or by the paper's names."""
    runs: dict[Path, dict] = {}
    for path, run in read_results(paths).items():
        named = {name: _KEYS.get(run[name], run[name]) for name in ("label", "benchmark")}
        runs[path] = {**run, **named, "embeddings": None, "latent": None}
        embeddings = path.parent / "embeddings"
        if run["task"] == "classification" and embeddings.is_dir():
            runs[path] |= {"embeddings": embeddings, "latent": latent_space(Embeddings.load(embeddings))}
    check_comparable(runs)
    return runs


def load_results(
    paths: Sequence[str | os.PathLike],
    baseline: str | None = None,
    reference: str | None = None,
    paper_mean: bool = False,
) -> Results:
    """
    Read result files and check that they are comparable.

    Args:
        paths (`Sequence[str]`): `results.json` files, or folders that contain them at any depth. The latent space of
            class labels is measured on the `embeddings` next to a file, if there are any.
        baseline (`str`, *optional*): label that margins are taken against; by default the one whose score is GRAM's
            volume, if there is exactly one.
        reference (`str`, *optional*): label that ablations are compared with; by default `scalar`, which the paper
            calls SCALAR.
        paper_mean (`bool`): for a benchmark that the paper does not have, show the mean over those it has.

    Returns:
        [`Results`]: benchmarks and labels in the order of the paper, then others.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: a file is not a result, results are not comparable, or no run has a chosen label.
    """
    found = _read(paths)
    runs: dict[str, dict[str, dict[int | None, Run]]] = {}
    for run in found.values():
        runs.setdefault(run["benchmark"], {}).setdefault(run["label"], {})[run["seed"]] = run
    known = {run["label"] for run in found.values()}
    baseline, reference = (_KEYS.get(label, label) for label in (baseline, reference))
    for name, label in (("baseline", baseline), ("reference", reference)):
        if label is not None and label not in known:
            raise ValueError(f"The {name} {label!r} is not among the labels {sorted(known)}.")
    ordered: dict[str, dict[str, Seeds]] = {}
    for benchmark in _in_order_of(paper.BENCHMARKS, list(runs)):
        ordered[benchmark] = {}
        for label in _in_order_of(paper.VARIANTS, list(runs[benchmark])):
            seeds = sorted(runs[benchmark][label].items(), key=lambda item: (item[0] is None, item[0]))
            ordered[benchmark][label] = dict(seeds)
    default = "scalar" if "scalar" in known else None
    return Results(ordered, baseline or _gram_label(found), reference or default, paper_mean)


__all__ = ["Results", "Seeds", "benchmark_name", "first_run", "label_name", "load_results"]
