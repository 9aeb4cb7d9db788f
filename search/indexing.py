"""From files to a gallery: find them, read them with the processor, embed them with the model, keep what is known.

A file is embedded once, and again only when its content changes. What cannot be read is recorded, never dropped.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from tqdm import tqdm
from transformers import PreTrainedModel

from gallery.embedding import check_reading, embed_clips, read_batches
from gallery.gallery import Gallery, GalleryWriter, MediaFile
from gallery.media import clip_sha256, clip_stat, mark_of, unchanged_since
from gallery.windows import PARTLY, SEGMENT, SLIVER, UNFINISHED, clip_id_of, place_of_clip, seconds_of, windows_of
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.decoding_scalar import LIGHT_MEMORY, num_processors, read_duration
from modeling_scalar.media_scalar import LimitError, Limits
from modeling_scalar.processing_scalar import Clip, ScalarProcessor
from search.speech import SpeechRecognizer, Transcripts

EXTENSIONS = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .flv .wmv .ogv .3gp .wav .mp3 .m4a .flac .ogg".split()
)
"""What is taken from a folder; a file named explicitly is taken whatever its extension."""


@dataclass
class IndexReport:
    """What one run did. Every file given is in exactly one of `new`, `changed`, `unchanged` and `unreadable`.

    `problems` lists files of this run of which some stream could not be read, and files of which some window could
    not, in this run or before; `not_retried` are those files, and the `unreadable` ones, that failed in an earlier run
    and have not changed since; `cut` are files of this run of which the encoder hears the beginning alone,
    `transcribed` those of which the subtitles are a transcript; `vanished` are files that are gone, `pruned` says
    whether their clips were taken out.
    """

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unreadable: list[MediaFile] = field(default_factory=list)
    not_retried: list[str] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    transcribed: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
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
        self.problems = {path: told for path, told in self.problems.items() if path not in met} | later.problems
        self.cut = [path for path in self.cut if path not in met] + later.cut
        self.transcribed = [path for path in self.transcribed if path not in met] + later.transcribed
        gone = self.vanished if later.pruned else []  # those that are kept are told again by every run
        self.vanished = [path for path in dict.fromkeys(gone + later.vanished) if path not in met]
        self.pruned = later.pruned


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


def default_workers() -> int:
    """How many clips are read at a time: some more than there are processors, as a decoder waits while its clip is
    prepared here."""
    return num_processors() + num_processors() // 2 + 1


def memory_of_decoders(num_workers: int) -> int:
    """Bytes for so many decoders side by side: no less than for one alone, and at most a quarter of the machine's."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 if hasattr(os, "sysconf") else 0
    return max(Limits().memory, min(num_workers * LIGHT_MEMORY, most))


_BAR = "{l_bar}{bar}| {n:.1f}/{total_fmt} files [{elapsed}<{remaining}]"  # of files that are read in parts
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
    lock: Any = field(default_factory=Lock)
    num_read: int = 0
    num_new: int = 0
    is_begun: bool = False
    reasons: dict[str, list[str | None]] = field(default_factory=dict)
    problems: dict[str, list[str | None]] = field(default_factory=dict)
    is_cut: bool = False
    is_listened: bool = False
    transcript: str | None = None
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

    def told(self, found: dict[str, list[str | None]]) -> list[str]:
        """What was found, each with the seconds of its windows, unless it is true of all."""
        lines = []
        for text, spans in found.items():
            if len(spans) < self.num_windows:
                more = f" and {len(spans) - 3} more windows" if len(spans) > 3 else ""
                text = f"{', '.join(map(str, spans[:3]))}{more}: {text}"
            lines.append(text)
        return lines

    def look(self) -> MediaFile:
        """Note the file as it is before it is read, once for all its windows."""
        with self.lock:
            if self.file is None:
                self.file = MediaFile(self.path, 0, 0, "")
                try:
                    size, mtime_ns = clip_stat(self.path, self.subtitle)
                    self.file = MediaFile(self.path, size, mtime_ns, clip_sha256(self.path, self.subtitle))
                except (OSError, ValueError) as error:
                    self.file = replace(self.file, reason=str(error).removeprefix(f"{self.path}: "))
            return self.file

    def measure(self, limits: Limits) -> float | None:
        """How long the file lasts, if that can be told; asked once for all its windows."""
        with self.lock:
            if not self.is_measured:
                self.is_measured = True
                with suppress(OSError, ValueError):
                    self.seconds = read_duration(self.path, limits)
            return self.seconds

    def words(self, speech: Transcripts, limits: Limits) -> str | None:
        """What is said, where that is known otherwise than by the file: of a list, or by a transcript."""
        if self.subtitle is not None:
            return self.subtitle
        with self.lock:
            if not self.is_listened:
                self.is_listened = True
                self.transcript = speech.of(self.path, self.file.sha256, limits)
            return self.transcript


