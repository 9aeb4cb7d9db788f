"""The figure of the latent space holds every vector of the chosen classes."""

import math

import numpy as np
from matplotlib import image

from evidence.reports import latent_figure
from evidence.reports.latent_figure import plot_latent
from tests.evidence.test_latent import make_classes, members


def test_every_present_vector_is_drawn(tmp_path, monkeypatch):
    seen = []
    plain = latent_figure.TSNE.fit_transform
    monkeypatch.setattr(latent_figure.TSNE, "fit_transform", lambda self, x: seen.append((self, x)) or plain(self, x))
    embeddings = make_classes((5, 4, 6, 3))
    plot_latent({"one": embeddings, "two": make_classes((5, 4, 6, 3), seed=1)}, tmp_path / "new" / "a.png", ["cat"])
    assert len(seen) == 2
    tsne, vectors = seen[0]
    assert len(vectors) == 1 + embeddings.modality_mask[members(embeddings, 1)].sum()
    assert tsne.metric == "cosine" and tsne.perplexity < len(vectors)
    assert np.array_equal(vectors[0], embeddings.text_embeds[1].numpy())
    pixels = image.imread(tmp_path / "new" / "a.png")
    assert pixels.shape[1] > pixels.shape[0] > 400 and math.isclose(pixels.max(), 1) and pixels.min() < 0.1
