"""Starts a decoder; this script is run, never imported.

It loads the files that the decoder needs by path: importing their packages would load torch, which takes seconds.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_FILES = [
    "modeling_scalar.media_scalar",
    *map("gallery.decoding.{}".format, ("limits", "channel", "streams", "video", "subtitles", "sound", "program")),
]


def load(root: Path) -> None:
    """Load what a decoder needs from the folder that contains the packages."""
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
