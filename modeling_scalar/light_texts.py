"""The text encoders of `light`, without transformers, which takes three seconds to import.

A vector is that of all-MiniLM-L6-v2, for English, beside that of [`LanguageEncoder`]. A test holds the former to
those of Sentence Transformers.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import embedding, gelu, layer_norm, linear, normalize, scaled_dot_product_attention

from .light_languages import LanguageEncoder

ENGLISH_WEIGHTS = "model_english.safetensors"
LANGUAGE_WEIGHTS = "model_languages.safetensors"
CONFIG = "config.json"

_WIDTH = 384
_NUM_LAYERS = 6
_NUM_HEADS = 12
_NORM_EPS = 1e-12
_MAX_TOKENS = 256  # longer texts are cut
_BATCH_SIZE = 32  # texts


class EnglishEncoder(nn.Module):
    """
    Embed English texts.

    Args:
        weights (`Path`), tokenizer (`Path`): The files of all-MiniLM-L6-v2.
    """

    def __init__(self, weights: Path, tokenizer: Path):
        super().__init__()
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.tokenizer.enable_truncation(_MAX_TOKENS)
        self.tokenizer.enable_padding()
        self.tokenizer.encode_special_tokens = True  # "[SEP]" in a query is text
        for name, weight in load_file(weights).items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(weight, requires_grad=False))

    def _weight(self, name: str) -> torch.Tensor:
        return self.get_parameter(name.replace(".", "_"))

    def _linear(self, name: str, states: torch.Tensor) -> torch.Tensor:
        return linear(states, self._weight(f"{name}.weight"), self._weight(f"{name}.bias"))

    def _norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weight = self._weight(f"{name}.weight")
        bias = self._weight(f"{name}.bias")
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
        words = self._weight("embeddings.word_embeddings.weight")
        input_ids = torch.tensor([text.ids for text in tokens], device=words.device)  # (texts, tokens)
        is_token = torch.tensor([text.attention_mask for text in tokens], device=words.device).bool()
        # The words, their positions, and the only segment.
        states = embedding(input_ids, words)
        states = states + self._weight("embeddings.position_embeddings.weight")[: input_ids.shape[1]]
        states = states + self._weight("embeddings.token_type_embeddings.weight")[0]
        states = self._norm("embeddings.LayerNorm", states)
        for number in range(_NUM_LAYERS):
            states = self._layer(f"encoder.layer.{number}", states, is_token)
        # The mean of the tokens; only its direction counts.
        return normalize((states * is_token[..., None]).sum(dim=1), dim=-1)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed texts, `(texts, 384)`, of unit norm."""
        found = []
        for start in range(0, len(texts), _BATCH_SIZE):
            found.append(self._embed_batch(texts[start : start + _BATCH_SIZE]))
        return torch.cat(found)


class LightTextEncoder(nn.Module):
    """
    Embed texts by both encoders, with a share of the squared norm for each.

    Args:
        folder (`Path`): The folder of [`~scalar_retrieval.modeling_scalar.light_model.light_folder`].
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.english = EnglishEncoder(folder / ENGLISH_WEIGHTS, folder / "tokenizer.json")
        self.languages = LanguageEncoder(folder / LANGUAGE_WEIGHTS)
        self.english_share = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["english_share"]

    def _is_english(self, text: str) -> bool:
        """Whether the English encoder knows the words of a text: it needs no more tokens than the other one."""
        tokens = self.english.tokenizer.encode(text)
        return sum(tokens.attention_mask) <= len(self.languages.tokenize(text))

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], are_queries: bool = False) -> torch.Tensor:
        """
        Embed texts.

        Args:
            texts (list of `str`): The texts.
            are_queries (`bool`): Whether those that are not English have zeros in place of the English vector.

        Returns:
            `torch.FloatTensor` of shape `(texts, 896)`, unit norm: 384 numbers for English, and 512.
        """
        english = self.english.embed(texts)
        if are_queries:
            for place, text in enumerate(texts):
                english[place] *= self._is_english(text)
        share = self.english_share
        both = [share**0.5 * english, (1 - share) ** 0.5 * self.languages.embed(texts)]
        return normalize(torch.cat(both, dim=1), dim=1)


__all__ = ["CONFIG", "ENGLISH_WEIGHTS", "LANGUAGE_WEIGHTS", "EnglishEncoder", "LightTextEncoder"]