@dataclass
class _Read:
    """What is noted of a window that was read; `reason` says why it is no clip."""

    source: _Source
    window: tuple[float, float | None] | None
    duration: float | None = None
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    reason: str | None = None
    is_cut: bool = False

    @property
    def clip_id(self) -> str:
        """The name of the clip."""
        return clip_id_of(self.source.path, self.window)

    @property
    def is_failure(self) -> bool:
        """Whether something could not be read: a window in which there is nothing is none."""
        return self.reason is not None and (self.window is None or self.reason != _NOTHING)

    def count(self) -> None:
        """Add what was found to what is known of the file."""
        source = self.source
        source.num_read += 1
        source.is_cut |= self.is_cut
        source.num_new += self.reason is None
        for problem in self.problems:
            source.problems.setdefault(problem, []).append(self.span)
        if self.reason is not None:
            source.reasons.setdefault(self.reason, []).append(self.span)

    @property
    def span(self) -> str | None:
        """The seconds of the window, as people read them."""
        return None if self.window is None else place_of_clip(self.clip_id).span


def _read(
    processor: ScalarProcessor,
    item: tuple[_Source, tuple[float, float | None] | None],
    on_error: str,
    speech: Transcripts,
) -> tuple[_Read, Clip | None]:
    """Read one window of a file; whatever is wrong with it is noted."""
    source, window = item
    path, note = source.path, _Read(source, window)
    note.reason = source.look().reason
    if note.reason is not None:
        return note, None
    options = {"window": window, "subtitle": source.words(speech, processor.limits)}
    options = {name: value for name, value in options.items() if value is not None}
    try:
        clip = processor.read_clip(path, on_error=on_error, processed=True, **options)
        problems = [problem.removeprefix(f"{path}: ") for problem in clip.problems]  # the reader names the file too
        if clip.is_empty:
            raise ValueError("; ".join(problems) or _NOTHING)
    except (OSError, ValueError) as error:
        note.reason = str(error).removeprefix(f"{path}: ")
        return note, None
    note.duration, note.problems = clip.duration, problems
    note.seconds = seconds_of(source.measure(processor.limits), window)
    note.is_cut = (clip.duration or 0) >= processor.max_audio_seconds + SLIVER
    return note, clip


def _is_worth_it(told: Iterable[str], limits: Limits) -> bool:
    """Whether a limit that stood in the way has been raised since."""
    return any(LimitError.no_longer_holds(part, limits) for text in told for part in text.split("; "))


def _unheard(gallery: Gallery, clips: dict[str, list[str]], problems: Mapping[str, list[str]]) -> set[str]:
    """The files with sound and without subtitles, of which everything could be read."""
    audio, subtitle = (gallery.modality_mask[:, MODALITIES.index(name)] for name in ("audio", "subtitle"))
    has_sound, has_words = (dict(zip(gallery.clip_ids, mask.tolist(), strict=True)) for mask in (audio, subtitle))
    return {
        path
        for path, names in clips.items()
        if any(map(has_sound.get, names)) and not any(map(has_words.get, names)) and problems.keys().isdisjoint(names)
    }


