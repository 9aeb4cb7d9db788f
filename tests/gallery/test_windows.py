import random

import pytest

from gallery.windows import Place, clip_id_of, place_of_clip, whole_files, windows_of


@pytest.mark.parametrize("segment", [1.0, 2.5, 30.0])
def test_windows_follow_each_other_without_gaps_to_the_end(segment):
    for seconds in [random.Random(0).uniform(0, 200) for _ in range(200)]:
        windows = windows_of(seconds, segment)
        if windows == [None]:
            assert seconds <= segment + 1
            continue
        position = 0.0
        for start, stop in windows[:-1]:
            assert start == position and stop - start == pytest.approx(segment)
            position = stop
        assert windows[-1] == (position, None) and 1 - 1e-9 <= seconds - position <= segment + 1


def test_a_file_of_unknown_length_or_without_windows_is_one_clip():
    assert windows_of(None, 30) == windows_of(1e6, None) == windows_of(30.9, 30) == [None]


def test_the_name_of_a_clip_tells_its_file_and_its_seconds():
    for path in ("/a/b.mp4", "/a/#t=1,2/c d.mp4", "/a\nb.mkv"):
        for window in (None, (0.0, 30.0), (30.0, 60.5), (123456.5, None)):
            place = place_of_clip(clip_id_of(path, window))
            assert place == (Place(path) if window is None else Place(path, *window))
    assert place_of_clip("a#t=30,60").span == "30-60 s" and place_of_clip("a#t=90").span == "90 s to the end"
    assert Place("a").span is None


def test_a_file_is_whole_where_no_window_is_missing():
    names = [clip_id_of("a", window) for window in windows_of(100, 30)]
    assert whole_files([*names, "b"]) == {"a", "b"}
    for missing in range(len(names)):
        assert whole_files(names[:missing] + names[missing + 1 :]) == set()
