"""The gradient of a whole batch in parts that fit the memory (GradCache, Gao et al., 2021).

Contrastive losses need every row of a batch at once, but only its embeddings. So: embed the parts without a graph;
compute the loss and its gradient with respect to the embeddings; embed each part again, with a graph, and pass that
gradient on. The cross-encoder reads pairs, which are parted too. Held for the whole batch are the embeddings, the
condition tokens the cross-encoder reads with their gradient, and what frozen towers gave, which is computed once.
"""

from collections.abc import Iterator
from typing import Any

import torch

from modeling_scalar import ScalarModel, ScalarOutput

_TOWER_INPUTS = {"vision_model": "pixel_values_videos", "audio_model": "input_features"}


def split_inputs(inputs: dict[str, torch.Tensor], size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the arguments of a model for `size` rows after `size` rows."""
    num_rows = len(inputs["modality_mask"])
    for start in range(0, num_rows, size):
        yield {name: value[start : start + size] for name, value in inputs.items()}


class RandomState:
    """The state of the generators that layers draw from, to draw the same once more."""

    def __init__(self, device: torch.device):
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Go back to this state."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@torch.no_grad()
def with_tower_features(model: ScalarModel, inputs: dict[str, Any], with_states: bool) -> dict[str, Any]:
    """Replace the raw inputs of frozen towers by what these towers give: computed once instead of twice."""
    frozen = {
        name: inputs[name]
        for tower, name in _TOWER_INPUTS.items()
        if name in inputs and not any(parameter.requires_grad for parameter in getattr(model, tower).parameters())
    }
    if not frozen:
        return inputs
    features = model.get_tower_features(**frozen, modality_mask=inputs["modality_mask"], with_states=with_states)
    return {name: value for name, value in inputs.items() if name not in frozen} | features


def no_pairs(output: ScalarOutput) -> tuple[torch.Tensor, ...]:
    """Ask a forward pass for condition tokens without scoring any pair."""
    ids = output.condition_mask.new_zeros((0, 1), dtype=torch.long)
    return ids, ids, output.condition_states[:0], output.condition_mask[:0]


def concatenate_ragged(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate rows whose second axis, of tokens, differs; the shorter are padded with zeros."""
    longest = max(tensor.shape[1] for tensor in tensors)
    return torch.cat(
        [
            torch.cat([tensor, tensor.new_zeros(len(tensor), longest - tensor.shape[1], *tensor.shape[2:])], dim=1)
            for tensor in tensors
        ]
    )


__all__ = ["RandomState", "concatenate_ragged", "no_pairs", "split_inputs", "with_tower_features"]
