"""The results of a staged model or adapter: `results.json` of `scalar eval run`, one in each folder.

All metrics on a card come from there: the exact values in the front matter, and the rounded ones in the tables.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from scalar_retrieval.eval.reports.result_schema import check_result, second_stage
from scalar_retrieval.eval.reports.tables import report_tables
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

from ..markdown import Markdown, table


@dataclass(frozen=True)
class Result:
    """One evaluation: the name of its folder, and its `results.json`."""

    name: str
    content: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The model's own score."""
        return self.content["score"]["method"]

    @property
    def rates(self) -> Mapping[float, Mapping[str, Any]]:
        """The first stage's results, by masking rate."""
        return {entry["rate"]: entry for entry in self.content["retrieval"]["rates"]}


# Reading ------------------------------------------------------------------------------------------------------------


def read_result(path: Path) -> Result:
    """
    Read one evaluation, a `results.json` of `scalar eval run`; it is named after its folder.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is not a result, or lacks metrics of the model's own score.
    """
    content = read_json(path)
    check_result(content, path)
    # What a card has besides the fields of a report.
    lacking = [name for name in ("embedded", "date", "left_out", "problems") if name not in content]
    if lacking:
        raise ValueError(f"{path} is not a result of `scalar eval run`: it lacks {lacking}. Evaluate again.")
    result = Result(path.parent.name, content)
    if 0.0 not in result.rates or any(result.method not in entry["methods"] for entry in result.rates.values()):
        raise ValueError(
            f"{path} must hold the model's own score {result.method!r} at every rate, and with nothing masked, at the "
            "rate 0. Evaluate again."
        )
    return result


def read_results(folder: Path) -> list[Result]:
    """Read the evaluations that are published with a model, each in a folder of its `results/`; errors as above."""
    results = []
    for path in sorted(folder.glob("results/*")):
        if path.is_dir():
            results.append(read_result(path / "results.json"))
    return results


def check_weights(result: Result, digests: Mapping[str, str]) -> None:
    """Raise a ValueError unless a result names the published weights, by the SHA-256 of each file."""
    measured = result.content["embedded"].get("weights")
    if measured != dict(digests):
        raise ValueError(
            f"The result {result.name!r} was measured with other weights: it names {measured}, but published are "
            f"{dict(digests)}. Evaluate again, or publish the model that the result belongs to."
        )


# Metadata -----------------------------------------------------------------------------------------------------------


def identifier(name: str) -> str:
    """Return a name in the form of the Hub's ids: letters, digits and single `-`, `_` or `.` between them."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    name = re.sub(r"([-._])[-._]+", r"\1", name)
    return name.strip("-._")[:96] or "unnamed"


def _stages(result: Result) -> list[tuple[str, dict[str, Any], Mapping[str, Any]]]:
    """Return the name, the arguments and the metrics of each stage of the model's own score, with nothing masked."""
    # The first stage, then every policy of the second.
    method = result.method
    own = result.rates[0.0]["methods"][method]
    stages = [("first stage", {"stage": 1, "method": method}, own)]
    for entry in second_stage(result.content["two_stage"]):
        if entry["method"] == method and entry["rate"] == 0:
            arguments = {"stage": 2, "depth": entry["depth"], "policy": entry["policy"], "method": method}
            stages.append((f"second stage ({entry['policy']})", arguments, entry))
    return stages


def eval_results(results: Sequence[Result]) -> list[EvalResult]:
    """
    Return the metrics of the model's own score with nothing masked, for the front matter of a card.

    Values are exactly as in `results.json`. The Hub groups them by task, benchmark, configuration and split, so the
    gallery is part of the configuration, and differences inside a group are in the arguments of the metric.
    """
    entries = []
    for result in results:
        content = result.content
        retrieval = content["retrieval"]
        sha256 = content["gallery"]["sha256"]
        # The gallery, queries and masks distinguish the task from others on the same benchmark.
        protocol = {name: retrieval[name] for name in ("num_clips", "num_queries", "mask_seed", "tie_rule")}
        shared = {
            "dataset_type": identifier(content["benchmark"]),
            "dataset_name": content["benchmark"],
            "dataset_config": f"gallery {sha256[:12]}, {retrieval['num_queries']} queries, "
            f"mask seed {retrieval['mask_seed']}",
            "dataset_split": content["split"],
            "dataset_args": protocol | {"gallery_sha256": sha256},
        }
        for stage, arguments, measured in _stages(result):
            for direction in DIRECTIONS:
                words = direction.replace("_", "-")
                for key, value in measured.items():
                    if not key.startswith(direction) or value is None:
                        continue
                    name = key.removeprefix(f"{direction}_")
                    entry = EvalResult(
                        task_type=f"{words}-retrieval",
                        task_name=f"{words.capitalize()} retrieval",
                        metric_type=name,
                        metric_value=value,
                        metric_name=f"{name.replace('_', ' ')}, {stage}",
                        metric_args=arguments,
                        **shared,
                    )
                    entries.append(entry)
    return entries


# Tables -------------------------------------------------------------------------------------------------------------


def tables(result: Result) -> list[tuple[str, Markdown, str]]:
    """Return the title, the table and the note of each report table on a card."""
    parts = []
    for report in report_tables([result.content]):
        cells = report.cells()  # text from untrusted files
        parts.append((report.title, table([*cells.columns], cells.to_numpy()), report.note))
    return parts


__all__ = [
    "Result",
    "check_weights",
    "eval_results",
    "identifier",
    "read_result",
    "read_results",
    "tables",
]
