"""Load a saved model or adapter with the processor saved beside it. For programs; remote code does not need it."""

import os
from pathlib import Path

import torch
from transformers import AutoModel, AutoProcessor

from .modeling_scalar import ScalarModel
from .processing_scalar import ScalarProcessor


def load_model(
    name_or_path: str | os.PathLike, dtype: torch.dtype | None = None
) -> tuple[ScalarModel, ScalarProcessor]:
    """
    Load a model, or an adapter on its base, and its processor; no code of the folder runs.

    Args:
        name_or_path (`str`): a folder or Hub id.
        dtype (`torch.dtype`, *optional*): of the weights; by default that of the checkpoint.

    Returns:
        The model, in evaluation mode, and the processor.

    Raises:
        ValueError: nothing can be loaded from there, or it is no SCALAR model with its processor.
    """
    # An adapter remembers where its base was loaded from; an absolute folder holds in any working directory.
    name = str(Path(name_or_path).resolve()) if Path(name_or_path).is_dir() else str(name_or_path)
    options = {} if dtype is None else {"dtype": dtype}
    try:
        processor = AutoProcessor.from_pretrained(name, trust_remote_code=False)
        if not isinstance(processor, ScalarProcessor):
            raise ValueError(
                f"{name_or_path} must hold a ScalarProcessor, got {type(processor).__name__}. Save the model's "
                "processor beside it with `processor.save_pretrained`."
            )
        model = AutoModel.from_pretrained(name, trust_remote_code=False, **options)
    except OSError as error:
        raise ValueError(f"No model with its processor could be loaded from {name_or_path}: {error}") from error
    if not isinstance(model, ScalarModel):
        raise ValueError(f"{name_or_path} must hold a ScalarModel, got {type(model).__name__}.")
    return model.eval(), processor


__all__ = ["load_model"]
