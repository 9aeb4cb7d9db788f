"""The gallery as the service sees it: opened again when it changes, asked by many threads at once."""

import hashlib
import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import describe, plain
from gallery.columns import from_utf8, lists_of, stacked, to_utf8
from gallery.embedding import embed_captions
from gallery.gallery import Gallery, Hit
from gallery.querying import NothingToCompareError
from gallery.storage import MANIFEST
from gallery.windows import SEGMENT, Place, place_of_clip
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.pairs_scalar import METHODS, WEIGHING

from .media import kind_of
from .models import About, Answer, Found

logger = logging.getLogger(__name__)

_TEXTS = 1024  # whose embeddings are kept
_VIEWS = 3  # older states in which the key of a clip is still understood
_RETRY_SECONDS = 5.0  # after which a state that could not be opened is tried again
NAME_SUFFIX = ".name"
"""Of the file beside an uploaded one that holds the name it was given."""


class UnknownClipError(ValueError):
    """No clip of the gallery has this key."""


def find(gallery: Gallery, embeds: torch.Tensor, k: int, modalities: Sequence[str], **options: Any) -> Sequence[Hit]:
    """The best clips of one query, of which only these modalities are looked at."""
    return gallery.search(embeds, k, modalities=modalities, **options)[0]


@lru_cache(maxsize=4096)
def _given_name(path: str) -> str | None:
    """The name that an uploaded file was given."""
    try:
        return Path(path + NAME_SUFFIX).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


class View:
    """
    One committed state of the gallery.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it was opened.
        uploads (`Path`): the folder of uploaded files, which do not count for the folder that all files share.
    """

    def __init__(self, gallery: Gallery, uploads: Path):
        self.gallery, self._uploads = gallery, str(uploads) + os.sep
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

    def place_of(self, clip_id: str) -> Place:
        """The file of a clip, and its seconds."""
        place = place_of_clip(clip_id) if self._has_windows else Place(clip_id)
        # a file may be called as a window is
        return Place(clip_id) if place.start is not None and os.path.isfile(clip_id) else place

    def name_of(self, place: Place) -> str:
        """What a clip is called on the page."""
        path = place.path
        if path.startswith(self._uploads) and (given := _given_name(path)):
            return plain(given, "utf-8")
        below = path.removeprefix(self._root + os.sep) if self._root else path
        return plain(below, "utf-8")

    def found(self, hits: Sequence[Hit]) -> list[Found]:
        """Hits as they are told."""
        rows = self.rows_of([to_utf8(hit.clip_id) for hit in hits])
        told = []
        for hit in hits:
            row = rows[to_utf8(hit.clip_id)]
            table = self.gallery.clips.slice(row, 1)
            place = self.place_of(hit.clip_id)
            has = stacked(table, ["presence"], self.gallery.path, boolean=True)[0, 0].tolist()
            problems = lists_of(table, "problems", self.gallery.path)[0] if "problems" in table.column_names else []
            kind, key = kind_of(place.path, has[0]), self.key_of(row, to_utf8(hit.clip_id))
            told.append(
                Found(
                    rank=hit.rank,
                    key=key,
                    clip_id=plain(hit.clip_id, "utf-8"),
                    name=self.name_of(place),
                    score=hit.score,
                    weights=hit.weights,
                    presence=dict(zip(MODALITIES, has, strict=True)),
                    problems=[plain(problem, "utf-8") for problem in problems],
                    start=place.start,
                    stop=place.stop,
                    kind=kind,
                    media=None if kind is None else f"api/clips/{key}/media",
                )
            )
        return told


@dataclass(frozen=True)
class Asked:
    """How a search is made: hits wanted, the temperature (None is the gallery's own), what is looked at."""

    k: int
    temperature: float | None
    modalities: tuple[str, ...]


