"""What a search finds, as columns, and how it is shown: in a terminal (by the commands and by `print`) and in a
notebook.

Shapes: K hits, M modalities.
"""

import html
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import NamedTuple, overload

import torch

from scalar_retrieval.commands.texts import plain, printable

from .filters import DATE, DURATION, WORDS
from .store.rows import MediaFile
from .store.windows import Place

NOTHING_MATCHES = "Nothing here matches well; these come nearest."

_BAR_WIDTH = 8
_NAME_WIDTH = 72
_SHOWN = 50  # most hits that a notebook or a prompt shows
_COPIES = 5  # most copies that are named
_UNKNOWN = {
    DURATION: "how long they last",
    DATE: "when their files were recorded or changed",
    WORDS: "what is said in them",
}
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
        place ([`~scalar_retrieval.gallery.store.windows.Place`], *optional*): its file, for a window with its seconds.
        problems (`tuple[str, ...]`): what could not be read and counts as absent, if known.
        copies (`tuple[str, ...]`): the clips with the same content that it represents, if each content is found once.
        record ([`~scalar_retrieval.gallery.store.rows.MediaFile`], *optional*): what is known of its file, such as its
            `date` and `place`.
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
    record: MediaFile | None = None

    @property
    def day(self) -> str:
        """The day of its file's date, in UTC, such as `2019-06-15`; `changed 2024-03-09` if it is known only when the
        file was changed, `""` if not even that."""
        if self.record is None or self.record.date is None:
            return ""
        day = str(self.record.date.date())
        return day if self.record.recorded_ns is not None else f"changed {day}"


class Texts(NamedTuple):
    """What is read of K hits: `clip_ids`, `places`, `problems`, `copies` and `records`, one per hit."""

    clip_ids: Sequence[str]
    places: Sequence[Place]
    problems: Sequence[tuple[str, ...]]
    copies: Sequence[tuple[str, ...]]
    records: Sequence[MediaFile | None]


