"""Starts a decoder: a program, of which nothing is imported.

It loads the files that the decoder needs by their paths: with their packages they would load torch, and that takes
seconds.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_FILES = [
    "modeling_scalar.media_scalar",
    *map("gallery.decoding.{}".format, ("limits", "channel", "streams", "video", "subtitles", "sound", "program")),
]


def load(root: Path) -> None:
    """Load what a decoder needs from the folder in which the packages are."""
    for name in _FILES:
        spec = spec_from_file_location(name, root.joinpath(*name.split(".")).with_suffix(".py"))
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


if __name__ == "__main__":
    load(Path(__file__).parents[2])
    try:
        sys.modules["gallery.decoding.program"].serve()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
