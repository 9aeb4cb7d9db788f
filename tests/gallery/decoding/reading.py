"""Files to read, and a reader in other processes with the rule that chooses frames, as a function each."""

from fractions import Fraction
from functools import partial

import av
import numpy as np

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.modeling_scalar.image_processing_scalar import frame_indices

CAPTIONS = "1\n00:00:01,000 --> 00:00:02,000\nHello there\n\n2\n00:00:02,000 --> 00:00:03,000\nAgain\n"


def picture(index, size=64):
    y, x = np.mgrid[:size, :size]
    base = np.stack([x * 3 + index * 5, y * 2 + index * 3, x + y + index * 7], axis=-1) % 256
    noise = np.random.default_rng(index).integers(0, 30, base.shape)
    return (base + noise).clip(0, 255).astype(np.uint8)


def write_media(
    path,
    num_frames=40,
    codec="libx264",
    options=None,
    milliseconds=None,
    seconds_of_audio=0.0,
    audio_codec="aac",
    rotation=None,
    pixels="yuv420p",
    container=None,
    pictures=picture,
    size=64,
    title="",
    chapters=(),
):
    """A clip of 10 frames a second, its sound 440 Hz with amplitude 0.5 left and 0.25 right."""
    with av.open(str(path), "w", options=container or {}) as output:
        output.metadata["title"] = title
        output.set_chapters(chapters)
        if num_frames:
            video = output.add_stream(codec, rate=10, options=options or {})
            video.width, video.height, video.pix_fmt = size, size, pixels
            if rotation is not None:
                video.set_display_rotation(rotation)
            if milliseconds is not None:
                video.codec_context.time_base = Fraction(1, 1000)
        if seconds_of_audio:
            audio = output.add_stream(audio_codec, rate=44100)
            audio.layout = "stereo"
        for index in range(num_frames):
            frame = av.VideoFrame.from_ndarray(pictures(index), format="rgb24")
            frame.time_base = Fraction(1, 10) if milliseconds is None else Fraction(1, 1000)
            frame.pts = index if milliseconds is None else milliseconds[index]
            output.mux(video.encode(frame))
        if num_frames:
            output.mux(video.encode(None))
        if seconds_of_audio:
            tone = np.sin(2 * np.pi * 440 * np.arange(int(44100 * seconds_of_audio)) / 44100)
            stereo = np.stack([0.5 * tone, 0.25 * tone]).astype(np.float32)
            frame = av.AudioFrame.from_ndarray(stereo, format="fltp", layout="stereo")
            frame.sample_rate = 44100
            target = audio.codec_context.format.name
            resampler = av.AudioResampler(format=target, layout="stereo", rate=44100)
            fifo = av.AudioFifo()
            for piece in resampler.resample(frame):
                fifo.write(piece)
            while piece := fifo.read(1024, partial=True):
                output.mux(audio.encode(piece))
            output.mux(audio.encode(None))


def decode_in_order(path):
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def read_frames(path, num_frames=None, *, limits=None, window=None, reader=None, **draws):
    choose = None if num_frames is None else partial(frame_indices, num_frames=num_frames, **draws)
    frames = (reader or SandboxedReader(limits)).read_frames(path, choose, window)
    return None if frames is None else np.stack(frames)


def read_audio(path, limits=None, window=None):
    return SandboxedReader(limits).read_audio(path, window)


def read_subtitle(path, limits=None, window=None):
    return SandboxedReader(limits).read_subtitle(path, window)
