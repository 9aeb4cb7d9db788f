"""Loader of a training corpus annotated as VAST-27M is (Chen et al., 2023)."""

import json
import os
from pathlib import Path
from typing import Any

from datasets import Dataset

from eval.benchmarks.columns import FEATURES
from eval.benchmarks.media import find_media


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _read_entries(path: Path) -> list[tuple[str, list[str], str | None]]:
    """Return (clip_id, captions, subtitle) of every entry of an annotation."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"No annotation at {path}. It must be a JSON list of objects with `clip_id`, `vast_cap` and `subtitle`."
        ) from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path} must hold a list of objects, got {type(entries).__name__}.")
    clips: dict[str, tuple[str, list[str], str | None]] = {}
    for index, entry in enumerate(entries):
        where = f"Entry {index} of {path}"
        if not isinstance(entry, dict):
            raise ValueError(f"{where} must be an object, got {entry!r:.200}.")
        clip_id, caption, subtitle = (entry.get(name) for name in ("clip_id", "vast_cap", "subtitle"))
        if not _is_text(clip_id):
            raise ValueError(f"{where} must have a `clip_id` that is text, got {clip_id!r}.")
        captions = caption if isinstance(caption, list) else [caption]
        if not captions or not all(map(_is_text, captions)):
            raise ValueError(
                f"{where}, the clip {clip_id!r}, must have a `vast_cap` that is a caption or a list of captions, got "
                f"{caption!r:.200}."
            )
        if subtitle is not None and not isinstance(subtitle, str):
            raise ValueError(f"{where}, the clip {clip_id!r}, must have a `subtitle` of text, got {subtitle!r:.200}.")
        if clip_id in clips:
            raise ValueError(f"{where} repeats the clip {clip_id!r}. Put its captions into one entry, as a list.")
        clips[clip_id] = clip_id, captions, subtitle if _is_text(subtitle) else None
    return list(clips.values())


def load_vast27m(root: str | os.PathLike, split: str = "train") -> Dataset:
    """
    Load a corpus whose captions are VAST's: `root/<split>.json`, a list of `{clip_id, vast_cap, subtitle, ...}`.

    Media lie in `root/videos/<clip_id>.<any extension>` and `root/audios/<clip_id>.<any extension>`. A clip without an
    audio file has whatever track its video has.

    Args:
        root (`str` or `os.PathLike`): the folder.
        split (`str`, defaults to "train"): name of the annotation file.

    Returns:
        `Dataset` with the columns of `FEATURES`, a row per caption in the order of the annotation; paths are absolute.
        A subtitle that is missing or empty is `None`: the clip has none.

    Raises:
        ValueError: an entry is malformed or repeated, or a clip has several files of one kind.
        FileNotFoundError: there is no annotation, or there are clips without any file.
    """
    root = Path(root)
    entries = _read_entries(root / f"{split}.json")
    ids = [clip_id for clip_id, _, _ in entries]
    videos, audios = find_media(root / "videos", ids), find_media(root / "audios", ids)
    lost = [clip_id for clip_id in ids if clip_id not in videos and clip_id not in audios]
    if lost:
        raise FileNotFoundError(
            f"{len(lost)} of {len(ids)} clips have no file in {root / 'videos'} or {root / 'audios'}: "
            f"{', '.join(lost[:10])}{', …' if len(lost) > 10 else ''}. Restore them, or take them out of the "
            "annotation; no clip is left out in silence."
        )
    # Not checked file by file, which is slow on a network: the listings have shown that they are there.
    rows = [
        {
            "video_id": clip_id,
            "caption": caption,
            "video_path": videos.get(clip_id),
            "audio_path": audios.get(clip_id, videos.get(clip_id)),
            "subtitle": subtitle,
        }
        for clip_id, captions, subtitle in entries
        for caption in captions
    ]
    return Dataset.from_list(rows, features=FEATURES)


__all__ = ["load_vast27m"]
