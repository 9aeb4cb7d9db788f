"""Audits of benchmarks on this machine before a run: files that are missing, absent modalities, unreadable streams."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from eval.benchmarks.definition import PROTOCOL, Split
from eval.benchmarks.rows import group_rows
from gallery.decoding import SandboxedReader
from gallery.embedding import in_background
from gallery.provenance import gallery_manifest
from modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from modeling_scalar.image_processing_scalar import frame_indices
from modeling_scalar.media_scalar import MediaError

_COLUMNS = {"video": "video_path", "audio": "audio_path"}
_MODALITIES = (*_COLUMNS, "subtitle")  # those of a benchmark's columns, whatever a model embeds
_FAULTS = {
    "missing_clips": "clips without their files",
    "missing_files": "missing files",
    "unreadable": "unreadable files",
    "empty": "clips without video, audio and subtitle",
}


class _Finding(NamedTuple):
    presence: list[bool]
    duration: float | None
    missing: list[str]
    unreadable: list[str]


def _decodes(
    path: str, kind: str, num_frames: int, extractor: ScalarFeatureExtractor, reader: SandboxedReader
) -> bool:
    """Read a stream as the processor will, and return whether it has content."""
    if kind == "video":
        choose_frames = partial(frame_indices, num_frames=num_frames)
        return reader.read_frames(path, choose_frames, prepare=lambda *_: lambda frame: None) is not None

    def choose(available: int) -> list[tuple[int, int]]:
        return [] if available < extractor.min_samples else extractor.choose_parts(available)

    read = reader.read_audio_parts(path, choose)
    return read is not None and any(part.any() for part in read[0])  # digital silence does not count as sound


def _inspect(clip: Mapping[str, str | None], num_frames: int, reader: SandboxedReader) -> _Finding:
    present = {"subtitle"} if (clip["subtitle"] or "").strip() else set()
    durations, missing, unreadable, extractor = [], [], [], ScalarFeatureExtractor()
    reader = reader.noting(lambda problem: unreadable.append(f"{clip['video_id']}: {problem}"))
    for kind, column in _COLUMNS.items():
        path = clip[column]
        if path is None:
            continue
        try:
            duration = reader.read_duration(path)
            durations += [duration] if duration is not None else []
            if _decodes(path, kind, num_frames, extractor, reader):
                present.add(kind)
        except FileNotFoundError:
            missing.append(f"{clip['video_id']}: {path}")
        except (MediaError, OSError) as error:
            unreadable.append(f"{clip['video_id']}: {error}")
    # A file that does not open fails for both video and audio: one line is enough.
    missing, unreadable = (list(dict.fromkeys(lines)) for lines in (missing, unreadable))
    presence = [modality in present for modality in _MODALITIES]
    return _Finding(presence, max(durations, default=None), missing, unreadable)


def audit_split(split: Split, num_workers: int = 2, progress: bool = True) -> dict[str, Any]:
    """
    Check every file of a benchmark, without changing or dropping anything: the frames and the sound that an evaluation
    will read are decoded, because headers may promise more than the file contains.

    Args:
        split ([`~eval.benchmarks.definition.Split`]): loaded with `on_missing="leave_out"`, so that it lists missing
            clips.
        num_workers (`int`): number of clips checked at once.
        progress (`bool`): show a bar with an estimate of the time left.

    Returns:
        `dict`, serialisable as JSON:

        - `task`; `num_clips`, `num_queries`, `num_pairs` as in results; `captions_per_clip`, the minimum
          and the maximum;
        - `without`: ids of the clips without a readable modality, by modality;
        - `missing_clips`: ids left out because their files are missing; `missing_files` and `unreadable`: lines that
          begin with an id; `empty`: ids of the clips with no modality; `complete`: whether these four are empty;
        - `repeated_captions`: captions that describe several clips, with the clips' ids, if the task is retrieval;
        - `duration`: of the clips in seconds, from their headers, and the number of clips for which it is known;
        - `folders`: number of files in each folder; `gallery`: the manifest of [`gallery_manifest`].

    Raises:
        ValueError: rows of one clip disagree, a caption is missing, or there are no rows.
    """
    clips, captions, _, pairs = group_rows(split.dataset, split.task)
    num_frames = split.processing.get("num_frames", PROTOCOL["num_frames"])
    reader = SandboxedReader()
    findings = in_background(lambda clip: _inspect(clip, num_frames, reader), clips, num_workers)
    findings = list(tqdm(findings, desc="auditing", unit="clip", total=len(clips), disable=not progress))

    ids = [clip["video_id"] for clip in clips]
    presence = torch.tensor([finding.presence for finding in findings])  # (clips, 3)
    described: dict[str, list[str]] = {}
    for query, clip in pairs:
        described.setdefault(captions[query], []).append(ids[clip])
    captions_per_clip = Counter(clip for _, clip in pairs).values()
    durations = [finding.duration for finding in findings if finding.duration is not None]
    paths = {clip[column] for clip in clips for column in _COLUMNS.values()} - {None}
    report = {
        "task": split.task,
        "num_clips": len(clips),
        "num_queries": len(captions),
        "num_pairs": len(pairs),
        "captions_per_clip": {"min": min(captions_per_clip), "max": max(captions_per_clip)},
        "without": {
            modality: [ids[row] for row, there in enumerate(column) if not there]
            for modality, column in zip(_MODALITIES, presence.T.tolist(), strict=True)
        },
        "missing_clips": list(split.left_out),
        "missing_files": [line for finding in findings for line in finding.missing],
        "unreadable": [line for finding in findings for line in finding.unreadable],
        "empty": [video_id for video_id, finding in zip(ids, findings, strict=True) if not any(finding.presence)],
        "repeated_captions": {
            caption: owners
            for caption, owners in described.items()
            if split.task == "retrieval" and len(set(owners)) > 1
        },
        "duration": {
            "num_known": len(durations),
            "min": min(durations, default=None),
            "median": median(durations) if durations else None,
            "max": max(durations, default=None),
            "total": sum(durations),
        },
        "folders": dict(sorted(Counter(map(os.path.dirname, paths)).items())),
        "gallery": gallery_manifest(ids, presence),
    }
    return report | {"complete": not any(report[name] for name in _FAULTS)}


def _listed(lines: Sequence[str], limit: int = 10) -> list[str]:
    more = [f"  and {len(lines) - limit:,} more"] if len(lines) > limit else []
    return [f"  {line}" for line in lines[:limit]] + more


def format_audit(report: Mapping[str, Any]) -> str:
    """Format the result of [`audit_split`] as a short table; lists are cut at ten entries."""
    num_clips, duration = report["num_clips"], report["duration"]
    fewest, most = report["captions_per_clip"].values()
    queries = "class labels" if report["task"] == "classification" else "captions"
    lines = [
        f"{'clips':<16}{num_clips:>9,}   {report['num_queries']:,} {queries}, {report['num_pairs']:,} pairs, "
        f"{fewest if fewest == most else f'{fewest} to {most}'} per clip",
    ]
    for modality, ids in report["without"].items():
        lines.append(f"{f'with {modality}':<16}{num_clips - len(ids):>9,}   {len(ids):,} without")
    if duration["num_known"]:
        shortest, middle, longest = (f"{duration[name]:,.1f} s" for name in ("min", "median", "max"))
        unknown = num_clips - duration["num_known"]
        lines.append(
            f"{'hours':<16}{duration['total'] / 3600:>9,.2f}   shortest {shortest}, median {middle}, longest {longest}"
            + (f"; {unknown:,} clips have no known duration" if unknown else "")
        )
    for name, title in _FAULTS.items():
        lines += [f"{len(report[name]):,} {title}:", *_listed(report[name])] if report[name] else []
    if report["repeated_captions"]:
        repeated = [f"{caption!r}: {', '.join(ids)}" for caption, ids in report["repeated_captions"].items()]
        lines += [
            f"{len(repeated):,} captions shared by several clips, only one of which counts as found:",
            *_listed(repeated),
        ]
    lines.append("files in:")
    lines += _listed([f"{folder} ({count:,})" for folder, count in report["folders"].items()])
    lines.append(f"gallery SHA-256: {report['gallery']['sha256']}")
    lines.append("Complete: every stream decodes." if report["complete"] else "Not complete: see above.")
    return "\n".join(lines)


__all__ = ["audit_split", "format_audit"]
