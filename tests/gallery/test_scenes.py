"""Where scenes change, in films that are made here: at which second is known."""

from itertools import pairwise

import numpy as np
import pytest

from scalar_retrieval.gallery import scenes
from scalar_retrieval.gallery.decoding import SandboxedReader, Stop, Stopped
from scalar_retrieval.gallery.decoding.worker import colours_of
from scalar_retrieval.gallery.scenes import PACE, SIDE, scene_windows
from scalar_retrieval.gallery.store.windows import LEAST, SLIVER, clip_id_of, whole_files, windows_at
from tests.gallery.decoding.reading import write_media
from tests.media_corpus import tone, wav

DRAW = np.random.default_rng(0)
# Colours that people would tell apart, not those of one place seen from another side.
SCENES = [
    np.clip(DRAW.normal(mean, 25, (48, 96, 3)), 0, 255).astype(np.uint8)
    for mean in ((200, 60, 40), (40, 120, 60), (60, 60, 180), (220, 210, 190), (20, 20, 25), (150, 90, 160))
]


def seen(number, step, speed=1):
    """A scene over which the camera moves."""
    return np.roll(SCENES[number % len(SCENES)], speed * step, axis=1)[:48, :48]


def film(lengths, pace=0.2, **options):
    """Frames of scenes that last so many steps, with their seconds, and the seconds at which they begin."""
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    starts = np.cumsum([0, *lengths])[1:-1] * pace
    return [(step * pace, seen(number, step, **options)) for step, number in enumerate(numbers)], starts.tolist()


def cuts_of(frames, **options):
    return scenes.cuts_of([(second, colours_of(frame)) for second, frame in frames], **options)


def test_hard_cuts_are_found_at_the_frame_with_which_a_scene_begins():
    frames, starts = film([23, 11, 57, 30, 12, 40])
    assert cuts_of(frames) == pytest.approx(starts)


