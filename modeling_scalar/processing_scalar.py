"""Clips and captions to the tensors of `ScalarModel`.

What a clip has is decided here, once: a modality that a file lacks is absent in `modality_mask`. Nothing is imputed
and no clip is dropped; the zeros in the row of an absent modality are transport only.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.feature_extraction_utils import BatchFeature, FeatureExtractionMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import logging

from .configuration_scalar import MODALITIES
from .decoding_scalar import (
    frame_indices,
    prepare_frames,
    read_audio,
    read_audio_parts,
    read_frames,
    read_subtitle,
    read_subtitle_track,
)
from .media_scalar import SAMPLING_RATE, Limits, MediaError, find_sidecar, resample

logger = logging.get_logger(__name__)

PRESENCES = ("honest", "vast")


class _FromVideo(Enum):
    FROM_VIDEO = "from_video"

    def __repr__(self):
        return self.name


FROM_VIDEO = _FromVideo.FROM_VIDEO
"""Take the sound or the subtitle from the video file, if it has one."""


@dataclass
class Clip:
    """One clip as read. `None` is a modality that the clip does not have.

    It holds frames and sound as they were decoded or, read with `processed=True`, what the model takes of them.

    Args:
        frames (uint8 `np.ndarray` of shape `(frames, height, width, 3)`, *optional*): RGB.
        waveform (float32 `np.ndarray` of shape `(samples,)`, *optional*): mono in [-1, 1] at 16 kHz.
        subtitle (`str`, *optional*): plain text.
        problems (`list[str]`): what could not be decoded and counts as absent, a line each.
        path (`str`, *optional*): where it came from.
        pixel_values (`torch.FloatTensor` of shape `(frames, 3, height, width)`, *optional*): in place of `frames`.
        input_features (`torch.FloatTensor` of shape `(segments, time, mel)`, *optional*): in place of `waveform`.
        num_samples (`int`, *optional*): of the sound that `input_features` were made of.
    """

    frames: np.ndarray | None = None
    waveform: np.ndarray | None = None
    subtitle: str | None = None
    problems: list[str] = field(default_factory=list)
    path: str | None = None
    pixel_values: torch.Tensor | None = None
    input_features: torch.Tensor | None = None
    num_samples: int | None = None

    @property
    def has_video(self) -> bool:
        """Whether there are pictures."""
        return self.frames is not None or self.pixel_values is not None

    @property
    def has_audio(self) -> bool:
        """Whether there is sound."""
        return self.waveform is not None or self.input_features is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is neither picture nor sound nor a word of subtitle: such a clip cannot be retrieved."""
        return not self.has_video and not self.has_audio and not (self.subtitle or "").strip()

    @property
    def duration(self) -> float | None:
        """Seconds of sound."""
        num_samples = self.num_samples if self.waveform is None else len(self.waveform)
        return None if num_samples is None else num_samples / SAMPLING_RATE


def _is_path(item: Any) -> bool:
    return isinstance(item, (str, os.PathLike))


def _take_frames(video: Any, num_frames: int | None, training: bool, generator: torch.Generator | None):
    if isinstance(video, (np.ndarray, torch.Tensor)):
        available, take = len(video), video.__getitem__
    elif hasattr(video, "get_frames_at"):  # torchcodec.decoders.VideoDecoder
        available, take = len(video), lambda indices: video.get_frames_at(indices=indices).data
    else:
        raise TypeError(
            "A video must be a path, uint8 frames, a decoder with `get_frames_at(indices=...)` and a length, or None, "
            f"got {type(video).__name__}."
        )
    if available == 0:
        return None
    if num_frames is None:
        indices = list(range(available))
    else:
        indices = frame_indices(available, num_frames, training, generator)
    try:
        frames = take(indices)
    except RuntimeError as error:  # torchcodec's class for every decoding failure
        raise MediaError(f"{video!r}: the frames {indices} do not decode ({error}).") from error
    frames = np.asarray(frames)
    if frames.ndim != 4 or 3 not in (frames.shape[1], frames.shape[3]):
        raise ValueError(
            "Frames of a clip must have the shape (frames, height, width, 3) or (frames, 3, height, width), "
            f"got {frames.shape}."
        )
    return frames if frames.shape[3] == 3 else np.moveaxis(frames, 1, 3)


