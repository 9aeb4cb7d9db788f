"""The outputs of the frozen towers, computed once and read in training instead of the files:

    python -m scalar_retrieval.trainer.cache_features

With frozen vision and audio towers, most of a step repeats what earlier epochs computed. Stored are, for three towers,
the pooled vectors and tokens of the clips; for a joint encoder, the soft tokens that its trunk reads and their token
sequences. `datasets` writes them in shards, each named after everything it depends on, so an interrupted command finds
the finished ones again. `features.json` is written last.

Limits: training from files draws new frames, audio segments and crops in every epoch, while a folder of features holds
k views and epoch e uses view e modulo k. Dropout inside the frozen towers is off; the paper's have none. Later changes
of the files are not detected.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import datasets
import pyarrow as pa
import torch
import typer
from datasets.exceptions import DatasetGenerationError
from peft import PeftModel
from torch.nn.utils.rnn import pad_sequence
from typer import Option

from scalar_retrieval.commands.errors import user_errors
from scalar_retrieval.commands.options import Holdout, Plugins, WordsOf, command_of, load_plugins
from scalar_retrieval.commands.texts import print_lines
from scalar_retrieval.eval.benchmarks.clip_rows import read_row, text_columns
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.settings import Columns, OnError
from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.embedding import in_background
from scalar_retrieval.gallery.store.files import read_json, write_json
from scalar_retrieval.gallery.store.provenance import versions
from scalar_retrieval.modeling_scalar import ScalarJointConfig, ScalarProcessor, default_device
from scalar_retrieval.modeling_scalar.modalities_scalar import kind_of
from scalar_retrieval.modeling_scalar.processing_scalar import scatter
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel

from .data import ClipDataset, Examples, ScalarDataCollator
from .identity import digest, processor_settings, rows_sha256, settings_of, tensors_sha256
from .lora import without_adapter
from .towers import towers_of

logger = logging.getLogger(__name__)

DESCRIPTION = "features.json"
"""What the features were computed from, and their Arrow files in order. Its presence marks a folder as finished."""

_COMMAND = "python -m scalar_retrieval.trainer.cache_features"
_PER_SHARD = 1024  # clips, which a kill may lose
_READERS = 2  # threads that read batches ahead

_POOLED = ("video_pooled", "audio_pooled")
_STATES = ("video_states", "audio_states")
_TOKENS = ("video_soft_tokens", "audio_soft_tokens")
_SEQUENCES = ("video_input_ids", "audio_input_ids")
_CHECKED = {
    "towers": "the vision and audio towers (weights, configuration or pooling)",
    "processor": "the settings of the image processor, the feature extractor or the frames in training",
    "rows": "the clips, their files or texts, or their order",
}


# What features depend on ---------------------------------------------------------------------------------------------


def _towers_sha256(model: ScalarRetrievalModel) -> str:
    # The settings of both towers: their pooling and configuration.
    config = model.config
    settings = []
    if isinstance(config, ScalarJointConfig):
        config = config.backbone_config
    else:
        settings = [config.vision_pooling, config.audio_pooling]
    for part in (config.vision_config, config.audio_config):
        settings.append(part and settings_of(part))
    # Their weights.
    weights = {}
    for tower in towers_of(model).values():
        for part, module in tower.parts(model).items():
            for name, value in sorted(module.state_dict().items()):
                weights[f"{part}.{name}"] = value
    return tensors_sha256(weights, digest(settings))


def _rows_sha256(rows: datasets.Dataset, modalities: Sequence[str]) -> str:
    columns = [rows["video_id"]]
    for path_column in ("video_path", "audio_path"):
        names = []
        for path in rows[path_column]:
            names.append(path and Path(path).name)
        columns.append(names)
    for name in ("subtitle", *text_columns(rows.column_names, modalities)):
        columns.append(rows[name])
    return rows_sha256(*columns)


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


# Computing -----------------------------------------------------------------------------------------------------------


def _columns(is_joint: bool, with_states: bool, dtype: str) -> datasets.Features:
    """The columns, named like the model's arguments; null where the clip lacks the modality."""
    vector = datasets.List(datasets.Value(dtype))
    columns = {"presence": datasets.List(datasets.Value("bool"))}
    if is_joint:
        columns |= dict.fromkeys(_SEQUENCES, datasets.List(datasets.Value("int32")))
        columns |= dict.fromkeys(_TOKENS, datasets.List(vector))
    else:
        columns |= dict.fromkeys(_POOLED, vector)
        if with_states:  # (frames or segments, tokens, dim)
            columns |= dict.fromkeys(_STATES, datasets.List(datasets.List(vector)))
    return datasets.Features(columns)


