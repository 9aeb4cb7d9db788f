"""A gallery in a folder for the service; reopened when it changes."""

import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Event, Lock, Thread

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from commands.errors import describe, plain
from gallery.columns import embeds_of, from_utf8, lists_of, presence_of, to_utf8
from gallery.contents import folder_of_all
from gallery.cues import ClipWords, words_of_file
from gallery.filters import ClipFacts, Filter
from gallery.gallery import Gallery
from gallery.hits import Hit
from gallery.searcher import Selection
from gallery.stills import Stills
from gallery.storage import MANIFEST, Shard, damaged_shards
from gallery.transcripts import SPEECH, Cue, Transcripts
from gallery.windows import SEGMENT, Place
from modeling_scalar.scores_scalar import find_method

from .archive import Source, Summary, UnknownClipError, View, leaving
from .models import Listing, ListRequest, WordsSource

logger = logging.getLogger(__name__)

_KEY_BYTES = 8
_KEY = re.compile(rf"[0-9a-f]{{{2 * _KEY_BYTES}}}", re.ASCII)
_CHANGED = "The gallery has changed on disk and cannot be opened; see the log. The earlier state is served."
_DAMAGED = "Files of the gallery are damaged; see the log. `scalar repair` restores the intact parts."
_RETRY_SECONDS = 5.0  # before another attempt to open a state


_VERIFY_SECONDS = 30.0  # between checks of new files against their hashes
_REST = 9.0  # pause between reads, as a multiple of the time of a read


def _key_of(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=_KEY_BYTES).digest()


