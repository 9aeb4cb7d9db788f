import errno
import os
import random
import shutil
import signal
import threading
import time
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
        problems = [
            f"{path}: {word.removeprefix('broken-')}: cannot decode" for word in words if word.startswith("broken-")
        ]
        frames = torch.full((1, 2, 2, 3), int(words[0])).byte().numpy() if "video" in words else None
        waveform = torch.full((4,), float(words[0])).numpy() if "audio" in words else None
        subtitle = " " if "blank" in words else None
        duration = None if waveform is None else len(waveform) / 16_000
        return Clip(frames, waveform, subtitle, problems, path, duration=duration)

    def __call__(self, text=None, clips=None):
        if text is not None:
            ids = torch.tensor([[len(line)] for line in text])
            return BatchFeature({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
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

    def get_text_features(self, input_ids, attention_mask):
        return SimpleNamespace(pooler_output=torch.nn.functional.one_hot(input_ids[:, 0] % DIM, DIM).float())


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for seed, content in enumerate(("video audio", "video", "audio")):
        (folder / f"{seed}.mp4").write_text(f"{seed} {content}")
    return folder


def run(folder, **options):
    """Index the folder, or the list of files, into the gallery beside it; returns (report, gallery, model)."""
    output = (folder[0] if isinstance(folder, list) else folder).parent
    output = output / "gallery" if output.name != "clips" else output.parent / "gallery"
    model = options.pop("model", None) or FakeModel()
    files = find_files(folder if isinstance(folder, list) else [folder])
    with GalleryWriter(output, "float32") as writer:
        writer.metadata = {"model": "model", "fingerprint": "fingerprint", "query_temperature": 0.1}
        report = make_indexer(writer, model, FakeProcessor(), **options).update(files)
    return report, Gallery.open(output), model


def test_a_file_that_was_moved_keeps_its_clips_without_being_embedded_again(folder):
    _, before, _ = run(folder)
    vectors = dict(zip(before.clip_ids, before.modality_embeds().tolist(), strict=True))
    (folder / "below").mkdir()
    moves = {str(folder / "0.mp4"): str(folder / "below" / "0.mp4"), str(folder / "1.mp4"): str(folder / "one.mp4")}
    for old, new in moves.items():
        os.rename(old, new)
    shutil.copy(folder / "2.mp4", folder / "copy.mp4")  # of a file that is still there
    report, gallery, model = run(folder, prune=True)
    assert sorted(of(report, "moved")) == sorted(moves.values()) and of(report, "new") == [str(folder / "copy.mp4")]
    assert sum(map(len, model.batches)) == 1 and not of(report, "gone") and not of(report, "removed")
    after = dict(zip(gallery.clip_ids, gallery.modality_embeds().tolist(), strict=True))
    assert len(after) == 4 and set(after) == set(gallery.files)
    for old, new in moves.items():
        assert after[new] == vectors[old]
    report, _, model = run(folder)
    assert len(of(report, "unchanged")) == 4 and not model.batches


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
    touch_later(folder / "1.mp4")
    report, gallery, model = run(folder)
    assert model.batches == [] and len(of(report, "unchanged")) == 3
    assert gallery.files[str(folder / "1.mp4")].mtime_ns == (folder / "1.mp4").stat().st_mtime_ns


def test_a_changed_file_is_embedded_again_and_one_that_failed_only_then(folder):
    (folder / "3.mp4").write_text("3 broken-video")
    _, before, _ = run(folder)
    report, _, model = run(folder)
    assert not model.batches and names(old(report)) == names(of(report, "unreadable")) == ["3.mp4"]
    (folder / "1.mp4").write_text("9 video")  # same size
    touch_later(folder / "1.mp4")
    (folder / "3.mp4").write_text("3 video")
    report, gallery, model = run(folder)
    assert model.batches == [[9, 3]] and len(gallery) == 4 and not failed(gallery)
    assert names(of(report, "changed")) == ["1.mp4"] and names(of(report, "new")) == ["3.mp4"]
    assert len(of(report, "unchanged")) == 2 and len(report) == 4
    vectors = [one.modality_embeds()[one.clip_ids.index(str(folder / "1.mp4"))] for one in (before, gallery)]
    assert not torch.equal(*vectors)


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
    assert len(of(report, "unreadable")) == (status == "unreadable")
    assert failure.path == str(folder / "3.mp4") and failure.reason.count(str(folder)) == 0
    assert reason in failure.reason
    assert list(failed(gallery)) == [failure.path] and len(gallery) == len(of(report, "new")) == 3


def test_what_cannot_be_looked_at_does_not_stand_among_what_is_read_again(folder):
    """Else it would change which clips are embedded together after a kill, and so the last bits of their vectors."""
    (folder / "00.mp4").symlink_to(folder / "nowhere.mp4")
    os.mkfifo(folder / "01.mp4")
    report, *_ = run(folder)
    assert len(of(report, "unreadable")) == 2
    for name in ("8.mp4", "9.mp4"):
        (folder / name).write_text(f"{name[0]} video")
    report, gallery, model = run(folder, batch_size=3)
    assert model.batches == [[8, 9]] and len(of(report, "unreadable")) == 2 and len(failed(gallery)) == 2
    (folder / "00.mp4").unlink()
    (folder / "nowhere.mp4").write_text("7 video")
    report, gallery, model = run(folder)
    assert (
        model.batches == [[7]] and names(failed(gallery)) == ["01.mp4"] and names(of(report, "new")) == ["nowhere.mp4"]
    )


def test_two_spellings_of_a_path_are_one_file_and_a_circle_of_links_ends(tmp_path, monkeypatch):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").touch()
    (tmp_path / "link").symlink_to(tmp_path / "clips")
    (tmp_path / "clips" / "up").symlink_to(tmp_path)
    (tmp_path / "clips" / "b.mp4").symlink_to(tmp_path / "clips" / "a.mp4")
    monkeypatch.chdir(tmp_path / "clips")
    spellings = ["a.mp4", "../clips/a.mp4", tmp_path / "clips" / "a.mp4", tmp_path / "link", tmp_path]
    assert find_files(spellings) == [str(tmp_path / "clips" / "a.mp4")]


@pytest.mark.e2e
@pytest.mark.promise("data", "Indexing that is killed repeatedly writes the same bytes")
def test_killed_again_and_again_indexing_ends_in_the_bytes_of_an_unbroken_run(tmp_path):
    """Each life of the process lasts for a batch or a few; what it has committed is never read again."""
    (tmp_path / "clips").mkdir()
    for seed in range(16):
        (tmp_path / "clips" / f"{seed:02d}.mp4").write_text(f"{seed} video audio")
    (tmp_path / "clips" / "41.mp4").write_text("broken-video")
    files = find_files([tmp_path / "clips"])

    def index(output, slowly):
        model = FakeModel()
        embed = model.get_modality_features

        def embed_slowly(**features):
            time.sleep(0.01 if slowly else 0)
            return embed(**features)

        model.get_modality_features = embed_slowly
        with GalleryWriter(tmp_path / output, "float32") as writer:
            writer.metadata = {"model": "model", "fingerprint": "fingerprint", "query_temperature": 0.1}
            make_indexer(writer, model, FakeProcessor(), batch_size=2).update(files)

    def listing(output):
        return {
            str(path.relative_to(tmp_path / output)): path.read_bytes()
            for path in sorted((tmp_path / output).rglob("*"))
            if path.is_file()
        }

    index("whole", slowly=False)
    dice, kills, last, is_done, patience = random.Random(0), 0, -1, False, 1.0
    while not is_done and kills < 200:
        child = os.fork()
        if not child:
            try:
                tqdm.set_lock(threading.RLock())  # its own is shared with this process, and may be held by the killed
                index("killed", slowly=True)
            except BaseException:
                os._exit(1)
            os._exit(0)
        stop = time.monotonic() + patience * dice.uniform(0.03, 0.16)
        while time.monotonic() < stop and not is_done:
            time.sleep(0.005)
            ended, status = os.waitpid(child, os.WNOHANG)
            is_done = bool(ended)
        if is_done:
            assert status == 0
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            kills += 1
            number = len(Gallery.open(tmp_path / "killed")) if (tmp_path / "killed" / "gallery.json").exists() else 0
            assert number % 2 == 0 and number >= last
            patience = 1.0 if number > last else 1.5 * patience  # the machine may be busy
            last = number
    assert is_done and kills > 2, "it was not killed in the middle"
    assert listing("killed") == listing("whole") and len(listing("whole")) > 10


def again(folder, files, processor=None, **options):
    """Index files that may be gone, as a list names them; returns (report, gallery)."""
    with GalleryWriter(folder.parent / "gallery", "float32") as writer:
        report = make_indexer(writer, FakeModel(), processor or FakeProcessor(), **options).update(files)
    return report, Gallery.open(folder.parent / "gallery")


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
    files = find_files([folder])
    with monkeypatch.context() as patched:
        make_fail(patched, folder)
        report, gallery = again(folder, [], **options)
        reported = {state.path: state.reason for state in report.of("out of reach")}
        assert reported == dict.fromkeys(files, "Input/output error") and list(report) == files
        assert gallery.clip_ids == files == list(gallery.files)
        assert again(folder, files, **options)[0] == report
    report, _ = again(folder, files, **options)
    assert of(report, "unchanged") == files and not of(report, "out of reach")


def test_a_name_that_is_too_long_for_a_disk_is_that_of_no_file(tmp_path):
    assert is_gone(str(tmp_path / ("x" * 5000))) and not is_gone(str(tmp_path))


@pytest.mark.promise("data", "A drive unmounted during indexing loses no clips")
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_drive_that_goes_or_comes_back_while_it_is_looked_at_costs_no_clips(folder, monkeypatch, comes_back):
    run(folder)
    files, away, looks = find_files([folder]), folder.parent / "away", []

    def leave():
        folder.rename(away)
        folder.mkdir()

    def come():
        folder.rmdir()
        away.rename(folder)

    def look(path, *hidden):
        looks.append(path)
        if len(looks) == 2:
            leave()
        found = is_gone(path, *hidden)
        if len(looks) == 2 and comes_back:
            come()
        return found

    monkeypatch.setattr("scalar_retrieval.search.indexing.is_gone", look)
    report, gallery = again(folder, [], prune=True)
    assert looks == files == gallery.clip_ids and of(report, "gone") == files[1 : 2 if comes_back else 3]


def delete(path):
    path.unlink()


def empty(path):
    for file in path.parent.iterdir():
        file.unlink()


def remove_folder(path):
    shutil.rmtree(path.parent)


def remove_all(path):
    shutil.rmtree(path.parents[1])


@pytest.mark.promise("data", "`--prune` keeps the clips of an unmounted drive")
@pytest.mark.parametrize(
    ("loss", "others", "is_kept"),
    [
        (delete, ["drive/a/2.mp4"], False),
        (delete, ["drive/a/notes.txt"], True),  # which is no file of the gallery
        (empty, ["drive/b/2.mp4"], True),  # as that of a drive which was taken away
        (remove_folder, ["drive/b/2.mp4"], False),
        (remove_folder, ["drive/b/new.mp4"], False),
        (remove_folder, ["drive/notes.txt"], True),
        (remove_folder, [], True),
        (remove_all, ["other/2.mp4"], False),
        (remove_all, ["mount/2.mp4"], True),  # of another drive
        (remove_all, [], True),
    ],
)
def test_prune_removes_clips_beside_which_files_of_the_gallery_are_left_and_no_others(
    tmp_path, monkeypatch, loss, others, is_kept
):
    path, there = tmp_path / "drive" / "a" / "1.mp4", [tmp_path / other for other in others]
    for number, file in enumerate((path, *there)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{number} video")
    gallery = tmp_path / "gallery"
    monkeypatch.setattr("os.path.ismount", lambda folder: folder in (str(tmp_path / "mount"), "/"))
    again(gallery, [str(file) for file in (path, *there) if file.name in ("1.mp4", "2.mp4")])
    loss(path)
    files = [str(file) for file in there if file.suffix == ".mp4"]
    report, _ = again(gallery, files)
    (state,) = report.of("gone")
    assert state.path == str(path) and (state.reason is not None) == is_kept  # why it would be kept
    report, found = again(gallery, files, prune=True)
    assert of(report, "gone" if is_kept else "removed") == [str(path)]
    assert (str(path) in found.clip_ids) == (str(path) in found.files) == is_kept


@pytest.mark.parametrize("when", ["before it is hashed", "after it is hashed"])
def test_a_file_that_disappears_between_two_looks_keeps_its_clip(folder, monkeypatch, when):
    run(folder)
    path = folder / "1.mp4"
    touch_later(path)
    path.write_text("7 video audio")
    files, processor = find_files([folder]), FakeProcessor()
    known = Gallery.open(folder.parent / "gallery").files[str(path)]
    if when == "after it is hashed":
        read = processor.read_clip

        def read_clip(name, **options):
            if name == str(path):
                path.unlink()
                raise ValueError(f"{name}: sound: the decoder ended")
            return read(name, **options)

        monkeypatch.setattr(processor, "read_clip", read_clip)
    else:

        def look(name, subtitle):
            raise OSError(errno.ESTALE, "Stale file handle", name)

        monkeypatch.setattr("scalar_retrieval.search.reading.clip_sha256", look)
    report, gallery = again(folder, files, processor)
    assert len(gallery) == 3 and names(of(report, "unchanged")) == ["0.mp4", "2.mp4"] and not of(report, "unreadable")
    why = {"after it is hashed": "sound: the decoder ended", "before it is hashed": "Stale file handle"}[when]
    (state,) = report.of("out of reach")
    assert state.path == str(path) and why in state.reason and not problems_of(report)
    assert gallery.files[str(path)] == known  # so that it is read when it is back
    monkeypatch.undo()
    path.write_text("7 video audio")
    assert names(of(again(folder, files)[0], "changed")) == ["1.mp4"]


def test_a_file_that_is_there_but_broken_now_loses_its_old_clip(folder):
    run(folder)
    (folder / "0.mp4").write_text("0 broken-video")
    (folder / "1.mp4").unlink()
    (folder / "1.mp4").mkdir()
    report, gallery = again(folder, [str(folder / "0.mp4"), str(folder / "1.mp4")])
    assert names(gallery.clip_ids) == ["2.mp4"]
    assert [state.is_dropped for state in report.of("unreadable")] == [True, True]
