"""SCALAR on models of Sentence Transformers, one or several side by side, with the modalities that they support.

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
from .modalities_scalar import kind_of
from .model_identity import ModelIdentity, Named, identify, naming
from .modeling_joint_scalar import JointEncoderModel
from .processing_joint_scalar import ScalarJointProcessor
from .processing_scalar import Clip, ScalarProcessor, take_frames

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .direct_sum import DirectSum

logger = logging.get_logger(__name__)

_TEXT_INPUTS = ("input_ids", "attention_mask")


def _inputs_of(name: str) -> tuple[str, ...]:
    if name == "video":
        return ("video_frames",)
    if name == "audio":
        return ("audio_waveforms",)
    return (f"{name}_input_ids", f"{name}_attention_mask")


def _to_bytes(texts: Sequence[str], names: Sequence[str] = _TEXT_INPUTS) -> dict[str, torch.Tensor]:
    """Encode texts as numbers that can be batched, `(texts, bytes)`, with their mask."""
    rows = [torch.tensor(list(text.encode()), dtype=torch.long) for text in texts]
    numbers = pad_sequence(rows, batch_first=True, padding_value=-1)
    is_byte = numbers >= 0
    return dict(zip(names, (numbers.clamp(min=0), is_byte.long()), strict=True))


def _from_bytes(numbers: torch.Tensor, mask: torch.Tensor) -> list[str]:
    """Decode what [`_to_bytes`] encoded: the library has tokenizers of its own."""
    texts = []
    for row, is_byte in zip(numbers.cpu(), mask.bool().cpu(), strict=True):
        texts.append(bytes(row[is_byte].tolist()).decode())
    return texts


def supported_modalities(encoders: "DirectSum", name: str, wanted: Iterable[str]) -> list[str]:
    """Return the requested modalities that encoders support, with a warning about the others.

    Raises:
        ValueError: If one does not embed texts, or embeds none of the requested modalities.
    """
    for encoder in encoders.encoders:
        if not encoder.supports("text"):
            raise ValueError(f"{name} does not embed texts, which queries need; it supports {encoder.modalities}.")
    # What they do not support is absent in every clip.
    supported = []
    for modality in wanted:
        if encoders.number_of(modality) is not None:
            supported.append(modality)
        else:
            logger.warning(f"{name} does not support {modality}, which is left out of every clip.")
    if not supported:
        raise ValueError(f"{name} embeds none of {list(wanted)}; it supports {encoders.modalities}.")
    # One without a modality would cost every query its time, and find nothing.
    idle = set(range(len(encoders.encoders))).difference(map(encoders.number_of, supported))
    if idle:
        raise ValueError(f"Number {min(idle) + 1} of {name} embeds none of {supported}. Leave it out.")
    return supported


class ScalarSentenceModel(JointEncoderModel):
    """
    Text-to-video retrieval with SentenceTransformers, made by [`ScalarModel.from_joint_encoder`].

    Queries and clips are embedded by their own `encode_query` and `encode_document`, with their own prompts and
    pooling, without gradients. It is not saved: the original folders are the model.

    Its inputs are `video_frames` (`list` of uint8 `np.ndarray` of shape `(frames, height, width, 3)`),
    `audio_waveforms` (`list` of float32 `np.ndarray` of shape `(samples,)`), one per clip (any value if absent), and
    the bytes of texts, as in [`JointEncoderModel.get_modality_features`].

    Args:
        config ([`ScalarJointConfig`]): A configuration without a `backbone_config`.
        encoders ([`~direct_sum.DirectSum`]): The encoders with their weights.
    """

    def __init__(self, config: ScalarJointConfig, encoders: "DirectSum"):
        super().__init__(config)
        self.add_score_modules()
        self.post_init()
        self.encoders = encoders  # after the modules that are initialised

    @property
    def encoder(self) -> "SentenceTransformer":
        """The SentenceTransformer, which can be saved as such; one that holds all if several stand side by side."""
        from sentence_transformers import SentenceTransformer

        if len(self.encoders.encoders) == 1:
            return self.encoders.encoders[0]
        return SentenceTransformer(modules=[self.encoders], device=str(self.device))

    @classmethod
    def from_folder(
        cls,
        name: Named | ModelIdentity,
        modalities: Iterable[str],
        dtype: torch.dtype | None = None,
        **config_kwargs: Any,
    ) -> "ScalarSentenceModel":
        """
        Load SentenceTransformers; no code of their folders runs.

        Args:
            name (`str`): A folder or a Hub id, or several; see [`~model_identity.identify`].
            modalities, dtype, config_kwargs: See [`ScalarModel.from_joint_encoder`].

        Raises:
            ModuleNotFoundError: If Sentence Transformers is not installed.
            ValueError: If one cannot be loaded or does not embed texts, or none embeds any requested modality.
        """
        from scalar_retrieval.commands.extras import naming_extras

        with naming_extras():
            from .direct_sum import DirectSum, load_encoder

        identity = identify(name)
        options = {} if dtype is None else {"dtype": dtype}
        identity.download()
        encoders = []
        for part in identity.parts:
            with naming(part.name):
                encoders.append(load_encoder(str(part.download()), **options))
        whole = encoders[0] if identity.routes is None else DirectSum(encoders, identity.routes)
        return cls.from_encoder(whole, identity.name, modalities, **config_kwargs)

    @classmethod
    def from_encoder(
        cls,
        encoder: "SentenceTransformer | DirectSum",
        name: str = "The encoder",
        modalities: Iterable[str] = MODALITIES,
        **config_kwargs: Any,
    ) -> "ScalarSentenceModel":
        """Build a model on a loaded SentenceTransformer, or on several side by side; see `from_folder`."""
        from .direct_sum import DirectSum

        # A saved direct sum is the only module of a SentenceTransformer.
        encoders = encoder
        if not isinstance(encoder, DirectSum):
            encoders = next(encoder.children(), None)
            if not isinstance(encoders, DirectSum):
                encoders = DirectSum([encoder])
        # Of the modalities that are wanted, those that are supported.
        supported = supported_modalities(encoders, name, modalities)
        fields = {"projection_dim": encoders.dim} | config_kwargs
        if len(encoders.slices) > 1:
            fields["modality_slices"] = [encoders.slices[encoders.number_of(modality)] for modality in supported]
        return cls(ScalarJointConfig(modalities=supported, **fields), encoders).eval()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Not supported: the model is only the published encoder."""
        raise ValueError("A model on a SentenceTransformer is not saved. Keep the folder that it was made from.")

    def get_input_embeddings(self) -> torch.nn.Module:
        """Return the embeddings of tokens; a NotImplementedError if the encoder exposes none."""
        network = self.encoders.encoders[0].transformers_model
        if network is None:
            return super().get_input_embeddings()
        return network.get_input_embeddings()

    def input_sets(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the arguments that a modality needs; see [`JointEncoderModel`]."""
        return (_inputs_of(name),)

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries; see [`JointEncoderModel`]."""
        texts = _from_bytes(inputs["input_ids"], inputs["attention_mask"])
        return BaseModelOutputWithPooling(pooler_output=self.encoders.encode_queries(texts))

    def encode_rows(self, name: str, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        # In the forms that the library expects of each modality.
        if name == "video":
            items = [torch.from_numpy(frames).permute(0, 3, 1, 2) for frames in inputs["video_frames"]]
        elif name == "audio":
            rate = self.encoders.sampling_rate
            items = [{"array": waveform, "sampling_rate": rate} for waveform in inputs["audio_waveforms"]]
        else:
            items = _from_bytes(inputs[f"{name}_input_ids"], inputs[f"{name}_attention_mask"])
        return self.encoders.encode_clips(name, items)


class ScalarSentenceProcessor(ScalarJointProcessor):
    """Read clips and pass them, and captions, to `ScalarSentenceModel` unchanged.

    Args:
        num_frames (`int`), num_train_frames (`int`): Frames per clip at test time and in training.
        max_audio_seconds (`float`): Maximum length of audio; the rest is left out with a warning.
        modalities (`list[str]`): The modalities to prepare; others are not read.
        max_text_length (`int`, *optional*): Number of tokens of a text that the encoder reads, if its folder says.
            Longer texts are passed to it unchanged.
        sampling_rate (`int`): The rate in Hz at which sound is read.
    """

    sampling_rate = SAMPLING_RATE  # an attribute, unlike in other processors

    def __init__(
        self,
        num_frames: int = 8,
        num_train_frames: int = 8,
        max_audio_seconds: float = 30,
        modalities: Iterable[str] = MODALITIES,
        max_text_length: int | None = None,
        sampling_rate: int = SAMPLING_RATE,
    ):
        check_whole(num_frames=num_frames, num_train_frames=num_train_frames)
        self.num_frames = num_frames
        self.num_train_frames = num_train_frames
        self.max_audio_seconds = max_audio_seconds
        self.modalities = list(modalities)
        check_modalities(self.modalities)
        self.max_text_length = max_text_length
        self.sampling_rate = sampling_rate
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
        return _to_bytes(texts)

    def _process_clips(
        self, clips: list[Clip], training: bool, generators: list[torch.Generator | None]
    ) -> dict[str, Any]:
        modality_mask = self._presence_of(clips)
        data: dict[str, Any] = {"modality_mask": modality_mask}
        for name in self._present(modality_mask):
            keys = _inputs_of(name)
            if kind_of(name) == "text":
                data |= _to_bytes([clip.text_of(name) or "" for clip in clips], keys)
                continue
            # One row per clip; the library reads only those that are present.
            rows = []
            for clip, generator in zip(clips, generators, strict=True):
                if not clip.has(name):
                    rows.append(None)
                elif name == "video":
                    rows.append(take_frames(clip.frames, self._num_frames(training), training, generator))
                else:
                    rows.append(clip.waveform[: self.max_samples])
            data[keys[0]] = rows
        return data

    def _batch_of(self, data: dict[str, Any], return_tensors: str | None) -> BatchFeature:
        return BatchFeature(data)


__all__ = ["ScalarSentenceModel", "ScalarSentenceProcessor", "supported_modalities"]