class FolderView(View):
    """
    One committed state of a gallery.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it was opened.
    """

    def __init__(self, gallery: Gallery):
        super().__init__(gallery)
        self._has_windows = gallery.metadata.get(SEGMENT) is not None

    @cached_property
    def _names(self) -> pa.ChunkedArray:
        clips = self.gallery.clips
        return pa.chunked_array([], pa.string()) if clips is None else clips.column("clip_id")

    @cached_property
    def _root(self) -> str | None:
        """The common folder of all files; `None` without files."""
        return folder_of_all(self._names)

    def key_of(self, hit: Hit) -> str:
        """The key of a hit: stable while the clip exists, and without any part of its path."""
        return _key_of(to_utf8(hit.clip_id)).hex()

    @cached_property
    def _keys(self) -> tuple[np.ndarray, np.ndarray]:
        """The sorted keys of all clips, and their rows."""
        keys = b"".join(_key_of(name) for names in self._names.chunks for name in names.to_pylist())
        keys = np.frombuffer(keys, ">u8").astype(np.uint64)
        rows = keys.argsort()
        return keys[rows], rows

    def clip_of(self, key: str) -> str:
        """The clip with this key; an [`UnknownClipError`] if there is none."""
        if _KEY.fullmatch(key):
            keys, rows = self._keys
            number = np.uint64(int(key, 16))
            place = np.searchsorted(keys, number)
            if place < len(keys) and keys[place] == number:
                return from_utf8(self._names[int(rows[place])].as_py())
        raise UnknownClipError("There is no such clip in the gallery; it may have changed. Search again.")

    def name_of(self, place: Place) -> str:
        """The displayed name of a clip: its file relative to the common folder, if there is one."""
        path = place.path
        if self._root in (None, os.sep):
            return super().name_of(place)
        return plain(path.removeprefix(self._root + os.sep), "utf-8")

    @cached_property
    def heard(self) -> float:
        """The fraction of clips whose subtitles are speech that was recognised by machine."""
        gallery, hashes = self.gallery, set(Transcripts(self.gallery.path, SPEECH).hashes())
        heard = {path for path, file in gallery.files.items() if file.sha256 in hashes} if hashes else set()
        if not heard or "subtitle" not in gallery.modalities:
            return 0.0
        has_subtitle = gallery.modality_mask[:, gallery.modalities.index("subtitle")].tolist()
        count = 0
        for clip_id, has_words in zip(gallery.clip_ids, has_subtitle, strict=True):
            count += has_words and gallery.place_of(clip_id).path in heard
        return count / len(has_subtitle)

    @cached_property
    def _files(self) -> dict[str, int]:
        """The number of clips of each file, in a gallery of windows."""
        about = self.gallery.modality_mask, self.gallery.modalities
        counts = pc.value_counts(ClipFacts(self.gallery.clips, None, True, *about).paths)
        return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))

    def num_files(self, per_file: bool) -> int | None:
        """The number of files if hits are per file, else `None`."""
        return len(self._files) if per_file and self._has_windows and len(self.gallery) else None

    def num_windows(self, place: Place) -> int | None:
        """The number of windows of a file, in a gallery of windows."""
        if not self._has_windows:
            return None
        return self._files.get(to_utf8(place.path), 1)

    def read_words(self) -> None:
        """Load the words of all clips, once; this may take long."""
        self.gallery.searcher.clip_words.read()

    def stills_of(self, places: Collection[Place]) -> dict[Place, Path]:
        """The stills of these places, where they exist."""
        files, stills = self.gallery.files_at({place.path for place in places}), Stills(self.gallery.path)
        of = {place: stills.find(files[place.path].sha256, place.start) for place in places if place.path in files}
        return {place: path for place, path in of.items() if path is not None}

    def with_stills(self, places: Collection[Place]) -> set[Place]:
        """The places, among these, that have a still."""
        return set(self.stills_of(places))

    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""
        return self.gallery.place_of(self.clip_of(key)).path

    def _hit(self, rank: int, name: str, presence: list[bool], problems: list[str]) -> Hit:
        """A clip without a score."""
        has = dict(zip(self.gallery.modalities, presence, strict=True))
        place = self.gallery.place_of(name)
        return Hit(rank, name, math.nan, None, has, place=place, problems=tuple(problems))

    def clip(self, key: str) -> tuple[Hit, torch.Tensor, torch.Tensor]:
        """The clip with a key as a hit without a score, its vectors, and their mask; an [`UnknownClipError`] if there
        is none."""
        name = self.clip_of(key)
        rows = self.gallery.clips.slice(self.gallery.row_of(name), 1)
        mask = presence_of(rows)[0]
        return self._hit(1, name, mask.tolist(), lists_of(rows, "problems")[0]), embeds_of(rows)[0], mask

    def listed(self, asked: ListRequest) -> Listing:
        """Clips by name, and windows of a file in order."""
        if not len(self.gallery):
            return Listing(hits=[], num_clips=0, num_allowed=0, unknown={}, note="The gallery holds no clips.")
        inside = None if asked.within is None else self.path_of(asked.within)
        among = Selection(asked.allowed or Filter(), inside=inside, unique=asked.unique)
        hits = self.gallery.searcher.list_clips(among, asked.skip, asked.k, asked.per_file)
        return Listing(
            hits=self.found(hits, asked.per_file),
            num_clips=hits.num_clips,
            num_allowed=hits.num_allowed,
            num_files=hits.num_files,
            unknown=hits.unknown,
            note=None if len(hits) else f"{leaving(asked)} leave none of the {hits.num_clips} clips.",
        )

    def playable(self, places: Collection[Place]) -> set[Place]:
        """The places whose files the gallery knows; in a published gallery, those that were published."""
        files = self.gallery.files_at({place.path for place in places})
        return {place for place in places if place.path in files and files[place.path].sha256}


