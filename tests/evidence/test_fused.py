"""Whole clips as one vector: what is given to the encoder, and how they are ranked."""

import numpy as np
import torch

from evidence.fused import encode_whole, rank_whole
from scalar_retrieval.eval.protocol.missing import mask_modalities
from scalar_retrieval.modeling_scalar import Clip


class Encoder:
    """In place of a SentenceTransformer: the vector of what it is given is the sum of its parts'."""

    def get_embedding_dimension(self):
        return 4

    def encode_query(self, inputs, **_):
        return torch.stack([self.vector("text", text) for text in inputs])

    def encode_document(self, inputs, **options):
        kinds = list(inputs[0])
        assert all(list(item) == kinds for item in inputs) and ("processing_kwargs" in options) == ("video" in kinds)
        return torch.stack([sum(self.vector(kind, part) for kind, part in item.items()) for item in inputs])

    def vector(self, kind, part):
        if kind == "video":
            return torch.tensor([part.float().mean(), 1.0, 0.0, 0.0])
        if kind == "audio":
            return torch.tensor([0.0, float(part["array"].sum()), 1.0, 0.0])
        return torch.tensor([len(part), 0.0, 0.0, 1.0])


def make_clips(count):
    clips = []
    for number in range(count):
        frames = np.full((2, 4, 4, 3), number, np.uint8)
        clips.append(Clip(frames, np.full(8, number + 1, np.float32), "a" * number or "b"))
    return clips


def test_clips_are_ranked_by_the_vector_of_what_a_mask_leaves():
    encoder, clips, captions = Encoder(), make_clips(12), ["a" * number for number in range(12)]
    names, presence = [f"clip{number}" for number in range(12)], torch.ones(12, 3, dtype=torch.bool)
    presence[3, 1] = presence[4, 0] = False
    found = rank_whole(encoder, clips, captions, presence, names, (0.0, 0.9))
    for rate, ranks in zip((0.0, 0.9), found, strict=True):
        mask = mask_modalities(names, presence, rate)
        vectors = torch.cat([encode_whole(encoder, [clip], mask[[row]]) for row, clip in enumerate(clips)])
        texts = torch.nn.functional.normalize(encoder.encode_query(captions), dim=-1)
        scores = texts @ vectors.T
        assert ranks.tolist() == (scores >= scores.diagonal()[:, None]).sum(dim=1).tolist()
    assert (mask != presence).any() and not torch.equal(*found)
