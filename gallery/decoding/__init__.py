"""Reading of untrusted media files, in separate processes and within limits.

`pool` starts the processes and holds the reader that processors use; a process runs `worker`, which imports no torch.
"""

from scalar_retrieval.modeling_scalar.media_scalar import IN_PART

from .pool import (
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
from .worker import PICTURE_FILES, Facts, LimitError, Limits, date_in_name

__all__ = [
    "IN_PART",
    "LIGHT_MEMORY",
    "PICTURE_FILES",
    "Facts",
    "LimitError",
    "Limits",
    "SandboxedReader",
    "Stop",
    "Stopped",
    "check_not_stopped",
    "date_in_name",
    "num_processors",
    "room_beside_decoders",
    "sandboxed",
    "tolerant",
    "with_preview",
]
