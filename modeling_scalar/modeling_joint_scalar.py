"""SCALAR on one joint encoder: the same network embeds the query and the modalities of a clip.

Such an encoder could embed a clip into one vector. Here each modality keeps its own, and the query weights them.

- [`ScalarRetrievalModel`] is the interface of search, evaluation and training: embeddings in, scores out.
- [`JointEncoderModel`] implements it on one encoder. A subclass provides two methods: embed texts, and embed one
  modality of some clips. Missing modalities are handled above it, so an encoder never sees an absent row.
- [`ScalarJointModel`] uses an encoder of transformers, which is saved with it, and works as remote code. Other
  libraries have other subclasses (`ScalarSentenceModel`). It is separate from [`ScalarModel`], whose towers, heads
  and cross-encoder would all have to become optional.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import torch
from torch import nn
from transformers import AutoModel, initialization
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple

from .configuration_joint_scalar import ScalarJointConfig
from .modalities_scalar import FAMILIES
from .retrieval_scalar import Rows, ScalarOutput, ScalarRetrievalModel, mean_of_tokens
from .scores_scalar import unit

_FLAGS = ("output_hidden_states", "output_attentions", "return_dict")


_OF_TOWERS = {
    "video": ("pixel_values_videos", "video_position_ids"),
    "audio": ("input_features", "input_features_mask"),
}


class ScalarResidualHead(nn.Module):
    """Adds a learned linear map of a vector to it. It is zero at first, so an untrained head changes nothing."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim, dim))  # not in a layer, whose own initialisation is random

    def forward(self, embeds: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type=embeds.device.type, enabled=False):  # in float32, like all embeddings
            return embeds + nn.functional.linear(embeds, self.weight.to(embeds.dtype))


