"""Configurations of the SCALAR model and of its audio tower, BEATs.

The defaults are the sizes of the paper (Table S1): EVA-CLIP ViT-g/14 with 40 layers, BEATs with 12 layers on 64 mel
bins, BERT-base with cross-attention, 512-dimensional embeddings and a query-weight temperature of 0.1.
"""

import json
import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .modalities_scalar import PAPER_MODALITIES as MODALITIES
from .modalities_scalar import check_calibration
from .scores_scalar import ScoreOptions

POOLINGS = ("cls", "mean", "pooler")

# Towers whose first token is an ordinary patch, so pooling "cls" would silently embed one corner of the input.
_WITHOUT_CLASS_TOKEN = {
    "beats", "clap_audio_model", "convnext", "convnextv2", "resnet", "siglip2_text_model", "siglip2_vision_model",
    "siglip_text_model", "siglip_vision_model", "swin", "swinv2",
}  # fmt: skip
# Text towers with causal attention, whose first token sees no word.
_CAUSAL_TEXT = {"clip_text_model", "gpt2", "gpt_neo", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma"}


def in_package(name: str) -> ModuleType:
    """Import a sibling module that is not saved with models; an ImportError in the code of a saved model."""
    if not Path(__file__).with_name(f"{name}.py").exists():
        raise ImportError("This needs the whole package, not only the code that was saved with a model.")
    return import_module(f".{name}", __package__)


def own_fields(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of a configuration except those of its encoders, with values as JSON has them."""
    fields = {}
    for name in ScoreConfig.__annotations__ | type(config).__annotations__:
        if not name.endswith("_config"):
            fields[name] = getattr(config, name)
    return json.loads(json.dumps(fields))


def note_in_adapter(config: PreTrainedConfig, folder: str | os.PathLike) -> None:
    """Note in the `adapter_config.json` of a folder, if there is one, the configuration that belongs to the adapter.
    PEFT reads no other file, and gives its `auto_mapping` to the model, which then refuses an adapter that was trained
    with another configuration than its own."""
    path = Path(folder, "adapter_config.json")
    if not path.is_file():
        return
    content = json.loads(path.read_text("utf-8"))
    content["auto_mapping"] = (content.get("auto_mapping") or {}) | {"configuration": own_fields(config)}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=2, sort_keys=True), "utf-8")
    unfinished.replace(path)


class ScoreConfig(PreTrainedConfig):
    """Base of the configurations of models that score clips.

    Args:
        modalities (`list[str]`): The names along the modality axis of embeddings `(batch, M, dim)`, masks `(batch, M)`
            and weights.
        aggregation (`str`): Scoring method, a key of [`~scores_scalar.METHODS`]. The model checks it once plugins are
            registered.
        query_temperature (`float`): Temperature of the modality weights, tau_w of SCALAR Eq. 2; positive.
        modality_scale, modality_offset (`list[float]`, *optional*): For each modality a positive factor and an offset
            of its cosines, which make different modalities comparable; see
            [`~scores_scalar.retrieval_scores`]. `None` leaves cosines unchanged.
        has_logit_scale (`bool`): Whether to have a learned contrastive temperature, which only training uses.
        initializer_range (`float`): Standard deviation of newly initialised weights.
    """

    modalities: list[str] | tuple[str, ...] = MODALITIES
    aggregation: str = "scalar"
    query_temperature: float | int = 0.1
    modality_scale: list[float | int] | tuple[float | int, ...] | None = None
    modality_offset: list[float | int] | tuple[float | int, ...] | None = None
    has_logit_scale: bool = False
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs):
        self.modalities = list(self.modalities)
        super().__post_init__(**kwargs)

    def validate_weighing(self) -> None:
        """Check that the weighting fields are in range and have one value for each modality."""
        ScoreOptions(self.query_temperature)
        check_calibration(self.modality_scale, self.modality_offset, self.modalities)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Save as transformers does, and beside an adapter also into its own configuration."""
        super().save_pretrained(save_directory, **kwargs)
        note_in_adapter(self, save_directory)


@strict
class BeatsConfig(PreTrainedConfig):
    """Configuration of [`BeatsModel`], an audio transformer on 16x16 spectrogram patches (BEATs, iteration 3+).

    Args:
        patch_size (`int`): Side of the square patches, in frames and in mel bins. No parameter depends on the number
            of mel bins: VAST and SCALAR use 64, the original BEATs 128.
        patch_embed_dim (`int`): Width of a patch before it is projected to `hidden_size`.
        num_conv_pos_embeddings (`int`), num_conv_pos_embedding_groups (`int`): Kernel width and groups of the
            convolutional position embedding.
        num_buckets (`int`), max_bucket_distance (`int`): Buckets and range of the gated relative position bias.
    """

    model_type = "beats"
    base_config_key = "audio_config"
    feat_extract_activation = "gelu"  # WavLM's name for the activation behind the position embedding

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    patch_size: int = 16
    patch_embed_dim: int = 512
    num_conv_pos_embeddings: int = 128
    num_conv_pos_embedding_groups: int = 16
    num_buckets: int = 320
    max_bucket_distance: int = 800
    hidden_dropout: float | int = 0.0
    attention_dropout: float | int = 0.0
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02


@strict
class ScalarConfig(ScoreConfig):
    """Configuration of [`ScalarModel`]: three towers, their heads, and how their embeddings are aggregated.

    Args:
        vision_config, audio_config, text_config (`PreTrainedConfig` or `dict`): Any vision, audio and text model of
            transformers. The default text tower is BERT with cross-attention; a text tower without cross-attention
            embeds queries and subtitles but cannot do matching.
        modalities (`list[str]`): Three towers have the paper's, [`MODALITIES`], in their order.
        aggregation, query_temperature, modality_scale, modality_offset, has_logit_scale, initializer_range: See
            [`ScoreConfig`].
        projection_dim (`int`): dimension D of the shared space.
        vision_pooling, audio_pooling, text_pooling (`str`): how a tower's tokens become one vector: `"cls"` (first
            token), `"mean"` (over tokens; padding excluded) or `"pooler"` (the tower's own `pooler_output`).
        num_frame_embeddings, num_segment_embeddings (`int`): Learned positions of frames and of audio segments in the
            condition tokens; other numbers are interpolated (nearest).
        condition_on (`list[str]`): The modalities that the cross-encoder reads, in training and in the second stage.
            The paper uses video and audio; subtitles are possible too.
        mask_condition_padding (`bool`): Whether to hide the padding of subtitles from the cross-encoder. If not, the
            query attends to padded subtitle tokens too, as in the original VAST network.
        condition_layer_norm_eps (`float`): Epsilon of the layer norms of condition tokens and match head.
        has_concat_heads (`bool`): Whether to have the concatenation heads of a VAST checkpoint, one for each of
            [`~scores_scalar.CONCATENATIONS`], used by [`ScalarModel.get_concat_features`]. No loss trains them.

    Example:

        >>> ScalarConfig(aggregation="gram", query_temperature=0.2).modalities
        ['video', 'audio', 'subtitle']
    """

    model_type = "scalar"
    sub_configs_defaults = {
        "vision_config": SubConfigSpec(
            config_class=AutoConfig,
            model_type="blip_2_vision_model",
            # BLIP-2's own default, 1e-10, would make every freshly initialised tower a constant.
            init_kwargs={"num_hidden_layers": 40, "initializer_range": 0.02},
        ),
        "audio_config": SubConfigSpec(config_class=AutoConfig, model_type="beats"),
        "text_config": SubConfigSpec(
            config_class=AutoConfig,
            model_type="bert",
            init_kwargs={"is_decoder": True, "add_cross_attention": True, "is_causal": False},
        ),
    }

    vision_config: dict | PreTrainedConfig | None = None
    audio_config: dict | PreTrainedConfig | None = None
    text_config: dict | PreTrainedConfig | None = None
    projection_dim: int = 512
    vision_pooling: str = "cls"
    audio_pooling: str = "mean"
    text_pooling: str = "cls"
    num_frame_embeddings: int = 2
    num_segment_embeddings: int = 1
    condition_on: list[str] | tuple[str, ...] = ("video", "audio")
    mask_condition_padding: bool = True
    condition_layer_norm_eps: float = 1e-12
    has_concat_heads: bool = False

    modality_slices = None  # a field of joint encoders that is read of both kinds: towers share one space

    def __post_init__(self, **kwargs):
        # transformers applies a spec's `init_kwargs` only if the whole sub-config is missing. A partial dict without a
        # `model_type` means "the default tower with these changes" and must keep them: a text tower without
        # `is_causal=False` would embed every caption alike.
        self.condition_on = list(self.condition_on)
        for key, spec in self.sub_configs_defaults.items():
            sub_config = getattr(self, key)
            if isinstance(sub_config, dict) and "model_type" not in sub_config:
                setattr(self, key, spec.init_kwargs | sub_config)
        super().__post_init__(**kwargs)

    def validate_scalar(self) -> None:
        """Check that fields are consistent with each other."""
        if tuple(self.modalities) != MODALITIES:
            raise ValueError(f"`modalities` of three towers must be {MODALITIES}, got {self.modalities!r}.")
        # The cross-encoder reads condition tokens in this order.
        in_order = [name for name in MODALITIES if name in self.condition_on]
        if not self.condition_on or list(self.condition_on) != in_order:
            raise ValueError(
                f"`condition_on` must be some of {MODALITIES}, each once and in this order, got {self.condition_on!r}."
            )
        # Pooling that a tower does not have would give a meaningless vector.
        for tower in ("vision", "audio", "text"):
            pooling = getattr(self, f"{tower}_pooling")
            model_type = getattr(self, f"{tower}_config").model_type
            if pooling not in POOLINGS:
                raise ValueError(f"`{tower}_pooling` must be one of {POOLINGS}, got {pooling!r}.")
            if pooling == "cls" and model_type in _WITHOUT_CLASS_TOKEN | _CAUSAL_TEXT:
                raise ValueError(
                    f"`{tower}_pooling='cls'` needs a class token, but the first token of a {model_type!r} tower is "
                    "not one. Use 'mean' or 'pooler'."
                )
        # BERT with cross-attention is a decoder in transformers, but must read in both directions.
        text = self.text_config
        if getattr(text, "is_decoder", False) and getattr(text, "is_causal", True):
            raise ValueError(
                "`text_config` has `is_decoder=True` without `is_causal=False`, so attention is causal and the class "
                "token sees no word. Set `is_causal=False` (with `add_cross_attention=True` for matching), "
                "or `is_decoder=False` for a text tower without cross-attention."
            )

    @property
    def has_cross_attention(self) -> bool:
        """Whether the text tower can attend to a clip, as matching (the second stage) requires."""
        return bool(getattr(self.text_config, "is_decoder", False) and self.text_config.add_cross_attention)


# Sub-configs are resolved by `model_type`, and transformers does not have this one.
AutoConfig.register(BeatsConfig.model_type, BeatsConfig, exist_ok=True)
ScalarConfig.register_for_auto_class()  # saves the code with the model

__all__ = [
    "MODALITIES",
    "POOLINGS",
    "BeatsConfig",
    "ScalarConfig",
    "ScoreConfig",
    "in_package",
    "note_in_adapter",
    "own_fields",
]
