"""SCALAR on any multimodal model of Sentence Transformers, with the modalities that the model supports.

The library prepares its own inputs, so the processor passes on decoded frames, samples and the bytes of texts. For
programs: the library is imported only here, and none of it is saved with a model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import ProcessorMixin
from transformers.feature_extraction_utils import BatchFeature
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging

from .configuration_joint_scalar import ScalarJointConfig, check_modalities
from .configuration_scalar import MODALITIES
from .image_processing_scalar import check_whole
from .media_scalar import SAMPLING_RATE
from .modeling_joint_scalar import JointEncoderModel
from .processing_joint_scalar import ScalarJointProcessor, as_words
from .processing_scalar import Clip, ScalarProcessor, take_frames
from .scores_scalar import kind_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.get_logger(__name__)

_KINDS = ("video", "audio", "text")  # names of modalities in Sentence Transformers
_TEXT_INPUTS = ("input_ids", "attention_mask")


def _inputs_of(name: str) -> tuple[str, ...]:
    if name == "video":
        return ("video_frames",)
    if name == "audio":
        return ("audio_waveforms",)
    return (f"{name}_input_ids", f"{name}_attention_mask")


def _to_bytes(texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode texts as numbers that can be batched, `(texts, bytes)`, with their mask."""
    rows = [torch.tensor(list(text.encode()), dtype=torch.long) for text in texts]
    mask = [torch.ones(len(row), dtype=torch.long) for row in rows]
    return pad_sequence(rows, batch_first=True), pad_sequence(mask, batch_first=True)


def supported_modalities(encoder: "SentenceTransformer", name: str, wanted: Iterable[str]) -> list[str]:
    """Return the requested modalities that an encoder supports, with a warning about the others.

    Raises:
        ValueError: If it does not embed texts or any requested modality, or pictures but no videos.
    """
    if not encoder.supports("text"):
        raise ValueError(f"{name} does not embed texts, which queries need; it supports {encoder.modalities}.")
    # Audio is read at one rate only; a `Router` has a processor for each route, or none.
    supports = {kind: encoder.supports(kind) for kind in _KINDS}
    for module in encoder.modules():
        extractor = getattr(getattr(module, "processor", None), "feature_extractor", None)
        rate = getattr(extractor, "sampling_rate", SAMPLING_RATE)
        if supports["audio"] and rate != SAMPLING_RATE:
            logger.warning(f"{name} expects audio at {rate} Hz, but it is read at {SAMPLING_RATE} Hz.")
            supports["audio"] = False
    # Frames are passed as a video: an encoder of single pictures, such as CLIP, would see nothing of a clip.
    if "video" in wanted and encoder.supports("image") and not supports["video"]:
        raise ValueError(
            f"{name} embeds single pictures, but no videos; it supports {encoder.modalities}. Use an encoder of "
            "videos, such as google/embeddinggemma-2."
        )
    # What it does not support is absent in every clip.
    supported = []
    others = []
    for modality in wanted:
        if supports[kind_of(modality)]:
            supported.append(modality)
        else:
            others.append(modality)
    if others:
        logger.warning(f"{name} does not support {', '.join(others)}, which is left out of every clip.")
    if not supported:
        raise ValueError(f"{name} embeds none of {list(wanted)}; it supports {encoder.modalities}.")
    return supported


