"""Rows of clips and captions, and training examples from them, in an order and with random frames that a resumed run
repeats."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any

import datasets
import numpy as np
import torch
from tqdm.auto import tqdm

from scalar_retrieval.eval.benchmarks.annotations import FEATURES, KIND, make_dataset
from scalar_retrieval.eval.benchmarks.clip_rows import group_rows, read_row, text_columns, warn_unread
from scalar_retrieval.modeling_scalar import Clip, ScalarProcessor
from scalar_retrieval.modeling_scalar.tracks_scalar import names_subtitle_file

from .draws import derived_generator
from .identity import rows_sha256

logger = logging.getLogger(__name__)

Collated = dict[str, torch.Tensor]
"""The arguments of a model for a batch."""

# Rows ----------------------------------------------------------------------------------------------------------------

COLUMNS = (
    "Each row needs a text `caption`, and of its clip at least one of `video_path` (or `video`, of type `Video`), "
    "`audio_path`, `subtitle` and further texts that the model embeds, by their names. None says that this clip lacks "
    "it. Without a column `audio_path` the sound is that of the video file; without `video_id`, rows of the same file "
    "are one clip."
)
"""The columns of the rows that a Trainer takes, for messages."""


def _completed(row: dict[str, Any], texts: Sequence[str], where: str) -> dict[str, str | None]:
    """Return a row with the columns of a benchmark."""
    # The path of the video, which a column of videos holds beside its bytes.
    video = row.get("video", row.get("video_path"))
    if isinstance(video, dict):
        if video["bytes"] is not None:
            raise ValueError(
                f"{where} holds the bytes of a video, which are not read. Write them to a file, and give its path as "
                "`video_path`."
            )
        video = video["path"]
    # What a column that is absent means.
    audio = row.get("audio_path", video)
    own = {"video_path": video, "audio_path": audio, "subtitle": row.get("subtitle")}
    video_id = row.get("video_id", video or audio)
    completed = {"video_id": video_id, "caption": row.get("caption", video_id)} | own
    for name in texts:
        completed[name] = row[name]
    for name, value in completed.items():
        if not isinstance(value, str | None):
            raise ValueError(f"{where}: {name!r} must be a text, got {value!r:.200}. {COLUMNS}")
    if video_id is None:
        raise ValueError(f"{where} names no file, so it needs a `video_id`. {COLUMNS}")
    return completed


def check_rows(rows: Any, modalities: Sequence[str], what: str, need_captions: bool = True) -> datasets.Dataset:
    """
    Check rows of clips and captions, and add the columns of a benchmark that they lack.

    Args:
        rows (`datasets.Dataset`): See [`COLUMNS`].
        modalities (`Sequence[str]`): The modalities of the model, whose further texts may be columns.
        what (`str`): The name of the rows in messages.
        need_captions (`bool`): Whether there must be captions; if not, the identifier of a clip takes their place.

    Returns:
        `datasets.Dataset`: Rows with the columns of a benchmark; those that have them already are not changed.

    Raises:
        ValueError: If they are no data set or empty, or a column or value is missing or of another type.
        FileNotFoundError: If a file does not exist; the first ten are named.
    """
    if not isinstance(rows, datasets.Dataset):
        raise ValueError(
            f"`{what}` must be a `datasets.Dataset`, got {type(rows).__name__}: batches are drawn from all rows, in "
            f"an order that can be repeated. Use `Dataset.from_list` or `.from_generator`, or one split. {COLUMNS}"
        )
    # Columns.
    names = set(rows.column_names)
    texts = text_columns(names, modalities)
    contents = names & {"video", "video_path", "audio_path", "subtitle", *texts}
    if not contents or (need_captions and "caption" not in names) or {"video", "video_path"} <= names:
        raise ValueError(f"`{what}` has the columns {rows.column_names}. {COLUMNS}")
    if not len(rows):
        raise ValueError(f"`{what}` has no rows.")
    warn_unread([name for name in rows.column_names if name != "video"], modalities)
    # Values; videos are not decoded here.
    undecoded = rows
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Video):
            undecoded = undecoded.cast_column(name, datasets.Video(decode=False))
    completed = [_completed(row, texts, f"Row {number} of `{what}`") for number, row in enumerate(undecoded)]
    if not names.issuperset(FEATURES):
        rows = make_dataset(completed)
    # Captions, and the same files and texts in all rows of a clip.
    clips, *_ = group_rows(rows, modalities=modalities)
    # Something of each clip, and its files.
    missing = []
    for clip in clips:
        files = {clip["video_path"], clip["audio_path"]} - {None}
        if names_subtitle_file(clip["subtitle"]):
            files.add(clip["subtitle"])
        if not files and not any(clip[name] for name in ("subtitle", *texts)):
            raise ValueError(f"The clip {clip['video_id']!r} of `{what}` has neither a file nor a text. {COLUMNS}")
        missing += [path for path in sorted(files) if not os.path.isfile(path)]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} files of `{what}` do not exist: {', '.join(missing[:10])}. Restore them, or leave their "
            "rows out."
        )
    return rows


# The order of examples -----------------------------------------------------------------------------------------------


def _distinct_batches(clips: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """
    Divide examples into batches in which no clip repeats, in their order as far as that allows.

    Args:
        clips (`Sequence[int]`): The clip of each example.
        sizes (`Sequence[int]`): The sizes of the batches; together at most the number of examples.

    Returns:
        `list[list[int]]`: The places of the examples in `clips`. No clip repeats in batches of one size if that is
        possible at all; a batch that would otherwise be too small repeats some.
    """
    # The examples of each clip that are in no batch yet; the clips in the order of these, and by their number.
    places: dict[int, deque[int]] = {}
    for place, clip in enumerate(clips):
        places.setdefault(clip, deque()).append(place)
    following = [(examples[0], clip) for clip, examples in places.items()]
    numbers = {clip: len(examples) for clip, examples in places.items()}
    by_number = sorted(places, key=lambda clip: -numbers[clip])
    batches = []
    for index, size in enumerate(sizes):
        left = len(sizes) - index
        batch: list[int] = []
        while len(batch) < size:  # a second time only if there are too few clips
            missing = size - len(batch)
            # Clips that have an example for each batch left must be in all of them; then the clips that come next.
            chosen: dict[int, None] = {}
            for clip in by_number:
                if numbers[clip] < left or len(chosen) == missing:
                    break
                if len(places[clip]) >= left:
                    chosen[clip] = None
            while following and len(chosen) < missing:
                place, clip = heappop(following)
                if places[clip] and places[clip][0] == place:  # not in a batch already
                    chosen[clip] = None
            for clip in chosen:
                batch.append(places[clip].popleft())
                if places[clip]:
                    heappush(following, (places[clip][0], clip))
        batches.append(batch)
    return batches


class GlobalBatchSampler(torch.utils.data.Sampler[list[int]]):
    """
    Global batches, of which each process takes a contiguous share. Each clip is in a batch once, where there are
    enough: its other captions would be wrong negatives of each other.

    The order depends only on the seed and the epoch, so a step sees the same examples on one process or on many, and
    in a resumed run.

    Args:
        clips (`torch.Tensor` of shape `(examples,)`): The number of each example's clip; see [`clips_of`].
        batch_size (`int`): The number of examples per step over all processes.
        seed (`int`): The seed of the order.
        drop_last (`bool`): Whether to drop the last, smaller batch. If not, its shares may differ by one, and the
            batch is dropped if it has fewer than `num_processes` examples.
        rank (`int`), num_processes (`int`): The share to yield.

    Raises:
        ValueError: If there is no full batch, or not one example per process.
    """

    def __init__(
        self,
        clips: torch.Tensor,
        batch_size: int,
        seed: int,
        drop_last: bool = True,
        rank: int = 0,
        num_processes: int = 1,
    ):
        self.clips = clips
        self.seed = seed
        self.rank = rank
        self.num_processes = num_processes
        self.epoch = 0
        # The last, smaller batch counts if it has an example for each process.
        full, rest = divmod(len(clips), batch_size)
        self._sizes = [batch_size] * full
        if rest >= num_processes and not drop_last:
            self._sizes.append(rest)
        if not self._sizes:
            raise ValueError(
                f"{len(clips)} training examples do not fill a batch of {batch_size}. Use a smaller "
                "`per_device_train_batch_size`, or `dataloader_drop_last: false`."
            )

    def set_epoch(self, epoch: int) -> None:
        """Draw a new order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[list[int]]:
        # A new order in each epoch, the same on all processes.
        order = torch.randperm(len(self.clips), generator=derived_generator(self.seed, self.epoch))
        for places in _distinct_batches(self.clips[order].tolist(), self._sizes):
            yield order[places].tensor_split(self.num_processes)[self.rank].tolist()


