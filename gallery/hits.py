"""What a search finds, and how it is shown: in a terminal (by the commands and by `print`) and in a notebook."""

import html
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum

from commands.texts import plain
from gallery.filters import DATE, DURATION, WORDS
from gallery.windows import Place

NOTHING_MATCHES = "Nothing here matches well; these come nearest."

_BAR_WIDTH = 8
_NAME_WIDTH = 72
_SHOWN = 50  # most hits that a notebook or a prompt shows
_COPIES = 5  # most copies that are named
_UNKNOWN = {DURATION: "how long they last", DATE: "when their files were changed", WORDS: "what is said in them"}
_PER_LINE = 4  # weights per line
_COLORS = {"video": "#3b8fc4", "audio": "#d08a00", "subtitle": "#1a9e78"}  # visible on white and on black
# Colours of other modalities, in order: each as far as possible from the previous ones in any kind of colour vision.
_FURTHER = ("#9600ff", "#c30f2d", "#9678ff", "#b41e87", "#f03c69", "#ff1ec3", "#a50fc3", "#e1693c")
_NUMBERS = dict.fromkeys(("", "score", "match"), ' class="n"')  # columns of numbers, by their headings
_STYLE = """\
.scalar-hits { font: 13px/1.5 system-ui, sans-serif; max-width: 60rem; margin: .3rem 0 .9rem; overflow-x: auto; }
.scalar-hits table { border-collapse: collapse; width: 100%; margin: .2rem 0 .6rem; background: none; color: inherit;
  font: inherit; }
.scalar-hits th, .scalar-hits td { border: 0; border-top: 1px solid rgba(128, 128, 128, .3); padding: .25rem .5rem;
  text-align: left; vertical-align: middle; background: none; color: inherit; }
.scalar-hits th { border-top: 0; font-weight: 600; }
.scalar-hits .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.scalar-hits .name { overflow-wrap: anywhere; width: 50%; min-width: 14em; }
.scalar-hits .soft { opacity: .7; }
.scalar-hits .w { white-space: nowrap; font-variant-numeric: tabular-nums; }
.scalar-hits .bar { display: inline-block; width: 4rem; height: .6rem; margin-right: .35rem; border-radius: .2rem;
  background: rgba(128, 128, 128, .25); overflow: hidden; }
.scalar-hits .bar i { display: block; height: 100%; }"""


class Certainty(StrEnum):
    """What is known of a result."""

    EXACT = "exact"
    """These are the best of all clips."""
    INDEX = "exact up to the index"
    """The proof is complete for the list that a vector engine's index gave, which may have missed clips."""
    STOPPED = "stopped early"
    """There may be better clips: the list became too long before the proof was complete, or bounds proved nothing."""


