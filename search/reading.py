"""Reads files, or windows of them, in threads of each indexing process.

Problems of a file are recorded with it, and do not affect other files.
"""

import copy
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from scalar_retrieval.commands.schema import check_value, count, flag, text
from scalar_retrieval.gallery.decoding import (
    LIGHT_MEMORY,
    Facts,
    Limits,
    date_in_name,
    num_processors,
    with_preview,
)
from scalar_retrieval.gallery.embedding import Embedded
from scalar_retrieval.gallery.store.file_state import clip_sha256, clip_stat, pieces_of
from scalar_retrieval.gallery.store.rows import MediaFile, is_hash
from scalar_retrieval.gallery.store.stills import as_still
from scalar_retrieval.gallery.store.windows import NOTHING, SLIVER, clip_id_of, seconds_of
from scalar_retrieval.gallery.words.transcripts import SCREEN
from scalar_retrieval.modeling_scalar.media_scalar import Window

from .languages import language_of
from .recognised import Recognised, RecognitionError
from .screen import RapidOcrReader, Screen, stands_still
from .sources import further_texts, title_of_name, words_of
from .speech import Speech
from .states import DOUBTFUL

if TYPE_CHECKING:
    from scalar_retrieval.modeling_scalar.processing_scalar import Clip, ScalarProcessor

    from .recognizers import Recognizer

_REMEMBERED = 1024  # files whose findings are kept for further windows, over all threads


