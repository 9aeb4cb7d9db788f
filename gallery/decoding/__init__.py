"""Reading of untrusted media files, in separate processes and within limits.

`pool` starts the processes and holds the reader that processors use; a process runs `worker`, which imports no torch.
"""

from gallery.decoding.pool import (
    LIGHT_MEMORY,
    SandboxedReader,
    Stop,
    Stopped,
    check_not_stopped,
    num_processors,
    room_beside_decoders,
    sandboxed,
    tolerant,
    with_preview,
)
from gallery.decoding.worker import Facts, LimitError, Limits
from modeling_scalar.media_scalar import IN_PART

__all__ = [
    "IN_PART",
    "LIGHT_MEMORY",
    "Facts",
    "LimitError",
    "Limits",
    "SandboxedReader",
    "Stop",
    "Stopped",
    "check_not_stopped",
    "num_processors",
    "room_beside_decoders",
    "sandboxed",
    "tolerant",
    "with_preview",
]
