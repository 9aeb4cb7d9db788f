"""SCALAR on PE-AV, whose texts have one vector for the picture and another for the sound.

For programs that prepare its inputs themselves: there is no processor, for sound is read at 16 kHz here and PE-AV
hears 48 kHz. transformers needs timm for its vision tower.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import PeAudioVideoModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging

from .configuration_joint_scalar import ScalarJointConfig
from .configuration_scalar import MODALITIES
from .modeling_joint_scalar import JointEncoderModel
from .retrieval_scalar import ScalarOutput
from .scores_scalar import METHODS

logger = logging.get_logger(__name__)


class ScalarPeAvModel(JointEncoderModel):
    """
    Text-to-video retrieval with PE-AV: `ScalarPeAvModel(PeAudioVideoModel.from_pretrained("facebook/pe-av-large"))`.

    Its encoders and heads are called one by one; of its own `get_text_audio_embeds`, `get_text_video_embeds` and
    `get_video_embeds` transformers 5.23 has broken versions. It is not saved: its own folder is the model.

    Args:
        encoder (`PeAudioVideoModel`): with its weights.
        modalities (`Iterable[str]`): what is embedded of a clip. There is no head for subtitles, so these are left
            out, which is said.
        config_kwargs: fields of [`ScalarJointConfig`], `query_temperature` say.

    Raises:
        ValueError: nothing is left to embed, or the score is one of a single vector per text.
    """

    inputs_of = {
        "video": ("pixel_values_videos", "padding_mask_videos"),
        "audio": ("input_values", "padding_mask"),
        "subtitle": (),
    }

    def __init__(self, encoder: PeAudioVideoModel, modalities: Iterable[str] = MODALITIES, **config_kwargs: Any):
        wanted = list(modalities)
        found = [name for name in MODALITIES if name in wanted and self.inputs_of[name]]
        if lacking := [name for name in wanted if name not in found]:
            logger.warning(f"PE-AV has no head for {', '.join(lacking)}: in every clip that is left out.")
        if not found:
            raise ValueError(f"PE-AV embeds video and audio, got the modalities {wanted}.")
        fields = {"projection_dim": encoder.config.text_config.hidden_size} | config_kwargs
        config = ScalarJointConfig(modalities=found, **fields)
        if not METHODS[config.aggregation].takes_text_per_modality:
            able = [name for name, method in METHODS.items() if method.takes_text_per_modality]
            raise ValueError(
                f"Texts of PE-AV have a vector for each modality; {config.aggregation!r} is none of {able}."
            )
        super().__init__(config)
        self.add_score_modules()
        self.post_init()
        self.encoder = encoder  # after what is initialised
        self.eval()

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: the encoder is saved as its publisher does, and nothing else is in it."""
        raise ValueError("A model on PE-AV is not saved. Keep the folder that its encoder was loaded from.")

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries, `(queries, 3, dim)`: for the picture, for the sound, and for both, which no clip meets."""
        output = self.encoder.text_model(**inputs, **flags | {"return_dict": True})
        first = output.last_hidden_state[:, 0]
        heads = (
            self.encoder.video_model.text_video_head,
            self.encoder.audio_model.text_audio_head,
            self.encoder.text_audio_video_head,
        )
        return BaseModelOutputWithPooling(
            last_hidden_state=output.last_hidden_state,
            pooler_output=torch.stack([head(first) for head in heads], dim=1),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        if name == "video":
            output = self.encoder.video_model.video_encoder(**inputs, return_dict=True)
            return self.encoder.video_model.video_head(output.pooler_output)
        output = self.encoder.audio_model.audio_encoder(**inputs, return_dict=True)
        return self.encoder.audio_model.audio_head(output.pooler_output)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        padding_mask_videos: torch.Tensor | None = None,
        input_values: torch.Tensor | None = None,
        padding_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
        return_scores: bool = True,
        return_loss: bool = True,
        **kwargs: Any,
    ) -> ScalarOutput:
        """Embed queries and clips and score every query against every clip; see [`ScalarJointModel`].

        Args:
            pixel_values_videos (`torch.FloatTensor` of shape `(batch, frames, 3, height, width)`), padding_mask_videos
                (`torch.BoolTensor` of shape `(batch, frames)`): frames as PE-AV's own video processor makes them, and
                which are no padding.
            input_values (`torch.FloatTensor` of shape `(batch, 1, samples)`), padding_mask (`torch.BoolTensor` of
                shape `(batch, samples)`): sound at 48 kHz as its feature extractor makes it, and what is no padding.
        """
        inputs = {
            "pixel_values_videos": pixel_values_videos,
            "padding_mask_videos": padding_mask_videos,
            "input_values": input_values,
            "padding_mask": padding_mask,
        }
        return self._forward(input_ids, attention_mask, modality_mask, inputs, return_scores, return_loss, kwargs)


__all__ = ["ScalarPeAvModel"]
