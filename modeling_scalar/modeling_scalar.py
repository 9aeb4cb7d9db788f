"""The SCALAR model: three towers, heads into one sphere, a cross-encoder, and the aggregation that ranks clips.

Any vision, audio and text model of transformers can be a tower. A tower only sees the clips that have its modality, so
masked rows have no effect and absent modalities cost nothing. The outputs of the vision and audio towers can be
precomputed and passed instead of pixels and filter banks (`get_tower_features`).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

import torch
from torch import nn
from transformers import (
    AutoModel,
    Blip2VisionModel,
    ClapAudioModel,
    ClapTextModel,
    PreTrainedConfig,
    PreTrainedModel,
    Siglip2TextModel,
    SiglipTextModel,
    initialization,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_scalar import ScalarConfig, in_package
from .modeling_beats import OUTPUT_FLAGS, BeatsModel
from .retrieval_scalar import Rows, ScalarOutput, ScalarRetrievalModel, mean_of_tokens
from .scores_scalar import CONCATENATIONS, METHODS, unit

# Towers that `AutoModel` cannot build from their own configuration.
TOWERS = {
    "beats": BeatsModel,
    "blip_2_vision_model": Blip2VisionModel,
    "clap_audio_model": ClapAudioModel,
    "clap_text_model": ClapTextModel,
    "siglip2_text_model": Siglip2TextModel,
    "siglip_text_model": SiglipTextModel,
}
# Audio towers that expect a spectrogram as a one-channel image.
_WITH_CHANNEL_AXIS = {"clap_audio_model"}
# The arguments of which one set provides a modality: its raw input, or the output of its tower instead.
_INPUTS = {
    "video": (("pixel_values_videos",), ("video_pooled",), ("video_pooled", "video_states")),
    "audio": (("input_features",), ("audio_pooled",), ("audio_pooled", "audio_states")),
    "subtitle": (("subtitle_input_ids", "subtitle_attention_mask"),),
}


class ScalarFusedProjection(nn.Module):
    """The fused query-key-value projection of EVA-CLIP in three parts, so that an adapter can change query and value
    but not the key. Only query and value have a bias: that of a key cannot change a softmax."""

    def __init__(self, hidden_size: int, bias: bool):
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)], dim=-1)


def split_fused_projections(vision_model: nn.Module) -> nn.Module:
    """Replace each fused qkv layer of a BLIP-2 vision model by a [`ScalarFusedProjection`] of the same function."""
    for layer in vision_model.encoder.layers:
        fused = layer.self_attn.qkv
        split = ScalarFusedProjection(fused.in_features, bias=fused.bias is not None)
        split.to(device=fused.weight.device, dtype=fused.weight.dtype)
        # The rows of the fused weight and bias are those of query, key and value; the bias of a key is dropped.
        parts = (split.query, split.key, split.value)
        for name, value in fused.named_parameters():
            for part, rows in zip(parts, value.detach().chunk(3), strict=True):
                parameter = getattr(part, name)
                if parameter is not None:
                    parameter.data.copy_(rows)
        layer.self_attn.qkv = split
    return vision_model


class ScalarConditionEncoder(nn.Module):
    """Turn a tower's tokens into condition tokens of the cross-encoder: a projection with layer norm, plus a learned
    embedding per frame or segment (nearest interpolation if the number differs) and one for the modality."""

    def __init__(self, input_size: int, hidden_size: int, num_positions: int, layer_norm_eps: float):
        super().__init__()
        self.projection = nn.Linear(input_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.type_embedding = nn.Parameter(torch.zeros(hidden_size))
        self.position_embedding = None
        if num_positions:
            self.position_embedding = nn.Parameter(torch.zeros(num_positions, hidden_size))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map `(batch, positions, tokens, input_size)` to `(batch, positions * tokens, hidden_size)`."""
        # The tower's width to the text tower's, and which modality this is.
        projected = self.projection(states.flatten(1, 2)).unflatten(1, states.shape[1:3])  # 8-bit layers: three axes
        hidden_states = self.layer_norm(projected) + self.type_embedding
        # Which frame or segment, of any number of them.
        if self.position_embedding is not None:
            positions = self.position_embedding
            if len(positions) != states.shape[1]:
                positions = nn.functional.interpolate(positions.T[None], size=states.shape[1], mode="nearest")[0].T
            hidden_states = hidden_states + positions[:, None]
        return hidden_states.flatten(1, 2)


