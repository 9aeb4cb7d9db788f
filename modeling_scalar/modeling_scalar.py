"""The SCALAR model: three towers, heads into one sphere, a cross-encoder, and the aggregation that ranks clips.

Any vision, audio and text model of transformers can be a tower. Every tower only ever sees the clips that have its
modality, so what a masked row holds cannot change anything, and an absent modality costs nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import (
    AutoConfig,
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
from transformers.utils import ModelOutput

from .aggregation_scalar import retrieval_scores
from .configuration_scalar import MODALITIES, ScalarConfig
from .modeling_beats import BeatsModel

# Towers that `AutoModel` does not know by their own configuration.
_TOWERS = {
    "beats": BeatsModel,
    "blip_2_vision_model": Blip2VisionModel,
    "clap_audio_model": ClapAudioModel,
    "clap_text_model": ClapTextModel,
    "siglip2_text_model": Siglip2TextModel,
    "siglip_text_model": SiglipTextModel,
}
# Audio towers that take a spectrogram as an image of one channel.
_WITH_CHANNEL_AXIS = {"clap_audio_model"}


@dataclass
class ScalarOutput(ModelOutput):
    """
    Output of [`ScalarModel`]. What was not given is None.

    Args:
        text_embeds (`torch.FloatTensor` of shape `(queries, dim)`): unit norm.
        modality_embeds (`torch.FloatTensor` of shape `(clips, 3, dim)`): unit norm, zero where absent.
        modality_mask (`torch.BoolTensor` of shape `(clips, 3)`): which modalities each clip has.
        scores (`torch.FloatTensor` of shape `(queries, clips)`): the aggregated score, in [-1, 1].
        match_logits (`torch.FloatTensor` of shape `(pairs, 2)`): logits of the cross-encoder for the pairs chosen by
            `select_pairs`; class 1 is "this text describes this clip".
        condition_states (`torch.FloatTensor` of shape `(clips, tokens, hidden)`), condition_mask (`torch.BoolTensor`
            of shape `(clips, tokens)`): what the cross-encoder reads of each clip, if pairs were chosen.
    """

    text_embeds: torch.FloatTensor | None = None
    modality_embeds: torch.FloatTensor | None = None
    modality_mask: torch.BoolTensor | None = None
    scores: torch.FloatTensor | None = None
    match_logits: torch.FloatTensor | None = None
    condition_states: torch.FloatTensor | None = None
    condition_mask: torch.BoolTensor | None = None


class ScalarFusedProjection(nn.Module):
    """The fused query-key-value projection of EVA-CLIP as its three parts.

    The same function as one linear layer of three times the width, with a bias on query and value only, as EVA-CLIP
    has it (a key bias cannot change a softmax). In parts, an adapter can reach query and value and leave the key.
    """

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
        weights = fused.weight.detach().chunk(3)
        biases = fused.bias.detach().chunk(3) if fused.bias is not None else (None, None, None)
        for part, weight, bias in zip((split.query, split.key, split.value), weights, biases, strict=True):
            part.weight = nn.Parameter(weight.clone())
            if part.bias is not None:
                part.bias = nn.Parameter(bias.clone())
        layer.self_attn.qkv = split
    return vision_model


class ScalarConditionEncoder(nn.Module):
    """Turn a tower's tokens into condition tokens of the cross-encoder.

    A projection with layer norm, plus a learned embedding per frame or segment (interpolated to the nearest where the
    number differs) and one for the modality. Subtitles have no positions of their own: `num_positions=0`.
    """

    def __init__(self, input_size: int, hidden_size: int, num_positions: int, layer_norm_eps: float):
        super().__init__()
        self.projection = nn.Linear(input_size, hidden_size)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.type_embedding = nn.Parameter(torch.zeros(hidden_size))
        self.position_embedding = nn.Parameter(torch.zeros(num_positions, hidden_size)) if num_positions else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map `(batch, positions, tokens, input_size)` to `(batch, positions * tokens, hidden_size)`."""
        hidden_states = self.layer_norm(self.projection(states)) + self.type_embedding
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


class ScalarPreTrainedModel(PreTrainedModel):
    config_class = ScalarConfig
    base_model_prefix = "scalar"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, ScalarConditionEncoder):
            initialization.normal_(module.type_embedding, mean=0.0, std=self.config.initializer_range)
            if module.position_embedding is not None:
                initialization.normal_(module.position_embedding, mean=0.0, std=self.config.initializer_range)


