"""Training examples from the outputs of the frozen towers, which `python -m trainer.cache_features` stored.

Where the vision and audio towers are frozen, most of a step computes what an earlier epoch has computed already. Read
from a folder instead, it comes memory-mapped: of three towers the pooled vectors and tokens of the clips, of a joint
encoder the soft tokens that its trunk reads, and the sequences they stand in.

What is given up: training from files draws new frames, audio segments and crops of a clip in every epoch; a folder of
features holds k such views, and epoch e sees view e modulo k. Dropout inside the frozen towers is off; the paper's
have none. A change of the files after the features were computed goes unnoticed.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from peft import PeftModel
from torch.nn.utils.rnn import pad_sequence

from eval.benchmarks.rows import read_row
from gallery.files import read_json
from modeling_scalar import Clip, ScalarJointConfig, ScalarProcessor
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel

from .checksums import digest, processor_settings, settings_of, tensors_sha256
from .data import Examples
from .lora import without_adapter
from .towers import towers_of

logger = logging.getLogger(__name__)

DESCRIPTION = "features.json"
"""The file written last, which tells what the folder holds."""
RAGGED = {"video_soft_tokens": 0, "video_input_ids": 0, "audio_soft_tokens": 1, "audio_input_ids": 1}
"""Those of a joint encoder: how many tokens a clip has depends on its pictures and its sound. An array holds the
tokens of all clips, one view after the other; how many there are stands in an array of the same name and `LENGTHS`."""
FEATURES = {"video_pooled": 0, "video_states": 0, "audio_pooled": 1, "audio_states": 1, **RAGGED}
"""The arrays of a folder, named as the arguments of the model, with the place of their modality in `MODALITIES`."""
LENGTHS = "_lengths"
VERSION = 1

_CHECKED = {
    "towers": "the vision and audio towers (weights, configuration or pooling)",
    "processor": "the settings of the image processor, the feature extractor or the frames in training",
    "rows": "the clips, their files or subtitles, or their order",
}


def _towers_sha256(model: ScalarRetrievalModel) -> str:
    config = model.config
    if isinstance(config, ScalarJointConfig):
        settings, config = [], config.backbone_config
    else:
        settings = [config.vision_pooling, config.audio_pooling]
    settings += [part and settings_of(part) for part in (config.vision_config, config.audio_config)]
    towers = {
        f"{part}.{name}": value
        for tower in towers_of(model).values()
        for part, module in tower.parts(model).items()
        for name, value in sorted(module.state_dict().items())
    }
    return tensors_sha256(towers, digest(settings))


def _rows_sha256(rows: datasets.Dataset) -> str:
    def file_names(column: str) -> list[str | None]:
        return [None if path is None else Path(path).name for path in rows[column]]

    columns = rows["video_id"], file_names("video_path"), file_names("audio_path"), rows["subtitle"]
    return digest([list(row) for row in zip(*columns, strict=True)])


def checksums(model: ScalarRetrievalModel, processor: ScalarProcessor, rows: datasets.Dataset) -> dict[str, str]:
    """
    Return the SHA-256 of everything that features depend on besides the content of the files.

    Returns:
        `dict`: of `towers` (configuration, pooling and weights of the vision and audio towers),
        `processor` (all settings but those of texts and of testing) and `rows` (identifiers, names of files, and
        subtitles, in their order; where the files lie does not matter).
    """
    processed = digest(processor_settings(processor))
    return {"towers": _towers_sha256(model), "processor": processed, "rows": _rows_sha256(rows)}


class FeatureDataset(Examples):
    """
    Training examples read from a folder of features, in place of [`~trainer.data.ClipDataset`].

    An example is `{"caption", "index", "presence"}` with what its clip has of [`FEATURES`], and `"subtitle"`.

    Args:
        folder (`str`): what `python -m trainer.cache_features` wrote.
        rows (`datasets.Dataset`): the rows the features were computed from.
        model ([`ScalarModel`], [`ScalarJointModel`] or its PEFT model): the model to train, its trainable parameters
            already chosen.
        processor ([`ScalarProcessor`]): its processor.
        seed (`int`, *optional*): of the run. Views keep the seed they were drawn with; if it is another, that is
            logged.

    Raises:
        FileNotFoundError: there are no finished features in the folder.
        ValueError: the model trains its vision or audio tower, or the features were computed with other weights,
            another processor or from other rows.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        rows: datasets.Dataset,
        model: ScalarRetrievalModel | PeftModel,
        processor: ScalarProcessor,
        seed: int | None = None,
    ):
        folder = Path(folder)
        self.description = _read_description(folder)
        if self.description is None:
            raise FileNotFoundError(
                f"There are no finished features in {folder}. Compute them with `python -m trainer.cache_features`; "
                "if it is interrupted, the same command resumes."
            )
        model = without_adapter(model)
        for tower in towers_of(model).values():
            if not tower.is_frozen(model):
                frozen = "trunk" if isinstance(model.config, ScalarJointConfig) else "paper"
                raise ValueError(
                    f"The {tower.modules[0]} has trainable parameters, so its output changes in training. Use the "
                    f"adapter {frozen!r}, which freezes it, or train from the files."
                )
        description = self.description
        now = checksums(model, processor, rows)
        different = [text for name, text in _CHECKED.items() if description["sha256"][name] != now[name]]
        if different:
            raise ValueError(
                f"The features in {folder} were computed from something else. What differs: {'; '.join(different)}. "
                "Compute them again with `python -m trainer.cache_features`."
            )
        if seed is not None and seed != description["seed"]:
            logger.info("The views in %s were drawn with seed %d, not %d.", folder, description["seed"], seed)
        super().__init__(rows)
        self.processor = processor
        self.on_error = description["on_error"]
        self.num_views = description["views"]
        self._presence = _open(folder, "presence", description)[:]  # (rows, 3)
        self._places = self._presence.cumsum(axis=0) - 1  # (rows, 3): row of a clip among those with the modality
        self._arrays = {name: _open(folder, name, description) for name in description["arrays"] if name in FEATURES}
        self._ends = {  # of the tokens of each view of each clip
            name: np.cumsum(_open(folder, name + LENGTHS, description)[:]) for name in RAGGED if name in self._arrays
        }

    def identity(self) -> dict[str, Any]:
        """Add which views there are."""
        views = [self.description[name] for name in ("seed", "views", "dtype")]
        return super().identity() | {"use of stored features": True, "views of stored features": views}

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, present = self.rows[index], self._presence[index]
        example = {"caption": row["caption"], "index": index, "presence": torch.from_numpy(present.copy())}
        for name, array in self._arrays.items():
            modality = FEATURES[name]
            if present[modality]:
                place, view = self._places[index, modality], self.epoch % self.num_views
                features = self._tokens(name, place * self.num_views + view) if name in RAGGED else array[place, view]
                example[name] = torch.from_numpy(np.array(features))  # a copy: the map is read-only
        if present[MODALITIES.index("subtitle")]:
            text_alone = row | {"video_path": None, "audio_path": None}
            example["subtitle"] = read_row(self.processor, text_alone, self.on_error).subtitle
        return example

    def _tokens(self, name: str, place: int) -> np.ndarray:
        ends = self._ends[name]
        return self._arrays[name][ends[place - 1] if place else 0 : ends[place]]


