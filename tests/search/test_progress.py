"""The progress bar of indexing."""

import pytest

from scalar_retrieval.search.progress import Progress


@pytest.fixture
def bar(capsys):
    made = Progress(2, 2, is_shown=True)
    yield made
    made.close()


def test_a_file_counts_for_its_seconds_and_one_of_unknown_length_like_the_mean(bar):
    bar.begin("long.mp4", 90.0)
    bar.add("long.mp4", 1 / 2)
    assert bar.share == pytest.approx(45 / 180) and "0.5/2 files" in str(bar)
    bar.begin("picture.png", None)  # counts for ten seconds
    assert bar.share == pytest.approx(45 / 100)
    bar.add("picture.png", 1.0)
    for _ in range(3):
        bar.add("long.mp4", 1 / 3)
    assert bar.share == pytest.approx(1) and "2.0/2 files" in str(bar)


def test_passes_through_a_file_count_like_embedding_it_and_those_that_were_not_needed_as_done(bar):
    for path in ("long.mp4", "other.mp4"):
        bar.begin(path, 100.0)
    bar.reach("transcribing", "long.mp4", 50.0)
    assert bar.share == pytest.approx(50 / 3 / 200)
    bar.reach("reading words of", "long.mp4", 110.0)  # codecs round
    assert bar.share == pytest.approx(50 / 200) and bar.postfix == "reading words of long.mp4 at 01:50 of 01:40"
    bar.add("long.mp4", 1.0)
    assert bar.share == pytest.approx(100 / 200) and "reading words" not in str(bar)


def test_the_estimate_is_by_the_mean_speed_since_the_beginning(bar, monkeypatch):
    for path in ("long.mp4", "other.mp4"):
        bar.begin(path, 100.0)
    now = bar.start_t
    monkeypatch.setattr(bar, "_time", lambda: now)
    for later, share, left in ((30.0, 0.1, "09:30"), (40.0, 0.3, "02:40")):
        now = bar.start_t + later
        bar.add("long.mp4", share)
        assert f"<{left}" in str(bar)