def default_workers() -> int:
    """The number of clips read at a time: slightly more than the CPUs, as a decoder waits while its clip is prepared
    here."""
    return 1 + max(1, 3 * num_processors() // 2)


def memory_of_decoders(num_workers: int) -> int:
    """Bytes for the decoders: at least the default for one, and at most a quarter of the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(Limits().memory, min(num_workers * LIGHT_MEMORY, machine // 4))


def record_of(path: str, subtitle: str | None) -> tuple[MediaFile, bool]:
    """The record of a file before it is read; without a hash, but with the reason, if it is inaccessible. Also
    returns whether it is out of reach, so that its content is unknown."""
    try:
        return MediaFile(path, *clip_stat(path, subtitle), clip_sha256(path, subtitle)), False
    except (OSError, ValueError) as error:
        # `strerror` is the message without the number and the path.
        reason = str(getattr(error, "strerror", None) or error).removeprefix(f"{path}: ")
        return MediaFile(path, 0, 0, "", reason), isinstance(error, OSError)


def _is_out_of_reach(path: str) -> bool:
    """Whether a file is gone, or its location cannot be accessed, as with a missing drive."""
    # A drive may list a file, but not read it. Opening a pipe could block forever.
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            next(pieces_of(path), b"")
    except OSError:
        return True
    return False


def joined(sentences: Sequence[str]) -> str:
    """Join sentences into one."""
    *first, last = sentences
    parts = [sentence.rstrip(".") for sentence in first]
    return "; ".join([*parts, last])


def as_json(texts: Mapping[str, str]) -> str | None:
    """The texts of a file as its record has them."""
    return json.dumps(texts, ensure_ascii=False) if texts else None


@dataclass(frozen=True)
class Job:
    """A file to read, or one of its windows; the texts of the file from lists (`texts`) and from earlier runs
    (`before`), by modality; its length in seconds, if measured; and a key that the windows of one reading share."""

    path: str
    window: Window | None
    texts: Mapping[str, str]
    before: Mapping[str, str]
    seconds: float | None
    key: str

    @property
    def subtitle(self) -> str | None:
        """The subtitle from a list, as text or the path of a subtitle file."""
        return self.texts.get("subtitle")


@dataclass
class Findings:
    """
    What was read of a window.

    Args:
        file (`MediaFile`): the record of the file before reading.
        window (`tuple`, *optional*): what of the file was read; by default all of it.
        seconds (`float`, *optional*): the length of the window.
        language (`str`, *optional*): of its texts, if known.
        hints (`list[str]`): the modalities of words that nobody has looked for, where they would help: `"subtitle"` if
            the file has sound that is not embedded, `"screen"` if its pictures stand still; and
            [`~scalar_retrieval.search.states.DOUBTFUL`].
        has_words (`bool`): the window has a subtitle.
        problems (`list[str]`): what could not be read of it.
        reason (`str`, *optional*): why it is not a clip.
        failure (`str`, *optional*): why it has no transcript: not a problem of the clip, as a later run tries again.
        is_lost (`bool`): it was out of reach.
        max_audio (`float`, *optional*): how many seconds of sound the model takes, if there are more.
        still (`bytes`, *optional*): a frame as a JPEG file.
    """

    file: MediaFile
    window: Window | None = None
    seconds: float | None = None
    language: str | None = None
    hints: list[str] = field(default_factory=list)
    has_words: bool = False
    problems: list[str] = field(default_factory=list)
    reason: str | None = None
    failure: str | None = None
    is_lost: bool = False
    max_audio: float | None = None
    still: bytes | None = None


# Findings may come from another machine ------------------------------------------------------------------------------


def _moment(value: Any) -> bool:
    """a time in nanoseconds, of 64 bits"""
    return type(value) is int and abs(value) < 2**63


def _jpeg(value: Any) -> bool:
    """a JPEG"""
    return isinstance(value, bytes) and value.startswith(b"\xff\xd8")


_FINDINGS = {
    "seconds": (None, "[0, inf)"),
    "language": (None, text),
    "hints": [text],
    "has_words": flag,
    "problems": [text],
    "reason": (None, text),
    "failure": (None, text),
    "is_lost": flag,
    "max_audio": (None, "[0, inf)"),
    "still": (None, _jpeg),
}
_RECORD = {
    "path": text,
    "size": count,
    "mtime_ns": _moment,
    "sha256": is_hash,  # hashes become names of files
    "reason": (None, text),
    "texts": (None, text),
    "recorded_ns": (None, _moment),
    "place": (None, ["[-180, 180]"]),
    "language": (None, text),
}


def check_embedded(answer: Embedded, asked: Sequence[tuple[str, Window | None]]) -> None:
    """
    Check what came back, from this process or from another machine, against what was asked.

    Args:
        answer ([`~scalar_retrieval.gallery.embedding.Embedded`]): what came.
        asked (list of `tuple`): the file and the window of each job of the batch, in order.

    Raises:
        ValueError: it is something else; the message names the first difference.
    """
    import torch  # not at the top: it loads for a second, and often nothing is read

    try:
        if len(answer.notes) != len(asked):
            raise ValueError(f"{len(answer.notes)} notes came, not {len(asked)}")
        for found, (path, window) in zip(answer.notes, asked, strict=True):
            file = found.file
            check_value(vars(found), _FINDINGS)
            check_value(vars(file), _RECORD)
            if file.path != path or found.window != window:
                raise ValueError(f"a note on {file.path!r:.200} came instead of one on {clip_id_of(path, window)!r}")
            if found.reason is None and not file.sha256:
                raise ValueError(f"{path!r:.200} came without a hash")
            file.words()
        # Windows without a reason against it are clips; their number and vectors are checked when they are stored.
        if any(found.reason is None for found in answer.notes):
            embeds, mask = answer.embeds
            if (embeds.dtype, mask.dtype) != (torch.float32, torch.bool):
                raise ValueError(f"vectors must be float32, and a mask bool, got {embeds.dtype} and {mask.dtype}")
    except (AttributeError, TypeError, ValueError) as error:  # the first two: it is another kind of object
        what = str(error).rstrip(".")
        raise ValueError(
            f"A worker answered something other than what was asked: {what}. Nothing of this batch was written. Run "
            "all workers in the version of this program, and start again."
        ) from error


# Reading -------------------------------------------------------------------------------------------------------------


def titles_within(chapters: Sequence[tuple[float, str]], window: Window | None) -> list[str]:
    """The titles of the chapters that a window overlaps by more than codecs add, in order."""
    start, stop = window or (0.0, None)
    # A chapter ends where the next one begins.
    titles = []
    for (begins, title), (ends, _) in pairwise([*chapters, (math.inf, "")]):
        if title and ends > start + SLIVER and (stop is None or begins < stop - SLIVER):
            titles.append(title)
    return titles


class _File:
    """The findings shared by all windows of a file; threads that need them wait for the first one."""

    def __init__(self):
        self.lock = Lock()
        self.record: MediaFile | None = None
        self.is_lost = False
        self.seconds: float | None = None
        self.facts = Facts("", [], False, False)
        self.error: OSError | ValueError | None = None  # why the file cannot be opened
        self.transcripts: dict[str, str | None] = {}
        self.hints: list[str] = []
        self.failure: str | None = None


class Reader:
    """
    Reads jobs, in threads.

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): from
            [`~scalar_retrieval.gallery.decoding.tolerant`].
        gallery (`Path`): its folder, which has its transcripts.
        recognizer ([`~scalar_retrieval.search.recognizers.Recognizer`], *optional*), line_reader
            ([`~scalar_retrieval.search.screen.RapidOcrReader`], *optional*): make transcripts that are missing.

    Attributes:
        makers (`dict`): the transcripts of the gallery by the modality that they are read into.
    """

    def __init__(
        self,
        processor: "ScalarProcessor",
        gallery: Path,
        recognizer: "Recognizer | None",
        line_reader: RapidOcrReader | None,
    ):
        # The report names each problem, once and not in the middle of the bar.
        self.processor = copy.copy(processor)
        self.processor.logs_problems = False
        self.makers: dict[str, Recognised] = {}
        if "subtitle" in processor.modalities:
            self.makers["subtitle"] = Speech(gallery, recognizer)
        if SCREEN in processor.modalities:
            self.makers[SCREEN] = Screen(gallery, line_reader)
        self._lock = Lock()
        self._files = lru_cache(maxsize=_REMEMBERED)(lambda key: _File())

    def _hints_of(self, file: _File) -> dict[str, str]:
        """What would find words in a file where nobody has looked for them, by modality."""
        hints = {}
        for name, maker in self.makers.items():
            if getattr(file.facts, maker.source) and not maker.is_known(file.record.sha256):
                hints[name] = maker.hint
        return hints

    def __call__(self, job: Job) -> "tuple[Findings, Clip | None]":
        """Read a window: returns the findings, and the clip, if there is one."""
        path = job.path
        # What the windows of one reading of a file share; only the latest findings are kept.
        with self._lock:
            file = self._files(job.key)
        with file.lock:
            if file.record is None:
                self._examine(job, file)
        record = file.record
        found = Findings(record, window=job.window, reason=record.reason, is_lost=file.is_lost, failure=file.failure)
        found.hints += file.hints
        if found.reason is not None:
            return found, None
        # Options that are None are left out, as readers need not take them.
        options = {}
        if job.window is not None:
            options["window"] = job.window
        subtitle = job.subtitle or file.transcripts.get("subtitle")
        if subtitle is not None:
            options["subtitle"] = subtitle

        # A frame that the model sees is kept as a still.
        def keep(frame: np.ndarray) -> None:
            found.still = as_still(frame)

        # Read the window; what is wrong with it is recorded, and other files are read on.
        try:
            processor = with_preview(self.processor, keep)
            options |= self._texts(job, file, found)
            clip = processor.read_clip(path, processed=True, **options)
            problems = [problem.removeprefix(f"{path}: ") for problem in clip.problems]  # the reader names it too
            # A title alone may be the name of the file, in which there is nothing, or nothing that could be read.
            has_more = any(clip.has(name) for name in self.processor.modalities if name != "title")
            has_packets = file.facts.has_pictures or file.facts.has_sound
            has_less = bool(problems) or not (has_packets or job.texts)
            if clip.is_empty or (has_less and not has_more):
                found.problems = problems
                nothing = [NOTHING + ", ".join(self.processor.modalities)]
                nothing += [file.failure] if file.failure is not None else self._hints_of(file).values()
                raise ValueError(joined(problems or nothing))
        except (OSError, ValueError) as error:
            found.reason = str(error).removeprefix(f"{path}: ")
            found.is_lost = isinstance(error, FileNotFoundError) or _is_out_of_reach(path)
            if found.is_lost:
                found.file = MediaFile(path, 0, 0, "", found.reason)  # without a hash: read as soon as possible
            return found, None
        # What the report and the gallery need to know of a clip
        hints = self._hints_of(file)
        if "subtitle" in hints and "audio" not in self.processor.modalities:
            found.hints.append("subtitle")
        if SCREEN in hints and clip.frames is not None and stands_still(clip.frames):
            found.hints.append(SCREEN)
        found.has_words = clip.has("subtitle")
        found.language = language_of(" ".join(clip.text_of(name) or "" for name in self.processor.modalities))
        found.problems = problems
        found.seconds = seconds_of(file.seconds, job.window)
        if (clip.duration or 0) >= self.processor.max_audio_seconds + SLIVER:
            found.max_audio = self.processor.max_audio_seconds
        return found, clip

    def _texts(self, job: Job, file: _File, found: Findings) -> dict[str, dict[str, str]]:
        """The texts of a file other than speech and on-screen text, as an option of `read_clip`; also recorded. Lists
        take precedence over its tags, tags over earlier texts, and these over its name."""
        names = further_texts(self.processor.modalities)
        if not names:
            return {}
        # Later sources take precedence.
        available = dict(job.before)
        if "title" in names:
            if file.error is not None:
                raise file.error
            # A tag may be the name that the camera gave to the file.
            tag = file.facts.title
            if not words_of(tag) and not tag.isalpha():
                tag = ""
            available["title"] = tag or available.get("title") or title_of_name(job.path)
        available |= job.texts
        texts = {name: available[name] for name in names if available.get(name)}
        found.file = replace(found.file, texts=as_json(texts))
        if "title" in texts:
            # Chapters belong to windows, and are read from the file each time.
            titles = [texts["title"], *titles_within(file.facts.chapters, job.window)]
            texts["title"] = ". ".join(dict.fromkeys(titles))
        transcript = file.transcripts.get(SCREEN)
        if SCREEN in names and SCREEN not in texts and transcript is not None:
            texts[SCREEN] = self.processor.reader.read_subtitle(transcript, job.window)
        return {"texts": texts}

    def _examine(self, job: Job, file: _File) -> None:
        """Hash a file, read its facts, and make its transcripts, unless a list gives their text."""
        file.record, file.is_lost = record_of(job.path, job.subtitle)
        if file.record.reason is not None:
            return
        # What is wrong with a stream is reported when the clip is read.
        file.seconds = job.seconds
        if file.seconds is None:
            with suppress(OSError, ValueError):
                file.seconds = self.processor.reader.read_duration(job.path)
        try:
            file.facts = self.processor.reader.read_facts(job.path)
        except (OSError, ValueError) as error:
            file.error = error
        # When and where it was recorded
        recorded = file.facts.recorded_ns
        if recorded is None:
            recorded = date_in_name(job.path)
        file.record = replace(file.record, recorded_ns=recorded, place=file.facts.place)
        # Words are recognised once per file, before its first window is read.
        for name, maker in self.makers.items():
            if name not in job.texts:
                try:
                    file.transcripts[name] = maker.of(job.path, file.record.sha256, self.processor.reader)
                    if maker.is_doubtful(file.record.sha256):
                        file.hints.append(DOUBTFUL)
                except RecognitionError as error:
                    file.failure = str(error)


__all__ = [
    "Findings",
    "Job",
    "Reader",
    "as_json",
    "check_embedded",
    "default_workers",
    "joined",
    "memory_of_decoders",
    "record_of",
    "titles_within",
]
