"""Audits of benchmarks on this machine before a run: files that are missing, absent modalities, unreadable streams."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from scalar_retrieval.gallery.decoding import SandboxedReader
from scalar_retrieval.gallery.embedding import in_background
from scalar_retrieval.gallery.store.provenance import gallery_manifest
from scalar_retrieval.modeling_scalar.feature_extraction_scalar import ScalarFeatureExtractor
from scalar_retrieval.modeling_scalar.image_processing_scalar import frame_indices
from scalar_retrieval.modeling_scalar.media_scalar import MediaError

from .clip_rows import group_rows
from .definition import PROTOCOL, Split

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

    # Digital silence does not count as sound.
    read = reader.read_audio_parts(path, choose)
    return read is not None and any(map(np.any, read[0]))


def _inspect(clip: Mapping[str, str | None], num_frames: int, reader: SandboxedReader) -> _Finding:
    present = {"subtitle"} if (clip["subtitle"] or "").strip() else set()
    durations = []
    missing = []
    unreadable = []
    extractor = ScalarFeatureExtractor()
    reader = reader.reporting_to(lambda problem: unreadable.append(f"{clip['video_id']}: {problem}"))
    # Duration and content of each file; what fails is reported under the clip's id.
    for kind, column in _COLUMNS.items():
        path = clip[column]
        if path is None:
            continue
        try:
            duration = reader.read_duration(path)
            if duration is not None:
                durations.append(duration)
            if _decodes(path, kind, num_frames, extractor, reader):
                present.add(kind)
        except FileNotFoundError:
            missing.append(f"{clip['video_id']}: {path}")
        except (MediaError, OSError) as error:
            unreadable.append(f"{clip['video_id']}: {error}")
    presence = [modality in present for modality in _MODALITIES]
    # A file that does not open fails for both video and audio: one line is enough.
    return _Finding(presence, max(durations, default=None), [*dict.fromkeys(missing)], [*dict.fromkeys(unreadable)])


def audit_split(split: Split, num_workers: int = 2) -> dict[str, Any]:
    """
    Check every file of a benchmark, without changing or dropping anything: the frames and the sound that an evaluation
    will read are decoded, because headers may promise more than the file contains.

    Args:
        split ([`~scalar_retrieval.eval.benchmarks.definition.Split`]): loaded with `on_missing="leave_out"`, so that
            it lists missing clips.
        num_workers (`int`): number of clips checked at once.

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
    # Every file is decoded, several at once.
    clips, captions, _, pairs = group_rows(split.dataset, split.task)
    num_frames = split.processing.get("num_frames", PROTOCOL["num_frames"])
    reader = SandboxedReader()
    findings = in_background(lambda clip: _inspect(clip, num_frames, reader), clips, num_workers)

    # How many files each folder holds: the numbers show at a glance whether a folder is the wrong one. The video's own
    # track is the same file.
    ids = [clip["video_id"] for clip in clips]
    paths = {clip[column] for clip in clips for column in _COLUMNS.values()} - {None}
    folders = Counter(map(os.path.dirname, paths))

    # What was found in the files, a row for each clip.
    bar = tqdm(findings, desc="auditing", unit="clip", total=len(clips))
    found = pd.DataFrame(list(bar), index=ids)
    presence = np.array(found["presence"].tolist())  # (V, 3)
    without = {}
    for modality, is_present in zip(_MODALITIES, presence.T, strict=True):
        without[modality] = found.index[~is_present].tolist()
    durations = found["duration"].dropna().tolist()

    # Captions: a caption of several clips makes all but one of them count as wrong.
    described: dict[str, list[str]] = {}
    num_captions: Counter[int] = Counter()
    for query, clip in pairs:
        described.setdefault(captions[query], []).append(ids[clip])
        num_captions[clip] += 1
    repeated = {}
    for caption, owners in described.items():
        if split.task == "retrieval" and len(set(owners)) > 1:
            repeated[caption] = owners
    middle = median(durations) if durations else None
    report = {
        "task": split.task,
        "num_clips": len(clips),
        "num_queries": len(captions),
        "num_pairs": len(pairs),
        "captions_per_clip": {"min": min(num_captions.values()), "max": max(num_captions.values())},
        "without": without,
        "missing_clips": list(split.left_out),
        "missing_files": found["missing"].explode().dropna().tolist(),
        "unreadable": found["unreadable"].explode().dropna().tolist(),
        "empty": found.index[~presence.any(axis=1)].tolist(),
        "repeated_captions": repeated,
        "duration": {
            "num_known": len(durations),
            "min": min(durations, default=None),
            "median": middle,
            "max": max(durations, default=None),
            "total": sum(durations),
        },
        "folders": dict(sorted(folders.items())),
        "gallery": gallery_manifest(ids, torch.from_numpy(presence)),
    }
    return report | {"complete": not any(map(report.get, _FAULTS))}


def _first_ten(lines: Sequence[str]) -> list[str]:
    more = [f"and {len(lines) - 10:,} more"] if len(lines) > 10 else []
    return [f"  {line}" for line in [*lines[:10], *more]]


def format_audit(report: Mapping[str, Any]) -> str:
    """Format the result of [`audit_split`] as a short table; lists are cut at ten entries."""
    # Sizes.
    num_clips = report["num_clips"]
    fewest, most = report["captions_per_clip"].values()
    per_clip = f"{fewest} to {most}" if fewest != most else str(fewest)
    queries = "class labels" if report["task"] == "classification" else "captions"
    lines = [
        f"{'clips':<16}{num_clips:>9,}   {report['num_queries']:,} {queries}, {report['num_pairs']:,} pairs, "
        f"{per_clip} per clip",
    ]
    for modality, ids in report["without"].items():
        lines.append(f"{f'with {modality}':<16}{num_clips - len(ids):>9,}   {len(ids):,} without")
    duration = report["duration"]
    if duration["num_known"]:
        line = f"{'hours':<16}{duration['total'] / 3600:>9,.2f}   shortest {duration['min']:,.1f} s, "
        line += f"median {duration['median']:,.1f} s, longest {duration['max']:,.1f} s"
        unknown = num_clips - duration["num_known"]
        if unknown:
            line += f"; {unknown:,} clips have no known duration"
        lines.append(line)

    # Faults, which must be repaired, then what may be intended.
    for name, title in _FAULTS.items():
        if report[name]:
            lines += [f"{len(report[name]):,} {title}:", *_first_ten(report[name])]
    repeated = [f"{caption!r}: {', '.join(ids)}" for caption, ids in report["repeated_captions"].items()]
    if repeated:
        lines.append(f"{len(repeated):,} captions shared by several clips, only one of which counts as found:")
        lines += _first_ten(repeated)

    # Where the files are, and which gallery they make.
    lines.append("files in:")
    lines += _first_ten([f"{folder} ({count:,})" for folder, count in report["folders"].items()])
    lines.append(f"gallery SHA-256: {report['gallery']['sha256']}")
    lines.append("Complete: every stream decodes." if report["complete"] else "Not complete: see above.")
    return "\n".join(lines)


__all__ = ["audit_split", "format_audit"]
