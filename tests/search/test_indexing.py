import errno
import os
import random
import shutil
import threading
import time
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
import torch
from tqdm import tqdm
from transformers import BatchFeature

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES as MODALITIES
from scalar_retrieval.modeling_scalar.processing_scalar import Clip
from scalar_retrieval.search.sources import find_files
from scalar_retrieval.search.vanished import is_gone
from tests.indexers import make_indexer

DIM = 8


class FakeProcessor:
    """Files hold text such as "7 video audio": a seed and the modalities; "broken-audio" is a stream that fails."""

    reader, max_audio_seconds = SandboxedReader(), float("inf")

    modalities = MODALITIES

    def read_clip(self, path, *, processed):
        return self.read_line(path, open(path, encoding="utf-8").read().split())

    @staticmethod
    def read_line(path, words):
        problems = [f"{path}: {word[7:]}: cannot decode" for word in words if word.startswith("broken-")]
        frames = torch.full((1, 2, 2, 3), int(words[0])).byte().numpy() if "video" in words else None
        waveform = torch.full((4,), float(words[0])).numpy() if "audio" in words else None
        subtitle = " " if "blank" in words else None
        duration = None if waveform is None else len(waveform) / 16_000
        return Clip(frames, waveform, subtitle, problems, path, duration=duration)

    def __call__(self, clips):
        mask = torch.tensor([[clip.frames is not None, clip.waveform is not None, False] for clip in clips])
        seeds = [clip.frames.flat[0] if clip.frames is not None else clip.waveform[0] for clip in clips]
        return BatchFeature({"pixel_values_videos": torch.tensor(seeds).float(), "modality_mask": mask})


class FakeModel:
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self):
        self.config = SimpleNamespace(query_temperature=0.1, modalities=MODALITIES, modality_slices=None)
        self.batches = []

    def get_modality_features(self, pixel_values_videos, modality_mask):
        self.batches.append(pixel_values_videos.int().tolist())
        rows = [
            torch.randn(3, DIM, generator=torch.Generator().manual_seed(int(seed))) for seed in pixel_values_videos
        ]
        return torch.nn.functional.normalize(torch.stack(rows), dim=-1) * modality_mask[..., None], modality_mask


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for seed, content in enumerate(("video audio", "video", "audio")):
        (folder / f"{seed}.mp4").write_text(f"{seed} {content}")
    return folder


def run(folder, model=None, **options):
    """Index the folder into the gallery beside it; returns (report, gallery, model)."""
    model = model or FakeModel()
    return *again(folder.parent / "gallery", find_files([folder]), model=model, **options), model


def again(output, files, processor=None, model=None, **options):
    """Index files that may be gone, as a list names them, into a gallery; returns (report, gallery)."""
    with GalleryWriter(output, "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint", "query_temperature": 0.1}
        indexer = make_indexer(writer, model or FakeModel(), processor or FakeProcessor(), **options)
        report = indexer.update(files)
    return report, Gallery.open(output)


def test_a_file_that_was_moved_keeps_its_clips_without_being_embedded_again(folder):
    _, before, _ = run(folder)
    (folder / "below").mkdir()
    moves = {f"{folder}/0.mp4": f"{folder}/below/0.mp4", f"{folder}/1.mp4": f"{folder}/one.mp4"}
    for old, new in moves.items():
        os.rename(old, new)
    shutil.copy(folder / "2.mp4", folder / "copy.mp4")  # of a file that is still there
    report, gallery, model = run(folder, prune=True)
    assert sorted(of(report, "moved")) == sorted(moves.values()) and of(report, "new") == [f"{folder}/copy.mp4"]
    assert sum(map(len, model.batches)) == 1 and not of(report, "gone") and not of(report, "removed")
    assert len(gallery) == 4 and set(gallery.clip_ids) == set(gallery.files)
    for old, new in moves.items():
        vectors = gallery.modality_embeds()[gallery.row_of(new)]
        assert vectors.equal(before.modality_embeds()[before.row_of(old)])


