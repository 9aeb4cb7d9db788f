"""Turn clips and captions into the tensors of `ScalarModel`.

The modalities of a clip are determined only here: one that a file lacks is absent in `modality_mask`. Nothing is
imputed and no clip is dropped; the rows of absent modalities hold zeros that are never read.
"""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import compress
from typing import Any, Unpack

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.feature_extraction_utils import BatchFeature, FeatureExtractionMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessingKwargs, TextKwargs
from transformers.utils import logging

from .configuration_scalar import MODALITIES, in_package
from .feature_extraction_scalar import ScalarAudioKwargs, check_sampling_rate, list_waveforms, to_waveform
from .image_processing_scalar import (
    ScalarImageProcessorKwargs,
    check_whole,
    frame_indices,
    is_picture,
    to_batch,
    to_frames,
)
from .media_scalar import MediaError, MediaReader, Window
from .modalities_scalar import kind_of
from .tracks_scalar import TEXT_FILES, names_subtitle_file

logger = logging.get_logger(__name__)


class _FromVideo(Enum):
    FROM_VIDEO = "from_video"


FROM_VIDEO = _FromVideo.FROM_VIDEO
"""Read the audio or the subtitle from the video file, if it has one."""


@dataclass
class Clip:
    """One clip as read; a missing modality is `None`.

    It holds decoded frames and audio or, if read with `processed=True`, the inputs of the model.

    Args:
        frames (uint8 `np.ndarray` of shape `(frames, height, width, 3)`, *optional*): RGB.
        waveform (float32 `np.ndarray` of shape `(samples,)`, *optional*): Mono in [-1, 1].
        subtitle (`str`, *optional*), texts (`dict[str, str]`): Plain text, and that of other modalities by name.
        problems (`list[str]`): Streams that could not be decoded and count as absent, one line each.
        path (`str`, *optional*): The file it was read from.
        pixel_values (`torch.FloatTensor` of shape `(frames, 3, height, width)`, *optional*): Instead of `frames`.
        input_features (`torch.FloatTensor` of shape `(segments, time, mel)`, *optional*): Instead of `waveform`.
        duration (`float`, *optional*): Seconds of audio that were read; only a part may be stored.
    """

    frames: np.ndarray | None = None
    waveform: np.ndarray | None = None
    subtitle: str | None = None
    problems: list[str] = field(default_factory=list)
    path: str | None = None
    pixel_values: torch.Tensor | None = None
    input_features: torch.Tensor | None = None
    duration: float | None = None
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is no picture, audio or text at all; such a clip cannot be retrieved."""
        return not any(map(self.has, (*MODALITIES, *self.texts)))

    def text_of(self, modality: str) -> str | None:
        """Return the subtitle, or the text of another modality."""
        if modality == "subtitle":
            return self.subtitle
        return self.texts.get(modality)

    def has(self, modality: str) -> bool:
        """Whether the clip has pictures, audio, or any words of the text with that name."""
        if modality == "video":
            return self.frames is not None or self.pixel_values is not None
        if modality == "audio":
            return self.waveform is not None or self.input_features is not None
        return bool((self.text_of(modality) or "").strip())


def is_path(item: Any) -> bool:
    """Whether this is a path."""
    return isinstance(item, (str, os.PathLike))


def _to_list(items: Any, batch_axes: int | None = None) -> list:
    """Return a list of items, from one item, a list, or a batch with `batch_axes` axes."""
    if isinstance(items, (list, tuple)) or (batch_axes and getattr(items, "ndim", None) == batch_axes):
        return list(items)
    return [items]


def take_frames(
    video: Any, num_frames: int | None, training: bool = False, generator: torch.Generator | None = None
) -> np.ndarray | None:
    """Choose frames of a video in memory with `frame_indices`; all if `num_frames` is None."""
    if isinstance(video, (list, tuple, np.ndarray, torch.Tensor)) and len(video) == 0:
        return None
    frames = to_frames(video)
    if num_frames is None:
        return frames
    return frames[frame_indices(len(frames), num_frames, training, generator)]


def printable(text: str) -> str:
    """Return a text, such as a file name, without characters that move a terminal's cursor."""
    chars = []
    for char in text:
        if not char.isprintable():
            char = ascii(char)[1:-1]  # without quotes
        chars.append(char)
    return "".join(chars)


