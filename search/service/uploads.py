"""Files that are dragged into the page: kept beside the gallery, and embedded into it one after another.

A file is kept under the hash of what it holds, by which it is asked for and removed; sent twice it is one file. The
name that it was given stands in a small file beside it: it is told, never used as a path.
"""

import hashlib
import logging
import os
import re
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import describe, plain
from gallery.gallery import Gallery, GalleryWriter
from search.indexing import index_files
from search.sources import EXTENSIONS
from search.states import Status

from .folder import Folder, given_name, name_file
from .models import LONGEST_NAME, Upload

logger = logging.getLogger(__name__)

MOST_STREAMS = 4
"""Files that are received at once."""
MOST_WAITING = 16
"""Files that wait for being embedded or removed."""
_REMEMBERED = 256  # files that are gone, of which it is told why
_PART = ".part"
_KEPT = re.compile(r"[0-9a-f]{64}\.[a-z0-9]+", re.ASCII)
_TOO_MANY = "Other files are on their way into the gallery. Ask for this one later."
_MODEL_CALLS = ("get_concat_features", "get_fused_features", "get_modality_features", "get_tower_features")


class TooManyError(ValueError):
    """More files come than can be taken."""


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
        take: asked for so many bytes before they are written; those of a file that was not kept are given back.
        done: called at the end.
    """

    def __init__(self, folder: Path, take: Callable[[int], None], done: Callable[[], None]):
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, self._path = tempfile.mkstemp(_PART, dir=folder)
        self._file, self._hash, self.size = os.fdopen(descriptor, "wb"), hashlib.sha256(), 0
        self._take, self._done, self._is_kept = take, done, False

    def write(self, data: bytes) -> None:
        """Add what came."""
        self._take(len(data))
        self.size += len(data)
        self._file.write(data)
        self._hash.update(data)

    def finish(self, extension: str) -> Path:
        """Bring it onto the disk, and tell where it is to be kept: under its hash."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return Path(self._path).with_name(self._hash.hexdigest() + extension)

    def keep(self, path: Path) -> None:
        """Keep it there, in place of one that is there already, which should be the same."""
        os.replace(self._path, path)
        self._is_kept = True

    def close(self) -> None:
        """Remove what was not kept."""
        try:
            self._file.close()
        finally:  # what is buffered may find the disk full
            self._done()
            if not self._is_kept:
                self._take(-self.size)
                os.unlink(self._path)


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
        most_files (`int`): files that are kept.
    """

    def __init__(
        self,
        folder: Folder,
        lock: Lock,
        model: PreTrainedModel,
        processor: ProcessorMixin,
        most_bytes: int,
        quota: int = 20_000_000_000,
        most_files: int = 1000,
    ):
        self._folder, self._processor = folder, processor
        self.most_bytes, self._quota, self._most_files = min(most_bytes, quota), quota, most_files
        self._stop = Event()
        self._model = _Shared(model, lock, self._stop)
        self._thread = Thread(target=self._run, name="uploads")
        # All of these change together.
        self._changed = Condition()
        self._kept: dict[str, Upload] = {}  # by its identifier, the name of the file
        self._gone: OrderedDict[str, Upload] = OrderedDict()  # those that failed or were removed
        self._turns: deque[str] = deque()  # whatever is to be embedded or removed, as its state says
        self._used, self._num_streams = 0, 0
        if folder.uploads.is_dir():
            self._take_over()

    def _take_over(self) -> None:
        """Know what an earlier service kept, and embed what it did not come to."""
        for left in self._folder.uploads.glob(f"tmp*{_PART}"):  # when it was killed
            left.unlink(missing_ok=True)
        with os.scandir(self._folder.uploads) as entries:
            paths = [
                Path(entry.path)
                for entry in entries
                if _KEPT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        known = self._folder.view().gallery.files_at([str(path) for path in paths])
        for path in paths:
            is_known = str(path) in known
            name = given_name(path) or path.name
            self._kept[path.name] = Upload(id=path.name, name=name, state="done" if is_known else "waiting")
            self._used += path.stat().st_size
            if not is_known:
                self._turns.append(path.name)

    def start(self) -> None:
        """Begin to embed what comes."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in hand; what waits stays in the folder, for the next service."""
        with self._changed:
            self._stop.set()
            self._changed.notify()
        self._thread.join()

    # What requests ask.

    def receive(self, name: str) -> Receiver:
        """
        Begin to receive a file; [`Receiver.close`] must follow.

        Raises:
            RefusedError: its extension is none of media.
            TooManyError: too many are on their way.
            NoRoomError: as many as may be are kept.
        """
        if os.path.splitext(name)[1].lower() not in EXTENSIONS:
            known = " ".join(sorted(EXTENSIONS))
            raise RefusedError(f"The name of a video or audio file ends with one of {known}; got {name!r:.100}.")
        with self._changed:
            if len(self._kept) + self._num_streams >= self._most_files:
                raise NoRoomError(
                    f"As many uploaded files as may be, {self._most_files}, are kept. Remove some, or ask whoever "
                    "started the service."
                )
            if self._num_streams >= MOST_STREAMS:
                raise TooManyError(_TOO_MANY)
            self._check_turns(None)
            self._num_streams += 1
        try:
            return Receiver(self._folder.uploads, self._take, self._done)
        except BaseException:
            self._done()
            raise

    def _take(self, count: int) -> None:
        """Note that files take up so many more bytes."""
        with self._changed:
            if count > 0 and self._used + count > self._quota:
                raise NoRoomError(
                    f"The {self._quota} bytes that are set aside for uploaded files are used up. Remove some, or ask "
                    "whoever started the service."
                )
            self._used += count

    def _done(self) -> None:
        with self._changed:
            self._num_streams -= 1

    def _check_turns(self, upload_id: str | None) -> None:
        if upload_id not in self._turns and len(self._turns) >= MOST_WAITING:
            raise TooManyError(_TOO_MANY)

    def _wait(self, upload: Upload) -> None:
        """Let a file have its turn, if it does not wait for it yet; `_changed` is held."""
        self._kept[upload.id] = upload
        if upload.id not in self._turns:
            self._turns.append(upload.id)
            self._changed.notify()

    def add(self, receiver: Receiver, name: str) -> Upload:
        """
        Keep a file that was received, and embed it when it is its turn.

        Raises:
            RefusedError: it is empty.
            TooManyError: too many wait.
        """
        if not receiver.size:
            raise RefusedError("The file is empty.")
        path = receiver.finish(os.path.splitext(name)[1].lower())
        upload = Upload(id=path.name, name=plain(name, "utf-8")[:LONGEST_NAME], state="waiting")
        with self._changed:
            self._check_turns(upload.id)
            name_file(path).write_text(upload.name, encoding="utf-8")
            size = _size(path) if upload.id in self._kept else 0
            receiver.keep(path)
            self._used -= size
            self._wait(upload)
            self._gone.pop(upload.id, None)
        return self.state(upload.id) or upload

    def state(self, upload_id: str) -> Upload | None:
        """How a file fares; `None` for one that is not known."""
        with self._changed:
            upload = self._kept.get(upload_id) or self._gone.get(upload_id)
            if upload is None or upload.state != "waiting":
                return upload
            is_busy = any(other.state == "embedding" for other in self._kept.values())
            return upload.model_copy(update={"ahead": self._turns.index(upload_id) + is_busy})

    def remove(self, upload_id: str) -> Upload | None:
        """
        Take a file that was sent out of the gallery and off the disk, when it is its turn. `None` for one that is not
        known.

        Raises:
            TooManyError: too many wait.
        """
        with self._changed:
            upload = self._kept.get(upload_id)
            if upload is None or upload.state == "removing":
                return upload or self._gone.get(upload_id)
            self._check_turns(upload_id)
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
            except (OSError, ValueError) as error:
                self._fail(upload, describe(error))
            except Exception:
                logger.exception("An uploaded file could not be embedded, or removed.")
                self._fail(upload, "A fault of the service; its log says more.")

    def _next(self) -> Upload | None:
        """Whose turn it is; `None` when the service ends."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._turns or self._stop.is_set())
                if self._stop.is_set():
                    return None
                upload = self._kept.get(self._turns.popleft())
                if upload is not None and upload.state == "waiting":
                    upload = self._kept[upload.id] = upload.model_copy(update={"state": "embedding"})
                if upload is not None:
                    return upload

    def _settle(self, before: Upload, is_kept: bool = True, **changes: Any) -> None:
        """Note how it went; a file that was sent again meanwhile, or is to be removed, has another turn."""
        upload = before.model_copy(update=changes)
        with self._changed:
            if self._kept[before.id].state != before.state:
                return
            if is_kept:
                self._kept[before.id] = upload
                return
            path = self._path(before)
            size = _size(path)
            for file in (path, name_file(path)):
                file.unlink(missing_ok=True)
            self._used -= size
            del self._kept[before.id]
            self._gone[before.id] = upload
            while len(self._gone) > _REMEMBERED:
                self._gone.popitem(last=False)

    def _path(self, upload: Upload) -> Path:
        return self._folder.uploads / upload.id

    def _embed(self, upload: Upload) -> None:
        path = str(self._path(upload))
        with GalleryWriter(self._folder.folder) as writer:
            state = index_files([path], writer, self._model, self._processor, num_workers=1)[path]
            if state.status is Status.UNREADABLE:
                writer.forget_files([path])
                writer.commit()
                reason = plain(state.reason or "", "utf-8")
                raise RefusedError(f"Nothing in the file could be read: {reason}")
            clips = writer.gallery().clips_of_files().get(path, [])
        problems = [plain(problem, "utf-8") for problem in state.problems]
        self._settle(upload, state="done", clips=len(clips), problems=problems)

    def _remove(self, upload: Upload) -> None:
        path = str(self._path(upload))
        with GalleryWriter(self._folder.folder) as writer:
            writer.remove_clips(writer.gallery().clips_of_files().get(path, []))
            writer.forget_files([path])
            writer.commit()
        self._settle(upload, is_kept=False, state="removed", clips=0, problems=[])

    def _fail(self, upload: Upload, error: str) -> None:
        """Tell why nothing came of it; a file of which nothing is in the gallery is as if it had not been sent."""
        if upload.state == "removing":
            self._settle(upload, state="done", error=error)
            return
        try:
            is_in_gallery = str(self._path(upload)) in Gallery.open(self._folder.folder).clips_of_files()
            self._settle(upload, is_kept=is_in_gallery, state="failed", error=error)
        except (OSError, ValueError):
            logger.exception("An uploaded file that could not be embedded could not be removed.")
            self._settle(upload, state="failed", error=error)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


__all__ = ["MOST_STREAMS", "MOST_WAITING", "NoRoomError", "Receiver", "RefusedError", "TooManyError", "Uploads"]
