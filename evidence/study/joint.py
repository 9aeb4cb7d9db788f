"""`python -m evidence joint-encoder`: train a small joint encoder from scratch.

The encoder has the class of EmbeddingGemma 2 and a thousandth of its parameters. It learns one vector for any part of
a clip, near the text that describes it. In each step a clip shows one of its modalities or a mix of them, so that
vectors of single modalities and of whole clips are trained. No aggregation takes part: `evidence.study.fused` then
compares fusing inside the encoder with weighting one vector per modality.
"""

import math

import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm
from transformers import BertTokenizer, EmbeddingGemma2Config, Gemma4AudioFeatureExtractor

import evidence.miniature  # noqa: F401 # registers its benchmark
from evidence.building import learn_vocabulary
from evidence.fused import embed_whole
from evidence.settings import JointConfig
from scalar_retrieval.commands.texts import print_message
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.image_processing_joint_scalar import ScalarPatchImageProcessor
from scalar_retrieval.modeling_scalar.modeling_joint_scalar import ScalarJointModel
from scalar_retrieval.modeling_scalar.processing_joint_scalar import VIDEO_TOKEN, ScalarJointProcessor
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarLogitScale
from scalar_retrieval.trainer.data import ClipDataset, GlobalBatchSampler, clips_of, derived_generator

_PLACEHOLDERS = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
    "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
}  # fmt: skip
_COLUMNS = ("video_path", "audio_path", "subtitle")  # in the order of the modalities
_WIDTH = 96
_LAYERS = 3
_HEADS = 4
_TRUNK = {
    "hidden_size": _WIDTH,
    "intermediate_size": 256,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "head_dim": _WIDTH // _HEADS,
    "initializer_range": 0.05,
}


def build_encoder(texts: list[str]) -> tuple[ScalarJointModel, ScalarJointProcessor]:
    """Build the encoder with random weights, and its processor, whose vocabulary is learned from texts."""
    # The vocabulary of the clips' texts, with the placeholders that stand for pictures and sound.
    tokenizer = BertTokenizer(vocab=learn_vocabulary(texts, 2000), extra_special_tokens=_PLACEHOLDERS)
    tokenizer.add_special_tokens({"additional_special_tokens": [VIDEO_TOKEN]})
    number = tokenizer.convert_tokens_to_ids
    # One small trunk for texts, pictures and sound.
    backbone = EmbeddingGemma2Config(
        text_config=_TRUNK
        | {
            "vocab_size": len(tokenizer),
            "global_head_dim": _WIDTH // _HEADS,
            "sliding_window_pattern": _LAYERS,  # the last layer sees everything
            "hidden_size_per_layer_input": 16,
            "embedding_dim": _WIDTH,
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config=_TRUNK | {"model_type": "gemma4_vision", "position_embedding_size": 64},
        audio_config={
            "model_type": "gemma4_audio",
            "hidden_size": _WIDTH,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "output_proj_dims": _WIDTH,
            "initializer_range": 0.05,
        },
        video_token_id=number(VIDEO_TOKEN),
        image_token_id=number(_PLACEHOLDERS["image_token"]),
        boi_token_id=number(_PLACEHOLDERS["boi_token"]),
        eoi_token_id=number(_PLACEHOLDERS["eoi_token"]),
        audio_token_id=number(_PLACEHOLDERS["audio_token"]),
        boa_token_id=number(_PLACEHOLDERS["boa_token"]),
        eoa_token_index=number(_PLACEHOLDERS["eoa_token"]),
    )
    model = ScalarJointModel(ScalarJointConfig(backbone_config=backbone, projection_dim=_WIDTH))
    processor = ScalarJointProcessor(
        ScalarPatchImageProcessor(max_soft_tokens=4),  # of pictures of 64 x 64 pixels
        Gemma4AudioFeatureExtractor(),
        tokenizer,
        num_frames=3,
        max_length=512,
        max_text_length=40,
        max_subtitle_length=40,
    )
    return model, processor


def draw_mixes(present: torch.Tensor, generator: torch.Generator) -> torch.BoolTensor:
    """Draw what each clip shows in a step, `(clips, 3)`: in half of the draws one modality, else any mix of what it
    has, all equally likely. Pictures and sound are learned from what shows them alone: beside a subtitle they add
    little."""
    mixes = (torch.arange(1, 8)[:, None] >> torch.arange(3) & 1).bool()  # (7, 3): bit i shows modality i
    # A mix is possible if the clip has all of it; an impossible one gets no chance.
    possible = ~(mixes[None] & ~present[:, None]).any(dim=-1)  # (clips, 7)
    alone = possible & (mixes.sum(1) == 1)
    chances = alone.double() / alone.sum(1, keepdim=True) + possible.double() / possible.sum(1, keepdim=True)
    return mixes[torch.multinomial(chances, 1, generator=generator)[:, 0]]


def train(
    model: ScalarJointModel, processor: ScalarJointProcessor, rows: Dataset, epochs: int, batch_size: int, seed: int
) -> None:
    """Train a model where it is: symmetric InfoNCE of captions and of one vector per clip, of a mix of what it has."""
    clips = ClipDataset(rows, processor, seed, keep_in_memory=True)
    present = torch.zeros(len(rows), len(_COLUMNS), dtype=torch.bool)
    for place, name in enumerate(_COLUMNS):
        present[:, place] = torch.tensor([value is not None for value in rows[name]])
    sampler = GlobalBatchSampler(clips_of(clips), batch_size, seed)
    scale = ScalarLogitScale()  # the learned temperature of InfoNCE
    parameters = [*model.parameters(), *scale.parameters()]
    steps = epochs * len(sampler)
    # A linear warm-up, then half a cosine down to zero.
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05)
    warmup = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    model.train()
    bar = tqdm(total=steps, desc="train", unit="step")
    for epoch in range(epochs):
        # The order of clips and their mixes depend on the seed and the epoch alone.
        sampler.set_epoch(epoch)
        generator = derived_generator(seed, epoch)
        for indices in sampler:
            examples = [clips[index] for index in indices]
            texts = processor(text=[example["caption"] for example in examples])
            inputs = processor(clips=[example["clip"] for example in examples])
            vectors = embed_whole(model, inputs, draw_mixes(present[indices], generator))
            # Every other clip of the batch is a negative, in both directions.
            logits = model.get_text_features(**texts).pooler_output @ vectors.T / scale()
            target = torch.arange(len(logits))
            loss = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 2.0)
            optimizer.step()
            schedule.step()
            bar.update()
            bar.set_postfix(loss=f"{loss.item():.3f}", temperature=f"{scale().item():.3f}")
    bar.close()
    model.eval()


def main(config: JointConfig) -> None:
    """Train a small joint encoder from scratch on clips of the miniature benchmark."""
    rows = load_benchmark("miniature", config.root, "train")
    torch.manual_seed(config.seed)
    model, processor = build_encoder([*rows["caption"], *filter(None, rows["subtitle"])])
    print_message(f"{model.num_parameters():,} parameters, {len(rows)} clips")
    train(model, processor, rows, config.epochs, config.batch_size, config.seed)
    model.save_pretrained(config.output)
    processor.save_pretrained(config.output)
