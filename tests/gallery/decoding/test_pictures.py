"""Reading few, small frames with their seconds: for words on the screen, and for where scenes change."""

import numpy as np
import pytest
from PIL import Image

from gallery.decoding import SandboxedReader
from modeling_scalar.media_scalar import MediaError
from tests.gallery.decoding.reading import read_frames
from tests.gallery.decoding.test_program import decode_in_order, picture, write_media
from tests.media_corpus import media, noisy, tone, wav

TIMES = (0, 300, 1000, 1100, 1900, 2050, 2400, 7000, 7200)


def expected_places(seconds, pace):
    """The first frame of each step, found one by one."""
    places, seen = [], set()
    for place, second in enumerate(seconds):
        if (step := int(second / pace + 1e-6)) not in seen:
            seen.add(step)
            places.append(place)
    return places


@pytest.mark.parametrize("pace", [0.25, 1.0, 2.0, 60.0])
@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "matroska", "video": "mjpeg", "times": TIMES, "frames": len(TIMES)},
        {"kind": "mp4", "video": "libx264", "frames": 40},
        {"kind": "webm", "video": "libvpx", "frames": 40},  # its frames are counted
    ],
    ids=lambda arguments: arguments["kind"],
)
def test_the_first_frame_of_each_step_is_read_with_its_second(tmp_path, arguments, pace):
    path = tmp_path / "clip"
    path.write_bytes(media(**arguments))
    whole = read_frames(path)
    seconds = [milliseconds / 1000 for milliseconds in arguments.get("times", range(0, 100 * len(whole), 100))]
    places = expected_places(seconds, pace)
    found = SandboxedReader().read_pictures(path, pace, 10_000)
    assert [second for second, _ in found] == pytest.approx([seconds[place] for place in places], abs=2e-3)
    assert np.array_equal(np.stack([frame for _, frame in found]), whole[places])


@pytest.mark.parametrize("piece", [0.5, 1.0, 3.0])
def test_looking_through_a_file_in_pieces_sees_what_one_look_sees(tmp_path, monkeypatch, piece):
    path = tmp_path / "clip.mkv"
    path.write_bytes(media("matroska", "mjpeg", frames=len(TIMES), times=TIMES))
    reader = SandboxedReader()
    whole = reader.read_pictures(path, 0.25, 10_000)
    monkeypatch.setattr("gallery.decoding.reader._PIECE", piece)
    found = list(reader.look_through(path, 0.25, 10_000))
    assert [second for second, _ in found] == [second for second, _ in whole]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(found, whole, strict=True))


def test_large_frames_are_shrunk_and_small_ones_stay(tmp_path):
    write_media(tmp_path / "clip.mp4", num_frames=3, size=256, pictures=lambda index: picture(index, 256) // 4 + 90)
    whole = decode_in_order(tmp_path / "clip.mp4")
    ((_, small),) = SandboxedReader().read_pictures(tmp_path / "clip.mp4", 60, 64)
    assert small.shape == (64, 64, 3)
    shrunk = np.asarray(Image.fromarray(whole[0]).resize((64, 64), Image.Resampling.BOX), np.float64)
    assert np.abs(small - shrunk).mean() < 3  # chroma is shrunk before it is turned to colours
    ((_, same),) = SandboxedReader().read_pictures(tmp_path / "clip.mp4", 60, 256)
    assert np.array_equal(same, whole[0])


def test_frames_that_are_turned_are_shrunk_upright(tmp_path):
    write_media(tmp_path / "clip.mp4", num_frames=1, rotation=90, size=128, pictures=lambda index: picture(index, 128))
    ((_, small),) = SandboxedReader().read_pictures(tmp_path / "clip.mp4", 1, 32)
    upright = read_frames(tmp_path / "clip.mp4")[0]
    expected = np.asarray(Image.fromarray(upright).resize((32, 32), Image.Resampling.BOX), np.float64)
    assert np.abs(small - expected).mean() < 0.6 * np.abs(np.rot90(small) - expected).mean()


def test_what_has_no_pictures_has_none_here_either(tmp_path):
    (tmp_path / "sound.wav").write_bytes(wav(tone(16_000)))
    reader = SandboxedReader()
    assert (
        reader.read_pictures(tmp_path / "sound.wav", 1, 64)
        == list(reader.look_through(tmp_path / "sound.wav", 1, 64))
        == []
    )
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(MediaError, match="text.mp4"):
        list(reader.look_through(tmp_path / "text.mp4", 1, 64))


def test_of_a_damaged_file_the_frames_between_the_damage_are_read(tmp_path):
    path, reported = tmp_path / "clip.mp4", []
    data = media("mp4", "libx264", muxer="movflags=faststart", encoder="g=10 bf=2", frames=60)
    path.write_bytes(data)
    whole = dict(SandboxedReader().read_pictures(path, 0.1, 64))
    path.write_bytes(noisy(data, 0.4, 5000))
    found = list(SandboxedReader().noting(reported.append).look_through(path, 0.2, 64))
    assert reported and 10 < len(found) < 30
    assert all(np.array_equal(frame, whole[second]) for second, frame in found)
