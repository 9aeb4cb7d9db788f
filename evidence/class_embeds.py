"""Embed the names and definitions of ImageNet's classes, which `light` recognises: `python -m evidence.class_embeds`.

The result is a file of the wheel, so that it is the same everywhere.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from scalar_retrieval import modeling_scalar
from scalar_retrieval.commands.errors import run_command
from scalar_retrieval.modeling_scalar.light_model import light_folder
from scalar_retrieval.modeling_scalar.light_texts import LightTextEncoder

_FILE = Path(modeling_scalar.__file__).with_name("imagenet_classes.txt")


def class_names() -> list[tuple[str, str]]:
    """Return the names of each class, in one string with commas, and its definition, in the order of outputs."""
    found = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            _, names, definition = line.split("\t")
            found.append((names, definition))
    return found


def class_texts() -> list[str]:
    """Return "names: definition" of each class, in the order of the classifier's outputs."""
    return [f"{names}: {definition}" for names, definition in class_names()]


def class_embeds(texts: Sequence[str]) -> torch.Tensor:
    """Embed classes with the sentence encoders of `light`, `(classes, 896)`, in half precision."""
    return LightTextEncoder(light_folder()).embed(texts).half()


def main() -> None:
    """Write the file."""
    save_file({"class_embeds": class_embeds(class_texts())}, _FILE.with_suffix(".safetensors"))


if __name__ == "__main__":
    run_command(main)

__all__ = ["class_embeds", "class_names", "class_texts"]
