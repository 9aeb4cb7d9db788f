"""What a search finds, as columns, and how it is shown: in a terminal (by the commands and by `print`) and in a
notebook.

Shapes: K hits, M modalities.
"""

import html
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from commands.texts import plain, printable
from gallery.filters import DATE, DURATION, WORDS
from gallery.windows import Place

NOTHING_MATCHES = "Nothing here matches well; these come nearest."

_BAR_WIDTH = 8
_NAME_WIDTH = 72
_SHOWN = 50  # most hits that a notebook or a prompt shows
_COPIES = 5  # most copies that are named
_UNKNOWN = {DURATION: "how long they last", DATE: "when their files were changed", WORDS: "what is said in them"}
_PER_LINE = 4  # weights per line


@dataclass(frozen=True, slots=True)
class Hit:
    """
    One result.

    Args:
        rank (`int`): from 1.
        clip_id (`str`), score (`float`).
        weights (`dict[str, float]`, *optional*): the query's modality weights, if the score has weights.
        presence (`dict[str, bool]`): the modalities of the clip.
        match (`float`, *optional*): the match logit of the second stage, if it read the clip.
        place ([`~gallery.windows.Place`], *optional*): its file, for a window with its seconds.
        problems (`tuple[str, ...]`): what could not be read and counts as absent, if known.
        copies (`tuple[str, ...]`): the clips with the same content that it represents, if each content is found once.
    """

    rank: int
    clip_id: str
    score: float
    weights: dict[str, float] | None
    presence: dict[str, bool]
    match: float | None = None
    place: Place | None = None
    problems: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()


class Texts(NamedTuple):
    """The texts of K hits: `clip_ids`, `places`, `problems` and `copies`, one per hit."""

    clip_ids: Sequence[str]
    places: Sequence[Place]
    problems: Sequence[tuple[str, ...]]
    copies: Sequence[tuple[str, ...]]


