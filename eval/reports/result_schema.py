"""The fields of a `results.json` that reports and cards show, checked first: anyone may have written the file."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modeling_scalar.scores_scalar import METHODS

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
    known = {"depth": _count, "policy": _text, "method": _text, "rate": _rate, "rule": _text, "weight": _number}
    return (
        isinstance(value, dict)
        and all(
            known.get(name, _metric if name.startswith(("text_to_video", "video_to_text")) else lambda _: True)(found)
            for name, found in value.items()
        )
        and {"depth", "policy", "method", "rate"} <= value.keys()
    )


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
    if isinstance(expected, tuple):  # null, or something else
        return None if value is None else _check(value, expected[1], name)
    if isinstance(expected, list):
        if not isinstance(value, list):
            return f"`{name}` must be a list, got {value!r:.80}"
        problems = (_check(item, expected[0], f"{name}[{place}]") for place, item in enumerate(value))
        return next(filter(None, problems), None)
    if isinstance(expected, dict):
        if not isinstance(value, dict):
            return f"`{name}` must be an object, got {value!r:.80}"
        if ... in expected:
            problems = (_check(item, expected[...], f"{name}.{key:.80}") for key, item in value.items())
            problems = (f"`{name}` holds the name {key!r:.80}" for key in value if not _text(key)), problems
            return next(filter(None, (problem for kind in problems for problem in kind)), None)
        lacking = [key for key in expected if not key.endswith("?") and key not in value]
        if lacking:
            return f"`{name}` lacks {lacking}" if name else f"it lacks {lacking}"
        prefix = f"{name}." if name else ""
        keys = {key.removesuffix("?"): inner for key, inner in expected.items()}
        problems = (_check(value[key], inner, prefix + key) for key, inner in keys.items() if key in value)
        return next(filter(None, problems), None)
    return None if expected(value) else f"`{name}` must be {_EXPECTED[expected]}, got {value!r:.80}"


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
    found = [entry for entry in entries if entry.get("rule", "match") == rule]
    depths = {entry["depth"] for entry in found}
    if depth is None:
        depth = 50 if 50 in depths else max(depths, default=None)
    return [entry for entry in found if entry["depth"] == depth]


def method_title(method: str) -> str:
    """Return the title of a score in tables and cards; its name if it is not registered here."""
    return METHODS[method].title if method in METHODS else method


__all__ = ["check_result", "method_title", "second_stage"]
