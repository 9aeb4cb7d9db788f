"""Which model a name or a folder is."""

import os
from pathlib import Path
from typing import Any

from .checking import file_of, place_of

ADAPTER_CONFIG = "adapter_config.json"


def base_of(name: str, adapter: dict[str, Any]) -> tuple[str, str]:
    """
    Return the base of an adapter, a folder or a Hub id, and its revision.

    Args:
        name (`str`): the absolute folder of the adapter, or its Hub id.
        adapter (`dict`): its `adapter_config.json`.

    Raises:
        ValueError: it names none, or one that cannot be; the message says where to mend it.
    """
    base, revision = adapter.get("base_model_name_or_path"), adapter.get("revision") or "main"
    mend = "Name the base in `base_model_name_or_path` of its adapter_config.json."
    if not isinstance(base, str) or not base or not isinstance(revision, str):
        raise ValueError(
            f"The adapter in {name} must name its base, got {base!r:.200}, revision {revision!r:.200}. {mend}"
        )
    if not Path(base).is_dir() and (os.path.isabs(base) or base.startswith(".")):
        raise ValueError(f"The folder {base}, the base of the adapter in {name}, is gone. Put it back. {mend}")
    base = place_of(base)
    if base == name:
        raise ValueError(f"The adapter in {name} names itself as its base. {mend}")
    if file_of(base, ADAPTER_CONFIG, revision) is not None:
        raise ValueError(
            f"The base of the adapter in {name} is an adapter itself, {base}; a model was expected. {mend}"
        )
    return base, revision


__all__ = ["ADAPTER_CONFIG", "base_of"]
