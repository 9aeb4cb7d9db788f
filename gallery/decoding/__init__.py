"""Reading of untrusted media files, in separate processes and within limits.

`reader` is what processors use, `pool` manages the decoders, `answers` checks their messages. A decoder runs `start`,
with `program`, `video`, `sound` and `subtitles`; these do not import torch.
"""

from gallery.decoding.limits import IN_PART, LimitError, Limits
from gallery.decoding.pool import (
    LIGHT_MEMORY,
    Stop,
    Stopped,
    check_not_stopped,
    num_processors,
    room_beside_decoders,
)
from gallery.decoding.reader import SandboxedReader, sandboxed, showing, tolerant

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
    "room_beside_decoders",
    "sandboxed",
    "showing",
    "tolerant",
]