def failed(gallery):
    """Why files are no clips, by path."""
    return {path: file.reason for path, file in gallery.files.items() if file.reason is not None}


def of(report, status):
    """The paths of the files of one status."""
    return [state.path for state in report.of(status)]


def problems_of(report):
    return {state.path: list(state.problems) for state in report.values() if state.problems}


def old(report):
    """What failed in an earlier run and was not tried again."""
    return [state.path for state in report.values() if state.is_old]


def names(paths):
    return [os.path.basename(path) for path in paths]


def touch_later(path):
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def test_every_file_is_embedded_once_in_batches_and_the_next_run_notes_new_times_alone(folder):
    report, gallery, model = run(folder, batch_size=2)
    assert model.batches == [[0, 1], [2]]
    assert names(gallery.clip_ids) == names(of(report, "new")) == ["0.mp4", "1.mp4", "2.mp4"]
    assert gallery.modality_mask.tolist() == [[True, True, False], [True, False, False], [False, True, False]]
    manifest = folder.parent / "gallery" / "gallery.json"
    before = manifest.stat().st_mtime_ns
    run(folder)
    assert manifest.stat().st_mtime_ns == before
    path = folder / "1.mp4"
    touch_later(path)
    report, gallery, model = run(folder)
    assert model.batches == [] and len(of(report, "unchanged")) == 3
    assert gallery.files[str(path)].mtime_ns == path.stat().st_mtime_ns


def test_a_changed_file_is_embedded_again_and_one_that_failed_only_then(folder):
    (folder / "3.mp4").write_text("3 broken-video")
    run(folder)
    report, _, model = run(folder)
    assert not model.batches and names(old(report)) == names(of(report, "unreadable")) == ["3.mp4"]
    (folder / "1.mp4").write_text("9 video")  # same size
    touch_later(folder / "1.mp4")
    (folder / "3.mp4").write_text("3 video")
    report, gallery, model = run(folder)
    assert model.batches == [[9, 3]] and len(gallery) == 4 and not failed(gallery)
    assert names(of(report, "changed")) == ["1.mp4"] and names(of(report, "new")) == ["3.mp4"]
    assert len(of(report, "unchanged")) == 2 and len(report) == 4


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        ("3 broken-video", "unreadable", "video: cannot decode"),
        ("3", "with nothing to embed", "found none of video, audio, subtitle"),
        ("3 blank", "with nothing to embed", "found none of video, audio, subtitle"),
    ],
)
def test_a_file_without_a_clip_is_reported_with_the_reason_and_left_out(folder, content, status, reason):
    (folder / "3.mp4").write_text(content)
    report, gallery, _ = run(folder)
    (failure,) = report.of(status)
    assert failure.path == f"{folder}/3.mp4" and reason in failure.reason and str(folder) not in failure.reason
    assert list(failed(gallery)) == [failure.path] and len(gallery) == len(of(report, "new")) == 3


def test_what_cannot_be_looked_at_does_not_stand_among_what_is_read_again(folder):
    """Else it would change which clips are embedded together after a kill, and so the last bits of their vectors."""
    (folder / "00.mp4").symlink_to(folder / "nowhere.mp4")
    os.mkfifo(folder / "01.mp4")
    run(folder)
    for name in ("8.mp4", "9.mp4"):
        (folder / name).write_text(f"{name[0]} video")
    report, gallery, model = run(folder, batch_size=3)
    assert model.batches == [[8, 9]] and len(of(report, "unreadable")) == 2 and len(failed(gallery)) == 2


