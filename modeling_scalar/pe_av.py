"""SCALAR on PE-AV, which embeds texts once for video and once for audio: the model and its processor.

It runs in transformers, with timm for the vision tower. Frames are prepared here, as its own video processor needs
torchvision; audio (48 kHz) and texts are prepared by its own feature extractor and tokenizer.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoTokenizer,
    FeatureExtractionMixin,
    PeAudioVideoModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging

from .checking import check_counts, check_shapes, check_vocabulary, shapes_of, weight_files
from .configuration_joint_scalar import ScalarJointConfig
from .configuration_scalar import MODALITIES
from .image_processing_joint_scalar import ScalarPatchImageProcessor
from .model_identity import ModelIdentity
from .modeling_joint_scalar import JointEncoderModel
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import Clip, scatter
from .retrieval_scalar import Rows
from .scores_scalar import METHODS, find_method

logger = logging.get_logger(__name__)

_INPUTS = {"video": ("pixel_values_videos", "padding_mask_videos"), "audio": ("input_values", "padding_mask")}
_LARGEST_SIDE = 4096  # in pixels; more would fill the memory
_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR


class ScalarPeAvModel(JointEncoderModel):
    """
    Text-to-video retrieval with PE-AV, made by [`ScalarModel.from_joint_encoder`].

    Its encoders and heads are called separately, because `get_text_audio_embeds`, `get_text_video_embeds` and
    `get_video_embeds` are broken in transformers 5.23. It is not saved: its original folder is the model.

    Its inputs are `pixel_values_videos` (`torch.FloatTensor` of shape `(batch, frames, 3, height, width)`) and
    `padding_mask_videos` (`torch.BoolTensor` of shape `(batch, frames)`), the frames as from PE-AV's own video
    processor and which are not padding; `input_values` (`torch.FloatTensor` of shape `(batch, 1, samples)`) and
    `padding_mask` (`torch.BoolTensor` of shape `(batch, samples)`), the audio at 48 kHz as from its feature extractor,
    and which samples are not padding.

    Args:
        encoder (`PeAudioVideoModel`): The encoder with its weights.
        modalities (`Iterable[str]`): The modalities of a clip. There is no head for texts of clips, so these are
            left out with a warning.
        config_kwargs: Fields of [`ScalarJointConfig`], for example `query_temperature`.

    Raises:
        ValueError: If no modality is left, `"fused"` is requested, or the score needs a single vector per text.
    """

    def __init__(self, encoder: PeAudioVideoModel, modalities: Iterable[str] = MODALITIES, **config_kwargs: Any):
        wanted = list(modalities)
        if "fused" in wanted:
            raise ValueError(
                'PE-AV takes one modality at a time here, so it has no "fused" vector. Leave "fused" out.'
            )
        found = [name for name in wanted if name in _INPUTS]
        if lacking := [name for name in wanted if name not in found]:
            logger.warning(f"PE-AV has no head for {', '.join(lacking)}, which is left out of every clip.")
        if not found:
            raise ValueError(f"PE-AV embeds video and audio, got the modalities {wanted}.")
        fields = {"projection_dim": encoder.config.text_config.hidden_size} | config_kwargs
        config = ScalarJointConfig(modalities=found, **fields)
        super().__init__(config)
        if not find_method(config.aggregation, found, "aggregation").takes_text_per_modality:
            able = [name for name, method in METHODS.items() if method.takes_text_per_modality]
            raise ValueError(
                f"PE-AV embeds texts once per modality, so use a score of {able}, got {config.aggregation!r}."
            )
        self.add_score_modules()
        self.post_init()
        self.encoder = encoder  # after the modules that are initialised
        self.eval()

    @classmethod
    def from_folder(
        cls,
        identity: ModelIdentity,
        modalities: Iterable[str] = MODALITIES,
        dtype: torch.dtype | None = None,
        **config_kwargs: Any,
    ) -> "ScalarPeAvModel":
        """
        Load PE-AV as published.

        Args:
            identity ([`ModelIdentity`]): A folder or repository whose `model_type` is `"pe_audio_video"`.
            modalities, dtype, config_kwargs: See [`ScalarModel.from_joint_encoder`].

        Raises:
            ImportError: If timm is not installed.
            ValueError: If weights are missing or have other shapes than in the configuration.
        """
        name, options = identity.name, {"revision": identity.revision or "main"}
        shapes = shapes_of(weight_files(name, "model", identity.revision))
        check_counts(identity.config, len(shapes), f"the config.json of {name}")
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
        options |= {} if dtype is None else {"dtype": dtype}
        try:
            with redirect_stdout(io.StringIO()):  # transformers 5.23 prints docstring warnings
                with torch.device("meta"):
                    check_shapes(PeAudioVideoModel(config), shapes, name)
                encoder, info = PeAudioVideoModel.from_pretrained(
                    name, config=config, use_safetensors=True, output_loading_info=True, **options
                )
        except ImportError as error:
            raise ImportError(f"The vision tower of {name} needs timm: `pip install timm`.") from error
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"{name} lacks {len(missing)} weights of its model, such as {missing[:3]}. Download it again."
            )
        return cls(encoder, modalities, **config_kwargs)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Not supported: the model is only the published encoder."""
        raise ValueError("A model on PE-AV cannot be saved. Keep the folder that its encoder was loaded from.")

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries, `(queries, M, dim)`: once for each modality of the model."""
        output = self.encoder.text_model(**inputs, **flags | {"return_dict": True})
        first = output.last_hidden_state[:, 0]
        heads = {
            "video": self.encoder.video_model.text_video_head,
            "audio": self.encoder.audio_model.text_audio_head,
        }
        return BaseModelOutputWithPooling(
            last_hidden_state=output.last_hidden_state,
            pooler_output=torch.stack([heads[name](first) for name in self.config.modalities], dim=1),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """Return the arguments that a modality needs; see [`JointEncoderModel`]."""
        return _INPUTS.get(name, ())

    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        if name == "video":
            output = self.encoder.video_model.video_encoder(**inputs, return_dict=True)
            return self.encoder.video_model.video_head(output.pooler_output)
        lengths = inputs["padding_mask"].sum(dim=1)
        # One length at a time: its convolutions read padding, and a vector must not depend on other clips.
        groups = [Rows(lengths == length) for length in lengths.unique()]
        return sum(rows.spread(self._hear(*map(rows.take, inputs.values()))) for rows in groups)

    def _hear(self, input_values: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
        """Embed audio of one length: `(rows, dim)`."""
        length = int(padding_mask[0].sum())
        output = self.encoder.audio_model.audio_encoder(
            input_values=input_values[..., :length], padding_mask=padding_mask[:, :length], return_dict=True
        )
        return self.encoder.audio_model.audio_head(output.pooler_output)


class ScalarPeAvImageProcessor(ScalarPatchImageProcessor):
    """
    Resize the frames of clips to one size, ignoring proportions, and normalise them, like PE-AV's own processor.

    Args:
        height (`int`), width (`int`): Input size of the encoder in pixels.
        image_mean, image_std, rescale_factor: See [`ScalarPatchImageProcessor`].
    """

    model_input_names = ["pixel_values_videos"]

    def __init__(
        self,
        height: int = 336,
        width: int = 336,
        image_mean: Sequence[float] = (0.5, 0.5, 0.5),
        image_std: Sequence[float] = (0.5, 0.5, 0.5),
        rescale_factor: float = 1 / 255,
        **kwargs: Any,
    ):
        super().__init__(image_mean=image_mean, image_std=image_std, rescale_factor=rescale_factor, **kwargs)
        for name, value in (("height", height), ("width", width)):
            if not isinstance(value, int) or not 1 <= value <= _LARGEST_SIDE:
                raise ValueError(f"`{name}` must be a whole number from 1 to {_LARGEST_SIDE}, got {value!r}.")
            setattr(self, name, value)

    @classmethod
    def from_encoder(cls, settings: Mapping[str, Any]) -> "ScalarPeAvImageProcessor":
        """
        Adopt the settings of PE-AV's own video processor.

        Raises:
            ValueError: If some of its settings are not supported here.
        """
        size = settings.get("size") or {"height": 336, "width": 336}
        expected = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": _BILINEAR}
        wrong = {name: settings[name] for name, value in expected.items() if settings.get(name, value) != value}
        wrong |= {"do_center_crop": True} if settings.get("do_center_crop") else {}
        if wrong or not isinstance(size, dict) or size.keys() != {"height", "width"}:
            raise ValueError(f"These settings of PE-AV's video processor are not supported: {wrong or size}.")
        known = {name: settings.get(name) for name in ("image_mean", "image_std", "rescale_factor")}
        return cls(**size, **{name: value for name, value in known.items() if value is not None})

    def _draw(
        self, height: int, width: int, training: bool = False, generator: torch.Generator | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The transform of each frame of a clip of this size."""
        size, scale = (self.height, self.width), 1.0 / self.rescale_factor
        mean, std = (torch.tensor(values).view(3, 1, 1) * scale for values in (self.image_mean, self.image_std))

        def process(frames: torch.Tensor) -> torch.Tensor:
            if tuple(frames.shape[-2:]) != size:
                frames = F.interpolate(frames, size, mode="bilinear", antialias=True, align_corners=False)
            return (frames.float() - mean) / std

        return process


