"""What both readers read is the same, bit for bit, whatever the file."""

import os
import re
import subprocess
from functools import partial

import numpy as np
import pytest

from gallery.decoding import LimitError, Limits, SandboxedReader
from modeling_scalar.image_processing_scalar import frame_indices
from modeling_scalar.media_scalar import MediaError, MediaReader
from tests.gallery.decoding.test_program import write_media
from tests.media_corpus import CORPUS

pytestmark = pytest.mark.e2e

CHOOSE = partial(frame_indices, num_frames=4)
READ = {
    "frames": lambda reader, path: np.stack(frames) if (frames := reader.read_frames(path, CHOOSE)) else None,
    "sound": lambda reader, path: reader.read_audio(path),
    "parts": lambda reader, path: reader.read_audio_parts(path, lambda available: [(0, available // 2)]),
    "words": lambda reader, path: reader.read_subtitle_of(path),
}
STOPPED = "the limit is "  # in the table: nobody knows how long the plain reader takes there, or how much it keeps
PROMISED = r"promises [\d.]+ (bytes|s|samples)"  # what the sandboxed reader alone compares
LONG = 600 * 16_000
OF_ONE = {  # what the sandboxed reader alone reads
    (
        "frames",
        "samples_in_the_index.mp4",
    ),  # the damage is not in the frames that are chosen, nor in those before them
    ("words", "srt_utf16.mp4"),
    ("words", "srt_latin1.mp4"),
}


def answer(read, reader, path):
    """What is read, or the class and the words of the error."""
    try:
        return read(reader, path)
    except (MediaError, OSError) as error:
        return type(error), str(error)


def is_same(one, other):
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(one[0], list):
        return isinstance(other, tuple) and one[1] == other[1] and all(map(is_same, one[0], other[0]))
    if isinstance(one, tuple):  # the words of an error may differ
        return isinstance(other, tuple) and one[0] is other[0]
    return one == other


@pytest.mark.promise("files", "Both readers return the same, or both name the file")
@pytest.mark.parametrize("kind", sorted({case.kind for case in CORPUS.values() if not case.kind.startswith("bomb")}))
def test_both_readers_read_the_same(media_corpus, kind):
    plain, sandboxed = MediaReader(), SandboxedReader(Limits(time=1))
    faults, num_same, num_errors = [], 0, 0
    for name in (name for name, case in CORPUS.items() if case.kind == kind and STOPPED not in str(case.says)):
        for what, read in READ.items():
            expected = answer(read, sandboxed, media_corpus / name)
            is_error = isinstance(expected, tuple) and isinstance(expected[0], type)
            if is_error and (expected[0] is LimitError or re.search(PROMISED, expected[1])):
                continue  # the first is not for this process to read, whatever the table says
            if what == "parts" and not is_error and expected is not None and expected[1] > LONG:
                continue  # which the sandboxed reader finds by timestamps
            found = answer(read, plain, media_corpus / name)
            if (what, name) in OF_ONE:
                assert not is_error and found[0] is MediaError
            elif is_same(expected, found):
                num_same, num_errors = num_same + 1, num_errors + is_error
            else:
                faults.append(f"{name!r}: {what}: {expected!s:.300}, but {found!s:.300}")
    assert not faults, "\n".join(faults)
    assert num_same > num_errors or num_errors > 5


def test_a_plain_reader_keeps_one_whole_frame_at_a_time_and_makes_each_once(tmp_path):
    write_media(tmp_path / "clip.mp4", 10)
    begun, made = [], []

    def prepare(height, width):
        begun.append((height, width))
        return lambda picture: made.append(picture) or len(made)

    kept = MediaReader().read_frames(tmp_path / "clip.mp4", lambda n: [2, 2, 7, n - 1], prepare=prepare)
    assert begun == [(64, 64)] and kept == [1, 1, 2, 3] and len(made) == 3


def test_a_plain_reader_refuses_windows_and_says_which_reader_has_them(tmp_path):
    write_media(tmp_path / "clip.mp4", 10, seconds_of_audio=1.0)
    for read in (MediaReader().read_frames, MediaReader().read_audio):
        with pytest.raises(ValueError, match="processor.reader = gallery.decoding.SandboxedReader()"):
            read(tmp_path / "clip.mp4", window=(0, 1))


def test_a_plain_reader_starts_no_process_and_reads_no_pipe(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *_, **__: pytest.fail("started a process"))
    write_media(tmp_path / "clip.mp4", 10, seconds_of_audio=1.0)
    assert len(MediaReader().read_frames(tmp_path / "clip.mp4")) == 10
    os.mkfifo(tmp_path / "pipe.mp4")
    for read in (MediaReader().read_frames, MediaReader().read_audio, MediaReader().read_subtitle):
        with pytest.raises(MediaError, match="not a file but a pipe"):
            read(tmp_path / "pipe.mp4")
