"""Plugins: modules that a command imports because they register scores of their own."""

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
    """What an error of a plugin is, and the line that it came from."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def _checked(name: str, score: Callable[[Pairs], torch.Tensor]) -> Callable[[Pairs], torch.Tensor]:
    """Call a score of a plugin, whose mistakes are not ours."""

    @wraps(score)
    def checked(pairs: Pairs) -> torch.Tensor:
        try:
            scores = score(pairs)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ValueError(f"The score {name!r} of a plugin fails: {_where(error)}") from error
        expected = (len(pairs.text_embeds), len(pairs.clips.modality_mask))
        got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        if got != expected:
            raise ValueError(f"The score {name!r} of a plugin must return a tensor of shape {expected}, got {got}.")
        return scores

    return checked


def load_plugins(names: Iterable[str]) -> None:
    """
    Import modules that register scores of one's own with [`~scores_scalar.register_method`].

    Args:
        names (iterable of `str`): importable names; a module in the working folder is found by its own.

    Raises:
        ValueError: there is no such module, or it cannot be imported. A score that fails later, or returns something
            else than scores, raises one too.
    """
    for name in names:
        if os.getcwd() not in sys.path:  # as `python -m` has it, and a script in another folder has not
            sys.path.append(os.getcwd())
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"A plugin is the name of a module, as `import` takes it, got {name!r}.")
        known = set(METHODS)
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"The plugin {name!r} cannot be imported from here: {error}") from error
        except (Exception, SystemExit) as error:
            raise ValueError(f"The plugin {name!r} fails when it is imported: {_where(error)}") from error
        for method in set(METHODS) - known:
            METHODS[method] = replace(METHODS[method], score=_checked(method, METHODS[method].score))


__all__ = ["load_plugins"]
