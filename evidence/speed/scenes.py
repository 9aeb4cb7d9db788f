"""Time and memory to find where the scenes of a long 720p film change.

    python -m evidence speed scenes [--minutes 60] [--keyframes 250] [--repeats 3]

The film is generated: one minute of scenes of 3 to 13 seconds (h264, 30 fps, about 2.5 Mb/s), repeated as it is.
Processor seconds are those of the decoders and of this process; memory is the most that a decoder held.
"""

import re
import resource
import tempfile
import time
from pathlib import Path

import av
import numpy as np

from evidence.speed.decoding import pan
from evidence.speed.settings import ScenesConfig
from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.decoding.pool import _pool
from scalar_retrieval.gallery.scenes import scene_windows
from scalar_retrieval.gallery.store.windows import LONGEST_SCENE

_RATE = 30  # frames a second
_SCENES = (3, 9, 13, 5, 11, 7, 8, 4)  # seconds: a minute
_COLOURS = np.random.default_rng(1).integers(20, 100, (len(_SCENES), 3), np.uint8)


def _write_minute(path: Path, keyframes: int) -> None:
    """Write scenes that move and have colours of their own."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=_RATE, options={"g": str(keyframes), "preset": "veryfast"})
        stream.width = 1280
        stream.height = 720
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_500_000
        for number, (seconds, colour) in enumerate(zip(_SCENES, _COLOURS, strict=True)):
            for frame in pan(1280, 720, _RATE * seconds, np.random.default_rng(number)):
                picture = frame.to_ndarray() // 2 + colour
                output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))


def make_film(path: Path, minutes: int, keyframes: int) -> None:
    """Write a film; `keyframes` is the most frames from one keyframe to the next."""
    minute = path.with_stem("minute")
    _write_minute(minute, keyframes)
    with av.open(str(path), "w") as output:
        stream = None
        for number in range(minutes):
            with av.open(str(minute)) as source:
                stream = stream or output.add_stream_from_template(source.streams.video[0])
                for packet in source.demux():
                    if packet.dts is None:  # the last one is empty
                        continue
                    later = int(60 * number / packet.time_base)
                    packet.pts += later
                    packet.dts += later
                    packet.stream = stream
                    output.mux(packet)


def _spent() -> float:
    """Processor seconds of this process, and of the decoders that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _peak(process: int) -> float:
    """The most memory that a process held, in MiB, as Linux counts it."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024


def main(config: ScenesConfig) -> None:
    """Measure and print one line per run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        make_film(path, config.minutes, config.keyframes)
        print(f"{config.minutes} minutes, 1280x720, a keyframe every {config.keyframes} frames or less")
        for _ in range(config.repeats):
            before = _spent()
            begun = time.perf_counter()
            reader = SandboxedReader()
            windows = scene_windows(str(path), reader.read_duration(path), LONGEST_SCENE, reader)
            seconds = time.perf_counter() - begun
            most = max(_peak(worker.process.pid) for worker in _pool.all)
            _pool.close()  # the time of processes is known once they have ended
            print(f"{len(windows)} windows: {seconds:.1f} s, {_spent() - before:.1f} s of processor, {most:.0f} MiB")
