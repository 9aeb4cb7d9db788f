"""JSON that anyone may have written: read within bounds, and checked against a description of what is expected.

A function checks a value, and its docstring says what it expects; a text is the interval of a number. All items of a
list are like its one item; a tuple is null, or like its second item. An object has the named fields, of which those
with a "?" may be absent; what any other field holds is under `...`, and without it, other fields are not read.
"""

import json
import math
import re
from typing import Any

_LARGEST = 1e15  # of numbers: sums and squares of larger ones overflow
_LEAST_TEMPERATURE = 2.0**-126  # the smallest normal float32: a division by less would give infinite scores
_DEEPEST = 64  # lists and objects within each other


def number(value: Any) -> bool:
    """a finite number"""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= _LARGEST


def whole(value: Any) -> bool:
    """a whole number"""
    return number(value) and isinstance(value, int)


def count(value: Any) -> bool:
    """a whole number from 0"""
    return whole(value) and value >= 0


def size(value: Any) -> bool:
    """a whole number from 1"""
    return count(value) and value > 0


def flag(value: Any) -> bool:
    """true or false"""
    return isinstance(value, bool)


def _is_within(value: Any, interval: str) -> bool:
    """Whether a value is a number in an interval such as `"[0, 1)"`."""
    if not number(value):
        return False
    low, high = map(float, interval[1:-1].split(","))
    is_inside = low < value < high
    if interval[0] == "[":
        is_inside |= value == low
    if interval[-1] == "]":
        is_inside |= value == high
    return is_inside


def temperature(value: Any) -> bool:
    """a float32 number above 0, at most 1e15, or 'inf'"""
    # Cosines are divided by it. JSON has no infinity.
    return value in ("inf", math.inf) or (number(value) and value >= _LEAST_TEMPERATURE)


def text(value: Any) -> bool:
    """text"""
    # It can be written: JSON can hold half a character, which cannot.
    return isinstance(value, str) and not re.search("[\\ud800-\\udfff]", value)


def nothing(value: Any) -> bool:
    """absent"""
    return False


def _named(name: str) -> str:
    return f"`{name}`" if name else "it"


def _expect(is_right: bool, name: str, kind: str | None, value: Any) -> None:
    if not is_right:
        raise ValueError(f"{_named(name)} must be {kind}, got {value!r:.80}.")


def check_value(value: Any, expected: Any, name: str = "") -> None:
    """Raise a ValueError if a value is not what is expected; the message begins with the name of the field."""
    # By the form of what is expected: see the top of this file.
    if isinstance(expected, tuple):
        if value is not None:
            check_value(value, expected[1], name)
    elif isinstance(expected, list):
        _expect(isinstance(value, list), name, "a list", value)
        for place, item in enumerate(value):
            check_value(item, expected[0], f"{name}[{place}]")
    elif isinstance(expected, dict):
        _expect(isinstance(value, dict), name, "an object", value)
        _check_fields(value, expected, name)
    elif isinstance(expected, str):
        interval = expected.replace("inf)", f"{_LARGEST:g}]")
        _expect(_is_within(value, interval), name, f"a number in {interval}", value)
    else:
        _expect(expected(value), name, expected.__doc__, value)


def _check_fields(value: dict[str, Any], expected: dict[Any, Any], name: str) -> None:
    """Check the fields of an object."""
    # Missing fields first: they usually have a cause of their own, such as a file of another program.
    fields = {}
    lacking = []
    for key, inner in expected.items():
        if key is ...:
            continue
        fields[key.removesuffix("?")] = inner
        if not key.endswith("?") and key not in value:
            lacking.append(key)
    if lacking:
        raise ValueError(f"{_named(name)} lacks {lacking}.")
    for key, item in value.items():
        inner = fields.get(key, expected.get(...))
        if inner is not None:  # otherwise no reader uses it
            _expect(text(key), name, "an object whose names are text", value)
            check_value(item, inner, f"{name}.{key:.80}".removeprefix("."))


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def parse_json(raw: str | bytes) -> Any:
    """Parse JSON; raises a ValueError if it is not JSON, or nested too deeply for a program to go through."""
    try:
        content = json.loads(raw, parse_constant=_not_json)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # Level by level, as going through it by recursion is what may fail.
    level = [content]
    for _ in range(_DEEPEST):
        inner = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
    if level:
        raise ValueError("it is nested too deeply")
    return content


__all__ = [
    "check_value",
    "count",
    "flag",
    "nothing",
    "number",
    "parse_json",
    "size",
    "temperature",
    "text",
    "whole",
]
