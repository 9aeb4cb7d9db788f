"""Files are indexed as windows that end where scenes change."""

from fractions import Fraction
from threading import Barrier

import numpy as np
import pytest

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.scenes import scene_windows
from scalar_retrieval.gallery.store.windows import place_of_clip
from tests.gallery.decoding.reading import write_media
from tests.gallery.test_scenes import write_film
from tests.search.test_windows import encoder, index, loaded, names, place, run  # noqa: F401

LENGTHS = [3, 2.5, 1, 2.5, 9]


@pytest.fixture
def films(place, monkeypatch):  # noqa: F811
    """A film of scenes; other clips are too short, or nothing changes in them."""
    monkeypatch.setattr("scalar_retrieval.search.index_folder.LONGEST_SCENE", 6.0)
    write_film(place / "clips" / "film.mp4", LENGTHS)
    return place


def test_a_gallery_keeps_that_it_is_cut_where_scenes_change(films):
    index("--segment", "scenes")
    of_film = [name for name in names() if name.startswith("film")]
    starts = [float(name.partition("#t=")[2].partition(",")[0]) for name in of_film]
    assert sorted(starts) == pytest.approx([0, 3, 5.5, 9, 13.5], abs=0.21)
    assert {*names()} == {*of_film, "short.wav", "talk.mkv"}
    metadata = Gallery.open("gallery").metadata
    assert (metadata["segment"], metadata["scenes"]) == (6.0, True)
    assert "windows: scenes of at most 6 s" in run("info", "gallery").stdout

    write_film(films / "clips" / "more.mp4", [4, 4])
    for options in ((), ("--segment", "scenes")):
        assert "0 changed" in index(*options).stdout
        assert [name.startswith("more") for name in names()].count(True) == 2 and {*of_film} < {*names()}
    assert "holds scenes of at most 6 seconds. Omit `segment`" in index("--segment", "6", code=1).stderr
    index("--output", "other", "--segment", "6")
    reported = index("--output", "other", "--segment", "scenes", code=1).stderr
    assert "holds windows of 6 seconds. Omit `segment`" in reported


def chapters_of(titles):
    """Chapters of the same length, of ten seconds in all."""
    chapters = []
    for number, title in enumerate(titles):
        start, stop = 10 * number // len(titles), 10 * (number + 1) // len(titles)
        tags = {"title": title}
        chapters.append({"id": number, "start": start, "end": stop, "time_base": Fraction(1), "metadata": tags})
    return chapters


def test_how_files_are_cut_by_default(films):
    black = np.zeros((32, 32, 3), np.uint8)
    for name, titles in (("year.mkv", ["Arrival of the ferry", "The storm"]), ("one.mkv", ["All of it"])):
        chapters = chapters_of(titles)
        write_media(films / "clips" / name, 100, pictures=lambda _: black, size=32, chapters=chapters)
    write_film(films / "clips" / "scenes.mp4", [3, 2.5])
    index()
    of = {name for name in names() if name.startswith(("year", "one", "scenes"))}
    assert of == {"year.mkv#t=0,5", "year.mkv#t=5", "one.mkv#t=0,5", "one.mkv#t=5", "scenes.mp4"}
    index("--output", "whole", "--segment", "none")
    assert not any("#t=" in name for name in names("whole"))


def test_scenes_of_several_files_are_measured_at_once_and_clips_keep_their_order(films, monkeypatch):
    write_film(films / "clips" / "again.mp4", LENGTHS)
    meeting = Barrier(2)  # who comes alone waits for the other one, and fails

    def measure(path, *options):
        if path.endswith(("again.mp4", "film.mp4")):
            meeting.wait(60)
        return scene_windows(path, *options)

    monkeypatch.setattr("scalar_retrieval.search.indexing.scene_windows", measure)
    index("--segment", "scenes")
    clips = [place_of_clip(name) for name in Gallery.open("gallery").clip_ids]
    assert clips == sorted(clips, key=lambda clip: (clip.path, clip.start or 0)) and len(clips) == 12