def _build_tower(config: PreTrainedConfig, pooling: str) -> PreTrainedModel:
    tower = _TOWERS.get(config.model_type)
    model = AutoModel.from_config(config) if tower is None else tower._from_config(config)
    return _adapt_tower(model, pooling)


def _adapt_tower(model: PreTrainedModel, pooling: str) -> PreTrainedModel:
    """Give a freshly built or loaded tower the shape it has inside [`ScalarModel`]."""
    if model.config.model_type == "blip_2_vision_model":
        split_fused_projections(model)
    # A pooler that nothing reads would be trained, counted and published for nothing.
    if pooling != "pooler" and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    return model


def _pool(output: ModelOutput, pooling: str, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
    """One vector per row of a tower's output, (rows, hidden)."""
    if pooling == "pooler":
        if output.get("pooler_output") is None:
            raise ValueError("This tower has no `pooler_output`; use the pooling 'cls' or 'mean'.")
        return output.pooler_output.flatten(1)
    states = _tokens(output)
    if pooling == "cls":
        if output.last_hidden_state.ndim == 4:
            raise ValueError("This tower yields a map without a class token; use the pooling 'mean' or 'pooler'.")
        return states[:, 0]
    if attention_mask is None:
        return states.mean(dim=1)
    weights = attention_mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _tokens(output: ModelOutput) -> torch.Tensor:
    states = output.last_hidden_state
    if states.ndim == 4:  # convolutional and windowed towers: (rows, hidden, height, width)
        states = states.flatten(2).transpose(1, 2)
    return states  # (rows, tokens, hidden)


class ScalarModel(ScalarPreTrainedModel):
    """
    Text-to-video retrieval over video, audio and subtitles with query-conditioned spherical centroids.

    Args:
        config ([`ScalarConfig`]): the towers, the shared dimension and the aggregation.

    Example:

    ```python
    >>> batch = processor(text=["a dog barks"], videos=["dog.mp4", "cat.mp4"])
    >>> output = model(**batch)
    >>> output.scores  # (1, 2)
    ```
    """

    def __init__(self, config: ScalarConfig):
        super().__init__(config)
        self.vision_model = _build_tower(config.vision_config, config.vision_pooling)
        self.audio_model = _build_tower(config.audio_config, config.audio_pooling)
        self.text_model = _build_tower(config.text_config, config.text_pooling)

        vision_size, audio_size, text_size = (
            sub_config.hidden_size for sub_config in (config.vision_config, config.audio_config, config.text_config)
        )
        self.text_projection = nn.Linear(text_size, config.projection_dim, bias=False)
        self.video_projection = nn.Linear(vision_size, config.projection_dim, bias=False)
        self.audio_projection = nn.Linear(audio_size, config.projection_dim, bias=False)
        self.subtitle_projection = nn.Linear(text_size, config.projection_dim, bias=False)
        if config.has_cross_attention:
            eps = config.condition_layer_norm_eps
            self.video_condition = ScalarConditionEncoder(vision_size, text_size, config.num_frame_embeddings, eps)
            self.audio_condition = ScalarConditionEncoder(audio_size, text_size, config.num_segment_embeddings, eps)
            self.subtitle_condition = ScalarConditionEncoder(text_size, text_size, 0, eps)
            self.match_head = ScalarMatchHead(text_size, eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.get_input_embeddings()

    @classmethod
    def from_encoders(
        cls,
        vision: str | PreTrainedModel,
        audio: str | PreTrainedModel,
        text: str | PreTrainedModel,
        **config_kwargs,
    ) -> "ScalarModel":
        """
        Compose a model from pretrained encoders; heads and condition encoders are newly initialised.

        Args:
            vision, audio, text (`str` or `PreTrainedModel`): a Hub id, a folder, or a model, which then becomes part
                of the new one. Of a dual encoder such as CLIP, SigLIP or CLAP given by name, the fitting half is
                taken. For matching, pass a text model with cross-attention:
                `BertModel.from_pretrained(..., is_decoder=True, add_cross_attention=True, is_causal=False)`.
            **config_kwargs: fields of [`ScalarConfig`], `vision_pooling="mean"` say.

        Returns:
            [`ScalarModel`] holding the encoders' weights, in evaluation mode.

        Raises:
            ValueError: an encoder's configuration does not state its width (`hidden_size`).
        """
        towers = {
            name: cls._load_tower(tower, name)
            for name, tower in (("vision", vision), ("audio", audio), ("text", text))
        }
        for name, tower in towers.items():
            if not isinstance(getattr(tower.config, "hidden_size", None), int):
                raise ValueError(
                    f"The {name} encoder {type(tower).__name__} does not state a `hidden_size`, so no head can be "
                    "built for it. Pass the part of it that yields token states."
                )
        config = ScalarConfig(**{f"{name}_config": tower.config for name, tower in towers.items()}, **config_kwargs)
        model = cls(config)
        for name, tower in towers.items():
            setattr(model, f"{name}_model", _adapt_tower(tower, getattr(config, f"{name}_pooling")))
        return model.to(model.text_projection.weight.dtype).eval()

    @staticmethod
    def _load_tower(tower: str | PreTrainedModel, name: str) -> PreTrainedModel:
        if isinstance(tower, PreTrainedModel):
            return tower
        config = AutoConfig.from_pretrained(tower)
        is_dual = hasattr(config, f"{name}_config")
        tower_class = AutoModel if is_dual else _TOWERS.get(config.model_type, AutoModel)
        model, info = tower_class.from_pretrained(tower, dtype=torch.float32, output_loading_info=True)
        # Poolers are dropped unless they are asked for, and cross-attention is new in an encoder's weights.
        missing = [key for key in info["missing_keys"] if "crossattention" not in key and "pooler" not in key]
        if missing:
            raise ValueError(
                f"{tower} lacks {len(missing)} weights of {type(model).__name__}, such as {sorted(missing)[:3]}: it "
                f"is no checkpoint of that model. Load the {name} encoder yourself and pass it."
            )
        return getattr(model, f"{name}_model") if is_dual else model

    # Tower states -------------------------------------------------------------------------------------------------

    def _encode_video(self, pixel_values_videos: torch.Tensor) -> ModelOutput:
        return self.vision_model(pixel_values_videos.flatten(0, 1))

    def _encode_audio(self, input_features: torch.Tensor) -> ModelOutput:
        segments = input_features.flatten(0, 1)
        if self.config.audio_config.model_type in _WITH_CHANNEL_AXIS:
            segments = segments[:, None]
        return self.audio_model(**{self.audio_model.main_input_name: segments})

    def _encode_text(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs) -> ModelOutput:
        if self.config.has_cross_attention:
            kwargs["use_cache"] = False
        return self.text_model(input_ids=input_ids, attention_mask=attention_mask, **kwargs)

    def get_video_states(self, pixel_values_videos: torch.Tensor) -> torch.Tensor:
        """Return the vision tower's tokens, `(batch, frames, tokens, hidden)`, of `(batch, frames, 3, H, W)`."""
        states = _tokens(self._encode_video(pixel_values_videos))
        return states.unflatten(0, pixel_values_videos.shape[:2])

    def get_audio_states(self, input_features: torch.Tensor) -> torch.Tensor:
        """Return the audio tower's tokens, `(batch, segments, tokens, hidden)`, of `(batch, segments, time, mel)`."""
        return _tokens(self._encode_audio(input_features)).unflatten(0, input_features.shape[:2])

    def get_text_states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the text tower's tokens, `(batch, length, hidden)`, of queries or subtitles."""
        return _tokens(self._encode_text(input_ids, attention_mask))

    # Embeddings ---------------------------------------------------------------------------------------------------

    def _embed_text(self, output: ModelOutput, attention_mask: torch.Tensor, projection: nn.Module) -> torch.Tensor:
        return _unit(projection(_pool(output, self.config.text_pooling, attention_mask)))

    def _embed_video(self, output: ModelOutput, shape: torch.Size) -> torch.Tensor:
        pooled = _pool(output, self.config.vision_pooling).unflatten(0, shape[:2])
        return _unit(self.video_projection(pooled.mean(dim=1)))

    def _embed_audio(self, output: ModelOutput, shape: torch.Size) -> torch.Tensor:
        pooled = _pool(output, self.config.audio_pooling).unflatten(0, shape[:2])
        return _unit(self.audio_projection(pooled.mean(dim=1)))

    def get_text_features(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """
        Embed queries.

        Args:
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, length)`): 1 marks a token, 0 padding.

        Returns:
            `torch.FloatTensor` of shape `(batch, projection_dim)`, unit norm.
        """
        return self._embed_text(self._encode_text(input_ids, attention_mask), attention_mask, self.text_projection)

    def get_subtitle_features(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """
        Embed subtitles with the text tower and a head of their own.

        Args:
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, length)`): as for queries.

        Returns:
            `torch.FloatTensor` of shape `(batch, projection_dim)`, unit norm.
        """
        output = self._encode_text(input_ids, attention_mask)
        return self._embed_text(output, attention_mask, self.subtitle_projection)

    def get_video_features(self, pixel_values_videos: torch.Tensor) -> torch.Tensor:
        """
        Embed frames: pool each frame, average over frames, project.

        Args:
            pixel_values_videos (`torch.FloatTensor` of shape `(batch, frames, 3, height, width)`): normalised frames.

        Returns:
            `torch.FloatTensor` of shape `(batch, projection_dim)`, unit norm.
        """
        return self._embed_video(self._encode_video(pixel_values_videos), pixel_values_videos.shape)

    def get_audio_features(self, input_features: torch.Tensor) -> torch.Tensor:
        """
        Embed sound: pool each segment, average over segments, project.

        Args:
            input_features (`torch.FloatTensor` of shape `(batch, segments, time, mel)`): normalised filter banks.

        Returns:
            `torch.FloatTensor` of shape `(batch, projection_dim)`, unit norm.
        """
        return self._embed_audio(self._encode_audio(input_features), input_features.shape)

    def _encode_clips(
        self,
        pixel_values_videos=None,
        input_features=None,
        subtitle_input_ids=None,
        subtitle_attention_mask=None,
        modality_mask=None,
        condition_on: tuple[str, ...] = (),
    ):
        """Run each tower once over the clips that have its modality.

        Returns embeddings (B, 3, D), the mask (B, 3), and for each name in `condition_on` the condition tokens of the
        present rows with their token mask.
        """
        inputs = {"video": pixel_values_videos, "audio": input_features, "subtitle": subtitle_input_ids}
        given = [name for name in MODALITIES if inputs[name] is not None]
        if not given:
            raise ValueError(f"Expected the inputs of at least one modality of {MODALITIES}, got none.")
        if subtitle_input_ids is not None and subtitle_attention_mask is None:
            raise ValueError("`subtitle_input_ids` needs `subtitle_attention_mask`: padding is not a word.")
        batch_size, device = len(inputs[given[0]]), inputs[given[0]].device
        if any(len(inputs[name]) != batch_size for name in given):
            sizes = {name: len(inputs[name]) for name in given}
            raise ValueError(f"All modalities must have one row per clip, got {sizes}.")
        modality_mask = self._presence(modality_mask, given, batch_size, device, subtitle_attention_mask)

        dtype = torch.promote_types(self.text_projection.weight.dtype, torch.float32)
        embeds = torch.zeros(batch_size, len(MODALITIES), self.config.projection_dim, dtype=dtype, device=device)
        conditions = {}
        for index, name in enumerate(MODALITIES):
            rows = modality_mask[:, index].nonzero().flatten()
            if not len(rows):
                continue
            # Selecting every row would copy the largest tensor of the step for nothing.
            value = inputs[name] if len(rows) == batch_size else inputs[name][rows]
            token_mask = None
            if name == "video":
                output = self._encode_video(value)
                embed = self._embed_video(output, value.shape)
            elif name == "audio":
                output = self._encode_audio(value)
                embed = self._embed_audio(output, value.shape)
            else:
                token_mask = subtitle_attention_mask[rows]
                output = self._encode_text(value, token_mask)
                embed = self._embed_text(output, token_mask, self.subtitle_projection)
            embeds = embeds.index_put((rows, rows.new_tensor(index)), embed)
            if name in condition_on:
                conditions[name] = (rows, *self._condition_tokens(name, output, value.shape[:2], token_mask))
        return embeds, modality_mask, conditions

    @staticmethod
    def _presence(modality_mask, given, batch_size, device, subtitle_attention_mask) -> torch.Tensor:
        has_input = torch.tensor([name in given for name in MODALITIES], device=device).expand(batch_size, -1)
        if modality_mask is None:
            modality_mask = has_input.clone()
        elif modality_mask.shape != (batch_size, len(MODALITIES)) or modality_mask.dtype != torch.bool:
            raise ValueError(
                f"`modality_mask` must be a bool tensor of shape {(batch_size, len(MODALITIES))}, got "
                f"{modality_mask.dtype} {tuple(modality_mask.shape)}."
            )
        if (modality_mask & ~has_input).any():
            missing = [name for name in MODALITIES if name not in given]
            raise ValueError(f"`modality_mask` marks {missing} as present in some rows, but their inputs are None.")
        if "subtitle" in given:
            blank = (modality_mask[:, 2] & ~subtitle_attention_mask.bool().any(1)).nonzero().flatten().tolist()
            if blank:
                raise ValueError(
                    f"Rows {blank[:10]} are marked as having a subtitle but their attention mask is empty. Mark the "
                    "subtitle absent in `modality_mask`, or give it tokens."
                )
        return modality_mask

    def get_modality_features(
        self,
        pixel_values_videos: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        subtitle_input_ids: torch.Tensor | None = None,
        subtitle_attention_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Embed whatever each clip has.

        Args:
            pixel_values_videos, input_features, subtitle_input_ids, subtitle_attention_mask: inputs with one row per
                clip, as in the single-modality methods; None where no clip has the modality.
            modality_mask (`torch.BoolTensor` of shape `(batch, 3)`, *optional*): which rows are real. What a masked
                row holds, NaN included, is never read. Without it, every input given is present in every row.

        Returns:
            The embeddings `(batch, 3, projection_dim)`, unit norm and zero where absent, and the mask `(batch, 3)`.

        Raises:
            ValueError: no input was given, sizes differ, or the mask promises an input that is None.
        """
        embeds, modality_mask, _ = self._encode_clips(
            pixel_values_videos, input_features, subtitle_input_ids, subtitle_attention_mask, modality_mask
        )
        return embeds, modality_mask

    # Matching -----------------------------------------------------------------------------------------------------

    def _require_cross_attention(self):
        if not self.config.has_cross_attention:
            raise ValueError(
                f"Matching is not available: the text tower ({self.config.text_config.model_type!r}) has no "
                "cross-attention. Use a BERT configuration with `is_decoder=True, add_cross_attention=True, "
                "is_causal=False`, or rank by the first stage alone."
            )

    def _condition_tokens(self, name, output, shape, token_mask):
        states = _tokens(output)
        if name == "subtitle":
            states = states[:, None]  # one position
        else:
            states = states.unflatten(0, shape)
        tokens = getattr(self, f"{name}_condition")(states)  # (rows, tokens, hidden)
        if token_mask is None or not self.config.mask_condition_padding:
            return tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return tokens, token_mask.bool()

    def _join_conditions(self, conditions, batch_size) -> tuple[torch.Tensor, torch.Tensor]:
        """Lay the condition tokens of all modalities side by side, in the order of `MODALITIES`."""
        weight = self.match_head.dense.weight
        states = [weight.new_zeros(batch_size, 0, weight.shape[1])]
        masks = [torch.zeros(batch_size, 0, dtype=torch.bool, device=weight.device)]
        for name in MODALITIES:
            if name not in conditions:
                continue
            rows, tokens, mask = conditions[name]
            if len(rows) < batch_size:
                tokens = tokens.new_zeros(batch_size, *tokens.shape[1:]).index_put((rows,), tokens)
                mask = mask.new_zeros(batch_size, mask.shape[1]).index_put((rows,), mask)
            states.append(tokens)
            masks.append(mask)
        return torch.cat(states, dim=1), torch.cat(masks, dim=1)

    def get_condition_states(
        self,
        pixel_values_videos: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        subtitle_input_ids: torch.Tensor | None = None,
        subtitle_attention_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Compute what the cross-encoder reads of each clip: [video; audio; subtitle] tokens.

        Args:
            pixel_values_videos, input_features, subtitle_input_ids, subtitle_attention_mask, modality_mask: as in
                [`get_modality_features`]. An absent modality contributes no visible token.

        Returns:
            The tokens `(batch, tokens, hidden)` and their mask `(batch, tokens)`, True for tokens to be read. The
            padding of subtitles is masked unless `config.mask_condition_padding` is off.

        Raises:
            ValueError: as in [`get_modality_features`], or the text tower has no cross-attention.
        """
        self._require_cross_attention()
        embeds, _, conditions = self._encode_clips(
            pixel_values_videos,
            input_features,
            subtitle_input_ids,
            subtitle_attention_mask,
            modality_mask,
            condition_on=MODALITIES,
        )
        if not conditions:
            raise ValueError("Every clip lacks every modality given: there is nothing to condition on.")
        return self._join_conditions(conditions, len(embeds))

    def _match_logits(self, input_ids, attention_mask, condition_states, condition_mask) -> torch.Tensor:
        self._require_cross_attention()
        lengths = {len(x) for x in (input_ids, attention_mask, condition_states, condition_mask)}
        if len(lengths) > 1:
            raise ValueError(
                f"Matching scores pairs: expected as many texts as condition rows, got {len(input_ids)} and "
                f"{len(condition_states)}. Repeat rows to score several pairs."
            )
        if not len(input_ids):
            return condition_states.new_zeros(0, 2)
        empty = (~condition_mask.bool().any(dim=1)).nonzero().flatten().tolist()
        if empty:
            # sdpa would return zeros there and eager attention an average of nothing: never send an empty row.
            raise ValueError(f"`condition_mask` must have at least one True per row; rows {empty[:10]} have none.")
        output = self._encode_text(
            input_ids,
            attention_mask,
            encoder_hidden_states=condition_states,
            encoder_attention_mask=condition_mask.to(attention_mask.dtype),
        )
        return self.match_head(_tokens(output)[:, 0])

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
            input_ids, attention_mask (`torch.LongTensor` of shape `(batch, length)`): one query per pair.
            condition_states (`torch.FloatTensor` of shape `(batch, tokens, hidden)`), condition_mask
                (`torch.BoolTensor` of shape `(batch, tokens)`): the clip of each pair, from [`get_condition_states`].

        Returns:
            `torch.FloatTensor` of shape `(batch,)`: the probability that the text describes the clip.

        Raises:
            ValueError: the text tower has no cross-attention, sizes differ, or a row has no condition token.
        """
        logits = self._match_logits(input_ids, attention_mask, condition_states, condition_mask)
        return logits.float().softmax(dim=-1)[:, 1]

    # Forward ------------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        subtitle_input_ids: torch.Tensor | None = None,
        subtitle_attention_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
        select_pairs: Callable[["ScalarOutput"], tuple[torch.Tensor, ...]] | None = None,
        condition_on: tuple[str, ...] = MODALITIES,
        **kwargs,
    ) -> ScalarOutput:
        """
        Embed queries and clips and score every query against every clip.

        Args:
            input_ids, attention_mask: queries, as in [`get_text_features`]; None embeds clips only.
            pixel_values_videos, input_features, subtitle_input_ids, subtitle_attention_mask, modality_mask: clips, as
                in [`get_modality_features`]; all None embeds queries only.
            select_pairs (`Callable`, *optional*): called once with the output so far; returns the arguments of
                [`match`] (input_ids, attention_mask, condition_states, condition_mask) for the pairs whose
                `match_logits` are wanted. Hard-negative training needs the scores of the batch before it can choose,
                and data-parallel wrappers allow one forward per step: so both happen here.
            condition_on (`tuple` of `str`): the modalities the cross-encoder may read for these pairs.

        Returns:
            [`ScalarOutput`].

        Raises:
            ValueError: nothing was given, or as in the methods named above.
            TypeError: an unknown keyword argument.
        """
        unknown = [name for name, value in kwargs.items() if value is not None]  # PEFT passes some, all None
        if unknown:
            raise TypeError(f"ScalarModel.forward() got unexpected keyword arguments {unknown}.")
        clips = (pixel_values_videos, input_features, subtitle_input_ids)
        has_clips = any(value is not None for value in clips)
        if input_ids is None and not has_clips:
            raise ValueError("Nothing to embed: give `input_ids`, or the inputs of at least one modality, or both.")
        output = ScalarOutput()
        if input_ids is not None:
            if attention_mask is None:
                raise ValueError("`input_ids` needs `attention_mask`: padding is not a word.")
            output.text_embeds = self.get_text_features(input_ids, attention_mask)
        if has_clips:
            if select_pairs is not None:
                self._require_cross_attention()
            output.modality_embeds, output.modality_mask, conditions = self._encode_clips(
                *clips[:2],
                subtitle_input_ids,
                subtitle_attention_mask,
                modality_mask,
                condition_on=condition_on if select_pairs is not None else (),
            )
        if output.text_embeds is not None and has_clips:
            output.scores = retrieval_scores(
                output.text_embeds,
                output.modality_embeds,
                output.modality_mask,
                method=self.config.aggregation,
                query_temperature=self.config.query_temperature,
            )
            if select_pairs is not None:
                output.condition_states, output.condition_mask = self._join_conditions(
                    conditions, len(output.modality_embeds)
                )
                output.match_logits = self._match_logits(*select_pairs(output))
        return output


def _unit(embeds: torch.Tensor) -> torch.Tensor:
    # In float32 at least, also for half-precision weights: a rounded norm is no unit norm.
    return nn.functional.normalize(embeds.to(torch.promote_types(embeds.dtype, torch.float32)), dim=-1)


__all__ = [
    "ScalarFusedProjection",
    "ScalarModel",
    "ScalarOutput",
    "ScalarPreTrainedModel",
    "split_fused_projections",
]
