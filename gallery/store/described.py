"""What the metadata of embedded clips say, in any kind of gallery: which model made them, and how they are scored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scalar_retrieval.commands.schema import check_value, count, flag, nothing, number, size, temperature, text, whole
from scalar_retrieval.modeling_scalar.modalities_scalar import (
    PAPER_MODALITIES,
    Slice,
    check_calibration,
    check_slices,
)

MODALITIES = "modalities"
"""The metadata entry with the modalities of clips, in order; without it they are the paper's."""

LEAST_SCORE = "least_score"
"""The metadata entry with the score that the best hit of a query must have to match well: the `score`, the number of
clips and the modalities that it was fitted to, and the score options; see
`scalar_retrieval.eval.protocol.least_score`. Without labels also from what `source`, and the percentages of `answered`
and `unanswered` queries that it reports; the score is `None` if that tells nothing, see
`scalar_retrieval.gallery.own_queries`."""

SCALES = "scales"
"""The metadata entry that says from what scales were measured without labels, such as `"214 titles and
subtitles"`; see `scalar_retrieval.gallery.scales`."""

UNREAD = "unread"
"""The metadata entry with the number of files in each language that the model does not read, by its English name."""

READS = {"light": "ar de en es fr it ja ko nl pl pt ru th tr zh zh-TW".split()}
"""The languages that models read, by their names."""

LIMITS = {
    "light": "light recognises about a thousand kinds of things in pictures, but no actions, colours or people, and "
    f"reads {len(READS['light'])} languages ({' '.join(READS['light'])})."
}
"""What models find, if that is less than one would expect, by their names."""

ADVICE = {
    "light": "For more: scalar index FOLDER --output NEW_GALLERY --model "
    "openai/clip-vit-base-patch32+laion/clap-htsat-unfused+sentence-transformers/all-MiniLM-L6-v2"
}
"""What finds more than such models."""

SLICES = "modality_slices"
"""The metadata entry with the slice of a query's components that the vectors of each modality have."""

_MOST_NAMED = 4  # languages
_FEWEST_CLIPS = 100  # that a least score is fitted to
_GROWTH = 0.1  # share of the clips by which a gallery has changed when a least score is fitted again
_WIDEST = 2**16  # components of a query

_CALIBRATES = "modality_"  # begins the names of those score options that have a number for each modality
_SECONDS = "[1, inf)"

# Every entry that some reader uses. Calibrations and names of modalities have further checks of their own.
_METADATA = {
    "model?": (None, text),
    "model_revision?": (None, text),
    "local_model?": (None, text),
    "fingerprint?": (None, text),
    "weights?": (None, {...: text}),
    "training?": (None, {"seed?": (None, whole)}),
    "query_temperature?": (None, temperature),
    "modalities?": (None, [text]),
    f"{SLICES}?": (None, [[f"[0, {_WIDEST}]"]]),
    "score_options?": (
        None,
        {
            "method?": text,
            "query_temperature?": (None, temperature),
            "hyperbolic_mix?": "[0, 1]",
            "curvature?": "(0, inf)",
            "rank_constant?": "(0, inf)",
            "modality_scale?": (None, [number]),
            "modality_offset?": (None, [number]),
            ...: nothing,
        },
    ),
    "least_score?": (
        None,
        {
            "score": (None, number),
            "num_clips": count,
            "modalities": [text],
            "score_options": {"method": text},
            "source?": text,
            "answered?": number,
            "unanswered?": number,
        },
    ),
    "scales?": (None, text),
    "segment?": (None, _SECONDS),
    "scenes?": flag,
    "num_frames?": size,
    "max_audio_seconds?": _SECONDS,
    "plan?": (None, {}),
    "unfinished?": {...: count},
    "lost?": {...: count},
    "unread?": {...: count},
    "benchmark?": text,
    "split?": text,
    "task?": text,
    "trained_on?": (None, count),
    "kinds?": {...: (None, text)},
    "problems?": [text],
    "left_out?": (None, [text]),
}


