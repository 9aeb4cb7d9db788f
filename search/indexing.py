"""From files to a gallery: find them, read them with the processor, embed them with the model, keep what is known.

A file is embedded once, and again only when its content changes. What cannot be read is recorded, never dropped.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm
from transformers import PreTrainedModel

from gallery.embedding import check_reading, embed_clips, read_batches
from gallery.files import sha256_of
from gallery.gallery import Gallery, GalleryWriter, MediaFile
from modeling_scalar.media_scalar import LimitError, Limits, check_file, find_sidecar
from modeling_scalar.processing_scalar import Clip, ScalarProcessor

EXTENSIONS = frozenset(
    ".mp4 .m4v .mov .mkv .webm .avi .mpg .mpeg .ts .flv .wmv .ogv .3gp .wav .mp3 .m4a .flac .ogg".split()
)
"""What is taken from a folder; a file named explicitly is taken whatever its extension."""


@dataclass
class IndexReport:
    """What one run did. Every file given is in exactly one of `new`, `changed`, `unchanged` and `unreadable`.

    `not_retried` is the part of `unreadable` that failed in an earlier run and has not changed since; `problems` lists
    clips of this run of which some stream could not be read; `vanished` are clips whose file is gone, `pruned` says
    whether they were taken out.
    """

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    unreadable: list[MediaFile] = field(default_factory=list)
    not_retried: list[str] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)
    vanished: list[str] = field(default_factory=list)
    pruned: bool = False


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
            found[_resolve(path)] = None
            continue
        for folder, subfolders, names in os.walk(path, onerror=_reraise, followlinks=True):
            real = os.path.realpath(folder)
            if real in visited or not recursive:
                subfolders.clear()  # linked folders are followed once, so a circle of links ends
            visited.add(real)
            subfolders.sort()
            for name in sorted(names):
                if os.path.splitext(name)[1].lower() in EXTENSIONS:
                    found[_resolve(os.path.join(folder, name))] = None
    return list(found)


def _resolve(path: str | os.PathLike) -> str:
    """The file that a link leads to; one that leads to anything else is reported by its own name."""
    real = os.path.realpath(path)
    return os.path.abspath(path) if os.path.exists(real) and not os.path.isfile(real) else real


def _reraise(error: OSError) -> None:
    raise error


def clip_sha256(path: str) -> str:
    """Hash what a clip is read from: the file and the subtitle file beside it, if there is one.

    Raises:
        MediaError: not a regular file: a pipe, a device or a folder.
    """
    check_file(path)
    sidecar = find_sidecar(path)
    if sidecar is None:
        return sha256_of(path)
    beside = sha256_of(sidecar) if sidecar.is_file() else ""  # reading will say what it is instead
    return hashlib.sha256(f"{sha256_of(path)} {beside}".encode()).hexdigest()


def clip_stat(path: str) -> tuple[int, int]:
    """Size and time of change, in nanoseconds, of a file together with the subtitle file beside it."""
    stats = [os.stat(file) for file in (path, find_sidecar(path)) if file is not None]
    return sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)


def _is_unchanged(path: str, known: MediaFile) -> bool:
    try:
        size, mtime_ns = clip_stat(path)
        return size == known.size and (mtime_ns == known.mtime_ns or clip_sha256(path) == known.sha256)
    except (OSError, ValueError):  # reading it will say what is wrong
        return False


@dataclass
class _Read:
    """What is noted of a file that was read; `file.reason` says why it is no clip."""

    file: MediaFile
    duration: float | None = None
    problems: list[str] = field(default_factory=list)


def _read(processor: ScalarProcessor, path: str, on_error: str) -> tuple[_Read, Clip | None]:
    """Read one file; whatever is wrong with it is noted."""
    file = MediaFile(path, 0, 0, "")
    try:
        size, mtime_ns = clip_stat(path)
        file = MediaFile(path, size, mtime_ns, clip_sha256(path))
        clip = processor.read_clip(path, on_error=on_error, processed=True)
        problems = [problem.removeprefix(f"{path}: ") for problem in clip.problems]  # the reader names the file too
        if clip.is_empty:
            raise ValueError("; ".join(problems) or "it has no picture, no sound and no subtitles")
    except (OSError, ValueError) as error:
        return _Read(replace(file, reason=str(error).removeprefix(f"{path}: "))), None
    return _Read(file, clip.duration, problems), clip


def _plan(
    files: list[str], gallery: Gallery, writer: GalleryWriter, retry: bool, limits: Limits, report: IndexReport
) -> list[str]:
    """Return the files that must be read; report the others."""
    todo, touched, problems = [], [], gallery.problems()
    for path in files:
        known = gallery.files.get(path)
        if known is None or not _is_unchanged(path, known):
            todo.append(path)
            continue
        told = problems.get(path, []) if known.reason is None else [known.reason]
        if any(LimitError.no_longer_holds(problem, limits) for problem in told) or (known.reason and retry):
            todo.append(path)
            continue
        _, mtime_ns = clip_stat(path)
        if mtime_ns != known.mtime_ns:  # touched, same content: remember, so as not to hash it again
            touched.append(replace(known, mtime_ns=mtime_ns))
        if known.reason is None:
            report.unchanged.append(path)
        else:
            report.unreadable.append(known)
            report.not_retried.append(path)
    writer.put_files(touched)
    return todo


def _look_for_vanished(gallery: Gallery, writer: GalleryWriter, prune: bool, report: IndexReport) -> None:
    """Report clips whose file is gone; with `prune`, take them and the records of such failures out."""
    gone = [file for path, file in gallery.files.items() if not os.path.exists(path)]
    report.vanished = [file.path for file in gone if file.reason is None]
    report.pruned = prune
    if prune:
        writer.remove_clips(report.vanished)
        writer.forget_files(file.path for file in gone if file.reason is not None)


def index_files(
    files: list[str],
    writer: GalleryWriter,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    *,
    batch_size: int = 8,
    num_workers: int = 2,
    on_error: str = "missing",
    prune: bool = False,
    progress: bool = False,
) -> IndexReport:
    """
    Bring a gallery up to date with files; every batch is committed when it is embedded.

    Args:
        files (`list[str]`): as returned by `find_files`. Clips of the gallery that are not among them are kept.
        writer ([`~gallery.gallery.GalleryWriter`]): the gallery; its `metadata` names the model.
        batch_size (`int`): files read and clips embedded at a time, and what a kill can lose.
        num_workers (`int`): threads that read batches ahead.
        on_error (`str`): "missing": a stream that cannot be decoded counts as absent, a file in which nothing can be
            read is reported, left out, and not tried again until it changes, or until a limit that it exceeded is
            raised. "raise": the first problem ends the run.
        prune (`bool`): take clips whose file is gone out of the gallery, instead of only reporting them.
        progress (`bool`): show a progress bar on stderr.

    Raises:
        ValueError: an option is out of range, or a file cannot be read and `on_error` is "raise".
    """
    check_reading(batch_size, on_error, num_workers)
    report, gallery = IndexReport(), writer.gallery()
    _look_for_vanished(gallery, writer, prune, report)
    todo = _plan(files, gallery, writer, on_error == "raise", processor.limits, report)
    writer.commit()
    with tqdm(total=len(todo), unit="file", disable=not progress) as bar:
        for batch in read_batches(
            processor, todo, lambda path: _read(processor, path, on_error), batch_size, num_workers
        ):
            stop = len(batch.notes)
            failed = [place for place, note in enumerate(batch.notes) if note.file.reason is not None]
            if failed and on_error == "raise":
                stop = failed[0]  # the files before this one are good
            read = [batch.notes[place] for place in batch.embeddable if place < stop]
            known = [note.file.path in writer for note in read]
            if read:
                embeds, mask, concat_embeds = embed_clips(model, batch.features)
                rows = slice(len(read))
                writer.put_clips(
                    [note.file.path for note in read],
                    embeds[rows],
                    mask[rows],
                    None if concat_embeds is None else concat_embeds[rows],
                    durations=[note.duration for note in read],
                    problems=[note.problems for note in read],
                )
            failed = [batch.notes[place].file for place in failed]
            # What was embedded is no longer what such a file holds.
            writer.remove_clips(file.path for file in failed if stop == len(batch.notes) and file.path in writer)
            writer.put_files([note.file for note in batch.notes[:stop]])
            writer.commit()
            if stop < len(batch.notes):
                raise ValueError(f"{failed[0].path}: {failed[0].reason}")
            report.unreadable += failed
            for note, is_known in zip(read, known, strict=True):
                (report.changed if is_known else report.new).append(note.file.path)
                if note.problems:
                    report.problems[note.file.path] = note.problems
            bar.update(len(batch.notes))
    return report


__all__ = ["EXTENSIONS", "IndexReport", "clip_sha256", "clip_stat", "find_files", "index_files"]
