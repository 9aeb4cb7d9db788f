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
from torch import nn
from transformers import AutoModel, initialization
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_joint_scalar import FAMILIES, ScalarJointConfig
from .configuration_scalar import MODALITIES
from .retrieval_scalar import Rows, ScalarOutput, ScalarRetrievalModel, check_mask
from .scores_scalar import unit

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
        video_soft_tokens, audio_soft_tokens (`torch.FloatTensor` of shape `(batch, tokens, hidden)`): what the tower
            gives in place of the placeholders, of [`ScalarJointModel.get_tower_features`], instead of its input; those
            of a row come first, zeros after them.
        video_pooled, audio_pooled, subtitle_pooled (`torch.FloatTensor` of shape `(batch, dim)`): vectors of the
            encoder that were stored, instead of all else of the modality. The heads alone are computed.
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
    video_soft_tokens: torch.Tensor | None
    audio_soft_tokens: torch.Tensor | None
    video_pooled: torch.Tensor | None
    audio_pooled: torch.Tensor | None
    subtitle_pooled: torch.Tensor | None


_INPUTS = {
    "video": ("pixel_values_videos", "video_position_ids", "video_input_ids", "video_attention_mask"),
    "audio": ("input_features", "input_features_mask", "audio_input_ids", "audio_attention_mask"),
    "subtitle": ("subtitle_input_ids", "subtitle_attention_mask"),
}


