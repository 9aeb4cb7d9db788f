"""Search of embedded clips: which ones match texts, vectors or another clip best, and why. [`search`] is the same for
every kind of gallery; [`FolderSearcher`] searches one in a folder, exactly.

Shapes: Q queries, N clips, D dimensions, K hits.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, repeat
from threading import Lock
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.columns import embeds_of, gram_of, listed, lists_of, presence_of, stacked, strings, taken, texts_of
from gallery.contents import Contents
from gallery.cues import ClipWords
from gallery.described import Described, score_options_of
from gallery.exact.blocks import Block, blocks_of, in_one_block
from gallery.exact.ranking import Ranking, rank
from gallery.filters import Allowed, ClipFacts, Filter, ModalityError
from gallery.hits import Hit, Hits, Results
from gallery.querying import Likeness, QueryModel, check_texts, check_vectors, load_query_model, query_like
from gallery.reranking import check_can_match, check_depth
from gallery.reranking import rerank as rerank_hits
from gallery.storage import DamagedFileError
from gallery.transcripts import Transcripts
from gallery.windows import SEGMENT
from gallery.words import split_query
from modeling_scalar.scores_scalar import CALIBRATION, METHODS, WEIGHING, paired_weights

_QUERY_BLOCK = 1024
_LOADING = Lock()
_WEIGHTS_AT_ONCE = 1024  # hits whose vectors are copied at a time for the weights
_GRAM_TOLERANCE = 1e-6  # within which sums in another order agree
_FEWEST = 0.9  # smallest gallery, as a share of the clips that a least score was fitted to
_FILTERS = 8  # filters whose results are cached


class Searcher(Protocol):
    """
    What can be searched: a gallery in a folder, or a collection of a vector engine.

    Its properties are those of [`~gallery.described.Described`]. `query_model` embeds texts, once it is loaded. Which
    clips may be found is represented by an object of its own kind, which `among` makes.
    """

    path: Any
    metadata: dict[str, Any]
    modalities: tuple[str, ...]
    query_model: QueryModel | None

    @property
    def model(self) -> str | None: ...

    @property
    def model_revision(self) -> str | None: ...

    @property
    def query_temperature(self) -> float: ...

    @property
    def least_score(self) -> dict[str, Any] | None: ...

    def check_model(self, model: str, fingerprint: str, must_know: bool = False) -> None: ...

    def __len__(self) -> int: ...

    def search(self, *asked: Any, **options: Any) -> Hits | Results:
        """Find the k best clips for texts or vectors, or those most like a clip: [`search`]."""

    def search_vectors(
        self, text_embeds: torch.Tensor, k: int, query_temperature: float | None, method: str, **options: Any
    ) -> list[Hits]:
        """Find the k best clips for each vector."""

    def load_model(self, model: str | None = None, device: str | None = None, dtype: str | None = None) -> QueryModel:
        """Load the model that embeds texts."""

    def clip_named(self, name: str) -> str:
        """Find a clip by its identifier or path; raises a ValueError if there is none."""

    def query_like(
        self, clip_id: str, modalities: Sequence[str] | None, allowed: Any, method: str
    ) -> tuple[torch.Tensor, Any]:
        """The query made from a clip, and what may be found: the allowed clips without itself."""

    def among(self, allowed: Any) -> Any:
        """What may be found, also if there is no restriction."""

    def saying(self, allowed: Any, words: Sequence[str]) -> Any:
        """The allowed clips in which these words are said."""

    def outside(self, among: Any, hits: Hits) -> Any:
        """The allowed clips of other files than those of these hits."""

    def once(self, allowed: Any) -> Any:
        """One allowed clip for each content: exact copies count once."""

    def with_copies(self, hits: Hits, allowed: Any) -> Hits:
        """These hits with the copies, among the allowed clips, that each represents."""

    def reranked(
        self, found: list[Hits], model: QueryModel, depth: int, modalities: Sequence[str], weight: float | None
    ) -> list[Hits]:
        """The first hits, reordered by the second stage."""

    def why_no_hits(self, method: str, among: Any = None, is_like: bool = False) -> str:
        """Why a search finds nothing."""


def seen_of(modalities: Sequence[str] | None, known: Sequence[str]) -> tuple[bool, ...]:
    """Which of the known modalities are selected by name; all of them if no names are given."""
    names = tuple(known if modalities is None else modalities)
    if not names or not set(names) <= set(known):
        raise ModalityError(f"`modalities` must name some of {tuple(known)}, got {names}.")
    return tuple(name in names for name in known)


def _by_name(modalities: Sequence[str], numbers: torch.Tensor) -> Iterator[dict[str, Any]]:
    """The rows of `(N, M)` as dictionaries by the names of the modalities."""
    return (dict(zip(modalities, line, strict=True)) for line in zip(*numbers.T.tolist(), strict=True))


def _own_method(searcher: Searcher) -> str:
    return score_options_of(searcher.metadata)["method"]


def _learned(searcher: Searcher, method: str) -> dict[str, Any]:
    """The fitted parameters of the model's score, if the metadata contain them."""
    options = score_options_of(searcher.metadata)
    is_own = options.pop("method") == method
    return {name: value for name, value in options.items() if is_own and name not in WEIGHING}


