"""What is fixed about a benchmark before anything is measured, and how a processor adopts it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from datasets import Dataset

from modeling_scalar.processing_joint_scalar import ScalarJointProcessor
from modeling_scalar.processing_scalar import ScalarProcessor

# Frames as in the paper's table of dataset statistics; lengths, audio slices and resizing as VAST evaluates. What a
# benchmark does differently is in its own file.
PROTOCOL = MappingProxyType(
    {"num_frames": 8, "max_text_length": 40, "max_subtitle_length": 70, "num_segments": 1, "resize_mode": "squash"}
)


@dataclass(frozen=True)
class Benchmark:
    """
    What is fixed about a benchmark.

    Args:
        title (`str`): its name in tables.
        load (`Callable`): `load(root, split, *, on_missing, **settings)` gives the data set and the ids left out.
        splits (`tuple[str, ...]`, *optional*): what it is divided into; `None` if the user may choose any name.
        task (`str`): "retrieval": a query is a caption of a clip. "classification": a query is the label of a class,
            and equal captions are one query.
        processing (`Mapping`): what the protocol sets in a processor, see [`configure_processor`].
        settings (`tuple[str, ...]`): which of "captions", "annotations", "columns", "holdout" and "words_of" `load`
            takes.
        describe (`Callable`, *optional*): `describe(root)` says what makes a generated benchmark again.
    """

    title: str
    load: Callable[..., tuple[Dataset, list[str]]]
    splits: tuple[str, ...] | None = None
    task: Literal["retrieval", "classification"] = "retrieval"
    processing: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    describe: Callable[..., dict[str, Any]] | None = None


@dataclass(frozen=True)
class Split:
    """
    One split of a benchmark, as it is on this machine.

    Args:
        dataset (`Dataset`): the columns of [`~eval.benchmarks.FEATURES`], further texts by the names of modalities,
            and `kind` where captions are of several kinds; a row per clip and caption.
        left_out (`list[str]`): ids of the annotation that are not in the gallery because their files are not there.
        task (`str`), processing (`Mapping`): of the [`Benchmark`].
    """

    dataset: Dataset
    left_out: list[str] = field(default_factory=list)
    task: str = "retrieval"
    processing: Mapping[str, Any] = field(default_factory=dict)


def _settings(part: Any) -> dict[str, Any]:
    """Return the arguments that make a processor, or a part of one, with the values it has."""
    parameters = inspect.signature(type(part)).parameters.values()
    return {p.name: getattr(part, p.name) for p in parameters if p.kind is not p.VAR_KEYWORD}


def configure_processor(processor: ScalarProcessor, processing: Mapping[str, Any]) -> ScalarProcessor:
    """
    Give a processor the settings that the protocol of a benchmark asks for.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): stays as it is; the result shares its tokenizer.
        processing (`Mapping`): names and values of arguments of the processor, of its image processor or of its
            feature extractor. What it does not name keeps the value it has.

    Returns:
        [`~modeling_scalar.ScalarProcessor`]: a new one.

    Raises:
        ValueError: a name is not a setting, or the value is out of its range.
    """
    if isinstance(processor, ScalarJointProcessor):
        return processor.with_protocol(processing)
    settings = _settings(processor)
    parts = {name: settings.pop(name) for name in ("image_processor", "feature_extractor")}
    tokenizer = settings.pop("tokenizer")
    known = {name: _settings(part) for name, part in parts.items()}
    names = {*settings, *(name for group in known.values() for name in group)}
    if not names.issuperset(processing):
        raise ValueError(f"Settings of a processor are {sorted(names)}, got {sorted(set(processing) - names)}.")

    def build(part: Any, group: Mapping[str, Any], **others: Any) -> Any:
        return type(part)(**others, **{name: processing.get(name, value) for name, value in group.items()})

    parts = {name: build(part, known[name]) for name, part in parts.items()}
    configured = build(processor, settings, tokenizer=tokenizer, **parts)
    configured.reader = processor.reader  # of the machine, not of a protocol
    return configured


__all__ = ["PROTOCOL", "Benchmark", "Split", "configure_processor"]
