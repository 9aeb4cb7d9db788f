"""`python -m trainer.rehead GALLERY --model RUN --output NEW`: the gallery of an encoder, behind trained heads.

Nothing has to be embedded again: heads make a new vector of each in the gallery, in seconds.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer

from commands.errors import say, user_errors
from gallery.files import read_json
from gallery.gallery import Gallery
from gallery.provenance import describe, model_folder
from modeling_scalar import load_model
from modeling_scalar.checking import part_of, place_of, shapes_of, weight_files
from modeling_scalar.devices import said_of
from modeling_scalar.fingerprints import model_fingerprint
from modeling_scalar.model_identity import base_of

_BESIDE_HEADS = ("logit_scale", "hyperbolic")


def _base_of_heads(folder: Path) -> tuple[str, str]:
    """The base of an adapter of heads, a folder or a Hub id, and its revision."""
    config = folder / "adapter_config.json"
    parts: set[str] = set()
    if config.is_file():
        parts = {part_of(name) for name in shapes_of(weight_files(str(folder), "adapter_model"))}
    others = sorted(part for part in parts if not part.endswith("_head") and part not in _BESIDE_HEADS)
    if others or not parts:
        found = f"an adapter that changes {others} too" if others else "no adapter"
        raise ValueError(
            f"{folder} holds {found}; expected one of heads alone. Of any other model the vectors have to be embedded "
            "anew."
        )
    return base_of(str(folder.resolve()), read_json(config))


@torch.no_grad()
def rehead(gallery: Path, model: str, output: Path) -> Gallery:
    """
    Write the gallery of an encoder as the encoder with heads would have made it.

    Args:
        gallery (`Path`): made by the encoder, the base of the heads.
        model (`str`): folder or Hub id of an adapter of heads.
        output (`Path`): new or empty.

    Returns:
        [`~gallery.gallery.Gallery`]: what was written, in the precision of the first.

    Raises:
        ValueError: the gallery was made by another model, or the adapter changes more than heads.
    """
    base, revision = _base_of_heads(model_folder(model))
    old = Gallery.open(gallery)
    old.check_model(base, model_fingerprint(model_folder(base, revision)), must_know=True)
    model = place_of(model)  # the gallery is to find it from anywhere
    network, _ = load_model(model, torch.float32)
    say(f"{model}: {said_of(network)}, of which the heads are applied.")

    def project(name: str, vectors: torch.Tensor) -> torch.Tensor:
        return network.project(name, vectors.float()) if hasattr(network, f"{name}_head") else vectors

    kept = {name: value for name, value in old.metadata.items() if name != "plan"}  # of what was embedded
    return old.copy(output, project=project, metadata=kept | describe(network, model))


def main(
    gallery: Annotated[Path, typer.Argument(help="Gallery that the encoder made.")],
    model: Annotated[str, typer.Option(help="Folder or Hub name of the trained heads.")],
    output: Annotated[Path, typer.Option(help="Folder for the new gallery.")],
) -> None:
    """Apply trained heads to the vectors of a gallery, in place of embedding everything again."""
    with user_errors():
        made = rehead(gallery, model, output)
        say(f"{len(made):,} clips are in {output}.")


__all__ = ["rehead"]

if __name__ == "__main__":
    typer.run(main)