@dataclass(eq=False, repr=False)
class Hits(Sequence[Hit]):
    """
    The hits of one query as columns, best first, and how they were found. A [`Hit`] is made when it is accessed by its
    index or in a loop; slices are `Hits`. They can be shown by `print` and in a notebook.

    Args:
        modalities (`tuple[str, ...]`): names along the axis M.
        scores (`torch.FloatTensor` of shape `(K,)`): NaN for listed clips, which have none.
        presence (`torch.BoolTensor` of shape `(K, M)`): the modalities of each clip.
        read_texts (`Callable`): returns the [`Texts`] of the hits; called when these are first needed.
        weights (`torch.FloatTensor` of shape `(K, M)`, *optional*): the query's modality weights, if the score has
            weights.
        rows (`torch.LongTensor` of shape `(K,)`, *optional*): indices of the clips in a gallery in a folder.
        matches (`torch.DoubleTensor` of shape `(K,)`, *optional*): match logits of the second stage, NaN for clips
            that it could not read.
        num_clips (`int`): clips in the gallery.
        num_scored (`int`): clips that were scored in full; the others proved to be below the best.
        num_allowed (`int`, *optional*): clips in the gallery that could be hits; by default all.
        num_files (`int`, *optional*): files in a list of files.
        unknown (`dict[str, int]`): how many clips a filter left out because a fact that it needs is unknown, see
            [`~scalar_retrieval.gallery.exact.clip_facts.Allowed`].
        query (`str`, *optional*), like (`str`, *optional*): the text, or the clip, of the search.
        words (`tuple[str, ...]`): the words in quotation marks, which all hits contain.
        root (`str`, *optional*): the folder to which the names of files are relative when shown.
        reason (`str`, *optional*): why there are no hits.
        notes (sequence of `str`): sentences with further remarks on these hits.
        least_score (`float`, *optional*): the score that the best hit must have to match well, if it was fitted to
            such searches, see [`~scalar_retrieval.gallery.store.described.LEAST_SCORE`].
        first_rank (`int`): rank of the first hit; in a list, one more than the number of skipped clips.

    Example:

        >>> hits = Gallery.open("galleries/videos").search("a dog barks", k=3)
        >>> len(hits), hits.num_scored <= hits.num_clips
        (3, True)
        >>> hits[0].score >= hits[1].score
        True
        >>> sorted(hits[0].weights)
        ['audio', 'subtitle', 'video']
    """

    modalities: tuple[str, ...]
    scores: torch.Tensor
    presence: torch.Tensor
    read_texts: Callable[[], Texts]
    _: KW_ONLY
    num_clips: int
    num_scored: int
    weights: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    matches: torch.Tensor | None = None
    num_allowed: int | None = None
    num_files: int | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)
    query: str | None = None
    like: str | None = None
    words: tuple[str, ...] = ()
    root: str | None = None
    reason: str | None = None
    notes: Sequence[str] = ()
    least_score: float | None = None
    first_rank: int = 1

    def __post_init__(self):
        if self.num_allowed is None:
            self.num_allowed = self.num_clips

    # As a sequence -------------------------------------------------------------------------------------------------

    @cached_property
    def texts(self) -> Texts:
        """The texts of the hits, read when they are first needed."""
        return self.read_texts()

    @property
    def clip_ids(self) -> list[str]:
        """The identifiers of the clips."""
        return list(self.texts.clip_ids)

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> Hit: ...

    @overload
    def __getitem__(self, index: slice) -> "Hits": ...

    def __getitem__(self, index: int | slice) -> "Hit | Hits":
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        row = range(len(self))[index]  # also from the end
        weights = None
        if self.weights is not None:
            weights = dict(zip(self.modalities, self.weights[row].tolist(), strict=True))
        match = None
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
            self.texts.records[row],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def select(self, order: Sequence[int], notes: Iterable[str] = ()) -> "Hits":
        """Some of these hits, in the given order, with more notes."""
        places = list(order)

        # Texts are read only when they are needed, also those of selected hits.
        def read_texts() -> Texts:
            columns = []
            for column in self.texts:
                columns.append([column[place] for place in places])
            return Texts(*columns)

        columns = {}
        for name in ("scores", "presence", "weights", "rows", "matches"):
            column = getattr(self, name)
            if column is not None:
                columns[name] = column[places]
        return replace(self, read_texts=read_texts, notes=[*self.notes, *notes], **columns)

    def newest_first(self) -> "Hits":
        """The same hits, newest first by the dates of their files, those without a date last; a note says so."""
        # Hits of one date stay in the order of their scores.
        dates = []
        for record in self.texts.records:
            date = None if record is None else record.date
            dates.append(date or datetime.min.replace(tzinfo=UTC))
        order = sorted(range(len(self)), key=dates.__getitem__, reverse=True)
        return self.select(order, ["Hits were chosen by score, then sorted by date, newest first."] if order else [])

    def best_of_files(self, k: int) -> "Hits":
        """The first hit of each file, for the best `k` files."""
        # Hits come best first, so the first of a file is its best.
        first: dict[str, int] = {}
        for row, place in enumerate(self.texts.places):
            first.setdefault(place.path, row)
        return self.select(list(first.values())[:k])

    def continued(self, rest: "Hits") -> "Hits":
        """These hits followed by those of the same query among other clips."""

        def read_texts() -> Texts:
            columns = []
            for ours, theirs in zip(self.texts, rest.texts, strict=True):
                columns.append([*ours, *theirs])
            return Texts(*columns)

        # Only the first stage ranks further clips, so there are no matches yet.
        columns = {}
        for name in ("scores", "presence", "weights", "rows"):
            column = getattr(self, name)
            if column is not None:
                columns[name] = torch.cat([column, getattr(rest, name)])
        num_scored = min(self.num_scored + rest.num_scored, self.num_allowed)
        return replace(self, read_texts=read_texts, num_scored=num_scored, **columns)

    @property
    def matches_well(self) -> bool | None:
        """Whether the best hit scores as relevant clips do; `None` if unknown."""
        if self.least_score is None or not len(self):
            return None
        return self.scores.max().item() >= self.least_score

    @property
    def title(self) -> str | None:
        """What was searched for."""
        if self.query is not None:
            return f"query: {self.query}"
        if self.like is not None:
            return f"like: {self.like}"
        return None

    # As text -------------------------------------------------------------------------------------------------------

    def name_of(self, hit: Hit) -> str:
        """The name of a hit: its path below `root`, or another identifier, and its seconds."""
        return self._below_root(hit.place.path) + _seconds_of(hit)

    def _below_root(self, path: str) -> str:
        if self.root is None or not os.path.isabs(path):
            return path
        return os.path.relpath(path, self.root)

    def _short_name(self, hit: Hit) -> str:
        """A name that is cut from the left if it is long, without losing the seconds."""
        # The end of a path says more than its beginning.
        name = self._below_root(hit.place.path)
        if len(name) > _NAME_WIDTH:
            name = f"...{name[3 - _NAME_WIDTH :]}"
        return name + _seconds_of(hit)

    def copies_line(self, hit: Hit) -> str:
        """The copies that a hit represents; only if there are some."""
        names = hit.copies[:_COPIES]
        # Copies of a window are at the same seconds, which its own name has already.
        if hit.place.start is not None:
            names = [name.rpartition("#t=")[0] for name in names]
        count = len(hit.copies)
        line = f"and {count} {'copy' if count == 1 else 'copies'}: {', '.join(map(self._below_root, names))}"
        if count > _COPIES:
            line += f" and {count - _COPIES} more"
        return line

    def lines(self, encoding: str = "utf-8", most: int | None = None) -> list[str]:
        """The hits as lines for a terminal, not yet escaped by [`~scalar_retrieval.commands.texts.plain`]."""
        lines = []
        if self.title is not None:
            lines.append(self.title)
        if self.matches_well is False:
            lines.append(NOTHING_MATCHES)
        # A hit has a line with its name, lines with its weights, and perhaps one with its copies.
        for hit in self[:most]:
            scores = f"{hit.score:.3f}"
            if hit.match is not None:
                scores += f"  match {hit.match:+.2f}"
            lines.append(f"{hit.rank:3}  {scores}  {self._short_name(hit)}  {hit.day}".rstrip())
            lines += [f"     {line}" for line in _weights_lines(hit, encoding)]
            if hit.copies:
                lines.append(f"     {self.copies_line(hit)}")
        if most is not None and len(self) > most:
            lines.append(f"and {len(self) - most} more")
        return lines

    def __str__(self) -> str:
        return _text([self], None)

    def __repr__(self) -> str:
        return _text([self], _SHOWN)

    def _repr_html_(self) -> str:
        return _page([self])


