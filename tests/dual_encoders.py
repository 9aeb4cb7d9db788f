"""Tiny encoders of pictures or sound with random weights, in folders as their publishers make them."""

import string
from pathlib import Path

import torch
from transformers import (
    ClapConfig,
    ClapFeatureExtractor,
    ClapModel,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    GemmaTokenizer,
    PreTrainedModel,
    RobertaTokenizer,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

_LETTERS = [*string.ascii_lowercase, *string.digits, *".,!?'-:"]
_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
# Wide enough that different inputs have clearly different vectors.
_WIDE = 1.5


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _save(folder: Path, model: PreTrainedModel, *processors) -> Path:
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=_WIDE / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)
    return folder


def write_clip(folder: Path, seed: int = 0) -> Path:
    """Write a `CLIPModel` of 12 dimensions that sees 32 x 32 pixels."""
    torch.manual_seed(seed)
    tokens = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab=_vocabulary(tokens), merges=[], model_max_length=77)
    end = len(tokens) - 1
    text = {"vocab_size": len(tokens), "bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    vision = {"image_size": 32, "patch_size": 8}
    config = CLIPConfig(text_config=_TOWER | text, vision_config=_TOWER | vision, projection_dim=12)
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return _save(folder, CLIPModel(config), tokenizer, images)


def _gemma_tokenizer() -> GemmaTokenizer:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *_LETTERS]
    # SigLIP 2 ends texts, and begins none.
    return GemmaTokenizer(
        vocab=_vocabulary(tokens),
        merges=[],
        add_bos_token=False,
        add_eos_token=True,
        padding_side="right",
        model_max_length=64,
    )


def _siglip_text(tokenizer: GemmaTokenizer) -> dict[str, int]:
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "projection_size": 16}
    return _TOWER | text | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}


def write_siglip(folder: Path, seed: int = 0) -> Path:
    """Write a `SiglipModel` of 16 dimensions with the tokenizer of SigLIP 2: what is published as its fixed sizes."""
    torch.manual_seed(seed)
    tokenizer = _gemma_tokenizer()
    config = SiglipConfig(
        text_config=_siglip_text(tokenizer), vision_config=_TOWER | {"image_size": 32, "patch_size": 8}
    )
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    return _save(folder, SiglipModel(config), tokenizer, images)


def write_siglip2(folder: Path, seed: int = 0) -> Path:
    """Write a `Siglip2Model` of 16 dimensions that sees as many patches of 16 x 16 pixels as its processor makes."""
    torch.manual_seed(seed)
    tokenizer = _gemma_tokenizer()
    config = Siglip2Config(
        text_config=_siglip_text(tokenizer), vision_config=_TOWER | {"num_patches": 256, "patch_size": 16}
    )
    images = Siglip2ImageProcessorPil(patch_size=16, max_num_patches=256)
    return _save(folder, Siglip2Model(config), tokenizer, images)


def write_clap(folder: Path, seed: int = 0, is_fused: bool = False) -> Path:
    """Write a `ClapModel` of 20 dimensions that hears 48 kHz, ten seconds at a time; fused, with parts of more."""
    torch.manual_seed(seed)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *_LETTERS]
    tokenizer = RobertaTokenizer(vocab=_vocabulary(tokens), merges=[], model_max_length=512)
    text = {"vocab_size": len(tokens), "max_position_embeddings": 514, "pad_token_id": 1}
    audio = {
        "patch_embeds_hidden_size": 8,
        "hidden_size": 16,
        "depths": [1, 1],
        "num_attention_heads": [1, 2],
        "num_hidden_layers": 2,
        "patch_embed_input_channels": 1,
        "enable_fusion": is_fused,
    }
    config = ClapConfig(text_config=_TOWER | text, audio_config=audio, projection_dim=20)
    model = ClapModel(config)
    # Spectrograms are in decibels.
    norm = model.audio_model.audio_encoder.batch_norm
    norm.running_mean.fill_(-20)
    norm.running_var.fill_(50)
    extractor = ClapFeatureExtractor(truncation="fusion" if is_fused else "rand_trunc", padding="repeatpad")
    return _save(folder, model, tokenizer, extractor)


WRITERS = {"clip": write_clip, "siglip": write_siglip, "siglip2": write_siglip2, "clap": write_clap}
"""What writes an encoder of each family."""
