"""The media files of `media_corpus`, one by one and all together, through everything that reads media files.

Each file gets its answer from the table; nothing hangs, crashes, takes the machine's memory or leaves anything behind.
"""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import psutil
import pytest

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.windows import is_nothing
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from tests.commands import Commands
from tests.media_corpus import CORPUS, TIME

SECONDS = 20  # that reading one file may take, by the clock
MEMORY = 1.5e9  # bytes that a command and its decoders may take together
# Seconds of computing that the reader is allowed here, one where the table says that it reaches the limit: a file that
# takes long is to be met, not waited for.
LIMIT = 4
NAME = "test_broken_media.py"

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]


# ------------------------------------------------------------------------------------------ reading file by file


@dataclass(frozen=True)
class Answer:
    """What reading gave: the modalities, the problems reported, the seconds it took, and what it left open."""

    reads: list[str]
    problems: list[str]
    seconds: float
    num_open: int


def _read_and_tell(model: str, folder: str) -> None:
    """Read all files one after the other and print a line about each; the main program of a process of its own."""
    from scalar_retrieval.gallery.decoding import Limits, sandboxed
    from scalar_retrieval.modeling_scalar import ScalarProcessor

    given = ScalarProcessor.from_pretrained(model)
    processors = [sandboxed(given, Limits(time=limit), on_error="missing") for limit in (LIMIT, 1)]
    for name, case in CORPUS.items():
        signal.alarm(SECONDS)  # which ends this process
        processor, started = processors[any(TIME in part for part in case.says)], time.monotonic()
        try:
            clip = processor.read_clip(os.path.join(folder, name), processed=True)
        except OSError as error:  # there is no such file
            reads, problems = [], [str(error)]
        else:
            there = (clip.has("video"), clip.has("audio"), bool((clip.subtitle or "").strip()))
            reads, problems = list(compress(MODALITIES, there)), clip.problems
        print(json.dumps([reads, problems, time.monotonic() - started, len(os.listdir("/proc/self/fd"))]), flush=True)
    print(json.dumps([decoder.pid for decoder in psutil.Process().children(recursive=True)]))


@pytest.fixture(scope="module")
def told(commands, media_corpus, tiny_model_dir):
    """What reading each file gives, and the decoders that were waiting for more."""
    outcome = commands.run(f"tests/{NAME}", tiny_model_dir, media_corpus, timeout=600)
    *lines, family = map(json.loads, outcome.stdout.splitlines())
    assert len(lines) == len(CORPUS), f"reading {[*CORPUS][len(lines) + 1]!r} does not end: {outcome.stderr[-2000:]}"
    assert outcome.code == 0
    return {name: Answer(*line) for name, line in zip(CORPUS, lines, strict=True)}, family


@pytest.fixture(scope="module")
def answers(told):
    return told[0]


def _faults(name: str, answer: Answer, folder: Path) -> list[str]:
    """In what an answer differs from that of the table."""
    case, faults = CORPUS[name], []
    certain, possible = set(case.reads), {*case.reads, *case.perhaps}
    if not certain <= set(answer.reads) <= possible:
        faults.append(f"read {answer.reads}, not {case.reads}")
    if set(answer.reads) != possible or not case.perhaps:
        said = "\n".join(answer.problems)
        faults += [f"nobody says {part!r}" for part in case.says if not re.search(part, said)]
    file = os.path.join(folder, os.path.splitext(name)[0])  # or its subtitles
    for line in answer.problems:
        if file not in line or not any(re.search(part, line) for part in case.says):
            faults.append(f"says {line!r}")
    if answer.seconds > SECONDS:
        faults.append(f"took {answer.seconds:.1f} s")
    return [f"{name!r}: {fault}" for fault in faults]


@pytest.mark.promise("files", "Reading any file ends with its content or an error that names it")
@pytest.mark.parametrize("kind", sorted({case.kind for case in CORPUS.values()}))
def test_each_file_gets_the_answer_of_the_table(answers, media_corpus, kind):
    names = [name for name, case in CORPUS.items() if case.kind == kind]
    faults = [fault for name in names for fault in _faults(name, answers[name], media_corpus)]
    assert not faults, f"{len(faults)} of {len(names)} files:\n" + "\n".join(faults)


