"""Writing files so that nobody ever reads half of one."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(content: Any, path: Path) -> None:
    """Write JSON so that `path` holds the old content or the new one, never half of it, even after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


__all__ = ["write_json"]
