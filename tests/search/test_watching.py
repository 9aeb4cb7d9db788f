"""Folders that are watched. Nothing sleeps here: what happens between two looks is a step of the test."""

import os
from functools import partial
from types import SimpleNamespace

import pytest

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store.file_state import is_as_known
from scalar_retrieval.search.sources import find_files
from scalar_retrieval.search.watching import watch
from tests.search.further import index_with
from tests.search.serving import WordProcessor
from tests.search.test_main import FakeModel, place, run  # noqa: F401
from tests.search.test_sources import make_unlistable


def while_sleeping(monkeypatch, steps, monotonic=lambda: 0):
    """Let steps happen, one in each pause between two looks; then Ctrl-C. Returns the seconds of the pauses."""
    waiting, pauses = iter(steps), []

    def sleep(seconds):
        pauses.append(seconds)
        step = next(waiting, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    clock = SimpleNamespace(sleep=sleep, monotonic=monotonic)
    monkeypatch.setattr("scalar_retrieval.search.watching.time", clock)
    return pauses


def looks_of(folder, steps, monkeypatch, find=None):
    """Watch while `steps` happen, one after each look; what was passed on before each step, by name."""
    passed = [[]]
    find = find or (lambda: [str(path) for path in sorted(folder.glob("*.mp4"))])

    def step_and_turn(step):
        step()
        passed.append([])

    while_sleeping(monkeypatch, [partial(step_and_turn, step) for step in steps])
    with pytest.raises(KeyboardInterrupt):
        watch(find, lambda files: passed[-1].append([os.path.basename(file) for file in files]), 7, print)
    return passed


def nothing():
    pass


def test_a_file_is_passed_on_once_it_has_stopped_changing(tmp_path, monkeypatch):
    file = tmp_path / "a.mp4"

    def grow():
        with open(file, "a") as stream:
            stream.write("more")

    passed = looks_of(tmp_path, [nothing, grow, grow, grow, nothing, nothing, grow, nothing, nothing], monkeypatch)
    assert passed == [[], [[]], [], [], [], [["a.mp4"]], [], [], [["a.mp4"]], []]


def test_what_is_there_at_first_is_passed_on_at_once_and_subtitles_belong_to_a_file(tmp_path, monkeypatch):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).touch()
    passed = looks_of(tmp_path, [nothing, lambda: (tmp_path / "b.srt").write_text("words"), nothing], monkeypatch)
    assert passed == [[], [["a.mp4", "b.mp4"]], [], [["b.mp4"]]]


def test_a_look_that_fails_is_skipped_and_nothing_is_gone_in_it(tmp_path, monkeypatch, capsys):
    folder, away = tmp_path / "clips", tmp_path / "away"
    folder.mkdir()
    (folder / "a.mp4").touch()
    leave, come = (lambda: folder.rename(away)), (lambda: away.rename(folder))
    steps = [nothing, leave, nothing, nothing, come, nothing, (folder / "a.mp4").unlink, nothing, nothing]
    passed = looks_of(folder, steps, monkeypatch, find=lambda: find_files([folder]))
    assert passed == [[], [["a.mp4"]], [], [], [], [], [], [], [[]], []]
    assert capsys.readouterr().out.count("Cannot scan now: There is no file or folder") == 1


def test_a_file_that_is_gone_is_reported_after_two_looks(tmp_path, monkeypatch):
    file = tmp_path / "a.mp4"
    file.touch()
    steps = [nothing, file.unlink, file.touch, nothing, nothing, file.unlink, nothing, nothing, file.touch, nothing]
    passed = looks_of(tmp_path, steps, monkeypatch)
    touched = [["a.mp4"]]  # of another time, it may be another file
    assert passed == [[], touched, [], [], touched, [], [], [[]], [], [], touched]


def test_a_file_that_cannot_be_seen_is_passed_on_for_reading_to_say_why(tmp_path, monkeypatch):
    (tmp_path / "a.mp4").symlink_to("a.mp4")
    assert looks_of(tmp_path, [nothing, nothing], monkeypatch) == [[], [["a.mp4"]], []]


def test_a_drive_that_answers_slowly_is_looked_at_less_often(monkeypatch):
    pauses = while_sleeping(monkeypatch, [nothing], partial(next, iter([0.0, 0.5, 0.5, 2.5])))
    with pytest.raises(KeyboardInterrupt):
        watch(lambda: [], lambda *_: None, 7, print)
    assert pauses == [7, 20]


