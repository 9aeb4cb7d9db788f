"""Reading in other processes: the same bits as ever, whatever a file does to its process."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from scalar_retrieval.gallery.decoding import LimitError, Limits, SandboxedReader, pool, sandboxed, tolerant, worker
from scalar_retrieval.modeling_scalar.image_processing_scalar import ScalarImageProcessor, frame_indices
from scalar_retrieval.modeling_scalar.media_scalar import MediaError, MediaReader
from tests.gallery.decoding.reading import read_audio, read_frames, read_subtitle, write_media
from tests.media_corpus import CORPUS
from tests.modeling_scalar.test_processing_scalar import make_processor as make_plain_processor

pytestmark = pytest.mark.e2e

ROOT = Path(pool.__file__).parents[2]


def make_processor(**settings):
    return tolerant(make_plain_processor(**settings))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoding")
    write_media(folder / "whole.mp4", encoder="g=10", seconds_of_audio=4.0, muxer="movflags=faststart")
    write_media(folder / "counted.avi", encoder="g=5 bf=2")
    write_media(folder / "rotated.mp4", 12, rotation=90, seconds_of_audio=0.5)
    noisy = bytearray((folder / "whole.mp4").read_bytes())
    middle = len(noisy) // 2
    noisy[middle:] = np.random.default_rng(1).bytes(len(noisy) - middle)  # fails after some frames
    (folder / "noisy.mp4").write_bytes(noisy)
    (folder / "half.mp4").write_bytes(
        (folder / "whole.mp4").read_bytes()[: (folder / "whole.mp4").stat().st_size // 2]
    )
    return folder


@pytest.fixture
def processes(monkeypatch):
    """Processes of this test alone."""
    processes = pool._Pool()
    monkeypatch.setattr(pool, "_pool", processes)
    yield processes
    processes.close()


@pytest.fixture
def misbehaving(processes, monkeypatch):
    """Make processes do something else than reading frames."""

    def start(behaviour):
        lines = behaviour.replace("\n", "\n    ")
        program = (
            "import os, time\nfrom scalar_retrieval.gallery.decoding import worker\n"
            f"def read_frames(reader, path, **options):\n    {lines}\n"
            "worker.LimitedReader.read_frames = read_frames\nworker.serve()\n"
        )
        monkeypatch.setattr(pool, "_PROGRAM", program)

    return start


# ---------------------------------------------------------------- processed clips are those of raw ones

PROCESSORS = {
    "squash": {},
    "large": {"image_size": 224, "resize_mode": "crop"},
    "uncropped": {"train_crop_scale": None},
    "narrow": {"train_crop_scale": (0.2, 0.4), "image_size": 40},
}


@pytest.mark.promise("files", "Scaling while decoding gives the same bits as scaling afterwards")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["whole.mp4", "counted.avi", "rotated.mp4", "half.mp4", "noisy.mp4"])
@pytest.mark.parametrize("settings", PROCESSORS)
def test_a_processed_clip_gives_the_bits_and_the_draws_of_a_raw_one(folder, settings, name, training):
    processor = make_processor(num_segments=3)
    processor.image_processor = ScalarImageProcessor(**({"image_size": 16} | PROCESSORS[settings]))
    batches, states, clips = [], [], []
    for processed in (False, True):
        generator = torch.Generator().manual_seed(7)
        options = {"training": training, "generator": generator if training else None}
        clip = processor.read_clip(folder / name, subtitle="a", processed=processed, **options)
        batches.append(processor(clips=[clip], **options))
        states.append(generator.get_state())
        clips.append(clip)
    raw, processed = clips
    assert processed.frames is None and processed.waveform is None
    assert processed.duration == raw.duration and processed.problems == raw.problems
    assert raw.has("video") and raw.has("audio") == (name != "counted.avi")
    assert bool(raw.problems) == (name in ("half.mp4", "noisy.mp4"))
    for key, value in batches[0].items():
        assert torch.equal(value, batches[1][key]), key
    assert torch.equal(*states)


def test_what_is_drawn_does_not_depend_on_how_clips_are_passed(folder):
    processor = make_processor()
    files = [folder / "whole.mp4", folder / "rotated.mp4"]
    one, two = ([torch.Generator().manual_seed(seed) for seed in (1, 2)] for _ in range(2))
    clips = []
    for file, generator in zip(files, one, strict=True):
        clips.append(processor.read_clip(file, training=True, generator=generator))
    expected = processor(clips=clips, training=True, generator=one)
    batch = processor(videos=files, training=True, generator=two)
    assert all(torch.equal(value, batch[key]) for key, value in expected.items())


# ---------------------------------------------------------------- limits


def test_limits_are_read_from_a_command_line():
    limits = Limits.parse(["memory=2GiB", "pixels=70e6", " time=1.5"])
    assert limits == Limits(pixels=70_000_000, memory=2**31, time=1.5)
    assert Limits.parse([]) == Limits()


@pytest.mark.parametrize("setting", ["size=1", "memory", "memory=lots", "time=nan", "time=inf", "time=0", ""])
def test_impossible_limits_are_refused(setting):
    with pytest.raises(ValueError, match="limit"):
        Limits.parse([setting])


@pytest.mark.parametrize(
    ("read", "name", "few", "enough"), [(read_frames, "pixels", 4095, 4096), (read_audio, "duration", 1, 10)]
)
def test_a_limit_says_what_was_wanted_and_how_to_raise_it(folder, read, name, few, enough):
    few, enough = Limits(**{name: few}), Limits(**{name: enough})
    with pytest.raises(LimitError, match=rf"whole.mp4.*the limit is {name}=\d+.*`--limit {name}=\d+`") as reported:
        read(folder / "whole.mp4", limits=few)
    assert not LimitError.no_longer_holds(str(reported.value), few)
    assert LimitError.no_longer_holds(str(reported.value), enough)
    assert read(folder / "whole.mp4", limits=enough) is not None


def test_the_limits_of_a_processor_count_and_are_not_saved(folder, tmp_path):
    processor = sandboxed(sandboxed(make_plain_processor()), Limits(pixels=100))
    with pytest.raises(LimitError, match="pixels=100"):
        processor.read_clip(folder / "whole.mp4")
    processor.save_pretrained(tmp_path)
    assert "reader" not in (tmp_path / "processor_config.json").read_text()
    assert type(type(processor).from_pretrained(tmp_path).reader) is MediaReader


# ---------------------------------------------------------------- processes that misbehave


@pytest.mark.promise("files", "A file that crashes the decoder, hangs or fills the memory fails alone and is named")
@pytest.mark.parametrize(
    ("behaviour", "limits", "error", "message"),
    [
        ("os.abort()", Limits(), MediaError, "the decoder crashed.*SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", Limits(), MediaError, "the decoder crashed.*SIGSEGV"),
        (
            "while True: pass",
            Limits(time=1),
            LimitError,
            "(took over 1 s of CPU time|does not respond); the limit is time=1",
        ),
        ("time.sleep(60)", Limits(time=0.2), LimitError, "does not respond; the limit is time=0.2"),
        (
            "bytearray(2**31)",
            Limits(),
            LimitError,
            f"{2**30} bytes of memory may be too few; the limit is memory={2**30}",
        ),
        ("raise OverflowError('too big')", Limits(), MediaError, "unexpected error.*OverflowError: too big"),
        ("raise OSError(5, 'Input/output error')", Limits(), MediaError, "reading failed .*Input/output error"),
    ],
)
def test_a_decoder_that_fails_fails_for_its_file_alone(
    folder, misbehaving, monkeypatch, behaviour, limits, error, message
):
    misbehaving(behaviour)
    with pytest.raises(error, match=f"whole.mp4: .*{message}") as reported:
        read_frames(folder / "whole.mp4", 8, limits=limits)
    assert type(reported.value) is error
    assert read_audio(folder / "whole.mp4") is not None  # this program reads sound as ever
    monkeypatch.undo()
    assert read_frames(folder / "whole.mp4", 8) is not None


def test_files_that_others_read_meanwhile_are_not_lost(folder, processes):
    """Reading goes on in the processes of other files while one is killed, again and again."""
    expected, found, reader = read_frames(folder / "whole.mp4", 8), [], SandboxedReader()
    read = lambda: found.extend(read_frames(folder / "whole.mp4", 8) for _ in range(20))  # noqa: E731
    threads = [Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()

    def kill(available):
        os.kill(max(worker.process.pid for worker in processes.all if worker not in processes.idle), signal.SIGKILL)
        return range(available)

    failed = 0
    while any(thread.is_alive() for thread in threads):
        try:
            reader.read_frames(folder / "whole.mp4", kill)
        except LimitError:
            failed += 1
    assert failed and all(np.array_equal(frames, expected) for frames in found)


def test_what_does_not_fit_beside_others_is_read_alone(folder, misbehaving, processes):
    misbehaving(
        "bytearray(300 * 2**20)\noptions['choose'](1)\n"
        "return [options['prepare'](1, 1)(__import__('numpy').array([[[49, 50, 51]]], 'uint8'))]"
    )
    assert read_frames(folder / "whole.mp4", 1).tolist() == [[[[49, 50, 51]]]]
    assert not processes.all  # the one that took so much has ended
    with pytest.raises(LimitError, match=f"memory={2**28}"):
        read_frames(folder / "whole.mp4", 1, limits=Limits(memory=2**28))


def test_a_process_that_cannot_start_is_no_fault_of_the_file(folder, processes, monkeypatch):
    monkeypatch.setattr(pool, "_PROGRAM", "import nowhere")
    with pytest.raises(RuntimeError, match="did not start .exit code 1.*import nowhere"):
        read_frames(folder / "whole.mp4", 8)


def test_a_process_starts_where_the_project_is_installed_as_editable(folder, processes, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place).resolve() != ROOT])
    assert SandboxedReader().read_duration(folder / "whole.mp4") > 0


def test_a_process_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
        "from scalar_retrieval.gallery.decoding.worker import serve"
    )
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-S", "-P", "-c", code], env=environment, check=True)


def test_the_workers_of_a_data_loader_read_files(folder):
    read, files = partial(read_frames, num_frames=2), [folder / "whole.mp4"] * 4
    found = list(torch.utils.data.DataLoader(files, batch_size=None, num_workers=2, collate_fn=read))
    assert np.array_equal(found, [read(file) for file in files])


SCRIPT = """
import os, signal, sys
from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.decoding.pool import _pool

