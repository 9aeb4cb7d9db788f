"""What may be wrong with a vector engine, and with what it is asked; known without its client."""


class EngineError(OSError):
    """The engine does not answer, or refuses."""


class NoCollectionError(EngineError, FileNotFoundError):
    """The engine has no collection of this name."""


class DamagedError(EngineError):
    """What the engine holds is not what was pushed."""


class ChangedError(EngineError):
    """The collection became one of other vectors while it was asked."""


class UnsupportedError(ValueError):
    """An engine cannot be asked this; a gallery in its folder can."""


__all__ = ["ChangedError", "DamagedError", "EngineError", "NoCollectionError", "UnsupportedError"]