class ScalarPeAvProcessor(ScalarJointProcessor):
    """
    Read clips and turn them, and captions, into the inputs of [`ScalarPeAvModel`].

    Args:
        image_processor ([`ScalarPeAvImageProcessor`]), feature_extractor (`PeAudioFeatureExtractor`), tokenizer: The
            parts; the last two are PE-AV's own.
        settings: `num_frames`, `num_train_frames`, `max_text_length`, `max_audio_seconds` and `modalities` of
            [`ScalarJointProcessor`].
    """

    def __init__(
        self,
        image_processor: ScalarPeAvImageProcessor,
        feature_extractor: FeatureExtractionMixin,
        tokenizer: PreTrainedTokenizerBase,
        **settings: Any,
    ):
        super().__init__(image_processor, feature_extractor, tokenizer, **settings)

    @classmethod
    def from_folder(
        cls, identity: ModelIdentity, modalities: Iterable[str] = MODALITIES, **settings: Any
    ) -> "ScalarPeAvProcessor":
        """
        Build the processor of PE-AV as published.

        Args:
            identity ([`ModelIdentity`]), modalities: See `ScalarPeAvModel.from_folder`.
            settings: See the constructor; they override those of the folder.

        Raises:
            ValueError: If its frame settings are not supported, or the tokenizer belongs to another model.
        """
        options = {"revision": identity.revision or "main", "trust_remote_code": False}
        tokenizer = AutoTokenizer.from_pretrained(identity.name, **options)
        text_config = AutoConfig.from_pretrained(identity.name, **options).text_config
        check_vocabulary(tokenizer, text_config.vocab_size, identity.name)
        files = ("video_preprocessor_config.json", "preprocessor_config.json")
        frames = identity.read("processor_config.json").get("video_processor")
        frames = frames or next(filter(None, map(identity.read, files)), {})
        longest = min(tokenizer.model_max_length, text_config.max_position_embeddings)
        own = {f"max_{name}length": longest for name in ("", "text_", "subtitle_")}
        own |= dict.fromkeys(("num_frames", "num_train_frames"), frames.get("num_frames") or 8)
        own["modalities"] = [name for name in modalities if name in _INPUTS]
        extractor = AutoFeatureExtractor.from_pretrained(identity.name, **options)
        return cls(ScalarPeAvImageProcessor.from_encoder(frames), extractor, tokenizer, **own | settings)

    @property
    def model_input_names(self) -> list[str]:
        """The keys that a call can return."""
        return ["input_ids", "attention_mask", *sum(_INPUTS.values(), ()), "modality_mask"]

    @property
    def sampling_rate(self) -> int:
        """Sampling rate of PE-AV in Hz."""
        return self.feature_extractor.sampling_rate

    def _process_clips(
        self, clips: list[Clip], training: bool, generators: list[torch.Generator | None]
    ) -> dict[str, torch.Tensor]:
        modality_mask = self._presence_of(clips)
        data, present = {"modality_mask": modality_mask}, self._present(modality_mask)
        if "video" in present:
            has_video = present["video"]
            rows = self._process_videos(clips, has_video, training, generators)
            data["pixel_values_videos"] = scatter(has_video, rows)
            data["padding_mask_videos"] = has_video[:, None].expand(-1, len(rows[0])).clone()
        if "audio" in present:
            has_audio = present["audio"]
            extractor, most = self.feature_extractor, self.max_samples
            sounds = [clip.waveform[:most] for clip, here in zip(clips, has_audio.tolist(), strict=True) if here]
            features = extractor(sounds, sampling_rate=self.sampling_rate, return_tensors="pt")
            data["input_values"] = scatter(has_audio, features["input_values"])
            data["padding_mask"] = scatter(has_audio, features["padding_mask"].bool())
        return data

    def _fused_sequences(self, clips: list[Clip], modality_mask: torch.Tensor, data: dict[str, Any]) -> dict:
        return {}  # it takes one modality at a time here


__all__ = ["ScalarPeAvImageProcessor", "ScalarPeAvModel", "ScalarPeAvProcessor"]