class HitLists(list[Hits]):
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


def _seconds_of(hit: Hit) -> str:
    """The end of the name of a window; nothing for a whole file."""
    if hit.place.start is None:
        return ""
    return f" [{hit.place.span}]"


def _weights_lines(hit: Hit, encoding: str) -> list[str]:
    """The modalities of a hit, with bars as long as their weights, if they have some."""
    full, empty, dash = "█░–" if _can_print("█░–", encoding) else "#.-"
    parts = []
    for name, is_there in hit.presence.items():
        if is_there and hit.weights is None:
            parts.append(f"{name} present")
        elif is_there:
            weight = hit.weights[name]
            filled = round(weight * _BAR_WIDTH)
            parts.append(f"{name} {full * filled}{empty * (_BAR_WIDTH - filled)} {weight:.2f}")
        elif hit.weights is not None:
            parts.append(f"{name} {dash} absent")
    return ["  ".join(parts[start : start + _PER_LINE]) for start in range(0, len(parts), _PER_LINE)]


def _why_none(hits: Hits) -> str:
    asked = hits.like or hits.query
    sentence = "No hits"
    if asked is not None:
        sentence += f" for {asked!r}"
    if hits.reason is not None:
        sentence += f": {hits.reason}"
    return f"{sentence}."


def remarks_of(results: Sequence[Hits]) -> list[str]:
    """Sentences on how the hits of queries to one gallery were found, each once, with the largest numbers: how many
    clips were scored, and what was left out."""
    if not results:
        return []
    # First why there are no hits, then what was left out, then notes, last how exact the search was.
    sentences = [_why_none(hits) for hits in results if not len(hits)]
    # Queries differ in their words, and so in what is left out: the largest number is given.
    widest = max(results, key=lambda hits: sum(hits.unknown.values()))
    for name, count in widest.unknown.items():
        clips = "1 clip was" if count == 1 else f"{count:,} clips were"
        sentences.append(f"{clips} left out because it is not known {_UNKNOWN[name]}.")
    for hits in results:
        sentences += hits.notes
    if any(map(len, results)):
        sentences.append(_how_exact(results))
    return list(dict.fromkeys(sentences))


def _how_exact(results: Sequence[Hits]) -> str:
    # One sentence for all queries, with the largest numbers
    widest = max(results, key=lambda hits: hits.num_scored)
    sentence = "First stage: exact" if any(hits.matches is not None for hits in results) else "Exact"
    sentence += f" among {widest.num_allowed:,}"
    if widest.num_allowed != widest.num_clips:
        sentence += f" of {widest.num_clips:,}"
    if widest.num_scored >= widest.num_allowed:
        return f"{sentence} clips: all were scored in full."
    return f"{sentence} clips: {widest.num_scored:,} scored in full, the others proved to be below the best."


def _text(results: Sequence[Hits], most: int | None) -> str:
    # What takes the place of standard output may have no encoding.
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    lines = []
    for hits in results:
        lines += hits.lines(encoding, most)
    return printable([*lines, *remarks_of(results)], "utf-8")


def _escaped(text: str) -> str:
    return html.escape(plain(text, "utf-8"))


def _table(hits: Hits) -> str:
    # All hits have the same columns, also those that lack a match or a modality.
    has_matches = hits.matches is not None
    head = ["", "score", "clip", *hits.modalities]
    if has_matches:
        head.insert(2, "match")
    lines = [head]
    for hit in hits[:_SHOWN]:
        line = [str(hit.rank), f"{hit.score:.3f}"]
        if has_matches:
            line.append("–" if hit.match is None else f"{hit.match:+.2f}")
        clip = f"{hits.name_of(hit)[-500:]} {hit.day}"
        if hit.copies:
            clip += f" {hits.copies_line(hit)}"
        line.append(clip)
        for name, is_there in hit.presence.items():
            if not is_there:
                line.append("absent")
            elif hit.weights is None:
                line.append("present")
            else:
                line.append(f"{hit.weights[name]:.2f}")
        lines.append(line)

    # Names may contain anything, so every cell is escaped.
    rows = []
    for line in lines:
        cells = [f"<td>{_escaped(cell)}</td>" for cell in line]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _page(results: Sequence[Hits]) -> str:
    # A table below the title of each query; the remarks on all of them come last.
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


__all__ = ["NOTHING_MATCHES", "Hit", "HitLists", "Hits", "Texts", "remarks_of"]
