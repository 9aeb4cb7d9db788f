"""Files that are dragged into the page: kept beside the gallery, and embedded into it one after another.

A file is kept under the hash of what it holds: the name that it was given is told, never used as a path. It stands in
a small file beside it, above the identifiers that were given to whoever sent it, one a line: by these it is removed.
"""

import hashlib
import logging
import os
import re
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Lock, Thread
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import describe, plain
from gallery.gallery import Gallery, GalleryWriter
from search.indexing import EXTENSIONS, index_files

from .folder import NAME_SUFFIX, Folder
from .models import LONGEST_NAME, Upload

logger = logging.getLogger(__name__)

MOST_STREAMS = 4
"""Files that are received at once."""
MOST_WAITING = 16
"""Files that wait for being embedded."""
_REMEMBERED = 256  # of which it is told how they fared
_PART = ".part"
_KEPT = re.compile(r"[0-9a-f]{64}\.[a-z0-9]+", re.ASCII)
_MOST_SENDERS = 64  # of one file, who may remove it
_ID_BYTES = 16  # so that nobody guesses it
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
    A file that is being received; to be closed, which removes it unless it was kept.

    Args:
        folder (`Path`): where.
        take: asked for so many bytes before they are written; those of a file that was not kept are given back.
    """

    def __init__(self, folder: Path, take: Callable[[int], None]):
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, self._path = tempfile.mkstemp(_PART, dir=folder)
        self._file, self._hash, self.size = os.fdopen(descriptor, "wb"), hashlib.sha256(), 0
        self._take, self._is_kept = take, False

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
        self._queue: Queue[tuple[str, Path, bool]] = Queue(MOST_WAITING)
        self._told: OrderedDict[str, Upload] = OrderedDict()
        self._lock, self._num_streams = Lock(), 0
        self._thread = Thread(target=self._run, name="uploads")
        self._used, self._paths, self._senders = 0, set[Path](), dict[str, Path]()
        self._left: dict[str, Path] = {}  # what an earlier service, which ended, did not come to
        if folder.uploads.is_dir():
            for left in folder.uploads.glob(f"tmp*{_PART}"):  # when an earlier service was killed
                left.unlink(missing_ok=True)
            for path in self._kept():
                self._paths.add(path)
                self._used += path.stat().st_size
                self._senders |= dict.fromkeys(_note_of(path)[1], path)
            known = folder.view().gallery.files_at([str(path) for path in self._paths])
            self._left |= {name: path for name, path in self._senders.items() if str(path) not in known}

    def _kept(self) -> Iterator[Path]:
        with os.scandir(self._folder.uploads) as entries:
            for entry in entries:
                if _KEPT.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)

    def start(self) -> None:
        """Begin to embed what comes."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in hand; what waits stays in the folder, for the next service."""
        self._stop.set()
        self._thread.join()

    def _take(self, count: int) -> None:
        """Note that files take up so many more bytes."""
        with self._lock:
            if count > 0 and self._used + count > self._quota:
                raise NoRoomError(
                    f"The {self._quota} bytes that are set aside for uploaded files are used up. Remove some that you "
                    "sent, or ask whoever started the service."
                )
            self._used += count

    def receive(self, name: str) -> Receiver:
        """
        Begin to receive a file; [`Uploads.done`] must follow.

        Raises:
            RefusedError: its extension is none of media.
            TooManyError: too many are on their way.
            NoRoomError: as many as may be are kept.
        """
        if os.path.splitext(name)[1].lower() not in EXTENSIONS:
            known = " ".join(sorted(EXTENSIONS))
            raise RefusedError(f"The name of a video or audio file ends with one of {known}; got {name!r:.100}.")
        with self._lock:
            if len(self._paths) + self._num_streams >= self._most_files:
                raise NoRoomError(
                    f"As many uploaded files as may be, {self._most_files}, are kept. Remove some that you sent, or "
                    "ask whoever started the service."
                )
            if self._num_streams >= MOST_STREAMS or self._queue.full():
                raise TooManyError("Other files are on their way into the gallery. Send this one later.")
            self._num_streams += 1
        try:
            return Receiver(self._folder.uploads, self._take)
        except BaseException:
            self.done()
            raise

    def done(self) -> None:
        """Whatever became of a file that was received."""
        with self._lock:
            self._num_streams -= 1

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
        shown = plain(name, "utf-8")[:LONGEST_NAME]
        upload = Upload(id=secrets.token_hex(_ID_BYTES), name=shown, state="waiting")
        with self._lock:
            if self._queue.full():
                raise TooManyError("Other files are on their way into the gallery. Send this one later.")
            self._note(path, shown, [*_note_of(path)[1], upload.id][-_MOST_SENDERS:])
            self._used -= path.stat().st_size if path in self._paths and path.exists() else 0
            receiver.keep(path)
            self._paths.add(path)
            self._senders[upload.id] = path
            self._told[upload.id] = upload
            self._queue.put_nowait((upload.id, path, False))
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
        return self.state(upload.id) or upload

    @staticmethod
    def _note(path: Path, name: str, senders: list[str]) -> None:
        path.with_name(path.name + NAME_SUFFIX).write_text("\n".join([name, *senders]), encoding="utf-8")

    def state(self, upload_id: str) -> Upload | None:
        """How a file fares; `None` for one that is not known."""
        with self._lock:
            upload = self._told.get(upload_id)
            if upload is None and upload_id in self._senders:  # from long ago
                name = _note_of(self._senders[upload_id])[0]
                return Upload(id=upload_id, name=name, state="waiting" if upload_id in self._left else "done")
            if upload is None or upload.state != "waiting":
                return upload
            before = sum(other.state in ("waiting", "embedding") for other in self._before(upload_id))
            left = 0 if upload_id in self._left else len(self._left)
            return upload.model_copy(update={"ahead": before + left})

    def remove(self, upload_id: str) -> Upload | None:
        """
        Take a file that was sent out of the gallery and off the disk, when it is its turn; one that others sent too
        stays. `None` for one that is not known.

        Raises:
            TooManyError: too many wait.
        """
        upload = self.state(upload_id)
        with self._lock:
            if upload is None or upload_id not in self._senders or upload.state == "removing":
                return upload
            try:
                self._queue.put_nowait((upload_id, self._senders[upload_id], True))
            except Full:
                raise TooManyError("Other files are on their way into the gallery. Remove this one later.") from None
            self._told[upload_id] = upload = upload.model_copy(update={"state": "removing", "ahead": 0})
        return upload

    def _before(self, upload_id: str) -> list[Upload]:
        ids = list(self._told)
        return [self._told[name] for name in ids[: ids.index(upload_id)]]

    def _tell(self, upload_id: str, **changes: Any) -> None:
        with self._lock:
            if upload_id in self._told:
                self._told[upload_id] = self._told[upload_id].model_copy(update=changes)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                upload_id, path, is_removal = self._next()
            except Empty:
                continue
            try:
                if is_removal:
                    self._tell(upload_id, **self._remove(upload_id, path))
                elif self._is_wanted(upload_id):
                    self._tell(upload_id, state="embedding")
                    found = self._embed(path)
                    self._tell(upload_id, **(found if self._is_wanted(upload_id) else found | {"state": "removing"}))
            except _Stopping:
                return
            except (OSError, ValueError) as error:
                self._fail(upload_id, path, is_removal, describe(error))
            except Exception:
                logger.exception("An uploaded file could not be embedded, or removed.")
                self._fail(upload_id, path, is_removal, "A fault of the service; its log says more.")
            self._left.pop(upload_id, None)

    def _next(self) -> tuple[str, Path, bool]:
        """What an earlier service left to do comes first; raises `Empty` where nothing comes for a while."""
        with self._lock:
            for upload_id, path in self._left.items():
                self._told.setdefault(upload_id, Upload(id=upload_id, name=_note_of(path)[0], state="waiting"))
                return upload_id, path, False
        return self._queue.get(timeout=0.1)

    def _fail(self, upload_id: str, path: Path, is_removal: bool, error: str) -> None:
        """Tell why nothing came of it; a file that could not be embedded is as if it had not been sent."""
        if is_removal:
            self._tell(upload_id, state="done", error=error)
        elif self._is_wanted(upload_id):  # else it is removed when it is its turn
            try:
                self._drop(upload_id, path)
            except (OSError, ValueError):
                logger.exception("An uploaded file that could not be embedded could not be removed.")
            self._tell(upload_id, state="failed", error=error)

    def _drop(self, upload_id: str, path: Path) -> None:
        """Forget who sent a file, and the file, unless others sent it too or something of it is in the gallery."""
        with self._lock:
            if self._forget(upload_id, path):
                return
        is_in_gallery = str(path) in Gallery.open(self._folder.folder).clips_of_files()
        with self._lock:
            if not is_in_gallery and not _note_of(path)[1]:
                self._unlink(path)

    def _is_wanted(self, upload_id: str) -> bool:
        """Whether nobody asked meanwhile to remove it."""
        with self._lock:
            upload = self._told.get(upload_id)
            return upload is None or upload.state != "removing"

    def _unlink(self, path: Path) -> None:
        """Remove a file that nobody sent again meanwhile; `_lock` is held."""
        size = path.stat().st_size if path.exists() else 0
        for file in (path, path.with_name(path.name + NAME_SUFFIX)):
            file.unlink(missing_ok=True)
        self._used -= size
        self._paths.discard(path)

    def _forget(self, upload_id: str, path: Path) -> list[str]:
        """Note that one who sent a file does not have it any more; returns who does. `_lock` is held."""
        self._senders.pop(upload_id, None)
        name, senders = _note_of(path)
        left = [sender for sender in senders if sender != upload_id]
        if left != senders:
            self._note(path, name, left)
        return left

    def _remove(self, upload_id: str, path: Path) -> dict[str, Any]:
        with self._lock:
            is_of_others = any(sender != upload_id for sender in _note_of(path)[1])
        if not is_of_others:
            with GalleryWriter(self._folder.folder) as writer:
                writer.remove_clips(writer.gallery().clips_of_files().get(str(path), []))
                writer.forget_files([str(path)])
                writer.commit()
        with self._lock:
            if not self._forget(upload_id, path):
                self._unlink(path)
        return {"state": "removed", "clips": 0, "problems": [], "error": None}

    def _embed(self, path: Path) -> dict[str, Any]:
        """Embed one file; what cannot be read leaves no trace."""
        with GalleryWriter(self._folder.folder) as writer:
            report = index_files([str(path)], writer, self._model, self._processor, num_workers=1)
            if report.unreadable:
                writer.forget_files([str(path)])
                writer.commit()
                with self._lock:
                    for sender in _note_of(path)[1]:
                        self._senders.pop(sender, None)
                    self._unlink(path)
                reason = plain(report.unreadable[0].reason or "", "utf-8")
                return {"state": "failed", "error": f"Nothing in the file could be read: {reason}"}
            clips = writer.gallery().clips_of_files().get(str(path), [])
        problems = [plain(problem, "utf-8") for problem in report.problems.get(str(path), ())]
        return {"state": "done", "clips": len(clips), "problems": problems}


def _note_of(path: Path) -> tuple[str, list[str]]:
    """The name that an uploaded file was given, and the identifiers given to those who sent it."""
    try:
        name, *senders = path.with_name(path.name + NAME_SUFFIX).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return path.name, []
    return name, senders


__all__ = ["MOST_STREAMS", "MOST_WAITING", "NoRoomError", "Receiver", "RefusedError", "TooManyError", "Uploads"]
