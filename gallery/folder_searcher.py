"""The search of a gallery in a folder, which is exact.

Shapes: Q queries, N clips, M modalities, D dimensions, K hits.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from .exact.blocks import Block, DamagedVectorsError, block_of
from .exact.clip_facts import Allowed, ClipFacts
from .exact.ranking import rank
from .filters import Filter, are_selected
from .hits import Hits, Texts
from .searcher import Scoring, Selection, StoredClip
from .store.columns import embeds_of, presence_of, taken
from .store.contents import Contents
from .store.places import DamagedFileError
from .store.rows import abbreviated, lists_of, strings, texts_of
from .store.stills import Stills
from .words.cues import ClipWords, words_of_file
from .words.transcripts import KINDS, SPEECH, Cue, Transcripts

_QUERY_BLOCK = 1024
_FILTERS = 8  # filters whose results are cached


@dataclass(frozen=True, eq=False, kw_only=True)
class FolderClip(StoredClip):
    """A clip of a gallery in a folder."""

    searcher: "FolderSearcher"

    @property
    def media(self) -> Path | None:
        """Its file, if it is here, has not changed, and may be shown to others."""
        path = self.searcher.gallery.own_media_of(self.place, self.record)
        if path is None:
            return None
        return Path(path)

    @property
    def still(self) -> Path | None:
        """A small picture of it, if there is one."""
        if self.record is None:
            return None
        return Stills(self.searcher.gallery.path).find(self.record.sha256, self.place.start)

    @property
    def num_windows(self) -> int | None:
        """The number of windows of its file, in a gallery of windows."""
        return self.searcher.windows_of_files.get(self.place.path)

    @property
    def subtitle(self) -> Path | None:
        """The transcript that takes the place of subtitles, if there is one with words."""
        if self.record is None:
            return None
        return Transcripts(self.searcher.gallery.path).with_words(self.record.sha256)

    @property
    def transcripts(self) -> list[Path]:
        """The files with the words that were recognised in its file."""
        if self.record is None:
            return []
        found = []
        for kind in KINDS:
            path = Transcripts(self.searcher.gallery.path, kind).path_of(self.record.sha256)
            if path.is_file():
                found.append(path)
        return found

    def words(self) -> dict[str, list[Cue]]:
        """The words of its file by source: `"subtitle"` or `"speech"`, and `"screen"`."""
        found = words_of_file(self.searcher.gallery, self.place.path, self.record, self.transcripts)
        source = SPEECH if found.is_transcript else "subtitle"
        return {source: found.spoken, "screen": list(chain(*found.others))}


class FolderSearcher:
    """
    The search of a gallery in a folder; it needs no preparation. It is a
    [`~scalar_retrieval.gallery.searcher.Searcher`].

    Args:
        gallery ([`~scalar_retrieval.gallery.store.contents.Contents`]): as it was opened.
        device (`str` or `torch.device`): on a device such as `"cuda"`, what is ranked is copied into its memory, 6
            bytes per clip and dimension in float16; this pays off for many searches. `"cpu"` reads it from the files.
    """

    unsupported: frozenset[str] = frozenset()

    def __init__(self, gallery: Contents, device: str | torch.device = "cpu"):
        self.gallery = self.described = gallery
        self.device = torch.device(device)
        self._allowed: dict[Filter, Allowed] = {}
        self._partial: dict[tuple[bool, ...], Block] = {}

    def __len__(self) -> int:
        return len(self.gallery)

    @cached_property
    def block(self) -> Block:
        """The clips in the form in which they are ranked."""
        return block_of(self.gallery.parts, self.gallery.slices, self.device)

    @cached_property
    def clip_words(self) -> ClipWords:
        """What is said in clips."""
        return ClipWords(self.gallery)

    @cached_property
    def clip_facts(self) -> ClipFacts:
        """What filters use."""
        return ClipFacts(self.gallery, self.clip_words)

    def clip_named(self, name: str) -> str:
        """Find a clip by name: [`~scalar_retrieval.gallery.store.contents.Contents.clip_named`]."""
        return self.gallery.clip_named(name)

    def current(self) -> "FolderSearcher":
        """The latest committed state: itself if nothing has changed. Words that were read, and the model, are kept."""
        gallery = self.gallery
        newest = gallery.newest()
        if newest is gallery:
            return self
        # What took long for the earlier state serves the new one, too.
        searcher = newest.to(self.device).searcher
        searcher.clip_words = ClipWords(newest, self.clip_words)
        return searcher

    def counts(self) -> dict[str, int]:
        """The number of clips by modality, of those whose subtitles are recognised `"speech"`, and of `"files"` in a
        gallery of windows."""
        gallery = self.gallery
        mask = gallery.modality_mask
        found = dict(zip(gallery.modalities, mask.sum(0).tolist(), strict=True))
        # A transcript may have no words, so only clips that have subtitles count.
        found[SPEECH] = 0
        hashes = list(Transcripts(gallery.path, SPEECH).hashes())
        if hashes and "subtitle" in gallery.modalities:
            files = gallery.file_rows
            is_transcribed = pc.is_in(files.column("sha256"), value_set=strings(hashes))
            paths = files.column("path").filter(is_transcribed).combine_chunks()
            has_words = mask[:, gallery.modalities.index("subtitle")]
            found[SPEECH] = int((has_words & self._is_of(paths)).sum())
        if gallery.is_cut:
            found["files"] = len(self.windows_of_files)
        return found

    @cached_property
    def windows_of_files(self) -> dict[str, int]:
        """The number of windows of each file, in a gallery of windows."""
        if not self.gallery.is_cut:
            return {}
        counts = pc.value_counts(self.gallery.paths)
        return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))

    # Ranking -------------------------------------------------------------------------------------------------------

    def rank(self, queries: torch.Tensor, k: int, scoring: Scoring, among: Selection) -> list[Hits]:
        """Find the exact k best clips of each query, `(Q, D)` of unit norm: see
        [`~scalar_retrieval.gallery.searcher.Searcher`]."""
        gallery = self.gallery
        options = {"query_temperature": gallery.query_temperature} | gallery.calibration | scoring.options
        # What is ranked is all stored clips, also removed ones; a filter knows only the others.
        block = self._block_of(are_selected(among.modalities, gallery.modalities))
        allowed = self.allowed(among)
        if allowed is not None:
            block = block.limited(self._is_there.clone().masked_scatter_(self._is_there, allowed.mask))
        facts = self._facts(allowed)

        found = []
        for some in queries.split(_QUERY_BLOCK):
            try:
                ranking = rank(block, some, min(k, len(gallery)), scoring.method, **options)
            except DamagedVectorsError as error:
                names = abbreviated(self._texts(error.rows, Selection()).clip_ids)
                reason = f"holds vectors that have changed since they were written, of {names}"
                raise DamagedFileError(gallery.path, reason, gallery.path) from error
            presence = self._presence[ranking.rows]  # (Q, K, M)
            rows = self._kept_rows[ranking.rows]  # (Q, K)
            # A row holds fewer hits where fewer clips have a score.
            for query, count in enumerate((ranking.scores > -math.inf).sum(1).tolist()):
                hits = Hits(
                    gallery.modalities,
                    ranking.scores[query, :count],
                    presence[query, :count],
                    partial(self._texts, ranking.rows[query, :count], among),
                    rows=rows[query, :count],
                    num_scored=ranking.num_scored[query].item(),
                    **facts,
                )
                if ranking.weights is not None:
                    hits.weights = ranking.weights[query, :count]
                if not count:
                    hits.reason = self._why_none(scoring.method, allowed, among)
                found.append(hits)
        return found

    def _facts(self, allowed: Allowed | None) -> dict[str, Any]:
        """What all hits say of the gallery and of the clips that could be hits."""
        facts = {"num_clips": len(self), "root": self.gallery.root}
        if allowed is not None:
            facts |= {"num_allowed": allowed.num_clips, "unknown": allowed.unknown}
        return facts

    @cached_property
    def _presence(self) -> torch.Tensor:
        """The modalities of each clip, also of removed ones."""
        return self.block.modality_mask.cpu()

    @cached_property
    def _is_there(self) -> torch.Tensor:
        return self.block.is_there.cpu()

    @cached_property
    def _kept_rows(self) -> torch.Tensor:
        """The index of each clip in the gallery, in which removed clips do not count."""
        return self._is_there.cumsum(0) - 1

    def _block_of(self, selected: tuple[bool, ...]) -> Block:
        """The clips with only the selected modalities; cached for each selection."""
        if all(selected):
            return self.block
        if selected not in self._partial:
            self._partial[selected] = self.block.with_modalities(torch.tensor(selected))
        return self._partial[selected]

    def _texts(self, rows: torch.Tensor, among: Selection) -> Texts:
        """The texts of stored clips."""
        if not len(rows):
            return Texts([], [], [], [], [])
        # Tables are read in ascending order; what is read is then put in the order of the hits.
        order, places = rows.unique(return_inverse=True)
        places = places.tolist()
        tables = [part.table for part in self.gallery.parts]
        table = taken(tables, order.numpy(), ("clip_id", "problems"))
        names = texts_of(table, "clip_id")
        problems = lists_of(table, "problems")
        clip_ids = [names[place] for place in places]
        copies = self._copies(self._kept_rows[rows], among) if among.unique else [()] * len(clip_ids)
        problems = [tuple(problems[place]) for place in places]
        found = self.gallery.places_of(clip_ids)
        known = self.gallery.files_at({place.path for place in found})
        return Texts(clip_ids, found, problems, copies, [known.get(place.path) for place in found])

    def _why_none(self, method: str, allowed: Allowed | None, among: Selection) -> str:
        """Why a search with this score, among these clips, finds nothing."""
        path = self.gallery.path
        others = len(self) - (among.without is not None)  # a clip is not similar to itself
        if not others:
            return f"{path} holds no {'clips' if among.without is None else 'other clips'}"
        num_left = others if allowed is None else allowed.num_clips
        if num_left:
            return f"none of the {num_left} clips that may be found in {path} has what the score {method!r} needs"
        reason = f"the filter leaves none of the {others} clips in {path}"
        if among.filter.paths and not self.clip_facts.allowed(Filter(among.filter.paths)).num_clips:
            return f"{reason}: no path matches; paths look like {self.gallery.paths[0]}"
        return reason

    # Selection -----------------------------------------------------------------------------------------------------

    def allowed(self, among: Selection) -> Allowed | None:
        """The clips that meet a filter and the other conditions, in gallery order; `None` if there is no condition."""
        found = self._filtered(among.filter, among.mask)
        is_restricted = among.without is not None or among.inside is not None or among.outside
        if not is_restricted and not (among.unique and len(self.clip_facts.contents[1])):
            return found
        mask = torch.ones(len(self), dtype=torch.bool)
        unknown = {}
        if found is not None:
            mask &= found.mask
            unknown = found.unknown
        if among.without is not None:
            mask[self.gallery.row_of(among.without)] = False
        if among.inside is not None:
            mask &= self._is_of(strings([among.inside]))
        # Of the clips that share a content, only the first one that meets the conditions above stays.
        if among.unique:
            contents, shared = self.clip_facts.contents
            rows = shared[mask.numpy()[shared]]
            _, first = np.unique(contents[rows], return_index=True)
            mask[rows] = False
            mask[rows[first]] = True
        # Files that were found before, last: the copies of their clips are found with them.
        if among.outside:
            mask &= ~self._is_of(strings(among.outside))
        return Allowed(mask, unknown)

    def _filtered(self, wanted: Filter, mask: torch.Tensor | None) -> Allowed | None:
        """The clips of a mask that meet a filter. The results of the last few filters are cached."""
        if mask is not None and (mask.dtype != torch.bool or mask.shape != (len(self),)):
            raise ValueError(
                f"`allowed` must be a bool tensor of shape {(len(self),)}, got {mask.dtype} {tuple(mask.shape)}."
            )
        if mask is None and wanted.is_empty:
            return None
        if mask is not None:
            return self.clip_facts.allowed(wanted, mask)
        # A filter that is used again moves to the end, so the first is the one that was not used for longest.
        found = self._allowed.pop(wanted, None) or self.clip_facts.allowed(wanted)
        self._allowed[wanted] = found
        while len(self._allowed) > _FILTERS:
            self._allowed.pop(list(self._allowed)[0], None)  # safe if several threads do so at once
        return found

    def _is_of(self, files: pa.Array) -> torch.Tensor:
        """Which clips `(N,)` are of some files."""
        return torch.from_numpy(np.array(pc.is_in(self.gallery.paths, value_set=files), dtype=bool))

    def _copies(self, rows: torch.Tensor, among: Selection) -> list[tuple[str, ...]]:
        """The other clips with the content of each of these, among those that meet the conditions."""
        # All that could have been found instead: clips that meet every condition but that of uniqueness.
        contents, shared = self.clip_facts.contents
        allowed = self.allowed(replace(among, unique=False, outside=frozenset()))
        if allowed is not None:
            shared = shared[allowed.mask.numpy()[shared]]
        names = dict(zip(shared.tolist(), texts_of(self.gallery.clips.take(shared), "clip_id"), strict=True))
        same = defaultdict(list)
        for row in names:
            same[contents[row]].append(row)
        found = []
        for row in rows.tolist():
            found.append(tuple(names[other] for other in same[contents[row]] if other != row))
        return found

    # Clips ---------------------------------------------------------------------------------------------------------

    def clips(self, clip_ids: Sequence[str]) -> list[StoredClip]:
        """Read clips; raises a KeyError that names a missing one."""
        gallery = self.gallery
        if not clip_ids:
            return []
        # Rows are found by one pass over all names, and read in the order of `clip_ids`.
        names = gallery.clips.column("clip_id")
        at = np.flatnonzero(np.array(pc.is_in(names, value_set=strings(clip_ids))))
        known = {name: row for row, name in enumerate(names.take(at).to_pylist())}
        for clip_id in clip_ids:
            if clip_id not in known:
                raise KeyError(f"There is no clip {clip_id!r} in {gallery.path}.")
        rows = [known[clip_id] for clip_id in clip_ids]
        # Only these rows are copied: `take` on a table of several shards would copy all of its vectors.
        table = taken([gallery.clips], at, [*gallery.modalities, "presence", "problems"]).take(rows)
        problems = map(tuple, lists_of(table, "problems"))
        places = gallery.places_of(clip_ids)
        records = gallery.files_at({place.path for place in places})
        found = []
        columns = clip_ids, places, embeds_of(table, gallery.slices).float(), presence_of(table), problems
        for clip_id, place, embeds, mask, lost in zip(*columns, strict=True):
            found.append(FolderClip(clip_id, place, embeds, mask, lost, records.get(place.path), searcher=self))
        return found

    @cached_property
    def _by_name(self) -> tuple[np.ndarray, np.ndarray]:
        """The clips in the order of their files, and the number of the file of each."""
        paths = self.gallery.paths
        table = pa.table({"path": paths, "row": np.arange(len(paths))})
        order = pc.sort_indices(table, sort_keys=[("path", "ascending"), ("row", "ascending")])
        return order.to_numpy(), paths.combine_chunks().dictionary_encode().indices.to_numpy()

    def list_clips(self, among: Selection, skip: int, k: int, per_file: bool) -> Hits:
        """List clips by name, without scores; windows of a file in order."""
        gallery = self.gallery
        allowed = self.allowed(among)
        facts = self._facts(allowed)
        # By name, so the windows of a file are adjacent, and the first of each is where the file changes.
        rows, files = self._by_name
        if allowed is not None:
            rows = rows[allowed.mask.numpy()[rows]]
        if per_file and gallery.is_cut:
            rows = rows[np.flatnonzero(np.diff(files[rows], prepend=-1))]
            facts["num_files"] = len(rows)
        # Rows count the clips of the gallery; vectors and names are read by rows that also count removed ones.
        kept = torch.from_numpy(rows[skip : skip + k].astype(np.int64))
        stored = self._is_there.nonzero()[:, 0][kept]
        return Hits(
            gallery.modalities,
            torch.full((len(kept),), math.nan),
            self._presence[stored],
            partial(self._texts, stored, among),
            rows=kept,
            num_scored=0,
            first_rank=skip + 1,
            **facts,
        )


__all__ = ["FolderClip", "FolderSearcher"]
