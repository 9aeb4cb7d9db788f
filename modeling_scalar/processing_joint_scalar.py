"""Turn clips and captions into the tensors of `ScalarJointModel`.

Clips are read as by [`ScalarProcessor`]: the same files, limits, frames and subtitles. Each modality becomes its own
token sequence, with a prompt and placeholders that the encoder fills.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import compress
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.feature_extraction_utils import FeatureExtractionMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import logging

from .configuration_joint_scalar import check_modalities
from .configuration_scalar import MODALITIES
from .image_processing_scalar import check_whole
from .media_scalar import SAMPLING_RATE
from .modalities_scalar import kind_of
from .processing_scalar import Clip, ScalarProcessor, scatter

logger = logging.get_logger(__name__)

VIDEO_TOKEN = "<|video|>"
"""The name in the encoder's own processor, whatever its tokenizer says."""


def with_prompt(prompt: str, content: str) -> str:
    """Insert content at the `{}` of a prompt, or append it."""
    before, _, behind = prompt.partition("{}")
    return before + content + behind


def as_words(text: str, tokenizer: Any) -> str:
    """
    Return user text without special tokens, such as the placeholders of frames or audio.

    Args:
        text (`str`): A query or the speech of a clip. A space is inserted after the first character of each special
            token; the rest is unchanged.
        tokenizer: The tokenizer with the special tokens; only those of transformers are supported.
    """
    pattern = re.compile(re.escape(VIDEO_TOKEN))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        pattern = _special_tokens(tokenizer, len(tokenizer))
    return pattern.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)


