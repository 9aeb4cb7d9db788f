"""Stretches of speech: found by the detector, joined over pauses, cut where they are too long."""

import numpy as np
import pytest

from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE, MediaReader
from scalar_retrieval.search.speech import CHUNK, speech_probabilities, speech_stretches
from tests.search.sounds import CHORD, HUM, RAIN, SPEECH

PER_SECOND = SAMPLING_RATE / CHUNK


def probabilities(*parts):
    """Of parts of so many seconds, each of one probability."""
    return np.concatenate([np.full(round(seconds * PER_SECOND), value) for seconds, value in parts])


def seconds_of(stretches):
    return [(start / SAMPLING_RATE, stop / SAMPLING_RATE) for start, stop in stretches]


@pytest.mark.parametrize("sound", [CHORD, HUM, RAIN, np.zeros(3 * SAMPLING_RATE, np.float32)])
def test_what_is_no_speech_has_no_stretch(sound):
    assert speech_stretches(speech_probabilities(sound), 30) == []


def test_a_sentence_between_noises_is_the_stretch():
    speech = MediaReader().read_audio(SPEECH)
    found = speech_stretches(speech_probabilities(np.concatenate([RAIN, speech, HUM])), 30)
    (only,) = seconds_of(found)
    begin, end = len(RAIN) / SAMPLING_RATE, (len(RAIN) + len(speech)) / SAMPLING_RATE
    assert begin - 0.5 <= only[0] <= begin + 0.5 and end - 1 <= only[1] <= end + 0.6


@pytest.mark.parametrize("num_samples", [1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_every_sample_is_judged(num_samples):
    found = speech_probabilities(np.zeros(num_samples, np.float32))
    assert found.shape == (-(-num_samples // CHUNK),) and ((found >= 0) & (found <= 1)).all()


def test_a_short_pause_lies_within_a_stretch_and_a_long_one_parts_two():
    voice = probabilities((2, 0.1), (1, 0.9), (0.8, 0.1), (1, 0.9), (1.5, 0.1), (1, 0.9), (2, 0.1))
    (first, second) = seconds_of(speech_stretches(voice, 30))
    assert first == pytest.approx((1.7, 5.1), abs=0.07) and second == pytest.approx((6.0, 7.6), abs=0.07)


def test_a_doubtful_chunk_ends_no_stretch_and_begins_none():
    assert speech_stretches(probabilities((5, 0.4)), 30) == []
    (only,) = seconds_of(speech_stretches(probabilities((1, 0.9), (2, 0.4), (1, 0.9)), 30))
    assert only == pytest.approx((0, 4), abs=0.05)


def test_a_word_that_is_too_short_is_no_stretch():
    assert speech_stretches(probabilities((1, 0.1), (0.2, 0.9), (1, 0.1)), 30) == []


def test_a_long_stretch_is_cut_where_speech_is_least_likely_and_nothing_is_left_out():
    voice = probabilities((25, 0.9), (0.1, 0.5), (20, 0.9), (0.1, 0.6), (28, 0.8))
    found = speech_stretches(voice, 30)
    assert len(found) == 3 and found[0][0] == 0 and found[-1][1] == len(voice) * CHUNK
    assert all(one[1] == other[0] for one, other in zip(found, found[1:], strict=False))
    assert all(stop - start <= 30 * SAMPLING_RATE for start, stop in found)
    cuts = [stop for _, stop in seconds_of(found)[:-1]]
    assert cuts == pytest.approx([25.0, 45.2], abs=0.1)


def test_margins_of_neighbours_do_not_overlap():
    voice = probabilities((1, 0.9), (1.05, 0.1), (1, 0.9))
    voice[round(1.5 * PER_SECOND)] = 0.0
    first, second = speech_stretches(voice, 30)
    assert first[1] <= second[0]
