"""Writes one draw of composed clips as the miniature benchmark is written: `miniature --media stamps`."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from evidence.miniature.clips import SPLITS
from evidence.miniature.generation import VERSION
from evidence.settings import MiniatureConfig
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE

from .drawing import KINDS, MODALITIES, ComposedClip, draw, recall_ceilings
from .media import PROMPTS, STAMPS, read_halves, read_picture, read_sound, read_speech, recognise, subtitle_of

_FRAME_RATE = 5
_GENERATED_ALONE = ("num_train", "num_validation", "num_test", "shared", "disagree", "alone", "evidence")


def check_settings(config: MiniatureConfig) -> None:
    """Raise a ValueError if a setting is not of composed clips."""
    given = vars(config) | {"evidence": tuple(config.evidence)}
    usual = vars(MiniatureConfig(output=config.output))
    for name in _GENERATED_ALONE:
        if given[name] != usual[name]:
            raise ValueError(
                f"--{name.replace('_', '-')} is of generated clips. With --media stamps each photograph is in one "
                "clip, and --seed and --complete can be chosen."
            )


def write_clip(path: Path, picture: np.ndarray | None, samples: np.ndarray) -> None:
    """
    Write an mp4 file.

    Args:
        path (`Path`): where to.
        picture (uint8 `np.ndarray` of shape `(height, width, 3)`, *optional*): shown as long as the sound lasts.
        samples (float32 `np.ndarray` of shape `(samples,)`): at 16 kHz.
    """
    with av.open(str(path), "w") as container:
        # All streams have to exist before the first packet.
        if picture is not None:
            video = container.add_stream("libx264", rate=_FRAME_RATE, options={"crf": "18", "tune": "zerolatency"})
            video.height, video.width, _ = picture.shape
            video.pix_fmt = "yuv420p"
            video.thread_count = 1
        audio = container.add_stream("aac", rate=SAMPLING_RATE, layout="mono")
        audio.bit_rate = 48_000
        if picture is not None:
            for number in range(math.ceil(len(samples) / SAMPLING_RATE * _FRAME_RATE)):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts = number
                frame.time_base = Fraction(1, _FRAME_RATE)
                container.mux(video.encode(frame))
            container.mux(video.encode())
        frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = SAMPLING_RATE
        frame.pts = 0
        frame.time_base = Fraction(1, SAMPLING_RATE)
        container.mux(audio.encode(frame))
        container.mux(audio.encode())


def _row(clip: ComposedClip, split: str, number: int, understood: Mapping[str, str]) -> dict[str, Any]:
    """The line of a clip in the annotation, with the columns of a generated one."""
    path = f"{split}/{number:06d}.mp4"
    subtitle = None
    if clip.absent != "subtitle":
        subtitle = subtitle_of(clip.pair, understood) or None
    return {
        "video_id": f"composed_{split}_{number:06d}",
        "caption": clip.caption,
        "video_path": None if clip.absent == "video" else path,
        "audio_path": path,
        "subtitle": subtitle,
        "title": None if clip.absent == "title" else clip.sound.title,
        "kind": clip.kind,
        "about": list(clip.about),
        "mentions": {name: ["content"] for name in clip.about},
        "concepts": {},
        "attributes": {name: {"content": value} for name, value in clip.contents.items()},
        "shared": {},
    }


def _write_split(
    folder: Path,
    split: str,
    clips: Sequence[ComposedClip],
    understood: Mapping[str, str],
    stamps: Path,
    prompts: Path,
) -> str:
    """Write the files and the annotation of a split, and return the SHA-256 of the annotation."""
    (folder / split).mkdir(parents=True)
    lines = []
    for number, clip in enumerate(clips):
        row = _row(clip, split, number, understood)
        picture = None
        if clip.absent != "video":
            picture = read_picture(stamps / clip.photograph.path)
        heard = []
        if clip.absent != "title":
            heard.append(read_sound(stamps / clip.sound.path))
        if clip.absent != "subtitle":
            heard.append(read_speech(clip.pair, prompts))
        write_clip(folder / row["audio_path"], picture, np.concatenate(heard))
        lines.append(json.dumps(row) + "\n")
    content = "".join(lines).encode()
    (folder / f"{split}.jsonl").write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def write_composed(config: MiniatureConfig, stamps: Path = STAMPS, prompts: Path = PROMPTS) -> Path:
    """
    Write one draw of composed clips: the half that fits as validation clips, the half that is shown as test clips.

    Args:
        config ([`~evidence.settings.MiniatureConfig`]): `output`, a new folder, `seed` and `complete`.
        stamps (`Path`), prompts (`Path`): the folders of both packages.

    Returns:
        `Path`: the folder, with `<split>/` and `<split>.jsonl` for each split, and `miniature.json`.

    Raises:
        ValueError: another setting was chosen, or there is something in the folder.
        FileNotFoundError, ModuleNotFoundError: a package, or the recogniser, is not installed.
    """
    check_settings(config)
    output = Path(config.output).absolute()
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"{output} is not empty. Choose another folder or remove it.")
    understood = recognise(prompts)
    clips: dict[str, list[ComposedClip]] = dict.fromkeys(SPLITS, [])
    for split, half in read_halves(stamps, prompts).items():
        clips[split] = draw(half, config.seed, config.complete)
    readers = {"all": None} | {modality: modality for modality in MODALITIES}
    manifest: dict[str, Any] = {
        "version": VERSION,
        "media": "stamps",
        "seed": config.seed,
        "shared": 0.0,
        "complete": config.complete,
        "disagree": 0.0,
        "evidence": ["title"],
        "alone": False,
        "absent": {},
        "kinds": {},
        "recall_at_1_ceilings": {},
        "sha256": {},
    }
    for split, drawn in clips.items():
        kinds = Counter(clip.kind for clip in drawn)
        absent = Counter(clip.absent for clip in drawn)
        manifest[f"num_{split}"] = len(drawn)
        manifest["absent"][split] = {name: absent[name] for name in MODALITIES}
        manifest["kinds"][split] = {kind: kinds[kind] for kind in KINDS}
        manifest["recall_at_1_ceilings"][split] = {
            name: recall_ceilings(drawn, modality) for name, modality in readers.items()
        }
        manifest["sha256"][f"{split}.jsonl"] = _write_split(output, split, drawn, understood, stamps, prompts)
    # The manifest comes last: a folder without it is unfinished.
    (output / "miniature.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return output


__all__ = ["check_settings", "write_clip", "write_composed"]
