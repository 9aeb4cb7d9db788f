"""What a gallery answers: which of its clips fit texts, vectors or another clip best, exactly, and why.

Shapes: Q queries, N clips, D dimensions, K hits.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from threading import Lock
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from gallery.checks import score_options_of
from gallery.columns import off_unit, stacked, strings, texts_of
from gallery.exact.blocks import Block, blocks_of, in_one_block
from gallery.exact.ranking import rank
from gallery.filters import Allowed, ClipFacts, Filter
from gallery.hits import Hit, Hits, Results
from gallery.querying import QueryModel, check_texts, query_like, where_is
from gallery.reranking import check_can_match, check_depth
from gallery.reranking import rerank as rerank_hits
from gallery.tables import GalleryTables
from gallery.transcripts import Transcripts
from gallery.windows import SEGMENT
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import CALIBRATION, METHODS, WEIGHING, query_weights

_QUERY_BLOCK = 1024
_LOADING = Lock()
_FILTERS = 8  # of which it is remembered what fulfils them


class GallerySearch(GalleryTables):
    """The search of a gallery, see [`GallerySearch.search`]; nothing is prepared before the first one."""

    _query_model: QueryModel | None = None

    @cached_property
    def _blocks(self) -> list[Block]:
        return blocks_of(self._clips)

    def to(self, device: str | torch.device) -> Self:
        """
        Copy what is ranked into the memory of a device, where many searches cost less: 6 bytes per clip and dimension
        in float16.

        Args:
            device (`str` or `torch.device`): such as `"cuda"`; `"cpu"` reads it from the files again.

        Returns:
            `Gallery`: the same clips. It is as the gallery was; open it again to see what was added since.
        """
        moved, place = copy(self), torch.device(device)
        for derived in ("_blocks", "_partial"):
            vars(moved).pop(derived, None)
        if place.type != "cpu":
            moved._blocks = in_one_block(blocks_of(self._clips), place)
        return moved

    def load_model(
        self, model: str | os.PathLike | None = None, device: str | None = None, dtype: str | None = None
    ) -> QueryModel:
        """
        Load the model that texts are embedded with; by default it is loaded for the first search by a text.

        Args:
            model (`str`, *optional*): where it is now, a folder or a Hub id; by default where it was.
            device (`str`, *optional*), dtype (`str`, *optional*): where it runs and in which precision, by name; by
                default as the commands have it.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: the gallery does not say which model made it and none is named, or another one made it.
        """
        model = model or self.model
        if model is None:
            raise ValueError(
                f"{self.path} does not say which model made it. Name it with --model, or `gallery.load_model(FOLDER)`."
            )
        folder, fingerprint = where_is(model)
        self.check_model(str(model), fingerprint)
        self._query_model = QueryModel.load(folder, device, dtype)
        return self._query_model

    def search(
        self,
        queries: "str | Sequence[str] | torch.Tensor | None" = None,
        k: int = 10,
        query_temperature: float | None = None,
        method: str | None = None,
        *,
        like: str | None = None,
        modalities: Sequence[str] | None = None,
        allowed: torch.Tensor | Filter | None = None,
        per_file: bool = False,
        rerank: int | None = None,
        fusion_weight: float | None = None,
        **score_parameters: float,
    ) -> "Hits | Results":
        """
        Find the k best clips of each query, exactly.

        Scores are computed of every clip; that of SCALAR is first bounded in eight bits, and computed in float64 where
        the bound does not prove that the clip is not among the best (see [`~gallery.exact.screening`]).

        Args:
            queries (`str`, `list[str]`, or `torch.FloatTensor` of shape `(Q, D)` or `(Q, 3, D)`): texts, which the
                gallery's own model embeds (see [`GallerySearch.load_model`]), or vectors of unit norm along the last
                axis, one or one for each modality.
            k (`int`): hits per query; fewer come back where the gallery has fewer clips that `method` can score.
            query_temperature (`float`, *optional*): the gallery's own when None.
            method (`str`, *optional*): as in `retrieval_scores`; by default the model's own, of vectors `"scalar"`. A
                clip for which it is not defined is no hit.
            like (`str`, *optional*): in place of queries, a clip: those most like it, without itself. See
                [`~gallery.querying.query_like`]; scales and offsets, which fit modalities to words, do not count then.
            modalities (`list[str]`, *optional*): what of a clip is looked at, by default all; clips that have nothing
                of it are no hits.
            allowed (`torch.BoolTensor` of shape `(N,)`, or [`~gallery.filters.Filter`], *optional*): which clips may
                be hits, in gallery order, or what they must fulfil.
            per_file (`bool`): of a gallery of windows, each file once, by its best window.
            rerank (`int`, *optional*): of texts, so many first hits are put in order by the model's cross-encoder,
                which reads their files again: the second stage of [`~gallery.reranking`].
            fusion_weight (`float`, *optional*): in the second stage, order by the score and so many times the match,
                in place of the match alone.
            score_parameters (`float`): what the method learned, the other keyword arguments of `retrieval_scores`; by
                default what the model did. The scale and offset of modalities are the gallery's own unless they are
                given.

        Returns:
            [`Hits`] of one text or clip; of several queries their [`Results`], a list of `Hits`. Best first, equal
            scores in gallery order. They show themselves when they are printed, and in notebooks.

        Raises:
            KeyError: there is no clip `like`.
            FileNotFoundError: the model is gone.
            ValueError: a text is empty, the shape or norm of vectors is wrong, a number is out of its range, the
                model is another one, or the clip has nothing of what is looked at.
        """
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        if (queries is None) == (like is None):
            raise ValueError("Search for `queries`, or for what is `like` a clip: give one of the two.")
        if rerank is None and fusion_weight is not None:
            raise ValueError("`fusion_weight` is of the second stage: say with `rerank` how many hits it reads.")
        texts: list[str | None] = [None]
        if rerank is not None and (like is not None or isinstance(queries, torch.Tensor)):
            raise ValueError("The second stage reads texts: `rerank` goes with queries that are texts.")
        if like is not None:
            embeds, allowed = self._query_like(like, modalities, allowed, method := method or self._own_method)
            score_parameters = self._learned(method) | dict.fromkeys(CALIBRATION) | score_parameters
        elif isinstance(queries, torch.Tensor):
            embeds, method, texts = queries, method or "scalar", [None] * (len(queries) if queries.ndim else 0)
        else:
            texts = [queries] if isinstance(queries, str) else list(queries)
            check_texts(texts)
            if not texts:
                return Results()
            with _LOADING:
                model = self._query_model or self.load_model()
            if rerank is not None:
                check_depth(rerank)
                check_can_match(model.model)
            embeds, method = model.embed(texts), method or model.method
            score_parameters = (model.learned if method == model.method else {}) | score_parameters

        def find(embeds: torch.Tensor, size: int, allowed: Any) -> list[Hits]:
            options = {"modalities": modalities, "allowed": allowed, **score_parameters}
            return self.search_vectors(embeds, size, query_temperature, method, **options)

        size, per_file = max(k, rerank or 0), per_file and self.metadata.get(SEGMENT) is not None
        found = find(embeds, size, allowed)
        if per_file:
            found = self._with_files(found, k, lambda place, *limits: find(embeds[place, None], *limits)[0], allowed)
        for hits, text in zip(found, texts, strict=True):
            hits.query, hits.like = text, like
            if like is not None and not hits:
                hits.reason = self.why_no_hits(method, allowed, is_like=True)
        if rerank is not None:
            paths = {hits.place_of(hit).path for hits in found for hit in hits[:rerank]}
            names = MODALITIES if modalities is None else modalities
            words = None if self.path is None else Transcripts(self.path)
            found = rerank_hits(found, model, self.files_at(paths), rerank, names, fusion_weight, words)
            found = [hits.having(hits[:k]) for hits in found] if not per_file else found
        results = Results(hits.best_of_files(k) for hits in found) if per_file else Results(found)
        return results[0] if like is not None or isinstance(queries, str) else results

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
        """Find the k best clips of each vector: what [`GallerySearch.search`] does once queries are embedded."""
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        shape, expected = tuple(text_embeds.shape[1:]), self.dim or (text_embeds.shape[-1] if text_embeds.ndim else 0)
        if shape not in ((expected,), (len(MODALITIES), expected)):
            raise ValueError(
                f"`text_embeds` must have shape (queries, {self.dim or 'D'}), or with a vector for each modality "
                f"(queries, {len(MODALITIES)}, {self.dim or 'D'}), got {tuple(text_embeds.shape)}."
            )
        text_embeds = text_embeds.detach().to("cpu", torch.float32)
        wrong = off_unit(text_embeds)
        if wrong.any():
            norms = torch.linalg.vector_norm(text_embeds[wrong], dim=-1)
            raise ValueError(f"Rows of `text_embeds` must have unit norm, got {norms.tolist()[:8]}.")
        temperature = self.query_temperature if query_temperature is None else query_temperature
        options = {"query_temperature": temperature} | self.calibration | score_parameters
        weighing = {name: options[name] for name in WEIGHING if name in options}
        seen, results = self._seen(modalities), []
        among = self.allowed(allowed)
        blocks = self._limited(self._blocks_of(seen), None if among is None else among.mask)
        about = (None, None) if among is None else (among.num_clips, among.unknown)
        for queries in text_embeds.split(_QUERY_BLOCK):
            ranking = rank(blocks, queries, min(k, len(self)), method, **options)
            for query, scores, rows, num_scored in zip(queries, *ranking, strict=True):
                hits = self._hits(query, scores, rows, method, weighing, seen)
                reason = None if hits else self.why_no_hits(method, among)
                results.append(Hits(hits, len(self), int(num_scored), *about, reason=reason, root=self.root))
        return results

    def why_no_hits(self, method: str, among: Allowed | None = None, is_like: bool = False) -> str:
        """Why a search with this score, among these clips, finds nothing, or nothing that `is_like` one of them."""
        clips = f"the {len(self) - 1} other clips" if is_like else f"the {len(self)} clips"
        if len(self) <= is_like:
            return f"{self.path} holds no {'other ' if is_like else ''}clips"
        if among is None or (is_like and among.num_clips == len(self) - 1):
            return f"none of {clips} in {self.path} has what the score {method!r} needs"
        if not among.num_clips:
            return f"the filter leaves none of {clips} in {self.path}"
        return f"none of the {among.num_clips} clips that the filter leaves has what the score {method!r} needs"

    @property
    def _own_method(self) -> str:
        return score_options_of(self.metadata)["method"]

    def _learned(self, method: str) -> dict[str, Any]:
        """What the model learned of its score, as far as the gallery tells it."""
        told = score_options_of(self.metadata)
        is_own = told.pop("method") == method
        return {name: value for name, value in told.items() if is_own and name not in WEIGHING}

    def _query_like(
        self, clip_id: str, modalities: Sequence[str] | None, allowed: torch.Tensor | Filter | None, method: str
    ) -> tuple[torch.Tensor, Allowed]:
        """The query that a clip is, and what may be found: all that may be, but itself."""
        row = self.row_of(clip_id)
        rows = self.clips.slice(row, 1)
        mask = stacked(rows, ["presence"], self.path, boolean=True)[0, 0] & torch.tensor(self._seen(modalities))
        among = self._among(allowed)
        others = among.mask.clone()
        others[row] = False
        return query_like(stacked(rows, MODALITIES, self.path)[0], mask, method), Allowed(others, among.unknown)

    @staticmethod
    def _seen(modalities: Sequence[str] | None) -> tuple[bool, ...]:
        names = MODALITIES if modalities is None else tuple(modalities)
        if not names or not set(names) <= set(MODALITIES):
            raise ValueError(f"`modalities` must name some of {MODALITIES}, got {names}.")
        return tuple(name in names for name in MODALITIES)

    def _blocks_of(self, seen: tuple[bool, ...]) -> list[Block]:
        """The clips with what is looked at; made once for each choice."""
        if seen not in self._partial:
            self._partial[seen] = [block.looking_at(torch.tensor(seen)) for block in self._blocks]
        return self._partial[seen]

    @cached_property
    def _facts_of_clips(self) -> ClipFacts:
        return ClipFacts(self.clips, self._file_rows, self.metadata.get(SEGMENT) is not None, self.modality_mask)

    def allowed(self, wanted: torch.Tensor | Filter | Allowed | None) -> Allowed | None:
        """
        Tell which clips may be hits.

        Args:
            wanted (`torch.BoolTensor` of shape `(N,)`, or [`~gallery.filters.Filter`], *optional*): the clips, in
                gallery order, or what they must fulfil. What fulfils a filter is remembered for the last few.

        Returns:
            [`~gallery.filters.Allowed`], `None` if all may be.

        Raises:
            ValueError: not bools, or not one for each clip.
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
        if self.clips is None:
            return Allowed(torch.zeros(0, dtype=torch.bool))
        found = self._allowed.pop(wanted, None) or self._facts_of_clips.allowed(wanted)
        self._allowed[wanted] = found
        while len(self._allowed) > _FILTERS:
            self._allowed.pop(list(self._allowed)[0], None)  # threads may do so at once
        return found

    def _with_files(
        self,
        found: list[Hits],
        k: int,
        find: Callable[[int, int, Any], Hits],
        allowed: torch.Tensor | Filter | Allowed | None,
    ) -> list[Hits]:
        """Hits of so many files, or of all; `find` asks one query again, for so many hits among some clips."""
        # Not by ever more hits: a file may have any number of windows.
        among = self._among(allowed)
        for place, hits in enumerate(found):
            count, size = 0, max(k, len(hits))
            while count < len(found[place].best_of_files(k)) < k:
                count = len(found[place].best_of_files(k))
                found[place] = found[place].going_on(find(place, size, self._outside(among, found[place])))
        return found

    def _among(self, allowed: torch.Tensor | Filter | Allowed | None) -> Allowed:
        """What may be a hit, also where all may be."""
        return self.allowed(allowed) or Allowed(torch.ones(len(self), dtype=torch.bool))

    def _outside(self, among: Allowed, hits: Hits) -> Allowed:
        """Of the clips that may be hits those of other files than these are of."""
        paths, names = {hits.place_of(hit).path for hit in hits}, [hit.clip_id for hit in hits]
        of_these = pc.or_(
            pc.is_in(self._facts_of_clips.paths, value_set=strings(list(paths))),
            pc.is_in(self.clips.column("clip_id"), value_set=strings(names)),
        )
        return Allowed(among.mask & ~torch.from_numpy(np.array(of_these, dtype=bool)), among.unknown)

    @cached_property
    def _allowed(self) -> dict[Filter, Allowed]:
        return {}

    @cached_property
    def _partial(self) -> dict[tuple[bool, ...], list[Block]]:
        return {(True,) * len(MODALITIES): self._blocks}

    def _limited(self, blocks: list[Block], allowed: torch.Tensor | None) -> list[Block]:
        """The clips of which only those may be found that are allowed, in gallery order."""
        if allowed is None:
            return blocks
        limited, first = [], 0
        for block in blocks:
            here = block.is_there.cpu()
            limited.append(block.limited(here.masked_scatter(here, allowed[first : first + block.num_there])))
            first += block.num_there
        return limited

    def _hits(
        self,
        query: torch.Tensor,
        scores: torch.Tensor,
        rows: torch.Tensor,
        method: str,
        weighing: Mapping[str, Any],
        seen: tuple[bool, ...],
    ) -> list[Hit]:
        found = scores > -math.inf
        scores, rows = scores[found], rows[found]
        if not len(rows):
            return []
        starts = np.cumsum([0] + [len(part) for part in self._clips])
        places = np.searchsorted(starts, rows.numpy(), side="right") - 1
        pieces = [
            self._clips[place].table.slice(row - starts[place], 1)
            for place, row in zip(places, rows.tolist(), strict=True)
        ]
        table = pa.concat_tables(pieces)
        mask = stacked(table, ["presence"], self.path, boolean=True)[:, 0]
        weights = [None] * len(rows)
        if METHODS[method].weights == "query":
            embeds = stacked(table, MODALITIES, self.path)
            lines = query_weights(query[None], embeds, mask & torch.tensor(seen), **weighing)[0].tolist()  # (K, 3)
            weights = [dict(zip(MODALITIES, line, strict=True)) for line in lines]
        named = zip(texts_of(table, "clip_id", self.path), scores.tolist(), weights, mask.tolist(), strict=True)
        return [
            Hit(
                number + 1,
                name,
                score,
                weight,
                dict(zip(MODALITIES, present, strict=True)),
                place=self.place_of(name),
            )
            for number, (name, score, weight, present) in enumerate(named)
        ]


__all__ = ["GallerySearch"]
