"""Frames and sounds of the miniature benchmark: that each attribute can be seen or heard in them."""

import numpy as np
import pytest

from evidence.miniature.rendering import NUM_SAMPLES, SAMPLE_RATE, draw_frames, draw_waveform
from evidence.miniature.vocabulary import ENTRIES, PITCHES, VOCABULARY


@pytest.mark.parametrize("num_sampled", [3, 4, 6, 8, 12])
@pytest.mark.parametrize("motion", VOCABULARY["video"]["motion"])
@pytest.mark.parametrize("size", VOCABULARY["video"]["size"])
def test_a_motion_shows_in_any_uniform_sample_of_frames(motion, size, num_sampled):
    attributes = {"shape": "circle", "colour": "red", "ground": "black", "pattern": "plain", "motion": motion}
    attributes["size"] = size
    frames = draw_frames(attributes, np.random.default_rng(num_sampled)).astype(float)
    index = ((np.arange(num_sampled) + 0.5) * len(frames) / num_sampled).astype(int)
    red = frames[index][..., 0] > 120
    areas = red.sum((1, 2))
    visible = areas > 0
    places = [np.argwhere(frame).mean(0) for frame in red[visible]]
    rows, columns = np.ptp(places, axis=0)  # how far the centre wanders, in pixels
    trace = {
        "blink": not visible.all() and visible.any() and rows == columns == 0,
        "grow": visible.all() and areas.max() > 2 * areas.min(),
        "slide": visible.all() and columns > 10 and rows < 1,
        "bounce": visible.all() and rows > 10 and columns < 1,
        "still": (red == red[0]).all(),
    }
    assert [name for name, shown in trace.items() if shown] == [motion]


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
