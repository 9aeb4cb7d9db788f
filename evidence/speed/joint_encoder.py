"""Time of a joint encoder at full size for each modality of a clip, compared with the time of its matrix products.

    python -m evidence speed joint-encoder [--device cuda] [--dtype bfloat16] [--num-frames 8] [--seconds 10]

The encoder is EmbeddingGemma 2 with random weights, which are as fast as the published ones. The bound is the time
of its matrix products at the measured speed of one large product.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import EmbeddingGemma2Config

from evidence.speed.settings import JointEncoderConfig
from evidence.speed.training import product_rate
from scalar_retrieval.modeling_scalar import ScalarProcessor
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.media_scalar import SAMPLING_RATE
from scalar_retrieval.modeling_scalar.model_identity import device_of_name
from scalar_retrieval.modeling_scalar.modeling_joint_scalar import ScalarJointModel
from tests.joint_encoders import make_config, write_joint_encoder

QUERY = "someone closes a door and walks away while a dog barks"


def make_model(processor: ScalarProcessor, dtype: torch.dtype, device: torch.device) -> ScalarJointModel:
    """Return the encoder at full size, with the placeholders of a processor for a tiny one."""
    tiny = make_config(processor.tokenizer).to_dict()
    placeholders = {}
    for name, value in tiny.items():
        if "_token_i" in name:
            placeholders[name] = value
    backbone = EmbeddingGemma2Config(
        vision_config={"model_type": "gemma4_vision"}, audio_config={"model_type": "gemma4_audio"}, **placeholders
    )
    with torch.device(device):
        model = ScalarJointModel(ScalarJointConfig(backbone_config=backbone))
    return model.to(dtype).eval()


def num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def median_seconds(function: Callable[[], object], rounds: int, device: torch.device) -> float:
    """Return the median time of a call, after a warm-up call on a GPU."""
    times = []
    for _ in range(rounds + (device.type == "cuda")):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[-rounds:])


@torch.inference_mode()
def main(config: JointEncoderConfig) -> None:
    """Measure and print."""
    device = device_of_name(config.device)
    on_gpu = device.type == "cuda"
    default = "bfloat16" if on_gpu else "float32"
    dtype = getattr(torch, config.dtype or default)
    torch.set_num_threads(config.threads)
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    # A tiny encoder on the disk gives the processor.
    with tempfile.TemporaryDirectory() as folder:
        processor = ScalarProcessor.from_joint_encoder(write_joint_encoder(Path(folder)), num_frames=config.num_frames)
    model = make_model(processor, dtype, device)

    # Clips of random pixels and samples, which take as long as real ones.
    frames = list(draw.integers(0, 256, (config.clips, config.num_frames, 480, 640, 3), np.uint8))
    length = int(config.seconds * SAMPLING_RATE)
    sounds = list(draw.uniform(-0.5, 0.5, (config.clips, length)).astype(np.float32))
    given = {
        "video": {"videos": frames},
        "audio": {"audio": sounds},
        "subtitle": {"subtitles": [QUERY] * config.clips},
        "query": {"text": [QUERY] * config.clips},
    }
    counts = {
        "trunk": num_parameters(model.backbone.language_model),
        "vision": num_parameters(model.backbone.vision_tower),
    }
    total = num_parameters(model)
    size = total * dtype.itemsize / 1e9
    print(f"{total:,} parameters ({counts}), {dtype}: {size:.1f} GB; {device}, {config.threads} threads")
    rate = product_rate(4096 if on_gpu else 1024, dtype, device)
    print(f"one large product: {rate / 1e12:.3g} TFLOP/s")
    for name, inputs in given.items():
        # Preparing, operations and time of each modality, per clip.
        start = time.perf_counter()
        batch = processor(**inputs)
        prepared = (time.perf_counter() - start) / config.clips
        tensors = {}
        for key, value in batch.items():
            if isinstance(value, torch.Tensor):
                tensors[key] = value.to(device)
        call = model.get_modality_features
        if name == "query":
            call = model.get_text_features
        # As explicit products, because the counter lacks attention with grouped heads on some devices.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            call(**tensors)
        flops = counter.get_total_flops() / config.clips
        seconds = median_seconds(lambda: call(**tensors), config.rounds, device) / config.clips  # noqa: B023
        print(
            f"{name:8} {seconds:8.3f} s and {prepared:.3f} s to prepare; {flops / 1e9:8.1f} GFLOP, "
            f"{seconds * rate / flops:.2f} x the bound"
        )
