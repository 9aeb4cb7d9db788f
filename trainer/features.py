"""Training examples from the outputs of the frozen towers, stored by `python -m trainer.cache_features`.

With frozen vision and audio towers, most of a step repeats what earlier epochs computed. The features are read memory-
mapped from a folder instead: for three towers the pooled vectors and tokens of the clips, for a joint encoder the soft
tokens that its trunk reads and their token sequences. They are a table of `datasets`, `features.arrow`, with one row
per view of each clip; `features.json` describes it.

Limits: training from files draws new frames, audio segments and crops in every epoch, while a folder of features holds
k views and epoch e uses view e modulo k. Dropout inside the frozen towers is off; the paper's have none. Later changes
of the files are not detected.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import torch
from peft import PeftModel
from torch.nn.utils.rnn import pad_sequence

from eval.benchmarks.rows import read_row, text_columns
from gallery.files import read_json
from modeling_scalar import ScalarJointConfig, ScalarProcessor
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from modeling_scalar.scores_scalar import kind_of

from .data import Examples
from .identity import digest, processor_settings, settings_of, tensors_sha256
from .lora import without_adapter
from .towers import towers_of

logger = logging.getLogger(__name__)

TABLE, DESCRIPTION = "features.arrow", "features.json"
"""The files of a folder: a table with one row per view of each clip, all views of the first clip before those of the
next; and a description of its origin, the shapes of its lists, and how many of its rows and bytes are valid."""
RAGGED = {f"{name}_{kind}": name for name in ("video", "audio") for kind in ("soft_tokens", "input_ids")}
"""The features of a joint encoder; the number of tokens depends on the clip's video and audio."""
FEATURES = {f"{name}_{kind}": name for name in ("video", "audio") for kind in ("pooled", "states")} | RAGGED
"""The columns, named like the model's arguments, with their modality. Each holds flat lists, or null where the clip
lacks the modality."""
VERSION = 2