WITHOUT_CUTS = {  # pictures by their step
    "a camera that moves": lambda step: seen(0, step, speed=5),
    "light that flickers": lambda step: seen(0, step) * (1.0 if step % 2 else 0.6),
    "light that changes slowly": lambda step: seen(0, step) * (1.0 if step // 3 % 2 else 0.6),
    "a flash": lambda step: np.full((48, 48, 3), 255) if step == 50 else seen(2, step),
}


@pytest.mark.parametrize("name", WITHOUT_CUTS)
def test_what_moves_flickers_or_flashes_makes_no_cut(name):
    assert cuts_of([(0.2 * step, WITHOUT_CUTS[name](step).astype(np.uint8)) for step in range(100)]) == []


@pytest.mark.parametrize("length", [3, 5, 8, 15])
def test_a_fade_is_one_cut_in_its_middle(length):
    shares = np.concatenate([np.zeros(30), (np.arange(length) + 1) / (length + 1), np.ones(30)])
    frames = [
        (0.2 * step, ((1 - share) * seen(0, step) + share * seen(1, step)).astype(np.uint8))
        for step, share in enumerate(shares)
    ]
    (cut_at,) = cuts_of(frames)
    assert abs(cut_at - 0.2 * (30 + length / 2)) <= 0.2 * (1 + length / 4)


def test_frames_count_by_how_long_they_are_seen():
    """Slides come one by one, and a film may pause."""
    slides = [(seconds, seen(number, 0)) for number, seconds in enumerate((0.0, 10.0, 11.0, 60.0, 63.0))]
    assert cuts_of(slides, end=100.0) == [10.0, 11.0, 60.0, 63.0] and cuts_of(slides) == [10.0, 11.0, 60.0]
    frames, _ = film([20, 20])
    slow = [(second if second < 4 else second + 50, frame) for second, frame in frames]
    assert cuts_of(slow) == [54.0]


def test_windows_end_at_cuts_and_have_all_seconds_within_their_bounds():
    for _ in range(300):
        seconds, most = DRAW.uniform(0.1, 200), DRAW.choice([4.0, 10.0, 60.0])
        cuts = np.sort(DRAW.uniform(0, seconds, DRAW.integers(0, 30))).round(3).tolist()
        windows = windows_at(cuts, seconds, most)
        if windows == [None]:
            assert seconds <= most + SLIVER and not [cut for cut in cuts if LEAST <= cut <= seconds - LEAST]
            continue
        assert whole_files(clip_id_of("a", window) for window in windows) == {"a"}
        assert windows[0][0] == 0 and all(one[1] == other[0] for one, other in pairwise(windows))
        lengths = [(seconds if stop is None else stop) - start for start, stop in windows]
        assert min(lengths) >= LEAST - 2e-3 and max(lengths) <= most + SLIVER + 1e-3
        starts = {start for start, _ in windows}
        for place, cut_at in enumerate(cuts):  # every cut that is far from others begins a window
            before, after = [0.0, *cuts][place], [*cuts, seconds][place + 1]
            assert cut_at in starts or cut_at - before < LEAST or after - cut_at < LEAST


# Files ---------------------------------------------------------------------------------------------------------------


def write_film(path, lengths, **settings):
    """A film of 10 frames a second, of scenes that last so many seconds."""
    numbers = [number for number, length in enumerate(lengths) for _ in range(round(10 * length))]
    pictures = lambda index: np.ascontiguousarray(seen(numbers[index], index // 2))  # noqa: E731
    codec = {".webm": "libvpx", ".avi": "mpeg4"}.get(path.suffix, "libx264")
    write_media(path, num_frames=len(numbers), size=48, codec=codec, pictures=pictures, **settings)
    return str(path)


def starts_of(path, most=6.0):
    reader = SandboxedReader()
    windows = scene_windows(str(path), reader.read_duration(path), most, reader)
    return [0.0 if window is None else window[0] for window in windows]


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.webm", "film.avi"])
def test_a_film_is_cut_where_its_scenes_change(tmp_path, name):
    path = write_film(tmp_path / name, [5, 3.5, 1, 4])
    assert starts_of(path) == pytest.approx([0, 5, 8.5], abs=PACE + 0.11)  # the third scene is too short


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        ("film.mkv", "g=45 bf=3"),
        ("film.mkv", "g=1000 x264-params=scenecut=0"),
        ("film.webm", ""),  # whose frames are counted
    ],
)
def test_decoders_that_measure_pieces_at_once_find_what_one_finds(tmp_path, monkeypatch, name, encoder):
    monkeypatch.setattr("scalar_retrieval.gallery.decoding.pool._PIECE", 3.0)
    path = write_film(tmp_path / name, [5, 3.5, 9, 4, 2], encoder=encoder)
    reader = SandboxedReader()
    expected = [(second, colours_of(frame)) for second, frame in reader.sample_frames(path, PACE, SIDE)]
    found = reader.sample_colours(path, PACE, SIDE, lambda second: None)
    assert [second for second, _ in found] == [second for second, _ in expected] and len(found) > 110
    assert np.array_equal([colours for _, colours in found], [colours for _, colours in expected])


def test_measuring_scenes_ends_with_the_group_of_its_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.gallery.decoding.pool._PIECE", 1.0)
    path = write_film(tmp_path / "film.mp4", [5, 25])
    stop, reached = Stop(), []

    def reach(second):
        stop.set()
        reached.append(second)

    with stop.threads(1) as executor, pytest.raises(Stopped):
        executor.submit(SandboxedReader().sample_colours, path, PACE, SIDE, reach).result()
    assert len(reached) < 10


def test_what_has_no_pictures_is_shared_evenly(tmp_path):
    (tmp_path / "sound.wav").write_bytes(wav(tone(10 * 16_000)))
    assert starts_of(tmp_path / "sound.wav", most=4.0) == pytest.approx([0, 10 / 3, 20 / 3], abs=1e-3)


def test_a_static_film_and_a_short_one_are_not_cut(tmp_path):
    write_media(tmp_path / "still.mp4", num_frames=60, size=48, pictures=lambda index: seen(0, 0).copy())
    assert starts_of(tmp_path / "still.mp4") == [0.0]
    assert starts_of(write_film(tmp_path / "short.mp4", [3, 2.5])) == [0.0]
