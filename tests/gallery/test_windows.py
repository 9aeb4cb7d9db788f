import math
import random

import pytest

from scalar_retrieval.gallery.store.windows import SLIVER, Place, clip_id_of, place_of_clip, whole_files, windows_of


@pytest.mark.parametrize("segment", [1.0, 2.5, 30.0])
def test_windows_follow_each_other_without_gaps_and_none_is_longer_than_was_asked_for(segment):
    draw = random.Random(0)
    near = [number * segment + draw.uniform(-0.1, 1.1) for number in range(1, 6) for _ in range(20)]
    for seconds in [draw.uniform(0.1, 200) for _ in range(200)] + near:
        windows = windows_of(seconds, segment)
        if windows == [None]:
            assert seconds < segment + SLIVER + 1e-9
            continue
        starts, stops = zip(*windows, strict=True)
        assert starts[0] == 0 and stops == (*starts[1:], None)
        lengths = [stop - start for start, stop in zip(starts, (*stops[:-1], seconds), strict=True)]
        assert lengths[:-2] == pytest.approx([segment] * len(lengths[:-2]))
        assert max(lengths) < segment + SLIVER + 1e-3 and min(lengths) > min(1, segment / 2) - 1e-3
        assert len(windows) == math.ceil((seconds - SLIVER) / segment)  # no more than are needed


def test_a_file_of_unknown_length_or_without_windows_is_one_clip():
    assert windows_of(None, 30) == windows_of(1e6, None) == windows_of(30.02, 30) == windows_of(0, 30) == [None]


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
