"""The media files of `media_corpus`, one by one and all together, through everything that reads media files.

Each file gets its answer from the table; nothing hangs, crashes, takes the machine's memory or leaves anything behind.
"""

import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.gallery.store.windows import is_nothing
from scalar_retrieval.modeling_scalar.configuration_scalar import MODALITIES
from scalar_retrieval.search.sources import find_files
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

    reads: tuple[str, ...]
    problems: tuple[str, ...]
    seconds: float
    num_open: int


def _read_and_tell(model: str, folder: str, names: str) -> None:
    """Read files one after the other and print a line about each; the main program of a process of its own."""
    from scalar_retrieval.gallery.decoding import Limits, sandboxed
    from scalar_retrieval.modeling_scalar import MODALITIES, ScalarProcessor

    given = ScalarProcessor.from_pretrained(model)
    processors = [sandboxed(given, Limits(time=limit), on_error="missing") for limit in (LIMIT, 1)]
    for name in json.loads(Path(names).read_bytes()):
        processor, started = processors[any(TIME in part for part in CORPUS[name].says)], time.monotonic()
        try:
            clip = processor.read_clip(os.path.join(folder, name), processed=True)
        except OSError as error:  # there is no such file
            reads, problems = [], [str(error)]
        else:
            there = (clip.has("video"), clip.has("audio"), bool((clip.subtitle or "").strip()))
            reads = [modality for modality, is_there in zip(MODALITIES, there, strict=True) if is_there]
            problems = clip.problems
        answer = [reads, problems, time.monotonic() - started, len(os.listdir("/proc/self/fd"))]
        print(json.dumps([name, *answer]), flush=True)
    print(json.dumps(_family(os.getpid())[1:]), flush=True)