def _rewinding(generator: torch.Generator | None) -> Callable[[], Any]:
    """Return a function that resets a generator to its current state, for readers that start again."""
    if generator is None:
        return lambda: None
    return partial(generator.set_state, generator.get_state())


def _one_per_clip(name: str, items: Any, num_clips: int) -> list:
    """Return one item per clip; a single item is used for all."""
    if not isinstance(items, (list, tuple)):
        return [items] * num_clips
    if len(items) != num_clips:
        raise ValueError(f"`{name}` must have one entry per clip: expected {num_clips}, got {len(items)}.")
    return list(items)


class ScalarVideosKwargs(ScalarImageProcessorKwargs, total=False):
    do_sample_frames: bool


class ScalarProcessorKwargs(ProcessingKwargs, total=False):
    text_kwargs: TextKwargs
    images_kwargs: ScalarImageProcessorKwargs
    videos_kwargs: ScalarVideosKwargs
    audio_kwargs: ScalarAudioKwargs


class ScalarProcessor(ProcessorMixin):
    """Read clips and turn them, and captions, into the inputs of `ScalarModel`.

    Args:
        image_processor (`ScalarImageProcessor`), feature_extractor (`ScalarFeatureExtractor`), tokenizer: The parts.
        num_frames (`int`), num_train_frames (`int`): Frames per clip at test time and in training.
        max_text_length (`int`), max_subtitle_length (`int`): Tokens, including special ones; longer texts are cut.
        presence (`str`): `"honest"`: a subtitle without words and digital silence (only zeros) are missing modalities.
            `"vast"`: both are present, as in VAST's loaders; for parity runs.

    Attributes:
        reader ([`MediaReader`]): Opens files, by default in this process. It is not saved. For untrusted files set
            `processor.reader = scalar_retrieval.gallery.decoding.SandboxedReader()`.
        logs_problems (`bool`): Whether what cannot be read of a clip is also logged. It is not saved.

    Example:

        >>> processor = ScalarProcessor.from_pretrained("user/miniature-backbone")
        >>> batch = processor(text=["a dog barks"], videos=["a.mp4", "b.mp4"])
        >>> batch["modality_mask"]
        tensor([[ True,  True, False],
                [ True,  True, False]])
    """

    reader = MediaReader()
    logs_problems = True
    valid_processor_kwargs = ScalarProcessorKwargs
    modalities: Sequence[str] = MODALITIES  # those read of a clip
    max_audio_seconds = float("inf")  # segments are chosen from the whole audio, however long
    model_input_names = [
        "input_ids",
        "attention_mask",
        "subtitle_input_ids",
        "subtitle_attention_mask",
        "pixel_values_videos",
        "input_features",
        "modality_mask",
    ]

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
        if presence not in ("honest", "vast"):
            raise ValueError(f"`presence` must be 'honest' or 'vast', got {presence!r}.")
        check_whole(
            num_frames=num_frames,
            num_train_frames=num_train_frames,
            max_text_length=max_text_length,
            max_subtitle_length=max_subtitle_length,
        )
        self.num_frames = num_frames
        self.num_train_frames = num_train_frames
        self.max_text_length = max_text_length
        self.max_subtitle_length = max_subtitle_length
        self.presence = presence
        super().__init__(image_processor, feature_extractor, tokenizer)

    @staticmethod
    def from_joint_encoder(
        name_or_path: str | os.PathLike | list[str] | dict[str, str], **options: Any
    ) -> "ScalarProcessor":
        """Build the processor for [`ScalarModel.from_joint_encoder`] with its `options` and processor settings."""
        return in_package("joint_encoders").processor_from_joint_encoder(name_or_path, **options)

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        """Like `ProcessorMixin`, but works without Pillow, where its class of image processors is a placeholder."""
        if argument_name == "image_processor" and isinstance(argument, BaseImageProcessor):
            return BaseImageProcessor
        return super().check_argument_for_proper_class(argument_name, argument)

    @property
    def sampling_rate(self) -> int:
        """Sampling rate of waveforms in Hz."""
        return self.feature_extractor.sampling_rate

    @property
    def min_samples(self) -> int:
        """Minimum number of samples of audio; shorter audio is absent."""
        return self.feature_extractor.min_samples

    def _num_frames(self, training: bool) -> int:
        if training:
            return self.num_train_frames
        return self.num_frames

    def read_clip(
        self,
        video: Any,
        audio: Any = FROM_VIDEO,
        subtitle: Any = FROM_VIDEO,
        *,
        texts: Mapping[str, str | None] | None = None,
        num_frames: int | str | None = None,
        training: bool = False,
        generator: torch.Generator | None = None,
        processed: bool = False,
        window: Window | None = None,
    ) -> Clip:
        """Read the modalities of one clip. A clip without any is returned too, but calls of the processor reject it.

        Args:
            video: A path, uint8 frames (see [`to_frames`]), or `None`. A picture is a clip of one frame.
            audio: A path, a waveform at `sampling_rate` or with its rate (see [`to_waveform`]), `None`, or
                `FROM_VIDEO` for the track of the video file, if `video` is a path.
            subtitle: A text, the path of a subtitle file, `None`, or `FROM_VIDEO` for the file next to the
                video (`find_sidecar`) or else the text track inside, if `video` is a path.
            texts (`dict[str, str]`, *optional*): Texts of further modalities by name; empty or None is absent.
            num_frames (`int`, *optional*): By default the setting; `"all"` keeps all for a later call to choose from.
            training (`bool`), generator (`torch.Generator`): See `frame_indices`.
            processed (`bool`): Whether to keep only the model's inputs of files, with at most one whole frame in
                memory. A later call must use the same mode; its batch and draws are those of raw clips.
            window (`tuple[float, float | None]`, *optional*): Read only this part of files in seconds, None for the
                end. Texts that are given are not cut.
        Returns:
            `Clip`. Audio shorter than one 25 ms window is absent, with a line in `problems`.
        Raises:
            FileNotFoundError: If a file does not exist.
            MediaError: If a stream cannot be decoded and the reader's `on_error` is "raise".
        """
        # Settle the defaults.
        if num_frames is None:
            num_frames = self._num_frames(training)
        elif num_frames == "all":
            num_frames = None
        if audio is FROM_VIDEO:
            audio = video if is_path(video) else None
        # Check the texts, which need no reading, and the window, which only files can have.
        known = [name for name in self.modalities if kind_of(name) == "text" and name != "subtitle"]
        texts = {name: text for name, text in (texts or {}).items() if text}
        if not set(texts) <= set(known) or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f"`texts` must be strings or None, of the modalities {known}, got {texts!r:.200}.")
        clip = Clip(texts=texts)
        if is_path(video):
            clip.path = os.fspath(video)
        elif is_path(audio):
            clip.path = os.fspath(audio)
        if window is not None:
            are_files = all(item is None or is_path(item) for item in (video, audio))
            if not are_files or window[0] < 0 or (window[1] is not None and window[1] <= window[0]):
                raise ValueError(f"A `window` goes from one second of a file to a later one, or None, got {window}.")
        # Read each stream; one that does not decode is an error or a missing modality, as the reader is set.
        note = partial(self._note, clip) if self.reader.on_error != "raise" else None
        own = copy.copy(self)
        own.reader = self.reader.reporting_to(note)
        options = {"window": window, "processed": processed, "training": training, "generator": generator}
        streams = {
            "video": (video, partial(own._read_video, num_frames=num_frames, **options)),
            "audio": (audio, partial(own._read_audio, **options)),
            "subtitle": (subtitle, partial(own._read_subtitle, video=video, window=window)),
        }
        for name, (item, read) in streams.items():
            if item is None or name not in self.modalities:
                continue
            rewind = _rewinding(generator)
            try:
                read(clip, item)
            except MediaError as error:
                if note is None:
                    raise
                rewind()  # undo unused draws
                note(str(error))
        return clip

    def _read_video(self, clip: Clip, video: Any, num_frames: int | None, window, processed: bool, **draws) -> None:
        if not is_path(video):
            clip.frames = take_frames(video, num_frames, **draws)
            return
        # The reader may choose again, if a stream turns out shorter: then from the same random numbers.
        rewind = _rewinding(draws["generator"])

        def choose(available: int) -> Sequence[int]:
            rewind()
            if not num_frames:
                return range(available)
            return frame_indices(available, num_frames, **draws)

        # The reader calls it right after each choice, so a crop follows the draws of the frames.
        prepare = partial(self.image_processor.prepare, **draws) if processed else None
        frames = self.reader.read_frames(video, choose, window, prepare)
        if frames is None:
            return
        if processed:
            clip.pixel_values = torch.stack(frames)
        else:
            clip.frames = np.stack(frames)

    def _read_audio(self, clip: Clip, audio: Any, window: Window | None, processed: bool, **draws) -> None:
        rate = self.sampling_rate
        rewind = _rewinding(draws["generator"])

        def choose(available: int) -> list[tuple[int, int]]:
            rewind()
            if available < self.min_samples:
                return []
            return self._choose_sound(available, **draws)

        # Only the parts that the model will hear, or the whole waveform.
        in_parts = processed and is_path(audio)
        if in_parts:
            sound = self.reader.read_audio_parts(audio, choose, window, rate)
            if sound is None:
                return
            parts, num_samples = sound
        else:
            waveform = self.reader.read_audio(audio, window, rate) if is_path(audio) else to_waveform(audio, rate)
            if waveform is None:
                return
            parts = [waveform]
            num_samples = len(waveform)
        # Too short for one window, or digital silence, only zeros: the modality is missing.
        if num_samples < self.min_samples:
            shortest = f"{1000 * self.min_samples / rate:g} ms window ({self.min_samples})"
            problem = f"audio of {num_samples} samples, shorter than one {shortest}: counts as absent."
            self._note(clip, f"{clip.path or 'waveform'}: {problem}")
            return
        clip.duration = num_samples / rate
        is_silent = not any(part.any() for part in parts)
        if is_silent and self.presence == "honest":
            return
        if in_parts:
            self._keep_sound(clip, parts)
        else:
            clip.waveform = waveform

    def _choose_sound(self, available: int, training: bool, generator: torch.Generator | None) -> list:
        return self.feature_extractor.choose_parts(available, training, generator)

    def _keep_sound(self, clip: Clip, parts: list[np.ndarray]) -> None:
        clip.input_features = self.feature_extractor.process_parts(parts)

    def _read_subtitle(self, clip: Clip, subtitle: Any, video: Any, window: Window | None) -> None:
        if subtitle is FROM_VIDEO:
            if is_path(video):
                clip.subtitle = self.reader.read_subtitle_of(video, window)
        elif names_subtitle_file(subtitle):
            clip.subtitle = self.reader.read_subtitle(subtitle, window)
        elif isinstance(subtitle, str):
            clip.subtitle = subtitle
        else:
            expected = f"its text, the path of a file ({', '.join(TEXT_FILES)}), None or FROM_VIDEO"
            raise TypeError(f"A subtitle must be {expected}, got {type(subtitle).__name__}.")

    def _note(self, clip: Clip, problem: str) -> None:
        if problem not in clip.problems:  # a file that cannot be opened fails for each of its modalities
            clip.problems.append(problem)
            if self.logs_problems:
                logger.warning(printable(problem))

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        images: Any = None,
        videos: Any = None,
        audio: Any = FROM_VIDEO,
        *,
        subtitles: Any = FROM_VIDEO,
        texts: Mapping[str, Any] | None = None,
        clips: Sequence[Clip] | Clip | None = None,
        training: bool = False,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        **kwargs: Unpack[ScalarProcessorKwargs],
    ) -> BatchFeature:
        """Prepare captions, clips, or both.

        Args:
            text (`str` or `list[str]`, *optional*): Captions.
            videos, audio, subtitles (*optional*): An item or a list with one per clip, as for `read_clip`. A single
                `None` means that no clip has the modality. A list of pictures is one clip, and so are frames with four
                axes; five axes are a batch of clips.
            texts (`dict[str, list[str]]`, *optional*): The same for further text modalities of the model, by name:
                `{"title": ["a dog", None]}`.
            images (*optional*): Instead of `videos`, for clips of one frame: a picture, a list, or a batch with four
                axes. A list in the list is a clip of several frames.
            clips (`list[Clip]`, *optional*): Results of `read_clip`, instead of all these. If the number of frames
                differs from the setting, frames are chosen by the same rule.
            training (`bool`): Whether to use `num_train_frames` and random frames, crops, flips and audio segments.
            generator (`torch.Generator`, or a list with one per clip): Source of all randomness, required in training.
                With one per clip, the draws of a clip do not depend on the others in the batch.
            **kwargs: As for all processors of transformers, flat or grouped. `text_kwargs` go to the tokenizer of
                captions, instead of padding to the longest and cutting at `max_text_length`; subtitles are not
                affected. `images_kwargs` and `videos_kwargs` are settings of the image processor for this call;
                `do_sample_frames=False` keeps all frames of a clip. `audio_kwargs`: `sampling_rate` of the waveforms,
                which must be the feature extractor's. `return_tensors`: `"pt"`, the default, `"np"`, or `None` for
                lists, with an array per clip.
        Returns:
            `BatchFeature` with, for captions, `input_ids` and `attention_mask`; for clips `modality_mask`
            `(batch, M)`, bool, in the order of `modalities`, and, where at least one clip has the modality,
            `pixel_values_videos` `(batch, frames, 3, height, width)`, `input_features`
            `(batch, segments, time, mel)`, `subtitle_input_ids` and `subtitle_attention_mask` `(batch, tokens)`.
            Rows of absent modalities hold zeros and padding.
        Raises:
            ValueError: If a clip has no modality.
            MediaError: If a stream cannot be decoded and the reader's `on_error` is "raise".
        """
        # One list per stream, with an item per clip.
        text_options, frame_options, return_tensors = self._options(kwargs)
        if images is not None:
            if videos is not None:
                raise ValueError("`images` and `videos` are both the pictures of clips. Pass only one of them.")
            videos = _to_list(images, 4)
        elif videos is not None:
            if isinstance(videos, (list, tuple)) and videos and all(map(is_picture, videos)):
                videos = [videos]  # the frames of one clip
            else:
                videos = _to_list(videos, 5)
        if audio is not None and audio is not FROM_VIDEO:
            audio = list_waveforms(audio)
        if subtitles is not None and subtitles is not FROM_VIDEO:
            subtitles = _to_list(subtitles)
        texts = texts or {}
        streams = {"videos": videos, "audio": audio, "subtitles": subtitles}
        for name, items in texts.items():
            streams[f"texts[{name!r}]"] = _to_list(items)
        # Settings of this call apply to a copy of the processor.
        reader = self
        if frame_options:
            reader = copy.copy(self)
            if not frame_options.pop("do_sample_frames", True):  # all of each clip
                reader.num_frames = None
                reader.num_train_frames = None
            reader.image_processor = self.image_processor.replace(**frame_options)
        # Read the clips, unless they have been read, each with its own random numbers.
        lengths = [len(items) for items in streams.values() if isinstance(items, list)]
        if lengths:
            if clips is not None:
                raise ValueError("Pass either `clips` or `videos`, `audio`, `subtitles` and `texts`, not both.")
            generators = _one_per_clip("generator", generator, lengths[0])
            columns = [_one_per_clip(name, items, lengths[0]) for name, items in streams.items()]
            # with a shared generator, the frames of all clips are drawn before the crop of the first
            options = {"training": training, "processed": not training}
            clips = []
            for own_generator, *row in zip(generators, *columns, strict=True):
                texts_of_clip = dict(zip(texts, row[3:], strict=True))
                clips.append(reader.read_clip(*row[:3], texts=texts_of_clip, generator=own_generator, **options))
        elif clips is not None:
            clips = _to_list(clips)
            generators = _one_per_clip("generator", generator, len(clips))
            if frame_options and any(clip.pixel_values is not None for clip in clips):
                raise ValueError(f"Clips read with `processed=True` cannot be given other {sorted(frame_options)}.")
        elif text is None:
            raise ValueError("Nothing to process. Pass `text`, `clips`, or `videos`, `audio`, `subtitles` or `texts`.")
        # Turn both into tensors.
        data = {} if text is None else self._tokenize_captions(text, text_options, return_tensors)
        if clips is not None:
            data |= reader._process_clips(clips, training, generators)
        return self._batch_of(data, return_tensors)

    def _options(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        """Split the keywords of a call into options of captions, of frames, and the kind of tensors."""
        # Check the names, alone or in a group: transformers ignores those it does not know.
        given = given.pop("common_kwargs", {}) | given
        groups = ("text_kwargs", "images_kwargs", "videos_kwargs", "audio_kwargs")
        known = set(groups)
        unknown = set()
        for group in groups:
            names = self.valid_processor_kwargs.__annotations__[group].__annotations__.keys()
            known |= names
            unknown |= given.get(group, {}).keys() - names
        unknown |= given.keys() - known
        if unknown:
            raise TypeError(f"{type(self).__name__} got unexpected keyword arguments {sorted(unknown)}.")
        merged = self._merge_kwargs(self.valid_processor_kwargs, getattr(self.tokenizer, "init_kwargs", {}), **given)
        rate = merged["audio_kwargs"].get("sampling_rate")
        if rate is not None:
            check_sampling_rate(rate, self.feature_extractor.sampling_rate)
        # Sort them by what they are for; None is the default.
        kinds = []
        options = []
        for group in groups:
            if "return_tensors" in merged[group]:
                kinds.append(merged[group].pop("return_tensors"))
            options.append({name: value for name, value in merged[group].items() if value is not None})
        texts, images, videos, _ = options
        return_tensors = kinds[0] if kinds else "pt"
        return texts, images | videos, return_tensors

    def _batch_of(self, data: dict[str, Any], return_tensors: str | None) -> BatchFeature:
        return to_batch(data, return_tensors)

    def _tokenize_captions(self, text: Any, options: dict[str, Any], return_tensors: str | None) -> Mapping[str, Any]:
        # One caption or several.
        if isinstance(text, str):
            text = [text]
        texts = list(text)
        if not texts:
            raise ValueError("`text` is an empty list. Pass at least one caption, or None.")
        if not all(isinstance(item, str) for item in texts):
            raise TypeError(f"`text` must be a string or a list of strings, got {text!r:.80}.")
        return self._tokenize(texts, {"max_length": self.max_text_length} | options, return_tensors)

    def _tokenize(self, texts: list, options: dict[str, Any], return_tensors: str | None = "pt") -> Mapping[str, Any]:
        default = {"padding": "longest", "truncation": True, "return_token_type_ids": False}
        return dict(self.tokenizer(texts, **(default | options), return_tensors=return_tensors))

    def _presence_of(self, clips: list[Clip]) -> torch.Tensor:
        """The modalities of each clip, (batch, M)."""
        if not clips:
            raise ValueError("The list of clips is empty. Pass at least one clip.")
        columns = []
        for name in self.modalities:
            columns.append([clip.has(name) for clip in clips])
        if self.presence == "vast":  # a subtitle, the last modality, may be blank
            columns[-1] = [clip.subtitle is not None for clip in clips]
        modality_mask = torch.tensor(columns).T.contiguous()
        # A clip without any modality cannot be retrieved.
        names = []
        problems = ""
        for row in (~modality_mask.any(dim=1)).nonzero().flatten().tolist():
            names.append(f"{row} ({clips[row].path or 'no path'})")
            for problem in clips[row].problems:
                problems += f"\n  {problem}"
        if names:
            raise ValueError(
                f"Clips need at least one of {self.modalities}; these have none: {', '.join(names)}. Leave them "
                f"out.{problems}"
            )
        return modality_mask

    def _process_clips(
        self, clips: list[Clip], training: bool, generators: list[torch.Generator | None]
    ) -> dict[str, torch.Tensor]:
        # What each clip has; only these rows are processed, at their positions in the batch.
        modality_mask = self._presence_of(clips)
        has_video, has_audio, has_subtitle = modality_mask.unbind(dim=1)
        data = {"modality_mask": modality_mask}
        if has_video.any():
            rows = self._process_videos(clips, has_video, training, generators)
            data["pixel_values_videos"] = scatter(has_video, rows)
        if has_audio.any():
            rows = []
            for clip, generator in compress(zip(clips, generators, strict=True), has_audio):
                row = clip.input_features
                if row is None:
                    row = self.feature_extractor.process_waveform(clip.waveform, training, generator)
                rows.append(row)
            data["input_features"] = scatter(has_audio, rows)
        # Blank subtitles of `presence="vast"` are tokenized like any other.
        if has_subtitle.any():
            texts = [clip.subtitle for clip in compress(clips, has_subtitle)]
            tokens = self._tokenize(texts, {"max_length": self.max_subtitle_length})
            data |= self._token_rows("subtitle", has_subtitle, tokens)
        return data

    def _token_rows(self, name: str, present: torch.Tensor, tokens: Mapping[str, torch.Tensor]) -> dict:
        return {
            f"{name}_input_ids": scatter(present, tokens["input_ids"], self.tokenizer.pad_token_id),
            f"{name}_attention_mask": scatter(present, tokens["attention_mask"]),
        }

    def _process_videos(
        self, clips: list[Clip], has_video: torch.Tensor, training: bool, generators: list[torch.Generator | None]
    ) -> list[torch.Tensor]:
        num_frames = self._num_frames(training)
        rows = []
        # Raw frames are chosen and processed now, others were when they were read.
        for clip, generator in compress(zip(clips, generators, strict=True), has_video):
            row = clip.pixel_values
            if row is None:
                frames = take_frames(clip.frames, num_frames, training, generator)
                row = self.image_processor.process_frames(frames, training, generator)
            elif num_frames not in (None, len(row)):
                needed = f"{num_frames} are needed. Read the clip in the mode of this call, or raw."
                raise ValueError(f"{clip.path}: {len(row)} frames were read with `processed=True`, {needed}")
            rows.append(row)
        counts = [len(row) for row in rows]
        if len(set(counts)) > 1:
            raise ValueError(f"With `do_sample_frames=False` clips must have the same number of frames, got {counts}.")
        return rows


def scatter(present: torch.Tensor, rows: Sequence[torch.Tensor], fill: float = 0) -> torch.Tensor:
    """Put the rows of present clips at their positions in the batch, with `fill` elsewhere."""
    if not isinstance(rows, torch.Tensor):
        rows = torch.stack(rows)
    if bool(present.all()):
        return rows
    full = rows.new_full((len(present), *rows.shape[1:]), fill)
    full[present] = rows
    return full


ScalarProcessor.register_for_auto_class("AutoProcessor")

__all__ = ["FROM_VIDEO", "Clip", "ScalarProcessor", "printable", "scatter", "take_frames"]