def _take_waveform(audio: Any) -> np.ndarray | None:
    if isinstance(audio, (np.ndarray, torch.Tensor)):
        return np.asarray(audio)
    if hasattr(audio, "get_all_samples"):  # torchcodec.decoders.AudioDecoder
        try:
            samples = audio.get_all_samples()
        except RuntimeError as error:
            raise MediaError(f"{audio!r}: the sound does not decode ({error}).") from error
        return resample(np.asarray(samples.data), int(samples.sample_rate))
    raise TypeError(
        f"An audio must be a path, a waveform at {SAMPLING_RATE} Hz, a decoder with `get_all_samples()`, None or "
        f"FROM_VIDEO, got {type(audio).__name__}."
    )


def _read_text(subtitle: Any, video: Any, limits: Limits) -> str | None:
    if subtitle is FROM_VIDEO:
        if not _is_path(video):
            return None
        sidecar = find_sidecar(video)
        return read_subtitle_track(video, limits) if sidecar is None else read_subtitle(sidecar, limits)
    if isinstance(subtitle, os.PathLike) or (
        isinstance(subtitle, str) and subtitle.lower().endswith((".srt", ".vtt")) and "\n" not in subtitle
    ):
        return read_subtitle(subtitle, limits)
    if isinstance(subtitle, str):
        return subtitle
    raise TypeError(
        "A subtitle must be its text, the path of an .srt or .vtt file, None or FROM_VIDEO, got "
        f"{type(subtitle).__name__}."
    )


def _one_per_clip(name: str, items: Any, num_clips: int) -> list:
    if not isinstance(items, (list, tuple)):
        if items is None or items is FROM_VIDEO:
            return [items] * num_clips
        items = [items]
    if len(items) != num_clips:
        raise ValueError(f"`{name}` must have one entry per clip: expected {num_clips}, got {len(items)}.")
    return list(items)


def _one_generator_per_clip(generator: Any, num_clips: int) -> list[torch.Generator | None]:
    if generator is None or isinstance(generator, torch.Generator):
        return [generator] * num_clips
    if len(generator) != num_clips:
        raise ValueError(f"`generator` must be one, or one per clip: expected {num_clips}, got {len(generator)}.")
    return list(generator)