def _read_description(folder: Path) -> dict[str, Any] | None:
    """What a folder of features holds, or None if it is not finished."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    description = read_json(path)
    if description.get("version") != VERSION:
        raise ValueError(f"{folder} holds features of version {description.get('version')!r}, expected {VERSION}.")
    arrays, sums = description.get("arrays"), description.get("sha256")
    whole = isinstance(arrays, dict) and "presence" in arrays and isinstance(sums, dict) and set(_CHECKED) <= set(sums)
    whole = whole and all(isinstance(array, dict) and {"shape", "dtype"} <= set(array) for array in arrays.values())
    views, seed = description.get("views"), description.get("seed")
    whole = whole and isinstance(views, int) and views > 0 and isinstance(seed, int) and "on_error" in description
    if not whole:
        raise ValueError(f"{path} does not describe features. Remove {folder} and compute them again.")
    return description


def _open(folder: Path, name: str, description: dict[str, Any]) -> np.ndarray:
    path, expected = folder / f"{name}.npy", description["arrays"][name]
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} is missing. Remove {folder} and compute the features again.") from error
    except (EOFError, SyntaxError, TypeError, ValueError) as error:  # of NumPy's reader of headers
        raise ValueError(f"{path} is damaged ({error}). Remove {folder} and compute the features again.") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} is not an array. Remove {folder} and compute the features again.")
    if (list(array.shape), array.dtype.name) != (expected["shape"], expected["dtype"]):
        raise ValueError(
            f"{path} must hold {expected['dtype']} of shape {expected['shape']}, got {array.dtype.name} of shape "
            f"{list(array.shape)}. Remove {folder} and compute the features again."
        )
    return array


@dataclass
class FeatureCollator:
    """
    Turn examples of [`FeatureDataset`] into the arguments of the model, and `clip_index`.

    As with the processor, rows of absent modalities are zeros and padding, and a key is left out where no clip of the
    batch has the modality.
    """

    processor: ScalarProcessor

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate examples."""
        batch = dict(self.processor(text=[example["caption"] for example in examples]))
        batch["modality_mask"] = torch.stack([example["presence"] for example in examples])
        clips = [Clip(subtitle=example["subtitle"]) for example in examples if "subtitle" in example]
        if clips:
            tokens = self.processor(clips=clips)
            has_subtitle = batch["modality_mask"][:, MODALITIES.index("subtitle")]
            for key, fill in (
                ("subtitle_input_ids", self.processor.tokenizer.pad_token_id),
                ("subtitle_attention_mask", 0),
            ):
                batch[key] = _scatter(tokens[key], has_subtitle, fill)
        for name, modality in FEATURES.items():
            values = [example[name] for example in examples if name in example]
            if not values:
                continue
            present = batch["modality_mask"][:, modality]
            if name.endswith("_input_ids"):
                fill, mask = self.processor.tokenizer.pad_token_id, name.replace("input_ids", "attention_mask")
                batch[name] = _scatter(self._padded(values, fill).long(), present, fill)
                batch[mask] = _scatter(self._padded([torch.ones_like(row) for row in values], 0).long(), present, 0)
            else:
                stacked = pad_sequence(values, batch_first=True) if name in RAGGED else torch.stack(values)
                batch[name] = _scatter(stacked, present, 0)
        return batch | {"clip_index": torch.tensor([example["index"] for example in examples])}

    def _padded(self, rows: list[torch.Tensor], fill: int) -> torch.Tensor:
        return pad_sequence(rows, True, fill, self.processor.tokenizer.padding_side)


def _scatter(values: torch.Tensor, present: torch.Tensor, fill: float) -> torch.Tensor:
    full = values.new_full((len(present), *values.shape[1:]), fill)
    full[present] = values
    return full


__all__ = [
    "DESCRIPTION",
    "FEATURES",
    "LENGTHS",
    "RAGGED",
    "VERSION",
    "FeatureCollator",
    "FeatureDataset",
    "checksums",
    "digest",
    "processor_settings",
    "settings_of",
    "tensors_sha256",
]
