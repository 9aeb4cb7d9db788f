"""Plugins: modules imported by a command to register additional scores."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from importlib import import_module
from pathlib import Path

import torch

from .scores_scalar import METHODS, Pairs


def _where(error: BaseException) -> str:
    """Describe an error of a plugin and the line where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def _checked(name: str, score: Callable[[Pairs], torch.Tensor]) -> Callable[[Pairs], torch.Tensor]:
    """Wrap a score of a plugin, so that its errors name the plugin."""

    @wraps(score)
    def checked(pairs: Pairs) -> torch.Tensor:
        try:
            scores = score(pairs)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ValueError(f"The plugin score {name!r} failed: {_where(error)}") from error
        expected = (len(pairs.text_embeds), len(pairs.clips.modality_mask))
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        if got != expected:
            raise ValueError(f"The plugin score {name!r} must return a tensor of shape {expected}, got {got}.")
        return scores

    return checked


def load_plugins(names: Iterable[str]) -> None:
    """
    Import modules that register scores with [`~scores_scalar.register_method`].

    Args:
        names (iterable of `str`): Importable module names; modules in the working folder are found too.

    Raises:
        ValueError: If a module does not exist or cannot be imported. A score that fails later, or returns anything
            else than scores, raises one too.
    """
    for name in names:
        if os.getcwd() not in sys.path:  # `python -m` adds it, a script in another folder does not
            sys.path.append(os.getcwd())
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"A plugin must be the name of an importable module, got {name!r}.")
        known = set(METHODS)
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"The plugin {name!r} cannot be imported: {error}") from error
        except (Exception, SystemExit) as error:
            raise ValueError(f"The plugin {name!r} failed on import: {_where(error)}") from error
        for method in set(METHODS) - known:
            METHODS[method] = replace(METHODS[method], score=_checked(method, METHODS[method].score))


__all__ = ["load_plugins"]