class JointEncoderModel(ScalarRetrievalModel):
    """
    Base class of models on one joint encoder. A subclass calls the encoder in two methods.

    Rows are a tensor, or a list if an encoder takes inputs that are not tensors.
    """

    config_class = ScalarJointConfig

    @abstractmethod
    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries: as `pooler_output` `(queries, dim)`."""

    @abstractmethod
    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it: `(rows, dim)`."""

    def input_sets(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the sets of arguments of which a modality needs one, if the encoder's embeddings are not given; for
        texts this is the tokens."""
        return ((f"{name}_input_ids", f"{name}_attention_mask"),)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, ScalarResidualHead):
            initialization.zeros_(module.weight)

    def add_score_modules(self) -> None:
        """Add the learned scalars and heads of the configuration."""
        super().add_score_modules()
        if self.config.has_heads:
            self.add_heads()

    def add_heads(self) -> None:
        """Add a head for queries and for each modality. Before they are trained they change nothing."""
        self.config.has_heads = True
        for name in ("text", *self.config.modalities):
            start, stop = self.slice_of(name)
            setattr(self, f"{name}_head", ScalarResidualHead(stop - start))

    def slice_of(self, name: str) -> tuple[int, int]:
        """Return the start and the stop of the components that may differ from zero: all of a query, `"text"`."""
        slices = self.config.modality_slices
        if slices is None or name == "text":
            return 0, self.config.projection_dim
        return tuple(slices[self.config.modalities.index(name)])

    # Embeddings ---------------------------------------------------------------------------------------------------

    def _check_precision(self) -> None:
        backbone = self.config.backbone_config
        if self.dtype == torch.float16 and backbone is not None and not FAMILIES[backbone.model_type].has_float16:
            raise ValueError(
                f"A {backbone.model_type!r} encoder returns NaN in float16. Load it with `dtype=torch.bfloat16`, or "
                "torch.float32."
            )

    def project(self, name: str, vectors: torch.Tensor) -> torch.Tensor:
        """
        Turn the encoder's vectors into embeddings: truncate, normalise, and apply the head, if there is one.

        Args:
            name (`str`): `"text"` or a modality.
            vectors (`torch.Tensor` of shape `(..., dim)`): The encoder's vectors, of any norm.

        Returns:
            `torch.Tensor` of shape `(..., projection_dim)`, of unit norm, in float32 at least.
        """
        embeds = unit(vectors[..., : self.config.projection_dim])
        if self.config.has_heads:
            start, stop = self.slice_of(name)
            mapped = unit(getattr(self, f"{name}_head")(embeds[..., start:stop]))
            embeds = nn.functional.pad(mapped, (start, self.config.projection_dim - stop))
        return embeds

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
                default all are tokens. The processor adds the prompt of queries.
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

    def get_modality_features(
        self, *, modality_mask: torch.Tensor | None = None, **inputs: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Embed the modalities of each clip.

        Args:
            modality_mask (`torch.BoolTensor` of shape `(batch, M)`, *optional*): Which rows are present, in the order
                of `config.modalities`. Masked rows are never read. By default, every given input is present in every
                row.
            pixel_values_videos (`torch.FloatTensor` of shape `(batch, frames, patches, values)`), video_position_ids
                (`torch.LongTensor` of shape `(batch, frames, patches, 2)`): The patches of the frames and their
                positions, -1 for padding.
            video_input_ids, video_attention_mask (`torch.LongTensor` of shape `(batch, length)`): The token sequence
                of the frames, with a placeholder for each of their soft tokens.
            input_features (`torch.FloatTensor` of shape `(batch, time, mel)`), input_features_mask (`torch.BoolTensor`
                of shape `(batch, time)`): The spectrogram, and which of it is not padding.
            audio_input_ids, audio_attention_mask (`torch.LongTensor` of shape `(batch, length)`): As for the video.
            subtitle_input_ids, subtitle_attention_mask (`torch.LongTensor` of shape `(batch, length)`): As for
                queries.
            video_soft_tokens, audio_soft_tokens (`torch.FloatTensor` of shape `(batch, tokens, hidden)`): The output
                of the tower for the placeholders, from [`ScalarJointModel.get_tower_features`], instead of its input;
                each row is padded with zeros at the end.
            video_pooled, audio_pooled, subtitle_pooled (`torch.FloatTensor` of shape `(batch, dim)`): Stored
                embeddings of the encoder, instead of all other inputs of the modality; only the heads are computed.
            Other texts use the keys of subtitles with their own name, for example `title_input_ids`.

        Returns:
            The embeddings `(batch, M, projection_dim)`, unit norm and zero where absent, and the mask `(batch, M)`.

        Raises:
            ValueError: If no input was given, sizes differ, an input is missing, or the mask marks one that is None.
            TypeError: For an unknown input.
        """
        self._check_precision()
        # What is given of each modality: stored vectors, the output of its tower, or the inputs of the encoder.
        names = self.config.modalities
        choices = {}
        for name in names:
            choices[name] = ((f"{name}_pooled",), *self.input_sets(name))
        given, modality_mask = self.clip_inputs(inputs, modality_mask, choices)
        # Only the clips that have a modality are encoded.
        embeds = {}
        for name, present in zip(names, modality_mask.unbind(dim=1), strict=True):
            rows = Rows(present)
            if name in given and rows:
                chosen = {key: rows.take(inputs[key]) for key in given[name]}
                vectors = chosen.get(f"{name}_pooled")
                if vectors is None:
                    vectors = self.encode_rows(name, chosen)
                embeds[name] = rows.spread(self.project(name, vectors))
        return self.stack_modalities(embeds, modality_mask), modality_mask

    # Forward ------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        modality_mask: torch.Tensor | None = None,
        text_pooled: torch.Tensor | None = None,
        return_scores: bool = True,
        return_loss: bool | None = None,
        **inputs: Any,
    ) -> tuple | ScalarOutput:
        """
        Embed queries and clips and score every query against every clip.

        Args:
            input_ids, attention_mask: Queries, see `get_text_features`; None embeds clips only.
            modality_mask: The modalities of each clip, see `get_modality_features`.
            text_pooled (`torch.FloatTensor` of shape `(batch, dim)`): Stored embeddings of the encoder, instead of the
                tokens of queries.
            return_scores (`bool`): Whether to score the queries of this batch against its clips.
            return_loss (`bool`, *optional*): Whether to also compute the symmetric InfoNCE loss of CLIP, if as many
                queries as clips are scored; query i belongs to clip i.
            **inputs: Clips, see `get_modality_features`; without any, only queries are
                embedded. Also `output_hidden_states`, `output_attentions` and `return_dict`, as for any model of
                transformers; the first two concern the queries.

        Returns:
            [`ScalarOutput`].

        Raises:
            ValueError: If nothing was given, or as in the methods named above.
            TypeError: For an unknown keyword argument.
        """
        # Check the arguments; PEFT passes some that are None.
        given = {name: value for name, value in inputs.items() if value is not None}
        flags = {name: given.pop(name) for name in _FLAGS if name in given}
        output = self.new_output()
        # Embed the queries.
        if text_pooled is not None:
            output.text_embeds = self.project("text", text_pooled)
        if input_ids is not None:
            text_output = self.get_text_features(input_ids, attention_mask, **flags | {"return_dict": True})
            output.text_embeds = text_output.pooler_output
            if flags.keys() - {"return_dict"}:
                output.text_model_output = text_output
        # Embed the clips, and score them for the queries.
        if given or output.text_embeds is None:
            self.add_clips(output, *self.get_modality_features(modality_mask=modality_mask, **given))
            if output.text_embeds is not None and return_scores:
                self.score_output(output, return_loss)
        return output