def calibration_of(metadata: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return how the cosines of each modality enter scores, if the metadata say so; see `retrieval_scores`."""
    found = {}
    for name, value in (metadata.get("score_options") or {}).items():
        if name.startswith(_CALIBRATES) and value is not None:
            found[name] = value
    return found


def scale_lines(metadata: Mapping[str, Any]) -> list[str]:
    """The numbers of [`calibration_of`] as lines, and last, if that is known, from which texts they were measured."""
    lines = []
    for name, values in calibration_of(metadata).items():
        lines.append(f"{name.replace('_', ' ')}: {', '.join(f'{value:.3g}' for value in values)}")
    if metadata.get(SCALES) is not None:
        lines.append(f"scales from {metadata[SCALES]}")
    return lines


def unread_lines(metadata: Mapping[str, Any]) -> list[str]:
    """A line with the number of files in languages that the model does not read, if there are some."""
    unread = metadata.get(UNREAD)
    if not unread:
        return []
    *names, last = unread
    if len(unread) > _MOST_NAMED:
        names = names[: _MOST_NAMED - 1]
        last = "other languages"
    languages = f"{', '.join(names)} or {last}" if names else last
    count = sum(unread.values())
    files = "1 file is" if count == 1 else f"{count} files are"
    return [f"{files} in {languages}, which `{metadata.get('model')}` does not read."]


def score_options_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a model scores, from the metadata of what it embedded: keyword arguments of `retrieval_scores`, by
    default the paper's."""
    options = {"method": "scalar", "query_temperature": 0.1}
    stored = {"query_temperature": metadata.get("query_temperature")} | (metadata.get("score_options") or {})
    for name, value in stored.items():
        if value is None:
            continue
        # JSON stores an infinity as a string.
        if name != "method" and not name.startswith(_CALIBRATES):
            value = float(value)
        options[name] = value
    return options


def fitted_to(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return [`score_options_of`] in the form of JSON: the score options that something is fitted to."""
    options = score_options_of(metadata)
    for name, value in options.items():
        if value == math.inf:
            options[name] = str(value)
    return options


def reading_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """How much of each clip was read for a gallery: the settings of the processor that its metadata names."""
    return {name: metadata[name] for name in ("num_frames", "max_audio_seconds") if name in metadata}


def modalities_in(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The modalities of clips according to the metadata, by default the paper's; raises a ValueError if these are not
    names."""
    # Galleries with the paper's modalities need not name them.
    found = metadata.get(MODALITIES) or PAPER_MODALITIES
    if "" in found or len(set(found)) < len(found):
        raise ValueError(f"`{MODALITIES}` must be a list of different names, got {found!r:.80}.")
    return tuple(found)


def slices_of(metadata: Mapping[str, Any], number: int, width: int) -> Sequence[Slice]:
    """For each of a number of modalities, the start and the stop of the components of queries that its vectors have:
    all of them, as many as the `width` of the vectors, unless the metadata say otherwise."""
    return metadata.get(SLICES) or [(0, width)] * number


def check_metadata(metadata: Mapping[str, Any], where: Any, widths: Mapping[str, int] | None = None) -> None:
    """
    Raise a ValueError that names the metadata of a gallery with which no score can be computed.

    Args:
        metadata (`dict`): as they are read.
        where (`Any`): the gallery, for the message.
        widths (`dict`, *optional*): by the modalities of its clips, the number of components of their vectors; by
            default the modalities are those in the metadata.
    """
    # They come from a file that may have been made by anything. Last, numbers for each of the modalities.
    try:
        check_value(metadata, _METADATA)
        named = modalities_in(metadata)
        modalities = list(widths or named)
        calibration = calibration_of(metadata)
        if calibration:
            check_calibration(modalities=modalities, **calibration)
        slices = metadata.get(SLICES)
        if slices:
            check_slices(slices, modalities, _WIDEST)
        # The columns of vectors are as wide as their slices.
        if widths:
            found = slices_of(metadata, len(widths), max(widths.values()))
            if [stop - start for start, stop in found] != list(widths.values()):
                raise ValueError(f"vectors have {widths} components, but `{SLICES}` is {slices!r:.200}.")
    except ValueError as error:
        raise ValueError(f"In the metadata of {where}: {error}") from error


@dataclass(frozen=True)
class Extent:
    """
    How much there is in a gallery, as far as it is known.

    Args:
        num_files (`int`, *optional*): files that have clips.
        duration (`float`, *optional*): seconds that these last.
        oldest (`datetime`, *optional*), newest (`datetime`, *optional*): the dates of files.
        num_changed (`int`): files of which it is only known when they were changed, not when they were recorded.
    """

    num_files: int | None = None
    duration: float | None = None
    oldest: datetime | None = None
    newest: datetime | None = None
    num_changed: int = 0


class NoClipError(ValueError):
    """No clip of the gallery has this name."""


class Described:
    """
    Embedded clips with their metadata.

    Args:
        metadata (`dict`): where the embeddings come from, see
            [`~scalar_retrieval.gallery.store.provenance.provenance_of`].
        path (`Any`): the folder, or another name for messages.
        widths (`dict`, *optional*): by the modalities of each clip, the number of components of their vectors; a
            gallery without clips has the modalities in the metadata, and no vectors.

    Raises:
        ValueError: the metadata are invalid.
    """

    def __init__(self, metadata: Mapping[str, Any] | None, path: Any, widths: Mapping[str, int] | None = None):
        if metadata is None:
            metadata = {}
        check_metadata(metadata, path or "the gallery", widths)
        self.path = path
        self.metadata = dict(metadata)
        self.modalities = tuple(widths or modalities_in(metadata))
        self.slices: Sequence[Slice] = []
        """For each modality, the start and the stop of the components of a query that its vectors have."""
        self.dim: int | None = None
        """The number of components of a query."""
        if widths:
            self.slices = slices_of(metadata, len(widths), max(widths.values()))
            _, self.dim = max(self.slices)

    @property
    def extent(self) -> Extent:
        """How much there is; a table does not know it."""
        return Extent()

    @property
    def model(self) -> str | None:
        """Where the model was loaded from, if known."""
        return self.metadata.get("model")

    @property
    def fingerprint(self) -> str | None:
        """The hash of the model's files, if known."""
        return self.metadata.get("fingerprint")

    @property
    def query_temperature(self) -> float:
        """Temperature of the query's modality weights, by default the paper's 0.1."""
        return float(self.metadata.get("query_temperature") or 0.1)

    @property
    def calibration(self) -> dict[str, list[float]]:
        """How the cosines of each modality enter scores, if known; see `retrieval_scores`."""
        return calibration_of(self.metadata)

    @property
    def lacks_scales(self) -> bool:
        """Whether encoders with spaces of their own embed the modalities, whose cosines have no scales yet."""
        has_slices = self.metadata.get(SLICES) is not None
        return has_slices and len(self.modalities) > 1 and not self.calibration

    @property
    def lacks_least_score(self) -> bool:
        """Whether there are at least 100 clips without a least score, or a tenth of them has changed since it was
        fitted to own texts. One from captions is never fitted again."""
        least = self.metadata.get(LEAST_SCORE, {"source": "", "num_clips": 0})
        changed = abs(len(self) - least["num_clips"])
        return "source" in least and len(self) >= _FEWEST_CLIPS and changed > _GROWTH * least["num_clips"]

    @property
    def least_score(self) -> dict[str, Any] | None:
        """The score that the best hit of a query must have to match well, see [`LEAST_SCORE`]; `None` if it was not
        fitted, or fitted to scores that were computed differently."""
        # Scores may have been changed after it was fitted.
        least = self.metadata.get(LEAST_SCORE)
        if least is None or least["score"] is None or least["score_options"] != fitted_to(self.metadata):
            return None
        return least

    def check_model(self, model: str, fingerprint: str, must_know: bool = False) -> None:
        """
        Raise a ValueError if this gallery was made by another model.

        Args:
            model (`str`), fingerprint (`str`): the model to use with it.
            must_know (`bool`): also refuse a gallery of clips that does not say which model made it.
        """
        # A gallery that does not say which model made it is searched all the same, but nothing is added to it.
        if must_know and len(self) and self.fingerprint is None:
            raise ValueError(
                f"{self.path} does not say which model made it, so nothing can be added: embeddings of different "
                "models cannot be compared. Index into a new gallery."
            )
        if self.fingerprint not in (None, fingerprint):
            raise ValueError(
                f"The gallery was made with {self.model!r} (fingerprint {str(self.fingerprint)[:12]}), but the files "
                f"of {model!r} have fingerprint {fingerprint[:12]}. Embeddings of different models cannot be "
                "compared: use the gallery's model, or index into a new gallery."
            )


__all__ = [
    "ADVICE",
    "LEAST_SCORE",
    "LIMITS",
    "MODALITIES",
    "SCALES",
    "READS",
    "SLICES",
    "UNREAD",
    "Described",
    "Extent",
    "NoClipError",
    "calibration_of",
    "check_metadata",
    "fitted_to",
    "modalities_in",
    "reading_of",
    "scale_lines",
    "score_options_of",
    "slices_of",
    "unread_lines",
]