def _plan(
    files: list[str],
    gallery: Gallery,
    writer: GalleryWriter,
    retry: bool,
    limits: Limits,
    report: IndexReport,
    batch_size: int,
    clips: dict[str, list[str]],
    subtitles: Mapping[str, str],
    speech: Transcripts,
) -> dict[str, MediaFile | None]:
    """Return the files that must be read, with what is noted of those that lack windows alone; report the others."""
    todo, touched, problems = {}, [], gallery.problems()
    unheard = _unheard(gallery, clips, problems) if speech.recognizer is not None else set()
    for path in files:
        known = gallery.files.get(path)
        mtime_ns = None if known is None else unchanged_since(path, known, subtitles.get(path))
        reason = None if known is None else known.reason
        streams = [problem for name in clips.get(path, ()) for problem in problems.get(name, ())]
        is_stale = mtime_ns is None or _is_worth_it(streams, limits)
        is_stale |= path in unheard and path not in subtitles and speech.is_due(known.sha256)
        if is_stale or (reason is not None and (retry or reason == UNFINISHED or _is_worth_it([reason], limits))):
            todo[path] = known if reason is not None and path in clips and not is_stale else None
            continue
        if mtime_ns != known.mtime_ns:  # touched, same content: remember, so as not to hash it again
            touched.append(replace(known, mtime_ns=mtime_ns))
            if len(touched) == batch_size:  # hashing large files takes long too: a kill may lose no more than that
                writer.put_files(touched)
                writer.commit()
                touched = []
        if path in clips or reason is None:
            report.unchanged.append(path)
        else:
            report.unreadable.append(known)
        if reason is not None:
            report.not_retried.append(path)
            if path in clips:
                report.problems[path] = [reason]
    writer.put_files(touched)
    return todo


def _look_for_vanished(
    gallery: Gallery, writer: GalleryWriter, prune: bool, report: IndexReport, clips: dict[str, list[str]]
) -> None:
    """Report clips whose file is gone; with `prune`, take them and the records of such failures out."""
    gone = [file for path, file in gallery.files.items() if not os.path.exists(path)]
    report.vanished = [file.path for file in gone if file.reason is None or file.path in clips]
    report.pruned = prune
    if prune:
        writer.remove_clips(name for file in gone for name in clips.pop(file.path, ()))
        writer.forget_files(file.path for file in gone)


def _sources(
    todo: dict[str, MediaFile | None],
    segment: float | None,
    limits: Limits,
    clips: dict[str, list[str]],
    report: IndexReport,
    subtitles: Mapping[str, str],
) -> Iterator[tuple[_Source, tuple[float, float | None] | None]]:
    """The windows that must be read, file by file."""
    for path, known in todo.items():
        seconds = None
        try:
            seconds = None if segment is None else read_duration(path, limits)
            windows = windows_of(seconds, segment)
        except (OSError, ValueError) as error:
            if known is not None:  # the file is as it was, and so are its windows: nothing can be added to them now
                reason = str(error).removeprefix(f"{path}: ").rstrip(".")
                report.unchanged.append(path)
                report.problems[path] = [f"how long it is could not be read now: {reason}", known.reason]
                continue
            windows = [None]  # reading it will say what is wrong
        there, names = clips.get(path, []), [clip_id_of(path, window) for window in windows]
        kept = set() if known is None else set(names).intersection(there)
        missing = [window for window, name in zip(windows, names, strict=True) if name not in kept]
        if not missing:  # something is noted all the same: look again
            kept, missing = set(), windows
        stale = [name for name in there if name not in kept]
        was_known = path in clips and (known is None or known.reason != UNFINISHED)
        source = _Source(path, len(windows), len(missing), subtitles.get(path), stale, was_known)
        source.seconds, source.is_measured = seconds, segment is not None
        yield from ((source, window) for window in missing)


def _note(writer: GalleryWriter, source: _Source, put: set[str]) -> MediaFile | None:
    """Bring what the gallery knows of a file up to date, after the clips `put`; `None` if that is no news."""
    is_first, file = not source.is_begun, source.file
    if is_first:
        source.is_begun = True
        # What was embedded before is no longer what the file holds, or is cut otherwise now.
        writer.remove_clips(name for name in source.stale if name not in put)
    if not source.is_done:
        return replace(file, reason=UNFINISHED) if is_first else None
    failures = {reason: spans for reason, spans in source.reasons.items() if reason != _NOTHING}
    if not source.num_clips and file.reason is None:
        source.file = file = replace(file, reason="; ".join(source.told(source.reasons)))
    elif source.num_clips and failures:
        source.file = file = replace(file, reason=PARTLY + "; ".join(source.told(failures)))
    return file


