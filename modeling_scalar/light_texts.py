"""The text encoder of `light`, all-MiniLM-L6-v2, without transformers, which takes three seconds to import.

A test holds its embeddings to those of Sentence Transformers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

_WIDTH, _NUM_LAYERS, _NUM_HEADS = 384, 6, 12
_MAX_TOKENS = 256  # longer texts are cut
_NORM_EPS = 1e-12
_AT_ONCE = 32  # texts in a batch
# The parts of a layer of torch by their names in BERT; queries, keys and values are one matrix in torch.
_PARTS = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


def _positions(stored: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The embeddings of positions, with that of the segment, of which only one is used."""
    segment = stored["embeddings.token_type_embeddings.weight"][0]
    return stored["embeddings.position_embeddings.weight"] + segment


def _layer_weights(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The other stored weights of BERT, by the names of [`LightTextEncoder`]."""
    weights = {}
    for kind in ("weight", "bias"):
        weights[f"norm.{kind}"] = stored[f"embeddings.LayerNorm.{kind}"]
        for number in range(_NUM_LAYERS):
            theirs, ours = f"encoder.layer.{number}", f"layers.layers.{number}"
            inputs = [stored[f"{theirs}.attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            weights[f"{ours}.self_attn.in_proj_{kind}"] = torch.cat(inputs)
            for our_part, their_part in _PARTS.items():
                weights[f"{ours}.{our_part}.{kind}"] = stored[f"{theirs}.{their_part}.{kind}"]
    return weights


class LightTextEncoder(nn.Module):
    """
    Embed English texts.

    Args:
        folder (`Path`): The folder with all-MiniLM-L6-v2's `model.safetensors` and `tokenizer.json`.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(_MAX_TOKENS)
        self.tokenizer.enable_padding()
        self.tokenizer.encode_special_tokens = True  # "[SEP]" in a query is text
        stored = load_file(folder / "model.safetensors")
        self.words = nn.Embedding.from_pretrained(stored["embeddings.word_embeddings.weight"])
        self.positions = nn.Embedding.from_pretrained(_positions(stored))
        self.norm = nn.LayerNorm(_WIDTH, eps=_NORM_EPS)
        layer = nn.TransformerEncoderLayer(
            _WIDTH, _NUM_HEADS, 4 * _WIDTH, activation="gelu", layer_norm_eps=_NORM_EPS, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, _NUM_LAYERS, enable_nested_tensor=False)
        self.load_state_dict(self.state_dict() | _layer_weights(stored))
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the normalised mean of the tokens of each text, `(texts, 384)`."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        states = self.norm(self.words(input_ids) + self.positions(places))
        states = self.layers(states, src_key_padding_mask=~attention_mask)
        total = (states * attention_mask[..., None]).sum(dim=1)
        return nn.functional.normalize(total, dim=-1)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed texts, `(texts, 384)`, of unit norm, on the CPU."""
        rows = []
        for start in range(0, len(texts), _AT_ONCE):
            found = self.tokenizer.encode_batch(list(texts[start : start + _AT_ONCE]))
            input_ids = torch.tensor([text.ids for text in found])
            attention_mask = torch.tensor([text.attention_mask for text in found], dtype=torch.bool)
            rows.append(self(input_ids, attention_mask))
        return torch.cat(rows)


__all__ = ["LightTextEncoder"]