class Archive:
    """
    A gallery, and the model that it is asked with.

    Args:
        folder (`Path`): the gallery.
        model ([`~modeling_scalar.ScalarModel`]), processor (`ProcessorMixin`): of the gallery. One thread at a time
            may use the model: whoever has `lock`.
        model_name (`str`), fingerprint (`str`): the model's, which the gallery must name whenever it is opened.

    Raises:
        FileNotFoundError: there is no gallery.
        ValueError: it is damaged, or was made by another model.
    """

    def __init__(
        self, folder: Path, model: PreTrainedModel, processor: ProcessorMixin, model_name: str, fingerprint: str
    ):
        self.folder, self.lock = Path(os.path.abspath(folder)), Lock()
        self.uploads = self.folder.with_name(self.folder.name + "-uploads")
        self._model, self._processor = model, processor
        self._model_name, self._fingerprint = model_name, fingerprint
        self._texts: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._texts_lock, self._opening = Lock(), Lock()
        options = {name: value for name, value in model.score_options().items() if name not in WEIGHING}
        self.method = options.pop("method")
        self._learned = {name: value.item() for name, value in options.items()}
        self._stamp = self._look()
        self._views: deque[View] = deque([self._open()], _VIEWS)
        self.problem: str | None = None
        self._retry = 0.0

    def _look(self) -> tuple[int, ...] | None:
        """What changes with every commit; `None` for a gallery of another format, and for one that is gone."""
        try:
            stat = os.stat(self.folder / MANIFEST)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _open(self) -> View:
        gallery = Gallery.open(self.folder)
        gallery.check_model(self._model_name, self._fingerprint)
        return View(gallery, self.uploads)

    def view(self) -> View:
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

    def is_known(self, text: str) -> bool:
        """Whether a text was embedded before, so that [`Archive.embed`] returns at once."""
        with self._texts_lock:
            return text in self._texts

    def embed(self, text: str) -> torch.Tensor:
        """Embed a query, `(1, D)` or `(1, 3, D)`, once as long as it is remembered."""
        with self._texts_lock:
            if text in self._texts:
                self._texts.move_to_end(text)
                return self._texts[text]
        with self.lock:
            embeds = embed_captions(self._model, self._processor, [text])
        with self._texts_lock:
            self._texts[text] = embeds
            while len(self._texts) > _TEXTS:
                self._texts.popitem(last=False)
        return embeds

    def _answer(self, view: View, asked: Asked, search: Callable[[dict[str, Any]], Sequence[Hit]]) -> Answer:
        begun, gallery = time.monotonic(), view.gallery
        temperature = gallery.query_temperature if asked.temperature is None else asked.temperature
        hits = search({"method": self.method, "query_temperature": temperature} | self._learned)
        note = None
        if not hits:
            missing = "" if len(asked.modalities) == len(MODALITIES) else f" of {' or '.join(asked.modalities)}"
            note = f"No clip of the {len(gallery)} in the gallery has what the score {self.method!r} needs{missing}."
            note = note if len(gallery) else "The gallery holds no clips."
        return Answer(
            hits=view.found(hits),
            temperature="inf" if temperature == float("inf") else temperature,
            num_clips=len(gallery),
            seconds=time.monotonic() - begun,
            note=note,
        )

    def search(self, text: str, asked: Asked) -> Answer:
        """The best clips of a text; the model is not asked for one that was embedded before."""
        embeds, view = self.embed(text), self.view()
        return self._answer(
            view, asked, lambda options: find(view.gallery, embeds, asked.k, asked.modalities, **options)
        )

    def _clip_of(self, key: str) -> tuple[View, str]:
        """The last state, and the stored name of a clip in it."""
        view = self.view()
        for older in list(self._views):
            name = older.clip_of(key)
            if name is not None and (older is view or name in view.rows_of([name])):
                return view, name
        raise UnknownClipError("There is no such clip in the gallery; it may have changed. Search again.")

    def like(self, key: str, asked: Asked) -> Answer:
        """
        The clips most like one of the gallery, without itself: [`~gallery.gallery.Gallery.search`].

        Raises:
            UnknownClipError: no clip has this key, or it has nothing of what is looked at.
        """
        view, name = self._clip_of(key)

        def search(options: dict[str, Any]) -> Sequence[Hit]:
            return view.gallery.search(k=asked.k, like=from_utf8(name), modalities=asked.modalities, **options)

        try:
            return self._answer(view, asked, search)
        except NothingToCompareError as error:
            raise UnknownClipError(str(error)) from error

    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""
        view, name = self._clip_of(key)
        return view.place_of(from_utf8(name)).path

    def about(self, most_bytes: int, extensions: Sequence[str]) -> About:
        """What is served; `extensions` of files that may be added, none if no file may."""
        gallery = self.view().gallery
        shares = gallery.modality_mask.float().mean(0).tolist() if len(gallery) else [0.0] * len(MODALITIES)
        temperature = gallery.query_temperature
        return About(
            name=plain(self.folder.name, "utf-8"),
            num_clips=len(gallery),
            share=dict(zip(MODALITIES, shares, strict=True)),
            model=gallery.model and plain(gallery.model, "utf-8"),
            method=self.method,
            has_temperature=METHODS[self.method].weights == "query",
            temperature="inf" if temperature == float("inf") else temperature,
            segment=gallery.metadata.get(SEGMENT),
            uploads=bool(extensions),
            most_bytes=most_bytes,
            extensions=sorted(extensions),
            problem=self.problem,
        )


__all__ = ["NAME_SUFFIX", "Archive", "Asked", "UnknownClipError", "View", "find"]