def _note_least_score(
    searcher: Searcher, found: list[Hits], temperature: float | None, method: str, modalities: Any, parameters: Any
) -> None:
    """Note the least score of a match with hits of queries to all clips, if it was fitted to such searches."""
    least = searcher.least_score
    if least is None or method != least["score_options"]["method"] or set(CALIBRATION) & set(parameters):
        return
    seen = set(searcher.modalities if modalities is None else modalities)
    if seen != set(least["modalities"]) or temperature not in (None, searcher.query_temperature):
        return
    for hits in found:
        hits.least_score = least["score"] if hits.num_clips >= _FEWEST * least["num_clips"] else None


def _with_files(
    searcher: Searcher, found: list[Hits], k: int, find: Callable[[int, int, Any], Hits], allowed: Any
) -> list[Hits]:
    """Hits from `k` files, or from all; `find` repeats one query for a number of hits among some clips."""
    # Asking for ever more hits would not do: a file may have any number of windows.
    among = searcher.among(allowed)
    for place, hits in enumerate(found):
        count, size = 0, max(k, len(hits))
        while count < len(found[place].best_of_files(k)) < k:
            count = len(found[place].best_of_files(k))
            found[place] = found[place].going_on(find(place, size, searcher.outside(among, found[place])))
    return found


def search(
    searcher: "Searcher",
    queries: str | Sequence[str] | torch.Tensor | None = None,
    k: int = 10,
    query_temperature: float | None = None,
    method: str | None = None,
    *,
    like: str | Likeness | None = None,
    modalities: Sequence[str] | None = None,
    allowed: torch.Tensor | Filter | None = None,
    per_file: bool = False,
    unique: bool = False,
    rerank: int | None = None,
    fusion_weight: float | None = None,
    **score_parameters: float,
) -> Hits | Results:
    """
    Find the k best clips of each query, exactly.

    Scores are computed for every clip; SCALAR's score is first bounded in eight bits, and computed in float64 unless
    the bound proves that the clip is not among the best (see [`~gallery.exact.screening`]).

    Args:
        queries (`str`, `list[str]`, or `torch.FloatTensor` of shape `(Q, D)`): texts, which the
            gallery's own model embeds (see [`~gallery.querying.load_query_model`]), or vectors of unit norm.
            Parts of a text in quotation marks must be said in a clip,
            see [`~gallery.words.split_query`].
        k (`int`): hits per query; fewer if the gallery has fewer clips that `method` can score.
        query_temperature (`float`, *optional*): by default the gallery's own.
        method (`str`, *optional*): as in `retrieval_scores`; by default the model's own, for vectors `"scalar"`. Clips
            for which it is undefined are not found.
        like (`str` or [`~gallery.querying.Likeness`], *optional*): instead of queries, a clip: finds those most
            similar to it, without itself; or an outside file, embedded by [`~gallery.querying.QueryModel.embed_file`].
            See [`~gallery.querying.query_like`]; scales and offsets, which fit modalities to words, are not used then.
        modalities (`list[str]`, *optional*): the modalities to use, by default all; clips that have none of them are
            not found.
        allowed (`torch.BoolTensor` of shape `(N,)`, or [`~gallery.filters.Filter`], *optional*): which clips may
            be found, in gallery order, or the conditions that they must meet.
        per_file (`bool`): in a gallery of windows, return each file once, with its best window.
        unique (`bool`): return files with the same content once, as the first of them that is allowed; for windows,
            those at the same seconds. `Hit.copies` are the others.
        rerank (`int`, *optional*): for texts, number of first hits that the model's cross-encoder reorders, for which
            it reads their files again: the second stage of [`~gallery.reranking`].
        fusion_weight (`float`, *optional*): in the second stage, order by the score plus this weight times the match,
            instead of the match alone.
        score_parameters (`float`): fitted parameters of the method, the other keyword arguments of
            `retrieval_scores`; by default the model's. The scale and offset of modalities are the gallery's own unless
            they are given.

    Returns:
        [`Hits`] for one text or clip; [`Results`], a list of `Hits`, for several queries. Best first, equal scores in
        gallery order. They can be printed, and shown in notebooks. Their `matches_well` is None except for queries to
        all clips, scored like the gallery, if the score of a match was fitted ([`~gallery.described.LEAST_SCORE`]).

    Raises:
        KeyError: there is no clip `like`.
        FileNotFoundError: the model is missing.
        ValueError: a text is empty, the shape or norm of vectors is wrong, a number is out of range, the model is not
            the gallery's, or the clip has none of the selected modalities.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}.")
    if (queries is None) == (like is None):
        raise ValueError("Give either `queries` or `like`.")
    if rerank is None and fusion_weight is not None:
        raise ValueError("`fusion_weight` needs the second stage: set `rerank` to the number of hits to reorder.")
    texts: list[str | None] = [None]
    if rerank is not None and (like is not None or isinstance(queries, torch.Tensor)):
        raise ValueError("The second stage needs texts: use `rerank` only with text queries.")
    is_outside = isinstance(like, Likeness)
    if like is not None:
        method = method or _own_method(searcher)
        if is_outside:
            mask = like.mask & torch.tensor(seen_of(modalities, searcher.modalities))
            embeds = query_like(like.embeds, mask)
        else:
            embeds, allowed = searcher.query_like(like, modalities, allowed)
        score_parameters = _learned(searcher, method) | dict.fromkeys(CALIBRATION) | score_parameters
    elif isinstance(queries, torch.Tensor):
        embeds, method, texts = queries, method or "scalar", [None] * (len(queries) if queries.ndim else 0)
    else:
        texts = [queries] if isinstance(queries, str) else list(queries)
        check_texts(texts)
        if not texts:
            return Results()
        asked, words = zip(*map(split_query, texts), strict=True)
        check_texts(asked)
        if len(set(words)) > 1:  # the allowed clips differ
            options = {"modalities": modalities, "allowed": allowed, "per_file": per_file, "unique": unique}
            options |= {"rerank": rerank, "fusion_weight": fusion_weight} | score_parameters
            return Results(searcher.search(text, k, query_temperature, method, **options) for text in texts)
        if words[0]:
            allowed = searcher.saying(allowed, words[0])
        with _LOADING:
            model = searcher.query_model or searcher.load_model()
        if rerank is not None:
            check_depth(rerank)
            check_can_match(model.model)
        embeds, method = model.embed(asked), method or model.method
        score_parameters = (model.learned if method == model.method else {}) | score_parameters

    everything, allowed = allowed, searcher.once(allowed) if unique else allowed

    def find(embeds: torch.Tensor, size: int, allowed: Any) -> list[Hits]:
        options = {"modalities": modalities, "allowed": allowed, **score_parameters}
        return searcher.search_vectors(embeds, size, query_temperature, method, **options)

    size, per_file = max(k, rerank or 0), per_file and searcher.metadata.get(SEGMENT) is not None
    found = find(embeds, size, allowed)
    if per_file:
        found = _with_files(searcher, found, k, lambda place, *limits: find(embeds[place, None], *limits)[0], allowed)
    for hits, text in zip(found, texts, strict=True):
        hits.query, hits.like = text, like.name if is_outside else like
        if like is not None and not is_outside and not hits:
            hits.reason = searcher.why_no_hits(method, allowed, is_like=True)
    is_of_all = everything is None or (isinstance(everything, Filter) and everything.is_empty)
    if like is None and rerank is None and is_of_all:
        _note_least_score(searcher, found, query_temperature, method, modalities, score_parameters)
    if rerank is not None:
        names = searcher.modalities if modalities is None else modalities
        found = searcher.reranked(found, model, rerank, names, fusion_weight)
        found = [hits.having(hits[:k]) for hits in found] if not per_file else found
    found = [hits.best_of_files(k) for hits in found] if per_file else found
    results = Results(searcher.with_copies(hits, everything) for hits in found) if unique else Results(found)
    return results[0] if like is not None or isinstance(queries, str) else results


class FolderSearcher(Described):
    """
    The search of a gallery; it needs no preparation.

    Args:
        gallery ([`~gallery.contents.Contents`]): as it was opened.
        device (`str` or `torch.device`): on a device such as `"cuda"`, what is ranked is copied into its memory, 6
            bytes per clip and dimension in float16; this pays off for many searches. `"cpu"` reads it from the files.
    """

    query_model: QueryModel | None = None

    def __init__(self, gallery: Contents, device: str | torch.device = "cpu"):
        self.path, self.metadata, self.modalities = gallery.path, gallery.metadata, gallery.modalities
        self.gallery, self.device = gallery, torch.device(device)
        self._allowed: dict[Filter, Allowed] = {}

    def __len__(self) -> int:
        return len(self.gallery)

    @cached_property
    def blocks(self) -> list[Block]:
        """The clips in the form in which they are ranked."""
        blocks = blocks_of(self.gallery.parts)
        return blocks if self.device.type == "cpu" or not blocks else [in_one_block(blocks, self.device)]

    @cached_property
    def clip_words(self) -> ClipWords:
        """What is said in clips."""
        return ClipWords(self.gallery)

    @cached_property
    def clip_facts(self) -> ClipFacts:
        """What filters use."""
        gallery = self.gallery
        has_windows = self.metadata.get(SEGMENT) is not None
        about = gallery.modality_mask, gallery.modalities, self.clip_words
        return ClipFacts(gallery.clips, gallery.file_rows, has_windows, *about)

    def clip_named(self, name: str) -> str:
        """Find a clip by name: [`~gallery.contents.Contents.clip_named`]."""
        return self.gallery.clip_named(name)

    search = search
    load_model = load_query_model

    def search_vectors(
        self,
        text_embeds: torch.Tensor,
        k: int = 10,
        query_temperature: float | None = None,
        method: str = "scalar",
        *,
        modalities: Sequence[str] | None = None,
        allowed: torch.Tensor | Filter | None = None,
        **score_parameters: float,
    ) -> list[Hits]:
        """Find the k best clips for each vector: the part of [`search`] after queries are embedded."""
        text_embeds = check_vectors(text_embeds, k, self.gallery.dim)
        temperature = self.query_temperature if query_temperature is None else query_temperature
        seen, results = seen_of(modalities, self.modalities), []
        options = {"query_temperature": temperature} | self.calibration | score_parameters
        weighing = {name: options[name] for name in WEIGHING if name in options}
        among = self.allowed(allowed)
        blocks = self._limited(self._blocks_of(seen), None if among is None else among.mask)
        about = (None, None) if among is None else (among.num_clips, among.unknown)
        for queries in text_embeds.split(_QUERY_BLOCK):
            ranking = rank(blocks, queries, min(k, len(self)), method, **options)
            hits_of_each = self._hits(queries, ranking, method, weighing, seen)
            for hits, num_scored in zip(hits_of_each, ranking.num_scored.tolist(), strict=True):
                reason = None if hits else self.why_no_hits(method, among)
                results.append(Hits(hits, len(self), num_scored, *about, reason=reason, root=self.gallery.root))
        return results

    def why_no_hits(self, method: str, among: Allowed | None = None, is_like: bool = False) -> str:
        """Why a search with this score, among these clips, finds nothing (or nothing similar, if `is_like`)."""
        clips = f"the {len(self) - 1} other clips" if is_like else f"the {len(self)} clips"
        if len(self) <= is_like:
            return f"{self.path} holds no {'other ' if is_like else ''}clips"
        if among is None or (is_like and among.num_clips == len(self) - 1):
            return f"none of {clips} in {self.path} has what the score {method!r} needs"
        if not among.num_clips:
            return f"the filter leaves none of {clips} in {self.path}"
        return f"none of the {among.num_clips} clips that the filter leaves has what the score {method!r} needs"

    def reranked(
        self, found: list[Hits], model: QueryModel, depth: int, modalities: Sequence[str], weight: float | None
    ) -> list[Hits]:
        """The first hits, reordered by the model's cross-encoder, which reads their files again."""
        paths = {hits.place_of(hit).path for hits in found for hit in hits[:depth]}
        words = None if self.path is None else Transcripts(self.path)
        files = self.gallery.files_at(paths)
        return rerank_hits(found, model, files, depth, modalities, weight, words, self.gallery.media_of)

    def query_like(
        self, clip_id: str, modalities: Sequence[str] | None, allowed: torch.Tensor | Filter | None
    ) -> tuple[torch.Tensor, Allowed]:
        """The query made from a clip, and what may be found: the allowed clips without itself."""
        row = self.gallery.row_of(clip_id)
        rows = self.gallery.clips.slice(row, 1)
        mask = presence_of(rows)[0] & torch.tensor(seen_of(modalities, self.modalities))
        among = self.among(allowed)
        others = among.mask.clone()
        others[row] = False
        query = query_like(embeds_of(rows)[0], mask)
        return query, Allowed(others, among.unknown)

    @cached_property
    def _partial(self) -> dict[tuple[bool, ...], list[Block]]:
        return {(True,) * len(self.modalities): self.blocks}

    def _blocks_of(self, seen: tuple[bool, ...]) -> list[Block]:
        """The clips with only the selected modalities; cached for each selection."""
        if seen not in self._partial:
            self._partial[seen] = [block.looking_at(torch.tensor(seen)) for block in self.blocks]
        return self._partial[seen]

    def allowed(self, wanted: torch.Tensor | Filter | Allowed | None) -> Allowed | None:
        """
        Resolve which clips may be found.

        Args:
            wanted (`torch.BoolTensor` of shape `(N,)`, or [`~gallery.filters.Filter`], *optional*): the clips, in
                gallery order, or the conditions that they must meet. The results of the last few filters are cached.

        Returns:
            [`~gallery.filters.Allowed`], `None` if all may be found.

        Raises:
            ValueError: not bools, or not one per clip.
        """
        if wanted is None or (isinstance(wanted, Filter) and wanted.is_empty):
            return None
        if isinstance(wanted, Allowed):
            return wanted
        if not isinstance(wanted, Filter):
            if wanted.dtype != torch.bool or wanted.shape != (len(self),):
                raise ValueError(
                    f"`allowed` must be a bool tensor of shape {(len(self),)}, got {wanted.dtype} "
                    f"{tuple(wanted.shape)}."
                )
            return Allowed(wanted)
        if self.gallery.clips is None:
            return Allowed(torch.zeros(0, dtype=torch.bool))
        found = self._allowed.pop(wanted, None) or self.clip_facts.allowed(wanted)
        self._allowed[wanted] = found
        while len(self._allowed) > _FILTERS:
            self._allowed.pop(list(self._allowed)[0], None)  # safe if several threads do so at once
        return found

    def among(self, allowed: torch.Tensor | Filter | Allowed | None) -> Allowed:
        """What may be found, also if there is no restriction."""
        return self.allowed(allowed) or Allowed(torch.ones(len(self), dtype=torch.bool))

    def saying(self, allowed: torch.Tensor | Filter | Allowed | None, words: Sequence[str]) -> Filter | Allowed:
        """The allowed clips in which these words are said."""
        if allowed is None or isinstance(allowed, Filter):
            return (allowed or Filter()).saying(words)
        among = self.among(allowed)
        found = self.clip_facts.allowed(Filter(words=tuple(words)), among.mask)
        return Allowed(found.mask, among.unknown | found.unknown)

    @cached_property
    def _contents(self) -> tuple[np.ndarray, np.ndarray]:
        return (np.empty(0), np.empty(0)) if self.gallery.clips is None else self.clip_facts.contents

    def once(self, allowed: torch.Tensor | Filter | Allowed | None) -> Allowed | None:
        """The first allowed clip for each content."""
        contents, shared = self._contents
        if not len(shared):
            return self.allowed(allowed)
        among = self.among(allowed)
        rows = shared[among.mask.numpy()[shared]]
        _, first = np.unique(contents[rows], return_index=True)
        mask = among.mask.clone()
        mask[rows] = False
        mask[rows[first]] = True
        return Allowed(mask, among.unknown)

    def with_copies(self, hits: Hits, allowed: torch.Tensor | Filter | Allowed | None) -> Hits:
        """These hits with the copies, among the allowed clips, that each represents."""
        contents, shared = self._contents
        if not len(shared) or not hits:
            return hits
        rows = shared[self.among(allowed).mask.numpy()[shared]]
        names = texts_of(self.gallery.clips.take(rows), "clip_id")
        of: dict[int, list[str]] = {}
        for content, name in zip(contents[rows].tolist(), names, strict=True):
            of.setdefault(content, []).append(name)
        return hits.standing_for({names[0]: names[1:] for names in of.values()})

    def outside(self, among: Allowed, hits: Hits) -> Allowed:
        """The allowed clips of other files than those of these hits."""
        paths, names = {hits.place_of(hit).path for hit in hits}, [hit.clip_id for hit in hits]
        of_these = pc.or_(
            pc.is_in(self.clip_facts.paths, value_set=strings(list(paths))),
            pc.is_in(self.gallery.clips.column("clip_id"), value_set=strings(names)),
        )
        return Allowed(among.mask & ~torch.from_numpy(np.array(of_these, dtype=bool)), among.unknown)

    def _limited(self, blocks: list[Block], allowed: torch.Tensor | None) -> list[Block]:
        """The clips, of which only the allowed ones, in gallery order, may be found."""
        if allowed is None:
            return blocks
        limited, first = [], 0
        for block in blocks:
            here = block.is_there.cpu()
            limited.append(block.limited(here.masked_scatter(here, allowed[first : first + block.num_there])))
            first += block.num_there
        return limited

    def _check_as_written(self, table: pa.Table, embeds: torch.Tensor) -> None:
        """Raise a DamagedFileError unless the vectors of hits still have their original norms and cosines."""
        held = stacked(table, ["gram"]).view(-1, *[len(self.modalities)] * 2)
        wrong = ~((gram_of(embeds.unbind(1)) - held).abs().amax(dim=(1, 2)) <= _GRAM_TOLERANCE)  # nor NaN
        if wrong.any():
            names = texts_of(table, "clip_id")
            bad = listed([names[row] for row in wrong.nonzero()[:, 0].tolist()])
            raise DamagedFileError(self.path, f"holds vectors that are not as they were written, of {bad}", self.path)

    def _hits(
        self, queries: torch.Tensor, ranking: Ranking, method: str, weighing: Mapping[str, Any], seen: tuple[bool, ...]
    ) -> list[list[Hit]]:
        """The hits of each query; what several queries have found is read once."""
        is_hit = ranking.scores > -math.inf
        if not is_hit.any():
            return [[] for _ in queries]
        rows, places = ranking.rows[is_hit].unique(return_inverse=True)
        names = ("clip_id", "presence", "problems", "gram", *self.modalities)
        table = taken((part.table for part in self.gallery.parts), rows.numpy(), names)
        embeds = embeds_of(table)
        self._check_as_written(table, embeds)
        mask, problems = presence_of(table), map(tuple, lists_of(table, "problems"))
        clips = [
            (name, present, self.gallery.place_of(name), reported)
            for name, present, reported in zip(
                texts_of(table, "clip_id"), _by_name(self.modalities, mask), problems, strict=True
            )
        ]
        weights: Iterable[dict[str, float] | None] = repeat(None, len(places))
        if METHODS[method].weights == "query":
            looked_at = mask & torch.tensor(seen)
            pairs = zip(
                *(numbers.split(_WEIGHTS_AT_ONCE) for numbers in (is_hit.nonzero()[:, 0], places)), strict=True
            )
            lines = [paired_weights(queries[of], embeds[row], looked_at[row], **weighing) for of, row in pairs]
            weights = _by_name(self.modalities, torch.cat(lines))
        found, pairs = [], zip(ranking.scores[is_hit].tolist(), weights, places.tolist(), strict=True)
        for count in is_hit.sum(dim=1).tolist():
            hits = []
            for number, (score, weight, row) in enumerate(islice(pairs, count), start=1):
                name, present, place, reported = clips[row]
                hits.append(Hit(number, name, score, weight, present, place=place, problems=reported))
            found.append(hits)
        return found


__all__ = ["FolderSearcher", "Searcher", "search", "seen_of"]
