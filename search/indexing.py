"""From files to a gallery: find them, read them with the processor, embed them with the model, keep what is known.

A file is embedded once, and again only when its content changes. What cannot be read is recorded, never dropped.
"""

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock

from tqdm import tqdm
from transformers import PreTrainedModel

from gallery.decoding import LIGHT_MEMORY, LimitError, Limits, SandboxedReader, num_processors, sandboxed
from gallery.embedding import Embedded, batches_ahead, check_reading, embed_batches, in_batches
from gallery.gallery import GalleryWriter, MediaFile
from gallery.media import clip_sha256, clip_stat, mark_of, unchanged_since
from gallery.parallel import Crew
from gallery.windows import PARTLY, SEGMENT, SLIVER, UNFINISHED, clip_id_of, place_of_clip, seconds_of, windows_of
from modeling_scalar.media_scalar import Window
from modeling_scalar.processing_scalar import Clip, ScalarProcessor
from search.known import Known
from search.speech import Speech, SpeechError, SpeechRecognizer
from search.vanished import in_doubt, is_gone

EXTENSIONS = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .flv .wmv .ogv .3gp .wav .mp3 .m4a .flac .ogg".split()
)
"""What is taken from a folder; a file named explicitly is taken whatever its extension."""


@dataclass
class IndexReport:
    """What one run did. Every file given is in exactly one of `new`, `changed`, `unchanged` and `unreadable`, unless
    it is gone or out of reach and its clips are kept: then it is in `vanished` or `out_of_reach` alone.

    `problems` lists files of this run of which some stream could not be read, and files of which some window could
    not, in this run or before; `not_retried` are those files, and the `unreadable` ones, that failed in an earlier run
    and have not changed since; `dropped` are those `unreadable` ones of which there were clips; `cut` are files
    of this run of which the encoder hears the beginning alone, `transcribed` those of which the subtitles are a
    transcript; `out_of_reach` says why nobody knows whether files are there, or what they hold now. `vanished` are
    files that are gone, `pruned` says whether their clips were taken out, but for the `doubtful` ones: nothing is left
    where they lay, as if a drive had been taken away.
    """

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unreadable: list[MediaFile] = field(default_factory=list)
    not_retried: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    transcribed: list[str] = field(default_factory=list)
    out_of_reach: dict[str, str] = field(default_factory=dict)
    vanished: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    pruned: bool = False

    def add(self, later: "IndexReport") -> None:
        """Take in what a later run did to the same gallery: what is wrong with a file is what it said last."""
        lacking = {file.path for file in later.unreadable}
        met = {*later.new, *later.changed, *later.unchanged, *lacking}
        self.new = [path for path in dict.fromkeys(self.new + later.new) if path not in lacking]
        seen = lacking.union(self.new)
        self.changed = [path for path in dict.fromkeys(self.changed + later.changed) if path not in seen]
        seen.update(self.changed)
        self.unchanged = [path for path in dict.fromkeys(self.unchanged + later.unchanged) if path not in seen]
        self.unreadable = [file for file in self.unreadable if file.path not in met] + later.unreadable
        self.not_retried = [path for path in self.not_retried if path not in met] + later.not_retried
        self.dropped = [path for path in self.dropped if path not in met or path in lacking] + later.dropped
        self.problems = {path: told for path, told in self.problems.items() if path not in met} | later.problems
        self.cut = [path for path in self.cut if path not in met] + later.cut
        self.transcribed = [path for path in self.transcribed if path not in met] + later.transcribed
        met.update(later.out_of_reach, later.vanished)
        self.out_of_reach = {path: why for path, why in self.out_of_reach.items() if path not in met}
        self.out_of_reach |= later.out_of_reach
        # Those that are kept are told again by every run.
        met.update(self.doubtful)
        gone = [path for path in self.vanished if later.pruned and path not in met]
        self.vanished, self.doubtful, self.pruned = gone + later.vanished, later.doubtful, later.pruned


