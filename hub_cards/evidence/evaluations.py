"""How well a staged model or adapter retrieves: the `results.json` of `scalar eval run`, one in each folder.

Every metric on a card comes from there: those of the front matter as they are, those of the tables rounded, and the
sentences about what speaks against the model.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from gallery.files import read_json
from gallery.result_schema import check_result, method_title, second_stage
from modeling_scalar.configuration_scalar import MODALITIES

from ..markdown import Markdown, text

R1 = "text_to_video_recall_at_1"
DIRECTIONS = {"text_to_video": "Text-to-video retrieval", "video_to_text": "Video-to-text retrieval"}

_METRIC_NAMES = {
    "recall_at_1": "R@1",
    "recall_at_5": "R@5",
    "recall_at_10": "R@10",
    "mean_average_precision": "mAP",
    "ndcg_at_10": "nDCG@10",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
}
POLICY_NAMES = {"absent": "no tokens for what a clip lacks", "zeros": "tokens of zeros for what a clip lacks"}
"""What the cross-encoder reads for a modality that is masked or missing."""


@dataclass(frozen=True)
class Result:
    """
    One evaluation.

    Args:
        name (`str`): the name of its folder.
        content (`Mapping`): its `results.json`.
        figures (`tuple[str, ...]`): the figures in its folder, as paths inside it.
    """

    name: str
    content: Mapping[str, Any]
    figures: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The score that the model was trained for."""
        return self.content["score"]["method"]

    @property
    def rates(self) -> Mapping[float, Mapping[str, Any]]:
        """What was measured in the first stage, by masking rate."""
        return {entry["rate"]: entry for entry in self.content["retrieval"]["rates"]}

    @property
    def policies(self) -> Mapping[str, Mapping[float, Mapping[str, Any]]]:
        """What was measured after reordering as in the paper, by the match alone, of the model's own score.

        By policy and masking rate, at the depth 50 or else the largest.
        """
        found: dict[str, dict[float, Mapping[str, Any]]] = {}
        for entry in second_stage(self.content["two_stage"]):
            if entry["method"] == self.method:
                found.setdefault(entry["policy"], {})[entry["rate"]] = entry
        return found

    @property
    def gains(self) -> Mapping[float, float]:
        """The aggregation gain of the model's own score, by masking rate; a single pathway has none."""
        gains = {rate: entry.get("aggregation_gain", {}).get(self.method) for rate, entry in self.rates.items()}
        return {rate: gain for rate, gain in gains.items() if gain is not None}

    @property
    def gallery(self) -> str:
        """What distinguishes the task from others on the same benchmark: candidates, queries and masks."""
        retrieval = self.content["retrieval"]
        sha256 = self.content["gallery"]["sha256"]
        return f"gallery {sha256[:12]}, {retrieval['num_queries']} queries, mask seed {retrieval['mask_seed']}"


def percent(share: float) -> str:
    """Write a share for readers."""
    return f"{100 * share:g} %"


# Reading ------------------------------------------------------------------------------------------------------------


def _check_result(content: Mapping[str, Any], path: Path) -> None:
    check_result(content, path)
    lacking = [name for name in ("embedded", "date", "left_out", "problems") if name not in content]
    if lacking:
        raise ValueError(f"{path} is not a result of `scalar eval run`: it lacks {lacking}. Evaluate again.")
    if not re.fullmatch("[0-9a-f]{64}", content["gallery"]["sha256"]):
        raise ValueError(f"{path} must name its gallery by a SHA-256, got {content['gallery']['sha256']!r:.80}.")
    method = content["score"]["method"]
    rates = {entry["rate"]: entry["methods"] for entry in content["retrieval"]["rates"]}
    for rate, methods in rates.items():
        if method not in methods:
            raise ValueError(
                f"{path} is not a result of `scalar eval run`: at the rate {rate:g} it lacks the model's own score "
                f"{method!r}. Evaluate again."
            )
    if 0.0 not in rates:
        raise ValueError(f"{path} has no metrics with nothing masked: evaluate at the rate 0 too.")


