"""The words said in the clips of a gallery: the cues of their subtitles and transcripts, and of other texts stored for
them.
"""

import math
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from scalar_retrieval.modeling_scalar.modalities_scalar import kind_of
from scalar_retrieval.modeling_scalar.tracks_scalar import MEDIA_FILES, TEXT_FILES, find_sidecar

from ..decoding import SandboxedReader, Stop, check_not_stopped, num_processors
from ..store.contents import Contents
from ..store.file_state import has_given_words
from ..store.places import is_from_hub, lies_in_gallery
from ..store.rows import MediaFile
from ..store.windows import Place
from .folding import folded
from .transcripts import SCREEN, SPEECH, Cue, Transcripts

_REMEMBERED = 64  # files whose cues are cached: finding a track means reading the whole file
_PATIENCE = 1.0  # seconds after which a progress bar appears


def _stamp(path: str | os.PathLike) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=_REMEMBERED)
def _read(path: str, stamp: tuple[int, int]) -> list[Cue]:
    try:
        return [Cue(*cue) for cue in SandboxedReader().read_cues(path)]
    except (OSError, ValueError):
        return []


def read_cues(path: str | os.PathLike) -> list[Cue]:
    """
    Read the cues of a file.

    Args:
        path (`str`): a subtitle file, or a media file.

    Returns:
        The cues in order; none if the file cannot be read.
    """
    stamp = _stamp(path)
    if stamp is None:
        return []
    return _read(os.fspath(path), stamp)


def _is_media(path: str) -> bool:
    """Whether there is a media file at this path: a gallery may name any file."""
    return os.path.isabs(path) and os.path.isfile(path) and os.path.splitext(path)[1].lower() in MEDIA_FILES


def subtitle_cues(path: str) -> list[Cue]:
    """The cues of the subtitles of an existing media file; none for other files."""
    if not _is_media(path):
        return []
    beside = find_sidecar(path)
    if beside is None:
        return read_cues(path)
    # A link may lead to a private file.
    if not os.path.realpath(beside).lower().endswith(TEXT_FILES):
        return []
    return read_cues(beside)


def cues_between(cues: Sequence[Cue], start: float | None, stop: float | None) -> list[Cue]:
    """The cues that are said, at least partly, between two times in seconds."""
    least = start or 0.0
    most = math.inf if stop is None else stop
    return [cue for cue in cues if cue.stop > least and cue.start < most]


def may_have_words(presence: Mapping[str, bool]) -> bool:
    """Whether a clip with these modalities may contain words: it has a text, or that is not known."""
    is_known = False
    for name, is_there in presence.items():
        if kind_of(name) == "text":
            is_known = True
            if is_there:
                return True
    return not is_known


class FileWords(NamedTuple):
    """
    The words of a file.

    Args:
        spoken (`list[Cue]`): cues of its subtitles, or its transcript.
        others (`list[list[Cue]]`): cues of each further text stored for it.
        is_read (`bool`): whether the file could be read, so that an empty `spoken` means that nothing is said.
        is_transcript (`bool`): whether `spoken` is speech that was recognised by machine.
    """

    spoken: list[Cue]
    others: list[list[Cue]]
    is_read: bool
    is_transcript: bool = False


def words_of_file(gallery: Contents, path: str, known: MediaFile | None, kept: Sequence[Path]) -> FileWords:
    """
    Read the words of a file of a gallery.

    Args:
        gallery ([`~scalar_retrieval.gallery.store.contents.Contents`]), path (`str`): the gallery, and the file as the
            gallery names it.
        known ([`~scalar_retrieval.gallery.store.rows.MediaFile`], *optional*): the gallery's record of it.
        kept (sequence of `Path`): its transcripts, from
            [`~scalar_retrieval.gallery.words.transcripts.Transcripts.kept`].
    """
    # The texts that are stored in the gallery; a link may lead out of it, to a private file.
    spoken = []
    others = []
    for file in kept:
        if not lies_in_gallery(file, gallery.path):
            continue
        cues = read_cues(file)
        if file.name.endswith(f".{SPEECH}.vtt"):
            spoken += cues
        elif cues:
            others.append(cues)
    # A transcript takes the place of the file's own subtitles. Words from a list do so, too, but are not kept.
    if spoken or (known is not None and has_given_words(known)):
        return FileWords(spoken, others, bool(spoken), is_transcript=bool(spoken))

    # The file itself; those of a published gallery would be downloaded one by one.
    media = None if is_from_hub(Path(gallery.path)) else gallery.own_media_of(Place(path), known)
    if media is None or not _is_media(media):
        return FileWords([], others, False)
    # Next to a file of the gallery's own folder, only what lies in that folder is read.
    if not os.path.isabs(path):
        beside = find_sidecar(media)
        if beside is not None and not lies_in_gallery(beside, gallery.path):
            return FileWords([], others, False)
    return FileWords(subtitle_cues(media), others, True)


class _ClipTexts(NamedTuple):
    """For each clip: what its words were read from, the words (a line per text), and whether these are all."""

    sources: pa.Array
    texts: pa.Array
    is_whole: np.ndarray


