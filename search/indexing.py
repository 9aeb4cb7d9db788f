"""Indexing: embed new and changed files into a gallery, and report the state of every file.

- A file is embedded again only when its content changes. What cannot be read is recorded, never dropped.
- [`Indexer.update`] has four steps: find the files that are gone, choose those to read, read
  ([`~scalar_retrieval.search.reading`]) and embed them, and commit each batch.
- The first two need no model, which is loaded once there is something to read.
"""

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from uuid import uuid4

from scalar_retrieval.gallery.decoding import IN_PART, LimitError, SandboxedReader, date_in_name, tolerant
from scalar_retrieval.gallery.embedding import Embedded, embed_batches, in_background, in_batches
from scalar_retrieval.gallery.gallery import GalleryWriter, MediaFile
from scalar_retrieval.gallery.scenes import scene_windows
from scalar_retrieval.gallery.store.file_state import clip_stat, mark_of, unchanged_since
from scalar_retrieval.gallery.store.windows import (
    PARTLY,
    SCENES,
    SEGMENT,
    UNFINISHED,
    Place,
    clip_id_of,
    is_nothing,
    windows_of,
)
from scalar_retrieval.gallery.words.transcripts import SCREEN, Transcripts
from scalar_retrieval.modeling_scalar.media_scalar import Window, joined_losses

from .progress import Progress
from .reading import Findings, Job, Reader, as_json, check_embedded, default_workers, joined, record_of
from .screen import Screen
from .setup import Loaded
from .sources import title_of_name
from .speech import Speech
from .states import FileState, Report, Status
from .vanished import deleted, is_gone

_AT_ONCE = 100  # moved or touched files per commit: a kill should not lose more, as hashing is slow
_SUBTITLE = "subtitle"
_RECOGNISED = {_SUBTITLE: Speech, SCREEN: Screen}  # modalities of words that machines recognise
_MEASURING = "measuring scenes of"  # in the bar
_AWAY = "no other file of the gallery is left there, perhaps because a drive is not mounted: --prune keeps them"

TextsOfFiles = Mapping[str, Mapping[str, str]]
"""Texts by file and by modality."""
Embed = Callable[[Iterable[Job], int], Generator[Embedded, None, None]]
"""From jobs, and the number of them in a batch, to what is found and embedded of each batch, in order."""