def find_files(paths: Iterable[str | os.PathLike], recursive: bool = True) -> list[str]:
    """List the files that `paths` (files and folders) stand for, absolute, free of symbolic links, each once.

    Raises:
        FileNotFoundError: a path does not exist.
        OSError: a folder cannot be listed.
    """
    found, visited = {}, set()
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"There is no file or folder {str(path)!r}.")
        if not path.is_dir():
            found[real_path(path)] = None
            continue
        for folder, subfolders, names in os.walk(path, onerror=_reraise, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited or not recursive:
                subfolders.clear()  # linked folders are followed once, so a circle of links ends
            visited.add(real)
            subfolders.sort()
            for name in sorted(names):
                if os.path.splitext(name)[1].lower() in EXTENSIONS:
                    found[real_path(os.path.join(folder, name))] = None
    return list(found)


def real_path(path: str | os.PathLike) -> str:
    """The file that a link leads to; one that leads to anything else is reported by its own name."""
    real = os.path.realpath(path)
    return os.path.abspath(path) if os.path.exists(real) and not os.path.isfile(real) else real


def _reraise(error: OSError) -> None:
    raise error


def _look(path: str, subtitle: str | None) -> tuple[MediaFile, bool]:
    """What is noted of a file before it is read; without a hash, and with the reason, if it cannot be looked at. And
    whether it is out of reach, so that nobody knows what it holds now."""
    try:
        return MediaFile(path, *clip_stat(path, subtitle), clip_sha256(path, subtitle)), False
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).removeprefix(f"{path}: ")
        return _unseen(path, reason), isinstance(error, OSError)


def _joined(sentences: Sequence[str]) -> str:
    """Sentences in one."""
    return "; ".join([sentence.rstrip(".") for sentence in sentences[:-1]] + list(sentences[-1:]))


def _unseen(path: str, reason: str) -> MediaFile:
    """What is noted of a file that cannot be looked at: as it has no hash, it is read as soon as it can be."""
    return MediaFile(path, 0, 0, "", reason)


def _is_out_of_reach(path: str) -> bool:
    """Whether a file is gone, or where it lies cannot be reached, as with a drive that was taken away."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe could take forever
            with open(path, "rb") as file:
                file.read(1)
    except OSError:
        return True
    return False


def default_workers(num_processes: int = 1) -> int:
    """How many clips are read at a time by each of so many processes of a machine: together some more than there are
    processors, as a decoder waits while its clip is prepared here."""
    return 1 + max(1, 3 * num_processors() // (2 * num_processes))


def memory_of_decoders(num_workers: int, num_processes: int = 1) -> int:
    """Bytes for so many decoders of a process: no less than for one alone, and at most its share of a quarter of the
    machine's."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return max(Limits().memory, min(num_workers * LIGHT_MEMORY, machine // 4 // num_processes))


_BAR = "{l_bar}{bar}| {n:.1f}/{total_fmt} files [{elapsed}<{remaining}]"  # of files that are read in parts
_REMEMBERED = 1024  # files of which windows are read at a time, by all threads
_NOTHING = "it has no picture, no sound and no subtitles"


@dataclass(eq=False)
class _Source:
    """A file that is read, whole or window by window, and what is noted of it."""

    path: str
    num_windows: int
    num_missing: int
    subtitle: str | None = None
    stale: list[str] = field(default_factory=list)  # clips that go when it is read
    was_known: bool = False
    file: MediaFile | None = None
    num_read: int = 0
    num_new: int = 0
    num_lost: int = 0
    is_begun: bool = False
    is_kept: bool = False
    reasons: dict[str, list[str | None]] = field(default_factory=dict)
    problems: dict[str, list[str | None]] = field(default_factory=dict)
    is_cut: bool = False
    is_transcribed: bool = False
    seconds: float | None = None
    is_measured: bool = False

    @property
    def is_done(self) -> bool:
        """Whether all that had to be read was read."""
        return self.num_read == self.num_missing

    @property
    def num_clips(self) -> int:
        """How many of its windows are clips, those from before counted."""
        return self.num_windows - self.num_missing + self.num_new

    def job(self, window: Window | None) -> "_Job":
        """What is to be done for a window of it."""
        return _Job(self.path, window, self.subtitle, self.seconds, self.is_measured)

    def told(self, found: dict[str, list[str | None]]) -> list[str]:
        """What was found, each with the seconds of its windows, unless it is true of all."""
        lines = []
        for text, spans in found.items():
            if len(spans) < self.num_windows:
                more = f" and {len(spans) - 3} more windows" if len(spans) > 3 else ""
                text = f"{', '.join(map(str, spans[:3]))}{more}: {text}"
            lines.append(text)
        return lines