_OTHERS = {
    Certainty.EXACT: "the others proved to be below the best",
    Certainty.INDEX: "the others proved to be below the best, but for what the index missed",
    Certainty.STOPPED: "there may be better ones among the others",
}


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. `weights` are the query's modality weights, `None` for a score without weights; `match` is the match
    logit of the second stage, `None` if it did not read the clip; `key` identifies the clip in a vector engine, where
    clips of several galleries may have the same name; `place` is its file, for a window with its seconds, by default
    from `clip_id`; `problems` say what could not be read and counts as absent, if known; `copies` are the clips with
    the same content that it represents, if each content is found once."""

    rank: int
    clip_id: str
    score: float
    weights: dict[str, float] | None
    presence: dict[str, bool]
    match: float | None = None
    key: str | None = None
    place: Place | None = None
    problems: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()


def _can_print(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "ascii"


def _color_of(modality: str, modalities: Iterable[str]) -> str:
    further = [name for name in modalities if name not in _COLORS]
    return _COLORS.get(modality) or _FURTHER[further.index(modality) % len(_FURTHER)]


def _weights_lines(hit: Hit, encoding: str) -> list[str]:
    if hit.weights is None:
        return _in_lines([f"{name} present" for name, here in hit.presence.items() if here])
    full, rest, dash = ("█", "░", "–") if _can_print("█░–", encoding) else ("#", ".", "-")
    parts = []
    for name, weight in hit.weights.items():
        if not hit.presence[name]:
            parts.append(f"{name} {dash} absent")
            continue
        filled = round(weight * _BAR_WIDTH)
        parts.append(f"{name} {full * filled}{rest * (_BAR_WIDTH - filled)} {weight:.2f}")
    return _in_lines(parts)


def _in_lines(parts: Sequence[str]) -> list[str]:
    return ["  ".join(parts[place : place + _PER_LINE]) for place in range(0, len(parts), _PER_LINE)]


class Hits(list):
    """
    The hits of one query, best first, and how they were found. They can be shown by `print` and in a notebook.

    Args:
        hits (`list[Hit]`).
        num_clips (`int`): clips in the gallery.
        num_scored (`int`): clips that were scored in full; `certainty` says what is known of the others.
        num_allowed (`int`, *optional*): clips in the gallery that could be hits; by default all.
        unknown (`dict[str, int]`, *optional*): how many clips a filter left out because a fact that it needs is
            unknown, see [`~gallery.filters.Allowed`].
        query (`str`, *optional*), like (`str`, *optional*): the text, or the clip, of the search.
        root (`str`, *optional*): the folder to which the names of files are relative when shown.
        reason (`str`, *optional*): why there are no hits.
        notes (`list[str]`): sentences with further remarks on these hits.
        certainty ([`Certainty`]).
        is_estimate (`bool`): whether `num_clips` and `num_allowed` are estimates.
        least_score (`float`, *optional*): the score that the best hit must have to match well, if it was fitted to
            such searches, see [`~gallery.described.LEAST_SCORE`].
    """

    def __init__(
        self,
        hits: Iterable[Hit],
        num_clips: int,
        num_scored: int,
        num_allowed: int | None = None,
        unknown: Mapping[str, int] | None = None,
        *,
        query: str | None = None,
        like: str | None = None,
        root: str | None = None,
        reason: str | None = None,
        notes: Iterable[str] = (),
        certainty: Certainty = Certainty.EXACT,
        is_estimate: bool = False,
        least_score: float | None = None,
    ):
        super().__init__(hits)
        self.num_clips, self.num_scored = num_clips, num_scored
        self.num_allowed = num_clips if num_allowed is None else num_allowed
        self.unknown = dict(unknown or {})
        self.query, self.like, self.root, self.reason = query, like, root, reason
        self.notes, self.certainty, self.is_estimate = list(notes), certainty, is_estimate
        self.least_score = least_score

    @property
    def matches_well(self) -> bool | None:
        """Whether the best hit scores as relevant clips do; `None` if unknown."""
        if self.least_score is None or not self:
            return None
        is_enough = self[0].score >= self.least_score
        return None if not is_enough and self.certainty is Certainty.STOPPED else is_enough

    def having(self, hits: Iterable[Hit], notes: Iterable[str] = ()) -> "Hits":
        """The same search with other hits, in this order, and more notes."""
        same = copy(self)
        same[:] = [replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1)]
        same.notes = [*self.notes, *notes]
        return same

    def place_of(self, hit: Hit) -> Place:
        """The file of a hit; for a window also its seconds."""
        return Place(hit.clip_id) if hit.place is None else hit.place

    def best_of_files(self, k: int) -> "Hits":
        """The first hit of each file, for the best `k` files."""
        best: dict[str, Hit] = {}
        for hit in self:
            best.setdefault(self.place_of(hit).path, hit)
        return self.having(list(best.values())[:k])

    def standing_for(self, copies: Mapping[str, Sequence[str]]) -> "Hits":
        """The same hits with their copies, given by `clip_id`."""
        same = copy(self)
        same[:] = [replace(hit, copies=tuple(copies.get(hit.clip_id, ()))) for hit in self]
        return same

    def going_on(self, rest: "Hits") -> "Hits":
        """These hits followed by those of the same query among other clips."""
        hits = self.having([*self, *rest])
        hits.certainty = _worst([self, rest])
        hits.num_scored = min(self.num_scored + rest.num_scored, self.num_allowed)
        return hits

    @property
    def title(self) -> str | None:
        """What was searched for."""
        asked = {"query": self.query, "like": self.like}
        return next((f"{name}: {value}" for name, value in asked.items() if value is not None), None)

    # Showing -------------------------------------------------------------------------------------------------------

    def name_of(self, hit: Hit) -> str:
        """The name of a hit: its path below `root`, or another identifier, and its seconds."""
        place = self.place_of(hit)
        is_below = self.root is not None and os.path.isabs(place.path)
        name = os.path.relpath(place.path, self.root) if is_below else place.path
        return name if place.span is None else f"{name} [{place.span}]"

    def _short_name(self, hit: Hit, encoding: str) -> str:
        """A name that is cut from the left if it is long, without losing the seconds."""
        name, span = self.name_of(hit), self.place_of(hit).span
        name, seconds = (name, "") if span is None else (name[: -len(span) - 3], f" [{span}]")
        if len(name) > _NAME_WIDTH:
            mark = "…" if _can_print("…", encoding) else "..."
            name = mark + name[len(mark) - _NAME_WIDTH :]
        return name + seconds

    def copies_line(self, hit: Hit) -> str:
        """The copies that a hit represents; only if there are some."""
        names, more = hit.copies[:_COPIES], len(hit.copies) - _COPIES
        if self.place_of(hit).start is not None:  # at the same seconds
            names = [name.rpartition("#t=")[0] for name in names]
        names = [os.path.relpath(name, self.root) if self.root and os.path.isabs(name) else name for name in names]
        copies = "1 copy" if len(hit.copies) == 1 else f"{len(hit.copies)} copies"
        return f"and {copies}: {', '.join(names)}{f' and {more} more' if more > 0 else ''}"

    def lines(self, encoding: str = "utf-8", most: int | None = None) -> list[str]:
        """The hits as lines for a terminal, not yet escaped by [`~commands.texts.plain`]."""
        lines = [] if self.title is None else [self.title]
        lines += [NOTHING_MATCHES] if self.matches_well is False else []
        for hit in self[:most]:
            match = "" if hit.match is None else f"  match {hit.match:+.2f}"
            lines.append(f"{hit.rank:3}  {hit.score:.3f}{match}  {self._short_name(hit, encoding)}")
            lines += [f"     {line}" for line in _weights_lines(hit, encoding)]
            if hit.copies:
                lines.append(f"     {self.copies_line(hit)}")
        more = len(self) - len(self[:most])
        return [*lines, *([f"and {more} more"] if more else [])]

    def remarks(self) -> list[str]:
        """Sentences on how the hits were found: how exact they are, and what was left out."""
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


def _why_none(hits: Hits) -> str:
    asked = hits.query if hits.like is None else hits.like
    return f"No hits{'' if asked is None else f' for {asked!r}'}{'' if hits.reason is None else f': {hits.reason}'}."


def remarks_of(results: Sequence[Hits]) -> list[str]:
    """Sentences on how the hits of queries to one gallery were found, each once, with the largest numbers."""
    return list(dict.fromkeys([*(_why_none(hits) for hits in results if not hits), *_how_found(results)]))


def _how_found(results: Sequence[Hits]) -> list[str]:
    if not results:
        return []
    sentences, about = [], "about " if any(hits.is_estimate for hits in results) else ""
    for name, count in max((hits.unknown for hits in results), key=lambda unknown: sum(unknown.values())).items():
        clips = "1 clip was" if count == 1 else f"{about}{count:,} clips were"
        sentences.append(f"{clips} left out because it is not known {_UNKNOWN[name]}.")
    sentences += [note for hits in results for note in hits.notes]
    if not any(results):
        return sentences
    widest, certainty = max(results, key=lambda hits: hits.num_scored), _worst(results)
    allowed, scored = widest.num_allowed, widest.num_scored
    of_all = "" if allowed == widest.num_clips else f" of {widest.num_clips:,}"
    among = f"{about}{allowed:,}{of_all} clips"
    others = f"{scored:,} scored in full, {_OTHERS[certainty]}"
    if certainty is Certainty.EXACT and scored >= allowed:
        others = "all were scored in full"
    how = f"{certainty} among {among}: {others}."
    is_reordered = any(hit.match is not None for hits in results for hit in hits)
    return [*sentences, f"First stage: {how}" if is_reordered else how.capitalize()]


def _worst(results: Sequence[Hits]) -> Certainty:
    """The least certainty of several results."""
    return max((hits.certainty for hits in results), key=list(Certainty).index)


def _text(results: Sequence[Hits], most: int | None) -> str:
    encoding = _encoding()
    lines = [line for hits in results for line in hits.lines(encoding, most)]
    return "\n".join(plain(line, "utf-8") for line in [*lines, *remarks_of(results)])


def _weight_cell(hit: Hit, name: str) -> str:
    if not hit.presence[name]:
        return '<td class="w soft">absent</td>'
    if hit.weights is None:
        return '<td class="w">present</td>'
    weight = hit.weights[name]
    bar = f'<i style="width: {100 * weight:.0f}%; background: {_color_of(name, hit.presence)}"></i>'
    return f'<td class="w"><span class="bar">{bar}</span>{weight:.2f}</td>'


def _table(hits: Hits) -> str:
    def cell(text: str) -> str:
        return html.escape(plain(text, "utf-8"))

    title = "" if hits.title is None else f"<div><strong>{cell(hits.title)}</strong></div>"
    if not hits:
        return f'{title}<div class="soft">{cell(_why_none(hits))}</div>'
    title += f"<div>{NOTHING_MATCHES}</div>" if hits.matches_well is False else ""
    has_match = any(hit.match is not None for hit in hits)
    head = ["", "score", *(["match"] if has_match else []), "clip", *hits[0].presence]
    rows = []
    for hit in hits[:_SHOWN]:
        match = "–" if hit.match is None else f"{hit.match:+.2f}"
        name = cell(hits.name_of(hit)[-500:])
        copies = f'<div class="soft">{cell(hits.copies_line(hit))}</div>' if hit.copies else ""
        rows.append(
            f'<tr><td class="n soft">{hit.rank}</td><td class="n">{hit.score:.3f}</td>'
            + (f'<td class="n">{match}</td>' if has_match else "")
            + f'<td class="name" title="{cell(hit.clip_id[-500:])}"><bdi dir="ltr">{name}</bdi>{copies}</td>'
            + "".join(_weight_cell(hit, name) for name in hit.presence)
            + "</tr>"
        )
    more = len(hits) - len(rows)
    rest = f'<div class="soft">and {more} more</div>' if more else ""
    heads = "".join(f'<th scope="col"{_NUMBERS.get(name, "")}>{name}</th>' for name in head)
    return f"{title}<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>{rest}"


def _page(results: Sequence[Hits]) -> str:
    remarks = "".join(f"<div>{html.escape(plain(line, 'utf-8'))}</div>" for line in dict.fromkeys(_how_found(results)))
    tables = "".join(map(_table, results))
    return f'<div class="scalar-hits"><style>{_STYLE}</style>{tables}<div class="soft">{remarks}</div></div>'


__all__ = ["NOTHING_MATCHES", "Certainty", "Hit", "Hits", "Results", "remarks_of"]
