"""A folder in which what pages name is there: models, galleries and clips, small ones under the names of the pages."""

import os
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertModel
from transformers.dynamic_module_utils import custom_object_save

from scalar_retrieval import index
from scalar_retrieval.modeling_scalar import load_model
from tests.dual_encoders import write_clap, write_clip
from tests.eval.slow import make_embeddings
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import media
from tests.search.small_folder import write_clips

ROOT = Path(__file__).resolve().parent.parent


def _write_adapter(folder: Path) -> None:
    """An adapter of the small backbone, as `make demo` leaves it."""
    model, processor = load_model(ROOT / "recipes" / "miniature_backbone")
    config = LoraConfig(task_type="FEATURE_EXTRACTION", r=2, target_modules=r"text_model\..*\.query")
    model.config.save_pretrained(folder)
    custom_object_save(model, folder, config=model.config)
    get_peft_model(model, config).save_pretrained(folder)
    processor.save_pretrained(folder)


def _write_encoders(folder: Path) -> None:
    """Encoders by the names of those on the Hub, without their weights."""
    write_clip(folder / "openai" / "clip-vit-base-patch32")
    write_clap(folder / "laion" / "clap-htsat-unfused")
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(**small, vocab_size=60, max_position_embeddings=80)).save_pretrained(
        folder / "bert-base-uncased"
    )
    (folder / "google" / "embeddinggemma-2").mkdir(parents=True)
    write_joint_encoder(folder / "google" / "embeddinggemma-2")


def set_up(folder: Path) -> Path:
    """Write everything into an empty folder, and return it."""
    torch.manual_seed(0)
    _write_adapter(folder / "runs" / "miniature")
    _write_encoders(folder)
    (folder / "user").mkdir()
    (folder / "user" / "scalar-miniature").symlink_to("../runs/miniature")
    (folder / "user" / "miniature-backbone").symlink_to(ROOT / "recipes" / "miniature_backbone")
    (folder / "data" / "miniature").mkdir(parents=True)
    for number, path in enumerate(
        ["data/miniature/test/000000.mp4", "data/miniature/test/000001.mp4", "a.mp4", "b.mp4"]
    ):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(media("mp4", "mpeg4", "aac", seconds=1 + number / 10))
    write_clips(folder / "Videos")
    shutil.copytree(folder / "Videos", folder / "Videos" / "holiday")
    index(folder / "Videos", folder / "galleries" / "videos", folder / "runs" / "miniature")
    # A gallery with captions, as `scalar eval embed` writes it
    metadata = {"model": "runs/miniature", "query_temperature": 0.1}
    make_embeddings(8, 1, dim=96, metadata=metadata).save(folder / "galleries" / "msrvtt")
    files = ["a.mp4", "b.mp4", "data/miniature/test/000000.mp4", "data/miniature/test/000001.mp4"] * 2
    lines = [f"a clip of number {number},{path}" for number, path in enumerate(files)]
    for name in ("train.csv", "val.csv"):
        (folder / name).write_text("\n".join(["caption,video_path", *lines]))
    return folder


def copy(stage: Path, folder: Path) -> None:
    """Give a page a folder of its own, in which it may write into galleries and runs."""
    for path in stage.iterdir():
        if path.name in ("galleries", "runs"):
            shutil.copytree(path, folder / path.name)
        else:
            (folder / path.name).symlink_to(os.path.relpath(path, folder))