@dataclass(eq=False)
class _Source:
    """
    A file that is being read, whole or by windows, with the findings so far.

    Args:
        path (`str`), texts (`dict[str, str]`): the file, and its texts from lists, by modality.
        recorded (`MediaFile`, *optional*): its record in the gallery.
        windows (`list`): the windows to read; `None` stands for the whole file.
        num_windows (`int`): the number of windows of the file.
        seconds (`float`, *optional*): its length, if measured.
        stale (`list[str]`): clips to remove once it is read.
        was_known (`bool`): it was complete in the gallery before this run.
        had_clips (`bool`): it had clips before this run.

    Attributes:
        problems (`dict`), reasons (`dict`): the times of the windows with each problem, and with each that prevented a
            clip; None for the whole file.
        key (`str`): no other reading of a file has it, in any process.
    """

    path: str
    texts: Mapping[str, str]
    recorded: MediaFile | None
    windows: list[Window | None]
    num_windows: int
    seconds: float | None
    stale: list[str]
    was_known: bool
    had_clips: bool
    file: MediaFile | None = None
    num_read: int = 0
    num_lost: int = 0
    has_words: bool = False
    languages: Counter[str] = field(default_factory=Counter)
    hints: set[str] = field(default_factory=set)
    reasons: dict[str, list[str | None]] = field(default_factory=dict)
    problems: dict[str, list[str | None]] = field(default_factory=dict)
    max_audio: float | None = None

    def __post_init__(self) -> None:
        self.key = uuid4().hex
        self.num_clips = self.num_windows - len(self.windows)  # clips from earlier runs
        self.before = {} if self.recorded is None else self.recorded.words()
        if self.num_clips and self.recorded is not None and self.recorded.language is not None:
            self.languages[self.recorded.language] += self.num_clips

    @property
    def is_done(self) -> bool:
        """Whether all windows were read."""
        return self.num_read == len(self.windows)

    @property
    def is_kept(self) -> bool:
        """Whether nothing changes for the file, as it is out of reach: only pruning removes clips of missing files."""
        return self.had_clips and self.num_lost == self.num_read

    def add(self, window: Window | None, found: Findings) -> None:
        """Add the findings of a window to those of the file."""
        if self.file is None or (found.file.sha256 and not self.file.sha256):
            self.file = found.file
        self.num_read += 1
        self.num_clips += found.reason is None
        self.num_lost += found.is_lost
        self.max_audio = self.max_audio or found.max_audio
        self.hints.update(found.hints)
        # The language of a file is that of most of its clips.
        if found.language is not None:
            self.languages[found.language] += 1
        for language, _ in self.languages.most_common(1):
            self.file = replace(self.file, language=language)
        self.has_words = self.has_words or found.has_words
        # A stream that ends within a window is missing in the windows after it, so reasons are problems, too.
        span = Place(self.path, *window or ()).span
        problems = found.problems
        if found.reason is not None:
            problems = problems or [found.reason]
            for problem in problems:
                self.reasons.setdefault(problem, []).append(span)
        if found.failure is not None:
            problems = [*problems, found.failure]
        for problem in problems:
            self.problems.setdefault(problem, []).append(span)

    def record(self) -> MediaFile:
        """The record of the file for the gallery."""
        # A later run reads the windows that are missing, and those that became inaccessible.
        if not self.is_done or (self.num_clips and self.num_lost):
            return replace(self.file, reason=UNFINISHED)
        if not self.num_clips and self.file.reason is None:
            return replace(self.file, reason=joined(self._messages(self.reasons)))
        # A window in which there is nothing is no failure.
        failures = {reason: spans for reason, spans in self.reasons.items() if not is_nothing(reason)}
        if self.num_clips and failures:
            return replace(self.file, reason=PARTLY + joined(self._messages(failures)))
        return self.file

    def state(self) -> FileState:
        """The state of the file for the report, once it is done."""
        if self.is_kept:
            return FileState(self.path, Status.OUT_OF_REACH, joined(list(self.reasons)))
        # A file has a subtitle if one of its windows has words of it.
        hints = frozenset(self.hints)
        if self.has_words:
            hints -= {_SUBTITLE}
        if not self.num_clips:
            reason = self.record().reason
            status = _status_without_clips(reason)
            return FileState(self.path, status, reason, is_dropped=self.had_clips, hints=hints)
        status = Status.CHANGED if self.was_known else Status.NEW
        if self.was_known and self.num_clips == self.num_windows - len(self.windows):
            status = Status.UNCHANGED
        return FileState(
            self.path,
            status,
            problems=tuple(self._messages(self.problems)),
            max_audio=self.max_audio,
            hints=hints,
        )

    def _messages(self, found: dict[str, list[str | None]]) -> list[str]:
        """The findings, each with the times of its windows, unless it applies to all of them."""
        lines = []
        for text, parts in joined_losses(found).items():
            spans = [span for part in parts for span in found[part]]
            if len(spans) < self.num_windows:
                where = ", ".join(map(str, spans[:3]))
                if len(spans) > 3:
                    where += f" and {len(spans) - 3} more windows"
                text = f"{where}: {text}"
            lines.append(text)
        return lines


def _status_without_clips(reason: str | None) -> Status:
    """The status of a file that has no clips, for this reason."""
    return Status.EMPTY if is_nothing(reason) else Status.UNREADABLE


