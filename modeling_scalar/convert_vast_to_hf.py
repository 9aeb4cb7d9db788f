"""Convert a VAST, GRAM or PMRL checkpoint (one network, one layout) to a SCALAR model folder.

    scalar convert-vast --checkpoint model_step_100.pt --output DIR [--config config.json] [--concat-heads]

Every key of the file is used, on the explicit list of unused keys, or an error. Every parameter of the model comes
from the file. Nothing stays randomly initialised.
"""

import os
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoTokenizer

from .configuration_scalar import ScalarConfig
from .feature_extraction_scalar import ScalarFeatureExtractor
from .image_processing_scalar import ScalarImageProcessor
from .modeling_scalar import ScalarModel
from .processing_scalar import ScalarProcessor
from .scores_scalar import CONCATENATIONS

# Unused parts of the original network: the text half and visual head of EVA-CLIP, heads of concatenated modalities
# (unless requested) and of depth, the captioning head, and temperatures.
UNUSED_KEYS = (
    r"vision_encoder\.text\..*",
    r"vision_encoder\.visual\.head\..*",
    r"contra_head_(va|vs|vas|d)\..*",
    r"hidden_trans_depth_multimodal\..*",
    r"depth_(frame_embedding|type_embeddings)",
    r"multimodal_encoder\.cls\..*",
    r"multimodal_encoder\.bert\.embeddings\.position_ids",
    r"(.*\.)?logit_scale",
    r"contra_temp",
)

_RENAMES = (
    (r"vision_encoder\.visual\.cls_token", "vision_model.embeddings.class_embedding"),
    (r"vision_encoder\.visual\.pos_embed", "vision_model.embeddings.position_embedding"),
    (r"vision_encoder\.visual\.patch_embed\.proj\.(weight|bias)", r"vision_model.embeddings.patch_embedding.\1"),
    (r"vision_encoder\.visual\.norm\.(weight|bias)", r"vision_model.post_layernorm.\1"),
    (r"vision_encoder\.visual\.blocks\.(\d+)\.norm([12])\.(.*)", r"vision_model.encoder.layers.\1.layer_norm\2.\3"),
    (
        r"vision_encoder\.visual\.blocks\.(\d+)\.attn\.proj\.(.*)",
        r"vision_model.encoder.layers.\1.self_attn.projection.\2",
    ),
    (
        r"vision_encoder\.visual\.blocks\.(\d+)\.attn\.q_bias",
        r"vision_model.encoder.layers.\1.self_attn.qkv.query.bias",
    ),
    (
        r"vision_encoder\.visual\.blocks\.(\d+)\.attn\.v_bias",
        r"vision_model.encoder.layers.\1.self_attn.qkv.value.bias",
    ),
    (r"vision_encoder\.visual\.blocks\.(\d+)\.mlp\.(fc[12])\.(.*)", r"vision_model.encoder.layers.\1.mlp.\2.\3"),
    (r"audio_encoder\.patch_embedding\.(.*)", r"audio_model.patch_embedding.\1"),
    (r"audio_encoder\.layer_norm\.(.*)", r"audio_model.patch_layer_norm.\1"),
    (r"audio_encoder\.post_extract_proj\.(.*)", r"audio_model.patch_projection.\1"),
    (r"audio_encoder\.encoder\.pos_conv\.0\.bias", "audio_model.position_embedding.conv.bias"),
    (
        r"audio_encoder\.encoder\.pos_conv\.0\.weight_g",
        "audio_model.position_embedding.conv.parametrizations.weight.original0",
    ),
    (
        r"audio_encoder\.encoder\.pos_conv\.0\.weight_v",
        "audio_model.position_embedding.conv.parametrizations.weight.original1",
    ),
    (r"audio_encoder\.encoder\.layer_norm\.(.*)", r"audio_model.layer_norm.\1"),
    (
        r"audio_encoder\.encoder\.layers\.0\.self_attn\.relative_attention_bias\.weight",
        "audio_model.relative_position_bias.embedding.weight",
    ),
    (r"audio_encoder\.encoder\.layers\.(\d+)\.self_attn\.grep_a", r"audio_model.layers.\1.attention.gate_scale"),
    (
        r"audio_encoder\.encoder\.layers\.(\d+)\.self_attn\.grep_linear\.(.*)",
        r"audio_model.layers.\1.attention.gate.\2",
    ),
    (
        r"audio_encoder\.encoder\.layers\.(\d+)\.self_attn\.((?:q|k|v|out)_proj)\.(.*)",
        r"audio_model.layers.\1.attention.\2.\3",
    ),
    (
        r"audio_encoder\.encoder\.layers\.(\d+)\.self_attn_layer_norm\.(.*)",
        r"audio_model.layers.\1.attention_layer_norm.\2",
    ),
    (r"audio_encoder\.encoder\.layers\.(\d+)\.(fc[12]|final_layer_norm)\.(.*)", r"audio_model.layers.\1.\2.\3"),
    (r"multimodal_encoder\.bert\.(.*)", r"text_model.\1"),
    (r"contra_head_t\.linear\.weight", "text_projection.weight"),
    (r"contra_head_s\.linear\.weight", "subtitle_projection.weight"),
    (r"contra_head_v\.linear\.weight", "video_projection.weight"),
    (r"contra_head_a\.linear\.weight", "audio_projection.weight"),
    (r"itm_head\.linear1\.(.*)", r"match_head.dense.\1"),
    (r"itm_head\.layernorm\.(.*)", r"match_head.layer_norm.\1"),
    (r"itm_head\.linear2\.(.*)", r"match_head.classifier.\1"),
    (r"hidden_trans_vision_multimodal\.0\.(.*)", r"video_condition.projection.\1"),
    (r"hidden_trans_vision_multimodal\.1\.(.*)", r"video_condition.layer_norm.\1"),
    (r"hidden_trans_(audio|subtitle)_multimodal\.0\.(.*)", r"\1_condition.projection.\2"),
    (r"hidden_trans_(audio|subtitle)_multimodal\.1\.(.*)", r"\1_condition.layer_norm.\2"),
    (r"vision_frame_embedding", "video_condition.position_embedding"),
    (r"audio_frame_embedding", "audio_condition.position_embedding"),
    (r"vision_type_embeddings", "video_condition.type_embedding"),
    (r"(audio|subtitle)_type_embeddings", r"\1_condition.type_embedding"),
)