def _family(pid: int) -> list[int]:
    """A process and all that it has started, as far as they are alive."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry)] = int(parent)
    family = [pid] if pid in parents else []
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _wait_for_lines(running, least: int, seconds: float) -> list[str]:
    """The lines that a command has printed, as soon as there are more than `least`, or the time is over."""
    stop = time.monotonic() + seconds
    while True:
        *lines, _ = running.printed().split("\n")
        if len(lines) > least or time.monotonic() > stop:
            return lines
        time.sleep(0.05)


@pytest.fixture(scope="module")
def answers(commands, media_corpus, tiny_model_dir, tmp_path_factory):
    """What reading each file gives, in a process that is killed if a file takes too long."""
    todo, reported, folder = list(CORPUS), {}, tmp_path_factory.mktemp("answers")
    names = folder / "names.json"
    while todo:
        names.write_text(json.dumps(todo))
        running = commands.start(f"tests/{NAME}", tiny_model_dir, media_corpus, names)
        count = 0
        while count <= len(todo):
            lines = _wait_for_lines(running, count, SECONDS)
            if len(lines) == count:  # this file hangs, or has ended the process
                running.kill()
                ended = running.wait(60)
                reported[todo[count]] = Answer((), (f"NO ANSWER: {ended.code} {ended.stderr[-2000:]}",), SECONDS, 0)
                break
            for line in lines[count : len(todo)]:
                name, reads, problems, seconds, num_open = json.loads(line)
                reported[name] = Answer(tuple(reads), tuple(problems), seconds, num_open)
            if len(lines) > len(todo):
                reported[""] = json.loads(lines[-1])  # the decoders that were waiting for more
                assert running.wait(10).code == 0
            count = len(lines)
        todo = todo[count + 1 :]
    return reported


def _faults(name: str, answer: Answer, folder: Path) -> list[str]:
    """In what an answer differs from that of the table."""
    case, reported = CORPUS[name], answer.problems
    certain, possible = set(case.reads), {*case.reads, *case.perhaps}
    faults = []
    if not certain <= set(answer.reads) <= possible:
        faults.append(f"read {answer.reads}, not {case.reads}")
    if set(answer.reads) != possible or not case.perhaps:
        faults += [
            f"nobody says {part!r}" for part in case.says if not any(re.search(part, line) for line in reported)
        ]
    faults += [f"says {line!r}" for line in reported if not any(re.search(part, line) for part in case.says)]
    files = [os.path.join(folder, name), os.path.join(folder, os.path.splitext(name)[0])]
    faults += [f"{line!r} does not name the file" for line in reported if not any(file in line for file in files)]
    if answer.seconds > SECONDS:
        faults.append(f"took {answer.seconds:.1f} s")
    return [f"{name!r}: {fault}" for fault in faults]


@pytest.mark.promise("files", "Reading any file ends with its content or an error that names it")
@pytest.mark.parametrize("kind", sorted({case.kind for case in CORPUS.values()}))
def test_each_file_gets_the_answer_of_the_table(answers, media_corpus, kind):
    names = [name for name, case in CORPUS.items() if case.kind == kind]
    faults = [fault for name in names for fault in _faults(name, answers[name], media_corpus)]
    assert not faults, f"{len(faults)} of {len(names)} files:\n" + "\n".join(faults)


def test_reading_leaves_no_file_open_and_no_process_behind(answers):
    counts = [answers[name].num_open for name in CORPUS]
    assert max(counts) <= counts[0] + 2 * len(answers[""])  # the pipes to a decoder that is kept
    stop = time.monotonic() + 10
    while alive := [pid for pid in answers[""] if os.path.exists(f"/proc/{pid}")]:
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
IRREGULAR = ("pipe.mp4", "socket.mp4", "zero.mp4", "terminal.mp4", "nowhere.mp4", "link_to_itself.mp4")
INDEX = "-m scalar_retrieval.search index --segment none --model".split()
STRANGE = [name for name in CORPUS if not name.isprintable()]


def run(commands, *arguments, code=0, timeout=120):
    """Run a command; nothing but the expected has happened, and no name of a file could move the cursor."""
    outcome = commands.run(*arguments, timeout=timeout)
    assert outcome.code == code, f"{outcome.code}: {outcome.stdout[-3000:]}\n{outcome.stderr[-3000:]}"
    assert "Traceback" not in outcome.stderr
    reported = outcome.stdout + outcome.stderr
    assert not [name for name in STRANGE if name in reported]
    return outcome


@dataclass(frozen=True)
class Files:
    """Files of the corpus, what reading them gave, and checks of what the commands make of that."""

    commands: Commands
    model: Path
    folder: Path
    answers: dict[str, Answer]
    names: tuple[str, ...]
    timeout: float = 120

    def indexed_as(self, name: str) -> str:
        """The path under which a file is indexed: where a link leads, unless that is a pipe, a device or a folder."""
        real = os.path.realpath(self.folder / name)
        return str(self.folder / name) if os.path.exists(real) and not os.path.isfile(real) else real

    def check_index(self, paths: list[Path], output: Path) -> None:
        """Indexing tells what each file is due, a second time it changes nothing, and the gallery is whole."""
        arguments = [*INDEX, self.model, "--output", output, *paths]
        reported = run(self.commands, *arguments, timeout=self.timeout).stdout.splitlines()
        gallery = Gallery.open(output)
        self.check_gallery(gallery)
        whole, empty = len(gallery), sum(is_nothing(file.reason) for file in gallery.files.values())
        unreadable = len(gallery.files) - whole - empty
        end = f"{unreadable} unreadable"
        if empty:
            end += f", {empty} with nothing to embed"
        end += f"; {whole} clips in the gallery"
        assert reported[0] == f"{whole} new, 0 changed, 0 unchanged, {end}"
        lines = Counter(line.split(":")[0] for line in reported[1:] if not line.startswith("in the gallery"))
        partly = len(gallery.problems())
        assert lines == Counter({"unreadable": unreadable, "with nothing to embed": empty, "partly read": partly})
        run(self.commands, "-m", "scalar_retrieval.search", "verify", output)

        before = {file: file.read_bytes() for file in output.rglob("*") if file.is_file()}
        reported = run(self.commands, *arguments, timeout=self.timeout).stdout.splitlines()
        assert reported[0] == f"0 new, 0 changed, {whole} unchanged, {end}"
        assert not unreadable or reported[1].startswith(f"{unreadable} of the unreadable files failed before")
        assert before == {file: file.read_bytes() for file in output.rglob("*") if file.is_file()}
        run(self.commands, "-m", "scalar_retrieval.search", "info", output)

    def check_gallery(self, gallery: Gallery) -> None:
        """A gallery holds the clips that can be read and the reasons why the others cannot."""
        faults, presence = [], dict(zip(gallery.clip_ids, gallery.modality_mask.tolist(), strict=True))
        for name in self.names:
            file, reads = self.indexed_as(name), self.answers[name].reads
            expected = [modality in reads for modality in MODALITIES] if reads else None
            if presence.get(file) != expected:
                faults.append(f"{name!r}: {presence.get(file)}, not {expected}")
            reason, parts = gallery.files[file].reason, CORPUS[name].says or ("found none of",)
            if reads and reason is not None:
                faults.append(f"{name!r}: {reason}")
            if not reads:
                faults += [f"{name!r}: {part!r} is not in {reason!r}" for part in parts if not re.search(part, reason)]
        assert not faults, "\n".join(faults)
        assert set(gallery.files) == {self.indexed_as(name) for name in self.names}


@pytest.fixture(scope="module")
def few(commands, media_corpus, answers, tiny_model_dir):
    return Files(commands, tiny_model_dir, media_corpus, answers, FEW)


def test_indexing_hostile_files_keeps_the_good_and_names_the_others(few, tmp_path):
    few.check_index([few.folder / name for name in few.names], tmp_path / "gallery")


def test_what_is_no_regular_file_is_indexed_as_unreadable(few, tmp_path):
    folder, names = tmp_path / "videos", (*IRREGULAR, "srt_fifo.mp4", "srt_of_zero.mp4")
    folder.mkdir()
    for name in names:
        CORPUS[name].make(folder / name)
    replace(few, folder=folder, names=names).check_index([folder], tmp_path / "gallery")


@pytest.mark.slow
def test_indexing_the_whole_folder_keeps_the_good_and_names_the_others(few, tmp_path):
    names = tuple(name for name, case in CORPUS.items() if case.is_listed)
    taken = set(find_files([few.folder]))
    others = [few.folder / name for name in names if few.indexed_as(name) not in taken]
    replace(few, names=names, timeout=600).check_index([few.folder, *others], tmp_path / "gallery")


# ------------------------------------------------------------------------------------------ memory

HUNGRY = (
    "just_within.mkv", "8192_by_8192.mkv", "16000_by_16000.gif", "entries_of_stts.mp4", "ten_hours.mp3", "slow.wav",
    "compressed_index.mov", "srt_million_cues.mp4",
)  # fmt: skip


def _bytes_of(pid: int) -> int:
    """The memory of a process, of which shared pages count in parts: a child shares all of its parent's at first."""
    try:
        return 1024 * int(re.search(r"^Pss:\s*(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1])
    except (OSError, TypeError):  # it has ended
        return 0


@pytest.mark.promise("files", "Eight hostile files at once stay within the memory limit")
def test_eight_hungry_files_in_one_batch_stay_within_the_limit_of_memory(
    commands, media_corpus, tiny_model_dir, tmp_path
):
    files = [media_corpus / name for name in HUNGRY]
    running = commands.start(*INDEX, tiny_model_dir, "--output", tmp_path / "gallery", *files)
    most, stop = 0, time.monotonic() + 120
    while (family := _family(running.pid)) and time.monotonic() < stop:
        most = max(most, sum(map(_bytes_of, family)))
        time.sleep(0.05)
    assert running.wait(1).code == 0
    assert 1e8 < most < MEMORY, f"{most / 1e9:.2f} GB"


if __name__ == "__main__":
    _read_and_tell(*sys.argv[1:])
