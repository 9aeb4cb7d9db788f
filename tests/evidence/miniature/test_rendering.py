"""Frames and sounds of the miniature benchmark: that each attribute can be seen or heard in them."""

import numpy as np
import pytest

from evidence.miniature.rendering import NUM_SAMPLES, SAMPLE_RATE, draw_waveform
from evidence.miniature.vocabulary import ENTRIES, PITCHES, VOCABULARY


@pytest.mark.parametrize("timbre", VOCABULARY["audio"]["timbre"])
@pytest.mark.parametrize("rhythm", VOCABULARY["audio"]["rhythm"])
@pytest.mark.parametrize("entry", VOCABULARY["audio"]["entry"])
def test_a_sound_is_heard_from_its_entry_on(timbre, rhythm, entry):
    attributes = {"pitch": "low", "timbre": timbre, "rhythm": rhythm, "backing": "alone", "entry": entry}
    wave = np.abs(draw_waveform(attributes, np.random.default_rng(0)))
    start = int(ENTRIES[entry] * NUM_SAMPLES)
    assert not wave[:start].any()
    assert wave[start : start + SAMPLE_RATE // 20].max() > 0.3 * wave.max()  # within a twentieth of a second


@pytest.mark.parametrize("pitch", VOCABULARY["audio"]["pitch"])
def test_a_tone_sounds_at_its_pitch(pitch):
    attributes = {"pitch": pitch, "timbre": "flute", "rhythm": "steady", "backing": "alone", "entry": "prompt"}
    wave = draw_waveform(attributes, np.random.default_rng(0))
    peak = np.abs(np.fft.rfft(wave)).argmax() / NUM_SAMPLES * SAMPLE_RATE
    assert peak == pytest.approx(PITCHES[pitch], rel=0.06)  # drawn within 5 %
