"""The fields of a `results.json` that reports and cards show, checked first: anyone may have written the file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalar_retrieval.commands.schema import check_value, count, flag, number, size, temperature, text, whole

_METRIC = (None, number)
_RATE = "[0, 1]"
_RATES = {
    "rate": _RATE,
    "methods": {...: {...: _METRIC}},
    "best_pathway?": {"method?": text, "text_to_video_recall_at_1?": _METRIC},
    "aggregation_gain?": {...: _METRIC},
    "presence?": {...: count},
    "mean_weight?": {...: _METRIC},
    "decided?": {...: count},
}
_RESULT = {
    "label": text,
    "seed": (None, whole),
    "benchmark": text,
    "split": text,
    "task": text,
    "score": {"method": text, "query_temperature?": temperature},
    "retrieval": {
        "num_queries": count,
        "num_clips": size,
        "num_pairs?": count,
        "mask_seed": (None, whole),
        "tie_rule": text,
        "rates": [_RATES],
        "differences?": [
            {
                "method": text,
                "baseline": text,
                "difference": number,
                "low": number,
                "high": number,
                "confidence": _RATE,
            }
        ],
    },
    "two_stage": [
        {"depth": count, "policy": text, "method": text, "rate": _RATE, "rule?": text, "weight?": number, ...: _METRIC}
    ],
    "two_stage_fusion?": (None, {"weight": number, "split?": (None, text)}),
    "gallery": {"sha256": text, "num_clips?": count, "ids?": [text], "presence?": [[count]]},
    "embedded?": {"weights?": (None, {...: text})},
    "versions?": (None, {...: (None, text)}),
    "source?": (None, {"commit": text, "dirty": flag}),
    "date?": text,
    "trained_on?": (None, count),
    "left_out?": [text],
    "problems?": [text],
}


def check_result(content: Mapping[str, Any], path: Path) -> None:
    """
    Check all fields of a result that some reader uses.

    Args:
        content (`Mapping`): content of the file.
        path (`Path`): the file, for the message.

    Raises:
        ValueError: a field is missing or wrong; the message names the first one.
    """
    try:
        check_value(content, _RESULT)
    except ValueError as error:
        raise ValueError(f"{path} is not a result of `scalar eval run`: {error} Evaluate again.") from error


def second_stage(
    entries: Sequence[Mapping[str, Any]], rule: str = "match", depth: int | None = None
) -> list[Mapping[str, Any]]:
    """
    Select the results of the second stage by one rule at one depth.

    Args:
        entries (`Sequence[Mapping]`): `two_stage` of a result; an entry without a rule is by the match.
        rule (`str`): "match", the paper's, or "fused".
        depth (`int`, *optional*): by default 50, the paper's, or the largest if that was not measured.

    Returns:
        `list[Mapping]`: entries of every method, policy and rate.
    """
    # The entries of the rule, by their depths.
    by_depth: dict[int, list] = {}
    for entry in entries:
        if entry.get("rule", "match") == rule:
            by_depth.setdefault(entry["depth"], []).append(entry)
    if depth is None:
        depth = 50 if 50 in by_depth else max(by_depth, default=None)
    return by_depth.get(depth, [])


__all__ = ["check_result", "second_stage"]
