"""Text-to-video retrieval over video, audio and subtitles by query-conditioned spherical centroids."""

from pathlib import Path

# The rooms stand here as links. A checkout without links, as on Windows, holds files in their place.
if not Path(__file__).with_name("commands").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[2]))


def __getattr__(name: str) -> object:
    if name == "index":
        from .search.index_folder import index

        return index
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