@torch.no_grad()
def _tower_features(
    model: ScalarRetrievalModel, batch: dict[str, torch.Tensor], with_states: bool, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    # The inputs of both towers, of which a batch may lack some.
    inputs = {}
    for tower in towers_of(model).values():
        for name in tower.inputs:
            if name in batch:
                inputs[name] = batch[name].to(model.device)
    if not inputs:  # the clips have only texts
        return {}
    inputs["modality_mask"] = batch["modality_mask"].to(model.device)
    # A value beyond the range of float16 would become infinite.
    features = {}
    for name, value in model.get_tower_features(**inputs, with_states=with_states).items():
        features[name] = value.to(dtype).cpu()
        if not features[name].isfinite().all():
            raise ValueError(f"Some `{name}` are not finite in {dtype}. Use float32, or check the model's weights.")
    return features


def _compute(
    model: ScalarRetrievalModel,
    dataset: ClipDataset,
    clips: range,
    columns: datasets.Features,
    with_states: bool,
    dtype: torch.dtype,
    batch_size: int,
) -> Iterator[dict[str, Any]]:
    """Yield the features of consecutive clips, in the view of the data set's epoch."""
    collate = ScalarDataCollator(dataset.processor)
    lock = Lock()

    def read(indices: range) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
        examples = [dataset[index] for index in indices]
        with lock:  # fast tokenizers fail when two threads set their padding at once
            return examples, collate(examples)

    # Threads read the next batches while the towers compute this one.
    batches = [clips[start : start + batch_size] for start in range(0, len(clips), batch_size)]
    for examples, batch in in_background(read, batches, _READERS):
        features = _tower_features(model, batch, with_states, dtype)
        # One row per clip, with the columns of the modalities that it has.
        for index in range(len(examples)):
            row = dict.fromkeys(columns)
            row["presence"] = batch["modality_mask"][index].tolist()
            present = dict(zip(model.config.modalities, row["presence"], strict=True))
            for name, value in features.items():
                modality = name.partition("_")[0]
                if not present[modality]:
                    continue
                row[name] = value[index].numpy()
                if name in _TOKENS:  # without padding: as many soft tokens as the sequence has placeholders
                    mask = batch[f"{modality}_attention_mask"][index].bool()
                    sequence = batch[f"{modality}_input_ids"][index][mask]
                    placeholder = getattr(model.config.backbone_config, f"{modality}_token_id")
                    row[name] = row[name][: int((sequence == placeholder).sum())]
                    row[f"{modality}_input_ids"] = sequence.numpy()
            yield row


def cache_features(
    folder: str | os.PathLike,
    rows: datasets.Dataset,
    model: ScalarRetrievalModel,
    processor: ScalarProcessor,
    views: int = 1,
    seed: int = 50,
    dtype: str = "float16",
    with_states: bool = True,
    batch_size: int = 32,
) -> None:
    """
    Compute and store the outputs of the vision and audio towers for every row of a data set.

    View v of a row has the frames, audio segments and crops that epoch v of a run with this seed draws. An interrupted
    call computes only the shards that were not finished.

    Args:
        folder (`str`): The output folder, created if needed.
        rows (`datasets.Dataset`): The rows of a benchmark.
        model ([`ScalarModel`] or [`ScalarJointModel`]): The model, which is put into evaluation mode.
        processor ([`ScalarProcessor`]): The processor that reads the files, in training mode.
        views (`int`): The number of views per clip.
        seed (`int`): The seed of the draws.
        dtype (`str`): The precision of the files, `"float16"` or `"float32"`. The model computes in its own.
        with_states (`bool`): Whether to store the towers' tokens. Matching needs them; they take most of the space.
        batch_size (`int`): Clips per forward pass. Affects speed and memory; results change by rounding only.

    Raises:
        ValueError: If the folder holds other features, or a clip cannot be read.
        FileNotFoundError: If a file does not exist.
    """
    # A folder holds one kind of features.
    folder = Path(folder).resolve()  # as `datasets` names its files
    identity = {
        "sha256": checksums(model, processor, rows),
        "num_rows": len(rows),
        "seed": seed,
        "views": views,
        "dtype": dtype,
        "with_states": with_states,
        "on_error": processor.reader.on_error,
    }
    finished = folder / DESCRIPTION
    if finished.is_file():
        before = read_json(finished)
        different = sorted(name for name in identity if before.get(name) != identity[name])
        if different:
            raise ValueError(
                f"{folder} holds other features: {different} differ. Remove it, or choose another folder."
            )
    # Dropout would make features random.
    model.eval()
    dataset = ClipDataset(rows, processor, seed)
    columns = _columns(isinstance(model.config, ScalarJointConfig), with_states, dtype)
    # `datasets` takes a shard of the same fingerprint from the folder; one that was interrupted has no valid name.
    fingerprint = digest(identity)[:32]
    shards = []
    for view in range(views):
        dataset.set_epoch(view)
        for start in range(0, len(rows), _PER_SHARD):
            clips = range(len(rows))[start : start + _PER_SHARD]
            settings = (columns, with_states, getattr(torch, dtype), batch_size)
            logger.info("view %d of %d: clips %d to %d of %d", view + 1, views, start, clips[-1], len(rows))
            try:
                shard = datasets.Dataset.from_generator(
                    partial(_compute, model, dataset, clips, *settings),
                    features=columns,
                    cache_dir=str(folder),
                    fingerprint=f"{fingerprint}-{view}-{start}",
                    writer_batch_size=batch_size,
                )
            except DatasetGenerationError as error:
                raise (error.__cause__ or error) from None
            shards.append(shard)
    # The description is written last: it marks the folder as finished.
    files = []
    for shard in shards:
        for file in shard.cache_files:
            files.append(str(Path(file["filename"]).relative_to(folder)))
    write_json(identity | {"files": files, "versions": versions()}, finished)


# Training ------------------------------------------------------------------------------------------------------------


class FeatureDataset(Examples):
    """
    Training examples read from a folder of features, instead of [`~scalar_retrieval.trainer.data.ClipDataset`].

    An example is `{"caption", "index", "presence"}`, the features of its clip, named like the model's arguments, and
    `"texts"`, a clip with only its text modalities.

    Args:
        folder (`str`): The output folder of `python -m scalar_retrieval.trainer.cache_features`.
        rows (`datasets.Dataset`): The rows the features were computed from.
        model ([`ScalarModel`], [`ScalarJointModel`] or its PEFT model): The model to train, with its trainable
            parameters already chosen.
        processor ([`ScalarProcessor`]): The model's processor.

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
    ):
        # The folder must be finished.
        folder = Path(folder)
        if not (folder / DESCRIPTION).is_file():
            raise FileNotFoundError(
                f"There are no finished features in {folder}. Compute them with `{_COMMAND}`; an interrupted run "
                "resumes with the same command."
            )
        description = self.description = read_json(folder / DESCRIPTION)
        # Training must not change what the features were computed with.
        model = without_adapter(model)
        for tower in towers_of(model).values():
            if not tower.is_frozen(model):
                raise ValueError(
                    f"The {tower.modules[0]} must be frozen to train from features, but has trainable parameters. "
                    "Use the adapter 'paper', for a joint encoder 'trunk', or train from the files."
                )
        # They must be of this model, this processor and these rows.
        now = checksums(model, processor, rows)
        before = description["sha256"]
        different = [text for name, text in _CHECKED.items() if before[name] != now[name]]
        if different:
            raise ValueError(
                f"The features in {folder} do not fit this run. These differ: {'; '.join(different)}. "
                f"Compute them again with `{_COMMAND}`."
            )
        super().__init__(rows)
        self.processor = sandboxed(processor, on_error=description["on_error"])
        self.collator = FeatureCollator(processor)
        self.num_views = description["views"]
        shards = []
        for name in description["files"]:
            shards.append(datasets.Dataset.from_file(str(folder / name)))
        self._table = datasets.concatenate_datasets(shards).with_format("arrow")

    def identity(self) -> dict[str, Any]:
        """Add the seed, number and precision of the views."""
        views = [self.description[name] for name in ("seed", "views", "dtype")]
        return super().identity() | {"use of stored features": True, "views of stored features": views}

    def __getitem__(self, index: int) -> dict[str, Any]:
        # The features of the clip in the view of this epoch.
        row = self.rows[index]
        view = self.epoch % self.num_views
        stored = self._table[view * len(self) + index]
        present = stored["presence"][0].as_py()
        example = {"caption": row["caption"], "index": index, "presence": torch.tensor(present)}
        for name in stored.column_names:
            if name in (*_POOLED, *_STATES, *_TOKENS, *_SEQUENCES) and stored[name][0].is_valid:
                example[name] = _tensor(stored[name][0].values)
        # Its texts, which are encoded in each step.
        for name, is_present in zip(self.processor.modalities, present, strict=True):
            if is_present and kind_of(name) == "text":
                text_alone = row | {"video_path": None, "audio_path": None}
                example["texts"] = read_row(self.processor, text_alone)
                break
        return example


def _tensor(values: pa.Array) -> torch.Tensor:
    """The tensor of nested lists that have equal lengths; copied, because the files are mapped read-only."""
    shape = [len(values)]
    while pa.types.is_list(values.type):
        num_lists = len(values)
        values = values.flatten()
        shape.append(len(values) // num_lists)
    return torch.from_numpy(values.to_numpy().copy()).reshape(shape)


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
        # The captions.
        tokenizer = self.processor.tokenizer
        batch = dict(self.processor(text=[example["caption"] for example in examples]))
        batch["modality_mask"] = torch.stack([example["presence"] for example in examples])
        batch["clip_index"] = torch.tensor([example["index"] for example in examples])
        presence = dict(zip(self.processor.modalities, batch["modality_mask"].T, strict=True))
        # Texts are encoded in each step, because the text tower is trained.
        texts = [example["texts"] for example in examples if "texts" in example]
        if texts:
            has_texts = torch.tensor(["texts" in example for example in examples])
            for name, value in self.processor(clips=texts).items():
                if name.endswith("_input_ids"):
                    batch[name] = scatter(has_texts, value, tokenizer.pad_token_id)
                elif name.endswith("_attention_mask"):
                    batch[name] = scatter(has_texts, value)
        # Features: those of the clips that have the modality are padded to the longest, then put at their rows.
        for name in (*_POOLED, *_STATES, *_TOKENS, *_SEQUENCES):
            values = [example[name] for example in examples if name in example]
            if not values:
                continue
            present = presence[name.partition("_")[0]]
            if name in _SEQUENCES:
                masks = pad_sequence([torch.ones_like(row) for row in values], True, 0, tokenizer.padding_side)
                batch[name.replace("input_ids", "attention_mask")] = scatter(present, masks.long())
                ids = pad_sequence(values, True, tokenizer.pad_token_id, tokenizer.padding_side)
                batch[name] = scatter(present, ids.long(), tokenizer.pad_token_id)
            else:
                batch[name] = scatter(present, pad_sequence(values, batch_first=True))
        return batch


# Command -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeaturesConfig:
    """Settings of the command, see [`cache_features`]."""

    model: Annotated[str, Option(help="Folder or Hub id of the base model.")]
    benchmark: Annotated[str, Option(help="Name of the benchmark, such as miniature.")]
    root: Annotated[Path, Option(help="Folder of the benchmark.")]
    output: Annotated[Path, Option(help="Output folder.")]
    split: Annotated[str, Option(help="Training split.")] = "train"
    plugins: Plugins = ()
    columns: Columns = None
    holdout: Holdout = None
    words_of: WordsOf = None
    views: Annotated[int, Option(min=1, help="Views per clip: random frames, audio segments and crops.")] = 1
    states: Annotated[bool, Option(help="Store the towers' tokens, which matching needs.")] = True
    on_error: OnError = "raise"


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@command_of(app, FeaturesConfig)
def main(config: FeaturesConfig) -> None:
    """Precompute the outputs of the frozen vision and audio towers for the training clips; train with --features.

    At the paper's sizes a clip takes 1.8 MB per view in float16, about 250 GB for the 136,674 clips. With --no-states,
    for training without matching, it takes 4.4 kB. Training from files draws new frames, audio segments and crops in
    every epoch; training from features cycles through the stored views, so with --views 1 the frames are always the
    same. If interrupted, run the same command to resume.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with user_errors():
        from scalar_retrieval.modeling_scalar import load_model

        # Plugins may define the benchmark.
        load_plugins(config.plugins)
        network, processor = load_model(config.model, dtype=torch.float32)
        rows = load_benchmark(
            config.benchmark,
            config.root,
            config.split,
            columns=config.columns,
            holdout=config.holdout,
            words_of=config.words_of,
        )
        cache_features(
            config.output,
            rows,
            network.to(default_device()),
            sandboxed(processor, on_error=config.on_error),
            views=config.views,
            with_states=config.states,
        )
        print_lines(f"Stored the features in {config.output}: {config.views} views of each clip.")


__all__ = ["FeatureCollator", "FeatureDataset", "cache_features", "checksums"]

if __name__ == "__main__":
    app(prog_name=_COMMAND)
