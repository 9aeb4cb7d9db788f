"""Decodes frames, sound and subtitles with PyAV, in a separate process.

`pool` starts it, through `start.py`, and communicates over pipes, so that a file that crashes, hangs or exhausts a
decoder affects nothing else. It therefore imports neither torch nor a package that does, and starts quickly.
"""

import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from gallery.decoding.channel import Channel
from gallery.decoding.limits import LimitError, Limits
from gallery.decoding.sound import send_sound
from gallery.decoding.streams import Known, Request, opened, seconds_in_header, title_of, zero_of
from gallery.decoding.subtitles import send_subtitle_file, send_subtitle_track, tracks_of
from gallery.decoding.video import send_frames
from modeling_scalar.media_scalar import MediaError, av, first_stream

if os.name == "posix":
    import resource

_LONGEST_MESSAGE = 8000


def _send_tracks(path: str, channel: Channel) -> None:
    """Send the tracks of subtitles in a file, and its title."""
    with opened(path) as container:
        channel.send("tracks", tracks=tracks_of(container), title=title_of(container))


def _send_header(path: str, channel: Channel, stream: str) -> None:
    """Send whether the header announces a stream of a kind, and if so its length in seconds."""
    with opened(path) as container:
        seconds = None if container.duration is None else container.duration / av.time_base
        channel.send("header", promised=first_stream(path, container, stream) is not None, seconds=seconds)


def _send_duration(path: str, channel: Channel) -> None:
    """Send the length of a file in seconds, from its header or, if that is silent, from its packets."""
    with opened(path) as container:
        seconds = seconds_in_header(container)
        if seconds is None:
            seconds = None if container.duration is None else container.duration / av.time_base
            ends = [
                float((packet.pts + (packet.duration or 0)) * packet.time_base)
                for packet in container.demux()
                if packet.pts is not None
            ]
            seconds = max(ends) - zero_of(container) if ends else seconds
        if seconds is not None and seconds > Request.limits.duration:
            raise Request.limits.exceeded(path, "duration", f"it lasts {seconds:g} s", seconds)
        channel.send("header", promised=True, seconds=seconds)


_ANSWERS: dict[str, Callable] = {
    "frames": send_frames,
    "sound": send_sound,
    "subtitle_file": send_subtitle_file,
    "subtitle_track": send_subtitle_track,
    "tracks": _send_tracks,
    "header": _send_header,
    "duration": _send_duration,
}


def _answer(request: dict[str, Any], channel: Channel) -> None:
    """Answer one request; errors are reported, and the last message is `done`, `error` or `memory`."""
    path = request["path"]
    Request.begin(Limits(**request["limits"]), request["is_heavy"], request["memory"], request["is_lenient"])
    if request["options"].get("window") is None:
        Known.path, Known.found = None, {}  # it takes memory
    try:
        _ANSWERS[request["what"]](path, channel, **request["options"])
    except MemoryError:
        channel.send("memory")
    except LimitError as error:
        channel.send("error", error="limit", message=str(error)[:_LONGEST_MESSAGE])
    except MediaError as error:
        if Request.lacks_memory():
            channel.send("memory", message=str(error)[:_LONGEST_MESSAGE])
        else:
            channel.send("error", error="media", message=str(error)[:_LONGEST_MESSAGE])
    except OSError as error:
        kind = "media"
        if isinstance(error, FileNotFoundError) and not os.path.exists(path):
            kind = "missing"
        elif isinstance(error, PermissionError) and not os.access(path, os.R_OK):
            kind = "denied"
        channel.send("error", error=kind, message=f"{path}: reading failed ({error})."[:_LONGEST_MESSAGE])
    except Exception as error:
        message = (
            f"{path}: unexpected error of the reader; please report it, with the file if you can: "
            f"{type(error).__name__}: {error}"
        )
        channel.send("error", error="media", message=message[:_LONGEST_MESSAGE])
    else:
        content = {} if Request.problem is None else {"message": Request.problem[:_LONGEST_MESSAGE]}
        channel.send("done", **content)


def _restrict(limits: dict[str, float], memory: int, data_at_start: int | None) -> None:
    """Limit this process: beyond its memory, allocations fail; beyond its time, the system ends it."""
    if os.name != "posix":
        return
    bounds = {resource.RLIMIT_CPU: math.ceil(time.process_time() + limits["time"])}
    if data_at_start is not None:
        bounds[resource.RLIMIT_DATA] = data_at_start + int(memory)
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)  # set by whoever started this program; it cannot be raised
        resource.setrlimit(kind, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))


def _data_size() -> int | None:
    """Bytes of private writable memory, which `RLIMIT_DATA` limits on Linux; `None` elsewhere."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            return int(re.search(r"VmData:\s*(\d+) kB", file.read())[1]) * 1024
    except (OSError, TypeError):
        return None


def serve() -> None:
    """Answer requests until there are no more."""
    # output printed by libraries must not get between the messages
    source, sink = (os.fdopen(os.dup(number), mode, buffering=0) for number, mode in ((0, "rb"), (1, "wb")))
    for number in (0, 1):
        os.dup2(2, number)
    if os.name == "posix":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in ("encodings.utf_8_sig", "av.subtitles.stream", "av.subtitles.codeccontext", "av.subtitles.subtitle"):
        with suppress(ImportError):
            import_module(name)  # if loaded later, media files could make this process open files
    channel, data_at_start = Channel(source, sink), _data_size()
    channel.send("ready")
    while (request := channel.receive()) is not None:
        _restrict(request["limits"], request["memory"], data_at_start)
        _answer(request, channel)


__all__ = ["serve"]
