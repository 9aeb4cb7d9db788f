"""Embeds a benchmark into a gallery; a run that was killed can be resumed.

The gallery grows like that of `scalar index`: clips first, then captions, in the order of their rows; its metadata
mark it as unfinished until all are written. A batch is the same forward pass in any run: with the same hardware and
number of threads, the rows do not depend on interruptions. On other hardware the last bits of vectors may differ,
because sums are added in another order.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from scalar_retrieval.gallery.embedding import check_reading, in_batches
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.querying import embed_captions
from scalar_retrieval.gallery.store.columns import precision_of, query_table
from scalar_retrieval.gallery.store.provenance import versions
from scalar_retrieval.modeling_scalar.model_identity import identify

from ..benchmarks.clip_rows import group_rows, warn_unread
from ..inputs import Inputs
from ..source import Source
from .embed_dataset import embed_rows

logger = logging.getLogger(__name__)

_CAPTIONS = 1024  # per commit, which takes longer than embedding a few captions

_PLANNED = {
    "fingerprint": "the weights or settings of the model or its processor",
    "rows_sha256": "the clips, their files, texts or captions, or their order",
}


def _rows_sha256(clips: list[dict[str, Any]], captions: list[str], query_ids: list[str], pairs: list) -> str:
    """Return a hash of everything in the rows except the folders; a file counts by its name and size."""
    # The same clips in another folder are the same: a path counts by its last part, with the size of the file.
    rows = []
    for clip in clips:
        values: list[Any] = []
        for name, value in clip.items():
            if value is not None and name in ("video_path", "audio_path"):
                size = None
                if os.path.isfile(value):
                    size = os.path.getsize(value)
                value = [os.path.basename(value), size]
            values.append(value)
        rows.append(values)
    return hashlib.sha256(json.dumps([rows, query_ids, captions, pairs]).encode()).hexdigest()


def embed_into(
    writer: GalleryWriter,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    rows: tuple[list[dict[str, Any]], list[str], list[str], list[list[int]]],
    batch_size: int,
    num_workers: int,
    progress: bool,
) -> None:
    """
    Embed the clips and captions of a data set that a gallery lacks, and commit them as they are embedded; the last
    captions are not committed yet.

    Args:
        writer ([`~scalar_retrieval.gallery.gallery.GalleryWriter`]): the gallery.
        model ([`~scalar_retrieval.modeling_scalar.ScalarModel`]), processor
            ([`~scalar_retrieval.modeling_scalar.ScalarProcessor`]): embed.
        rows: clips, captions, identifiers of captions and pairs, from
        [`~scalar_retrieval.eval.benchmarks.clip_rows.group_rows`].
        batch_size (`int`), num_workers (`int`), progress (`bool`): as in [`embed_benchmark`].
    """
    clips, captions, query_ids, pairs = rows

    def bar(kind: str, total: int, start: int) -> tqdm:
        return tqdm(total=total, initial=start, desc=kind, unit=" rows", disable=not progress)

    # Clips after the last that is committed; each batch is committed, because it takes long to embed.
    start = len(writer.gallery())
    batches = embed_rows(model, processor, clips[start:], batch_size, num_workers)
    with closing(batches), bar("clips", len(clips), start) as progress_bar:
        for batch in batches:
            clip_ids, problems = zip(*batch.notes, strict=True)
            writer.put_clips(clip_ids, *batch.embeds, problems=problems)
            writer.commit()
            progress_bar.update(len(clip_ids))

    # Captions likewise, with the clips that each describes; a commit holds many batches, because it takes longer.
    described: list[list[str]] = [[] for _ in captions]
    for query, clip in pairs:
        described[query].append(clips[clip]["video_id"])
    start = 0
    queries = writer.gallery().queries
    if queries is not None:
        start = len(queries)
    committed = start
    with bar("captions", len(captions), start) as progress_bar:
        for batch in in_batches(captions[start:], batch_size):
            embeds = embed_captions(model, processor, batch)
            stop = start + len(embeds)
            part = slice(start, stop)
            # In float32: captions are few, and score exactly as the same text in a search.
            table = query_table(query_ids[part], captions[part], embeds, described[part], "float32")
            writer.put_queries(table)
            start = stop
            if start - committed >= _CAPTIONS:
                writer.commit()
                committed = start
            progress_bar.update(len(embeds))


def _is_finished(writer: GalleryWriter, plan: Mapping[str, Any]) -> bool:
    """Whether there is nothing to do; raise a ValueError if the embeddings have other settings, or a part is lost."""
    # A new gallery has everything to do.
    metadata = writer.metadata
    folder = writer.folder
    if not writer.snapshot.shards:
        return False

    # An unfinished gallery is continued only with the same versions of the libraries.
    earlier = {**(metadata.get("plan") or {}), "versions": metadata.get("versions")}
    if earlier.get("on_error") == "raise":  # a run without errors is the same if errors are allowed
        earlier["on_error"] = plan["on_error"]
    wanted = dict(plan)
    if "unfinished" in metadata:
        wanted["versions"] = versions()
    different = []
    for name, value in wanted.items():
        if earlier.get(name) != value:
            different.append(_PLANNED.get(name, name))
    if different:
        raise ValueError(
            f"{folder} holds embeddings with other settings. These differ: {'; '.join(different)}. Use the settings "
            "of that run, another folder, or remove this one."
        )
    if metadata.get("lost"):
        raise ValueError(
            f"A part of {folder} was damaged and is lost: {metadata['lost']}. Remove it, and embed the benchmark "
            "again."
        )
    return "unfinished" not in metadata


def embed_benchmark(
    output: str | os.PathLike,
    model: str | os.PathLike,
    benchmark: str,
    root: str | os.PathLike,
    split: str = "test",
    *,
    captions: Literal["first", "all"] | None = None,
    columns: Mapping[str, str] | None = None,
    holdout: float | None = None,
    words_of: str | os.PathLike | None = None,
    on_missing: Literal["raise", "leave_out"] = "raise",
    on_error: Literal["raise", "missing"] = "raise",
    batch_size: int = 32,
    num_workers: int = 2,
    dtype: Literal["float16", "float32"] = "float16",
    progress: bool = True,
) -> Gallery:
    """
    Embed a benchmark into a gallery.

    After a kill, another call resumes at the last commit: at most one batch of clips, or about a thousand captions,
    are lost. After the end, another call does nothing.

    Args:
        output (`str`): the gallery.
        model (`str`): folder or Hub name of a model or of an adapter with its processor.
        benchmark (`str`), root (`str`), split (`str`), captions (`str`, *optional*), columns (`Mapping`, *optional*),
            holdout (`float`, *optional*), words_of (`str`, *optional*), on_missing (`str`): as in
            [`~scalar_retrieval.eval.benchmarks.registry.load_split`].
        on_error (`str`): `"raise"` stops at unreadable files, `"missing"` counts them as absent.
        batch_size (`int`): clips, or captions, embedded at a time.
        num_workers (`int`): threads that read batches ahead.
        dtype (`str`): precision of the stored vectors of clips, `"float16"` or `"float32"`; captions are always
            stored in float32.
        progress (`bool`): show a bar with an estimate of the time left.

    Returns:
        [`~scalar_retrieval.gallery.gallery.Gallery`]: the embeddings.

    Raises:
        ValueError: the folder holds something else, or embeddings with other settings; or as in
            [`embed_dataset`].
        FileNotFoundError: a file does not exist.
    """
    output = Path(output).resolve()
    check_reading(batch_size, num_workers)
    precision_of(dtype)

    # The clips and the model.
    inputs = Inputs(
        model=model,
        benchmark=benchmark,
        root=root,
        split=split,
        captions=captions,
        columns=columns,
        holdout=holdout,
        words_of=words_of,
        on_missing=on_missing,
        on_error=on_error,
    )
    source = Source.open(inputs)
    dataset = source.split.dataset
    processor = source.processor
    warn_unread(dataset.column_names, processor.modalities)
    rows = group_rows(dataset, source.split.task, processor.modalities)

    # What the vectors depend on: a run that resumes must have the same plan.
    plan = {
        "fingerprint": identify(model).fingerprint,
        "model_dtype": str(source.model.dtype),
        "processing": dict(source.split.processing),
        "rows_sha256": _rows_sha256(*rows),
        "batch_size": batch_size,
        "on_error": on_error,
        "dtype": dtype,
    }
    with GalleryWriter(output, dtype, has_codes=False) as writer:
        if _is_finished(writer, plan):
            logger.info("%s is already finished; there is nothing to do.", output)
            return Gallery.open(output)
        # Marked as unfinished with the first commit, as finished with the last.
        metadata = source.metadata() | {"plan": plan}
        num_rows = {"clips": len(rows[0]), "queries": len(rows[1])}
        writer.metadata = metadata | {"unfinished": num_rows}
        embed_into(writer, source.model, processor, rows, batch_size, num_workers, progress)
        writer.metadata = metadata
        writer.compact()  # the same files, whatever the number of interruptions
    return Gallery.open(output)


__all__ = ["embed_benchmark", "embed_into"]
