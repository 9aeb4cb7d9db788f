"""A gallery in a folder as the service sees it: opened again when it changes, and older keys stay good."""

import hashlib
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc

from commands.errors import describe, plain
from gallery.columns import from_utf8, lists_of, to_utf8
from gallery.filters import ClipFacts
from gallery.gallery import Gallery
from gallery.hits import Hits
from gallery.storage import MANIFEST
from gallery.windows import SEGMENT, Place
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import find_method

from .archive import Known, Source, Summary, UnknownClipError, View

logger = logging.getLogger(__name__)

_VIEWS = 3  # older states in which the key of a clip is still understood
_RETRY_SECONDS = 5.0  # after which a state that could not be opened is tried again


def name_file(path: Path) -> Path:
    """Where the name stands that an uploaded file was given: beside it."""
    return path.with_name(path.name + ".name")


def given_name(path: Path) -> str | None:
    """The name that an uploaded file was given; `None` if it is not known."""
    try:
        return name_file(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


class FolderView(View):
    """
    One committed state of a gallery.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it was opened.
        uploads (`Path`): the folder of uploaded files, which do not count for the folder that all files share.
    """

    def __init__(self, gallery: Gallery, uploads: Path):
        super().__init__(gallery)
        self._uploads = str(uploads) + os.sep
        self._has_windows = gallery.metadata.get(SEGMENT) is not None

    @cached_property
    def _names(self) -> pa.ChunkedArray:
        clips = self.gallery.clips
        return pa.chunked_array([], pa.string()) if clips is None else clips.column("clip_id")

    @cached_property
    def _root(self) -> str:
        """The folder that all files share: what the first and the last name in order begin with alike."""
        names = self._names.filter(pc.invert(pc.starts_with(self._names, to_utf8(self._uploads))))
        if not len(names):
            return ""
        ends = pc.min_max(names).as_py()
        return os.path.commonprefix([ends["min"], ends["max"]]).rpartition(os.sep)[0]

    def key_of(self, row: int, name: str) -> str:
        """The key of a clip: its row, and a hash by which it is known that the row is still this clip's."""
        return f"{row}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"

    def clip_of(self, key: str) -> str | None:
        """The stored name of the clip that has this key in this state."""
        row, _, _ = key.partition("-")
        if not (row.isascii() and row.isdigit()) or len(row) > 18 or int(row) >= len(self._names):
            return None
        name = self._names[int(row)].as_py()
        return name if self.key_of(int(row), name) == key else None

    def rows_of(self, names: Sequence[str]) -> dict[str, int]:
        """The rows of clips, by their stored names."""
        found = pc.indices_nonzero(pc.is_in(self._names, value_set=pa.array(names, pa.string())))
        return {self._names[row].as_py(): row for row in found.to_pylist()}

    def name_of(self, place: Place) -> str:
        """What a clip is called on the page."""
        path = place.path
        if path.startswith(self._uploads) and (given := given_name(Path(path))):
            return plain(given, "utf-8")
        below = path.removeprefix(self._root + os.sep) if self._root else path
        return plain(below, "utf-8")

    @cached_property
    def _files(self) -> pa.StructArray:
        """Each file of a gallery of windows, and the number of its clips."""
        return pc.value_counts(ClipFacts(self.gallery.clips, None, True, self.gallery.modality_mask).paths)

    def num_files(self, per_file: bool) -> int | None:
        """How many files there are, if that is what is told; else `None`."""
        return len(self._files) if per_file and self._has_windows and len(self.gallery) else None

    def _num_windows(self, place: Place) -> int:
        row = pc.index(self._files.field("values"), to_utf8(place.path)).as_py()
        return self._files.field("counts")[row].as_py() if row >= 0 else 1

    def known(self, hits: Hits, per_file: bool) -> list[Known]:
        """What is known of hits."""
        names = [to_utf8(hit.clip_id) for hit in hits]
        paths = [hits.place_of(hit).path for hit in hits]
        relative = [path for path in paths if not os.path.isabs(path)]
        # Of a published gallery, with the files that were published too.
        known = self.gallery.files_at(relative) if relative else {}
        rows, told = self.rows_of(names), []
        for hit, name, path in zip(hits, names, paths, strict=True):
            table = self.gallery.clips.slice(rows[name], 1)
            problems = lists_of(table, "problems", self.gallery.path)[0] if "problems" in table.column_names else []
            num_windows = self._num_windows(hits.place_of(hit)) if per_file and self._has_windows else None
            is_here = os.path.isabs(path) or (path in known and bool(known[path].sha256))
            told.append(Known(self.key_of(rows[name], name), is_here, problems, num_windows))
        return told


class Folder(Source):
    """
    A folder that holds a gallery.

    Args:
        folder (`Path`).
        model (`str`), fingerprint (`str`): the model's, which the gallery must name whenever it is opened.
        name (`str`, *optional*): what the page calls it, by default as the folder is called.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: it is damaged, or was made by another model.
    """

    why_no_uploads = "Files cannot be added: whoever started the service did not say `--allow-uploads`."

    def __init__(self, folder: Path, model: str, fingerprint: str, name: str | None = None):
        self.folder = Path(os.path.abspath(folder))
        super().__init__(plain(name or self.folder.name, "utf-8"), model, fingerprint)
        self.uploads = self.folder.with_name(self.folder.name + "-uploads")
        self._opening, self._retry = Lock(), 0.0
        self._stamp = self._look()
        self._views: deque[FolderView] = deque([self._open()], _VIEWS)

    def check_method(self, method: str) -> None:
        """Raise a ValueError unless a score is known: each can be computed of what is in a folder."""
        find_method(method)

    def _look(self) -> tuple[int, ...] | None:
        """What changes with every commit; `None` for a gallery of another format, and for one that is gone."""
        try:
            stat = os.stat(self.folder / MANIFEST)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _open(self) -> FolderView:
        gallery = Gallery.open(self.folder)
        gallery.check_model(self._model, self._fingerprint)
        return FolderView(gallery, self.uploads)

    def view(self) -> FolderView:
        """The last committed state; an earlier one, and `problem`, where that cannot be read."""
        stamp = self._look()
        if stamp != self._stamp or (self.problem and time.monotonic() > self._retry):
            with self._opening:
                if stamp != self._stamp or self.problem:
                    try:
                        self._views.appendleft(self._open())
                        self.problem = None
                    except (OSError, ValueError) as error:
                        self.problem = f"The gallery has changed on disk and cannot be opened: {describe(error)}"
                        self._retry = time.monotonic() + _RETRY_SECONDS
                        logger.warning("%s", self.problem)
                    self._stamp = stamp
        return self._views[0]

    def summary(self) -> Summary:
        """What is told of the gallery."""
        gallery = self.view().gallery
        shares = gallery.modality_mask.double().mean(0).tolist() if len(gallery) else [0.0] * len(MODALITIES)
        return Summary(gallery, len(gallery), dict(zip(MODALITIES, shares, strict=True)), problem=self.problem)

    def clip_of(self, key: str) -> tuple[FolderView, str]:
        """The last state, and the clip of a key in it or in one a little older."""
        view = self.view()
        for older in list(self._views):
            name = older.clip_of(key)
            if name is not None and (older is view or name in view.rows_of([name])):
                return view, from_utf8(name)
        raise UnknownClipError("There is no such clip in the gallery; it may have changed. Search again.")

    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""
        view, clip_id = self.clip_of(key)
        path = view.gallery.media_of(view.gallery.place_of(clip_id))
        if path is None:
            raise UnknownClipError("The file of this clip was not published with the gallery, or cannot be had now.")
        return path


__all__ = ["Folder", "FolderView", "given_name", "name_file"]
