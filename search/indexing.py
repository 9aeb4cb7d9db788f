"""Indexing: embed new and changed files into a gallery, and report the state of every file.

- A file is embedded again only when its content changes. What cannot be read is recorded, never dropped.
- [`Indexer.update`] has four steps: find the files that are gone, choose those to read, read ([`~search.reading`]) and
  embed them, and commit each batch.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from tqdm import tqdm
from transformers import PreTrainedModel

from commands.texts import plain
from gallery.decoding import LimitError, tolerant
from gallery.embedding import Embedded, batches_ahead, check_reading, embed_batches, in_batches
from gallery.gallery import GalleryWriter, MediaFile
from gallery.media import clip_stat, mark_of, unchanged_since
from gallery.parallel import Crew
from gallery.scenes import scene_windows
from gallery.transcripts import SCREEN
from gallery.windows import PARTLY, SCENES, SEGMENT, UNFINISHED, check_windows, clip_id_of, place_of_clip, windows_of
from modeling_scalar.media_scalar import Window
from modeling_scalar.processing_scalar import ScalarProcessor
from search.known import Known
from search.reading import Found, Job, Reader, default_workers, is_nothing, joined, look
from search.recognizers import Recognizer
from search.screen import LineReader, Screen
from search.speech import Speech
from search.states import FileState, Report, Status
from search.vanished import deleted, is_gone

_BAR = "{l_bar}{bar}| {n:.1f}/{total_fmt} files [{elapsed}<{remaining}{postfix}]"  # for files read in windows
_MOVED_AT_ONCE = 1000  # moved files per commit
_SUBTITLE = "subtitle"
_AWAY = "no other file of the gallery is left there, as if a drive were away: --prune keeps them"


@dataclass(eq=False)
class _Source:
    """
    A file that is being read, whole or by windows, with the findings so far.

    Args:
        path (`str`), texts (`dict[str, str]`): the file, and its texts from lists, by modality.
        before (`dict[str, str]`): its texts from earlier runs.
        windows (`list`): the windows to read; `None` stands for the whole file.
        num_windows (`int`): the number of windows of the file.
        seconds (`float`, *optional*): its length, if measured.
        stale (`list[str]`): clips to remove once it is read.
        was_known (`bool`): it was in the gallery before this run.
    """

    path: str
    texts: Mapping[str, str]
    before: Mapping[str, str]
    windows: list[Window | None]
    num_windows: int
    seconds: float | None
    stale: list[str]
    was_known: bool
    file: MediaFile | None = None
    num_read: int = 0
    num_clips: int = 0
    num_lost: int = 0
    is_begun: bool = False
    is_kept: bool = False
    reasons: dict[str, list[str | None]] = field(default_factory=dict)
    problems: dict[str, list[str | None]] = field(default_factory=dict)
    is_transcribed: bool = False
    heard: float | None = None

    def __post_init__(self) -> None:
        self.num_clips = self.num_windows - len(self.windows)  # clips from earlier runs

    @property
    def is_done(self) -> bool:
        """Whether all windows were read."""
        return self.num_read == len(self.windows)

    def job(self, window: Window | None) -> Job:
        """The job of reading a window."""
        return Job(self.path, window, self.texts, self.before, self.seconds)

    def take(self, read: "_Read") -> None:
        """Add the findings of a window to those of the file."""
        found = read.found
        if self.file is None or (found.file.sha256 and not self.file.sha256):
            self.file = found.file
        self.num_read += 1
        self.num_clips += found.reason is None
        self.num_lost += found.is_lost
        self.is_transcribed |= found.is_transcribed
        self.heard = self.heard or found.heard
        wrong = self.problems if found.reason is None else self.reasons
        for problem in found.problems or filter(None, [found.reason]):
            wrong.setdefault(problem, []).append(read.span)
        if found.unheard is not None:
            self.problems.setdefault(found.unheard, []).append(read.span)

    def noted(self) -> MediaFile:
        """The record of the file for the gallery."""
        failures = {reason: spans for reason, spans in self.reasons.items() if not is_nothing(reason)}
        if not self.is_done or (self.num_clips and self.num_lost):  # a later run reads what became inaccessible
            return replace(self.file, reason=UNFINISHED)
        if not self.num_clips and self.file.reason is None:
            return replace(self.file, reason=joined(self._messages(self.reasons)))
        if self.num_clips and failures:
            return replace(self.file, reason=PARTLY + joined(self._messages(failures)))
        return self.file

    def state(self) -> FileState:
        """The state of the file for the report, once it is done."""
        if self.is_kept:
            return FileState(self.path, Status.OUT_OF_REACH, "; ".join(reason.rstrip(".") for reason in self.reasons))
        if not self.num_clips:
            reason = self.noted().reason
            return FileState(self.path, _status_without_clips(reason), reason, is_dropped=bool(self.stale))
        is_unchanged = self.was_known and self.num_clips == self.num_windows - len(self.windows)
        status = Status.UNCHANGED if is_unchanged else Status.CHANGED if self.was_known else Status.NEW
        # a stream that ends within a window is missing in the windows after it
        texts = dict.fromkeys([*self.problems, *self.reasons])
        found = {text: self.problems.get(text, []) + self.reasons.get(text, []) for text in texts}
        flags = {"is_transcribed": self.is_transcribed, "heard": self.heard}
        return FileState(self.path, status, problems=tuple(self._messages(found)), **flags)

    def _messages(self, found: dict[str, list[str | None]]) -> list[str]:
        """The findings, each with the times of its windows, unless it applies to all of them."""
        lines = []
        for text, spans in found.items():
            if len(spans) < self.num_windows:
                more = f" and {len(spans) - 3} more windows" if len(spans) > 3 else ""
                text = f"{', '.join(map(str, spans[:3]))}{more}: {text}"
            lines.append(text)
        return lines


@dataclass(frozen=True)
class _Read:
    """A window that was read."""

    source: _Source
    window: Window | None
    found: Found

    @property
    def clip_id(self) -> str:
        """The name of the clip."""
        return clip_id_of(self.source.path, self.window)

    @property
    def span(self) -> str | None:
        """The times of the window, in readable form."""
        return None if self.window is None else place_of_clip(self.clip_id).span


def _status_without_clips(reason: str | None) -> Status:
    """The status of a file that has no clips, for this reason."""
    return Status.EMPTY if is_nothing(reason) else Status.UNREADABLE


def _at(what: str, path: str, second: float) -> str:
    """The position in a file that is being transcribed or read, for the progress bar."""
    return f"{what} {plain(os.path.basename(path), 'utf-8')[-30:]} at {tqdm.format_interval(second)}"


class Indexer:
    """
    Updates a gallery from files; every batch is committed once it is embedded.

    If the metadata of the gallery has a `"segment"`, in seconds, longer files are cut into windows, each a clip (see
    [`~gallery.windows`]); with `"scenes"`, at scene changes. An interrupted run continues at the next window.

    A stream that cannot be decoded counts as absent. A file in which nothing can be read is reported, left out, and
    not tried again until it changes or a limit that it exceeded is raised. A file in which nothing is found is tried
    again once there is a further modality or recogniser.

    Args:
        writer ([`~gallery.gallery.GalleryWriter`]): the gallery; its `metadata` names the model.
        model, processor: of the gallery, see [`~modeling_scalar.load_model`].
        recognizer ([`~search.recognizers.Recognizer`], *optional*): transcribes clips that have sound but no
            subtitles. Existing transcripts are used without it, too.
        line_reader ([`~search.screen.LineReader`], *optional*): reads on-screen text, if the gallery has the modality
            `screen`. Existing readings are used without it, too.
        batch_size (`int`): number of clips read and embedded at a time, and the most that a kill can lose.
        num_workers (`int`, *optional*): number of clips read at a time, each in its own decoder; by default slightly
            more than the number of CPUs.
        prune (`bool`): remove clips of deleted files, see [`~search.vanished.deleted`], instead of only reporting
            them. Clips of inaccessible files are kept.
        progress (`bool`): show a progress bar on stderr and, after the first batch, the speed.
        crew ([`~gallery.parallel.Crew`], *optional*): other processes that share the work; they call [`help_index`].
            A commit then has one batch of each.

    Attributes:
        report ([`~search.states.Report`]): the latest state of every file, even if an update was interrupted.
        known ([`~search.known.Known`]): the gallery's records, kept up to date, so that the cost of an update depends
            only on the changes.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        writer: GalleryWriter,
        model: PreTrainedModel,
        processor: ScalarProcessor,
        *,
        recognizer: Recognizer | None = None,
        line_reader: LineReader | None = None,
        batch_size: int = 8,
        num_workers: int | None = None,
        prune: bool = False,
        progress: bool = False,
        crew: Crew | None = None,
    ):
        num_workers = default_workers() if num_workers is None else num_workers
        check_reading(batch_size, num_workers)
        self.writer, self.report = writer, Report()
        self.known = Known(writer.gallery(), writer.modalities)
        self.batch_size, self.prune, self.progress, self.crew = batch_size, prune, progress, crew or Crew()
        self._speech, self._screen = Speech(writer.folder, recognizer), Screen(writer.folder, line_reader)
        self._segment = writer.metadata.get(SEGMENT)
        processor = tolerant(processor)
        self._decoder = processor.reader
        self._reader = Reader(processor, self._speech, self._screen)
        check_windows(self._decoder.limits.duration, self._segment)
        self._embed = partial(embed_batches, model, processor, self._reader, num_workers)
        self._ahead = batches_ahead(batch_size, num_workers)
        self._gone: set[str] | None = None  # files that no longer exist; None before the first check

    def update(
        self,
        files: Sequence[str],
        texts: Mapping[str, Mapping[str, str]] | None = None,
        gone: Iterable[str] | None = None,
    ) -> Report:
        """
        Embed new and changed files.

        Args:
            files (`list[str]`): as returned by [`~search.sources.find_files`]. Clips of other files are kept.
            texts (`dict[str, dict[str, str]]`, *optional*): texts by file and by modality. For `"subtitle"` it may be
                the path of a subtitle file.
            gone (iterable of `str`, *optional*): files to check, along with those that were gone before; by default,
                and the first time, all files of the gallery.

        Returns:
            The states of these files, and of those that are gone or out of reach.

        Raises:
            ValueError: windows need subtitles with times, and one has none.
        """
        texts, report = texts or {}, Report()
        timeless = [path for path, given in texts.items() if mark_of(given.get(_SUBTITLE))]
        if self._segment is not None and timeless:
            raise ValueError(
                f"{timeless[0]} has a subtitle without times, which cannot be cut into windows of {self._segment:g} "
                "s. Name a subtitle file instead."
            )
        try:
            self._look_for_gone(files, texts, gone, report)
            todo = self._choose(files, texts, report)
            self._read(todo, texts, report)
        finally:
            self.report.update(report)
        return report

    def _look_for_gone(
        self,
        files: Sequence[str],
        texts: Mapping[str, Mapping[str, str]],
        candidates: Iterable[str] | None,
        report: Report,
    ) -> None:
        """Assign the clips of files that are gone to files with the same content. Report other files that are gone or
        out of reach; with `prune`, remove the clips of deleted files."""
        known = self.known
        paths = known.files if candidates is None or self._gone is None else sorted(self._gone.union(candidates))
        gone, away = {}, set()
        for path in paths:
            try:
                if path in known.files and is_gone(path):
                    gone[path] = None
            except OSError as error:
                away.add(path)
                if path in known.clips:
                    report.add(FileState(path, Status.OUT_OF_REACH, error.strerror or str(error)))
        self._take_over(files, texts, gone)
        others = (path for path in chain(known.files, files) if path not in gone and path not in away)
        lost = deleted(gone, others)
        for path in gone:
            if known.files[path].reason is None or path in known.clips:
                status = Status.REMOVED if self.prune and path in lost else Status.GONE
                report.add(FileState(path, status, None if path in lost else _AWAY))
        self._gone = set(gone)
        if self.prune:
            removed = [path for path in gone if path in lost]
            self.writer.remove_clips(name for path in removed for name in known.clips.get(path, ()))
            self.writer.forget_files(removed)
            self.writer.commit()
            known.forget(removed)
            self._gone -= lost

    def _take_over(self, files: Sequence[str], texts: Mapping[str, Mapping[str, str]], gone: dict[str, None]) -> None:
        """Assign the clips of files that are gone to new files with the same content: they were moved."""
        known, self._moved = self.known, set()
        lost = {known.files[path].sha256: path for path in gone if path in known.clips and known.files[path].sha256}
        sizes = {known.files[path].size for path in lost.values()}

        def found() -> Iterator[tuple[str, MediaFile]]:
            for path in files if lost else ():
                with suppress(OSError, ValueError):  # reading the file reports what is wrong
                    words = texts.get(path, {}).get(_SUBTITLE)
                    if path in known.files or clip_stat(path, words)[0] not in sizes:
                        continue
                    file, _ = look(path, words)
                    old = lost.pop(file.sha256, None)
                    if old is not None:
                        del gone[old]
                        self._moved.add(path)
                        before = known.files[old]
                        yield old, replace(file, reason=before.reason, texts=before.texts)

        for moved in in_batches(found(), _MOVED_AT_ONCE):
            names = [known.move(old, file) for old, file in moved]
            self.writer.rename_clips(dict(chain.from_iterable(of_file.items() for of_file in names)))
            self.writer.forget_files(old for old, _ in moved)
            self.writer.put_files([file for _, file in moved])
            self.writer.commit()

    def _choose(
        self, files: Sequence[str], texts: Mapping[str, Mapping[str, str]], report: Report
    ) -> dict[str, MediaFile | None]:
        """Return the files to read, with the records of those that only lack windows; report the others."""
        known, todo, touched = self.known, {}, []

        def keep() -> None:
            self.writer.put_files(touched)
            self.writer.commit()
            known.put_files(touched)
            touched.clear()

        for path in files:
            if path in report:
                continue  # from a list, and gone or out of reach
            file, given = known.files.get(path), texts.get(path, {})
            words = given.get(_SUBTITLE)
            if file is None:
                todo[path] = None
                continue
            if not file.sha256 and look(path, words)[0] == file:
                # A broken link or a pipe: reading it would give the same result.
                report.add(FileState(path, Status.UNREADABLE, file.reason, is_old=True))
                continue
            mtime_ns, has_clips = unchanged_since(path, file, words), path in known.clips
            is_unheard = words is None and self._speech.is_due(file.sha256) and known.lacks(path, _SUBTITLE, "audio")
            is_unheard |= self._screen.is_due(file.sha256) and known.lacks(path, SCREEN, "video")
            is_news = not given.items() - {(_SUBTITLE, words)} <= file.words().items()
            if mtime_ns is None or is_unheard or is_news or self._is_worth_it(known.problems_of(path)):
                todo[path] = None
                continue
            if not has_clips and self._reader.has_further_source(file):
                todo[path] = None
                continue
            if file.reason is not None and (file.reason == UNFINISHED or self._is_worth_it([file.reason])):
                todo[path] = file if has_clips else None
                continue
            if mtime_ns != file.mtime_ns:  # touched, same content: record it, to avoid hashing it again
                touched.append(replace(file, mtime_ns=mtime_ns))
                if len(touched) == self.batch_size:  # hashing is slow, too: a kill should not lose more
                    keep()
            status = Status.MOVED if path in self._moved else Status.UNCHANGED
            if file.reason is None:
                report.add(FileState(path, status))
            elif has_clips:
                report.add(FileState(path, status, problems=(file.reason,), is_old=True))
            else:
                report.add(FileState(path, _status_without_clips(file.reason), file.reason, is_old=True))
        keep()
        return todo

    def _is_worth_it(self, messages: Iterable[str]) -> bool:
        """Whether a limit that was exceeded has been raised since."""
        limits = self._decoder.limits
        return any(LimitError.no_longer_holds(part, limits) for text in messages for part in text.split("; "))

    def _read(self, todo: dict[str, MediaFile | None], texts: Mapping[str, Mapping[str, str]], report: Report) -> None:
        """Read, embed and commit the chosen files, batch by batch."""
        begun, is_first = time.monotonic(), True
        bar = tqdm(
            total=len(todo), unit="file", disable=not (self.progress and todo),
            bar_format=None if self._segment is None else _BAR,
        )  # fmt: skip
        self._speech.tell = lambda path, second: bar.set_postfix_str(_at("hearing", path, second))
        self._screen.tell = lambda path, second: bar.set_postfix_str(_at("reading words of", path, second))
        with closing(self._embedded(self._sources(todo, texts, report))) as batches, bar:
            for reads, batch in batches:
                self._commit(reads, batch, report)
                done = sum(1 / len(read.source.windows) for read in reads)
                bar.update(min(done, bar.total - bar.n))  # rounding: parts may add up to slightly more than the total
                if is_first and self.progress and 0 < bar.n < len(todo):
                    seconds, num_clips = time.monotonic() - begun, sum(read.found.reason is None for read in reads)
                    left = tqdm.format_interval(seconds * (len(todo) - bar.n) / bar.n)
                    bar.write(f"{num_clips / seconds:.2g} clips per second; about {left} left", file=sys.stderr)
                is_first = False

    def _sources(
        self, todo: dict[str, MediaFile | None], texts: Mapping[str, Mapping[str, str]], report: Report
    ) -> Iterator[_Source]:
        """The files to read, with the windows of each."""
        for path, file in todo.items():
            there, seconds = self.known.clips.get(path, []), None
            try:
                seconds = None if self._segment is None else self._decoder.read_duration(path)
                windows = self._windows_of(path, seconds)
            except (OSError, ValueError) as error:
                if file is not None:  # the file has not changed, and no windows can be added now
                    reason = str(error).removeprefix(f"{path}: ").rstrip(".")
                    problems = (f"its length could not be read now: {reason}", file.reason)
                    report.add(FileState(path, Status.UNCHANGED, problems=problems))
                    continue
                windows = [None]  # reading the file reports what is wrong
            names = [clip_id_of(path, window) for window in windows]
            kept = set() if file is None else set(names).intersection(there)
            missing = [window for window, name in zip(windows, names, strict=True) if name not in kept]
            if not missing:  # a problem is recorded nevertheless: read all again
                kept, missing = set(), windows
            stale = [name for name in there if name not in kept]
            was_known = bool(there) and (file is None or file.reason != UNFINISHED)
            before = self.known.files[path].words() if path in self.known.files else {}
            yield _Source(path, texts.get(path, {}), before, missing, len(windows), seconds, stale, was_known)

    def _windows_of(self, path: str, seconds: float | None) -> list[Window | None]:
        """The windows of a file of this length, as the gallery defines them."""
        if self.writer.metadata.get(SCENES):
            return scene_windows(path, seconds, self._segment, self._decoder)
        return windows_of(seconds, self._segment)

    def _embedded(self, sources: Iterable[_Source]) -> Iterator[tuple[list[_Read], Embedded]]:
        """The windows of files in batches, once they are read and embedded."""
        waiting: deque[tuple[_Source, Window | None]] = deque()

        def jobs() -> Iterator[Job]:
            for source in sources:
                for window in source.windows:
                    waiting.append((source, window))
                    yield source.job(window)

        with closing(self.crew.lead(in_batches(jobs(), self.batch_size), self._embed, self._ahead)) as rounds:
            for batch in map(Embedded.joined, rounds):
                yield [_Read(*waiting.popleft(), found) for found in batch.notes], batch

    def _commit(self, reads: list[_Read], batch: Embedded, report: Report) -> None:
        """Write a batch into the gallery, all or nothing, and report the files that are done."""
        clips = [reads[place] for place in batch.embeddable]
        if clips:
            embeds, mask = batch.embeds
            self.writer.put_clips(
                [read.clip_id for read in clips],
                embeds,
                mask,
                durations=[read.found.duration for read in clips],
                problems=[read.found.problems for read in clips],
                seconds=[read.found.seconds for read in clips],
            )
        for read in clips:
            if read.found.still is not None:
                start = None if read.window is None else read.window[0]
                self.writer.stills.put(read.found.file.sha256, start, read.found.still)
        for read in reads:
            read.source.take(read)
        sources, put = dict.fromkeys(read.source for read in reads), {read.clip_id for read in clips}
        noted = [source.noted() for source in sources if self._begin(source, put)]
        news = [file for file in noted if file != self.known.files.get(file.path)]
        self.writer.put_files(news)
        self.writer.commit()
        self.known.put_files(news)
        for row, read in enumerate(clips):
            self.known.put_clip(read.source.path, read.clip_id, mask[row].tolist(), read.found.problems)
        for source in sources:
            if source.is_done:
                report.add(source.state())

    def _begin(self, source: _Source, put: set[str]) -> bool:
        """Remove the earlier clips of a file, except those in `put`. Returns False if the file is out of reach: its
        clips are kept, as only pruning removes clips of missing files."""
        source.is_kept = source.num_lost == source.num_read and source.path in self.known.clips
        if source.is_kept:
            return False
        if not source.is_begun:
            source.is_begun = True
            stale = [name for name in source.stale if name not in put]
            self.writer.remove_clips(stale)
            self.known.remove_clips(source.path, stale)
        return True


def index_files(
    files: Sequence[str],
    writer: GalleryWriter,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    *,
    texts: Mapping[str, Mapping[str, str]] | None = None,
    **options: object,
) -> Report:
    """Update a gallery from files, once: the options are those of [`Indexer`]; see its `update`."""
    return Indexer(writer, model, processor, **options).update(files, texts)


def help_index(
    crew: Crew,
    folder: str | os.PathLike,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    *,
    recognizer: Recognizer | None = None,
    line_reader: LineReader | None = None,
    num_workers: int | None = None,
) -> None:
    """
    Share the work of an [`Indexer`] in the first process of a crew.

    Args:
        folder (`str`): the gallery; the other arguments are as for [`Indexer`].

    Raises:
        SystemExit: a process has failed; the first one reports it.
    """
    num_workers = default_workers() if num_workers is None else num_workers
    processor = tolerant(processor)
    reader = Reader(processor, Speech(folder, recognizer), Screen(folder, line_reader))
    crew.follow(partial(embed_batches, model, processor, reader, num_workers))


__all__ = ["Indexer", "help_index", "index_files"]