def test_two_spellings_of_a_path_are_one_file_and_a_circle_of_links_ends(tmp_path, monkeypatch):
    clips = tmp_path / "clips"
    clips.mkdir()
    (clips / "a.mp4").touch()
    (tmp_path / "link").symlink_to(clips)
    (clips / "up").symlink_to(tmp_path)
    (clips / "b.mp4").symlink_to(clips / "a.mp4")
    monkeypatch.chdir(clips)
    assert find_files(["a.mp4", "../clips/a.mp4", tmp_path / "link", tmp_path]) == [str(clips / "a.mp4")]


@pytest.mark.e2e
@pytest.mark.promise("data", "Indexing that is killed repeatedly writes the same bytes")
def test_killed_again_and_again_indexing_ends_in_the_bytes_of_an_unbroken_run(folder, tmp_path, monkeypatch):
    """Each life of the process lasts for a batch or a few; what it has committed is never read again."""
    for seed in range(3, 16):
        (folder / f"{seed}.mp4").write_text(f"{seed} video audio")
    (folder / "99.mp4").write_text("broken-video")
    files, whole, killed = find_files([folder]), tmp_path / "whole", tmp_path / "killed"

    process = FakeProcessor.__call__

    def slowly(self, clips):
        time.sleep(0.01)
        return process(self, clips)

    def index_slowly():
        tqdm.set_lock(threading.RLock())  # its own is shared with this process, and may be held by the killed
        monkeypatch.setattr(FakeProcessor, "__call__", slowly)
        again(killed, files, batch_size=2)

    def listing(output):
        return {path.relative_to(output): path.read_bytes() for path in output.rglob("*") if path.is_file()}

    again(whole, files, batch_size=2)
    dice, kills, last, patience = random.Random(0), 0, -1, 0.1
    while kills < 200:
        child = get_context("fork").Process(target=index_slowly)
        child.start()
        child.join(patience * dice.uniform(0.3, 1.6))
        if child.exitcode is not None:
            break
        child.kill()
        child.join()
        kills += 1
        number = len(Gallery.open(killed)) if (killed / "gallery.json").exists() else 0
        assert number % 2 == 0 and number >= last
        patience = 0.1 if number > last else 1.5 * patience  # the machine may be busy
        last = number
    assert child.exitcode == 0 and kills > 2, "it was not killed in the middle"
    assert listing(killed) == listing(whole) and len(listing(killed)) > 10


