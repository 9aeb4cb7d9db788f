"""BEATs (iteration 3+), the audio tower of VAST and SCALAR, as a transformers model.

Like WavLM, its attention has a gated relative position bias, but the gate reads the projected query, not the hidden
state; residuals are DeepNorm-scaled and the input is cut into 16x16 patches of a log-mel spectrogram.
"""

import math
from collections.abc import Callable
from typing import Unpack

import torch
from torch import nn
from transformers import PreTrainedModel, initialization
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.wavlm.modeling_wavlm import WavLMPositionalConvEmbedding
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_scalar import BeatsConfig

OUTPUT_FLAGS = ("output_hidden_states", "output_attentions")
"""The keywords of transformers that request more outputs of a model."""


class BeatsRelativePositionBias(nn.Module):
    """T5-style bucketed bias of relative positions, one table for all layers."""

    def __init__(self, config: BeatsConfig):
        super().__init__()
        self.num_buckets = config.num_buckets
        self.max_distance = config.max_bucket_distance
        self.embedding = nn.Embedding(config.num_buckets, config.num_attention_heads)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the bias of every query-key pair of `(batch, length, hidden)`: `(heads, length, length)`."""
        # On the device of the states: an offloaded weight has no device of its own.
        position = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        offset = position[None, :] - position[:, None]  # key minus query
        # Half of the buckets for each direction; of these half for exact distances, the others on a logarithmic scale.
        half = self.num_buckets // 2
        exact = half // 2
        distance = offset.abs()
        logarithmic = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (logarithmic * (half - exact)).long()).clamp(max=half - 1)
        bucket = torch.where(distance < exact, distance, far) + half * (offset > 0)
        return self.embedding(bucket).permute(2, 0, 1)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with explicit weights; `attention_mask` is added to them before the softmax."""
    weights = query @ key.transpose(-1, -2) * scaling + attention_mask
    weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


class BeatsAttention(nn.Module):
    def __init__(self, config: BeatsConfig):
        super().__init__()
        self.config = config
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_dropout
        self.is_causal = False
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.gate = nn.Linear(self.head_dim, 8)
        self.gate_scale = nn.Parameter(torch.ones(1, self.num_heads, 1, 1))

    def forward(
        self, hidden_states: torch.Tensor, position_bias: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)  # (B, heads, T, head_dim)
        key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        # The bias depends on the query, through two gates. 8-bit layers accept at most three axes.
        gates = self.gate(query.flatten(0, 1)).view(*query.shape[:3], 2, 4).sum(-1).sigmoid()  # (B, heads, T, 2)
        update, reset = gates.split(1, dim=-1)
        bias = (update * (reset * self.gate_scale - 1) + 2) * position_bias  # (B, heads, T, T)
        dropout = self.dropout if self.training else 0.0
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        attended, weights = attend(
            self,
            query,
            key,
            value,
            bias.to(query.dtype),
            scaling=self.head_dim**-0.5,
            dropout=dropout,
            **kwargs,
        )
        return self.out_proj(attended.flatten(2)), weights


class BeatsLayer(GradientCheckpointingLayer):
    def __init__(self, config: BeatsConfig):
        super().__init__()
        self.attention = BeatsAttention(config)
        self.attention_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.residual_scale = (2 * config.num_hidden_layers) ** 0.25  # DeepNorm

    def forward(
        self, hidden_states: torch.Tensor, position_bias: torch.Tensor, **kwargs: Unpack[TransformersKwargs]
    ) -> torch.Tensor:
        attended = self.dropout(self.attention(hidden_states, position_bias, **kwargs)[0])
        hidden_states = self.attention_layer_norm(hidden_states * self.residual_scale + attended)
        transformed = self.dropout(self.fc2(self.activation(self.fc1(hidden_states))))
        return self.final_layer_norm(hidden_states * self.residual_scale + transformed)


