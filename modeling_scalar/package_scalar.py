"""What of this package does not travel with saved models."""

from importlib import import_module
from types import ModuleType


def in_package(name: str) -> ModuleType:
    """
    Import a sibling that is not saved with models.

    Raises:
        ImportError: this is the code of a saved model.
    """
    try:
        return import_module(f".{name}", __package__)
    except ModuleNotFoundError as error:
        if error.name != f"{__package__}.{name}":
            raise
        raise ImportError("This needs the package itself, not only the code that was saved with a model.") from error


__all__ = ["in_package"]