_DESCRIBED = {"sha256": dict, "seed": int, "views": int, "on_error": str, "num_rows": int}
_DESCRIBED |= {"rows_done": int, "num_bytes": int, "problems": list, "shapes": dict}
_CHECKED = {
    "towers": "the vision and audio towers (weights, configuration or pooling)",
    "processor": "the settings of the image processor, the feature extractor or the frames in training",
    "rows": "the clips, their files or texts, or their order",
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


def _rows_sha256(rows: datasets.Dataset, modalities: Sequence[str]) -> str:
    def file_names(column: str) -> list[str | None]:
        return [None if path is None else Path(path).name for path in rows[column]]

    texts = [rows[name] for name in ("subtitle", *text_columns(rows.column_names, modalities))]
    columns = rows["video_id"], file_names("video_path"), file_names("audio_path"), *texts
    return digest([list(row) for row in zip(*columns, strict=True)])


def checksums(model: ScalarRetrievalModel, processor: ScalarProcessor, rows: datasets.Dataset) -> dict[str, str]:
    """
    Return the SHA-256 of everything that features depend on except the content of the files.

    Returns:
        `dict`: SHA-256 of `towers` (configuration, pooling and weights of the vision and audio towers),
        `processor` (all settings except those of texts and of testing) and `rows` (identifiers, file names and texts,
        in order; the folder of the files does not matter).
    """
    processed = digest(processor_settings(processor))
    return {"towers": _towers_sha256(model), "processor": processed, "rows": _rows_sha256(rows, processor.modalities)}


class FeatureDataset(Examples):
    """
    Training examples read from a folder of features, instead of [`~trainer.data.ClipDataset`].

    An example is `{"caption", "index", "presence"}`, the [`FEATURES`] of its clip, and `"texts"`, a clip with only
    its text modalities.

    Args:
        folder (`str`): The output folder of `python -m trainer.cache_features`.
        rows (`datasets.Dataset`): The rows the features were computed from.
        model ([`ScalarModel`], [`ScalarJointModel`] or its PEFT model): The model to train, with its trainable
            parameters already chosen.
        processor ([`ScalarProcessor`]): The model's processor.
        seed (`int`, *optional*): The seed of the run. If the views were drawn with another seed, this is logged.

    Raises:
        FileNotFoundError: If the folder has no finished features.
        ValueError: If the model trains its vision or audio tower, or the features were computed with other weights,
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
        description = self.description = read_description(folder)
        if description is None or description["rows_done"] < description["num_rows"]:
            raise FileNotFoundError(
                f"There are no finished features in {folder}. Compute them with `python -m trainer.cache_features`; "
                "an interrupted run resumes with the same command."
            )
        model = without_adapter(model)
        for tower in towers_of(model).values():
            if not tower.is_frozen(model):
                frozen = "trunk" if isinstance(model.config, ScalarJointConfig) else "paper"
                raise ValueError(
                    f"The {tower.modules[0]} must be frozen to train from features, but has trainable parameters. "
                    f"Use the adapter {frozen!r}, or train from the files."
                )
        now = checksums(model, processor, rows)
        different = [text for name, text in _CHECKED.items() if description["sha256"].get(name) != now[name]]
        if different:
            raise ValueError(
                f"The features in {folder} do not fit this run. These differ: {'; '.join(different)}. "
                "Compute them again with `python -m trainer.cache_features`."
            )
        if seed is not None and seed != description["seed"]:
            logger.info("The views in %s were drawn with seed %d, not %d.", folder, description["seed"], seed)
        super().__init__(rows)
        self.processor = processor
        self.on_error = description["on_error"]
        self.num_views = description["views"]
        self._table = _open(folder, description).with_format("arrow")

    def identity(self) -> dict[str, Any]:
        """Add the seed, number and precision of the views."""
        views = [self.description[name] for name in ("seed", "views", "dtype")]
        return super().identity() | {"use of stored features": True, "views of stored features": views}

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, stored = self.rows[index], self._table[index * self.num_views + self.epoch % self.num_views]
        present = stored["presence"][0].as_py()
        example = {"caption": row["caption"], "index": index, "presence": torch.tensor(present)}
        for name, shape in self.description["shapes"].items():
            values = stored[name][0]
            if values.is_valid:  # a copy: the map is read-only
                example[name] = torch.from_numpy(values.values.to_numpy().reshape(shape).copy())
        if any(
            here and kind_of(name) == "text" for name, here in zip(self.processor.modalities, present, strict=True)
        ):
            text_alone = row | {"video_path": None, "audio_path": None}
            example["texts"] = read_row(self.processor, text_alone, self.on_error)
        return example


def read_description(folder: Path) -> dict[str, Any] | None:
    """Return the description of a folder of features, finished or not; None if it has none."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    description, again = read_json(path), f"Remove {folder} and compute them again."
    if description.get("version") != VERSION:
        found = description.get("version")
        raise ValueError(f"The features in {folder} must have version {VERSION}, got {found!r}. {again}")
    whole = all(isinstance(description.get(name), kind) for name, kind in _DESCRIBED.items())
    if not whole or description["views"] < 1:
        raise ValueError(f"{path} is not a valid description of features. {again}")
    return description


def _open(folder: Path, description: dict[str, Any]) -> datasets.Dataset:
    path, expected = folder / TABLE, description["num_bytes"]
    again = f"Remove {folder} and compute the features again."
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {again}")
    if path.stat().st_size != expected:
        raise ValueError(f"{path} must have {expected} bytes, got {path.stat().st_size}. {again}")
    try:
        table = datasets.Dataset.from_file(str(path))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} is damaged ({error}). {again}") from error
    rows, columns = description["num_rows"] * description["views"], ["presence", *description["shapes"]]
    if (len(table), table.column_names) != (rows, columns):
        raise ValueError(
            f"{path} must have {rows} rows of {columns}, got {len(table)} of {table.column_names}. {again}"
        )
    return table


@dataclass
class FeatureCollator:
    """
    Turn examples of [`FeatureDataset`] into the arguments of the model, and `clip_index`.

    As with the processor, rows of absent modalities are zeros and padding, and keys of modalities that no clip of the
    batch has are left out.
    """

    processor: ScalarProcessor

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate examples."""
        batch = dict(self.processor(text=[example["caption"] for example in examples]))
        batch["modality_mask"] = torch.stack([example["presence"] for example in examples])
        has = dict(zip(self.processor.modalities, batch["modality_mask"].T, strict=True))
        for text in filter(lambda name: kind_of(name) == "text", has):
            clips = [example["texts"] for example, here in zip(examples, has[text], strict=True) if here]
            if clips:
                tokens, pad = self.processor(clips=clips), self.processor.tokenizer.pad_token_id
                for key, fill in ((f"{text}_input_ids", pad), (f"{text}_attention_mask", 0)):
                    batch[key] = _scatter(tokens[key], has[text], fill)
        for name, modality in FEATURES.items():
            values = [example[name] for example in examples if name in example]
            if not values:
                continue
            present = has[modality]
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
    "RAGGED",
    "TABLE",
    "VERSION",
    "FeatureCollator",
    "FeatureDataset",
    "checksums",
    "read_description",
]
