"""The apps that run in Spaces, each a folder that is published as it is, and the versions they are tested with."""

from pathlib import Path

METRIC = Path(__file__).parent / "metric"
SEARCH = Path(__file__).parent / "search"
GRADIO_VERSION = "6.31.0"
PYTHON_VERSION = "3.11"

__all__ = ["GRADIO_VERSION", "METRIC", "PYTHON_VERSION", "SEARCH"]