# Examples ------------------------------------------------------------------------------------------------------------


class Examples(torch.utils.data.Dataset):
    """
    Training examples, one for each row of a benchmark. Subclasses read them from files, features or a gallery, and
    have a `collator`, which makes a batch of a list of them.

    Args:
        rows (`datasets.Dataset`): The rows of a benchmark.
    """

    collator: Callable[[list], Collated]

    def __init__(self, rows: datasets.Dataset):
        self.rows = rows
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw new frames, or use the next stored ones; called at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def identity(self) -> dict[str, Any]:
        """Return what must not change when a run is resumed, as JSON-serialisable values."""
        # Texts and ids, not files: a run may be resumed where they lie elsewhere.
        columns = []
        for name in self.rows.column_names:
            if name not in ("video_path", "audio_path", KIND):
                columns.append(self.rows[name])
        return {"training clips and captions": rows_sha256(*columns), "use of stored features": False}


def clips_of(dataset: torch.utils.data.Dataset) -> torch.Tensor:
    """Number the clips of a data set: `(examples,)`, equal for captions of one clip. Other data sets than
    [`Examples`] have as many clips as examples."""
    if not isinstance(dataset, Examples):
        return torch.arange(len(dataset))
    _, numbers = np.unique(list(dataset.rows["video_id"]), return_inverse=True)
    return torch.from_numpy(numbers)