def watching(monkeypatch, *steps):
    """Index with --watch while `steps` happen, one after each look; then Ctrl-C."""
    while_sleeping(monkeypatch, steps)
    return run("index", "clips", "--model", "model", "--output", "gallery", "--watch", "--prune")


def test_a_watched_folder_is_indexed_until_ctrl_c_and_then_reported(place, monkeypatch):  # noqa: F811
    seen, dog = [], place / "clips" / "[red]" / "dog [bold]1.mp4"

    def look():
        seen.append(len(Gallery.open("gallery")))
        with pytest.raises(ValueError, match="Another process writes"):
            GalleryWriter("gallery")

    def arrive():
        look()
        (place / "clips" / "late.mp4").write_text("video subtitle")
        (place / "clips" / "cat.mp4").unlink()
        dog.write_text("video")

    result = watching(monkeypatch, nothing, arrive, nothing, look)
    assert seen == [2, 2]
    assert "Watching clips." in result.stderr and "until Ctrl-C" in result.stderr
    assert "1 new, 1 changed, 0 unchanged, 0 unreadable, 1 removed" in result.stderr
    assert "1 unreadable, 1 removed; 2 clips in the gallery" in result.stdout.splitlines()[0]
    assert f"gone from disk, its clips are removed: {place / 'clips' / 'cat.mp4'}" in result.stdout
    assert is_as_known(str(dog), Gallery.open("gallery").files[str(dog)])
    assert "1 unchanged" in run("index", "clips/late.mp4", "--model", "model", "--output", "gallery").stdout


def test_a_watched_folder_needs_no_model_until_a_file_is_new(place, monkeypatch):  # noqa: F811
    run("index", "clips", "--model", "model", "--output", "gallery")
    loads, loaded = [], (FakeModel(), WordProcessor())
    monkeypatch.setattr("scalar_retrieval.modeling_scalar.load_model", lambda *given: loads.append(given) or loaded)

    def arrive():
        assert not loads
        (place / "clips" / "late.mp4").write_text("video subtitle")

    assert "1 new, 0 changed, 0 unchanged" in watching(monkeypatch, nothing, arrive, nothing, nothing).stderr
    assert len(loads) == 1


def test_ctrl_c_while_a_watched_file_is_embedded_keeps_and_reports_what_was_committed(place, monkeypatch):  # noqa: F811
    index_with(monkeypatch, batch_size=1)
    embed, calls = FakeModel.get_modality_features, iter((False, True))

    def interrupted(self, **features):
        if next(calls):
            raise KeyboardInterrupt
        return embed(self, **features)

    monkeypatch.setattr(FakeModel, "get_modality_features", interrupted)
    result = watching(monkeypatch, nothing, nothing)
    assert result.stdout.startswith("1 new, 0 changed, 0 unchanged, 1 unreadable; 1 clips")


def test_a_watched_drive_that_is_taken_away_costs_no_clips(place, monkeypatch):  # noqa: F811
    clips, away = place / "clips", place / "away"

    def leave():
        clips.rename(away)
        clips.mkdir()  # as the folder in which a drive is shown

    def come():
        clips.rmdir()
        away.rename(clips)

    result = watching(monkeypatch, nothing, leave, nothing, nothing, come, nothing, nothing)
    assert "0 new, 0 changed, 0 unchanged, 0 unreadable, 2 gone" in result.stderr
    assert result.stdout.startswith("0 new, 0 changed, 2 unchanged, 1 unreadable; 2 clips in the gallery")
    assert "gone from disk" not in result.stdout


def test_a_watched_folder_that_cannot_be_listed_is_reported_once_and_costs_no_clips(place, monkeypatch):  # noqa: F811
    red, scandir = place / "clips" / "[red]", os.scandir

    def lock():
        make_unlistable(monkeypatch, red)

    def unlock():
        monkeypatch.setattr(os, "scandir", scandir)
        (red / "new.mp4").write_text("audio")

    result = watching(monkeypatch, nothing, lock, nothing, nothing, unlock, nothing, nothing)
    assert result.stderr.count("[red] is skipped, as it cannot be listed: Permission denied.") == 1
    assert "gone" not in result.stderr and "Cannot scan now" not in result.stderr
    assert result.stdout.startswith("2 new, 0 changed, 1 unchanged, 1 unreadable; 3 clips in the gallery")