@dataclass(frozen=True)
class _Job:
    """What is to be read of a file, all of it or a window; what is said in it, where a list knows that; and how long
    the file lasts, if that `is_measured`."""

    path: str
    window: Window | None
    subtitle: str | None
    seconds: float | None
    is_measured: bool


@dataclass
class _Found:
    """What reading tells of a window; `reason` says why it is no clip, `file` is what the file was before; `unheard`
    why it has no transcript, which is no problem of the clip, as a later run tries again; `is_lost` says whether it
    was out of reach."""

    file: MediaFile
    duration: float | None = None
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    reason: str | None = None
    unheard: str | None = None
    is_lost: bool = False
    is_cut: bool = False
    is_transcribed: bool = False


@dataclass
class _Read:
    """A window that was read."""

    source: _Source
    window: Window | None
    found: _Found

    @property
    def clip_id(self) -> str:
        """The name of the clip."""
        return clip_id_of(self.source.path, self.window)

    @property
    def is_failure(self) -> bool:
        """Whether something could not be read: a window in which there is nothing is none."""
        return self.found.reason is not None and (self.window is None or self.found.reason != _NOTHING)

    def count(self) -> None:
        """Add what was found to what is known of the file."""
        source, found = self.source, self.found
        if source.file is None or (found.file.sha256 and not source.file.sha256):
            source.file = found.file
        source.num_read += 1
        source.num_lost += found.is_lost
        source.is_cut |= found.is_cut
        source.is_transcribed |= found.is_transcribed
        source.num_new += found.reason is None
        for problem in [*found.problems, *([] if found.unheard is None else [found.unheard])]:
            source.problems.setdefault(problem, []).append(self.span)
        if found.reason is not None:
            source.reasons.setdefault(found.reason, []).append(self.span)

    @property
    def span(self) -> str | None:
        """The seconds of the window, as people read them."""
        return None if self.window is None else place_of_clip(self.clip_id).span


class _Looked:
    """What was found out about a file once for all its windows; threads take turns."""

    def __init__(self):
        self.lock = Lock()
        self.file: MediaFile | None = None
        self.is_lost = self.is_listened = self.is_measured = False
        self.transcript: str | None = None
        self.unheard: str | None = None
        self.seconds: float | None = None


