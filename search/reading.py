"""Reads files, or windows of them, and says what it found: in threads, of each process that takes part in indexing.

Whatever is wrong with a file is noted of it, and stops no other.
"""

import io
import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
from PIL import Image

from gallery.decoding import LIGHT_MEMORY, Limits, num_processors, showing
from gallery.gallery import MediaFile
from gallery.media import clip_sha256, clip_stat, pieces_of
from gallery.transcripts import SCREEN
from gallery.windows import SLIVER, seconds_of
from modeling_scalar.media_scalar import Window
from modeling_scalar.processing_scalar import Clip, ScalarProcessor
from modeling_scalar.scores_scalar import kind_of
from search.recognizers import SpeechError
from search.screen import Screen, ScreenError
from search.speech import Speech

NOTHING = "it has no picture, no sound and no subtitles"
"""Why a file or a window is no clip in which everything could be read."""

_REMEMBERED = 1024  # files of which windows are read at a time, by all threads
_STILL = (320, 320)  # the most that a still picture is wide and high
_STILL_QUALITY = 70  # of JPEG: 5 to 15 kB


def default_workers(num_processes: int = 1) -> int:
    """How many clips are read at a time by each of so many processes of a machine: together some more than there are
    processors, as a decoder waits while its clip is prepared here."""
    return 1 + max(1, 3 * num_processors() // (2 * num_processes))


def memory_of_decoders(num_workers: int, num_processes: int = 1) -> int:
    """Bytes for so many decoders of a process: no less than for one alone, and at most its share of a quarter of the
    machine's."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return max(Limits().memory, min(num_workers * LIGHT_MEMORY, machine // 4 // num_processes))


def look(path: str, subtitle: str | None, languages: Sequence[str]) -> tuple[MediaFile, bool]:
    """What is noted of a file before it is read; without a hash, and with the reason, if it cannot be looked at. And
    whether it is out of reach, so that nobody knows what it holds now."""
    try:
        stat, sha256 = clip_stat(path, subtitle, languages), clip_sha256(path, subtitle, languages)
        return MediaFile(path, *stat, sha256), False
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error).removeprefix(f"{path}: ")
        return _unseen(path, reason), isinstance(error, OSError)


def _unseen(path: str, reason: str) -> MediaFile:
    """What is noted of a file that cannot be looked at: as it has no hash, it is read as soon as it can be."""
    return MediaFile(path, 0, 0, "", reason)


def _is_out_of_reach(path: str) -> bool:
    """Whether a file is gone, or where it lies cannot be reached, as with a drive that was taken away."""
    try:
        if stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe could take forever
            next(pieces_of(path), b"")
    except OSError:
        return True
    return False


def joined(sentences: Sequence[str]) -> str:
    """Sentences in one."""
    return "; ".join([sentence.rstrip(".") for sentence in sentences[:-1]] + list(sentences[-1:]))


@dataclass(frozen=True)
class Job:
    """What is to be read of a file, all of it or a window; what a list says of it in words, and what was known before,
    by the names of modalities; and how many seconds the file lasts, if it was measured."""

    path: str
    window: Window | None
    texts: Mapping[str, str]
    before: Mapping[str, str]
    seconds: float | None

    @property
    def subtitle(self) -> str | None:
        """What is said in it, or the path of a subtitle file, where a list knows that."""
        return self.texts.get("subtitle")


@dataclass
class Found:
    """What reading a window tells; `reason` says why it is no clip, `file` is what the file was before; `unheard`
    why it has no transcript, which is no problem of the clip, as a later run tries again; `is_lost` says whether it
    was out of reach; `heard` how much of the sound the model hears, if there is more; `unused` what further subtitles
    there are of the file; `still` is a picture of it, as the bytes of a JPEG file, if it has any."""

    file: MediaFile
    duration: float | None = None
    seconds: float | None = None
    problems: list[str] = field(default_factory=list)
    reason: str | None = None
    unheard: str | None = None
    is_lost: bool = False
    is_transcribed: bool = False
    heard: float | None = None
    unused: tuple[str, ...] = ()
    still: bytes | None = None


def _still_of(frame: np.ndarray) -> bytes:
    """A small JPEG file of a frame, uint8 `(height, width, 3)`."""
    picture, file = Image.fromarray(frame), io.BytesIO()
    picture.thumbnail(_STILL)
    picture.save(file, "jpeg", quality=_STILL_QUALITY)
    return file.getvalue()


class _File:
    """What is found out about a file once for all its windows; threads take turns."""

    def __init__(self):
        self.lock = Lock()
        self.looked: tuple[MediaFile, bool] | None = None
        self.is_listened = self.is_measured = False
        self.transcripts: dict[str, str | None] = {}
        self.unheard: str | None = None
        self.seconds: float | None = None


class Reader:
    """
    Reads jobs, in threads.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): with a sandboxed reader.
        on_error (`str`): "missing" or "raise", see [`~search.indexing.Indexer`].
        speech ([`~search.speech.Speech`]), screen ([`~search.screen.Screen`]): the transcripts of the gallery.
    """

    def __init__(self, processor: ScalarProcessor, on_error: str, speech: Speech, screen: Screen):
        self.processor, self.on_error, self.speech, self.screen = processor, on_error, speech, screen
        self._lock, self._files = Lock(), {}

    def __call__(self, job: Job) -> tuple[Found, Clip | None]:
        """Read a window: what is told of it, and the clip, if it is one."""
        path, file = job.path, self._file(job.path)
        with file.lock:
            file.looked = file.looked or look(path, job.subtitle, self.processor.reader.languages)
        media, is_lost = file.looked
        found = Found(media, reason=media.reason, is_lost=is_lost)
        if found.reason is not None:
            return found, None
        transcripts = self._transcripts(job, file)
        found.unheard, words = file.unheard, job.subtitle
        if words is None:
            words = transcripts.get("subtitle")
            found.is_transcribed = words is not None
        if found.unheard is not None and self.on_error == "raise":
            found.reason = found.unheard
            return found, None
        options = {"window": job.window, "subtitle": words}
        options = {name: value for name, value in options.items() if value is not None}

        def keep(frame: np.ndarray) -> None:
            found.still = _still_of(frame)

        try:
            processor = showing(self.processor, keep)
            options |= self._texts(job, transcripts, found)
            clip = processor.read_clip(path, on_error=self.on_error, processed=True, **options)
            problems = [problem.removeprefix(f"{path}: ") for problem in clip.problems]  # the reader names it too
            if clip.is_empty:
                found.problems = problems
                raise ValueError(joined(problems) or NOTHING)
        except (OSError, ValueError) as error:
            found.reason = str(error).removeprefix(f"{path}: ")
            found.is_lost = isinstance(error, FileNotFoundError) or _is_out_of_reach(path)
            if found.is_lost:
                found.file = _unseen(path, found.reason)
            return found, None
        found.duration, found.problems = clip.duration, problems
        found.unused = self._unused(job)
        found.seconds = seconds_of(self._seconds(file, job), job.window)
        if (clip.duration or 0) >= self.processor.max_audio_seconds + SLIVER:
            found.heard = self.processor.max_audio_seconds
        return found, clip

    def _texts(self, job: Job, transcripts: Mapping[str, str | None], found: Found) -> dict[str, dict[str, str]]:
        """What is known of a file in words, but what is spoken and shown in it, as an option of reading; it is noted,
        too. What a list says counts more than its own tags, and these more than what was known before."""
        names = [name for name in self.processor.modalities if kind_of(name) == "text" and name != "subtitle"]
        if not names:
            return {}
        tags = {"title": self.processor.reader.read_title(job.path)} if "title" in names else {}
        told = job.before | {name: text for name, text in tags.items() if text} | dict(job.texts)
        texts = {name: told[name] for name in names if name in told}
        others = {name: text for name, text in job.before.items() if name not in names}
        words = others | texts
        found.file = replace(found.file, texts=json.dumps(words, ensure_ascii=False) if words else None)
        if SCREEN in names and SCREEN not in texts and (read := transcripts.get(SCREEN)):
            texts[SCREEN] = self.processor.reader.read_subtitle(read, job.window)
        return {"texts": texts}

    def _file(self, path: str) -> _File:
        """What is known of a file; the latest are remembered."""
        with self._lock:
            file = self._files[path] = self._files.pop(path, None) or _File()
            if len(self._files) > _REMEMBERED:
                del self._files[next(iter(self._files))]
            return file

    def _unused(self, job: Job) -> tuple[str, ...]:
        """What subtitles of a file are not read, as others are, or as they are none of words."""
        with suppress(OSError, ValueError):  # where there are some, reading them says what is wrong
            found = self.processor.reader.subtitles_of(job.path)
            is_read = job.subtitle is None and bool(found) and found[0].unread is None
            return tuple(words.kind for words in found[is_read:])
        return ()

    def _seconds(self, file: _File, job: Job) -> float | None:
        """How long a file lasts, if that can be told."""
        if job.seconds is not None:
            return job.seconds
        with file.lock:
            if not file.is_measured:
                file.is_measured = True
                with suppress(OSError, ValueError):
                    file.seconds = self.processor.reader.read_duration(job.path)
            return file.seconds

    def _transcripts(self, job: Job, file: _File) -> dict[str, str | None]:
        """The transcripts of a file by modality, as far as it has them and no list says what they would; why one could
        not be made is noted of it."""
        with file.lock:
            if not file.is_listened:
                file.is_listened = True
                makers = {"subtitle": self.speech, SCREEN: self.screen}
                wanted = [name for name in makers if name in self.processor.modalities and name not in job.texts]
                for name in wanted:
                    try:
                        found = makers[name].of(job.path, file.looked[0].sha256, self.processor.reader)
                        file.transcripts[name] = found
                    except (SpeechError, ScreenError) as error:
                        file.unheard = str(error)
            return file.transcripts


__all__ = [
    "NOTHING",
    "Found",
    "Job",
    "Reader",
    "default_workers",
    "joined",
    "look",
    "memory_of_decoders",
]
