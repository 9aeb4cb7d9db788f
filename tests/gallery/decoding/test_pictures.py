"""How frames become pictures: their size, their orientation and their brightness."""

import struct

import av
import numpy as np
import pytest

from scalar_retrieval.modeling_scalar.media_scalar import MediaReader, Upright
from tests.media_corpus import media, set_box

READER = MediaReader()
# What a display matrix (a, b, c, d) makes of a picture: whether it is mirrored, left to right, and by how many
# quarters it is turned then, anticlockwise.
TURNS = {
    (1, 0, 0, 1): (False, 0),
    (-1, 0, 0, 1): (True, 0),
    (1, 0, 0, -1): (True, 2),
    (-1, 0, 0, -1): (False, 2),
    (0, 1, 1, 0): (True, 1),
    (0, 1, -1, 0): (False, 3),
    (0, -1, 1, 0): (False, 1),
    (0, -1, -1, 0): (True, 3),
    # Neither of the eight: the nearest, or none.
    (-0.1, -2, 3, 0.2): (False, 1),
    (0, 0, 0, 0): (False, 0),
}


@pytest.mark.parametrize("matrix", TURNS)
def test_a_picture_is_turned_and_mirrored_as_its_matrix_says(tmp_path, matrix):
    film = media("mp4", "libx264", frames=2, size=(64, 32))
    (tmp_path / "film.mp4").write_bytes(film)
    a, b, c, d = (round(number * 2**16) for number in matrix)
    turned = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30)
    (tmp_path / "turned.mp4").write_bytes(set_box(film, "moov/trak/tkhd", 48, turned))
    expected, (is_mirrored, quarters) = np.stack(READER.read_frames(tmp_path / "film.mp4")), TURNS[matrix]
    if is_mirrored:
        expected = expected[:, :, ::-1]
    assert np.array_equal(READER.read_frames(tmp_path / "turned.mp4"), np.rot90(expected, quarters, axes=(1, 2)))


def test_pictures_that_change_their_size_and_format_have_those_of_the_first(tmp_path):
    settings = {"rate": 25, "frames": 10, "encoder": "qmin=1 qmax=2"}
    large = media("mpegts", "mpeg2video", size=(128, 96), pixels="yuv422p", **settings)
    (tmp_path / "film.ts").write_bytes(media("mpegts", "mpeg2video", size=(64, 32), **settings) + large)
    frames = READER.read_frames(tmp_path / "film.ts")
    assert len(frames) >= 19 and {frame.shape for frame in frames} == {(32, 64, 3)}


def test_a_change_of_size_that_ffmpeg_does_not_scale_is_an_error_of_the_file():
    upright = Upright("film.ts: video stream 0")
    upright(av.VideoFrame(16384, 2, "yuv420p"))
    with pytest.raises(ValueError, match="film.ts: video stream 0: a picture of 2x16384"):
        upright(av.VideoFrame(2, 16384, "yuv420p"))


# ---------------------------------------------------------------- HDR

PQ, HLG, BT709, BT2020 = 16, 18, 1, 9
# Levels of ITU-R BT.2408, in cd/m2, and what FFmpeg 5.1 makes of them by `zscale` with `npl=203` and
# `tonemap=mobius:desat=0:peak=4.926` (1,000 cd/m2).
GREYS = {0: 0, 1: 28, 10: 73, 26: 108, 50: 142, 100: 184, 203: 217, 400: 239, 1000: 255, 4000: 255}
SCENES = {0: 0, 0.1: 29, 0.2: 57, 0.38: 109, 0.6: 175, 0.75: 217, 0.85: 237, 1: 255}  # signals of HLG
# Of 203 cd/m2, in the primaries of BT.709.
COLOURS = {(1, 0.5, 0.1): (217, 163, 83), (0.8, 0.5, 0.4): (207, 171, 155), (0.2, 0.6, 0.9): (115, 180, 212)}
TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])  # ITU-R BT.2087


def pq(light):
    """The signal of light in cd/m2, by SMPTE ST 2084."""
    power = (np.asarray(light) / 10_000) ** (2610 / 16384)
    return ((3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)) ** (2523 / 32)


def shown(signal, transfer, is_full=False):
    """What a picture of one colour in 10 bits becomes; its signal is RGB, from 0 to 1."""
    red, green, blue = np.broadcast_to(signal, 3)
    luma = 0.2627 * red + 0.678 * green + 0.0593 * blue
    signals = luma, (blue - luma) / 1.8814, (red - luma) / 1.4746
    if is_full:
        codes = [1023 * signals[0], 512 + 1023 * signals[1], 512 + 1023 * signals[2]]
    else:
        codes = [64 + 876 * signals[0], 512 + 896 * signals[1], 512 + 896 * signals[2]]
    frame = av.VideoFrame(64, 32, "yuv444p10le")
    for plane, code in zip(frame.planes, codes, strict=True):
        plane.update(np.full(plane.buffer_size // 2, round(code), np.uint16).tobytes())
    frame.color_trc, frame.color_primaries, frame.colorspace = transfer, BT2020, BT2020
    frame.color_range = 2 if is_full else 1
    (colour,) = np.unique(Upright("film.mp4")(frame).reshape(-1, 3), axis=0)
    return colour.astype(int)


@pytest.mark.parametrize("is_full", [False, True])
def test_greys_of_hdr_are_as_bright_as_those_of_ffmpeg(is_full):
    for light, expected in GREYS.items():
        assert shown(pq(light), PQ, is_full) == pytest.approx([expected] * 3, abs=1)
    for signal, expected in SCENES.items():
        assert shown(signal, HLG, is_full) == pytest.approx([expected] * 3, abs=1)


def test_colours_of_hdr_keep_their_hue():
    for colour, expected in COLOURS.items():
        assert shown(pq(203 * (TO_BT2020 @ colour)), PQ) == pytest.approx(expected, abs=2)


def test_pictures_that_are_not_hdr_stay_as_they_are():
    assert shown(0.5, BT709) == pytest.approx([127] * 3, abs=1)