class _Reader:
    """Reads jobs, in threads; whatever is wrong with a file is noted."""

    def __init__(self, processor: ScalarProcessor, on_error: str, speech: Speech):
        self.processor, self.on_error, self.speech = processor, on_error, speech
        self._lock, self._looked = Lock(), {}

    def __call__(self, job: _Job) -> tuple[_Found, Clip | None]:
        """Read a window: what is told of it, and the clip, if it is one."""
        path, looked = job.path, self._of(job.path)
        with looked.lock:
            if looked.file is None:
                looked.file, looked.is_lost = _look(path, job.subtitle)
        found = _Found(looked.file, reason=looked.file.reason, is_lost=looked.is_lost)
        if found.reason is not None:
            return found, None
        words = job.subtitle
        if words is None:
            words = self._transcript(path, looked)
            found.is_transcribed, found.unheard = words is not None, looked.unheard
            if looked.unheard is not None and self.on_error == "raise":
                found.reason = looked.unheard
                return found, None
        options = {"window": job.window, "subtitle": words}
        options = {name: value for name, value in options.items() if value is not None}
        try:
            clip = self.processor.read_clip(path, on_error=self.on_error, processed=True, **options)
            problems = [
                problem.removeprefix(f"{path}: ") for problem in clip.problems
            ]  # the reader names the file too
            if clip.is_empty:
                raise ValueError(_joined(problems) or _NOTHING)
        except (OSError, ValueError) as error:
            found.reason = str(error).removeprefix(f"{path}: ")
            found.is_lost = isinstance(error, FileNotFoundError) or _is_out_of_reach(path)
            if found.is_lost:
                found.file = _unseen(path, found.reason)
            return found, None
        found.duration, found.problems = clip.duration, problems
        seconds = job.seconds if job.is_measured else self._measured(path, looked)
        found.seconds = seconds_of(seconds, job.window)
        found.is_cut = (clip.duration or 0) >= self.processor.max_audio_seconds + SLIVER
        return found, clip

    def _of(self, path: str) -> _Looked:
        """What is known of a file; the latest are remembered."""
        with self._lock:
            looked = self._looked[path] = self._looked.pop(path, None) or _Looked()
            if len(self._looked) > _REMEMBERED:
                del self._looked[next(iter(self._looked))]
            return looked

    def _measured(self, path: str, looked: _Looked) -> float | None:
        """How long a file lasts, if that can be told."""
        with looked.lock:
            if not looked.is_measured:
                looked.is_measured = True
                with suppress(OSError, ValueError):
                    looked.seconds = self.processor.reader.read_duration(path)
            return looked.seconds

    def _transcript(self, path: str, looked: _Looked) -> str | None:
        with looked.lock:
            if not looked.is_listened:
                looked.is_listened = True
                try:
                    looked.transcript = self.speech.of(path, looked.file.sha256, self.processor.reader)
                except SpeechError as error:
                    looked.unheard = str(error)
            return looked.transcript


def _is_worth_it(told: Iterable[str], limits: Limits) -> bool:
    """Whether a limit that stood in the way has been raised since."""
    return any(LimitError.no_longer_holds(part, limits) for text in told for part in text.split("; "))


def _plan(
    files: list[str],
    known: Known,
    writer: GalleryWriter,
    retry: bool,
    limits: Limits,
    report: IndexReport,
    batch_size: int,
    subtitles: Mapping[str, str],
    speech: Speech,
) -> dict[str, MediaFile | None]:
    """Return the files that must be read, with what is noted of those that lack windows alone; report the others."""
    todo, touched = {}, []

    def keep() -> None:
        writer.put_files(touched)
        writer.commit()
        known.put_files(touched)
        touched.clear()

    for path in files:
        is_away = path in known.gone or path in report.out_of_reach
        if is_away and path in known.clips and not retry:
            continue  # a list names it, and its drive may be away: reported as such, and its clips are kept
        file = known.files.get(path)
        if file is not None and not file.sha256 and not retry and _look(path, subtitles.get(path))[0] == file:
            report.unreadable.append(file)  # a link that leads nowhere, a pipe: reading it would say the same
            continue
        mtime_ns = None if file is None else unchanged_since(path, file, subtitles.get(path))
        reason = None if file is None else file.reason
        is_stale = mtime_ns is None or _is_worth_it(known.problems_of(path), limits)
        is_stale |= (
            path not in subtitles and file is not None and speech.is_due(file.sha256) and known.is_unheard(path)
        )
        if is_stale or (reason is not None and (retry or reason == UNFINISHED or _is_worth_it([reason], limits))):
            todo[path] = file if reason is not None and path in known.clips and not is_stale else None
            continue
        if mtime_ns != file.mtime_ns:  # touched, same content: remember, so as not to hash it again
            touched.append(replace(file, mtime_ns=mtime_ns))
            if len(touched) == batch_size:  # hashing large files takes long too: a kill may lose no more than that
                keep()
        if path in known.clips or reason is None:
            report.unchanged.append(path)
        else:
            report.unreadable.append(file)
        if reason is not None:
            report.not_retried.append(path)
            if path in known.clips:
                report.problems[path] = [reason]
    keep()
    return todo


