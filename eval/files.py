"""Writing files so that nobody ever reads half of one."""

import json
import math
import os
from pathlib import Path
from typing import Any


def _without_infinity(content: Any) -> Any:
    """JSON knows no infinity, of a temperature say: it becomes a string that `float` reads."""
    if isinstance(content, dict):
        return {name: _without_infinity(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_infinity(value) for value in content]
    return str(content) if isinstance(content, float) and math.isinf(content) else content


def write_json(content: Any, path: Path) -> None:
    """
    Write JSON so that `path` holds the old content or the new one, never half of it, even after a power cut.

    Raises:
        ValueError: a number is NaN.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(_without_infinity(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


__all__ = ["write_json"]