def read_frames(path, num_frames):
    return SandboxedReader().read_frames(path, lambda available: range(num_frames))

assert len(read_frames(sys.argv[1], 3)) == 3
worker, = _pool.all
if sys.argv[2] == "interrupt":
    os.killpg(0, signal.SIGINT)  # as Ctrl-C in a terminal does
print(worker.process.pid, flush=True)
if sys.argv[2] == "fork":
    if os.fork() == 0:
        signal.pause()  # reads nothing
    if os.fork() == 0:  # as the workers of a DataLoader are made
        assert len(read_frames(sys.argv[1], 3)) == 3
        mine, = _pool.all
        print(mine.process.pid, flush=True)
        signal.pause()
    signal.pause()
if sys.argv[2] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start_script(tmp_path, *arguments):
    script = tmp_path / "script.py"  # without `if __name__ == "__main__"`
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_end(pid):
    """Wait until a process that is not a child of this one has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        assert select.select([descriptor], [], [], 30)[0], f"{pid} still runs"
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("ending", ["die", "interrupt"])
def test_a_script_needs_no_main_guard_and_leaves_no_process_behind(folder, tmp_path, ending):
    process = start_script(tmp_path, folder / "whole.mp4", ending)
    out, err = process.communicate(timeout=120)
    if ending == "interrupt":
        assert err.count("Traceback") == 1 and "worker.py" not in err and out == ""
        assert process.returncode in (-signal.SIGINT, 130, 1)
        return
    assert process.returncode == -signal.SIGKILL, err
    with suppress(ProcessLookupError):
        wait_for_end(int(out))


def test_a_forked_process_has_processes_of_its_own(folder, tmp_path):
    process = start_script(tmp_path, folder / "whole.mp4", "fork")
    try:
        parent, child = int(process.stdout.readline()), int(process.stdout.readline())
        assert parent != child
        process.kill()  # the forked process lives on, and does not keep the process of its parent
        wait_for_end(parent)
        os.kill(child, 0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    with suppress(ProcessLookupError):
        wait_for_end(child)


# ---------------------------------------------------------------- what is no regular file


@pytest.mark.promise("files", "Only regular files are read")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, partial(os.symlink, "/dev/zero")])
def test_only_regular_files_are_read(make, tmp_path, folder):
    make(tmp_path / "b.mp4")
    for read in (read_frames, read_audio, read_subtitle):
        with pytest.raises(MediaError, match="b.mp4: not a regular file"):
            read(tmp_path / "b.mp4")
    clip = make_processor().read_clip(tmp_path / "b.mp4")
    assert clip.is_empty and len(clip.problems) == 1

    shutil.copy(folder / "whole.mp4", tmp_path / "c.mp4")
    make(tmp_path / "c.srt")
    clip = make_processor().read_clip(tmp_path / "c.mp4")
    assert clip.has("video") and clip.has("audio") and clip.subtitle is None
    assert len(clip.problems) == 1 and "c.srt: not a regular file" in clip.problems[0]


@pytest.mark.parametrize("name", ["nowhere.mp4", "null\0character.mp4", "n" * 300 + ".mp4", "whole.mp4/clip.mp4"])
def test_a_name_without_a_file_is_a_missing_file(folder, name):
    with pytest.raises(OSError):
        read_frames(folder / name)


def test_relative_paths_follow_the_working_directory(folder, tmp_path, monkeypatch):
    read_frames(folder / "whole.mp4", 1)
    monkeypatch.chdir(folder)  # after the decoder has started
    assert len(read_frames("whole.mp4", 3)) == 3
    with pytest.raises(MediaError, match="half.mp4: video"):
        read_frames("half.mp4", 3)


# ---------------------------------------------------------------- what a file can make its process open

LURES = [name for name, case in CORPUS.items() if case.kind.startswith("playlist")]


@pytest.mark.promise("files", "Reading a media file opens no file but it and its subtitles")
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("name", ["sidecar.mp4", *LURES])
def test_reading_a_file_opens_nothing_else(media_corpus, tmp_path, processes, monkeypatch, name):
    path, log = media_corpus / name, tmp_path / "log"
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f'#!/bin/sh\nexec strace -f -s 4096 -e trace=%file,%network,%process,write -o {log} {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))
    make_processor().read_clip(path)
    processes.close()
    lines = log.read_text().splitlines()
    ready = next(number for number, line in enumerate(lines) if "write(" in line and "ready" in line)
    calls = [line.split(maxsplit=1)[1] for line in lines[ready + 1 :]]
    calls = [call for call in calls if not call.startswith(("write(", "<...", "+++", "---", "exit", "clone", "wait"))]
    allowed = {str(path), str(path.with_suffix(".srt"))} if name == "sidecar.mp4" else {str(path)}
    opened = {found for call in calls for found in re.findall(r'"((?:[^"\\]|\\.)+)"', call)}
    assert opened == allowed
    assert {call.split("(")[0] for call in calls} <= {"openat", "open", "stat", "newfstatat", "lstat", "access"}


# ---------------------------------------------------------------- both readers

CHOOSE = partial(frame_indices, num_frames=4)
READ = {
    "frames": lambda reader, path: reader.read_frames(path, CHOOSE),
    "sound": lambda reader, path: reader.read_audio(path),
    "parts": lambda reader, path: reader.read_audio_parts(path, lambda available: [(0, available // 2)]),
    "words": lambda reader, path: reader.read_subtitle_of(path),
}
STOPPED = "the limit is "  # in the table: nobody knows how long the plain reader takes there, or how much it keeps
PROMISED = r"promises [\d.]+ (bytes|s|samples)"  # what the sandboxed reader alone compares


def answer(read, reader, path):
    """The class of an error, if there is one, and what is read or its words."""
    try:
        return None, read(reader, path)
    except (MediaError, OSError) as error:
        return type(error), str(error)


@pytest.mark.promise("files", "Both readers return the same, or both name the file")
@pytest.mark.parametrize("kind", sorted({case.kind for case in CORPUS.values() if not case.kind.startswith("bomb")}))
def test_both_readers_read_the_same(media_corpus, kind):
    plain, sandboxed = MediaReader(), SandboxedReader(Limits(time=1))
    errors = []
    for name in (name for name, case in CORPUS.items() if case.kind == kind and STOPPED not in str(case.says)):
        for what, read in READ.items():
            error, expected = answer(read, sandboxed, media_corpus / name)
            # A limit is not for this process to reach, whatever the table says.
            if error is LimitError or (error and re.search(PROMISED, expected)):
                continue
            other, found = answer(read, plain, media_corpus / name)
            assert other is error, (name, what, found)
            if error is None:
                np.testing.assert_equal(found, expected, err_msg=f"{name!r}: {what}")
            errors.append(error)
    assert errors.count(None) > 0 or len(errors) > 5


def test_damage_that_may_be_a_lack_of_memory_is_read_again_with_all_of_it(monkeypatch):
    def read_duration(reader, path):
        reader.pixels = 10**7
        reader._report("damaged")
        return 1.0

    monkeypatch.setattr(worker.LimitedReader, "read_duration", read_duration)
    request = {"method": "read_duration", "path": "a.mp4", "options": {}, "limits": Limits(), "calls": []}
    request["is_lenient"] = True
    answer = "result", (1.0, ["damaged"])
    for memory, expected in ((2**28, ("memory", None)), (2**30, answer)):
        assert worker._handle(request | {"memory": memory}, None) == expected
