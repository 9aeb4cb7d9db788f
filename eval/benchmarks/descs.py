"""The annotation that VAST, GRAM and PMRL publish: a JSON list of clips, with media found by their ids."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from .annotations import KIND, find_media, make_dataset, refuse_missing
from .definition import PROTOCOL, Benchmark


class Entry(NamedTuple):
    """
    A clip of an annotation: its id, at least one caption, a subtitle that is `None` or has a word, and the kind of
    each caption, if the benchmark distinguishes kinds.
    """

    video_id: str
    captions: list[str]
    subtitle: str | None = None
    kinds: list[str] | None = None


def is_text(value: Any) -> bool:
    """Whether a value of an annotation is text with at least one word."""
    return isinstance(value, str) and bool(value.strip())


@contextmanager
def reading(path: Path, form: str, what: str) -> Iterator[None]:
    """Raise an error that says what an annotation must be if it is missing, or not of a form, such as JSON."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"No annotation at {path}. {what}") from error
    except (csv.Error, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not {form}: {error}. Restore the file.") from error


def read_json(path: Path, kind: type, what: str) -> Any:
    """
    Read an annotation that is a single JSON document.

    Args:
        path (`Path`): the file.
        kind (`type`): `list` or `dict`.
        what (`str`): what the file must be, for the message.

    Raises:
        FileNotFoundError, ValueError: the file does not exist, or holds something else.
    """
    with reading(path, "JSON", f"It must be {what}."):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, kind):
        raise ValueError(f"{path} must be {what}, got {type(content).__name__}.")
    return content


def read_csv(path: Path, reader: Callable[..., Iterable], what: str) -> list:
    """
    Read an annotation that is CSV.

    Args:
        path (`Path`): the file.
        reader (`Callable`): `csv.reader` or `csv.DictReader`.
        what (`str`): what the file must be, for the message.

    Raises:
        FileNotFoundError, ValueError: the file does not exist, or is not CSV.
    """
    with reading(path, "CSV in UTF-8", f"It must be {what}."), path.open(encoding="utf-8-sig", newline="") as lines:
        return list(reader(lines, strict=True))


def _caption_rows(entry: Entry, captions: str) -> list[dict[str, str]]:
    """Return all captions of a clip, or the first of each kind; with their kinds, if there are any."""
    rows = [{"caption": caption} for caption in entry.captions]
    if entry.kinds is None:
        return rows if captions == "all" else rows[:1]
    first = {}
    for row, kind in zip(rows, entry.kinds, strict=True):
        row[KIND] = kind
        first.setdefault(kind, row)
    return rows if captions == "all" else list(first.values())


def read_entries(
    path: Path, id_name: str = "video_id", caption_names: Sequence[str] = ("desc", "caption")
) -> list[Entry]:
    """
    Read a JSON list of objects.

    Args:
        path (`Path`): the file.
        id_name (`str`): key of the clip's id.
        caption_names (`Sequence[str]`): keys of the caption, or list of captions; the first that an object has is
            used. A `subtitle` is optional; an empty one counts as absent.

    Returns:
        `list[Entry]`, in the order of the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a JSON list of objects, or an entry is malformed or repeated.
    """
    caption_keys = " or ".join(f"`{name}`" for name in caption_names)
    what = f"a JSON list of objects with `{id_name}`, {caption_keys} and optionally `subtitle`"
    entries: dict[str, Entry] = {}
    for index, item in enumerate(read_json(path, list, what)):
        # An object with an id, at least one caption and perhaps a subtitle.
        where = f"Entry {index} of {path}"
        if not isinstance(item, dict):
            raise ValueError(f"{where} must be an object, got {item!r:.200}.")
        video_id = item.get(id_name)
        subtitle = item.get("subtitle")
        caption = None
        for name in reversed(caption_names):  # the first of them wins
            caption = item.get(name, caption)
        if not is_text(video_id):
            raise ValueError(f"{where} must have a `{id_name}` that is text, got {video_id!r}.")
        # One caption, or a list of some.
        captions = caption if isinstance(caption, list) else [caption]
        if not captions or not all(map(is_text, captions)):
            raise ValueError(
                f"{where}, clip {video_id!r}: {caption_keys} must be a caption or a list of captions, "
                f"got {caption!r:.200}."
            )
        if subtitle is not None and not isinstance(subtitle, str):
            raise ValueError(f"{where}, clip {video_id!r}: `subtitle` must be text, got {subtitle!r:.200}.")
        # A clip stands in the list once, with all of its captions.
        if video_id in entries:
            raise ValueError(f"{where} repeats the clip {video_id!r}. Put all its captions into one entry, as a list.")
        entries[video_id] = Entry(video_id, captions, subtitle if is_text(subtitle) else None)
    return list(entries.values())