class Hits(Sequence[Hit]):
    """
    The hits of one query as columns, best first, and how they were found. A [`Hit`] is made when it is accessed by its
    index or in a loop; slices are `Hits`. They can be shown by `print` and in a notebook.

    Args:
        modalities (sequence of `str`): names along the axis M.
        scores (`torch.FloatTensor` of shape `(K,)`): NaN for listed clips, which have none.
        presence (`torch.BoolTensor` of shape `(K, M)`): the modalities of each clip.
        read (`Callable`): returns the [`Texts`] of the hits; called when these are first needed.
        weights (`torch.FloatTensor` of shape `(K, M)`, *optional*): the query's modality weights, if the score has
            weights.
        rows (`torch.LongTensor` of shape `(K,)`, *optional*): indices of the clips in a gallery in a folder.
        matches (`torch.DoubleTensor` of shape `(K,)`, *optional*): match logits of the second stage, NaN for clips
            that it could not read.
        num_clips (`int`): clips in the gallery.
        num_scored (`int`): clips that were scored in full; the others proved to be below the best.
        num_allowed (`int`, *optional*): clips in the gallery that could be hits; by default all.
        num_files (`int`, *optional*): files in a list of files.
        unknown (`dict[str, int]`, *optional*): how many clips a filter left out because a fact that it needs is
            unknown, see [`~gallery.filters.Allowed`].
        query (`str`, *optional*), like (`str`, *optional*): the text, or the clip, of the search.
        words (`tuple[str, ...]`): the words in quotation marks, which all hits contain.
        root (`str`, *optional*): the folder to which the names of files are relative when shown.
        reason (`str`, *optional*): why there are no hits.
        notes (`list[str]`): sentences with further remarks on these hits.
        least_score (`float`, *optional*): the score that the best hit must have to match well, if it was fitted to
            such searches, see [`~gallery.described.LEAST_SCORE`].
        first_rank (`int`): rank of the first hit; in a list, one more than the number of skipped clips.
    """

    def __init__(
        self,
        modalities: Sequence[str],
        scores: torch.Tensor,
        presence: torch.Tensor,
        read: Callable[[], Texts],
        *,
        num_clips: int,
        num_scored: int,
        weights: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
        matches: torch.Tensor | None = None,
        num_allowed: int | None = None,
        num_files: int | None = None,
        unknown: Mapping[str, int] | None = None,
        query: str | None = None,
        like: str | None = None,
        words: tuple[str, ...] = (),
        root: str | None = None,
        reason: str | None = None,
        notes: Iterable[str] = (),
        least_score: float | None = None,
        first_rank: int = 1,
    ):
        self.modalities = tuple(modalities)
        self.scores = scores
        self.presence = presence
        self.weights = weights
        self.rows = rows
        self.matches = matches
        self.num_clips = num_clips
        self.num_scored = num_scored
        self.num_files = num_files
        self.num_allowed = num_clips if num_allowed is None else num_allowed
        self.unknown = dict(unknown or {})
        self.query = query
        self.like = like
        self.words = words
        self.root = root
        self.reason = reason
        self.notes = list(notes)
        self.least_score = least_score
        self.first_rank = first_rank
        self._read = read

    # As a sequence -------------------------------------------------------------------------------------------------

    @cached_property
    def texts(self) -> Texts:
        """The texts of the hits, read when they are first needed."""
        return self._read()

    @property
    def clip_ids(self) -> list[str]:
        """The identifiers of the clips."""
        return list(self.texts.clip_ids)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: "int | slice") -> "Hit | Hits":
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        row = range(len(self))[index]
        weights = None
        match = None
        if self.weights is not None:
            weights = dict(zip(self.modalities, self.weights[row].tolist(), strict=True))
        if self.matches is not None and not self.matches[row].isnan():
            match = self.matches[row].item()
        return Hit(
            self.first_rank + row,
            self.texts.clip_ids[row],
            self.scores[row].item(),
            weights,
            dict(zip(self.modalities, self.presence[row].tolist(), strict=True)),
            match,
            self.texts.places[row],
            self.texts.problems[row],
            self.texts.copies[row],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None

    def select(self, order: Sequence[int], notes: Iterable[str] = ()) -> "Hits":
        """Some of these hits, in the given order, with more notes."""
        some = copy(self)
        places = list(order)
        vars(some).pop("texts", None)
        for name in ("scores", "presence", "weights", "rows", "matches"):
            column = getattr(self, name)
            if column is not None:
                setattr(some, name, column[places])
        some._read = lambda: Texts(*([column[place] for place in places] for column in self.texts))
        some.notes = [*self.notes, *notes]
        return some

    def best_of_files(self, k: int) -> "Hits":
        """The first hit of each file, for the best `k` files."""
        first: dict[str, int] = {}
        for row, place in enumerate(self.texts.places):
            first.setdefault(place.path, row)
        return self.select(list(first.values())[:k])

    def continued(self, rest: "Hits") -> "Hits":
        """These hits followed by those of the same query among other clips."""
        both = copy(self)
        vars(both).pop("texts", None)
        for name in ("scores", "presence", "weights", "rows"):
            column = getattr(self, name)
            if column is not None:
                setattr(both, name, torch.cat([column, getattr(rest, name)]))
        both._read = lambda: Texts(*([*a, *b] for a, b in zip(self.texts, rest.texts, strict=True)))
        both.num_scored = min(self.num_scored + rest.num_scored, self.num_allowed)
        return both

    @property
    def matches_well(self) -> bool | None:
        """Whether the best hit scores as relevant clips do; `None` if unknown."""
        if self.least_score is None or not len(self):
            return None
        return self.scores[0].item() >= self.least_score

    @property
    def title(self) -> str | None:
        """What was searched for."""
        if self.query is not None:
            return f"query: {self.query}"
        return None if self.like is None else f"like: {self.like}"

    # Showing -------------------------------------------------------------------------------------------------------

    def name_of(self, hit: Hit) -> str:
        """The name of a hit: its path below `root`, or another identifier, and its seconds."""
        name = self._below_root(hit.place.path)
        return name if hit.place.start is None else f"{name} [{hit.place.span}]"

    def _below_root(self, path: str) -> str:
        is_below = self.root is not None and os.path.isabs(path)
        return os.path.relpath(path, self.root) if is_below else path

    def _short_name(self, hit: Hit, encoding: str) -> str:
        """A name that is cut from the left if it is long, without losing the seconds."""
        name = self.name_of(hit)
        seconds = ""
        if hit.place.start is not None:
            seconds = f" [{hit.place.span}]"
            name = name.removesuffix(seconds)
        if len(name) > _NAME_WIDTH:
            mark = "…" if _can_print("…", encoding) else "..."
            name = mark + name[len(mark) - _NAME_WIDTH :]
        return name + seconds

    def copies_line(self, hit: Hit) -> str:
        """The copies that a hit represents; only if there are some."""
        names = hit.copies[:_COPIES]
        more = len(hit.copies) - _COPIES
        if hit.place.start is not None:  # at the same seconds
            names = [name.rpartition("#t=")[0] for name in names]
        shown = ", ".join(map(self._below_root, names))
        copies = "1 copy" if len(hit.copies) == 1 else f"{len(hit.copies)} copies"
        line = f"and {copies}: {shown}"
        return f"{line} and {more} more" if more > 0 else line

    def lines(self, encoding: str = "utf-8", most: int | None = None) -> list[str]:
        """The hits as lines for a terminal, not yet escaped by [`~commands.texts.plain`]."""
        lines = [] if self.title is None else [self.title]
        if self.matches_well is False:
            lines.append(NOTHING_MATCHES)
        for hit in self[:most]:
            match = "" if hit.match is None else f"  match {hit.match:+.2f}"
            lines.append(f"{hit.rank:3}  {hit.score:.3f}{match}  {self._short_name(hit, encoding)}")
            lines += [f"     {line}" for line in _weights_lines(hit, encoding)]
            if hit.copies:
                lines.append(f"     {self.copies_line(hit)}")
        more = len(self) - len(self[:most])
        if more:
            lines.append(f"and {more} more")
        return lines

    def remarks(self) -> list[str]:
        """Sentences on how the hits were found: how many were scored, and what was left out."""
        return remarks_of([self])

    def __str__(self) -> str:
        return _text([self], None)

    def __repr__(self) -> str:
        return _text([self], _SHOWN)

    def _repr_html_(self) -> str:
        return _page([self])


class Results(list):
    """The [`Hits`] of several queries, in order; shown one below the other."""

    def __str__(self) -> str:
        return _text(self, None)

    def __repr__(self) -> str:
        return _text(self, _SHOWN)

    def _repr_html_(self) -> str:
        return _page(self)


def _can_print(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _weights_lines(hit: Hit, encoding: str) -> list[str]:
    full, rest, dash = ("█", "░", "–") if _can_print("█░–", encoding) else ("#", ".", "-")
    parts = []
    for name, is_there in hit.presence.items():
        if hit.weights is None:
            parts += [f"{name} present"] if is_there else []
        elif is_there:
            filled = round(hit.weights[name] * _BAR_WIDTH)
            parts.append(f"{name} {full * filled}{rest * (_BAR_WIDTH - filled)} {hit.weights[name]:.2f}")
        else:
            parts.append(f"{name} {dash} absent")
    return ["  ".join(parts[start : start + _PER_LINE]) for start in range(0, len(parts), _PER_LINE)]


def _why_none(hits: Hits) -> str:
    asked = hits.query if hits.like is None else hits.like
    sentence = "No hits"
    if asked is not None:
        sentence += f" for {asked!r}"
    if hits.reason is not None:
        sentence += f": {hits.reason}"
    return f"{sentence}."


def remarks_of(results: Sequence[Hits]) -> list[str]:
    """Sentences on how the hits of queries to one gallery were found, each once, with the largest numbers."""
    sentences = [_why_none(hits) for hits in results if not len(hits)]
    if results:
        unknown = max((hits.unknown for hits in results), key=lambda counts: sum(counts.values()))
        for name, count in unknown.items():
            clips = "1 clip was" if count == 1 else f"{count:,} clips were"
            sentences.append(f"{clips} left out because it is not known {_UNKNOWN[name]}.")
    for hits in results:
        sentences += hits.notes
    if any(map(len, results)):
        sentences.append(_how_exact(results))
    return list(dict.fromkeys(sentences))


def _how_exact(results: Sequence[Hits]) -> str:
    widest = max(results, key=lambda hits: hits.num_scored)
    of_all = "" if widest.num_allowed == widest.num_clips else f" of {widest.num_clips:,}"
    others = f"{widest.num_scored:,} scored in full, the others proved to be below the best"
    if widest.num_scored >= widest.num_allowed:
        others = "all were scored in full"
    is_reordered = any(hits.matches is not None for hits in results)
    return f"{'First stage: exact' if is_reordered else 'Exact'} among {widest.num_allowed:,}{of_all} clips: {others}."


def _text(results: Sequence[Hits], most: int | None) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    lines = [line for hits in results for line in hits.lines(encoding, most)]
    return printable([*lines, *remarks_of(results)], "utf-8")


def _escaped(text: str) -> str:
    return html.escape(plain(text, "utf-8"))


def _table(hits: Hits) -> str:
    head = ["", "score", *(["match"] if hits.matches is not None else []), "clip", *hits.modalities]
    lines = [head]
    for hit in hits[:_SHOWN]:
        line = [str(hit.rank), f"{hit.score:.3f}"]
        if hits.matches is not None:
            line.append("–" if hit.match is None else f"{hit.match:+.2f}")
        copies = f" {hits.copies_line(hit)}" if hit.copies else ""
        line.append(hits.name_of(hit)[-500:] + copies)
        for name, is_there in hit.presence.items():
            present = "present" if hit.weights is None else f"{hit.weights[name]:.2f}"
            line.append(present if is_there else "absent")
        lines.append(line)
    rows = ["".join(f"<td>{_escaped(cell)}</td>" for cell in line) for line in lines]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _page(results: Sequence[Hits]) -> str:
    parts = []
    for hits in results:
        if hits.title is not None:
            parts.append(f"<strong>{_escaped(hits.title)}</strong>")
        if hits.matches_well is False:
            parts.append(NOTHING_MATCHES)
        if len(hits):
            parts.append(_table(hits))
        if len(hits) > _SHOWN:
            parts.append(f"and {len(hits) - _SHOWN} more")
    parts += map(_escaped, remarks_of(results))
    return "".join(f"<div>{part}</div>" for part in parts)


__all__ = ["NOTHING_MATCHES", "Hit", "Hits", "Results", "Texts", "remarks_of"]