class ScalarResidualHead(nn.Module):
    """A vector and a learned linear map of it, zero at first, so that nothing changes until it is trained."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))  # not in a layer, whose own initialisation is random

    def forward(self, embeds: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type=embeds.device.type, enabled=False):  # in float32, as all vectors
            return embeds + nn.functional.linear(embeds, self.weight.to(embeds.dtype))


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

    def stored_inputs(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return what can be given in place of [`inputs_of`] a modality, where it was computed before."""
        return ((f"{name}_pooled",),)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, ScalarResidualHead):
            initialization.zeros_(module.weight)

    def add_score_modules(self) -> None:
        """Add what the configuration asks for beside the encoder: learned scalars, and heads."""
        super().add_score_modules()
        if self.config.has_heads:
            for name in ("text", *self.config.modalities):
                setattr(self, f"{name}_head", ScalarResidualHead(self.config.projection_dim))

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

    def project(self, name: str, vectors: torch.Tensor) -> torch.Tensor:
        """
        Make embeddings of the encoder's vectors: their first components on the sphere, and the head, if there is one.

        Args:
            name (`str`): `"text"` or a modality.
            vectors (`torch.Tensor` of shape `(..., dim)`): of the encoder, of any norm.

        Returns:
            `torch.Tensor` of shape `(..., projection_dim)`, of unit norm, in float32 at least.
        """
        embeds = unit(vectors[..., : self.config.projection_dim])
        return unit(getattr(self, f"{name}_head")(embeds)) if self.config.has_heads else embeds

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
        output.pooler_output = self.project("text", output.pooler_output)
        return output

    def _given(self, inputs: ScalarJointInputs) -> tuple[dict[str, tuple[str, ...]], int, torch.device]:
        """Check the inputs of clips against each other; return those of each modality, and their rows' place."""
        choices = {name: (*self.stored_inputs(name), self.inputs_of[name]) for name in MODALITIES}
        known = sorted({key for sets in choices.values() for keys in sets for key in keys})
        if unknown := sorted(set(inputs) - set(known)):
            raise TypeError(f"Clips have no inputs {unknown}; expected some of {known}.")
        present = {key: value for key, value in inputs.items() if value is not None}
        given = {}
        for name, sets in choices.items():
            here = {key for keys in sets for key in keys if key in present}
            if not here:
                continue
            given[name] = next(keys for keys in sets if keys[0] in here or keys is sets[-1])
            if missing := [key for key in given[name] if key not in present]:
                raise ValueError(f"The inputs of the {name} lack {missing}; the processor makes all of them.")
            if twice := sorted(here - set(given[name])):
                raise ValueError(f"Give either {list(given[name])} of the {name}, or {twice}, not both.")
        if not given:
            raise ValueError(f"Expected the inputs of at least one modality of {MODALITIES}, got none.")
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
        if modality_mask is None:
            modality_mask = has_input.clone()
        check_mask(modality_mask, size, len(MODALITIES))
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
            chosen = {key: self.take_rows(rows, inputs[key]) for key in given[name]}
            stored = chosen.get(f"{name}_pooled")
            vectors = self.encode_rows(name, chosen) if stored is None else stored
            columns.append(rows.spread(self.project(name, vectors).to(absent)))
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
            ValueError: as in `get_modality_features`, the encoder takes one modality at a time, or it has heads, which
                are made for vectors of single modalities.
        """
        self._check_precision()
        if self.config.has_heads:
            raise ValueError("Heads are made for vectors of single modalities: what is fused has none.")
        sequences = {key: inputs.pop(key) for key in _FUSED if key in inputs}
        given, size, device = self._given(inputs)
        check_mask(modality_mask, size, len(MODALITIES))
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
            fused += rows.spread(unit(vectors[..., : self.config.projection_dim]).to(fused))
        return fused

    # Forward ------------------------------------------------------------------------------------------------------

    def _forward(
        self, input_ids, attention_mask, modality_mask, inputs, return_scores, return_loss, kwargs, text_pooled=None
    ):
        unknown = [name for name, value in kwargs.items() if name not in _FLAGS and value is not None]
        if unknown:  # PEFT passes some, all None
            raise TypeError(f"{type(self).__name__}.forward() got unexpected keyword arguments {unknown}.")
        flags = {name: kwargs[name] for name in _FLAGS if kwargs.get(name) is not None}
        has_clips = any(value is not None for value in inputs.values())
        if input_ids is None and text_pooled is None and not has_clips:
            raise ValueError("Nothing to embed: give `input_ids`, or the inputs of at least one modality, or both.")
        if input_ids is not None and text_pooled is not None:
            raise ValueError("Give either `input_ids`, or `text_pooled` in their place, not both.")
        output = self.new_output()
        if text_pooled is not None:
            output.text_embeds = self.project("text", text_pooled)
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
        if output.text_embeds is not None and has_clips and return_scores:
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

    def train(self, mode: bool = True) -> "ScalarJointModel":
        """Set the training mode, but not of parts without a trainable parameter: a frozen one is a fixed function."""
        super().train(mode)
        for part in self.backbone.children():
            if mode and not any(parameter.requires_grad for parameter in part.parameters()):
                part.eval()
        return self

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

    def stored_inputs(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return what can be given in place of a modality's inputs; see [`JointEncoderModel`]."""
        if name == "subtitle":  # which has no tower
            return super().stored_inputs(name)
        of_tower = f"{name}_soft_tokens", f"{name}_input_ids", f"{name}_attention_mask"
        return (*super().stored_inputs(name), of_tower)

    def _soft_tokens(self, name: str, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """What a tower gives for each row, `(tokens, hidden)`."""
        if name == "video":
            frames, places = inputs["pixel_values_videos"], inputs["video_position_ids"]
            counts = torch.full((len(frames),), frames.shape[1], device=frames.device)
            output = self.backbone.get_video_features(
                frames.flatten(0, 1), places.flatten(0, 1), counts, return_dict=True
            )
            return list(output.pooler_output)
        output = self.backbone.get_audio_features(
            inputs["input_features"], inputs["input_features_mask"], return_dict=True
        )
        return [row[mask] for row, mask in zip(output.pooler_output, output.attention_mask.bool(), strict=True)]

    def get_tower_features(
        self, modality_mask: torch.Tensor | None = None, with_states: bool = True, **inputs: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """
        Compute what the towers of frames and of sound give the trunk, to be passed in place of their inputs.

        Frozen towers have the same output for the same input at every step. Computed once, `model(**features, ...)` is
        `model(pixel_values_videos=..., input_features=..., ...)`.

        Args:
            modality_mask (`torch.BoolTensor` of shape `(batch, 3)`, *optional*): which rows are real.
            with_states (`bool`): of models with a cross-encoder; here the tokens are all there is.
            inputs: `pixel_values_videos` and `video_position_ids`, `input_features` and `input_features_mask`.

        Returns:
            `dict` with `video_soft_tokens` and `audio_soft_tokens` `(batch, tokens, hidden)`: zeros after those of a
            row and where it is absent, no key where no clip has the modality.
        """
        features = {}
        for index, name in enumerate(MODALITIES[:2]):
            of_tower = {key: inputs[key] for key in _INPUTS[name][:2] if key in inputs}
            if not of_tower:
                continue
            values = next(iter(of_tower.values()))
            every = torch.ones(len(values), dtype=torch.bool, device=values.device)
            rows = Rows(every if modality_mask is None else modality_mask[:, index])
            if rows:
                chosen = {key: rows.take(value) for key, value in of_tower.items()}
                features[f"{name}_soft_tokens"] = rows.spread(
                    nn.utils.rnn.pad_sequence(self._soft_tokens(name, chosen), batch_first=True)
                )
        return features

    def _with_soft_tokens(self, name: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The sequences of a modality with the output of its tower in place of the placeholders."""
        config, ids = self.backbone.config, inputs[f"{name}_input_ids"]
        tokens = inputs[f"{name}_soft_tokens"]
        is_soft = ids == getattr(config, f"{name}_token_id")
        counts = is_soft.sum(dim=1)  # of each row, (rows,)
        if int(counts.max()) > tokens.shape[1]:
            raise ValueError(
                f"`{name}_soft_tokens` has {tokens.shape[1]} tokens a row, but the sequences have placeholders for "
                f"{int(counts.max())}. Give those that were computed with `{name}_input_ids`."
            )
        embeds = self.get_input_embeddings()(torch.where(is_soft, config.text_config.pad_token_id, ids))
        own = torch.arange(tokens.shape[1], device=ids.device) < counts[:, None]  # (rows, tokens)
        return {"inputs_embeds": embeds.masked_scatter(is_soft[..., None], tokens[own].to(embeds.dtype))}

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries; see [`JointEncoderModel`]."""
        return self._encode(inputs, **flags)

    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        if f"{name}_soft_tokens" in inputs:
            batch = {"attention_mask": inputs[f"{name}_attention_mask"]}
            return self._encode(batch | self._with_soft_tokens(name, inputs)).pooler_output
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
        video_soft_tokens: torch.Tensor | None = None,
        audio_soft_tokens: torch.Tensor | None = None,
        text_pooled: torch.Tensor | None = None,
        video_pooled: torch.Tensor | None = None,
        audio_pooled: torch.Tensor | None = None,
        subtitle_pooled: torch.Tensor | None = None,
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
                subtitle_attention_mask, modality_mask, video_soft_tokens, audio_soft_tokens, video_pooled,
                audio_pooled, subtitle_pooled: clips, as in `get_modality_features`; all None embeds queries only.
            text_pooled (`torch.FloatTensor` of shape `(batch, dim)`): in place of the tokens of queries, vectors of
                the encoder that were stored.
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
            "video_soft_tokens": video_soft_tokens,
            "audio_soft_tokens": audio_soft_tokens,
            "video_pooled": video_pooled,
            "audio_pooled": audio_pooled,
            "subtitle_pooled": subtitle_pooled,
        }
        return self._forward(
            input_ids, attention_mask, modality_mask, inputs, return_scores, return_loss, kwargs, text_pooled
        )


ScalarJointModel.register_for_auto_class("AutoModel")

__all__ = ["JointEncoderModel", "ScalarJointInputs", "ScalarJointModel", "ScalarResidualHead"]
