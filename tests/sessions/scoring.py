"""Score clips by a model and vectors of one's own, by a score of one's own too."""

import torch
from torch.nn.functional import normalize

from scalar_retrieval import (
    ScalarModel,
    ScalarProcessor,
    load_model,
    query_weights,
    register_method,
    retrieval_scores,
)

model = ScalarModel.from_pretrained("backbone")
processor = ScalarProcessor.from_pretrained("backbone")
batch = processor(text=["a dog barks"], videos=["clip0.mp4", "clip1.mp4"])
output = model(**batch)
encoder, reader = load_model("backbone", device="cpu")
same = encoder(**reader(text=["a dog barks"], videos=["clip0.mp4", "clip1.mp4"]))


@register_method("least")
def least(pairs):
    absent = ~pairs.clips.modality_mask.T[:, None]
    return pairs.similarities.masked_fill(absent, float("inf")).amin(0)


queries = normalize(torch.randn(2, 8), dim=-1)
clips = normalize(torch.randn(5, 3, 8), dim=-1)
present = torch.ones(5, 3, dtype=torch.bool)
scores = retrieval_scores(queries, clips, present)
lowest = retrieval_scores(queries.numpy(), clips.numpy(), method="least")
weights = query_weights(queries, clips, present)
print(output.scores, same.scores, scores.shape, lowest.shape, weights.shape)
