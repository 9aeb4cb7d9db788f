"""SCALAR on one joint encoder: the vectors of a clip's modalities and the query come from the same network.

Such an encoder could fuse what a clip has into one vector. Here each modality keeps its own, and the query weighs
them.

The classes. [`ScalarRetrievalModel`] is what searching, evaluating and training call: embeddings in, scores out.
[`JointEncoderModel`] makes it of one encoder, of which it asks two things, the adapter of any further kind: the
vectors of texts, and the vectors of one modality of some clips. Presence is decided above it, once for all kinds, so
that no encoder ever sees a row that a clip does not have. [`ScalarJointModel`] is the kind whose encoder is a model of
transformers: it holds it, saves it and travels as remote code. A kind that another library holds
(`ScalarSentenceModel`) is a subclass beside it. A joint encoder is no configuration of [`ScalarModel`]: towers, heads
and the cross-encoder would all have to be optional there, and saved models of three towers shall not change.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import torch
from transformers import AutoModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_joint_scalar import FAMILIES, ScalarJointConfig
from .configuration_scalar import MODALITIES
from .retrieval_scalar import Rows, ScalarOutput, ScalarRetrievalModel, check_mask, unit

_FLAGS = ("output_hidden_states", "output_attentions", "return_dict")
_FUSED = ("fused_input_ids", "fused_attention_mask")  # the sequences in which several modalities stand


class ScalarJointInputs(TypedDict, total=False):
    """
    What clips are made of, one row per clip; what no clip has is None or left out.

    Args:
        pixel_values_videos (`torch.FloatTensor` of shape `(batch, frames, patches, values)`), video_position_ids
            (`torch.LongTensor` of shape `(batch, frames, patches, 2)`): the patches of the frames and where they lie,
            -1 for padding.
        video_input_ids, video_attention_mask (`torch.LongTensor` of shape `(batch, length)`): the sequence that the
            frames stand in, with a placeholder for each of their soft tokens.
        input_features (`torch.FloatTensor` of shape `(batch, time, mel)`), input_features_mask (`torch.BoolTensor` of
            shape `(batch, time)`): the spectrogram, and what of it is sound.
        audio_input_ids, audio_attention_mask (`torch.LongTensor` of shape `(batch, length)`): as for the video.
        subtitle_input_ids, subtitle_attention_mask (`torch.LongTensor` of shape `(batch, length)`): as for queries.
    """

    pixel_values_videos: torch.Tensor | None
    video_position_ids: torch.Tensor | None
    video_input_ids: torch.Tensor | None
    video_attention_mask: torch.Tensor | None
    input_features: torch.Tensor | None
    input_features_mask: torch.Tensor | None
    audio_input_ids: torch.Tensor | None
    audio_attention_mask: torch.Tensor | None
    subtitle_input_ids: torch.Tensor | None
    subtitle_attention_mask: torch.Tensor | None


_INPUTS = {
    "video": ("pixel_values_videos", "video_position_ids", "video_input_ids", "video_attention_mask"),
    "audio": ("input_features", "input_features_mask", "audio_input_ids", "audio_attention_mask"),
    "subtitle": ("subtitle_input_ids", "subtitle_attention_mask"),
}


class JointEncoderModel(ScalarRetrievalModel):
    """
    Base of models on one joint encoder. A subclass says how to ask it, in two methods.

    Rows are what has `len`: a tensor, or a list where an encoder takes what no tensor holds.
    """

    config_class = ScalarJointConfig
    inputs_of: Mapping[str, tuple[str, ...]] = _INPUTS
    """The arguments that each modality needs."""
    can_fuse = False
    """Whether the encoder takes several modalities at once; see `get_fused_features`."""

    @abstractmethod
    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries: as `pooler_output` `(queries, dim)`, or `(queries, 3, dim)` if each modality has its own."""

    @abstractmethod
    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it: `(rows, dim)`."""

    def encode_fused(self, names: Sequence[str], inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed several modalities of clips that have all of them into one vector each: `(rows, dim)`."""
        raise ValueError("This encoder takes one modality at a time, and so has no fused vector.")

    @staticmethod
    def take_rows(rows: Rows, values: torch.Tensor) -> torch.Tensor:
        """Select the rows of clips that have a modality."""
        return rows.take(values)

    # Embeddings ---------------------------------------------------------------------------------------------------

    def _check_precision(self) -> None:
        backbone = self.config.backbone_config
        if self.dtype == torch.float16 and backbone is not None and not FAMILIES[backbone.model_type].has_float16:
            raise ValueError(
                f"A {backbone.model_type!r} encoder gives NaN in float16. Load it with `dtype=torch.bfloat16`, or "
                "torch.float32."
            )

    def _unit(self, vectors: torch.Tensor) -> torch.Tensor:
        return unit(vectors[..., : self.config.projection_dim])

    @can_return_tuple
    def get_text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | BaseModelOutputWithPooling:
        """
        Embed queries.

        Args:
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, length)`): 1 marks a token, 0 padding. By
                default all are tokens. The processor puts the prompt of queries before them.
            **kwargs: `output_hidden_states`, `output_attentions` and `return_dict`, as for any model of transformers.

        Returns:
            `BaseModelOutputWithPooling`: the encoder's tokens, and as `pooler_output` the embedding
            `(batch, projection_dim)`, of unit norm.
        """
        self._check_precision()
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        output = self.encode_texts({"input_ids": input_ids, "attention_mask": attention_mask}, **kwargs)
        output.pooler_output = self._unit(output.pooler_output)
        return output

    def _given(self, inputs: ScalarJointInputs) -> tuple[list[str], int, torch.device]:
        """Check the inputs of clips against each other; return the modalities among them, and their rows' place."""
        known = [name for names in self.inputs_of.values() for name in names]
        if unknown := sorted(set(inputs) - set(known)):
            raise TypeError(f"Clips have no inputs {unknown}; expected some of {known}.")
        present = {key: value for key, value in inputs.items() if value is not None}
        given = [name for name in MODALITIES if any(key in present for key in self.inputs_of[name])]
        if not given:
            raise ValueError(f"Expected the inputs of at least one modality of {MODALITIES}, got none.")
        for name in given:
            if missing := [key for key in self.inputs_of[name] if key not in present]:
                raise ValueError(f"The inputs of the {name} lack {missing}; the processor makes all of them.")
        if strange := [name for name in given if name not in self.config.modalities]:
            raise ValueError(
                f"This model embeds {list(self.config.modalities)}, got the inputs of {strange}. Use the processor "
                "that was saved with it."
            )
        sizes = {key: len(value) for key, value in present.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"All modalities must have one row per clip, got {sizes}.")
        return given, next(iter(sizes.values())), getattr(next(iter(present.values())), "device", self.device)

    def get_modality_features(
        self, *, modality_mask: torch.Tensor | None = None, **inputs: Unpack[ScalarJointInputs]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Embed whatever each clip has.

        Args:
            modality_mask (`torch.BoolTensor` of shape `(batch, 3)`, *optional*): which rows are real. What a masked
                row holds is never read. Without it, every input given is present in every row.
            inputs ([`ScalarJointInputs`]): what the processor makes of the clips.

        Returns:
            The embeddings `(batch, 3, projection_dim)`, unit norm and zero where absent, and the mask `(batch, 3)`.

        Raises:
            ValueError: no input was given, sizes differ, an input is missing, or the mask promises one that is None.
            TypeError: an unknown input.
        """
        self._check_precision()
        given, size, device = self._given(inputs)
        has_input = torch.tensor([name in given for name in MODALITIES], device=device).expand(size, -1)
        modality_mask = has_input.clone() if modality_mask is None else check_mask(modality_mask, size)
        if (modality_mask & ~has_input).any():
            missing = [name for name in MODALITIES if name not in given]
            raise ValueError(f"`modality_mask` marks {missing} as present in some rows, but their inputs are None.")
        dtype = torch.promote_types(self.dtype, torch.float32)
        absent = torch.zeros(size, self.config.projection_dim, dtype=dtype, device=modality_mask.device)
        columns = []
        for index, name in enumerate(MODALITIES):
            rows = Rows(modality_mask[:, index])
            if name not in given or not rows:
                columns.append(absent)
                continue
            chosen = {key: self.take_rows(rows, inputs[key]) for key in self.inputs_of[name]}
            columns.append(rows.spread(self._unit(self.encode_rows(name, chosen)).to(absent)))
        return torch.stack(columns, dim=1), modality_mask

    def get_fused_features(self, *, modality_mask: torch.Tensor, **inputs: Unpack[ScalarJointInputs]) -> torch.Tensor:
        """
        Embed all that each clip has into one vector, as the encoder itself uses several modalities.

        Args:
            modality_mask (`torch.BoolTensor` of shape `(batch, 3)`): what is fused of each clip. Of a single modality
                the vector is that of `get_modality_features`.
            inputs ([`ScalarJointInputs`]): what `fuse` of the processor makes of the clips and this mask.

        Returns:
            The embeddings `(batch, projection_dim)`, of unit norm.

        Raises:
            ValueError: as in `get_modality_features`, or the encoder takes one modality at a time.
        """
        self._check_precision()
        sequences = {key: inputs.pop(key) for key in _FUSED if key in inputs}
        given, size, device = self._given(inputs)
        modality_mask = check_mask(modality_mask, size)
        dtype = torch.promote_types(self.dtype, torch.float32)
        fused = torch.zeros(size, self.config.projection_dim, dtype=dtype, device=device)
        for mix in modality_mask.unique(dim=0):
            names = [name for name, here in zip(MODALITIES, mix.tolist(), strict=True) if here]
            if missing := sorted(set(names) - set(given)):
                raise ValueError(f"`modality_mask` asks for {missing}, of which the inputs are None.")
            rows = Rows((modality_mask == mix).all(dim=1))
            keys = [key for name in names for key in self.inputs_of[name]]
            chosen = {key: self.take_rows(rows, inputs[key]) for key in keys}
            if len(names) == 1:
                vectors = self.encode_rows(names[0], chosen)
            else:
                chosen |= {key: self.take_rows(rows, value) for key, value in sequences.items()}
                vectors = self.encode_fused(names, chosen)
            fused += rows.spread(self._unit(vectors).to(fused))
        return fused

    # Forward ------------------------------------------------------------------------------------------------------

    def _forward(self, input_ids, attention_mask, modality_mask, inputs, return_scores, return_loss, kwargs):
        unknown = [name for name, value in kwargs.items() if name not in _FLAGS and value is not None]
        if unknown:  # PEFT passes some, all None
            raise TypeError(f"{type(self).__name__}.forward() got unexpected keyword arguments {unknown}.")
        flags = {name: kwargs[name] for name in _FLAGS if kwargs.get(name) is not None}
        has_clips = any(value is not None for value in inputs.values())
        if input_ids is None and not has_clips:
            raise ValueError("Nothing to embed: give `input_ids`, or the inputs of at least one modality, or both.")
        output = self.new_output()
        if input_ids is not None:
            text_output = self.get_text_features(input_ids, attention_mask, **flags | {"return_dict": True})
            output.text_embeds = text_output.pooler_output
            if flags.keys() - {"return_dict"}:
                output.text_model_output = text_output
        if has_clips:
            given = {name: value for name, value in inputs.items() if value is not None}
            output.modality_embeds, output.modality_mask = self.get_modality_features(
                modality_mask=modality_mask, **given
            )
            for index, name in enumerate(MODALITIES):
                output[f"{name}_embeds"] = output.modality_embeds[:, index]
        if input_ids is not None and has_clips and return_scores:
            self.score_output(output, return_loss)
        return output


class ScalarJointModel(JointEncoderModel):
    """
    Text-to-video retrieval with one joint encoder of transformers, made by [`ScalarModel.from_joint_encoder`].

    The vector of a text, of the frames or of the sound is the mean of the encoder's tokens over the attention mask,
    prompt and special tokens included, its first `projection_dim` components, on the sphere: what the encoder's own
    library makes of the same input.

    Args:
        config ([`ScalarJointConfig`]): the encoder and the aggregation.
    """

    # So that with a configuration of ours `from_pretrained` takes the weights of the encoder as they are published.
    base_model_prefix = "backbone"
    can_fuse = True

    def __init__(self, config: ScalarJointConfig):
        super().__init__(config)
        self.backbone = AutoModel.from_config(config.backbone_config)
        self.add_score_modules()
        self.post_init()

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def _encode(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        output = self.backbone(**inputs, **flags | {"return_dict": True})
        states, mask = output.last_hidden_state.float(), inputs["attention_mask"][..., None].float()
        pooled = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return BaseModelOutputWithPooling(
            last_hidden_state=output.last_hidden_state,
            pooler_output=pooled,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries; see [`JointEncoderModel`]."""
        return self._encode(inputs, **flags)

    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        return self._encode_media([name], inputs, name)

    def encode_fused(self, names: Sequence[str], inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed several modalities of clips that have all of them into one vector; see [`JointEncoderModel`]."""
        return self._encode_media(names, inputs, "fused")

    def _encode_media(self, names: Sequence[str], inputs: Mapping[str, torch.Tensor], sequence: str) -> torch.Tensor:
        """Encode the sequences of that name, in which the media of some modalities have their places."""
        batch = {
            "input_ids": inputs[f"{sequence}_input_ids"],
            "attention_mask": inputs[f"{sequence}_attention_mask"],
        }
        if "video" in names:
            frames = inputs["pixel_values_videos"]
            batch |= {
                "pixel_values_videos": frames.flatten(0, 1),  # (rows * frames, patches, values)
                "video_position_ids": inputs["video_position_ids"].flatten(0, 1),
                "num_frames_per_video": torch.full((len(frames),), frames.shape[1], device=frames.device),
            }
        if "audio" in names:
            batch |= {key: inputs[key] for key in ("input_features", "input_features_mask")}
        return self._encode(batch).pooler_output

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        video_position_ids: torch.Tensor | None = None,
        video_input_ids: torch.Tensor | None = None,
        video_attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_features_mask: torch.Tensor | None = None,
        audio_input_ids: torch.Tensor | None = None,
        audio_attention_mask: torch.Tensor | None = None,
        subtitle_input_ids: torch.Tensor | None = None,
        subtitle_attention_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
        return_scores: bool = True,
        return_loss: bool = True,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | ScalarOutput:
        """
        Embed queries and clips and score every query against every clip.

        Args:
            input_ids, attention_mask: queries, as in `get_text_features`; None embeds clips only.
            pixel_values_videos, video_position_ids, video_input_ids, video_attention_mask, input_features,
                input_features_mask, audio_input_ids, audio_attention_mask, subtitle_input_ids,
                subtitle_attention_mask, modality_mask: clips, as in `get_modality_features`; all None embeds queries
                only.
            return_scores (`bool`): score the queries of this batch against its clips.
            return_loss (`bool`): where there are as many queries as clips and they are scored, also compute the
                symmetric InfoNCE that takes query i for the description of clip i, as CLIP's.
            **kwargs: `output_hidden_states`, `output_attentions` and `return_dict`, as for any model of transformers;
                the first two are about the queries.

        Returns:
            [`ScalarOutput`].

        Raises:
            ValueError: nothing was given, or as in the methods named above.
            TypeError: an unknown keyword argument.
        """
        inputs: ScalarJointInputs = {
            "pixel_values_videos": pixel_values_videos,
            "video_position_ids": video_position_ids,
            "video_input_ids": video_input_ids,
            "video_attention_mask": video_attention_mask,
            "input_features": input_features,
            "input_features_mask": input_features_mask,
            "audio_input_ids": audio_input_ids,
            "audio_attention_mask": audio_attention_mask,
            "subtitle_input_ids": subtitle_input_ids,
            "subtitle_attention_mask": subtitle_attention_mask,
        }
        return self._forward(input_ids, attention_mask, modality_mask, inputs, return_scores, return_loss, kwargs)


__all__ = ["JointEncoderModel", "ScalarJointInputs", "ScalarJointModel"]