class _Update:
    """
    One update: finds the files that are gone, chooses those to read, and reports the others.

    Args:
        writer, media, recognised: of the [`Indexer`].
        files (`list[str]`), texts (`dict`): what is indexed, see [`Indexer.update`].
        report ([`~scalar_retrieval.search.states.Report`]): gets the states.
    """

    def __init__(
        self,
        writer: GalleryWriter,
        media: SandboxedReader,
        recognised: Collection[str],
        files: Sequence[str],
        texts: TextsOfFiles,
        report: Report,
    ):
        self.writer = writer
        self.media = media
        self.recognised = recognised
        self.files = files
        self.texts = texts
        self.report = report
        self.segment = writer.metadata.get(SEGMENT)
        self.moved: set[str] = set()
        self._read_gallery()

    def _read_gallery(self) -> None:
        """Read what the gallery holds: records of files by path, and the clips and problems of each file."""
        self.gallery = self.writer.gallery()
        self.known = self.gallery.files
        self.clips = self.gallery.clips_of_files()
        self.problems = self.gallery.problems()
        # The clips that have words of each kind that machines recognise, if the gallery has the modality
        self.with_words = {}
        for words in _RECOGNISED:
            if words in self.gallery.modalities:
                self.with_words[words] = self.gallery.clips_with(words)

    def _subtitle_of(self, path: str) -> str | None:
        """The subtitle of a file from a list."""
        return self.texts.get(path, {}).get(_SUBTITLE)

    # Files that are gone ---------------------------------------------------------------------------------------------

    def find_gone(self, prune: bool, unlisted: Iterable[str]) -> None:
        """Report files that are gone or out of reach; with `prune`, remove the clips of deleted ones. A new file with
        the content of one that is gone gets its clips."""
        # A file that cannot be accessed may still be there.
        gone = []
        hidden = tuple(os.path.join(folder, "") for folder in unlisted)
        for path in self.known:
            try:
                if is_gone(path, hidden):
                    gone.append(path)
            except OSError as error:
                if path in self.clips:
                    self.report.add(FileState(path, Status.OUT_OF_REACH, error.strerror or str(error)))
        # Keep the clips of files that were moved under their new names.
        moves = {}
        for batch in in_batches(self._moves(gone), _AT_ONCE):
            names = {}
            for old, new in batch:
                moves[old.path] = new.path
                for name in self.clips[old.path]:
                    names[name] = new.path + name.removeprefix(old.path)
            self.writer.rename_clips(names)
            self.writer.forget_files(old.path for old, _ in batch)
            self.writer.put_files([new for _, new in batch])
            self.writer.commit()
        gone = [path for path in gone if path not in moves]
        # Only what was deleted is removed: the rest may be on a drive that is away.
        lost = deleted(gone, (*self.known, *self.files))
        for path in gone:
            if self.known[path].reason is not None and path not in self.clips:
                continue  # nothing is lost with a file that could not be read
            if path not in lost:
                self.report.add(FileState(path, Status.GONE, _AWAY))
            else:
                self.report.add(FileState(path, Status.REMOVED if prune else Status.GONE))
        if prune:
            for path in lost:
                self.writer.remove_clips(self.clips.get(path, ()))
            self.writer.forget_files(lost)
            self.writer.commit()
        if moves:
            self.moved = set(moves.values())
            self._read_gallery()

    def _moves(self, gone: Sequence[str]) -> Iterator[tuple[MediaFile, MediaFile]]:
        """Find new files with the content of files that are gone: yields old and new records."""
        lost = {}
        for path in gone:
            if path in self.clips and self.known[path].sha256:
                lost[self.known[path].sha256] = self.known[path]
        if not lost:
            return
        # Hashing is slow: only files of the same size can have the same content.
        sizes = {file.size for file in lost.values()}
        for path in self.files:
            subtitle = self._subtitle_of(path)
            try:
                if path in self.known or clip_stat(path, subtitle)[0] not in sizes:
                    continue
            except (OSError, ValueError):  # reading the file reports what is wrong
                continue
            new, _ = record_of(path, subtitle)
            old = lost.pop(new.sha256, None)
            if old is None:
                continue
            # A title that was made from the name of the file is made from its new name, if that has words.
            texts = old.words()
            if texts.get("title") == title_of_name(old.path):
                texts["title"] = title_of_name(path) or texts["title"]
            # So is a date, if the new name has one; others are of its tags.
            recorded = old.recorded_ns
            if recorded == date_in_name(old.path):
                recorded = date_in_name(path) or recorded
            kept = {name: getattr(old, name) for name in ("reason", "place", "language")}
            yield old, replace(new, texts=as_json(texts), recorded_ns=recorded, **kept)

    # Files to read ---------------------------------------------------------------------------------------------------

    def choose(self) -> dict[str, MediaFile | None]:
        """Return the files to read, with the records of those that only lack windows; report the others."""
        todo = {}
        num_touched = 0
        for path in self.files:
            if path in self.report:
                continue  # from a list, and gone or out of reach
            file = self.known.get(path)
            subtitle = self._subtitle_of(path)
            if file is None:
                todo[path] = None
                continue
            if not file.sha256 and record_of(path, subtitle)[0] == file:
                # A broken link or a pipe: reading it would give the same result.
                self.report.add(FileState(path, Status.UNREADABLE, file.reason, is_old=True))
                continue
            mtime_ns = unchanged_since(path, file, subtitle)
            if mtime_ns is None or self._has_further_source(file):
                todo[path] = None
                continue
            if file.reason is not None and (file.reason == UNFINISHED or self._has_higher_limit([file.reason])):
                todo[path] = file if path in self.clips else None
                continue
            if mtime_ns != file.mtime_ns:  # touched, same content: record it, to avoid hashing it again
                self.writer.put_files([replace(file, mtime_ns=mtime_ns)])
                num_touched += 1
                if num_touched % _AT_ONCE == 0:
                    self.writer.commit()
            # The file need not be read: report its state.
            status = Status.MOVED if path in self.moved else Status.UNCHANGED
            if file.reason is None:
                state = FileState(path, status)
            elif path in self.clips:
                state = FileState(path, status, problems=(file.reason,), is_old=True)
            else:
                state = FileState(path, _status_without_clips(file.reason), file.reason, is_old=True)
            self.report.add(state)
        self.writer.commit()
        return todo

    def _has_further_source(self, file: MediaFile) -> bool:
        """Whether an unchanged file may have something that was not found before: words to recognise, words of a list,
        or streams that exceeded limits which were raised since."""
        clips = self.clips.get(file.path, ())
        problems = [problem for name in clips for problem in self.problems.get(name, ())]
        if self._has_higher_limit(problems):
            return True
        # The hash of a file covers its subtitle, but not its other texts.
        known = file.words()
        for name, text in self.texts.get(file.path, {}).items():
            if name != _SUBTITLE and known.get(name) != text:
                return True
        if not clips and not is_nothing(file.reason):
            return False
        # What is recognised in a damaged file would be recorded with other problems each time.
        if not all(IN_PART in problem for problem in problems):
            return False
        for words, having in self.with_words.items():
            is_given = words == _SUBTITLE and self._subtitle_of(file.path)
            if not is_given and having.isdisjoint(clips) and self._may_have(words, file):
                return True
        return False

    def _may_have(self, words: str, file: MediaFile) -> bool:
        """Whether an unchanged file without words of a kind, `subtitle` or `screen`, has some in a transcript, or has
        sound or pictures in which a recogniser may find some."""
        # What was looked for before is not looked for again.
        kind = _RECOGNISED[words]
        has_words = Transcripts(self.writer.folder, kind.kind).has_words(file.sha256)
        if has_words is not None or words not in self.recognised:
            return bool(has_words)
        try:
            facts = self.media.read_facts(file.path)
        except (OSError, ValueError):
            return False
        return getattr(facts, kind.source)

    def _has_higher_limit(self, messages: Iterable[str]) -> bool:
        """Whether a limit that was exceeded has been raised since."""
        parts = "; ".join(messages).split("; ")
        return any(LimitError.no_longer_holds(part, self.media.limits) for part in parts)

    def sources(
        self, todo: Mapping[str, MediaFile | None], num_workers: int, bar: Progress
    ) -> Generator[_Source, None, None]:
        """The files to read, in order, with the windows of each, which are found in advance and several files at a
        time."""

        def find(item: tuple[str, MediaFile | None]) -> _Source | FileState:
            return self._source(*item, bar)

        for found in in_background(find, todo.items(), num_workers):
            if isinstance(found, FileState):
                self.report.add(found)
            else:
                yield found

    def _source(self, path: str, file: MediaFile | None, bar: Progress) -> _Source | FileState:
        """Find the windows of a file; its state, if that is not possible now, but it has not changed."""
        media = self.media
        there = self.clips.get(path, [])
        seconds = None
        # Cut the file into windows, where the gallery has any.
        try:
            if self.segment is not None:
                seconds = media.read_duration(path)
            bar.begin(path, seconds)
            if mark_of(self._subtitle_of(path)):  # words of a list have no times
                windows = [None]
            elif self.writer.metadata.get(SCENES):
                windows = scene_windows(path, seconds, self.segment, media, partial(bar.reach, _MEASURING, path))
            else:
                windows = windows_of(seconds, self.segment)
        except (OSError, ValueError) as error:
            bar.begin(path, seconds)
            if file is not None:  # the file has not changed, and no windows can be added now
                reason = str(error).removeprefix(f"{path}: ").rstrip(".")
                problems = (f"its length could not be read now: {reason}", file.reason)
                return FileState(path, Status.UNCHANGED, problems=problems)
            windows = [None]  # reading the file reports what is wrong
        # The clips of a file that has not changed are kept, and only missing windows are read.
        missing = []
        stale = dict.fromkeys(there)
        for window in windows:
            name = clip_id_of(path, window)
            if file is not None and name in stale:
                del stale[name]
            else:
                missing.append(window)
        if not missing:  # a problem is recorded nevertheless: read all again
            missing = windows
            stale = there
        return _Source(
            path,
            self.texts.get(path, {}),
            self.known.get(path),
            missing,
            len(windows),
            seconds,
            list(stale),
            was_known=bool(there) and (file is None or file.reason != UNFINISHED),
            had_clips=bool(there),
        )


