"""The media files of `media_corpus`, one by one and all together, through everything that reads media files.

Each file gets its answer from the table; nothing hangs, crashes, takes the machine's memory or leaves anything behind.
"""

import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from gallery.gallery import Gallery
from modeling_scalar.command_scalar import plain
from modeling_scalar.configuration_scalar import MODALITIES
from search.indexing import EXTENSIONS
from tests.media_corpus import CORPUS, write_corpus

SECONDS = 20  # that reading one file may take, by the clock
MEMORY = 1.5e9  # bytes that a command and its decoders may take together
LIMIT = 4  # seconds of computing that the reader is allowed here: a file that takes long is to be met, not waited for
NAME = "test_broken_media.py"
LIMITS = ()

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


# ------------------------------------------------------------------------------------------ reading file by file


@dataclass(frozen=True)
class Answer:
    """What reading gave: the modalities, the problems told, the seconds it took, and what it left open."""

    reads: tuple[str, ...]
    problems: tuple[str, ...]
    seconds: float
    num_open: int


def _read_and_tell(model: str, folder: str, names: str) -> None:
    """Read files one after the other and print a line about each; the main program of a process of its own."""
    from modeling_scalar import MODALITIES, Limits, ScalarProcessor

    processor = ScalarProcessor.from_pretrained(model)
    processor.limits = Limits(time=LIMIT)
    for name in json.loads(Path(names).read_bytes()):
        started = time.monotonic()
        try:
            clip = processor.read_clip(os.path.join(folder, name), on_error="missing", processed=True)
        except OSError as error:  # there is no such file
            reads, problems = [], [str(error)]
        else:
            there = (clip.has_video, clip.has_audio, bool((clip.subtitle or "").strip()))
            reads = [modality for modality, is_there in zip(MODALITIES, there, strict=True) if is_there]
            problems = clip.problems
        answer = [reads, problems, time.monotonic() - started, len(os.listdir("/proc/self/fd"))]
        print(json.dumps([name, *answer]), flush=True)
    print(json.dumps(_family(os.getpid())[1:]), flush=True)


