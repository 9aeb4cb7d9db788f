"""
The gallery and the model behind the service, shared by threads.

A source is a gallery in a folder or a vector engine; a view is one state of it.
"""

import math
import os
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import plain
from gallery.cues import cues_of, may_have_words
from gallery.gallery import Gallery
from gallery.hits import NOTHING_MATCHES, Hit, Hits
from gallery.querying import NothingToCompareError, QueryModel
from gallery.transcripts import Cue
from gallery.windows import SEGMENT, Place
from modeling_scalar.scores_scalar import METHODS, WEIGHING, paired_weights
from search.engine.errors import UnsupportedError

from .media import kind_of
from .models import (
    FILTERS,
    About,
    Answer,
    Asked,
    Chosen,
    FilterName,
    Found,
    Listing,
    ListRequest,
    Modality,
    WordsSource,
)

_TEXTS = 1024  # number of cached query embeddings


class UnknownClipError(ValueError):
    """No clip of the gallery has this key."""


class AwayError(OSError):
    """The gallery is not available now: a message without internal details, and the seconds until the next try."""

    def __init__(self, sentence: str, seconds: int):
        super().__init__(sentence)
        self.seconds = seconds


class Summary(NamedTuple):
    """A summary of a gallery: the number of clips, the fraction of clips with each modality, whether these numbers
    are estimates, what is wrong with the gallery, if anything, and the fraction of clips whose subtitles are speech
    recognised by machine."""

    gallery: Gallery
    num_clips: int
    share: dict[Modality, float]
    is_estimate: bool = False
    problem: str | None = None
    heard: float = 0.0


def leaving(asked: Chosen) -> str:
    """The subject of a sentence on why no clips are left."""
    return "The filters, or the words in quotation marks," if asked.allowed and asked.allowed.words else "The filters"


class View(ABC):
    """
    One state of a gallery.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it was opened.
    """

    def __init__(self, gallery: Gallery):
        self.gallery = gallery

    def search(self, **asked: Any) -> Hits:
        """The hits of one query: [`~gallery.gallery.Gallery.search`]."""
        found = self.gallery.search(**asked)
        return found if isinstance(found, Hits) else found[0]

    def is_estimate(self, count: int) -> bool:
        """Whether a number of clips is an estimate."""
        return False

    def num_files(self, per_file: bool) -> int | None:
        """The number of files if hits are per file and it is known, else `None`."""
        return None

    def read_words(self) -> None:  # noqa: B027 - an engine has none
        """Load the words of all clips, once; this may take long."""

    @abstractmethod
    def key_of(self, hit: Hit) -> str:
        """The key that identifies a hit in requests."""

    @abstractmethod
    def clip(self, key: str) -> tuple[Hit, torch.Tensor, torch.Tensor]:
        """The clip with a key as a hit without a score, its vectors `(M, D)`, and their mask; an
        [`UnknownClipError`] if there is none."""

    def playable(self, places: Collection[Place]) -> set[Place]:
        """The places, among these, whose files may be played."""
        return set(places)

    def path_of(self, key: str) -> str:
        """The file of a clip, whose windows are searched; an [`UnsupportedError`] if this is not supported."""
        raise UnsupportedError("An engine cannot list the windows of one file; a gallery in a folder can.")

    def listed(self, asked: ListRequest) -> Listing:
        """Clips by name; an [`UnsupportedError`] if they cannot be listed."""
        raise UnsupportedError("An engine does not list clips by name. Enter a query.")

    def num_windows(self, place: Place) -> int | None:
        """The number of windows of a file, if known."""
        return None

    def with_stills(self, places: Collection[Place]) -> set[Place]:
        """The places, among these, that have a still."""
        return set()

    def name_of(self, place: Place) -> str:
        """The displayed name of a clip: its file and parent folder, but no more of its path."""
        return plain(os.sep.join(place.path.split(os.sep)[-2:]).lstrip(os.sep), "utf-8")

    def found(self, hits: Sequence[Hit], per_file: bool = False) -> list[Found]:
        """Hits in the form of the API."""
        places = [hit.place for hit in hits]
        entries, playable, with_stills = [], self.playable(places), self.with_stills(places)
        for hit, place in zip(hits, places, strict=True):
            key = self.key_of(hit)
            kind = kind_of(place.path, hit.presence.get("video", True)) if place in playable else None
            entries.append(
                Found(
                    rank=hit.rank,
                    key=key,
                    name=self.name_of(place),
                    score=None if math.isnan(hit.score) else hit.score,
                    weights=hit.weights,
                    presence=hit.presence,
                    problems=[plain(problem, "utf-8") for problem in hit.problems],
                    start=place.start,
                    stop=place.stop,
                    kind=kind,
                    media=None if kind is None else f"api/clips/{key}/media",
                    captions=f"api/clips/{key}/captions" if kind and hit.presence.get("subtitle") else None,
                    words=f"api/clips/{key}/words" if kind and may_have_words(hit.presence) else None,
                    still=f"api/clips/{key}/still" if place in with_stills else None,
                    copies=[self.name_of(self.gallery.place_of(copy)) for copy in hit.copies],
                    num_windows=self.num_windows(place) if per_file else None,
                )
            )
        return entries


