"""Copies a gallery into a collection; only new and changed clips are written."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from gallery.columns import embeds_of, presence_of, texts_of, to_utf8
from gallery.described import LEAST_SCORE, MODALITIES
from gallery.exact.bounds import DETAIL
from gallery.filters import _NO_DATE
from gallery.gallery import Gallery
from gallery.windows import SEGMENT

from .clips import About, Engine, Point

_READ_AT_ONCE = 4096
_REMOVED_AT_ONCE = 1000
_TOLD = (
    "model",
    "fingerprint",
    "query_temperature",
    "score_options",
    LEAST_SCORE,
    SEGMENT,
)  # fields of a gallery's metadata


@dataclass
class PushReport:
    """The numbers of clips added, changed (or rewritten), left alone, and removed."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0


def about_gallery(gallery: Gallery, detail: int = DETAIL) -> About:
    """The metadata for the collection of a gallery; without paths, except that of the model."""
    if gallery.dim is None:
        raise ValueError(f"{gallery.path} holds no clips.")
    metadata = {name: gallery.metadata[name] for name in _TOLD if gallery.metadata.get(name) is not None}
    return About(gallery.dim, gallery.dtype, metadata | {MODALITIES: list(gallery.modalities)}, detail)


def points_of(gallery: Gallery, part: str, with_words: bool = False) -> Iterator[Point]:
    """The clips of a gallery as points, in order; their places are not set yet."""
    facts, row = gallery.searcher.clip_facts, 0
    seconds, changed = facts.seconds.numpy(), facts.changed.numpy()
    words = zip(*facts.words(), strict=True) if with_words else None
    for batch in gallery.clips.to_batches(_READ_AT_ONCE):
        rows = pa.Table.from_batches([batch])
        names = texts_of(rows, "clip_id")
        embeds = embeds_of(rows).numpy()
        mask = presence_of(rows).tolist()
        for name, vectors, present in zip(names, embeds, mask, strict=True):
            payload = {
                "clip_id": to_utf8(name),
                "has": [modality for modality, there in zip(gallery.modalities, present, strict=True) if there],
                "path": to_utf8(gallery.place_of(name).path),
                "part": part,
            }
            if not np.isnan(seconds[row]):
                payload["seconds"] = float(seconds[row])
            if changed[row] != _NO_DATE:
                # microseconds: as precise as filters and the numbers of engines
                payload["changed"] = int(changed[row]) // 1000
            if words is not None:
                payload["words"], payload["all_words"] = next(words)
            yield Point(payload, vectors, -1, gallery.modalities)
            row += 1


def push(
    gallery: Gallery,
    collection: Engine,
    part: str = "",
    num_shards: int | None = None,
    num_replicas: int | None = None,
    detail: int = DETAIL,
    progress: bool = False,
    rewrite: bool = False,
) -> PushReport:
    """
    Copy a gallery into a collection: write new and changed clips, then remove those that the gallery no longer has.

    After an interruption, what was written stays, and the same call continues.

    Args:
        gallery ([`~gallery.gallery.Gallery`]), collection ([`~search.engine.clips.Engine`]).
        part (`str`): name of this gallery, if the collection has several galleries of one model; clips of other parts
            are left alone. Only one process at a time may push a part.
        num_shards (`int`, *optional*), num_replicas (`int`, *optional*): of a new collection.
        detail (`int`): of the bounds of a new collection, see [`~gallery.exact.bounds.bound_vectors`].
        progress (`bool`): show a progress bar.
        rewrite (`bool`): write unchanged clips, too. These are recognised by the hash stored with them, which does not
            reveal later changes by others, and does not cover bounds.

    Raises:
        ValueError: the collection holds vectors of another model, dimension or precision, or something else.
        OSError: the engine does not answer, or refuses a request.
    """
    about = about_gallery(gallery, detail)
    with collection.writing():
        if not collection.exists():
            collection.create(about, num_shards, num_replicas)
        there = collection.about(is_new=True)
        if different := there.differences(about):
            raise ValueError(
                f"The collection {collection.name!r} holds vectors of {there.metadata.get('model')!r}, which differ "
                f"from those of {gallery.path} in {', '.join(different)}. They cannot be compared. Choose another "
                "name."
            )
        if there.metadata != about.metadata:
            collection.describe(about.metadata)
        collection.index_payload()
        return _push(gallery, collection, part, progress, rewrite)


def _push(gallery: Gallery, collection: Engine, part: str, progress: bool, rewrite: bool) -> PushReport:
    report = PushReport()
    known = {number: (digest, place) for number, digest, place in collection.known(part)}
    # Places increase in the order of the gallery, which orders equal scores. Rewritten clips come last.
    next_place = max((place for _, place in known.values()), default=-1) + 1
    last, waiting = -1, []
    size = collection.points_at_once
    with tqdm(total=len(gallery), unit="clip", disable=None if progress else True) as bar:
        for point in points_of(gallery, part, with_words="words" not in collection.no_filters):
            digest, place = known.pop(point.number, (None, -1))
            if place > last and digest == point.digest and not rewrite:
                report.unchanged += 1
            else:
                report.new += digest is None
                report.changed += digest is not None
                if place <= last:
                    place, next_place = next_place, next_place + 1
                waiting.append(replace(point, place=place))
            last = place
            if len(waiting) == size:
                collection.put(waiting)
                waiting = []
            bar.update()
        if waiting:
            collection.put(waiting)
    gone = list(known)
    for start in range(0, len(gone), _REMOVED_AT_ONCE):
        collection.remove(gone[start : start + _REMOVED_AT_ONCE])
    report.removed = len(gone)
    return report


__all__ = ["PushReport", "about_gallery", "points_of", "push"]