def _tell(source: _Source, report: IndexReport) -> None:
    """Report a file that is finished."""
    if not source.num_clips:
        report.unreadable.append(source.file)
        return
    if source.was_known and not source.num_new:  # windows that failed before did so again
        report.unchanged.append(source.path)
    else:
        (report.changed if source.was_known else report.new).append(source.path)
    if told := source.told(source.problems) + source.told(source.reasons):
        report.problems[source.path] = told
    if source.is_cut:
        report.cut.append(source.path)
    if source.transcript is not None:
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
    progress: bool = False,
    report: IndexReport | None = None,
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
        prune (`bool`): take clips whose file is gone out of the gallery, instead of only reporting them.
        progress (`bool`): show a progress bar on stderr and, after the first batch, how fast it goes.
        report ([`IndexReport`], *optional*): an empty one to fill in, which is there of a run that was interrupted.

    Raises:
        ValueError: an option is out of range, or a file cannot be read and `on_error` is "raise".
    """
    num_workers = default_workers() if num_workers is None else num_workers
    check_reading(batch_size, on_error, num_workers)
    report, gallery = IndexReport() if report is None else report, writer.gallery()
    clips, segment, subtitles = gallery.clips_of_files(), writer.metadata.get(SEGMENT), subtitles or {}
    speech = Transcripts(writer.folder, recognizer)
    if segment is not None and (timeless := [path for path, words in subtitles.items() if mark_of(words)]):
        raise ValueError(
            f"{timeless[0]} has a subtitle without times, which cannot be cut into windows of {segment:g} s. Name an "
            "`.srt` or `.vtt` file in its place."
        )
    _look_for_vanished(gallery, writer, prune, report, clips)
    todo = _plan(
        files, gallery, writer, on_error == "raise", processor.limits, report, batch_size, clips, subtitles, speech
    )
    writer.commit()
    items = _sources(todo, segment, processor.limits, clips, report, subtitles)
    reading = read_batches(
        processor, items, lambda item: _read(processor, item, on_error, speech), batch_size, num_workers
    )
    begun = time.monotonic()
    with (
        closing(reading),
        tqdm(
            total=len(todo), unit="file", disable=not (progress and todo), bar_format=_BAR if segment else None
        ) as bar,
    ):
        for batch in reading:
            stop = len(batch.notes)
            failed = [place for place, note in enumerate(batch.notes) if note.is_failure]
            if failed and on_error == "raise":
                stop = failed[0]  # the files before this one are good
            notes = batch.notes[:stop]
            read = [batch.notes[place] for place in batch.embeddable if place < stop]
            if read:
                embeds, mask, concat_embeds = embed_clips(model, batch.features)
                rows = slice(len(read))
                writer.put_clips(
                    [note.clip_id for note in read],
                    embeds[rows],
                    mask[rows],
                    None if concat_embeds is None else concat_embeds[rows],
                    durations=[note.duration for note in read],
                    problems=[note.problems for note in read],
                    seconds=[note.seconds for note in read],
                )
            for note in notes:
                note.count()
            put, sources = {note.clip_id for note in read}, dict.fromkeys(note.source for note in notes)
            begins = {source for source in sources if not source.is_begun}
            noted = [(source, _note(writer, source, put)) for source in sources]
            writer.put_files(
                [
                    file
                    for source, file in noted
                    if file is not None
                    and (source not in begins or file != gallery.files.get(file.path))  # or no news
                ]
            )
            writer.commit()
            if stop < len(batch.notes):
                note = batch.notes[stop]
                span = "" if note.span is None else f"{note.span}: "
                raise ValueError(f"{note.source.path}: {span}{note.reason}")
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


__all__ = [
    "EXTENSIONS",
    "IndexReport",
    "clip_sha256",
    "clip_stat",
    "default_workers",
    "find_files",
    "index_files",
    "memory_of_decoders",
    "real_path",
]