class Source(ABC):
    """
    The source of a gallery.

    Args:
        name (`str`): what the page calls it.
        model (`str`), fingerprint (`str`): the model that queries are embedded with, which it must name.
    """

    lists = True
    """Whether clips can be listed by name."""
    knows_copies = True
    """Whether it is known which clips are exact copies."""
    filters: tuple[FilterName, ...] = FILTERS
    """The supported filters."""

    def __init__(self, name: str, model: str, fingerprint: str):
        self.name, self._model, self.fingerprint = name, model, fingerprint
        self.problem: str | None = None  # why the current state of the gallery is not served

    def start(self) -> None:  # noqa: B027 - an engine watches over itself
        """Start background checks, if any."""

    def stop(self) -> None:  # noqa: B027
        """Stop them."""

    @abstractmethod
    def check_method(self, method: str) -> None:
        """Raise a ValueError unless the gallery can be searched by a score."""

    @abstractmethod
    def view(self) -> View:
        """The state that answers are based on."""

    @abstractmethod
    def summary(self) -> Summary:
        """A summary of the gallery, even while it is not available."""

    @abstractmethod
    def clip_of(self, key: str) -> tuple[View, str]:
        """The state, and the clip with a key in it, in the form for `Gallery.search(like=...)`."""

    @abstractmethod
    def path_of(self, key: str) -> str:
        """The file of a clip; an [`UnknownClipError`] if no clip has this key."""

    def texts_of(self, key: str) -> dict[WordsSource, list[Cue]]:
        """The known words in the file of a clip, by where they come from; an [`UnknownClipError`] if no clip has this
        key."""
        return {"subtitle": cues_of(self.path_of(key))}

    def still_of(self, key: str) -> Path | None:
        """The still of a clip, `None` if there is none; an [`UnknownClipError`] if no clip has this key."""
        return None


def _name_of(model: str) -> str:
    """The displayed name of a model: its Hub id, or the name of its folder."""
    return plain(os.path.basename(os.path.normpath(model)) if os.path.isabs(model) else model, "utf-8")


