"""Frames and sounds of the miniature benchmark: that each attribute can be seen or heard in them."""

import numpy as np
import pytest

from eval.miniature import VOCABULARY, draw_frames, draw_waveform
from eval.miniature.rendering import NUM_SAMPLES, SAMPLE_RATE
from eval.miniature.vocabulary import PITCHES


@pytest.mark.parametrize("num_sampled", [3, 4, 6, 8, 12])
@pytest.mark.parametrize("motion", VOCABULARY["video"]["motion"])
def test_a_motion_shows_in_any_uniform_sample_of_frames(motion, num_sampled):
    attributes = {"shape": "circle", "colour": "red", "ground": "black", "pattern": "plain", "motion": motion}
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


@pytest.mark.parametrize("pitch", VOCABULARY["audio"]["pitch"])
def test_a_tone_sounds_at_its_pitch(pitch):
    attributes = {"pitch": pitch, "timbre": "flute", "rhythm": "steady", "backing": "alone"}
    wave = draw_waveform(attributes, np.random.default_rng(0))
    peak = np.abs(np.fft.rfft(wave)).argmax() / NUM_SAMPLES * SAMPLE_RATE
    assert peak == pytest.approx(PITCHES[pitch], rel=0.06)  # drawn within 5 %


def test_all_sounds_stay_within_full_scale():
    names = VOCABULARY["audio"]
    for index, timbre in enumerate(names["timbre"]):
        for rhythm in names["rhythm"]:
            for backing in names["backing"]:
                attributes = {"pitch": "low", "timbre": timbre, "rhythm": rhythm, "backing": backing}
                wave = draw_waveform(attributes, np.random.default_rng(index))
                assert wave.shape == (NUM_SAMPLES,) and wave.dtype == np.float32
                assert 0.2 < np.abs(wave).max() < 1