_QKV = re.compile(r"vision_encoder\.visual\.blocks\.(\d+)\.attn\.qkv\.weight")
_SHARED_BIAS = re.compile(r"audio_encoder\.encoder\.layers\.(\d+)\.self_attn\.relative_attention_bias\.weight")
_CONCAT_HEAD = re.compile(r"contra_head_(va|vs|vas)\.(weight|bias)")
_CONCAT_NAMES = ["".join(name[0] for name in names) for names in CONCATENATIONS]
# The fields of the configuration that are counted in the file.
_COUNTED = {"num_frame_embeddings": "vision_frame_embedding", "num_segment_embeddings": "audio_frame_embedding"}
_SHARED_BIAS_SOURCE = "audio_encoder.encoder.layers.0.self_attn.relative_attention_bias.weight"


def read_checkpoint(path: str | Path) -> dict[str, torch.Tensor]:
    """
    Read a `.pt` state dict without executing anything in it, under the names of the original network.

    Args:
        path (`str` or `Path`): The file; wrappers (`{"model": ...}`, `module.`) and older names in published
            checkpoints are normalised.

    Returns:
        `dict` of tensors.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a state dict of tensors.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (EOFError, LookupError, pickle.UnpicklingError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a checkpoint of plain tensors that PyTorch 1.6 or newer saved: it is damaged, or holds "
            "other objects, which are never unpickled. Copy it again, or save only its state dict with `torch.save`."
        ) from error
    # Training scripts save the state dict alone or next to other things.
    if isinstance(state, Mapping) and isinstance(state.get("model"), Mapping):
        state = state["model"]
    holds_tensors = isinstance(state, Mapping) and all(isinstance(value, torch.Tensor) for value in state.values())
    if not holds_tensors or not all(isinstance(key, str) for key in state):
        raise ValueError(f"{path} must hold a state dict, a mapping of names to tensors, got {type(state).__name__}.")
    # Older names of the same towers.
    renamed = {}
    for key, value in state.items():
        name = key.replace("video", "vision").replace("evaclip_model", "vision_encoder")
        name = name.replace("clip_model", "vision_encoder").removeprefix("module.")
        renamed[name] = value
    return renamed


def _new_name(key: str, has_concat_heads: bool) -> str | None:
    """The name in [`ScalarModel`] of a key of the original network, None if the model has no use for it.

    Raises:
        ValueError: If the original network has no such key.
    """
    head = _CONCAT_HEAD.fullmatch(key)
    if head and has_concat_heads:
        return f"concat_projections.{_CONCAT_NAMES.index(head[1])}.{head[2]}"
    if any(re.fullmatch(pattern, key) for pattern in UNUSED_KEYS):
        return None
    for pattern, replacement in _RENAMES:
        match = re.fullmatch(pattern, key)
        if match:
            return match.expand(replacement)
    raise ValueError(f"The checkpoint has an unexpected key {key!r}: it is not one of VAST, GRAM or PMRL.")


def convert_state_dict(
    state: Mapping[str, torch.Tensor], config: ScalarConfig
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """
    Rename and resize a checkpoint for [`ScalarModel`].

    Args:
        state (`dict`): The state dict from [`read_checkpoint`].
        config ([`ScalarConfig`]): The configuration of the model to fill.

    Returns:
        The new state dict in float32, and the keys that were not used. Strict loading checks names and shapes.

    Raises:
        ValueError: For a key that the original network does not have, or a position table that differs by layer.
    """
    # The names and shapes of the model, without memory for its weights.
    with torch.device("meta"):
        expected = ScalarModel(config).state_dict()
    converted = {}
    unused = []
    for key, value in state.items():
        value = value.detach().to(torch.float32)
        # One projection becomes three, of which an adapter can change two.
        fused = _QKV.fullmatch(key)
        if fused:
            for part, weight in zip(("query", "key", "value"), value.chunk(3), strict=True):
                name = f"vision_model.encoder.layers.{fused[1]}.self_attn.qkv.{part}.weight"
                converted[name] = weight.contiguous().clone()
            continue
        if _SHARED_BIAS.fullmatch(key):
            # One table is stored under every layer; different copies would be another network.
            if not torch.equal(value, state.get(_SHARED_BIAS_SOURCE, value).to(torch.float32)):
                raise ValueError(f"{key!r} differs from layer 0, whose table all layers share.")
            if key != _SHARED_BIAS_SOURCE:
                continue
        name = _new_name(key, config.has_concat_heads)
        if name is None:
            unused.append(key)
            continue
        # Embeddings without the axes that broadcast over a batch, for as many positions as the model has.
        if name.endswith("_condition.position_embedding"):
            value = value.squeeze(0)
        elif name.endswith("_condition.type_embedding"):
            value = value.flatten()
        if name in expected:
            value = _resize(name, value, expected[name].shape)
        converted[name] = value.contiguous().clone()
    return converted, unused


def _resize(key: str, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Interpolate the two kinds of positions with a variable number: frames (nearest) and patches (bicubic)."""
    if value.shape == shape:
        return value
    if key.endswith("_condition.position_embedding") and value.shape[1] == shape[1]:
        return nn.functional.interpolate(value.T[None], size=shape[0], mode="nearest")[0].T
    if key == "vision_model.embeddings.position_embedding" and value.shape[2] == shape[2]:
        # All but the class token's lie on a square grid.
        old = round((value.shape[1] - 1) ** 0.5)
        new = round((shape[1] - 1) ** 0.5)
        grid = value[:, 1:].unflatten(1, (old, old)).permute(0, 3, 1, 2)
        grid = nn.functional.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
        return torch.cat([value[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)
    return value


def convert(
    checkpoint: str | Path,
    output: str | Path,
    config: ScalarConfig | None = None,
    tokenizer: str | None = None,
    concat_heads: bool = False,
) -> list[str]:
    """
    Convert a checkpoint file to a folder that `AutoModel.from_pretrained(DIR, trust_remote_code=True)` loads.

    Args:
        checkpoint (`str` or `Path`): A `.pt` state dict.
        output (`str` or `Path`): The output folder.
        config ([`ScalarConfig`], *optional*): The configuration of the network. By default it has the paper's sizes
            and as many frame and segment embeddings as the file.
        tokenizer (`str`, *optional*): Name or folder of the BERT tokenizer, with which a processor is saved too.
        concat_heads (`bool`): Whether to keep the concatenation heads, for [`ScalarModel.get_concat_features`];
            otherwise they count as unused.

    Returns:
        The keys of the file that were not used.

    Raises:
        ValueError: If a key is missing or unexpected, or a shape does not fit. Nothing is written then.
    """
    output = Path(output)
    is_new = not output.exists() or (output.is_dir() and not any(output.iterdir()))
    if output.is_symlink() or not output.name or not is_new:  # "." has no name, and is where a shell is
        raise ValueError(f"{output} already exists. Choose a new folder, or remove it.")
    # Read everything before anything is written.
    loaded_tokenizer = None
    if tokenizer is not None:
        loaded_tokenizer = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    state = read_checkpoint(checkpoint)
    # The paper's sizes, with as many positions as the file has.
    if config is None:
        config = ScalarConfig()
        for name, key in _COUNTED.items():
            if key in state:
                setattr(config, name, state[key].shape[1])
    config.has_concat_heads = concat_heads
    # Strict: a missing key is an error, never a random weight.
    try:
        converted, unused = convert_state_dict(state, config)
        with torch.device("meta"):
            model = ScalarModel(config)
        model.load_state_dict(converted, strict=True, assign=True)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{checkpoint} does not fit this network; nothing was written. If its sizes are not the paper's, pass "
            f"`--config`. {error}"
        ) from error
    # Write to a hidden folder, which gets its name once it is complete.
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        model.save_pretrained(temporary)
        if loaded_tokenizer is not None:
            images = ScalarImageProcessor(image_size=config.vision_config.image_size)
            processor = ScalarProcessor(images, ScalarFeatureExtractor(), loaded_tokenizer)
            processor.save_pretrained(temporary)
        os.replace(temporary, output)
    except SafetensorError as error:  # for example of a full disk, without errno
        raise OSError(f"{output} could not be written: {error}. No files were left there.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return unused


__all__ = ["UNUSED_KEYS", "convert", "convert_state_dict", "read_checkpoint"]
