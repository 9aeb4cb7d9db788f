"""The progress bar of indexing."""

import pytest

from scalar_retrieval.search.progress import Progress


@pytest.fixture
def bar(capsys):
    made = Progress(2, 2, is_shown=True)
    yield made
    made.close()


def test_a_file_counts_as_far_as_its_words_are_recognised_and_once_at_most(bar):
    bar.lengths["long.mp4"] = 100.0
    bar.recognise("transcribing", "long.mp4", 50.0)  # by one of two recognisers
    assert bar.n == pytest.approx(0.25)
    bar.recognise("reading words of", "long.mp4", 100.0)
    assert bar.n == pytest.approx(0.75) and bar.postfix == "reading words of long.mp4 at 01:40 of 01:40"
    for _ in range(3):
        bar.add("long.mp4", 1 / 3)
    assert bar.n == pytest.approx(1.0)


def test_words_of_a_file_of_unknown_length_only_say_where_they_are(bar):
    bar.lengths["stream.ts"] = None
    bar.recognise("transcribing", "stream.ts", 50.0)
    assert bar.n == 0 and bar.postfix == "transcribing stream.ts at 00:50"


def test_a_bar_that_is_not_shown_prints_nothing(capsys):
    bar = Progress(1, 0, is_shown=False)
    bar.recognise("transcribing", "a.mp4", 1.0)
    bar.add("a.mp4", 1.0)
    bar.close()
    assert capsys.readouterr() == ("", "")


def test_what_a_recogniser_does_is_said_no_longer_once_files_are_embedded():
    with Progress(2, 1, True) as bar:
        bar.lengths["a.mp4"] = 10.0
        bar.recognise("reading words of", "a.mp4", 5.0)
        assert "reading words of a.mp4 at 00:05 of 00:10" in str(bar)
        bar.add("b.mp4", 1.0)
        assert "reading words" not in str(bar) and "1.5/2" in str(bar)