@lru_cache(maxsize=8)
def _special_tokens(tokenizer: PreTrainedTokenizerBase, size: int) -> re.Pattern:
    """The pattern of the special tokens of a tokenizer of this size, of which there may be thousands."""
    special = {VIDEO_TOKEN, *tokenizer.all_special_tokens}
    for token in tokenizer.added_tokens_decoder.values():
        if token.special:
            special.add(str(token))
    # A token of one character cannot be broken by a space, and longer tokens may contain shorter ones.
    longest_first = sorted([token for token in special if len(token) > 1], key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


class ScalarJointProcessor(ScalarProcessor):
    """Read clips and turn them, and captions, into the inputs of `ScalarJointModel`.

    Args:
        image_processor (`ScalarPatchImageProcessor`), feature_extractor (`Gemma4AudioFeatureExtractor`), tokenizer:
            The parts; the last two are the encoder's own.
        num_frames (`int`), num_train_frames (`int`): Frames per clip at test time and in training.
        max_length (`int`): Maximum number of tokens of a sequence, of any kind.
        max_text_length (`int`), max_subtitle_length (`int`): Maximum number of tokens of a query, and of a subtitle or
            other text of a clip, with its prompt; longer ones are cut.
        max_audio_seconds (`float`): Maximum length of audio; the rest is left out, with one warning.
        query_prompt (`str`), document_prompt (`str`), media_prompt (`str`): Prompts of a query, a text of a clip, and
            frames or audio. The content replaces `{}`, or follows the prompt.
        add_special_tokens (`bool`): Whether the tokenizer adds its own; off if the prompts contain them.
        modalities (`list[str]`): The modalities to prepare, as in [`ScalarJointConfig`]; others are not read.

    Attributes:
        reader ([`MediaReader`]): Opens files, as in [`ScalarProcessor`].
    """

    def __init__(
        self,
        image_processor: BaseImageProcessor,
        feature_extractor: FeatureExtractionMixin,
        tokenizer: PreTrainedTokenizerBase,
        num_frames: int = 8,
        num_train_frames: int = 8,
        max_length: int = 8192,
        max_text_length: int = 8192,
        max_subtitle_length: int = 8192,
        max_audio_seconds: float = 30,
        query_prompt: str = "",
        document_prompt: str = "",
        media_prompt: str = "",
        add_special_tokens: bool = True,
        modalities: Iterable[str] = MODALITIES,
    ):
        check_whole(max_length=max_length)
        self.max_length = max_length
        self.max_audio_seconds = max_audio_seconds
        self.query_prompt = query_prompt
        self.document_prompt = document_prompt
        self.media_prompt = media_prompt
        self.add_special_tokens = add_special_tokens
        self.modalities = list(modalities)
        check_modalities(self.modalities)
        for name, value in (("max_text_length", max_text_length), ("max_subtitle_length", max_subtitle_length)):
            if value > max_length:
                raise ValueError(f"`{name}` must be at most `max_length`, {max_length}, got {value}.")
        super().__init__(
            image_processor,
            feature_extractor,
            tokenizer,
            num_frames=num_frames,
            num_train_frames=num_train_frames,
            max_text_length=max_text_length,
            max_subtitle_length=max_subtitle_length,
        )

    @property
    def model_input_names(self) -> list[str]:
        """The keys that a call can return."""
        names = ["input_ids", "attention_mask"]
        for modality in self.modalities:
            names += [f"{modality}_input_ids", f"{modality}_attention_mask"]
        media = ["pixel_values_videos", "video_position_ids", "input_features", "input_features_mask"]
        return [*names, *media, "modality_mask"]

    @property
    def sampling_rate(self) -> int:
        """Sampling rate of the encoder in Hz."""
        return SAMPLING_RATE

    @property
    def min_samples(self) -> int:
        """Minimum number of samples: the encoder fails on less than 30 ms, which gives no token."""
        return self.sampling_rate * 30 // 1000

    @property
    def max_samples(self) -> int:
        """Maximum number of samples that the encoder reads."""
        return int(self.max_audio_seconds * self.sampling_rate)

    def with_protocol(self, processing: Mapping[str, Any]) -> "ScalarJointProcessor":
        """Return a processor with the number of frames of a benchmark's protocol.

        The size of pictures and the length of texts are the encoder's.
        """
        configured = copy.copy(self)
        configured.num_frames = processing.get("num_frames", self.num_frames)
        return configured

    # Reading ------------------------------------------------------------------------------------------------------

    def _read_audio(self, clip: Clip, *arguments: Any, **options: Any) -> None:
        super()._read_audio(clip, *arguments, **options)
        if clip.waveform is not None:
            clip.waveform = np.asarray(clip.waveform, np.float32)
            is_cut = round(clip.duration * self.sampling_rate) >= self.max_samples + self.min_samples
            if is_cut and self.logs_problems:
                logger.warning_once(
                    f"The encoder reads the first {self.max_audio_seconds:g} s of audio; the rest is left out."
                )

    def _choose_sound(self, available: int, training: bool, generator: torch.Generator | None) -> list:
        return [(0, min(available, self.max_samples))]

    def _keep_sound(self, clip: Clip, parts: list[np.ndarray]) -> None:
        clip.waveform = parts[0]

    # Texts --------------------------------------------------------------------------------------------------------

    def _tokenize_captions(self, text: Any, options: dict[str, Any], return_tensors: str | None) -> Mapping[str, Any]:
        if isinstance(text, str):
            text = [text]
        if isinstance(text, Iterable):
            prompted = []
            for item in text:
                if isinstance(item, str):
                    item = with_prompt(self.query_prompt, as_words(item, self.tokenizer))
                prompted.append(item)
            text = prompted
        return super()._tokenize_captions(text, options, return_tensors)

    def _tokenize(self, texts: list, options: dict[str, Any], return_tensors: str | None = "pt") -> Mapping[str, Any]:
        return super()._tokenize(texts, {"add_special_tokens": self.add_special_tokens} | options, return_tensors)

    # Clips --------------------------------------------------------------------------------------------------------

    def _process_clips(
        self, clips: list[Clip], training: bool, generators: list[torch.Generator | None]
    ) -> dict[str, torch.Tensor]:
        modality_mask = self._presence_of(clips)
        present = self._present(modality_mask)
        data = {"modality_mask": modality_mask}
        # Frames as patches, and a sequence with a placeholder for each soft token.
        if "video" in present:
            has_video = present["video"]
            rows = self._process_videos(clips, has_video, training, generators)
            patches, places = zip(*map(self.image_processor.to_patches, rows), strict=True)
            data["pixel_values_videos"] = scatter(has_video, patches)
            data["video_position_ids"] = scatter(has_video, places, -1)
            placeholders = []
            for frames in rows:
                num_tokens = self.image_processor.num_soft_tokens(frames)
                frame = f"{self.tokenizer.boi_token}{VIDEO_TOKEN * num_tokens}{self.tokenizer.eoi_token}"
                placeholders.append(len(frames) * frame)
            data |= self._sequences("video", has_video, clips, placeholders)
        # The same for audio, which is padded to the longest that the encoder reads.
        if "audio" in present:
            has_audio = present["audio"]
            sounds = [clip.waveform[: self.max_samples] for clip in compress(clips, has_audio)]
            features = self.feature_extractor(sounds, max_length=self.max_samples, return_tensors="pt")
            mask = features["input_features_mask"].bool()
            data["input_features"] = scatter(has_audio, features["input_features"])
            data["input_features_mask"] = scatter(has_audio, mask)
            placeholders = []
            for num_tokens in mask[:, ::4].sum(dim=1).tolist():  # two convolutions, each with every second place
                sound = self.tokenizer.audio_token * num_tokens
                placeholders.append(f"{self.tokenizer.boa_token}{sound}{self.tokenizer.eoa_token}")
            data |= self._sequences("audio", has_audio, clips, placeholders)
        # Texts, without special tokens of their own.
        for name, has_text in present.items():
            if kind_of(name) != "text":
                continue
            texts = []
            for clip in compress(clips, has_text):
                words = as_words(clip.text_of(name), self.tokenizer)
                texts.append(with_prompt(self.document_prompt, words))
            tokens = self._tokenize(texts, {"max_length": self.max_subtitle_length})
            data |= self._token_rows(name, has_text, tokens)
        return data

    def _present(self, modality_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """By modality which clips have it, without those that none has."""
        present = {}
        for name, column in zip(self.modalities, modality_mask.unbind(dim=1), strict=True):
            if column.any():
                present[name] = column
        return present

    def _sequences(
        self, name: str, present: torch.Tensor, clips: list[Clip], placeholders: Iterable[str]
    ) -> dict[str, torch.Tensor]:
        """Tokenize placeholders with the prompt of media, one text for each present clip; nothing is cut."""
        texts = [with_prompt(self.media_prompt, placeholder) for placeholder in placeholders]
        tokens = self._tokenize(texts, {"truncation": False})
        lengths = tokens["attention_mask"].sum(dim=1).tolist()
        settings = {"video": "`num_frames`", "audio": "`max_audio_seconds`"}
        for clip, length in zip(compress(clips, present), lengths, strict=True):
            if length > self.max_length:
                raise ValueError(
                    f"{clip.path or 'A clip'}: its {name} takes {length} tokens, but the encoder reads "
                    f"{self.max_length} at most. Lower {settings[name]}."
                )
        return self._token_rows(name, present, tokens)


ScalarJointProcessor.register_for_auto_class("AutoProcessor")

__all__ = ["VIDEO_TOKEN", "ScalarJointProcessor", "as_words", "with_prompt"]