class ScalarMatchHead(nn.Module):
    """Two logits from the class token of the cross-encoder."""

    def __init__(self, hidden_size: int, layer_norm_eps: float):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = nn.GELU()
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.classifier = nn.Linear(hidden_size, 2)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.layer_norm(self.activation(self.dense(hidden_states))))


def _build_tower(config: PreTrainedConfig, pooling: str) -> PreTrainedModel:
    if config.model_type in TOWERS:
        tower = TOWERS[config.model_type]._from_config(config)
    else:
        tower = AutoModel.from_config(config)
    return adapt_tower(tower, pooling)


def adapt_tower(model: PreTrainedModel, pooling: str) -> PreTrainedModel:
    """Adapt a newly built or loaded tower to [`ScalarModel`]."""
    if model.config.model_type == "blip_2_vision_model":
        split_fused_projections(model)
    # An unused pooler would be trained, counted and published needlessly.
    if pooling != "pooler" and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    return model


def _pool(output: ModelOutput, pooling: str, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
    """One vector per row of a tower's output, (rows, hidden)."""
    if pooling == "pooler":
        if output.get("pooler_output") is None:
            raise ValueError("This tower has no `pooler_output`. Use the pooling 'cls' or 'mean'.")
        return output.pooler_output.flatten(1)
    states = _tokens(output)
    if pooling == "cls":
        if output.last_hidden_state.ndim == 4:
            raise ValueError("This tower returns a map without a class token. Use the pooling 'mean' or 'pooler'.")
        return states[:, 0]
    if attention_mask is None:
        return states.mean(dim=1)
    return mean_of_tokens(states, attention_mask)


def _tokens(output: ModelOutput) -> torch.Tensor:
    states = output.last_hidden_state
    if states.ndim == 4:  # convolutional and windowed towers: (rows, hidden, height, width)
        states = states.flatten(2).transpose(1, 2)
    return states  # (rows, tokens, hidden)


class ScalarModel(ScalarRetrievalModel):
    """
    Text-to-video retrieval over video, audio and subtitles with query-conditioned spherical centroids.

    Args:
        config ([`ScalarConfig`]): The configuration of the towers, the shared dimension and the aggregation.

    Example:

        >>> model, processor = load_model("user/miniature-backbone")
        >>> model(**processor(text=["a dog barks"], videos=["a.mp4", "b.mp4"])).scores.shape
        torch.Size([1, 2])
    """

    config_class = ScalarConfig
    # It has no attention itself: each tower accepts or rejects the chosen implementation.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: ScalarConfig):
        super().__init__(config)
        self.vision_model = _build_tower(config.vision_config, config.vision_pooling)
        self.audio_model = _build_tower(config.audio_config, config.audio_pooling)
        self.text_model = _build_tower(config.text_config, config.text_pooling)

        # A head for each modality, into the shared space.
        vision_size = config.vision_config.hidden_size
        audio_size = config.audio_config.hidden_size
        text_size = config.text_config.hidden_size
        self.text_projection = nn.Linear(text_size, config.projection_dim, bias=False)
        self.video_projection = nn.Linear(vision_size, config.projection_dim, bias=False)
        self.audio_projection = nn.Linear(audio_size, config.projection_dim, bias=False)
        self.subtitle_projection = nn.Linear(text_size, config.projection_dim, bias=False)
        if config.has_concat_heads:
            sizes = {"video": vision_size, "audio": audio_size, "subtitle": text_size}
            self.concat_projections = nn.ModuleList()
            for names in CONCATENATIONS:
                size = sum(sizes[name] for name in names)
                self.concat_projections.append(nn.Linear(size, config.projection_dim))
        # The cross-encoder: the text tower reads condition tokens made of the towers' outputs.
        if config.has_cross_attention:
            eps = config.condition_layer_norm_eps
            self.video_condition = ScalarConditionEncoder(vision_size, text_size, config.num_frame_embeddings, eps)
            self.audio_condition = ScalarConditionEncoder(audio_size, text_size, config.num_segment_embeddings, eps)
            self.subtitle_condition = ScalarConditionEncoder(text_size, text_size, 0, eps)
            self.match_head = ScalarMatchHead(text_size, eps)
        self.add_score_modules()
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, ScalarConditionEncoder):
            initialization.normal_(module.type_embedding, mean=0.0, std=self.config.initializer_range)
            if module.position_embedding is not None:
                initialization.normal_(module.position_embedding, mean=0.0, std=self.config.initializer_range)

    @property
    def towers(self) -> Iterator[nn.Module]:
        """The parts that are frozen as a whole."""
        return iter((self.vision_model, self.audio_model, self.text_model))

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.set_input_embeddings(value)

    @staticmethod
    def from_encoders(vision: Any, audio: Any, text: Any, **config_kwargs: Any) -> "ScalarModel":
        """
        Compose a model from pretrained encoders, with new heads and condition encoders, in evaluation mode.

        Args:
            vision, audio, text (`str` or `PreTrainedModel`): A Hub id, a folder, or a model, which becomes part of the
                new one. For a dual encoder such as CLIP, SigLIP or CLAP given by name, the matching half is used. For
                matching, pass a text model with cross-attention:
                `BertModel.from_pretrained(..., is_decoder=True, add_cross_attention=True, is_causal=False)`.
            **config_kwargs: Fields of [`ScalarConfig`], for example `vision_pooling="mean"`.
        """
        return in_package("composing").compose(vision, audio, text, **config_kwargs)

    @staticmethod
    def from_joint_encoder(
        name_or_path: str | os.PathLike | list[str] | dict[str, str], **options: Any
    ) -> ScalarRetrievalModel:
        """
        Build a model on a public encoder of text, video and audio, or on encoders side by side, in evaluation mode; no
        training is needed.

        Args:
            name_or_path (`str`): `"google/embeddinggemma-2"`, any multimodal SentenceTransformer, or a CLIP, SigLIP or
                CLAP. Several stand side by side, as a list, or as a dictionary with the encoder of each modality:
                `{"video": "openai/clip-vit-base-patch32", "title": "sentence-transformers/all-MiniLM-L6-v2"}`.
            **options: `modalities`, by default what the encoder is meant for (parts for others are not loaded);
                `dtype`, by default that of the checkpoint; `revision`; and fields of [`ScalarJointConfig`].
        """
        return in_package("joint_encoders").model_from_joint_encoder(name_or_path, **options)

    # Towers --------------------------------------------------------------------------------------------------------

    def _encode_text(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs) -> ModelOutput:
        if hasattr(self, "match_head"):
            kwargs["use_cache"] = "past_key_values" in kwargs
        return self.text_model(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    # Embeddings ---------------------------------------------------------------------------------------------------

    def _text_features(
        self, projection: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs
    ) -> BaseModelOutputWithPooling:
        if attention_mask is None:
            self.text_model.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
            attention_mask = torch.ones_like(input_ids)
        output = self._encode_text(input_ids, attention_mask, **kwargs)
        return _with_embedding(output, projection(_pool(output, self.config.text_pooling, attention_mask)))

    @can_return_tuple
    def get_text_features(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple | BaseModelOutputWithPooling:
        """
        Embed queries `(batch, length)`, with `token_type_ids` if the text tower uses them.

        Returns:
            `BaseModelOutputWithPooling`: the tower's tokens, and as `pooler_output` the embedding
            `(batch, projection_dim)`, of unit norm.
        """
        return self._text_features(self.text_projection, input_ids, attention_mask, **kwargs)

    @can_return_tuple
    def get_subtitle_features(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple | BaseModelOutputWithPooling:
        """Embed subtitles with the text tower and their own head; see [`get_text_features`]."""
        return self._text_features(self.subtitle_projection, input_ids, attention_mask, **kwargs)

    @can_return_tuple
    def get_video_features(
        self, pixel_values_videos: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple | BaseModelOutputWithPooling:
        """
        Embed normalised frames `(batch, frames, 3, height, width)`: pool each frame, average over frames, project.

        Returns:
            See [`get_text_features`], with the tokens of all frames `(batch, frames * tokens, hidden)`. Hidden states
            and attentions have one row per frame.
        """
        return self._media_features("video", pixel_values_videos, **kwargs)

    @can_return_tuple
    def get_audio_features(
        self, input_features: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple | BaseModelOutputWithPooling:
        """Embed normalised filter banks `(batch, segments, time, mel)`, like frames in [`get_video_features`]."""
        return self._media_features("audio", input_features, **kwargs)

    def _media_features(self, name: str, value: torch.Tensor, **kwargs) -> BaseModelOutputWithPooling:
        pooled, states, output = self._run_tower(name, value, **kwargs)
        output.last_hidden_state = states.flatten(1, 2)
        return _with_embedding(output, getattr(self, f"{name}_projection")(pooled))

    # Tower stage: one vector and the tokens of each clip that has the modality ------------------------------------

    def _run_tower(self, name: str, value: torch.Tensor, **flags) -> tuple[torch.Tensor, torch.Tensor, ModelOutput]:
        """Return one vector per clip, pooled per frame or segment and averaged, all tokens, and the tower's output."""
        tower = self.vision_model
        pooling = self.config.vision_pooling
        if name == "audio":
            tower = self.audio_model
            pooling = self.config.audio_pooling
        parts = value.flatten(0, 1)  # frames or segments
        if tower.config.model_type in _WITH_CHANNEL_AXIS:
            parts = parts[:, None]
        output = tower(**{tower.main_input_name: parts}, **flags)
        pooled = _pool(output, pooling).unflatten(0, value.shape[:2]).mean(dim=1)  # (rows, hidden)
        return pooled, _tokens(output).unflatten(0, value.shape[:2]), output  # (rows, positions, tokens, hidden)

    def _tower_stage(self, name: str, inputs: dict[str, torch.Tensor | None], rows: Rows, **flags):
        """Return vectors, tokens, their mask, if any, and the tower's output for the rows with the modality."""
        if name == "subtitle":
            token_mask = rows.take(inputs["subtitle_attention_mask"])
            output = self._encode_text(rows.take(inputs["subtitle_input_ids"]), token_mask, **flags)
            return _pool(output, self.config.text_pooling, token_mask), _tokens(output)[:, None], token_mask, output
        raw = inputs.get(_INPUTS[name][0][0])
        if raw is not None:
            pooled, states, output = self._run_tower(name, rows.take(raw), **flags)
            return pooled, states, None, output
        # Precomputed outputs. Not in the dtype of a weight, because quantised weights are integers.
        states = inputs.get(f"{name}_states")
        if states is not None:
            states = rows.take(states).to(self.dtype)
        return rows.take(inputs[f"{name}_pooled"]).to(self.dtype), states, None, None

    def _run_towers(self, inputs: Mapping[str, Any], modality_mask: torch.Tensor, **flags) -> Iterator[tuple]:
        """Yield for each modality of any row: its name, these rows, and the results of [`_tower_stage`]."""
        for index, name in enumerate(self.config.modalities):
            rows = Rows(modality_mask[:, index])
            is_given = any(inputs.get(keys[0]) is not None for keys in _INPUTS[name])
            if is_given and rows:
                yield name, rows, *self._tower_stage(name, inputs, rows, **flags)

    def get_tower_features(
        self,
        pixel_values_videos: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
        with_states: bool = True,
    ) -> dict[str, torch.Tensor]:
        """
        Compute the outputs of the vision and audio towers for each clip, which can be passed instead of their inputs.

        Args:
            pixel_values_videos, input_features, modality_mask: See [`get_modality_features`]; the mask of a modality
                that is not given is ignored.
            with_states (`bool`): Whether to return the towers' tokens, which only the cross-encoder reads.

        Returns:
            `dict` of inputs of [`get_modality_features`]: zero rows where absent, no key if no clip has the modality.
        """
        inputs = {"pixel_values_videos": pixel_values_videos, "input_features": input_features}
        given = self._presence(inputs, None)
        if modality_mask is None:
            modality_mask = given
        modality_mask = modality_mask & given
        features = {}
        for name, rows, pooled, states, _, _ in self._run_towers(inputs, modality_mask):
            features[f"{name}_pooled"] = rows.spread(pooled)
            if with_states:
                features[f"{name}_states"] = rows.spread(states)
        return features

    # Head stage ---------------------------------------------------------------------------------------------------

    def _encode_clips(
        self,
        inputs: Mapping[str, Any],
        modality_mask=None,
        condition_on: tuple[str, ...] = (),
        **flags,
    ):
        """Run each tower once over the clips that have its modality, and the heads on its output: embeddings and mask,
        the rows, condition tokens and token mask of each name in `condition_on`, and the outputs of towers by name."""
        modality_mask = self._presence(inputs, modality_mask)
        # Matching reads all tokens of a tower, which pooled features lack.
        for name in condition_on:
            if inputs.get(f"{name}_pooled") is not None and inputs.get(f"{name}_states") is None:
                raise ValueError(
                    f"The cross-encoder reads the tokens of the {name}, but `{name}_pooled` was given without "
                    f"`{name}_states`. Compute features with states, or do without matching."
                )
        # Each tower once: its pooled output for the embedding, its tokens for the cross-encoder.
        embeds = {}
        conditions = {}
        outputs = {}
        for name, rows, pooled, states, token_mask, output in self._run_towers(inputs, modality_mask, **flags):
            embeds[name] = rows.spread(unit(getattr(self, f"{name}_projection")(pooled)))
            outputs[name] = output
            if name in condition_on:
                tokens = getattr(self, f"{name}_condition")(states)  # (rows, tokens, hidden)
                if token_mask is None or not self.config.mask_condition_padding:
                    token_mask = torch.ones(tokens.shape[:2], device=tokens.device)
                conditions[name] = (rows, tokens, token_mask.bool())
        return self.stack_modalities(embeds, modality_mask), modality_mask, conditions, outputs

    def _presence(self, inputs: Mapping[str, Any], modality_mask: torch.Tensor | None) -> torch.Tensor:
        """The modality mask of clips, checked against their inputs."""
        given, modality_mask = self.clip_inputs(inputs, modality_mask, _INPUTS)
        if "subtitle" in given:
            is_blank = ~inputs["subtitle_attention_mask"].any(1)
            if (is_blank & modality_mask[:, self.config.modalities.index("subtitle")]).any():
                raise ValueError(
                    "The attention mask of a subtitle that is marked as present is empty. Mark the subtitle as absent "
                    "in `modality_mask`, or pass tokens."
                )
        return modality_mask

    def get_modality_features(
        self, *, modality_mask: torch.Tensor | None = None, **inputs: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Embed the modalities of each clip.

        Args:
            modality_mask (`torch.BoolTensor` of shape `(batch, M)`, *optional*): Which rows are present. Masked rows,
                even NaN, are never read. By default, every given input is present in every row.
            pixel_values_videos (`torch.FloatTensor` of shape `(batch, frames, 3, height, width)`): Normalised frames.
            input_features (`torch.FloatTensor` of shape `(batch, segments, time, mel)`): Normalised filter banks.
            subtitle_input_ids, subtitle_attention_mask (`torch.LongTensor` of shape `(batch, length)`): As of queries.
            video_pooled, audio_pooled (`torch.FloatTensor` of shape `(batch, hidden)`), video_states, audio_states
                (`torch.FloatTensor` of shape `(batch, positions, tokens, hidden)`): Instead of frames and filter
                banks, from [`get_tower_features`] in any precision. Only the cross-encoder needs the states.

        Returns:
            The embeddings `(batch, M, projection_dim)`, unit norm and zero where absent, and the mask `(batch, M)`.

        Raises:
            ValueError: If sizes differ, a modality is given twice, or the mask marks an input that is None.
        """
        return self._encode_clips(inputs, modality_mask)[:2]

    def get_concat_features(
        self, *, modality_mask: torch.Tensor | None = None, **inputs: torch.Tensor | None
    ) -> torch.Tensor:
        """
        Embed clips with the concatenation heads of VAST, each a linear map of the joined outputs of several towers.

        Returns:
            `torch.FloatTensor` of shape `(batch, 3, projection_dim)` in the order of `CONCATENATIONS`: unit norm, zero
            where the clip lacks a modality of the head.
        """
        # The outputs of the towers, one row per clip.
        modality_mask = self._presence(inputs, modality_mask)
        pooled = {}
        for name, rows, vectors, _, _, _ in self._run_towers(inputs, modality_mask):
            pooled[name] = rows.spread(vectors).to(modality_mask.device)
        # Each head, for the clips that have all its modalities.
        dtype = torch.promote_types(self.dtype, torch.float32)
        size = (len(modality_mask), self.config.projection_dim)
        presence = dict(zip(self.config.modalities, modality_mask.T, strict=True))
        columns = []
        for names, projection in zip(CONCATENATIONS, self.concat_projections, strict=True):
            column = torch.zeros(size, dtype=dtype, device=modality_mask.device)
            rows = Rows(torch.stack([presence[name] for name in names]).all(dim=0))
            if rows:
                joined = torch.cat([rows.take(pooled[name]) for name in names], dim=1)
                column = rows.spread(unit(projection(joined))).to(column)
            columns.append(column)
        return torch.stack(columns, dim=1)

    # Matching -----------------------------------------------------------------------------------------------------

    def _require_cross_attention(self):
        if not hasattr(self, "match_head"):
            raise ValueError(
                f"Matching is not available: the text tower ({self.config.text_config.model_type!r}) has no "
                "cross-attention. Use a BERT configuration with `is_decoder=True, add_cross_attention=True, "
                "is_causal=False`, or rank by the first stage alone."
            )

    def _join_conditions(self, conditions, embeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Concatenate the condition tokens of all modalities, in the order of `config.modalities`."""
        # Without tokens, for a batch in which no clip has such a modality.
        states = [embeds.new_zeros(len(embeds), 0, self.config.text_config.hidden_size, dtype=self.dtype)]
        masks = [embeds.new_zeros(len(embeds), 0, dtype=torch.bool)]
        for name in self.config.modalities:
            if name in conditions:
                rows, tokens, mask = conditions[name]
                states.append(rows.spread(tokens).to(embeds.device))
                masks.append(rows.spread(mask).to(embeds.device))
        return torch.cat(states, dim=1), torch.cat(masks, dim=1)

    def get_condition_states(
        self, *, modality_mask: torch.Tensor | None = None, **inputs: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Compute the condition tokens that the cross-encoder reads, from the inputs of [`get_modality_features`].

        Returns:
            The tokens `(batch, tokens, hidden)` and their mask `(batch, tokens)`, True for tokens to be read: never
            those of absent modalities, and padding of subtitles only if `config.mask_condition_padding` is off.
        """
        self._require_cross_attention()
        embeds, _, conditions, _ = self._encode_clips(inputs, modality_mask, condition_on=self.config.modalities)
        return self._join_conditions(conditions, embeds)

    def match_logits(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        condition_states: torch.Tensor,
        condition_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return the two logits of each pair, `(batch, 2)`, for training; the arguments are those of [`match`]."""
        self._require_cross_attention()
        one_clip = len(condition_states) == 1 < len(input_ids)
        if not len(input_ids):
            return condition_states.new_zeros(0, 2)
        empty = (~condition_mask.bool().any(dim=1)).nonzero().flatten().tolist()
        if empty:  # for which sdpa would return zeros and eager attention an undefined average
            raise ValueError(f"`condition_mask` must have at least one True per row; rows {empty[:10]} have none.")
        conditions = {
            "encoder_hidden_states": condition_states,
            "encoder_attention_mask": condition_mask.to(attention_mask.dtype),
        }
        # One clip for all texts: its keys and values are computed once, unless a gradient has to pass.
        if one_clip:
            number = len(input_ids)
            if not torch.is_grad_enabled():
                conditions["past_key_values"] = self._read_clip(input_ids, number, **conditions)
            for name in ("encoder_hidden_states", "encoder_attention_mask"):
                conditions[name] = conditions[name].expand(number, *conditions[name].shape[1:])
        # The class token has read the caption and the clip.
        return self.match_head(_tokens(self._encode_text(input_ids, attention_mask, **conditions))[:, 0])

    def _read_clip(self, input_ids: torch.Tensor, number: int, **conditions: torch.Tensor) -> EncoderDecoderCache:
        """Compute the keys and values of one clip's tokens once for a number of texts."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        word = input_ids[:1, :1]  # any text: keys and values depend only on the clip
        self.text_model(word, torch.ones_like(word), past_key_values=cache, use_cache=True, **conditions)
        for layer in cache.cross_attention_cache.layers:
            layer.keys = layer.keys.expand(number, -1, -1, -1)
            layer.values = layer.values.expand(number, -1, -1, -1)
        return EncoderDecoderCache(DynamicCache(), cache.cross_attention_cache)

    def match(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        condition_states: torch.Tensor,
        condition_mask: torch.Tensor,
    ) -> torch.Tensor:
        """
        Score text-clip pairs with the cross-encoder, the second stage of retrieval.

        Args:
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, length)`): One query per pair.
            condition_states (`torch.FloatTensor` of shape `(batch, tokens, hidden)`), condition_mask
                (`torch.BoolTensor` of shape `(batch, tokens)`): The clip of each pair, from [`get_condition_states`].
                A single row is used for all pairs; without gradients that clip is then read once.

        Returns:
            `torch.FloatTensor` of shape `(batch,)`: The log-odds that the text describes the clip. Unlike their
            sigmoid, the probability, they order pairs even where all probabilities round to 1.
        """
        logits = self.match_logits(input_ids, attention_mask, condition_states, condition_mask).float()
        return logits[:, 1] - logits[:, 0]

    # Forward ------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        subtitle_input_ids: torch.Tensor | None = None,
        subtitle_attention_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
        video_pooled: torch.Tensor | None = None,
        video_states: torch.Tensor | None = None,
        audio_pooled: torch.Tensor | None = None,
        audio_states: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        select_pairs: Callable[["ScalarOutput"], tuple[torch.Tensor, ...]] | None = None,
        condition_on: tuple[str, ...] | None = None,
        return_scores: bool = True,
        return_loss: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | ScalarOutput:
        """
        Embed queries and clips and score every query against every clip.

        Args:
            input_ids, attention_mask, token_type_ids: Queries, see [`get_text_features`]; None embeds clips only.
            pixel_values_videos, ... audio_states: Clips, see [`get_modality_features`]; all None embeds queries only.
            select_pairs (`Callable`, *optional*): Called with the output so far; returns the arguments of [`match`]
                for the pairs whose `match_logits` are needed. Hard-negative training chooses pairs by the scores of
                the batch, and data-parallel wrappers allow only one forward pass per step.
            condition_on (`tuple` of `str`, *optional*): The modalities that the cross-encoder may read for these
                pairs; by default all.
            return_scores (`bool`): Whether to score the queries of this batch against its clips.
            return_loss (`bool`, *optional*): Whether to also compute the symmetric InfoNCE loss of CLIP, if as many
                queries as clips are scored; query i belongs to clip i. The paper's objective is in the trainer.
            **kwargs: `output_hidden_states`, `output_attentions` and `return_dict`, as for any model of transformers.
        """
        # Check the arguments; PEFT passes some of its own, all None.
        flags = {name: value for name, value in kwargs.items() if value is not None}
        unknown = sorted(flags.keys() - set(OUTPUT_FLAGS))
        if unknown:
            raise TypeError(f"ScalarModel.forward() got unexpected keyword arguments {unknown}.")
        returns_more = False
        for name in OUTPUT_FLAGS:
            returns_more |= bool(flags.get(name, getattr(self.config, name, False)))
        inputs = {
            "pixel_values_videos": pixel_values_videos,
            "input_features": input_features,
            "subtitle_input_ids": subtitle_input_ids,
            "subtitle_attention_mask": subtitle_attention_mask,
            "video_pooled": video_pooled,
            "video_states": video_states,
            "audio_pooled": audio_pooled,
            "audio_states": audio_states,
        }
        has_clips = input_ids is None or any(value is not None for value in inputs.values())
        output = self.new_output()
        # Embed the queries.
        if input_ids is not None:
            text_flags = dict(flags)
            if token_type_ids is not None:
                text_flags["token_type_ids"] = token_type_ids
            text_output = self.get_text_features(input_ids, attention_mask, return_dict=True, **text_flags)
            output.text_embeds = text_output.pooler_output
            if returns_more:
                output.text_model_output = text_output
        # Embed the clips, with condition tokens if pairs will be matched.
        if has_clips:
            if select_pairs is None:
                condition_on = ()
            else:
                self._require_cross_attention()
                if condition_on is None:
                    condition_on = self.config.modalities
            embeds, present, conditions, tower_outputs = self._encode_clips(
                inputs, modality_mask, condition_on=condition_on, **flags
            )
            self.add_clips(output, embeds, present)
            if returns_more:
                output.vision_model_output = tower_outputs.get("video")
                output.audio_model_output = tower_outputs.get("audio")
                output.subtitle_model_output = tower_outputs.get("subtitle")
        # Score all queries and clips, and match the pairs that are selected by these scores.
        if output.text_embeds is not None and has_clips:
            if return_scores:
                concat_embeds = None
                if METHODS[self.config.aggregation].uses_concat_heads:  # runs the towers again; only for evaluation
                    concat_embeds = self.get_concat_features(modality_mask=modality_mask, **inputs)
                self.score_output(output, return_loss, concat_embeds)
            if select_pairs is not None:
                output.condition_states, output.condition_mask = self._join_conditions(conditions, embeds)
                output.match_logits = self.match_logits(*select_pairs(output))
        return output


def _with_embedding(output: ModelOutput, projected: torch.Tensor) -> BaseModelOutputWithPooling:
    """The output of a tower, with the embedding as its `pooler_output`."""
    return BaseModelOutputWithPooling(
        last_hidden_state=_tokens(output),
        pooler_output=unit(projected),
        hidden_states=output.get("hidden_states"),
        attentions=output.get("attentions"),
    )


ScalarModel.register_for_auto_class("AutoModel")

__all__ = ["ScalarFusedProjection", "ScalarModel", "adapt_tower", "split_fused_projections"]