class ScalarProcessor(ProcessorMixin):
    """Read clips and turn them, and captions, into the inputs of `ScalarModel`.

    Args:
        image_processor (`ScalarImageProcessor`), feature_extractor (`ScalarFeatureExtractor`), tokenizer: the parts.
        num_frames (`int`), num_train_frames (`int`): frames of a clip at test time and in training.
        max_text_length (`int`), max_subtitle_length (`int`): tokens, with the special ones; longer texts are cut.
        presence (`str`): `"honest"`: a subtitle without a word is a missing modality. `"vast"`: it is an empty
            present one, as VAST's loaders have it; for parity runs.

    Attributes:
        limits ([`Limits`]): what reading a file may take, set by whoever reads: it belongs to the machine and is not
            saved, `processor.limits = Limits(memory=2**31)`.
    """

    def __init__(
        self,
        image_processor: BaseImageProcessor,
        feature_extractor: FeatureExtractionMixin,
        tokenizer: PreTrainedTokenizerBase,
        num_frames: int = 8,
        num_train_frames: int = 2,
        max_text_length: int = 40,
        max_subtitle_length: int = 70,
        presence: str = "honest",
    ):
        if presence not in PRESENCES:
            raise ValueError(f"`presence` must be one of {PRESENCES}, got {presence!r}.")
        self.num_frames = num_frames
        self.num_train_frames = num_train_frames
        self.max_text_length = max_text_length
        self.max_subtitle_length = max_subtitle_length
        self.presence = presence
        for name in ("num_frames", "num_train_frames", "max_text_length", "max_subtitle_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)!r}.")
        super().__init__(image_processor, feature_extractor, tokenizer)
        self.limits = Limits()

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        """As in `ProcessorMixin`, but without Pillow too: its class of image processors is a placeholder there."""
        if argument_name == "image_processor" and isinstance(argument, BaseImageProcessor):
            return BaseImageProcessor
        return super().check_argument_for_proper_class(argument_name, argument)

    @property
    def model_input_names(self) -> list[str]:
        """The keys that a call can return."""
        return [
            "input_ids",
            "attention_mask",
            "pixel_values_videos",
            "input_features",
            "subtitle_input_ids",
            "subtitle_attention_mask",
            "modality_mask",
        ]

    def read_clip(
        self,
        video: Any,
        audio: Any = FROM_VIDEO,
        subtitle: Any = FROM_VIDEO,
        *,
        num_frames: int | str | None = None,
        training: bool = False,
        generator: torch.Generator | None = None,
        on_error: str = "raise",
        processed: bool = False,
    ) -> Clip:
        """Read what one clip has. A clip with nothing left is returned as it is; a call of the processor refuses it.

        Args:
            video: a path, uint8 frames, a torchcodec `VideoDecoder` (or anything with a length and
                `get_frames_at(indices=...).data`), or `None`.
            audio: a path, a waveform `(samples,)` at 16 kHz, a torchcodec `AudioDecoder` built without
                `num_channels` (or anything with `get_all_samples()`), `None`, or `FROM_VIDEO`: the track of the video
                file, where `video` is a path.
            subtitle: a text, the path of an `.srt` or `.vtt` file, `None`, or `FROM_VIDEO`: the file beside the video
                (`find_sidecar`), else the first text track inside, where `video` is a path.
            num_frames (`int`, *optional*): default the setting for `training`; `"all"` keeps all frames, from which a
                later call chooses as reading would have.
            training (`bool`), generator (`torch.Generator`): see `frame_indices`.
            on_error (`str`): what a stream that cannot be decoded does: `"raise"` a `MediaError`, or count as
                `"missing"`, with a warning and a line in `Clip.problems`. A file that does not exist always raises.
            processed (`bool`): keep only what the model takes, `pixel_values` and `input_features`: never more than
                one whole frame is held. A later call of the processor must be in the same mode; its batch is the one
                that it makes of raw clips, and what is drawn is the same.
        Returns:
            `Clip`. Sound shorter than one 25 ms window is absent, with a line in `problems`.
        Raises:
            FileNotFoundError: a path without a file.
            MediaError: a stream cannot be decoded and `on_error="raise"`.
            LimitError: a `MediaError`, because it would take more than `self.limits`.
        """
        if on_error not in ("raise", "missing"):
            raise ValueError(f"`on_error` must be 'raise' or 'missing', got {on_error!r}.")
        if training and generator is None:
            raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
        if num_frames is None:
            num_frames = self.num_train_frames if training else self.num_frames
        elif num_frames == "all":
            if processed:
                raise ValueError('`num_frames="all"` keeps frames to choose from later: they cannot be processed yet.')
            num_frames = None
        if audio is FROM_VIDEO:
            audio = video if _is_path(video) else None
        clip = Clip(path=next((os.fspath(item) for item in (video, audio) if _is_path(item)), None))

        def read(reader: Callable, item: Any, *arguments: Any) -> None:
            if item is None:
                return
            try:
                reader(clip, item, *arguments)
            except MediaError as error:
                if on_error == "raise":
                    raise
                self._note(clip, str(error))

        read(self._read_video, video, num_frames, training, generator, processed)
        read(self._read_audio, audio, training, generator, processed)
        read(self._read_subtitle, subtitle, video)
        return clip

    def _read_video(
        self, clip: Clip, video: Any, num_frames: int | None, training, generator, processed: bool
    ) -> None:
        options = {"training": training, "generator": generator}
        if not _is_path(video):
            clip.frames = _take_frames(video, num_frames, **options)
            if processed and clip.frames is not None:
                clip.pixel_values, clip.frames = self.image_processor.process_frames(clip.frames, **options), None
        elif processed:
            prepare = self.image_processor.prepare(**options)
            frames = prepare_frames(video, prepare, num_frames, **options, limits=self.limits)
            clip.pixel_values = None if frames is None else torch.stack(frames)
        else:
            clip.frames = read_frames(video, num_frames, **options, limits=self.limits)

    def _read_audio(self, clip: Clip, audio: Any, training, generator, processed: bool) -> None:
        extractor, num_samples = self.feature_extractor, None
        if _is_path(audio) and processed:

            def choose(available: int) -> list[tuple[int, int]]:
                return (
                    [] if available < extractor.min_samples else extractor.choose_parts(available, training, generator)
                )

            if (read := read_audio_parts(audio, choose, generator, self.limits)) is not None:
                parts, num_samples = read
                if parts:
                    clip.input_features, clip.num_samples = extractor.process_parts(parts), num_samples
        else:
            waveform = read_audio(audio, self.limits) if _is_path(audio) else _take_waveform(audio)
            if waveform is not None and waveform.ndim == 1:
                num_samples = len(waveform)
            if num_samples is None or num_samples >= extractor.min_samples:
                clip.waveform = waveform
                if processed and waveform is not None:
                    clip.input_features = extractor.process_waveform(waveform, training, generator)
                    clip.waveform, clip.num_samples = None, num_samples
        if num_samples is not None and num_samples < extractor.min_samples:
            self._note(
                clip,
                f"{clip.path or 'waveform'}: audio of {num_samples} samples, shorter than one 25 ms window "
                f"({extractor.min_samples}): counts as absent.",
            )

    def _read_subtitle(self, clip: Clip, subtitle: Any, video: Any) -> None:
        clip.subtitle = _read_text(subtitle, video, self.limits)

    @staticmethod
    def _note(clip: Clip, problem: str) -> None:
        if problem not in clip.problems:  # a file that does not open fails for each of its modalities
            clip.problems.append(problem)
            logger.warning(problem)

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        clips: Sequence[Clip] | Clip | None = None,
        videos: Any = None,
        audios: Any = FROM_VIDEO,
        subtitles: Any = FROM_VIDEO,
        training: bool = False,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        on_error: str = "raise",
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """Prepare captions, clips, or both.

        Args:
            text (`str` or `list[str]`, *optional*): captions.
            clips (`list[Clip]`, *optional*): what `read_clip` returned. With more or fewer frames than the setting,
                frames are chosen here by the same rule.
            videos, audios, subtitles (*optional*): instead of `clips`: an item or a list with one per clip, as
                `read_clip` takes them. `None` alone means that no clip has the modality.
            training (`bool`): `num_train_frames` frames, and random frames, crops, flips and audio segments.
            generator (`torch.Generator`, or a list with one per clip): source of all randomness, required in training.
                With one per clip, what is drawn for a clip does not depend on the others in the batch.
            on_error (`str`): see `read_clip`.
            return_tensors (`str`): `"pt"` or `"np"`.
        Returns:
            `BatchFeature` with, for captions, `input_ids` and `attention_mask`; for clips `modality_mask`
            `(batch, 3)`, bool, in the order of `MODALITIES`, and, where at least one clip has the modality,
            `pixel_values_videos` `(batch, frames, 3, height, width)`, `input_features`
            `(batch, segments, time, mel)`, `subtitle_input_ids` and `subtitle_attention_mask` `(batch, tokens)`.
            Rows of absent modalities hold zeros and padding.
        Raises:
            ValueError: a clip without any modality, or arguments that do not fit together.
            MediaError: a stream cannot be decoded and `on_error="raise"`.

        Example:

            >>> batch = processor(text=["a dog barks"], videos=["dog.mp4"])  # doctest: +SKIP
            >>> batch["modality_mask"]  # doctest: +SKIP
            tensor([[ True,  True, False]])
        """
        if training and generator is None:
            raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
        streams_given = any(
            isinstance(item, (list, tuple)) or not (item is None or item is FROM_VIDEO)
            for item in (videos, audios, subtitles)
        )
        if clips is not None and streams_given:
            raise ValueError("Pass either `clips` or `videos`, `audios` and `subtitles`, not both.")
        if text is None and clips is None and not streams_given:
            raise ValueError("Nothing to process: pass `text`, `clips`, or `videos`, `audios` or `subtitles`.")
        data = {}
        if text is not None:
            data |= self._tokenize([text] if isinstance(text, str) else list(text), self.max_text_length)
        if streams_given:
            clips = self._read_clips(videos, audios, subtitles, training, generator, on_error)
        if clips is not None:
            clips = list(clips) if isinstance(clips, (list, tuple)) else [clips]
            data |= self._process_clips(clips, training, generator)
        return BatchFeature(data, tensor_type=return_tensors)

    def _read_clips(self, videos, audios, subtitles, training, generator, on_error) -> list[Clip]:
        lengths = [len(items) for items in (videos, audios, subtitles) if isinstance(items, (list, tuple))]
        num_clips = lengths[0] if lengths else 1
        rows = zip(
            _one_per_clip("videos", videos, num_clips),
            _one_per_clip("audios", audios, num_clips),
            _one_per_clip("subtitles", subtitles, num_clips),
            strict=True,
        )
        generators = _one_generator_per_clip(generator, num_clips)
        # a generator that clips share is drawn from for the frames of all before the crop of the first
        processed = not (training and isinstance(generator, torch.Generator) and num_clips > 1)
        return [
            self.read_clip(*row, training=training, generator=generator, on_error=on_error, processed=processed)
            for row, generator in zip(rows, generators, strict=True)
        ]

    def _tokenize(self, texts: list[str], max_length: int) -> dict[str, torch.Tensor]:
        if not texts:
            raise ValueError("`text` is an empty list: pass at least one caption, or None.")
        tokens = self.tokenizer(
            texts,
            padding="longest",
            truncation=True,
            max_length=max_length,
            return_token_type_ids=False,
            return_tensors="pt",
        )
        return {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}

    def _has_subtitle(self, clip: Clip) -> bool:
        return clip.subtitle is not None and (self.presence == "vast" or bool(clip.subtitle.strip()))

    def _process_clips(self, clips: list[Clip], training, generator) -> dict[str, torch.Tensor]:
        if not clips:
            raise ValueError("The list of clips is empty: pass at least one clip.")
        modality_mask = torch.tensor(
            [[clip.has_video, clip.has_audio, self._has_subtitle(clip)] for clip in clips]
        )  # (batch, 3)
        if empty := (~modality_mask.any(dim=1)).nonzero().flatten().tolist():
            names = ", ".join(f"{row} ({clips[row].path or 'no path'})" for row in empty)
            problems = "".join(f"\n  {problem}" for row in empty for problem in clips[row].problems)
            raise ValueError(
                f"Every clip needs at least one of {MODALITIES}; these have none: {names}. Leave them out.{problems}"
            )
        has_video, has_audio, has_subtitle = modality_mask.unbind(dim=1)
        num_frames = self.num_train_frames if training else self.num_frames
        generators = _one_generator_per_clip(generator, len(clips))
        data = {"modality_mask": modality_mask}
        if has_video.any():
            rows = [
                self._process_frames(clip, num_frames, training, generator)
                for clip, generator in zip(clips, generators, strict=True)
                if clip.has_video
            ]
            data["pixel_values_videos"] = _scatter(has_video, rows)
        if has_audio.any():
            rows = [
                self.feature_extractor.process_waveform(clip.waveform, training, generator)
                if clip.input_features is None
                else clip.input_features
                for clip, generator in zip(clips, generators, strict=True)
                if clip.has_audio
            ]
            data["input_features"] = _scatter(has_audio, rows)
        if has_subtitle.any():
            texts = [c.subtitle for c in clips if self._has_subtitle(c)]
            tokens = self._tokenize(texts, self.max_subtitle_length)
            data["subtitle_input_ids"] = _scatter(has_subtitle, tokens["input_ids"], self.tokenizer.pad_token_id)
            data["subtitle_attention_mask"] = _scatter(has_subtitle, tokens["attention_mask"])
        return data

    def _process_frames(self, clip: Clip, num_frames: int, training: bool, generator) -> torch.Tensor:
        if clip.pixel_values is not None:
            if len(clip.pixel_values) != num_frames:
                raise ValueError(
                    f"{clip.path}: {len(clip.pixel_values)} frames were read with `processed=True`, {num_frames} are "
                    "needed. Read the clip in the mode of this call, or raw."
                )
            return clip.pixel_values
        frames = clip.frames
        if len(frames) != num_frames:
            frames = frames[frame_indices(len(frames), num_frames, training, generator)]
        return self.image_processor.process_frames(frames, training, generator)


def _scatter(present: torch.Tensor, rows: Sequence[torch.Tensor], fill: float = 0) -> torch.Tensor:
    """Put the rows of present clips in their places of the batch, `fill` elsewhere."""
    rows = rows if isinstance(rows, torch.Tensor) else torch.stack(rows)
    if bool(present.all()):
        return rows
    full = rows.new_full((len(present), *rows.shape[1:]), fill)
    full[present] = rows
    return full


ScalarProcessor.register_for_auto_class("AutoProcessor")

__all__ = ["FROM_VIDEO", "PRESENCES", "Clip", "ScalarProcessor"]