class ClipWords:
    """
    The words of the clips of a gallery, read once, when they are first needed.

    Args:
        gallery ([`~scalar_retrieval.gallery.store.contents.Contents`]): as it was opened.
        before ([`ClipWords`], *optional*): of an earlier state; the words of unchanged clips are reused.
    """

    def __init__(self, gallery: Contents, before: "ClipWords | None" = None):
        self._gallery = gallery
        self._lock = Lock()
        self._known: _ClipTexts | None = None
        self._before: _ClipTexts | None = None
        if before is not None:
            self._before = before._known or before._before

    def read(self) -> None:
        """Read the words, which may take long; raises [`~scalar_retrieval.gallery.decoding.Stopped`] if the reading is
        stopped."""
        with self._lock:
            if self._known is None:
                self._known = self._read()
                self._before = None

    def texts(self) -> tuple[list[str], list[bool]]:
        """The words of each clip as from [`~scalar_retrieval.gallery.words.folding.folded`], a line per text, and
        whether they are all of its words."""
        self.read()
        return self._known.texts.to_pylist(), self._known.is_whole.tolist()

    def clips_with(self, words: str) -> tuple[np.ndarray, np.ndarray]:
        """Which clips contain words or a phrase, and for which others that is unknown; bools `(N,)` each."""
        self.read()
        has_words = np.array(pc.match_substring(self._known.texts, folded(words)), dtype=bool)
        return has_words, ~(has_words | self._known.is_whole)

    def _read(self) -> _ClipTexts:
        gallery = self._gallery
        names = gallery.clip_ids
        mask = gallery.modality_mask
        places = gallery.places_of(names)

        # What the words of each file are read from: a clip of the same sources has the same words.
        transcripts = Transcripts(gallery.path).kept()
        files: dict[str, tuple[MediaFile | None, list[Path]]] = {}
        states = {}
        for path in {place.path for place in places}:
            known = gallery.files.get(path)
            kept = [] if known is None else transcripts.get(known.sha256, [])
            files[path] = known, kept
            stamps = [(text.name, _stamp(text)) for text in kept]
            states[path] = f"{known and (known.sha256, known.texts)} {stamps}"
        sources = [f"{name}\0{states[place.path]}" for name, place in zip(names, places, strict=True)]
        sources = pa.array(sources, pa.large_string())

        # Clips without texts have no words; others may have been read before.
        texts = [""] * len(names)
        is_whole = np.zeros(len(names), dtype=bool)
        is_text = [kind_of(name) == "text" for name in gallery.modalities]
        if any(is_text):
            is_whole = ~mask[:, is_text].any(1).numpy()
        before = self._before
        if before is not None:
            at = pc.fill_null(pc.index_in(sources, value_set=before.sources), -1).to_numpy()
            for row in np.flatnonzero((at >= 0) & before.is_whole[at]).tolist():
                texts[row] = before.texts[at[row]].as_py()
                is_whole[row] = True

        # The rest is read, each file once for all its windows.
        rows = defaultdict(list)
        for row in np.flatnonzero(~is_whole).tolist():
            rows[places[row].path].append(row)
        for path, found in self._read_files({path: files[path] for path in rows}):
            known, _ = files[path]
            given = {} if known is None else known.words()
            for row in rows[path]:
                _, start, stop = places[row]
                lines = []
                for cues in (found.spoken, *found.others):
                    words = [cue.text for cue in cues_between(cues, start, stop)]
                    lines.append(" ".join(words))
                texts[row] = "\n".join(map(folded, (*lines, *given.values())))
                presence = dict(zip(gallery.modalities, mask[row].tolist(), strict=True))
                is_whole[row] = _has_all_words(found, given, presence)
        return _ClipTexts(sources, pa.array(texts, pa.large_string()), is_whole)

    def _read_files(self, files: Mapping[str, tuple[MediaFile | None, list[Path]]]) -> Iterator[tuple[str, FileWords]]:
        """Yield files with their words; several files are read at a time."""
        progress = tqdm(total=len(files), desc="reading words", unit="file", delay=_PATIENCE, disable=None)
        with Stop().threads(num_processors()) as readers, progress as bar:
            words = readers.map(lambda path: words_of_file(self._gallery, path, *files[path]), files)
            for path, found in zip(files, words, strict=True):
                check_not_stopped()
                yield path, found
                bar.update()


def _has_all_words(found: FileWords, given: Collection[str], presence: Mapping[str, bool]) -> bool:
    """Whether all words of a clip with these modalities are those found of its file and those of the modalities
    `given`."""
    # What is said: without cues, the clip must be known to be silent.
    is_silent = not presence["subtitle"] if "subtitle" in presence else found.is_read
    if not (found.spoken or is_silent):
        return False
    # Other texts: each must be given, or be the one that was read in the pictures.
    known = {"subtitle", *given}
    if found.others:
        known.add(SCREEN)
    for name, is_there in presence.items():
        if is_there and name not in known and kind_of(name) == "text":
            return False
    return True


__all__ = ["ClipWords", "FileWords", "cues_between", "may_have_words", "read_cues", "subtitle_cues", "words_of_file"]
