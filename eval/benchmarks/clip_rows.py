"""Converts the rows of a benchmark to clips, read from their files, and captions that describe them."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from transformers import ProcessorMixin

from scalar_retrieval.gallery.decoding import sandboxed
from scalar_retrieval.gallery.store.files import read_json
from scalar_retrieval.modeling_scalar.media_scalar import MediaError
from scalar_retrieval.modeling_scalar.modalities_scalar import kind_of

from .annotations import FEATURES, KIND

if TYPE_CHECKING:
    from scalar_retrieval.modeling_scalar.processing_scalar import Clip

logger = logging.getLogger(__name__)

_CLIP_COLUMNS = tuple(name for name in FEATURES if name != "caption")


def text_columns(columns: Iterable[str], modalities: Iterable[str]) -> list[str]:
    """
    List the columns with further texts that a model embeds, in the model's order.

    Args:
        columns (`Iterable[str]`): columns of a benchmark, or of a row.
        modalities (`Iterable[str]`): modalities of the model, or of its processor.
    """
    known = set(columns) - {*FEATURES, KIND}
    return [name for name in modalities if kind_of(name) == "text" and name in known]


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def warn_unread(columns: Sequence[str], modalities: Sequence[str]) -> None:
    """Log, once per process, the texts that a model embeds but a benchmark lacks, and those that are not read."""
    # Texts of the model without a column; a subtitle is a column of every benchmark.
    read = text_columns(columns, modalities)
    lacking = []
    for name in modalities:
        if kind_of(name) == "text" and name not in ("subtitle", *read):
            lacking.append(name)
    if lacking:
        _warn_once(
            f"The model embeds {', '.join(lacking)}, but the benchmark has no such column: no clip has it. With your "
            "own table, name its columns of texts: `--column title=YOURS`."
        )
    # Columns without a modality.
    unread = [name for name in columns if name not in (*FEATURES, KIND, *read)]
    if unread:
        _warn_once(f"The model does not embed {', '.join(unread)}: it embeds {', '.join(modalities)}.")


def group_rows(
    dataset: Dataset, task: str = "retrieval", modalities: Iterable[str] = ()
) -> tuple[list[dict[str, Any]], list[str], list[str], list[list[int]]]:
    """
    Split rows into clips and queries, both in the order of first appearance.

    Args:
        dataset (`datasets.Dataset`): the columns of a benchmark; rows with the same `video_id` are one clip.
        task (`str`): `"retrieval"`: each row's caption is a query, with the identifier `<clip>#<number>`; or
            `"classification"`: equal captions are one query, a class label that describes several clips and is its
            own identifier.
        modalities (`Iterable[str]`): modalities of the model that embeds the clips, to include its further texts.

    Returns:
        The clips, the text and the identifier of each query, and pairs [query, clip] sorted by query.

    Raises:
        ValueError: a column or caption is missing, rows of one clip differ, or a clip has a label twice.
    """
    missing = [name for name in FEATURES if name not in dataset.column_names]
    if missing:
        raise ValueError(f"Expected the columns {list(FEATURES)}; {missing} are not among {dataset.column_names}.")
    names = [*_CLIP_COLUMNS, *text_columns(dataset.column_names, modalities)]
    # Everything by identifier, in the order of first appearance.
    clips: dict[str, dict[str, Any]] = {}
    rows: dict[str, int] = {}
    num_captions: Counter[str] = Counter()
    captions: dict[str, str] = {}  # by the identifier of the query
    described: dict[str, dict[int, None]] = {}  # ordered sets
    for row in dataset.select_columns(["caption", *names]):
        # All rows of a clip give the same files and texts.
        clip_id = row["video_id"]
        caption = row["caption"]
        clip = {name: row[name] for name in names}
        if clips.setdefault(clip_id, clip) != clip:
            raise ValueError(
                f"Rows of the clip {clip_id!r} give different files or texts: {clips[clip_id]} and {clip}. One "
                "`video_id` is one clip."
            )
        if not caption or not caption.strip():
            raise ValueError(f"A row of the clip {clip_id!r} has no caption, got {caption!r}.")

        # A caption is a query of its own, a class label one query for all clips of the class.
        query_id = caption if task == "classification" else f"{clip_id}#{num_captions[clip_id]}"
        num_captions[clip_id] += 1
        captions[query_id] = caption
        targets = described.setdefault(query_id, {})
        target = rows.setdefault(clip_id, len(rows))
        if target in targets:
            raise ValueError(f"The clip {clip_id!r} has the label {caption!r} twice. Remove one of the rows.")
        targets[target] = None

    # In the order of the queries.
    pairs = []
    for query, targets in enumerate(described.values()):
        pairs += [[query, target] for target in targets]
    return list(clips.values()), list(captions.values()), list(captions), pairs


def read_row(processor: ProcessorMixin, clip: dict[str, Any], **kwargs: Any) -> "Clip":
    """
    Read the files of one row of a benchmark.

    Args:
        processor ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): reads the files.
        clip (`dict`): a row with `video_id`, `video_path`, `audio_path` and `subtitle`, and further texts under the
            names of the processor's modalities.
        kwargs: as in [`ScalarProcessor.read_clip`].

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a stream cannot be decoded. Both messages name the clip and its files.
    """
    # The same path in both columns is the video's own audio track, which is read by default.
    video = clip["video_path"]
    audio = clip["audio_path"]
    if audio is None or audio != video:
        kwargs["audio"] = audio
    where = f"The clip {clip['video_id']!r} (video {video!r}, audio {audio!r})"
    processor = sandboxed(processor)
    names = text_columns(clip, processor.modalities)
    if names:
        kwargs["texts"] = {name: clip[name] for name in names}
    try:
        return processor.read_clip(video, subtitle=clip["subtitle"], **kwargs)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{where} names a file that does not exist: {error}") from error
    except MediaError as error:
        raise ValueError(
            f'{where} could not be read: {error} Repair the file, or set `on_error` to "missing" to count '
            "unreadable streams as absent."
        ) from error


def query_kinds(dataset: Dataset, task: str = "retrieval") -> dict[str, dict[str, str | None]]:
    """
    Return the kind of each query, in the format of the metadata of embeddings.

    Args:
        dataset (`datasets.Dataset`), task (`str`): of [`group_rows`].

    Returns:
        `dict`: `kinds`, the kind of each query by its identifier; empty if the benchmark has no kinds, or its queries
        are class labels.
    """
    if KIND not in dataset.column_names or task == "classification":
        return {}
    _, _, query_ids, _ = group_rows(dataset, task)  # a query per row, in their order
    return {"kinds": dict(zip(query_ids, dataset[KIND][:], strict=True))}


def clip_digests(dataset: Dataset) -> list[str]:
    """Return 64 bits of a hash of each clip's id and file names, which do not depend on their folder; sorted."""
    # A set: a clip has a row for each caption.
    digests = set()
    columns = dataset.select_columns(["video_id", "video_path", "audio_path"]).to_dict()
    for video_id, video_path, audio_path in zip(*columns.values(), strict=True):
        clip = (video_id, os.path.basename(video_path or ""), os.path.basename(audio_path or ""))
        digests.add(hashlib.sha256(repr(clip).encode()).hexdigest()[:16])
    return sorted(digests)


def num_trained_on(model_path: str | os.PathLike, dataset: Dataset) -> int | None:
    """Return the number of clips that a local model was trained on, or `None` if its `training.json` lacks `clips`."""
    path = Path(model_path) / "training.json"
    if not path.is_file():
        return None
    trained_on = read_json(path).get("clips")
    return None if trained_on is None else len({*trained_on}.intersection(clip_digests(dataset)))


__all__ = [
    "clip_digests",
    "group_rows",
    "num_trained_on",
    "query_kinds",
    "read_row",
    "warn_unread",
    "text_columns",
]
