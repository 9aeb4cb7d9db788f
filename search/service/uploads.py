"""Uploaded files: stored next to the gallery, and embedded into it one after another.

- A file is stored and addressed by the hash of its content, so duplicates are one file.
- Its original name is in a small file next to it, and is displayed but never used as a path.
- An accepted file stays until it is removed, or turns out to be unreadable.
"""

import hashlib
import logging
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import describe, plain
from gallery.files import LockedError, locked
from gallery.gallery import GalleryWriter
from gallery.subtitles import MEDIA_FILES
from search.indexing import index_files
from search.states import Status

from .folder import Folder, given_name, name_file
from .models import LONGEST_NAME, Upload

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_PART = ".part"
_KEPT = re.compile(r"[0-9a-f]{64}\.[a-z0-9]+", re.ASCII)
_RETRY_SECONDS = 2.0  # before the next attempt while another process writes to the gallery
_WAITING = "Another process writes to the gallery; this file waits until it has finished."
_FAILED = "An error occurred, see the log of the service; the file is kept."


class RefusedError(ValueError):
    """The type of the file is not supported."""


class NoRoomError(ValueError):
    """The quota for uploads is used up."""


class _Stopping(RuntimeError):
    """The service is stopping."""


class _Shared:
    """A model shared by threads: calls wait for the lock, and none starts once the service is stopping."""

    def __init__(self, model: PreTrainedModel, lock: Lock, stop: Event):
        self._model, self._lock, self._stop = model, lock, stop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if name != "get_modality_features":
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if self._stop.is_set():
                raise _Stopping
            with self._lock:
                return found(*arguments, **options)

        return call


class Receiver:
    """
    A file that is being received; it is removed at the end unless it was kept.

    Args:
        folder (`Path`): where to store it.
        check: called with a number of bytes before they are written; raises if there is no space for them.
    """

    def __init__(self, folder: Path, check: Callable[[int], None]):
        descriptor, path = tempfile.mkstemp(_PART, dir=folder)
        self._file, self._path, self._check = os.fdopen(descriptor, "wb"), Path(path), check
        self._hash, self.size = hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        """Append received data."""
        self._check(len(data))
        self.size += len(data)
        self._file.write(data)
        self._file.flush()
        self._hash.update(data)

    def finish(self, extension: str) -> Path:
        """Flush it to disk, and return its final path, named by its hash."""
        os.fsync(self._file.fileno())
        return self._path.with_name(self._hash.hexdigest() + extension)

    def keep(self, path: Path) -> None:
        """Move it to its final path, replacing a file with the same hash."""
        os.replace(self._path, path)

    def close(self) -> None:
        """Remove it unless it was kept."""
        try:
            self._file.close()
        finally:  # flushing the buffer may fail on a full disk
            self._path.unlink(missing_ok=True)