class ScalarJointModel(JointEncoderModel):
    """
    Text-to-video retrieval with one joint encoder of transformers, made by [`ScalarModel.from_joint_encoder`].

    An embedding of text, video or audio is the mean of the encoder's tokens over the attention mask, including prompt
    and special tokens, truncated to `projection_dim` components and normalised, as in the encoder's own library.

    Args:
        config ([`ScalarJointConfig`]): The configuration of the encoder and the aggregation.
    """

    # So that `from_pretrained` with our configuration accepts the published weights of the encoder.
    base_model_prefix = "backbone"

    def __init__(self, config: ScalarJointConfig):
        super().__init__(config)
        self.backbone = AutoModel.from_config(config.backbone_config)
        self.add_score_modules()
        self.post_init()

    @property
    def towers(self) -> Iterator[nn.Module]:
        """The parts that are frozen as a whole."""
        return self.backbone.children()

    def _encode(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        output = self.backbone(**inputs, **flags | {"return_dict": True})
        pooled = mean_of_tokens(output.last_hidden_state.float(), inputs["attention_mask"])
        return BaseModelOutputWithPooling(
            last_hidden_state=output.last_hidden_state,
            pooler_output=pooled,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def input_sets(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the sets of arguments of which a modality needs one; for pictures and sound the input of the tower or
        its output, with the tokens."""
        (tokens,) = super().input_sets(name)
        if name not in _OF_TOWERS:
            return (tokens,)
        return (*_OF_TOWERS[name], *tokens), (f"{name}_soft_tokens", *tokens)

    def _soft_tokens(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The output of a tower, `(rows, tokens, hidden)`, padded with zeros."""
        # The tower reads all frames at once and returns the tokens of each clip.
        if name == "video":
            frames = inputs["pixel_values_videos"]
            places = inputs["video_position_ids"]
            counts = torch.full((len(frames),), frames.shape[1], device=frames.device)
            output = self.backbone.get_video_features(
                frames.flatten(0, 1), places.flatten(0, 1), counts, return_dict=True
            )
            tokens = list(output.pooler_output)
        else:
            # The tower returns tokens of padding too, which no placeholder stands for.
            output = self.backbone.get_audio_features(
                inputs["input_features"], inputs["input_features_mask"], return_dict=True
            )
            tokens = []
            for row, mask in zip(output.pooler_output, output.attention_mask.bool(), strict=True):
                tokens.append(row[mask])
        return nn.utils.rnn.pad_sequence(tokens, batch_first=True)

    def get_tower_features(
        self, modality_mask: torch.Tensor | None = None, with_states: bool = True, **inputs: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """
        Compute the outputs of the vision and audio towers, which can be passed instead of their inputs.

        Frozen towers have the same output for the same input at every step. Computed once, `model(**features, ...)` is
        `model(pixel_values_videos=..., input_features=..., ...)`.

        Args:
            modality_mask (`torch.BoolTensor` of shape `(batch, M)`, *optional*): which rows are real.
            with_states (`bool`): of models with a cross-encoder; here the tokens are all there is.
            inputs: `pixel_values_videos` and `video_position_ids`, `input_features` and `input_features_mask`.

        Returns:
            `dict` with `video_soft_tokens` and `audio_soft_tokens` `(batch, tokens, hidden)`, padded with zeros and
            zero where absent; a key is left out if no clip has the modality.
        """
        features = {}
        for index, name in enumerate(self.config.modalities):
            # Texts have no tower, and inputs that are not given no output.
            of_tower = {key: inputs[key] for key in _OF_TOWERS.get(name, ()) if key in inputs}
            if not of_tower:
                continue
            if modality_mask is None:
                values = next(iter(of_tower.values()))
                present = torch.ones(len(values), dtype=torch.bool, device=values.device)
            else:
                present = modality_mask[:, index]
            rows = Rows(present)
            if rows:
                tokens = self._soft_tokens(name, {key: rows.take(value) for key, value in of_tower.items()})
                features[f"{name}_soft_tokens"] = rows.spread(tokens)
        return features

    def encode_texts(self, inputs: Mapping[str, torch.Tensor], **flags) -> BaseModelOutputWithPooling:
        """Embed queries; see [`JointEncoderModel`]."""
        return self._encode(inputs, **flags)

    def encode_rows(self, name: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Embed one modality of clips that all have it; see [`JointEncoderModel`]."""
        ids = inputs[f"{name}_input_ids"]
        batch = {"attention_mask": inputs[f"{name}_attention_mask"]}
        if name not in _OF_TOWERS:
            return self._encode(batch | {"input_ids": ids}).pooler_output
        tokens = inputs.get(f"{name}_soft_tokens")
        if tokens is None:
            tokens = self._soft_tokens(name, inputs)
        # The output of the tower takes the place of the placeholders.
        config = self.backbone.config
        places = ids == getattr(config, f"{name}_token_id")
        embeds = self.get_input_embeddings()(ids.masked_fill(places, config.text_config.pad_token_id))
        counts = places.sum(dim=1)  # of each row, (rows,)
        own = torch.arange(tokens.shape[1], device=ids.device) < counts[:, None]  # (rows, tokens)
        embeds = embeds.masked_scatter(places[..., None], tokens[own].to(embeds.dtype))
        return self._encode(batch | {"inputs_embeds": embeds}).pooler_output


ScalarJointModel.register_for_auto_class("AutoModel")

__all__ = ["JointEncoderModel", "ScalarJointModel", "ScalarResidualHead"]
