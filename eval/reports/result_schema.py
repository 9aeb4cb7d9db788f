"""The fields of a `results.json` that reports and cards show, checked first: anyone may have written the file."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_LARGEST = 1e15  # of numbers: sums and squares of larger ones overflow


def _number(value: Any) -> bool:
    """Whether a value is a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _LARGEST


def _count(value: Any) -> bool:
    """Whether a value is a whole number that is not negative."""
    return _number(value) and isinstance(value, int) and value >= 0


def _size(value: Any) -> bool:
    return _count(value) and value > 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _version(value: Any) -> bool:
    return value is None or _text(value)


def _seed(value: Any) -> bool:
    return value is None or (isinstance(value, int) and _number(value))


def _rate(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _text(value: Any) -> bool:
    """Whether a value is text that can be written: JSON can hold half a character, which cannot."""
    return isinstance(value, str) and not re.search("[\\ud800-\\udfff]", value)


def _metric(value: Any) -> bool:
    return value is None or _number(value)


def _temperature(value: Any) -> bool:
    """Whether a value is a temperature: JSON has no infinity, which is written as a string."""
    return _number(value) or value in ("inf", "Infinity")


def _second_stage_entry(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    # Known fields by their kinds; a metric has the name of its direction in front, anything else is not read.
    checks = {"depth": _count, "policy": _text, "method": _text, "rate": _rate, "rule": _text, "weight": _number}
    for name, content in value.items():
        check = checks.get(name)
        if name.startswith(("text_to_video", "video_to_text")):
            check = _metric
        if check is not None and not check(content):
            return False
    return {"depth", "policy", "method", "rate"} <= value.keys()


_EXPECTED: dict[Callable[[Any], bool], str] = {
    _number: "a finite number",
    _count: "a whole number from 0",
    _size: "a whole number from 1",
    _flag: "true or false",
    _version: "text or null",
    _seed: "a whole number or null",
    _rate: "a number from 0 to 1",
    _text: "text",
    _metric: "a finite number or null",
    _temperature: "a number",
    _second_stage_entry: "an object with `depth`, `policy`, `method`, `rate` and metrics",
}

# A function checks a value. All items of a list are like its one item, and all values of a dict with the one key `...`
# like its value; a name that ends with "?" is optional.
_RATES = {
    "rate": _rate,
    "methods": {...: {...: _metric}},
    "best_pathway?": {"method?": _text, "text_to_video_recall_at_1?": _metric},
    "aggregation_gain?": {...: _metric},
    "presence?": {...: _count},
    "mean_weight?": {...: _metric},
    "decided?": {...: _count},
}
_RESULT = {
    "label": _text,
    "seed": _seed,
    "benchmark": _text,
    "split": _text,
    "task": _text,
    "score": {"method": _text, "query_temperature?": _temperature},
    "retrieval": {
        "num_queries": _count,
        "num_clips": _size,
        "num_pairs?": _count,
        "mask_seed": _seed,
        "tie_rule": _text,
        "rates": [_RATES],
        "differences?": [
            {
                "method": _text,
                "baseline": _text,
                "difference": _number,
                "low": _number,
                "high": _number,
                "confidence": _rate,
            }
        ],
    },
    "two_stage": [_second_stage_entry],
    "two_stage_fusion?": (None, {"weight": _number, "split?": (None, _text)}),
    "gallery": {"sha256": _text, "num_clips?": _count, "ids?": [_text], "presence?": [[_count]]},
    "embedded?": {"weights?": (None, {...: _text})},
    "versions?": (None, {...: _version}),
    "source?": (None, {"commit": _text, "dirty": _flag}),
    "date?": _text,
    "trained_on?": (None, _count),
    "left_out?": [_text],
    "problems?": [_text],
}


def _check(value: Any, expected: Any, name: str) -> str | None:
    """Return what is wrong with a value, if anything."""
    # By the form of what is expected: see the comment above the schema.
    if isinstance(expected, tuple):  # null, or something else
        if value is None:
            return None
        return _check(value, expected[1], name)
    if isinstance(expected, list):
        return _check_list(value, expected[0], name)
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            return f"`{name}` must be an object, got {value!r:.80}"
        if ... in expected:
            return _check_names(value, expected[...], name)
        return _check_fields(value, expected, name)
    if expected(value):
        return None
    return f"`{name}` must be {_EXPECTED[expected]}, got {value!r:.80}"


def _check_list(value: Any, expected: Any, name: str) -> str | None:
    """Check a list of items that are all alike."""
    if not isinstance(value, list):
        return f"`{name}` must be a list, got {value!r:.80}"
    for place, item in enumerate(value):
        problem = _check(item, expected, f"{name}[{place}]")
        if problem is not None:
            return problem
    return None


def _check_names(value: dict[str, Any], expected: Any, name: str) -> str | None:
    """Check an object with any names, whose values are all alike."""
    for key in value:
        if not _text(key):
            return f"`{name}` holds the name {key!r:.80}"
    for key, item in value.items():
        problem = _check(item, expected, f"{name}.{key:.80}")
        if problem is not None:
            return problem
    return None


def _check_fields(value: dict[str, Any], expected: dict[str, Any], name: str) -> str | None:
    """Check an object with these fields; others may be there, for no reader uses them."""
    # Missing fields first: they usually have a cause of their own, such as a file of another program.
    lacking = [key for key in expected if not key.endswith("?") and key not in value]
    if lacking and name:
        return f"`{name}` lacks {lacking}"
    if lacking:
        return f"it lacks {lacking}"
    for key, inner in expected.items():
        key = key.removesuffix("?")
        if key in value:
            problem = _check(value[key], inner, f"{name}.{key}".removeprefix("."))
            if problem is not None:
                return problem
    return None


def check_result(content: Mapping[str, Any], path: Path) -> None:
    """
    Check all fields of a result that some reader uses.

    Args:
        content (`Mapping`): content of the file.
        path (`Path`): the file, for the message.

    Raises:
        ValueError: a field is missing or wrong; the message names the first one.
    """
    problem = _check(content, _RESULT, "")
    if problem is not None:
        raise ValueError(f"{path} is not a result of `scalar eval run`: {problem}. Evaluate again.")


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
        depth = max(by_depth, default=None)
        if 50 in by_depth:
            depth = 50
    return by_depth.get(depth, [])


__all__ = ["check_result", "second_stage"]
