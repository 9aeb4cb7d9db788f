"""The sandboxed reader with the rule that chooses frames, as a function each."""

from functools import partial

import numpy as np

from gallery.decoding import SandboxedReader
from modeling_scalar.image_processing_scalar import frame_indices


def read_frames(path, num_frames=None, *, training=False, generator=None, limits=None, window=None, **options):
    choose = None
    if num_frames is not None:
        choose = partial(frame_indices, num_frames=num_frames, training=training, generator=generator)
    frames = SandboxedReader(limits).read_frames(path, choose, window, **options)
    return None if frames is None else np.stack(frames)


def read_audio(path, limits=None, window=None):
    return SandboxedReader(limits).read_audio(path, window)


def read_audio_parts(path, choose, window=None):
    return SandboxedReader().read_audio_parts(path, choose, window)


def read_subtitle(path, limits=None, window=None):
    return SandboxedReader(limits).read_subtitle(path, window)


def read_subtitle_track(path, limits=None, window=None):
    return SandboxedReader(limits).read_subtitle_track(path, window)


def read_duration(path, limits=None):
    return SandboxedReader(limits).read_duration(path)
