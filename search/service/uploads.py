"""Files that are dragged into the page: kept beside the gallery, and embedded into it one after another.

A file is kept under the hash of what it holds: the name that it was given is told, never used as a path.
"""

import hashlib
import logging
import os
import secrets
import tempfile
from collections import OrderedDict
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Lock, Thread
from typing import Any

from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import describe, plain
from gallery.gallery import GalleryWriter
from search.indexing import EXTENSIONS, index_files

from .archive import NAME_SUFFIX, Archive
from .models import LONGEST_NAME, Upload

logger = logging.getLogger(__name__)

MOST_STREAMS = 4
"""Files that are received at once."""
MOST_WAITING = 16
"""Files that wait for being embedded."""
_REMEMBERED = 256  # of which it is told how they fared
_PART = ".part"
_MODEL_CALLS = ("get_concat_features", "get_fused_features", "get_modality_features", "get_tower_features")


class TooManyError(ValueError):
    """More files come than can be taken."""


class RefusedError(ValueError):
    """A file of a kind that is not taken."""


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
    """A file that is being received; to be closed, which removes it unless it was kept."""

    def __init__(self, folder: Path):
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor, self._path = tempfile.mkstemp(_PART, dir=folder)
        self._file, self._hash, self.size = os.fdopen(descriptor, "wb"), hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        """Add what came."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def keep(self, extension: str) -> str:
        """Keep the file under its hash; one that was there already is the same. Returns its path."""
        self._file.flush()
        os.fsync(self._file.fileno())
        path = os.path.join(os.path.dirname(self._path), self._hash.hexdigest() + extension)
        os.replace(self._path, path)
        return path

    def close(self) -> None:
        """Remove what was not kept."""
        self._file.close()
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass


class Uploads:
    """
    Receives files, and embeds them in a thread of its own.

    Args:
        archive ([`~search.service.archive.Archive`]): whose gallery they come into.
        model ([`~modeling_scalar.ScalarModel`]): used when `archive.lock` is free.
        processor (`ProcessorMixin`): of the thread alone: tokenizers cannot be shared.
        most_bytes (`int`): of a file.
    """

    def __init__(self, archive: Archive, model: PreTrainedModel, processor: ProcessorMixin, most_bytes: int):
        self._archive, self._processor, self.most_bytes = archive, processor, most_bytes
        self._stop = Event()
        self._model = _Shared(model, archive.lock, self._stop)
        self._queue: Queue[tuple[str, str]] = Queue(MOST_WAITING)
        self._told: OrderedDict[str, Upload] = OrderedDict()
        self._lock, self._num_streams = Lock(), 0
        self._thread = Thread(target=self._run, name="uploads")
        if archive.uploads.is_dir():
            for left in archive.uploads.glob(f"tmp*{_PART}"):  # when an earlier service was killed
                left.unlink(missing_ok=True)

    def start(self) -> None:
        """Begin to embed what comes."""
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in hand; what waits stays in the folder, and can be given again."""
        self._stop.set()
        self._thread.join()

    def receive(self, name: str) -> Receiver:
        """
        Begin to receive a file; [`Uploads.done`] must follow.

        Raises:
            RefusedError: its extension is none of media.
            TooManyError: too many are on their way.
        """
        if os.path.splitext(name)[1].lower() not in EXTENSIONS:
            known = " ".join(sorted(EXTENSIONS))
            raise RefusedError(f"The name of a video or audio file ends with one of {known}; got {name!r:.100}.")
        with self._lock:
            if self._num_streams >= MOST_STREAMS or self._queue.full():
                raise TooManyError("Other files are on their way into the gallery. Send this one later.")
            self._num_streams += 1
        try:
            return Receiver(self._archive.uploads)
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
        path = receiver.keep(os.path.splitext(name)[1].lower())
        shown = plain(name, "utf-8")[:LONGEST_NAME]
        Path(path + NAME_SUFFIX).write_text(shown, encoding="utf-8")
        upload = Upload(id=secrets.token_hex(8), name=shown, state="waiting")
        with self._lock:
            try:
                self._queue.put_nowait((upload.id, path))
            except Full:
                # what is there is kept: the same file, sent again, needs no more space
                raise TooManyError("Other files are on their way into the gallery. Send this one later.") from None
            self._told[upload.id] = upload
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
        return self.state(upload.id) or upload

    def state(self, upload_id: str) -> Upload | None:
        """How a file fares; `None` for one that is not known."""
        with self._lock:
            upload = self._told.get(upload_id)
            if upload is None or upload.state != "waiting":
                return upload
            before = sum(other.state in ("waiting", "embedding") for other in self._before(upload_id))
            return upload.model_copy(update={"ahead": before})

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
                upload_id, path = self._queue.get(timeout=0.1)
            except Empty:
                continue
            self._tell(upload_id, state="embedding")
            try:
                self._tell(upload_id, **self._embed(path))
            except _Stopping:
                return
            except (OSError, ValueError) as error:
                self._tell(upload_id, state="failed", error=describe(error))
            except Exception:
                logger.exception("An uploaded file could not be embedded.")
                self._tell(upload_id, state="failed", error="A fault of the service; its log says more.")

    def _embed(self, path: str) -> dict[str, Any]:
        """Embed one file; what cannot be read leaves no trace."""
        with GalleryWriter(self._archive.folder) as writer:
            report = index_files([path], writer, self._model, self._processor, num_workers=1)
            if report.unreadable:
                writer.forget_files([path])
                writer.commit()
                for file in (path, path + NAME_SUFFIX):
                    Path(file).unlink(missing_ok=True)
                reason = plain(report.unreadable[0].reason or "", "utf-8")
                return {"state": "failed", "error": f"Nothing in the file could be read: {reason}"}
            clips = writer.gallery().clips_of_files().get(path, [])
        problems = [plain(problem, "utf-8") for problem in report.problems.get(path, ())]
        return {"state": "done", "clips": len(clips), "problems": problems}


__all__ = ["MOST_STREAMS", "MOST_WAITING", "Receiver", "RefusedError", "TooManyError", "Uploads"]
