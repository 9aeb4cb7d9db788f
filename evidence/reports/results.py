"""Result files under the names of the paper: its variants and benchmarks, in its order."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evidence.latent import latent_space
from evidence.reports import paper
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.eval.reports.result_files import Run, check_comparable, read_results

Seeds = Mapping[int | None, Run]
"""The runs of one label on one benchmark."""

# The keys of labels and benchmarks, by the paper's names.
_KEYS = {name: key for key, name in (paper.VARIANTS | paper.BENCHMARKS).items()}


@dataclass(frozen=True)
class RunResults:
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
        for labels in self.runs.values():
            for seeds in labels.values():
                yield from seeds.values()

    def all_labels(self) -> list[str]:
        """Return the labels of all benchmarks, each once."""
        return [*dict.fromkeys(run["label"] for run in self.all_runs())]

    def of_task(self, task: str) -> "RunResults":
        """Return the benchmarks of a task, `"retrieval"` or `"classification"`."""
        kept = {}
        for benchmark, labels in self.runs.items():
            if first_run(labels)["task"] == task:
                kept[benchmark] = labels
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


def _place(name: str, known: Mapping[str, str]) -> tuple[int, str]:
    """Return what sorts names in the order of the paper, then others by themselves."""
    if name in known:
        return list(known).index(name), ""
    return len(known), name


def _order(run: Run) -> tuple:
    """Return what sorts runs: by benchmark, label and seed; a run without a seed is the last of its label."""
    seed = run["seed"]
    return _place(run["benchmark"], paper.BENCHMARKS), _place(run["label"], paper.VARIANTS), seed is None, seed or 0


def _read(paths: Sequence[str | os.PathLike]) -> dict[Path, Run]:
    """Read result files; labels and benchmarks may be given by their keys or by the paper's names."""
    runs: dict[Path, dict] = {}
    for path, run in read_results(paths).items():
        run = {**run, "latent": None}
        for name in ("label", "benchmark"):
            run[name] = _KEYS.get(run[name], run[name])
        # The latent space can be measured where the embeddings were kept.
        embeddings = path.parent / "embeddings"
        if run["task"] == "classification" and embeddings.is_dir():
            run["latent"] = latent_space(Embeddings.load(embeddings))
        runs[path] = run
    check_comparable(runs)
    return runs


def load_results(
    paths: Sequence[str | os.PathLike],
    baseline: str | None = None,
    reference: str | None = None,
    paper_mean: bool = False,
) -> RunResults:
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
        [`RunResults`]: benchmarks and labels in the order of the paper, then others.

    Raises:
        FileNotFoundError: a path does not exist.
        ValueError: a file is not a result, results are not comparable, or no run has a chosen label.
    """
    # Benchmarks, labels and seeds in order.
    found = sorted(_read(paths).values(), key=_order)
    runs: dict[str, dict[str, dict[int | None, Run]]] = {}
    for run in found:
        runs.setdefault(run["benchmark"], {}).setdefault(run["label"], {})[run["seed"]] = run

    # Chosen labels may be given by the paper's names, too.
    baseline = _KEYS.get(baseline, baseline)
    reference = _KEYS.get(reference, reference)
    known = {run["label"] for run in found}
    for name, label in (("baseline", baseline), ("reference", reference)):
        if label is not None and label not in known:
            raise ValueError(f"The {name} {label!r} is not among the labels {sorted(known)}.")

    # By default GRAM, if one label alone has its score, and SCALAR.
    if baseline is None:
        volumes = set()
        for run in found:
            if run["score"]["method"] == "gram":
                volumes.add(run["label"])
        if len(volumes) == 1:
            baseline = volumes.pop()
    if reference is None and "scalar" in known:
        reference = "scalar"
    return RunResults(runs, baseline, reference, paper_mean)


__all__ = ["RunResults", "Seeds", "benchmark_name", "first_run", "label_name", "load_results"]
