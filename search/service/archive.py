"""A gallery and its model as the service asks them: by many threads at once."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from commands.errors import plain
from gallery.hits import Certainty, Hits
from gallery.querying import NothingToCompareError, QueryModel
from gallery.windows import SEGMENT
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import METHODS

from .models import About, Answer, Asked
from .views import Source, UnknownClipError, View

_TEXTS = 1024  # whose embeddings are kept


class Archive:
    """
    A gallery, and the model that it is asked with.

    Args:
        source ([`~search.service.views.Source`]): where the gallery is.
        model ([`~modeling_scalar.ScalarModel`]), processor (`ProcessorMixin`): of the gallery. One thread at a time
            may use the model: whoever has `lock`.

    Raises:
        ValueError: what is there cannot be searched by the model's score.
    """

    def __init__(self, source: Source, model: PreTrainedModel, processor: ProcessorMixin):
        self.source, self._asking = source, QueryModel(model, processor)
        self.lock, self.method = self._asking.lock, self._asking.method
        source.check_method(self.method)
        self._texts: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._texts_lock = Lock()

    def is_known(self, text: str) -> bool:
        """Whether a text was embedded before, so that [`Archive.embed`] returns at once."""
        with self._texts_lock:
            return text in self._texts

    def embed(self, text: str) -> torch.Tensor:
        """Embed a query, `(1, D)` or `(1, 3, D)`, once as long as it is remembered."""
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
        hits = view.search(
            k=asked.k,
            query_temperature=temperature,
            method=self.method,
            modalities=tuple(dict.fromkeys(asked.modalities)),
            allowed=asked.allowed,
            per_file=asked.per_file,
            **(query | self._asking.learned),
        )
        return Answer(
            hits=view.found(hits, asked.per_file),
            temperature="inf" if temperature == float("inf") else temperature,
            num_clips=hits.num_clips,
            num_allowed=min(hits.num_allowed, hits.num_clips),  # clips may be pushed while they are counted
            num_scored=hits.num_scored,
            estimated=view.is_estimate(hits.num_clips),
            exact=hits.certainty is Certainty.EXACT,
            certainty=hits.certainty,
            unknown=hits.unknown,
            num_files=view.num_files(asked.per_file),
            seconds=time.monotonic() - begun,
            note=None if hits else self._why_none(hits, asked),
        )

    def _why_none(self, hits: Hits, asked: Asked) -> str:
        if not hits.num_clips:
            return "The gallery holds no clips."
        if not hits.num_allowed:
            return f"The filters leave none of the {hits.num_clips} clips."
        looked_at = dict.fromkeys(asked.modalities)
        missing = "" if len(looked_at) == len(MODALITIES) else f" of {' or '.join(looked_at)}"
        what = "in the gallery has" if hits.num_allowed == hits.num_clips else "that could be found has"
        return f"No clip of the {hits.num_allowed} {what} what the score {self.method!r} needs{missing}."

    def search(self, text: str, asked: Asked) -> Answer:
        """The best clips of a text; the model is not asked for one that was embedded before."""
        embeds = self.embed(text)
        return self._answer(self.source.view(), asked, queries=embeds)

    def like(self, key: str, asked: Asked) -> Answer:
        """
        The clips most like one of the gallery, without itself: [`~gallery.gallery.Gallery.search`].

        Raises:
            UnknownClipError: no clip has this key, or it has nothing of what is looked at.
        """
        view, clip_id = self.source.clip_of(key)
        try:
            return self._answer(view, asked, like=clip_id)
        except NothingToCompareError as error:
            raise UnknownClipError(str(error)) from error

    def about(self, most_bytes: int, extensions: Sequence[str]) -> About:
        """What is served; `extensions` of files that may be added, none if no file may."""
        gallery, num_clips, share, is_estimate, problem = self.source.summary()
        temperature = gallery.query_temperature
        return About(
            name=self.source.name,
            num_clips=num_clips,
            share=share,
            estimated=is_estimate,
            model=gallery.model and plain(gallery.model, "utf-8"),
            method=self.method,
            has_temperature=METHODS[self.method].weights == "query",
            temperature="inf" if temperature == float("inf") else temperature,
            segment=gallery.metadata.get(SEGMENT),
            filters=list(self.source.filters),
            uploads=bool(extensions),
            most_bytes=most_bytes,
            extensions=sorted(extensions),
            problem=problem and plain(problem, "utf-8"),
        )


__all__ = ["Archive"]
