"""Errors of vector engines; importable without their clients."""


class EngineError(OSError):
    """The engine does not answer, or refuses a request."""


class NoCollectionError(EngineError, FileNotFoundError):
    """The engine has no collection with this name."""


class DamagedError(EngineError):
    """The data in the engine is not as it was pushed."""


class ForeignError(EngineError, ValueError):
    """The data in the engine was not written by `push` of this version."""


class ChangedError(EngineError):
    """The collection was replaced by one with other vectors during a query."""


class UnsupportedError(ValueError):
    """An engine does not support this; a gallery in a folder does."""


__all__ = [
    "ChangedError",
    "DamagedError",
    "EngineError",
    "ForeignError",
    "NoCollectionError",
    "UnsupportedError",
]
