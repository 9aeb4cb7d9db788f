"""Search of embedded clips: which ones match texts, vectors or another clip best, and why. [`search`] is the same for
every [`~scalar_retrieval.gallery.searcher.Searcher`]; [`FolderSearcher`] searches a gallery in a folder, exactly.

Shapes: Q queries, N clips, M modalities, D dimensions, K hits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from scalar_retrieval.modeling_scalar.scores_scalar import CALIBRATION, WEIGHING

from .columns import embeds_of, presence_of, taken
from .contents import Contents
from .cues import ClipWords, words_of_file
from .described import Described, score_options_of
from .exact.blocks import Block, DamagedVectorsError, block_of
from .exact.ranking import rank
from .filters import Allowed, ClipFacts, Filter, ModalityError
from .hits import HitLists, Hits, Texts
from .matching import check_can_match, check_depth
from .querying import (
    Likeness,
    QueryModel,
    check_vectors,
    load_query_model,
    query_like,
    split_queries,
)
from .reranking import rerank as rerank_hits
from .rows import abbreviated, lists_of, strings, texts_of
from .searcher import Clip, Scoring, Searcher, Selection, UnsupportedError
from .stills import Stills
from .storage import DamagedFileError
from .transcripts import KINDS, SPEECH, Cue, Transcripts
from .windows import SEGMENT

_QUERY_BLOCK = 1024
_FEWEST = 0.9  # smallest gallery, as a share of the clips that a least score was fitted to
_FILTERS = 8  # filters whose results are cached


def are_selected(modalities: Sequence[str] | None, known: Sequence[str]) -> tuple[bool, ...]:
    """Which of the known modalities are selected by name; all of them if no names are given."""
    names = tuple(known if modalities is None else modalities)
    if not names or not set(names) <= set(known):
        raise ModalityError(f"`modalities` must name some of {tuple(known)}, got {names}.")
    return tuple(name in names for name in known)


# Of every searcher ---------------------------------------------------------------------------------------------------


def _least_score(described: Described, scoring: Scoring, modalities: Sequence[str] | None, num_clips: int) -> Any:
    """The least score of a match, if it was fitted to searches like this one."""
    least = described.least_score
    if least is None or num_clips < _FEWEST * least["num_clips"]:
        return None
    # Other methods, modalities, temperatures and calibrations give scores that mean something else.
    if scoring.method != least["score_options"]["method"] or set(CALIBRATION) & set(scoring.options):
        return None
    if set(modalities or described.modalities) != set(least["modalities"]):
        return None
    if scoring.options.get("query_temperature", described.query_temperature) != described.query_temperature:
        return None
    return least["score"]


def check_supported(searcher: Searcher, among: Selection, *further: str) -> None:
    """Raise an UnsupportedError if a selection, or something `further`, is more than a searcher can do."""
    asked = list(further)
    if among.mask is not None:
        asked.append("mask")
    if among.unique:
        asked.append("unique")
    missing = sorted(searcher.unsupported.intersection(asked))
    if missing:
        raise UnsupportedError(
            f"{searcher.described.path} does not support {', '.join(missing)}; a gallery in a folder does."
        )


def _best_of_files(
    found: Hits, k: int, searcher: Searcher, query: torch.Tensor, scoring: Scoring, among: Selection
) -> Hits:
    """The best hit of each of `k` files, or of all, from the `k` best windows of a query, `(1, D)`."""
    # Asking for ever more hits would not do: a file may have any number of windows.
    best = found.best_of_files(k)
    count = -1
    while count < len(best) < k:
        count = len(best)
        outside = frozenset(place.path for place in found.texts.places)
        (further,) = searcher.rank(query, k, scoring, replace(among, outside=outside))
        found = found.continued(further)
        best = found.best_of_files(k)
    return best


def search(
    searcher: Searcher,
    queries: str | Sequence[str] | torch.Tensor | np.ndarray | None = None,
    k: int = 10,
    query_temperature: float | None = None,
    method: str | None = None,
    *,
    load: Callable[[], QueryModel] | None = None,
    like: str | Likeness | None = None,
    modalities: Sequence[str] | None = None,
    allowed: torch.Tensor | Filter | None = None,
    per_file: bool = False,
    unique: bool = False,
    rerank: int | None = None,
    fusion_weight: float | None = None,
    inside: str | None = None,
    **score_parameters: float,
) -> Hits | HitLists:
    """
    Find the k best clips of each query, exactly.

    Scores are computed for every clip; SCALAR's score is first bounded in eight bits, and computed in float64 unless
    the bound proves that the clip is not among the best (see [`~scalar_retrieval.gallery.exact.ranking`]).

    Args:
        searcher ([`~scalar_retrieval.gallery.searcher.Searcher`]): what is searched; `Gallery.search` gives its own,
            and its model.
        queries (`str`, `list[str]`, or a float tensor or array of shape `(Q, D)`): texts, which the
            gallery's own model embeds (see [`~scalar_retrieval.gallery.querying.load_query_model`]), or vectors of
            unit norm. Parts of a text in quotation marks must be said in a clip,
            see [`~scalar_retrieval.gallery.querying.split_query`].
        k (`int`): hits per query; fewer if the gallery has fewer clips that `method` can score.
        query_temperature (`float`, *optional*): by default the gallery's own.
        method (`str`, *optional*): as in `retrieval_scores`, such as `"scalar"` or the name of a modality; by default
            the model's own, for vectors `"scalar"`. Clips for which it is undefined are not found.
        load (`Callable`, *optional*): returns the [`~scalar_retrieval.gallery.querying.QueryModel`] that embeds texts,
            and is called if there are some; by default the model is loaded for each call.
        like (`str` or [`~scalar_retrieval.gallery.querying.Likeness`], *optional*): instead of queries, a clip: finds
            those most similar to it, without itself; or an outside file, embedded by
            [`~scalar_retrieval.gallery.querying.QueryModel.embed_file`]. See
            [`~scalar_retrieval.gallery.querying.query_like`]; scales and offsets, which fit modalities to words, are
            not used then.
        modalities (`list[str]`, *optional*): the modalities to use, by default all; clips that have none of them are
            not found.
        allowed (`torch.BoolTensor` of shape `(N,)`, or [`~scalar_retrieval.gallery.filters.Filter`], *optional*):
            which clips may be found, in gallery order, or the conditions that they must meet.
        per_file (`bool`): in a gallery of windows, return each file once, with its best window.
        unique (`bool`): return files with the same content once, as the first of them that is allowed; for windows,
            those at the same seconds. `Hit.copies` are the others.
        rerank (`int`, *optional*): for texts, number of first hits that the model's cross-encoder reorders, for which
            it reads their files again: the second stage of [`~scalar_retrieval.gallery.reranking`].
        fusion_weight (`float`, *optional*): in the second stage, order by the score plus this weight times the match,
            instead of the match alone.
        inside (`str`, *optional*): the one file whose windows may be found.
        score_parameters (`float`): fitted parameters of the method, the other keyword arguments of
            `retrieval_scores`; by default the model's. The scale and offset of modalities are the gallery's own unless
            they are given.

    Returns:
        [`Hits`] for one text or clip; [`HitLists`], a list of `Hits`, for several queries. Best first, equal scores in
        gallery order. They can be printed, and shown in notebooks. Their `matches_well` is None except for queries to
        all clips, scored like the gallery, if the score of a match was fitted
        ([`~scalar_retrieval.gallery.described.LEAST_SCORE`]).

    Raises:
        KeyError: there is no clip `like`.
        FileNotFoundError: the model is missing.
        UnsupportedError: the searcher cannot do this.
        ValueError: a text is empty, the shape or norm of vectors is wrong, a number is out of range, the model is not
            the gallery's, or the clip has none of the selected modalities.
    """
    # What is asked for must make sense, and be something that the searcher can do.
    if isinstance(queries, np.ndarray) and queries.dtype.kind == "f":
        queries = torch.from_numpy(queries)
    is_texts = queries is not None and not isinstance(queries, torch.Tensor)
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}.")
    if (queries is None) == (like is None):
        raise ValueError("Give either `queries` or `like`.")
    if rerank is None and fusion_weight is not None:
        raise ValueError("`fusion_weight` needs the second stage: set `rerank` to the number of hits to reorder.")
    if rerank is not None and not is_texts:
        raise ValueError("The second stage needs texts: use `rerank` only with text queries.")
    described = searcher.described
    if modalities is not None:
        modalities = tuple(modalities)
    among = Selection(modalities=modalities, inside=inside, unique=unique)
    if isinstance(allowed, Filter):
        among = replace(among, filter=allowed)
    else:
        among = replace(among, mask=allowed)
    further = [] if rerank is None else ["rerank"]
    check_supported(searcher, among, *further)

    # Every kind of query becomes vectors, (Q, D), that are scored by `method` with `score_parameters`.
    name = None
    if is_texts:
        # Words in quotation marks are conditions on clips; the model reads them without the marks.
        texts = [queries] if isinstance(queries, str) else list(queries)
        if not texts:
            return HitLists()
        asked, words = split_queries(texts)
        model = load_query_model(described) if load is None else load()
        if rerank is not None:
            check_depth(rerank)
            check_can_match(model.model)
        embeds = model.embed(asked)
        # Fitted parameters fit one method only.
        method = method or model.method
        if method == model.method:
            score_parameters = model.learned | score_parameters
    elif like is None:
        embeds = queries
        method = method or "scalar"
        texts = [None] * len(embeds)
        words = [()] * len(embeds)
    else:
        texts = [None]
        words = [()]
        # The gallery's own score, except for what was fitted to queries of words.
        own = score_options_of(described.metadata)
        method = method or own["method"]
        if method == own["method"]:
            fitted = {option: value for option, value in own.items() if option not in ("method", *WEIGHING)}
            score_parameters = fitted | score_parameters
        score_parameters = dict.fromkeys(CALIBRATION) | score_parameters
        selected = torch.tensor(are_selected(modalities, described.modalities))
        if isinstance(like, Likeness):
            name = like.name
            embeds = query_like(like.embeds, like.mask & selected)
        else:
            name = like
            (clip,) = searcher.clips([like])
            embeds = query_like(clip.modality_embeds, clip.modality_mask & selected)
            among = replace(among, without=like)  # it would be the best
    if query_temperature is not None:
        score_parameters = {"query_temperature": query_temperature} | score_parameters
    scoring = Scoring(method, score_parameters)

    # The first stage ranks queries with the same words at once. If there are none, their shape is still checked.
    size = max(k, rerank or 0)
    per_file = per_file and described.metadata.get(SEGMENT) is not None
    found: list[Hits] = [None] * len(texts)
    for quoted in dict.fromkeys(words) or [()]:
        rows = [row for row, of_query in enumerate(words) if of_query == quoted]
        chosen = replace(among, filter=among.filter.with_words(quoted))
        is_of_all = chosen.mask is None and chosen.inside is None and chosen.filter.is_empty
        for row, hits in zip(rows, searcher.rank(embeds[rows], size, scoring, chosen), strict=True):
            # The best windows may all be of a few files: then more are ranked.
            if per_file:
                hits = _best_of_files(hits, size, searcher, embeds[row : row + 1], scoring, chosen)
            hits.query = texts[row]
            hits.like = name
            hits.words = quoted
            if is_of_all and like is None and rerank is None:
                hits.least_score = _least_score(described, scoring, modalities, hits.num_clips)
            found[row] = hits

    # The second stage reads the files of the first hits, each once for all queries.
    if rerank is not None:
        first = set()
        for hits in found:
            first.update(hits[:rerank].clip_ids)
        clips = {clip.clip_id: clip for clip in searcher.clips(list(first))}
        found = rerank_hits(found, model, clips, rerank, modalities or described.modalities, fusion_weight)
        found = [hits[:k] for hits in found]
    if like is not None or isinstance(queries, str):
        return found[0]
    return HitLists(found)


# Of a gallery in a folder --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class FolderClip(Clip):
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
        gallery ([`~scalar_retrieval.gallery.contents.Contents`]): as it was opened.
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
        return block_of(self.gallery.parts, self.device)

    @cached_property
    def clip_words(self) -> ClipWords:
        """What is said in clips."""
        return ClipWords(self.gallery)

    @cached_property
    def clip_facts(self) -> ClipFacts:
        """What filters use."""
        return ClipFacts(self.gallery, self.clip_words)

    def clip_named(self, name: str) -> str:
        """Find a clip by name: [`~scalar_retrieval.gallery.contents.Contents.clip_named`]."""
        return self.gallery.clip_named(name)

    def current(self) -> "FolderSearcher":
        """The latest committed state: itself if nothing has changed. Words that were read, and the model, are kept."""
        gallery = self.gallery
        newest = gallery.newest()
        if newest is gallery:
            return self
        # What took long for the earlier state serves the new one, too.
        newest.query_model = gallery.query_model
        searcher = newest.searcher
        if self.device.type != "cpu":
            searcher = FolderSearcher(newest, self.device)
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
        if gallery.metadata.get(SEGMENT) is not None:
            found["files"] = len(self.windows_of_files)
        return found

    @cached_property
    def windows_of_files(self) -> dict[str, int]:
        """The number of windows of each file, in a gallery of windows."""
        if self.gallery.metadata.get(SEGMENT) is None:
            return {}
        counts = pc.value_counts(self.gallery.paths)
        return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))

    # Ranking -------------------------------------------------------------------------------------------------------

    def rank(self, queries: torch.Tensor, k: int, scoring: Scoring, among: Selection) -> list[Hits]:
        """Find the exact k best clips of each query, `(Q, D)` of unit norm: see
        [`~scalar_retrieval.gallery.searcher.Searcher`]."""
        gallery = self.gallery
        queries = check_vectors(queries, gallery.dim)
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
                reason = f"holds vectors that are not as they were written, of {names}"
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
            return Texts([], [], [], [])
        # Tables are read in ascending order; what is read is then put in the order of the hits.
        order, places = rows.unique(return_inverse=True)
        places = places.tolist()
        tables = [part.table for part in self.gallery.parts]
        table = taken(tables, order.numpy(), ("clip_id", "problems"))
        names = texts_of(table, "clip_id")
        problems = lists_of(table, "problems")
        clip_ids = [names[place] for place in places]
        copies = [()] * len(clip_ids)
        if among.unique:
            copies = self._copies(self._kept_rows[rows], among)
        problems = [tuple(problems[place]) for place in places]
        return Texts(clip_ids, self.gallery.places_of(clip_ids), problems, copies)

    def _why_none(self, method: str, allowed: Allowed | None, among: Selection) -> str:
        """Why a search with this score, among these clips, finds nothing."""
        # From the most general reason to the most particular one
        path = self.gallery.path
        others = len(self) - (among.without is not None)  # a clip is not similar to itself
        other = "" if among.without is None else "other "
        if not others:
            return f"{path} holds no {other}clips"
        if allowed is None or allowed.num_clips == others:
            return f"none of the {others} {other}clips in {path} has what the score {method!r} needs"
        if allowed.num_clips:
            return f"none of the {allowed.num_clips} clips that the filter leaves has what the score {method!r} needs"
        reason = f"the filter leaves none of the {others} {other}clips in {path}"
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
        if wanted.is_empty:
            return Allowed(mask)
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
        same: dict[int, list[int]] = {}
        for row in names:
            same.setdefault(contents[row], []).append(row)
        found = []
        for row in rows.tolist():
            others = same.get(contents[row], [])
            found.append(tuple(names[other] for other in others if other != row))
        return found

    # Clips ---------------------------------------------------------------------------------------------------------

    def clips(self, clip_ids: Sequence[str]) -> list[Clip]:
        """Read clips; raises a KeyError that names a missing one."""
        gallery = self.gallery
        if not clip_ids:
            return []
        # Rows are found by one pass over all names, and read in the order of `clip_ids`.
        names = gallery.clips.column("clip_id")
        at = np.flatnonzero(np.array(pc.is_in(names, value_set=strings(clip_ids))))
        known = dict(zip(names.take(at).to_pylist(), at.tolist(), strict=True))
        for clip_id in clip_ids:
            if clip_id not in known:
                raise KeyError(f"There is no clip {clip_id!r} in {gallery.path}.")
        rows = [known[clip_id] for clip_id in clip_ids]
        table = gallery.clips.select(["clip_id", *gallery.modalities, "presence", "problems"]).take(rows)
        problems = map(tuple, lists_of(table, "problems"))
        places = gallery.places_of(clip_ids)
        records = gallery.files_at({place.path for place in places})
        found = []
        columns = clip_ids, places, embeds_of(table).float(), presence_of(table), problems
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
        if per_file and gallery.metadata.get(SEGMENT) is not None:
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


__all__ = ["FolderClip", "FolderSearcher", "are_selected", "check_supported", "search"]
