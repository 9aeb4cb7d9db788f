"""Files to read, and a reader in other processes with the rule that chooses frames, as a function each."""

from functools import partial

import av
import numpy as np

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.modeling_scalar.image_processing_scalar import frame_indices
from tests.media_corpus import write_film


def write_media(path, num_frames=40, codec="libx264", seconds_of_audio=0.0, audio_codec="aac", size=64, **settings):
    """A clip of 10 frames a second, its sound 440 Hz with amplitude 0.5 left and 0.25 right."""
    stereo = {"seconds": seconds_of_audio, "sampling_rate": 44_100, "layout": "stereo", "loudness": (0.5, 0.25)}
    video = codec if num_frames else ""
    audio = audio_codec if seconds_of_audio else ""
    settings = {"pixels": "yuv420p", "frames": num_frames, "size": (size, size)} | stereo | settings
    write_film(path, None, video, audio, **settings)


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