def _look_for_vanished(
    files: Sequence[str],
    known: Known,
    writer: GalleryWriter,
    prune: bool,
    prune_all: bool,
    report: IndexReport,
    vanished: Iterable[str] | None,
) -> None:
    """Report clips whose file is gone or out of reach; with `prune`, take those that are gone, and the records of such
    failures, out."""
    paths = known.files if vanished is None or known.gone is None else sorted(known.gone.union(vanished))
    known.gone, away = set(), set()
    for path in paths:
        try:
            if path in known.files and is_gone(path):
                known.gone.add(path)
        except OSError as error:
            away.add(path)
            if path in known.clips:
                report.out_of_reach[path] = error.strerror or str(error)
    gone = [path for path in paths if path in known.gone]
    lost = known.gone | away
    others = (path for path in chain(known.files, files) if path not in lost)
    doubtful = set() if prune_all else set(in_doubt(gone, others))
    report.vanished = [path for path in gone if known.files[path].reason is None or path in known.clips]
    report.doubtful = [path for path in report.vanished if path in doubtful]
    report.pruned = prune or prune_all
    if report.pruned:
        gone = [path for path in gone if path not in doubtful]
        writer.remove_clips(name for path in gone for name in known.clips.get(path, ()))
        writer.forget_files(gone)
        writer.commit()
        known.forget(gone)
        known.gone = doubtful


def _sources(
    todo: dict[str, MediaFile | None],
    segment: float | None,
    reader: SandboxedReader,
    known: Known,
    report: IndexReport,
    subtitles: Mapping[str, str],
) -> Iterator[tuple[_Source, Window | None]]:
    """The windows that must be read, file by file."""
    for path, file in todo.items():
        seconds = None
        try:
            seconds = None if segment is None else reader.read_duration(path)
            windows = windows_of(seconds, segment)
        except (OSError, ValueError) as error:
            if file is not None:  # the file is as it was, and so are its windows: nothing can be added to them now
                reason = str(error).removeprefix(f"{path}: ").rstrip(".")
                report.unchanged.append(path)
                report.problems[path] = [f"how long it is could not be read now: {reason}", file.reason]
                continue
            windows = [None]  # reading it will say what is wrong
        there, names = known.clips.get(path, []), [clip_id_of(path, window) for window in windows]
        kept = set() if file is None else set(names).intersection(there)
        missing = [window for window, name in zip(windows, names, strict=True) if name not in kept]
        if not missing:  # something is noted all the same: look again
            kept, missing = set(), windows
        stale = [name for name in there if name not in kept]
        was_known = path in known.clips and (file is None or file.reason != UNFINISHED)
        source = _Source(path, len(windows), len(missing), subtitles.get(path), stale, was_known)
        source.seconds, source.is_measured = seconds, segment is not None
        yield from ((source, window) for window in missing)


def _note(writer: GalleryWriter, known: Known, source: _Source, put: set[str]) -> MediaFile | None:
    """Bring what the gallery knows of a file up to date, after the clips `put`; `None` if that is no news."""
    is_first, file = not source.is_begun, source.file
    source.is_kept = source.num_lost == source.num_read and source.path in known.clips
    if source.is_kept:
        return None  # what it holds now is not known: only pruning takes out clips of which the file is gone
    if is_first:
        source.is_begun = True
        # What was embedded before is no longer what the file holds, or is cut otherwise now.
        stale = [name for name in source.stale if name not in put]
        writer.remove_clips(stale)
        known.remove_clips(source.path, stale)
    if not source.is_done:
        return replace(file, reason=UNFINISHED) if is_first else None
    failures = {reason: spans for reason, spans in source.reasons.items() if reason != _NOTHING}
    if not source.num_clips and file.reason is None:
        source.file = file = replace(file, reason=_joined(source.told(source.reasons)))
    elif source.num_clips and source.num_lost:
        source.file = file = replace(file, reason=UNFINISHED)  # it went away meanwhile: a later run goes on
    elif source.num_clips and failures:
        source.file = file = replace(file, reason=PARTLY + _joined(source.told(failures)))
    return file


