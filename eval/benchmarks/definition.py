"""The definition of a benchmark, fixed before anything is measured, and the processor settings that it requires."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from datasets import Dataset

from modeling_scalar.processing_joint_scalar import ScalarJointProcessor
from modeling_scalar.processing_scalar import ScalarProcessor

# Frames as in the paper's table of dataset statistics; lengths, audio slices and resizing as in VAST's evaluation. A
# benchmark's own file has its differences.
PROTOCOL = MappingProxyType(
    {"num_frames": 8, "max_text_length": 40, "max_subtitle_length": 70, "num_segments": 1, "resize_mode": "squash"}
)


@dataclass(frozen=True)
class Benchmark:
    """
    The definition of a benchmark.

    Args:
        title (`str`): its name in tables.
        load (`Callable`): `load(root, split, *, on_missing, **settings)` gives the data set and the ids left out.
        splits (`tuple[str, ...]`, *optional*): its splits; `None` if the user may choose any name.
        task (`str`): "retrieval": a query is a caption of a clip. "classification": a query is the label of a class,
            and equal captions are one query.
        processing (`Mapping`): processor settings of the protocol, see [`configure_processor`].
        settings (`tuple[str, ...]`): those of "captions", "columns", "holdout" and "words_of" that
            `load` takes.
        describe (`Callable`, *optional*): `describe(root)` returns what is needed to generate the benchmark again.
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
    One split of a benchmark on this machine.

    Args:
        dataset (`Dataset`): the columns of [`~eval.benchmarks.columns.FEATURES`], further texts by the names of
            modalities, and `kind` if captions are of several kinds; a row per clip and caption.
        left_out (`list[str]`): ids of the annotation that are not in the gallery because their files are missing.
        task (`str`), processing (`Mapping`): of the [`Benchmark`].
    """

    dataset: Dataset
    left_out: list[str] = field(default_factory=list)
    task: str = "retrieval"
    processing: Mapping[str, Any] = field(default_factory=dict)


def _settings(part: Any) -> dict[str, Any]:
    """Return the arguments that create a processor, or a part of one, with their current values."""
    parameters = inspect.signature(type(part)).parameters.values()
    return {p.name: getattr(part, p.name) for p in parameters if p.kind is not p.VAR_KEYWORD}


def configure_processor(processor: ScalarProcessor, processing: Mapping[str, Any]) -> ScalarProcessor:
    """
    Create a processor with the settings of a benchmark's protocol.

    Args:
        processor ([`~modeling_scalar.ScalarProcessor`]): not changed; the result shares its tokenizer.
        processing (`Mapping`): names and values of arguments of the processor, of its image processor or of its
            feature extractor. All others keep their values.

    Returns:
        [`~modeling_scalar.ScalarProcessor`]: a new one.

    Raises:
        ValueError: a name is not a setting, or a value is out of range.
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
    configured.reader = processor.reader  # depends on the machine, not on a protocol
    return configured


__all__ = ["PROTOCOL", "Benchmark", "Split", "configure_processor"]