class ClipDataset(Examples):
    """
    Training examples read from files: `{"caption", "clip", "generator", "index", "video_id"}`.

    Frames, audio segments and crops of an example depend only on the seed, the epoch and its index, so an interrupted
    run continues exactly, with any number of workers.

    Args:
        rows (`datasets.Dataset`): The rows of a benchmark; columns of further texts are named after their modalities.
        processor ([`ScalarProcessor`]): The processor that reads the files.
        seed (`int`): The seed of all draws.
        keep_in_memory (`bool`): Whether to decode every clip once before training and keep its frames. For small data
            sets; the examples are the same.

    Raises:
        ValueError: If a clip cannot be read and the processor does not treat it as missing.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        processor: ScalarProcessor,
        seed: int = 0,
        keep_in_memory: bool = False,
    ):
        super().__init__(rows)
        warn_unread(rows.column_names, processor.modalities)
        self.processor = processor
        self.collator = ScalarDataCollator(processor, leaves_out=processor.reader.is_tolerant)
        self.seed = seed
        # All frames of every clip, of which each epoch draws its own.
        self._clips: list[Clip] | None = None
        if keep_in_memory:
            with ThreadPoolExecutor() as executor:  # decoders run in their own processes
                clips = executor.map(partial(read_row, processor, num_frames="all"), rows)
                self._clips = list(tqdm(clips, total=len(rows), desc="decode", unit="clip"))

    def __getitem__(self, index: int) -> dict[str, Any]:
        # Draws depend on the epoch and the place of the example, on nothing else.
        row = self.rows[index]
        generator = derived_generator(self.seed, self.epoch, index)
        if self._clips is not None:
            clip = self._clips[index]
        else:
            options = {"training": True, "generator": generator, "processed": True}
            clip = read_row(self.processor, row, **options)
        same = {"generator": generator, "index": index, "video_id": row["video_id"]}
        return {"caption": row["caption"], "clip": clip} | same


@dataclass
class ScalarDataCollator:
    """
    Turn a list of examples into the arguments of [`ScalarModel`], and `clip_index`, their rows in the data set.

    Args:
        processor ([`ScalarProcessor`]): The processor of the examples.
        leaves_out (`bool`): Whether to skip clips of which nothing could be read, each with a warning. Which these are
            depends only on their files, the seed and the epoch, so the batches are the same on one process or on many,
            and in a resumed run.
    """

    processor: ScalarProcessor
    leaves_out: bool = False

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """
        Collate examples of [`ClipDataset`] in training mode, each with its own generator.

        Raises:
            ValueError: If a clip has no modality; with `leaves_out`, only if no clip of the batch has one.
        """
        if self.leaves_out:
            examples = self._readable(examples)
        batch = self.processor(
            text=[example["caption"] for example in examples],
            clips=[example["clip"] for example in examples],
            training=True,
            generator=[example["generator"] for example in examples],
        )
        return dict(batch) | {"clip_index": torch.tensor([example["index"] for example in examples])}

    def _readable(self, examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the examples of which something could be read."""
        # Each clip that is left out is named in a warning.
        readable = []
        for example in examples:
            if example["clip"].is_empty:
                logger.warning("The clip %r is left out of training: it cannot be read.", example["video_id"])
            else:
                readable.append(example)
        if not readable:
            names = [example["video_id"] for example in examples]
            raise ValueError(
                f"None of the clips of a batch can be read: {names}. Remove them from the annotation, or use a larger "
                "`per_device_train_batch_size`."
            )
        return readable


__all__ = ["ClipDataset", "Examples", "GlobalBatchSampler", "ScalarDataCollator", "check_rows", "clips_of"]