def _tell(source: _Source, report: IndexReport) -> None:
    """Report a file that is finished."""
    if source.is_kept:
        report.out_of_reach[source.path] = "; ".join(reason.rstrip(".") for reason in source.reasons)
        return
    if not source.num_clips:
        report.unreadable.append(source.file)
        if source.stale:
            report.dropped.append(source.path)
        return
    if source.was_known and not source.num_new:  # windows that failed before did so again
        report.unchanged.append(source.path)
    else:
        (report.changed if source.was_known else report.new).append(source.path)
    if told := source.told(source.problems) + source.told(source.reasons):
        report.problems[source.path] = told
    if source.is_cut:
        report.cut.append(source.path)
    if source.is_transcribed:
        report.transcribed.append(source.path)


def index_files(
    files: list[str],
    writer: GalleryWriter,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    *,
    subtitles: Mapping[str, str] | None = None,
    recognizer: SpeechRecognizer | None = None,
    batch_size: int = 8,
    num_workers: int | None = None,
    on_error: str = "missing",
    prune: bool = False,
    prune_all: bool = False,
    progress: bool = False,
    report: IndexReport | None = None,
    crew: Crew | None = None,
    known: Known | None = None,
    vanished: Iterable[str] | None = None,
) -> IndexReport:
    """
    Bring a gallery up to date with files; every batch is committed when it is embedded.

    Where the metadata of the gallery has a `"segment"`, in seconds, longer files are cut into windows, each a clip of
    its own (see [`~gallery.windows`]). A run that ends between two windows of a file goes on there.

    Args:
        files (`list[str]`): as returned by `find_files`. Clips of the gallery that are not among them are kept.
        writer ([`~gallery.gallery.GalleryWriter`]): the gallery; its `metadata` names the model.
        subtitles (`dict[str, str]`, *optional*): of files of which it is known otherwise, what is said: the words, or
            the path of an `.srt` or `.vtt` file.
        recognizer ([`~search.speech.SpeechRecognizer`], *optional*): writes down what is said in clips with sound and
            without subtitles. What was written down before is read without it, too.
        batch_size (`int`): clips read and embedded at a time, and what a kill can lose.
        num_workers (`int`, *optional*): clips read at a time, each by a decoder of its own; by default some more than
            there are processors.
        on_error (`str`): "missing": a stream that cannot be decoded counts as absent, a file in which nothing can be
            read is reported, left out, and not tried again until it changes, or until a limit that it exceeded is
            raised. "raise": the first problem ends the run.
        prune (`bool`): take clips whose file is gone out of the gallery, instead of only reporting them. Clips of
            files that are out of reach are kept.
        prune_all (`bool`): the same, also where nothing is left of a folder or a drive.
        progress (`bool`): show a progress bar on stderr and, after the first batch, how fast it goes.
        report ([`IndexReport`], *optional*): an empty one to fill in, which is there of a run that was interrupted.
        known ([`~search.known.Known`], *optional*): what the gallery knows, if an earlier call with the same writer
            was given it; it is kept up to date, so that a call costs what `files` do.
        vanished (iterable of `str`, *optional*): files to look whether they are gone, beside those that were; by
            default, and with a new `known`, all of the gallery.
        crew ([`~gallery.parallel.Crew`], *optional*): other processes that take a share; they call [`help_index`]. A
            commit is a batch of each of them then.

    Raises:
        ValueError: an option is out of range, or a file cannot be read and `on_error` is "raise".
    """
    num_workers = default_workers() if num_workers is None else num_workers
    check_reading(batch_size, on_error, num_workers)
    report, known = IndexReport() if report is None else report, known or Known(writer.gallery())
    processor = sandboxed(processor)
    segment, subtitles = writer.metadata.get(SEGMENT), subtitles or {}
    speech = Speech(writer.folder, recognizer)
    if segment is not None and (timeless := [path for path, words in subtitles.items() if mark_of(words)]):
        raise ValueError(
            f"{timeless[0]} has a subtitle without times, which cannot be cut into windows of {segment:g} s. Name an "
            "`.srt` or `.vtt` file in its place."
        )
    _look_for_vanished(files, known, writer, prune, prune_all, report, vanished)
    retry = on_error == "raise"
    todo = _plan(files, known, writer, retry, processor.reader.limits, report, batch_size, subtitles, speech)
    waiting: deque[tuple[_Source, Window | None]] = deque()

    def jobs() -> Iterator[_Job]:
        for source, window in _sources(todo, segment, processor.reader, known, report, subtitles):
            waiting.append((source, window))
            yield source.job(window)

    embed = partial(embed_batches, model, processor, _Reader(processor, on_error, speech), num_workers)
    rounds = (crew or Crew()).lead(in_batches(jobs(), batch_size), embed, batches_ahead(batch_size, num_workers))
    begun = time.monotonic()
    with (
        closing(rounds),
        tqdm(
            total=len(todo), unit="file", disable=not (progress and todo), bar_format=_BAR if segment else None
        ) as bar,
    ):
        for batch in map(Embedded.joined, rounds):
            notes = [_Read(*waiting.popleft(), found) for found in batch.notes]
            failed = [place for place, note in enumerate(notes) if note.is_failure]
            stop = failed[0] if failed and on_error == "raise" else len(notes)  # the files before that one are good
            failure = notes[stop] if stop < len(notes) else None
            notes, read = notes[:stop], [notes[place] for place in batch.embeddable if place < stop]
            if read:
                embeds, mask, concat_embeds = batch.embeds
                rows = slice(len(read))
                writer.put_clips(
                    [note.clip_id for note in read],
                    embeds[rows],
                    mask[rows],
                    None if concat_embeds is None else concat_embeds[rows],
                    durations=[note.found.duration for note in read],
                    problems=[note.found.problems for note in read],
                    seconds=[note.found.seconds for note in read],
                )
            for note in notes:
                note.count()
            put, sources = {note.clip_id for note in read}, dict.fromkeys(note.source for note in notes)
            begins = {source for source in sources if not source.is_begun}
            noted = [(source, _note(writer, known, source, put)) for source in sources]
            news = [
                file
                for source, file in noted
                if file is not None and (source not in begins or file != known.files.get(file.path))
            ]
            writer.put_files(news)
            writer.commit()
            known.put_files(news)
            for row, note in enumerate(read):
                known.put_clip(note.source.path, note.clip_id, mask[row].tolist(), note.found.problems)
            if failure is not None:
                span = "" if failure.span is None else f"{failure.span}: "
                raise ValueError(f"{failure.source.path}: {span}{failure.found.reason}")
            for source in sources:
                if source.is_done:
                    _tell(source, report)
            done = sum(1 / note.source.num_missing for note in notes) if segment else len(notes)
            bar.update(min(done, bar.total - bar.n))  # parts of files add up to a little more than there are
            if begun is not None and progress and 0 < bar.n < len(todo):
                seconds = time.monotonic() - begun
                left = tqdm.format_interval(seconds * (len(todo) - bar.n) / bar.n)
                bar.write(f"{len(read) / seconds:.2g} clips per second; about {left} left", file=sys.stderr)
            begun = None
    return report


def help_index(
    crew: Crew,
    folder: str | os.PathLike,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    *,
    recognizer: SpeechRecognizer | None = None,
    num_workers: int | None = None,
    on_error: str = "missing",
) -> None:
    """
    Take a share in what [`index_files`] does in the first process of a crew.

    Args:
        folder (`str`): the gallery; what is told of the others belongs to `index_files`.

    Raises:
        SystemExit: a process has failed, which the first one tells.
    """
    num_workers = default_workers() if num_workers is None else num_workers
    processor = sandboxed(processor)
    reader = _Reader(processor, on_error, Speech(folder, recognizer))
    crew.follow(partial(embed_batches, model, processor, reader, num_workers))


__all__ = [
    "EXTENSIONS",
    "IndexReport",
    "clip_sha256",
    "clip_stat",
    "default_workers",
    "find_files",
    "help_index",
    "index_files",
    "memory_of_decoders",
    "real_path",
]
