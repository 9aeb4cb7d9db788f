"""The gradient of a whole batch, computed in parts that fit in memory (GradCache, Gao et al., 2021).

Contrastive losses need all rows of a batch at once, but only their embeddings. So: embed the parts without a graph;
compute the loss and its gradient with respect to the embeddings; embed each part again with a graph and backpropagate
that gradient. The pairs of the cross-encoder are split too. Kept for the whole batch are the embeddings, the condition
tokens of the cross-encoder with their gradient, and the outputs of frozen towers, computed once.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from scalar_retrieval.modeling_scalar import ScalarOutput
from scalar_retrieval.modeling_scalar.retrieval_scalar import ScalarRetrievalModel

from .towers import towers_of


def split_inputs(inputs: dict[str, torch.Tensor], size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the arguments of a model in parts of `size` rows."""
    num_rows = len(inputs["modality_mask"])
    for start in range(0, num_rows, size):
        yield {name: value[start : start + size] for name, value in inputs.items()}


class RandomState:
    """The state of the random generators of layers, to repeat their draws."""

    def __init__(self, device: torch.device):
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = None
        if device.type == "cuda":
            self.cuda = torch.cuda.get_rng_state(device)

    def restore(self) -> None:
        """Restore this state."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@torch.no_grad()
def with_tower_features(model: ScalarRetrievalModel, inputs: dict[str, Any], with_states: bool) -> dict[str, Any]:
    """Replace the raw inputs of frozen towers by their outputs, so that they are computed once instead of twice."""
    if "text_pooled" in inputs:  # stored vectors, behind the towers
        return inputs
    # The frozen towers whose raw inputs are given.
    towers = {}
    frozen = {}
    for name, tower in towers_of(model).items():
        if tower.is_frozen(model) and tower.inputs[0] in inputs:
            towers[name] = tower
            for key in tower.inputs:
                frozen[key] = inputs[key]
    if not frozen:
        return inputs
    features = model.get_tower_features(**frozen, modality_mask=inputs["modality_mask"], with_states=with_states)
    # If no clip has a modality, its tower returns nothing, and a joint encoder has no sequences of it.
    replaced = set(frozen)
    for name, tower in towers.items():
        if tower.output not in features:
            replaced.update(key for key in inputs if key.startswith(f"{name}_"))
    kept = {key: value for key, value in inputs.items() if key not in replaced}
    return kept | features


def no_pairs(output: ScalarOutput) -> tuple[torch.Tensor, ...]:
    """Select no pairs, so that a forward pass returns condition tokens without scoring."""
    ids = output.condition_mask.new_zeros((0, 1), dtype=torch.long)
    return ids, ids, output.condition_states[:0], output.condition_mask[:0]


def concatenate_ragged(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Concatenate rows with different numbers of tokens (second axis); shorter ones are padded with zeros."""
    rows = []
    for tensor in tensors:
        rows.extend(tensor)
    return pad_sequence(rows, batch_first=True)


class BatchInParts:
    """
    The two passes over one batch: its embeddings as leaves of a graph, then backpropagation of their gradient.

    Args:
        model (`torch.nn.Module`): The model to call, for example a PEFT model.
        scalar_model ([`ScalarRetrievalModel`]): The SCALAR model in it, whose frozen towers run once.
        size (`int`): The number of rows per part.
        autocast (`Callable`): A context manager under which the model runs.
        condition_on (`tuple` of `str`, *optional*): Modalities whose condition tokens matching needs.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        scalar_model: ScalarRetrievalModel,
        size: int,
        autocast: Callable[[], AbstractContextManager],
        condition_on: tuple[str, ...] | None = None,
    ):
        self.size = size
        self.autocast = autocast
        self.scalar_model = scalar_model
        self._with_states = condition_on is not None
        options = {}
        if self._with_states:
            options = {"select_pairs": no_pairs, "condition_on": condition_on}
        self._encode = partial(model, return_scores=False, **options)
        self._parts: list[dict[str, Any]] = []
        self._states: list[RandomState] = []
        self._leaves: list[torch.Tensor] = []

    def forward(self, inputs: dict[str, Any]) -> ScalarOutput:
        """
        Embed the batch without a graph.

        Args:
            inputs (`dict`): The arguments of the model.

        Returns:
            [`ScalarOutput`] of the whole batch, whose `text_embeds`, `modality_embeds` and `condition_states` are
            leaves that collect a gradient.
        """
        # Embed the parts; keep their inputs and the state of the random generators, to repeat the same dropout.
        outputs = []
        with torch.no_grad(), self.autocast():
            for part in split_inputs(inputs, self.size):
                self._parts.append(with_tower_features(self.scalar_model, part, self._with_states))
                self._states.append(RandomState(part["modality_mask"].device))
                outputs.append(self._encode(**self._parts[-1]))
        # The whole batch as leaves, at which the gradient of the loss arrives.
        whole = ScalarOutput(
            text_embeds=torch.cat([output.text_embeds for output in outputs]).requires_grad_(),
            modality_embeds=torch.cat([output.modality_embeds for output in outputs]).requires_grad_(),
            modality_mask=torch.cat([output.modality_mask for output in outputs]),
        )
        self._leaves = [whole.text_embeds, whole.modality_embeds]
        if self._with_states:
            whole.condition_mask = concatenate_ragged([output.condition_mask for output in outputs])
            states = concatenate_ragged([output.condition_states for output in outputs])
            whole.condition_states = states.requires_grad_()
            self._leaves.append(whole.condition_states)
        return whole

    def backward(self) -> None:
        """Embed each part again, with a graph and the same dropout, and backpropagate the gradient of its leaves."""
        after = RandomState(self._leaves[0].device)
        gradients = zip(*[leaf.grad.split(self.size) for leaf in self._leaves], strict=True)  # one tuple per part
        for part, state, gradient in zip(self._parts, self._states, gradients, strict=True):
            state.restore()
            with self.autocast():
                output = self._encode(**part)
            # A sum whose gradient with respect to the embeddings is the one of the loss.
            surrogate = (output.text_embeds * gradient[0]).sum() + (output.modality_embeds * gradient[1]).sum()
            if self._with_states:
                length = output.condition_states.shape[1]
                surrogate = surrogate + (output.condition_states * gradient[2][:, :length]).sum()
            surrogate.backward()
        after.restore()


__all__ = ["BatchInParts"]
