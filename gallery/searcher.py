"""The one protocol of what can be searched. [`~scalar_retrieval.gallery.folder_searcher.FolderSearcher`] searches a
gallery in a folder, `scalar_retrieval.search.postgresql.TableSearcher` one in a table of PostgreSQL;
[`~scalar_retrieval.gallery.searching.search`] and the service work with both.

Shapes: Q queries, N clips, M modalities, D dimensions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from .filters import Filter
from .hits import Hits
from .store.described import Described
from .store.rows import MediaFile
from .store.windows import Place
from .words.transcripts import Cue


class UnsupportedError(ValueError):
    """A searcher cannot do what is requested; the message names what can, such as the gallery's folder."""


@dataclass(frozen=True, eq=False)
class Selection:
    """
    Which clips a search may find: all conditions must hold.

    Args:
        filter ([`~scalar_retrieval.gallery.filters.Filter`]): paths, durations, dates, modalities, words.
        mask (`torch.BoolTensor` of shape `(N,)`, *optional*): the clips, in gallery order.
        modalities (`tuple[str, ...]`, *optional*): the modalities in use, by default all; a clip that has none of them
            is not found, and no other enters its score.
        without (`str`, *optional*): the clip that is the query itself.
        outside (`frozenset[str]`): files that are not searched: those found before, where each file is found once.
        inside (`str`, *optional*): the one file whose windows are searched.
        unique (`bool`): one clip for each content, the first one; the hits name its copies.
    """

    filter: Filter = Filter()
    mask: torch.Tensor | None = None
    modalities: tuple[str, ...] | None = None
    without: str | None = None
    outside: frozenset[str] = frozenset()
    inside: str | None = None
    unique: bool = False


@dataclass(frozen=True, eq=False)
class Scoring:
    """
    How clips are scored.

    Args:
        method (`str`): as in `retrieval_scores`.
        options (`dict`): `query_temperature`, `modality_scale`, `modality_offset` and further keyword arguments of
            `retrieval_scores`; the first three are by default the gallery's own.
    """

    method: str = "scalar"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class StoredClip:
    """
    One clip, as needed by a query by example, by the second stage and by the page. What requires reading files is
    computed when it is accessed: subclasses override `media`, `still`, `num_windows`, `subtitle` and `words`.

    Args:
        clip_id (`str`), place ([`~scalar_retrieval.gallery.store.windows.Place`]): its identifier, and its file, for a
            window with seconds.
        modality_embeds (`torch.FloatTensor` of shape `(M, D)`): zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(M,)`).
        problems (`tuple[str, ...]`): what could not be read and counts as absent.
        record ([`~scalar_retrieval.gallery.store.rows.MediaFile`], *optional*): its file when it was read, if known.
    """

    clip_id: str
    place: Place
    modality_embeds: torch.Tensor
    modality_mask: torch.Tensor
    problems: tuple[str, ...] = ()
    record: MediaFile | None = None

    @property
    def media(self) -> Path | None:
        """Its file, if it is here, has not changed, and may be shown to others."""
        return None

    @property
    def still(self) -> Path | None:
        """A small picture of it, if there is one."""
        return None

    @property
    def num_windows(self) -> int | None:
        """The number of windows of its file, in a gallery of windows, if known."""
        return None

    @property
    def subtitle(self) -> Path | None:
        """The transcript that takes the place of subtitles, if there is one with words."""
        return None

    def words(self) -> dict[str, list[Cue]]:
        """The words of its file by source: `"subtitle"` or `"speech"`, and `"screen"`."""
        return {}


class Searcher(Protocol):
    """What can be searched. Everything else that it is asked to do is an [`UnsupportedError`]."""

    described: Described
    """The metadata: modalities, model, fingerprint, temperature, calibration, least score; `path` for messages."""
    unsupported: frozenset[str]
    """What it cannot do, some of `"mask"`, `"unique"`, `"rerank"` and `"listing"`."""

    def __len__(self) -> int: ...

    def rank(self, queries: torch.Tensor, k: int, scoring: Scoring, among: Selection) -> list[Hits]:
        """Find the exact k best clips of each query, `(Q, D)`, checked by
        [`~scalar_retrieval.gallery.querying.check_vectors`]; says why there are none."""

    def clips(self, clip_ids: Sequence[str]) -> list[StoredClip]:
        """Read clips; raises a KeyError that names a missing one."""

    def clip_named(self, name: str) -> str:
        """Find a clip by its identifier, its path, or the end of its path; raises a
        [`~scalar_retrieval.gallery.store.described.NoClipError`]."""

    def list_clips(self, among: Selection, skip: int, k: int, per_file: bool) -> Hits:
        """List clips by name, without scores; windows of a file in order."""

    def counts(self) -> dict[str, int]:
        """The number of clips by modality; if known, also of those whose subtitles are recognised `"speech"`, and of
        `"files"` in a gallery of windows."""

    def current(self) -> "Searcher":
        """The latest committed state: itself if nothing has changed."""


__all__ = ["Scoring", "Searcher", "Selection", "StoredClip", "UnsupportedError"]
