"""Clips and captions to the tensors of `ScalarModel`.

What a clip has is decided here, once: a modality that a file lacks is absent in `modality_mask`. Nothing is imputed
and no clip is dropped; the zeros in the row of an absent modality are transport only.
"""

import copy
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.feature_extraction_utils import BatchFeature, FeatureExtractionMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessingKwargs, TextKwargs
from transformers.utils import logging

from .configuration_scalar import MODALITIES, in_package
from .feature_extraction_scalar import ScalarAudioKwargs, check_sampling_rate, is_number, list_waveforms, to_waveform
from .image_processing_scalar import ScalarImageProcessorKwargs, frame_indices, is_picture, to_batch, to_frames
from .media_scalar import SAMPLING_RATE, MediaError, MediaReader, Window, resample

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
        num_samples (`int`, *optional*): of the whole sound, if what is held is made of it or a part of it.
        sampling_rate (`int`): of `waveform` and `num_samples`, in Hz.
        window (`tuple[float, float | None]`, *optional*): what of the file is the clip, in seconds; None is its end.
    """

    frames: np.ndarray | None = None
    waveform: np.ndarray | None = None
    subtitle: str | None = None
    problems: list[str] = field(default_factory=list)
    path: str | None = None
    pixel_values: torch.Tensor | None = None
    input_features: torch.Tensor | None = None
    num_samples: int | None = None
    sampling_rate: int = SAMPLING_RATE
    window: Window | None = None

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
        num_samples = self.num_samples
        if num_samples is None and self.waveform is not None:
            num_samples = len(self.waveform)
        return None if num_samples is None else num_samples / self.sampling_rate


def is_path(item: Any) -> bool:
    """Whether this names a file."""
    return isinstance(item, (str, os.PathLike))


def _list_videos(videos: Any) -> list:
    """Tell one clip from a list of them: five axes are clips, and so is a list unless all in it are pictures."""
    if getattr(videos, "ndim", None) == 5:
        return list(videos)
    one = not isinstance(videos, (list, tuple)) or (videos and all(map(is_picture, videos)))
    return [videos] if one else list(videos)


def _list_images(images: Any) -> list:
    """Tell one picture from a list of them: four axes are pictures, each a clip of one frame."""
    if getattr(images, "ndim", None) == 4:
        return list(images)
    return list(images) if isinstance(images, (list, tuple)) else [images]


def _unnested(item: Any) -> Any:
    """What a list around it holds: transformers may have a list per sample, empty if the sample has nothing."""
    while isinstance(item, (list, tuple)) and len(item) < 2:
        if item and (is_picture(item[0]) or is_number(item[0])):
            break
        item = item[0] if item else None
    return item


def _take_frames(video: Any, num_frames: int | None, training: bool, generator: torch.Generator | None):
    if is_picture(video):
        video = [video]
    if isinstance(video, (np.ndarray, torch.Tensor)):
        if video.ndim != 4:
            return to_frames(video)  # which says so
        available, take = len(video), video.__getitem__
    elif isinstance(video, (list, tuple)) and all(map(is_picture, video)):
        available, take = len(video), lambda indices: [video[index] for index in indices]
    elif hasattr(video, "get_frames_at"):  # torchcodec.decoders.VideoDecoder
        available, take = len(video), lambda indices: video.get_frames_at(indices=indices).data
    else:
        kinds = sorted({type(item).__name__ for item in video}) if isinstance(video, (list, tuple)) else []
        raise TypeError(
            "A video must be a path, uint8 frames, a list of pictures, a decoder with `get_frames_at(indices=...)` "
            f"and a length, or None, got {type(video).__name__}{' of ' if kinds else ''}{', '.join(kinds)}."
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
    return to_frames(frames)


def take_waveform(audio: Any, sampling_rate: int) -> np.ndarray | None:
    """Take the sound of what is not a file; see `ScalarProcessor.read_clip`."""
    if isinstance(audio, (np.ndarray, torch.Tensor, list, tuple, Mapping)):
        return to_waveform(audio, sampling_rate)
    if hasattr(audio, "get_all_samples"):  # torchcodec.decoders.AudioDecoder
        try:
            samples = audio.get_all_samples()
        except RuntimeError as error:
            raise MediaError(f"{audio!r}: the sound does not decode ({error}).") from error
        return resample(np.asarray(samples.data), int(samples.sample_rate), sampling_rate)
    raise TypeError(
        f"An audio must be a path, a waveform at {SAMPLING_RATE} Hz, a decoder with `get_all_samples()`, None or "
        f"FROM_VIDEO, got {type(audio).__name__}."
    )


def names_subtitle_file(subtitle: Any) -> bool:
    """Whether a subtitle is the path of an `.srt` or `.vtt` file, not the words themselves."""
    return isinstance(subtitle, os.PathLike) or (
        isinstance(subtitle, str) and subtitle.lower().endswith((".srt", ".vtt")) and "\n" not in subtitle
    )


def _rewinding(generator: torch.Generator | None) -> Callable[[], Any]:
    """What sets a generator back to where it stands now: readers that begin again draw again."""
    return (lambda: None) if generator is None else partial(generator.set_state, generator.get_state())


def _one_per_clip(name: str, items: Any, num_clips: int) -> list:
    if items is None or items is FROM_VIDEO:
        return [items] * num_clips
    if len(items) != num_clips:
        raise ValueError(f"`{name}` must have one entry per clip: expected {num_clips}, got {len(items)}.")
    return items


def one_generator_per_clip(generator: Any, num_clips: int) -> list[torch.Generator | None]:
    """Give each clip its generator; one alone belongs to all."""
    if generator is None or isinstance(generator, torch.Generator):
        return [generator] * num_clips
    if len(generator) != num_clips:
        raise ValueError(f"`generator` must be one, or one per clip: expected {num_clips}, got {len(generator)}.")
    return list(generator)


class ScalarVideosKwargs(ScalarImageProcessorKwargs, total=False):
    """What may be said of the frames of clips; `video_metadata` is not needed: frames are chosen by their number."""

    do_sample_frames: bool
    video_metadata: Any


class ScalarProcessorKwargs(ProcessingKwargs, total=False):
    """The keyword groups of a call."""

    text_kwargs: TextKwargs
    images_kwargs: ScalarImageProcessorKwargs
    videos_kwargs: ScalarVideosKwargs
    audio_kwargs: ScalarAudioKwargs


_GROUPS = ("text_kwargs", "images_kwargs", "videos_kwargs", "audio_kwargs")
# Texts hold no placeholders here, so that there is nothing to tell of them.
_OF_PLACEHOLDERS = {"return_mm_token_type_ids", "return_text_replacement_offsets", "sanitize_control_tokens"}


class ScalarProcessor(ProcessorMixin):
    """Read clips and turn them, and captions, into the inputs of `ScalarModel`.

    Args:
        image_processor (`ScalarImageProcessor`), feature_extractor (`ScalarFeatureExtractor`), tokenizer: the parts.
        num_frames (`int`), num_train_frames (`int`): frames of a clip at test time and in training.
        max_text_length (`int`), max_subtitle_length (`int`): tokens, with the special ones; longer texts are cut.
        presence (`str`): `"honest"`: a subtitle without a word is a missing modality. `"vast"`: it is an empty
            present one, as VAST's loaders have it; for parity runs.

    Attributes:
        reader ([`MediaReader`]): what opens files, in this process by default. It belongs to whoever reads and is not
            saved; files of strangers are for another one, `processor.reader = gallery.decoding.SandboxedReader()`.
    """

    reader = MediaReader()
    valid_processor_kwargs = ScalarProcessorKwargs
    max_audio_seconds = math.inf  # segments are taken from all of a sound, however long it is

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

    @staticmethod
    def from_joint_encoder(name_or_path: str | os.PathLike, **options: Any) -> "ScalarProcessor":
        """
        Make the processor beside [`ScalarModel.from_joint_encoder`].

        Args:
            name_or_path (`str`): as there.
            **options: `modalities` as there, `revision`, and settings: `num_frames=16`, or a prompt in place of the
                encoder's own, say.

        Returns:
            `ScalarJointProcessor`, with the calls of this class.
        """
        return in_package("joint_encoders").processor_from_joint_encoder(name_or_path, **options)

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
        window: Window | None = None,
    ) -> Clip:
        """Read what one clip has. A clip with nothing left is returned as it is; a call of the processor refuses it.

        Args:
            video: a path, uint8 frames (see [`to_frames`]), a torchcodec `VideoDecoder` (or anything with a length
                and `get_frames_at(indices=...).data`), or `None`. A picture is a clip of one frame.
            audio: a path, a waveform at 16 kHz or with its rate (see [`to_waveform`]), a torchcodec `AudioDecoder`
                built without `num_channels` (or anything with `get_all_samples()`), `None`, or `FROM_VIDEO`: the
                track of the video file, where `video` is a path.
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
            window (`tuple[float, float | None]`, *optional*): read what a file holds from one second to another, None
                for its end, as if it were the file: frames are chosen there, and of subtitles it has those that are
                shown at some time of it. A text that is given is not cut.
        Returns:
            `Clip`. Sound shorter than one 25 ms window is absent, with a line in `problems`.
        Raises:
            FileNotFoundError: a path without a file.
            MediaError: a stream cannot be decoded and `on_error="raise"`.
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
        video, audio = _unnested(video), _unnested(audio)
        if audio is FROM_VIDEO:
            audio = video if is_path(video) else None
        clip = Clip(path=next((os.fspath(item) for item in (video, audio) if is_path(item)), None), window=window)
        if window is not None:
            if not all(item is None or is_path(item) for item in (video, audio)):
                raise ValueError("A `window` is one of files: cut what is decoded already before it is given.")
            if window[0] < 0 or (window[1] is not None and window[1] <= window[0]):
                raise ValueError(f"A `window` goes from one second to a later one, or None, got {window}.")

        def read(reader: Callable, item: Any, *arguments: Any) -> None:
            if item is None:
                return
            rewind = _rewinding(generator)
            try:
                reader(clip, item, *arguments)
            except BaseException as error:
                rewind()  # what was drawn for nothing
                if on_error == "raise" or not isinstance(error, MediaError):
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
        if not is_path(video):
            clip.frames = _take_frames(video, num_frames, **options)
            if processed and clip.frames is not None:
                clip.pixel_values, clip.frames = self.image_processor.process_frames(clip.frames, **options), None
            return
        rewind = rewind_crop = _rewinding(generator)

        def choose(available: int) -> list[int]:
            nonlocal rewind_crop
            rewind()
            indices = frame_indices(available, num_frames, **options)
            rewind_crop = _rewinding(generator)
            return indices

        def prepare(height: int, width: int) -> Callable[[np.ndarray], torch.Tensor]:
            rewind_crop()
            return self.image_processor.prepare(**options)(height, width)

        choose = None if num_frames is None else choose
        if processed:
            frames = self.reader.prepare_frames(video, prepare, choose, clip.window)
            clip.pixel_values = None if frames is None else torch.stack(frames)
        else:
            clip.frames = self.reader.read_frames(video, choose, clip.window)

    def _read_audio(self, clip: Clip, audio: Any, training, generator, processed: bool) -> None:
        rewind, rate = _rewinding(generator), self.sampling_rate
        clip.sampling_rate = rate

        def choose(available: int) -> list[tuple[int, int]]:
            rewind()
            return self._choose_sound(available, training, generator) if available >= self.min_samples else []

        if is_path(audio) and processed:
            parts, num_samples = self.reader.read_audio_parts(audio, choose, clip.window, rate) or ([], None)
        else:
            is_file = is_path(audio)
            sound = self.reader.read_audio(audio, clip.window, rate) if is_file else take_waveform(audio, rate)
            num_samples = None if sound is None else len(sound)
            if num_samples is not None and num_samples >= self.min_samples and not processed:
                clip.waveform = sound
            parts = [sound[start:stop] for start, stop in choose(num_samples)] if num_samples and processed else []
        if parts:
            self._keep_sound(clip, parts)
            clip.num_samples = num_samples
        if num_samples is not None and num_samples < self.min_samples:
            self._note(
                clip,
                f"{clip.path or 'waveform'}: audio of {num_samples} samples, shorter than one "
                f"{1000 * self.min_samples / rate:g} ms window ({self.min_samples}): counts as absent.",
            )

    @property
    def min_samples(self) -> int:
        """Samples of the shortest sound that there is: a shorter one is absent."""
        return self.feature_extractor.min_samples

    @property
    def sampling_rate(self) -> int:
        """Of the waveforms that are read, in Hz."""
        return self.feature_extractor.sampling_rate

    def _choose_sound(self, available: int, training: bool, generator: torch.Generator | None) -> list:
        return self.feature_extractor.choose_parts(available, training, generator)

    def _keep_sound(self, clip: Clip, parts: list[np.ndarray]) -> None:
        clip.input_features = self.feature_extractor.process_parts(parts)

    def _read_subtitle(self, clip: Clip, subtitle: Any, video: Any) -> None:
        if subtitle is FROM_VIDEO:
            clip.subtitle = self.reader.read_subtitle_of(video, clip.window) if is_path(video) else None
        elif names_subtitle_file(subtitle):
            clip.subtitle = self.reader.read_subtitle(subtitle, clip.window)
        elif isinstance(subtitle, str):
            clip.subtitle = subtitle
        else:
            raise TypeError(
                "A subtitle must be its text, the path of an .srt or .vtt file, None or FROM_VIDEO, got "
                f"{type(subtitle).__name__}."
            )

    @staticmethod
    def _note(clip: Clip, problem: str) -> None:
        if problem not in clip.problems:  # a file that does not open fails for each of its modalities
            clip.problems.append(problem)
            # a name may hold what moves a terminal's cursor
            logger.warning("".join(char if char.isprintable() else ascii(char)[1:-1] for char in problem))

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        images: Any = None,
        videos: Any = None,
        audio: Any = FROM_VIDEO,
        *,
        subtitles: Any = FROM_VIDEO,
        clips: Sequence[Clip] | Clip | None = None,
        training: bool = False,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        on_error: str = "raise",
        **kwargs: Unpack[ScalarProcessorKwargs],
    ) -> BatchFeature:
        """Prepare captions, clips, or both.

        Args:
            text (`str` or `list[str]`, *optional*): captions.
            videos, audio, subtitles (*optional*): an item or a list with one per clip, as `read_clip` takes them.
                `None` alone means that no clip has the modality. A list of pictures is one clip, and so are frames
                of four axes; five axes are a batch of clips. A list of numbers is one waveform.
            images (*optional*): in place of `videos`, for clips of one frame: a picture, a list, or a batch of four
                axes. A list in the list is a clip of several.
            clips (`list[Clip]`, *optional*): what `read_clip` returned, in place of all these. With more or fewer
                frames than the setting, frames are chosen here by the same rule.
            training (`bool`): `num_train_frames` frames, and random frames, crops, flips and audio segments.
            generator (`torch.Generator`, or a list with one per clip): source of all randomness, required in training.
                With one per clip, what is drawn for a clip does not depend on the others in the batch.
            on_error (`str`): see `read_clip`.
            **kwargs: as for all processors of transformers, alone or in their groups. `text_kwargs` (`padding`,
                `truncation`, `max_length`, ...) go to the tokenizer of captions, in place of padding to the longest
                and cutting at `max_text_length`; subtitles keep their own. `images_kwargs` and `videos_kwargs` are
                settings of the image processor for this call; `do_sample_frames=False` keeps all frames of a clip.
                `audio_kwargs`: `sampling_rate` of the waveforms, which must be the feature extractor's.
                `return_tensors`: `"pt"`, the default, `"np"`, or `None` for lists, with an array per clip.
        Returns:
            `BatchFeature` with, for captions, `input_ids` and `attention_mask`; for clips `modality_mask`
            `(batch, 3)`, bool, in the order of `MODALITIES`, and, where at least one clip has the modality,
            `pixel_values_videos` `(batch, frames, 3, height, width)`, `input_features`
            `(batch, segments, time, mel)`, `subtitle_input_ids` and `subtitle_attention_mask` `(batch, tokens)`.
            Rows of absent modalities hold zeros and padding.
        Raises:
            TypeError: a keyword that does not exist, or an item of another kind.
            StrictDataclassError: a keyword of a value of another type.
            ValueError: a clip without any modality, or arguments that do not fit together.
            MediaError: a stream cannot be decoded and `on_error="raise"`.

        Example:

            >>> batch = processor(text=["a dog barks"], videos=["dog.mp4"])  # doctest: +SKIP
            >>> batch["modality_mask"]  # doctest: +SKIP
            tensor([[ True,  True, False]])
        """
        if training and generator is None:
            raise ValueError("`training=True` draws at random: pass a seeded `generator=torch.Generator()`.")
        text_options, frame_options, return_tensors = self._options(kwargs)
        if images is not None:
            if videos is not None:
                raise ValueError(
                    "`images` and `videos` are both the pictures of clips: pass one of them. A picture among `videos` "
                    "is a clip of one frame."
                )
            videos = _list_images(images)
        elif videos is not None:
            videos = _list_videos(videos)
        if audio is not None and audio is not FROM_VIDEO:
            audio = list_waveforms(audio)
        if subtitles is not None and subtitles is not FROM_VIDEO:
            subtitles = list(subtitles) if isinstance(subtitles, (list, tuple)) else [subtitles]
        streams_given = any(not (items is None or items is FROM_VIDEO) for items in (videos, audio, subtitles))
        if clips is not None and streams_given:
            raise ValueError("Pass either `clips` or `videos`, `audio` and `subtitles`, not both.")
        if text is None and clips is None and not streams_given:
            raise ValueError(
                "Nothing to process: pass `text`, `clips`, or `images`, `videos`, `audio` or `subtitles`."
            )
        data = {}
        if text is not None:
            data |= self._tokenize_captions(text, text_options, return_tensors)
        num_frames = self.num_train_frames if training else self.num_frames
        if not frame_options.pop("do_sample_frames", True):
            num_frames = None  # all of each clip
        reader = self
        if frame_options:
            reader = copy.copy(self)
            reader.image_processor = self.image_processor.replace(**frame_options)
        if streams_given:
            clips = reader._read_clips(videos, audio, subtitles, training, generator, on_error, num_frames)
        if clips is not None:
            clips = list(clips) if isinstance(clips, (list, tuple)) else [clips]
            if frame_options and not streams_given and any(clip.pixel_values is not None for clip in clips):
                raise ValueError(f"Clips read with `processed=True` cannot be given other {sorted(frame_options)}.")
            data |= reader._process_clips(clips, num_frames, training, generator)
        return self._batch_of(data, return_tensors)

    def _batch_of(self, data: dict[str, Any], return_tensors: str | None) -> BatchFeature:
        return to_batch(data, return_tensors)

    def _options(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        """What the keywords of a call say of captions, of frames, and of the kind of tensors."""
        given = dict(given)
        common = dict(given.pop("common_kwargs", None) or {})
        flat, misplaced = (common.keys() | given.keys()) - {*_GROUPS} - _OF_PLACEHOLDERS, set()
        for group in _GROUPS:
            names, own = self.valid_processor_kwargs.__annotations__[group].__annotations__.keys(), given.get(group)
            if not isinstance(own or {}, Mapping):
                raise TypeError(f"`{group}` must be a dictionary, got {type(own).__name__}.")
            shared = {name: common[name] for name in common.keys() & names - given.keys()}
            given[group] = shared | dict(own or {})
            flat, misplaced = flat - names, misplaced | given[group].keys() - names
        if unknown := sorted(flat | misplaced):
            raise TypeError(f"{type(self).__name__} got unexpected keyword arguments {unknown}.")
        asked = [group["return_tensors"] for group in (given, *map(given.get, _GROUPS)) if "return_tensors" in group]
        if len(asked := {getattr(kind, "value", kind) for kind in asked}) > 1:
            raise ValueError(f"A batch has one kind of tensors: `return_tensors` must agree, got {asked}.")
        tokenizer_settings = getattr(self.tokenizer, "init_kwargs", {})
        groups = self._merge_kwargs(self.valid_processor_kwargs, tokenizer_init_kwargs=tokenizer_settings, **given)
        check_sampling_rate(groups["audio_kwargs"].get("sampling_rate"), self.feature_extractor.sampling_rate)
        for name in _OF_PLACEHOLDERS:
            if groups.get(name) or groups["text_kwargs"].pop(name, None):
                raise ValueError(f"`{name}` is about placeholders in texts, which this processor does not have.")
        texts, images, videos = (
            {name: value for name, value in groups[group].items() if value is not None and name != "return_tensors"}
            for group in ("text_kwargs", "images_kwargs", "videos_kwargs")
        )
        videos.pop("video_metadata", None)
        for name in images.keys() & videos.keys():
            if images[name] != videos[name]:
                raise ValueError(f"`images_kwargs` and `videos_kwargs` disagree about `{name}`; pass one of them.")
        return texts, images | videos, asked.pop() if asked else "pt"

    def _read_clips(self, videos, audio, subtitles, training, generator, on_error, num_frames) -> list[Clip]:
        streams = {"videos": videos, "audio": audio, "subtitles": subtitles}
        num_clips = next(len(items) for items in streams.values() if isinstance(items, list))
        rows = zip(*(_one_per_clip(name, items, num_clips) for name, items in streams.items()), strict=True)
        generators = one_generator_per_clip(generator, num_clips)
        options = {"training": training, "on_error": on_error}
        if num_frames is None:
            options |= {"num_frames": "all", "processed": False}
        else:
            # a generator that clips share is drawn from for the frames of all before the crop of the first
            options["processed"] = not (training and isinstance(generator, torch.Generator) and num_clips > 1)
        return [
            self.read_clip(*row, generator=generator, **options)
            for row, generator in zip(rows, generators, strict=True)
        ]

    def _tokenize_captions(self, text: Any, options: dict[str, Any], return_tensors: str | None) -> Mapping[str, Any]:
        if not isinstance(text, (str, Iterable)):
            raise TypeError(f"`text` must be a string or a list of strings, got {type(text).__name__}.")
        texts = [text] if isinstance(text, str) else list(text)
        strange = {type(item).__name__ for item in texts if not isinstance(item, str)}
        if strange and not options.get("is_split_into_words"):
            raise TypeError(
                f"`text` must be a string or a list of strings, got a list of {', '.join(sorted(strange))}."
            )
        return self._tokenize(texts, {"max_length": self.max_text_length} | options, return_tensors)

    def _tokenize(self, texts: list, options: dict[str, Any], return_tensors: str | None = "pt") -> Mapping[str, Any]:
        if not texts:
            raise ValueError("`text` is an empty list: pass at least one caption, or None.")
        default = {"padding": "longest", "truncation": True, "return_token_type_ids": False}
        return dict(self.tokenizer(texts, **(default | options), return_tensors=return_tensors))

    def _has_subtitle(self, clip: Clip) -> bool:
        return clip.subtitle is not None and (self.presence == "vast" or bool(clip.subtitle.strip()))

    def _presence_of(self, clips: list[Clip]) -> torch.Tensor:
        """Which modalities each clip has, (batch, 3)."""
        if not clips:
            raise ValueError("The list of clips is empty: pass at least one clip.")
        modality_mask = torch.tensor([self._has(clip) for clip in clips])
        if empty := (~modality_mask.any(dim=1)).nonzero().flatten().tolist():
            names = ", ".join(f"{row} ({clips[row].path or 'no path'})" for row in empty)
            problems = "".join(f"\n  {problem}" for row in empty for problem in clips[row].problems)
            raise ValueError(
                f"Every clip needs at least one of {MODALITIES}; these have none: {names}. Leave them out.{problems}"
            )
        return modality_mask

    def _has(self, clip: Clip) -> list[bool]:
        """Whether a clip has video, audio and subtitle."""
        return [clip.has_video, clip.has_audio, self._has_subtitle(clip)]

    def _process_clips(
        self, clips: list[Clip], num_frames: int | None, training: bool, generator: Any
    ) -> dict[str, torch.Tensor]:
        modality_mask = self._presence_of(clips)
        has_video, has_audio, has_subtitle = modality_mask.unbind(dim=1)
        generators = one_generator_per_clip(generator, len(clips))
        data = {"modality_mask": modality_mask}
        if has_video.any():
            rows = self._process_videos_of(clips, has_video, num_frames, training, generators)
            data["pixel_values_videos"] = scatter(has_video, rows)
        if has_audio.any():
            rows = [
                self.feature_extractor.process_waveform(clip.waveform, training, generator)
                if clip.input_features is None
                else clip.input_features
                for clip, generator in zip(clips, generators, strict=True)
                if clip.has_audio
            ]
            data["input_features"] = scatter(has_audio, rows)
        if has_subtitle.any():
            texts = [c.subtitle for c in clips if self._has_subtitle(c)]
            tokens = self._tokenize(texts, {"max_length": self.max_subtitle_length})
            data["subtitle_input_ids"] = scatter(has_subtitle, tokens["input_ids"], self.tokenizer.pad_token_id)
            data["subtitle_attention_mask"] = scatter(has_subtitle, tokens["attention_mask"])
        return data

    def _process_videos_of(
        self, clips: list[Clip], has_video: torch.Tensor, num_frames: int | None, training: bool, generators: list
    ) -> list[torch.Tensor]:
        rows = [
            self._process_frames(clip, num_frames, training, generator)
            for clip, generator, here in zip(clips, generators, has_video.tolist(), strict=True)
            if here
        ]
        if len({len(row) for row in rows}) > 1:
            raise ValueError(
                f"With `do_sample_frames=False` clips must have equally many frames, got {[len(r) for r in rows]}."
            )
        return rows

    def _process_frames(self, clip: Clip, num_frames: int | None, training: bool, generator) -> torch.Tensor:
        if clip.pixel_values is not None:
            if num_frames not in (None, len(clip.pixel_values)):
                raise ValueError(
                    f"{clip.path}: {len(clip.pixel_values)} frames were read with `processed=True`, {num_frames} are "
                    "needed. Read the clip in the mode of this call, or raw."
                )
            return clip.pixel_values
        frames = clip.frames
        if num_frames not in (None, len(frames)):
            frames = frames[frame_indices(len(frames), num_frames, training, generator)]
        return self.image_processor.process_frames(frames, training, generator)


def scatter(present: torch.Tensor, rows: Sequence[torch.Tensor], fill: float = 0) -> torch.Tensor:
    """Put the rows of present clips in their places of the batch, `fill` elsewhere."""
    rows = rows if isinstance(rows, torch.Tensor) else torch.stack(rows)
    if bool(present.all()):
        return rows
    full = rows.new_full((len(present), *rows.shape[1:]), fill)
    full[present] = rows
    return full


ScalarProcessor.register_for_auto_class("AutoProcessor")

__all__ = [
    "FROM_VIDEO",
    "PRESENCES",
    "Clip",
    "ScalarProcessor",
    "ScalarProcessorKwargs",
    "is_path",
    "names_subtitle_file",
    "one_generator_per_clip",
    "scatter",
    "take_waveform",
]
