"""Evaluate embeddings, one's own and a model's."""

import torch
from torch.nn.functional import normalize

from scalar_retrieval import Embeddings, evaluate

names = [f"clip{number}" for number in range(8)]
theirs = Embeddings(
    text_embeds=normalize(torch.randn(8, 16), dim=-1),
    modality_embeds=normalize(torch.randn(8, 2, 16), dim=-1),
    modality_mask=torch.ones(8, 2, dtype=torch.bool),
    pairs=torch.arange(8)[:, None].expand(-1, 2),
    clip_ids=names,
    query_ids=names,
    captions=names,
    modalities=("video", "title"),
)
theirs.save("galleries/theirs")
again = Embeddings.load("galleries/theirs")
results = evaluate(embeddings=theirs, rates=[0.0], progress=False)
own = evaluate("backbone", "own", "clips.csv", output="results/own", rates=[0.0], progress=False)
print(again.captions[0], results["retrieval"]["rates"][0]["methods"], own["label"])