def test_reading_leaves_no_file_open_and_no_process_behind(told):
    answers, decoders = told
    counts = [answer.num_open for answer in answers.values()]
    assert max(counts) <= counts[0] + 2 * len(decoders)  # the pipes to a decoder that is kept
    stop = time.monotonic() + 10
    while alive := [pid for pid in decoders if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < stop, f"{alive} go on"
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------ all through the commands

# Of each kind what is most likely to end a run; with the whole corpus, the commands below take minutes.
FEW = (
    "h264_aac.mp4", "mpeg4_mp3.avi", "pcm.aiff", "one_frame.mp4", "sidecar.mp4", "text_track.mkv", "text_alone.mkv",
    "just_too_short.wav", "nothing_at_all.mp4", "50_percent_index_first.mp4", "90_percent_cluster.mkv", "empty.mp4",
    "pickle.mp4", "concat.mp4", "reference_by_url.mov", "noise_in_the_picture.mp4", "noise_in_both.mp4", "-y.mp4",
    "size_changes.ts", "entries_of_stts.mp4", "unknown_codec.mkv", "8192_by_8192.mp4", "a:b.mp4",
    "16000_by_16000.mkv", "not_a_number.wav", "duration_absurd.ogg", "title_of_controls.mp4", "srt_utf16.mp4",
    "srt_million_cues.mp4", "track_not_utf8.mkv", "new\nline.mp4", "\x1b[31mred\x1b[0m.mp4", "second_name.mp4",
    "broken \x1b[2J\nname.mp4", "x" * 251 + ".mp4",
)  # fmt: skip
IRREGULAR = (
    "pipe.mp4", "socket.mp4", "zero.mp4", "terminal.mp4", "nowhere.mp4", "link_to_itself.mp4", "srt_fifo.mp4",
    "srt_of_zero.mp4",
)  # fmt: skip
INDEX = "-m scalar_retrieval.search index --segment none --model".split()
STRANGE = [name for name in CORPUS if not name.isprintable()]


def run(commands, *arguments):
    """Run a command, which ends well; no name of a file could move the cursor. Return the lines that it printed."""
    outcome = commands.run(*arguments, timeout=120)
    assert outcome.code == 0, f"{outcome.stdout[-3000:]}\n{outcome.stderr[-3000:]}"
    reported = outcome.stdout + outcome.stderr
    assert not [name for name in STRANGE if name in reported]
    return outcome.stdout.splitlines()


def indexed_as(path: Path) -> str:
    """The path under which a file is indexed: where a link leads, unless that is a pipe, a device or a folder."""
    real = os.path.realpath(path)
    return str(path) if os.path.exists(real) and not os.path.isfile(real) else real


def check_gallery(gallery: Gallery, folder: Path, answers: dict[str, Answer]) -> None:
    """A gallery holds the clips that can be read and the reasons why the others cannot."""
    places = {name: indexed_as(folder / name) for name in answers}
    assert set(gallery.files) == set(places.values())
    expected = {}
    for name, answer in answers.items():
        reason = gallery.files[places[name]].reason
        if answer.reads:
            assert reason is None, name
            expected[places[name]] = [modality in answer.reads for modality in MODALITIES]
        else:
            for part in CORPUS[name].says or ("found none of",):
                assert re.search(part, reason), f"{name!r}: {part!r} is not in {reason!r}"
    assert dict(zip(gallery.clip_ids, gallery.modality_mask.tolist(), strict=True)) == expected


def check_index(
    commands: Commands, model: Path, answers: dict[str, Answer], folder: Path, given: list[Path], output: Path
) -> None:
    """Indexing tells what each file is due, a second time it changes nothing, and the gallery is whole."""
    arguments = [*INDEX, model, "--output", output, *given]
    reported = run(commands, *arguments)
    gallery = Gallery.open(output)
    check_gallery(gallery, folder, answers)
    whole, empty = len(gallery), sum(is_nothing(file.reason) for file in gallery.files.values())
    unreadable = len(gallery.files) - whole - empty
    assert reported[0].startswith(f"{whole} new, 0 changed, 0 unchanged, {unreadable} unreadable")
    lines = Counter(line.split(":")[0] for line in reported[1:] if not line.startswith("in the gallery"))
    partly = len(gallery.problems())
    assert lines == Counter({"unreadable": unreadable, "with nothing to embed": empty, "partly read": partly})
    run(commands, "-m", "scalar_retrieval.search", "verify", output)

    before = {file: file.read_bytes() for file in output.rglob("*") if file.is_file()}
    reported = run(commands, *arguments)
    assert reported[0].startswith(f"0 new, 0 changed, {whole} unchanged, {unreadable} unreadable")
    assert before == {file: file.read_bytes() for file in output.rglob("*") if file.is_file()}


def test_indexing_hostile_files_keeps_the_good_and_names_the_others(
    commands, tiny_model_dir, media_corpus, answers, tmp_path
):
    few = {name: answers[name] for name in FEW}
    paths = [media_corpus / name for name in FEW]
    check_index(commands, tiny_model_dir, few, media_corpus, paths, tmp_path / "gallery")


def test_what_is_no_regular_file_is_indexed_as_unreadable(commands, tiny_model_dir, answers, tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in IRREGULAR:
        CORPUS[name].make(folder / name)
    irregular = {name: answers[name] for name in IRREGULAR}
    check_index(commands, tiny_model_dir, irregular, folder, [folder], tmp_path / "gallery")


# ------------------------------------------------------------------------------------------ memory

HUNGRY = (
    "just_within.mkv", "8192_by_8192.mkv", "16000_by_16000.gif", "entries_of_stts.mp4", "ten_hours.mp3", "slow.wav",
    "compressed_index.mov", "srt_million_cues.mp4",
)  # fmt: skip


def _bytes_of(process: psutil.Process) -> int:
    """The memory of a process and of all that it has started; of what they share, each has a part."""
    number = 0
    with suppress(psutil.NoSuchProcess):
        for member in (process, *process.children(recursive=True)):
            number += member.memory_full_info().pss
    return number


@pytest.mark.promise("files", "Eight hostile files at once stay within the memory limit")
def test_eight_hungry_files_in_one_batch_stay_within_the_limit_of_memory(
    commands, media_corpus, tiny_model_dir, tmp_path
):
    files = [media_corpus / name for name in HUNGRY]
    running = commands.start(*INDEX, tiny_model_dir, "--output", tmp_path / "gallery", *files)
    process, most, stop = psutil.Process(running.pid), 0, time.monotonic() + 120
    while process.is_running() and time.monotonic() < stop:
        most = max(most, _bytes_of(process))
        time.sleep(0.05)
    assert running.wait(1).code == 0
    assert 1e8 < most < MEMORY, f"{most / 1e9:.2f} GB"


if __name__ == "__main__":
    _read_and_tell(*sys.argv[1:])