def read_result(path: str | os.PathLike) -> Result:
    """
    Read one evaluation.

    Args:
        path (`str`): a `results.json` of `scalar eval run`.

    Returns:
        [`Result`]: named after the folder of the file.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: it is not a result, or lacks metrics of the model's own score with nothing masked.
    """
    path = Path(path)
    content = read_json(path)
    _check_result(content, path)
    figures = sorted(figure.relative_to(path.parent).as_posix() for figure in path.parent.rglob("*.png"))
    return Result(path.parent.name, content, tuple(figures))


def read_results(folder: str | os.PathLike) -> list[Result]:
    """
    Read the evaluations that are published with a model.

    Args:
        folder (`str`): of the model. Each folder in its `results/` holds one evaluation.

    Returns:
        `list[Result]`: by name; empty if nothing was evaluated.

    Raises:
        FileNotFoundError: a folder in `results/` has no `results.json`.
        ValueError: a file is not a result, or two are of the same benchmark, split, gallery, queries and masks.
    """
    results = [read_result(path / "results.json") for path in sorted(Path(folder).glob("results/*")) if path.is_dir()]
    seen: dict[tuple[str, str, str], str] = {}
    for result in results:
        task = (result.content["benchmark"], result.content["split"], result.gallery)
        if task in seen:
            raise ValueError(
                f"results/{seen[task]} and results/{result.name} both measure {task[0]} {task[1]} with the {task[2]}: "
                "publish one of them."
            )
        seen[task] = result.name
    return results


def check_weights(result: Result, digests: Mapping[str, str]) -> None:
    """
    Check that a result was measured with the weights that are published beside it.

    Args:
        result ([`Result`]): its `embedded` names the weights.
        digests (`Mapping[str, str]`): SHA-256 by file name of the published safetensors files.

    Raises:
        ValueError: the result names other weights, or none.
    """
    measured = result.content["embedded"].get("weights")
    if measured is None:
        raise ValueError(
            f"The result {result.name!r} does not say with which weights it was measured. Evaluate again."
        )
    if measured != dict(digests):
        raise ValueError(
            f"The result {result.name!r} was measured with other weights: it names {measured}, published are "
            f"{dict(digests)}. Evaluate again, or publish the model that the result belongs to."
        )


# Front matter -------------------------------------------------------------------------------------------------------