class Archive:
    """
    A gallery and the model for its queries.

    Args:
        source ([`~search.service.archive.Source`]): where the gallery is.
        model ([`~modeling_scalar.ScalarModel`]), processor (`ProcessorMixin`): of the gallery. One thread at a time
            may use the model: whoever has `lock`.

    Raises:
        ValueError: the gallery cannot be searched by the model's score.
    """

    def __init__(self, source: Source, model: PreTrainedModel, processor: ProcessorMixin):
        self.source, self._asking = source, QueryModel(model, processor)
        self.lock, self.method = self._asking.lock, self._asking.method
        source.check_method(self.method)
        self._texts: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._texts_lock = Lock()

    def is_known(self, text: str) -> bool:
        """Whether a text is in the cache, so that [`Archive.embed`] returns at once."""
        with self._texts_lock:
            return text in self._texts

    def embed(self, text: str) -> torch.Tensor:
        """Embed a query, `(1, D)` or `(1, 3, D)`, or return the cached embedding."""
        with self._texts_lock:
            if text in self._texts:
                self._texts.move_to_end(text)
                return self._texts[text]
        embeds = self._asking.embed([text])
        with self._texts_lock:
            self._texts[text] = embeds
            while len(self._texts) > _TEXTS:
                self._texts.popitem(last=False)
        return embeds

    def _answer(self, view: View, asked: Asked, **query: Any) -> Answer:
        begun, gallery = time.monotonic(), view.gallery
        temperature = gallery.query_temperature if asked.temperature is None else asked.temperature
        inside = None if asked.within is None else view.path_of(asked.within)
        hits = view.search(
            k=asked.k,
            query_temperature=temperature,
            method=self.method,
            modalities=asked.modalities,
            allowed=asked.allowed,
            inside=inside,
            per_file=asked.per_file,
            unique=asked.unique,
            **(query | self._asking.learned),
        )
        return Answer(
            hits=view.found(hits, asked.per_file),
            temperature="inf" if temperature == float("inf") else temperature,
            num_clips=hits.num_clips,
            num_allowed=min(hits.num_allowed, hits.num_clips),  # clips may be pushed during the count
            num_scored=hits.num_scored,
            estimated=view.is_estimate(hits.num_clips),
            exact=True,
            matches_well=hits.matches_well,
            certainty="exact",
            unknown=hits.unknown,
            num_files=view.num_files(asked.per_file),
            seconds=time.monotonic() - begun,
            note=NOTHING_MATCHES if hits.matches_well is False else None if len(hits) else self._why_none(hits, asked),
        )

    def _why_none(self, hits: Hits, asked: Asked) -> str:
        if not hits.num_clips:
            return "The gallery holds no clips."
        if not hits.num_allowed:
            return f"{leaving(asked)} leave none of the {hits.num_clips} clips."
        looked_at = dict.fromkeys(asked.modalities or ())
        missing = "" if not looked_at else f" of {' or '.join(looked_at)}"
        what = "in the gallery has" if hits.num_allowed == hits.num_clips else "that could be found has"
        return f"No clip of the {hits.num_allowed} {what} what the score {self.method!r} needs{missing}."

    def read_words(self) -> None:
        """Load the words of all clips, if necessary."""
        self.source.view().read_words()

    def search(self, text: str, asked: Asked) -> Answer:
        """The best clips for a text, whose embedding may be cached."""
        embeds = self.embed(text)
        return self._answer(self.source.view(), asked, queries=embeds)

    def like(self, key: str, asked: Asked) -> Answer:
        """
        The clips most similar to one of the gallery, without itself: [`~gallery.gallery.Gallery.search`].

        Raises:
            UnknownClipError: no clip has this key, or it has nothing of what is looked at.
        """
        view, clip_id = self.source.clip_of(key)
        try:
            return self._answer(view, asked, like=clip_id)
        except NothingToCompareError as error:
            raise UnknownClipError(str(error)) from error

    def moment(self, key: str, text: str | None) -> Found:
        """The clip with a key, with its modality weights for a text if the score has weights; an
        [`UnknownClipError`] if there is none."""
        view = self.source.clip_of(key)[0]
        hit, embeds, mask = view.clip(key)
        if text is not None and METHODS[self.method].weights == "query":
            gallery = view.gallery
            options = {"query_temperature": gallery.query_temperature} | gallery.calibration | self._asking.learned
            weighing = {name: options[name] for name in WEIGHING if name in options}
            weights = paired_weights(self.embed(text), embeds[None].float(), mask[None], **weighing)[0].tolist()
            hit = replace(hit, weights=dict(zip(gallery.modalities, weights, strict=True)))
        return view.found([hit])[0]

    def listed(self, asked: ListRequest) -> Listing:
        """Clips by name."""
        return self.source.view().listed(asked)

    def about(self) -> About:
        """Describe the gallery."""
        gallery, num_clips, share, is_estimate, problem, heard = self.source.summary()
        temperature = gallery.query_temperature
        return About(
            name=self.source.name,
            num_clips=num_clips,
            share=share,
            heard=heard,
            estimated=is_estimate,
            model=gallery.model and _name_of(gallery.model),
            method=self.method,
            has_temperature=METHODS[self.method].weights == "query",
            temperature="inf" if temperature == float("inf") else temperature,
            segment=gallery.metadata.get(SEGMENT),
            filters=list(self.source.filters),
            lists=self.source.lists,
            copies=self.source.knows_copies,
            problem=problem and plain(problem, "utf-8"),
        )


__all__ = ["Archive", "AwayError", "Source", "Summary", "UnknownClipError", "View", "leaving"]
