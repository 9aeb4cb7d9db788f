"""Tiny joint encoders of the real classes with random weights, in folders as their publishers make them."""

import json
import string
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, EmbeddingGemma2Config, Gemma4AudioFeatureExtractor, GemmaTokenizer

QUERY_PROMPT = "task: search result | query: "
DOCUMENT_PROMPT = "title: none | text: "


# Content after content, without a mark of who says it; the prompt is what the system says.
CHAT_TEMPLATE = """{{ bos_token }}{% for message in messages %}{% for part in message.content %}\
{% if part.type == 'text' %}{{ part.text }}{% else %}{{ '<|' + part.type + '|>' }}{% endif %}\
{% endfor %}{% endfor %}{{ eos_token }}"""


def make_tokenizer() -> GemmaTokenizer:
    """One token a letter, and the special ones of the encoder."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    media = {
        "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
        "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
    }  # fmt: skip
    letters = ["▁", *string.ascii_letters, *string.digits, *".,:;|?!'-"]
    tokenizer = GemmaTokenizer(
        vocab={token: index for index, token in enumerate([*special, *letters])},
        merges=[],
        add_bos_token=True,
        add_eos_token=True,
        extra_special_tokens=media,
        model_max_length=8192,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|video|>"]})
    return tokenizer


def make_config(tokenizer: GemmaTokenizer) -> EmbeddingGemma2Config:
    """Two layers of everything, none wider than its heads need."""
    number = tokenizer.convert_tokens_to_ids
    return EmbeddingGemma2Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "global_head_dim": 16,
            "sliding_window_pattern": 2,
            "sliding_window": 8,
            "hidden_size_per_layer_input": 8,
            "embedding_dim": 24,
            "initializer_range": 0.2,
        },
        vision_config={
            "model_type": "gemma4_vision",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "position_embedding_size": 64,
            "initializer_range": 0.2,
        },
        audio_config={
            "model_type": "gemma4_audio",
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "subsampling_conv_channels": [128, 4],  # the first also counts the mel bins
            "output_proj_dims": 16,
            "initializer_range": 0.2,
        },
        **{
            field: number(token)
            for field, token in {
                "boi_token_id": "<|image>", "eoi_token_id": "<image|>", "image_token_id": "<|image|>",
                "video_token_id": "<|video|>", "boa_token_id": "<|audio>", "eoa_token_index": "<audio|>",
                "audio_token_id": "<|audio|>",
            }.items()
        },
    )  # fmt: skip


def write_joint_encoder(folder: Path, chat_template: str | None = None, max_soft_tokens: int = 70) -> Path:
    """Write an EmbeddingGemma 2 with the files of Sentence Transformers beside those of transformers."""
    tokenizer = make_tokenizer()
    config = make_config(tokenizer)
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The classes of pictures cannot be imported without torchvision: their settings are written as they write them.
    frames = {"video_processor_type": "EmbeddingGemma2VideoProcessor", "max_soft_tokens": max_soft_tokens}
    processor = {
        "processor_class": "EmbeddingGemma2Processor",
        "feature_extractor": json.loads(Gemma4AudioFeatureExtractor().to_json_string()),
        "image_processor": {"image_processor_type": "Gemma4ImageProcessor"},
        "video_processor": frames,
    }
    pooling = {"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": True}
    forward = {"method": "forward", "method_output_name": "last_hidden_state"}
    modalities = ["text", "image", "audio", "video"]
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
        modalities.append("message")
    base = "sentence_transformers.base.modules"
    files = {
        "processor_config.json": processor,
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": f"{base}.transformer.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "config_sentence_transformers.json": {
            "prompts": {"query": QUERY_PROMPT, "document": DOCUMENT_PROMPT},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": dict.fromkeys(modalities, forward),
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": pooling,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2))
    return folder


def make_streams(seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """Frames of three shapes, sound of three lengths, and subtitles, of three clips."""
    draw = np.random.default_rng(seed)
    frames = [
        draw.integers(0, 256, (2, height, width, 3), np.uint8) for height, width in ((96, 128), (160, 90), (64, 64))
    ]
    sounds = [draw.uniform(-0.5, 0.5, length).astype(np.float32) for length in (8000, 16000, 1234)]
    return frames, sounds, ["a dog barks", "Who is there?", "no"]
