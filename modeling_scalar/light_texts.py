"""The text encoder of `light`, all-MiniLM-L6-v2, without transformers, which takes three seconds to import.

A test holds its embeddings to those of Sentence Transformers.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn.functional import embedding, gelu, layer_norm, linear, normalize, scaled_dot_product_attention

_WIDTH = 384
_NUM_LAYERS = 6
_NUM_HEADS = 12
_NORM_EPS = 1e-12
_MAX_TOKENS = 256  # longer texts are cut
_BATCH_SIZE = 32  # texts


class LightTextEncoder:
    """
    Embed English texts, on the CPU.

    Args:
        folder (`Path`): The folder with all-MiniLM-L6-v2's `model.safetensors` and `tokenizer.json`.
    """

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(_MAX_TOKENS)
        self.tokenizer.enable_padding()
        self.tokenizer.encode_special_tokens = True  # "[SEP]" in a query is text
        self.weights = load_file(folder / "model.safetensors")

    def _linear(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weight = self.weights[f"{name}.weight"]
        bias = self.weights[f"{name}.bias"]
        return layer_norm(states, (_WIDTH,), weight, bias, _NORM_EPS)

    def _layer(self, name: str, states: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
        """One layer of BERT: attention, then a hidden layer, each added and normalised."""
        heads = []
        for part in ("query", "key", "value"):
            values = self._linear(f"{name}.attention.self.{part}", states)
            heads.append(values.unflatten(-1, (_NUM_HEADS, -1)).transpose(1, 2))  # (texts, heads, tokens, width)
        attended = scaled_dot_product_attention(*heads, attn_mask=is_token[:, None, None])
        attended = self._linear(f"{name}.attention.output.dense", attended.transpose(1, 2).flatten(2))
        states = self._norm(f"{name}.attention.output.LayerNorm", states + attended)
        hidden = gelu(self._linear(f"{name}.intermediate.dense", states))
        return self._norm(f"{name}.output.LayerNorm", states + self._linear(f"{name}.output.dense", hidden))

    def _embed_batch(self, texts: Sequence[str]) -> torch.Tensor:
        tokens = self.tokenizer.encode_batch(list(texts))
        input_ids = torch.tensor([text.ids for text in tokens])  # (texts, tokens)
        is_token = torch.tensor([text.attention_mask for text in tokens], dtype=torch.bool)
        # The words, their positions, and the only segment.
        states = embedding(input_ids, self.weights["embeddings.word_embeddings.weight"])
        states = states + self.weights["embeddings.position_embeddings.weight"][: input_ids.shape[1]]
        states = states + self.weights["embeddings.token_type_embeddings.weight"][0]
        states = self._norm("embeddings.LayerNorm", states)
        for number in range(_NUM_LAYERS):
            states = self._layer(f"encoder.layer.{number}", states, is_token)
        # The mean of the tokens; only its direction counts.
        return normalize((states * is_token[..., None]).sum(dim=1), dim=-1)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed texts, `(texts, 384)`, of unit norm."""
        starts = range(0, len(texts), _BATCH_SIZE)
        return torch.cat([self._embed_batch(texts[start : start + _BATCH_SIZE]) for start in starts])


__all__ = ["LightTextEncoder"]