class BeatsPreTrainedModel(PreTrainedModel):
    config_class = BeatsConfig
    base_model_prefix = "audio_model"
    main_input_name = "input_features"
    _input_embed_layer = "patch_embedding"
    input_modalities = ("audio",)
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    # Not flash or flex: their kernels do not support a bias that depends on the query.
    _supports_attention_backend = True
    _no_split_modules = ["BeatsLayer"]
    _can_record_outputs = {"hidden_states": BeatsLayer, "attentions": BeatsAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        # DeepNorm: a deep post-norm stack trains only if its residual branches start small.
        gain = (8 * self.config.num_hidden_layers) ** -0.25
        if isinstance(module, BeatsAttention):
            initialization.ones_(module.gate_scale)
            for layer, layer_gain in (
                (module.q_proj, 1.0),
                (module.k_proj, 1.0),
                (module.v_proj, gain),
                (module.out_proj, gain),
            ):
                initialization.xavier_normal_(layer.weight, gain=layer_gain)
        elif isinstance(module, BeatsLayer):
            for layer in (module.fc1, module.fc2):
                initialization.xavier_normal_(layer.weight, gain=gain)
        # Weight norm: the direction is drawn, and the norm is that of the drawn weights.
        elif isinstance(module, WavLMPositionalConvEmbedding):
            weight = module.conv.parametrizations.weight
            fan_in = module.conv.kernel_size[0] * module.conv.in_channels
            initialization.normal_(weight.original1, mean=0.0, std=2 * fan_in**-0.5)
            initialization.copy_(weight.original0, weight.original1.norm(dim=(0, 1), keepdim=True))
            initialization.zeros_(module.conv.bias)


class BeatsModel(BeatsPreTrainedModel):
    """BEATs encoder: log-mel spectrograms in, one state per 16x16 patch out (time-major, mel-minor)."""

    def __init__(self, config: BeatsConfig):
        super().__init__(config)
        self.patch_embedding = nn.Conv2d(
            1, config.patch_embed_dim, kernel_size=config.patch_size, stride=config.patch_size, bias=False
        )
        self.patch_layer_norm = nn.LayerNorm(config.patch_embed_dim, eps=config.layer_norm_eps)
        self.patch_projection = nn.Linear(config.patch_embed_dim, config.hidden_size)
        self.position_embedding = WavLMPositionalConvEmbedding(config)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.relative_position_bias = BeatsRelativePositionBias(config)
        self.layers = nn.ModuleList(BeatsLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(self, input_features: torch.Tensor, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        """
        Encode normalised Kaldi filter banks.

        Args:
            input_features (`torch.FloatTensor` of shape `(batch, time, mel)`): Time and mel are multiples of
                `config.patch_size`. There is no padding mask: pad with zeros after normalising.
            **kwargs: `output_hidden_states`, `output_attentions` (with eager attention) and `return_dict`, as for
                any model of transformers.

        Returns:
            `BaseModelOutput` whose `last_hidden_state` has shape `(batch, time / patch * mel / patch, hidden_size)`.

        Raises:
            ValueError: If the shape does not fit the patches.
        """
        patch = self.config.patch_size
        shape = tuple(input_features.shape)
        if len(shape) != 3 or not all(size >= patch and size % patch == 0 for size in shape[1:]):
            raise ValueError(
                "`input_features` must have shape (batch, time, mel) with time and mel positive multiples of "
                f"{patch}, got {shape}. Pad the time axis with zeros."
            )
        # One token per patch, with its position added by a convolution.
        patches = self.patch_embedding(input_features[:, None].to(self.dtype))
        hidden_states = self.patch_projection(self.patch_layer_norm(patches.flatten(2).transpose(1, 2)))
        hidden_states = hidden_states + self.position_embedding(hidden_states)
        hidden_states = self.dropout(self.layer_norm(hidden_states))
        position_bias = self.relative_position_bias(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, position_bias, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


__all__ = ["OUTPUT_FLAGS", "BeatsModel", "BeatsPreTrainedModel"]
