"""`python -m evidence new-heads BACKBONE OUTPUT`: a backbone whose projections into the shared space are random.

The backbone's own projections learned each modality by itself. With new ones the study asks whether that is why masked
views change so little. The towers, and so their stored outputs, stay the same.
"""

from pathlib import Path

import torch

from scalar_retrieval.modeling_scalar import load_model

SEED = 0


def draw_heads(backbone: str | Path, output: str | Path) -> None:
    """
    Write a backbone with random projections.

    Args:
        backbone (`str` or `Path`): Folder of the trained backbone.
        output (`str` or `Path`): Folder for the new one, with the same towers and processor.
    """
    model, processor = load_model(str(backbone), torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    for name in ("text", *model.config.modalities):
        weight = getattr(model, f"{name}_projection").weight
        # Rows of unit norm in expectation, so that vectors keep about their length.
        torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
    model.save_pretrained(output)
    processor.save_pretrained(output)


__all__ = ["SEED", "draw_heads"]
