"""Files that are dragged into the page: kept beside the gallery, and embedded into it one after another.

A file is kept under the hash of what it holds, by which it is asked for and removed; sent twice it is one file. The
name that it was given stands in a small file beside it: it is told, never used as a path. What was taken is kept until
it is in the gallery, or nothing in it could be read, or somebody removes it.
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
_RETRY_SECONDS = 2.0  # after which a gallery that another process writes to is tried again
_WAITING = "Another process writes to the gallery; its turn comes once that has finished."
_FAILED = "Something went wrong, of which the log of the service says more; the file is kept."
_MODEL_CALLS = ("get_concat_features", "get_fused_features", "get_modality_features", "get_tower_features")


class RefusedError(ValueError):
    """A file of a kind that is not taken."""


class NoRoomError(ValueError):
    """What is set aside for uploaded files is used up."""


class _Stopping(RuntimeError):
    """The service ends."""


class _Shared:
    """A model of which each call waits until nobody else uses it, and none begins once the service ends."""

    def __init__(self, model: PreTrainedModel, lock: Lock, stop: Event):
        self._model, self._lock, self._stop = model, lock, stop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if name not in _MODEL_CALLS:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if self._stop.is_set():
                raise _Stopping
            with self._lock:
                return found(*arguments, **options)

        return call


class Receiver:
    """
    A file that comes, in a folder; it is removed again at the end unless it was kept.

    Args:
        folder (`Path`): where.
        check: called with a number of bytes before they are written; raises where there is no room for them.
    """

    def __init__(self, folder: Path, check: Callable[[int], None]):
        descriptor, path = tempfile.mkstemp(_PART, dir=folder)
        self._file, self._path, self._check = os.fdopen(descriptor, "wb"), Path(path), check
        self._hash, self.size = hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        """Add what came."""
        self._check(len(data))
        self.size += len(data)
        self._file.write(data)
        self._file.flush()
        self._hash.update(data)

    def finish(self, extension: str) -> Path:
        """Bring it onto the disk, and tell where it is to be kept: under its hash."""
        os.fsync(self._file.fileno())
        return self._path.with_name(self._hash.hexdigest() + extension)

    def keep(self, path: Path) -> None:
        """Keep it there, in place of one that is there already, which should be the same."""
        os.replace(self._path, path)

    def close(self) -> None:
        """Remove what was not kept."""
        try:
            self._file.close()
        finally:  # what is buffered may find the disk full
            self._path.unlink(missing_ok=True)


class Uploads:
    """
    Receives files, and embeds them in a thread of its own.

    Args:
        folder ([`~search.service.folder.Folder`]): whose gallery they come into.
        lock (`Lock`): of the model.
        model ([`~modeling_scalar.ScalarModel`]): used when the lock is free.
        processor (`ProcessorMixin`): of the thread alone: tokenizers cannot be shared.
        most_bytes (`int`): of a file.
        quota (`int`): bytes of all files together.

    Raises:
        LockedError: another service keeps files in the same folder.
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
        self._changed = Condition()  # is held to change these
        self._sent: dict[str, Upload] = {}  # by its identifier, the name of the file; also what is gone
        self._turns: deque[str] = deque()  # whatever is to be embedded or removed, as its state says
        folder.uploads.mkdir(mode=0o700, exist_ok=True)
        message = (
            f"Another service takes files for {folder.folder}. End it, or start this one without --allow-uploads."
        )
        with ExitStack() as held:
            held.enter_context(locked(folder.uploads / _LOCK, message))
            self._take_over()
            self._held = held.pop_all()

    def _files(self) -> Iterator[os.DirEntry]:
        """The files that are kept, or come."""
        with os.scandir(self._folder.uploads) as entries:
            for entry in entries:
                is_ours = _KEPT.fullmatch(entry.name) or entry.name.endswith(_PART)
                if is_ours and entry.is_file(follow_symlinks=False):
                    yield entry

    def _take_over(self) -> None:
        """Know what an earlier service kept, and embed what it did not come to."""
        paths = [Path(entry.path) for entry in self._files()]
        known = self._folder.view().gallery.files_at(list(map(str, paths)))
        for path in paths:
            if path.suffix == _PART:  # it was killed
                path.unlink(missing_ok=True)
                continue
            state = "done" if str(path) in known else "waiting"
            self._sent[path.name] = Upload(id=path.name, name=given_name(path) or path.name, state=state)
            if state == "waiting":
                self._turns.append(path.name)

    def start(self) -> None:
        """Begin to embed what comes."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in hand; what waits stays in the folder, for the next service, which may start then."""
        with self._changed:
            self._stop.set()
            self._changed.notify()
        self._thread.join()
        self._held.close()

    # What requests ask.

    def receive(self, name: str) -> Receiver:
        """
        Begin to receive a file; [`Receiver.close`] must follow.

        Raises:
            RefusedError: its extension is none of media.
        """
        if os.path.splitext(name)[1].lower() not in MEDIA_FILES:
            known = " ".join(sorted(MEDIA_FILES))
            raise RefusedError(f"The name of a video or audio file ends with one of {known}; got {name!r:.100}.")
        return Receiver(self._folder.uploads, self._check_room)

    def _check_room(self, count: int) -> None:
        """Raise a [`NoRoomError`] unless there is room for so many bytes more."""
        used = 0
        for entry in self._files():
            with suppress(FileNotFoundError):  # removed meanwhile
                used += entry.stat().st_size
        if used + count > self._quota:
            raise NoRoomError(
                f"The {self._quota} bytes that are set aside for uploaded files are used up. Remove some, or ask "
                "whoever started the service."
            )

    def _wait(self, upload: Upload) -> None:
        """Let a file have its turn, if it does not wait for it yet; `_changed` is held."""
        self._sent[upload.id] = upload
        if upload.id not in self._turns:
            self._turns.append(upload.id)
            self._changed.notify()

    def add(self, receiver: Receiver, name: str) -> Upload:
        """Keep a file that was received, and embed it when it is its turn; a [`RefusedError`] if it is empty."""
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
        """How a file fares; `None` for one that is not known."""
        with self._changed:
            upload = self._sent.get(upload_id)
            if upload is None or upload.state != "waiting":
                return upload
            is_busy = any(other.state == "embedding" for other in self._sent.values())
            first = self._sent[self._turns[0]]  # what it waits for, all others wait for
            return upload.model_copy(update={"ahead": self._turns.index(upload_id) + is_busy, "error": first.error})

    def remove(self, upload_id: str) -> Upload | None:
        """Take a file that was sent out of the gallery and off the disk, when it is its turn; `None` for one that is
        not known."""
        with self._changed:
            upload = self._sent.get(upload_id)
            if upload is not None and upload.state != "removing" and self._path(upload).exists():
                upload = upload.model_copy(update={"state": "removing", "error": None})
                self._wait(upload)
            return upload

    # What the thread does.

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
        """Whose turn it is; `None` when the service ends."""
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
        """Let a file wait, in its place, for the process that writes to the gallery."""
        with self._changed:
            if self._sent[upload.id].state == upload.state:  # it was not sent again, and is not to be removed
                state = "removing" if upload.state == "removing" else "waiting"
                self._sent[upload.id] = upload.model_copy(update={"state": state, "error": _WAITING})
                self._turns.appendleft(upload.id)
            self._changed.wait_for(self._stop.is_set, _RETRY_SECONDS)

    def _settle(self, before: Upload, is_kept: bool = True, **changes: Any) -> None:
        """Note how it went; a file that was sent again meanwhile, or is to be removed, has another turn."""
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
            if state.status is Status.UNREADABLE:
                writer.forget_files([path])
                writer.commit()
                reason = plain((state.reason or "").replace(path, upload.name), "utf-8")
                error = f"Nothing in the file could be read: {reason}"
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
