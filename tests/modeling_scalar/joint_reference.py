"""What Sentence Transformers and transformers make of a joint encoder, for the tests, in a process of its own.

Their classes need torchvision, whose public wheel does not load beside a PyTorch for the CPU. What they call of it is
one resizing and one normalisation: where it is absent, these two stand in for it.
"""

import importlib.util
import sys
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType


def _resize(frames, size, interpolation=None, antialias=True):
    import torch.nn.functional as F

    assert interpolation == 3 and antialias and str(frames.dtype) == "torch.uint8"  # Pillow's number for bicubic
    return F.interpolate(frames, list(size), mode="bicubic", align_corners=False, antialias=True)


def _normalize(frames, mean, std, inplace=False):
    import torch

    mean, std = (torch.as_tensor(values, dtype=frames.dtype).view(-1, 1, 1) for values in (mean, std))
    return (frames - mean) / std


def stand_in() -> None:
    """Give torchvision a place among the modules, before anything asks for it."""
    modes = "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
    interpolation = Enum("InterpolationMode", [(name, name.lower().replace("_", "-")) for name in modes.split()])
    modules = {}
    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"):
        module = modules[name] = sys.modules[f"torchvision{name}"] = ModuleType(f"torchvision{name}")
        module.__spec__, module.__version__ = ModuleSpec(module.__name__, None), "0.28.0"
        module.__path__, module.InterpolationMode = [], interpolation
    functional = modules[".transforms.v2.functional"]
    modules[""].io, modules[".transforms"].v2 = modules[".io"], modules[".transforms.v2"]
    modules[".transforms.v2"].functional = functional
    modules[".transforms.functional"].pil_to_tensor = None
    functional.grayscale_to_rgb = lambda frames: frames  # they have three channels
    functional.resize, functional.normalize = _resize, _normalize


def main(root: Path, folder: Path, output: Path) -> None:
    """Write to `output` what is made of the streams: by Sentence Transformers of each folder of an encoder, by the
    code saved in the folder `remote`, and by our model on a SentenceTransformer."""
    if importlib.util.find_spec("torchvision") is None:
        stand_in()
    import torch
    from transformers import AutoModel, AutoProcessor

    torch.set_grad_enabled(False)
    results = {}
    remote = AutoModel.from_pretrained(folder / "remote", trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(folder / "remote", trust_remote_code=True)
    for part in (remote, processor):
        part.save_pretrained("again")
    AutoProcessor.from_pretrained("again", trust_remote_code=True)  # code travels on when it is saved again
    batch = torch.load(folder / "batch.pt")
    results["remote"] = {
        "scores": remote(**batch).scores,
        "is_remote": "scalar_retrieval" not in sys.modules and type(remote).__module__.startswith("transformers_mod"),
    }

    sys.path.insert(0, str(root))
    from sentence_transformers import SentenceTransformer

    from scalar_retrieval.modeling_scalar import Clip
    from scalar_retrieval.modeling_scalar.sentence_encoders import ScalarSentenceModel, ScalarSentenceProcessor
    from tests.joint_encoders import make_streams

    Path("cat.png").touch()
    frames, sounds, texts = make_streams()
    videos = [torch.from_numpy(clip).permute(0, 3, 1, 2) for clip in frames]  # 4 axes of a tensor: channels second
    audios = [{"array": sound, "sampling_rate": 16_000} for sound in sounds]
    options = {"video": {"do_sample_frames": False}}
    for name in ("plain", "chat"):
        encoder = SentenceTransformer(str(folder / name), device="cpu")
        found = results[name] = {}
        for batch_size in (1, 3):
            shared = {"batch_size": batch_size, "convert_to_tensor": True}
            found[batch_size] = {
                "text": encoder.encode_query(texts, **shared),
                "video": encoder.encode_document(videos, processing_kwargs=options, **shared),
                "audio": encoder.encode_document(audios, **shared),
                "subtitle": encoder.encode_document(texts, **shared),
            }
        clips = [Clip(*streams) for streams in zip(frames, sounds, texts, strict=True)]
        clips[1].waveform = clips[2].subtitle = None
        model, processor = ScalarSentenceModel.from_encoder(encoder), ScalarSentenceProcessor(num_frames=2)
        made = model(**processor(text=texts, clips=clips).to(model.device, model.dtype))
        found["ours"] = {"text": made.text_embeds, "clips": made.modality_embeds, "mask": made.modality_mask}
        found["ours"]["address"] = model.get_text_features(**processor(text="cat.png")).pooler_output
    torch.save(results, output)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