def identifier(name: str) -> str:
    """Return a name in the form of the Hub's ids: letters, digits and single `-`, `_` or `.` between them."""
    return re.sub(r"([-._])[-._]+", r"\1", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("-._")[:96] or "unnamed"


def _protocol(result: Result) -> dict[str, Any]:
    retrieval, gallery = result.content["retrieval"], result.content["gallery"]
    return {
        "gallery_sha256": gallery["sha256"],
        "num_clips": retrieval["num_clips"],
        "num_queries": retrieval["num_queries"],
        "mask_seed": retrieval["mask_seed"],
        "tie_rule": retrieval["tie_rule"],
        "num_left_out": len(result.content["left_out"]),
        "num_problems": len(result.content["problems"]),
    }


def _stages(result: Result) -> Iterable[tuple[float, Mapping[str, Any], Mapping[str, Any], str]]:
    """Masking rate, metrics, arguments and a name of everything measured with the model's own score."""
    for rate, entry in result.rates.items():
        yield rate, entry["methods"][result.method], {"stage": 1}, "first stage"
    for policy, rates in result.policies.items():
        for rate, entry in rates.items():
            arguments = {"stage": 2, "depth": entry["depth"], "policy": policy}
            yield rate, entry, arguments, f"second stage ({policy})"


def _metrics(rate: float, stage: int, direction: str, measured: Mapping[str, Any]) -> list[str]:
    """Which metrics go into the front matter: all those of the first stage with nothing masked, else recalls alone."""
    recalls = ["recall_at_1", "recall_at_5", "recall_at_10"]
    names = recalls[:1] if rate else recalls if stage == 2 else list(_METRIC_NAMES)
    return [name for name in names if measured.get(f"{direction}_{name}") is not None]


def _masked(rate: float) -> str:
    return f", {percent(rate)} of clips masked" if rate else ""


def eval_results(results: Sequence[Result]) -> list[EvalResult]:
    """
    Return the metrics of all evaluations for the front matter of a card.

    The Hub groups them by task, benchmark, configuration and split, so the gallery is part of the configuration, and
    what differs inside a group stands in the arguments of the metric.

    Args:
        results (`Sequence[Result]`): as [`read_results`] gives them.

    Returns:
        `list[EvalResult]`: values exactly as in `results.json`; what was not measured is left out.
    """
    found = []
    for result in results:
        content = result.content
        score = {name: value for name, value in content["score"].items() if value is not None}
        labels = " with class labels" if content["task"] == "classification" else ""
        shared = {
            "dataset_type": identifier(content["benchmark"]),
            "dataset_name": content["benchmark"],
            "dataset_config": result.gallery,
            "dataset_split": content["split"],
            "dataset_args": _protocol(result),
        }
        for direction, task in DIRECTIONS.items():
            shared |= {"task_type": direction.replace("_", "-") + "-retrieval", "task_name": task + labels}
            for rate, measured, stage, stage_name in _stages(result):
                for name in _metrics(rate, stage["stage"], direction, measured):
                    found.append(
                        EvalResult(
                            metric_type=name,
                            metric_value=measured[f"{direction}_{name}"],
                            metric_name=f"{_METRIC_NAMES[name]}, {stage_name}{_masked(rate)}",
                            metric_args={**stage, **score, "masking_rate": rate},
                            **shared,
                        )
                    )
            for rate, gain in result.gains.items() if direction == "text_to_video" else ():
                best = result.rates[rate]["best_pathway"]["method"]
                found.append(
                    EvalResult(
                        metric_type="aggregation_gain",
                        metric_value=gain,
                        metric_name=f"aggregation gain in R@1{_masked(rate)}",
                        metric_args={"stage": 1, **score, "masking_rate": rate, "best_pathway": best},
                        **shared,
                    )
                )
    return found


# Tables -------------------------------------------------------------------------------------------------------------


def _one_decimal(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _compared(result: Result) -> dict[str, str]:
    """The scores that the card shows beside the model's own, with their names. The choice is the card's own."""
    methods = result.rates[0.0]["methods"]
    best = result.rates[0.0].get("best_pathway", {}).get("method")
    names = {result.method: f"{method_title(result.method)} (own score)"}
    for method in ("scalar", "uniform", "gram"):
        if method in methods:
            names.setdefault(method, method_title(method))
    if best in methods:
        names.setdefault(best, f"best single pathway ({best})")
    return names


def complete_table(result: Result) -> tuple[list[str], list[list[Any]], str]:
    """Return head, rows and alignment of the table for both directions and stages with nothing masked."""
    metrics = [
        (f"{short} {name}", f"{direction}_{metric}")
        for direction, short in (("text_to_video", "T→V"), ("video_to_text", "V→T"))
        for metric, name in list(_METRIC_NAMES.items())[:3]
    ]
    rows = [
        [name, *(_one_decimal(result.rates[0.0]["methods"][method].get(key)) for _, key in metrics)]
        for method, name in _compared(result).items()
    ]
    rows += [
        [f"own score, then second stage ({policy})", *(_one_decimal(rates[0.0].get(key)) for _, key in metrics)]
        for policy, rates in result.policies.items()
        if 0.0 in rates
    ]
    return ["score", *(name for name, _ in metrics)], rows, "l" + "r" * len(metrics)


def masked_table(result: Result) -> tuple[list[str], list[list[Any]], str] | None:
    """Return the same for text-to-video R@1 at every masking rate; `None` if nothing was masked."""
    rates = sorted(result.rates)
    if rates == [0.0]:
        return None
    rows = [
        [name, *(_one_decimal(result.rates[rate]["methods"].get(method, {}).get(R1)) for rate in rates)]
        for method, name in _compared(result).items()
        if not name.startswith("best")
    ]
    pathways = [result.rates[rate].get("best_pathway", {}) for rate in rates]
    if any(pathways):
        # Which one is best may differ between rates.
        cells = [f"{_one_decimal(best[R1])} ({best['method']})" if best else None for best in pathways]
        rows.append(["best single pathway", *cells])
    rows += [
        [
            f"own score, then second stage ({policy})",
            *(_one_decimal(measured.get(rate, {}).get(R1)) for rate in rates),
        ]
        for policy, measured in result.policies.items()
    ]
    return ["score", *(percent(rate) for rate in rates)], rows, "l" + "r" * len(rates)


# Findings -----------------------------------------------------------------------------------------------------------


def _at(rate: float) -> str:
    return f"at {percent(rate)} masked" if rate else "with nothing masked"


def _series(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _others_above(result: Result, direction: str) -> Iterable[str]:
    key, method = f"{direction}_recall_at_1", result.method
    for rate, entry in sorted(result.rates.items()):
        own = entry["methods"][method].get(key)
        others = {name: metrics[key] for name, metrics in entry["methods"].items() if metrics.get(key) is not None}
        above = sorted((value, name) for name, value in others.items() if own is not None and value > own)
        if above:
            value, name = above[-1]
            more = f" and {len(above) - 1} more" if len(above) > 1 else ""
            yield f"{own:.1f} against {value:.1f} ({text(method_title(name))}{more}) {_at(rate)}"


def _second_stage_below(result: Result, rates: Mapping[float, Mapping[str, Any]]) -> Iterable[str]:
    for rate, entry in sorted(rates.items()):
        first = result.rates.get(rate, {}).get("methods", {}).get(result.method, {}).get(R1)
        if None not in (first, entry.get(R1)) and entry[R1] < first:
            yield f"from {first:.1f} to {entry[R1]:.1f} {_at(rate)}"


def findings(result: Result) -> list[Markdown]:
    """
    Return what speaks against the model in its own metrics, a sentence each.

    Args:
        result ([`Result`]): one evaluation.

    Returns:
        `list[Markdown]`: empty if the own score is the best at every rate and in both directions, its gain positive,
        its lead over the controls clear, and the second stage no worse than the first.
    """
    sentences = []
    for direction, name in DIRECTIONS.items():
        above = list(_others_above(result, direction))
        if above:
            sentences.append(f"{name}: R@1 is below that of other scores on the same embeddings, {'; '.join(above)}.")
    losses = [f"{gain:+.1f} {_at(rate)}" for rate, gain in sorted(result.gains.items()) if gain < 0]
    if losses:
        sentences.append(f"The aggregation gain is negative, the best single pathway ahead: {_series(losses)}.")
    for entry in result.content["retrieval"].get("differences", []):
        if entry["low"] <= 0 <= entry["high"]:
            sentences.append(
                f"The difference of {entry['difference']:+.1f} R@1 to {text(method_title(entry['baseline']))}, text "
                f"to video, may be chance: its {percent(entry['confidence'])} interval over queries is "
                f"[{entry['low']:+.1f}, {entry['high']:+.1f}]."
            )
    for policy, rates in result.policies.items():
        below = list(_second_stage_below(result, rates))
        if below:
            sentences.append(f"The second stage ({text(policy)}) lowers text-to-video R@1, {'; '.join(below)}.")
    unscorable = result.rates[0.0]["methods"][result.method].get("num_unscorable_clips")
    if unscorable:
        sentences.append(f"The model's own score is undefined for {unscorable} clips, which rank last.")
    return [Markdown(sentence) for sentence in sentences]


def presence(result: Result) -> str:
    """Write how many clips of the gallery have each modality."""
    num_clips = result.content["retrieval"]["num_clips"]
    found = result.rates[0.0].get("presence", {})
    return ", ".join(
        f"{name} {found[name]:,} ({100 * found[name] / num_clips:.0f} %)" for name in MODALITIES if name in found
    )


__all__ = [
    "POLICY_NAMES",
    "R1",
    "Result",
    "check_weights",
    "complete_table",
    "eval_results",
    "findings",
    "identifier",
    "masked_table",
    "percent",
    "presence",
    "read_result",
    "read_results",
]
