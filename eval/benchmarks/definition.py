"""The definition of a benchmark, fixed before anything is measured, and the processor settings that it requires."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from datasets import Dataset

if TYPE_CHECKING:
    from scalar_retrieval.modeling_scalar.processing_scalar import ScalarProcessor

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
        dataset (`Dataset`): the columns of [`~scalar_retrieval.eval.benchmarks.annotations.FEATURES`], further texts
            by the names of modalities, and `kind` if captions are of several kinds; a row per clip and caption.
        left_out (`list[str]`): ids of the annotation that are not in the gallery because their files are missing.
        task (`str`), processing (`Mapping`): of the [`Benchmark`].
    """

    dataset: Dataset
    left_out: list[str] = field(default_factory=list)
    task: str = "retrieval"
    processing: Mapping[str, Any] = field(default_factory=dict)


def _settings(part: Any) -> dict[str, Any]:
    """Return the arguments that create a processor, or a part of one, with their current values."""
    settings = {}
    for name, parameter in inspect.signature(type(part)).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            settings[name] = getattr(part, name)
    return settings


def configure_processor(processor: "ScalarProcessor", processing: Mapping[str, Any]) -> "ScalarProcessor":
    """
    Create a processor with the settings of a benchmark's protocol.

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): not changed; the result shares its
            tokenizer.
        processing (`Mapping`): names and values of arguments of the processor, of its image processor or of its
            feature extractor. All others keep their values.

    Returns:
        [`~scalar_retrieval.modeling_scalar.ScalarProcessor`]: a new one.

    Raises:
        ValueError: a name is not a setting, or a value is out of range.
    """
    if hasattr(processor, "with_protocol"):  # of a joint encoder, which settles most of a protocol itself
        return processor.with_protocol(processing)
    # The current settings of the processor and of its two parts.
    settings = _settings(processor)
    tokenizer = settings.pop("tokenizer")
    image_processor = settings.pop("image_processor")
    feature_extractor = settings.pop("feature_extractor")
    image_settings = _settings(image_processor)
    feature_settings = _settings(feature_extractor)
    names = {*settings, *image_settings, *feature_settings}
    if not names.issuperset(processing):
        raise ValueError(f"Settings of a processor are {sorted(names)}, got {sorted(set(processing) - names)}.")

    # New ones, in which the protocol's values take the place of the current ones.
    for group in (settings, image_settings, feature_settings):
        group |= {name: processing[name] for name in group if name in processing}
    configured = type(processor)(
        image_processor=type(image_processor)(**image_settings),
        feature_extractor=type(feature_extractor)(**feature_settings),
        tokenizer=tokenizer,
        **settings,
    )
    configured.reader = processor.reader  # depends on the machine, not on a protocol
    return configured


__all__ = ["PROTOCOL", "Benchmark", "Split", "configure_processor"]
