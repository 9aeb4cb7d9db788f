"""Reading of media files that nobody has looked at: by processes of their own, within limits.

`reader` is what processors get, `pool` the decoders, `answers` what they may say. `start` is what a decoder runs, with
`program`, `video`, `sound` and `subtitles`; these import no torch.
"""

from gallery.decoding.limits import IN_PART, LimitError, Limits
from gallery.decoding.pool import LIGHT_MEMORY, Stop, Stopped, check_not_stopped, num_processors
from gallery.decoding.reader import SandboxedReader, sandboxed, showing

__all__ = [
    "IN_PART",
    "LIGHT_MEMORY",
    "LimitError",
    "Limits",
    "SandboxedReader",
    "Stop",
    "Stopped",
    "check_not_stopped",
    "num_processors",
    "sandboxed",
    "showing",
]