def make_fail(monkeypatch, folder):
    """Asking for a file in a folder is an error, and not that there is none, as on a drive that fails."""
    stat = os.stat

    def ask(path, *arguments, **options):
        if str(path).startswith(f"{folder}{os.sep}"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr("os.stat", ask)


@pytest.mark.parametrize("options", [{}, {"prune": True}])
def test_a_file_that_nobody_can_reach_is_not_gone_and_never_pruned(folder, monkeypatch, options):
    run(folder)
    files, output = find_files([folder]), folder.parent / "gallery"
    with monkeypatch.context() as patched:
        make_fail(patched, folder)
        report, gallery = again(output, [], **options)
        reported = {state.path: state.reason for state in report.of("out of reach")}
        assert reported == dict.fromkeys(files, "Input/output error") and list(report) == files
        assert gallery.clip_ids == files == list(gallery.files)
        assert again(output, files, **options)[0] == report
    report, _ = again(output, files, **options)
    assert of(report, "unchanged") == files


def test_a_name_that_is_too_long_for_a_disk_is_that_of_no_file(tmp_path):
    assert is_gone(str(tmp_path / ("x" * 5000))) and not is_gone(str(tmp_path))


@pytest.mark.promise("data", "A drive unmounted during indexing loses no clips")
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_drive_that_goes_or_comes_back_while_it_is_looked_at_costs_no_clips(folder, monkeypatch, comes_back):
    run(folder)
    files, away, looks = find_files([folder]), folder.parent / "away", []

    def look(path, *hidden):
        looks.append(path)
        if len(looks) == 2:
            folder.rename(away)
            folder.mkdir()
        found = is_gone(path, *hidden)
        if len(looks) == 2 and comes_back:
            folder.rmdir()
            away.rename(folder)
        return found

    monkeypatch.setattr("scalar_retrieval.search.indexing.is_gone", look)
    report, gallery = again(folder.parent / "gallery", [], prune=True)
    assert looks == files == gallery.clip_ids and of(report, "gone") == files[1 : 2 if comes_back else 3]


@pytest.mark.promise("data", "`--prune` keeps the clips of an unmounted drive")
@pytest.mark.parametrize(
    ("gone", "others", "is_kept"),
    [
        ("drive/a/1.mp4", ["drive/a/2.mp4"], False),
        ("drive/a/1.mp4", ["drive/a/notes.txt"], True),  # which is no file of the gallery
        ("drive/a/1.mp4", ["drive/b/2.mp4"], True),  # as the folder of a drive which was taken away
        ("drive/a", ["drive/b/2.mp4"], False),
        ("drive/a", ["drive/b/new.mp4"], False),
        ("drive/a", ["drive/notes.txt"], True),
        ("drive/a", [], True),
        ("drive", ["other/2.mp4"], False),
        ("drive", ["mount/2.mp4"], True),  # of another drive
        ("drive", [], True),
    ],
)
def test_prune_removes_clips_beside_which_files_of_the_gallery_are_left_and_no_others(
    tmp_path, monkeypatch, gone, others, is_kept
):
    path, gallery = tmp_path / "drive" / "a" / "1.mp4", tmp_path / "gallery"
    there = [tmp_path / name for name in others]
    for number, file in enumerate((path, *there)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number} video")
    monkeypatch.setattr("os.path.ismount", lambda folder: folder in (str(tmp_path / "mount"), "/"))
    again(gallery, [str(file) for file in (path, *there) if file.name in ("1.mp4", "2.mp4")])
    (tmp_path / gone).rename(tmp_path / "thrown away")
    files = [str(file) for file in there if file.suffix == ".mp4"]
    report, _ = again(gallery, files)
    (state,) = report.of("gone")
    assert state.path == str(path) and (state.reason is not None) == is_kept  # why it would be kept
    report, found = again(gallery, files, prune=True)
    assert of(report, "gone" if is_kept else "removed") == [str(path)]
    assert (str(path) in found.clip_ids) == (str(path) in found.files) == is_kept


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("scalar_retrieval.search.reading.clip_sha256", OSError(errno.ESTALE, "Stale file handle")),
        ("tests.search.test_indexing.FakeProcessor.read_clip", ValueError("sound: the decoder ended")),
    ],
)
def test_a_file_that_disappears_between_two_looks_keeps_its_clip(folder, monkeypatch, asked, error):
    run(folder)
    path, gallery = folder / "1.mp4", folder.parent / "gallery"
    touch_later(path)
    files, known = find_files([folder]), Gallery.open(gallery).files[str(path)]

    def vanish(*_, **__):
        if isinstance(error, ValueError):
            path.unlink()
        raise error

    monkeypatch.setattr(asked, vanish)
    path.write_text("7 video audio")
    report, found = again(gallery, files)
    assert len(found) == 3 and names(of(report, "unchanged")) == ["0.mp4", "2.mp4"]
    (state,) = report.of("out of reach")
    assert state.path == str(path) and error.args[-1] in state.reason and not problems_of(report)
    assert found.files[str(path)] == known  # so that it is read when it is back


def test_a_file_that_is_there_but_broken_now_loses_its_old_clip(folder):
    run(folder)
    (folder / "0.mp4").write_text("0 broken-video")
    (folder / "1.mp4").unlink()
    (folder / "1.mp4").mkdir()
    report, gallery = again(folder.parent / "gallery", [f"{folder}/0.mp4", f"{folder}/1.mp4"])
    assert names(gallery.clip_ids) == ["2.mp4"]
    assert [state.is_dropped for state in report.of("unreadable")] == [True, True]