class Folder(Source):
    """
    A gallery in a folder.

    Args:
        folder (`Path`).
        model (`str`), fingerprint (`str`): the model's, which the gallery must name whenever it is opened.
        name (`str`, *optional*): what the page calls it, by default as the folder is called.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: it is damaged, or was made by another model.
    """

    def __init__(self, folder: Path, model: str, fingerprint: str, name: str | None = None):
        self.folder = Path(os.path.abspath(folder))
        super().__init__(plain(name or self.folder.name, "utf-8"), model, fingerprint)
        self._opening, self._retry = Lock(), 0.0
        self._ended, self._damage = Event(), []
        self._stamp = self._look()
        self._view = self._open()

    def start(self) -> None:
        """Start checking the files of the gallery, and of later states, against their hashes."""
        Thread(target=self._verify, daemon=True).start()

    def stop(self) -> None:
        """Stop the checks."""
        self._ended.set()

    def _verify(self) -> None:
        found: dict[tuple[Path, Shard, int], str | None] = {}
        while not self._ended.is_set():
            with suppress(OSError, ValueError):  # `view` reports these
                damage = damaged_shards(self.folder, found, _REST)
                for wrong in set(damage) - set(self._damage):
                    logger.error("%s", wrong)
                self._damage = damage
            self._ended.wait(_VERIFY_SECONDS)

    def check_method(self, method: str) -> None:
        """Raise a ValueError unless the score is known; a folder supports every score."""
        find_method(method)

    def _look(self) -> tuple[int, ...] | None:
        """A value that changes with every commit; `None` if the gallery is gone or has another format."""
        try:
            stat = os.stat(self.folder / MANIFEST)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _open(self) -> FolderView:
        gallery = Gallery.open(self.folder)
        gallery.check_model(self._model, self.fingerprint)
        gallery.file_rows  # noqa: B018 - a forged table of files is refused here, not in an answer
        return FolderView(gallery)

    def view(self) -> FolderView:
        """The last committed state; if it cannot be read, an earlier one, and `problem` is set."""
        stamp = self._look()
        if stamp != self._stamp or (self.problem and time.monotonic() > self._retry):
            with self._opening:
                if stamp != self._stamp or self.problem:
                    try:
                        before, view = self._view.gallery.searcher.clip_words, self._open()
                        view.gallery.searcher.clip_words = ClipWords(view.gallery, before)
                        self._view = view
                        self.problem = None
                    except (OSError, ValueError) as error:
                        self.problem = _CHANGED
                        self._retry = time.monotonic() + _RETRY_SECONDS
                        logger.warning("%s cannot be opened: %s", self.folder, describe(error))
                    self._stamp = stamp
        return self._view

    def summary(self) -> Summary:
        """A summary of the gallery."""
        gallery = self.view().gallery
        shares = gallery.modality_mask.double().mean(0).nan_to_num().tolist()
        return Summary(
            gallery,
            len(gallery),
            dict(zip(gallery.modalities, shares, strict=True)),
            problem=self.problem or (_DAMAGED if self._damage else None),
            heard=self.view().heard,
        )

    def clip_of(self, key: str) -> tuple[FolderView, str]:
        """The last state, and the clip with a key in it."""
        view = self.view()
        return view, view.clip_of(key)

    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""
        view, clip_id = self.clip_of(key)
        place = view.gallery.place_of(clip_id)
        known = view.gallery.files_at([place.path]).get(place.path)
        path = view.gallery.own_media_of(place, known)
        if path is None:
            raise UnknownClipError(
                "The file of this clip is gone, has changed since it was indexed, or was not published with the "
                "gallery. If it is yours, run `scalar index` again."
            )
        return path

    def texts_of(self, key: str) -> dict[WordsSource, list[Cue]]:
        """The subtitles or recognised speech of a clip, and its words on the screen; an [`UnknownClipError`] if no
        clip has this key."""
        view, clip_id = self.clip_of(key)
        path = view.gallery.place_of(clip_id).path
        file = view.gallery.files_at([path]).get(path)
        kept = [] if file is None else Transcripts(self.folder).kept().get(file.sha256, [])
        found = words_of_file(view.gallery, path, file, kept)
        said = "speech" if found.is_heard else "subtitle"
        return {said: found.said, "screen": [cue for cues in found.others for cue in cues]}

    def still_of(self, key: str) -> Path | None:
        """The still of a clip, `None` if there is none; an [`UnknownClipError`] if no clip has this key."""
        view, clip_id = self.clip_of(key)
        place = view.gallery.place_of(clip_id)
        return view.stills_of([place]).get(place)


__all__ = ["Folder", "FolderView"]
