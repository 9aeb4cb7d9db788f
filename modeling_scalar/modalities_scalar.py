"""What is known of modalities and of the encoders that embed them without torch, which takes a second to load."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

PAPER_MODALITIES = ("video", "audio", "subtitle")
"""The modalities of the paper's model, in its order."""

CALIBRATION = {"modality_scale": 1.0, "modality_offset": 0.0}
"""The options of [`ScoreOptions`] and configurations that calibrate the cosines of each modality, with defaults."""

Slice = Sequence[int]
"""The start and the stop of the components of a query that the vectors of a modality have."""

LARGEST = 1e6
"""The maximum of scales and offsets; beyond it, cosines of different scales lose all digits."""

_SMALLEST = 2.0**-126  # of scales; dividing float32 by less gives infinity


def kind_of(modality: str) -> str:
    """Return the kind of a modality by its name: `"video"` and `"audio"` are their own, others `"text"`."""
    return modality if modality in ("video", "audio") else "text"


def check_calibration(
    modality_scale: Iterable[float] | None = None,
    modality_offset: Iterable[float] | None = None,
    modalities: Sequence[str] | int | None = None,
) -> None:
    """Raise a ValueError unless each is None or finite numbers, one for each of `modalities` (names or their number)
    if given, and scales are positive."""
    number = None
    scope = ""
    if modalities is not None:
        number = modalities if isinstance(modalities, int) else len(modalities)
        scope = f" of {modalities}"
    for name, given, kind, lowest in (
        ("modality_scale", modality_scale, "positive", _SMALLEST),
        ("modality_offset", modality_offset, "finite", -LARGEST),
    ):
        if given is None:
            continue
        # A NaN is within no limits.
        are_right = False
        with suppress(TypeError):  # a single number, or something else than numbers
            values = list(given)
            are_right = getattr(given, "ndim", 1) == 1 and number in (None, len(values))
            are_right = are_right and all(lowest <= value <= LARGEST for value in values)
        if not are_right:
            raise ValueError(
                f"`{name}` must be a {kind} number of at most {LARGEST:g} for each modality{scope}, got {given!r:.80}."
            )


def check_slices(slices: Sequence[Sequence[int]], modalities: Sequence[str], dim: int) -> None:
    """Raise a ValueError unless there is a slice `[start, stop]` of a query's at most `dim` components for each
    modality, and any two of them are equal or disjoint."""
    are_right = len(slices) == len(modalities)
    end = 0
    for ends in sorted(set(map(tuple, slices))):
        are_right = are_right and len(ends) == 2 and end <= ends[0] < ends[1]
        end = max(ends, default=0)
    if not are_right or end > dim:
        raise ValueError(
            f"`modality_slices` must be a start and a stop, of at most {dim} components of a query, for each of "
            f"{list(modalities)}, any two equal or disjoint, got {slices!r:.200}."
        )


@dataclass(frozen=True)
class JointFamily:
    """
    Facts about a family of joint encoders that transformers does not expose in a common way.

    Args:
        towers (`dict`): The part of the configuration that only one modality needs. Without it the modality is left
            out and none of its weights are loaded.
        adapted (`dict`): Default targets of adapters, the query and value projections, as patterns of module names
            below the encoder: those of the shared trunk (`"trunk"`) and of single modalities.
        has_float16 (`bool`): Whether float16 has enough range for its activations.
    """

    towers: dict[str, str]
    adapted: dict[str, str]
    has_float16: bool = True


FAMILIES = {
    "embedding_gemma2": JointFamily(
        towers={"video": "vision_config", "audio": "audio_config"},
        adapted={
            "trunk": r"language_model\.layers\.\d+\.self_attn\.(q|v)_proj",
            # The layers of the towers clip their values and wrap the linear layer that can be adapted.
            "video": r"vision_tower\.encoder\.layers\.\d+\.self_attn\.(q|v)_proj\.linear",
            "audio": r"audio_tower\.layers\.\d+\.self_attn\.(q|v)_proj\.linear",
        },
        has_float16=False,
    ),
}
"""The families supported by [`ScalarJointModel`], by the `model_type` of the encoder."""


__all__ = [
    "CALIBRATION", "FAMILIES", "JointFamily", "LARGEST", "PAPER_MODALITIES", "Slice", "check_calibration",
    "check_slices", "kind_of",
]  # fmt: skip