class ScalarSentenceModel(JointEncoderModel):
    """
    Text-to-video retrieval with a multimodal SentenceTransformer, made by [`ScalarModel.from_joint_encoder`].

    Queries and clips are embedded by its own `encode_query` and `encode_document`, with its own prompts and pooling,
    without gradients. It is not saved: its original folder is the model.

    Its inputs are `video_frames` (`list` of uint8 `np.ndarray` of shape `(frames, height, width, 3)`),
    `audio_waveforms` (`list` of float32 `np.ndarray` of shape `(samples,)`), one per clip (any value if absent), and
    the bytes of texts, as in [`JointEncoderModel.get_modality_features`].

    Args:
        config ([`ScalarJointConfig`]): A configuration without a `backbone_config`.
        encoder (`SentenceTransformer`): The encoder with its weights.
    """

    def __init__(self, config: ScalarJointConfig, encoder: "SentenceTransformer"):
        super().__init__(config)
        self.add_score_modules()
        self.post_init()
        self.encoder = encoder  # after the modules that are initialised

    @classmethod
    def from_folder(
        cls,
        name: str,
        modalities: Iterable[str] = MODALITIES,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        **config_kwargs: Any,
    ) -> "ScalarSentenceModel":
        """
        Load a SentenceTransformer; no code of its folder runs.

        Args:
            name (`str`): A folder or a Hub id.
            modalities, dtype, revision, config_kwargs: See [`ScalarModel.from_joint_encoder`].

        Raises:
            ModuleNotFoundError: If Sentence Transformers is not installed.
            ValueError: If it does not embed texts or any requested modality.
        """
        from scalar_retrieval.commands.extras import naming_extras

        with naming_extras():
            from sentence_transformers import SentenceTransformer
        from .picture_tagger import TAGGER, PictureTagger  # the only class beside the library's own

        # Only the library's own modules and one of this package, never code of the folder.
        options: dict[str, Any] = {"device": "cpu", "revision": revision, "trust_remote_code": False}
        if dtype is not None:
            options["model_kwargs"] = {"dtype": dtype}
        encoder = SentenceTransformer._load_with_module_classes(name, {TAGGER: PictureTagger}, **options)
        return cls.from_encoder(encoder, name, modalities, **config_kwargs)

    @classmethod
    def from_encoder(
        cls,
        encoder: "SentenceTransformer",
        name: str = "The encoder",
        modalities: Iterable[str] = MODALITIES,
        **config_kwargs: Any,
    ) -> "ScalarSentenceModel":
        """Build a model on a loaded SentenceTransformer; see `from_folder`."""
        # Of the modalities that are wanted, those that it supports.
        fields = {"projection_dim": encoder.get_embedding_dimension()} | config_kwargs
        supported = supported_modalities(encoder, name, modalities)
        return cls(ScalarJointConfig(modalities=supported, **fields), encoder).eval()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Not supported: the model is only the published encoder."""
        raise ValueError("A model on a SentenceTransformer is not saved. Keep the folder that it was made from.")

    def get_input_embeddings(self) -> torch.nn.Module:
        """Return the embeddings of tokens; a NotImplementedError if the encoder exposes none."""
        network = self.encoder.transformers_model
        if network is None:
            return super().get_input_embeddings()
        return network.get_input_embeddings()

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """Return the arguments that a modality needs; see [`JointEncoderModel`]."""
        return _inputs_of(name)

    def _texts(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> list[str | dict[str, str]]:
        """The texts, marked as such where the library would take them for the address of a file, and open it."""
        from sentence_transformers.base.modality import infer_modality

        # The processor passes a text as its bytes: the library has a tokenizer of its own.
        tokenizer = getattr(self.encoder, "tokenizer", None)
        texts = []
        for row, mask in zip(input_ids.cpu(), attention_mask.bool().cpu(), strict=True):
            text = as_words(bytes(row[mask].tolist()).decode(), tokenizer)
            if infer_modality(text) != "text":
                text = {"text": text}
            texts.append(text)
        return texts

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries; see [`JointEncoderModel`]."""
        texts = self._texts(inputs["input_ids"], inputs["attention_mask"])
        embeds = self.encoder.encode_query(texts, convert_to_tensor=True, show_progress_bar=False)
        return BaseModelOutputWithPooling(pooler_output=embeds.clone())  # a tensor like any other

    def encode_rows(self, name: str, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        options: dict[str, Any] = {"convert_to_tensor": True, "show_progress_bar": False}
        # In the forms that the library expects of each modality.
        if name == "video":
            items = [torch.from_numpy(frames).permute(0, 3, 1, 2) for frames in inputs["video_frames"]]
            options["processing_kwargs"] = {"video": {"do_sample_frames": False}}  # they were chosen by the processor
        elif name == "audio":
            items = [{"array": waveform, "sampling_rate": SAMPLING_RATE} for waveform in inputs["audio_waveforms"]]
        else:
            items = self._texts(inputs[f"{name}_input_ids"], inputs[f"{name}_attention_mask"])
        return self.encoder.encode_document(items, **options).clone()


class ScalarSentenceProcessor(ScalarJointProcessor):
    """Read clips and pass them, and captions, to `ScalarSentenceModel` unchanged.

    Args:
        num_frames (`int`), num_train_frames (`int`): Frames per clip at test time and in training.
        max_audio_seconds (`float`): Maximum length of audio; the rest is left out with a warning.
        modalities (`list[str]`): The modalities to prepare; others are not read.
        max_text_length (`int`, *optional*): Number of tokens of a text that the encoder reads, if its folder says.
            Longer texts are passed to it unchanged.
    """

    def __init__(
        self,
        num_frames: int = 8,
        num_train_frames: int = 8,
        max_audio_seconds: float = 30,
        modalities: Iterable[str] = MODALITIES,
        max_text_length: int | None = None,
    ):
        check_whole(num_frames=num_frames, num_train_frames=num_train_frames)
        self.num_frames = num_frames
        self.num_train_frames = num_train_frames
        self.max_audio_seconds = max_audio_seconds
        self.modalities = list(modalities)
        check_modalities(self.modalities)
        self.max_text_length = max_text_length
        self.presence = "honest"
        ProcessorMixin.__init__(self)

    @property
    def model_input_names(self) -> list[str]:
        """The keys that a call can return."""
        names = list(_TEXT_INPUTS)
        for modality in self.modalities:
            names += _inputs_of(modality)
        return [*names, "modality_mask"]

    def _read_video(self, clip: Clip, *arguments: Any, **options: Any) -> None:
        super()._read_video(clip, *arguments, **options | {"processed": False})

    def _options(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        if given not in ({}, {"return_tensors": "pt"}):
            raise TypeError(f"Beside clips and texts, only `return_tensors='pt'` can be given here, got {given}.")
        return {}, {}, "pt"

    # Without the prompts of the joint processor: the library adds its own.
    _tokenize_captions = ScalarProcessor._tokenize_captions

    def _tokenize(self, texts: list, options: dict[str, Any], return_tensors: str | None = "pt") -> Mapping[str, Any]:
        return dict(zip(_TEXT_INPUTS, _to_bytes(texts), strict=True))

    def _process_clips(
        self, clips: list[Clip], training: bool, generators: list[torch.Generator | None]
    ) -> dict[str, Any]:
        modality_mask = self._presence_of(clips)
        data: dict[str, Any] = {"modality_mask": modality_mask}
        for name, present in self._present(modality_mask).items():
            is_text = kind_of(name) == "text"
            # One row per clip; the library reads only those that are present.
            rows = []
            for clip, generator, is_present in zip(clips, generators, present.tolist(), strict=True):
                row = None
                if is_present and is_text:
                    row = clip.text_of(name)
                elif is_present and name == "video":
                    row = take_frames(clip.frames, self._num_frames(training), training, generator)
                elif is_present:
                    row = clip.waveform[: self.max_samples]
                rows.append(row)
            if is_text:
                encoded = _to_bytes([text or "" for text in rows])
                data |= dict(zip(_inputs_of(name), encoded, strict=True))
            else:
                data |= dict.fromkeys(_inputs_of(name), rows)
        return data

    def _batch_of(self, data: dict[str, Any], return_tensors: str | None) -> BatchFeature:
        return BatchFeature(data)


__all__ = ["ScalarSentenceModel", "ScalarSentenceProcessor", "supported_modalities"]