class Uploads:
    """
    Receives files, and embeds them in its own thread.

    Args:
        folder ([`~search.service.folder.Folder`]): the gallery to add to.
        lock (`Lock`): of the model.
        model ([`~modeling_scalar.ScalarModel`]): used while the lock is held.
        processor (`ProcessorMixin`): for this thread alone, as tokenizers cannot be shared.
        most_bytes (`int`): maximum size of a file.
        quota (`int`): maximum size of all files together, in bytes.

    Raises:
        LockedError: another service uses the same upload folder.
    """

    def __init__(
        self,
        folder: Folder,
        lock: Lock,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        most_bytes: int,
        quota: int = 20_000_000_000,
    ):
        self._folder, self._processor = folder, processor
        self.most_bytes, self._quota = min(most_bytes, quota), quota
        self._stop = Event()
        self._model = _Shared(model, lock, self._stop)
        self._thread = Thread(target=self._run, name="uploads")
        self._changed = Condition()  # protects the following two
        self._sent: dict[str, Upload] = {}  # by identifier, the name of the file; also removed ones
        self._turns: deque[str] = deque()  # queue of files to embed or remove, according to their state
        folder.uploads.mkdir(mode=0o700, exist_ok=True)
        message = (
            f"Another service accepts uploads for {folder.folder}. Stop it, or start this one without --allow-uploads."
        )
        with ExitStack() as held:
            held.enter_context(locked(folder.uploads / _LOCK, message))
            self._take_over()
            self._held = held.pop_all()

    def _files(self) -> Iterator[os.DirEntry]:
        """The files that are stored or being received."""
        with os.scandir(self._folder.uploads) as entries:
            for entry in entries:
                is_ours = _KEPT.fullmatch(entry.name) or entry.name.endswith(_PART)
                if is_ours and entry.is_file(follow_symlinks=False):
                    yield entry

    def _take_over(self) -> None:
        """Take over the files of an earlier service, and queue those that it did not embed."""
        paths = [Path(entry.path) for entry in self._files()]
        known = self._folder.view().gallery.files_at(list(map(str, paths)))
        for path in paths:
            if path.suffix == _PART:  # the service was killed
                path.unlink(missing_ok=True)
                continue
            state = "done" if str(path) in known else "waiting"
            self._sent[path.name] = Upload(id=path.name, name=given_name(path) or path.name, state=state)
            if state == "waiting":
                self._turns.append(path.name)

    def start(self) -> None:
        """Start embedding uploads."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current batch; waiting files stay in the folder for the next service."""
        with self._changed:
            self._stop.set()
            self._changed.notify()
        self._thread.join()
        self._held.close()

    # Called by requests.

    def receive(self, name: str) -> Receiver:
        """
        Start receiving a file; [`Receiver.close`] must follow.

        Raises:
            RefusedError: its extension is not that of a media file.
        """
        if os.path.splitext(name)[1].lower() not in MEDIA_FILES:
            known = " ".join(sorted(MEDIA_FILES))
            raise RefusedError(f"Expected a video or audio file with an extension among {known}; got {name!r:.100}.")
        return Receiver(self._folder.uploads, self._check_room)

    def _check_room(self, count: int) -> None:
        """Raise a [`NoRoomError`] unless there is space for `count` more bytes."""
        used = 0
        for entry in self._files():
            with suppress(FileNotFoundError):  # removed meanwhile
                used += entry.stat().st_size
        if used + count > self._quota:
            raise NoRoomError(
                f"The quota of {self._quota} bytes for uploads is used up. Remove some files, or ask the person who "
                "runs the service."
            )

    def _wait(self, upload: Upload) -> None:
        """Queue a file, unless it is queued already; `_changed` must be held."""
        self._sent[upload.id] = upload
        if upload.id not in self._turns:
            self._turns.append(upload.id)
            self._changed.notify()

    def add(self, receiver: Receiver, name: str) -> Upload:
        """Store a received file, and queue it for embedding; a [`RefusedError`] if it is empty."""
        if not receiver.size:
            raise RefusedError("The file is empty.")
        path = receiver.finish(os.path.splitext(name)[1].lower())
        upload = Upload(id=path.name, name=plain(name, "utf-8")[:LONGEST_NAME], state="waiting")
        with self._changed:
            name_file(path).write_text(upload.name, encoding="utf-8")
            receiver.keep(path)
            self._wait(upload)
        return self.state(upload.id) or upload

    def state(self, upload_id: str) -> Upload | None:
        """The state of an upload; `None` if it is unknown."""
        with self._changed:
            upload = self._sent.get(upload_id)
            if upload is None or upload.state != "waiting":
                return upload
            is_busy = any(other.state == "embedding" for other in self._sent.values())
            first = self._sent[self._turns[0]]  # all others wait for the same
            return upload.model_copy(update={"ahead": self._turns.index(upload_id) + is_busy, "error": first.error})

    def remove(self, upload_id: str) -> Upload | None:
        """Queue the removal of an uploaded file from the gallery and the disk; `None` if it is unknown."""
        with self._changed:
            upload = self._sent.get(upload_id)
            if upload is not None and upload.state != "removing" and self._path(upload).exists():
                upload = upload.model_copy(update={"state": "removing", "error": None})
                self._wait(upload)
            return upload

    # Called in the thread.

    def _run(self) -> None:
        while (upload := self._next()) is not None:
            try:
                if upload.state == "removing":
                    self._remove(upload)
                else:
                    self._embed(upload)
            except _Stopping:
                return
            except LockedError:
                self._put_back(upload)
            except Exception as error:
                what = "removed" if upload.state == "removing" else "embedded"
                is_known = isinstance(error, OSError | ValueError)
                logger.error(
                    "%s could not be %s: %s", self._path(upload), what, describe(error), exc_info=not is_known
                )
                self._settle(upload, state="done" if upload.state == "removing" else "failed", error=_FAILED)

    def _next(self) -> Upload | None:
        """The next upload to process; `None` when the service stops."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._turns or self._stop.is_set())
                if self._stop.is_set():
                    return None
                upload = self._sent[self._turns.popleft()]
                if upload.state == "waiting":
                    upload = self._sent[upload.id] = upload.model_copy(update={"state": "embedding"})
                if upload.state in ("embedding", "removing"):
                    return upload

    def _put_back(self, upload: Upload) -> None:
        """Put a file back at the head of the queue, until another process has finished writing to the gallery."""
        with self._changed:
            if self._sent[upload.id].state == upload.state:  # neither sent again nor to be removed
                state = "removing" if upload.state == "removing" else "waiting"
                self._sent[upload.id] = upload.model_copy(update={"state": state, "error": _WAITING})
                self._turns.appendleft(upload.id)
            self._changed.wait_for(self._stop.is_set, _RETRY_SECONDS)

    def _settle(self, before: Upload, is_kept: bool = True, **changes: Any) -> None:
        """Record the result, unless the file was sent again meanwhile or is to be removed: it is queued again."""
        with self._changed:
            if self._sent[before.id].state == before.state:
                self._sent[before.id] = before.model_copy(update=changes | {"kept": is_kept})
                for file in () if is_kept else (self._path(before), name_file(self._path(before))):
                    file.unlink(missing_ok=True)

    def _path(self, upload: Upload) -> Path:
        return self._folder.uploads / upload.id

    def _embed(self, upload: Upload) -> None:
        path = str(self._path(upload))
        with GalleryWriter(self._folder.folder) as writer:
            state = index_files([path], writer, self._model, self._processor, num_workers=1)[path]
            if state.status in (Status.UNREADABLE, Status.EMPTY):
                writer.forget_files([path])
                writer.commit()
                reason = plain((state.reason or "").replace(path, upload.name), "utf-8")
                error = f"Nothing in the file could be embedded: {reason}"
                return self._settle(upload, is_kept=False, state="failed", error=error)
            clips = writer.gallery().clips_of_files().get(path, [])
        problems = [plain(problem.replace(path, upload.name), "utf-8") for problem in state.problems]
        self._settle(upload, state="done", clips=len(clips), problems=problems, error=None)

    def _remove(self, upload: Upload) -> None:
        path = str(self._path(upload))
        with GalleryWriter(self._folder.folder) as writer:
            writer.remove_clips(writer.gallery().clips_of_files().get(path, []))
            writer.forget_files([path])
            writer.commit()
        self._settle(upload, is_kept=False, state="removed", clips=0, problems=[], error=None)


__all__ = ["NoRoomError", "Receiver", "RefusedError", "Uploads"]