def _family(pid: int) -> list[int]:
    """A process and what it has started, as far as it is alive."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry)] = int(parent)
    family = [pid]
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
def corpus(commands, tmp_path_factory):
    """The folder of all the files."""
    folder = tmp_path_factory.mktemp("media")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def answers(commands, corpus, tiny_model_dir, tmp_path_factory):
    """What reading each file gives, in a process that is killed if a file takes too long."""
    todo, told, folder = list(CORPUS), {}, tmp_path_factory.mktemp("answers")
    names = folder / "names.json"
    while todo:
        names.write_text(json.dumps(todo))
        running = commands.start(f"tests/{NAME}", tiny_model_dir, corpus, names)
        count = 0
        while count <= len(todo):
            lines = _wait_for_lines(running, count, SECONDS)
            if len(lines) == count:  # this file hangs, or has ended the process
                running.kill()
                ended = running.wait(60)
                told[todo[count]] = Answer((), (f"NO ANSWER: {ended.code} {ended.stderr[-2000:]}",), SECONDS, 0)
                break
            for line in lines[count : len(todo)]:
                name, reads, problems, seconds, num_open = json.loads(line)
                told[name] = Answer(tuple(reads), tuple(problems), seconds, num_open)
            if len(lines) > len(todo):
                told[""] = json.loads(lines[-1])  # the decoders that were waiting for more
                assert running.wait(10).code == 0
            count = len(lines)
        todo = todo[count + 1 :]
    return told


def _faults(name: str, answer: Answer, folder: Path) -> list[str]:
    """In what an answer differs from that of the table."""
    case, told = CORPUS[name], answer.problems
    certain, possible = set(case.reads), {*case.reads, *case.perhaps}
    faults = []
    if not certain <= set(answer.reads) <= possible:
        faults.append(f"read {answer.reads}, not {case.reads}")
    if set(answer.reads) != possible or not case.perhaps:
        faults += [f"nobody says {part!r}" for part in case.says if not any(re.search(part, line) for line in told)]
    faults += [f"says {line!r}" for line in told if not any(re.search(part, line) for part in case.says)]
    files = [os.path.join(folder, name), os.path.join(folder, os.path.splitext(name)[0])]
    faults += [f"{line!r} does not name the file" for line in told if not any(file in line for file in files)]
    if answer.seconds > SECONDS:
        faults.append(f"took {answer.seconds:.1f} s")
    return [f"{name!r}: {fault}" for fault in faults]


def test_the_table_holds_every_kind_of_file_and_of_answer():
    assert len(CORPUS) >= 150
    assert min(Counter(case.kind for case in CORPUS.values()).values()) >= 8
    answers = {case.reads for case in CORPUS.values()}
    assert {(), ("video",), ("audio",), ("video", "audio"), ("video", "subtitle"), ("video", "audio", "subtitle")} == (
        answers
    )
    said = [part for case in CORPUS.values() for part in case.says]
    for part in ("pixels", "duration", "memory", "time", "regular file", "not a readable", "promises", "changes its"):
        assert any(part in line for line in said), part
    assert any(case.reads and case.says for case in CORPUS.values())  # one modality is kept, the other is named


@pytest.mark.parametrize("kind", sorted({case.kind for case in CORPUS.values()}))
def test_each_file_gets_the_answer_of_the_table(answers, corpus, kind):
    names = [name for name, case in CORPUS.items() if case.kind == kind]
    faults = [fault for name in names for fault in _faults(name, answers[name], corpus)]
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
    "h264_aac.mp4", "mpeg4_mp3.avi", "pcm.aiff", "one_frame.mp4", "sidecar.mp4", "text_track.mkv", "just_too_short.wav",
    "nothing_at_all.mp4", "text_alone.mkv", "50_percent_index_first.mp4", "90_percent_cluster.mkv", "empty.mp4",
    "pickle.mp4", "concat.mp4", "reference_by_alias.mov", "noise_in_the_picture.mp4", "noise_in_both.mp4",
    "size_changes.ts", "entries_of_stts.mp4", "nested_boxes.mp4", "unknown_codec.mkv", "compressed_index.mov",
    "8192_by_8192.mp4", "16000_by_16000.mkv", "ten_hours.aac", "not_a_number.wav", "duration_absurd.ogg",
    "title_of_controls.mp4", "srt_utf16.mp4", "srt_million_cues.mp4", "srt_fifo.mp4", "track_not_utf8.mkv",
    "-y.mp4", "new\nline.mp4", "\x1b[31mred\x1b[0m.mp4", "broken \x1b[2J\nname.mp4", "x" * 251 + ".mp4", "a:b.mp4",
    "second_name.mp4",
)  # fmt: skip
IRREGULAR = ("pipe.mp4", "socket.mp4", "zero.mp4", "terminal.mp4", "nowhere.mp4", "link_to_itself.mp4")


def run(commands, *arguments, code=0, timeout=120):
    """Run a command; nothing but the expected has happened, and all that it prints can be shown on a terminal."""
    outcome = commands.run(*arguments, timeout=timeout)
    assert outcome.code == code, f"{outcome.code}: {outcome.stdout[-3000:]}\n{outcome.stderr[-3000:]}"
    assert "Traceback" not in outcome.stderr
    strange = {char for char in outcome.stdout + outcome.stderr if not char.isprintable()} - {"\n", "\r"}
    assert not strange, strange
    return outcome


def indexed_as(folder, name):
    """Under which path a file is indexed: the one that a link leads to, or that of a link that leads to no file."""
    real = os.path.realpath(folder / name)
    return real if os.path.isfile(real) else str(folder / name)


def check_gallery(path, names, folder, answers):
    """A gallery holds the clips and the reasons that these files are due."""
    gallery = Gallery.open(path)
    presence = dict(zip(gallery.clip_ids, gallery.modality_mask.tolist(), strict=True))
    faults = []
    for name in names:
        answer, file = answers[name], indexed_as(folder, name)
        if answer.reads:
            expected = [modality in answer.reads for modality in MODALITIES]
            if presence.get(file) != expected or gallery.files[file].reason is not None:
                faults.append(f"{name!r}: {presence.get(file)}, not {expected}")
        else:
            reason = gallery.files[file].reason or ""
            parts = CORPUS[name].says or ("no picture, no sound and no subtitles",)
            faults += [f"{name!r}: {part!r} is not in {reason!r}" for part in parts if not re.search(part, reason)]
            faults += [f"{name!r} is a clip"] if file in presence else []
    assert not faults, "\n".join(faults)
    assert len(gallery) == len({indexed_as(folder, name) for name in names if answers[name].reads})
    assert len(gallery.files) == len({indexed_as(folder, name) for name in names})
    return gallery


def check_index(commands, paths, names, folder, answers, model, output, timeout):
    """Indexing tells what each file is due, a second time does nothing, and the gallery is whole."""
    arguments = ["-m", "search", "index", *paths, "--model", model, "--output", output, *LIMITS]
    outcome = run(commands, *arguments, timeout=timeout)
    gallery = check_gallery(output, names, folder, answers)
    num_bad = len(gallery.files) - len(gallery)
    first, *lines = outcome.stdout.splitlines()
    assert (
        first
        == f"{len(gallery)} new, 0 changed, 0 unchanged, {num_bad} unreadable; {len(gallery)} clips in the gallery"
    )
    assert sum(line.startswith("unreadable: ") for line in lines) == num_bad
    assert sum(line.startswith("partly read: ") for line in lines) == len(gallery.problems())
    assert len(lines) == num_bad + len(gallery.problems())
    run(commands, "-m", "search", "verify", output)
    before = {file: file.read_bytes() for file in sorted(output.rglob("*")) if file.is_file()}
    first, second, *_ = run(commands, *arguments, timeout=timeout).stdout.splitlines()
    assert (
        first
        == f"0 new, 0 changed, {len(gallery)} unchanged, {num_bad} unreadable; {len(gallery)} clips in the gallery"
    )
    assert second.startswith(f"{num_bad} of the unreadable failed before")
    assert before == {file: file.read_bytes() for file in sorted(output.rglob("*")) if file.is_file()}
    run(commands, "-m", "search", "info", output)
    return gallery


@pytest.fixture(scope="module")
def gallery(commands, corpus, answers, tiny_model_dir, tmp_path_factory):
    """A gallery of the chosen files, checked."""
    output = tmp_path_factory.mktemp("few") / "gallery"
    names = [*FEW, *IRREGULAR]
    check_index(
        commands, [corpus / name for name in FEW], names[: len(FEW)], corpus, answers, tiny_model_dir, output, 120
    )
    return output


def test_indexing_hostile_files_keeps_the_good_and_names_the_others(gallery):
    assert len(Gallery.open(gallery)) > 10


def test_what_is_no_regular_file_is_indexed_as_unreadable(commands, corpus, answers, tiny_model_dir, tmp_path):
    (tmp_path / "videos").mkdir()
    for name in (*IRREGULAR, "h264_aac.mp4"):
        CORPUS[name].make(tmp_path / "videos" / name)
    names = [*IRREGULAR, "h264_aac.mp4"]
    check_index(
        commands, [tmp_path / "videos"], names, tmp_path / "videos", answers, tiny_model_dir, tmp_path / "gallery", 60
    )


@pytest.mark.slow
def test_indexing_the_whole_folder_keeps_the_good_and_names_the_others(
    commands, corpus, answers, tiny_model_dir, tmp_path
):
    names = [name for name, case in CORPUS.items() if case.is_listed]
    others = [corpus / name for name in names if os.path.splitext(name)[1].lower() not in EXTENSIONS]
    check_index(commands, [corpus, *others], names, corpus, answers, tiny_model_dir, tmp_path / "gallery", 600)


@pytest.mark.parametrize("name", ["pickle.mp4", "noise_in_the_picture.mp4", "pipe.mp4", "broken \x1b[2J\nname.mp4"])
def test_raise_stops_indexing_at_a_broken_file_and_names_it(commands, corpus, tiny_model_dir, tmp_path, name):
    arguments = ["--model", tiny_model_dir, "--output", tmp_path / "gallery", "--on-error", "raise"]
    outcome = run(commands, "-m", "search", "index", corpus / name, *arguments, code=1)
    assert outcome.stderr.splitlines()[-1].startswith("Error: ") and plain(name)[-8:] in outcome.stderr


def rows_of(names, folder, path):
    """Write a table of clips that name these files and have a subtitle."""
    rows = [
        {"video_id": name, "caption": f"a dog {number}", "video_path": str(folder / name), "subtitle": "hello"}
        for number, name in enumerate(names)
    ]
    path.write_text(json.dumps(rows))
    return path


def in_a_table(names, folder):
    """Which files a table in UTF-8 can name and is not refused for."""
    return [name for name in names if name.isprintable() | ("\udcff" not in name) and os.path.isfile(folder / name)]


def check_audit(commands, names, folder, answers, tmp_path, timeout):
    table = rows_of(names, folder, tmp_path / "table.json")
    arguments = ["--benchmark", "own", "--root", table, "--output", tmp_path / "audit.json", *LIMITS]
    run(commands, "-m", "eval", "audit", *arguments, code=1, timeout=timeout)
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["num_clips"] == len(names) and report["missing_clips"] == []
    for modality in ("video", "audio"):
        assert report["without"][modality] == [name for name in names if modality not in answers[name].reads]
    told = [
        name for name in names if any("subtitle" not in line and ".srt" not in line for line in answers[name].problems)
    ]
    unreadable = [name for name in told if any(line.startswith(f"{name}: ") for line in report["unreadable"])]
    assert set(told) - set(unreadable) <= {
        name for name in names if any("audio of" in line for line in answers[name].problems)
    }


def test_an_audit_of_hostile_files_ends_and_says_what_each_lacks(commands, corpus, answers, tmp_path):
    check_audit(commands, FEW, corpus, answers, tmp_path, 120)


@pytest.mark.slow
def test_an_audit_of_all_files_ends_and_says_what_each_lacks(commands, corpus, answers, tmp_path):
    check_audit(commands, in_a_table(CORPUS, corpus), corpus, answers, tmp_path, 600)


def check_embedding(commands, names, folder, answers, model, tmp_path, timeout):
    table = rows_of(names, folder, tmp_path / "table.json")
    arguments = ["--benchmark", "own", "--root", table, "--output", tmp_path / "embeddings", "--model", model]
    arguments += ["--on-error", "missing", *LIMITS]
    run(commands, "-m", "eval", "embed", *arguments, timeout=timeout)
    gallery = Gallery.open(tmp_path / "embeddings")
    assert list(gallery.clip_ids) == list(names)
    expected = [[*(modality in answers[name].reads for modality in MODALITIES[:2]), True] for name in names]
    assert gallery.modality_mask.tolist() == expected
    gallery.verify()


def test_hostile_files_are_embedded_with_what_can_be_read(commands, corpus, answers, tiny_model_dir, tmp_path):
    check_embedding(commands, FEW, corpus, answers, tiny_model_dir, tmp_path, 120)


@pytest.mark.slow
def test_all_files_are_embedded_with_what_can_be_read(commands, corpus, answers, tiny_model_dir, tmp_path):
    check_embedding(commands, in_a_table(CORPUS, corpus), corpus, answers, tiny_model_dir, tmp_path, 600)


def test_training_reads_hostile_files_and_goes_on(commands, corpus, tiny_model_dir, tmp_path):
    table = rows_of(FEW, corpus, tmp_path / "table.json")
    run(
        commands, "train.py", Path("recipes/gram.yaml").absolute(), "--model", tiny_model_dir, "--benchmark", "own",
        "--root", table, "--output_dir", tmp_path / "run", "--on_error", "missing", "--max_steps", 1, "--use_cpu", "true",
        "--per_device_train_batch_size", len(FEW), "--report_to", "none", "--dataloader_num_workers", 0,
        "--disable_tqdm", "true", "--fp16", "false",
    )  # fmt: skip
    assert (tmp_path / "run" / "adapter_model.safetensors").is_file()


def test_what_was_read_of_hostile_files_can_be_published(commands, gallery, tmp_path):
    arguments = [
        "--media",
        "--dry-run",
        "--model",
        "unknown",
        "--license",
        "cc0-1.0",
        "--output",
        tmp_path / "published",
    ]
    run(commands, "-m", "hub_cards", "push-gallery", gallery, "user/name", *arguments)
    copied = [file for file in (tmp_path / "published" / "media").rglob("*") if file.is_file()]
    assert len(copied) >= len(Gallery.open(gallery))


# ------------------------------------------------------------------------------------------ memory

HUNGRY = (
    "8192_by_8192.mkv", "16000_by_16000.gif", "30000_by_30000.mkv", "grows.mkv", "ten_hours.mp3", "slow.wav",
    "compressed_index.mov", "srt_million_cues.mp4",
)  # fmt: skip


def _bytes_of(pid: int) -> int:
    """The memory of a process, shared pages divided among those that share them."""
    try:
        return 1024 * int(re.search(r"^Pss: *(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1])
    except (OSError, TypeError):  # it has ended
        return 0


def test_eight_hungry_files_in_one_batch_stay_within_the_limit_of_memory(commands, corpus, tiny_model_dir, tmp_path):
    files = [corpus / name for name in HUNGRY]
    arguments = ["--model", tiny_model_dir, "--output", tmp_path / "gallery", "--batch-size", 8, *LIMITS]
    running = commands.start("-m", "search", "index", *files, *arguments)
    stop, most, family = time.monotonic() + 120, 0, [running.pid]
    while len(family := _family(running.pid)) > 0 and os.path.exists(f"/proc/{running.pid}"):
        most = max(most, sum(map(_bytes_of, family)))
        assert time.monotonic() < stop
        time.sleep(0.03)
    assert running.wait().code == 0
    assert 100e6 < most < MEMORY, f"{most / 1e9:.2f} GB"


if __name__ == "__main__":
    _read_and_tell(*sys.argv[1:])
