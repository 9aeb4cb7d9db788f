"""What a gallery notes of files that are cut into windows: changes, losses, and what could not be read."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from scalar_retrieval.gallery.decoding import Limits, SandboxedReader
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store.windows import PARTLY
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.sources import find_files
from tests.indexers import make_indexer
from tests.search.test_indexing import FakeModel, FakeProcessor, names, of, old, problems_of

SECONDS = 2


class Lines(FakeProcessor):
    """Each line of a file is a window, see [`FakeProcessor`]; "slow" takes more time than the default limit allows."""

    def __init__(self, limits=None):
        self.reader = SandboxedReader(limits)

    def read_clip(self, path, *, processed, window=(0, None)):
        line = Path(path).read_text().splitlines()[int(window[0] // SECONDS)]
        limits = self.reader.limits
        if "slow" in line and limits.time < 120:
            raise ValueError(str(limits.exceeded(f"{path}: sound", "time", "it takes 120 s", 120)))
        return self.read_line(path, line.split())


@pytest.fixture
def place(tmp_path, monkeypatch):
    def duration(reader, path):
        return SECONDS * len(Path(path).read_text().splitlines())

    monkeypatch.setattr(SandboxedReader, "read_duration", duration)
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "short.mp4").write_text("9 video")
    (tmp_path / "clips" / "talk.mp4").write_text("1 video\n2 slow\n3 video\n4 nothing\n5 slow audio\n6 video")
    return tmp_path


def run(place, limits=None, **options):
    model = FakeModel()
    with GalleryWriter(place / "gallery", "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint", "segment": SECONDS}
        report = make_indexer(writer, model, Lines(limits), **options).update(find_files([place / "clips"]))
    return report, Gallery.open(place / "gallery"), [seed for batch in model.batches for seed in batch]


def write_talk(place, num_windows):
    (place / "clips" / "talk.mp4").write_text("\n".join(f"{number} video" for number in range(num_windows)))


def test_a_file_that_changed_loses_its_old_windows(place):
    write_talk(place, 3)
    run(place)
    write_talk(place, 2)
    report, gallery, _ = run(place)
    assert names(of(report, "changed")) == ["talk.mp4"] and names(of(report, "unchanged")) == ["short.mp4"]
    assert sorted(names(gallery.clip_ids)) == ["short.mp4", "talk.mp4#t=0,2", "talk.mp4#t=2"]
    (place / "clips" / "talk.srt").write_text("words")  # the subtitles alone
    _, gallery, embedded = run(place)
    assert embedded == [0, 1] and len(gallery) == 3
    (place / "clips" / "talk.mp4").write_text("nothing\nnothing")
    assert names(run(place)[1].clip_ids) == ["short.mp4"] and names(old(run(place)[0])) == ["talk.mp4"]


def test_windows_that_failed_are_noted_of_their_file_and_reported_in_later_runs(place, monkeypatch):
    talk = str(place / "clips" / "talk.mp4")
    report, gallery, embedded = run(place)
    assert embedded == [9, 1, 3, 6] and names(of(report, "new")) == ["short.mp4", "talk.mp4"]
    failed = "2-4 s, 8-10 s: sound: it takes 120 s; the limit is time=60"
    first, second = problems_of(report)[talk]
    assert first.startswith(failed) and "6-8 s: found none" in second
    reason = gallery.files[talk].reason
    assert reason.startswith(PARTLY + failed) and "found none" not in reason  # nothing to read is no failure
    report, _, embedded = run(place)
    assert not embedded and problems_of(report) == {talk: [reason]} and old(report) == [talk]
    shown = CliRunner().invoke(app, ["info", str(place / "gallery")]).stdout
    assert "files with missing windows: 1\n" in shown and f"  {talk}: {reason}" in shown
    # A file that cannot be measured again keeps its windows and the reason.
    monkeypatch.setattr(SandboxedReader, "read_duration", Mock(side_effect=OSError(f"{talk}: the drive is busy.")))
    report, after, _ = run(place, Limits(time=200))  # which makes it worth a try
    assert problems_of(report)[talk][0] == "its length could not be read now: the drive is busy"
    assert after.clip_ids == gallery.clip_ids and after.files[talk].reason == reason


@pytest.mark.parametrize("batch_size", [1, 8])
def test_windows_that_failed_are_read_once_their_limit_is_raised_and_no_others(place, batch_size):
    talk = str(place / "clips" / "talk.mp4")
    run(place, batch_size=batch_size)
    report, gallery, _ = run(place, Limits(time=61), batch_size=batch_size)  # not enough: they fail again
    assert of(report, "unchanged")[-1] == talk and "time=61" in gallery.files[talk].reason
    report, gallery, embedded = run(place, Limits(time=120), batch_size=batch_size)
    assert embedded == [5] and names(of(report, "changed")) == ["talk.mp4"]
    assert gallery.files[talk].reason is None
    assert sorted(names(gallery.clip_ids)) == [
        "short.mp4", "talk.mp4#t=0,2", "talk.mp4#t=10", "talk.mp4#t=4,6", "talk.mp4#t=8,10"
    ]  # fmt: skip
    assert problems_of(run(place)[0]) == {}


def test_windows_that_are_out_of_reach_keep_what_is_known_and_are_read_later(place, monkeypatch):
    _, known, _ = run(place)
    write_talk(place, 8)  # all of it is to be read again
    away, read = set(range(8)), Lines.read_clip

    def read_clip(self, path, *, window=(0, None), **options):
        if path.endswith("talk.mp4") and window[0] // SECONDS in away:
            raise FileNotFoundError(f"{path}: No such file")
        return read(self, path, window=window, **options)

    monkeypatch.setattr(Lines, "read_clip", read_clip)
    for batch_size in (3, 8):
        report, gallery, _ = run(place, batch_size=batch_size)
        assert gallery.clip_ids == known.clip_ids and names(of(report, "out of reach")) == ["talk.mp4"]
    for now, embedded in (({0, 1, 2, 5, 6, 7}, [3, 4]), (set(), [0, 1, 2, 5, 6, 7])):
        away.intersection_update(now)
        report, gallery, seen = run(place, batch_size=2)
        assert sorted(seen) == embedded and bool(problems_of(report)) == bool(now)
    assert len(gallery) == 9
