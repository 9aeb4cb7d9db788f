"""Stretches of speech: found by the detector, joined over pauses, cut where they are too long."""

from itertools import pairwise

import numpy as np
import pytest

from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader
from scalar_retrieval.search.speech import CHUNK, speech_probabilities, speech_stretches
from tests.search.sounds import CHORD, HUM, RAIN, SPEECH


@pytest.mark.parametrize("sound", [CHORD, HUM, RAIN, np.zeros(3 * SAMPLING_RATE, np.float32)])
def test_what_is_no_speech_has_no_stretch(sound):
    assert speech_stretches(speech_probabilities(sound), 30) == []


def test_a_sentence_between_noises_is_the_stretch():
    speech = MediaReader().read_audio(SPEECH)
    ((start, stop),) = speech_stretches(speech_probabilities(np.concatenate([RAIN, speech, HUM])), 30)
    assert start == pytest.approx(len(RAIN), abs=0.5 * SAMPLING_RATE)
    assert stop == pytest.approx(len(RAIN) + len(speech), abs=SAMPLING_RATE)


@pytest.mark.parametrize(
    ("parts", "stretches"),
    [
        # a short pause lies within a stretch, and a long one parts two
        (((2, 0.1), (1, 0.9), (0.8, 0.1), (1, 0.9), (1.5, 0.1), (1, 0.9), (2, 0.1)), [1.7, 5.1, 6.0, 7.6]),
        # a doubtful chunk ends no stretch, and begins none
        (((5, 0.4),), []),
        (((1, 0.9), (2, 0.4), (1, 0.9)), [0, 4]),
        # a word that is too short is none
        (((1, 0.1), (0.2, 0.9), (1, 0.1)), []),
        # a long one is cut where speech is least likely, and nothing is left out
        (((25, 0.9), (0.1, 0.5), (20, 0.9), (0.1, 0.6), (28, 0.8)), [0, 25, 25, 45.2, 45.2, 73.2]),
        # margins of neighbours do not overlap
        (((1, 0.9), (1.05, 0.1), (1, 0.9)), [0, 1.3, 1.75, 3.05]),
    ],
)
def test_stretches_have_margins_and_no_long_pauses(parts, stretches):
    """Of parts of so many seconds, each of one probability."""
    voice = np.concatenate([np.full(round(seconds * SAMPLING_RATE / CHUNK), value) for seconds, value in parts])
    found = speech_stretches(voice, 30)
    assert np.divide(found, SAMPLING_RATE).ravel() == pytest.approx(stretches, abs=0.1)
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    assert all(stop - start <= 30 * SAMPLING_RATE for start, stop in found)
