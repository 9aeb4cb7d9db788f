"""Three seconds each of sounds without speech, and a sentence that espeak-ng says, with 16 kHz."""

from pathlib import Path

import numpy as np

from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE

SPEECH = str(Path(__file__).parent / "speech.ogg")
"""The tiger sleeps all day beneath the tree. In the evening it walks down to the river and drinks."""

_TIMES = np.arange(3 * SAMPLING_RATE) / SAMPLING_RATE
_NOISE = np.random.default_rng(0).standard_normal(len(_TIMES))


def _tone(frequency):
    return np.sin(2 * np.pi * frequency * _TIMES)


CHORD = sum(0.2 * _tone(frequency) for frequency in (261.6, 329.6, 392.0)).astype(np.float32)
HUM = (0.3 * _tone(50) + 0.1 * _tone(100) + 0.01 * _NOISE).astype(np.float32)
RAIN = (0.1 * _NOISE * (1 + 0.3 * _tone(3))).astype(np.float32)