def dataset_from_entries(
    entries: Sequence[Entry], root: Path, captions: str, on_missing: str
) -> tuple[Dataset, list[str]]:
    """
    Find the media of an annotation, in `root/videos/<id>.<any extension>` and `root/audios/<id>.<any extension>`.

    Args:
        entries (`Sequence[Entry]`): the clips.
        root (`Path`): the folder.
        captions (`str`): "first", of each kind if there are kinds, or "all": a row per caption.
        on_missing (`str`): "raise", or "leave_out": clips without any file.

    Returns:
        `Dataset` with the columns of `FEATURES`, and `KIND` if captions have kinds, in the order of `entries`, and the
        ids left out. Paths are absolute; without an audio file, `audio_path` is the video's, to read its own audio
        track.

    Raises:
        FileNotFoundError: clips have no file.
        ValueError: a clip has several files of one kind.
    """
    # Two listings, and the clips that are in neither.
    ids = [entry.video_id for entry in entries]
    videos = find_media(root / "videos", ids)
    audios = find_media(root / "audios", ids)
    known = videos.keys() | audios.keys()
    lost = [video_id for video_id in ids if video_id not in known]
    refuse_missing(lost, len(ids), f"have no file in {root / 'videos'} or {root / 'audios'}", on_missing)

    # Files are not checked one by one, which is slow on a network: the listings have shown that they exist.
    rows = []
    for entry in entries:
        video_path = videos.get(entry.video_id)
        audio_path = audios.get(entry.video_id, video_path)
        if audio_path is None:
            continue
        # A row for each caption, with the clip's files and subtitle.
        clip = {
            "video_id": entry.video_id,
            "video_path": video_path,
            "audio_path": audio_path,
            "subtitle": entry.subtitle,
        }
        rows += [clip | caption for caption in _caption_rows(entry, captions)]
    return make_dataset(rows), lost


def load_descs(
    root: str | os.PathLike,
    split: str,
    *,
    files: Mapping[str, str] | None = None,
    read: Callable[..., list[Entry]] = read_entries,
    captions: str = "first",
    on_missing: str = "raise",
    **names: Any,
) -> tuple[Dataset, list[str]]:
    """
    Load a benchmark with an annotation file for each split, by default a JSON list of
    `{video_id, desc or caption, subtitle}`.

    Args:
        root (`str` or `os.PathLike`): the folder, with media as in [`dataset_from_entries`].
        split (`str`): a key of `files`.
        files (`Mapping`, *optional*): name of the annotation in `root` by split; by default `<split>.json`.
        read (`Callable`): reads such a file, in its published format.
        captions (`str`), on_missing (`str`): as in [`dataset_from_entries`].
        names: keyword arguments of `read`, such as the keys of the annotation.

    Returns:
        As [`dataset_from_entries`].

    Raises:
        FileNotFoundError, ValueError: of [`read_entries`] and [`dataset_from_entries`].
    """
    # The annotation of the split, in its published format, then the media by its ids.
    file = files[split] if files is not None else f"{split}.json"
    return dataset_from_entries(read(Path(root) / file, **names), Path(root), captions, on_missing)


def descs_benchmark(
    title: str,
    files: Mapping[str, str],
    *,
    read: Callable[[Path], list[Entry]] = read_entries,
    captions: str = "first",
    **processing: Any,
) -> Benchmark:
    """
    Define a benchmark that [`load_descs`] loads: files of its splits, their format, the default captions, and where it
    departs from `PROTOCOL`.
    """
    return Benchmark(
        title=title,
        load=partial(load_descs, files=files, read=read, captions=captions),
        splits=tuple(files),
        processing=PROTOCOL | processing,
        settings=("captions",),
    )


__all__ = [
    "Entry",
    "dataset_from_entries",
    "descs_benchmark",
    "is_text",
    "load_descs",
    "read_csv",
    "read_entries",
    "read_json",
    "reading",
]