class Indexer:
    """
    Updates a gallery from files; every batch is committed once it is embedded.

    If the metadata of the gallery has a `"segment"`, in seconds, longer files are cut into windows, each a clip (see
    [`~scalar_retrieval.gallery.store.windows`]); with `"scenes"`, at chapters or scene changes. An interrupted run
    continues there.

    A stream that cannot be decoded counts as absent. A file in which nothing can be read is reported, left out, and
    not tried again until it changes or a limit that it exceeded is raised. A file in which nothing is found is tried
    again once there is a further recogniser.

    Args:
        writer ([`~scalar_retrieval.gallery.gallery.GalleryWriter`]): the gallery; its `metadata` names the model.
        load (`Callable`): returns the [`~scalar_retrieval.search.setup.Loaded`] of the gallery, the same each time; it
            is called once there is something to read.
        media ([`~scalar_retrieval.gallery.decoding.SandboxedReader`]): reads what is no part of a clip, such as the
            length of a file.
        recognised (collection of `str`): the modalities that recognisers make words of, `subtitle` and `screen`, if
            what is loaded has any. Existing transcripts are used without them, too.
        batch_size (`int`): number of clips read and embedded at a time, and the most that a kill can lose.
        num_workers (`int`, *optional*): number of clips read at a time, each in its own decoder; by default slightly
            more than the number of CPUs.
        prune (`bool`): remove clips of deleted files, see [`~scalar_retrieval.search.vanished.deleted`], instead of
            only reporting them. Clips of inaccessible files are kept.
        progress (`bool`): show a progress bar on stderr.
        embed ([`Embed`], *optional*): reads and embeds elsewhere, see
            [`~scalar_retrieval.search.distributed.Cluster`]; by default this process does.

    Attributes:
        report ([`~scalar_retrieval.search.states.Report`]): the latest state of every file, even if an update was
            interrupted.
    """

    def __init__(
        self,
        writer: GalleryWriter,
        load: Callable[[], Loaded],
        media: SandboxedReader,
        *,
        recognised: Collection[str] = (),
        batch_size: int = 8,
        num_workers: int | None = None,
        prune: bool = False,
        progress: bool = False,
        embed: Embed | None = None,
    ):
        self.writer = writer
        self.report = Report()
        self.media = media
        self.recognised = recognised
        self.batch_size = batch_size
        self.num_workers = num_workers or default_workers()
        self.prune = prune
        self.progress = progress
        self._load = load
        self._embed = embed or self._embed_here

    def update(self, files: Sequence[str], texts: TextsOfFiles | None = None, unlisted: Iterable[str] = ()) -> Report:
        """
        Embed new and changed files.

        Args:
            files (`list[str]`): as returned by [`~scalar_retrieval.search.sources.find_files`]. Clips of other files
                are kept.
            texts (`dict[str, dict[str, str]]`, *optional*): texts by file and by modality. For `"subtitle"` it may be
                the path of a subtitle file.
            unlisted (`list[str]`): folders that could not be listed: nothing below them counts as gone.

        Returns:
            The states of these files, and of those that are gone or out of reach.
        """
        report = Report()
        try:
            update = _Update(self.writer, self.media, self.recognised, files, texts or {}, report)
            update.find_gone(self.prune, unlisted)
            todo = update.choose()
            if todo:
                self._read(update, todo, report)
        finally:
            self.report.update(report)
        return report

    # Reading, embedding and writing ----------------------------------------------------------------------------------

    @cached_property
    def _reader(self) -> Reader:
        loaded = self._load()
        return Reader(tolerant(loaded.processor), self.writer.folder, loaded.recognizer, loaded.line_reader)

    def _embed_here(self, jobs: Iterable[Job], batch_size: int) -> Generator[Embedded, None, None]:
        """Read and embed files in this process."""
        loaded = self._load()
        return embed_batches(loaded.model, loaded.processor, jobs, self._reader, batch_size, self.num_workers)

    def _read(self, update: _Update, todo: Mapping[str, MediaFile | None], report: Report) -> None:
        """Read, embed and commit files, batch by batch."""
        waiting: deque[tuple[_Source, Window | None]] = deque()

        def jobs() -> Iterator[Job]:
            for source in sources:
                for window in source.windows:
                    waiting.append((source, window))
                    yield Job(source.path, window, source.texts, source.before, source.seconds, source.key)

        # Recognising the words of one file may take long, so the bar shows the second that was reached.
        recognising = [maker for maker in self._reader.makers.values() if maker.recognizer is not None]
        doing = [maker.doing for maker in recognising]
        if self.writer.metadata.get(SCENES):
            doing.append(_MEASURING)
        bar = Progress(len(todo), len(doing), self.progress)
        for maker in recognising:
            maker.on_progress = partial(bar.reach, maker.doing)
        # Clips are committed in the order in which they were submitted.
        began = time.monotonic()
        is_first = True
        with (
            closing(update.sources(todo, self.num_workers, bar)) as sources,
            closing(self._embed(jobs(), self.batch_size)) as batches,
            bar,
        ):
            for batch in batches:
                # Nothing is written of what was not asked.
                asked = [waiting.popleft() for _ in range(min(self.batch_size, len(waiting)))]
                check_embedded(batch, [(source.path, window) for source, window in asked])
                reads = [(*job, found) for job, found in zip(asked, batch.notes, strict=True)]
                self._commit(reads, batch, report)
                for source, *_ in reads:
                    bar.add(source.path, 1 / len(source.windows))
                if is_first and self.progress and bar.share < 0.99:
                    seconds = time.monotonic() - began
                    total = bar.format_interval(seconds / bar.share)
                    bar.write(f"{len(todo)} files, about {total} at {seconds / len(reads):.2g} s a clip.", sys.stderr)
                is_first = False

    def _commit(self, reads: list[tuple[_Source, Window | None, Findings]], batch: Embedded, report: Report) -> None:
        """Write a batch into the gallery, all or nothing, and report the files that are done."""
        # Write the clips and their stills: the vectors are checked first.
        names = []
        problems = []
        seconds = []
        stills = []
        for source, window, found in reads:
            if found.reason is not None:
                continue
            names.append(clip_id_of(source.path, window))
            problems.append(found.problems)
            seconds.append(found.seconds)
            if found.still is not None:
                start = window[0] if window is not None else None
                stills.append((found.file.sha256, start, found.still))
        if names:
            self.writer.put_clips(names, *batch.embeds, problems=problems, seconds=seconds)
        for still in stills:
            self.writer.stills.put(*still)
        # Record the files, and remove their earlier clips.
        sources = {}
        for source, window, found in reads:
            source.add(window, found)
            sources[source] = None
        for source in sources:
            if source.is_kept:
                continue
            if source.stale:
                self.writer.remove_clips(set(source.stale).difference(names))
                source.stale = []
            file = source.record()
            if file != source.recorded:
                source.recorded = file
                self.writer.put_files([file])
        self.writer.commit()
        # Only what is committed is reported as done.
        for source in sources:
            if source.is_done:
                report.add(source.state())


__all__ = ["Embed", "Indexer"]
