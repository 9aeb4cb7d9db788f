"""Time to read eight frames of a 30 s, 720p, 30 fps clip: our reader, transformers, torchcodec.

    python -m evidence speed decoding

One line reads in another process, which shows the overhead.

The clip is generated (h264, about 2.5 Mb/s, a keyframe every 250 frames). Times are the fastest of `--repeats` runs,
in which the readers take turns; ratios are to the first reader. All must return the same frames. Our reader and
torchcodec's decode with one thread.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy as np
from transformers.video_utils import load_video

from evidence.speed.settings import DecodingConfig
from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.modeling_scalar.image_processing_scalar import frame_indices
from scalar_retrieval.modeling_scalar.media_scalar import MediaReader

try:
    from torchcodec.decoders import VideoDecoder
except (ImportError, OSError, RuntimeError):  # not installed, or without its FFmpeg libraries
    VideoDecoder = None


def pan(width: int, height: int, count: int, rng: np.random.Generator) -> Iterator[av.VideoFrame]:
    """Yield frames of a pan over a blocky texture, with moving noise on a third of the picture, 30 a second."""
    # The texture holds the frame and the way of the pan: 500 lines down, 900 columns to the right.
    blocks = (height + 512) // 16, (width + 912) // 16, 3
    texture = rng.integers(0, 256, blocks, dtype=np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    noise = rng.integers(0, 24, (height, width // 3, 3), dtype=np.uint8)
    for index in range(count):
        top = index % 500
        left = (2 * index) % 900
        image = texture[top : top + height, left : left + width] // 2
        image[:, width // 3 : 2 * (width // 3)] += np.roll(noise, 7 * index, axis=0)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts = index
        frame.time_base = Fraction(1, 30)
        yield frame


def make_clip(path: Path, seconds: int) -> None:
    """Write the clip."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=30, options={"g": "250", "preset": "veryfast"})
        stream.width = 1280
        stream.height = 720
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_500_000
        for frame in pan(1280, 720, 30 * seconds, np.random.default_rng(0)):
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def make_readers(path: Path, num_frames: int) -> dict[str, Callable[[], np.ndarray]]:
    """The readers by name; torchcodec only if it can be imported."""
    choose = partial(frame_indices, num_frames=num_frames)

    def indices(metadata, **_):
        return np.array(choose(metadata.total_num_frames))

    def with_torchcodec():
        decoder = VideoDecoder(str(path), dimension_order="NHWC", num_ffmpeg_threads=1)
        return decoder.get_frames_at(indices=choose(len(decoder))).data.numpy()

    def with_transformers():
        return load_video(str(path), backend="pyav", sample_indices_fn=indices)[0]

    readers = {
        "MediaReader": lambda: np.stack(MediaReader().read_frames(path, choose)),
        "SandboxedReader": lambda: np.stack(SandboxedReader().read_frames(path, choose)),
        'transformers load_video(backend="pyav")': with_transformers,
    }
    if VideoDecoder is not None:
        readers["torchcodec VideoDecoder (exact)"] = with_torchcodec
    return readers


def main(config: DecodingConfig) -> None:
    """Measure and print one line per reader."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        make_clip(path, config.seconds)
        megabits = path.stat().st_size * 8 / 1e6 / config.seconds
        print(f"{config.frames} of {30 * config.seconds} frames, 1280x720, {megabits:.1f} Mb/s, ", end="")
        print(f"fastest of {config.repeats}")
        readers = make_readers(path, config.frames)

        # The readers take turns, so that a slow moment of the machine meets all of them.
        times: dict[str, list[float]] = {}
        frames = {}
        for _ in range(config.repeats):
            for name, read in readers.items():
                start = time.perf_counter()
                frames[name] = read()
                times.setdefault(name, []).append(time.perf_counter() - start)
    # Ratios are to the first reader.
    first = next(iter(readers))
    print(f"{'reader':<44}{'ms':>8}{'ratio':>8}  same frames")
    for name in readers:
        same = np.array_equal(frames[name], frames[first])
        fastest = min(times[name])
        print(f"{name:<44}{fastest * 1000:>8.0f}{fastest / min(times[first]):>8.2f}  {same}")
